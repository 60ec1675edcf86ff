//! A storage node's logic: sessions, IOCBs, range locks, stamps, fan-out, settling.
//!
//! Pure: a `driver::Machine` that io_uring drives in the daemon and a virtual clock in the simulator. One `Node` is one reactor's
//! worth; it owns its connections, its disks' stores, and every shard that has a copy on those disks. `docs/replication.md` has the
//! rules by number; the comments here name the one that each line keeps.
//!
//! ```text
//!   client ──READ/WRITE──► requests ──lock, lease, stamp──► fanout ──┬─► store (own copy)
//!                             ▲                                      └─► link ──REPLICA_WRITE──► copies (another node) ─► store
//!                             └──────────── answered when every leg is durable ◄─────────────────────────────┘
//!   conductor ──configuration──► membership ──JOIN──► copies       membership ──all joined──► settle ──► serving
//! ```
#![forbid(unsafe_code)]

mod backlog;
mod bad_blocks;
mod change;
mod counters;
mod filling;
mod inspection;
mod iocb;
mod iocbs;
mod lease;
pub mod limits;
mod links;
mod mail;
mod mend;
mod node;
mod primary;
mod range_lock;
mod ranges;
mod replica;
mod session;
mod window;
mod withheld;

pub use iocb::{Stage, Stages};
pub use mail::{CopyView, DiskView, Letter, LinkView, Mail, RangeView, SessionView, View};
pub use node::{Disk, Node, NodeOptions};
