//! One generation of changes that are durable in the journal and not yet in the pages.
//!
//! ```text
//! (layer, chunk) → patch: some blocks, each zero, lost, in the journal, or in a fresh chunk written whole; newer than
//! layer → ranges of whole chunks that were discarded; newer than all older generations and the pages
//! ```
//! Changed only by records, in their order, while serving and at replay alike: so both end in the same state.

use super::entry::{ALL, ChunkNo, Mask, blocks, mask};
use super::layers::LayerId;
use super::limits::{CHUNK_BLOCKS, ENTRIES_PER_LEAF, LEAVES_PER_BRANCH};
use super::patch::Spot;
use super::patches::Patches;
use super::ring::JournalBlock;
use crate::Crcs;
use conductor_model::{BlockRange, CopyId, SnapshotId, Stamp};
use std::collections::BTreeMap;

/// A chunk of a layer.
pub(super) type Key = (LayerId, u32);

/// A run of discarded chunks, without its first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    /// The chunk after the last.
    pub(super) end: u32,
    pub(super) version: Stamp,
}

/// A copy-range that waits for the fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    pub(super) layer: LayerId,
    pub(super) at: BlockRange,
    pub(super) from: LayerId,
    pub(super) stamp: Stamp,
    /// Chunks set aside for it.
    pub(super) reserved: u32,
}

impl Share {
    /// The chunks that it lies in.
    pub(super) fn chunks(&self) -> std::ops::Range<u32> {
        let end = u32::try_from(self.at.end()).unwrap_or(u32::MAX); // ranges lie within a copy
        self.at.from.0 / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS)
    }
}

/// What a record gave back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Returned {
    /// Chunks that were set aside and are not needed.
    pub(super) reservations: u32,
}

/// How much of the metadata is changed, at most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Changes {
    /// Leaves of maps.
    pub(super) leaves: usize,
    /// Pages just above them.
    pub(super) branches: usize,
    /// Chunks, each of which has a record.
    pub(super) chunks: usize,
    /// Chunks that are discarded as parts of ranges: what the fold has to look at one by one.
    pub(super) discarded: usize,
}

impl Changes {
    /// Of chunks one behind the other.
    pub(super) fn of_run(from: u32, end: u32) -> Self {
        let last = end.max(from + 1) - 1;
        let pages = |chunks: u32| (last / chunks - from / chunks + 1) as usize;
        Self {
            leaves: pages(ENTRIES_PER_LEAF),
            branches: pages(ENTRIES_PER_LEAF * LEAVES_PER_BRANCH),
            chunks: (last - from + 1) as usize,
            discarded: 0,
        }
    }

    /// Of a run that is discarded: each chunk may give up a place, and gets none.
    pub(super) fn of_discarded(from: u32, end: u32) -> Self {
        let run = Self::of_run(from, end);
        Self { discarded: run.chunks, ..run }
    }

    /// Of blocks that a write or a copy-range puts there: each chunk has a place and gets another.
    pub(super) fn of_blocks(at: BlockRange) -> Self {
        let end = u32::try_from(at.end()).unwrap_or(u32::MAX); // ranges lie within a copy
        let run = Self::of_run(at.from.0 / CHUNK_BLOCKS, end.div_ceil(CHUNK_BLOCKS));
        Self { chunks: 2 * run.chunks, ..run }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            leaves: self.leaves + other.leaves,
            branches: self.branches + other.branches,
            chunks: self.chunks + other.chunks,
            discarded: self.discarded + other.discarded,
        }
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self {
            leaves: self.leaves.saturating_sub(other.leaves),
            branches: self.branches.saturating_sub(other.branches),
            chunks: self.chunks.saturating_sub(other.chunks),
            discarded: self.discarded.saturating_sub(other.discarded),
        }
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    pub(super) patches: Patches,
    pub(super) ranges: BTreeMap<LayerId, BTreeMap<u32, Range>>,
    /// What they make of the pages.
    discarded: Changes,
    pub(super) shares: Vec<Share>,
    /// Chunks that were written whole and replaced in the same generation: free when the journal no longer names them.
    pub(super) freed: Vec<ChunkNo>,
    /// Chunks that were written or discarded whole: as many come back when it is folded, at most.
    pub(super) gains: u32,
    /// Any record at all came since it began.
    pub(super) touched: bool,
}

