//! Records: the changes of the store's state, as they stand in the journal.
//!
//! ```text
//! create   1 | copy u64 | live layer u32 | parent copy u64 | parent snapshot u64 (0, 0: none) | configuration
//! join     2 | copy u64 | configuration                                     delete 3 | copy u64
//! write    4 | copy u64 | stamp 16 | K 16 | from u32 | count u32 | part from u32 | part count u32       payload: the part's blocks
//! chunks   5 | copy u64 | stamp 16 | K 16 | from u32 | count u32 | first chunk u32 | n u16 | n × chunk u32 | 16 n × crc u32
//! zero     6 | copy u64 | stamp 16 | K 16 | from u32 | count u32
//! snapshot 7 | copy u64 | stamp 16 | K 16 | snapshot u64 | new layer u32    rollback 8 | the same
//! drop     9 | copy u64 | snapshot u64
//! share   10 | copy u64 | stamp 16 | K 16 | from u32 | count u32 | source copy u64 | source snapshot u64
//! mark    11 | copy u64 | base 16 | cursor u32 | upto 16 | over u8 | K 16 (0 unless over)
//! lose    12 | copy u64 | stamp 16 | K 16 | from u32 | count u32
//! ```
//! A write that is partly journaled and partly in chunks of its own is several records, each naming the whole range.

use super::entry::ChunkNo;
use super::layers::LayerId;
use super::limits::CHUNK_BLOCKS;
use super::overlay::Source;
use crate::codec::{Put, Take};
use crate::configuration::{decode_configuration, decode_range, encode_configuration};
use crate::{Crcs, FillMark, MAX_REQUEST_BLOCKS};
use conductor_model::{BlockRange, Blocks, Configuration, CopyId, SnapshotId, Stamp};

/// Most chunks in one record: a request's.
pub(super) const MAX_CHUNKS: usize = (MAX_REQUEST_BLOCKS / CHUNK_BLOCKS) as usize;
const _: () = assert!(64 + MAX_CHUNKS * 4 * (1 + CHUNK_BLOCKS as usize) < super::ring::MAX_BODY);

/// Of a write's record, but for its blocks: 4 bytes of lengths and 57 of its own at most, and some.
pub(super) const MAX_FIXED: usize = 96;
/// And for each of its blocks: a checksum, and the sixteenth part of a chunk's number.
pub(super) const MAX_PER_BLOCK: usize = 8;

/// What every stamped change carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamped {
    pub(super) stamp: Stamp,
    pub(super) known_good: Stamp,
}

/// A change of the store's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Record {
    Create { copy: CopyId, live: LayerId, parent: Option<Source>, config: Configuration },
    Join { copy: CopyId, config: Configuration },
    Delete { copy: CopyId },
    Write { copy: CopyId, stamped: Stamped, at: BlockRange, part: BlockRange },
    Chunks { copy: CopyId, stamped: Stamped, at: BlockRange, first: u32, chunks: Vec<ChunkNo>, crcs: Crcs },
    Zero { copy: CopyId, stamped: Stamped, at: BlockRange },
    Snapshot { copy: CopyId, stamped: Stamped, snapshot: SnapshotId, top: LayerId },
    Rollback { copy: CopyId, stamped: Stamped, snapshot: SnapshotId, top: LayerId },
    Drop { copy: CopyId, snapshot: SnapshotId },
    Share { copy: CopyId, stamped: Stamped, at: BlockRange, from: Source },
    Mark { copy: CopyId, mark: FillMark, known_good: Option<Stamp> },
    Lose { copy: CopyId, stamped: Stamped, at: BlockRange },
}

