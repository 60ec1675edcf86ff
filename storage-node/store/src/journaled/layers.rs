//! Copies and their layers: what the journal's records change besides data.
//!
//! ```text
//! copy 1:  live ─► layer 7 ─► layer 4 "s2" ─► layer 1 "s1" ─► zeros           ─► is "parent"
//! copy 2:  live ─► layer 9 ───────┘ (a clone of s2)
//! ```
//! A layer that is neither live nor named is needed only by what is above it: the fold releases it when nothing is, and merges it
//! into the one layer above when there is only one.

use super::changed::INHERITED;
use super::forest::Forest;
use super::limits::MAX_DEPTH;
use super::pages::ArrayName;
use crate::configuration::blocks_of;
use crate::{FillMark, Held, HeldKind, MAX_HELD};
use conductor_model::{BlockRange, Blocks, Configuration, CopyId, SnapshotId, Stamp};
use driver::mutant;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A layer; never used twice in a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct LayerId(pub(super) u32);

impl LayerId {
    /// What a disk says is one; none that the names of arrays do not reach to.
    pub(super) fn read(number: u32) -> Option<Self> {
        (number < ArrayName::LAYERS).then_some(Self(number))
    }
}

/// What is known of a layer beside its map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layer {
    /// Whose.
    pub(super) copy: CopyId,
    /// What shows through it.
    pub(super) parent: Option<LayerId>,
    /// Its name, if it has one.
    pub(super) snapshot: Option<SnapshotId>,
    /// The version of all that has no entry: the stamp of the rollback that made it.
    pub(super) base: Stamp,
    /// The copy's size when it was frozen; what is beyond reads as zeros.
    pub(super) blocks: u32,
}

/// One copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CopyState {
    pub(super) config: Configuration,
    pub(super) known_good: Stamp,
    pub(super) held: Vec<Held>,
    /// The newest that was listed so far: what is newer is not on the list.
    pub(super) newest: Stamp,
    /// How far its filling is.
    pub(super) mark: FillMark,
    pub(super) live: LayerId,
    /// Its place in the array of copies.
    pub(super) slot: u32,
}

impl CopyState {
    /// Its size.
    pub(super) fn blocks(&self) -> u32 {
        blocks_of(&self.config).unwrap_or(0)
    }

    /// True if the range lies within the copy.
    pub(super) fn contains(&self, at: BlockRange) -> bool {
        at.count.0 > 0 && at.end() <= u64::from(self.blocks())
    }

    /// List a change that is above K.
    fn hold(&mut self, held: Held) {
        // What differs most is looked at first: at depth 128 there are as many to look through.
        let is_it = |h: &Held| h.stamp.sequence == held.stamp.sequence && *h == held;
        if held.stamp <= self.known_good || held.stamp <= self.newest && self.held.iter().rev().any(is_it) {
            return;
        }
        self.newest = self.newest.max(held.stamp);
        // The pieces of a long discard are one change.
        let follows =
            |h: &&mut Held| h.stamp == held.stamp && h.kind == held.kind && h.at.end() == held.at.from.0.into();
        if held.kind == HeldKind::Zero
            && let Some(before) = self.held.iter_mut().rev().find(follows)
        {
            before.at.count.0 += held.at.count.0;
            return;
        }
        self.held.push(held);
        if self.held.len() > MAX_HELD {
            self.merge_held();
        }
    }

    /// What was on the list when it was written, as it was.
    pub(super) fn relist(&mut self, held: Held) {
        self.newest = self.newest.max(held.stamp);
        self.held.push(held);
    }

    /// Halve the list: neighbours by position become one, as wide as both and everything between them. Settling then writes more
    /// than it must, never less.
    fn merge_held(&mut self) {
        self.held.sort_unstable_by_key(|held| (held.at.from, held.at.count));
        let merged = self.held.chunks(2).map(|pair| match *pair {
            [a, b] => {
                let count = a.at.end().max(b.at.end()) - u64::from(a.at.from.0);
                Held {
                    stamp: a.stamp.max(b.stamp),
                    at: BlockRange { from: a.at.from, count: Blocks(u32::try_from(count).unwrap_or(u32::MAX)) },
                    kind: if a.kind == b.kind { a.kind } else { HeldKind::Write },
                }
            }
            _ => pair[0], // `chunks` gives no empty ones
        });
        self.held = merged.collect();
    }
}

