//! Moving blocks: from the journal home, or from a chunk to another. What does not read well is moved as it is; what cannot be read is
//! read again, at once and then second after second, before it counts as damaged, for it may be all that there is of an acknowledged write.
//!
//! ```text
//! journal:  │ window │ window │ …    the blocks of a generation, by where they are in the journal
//!             run ─read─► memory ─writes, by where they go─► home
//! ```
//! A window is cut into runs, each read in one piece, when all patches have their places. While requests come it is done little by
//! little, at their pace, and with few writes out at a time: a disk serves its queue in turns, and the journal's writes stand in it, too.
//!
//! **What was overwritten meanwhile stays where it is**: the next generation hides it, and goes home itself. So the fold does not hurry: it
//! reads a window, the oldest first, when the journal's room says that it is time, and what looks hidden by then takes none. Before the commit
//! all that hides something is stable.

use super::super::engine::{JournaledStore, Pending};
use super::super::limits::{
    GAP_BLOCKS, HOME_BLOCKS, HOME_OUT_AWAITED, HOME_OUT_LATE, HOME_PER_TURN, LOOKED_AT, MAX_PATCHES, MAX_RANGES,
    MOVE_READS, MOVING_BLOCKS, RETRY, SCARCE_BLOCKS, SCARCE_PART, SCARCE_PART_MOST, WINDOW_BLOCKS, WINDOW_PART,
};
use super::super::overlay::Key;
use super::super::ring::JournalBlock;
use super::super::{Kind, tag};
use super::Fold;
use super::course::{Pace, part};
use crate::DiskOut;
use conductor_model::BLOCK;
use driver::{DiskIndex, Errno, Op, Part, Parts, Time, mutant};
use memory::{Class, Filling};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, VecDeque};

/// A block of a piece: which, where it goes (in blocks from the first chunk on), and its plain checksum.
#[derive(Clone, Copy, Debug)]
struct Moved {
    n: u32,
    to: u32,
    crc: u32,
}

/// A piece of a disk that is read, and where its blocks go.
#[derive(Debug)]
pub(super) struct Move {
    disk: DiskIndex,
    from: u64,
    /// Blocks that are read.
    len: u32,
    /// Those of them that are moved.
    blocks: SmallVec<[Moved; 2]>,
    /// Writes that are out.
    left: u32,
    /// How often it was read in vain.
    failed: u8,
}

/// A write of blocks that were read: for which move, to which block, what.
#[derive(Debug)]
pub(super) struct Store {
    key: usize,
    to: u32,
    parts: Parts,
}

/// What a write counts as: blocks beside each other cost an eighth of those by themselves.
fn weight(parts: &[Part]) -> u32 {
    let blocks = parts.iter().map(|part| part.len).sum::<usize>() / BLOCK;
    1 + u32::try_from(blocks / 8).unwrap_or(u32::MAX - 1)
}

/// A block of the journal that goes home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Homeward {
    pub(super) from: JournalBlock,
    /// Where to, in blocks from the first chunk on.
    pub(super) to: u32,
    /// Its plain checksum.
    pub(super) crc: u32,
    /// Of which chunk, …
    pub(super) key: Key,
    /// …which block.
    pub(super) n: u8,
}

/// Blocks of the journal that go home, by window; the oldest is the first.
pub(super) type Homing = BTreeMap<u32, Vec<Homeward>>;

impl Fold {
    /// A block of the journal, which has so many, goes home when all patches have their places.
    pub(super) fn send_home(&mut self, block: Homeward, blocks: u32) {
        self.course.add();
        let age = (block.from.0 + blocks - self.tail.0) % blocks;
        let window = WINDOW_BLOCKS.min(blocks / WINDOW_PART);
        self.homing.entry(age / window).or_default().push(block);
    }

    /// True if the next window has time, and nothing else is to be read.
    fn waits(&mut self, timetable: u64) -> bool {
        let next = self.patch.is_none() && self.moves.is_empty() && !self.homing.is_empty();
        self.early = next && self.course.is_early(timetable);
        self.early
    }

