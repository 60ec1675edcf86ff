//! The client against scripted networks: `fake` for the engine alone, `pair` for whole connections.

mod behaviour;
mod failover;
mod fake;
mod fencing;
mod flush;
mod holding;
mod limited;
mod pair;
mod schedules;

use conductor_model::api::{ShardPlace, VolumeMap};
use conductor_model::{AttachGeneration, Bytes, Epoch, NodeId, ShardIndex, VolumeId};
use std::net::SocketAddr;

/// Small, so that requests cross shards.
pub(crate) const SHARD: u64 = 64 << 10;

pub(crate) fn endpoint(port: u16) -> SocketAddr {
    ([10, 0, 0, 1], port).into()
}

/// A map with one shard per (epoch, port).
pub(crate) fn map(shards: &[(u64, u16)]) -> VolumeMap {
    let place = |(index, &(epoch, port)): (usize, &(u64, u16))| ShardPlace {
        index: ShardIndex(index as u32),
        epoch: Epoch(epoch),
        node: NodeId(u32::from(port)),
        endpoint: endpoint(port),
        cache: conductor_model::Commit(0),
    };
    VolumeMap {
        volume: VolumeId(1),
        name: "test".into(),
        size: Bytes(shards.len() as u64 * SHARD),
        shard_size: Bytes(SHARD),
        attach: AttachGeneration(1),
        ticket: None,
        snapshot: None,
        durability: conductor_model::Durability::Always,
        held_since: conductor_model::Commit(0),
        reachable: Vec::new(),
        shards: shards.iter().enumerate().map(place).collect(),
    }
}
