//! Scrubs: everything on every copy is read now and then, and what does not read as it was written is put right.
//!
//! Each shard's primary does its shard, at most one on a node at a time. How far it is, now and then, and what was found is persisted, so
//! that a restart repeats little. Every volume is scrubbed once in `scrub_every`, unless that is off.

use crate::api::{OrderReport, OrderState, ShardOrder};
use crate::limits::{MIN_SCRUB_RATE, SCRUB_RATE};
use crate::orders::{Open, Purpose, counted};
use crate::record::ScrubRecord;
use crate::views::{Progress, Scrub, ScrubInfo, ScrubState, ScrubVerb, VolumeState};
use crate::{Blocks, Bytes, Conductor, Dirty, Error, Key, Millis, NodeId, ShardId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

impl Conductor {
    /// How often every volume is scrubbed, in milliseconds; `None` is never. Not persisted: whoever runs the conductor says it.
    pub fn set_scrub_every(&mut self, every_ms: Option<u64>) {
        self.scrub_every = every_ms;
    }

    /// Starts, pauses, resumes or cancels a volume's scrub.
    pub fn change_scrub(&mut self, now: Millis, name: &str, scrub: &Scrub) -> Result<(ScrubInfo, Dirty), Error> {
        self.check_trusted()?;
        let id = self.volume(name)?.id;
        if let Some(rate) = scrub.rate.filter(|rate| *rate < MIN_SCRUB_RATE) {
            return Err(Error::Invalid(format!("a scrub reads at least {MIN_SCRUB_RATE} per second, not {rate}")));
        }
        let state = self.scrubs.get(&id).map_or(ScrubState::Idle, |s| s.state);
        let refuse = |what| Err(Error::NoScrub { name: name.to_owned(), what });
        let mut dirty = Dirty::default();
        match (scrub.verb, state) {
            (ScrubVerb::Start, ScrubState::Idle) => {
                self.check_settled(name, id)?;
                self.begin_scrub(now, id, &mut dirty);
            }
            (ScrubVerb::Start | ScrubVerb::Resume, ScrubState::Running | ScrubState::Paused) => {
                self.turn_scrub(id, ScrubState::Running, &mut dirty);
            }
            (ScrubVerb::Pause, ScrubState::Running | ScrubState::Paused) => {
                self.turn_scrub(id, ScrubState::Paused, &mut dirty);
            }
            (ScrubVerb::Cancel, ScrubState::Running | ScrubState::Paused) => {
                self.turn_scrub(id, ScrubState::Idle, &mut dirty);
                if let Some(record) = self.scrubs.get_mut(&id) {
                    record.left.clear();
                }
            }
            (ScrubVerb::Resume, ScrubState::Idle) => return refuse("has no scrub to resume"),
            (ScrubVerb::Pause, ScrubState::Idle) => return refuse("has no scrub to pause"),
            (ScrubVerb::Cancel, ScrubState::Idle) => return refuse("has no scrub to cancel"),
        }
        if let (Some(rate), Some(record)) = (scrub.rate, self.scrubs.get_mut(&id)) {
            record.rate = rate;
        }
        self.schedule(now, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.scrub(name)?, dirty))
    }

    /// How a volume's scrubs stand.
    pub fn scrub(&self, name: &str) -> Result<ScrubInfo, Error> {
        let id = self.volume(name)?.id;
        let none = || ScrubInfo {
            volume: name.to_owned(),
            state: ScrubState::Idle,
            rate: SCRUB_RATE,
            started: None,
            finished: None,
            progress: Progress { done: 0, of: 0, reasons: Vec::new() },
            damaged: 0,
            repaired: 0,
            damaged_ever: 0,
            repaired_ever: 0,
        };
        Ok(self.scrub_info(id).unwrap_or_else(none))
    }

    pub(crate) fn scrub_info(&self, volume: VolumeId) -> Option<ScrubInfo> {
        let record = self.scrubs.get(&volume)?;
        let left = record.left.iter().filter_map(|(index, next)| {
            let shard = ShardId { volume, index: *index };
            let next = self.orders.reached(Purpose::Scrub, shard).max(*next);
            Some(self.shards.get(&shard)?.config.size.0.saturating_sub(next.bytes().0))
        });
        let left: u64 = left.sum();
        Some(ScrubInfo {
            volume: self.volumes.get(&volume).map(|v| v.name.clone()).unwrap_or_default(),
            state: record.state,
            rate: record.rate,
            started: record.started,
            finished: record.finished,
            progress: Progress {
                done: record.of.0.saturating_sub(left),
                of: record.of.0,
                reasons: self.orders.reasons(Purpose::Scrub, volume),
            },
            damaged: record.damaged,
            repaired: record.repaired,
            damaged_ever: record.damaged_ever,
            repaired_ever: record.repaired_ever,
        })
    }

    fn begin_scrub(&mut self, now: Millis, volume: VolumeId, dirty: &mut Dirty) {
        let left: BTreeMap<_, _> = self.shards_of(volume).map(|s| (s.config.shard.index, Blocks(0))).collect();
        let of = self.volumes.get(&volume).map_or(Bytes(0), |v| v.size);
        let before = self.scrubs.get(&volume);
        let record = ScrubRecord {
            volume,
            state: ScrubState::Running,
            rate: before.map_or(SCRUB_RATE, |b| b.rate),
            started: Some(now),
            finished: before.and_then(|b| b.finished),
            of,
            left,
            damaged: 0,
            repaired: 0,
            damaged_ever: before.map_or(0, |b| b.damaged_ever),
            repaired_ever: before.map_or(0, |b| b.repaired_ever),
        };
        self.scrubs.insert(volume, record);
        dirty.add(Key::Scrub(volume));
    }

    /// Changes what is under way; its orders are over, and given anew if it goes on.
    fn turn_scrub(&mut self, volume: VolumeId, to: ScrubState, dirty: &mut Dirty) {
        self.close_orders(volume, Some(Purpose::Scrub), dirty);
        if let Some(record) = self.scrubs.get_mut(&volume) {
            record.state = to;
            dirty.add(Key::Scrub(volume));
        }
    }

    pub(crate) fn scrub_stands(&mut self, now: Millis, open: &Open, said: &OrderReport, dirty: &mut Dirty) {
        let volume = said.shard.volume;
        let Some(record) = self.scrubs.get_mut(&volume) else { return };
        let (damaged, repaired) = counted(&said.state);
        let new = (damaged.saturating_sub(open.counted.0), repaired.saturating_sub(open.counted.1));
        if new != (0, 0) {
            record.damaged += new.0;
            record.damaged_ever += new.0;
            record.repaired += new.1;
            record.repaired_ever += new.1;
            dirty.add(Key::Scrub(volume));
        }
        match &said.state {
            OrderState::Running { next, .. } => {
                self.order_reaches(now, said.id, *next, dirty);
                if new != (0, 0) {
                    // Else it would be found, and counted, again after a restart.
                    self.keep_scrub(said.shard, *next, dirty);
                }
                if let Some(open) = self.orders.open.get_mut(&said.id) {
                    open.counted = (open.counted.0.max(damaged), open.counted.1.max(repaired));
                }
            }
            OrderState::Done { .. } => {
                record.left.remove(&said.shard.index);
                if record.left.is_empty() {
                    record.state = ScrubState::Idle;
                    record.finished = Some(now);
                }
                dirty.add(Key::Scrub(volume));
                self.close_order(said.id, dirty);
            }
            OrderState::Failed(why) => self.pause_order(now, said, why, dirty),
        }
    }

    /// So far is a shard's scrub.
    pub(crate) fn keep_scrub(&mut self, shard: ShardId, reached: Blocks, dirty: &mut Dirty) {
        let record = self.scrubs.get_mut(&shard.volume);
        if let Some(left) = record.and_then(|record| record.left.get_mut(&shard.index)).filter(|left| **left < reached)
        {
            *left = reached;
            dirty.add(Key::Scrub(shard.volume));
        }
    }

    /// One shard for every node that has none, and is heard.
    pub(crate) fn schedule_scrubs(&mut self, now: Millis, dirty: &mut Dirty) {
        if self.scrubs.values().all(|s| s.state != ScrubState::Running) {
            return;
        }
        let busy = self.scrubbing_nodes();
        let mut free: BTreeSet<NodeId> =
            self.nodes.keys().filter(|n| self.is_up(**n, now) && !busy.contains(n)).copied().collect();
        let mut due = Vec::new();
        for scrub in self.scrubs.values().filter(|s| s.state == ScrubState::Running) {
            if free.is_empty() {
                break;
            }
            for (index, next) in &scrub.left {
                let shard = ShardId { volume: scrub.volume, index: *index };
                let Some(node) = self.primary_node(shard).filter(|node| free.contains(node)) else { continue };
                if !self.orders.is_spoken_for(Purpose::Scrub, shard, now) {
                    free.remove(&node);
                    due.push((shard, ShardOrder::Scrub { from: *next, rate: scrub.rate }));
                }
            }
        }
        for (shard, what) in due {
            self.open_order(shard, what, Purpose::Scrub, dirty);
        }
    }

    /// Volumes whose last scrub began long ago.
    pub(crate) fn begin_daily_scrubs(&mut self, now: Millis, dirty: &mut Dirty) {
        let Some(every) = self.scrub_every else { return };
        // What is to come farther ahead than that was written by a clock that was wrong, or this one is.
        let is_due = |due: Millis| due <= now || due.since(now) > every.saturating_mul(2);
        let due: Vec<VolumeId> = self.scrubs_due().filter(|(_, due)| is_due(*due)).map(|(volume, _)| volume).collect();
        for volume in due {
            self.begin_scrub(now, volume, dirty);
        }
    }

    pub(crate) fn next_daily_scrub(&self) -> Option<Millis> {
        self.scrubs_due().map(|(_, due)| due).min()
    }

    /// When each volume that can be scrubbed, and is not, is to be.
    fn scrubs_due(&self) -> impl Iterator<Item = (VolumeId, Millis)> {
        let every = self.scrub_every;
        let active = self.volumes.values().filter(|v| v.state == VolumeState::Active);
        active.filter_map(move |volume| {
            let scrub = self.scrubs.get(&volume.id);
            let idle = scrub.is_none_or(|s| s.state == ScrubState::Idle);
            let last = scrub.and_then(|s| s.started).unwrap_or(volume.created);
            let due = every.filter(|_| idle).map(|every| (volume.id, Millis(last.0.saturating_add(every))))?;
            let settled = self.shards_of(volume.id).all(|s| s.config.born && s.distrusted.is_none());
            settled.then_some(due)
        })
    }

    /// A deleted volume is not scrubbed any more.
    pub(crate) fn remove_scrub(&mut self, volume: VolumeId, dirty: &mut Dirty) {
        if self.scrubs.remove(&volume).is_some() {
            dirty.add(Key::Scrub(volume));
        }
    }
}
