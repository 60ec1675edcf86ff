//! Every bound of the simple engine, with its reason.

use crate::{MAX_HELD, MAX_REQUEST_BLOCKS};
use conductor_model::BLOCK;

/// Blocks before the first log: two superblocks apart from each other, room to spare.
pub(super) const HEAD_BLOCKS: u64 = 16;
/// Where the two superblocks are: a stray write of a few KiB does not hit both.
pub(super) const SUPERBLOCKS: [u64; 2] = [0, 8];
/// Pages in one log write: 64 KiB carry some 600 small records, and one write is one sequential I/O to any device.
pub(super) const GROUP_PAGES: usize = 16;
/// Bytes of a checkpoint chunk; one is in flight at a time, so the checkpoint never takes more of the disk than that.
pub(super) const CHUNK: usize = 64 << 10;
/// Blocks in a chunk.
pub(super) const CHUNK_BLOCKS: u32 = 16;
const _: () = assert!(CHUNK == CHUNK_BLOCKS as usize * BLOCK);
/// Bytes before the first item of a chunk, and before the first record of a log page.
pub(super) const SEALED_HEAD: usize = 64;
/// A write of `MAX_REQUEST_BLOCKS` has a record that fits one page even in 272 fragments: 51 + 272 · (8 + 4) = 3315 of 4032 bytes.
const _: () = assert!(51 + MAX_REQUEST_BLOCKS as usize * (8 + 4) <= BLOCK - SEALED_HEAD);
/// Records between the oldest incomplete one and the newest: what recovery holds in memory and may have to verify. A disk that
/// hangs one write stops the store after that many others.
pub(super) const MAX_UNSETTLED: usize = 16384;
/// Bytes of one mapped block in a checkpoint.
pub(super) const ENTRY_BYTES: usize = 12;
/// Bytes of one held change in a checkpoint.
pub(super) const HELD_BYTES: usize = 25;
/// Upper bound of an item's fixed part, and of a whole copy item with a configuration.
pub(super) const MAX_ITEM: usize = 2048;
const _: () = assert!(MAX_ITEM >= 64 + crate::configuration::MAX_CONFIGURATION);
/// Upper bound of what a copy costs in a checkpoint beside its blocks: its item, its held list, three item heads.
pub(super) const COPY_BYTES: usize = MAX_ITEM + MAX_HELD * HELD_BYTES + 3 * 16;
/// Slots that only rewrites may use: any one request finds room on a full disk, since its old slots come back.
pub(super) const SPARE_SLOTS: u32 = MAX_REQUEST_BLOCKS;
/// Smallest disk for ordinary use: below, the metadata is out of proportion.
pub const MIN_DISK_BYTES: u64 = 64 << 20;
/// A log is this part of the disk: a checkpoint writes at most 12 B per 4 KiB block (1/341), so that each log's worth of records
/// costs about as much again.
pub(super) const LOG_PART: u64 = 256;
/// Smallest default log in pages: 256 KiB.
pub(super) const MIN_LOG_PAGES: u64 = 64;
/// Largest log in pages: 2 GiB, read once at opening in some seconds.
pub(super) const MAX_LOG_PAGES: u64 = 1 << 19;
/// One copy for so many bytes of disk by default…
pub(super) const BYTES_PER_COPY: u64 = 4 << 20;
/// …but at least this many…
pub(super) const MIN_COPIES: u64 = 64;
/// …and at most this many: their checkpoint overhead is 57 MiB.
pub(super) const MAX_COPIES: u64 = 4096;
/// Slots are 32-bit numbers from 1: a disk beyond 16 TiB is used up to there.
pub(super) const MAX_SLOTS: u64 = u32::MAX as u64 - 1;
