//! What only the journaled engine promises, one promise at a time, and the few stores that are prepared for it.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod damage;
#[path = "../disk/mod.rs"]
mod disk;
mod lose;
mod lost;
mod pace;
mod parts;
mod places;
mod space;
mod superblocks;

use conductor_model::{BLOCK, Blocks, CopyId, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId};
use disk::*;
use driver::{Op, Span};
use memory::{Arena, Class};
use node_store::journaled::JournaledStore;
use node_store::{Held, HeldKind, Parent, Store, StoreDone, StoreOp, Tag, View, block_crcs};

const BLOCKS: u32 = 400;

fn fresh(data_blocks: u32) -> (Disk, Arena, JournaledStore) {
    let arena = Arena::small(32 << 20);
    let geometry = journaled_geometry(620, 340, data_blocks, 4);
    let mut disk = Disk::new(geometry.size().0 as usize, 11);
    Journaled::format(&mut disk, &arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for copy in 1..=2 {
        create(&mut store, &mut disk, copy, None);
    }
    (disk, arena, store)
}

fn create(store: &mut JournaledStore, disk: &mut Disk, copy: u64, parent: Option<Parent>) {
    let shard = ShardId { volume: VolumeId(copy as u32), index: ShardIndex(3) };
    let config = conductor_model::Configuration { shard, ..config(1, BLOCKS) };
    run(store, disk, StoreOp::Create { copy: CopyId(copy), config, parent }).unwrap();
}

fn fold(store: &mut JournaledStore, disk: &mut Disk) {
    quiesce_at(NOW + Span::millis(5000), store, disk);
    assert!(store.is_all_home() && store.idle());
}

fn zero(copy: u64, from: u32, count: u32, sequence: u64, known_good: u64) -> StoreOp {
    let (stamp, known_good) = (stamp(sequence), stamp(known_good));
    StoreOp::Zero { copy: CopyId(copy), stamp, at: range(from, count), known_good, durable: true }
}

fn snapshot(copy: u64, name: u64, sequence: u64) -> StoreOp {
    let (stamp, known_good) = (stamp(sequence), Stamp::default());
    StoreOp::Snapshot { copy: CopyId(copy), stamp, snapshot: SnapshotId(name), known_good }
}

/// The byte of the disk from which a block is read.
fn place_of(store: &mut JournaledStore, disk: &mut Disk, arena: &Arena, copy: u64, block: u32) -> usize {
    let into = arena.take(BLOCK, Class::Client).unwrap();
    let op = StoreOp::Read { copy: CopyId(copy), view: View::Live, at: range(block, 1), into };
    store.submit(NOW, Tag(0), op, &mut |op| disk.submit(op));
    let found = disk.inflight.iter().find_map(|(op, _)| match op {
        Op::DiskRead { at, .. } => Some(*at as usize),
        _ => None,
    });
    quiesce(store, disk);
    while store.next_completion().is_some() {}
    found.expect("its pages are in memory, so the read is of the block")
}

fn repair(arena: &Arena, copy: u64, from: u32, seeds: std::ops::Range<u64>) -> StoreOp {
    let data = data(arena, seeds.collect::<Vec<_>>().into_iter());
    let crcs = block_crcs(&data);
    let at = range(from, crcs.len() as u32);
    StoreOp::Repair { copy: CopyId(copy), view: View::Live, at, data, crcs }
}

#[test]
fn a_small_write_is_one_durable_write_of_the_journal_and_many_share_it() {
    let (mut disk, arena, mut store) = fresh(2000);
    fold(&mut store, &mut disk);
    // A deep queue goes in two parts, if each is worth it.
    for (writes, groups) in [(1, 1), (15, 1), (50, 2)] {
        let before = store.counters().groups;
        for n in 0..writes {
            store.submit(NOW, Tag(n), write(&arena, 1, range(n as u32 * 3, 1), n + 1, n), &mut |op| disk.submit(op));
        }
        store.end_turn(NOW, &mut |op| disk.submit(op));
        assert!(disk.inflight.iter().all(|(op, _)| matches!(op, Op::DiskWrite { durable: true, .. })));
        assert_eq!(disk.inflight.len(), groups);
        assert!(store.next_completion().is_none());
        quiesce(&mut store, &mut disk);
        let over = std::iter::from_fn(|| store.next_completion()).filter(|(_, result)| result.is_ok()).count();
        assert_eq!((over as u64, store.counters().groups), (writes, before + groups as u64));
    }
}

#[test]
fn whole_chunks_are_written_once_and_before_their_record() {
    let (mut disk, arena, mut store) = fresh(2000);
    fold(&mut store, &mut disk);
    store.submit(NOW, Tag(1), write(&arena, 1, range(16, 256), 1, 0), &mut |op| disk.submit(op));
    store.end_turn(NOW, &mut |op| disk.submit(op));
    assert!(matches!(&disk.inflight[..], [(Op::DiskWrite { durable: true, parts, .. }, _)] if parts[0].len == 1 << 20));
    let done = disk.step().unwrap();
    store.done(NOW, done, &mut |op| disk.submit(op));
    store.end_turn(NOW, &mut |op| disk.submit(op));
    assert!(store.next_completion().is_none(), "its record is not durable");
    assert!(matches!(&disk.inflight[..], [(Op::DiskWrite { durable: true, parts, .. }, _)] if parts[0].len < 65536));
    quiesce(&mut store, &mut disk);
    assert!(matches!(store.next_completion(), Some((Tag(1), Ok(StoreDone::Done)))));
}

#[test]
fn under_flush_a_write_may_be_lost_until_a_sync_and_not_after() {
    for synced in [false, true] {
        let mut lost = 0;
        for seed in 1..=20 {
            let (mut disk, arena, mut store) = fresh(2000);
            disk.random = Random(seed);
            let StoreOp::Write { copy, stamp, at, data, crcs, known_good, .. } = write(&arena, 1, range(5, 3), 1, 70)
            else {
                panic!()
            };
            let op = StoreOp::Write { copy, stamp, at, data, crcs, known_good, durable: false };
            run(&mut store, &mut disk, op).unwrap();
            if synced {
                run(&mut store, &mut disk, StoreOp::Flush { copy }).unwrap();
            }
            disk.crash();
            let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
            for n in 0..3 {
                let block = read(&mut store, &mut disk, &arena, 1, range(5 + n, 1)).unwrap();
                lost += u32::from(block == vec![0; BLOCK]);
                assert!(block == block_of(70 + u64::from(n)) || block == vec![0; BLOCK], "old or new, never torn");
            }
        }
        assert_eq!(lost == 0, synced);
    }
}

#[test]
fn versions_belong_to_entries_and_tombstones_stay_until_known_good_has_passed_them() {
    let (mut disk, arena, mut store) = fresh(4000);
    run(&mut store, &mut disk, write(&arena, 1, range(0, 48), 5, 100)).unwrap();
    run(&mut store, &mut disk, snapshot(1, 9, 6)).unwrap();
    let from = Parent { copy: CopyId(1), snapshot: SnapshotId(9) };
    let share =
        StoreOp::Share { copy: CopyId(2), stamp: stamp(77), at: range(0, 32), from, known_good: Stamp::default() };
    run(&mut store, &mut disk, share).unwrap();
    assert_eq!(store.version_of(CopyId(2), Blocks(3)), Some(stamp(77)), "its own shard's numbering");
    assert_eq!(read(&mut store, &mut disk, &arena, 2, range(31, 1)).unwrap(), block_of(131));
    run(&mut store, &mut disk, zero(2, 0, 32, 80, 70)).unwrap();
    fold(&mut store, &mut disk);
    for block in [0, 16] {
        assert_eq!(store.version_of(CopyId(2), Blocks(block)), Some(stamp(80)), "a tombstone");
    }
    assert_eq!(read(&mut store, &mut disk, &arena, 2, range(0, 32)).unwrap(), vec![0; 32 * BLOCK]);
    run(&mut store, &mut disk, zero(2, 0, 16, 81, 81)).unwrap();
    fold(&mut store, &mut disk);
    assert_eq!(store.version_of(CopyId(2), Blocks(0)), None, "every copy has passed it");
}

#[test]
fn a_copy_range_that_was_cut_short_is_finished_at_the_opening_whatever_was_written_beside_it() {
    const CHUNKS: u32 = 700;
    let arena = Arena::small(64 << 20);
    let geometry = journaled_geometry(4000, 640, 2 * 16 * CHUNKS, 4);
    let mut disk = Disk::new(geometry.size().0 as usize, 11);
    Journaled::format(&mut disk, &arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for copy in [1, 2] {
        let shard = ShardId { volume: VolumeId(copy), index: ShardIndex(0) };
        let config = conductor_model::Configuration { shard, ..config(1, 16 * CHUNKS) };
        run(&mut store, &mut disk, StoreOp::Create { copy: CopyId(copy.into()), config, parent: None }).unwrap();
    }
    run(&mut store, &mut disk, write(&arena, 1, range(0, 48), 5, 100)).unwrap();
    run(&mut store, &mut disk, snapshot(1, 9, 6)).unwrap();
    fold(&mut store, &mut disk);
    let from = Parent { copy: CopyId(1), snapshot: SnapshotId(9) };
    let share =
        StoreOp::Share { copy: CopyId(2), stamp: stamp(77), at: range(0, 32), from, known_good: Stamp::default() };
    store.submit(NOW, Tag(0), share, &mut |op| disk.submit(op));
    for n in 0..CHUNKS {
        let op = write(&arena, 1, range(n * 16, 1), 100 + u64::from(n), u64::from(n));
        store.submit(NOW, Tag(1 + u64::from(n)), op, &mut |op| disk.submit(op));
    }
    // The journal is written, and nothing else: the copy-range is in it, and not home.
    let mut written = 0;
    while written < CHUNKS {
        store.end_turn(NOW, &mut |op| disk.submit(op));
        let journal = |(op, _): &(Op, usize)| matches!(op, Op::DiskWrite { durable: true, .. });
        let others: Vec<_> = disk.inflight.extract_if(.., |op| !journal(op)).collect();
        let done = disk.step().expect("a write of the journal");
        disk.inflight.extend(others);
        store.done(NOW, done, &mut |op| disk.submit(op));
        while let Some((tag, result)) = store.next_completion() {
            result.unwrap();
            assert_ne!(tag, Tag(0), "it is not over");
            written += 1;
        }
    }
    drop(store);
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    assert_eq!(read(&mut store, &mut disk, &arena, 2, range(31, 1)).unwrap(), block_of(131));
    assert_eq!(
        read(&mut store, &mut disk, &arena, 1, range(16 * (CHUNKS - 1), 1)).unwrap(),
        block_of(CHUNKS as u64 - 1)
    );
}

/// A disk of 20,000 blocks with a journal of so many, and two copies on it.
fn two_copies(journal: u32) -> (Disk, Arena, JournaledStore) {
    let arena = Arena::small(64 << 20);
    let geometry = journaled_geometry(journal, 640, 20_000, 4);
    let mut disk = Disk::new(geometry.size().0 as usize, 11);
    Journaled::format(&mut disk, &arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for copy in [1, 2] {
        let config = config(1, 16_000);
        run(&mut store, &mut disk, StoreOp::Create { copy: CopyId(copy), config, parent: None }).unwrap();
    }
    (disk, arena, store)
}

#[test]
fn extents_name_what_is_held_be_it_home_or_not_and_no_hole_beside_it() {
    let (mut disk, arena, mut store) = fresh(2000);
    for (n, from) in (1..).zip([3, 100, 290]) {
        run(&mut store, &mut disk, write(&arena, 1, range(from, 20), n, 7)).unwrap();
    }
    for folded in [false, true] {
        if folded {
            fold(&mut store, &mut disk);
        }
        let op = StoreOp::Extents { copy: CopyId(1), view: View::Live, at: range(0, BLOCKS) };
        let StoreDone::Extents { data, next } = run(&mut store, &mut disk, op).unwrap() else { panic!() };
        assert_eq!((data, next), (vec![range(3, 20), range(100, 20), range(290, 20)], Blocks(BLOCKS)), "{folded}");
    }
}

#[test]
fn extents_are_told_by_and_by_and_no_further_than_asked_for() {
    let (mut disk, arena, mut store) = fresh(2000);
    for n in 0..20 {
        run(&mut store, &mut disk, write(&arena, 1, range(16 * n + 5, 2), u64::from(n) + 1, 7)).unwrap();
    }
    let mut ask = |at| match run(&mut store, &mut disk, StoreOp::Extents { copy: CopyId(1), view: View::Live, at }) {
        Ok(StoreDone::Extents { data, next }) => (data, next.0),
        other => panic!("{other:?}"),
    };
    let (data, next) = ask(range(0, BLOCKS));
    assert!(data.len() < 20 && next == 16 * data.len() as u32, "{data:?} up to {next}");
    let (rest, end) = ask(range(next, BLOCKS - next));
    assert_eq!((data.len() + rest.len(), end), (20, BLOCKS));
    assert_eq!(ask(range(6, 16)), (vec![range(6, 1), range(21, 1)], 22));
    assert_eq!(ask(range(320, u32::MAX - 320)), (vec![], BLOCKS), "to the end of the copy");
}

#[test]
fn what_is_above_known_good_outlives_the_journal() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(3, 2), 1, 1)).unwrap();
    run(&mut store, &mut disk, zero(1, 50, 10, 2, 0)).unwrap();
    run(&mut store, &mut disk, snapshot(1, 8, 3)).unwrap();
    let held = vec![
        Held { stamp: stamp(1), at: range(3, 2), kind: HeldKind::Write },
        Held { stamp: stamp(2), at: range(50, 10), kind: HeldKind::Zero },
        Held { stamp: stamp(3), at: range(0, BLOCKS), kind: HeldKind::Barrier },
    ];
    for folded in [false, true, true] {
        let mut above = |store: &mut JournaledStore| match run(store, &mut disk, StoreOp::Above { copy: CopyId(1) }) {
            Ok(StoreDone::Above { known_good, held }) => (known_good, held),
            other => panic!("{other:?}"),
        };
        assert_eq!(above(&mut store), (stamp(0), held.clone()));
        if folded {
            fold(&mut store, &mut disk);
        }
        disk.crash();
        store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    }
}
