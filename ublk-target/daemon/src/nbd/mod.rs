//! The NBD front end: a machine with one volume client and many NBD sessions.

mod convert;
mod link;
mod target;

pub use target::{Letter, Mail, NbdOptions, NbdTarget};
