//! Writing dirty pages to fresh places, both mirrors from one piece of memory, leaves before what points to them.

use super::cache::{Slot, State};
use super::flight::{Job, Pages};
use super::limits::{MAX_WRITES, WRITE_PAGES};
use super::names::{ArrayName, Place, Root};
use super::page::{Key, Kind, PAGE, Pointer, is_zero, seal, set_pointer};
use crate::DiskOut;
use driver::Errno;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A write to two mirrors: which pages become clean by it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) pages: SmallVec<[(Key, Place); WRITE_PAGES]>,
    /// Mirrors not yet written.
    left: u8,
}

impl Group {
    pub(super) fn new() -> Self {
        Self { pages: SmallVec::new(), left: 2 }
    }
}

impl Pages {
    /// Write pages of `todo`, in its order, as far as the limits go. True when all are on their way.
    pub(super) fn write_pages(&mut self, todo: &mut VecDeque<Slot>, out: &mut DiskOut<'_>) -> bool {
        while self.failed.is_none() {
            let mut batch: SmallVec<[Slot; WRITE_PAGES]> = SmallVec::new();
            while batch.len() < WRITE_PAGES
                && let Some(slot) = todo.pop_front()
            {
                if is_zero(&self.cache.frame(slot).page) {
                    self.prune(slot);
                } else {
                    batch.push(slot);
                }
            }
            if batch.is_empty() {
                return true;
            }
            let sent = self.write_batch(&batch, out);
            batch.drain(sent..).rev().for_each(|slot| todo.push_front(slot));
            if sent == 0 {
                return false;
            }
        }
        false
    }

    /// Write as many of these as find adjacent places.
    fn write_batch(&mut self, batch: &[Slot], out: &mut DiskOut<'_>) -> usize {
        if self.writes() >= MAX_WRITES {
            return 0;
        }
        let Some(mut memory) = self.take(batch.len()) else { return 0 };
        #[expect(clippy::cast_possible_truncation, reason = "at most WRITE_PAGES")]
        let Some((first, count)) = self.places.take(batch.len() as u32) else {
            debug_assert!(false, "a dirty page has no place");
            self.failed = Some(Errno::NO_SPACE);
            return 0;
        };
        memory.truncate(count as usize * PAGE);
        let mut group = Group::new();
        for ((slot, bytes), place) in batch.iter().zip(memory.chunks_exact_mut(PAGE)).zip(first.0..) {
            let (frame, place) = (self.cache.frame(*slot), Place(place));
            debug_assert!(frame.is_dirty() && !frame.has_dirty_children(), "{:?} is written too early", frame.key);
            let (key, parent) = (frame.key, frame.parent);
            bytes.copy_from_slice(&*frame.page);
            let crc = seal(bytes, self.region.disk_id, Kind::Array, key);
            self.cache.turn(*slot, State::Writing(place));
            self.tell(key, parent, Pointer { place, crc });
            group.pages.push((key, place));
        }
        self.counters.written += u64::from(count);
        let memory = memory.filled();
        let group = self.groups.insert(group);
        self.write(Job::Write { group }, self.region.at(first, 0), memory.share(), out);
        self.write(Job::Write { group }, self.region.at(first, 1), memory, out);
        count as usize
    }

    /// Where a page is now.
    pub(super) fn tell(&mut self, key: Key, parent: Option<Slot>, pointer: Pointer) {
        if let Some(parent) = parent {
            set_pointer(self.cache.write(parent), key.slot_in_parent(), pointer);
        } else if let Some(array) = self.arrays.get_mut(&ArrayName(key.array)) {
            let levels = if pointer == Pointer::HOLE { 0 } else { array.root.levels };
            array.root = Root { place: pointer.place, crc: pointer.crc, levels };
        }
    }

    /// A dirty page that holds nothing goes.
    fn prune(&mut self, slot: Slot) {
        let (key, parent) = (self.cache.frame(slot).key, self.cache.frame(slot).parent);
        self.places.forgo();
        self.tell(key, parent, Pointer::HOLE);
        self.cache.remove(slot);
        self.counters.pruned += 1;
    }

    /// One mirror of a group is written, or failed to be.
    pub(super) fn wrote(&mut self, id: usize, result: Result<u32, Errno>) -> bool {
        if let Err(errno) = result {
            self.failed.get_or_insert(errno);
        }
        let Some(group) = self.groups.get_mut(id) else { return false };
        group.left -= 1;
        if group.left > 0 {
            return self.failed.is_some();
        }
        let group = self.groups.remove(id);
        for (key, place) in group.pages {
            let slot = self.cache.find(key).filter(|slot| self.cache.frame(*slot).state() == State::Writing(place));
            if let Some(slot) = slot
                && self.failed.is_none()
            {
                self.cache.turn(slot, State::Clean(place));
            }
        }
        true
    }

    /// Write before the checkpoint what the budget has no room for.
    pub(super) fn pump_early(&mut self, out: &mut DiskOut<'_>) {
        if !self.stage.may_change() {
            return;
        }
        while self.writes() < MAX_WRITES && (self.room_wanted || self.cache.dirty() > self.budget / 2) {
            let mut todo: VecDeque<Slot> = self.cache.dirty_ends(WRITE_PAGES).into();
            if todo.is_empty() {
                break;
            }
            let before = self.counters.written;
            self.write_pages(&mut todo, out);
            let sent = self.counters.written - before;
            self.counters.written_early += sent;
            if !todo.is_empty() {
                break;
            }
            self.room_wanted = false; // asked for again if this was not enough
        }
        self.room_wanted = false;
    }
}
