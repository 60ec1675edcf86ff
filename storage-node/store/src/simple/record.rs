//! Records: the changes of the store's state, as they stand in the log.
//!
//! ```text
//! create 1 | copy u64 | configuration                     join 2 | copy u64 | configuration        delete 3 | copy u64
//! write  4 | copy u64 | stamp 16 | K 16 | from u32 | count u32 | runs u16 | runs × (slot u32, count u32) | count × crc u32
//! zero   5 | copy u64 | stamp 16 | K 16 | from u32 | count u32
//! ```

use super::codec::{Put, Take};
use super::limits::{MAX_MEMBERS, MAX_SHARD_BLOCKS};
use super::slots::{Run, Runs};
use crate::Crcs;
use crate::MAX_REQUEST_BLOCKS;
use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Epoch, Member,
    NodeId, OpenId, ShardId, ShardIndex, Stamp, VolumeId,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

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

/// A non-empty range within the largest shard.
pub(super) fn decode_range(from: &mut Take<'_>) -> Option<BlockRange> {
    let at = BlockRange { from: Blocks(from.u32()?), count: Blocks(from.u32()?) };
    (at.count.0 > 0 && at.end() <= u64::from(MAX_SHARD_BLOCKS)).then_some(at)
}

/// The copy's size in blocks, if the configuration is one that the store can keep.
pub(super) fn blocks_of(config: &Configuration) -> Option<u32> {
    let blocks = u32::try_from(config.size.0 / BLOCK as u64).ok()?;
    let kept = config.size.is_block_aligned()
        && (1..=MAX_SHARD_BLOCKS).contains(&blocks)
        && config.members.len() <= MAX_MEMBERS
        && config.full_set.len() <= MAX_MEMBERS;
    kept.then_some(blocks)
}

pub(super) fn encode_configuration(config: &Configuration, out: &mut Vec<u8>) {
    out.u32(config.shard.volume.0);
    out.u32(config.shard.index.0);
    out.u64(config.epoch.0);
    out.u64(config.primary.0);
    out.u64(config.attach.0);
    out.u64(config.size.0);
    out.u8(config.min_copies);
    out.u8(config.born.into());
    out.u8(u8::try_from(config.members.len()).unwrap_or(u8::MAX)); // at most MAX_MEMBERS, by `blocks_of`
    for member in &config.members {
        out.u64(member.copy.0);
        out.u32(member.node.0);
        out.u64(member.disk.0);
        out.u64(member.open.0);
        out.u8(match member.state {
            CopyState::InSync => 1,
            CopyState::Syncing => 2,
        });
        match member.endpoint {
            SocketAddr::V4(v4) => {
                out.u8(4);
                out.extend_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                out.u8(6);
                out.extend_from_slice(&v6.ip().octets());
                out.u32(v6.scope_id());
            }
        }
        out.u16(member.endpoint.port());
    }
    out.u8(u8::try_from(config.full_set.len()).unwrap_or(u8::MAX)); // at most MAX_MEMBERS, by `blocks_of`
    for copy in &config.full_set {
        out.u64(copy.0);
    }
}

pub(super) fn decode_configuration(from: &mut Take<'_>) -> Option<Configuration> {
    let shard = ShardId { volume: VolumeId(from.u32()?), index: ShardIndex(from.u32()?) };
    let epoch = Epoch(from.u64()?);
    let primary = CopyId(from.u64()?);
    let attach = AttachGeneration(from.u64()?);
    let size = Bytes(from.u64()?);
    let min_copies = from.u8()?;
    let born = flag(from.u8()?)?;
    let members = (0..from.u8()?).map(|_| decode_member(from)).collect::<Option<Vec<_>>>()?;
    let full_set = (0..from.u8()?).map(|_| from.u64().map(CopyId)).collect::<Option<Vec<_>>>()?;
    let config =
        Configuration { shard, epoch, primary, members, full_set, min_copies, attach, size, born, parent: None };
    blocks_of(&config).map(|_| config)
}

fn decode_member(from: &mut Take<'_>) -> Option<Member> {
    let copy = CopyId(from.u64()?);
    let node = NodeId(from.u32()?);
    let disk = DiskId(from.u64()?);
    let open = OpenId(from.u64()?);
    let state = match from.u8()? {
        1 => CopyState::InSync,
        2 => CopyState::Syncing,
        _ => return None,
    };
    let (ip, scope) = match from.u8()? {
        4 => (IpAddr::V4(Ipv4Addr::from(from.array::<4>()?)), 0),
        6 => (IpAddr::V6(Ipv6Addr::from(from.array::<16>()?)), from.u32()?),
        _ => return None,
    };
    let port = from.u16()?;
    let endpoint = match ip {
        IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
        IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
    };
    Some(Member { copy, node, disk, open, state, endpoint })
}

fn flag(n: u8) -> Option<bool> {
    match n {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::MAX_ITEM;
    use super::super::limits::SEALED_HEAD;
    use super::*;
    use conductor_model::Sequence;
    use proptest::prelude::*;

    fn widest_configuration() -> Configuration {
        let member = Member {
            copy: CopyId(1),
            node: NodeId(2),
            disk: DiskId(3),
            open: OpenId(4),
            state: CopyState::Syncing,
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
