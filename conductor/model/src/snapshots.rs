//! Snapshots: one point in time for a whole volume (rule 17).
//!
//! ```text
//! asked ─► attempt 1 ─► every primary has placed its barrier within H/2, no epoch changed ─► complete ─► deleting ─► gone
//!             │ otherwise: its id is forgotten on all copies
//!             └─► a pause ─► attempt 2, under a fresh id … ─► given up, with the reason
//! ```
//! While an attempt is open its primaries execute writes and do not acknowledge them. That it is complete is persisted before
//! they are told to go on: orders leave the answers with the transaction that says so. An attempt does not outlive the
//! conductor that began it: a restarted one forgets its id. Nothing reads, clones or copies what is not complete.

use crate::api::{CopyWork, OrderReport, OrderState, ShardOrder, VolumeMap};
use crate::events::Happened;
use crate::limits::{
    MAX_OUTCOMES, MAX_REASON, MAX_SNAPSHOTS, MAX_SNAPSHOTS_OWED, MAX_SNAPSHOTS_PER_VOLUME, SNAPSHOT_ATTEMPTS,
    SNAPSHOT_HOLD_MS, SNAPSHOT_PAUSE_MS, SNAPSHOT_PLACE_MS,
};
use crate::orders::Purpose;
use crate::record::SnapshotRecord;
use crate::views::{SnapshotInfo, SnapshotState};
use crate::{
    Commit, Conductor, Dirty, Epoch, Error, Key, Millis, ShardId, SnapshotId, VolumeId, check_snapshot_name,
    check_volume_name,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The attempts of this process, and how those that were given up ended.
#[derive(Clone, Default, Debug)]
pub(crate) struct Attempts {
    now: BTreeMap<(VolumeId, SnapshotId), Attempt>,
    /// By the id that was asked for.
    failed: VecDeque<(SnapshotId, String)>,
}

#[derive(Clone, Debug)]
enum Attempt {
    /// Not begun yet.
    Pausing { until: Millis },
    /// Barriers are being placed.
    Placing { since: Millis, epochs: BTreeMap<ShardId, Epoch>, missing: BTreeSet<ShardId> },
}

impl Attempts {
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        let deadlines = self.now.values().map(|attempt| match attempt {
            Attempt::Pausing { until } => *until,
            Attempt::Placing { since, .. } => Millis(since.0 + SNAPSHOT_PLACE_MS + 1),
        });
        deadlines.min()
    }
}

/// `VOLUME@SNAPSHOT`, taken apart and checked.
pub fn split_snapshot(text: &str) -> Result<(&str, &str), Error> {
    let parts = text.split_once('@');
    let (volume, name) = parts.ok_or_else(|| {
        let shown: String = text.chars().take(MAX_REASON).collect();
        Error::Invalid(format!("{shown:?} is not VOLUME@SNAPSHOT"))
    })?;
    check_volume_name(volume)?;
    check_snapshot_name(name)?;
    Ok((volume, name))
}

