//! Cuts a request into parts that a primary takes: within one shard, and not longer than a message allows.
//!
//! ```text
//!   request        ├──────────────────────────────────────────┤
//!   shards     ...──────────────┼────────────────────────────────...
//!   parts          ├─1 MiB─┼────┼─1 MiB─┼──────┼───────────────┤
//!   zeroes         ├z┼── write-zeroes ──┼── write-zeroes ────┼z┤      z: a write of zeros, less than a block
//! ```
//!
//! Of a question for extents, only the first part is made, outward to whole blocks: its answer says how far it goes.
//!
//! Parts are in order and do not overlap. A cut inside the request is on a block boundary, so that an aligned request has only
//! aligned parts and an unaligned one is merged by its primaries at its two ends only (rule 22).

use crate::limits::{MAX_EXTENTS, MAX_IO, MAX_PARTS, MAX_ZERO};
use conductor_model::{BLOCK, Bytes, ShardIndex};
use smallvec::SmallVec;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// What a part does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Read,
    Extents,
    Write,
    /// A write of zeros that is not a whole block.
    ZeroEdge,
    WriteZeroes,
    Discard,
    /// Of one whole shard; made by `intake`, not cut.
    Flush,
}

impl Action {
    pub(crate) fn is_change(self) -> bool {
        !matches!(self, Self::Read | Self::Extents | Self::Flush)
    }
}

/// What is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Extents,
    Write,
    WriteZeroes,
    Discard,
    Flush,
}

impl Kind {
    pub(crate) fn is_change(self) -> bool {
        !matches!(self, Self::Read | Self::Extents | Self::Flush)
    }
}

/// One part, not yet anything in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) action: Action,
    pub(crate) shard: ShardIndex,
    /// Within the shard.
    pub(crate) offset: Bytes,
    pub(crate) len: u32,
    /// First byte within the request.
    pub(crate) from: usize,
}

/// The parts of one request; one for most.
pub(crate) type Pieces = SmallVec<[Piece; 2]>;

/// Cuts `offset..offset + len`, which lies within the volume. `None`: more than `MAX_PARTS`.
pub(crate) fn split(kind: Kind, offset: Bytes, len: Bytes, shard_size: Bytes) -> Option<Pieces> {
    let mut cut = Cutter { start: offset.0, shard_size: shard_size.0, pieces: Pieces::new() };
    let (start, end) = (offset.0, offset.0.checked_add(len.0)?);
    let (first, last) = (start.next_multiple_of(BLOCK_BYTES), end / BLOCK_BYTES * BLOCK_BYTES);
    match kind {
        Kind::Flush => {}
        Kind::Read => cut.range(Action::Read, start, end, MAX_IO)?,
        Kind::Extents => {
            let blocks = (start / BLOCK_BYTES * BLOCK_BYTES, end.checked_next_multiple_of(BLOCK_BYTES)?);
            cut.start = blocks.0;
            let boundary = (blocks.0 / shard_size.0 + 1).checked_mul(shard_size.0)?;
            let stop = if start < end { blocks.1.min(boundary).min(blocks.0.saturating_add(MAX_EXTENTS)) } else { 0 };
            cut.range(Action::Extents, blocks.0, stop, MAX_EXTENTS)?;
        }
        Kind::Write => cut.range(Action::Write, start, end, MAX_IO)?,
        Kind::Discard => cut.range(Action::Discard, first, last, MAX_ZERO)?,
        Kind::WriteZeroes if first >= last => cut.range(Action::ZeroEdge, start, end, BLOCK_BYTES)?,
        Kind::WriteZeroes => {
            cut.range(Action::ZeroEdge, start, first, BLOCK_BYTES)?;
            cut.range(Action::WriteZeroes, first, last, MAX_ZERO)?;
            cut.range(Action::ZeroEdge, last, end, BLOCK_BYTES)?;
        }
    }
    Some(cut.pieces)
}

struct Cutter {
    start: u64,
    shard_size: u64,
    pieces: Pieces,
}

