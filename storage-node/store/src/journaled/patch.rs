//! What one generation says of one chunk. Every write changes one of up to 131,072 of them, which is in no processor's caches: a patch is a cache line,
//! and a block of a chunk of which many were written one more.

use super::entry::{ChunkNo, Mask};
use super::limits::{CHUNK_BLOCKS, MAX_RING_BLOCKS};
use super::ring::JournalBlock;
use conductor_model::Stamp;
use smallvec::SmallVec;

/// Where the newest content of a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spot {
    /// Zeros.
    Zero,
    /// Nowhere: no copy has it.
    Lost,
    /// In the journal.
    Journal(JournalBlock),
    /// In the patch's own chunk.
    Direct,
}

/// A block of a patch; `crc` is plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PatchBlock {
    pub(super) n: u8,
    pub(super) spot: Spot,
    pub(super) crc: u32,
}

/// The same in eight bytes, without its number.
#[derive(Clone, Copy, Default, Debug)]
struct Packed {
    /// A block of the journal, or one of three numbers that none has.
    spot: u32,
    crc: u32,
}

const ZERO: u32 = u32::MAX;
const LOST: u32 = u32::MAX - 1;
const DIRECT: u32 = u32::MAX - 2;
const _: () = assert!(MAX_RING_BLOCKS < DIRECT as u64, "no block of a journal has such a number");

impl Packed {
    fn of(spot: Spot, crc: u32) -> Self {
        let spot = match spot {
            Spot::Zero => ZERO,
            Spot::Lost => LOST,
            Spot::Direct => DIRECT,
            Spot::Journal(JournalBlock(at)) => at,
        };
        Self { spot, crc }
    }

    fn block(self, n: u8) -> PatchBlock {
        let spot = match self.spot {
            ZERO => Spot::Zero,
            LOST => Spot::Lost,
            DIRECT => Spot::Direct,
            at => Spot::Journal(JournalBlock(at)),
        };
        PatchBlock { n, spot, crc: self.crc }
    }
}

/// Changes of one chunk of a layer.
#[derive(Clone, Default, Debug)]
#[repr(align(64))]
pub(super) struct Patch {
    /// Of which blocks it says anything.
    decided: Mask,
    /// A free chunk is set aside for it.
    pub(super) reserved: bool,
    /// Writes that rely on the entry's chunk staying where it is.
    pub(super) claims: u32,
    /// A fresh chunk that was written whole.
    pub(super) direct: Option<ChunkNo>,
    /// Of the newest change.
    pub(super) version: Stamp,
    /// Of each decided block, in their order.
    blocks: SmallVec<[Packed; 3]>,
}

const _: () = assert!(size_of::<Patch>() == 64, "a cache line");

impl Patch {
    /// Blocks that it says anything of.
    pub(super) fn decided(&self) -> Mask {
        self.decided
    }

    /// True if it says anything of this one.
    pub(super) fn decides(&self, n: u8) -> bool {
        u32::from(n) < CHUNK_BLOCKS && self.decided >> n & 1 == 1
    }

    /// Blocks that it says are zeros.
    pub(super) fn zeros(&self) -> Mask {
        self.those(|spot| spot == Spot::Zero)
    }

    /// Blocks that it says are lost.
    pub(super) fn lost(&self) -> Mask {
        self.those(|spot| spot == Spot::Lost)
    }

    /// Blocks that it has content of.
    pub(super) fn written(&self) -> Mask {
        self.those(|spot| matches!(spot, Spot::Journal(_) | Spot::Direct))
    }

    /// How many blocks are such.
    pub(super) fn count(&self, such: impl Fn(Spot) -> bool) -> u32 {
        self.blocks().map(|block| u32::from(such(block.spot))).sum()
    }

    fn those(&self, such: impl Fn(Spot) -> bool) -> Mask {
        self.blocks().filter(|block| such(block.spot)).fold(0, |mask, block| mask | 1 << block.n)
    }

