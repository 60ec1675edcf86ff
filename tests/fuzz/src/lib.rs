//! Everything that takes bytes from outside, under bytes that nobody meant.
//!
//! A *target* is a function over one input. It must not panic, hold more than [`MEMORY`], or break what it promises of every input
//! (what was parsed is within its limits, and is written as it was read). `make fuzz` looks for inputs that take new ways through the
//! code and keeps them in `corpus/`; `tests/replay.rs` runs all that were kept.

mod allocation;
mod arena;
mod bodies;
mod conductor;
mod connection;
mod header;
mod hello;
mod input;
mod json;
mod line;
mod nbd;
mod node;
mod rdma;
mod records;
mod store;

/// Bytes of memory that one input may take.
pub const MEMORY: usize = 64 << 20;

/// One way in.
#[derive(Debug)]
pub struct Target {
    /// Its name, and its corpus's.
    pub name: &'static str,
    /// Longest input that says something new, in bytes.
    pub longest: usize,
    /// What is run.
    pub run: fn(&[u8]),
    /// Inputs to begin with: messages as they are encoded.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub static TARGETS: [Target; 15] = [
    Target { name: "header", longest: 1200, run: header::target, seeds: header::seeds },
    Target { name: "hello", longest: 1100, run: hello::target, seeds: hello::seeds },
    Target { name: "stream", longest: 2048, run: connection::stream, seeds: connection::stream_seeds },
    Target { name: "connection", longest: 4096, run: connection::established, seeds: connection::established_seeds },
    Target { name: "rdma", longest: 1024, run: rdma::target, seeds: rdma::seeds },
    Target { name: "bodies", longest: 256, run: bodies::target, seeds: bodies::seeds },
    Target { name: "node", longest: 2048, run: node::target, seeds: node::seeds },
    Target { name: "nbd-handshake", longest: 2048, run: nbd::handshake, seeds: nbd::handshake_seeds },
    Target { name: "nbd-transmission", longest: 4096, run: nbd::transmission, seeds: nbd::transmission_seeds },
    Target { name: "conductor-requests", longest: 4096, run: conductor::target, seeds: conductor::seeds },
    Target { name: "conductor-records", longest: 8192, run: records::target, seeds: records::seeds },
    Target { name: "superblock", longest: 256, run: store::superblock, seeds: store::superblock_seeds },
    Target { name: "journal", longest: 4096, run: store::journal, seeds: store::journal_seeds },
    Target { name: "pages", longest: 1024, run: store::pages_forged, seeds: store::pages_seeds },
    Target { name: "image", longest: 256, run: store::anywhere, seeds: store::anywhere_seeds },
];

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target on one input, with as much memory as one may take.
pub fn run(target: &Target, data: &[u8]) {
    // Not the first input's.
    store::prepare();
    allocation::limited(MEMORY, || (target.run)(data));
}
