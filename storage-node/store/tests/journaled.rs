//! What only the journaled engine promises, one promise at a time. Long, as all of them begin with one of the few stores that are prepared here:
//! an empty one, one in the midst of a fold that keeps to its pace, one that is nearly full.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::{BLOCK, Blocks, CopyId, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId};
use disk::*;
use driver::{Errno, Op, Span, Time};
use memory::{Arena, Class};
use node_store::journaled::JournaledStore;
use node_store::{Held, HeldKind, OpenError, Parent, Store, StoreDone, StoreError, StoreOp, Tag, View, block_crcs};

const BLOCKS: u32 = 400;

fn fresh(data_blocks: u32) -> (Disk, Arena, JournaledStore) {
    let arena = Arena::small(32 << 20);
    let geometry = journaled_geometry(620, 320, data_blocks, 4);
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
                run(&mut store, &mut disk, StoreOp::Sync { copy }).unwrap();
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
fn damage_is_never_returned_and_is_put_right_with_another_copys_content() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(0, 40), 1, 100)).unwrap();
    run(&mut store, &mut disk, write(&arena, 1, range(60, 2), 2, 200)).unwrap();
    for folded in [false, true] {
        if folded {
            fold(&mut store, &mut disk);
        }
        for (block, seed) in [(3, 103), (35, 135), (61, 201)] {
            let at = place_of(&mut store, &mut disk, &arena, 1, block);
            disk.visible[at + 77] ^= 4;
            let corrupt = StoreError::Corrupt { copy: CopyId(1), block: Blocks(block) };
            assert_eq!(read(&mut store, &mut disk, &arena, 1, range(block, 1)).err(), Some(corrupt.clone()));
            let wrong = repair(&arena, 1, block, 7..8);
            assert_eq!(run(&mut store, &mut disk, wrong).err(), Some(corrupt), "that is not what was written");
            run(&mut store, &mut disk, repair(&arena, 1, block, seed..seed + 1)).unwrap();
            assert_eq!(read(&mut store, &mut disk, &arena, 1, range(block, 1)).unwrap(), block_of(seed));
        }
    }
    let good = read(&mut store, &mut disk, &arena, 1, range(0, 40)).unwrap();
    run(&mut store, &mut disk, repair(&arena, 1, 0, 100..140)).unwrap();
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(0, 40)).unwrap(), good);
    let counters = store.counters();
    assert_eq!(
        (counters.repaired, counters.healed_pages, counters.damaged_pages),
        (6, 0, 0),
        "what was good is left alone"
    );
}

#[test]
fn a_sector_that_cannot_be_read_is_damage_of_its_block_and_a_repair_is_its_end() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(0, 40), 1, 100)).unwrap();
    run(&mut store, &mut disk, write(&arena, 1, range(60, 2), 2, 200)).unwrap();
    let all: Vec<u8> = (100..140).flat_map(block_of).collect();
    for block in [3, 35] {
        disk.bad_sector = Some(place_of(&mut store, &mut disk, &arena, 1, block) + 600);
        let corrupt = StoreError::Corrupt { copy: CopyId(1), block: Blocks(block) };
        assert_eq!(read(&mut store, &mut disk, &arena, 1, range(0, 40)).err(), Some(corrupt));
        for (from, count) in [(0, block), (block + 1, 39 - block)] {
            let there = read(&mut store, &mut disk, &arena, 1, range(from, count)).unwrap();
            assert_eq!(there, all[from as usize * BLOCK..][..count as usize * BLOCK]);
        }
        assert_eq!(store.failure(), None);
        run(&mut store, &mut disk, repair(&arena, 1, 0, 100..140)).unwrap();
        assert_eq!(disk.bad_sector, None, "it was written");
        assert_eq!(read(&mut store, &mut disk, &arena, 1, range(0, 40)).unwrap(), all);
    }
    assert_eq!(store.counters().repaired, 2);
    // What fails now and then is read again: a run, and one of its blocks.
    disk.fail_reads = 5;
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(16, 16)).unwrap(), all[16 * BLOCK..32 * BLOCK]);
    assert_eq!((disk.fail_reads, store.counters().corrupt), (0, 2));
}

