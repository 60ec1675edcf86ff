//! Records: the changes of the store's state, as they stand in the log.
//!
//! ```text
//! create 1 | copy u64 | configuration                     join 2 | copy u64 | configuration        delete 3 | copy u64
//! write  4 | copy u64 | stamp 16 | K 16 | from u32 | count u32 | runs u16 | runs × (slot u32, count u32) | count × crc u32
//! zero   5 | copy u64 | stamp 16 | K 16 | from u32 | count u32
//! ```

use super::slots::{Run, Runs};
use crate::Crcs;
use crate::MAX_REQUEST_BLOCKS;
use crate::codec::{Put, Take};
use crate::configuration::{decode_configuration, decode_range, encode_configuration};
use conductor_model::{BlockRange, Configuration, CopyId, Stamp};

/// A change of the store's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Record {
    Create { copy: CopyId, config: Configuration },
    Join { copy: CopyId, config: Configuration },
    Delete { copy: CopyId },
    Write { copy: CopyId, stamp: Stamp, known_good: Stamp, at: BlockRange, runs: Runs, crcs: Crcs },
    Zero { copy: CopyId, stamp: Stamp, known_good: Stamp, at: BlockRange },
}

impl Record {
    pub(super) fn copy(&self) -> CopyId {
        match *self {
            Self::Create { copy, .. }
            | Self::Join { copy, .. }
            | Self::Delete { copy }
            | Self::Write { copy, .. }
            | Self::Zero { copy, .. } => copy,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Create { .. } => 1,
            Self::Join { .. } => 2,
            Self::Delete { .. } => 3,
            Self::Write { .. } => 4,
            Self::Zero { .. } => 5,
        };
        out.u8(kind);
        out.u64(self.copy().0);
        match self {
            Self::Create { config, .. } | Self::Join { config, .. } => encode_configuration(config, out),
            Self::Delete { .. } => {}
            Self::Write { stamp, known_good, at, .. } | Self::Zero { stamp, known_good, at, .. } => {
                out.stamp(*stamp);
                out.stamp(*known_good);
                out.u32(at.from.0);
                out.u32(at.count.0);
            }
        }
        if let Self::Write { runs, crcs, .. } = self {
            out.u16(u16::try_from(runs.len()).unwrap_or(u16::MAX)); // at most MAX_REQUEST_BLOCKS
            for run in runs {
                out.u32(run.from.number());
                out.u32(run.count);
            }
            for &crc in crcs {
                out.u32(crc);
            }
        }
    }

    /// `None` if it is not a record that this engine could have written on a disk of so many slots.
    pub(super) fn decode(from: &mut Take<'_>, slots: u32) -> Option<Self> {
        let kind = from.u8()?;
        let copy = CopyId(from.u64()?);
        match kind {
            1 => Some(Self::Create { copy, config: decode_configuration(from)? }),
            2 => Some(Self::Join { copy, config: decode_configuration(from)? }),
            3 => Some(Self::Delete { copy }),
            4 => {
                let (stamp, known_good, at) = (from.stamp()?, from.stamp()?, decode_range(from)?);
                if at.count.0 > MAX_REQUEST_BLOCKS {
                    return None;
                }
                let mut runs = Runs::new();
                let mut blocks = 0u32;
                for _ in 0..from.u16()? {
                    let run = Run::new(from.u32()?, from.u32()?, slots)?;
                    blocks = blocks.checked_add(run.count)?;
                    runs.push(run);
                }
                let crcs = (0..at.count.0).map(|_| from.u32()).collect::<Option<Crcs>>()?;
                (blocks == at.count.0).then_some(Self::Write { copy, stamp, known_good, at, runs, crcs })
            }
            5 => Some(Self::Zero { copy, stamp: from.stamp()?, known_good: from.stamp()?, at: decode_range(from)? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::MAX_ITEM;
    use super::super::limits::SEALED_HEAD;
    use super::*;
    use crate::MAX_MEMBERS;
    use conductor_model::{
        AttachGeneration, BLOCK, Blocks, Bytes, CopyState, DiskId, Epoch, Member, NodeId, OpenId, Sequence, ShardId,
        ShardIndex, VolumeId,
    };
    use proptest::prelude::*;

    fn widest_configuration() -> Configuration {
        let member = Member {
            copy: CopyId(1),
            node: NodeId(2),
            disk: DiskId(3),
            open: OpenId(4),
            state: CopyState::Syncing,
            since: conductor_model::Epoch(0),
            past: true,
            endpoint: "[fe80::1]:7000".parse().unwrap(),
        };
        Configuration {
            shard: ShardId { volume: VolumeId(7), index: ShardIndex(8) },
            epoch: Epoch(9),
            primary: CopyId(1),
            members: vec![member; MAX_MEMBERS],
            full_set: vec![CopyId(5); MAX_MEMBERS],
            min_copies: 2,
            attach: AttachGeneration(6),
            size: Bytes(4 << 30),
            born: true,
            durability: conductor_model::Durability::Always,
            cache: conductor_model::Commit(0),
            card: Some(Box::new(crate::configuration::full_card())),
            parent: None,
        }
    }

    #[test]
    fn every_record_reads_as_it_was_written_and_fits_a_page() {
        let stamp = |n| Stamp { epoch: Epoch(n), sequence: Sequence(n + 1) };
        let at = BlockRange { from: Blocks(77), count: Blocks(MAX_REQUEST_BLOCKS) };
        let single = |n| Run::new(2 * n + 1, 1, 10_000).unwrap();
        let copy = CopyId(0xabcd);
        let records = [
            Record::Create { copy, config: widest_configuration() },
            Record::Join {
                copy,
                config: Configuration { members: vec![], full_set: vec![], ..widest_configuration() },
            },
            Record::Delete { copy },
            Record::Write {
                copy,
                stamp: stamp(3),
                known_good: stamp(2),
                at,
                runs: (0..MAX_REQUEST_BLOCKS).map(single).collect(),
                crcs: (0..MAX_REQUEST_BLOCKS).collect(),
            },
            Record::Zero { copy, stamp: stamp(3), known_good: stamp(2), at },
        ];
        for record in records {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert!(bytes.len() <= BLOCK - SEALED_HEAD);
            let mut take = Take(&bytes);
            assert_eq!(Record::decode(&mut take, 10_000).as_ref(), Some(&record));
            assert!(take.0.is_empty());
            for cut in 0..bytes.len() {
                assert_eq!(Record::decode(&mut Take(&bytes[..cut]), 10_000), None);
            }
        }
        let mut bytes = Vec::new();
        encode_configuration(&widest_configuration(), &mut bytes);
        assert!(bytes.len() + 64 <= MAX_ITEM);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 1..400), kind in 1u8..6) {
            bytes[0] = kind;
            let _ = Record::decode(&mut Take(&bytes), 1000);
        }
    }
}
