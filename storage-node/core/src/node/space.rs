//! Space for a write on every copy, asked for before any is touched (rule 15).

use super::Node;
use crate::iocbs::IocbKey;
use crate::limits::{RESERVED_BLOCKS, SPACE_WAIT};
use crate::links::Left;
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
    /// Pages of what takes no blocks.
    pub(super) pages: u32,
    /// Shards with a write that waited for space in vain: how many blocks there were then.
    pub(super) full: BTreeMap<ShardId, i64>,
}

/// What becomes of a write that needs space.
pub(super) enum Space {
    Found,
    /// There may be some soon.
    Awaited,
    None,
}

impl<S: Store> Node<S> {
    /// Is there space for `needs` blocks on every copy (rule 15)? Asked before any copy is touched. Where a write waited `SPACE_WAIT` in
    /// vain, the space that there was then is remembered (`Taken::full`): until there is more, or something is given back here, writes that
    /// need more than that fail at once.
    pub(super) fn find_space(&mut self, now: Time, key: IocbKey, needs: i64) -> Space {
        let shard = self.iocbs[key].shard;
        let Some(space) = self.space(shard) else { return Space::Found };
        if self.taken.full.get(&shard).is_some_and(|full| space > *full) {
            self.taken.full.remove(&shard);
        }
        if space >= needs {
            self.iocbs[key].short_since = None;
            return Space::Found;
        }
        let known = self.taken.full.get(&shard).is_some_and(|full| needs > *full);
        let since = *self.iocbs[key].short_since.get_or_insert(now);
        if !known && now < since + SPACE_WAIT {
            return Space::Awaited;
        }
        self.taken.full.entry(shard).or_insert(space);
        Space::None
    }

    /// Are there so many pages on every copy, for what takes no blocks?
    pub(super) fn find_pages(&mut self, now: Time, key: IocbKey, needs: u32) -> Space {
        let left = self.pages_left(self.iocbs[key].shard);
        if left.is_none_or(|left| left >= needs) {
            self.iocbs[key].short_since = None;
            return Space::Found;
        }
        let since = *self.iocbs[key].short_since.get_or_insert(now);
        if now < since + SPACE_WAIT { Space::Awaited } else { Space::None }
    }

    /// Is there, now?
    pub(super) fn has_space(&self, shard: ShardId, needs: Blocks) -> bool {
        driver::mutant::on("rewrite_without_room") || self.space(shard).is_none_or(|space| space >= needs.0.into())
    }

    /// Blocks that a write of this shard may take on every copy. What is stamped and not finished counts as taken, on every disk.
    fn space(&self, shard: ShardId) -> Option<i64> {
        let replica = self.replicas.get(&shard)?;
        let local = self.disks[replica.disk].store.usage().free();
        let free = self.left_elsewhere(shard).map(|left| left.blocks).fold(local, u64::min);
        let taken = self.taken.blocks + RESERVED_BLOCKS;
        let signed = |blocks: u64| i64::try_from(blocks).unwrap_or(i64::MAX);
        Some(signed(free).saturating_sub(signed(taken)))
    }

    /// Pages that are left on every copy.
    fn pages_left(&self, shard: ShardId) -> Option<u32> {
        let replica = self.replicas.get(&shard)?;
        let local = self.disks[replica.disk].store.leeway().pages;
        let left = self.left_elsewhere(shard).map(|left| left.pages).fold(local, u32::min);
        Some(if left == u32::MAX { left } else { left.saturating_sub(self.taken.pages) })
    }

    /// What the disks of the other copies have left of a shard whose primary is here, and that of the one that is filled; as far as they
    /// are in reach.
    fn left_elsewhere(&self, shard: ShardId) -> impl Iterator<Item = Left> {
        let primary = self.primaries.get(&shard);
        let members = primary.into_iter().flat_map(|primary| {
            let filled = primary.syncing_member().filter(|_| primary.filling.is_some());
            primary.others().chain(filled)
        });
        members.filter_map(|m| Some(self.links.get(m.endpoint).filter(|l| l.up.is_some())?.left_on(m.disk)))
    }
}