/// The discarded runs of a layer, and the sum over all of them.
struct Runs<'a> {
    runs: &'a mut BTreeMap<u32, Range>,
    changes: &'a mut Changes,
}

impl Runs<'_> {
    fn remove(&mut self, from: u32) {
        if let Some(range) = self.runs.remove(&from) {
            *self.changes = self.changes.without(Changes::of_discarded(from, range.end));
        }
    }

    fn insert(&mut self, from: u32, range: Range) {
        self.remove(from);
        self.runs.insert(from, range);
        *self.changes = self.changes.and(Changes::of_discarded(from, range.end));
    }

    fn clear(&mut self) {
        while let Some((&from, _)) = self.runs.first_key_value() {
            self.remove(from);
        }
    }
}

impl Overlay {
    /// True if there is nothing to fold.
    pub(super) fn is_empty(&self) -> bool {
        !self.touched
    }

    /// What the fold may have to change.
    pub(super) fn changes(&self) -> Changes {
        let patches = Changes {
            leaves: self.patches.leaves(),
            branches: self.patches.branches(),
            // Where it was, and where it goes.
            chunks: 2 * self.patches.len(),
            discarded: 0,
        };
        let shares = self.shares.iter().map(|share| Changes::of_blocks(share.at));
        shares.fold(patches, Changes::and).and(self.discarded)
    }

    /// Runs of discarded chunks.
    pub(super) fn range_count(&self) -> usize {
        self.ranges.values().map(BTreeMap::len).sum()
    }

    /// Chunks in them.
    pub(super) fn discarded_chunks(&self) -> usize {
        self.discarded.chunks
    }

    /// Chunks set aside for what is in it.
    pub(super) fn reservations(&self) -> u32 {
        let patches = self.patches.iter().map(|(_, patch)| u32::from(patch.reserved)).sum::<u32>();
        patches + self.shares.iter().map(|share| share.reserved).sum::<u32>()
    }

    /// True if anything is said of the chunk.
    pub(super) fn touches(&self, key: Key) -> bool {
        self.patches.contains(key) || self.in_range(key)
    }

    /// True if it says anything of a block.
    pub(super) fn hides(&self, key: Key, n: u8) -> bool {
        let patched = self.patches.get(key).is_some_and(|patch| patch.decides(n));
        patched || self.in_range(key)
    }

    /// True if the chunk was discarded as a part of a range.
    pub(super) fn in_range(&self, key: Key) -> bool {
        self.range_over(key).is_some()
    }

    /// The range that the chunk was discarded with.
    pub(super) fn range_over(&self, (layer, chunk): Key) -> Option<Range> {
        let (_, range) = self.ranges.get(&layer)?.range(..=chunk).next_back()?;
        (chunk < range.end).then_some(*range)
    }

    /// Blocks of one chunk are in the journal now. `reserved`: a chunk was set aside; `claim`: the entry's own was promised.
    pub(super) fn write(
        &mut self,
        key: Key,
        first: u32,
        at: JournalBlock,
        crcs: &[u32],
        version: Stamp,
        (reserved, claim): (bool, bool),
    ) -> Returned {
        self.touched = true;
        let patch = self.patches.entry(key);
        for (n, &crc) in (0u32..).zip(crcs) {
            patch.set(first + n, Spot::Journal(JournalBlock(at.0 + n)), crc);
        }
        patch.version = patch.version.max(version);
        patch.claims += u32::from(claim);
        let mut returned = Returned { reservations: u32::from(reserved && (patch.reserved || patch.direct.is_some())) };
        patch.reserved |= reserved && patch.direct.is_none();
        if patch.direct.is_some() && std::mem::take(&mut patch.reserved) {
            returned.reservations += 1;
        }
        returned
    }

    /// A whole chunk was written to a fresh place.
    pub(super) fn direct(&mut self, key: Key, chunk: ChunkNo, crcs: &[u32], version: Stamp) -> Returned {
        self.touched = true;
        self.gains = self.gains.saturating_add(1);
        let patch = self.patches.entry(key);
        patch.clear();
        for (n, &crc) in (0u32..).zip(crcs) {
            patch.set(n, Spot::Direct, crc);
        }
        patch.version = patch.version.max(version);
        let returned = Returned { reservations: std::mem::take(&mut patch.reserved).into() };
        if let Some(old) = patch.direct.replace(chunk) {
            self.freed.push(old);
        }
        returned
    }

