//! Metadata that is bad in both mirrors: the store goes on, says of each block that it knows what it was or does not, and what is written
//! again is known again.

use super::disk::*;
use super::{fold, snapshot};
use conductor_model::{BLOCK, Bytes, Configuration, CopyId, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId};
use driver::{DiskIndex, Span};
use memory::{Arena, Class};
use node_store::journaled::JournaledStore;
use node_store::journaled::check::{CheckOptions, Depth, Report, Severity, check};
use node_store::{Parent, Store, StoreDone, StoreError, StoreOp, View};
use std::collections::BTreeMap;

/// Six leaves of a map, below one page of pointers.
const BLOCKS: u32 = 6 * 2032;
const CHUNKS: u32 = 3;
const MAPS: u32 = 0x1000_0000;

/// What a view must read as; where that is in doubt, it may also be said to be lost.
#[derive(Clone)]
struct Content {
    seeds: Vec<Option<u64>>,
    doubted: Vec<bool>,
}

struct Rig {
    disk: Disk,
    arena: Arena,
    store: JournaledStore,
    random: Random,
    views: BTreeMap<(u64, Option<u64>), Content>,
    sequence: u64,
    /// Blocks that were read, and said to be lost.
    lost: u64,
    right: u64,
    given_up: u64,
    levels: [u32; 2],
}

fn config_of(copy: u64) -> Configuration {
    let shard = ShardId { volume: VolumeId(copy as u32), index: ShardIndex(3) };
    Configuration { shard, ..config(1, BLOCKS) }
}

impl Rig {
    fn new(seed: u64) -> Self {
        let arena = Arena::small(32 << 20);
        let geometry = journaled_geometry(620, 620, 24_000, 4);
        let mut disk = Disk::new(geometry.size().0 as usize, seed);
        Journaled::format(&mut disk, &arena, geometry).unwrap();
        let store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
        let mut rig = Self {
            disk,
            arena,
            store,
            random: Random(seed.wrapping_mul(77) + 5),
            views: BTreeMap::new(),
            sequence: 1,
            lost: 0,
            right: 0,
            given_up: 0,
            levels: [0; 2],
        };
        rig.create(1, None);
        rig
    }

    fn create(&mut self, copy: u64, parent: Option<(u64, u64)>) {
        let op = StoreOp::Create {
            copy: CopyId(copy),
            config: config_of(copy),
            parent: parent.map(|(copy, name)| Parent { copy: CopyId(copy), snapshot: SnapshotId(name) }),
        };
        self.run(op);
        let content = match parent {
            Some((copy, name)) => self.views[&(copy, Some(name))].clone(),
            None => Content { seeds: vec![None; BLOCKS as usize], doubted: vec![false; BLOCKS as usize] },
        };
        self.views.insert((copy, None), content);
    }

