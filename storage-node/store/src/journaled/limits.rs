//! Every bound of the journaled engine, with its reason. The ring's and the pages' own are theirs.

use super::ring::MIN_RING_BLOCKS;
use conductor_model::BLOCK;
use driver::Span;

/// Blocks in a chunk: the unit of allocation, sharing and discard.
pub(super) const CHUNK_BLOCKS: u32 = 16;
/// Bytes in a chunk.
pub(super) const CHUNK: usize = CHUNK_BLOCKS as usize * BLOCK;
/// Most chunks: their blocks have numbers of 32 bits. One less than 16 TiB.
pub(super) const MAX_CHUNKS: u64 = (u32::MAX / CHUNK_BLOCKS) as u64;
const _: () = assert!(MAX_CHUNKS * (CHUNK_BLOCKS as u64) < u32::MAX as u64);
/// Blocks before the ring: two superblocks apart from each other, room to spare.
pub(super) const HEAD_BLOCKS: u64 = 16;
/// Where the two superblocks are: a stray write of a few KiB does not hit both.
pub(super) const SUPERBLOCKS: [u64; 2] = [0, 8];
/// Smallest disk for ordinary use: below, the metadata is out of proportion.
pub const MIN_DISK_BYTES: u64 = 64 << 20;
/// The ring is this part of the disk if nothing is said…
pub(super) const RING_PART: u64 = 16;
/// …but at least this much, which is the least in ordinary use…
pub const MIN_JOURNAL_BYTES: u64 = 16 << 20;
pub(super) const MIN_USUAL_RING: u64 = MIN_JOURNAL_BYTES / BLOCK as u64;
/// …and never more than this: it is read whole at opening, in some seconds.
pub const MAX_JOURNAL_BYTES: u64 = 1 << 30;
pub(super) const MAX_RING_BLOCKS: u64 = MAX_JOURNAL_BYTES / BLOCK as u64;
const _: () = assert!(MIN_RING_BLOCKS as u64 <= MIN_USUAL_RING);
/// Metadata pages take this part of the disk, and their mirrors as much again. A full disk whose map is dense needs 1/640: 68 B + 32 B for
/// 64 KiB; snapshots with few blocks each need more.
pub(super) const PAGES_PART: u64 = 64;
/// Smallest page region: a few copies, their maps two levels deep, twice over while a checkpoint is written.
pub(super) const MIN_PLACES: u32 = 256;
/// Largest: 64 GiB of pages, the metadata of 40 TiB.
pub(super) const MAX_PLACES: u64 = 1 << 24;
/// One copy for so many bytes of disk by default…
pub(super) const BYTES_PER_COPY: u64 = 4 << 20;
/// …but at least this many…
pub(super) const MIN_COPIES: u64 = 64;
/// …and at most this many: in memory with their lists above K 100 MiB at the worst.
pub(super) const MAX_COPIES: u64 = 4096;
/// Layers of a store: each is 100 B in memory, and an open array of pages.
pub(super) const MAX_LAYERS: usize = 1 << 16;
/// Layers that an opening may find: those that a fold had taken out when the power went are there again beside those that took their places.
pub(super) const LAYERS_READ: usize = 2 * MAX_LAYERS;
/// Layers from a live one down to its bottom: what a read may have to look through.
pub(super) const MAX_DEPTH: usize = 256;
/// Chunks that only background work may use: merging a shared chunk needs one before it gives one back.
pub(super) const SPARE_CHUNKS: u32 = 4;
/// Chunks that nodes leave unused: 8 MiB, twice what they keep free on every disk…
pub(super) const UNUSED_CHUNKS: u32 = 128;
/// …or this part of a disk that is very small.
pub(super) const UNUSED_OF: u32 = 8;
/// Where no more is left, a fold is worth it for this part of that: they do not follow one another for single chunks.
pub(super) const WORTH_PART: u32 = 16;
/// Places for pages that only the fold itself may use, beside what changes in the overlay and the records of copies and layers reserve: the
/// bitmap, and the paths above them.
pub(super) const SPARE_PLACES: u32 = 72;
/// Where only this part of the page region is left for changes, or so many places, a store says that it is full: others hear of it before
/// a write that is under way finds no place.
pub(super) const SCARCE_PLACES_PART: u32 = 16;
/// See `SCARCE_PLACES_PART`.
pub(super) const SCARCE_PLACES: u32 = 1024;
/// This part of these places are as many more, which are for what gives places back, discards, and for barriers: nothing that is written
/// gets them. At least as many as the fold of a discard's smallest piece needs, wherever the records of its chunks are.
pub(super) const LAST_PLACES_PART: u32 = 2;
/// Chunks of the smallest piece of a discard. One of less than two of them is not cut: a piece of a single chunk would be remembered for good.
pub(super) const DISCARD_PIECE: u32 = 8;
/// Chunks that one generation discards in ranges, at most, where so many are in use: the fold reads the record of each, on a slow disk some
/// thousand a second, and until it is over the journal's room does not come back.
pub(super) const DISCARDED_PER_FOLD: u32 = 1 << 16;
/// Patches of one overlay generation: at some 120 B each (three blocks inline, a share of the group) 16 MiB, 32 MiB for both generations; twice
/// that where each is alone in its group, on volumes of many TiB. A full ring of 1 GiB holds 262,144 blocks, half of them in a generation; or
/// most, where most of them hide others.
pub(super) const MAX_PATCHES: usize = 1 << 17;
/// Of these, as many as the edges of a discard may make.
pub(super) const PATCHES_PER_DISCARD: usize = 2;
/// Ranges of whole discarded chunks in one overlay generation: 64 B each, 4 MiB.
pub(super) const MAX_RANGES: usize = 1 << 16;
/// A copy-range is passed by writes while the generation has more patches than this, which a fold that somebody waits for moves in some 50 ms…
pub(super) const PASSED_ABOVE: usize = 1 << 11;
/// …or a fold is under way, for so many folds.
pub(super) const PASSED_FOR: u64 = 4;
/// A fold begins when the generation has this part of its bound, …
pub(super) const FOLD_AT: usize = 2;
/// …or, of one whose oldest part was mostly written again, when five eighths of the journal are used, and then only that part is folded: the
/// first; when it is home seven eighths are used, and of what it gives back the next begins at once.
pub(super) const FOLD_PART_AT: (u32, u32) = (5, 8);
/// What is before a milestone is such a part: they are this part of the journal apart.
pub(super) const MILESTONE_PART: u32 = 8;
/// It is mostly written again if no more than this part of what was written goes home, …
pub(super) const MILESTONE_LIVE: u64 = 2;
/// …which is this part of the journal at most: where something else than blocks came, a part may be half of the journal.
pub(super) const PART_LIVE: u32 = 16;
/// Patches of a generation that is folded in parts: all of them are looked at in one turn, some tenths of a millisecond for so many, …
pub(super) const PARTED_PATCHES: usize = 1 << 14;
/// …in so many groups at most: 32 GiB of volumes.
pub(super) const PARTED_GROUPS: usize = 1 << 12;
/// A fold begins, too, when nothing was asked for so long.
pub(super) const FOLD_IDLE: Span = Span::millis(1000);
/// How often a block that is to be moved is read while reads fail, before it counts as damaged: what is moved is given up where it was. Twice
/// at once and then every [`UNREAD_FOR`]: a cable, a path or a controller may come back. Not more, because the fold waits for it, and a disk may
/// take seconds for each.
pub(super) const MOVE_READS: u8 = 5;
/// So often, at once, a block that is asked for, read by itself: where no other copy has it, a client is told of an error.
pub(super) const LOOK_READS: u8 = MOVE_READS;
/// For so long, at most, a page counts as damaged that could not be read, and a block that is to be moved waits: many requests a second do
/// not each wait for a disk that fails.
pub(super) const UNREAD_FOR: Span = Span::millis(1000);
/// How long a fold waits for a page that cannot be read, before it gives the store up: a cable, a path or a controller may come back.
pub(super) const UNREAD_LONG: Span = Span::millis(10_000);
/// How long to wait before asking again for memory that nothing else will bring.
pub(super) const RETRY: Span = Span::millis(1);
/// Blocks that are read at a time to be moved: 4 MiB of memory, if the arena has so much.
pub(super) const MOVING_BLOCKS: u32 = 1024;
/// The journal goes home by windows of 1 MiB, the arena's largest even piece: one read brings the payload of many groups, and what
/// lies together at home is written together. The positions of a whole generation are kept until then: 24 B for a block, 6 MiB.
pub(super) const WINDOW_BLOCKS: u32 = 256;
/// A window is this part of the journal, at most: what is written while older ones go home is not read for nothing.
pub(super) const WINDOW_PART: u32 = 16;
/// Blocks read in vain rather than that a read ends: headers, and what was written again since.
pub(super) const GAP_BLOCKS: u32 = 4;
/// Blocks of one write home: 16 chunks.
pub(super) const HOME_BLOCKS: usize = 256;
/// While requests come, the fold moves blocks little by little, so that none of them waits long: a disk in memory takes 4 µs for a block
/// written by itself and 300 µs for a window. So many writes home at every pace…
pub(super) const HOME_PER_PACE: u32 = 32;
/// …and for every record that was appended: the fold is over long before the journal is full…
pub(super) const HOME_PER_RECORD: u32 = 3;
/// …but not more than these at a time.
pub(super) const HOME_PER_TURN: u32 = 256;
/// Writes home that are out at a time while requests come, in the disk's queue before the journal's: what eight records earn…
pub(super) const HOME_OUT: u32 = 8 * HOME_PER_RECORD;
/// …up to so many where the fold is late, as the journal fills up…
pub(super) const HOME_OUT_LATE: u32 = 256;
/// …and so many, at no pace, where less than this part of it is free, …
pub(super) const SCARCE_PART: u32 = 8;
/// …or less than so many blocks, what a deep queue takes at once, which counts up to this part of a journal that is small, …
pub(super) const SCARCE_BLOCKS: u32 = 1024;
/// See `SCARCE_BLOCKS`.
pub(super) const SCARCE_PART_MOST: u32 = 4;
/// …and at least so many where somebody waits for the fold.
pub(super) const HOME_OUT_AWAITED: u32 = 64;
/// The same for what is read: at every pace until so many blocks are reached, which is one window, or single blocks…
pub(super) const FETCHED_PER_PACE: u32 = 64;
/// …and for every record, which behind a snapshot moves a chunk.
pub(super) const FETCHED_PER_RECORD: u32 = CHUNK_BLOCKS;
/// What a pace is: 128,000 writes a second with nobody there.
pub(super) const PACE: Span = Span::micros(250);
/// Blocks that are looked at to see what part of those that wait is hidden: some 50 µs…
pub(super) const LOOKED_AT: usize = 256;
/// …so often while what is free of the journal is used up.
pub(super) const LOOKS_PER_FOLD: u32 = 32;
/// Moves between chunks, decided but not begun: what the fold's steps may be ahead of the disk.
pub(super) const MAX_MOVES_QUEUED: usize = 1024;
/// Keys looked up ahead, so that their pages are loaded together.
pub(super) const LOOK_AHEAD: usize = 64;
/// Patches that the fold places in one turn: some tenths of a millisecond, in which requests wait.
pub(super) const STEPS_PER_TURN: usize = 256;
/// Entries released, merged or shared between two checkpoints: their changed pages fit the smallest region many times over
/// when they lie together, and a foreground that waits for the checkpoint does not wait long.
pub(super) const WORK_PER_FOLD: u32 = 4096;
/// Chunks in one punch, 1 GiB: a file system frees so much in one operation without holding up the writes beside it for long.
pub(super) const MAX_PUNCHED: u32 = 1 << 14;
/// Punches in flight; more wait.
pub(super) const MAX_PUNCHES: usize = 8;
/// Entries looked at by one `Extents`, one per chunk and layer: 64 MiB of a copy of one layer, some tenths of a millisecond.
pub(super) const EXTENTS_STEPS: usize = 1024;
/// Runs of data after which it ends: one more than an answer to a client holds.
pub(super) const EXTENTS_RUNS: usize = 15;
/// Entries looked at by a `Changed` in one turn, one per chunk and layer: some tenths of a millisecond, in which requests wait.
pub(super) const CHANGED_STEPS: usize = 1024;
/// Ranges in one answer to it: 24 B each on the wire, 24 KiB.
pub(super) const CHANGED_RANGES: usize = 1024;
/// Leaves of maps that it asks for beyond those that it waits for, read together: few beside the smallest cache, 320 pages.
pub(super) const CHANGED_AHEAD: u32 = 8;
/// Bytes of a copy's record: fixed part and a configuration. Two in a leaf.
pub(super) const COPY_BYTES: usize = 2036;
const _: () = assert!(COPY_BYTES >= 67 + crate::configuration::MAX_CONFIGURATION);
/// Such records in a leaf (4072 B).
pub(super) const COPIES_PER_LEAF: usize = 4072 / COPY_BYTES;
/// Bytes of a layer's record.
pub(super) const LAYER_BYTES: usize = 64;
/// Such records in a leaf.
pub(super) const LAYERS_PER_LEAF: usize = 4072 / LAYER_BYTES;
/// Bytes of a change above K.
pub(super) const HELD_BYTES: usize = 32;
/// Such changes in a leaf.
pub(super) const HELD_PER_LEAF: usize = 4072 / HELD_BYTES;
/// Bytes of a mapping entry.
pub(super) const ENTRY_BYTES: usize = 32;
/// Bytes of a chunk's record.
pub(super) const CHUNK_RECORD_BYTES: usize = 4 + 4 * CHUNK_BLOCKS as usize;
/// Bytes of a piece of the bitmap of used chunks.
pub(super) const USED_BYTES: usize = USED_CHUNKS as usize / 8;
/// Chunks in it.
pub(super) const USED_CHUNKS: u32 = 512;
/// Mapping entries in a leaf (4072 B), chunk records in a leaf.
pub(super) const ENTRIES_PER_LEAF: u32 = 127;
pub(super) const CHUNKS_PER_LEAF: u32 = 59;
/// Chunks whose bits are in one leaf: 63 records.
pub(super) const USED_PER_LEAF: u32 = 63 * USED_CHUNKS;
/// Leaves below one page of pointers.
pub(super) const LEAVES_PER_BRANCH: u32 = 509;
const _: () = assert!(crate::BLOCKS_PER_PAGE == ENTRIES_PER_LEAF * CHUNK_BLOCKS);
const _: () =
    assert!(ENTRIES_PER_LEAF as usize == 4072 / ENTRY_BYTES && CHUNKS_PER_LEAF as usize == 4072 / CHUNK_RECORD_BYTES);
/// Cache for metadata pages if nothing is said: dense metadata of 10 GiB of data.
pub const DEFAULT_CACHE_BYTES: u64 = 16 << 20;
/// Bytes of one write of zeros at formatting, and how many are in flight.
pub(super) const FORMAT_PIECE: usize = 1 << 20;
pub(super) const FORMAT_DEPTH: usize = 4;