    /// Blocks read as zeros now.
    pub(super) fn zero(&mut self, layer: LayerId, at: BlockRange, version: Stamp) -> Returned {
        self.touched = true;
        let (from, end) = (u64::from(at.from.0), at.end());
        let chunk_of = |block: u64| u32::try_from(block / u64::from(CHUNK_BLOCKS)).unwrap_or(u32::MAX); // blocks are 32 bits
        let (first, last) = (chunk_of(from), chunk_of(end - 1));
        let mut returned = Returned::default();
        let (mut whole_from, mut whole_end) = (first, last + 1);
        let start = |chunk: u32| u64::from(chunk) * u64::from(CHUNK_BLOCKS);
        let within = |chunk: u32| {
            let n = |block: u64| u32::try_from(block.saturating_sub(start(chunk))).unwrap_or(u32::MAX);
            mask(n(from), n(end)) // both within a chunk, or beyond its end
        };
        for chunk in [first, last] {
            let which = within(chunk);
            if which != ALL {
                returned.reservations += self.zero_blocks((layer, chunk), which, version);
                if chunk == first {
                    whole_from = first + 1;
                } else {
                    whole_end = last;
                }
                if first == last {
                    break;
                }
            }
        }
        if whole_end == whole_from + 1 && !driver::mutant::on("store-filled-without-tombstone") {
            // A copy is filled chunk by chunk, with zeros too, and may lack what they were discarded from: it lies on a copy that is away. So
            // one chunk is a patch, which makes a tombstone whatever is below it (rule 7).
            self.gains = self.gains.saturating_add(1);
            returned.reservations += self.zero_blocks((layer, whole_from), ALL, version);
        } else if whole_from < whole_end {
            self.gains = self.gains.saturating_add(whole_end - whole_from);
            returned.reservations += self.zero_chunks(layer, whole_from, whole_end, version);
        }
        returned
    }

    /// Blocks are lost: what reads them is told so. The layer has nothing in their place.
    pub(super) fn lose(&mut self, layer: LayerId, at: BlockRange, version: Stamp) -> Returned {
        self.touched = true;
        let lose = |(chunk, which)| self.put_nothing((layer, chunk), which, Spot::Lost, version);
        Returned { reservations: masks(at).map(lose).sum() }
    }

    fn zero_blocks(&mut self, key: Key, which: Mask, version: Stamp) -> u32 {
        self.put_nothing(key, which, Spot::Zero, version)
    }

    /// Blocks have no content from now on; the chunks that were set aside for them and are not needed.
    fn put_nothing(&mut self, key: Key, which: Mask, spot: Spot, version: Stamp) -> u32 {
        let patch = self.patches.entry(key);
        for n in blocks(which) {
            patch.set(n, spot, 0);
        }
        patch.version = patch.version.max(version);
        let mut returned = 0;
        if !patch.needs_chunk() && std::mem::take(&mut patch.reserved) {
            returned = 1;
        }
        if patch.written() == 0
            && let Some(old) = patch.direct.take()
        {
            self.freed.push(old);
        }
        returned
    }

    fn zero_chunks(&mut self, layer: LayerId, from: u32, end: u32, version: Stamp) -> u32 {
        // What was patched stays a patch, of zeros: it makes a tombstone (rule 7).
        let patched: Vec<u32> = self.patched(layer, from).take_while(|chunk| *chunk < end).collect();
        let returned = patched.into_iter().map(|chunk| self.zero_blocks((layer, chunk), ALL, version)).sum();
        let mut ranges = Runs { runs: self.ranges.entry(layer).or_default(), changes: &mut self.discarded };
        // Overlapping runs are cut, and the new one takes their place, except where they are newer: what a copy is filled with is older
        // than what it got meanwhile.
        let mut cut = Vec::new();
        for (&start, &range) in ranges.runs.range(..end).rev() {
            if range.end <= from {
                break;
            }
            cut.push((start, range));
        }
        let mut next = from;
        for (start, range) in cut.into_iter().rev() {
            ranges.remove(start);
            if start < from {
                ranges.insert(start, Range { end: from, ..range });
            }
            if range.version > version {
                let (newer, newer_end) = (start.max(from), range.end.min(end));
                if next < newer {
                    ranges.insert(next, Range { end: newer, version });
                }
                ranges.insert(newer, Range { end: newer_end, ..range });
                next = newer_end;
            }
            if range.end > end {
                ranges.insert(end, range);
            }
        }
        if next < end {
            ranges.insert(next, Range { end, version });
        }
        returned
    }

