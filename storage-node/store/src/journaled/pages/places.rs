//! Which places are taken, and when those given back may be used again.
//!
//! ```text
//!          reserve            take              give (a durable checkpoint may need it)        map written      committed
//!   free ──────────► promised ─────► taken ──────────────────────────────────────► freed ──────────► sealed ──────────► free
//!    ▲                                 │  give (taken since the last map: no checkpoint knows it)
//!    └─────────────────────────────────┘
//! ```
//! A place is promised when its page becomes dirty, so that writing never finds the region full. A place that is held (a heal
//! rewrites it, the patrol reads it) becomes free only when that is over: a heal would overwrite what comes next.

use super::limits::FREEING_PLACES;
use super::names::Place;
use super::page::{BODY, HEAD, Key, Kind, PAGE, seal, unseal};
use conductor_model::DiskId;

/// Places in one page of a map.
const BITS: usize = BODY * 8;
/// Words in one page of a map.
const WORDS: usize = BITS / 64;

/// Pages of one map, its mirror not counted.
pub(super) fn map_pages(places: u32) -> usize {
    (places as usize).div_ceil(BITS)
}

/// The name of a map's page.
fn map_key(page: usize) -> Key {
    Key { level: 0, array: 0, index: page as u64 }
}

/// Whether this page is the first of a map of this disk's.
pub(crate) fn begins_map_of(disk: DiskId, page: &[u8]) -> bool {
    page.len() == PAGE && unseal(page, disk, Kind::Map, map_key(0)).is_some()
}

/// What a promise is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Content.
    Change,
    /// Giving back.
    Freeing,
}

/// The places of a region.
#[derive(Debug)]
pub(super) struct Places {
    places: u32,
    /// One bit per place; place 0 is always taken.
    taken: Vec<u64>,
    /// Those taken since the last map: no checkpoint knows them.
    young: Vec<u64>,
    free: u32,
    promised: u32,
    /// Given back since the last map.
    freed: Vec<Place>,
    /// Given back before the last map, which is not known to be durable.
    sealed: Vec<Place>,
    /// Being read or rewritten beside the tree; those given back meanwhile with `true`.
    held: Vec<(Place, bool)>,
    /// Where to look next.
    word: usize,
}

fn bit(words: &[u64], place: Place) -> bool {
    words.get(place.0 as usize / 64).is_some_and(|word| word >> (place.0 % 64) & 1 == 1)
}

fn set(words: &mut [u64], place: Place, to: bool) {
    if let Some(word) = words.get_mut(place.0 as usize / 64) {
        let mask = 1 << (place.0 % 64);
        *word = if to { *word | mask } else { *word & !mask };
    }
}

impl Places {
    /// All free.
    pub(super) fn new(places: u32) -> Self {
        let mut taken = vec![0; map_pages(places) * WORDS];
        // Bits beyond the last place are never free, and never on disk.
        for (n, word) in taken.iter_mut().enumerate().skip(places as usize / 64) {
            let first = n * 64;
            let here = (places as usize).saturating_sub(first).min(64);
            *word = if here == 64 { 0 } else { !0 << here };
        }
        set(&mut taken, Place::NONE, true);
        let young = vec![0; taken.len()];
        let (freed, sealed, held) = (Vec::new(), Vec::new(), Vec::new());
        let free = places.saturating_sub(1);
        Self { places, taken, young, free, promised: 0, freed, sealed, held, word: 0 }
    }

    /// Places that a change could still have.
    pub(super) fn available(&self) -> u32 {
        self.free.saturating_sub(self.promised).saturating_sub(FREEING_PLACES)
    }

    /// Places that a checkpoint makes free.
    pub(super) fn given_back(&self) -> u32 {
        u32::try_from(self.freed.len() + self.sealed.len()).unwrap_or(u32::MAX) // each is one of the region's
    }

