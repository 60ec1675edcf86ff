//! What the seam promises, one promise at a time.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)] // a test: small numbers, and a panic is its way to fail

mod disk;

use conductor_model::{BLOCK, Blocks, Bytes, CopyId, Stamp};
use disk::*;
use driver::{DiskIndex, Done, Op};
use memory::{Arena, Class};
use node_store::simple::{Geometry, MIN_DISK_BYTES, SimpleStore};
use node_store::{
    Held, HeldKind, MAX_IN_FLIGHT, MAX_REQUEST_BLOCKS, Store, StoreDone, StoreError, StoreOp, Tag, View, block_crcs,
};

fn fresh(blocks: usize, copies: u32) -> (Disk, Arena, SimpleStore) {
    let arena = Arena::small(32 << 20);
    let mut disk = Disk::new(blocks * BLOCK, 11);
    let geometry = Geometry::new(Bytes((blocks * BLOCK) as u64), 16, copies).expect("large enough");
    format(&mut disk, &arena, geometry).unwrap();
    let store = open(&mut disk, &arena).unwrap();
    (disk, arena, store)
}

fn create(store: &mut SimpleStore, disk: &mut Disk, copy: u64, blocks: u32) -> Result<StoreDone, StoreError> {
    run(store, disk, StoreOp::Create { copy: CopyId(copy), config: config(1, blocks), parent: None })
}

#[test]
fn a_full_disk_refuses_cleanly_still_rewrites_and_takes_again_what_was_given_back() {
    let (mut disk, arena, mut store) = fresh(1500, 4);
    create(&mut store, &mut disk, 1, 5000).unwrap();
    create(&mut store, &mut disk, 2, 5000).unwrap();
    let capacity = store.usage().capacity.0;
    for n in 0..capacity {
        run(&mut store, &mut disk, write(&arena, 1, range(n, 1), u64::from(n) + 1, u64::from(n))).unwrap();
    }
    let full = store.usage();
    assert_eq!((full.used, full.near_full), (full.capacity, true));
    assert!(store.counters().near_full > 0);
    let beyond = write(&arena, 1, range(capacity, 1), 9000, 1);
    assert_eq!(run(&mut store, &mut disk, beyond).err(), Some(StoreError::NoSpace));
    assert_eq!((store.usage(), store.counters().no_space), (full, 1));
    // Rewriting everything at once needs no more space than there is.
    for (tag, from) in (0..capacity).step_by(MAX_REQUEST_BLOCKS as usize).enumerate() {
        let count = MAX_REQUEST_BLOCKS.min(capacity - from);
        let op = write(&arena, 1, range(from, count), 10_000 + tag as u64, 7_000_000 + u64::from(from));
        store.submit(NOW, Tag(tag as u64), op, &mut |op| disk.submit(op));
    }
    quiesce(&mut store, &mut disk);
    while let Some((_, result)) = store.next_completion() {
        assert!(matches!(result, Ok(StoreDone::Done)));
    }
    assert!(store.counters().space_waits > 0);
    assert_eq!(store.usage(), full);
    let zero = StoreOp::Zero {
        copy: CopyId(1),
        stamp: stamp(20_000),
        at: range(10, 100),
        known_good: Stamp::default(),
        durable: true,
    };
    run(&mut store, &mut disk, zero).unwrap();
    assert_eq!(store.usage().used.0, capacity - 100);
    run(&mut store, &mut disk, write(&arena, 2, range(0, 100), 1, 1)).unwrap();
    assert_eq!(store.usage().used.0, capacity);
    run(&mut store, &mut disk, StoreOp::Delete { copy: CopyId(1) }).unwrap();
    assert_eq!((store.usage().used.0, store.usage().copies), (100, 1));
    drain(&mut store, &mut disk);
    let mut store = open(&mut disk, &arena).unwrap();
    assert_eq!((store.usage().used.0, store.usage().copies), (100, 1));
    assert_eq!(read(&mut store, &mut disk, &arena, 2, range(99, 2)).unwrap()[..BLOCK], block_of(100));
}

