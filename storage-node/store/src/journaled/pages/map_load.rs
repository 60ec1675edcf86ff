//! Reading the map of taken places at opening.
//!
//! Each page from the first mirror, from the other if it is bad. A page that is whole but older than its map (a lost write) shows in
//! the map's checksum: then all of it is read again with the second mirror first.

use super::flight::{Job, Pages};
use super::limits::WRITE_PAGES;
use super::names::{MapDamaged, MapRef};
use super::page::PAGE;
use super::places::MapImage;
use crate::DiskOut;

/// How far the reading of the map is.
#[derive(Debug)]
pub(super) enum MapLoad {
    /// Not asked for.
    Not,
    /// Under way.
    Reading(Reading),
    /// It is there, or cannot be had.
    Over(Result<(), MapDamaged>),
}

/// A map being read.
#[derive(Debug)]
pub(super) struct Reading {
    map: MapRef,
    image: MapImage,
    crcs: Vec<u32>,
    /// The mirror that is read first.
    first: u8,
    /// First page of the piece that is being read.
    next: usize,
    /// Its pages that the first mirror did not have: the other one is being asked.
    missing: Option<Vec<usize>>,
    on_its_way: bool,
}

impl MapLoad {
    pub(super) fn start(map: MapRef, places: u32) -> Self {
        let image = MapImage::empty(places);
        let crcs = vec![0; image.pages()];
        Self::Reading(Reading { map, image, crcs, first: 0, next: 0, missing: None, on_its_way: false })
    }

    pub(super) fn outcome(&self) -> Option<Result<(), MapDamaged>> {
        match self {
            Self::Over(outcome) => Some(*outcome),
            _ => None,
        }
    }
}

impl Reading {
    fn piece(&self) -> usize {
        (self.image.pages() - self.next).min(WRITE_PAGES)
    }

    fn mirror(&self) -> u8 {
        self.first ^ u8::from(self.missing.is_some())
    }

    fn crc(&self) -> u32 {
        self.crcs.iter().fold(0, |crc, page| crc32c::crc32c_append(crc, &page.to_le_bytes()))
    }
}

impl Pages {
    pub(super) fn pump_map(&mut self, out: &mut DiskOut<'_>) {
        let MapLoad::Reading(reading) = &self.map_load else { return };
        if reading.on_its_way {
            return;
        }
        let at = self.region.map_page(reading.map.area, reading.next, reading.mirror());
        let pages = reading.piece();
        let Some(into) = self.take(pages) else { return };
        self.read(Job::Map, at, into, out);
        if let MapLoad::Reading(reading) = &mut self.map_load {
            reading.on_its_way = true;
        }
    }

    /// A piece was read.
    pub(super) fn map_read(&mut self, bytes: &[u8], whole: bool) -> bool {
        let MapLoad::Reading(mut reading) = std::mem::replace(&mut self.map_load, MapLoad::Not) else { return false };
        reading.on_its_way = false;
        let wanted =
            reading.missing.clone().unwrap_or_else(|| (reading.next..reading.next + reading.piece()).collect());
        let mut missing = Vec::new();
        for (n, bytes) in (reading.next..).zip(bytes.chunks_exact(PAGE)).filter(|(n, _)| wanted.contains(n)) {
            match reading.image.decode(n, self.region.disk_id, bytes).filter(|_| whole) {
                Some(crc) => reading.crcs[n] = crc,
                None => missing.push(n),
            }
        }
        self.map_load = self.after_piece(reading, missing);
        true
    }

    fn after_piece(&mut self, mut reading: Reading, missing: Vec<usize>) -> MapLoad {
        if !missing.is_empty() && reading.missing.is_some() {
            return MapLoad::Over(Err(MapDamaged));
        }
        if !missing.is_empty() {
            reading.missing = Some(missing);
            return MapLoad::Reading(reading);
        }
        reading.next += reading.piece();
        reading.missing = None;
        if reading.next < reading.image.pages() {
            return MapLoad::Reading(reading);
        }
        if reading.crc() == reading.map.crc {
            return MapLoad::Over(if self.places.load(reading.image) { Ok(()) } else { Err(MapDamaged) });
        }
        if reading.first == 1 {
            return MapLoad::Over(Err(MapDamaged));
        }
        (reading.first, reading.next) = (1, 0);
        MapLoad::Reading(reading)
    }
}