    /// True if giving it back makes it free at once.
    pub(super) fn is_free_when_given(&self, place: Place) -> bool {
        bit(&self.young, place) && !self.is_held(place)
    }

    /// Promise so many, of which `coming` will be given back at once; false, and nothing promised, if there are not as many.
    pub(super) fn promise(&mut self, count: u32, coming: u32, purpose: Purpose) -> bool {
        let there = match purpose {
            Purpose::Change => self.available(),
            Purpose::Freeing => self.free.saturating_sub(self.promised),
        };
        let enough = count <= there.saturating_add(coming);
        self.promised += if enough { count } else { 0 };
        enough
    }

    /// A promise that is not needed.
    pub(super) fn forgo(&mut self) {
        debug_assert!(self.promised > 0, "a place was forgone that nobody promised");
        self.promised = self.promised.saturating_sub(1);
    }

    /// Up to `most` adjacent places that were promised, the first and how many. `None` only if the promises were not kept.
    pub(super) fn take(&mut self, most: u32) -> Option<(Place, u32)> {
        let most = most.min(self.promised).min(self.free);
        if most == 0 {
            return None;
        }
        let at = (0..self.taken.len()).map(|n| (self.word + n) % self.taken.len()).find(|n| self.taken[*n] != !0)?;
        self.word = at;
        #[expect(clippy::cast_possible_truncation, reason = "place numbers have 32 bits")]
        let first = (at * 64) as u32 + self.taken[at].trailing_ones();
        let mut count = 0;
        while count < most && first + count < self.places && !bit(&self.taken, Place(first + count)) {
            set(&mut self.taken, Place(first + count), true);
            set(&mut self.young, Place(first + count), true);
            count += 1;
        }
        self.free -= count;
        self.promised -= count;
        Some((Place(first), count))
    }

    /// The first adjacent places from `from` on that are taken and not held, at most `most`: the first and how many.
    pub(super) fn taken_run(&self, from: Place, most: u32) -> Option<(Place, u32)> {
        let there = |place: u32| place < self.places && bit(&self.taken, Place(place)) && !self.is_held(Place(place));
        let mut first = from.0.max(1);
        while first < self.places && !there(first) {
            // Of a large disk most is not taken: by words, not by places.
            let rest = self.taken[first as usize / 64] >> (first % 64);
            first += if rest == 0 { 64 - first % 64 } else { rest.trailing_zeros().max(1) };
        }
        if first >= self.places {
            return None;
        }
        let end = (first..first + most).find(|place| !there(*place)).unwrap_or(first + most);
        Some((Place(first), end - first))
    }

    /// A page does not need its place any more. `writing`: its write is not over.
    pub(super) fn give(&mut self, place: Place, writing: bool) {
        debug_assert!(bit(&self.taken, place), "place {} was given back twice", place.0);
        if bit(&self.young, place) && !writing {
            self.release(place);
        } else {
            self.freed.push(place);
        }
    }

    fn release(&mut self, place: Place) {
        set(&mut self.young, place, false);
        if let Some((_, given)) = self.held.iter_mut().find(|(held, _)| *held == place) {
            *given = true;
        } else if bit(&self.taken, place) {
            set(&mut self.taken, place, false);
            self.free += 1;
        }
    }

    /// A place is read, or rewritten with what it should hold: nothing else gets it until that is over.
    pub(super) fn hold(&mut self, place: Place) {
        self.held.push((place, false));
    }

    /// That is over.
    pub(super) fn let_go(&mut self, place: Place) {
        if let Some(n) = self.held.iter().position(|(held, _)| *held == place) {
            let (_, given) = self.held.swap_remove(n);
            if given {
                self.release(place);
            }
        }
    }

    /// True if one becomes free when it is let go.
    pub(super) fn any_coming(&self) -> bool {
        self.held.iter().any(|(_, given)| *given)
    }

