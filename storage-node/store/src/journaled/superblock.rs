//! The superblock: whose disk it is, how it is divided, and where the newest checkpoint's state begins.

use super::geometry::Geometry;
use super::limits::SUPERBLOCKS;
use super::pages::{self, ArrayName, MapRef, Region, Root};
use super::ring::Mark;
use crate::codec::{Put, Take, seal, unseal};
use crate::opening::Identity;
use conductor_model::{BLOCK, Bytes, DiskId, NodeId};
use driver::Errno;

const MAGIC: u32 = u32::from_le_bytes(*b"TRS2");
/// What superblocks of other engines begin with.
const OLDER: &[u8] = b"TRS1";
/// Version of the format that this engine reads and writes.
pub const FORMAT_VERSION: u32 = 4;

/// No store counts as far as this, openings, superblocks or groups: one that says so is forged. So nothing that is counted on wraps.
const COUNTS_END: u64 = 1 << 62;

/// The arrays whose roots the superblock holds, in its order.
pub(super) const COPIES: ArrayName = ArrayName(1);
pub(super) const LAYERS: ArrayName = ArrayName(2);
pub(super) const CHUNKS: ArrayName = ArrayName(3);
pub(super) const HELD: ArrayName = ArrayName(4);
pub(super) const USED: ArrayName = ArrayName(5);
pub(super) const OUTER: [ArrayName; 5] = [COPIES, LAYERS, CHUNKS, HELD, USED];

/// What a superblock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    pub(super) identity: Identity,
    pub(super) geometry: Geometry,
    /// Counts superblocks written: the higher one is newer.
    pub(super) generation: u64,
    /// Counts openings.
    pub(super) boot: u64,
    /// Where the journal begins that continues this state.
    pub(super) tail: Mark,
    pub(super) map: MapRef,
    /// Of the arrays in `OUTER`.
    pub(super) roots: [Root; 5],
    /// Layer ids from here on were never used.
    pub(super) next_layer: u32,
    /// Metadata pages that were lost (`fold/lost.rs`): what only they knew, chunks and places, is in use by nobody.
    pub(super) lost: u32,
}

/// Why a superblock cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoSuperblock {
    /// It does not begin like one of ours.
    Foreign,
    /// It begins like one of ours, and does not read as it was written.
    Damaged,
    /// The disk does not give it.
    Unreadable(Errno),
    /// It is ours, of a version this program does not know.
    Version(u32),
}

/// Whose store begins with these bytes (64 KiB are enough) and how it is divided; `None` if neither superblock is good. For what must be
/// known before an opening writes anything.
pub fn identify(head: &[u8]) -> Option<(Identity, Geometry)> {
    let block = |n: &u64| usize::try_from(*n).ok().and_then(|n| head.get(n * BLOCK..(n + 1) * BLOCK));
    let good = SUPERBLOCKS.iter().filter_map(block).filter_map(|block| Superblock::decode(block).ok());
    good.max_by_key(|good| good.generation).map(|good| (good.identity, good.geometry))
}

/// Whether these are of two stores: a disk that writes to the wrong place, or to the wrong disk, can leave another one's in a block of this one's.
pub(super) fn differ(superblocks: [&Superblock; 2]) -> bool {
    superblocks[0].identity != superblocks[1].identity
}

/// Takes another store's superblock out of the beginning of a disk, if one of two is: as if that block could not be read. For whoever
/// knows a disk by [`identify`]; `read` reads elsewhere on it.
pub fn forget_foreign(head: &mut [u8], read: &mut dyn FnMut(u64, &mut [u8]) -> bool) {
    let places = SUPERBLOCKS.map(|n| usize::try_from(n).map_or(0, |n| n * BLOCK));
    let good = places.map(|at| head.get(at..at + BLOCK).and_then(|block| Superblock::decode(block).ok()));
    let [Some(first), Some(second)] = &good else { return };
    if !differ([first, second]) {
        return;
    }
    let foreign = match [first, second].map(|superblock| superblock.is_of_disk(read)) {
        [true, false] => places[1],
        [false, true] => places[0],
        _ => return,
    };
    head[foreign..foreign + BLOCK].fill(0);
}

