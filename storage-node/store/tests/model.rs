//! Random operations, crashes and reopenings against a flat model.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::{BLOCK, Blocks, Bytes, Configuration, CopyId, Stamp};
use disk::*;
use driver::{Span, Time};
use memory::Arena;
use node_store::simple::Geometry;
use node_store::{Counters, Held, HeldKind, Store, StoreDone, StoreError, StoreOp, Tag, View};
use std::collections::BTreeMap;

const COPIES: u64 = 4;
const COPY_BLOCKS: u32 = 300;

/// What a block holds: nothing, or the bytes of a seed.
type Content = Option<u64>;

#[derive(Clone)]
struct ModelCopy {
    blocks: Vec<Content>,
    config: Configuration,
    /// The highest K told, and the highest that an acknowledged change carried.
    told: Stamp,
    carried: Stamp,
    /// Acknowledged changes, and those whose fate a crash left open.
    acknowledged: Vec<Held>,
    open: Vec<Held>,
}

enum Flying {
    Write { copy: u64, held: Held, seeds: Vec<u64>, known_good: Stamp },
    Zero { copy: u64, held: Held, known_good: Stamp },
    Read { copy: u64, from: u32, expected: Vec<Content> },
    Create { copy: u64, config: Configuration },
    Join { copy: u64, config: Configuration },
    Delete { copy: u64 },
}

impl Flying {
    fn copy(&self) -> u64 {
        match self {
            Self::Write { copy, .. }
            | Self::Zero { copy, .. }
            | Self::Read { copy, .. }
            | Self::Create { copy, .. }
            | Self::Join { copy, .. }
            | Self::Delete { copy } => *copy,
        }
    }
    fn blocks(&self) -> (u32, u32) {
        match self {
            Self::Write { held, .. } | Self::Zero { held, .. } => (held.at.from.0, held.at.count.0),
            Self::Read { from, expected, .. } => (*from, expected.len() as u32),
            _ => (0, COPY_BLOCKS * 2),
        }
    }
}

/// An engine, and what of it the model can tell.
trait Told: Engine {
    /// What is used when all has come to rest.
    fn used(copies: &BTreeMap<u64, ModelCopy>) -> Blocks;
}

impl Told for Simple {
    fn used(copies: &BTreeMap<u64, ModelCopy>) -> Blocks {
        Blocks(copies.values().map(|c| c.blocks.iter().flatten().count() as u32).sum())
    }
}

impl Told for Journaled {
    fn used(copies: &BTreeMap<u64, ModelCopy>) -> Blocks {
        let chunks = |c: &ModelCopy| c.blocks.chunks(16).filter(|chunk| chunk.iter().any(Option::is_some)).count();
        Blocks(copies.values().map(|c| chunks(c) as u32 * 16).sum())
    }
}

struct World<E: Told> {
    disk: Disk,
    arena: Arena,
    store: E::Store,
    random: Random,
    now: Time,
    copies: BTreeMap<u64, ModelCopy>,
    flying: BTreeMap<u64, Flying>,
    next: u64,
    next_copy: u64,
    no_space: u64,
    total: Counters,
    crashes: u64,
    clean: u64,
    interrupted: u64,
}

impl<E: Told> World<E> {
    fn new(seed: u64, size: Bytes, geometry: E::Geometry) -> Self {
        let arena = Arena::small(16 << 20);
        let mut disk = Disk::new(size.0 as usize, seed);
        E::format(&mut disk, &arena, geometry).unwrap();
        let store = open_engine::<E>(&mut disk, &arena).unwrap();
        Self {
            disk,
            arena,
            store,
            random: Random(seed.wrapping_mul(77) | 1),
            now: NOW,
            copies: BTreeMap::new(),
            flying: BTreeMap::new(),
            next: 1,
            next_copy: 1,
            no_space: 0,
            total: Counters::default(),
            crashes: 0,
            clean: 0,
            interrupted: 0,
        }
    }

