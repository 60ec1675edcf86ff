//! Where things are on the disk, and the superblock that says so.

use super::limits::{
    BYTES_PER_COPY, CHUNK, CHUNK_BLOCKS, COPY_BYTES, ENTRY_BYTES, HEAD_BLOCKS, LOG_PART, MAX_COPIES, MAX_ITEM,
    MAX_LOG_PAGES, MAX_SLOTS, MIN_COPIES, MIN_DISK_BYTES, MIN_LOG_PAGES, SEALED_HEAD, SPARE_SLOTS,
};
use super::slots::Slot;
use crate::codec::{Put, Take, seal, unseal};
use crate::opening::Identity;
use conductor_model::{BLOCK, Bytes, DiskId, NodeId};

const MAGIC: u32 = u32::from_le_bytes(*b"TRS1");
/// Version of the format that this engine reads and writes.
pub const FORMAT_VERSION: u32 = 2;

/// How a disk is divided. All follows from three numbers, which the superblock holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    disk_blocks: u64,
    log_pages: u32,
    max_copies: u32,
    chunks: u32,
    slots: u32,
}

impl Geometry {
    /// The usual division of a disk of this size; `None` if it is too small.
    pub fn of_disk(size: Bytes) -> Option<Self> {
        if size.0 < MIN_DISK_BYTES {
            return None;
        }
        let log_pages = (size.0 / BLOCK as u64 / LOG_PART).clamp(MIN_LOG_PAGES, MAX_LOG_PAGES);
        let max_copies = (size.0 / BYTES_PER_COPY).clamp(MIN_COPIES, MAX_COPIES);
        Self::new(size, u32::try_from(log_pages).ok()?, u32::try_from(max_copies).ok()?)
    }

    /// A division of one's own, however small; `None` if nothing is left for data.
    pub fn new(size: Bytes, log_pages: u32, max_copies: u32) -> Option<Self> {
        let disk_blocks = size.0 / BLOCK as u64;
        if log_pages == 0 || u64::from(log_pages) > MAX_LOG_PAGES || u64::from(max_copies) > MAX_COPIES {
            return None;
        }
        // As if the whole disk were slots: a little more than needed. Items are not cut, so each chunk may waste one.
        let most = disk_blocks.min(MAX_SLOTS) * ENTRY_BYTES as u64 + u64::from(max_copies) * COPY_BYTES as u64;
        let chunks = most.div_ceil((CHUNK - SEALED_HEAD - MAX_ITEM) as u64) + 1;
        let mut this =
            Self { disk_blocks, log_pages, max_copies, chunks: u32::try_from(chunks).ok()?, slots: SPARE_SLOTS + 1 };
        let slots = disk_blocks.checked_sub(this.data_start())?.min(MAX_SLOTS);
        this.slots = u32::try_from(slots).ok()?;
        (this.slots > SPARE_SLOTS).then_some(this)
    }

    /// Bytes of the disk that are used; it may be larger.
    pub fn size(&self) -> Bytes {
        Bytes(self.disk_blocks * BLOCK as u64)
    }
    /// Pages of each log.
    pub fn log_pages(&self) -> u32 {
        self.log_pages
    }
    /// Copies that the store can hold.
    pub fn max_copies(&self) -> u32 {
        self.max_copies
    }
    /// Slots of 4 KiB for data.
    pub fn slots(&self) -> u32 {
        self.slots
    }
    /// Blocks that data can hold: slots less those kept for rewrites.
    pub fn capacity(&self) -> u32 {
        self.slots - SPARE_SLOTS
    }
    /// Chunks that fit a checkpoint area.
    pub(super) fn chunks(&self) -> u32 {
        self.chunks
    }

    fn checkpoint_start(&self, area: usize) -> u64 {
        HEAD_BLOCKS
            + 2 * u64::from(self.log_pages)
            + area as u64 * (1 + u64::from(self.chunks) * u64::from(CHUNK_BLOCKS))
    }
    fn data_start(&self) -> u64 {
        self.checkpoint_start(2)
    }

    /// Byte offset of a page of the log of a generation: logs take turns.
    pub(super) fn log_page(&self, generation: u64, page: u32) -> u64 {
        (HEAD_BLOCKS + (generation % 2) * u64::from(self.log_pages) + u64::from(page)) * BLOCK as u64
    }
    /// Byte offset of a checkpoint area's header.
    pub(super) fn checkpoint_header(&self, area: usize) -> u64 {
        self.checkpoint_start(area) * BLOCK as u64
    }
    /// Byte offset of a chunk of a checkpoint area.
    pub(super) fn chunk(&self, area: usize, chunk: u32) -> u64 {
        (self.checkpoint_start(area) + 1 + u64::from(chunk) * u64::from(CHUNK_BLOCKS)) * BLOCK as u64
    }
    /// Byte offset of a slot.
    pub(super) fn slot(&self, slot: Slot) -> u64 {
        (self.data_start() + u64::from(slot.index())) * BLOCK as u64
    }
}

/// What a superblock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    pub(super) identity: Identity,
    pub(super) geometry: Geometry,
}

/// Why a superblock cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoSuperblock {
    /// It is none of ours, or damaged.
    Foreign,
    /// It is ours, of a version this program does not know.
    Version(u32),
}

impl Superblock {
    pub(super) fn encode(&self, page: &mut [u8]) {
        let mut body = Vec::with_capacity(SEALED_HEAD);
        body.u32(FORMAT_VERSION);
        body.u32(self.identity.node.0);
        body.u64(self.identity.cluster);
        body.u64(self.identity.disk.0);
        body.u64(self.geometry.disk_blocks);
        body.u32(self.geometry.log_pages);
        body.u32(self.geometry.max_copies);
        seal(page, MAGIC, &body);
    }

    pub(super) fn decode(page: &[u8]) -> Result<Self, NoSuperblock> {
        let mut body = unseal(page, MAGIC).ok_or(NoSuperblock::Foreign)?;
        let version = body.u32().ok_or(NoSuperblock::Foreign)?;
        if version != FORMAT_VERSION {
            return Err(NoSuperblock::Version(version));
        }
        Self::fields(&mut body).ok_or(NoSuperblock::Foreign)
    }

    fn fields(body: &mut Take<'_>) -> Option<Self> {
        let node = NodeId(body.u32()?);
        let cluster = body.u64()?;
        let disk = DiskId(body.u64()?);
        let blocks = body.u64()?;
        let geometry = Geometry::new(Bytes(blocks.checked_mul(BLOCK as u64)?), body.u32()?, body.u32()?)?;
        Some(Self { identity: Identity { cluster, node, disk }, geometry })
    }

    /// True if the page begins like a superblock of ours, be it damaged or of another version: `format` asks before it goes on.
    pub(super) fn is_marked(page: &[u8]) -> bool {
        page.starts_with(&MAGIC.to_le_bytes())
    }
}
