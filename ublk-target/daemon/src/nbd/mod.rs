//! The NBD front end: a machine with one volume client and many NBD sessions.

mod convert;
mod lane;
mod link;
mod target;

pub(crate) use lane::{Listening, NbdLane};
pub use target::{Letter, Mail, NbdOptions, NbdTarget};
