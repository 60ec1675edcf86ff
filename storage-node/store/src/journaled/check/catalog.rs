//! Copies, layers, lists above K and the bitmap of used chunks, as the last checkpoint left them.

use super::super::entry::ChunkNo;
use super::super::fold::{decode_copy, decode_held, decode_layer};
use super::super::layers::{Catalog, CopyState, LayerId};
use super::super::limits::{CHUNK_BLOCKS, COPY_BYTES, HELD_BYTES, LAYER_BYTES, USED_BYTES, USED_CHUNKS};
use super::super::overlay::Overlay;
use super::super::pages::{ArrayName, Finder, PageRead, Region, Root, TakenPlaces, Walk};
use super::super::space::Space;
use super::super::superblock::{CHUNKS, COPIES, HELD, LAYERS, OUTER, Superblock, USED};
use super::super::tables::Tree;
use super::{Content, CopySeen, LayerSeen, Part, Report, Severity};
use crate::MAX_HELD;
use conductor_model::{Blocks, CopyId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What the metadata says, first of the last checkpoint, then with the journal on top.
pub(super) struct Found {
    pub(super) catalog: Catalog,
    /// The maps of the checkpoint's layers.
    pub(super) trees: BTreeMap<LayerId, Tree>,
    /// Chunks in use.
    pub(super) space: Space,
    pub(super) overlay: Overlay,
    /// False if any of this is missing or nonsense: nothing is concluded from it then.
    pub(super) whole: bool,
    /// True if all entries were counted: only then something can be said to be leaked.
    pub(super) counted: bool,
}

pub(super) fn root(superblock: &Superblock, name: ArrayName) -> Root {
    OUTER.into_iter().zip(superblock.roots).find(|(outer, _)| *outer == name).map_or(Root::default(), |(_, root)| root)
}

/// A name for a person.
pub(super) fn array_name(array: ArrayName) -> String {
    match array {
        COPIES => "the copies".to_owned(),
        LAYERS => "the layers".to_owned(),
        CHUNKS => "the chunk records".to_owned(),
        HELD => "the lists above K".to_owned(),
        USED => "the bitmap of used chunks".to_owned(),
        ArrayName(inner) => format!("the map of layer {}", inner.wrapping_sub(ArrayName::INNER)),
    }
}

/// True if no store can be opened without it.
pub(super) fn needed_to_open(array: ArrayName) -> bool {
    [COPIES, LAYERS, HELD, USED].contains(&array)
}

/// The map of places for pages.
pub(super) fn read_map(
    superblock: &Superblock,
    walk: &Walk<'_>,
    read: &mut PageRead<'_>,
    report: &mut Report,
) -> Option<TakenPlaces> {
    let (taken, flaws) = walk.map(superblock.map, read);
    let severity = if taken.is_some() { Severity::Notice } else { Severity::Fatal };
    for (mirror, page) in flaws {
        let at =
            format!("{} page {page}, {} mirror", superblock.map.area, ["first", "second"][usize::from(mirror & 1)]);
        report.find(severity, Part::Map, at, "it does not read as it was written");
    }
    taken
}

impl Found {
    /// Reads it.
    pub(super) fn read(
        superblock: &Superblock,
        walk: &mut Walk<'_>,
        read: &mut PageRead<'_>,
        report: &mut Report,
    ) -> Self {
        let geometry = superblock.geometry;
        let mut this = Self {
            catalog: Catalog { next_layer: superblock.next_layer.max(1), ..Catalog::default() },
            trees: BTreeMap::new(),
            space: Space::new(geometry.chunks()),
            overlay: Overlay::default(),
            whole: true,
            counted: true,
        };
        let held = this.copies(superblock, walk, read, report);
        this.layers(superblock, walk, read, report);
        this.held(superblock, held, walk, read, report);
        this.used(superblock, walk, read, report);
        this.whole &= !walk.blind;
        if this.whole {
            this.relations(report);
        }
        this
    }

    fn nonsense(&mut self, report: &mut Report, part: Part, at: String, what: &str) {
        self.whole = false;
        report.find(Severity::Fatal, part, at, what);
    }

    /// Gives whose list is where and how long it is.
    fn copies(
        &mut self,
        superblock: &Superblock,
        walk: &mut Walk<'_>,
        read: &mut PageRead<'_>,
        report: &mut Report,
    ) -> BTreeMap<u32, (CopyId, u16)> {
        let mut held = BTreeMap::new();
        walk.array(COPIES, COPY_BYTES, root(superblock, COPIES), read, &mut |_, index, bytes| {
            let at = format!("in slot {index}");
            let slot = u32::try_from(index).ok().filter(|slot| *slot < superblock.geometry.max_copies());
            let Some((slot, Some((copy, state, count)))) =
                slot.and_then(|slot| Some((slot, decode_copy(slot, bytes)?)))
            else {
                return self.nonsense(report, Part::Copy, at, "its record is none that this engine could have written");
            };
            held.insert(slot, (copy, count));
            if self.catalog.copies.insert(copy, Rc::new(state)).is_some() {
                self.nonsense(report, Part::Copy, format!("{copy} {at}"), "there is another one of the same name");
            }
        });
        held
    }

    fn layers(&mut self, superblock: &Superblock, walk: &mut Walk<'_>, read: &mut PageRead<'_>, report: &mut Report) {
        walk.array(LAYERS, LAYER_BYTES, root(superblock, LAYERS), read, &mut |_, index, bytes| {
            let id = u32::try_from(index).ok().filter(|id| *id < superblock.next_layer).map(LayerId);
            let id = id.filter(|id| id.0 > 0 && id.0 < u32::MAX - ArrayName::INNER);
            let Some((id, Some((layer, tree)))) = id.and_then(|id| Some((id, decode_layer(bytes)?))) else {
                let what = "its record is none that this engine could have written";
                return self.nonsense(report, Part::Layer, index.to_string(), what);
            };
            // A layer's parent is older: no layer is below itself.
            if let Some(parent) = layer.parent.filter(|parent| *parent >= id) {
                let what = format!("it stands on layer {}, which is not older", parent.0);
                return self.nonsense(report, Part::Layer, index.to_string(), &what);
            }
            self.catalog.layers.insert(id, layer);
            self.trees.insert(id, tree);
        });
    }

    fn held(
        &mut self,
        superblock: &Superblock,
        lists: BTreeMap<u32, (CopyId, u16)>,
        walk: &mut Walk<'_>,
        read: &mut PageRead<'_>,
        report: &mut Report,
    ) {
        walk.array(HELD, HELD_BYTES, root(superblock, HELD), read, &mut |_, index, bytes| {
            let (slot, n) = (index / MAX_HELD as u64, index % MAX_HELD as u64);
            let list = u32::try_from(slot).ok().and_then(|slot| lists.get(&slot));
            let Some((copy, _)) = list.filter(|(_, count)| n < u64::from(*count)) else {
                let what = format!("number {n} of its list above K is one that nothing counts");
                return report.find(Severity::Error, Part::Copy, format!("in slot {slot}"), what);
            };
            let Some(held) = decode_held(bytes) else {
                let what = format!("number {n} of its list above K is nonsense");
                return self.nonsense(report, Part::Copy, copy.to_string(), &what);
            };
            let Some(state) = self.catalog.copy_mut(*copy) else { return };
            if held.stamp <= state.known_good || !state.contains(held.at) {
                let what =
                    format!("its list above K has {} at blocks {}, K being {}", held.stamp, held.at, state.known_good);
                report.find(Severity::Error, Part::Copy, copy.to_string(), what);
            }
            state.held.push(held);
        });
        for (copy, count) in lists.into_values() {
            let there = self.catalog.copies.get(&copy).map_or(0, |state| state.held.len());
            if there != usize::from(count) && !walk.blind {
                let what = format!("its list above K has {there} of {count}");
                self.nonsense(report, Part::Copy, copy.to_string(), &what);
            }
        }
    }

    fn used(&mut self, superblock: &Superblock, walk: &mut Walk<'_>, read: &mut PageRead<'_>, report: &mut Report) {
        walk.array(USED, USED_BYTES, root(superblock, USED), read, &mut |_, index, bytes| {
            let first = u32::try_from(index).ok().and_then(|index| index.checked_mul(USED_CHUNKS));
            let bits = (0u32..)
                .zip(bytes)
                .flat_map(|(n, byte)| (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| n * 8 + bit));
            for bit in bits {
                let chunk = first.and_then(|first| first.checked_add(bit)).and_then(ChunkNo::at);
                if !chunk.is_some_and(|chunk| self.space.claim(chunk)) {
                    let at = format!("{bit} behind {index} × {USED_CHUNKS}");
                    self.nonsense(report, Part::Chunk, at, "it is marked as used and beyond the end of the disk");
                }
            }
        });
    }

    /// Do copies and layers fit each other?
    fn relations(&mut self, report: &mut Report) {
        let mut whole = true;
        let mut nonsense = |part, at: String, what: String| {
            whole = false;
            report.find(Severity::Fatal, part, at, what);
        };
        let Catalog { copies, layers, .. } = &self.catalog;
        for (copy, state) in copies {
            let live = layers.get(state.live);
            if !live.is_some_and(|layer| layer.copy == *copy && layer.snapshot.is_none()) {
                let what = format!("its live layer {} is not there, or not its own", state.live.0);
                nonsense(Part::Copy, copy.to_string(), what);
            }
        }
        let mut names = BTreeSet::new();
        for (id, layer) in layers.iter() {
            if let Some(parent) = layer.parent.filter(|parent| !layers.contains(*parent)) {
                nonsense(Part::Layer, id.0.to_string(), format!("it stands on layer {}, which is not there", parent.0));
            }
            if layer.snapshot.is_some_and(|name| !names.insert((layer.copy, name))) {
                nonsense(Part::Layer, id.0.to_string(), "another layer of its copy has the same name".to_owned());
            }
            if layer.snapshot.is_some() && !copies.contains_key(&layer.copy) {
                nonsense(
                    Part::Layer,
                    id.0.to_string(),
                    format!("it is a snapshot of copy {}, which is not there", layer.copy),
                );
            }
        }
        self.whole &= whole;
    }

    /// For the report.
    pub(super) fn describe(&self, content: &mut Content) {
        let used = |copy: CopyId| {
            let own = self.catalog.layers.of(copy);
            own.filter_map(|(id, _)| self.trees.get(&id)).map(|tree| tree.chunks).fold(0, u32::saturating_add)
        };
        let copy = |(copy, state): (&CopyId, &Rc<CopyState>)| CopySeen {
            copy: *copy,
            config: state.config.clone(),
            known_good: state.known_good,
            held: state.held.clone(),
            mark: state.mark,
            live: state.live.0,
            used: Blocks(used(*copy).saturating_mul(CHUNK_BLOCKS)),
        };
        content.copies = self.catalog.copies.iter().map(copy).collect();
        content.layers = self
            .catalog
            .layers
            .iter()
            .map(|(id, layer)| {
                let tree = self.trees.get(&id).copied().unwrap_or_default();
                LayerSeen {
                    layer: id.0,
                    copy: layer.copy,
                    parent: layer.parent.map(|parent| parent.0),
                    snapshot: layer.snapshot,
                    live: self.catalog.copies.get(&layer.copy).is_some_and(|copy| copy.live == id),
                    blocks: layer.blocks,
                    base: layer.base,
                    cursor: tree.cursor,
                    chunks: tree.chunks,
                }
            })
            .collect();
    }

    /// A chunk's record, by the checkpoint.
    pub(super) fn record<'a>(
        finder: &'a mut Finder,
        superblock: &Superblock,
        region: &Region,
        chunk: ChunkNo,
        read: &mut PageRead<'_>,
    ) -> Option<&'a [u8]> {
        let array = (CHUNKS, super::super::limits::CHUNK_RECORD_BYTES, root(superblock, CHUNKS));
        finder.record(region, array, chunk.index().into(), read)
    }
}
