//! Configurations and block ranges as bytes, and what a store can keep of them.

use crate::codec::{Put, Take};
use conductor_model::card::{MAX_CARD_BYTES, SnapshotCard, VolumeCard};
use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Commit, Configuration, CopyId, CopyState, DiskId, Durability,
    Epoch, Member, Millis, NodeId, OpenId, ShardId, ShardIndex, ShardSnapshot, SnapshotId, VolumeId,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Members of a configuration, and copies of a full set: three are usual, a move adds one or two.
pub const MAX_MEMBERS: usize = 8;
/// Blocks of one copy: 1 TiB, 256 times the default shard.
pub const MAX_SHARD_BLOCKS: u32 = 1 << 28;
/// Most bytes of an encoded configuration: 66, 8 members of 52, 8 copies of 8, and a card.
pub(crate) const MAX_CONFIGURATION: usize = 66 + MAX_MEMBERS * (52 + 8) + MAX_CARD_BYTES;

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
        && config.full_set.len() <= MAX_MEMBERS
        && config.card.as_ref().is_none_or(|card| card.bytes() <= MAX_CARD_BYTES);
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
        out.u8(match (member.state, member.past) {
            (CopyState::InSync, _) => 1,
            (CopyState::Syncing, false) => 2,
            (CopyState::Absent, false) => 3,
            (CopyState::Syncing, true) => 4,
            (CopyState::Absent, true) => 5,
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
    out.u8(config.card.is_some().into());
    if let Some(card) = &config.card {
        encode_card(card, out);
    }
}

fn encode_card(card: &VolumeCard, out: &mut Vec<u8>) {
    out.u64(card.version.0);
    out.u64(card.size.0);
    out.u64(card.shard_size.0);
    out.u8(card.copies);
    out.u64(card.created.0);
    let (volume, snapshot) = card.parent.unwrap_or_default();
    out.u8(card.parent.is_some().into());
    out.u32(volume.0);
    out.u64(snapshot.0);
    encode_name(&card.name, out);
    out.u8(card.more.into());
    out.u8(u8::try_from(card.snapshots.len()).unwrap_or(u8::MAX)); // 25 B each at least, by `blocks_of`
    for snapshot in &card.snapshots {
        out.u64(snapshot.id.0);
        out.u64(snapshot.size.0);
        out.u64(snapshot.created.0);
        encode_name(&snapshot.name, out);
    }
}

/// Behind a byte for its length: names have 64 bytes at most.
fn encode_name(name: &str, out: &mut Vec<u8>) {
    out.u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name.as_bytes());
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
    let card = match flag(from.u8()?)? {
        true => Some(Box::new(decode_card(from)?)),
        false => None,
    };
    let config = Configuration {
        shard,
        epoch,
        primary,
        members,
        full_set,
        min_copies,
        attach,
        size,
        born,
        parent,
        durability,
        card,
        // The conductor's, and of no use without it.
        cache: Commit(0),
    };
    blocks_of(&config).map(|_| config)
}

fn decode_card(from: &mut Take<'_>) -> Option<VolumeCard> {
    let (version, size, shard_size) = (Commit(from.u64()?), Bytes(from.u64()?), Bytes(from.u64()?));
    let (copies, created) = (from.u8()?, Millis(from.u64()?));
    let (is_clone, volume, snapshot) = (flag(from.u8()?)?, VolumeId(from.u32()?), SnapshotId(from.u64()?));
    let (name, more) = (decode_name(from)?, flag(from.u8()?)?);
    let snapshots = (0..from.u8()?).map(|_| {
        let (id, size, created) = (SnapshotId(from.u64()?), Bytes(from.u64()?), Millis(from.u64()?));
        Some(SnapshotCard { id, size, created, name: decode_name(from)? })
    });
    let snapshots = snapshots.collect::<Option<Vec<_>>>()?;
    let parent = is_clone.then_some((volume, snapshot));
    Some(VolumeCard { version, name, size, shard_size, copies, created, parent, snapshots, more })
}

fn decode_name(from: &mut Take<'_>) -> Option<String> {
    let length = usize::from(from.u8()?);
    let (name, rest) = from.0.split_at_checked(length)?;
    from.0 = rest;
    String::from_utf8(name.to_vec()).ok()
}

fn decode_member(from: &mut Take<'_>) -> Option<Member> {
    let copy = CopyId(from.u64()?);
    let node = NodeId(from.u32()?);
    let disk = DiskId(from.u64()?);
    let open = OpenId(from.u64()?);
    let (state, past) = match from.u8()? {
        1 => (CopyState::InSync, false),
        2 => (CopyState::Syncing, false),
        3 => (CopyState::Absent, false),
        4 => (CopyState::Syncing, true),
        5 => (CopyState::Absent, true),
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
    Some(Member { copy, node, disk, open, state, since: Epoch(0), past, endpoint })
}

fn flag(n: u8) -> Option<bool> {
    match n {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// A card that has no room left.
#[cfg(test)]
pub(crate) fn full_card() -> VolumeCard {
    let name = "n".repeat(64);
    let snapshot = SnapshotCard { id: SnapshotId(7), name: name.clone(), size: Bytes(1 << 30), created: Millis(9) };
    let mut card = VolumeCard {
        version: Commit(3),
        name,
        size: Bytes(1 << 40),
        shard_size: Bytes(1 << 32),
        copies: 3,
        created: Millis(8),
        parent: Some((VolumeId(2), SnapshotId(1))),
        snapshots: Vec::new(),
        more: true,
    };
    while card.bytes() + 25 + snapshot.name.len() <= MAX_CARD_BYTES {
        card.snapshots.push(snapshot.clone());
    }
    let rest = MAX_CARD_BYTES - card.bytes();
    card.snapshots.extend((rest >= 25).then(|| SnapshotCard { name: "x".repeat(rest - 25), ..snapshot }));
    card
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_takes_as_many_bytes_as_it_says() {
        let card = full_card();
        let mut bytes = Vec::new();
        encode_card(&card, &mut bytes);
        assert_eq!(bytes.len(), card.bytes());
        assert!(card.bytes() > MAX_CARD_BYTES - 25 && card.snapshots.len() >= 14);
        assert_eq!(decode_card(&mut Take(&bytes)), Some(card));
    }
}
