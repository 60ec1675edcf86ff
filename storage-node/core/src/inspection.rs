//! Looking through a piece of a copy: which of its blocks do not read as they were written, and the checksums of the others.
//!
//! A store's answer to a read names the first damaged block only. So the blocks before it are read once more, for their checksums,
//! and the look goes on behind it: two reads more for each damaged block, nothing for a sound piece.

use conductor_model::{BlockRange, Blocks};
use node_protocol::MAX_VERIFY_BLOCKS;
use node_store::ZERO_BLOCK_CRC;

/// Blocks of one read: 64 KiB, small enough for the share of any arena.
const STEP: u32 = 16;

/// What looking through a piece cost, in blocks read: those that are no holes, and a sixteenth of a piece for what leads to content.
pub(crate) fn cost_of(crcs: &[u32]) -> Blocks {
    let content = crcs.iter().filter(|crc| **crc != ZERO_BLOCK_CRC).count();
    Blocks(u32::try_from(content).unwrap_or(u32::MAX).saturating_add(MAX_VERIFY_BLOCKS / 16))
}

/// A piece of at most `MAX_VERIFY_BLOCKS` and how far it has been looked through.
#[derive(Debug)]
pub(crate) struct Inspection {
    piece: BlockRange,
    /// Blocks that are done.
    done: u32,
    /// The next block that is known to be damaged.
    bad: Option<u32>,
    /// Bit n: block n is damaged.
    damaged: u64,
    /// Of each block that is done; of a damaged one it says nothing.
    crcs: Vec<u32>,
}

impl Inspection {
    /// Nothing of `piece` has been looked at.
    pub(crate) fn new(piece: BlockRange) -> Self {
        debug_assert!(piece.count.0 <= MAX_VERIFY_BLOCKS);
        Self { piece, done: 0, bad: None, damaged: 0, crcs: Vec::new() }
    }

    /// What to read next; `None` when all is looked at.
    pub(crate) fn next(&mut self) -> Option<BlockRange> {
        if self.bad == Some(self.done) {
            self.bad = None;
            self.damaged |= 1 << self.done;
            self.crcs.push(0);
            self.done += 1;
        }
        let end = self.bad.unwrap_or(self.piece.count.0).min(self.done + STEP);
        let from = Blocks(self.piece.from.0 + self.done);
        (end > self.done).then(|| BlockRange { from, count: Blocks(end - self.done) })
    }

    /// It read well.
    pub(crate) fn sound(&mut self, crcs: &[u32]) {
        self.crcs.extend_from_slice(crcs);
        self.done += u32::try_from(crcs.len()).unwrap_or(0);
    }

    /// This block of it is the first that did not.
    pub(crate) fn damaged_at(&mut self, block: Blocks) {
        let n = block.0.wrapping_sub(self.piece.from.0);
        self.bad = Some(if (self.done..self.piece.count.0).contains(&n) { n } else { self.done });
    }

    /// What was found, once all is looked at.
    pub(crate) fn found(self) -> (u64, Vec<u32>) {
        (self.damaged, self.crcs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_damaged_block_is_found_and_every_sound_one_has_its_checksum(bad in any::<u64>(), dense in any::<bool>(), from in 0u32..1000, count in 1u32..=MAX_VERIFY_BLOCKS) {
            let bad = if dense { bad } else { bad & bad.rotate_left(17) & bad.rotate_left(31) };
            let piece = BlockRange { from: Blocks(from), count: Blocks(count) };
            let is_bad = |block: u32| bad >> (block - from) & 1 == 1;
            let mut look = Inspection::new(piece);
            let mut reads = 0;
            while let Some(read) = look.next() {
                reads += 1;
                prop_assert!(reads <= 300 && read.count.0 > 0 && read.count.0 <= STEP);
                prop_assert!(read.from.0 >= from && read.end() <= piece.end());
                let blocks = read.from.0..read.from.0 + read.count.0;
                match blocks.clone().find(|b| is_bad(*b)) {
                    Some(first) => look.damaged_at(Blocks(first)),
                    None => look.sound(&blocks.collect::<Vec<_>>()),
                }
            }
            let (damaged, crcs) = look.found();
            let mask = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            prop_assert_eq!(damaged, bad & mask);
            prop_assert_eq!(crcs.len(), count as usize);
            for (block, crc) in (from..).zip(crcs) {
                prop_assert!(is_bad(block) || crc == block);
            }
        }
    }
}
