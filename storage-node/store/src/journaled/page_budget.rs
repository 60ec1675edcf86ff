//! Is there a place for every page that a fold may have to write?

use super::engine::JournaledStore;
use super::layers::{Catalog, LayerId};
use super::limits::{
    CHUNKS_PER_LEAF, COPIES_PER_LEAF, HELD_PER_LEAF, LAYERS_PER_LEAF, LEAVES_PER_BRANCH, SCARCE_PLACES,
    SCARCE_PLACES_PART, SPARE_PLACES, USED_PER_LEAF,
};
use super::overlay::{Changes, Overlay};
use conductor_model::CopyId;
use std::collections::{BTreeMap, BTreeSet};

impl JournaledStore {
    /// True if the pages have room for all that the fold will change, and for this.
    pub(super) fn has_places(&self, more: Changes) -> bool {
        let generations = std::iter::once(&self.fresh).chain(&self.folding);
        let all = generations.map(Overlay::changes).fold(more.and(self.promised_changes), Changes::and);
        // Two pages above a leaf, as a map of 4 GiB has: what a larger one has beside is in the part that pages above are of those below.
        let maps = all.leaves + 2 * all.branches;
        let of_chunks = |each: u32| all.chunks.min((self.space.total() / each + 1) as usize);
        let records =
            of_chunks(CHUNKS_PER_LEAF) + of_chunks(CHUNKS_PER_LEAF * LEAVES_PER_BRANCH) + of_chunks(USED_PER_LEAF);
        let below = maps + records;
        self.has_free_places(below + below / LEAVES_PER_BRANCH as usize + SPARE_PLACES as usize)
    }

    /// True if so few places for pages are left that nobody should count on one. What a fold has changed comes back with its commit.
    pub(super) fn is_short_of_places(&self) -> bool {
        let part = (self.place.geometry.places() / SCARCE_PLACES_PART).min(SCARCE_PLACES);
        !self.has_free_places((SPARE_PLACES + part) as usize)
    }

    /// True if so many places are free beside those that records need: no Join and no snapshot asks for one.
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
    let of_list = |(slot, len): (usize, usize)| {
        let first = slot * crate::MAX_HELD;
        let last = first + len.saturating_sub(1);
        usize::from(len > 0) * (last / HELD_PER_LEAF - first / HELD_PER_LEAF + 1)
    };
    let ids = a.layers.ids().chain(b.layers.ids()).filter(|id| layers(id));
    let of_layers: BTreeSet<usize> = ids.map(|id| id.0 as usize / LAYERS_PER_LEAF).collect();
    records.len() + lists.into_iter().map(of_list).sum::<usize>() + of_layers.len()
}