#[test]
fn a_write_is_acknowledged_only_when_data_and_record_are_durable() {
    let (mut disk, arena, mut store) = fresh(1200, 4);
    create(&mut store, &mut disk, 1, 100).unwrap();
    for last in 0..2 {
        store.submit(NOW, Tag(1), write(&arena, 1, range(0, 4), 1, 1), &mut |op| disk.submit(op));
        store.end_turn(NOW, &mut |op| disk.submit(op));
        assert_eq!(disk.inflight.len(), 2, "data in one run, and the record, at the same time");
        assert!(disk.inflight.iter().all(|(op, _)| matches!(op, Op::DiskWrite { durable: true, .. })));
        let late = disk.inflight.swap_remove(last);
        let done = disk.step().unwrap();
        store.done(NOW, done, &mut |op| disk.submit(op));
        store.end_turn(NOW, &mut |op| disk.submit(op));
        assert!(store.next_completion().is_none());
        disk.inflight.push(late);
        quiesce(&mut store, &mut disk);
        assert!(matches!(store.next_completion(), Some((Tag(1), Ok(StoreDone::Done)))));
    }
}

#[test]
fn records_that_wait_go_together() {
    let (mut disk, arena, mut store) = fresh(1200, 4);
    create(&mut store, &mut disk, 1, 500).unwrap();
    drain(&mut store, &mut disk);
    let before = store.counters().groups;
    for n in 0..100 {
        store.submit(NOW, Tag(n as u64), write(&arena, 1, range(n, 1), u64::from(n) + 1, 1), &mut |op| disk.submit(op));
    }
    quiesce(&mut store, &mut disk);
    assert_eq!(store.counters().groups, before + 1);
    assert_eq!(std::iter::from_fn(|| store.next_completion()).filter(|(_, r)| r.is_ok()).count(), 100);
}

#[test]
fn large_io_is_one_disk_operation_and_fragments_read_back_in_order() {
    let (mut disk, arena, mut store) = fresh(4000, 4);
    create(&mut store, &mut disk, 1, 1000).unwrap();
    drain(&mut store, &mut disk);
    store.submit(NOW, Tag(1), write(&arena, 1, range(0, 272), 1, 0), &mut |op| disk.submit(op));
    assert_eq!(disk.inflight.len(), 1);
    quiesce(&mut store, &mut disk);
    assert!(store.next_completion().is_some());
    let into = arena.take(272 * BLOCK, Class::Client).unwrap();
    let op = StoreOp::Read { copy: CopyId(1), view: View::Live, at: range(0, 272), into };
    store.submit(NOW, Tag(2), op, &mut |op| disk.submit(op));
    assert!(matches!(&disk.inflight[..], [(Op::DiskRead { len, .. }, _)] if *len == 272 * BLOCK));
    quiesce(&mut store, &mut disk);
    assert!(store.next_completion().is_some());
    for n in (0..272).step_by(3) {
        run(&mut store, &mut disk, write(&arena, 1, range(n, 1), 2 + u64::from(n), 5000 + u64::from(n))).unwrap();
    }
    let all = read(&mut store, &mut disk, &arena, 1, range(0, 272)).unwrap();
    for (n, block) in (0u64..).zip(all.chunks(BLOCK)) {
        assert_eq!(block, block_of(if n % 3 == 0 { 5000 + n } else { n }));
    }
}

#[test]
fn a_copy_remembers_the_newest_joined_configuration_and_refuses_an_older_one() {
    let (mut disk, arena, mut store) = fresh(1200, 4);
    create(&mut store, &mut disk, 1, 100).unwrap();
    let join = |epoch, blocks| StoreOp::Join { copy: CopyId(1), config: config(epoch, blocks) };
    run(&mut store, &mut disk, join(5, 200)).unwrap();
    let older = run(&mut store, &mut disk, join(4, 200)).err();
    assert!(matches!(older, Some(StoreError::OlderEpoch { .. })));
    assert_eq!(run(&mut store, &mut disk, join(6, 199)).err(), Some(StoreError::BadConfiguration(CopyId(1))));
    run(&mut store, &mut disk, write(&arena, 1, range(199, 1), 1, 1)).unwrap();
    drain(&mut store, &mut disk);
    let store = open(&mut disk, &arena).unwrap();
    assert_eq!(store.copies(), [(CopyId(1), config(5, 200))]);
}