    fn run(&mut self, op: StoreOp) {
        let said = format!("{op:?}").chars().take(100).collect::<String>();
        match run(&mut self.store, &mut self.disk, op) {
            Ok(_) => {}
            Err(error) => panic!("{said}: {error}"),
        }
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Something is done to a copy, with the content.
    fn step(&mut self) {
        let copies: Vec<u64> = self.views.keys().filter(|(_, name)| name.is_none()).map(|(copy, _)| *copy).collect();
        let copy = copies[self.random.below(copies.len() as u64) as usize];
        let names: Vec<(u64, u64)> = self.views.keys().filter_map(|(copy, name)| Some((*copy, (*name)?))).collect();
        let count = [1, 3, 16, 40][self.random.below(4) as usize];
        let from = self.random.below(u64::from(BLOCKS - count) / 16) as u32 * 16 + self.random.below(16) as u32;
        let at = range(from.min(BLOCKS - count), count);
        let sequence = self.next();
        let (stamp, known_good) = (stamp(sequence), Stamp::default());
        let blocks = at.from.0 as usize..at.end() as usize;
        match self.random.below(20) {
            0 if names.len() < 5 => {
                self.run(snapshot(copy, sequence, sequence));
                let content = self.views[&(copy, None)].clone();
                self.views.insert((copy, Some(sequence)), content);
            }
            1 if !names.is_empty() => {
                let (of, name) = names[self.random.below(names.len() as u64) as usize];
                // A snapshot that a clone stands on stays.
                if of != 1 || !self.views.contains_key(&(2, None)) || Some(name) != self.first(1) {
                    self.run(StoreOp::DropSnapshot { copy: CopyId(of), snapshot: SnapshotId(name) });
                    self.views.remove(&(of, Some(name)));
                }
            }
            2 if !names.is_empty() => {
                let (of, name) = names[self.random.below(names.len() as u64) as usize];
                let from = Parent { copy: CopyId(of), snapshot: SnapshotId(name) };
                let source = self.views[&(of, Some(name))].clone();
                let op = StoreOp::Share { copy: CopyId(copy), stamp, at, from, known_good };
                match run(&mut self.store, &mut self.disk, op) {
                    Ok(_) => {}
                    // It is not known how much it takes: the node copies the content of another copy instead.
                    Err(StoreError::Corrupt { .. }) if source.doubted.contains(&true) => return,
                    Err(error) => panic!("{error}"),
                }
                let content = self.views.get_mut(&(copy, None)).unwrap();
                content.seeds[blocks.clone()].copy_from_slice(&source.seeds[blocks.clone()]);
                content.doubted[blocks.clone()].copy_from_slice(&source.doubted[blocks]);
            }
            3 if names.iter().any(|(of, _)| *of == 1) && !self.views.contains_key(&(2, None)) => {
                let first = self.first(1).unwrap();
                self.create(2, Some((1, first)));
            }
            4..7 => {
                self.run(StoreOp::Zero { copy: CopyId(copy), stamp, at, known_good, durable: true });
                let content = self.views.get_mut(&(copy, None)).unwrap();
                content.seeds[blocks.clone()].fill(None);
                content.doubted[blocks].fill(false);
            }
            7 => fold(&mut self.store, &mut self.disk),
            8..12 => self.look(copy, blocks),
            _ => self.write(copy, at, sequence),
        }
    }

    /// The oldest snapshot of a copy.
    fn first(&self, copy: u64) -> Option<u64> {
        self.views.keys().find_map(|(of, name)| name.filter(|_| *of == copy))
    }

    fn write(&mut self, copy: u64, at: conductor_model::BlockRange, sequence: u64) {
        let op = write(&self.arena, copy, at, sequence, sequence * 100);
        self.run(op);
        let content = self.views.get_mut(&(copy, None)).unwrap();
        for (n, block) in (at.from.0 as usize..at.end() as usize).enumerate() {
            (content.seeds[block], content.doubted[block]) = (Some(sequence * 100 + n as u64), false);
        }
    }

    /// Reads blocks of all views of a copy, one by one.
    fn look(&mut self, copy: u64, blocks: std::ops::Range<usize>) {
        let views: Vec<Option<u64>> = self.views.keys().filter(|(of, _)| *of == copy).map(|(_, name)| *name).collect();
        for name in views {
            let view = name.map_or(View::Live, |name| View::Snapshot(SnapshotId(name)));
            for block in blocks.clone() {
                let into = self.arena.take(BLOCK, Class::Client).unwrap();
                let at = range(block as u32, 1);
                let result = run(&mut self.store, &mut self.disk, StoreOp::Read { copy: CopyId(copy), view, at, into });
                let content = &self.views[&(copy, name)];
                match result {
                    Ok(StoreDone::Read(data, _)) => {
                        let expected = content.seeds[block].map_or(vec![0; BLOCK], block_of);
                        assert!(*data == expected[..], "block {block} of copy {copy}, {view:?}, is wrong");
                        self.right += 1;
                    }
                    Err(StoreError::Corrupt { .. }) if content.doubted[block] => self.lost += 1,
                    other => panic!("block {block} of copy {copy}, {view:?}: {:?}", other.err()),
                }
            }
        }
    }

    fn reopen(&mut self) {
        self.given_up += self.store.counters().lost_pages;
        self.store = open_engine::<Journaled>(&mut self.disk, &self.arena).unwrap();
    }

    /// Both mirrors of so many pages of maps, or of chunk records, rot; whatever they told may be lost from now on.
    fn rot(&mut self, pages: u64) {
        let there = self.pages();
        for _ in 0..pages {
            let page = &there[self.random.below(there.len() as u64) as usize];
            self.rot_these(std::slice::from_ref(page));
        }
    }

    /// Where the pages of maps and of chunk records are, each with its mirror. Older ones are among them: rotting one that nothing points to is
    /// rotting nothing.
    fn pages(&mut self) -> Vec<[usize; 2]> {
        fold(&mut self.store, &mut self.disk);
        let image = &self.disk.visible;
        let mut pages: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
        for at in (0..image.len()).step_by(BLOCK).filter(|at| image[*at..].starts_with(b"TPG2")) {
            if image[at + 8] == 1 && (self.array(at) == CHUNKS || self.array(at) >= MAPS) {
                pages.entry(&image[at..at + BLOCK]).or_default().push(at);
            }
        }
        pages.into_values().filter_map(|mirrors| mirrors.try_into().ok()).collect()
    }

    /// The array that a page says it is of.
    fn array(&self, page: usize) -> u32 {
        u32::from_le_bytes(self.disk.visible[page + 12..page + 16].try_into().unwrap())
    }

    fn level(&self, page: usize) -> u8 {
        self.disk.visible[page + 9]
    }

    fn rot_these(&mut self, pages: &[[usize; 2]]) {
        for page in pages {
            self.levels[usize::from(self.level(page[0]) > 0)] += 1;
            page.iter().for_each(|at| self.disk.visible[at + 500] ^= 0x20);
        }
        self.disk = Disk::from_image(self.disk.visible.clone());
        self.reopen();
        self.views.values_mut().for_each(|content| content.doubted.fill(true));
    }

    fn check(&self) -> Report {
        let image = &self.disk.visible;
        let options = CheckOptions { disk: DISK, size: Bytes(image.len() as u64), journal: None, depth: Depth::Data };
        let mut read = |_: DiskIndex, at: u64, into: &mut [u8]| {
            let bytes = usize::try_from(at).ok().and_then(|at| image.get(at..)?.get(..into.len()));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        };
        check(&options, &self.arena, &mut read, &mut |_| ())
    }
}

#[test]
fn what_lost_metadata_told_is_lost_and_nothing_else_and_the_store_goes_on() {
    let (mut lost, mut right, mut given_up, mut levels) = (0, 0, 0, [0; 2]);
    for seed in 1..=12 {
        let mut rig = Rig::new(seed);
        (0..300).for_each(|_| rig.step());
        for _ in 0..3 {
            let pages = 1 + rig.random.below(6);
            rig.rot(pages);
            (0..250).for_each(|_| rig.step());
            fold(&mut rig.store, &mut rig.disk);
            rig.reopen();
            assert_eq!(rig.store.failure(), None);
        }
        let copies: Vec<u64> = rig.views.keys().filter(|(_, name)| name.is_none()).map(|(copy, _)| *copy).collect();
        for &copy in &copies {
            rig.look(copy, 0..BLOCKS as usize);
        }
        // Without snapshots, and all of it written or discarded, nothing is lost any more; and nothing is in use that should not be, but for
        // what only lost pages knew of.
        for (copy, name) in rig.views.keys().filter_map(|(copy, name)| Some((*copy, (*name)?))).collect::<Vec<_>>() {
            if !(copy == 1 && copies.len() > 1) {
                rig.run(StoreOp::DropSnapshot { copy: CopyId(copy), snapshot: SnapshotId(name) });
                rig.views.remove(&(copy, Some(name)));
            }
        }
        for &copy in &copies {
            for from in (0..BLOCKS).step_by(254 * 16) {
                let sequence = rig.next();
                let op = StoreOp::Zero {
                    copy: CopyId(copy),
                    stamp: stamp(sequence),
                    at: range(from, (254 * 16).min(BLOCKS - from)),
                    known_good: Stamp::default(),
                    durable: true,
                };
                rig.run(op);
            }
            let content = rig.views.get_mut(&(copy, None)).unwrap();
            content.seeds.fill(None);
            content.doubted.fill(false);
            let sequence = rig.next();
            rig.write(copy, range(5, 40), sequence);
        }
        fold(&mut rig.store, &mut rig.disk);
        for second in 0..5 {
            quiesce_at(NOW + Span::millis(6000 + second * 1000), &mut rig.store, &mut rig.disk);
        }
        rig.reopen();
        for &copy in &copies {
            rig.look(copy, 0..BLOCKS as usize);
        }
        if copies.len() == 1 {
            let report = rig.check();
            let bad: Vec<String> = report
                .findings
                .iter()
                .filter(|found| found.severity > Severity::Notice)
                .map(|found| found.to_string())
                .collect();
            assert!(bad.is_empty(), "seed {seed}: {bad:#?}");
        }
        (lost, right, given_up) = (lost + rig.lost, right + rig.right, given_up + rig.given_up);
        (0..2).for_each(|n| levels[n] += rig.levels[n]);
    }
    println!("{lost} lost, {right} right, {given_up} pages given up, {levels:?} rotted");
    assert!(lost > 1000 && right > 10_000 && given_up > 30 && levels[1] > 3, "{lost} {right} {given_up} {levels:?}");
}

#[test]
fn a_copy_whose_metadata_is_lost_names_what_it_does_not_know_among_its_changes() {
    for level in [0, 1] {
        let mut rig = Rig::new(3);
        rig.write(1, range(2100, 40), 7);
        let changed = |rig: &mut Rig, above: u64| {
            let op =
                StoreOp::Changed { copy: CopyId(1), view: View::Live, above: stamp(above), from: range(0, 1).from };
            match run(&mut rig.store, &mut rig.disk, op) {
                Ok(StoreDone::Changed { chunks, .. }) => chunks,
                other => panic!("{other:?}"),
            }
        };
        fold(&mut rig.store, &mut rig.disk);
        assert_eq!(changed(&mut rig, 3), [(range(2096, 48), stamp(7))]);
        let mut maps = rig.pages();
        maps.retain(|page| rig.array(page[0]) >= MAPS && rig.level(page[0]) == level);
        rig.rot_these(&maps);
        // Before and after the fold has given them up.
        for _ in 0..2 {
            let after = changed(&mut rig, 3);
            let covers = |block: u64| after.iter().any(|(at, _)| (u64::from(at.from.0)..at.end()).contains(&block));
            assert!((2100..2140).all(covers), "level {level}: {after:?}");
            assert!(
                level > 0 || !covers(2000),
                "level {level}: in a leaf that is good, nothing was ever said: {after:?}"
            );
            assert!(after.iter().all(|(_, version)| *version == stamp(7)), "level {level}: {after:?}");
            assert_eq!(changed(&mut rig, 8), [], "nothing is as new as that");
            rig.write(1, range(2100, 1), 7);
            fold(&mut rig.store, &mut rig.disk);
        }
    }
}

#[test]
fn a_snapshot_that_lost_metadata_told_of_is_not_listed_and_a_clone_of_it_is() {
    for level in [0, 1] {
        let mut rig = Rig::new(4);
        rig.write(1, range(2100, 40), 7);
        rig.run(snapshot(1, 8, 8));
        let frozen = rig.views[&(1, None)].clone();
        rig.views.insert((1, Some(8)), frozen);
        rig.create(2, Some((1, 8)));
        rig.write(1, range(9000, 1), 30);
        let mut maps = rig.pages();
        // Of the snapshot's layer: the lowest number.
        let lowest = maps.iter().map(|page| rig.array(page[0])).filter(|array| *array >= MAPS).min();
        maps.retain(|page| Some(rig.array(page[0])) == lowest && rig.level(page[0]) == level);
        rig.rot_these(&maps);
        let changed = |rig: &mut Rig, copy: u64, view: View, above: Stamp| {
            let op = StoreOp::Changed { copy: CopyId(copy), view, above, from: range(0, 1).from };
            run(&mut rig.store, &mut rig.disk, op).map(|done| match done {
                StoreDone::Changed { chunks, .. } => chunks,
                other => panic!("{other:?}"),
            })
        };
        let names = |chunks: &[(conductor_model::BlockRange, Stamp)], block: u64| {
            chunks.iter().any(|(at, _)| (u64::from(at.from.0)..at.end()).contains(&block))
        };
        // Before and after it is given up, and merged into a newer snapshot.
        for round in 0..3 {
            let name = if round < 2 { 8 } else { 40 };
            assert_eq!(rig.store.counters().lost_pages > 0, round > 0, "level {level}, round {round}");
            let listed = changed(&mut rig, 1, View::Snapshot(SnapshotId(name)), stamp(3));
            assert!(matches!(listed, Err(StoreError::Corrupt { .. })), "level {level}, round {round}: {listed:?}");
            let live = changed(&mut rig, 1, View::Live, stamp(3)).unwrap();
            assert!(names(&live, 2100) && names(&live, 9000), "level {level}, round {round}: {live:?}");
            if round > 0 {
                // Nor is it shared: who has it gives its bytes instead.
                let share = |rig: &mut Rig, from: u32| {
                    let (sequence, at) = (rig.next(), range(from, 16));
                    let from = Parent { copy: CopyId(1), snapshot: SnapshotId(name) };
                    let op = StoreOp::Share {
                        copy: CopyId(2),
                        stamp: stamp(sequence),
                        at,
                        from,
                        known_good: Stamp::default(),
                    };
                    run(&mut rig.store, &mut rig.disk, op).map(|_| ())
                };
                let shared = share(&mut rig, 2100);
                assert!(matches!(shared, Err(StoreError::Corrupt { .. })), "level {level}, round {round}: {shared:?}");
                if level == 0 {
                    assert_eq!(share(&mut rig, 5000), Ok(()), "round {round}: a leaf that is not lost");
                }
            }
            if round == 0 {
                // The fold comes to it when it is written to another place of: a clone that is flattened reads all of it.
                let clone = changed(&mut rig, 2, View::Live, Stamp::default()).unwrap();
                assert!(names(&clone, 2100), "level {level}: {clone:?}");
                rig.run(StoreOp::Flatten { copy: CopyId(2) });
                rig.run(snapshot(1, 40, 40));
            }
            if round == 1 {
                rig.run(StoreOp::DropSnapshot { copy: CopyId(1), snapshot: SnapshotId(8) });
                for second in 0..5 {
                    quiesce_at(NOW + Span::millis(6000 + second * 1000), &mut rig.store, &mut rig.disk);
                }
            }
        }
    }
}
