//! Pages on a disk, with a caller that does what the engine will: superblocks, inner roots in records, a model beside it.

use super::disk::{Disk, Random};
use crate::journaled::pages::{ArrayName, Lookup, LookupMut, MapRef, Next, Pages, Region, Root, Step};
use conductor_model::{Bytes, DiskId};
use driver::DiskIndex;
use memory::Arena;
use std::collections::BTreeMap;

/// Two records to a leaf: few records make many pages.
pub(super) const LEN: usize = 2000;
pub(super) const A: ArrayName = ArrayName(1);
pub(super) const B: ArrayName = ArrayName(3);
/// Where the roots of inner arrays are, by number.
pub(super) const ROOTS: ArrayName = ArrayName(2);
pub(super) const TAGS: u64 = 0x07 << 56;

pub(super) type Model = BTreeMap<(ArrayName, u64), u64>;

/// The power failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Crashed;

/// What a superblock has.
#[derive(Clone, Debug)]
pub(super) struct Super {
    pub(super) map: MapRef,
    pub(super) roots: BTreeMap<ArrayName, Root>,
    /// What the arrays held.
    pub(super) model: Model,
}

pub(super) struct Rig {
    pub(super) disk: Disk,
    pub(super) arena: Arena,
    pub(super) region: Region,
    pub(super) pages: Pages,
    pub(super) budget: u64,
    /// A and B.
    pub(super) supers: [Option<Super>; 2],
    pub(super) model: Model,
    roots: BTreeMap<ArrayName, Root>,
    inner: Vec<u32>,
    /// A patrol runs beside everything else.
    pub(super) patrols: bool,
    /// Steps left until the power fails.
    pub(super) power: u64,
    pub(super) random: Random,
}

pub(super) fn bytes(seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1 << 63);
    if seed == 0 { vec![0; LEN] } else { (0..LEN / 8).flat_map(|_| random.next().to_le_bytes()).collect() }
}

impl Rig {
    /// A fresh store with arrays A, B and the inner ones.
    pub(super) fn new(places: u32, inner: &[u32], seed: u64) -> Self {
        let map = Region::map_bytes(places).0;
        let map_at = [Bytes(8192), Bytes(8192 + map)];
        let start = Bytes(8192 + 2 * map);
        let region = Region { disk: DiskIndex(3), disk_id: DiskId(0xd15c), start, places, map_at };
        let disk = Disk::new((start.0 + Region::places_bytes(places).0) as usize, seed);
        let arena = Arena::small(8 << 20);
        let pages = Pages::new(region, Bytes(0), arena.clone(), TAGS);
        let mut this = Self {
            disk,
            arena,
            region,
            pages,
            budget: 0,
            supers: [None, None],
            model: Model::new(),
            roots: BTreeMap::new(),
            inner: inner.to_vec(),
            patrols: false,
            power: u64::MAX,
            random: Random(seed.wrapping_mul(77) | 1),
        };
        this.pages.start_empty();
        this.open_arrays().unwrap();
        this.checkpoint().unwrap();
        this
    }

    fn open_arrays(&mut self) -> Result<(), Crashed> {
        for name in [A, B] {
            self.pages.open_array(name, LEN, self.roots.get(&name).copied().unwrap_or_default());
        }
        self.pages.open_array(ROOTS, Root::BYTES, self.roots.get(&ROOTS).copied().unwrap_or_default());
        for layer in self.inner.clone() {
            let root = self.inner_root(layer)?;
            self.pages.open_array(ArrayName::map_of(layer), LEN, root);
        }
        Ok(())
    }

    fn inner_root(&mut self, layer: u32) -> Result<Root, Crashed> {
        loop {
            match self.pages.get(ROOTS, u64::from(layer)) {
                Lookup::Here(root) => return Ok(Root::decode(root.try_into().unwrap())),
                Lookup::Hole => return Ok(Root::default()),
                Lookup::Damaged => panic!("the roots are damaged"),
                Lookup::Load => self.turn()?,
            }
        }
    }

    pub(super) fn names(&self) -> Vec<ArrayName> {
        [A, B].into_iter().chain(self.inner.iter().map(|layer| ArrayName::map_of(*layer))).collect()
    }

    pub(super) fn pump(&mut self) {
        self.pages.pump(&mut |op| self.disk.submit(op));
        assert!(self.pages.cached_bytes().0 <= self.budget.max(320 * 4096), "{:?}", self.pages.cached_bytes());
    }

