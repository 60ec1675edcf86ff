//! The asynchronous interface of any store: submit, completions in any order.
//!
//! The caller keeps the order (range locks): no two overlapping changes, nor a read and an overlapping change, of one copy
//! are in flight together; a `Join` or `Delete` of a copy comes when its older changes are over, and nothing else of that
//! copy is in flight beside a `Delete`. The caller calls `end_turn` after each turn in which it called anything else.
//! A store never blocks, never reads a clock, and never calls back.

use conductor_model::{BLOCK, BlockRange, Blocks, Configuration, CopyId, Epoch, Held, SnapshotId, Stamp};
use driver::{Errno, Op, Time};
use memory::{Filling, Reads};
use smallvec::SmallVec;
use std::fmt;

/// The caller's name for an operation: comes back with its completion. The store does not look at it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tag {}", self.0)
    }
}

/// CRC32C of each block of a range, in order.
pub type Crcs = SmallVec<[u32; 4]>;

/// Where a store puts its disk operations; they start with the caller's batch.
pub type DiskOut<'a> = dyn FnMut(Op) + 'a;

/// CRC32C of a block of zeros.
pub const ZERO_BLOCK_CRC: u32 = 0x98f9_4189;

/// The checksums of whole blocks.
pub fn block_crcs(data: &[u8]) -> Crcs {
    data.chunks(BLOCK).map(crc32c::crc32c).collect()
}

/// Most changes above K that a store remembers per copy; more are merged to fewer, wider ones. A primary's window is smaller.
pub const MAX_HELD: usize = 512;
/// Most operations in flight on one store: each is a request of the disk below at some time, and its memory is the caller's.
pub const MAX_IN_FLIGHT: usize = 4096;
/// Blocks in one Write, Read or Repair: the arena's largest piece, 1 MiB + 64 KiB.
pub const MAX_REQUEST_BLOCKS: u32 = 272;
const _: () = assert!(MAX_REQUEST_BLOCKS as usize * BLOCK == memory::MAX_LEN);

/// Which content of a copy: what is written to, or one of its snapshots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum View {
    /// What is written to.
    Live,
    /// As it was at the snapshot's barrier. Read-only.
    Snapshot(SnapshotId),
}

/// What a clone begins as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parent {
    /// A copy in the same store.
    pub copy: CopyId,
    /// One of its snapshots.
    pub snapshot: SnapshotId,
}

