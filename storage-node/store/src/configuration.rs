//! Configurations and block ranges as bytes, and what a store can keep of them.

use crate::codec::{Put, Take};
use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, ShardId, ShardIndex, ShardSnapshot, SnapshotId, VolumeId,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Members of a configuration, and copies of a full set: three are usual, a move adds one or two.
pub const MAX_MEMBERS: usize = 16;
/// Blocks of one copy: 1 TiB, 256 times the default shard.
pub const MAX_SHARD_BLOCKS: u32 = 1 << 28;
/// Most bytes of an encoded configuration: 64 and 16 members of 52 and 16 copies of 8.
pub(crate) const MAX_CONFIGURATION: usize = 64 + MAX_MEMBERS * (52 + 8);

/// A non-empty range within the largest shard.
pub(crate) fn decode_range(from: &mut Take<'_>) -> Option<BlockRange> {
    let at = BlockRange { from: Blocks(from.u32()?), count: Blocks(from.u32()?) };
    (at.count.0 > 0 && at.end() <= u64::from(MAX_SHARD_BLOCKS)).then_some(at)
}

/// The copy's size in blocks, if the configuration is one that the store can keep.
pub(crate) fn blocks_of(config: &Configuration) -> Option<u32> {
    let blocks = u32::try_from(config.size.0 / BLOCK as u64).ok()?;
    let kept = config.size.is_block_aligned()
        && (1..=MAX_SHARD_BLOCKS).contains(&blocks)
        && config.members.len() <= MAX_MEMBERS
        && config.full_set.len() <= MAX_MEMBERS;
    kept.then_some(blocks)
}

pub(crate) fn encode_configuration(config: &Configuration, out: &mut Vec<u8>) {
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
            CopyState::Absent => 3,
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
    out.u8(match config.durability {
        Durability::Always => 0,
        Durability::Flush => 1,
    });
    out.u8(config.parent.is_some().into());
    if let Some(parent) = config.parent {
        out.u32(parent.shard.volume.0);
        out.u32(parent.shard.index.0);
        out.u64(parent.snapshot.0);
    }
}

pub(crate) fn decode_configuration(from: &mut Take<'_>) -> Option<Configuration> {
    let shard = ShardId { volume: VolumeId(from.u32()?), index: ShardIndex(from.u32()?) };
    let epoch = Epoch(from.u64()?);
    let primary = CopyId(from.u64()?);
    let attach = AttachGeneration(from.u64()?);
    let size = Bytes(from.u64()?);
    let min_copies = from.u8()?;
    let born = flag(from.u8()?)?;
    let members = (0..from.u8()?).map(|_| decode_member(from)).collect::<Option<Vec<_>>>()?;
    let full_set = (0..from.u8()?).map(|_| from.u64().map(CopyId)).collect::<Option<Vec<_>>>()?;
    let durability = if flag(from.u8()?)? { Durability::Flush } else { Durability::Always };
    let parent = match flag(from.u8()?)? {
        true => {
            let shard = ShardId { volume: VolumeId(from.u32()?), index: ShardIndex(from.u32()?) };
            Some(ShardSnapshot { shard, snapshot: SnapshotId(from.u64()?) })
        }
        false => None,
    };
    let config =
        Configuration { shard, epoch, primary, members, full_set, min_copies, attach, size, born, parent, durability };
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
        3 => CopyState::Absent,
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
