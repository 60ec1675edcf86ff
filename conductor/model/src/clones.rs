//! Clones: writable volumes that begin as a snapshot (rule 16), and how they become independent of it.
//!
//! A clone's shards lie on the disks of the parent's shards, for they share chunks there. What a clone needs cannot be
//! deleted. Flattening tells every copy to need its parent no more; when all have confirmed, the parent leaves the records, without a
//! new epoch: what a copy has joined before only names a parent that it does not look at any more.

use crate::api::CopyWork;
use crate::limits::MAX_DEPTH;
use crate::placement::Place;
use crate::record::{ParentRecord, VolumeRecord};
use crate::views::{NewVolume, Progress, VolumeInfo, VolumeState};
use crate::{
    Bytes, Conductor, Configuration, CopyState, Dirty, Error, Key, Member, Millis, ShardId, ShardSnapshot, SnapshotId,
    VolumeId, split_snapshot,
};

/// What a clone begins as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) parent: ParentRecord,
    pub(crate) size: Bytes,
    pub(crate) shard_size: Bytes,
    pub(crate) copies: u8,
}

impl Conductor {
    /// The snapshot that a new volume begins as, if it is to be a clone.
    pub(crate) fn origin(&self, new: &NewVolume) -> Result<Option<Origin>, Error> {
        let Some(text) = &new.parent else { return Ok(None) };
        let (volume, name) = split_snapshot(text)?;
        let snapshot = self.complete_snapshot(volume, name)?;
        let (record, size) = (self.volume(volume)?, snapshot.size);
        if new.size.0 != 0 && new.size < size {
            return Err(Error::Invalid(format!("a clone of {text} has at least its {size}, not {}", new.size)));
        }
        self.check_depth(record.id, Some(snapshot.id))?;
        let parent = ParentRecord { volume: record.id, snapshot: snapshot.id, flattening: false };
        Ok(Some(Origin { parent, size, shard_size: record.shard_size, copies: record.copies }))
    }

    /// One more layer may lie on a volume, or on this snapshot of it: its copies may have to look through all that are below. Snapshots that
    /// a rollback left beside the others count, too; deleted ones that every copy in sync has forgotten do not.
    pub(crate) fn check_depth(&self, volume: VolumeId, upto: Option<SnapshotId>) -> Result<(), Error> {
        let (mut volume, mut upto, mut depth) = (volume, upto, 0);
        loop {
            let owed = self.owed(volume);
            let counts = |id: SnapshotId| upto.is_none_or(|upto| id <= upto) && !owed.contains(&id);
            depth += self.snapshots_of(volume).filter(|s| counts(s.id)).count();
            if depth >= MAX_DEPTH {
                break;
            }
            let Some(parent) = self.volumes.get(&volume).and_then(|v| v.parent) else { return Ok(()) };
            // A clone without snapshots is a layer, too: no chain of them is endless.
            (volume, upto, depth) = (parent.volume, Some(parent.snapshot), depth + 1);
        }
        Err(Error::Limit {
            what: "snapshots on top of each other, with those that a clone lies on: flatten it, or delete some",
            limit: MAX_DEPTH,
        })
    }

    /// Where a clone's shard goes, the primary's place first, and what it begins as; `None` beyond the parent's end. It goes to the parent's copies
    /// that are in sync, if they are enough: the rest is listed and filled as if it had been lost (`replacement`), and needs no parent then.
    pub(crate) fn place_beside_parent(
        &self,
        now: Millis,
        volume: &VolumeRecord,
        index: u32,
    ) -> Result<Option<(Vec<Place>, ShardSnapshot)>, Error> {
        let Some(parent) = volume.parent else { return Ok(None) };
        let Some(snapshot) = self.snapshots.get(&(parent.volume, parent.snapshot)) else { return Ok(None) };
        if u64::from(index) * volume.shard_size.0 >= snapshot.size.0 {
            return Ok(None);
        }
        let shard = ShardId { volume: parent.volume, index: crate::ShardIndex(index) };
        let Some(record) = self.shards.get(&shard) else { return Ok(None) };
        let config = &record.config;
        let away = |member: &Member| Error::NotHere { shard, node: member.node, disk: member.disk };
        let mut in_sync: Vec<&Member> = config.in_sync_members().collect();
        in_sync.sort_by_key(|m| (record.leaving == Some(m.copy), m.copy != config.primary));
        let enough = usize::from(volume.min_copies);
        let mut places = Vec::with_capacity(in_sync.len());
        for member in in_sync {
            // Beside one that moves away only if there are too few others.
            if record.leaving == Some(member.copy) && places.len() >= enough {
                continue;
            }
            let here = self.disk(member.node, member.disk).filter(|d| d.present && self.is_up(member.node, now));
            let disk = here.ok_or_else(|| away(member))?;
            places.push(Place { node: member.node, disk: disk.disk, open: disk.open, endpoint: disk.endpoint });
        }
        let behind = config.members.iter().find(|m| m.state != CopyState::InSync);
        if let Some(behind) = behind.filter(|_| places.len() < enough) {
            return Err(away(behind));
        }
        Ok(Some((places, ShardSnapshot { shard, snapshot: parent.snapshot })))
    }