    /// True if any is held.
    pub(super) fn any_held(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn is_held(&self, place: Place) -> bool {
        self.held.iter().any(|(held, _)| *held == place)
    }

    /// The map of a checkpoint that writes no more pages: what is taken, less what was given back.
    pub(super) fn seal(&mut self) -> MapImage {
        self.sealed.append(&mut self.freed);
        self.young.fill(0);
        let mut words = self.taken.clone();
        let given = self.held.iter().filter(|(_, given)| *given).map(|(place, _)| place);
        self.sealed.iter().chain(given).for_each(|place| set(&mut words, *place, false));
        MapImage(words)
    }

    /// The checkpoint of the last map is durable, and so nothing older is needed.
    pub(super) fn committed(&mut self) {
        for place in std::mem::take(&mut self.sealed) {
            self.release(place);
        }
    }

    /// Become what a checkpoint's map says. False, and nothing changed, if it is not a map of this region.
    pub(super) fn load(&mut self, image: MapImage) -> bool {
        let fresh = Self::new(self.places);
        let all = fresh.taken.iter().zip(&image.0);
        // Place 0 and those beyond the end are taken in both.
        if image.0.len() != fresh.taken.len() || all.clone().any(|(ours, theirs)| ours & !theirs != 0) {
            return false;
        }
        let free = fresh.free - all.map(|(ours, theirs)| (theirs & !ours).count_ones()).sum::<u32>();
        // Heals may be on their way: reading comes before the map.
        *self = Self { taken: image.0, free, held: std::mem::take(&mut self.held), ..fresh };
        true
    }
}

/// A map of taken places on its way to or from the disk: pages of kind 2 (level and array 0, numbered from 0), each of 509 little-endian
/// words of 64 places, bit 0 the lowest; 1 is taken. Place 0 and what is behind the last one are taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MapImage(Vec<u64>);

impl MapImage {
    /// To be filled by `decode`.
    pub(super) fn empty(places: u32) -> Self {
        Self(vec![0; map_pages(places) * WORDS])
    }

    /// True if the place is taken.
    pub(super) fn taken(&self, place: Place) -> bool {
        bit(&self.0, place)
    }

    /// Pages of it.
    pub(super) fn pages(&self) -> usize {
        self.0.len() / WORDS
    }

    /// Seal the `n`th page into `bytes`; its crc comes back.
    pub(super) fn encode(&self, n: usize, disk: DiskId, bytes: &mut [u8]) -> u32 {
        let words = self.0.iter().skip(n * WORDS).take(WORDS);
        let (to, _) = bytes[HEAD..PAGE].as_chunks_mut::<8>();
        to.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        seal(bytes, disk, Kind::Map, map_key(n))
    }

