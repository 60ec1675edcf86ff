//! The store that owns one disk. Pure: the disk is its only seam.
//!
//! [`Store`] is what the node's core sees: operations go in, completions come out in any order, and what the disk shall
//! do leaves as [`driver::Op`]s. Promised by every engine: an acknowledged write is durable, a block is never torn,
//! a read returns what was written or says [`StoreError::Corrupt`], what was never written reads as zeros, and after
//! a failed write or sync nothing is washed clean: the disk is distrusted until it is opened again.
//!
//! [`journaled`] is the engine that nodes run. [`simple`] is run by no node: a small engine behind the same seam, which tests compare the
//! other with.
#![forbid(unsafe_code)]

mod codec;
mod configuration;
pub mod journaled;
mod opening;
mod seam;
pub mod simple;

pub use conductor_model::{Held, HeldKind};
pub use configuration::{MAX_MEMBERS, MAX_SHARD_BLOCKS};
pub use opening::{Identity, OpenError, OpenOptions};

pub use seam::{
    BLOCKS_PER_PAGE, Counters, Crcs, DiskOut, FillMark, Leeway, MAX_HELD, MAX_IN_FLIGHT, MAX_REQUEST_BLOCKS, Parent,
    Store, StoreDone, StoreError, StoreOp, Tag, Usage, View, ZERO_BLOCK_CRC, block_crcs,
};
