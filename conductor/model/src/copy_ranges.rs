//! Copy-range: a range of a volume reads as the same range of another volume's snapshot (rule 16).
//!
//! Ordered by the primaries of the destination's shards, one order for each shard that the range touches. What is left is persisted, so
//! that it goes on after a restart. A primary that starts anew does some of it again, what it had not reported: only while nobody has
//! the destination attached, and nobody can attach it until it is done, or every primary has heard that it was given up. What
//! fails or is cancelled is given up and stays listed until somebody has looked.

use crate::api::{OrderReport, OrderState, ShardOrder};
use crate::error::DETACH;
use crate::limits::{DONE_SHOWN_MS, MAX_COPY_RANGES, MAX_REASON};
use crate::orders::Purpose;
use crate::record::{CopyRangeRecord, VolumeRecord};
use crate::views::{CopyRange, CopyRangeInfo, Progress};
use crate::{
    BLOCK, BlockRange, Blocks, Bytes, Commit, Conductor, Dirty, Error, Key, Member, Millis, OrderId, ShardId,
    ShardIndex, ShardSnapshot, VolumeId, split_snapshot,
};
use std::collections::BTreeMap;

/// Why a copy ended that somebody ended.
const CANCELLED: &str = "it was cancelled";

impl Conductor {
    /// Begins to copy a range into a volume.
    pub fn copy_range(&mut self, now: Millis, into: &str, range: &CopyRange) -> Result<(CopyRangeInfo, Dirty), Error> {
        self.check_trusted()?;
        let (source, name) = split_snapshot(&range.source)?;
        let snapshot = self.complete_snapshot(source, name)?;
        let (from, to) = (self.volume(source)?, self.volume(into)?);
        let invalid = |what: String| Err(Error::Invalid(what));
        if from.id == to.id {
            return invalid(format!(
                "{} is of {into} itself: roll back to it, or copy from a clone of it",
                range.source
            ));
        }
        if from.shard_size != to.shard_size {
            return invalid(format!(
                "{source} has shards of {} and {into} of {}: chunks are shared only where shards are equally large",
                from.shard_size, to.shard_size
            ));
        }
        let CopyRange { offset, length, .. } = *range;
        if length.0 == 0 || !offset.is_block_aligned() || !length.is_block_aligned() {
            return invalid(format!("offset and length are multiples of {BLOCK}, and there is something to copy"));
        }
        let end = offset.0.checked_add(length.0);
        let Some(end) = end.filter(|end| *end <= snapshot.size.0 && *end <= to.size.0) else {
            return invalid(format!(
                "{length} from {offset} on reach beyond the end of {} ({}) or of {into} ({})",
                range.source, snapshot.size, to.size
            ));
        };
        if let Some(holder) = to.holder() {
            return Err(Error::Attached { name: into.to_owned(), holder, way_out: DETACH });
        }
        if to.rollback.is_some() {
            return Err(Error::Busy { name: into.to_owned(), what: "is being rolled back" });
        }
        let shard_size = to.shard_size.0;
        let (source, snapshot, into_id) = (from.id, snapshot.id, to.id);
        self.check_settled(into, into_id)?;
        self.check_nobody_is_left(now, into)?;
        self.make_room_for_copy()?;
        let mut dirty = Dirty::default();
        let id = self.meta.next_order;
        self.meta.next_order = OrderId(id.0 + 1);
        dirty.add(Key::Meta);
        let left = parts(shard_size, offset.0, end);
        let record = CopyRangeRecord {
            id,
            source,
            snapshot,
            into: into_id,
            offset,
            length,
            started: now,
            left,
            failed: None,
            done: None,
        };
        if self.copy_ranges.len() >= MAX_COPY_RANGES {
            self.drop_oldest_ended(&mut dirty);
        }
        self.copy_ranges.insert(id, record.clone());
        dirty.add(Key::CopyRange(id));
        self.schedule(now, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.copy_range_info(&record), dirty))
    }

    /// Copies into a volume that are under way, those that failed or were cancelled, and for a while those that are done.
    pub fn copy_ranges(&self, into: &str) -> Result<Vec<CopyRangeInfo>, Error> {
        let id = self.volume(into)?.id;
        Ok(self.copy_ranges.values().filter(|c| c.into == id).map(|c| self.copy_range_info(c)).collect())
    }

    /// Ends a copy, which then stays listed as one that failed, so that who follows it learns that. Forgets one that has ended.
    pub fn cancel_copy_range(&mut self, now: Millis, into: &str, id: OrderId) -> Result<((), Dirty), Error> {
        self.check_trusted()?;
        let volume = self.volume(into)?.id;
        let Some(copy) = self.copy_ranges.get_mut(&id).filter(|copy| copy.into == volume) else {
            return Err(Error::NoCopyJob { volume: into.to_owned(), id });
        };
        let mut dirty = Dirty::default();
        dirty.add(Key::CopyRange(id));
        if !copy.goes_on() {
            self.copy_ranges.remove(&id);
        } else {
            copy.failed = Some(CANCELLED.to_owned());
            self.give_up(now, volume, Purpose::Copy(id), &mut dirty);
        }
        Ok(((), self.seal(dirty)))
    }

    /// Its primaries are told to stop: a copy, or a rollback, is over before it is done.
    pub(crate) fn give_up(&mut self, now: Millis, volume: VolumeId, what: Purpose, dirty: &mut Dirty) {
        self.close_orders(volume, Some(what), dirty);
        let at = self.next_commit();
        if let Some(record) = self.volumes.get_mut(&volume) {
            record.given_up_at = at;
            dirty.add(Key::Volume(volume));
        }
        for node in self.primaries_before(now, volume, at) {
            self.tell(node, at);
        }
    }

    /// Refused while a primary may change the volume for the sake of a copy into it, or of what was given up and it has not heard that.
    pub(crate) fn check_unchanging(&self, now: Millis, volume: &VolumeRecord) -> Result<(), Error> {
        let busy = |what| Err(Error::Busy { name: volume.name.clone(), what });
        if self.copy_ranges.values().any(|copy| copy.into == volume.id && copy.goes_on()) {
            return busy("is being copied into");
        }
        let told = volume.given_up_at;
        if told > Commit(0) && !self.primaries_before(now, volume.id, told).is_empty() {
            return busy("may still be changed by what was cancelled, until all its primaries have heard of that");
        }
        Ok(())
    }

    pub(crate) fn copy_stands(&mut self, now: Millis, job: OrderId, said: &OrderReport, dirty: &mut Dirty) {
        let Some(copy) = self.copy_ranges.get_mut(&job) else { return };
        let index = said.shard.index;
        match &said.state {
            OrderState::Running { next, .. } => {
                if copy.left.get(&index).is_some_and(|left| left_from(*left, *next).is_some()) {
                    self.order_reaches(now, said.id, *next, dirty);
                }
            }
            OrderState::Done { .. } => {
                copy.left.remove(&index);
                // It stays listed, so that who follows it does not have to guess what became of it.
                copy.done = copy.left.is_empty().then_some(now);
                dirty.add(Key::CopyRange(job));
                self.close_order(said.id, dirty);
            }
            OrderState::Failed(why) => {
                let why: String = format!("{}: {why}", said.shard).chars().take(MAX_REASON).collect();
                copy.failed = Some(why);
                let into = copy.into;
                dirty.add(Key::CopyRange(job));
                self.give_up(now, into, Purpose::Copy(job), dirty);
            }
        }
    }

    /// So far is a shard of it.
    pub(crate) fn keep_copy(&mut self, job: OrderId, shard: ShardId, reached: Blocks, dirty: &mut Dirty) {
        if let Some(left) = self.copy_ranges.get_mut(&job).and_then(|copy| copy.left.get_mut(&shard.index))
            && let Some(less) = left_from(*left, reached)
        {
            *left = less;
            dirty.add(Key::CopyRange(job));
        }
    }

    pub(crate) fn schedule_copy_ranges(&mut self, now: Millis, dirty: &mut Dirty) {
        let old = |copy: &CopyRangeRecord| copy.done.is_some_and(|done| now.since(done) >= DONE_SHOWN_MS);
        for (id, _) in self.copy_ranges.extract_if(.., |_, copy| old(copy)) {
            dirty.add(Key::CopyRange(id));
        }
        let mut due = Vec::new();
        for copy in self.copy_ranges.values().filter(|c| c.goes_on()) {
            for (index, at) in &copy.left {
                let shard = ShardId { volume: copy.into, index: *index };
                if !self.orders.is_spoken_for(Purpose::Copy(copy.id), shard, now) {
                    let from = ShardId { volume: copy.source, index: *index };
                    let from = ShardSnapshot { shard: from, snapshot: copy.snapshot };
                    // Who has the source is said when it is handed out.
                    let what = ShardOrder::CopyRange { from, at: *at, holders: Vec::new() };
                    due.push((shard, what, Purpose::Copy(copy.id)));
                }
            }
        }
        for (shard, what, purpose) in due {
            self.open_order(shard, what, purpose, dirty);
        }
    }

    /// The copies of a source's shard that have its snapshots whole, and where they are now.
    pub(crate) fn holders(&self, source: ShardId) -> Vec<Member> {
        let config = self.shards.get(&source).map(|s| self.with_endpoints(&s.config));
        config.map(|config| config.in_sync_members().cloned().collect()).unwrap_or_default()
    }

    /// A deleted volume is not copied into any more.
    pub(crate) fn remove_copy_ranges(&mut self, into: VolumeId, dirty: &mut Dirty) {
        let ids: Vec<OrderId> = self.copy_ranges.values().filter(|c| c.into == into).map(|c| c.id).collect();
        for id in ids {
            self.copy_ranges.remove(&id);
            dirty.add(Key::CopyRange(id));
        }
    }

    fn copy_range_info(&self, copy: &CopyRangeRecord) -> CopyRangeInfo {
        let left = copy.left.iter().map(|(index, left)| {
            let shard = ShardId { volume: copy.into, index: *index };
            left_from(*left, self.orders.reached(Purpose::Copy(copy.id), shard)).unwrap_or(*left).count.bytes().0
        });
        let left: u64 = left.sum();
        CopyRangeInfo {
            id: copy.id,
            source: self.snapshot_name(copy.source, copy.snapshot),
            volume: self.volumes.get(&copy.into).map(|v| v.name.clone()).unwrap_or_default(),
            offset: copy.offset,
            length: copy.length,
            started: copy.started,
            progress: Progress {
                done: copy.length.0.saturating_sub(left),
                of: copy.length.0,
                reasons: self.orders.reasons(Purpose::Copy(copy.id), copy.into),
            },
            failed: copy.failed.clone(),
            done: copy.done.is_some(),
        }
    }

    fn make_room_for_copy(&self) -> Result<(), Error> {
        if self.copy_ranges.len() >= MAX_COPY_RANGES && self.copy_ranges.values().all(CopyRangeRecord::goes_on) {
            return Err(Error::Limit { what: "copies at once", limit: MAX_COPY_RANGES });
        }
        Ok(())
    }

    fn drop_oldest_ended(&mut self, dirty: &mut Dirty) {
        let oldest = self.copy_ranges.values().find(|c| !c.goes_on()).map(|c| c.id);
        if let Some(id) = oldest {
            self.copy_ranges.remove(&id);
            dirty.add(Key::CopyRange(id));
        }
    }
}

/// What is left of a range when so much is done, if that is some of it and not all.
fn left_from(left: BlockRange, reached: Blocks) -> Option<BlockRange> {
    let within = left.from < reached && u64::from(reached.0) < left.end();
    within.then(|| BlockRange { from: reached, count: Blocks(left.count.0 - (reached.0 - left.from.0)) })
}

/// The blocks of each shard that `offset..end` touches; all are whole.
fn parts(shard_size: u64, offset: u64, end: u64) -> BTreeMap<ShardIndex, BlockRange> {
    let mut parts = BTreeMap::new();
    let mut at = offset;
    while at < end {
        let index = at / shard_size;
        let stop = end.min((index + 1) * shard_size);
        let range = BlockRange::covering(Bytes(at % shard_size), Bytes(stop - at));
        if let (Ok(index), Some(range)) = (u32::try_from(index), range) {
            parts.insert(ShardIndex(index), range);
        }
        at = stop;
    }
    parts
}