/// All copies and layers. Cheap to clone: copies are shared until they change.
#[derive(Clone, Default, Debug)]
pub(super) struct Catalog {
    pub(super) copies: BTreeMap<CopyId, Rc<CopyState>>,
    pub(super) layers: Forest,
    /// Layer ids from here on were never used.
    pub(super) next_layer: u32,
}

impl Catalog {
    /// A copy's own layer of this name.
    pub(super) fn snapshot(&self, copy: CopyId, snapshot: SnapshotId) -> Option<LayerId> {
        self.layers.of(copy).find(|(_, layer)| layer.snapshot == Some(snapshot)).map(|(id, _)| id)
    }

    /// A copy's snapshots, oldest first: a layer is frozen before the next is made.
    pub(super) fn snapshots(&self, copy: CopyId) -> Vec<SnapshotId> {
        self.layers.of(copy).filter_map(|(_, layer)| layer.snapshot).collect()
    }

    /// A stamp that nothing the copy's layers hold is newer than.
    pub(super) fn newest(&self, copy: CopyId) -> Stamp {
        let bases = self.layers.of(copy).map(|(_, layer)| layer.base).max();
        let stamps = self.copies.get(&copy).map(|state| {
            let FillMark { base, upto, .. } = state.mark;
            let held = state.held.iter().map(|held| held.stamp).max();
            state.known_good.max(base).max(upto).max(held.unwrap_or_default())
        });
        bases.unwrap_or_default().max(stamps.unwrap_or_default())
    }

    /// True if it is neither live nor named.
    pub(super) fn is_dropping(&self, id: LayerId) -> bool {
        self.layers.get(id).is_some_and(|layer| {
            layer.snapshot.is_none() && self.copies.get(&layer.copy).is_none_or(|copy| copy.live != id)
        })
    }

    /// A layer and all below it, from the top.
    pub(super) fn chain(&self, id: LayerId) -> impl Iterator<Item = (LayerId, &Layer)> {
        let first = self.layers.get(id).map(|layer| (id, layer));
        std::iter::successors(first, |(_, layer)| {
            let parent = layer.parent?;
            self.layers.get(parent).map(|layer| (parent, layer))
        })
        .take(2 * MAX_DEPTH)
    }

    /// A clone that stands on a layer of this copy; what a deleted one left needs nothing.
    pub(super) fn clone_of(&self, copy: CopyId) -> Option<CopyId> {
        let above = self.layers.of(copy).flat_map(|(id, _)| self.layers.above(id)).map(|(_, layer)| layer.copy);
        above.filter(|of| *of != copy).find(|of| self.copies.contains_key(of))
    }

    /// Change a copy.
    pub(super) fn copy_mut(&mut self, copy: CopyId) -> Option<&mut CopyState> {
        self.copies.get_mut(&copy).map(Rc::make_mut)
    }

    /// K. Before its first write a clone has all that it begins as: with less said it would be copied again.
    pub(super) fn known_good(&self, copy: CopyId) -> Option<Stamp> {
        let state = self.copies.get(&copy)?;
        let shares = || self.chain(state.live).any(|(_, layer)| layer.copy != copy);
        let inherits = state.known_good < INHERITED && shares() && !mutant::on("clone_has_nothing");
        Some(if inherits { INHERITED } else { state.known_good })
    }

    /// K grows: what it covers need not be listed any more. What it is now comes back.
    pub(super) fn advance(&mut self, copy: CopyId, known_good: Stamp) -> Stamp {
        let Some(now) = self.copies.get(&copy).map(|state| state.known_good) else { return known_good };
        if known_good <= now {
            return now;
        }
        if let Some(state) = self.copy_mut(copy) {
            state.known_good = known_good;
            state.held.retain(|held| held.stamp > known_good);
        }
        known_good
    }

