//! Pages that are bad in both mirrors are given up, so that what is changed below them has a page again.
//!
//! ```text
//!   pointer ──► bad page          pointer ──► new leaf:   the caller says what its records are now
//!                                         └─► new page of pointers, all to nothing: each leaf below is damaged, and given up in its turn
//! ```
//! What only the old page knew, the places of the pages below it, is lost until the store is formatted. Its own place is used again: a
//! sector that is written is good again, or another one, on all but the worst disks.

use super::flight::Pages;
use super::names::{ArrayName, Place};
use super::page::{FAN, HEAD, Key, Pointer, pointer, set_pointer};
use super::places::Purpose;
use super::tree::{Found, Refused};
use std::ops::Range;

/// What became of giving a page up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    /// It is replaced, or is read once more first: ask again for what could not be had.
    Again,
    /// Memory or writes are waited for.
    Load,
    /// No place is left.
    Full,
    /// It could not be read, be it from one mirror: it may come back.
    Not,
}

/// Of which page of which array the last answer was `Damaged`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadPage(Key);

impl BadPage {
    pub(crate) fn array(self) -> ArrayName {
        ArrayName(self.0.array)
    }
}

impl Pages {
    /// The page because of which an answer since the last call was `Damaged`.
    pub(crate) fn met_bad(&mut self) -> Option<BadPage> {
        self.loads.met.take().map(BadPage)
    }

    /// Pages that were given up since the last call.
    pub(crate) fn newly_lost(&mut self) -> u32 {
        let since = self.counters.lost - std::mem::replace(&mut self.lost_told, self.counters.lost);
        u32::try_from(since).unwrap_or(u32::MAX)
    }

    /// Put a page in the place of one that is bad. Records outside `there` become zeros, those within are told by `lost`. As of `get_mut`,
    /// not while a checkpoint is written.
    pub(crate) fn give_up(
        &mut self,
        BadPage(key): BadPage,
        there: Range<u64>,
        lost: &mut dyn FnMut(u64, &mut [u8]),
    ) -> GivenUp {
        self.assert_changeable();
        let Some(array) = self.arrays.get(&ArrayName(key.array)) else { return GivenUp::Not };
        let (root, record_len, per_leaf) = (array.root, array.record_len, array.per_leaf);
        if self.ready() != Some(Ok(())) {
            return GivenUp::Load;
        }
        if self.find(key) != Found::Damaged {
            return GivenUp::Again;
        }
        let is_top = key.level + 1 == root.levels;
        let parent = self.cache.find(key.parent()).filter(|_| !is_top);
        let old = match parent {
            Some(parent) => pointer(self.cache.read(parent), key.slot_in_parent()),
            None if is_top => Pointer { place: root.place, crc: root.crc },
            None => return GivenUp::Again,
        };
        if !self.is_surely_bad(key, old) {
            return if self.find(key) == Found::Damaged { GivenUp::Not } else { GivenUp::Again };
        }
        parent.into_iter().for_each(|slot| self.cache.pin(slot));
        let room = self.make_room(1);
        parent.into_iter().for_each(|slot| self.cache.unpin(slot));
        if !room {
            return GivenUp::Load;
        }
        match self.promise_with(parent, 1, Purpose::Change) {
            Ok(()) => {}
            Err(Refused::Load) => return GivenUp::Load,
            Err(Refused::Full) => return GivenUp::Full,
        }
        self.cancel_load(key);
        if old.place != Place::NONE && old.place.0 < self.region.places {
            self.places.give(old.place, false);
        }
        let slot = self.new_page(key, parent);
        let page = self.cache.write(slot);
        // Records below one pointer, or one record.
        let each = if key.level == 0 { 1 } else { super::tree::leaves_below(key.level - 1).saturating_mul(per_leaf) };
        let fan = if key.level == 0 { per_leaf } else { FAN as u64 };
        for (n, from) in (0..).zip((key.index * fan..(key.index + 1) * fan).map(|n| n.saturating_mul(each))) {
            if from >= there.end || from.saturating_add(each) <= there.start {
                continue;
            }
            match key.level {
                0 => lost(from, &mut page[HEAD + n * record_len..][..record_len]),
                _ => set_pointer(page, n, Pointer::LOST),
            }
        }
        self.counters.lost += 1;
        GivenUp::Again
    }
}