impl Record {
    /// Whose.
    pub(super) fn copy(&self) -> CopyId {
        match *self {
            Self::Create { copy, .. }
            | Self::Join { copy, .. }
            | Self::Delete { copy }
            | Self::Write { copy, .. }
            | Self::Chunks { copy, .. }
            | Self::Zero { copy, .. }
            | Self::Snapshot { copy, .. }
            | Self::Rollback { copy, .. }
            | Self::Drop { copy, .. }
            | Self::Share { copy, .. }
            | Self::Mark { copy, .. }
            | Self::Lose { copy, .. } => copy,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Create { .. } => 1,
            Self::Join { .. } => 2,
            Self::Delete { .. } => 3,
            Self::Write { .. } => 4,
            Self::Chunks { .. } => 5,
            Self::Zero { .. } => 6,
            Self::Snapshot { .. } => 7,
            Self::Rollback { .. } => 8,
            Self::Drop { .. } => 9,
            Self::Share { .. } => 10,
            Self::Mark { .. } => 11,
            Self::Lose { .. } => 12,
        };
        out.u8(kind);
        out.u64(self.copy().0);
        match self {
            Self::Create { live, parent, config, .. } => {
                out.u32(live.0);
                out.u64(parent.map_or(0, |parent| parent.copy.0));
                out.u64(parent.map_or(0, |parent| parent.snapshot.0));
                encode_configuration(config, out);
            }
            Self::Join { config, .. } => encode_configuration(config, out),
            Self::Delete { .. } => {}
            Self::Write { stamped, at, part, .. } => {
                stamped.encode(out);
                encode_range(*at, out);
                encode_range(*part, out);
            }
            Self::Chunks { stamped, at, first, chunks, crcs, .. } => {
                stamped.encode(out);
                encode_range(*at, out);
                out.u32(*first);
                out.u16(u16::try_from(chunks.len()).unwrap_or(u16::MAX)); // at most MAX_CHUNKS
                chunks.iter().for_each(|chunk| out.u32(chunk.number()));
                crcs.iter().for_each(|&crc| out.u32(crc));
            }
            Self::Zero { stamped, at, .. } | Self::Lose { stamped, at, .. } => {
                stamped.encode(out);
                encode_range(*at, out);
            }
            Self::Snapshot { stamped, snapshot, top, .. } | Self::Rollback { stamped, snapshot, top, .. } => {
                stamped.encode(out);
                out.u64(snapshot.0);
                out.u32(top.0);
            }
            Self::Drop { snapshot, .. } => out.u64(snapshot.0),
            Self::Share { stamped, at, from, .. } => {
                stamped.encode(out);
                encode_range(*at, out);
                out.u64(from.copy.0);
                out.u64(from.snapshot.0);
            }
            Self::Mark { mark, known_good, .. } => {
                encode_mark(mark, out);
                out.u8(known_good.is_some().into());
                out.stamp(known_good.unwrap_or_default());
            }
        }
    }

    /// `None` if it is not a record that this engine could have written on a disk of so many chunks.
    pub(super) fn decode(bytes: &[u8], total: u32) -> Option<Self> {
        let mut take = Take(bytes);
        let from = &mut take;
        let kind = from.u8()?;
        let copy = CopyId(from.u64()?);
        let record = match kind {
            1 => {
                let (live, parent) = (LayerId::read(from.u32()?)?, (from.u64()?, from.u64()?));
                let parent =
                    (parent != (0, 0)).then_some(Source { copy: CopyId(parent.0), snapshot: SnapshotId(parent.1) });
                Self::Create { copy, live, parent, config: decode_configuration(from)? }
            }
            2 => Self::Join { copy, config: decode_configuration(from)? },
            3 => Self::Delete { copy },
            4 => {
                let (stamped, at, part) = (Stamped::decode(from)?, decode_range(from)?, decode_range(from)?);
                (part.count.0 <= MAX_REQUEST_BLOCKS).then_some(Self::Write { copy, stamped, at, part })?
            }
            5 => {
                let (stamped, at, first) = (Stamped::decode(from)?, decode_range(from)?, from.u32()?);
                let n = usize::from(from.u16()?);
                if n > MAX_CHUNKS {
                    return None;
                }
                let chunks = (0..n).map(|_| ChunkNo::new(from.u32()?, total)).collect::<Option<Vec<_>>>()?;
                let crcs = (0..n * CHUNK_BLOCKS as usize).map(|_| from.u32()).collect::<Option<Crcs>>()?;
                Self::Chunks { copy, stamped, at, first, chunks, crcs }
            }
            6 => Self::Zero { copy, stamped: Stamped::decode(from)?, at: decode_range(from)? },
            7 | 8 => {
                let (stamped, snapshot, top) =
                    (Stamped::decode(from)?, SnapshotId(from.u64()?), LayerId::read(from.u32()?)?);
                match kind {
                    7 => Self::Snapshot { copy, stamped, snapshot, top },
                    _ => Self::Rollback { copy, stamped, snapshot, top },
                }
            }
            9 => Self::Drop { copy, snapshot: SnapshotId(from.u64()?) },
            10 => {
                let (stamped, at) = (Stamped::decode(from)?, decode_range(from)?);
                let source = Source { copy: CopyId(from.u64()?), snapshot: SnapshotId(from.u64()?) };
                Self::Share { copy, stamped, at, from: source }
            }
            11 => {
                let (mark, over, known_good) = (decode_mark(from)?, from.u8()?, from.stamp()?);
                Self::Mark { copy, mark, known_good: (over == 1).then_some(known_good) }
            }
            12 => {
                let (stamped, at) = (Stamped::decode(from)?, decode_range(from)?);
                (at.count.0 <= MAX_REQUEST_BLOCKS).then_some(Self::Lose { copy, stamped, at })?
            }
            _ => return None,
        };
        take.0.is_empty().then_some(record)
    }
}