/// Many thin copies have more pages than there are places, and records beside.
#[test]
fn where_places_for_pages_run_out_writes_are_refused_and_the_store_goes_on() {
    const COPIES: u64 = 120;
    const LEAF: u32 = 127 * 16;
    let arena = Arena::small(32 << 20);
    let geometry = journaled_geometry(4000, 1200, 24_000, COPIES as u32);
    let mut disk = Disk::new(geometry.size().0 as usize, 11);
    Journaled::format(&mut disk, &arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    let configured = |copy: u64, epoch| {
        let shard = ShardId { volume: VolumeId(copy as u32), index: ShardIndex(0) };
        conductor_model::Configuration { shard, ..config(epoch, 12 * LEAF) }
    };
    for copy in 1..=COPIES {
        let op = StoreOp::Create { copy: CopyId(copy), config: configured(copy, 1), parent: None };
        run(&mut store, &mut disk, op).unwrap();
    }
    let (mut written, mut refused, mut full_first) = (vec![], 0, false);
    for leaf in 0..12 {
        for copy in 1..=COPIES {
            full_first |= refused == 0 && store.usage().free() == 0;
            let seed = u64::from(leaf) * 1000 + copy;
            match run(&mut store, &mut disk, write(&arena, copy, range(leaf * LEAF, 1), u64::from(leaf) + 1, seed)) {
                Ok(_) => written.push((copy, leaf, seed)),
                Err(StoreError::NoSpace) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        fold(&mut store, &mut disk);
    }
    assert!(refused > 100 && written.len() > 200, "{refused} refused, {} written", written.len());
    assert!(full_first, "it is told before a write is refused");
    assert!(written.iter().filter(|(copy, ..)| *copy == COPIES).count() < 12);
    for epoch in 2..4 {
        for copy in 1..=COPIES {
            let op = StoreOp::Join { copy: CopyId(copy), config: configured(copy, epoch) };
            run(&mut store, &mut disk, op).unwrap();
        }
        fold(&mut store, &mut disk);
        assert_eq!(store.failure(), None, "epoch {epoch}");
        disk.crash();
        store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    }
    // What gives places back takes some first, and leaves those that the records of all copies need.
    const GONE: u64 = 80;
    for copy in 1..=GONE {
        run(&mut store, &mut disk, StoreOp::Delete { copy: CopyId(copy) }).unwrap();
    }
    for copy in GONE + 1..=COPIES {
        let op = StoreOp::Join { copy: CopyId(copy), config: configured(copy, 4) };
        run(&mut store, &mut disk, op).unwrap();
    }
    for _ in 0..20 {
        quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
        assert_eq!(store.failure(), None);
    }
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    assert!(store.usage().free() > 0);
    run(&mut store, &mut disk, write(&arena, COPIES, range(11 * LEAF, 1), 99, 5)).unwrap();
    written.retain(|(copy, leaf, _)| *copy > GONE && (*copy, *leaf) != (COPIES, 11));
    for (copy, leaf, seed) in written {
        assert_eq!(read(&mut store, &mut disk, &arena, copy, range(leaf * LEAF, 1)).unwrap(), block_of(seed));
    }
}

#[test]
fn an_empty_disk_is_not_full_however_much_is_discarded_or_under_way() {
    let (mut disk, arena, mut store) = fresh(20_000);
    fold(&mut store, &mut disk);
    for n in 0..40 {
        run(&mut store, &mut disk, zero(1, n % 12 * 32, 32, u64::from(n) + 1, 0)).unwrap();
        assert!(store.usage().free() > 10_000, "{n}: {:?}", store.usage());
    }
    for n in 0..8 {
        let op = write(&arena, 1, range(n * 40, 40), 100 + u64::from(n), 9);
        store.submit(NOW, Tag(u64::from(n)), op, &mut |op| disk.submit(op));
        store.end_turn(NOW, &mut |op| disk.submit(op));
        assert!(store.usage().free() > 10_000, "{n}: {:?}", store.usage());
    }
    quiesce(&mut store, &mut disk);
    assert!(std::iter::from_fn(|| store.next_completion()).all(|(_, result)| result.is_ok()));
}

#[test]
fn damage_in_the_journal_stays_damage_when_it_is_moved_home() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(4, 3), 1, 100)).unwrap();
    let at = place_of(&mut store, &mut disk, &arena, 1, 5);
    disk.visible[at] ^= 1;
    fold(&mut store, &mut disk);
    assert_ne!(place_of(&mut store, &mut disk, &arena, 1, 5), at);
    for n in [4, 6] {
        assert_eq!(read(&mut store, &mut disk, &arena, 1, range(n, 1)).unwrap(), block_of(96 + u64::from(n)));
    }
    assert!(matches!(read(&mut store, &mut disk, &arena, 1, range(5, 1)), Err(StoreError::Corrupt { .. })));
    run(&mut store, &mut disk, repair(&arena, 1, 5, 101..102)).unwrap();
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(5, 1)).unwrap(), block_of(101));
}

