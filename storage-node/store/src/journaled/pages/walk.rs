//! Reads arrays whole, both mirrors of every page, without a cache and without changing anything: what the offline check stands on.
//!
//! Promised: whatever the disk holds, each place is descended into once, so that a walk ends after as many pages as there are
//! places; memory is a page per level.

use super::limits::MAX_LEVELS;
use super::names::{ArrayName, MapRef, Place, Region, Root};
use super::page::{BODY, FAN, HEAD, Key, Kind, PAGE, Page, Pointer, is_zero, pointer, unseal};
use super::places::{MapImage, map_pages};
use std::collections::BTreeSet;

/// What is wrong with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// This mirror does not read as it was written, the other does.
    Mirror(u8),
    /// Neither mirror does.
    Damaged,
    /// Its place is another page's already.
    Twice,
    /// Its place, or what it holds, is beyond the region.
    Beyond,
    /// It was lost with the page that pointed to it, and nothing is in its place yet.
    Lost,
}

/// A page with a flaw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlawedPage {
    pub(crate) array: ArrayName,
    pub(crate) level: u8,
    pub(crate) index: u64,
    pub(crate) place: Place,
    pub(crate) flaw: Flaw,
}

/// Reads whole blocks of the pages' disk; false if it cannot.
pub(crate) type PageRead<'a> = dyn FnMut(u64, &mut [u8]) -> bool + 'a;

/// Takes a record: what to read more with, its index, its bytes.
pub(crate) type Each<'a> = dyn FnMut(&mut PageRead<'_>, u64, &[u8]) + 'a;

/// Places, a bit each.
#[derive(Clone, Debug)]
pub(crate) struct PlaceSet(Vec<u64>);

impl PlaceSet {
    pub(crate) fn new(places: u32) -> Self {
        Self(vec![0; (places as usize).div_ceil(64)])
    }

    /// False if it is there already.
    fn insert(&mut self, place: Place) -> bool {
        let Some(word) = self.0.get_mut(place.0 as usize / 64) else { return false };
        let bit = 1 << (place.0 % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    pub(crate) fn contains(&self, place: Place) -> bool {
        self.0.get(place.0 as usize / 64).is_some_and(|word| word >> (place.0 % 64) & 1 == 1)
    }
}

/// A walk over the arrays of one region.
pub(crate) struct Walk<'a> {
    pub(crate) region: Region,
    /// Places that were come to.
    pub(crate) visited: PlaceSet,
    /// Pages read well.
    pub(crate) pages: u64,
    /// Something could not be read: what hangs below it is unknown.
    pub(crate) blind: bool,
    pub(crate) flaws: &'a mut dyn FnMut(FlawedPage),
}

impl Walk<'_> {
    /// Shows every record that is not all zeros: index and bytes.
    pub(crate) fn array(
        &mut self,
        name: ArrayName,
        record_len: usize,
        root: Root,
        read: &mut PageRead<'_>,
        each: &mut Each<'_>,
    ) {
        if root == Root::default() {
            return;
        }
        if root.levels == 0 || root.levels > MAX_LEVELS {
            let place = root.place;
            self.flaw(FlawedPage { array: name, level: root.levels, index: 0, place, flaw: Flaw::Beyond });
            return;
        }
        let key = Key { level: root.levels - 1, array: name.0, index: 0 };
        self.page(key, Pointer { place: root.place, crc: root.crc }, record_len, read, each);
    }

    fn flaw(&mut self, page: FlawedPage) {
        self.blind |= !matches!(page.flaw, Flaw::Mirror(_) | Flaw::Lost);
        (self.flaws)(page);
    }

    fn page(&mut self, key: Key, at: Pointer, record_len: usize, read: &mut PageRead<'_>, each: &mut Each<'_>) {
        let flawed = |flaw| FlawedPage {
            array: ArrayName(key.array),
            level: key.level,
            index: key.index,
            place: at.place,
            flaw,
        };
        if at.place == Place::LOST {
            return self.flaw(flawed(Flaw::Lost));
        }
        if at.place == Place::NONE || at.place.0 >= self.region.places {
            return self.flaw(flawed(Flaw::Beyond));
        }
        if !self.visited.insert(at.place) {
            return self.flaw(flawed(Flaw::Twice));
        }
        let mut bytes = [0; PAGE];
        let mut good: Option<Page> = None;
        let mut bad = Vec::new();
        for mirror in [0, 1] {
            let whole = read(self.region.at(at.place, mirror), &mut bytes);
            match unseal(&bytes, self.region.disk_id, Kind::Array, key).filter(|crc| whole && *crc == at.crc) {
                Some(_) => good = Some(bytes),
                None => bad.push(mirror),
            }
        }
        let Some(page) = good else { return self.flaw(flawed(Flaw::Damaged)) };
        bad.into_iter().for_each(|mirror| self.flaw(flawed(Flaw::Mirror(mirror))));
        self.pages += 1;
        if key.level > 0 {
            for n in (0..FAN).filter(|n| pointer(&page, *n) != Pointer::HOLE) {
                let first = key.index.checked_mul(FAN as u64).and_then(|first| first.checked_add(n as u64));
                match first {
                    Some(_) => self.page(key.child(n), pointer(&page, n), record_len, read, each),
                    None => self.flaw(flawed(Flaw::Beyond)),
                }
            }
            return;
        }
        if is_zero(&page) {
            return;
        }
        let per_page = BODY / record_len.clamp(1, BODY);
        let Some(first) = key.index.checked_mul(per_page as u64).filter(|first| *first < u64::MAX - BODY as u64) else {
            return self.flaw(flawed(Flaw::Beyond));
        };
        for (index, record) in (first..).zip(page[HEAD..].chunks_exact(record_len).take(per_page)) {
            if record.iter().any(|byte| *byte != 0) {
                each(read, index, record);
            }
        }
    }

