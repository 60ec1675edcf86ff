//! Power loss below real nodes, in two halves that know nothing of each other.
//!
//! `log-writes` rebuilds a disk from what the kernel's dm-log-writes target recorded below it ([`log`], [`rebuild`]). `witness` writes
//! to a volume and notes, outside it, what was begun and what was acknowledged ([`ledger`], [`blocks`], [`files`]); after a power loss it
//! says whether what reads back can be. Neither knows how Trine stores anything.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod files;
pub mod ledger;
pub mod log;
mod random;
pub mod rebuild;

pub use random::Random;
