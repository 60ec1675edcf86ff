//! The store while it serves: operations, group commit, reads.

use super::background::{Checkpointer, Place};
use super::checkpoint::Header;
use super::copies::{Copies, apply};
use super::limits::{CHUNK, GROUP_PAGES, MAX_UNSETTLED, SEALED_HEAD};
use super::log::Log;
use super::log_page::PageHead;
use super::reads::Look;
use super::record::Record;
use super::slots::{Runs, Slot, Slots};
use super::{Kind, tag, untag};
use crate::configuration::blocks_of;
use crate::{
    Counters, DiskOut, FillMark, Leeway, MAX_IN_FLIGHT, MAX_REQUEST_BLOCKS, Store, StoreDone, StoreError, StoreOp, Tag,
    Usage, View,
};
use conductor_model::{BLOCK, BlockRange, Blocks, Configuration, CopyId, DiskId, SnapshotId, Stamp};
use driver::{Done, Errno, Op, Part, Span, Time};
use memory::{Arena, Class, Filling, Reads};
use slab::Slab;
use smallvec::smallvec;
use std::collections::VecDeque;

/// How long to wait before asking again for memory that nothing else will bring.
const RETRY: Span = Span::millis(1);

/// Where a change stands. Its data is on its way from `Queued` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits for slots that are coming back.
    NoSlots,
    /// Its record waits for the next log write.
    Queued,
    /// Its record is being written.
    Flying,
    /// Its record is durable.
    Durable,
}

#[derive(Debug)]
pub(super) struct Change {
    tag: Tag,
    record: Record,
    stage: Stage,
    /// Data writes that are out.
    data_left: u32,
    /// Its record's number, once it is in a page.
    number: Option<u64>,
    /// Blocks it adds to what is held.
    growth: u32,
    /// Its data, while it waits for slots.
    data: Option<Reads>,
}

#[derive(Debug)]
pub(super) enum Pending {
    Change(Change),
    Look(Look),
}

/// The simple engine, serving one disk. See the module's head.
#[derive(Debug)]
pub struct SimpleStore {
    pub(super) place: Place,
    arena: Arena,
    pub(super) copies: Copies,
    slots: Slots,
    /// Blocks held by all copies.
    live: u32,
    /// Blocks that writes in flight will add.
    promised: u32,
    /// Copies that creates in flight will add.
    creating: u32,
    pub(super) pending: Slab<Pending>,
    no_slots: VecDeque<usize>,
    log: Log,
    log_buffer: Option<Filling>,
    checkpointer: Checkpointer,
    finished: VecDeque<(Tag, Result<StoreDone, StoreError>)>,
    pub(super) failed: Option<Errno>,
    pub(super) outstanding: usize,
    retry: Option<Time>,
    pub(super) counters: Counters,
    /// Encoded records of a page, kept for its memory.
    scratch: Vec<u8>,
}

impl SimpleStore {
    /// From a recovered state: serves when its first checkpoint, into the area that is not `area`, is complete.
    pub(super) fn recovered(
        place: Place,
        arena: Arena,
        copies: Copies,
        slots: Slots,
        area: usize,
        header: Header,
    ) -> Self {
        let live = copies.values().map(|copy| copy.map.mapped()).sum();
        Self {
            place,
            arena,
            copies,
            slots,
            live,
            promised: 0,
            creating: 0,
            pending: Slab::new(),
            no_slots: VecDeque::new(),
            log: Log::starting(header.generation, header.first_sequence, header.first_record),
            log_buffer: None,
            checkpointer: Checkpointer::begun(area, header),
            finished: VecDeque::new(),
            failed: None,
            outstanding: 0,
            retry: None,
            counters: Counters::default(),
            scratch: Vec::new(),
        }
    }

    /// True when the newest checkpoint is complete.
    pub(super) fn is_settled(&self) -> bool {
        self.checkpointer.is_idle()
    }

    /// Whose disk it is.
    pub fn disk_id(&self) -> DiskId {
        self.place.identity.disk
    }

    /// What the disk failed with, if it did.
    pub fn failure(&self) -> Option<Errno> {
        self.failed
    }

    pub(super) fn finish(&mut self, tag: Tag, result: Result<StoreDone, StoreError>) {
        self.finished.push_back((tag, result));
    }

