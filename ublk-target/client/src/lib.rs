//! The volume client: routing, resending, back-pressure. Pure.
//!
//! ```text
//!   front end ── submit ──► split ──► engine ──► link per endpoint ──► tcp::Net ──► primaries
//!             ◄─ next_completion ── reaper ◄── answers, losses ◄────────┘
//!   control thread ◄── wants_map        map ──► routes
//! ```
//!
//! One `VolumeClient` per lane: one reactor, one ublk queue or NBD server thread. Promises:
//!
//! - Each request that was taken is completed exactly once, and only when nothing of it is in flight any more.
//! - A part of a request is on at most one live connection at a time, and is sent again only where that is safe (`engine`).
//! - A request does not fail while a node could still answer it, unless `io_timeout` passes, the client is fenced, or it is aborted.
//! - Everything is bounded (`limits`): what does not fit is given back by `submit`.
//! - Where a rate is limited (`pace`), what comes early waits until that lets it go.
//!
//! Never: reads a clock, calls the system, panics on what a node says, or talks to a node before that node has fenced this
//! client's former connection.
#![forbid(unsafe_code)]

mod claims;
mod client;
mod engine;
mod iocb;
pub mod limits;
mod link;
mod pace;
mod request;
mod routes;
mod shares;
mod split;
mod unfenced;
mod unflushed;
mod view;

pub use claims::{Holding, Range};
pub use client::{ClientOptions, VolumeClient, Word};
pub use iocb::{Stage, Stages};
pub use pace::{Limits, Pace};
pub use request::{BlockDone, BlockError, BlockOp, BlockRequest, ClientError, Completion, Extent};
pub use tcp::{Transport, WayView};
pub use unfenced::Unfenced;
pub use unflushed::Unflushed;
pub use view::{Counters, LinkView, ShardWait, View};

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small test values")]
mod tests;