    fn free(&self, copy: u64, from: u32, count: u32) -> bool {
        self.flying.values().all(|f| {
            let (at, len) = f.blocks();
            f.copy() != copy || at + len <= from || from + count <= at
        })
    }

    fn submit(&mut self, flying: Flying, op: StoreOp) {
        let tag = self.next;
        self.next += 1;
        self.flying.insert(tag, flying);
        let disk = &mut self.disk;
        self.store.submit(self.now, Tag(tag), op, &mut |op| disk.submit(op));
    }

    fn known_good(&mut self, copy: u64) -> Stamp {
        let model = self.copies.get_mut(&copy).unwrap();
        let pick = model.acknowledged.len() as u64;
        // Only what is durable here can be known good: below every change in flight.
        let lowest = self
            .flying
            .values()
            .filter_map(|f| match f {
                Flying::Write { held, copy: c, .. } | Flying::Zero { held, copy: c, .. } if *c == copy => {
                    Some(held.stamp)
                }
                _ => None,
            })
            .min();
        if pick > 0 && self.random.one_in(3) {
            let stamp = model.acknowledged[self.random.below(pick) as usize].stamp;
            if lowest.is_none_or(|lowest| stamp < lowest) {
                model.told = model.told.max(stamp);
            }
        }
        model.told
    }

    fn act(&mut self) {
        let pick = self.random.below(100);
        let ids: Vec<u64> = self.copies.keys().copied().collect();
        if ids.is_empty() || (pick < 2 && ids.len() < COPIES as usize) {
            if self.flying.values().any(|f| matches!(f, Flying::Create { .. })) {
                return;
            }
            let (copy, config) = (self.next_copy, config(1, COPY_BLOCKS));
            self.next_copy += 1;
            return self.submit(
                Flying::Create { copy, config: config.clone() },
                StoreOp::Create { copy: CopyId(copy), config, parent: None },
            );
        }
        let copy = ids[self.random.below(ids.len() as u64) as usize];
        let longest = if self.random.one_in(8) { 100 } else { 6 };
        let count = 1 + self.random.below(longest) as u32;
        let from = self.random.below(u64::from(COPY_BLOCKS - count)) as u32;
        let at = range(from, count);
        let sequence = stamp(self.next);
        match pick {
            2 if self.free(copy, 0, COPY_BLOCKS * 2) && self.random.one_in(4) => {
                self.submit(Flying::Delete { copy }, StoreOp::Delete { copy: CopyId(copy) });
            }
            3..=5 if self.free(copy, 0, COPY_BLOCKS * 2) => {
                let config = config(self.copies[&copy].config.epoch.0 + 1, COPY_BLOCKS + self.random.below(2) as u32);
                let config = Configuration { size: config.size.max(self.copies[&copy].config.size), ..config };
                self.submit(
                    Flying::Join { copy, config: config.clone() },
                    StoreOp::Join { copy: CopyId(copy), config },
                );
            }
            6..=8 => {
                let stamp = self.known_good(copy);
                let disk = &mut self.disk;
                let op = StoreOp::KnownGood { copy: CopyId(copy), stamp };
                self.store.submit(self.now, Tag(0), op, &mut |op| disk.submit(op));
            }
            9..=24 if self.free(copy, from, count) => {
                let held = Held { stamp: sequence, at, kind: HeldKind::Zero };
                let known_good = self.known_good(copy);
                let op = StoreOp::Zero { copy: CopyId(copy), stamp: sequence, at, known_good, durable: true };
                self.submit(Flying::Zero { copy, held, known_good }, op);
            }
            25..=39 if self.free(copy, from, count) => {
                let into = self.arena.take(count as usize * BLOCK, memory::Class::Client).expect("memory");
                let expected = self.copies[&copy].blocks[from as usize..(from + count) as usize].to_vec();
                self.submit(
                    Flying::Read { copy, from, expected },
                    StoreOp::Read { copy: CopyId(copy), view: View::Live, at, into },
                );
            }
            40.. if self.free(copy, from, count) => {
                let held = Held { stamp: sequence, at, kind: HeldKind::Write };
                let seeds: Vec<u64> = (0..count).map(|n| self.next << 16 | u64::from(n)).collect();
                let data = data(&self.arena, seeds.iter().copied());
                let crcs = node_store::block_crcs(&data);
                let known_good = self.known_good(copy);
                let op =
                    StoreOp::Write { copy: CopyId(copy), stamp: sequence, at, data, crcs, known_good, durable: true };
                self.submit(Flying::Write { copy, held, seeds, known_good }, op);
            }
            _ => {}
        }
    }

