//! Rollback: a volume reads as one of its snapshots again.
//!
//! It keeps its size: where it has grown since, it reads as zeros. What a shard has beyond the snapshot's end is not in the snapshot's layer, and
//! whole shards that came later are zeroed.
//!
//! Only while nobody has it attached, and nobody can attach it until every shard's primary has said that all copies are
//! done: a host would see one half old and one half new. It is persisted and goes on after a restart. One that a shard is in the way of is tried
//! again and again; somebody may cancel it, and has a volume then of which it is known what reads as what.

use crate::api::{OrderReport, OrderState, ShardOrder};
use crate::error::DETACH;
use crate::events::Happened;
use crate::orders::Purpose;
use crate::record::{RollbackRecord, VolumeRecord};
use crate::views::{CancelledRollback, Progress, RollbackInfo, VolumeInfo, VolumeRange};
use crate::{Bytes, Conductor, Dirty, Error, Key, Millis, ShardId, VolumeId};

impl Conductor {
    /// Begins to roll back; asked again for the same snapshot, says how far it is.
    pub fn rollback(&mut self, now: Millis, volume: &str, name: &str) -> Result<(VolumeInfo, Dirty), Error> {
        self.check_trusted()?;
        let snapshot = self.complete_snapshot(volume, name)?;
        let (id, size) = (snapshot.id, snapshot.size);
        let record = self.volume(volume)?.clone();
        let busy = |what| Err(Error::Busy { name: volume.to_owned(), what });
        if let Some(holder) = record.holder() {
            return Err(Error::Attached { name: volume.to_owned(), holder, way_out: DETACH });
        }
        match &record.rollback {
            Some(under_way) if under_way.snapshot == id => {
                return Ok((self.show(now, volume)?.info, Dirty::default()));
            }
            Some(_) => return busy("is being rolled back to another snapshot"),
            None => {}
        }
        if self.creates_snapshot(record.id) {
            return busy("is in the middle of a snapshot");
        }
        if self.copy_ranges.values().any(|copy| copy.into == record.id && copy.goes_on()) {
            return busy("is being copied into");
        }
        self.check_settled(volume, record.id)?;
        self.check_nobody_is_left(now, volume)?;
        let mut dirty = Dirty::default();
        let left = self.shards_of(record.id).map(|s| s.config.shard.index).collect();
        if let Some(volume) = self.volumes.get_mut(&record.id) {
            volume.rollback = Some(RollbackRecord { snapshot: id, left });
            volume.cancelled = None;
            dirty.add(Key::Volume(record.id));
        }
        let zeros_from = grown_from(&record, size);
        let (volume_name, snapshot) = (volume.to_owned(), name.to_owned());
        self.note(Happened::RolledBack { volume: volume_name, snapshot, zeros_from }, &mut dirty);
        self.schedule(now, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.show(now, volume)?.info, dirty))
    }

    /// Ends a rollback that is not over: what is done stays done. The volume is nobody's, and reads as two states of itself.
    pub fn cancel_rollback(&mut self, now: Millis, volume: &str, name: &str) -> Result<(VolumeInfo, Dirty), Error> {
        self.check_trusted()?;
        let (id, to) = (self.volume(volume)?.id, self.complete_snapshot(volume, name)?.id);
        let of = self.shards_of(id).count();
        let record = self.volumes.get_mut(&id);
        let Some(ended) = record.and_then(|volume| volume.rollback.take_if(|under_way| under_way.snapshot == to))
        else {
            return Err(Error::NoRollback { volume: volume.to_owned(), snapshot: name.to_owned() });
        };
        let count = |shards: usize| u32::try_from(shards).unwrap_or(u32::MAX); // `MAX_SHARDS_PER_VOLUME`
        let (done, of) = (count(of.saturating_sub(ended.left.len())), count(of));
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.cancelled = Some(ended);
        }
        let mut dirty = Dirty::default();
        self.give_up(now, id, Purpose::Rollback, &mut dirty);
        let (volume_name, snapshot) = (volume.to_owned(), name.to_owned());
        self.note(Happened::RollbackCancelled { volume: volume_name, snapshot, done, of }, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.show(now, volume)?.info, dirty))
    }

    pub(crate) fn rollback_stands(&mut self, now: Millis, said: &OrderReport, dirty: &mut Dirty) {
        match &said.state {
            OrderState::Running { .. } => {}
            OrderState::Failed(why) => self.pause_order(now, said, why, dirty),
            OrderState::Done { .. } => {
                self.close_order(said.id, dirty);
                let Some(volume) = self.volumes.get_mut(&said.shard.volume) else { return };
                let over = volume.rollback.as_mut().is_some_and(|rollback| {
                    rollback.left.remove(&said.shard.index);
                    rollback.left.is_empty()
                });
                if over {
                    volume.rollback = None;
                }
                dirty.add(Key::Volume(volume.id));
            }
        }
    }

    pub(crate) fn schedule_rollbacks(&mut self, now: Millis, dirty: &mut Dirty) {
        let mut due = Vec::new();
        for volume in self.volumes.values() {
            let Some(rollback) = &volume.rollback else { continue };
            let Some(size) = self.snapshots.get(&(volume.id, rollback.snapshot)).map(|s| s.size) else { continue };
            for index in &rollback.left {
                let shard = ShardId { volume: volume.id, index: *index };
                if !self.orders.is_spoken_for(Purpose::Rollback, shard, now) {
                    let beyond = u64::from(index.0) * volume.shard_size.0 >= size.0;
                    due.push((shard, ShardOrder::Rollback { snapshot: rollback.snapshot, beyond }));
                }
            }
        }
        for (shard, what) in due {
            self.open_order(shard, what, Purpose::Rollback, dirty);
        }
    }

    pub(crate) fn rollback_info(&self, volume: VolumeId) -> Option<RollbackInfo> {
        let record = self.volumes.get(&volume)?;
        let rollback = record.rollback.as_ref()?;
        let to = self.snapshots.get(&(volume, rollback.snapshot));
        let name = to.map(|s| s.name.clone()).unwrap_or_default();
        let zeros_from = to.and_then(|s| grown_from(record, s.size));
        let (of, left) = (self.shards_of(volume).count() as u64, rollback.left.len() as u64);
        let reasons = self.orders.reasons(Purpose::Rollback, volume);
        Some(RollbackInfo {
            snapshot: name,
            zeros_from,
            progress: Progress { done: of.saturating_sub(left), of, reasons },
        })
    }

    /// What a volume reads as whose rollback was cancelled.
    pub(crate) fn cancelled_info(&self, volume: &VolumeRecord) -> Option<CancelledRollback> {
        let cancelled = volume.cancelled.as_ref()?;
        let name = self.snapshots.get(&(volume.id, cancelled.snapshot)).map(|s| s.name.clone());
        let (mut done, mut left) = (Vec::new(), Vec::new());
        for config in self.shards_of(volume.id).map(|shard| &shard.config) {
            let index = config.shard.index;
            let ranges: &mut Vec<VolumeRange> = if cancelled.left.contains(&index) { &mut left } else { &mut done };
            let offset = Bytes(u64::from(index.0) * volume.shard_size.0);
            match ranges.last_mut().filter(|last| last.offset.0 + last.length.0 == offset.0) {
                Some(last) => last.length.0 += config.size.0,
                None => ranges.push(VolumeRange { offset, length: config.size }),
            }
        }
        Some(CancelledRollback { snapshot: name.unwrap_or_else(|| cancelled.snapshot.to_string()), done, left })
    }
}

/// Where a volume goes on that was so large at the time of a snapshot, if it has grown since.
fn grown_from(volume: &VolumeRecord, size: Bytes) -> Option<Bytes> {
    (volume.size > size).then_some(size)
}
