//! Where things are on the disk. All follows from five numbers, which the superblock holds.
//!
//! ```text
//! superblocks (16 blocks) | ring | page map 0 | page map 1 | pages | their mirrors | chunks of 64 KiB …
//! ```

use super::entry::ChunkNo;
use super::limits::{
    BYTES_PER_COPY, CHUNK, CHUNK_BLOCKS, HEAD_BLOCKS, MAX_CHUNKS, MAX_COPIES, MAX_PLACES, MAX_RING_BLOCKS, MIN_COPIES,
    MIN_DISK_BYTES, MIN_PLACES, MIN_USUAL_RING, PAGES_PART, RING_PART, SPARE_CHUNKS,
};
use super::pages::Region;
use super::ring::MIN_RING_BLOCKS;
use conductor_model::{BLOCK, Bytes};

/// How a disk is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    disk_blocks: u64,
    ring_blocks: u32,
    places: u32,
    max_copies: u32,
    external_journal: bool,
    chunks: u32,
}

impl Geometry {
    /// The usual division of a disk of this size; `None` if it is too small.
    pub fn of_disk(size: Bytes) -> Option<Self> {
        if size.0 < MIN_DISK_BYTES {
            return None;
        }
        let blocks = size.0 / BLOCK as u64;
        let ring = (blocks / RING_PART).clamp(MIN_USUAL_RING, MAX_RING_BLOCKS);
        let places = (blocks / PAGES_PART).clamp(u64::from(MIN_PLACES), MAX_PLACES);
        let copies = (size.0 / BYTES_PER_COPY).clamp(MIN_COPIES, MAX_COPIES);
        Self::new(size, u32::try_from(ring).ok()?, u32::try_from(places).ok()?, u32::try_from(copies).ok()?)
    }

    /// The same with a journal of so many blocks; `None` if there cannot be one, or nothing is left for data.
    pub fn with_journal(self, ring_blocks: u32) -> Option<Self> {
        Self { ring_blocks, ..self }.divided()
    }

    /// The same with the journal on another disk, from that one's first block on.
    pub fn with_journal_elsewhere(self) -> Option<Self> {
        Self { external_journal: true, ..self }.divided()
    }

    /// A division of one's own, however small; `None` if it cannot work: ring or page region below the least, or nothing left
    /// for data.
    pub fn new(size: Bytes, ring_blocks: u32, places: u32, max_copies: u32) -> Option<Self> {
        let disk_blocks = size.0 / BLOCK as u64;
        Self { disk_blocks, ring_blocks, places, max_copies, external_journal: false, chunks: 0 }.divided()
    }

    /// The same with the journal on another disk, from that one's first block on.
    pub fn external(size: Bytes, ring_blocks: u32, places: u32, max_copies: u32) -> Option<Self> {
        let disk_blocks = size.0 / BLOCK as u64;
        Self { disk_blocks, ring_blocks, places, max_copies, external_journal: true, chunks: 0 }.divided()
    }

    fn divided(mut self) -> Option<Self> {
        if self.ring_blocks < MIN_RING_BLOCKS
            || u64::from(self.ring_blocks) > MAX_RING_BLOCKS
            || self.places < MIN_PLACES
            || u64::from(self.places) > MAX_PLACES
            || u64::from(self.max_copies) > MAX_COPIES
        {
            return None;
        }
        let left = (self.disk_blocks * BLOCK as u64).checked_sub(self.chunks_start())?;
        self.chunks = u32::try_from((left / CHUNK as u64).min(MAX_CHUNKS)).ok()?;
        (self.chunks > SPARE_CHUNKS).then_some(self)
    }

    /// Bytes of the disk that are used; it may be larger.
    pub fn size(&self) -> Bytes {
        Bytes(self.disk_blocks * BLOCK as u64)
    }
    /// Blocks of the journal.
    pub fn ring_blocks(&self) -> u32 {
        self.ring_blocks
    }
    /// Places for metadata pages, each there twice.
    pub fn places(&self) -> u32 {
        self.places
    }
    /// Copies that the store can hold.
    pub fn max_copies(&self) -> u32 {
        self.max_copies
    }
    /// True if the journal is on another disk.
    pub fn external_journal(&self) -> bool {
        self.external_journal
    }
    /// Chunks of 64 KiB; what is beyond 16 TiB of them stays unused.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }
    /// Blocks that data can hold: chunks less those kept for background work.
    pub fn capacity(&self) -> u32 {
        (self.chunks - SPARE_CHUNKS) * CHUNK_BLOCKS
    }
    /// Bytes that the journal's own disk must have, where it has one.
    pub fn journal_bytes(&self) -> Bytes {
        Bytes(u64::from(self.ring_blocks) * BLOCK as u64)
    }

    /// Where the ring begins, on its disk.
    pub(super) fn ring_start(&self) -> u64 {
        if self.external_journal { 0 } else { HEAD_BLOCKS * BLOCK as u64 }
    }
    /// Where the two page maps begin.
    pub(super) fn maps_start(&self) -> [Bytes; 2] {
        let ring = if self.external_journal { 0 } else { u64::from(self.ring_blocks) };
        let first = (HEAD_BLOCKS + ring) * BLOCK as u64;
        [Bytes(first), Bytes(first + Region::map_bytes(self.places).0)]
    }
    /// Where the pages begin.
    pub(super) fn pages_start(&self) -> Bytes {
        Bytes(self.maps_start()[1].0 + Region::map_bytes(self.places).0)
    }
    /// Where the chunks begin: a multiple of a chunk.
    pub(super) fn chunks_start(&self) -> u64 {
        (self.pages_start().0 + Region::places_bytes(self.places).0).next_multiple_of(CHUNK as u64)
    }
    /// Byte offset of a block of the chunks.
    pub(super) fn block(&self, block: u32) -> u64 {
        self.chunks_start() + u64::from(block) * BLOCK as u64
    }
    /// Byte offset of a chunk.
    pub(super) fn chunk(&self, chunk: ChunkNo) -> u64 {
        self.chunks_start() + u64::from(chunk.index()) * CHUNK as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn all_of_a_disk_is_used_as_far_as_blocks_have_numbers() {
        let bytes = |disk| u64::from(Geometry::of_disk(Bytes(disk)).unwrap().capacity()) * BLOCK as u64;
        for (disk, percent) in [(MIN_DISK_BYTES, 70), (1 << 30, 90), (1 << 34, 90), (1 << 44, 96)] {
            assert!((percent..100).contains(&(bytes(disk) * 100 / disk)), "{disk}: {}", bytes(disk));
        }
        let left_of_16_tib = [20 << 40, 1 << 60].map(|disk| (16 << 40) - bytes(disk));
        assert!(left_of_16_tib.iter().all(|left| (1..1 << 20).contains(left)), "{left_of_16_tib:?}");
        assert!(Geometry::of_disk(Bytes(MIN_DISK_BYTES - 1)).is_none());
    }
}
