//! One page: its head, its seal, and the pointers of inner pages.
//!
//! ```text
//! 0        4      8    9     10   12       16         24
//! │ "TPG2" │ crc  │kind│level│ 0  │ array  │  index   │ records, or 509 × { place u32, crc u32 } │
//! ```
//! `crc` is CRC32C of the disk id and of all that follows it; a pointer carries the crc of the page it points to, so that an
//! old page in the right place is as foreign as damage. `index` counts the pages of a level. A place of `u32::MAX - 1` is none: what was
//! there is lost (`lost.rs`).

use super::names::Place;
use conductor_model::DiskId;

/// Bytes of a page: a block.
pub(super) const PAGE: usize = conductor_model::BLOCK;
/// Bytes before the records.
pub(super) const HEAD: usize = 24;
/// Bytes of records in a page.
pub(super) const BODY: usize = PAGE - HEAD;
/// Pointers in an inner page.
pub(super) const FAN: usize = BODY / POINTER;
const _: () = assert!(FAN == super::super::limits::LEAVES_PER_BRANCH as usize);
const POINTER: usize = 8;
const MAGIC: [u8; 4] = *b"TPG2";

/// A page in memory.
pub(super) type Page = [u8; PAGE];

/// What a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Of an array: records at level 0, pointers above.
    Array = 1,
    /// Of the map of used places.
    Map = 2,
}

/// Which page of all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key {
    /// First, so that leaves sort before what points to them.
    pub(super) level: u8,
    pub(super) array: u32,
    pub(super) index: u64,
}

impl Key {
    /// The page that points to this one.
    pub(super) fn parent(self) -> Self {
        Self { level: self.level + 1, index: self.index / FAN as u64, ..self }
    }

    /// Which pointer of its parent it is.
    pub(super) fn slot_in_parent(self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below FAN")]
        let n = (self.index % FAN as u64) as usize;
        n
    }

    /// The page that its `n`th pointer points to.
    pub(super) fn child(self, n: usize) -> Self {
        Self { level: self.level - 1, index: self.index * FAN as u64 + n as u64, ..self }
    }
}

/// Where a page is and what its checksum must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pointer {
    pub(super) place: Place,
    pub(super) crc: u32,
}

impl Pointer {
    pub(super) const HOLE: Self = Self { place: Place::NONE, crc: 0 };
    pub(super) const PENDING: Self = Self { place: Place::PENDING, crc: 0 };
    /// To a page that was lost with the one that pointed to it: it reads as damaged.
    pub(super) const LOST: Self = Self { place: Place::LOST, crc: 0 };
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

/// The `n`th pointer of an inner page.
pub(super) fn pointer(page: &Page, n: usize) -> Pointer {
    let at = HEAD + n * POINTER;
    Pointer { place: Place(word(page, at)), crc: word(page, at + 4) }
}

/// Change the `n`th pointer of an inner page.
pub(super) fn set_pointer(page: &mut Page, n: usize, pointer: Pointer) {
    let at = HEAD + n * POINTER;
    page[at..at + 4].copy_from_slice(&pointer.place.0.to_le_bytes());
    page[at + 4..at + 8].copy_from_slice(&pointer.crc.to_le_bytes());
}

/// True if it holds nothing: reading a hole would give the same.
pub(super) fn is_zero(page: &Page) -> bool {
    let (words, _) = page[HEAD..].as_chunks::<8>();
    words.iter().all(|word| *word == [0; 8])
}

fn crc(disk: DiskId, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&disk.0.to_le_bytes()), &bytes[8..])
}

/// Write the head over a page's first bytes. Its crc comes back, for the pointer. `bytes` are one page.
pub(super) fn seal(bytes: &mut [u8], disk: DiskId, kind: Kind, key: Key) -> u32 {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[8] = kind as u8;
    bytes[9] = key.level;
    bytes[10..12].fill(0);
    bytes[12..16].copy_from_slice(&key.array.to_le_bytes());
    bytes[16..24].copy_from_slice(&key.index.to_le_bytes());
    let crc = crc(disk, bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Which page it says that it is.
pub(super) fn named(page: &Page) -> Key {
    let index = page[16..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Key { level: page[9], array: word(page, 12), index }
}

/// The crc of a page that is what it should be; `None` if it is damaged, torn, or another page. `bytes` are one page.
pub(super) fn unseal(bytes: &[u8], disk: DiskId, kind: Kind, key: Key) -> Option<u32> {
    let said = word(bytes, 4);
    let same = bytes[..4] == MAGIC
        && bytes[8] == kind as u8
        && bytes[9] == key.level
        && word(bytes, 12) == key.array
        && bytes[16..24] == key.index.to_le_bytes();
    (same && said == crc(disk, bytes)).then_some(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { level: 2, array: 0x1000_0007, index: 11 };

    #[test]
    fn a_page_is_known_only_under_its_own_name_and_untouched() {
        let mut page = [7; PAGE];
        let crc = seal(&mut page, DiskId(5), Kind::Array, KEY);
        assert_eq!(unseal(&page, DiskId(5), Kind::Array, KEY), Some(crc));
        assert_eq!(named(&page), KEY);
        assert_eq!(unseal(&page, DiskId(6), Kind::Array, KEY), None);
        assert_eq!(unseal(&page, DiskId(5), Kind::Map, KEY), None);
        for other in [Key { level: 1, ..KEY }, Key { array: 1, ..KEY }, Key { index: 12, ..KEY }] {
            assert_eq!(unseal(&page, DiskId(5), Kind::Array, other), None);
        }
        for at in 0..PAGE {
            page[at] ^= 0x10;
            assert_eq!(unseal(&page, DiskId(5), Kind::Array, KEY), None, "byte {at}");
            page[at] ^= 0x10;
        }
    }

    #[test]
    fn pointers_are_where_they_were_put() {
        let mut page = [0; PAGE];
        assert!(is_zero(&page));
        let last = Pointer { place: Place(9), crc: 0xffff_fff0 };
        set_pointer(&mut page, FAN - 1, last);
        assert_eq!(pointer(&page, FAN - 1), last);
        assert_eq!(pointer(&page, FAN - 2), Pointer::HOLE);
        assert!(!is_zero(&page));
        assert_eq!(KEY.child(3).parent(), KEY);
        assert_eq!(KEY.child(FAN - 1).slot_in_parent(), FAN - 1);
    }
}