impl Conductor {
    /// Begins to make a snapshot; `snapshot_outcome` says how it ended.
    pub fn create_snapshot(&mut self, now: Millis, volume: &str, name: &str) -> Result<(SnapshotId, Dirty), Error> {
        self.check_trusted()?;
        check_snapshot_name(name)?;
        let record = self.volume(volume)?;
        let (id, size) = (record.id, record.size);
        if record.rollback.is_some() {
            return Err(Error::Busy { name: volume.to_owned(), what: "is being rolled back" });
        }
        let taken = |s: &&SnapshotRecord| s.state != SnapshotState::Deleting && s.name == name;
        if let Some(there) = self.snapshots_of(id).find(taken) {
            let (volume, name) = (volume.to_owned(), name.to_owned());
            // Nobody may take it for one that can be used, and it may fail still.
            return Err(match there.state {
                SnapshotState::Creating => Error::SnapshotIncomplete { volume, name },
                _ => Error::SnapshotExists { volume, name },
            });
        }
        if self.creates_snapshot(id) {
            return Err(Error::Busy { name: volume.to_owned(), what: "is in the middle of another snapshot" });
        }
        let owed = self.owed(id).len();
        if owed >= MAX_SNAPSHOTS_OWED {
            let what = "deleted snapshots that copies which are not in sync have to forget: bring their nodes back, or add one";
            return Err(Error::Limit { what, limit: MAX_SNAPSHOTS_OWED });
        }
        if self.snapshots_of(id).count() - owed >= MAX_SNAPSHOTS_PER_VOLUME {
            return Err(Error::Limit { what: "snapshots of a volume", limit: MAX_SNAPSHOTS_PER_VOLUME });
        }
        if self.snapshots.len() >= MAX_SNAPSHOTS {
            return Err(Error::Limit { what: "snapshots in the cluster", limit: MAX_SNAPSHOTS });
        }
        self.check_depth(id, None)?;
        self.check_settled(volume, id)?;
        self.check_room_for_work(id)?;
        let mut dirty = Dirty::default();
        let asked = self.fresh_snapshot(&mut dirty);
        let record = SnapshotRecord {
            id: asked,
            volume: id,
            name: name.to_owned(),
            size,
            created: now,
            state: SnapshotState::Creating,
            asked,
            attempt: 1,
        };
        self.snapshots.insert((id, asked), record);
        dirty.add(Key::Snapshot(id, asked));
        self.begin_attempt(now, id, asked, &mut dirty);
        Ok((asked, self.seal(dirty)))
    }

    /// How the making of a snapshot ended: `None` while it has not.
    pub fn snapshot_outcome(&self, asked: SnapshotId) -> Option<Result<SnapshotInfo, Error>> {
        match self.snapshots.values().find(|s| s.asked == asked) {
            Some(record) if record.state == SnapshotState::Creating => None,
            Some(record) => Some(Ok(self.snapshot_info(record))),
            None => {
                let failed = self.attempts.failed.iter().find(|(id, _)| *id == asked);
                let why = failed.map_or("its volume was deleted, or the conductor restarted", |(_, why)| why.as_str());
                Some(Err(Error::SnapshotFailed(why.to_owned())))
            }
        }
    }

    /// A volume's snapshots, oldest first.
    pub fn snapshot_list(&self, volume: &str) -> Result<Vec<SnapshotInfo>, Error> {
        let id = self.volume(volume)?.id;
        Ok(self.snapshots_of(id).map(|s| self.snapshot_info(s)).collect())
    }

    /// Forgets a snapshot on all copies. Refused while somebody needs it.
    pub fn delete_snapshot(&mut self, now: Millis, volume: &str, name: &str) -> Result<((), Dirty), Error> {
        self.check_trusted()?;
        let record = self.complete_snapshot(volume, name)?;
        let key = (record.volume, record.id);
        if self.volumes.get(&key.0).and_then(|v| v.rollback.as_ref()).is_some_and(|r| r.snapshot == key.1) {
            return Err(Error::Busy { name: volume.to_owned(), what: "is being rolled back to it" });
        }
        // A primary that has not heard that this was cancelled may still ask copies for it.
        if let Some(volume) = self.volumes.get(&key.0).filter(|volume| volume.given_up_at > Commit(0)) {
            self.check_unchanging(now, volume)?;
        }
        self.check_not_needed(&format!("snapshot {volume}@{name}"), key.0, Some(key.1))?;
        self.check_room_for_work(key.0)?;
        let mut dirty = Dirty::default();
        if let Some(record) = self.snapshots.get_mut(&key) {
            record.state = SnapshotState::Deleting;
        }
        dirty.add(Key::Snapshot(key.0, key.1));
        self.forget_snapshot(key.0, key.1, &mut dirty);
        self.note(Happened::SnapshotDeleted { volume: volume.to_owned(), snapshot: name.to_owned() }, &mut dirty);
        Ok(((), self.seal(dirty)))
    }

