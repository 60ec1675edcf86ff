//! Is there a place for every page that a fold may have to write?

use super::engine::JournaledStore;
use super::layers::{Catalog, LayerId};
use super::limits::{
    CHUNKS_PER_LEAF, COPIES_PER_LEAF, DISCARD_PIECE, ENTRIES_PER_LEAF, HELD_PER_LEAF, LAST_PLACES_PART,
    LAYERS_PER_LEAF, LEAVES_PER_BRANCH, SCARCE_PLACES, SCARCE_PLACES_PART, SPARE_PLACES, USED_PER_LEAF,
};
use super::overlay::{Changes, Overlay};
use conductor_model::CopyId;
use driver::mutant;
use std::collections::{BTreeMap, BTreeSet};

impl JournaledStore {
    /// True if the pages have room for all that the fold will change, and for this, which takes some for good: the last ones are not its.
    pub(super) fn has_places(&self, more: Changes) -> bool {
        self.has_places_beside(more, self.last_places())
    }

    /// The same for what gives places back, or is nothing but a record: with the last ones.
    pub(super) fn has_last_places(&self, more: Changes) -> bool {
        self.has_places_beside(more, 0)
    }

    fn has_places_beside(&self, more: Changes, kept: usize) -> bool {
        let generations = std::iter::once(&self.fresh).chain(&self.folding);
        let all = generations.map(Overlay::changes).fold(more.and(self.promised_changes), Changes::and);
        self.has_free_places(self.pages_of(all) + SPARE_PLACES as usize + kept)
    }

    /// Pages that such changes make or change, at most.
    fn pages_of(&self, all: Changes) -> usize {
        // Two pages above a leaf, as a map of 4 GiB has: what a larger one has beside is in the part that pages above are of those below.
        let maps = all.leaves + 2 * all.branches;
        let of_chunks = |each: u32| all.chunks.min((self.space.total() / each + 1) as usize);
        let records =
            of_chunks(CHUNKS_PER_LEAF) + of_chunks(CHUNKS_PER_LEAF * LEAVES_PER_BRANCH) + of_chunks(USED_PER_LEAF);
        let below = maps + records;
        below + below / LEAVES_PER_BRANCH as usize
    }

    fn scarce_places(&self) -> u32 {
        (self.place.geometry.places() / SCARCE_PLACES_PART).min(SCARCE_PLACES)
    }

    /// Places for what gives some back.
    fn last_places(&self) -> usize {
        // Across the borders of pages.
        let piece = Changes::of_discarded(ENTRIES_PER_LEAF - 1, ENTRIES_PER_LEAF + 2 * DISCARD_PIECE - 1);
        let piece = self.pages_of(Changes { branches: 2, ..piece });
        ((self.scarce_places() / LAST_PLACES_PART) as usize).max(piece)
    }

    /// True if so few places for pages are left that nobody should count on one. What a fold has changed comes back with its commit.
    pub(super) fn is_short_of_places(&self) -> bool {
        !self.has_free_places((SPARE_PLACES + self.scarce_places()) as usize + self.last_places())
    }

    /// Places that what takes no chunk may still take for good, if half of the last ones are kept for what is under way, and for settling.
    pub(super) fn places_left(&self) -> u32 {
        let pages = &self.tables.pages;
        let kept = self.last_places() / 2 + (SPARE_PLACES + 3 * self.creating) as usize;
        let free = pages.free_places().saturating_add(pages.places_given_back());
        let records = record_pages(&self.catalog, &self.fold.persisted, |_, _| true, |_| true);
        free.saturating_sub(u32::try_from(kept + records).unwrap_or(u32::MAX))
    }

    /// True if so many places are free beside those that records need: no Join asks for one.
    fn has_free_places(&self, needed: usize) -> bool {
        let free = self.tables.pages.free_places() as usize;
        let (now, before) = (&self.catalog, &self.fold.persisted);
        let creating = 3 * self.creating as usize;
        // Rarely must it be known true to the page.
        free >= needed + creating + record_pages_at_most(now, before)
            || free >= needed + creating + record_pages(now, before, |_, _| true, |_| true)
    }

    /// True if the pages have room for a step of a fold that gives back or merges, and for what its checkpoint says of copies and layers.
    pub(super) fn has_room_to_work(&self) -> bool {
        let free = self.tables.pages.free_places() as usize;
        let (new, old) = (&self.fold.frozen, &self.fold.persisted);
        let needed = SPARE_PLACES as usize / 2;
        free > needed + record_pages_at_most(new, old) || {
            let differs = |id: &CopyId, slot: u32| {
                let (new, old) = (new.copies.get(id), old.copies.get(id));
                !new.zip(old).is_some_and(|(new, old)| old.slot == slot && **new == **old)
            };
            let touched = self.tables.touched();
            let changed = |id: &LayerId| new.layers.get(*id) != old.layers.get(*id) || touched.contains(id);
            free > needed + record_pages(new, old, differs, changed)
        }
    }
}

/// Pages of the records of copies, of their lists above K, and of layers, in either of two catalogs.
fn record_pages_at_most(a: &Catalog, b: &Catalog) -> usize {
    const LISTS: usize = crate::MAX_HELD / HELD_PER_LEAF + 2;
    (a.copies.len() + b.copies.len()) * (1 + LISTS) + a.layers.len() + b.layers.len()
}

/// The same true to the page, of those that count.
fn record_pages(
    a: &Catalog,
    b: &Catalog,
    copies: impl Fn(&CopyId, u32) -> bool,
    layers: impl Fn(&LayerId) -> bool,
) -> usize {
    let mut lists: BTreeMap<usize, usize> = BTreeMap::new();
    for (id, copy) in a.copies.iter().chain(&b.copies) {
        if copies(id, copy.slot) {
            let longest = lists.entry(copy.slot as usize).or_default();
            *longest = copy.held.len().max(*longest);
        }
    }
    let records: BTreeSet<usize> = lists.keys().map(|slot| slot / COPIES_PER_LEAF).collect();
    // A snapshot is listed above the K of its copy: so that there is a place for that, each list counts as one entry longer than it is.
    let more = usize::from(!mutant::on("store-empty-lists-uncounted"));
    let of_list = |(slot, len): (usize, usize)| {
        let (first, len) = (slot * crate::MAX_HELD, (len + more).min(crate::MAX_HELD));
        let last = first + len.saturating_sub(1);
        usize::from(len > 0) * (last / HELD_PER_LEAF - first / HELD_PER_LEAF + 1)
    };
    let ids = a.layers.ids().chain(b.layers.ids()).filter(|id| layers(id));
    let of_layers: BTreeSet<usize> = ids.map(|id| id.0 as usize / LAYERS_PER_LEAF).collect();
    records.len() + lists.into_iter().map(of_list).sum::<usize>() + of_layers.len()
}
