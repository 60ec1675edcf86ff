//! A target's process: one volume, one front end.
//!
//! ```text
//!   signals ───────┐                                       ┌── lane: Reactor { NbdTarget { sessions, VolumeClient } }
//!   control socket ┼─▶ main thread: attach, record, detach ─┤                          or
//!   maps thread ───┘        ▲ mail ▼ letters                └── queues of a ublk device: Reactor { Volume }, one each
//!        └── conductor                                          ▲ started, grown, stopped by the device's own thread
//! ```
//!
//! The main thread never waits for the device: the kernel answers START_DEV and STOP_DEV only when requests are, and a request
//! may need the map that the main thread passes on.
//!
//! Promises: a volume has at most one target per directory, and at most one client in the cluster (the conductor says who); what
//! was acknowledged to a front end is durable; a clean end leaves nothing behind, an unclean one leaves a record from which
//! `trine attach` goes on and `trine detach` cleans up. Reads no configuration: its options come from `tools`.
#![forbid(unsafe_code)]

mod attend;
pub mod bench;
mod control;
mod error;
mod happening;
pub mod image;
pub mod limits;
mod maps;
mod nbd;
pub mod probe;
mod process;
mod record;
mod setup;
mod subject;
mod ublk;
mod view;
mod visit;

pub use control::{Look, detach, look};
pub use driver::{Address, Span};
pub use error::TargetError;
pub use nbd::{Letter, Mail, NbdOptions, NbdTarget};
pub use process::{FrontEnd, Options, run};
pub use record::{Holder, Lock, Place, Record};
pub use setup::{NbdTls, Shared};
pub use subject::Subject;
pub use ublk::{Kept, kept, unrecorded};
pub use view::{LinkView, SessionView, TargetView, TraceView, WaitView};
pub use visit::{Visit, is_visited};
pub use volume_client::{ClientError, Limits, Range, Transport};