    /// Where a snapshot is read.
    pub fn snapshot_map(&self, volume: &str, name: &str) -> Result<VolumeMap, Error> {
        // In doubt it does not say of what it does not know that there is none: who reads it would take that for final.
        let unknown = |why| self.check_trusted().err().unwrap_or(why);
        let record = self.complete_snapshot(volume, name).map_err(unknown)?;
        let mut map = self.map(volume)?;
        map.shards.truncate(usize::try_from(record.size.0.div_ceil(map.shard_size.0)).unwrap_or(usize::MAX));
        Ok(VolumeMap { size: record.size, snapshot: Some(record.id), ..map })
    }

    /// A snapshot that can be used.
    pub(crate) fn complete_snapshot(&self, volume: &str, name: &str) -> Result<&SnapshotRecord, Error> {
        let id = self.volume(volume)?.id;
        let mut named = self.snapshots_of(id).filter(|s| s.name == name && s.state != SnapshotState::Deleting);
        match named.next() {
            Some(found) if found.state == SnapshotState::Complete => Ok(found),
            Some(_) => Err(Error::SnapshotIncomplete { volume: volume.to_owned(), name: name.to_owned() }),
            None => {
                let name = name.chars().take(crate::limits::MAX_VOLUME_NAME).collect();
                Err(Error::NoSnapshot { volume: volume.to_owned(), name })
            }
        }
    }

    pub(crate) fn snapshots_of(&self, volume: VolumeId) -> impl Iterator<Item = &SnapshotRecord> {
        self.snapshots.range((volume, SnapshotId(0))..=(volume, SnapshotId(u64::MAX))).map(|(_, record)| record)
    }

    /// Deleted snapshots of the volume that every copy in sync has forgotten: layers of nothing that goes on. One that is away has those
    /// only that it had when it left; where they and what it is filled with are too many on top of each other its filling fails, and it
    /// forgets them while it is absent.
    pub(crate) fn owed(&self, volume: VolumeId) -> BTreeSet<SnapshotId> {
        let deleted = self.snapshots_of(volume).filter(|s| s.state == SnapshotState::Deleting);
        let mut owed: BTreeSet<SnapshotId> = deleted.map(|s| s.id).collect();
        if owed.is_empty() {
            return owed;
        }
        for member in self.shards_of(volume).flat_map(|shard| shard.config.in_sync_members()) {
            for snapshot in self.to_forget(member) {
                owed.remove(&snapshot);
            }
        }
        owed
    }

    /// True while one of the volume's snapshots is not complete.
    pub(crate) fn creates_snapshot(&self, volume: VolumeId) -> bool {
        self.snapshots_of(volume).any(|s| s.state == SnapshotState::Creating)
    }

    /// `VOLUME@SNAPSHOT`, for people.
    pub(crate) fn snapshot_name(&self, volume: VolumeId, snapshot: SnapshotId) -> String {
        let of = self.volumes.get(&volume).map_or_else(|| volume.to_string(), |v| v.name.clone());
        let name = self.snapshots.get(&(volume, snapshot)).map_or_else(|| snapshot.to_string(), |s| s.name.clone());
        format!("{of}@{name}")
    }

    /// Every shard has its copies, and the record of it is not in doubt.
    pub(crate) fn check_settled(&self, name: &str, volume: VolumeId) -> Result<(), Error> {
        for shard in self.shards_of(volume) {
            if let Some(why) = &shard.distrusted {
                return Err(Error::Distrusted { shard: shard.config.shard, why: why.clone() });
            }
            if !shard.config.born {
                return Err(Error::Busy { name: name.to_owned(), what: "is still being created" });
            }
        }
        Ok(())
    }

    fn snapshot_info(&self, record: &SnapshotRecord) -> SnapshotInfo {
        let drops_left = match record.state {
            SnapshotState::Deleting => self.works_left(record.volume, record.id),
            SnapshotState::Creating | SnapshotState::Complete => 0,
        };
        SnapshotInfo {
            id: record.id,
            volume: self.volumes.get(&record.volume).map(|v| v.name.clone()).unwrap_or_default(),
            name: record.name.clone(),
            size: record.size,
            created: record.created,
            state: record.state,
            drops_left: u32::try_from(drops_left).unwrap_or(u32::MAX),
            clones: self.clones_of(record.volume, Some(record.id)),
        }
    }

