//! What is on a disk: what reads see, and what a power loss may leave of it.
//!
//! Every write is volatile from the moment it takes effect. Its completion (durable writes) or a later sync (others) settles it:
//! from then on its blocks hold it, or something newer, whatever happens. At a loss each unsettled write is kept, torn at
//! 512 bytes, or lost.
//!
//! ```text
//!   block 7:  stable ──▶ version(write 12) ──▶ version(write 15) = what reads see
//!             what is sure    oldest unsettled        newest
//! ```

use crate::random::Rng;
use crate::size;
use crate::trace::Trace;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The unit of disk operations.
pub(crate) const BLOCK: usize = 4096;
/// The unit that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// One block; `None` is all zeros, and takes no space.
type Block = Option<Rc<[u8; BLOCK]>>;

/// Which write, unique on its disk.
pub(crate) type WriteId = u64;

struct Version {
    write: WriteId,
    /// The count of completions at its own; none while it is in flight.
    completed: Option<u64>,
    block: Block,
}

struct Unsettled {
    stable: Block,
    versions: Vec<Version>,
}

#[derive(Default)]
pub(crate) struct Content {
    seen: BTreeMap<u64, Rc<[u8; BLOCK]>>,
    unsettled: BTreeMap<u64, Unsettled>,
}

/// A copy of all that is on a disk.
#[derive(Debug, Clone)]
pub struct Image(BTreeMap<u64, Rc<[u8; BLOCK]>>);

#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Torn,
    Lost,
}

impl Content {
    pub(crate) fn read(&self, block: u64, into: &mut [u8]) {
        match self.seen.get(&block) {
            Some(content) => into.copy_from_slice(&content[..]),
            None => into.fill(0),
        }
    }

    pub(crate) fn image(&self) -> Image {
        Image(self.seen.clone())
    }

    pub(crate) fn put_back(&mut self, image: &Image) {
        *self = Self { seen: image.0.clone(), unsettled: BTreeMap::new() };
    }

    pub(crate) fn holds(&self, block: u64) -> bool {
        self.seen.contains_key(&block)
    }

    /// Number of blocks that hold something.
    pub(crate) fn used(&self, blocks: Range<u64>) -> usize {
        self.seen.range(blocks).count()
    }

    /// The n-th of the blocks that hold something.
    pub(crate) fn nth_used(&self, blocks: Range<u64>, n: usize) -> Option<u64> {
        self.seen.range(blocks).nth(n).map(|(block, _)| *block)
    }

    /// A write takes effect on one block.
    pub(crate) fn write(&mut self, write: WriteId, block: u64, bytes: &[u8; BLOCK]) {
        self.put(write, block, Some(Rc::new(*bytes)));
    }

    /// A write that fails on the way takes effect on some sectors of one block.
    pub(crate) fn write_torn(&mut self, write: WriteId, block: u64, bytes: &[u8; BLOCK], rng: &mut Rng) {
        let torn = tear(self.seen.get(&block), Some(bytes), rng);
        self.put(write, block, torn);
    }

    /// A punch takes effect: what was there reads as zeros.
    pub(crate) fn punch(&mut self, write: WriteId, blocks: Range<u64>) {
        let used: Vec<u64> = self.seen.range(blocks).map(|(block, _)| *block).collect();
        for block in used {
            self.put(write, block, None);
        }
    }

    fn put(&mut self, write: WriteId, block: u64, content: Block) {
        let before = match &content {
            Some(bytes) => self.seen.insert(block, Rc::clone(bytes)),
            None => self.seen.remove(&block),
        };
        let unsettled = self.unsettled.entry(block).or_insert(Unsettled { stable: before, versions: Vec::new() });
        unsettled.versions.push(Version { write, completed: None, block: content });
    }

    /// A write is complete as the `completions`-th operation, and not durable yet.
    pub(crate) fn complete(&mut self, write: WriteId, blocks: Range<u64>, completions: u64) {
        for (_, unsettled) in self.unsettled.range_mut(blocks) {
            for version in unsettled.versions.iter_mut().filter(|version| version.write == write) {
                version.completed = Some(completions);
            }
        }
    }

    /// A durable write is complete: its blocks hold it or something newer from now on.
    pub(crate) fn settle(&mut self, write: WriteId, blocks: Range<u64>) {
        // A write's blocks, not the whole range of the map: few enough to look up one by one.
        for block in blocks {
            if let Some(unsettled) = self.unsettled.get_mut(&block)
                && let Some(last) = unsettled.versions.iter().rposition(|version| version.write == write)
                && unsettled.settle(last)
            {
                self.unsettled.remove(&block);
            }
        }
    }

    /// A sync is complete that was asked for after `completions` operations.
    pub(crate) fn sync(&mut self, completions: u64) {
        self.unsettled.retain(|_, unsettled| {
            let covered = |version: &Version| version.completed.is_some_and(|n| n <= completions);
            match unsettled.versions.iter().rposition(covered) {
                Some(last) => !unsettled.settle(last),
                None => true,
            }
        });
    }

