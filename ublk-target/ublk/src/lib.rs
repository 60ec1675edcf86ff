//! The ublk front end: a volume as `/dev/ublkbN`.
//!
//! ```text
//!   /dev/ublkbN ─▶ kernel ══ ring of queue 0 ══ thread: Reactor<Lane<Executor>> ── sockets on the same ring
//!                         ══ ring of queue 1 ══ thread: Reactor<Lane<Executor>> ── …
//!   start, grow, detach ── control commands           ▲ Queues: mail, look, refuse
//! ```
//!
//! - **One thread, one ring, one executor per queue**: between fetching a request and sending it nothing changes hands, and a
//!   turn is one `io_uring_enter`.
//! - **No I/O error by a restart**: devices are made for recovery. A daemon that is killed leaves its device waiting; the next
//!   one takes it over ([`DeviceOptions::recover`]), and the kernel asks again for all that was not answered.
//! - **A failed start is an error**, never a hang: the kernel is told to start only when every queue has fetched.
//! - All of libublk is in `kernel`; nothing outside it names a type of libublk's.
#![deny(clippy::undocumented_unsafe_blocks)]

mod attached;
pub mod daemon;
mod device;
mod error;
mod executor;
mod features;
mod kernel;
mod limits;
mod links;
mod openers;
mod options;
mod queue;
mod queues;
mod volume;

pub use attached::{
    Asking, Found, KernelDevice, KernelState, find, forget, is_write_back, known, sweep, waiting, whose,
};
pub use device::{Device, Ended};
pub use error::{BuildError, DeviceError, QueueFailure};
pub use executor::{Executor, QueueId};
pub use features::{Feature, Probe, driver_is_loaded, probe};
pub use limits::{MAX_DEPTH, MAX_IO_BYTES, MAX_QUEUES};
pub use links::{LINKS, link, link_of, unlink, unlink_stale};
pub use options::{DeviceOptions, Owner};
pub use queue::{Counters, QueueView};
pub use queues::Queues;
pub use volume::{Volume, VolumeLetter, VolumeMail};
