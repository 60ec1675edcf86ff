//! A storage node's process: reactors, disks, heartbeats. A thin driver: every decision about data is `node-core`'s.
//!
//! ```text
//!   conductor ◄─ heartbeat thread ─┐                       ┌─► reactor thread 0: ring, arena, net, stores, Node
//!   conductor ◄─ asking thread ────┼─ Desk (letters, news) ┼─► reactor thread 1: …
//!   control.sock ─ socket thread ──┘      Mail ───────────►┘
//! ```
//!
//! Promises: nothing is served before its disk's store is recovered; a disk of another node or cluster, or one in use, is refused;
//! an unreachable conductor stops no I/O; a panic anywhere ends the whole process, since half a node is worse than none.
//! Never: reads files other than its disks, the environment or arguments; decides anything about a shard.
#![deny(clippy::undocumented_unsafe_blocks)]

mod adding;
mod claim;
mod control;
mod desk;
mod disks;
mod error;
mod head;
mod journal;
mod lanes;
mod life;
mod limits;
mod look;
mod marks;
pub mod offline;
mod opening;
mod options;
mod process;
mod secure;
mod socket;
mod thread;
mod users;
mod without;

pub use adding::{AddedDisk, NewDisks};
pub use disks::{Measured, measure};
pub use error::Error;
pub use limits::{DEFAULT_DEPTH, DEFAULT_MEMORY, MAX_DISKS_PER_REACTOR, MIN_MEMORY, MIN_METADATA_CACHE};
pub use look::{
    CopyLook, DiskLook, LinkLook, MemoryLook, MemoryNodeLook, NodeLook, ReactorLook, SessionLook, StageLook, TraceLook,
};
pub use memory::{HugePages, MemoryNodes, TooFewHugePages};
pub use node_store::journaled::DEFAULT_CACHE_BYTES as DEFAULT_METADATA_CACHE;
pub use node_store::journaled::{MAX_JOURNAL_BYTES, MIN_DISK_BYTES, MIN_JOURNAL_BYTES};
pub use options::{DiskPlan, NodeOptions, huge_pages_needed};
pub use process::{Ready, run};
pub use socket::{ask_for_look, ask_to_add};