    /// True if what is at this byte of a disk is, or may be, on its way home as it was: to put it right here would be undone there, where it is
    /// put right when it is home and somebody asks again.
    pub(in super::super) fn carries(&self, disk: DiskIndex, at: u64) -> bool {
        let is_read = |moving: &Move| {
            let end = moving.from + u64::from(moving.len) * BLOCK as u64;
            moving.left == 0 && moving.disk == disk && (moving.from..end).contains(&at)
        };
        let carried = self.bruised.contains(&(disk, at)) || self.moving.iter().any(|(_, moving)| is_read(moving));
        carried && !mutant::on("store-repair-undone")
    }

    /// True if something that is to be moved could not be read, and waits to be read again.
    pub(in super::super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// What could not be read is read again.
    pub(in super::super) fn read_again(&mut self) {
        self.unread.drain(..).for_each(|unread| self.moves.push_front(unread));
    }

    /// Somebody waits for what is carried to be home, or for the next fold, which forgets where that was.
    pub(in super::super) fn hurry(&mut self) {
        self.renew();
        self.urgent = true;
    }

    /// Queue a block of a chunk to be moved to another; together with the one before, if they lie together.
    pub(super) fn queue_move(&mut self, disk: DiskIndex, from: u64, to: u32, crc: u32) {
        self.course.add();
        self.course.begun += 1;
        if let Some(last) = self.moves.back_mut()
            && let Some(&before) = last.blocks.last()
        {
            let follows = last.disk == disk && last.from + u64::from(last.len) * BLOCK as u64 == from;
            if follows && before.to + 1 == to && last.len < super::super::limits::CHUNK_BLOCKS {
                last.blocks.push(Moved { n: last.len, to, crc });
                last.len += 1;
                return;
            }
        }
        self.moves.push_back(Move::of_run(disk, from, smallvec![Moved { n: 0, to, crc }]));
    }
}

/// A window's blocks, cut into runs: from which block on, and all of it.
fn runs(mut window: Vec<Homeward>) -> VecDeque<(u32, SmallVec<[Moved; 2]>)> {
    window.sort_unstable_by_key(|block| block.from);
    let mut runs: VecDeque<(u32, SmallVec<[Moved; 2]>)> = VecDeque::new();
    for Homeward { from: JournalBlock(at), to, crc, .. } in window {
        match runs.back_mut() {
            Some((start, blocks)) if blocks.last().is_some_and(|last| at - (*start + last.n) <= GAP_BLOCKS + 1) => {
                blocks.push(Moved { n: at - *start, to, crc });
            }
            _ => runs.push_back((at, smallvec![Moved { n: 0, to, crc }])),
        }
    }
    runs
}

impl Move {
    fn of_run(disk: DiskIndex, from: u64, blocks: SmallVec<[Moved; 2]>) -> Self {
        let len = blocks.last().map_or(0, |last| last.n + 1);
        Self { disk, from, len, blocks, left: 0, failed: 0 }
    }

    /// Two halves, where it has more than one block to move.
    fn halve(self) -> (Self, Option<Self>) {
        let Self { disk, from, blocks, failed, .. } = self;
        let (low, high) = blocks.split_at(blocks.len().div_ceil(2));
        let piece = |blocks: &[Moved]| {
            let first = blocks.first()?.n;
            let at = from + u64::from(first) * BLOCK as u64;
            let blocks = blocks.iter().map(|block| Moved { n: block.n - first, ..*block }).collect();
            Some(Self { failed, ..Self::of_run(disk, at, blocks) })
        };
        let second = piece(high);
        (piece(low).unwrap_or(Self::of_run(disk, from, SmallVec::new())), second)
    }