    /// What it says, in the order of blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = PatchBlock> {
        let decided = self.decided;
        let held = (0..16).filter(move |n| decided >> n & 1 == 1); // a chunk has 16 blocks
        held.zip(&self.blocks).map(|(n, packed)| packed.block(n))
    }

    /// What it says of a block.
    pub(super) fn get(&self, n: u32) -> Option<PatchBlock> {
        let n = u8::try_from(n).ok().filter(|n| self.decides(*n))?;
        self.blocks.get(self.place(n)).map(|packed| packed.block(n))
    }

    /// True if the fold needs a chunk to put it in.
    pub(super) fn needs_chunk(&self) -> bool {
        self.direct.is_none() && self.blocks.iter().any(|packed| packed.spot < DIRECT)
    }

    pub(super) fn set(&mut self, n: u32, spot: Spot, crc: u32) {
        let n = u8::try_from(n).unwrap_or(u8::MAX) & 15; // a chunk has 16 blocks
        let (place, packed) = (self.place(n), Packed::of(spot, crc));
        if self.decides(n) {
            self.blocks[place] = packed;
        } else {
            self.blocks.insert(place, packed);
            self.decided |= 1 << n;
        }
    }

    /// Takes out what it says of blocks that are such; `None` if none is. What is taken out is as new as all of it: newer than it was, so that
    /// what made the rest is stable before anybody reads that. Only of a patch that is nothing but blocks.
    pub(super) fn part_off(&mut self, such: impl Fn(Spot) -> bool) -> Option<Self> {
        let parted = self.those(such);
        if parted == 0 {
            return None;
        }
        let mut off = Self { decided: parted, version: self.version, ..Self::default() };
        let (mut n, decided) = (0..16, self.decided); // a chunk has 16 blocks
        self.blocks.retain(|packed| {
            let is_off = n.find(|n| decided >> n & 1 == 1).is_some_and(|n| parted >> n & 1 == 1);
            off.blocks.extend(is_off.then_some(*packed));
            !is_off
        });
        self.decided &= !parted;
        Some(off)
    }

    /// It says nothing of any block now.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.decided = 0;
    }

    /// Of a block, among those that are decided.
    fn place(&self, n: u8) -> usize {
        (self.decided & ((1 << n) - 1)).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn spot() -> impl Strategy<Value = Spot> {
        let last = u32::try_from(MAX_RING_BLOCKS).unwrap() - 1;
        let journal = (0..=last).prop_map(|at| Spot::Journal(JournalBlock(at)));
        prop_oneof![Just(Spot::Zero), Just(Spot::Lost), Just(Spot::Direct), journal]
    }

    proptest! {
        /// The same as a map of blocks.
        #[test]
        fn it_says_what_was_said_last(said in prop::collection::vec((0u8..16, spot(), any::<u32>()), 0..40)) {
            let (mut patch, mut map) = (Patch::default(), BTreeMap::new());
            for (n, spot, crc) in said {
                patch.set(n.into(), spot, crc);
                map.insert(n, PatchBlock { n, spot, crc });
            }
            prop_assert!(patch.blocks().eq(map.values().copied()));
            prop_assert!((0..=u8::MAX).all(|n| patch.get(n.into()) == map.get(&n).copied() && patch.decides(n) == map.contains_key(&n)));
            prop_assert_eq!(patch.decided(), map.keys().fold(0, |mask, n| mask | 1 << n));
            let those = |spot| map.values().filter(|block| block.spot == spot).fold(0, |mask, block| mask | 1 << block.n);
            let (zeros, lost) = (those(Spot::Zero), those(Spot::Lost));
            prop_assert_eq!((patch.zeros(), patch.lost()), (zeros, lost));
            prop_assert_eq!(patch.written(), patch.decided() & !(zeros | lost));
            prop_assert_eq!(patch.needs_chunk(), map.values().any(|block| matches!(block.spot, Spot::Journal(_))));
            let such = |spot| matches!(spot, Spot::Zero | Spot::Direct) || matches!(spot, Spot::Journal(at) if at.0 % 2 == 0);
            let (off, rest): (Vec<_>, Vec<_>) = map.values().copied().partition(|block| such(block.spot));
            let parted = patch.part_off(such);
            prop_assert_eq!(parted.map_or(vec![], |parted| parted.blocks().collect()), off);
            prop_assert_eq!(patch.blocks().collect::<Vec<_>>(), rest);
            patch.clear();
            prop_assert_eq!((patch.decided(), patch.blocks().count(), patch.get(3)), (0, 0, None));
        }
    }
}
