//! How much a reactor has in the kernel at a time, and the completion queue that holds the sum.
//!
//! An operation gives one completion; a connect's deadline one more; a cancellation at the end one more; so do the mailbox's read and the
//! polls of RDMA's descriptors. Operations over the
//! limit wait here for a slot, so the completion queue cannot overflow whatever a machine asks for.

use driver::Span;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Streams that one reactor has open: a few hundred clients, and its share of the other nodes.
const STREAMS: u16 = 1024;
/// Operations on disks: more than any device works on at a time.
const DISK_OPS: u32 = 1024;
/// Each stream has one receive and one send posted, a watch, and a shutdown that must not wait for any of them; a close stands alone.
const OPS_PER_STREAM: u32 = 4;
/// Accepts and connects.
const OPENING: u32 = 256;
/// Entries of the submission queue: a turn's worth; a fuller turn submits in between.
const SUBMISSIONS: u32 = 256;

/// Open files asked for: streams of all reactors, disks, and some.
const OPEN_FILES: u64 = 65_536;

/// A connect that took longer fails with TIMED_OUT: a first packet that is lost is sent again after 1, 3 and 7 s, and the third of these may
/// still be answered.
const CONNECT: Span = Span::seconds(12);

/// Completions per operation: its own, a deadline's, a cancellation's.
const COMPLETIONS_PER_OP: u32 = 3;
/// The mailbox's read, and its cancellation.
const COMPLETIONS_OF_MAILBOX: u32 = 2;
/// A poll of each of RDMA's descriptors, and its cancellation.
const COMPLETIONS_OF_RDMA: u32 = 2 * ::rdma::Rdma::DESCRIPTORS;

/// Raises how many files the process may have open to what the system allows, up to what may be of use. With fewer it still works, for fewer
/// connections.
pub fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = hard.min(OPEN_FILES).max(soft);
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
    }
}

/// The limits of one reactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Operations in the kernel at a time; more wait.
    pub ops: u32,
    /// Open streams; an accept or connect over it fails with EMFILE.
    pub streams: u16,
    /// Entries of the submission queue.
    pub submissions: u32,
    /// How long a connect may take at most, whatever it says itself.
    pub connect: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ops: STREAMS as u32 * OPS_PER_STREAM + DISK_OPS + OPENING,
            streams: STREAMS,
            submissions: SUBMISSIONS,
            connect: CONNECT,
        }
    }
}

impl Limits {
    /// Completions that can be there at a time: the size of the completion queue (on a shared ring: our part of it).
    pub fn completions(&self) -> u32 {
        self.ops.saturating_mul(COMPLETIONS_PER_OP).saturating_add(COMPLETIONS_OF_MAILBOX + COMPLETIONS_OF_RDMA)
    }
}
