//! What tests and benchmarks ask an open store: versions of entries, how far the fold is, what is in memory.

use super::engine::JournaledStore;
use super::limits::CHUNK_BLOCKS;
use conductor_model::{Blocks, Bytes, CopyId, Stamp};

impl JournaledStore {
    /// The version of the chunk that a block of a live copy lies in (rule 7), as the last fold left it: what was changed last, be
    /// it gone since. `None` if nothing is known of it, or not in memory: a read brings it there.
    pub fn version_of(&mut self, copy: CopyId, block: Blocks) -> Option<Stamp> {
        let live = self.catalog.copies.get(&copy)?.live;
        let entry = self.tables.entry(live, block.0 / CHUNK_BLOCKS).ok()?;
        (!entry.is_absent()).then_some(entry.version)
    }

    /// Blocks of the journal that are not in use.
    pub fn journal_free(&self) -> Blocks {
        Blocks(self.ring.free_blocks())
    }

    /// Metadata pages in memory.
    pub fn cached(&self) -> Bytes {
        self.tables.pages.cached_bytes()
    }
}