    /// Take over the `n`th page; its crc, or `None` if it is not that page.
    pub(super) fn decode(&mut self, n: usize, disk: DiskId, bytes: &[u8]) -> Option<u32> {
        let crc = unseal(bytes, disk, Kind::Map, map_key(n))?;
        let (from, _) = bytes[HEAD..PAGE].as_chunks::<8>();
        let words = self.0.iter_mut().skip(n * WORDS).take(WORDS);
        words.zip(from).for_each(|(word, from)| *word = u64::from_le_bytes(*from));
        Some(crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(places: &mut Places, count: u32) -> Vec<Place> {
        assert!(places.promise(count, 0, Purpose::Change));
        let (mut got, mut left) = (vec![], count);
        while left > 0 {
            let (first, n) = places.take(left).unwrap();
            got.extend((first.0..first.0 + n).map(Place));
            left -= n;
        }
        got
    }

    #[test]
    fn what_a_checkpoint_knows_is_free_again_only_when_the_next_one_is_durable() {
        let mut places = Places::new(200);
        let all = taken(&mut places, 20);
        places.seal();
        places.committed();
        let before = places.available();
        places.give(all[3], false);
        assert_eq!(places.available(), before);
        places.seal();
        assert_eq!(places.available(), before);
        places.give(all[4], false); // given back after that map: it waits for the next
        places.committed();
        assert_eq!(places.available(), before + 1);
        places.committed();
        assert_eq!(places.available(), before + 1);
        places.seal();
        places.committed();
        assert_eq!(places.available(), before + 2);
    }

    #[test]
    fn what_no_checkpoint_knows_is_free_at_once_unless_its_write_is_not_over() {
        let mut places = Places::new(100);
        let before = places.available();
        let all = taken(&mut places, 2);
        places.give(all[0], false);
        places.give(all[1], true);
        assert_eq!(places.available(), before - 1);
        places.seal();
        places.committed();
        assert_eq!(places.available(), before);
    }

    #[test]
    fn a_place_being_healed_is_not_used_again_before_that_is_over() {
        let mut places = Places::new(100);
        let before = places.available();
        let all = taken(&mut places, 1);
        places.hold(all[0]);
        places.give(all[0], false);
        assert_eq!(places.available(), before - 1);
        places.let_go(all[0]);
        assert_eq!(places.available(), before);
    }

    #[test]
    fn a_run_is_of_what_is_taken_and_not_held() {
        let mut places = Places::new(1000);
        let all = taken(&mut places, 900);
        all.iter()
            .filter(|place| place.0 % 7 > 2 || (200..500).contains(&place.0))
            .for_each(|p| places.give(*p, false));
        for place in [64, 65, 127, 128] {
            places.hold(Place(place));
        }
        let there = |place: &u32| (1..200).contains(place) || (500..=900).contains(place);
        let expected: Vec<u32> =
            (1..1000).filter(there).filter(|p| p % 7 <= 2 && ![64, 65, 127, 128].contains(p)).collect();
        let (mut found, mut from) = (vec![], Place::NONE);
        while let Some((first, pages)) = places.taken_run(from, 2) {
            assert!((1..=2).contains(&pages));
            found.extend(first.0..first.0 + pages);
            from = Place(first.0 + pages);
        }
        assert_eq!(found, expected);
        assert_eq!(Places::new(1000).taken_run(Place::NONE, 16), None);
    }

    #[test]
    fn the_last_places_are_for_giving_back_and_all_are_used_once() {
        let mut places = Places::new(70);
        assert!(!places.promise(69 - FREEING_PLACES + 1, 0, Purpose::Change));
        let mut all = taken(&mut places, 69 - FREEING_PLACES);
        assert!(!places.promise(1, 0, Purpose::Change));
        assert!(places.promise(FREEING_PLACES, 0, Purpose::Freeing));
        assert!(!places.promise(1, 0, Purpose::Freeing));
        while let Some((first, n)) = places.take(5) {
            all.extend((first.0..first.0 + n).map(Place));
        }
        all.sort();
        assert_eq!(all, (1..70).map(Place).collect::<Vec<_>>());
    }

    #[test]
    fn a_map_is_read_back_as_it_was_without_what_was_given_back() {
        for count in [64, 65, 4000, 32_576, 32_577, 3 * 32_576 - 7] {
            let mut places = Places::new(count);
            let all = taken(&mut places, 20);
            places.seal();
            places.give(all[7], false);
            let image = places.seal();
            assert_eq!(image.pages(), map_pages(count));
            let (mut again, mut page) = (MapImage::empty(count), [0; PAGE]);
            for n in 0..image.pages() {
                let crc = image.encode(n, DiskId(1), &mut page);
                assert_eq!(again.decode(n, DiskId(1), &page), Some(crc));
                assert_eq!(again.decode(n + 1, DiskId(1), &page), None);
            }
            assert_eq!(again, image);
            let mut loaded = Places::new(count);
            assert!(!loaded.load(MapImage::empty(count)), "place 0 is never free");
            assert!(loaded.load(again));
            places.committed();
            assert_eq!(loaded.taken, places.taken);
            assert_eq!(loaded.available(), places.available());
        }
    }
}
