//! The seam between logic and the machine.
//!
//! Logic (`Machine`) is handed completions, mail and the time; it hands back operations and letters. A driver executes the
//! operations: `reactor` on io_uring, `sim` on a simulated network and disks with a virtual clock. Neither knows what the
//! other is made of, and nothing but what is in this package passes between them.
//!
//! ```text
//!            Done, Mail, Time                      Op
//!   driver ───────────────────► Machine ───► Outbox ───► driver
//!            (ownership back)               (ownership over)
//! ```
//!
//! An operation owns all that it touches until its *last* completion is back: memory, and holds on its connection. What
//! a machine submitted it gets back exactly once, whether it succeeded, failed, or was flushed by a close.
#![forbid(unsafe_code)]

mod conn;
mod machine;
pub mod mutant;
mod op;
mod time;

pub use conn::{Binding, Conn, ConnId, Proven, Provider, why};
pub use machine::{Machine, Outbox, Vecs};
pub use memory::Part;
pub use op::{Address, DiskIndex, Done, Errno, ListenerId, Messages, Op, Parts, StreamId};
pub use time::{Span, Time};
