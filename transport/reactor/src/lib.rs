//! A reactor thread: its ring, its operations in flight, its mailbox, and the machine that it runs.
//!
//! ```text
//!   other threads ──Mailbox──▶ Reactor ◀──letters── Machine (all decisions)
//!                                 │ Op ▼ ▲ Done
//!                               Uring ── slab, streams, listeners, disks; RDMA's streams, if it was opened
//!                                 │
//!                               Ring: its own, or libublk's
//! ```
//!
//! - **One enter per turn** submits everything that the last turn asked for and waits for what comes; the time is read after.
//! - **Each operation comes back exactly once**, with all that it owned; one whose memory the kernel may still touch never goes.
//! - **The completion queue cannot overflow**: what is in the kernel is bounded by [`Limits`], the rest waits here.
//! - It holds no decisions: no retry, no routing, no deadline but a connect's. It never blocks except in its one enter.
#![deny(clippy::undocumented_unsafe_blocks)]

mod at_once;
mod batch;
pub mod clock;
mod counters;
mod disk;
mod error;
mod flight;
mod glance;
mod limits;
mod mailbox;
mod rdma;
mod reactor;
mod ring;
mod sockets;
mod spin;
mod token;
mod uring;

pub use counters::Counters;
pub use disk::{DiskInfo, DiskOptions, Mapped};
pub use error::ReactorError;
pub use glance::glance;
pub use limits::{Limits, raise_open_files};
pub use mailbox::{Door, MailRx, Mailbox, NotSent, mailbox, why};
pub use reactor::{Ended, Reactor, run};
pub use ring::{Cqe, OwnRing, Ring};
pub use sockets::Listener;
pub use spin::spare_cores;
pub use token::is_ours;
pub use uring::Uring;
