//! What callers of paged arrays give and get: places on the disk, roots, answers.

use super::page::PAGE;
#[cfg(test)]
use super::page::{BODY, FAN};
use super::places::map_pages;
use conductor_model::{Bytes, DiskId};
use driver::DiskIndex;

/// Where pages live. The division is the geometry's; nothing here is written anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// The disk.
    pub(crate) disk: DiskIndex,
    /// Summed into every page's checksum: pages of an older store on this disk are foreign.
    pub(crate) disk_id: DiskId,
    /// First byte of the places; they take [`Region::places_bytes`].
    pub(crate) start: Bytes,
    /// Places for pages, each mirrored. Place 0 is never used.
    pub(crate) places: u32,
    /// First bytes of the two page maps; each takes [`Region::map_bytes`].
    pub(crate) map_at: [Bytes; 2],
}

impl Region {
    /// Bytes on disk of so many places, mirrors included.
    pub(crate) fn places_bytes(places: u32) -> Bytes {
        Bytes(2 * u64::from(places) * PAGE as u64)
    }

    /// Bytes on disk of one page map for so many places, mirror included.
    pub(crate) fn map_bytes(places: u32) -> Bytes {
        Bytes(2 * map_pages(places) as u64 * PAGE as u64)
    }

    /// Pages of a full array, those of pointers included. A region needs as many places as all arrays together have pages, and
    /// one more for each page that changes between two checkpoints.
    #[cfg(test)]
    pub(crate) fn pages_for(records: u64, record_len: usize) -> u64 {
        let mut level = records.div_ceil((BODY / record_len.clamp(1, BODY)) as u64);
        let mut pages = level;
        while level > 1 {
            level = level.div_ceil(FAN as u64);
            pages += level;
        }
        pages
    }

    /// Where a place, or its mirror, begins.
    pub(super) fn at(&self, place: Place, mirror: u8) -> u64 {
        self.start.0 + (u64::from(place.0) + u64::from(mirror) * u64::from(self.places)) * PAGE as u64
    }

    /// Where a page of a map, or its mirror, begins.
    pub(super) fn map_page(&self, area: u8, page: usize, mirror: u8) -> u64 {
        let page = page + usize::from(mirror) * map_pages(self.places);
        self.map_at[usize::from(area & 1)].0 + (page * PAGE) as u64
    }
}

/// A place for a page; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    /// No page: a hole, all zeros.
    pub(super) const NONE: Self = Self(0);
    /// In a pointer in memory: the page exists and has no place yet. Never on disk.
    pub(super) const PENDING: Self = Self(u32::MAX);
    /// In a pointer, on the disk, too: what it pointed to is not known any more.
    pub(super) const LOST: Self = Self(u32::MAX - 1);
}

/// Where an array begins. The default is the empty array.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Root {
    /// Of the topmost page.
    pub(crate) place: Place,
    /// Of that page.
    pub(crate) crc: u32,
    /// How many levels of pages; 0 = empty.
    pub(crate) levels: u8,
}

impl Root {
    /// Bytes of an encoded root.
    pub(crate) const BYTES: usize = 9;

    /// `place u32 | crc u32 | levels u8`, little-endian; all zeros if empty.
    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.place.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8] = self.levels;
        bytes
    }

    /// Any bytes are a root; one that points nowhere reads as damaged.
    pub(crate) fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [p0, p1, p2, p3, c0, c1, c2, c3, levels] = bytes;
        let place = Place(u32::from_le_bytes([p0, p1, p2, p3]));
        Self { place, crc: u32::from_le_bytes([c0, c1, c2, c3]), levels }
    }
}

/// Which array. Inner arrays (the layers' maps) have their roots in records of others, which have theirs in the superblock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ArrayName(pub(crate) u32);

impl ArrayName {
    /// The first name of inner arrays.
    pub(crate) const INNER: u32 = 0x1000_0000;

    /// Layer ids are below this.
    pub(crate) const LAYERS: u32 = u32::MAX - Self::INNER;

    /// The map of a layer.
    pub(crate) fn map_of(layer: u32) -> Self {
        debug_assert!(layer < Self::LAYERS, "layer {layer} is beyond the names of arrays");
        Self(Self::INNER.wrapping_add(layer))
    }

    /// True if its root is kept in a record of another array.
    pub(crate) fn is_inner(self) -> bool {
        self.0 >= Self::INNER
    }
}

/// A record, for reading.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Lookup<'a> {
    /// Its bytes.
    Here(&'a [u8]),
    /// No page: it is all zeros.
    Hole,
    /// Was asked for: ask again when [`Pages::done`](super::Pages::done) said true.
    Load,
    /// Neither mirror of a page on the way reads as it was written.
    Damaged,
}

/// A record, for changing.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum LookupMut<'a> {
    /// Its bytes; the page is dirty now.
    Here(&'a mut [u8]),
    /// As of [`Lookup::Load`]; also while the cache is full of what must be written first.
    Load,
    /// As of [`Lookup::Damaged`].
    Damaged,
    /// No place is left for the pages that would change. Nothing was touched. A checkpoint gives back what was freed.
    Full,
}

/// The answer to [`Pages::next_present`](super::Pages::next_present).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Records before this index, from the one asked for, are zeros; this one's page exists.
    At(u64),
    /// No page from there on.
    End,
    /// As of [`Lookup::Load`].
    Load,
    /// As of [`Lookup::Damaged`].
    Damaged,
}

/// How far [`Pages::free_array`](super::Pages::free_array) came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The array is empty.
    Done,
    /// Call again.
    Again,
    /// As of [`Lookup::Load`].
    Load,
    /// As of [`LookupMut::Full`]; hardly to be seen, for giving back has places of its own.
    Full,
}

/// Where the map of used places is, for the superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapRef {
    /// 0 or 1.
    pub(crate) area: u8,
    /// Over the checksums of its pages, in order.
    pub(crate) crc: u32,
}

/// What a checkpoint wrote. It counts when the caller has synced the disk and both superblocks are durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Checkpointed {
    /// Arrays other than inner ones whose roots changed since the last checkpoint.
    pub(crate) roots: Vec<(ArrayName, Root)>,
    /// Where the map is.
    pub(crate) map: MapRef,
}

/// What happened since these pages were opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PageCounters {
    /// Pages read from the disk and good.
    pub(crate) loaded: u64,
    /// Pages one of whose mirrors was bad, and has been rewritten from the other.
    pub(crate) healed: u64,
    /// Such whose rewriting failed: the mirror is as bad as it was.
    pub(crate) unhealed: u64,
    /// Pages that the patrol has read, each from both mirrors.
    pub(crate) patrolled: u64,
    /// Pages neither of whose mirrors was good.
    pub(crate) damaged: u64,
    /// Pages dropped for lack of room.
    pub(crate) evicted: u64,
    /// Pages written, each to both mirrors.
    pub(crate) written: u64,
    /// Of these, before their checkpoint: the budget was too small for all that changed.
    pub(crate) written_early: u64,
    /// Pages that became all zeros, and were given back instead of written.
    pub(crate) pruned: u64,
    /// Damaged pages that were given up, with their arrays or for new ones: the places of what was below them are lost until the store is
    /// formatted.
    pub(crate) lost: u64,
    /// Completions that belong to nothing.
    pub(crate) strays: u64,
}

/// Neither mirror of the map of used places reads as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the map of used metadata pages is damaged in both mirrors")]
pub(crate) struct MapDamaged;
