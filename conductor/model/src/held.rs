//! What a copy holds above K: on its disk, in its answer to a Join, and in what is settled.

use crate::{BlockRange, Stamp};

/// What a change above K was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HeldKind {
    /// Data.
    Write,
    /// A discard or write-zeroes.
    Zero,
    /// A snapshot's barrier; its range is the whole copy, and nothing changed what that reads as.
    Barrier,
}

/// A change above K that a copy holds, or may hold in part: settling overwrites its range, so naming too much is safe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Held {
    /// Its stamp (the newest, if several were merged to bound the list).
    pub stamp: Stamp,
    /// The blocks.
    pub at: BlockRange,
    /// What it was.
    pub kind: HeldKind,
}
