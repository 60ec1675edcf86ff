//! Finding records, and making pages for them: an array is a tree of pages that grows at its root.

use super::cache::{Slot, State};
use super::flight::Pages;
use super::limits::MAX_LEVELS;
use super::names::{ArrayName, Lookup, LookupMut, Next, Place, Root};
use super::page::{BODY, FAN, HEAD, Key, PAGE, Pointer, pointer, set_pointer};
use super::places::Purpose;

/// An open array.
#[derive(Debug)]
pub(super) struct Array {
    /// Bytes of a record.
    pub(super) record_len: usize,
    /// Records in a leaf.
    pub(super) per_leaf: u64,
    /// Its place and crc are right when the topmost page is not dirty.
    pub(super) root: Root,
    /// Since the last checkpoint told the root.
    pub(super) changed: bool,
}

impl Array {
    pub(super) fn new(record_len: usize, root: Root) -> Self {
        debug_assert!(record_len > 0 && record_len <= BODY, "a record of {record_len} bytes does not fit a page");
        let record_len = record_len.clamp(1, BODY);
        Self { record_len, per_leaf: (BODY / record_len) as u64, root, changed: false }
    }
}

/// What became of looking for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Here(Slot),
    Hole,
    Load,
    Damaged,
}

/// Why a page cannot be changed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Load,
    Full,
}

/// Levels that an array with this leaf has at least; `None` if it would have too many.
fn levels_for(leaf: u64) -> Option<u8> {
    let mut index = leaf;
    (1..=MAX_LEVELS).find(|_| {
        let is_top = index == 0;
        index /= FAN as u64;
        is_top
    })
}

/// Leaves below one page of a level. Levels are below `MAX_LEVELS`.
pub(super) fn leaves_below(level: u8) -> u64 {
    (FAN as u64).saturating_pow(u32::from(level))
}

impl Pages {
    /// The leaf of a record, and where in it the record begins and ends. `None` if the array is not open.
    fn locate(&self, name: ArrayName, index: u64) -> Option<(Key, usize, usize)> {
        let array = self.arrays.get(&name);
        debug_assert!(array.is_some(), "array {name:?} is not open");
        let array = array?;
        #[expect(clippy::cast_possible_truncation, reason = "fewer records than a page has bytes")]
        let within = (index % array.per_leaf) as usize;
        let from = HEAD + within * array.record_len;
        let leaf = Key { level: 0, array: name.0, index: index / array.per_leaf };
        Some((leaf, from, from + array.record_len))
    }

