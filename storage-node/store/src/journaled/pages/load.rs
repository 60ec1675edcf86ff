//! Reading pages: each once however many ask, from the first mirror, and from the other if that is not what the pointer says.
//!
//! A read that failed says nothing about what is on the disk: both mirrors are read a few times then, and a page of which no read
//! came through counts as damaged only for a while. What was read and is wrong stays damaged.

use super::cache::{KeyMap, Slot, State};
use super::flight::{Job, Pages};
use super::limits::{LOAD_ROUNDS, MAX_DAMAGED, MAX_HEALS, MAX_LOADS};
use super::names::Place;
use super::page::{Key, Kind, PAGE, Pointer, unseal};
use super::tree::Found;
use crate::DiskOut;
use memory::{Filling, Reads};
use std::collections::VecDeque;

/// A page that was asked for.
#[derive(Debug)]
struct Load {
    /// It stays in memory until this is over.
    parent: Option<Slot>,
    pointer: Pointer,
    /// The read that is on its way.
    job: Option<usize>,
    /// How often both mirrors were read in vain.
    rounds: u8,
    /// A read of this round failed.
    failed: bool,
}

/// All that is being read.
#[derive(Debug, Default)]
pub(super) struct Loads {
    wanted: KeyMap<Key, Load>,
    /// To be read from the first mirror.
    queue: VecDeque<Key>,
    /// To be read from the second one, into the same memory.
    second: VecDeque<(Key, Filling)>,
    /// To be written to that mirror.
    heals: VecDeque<(Place, u8, Reads)>,
    healing: usize,
    /// Reads that will add a page.
    reading: usize,
    /// Known to be bad in both mirrors, each with the pointer that led there.
    damaged: KeyMap<Key, Pointer>,
    /// Those of them that could not be read, be it from one mirror.
    unread: Vec<Key>,
    /// The last of them that was asked for.
    pub(super) met: Option<Key>,
    /// Looked at once more before they are given up.
    doubted: Vec<(Key, Pointer)>,
}

impl Pages {
    /// Have a page read, or say why not.
    pub(super) fn ask(&mut self, key: Key, parent: Option<Slot>, pointer: Pointer) -> Found {
        if pointer.place == Place::NONE {
            return Found::Hole;
        }
        if self.loads.wanted.contains_key(&key) {
            return Found::Load;
        }
        if pointer.place.0 >= self.region.places || self.loads.damaged.get(&key) == Some(&pointer) {
            self.loads.met = Some(key);
            return Found::Damaged;
        }
        // Beyond the limit the caller asks again when one of those on their way is there.
        if self.loads.wanted.len() < MAX_LOADS {
            parent.into_iter().for_each(|slot| self.cache.pin(slot));
            self.loads.wanted.insert(key, Load { parent, pointer, job: None, rounds: 0, failed: false });
            self.loads.queue.push_back(key);
        }
        Found::Load
    }

    pub(super) fn is_asked_for(&self, key: Key) -> bool {
        self.loads.wanted.contains_key(&key)
    }

    /// Nobody wants the page any more.
    pub(super) fn cancel_load(&mut self, key: Key) {
        self.loads.damaged.remove(&key);
        if let Some(load) = self.loads.wanted.remove(&key) {
            self.loads.reading -= usize::from(load.job.is_some());
            load.parent.into_iter().for_each(|slot| self.cache.unpin(slot));
        }
    }

    /// True if there are pages that could not be read.
    pub(crate) fn has_unread(&self) -> bool {
        !self.loads.unread.is_empty()
    }

    /// Have those read again that could not be read.
    pub(crate) fn forget_unread(&mut self) {
        for key in self.loads.unread.drain(..) {
            self.loads.damaged.remove(&key);
        }
    }

    /// True if a page that is damaged was read, in both mirrors, and is wrong, and a second look has found it so again; or if nothing is pointed
    /// to. The first call forgets what was found, for that look.
    pub(super) fn is_surely_bad(&mut self, key: Key, pointer: Pointer) -> bool {
        if pointer.place.0 >= self.region.places {
            return true;
        }
        if self.loads.damaged.get(&key) != Some(&pointer) || self.loads.unread.contains(&key) {
            return false;
        }
        let doubted = self.loads.doubted.iter().position(|doubted| *doubted == (key, pointer));
        if let Some(n) = doubted {
            self.loads.doubted.swap_remove(n);
            return true;
        }
        if self.loads.doubted.len() >= MAX_DAMAGED {
            self.loads.doubted.clear();
        }
        self.loads.doubted.push((key, pointer));
        self.loads.damaged.remove(&key);
        false
    }