    /// Remember how far the filling is; with a K it is over, and forgotten.
    pub(super) fn mark(&mut self, copy: CopyId, mark: FillMark, known_good: Option<Stamp>) {
        if let Some(state) = self.copy_mut(copy) {
            state.mark = known_good.map_or(mark, |_| FillMark::default());
        }
        if let Some(known_good) = known_good {
            self.advance(copy, known_good);
        }
    }

    /// List a change that is above K.
    pub(super) fn hold(&mut self, copy: CopyId, held: Held) {
        if let Some(state) = self.copy_mut(copy) {
            state.hold(held);
        }
    }

    /// Keep a configuration unless a newer one is here, or it shrinks the copy.
    pub(super) fn join(&mut self, copy: CopyId, config: &Configuration) {
        let Some(state) = self.copy_mut(copy) else { return };
        if config.epoch >= state.config.epoch && config.size >= state.config.size {
            state.config.clone_from(config);
            if config.in_sync_members().any(|m| m.copy == copy) {
                // It holds everything: how far it was filled once says nothing of the next time, nor does that of an image from the past.
                state.mark = FillMark::default();
            }
            let (live, blocks) = (state.live, state.blocks());
            self.layers.change(live, |layer| layer.blocks = blocks);
        }
    }

    fn add_layer(&mut self, id: LayerId, layer: Layer) {
        self.layers.insert(id, layer);
        self.next_layer = self.next_layer.max(id.0 + 1);
    }

    /// A new copy; its live layer stands on `parent`.
    pub(super) fn create(&mut self, copy: CopyId, config: Configuration, live: LayerId, parent: Option<LayerId>) {
        if self.copies.contains_key(&copy) {
            return self.join(copy, &config);
        }
        let mut slots: Vec<u32> = self.copies.values().map(|state| state.slot).collect();
        slots.sort_unstable();
        let slot = (0u32..).zip(&slots).find(|(n, slot)| n != *slot).map_or(slots.len(), |(n, _)| n as usize);
        let slot = u32::try_from(slot).unwrap_or(u32::MAX); // as many as copies
        let (known_good, mark) = (Stamp::default(), FillMark::default());
        let state = CopyState { config, known_good, held: Vec::new(), newest: Stamp::default(), mark, live, slot };
        let layer = Layer { copy, parent, snapshot: None, base: Stamp::default(), blocks: state.blocks() };
        self.copies.insert(copy, Rc::new(state));
        self.add_layer(live, layer);
    }

    /// The copy is gone: its layers, none of them needed, come back.
    pub(super) fn delete(&mut self, copy: CopyId) -> Vec<LayerId> {
        self.copies.remove(&copy);
        let own: Vec<LayerId> = self.layers.of(copy).map(|(id, _)| id).collect();
        for id in &own {
            self.layers.change(*id, |layer| layer.snapshot = None);
        }
        own
    }

    /// Freeze what is live, under a name, and put an empty layer on top.
    pub(super) fn freeze(&mut self, copy: CopyId, snapshot: SnapshotId, top: LayerId) {
        let Some(state) = self.copy_mut(copy) else { return };
        let (old, blocks) = (std::mem::replace(&mut state.live, top), state.blocks());
        let mut base = Stamp::default();
        self.layers.change(old, |layer| {
            layer.snapshot = Some(snapshot);
            base = layer.base;
        });
        self.add_layer(top, Layer { copy, parent: Some(old), snapshot: None, base, blocks });
    }

    /// Put an empty layer on top of a snapshot; the old live layer comes back.
    pub(super) fn roll_back(&mut self, copy: CopyId, to: LayerId, top: LayerId, base: Stamp) -> Option<LayerId> {
        let state = self.copy_mut(copy)?;
        let (old, blocks) = (std::mem::replace(&mut state.live, top), state.blocks());
        self.add_layer(top, Layer { copy, parent: Some(to), snapshot: None, base, blocks });
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, Epoch, Sequence, ShardId};

    fn config() -> Configuration {
        Configuration {
            shard: ShardId::default(),
            epoch: Epoch(1),
            primary: CopyId(1),
            members: vec![],
            full_set: vec![],
            min_copies: 1,
            attach: AttachGeneration(0),
            size: Bytes(1 << 30),
            born: true,
            durability: conductor_model::Durability::Always,
            cache: conductor_model::Commit(0),
            card: None,
            parent: None,
        }
    }

