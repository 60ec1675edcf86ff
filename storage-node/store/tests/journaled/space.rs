//! Full disks, and what comes back when it is not needed any more.

use super::disk::*;
use super::{BLOCKS, create, fold, fresh, place_of, snapshot, two_copies, zero};
use conductor_model::{BLOCK, CopyId, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId};
use driver::Span;
use memory::Arena;
use node_store::journaled::JournaledStore;
use node_store::{Parent, Store, StoreError, StoreOp, Tag};

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
fn where_places_for_pages_are_few_a_merge_ends_and_leaves_those_that_records_need() {
    const COPIES: u64 = 120;
    const LEAF: u32 = 127 * 16;
    const LEAVES: u32 = 400;
    let arena = Arena::small(32 << 20);
    let geometry = journaled_geometry(4000, 1200, 24_000, COPIES as u32);
    let mut disk = Disk::new(geometry.size().0 as usize, 12);
    Journaled::format(&mut disk, &arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    let configured = |copy: u64, epoch| {
        let shard = ShardId { volume: VolumeId(copy as u32), index: ShardIndex(0) };
        conductor_model::Configuration { shard, ..config(epoch, LEAVES * LEAF) }
    };
    for copy in 1..=COPIES {
        let op = StoreOp::Create { copy: CopyId(copy), config: configured(copy, 1), parent: None };
        run(&mut store, &mut disk, op).unwrap();
    }
    // A page of the first copy's map for each block, all of them below a snapshot.
    for leaf in 0..LEAVES {
        let seed = u64::from(leaf) + 7;
        run(&mut store, &mut disk, write(&arena, 1, range(leaf * LEAF, 1), u64::from(leaf) + 1, seed)).unwrap();
    }
    let (copy, snapshot) = (CopyId(1), SnapshotId(1));
    let op = StoreOp::Snapshot { copy, stamp: stamp(1000), snapshot, known_good: Stamp::default() };
    run(&mut store, &mut disk, op).unwrap();
    fold(&mut store, &mut disk);
    let mut refused = 0;
    for leaf in 0..20 {
        for copy in 2..=COPIES {
            let op = write(&arena, copy, range(leaf * LEAF, 1), u64::from(leaf) + 1, 5);
            refused += u64::from(run(&mut store, &mut disk, op).is_err());
        }
        fold(&mut store, &mut disk);
    }
    assert!(refused > 100 && store.usage().free() == 0, "{refused} refused");
    run(&mut store, &mut disk, StoreOp::DropSnapshot { copy, snapshot }).unwrap();
    for _ in 0..60 {
        quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
    }
    assert!(store.is_all_home(), "the merge is over");
    for copy in 1..=COPIES {
        run(&mut store, &mut disk, StoreOp::Join { copy: CopyId(copy), config: configured(copy, 2) }).unwrap();
    }
    fold(&mut store, &mut disk);
    assert_eq!(store.failure(), None);
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for leaf in 0..LEAVES {
        let seed = u64::from(leaf) + 7;
        assert_eq!(read(&mut store, &mut disk, &arena, 1, range(leaf * LEAF, 1)).unwrap(), block_of(seed));
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
    // Whether its chunk is its own is not known, and there is no other.
    assert!(matches!(run(&mut store, &mut disk, again(9000)), Err(StoreError::NoSpace)));
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

/// Seven snapshots of a volume with many shards, some of which have a clone; then the oldest, the newest and one in between are deleted, one
/// behind the other, for all shards at once.
#[test]
fn snapshots_of_many_copies_go_at_once_and_nothing_that_others_need() {
    const COPIES: u64 = 400;
    const NAMES: u64 = 7;
    let arena = Arena::small(32 << 20);
    let geometry = journaled_geometry(16_000, 8000, 60_000, 2 * COPIES as u32);
    let mut disk = Disk::new(geometry.size().0 as usize, 13);
    Journaled::format(&mut disk, &arena, geometry).unwrap();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    let configured = |copy: u64| {
        let shard = ShardId { volume: VolumeId(copy as u32), index: ShardIndex(0) };
        conductor_model::Configuration { shard, ..config(1, 200) }
    };
    let make = |copy: u64, parent| StoreOp::Create { copy: CopyId(copy), config: configured(copy), parent };
    (1..=COPIES).for_each(|copy| drop(run(&mut store, &mut disk, make(copy, None)).unwrap()));
    // A third of the shards is written between two snapshots, each a block of its own and one that is written again.
    let seed = |copy: u64, name: u64| copy * 100 + name;
    for name in 1..=NAMES {
        for copy in 1..=COPIES {
            if copy % 3 == name % 3 {
                for at in [name as u32, 100] {
                    run(&mut store, &mut disk, write(&arena, copy, range(at, 1), 2 * name, seed(copy, name))).unwrap();
                }
            }
            run(&mut store, &mut disk, snapshot(copy, name, 2 * name + 1)).unwrap();
        }
    }
    for copy in (1..=COPIES).filter(|copy| copy % 5 == 0) {
        let parent = Some(Parent { copy: CopyId(copy), snapshot: SnapshotId(4) });
        run(&mut store, &mut disk, make(COPIES + copy, parent)).unwrap();
    }
    fold(&mut store, &mut disk);
    for gone in [1, NAMES, 3] {
        for copy in 1..=COPIES {
            let drop = StoreOp::DropSnapshot { copy: CopyId(copy), snapshot: SnapshotId(gone) };
            run(&mut store, &mut disk, drop).unwrap();
        }
        for _ in 0..10 {
            quiesce_at(NOW + Span::millis(5000), &mut store, &mut disk);
        }
        assert!(store.is_all_home(), "layers are left of snapshot {gone}");
    }
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    for copy in 1..=COPIES {
        assert_eq!(store.snapshots(CopyId(copy)), [2, 4, 5, 6].map(SnapshotId));
        for clone in [false, true] {
            if clone && copy % 5 != 0 {
                continue;
            }
            let (of, upto) = if clone { (COPIES + copy, 4) } else { (copy, NAMES) };
            let all = read(&mut store, &mut disk, &arena, of, range(0, 101)).unwrap();
            let written: Vec<u64> = (1..=upto).filter(|name| copy % 3 == name % 3).collect();
            for at in 0..101_u64 {
                let name = if at == 100 { written.last().copied() } else { written.iter().copied().find(|n| *n == at) };
                let expected = name.map_or_else(|| vec![0; BLOCK], |name| block_of(seed(copy, name)).to_vec());
                assert_eq!(all[at as usize * BLOCK..][..BLOCK], expected[..], "copy {of}, block {at}");
            }
        }
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

/// Room is left for two chunks, which a copy-range of blocks 0 to 7 is promised, and a block beside it is written: there is only the chunk
/// that blocks 0 to 3 are in, which the copy-range needs no more.
#[test]
fn a_write_beside_a_copy_range_finds_the_chunk_that_it_was_promised() {
    for seed in 1..=20 {
        let (mut disk, arena, mut store) = fresh(500);
        run(&mut store, &mut disk, write(&arena, 1, range(0, 16), 1, 100)).unwrap();
        run(&mut store, &mut disk, snapshot(1, 8, 2)).unwrap();
        run(&mut store, &mut disk, write(&arena, 1, range(0, 4), 3, 200)).unwrap();
        fold(&mut store, &mut disk);
        let own = place_of(&mut store, &mut disk, &arena, 1, 0);
        let mut fillers = (1..25).map(|chunk| (2, chunk)).chain((1..25).map(|chunk| (1, chunk))).zip(10..);
        while store.usage().free() > 2 * 16 {
            let ((copy, chunk), sequence) = fillers.next().unwrap();
            run(&mut store, &mut disk, write(&arena, copy, range(chunk * 16, 16), sequence, 1)).unwrap();
        }
        fold(&mut store, &mut disk);
        assert_eq!(store.usage().free(), 2 * 16);
        // The order in which the disk ends things decides whether the copy-range is folded before the write is in the journal.
        disk.random = Random(seed);
        let from = Parent { copy: CopyId(1), snapshot: SnapshotId(8) };
        let known_good = Stamp::default();
        let share = StoreOp::Share { copy: CopyId(1), stamp: stamp(100), at: range(0, 8), from, known_good };
        for (tag, op) in [(1, share), (2, write(&arena, 1, range(12, 1), 101, 300))] {
            store.submit(NOW, Tag(tag), op, &mut |op| disk.submit(op));
            store.end_turn(NOW, &mut |op| disk.submit(op));
        }
        quiesce(&mut store, &mut disk);
        let mut over: Vec<u64> = std::iter::from_fn(|| store.next_completion())
            .map(|(Tag(tag), result)| result.map(|_| tag).unwrap())
            .collect();
        over.sort_unstable();
        assert_eq!(over, [1, 2]);
        fold(&mut store, &mut disk);
        assert_eq!(place_of(&mut store, &mut disk, &arena, 1, 12), own + 12 * BLOCK, "seed {seed}");
        disk.crash();
        let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
        let all = read(&mut store, &mut disk, &arena, 1, range(0, 16)).unwrap();
        for (n, block) in (0u64..).zip(all.chunks(BLOCK)) {
            assert_eq!(block, block_of(if n == 12 { 300 } else { 100 + n }), "seed {seed}: block {n}");
        }
    }
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
    assert_eq!(store.counters().space_waits, 0);
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
