//! Copies that fail are left behind, and come back filled, while writes go on (rules 1, 3, 4, 11, 13 and 15).

mod common;

use common::{Cluster, copy, shard};
use conductor_model::api::{OrderState, ShardOrder};
use conductor_model::{CopyId, CopyState, Durability, Epoch, SnapshotId};
use driver::Span;
use node_protocol::Status;

/// Blocks of one chunk.
const CHUNK: u32 = 16;

fn cluster(seed: u64) -> (Cluster, sim::ProcessId) {
    let mut c = Cluster::new(seed);
    c.blocks = 210 * CHUNK;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    (c, client)
}

/// A client that knows the present epoch.
fn write(c: &mut Cluster, at: u32, of: u8) {
    let client = c.client(1, 0);
    c.write(client, 1, at, of);
}

/// A read by a client that has not heard of the newest epoch.
fn ask_in_old_epoch(c: &mut Cluster, client: sim::ProcessId) -> u64 {
    let epoch = c.configs[&shard(1)].epoch;
    let change = |c: &mut Cluster, epoch| c.configs.get_mut(&shard(1)).expect("it is there").epoch = epoch;
    change(c, Epoch(epoch.0 - 1));
    let token = c.ask(client, 1, node_protocol::op::READ, 0, 4096, Vec::new());
    change(c, epoch);
    token
}

/// Every node is made primary in turn, and reads the same.
fn expect(c: &mut Cluster, blocks: &[(u32, u8)]) {
    for node in 0..3 {
        if c.primary(1) != node {
            c.promote(1, node);
        }
        let client = c.client(1, 0);
        for (at, of) in blocks {
            assert_eq!(c.read(client, 1, *at), *of, "block {at} on node {node}");
        }
    }
}

#[test]
fn a_copy_that_falls_silent_is_left_behind_within_two_seconds_and_writes_go_on() {
    let (mut c, client) = cluster(1);
    c.write(client, 1, 0, 1);
    let before = c.now();
    c.w.kill(c.nodes[2]);
    let token = c.start_write(client, 1, 3, 2);
    assert_eq!(c.answer(token).0, Status::Ok);
    let paused = c.now().since(before);
    assert!(paused < Span::millis(2000), "{paused:?}");
    assert_eq!(c.in_sync(1), [0, 1]);
}

#[test]
fn a_copy_that_returns_is_filled_with_what_it_missed_and_no_more() {
    let (mut c, client) = cluster(2);
    for at in 0..20 {
        c.write(client, 1, at * CHUNK, 1);
    }
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    for at in [0, 3, 17] {
        write(&mut c, at * CHUNK, 2);
    }
    c.w.restart(c.nodes[2]);
    c.until_in_sync(1);
    let pieces = c.count("fill.piece");
    assert!((3..=5).contains(&pieces), "{pieces} chunks were copied, 3 had changed");
    expect(&mut c, &[(0, 2), (CHUNK, 1), (3 * CHUNK, 2), (17 * CHUNK, 2), (19 * CHUNK, 1)]);
}

#[test]
fn an_empty_copy_is_filled_with_everything_snapshots_too() {
    let (mut c, client) = cluster(3);
    c.write(client, 1, 0, 1);
    c.write(client, 1, 5 * CHUNK, 1);
    c.snapshot(1, 7);
    c.write(client, 1, 0, 2);
    c.snapshot(1, 8);
    c.write(client, 1, 9 * CHUNK, 3);
    c.replace(1, 2, CopyId(777));
    c.until_in_sync(1);
    assert_eq!(c.snapshots(1, 2), [SnapshotId(7), SnapshotId(8)]);
    c.promote(1, 2);
    for (view, expected) in [(7, [1, 1, 0]), (8, [2, 1, 0]), (0, [2, 1, 3])] {
        let client = c.client(1, view);
        let read = [0, 5, 9].map(|chunk| c.read(client, 1, chunk * CHUNK));
        assert_eq!(read, expected, "of view {view}");
    }
}

#[test]
fn writes_during_a_filling_are_on_the_copy_that_is_filled() {
    let (mut c, client) = cluster(4);
    for at in 0..60 {
        c.write(client, 1, at * CHUNK, 1);
    }
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    for at in 0..60 {
        write(&mut c, at * CHUNK, 2);
    }
    c.w.restart(c.nodes[2]);
    c.until("being filled", |c| c.count("fill.piece") > 0);
    let client = c.client(1, 0);
    let places: Vec<u32> = (0..40).map(|n| (n * 7 % 60) * CHUNK + 3).collect();
    let tokens: Vec<u64> = places.iter().map(|at| c.start_write(client, 1, *at, 3)).collect();
    // Those of an epoch that is over are refused: nothing was acknowledged.
    let acked: Vec<bool> = tokens.into_iter().map(|token| c.answer(token).0 == Status::Ok).collect();
    assert!(acked.iter().any(|acked| *acked));
    c.until_in_sync(1);
    let mut blocks: Vec<(u32, u8)> = (0..60).map(|at| (at * CHUNK, 2)).collect();
    blocks.extend(places.iter().zip(&acked).filter(|(_, acked)| **acked).map(|(at, _)| (*at, 3)));
    expect(&mut c, &blocks);
}