    #[test]
    fn a_long_list_above_known_good_is_merged_and_names_no_less() {
        let mut catalog = Catalog::default();
        catalog.create(CopyId(1), config(), LayerId(1), None);
        let stamp = |n| Stamp { epoch: Epoch(1), sequence: Sequence(n) };
        for n in 1..=5000u32 {
            let at = BlockRange { from: Blocks(n * 7919 % 200_000), count: Blocks(2) };
            catalog.hold(CopyId(1), Held { stamp: stamp(u64::from(n)), at, kind: HeldKind::Write });
            assert!(catalog.copies[&CopyId(1)].held.len() <= MAX_HELD);
        }
        for n in 1..=5000u32 {
            let at = BlockRange { from: Blocks(n * 7919 % 200_000), count: Blocks(2) };
            let covers = |h: &Held| h.at.from <= at.from && h.at.end() >= at.end() && h.stamp >= stamp(u64::from(n));
            assert!(catalog.copies[&CopyId(1)].held.iter().any(covers));
        }
        catalog.advance(CopyId(1), stamp(5000));
        assert!(catalog.copies[&CopyId(1)].held.is_empty());
    }

    #[test]
    fn how_far_a_copy_was_filled_is_forgotten_when_it_joins_as_one_that_holds_everything() {
        let mut catalog = Catalog::default();
        let copy = CopyId(1);
        catalog.create(copy, config(), LayerId(1), None);
        let stamp = |n| Stamp { epoch: Epoch(1), sequence: Sequence(n) };
        let mark = FillMark { base: stamp(1), cursor: Blocks(64), upto: stamp(9) };
        catalog.mark(copy, mark, None);
        let member = |state| conductor_model::Member {
            copy,
            node: conductor_model::NodeId(1),
            disk: conductor_model::DiskId(1),
            open: conductor_model::OpenId(1),
            state,
            since: Epoch(0),
            past: true,
            endpoint: ([10, 0, 0, 1], 1).into(),
        };
        for (state, kept) in [
            (conductor_model::CopyState::Syncing, mark),
            (conductor_model::CopyState::Absent, mark),
            (conductor_model::CopyState::InSync, FillMark::default()),
        ] {
            catalog.join(copy, &Configuration { members: vec![member(state)], ..config() });
            assert_eq!(catalog.copies[&copy].mark, kept, "{state:?}");
        }
    }

    #[test]
    fn snapshots_clones_and_rollbacks_make_the_layers_they_say() {
        let mut catalog = Catalog::default();
        let (copy, clone) = (CopyId(1), CopyId(2));
        catalog.create(copy, config(), LayerId(1), None);
        catalog.freeze(copy, SnapshotId(10), LayerId(2));
        catalog.freeze(copy, SnapshotId(11), LayerId(3));
        assert_eq!(catalog.snapshots(copy), [SnapshotId(10), SnapshotId(11)]);
        assert_eq!(catalog.chain(LayerId(3)).map(|(id, _)| id.0).collect::<Vec<_>>(), [3, 2, 1]);
        catalog.create(clone, config(), LayerId(4), catalog.snapshot(copy, SnapshotId(10)));
        assert_eq!((catalog.clone_of(copy), catalog.clone_of(clone)), (Some(clone), None));
        assert_eq!(catalog.copies[&clone].slot, 1);
        let stamp = Stamp { epoch: Epoch(2), sequence: Sequence(1) };
        assert_eq!(catalog.roll_back(copy, LayerId(1), LayerId(5), stamp), Some(LayerId(3)));
        assert!(
            catalog.is_dropping(LayerId(3)) && !catalog.is_dropping(LayerId(2)) && !catalog.is_dropping(LayerId(5))
        );
        assert_eq!(catalog.layers.above(LayerId(1)).map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!(catalog.delete(clone), [LayerId(4)]);
        assert!(catalog.is_dropping(LayerId(4)));
        assert_eq!(catalog.next_layer, 6);
    }
}
