//! Copies that fail are left behind, and come back filled, while writes go on (rules 1, 3, 4, 11, 13 and 15).

use crate::common::{Cluster, copy, of, shard};
use conductor_model::api::{MembershipAnswer, OrderState, ShardOrder};
use conductor_model::{Bytes, CopyId, CopyState, Durability, Epoch, SnapshotId};
use driver::Span;
use node_core::Mail;
use node_protocol::{Status, op};

/// Blocks of one chunk.
pub(crate) const CHUNK: u32 = 16;

pub(crate) fn cluster(seed: u64) -> (Cluster, sim::ProcessId) {
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
    let old = Epoch(c.configs[&shard(1)].epoch.0 - 1);
    ask_in_epoch(c, client, old)
}

fn ask_in_epoch(c: &mut Cluster, client: sim::ProcessId, epoch: Epoch) -> u64 {
    let change = |c: &mut Cluster, epoch| {
        std::mem::replace(&mut c.configs.get_mut(&shard(1)).expect("it is there").epoch, epoch)
    };
    let newest = change(c, epoch);
    let token = c.ask(client, 1, op::READ, 0, 4096, Vec::new());
    change(c, newest);
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
fn a_copy_of_a_clone_that_nobody_wrote_returns_with_all_that_it_shares() {
    let (mut c, client) = cluster(23);
    (0..8).for_each(|at| c.write(client, 1, at * CHUNK, 1));
    c.snapshot(1, 7);
    c.create(2, &[0, 1, 2], Some(of(1, 7)), Durability::Always);
    c.w.kill(c.nodes[2]);
    // Each finds out by its own primary's writes or silence.
    c.until("left behind", |c| c.in_sync(1) == [0, 1] && c.in_sync(2) == [0, 1]);
    c.w.restart(c.nodes[2]);
    c.until_in_sync(1);
    c.until_in_sync(2);
    assert_eq!(c.count("fill.piece"), 0, "{}", c.picture());
    let client = c.client(2, 0);
    assert_eq!(c.read(client, 2, 7 * CHUNK), 1);
    // What is written to it is all that is missed.
    c.w.kill(c.nodes[2]);
    c.until("left behind again", |c| c.in_sync(2) == [0, 1]);
    c.write(client, 2, 3 * CHUNK, 2);
    c.w.restart(c.nodes[2]);
    c.until_in_sync(2);
    assert!((1..=2).contains(&c.count("fill.piece")), "{}", c.picture());
    c.promote(2, 2);
    let client = c.client(2, 0);
    assert_eq!([3, 7].map(|at| c.read(client, 2, at * CHUNK)), [2, 1]);
}

/// What one copy was filled with as zeros, because it had been discarded, is filled on from there: the next copy has the old data (rule 7).
#[test]
fn what_was_discarded_before_a_copy_was_filled_is_filled_on_from_that_copy() {
    for chunks in [1, 3] {
        let mut c = Cluster::new(14);
        (c.blocks, c.min_copies) = (210 * CHUNK, 1);
        c.create(1, &[0, 1, 2], None, Durability::Always);
        let old: Vec<u32> = (0..chunks).map(|n| (5 + n) * CHUNK + 3).collect();
        c.w.kill(c.nodes[1]);
        c.until("one left behind", |c| c.in_sync(1) == [0, 2]);
        old.iter().for_each(|at| write(&mut c, *at, 1));
        // K is past them on both.
        (0..3).for_each(|n| write(&mut c, 100 * CHUNK, n));
        c.w.kill(c.nodes[2]);
        c.until("both left behind", |c| c.in_sync(1) == [0]);
        let client = c.client(1, 0);
        let token = c.ask(client, 1, op::DISCARD, 5 << 16, chunks << 16, Vec::new());
        assert_eq!(c.answer(token).0, Status::Ok);
        write(&mut c, 101 * CHUNK, 1);
        c.w.restart(c.nodes[1]);
        c.until("one is filled", |c| c.in_sync(1) == [0, 1]);
        c.promote(1, 1);
        c.w.restart(c.nodes[2]);
        c.until_in_sync(1);
        expect(&mut c, &old.iter().map(|at| (*at, 0)).collect::<Vec<_>>());
    }
}

/// A filling of 200 chunks (12.5 MiB) is slow when that is wanted, stands still, and goes on.
#[test]
fn a_filling_keeps_to_its_rate_and_to_none() {
    let (mut c, client) = cluster(12);
    for at in 0..200 {
        c.write(client, 1, at * CHUNK, 1);
    }
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    for at in 0..200 {
        write(&mut c, at * CHUNK, 2);
    }
    let rate = |c: &mut Cluster, rate: Option<u64>| (0..2).for_each(|n| c.mail(n, Mail::FillRate(rate.map(Bytes))));
    rate(&mut c, Some(1 << 20));
    c.w.restart(c.nodes[2]);
    c.until("being filled", |c| c.count("fill.piece") > 0);
    let piece = |c: &Cluster| c.count("fill.piece");
    let before = piece(&c);
    c.run(Span::seconds(4));
    // Sixteen pieces of 64 KiB are a MiB.
    let copied = piece(&c) - before;
    assert!((48..=70).contains(&copied), "{copied} pieces in four seconds");
    rate(&mut c, Some(0));
    c.run(Span::millis(500));
    let before = piece(&c);
    c.run(Span::seconds(10));
    assert_eq!(piece(&c), before, "it goes on although it is paused");
    write(&mut c, 0, 3);
    rate(&mut c, None);
    let from = c.now();
    c.until_in_sync(1);
    assert!(c.now().since(from) < Span::seconds(3), "{:?} for the rest", c.now().since(from));
    expect(&mut c, &[(0, 3), (CHUNK, 2), (199 * CHUNK, 2)]);
}

/// Tells every primary which copies are not to be filled.
fn hold(c: &mut Cluster, copies: &[CopyId]) {
    (0..3).for_each(|node| c.mail(node, Mail::AbortedFillings(copies.to_vec())));
}

fn state_of_last(c: &Cluster) -> CopyState {
    c.configs[&shard(1)].member(copy(1, 2)).expect("it is listed").state
}

/// Is a filling so far?
type Reached = fn(&Cluster) -> bool;

/// A filling that somebody ends ends at any step, holds nothing afterwards, is not begun again, and goes on when that is wanted.
#[test]
fn a_filling_is_aborted_at_any_step_leaves_nothing_behind_and_goes_on_when_it_is_resumed() {
    let steps: [(&str, Reached); 7] = [
        ("to be filled", |_| true),
        ("syncing", |c| state_of_last(c) == CopyState::Syncing),
        ("joined", |c| c.count("fill.started") > 0),
        ("filled with a piece", |c| c.count("fill.piece") > 0),
        ("filled with the half", |c| c.count("fill.piece") > 100),
        ("having a snapshot", |c| c.count("fill.snapshot") > 0),
        ("told that it is complete", |c| c.count("fill.complete") > 0),
    ];
    for (n, (step, reached)) in steps.into_iter().enumerate() {
        let (mut c, client) = cluster(20 + n as u64);
        c.write(client, 1, 0, 1);
        c.w.kill(c.nodes[2]);
        c.until("left behind", |c| c.in_sync(1) == [0, 1]);
        for at in 0..200 {
            write(&mut c, at * CHUNK, 2);
        }
        c.snapshot(1, 9);
        (0..60).for_each(|at| write(&mut c, at * CHUNK, 3));
        c.w.restart(c.nodes[2]);
        c.until(step, reached);
        hold(&mut c, &[copy(1, 2)]);
        c.until("it is over", |c| state_of_last(c) != CopyState::Syncing && c.role(1).contains("serving"));
        c.run(Span::seconds(1));
        let (asked, started) = (c.count("ask.fill"), c.count("fill.started"));
        // Longer than after a filling that failed.
        c.run(Span::seconds(40));
        assert_eq!((c.count("ask.fill"), c.count("fill.started")), (asked, started), "{step}: begun again");
        // The last step may have been too late for it.
        let was_late = state_of_last(&c) == CopyState::InSync;
        assert!(!was_late || n == 6, "{step}");
        let view = c.view(0).expect("it runs");
        assert!(view.copies.iter().all(|copy| copy.requests == 0), "{step}: {:?}", view.copies);
        assert!(view.refs.iter().all(|line| !line.contains("subtask")), "{step}: {:?}", view.refs);
        (0..200).for_each(|at| write(&mut c, at * CHUNK, 4));
        hold(&mut c, &[]);
        let from = c.now();
        c.until_in_sync(1);
        assert!(c.now().since(from) < Span::seconds(5), "{step}: it rests as if it had failed");
        expect(&mut c, &[(0, 4), (59 * CHUNK, 4), (60 * CHUNK, 4), (199 * CHUNK, 4)]);
    }
}

#[test]
fn a_sealed_shard_is_not_kept_so_by_an_aborted_filling() {
    let (mut c, _) = sealed(28, false);
    hold(&mut c, &[copy(1, 2)]);
    c.w.restart(c.nodes[2]);
    c.until("two in sync", |c| c.in_sync(1) == [0, 2]);
    c.until_serving(1);
    write(&mut c, 3 * CHUNK, 5);
    assert_eq!(c.in_sync(1), [0, 2], "in sync is in sync");
}

#[test]
fn a_copy_that_the_conductor_will_not_have_filled_is_asked_for_ever_more_rarely_and_keeps_no_other_waiting() {
    let mut c = Cluster::new(29);
    (c.blocks, c.min_copies) = (210 * CHUNK, 1);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    [1, 2].into_iter().for_each(|node| c.w.kill(c.nodes[node]));
    c.until("left behind", |c| c.in_sync(1) == [0]);
    c.unfit = Some(copy(1, 2));
    [2, 1].into_iter().for_each(|node| c.w.restart(c.nodes[node]));
    c.until("the other one is filled", |c| c.in_sync(1) == [0, 1]);
    let (asked, refused) = (c.count("ask.fill"), c.count("ask.refused"));
    (0..12_000).for_each(|_| c.run(Span::millis(5)));
    let (asked, refused) = (c.count("ask.fill") - asked, c.count("ask.refused") - refused);
    assert!(asked == refused && (2..8).contains(&refused), "{refused} times in a minute");
    c.unfit = None;
    c.until_in_sync(1);
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
fn where_all_start_one_that_is_late_is_waited_for() {
    let (mut c, client) = cluster(15);
    c.write(client, 1, 0, 1);
    (0..3).for_each(|node| c.w.kill(c.nodes[node]));
    (0..2).for_each(|node| c.w.restart(c.nodes[node]));
    c.until("primary", |c| c.role(1).contains("primary"));
    c.run(Span::millis(2500));
    assert_eq!(c.count("ask.drop"), 0, "to drop it would be to fill it");
    c.w.restart(c.nodes[2]);
    c.until_in_sync(1);
    assert_eq!((c.count("ask.drop"), c.count("fill.started")), (0, 0));
    expect(&mut c, &[(0, 1)]);
}

/// A shard with one copy left, which wrote block 0 with the others, and block `CHUNK` perhaps alone; and a client of it.
fn sealed(seed: u64, alone: bool) -> (Cluster, sim::ProcessId) {
    let (mut c, client) = cluster(seed);
    c.write(client, 1, CHUNK, 1);
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    write(&mut c, 0, 2);
    c.w.kill(c.nodes[1]);
    if alone {
        let client = c.client(1, 0);
        c.start_write(client, 1, CHUNK, 3);
    }
    c.until("sealed", |c| c.in_sync(1) == [0] && c.role(1).contains("sealed"));
    let client = c.client(1, 0);
    (c, client)
}

pub(crate) fn start_read(c: &mut Cluster, client: sim::ProcessId, at: u32) -> u64 {
    c.ask(client, 1, op::READ, u64::from(at) * 4096, 4096, Vec::new())
}

pub(crate) fn conductor_answers(c: &mut Cluster) {
    let now = c.w.now();
    c.mail(0, Mail::Heard(now));
}

#[test]
fn a_sealed_shard_is_read_under_the_conductors_word_but_not_what_one_copy_alone_may_have() {
    let (mut c, client) = sealed(13, true);
    let (first, second) = (start_read(&mut c, client, 0), start_read(&mut c, client, CHUNK));
    let extents = c.ask(client, 1, op::EXTENTS, 0, CHUNK * 4096, Vec::new());
    c.run(Span::seconds(3));
    assert_eq!(c.answers.get(&extents).map(|(status, _)| *status), Some(Status::Ok), "all of it may hold data");
    assert!(!c.answers.contains_key(&first), "the conductor may have found another primary");
    conductor_answers(&mut c);
    c.run(Span::millis(500));
    assert_eq!(c.answers.get(&first).map(|(status, data)| (*status, data[0])), Some((Status::Ok, 2)));
    assert!(!c.answers.contains_key(&second), "written here, and perhaps nowhere else");
    c.run(Span::millis(1300));
    let third = start_read(&mut c, client, 0);
    c.run(Span::seconds(2));
    assert!(!c.answers.contains_key(&third), "its word is over");
    c.w.restart(c.nodes[1]);
    c.until("two in sync", |c| c.in_sync(1) == [0, 1]);
    c.until_serving(1);
    assert_eq!(c.answer(third).0, Status::StaleEpoch, "of the sealed epoch");
}

#[test]
fn a_sealed_shard_reads_the_last_write_that_all_had_finished() {
    let (mut c, client) = sealed(14, false);
    conductor_answers(&mut c);
    assert_eq!((c.read(client, 1, 0), c.read(client, 1, CHUNK)), (2, 1));
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

/// What it asked for was granted before another was promoted, and the answer comes after it has heard of that one.
#[test]
fn a_deposed_primary_is_not_revived_by_an_answer_that_comes_late() {
    let (mut c, client) = cluster(19);
    c.write(client, 1, 0, 1);
    let at_first = c.configs[&shard(1)].clone();
    c.mute = true;
    c.w.partition(c.nodes[0], c.nodes[1]);
    c.w.partition(c.nodes[0], c.nodes[2]);
    c.until("it has asked to go on alone", |c| c.in_sync(1) == [0]);
    let granted = c.configs[&shard(1)].clone();
    c.mute = false;
    // The others were away for a moment, and then it was.
    c.configs.get_mut(&shard(1)).unwrap().members = at_first.members;
    c.take_over(1, 1);
    c.until_serving(1);
    let successor = c.client(1, 0);
    c.write(successor, 1, 0, 2);
    let newest = c.configs[&shard(1)].clone();
    c.mail(0, Mail::Assign(vec![newest]));
    c.run(Span::millis(100));
    c.mail(0, Mail::Membership(shard(1), MembershipAnswer::Granted(granted.clone())));
    let mut stale = Vec::new();
    for _ in 0..20 {
        conductor_answers(&mut c);
        stale.push(ask_in_epoch(&mut c, client, granted.epoch));
        c.run(Span::millis(100));
    }
    let answers: Vec<_> = stale.iter().filter_map(|stale| c.answers.get(stale)).map(|(status, _)| *status).collect();
    assert!(!answers.is_empty() && !answers.contains(&Status::Ok), "it read what is not the newest any more");
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
fn a_primary_whose_other_copies_restarted_reads_nothing_any_more_when_the_next_one_begins() {
    let (mut c, client) = cluster(15);
    c.write(client, 1, 0, 1);
    let old = c.configs[&shard(1)].epoch;
    // The new processes owe the primary nothing, and answer its keepalives; from the conductor it hears nothing.
    (1..3).for_each(|node| c.w.kill(c.nodes[node]));
    c.take_over(1, 1);
    (1..3).for_each(|node| c.w.restart(c.nodes[node]));
    c.run(Span::millis(100));
    c.until_serving(1);
    let successor = c.client(1, 0);
    c.write(successor, 1, 0, 2);
    let stale = ask_in_epoch(&mut c, client, old);
    c.run(Span::seconds(5));
    let answer = c.answers.get(&stale).map(|(status, _)| *status);
    assert_ne!(answer, Some(Status::Ok), "it read what is not the newest any more");
}

#[test]
fn a_primary_reads_nothing_by_the_promise_of_a_copy_whose_process_is_another_one() {
    let mut c = crate::common::two_with_one_being_filled(19);
    let client = c.client(1, 0);
    c.mute = true;
    let old = c.configs[&shard(1)].epoch;
    c.until("added, as far as the conductor knows", |c| c.in_sync(1) == [0, 1]);
    // The new process owes nothing; the old primary, which hears nothing from the conductor, has it for the one that it is filling.
    c.opened[1].clear();
    c.w.kill(c.nodes[1]);
    c.w.restart(c.nodes[1]);
    c.until("opened again", |c| !c.opened[1].is_empty());
    let open = c.opened[1][0].1;
    c.configs.get_mut(&shard(1)).unwrap().members.iter_mut().filter(|m| m.node.0 == 2).for_each(|m| m.open = open);
    c.run(Span::millis(300));
    c.take_over(1, 1);
    c.until_serving(1);
    let successor = c.client(1, 0);
    c.write(successor, 1, 0, 2);
    let stale = ask_in_epoch(&mut c, client, old);
    c.run(Span::seconds(5));
    let answer = c.answers.get(&stale).map(|(status, _)| *status);
    assert_ne!(answer, Some(Status::Ok), "it read what is not the newest any more");
}

#[test]
fn what_a_deposed_primary_still_reads_is_not_overtaken_by_the_next_ones_writes() {
    let (mut c, client) = cluster(16);
    c.holds_reads[0].set(true);
    let read = c.ask(client, 1, op::READ, 0, 4096, Vec::new());
    c.run(Span::millis(50));
    c.promote(1, 1);
    assert_eq!(c.answer(read).0, Status::StaleEpoch);
    let successor = c.client(1, 0);
    c.write(successor, 1, CHUNK, 2);
    let beside = c.start_write(successor, 1, 0, 2);
    c.run(Span::seconds(1));
    assert!(!c.answers.contains_key(&beside), "its store still reads this block");
    c.holds_reads[0].set(false);
    assert_eq!(c.answer(beside).0, Status::Ok);
    expect(&mut c, &[(0, 2), (CHUNK, 2)]);
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
    let report = c.carry_out(2, 1, ShardOrder::Rollback { snapshot: SnapshotId(7), beyond: false });
    assert!(matches!(report.state, OrderState::Done { .. }), "{report:?}");
    c.orders(&[]);
    c.until_in_sync(1);
    let blocks: Vec<(u32, u8)> = (0..40).map(|at| (at * CHUNK, 1)).collect();
    expect(&mut c, &blocks);
}
