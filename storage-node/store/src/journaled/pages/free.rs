//! Giving arrays back, and letting go of those that are not needed now.

use super::cache::{Slot, State};
use super::flight::Pages;
use super::limits::MAX_LEVELS;
use super::names::{ArrayName, Place, Root, Step};
use super::page::{FAN, Key, Pointer, pointer};
use super::places::Purpose;
use super::tree::{Found, Refused};

impl Pages {
    /// Give back some of an array's pages: at most one page of pointers and all that it points to. Leaves are not read for it.
    /// What is damaged is given up, with the places of what was below it. As of `get_mut`, not while a checkpoint is written.
    pub(crate) fn free_array(&mut self, name: ArrayName) -> Step {
        self.assert_changeable();
        if self.ready() != Some(Ok(())) {
            return Step::Load;
        }
        let root = self.root(name);
        if root.levels == 0 {
            return Step::Done;
        }
        if root.levels > MAX_LEVELS {
            self.counters.lost += 1;
            self.set_root(name, Root::default());
            return Step::Done;
        }
        // Down to the first page of pointers to leaves, or to something that ends earlier.
        let mut key = Key { level: root.levels - 1, array: name.0, index: 0 };
        while key.level > 0 {
            let slot = match self.find(key) {
                Found::Here(slot) => slot,
                Found::Load => return Step::Load,
                Found::Hole => break,
                Found::Damaged => {
                    self.counters.lost += 1;
                    break;
                }
            };
            let page = self.cache.read(slot);
            let first = (0..FAN).find(|n| pointer(page, *n) != Pointer::HOLE);
            match first {
                Some(n) if key.level > 1 => key = key.child(n),
                _ => break,
            }
        }
        match self.drop_page(key) {
            Ok(()) if self.root(name).levels == 0 => Step::Done,
            Ok(()) => Step::Again,
            Err(Refused::Load) => Step::Load,
            Err(Refused::Full) => Step::Full,
        }
    }

    /// Forget an array without changing it. False, and it stays open, if it has pages that a checkpoint has to write first.
    pub(crate) fn close_array(&mut self, name: ArrayName) -> bool {
        let pages = self.cache.all_of(name.0);
        let changed = self.arrays.get(&name).is_some_and(|array| array.changed);
        let is_clean = |slot: &Slot| matches!(self.cache.frame(*slot).state(), State::Clean(_));
        if changed || !pages.iter().all(is_clean) {
            return false;
        }
        self.cancel_loads(name.0);
        pages.into_iter().for_each(|slot| self.cache.remove(slot));
        self.arrays.remove(&name);
        true
    }

    fn set_root(&mut self, name: ArrayName, root: Root) {
        if let Some(array) = self.arrays.get_mut(&name) {
            array.root = root;
            array.changed = true;
        }
    }

    /// Give back a page and the leaves it points to, and tell its parent.
    fn drop_page(&mut self, key: Key) -> Result<(), Refused> {
        let is_top = self.root(ArrayName(key.array)).levels == key.level + 1;
        let parent = if is_top { None } else { self.cache.find(key.parent()) };
        if let Some(parent) = parent {
            self.dirty(parent, Purpose::Freeing)?;
        }
        if key.level == 1
            && let Some(slot) = self.cache.find(key)
        {
            for n in 0..FAN {
                let to = pointer(&self.cache.frame(slot).page, n);
                if to != Pointer::HOLE {
                    self.give_page(key.child(n), to.place);
                }
            }
        }
        let root = self.root(ArrayName(key.array));
        let place = parent.map_or(root.place, |slot| pointer(&self.cache.frame(slot).page, key.slot_in_parent()).place);
        self.give_page(key, place);
        self.tell(key, parent, Pointer::HOLE);
        self.root_changes(key.array);
        Ok(())
    }

    /// Give back one page, in memory or not; `told` is where its pointer leads.
    fn give_page(&mut self, key: Key, told: Place) {
        self.cancel_load(key);
        let Some(slot) = self.cache.find(key) else {
            if told != Place::NONE && told.0 < self.region.places {
                self.places.give(told, false);
            }
            return;
        };
        match self.cache.frame(slot).state() {
            State::Clean(place) => self.places.give(place, false),
            State::Writing(place) => self.places.give(place, true),
            State::Dirty => self.places.forgo(),
        }
        self.cache.remove(slot);
    }
}