#[test]
fn a_block_that_cannot_be_read_when_it_is_moved_home_is_read_again() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(5, 1), 1, 100)).unwrap();
    let at = place_of(&mut store, &mut disk, &arena, 1, 5);
    disk.fail_reads = 4;
    fold(&mut store, &mut disk);
    assert_eq!(disk.fail_reads, 0);
    assert_ne!(place_of(&mut store, &mut disk, &arena, 1, 5), at);
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(5, 1)).unwrap(), block_of(100));
    assert_eq!(store.counters().corrupt, 0);
}

#[test]
fn metadata_that_could_not_be_read_is_damaged_only_for_a_while() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(5, 1), 1, 100)).unwrap();
    fold(&mut store, &mut disk);
    drop(store);
    let opened = |disk: &mut Disk| open_engine::<Journaled>(disk, &arena).unwrap();
    let at = range(5, 1);

    let mut store = opened(&mut disk);
    disk.fail_reads = 5;
    assert_eq!(read(&mut store, &mut disk, &arena, 1, at).unwrap(), block_of(100), "the last of three rounds");
    drop(store);

    let mut store = opened(&mut disk);
    disk.fail_reads = 6;
    assert!(matches!(read(&mut store, &mut disk, &arena, 1, at), Err(StoreError::Corrupt { .. })));
    assert_eq!(disk.fail_reads, 0);
    assert!(matches!(read(&mut store, &mut disk, &arena, 1, at), Err(StoreError::Corrupt { .. })), "not read at once");
    quiesce_at(NOW + Span::millis(1500), &mut store, &mut disk);
    assert_eq!(read(&mut store, &mut disk, &arena, 1, at).unwrap(), block_of(100));
}

#[test]
fn a_fold_waits_for_metadata_that_cannot_be_read_and_not_for_ever() {
    for comes_back in [true, false] {
        let (mut disk, arena, mut store) = fresh(2000);
        run(&mut store, &mut disk, write(&arena, 1, range(5, 1), 1, 100)).unwrap();
        fold(&mut store, &mut disk);
        drop(store);
        let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
        run(&mut store, &mut disk, write(&arena, 1, range(5, 1), 2, 200)).unwrap();
        disk.fail_reads = if comes_back { 6 } else { u32::MAX };
        quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
        assert!(store.failure().is_none() && !store.idle(), "it waits");
        assert!(store.next_deadline().is_some_and(|at| at <= NOW + Span::millis(6000)));
        for second in 6..20 {
            quiesce_at(NOW + Span::millis(second * 1000 + 500), &mut store, &mut disk);
        }
        assert_eq!(store.failure(), if comes_back { None } else { Some(Errno::IO) });
        disk.fail_reads = 0;
        if !comes_back {
            store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
        }
        fold(&mut store, &mut disk);
        assert_eq!(read(&mut store, &mut disk, &arena, 1, range(5, 1)).unwrap(), block_of(200));
    }
}

#[test]
fn a_rewrite_on_a_full_disk_is_refused_while_its_map_cannot_be_read_and_nothing_waits_behind_it() {
    let (mut disk, arena, mut store) = fresh(500);
    for n in 0..BLOCKS / 16 * 2 {
        let (copy, from) = (1 + u64::from(n % 2), n / 2 * 16);
        drop(run(&mut store, &mut disk, write(&arena, copy, range(from, 16), u64::from(n) + 1, 7)));
    }
    assert!(store.counters().no_space > 0);
    fold(&mut store, &mut disk);
    drop(store);
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    disk.fail_reads = 6;
    let again = |version| write(&arena, 1, range(3, 4), version, 100);
    assert!(matches!(run(&mut store, &mut disk, again(9000)), Err(StoreError::Corrupt { .. })));
    assert!(store.idle());
    quiesce_at(NOW + Span::millis(1500), &mut store, &mut disk);
    run(&mut store, &mut disk, again(9001)).unwrap();
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(3, 1)).unwrap(), block_of(100));
}

