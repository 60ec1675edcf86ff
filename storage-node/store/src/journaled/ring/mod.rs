//! The journal: a ring of blocks in which records become durable, many with one write, in the order in which they came.
//!
//! ```text
//! ring:   …free… │ group n │ group n+1 │ group n+2 │ …free…            group: header (1 to 16 blocks) | payload blocks
//!                ▲ tail (in the superblock)        ▲ head
//! header: fixed head | records | echo: fixed head and records of the group before | 0…
//! ```
//!
//! Promised: a record is reported by [`Ring::next_finished`] when it and all before it are on the disk (and stable, if it was to be
//! durable); what was reported as stable is found by [`Scan`] after any crash, in order; what is found is a prefix of what was
//! appended, and nothing that an earlier opening gave up, or an earlier lap left, is ever found. A group is one write; the payload
//! is never copied. Never done here: looking into a record, moving data home, choosing when to trim.
//!
//! **Torn or rotten?** Each header says through which group the journal was durable when it was written. A group that does not
//! read well is torn, and the journal ends before it, unless a later group of the same chain says that it was durable: then it is
//! damaged. Its payload blocks with a bad checksum are reported as damaged, and a bad header is taken from the echo in the group
//! behind it. A journal that rests writes a *seal*, a group without records, so that the newest group is provable as well.
//!
//! **Which chain?** A group names its sequence, its opening (`boot`, counted up durably before the journal is written), the opening and the header checksum of the group
//! before it, and its own place. So a group of an older lap (sequence), and one that lies behind a torn group of an older opening
//! (boot), do not continue the chain. An opening that gave a group up overwrites its header before it serves.
//!
//! How it is used (`kind` is the top byte of the tags of all its operations, see [`RingPlace`]):
//!
//! ```text
//! format:   nothing (a fresh disk id makes what is there foreign); the superblock's tail is Mark::FIRST
//! opening:  Scan::start(place, tail, boot, MAX_UNREADABLE, &arena, out)?            loop { scan.done(done, out); while let Some(r) = scan.next_record() {…} }
//!           scan.end() -> Option<Result<ScanEnd, ScanError>>        ScanEnd { state, counts } → Ring::new(place, state, &arena)?
//! change:   ring.fits(body, blocks) → ring.append(key, body, payload: Option<Part>, crcs, durable)       (never fails, only queues)
//!           a full ring: fits says no; ring.stalled() says that something queued waits for a trim; ring.free_blocks() for deciding when to fold
//!           ring.barrier(key)         finished when all that was appended before is stable (durability=flush)
//! turn:     ring.end_turn(now, out)   builds groups; seals; syncs where needed       ring.next_deadline()
//!           ring.done(done)?          then  while let Some(Appended { key, payload }) = ring.next_finished() {…}
//! fold:     let mark = ring.mark()    all that next_finished gave is before it, if it gave all it had
//!           …superblocks durable…     ring.trim(mark)               may finish something, as ring.synced may
//!           ring.sync_point() → DiskSync of the ring's disk by the caller → ring.synced(point)           (a sync made anyway counts)
//! failure:  ring.done gives the error for ever; nothing is reported or written after it
//! ```

mod append;
mod group;
mod limits;
mod order;
mod pieces;
mod scan;
mod space;

use conductor_model::{BLOCK, DiskId};
use driver::DiskIndex;

pub(crate) use append::Ring;
pub(crate) use limits::{MAX_BODY, MAX_UNREADABLE, MIN_RING_BLOCKS};
pub(crate) use scan::{Replayed, Scan, ScanEnd, ScanError};

/// Where the ring is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingPlace {
    /// On which disk; not always the store's.
    pub(crate) disk: DiskIndex,
    /// First byte, a multiple of a block.
    pub(crate) start: u64,
    /// How long; at least [`MIN_RING_BLOCKS`].
    pub(crate) blocks: u32,
    /// The store's own disk id: groups of other stores are foreign.
    pub(crate) disk_id: DiskId,
    /// Top byte of the tags of its operations; the lower seven are its own.
    pub(crate) kind: u8,
}

impl RingPlace {
    /// The byte on the disk at which a block begins.
    pub(crate) fn position_bytes(&self, block: JournalBlock) -> u64 {
        self.start + u64::from(block.0) * BLOCK as u64
    }

    /// True if that byte of that disk is the ring's.
    pub(crate) fn has(&self, disk: DiskIndex, at: u64) -> bool {
        disk == self.disk && at >= self.start && at - self.start < u64::from(self.blocks) * BLOCK as u64
    }

    fn tag(&self, key: u64) -> u64 {
        u64::from(self.kind) << 56 | key & ((1 << 56) - 1)
    }
}

/// A block of the ring, counted from its start. Payload blocks of one record follow each other without a wrap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct JournalBlock(pub(crate) u32);

/// A point between two groups: where the next one is expected, and what it must continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// The next group is here, or at the ring's start if it did not fit.
    pub(crate) position: JournalBlock,
    /// Its number.
    pub(crate) sequence: u64,
    /// Checksum of the header before.
    pub(crate) previous_crc: u32,
    /// The opening that wrote the group before.
    pub(crate) previous_boot: u64,
}

impl Mark {
    /// Bytes of one in a superblock.
    pub(crate) const BYTES: usize = 24;
    /// Where a new store's journal begins.
    pub(crate) const FIRST: Self = Self { position: JournalBlock(0), sequence: 1, previous_crc: 0, previous_boot: 0 };

    /// As it stands in a superblock, little-endian.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.position.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.previous_crc.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&self.previous_boot.to_le_bytes());
        bytes
    }

    /// From a superblock, whose checksum vouches for it.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Self { position: JournalBlock(word(0)), previous_crc: word(4), sequence: long(8), previous_boot: long(16) }
    }
}

/// A record that is as durable as it was to be, and so are all before it. In the order of `append` and `barrier`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Appended {
    /// The caller's name for it.
    pub(crate) key: u64,
    /// Its first payload block.
    pub(crate) payload: Option<JournalBlock>,
}

/// Where appending goes on: what a [`Scan`] ends with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RingState {
    boot: u64,
    tail: Mark,
    /// Behind the last group, and all before it is stable.
    head: Mark,
    /// The echo of the last group.
    echo: Vec<u8>,
    /// What the last header says is durable.
    told_durable: u64,
    /// The newest group with records.
    newest_records: u64,
}

impl RingState {
    /// Where the next group goes, and its number.
    pub(crate) fn head(&self) -> (u32, u64) {
        (self.head.position.0, self.head.sequence)
    }
}

#[cfg(test)]
mod tests;
