//! Work of single copies, in no order with writes: persisted with the decision, repeated until its node has confirmed it.
//!
//! A node that is told to forget a snapshot may still hold a deleted clone of it: that one goes first.

use crate::api::CopyWork;
use crate::limits::{MAX_WORK, MAX_WORK_AT_ONCE};
use crate::record::WorkRecord;
use crate::views::SnapshotState;
use crate::{
    Conductor, Configuration, CopyId, CopyState, Dirty, DiskId, Error, Key, Member, NodeId, SnapshotId, VolumeId,
};
use std::collections::BTreeSet;

impl Conductor {
    pub(crate) fn give_work(&mut self, node: NodeId, work: CopyWork, volume: VolumeId, dirty: &mut Dirty) {
        let since = self.next_commit();
        self.work.insert((node, work), WorkRecord { node, work, volume, since });
        dirty.add(Key::Work(node, work));
        self.tell(node, since);
    }

    /// What copies on `node` have to do.
    pub(crate) fn work_for(&self, node: NodeId) -> Vec<CopyWork> {
        let first = CopyWork::DropSnapshot(CopyId(0), SnapshotId(0));
        let last = CopyWork::Flatten(CopyId(u64::MAX));
        let needed = self.needed_on(node);
        let away = self.copies_away(node);
        let all = || self.work.range((node, first)..=(node, last)).map(|(_, record)| record);
        let filled = self.filled_on(node, all().map(|record| record.volume).collect());
        let held_back = |record: &WorkRecord| {
            let waits = match record.work {
                CopyWork::DropSnapshot(copy, snapshot) => {
                    needed.contains(&(record.volume, snapshot)) || filled.contains(&copy)
                }
                CopyWork::Flatten(_) => false,
            };
            waits || away.contains(&record.work.copy())
        };
        all().filter(|record| !held_back(record)).map(|record| record.work).take(MAX_WORK_AT_ONCE).collect()
    }

    /// Copies of these volumes that are being filled on `node`, and may not be there yet: it would find nothing to forget, and be given
    /// afterwards what others have not forgotten.
    fn filled_on(&self, node: NodeId, volumes: BTreeSet<VolumeId>) -> BTreeSet<CopyId> {
        let members = volumes.into_iter().flat_map(|id| self.shards_of(id)).flat_map(|shard| &shard.config.members);
        members.filter(|m| m.node == node && m.state == CopyState::Syncing).map(|m| m.copy).collect()
    }

    /// Snapshots whose deleted clones are still on `node`.
    pub(crate) fn needed_on(&self, node: NodeId) -> BTreeSet<(VolumeId, SnapshotId)> {
        let drops = self.drops.range((node, CopyId(0))..=(node, CopyId(u64::MAX))).map(|(_, drop)| drop.volume);
        let volumes: BTreeSet<VolumeId> = drops.collect();
        let parents = volumes.iter().filter_map(|id| self.volumes.get(id)?.parent);
        parents.map(|parent| (parent.volume, parent.snapshot)).collect()
    }

    /// The node says that it has done these.
    pub(crate) fn work_reported(&mut self, node: NodeId, worked: &[CopyWork], dirty: &mut Dirty) {
        let away = self.copies_away(node);
        let records = worked.iter().filter_map(|work| self.work.get(&(node, *work)));
        let filled = self.filled_on(node, records.map(|record| record.volume).collect());
        let counts = |work: &CopyWork| match work {
            CopyWork::DropSnapshot(copy, _) => !filled.contains(copy) && !away.contains(copy),
            CopyWork::Flatten(copy) => !away.contains(copy),
        };
        let done: Vec<CopyWork> = worked.iter().copied().filter(counts).collect();
        self.confirm_work(node, &done, dirty);
    }

    /// Copies on disks that the node is without: it finds nothing to do for them, and would say that all is done.
    fn copies_away(&self, node: NodeId) -> BTreeSet<CopyId> {
        let disks = self.nodes.get(&node).into_iter().flat_map(|n| &n.disks);
        let away: BTreeSet<DiskId> = disks.filter(|d| !d.present).map(|d| d.disk).collect();
        if away.is_empty() {
            return BTreeSet::new();
        }
        let members = self.shards.values().flat_map(|s| &s.config.members);
        members.filter(|m| m.node == node && away.contains(&m.disk)).map(|m| m.copy).collect()
    }