#[test]
fn creating_twice_keeps_the_first_and_its_data() {
    let (mut disk, arena, mut store) = fresh(1200, 2);
    create(&mut store, &mut disk, 1, 100).unwrap();
    run(&mut store, &mut disk, write(&arena, 1, range(5, 1), 1, 1)).unwrap();
    create(&mut store, &mut disk, 1, 100).unwrap();
    assert_eq!(read(&mut store, &mut disk, &arena, 1, range(5, 1)).unwrap(), block_of(1));
    create(&mut store, &mut disk, 2, 100).unwrap();
    assert_eq!(create(&mut store, &mut disk, 3, 100).err(), Some(StoreError::TooManyCopies));
    let uneven = conductor_model::Configuration { size: Bytes(4097), ..config(1, 1) };
    let op = StoreOp::Create { copy: CopyId(2), config: uneven, parent: None };
    assert_eq!(run(&mut store, &mut disk, op).err(), Some(StoreError::BadConfiguration(CopyId(2))));
}

#[test]
fn above_lists_writes_and_zeroes_until_known_good_passes_them() {
    let (mut disk, arena, mut store) = fresh(1200, 4);
    create(&mut store, &mut disk, 1, 100).unwrap();
    run(&mut store, &mut disk, write(&arena, 1, range(3, 2), 1, 1)).unwrap();
    let at = range(50, 10);
    run(
        &mut store,
        &mut disk,
        StoreOp::Zero { copy: CopyId(1), stamp: stamp(2), at, known_good: Stamp::default(), durable: true },
    )
    .unwrap();
    let above = |store: &mut SimpleStore, disk: &mut Disk| match run(store, disk, StoreOp::Above { copy: CopyId(1) }) {
        Ok(StoreDone::Above { known_good, held }) => (known_good, held),
        other => panic!("{other:?}"),
    };
    let write = Held { stamp: stamp(1), at: range(3, 2), kind: HeldKind::Write };
    let zero = Held { stamp: stamp(2), at, kind: HeldKind::Zero };
    assert_eq!(above(&mut store, &mut disk), (Stamp::default(), vec![write, zero]));
    drain(&mut store, &mut disk);
    let mut store = open(&mut disk, &arena).unwrap();
    assert_eq!(above(&mut store, &mut disk), (Stamp::default(), vec![write, zero]));
    run(&mut store, &mut disk, StoreOp::KnownGood { copy: CopyId(1), stamp: stamp(1) }).unwrap();
    assert_eq!(above(&mut store, &mut disk), (stamp(1), vec![zero]));
}

#[test]
fn bad_requests_are_answered_and_touch_nothing() {
    let (mut disk, arena, mut store) = fresh(1200, 4);
    create(&mut store, &mut disk, 1, 100).unwrap();
    drain(&mut store, &mut disk);
    let into = |blocks: usize| arena.take(blocks * BLOCK, Class::Client).unwrap();
    let read = |copy, at, blocks| StoreOp::Read { copy: CopyId(copy), view: View::Live, at, into: into(blocks) };
    let cases = [
        (read(2, range(0, 1), 1), StoreError::NoSuchCopy(CopyId(2))),
        (read(1, range(100, 1), 1), StoreError::OutOfRange { copy: CopyId(1), at: range(100, 1) }),
        (read(1, range(99, 2), 2), StoreError::OutOfRange { copy: CopyId(1), at: range(99, 2) }),
        (
            read(1, range(u32::MAX, u32::MAX), 1),
            StoreError::OutOfRange { copy: CopyId(1), at: range(u32::MAX, u32::MAX) },
        ),
        (read(1, range(0, 2), 1), StoreError::BadLength { at: range(0, 2) }),
        (write(&arena, 2, range(0, 1), 1, 1), StoreError::NoSuchCopy(CopyId(2))),
        (write(&arena, 1, range(100, 1), 1, 1), StoreError::OutOfRange { copy: CopyId(1), at: range(100, 1) }),
        (StoreOp::Above { copy: CopyId(9) }, StoreError::NoSuchCopy(CopyId(9))),
        (StoreOp::Delete { copy: CopyId(9) }, StoreError::NoSuchCopy(CopyId(9))),
        (
            StoreOp::Zero { copy: CopyId(1), stamp: stamp(1), at: range(0, 0), known_good: stamp(0), durable: true },
            StoreError::OutOfRange { copy: CopyId(1), at: range(0, 0) },
        ),
    ];
    for (op, error) in cases {
        assert_eq!(run(&mut store, &mut disk, op).err(), Some(error));
    }
    let data = data(&arena, [1].into_iter());
    let crcs = block_crcs(&data).into_iter().chain([0]).collect();
    let op = StoreOp::Write {
        copy: CopyId(1),
        stamp: stamp(1),
        at: range(0, 1),
        data,
        crcs,
        known_good: stamp(0),
        durable: true,
    };
    assert_eq!(run(&mut store, &mut disk, op).err(), Some(StoreError::BadLength { at: range(0, 1) }));
    assert!(store.idle() && store.usage().used.0 == 0);
}

