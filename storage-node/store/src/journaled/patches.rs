//! The patches of a generation, in the order of their places.
//!
//! ```text
//! (layer, chunk / 127) → group, as large as a leaf of the layer's map:   chunk % 127 → patch
//! ```
//! Every write looks for its patch, among up to 131,072, and little of them is in a processor's caches: a tree of groups is some hundred
//! times smaller than one of patches.

use super::layers::LayerId;
use super::limits::{ENTRIES_PER_LEAF, LEAVES_PER_BRANCH};
use super::overlay::Key;
use super::patch::Patch;
use std::collections::{BTreeMap, BTreeSet};

const SLOTS: usize = ENTRIES_PER_LEAF as usize;
const _: () = assert!(SLOTS < u8::MAX as usize, "a place in a group is a byte, 0 for none");

#[derive(Debug)]
struct Group {
    /// Of each chunk, one more than its patch's place; 0: it has none.
    places: [u8; SLOTS],
    patches: Vec<Patch>,
}

/// See the module's head.
#[derive(Default, Debug)]
pub(super) struct Patches {
    groups: BTreeMap<(LayerId, u32), Group>,
    /// The pages just above the leaves of `groups`.
    branches: BTreeSet<(LayerId, u32)>,
    len: usize,
}

/// A chunk's group, and which chunk of it.
fn split((layer, chunk): Key) -> ((LayerId, u32), usize) {
    ((layer, chunk / ENTRIES_PER_LEAF), (chunk % ENTRIES_PER_LEAF) as usize)
}

impl Group {
    fn place(&self, slot: usize) -> Option<usize> {
        usize::from(self.places[slot]).checked_sub(1)
    }

    /// Drops patches that say nothing; how many.
    fn drop_empty(&mut self) -> usize {
        let before = self.patches.len();
        let mut kept = Vec::with_capacity(before);
        for place in self.places.iter_mut().filter(|place| **place > 0) {
            let patch = std::mem::take(&mut self.patches[usize::from(*place) - 1]);
            let stays = patch.decided() != 0;
            kept.extend(stays.then_some(patch));
            *place = if stays { u8::try_from(kept.len()).unwrap_or(u8::MAX) } else { 0 }; // as many as slots, at most
        }
        self.patches = kept;
        before - self.patches.len()
    }

    /// Its patches from a slot on, in order.
    fn from(&self, slot: usize) -> impl Iterator<Item = (u32, &Patch)> {
        let held = (0u32..).zip(&self.places).skip(slot).filter(|(_, place)| **place > 0);
        held.map(|(slot, place)| (slot, &self.patches[usize::from(*place) - 1]))
    }
}

impl Patches {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Leaves of maps that they touch.
    pub(super) fn leaves(&self) -> usize {
        self.groups.len()
    }