    fn fresh_snapshot(&mut self, dirty: &mut Dirty) -> SnapshotId {
        let id = self.meta.next_snapshot;
        self.meta.next_snapshot = SnapshotId(id.0 + 1);
        dirty.add(Key::Meta);
        id
    }

    /// Orders a barrier on every shard of the volume. H/2 counts from here: no primary is asked before.
    fn begin_attempt(&mut self, now: Millis, volume: VolumeId, snapshot: SnapshotId, dirty: &mut Dirty) {
        let epochs: BTreeMap<ShardId, Epoch> =
            self.shards_of(volume).map(|s| (s.config.shard, s.config.epoch)).collect();
        let missing: BTreeSet<ShardId> = epochs.keys().copied().collect();
        for shard in &missing {
            let what = ShardOrder::Barrier { snapshot, hold_ms: SNAPSHOT_HOLD_MS };
            self.open_order(*shard, what, Purpose::Barrier(snapshot), dirty);
        }
        self.attempts.now.insert((volume, snapshot), Attempt::Placing { since: now, epochs, missing });
    }

    /// A primary has something to say about its barrier.
    pub(crate) fn barrier_stands(&mut self, now: Millis, snapshot: SnapshotId, said: &OrderReport, dirty: &mut Dirty) {
        let volume = said.shard.volume;
        let Some(Attempt::Placing { since, epochs, missing }) = self.attempts.now.get_mut(&(volume, snapshot)) else {
            return;
        };
        match &said.state {
            OrderState::Running { .. } => return,
            OrderState::Failed(why) => {
                let why = format!("{}: {why}", said.shard);
                return self.fail_attempt(now, volume, snapshot, &why, dirty);
            }
            // Placed in another epoch than this attempt began in: it does not count.
            OrderState::Done { .. } if epochs.get(&said.shard) == Some(&said.epoch) => {
                missing.remove(&said.shard);
            }
            OrderState::Done { .. } => {}
        }
        let (in_time, all) = (now.since(*since) <= SNAPSHOT_PLACE_MS, missing.is_empty());
        if let Some(why) = self.epoch_changed(volume, snapshot) {
            self.fail_attempt(now, volume, snapshot, &why, dirty);
        } else if all && in_time {
            self.attempts.now.remove(&(volume, snapshot));
            if let Some(record) = self.snapshots.get_mut(&(volume, snapshot)) {
                record.state = SnapshotState::Complete;
                dirty.add(Key::Snapshot(volume, snapshot));
                let (of, name) = (self.volumes.get(&volume).map(|v| v.name.clone()), record.name.clone());
                let made = Happened::SnapshotCreated { volume: of.unwrap_or_default(), snapshot: name };
                self.note(made, dirty);
            }
            self.close_orders(volume, Some(Purpose::Barrier(snapshot)), dirty);
        }
    }

    /// Attempts that took too long or met a new epoch, pauses that are over, and ids that an earlier process left behind.
    pub(crate) fn tick_snapshots(&mut self, now: Millis, dirty: &mut Dirty) {
        let creating: Vec<(VolumeId, SnapshotId)> =
            self.snapshots.values().filter(|s| s.state == SnapshotState::Creating).map(|s| (s.volume, s.id)).collect();
        for (volume, snapshot) in creating {
            match self.attempts.now.get(&(volume, snapshot)) {
                None => {
                    self.forget_snapshot(volume, snapshot, dirty);
                    self.snapshots.remove(&(volume, snapshot));
                    dirty.add(Key::Snapshot(volume, snapshot));
                }
                Some(Attempt::Pausing { until }) if *until <= now => match self.epoch_unsettled(volume) {
                    None => self.begin_attempt(now, volume, snapshot, dirty),
                    Some(why) => self.fail_attempt(now, volume, snapshot, &why, dirty),
                },
                Some(Attempt::Pausing { .. }) => {}
                Some(Attempt::Placing { since, missing, .. }) => {
                    let late = (now.since(*since) > SNAPSHOT_PLACE_MS).then(|| self.late(missing));
                    if let Some(why) = late.or_else(|| self.epoch_changed(volume, snapshot)) {
                        self.fail_attempt(now, volume, snapshot, &why, dirty);
                    }
                }
            }
        }
    }

