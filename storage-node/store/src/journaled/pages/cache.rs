//! The pages in memory, found by name, with their ties to the pages that point to them.
//!
//! ```text
//!   Clean ──changed──► Dirty ──given a place, sent──► Writing ──both mirrors written──► Clean
//!                        ▲──────────changed──────────────┘
//! ```
//! A page's parent is in memory as long as the page is (it counts its children, and reads of children on their way), so that
//! a new place can always be told to it. A dirty page's parent is dirty. Only clean pages without children leave for lack of
//! room, the ones not asked for lately first (a clock).

use super::names::Place;
use super::page::{Key, Page};
use slab::Slab;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Where a page is in memory, as long as it is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot(usize);

/// What the disk has of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The same, here.
    Clean(Place),
    /// Nothing that is up to date; a place is promised to it.
    Dirty,
    /// The same as soon as the writes on their way are over.
    Writing(Place),
}

/// A page in memory.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) key: Key,
    pub(super) page: Box<Page>,
    pub(super) parent: Option<Slot>,
    state: State,
    /// Pages in memory that this one points to, and reads of such on their way.
    children: u32,
    dirty_children: u32,
    /// Asked for since the clock's hand came by.
    used: bool,
}

impl Frame {
    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.state == State::Dirty
    }

    pub(super) fn has_dirty_children(&self) -> bool {
        self.dirty_children > 0
    }
}

/// Quick, and of no use against an attacker: all keys are the store's own, of which a client moves only the index.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0xf135_7aea_2e62_a9c5);
    }
}

/// A map from the store's own names.
pub(super) type KeyMap<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// All pages in memory.
#[derive(Debug, Default)]
pub(super) struct Cache {
    frames: Slab<Frame>,
    slots: KeyMap<Key, Slot>,
    dirty: usize,
    /// The clock's, for making room.
    hand: usize,
    /// For writing early; its own, so that the pages changed longest ago go first.
    flush_hand: usize,
}

impl Cache {
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn dirty(&self) -> usize {
        self.dirty
    }

    /// A page, if it is here.
    pub(super) fn find(&self, key: Key) -> Option<Slot> {
        self.slots.get(&key).copied()
    }

    /// A page that is here.
    pub(super) fn frame(&self, slot: Slot) -> &Frame {
        &self.frames[slot.0]
    }

    /// Its bytes, for reading; it is remembered as used.
    pub(super) fn read(&mut self, slot: Slot) -> &Page {
        let frame = &mut self.frames[slot.0];
        frame.used = true;
        &frame.page
    }

    /// Its bytes, for changing.
    pub(super) fn write(&mut self, slot: Slot) -> &mut Page {
        let frame = &mut self.frames[slot.0];
        debug_assert!(frame.is_dirty(), "page {:?} was changed before it was dirty", frame.key);
        frame.used = true;
        &mut frame.page
    }

    /// Keep a page while one that it points to is being read, or pages around it come and go.
    pub(super) fn pin(&mut self, slot: Slot) {
        self.frames[slot.0].children += 1;
    }

    pub(super) fn unpin(&mut self, slot: Slot) {
        let frame = &mut self.frames[slot.0];
        debug_assert!(frame.children > 0, "page {:?} was let go once too often", frame.key);
        frame.children -= 1;
    }

    /// Add a page that is not here.
    pub(super) fn insert(&mut self, key: Key, page: Box<Page>, parent: Option<Slot>, state: State) -> Slot {
        let frame = Frame { key, page, parent: None, state, children: 0, dirty_children: 0, used: true };
        self.dirty += usize::from(frame.is_dirty());
        let slot = Slot(self.frames.insert(frame));
        let before = self.slots.insert(key, slot);
        debug_assert!(before.is_none(), "page {key:?} is in memory twice");
        if let Some(parent) = parent {
            self.adopt(slot, parent);
        }
        slot
    }

    /// Tie a page without parent to one.
    pub(super) fn adopt(&mut self, child: Slot, parent: Slot) {
        debug_assert!(self.frame(child).parent.is_none());
        self.frames[child.0].parent = Some(parent);
        let dirty = u32::from(self.frame(child).is_dirty());
        let frame = &mut self.frames[parent.0];
        frame.children += 1;
        frame.dirty_children += dirty;
    }

    /// The one transition.
    pub(super) fn turn(&mut self, slot: Slot, to: State) {
        let frame = &mut self.frames[slot.0];
        let (was, parent) = (frame.is_dirty(), frame.parent);
        frame.state = to;
        let is = frame.is_dirty();
        self.dirty = self.dirty + usize::from(is) - usize::from(was);
        if let Some(parent) = parent {
            let parent = &mut self.frames[parent.0];
            debug_assert!(!is || was || parent.is_dirty(), "a dirty page below a clean one");
            parent.dirty_children = parent.dirty_children + u32::from(is) - u32::from(was);
        }
    }

    /// Drop a page that has no children.
    pub(super) fn remove(&mut self, slot: Slot) {
        let frame = self.frames.remove(slot.0);
        debug_assert_eq!(frame.children, 0, "page {:?} left before its children", frame.key);
        self.slots.remove(&frame.key);
        self.dirty -= usize::from(frame.is_dirty());
        if let Some(parent) = frame.parent {
            let parent = &mut self.frames[parent.0];
            parent.children -= 1;
            parent.dirty_children -= u32::from(frame.is_dirty());
        }
    }

    /// Drop one page that can be read again; false if there is none.
    pub(super) fn evict(&mut self) -> bool {
        let slots = self.frames.capacity();
        for _ in 0..2 * slots {
            self.hand = (self.hand + 1) % slots;
            let Some(frame) = self.frames.get_mut(self.hand) else { continue };
            let may_go = frame.children == 0 && matches!(frame.state, State::Clean(_));
            if may_go && !std::mem::take(&mut frame.used) {
                self.remove(Slot(self.hand));
                return true;
            }
        }
        false
    }

    /// Up to `most` dirty pages that nothing in memory hangs on: once written they can leave.
    pub(super) fn dirty_ends(&mut self, most: usize) -> Vec<Slot> {
        let slots = self.frames.capacity();
        let mut found = Vec::new();
        for _ in 0..slots {
            if found.len() == most {
                break;
            }
            self.flush_hand = (self.flush_hand + 1) % slots;
            if self.frames.get(self.flush_hand).is_some_and(|frame| frame.is_dirty() && frame.children == 0) {
                found.push(Slot(self.flush_hand));
            }
        }
        self.sort(&mut found);
        found
    }

    /// The dirty pages of chosen arrays, leaves first, and side by side what is side by side in its array.
    pub(super) fn all_dirty(&self, chosen: impl Fn(u32) -> bool) -> Vec<Slot> {
        let dirty = self.frames.iter().filter(|(_, frame)| frame.is_dirty() && chosen(frame.key.array));
        let mut found: Vec<Slot> = dirty.map(|(slot, _)| Slot(slot)).collect();
        self.sort(&mut found);
        found
    }

    /// All pages of an array, leaves first.
    pub(super) fn all_of(&self, array: u32) -> Vec<Slot> {
        let its = self.frames.iter().filter(|(_, frame)| frame.key.array == array);
        let mut found: Vec<Slot> = its.map(|(slot, _)| Slot(slot)).collect();
        self.sort(&mut found);
        found
    }

    fn sort(&self, slots: &mut [Slot]) {
        slots.sort_unstable_by_key(|slot| self.frame(*slot).key);
    }
}
