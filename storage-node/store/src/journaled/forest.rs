//! Layers by their ids, and who stands on whom: a disk has up to 65,536 of them, so that nobody looks through all for those of one copy, or
//! those above another.

use super::layers::{Layer, LayerId};
use conductor_model::CopyId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Default, Debug)]
pub(super) struct Forest {
    layers: BTreeMap<LayerId, Layer>,
    /// A copy, and each of its layers.
    own: BTreeSet<(CopyId, LayerId)>,
    /// A layer, and each of those right above it.
    above: BTreeSet<(LayerId, LayerId)>,
}

impl Forest {
    pub(super) fn len(&self) -> usize {
        self.layers.len()
    }

    pub(super) fn contains(&self, id: LayerId) -> bool {
        self.layers.contains_key(&id)
    }

    pub(super) fn get(&self, id: LayerId) -> Option<&Layer> {
        self.layers.get(&id)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (LayerId, &Layer)> {
        self.layers.iter().map(|(id, layer)| (*id, layer))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LayerId> {
        self.layers.keys().copied()
    }

    /// A copy's own layers, oldest first.
    pub(super) fn of(&self, copy: CopyId) -> impl Iterator<Item = (LayerId, &Layer)> {
        let own = self.own.range((copy, LayerId(0))..=(copy, LayerId(u32::MAX)));
        own.filter_map(|(_, id)| Some((*id, self.layers.get(id)?)))
    }

    /// The layers right above.
    pub(super) fn above(&self, id: LayerId) -> impl Iterator<Item = (LayerId, &Layer)> {
        let above = self.above.range((id, LayerId(0))..=(id, LayerId(u32::MAX)));
        above.filter_map(|(_, id)| Some((*id, self.layers.get(id)?)))
    }

    pub(super) fn insert(&mut self, id: LayerId, layer: Layer) {
        self.remove(id);
        self.layers.insert(id, layer);
        self.link(id, &layer);
    }

    /// What stands on it stands on nothing until it is changed.
    pub(super) fn remove(&mut self, id: LayerId) -> Option<Layer> {
        let layer = self.layers.remove(&id)?;
        self.unlink(id, &layer);
        Some(layer)
    }

    /// False if there is none.
    pub(super) fn change(&mut self, id: LayerId, change: impl FnOnce(&mut Layer)) -> bool {
        let Some(mut layer) = self.remove(id) else { return false };
        change(&mut layer);
        self.insert(id, layer);
        true
    }

    fn link(&mut self, id: LayerId, layer: &Layer) {
        self.own.insert((layer.copy, id));
        self.above.extend(layer.parent.map(|parent| (parent, id)));
    }

    fn unlink(&mut self, id: LayerId, layer: &Layer) {
        self.own.remove(&(layer.copy, id));
        if let Some(parent) = layer.parent {
            self.above.remove(&(parent, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::Stamp;

    /// What a look through all layers would find.
    fn assert_indexed(forest: &Forest) {
        for id in (0..12).map(LayerId) {
            let above: Vec<LayerId> = forest.iter().filter(|(_, l)| l.parent == Some(id)).map(|(id, _)| id).collect();
            assert_eq!(forest.above(id).map(|(id, _)| id).collect::<Vec<_>>(), above);
        }
        for copy in (0..4).map(CopyId) {
            let own: Vec<LayerId> = forest.iter().filter(|(_, l)| l.copy == copy).map(|(id, _)| id).collect();
            assert_eq!(forest.of(copy).map(|(id, _)| id).collect::<Vec<_>>(), own);
        }
        let links = forest.iter().filter(|(_, layer)| layer.parent.is_some()).count();
        assert_eq!((forest.own.len(), forest.above.len()), (forest.len(), links), "nothing is left of what is gone");
    }

    #[test]
    fn who_stands_on_whom_is_what_the_layers_say() {
        let mut forest = Forest::default();
        let mut seed = 7_u64;
        let mut draw = |of: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % of
        };
        for _ in 0..2_000 {
            let id = LayerId(u32::try_from(draw(12)).unwrap_or(0));
            let parent = draw(3).checked_sub(1).map(|_| LayerId(u32::try_from(draw(12)).unwrap_or(0)));
            let copy = CopyId(draw(4));
            match draw(3) {
                0 => {
                    let layer = Layer { copy, parent, snapshot: None, base: Stamp::default(), blocks: 1 };
                    forest.insert(id, layer);
                    assert_eq!(forest.get(id), Some(&layer));
                }
                1 => {
                    let there = forest.contains(id);
                    assert_eq!(forest.remove(id).is_some(), there);
                }
                _ => {
                    let there = forest.contains(id);
                    assert_eq!(forest.change(id, |layer| (layer.parent, layer.copy) = (parent, copy)), there);
                }
            }
            assert_indexed(&forest);
        }
    }
}
