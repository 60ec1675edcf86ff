//! The limits of the journal, with the sums that justify them.

use crate::MAX_REQUEST_BLOCKS;
use conductor_model::BLOCK;
use driver::Span;

/// The fixed part of a group's header.
pub(super) const HEAD: usize = 80;
/// Blocks of a header: 64 KiB, the arena's largest piece that is a power of two.
pub(super) const MAX_HEADER_BLOCKS: u32 = 16;
/// Bytes of the records in one group: they and the echo of as many fit a header. At 70 B for a small write, 466 of them.
pub(super) const MAX_RECORDS_BYTES: usize = MAX_HEADER_BLOCKS as usize * BLOCK / 2 - HEAD;
/// Payload blocks of a group: 2 MiB, some milliseconds of a slow disk, and a group is what a small record behind it waits for.
pub(super) const MAX_PAYLOAD_BLOCKS: u32 = 512;
/// Each part of a group's write is its header, or at least one block: they are fewer than the kernel's IOV_MAX.
const _: () = assert!(1 + MAX_PAYLOAD_BLOCKS < 1024);
/// Blocks of the largest group.
pub(super) const MAX_GROUP_BLOCKS: u32 = MAX_HEADER_BLOCKS + MAX_PAYLOAD_BLOCKS;
/// Payload blocks of one record: a whole request's.
pub(crate) const MAX_RECORD_BLOCKS: u32 = MAX_REQUEST_BLOCKS;
/// Bytes before a record's checksums: body length u16, payload blocks u16.
pub(super) const RECORD_HEAD: usize = 4;
/// Bytes of a record's body: far above a configuration (2 KiB) or 17 chunks with their checksums (1.2 KiB).
pub(crate) const MAX_BODY: usize = 16 << 10;
const _: () = assert!(RECORD_HEAD + 4 * MAX_RECORD_BLOCKS as usize + MAX_BODY <= MAX_RECORDS_BYTES);
const _: () = assert!(MAX_RECORD_BLOCKS <= MAX_PAYLOAD_BLOCKS);
/// Groups in flight: one that the disk's flush makes stable, and one that is transferred meanwhile. With four the groups are half as large,
/// which costs some 10 % of the rate on a file: each is a write, a flush and two wake-ups, whatever its size.
pub(super) const MAX_FLYING: usize = 2;
/// Payload blocks of a group that is only a part of what is queued: its header is 1/16 of them then.
pub(super) const WORTH_BLOCKS: u32 = 16;
/// Blocks of a group without records: its head and the echo of a full one.
pub(super) const MAX_SEAL_BLOCKS: u32 = MAX_HEADER_BLOCKS / 2 + 1;
const _: () = assert!(MAX_SEAL_BLOCKS as usize == (2 * HEAD + MAX_RECORDS_BYTES).div_ceil(BLOCK));
/// Blocks that only groups without records may use, so that a full journal can still be sealed, and opened after a crash: one such
/// group, of which one before the ring's end may be lost as padding.
pub(super) const RESERVE_BLOCKS: u32 = 2 * MAX_SEAL_BLOCKS;
/// Smallest ring: when it is empty, wherever its head is, one of the two pieces takes the largest record.
pub(crate) const MIN_RING_BLOCKS: u32 = 2 * (MAX_RECORD_BLOCKS + MAX_HEADER_BLOCKS + RESERVE_BLOCKS);
/// A journal that rests so long is sealed: long against the time between two requests of a busy client, so that they do not pay
/// for it; short against the time in which a disk rots.
pub(super) const SEAL_AFTER: Span = Span::millis(50);
/// Blocks of a read at opening, as the memory allows: many disks may be opened by one reactor at the same time.
pub(super) const PIECE_BLOCKS: [u32; 3] = [256, 64, 16];
/// Pieces in memory at opening: the one being looked at, the next ones on their way.
pub(super) const PIECES: usize = 4;
/// Where no group is found, so many blocks are searched for proof that there was one: 16 MiB, some 10 ms, beyond all groups in
/// flight and the usual damaged range of a disk.
pub(super) const SEARCH_BLOCKS: u32 = 4096;
const _: () = assert!(SEARCH_BLOCKS as usize > (MAX_FLYING + 2) * MAX_GROUP_BLOCKS as usize);
/// Blocks that may give an error when they are read at opening; beyond, the disk has failed.
pub(crate) const MAX_UNREADABLE: u32 = 1024;
/// A ring without a group behind its mark holds the group before that, or, if headers rotted, one of so many before it: from a picture that is so
/// little older it cannot be told.
pub(super) const NEWEST: u32 = 8;
/// At least two of them lie, with the ring's end between them, in so many blocks before the mark.
pub(super) const BEFORE_BLOCKS: u32 = 3 * MAX_GROUP_BLOCKS;
/// In a ring of so many blocks those that are in flight behind the mark, and what is lost before the ring's end, reach none of them. All are
/// larger but those of tests.
pub(super) const TELLING_BLOCKS: u32 = BEFORE_BLOCKS + 3 * MAX_GROUP_BLOCKS;
const _: () = assert!(MAX_FLYING < 3);
const _: () = assert!(TELLING_BLOCKS as u64 * BLOCK as u64 <= super::super::limits::MIN_JOURNAL_BYTES);