    fn check(&mut self, op: &StoreOp) -> Result<(), StoreError> {
        if let Some(errno) = self.failed {
            return Err(StoreError::Disk(errno));
        }
        if self.pending.len() >= MAX_IN_FLIGHT {
            return Err(StoreError::Busy);
        }
        match op {
            StoreOp::Create { copy, config, parent } => {
                blocks_of(config).ok_or(StoreError::BadConfiguration(*copy))?;
                let copies = self.copies.len() + self.creating as usize;
                if !self.copies.contains_key(copy) && copies >= self.place.geometry.max_copies() as usize {
                    return Err(StoreError::TooManyCopies);
                }
                parent.is_none().then_some(()).ok_or(StoreError::Unsupported("clone"))
            }
            StoreOp::Join { copy, config } => {
                let here = &self.copies.get(copy).ok_or(StoreError::NoSuchCopy(*copy))?.config;
                if config.epoch < here.epoch {
                    return Err(StoreError::OlderEpoch { copy: *copy, held: here.epoch, given: config.epoch });
                }
                if blocks_of(config).is_none() || config.size < here.size {
                    return Err(StoreError::BadConfiguration(*copy));
                }
                Ok(())
            }
            StoreOp::Delete { copy } | StoreOp::Above { copy } | StoreOp::KnownGood { copy, .. } => {
                self.copies.contains_key(copy).then_some(()).ok_or(StoreError::NoSuchCopy(*copy))
            }
            StoreOp::Write { copy, at, data, crcs, .. } => {
                self.check_request(*copy, *at, data.len())?;
                if crcs.len() != at.count.0 as usize {
                    return Err(StoreError::BadLength { at: *at });
                }
                if self.growth(*copy, *at) > self.place.geometry.capacity().saturating_sub(self.live + self.promised) {
                    self.counters.no_space += 1;
                    return Err(StoreError::NoSpace);
                }
                Ok(())
            }
            StoreOp::Zero { copy, at, .. } => {
                let state = self.copies.get(copy).ok_or(StoreError::NoSuchCopy(*copy))?;
                state.contains(*at).then_some(()).ok_or(StoreError::OutOfRange { copy: *copy, at: *at })
            }
            StoreOp::Read { copy, view: View::Live, at, into } => self.check_request(*copy, *at, into.len()),
            StoreOp::Flush { copy } => {
                self.copies.contains_key(copy).then_some(()).ok_or(StoreError::NoSuchCopy(*copy))
            }
            StoreOp::Read { .. }
            | StoreOp::Snapshot { .. }
            | StoreOp::Rollback { .. }
            | StoreOp::DropSnapshot { .. }
            | StoreOp::Share { .. }
            | StoreOp::Flatten { .. }
            | StoreOp::Repair { .. }
            | StoreOp::Changed { .. }
            | StoreOp::Mark { .. }
            | StoreOp::Lose { .. }
            | StoreOp::Extents { .. } => Err(StoreError::Unsupported("keep snapshots or versions, share or repair")),
        }
    }

    fn check_request(&self, copy: CopyId, at: BlockRange, len: usize) -> Result<(), StoreError> {
        let state = self.copies.get(&copy).ok_or(StoreError::NoSuchCopy(copy))?;
        if !state.contains(at) || at.count.0 > MAX_REQUEST_BLOCKS {
            return Err(StoreError::OutOfRange { copy, at });
        }
        (len == at.count.0 as usize * BLOCK).then_some(()).ok_or(StoreError::BadLength { at })
    }

    /// Blocks of the range that hold nothing yet.
    fn growth(&self, copy: CopyId, at: BlockRange) -> u32 {
        let mapped = |state: &super::copies::CopyRecord| {
            (0..at.count.0).filter(|n| state.map.get(at.from.0 + n).is_some()).map(|_| 1).sum::<u32>()
        };
        at.count.0 - self.copies.get(&copy).map_or(0, mapped)
    }

    /// K grows in memory; what it is now rides in the next record.
    fn advance(&mut self, copy: CopyId, known_good: Stamp) -> Stamp {
        self.copies.get_mut(&copy).map_or(known_good, |state| {
            state.advance(known_good);
            state.known_good
        })
    }

    fn is_near_full(&self) -> bool {
        let capacity = self.place.geometry.capacity();
        capacity - capacity.min(self.live + self.promised) < capacity / 16
    }

    fn change(&mut self, tag: Tag, record: Record) -> usize {
        let growth = match &record {
            Record::Write { copy, at, .. } => self.growth(*copy, *at),
            _ => 0,
        };
        self.promised += growth;
        self.creating += u32::from(matches!(record, Record::Create { .. }));
        let change = Change { tag, record, stage: Stage::Queued, data_left: 0, number: None, growth, data: None };
        self.pending.insert(Pending::Change(change))
    }

