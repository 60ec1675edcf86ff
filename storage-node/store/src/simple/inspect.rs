//! What offline tools ask of an open store beyond serving: whose it is, how it is divided, what it holds.

use super::engine::SimpleStore;
use super::layout::Geometry;
use crate::MAX_REQUEST_BLOCKS;
use crate::opening::Identity;
use conductor_model::{BlockRange, Blocks, CopyId};

impl SimpleStore {
    /// What the superblock says.
    pub fn identity(&self) -> Identity {
        self.place.identity
    }

    /// How the disk is divided.
    pub fn geometry(&self) -> Geometry {
        self.place.geometry
    }

    /// Blocks of a copy that hold data; `None` without such a copy.
    pub fn held(&self, copy: CopyId) -> Option<Blocks> {
        self.copies.get(&copy).map(|state| Blocks(state.map.mapped()))
    }

    /// The first run of blocks at or after `from` that hold data: one read's worth at most.
    pub fn next_held(&self, copy: CopyId, from: Blocks) -> Option<BlockRange> {
        let mut held = self.copies.get(&copy)?.map.from(from.0).map(|(block, ..)| block);
        let first = held.next()?;
        let more = (first + 1..).zip(held).take(MAX_REQUEST_BLOCKS as usize - 1);
        let count = 1 + more.take_while(|(next, block)| next == block).map(|_| 1).sum::<u32>();
        Some(BlockRange { from: Blocks(first), count: Blocks(count) })
    }
}
