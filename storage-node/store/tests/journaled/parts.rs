//! Where most of a generation was written again, only its oldest part is folded, and the rest later.

use super::disk::*;
use super::{snapshot, two_copies, zero};
use conductor_model::BLOCK;
use driver::Op;
use memory::Arena;
use node_store::Store;
use node_store::journaled::JournaledStore;

/// Blocks of the journal. Each write here takes two of them, one for the head of its record.
const JOURNAL: u32 = 8000;

struct Hot {
    disk: Disk,
    arena: Arena,
    store: JournaledStore,
    /// The first byte that is no metadata.
    data: usize,
    random: Random,
    writes: u32,
    home: usize,
    /// What the blocks hold; every second is one of the set.
    seeds: Vec<u64>,
}

impl Hot {
    /// So many blocks, of which each chunk has some, none of them in the journal.
    fn new(blocks: u32) -> Self {
        let (disk, arena, store) = two_copies(JOURNAL);
        let data = disk.visible.len() - 20_000 * BLOCK;
        let mut hot = Self {
            disk,
            arena,
            store,
            data,
            random: Random(3),
            writes: 0,
            home: 0,
            seeds: vec![0; 2 * blocks as usize],
        };
        (0..blocks).for_each(|n| hot.write(n * 2));
        super::fold(&mut hot.store, &mut hot.disk);
        hot
    }

    fn write(&mut self, block: u32) {
        self.writes += 1;
        let version = u64::from(self.writes);
        self.seeds[block as usize] = version;
        self.run(write(&self.arena, 1, range(block, 1), version, version));
    }

    /// Any block of the set.
    fn write_some(&mut self) {
        let n = self.random.below(self.seeds.len() as u64 / 2) as u32;
        self.write(n * 2);
    }

    fn run(&mut self, op: node_store::StoreOp) {
        let Self { disk, store, data, home, .. } = self;
        store.submit(NOW, node_store::Tag(1), op, &mut |op| disk.submit(op));
        loop {
            let before = disk.inflight.len();
            store.end_turn(NOW, &mut |op| disk.submit(op));
            for (op, _) in &disk.inflight[before.min(disk.inflight.len())..] {
                if let Op::DiskWrite { at, parts, .. } = op
                    && *at as usize >= *data
                {
                    *home += parts.iter().map(|part| part.len / BLOCK).sum::<usize>();
                }
            }
            if let Some((_, result)) = store.next_completion() {
                result.unwrap();
                return;
            }
            if let Some(done) = disk.step() {
                store.done(NOW, done, &mut |op| disk.submit(op));
            }
        }
    }

    /// Everything is there, and still is when the power has failed.
    fn crash(&mut self) {
        self.check();
        self.disk.crash();
        self.store = open_engine::<Journaled>(&mut self.disk, &self.arena).unwrap();
        self.check();
    }

    fn check(&mut self) {
        for (n, seeds) in (0..).zip(self.seeds.chunks(16)) {
            let chunk = read(&mut self.store, &mut self.disk, &self.arena, 1, range(n * 16, 16)).unwrap();
            let content = |seed: &u64| if *seed == 0 { vec![0; BLOCK] } else { block_of(*seed) };
            assert!(chunk == seeds.iter().flat_map(content).collect::<Vec<u8>>(), "chunk {n}");
        }
        assert_eq!(self.store.counters().corrupt, 0);
    }

    fn parts(&self) -> u64 {
        self.store.counters().parts
    }
}

#[test]
fn a_set_of_a_quarter_of_the_journal_seldom_goes_home() {
    // As many writes as fill a quarter of the journal.
    let mut hot = Hot::new(JOURNAL / 8);
    (0..JOURNAL * 2).for_each(|_| hot.write_some());
    hot.home = 0;
    let (before, writes) = (hot.store.counters(), 8 * JOURNAL);
    (0..writes).for_each(|_| hot.write_some());
    let counters = hot.store.counters();
    let (parts, folds) = (counters.parts - before.parts, counters.folds - before.folds);
    assert_eq!((counters.journal_waits, folds), (0, parts), "all are of parts, in time");
    assert!(parts >= 12, "{parts} folds");
    // Half of the journal later 10 % of what was written would go home.
    assert!(hot.home * 14 < writes as usize, "{} of {writes} blocks went home", hot.home);
    hot.crash();
}

#[test]
fn a_set_as_large_as_half_the_journal_is_folded_whole() {
    let mut hot = Hot::new(JOURNAL / 2);
    (0..JOURNAL * 4).for_each(|_| hot.write_some());
    let counters = hot.store.counters();
    assert!(counters.parts == 0 && counters.folds > 5, "{} parts of {} folds", counters.parts, counters.folds);
}

#[test]
fn what_is_written_once_has_half_of_the_journal_to_go_home_in_behind_an_opening_too() {
    let mut hot = Hot::new(JOURNAL / 8);
    hot.crash();
    let folds = hot.store.counters().folds;
    for n in 0..JOURNAL {
        hot.write(n % 2000);
        if hot.store.counters().folds > folds {
            assert!(
                hot.parts() == 0 && n < JOURNAL / 4 + 10,
                "a fold of {} parts begins after {n} writes",
                hot.parts()
            );
            return;
        }
    }
    panic!("no fold begins");
}

/// Something else than a block in the journal.
fn other(hot: &mut Hot, random: &mut Random) {
    hot.writes += 1;
    let (sequence, chunk) = (u64::from(hot.writes), random.below(100) as u32);
    let seeds = &mut hot.seeds[chunk as usize * 16..][..16];
    let op = match random.below(4) {
        0 => {
            seeds.fill(0);
            zero(1, chunk * 16, 16, sequence, 0)
        }
        1 => {
            seeds[..3].fill(0);
            zero(1, chunk * 16, 3, sequence, 0)
        }
        2 => {
            let first = sequence * 100_000;
            (first..).zip(seeds).for_each(|(seed, block)| *block = seed);
            write(&hot.arena, 1, range(chunk * 16, 16), sequence, first)
        }
        _ => snapshot(1, sequence, sequence),
    };
    hot.run(op);
}

#[test]
fn whatever_came_behind_the_part_the_next_opening_finds_it() {
    let mut parts = 0;
    for seed in 1..=12 {
        let mut hot = Hot::new(800);
        let mut random = Random(seed * 77);
        (hot.random, hot.disk.random) = (Random(seed), Random(seed));
        for _ in 0..3 {
            // The first fold after an opening is of all that is there, and the next ones may be of parts.
            let others = [(); 2].map(|()| random.below(u64::from(2 * JOURNAL)));
            let until = hot.parts() + 1 + random.below(3);
            for n in 0..u64::from(4 * JOURNAL) {
                hot.write_some();
                if others.contains(&n) {
                    other(&mut hot, &mut random);
                }
                if hot.parts() >= until && random.one_in(50) {
                    break;
                }
            }
            parts += hot.parts();
            hot.crash();
        }
    }
    assert!(parts >= 40, "{parts} parts");
}