    /// Give a write its slots, start its data and queue its record; `false` if slots are short.
    fn start_write(&mut self, key: usize, data: &Reads, out: &mut DiskOut<'_>) -> bool {
        let Some(Pending::Change(change)) = self.pending.get_mut(key) else { return true };
        let Record::Write { at, runs, .. } = &mut change.record else { return true };
        let Some(taken) = self.slots.take(at.count.0) else { return false };
        let mut from = 0;
        for run in &taken {
            let len = run.count as usize * BLOCK;
            let parts = smallvec![Part { mem: data.share(), from, len }];
            let at = self.place.geometry.slot(run.from);
            out(Op::DiskWrite { disk: self.place.disk, tag: tag(Kind::Data, key), at, parts, durable: true });
            change.data_left += 1;
            self.outstanding += 1;
            from += len;
        }
        *runs = taken;
        change.stage = Stage::Queued;
        self.log.queue.push_back(key);
        true
    }

    fn start_waiting_writes(&mut self, out: &mut DiskOut<'_>) {
        while let Some(&key) = self.no_slots.front() {
            if let Some(Pending::Change(change)) = self.pending.get_mut(key)
                && let Some(data) = change.data.take()
                && !self.start_write(key, &data, out)
            {
                if let Some(Pending::Change(change)) = self.pending.get_mut(key) {
                    change.data = Some(data);
                }
                return;
            }
            self.no_slots.pop_front();
        }
    }

    /// Finish a change if nothing of it is out and its fate is known.
    fn settle(&mut self, key: usize) {
        let Some(Pending::Change(change)) = self.pending.get(key) else { return };
        if change.data_left > 0 || change.stage == Stage::Flying {
            return;
        }
        if self.failed.is_none() && change.stage != Stage::Durable {
            return;
        }
        let Pending::Change(change) = self.pending.remove(key) else { return };
        self.promised -= change.growth;
        self.creating -= u32::from(matches!(change.record, Record::Create { .. }));
        if let Some(errno) = self.failed {
            // Its slots stay taken and its record incomplete: what is on the disk is for the next opening to say.
            return self.finish(change.tag, Err(StoreError::Disk(errno)));
        }
        let (slots, live) = (&mut self.slots, &mut self.live);
        // The record is durable and complete, so recovery will not map what it replaces: those slots are free now.
        let mut freed = |slot: Slot| {
            slots.release(slot);
            *live -= 1;
        };
        let here = apply(&mut self.copies, &change.record, &|_| true, &mut freed);
        let mut result = Ok(StoreDone::Done);
        match &change.record {
            Record::Write { at, .. } if here => {
                self.live += at.count.0;
                self.counters.writes += 1;
                self.counters.blocks_written += u64::from(at.count.0);
            }
            Record::Write { runs, .. } => {
                runs.iter().for_each(|run| (0..run.count).for_each(|n| self.slots.release(run.from.plus(n))));
                result = Err(StoreError::NoSuchCopy(change.record.copy()));
            }
            Record::Zero { .. } if here => self.counters.zeroes += 1,
            record if !here => result = Err(StoreError::NoSuchCopy(record.copy())),
            _ => {}
        }
        if let Some(number) = change.number {
            self.log.completed(number);
        }
        self.finish(change.tag, result);
    }