    /// Take completions into the model.
    fn complete(&mut self) {
        while let Some((Tag(tag), result)) = self.store.next_completion() {
            let Some(flying) = self.flying.remove(&tag) else {
                assert_eq!(tag, 0, "a completion comes once");
                continue;
            };
            match (flying, result) {
                (Flying::Write { .. }, Err(StoreError::NoSpace)) => self.no_space += 1,
                (Flying::Write { copy, held, seeds, known_good }, Ok(StoreDone::Done)) => {
                    let model = self.copies.get_mut(&copy).unwrap();
                    for (n, seed) in seeds.iter().enumerate() {
                        model.blocks[held.at.from.0 as usize + n] = Some(*seed);
                    }
                    model.acknowledged.push(held);
                    model.carried = model.carried.max(known_good);
                }
                (Flying::Zero { copy, held, known_good }, Ok(StoreDone::Done)) => {
                    let model = self.copies.get_mut(&copy).unwrap();
                    model.blocks[held.at.from.0 as usize..held.at.end() as usize].fill(None);
                    model.acknowledged.push(held);
                    model.carried = model.carried.max(known_good);
                }
                (Flying::Read { expected, .. }, Ok(StoreDone::Read(data, _))) => {
                    for (block, content) in data.chunks(BLOCK).zip(expected) {
                        assert_eq!(block, content.map_or(vec![0; BLOCK], block_of));
                    }
                }
                (Flying::Create { copy, config }, Ok(StoreDone::Done)) => {
                    self.copies.insert(copy, Self::empty(config));
                }
                (Flying::Join { copy, config }, Ok(StoreDone::Done)) => {
                    self.copies.get_mut(&copy).unwrap().config = config;
                }
                (Flying::Delete { copy }, Ok(StoreDone::Done)) => {
                    self.copies.remove(&copy);
                }
                (_, result) => panic!("unexpected: {result:?}"),
            }
        }
    }

    fn empty(config: Configuration) -> ModelCopy {
        let none = Stamp::default();
        let blocks = vec![None; COPY_BLOCKS as usize];
        ModelCopy { blocks, config, told: none, carried: none, acknowledged: vec![], open: vec![] }
    }

    fn turn(&mut self) {
        for _ in 0..self.random.below(6) {
            if let Some(done) = self.disk.step() {
                let disk = &mut self.disk;
                self.store.done(self.now, done, &mut |op| disk.submit(op));
            }
        }
        let disk = &mut self.disk;
        self.store.end_turn(self.now, &mut |op| disk.submit(op));
        self.now = self.now + Span::micros(20);
        self.complete();
    }

    fn drain(&mut self) {
        quiesce_at(self.now, &mut self.store, &mut self.disk);
        self.complete();
        assert!(self.flying.is_empty() && self.store.idle(), "{} flying", self.flying.len());
        self.rest();
    }

    /// Background work, and what it makes of space.
    fn rest(&mut self) {
        self.now = self.now + Span::millis(5000);
        quiesce_at(self.now, &mut self.store, &mut self.disk);
        assert!(self.store.idle());
        assert_eq!(self.store.usage().used, E::used(&self.copies));
    }