    fn spend(&mut self) -> Result<(), Crashed> {
        self.power = self.power.checked_sub(1).ok_or(Crashed)?;
        Ok(())
    }

    /// One turn: pump, then one completion. Something must be on its way.
    pub(super) fn turn(&mut self) -> Result<(), Crashed> {
        if self.patrols {
            self.pages.patrol(64);
        }
        self.pump();
        self.spend()?;
        let done = self.disk.step().expect("who waits, waits for the disk");
        self.pages.done(done);
        Ok(())
    }

    pub(super) fn quiesce(&mut self) {
        loop {
            self.pump();
            let Some(done) = self.disk.step() else { break };
            self.pages.done(done);
        }
        assert_eq!(self.pages.in_flight(), 0);
    }

    /// The patrol sees every place that is taken; how many were read from both mirrors.
    pub(super) fn patrol_round(&mut self) -> u64 {
        let before = self.pages.counters().patrolled;
        while !self.pages.patrol_rests() {
            self.pages.patrol(64);
            self.quiesce();
        }
        self.pages.counters().patrolled - before
    }

    /// Change a record; `false` if the region is full.
    pub(super) fn try_set(&mut self, name: ArrayName, index: u64, seed: u64) -> Result<bool, Crashed> {
        if name.is_inner() {
            // The record that will hold the root becomes dirty with the array, so that it has a place.
            let layer = u64::from(name.0 - ArrayName::INNER);
            if !self.change(ROOTS, layer, |_| {})? {
                return Ok(false);
            }
        }
        let content = bytes(seed);
        let changed = self.change(name, index, |record| record.copy_from_slice(&content))?;
        if changed {
            self.model.insert((name, index), seed);
        }
        if seed == 0 {
            self.model.remove(&(name, index));
        }
        Ok(changed)
    }

    fn change(&mut self, name: ArrayName, index: u64, with: impl FnOnce(&mut [u8])) -> Result<bool, Crashed> {
        loop {
            match self.pages.get_mut(name, index) {
                LookupMut::Here(record) => {
                    with(record);
                    return Ok(true);
                }
                LookupMut::Full => return Ok(false),
                LookupMut::Damaged => panic!("{name:?} {index} is damaged"),
                LookupMut::Load => self.turn()?,
            }
        }
    }

    pub(super) fn set(&mut self, name: ArrayName, index: u64, seed: u64) -> Result<(), Crashed> {
        assert!(self.try_set(name, index, seed)?, "the region is full");
        Ok(())
    }

    /// A record, or `None` if it is damaged.
    pub(super) fn read(&mut self, name: ArrayName, index: u64) -> Result<Option<Vec<u8>>, Crashed> {
        loop {
            match self.pages.get(name, index) {
                Lookup::Here(record) => return Ok(Some(record.to_vec())),
                Lookup::Hole => return Ok(Some(vec![0; LEN])),
                Lookup::Damaged => return Ok(None),
                Lookup::Load => self.turn()?,
            }
        }
    }

    pub(super) fn next(&mut self, name: ArrayName, from: u64) -> Result<Option<u64>, Crashed> {
        loop {
            match self.pages.next_present(name, from) {
                Next::At(index) => return Ok(Some(index)),
                Next::End => return Ok(None),
                Next::Damaged => panic!("{name:?} is damaged"),
                Next::Load => self.turn()?,
            }
        }
    }

    pub(super) fn free(&mut self, name: ArrayName) -> Result<(), Crashed> {
        if name.is_inner() && !self.change(ROOTS, u64::from(name.0 - ArrayName::INNER), |_| {})? {
            panic!("full");
        }
        self.model.retain(|(of, _), _| *of != name);
        loop {
            match self.pages.free_array(name) {
                Step::Done => return Ok(()),
                Step::Again => {}
                Step::Load => self.turn()?,
                Step::Full => panic!("giving back needs more than it has"),
            }
        }
    }

    /// Write a checkpoint and both superblocks. A read now and then goes on meanwhile.
    pub(super) fn checkpoint(&mut self) -> Result<(), Crashed> {
        self.checkpoint_among(0)
    }

    /// What belongs to the next checkpoint changes while the superblocks of this one are written.
    fn change_on(&mut self, changes: u64) -> Result<(), Crashed> {
        for _ in 0..changes {
            let (index, seed) = (self.random.below(60), self.random.below(1000));
            self.set(A, index, seed)?;
        }
        Ok(())
    }

