//! The limits of paged arrays, with their reasons.

/// Page reads asked for and not yet over. More wait in their callers, who ask again; each has a buffer of one page: 256 KiB.
pub(super) const MAX_LOADS: usize = 64;
/// Pages in one write: 64 KiB, from where on a disk's cost is by the byte.
pub(super) const WRITE_PAGES: usize = 16;
/// Writes of pages in flight, each to two mirrors: 2 × 16 operations and 1 MiB of memory.
pub(super) const MAX_WRITES: usize = 16;
/// Mirrors being put right at a time; what is beyond stays as it is until it is read again.
pub(super) const MAX_HEALS: usize = 16;
/// Pages that the patrol reads at a time, from both mirrors: twice 64 KiB.
pub(super) const PATROL_PAGES: u32 = 16;
/// Blocks of content that are looked through for one run of the patrol: 256 KiB.
pub(super) const PATROL_PER: u32 = 64;
/// After a round of so many runs of the patrol, so many times as many are left out. A run has the metadata of 160 pieces of content of
/// 256 KiB, and so there is a round for each tenth of a full disk: 3 % of what a scrub reads.
pub(super) const PATROL_REST: u32 = 16;
/// Runs of the patrol, made or left out, after which the map of places and the superblocks are written anew if no checkpoint has done
/// that: for each 256 MiB of content looked through, at most 4 MiB (of a disk of 4 TiB).
pub(super) const PATROL_MAP: u32 = 1024;
/// The smallest cache in pages: the reads in flight keep a path of at most 4 pages each in memory (509³ leaves are beyond any
/// disk), and a change keeps one of its own. With less, reads could wait for each other's memory.
pub(super) const MIN_CACHE_PAGES: usize = 320;
/// Places that only giving back may use: it dirties the pages above what goes, one path at a time, and must not need what it is
/// about to give. Also what a full region needs to become less full.
pub(super) const FREEING_PLACES: u32 = 32;
/// Damaged pages that are remembered, so as not to be read again at every request; past that they are all forgotten.
pub(super) const MAX_DAMAGED: usize = 1024;
/// How often both mirrors of a page are read while reads fail: a path that was lost or a controller that was reset is back by then;
/// what a disk cannot read at all, its driver has tried for seconds already.
pub(super) const LOAD_ROUNDS: u8 = 3;
/// A root of more levels is damage: 509⁸ leaves exceed 64 bits' worth of any record.
pub(super) const MAX_LEVELS: u8 = 8;