#[test]
fn what_is_left_of_a_copy_that_was_deleted_goes_after_a_crash_though_nobody_asks_for_anything() {
    let (mut disk, arena, mut store) = two_copies(8000);
    // Each chunk with something in it is an entry; a fold releases 4096.
    let config = config(1, 80_000);
    run(&mut store, &mut disk, StoreOp::Create { copy: CopyId(3), config, parent: None }).unwrap();
    for n in 0..5000 {
        run(&mut store, &mut disk, zero(3, n * 16 + 1, 1, u64::from(n) + 1, 0)).unwrap();
    }
    fold(&mut store, &mut disk);
    let folds = store.counters().checkpoints;
    run(&mut store, &mut disk, StoreOp::Delete { copy: CopyId(3) }).unwrap();
    while store.counters().checkpoints == folds {
        store.end_turn(NOW, &mut |op| disk.submit(op));
        if let Some(done) = disk.step() {
            store.done(NOW, done, &mut |op| disk.submit(op));
        }
    }
    disk.crash();
    let store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    assert!(!store.is_all_home(), "the crash came too late");
    assert!(store.next_deadline().is_some_and(|at| at <= NOW));
}

#[test]
fn a_block_that_is_another_ones_is_damage_although_it_is_whole() {
    let (mut disk, arena, mut store) = fresh(2000);
    // The same bytes, in another copy and in another place: only the identity tells them apart.
    for (copy, from) in [(1, 0), (1, 16), (2, 0)] {
        run(&mut store, &mut disk, write(&arena, copy, range(from, 16), u64::from(from) + 1, 500)).unwrap();
    }
    fold(&mut store, &mut disk);
    let home = place_of(&mut store, &mut disk, &arena, 1, 0);
    let crc_of = |disk: &Disk, at: usize| block_crcs(&disk.visible[at..at + BLOCK]);
    for (copy, block) in [(1, 16), (2, 0)] {
        let other = place_of(&mut store, &mut disk, &arena, copy, block);
        assert_eq!(crc_of(&disk, home), crc_of(&disk, other));
    }
    // A lost write: the block still holds what an older write put there.
    run(&mut store, &mut disk, write(&arena, 1, range(0, 1), 40, 900)).unwrap();
    let before = disk.visible[home..home + BLOCK].to_vec();
    fold(&mut store, &mut disk);
    disk.visible[home..home + BLOCK].copy_from_slice(&before);
    assert!(matches!(read(&mut store, &mut disk, &arena, 1, range(0, 1)), Err(StoreError::Corrupt { .. })));
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

/// A store in the midst of a fold that keeps to its pace: many small writes have filled half of the journal, none came for some time, and
/// somebody reads.
struct Paced {
    disk: Disk,
    arena: Arena,
    store: JournaledStore,
    /// The first byte that is no metadata.
    data: usize,
    now: Time,
}

impl Paced {
    const WRITES: u32 = 500;

    fn new() -> Self {
        let (mut disk, arena, mut store) = two_copies(900);
        run(&mut store, &mut disk, snapshot(1, 9, 1)).unwrap();
        for n in 0..Self::WRITES {
            let op = write(&arena, 1, range(n * 32, 1), 2 + u64::from(n), u64::from(n));
            store.submit(NOW, Tag(u64::from(n)), op, &mut |op| disk.submit(op));
        }
        let data = disk.visible.len() - 20_000 * BLOCK;
        let mut this = Self { disk, arena, store, data, now: NOW };
        assert_eq!(this.now_home(), 0, "there is room for more");
        this.now = NOW + Span::millis(1000);
        let Self { disk, arena, store, now, .. } = &mut this;
        let into = arena.take(BLOCK, Class::Client).expect("the test has memory");
        let op = StoreOp::Read { copy: CopyId(1), view: View::Live, at: range(0, 1), into };
        store.submit(*now, Tag(0), op, &mut |op| disk.submit(op));
        // What the writes have earned.
        while this.now_home() == 0 {
            this.next().expect("a fold is due");
        }
        while let Some((_, result)) = this.store.next_completion() {
            result.unwrap();
        }
        this
    }

    /// All that is done without time going on; how many blocks go home.
    fn now_home(&mut self) -> usize {
        let Self { disk, store, data, now, .. } = self;
        let mut home = 0;
        loop {
            let before = disk.inflight.len();
            store.end_turn(*now, &mut |op| disk.submit(op));
            let is_home = |(op, _): &&(Op, usize)| matches!(op, Op::DiskWrite { at, .. } if *at as usize >= *data);
            home += disk.inflight[before..].iter().filter(is_home).count();
            let Some(done) = disk.step() else { return home };
            store.done(*now, done, &mut |op| disk.submit(op));
        }
    }

    /// The same, but that writes home stay out: they are put into `out`.
    fn now_but_home(&mut self, out: &mut Vec<(Op, usize)>) {
        let Self { disk, store, data, now, .. } = self;
        loop {
            store.end_turn(*now, &mut |op| disk.submit(op));
            let is_home = |(op, _): &(Op, usize)| matches!(op, Op::DiskWrite { at, .. } if *at as usize >= *data);
            let (home, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut disk.inflight).into_iter().partition(is_home);
            out.extend(home);
            disk.inflight = rest;
            let Some(done) = disk.step() else { return };
            store.done(*now, done, &mut |op| disk.submit(op));
        }
    }

    /// Goes on to when the store wants another turn, if that is soon.
    fn next(&mut self) -> Option<()> {
        self.now = self.store.next_deadline().filter(|at| *at <= self.now + Span::millis(1))?;
        Some(())
    }

    fn share(&mut self, from: u32) {
        let parent = Parent { copy: CopyId(1), snapshot: SnapshotId(9) };
        let (copy, stamp, at) = (CopyId(2), stamp(9000 + u64::from(from)), range(from, 16));
        let op = StoreOp::Share { copy, stamp, at, from: parent, known_good: Stamp::default() };
        let Self { disk, store, now, .. } = self;
        store.submit(*now, Tag(u64::from(from)), op, &mut |op| disk.submit(op));
    }
}

#[test]
fn blocks_go_home_at_a_pace() {
    let mut paced = Paced::new();
    let mut home = Vec::new();
    while paced.next().is_some() {
        home.push(paced.now_home());
    }
    assert!(home.len() > 5 && home.iter().all(|moved| *moved <= 32), "little by little: {home:?}");
    fold(&mut paced.store, &mut paced.disk);
}

#[test]
fn what_is_overwritten_before_it_goes_home_stays_where_it_is() {
    const BLOCKS: u32 = 700;
    let (mut disk, arena, mut store) = two_copies(8000);
    // Over and over. With its record's, a write takes two blocks of the journal, so that a fold has these once or twice.
    for n in 0..20 * BLOCKS {
        let (at, version) = (range(n % BLOCKS * 4, 1), u64::from(n) + 1);
        run(&mut store, &mut disk, write(&arena, 1, at, version, version)).unwrap();
    }
    let (folds, hidden) = (store.counters().checkpoints, store.counters().hidden);
    assert!(folds >= 5 && hidden * 2 > folds * u64::from(BLOCKS), "{hidden} of {folds} times {BLOCKS} blocks stay");
    // What hides the others is still there after a crash, and then goes home.
    drop(store);
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    let all_are_there = |store: &mut JournaledStore, disk: &mut Disk| {
        for n in 0..BLOCKS {
            let newest = block_of(u64::from(19 * BLOCKS + n) + 1);
            assert_eq!(read(store, disk, &arena, 1, range(n * 4, 1)).unwrap(), newest, "block {n}");
        }
    };
    all_are_there(&mut store, &mut disk);
    fold(&mut store, &mut disk);
    all_are_there(&mut store, &mut disk);
    assert!(store.is_all_home() && store.counters().corrupt == 0);
}

#[test]
fn a_fold_goes_on_when_all_that_it_still_had_to_move_stays_where_it_is() {
    let (mut disk, arena, mut store) = two_copies(620);
    // Somewhat more than half of the journal.
    for n in 0..160 {
        run(&mut store, &mut disk, write(&arena, 1, range(n * 4, 1), u64::from(n) + 1, 7)).unwrap();
    }
    quiesce(&mut store, &mut disk);
    run(&mut store, &mut disk, zero(1, 0, 160 * 4, 161, 0)).unwrap();
    quiesce_at(NOW + Span::millis(500), &mut store, &mut disk);
    assert!(store.idle() && !store.is_all_home(), "the fold has time");
    // Nothing is asked for any more: the rest is to go home, and all of it is hidden.
    store.end_turn(NOW + Span::millis(1001), &mut |op| disk.submit(op));
    assert_eq!(store.counters().checkpoints, 0);
    let goes_on = !disk.inflight.is_empty() || store.next_deadline().is_some();
    assert!(goes_on, "it waits for nothing");
    fold(&mut store, &mut disk);
}

#[test]
fn windows_of_which_all_stays_where_it_is_are_looked_through_one_in_a_turn() {
    let (mut disk, arena, mut store) = two_copies(8000);
    let mut written = 0;
    while store.counters().switches == 0 {
        run(&mut store, &mut disk, write(&arena, 1, range(written, 1), u64::from(written) + 1, 7)).unwrap();
        written += 1;
    }
    run(&mut store, &mut disk, zero(1, 0, 8000, 9000, 0)).unwrap();
    quiesce(&mut store, &mut disk);
    assert!(store.idle() && !store.is_all_home(), "the fold has time");
    let (mut now, mut most, mut before) = (NOW + Span::millis(1001), 0, store.counters().hidden);
    while !store.is_all_home() {
        store.end_turn(now, &mut |op| disk.submit(op));
        let hidden = store.counters().hidden;
        (most, before) = (most.max(hidden - before), hidden);
        if let Some(done) = disk.step() {
            store.done(now, done, &mut |op| disk.submit(op));
        } else if !store.is_all_home() {
            now = now.max(store.next_deadline().expect("it goes on"));
        }
    }
    assert!(before * 2 > u64::from(written) && (1..=256).contains(&most), "{most} of {before} in one turn");
}

#[test]
fn few_writes_home_are_before_the_journals_in_the_disks_queue_until_the_fold_is_late() {
    let mut paced = Paced::new();
    let mut out = Vec::new();
    // A disk that is slow.
    while paced.next().is_some() && paced.now < NOW + Span::millis(1020) {
        paced.now_but_home(&mut out);
    }
    assert_eq!(out.len(), 24, "no more, however long it takes");
    let mut most = 0;
    for n in 0..100 {
        let op = write(&paced.arena, 1, range(n * 32 + 1, 1), 1000 + u64::from(n), u64::from(n));
        let Paced { store, disk, now, .. } = &mut paced;
        *now = *now + Span::micros(250);
        store.submit(*now, Tag(1000 + u64::from(n)), op, &mut |op| disk.submit(op));
        paced.now_but_home(&mut out);
        assert!(paced.store.next_completion().is_some_and(|(_, result)| result.is_ok()), "{n}: no write waits");
        assert!(out.len() >= most, "{n}: {} of {most}", out.len());
        most = out.len();
    }
    assert!((40..=256).contains(&most), "the more, the less of the journal is left: {most}");
    paced.disk.inflight.extend(out);
    fold(&mut paced.store, &mut paced.disk);
    for n in [0, 99] {
        let at = range(n * 32 + 1, 1);
        assert_eq!(read(&mut paced.store, &mut paced.disk, &paced.arena, 1, at).unwrap(), block_of(u64::from(n)));
    }
}

#[test]
fn a_fold_that_somebody_waits_for_keeps_to_no_pace() {
    let mut paced = Paced::new();
    // It waits until nothing is in the journal that is not home, and then for its own fold.
    paced.share(0);
    assert!(paced.now_home() > 100);
    assert!(paced.store.next_completion().is_some_and(|(_, result)| result.is_ok()), "all at once");
    fold(&mut paced.store, &mut paced.disk);
}

#[test]
fn a_store_whose_superblocks_are_both_gone_is_damaged_and_not_a_blank_disk() {
    let (mut disk, arena, mut store) = fresh(2000);
    fold(&mut store, &mut disk);
    drop(store);
    let opened = |change: &dyn Fn(&mut Disk)| {
        let mut disk = Disk::from_image(disk.visible.clone());
        change(&mut disk);
        open_engine::<Journaled>(&mut disk, &arena).map(drop)
    };
    let [first, second] = [0, 8 * BLOCK];
    assert_eq!(opened(&|disk| disk.visible[first + 100] ^= 1), Ok(()), "one is enough");
    let both = opened(&|disk| [first, second].into_iter().for_each(|at| disk.visible[at + 100] ^= 1));
    assert_eq!(both, Err(OpenError::Damaged("both superblocks")));
    let one_wiped = opened(&|disk| {
        disk.visible[first + 100] ^= 1;
        disk.visible[second..second + BLOCK].fill(0);
    });
    assert_eq!(one_wiped, Err(OpenError::Damaged("both superblocks")));
    assert_eq!(opened(&|disk| disk.fail_reads = 2), Err(OpenError::Disk(Errno::IO)), "unreadable is not blank");
    assert_eq!(opened(&|disk| disk.visible[..9 * BLOCK].fill(0)), Err(OpenError::NotAStore));
}

#[test]
fn superblocks_and_map_that_rot_below_a_store_that_is_only_read_are_written_anew() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(0, 40), 1, 100)).unwrap();
    fold(&mut store, &mut disk);
    let checkpoints = store.counters().checkpoints;
    let map = 16 + 620;
    (0..16).chain(map..map + 4).for_each(|block| disk.visible[block * BLOCK + 100] ^= 1);
    while store.counters().checkpoints == checkpoints {
        store.patrol(Blocks(64));
        drain(&mut store, &mut disk);
    }
    for _ in 0..100 {
        store.patrol(Blocks(64));
        drain(&mut store, &mut disk);
    }
    assert_eq!(store.counters().checkpoints, checkpoints + 1);
    drop(store);
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(7, 1)).unwrap(), block_of(107));
}