impl Cutter {
    /// `max` is a multiple of a block. Nothing if the range is empty.
    fn range(&mut self, action: Action, mut at: u64, end: u64, max: u64) -> Option<()> {
        while at < end {
            let shard = at / self.shard_size;
            let boundary = (shard + 1).checked_mul(self.shard_size)?;
            let full = at.saturating_add(max) / BLOCK_BYTES * BLOCK_BYTES;
            let next = end.min(boundary).min(full);
            self.pieces.push(Piece {
                action,
                shard: ShardIndex(u32::try_from(shard).ok()?),
                offset: Bytes(at % self.shard_size),
                len: u32::try_from(next - at).ok()?,
                from: usize::try_from(at - self.start).ok()?,
            });
            if self.pieces.len() > MAX_PARTS {
                return None;
            }
            at = next;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARD: u64 = 4 << 20;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::WriteZeroes), Just(Kind::Discard)]
    }

    proptest! {
        #[test]
        fn parts_cover_the_request_exactly_and_cross_no_boundary(
            kind in kinds(),
            offset in prop_oneof![0u64..6 * SHARD, (0u64..6).prop_map(|n| n * SHARD), (0u64..6144).prop_map(|n| n * 4096)],
            len in prop_oneof![0u64..20_000, 0u64..3 * SHARD, (0u64..512).prop_map(|n| n * 4096)],
        ) {
            let pieces = split(kind, Bytes(offset), Bytes(len), Bytes(SHARD)).unwrap();
            let end = offset + len;
            let (mut at, stop) = match kind {
                Kind::Discard => {
                    let first = offset.next_multiple_of(4096);
                    (first, (end / 4096 * 4096).max(first))
                }
                _ => (offset, end),
            };
            for piece in &pieces {
                let (start, len) = (u64::from(piece.shard.0) * SHARD + piece.offset.0, u64::from(piece.len));
                prop_assert_eq!(start, at);
                prop_assert_eq!(piece.from as u64, at - offset);
                prop_assert!(len > 0 && piece.offset.0 + len <= SHARD, "within one shard");
                at += len;
                let aligned = start % 4096 == 0 && len % 4096 == 0;
                match piece.action {
                    Action::Read | Action::Write => {
                        prop_assert!(len <= MAX_IO);
                        prop_assert!(start == offset || start % 4096 == 0, "inner cuts are on blocks");
                    }
                    Action::ZeroEdge => prop_assert!(len < 4096 && !aligned, "an edge is less than a block"),
                    Action::WriteZeroes | Action::Discard => prop_assert!(aligned && len <= MAX_ZERO),
                    Action::Flush | Action::Extents => prop_assert!(false, "it is not cut"),
                }
            }
            prop_assert_eq!(at, stop);
        }
    }

    #[test]
    fn long_zeroes_go_in_gigabytes() {
        let pieces = split(Kind::WriteZeroes, Bytes(1), Bytes((4 << 30) - 1), Bytes(8 << 30)).unwrap();
        let lens: Vec<_> = pieces.iter().map(|piece| piece.len).collect();
        assert_eq!(lens, [4095, 1 << 30, 1 << 30, 1 << 30, (1 << 30) - 4096]);
    }

    #[test]
    fn a_question_for_extents_is_about_whole_blocks_of_one_shard() {
        let part = |offset, len| {
            let pieces = split(Kind::Extents, Bytes(offset), Bytes(len), Bytes(SHARD)).unwrap();
            pieces.iter().map(|p| (p.shard.0, p.offset.0, u64::from(p.len))).collect::<Vec<_>>()
        };
        assert_eq!(part(0, 4 * SHARD), [(0, 0, SHARD)]);
        assert_eq!(part(SHARD + 4097, 10), [(1, 4096, 4096)]);
        assert_eq!(part(2 * SHARD - 1, 2), [(1, SHARD - 4096, 4096)]);
        assert_eq!(part(4095, 2), [(0, 0, 8192)]);
        assert_eq!(part(5, 0), []);
        let long = split(Kind::Extents, Bytes(0), Bytes(3 << 30), Bytes(8 << 30)).unwrap();
        assert_eq!((long.len(), u64::from(long[0].len)), (1, MAX_EXTENTS));
    }

    #[test]
    fn a_request_of_too_many_parts_is_refused_and_a_flush_has_none() {
        assert!(split(Kind::Discard, Bytes(0), Bytes(4 << 40), Bytes(1 << 20)).is_none());
        assert_eq!(split(Kind::Flush, Bytes(0), Bytes(9), Bytes(1 << 20)).unwrap().len(), 0);
        assert_eq!(split(Kind::Discard, Bytes(1), Bytes(8190), Bytes(1 << 20)).unwrap().len(), 0);
    }
}