    /// The disk failed: nothing is written any more, everything ends with the error as soon as it is back.
    fn fail(&mut self, errno: Errno) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(errno);
        self.log.queue.clear();
        self.no_slots.clear();
        let keys: Vec<usize> = self.pending.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.settle(key));
    }

    /// Write all queued records that fit one group.
    fn pump_log(&mut self, now: Time, out: &mut DiskOut<'_>) {
        if self.log.in_flight || self.log.queue.is_empty() || self.failed.is_some() {
            return;
        }
        if self.log.page == self.place.geometry.log_pages() {
            if !self.checkpointer.is_idle() {
                self.counters.journal_waits += 1;
                return;
            }
            self.log.switch();
            self.counters.folds += 1;
            self.checkpointer.begin(Header {
                generation: self.log.generation,
                chunks: 0,
                first_sequence: self.log.sequence,
                first_record: self.log.next_record(),
            });
        }
        if self.log.unsettled() >= MAX_UNSETTLED {
            return;
        }
        let Some(mut buffer) = self.log_buffer.take().or_else(|| self.arena.take(CHUNK, Class::Settle)) else {
            self.retry = Some(now + RETRY);
            return;
        };
        let room = (self.place.geometry.log_pages() - self.log.page) as usize;
        let group = self.log.sequence;
        let at = self.place.geometry.log_page(self.log.generation, self.log.page);
        let mut len = 0;
        for page in buffer.chunks_mut(BLOCK).take(room.min(GROUP_PAGES)) {
            if self.log.queue.is_empty() {
                break;
            }
            self.fill_page(group, page);
            len += BLOCK;
        }
        self.counters.groups += 1;
        self.log.in_flight = true;
        self.outstanding += 1;
        let parts = smallvec![Part { mem: buffer.filled(), from: 0, len }];
        out(Op::DiskWrite { disk: self.place.disk, tag: tag(Kind::Log, 0), at, parts, durable: true });
    }

    fn fill_page(&mut self, group: u64, page: &mut [u8]) {
        let mut head = PageHead {
            disk: self.place.identity.disk,
            generation: self.log.generation,
            sequence: self.log.sequence,
            group,
            first_record: self.log.next_record(),
            watermark: self.log.watermark(),
            records: 0,
        };
        self.scratch.clear();
        while let Some(&key) = self.log.queue.front() {
            let before = self.scratch.len();
            if let Some(Pending::Change(change)) = self.pending.get_mut(key) {
                change.record.encode(&mut self.scratch);
                // A single record always fits a page: see `MAX_REQUEST_BLOCKS` and `MAX_ITEM`.
                if self.scratch.len() > BLOCK - SEALED_HEAD {
                    self.scratch.truncate(before);
                    break;
                }
                change.stage = Stage::Flying;
                change.number = Some(self.log.number());
                head.records += 1;
                self.log.flying.push(key);
                self.counters.records += 1;
            }
            self.log.queue.pop_front();
        }
        head.encode(&self.scratch, page);
        self.log.page += 1;
        self.log.sequence += 1;
    }

    fn log_done(&mut self) {
        self.log.in_flight = false;
        for key in std::mem::take(&mut self.log.flying) {
            if let Some(Pending::Change(change)) = self.pending.get_mut(key) {
                change.stage = Stage::Durable;
            }
            self.settle(key);
        }
    }

    fn data_done(&mut self, key: usize) {
        if let Some(Pending::Change(change)) = self.pending.get_mut(key) {
            change.data_left = change.data_left.saturating_sub(1);
        }
        self.settle(key);
    }
}

/// The memory of a write that is over, to be used again.
fn memory_of(op: Op) -> Option<Filling> {
    match op {
        Op::DiskWrite { parts, .. } => parts.into_iter().next().and_then(|part| part.mem.try_filling().ok()),
        _ => None,
    }
}

impl Store for SimpleStore {
    fn submit(&mut self, _now: Time, tag: Tag, op: StoreOp, out: &mut DiskOut<'_>) {
        if let Err(error) = self.check(&op) {
            return self.finish(tag, Err(error));
        }
        let record = match op {
            StoreOp::Create { copy, .. } if self.copies.contains_key(&copy) => {
                return self.finish(tag, Ok(StoreDone::Done));
            }
            StoreOp::Create { copy, config, .. } => Record::Create { copy, config },
            StoreOp::Join { copy, config } => Record::Join { copy, config },
            StoreOp::Delete { copy } => Record::Delete { copy },
            StoreOp::Zero { copy, stamp, at, known_good, .. } => {
                let known_good = self.advance(copy, known_good);
                Record::Zero { copy, stamp, known_good, at }
            }
            StoreOp::Write { copy, stamp, at, data, crcs, known_good, .. } => {
                let known_good = self.advance(copy, known_good);
                self.counters.near_full += u64::from(self.is_near_full());
                let key = self.change(tag, Record::Write { copy, stamp, known_good, at, runs: Runs::new(), crcs });
                if !(self.no_slots.is_empty() && self.start_write(key, &data, out))
                    && let Some(Pending::Change(change)) = self.pending.get_mut(key)
                {
                    change.stage = Stage::NoSlots;
                    change.data = Some(data);
                    self.no_slots.push_back(key);
                    self.counters.space_waits += 1;
                }
                return;
            }
            StoreOp::Read { copy, at, into, .. } => return self.start_read(tag, copy, at, into, out),
            // Every change of this engine is durable when it is over.
            StoreOp::Flush { .. } => return self.finish(tag, Ok(StoreDone::Done)),
            // Refused by `check`.
            StoreOp::Snapshot { .. }
            | StoreOp::Rollback { .. }
            | StoreOp::DropSnapshot { .. }
            | StoreOp::Share { .. }
            | StoreOp::Flatten { .. }
            | StoreOp::Repair { .. }
            | StoreOp::Changed { .. }
            | StoreOp::Mark { .. }
            | StoreOp::Lose { .. }
            | StoreOp::Extents { .. } => return self.finish(tag, Err(StoreError::Unsupported("do that"))),
            StoreOp::Above { copy } => {
                let state = self.copies.get(&copy).ok_or(StoreError::NoSuchCopy(copy));
                let above = state.map(|s| StoreDone::Above { known_good: s.known_good, held: s.held.clone() });
                return self.finish(tag, above);
            }
            StoreOp::KnownGood { copy, stamp } => {
                self.advance(copy, stamp);
                return self.finish(tag, Ok(StoreDone::Done));
            }
        };
        let key = self.change(tag, record);
        self.log.queue.push_back(key);
    }

