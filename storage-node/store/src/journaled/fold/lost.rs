//! Metadata that is bad in both mirrors, where something new is to be put on top: what it said is lost from then on, and said to be.
//!
//! | lost | what it becomes | until |
//! |---|---|---|
//! | leaf of a layer's map | entries all of whose blocks are lost; in a live layer as new as anything that the copy has, in another one of a version that is not known | they are written or discarded: a scrub, or a read, has another copy's content written |
//! | leaf of chunk records | records that share their chunk with nobody knows how many, and know no checksum | the chunk is free, and used anew |
//! | page of pointers to such | one that points to nothing: each leaf below it is lost in its turn | |
//!
//! Chunks that only a lost entry had stay in use, by nobody, until the store is formatted (the superblock counts lost pages, so that a check
//! can tell). All else is needed to open the store, and is given up with it.

use super::super::engine::JournaledStore;
use super::super::entry::{ChunkRecord, Entry, UNKNOWN, mask};
use super::super::layers::LayerId;
use super::super::limits::{CHUNK_BLOCKS, CHUNK_RECORD_BYTES};
use super::super::pages::{ArrayName, GivenUp};
use super::super::superblock::CHUNKS;
use super::Step;
use conductor_model::Stamp;
use driver::{Errno, mutant};

impl JournaledStore {
    /// A version, in this layer. One that is not known is at most as new as what the copy has now: where the layer still changes, that does
    /// (rule 7: too new rather than too old). Nothing is newer in a snapshot than the snapshot, and how new that is nobody knows here.
    pub(super) fn known_version(&self, layer: LayerId, version: Stamp) -> Stamp {
        let frozen = &self.fold.frozen;
        let copy = frozen.layers.get(layer).map(|info| info.copy);
        let live = copy.filter(|copy| frozen.copies.get(copy).is_some_and(|state| state.live == layer));
        live.filter(|_| version == UNKNOWN).map_or(version, |copy| frozen.newest(copy))
    }

    /// The fold has met a page that is bad in both mirrors, or nonsense in one that is not.
    pub(super) fn met_damage(&mut self) -> Step {
        let bad = self.tables.pages.met_bad();
        let given_up = match bad.map(|bad| (bad, bad.array())) {
            Some((bad, CHUNKS)) => {
                let record = ChunkRecord::LOST.encode();
                debug_assert_eq!(record.len(), CHUNK_RECORD_BYTES);
                let there = 0..self.place.geometry.chunks().into();
                self.tables.pages.give_up(bad, there, &mut |_, bytes| bytes.copy_from_slice(&record))
            }
            Some((bad, ArrayName(map))) if map >= ArrayName::INNER => {
                let layer = LayerId(map - ArrayName::INNER);
                let (Some(info), Some(tree)) = (self.fold.frozen.layers.get(layer), self.tables.trees.get(&layer))
                else {
                    self.fail(Errno::IO);
                    return Step::Stay;
                };
                let blocks = info.blocks;
                let entry = Entry { version: self.known_version(layer, UNKNOWN), ..Entry::default() };
                let there = tree.cursor.into()..blocks.div_ceil(CHUNK_BLOCKS).into();
                self.tables.pages.give_up(bad, there, &mut |chunk, bytes| {
                    let first = u32::try_from(chunk).unwrap_or(u32::MAX).saturating_mul(CHUNK_BLOCKS);
                    let lost =
                        if mutant::on("store-lost-forgotten") { 0 } else { mask(0, blocks.saturating_sub(first)) };
                    bytes.copy_from_slice(&Entry { lost, ..entry }.encode());
                })
            }
            _ => GivenUp::Not,
        };
        match given_up {
            GivenUp::Again => return Step::On,
            GivenUp::Load => {}
            GivenUp::Full => self.fail(Errno::NO_SPACE),
            GivenUp::Not => self.fail(Errno::IO),
        }
        Step::Stay
    }
}