    /// What goes to the same place, in the order of places: from which block on, and the parts of the piece.
    fn writes(&mut self) -> Vec<(u32, Vec<Moved>)> {
        self.blocks.sort_unstable_by_key(|block| block.to);
        let mut writes: Vec<(u32, Vec<Moved>)> = Vec::new();
        for &block in &self.blocks {
            match writes.last_mut() {
                Some((to, blocks))
                    if *to as usize + blocks.len() == block.to as usize && blocks.len() < HOME_BLOCKS =>
                {
                    blocks.push(block);
                }
                _ => writes.push((block.to, vec![block])),
            }
        }
        writes
    }
}

impl JournaledStore {
    /// The next piece to be moved. None of a window of which all stays where it is: the one behind it is another turn's.
    fn next_move(&mut self) -> Option<Move> {
        // Only when all patches have their places is a window complete.
        if self.fold.moves.is_empty() && self.fold.patch.is_none() {
            let (_, mut window) = self.fold.homing.pop_first()?;
            self.leave_hidden(&mut window);
            for (start, blocks) in runs(window) {
                let from = self.ring_place.position_bytes(JournalBlock(start));
                self.fold.moves.push_back(Move::of_run(self.ring_place.disk, from, blocks));
            }
        }
        self.fold.moves.pop_front()
    }

    /// True if a block need not go home: the fresh generation hides it, or its layer is nobody's since.
    fn stays(&self, block: &Homeward) -> bool {
        let (layer, layers) = (block.key.0, &self.catalog.layers);
        let is_gone = || self.catalog.is_dropping(layer) && layers.above(layer).next().is_none();
        self.fresh.hides(block.key, block.n) || is_gone()
    }

    /// What need not does not go home. The record that says so is applied, but perhaps not stable yet.
    fn leave_hidden(&mut self, window: &mut Vec<Homeward>) {
        let all = window.len();
        window.retain(|block| !self.stays(block));
        let hidden = u32::try_from(all - window.len()).unwrap_or(u32::MAX); // within a window
        self.fold.course.begun += u32::try_from(all).unwrap_or(u32::MAX);
        if hidden > 0 {
            self.fold.course.over(hidden);
            self.fold.hidden_by = Some(self.ring.mark());
            self.counters.hidden += u64::from(hidden);
        }
    }

    /// What part of what waits stays in the journal, now and then, by some of it.
    fn look_for_hidden(&mut self) {
        let (fold, free) = (&self.fold, self.ring.free_blocks());
        if fold.patch.is_some() || fold.homing.is_empty() || !fold.course.is_to_look(free) {
            return;
        }
        let waiting = fold.homing.values().map(Vec::len).sum::<usize>();
        // Windows are in the order of keys: an even stride might meet the same of each.
        let some = fold.homing.values().flatten().step_by(waiting.div_ceil(LOOKED_AT) | 1);
        let (mut all, mut live) = (0, 0);
        for block in some {
            all += 1;
            live += usize::from(!self.stays(block));
        }
        self.fold.course.looked(free, live, all);
    }

    /// A turn's part of the moves: writes of what was read, and new reads, as many as may be in flight.
    pub(super) fn move_on(&mut self, now: Time, out: &mut DiskOut<'_>) {
        if self.failed.is_some() {
            return;
        }
        self.fold.pace.step(now, self.ring.counters().records);
        if !self.fold.unread.is_empty() {
            self.retry = Some(self.retry.map_or(self.unread_until, |at| at.min(self.unread_until)));
        }
        let moved = !self.fold.quiet();
        let pressing = self.is_pressing(now);
        self.fold.course.late |= moved && self.ring.free_blocks() < self.scarce_journal() / 2;
        self.look_for_hidden();
        let mut pace = if pressing { Pace::ALL } else { self.fold.pace };
        let timetable = self.timetable();
        let may_be_out = self.may_be_out(timetable, now);
        self.store_blocks(&mut pace, may_be_out, out);
        let timetable = if pressing || self.is_rested(now) { 0 } else { timetable };
        self.fetch_blocks(&mut pace, pressing, timetable, now, out);
        let fold = &self.fold;
        let windows_left = fold.patch.is_none() && fold.moves.is_empty() && !fold.homing.is_empty();
        // Where all of a window stays where it is no completion brings the fold on.
        if (moved && fold.quiet()) || (pressing && windows_left && fold.moving_blocks < MOVING_BLOCKS) {
            self.retry = Some(now);
        }
        if pressing {
            return;
        }
        self.fold.pace = pace;
        let fold = &self.fold;
        // What waits for a completion needs no turn before; nor does what has time until more is written.
        let to_store = !fold.stores.is_empty() && fold.course.out < may_be_out;
        let to_read = !fold.moves.is_empty() || (fold.patch.is_none() && !fold.homing.is_empty() && !fold.early);
        let room = fold.moving_blocks < MOVING_BLOCKS && fold.stores.len() < HOME_PER_TURN as usize;
        if to_store || (to_read && room) {
            self.retry = Some(self.retry.map_or(pace.next, |at| at.min(pace.next)));
        }
    }

