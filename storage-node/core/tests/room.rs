//! A write that finds no room waits for what comes back by itself, and not for ever.

use crate::common::{Cluster, block, of};
use conductor_model::api::{OrderState, ShardOrder};
use conductor_model::{BlockRange, Blocks, Durability, SnapshotId};
use driver::Span;
use node_protocol::{Status, op};
use sim::ProcessId;

const MIB: u32 = 1 << 20;

/// A cluster whose disks have room for single blocks, and not for a MiB; how many MiB were written.
fn full(seed: u64) -> (Cluster, ProcessId, u64) {
    let mut c = Cluster::new(seed);
    c.blocks = 1 << 14;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    for n in 0..64 {
        let write = long_write(&mut c, client, n);
        if c.answer(write).0 != Status::Ok {
            return (c, client, n);
        }
    }
    panic!("there is always room");
}

fn long_write(c: &mut Cluster, client: ProcessId, at: u64) -> u64 {
    let data = (0..256).flat_map(|_| block(7)).collect();
    c.ask(client, 1, op::WRITE, at * u64::from(MIB), MIB, data)
}

#[test]
fn small_writes_that_find_room_do_not_keep_a_long_one_waiting() {
    let (mut c, client, n) = full(31);
    // A discard may bring room: the next long write waits for it.
    let discard = c.ask(client, 1, op::DISCARD, 63 << 20, 4096, Vec::new());
    assert_eq!(c.answer(discard).0, Status::Ok);
    let long = long_write(&mut c, client, n);
    for _ in 0..80 {
        c.write(client, 1, 0, 1);
        c.run(Span::millis(100));
    }
    assert_eq!(c.answers.get(&long).map(|a| a.0), Some(Status::NoSpace), "{}", c.picture());
}

#[test]
fn a_disk_that_is_known_to_be_full_refuses_at_once() {
    let (mut c, client, n) = full(32);
    let long = long_write(&mut c, client, n);
    c.run(Span::millis(200));
    assert_eq!(c.answers.get(&long).map(|a| a.0), Some(Status::NoSpace));
}

#[test]
fn a_write_behind_a_discard_waits_for_what_that_gives_back_however_long_ago_the_disk_was_full() {
    let (mut c, client, n) = full(33);
    c.run(Span::seconds(10));
    let waited = c.count("write.waits-for-room");
    let discard = c.ask(client, 1, op::DISCARD, 0, 4 * MIB, Vec::new());
    assert_eq!(c.answer(discard).0, Status::Ok);
    let long = long_write(&mut c, client, n);
    assert_eq!(c.answer(long).0, Status::Ok);
    assert!(c.count("write.waits-for-room") > waited, "it had to wait");
}

#[test]
fn what_was_overwritten_is_room_again_before_a_write_waits_for_it() {
    let mut c = Cluster::new(34);
    c.blocks = 1 << 14;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    // Six times what the disks have room for, all in the same 16 MiB, without a rest.
    for n in 0..384 {
        let write = long_write(&mut c, client, n % 16);
        assert_eq!(c.answer(write).0, Status::Ok);
    }
    assert_eq!(c.count("write.waits-for-room"), 0);
}