    /// Reads the map of taken places, each mirror first once; `None` if it is damaged. What is wrong: mirror and page.
    pub(crate) fn map(&self, map: MapRef, read: &mut PageRead<'_>) -> (Option<TakenPlaces>, BTreeSet<(u8, usize)>) {
        let (mut found, mut flaws) = (None, BTreeSet::new());
        let mut bytes = [0; PAGE];
        for first in [0, 1] {
            let (mut image, mut crc) = (MapImage::empty(self.region.places), Some(0));
            for n in 0..map_pages(self.region.places) {
                let page = [first, 1 - first].into_iter().find_map(|mirror| {
                    let whole = read(self.region.map_page(map.area, n, mirror), &mut bytes);
                    let page = image.decode(n, self.region.disk_id, &bytes).filter(|_| whole);
                    if page.is_none() {
                        flaws.insert((mirror, n));
                    }
                    page
                });
                crc = crc.zip(page).map(|(crc, page)| crc32c::crc32c_append(crc, &page.to_le_bytes()));
            }
            if crc == Some(map.crc) {
                found = found.or(Some(TakenPlaces(image)));
            } else if crc.is_some() {
                flaws.insert((first, 0)); // whole, and of another checkpoint
            }
        }
        (found, flaws)
    }
}

/// The map of taken places as it was read.
pub(crate) struct TakenPlaces(MapImage);

impl TakenPlaces {
    pub(crate) fn contains(&self, place: Place) -> bool {
        self.0.taken(place)
    }

    /// How many of the region's places.
    pub(crate) fn count(&self, places: u32) -> u32 {
        (1..places).map(|place| u32::from(self.contains(Place(place)))).sum()
    }
}

/// Looks records up one by one, for who goes over them in an order of his own: remembers a page per level.
#[derive(Default)]
pub(crate) struct Finder(Vec<(Key, Pointer, Box<Page>)>);

impl Finder {
    /// A record's bytes; `None` if there is none, or it cannot be read.
    pub(crate) fn record(
        &mut self,
        region: &Region,
        (name, record_len, root): (ArrayName, usize, Root),
        index: u64,
        read: &mut PageRead<'_>,
    ) -> Option<&[u8]> {
        let per_page = (BODY / record_len.clamp(1, BODY)) as u64;
        if root.levels == 0 || root.levels > MAX_LEVELS {
            return None;
        }
        let mut at = Pointer { place: root.place, crc: root.crc };
        for level in (0..root.levels).rev() {
            let below = (FAN as u64).checked_pow(level.into())?;
            let key = Key { level, array: name.0, index: index / per_page / below };
            if level == root.levels - 1 && key.index != 0 {
                return None;
            }
            let slot = usize::from(level);
            if self.0.get(slot).is_none_or(|known| (known.0, known.1) != (key, at)) {
                let page = Self::load(region, key, at, read)?;
                while self.0.len() <= slot {
                    self.0.push((key, Pointer::PENDING, Box::new([0; PAGE])));
                }
                *self.0.get_mut(slot)? = (key, at, page);
            }
            let (_, _, page) = self.0.get(slot)?;
            if level > 0 {
                let child = usize::try_from(index / per_page / (below / FAN as u64) % FAN as u64).ok()?;
                at = Some(pointer(page, child)).filter(|at| *at != Pointer::HOLE)?;
            }
        }
        let n = usize::try_from(index % per_page).ok()?;
        self.0.first()?.2.get(HEAD + n * record_len..)?.get(..record_len)
    }

    fn load(region: &Region, key: Key, at: Pointer, read: &mut PageRead<'_>) -> Option<Box<Page>> {
        if at.place == Place::NONE || at.place.0 >= region.places {
            return None;
        }
        let mut page = Box::new([0; PAGE]);
        for mirror in [0, 1] {
            let whole = read(region.at(at.place, mirror), &mut page[..]);
            let crc = unseal(&page[..], region.disk_id, Kind::Array, key).filter(|crc| whole && *crc == at.crc);
            if crc.is_some() {
                return Some(page);
            }
        }
        None
    }
}