#[test]
fn more_in_flight_than_the_limit_is_refused() {
    let (mut disk, _arena, mut store) = fresh(1200, 4);
    create(&mut store, &mut disk, 1, 5000).unwrap();
    let zero = || StoreOp::Zero {
        copy: CopyId(1),
        stamp: stamp(1),
        at: range(0, 1),
        known_good: Stamp::default(),
        durable: true,
    };
    for n in 0..=MAX_IN_FLIGHT {
        store.submit(NOW, Tag(n as u64), zero(), &mut |op| disk.submit(op));
    }
    assert_eq!(store.next_completion().map(|(_, r)| r.err()), Some(Some(StoreError::Busy)));
    quiesce(&mut store, &mut disk);
    assert_eq!(std::iter::from_fn(|| store.next_completion()).count(), MAX_IN_FLIGHT);
}

#[test]
fn a_completion_of_something_else_is_counted_and_ignored() {
    let (mut disk, _arena, mut store) = fresh(1200, 4);
    create(&mut store, &mut disk, 1, 100).unwrap();
    for op in [
        Op::DiskSync { disk: DISK, tag: 0 },
        Op::DiskSync { disk: DISK, tag: u64::MAX },
        Op::DiskSync { disk: DiskIndex(9), tag: 2 << 56 },
    ] {
        store.done(NOW, Done { op, result: Ok(0) }, &mut |op| disk.submit(op));
    }
    assert_eq!(store.counters().strays, 3);
}

#[test]
fn the_usual_division_leaves_nearly_all_of_a_disk_to_data() {
    assert!(Geometry::of_disk(Bytes(MIN_DISK_BYTES - 1)).is_none());
    for (gib, least) in [(1u64, 96), (16, 96), (1024, 98), (16 << 10, 98)] {
        let geometry = Geometry::of_disk(Bytes(gib << 30)).unwrap();
        let percent = u64::from(geometry.capacity()) * 100 / ((gib << 30) / BLOCK as u64);
        assert!(percent >= least, "{percent} % of {gib} GiB");
    }
    assert!(Geometry::of_disk(Bytes(MIN_DISK_BYTES)).unwrap().capacity() > 12_000);
}

#[test]
fn what_is_held_is_listed_run_by_run() {
    let (mut disk, arena, mut store) = fresh(1500, 4);
    create(&mut store, &mut disk, 1, 2000).unwrap();
    for (stamp, (from, count)) in [(3, 2), (5, 1), (513, 1), (600, 272), (872, 5)].into_iter().enumerate() {
        run(&mut store, &mut disk, write(&arena, 1, range(from, count), stamp as u64 + 1, 1)).unwrap();
    }
    let mut runs = Vec::new();
    let mut from = 0;
    while let Some(run) = store.next_held(CopyId(1), Blocks(from)) {
        runs.push((run.from.0, run.count.0));
        from = run.from.0 + run.count.0;
    }
    assert_eq!(runs, [(3, 3), (513, 1), (600, 272), (872, 5)]);
    assert_eq!(store.next_held(CopyId(1), Blocks(4)), Some(range(4, 2)));
    assert_eq!((store.held(CopyId(1)), store.held(CopyId(9))), (Some(Blocks(281)), None));
    assert_eq!(store.next_held(CopyId(9), Blocks(0)), None);
    assert_eq!(store.identity().disk, store.disk_id());
}