    /// Begins to make a clone independent; asked again, says how far it is.
    pub fn flatten(&mut self, now: Millis, name: &str) -> Result<(VolumeInfo, Dirty), Error> {
        self.check_trusted()?;
        let volume = self.volume(name)?.clone();
        let parent = volume.parent.ok_or_else(|| Error::NoClone(name.to_owned()))?;
        if parent.flattening {
            return Ok((self.volume_info(now, &volume), Dirty::default()));
        }
        self.check_settled(name, volume.id)?;
        self.check_room_for_work(volume.id)?;
        let mut dirty = Dirty::default();
        let clones = self.shards_of(volume.id).map(|s| &s.config).filter(|config| config.parent.is_some());
        let works: Vec<_> = clones.flat_map(|c| &c.members).map(|m| (m.node, CopyWork::Flatten(m.copy))).collect();
        for (node, work) in works {
            self.give_work(node, work, volume.id, &mut dirty);
        }
        if let Some(volume) = self.volumes.get_mut(&volume.id) {
            volume.parent = Some(ParentRecord { flattening: true, ..parent });
            dirty.add(Key::Volume(volume.id));
        }
        let dirty = self.seal(dirty);
        Ok((self.show(now, name)?.info, dirty))
    }

    /// No copy needs the parent any more.
    pub(crate) fn flattened(&mut self, volume: VolumeId, dirty: &mut Dirty) {
        let Some(record) = self.volumes.get_mut(&volume).filter(|v| v.parent.is_some_and(|p| p.flattening)) else {
            return;
        };
        record.parent = None;
        dirty.add(Key::Volume(volume));
        let shards: Vec<ShardId> = self.shards_of(volume).map(|s| s.config.shard).collect();
        for shard in shards {
            if let Some(record) = self.shards.get_mut(&shard).filter(|s| s.config.parent.is_some()) {
                record.config = Configuration { parent: None, ..record.config.clone() };
                dirty.add(Key::Shard(shard));
            }
        }
    }

    /// How far flattening is, in copies.
    pub(crate) fn flatten_progress(&self, volume: &VolumeRecord) -> Option<Progress> {
        volume.parent.filter(|parent| parent.flattening)?;
        let clones = self.shards_of(volume.id).filter(|s| s.config.parent.is_some());
        let of: u64 = clones.map(|s| s.config.members.len() as u64).sum();
        let of_it = |work: &CopyWork| matches!(work, CopyWork::Flatten(_));
        let left = self.work.values().filter(|w| w.volume == volume.id && of_it(&w.work)).count() as u64;
        Some(Progress { done: of.saturating_sub(left), of, reasons: Vec::new() })
    }

    /// Clones of a volume's snapshots, or of one of them.
    pub(crate) fn clones_of(&self, volume: VolumeId, snapshot: Option<SnapshotId>) -> Vec<String> {
        let needs = |parent: &ParentRecord| parent.volume == volume && snapshot.is_none_or(|s| s == parent.snapshot);
        let active = self.volumes.values().filter(|v| v.state == VolumeState::Active);
        active.filter(|v| v.parent.as_ref().is_some_and(needs)).map(|v| v.name.clone()).collect()
    }

    /// Neither a clone nor a copy-range needs the snapshot, or any of the volume's.
    pub(crate) fn check_not_needed(
        &self,
        what: &str,
        volume: VolumeId,
        snapshot: Option<SnapshotId>,
    ) -> Result<(), Error> {
        let by: Vec<String> = self.clones_of(volume, snapshot).iter().map(|name| format!("clone {name}")).collect();
        if !by.is_empty() {
            return Err(Error::Needed { what: what.to_owned(), by, way_out: "flatten or delete that first" });
        }
        let reads = |source: VolumeId, id: SnapshotId| source == volume && snapshot.is_none_or(|s| s == id);
        let copies = self.copy_ranges.values().filter(|c| c.goes_on() && c.into != volume);
        let by: Vec<String> = copies
            .filter(|c| reads(c.source, c.snapshot))
            .map(|c| format!("copy {} into {}", c.id, self.volumes.get(&c.into).map_or("?", |v| &v.name)))
            .collect();
        if !by.is_empty() {
            return Err(Error::Needed {
                what: what.to_owned(),
                by,
                way_out: "wait until that is over, or end it (trine volume copy-ranges --cancel)",
            });
        }
        Ok(())
    }
}