/// What can be asked of a store.
#[derive(Debug)]
pub enum StoreOp {
    /// Make a copy with K = 0: empty, or the clone of a snapshot. Done at once if it exists.
    Create {
        /// Its new name.
        copy: CopyId,
        /// The configuration it is born with.
        config: Configuration,
        /// What it reads as at first, where it is a clone; zeros beyond the parent's size.
        parent: Option<Parent>,
    },
    /// Keep the newest joined configuration: durable before the Join is answered (rule 12). A larger size grows the copy.
    Join {
        /// Which copy.
        copy: CopyId,
        /// What it joins.
        config: Configuration,
    },
    /// Remove a copy and give its space back.
    Delete {
        /// Which copy.
        copy: CopyId,
    },
    /// Write whole blocks; durable when completed if `durable`.
    Write {
        /// Which copy.
        copy: CopyId,
        /// The write's place in the shard's order.
        stamp: Stamp,
        /// Where.
        at: BlockRange,
        /// Exactly `at.count` blocks.
        data: Reads,
        /// Exactly `at.count` checksums, carried from where the data was received.
        crcs: Crcs,
        /// The known-good point told with it (rule 3).
        known_good: Stamp,
        /// False under durability=flush: completed when it would survive the process, durable at the next `Flush`.
        durable: bool,
    },
    /// Discard or write-zeroes: reads as zeros, space comes back; durable when completed if `durable`. A long one may be done piece by piece,
    /// and then some of it is done where it is refused.
    Zero {
        /// Which copy.
        copy: CopyId,
        /// Its place in the shard's order.
        stamp: Stamp,
        /// Where; of any length within the copy.
        at: BlockRange,
        /// The known-good point told with it (rule 3).
        known_good: Stamp,
        /// As of `Write`.
        durable: bool,
    },
    /// Of a copy that is filled: these blocks are lost, because no copy in sync has them. They read as damaged until they are written, discarded, or
    /// gone with their snapshot. Refused (`Kept`) where the copy has content of its own, apart from that of snapshots, and by one that was complete
    /// before (its K says so), or begins as another one's snapshot, wherever it has not lost it already: what such a copy has may be all that is
    /// left. Durable when completed.
    Lose {
        /// Which copy.
        copy: CopyId,
        /// The version that they have where they were lost.
        stamp: Stamp,
        /// Where; as many as a write may have.
        at: BlockRange,
        /// The known-good point told with it (rule 3).
        known_good: Stamp,
    },
    /// All that was completed for this copy before is durable when this is completed (rule 18).
    Flush {
        /// Which copy.
        copy: CopyId,
    },
    /// What the copy reads as now stays readable under this name (rule 17). No change of the copy is in flight beside it.
    /// Done at once if it exists.
    Snapshot {
        /// Which copy.
        copy: CopyId,
        /// The barrier's place in the shard's order.
        stamp: Stamp,
        /// Its name.
        snapshot: SnapshotId,
        /// The known-good point told with it (rule 3).
        known_good: Stamp,
    },
    /// The copy reads as its snapshot again; the snapshot stays. No change of the copy is in flight beside it.
    Rollback {
        /// Which copy.
        copy: CopyId,
        /// Its place in the shard's order.
        stamp: Stamp,
        /// Which snapshot.
        snapshot: SnapshotId,
        /// The known-good point told with it (rule 3).
        known_good: Stamp,
    },
    /// Forget a snapshot and give back what only it needed. Done at once if it is not there; no read of it is in flight.
    DropSnapshot {
        /// Which copy.
        copy: CopyId,
        /// Which snapshot.
        snapshot: SnapshotId,
    },
    /// Copy-range: the range reads as the same range of another copy's snapshot in this store, sharing its chunks (rule 16).
    Share {
        /// The copy that changes.
        copy: CopyId,
        /// Its place in the order of the shard that changes.
        stamp: Stamp,
        /// Where; of any length within both copies.
        at: BlockRange,
        /// What to read as.
        from: Parent,
        /// The known-good point told with it (rule 3).
        known_good: Stamp,
    },
    /// A clone stops needing its parent; it shares chunks instead. Done when it needs it no more.
    Flatten {
        /// Which copy.
        copy: CopyId,
    },
    /// Put right what did not read as it was written, with the content of another copy. What reads well is left alone.
    Repair {
        /// Which copy.
        copy: CopyId,
        /// Of which content.
        view: View,
        /// Where.
        at: BlockRange,
        /// Exactly `at.count` blocks.
        data: Reads,
        /// Exactly `at.count` checksums.
        crcs: Crcs,
    },
    /// Which blocks of a range may hold something else than zeros: of its first ones at least, and of more as far as that costs little.
    Extents {
        /// Which copy.
        copy: CopyId,
        /// Of which content.
        view: View,
        /// Where; what is beyond the copy's end does not count.
        at: BlockRange,
    },
    /// Which chunks at or after `from` were changed above a stamp (rule 3): by a write, a discard (tombstones count), or something that
    /// changed the whole copy (its base version). Of a clone only its own changes count, unless `above` is zero: then all that it reads as
    /// counts, and what it has from its parent is named with version (1, 0).
    Changed {
        /// Which copy.
        copy: CopyId,
        /// Of which content.
        view: View,
        /// Chunks whose version is above this.
        above: Stamp,
        /// First block of interest.
        from: Blocks,
    },
    /// Remember how far the filling of this copy is; durable when completed, and so is all that was completed for it before.
    Mark {
        /// Which copy.
        copy: CopyId,
        /// How far.
        mark: FillMark,
        /// The filling is over: K rises to this, and the mark is forgotten.
        known_good: Option<Stamp>,
    },
    /// Read whole blocks, each verified.
    Read {
        /// Which copy.
        copy: CopyId,
        /// Of which content.
        view: View,
        /// Where.
        at: BlockRange,
        /// Memory of exactly `at.count` blocks.
        into: Filling,
    },
    /// K, and all the copy holds above K (rule 6).
    Above {
        /// Which copy.
        copy: CopyId,
    },
    /// Remember K: in memory at once, on the disk with the copy's next record.
    KnownGood {
        /// Which copy.
        copy: CopyId,
        /// The new K; a lower one than the present is ignored.
        stamp: Stamp,
    },
}