#[test]
fn a_share_that_the_disks_have_no_room_for_fails_and_costs_nobody_its_copy() {
    let mut c = Cluster::new(35);
    c.blocks = 1 << 14;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c.create(2, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    // Of each piece of 64 KiB a block is below a snapshot and one above it: who shares that makes a piece of its own of the two.
    for (at, snapshot) in [(0, 6), (1, 7)] {
        (0..100).for_each(|chunk| c.write(client, 1, chunk * 16 + at, 5));
        c.snapshot(1, snapshot);
    }
    let mut at = 32;
    loop {
        let write = long_write(&mut c, client, at);
        at += 1;
        if c.answer(write).0 != Status::Ok {
            break;
        }
    }
    let to = c.client(2, 0);
    c.write(to, 2, 3, 9);
    let from = of(1, 7);
    let at = BlockRange { from: Blocks(0), count: Blocks(1600) };
    let report = c.carry_out(2, 2, ShardOrder::CopyRange { from, at, holders: Vec::new() });
    let OrderState::Failed(why) = &report.state else { panic!("{report:?}") };
    assert!(why.contains("no space left"), "{why}");
    // It is not begun where there would be no room to settle it (`Kind::takes_space`), in small pieces, neither.
    assert_eq!((c.count("copy.by-sharing"), c.count("copy.share-given-up"), c.count("copy.smaller-pieces")), (1, 0, 4));
    c.orders(&[]);
    c.write(to, 2, 3, 10);
    assert_eq!((c.read(to, 2, 3), c.in_sync(2).len(), c.primary(2)), (10, 3, 0));
}

#[test]
fn a_share_that_takes_no_room_is_done_in_pieces_that_there_is_room_to_settle() {
    let (mut c, client, n) = full(36);
    c.create(2, &[0, 1, 2], None, Durability::Always);
    let discard = c.ask(client, 1, op::DISCARD, (n - 2) * u64::from(MIB), 2 * MIB, Vec::new());
    assert_eq!(c.answer(discard).0, Status::Ok);
    c.write(client, 1, 0, 5);
    c.snapshot(1, 7);
    c.run(Span::seconds(5));
    let at = BlockRange { from: Blocks(0), count: Blocks(1600) };
    let report = c.carry_out(2, 2, ShardOrder::CopyRange { from: of(1, 7), at, holders: Vec::new() });
    assert!(matches!(report.state, OrderState::Done { .. }), "{report:?}");
    assert_eq!((c.count("copy.by-sharing"), c.count("copy.by-bytes")), (1, 0));
    assert!(c.count("copy.smaller-pieces") > 0);
    let to = c.client(2, 0);
    assert_eq!((c.read(to, 2, 0), c.read(to, 2, 1599)), (5, 7));
}

#[test]
fn what_is_lost_on_a_disk_without_room_to_write_it_again_is_read_from_another_one_and_nothing_stands_still() {
    let (mut c, _, n) = full(37);
    c.run(Span::seconds(10));
    c.rot_pages(0, |array| array >= 0x1000_0000);
    c.until_serving(1);
    c.until_in_sync(1);
    assert_eq!(c.primary(1), 0, "who lost it is asked");
    let client = c.client(1, 0);
    let read = |c: &mut Cluster, at: u64| {
        let token = c.ask(client, 1, op::READ, at * u64::from(MIB), MIB, Vec::new());
        let (status, data) = c.answer(token);
        assert!(status == Status::Ok && data.iter().all(|byte| *byte == 7), "MiB {at}: {status:?}");
    };
    (0..n).for_each(|at| read(&mut c, at));
    assert!(c.count("read.elsewhere") > 0, "there was room to write all of it again");
    // What it had taken for them it does not know any more. What is given back is answered, and the rest is read as before.
    let half = u32::try_from(n / 2).unwrap();
    let discard = c.ask(client, 1, op::DISCARD, 0, half * MIB, Vec::new());
    assert_eq!(c.answer(discard).0, Status::Ok);
    c.run(Span::seconds(10));
    (u64::from(half)..n).for_each(|at| read(&mut c, at));
}

#[test]
fn a_full_disk_refuses_nothing_that_its_neighbour_on_the_same_reactor_has_room_for() {
    let mut c = Cluster::with_disks(41, 2, 40 << 20);
    c.blocks = 1 << 14;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c.on = 1;
    c.create(2, &[0, 1, 2], None, Durability::Always);
    let (one, two) = (c.client(1, 0), c.client(2, 0));
    let write = |c: &mut Cluster, client, volume, at: u64| {
        let data = (0..256).flat_map(|_| block(7)).collect();
        let token = c.ask(client, volume, op::WRITE, at * u64::from(MIB), MIB, data);
        c.answer(token).0
    };
    let filled = (0..64).take_while(|at| write(&mut c, one, 1, *at) == Status::Ok).count();
    assert!((1..64).contains(&filled), "its disks are full");
    // What is free is told again with each promise.
    c.run(Span::seconds(10));
    for at in 0..8 {
        assert_eq!(write(&mut c, two, 2, at), Status::Ok, "{}", c.picture());
    }
    assert_eq!(write(&mut c, one, 1, 63), Status::NoSpace);
}

/// Above a snapshot a discard takes a page of metadata for each 8 MiB in which the snapshot has something, and the disks have no more of them.
#[test]
fn a_discard_that_a_disk_may_have_no_page_for_is_refused_before_any_copy_has_it() {
    const LEAF: u32 = 127 * 16;
    let mut c = Cluster::new(38);
    c.blocks = 1 << 18;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    (0..50).for_each(|leaf| c.write(client, 1, leaf * LEAF, 5));
    c.snapshot(1, 7);
    let written = (50..128).find(|leaf| {
        let token = c.start_write(client, 1, leaf * LEAF, 6);
        c.answer(token).0 == Status::NoSpace
    });
    assert!(written.is_some(), "there is a page for each block");
    let discard = |c: &mut Cluster, leaf: u32, blocks: u32| {
        let token = c.ask(client, 1, op::DISCARD, u64::from(leaf * LEAF) << 12, blocks << 12, Vec::new());
        c.answer(token).0
    };
    let done = (0..50).take_while(|leaf| discard(&mut c, *leaf, LEAF) == Status::Ok).count() as u32;
    assert!((5..45).contains(&done), "{done} of 50 discards");
    // Nor has it one for what takes less, some time.
    let more = (done..50).take_while(|leaf| discard(&mut c, *leaf, 1) == Status::Ok).count() as u32;
    assert!(done + more < 50);
    let report = c.carry_out(1, 1, ShardOrder::Barrier { snapshot: SnapshotId(8), hold_ms: 10_000 });
    let OrderState::Failed(why) = &report.state else { panic!("{report:?}") };
    assert!(why.contains("no space left"), "{why}");
    c.orders(&[]);
    c.run(Span::seconds(5));
    // Nothing stands still, and nobody has lost its copy.
    assert_eq!((c.read(client, 1, 0), c.read(client, 1, 49 * LEAF), c.read(client, 1, 50 * LEAF)), (0, 5, 6));
    assert_eq!((c.in_sync(1).len(), c.primary(1)), (3, 0));
    assert!(c.failed.is_empty(), "{:?}", c.failed);
}

#[test]
fn a_discard_that_its_store_has_no_time_for_gets_no_stamp_and_nothing_else_waits_for_it() {
    let mut c = Cluster::new(39);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 3, 5);
    c.discarding[0].set(true);
    let discard = c.ask(client, 1, op::DISCARD, 0, 64 << 12, Vec::new());
    // Longer than a stamped write may take on a copy.
    for n in 0..10 {
        c.run(Span::seconds(1));
        c.write(client, 1, 100 + n, 7);
    }
    assert!(!c.answers.contains_key(&discard));
    c.discarding[0].set(false);
    assert_eq!(c.answer(discard).0, Status::Ok);
    assert_eq!((c.read(client, 1, 3), c.read(client, 1, 109)), (0, 7));
    assert_eq!((c.in_sync(1).len(), c.primary(1)), (3, 0));
}

/// As many layers as can stand on one another: the stores refuse what the primary had no reason to.
#[test]
fn a_barrier_that_a_copy_has_no_room_for_fails_at_once_and_costs_nobody_its_copy() {
    let mut c = Cluster::new(40);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let mut barrier = |id: u64| {
        let report = c.carry_out(id, 1, ShardOrder::Barrier { snapshot: SnapshotId(id), hold_ms: 10_000 });
        c.orders(&[]);
        report.state
    };
    let failed = (1..300).find_map(|id| match barrier(id) {
        OrderState::Failed(why) => Some(why),
        _ => None,
    });
    let now = c.now();
    assert!(failed.as_ref().is_some_and(|why| why.contains("no room for the snapshot")), "{failed:?}");
    c.run(Span::seconds(5));
    assert!(now < driver::Time(0) + Span::seconds(60), "{now:?}");
    let client = c.client(1, 0);
    c.write(client, 1, 3, 5);
    assert_eq!((c.in_sync(1).len(), c.primary(1), c.count("barrier.given-up")), (3, 0, 1));
}
