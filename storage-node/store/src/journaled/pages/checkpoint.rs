//! Checkpoints: all that is dirty goes to fresh places, inner arrays first, then the map of taken places.
//!
//! ```text
//!   Idle ──► Inner(pages left) ──► Between ──► Outer(pages left) ──► Map(writing) ──► Idle
//!            roots told at its end    ▲            both mirrors of all pages are written at its end
//!                                     └ the caller puts them into records of other arrays
//! ```

use super::cache::Slot;
use super::flight::{Job, Pages};
use super::flush::Group;
use super::limits::{MAX_WRITES, WRITE_PAGES};
use super::names::{ArrayName, Checkpointed, MapRef, Root};
use super::page::PAGE;
use super::places::MapImage;
use crate::DiskOut;
use driver::Errno;
use std::collections::VecDeque;

/// How far a checkpoint is.
#[derive(Debug)]
pub(super) enum Stage {
    Idle,
    Inner(VecDeque<Slot>),
    Between,
    Outer(VecDeque<Slot>),
    Map(MapWrite),
}

/// The map being written.
#[derive(Debug)]
pub(super) struct MapWrite {
    image: MapImage,
    area: u8,
    next: usize,
    /// Over the pages' own, so far.
    crc: u32,
}

impl Stage {
    /// True if records may be changed.
    pub(super) fn may_change(&self) -> bool {
        matches!(self, Self::Idle | Self::Between)
    }
}

impl Pages {
    pub(super) fn assert_changeable(&self) {
        debug_assert!(self.stage.may_change(), "a record is changed while a checkpoint is written");
    }

    /// Write the dirty pages of inner arrays; call again until it gives the roots that changed (perhaps none). Then the caller
    /// puts them where they are kept, and goes on with [`Pages::checkpoint`].
    pub(crate) fn checkpoint_inner(&mut self, out: &mut DiskOut<'_>) -> Option<Result<Vec<(ArrayName, Root)>, Errno>> {
        if matches!(self.stage, Stage::Idle) {
            self.stage = Stage::Inner(self.cache.all_dirty(|array| ArrayName(array).is_inner()).into());
        }
        if let Some(errno) = self.failed {
            return Some(Err(errno));
        }
        if let Stage::Inner(todo) = &mut self.stage {
            let mut todo = std::mem::take(todo);
            let all = self.write_pages(&mut todo, out);
            self.stage = if all { Stage::Between } else { Stage::Inner(todo) };
        }
        match self.stage {
            Stage::Inner(_) => None,
            Stage::Between => Some(Ok(self.changed_roots(true))),
            _ => Some(Ok(Vec::new())), // it is over already
        }
    }

    /// Write the dirty pages of the other arrays, and the map; call again until it gives the outcome. It counts when the caller
    /// has synced the disk and its superblocks say so: [`Pages::committed`].
    pub(crate) fn checkpoint(&mut self, out: &mut DiskOut<'_>) -> Option<Result<Checkpointed, Errno>> {
        if let Some(errno) = self.failed {
            return Some(Err(errno));
        }
        if self.stage.may_change() {
            debug_assert!(
                self.cache.all_dirty(|array| ArrayName(array).is_inner()).is_empty(),
                "inner arrays come first"
            );
            self.stage = Stage::Outer(self.cache.all_dirty(|array| !ArrayName(array).is_inner()).into());
        }
        if let Stage::Outer(todo) = &mut self.stage {
            let mut todo = std::mem::take(todo);
            let all = self.write_pages(&mut todo, out);
            self.stage = if all { Stage::Map(self.map_write()) } else { Stage::Outer(todo) };
        }
        let map = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Map(map) => self.write_map(map, out),
            unfinished => {
                self.stage = unfinished;
                return None;
            }
        };
        if map.next < map.image.pages() || self.writes() > 0 {
            self.stage = Stage::Map(map);
            return None;
        }
        let map = MapRef { area: map.area, crc: map.crc };
        self.map = Some(map);
        Some(Ok(Checkpointed { roots: self.changed_roots(false), map }))
    }

    /// Both superblocks of the last checkpoint are durable: what was given back before it is free now.
    pub(crate) fn committed(&mut self) {
        self.places.committed();
        self.map_is_new();
    }

    fn changed_roots(&mut self, inner: bool) -> Vec<(ArrayName, Root)> {
        let arrays = self.arrays.iter_mut().filter(|(name, array)| name.is_inner() == inner && array.changed);
        let mut roots: Vec<_> = arrays
            .map(|(name, array)| {
                array.changed = false;
                (*name, array.root)
            })
            .collect();
        roots.sort_unstable_by_key(|(name, _)| *name);
        roots
    }

    /// All pages have their places: begin the map, beside the one in use.
    fn map_write(&mut self) -> MapWrite {
        let area = self.map.map_or(0, |map| 1 - map.area.min(1));
        MapWrite { image: self.places.seal(), area, next: 0, crc: 0 }
    }

    fn write_map(&mut self, mut map: MapWrite, out: &mut DiskOut<'_>) -> MapWrite {
        while map.next < map.image.pages() && self.writes() < MAX_WRITES {
            let count = (map.image.pages() - map.next).min(WRITE_PAGES);
            let Some(mut memory) = self.take(count) else { break };
            for (n, bytes) in memory.chunks_exact_mut(PAGE).enumerate() {
                let crc = map.image.encode(map.next + n, self.region.disk_id, bytes);
                map.crc = crc32c::crc32c_append(map.crc, &crc.to_le_bytes());
            }
            let (memory, group) = (memory.filled(), self.groups.insert(Group::new()));
            for (mirror, memory) in [(0, memory.share()), (1, memory)] {
                self.write(Job::Write { group }, self.region.map_page(map.area, map.next, mirror), memory, out);
            }
            map.next += count;
        }
        map
    }
}