    /// Takes out all that was said before a point of the journal, where all that was said since is in the journal; and how many chunks are to be set
    /// aside beyond those that are.
    pub(super) fn part_off(&mut self, is_before: impl Fn(JournalBlock) -> bool) -> (Self, u32) {
        let mut reserved = 0;
        let such = |spot| !matches!(spot, Spot::Journal(at) if !is_before(at));
        let patches = self.patches.part_off(|patch| {
            let mut off = patch.part_off(such)?;
            if patch.decided() == 0 {
                off.reserved = std::mem::take(&mut patch.reserved);
            } else if off.needs_chunk() {
                // The one may find that the entry has no chunk of its own, and the other that others share it by then.
                debug_assert!(patch.reserved, "neither promised nor set aside");
                off.reserved = true;
                reserved += 1;
            }
            Some(off)
        });
        let rest = Self { patches: std::mem::take(&mut self.patches), touched: true, ..Self::default() };
        (Self { patches, ..std::mem::replace(self, rest) }, reserved)
    }

    /// Forget a layer that nothing reads any more.
    pub(super) fn drop_layer(&mut self, layer: LayerId) -> (Returned, Vec<Key>) {
        self.touched = true;
        let mut gone = self.ranges.remove(&layer).unwrap_or_default();
        Runs { runs: &mut gone, changes: &mut self.discarded }.clear();
        let (mut returned, mut claims) = (Returned::default(), Vec::new());
        for (key, patch) in self.patches.remove_layer(layer) {
            returned.reservations += u32::from(patch.reserved);
            self.freed.extend(patch.direct);
            claims.extend((0..patch.claims).map(|_| key));
        }
        for share in self.shares.iter_mut().filter(|share| share.layer == layer) {
            returned.reservations += std::mem::take(&mut share.reserved);
        }
        self.shares.retain(|share| share.layer != layer);
        (returned, claims)
    }

    /// Where the first chunk at or after `from` is that a layer's patches or ranges say anything of.
    pub(super) fn next_touched(&self, layer: LayerId, from: u32) -> Option<u32> {
        self.patched(layer, from).next()
    }

    /// Chunks of a layer that have a patch, from one on.
    fn patched(&self, layer: LayerId, from: u32) -> impl Iterator<Item = u32> {
        let of_layer = self.patches.from((layer, from)).take_while(move |((at, _), _)| *at == layer);
        of_layer.map(|((_, chunk), _)| chunk)
    }
}

/// A copy-range as its record says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    pub(super) copy: CopyId,
    pub(super) snapshot: SnapshotId,
}

/// The chunks that a range lies in, and which blocks of each.
pub(super) fn masks(at: BlockRange) -> impl Iterator<Item = (u32, Mask)> {
    let end = u32::try_from(at.end()).unwrap_or(u32::MAX); // ranges lie within a copy
    (at.from.0 / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS)).map(move |chunk| {
        let start = chunk * CHUNK_BLOCKS;
        (chunk, mask(at.from.0.max(start) - start, end - start))
    })
}