/// What an operation that succeeded gives back.
#[derive(Debug)]
pub enum StoreDone {
    /// All that give nothing back.
    Done,
    /// The answer to `Extents`.
    Extents {
        /// In ascending order; between them, before the first, and behind the last up to `next`, all is zeros.
        data: Vec<BlockRange>,
        /// Where to ask on; the end of what was asked for, or of the copy, at the end.
        next: Blocks,
    },
    /// The memory, filled, and each block's verified checksum.
    Read(Filling, Crcs),
    /// The answer to `Changed`: whole chunks, cut at the copy's end, with the version of the newest change in each. Some 1000 ranges at
    /// most; none only at the end.
    Changed {
        /// In ascending order; neighbours of one version may be one range.
        chunks: Vec<(BlockRange, Stamp)>,
        /// Where to ask on; the copy's size at the end.
        next: Blocks,
    },
    /// The answer to `Above`.
    Above {
        /// K.
        known_good: Stamp,
        /// In no particular order.
        held: Vec<Held>,
    },
}

/// How far the filling of a copy has come (rule 4). The store only keeps it. All zero: nothing was filled.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FillMark {
    /// The copy equals its primary but for what has a version above this on either side, wherever the cursor is.
    pub base: Stamp,
    /// Chunks before this block were filled …
    pub cursor: Blocks,
    /// … and equal the primary's but for what has a version above this on either side (S).
    pub upto: Stamp,
}

/// Why an operation failed. Nothing was touched, except where said.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("no space left in the store")]
    NoSpace,
    /// A block does not read as it was written.
    #[error("block {block} of copy {copy} is damaged")]
    Corrupt {
        /// Whose.
        copy: CopyId,
        /// Which.
        block: Blocks,
    },
    /// It is to be lost, and this copy has something of its own there.
    #[error("block {block} of copy {copy} is not to be lost: the copy has content of its own there")]
    Kept {
        /// Whose.
        copy: CopyId,
        /// The first such block.
        block: Blocks,
    },
    /// The disk failed. After a failed write or sync every later operation fails with it; the change may or may not be there.
    #[error("the disk failed: {0}")]
    Disk(Errno),
    /// No such copy here.
    #[error("copy {0} is not in this store")]
    NoSuchCopy(CopyId),
    /// Not within the copy, or longer than one request may be.
    #[error("blocks {at} are not within copy {copy}, or more than one request may carry")]
    OutOfRange {
        /// Whose.
        copy: CopyId,
        /// What was asked for.
        at: BlockRange,
    },
    /// Memory or checksums do not match the range.
    #[error("memory or checksums do not match blocks {at}")]
    BadLength {
        /// What was asked for.
        at: BlockRange,
    },
    /// A size that is not whole blocks, or shrinks the copy, or is beyond the limit; or too many members.
    #[error("the configuration of copy {0} is not one this store can keep")]
    BadConfiguration(CopyId),
    /// The copy has joined a newer epoch.
    #[error("copy {copy} has joined epoch {held}, newer than {given}")]
    OlderEpoch {
        /// Whose.
        copy: CopyId,
        /// What it has joined.
        held: Epoch,
        /// What was asked for.
        given: Epoch,
    },
    /// The store has as many copies as it was formatted for.
    #[error("the store holds as many copies as it was formatted for")]
    TooManyCopies,
    /// No such snapshot of the copy here.
    #[error("copy {copy} has no snapshot {snapshot} in this store")]
    NoSuchSnapshot {
        /// Whose.
        copy: CopyId,
        /// Which.
        snapshot: SnapshotId,
    },
    /// Something else needs it.
    #[error("{0} is needed by a clone: flatten or delete that first")]
    Needed(CopyId),
    /// This engine cannot do it.
    #[error("this engine cannot {0}")]
    Unsupported(&'static str),
    /// More operations in flight than the limit; the caller's bound is too high.
    #[error("too many operations in flight")]
    Busy,
}

/// Space, in blocks of 4 KiB although whole chunks are given away: blocks that data can take; the store's own part of the disk is not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Blocks that can be held at once.
    pub capacity: Blocks,
    /// Blocks held.
    pub used: Blocks,
    /// Copies held.
    pub copies: u32,
    /// Copies that it was formatted for.
    pub max_copies: u32,
    /// True when little is left (less than 1/16).
    pub near_full: bool,
}

impl Usage {
    /// Blocks that can still be taken.
    pub fn free(&self) -> u64 {
        u64::from(self.capacity.0.saturating_sub(self.used.0))
    }
}

