//! What rots, cannot be read or cannot be written: said, read around and put right, and never returned.

use super::disk::*;
use super::{fold, fresh, place_of, repair, snapshot};
use conductor_model::{BLOCK, Blocks, CopyId, ShardId, ShardIndex, SnapshotId, VolumeId};
use driver::{Errno, Op, Span};
use memory::Arena;
use node_store::journaled::{JournaledStore, Opening, Tuning};
use node_store::{OpenError, OpenOptions, Parent, Store, StoreError, StoreOp, Tag, block_crcs};

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
    // At once, after a second, and never.
    for (failures, seconds, whole) in [(1, 0, true), (2, 1, true), (4, 3, true), (u32::MAX, 3, false)] {
        let (mut disk, arena, mut store) = fresh(2000);
        run(&mut store, &mut disk, write(&arena, 1, range(5, 1), 1, 100)).unwrap();
        let at = place_of(&mut store, &mut disk, &arena, 1, 5);
        disk.fail_reads = failures;
        let mut waited = 0;
        quiesce_at(NOW + Span::millis(1500), &mut store, &mut disk);
        while !store.is_all_home() {
            assert!(
                store.next_deadline().is_some_and(|at| at <= NOW + Span::millis(2500 + waited * 1000)),
                "{failures}"
            );
            waited += 1;
            quiesce_at(NOW + Span::millis(1500 + waited * 1000), &mut store, &mut disk);
        }
        assert_eq!((waited, store.failure()), (seconds, None), "{failures} reads fail");
        disk.fail_reads = 0;
        assert_ne!(place_of(&mut store, &mut disk, &arena, 1, 5), at);
        let there = read(&mut store, &mut disk, &arena, 1, range(5, 1));
        assert_eq!(there.is_ok_and(|bytes| bytes == block_of(100)), whole, "{failures} reads fail");
    }
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
    let mut looked_through = 0;
    while store.counters().checkpoints == checkpoints {
        assert!(looked_through < 2 * 65_536, "512 MiB looked through, and nothing was written anew");
        store.patrol(Blocks(64));
        drain(&mut store, &mut disk);
        looked_through += 64;
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
        StoreOp::Flush { copy: CopyId(1) },
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
fn a_repair_beside_the_fold_that_carries_the_damage_home_is_not_undone() {
    let (mut refused, mut done) = (0, 0);
    for steps in 0..40 {
        let (mut disk, arena, mut store) = fresh(2000);
        run(&mut store, &mut disk, write(&arena, 1, range(5, 1), 1, 100)).unwrap();
        let at = place_of(&mut store, &mut disk, &arena, 1, 5);
        disk.visible[at + 77] ^= 4;
        // A fold, stopped after so many operations of its disk.
        let mut now = NOW + Span::millis(5000);
        for _ in 0..steps {
            store.end_turn(now, &mut |op| disk.submit(op));
            match disk.step() {
                Some(done) => store.done(now, done, &mut |op| disk.submit(op)),
                None => now = now.max(store.next_deadline().unwrap_or(now)),
            }
        }
        let was_done = match run(&mut store, &mut disk, repair(&arena, 1, 5, 100..101)) {
            Ok(_) => true,
            Err(StoreError::Busy) => false,
            Err(error) => panic!("after {steps}: {error}"),
        };
        (refused, done) = (refused + u32::from(!was_done), done + u32::from(was_done));
        quiesce_at(NOW + Span::millis(10_000), &mut store, &mut disk);
        let read_back = read(&mut store, &mut disk, &arena, 1, range(5, 1));
        if was_done {
            assert_eq!(read_back, Ok(block_of(100)), "repaired after {steps} steps of a fold");
        } else {
            run(&mut store, &mut disk, repair(&arena, 1, 5, 100..101)).unwrap();
            assert_eq!(read(&mut store, &mut disk, &arena, 1, range(5, 1)).unwrap(), block_of(100));
        }
    }
    assert!(refused > 0 && done > 10, "{refused} refused, {done} done");
}

/// Opens what is there.
fn open_patiently(disk: &mut Disk, arena: &Arena, patient: bool) -> Result<JournaledStore, OpenError> {
    let size = conductor_model::Bytes(disk.visible.len() as u64);
    let options = OpenOptions { disk: DISK, size, cluster: Some(0xc1), node: Some(conductor_model::NodeId(1)) };
    let tuning = Tuning { patient, ..Tuning::default() };
    let mut opening = Opening::start(options, tuning, arena, &mut |op| disk.submit(op))?;
    loop {
        let done = disk.step().expect("an opening waits for its disk");
        if let Some(result) = opening.done(NOW, done, &mut |op| disk.submit(op)) {
            return result;
        }
    }
}

#[test]
fn a_copy_range_that_a_crash_cut_short_is_finished_although_a_sector_cannot_be_read() {
    const CHUNKS: u32 = 60;
    for composed in [false, true] {
        let arena = Arena::small(64 << 20);
        let geometry = journaled_geometry(4000, 640, 2 * 16 * CHUNKS + 1000, 4);
        let mut disk = Disk::new(geometry.size().0 as usize, 11);
        Journaled::format(&mut disk, &arena, geometry).unwrap();
        let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
        for copy in [1, 2] {
            let shard = ShardId { volume: VolumeId(copy), index: ShardIndex(0) };
            let config = conductor_model::Configuration { shard, ..config(1, 16 * CHUNKS) };
            run(&mut store, &mut disk, StoreOp::Create { copy: CopyId(copy.into()), config, parent: None }).unwrap();
        }
        // What is shared is one chunk, or made of two layers' and therefore copied.
        run(&mut store, &mut disk, write(&arena, 1, range(0, 8), 5, 5000)).unwrap();
        run(&mut store, &mut disk, snapshot(1, 9, 6)).unwrap();
        let name = if composed { 10 } else { 9 };
        if composed {
            run(&mut store, &mut disk, write(&arena, 1, range(8, 8), 7, 6000)).unwrap();
            run(&mut store, &mut disk, snapshot(1, name, 8)).unwrap();
        }
        fold(&mut store, &mut disk);
        let from = Parent { copy: CopyId(1), snapshot: SnapshotId(name) };
        let share = StoreOp::Share { copy: CopyId(2), stamp: stamp(77), at: range(0, 16), from, known_good: stamp(0) };
        store.submit(NOW, Tag(0), share, &mut |op| disk.submit(op));
        // All is in the journal, and nothing of it home; later groups prove that the first was durable.
        let mut written = 0;
        for n in 1..CHUNKS {
            let op = write(&arena, 1, range(n * 16, 1), 100 + u64::from(n), u64::from(n));
            store.submit(NOW, Tag(1 + u64::from(n)), op, &mut |op| disk.submit(op));
            while n % 20 == 19 && written < n {
                store.end_turn(NOW, &mut |op| disk.submit(op));
                let is_other = |(op, _): &mut (Op, usize)| !matches!(op, Op::DiskWrite { durable: true, .. });
                let others: Vec<_> = disk.inflight.extract_if(.., is_other).collect();
                let done = disk.step().expect("a write of the journal");
                disk.inflight.extend(others);
                store.done(NOW, done, &mut |op| disk.submit(op));
                while let Some((tag, result)) = store.next_completion() {
                    result.unwrap();
                    assert_ne!(tag, Tag(0), "the copy-range is not over");
                    written += 1;
                }
            }
        }
        drop(store);
        disk.crash();
        // A block that is to be moved: out of the journal, or from one chunk to another.
        let (seed, block) = if composed { (5003, 3) } else { (3, 48) };
        let mut at =
            disk.visible.chunks(BLOCK).enumerate().filter(|(_, here)| *here == block_of(seed)).map(|(at, _)| at);
        let at = if composed { at.next_back() } else { at.next() };
        let at = at.unwrap() * BLOCK;
        disk.bad_sector = Some(at + 600);
        let patient = open_patiently(&mut disk, &arena, true).map(drop);
        assert_eq!(patient.err(), Some(OpenError::Disk(Errno::IO)), "it may be readable soon");
        disk.crash();
        let mut store = open_patiently(&mut disk, &arena, false).unwrap();
        let copy = if composed { 2 } else { 1 };
        let corrupt = StoreError::Corrupt { copy: CopyId(copy), block: Blocks(block) };
        assert_eq!(read(&mut store, &mut disk, &arena, copy, range(block, 1)).err(), Some(corrupt));
        for (copy, block, seed) in [(2, 0, 5000), (2, 7, 5007), (1, 16, 1), (1, 59 * 16, 59)] {
            assert_eq!(read(&mut store, &mut disk, &arena, copy, range(block, 1)).unwrap(), block_of(seed));
        }
        assert_eq!(store.failure(), None);
    }
}