    fn done(&mut self, _now: Time, done: Done, out: &mut DiskOut<'_>) {
        let Done { op, result } = done;
        let (disk, name, expected) = match &op {
            Op::DiskRead { disk, tag, len, .. } => (*disk, *tag, *len),
            Op::DiskWrite { disk, tag, parts, .. } => (*disk, *tag, parts.iter().map(|part| part.len).sum()),
            Op::DiskSync { disk, tag } => (*disk, *tag, 0),
            _ => (self.place.disk, u64::MAX, 0),
        };
        let Some((kind, key)) = untag(name).filter(|_| disk == self.place.disk && self.outstanding > 0) else {
            self.counters.strays += 1;
            return;
        };
        self.outstanding -= 1;
        let failure = match result {
            Ok(bytes) if expected == 0 || bytes as usize == expected => None,
            Ok(_) => Some(Errno::IO),
            Err(errno) => Some(errno),
        };
        self.counters.disk_errors += u64::from(failure.is_some());
        if let (Some(errno), true) = (failure, kind != Kind::Read) {
            self.fail(errno);
        }
        match kind {
            Kind::Data => self.data_done(key),
            Kind::Log => {
                self.log_buffer = memory_of(op);
                self.log_done();
            }
            Kind::Checkpoint => {
                if failure.is_none() && self.checkpointer.done(memory_of(op)) {
                    self.counters.checkpoints += 1;
                }
            }
            Kind::Read => {
                let Op::DiskRead { into, .. } = op else { return };
                match failure {
                    None => self.continue_read(key, into, out),
                    // A read that fails leaves the disk trusted: nothing was lost that a checksum would not show.
                    Some(errno) => {
                        if let Some(Pending::Look(look)) = self.pending.try_remove(key) {
                            self.finish(look.tag, Err(StoreError::Disk(errno)));
                        }
                    }
                }
            }
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut DiskOut<'_>) {
        if self.failed.is_some() {
            return;
        }
        self.retry = None;
        self.start_waiting_writes(out);
        self.pump_log(now, out);
        let (watermark, mut started) = (self.log.watermark(), 0);
        let mut counted = |op| {
            started += 1;
            out(op);
        };
        match self.checkpointer.pump(&self.place, &self.arena, &self.copies, watermark, &mut counted) {
            Ok(true) => {}
            Ok(false) => self.retry = Some(now + RETRY),
            Err(errno) => self.fail(errno),
        }
        self.outstanding += started;
    }

    fn next_completion(&mut self) -> Option<(Tag, Result<StoreDone, StoreError>)> {
        self.finished.pop_front()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.retry.filter(|_| self.failed.is_none())
    }

    /// All its metadata is in memory, and written anew by each checkpoint.
    fn patrol(&mut self, _looked_through: Blocks) {}

    fn idle(&self) -> bool {
        let background = self.failed.is_some() || self.checkpointer.is_idle();
        self.pending.is_empty() && self.finished.is_empty() && self.outstanding == 0 && background
    }

    fn usage(&self) -> Usage {
        Usage {
            capacity: Blocks(self.place.geometry.capacity()),
            used: Blocks(self.live),
            copies: u32::try_from(self.copies.len()).unwrap_or(u32::MAX),
            max_copies: self.place.geometry.max_copies(),
            near_full: self.is_near_full(),
        }
    }

    fn leeway(&self) -> Leeway {
        Leeway::ANY
    }

    fn copies(&self) -> Vec<(CopyId, Configuration)> {
        self.copies.iter().map(|(id, copy)| (*id, copy.config.clone())).collect()
    }

    fn snapshots(&self, _copy: CopyId) -> Vec<SnapshotId> {
        Vec::new()
    }

    fn fill_mark(&self, _copy: CopyId) -> FillMark {
        FillMark::default()
    }
    fn used_by(&self, copy: CopyId) -> Blocks {
        Blocks(self.copies.get(&copy).map_or(0, |copy| copy.map.mapped()))
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