/// The plain checksums of a run of blocks within a request.
pub(super) fn part(crcs: &Crcs, from: u32, count: u32) -> &[u32] {
    crcs.get(from as usize..).and_then(|rest| rest.get(..count as usize)).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{Blocks, Epoch, Sequence};

    const L: LayerId = LayerId(1);

    fn stamp(n: u64) -> Stamp {
        Stamp { epoch: Epoch(1), sequence: Sequence(n) }
    }
    fn at(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }
    fn chunk(n: u32) -> ChunkNo {
        ChunkNo::new(n, 1000).unwrap()
    }

    #[test]
    fn the_newest_change_of_a_block_counts() {
        let mut overlay = Overlay::default();
        assert_eq!(overlay.write((L, 2), 3, JournalBlock(10), &[7, 8], stamp(1), (true, false)).reservations, 0);
        assert_eq!(overlay.write((L, 2), 4, JournalBlock(20), &[9], stamp(2), (true, false)).reservations, 1);
        let patch = overlay.patches.get((L, 2)).unwrap();
        assert_eq!(patch.get(3).map(|b| (b.spot, b.crc)), Some((Spot::Journal(JournalBlock(10)), 7)));
        assert_eq!(patch.get(4).map(|b| (b.spot, b.crc)), Some((Spot::Journal(JournalBlock(20)), 9)));
        assert_eq!((patch.get(5), patch.decided(), patch.version), (None, 0b11000, stamp(2)));
        assert_eq!(overlay.zero(L, at(35, 1), stamp(3)).reservations, 0);
        assert_eq!(overlay.zero(L, at(36, 1), stamp(4)).reservations, 1, "nothing but zeros needs no chunk");
        assert_eq!(overlay.patches.get((L, 2)).unwrap().zeros(), 0b11000);
    }

    #[test]
    fn a_whole_chunk_takes_the_place_of_patches_and_gives_up_its_own() {
        let mut overlay = Overlay::default();
        overlay.write((L, 0), 0, JournalBlock(1), &[1], stamp(1), (true, false));
        assert_eq!(overlay.direct((L, 0), chunk(5), &[3; 16], stamp(2)).reservations, 1);
        overlay.direct((L, 0), chunk(6), &[4; 16], stamp(3));
        assert_eq!((overlay.freed.as_slice(), overlay.gains), ([chunk(5)].as_slice(), 2));
        assert_eq!(overlay.write((L, 0), 2, JournalBlock(9), &[8], stamp(4), (true, false)).reservations, 1);
        assert!(!overlay.patches.get((L, 0)).unwrap().reserved);
        assert_eq!(overlay.patches.get((L, 0)).unwrap().get(2).map(|b| b.spot), Some(Spot::Journal(JournalBlock(9))));
        overlay.zero(L, at(0, 16), stamp(5));
        assert_eq!((overlay.freed.len(), overlay.patches.get((L, 0)).unwrap().zeros()), (2, ALL));
        assert!(!overlay.in_range((L, 0)));
    }

    #[test]
    fn one_chunk_of_zeros_is_remembered_where_nothing_was() {
        let mut overlay = Overlay::default();
        overlay.zero(L, at(16, 16), stamp(3));
        let patch = overlay.patches.get((L, 1)).unwrap();
        assert_eq!((patch.zeros(), patch.version, overlay.range_count()), (ALL, stamp(3), 0));
        overlay.zero(L, at(32, 32), stamp(4));
        assert_eq!((overlay.patches.len(), overlay.range_count()), (1, 1), "two are a range");
    }

    #[test]
    fn a_discard_of_any_length_is_one_range_and_two_edges() {
        let mut overlay = Overlay::default();
        overlay.zero(L, at(10, 1_000_000), stamp(1));
        assert_eq!((overlay.patches.len(), overlay.range_count()), (2, 1));
        assert_eq!(overlay.patches.get((L, 0)).unwrap().zeros(), mask(10, 16));
        assert_eq!(overlay.patches.get((L, 62500)).unwrap().zeros(), mask(0, 10));
        assert!(overlay.in_range((L, 1)) && overlay.in_range((L, 62499)) && !overlay.in_range((L, 62500)));
        overlay.zero(L, at(160, 160), stamp(2));
        assert_eq!(overlay.range_count(), 3);
        assert_eq!(overlay.ranges[&L][&10], Range { end: 20, version: stamp(2) });
        assert_eq!(overlay.ranges[&L][&20], Range { end: 62500, version: stamp(1) });
        // An older one, of what a copy is filled with, takes nothing from the newer.
        overlay.zero(L, at(128, 320), stamp(1));
        assert_eq!(overlay.ranges[&L][&10], Range { end: 20, version: stamp(2) });
        assert_eq!(overlay.ranges[&L][&8], Range { end: 10, version: stamp(1) });
        assert_eq!(overlay.ranges[&L][&20], Range { end: 28, version: stamp(1) });
        assert!((1..62500).all(|chunk| overlay.in_range((L, chunk))));
        overlay.write((L, 12), 0, JournalBlock(1), &[1], stamp(3), (true, false));
        assert_eq!(overlay.reservations(), 1);
        let (returned, _) = overlay.drop_layer(L);
        assert_eq!((returned.reservations, overlay.patches.len(), overlay.range_count()), (1, 0, 0));
    }
}