impl Stamped {
    fn encode(&self, out: &mut Vec<u8>) {
        out.stamp(self.stamp);
        out.stamp(self.known_good);
    }
    fn decode(from: &mut Take<'_>) -> Option<Self> {
        Some(Self { stamp: from.stamp()?, known_good: from.stamp()? })
    }
}

/// `base 16 | cursor u32 | upto 16`.
pub(super) fn encode_mark(mark: &FillMark, out: &mut Vec<u8>) {
    out.stamp(mark.base);
    out.u32(mark.cursor.0);
    out.stamp(mark.upto);
}

/// The same, read.
pub(super) fn decode_mark(from: &mut Take<'_>) -> Option<FillMark> {
    Some(FillMark { base: from.stamp()?, cursor: Blocks(from.u32()?), upto: from.stamp()? })
}

fn encode_range(at: BlockRange, out: &mut Vec<u8>) {
    let BlockRange { from: Blocks(from), count: Blocks(count) } = at;
    out.u32(from);
    out.u32(count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, Epoch, Sequence, ShardId};
    use proptest::prelude::*;

    #[test]
    fn every_record_reads_as_it_was_written() {
        let stamp = |n| Stamp { epoch: Epoch(n), sequence: Sequence(n + 1) };
        let stamped = Stamped { stamp: stamp(3), known_good: stamp(2) };
        let at = BlockRange { from: Blocks(77), count: Blocks(272) };
        let config = Configuration {
            shard: ShardId::default(),
            epoch: Epoch(9),
            primary: CopyId(1),
            members: vec![],
            full_set: vec![CopyId(5); crate::MAX_MEMBERS],
            min_copies: 2,
            attach: AttachGeneration(6),
            size: Bytes(4 << 30),
            born: true,
            durability: conductor_model::Durability::Always,
            cache: conductor_model::Commit(0),
            card: None,
            parent: None,
        };
        let carded = Configuration { card: Some(Box::new(crate::configuration::full_card())), ..config.clone() };
        let (copy, snapshot) = (CopyId(0xabcd), SnapshotId(6));
        let source = Source { copy: CopyId(4), snapshot };
        let records = [
            Record::Create { copy, live: LayerId(4), parent: Some(source), config: config.clone() },
            Record::Create { copy, live: LayerId(4), parent: None, config: config.clone() },
            Record::Join { copy, config },
            Record::Join { copy, config: carded },
            Record::Delete { copy },
            Record::Write { copy, stamped, at, part: BlockRange { from: Blocks(80), count: Blocks(3) } },
            Record::Chunks {
                copy,
                stamped,
                at,
                first: 5,
                chunks: (1..=17).filter_map(|n| ChunkNo::new(n, 100)).collect(),
                crcs: (0..272).collect(),
            },
            Record::Zero { copy, stamped, at },
            Record::Snapshot { copy, stamped, snapshot, top: LayerId(8) },
            Record::Rollback { copy, stamped, snapshot, top: LayerId(8) },
            Record::Drop { copy, snapshot },
            Record::Share { copy, stamped, at, from: source },
            Record::Mark {
                copy,
                mark: FillMark { base: stamp(5), cursor: Blocks(64), upto: stamp(6) },
                known_good: None,
            },
            Record::Mark { copy, mark: FillMark::default(), known_good: Some(stamp(7)) },
            Record::Lose { copy, stamped, at },
        ];
        for record in records {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&bytes, 100).as_ref(), Some(&record));
            for cut in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes[..cut], 100), None);
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 1..400), kind in 1u8..13) {
            bytes[0] = kind;
            let _ = Record::decode(&bytes, 1000);
        }
    }
}