    /// As `cancel_load`, for all pages of an array.
    pub(super) fn cancel_loads(&mut self, array: u32) {
        let its = self.loads.wanted.keys().chain(self.loads.damaged.keys()).filter(|key| key.array == array);
        let its: Vec<Key> = its.copied().collect();
        its.into_iter().for_each(|key| self.cancel_load(key));
    }

    /// Make room for so many more pages, without those being read losing theirs. False if it is not there yet.
    pub(super) fn make_room(&mut self, pages: usize) -> bool {
        while self.cache.len() + self.loads.reading + pages > self.budget {
            if !self.cache.evict() {
                self.room_wanted = true;
                return false;
            }
            self.counters.evicted += 1;
        }
        true
    }

    pub(super) fn pump_loads(&mut self, out: &mut DiskOut<'_>) {
        while let Some((key, into)) = self.loads.second.pop_front() {
            self.send_load(key, 1, into, out);
        }
        while let Some(key) = self.loads.queue.front().copied() {
            // Cancelled meanwhile, or cancelled and asked for again.
            if self.loads.wanted.get(&key).is_none_or(|load| load.job.is_some()) {
                self.loads.queue.pop_front();
                continue;
            }
            if !self.make_room(1) {
                break;
            }
            let Some(into) = self.take(1) else { break };
            self.loads.queue.pop_front();
            self.send_load(key, 0, into, out);
        }
    }

    fn send_load(&mut self, key: Key, mirror: u8, into: Filling, out: &mut DiskOut<'_>) {
        let Some(place) = self.loads.wanted.get(&key).filter(|load| load.job.is_none()).map(|load| load.pointer.place)
        else {
            return;
        };
        let id = self.read(Job::Load { key, mirror }, self.region.at(place, mirror), into, out);
        if let Some(load) = self.loads.wanted.get_mut(&key) {
            load.job = Some(id);
            self.loads.reading += 1;
        }
    }

    /// A read is over.
    pub(super) fn loaded(&mut self, id: usize, key: Key, mirror: u8, into: Filling, whole: bool) -> bool {
        let Some(load) = self.loads.wanted.get_mut(&key).filter(|load| load.job == Some(id)) else {
            return true; // cancelled; who was beyond the limit may ask again
        };
        load.job = None;
        self.loads.reading -= 1;
        let page = into.first_chunk::<PAGE>().filter(|_| whole);
        let page = page.filter(|page| unseal(*page, self.region.disk_id, Kind::Array, key) == Some(load.pointer.crc));
        let Some(page) = page else {
            load.failed |= !whole;
            if mirror == 0 {
                self.loads.second.push_back((key, into));
                return false;
            }
            load.rounds += 1;
            let unread = std::mem::take(&mut load.failed);
            if unread && load.rounds < LOAD_ROUNDS {
                self.loads.queue.push_back(key);
                return false;
            }
            let pointer = load.pointer;
            self.cancel_load(key);
            self.counters.damaged += 1;
            if self.loads.damaged.len() >= MAX_DAMAGED {
                self.loads.damaged.clear();
                self.loads.unread.clear();
            }
            if unread {
                self.loads.unread.push(key);
            }
            self.loads.damaged.insert(key, pointer);
            return true;
        };
        let (page, parent, place) = (Box::new(*page), load.parent, load.pointer.place);
        self.cancel_load(key);
        self.cache.insert(key, page, parent, State::Clean(place));
        self.counters.loaded += 1;
        if mirror == 1 {
            self.heal(place, 0, into);
        }
        true
    }

    /// This mirror was bad, and `good` came from the other.
    pub(super) fn heal(&mut self, place: Place, mirror: u8, good: Filling) {
        if self.may_heal(place) {
            self.places.hold(place);
            self.loads.heals.push_back((place, mirror, good.filled()));
        }
    }

    /// True if a mirror of this place could be written now.
    pub(super) fn may_heal(&self, place: Place) -> bool {
        let room = self.loads.heals.len() + self.loads.healing < MAX_HEALS;
        room && self.failed.is_none() && !self.places.is_held(place)
    }

    pub(super) fn pump_heals(&mut self, out: &mut DiskOut<'_>) {
        while let Some((place, mirror, good)) = self.loads.heals.pop_front() {
            self.loads.healing += 1;
            self.write(Job::Heal(place), self.region.at(place, mirror), good, out);
        }
    }

    /// A heal is over; if it failed, the mirror is as bad as it was, and the next read tries again.
    pub(super) fn healed(&mut self, place: Place, whole: bool) -> bool {
        self.loads.healing -= 1;
        self.counters.healed += u64::from(whole);
        self.counters.unhealed += u64::from(!whole);
        self.places.let_go(place);
        true
    }
}