    /// As `checkpoint`, and the next changes do not wait for the superblocks.
    pub(super) fn checkpoint_among(&mut self, changes: u64) -> Result<(), Crashed> {
        let inner = loop {
            if let Some(roots) = self.pages.checkpoint_inner(&mut |op| self.disk.submit(op)) {
                break roots.unwrap();
            }
            self.read_something();
            self.turn()?;
        };
        for (name, root) in inner {
            assert!(name.is_inner());
            let there = self.change(ROOTS, u64::from(name.0 - ArrayName::INNER), |record| {
                record.copy_from_slice(&root.encode());
            })?;
            assert!(there, "no place for a root");
        }
        let written = loop {
            if let Some(written) = self.pages.checkpoint(&mut |op| self.disk.submit(op)) {
                break written.unwrap();
            }
            self.read_something();
            self.turn()?;
        };
        self.roots.extend(written.roots);
        let now = Super { map: written.map, roots: self.roots.clone(), model: self.model.clone() };
        self.change_on(changes)?;
        self.spend()?;
        self.disk.sync();
        for n in 0..2 {
            self.change_on(changes)?;
            self.spend()?;
            self.supers[n] = Some(now.clone());
        }
        self.pages.committed();
        Ok(())
    }

    fn read_something(&mut self) {
        let names = self.names();
        let name = names[self.random.below(names.len() as u64) as usize];
        let index = self.random.below(3000);
        let expected = bytes(self.model.get(&(name, index)).copied().unwrap_or(0));
        match self.pages.get(name, index) {
            Lookup::Here(record) => assert_eq!(record, expected),
            Lookup::Hole => assert!(!self.model.contains_key(&(name, index))),
            Lookup::Load => {}
            Lookup::Damaged => panic!("{name:?} {index} is damaged"),
        }
    }

    /// The power fails, and comes back: the model is what the newest superblock had.
    pub(super) fn crash(&mut self) {
        self.disk.crash();
        self.start();
    }

    /// Stop when the disk has nothing more to do, and open again.
    pub(super) fn reopen(&mut self) {
        self.quiesce();
        self.start();
    }

    fn start(&mut self) {
        self.power = u64::MAX;
        self.pages = Pages::new(self.region, Bytes(self.budget), self.arena.clone(), TAGS);
        self.arena.leaks().expect("what is gone holds no memory");
        let newest = self.supers[0].clone().expect("a store was formatted"); // A is written first
        self.supers[1] = Some(newest.clone());
        (self.roots, self.model) = (newest.roots, newest.model);
        self.pages.load_map(newest.map);
        self.open_arrays().unwrap();
        self.wait_for_map();
    }

    /// As `reopen`, where the roots of inner arrays are lost.
    pub(super) fn reopen_damaged(&mut self) {
        self.inner.clear();
        self.reopen();
    }

    fn wait_for_map(&mut self) {
        while self.pages.ready().is_none() {
            self.turn().unwrap();
        }
        assert_eq!(self.pages.ready(), Some(Ok(())));
    }

    /// Everything reads as the model has it.
    pub(super) fn verify(&mut self) {
        for ((name, index), seed) in self.model.clone() {
            assert_eq!(self.read(name, index), Ok(Some(bytes(seed))), "{name:?} {index}");
        }
        for name in self.names() {
            let mut at = 0;
            let mut found = vec![];
            while let Some(next) = self.next(name, at).unwrap() {
                assert!(next >= at);
                if self.read(name, next).unwrap().unwrap().iter().any(|byte| *byte != 0) {
                    found.push(next);
                }
                at = next + 1;
            }
            let expected: Vec<u64> = self.model.keys().filter(|(of, _)| *of == name).map(|(_, index)| *index).collect();
            assert_eq!(found, expected, "{name:?}");
        }
    }

    /// Bytes on the disk where a place's page begins.
    pub(super) fn place_at(&self, place: u32, mirror: u8) -> usize {
        (self.region.start.0 + (u64::from(place) + u64::from(mirror) * u64::from(self.region.places)) * 4096) as usize
    }

    /// The first sector of a place's page.
    pub(super) fn sector(&self, place: u32, mirror: u8) -> std::ops::Range<usize> {
        let at = self.place_at(place, mirror);
        at..at + 512
    }

    /// Damage one mirror of every place.
    pub(super) fn rot_mirror(&mut self, mirror: u8) {
        for place in 0..self.region.places {
            let at = self.place_at(place, mirror) + self.random.below(4096) as usize;
            self.disk.rot(at);
        }
    }
}
