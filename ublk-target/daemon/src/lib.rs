//! A target's process: one volume, one front end.
//!
//! ```text
//!   main thread ── attach, record, signals, detach        maps thread ── conductor
//!        ▲ Ended, Fenced                                       │ Mail::Map      ▲ WantMap
//!        │                                                     ▼                │
//!   lane thread: Reactor { NbdTarget { sessions, VolumeClient } } ──────────────┘
//!        ▲ Mail::Look, Stop                │ Letter::View
//!   control thread ── DIR/attached/VOLUME.sock ── `trine attached`, `trine detach`
//! ```
//!
//! Promises: a volume has at most one target per directory, and at most one client in the cluster (the conductor says who); what
//! was acknowledged to a front end is durable; a clean end leaves nothing behind, an unclean one leaves a record from which
//! `trine attach` goes on and `trine detach` cleans up. Reads no configuration: its options come from `tools`.
#![forbid(unsafe_code)]

mod control;
mod error;
mod lane;
pub mod limits;
mod maps;
mod nbd;
mod process;
mod record;
mod view;

pub use control::{Look, detach, look};
pub use error::TargetError;
pub use nbd::{Letter, Mail, NbdOptions, NbdTarget};
pub use process::{FrontEnd, Options, run};
pub use record::{Lock, Place, Record, start_time};
pub use view::{LinkView, SessionView, TargetView, TraceView, WaitView};