/// What else may be asked of a store, be there blocks or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leeway {
    /// Pages of metadata that what takes no blocks may still take for good: discards above a snapshot, snapshots themselves.
    pub pages: u32,
    /// As much is being discarded as is to be at a time: what comes now would wait in the store.
    pub discarding: bool,
}

impl Leeway {
    /// Of a store that needs no pages.
    pub const ANY: Self = Self { pages: u32::MAX, discarding: false };
}

/// Blocks that one page tells of, which a discard above a snapshot takes.
pub const BLOCKS_PER_PAGE: u32 = 127 * 16;

/// What happened since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Write operations that succeeded.
    pub writes: u64,
    /// Blocks in them.
    pub blocks_written: u64,
    /// Zero operations that succeeded.
    pub zeroes: u64,
    /// Read operations that succeeded.
    pub reads: u64,
    /// Reads that met a damaged block.
    pub corrupt: u64,
    /// Blocks that a Repair wrote again.
    pub repaired: u64,
    /// Metadata pages one of whose mirrors was bad, and was put right from the other.
    pub healed_pages: u64,
    /// Such that could not be written: the mirror is as bad as it was.
    pub unhealed_pages: u64,
    /// Metadata pages that the patrol has read, each from both mirrors.
    pub patrolled_pages: u64,
    /// Metadata pages neither of whose mirrors was good.
    pub damaged_pages: u64,
    /// Of these, such that were given up: what they said is lost, and said to be where it is read.
    pub lost_pages: u64,
    /// Writes refused for lack of space.
    pub no_space: u64,
    /// Writes taken while little space was left.
    pub near_full: u64,
    /// Groups that the journal wrote: group commits.
    pub groups: u64,
    /// Records in them.
    pub records: u64,
    /// Generations of changes that a fold took up, each followed by a checkpoint.
    pub folds: u64,
    /// Of these, such that took up only the oldest part of a generation, as most of that was written again.
    pub parts: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Blocks of the journal that a checkpoint left there, as newer ones hide them.
    pub hidden: u64,
    /// Times that a change found no room in the journal, or in its generation.
    pub journal_waits: u64,
    /// Times that a change waited for space that was coming back.
    pub space_waits: u64,
    /// Disk operations that failed.
    pub disk_errors: u64,
    /// Completions that belong to nothing.
    pub strays: u64,
}

/// A store: see the module's head for what the caller keeps.
pub trait Store {
    /// Start an operation; its completion comes out of `next_completion`, perhaps at once.
    fn submit(&mut self, now: Time, tag: Tag, op: StoreOp, out: &mut DiskOut<'_>);
    /// A disk operation of this store is over.
    fn done(&mut self, now: Time, done: driver::Done, out: &mut DiskOut<'_>);
    /// The end of a turn: group commit, background work.
    fn end_turn(&mut self, now: Time, out: &mut DiskOut<'_>);
    /// The next operation that is over; each submitted one comes out exactly once.
    fn next_completion(&mut self) -> Option<(Tag, Result<StoreDone, StoreError>)>;
    /// When to be called again at the latest, if nothing completes before.
    fn next_deadline(&self) -> Option<Time>;
    /// So much content was looked through: look through some of what the store keeps about itself, too, and put right what is bad of it
    /// while there is a good mirror.
    fn patrol(&mut self, looked_through: Blocks);
    /// True if nothing is in flight, neither for the caller nor on the disk.
    fn idle(&self) -> bool;
    /// Space.
    fn usage(&self) -> Usage;
    /// Room for what takes no blocks.
    fn leeway(&self) -> Leeway;
    /// All copies with their newest joined configuration, by copy id.
    fn copies(&self) -> Vec<(CopyId, Configuration)>;
    /// The snapshots of a copy, oldest first.
    fn snapshots(&self, copy: CopyId) -> Vec<SnapshotId>;
    /// How far the filling of a copy is.
    fn fill_mark(&self, copy: CopyId) -> FillMark;
    /// Blocks that a copy and its snapshots hold by themselves; what a clone shares with its parent counts for the parent.
    fn used_by(&self, copy: CopyId) -> Blocks;
    /// What happened since the store was opened.
    fn counters(&self) -> Counters;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_zeros_is_the_constant() {
        assert_eq!(block_crcs(&[0; 2 * BLOCK]).as_slice(), [ZERO_BLOCK_CRC; 2]);
    }
}