#[test]
fn a_snapshot_taken_during_a_filling_is_on_the_filled_copy_as_it_was() {
    let (mut c, client) = cluster(5);
    for at in 0..60 {
        c.write(client, 1, at * CHUNK, 1);
    }
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    for at in 0..60 {
        write(&mut c, at * CHUNK, 2);
    }
    c.w.restart(c.nodes[2]);
    c.until("being filled", |c| c.count("fill.piece") > 3);
    c.snapshot(1, 9);
    c.until("on the primary", |c| c.snapshots(1, 0) == [SnapshotId(9)]);
    for at in 0..60 {
        write(&mut c, at * CHUNK, 3);
    }
    c.until_in_sync(1);
    assert_eq!(c.snapshots(1, 2), [SnapshotId(9)]);
    c.promote(1, 2);
    let (then, now) = (c.client(1, 9), c.client(1, 0));
    for at in 0..60 {
        assert_eq!((c.read(then, 1, at * CHUNK), c.read(now, 1, at * CHUNK)), (2, 3), "chunk {at}");
    }
}

#[test]
fn a_sealed_shard_waits_and_is_served_again_when_a_copy_is_filled() {
    let (mut c, client) = cluster(6);
    c.write(client, 1, 0, 1);
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    write(&mut c, 0, 2);
    c.w.kill(c.nodes[1]);
    c.until("sealed", |c| c.in_sync(1) == [0] && c.role(1).contains("sealed"));
    let client = c.client(1, 0);
    let token = c.start_write(client, 1, CHUNK, 3);
    c.run(Span::seconds(3));
    assert!(!c.answers.contains_key(&token), "nothing is acknowledged by one copy");
    // The one that missed a write is as good a way out as the other.
    c.w.restart(c.nodes[2]);
    c.until("two in sync", |c| c.in_sync(1) == [0, 2]);
    c.until_serving(1);
    write(&mut c, 2 * CHUNK, 4);
    c.w.restart(c.nodes[1]);
    c.until_in_sync(1);
    expect(&mut c, &[(0, 2), (2 * CHUNK, 4)]);
}

#[test]
fn a_filling_that_is_cut_off_goes_on_from_its_mark() {
    let (mut c, _) = cluster(7);
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    assert_eq!(c.role(1).split(',').next(), Some("primary: serving"));
    let client = c.client(1, 0);
    for at in 0..200 {
        c.write(client, 1, at * CHUNK, 1);
    }
    c.w.restart(c.nodes[2]);
    c.until("being filled", |c| c.count("fill.piece") > 150);
    c.w.partition(c.nodes[0], c.nodes[2]);
    c.until("left behind again", |c| {
        c.configs[&shard(1)].member(copy(1, 2)).is_some_and(|m| m.state == CopyState::Absent)
    });
    write(&mut c, 5 * CHUNK, 2);
    c.w.heal_all();
    c.until_in_sync(1);
    expect(&mut c, &[(0, 1), (5 * CHUNK, 2), (199 * CHUNK, 1)]);
}

#[test]
fn what_a_copy_wrote_and_nobody_else_is_undone_when_it_returns() {
    let (mut c, client) = cluster(8);
    c.write(client, 1, 0, 1);
    // The last write of the old primary reaches nobody else.
    c.w.partition(c.nodes[0], c.nodes[1]);
    c.w.partition(c.nodes[0], c.nodes[2]);
    c.start_write(client, 1, 0, 9);
    c.run(Span::millis(300));
    c.w.kill(c.nodes[0]);
    c.take_over(1, 1);
    c.until_serving(1);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 1);
    c.write(client, 1, CHUNK, 2);
    c.w.heal_all();
    c.w.restart(c.nodes[0]);
    c.until_in_sync(1);
    expect(&mut c, &[(0, 1), (CHUNK, 2)]);
}

#[test]
fn a_deposed_primary_that_is_not_told_stops_serving_before_the_next_one_begins() {
    let (mut c, client) = cluster(9);
    c.write(client, 1, 0, 1);
    // It hears nothing from the conductor any more; the others it still reaches.
    c.take_over(1, 1);
    c.until_serving(1);
    assert!(c.count("promise.withheld") > 0, "{}", c.picture());
    let successor = c.client(1, 0);
    c.write(successor, 1, 0, 2);
    let stale = ask_in_old_epoch(&mut c, client);
    c.run(Span::seconds(5));
    let answer = c.answers.get(&stale).map(|(status, _)| *status);
    assert_ne!(answer, Some(Status::Ok), "it read what is not the newest any more");
}

#[test]
fn a_primary_that_is_cut_off_reads_nothing_any_more_when_the_next_one_begins() {
    let (mut c, client) = cluster(11);
    c.write(client, 1, 0, 1);
    c.w.partition(c.nodes[0], c.nodes[1]);
    c.w.partition(c.nodes[0], c.nodes[2]);
    c.take_over(1, 1);
    c.until_serving(1);
    let successor = c.client(1, 0);
    c.write(successor, 1, 0, 2);
    let stale = ask_in_old_epoch(&mut c, client);
    c.run(Span::seconds(5));
    let answer = c.answers.get(&stale).map(|(status, _)| *status);
    assert_ne!(answer, Some(Status::Ok), "it read what is not the newest any more");
}

#[test]
fn a_rollback_during_a_filling_reaches_the_copy_that_is_filled() {
    let (mut c, client) = cluster(10);
    for at in 0..40 {
        c.write(client, 1, at * CHUNK, 1);
    }
    c.snapshot(1, 7);
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    for at in 0..40 {
        write(&mut c, at * CHUNK, 2);
    }
    c.w.restart(c.nodes[2]);
    c.until("being filled", |c| c.count("fill.piece") > 3);
    let report = c.carry_out(2, 1, ShardOrder::Rollback { snapshot: SnapshotId(7) });
    assert!(matches!(report.state, OrderState::Done { .. }), "{report:?}");
    c.orders(&[]);
    c.until_in_sync(1);
    let blocks: Vec<(u32, u8)> = (0..40).map(|at| (at * CHUNK, 1)).collect();
    expect(&mut c, &blocks);
}