    fn late(&self, missing: &BTreeSet<ShardId>) -> String {
        let nodes: BTreeSet<String> =
            missing.iter().filter_map(|shard| self.primary_node(*shard)).map(|node| node.to_string()).collect();
        let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
        match missing.first() {
            Some(first) => format!(
                "{nodes} did not confirm within {SNAPSHOT_PLACE_MS} ms that the barrier is placed on every copy of {} ({first} first)",
                if missing.len() == 1 { "1 shard".to_owned() } else { format!("{} shards", missing.len()) },
            ),
            None => format!("the barriers were placed only after {SNAPSHOT_PLACE_MS} ms"),
        }
    }

    fn epoch_unsettled(&self, volume: VolumeId) -> Option<String> {
        let unsettled = self.shards_of(volume).find(|s| s.distrusted.is_some())?;
        Some(format!("the record of {} is in doubt", unsettled.config.shard))
    }

    fn epoch_changed(&self, volume: VolumeId, snapshot: SnapshotId) -> Option<String> {
        let Some(Attempt::Placing { epochs, .. }) = self.attempts.now.get(&(volume, snapshot)) else { return None };
        let changed = self.shards_of(volume).find(|s| epochs.get(&s.config.shard) != Some(&s.config.epoch))?;
        Some(format!("the copies of {} changed meanwhile", changed.config.shard))
    }

    /// Forgets this attempt's id everywhere; tries again under a fresh one, or gives up.
    fn fail_attempt(&mut self, now: Millis, volume: VolumeId, snapshot: SnapshotId, why: &str, dirty: &mut Dirty) {
        self.attempts.now.remove(&(volume, snapshot));
        self.close_orders(volume, Some(Purpose::Barrier(snapshot)), dirty);
        self.forget_snapshot(volume, snapshot, dirty);
        let Some(record) = self.snapshots.remove(&(volume, snapshot)) else { return };
        dirty.add(Key::Snapshot(volume, snapshot));
        if record.attempt >= SNAPSHOT_ATTEMPTS || self.check_room_for_work(volume).is_err() {
            if self.attempts.failed.len() >= MAX_OUTCOMES {
                self.attempts.failed.pop_front();
            }
            let why = format!("{} attempts failed, the last because {why}", record.attempt);
            self.attempts.failed.push_back((record.asked, why));
            return;
        }
        let pause = SNAPSHOT_PAUSE_MS << (record.attempt - 1);
        let id = self.fresh_snapshot(dirty);
        let next = SnapshotRecord { id, attempt: record.attempt + 1, ..record };
        self.snapshots.insert((volume, id), next);
        dirty.add(Key::Snapshot(volume, id));
        self.attempts.now.insert((volume, id), Attempt::Pausing { until: Millis(now.0 + pause) });
    }

    /// Every copy of the volume is told to forget the snapshot.
    fn forget_snapshot(&mut self, volume: VolumeId, snapshot: SnapshotId, dirty: &mut Dirty) {
        let members = self.shards_of(volume).flat_map(|s| &s.config.members);
        let works: Vec<_> = members.map(|m| (m.node, CopyWork::DropSnapshot(m.copy, snapshot))).collect();
        for (node, work) in works {
            self.give_work(node, work, volume, dirty);
        }
    }

    /// The volume is deleted: so are its snapshots, with its copies.
    pub(crate) fn remove_snapshots(&mut self, volume: VolumeId, dirty: &mut Dirty) {
        let ids: Vec<SnapshotId> = self.snapshots_of(volume).map(|s| s.id).collect();
        for id in ids {
            self.snapshots.remove(&(volume, id));
            self.attempts.now.remove(&(volume, id));
            dirty.add(Key::Snapshot(volume, id));
        }
    }
}