    /// True if the fold is not to keep to its pace: somebody waits for it, or would soon, or nobody is there.
    fn is_pressing(&self, now: Time) -> bool {
        self.is_journal_scarce() || self.ring.stalled() || self.is_awaited() || self.is_alone(now)
    }

    /// True if little of the journal is free: a fold that has something left is late.
    fn is_journal_scarce(&self) -> bool {
        self.ring.free_blocks() < self.scarce_journal()
    }

    /// Less than so many free blocks of the journal are little.
    pub(super) fn scarce_journal(&self) -> u32 {
        let blocks = self.place.geometry.ring_blocks();
        (blocks / SCARCE_PART).max(SCARCE_BLOCKS.min(blocks / SCARCE_PART_MOST))
    }

    /// True if somebody waits for what the fold gives.
    fn is_awaited(&self) -> bool {
        self.fold.urgent || self.has_work() || self.is_scarce()
    }

    /// Moves are to be over while there is room in the journal and in the next generation.
    fn timetable(&mut self) -> u64 {
        let part = |left: usize, all: usize| part(left as u64, all as u64);
        let patches = part(MAX_PATCHES.saturating_sub(self.fresh.patches.len()), MAX_PATCHES);
        let ranges = part(MAX_RANGES.saturating_sub(self.fresh.range_count()), MAX_RANGES);
        let discards = part(self.discards_left(), self.fold.discarded_per_fold as usize);
        self.fold.course.timetable(self.ring.free_blocks(), patches.min(ranges).min(discards))
    }

    /// How many writes home may be out: while the journal takes requests, no more than they have time for.
    fn may_be_out(&self, timetable: u64, now: Time) -> u32 {
        // What has its data in place and is not in the journal waits for room there.
        if self.ring.stalled() || !self.ready.is_empty() || self.is_alone(now) {
            return u32::MAX;
        }
        let least = if self.is_journal_scarce() {
            HOME_OUT_LATE
        } else if self.is_awaited() {
            HOME_OUT_AWAITED
        } else {
            0
        };
        self.fold.course.may_be_out(timetable).max(least)
    }

    fn store_blocks(&mut self, pace: &mut Pace, may_be_out: u32, out: &mut DiskOut<'_>) {
        while pace.writes > 0
            && self.fold.course.out < may_be_out
            && let Some(Store { key, to, parts }) = self.fold.stores.pop_front()
        {
            let weight = weight(&parts);
            pace.writes = pace.writes.saturating_sub(weight);
            self.fold.course.out += weight;
            self.outstanding += 1;
            let at = self.place.geometry.block(to);
            out(Op::DiskWrite { disk: self.place.disk, tag: tag(Kind::Store, key), at, parts, durable: false });
        }
    }

    fn fetch_blocks(&mut self, pace: &mut Pace, pressing: bool, timetable: u64, now: Time, out: &mut DiskOut<'_>) {
        while !self.fold.waits(timetable)
            && self.fold.moving_blocks < MOVING_BLOCKS
            && pace.blocks > 0
            // Memory comes back with the last write of what was read: no more of it than is soon home.
            && (pressing || self.fold.stores.len() < HOME_PER_TURN as usize)
            && let Some(next) = self.next_move()
        {
            let len = next.len as usize * BLOCK;
            let Some(into) = self.arena.take(len, Class::Settle) else {
                if self.fold.moving_blocks > 0 {
                    self.fold.moves.push_front(next); // what is moving brings memory back
                    return;
                }
                // Perhaps there is never so much in one piece.
                let (first, second) = next.halve();
                let smallest = second.is_none();
                second.into_iter().for_each(|second| self.fold.moves.push_front(second));
                self.fold.moves.push_front(first);
                if smallest {
                    self.retry = Some(now + RETRY);
                    return;
                }
                continue;
            };
            self.fold.moving_blocks += next.len;
            pace.blocks = pace.blocks.saturating_sub(next.len);
            let (disk, at) = (next.disk, next.from);
            let key = self.fold.moving.insert(next);
            self.outstanding += 1;
            out(Op::DiskRead { disk, tag: tag(Kind::Fetch, key), at, into, from: 0, len });
        }
    }