impl Superblock {
    /// Where the first page of its map is, in both mirrors: bytes of the disk. On its own disk one of them carries the disk's name.
    pub(super) fn marks_at(&self) -> [u64; 2] {
        let map = self.geometry.maps_start()[usize::from(self.map.area & 1)].0;
        [map, map + Region::map_bytes(self.geometry.places()).0 / 2]
    }

    /// Whether this page, read there, says so.
    pub(super) fn is_marked_by(&self, page: &[u8]) -> bool {
        pages::begins_map_of(self.identity.disk, page)
    }

    /// The same of a disk that is read at once.
    pub(super) fn is_of_disk(&self, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> bool {
        let mut page = [0; BLOCK];
        self.marks_at().into_iter().any(|at| read(at, &mut page) && self.is_marked_by(&page))
    }

    pub(super) fn encode(&self, page: &mut [u8]) {
        let mut body = Vec::with_capacity(256);
        body.u32(FORMAT_VERSION);
        body.u32(self.identity.node.0);
        body.u64(self.identity.cluster);
        body.u64(self.identity.disk.0);
        body.u64(self.geometry.size().0 / BLOCK as u64);
        body.u32(self.geometry.ring_blocks());
        body.u32(self.geometry.places());
        body.u32(self.geometry.max_copies());
        body.u32(self.geometry.external_journal().into());
        body.u64(self.generation);
        body.u64(self.boot);
        body.extend_from_slice(&self.tail.encode());
        body.u32(self.next_layer);
        body.u32(self.map.area.into());
        body.u32(self.map.crc);
        for root in self.roots {
            body.extend_from_slice(&root.encode());
        }
        body.u32(self.lost);
        seal(page, MAGIC, &body);
    }

    pub(super) fn decode(page: &[u8]) -> Result<Self, NoSuperblock> {
        if page.starts_with(OLDER) {
            return Err(NoSuperblock::Version(1));
        }
        if !Self::is_marked(page) {
            return Err(NoSuperblock::Foreign);
        }
        let mut body = unseal(page, MAGIC).ok_or(NoSuperblock::Damaged)?;
        let version = body.u32().ok_or(NoSuperblock::Damaged)?;
        if version != FORMAT_VERSION {
            return Err(NoSuperblock::Version(version));
        }
        Self::fields(&mut body).ok_or(NoSuperblock::Damaged)
    }

    fn fields(body: &mut Take<'_>) -> Option<Self> {
        let node = NodeId(body.u32()?);
        let cluster = body.u64()?;
        let disk = DiskId(body.u64()?);
        let size = Bytes(body.u64()?.checked_mul(BLOCK as u64)?);
        let (ring, places, copies) = (body.u32()?, body.u32()?, body.u32()?);
        let external = body.u32()?;
        let mut geometry = Geometry::new(size, ring, places, copies);
        if external == 1 {
            geometry = Geometry::external(size, ring, places, copies);
        }
        let geometry = geometry?;
        let (generation, boot) = (body.u64()?, body.u64()?);
        let tail = Mark::decode(&body.array()?);
        if [generation, boot, tail.sequence].iter().any(|count| *count >= COUNTS_END) {
            return None;
        }
        let next_layer = body.u32().filter(|next| *next <= ArrayName::LAYERS)?;
        let area = u8::try_from(body.u32()?).ok().filter(|area| *area < 2)?;
        let map = MapRef { area, crc: body.u32()? };
        let mut roots = [Root::default(); 5];
        for root in &mut roots {
            *root = Root::decode(body.array()?);
        }
        let lost = body.u32()?;
        let identity = Identity { cluster, node, disk };
        Some(Self { identity, geometry, generation, boot, tail, map, roots, next_layer, lost })
    }

    /// True if the page begins like a superblock of ours, be it damaged or of another version: `format` asks before it goes on.
    pub(super) fn is_marked(page: &[u8]) -> bool {
        page.starts_with(&MAGIC.to_le_bytes()) || page.starts_with(OLDER)
    }
}
