//! The whole, and what it has on the disk: each operation's tag leads back to why it was sent.

use super::cache::{Cache, KeyMap};
use super::checkpoint::Stage;
use super::flush::Group;
use super::limits::MIN_CACHE_PAGES;
use super::load::Loads;
use super::map_load::MapLoad;
use super::names::{ArrayName, MapDamaged, MapRef, PageCounters, Place, Region, Root};
use super::page::{Key, PAGE};
use super::patrol::Patrol;
use super::places::Places;
use super::tree::Array;
use crate::DiskOut;
use conductor_model::Bytes;
use driver::{Done, Errno, Op};
use memory::{Arena, Class, Filling};
use slab::Slab;

/// Why an operation was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    /// To read a page from one of its mirrors.
    Load { key: Key, mirror: u8 },
    /// To compare a mirror of the patrol's run with the other.
    Patrol { mirror: u8 },
    /// To put a mirror right.
    Heal(Place),
    /// One mirror of pages, or of pages of the map.
    Write { group: usize },
    /// To read pages of the map.
    Map,
}

/// Paged arrays of one region. See the module's head.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(super) region: Region,
    pub(super) arena: Arena,
    /// What all tags of this have in common: the upper half.
    tags: u64,
    /// Pages that the cache may hold.
    pub(super) budget: usize,
    pub(super) arrays: KeyMap<ArrayName, Array>,
    pub(super) cache: Cache,
    pub(super) places: Places,
    pub(super) loads: Loads,
    pub(super) patrol: Patrol,
    pub(super) groups: Slab<Group>,
    pub(super) stage: Stage,
    /// The newest map that was written or loaded.
    pub(super) map: Option<MapRef>,
    pub(super) map_load: MapLoad,
    jobs: Slab<Job>,
    /// The first failed write.
    pub(super) failed: Option<Errno>,
    /// The cache was full of pages that must be written before they can go.
    pub(super) room_wanted: bool,
    /// The arena had nothing for it.
    pub(super) short: bool,
    pub(super) counters: PageCounters,
    /// How many lost pages the caller has been told of.
    pub(super) lost_told: u64,
}

impl Pages {
    /// Pages with a cache of `budget` (at least 1.25 MiB), on memory of `arena`. The lower 32 bits of `tags` are zero: they
    /// tell the operations apart. Then either [`Pages::start_empty`] or [`Pages::load_map`].
    pub(crate) fn new(region: Region, budget: Bytes, arena: Arena, tags: u64) -> Self {
        debug_assert!(tags.trailing_zeros() >= 32, "tags {tags:x} leave no room for operations");
        let budget = usize::try_from(budget.0 / PAGE as u64).unwrap_or(usize::MAX).max(MIN_CACHE_PAGES);
        Self {
            region,
            arena,
            tags,
            budget,
            arrays: KeyMap::default(),
            cache: Cache::default(),
            places: Places::new(region.places),
            loads: Loads::default(),
            patrol: Patrol::default(),
            groups: Slab::new(),
            stage: Stage::Idle,
            map: None,
            map_load: MapLoad::Not,
            jobs: Slab::new(),
            failed: None,
            room_wanted: false,
            short: false,
            counters: PageCounters::default(),
            lost_told: 0,
        }
    }

    /// Nothing is there yet: a new store. Its first checkpoint writes a map.
    pub(crate) fn start_empty(&mut self) {
        self.map_load = MapLoad::Over(Ok(()));
    }

    /// Read the map of a checkpoint. What it calls free is overwritten once it is read, and both superblocks are durable.
    pub(crate) fn load_map(&mut self, map: MapRef) {
        self.map = Some(map);
        self.map_load = MapLoad::start(map, self.region.places);
    }

    /// `None` while the map is being read. Reading records works before, changing them does not.
    pub(crate) fn ready(&self) -> Option<Result<(), MapDamaged>> {
        self.map_load.outcome()
    }

    /// Get to know an array. Its records have `record_len` bytes, the same at every opening.
    pub(crate) fn open_array(&mut self, name: ArrayName, record_len: usize, root: Root) {
        let before = self.arrays.insert(name, Array::new(record_len, root));
        debug_assert!(before.is_none(), "array {name:?} was open");
    }

    /// True between `open_array` and `close_array`.
    #[cfg(test)]
    pub(crate) fn is_open(&self, name: ArrayName) -> bool {
        self.arrays.contains_key(&name)
    }

    /// Where an array begins, as of the last checkpoint; meaningless while it changes. Empty if it is not open.
    pub(crate) fn root(&self, name: ArrayName) -> Root {
        self.arrays.get(&name).map_or(Root::default(), |array| array.root)
    }

