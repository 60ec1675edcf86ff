//! The paged arrays as typed tables: mapping entries, chunk records, the bitmap of used chunks.

use super::entry::{ChunkNo, ChunkRecord, Entry};
use super::layers::LayerId;
use super::limits::{CHUNK_RECORD_BYTES, COPY_BYTES, ENTRY_BYTES, HELD_BYTES, LAYER_BYTES, USED_BYTES, USED_CHUNKS};
use super::pages::{ArrayName, Lookup, LookupMut, Next, Pages, Root};
use super::superblock::{CHUNKS, COPIES, HELD, LAYERS, OUTER, USED};
use std::collections::{BTreeMap, BTreeSet};

/// Why a record is not to be had now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Its page is on its way: ask again.
    Load,
    /// Its page is damaged in both mirrors, or holds nonsense.
    Damaged,
    /// No place for the pages that would change.
    Full,
}

/// A layer's map, beside what the catalog knows of the layer. Only the fold changes it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Tree {
    pub(super) root: Root,
    /// Chunks before this index were given back, or merged into the layer above: what is still in the map does not count.
    pub(super) cursor: u32,
    /// Chunks that its entries hold and that were first owned by its shard.
    pub(super) chunks: u32,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) pages: Pages,
    pub(super) trees: BTreeMap<LayerId, Tree>,
    /// Layers whose records have a place in this checkpoint.
    touched: BTreeSet<LayerId>,
    chunks: u32,
}

/// How long the records of each outer array are.
pub(super) fn record_len(name: ArrayName) -> usize {
    match name {
        COPIES => COPY_BYTES,
        LAYERS => LAYER_BYTES,
        CHUNKS => CHUNK_RECORD_BYTES,
        HELD => HELD_BYTES,
        _ => USED_BYTES,
    }
}

impl Tables {
    /// With the outer arrays open.
    pub(super) fn new(mut pages: Pages, roots: [Root; 5], chunks: u32) -> Self {
        for (name, root) in OUTER.into_iter().zip(roots) {
            pages.open_array(name, record_len(name), root);
        }
        Self { pages, trees: BTreeMap::new(), touched: BTreeSet::new(), chunks }
    }

    /// Get to know a layer.
    pub(super) fn open_layer(&mut self, layer: LayerId, tree: Tree) {
        if self.trees.insert(layer, tree).is_none() {
            self.pages.open_array(ArrayName::map_of(layer.0), ENTRY_BYTES, tree.root);
        }
    }

    /// Forget a layer whose map was given back, after the checkpoint that says so.
    pub(super) fn close_layer(&mut self, layer: LayerId) {
        self.trees.remove(&layer);
        self.pages.close_array(ArrayName::map_of(layer.0));
    }

    /// A new checkpoint begins.
    pub(super) fn begin(&mut self) {
        self.touched.clear();
    }

    /// Layers whose maps may have changed since `begin`.
    pub(super) fn touched(&self) -> &BTreeSet<LayerId> {
        &self.touched
    }

    /// A record of any array, as bytes; `None`: zeros.
    pub(super) fn get(&mut self, name: ArrayName, index: u64) -> Result<Option<&[u8]>, Wait> {
        match self.pages.get(name, index) {
            Lookup::Here(bytes) => Ok(Some(bytes)),
            Lookup::Hole => Ok(None),
            Lookup::Load => Err(Wait::Load),
            Lookup::Damaged => Err(Wait::Damaged),
        }
    }

    /// A record of any array, to be changed.
    pub(super) fn get_mut(&mut self, name: ArrayName, index: u64) -> Result<&mut [u8], Wait> {
        match self.pages.get_mut(name, index) {
            LookupMut::Here(bytes) => Ok(bytes),
            LookupMut::Load => Err(Wait::Load),
            LookupMut::Damaged => Err(Wait::Damaged),
            LookupMut::Full => Err(Wait::Full),
        }
    }

    /// The first record at or after `from` that has a page.
    pub(super) fn next(&mut self, name: ArrayName, from: u64) -> Result<Option<u64>, Wait> {
        match self.pages.next_present(name, from) {
            Next::At(index) => Ok(Some(index)),
            Next::End => Ok(None),
            Next::Load => Err(Wait::Load),
            Next::Damaged => Err(Wait::Damaged),
        }
    }