#[test]
fn a_store_that_fails_gives_back_what_was_to_go_home() {
    let mut paced = Paced::new();
    let held = paced.arena.in_use();
    let op = write(&paced.arena, 1, range(1, 1), 8000, 7);
    let Paced { store, disk, .. } = &mut paced;
    store.submit(NOW, Tag(8000), op, &mut |op| disk.submit(op));
    store.end_turn(NOW, &mut |op| disk.submit(op));
    disk.fail_write = true;
    paced.now_home();
    assert!(paced.store.next_completion().is_some_and(|(_, result)| result.is_err()));
    assert!(paced.store.failure().is_some() && paced.store.idle());
    assert!(paced.arena.in_use() + (128 << 10) <= held, "{} of {held} bytes are held", paced.arena.in_use());
}

#[test]
fn a_checkpoint_that_finds_no_memory_asks_again() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, zero(1, 0, 48, 1, 0)).unwrap();
    let mut others = Vec::new();
    for class in [Class::Client, Class::Settle] {
        for len in [1 << 20, 64 << 10, BLOCK] {
            others.extend(std::iter::from_fn(|| arena.take(len, class)));
        }
    }
    let later = NOW + Span::millis(5000);
    loop {
        store.end_turn(later, &mut |op| disk.submit(op));
        let Some(done) = disk.step() else { break };
        store.done(later, done, &mut |op| disk.submit(op));
    }
    assert!(!store.is_all_home(), "it needs memory");
    assert!(store.next_deadline().is_some_and(|at| at <= later + Span::millis(1)), "{:?}", store.next_deadline());
    drop(others);
    quiesce_at(later + Span::millis(1), &mut store, &mut disk);
    assert!(store.is_all_home() && store.idle());
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
fn a_parent_goes_only_when_no_clone_needs_it() {
    let (mut disk, arena, mut store) = fresh(4000);
    run(&mut store, &mut disk, write(&arena, 1, range(0, 100), 1, 100)).unwrap();
    run(&mut store, &mut disk, snapshot(1, 9, 2)).unwrap();
    create(&mut store, &mut disk, 7, Some(Parent { copy: CopyId(1), snapshot: SnapshotId(9) }));
    run(&mut store, &mut disk, write(&arena, 7, range(10, 1), 1, 900)).unwrap();
    let delete = || StoreOp::Delete { copy: CopyId(1) };
    assert_eq!(run(&mut store, &mut disk, delete()).err(), Some(StoreError::Needed(CopyId(7))));
    let drop = StoreOp::DropSnapshot { copy: CopyId(1), snapshot: SnapshotId(9) };
    assert_eq!(run(&mut store, &mut disk, drop).err(), Some(StoreError::Needed(CopyId(7))));
    run(&mut store, &mut disk, StoreOp::Flatten { copy: CopyId(7) }).unwrap();
    let shared = store.usage().used;
    run(&mut store, &mut disk, delete()).unwrap();
    fold(&mut store, &mut disk);
    assert!(store.usage().used < shared);
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    let all = read(&mut store, &mut disk, &arena, 7, range(0, 100)).unwrap();
    for (n, block) in (0u64..).zip(all.chunks(BLOCK)) {
        assert_eq!(block, block_of(if n == 10 { 900 } else { 100 + n }));
    }
}