    /// A record. Never blocks; what is missing is read by the next pumps. A page that was `Here` stays until the next `pump`, or until a
    /// `get_mut` makes new pages; one that was made dirty stays dirty until the next `pump`.
    pub(crate) fn get(&mut self, name: ArrayName, index: u64) -> Lookup<'_> {
        let Some((leaf, from, to)) = self.locate(name, index) else { return Lookup::Damaged };
        match self.find(leaf) {
            Found::Here(slot) => Lookup::Here(&self.cache.read(slot)[from..to]),
            Found::Hole => Lookup::Hole,
            Found::Load => Lookup::Load,
            Found::Damaged => Lookup::Damaged,
        }
    }

    /// A record, to be changed. Not while a checkpoint is written (see the module's head). A record whose page was changed since the
    /// last checkpoint is never refused with `Full`.
    pub(crate) fn get_mut(&mut self, name: ArrayName, index: u64) -> LookupMut<'_> {
        self.assert_changeable();
        let Some((leaf, from, to)) = self.locate(name, index) else { return LookupMut::Damaged };
        if self.ready() != Some(Ok(())) {
            return LookupMut::Load;
        }
        let slot = match self.find(leaf) {
            Found::Here(slot) => self.dirty(slot, Purpose::Change).map(|()| slot),
            Found::Hole => self.create(leaf),
            Found::Load => Err(Refused::Load),
            Found::Damaged => return LookupMut::Damaged,
        };
        match slot {
            Ok(slot) => LookupMut::Here(&mut self.cache.write(slot)[from..to]),
            Err(Refused::Load) => LookupMut::Load,
            Err(Refused::Full) => LookupMut::Full,
        }
    }

    /// The first record at or after `from` that has a page.
    pub(crate) fn next_present(&mut self, name: ArrayName, from: u64) -> Next {
        let Some((start, ..)) = self.locate(name, from) else { return Next::Damaged };
        let Some(Array { per_leaf, root, .. }) = self.arrays.get(&name) else { return Next::Damaged };
        let (per_leaf, levels) = (*per_leaf, root.levels);
        if levels > MAX_LEVELS {
            return Next::Damaged;
        }
        let mut leaf = start.index;
        // Each round either ends or goes to the first leaf behind a page that has none from `leaf` on.
        'from_the_top: while levels > 0 && leaf < leaves_below(levels - 1) {
            let mut key = Key { level: levels - 1, array: name.0, index: 0 };
            while key.level > 0 {
                let slot = match self.find(key) {
                    Found::Here(slot) => slot,
                    Found::Hole => return Next::End, // only the root of an array whose first page is still to come
                    Found::Load => return Next::Load,
                    Found::Damaged => return Next::Damaged,
                };
                let below = leaves_below(key.level - 1);
                let first = key.index * FAN as u64;
                let page = self.cache.read(slot);
                #[expect(clippy::cast_possible_truncation, reason = "at most FAN")]
                let skip = (leaf / below).saturating_sub(first).min(FAN as u64) as usize;
                let Some(n) = (skip..FAN).find(|n| pointer(page, *n) != Pointer::HOLE) else {
                    leaf = (key.index + 1).saturating_mul(leaves_below(key.level));
                    continue 'from_the_top;
                };
                key = key.child(n);
                leaf = leaf.max(key.index * below);
            }
            return Next::At(from.max(leaf.saturating_mul(per_leaf)));
        }
        Next::End
    }

    /// A page: here, or asked for, or known not to exist.
    pub(super) fn find(&mut self, key: Key) -> Found {
        self.cache.find(key).map_or_else(|| self.find_missing(key), Found::Here)
    }

    #[cold]
    fn find_missing(&mut self, key: Key) -> Found {
        let Some(Array { root, .. }) = self.arrays.get(&ArrayName(key.array)) else { return Found::Hole };
        if root.levels > MAX_LEVELS {
            return Found::Damaged;
        }
        let (root, mut key) = (*root, key);
        // Up to the nearest page in memory: the pages above it are there too.
        loop {
            if key.level >= root.levels || (key.level + 1 == root.levels && key.index > 0) {
                return Found::Hole;
            }
            if key.level + 1 == root.levels {
                return self.ask(key, None, Pointer { place: root.place, crc: root.crc });
            }
            if let Some(parent) = self.cache.find(key.parent()) {
                let pointer = pointer(self.cache.read(parent), key.slot_in_parent());
                return self.ask(key, Some(parent), pointer);
            }
            key = key.parent();
        }
    }

    /// Make a page and all above it dirty, or nothing.
    pub(super) fn dirty(&mut self, slot: Slot, purpose: Purpose) -> Result<(), Refused> {
        self.promise_with(Some(slot), 0, purpose)
    }

    /// The same, with places for so many pages more.
    pub(super) fn promise_with(&mut self, slot: Option<Slot>, more: u32, purpose: Purpose) -> Result<(), Refused> {
        let (clean, coming) = self.clean_path(slot);
        if clean + more == 0 {
            return Ok(());
        }
        self.promise(clean + more, coming, purpose)?;
        self.dirty_promised(slot);
        Ok(())
    }

    /// How many pages, from this one up, are not dirty; and how many of them give a place back at once when they become so. (A page
    /// that was written early can therefore always be changed again before its checkpoint.)
    fn clean_path(&self, mut at: Option<Slot>) -> (u32, u32) {
        let (mut clean, mut coming) = (0, 0);
        while let Some(slot) = at.filter(|slot| !self.cache.frame(*slot).is_dirty()) {
            let frame = self.cache.frame(slot);
            clean += 1;
            coming += u32::from(matches!(frame.state(), State::Clean(place) if self.places.is_free_when_given(place)));
            at = frame.parent;
        }
        (clean, coming)
    }

    fn promise(&mut self, count: u32, coming: u32, purpose: Purpose) -> Result<(), Refused> {
        match self.places.promise(count, coming, purpose) {
            true => Ok(()),
            // Places that are still written to, or held, may be given back when that is over.
            false if self.writes() > 0 || self.places.any_held() => Err(Refused::Load),
            false => Err(Refused::Full),
        }
    }

    /// As `dirty`, the places being promised.
    fn dirty_promised(&mut self, at: Option<Slot>) {
        let mut path: smallvec::SmallVec<[Slot; MAX_LEVELS as usize]> = smallvec::SmallVec::new();
        let mut at = at;
        while let Some(slot) = at.filter(|slot| !self.cache.frame(*slot).is_dirty()) {
            path.push(slot);
            at = self.cache.frame(slot).parent;
        }
        for slot in path.into_iter().rev() {
            match self.cache.frame(slot).state() {
                State::Clean(place) => self.places.give(place, false),
                State::Writing(place) => self.places.give(place, true),
                State::Dirty => {}
            }
            self.cache.turn(slot, State::Dirty);
            if self.cache.frame(slot).parent.is_none() {
                self.root_changes(self.cache.frame(slot).key.array);
            }
        }
    }

    pub(super) fn root_changes(&mut self, array: u32) {
        if let Some(array) = self.arrays.get_mut(&ArrayName(array)) {
            array.changed = true;
        }
    }

    /// The page that is missing for a leaf in a hole, and those above it that are missing too.
    fn create(&mut self, leaf: Key) -> Result<Slot, Refused> {
        let name = ArrayName(leaf.array);
        let Some(root) = self.arrays.get(&name).map(|array| array.root) else { return Err(Refused::Full) };
        let levels = levels_for(leaf.index).ok_or(Refused::Full)?.max(root.levels);
        let grows = root.levels > 0 && levels > root.levels;
        if grows && self.is_asked_for(Key { level: root.levels - 1, index: 0, ..leaf }) {
            return Err(Refused::Load); // it is about to get a parent
        }
        // The path up to the first page that exists, and what else the array must grow by.
        let (mut at, mut missing, mut existing) = (leaf, 0, None);
        while at.level < levels {
            existing = self.cache.find(at);
            if existing.is_some() {
                break;
            }
            let beside = grows && at.level >= root.levels && at.index > 0;
            missing += 1 + u32::from(beside);
            at = at.parent();
        }
        existing.into_iter().for_each(|slot| self.cache.pin(slot));
        let room = self.make_room(missing as usize);
        existing.into_iter().for_each(|slot| self.cache.unpin(slot));
        if !room {
            return Err(Refused::Load);
        }
        self.promise_with(existing, missing, Purpose::Change)?;
        self.grow(name, root, levels);
        let mut parent = existing;
        let mut made = existing;
        for level in (leaf.level..levels).rev() {
            let key = Key { level, index: leaf.index / leaves_below(level), ..leaf };
            let slot = self.cache.find(key).unwrap_or_else(|| self.new_page(key, parent));
            (parent, made) = (Some(slot), Some(slot));
        }
        made.ok_or(Refused::Full)
    }

    /// Put new pages on top until there are so many levels.
    fn grow(&mut self, name: ArrayName, root: Root, levels: u8) {
        let top = Key { level: root.levels.saturating_sub(1), array: name.0, index: 0 };
        let mut below = self.cache.find(top);
        let mut to_below = match below.map(|slot| self.cache.frame(slot).state()) {
            Some(State::Dirty) => Pointer::PENDING,
            _ => Pointer { place: root.place, crc: root.crc },
        };
        for level in root.levels.max(1)..levels {
            if root.levels == 0 {
                break;
            }
            let slot = self.new_page(Key { level, ..top }, None);
            set_pointer(self.cache.write(slot), 0, to_below);
            if let Some(below) = below {
                self.cache.adopt(below, slot);
            }
            (below, to_below) = (Some(slot), Pointer::PENDING);
        }
        if let Some(array) = self.arrays.get_mut(&name)
            && levels > root.levels
        {
            array.root = Root { place: Place::NONE, crc: 0, levels };
            array.changed = true;
        }
    }

    pub(super) fn new_page(&mut self, key: Key, parent: Option<Slot>) -> Slot {
        match parent {
            Some(parent) => set_pointer(self.cache.write(parent), key.slot_in_parent(), Pointer::PENDING),
            None => self.root_changes(key.array),
        }
        self.cache.insert(key, Box::new([0; PAGE]), parent, State::Dirty)
    }
}