    /// What a layer says of a chunk.
    pub(super) fn entry(&mut self, layer: LayerId, chunk: u32) -> Result<Entry, Wait> {
        if self.trees.get(&layer).is_none_or(|tree| chunk < tree.cursor) {
            return Ok(Entry::default());
        }
        let chunks = self.chunks;
        let bytes = self.get(ArrayName::map_of(layer.0), chunk.into())?;
        bytes.map_or(Ok(Entry::default()), |bytes| Entry::decode(bytes, chunks).ok_or(Wait::Damaged))
    }

    /// The first chunk at or after `from` of which a layer says anything.
    pub(super) fn next_entry(&mut self, layer: LayerId, from: u32) -> Result<Option<(u32, Entry)>, Wait> {
        let mut at = u64::from(from.max(self.trees.get(&layer).map_or(0, |tree| tree.cursor)));
        // One leaf at a time is looked through; holes are skipped by the pages.
        while let Some(index) = self.next(ArrayName::map_of(layer.0), at)? {
            let Ok(chunk) = u32::try_from(index) else { return Err(Wait::Damaged) };
            let entry = self.entry(layer, chunk)?;
            if !entry.is_absent() {
                return Ok(Some((chunk, entry)));
            }
            at = index + 1;
        }
        Ok(None)
    }

    /// What is known of a physical chunk.
    pub(super) fn chunk(&mut self, chunk: ChunkNo) -> Result<ChunkRecord, Wait> {
        let bytes = self.get(CHUNKS, chunk.index().into())?;
        bytes.map_or(Ok(ChunkRecord::default()), |bytes| ChunkRecord::decode(bytes).ok_or(Wait::Damaged))
    }

    /// Make sure that an entry can be changed: afterwards, in the same turn, `put_entry` succeeds.
    pub(super) fn touch_entry(&mut self, layer: LayerId, chunk: u32) -> Result<(), Wait> {
        if !self.touched.contains(&layer) {
            // The record that holds the map's root changes with it: its place is taken now.
            self.get_mut(LAYERS, layer.0.into())?;
            self.touched.insert(layer);
        }
        self.get_mut(ArrayName::map_of(layer.0), chunk.into()).map(|_| ())
    }

    /// The same for a physical chunk's record and its bit.
    pub(super) fn touch_chunk(&mut self, chunk: ChunkNo) -> Result<(), Wait> {
        self.get_mut(CHUNKS, chunk.index().into())?;
        self.get_mut(USED, u64::from(chunk.index() / USED_CHUNKS)).map(|_| ())
    }

    /// Change an entry. `own`: by how many its layer's own chunks grew. Behind the cursor nobody would find it: a store that comes to that
    /// goes on with nothing.
    pub(super) fn put_entry(&mut self, layer: LayerId, chunk: u32, entry: &Entry, own: i64) -> Result<(), Wait> {
        if self.trees.get(&layer).is_some_and(|tree| chunk < tree.cursor) {
            return Err(Wait::Damaged);
        }
        let bytes = if entry.is_absent() { [0; ENTRY_BYTES] } else { entry.encode() };
        self.get_mut(ArrayName::map_of(layer.0), chunk.into())?.copy_from_slice(&bytes);
        if let Some(tree) = self.trees.get_mut(&layer) {
            tree.chunks = u32::try_from(i64::from(tree.chunks) + own).unwrap_or(0);
        }
        Ok(())
    }

    /// Change a physical chunk's record, and the bit that says whether it is in use.
    pub(super) fn put_chunk(&mut self, chunk: ChunkNo, record: &ChunkRecord) -> Result<(), Wait> {
        let bytes = if record.refs == 0 { [0; CHUNK_RECORD_BYTES] } else { record.encode() };
        self.get_mut(CHUNKS, chunk.index().into())?.copy_from_slice(&bytes);
        let (at, bit) = (chunk.index() / USED_CHUNKS, (chunk.index() % USED_CHUNKS) as usize);
        let byte = &mut self.get_mut(USED, at.into())?[bit / 8];
        match record.refs {
            0 => *byte &= !(1 << (bit % 8)),
            _ => *byte |= 1 << (bit % 8),
        }
        Ok(())
    }
}