#[test]
fn a_full_disk_refuses_cleanly_still_rewrites_and_takes_again_what_was_given_back() {
    let (mut disk, arena, mut store) = fresh(500);
    let capacity = store.usage().capacity.0;
    assert!(capacity < BLOCKS * 2);
    let mut refused = Vec::new();
    for n in 0..BLOCKS / 16 * 2 {
        let (copy, from) = (1 + u64::from(n % 2), n / 2 * 16);
        match run(
            &mut store,
            &mut disk,
            write(&arena, copy, range(from, 16), u64::from(n) + 1, 1000 + u64::from(n) * 16),
        ) {
            Ok(_) => assert!(refused.is_empty(), "what was refused before is refused again"),
            Err(error) => {
                assert_eq!(error, StoreError::NoSpace);
                refused.push((copy, from));
            }
        }
    }
    assert!(!refused.is_empty() && store.counters().no_space == refused.len() as u64);
    fold(&mut store, &mut disk);
    let full = store.usage();
    assert_eq!((full.used, full.near_full), (full.capacity, true));
    for round in 0..3u64 {
        for n in 0..capacity / 16 {
            let (copy, from) = (1 + u64::from(n % 2), n / 2 * 16);
            let (from, count) = if n % 3 == 0 { (from, 16) } else { (from + n % 11, 4) };
            run(&mut store, &mut disk, write(&arena, copy, range(from, count), 9000 + round, 1)).unwrap();
        }
    }
    fold(&mut store, &mut disk);
    assert_eq!(store.usage(), full);
    let (copy, from) = refused[0];
    assert_eq!(read(&mut store, &mut disk, &arena, copy, range(from, 16)).unwrap(), vec![0; 16 * BLOCK]);
    run(&mut store, &mut disk, zero(1, 0, 64, 20_000, 0)).unwrap();
    for (copy, from) in refused.into_iter().take(4) {
        run(&mut store, &mut disk, write(&arena, copy, range(from, 16), 20_001, 1)).unwrap();
    }
    fold(&mut store, &mut disk);
    assert_eq!(store.usage().used, full.used);
}