    /// Pages of maps just above these.
    pub(super) fn branches(&self) -> usize {
        self.branches.len()
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Patch> {
        let (name, slot) = split(key);
        let group = self.groups.get(&name)?;
        group.patches.get(group.place(slot)?)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Patch> {
        let (name, slot) = split(key);
        let group = self.groups.get_mut(&name)?;
        let place = group.place(slot)?;
        group.patches.get_mut(place)
    }

    /// The patch of a chunk; an empty one, if it had none.
    pub(super) fn entry(&mut self, key: Key) -> &mut Patch {
        let (name, slot) = split(key);
        let branches = &mut self.branches;
        let empty = || {
            branches.insert((name.0, name.1 / LEAVES_PER_BRANCH));
            // Of a large volume most groups have one patch.
            Group { places: [0; SLOTS], patches: Vec::with_capacity(1) }
        };
        let group = self.groups.entry(name).or_insert_with(empty);
        let place = group.place(slot).unwrap_or_else(|| {
            group.patches.push(Patch::default());
            group.places[slot] = u8::try_from(group.patches.len()).unwrap_or(u8::MAX); // as many as slots, at most
            self.len += 1;
            group.patches.len() - 1
        });
        &mut group.patches[place]
    }

    /// All from a chunk on, in order, of this layer and those behind it.
    pub(super) fn from(&self, key: Key) -> impl Iterator<Item = (Key, &Patch)> {
        let (name, slot) = split(key);
        self.groups.range(name..).flat_map(move |(&at, group)| {
            let (layer, leaf) = at;
            let of_group = group.from(if at == name { slot } else { 0 });
            of_group.map(move |(slot, patch)| ((layer, leaf * ENTRIES_PER_LEAF + slot), patch))
        })
    }

    /// All, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Patch)> {
        self.from((LayerId(0), 0))
    }

    /// Takes out what `part` takes of each.
    pub(super) fn part_off(&mut self, mut part: impl FnMut(&mut Patch) -> Option<Patch>) -> Self {
        let mut off = Self::default();
        for (&(layer, leaf), group) in &mut self.groups {
            let mut is_emptied = false;
            for slot in 0..SLOTS {
                let Some(place) = group.place(slot) else { continue };
                let Some(parted) = part(&mut group.patches[place]) else { continue };
                let chunk = leaf * ENTRIES_PER_LEAF + u32::try_from(slot).unwrap_or(u32::MAX); // a byte
                *off.entry((layer, chunk)) = parted;
                is_emptied |= group.patches[place].decided() == 0;
            }
            if is_emptied {
                self.len -= group.drop_empty();
            }
        }
        self.groups.retain(|_, group| !group.patches.is_empty());
        self.branches = self.groups.keys().map(|(layer, leaf)| (*layer, leaf / LEAVES_PER_BRANCH)).collect();
        off
    }

    /// Takes out all of a layer.
    pub(super) fn remove_layer(&mut self, layer: LayerId) -> Vec<(Key, Patch)> {
        let groups = self.groups.extract_if((layer, 0)..=(layer, u32::MAX), |_, _| true);
        let of_group = |((_, leaf), Group { places, mut patches }): ((LayerId, u32), Group)| {
            let held = (0u32..).zip(places).filter(|(_, place)| *place > 0);
            let taken = held.map(|(slot, place)| {
                let patch = std::mem::take(&mut patches[usize::from(place) - 1]);
                ((layer, leaf * ENTRIES_PER_LEAF + slot), patch)
            });
            taken.collect::<Vec<_>>()
        };
        let removed: Vec<(Key, Patch)> = groups.flat_map(of_group).collect();
        self.len -= removed.len();
        self.branches.retain(|(of, _)| *of != layer);
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::super::patch::Spot;
    use super::*;
    use proptest::prelude::*;

    fn marked(patches: &mut Patches, key: Key, claims: u32) {
        patches.entry(key).claims = claims;
    }

    #[test]
    fn a_patch_is_found_where_it_was_put_and_nowhere_else() {
        let mut patches = Patches::default();
        assert_eq!((patches.len(), patches.leaves(), patches.iter().next().is_none()), (0, 0, true));
        for (claims, chunk) in (1..).zip([126, 127, 5, 0, u32::MAX]) {
            marked(&mut patches, (LayerId(3), chunk), claims);
        }
        assert_eq!((patches.len(), patches.leaves()), (5, 3));
        assert_eq!(patches.get((LayerId(3), 127)).map(|patch| patch.claims), Some(2));
        assert!(!patches.contains((LayerId(2), 127)) && !patches.contains((LayerId(3), 128)));
        assert!(patches.get_mut((LayerId(3), 6)).is_none());
        assert!(patches.iter().all(|(_, patch)| !patch.blocks().any(|block| block.spot == Spot::Direct)));
    }

    proptest! {
        /// The same as a plain tree of patches.
        #[test]
        fn they_are_what_a_tree_would_hold(
            put in prop::collection::vec((1u32..4, prop_oneof![0u32..600, 64_400u32..64_600]), 0..300),
            from in (1u32..5, 0u32..600),
            gone in 1u32..5,
        ) {
            let (mut patches, mut tree) = (Patches::default(), BTreeMap::new());
            for (claims, (layer, chunk)) in (1..).zip(put) {
                marked(&mut patches, (LayerId(layer), chunk), claims);
                tree.insert((LayerId(layer), chunk), claims);
            }
            let from = (LayerId(from.0), from.1);
            let of = |(key, patch): (Key, &Patch)| (key, patch.claims);
            let expected: Vec<_> = tree.range(from..).map(|(key, claims)| (*key, *claims)).collect();
            prop_assert_eq!(patches.from(from).map(of).collect::<Vec<_>>(), expected);
            let removed = patches.remove_layer(LayerId(gone));
            let expected: Vec<_> = tree.iter().filter(|(key, _)| key.0.0 == gone).map(|(key, claims)| (*key, *claims)).collect();
            prop_assert_eq!(removed.iter().map(|(key, patch)| (*key, patch.claims)).collect::<Vec<_>>(), expected);
            tree.retain(|key, _| key.0.0 != gone);
            prop_assert_eq!(patches.iter().map(of).collect::<Vec<_>>(), tree.iter().map(|(k, c)| (*k, *c)).collect::<Vec<_>>());
            prop_assert_eq!(patches.len(), tree.len());
            let leaves: BTreeSet<_> = tree.keys().map(|key| split(*key).0).collect();
            prop_assert_eq!(patches.leaves(), leaves.len());
            let branches: BTreeSet<_> = leaves.iter().map(|(layer, leaf)| (layer, leaf / LEAVES_PER_BRANCH)).collect();
            prop_assert_eq!(patches.branches(), branches.len());
        }
    }
}