    /// These are done, or not to be done any more.
    pub(crate) fn confirm_work(&mut self, node: NodeId, worked: &[CopyWork], dirty: &mut Dirty) {
        let mut snapshots = BTreeSet::new();
        let mut flattened = BTreeSet::new();
        for work in worked {
            let Some(record) = self.work.remove(&(node, *work)) else { continue };
            dirty.add(Key::Work(node, *work));
            match record.work {
                CopyWork::DropSnapshot(_, snapshot) => {
                    snapshots.insert((record.volume, snapshot));
                }
                CopyWork::Flatten(_) => {
                    flattened.insert(record.volume);
                }
            }
        }
        if snapshots.is_empty() && flattened.is_empty() {
            return;
        }
        for record in self.work.values() {
            match record.work {
                CopyWork::DropSnapshot(_, snapshot) => snapshots.remove(&(record.volume, snapshot)),
                CopyWork::Flatten(_) => flattened.remove(&record.volume),
            };
        }
        for key in snapshots {
            if self.snapshots.get(&key).is_some_and(|s| s.state == SnapshotState::Deleting) {
                self.snapshots.remove(&key);
                dirty.add(Key::Snapshot(key.0, key.1));
            }
        }
        for volume in flattened {
            self.flattened(volume, dirty);
        }
    }

    /// A copy is to be filled with all that another one holds, perhaps with snapshots that it has forgotten itself, and the other one has
    /// not yet: those it forgets once more.
    pub(crate) fn forget_again(&mut self, config: &Configuration, filled: CopyId, dirty: &mut Dirty) {
        let Some(node) = config.member(filled).map(|member| member.node) else { return };
        let mut held = BTreeSet::new();
        for other in config.members.iter().filter(|member| member.copy != filled) {
            held.extend(self.to_forget(other));
        }
        for snapshot in held {
            self.give_work(node, CopyWork::DropSnapshot(filled, snapshot), config.shard.volume, dirty);
        }
    }

    /// Snapshots that a copy has not confirmed yet to have forgotten.
    pub(crate) fn to_forget(&self, member: &Member) -> impl Iterator<Item = SnapshotId> {
        let (node, copy) = (member.node, member.copy);
        let drop = |snapshot| (node, CopyWork::DropSnapshot(copy, SnapshotId(snapshot)));
        self.work.range(drop(0)..=drop(u64::MAX)).filter_map(|((_, work), _)| match work {
            CopyWork::DropSnapshot(_, snapshot) => Some(*snapshot),
            CopyWork::Flatten(_) => None,
        })
    }

    /// Copies that have not confirmed yet that they forgot the snapshot.
    pub(crate) fn works_left(&self, volume: VolumeId, snapshot: SnapshotId) -> usize {
        let of_it = |work: &CopyWork| matches!(work, CopyWork::DropSnapshot(_, id) if *id == snapshot);
        self.work.values().filter(|record| record.volume == volume && of_it(&record.work)).count()
    }

    /// The volume's copies go, and their work with them.
    pub(crate) fn remove_work(&mut self, volume: VolumeId, dirty: &mut Dirty) {
        let of_it = self.work.iter().filter(|(_, record)| record.volume == volume);
        let keys: Vec<(NodeId, CopyWork)> = of_it.map(|(key, _)| *key).collect();
        for key in keys {
            self.work.remove(&key);
            dirty.add(Key::Work(key.0, key.1));
        }
    }

    /// One more work for every copy of the volume must fit.
    pub(crate) fn check_room_for_work(&self, volume: VolumeId) -> Result<(), Error> {
        let copies: usize = self.shards_of(volume).map(|s| s.config.members.len()).sum();
        if self.work.len() + copies > MAX_WORK {
            return Err(Error::Limit { what: "copies that have something to do at once", limit: MAX_WORK });
        }
        Ok(())
    }
}
