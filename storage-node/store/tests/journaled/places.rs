//! Disks whose places for metadata pages run out long before their chunks do.

use super::disk::*;
use super::{fold, snapshot};
use conductor_model::{BLOCK, CopyId, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId};
use driver::{Op, Span};
use memory::Arena;
use node_store::journaled::{JournaledStore, Kind, Opening, Tuning, kind_of};
use node_store::{OpenOptions, Store, StoreDone, StoreError, StoreOp, Tag};

/// Blocks whose entries are in one page of a map.
const LEAF: u32 = 127 * 16;

fn made(copies: u64, blocks: u32, (places, data_blocks): (u32, u32)) -> (Disk, Arena, JournaledStore) {
    let arena = Arena::small(64 << 20);
    let geometry = journaled_geometry(4000, places, data_blocks, copies as u32 + 4);
    let mut disk = Disk::new(geometry.size().0 as usize, 11);
    Journaled::format(&mut disk, &arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for copy in 1..=copies {
        let shard = ShardId { volume: VolumeId(copy as u32), index: ShardIndex(0) };
        let config = conductor_model::Configuration { shard, ..config(1, blocks) };
        run(&mut store, &mut disk, StoreOp::Create { copy: CopyId(copy), config, parent: None }).unwrap();
    }
    fold(&mut store, &mut disk);
    (disk, arena, store)
}

/// Writes a block into each page of the maps of these copies, page after page, until the disk says that it is full.
fn fill_up(
    disk: &mut Disk,
    arena: &Arena,
    store: &mut JournaledStore,
    copies: std::ops::RangeInclusive<u64>,
    leaves: u32,
) -> u64 {
    let mut written = 0;
    for leaf in 0..leaves {
        for copy in copies.clone() {
            if store.usage().free() == 0 {
                return written;
            }
            let op = write(arena, copy, range(leaf * LEAF, 1), u64::from(leaf) + 1, u64::from(leaf) * 1000 + copy);
            run(store, disk, op).unwrap();
            written += 1;
        }
        fold(store, disk);
    }
    written
}

fn zero(copy: u64, from: u32, count: u32, sequence: u64) -> StoreOp {
    let (stamp, known_good) = (stamp(sequence), stamp(0));
    StoreOp::Zero { copy: CopyId(copy), stamp, at: range(from, count), known_good, durable: true }
}

#[test]
fn a_discard_of_any_length_is_done_where_places_are_few_and_gives_them_back() {
    const COPIES: u64 = 60;
    const LEAVES: u32 = 40;
    // The records of its 12,000 chunks alone take more pages than there are places left.
    let (mut disk, arena, mut store) = made(COPIES, LEAVES * LEAF, (1200, 192_000));
    let written = fill_up(&mut disk, &arena, &mut store, 1..=COPIES, LEAVES);
    fold(&mut store, &mut disk);
    assert!(written > 500 && store.usage().free() == 0, "{written} written, {:?}", store.usage());
    // First where nothing is.
    let from = (LEAVES - 9) * LEAF + 7;
    run(&mut store, &mut disk, zero(COPIES, from, 8 * LEAF, 900)).unwrap();
    let before = store.counters().checkpoints;
    run(&mut store, &mut disk, zero(COPIES, 0, LEAVES * LEAF, 901)).unwrap();
    let folds = store.counters().checkpoints - before;
    assert!((1..600).contains(&folds), "{folds} folds for {} chunks", LEAVES * 127);
    let Ok(StoreDone::Above { held, .. }) = run(&mut store, &mut disk, StoreOp::Above { copy: CopyId(COPIES) }) else {
        panic!()
    };
    let of_it: Vec<_> = held.iter().filter(|held| held.stamp == stamp(901)).map(|held| held.at).collect();
    assert_eq!(of_it, [range(0, LEAVES * LEAF)], "it is one change");
    for copy in 1..COPIES {
        run(&mut store, &mut disk, zero(copy, 0, LEAVES * LEAF, 901)).unwrap();
    }
    // What hides older blocks of other copies stays until all are known to have the discard.
    for copy in 1..=COPIES {
        let known_good = StoreOp::KnownGood { copy: CopyId(copy), stamp: stamp(902) };
        run(&mut store, &mut disk, known_good).unwrap();
        run(&mut store, &mut disk, zero(copy, 0, LEAVES * LEAF, 902)).unwrap();
    }
    fold(&mut store, &mut disk);
    assert_eq!(store.failure(), None);
    assert!(store.usage().free() > 0);
    drop(store);
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for (copy, leaf) in [(1, 0), (COPIES, 0), (COPIES / 2, 9)] {
        assert_eq!(read(&mut store, &mut disk, &arena, copy, range(leaf * LEAF, 1)).unwrap(), vec![0; BLOCK]);
    }
    assert!(fill_up(&mut disk, &arena, &mut store, 1..=COPIES, LEAVES) + 100 > written, "all came back");
}

#[test]
fn writes_pass_a_discard_that_waits_for_places() {
    const COPIES: u64 = 60;
    const LEAVES: u32 = 40;
    let (mut disk, arena, mut store) = made(COPIES, LEAVES * LEAF, (1200, 192_000));
    fill_up(&mut disk, &arena, &mut store, 1..=COPIES, LEAVES);
    fold(&mut store, &mut disk);
    store.submit(NOW, Tag(0), zero(1, 0, LEAVES * LEAF, 900), &mut |op| disk.submit(op));
    store.end_turn(NOW, &mut |op| disk.submit(op));
    store.submit(NOW, Tag(1), write(&arena, 2, range(3, 1), 901, 77), &mut |op| disk.submit(op));
    quiesce(&mut store, &mut disk);
    let over: Vec<Tag> =
        std::iter::from_fn(|| store.next_completion()).map(|(tag, result)| result.map(|_| tag).unwrap()).collect();
    assert_eq!(over, [Tag(1), Tag(0)]);
    assert_eq!(read(&mut store, &mut disk, &arena, 2, range(3, 1)).unwrap(), block_of(77));
}

/// Above a snapshot a discard takes pages for good: what hides the snapshot's blocks.
#[test]
fn a_store_says_how_many_pages_discards_may_still_take_before_it_refuses_one() {
    const LEAVES: u32 = 400;
    let (mut disk, arena, mut store) = made(2, LEAVES * LEAF, (640, 24_000));
    let quarter = LEAVES / 4;
    for leaf in 0..quarter {
        run(&mut store, &mut disk, write(&arena, 1, range(leaf * LEAF, 1), 1, leaf.into())).unwrap();
    }
    fold(&mut store, &mut disk);
    run(&mut store, &mut disk, snapshot(1, 9, 2)).unwrap();
    fold(&mut store, &mut disk);
    fill_up(&mut disk, &arena, &mut store, 2..=2, LEAVES);
    fold(&mut store, &mut disk);
    assert!(store.usage().free() == 0);
    let mut discarded = 0;
    while store.leeway().pages >= 7 {
        assert!(discarded < quarter, "it is told in time");
        run(&mut store, &mut disk, zero(1, discarded * LEAF, LEAF, 10 + u64::from(discarded))).unwrap();
        discarded += 1;
        fold(&mut store, &mut disk);
    }
    assert!(discarded > 10, "{discarded}");
    // What is under way when it says so still has its places, and what cannot have one is refused, and stops nothing.
    run(&mut store, &mut disk, zero(1, discarded * LEAF, LEAF, 500)).unwrap();
    let refused = (discarded + 1..quarter)
        .find_map(|leaf| run(&mut store, &mut disk, zero(1, leaf * LEAF, LEAF, 501 + u64::from(leaf))).err());
    assert_eq!(refused, Some(StoreError::NoSpace));
    fold(&mut store, &mut disk);
    assert_eq!(store.failure(), None);
    run(&mut store, &mut disk, StoreOp::Delete { copy: CopyId(2) }).unwrap();
    for _ in 0..4 {
        quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
    }
    run(&mut store, &mut disk, zero(1, 0, LEAVES * LEAF, 2000)).unwrap();
    fold(&mut store, &mut disk);
    assert!(store.leeway().pages > 100, "{:?}", store.leeway());
}

/// A snapshot of a volume puts an entry into the list above K of each of its copies, be it empty before.
#[test]
fn snapshots_of_many_idle_copies_find_places_for_what_is_listed_of_them() {
    const IDLE: u64 = 400;
    const WRITERS: u64 = 60;
    const LEAVES: u32 = 64;
    let (mut disk, arena, mut store) = made(IDLE + WRITERS, LEAVES * LEAF, (2000, 40_000));
    fill_up(&mut disk, &arena, &mut store, IDLE + 1..=IDLE + WRITERS, LEAVES);
    fold(&mut store, &mut disk);
    assert!(store.usage().free() == 0);
    let mut taken = 0;
    for copy in 1..=IDLE {
        match run(&mut store, &mut disk, snapshot(copy, 7, 1)) {
            Ok(_) => taken += 1,
            Err(error) => assert_eq!(error, StoreError::NoSpace),
        }
    }
    assert_eq!(taken, IDLE, "there was room");
    for _ in 0..2 {
        quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
        assert_eq!(store.failure(), None);
        drop(store);
        disk.crash();
        store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    }
    assert_eq!(store.snapshots(CopyId(IDLE)), [SnapshotId(7)]);
}

/// Where places are fewer than that, a snapshot is refused before anything is noted down, and no fold fails for it.
#[test]
fn a_snapshot_or_a_rollback_that_finds_no_place_is_refused() {
    const LEAVES: u32 = 400;
    const COPIES: u64 = 8;
    let (mut disk, arena, mut store) = made(COPIES, LEAVES * LEAF, (640, 24_000));
    for leaf in 0..LEAVES / 4 {
        run(&mut store, &mut disk, write(&arena, 1, range(leaf * LEAF, 1), 1, leaf.into())).unwrap();
    }
    fold(&mut store, &mut disk);
    run(&mut store, &mut disk, snapshot(1, 9, 2)).unwrap();
    fold(&mut store, &mut disk);
    fill_up(&mut disk, &arena, &mut store, 2..=2, LEAVES);
    fold(&mut store, &mut disk);
    let mut leaf = 0;
    while run(&mut store, &mut disk, zero(1, leaf * LEAF, LEAF, 10 + u64::from(leaf))).is_ok() {
        leaf += 1;
        fold(&mut store, &mut disk);
    }
    // Each page has the records of 63 layers.
    let (mut taken, mut refused) = (0, false);
    for name in 10..110 {
        for copy in 2..=COPIES {
            match run(&mut store, &mut disk, snapshot(copy, name, 1000 + name)) {
                Ok(_) => taken += 1,
                Err(error) => refused |= error == StoreError::NoSpace,
            }
        }
        fold(&mut store, &mut disk);
        assert_eq!(store.failure(), None, "{taken} taken");
    }
    assert!(refused && taken > 50, "{taken} taken");
    let (copy, name) = (CopyId(1), SnapshotId(9));
    let rollback = StoreOp::Rollback { copy, stamp: stamp(5000), snapshot: name, known_good: stamp(0) };
    assert_eq!(run(&mut store, &mut disk, rollback).err(), Some(StoreError::NoSpace));
    assert_eq!(store.snapshots(copy), [name]);
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    fold(&mut store, &mut disk);
    assert_eq!(store.failure(), None);
}

/// What the fold of a discard asks of the disk.
#[derive(Default, Debug)]
struct Folded {
    /// Reads of pages, and how many of them were out at a time.
    reads: u64,
    together: usize,
    /// Turns in which pages were waited for and nothing else, and the pages that were, of all of them.
    turns: u64,
    awaited: u64,
}

/// Writes to all chunks of a copy, in an order as of a client that writes little at a time here and there, opens the store again with the
/// smallest cache, and discards all, a tenth at a time.
fn discard_all(chunks: u32, discarded_per_fold: u32, mut each: impl FnMut(&JournaledStore, u64)) -> (Folded, u64) {
    let (mut disk, arena, mut store) = made(1, 16 * chunks, (8000, 16 * chunks + 3000));
    for n in 0..chunks {
        let chunk = u64::from(n) * 7919 % u64::from(chunks);
        run(&mut store, &mut disk, write(&arena, 1, range(chunk as u32 * 16, 1), u64::from(n) + 1, 1)).unwrap();
        if n % 1000 == 999 {
            fold(&mut store, &mut disk);
        }
    }
    fold(&mut store, &mut disk);
    drop(store);
    let size = conductor_model::Bytes(disk.visible.len() as u64);
    let options = OpenOptions { disk: DISK, size, cluster: Some(0xc1), node: Some(conductor_model::NodeId(1)) };
    let tuning = Tuning { cache: conductor_model::Bytes(0), discarded_per_fold, ..Tuning::default() };
    let mut opening = Opening::start(options, tuning, &arena, &mut |op| disk.submit(op)).unwrap();
    let mut store = loop {
        let done = disk.step().expect("an opening waits for its disk");
        if let Some(result) = opening.done(NOW, done, &mut |op| disk.submit(op)) {
            break result.unwrap();
        }
    };
    let before = store.counters().checkpoints;
    for n in 0..10 {
        let op = zero(1, n * chunks / 10 * 16, chunks / 10 * 16, u64::from(chunks + n) + 1);
        store.submit(NOW, Tag(n.into()), op, &mut |op| disk.submit(op));
    }
    let (mut folded, mut now, mut over) = (Folded::default(), NOW, 0);
    while over < 10 || !store.is_all_home() {
        store.end_turn(now, &mut |op| disk.submit(op));
        while let Some((_, result)) = store.next_completion() {
            result.unwrap();
            over += 1;
        }
        each(&store, store.counters().checkpoints - before);
        let is_load = |op: &Op| matches!(op, Op::DiskRead { tag, .. } if kind_of(*tag) == Some(Kind::Pages));
        let loads = disk.inflight.iter().filter(|(op, _)| is_load(op)).count();
        folded.together = folded.together.max(loads);
        if loads > 0 && loads == disk.inflight.len() {
            folded.turns += 1;
            folded.awaited += loads as u64;
        }
        match disk.step() {
            Some(done) => {
                folded.reads += u64::from(is_load(&done.op));
                store.done(now, done, &mut |op| disk.submit(op));
            }
            None => now = store.next_deadline().expect("it goes on").max(now),
        }
    }
    (folded, store.counters().checkpoints - before)
}

#[test]
fn the_records_of_what_is_discarded_are_read_many_at_a_time() {
    let (folded, _) = discard_all(24_000, u32::MAX, |_, _| {});
    assert!(folded.together > 16 && folded.awaited > 8 * folded.turns, "{folded:?}");
}

#[test]
fn no_fold_has_more_to_discard_than_its_bound() {
    let mut most = 0;
    let (folded, folds) = discard_all(3_000, 600, |store, _| most = most.max(store.discarding()));
    assert!(most <= 600 && folds >= 5, "{most} chunks in a generation, {folds} folds, {folded:?}");
}

/// What is lost takes a page of the map for every 8 MiB that it is strewn over, for good.
#[test]
fn what_is_lost_is_refused_before_there_is_no_page_for_it() {
    const LEAVES: u32 = 400;
    let (mut disk, arena, mut store) = made(3, LEAVES * LEAF, (640, 24_000));
    let lose = |copy: u64, leaf: u32| {
        let (stamp, known_good) = (stamp(5), Stamp::default());
        StoreOp::Lose { copy: CopyId(copy), stamp, at: range(leaf * LEAF + 7, 1), known_good }
    };
    let all = (1..=2).flat_map(|copy| (0..LEAVES).map(move |leaf| (copy, leaf)));
    let mut lost = 0;
    for (copy, leaf) in all.clone() {
        match run(&mut store, &mut disk, lose(copy, leaf)) {
            Ok(_) => lost += 1,
            Err(StoreError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!((100..2 * LEAVES as usize).contains(&lost), "{lost}");
    fold(&mut store, &mut disk);
    assert_eq!(store.failure(), None);
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for (copy, leaf) in all.take(lost) {
        let block = read(&mut store, &mut disk, &arena, copy, range(leaf * LEAF + 7, 1));
        assert!(matches!(block, Err(StoreError::Corrupt { .. })), "{copy}, {leaf}");
    }
    assert!(matches!(run(&mut store, &mut disk, lose(3, LEAVES - 1)), Err(StoreError::NoSpace)));
    // And a discard gives them back.
    for copy in 1..=2 {
        run(&mut store, &mut disk, StoreOp::KnownGood { copy: CopyId(copy), stamp: stamp(902) }).unwrap();
        run(&mut store, &mut disk, zero(copy, 0, LEAVES * LEAF, 902)).unwrap();
    }
    fold(&mut store, &mut disk);
    assert!(matches!(run(&mut store, &mut disk, lose(3, LEAVES - 1)), Ok(StoreDone::Done)));
}
