//! One queue: what the kernel asks, translated for an executor, and the thread on which both live.

mod lane;
mod serve;
mod tags;

pub(crate) use lane::QueueMail;
pub use serve::QueueView;
pub(crate) use serve::{Report, prepare, serve};
pub use tags::Counters;
pub(crate) use tags::Descriptor;