    fn reopen(&mut self, crash: bool) {
        if crash {
            self.crashes += 1;
            self.disk.crash();
        } else {
            self.clean += 1;
            self.drain();
        }
        self.count();
        loop {
            // A crash may come while a crash is being recovered from.
            let steps = if self.random.one_in(3) { self.random.below(40) } else { u64::MAX };
            match open_until::<E>(&mut self.disk, &self.arena, steps) {
                Some(opened) => {
                    self.store = opened.expect("a crash leaves a store that opens");
                    break;
                }
                None => {
                    self.interrupted += 1;
                    self.disk.crash();
                }
            }
        }
        for (_, flying) in std::mem::take(&mut self.flying) {
            self.left_open(flying);
        }
        self.compare();
    }

    fn count(&mut self) {
        let now = self.store.counters();
        self.total.writes += now.writes;
        self.total.folds += now.folds;
        self.total.checkpoints += now.checkpoints;
        self.total.journal_waits += now.journal_waits;
        self.total.space_waits += now.space_waits;
        self.total.near_full += now.near_full;
        self.total.groups += now.groups;
        self.total.records += now.records;
        assert_eq!((now.corrupt, now.disk_errors, now.strays), (0, 0, 0));
    }

    /// Ask the store what became of an operation that a crash cut off; it must be wholly one of the two, block by block.
    fn left_open(&mut self, flying: Flying) {
        let here = |store: &E::Store, copy| store.copies().into_iter().find(|(id, _)| *id == CopyId(copy));
        match flying {
            Flying::Create { copy, config } => {
                if let Some((_, found)) = here(&self.store, copy) {
                    assert_eq!(found, config);
                    self.copies.insert(copy, Self::empty(config));
                }
            }
            Flying::Delete { copy } => {
                if here(&self.store, copy).is_none() {
                    self.copies.remove(&copy);
                }
            }
            Flying::Join { copy, config } => {
                let (_, found) = here(&self.store, copy).expect("it was there");
                let model = self.copies.get_mut(&copy).unwrap();
                assert!(found == config || found == model.config);
                model.config = found;
            }
            Flying::Read { .. } => {}
            Flying::Write { copy, held, seeds, .. } => self.either(copy, held, &|n| Some(seeds[n])),
            Flying::Zero { copy, held, .. } => self.either(copy, held, &|_| None),
        }
    }

    fn either(&mut self, copy: u64, held: Held, new: &dyn Fn(usize) -> Content) {
        let found = read(&mut self.store, &mut self.disk, &self.arena, copy, held.at).expect("a read after a crash");
        let model = self.copies.get_mut(&copy).unwrap();
        for (n, block) in found.chunks(BLOCK).enumerate() {
            let old = &mut model.blocks[held.at.from.0 as usize + n];
            let bytes = |content: Content| content.map_or(vec![0; BLOCK], block_of);
            if block == bytes(new(n)) {
                *old = new(n);
            } else {
                assert_eq!(block, bytes(*old), "a block is wholly old or wholly new");
            }
        }
        model.open.push(held);
    }

    /// All that the store holds against all that the model knows.
    fn compare(&mut self) {
        let listed: Vec<u64> = self.store.copies().iter().map(|(id, _)| id.0).collect();
        assert_eq!(listed, self.copies.keys().copied().collect::<Vec<_>>());
        for id in listed {
            let mut at = 0;
            while at < COPY_BLOCKS {
                let count = (COPY_BLOCKS - at).min(256);
                let found = read(&mut self.store, &mut self.disk, &self.arena, id, range(at, count)).unwrap();
                for (n, block) in found.chunks(BLOCK).enumerate() {
                    let content = self.copies[&id].blocks[at as usize + n];
                    assert!(
                        block == content.map_or(vec![0; BLOCK], block_of),
                        "block {} of copy {id}",
                        at as usize + n
                    );
                }
                at += count;
            }
            let above = run(&mut self.store, &mut self.disk, StoreOp::Above { copy: CopyId(id) }).unwrap();
            let StoreDone::Above { known_good, held } = above else { panic!("{above:?}") };
            let (_, config) = self.store.copies().into_iter().find(|(found, _)| found.0 == id).unwrap();
            let model = self.copies.get_mut(&id).unwrap();
            assert_eq!(config, model.config);
            assert!(model.carried <= known_good && known_good <= model.told, "K is never ahead of what was told");
            model.acknowledged.retain(|h| h.stamp > known_good);
            model.open.retain(|h| h.stamp > known_good);
            assert!(model.acknowledged.len() < 500, "the list is not merged in this test");
            for change in &model.acknowledged {
                assert!(held.contains(change), "{change:?} is above K and not listed");
            }
            for change in &held {
                assert!(
                    model.acknowledged.contains(change) || model.open.contains(change),
                    "{change:?} was never sent"
                );
            }
            (model.told, model.carried) = (known_good, known_good);
        }
    }
}