#[test]
fn what_is_overwritten_comes_back_before_the_room_is_gone_however_busy_the_store_is() {
    let (mut disk, arena, mut store) = fresh(1600);
    for n in 0..400 {
        let write = write(&arena, 1, range(n % 24 * 16, 16), u64::from(n) + 1, u64::from(n));
        run(&mut store, &mut disk, write).unwrap();
        // A node asks for a store's room before it hands over: what it does not hand over, the store does not see.
        assert!(store.usage().free() >= 256, "{n}: {:?}", store.usage());
    }
    assert_eq!(store.counters().slot_waits, 0);
}

/// A disk of 1250 chunks of which so many blocks are free, and what was written was written in turns to two copies.
fn nearly_full(free: u64) -> (Disk, Arena, JournaledStore) {
    let (mut disk, arena, mut store) = two_copies(900);
    let mut n = 0;
    while store.usage().free() > free {
        let at = range(n / 2 * 16, 16);
        run(&mut store, &mut disk, write(&arena, 1 + u64::from(n % 2), at, u64::from(n) + 1, 1)).unwrap();
        n += 1;
    }
    fold(&mut store, &mut disk);
    (disk, arena, store)
}

#[test]
fn what_is_discarded_where_little_is_left_comes_back_however_busy_the_store_is() {
    let (mut disk, _arena, mut store) = nearly_full(200);
    let left = store.usage().free();
    run(&mut store, &mut disk, zero(1, 0, 1600, 20_000, 0)).unwrap();
    quiesce(&mut store, &mut disk);
    assert_eq!(store.usage().free(), left + 1600);
}

