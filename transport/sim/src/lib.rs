//! A simulated machine park: processes on a virtual clock, with a network and disks that execute `driver`'s operations.
//!
//! A test spawns machines, lets time pass, answers their letters, and breaks things. One seeded generator decides all that is
//! left to chance, nothing reads the OS, and no order depends on a hash map: the same seed and the same test give the same
//! [`World::hash`], event for event.
//!
//! ```text
//!   test ── spawn, kill, partition, mail ──▶ World ── turn: done*, mail*, end_turn ──▶ Machine
//!     ▲                                       │ ▲                                        │
//!     └────────── News (letters, alarms) ─────┘ └───────────── operations ───────────────┘
//! ```
//!
//! What it promises: an operation completes exactly once or goes with its process; a stream's bytes arrive in order, in pieces,
//! or not at all; a completed durable write survives every death; memory of a send or write is read when its bytes leave, not
//! when it was submitted; a process's clock is read after its completions were gathered and never steps back within a boot.
//!
//! It never repairs a machine's mistakes: an operation against the contract of `driver::Op` (two sends on one stream, a close
//! with something outstanding, a number never given out, an unaligned disk range) and a deadline that stays due panic with
//! the process's name.
#![forbid(unsafe_code)]

mod clock;
mod content;
mod disks;
mod kernel;
mod network;
mod options;
mod process;
mod random;
mod trace;
mod turns;
mod world;

pub use clock::Clock;
pub use content::Image;
pub use disks::DiskId;
pub use kernel::ProcessId;
pub use options::{DiskOptions, Full, Latency, NetworkOptions, Options};
pub use process::{Birth, Setup, State};
pub use random::Rng;
pub use world::{News, Stall, Step, World};

/// Why an address-space size fits: what is simulated lives in this process's memory.
#[expect(clippy::cast_possible_truncation, reason = "callers pass lengths of things held in memory")]
pub(crate) const fn size(n: u64) -> usize {
    n as usize
}