#[derive(Default, Debug)]
struct Sums {
    total: Counters,
    submitted: u64,
    crashes: u64,
    clean: u64,
    interrupted: u64,
    no_space: u64,
}

fn live<E: Told>(mut world: World<E>, acts: u32, sums: &mut Sums) {
    let mut stalled = 0;
    for _ in 0..acts {
        world.act();
        if world.random.one_in(300) {
            stalled = 80;
        }
        if stalled == 0 && !world.random.one_in(3) {
            world.turn();
        }
        stalled = u32::saturating_sub(stalled, 1);
        match world.random.below(350) {
            0 => world.reopen(true),
            1 if world.random.one_in(3) => world.reopen(false),
            2 => world.drain(),
            _ => {}
        }
    }
    world.reopen(false);
    world.count();
    assert!(world.disk.inflight.is_empty());
    let total = &mut sums.total;
    total.writes += world.total.writes;
    total.folds += world.total.folds;
    total.checkpoints += world.total.checkpoints;
    total.journal_waits += world.total.journal_waits;
    total.space_waits += world.total.space_waits;
    total.near_full += world.total.near_full;
    sums.submitted += world.next;
    sums.crashes += world.crashes;
    sums.clean += world.clean;
    sums.interrupted += world.interrupted;
    sums.no_space += world.no_space;
    let World { store, disk, arena, .. } = world;
    drop((store, disk));
    assert!(arena.leaks().is_ok());
}

#[test]
fn acknowledged_writes_survive_any_crash_and_space_is_true_to_the_block() {
    let mut sums = Sums::default();
    for seed in 1..=12 {
        // Logs of 1 to 3 pages: they wrap all the time. Fewer slots than the copies have blocks: the disk fills.
        let size = Bytes((950 + seed % 4 * 180) * BLOCK as u64);
        let geometry = Geometry::new(size, 1 + (seed % 3) as u32, COPIES as u32).expect("large enough");
        live(World::<Simple>::new(seed, size, geometry), 6000, &mut sums);
    }
    println!("{sums:?}");
    let Sums { total, submitted, crashes, clean, interrupted, no_space } = sums;
    assert!(submitted > 20_000);
    assert!(total.folds > 3000 && total.checkpoints > 3000 && total.journal_waits > 1000);
    assert!(crashes > 60 && clean > 30 && interrupted > 20 && no_space > 100);
    assert!(total.near_full > 100 && total.space_waits > 10);
}

#[test]
fn the_journaled_engine_keeps_every_acknowledged_write_and_its_space_is_true_to_the_chunk() {
    let mut sums = Sums::default();
    for seed in 1..=12 {
        // The smallest journal: it wraps all the time. Fewer chunks than the copies have: the disk fills.
        let geometry = journaled_geometry(620, 256, 500 + (seed % 4) as u32 * 250, COPIES as u32);
        live(World::<Journaled>::new(seed, geometry.size(), geometry), 6000, &mut sums);
    }
    println!("{sums:?}");
    let Sums { total, submitted, crashes, clean, interrupted, no_space } = sums;
    assert!(submitted > 20_000);
    assert!(total.checkpoints > 300);
    assert!(crashes > 60 && clean > 30 && interrupted > 20 && no_space > 100);
    assert!(total.near_full > 100 && total.space_waits > 10);
}
