//! The journaled engine: a journal ring in front of a tree of pages that only the fold changes.
//!
//! ```text
//! disk:  superblock A | superblock B | journal ring | page maps | pages, mirrored | chunks of 64 KiB …
//!
//! write < chunk ─► journal group (records and data, one durable write for many requests) ─► overlay ─► acknowledged
//! whole chunk   ─► data to a fresh chunk, durable ─► its record in a journal group ──────► overlay ─► acknowledged
//! fold (behind): freeze the overlay → decide places, change pages in the cache → move data home, sorted,
//!                and changed pages to fresh places → sync → superblock A, superblock B
//!                → only now: the ring's tail moves; pages, chunks and journal that became free are used again
//! ```
//!
//! **Acknowledged is durable**: a change is over when its record is durable in the journal (or, of one that need not be durable, written
//! into it: it survives the process, and the next `Flush` makes it durable) and applied to the overlay, in the order of records. After a crash the newest superblock's trees are what the last fold left, and the records behind its tail give the
//! same overlay again. Replay moves nothing home; moving home twice is harmless, since what is overwritten in place is hidden by
//! the overlay until a checkpoint says that it is there.
//!
//! **Nothing is used again** before both superblocks of the checkpoint that freed it are durable, and the reads that began before are
//! over. A chunk that several entries share is never overwritten.
//!
//! **Layers**: a snapshot freezes a copy's live layer and puts an empty one on top. What a layer says nothing of reads as the
//! layer below, at the bottom as zeros. Clones and rollbacks are empty layers on top of a snapshot's.
//!
//! **Space**: a free chunk is set aside for each patch that may need one, so that the fold never lacks one; a change for which there
//! is none waits if a fold would give some, and ends with `NoSpace` before anything is touched if not.
//!
//! **Damage**: every block has a checksum with its first owner's identity summed in. What does not read well in the journal is moved
//! home as it is, with the checksum that it should have had: it stays damaged until it is written again or repaired.
//! Metadata pages are there twice. After a failed write or sync nothing is written any more.
//!
//! The bytes are drawn in `docs/disk-format.md`.

mod admit;
mod apply;
mod changed;
pub mod check;
mod engine;
mod entry;
mod fold;
mod forest;
mod format;
mod geometry;
mod inspect;
mod layers;
mod limits;
mod open;
mod overlay;
mod page_budget;
mod pages;
mod patch;
mod patches;
mod precheck;
mod read;
mod record;
mod ring;
mod space;
mod superblock;
mod tables;

pub use crate::opening::{Identity, OpenError, OpenOptions};
pub use engine::JournaledStore;
pub use format::{Format, FormatOptions};
pub use geometry::Geometry;
pub use limits::{DEFAULT_CACHE_BYTES, MAX_JOURNAL_BYTES, MIN_DISK_BYTES, MIN_JOURNAL_BYTES};
pub use open::{Opening, Tuning};
pub use superblock::{FORMAT_VERSION, forget_foreign, identify};

/// What a disk operation is for: in the top byte of its tag, the operation's key below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A whole chunk's data.
    Data = 1,
    /// The ring's own.
    Ring = 2,
    /// The pages' own.
    Pages = 3,
    /// A read for the caller.
    Read = 4,
    /// The fold reads what it moves, …
    Fetch = 5,
    /// … and writes it.
    Store = 6,
    /// The fold's syncs.
    Sync = 7,
    /// Superblocks.
    Super = 8,
    /// Space given back.
    Punch = 9,
    /// A damaged block is written again.
    Repair = 10,
}

const KIND_SHIFT: u32 = 56;

fn tag(kind: Kind, key: usize) -> u64 {
    (kind as u64) << KIND_SHIFT | key as u64
}

/// Bits for the records of a change, which has at most three: a write's are what goes through the journal before its whole chunks, these, and what is behind.
const PIECE_BITS: u32 = 2;

/// What the ring knows a record by: whose it is, and which of its pieces.
fn record_name(key: usize, piece: usize) -> u64 {
    debug_assert!(piece < 1 << PIECE_BITS, "a change of {piece} records and more");
    (key as u64) << PIECE_BITS | piece as u64
}

fn of_record(name: u64) -> Option<(usize, usize)> {
    Some((usize::try_from(name >> PIECE_BITS).ok()?, (name & ((1 << PIECE_BITS) - 1)) as usize))
}

/// What a disk operation of this engine is for, by its tag.
pub fn kind_of(tag: u64) -> Option<Kind> {
    untag(tag).map(|(kind, _)| kind)
}

fn untag(tag: u64) -> Option<(Kind, usize)> {
    let kind = match tag >> KIND_SHIFT {
        1 => Kind::Data,
        2 => Kind::Ring,
        3 => Kind::Pages,
        4 => Kind::Read,
        5 => Kind::Fetch,
        6 => Kind::Store,
        7 => Kind::Sync,
        8 => Kind::Super,
        9 => Kind::Punch,
        10 => Kind::Repair,
        _ => return None,
    };
    Some((kind, usize::try_from(tag & ((1 << KIND_SHIFT) - 1)).ok()?))
}
