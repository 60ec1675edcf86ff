//! Room for a write on every copy, asked for before any is touched (rule 15).

use super::Node;
use crate::limits::{RESERVED_BLOCKS, ROOM_WAIT};
use conductor_model::{Blocks, ShardId, VolumeId};
use driver::Time;
use node_store::Store;
use std::collections::BTreeMap;

/// What clients' requests take while they are under way.
#[derive(Default)]
pub(super) struct Taken {
    /// Bytes of payload, by volume.
    pub(super) payload: BTreeMap<VolumeId, usize>,
    /// Blocks of writes that are stamped and not finished.
    pub(super) blocks: u64,
    /// Shards with a write that waited for room in vain: how many blocks there were then.
    pub(super) full: BTreeMap<ShardId, i64>,
}

/// What becomes of a write that needs room.
pub(super) enum Room {
    Found,
    /// There may be some soon.
    Awaited,
    None,
}

impl<S: Store> Node<S> {
    /// Is there room for `needs` blocks on every copy (rule 15)? Asked before any copy is touched. One that waited in vain says for all
    /// that need as much: as long as there is no more room than there was then, and nothing was given back here, they do not wait.
    pub(super) fn find_room(&mut self, now: Time, key: usize, needs: i64) -> Room {
        let shard = self.iocbs[key].shard;
        let Some(room) = self.room(shard) else { return Room::Found };
        if self.taken.full.get(&shard).is_some_and(|full| room > *full) {
            self.taken.full.remove(&shard);
        }
        if room >= needs {
            self.iocbs[key].short_since = None;
            return Room::Found;
        }
        let known = self.taken.full.get(&shard).is_some_and(|full| needs > *full);
        let since = *self.iocbs[key].short_since.get_or_insert(now);
        if !known && now < since + ROOM_WAIT {
            return Room::Awaited;
        }
        self.taken.full.entry(shard).or_insert(room);
        Room::None
    }

    /// Is there, now?
    pub(super) fn has_room(&self, shard: ShardId, needs: Blocks) -> bool {
        driver::mutant::on("rewrite_without_room") || self.room(shard).is_none_or(|room| room >= needs.0.into())
    }

    /// Blocks that a write of this shard may take on every copy. What is stamped and not finished counts as taken, on every disk.
    fn room(&self, shard: ShardId) -> Option<i64> {
        let (primary, replica) = (self.primaries.get(&shard)?, self.replicas.get(&shard)?);
        let local = self.disks[replica.disk].store.usage().free();
        let filled = primary.syncing_member().filter(|_| primary.filling.is_some());
        let there = primary.others().chain(filled).filter_map(|m| {
            let link = self.links.get(m.endpoint).filter(|l| l.up.is_some())?;
            Some(link.free.get(&m.disk).copied().unwrap_or(0))
        });
        let free = there.fold(local, u64::min);
        let taken = self.taken.blocks + RESERVED_BLOCKS;
        let signed = |blocks: u64| i64::try_from(blocks).unwrap_or(i64::MAX);
        Some(signed(free).saturating_sub(signed(taken)))
    }
}