    /// Blocks to be moved were read.
    pub(in super::super) fn fetched(&mut self, key: usize, mut into: Filling, failure: Option<Errno>) {
        let Some(moving) = self.fold.moving.get_mut(key) else { return };
        if self.failed.is_some() {
            self.end_move(key);
            return;
        }
        if failure.is_some() && moving.len > 1 {
            // One of them cannot be read: each by itself.
            let (disk, from) = (moving.disk, moving.from);
            for block in std::mem::take(&mut moving.blocks).into_iter().rev() {
                let at = from + u64::from(block.n) * BLOCK as u64;
                let alone = Move::of_run(disk, at, smallvec![Moved { n: 0, ..block }]);
                self.fold.moves.push_front(alone);
            }
            self.end_move(key);
            return;
        }
        moving.failed += u8::from(failure.is_some());
        if failure.is_some() && moving.failed < MOVE_READS {
            let blocks = std::mem::take(&mut moving.blocks);
            let again = Move { failed: moving.failed, ..Move::of_run(moving.disk, moving.from, blocks) };
            if again.failed == 1 {
                self.fold.moves.push_front(again);
            } else {
                self.fold.unread.push(again);
            }
            self.end_move(key);
            return;
        }
        for moved in &moving.blocks {
            let block = &mut into[moved.n as usize * BLOCK..][..BLOCK];
            if failure.is_some() {
                // It could not be read: it stays damaged, never something else.
                block.fill(0xdb);
                block[0] ^= u8::from(crc32c::crc32c(block) == moved.crc);
            }
            if crc32c::crc32c(block) != moved.crc {
                self.counters.corrupt += 1;
                self.fold.bruised.insert((moving.disk, moving.from + u64::from(moved.n) * BLOCK as u64));
            }
        }
        let memory = into.filled();
        for (to, blocks) in moving.writes() {
            let mut parts: Parts = SmallVec::new();
            for block in blocks {
                let from = block.n as usize * BLOCK;
                match parts.last_mut() {
                    Some(last) if last.from + last.len == from => last.len += BLOCK,
                    _ => parts.push(Part { mem: memory.share(), from, len: BLOCK }),
                }
            }
            moving.left += 1;
            self.fold.stores.push_back(Store { key, to, parts });
        }
    }

    /// Blocks are in their new place.
    pub(in super::super) fn stored(&mut self, key: usize, op: Op) {
        if let Op::DiskWrite { parts, .. } = op {
            self.fold.course.out = self.fold.course.out.saturating_sub(weight(&parts));
        }
        let Some(moving) = self.fold.moving.get_mut(key) else { return };
        moving.left -= 1;
        if moving.left == 0 {
            self.end_move(key);
        }
    }

    fn end_move(&mut self, key: usize) {
        if let Some(moved) = self.fold.moving.try_remove(key) {
            self.fold.moving_blocks -= moved.len;
            self.fold.course.over(u32::try_from(moved.blocks.len()).unwrap_or(u32::MAX)); // of one piece
        }
    }

    /// An operation that waited for the fold is over.
    pub(super) fn end_waiting(&mut self, key: usize, result: Result<crate::StoreDone, crate::StoreError>) {
        match self.pending.get(key) {
            Some(Pending::Change(_)) => self.change_over(key, result),
            Some(Pending::Flatten(tag)) => {
                let tag = *tag;
                self.pending.remove(key);
                self.finish(tag, result);
            }
            _ => {}
        }
    }
}