#[test]
fn what_small_writes_do_not_need_comes_back_before_nodes_miss_it() {
    let (mut disk, arena, mut store) = nearly_full(160 * 16);
    for n in 0..150 {
        run(&mut store, &mut disk, write(&arena, 1, range(n * 16 + 3, 1), 20_000 + u64::from(n), 7)).unwrap();
        assert!(store.usage().free() >= 130 * 16, "{n}: {:?}", store.usage());
    }
}

#[test]
fn after_a_failed_write_nothing_is_done_any_more_until_the_store_is_opened_again() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, write(&arena, 1, range(0, 5), 1, 40)).unwrap();
    for n in 0..6 {
        let op = write(&arena, 1, range(10 + n * 17, 17), 2 + u64::from(n), 500);
        store.submit(NOW, Tag(u64::from(n)), op, &mut |op| disk.submit(op));
    }
    store.end_turn(NOW, &mut |op| disk.submit(op));
    disk.fail_write = true;
    quiesce(&mut store, &mut disk);
    let failed = std::iter::from_fn(|| store.next_completion())
        .filter(|(_, result)| matches!(result, Err(StoreError::Disk(Errno::IO))));
    assert!(failed.count() >= 1 && store.idle());
    let ops = [
        StoreOp::Above { copy: CopyId(1) },
        write(&arena, 1, range(9, 1), 300, 9),
        StoreOp::Sync { copy: CopyId(1) },
        StoreOp::Flatten { copy: CopyId(1) },
        snapshot(1, 3, 301),
    ];
    for op in ops {
        assert_eq!(run(&mut store, &mut disk, op).err(), Some(StoreError::Disk(Errno::IO)));
    }
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(4, 1)).unwrap(), block_of(44));
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