    /// Ask the disk for what is wanted. Call in every turn.
    pub(crate) fn pump(&mut self, out: &mut DiskOut<'_>) {
        self.short = false;
        self.pump_map(out);
        self.pump_patrol(out);
        self.pump_heals(out);
        self.pump_loads(out);
        self.pump_early(out);
    }

    /// An operation of this is over. True if what was refused with `Load` should be asked for again, or a checkpoint goes on.
    pub(crate) fn done(&mut self, done: Done) -> bool {
        let (tag, read) = match done.op {
            Op::DiskRead { tag, into, len, .. } => (tag, Some((into, len))),
            Op::DiskWrite { tag, .. } => (tag, None),
            _ => return self.stray(),
        };
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is the key")]
        let id = (tag ^ self.tags) as u32 as usize;
        let job = if (tag ^ self.tags) >> 32 == 0 { self.jobs.try_remove(id) } else { None };
        match (job, read) {
            (Some(Job::Load { key, mirror }), Some((into, len))) => {
                self.loaded(id, key, mirror, into, is_whole(done.result, len))
            }
            (Some(Job::Patrol { mirror }), Some((into, len))) => {
                self.patrolled(mirror, into, is_whole(done.result, len))
            }
            (Some(Job::Map), Some((into, len))) => self.map_read(&into[..len], is_whole(done.result, len)),
            (Some(Job::Heal(place)), None) => self.healed(place, is_whole(done.result, PAGE)),
            (Some(Job::Write { group }), None) => self.wrote(group, done.result),
            _ => self.stray(),
        }
    }

    pub(super) fn stray(&mut self) -> bool {
        self.counters.strays += 1;
        false
    }

    /// The write that failed, if any did: then no checkpoint ends any more.
    pub(crate) fn failure(&self) -> Option<Errno> {
        self.failed
    }

    /// Operations on the disk.
    pub(crate) fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    /// True if it waits for memory of the arena, and nothing of its own is going to wake it: pump again soon.
    pub(crate) fn starved(&self) -> bool {
        self.short && self.jobs.is_empty()
    }

    /// Pages that may still be made or changed before a checkpoint is needed; a page changed for the first time since the last one
    /// takes a place.
    pub(crate) fn free_places(&self) -> u32 {
        self.places.available()
    }

    /// Places that come back with the next checkpoint, or the one under way.
    pub(crate) fn places_given_back(&self) -> u32 {
        self.places.given_back()
    }

    /// True if a place was given back that is still read or rewritten: it is free when that is over.
    pub(crate) fn are_places_coming(&self) -> bool {
        self.places.any_coming()
    }

    /// What a checkpoint would write now.
    #[cfg(test)]
    pub(crate) fn dirty_bytes(&self) -> Bytes {
        Bytes((self.cache.dirty() * PAGE) as u64)
    }

    /// What is in memory.
    pub(crate) fn cached_bytes(&self) -> Bytes {
        Bytes((self.cache.len() * PAGE) as u64)
    }

    /// What happened.
    pub(crate) fn counters(&self) -> PageCounters {
        self.counters
    }

    /// Writes of pages on their way.
    pub(super) fn writes(&self) -> usize {
        self.groups.len()
    }

    /// Memory for pages; `None` is for the next pump to try again.
    pub(super) fn take(&mut self, pages: usize) -> Option<Filling> {
        // Settle's memory: everything the store serves may wait for this, and it is given back without waiting for anything.
        let taken = self.arena.take(pages * PAGE, Class::Settle);
        self.short |= taken.is_none();
        taken
    }

    /// A tag that leads back to `job`, and the job's number.
    pub(super) fn job(&mut self, job: Job) -> (u64, usize) {
        let id = self.jobs.insert(job);
        (self.tags | id as u64, id)
    }

    pub(super) fn read(&mut self, job: Job, at: u64, into: Filling, out: &mut DiskOut<'_>) -> usize {
        let (tag, id) = self.job(job);
        let len = into.len();
        out(Op::DiskRead { disk: self.region.disk, tag, at, into, from: 0, len });
        id
    }

    pub(super) fn write(&mut self, job: Job, at: u64, from: memory::Reads, out: &mut DiskOut<'_>) {
        let (tag, _) = self.job(job);
        let parts = smallvec::smallvec![from.whole()];
        out(Op::DiskWrite { disk: self.region.disk, tag, at, parts, durable: false });
    }
}

fn is_whole(result: Result<u32, Errno>, len: usize) -> bool {
    result.is_ok_and(|read| read as usize == len)
}