    /// Power is lost: decides what remains of each unsettled write.
    pub(crate) fn lose(&mut self, rng: &mut Rng, trace: &mut Trace) {
        let mut fates = BTreeMap::new();
        for (block, unsettled) in std::mem::take(&mut self.unsettled) {
            let mut left = unsettled.stable;
            for version in unsettled.versions {
                let fate = *fates.entry(version.write).or_insert_with(|| draw(rng, trace));
                left = match fate {
                    Fate::Kept => version.block,
                    Fate::Lost => left,
                    Fate::Torn => match rng.below(4) {
                        0 => version.block,
                        1 => left,
                        _ => tear(left.as_ref(), version.block.as_deref(), rng),
                    },
                };
            }
            match left {
                Some(bytes) => self.seen.insert(block, bytes),
                None => self.seen.remove(&block),
            };
        }
    }

    /// A bit flips, for good. `bit` counts within the block.
    pub(crate) fn flip(&mut self, block: u64, bit: usize) {
        let flip = |content: &mut Rc<[u8; BLOCK]>| Rc::make_mut(content)[bit / 8] ^= 1 << (bit % 8);
        self.seen.entry(block).or_insert_with(|| Rc::new([0; BLOCK]));
        if let Some(content) = self.seen.get_mut(&block) {
            flip(content);
        }
        if let Some(unsettled) = self.unsettled.get_mut(&block) {
            let versions = unsettled.versions.iter_mut().filter_map(|version| version.block.as_mut());
            versions.chain(unsettled.stable.as_mut()).for_each(flip);
        }
    }
}

impl Unsettled {
    /// Settles the version at `last` and so all before it; true if nothing is left to settle.
    fn settle(&mut self, last: usize) -> bool {
        if let Some(version) = self.versions.drain(..=last).next_back() {
            self.stable = version.block;
        }
        self.versions.is_empty()
    }
}

fn draw(rng: &mut Rng, trace: &mut Trace) -> Fate {
    let (fate, name) = match rng.below(3) {
        0 => (Fate::Kept, "disk.unsettled.kept"),
        1 => (Fate::Torn, "disk.unsettled.torn"),
        _ => (Fate::Lost, "disk.unsettled.lost"),
    };
    trace.count(name);
    fate
}

/// Some sectors of the new block over the old one: at least one, and not all.
fn tear(old: Option<&Rc<[u8; BLOCK]>>, new: Option<&[u8; BLOCK]>, rng: &mut Rng) -> Block {
    const SECTORS: u64 = (BLOCK / SECTOR) as u64;
    let mut torn = old.map_or([0; BLOCK], |old| **old);
    // A front part, as a disk that writes in order leaves it, or any pattern.
    let mask = if rng.coin() { (1 << (1 + rng.below(SECTORS - 1))) - 1 } else { 1 + rng.below((1 << SECTORS) - 2) };
    for sector in (0..SECTORS).filter(|sector| mask & (1 << sector) != 0) {
        let range = size(sector) * SECTOR..(size(sector) + 1) * SECTOR;
        match new {
            Some(new) => torn[range.clone()].copy_from_slice(&new[range]),
            None => torn[range].fill(0),
        }
    }
    Some(Rc::new(torn))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(content: &Content, block: u64) -> [u8; BLOCK] {
        let mut bytes = [0xee; BLOCK];
        content.read(block, &mut bytes);
        bytes
    }

    #[test]
    fn a_settled_write_survives_what_was_written_before_and_lost() {
        for seed in 0..200 {
            let mut content = Content::default();
            content.write(1, 5, &[1; BLOCK]);
            content.write(2, 5, &[2; BLOCK]);
            content.settle(2, 5..6);
            content.settle(1, 5..6);
            content.lose(&mut Rng::new(seed), &mut Trace::new());
            assert_eq!(seen(&content, 5), [2; BLOCK]);
        }
    }

    #[test]
    fn an_unsettled_write_is_kept_torn_or_lost_by_sectors() {
        let (mut kept, mut torn, mut lost) = (0, 0, 0);
        for seed in 0..300 {
            let mut content = Content::default();
            content.write(1, 5, &[1; BLOCK]);
            content.settle(1, 5..6);
            content.write(2, 5, &[2; BLOCK]);
            content.complete(2, 5..6, 1);
            content.lose(&mut Rng::new(seed), &mut Trace::new());
            let bytes = seen(&content, 5);
            assert!(bytes.chunks(SECTOR).all(|sector| sector == [1; SECTOR] || sector == [2; SECTOR]));
            match bytes.chunks(SECTOR).filter(|sector| sector[0] == 2).count() {
                0 => lost += 1,
                8 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(kept > 50 && torn > 30 && lost > 50, "{kept} {torn} {lost}");
    }

    #[test]
    fn a_sync_covers_what_was_complete_when_it_was_asked_for_and_nothing_else() {
        let mut early_lost = 0;
        let mut late_lost = 0;
        for seed in 0..100 {
            let mut content = Content::default();
            content.write(1, 1, &[1; BLOCK]);
            content.complete(1, 1..2, 1);
            content.write(2, 2, &[1; BLOCK]);
            content.complete(2, 2..3, 2);
            content.sync(1);
            content.lose(&mut Rng::new(seed), &mut Trace::new());
            early_lost += u32::from(seen(&content, 1) != [1; BLOCK]);
            late_lost += u32::from(seen(&content, 2) != [1; BLOCK]);
        }
        assert_eq!(early_lost, 0);
        assert!(late_lost > 20);
    }
}
