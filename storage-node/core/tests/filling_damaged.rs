//! Filling from what does not read as it was written: nothing wrong is filled, and who waits is told (rules 4, 11 and 23).

use crate::common::{Cluster, copy, shard};
use crate::filling::{CHUNK, cluster, conductor_answers, start_read};
use conductor_model::api::CopyWork;
use conductor_model::{CopyId, CopyState, Durability, SnapshotId};
use driver::Span;
use node_protocol::{Status, op};

#[test]
fn a_damaged_piece_of_a_snapshot_that_is_dropped_does_not_hold_up_the_filling() {
    let (mut c, client) = cluster(31);
    c.write(client, 1, 0, 77);
    c.snapshot(1, 7);
    c.write(client, 1, 0, 2);
    c.rot(0, 77);
    // What the damaged piece is to be put right from does not come before the snapshot is gone.
    c.holds_reads[1].set(true);
    c.replace(1, 2, CopyId(777));
    c.until("the damage is met", |c| c.count("read.damaged") > 0);
    let work: Vec<CopyWork> = (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).collect();
    c.work(&work);
    c.run(Span::millis(100));
    c.holds_reads[1].set(false);
    c.until_in_sync(1);
    c.promote(1, 2);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 2);
}

/// The only copy that is left has a bad block, and the one that could be filled has something there by itself: whoever waits is told why, and what to
/// do.
#[test]
fn what_keeps_a_sealed_shard_from_being_filled_is_said_and_is_an_error_to_who_reads_it() {
    for in_snapshot in [false, true] {
        let mut c = Cluster::new(32);
        c.min_copies = 2;
        c.create(1, &[0, 1, 2], None, Durability::Always);
        let client = c.client(1, 0);
        c.write(client, 1, 0, 77);
        c.write(client, 1, CHUNK, 5);
        c.w.kill(c.nodes[2]);
        c.until("left behind", |c| c.in_sync(1) == [0, 1]);
        let client = c.client(1, 0);
        c.write(client, 1, 1, 6);
        if in_snapshot {
            c.snapshot(1, 7);
            c.write(client, 1, 0, 2);
        }
        c.run(Span::seconds(5));
        c.w.kill(c.nodes[1]);
        c.until("sealed", |c| c.role(1).contains("sealed"));
        c.rot(0, 77);
        // Who had it is given up.
        c.replace(1, 1, CopyId(777));
        c.w.restart(c.nodes[2]);
        c.until("it is said", |c| c.damage.iter().any(|line| line.contains("NO COPY HAS IT")));
        c.run(Span::seconds(15));
        assert_eq!(c.in_sync(1), [0]);
        let way_out = if in_snapshot { "snapshot s7" } else { "--min-copies 1" };
        assert!(c.troubles.iter().any(|why| why.contains("block b0") && why.contains(way_out)), "{:?}", c.troubles);
        conductor_answers(&mut c);
        let client = c.client(1, 0);
        let (bad, good) = (start_read(&mut c, client, 0), start_read(&mut c, client, CHUNK));
        c.run(Span::seconds(1));
        let status = |c: &Cluster, read| c.answers.get(&read).map(|(status, _)| *status);
        let expected = if in_snapshot { Status::Ok } else { Status::Io };
        assert_eq!((status(&c, bad), status(&c, good)), (Some(expected), Some(Status::Ok)));
        c.run(Span::seconds(40));
        let counts = ["fill.failed", "damage.unrepairable"].map(|name| c.count(name));
        assert!(counts[0] > 1 && counts[1] == 1, "tried again, and found once: {counts:?}");
        if in_snapshot {
            c.work(&[CopyWork::DropSnapshot(copy(1, 0), SnapshotId(7))]);
            c.run(Span::seconds(1));
            assert!(!c.troubles.iter().any(|why| why.contains("snapshot")), "it is gone: {:?}", c.troubles);
        }
    }
}

/// One of the last full set is away: what it may have is nobody's to be written again.
#[test]
fn a_bad_block_that_a_copy_which_is_away_may_have_is_waited_for() {
    let (mut c, _) = cluster(33);
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 77);
    c.w.kill(c.nodes[1]);
    c.until("sealed", |c| c.in_sync(1) == [0] && c.role(1).contains("sealed"));
    c.run(Span::seconds(5));
    c.rot(0, 77);
    c.w.restart(c.nodes[2]);
    c.until("it is said", |c| c.damage.iter().any(|line| line.contains("n2 may have it")));
    conductor_answers(&mut c);
    let client = c.client(1, 0);
    let read = start_read(&mut c, client, 0);
    c.run(Span::seconds(3));
    assert!(c.troubles.iter().any(|why| why.contains("n2 may have it")), "{:?}", c.troubles);
    let said = |c: &Cluster, what: &str| c.troubles.iter().chain(&c.damage).any(|line| line.contains(what));
    assert!(!said(&c, "NO COPY HAS IT") && !said(&c, "--min-copies"));
    assert!(!c.answers.contains_key(&read), "it is waited for");
    c.w.restart(c.nodes[1]);
    c.until_in_sync(1);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 77);
}

#[test]
fn a_snapshot_that_the_primary_has_lost_with_its_metadata_fills_no_copy_with_less_than_there_is() {
    // The maps; and the chunk records, which say nothing about how new anything is.
    for (lists, arrays) in [(false, 0x1000_0000..u32::MAX), (true, 3..4)] {
        let (mut c, client) = cluster(31);
        let blocks: Vec<u32> = (0..10).map(|n| n * CHUNK).collect();
        blocks.iter().for_each(|at| c.write(client, 1, *at, 77));
        c.snapshot(1, 7);
        blocks.iter().for_each(|at| c.write(client, 1, *at, 2));
        c.run(Span::seconds(10));
        c.rot_pages(0, |array| arrays.contains(&array));
        c.until_in_sync(1);
        c.replace(1, 2, CopyId(777));
        if lists {
            c.until_in_sync(1);
            assert!(c.count("read.elsewhere") > 0);
        } else {
            c.until("it is said", |c| c.count("fill.lost-here") > 0);
            c.run(Span::seconds(5));
            assert_eq!(c.in_sync(1), [0, 1]);
            let work: Vec<CopyWork> = (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).collect();
            c.work(&work);
            c.until_in_sync(1);
        }
        c.promote(1, 2);
        let client = c.client(1, 0);
        blocks.iter().for_each(|at| assert_eq!(c.read(client, 1, *at), 2));
    }
}

/// One that cannot be filled from here does not keep writes waiting for one that can.
#[test]
fn a_filling_that_is_stuck_makes_way_for_a_copy_that_has_everything() {
    let (mut c, client) = cluster(31);
    let blocks: Vec<u32> = (0..10).map(|n| n * CHUNK).collect();
    blocks.iter().for_each(|at| c.write(client, 1, *at, 77));
    c.snapshot(1, 7);
    blocks.iter().for_each(|at| c.write(client, 1, *at, 2));
    c.run(Span::seconds(10));
    c.rot_pages(0, |array| array >= 0x1000_0000);
    c.until_in_sync(1);
    c.w.kill(c.nodes[1]);
    c.until("left behind", |c| c.in_sync(1) == [0, 2]);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 3);
    c.snapshot(1, 8);
    c.write(client, 1, 0, 4);
    c.w.kill(c.nodes[2]);
    c.until("sealed", |c| c.in_sync(1) == [0] && c.role(1).contains("sealed"));
    c.w.restart(c.nodes[1]);
    c.until("it is stuck", |c| c.count("fill.lost-here") > 1);
    let said = |c: &Cluster, what: &[&str]| c.troubles.iter().any(|why| what.iter().all(|what| why.contains(what)));
    assert!(said(&c, &["writes wait", "delete that snapshot", "bring n3 back"]), "{:?}", c.troubles);
    c.w.restart(c.nodes[2]);
    // What it is asked at first finds another process; and then it is away for longer.
    c.until_just("it makes way", |c| c.count("fill.made-way") == 1);
    let started = c.count("fill.started");
    c.until_just("its filling begins", |c| c.count("fill.started") > started);
    for away in [Span::millis(600), Span::seconds(10)] {
        c.w.kill(c.nodes[2]);
        c.run(away);
        c.w.restart(c.nodes[2]);
        c.until("its filling came to nothing", |c| c.count("fill.failed") == 1);
    }
    c.until("the other one is filled", |c| c.in_sync(1) == [0, 2]);
    c.until_serving(1);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 4);
    c.write(client, 1, 0, 5);
    c.until("it is stuck again", |c| said(c, &["is not filled", "delete that snapshot", "or stop n1"]));
    let (epoch, made_way) = (c.configs[&shard(1)].epoch, c.count("fill.made-way"));
    c.run(Span::seconds(60));
    assert_eq!(
        (c.configs[&shard(1)].epoch, c.count("fill.made-way")),
        (epoch, made_way),
        "it stays, and nothing moves"
    );
    for snapshot in [7, 8] {
        let work: Vec<CopyWork> =
            (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(snapshot))).collect();
        c.work(&work);
        c.run(Span::seconds(1));
    }
    c.until_in_sync(1);
    c.run(Span::seconds(1));
    assert!(c.troubles.is_empty(), "{:?}", c.troubles);
}

#[test]
fn copies_that_cannot_be_filled_have_their_turn_once() {
    let mut c = Cluster::new(34);
    (c.blocks, c.min_copies) = (210 * CHUNK, 1);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 77);
    c.snapshot(1, 7);
    c.write(client, 1, 0, 2);
    c.run(Span::seconds(10));
    c.rot_pages(0, |array| array >= 0x1000_0000);
    c.until_in_sync(1);
    c.replace(1, 1, CopyId(777));
    c.replace(1, 2, CopyId(778));
    c.until("both had their turn", |c| c.count("fill.made-way") == 1 && c.count("fill.lost-here") > 4);
    let epoch = c.configs[&shard(1)].epoch;
    c.run(Span::seconds(60));
    assert_eq!((c.configs[&shard(1)].epoch, c.in_sync(1)), (epoch, vec![0]));
    // Without it what is left is written anew, as far as it was lost.
    c.work(&[CopyWork::DropSnapshot(copy(1, 0), SnapshotId(7))]);
    let client = c.client(1, 0);
    let token = c.ask(client, 1, op::DISCARD, 0, (210 * CHUNK) << 12, Vec::new());
    assert_eq!(c.answer(token).0, Status::Ok);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 3);
    c.until_in_sync(1);
    c.run(Span::seconds(1));
    assert!(c.troubles.is_empty(), "{:?}", c.troubles);
}

/// It makes way for one that the conductor does not have filled; that one is asked for again when the turns are over.
#[test]
fn a_copy_that_may_not_be_filled_has_had_its_turn() {
    let mut c = Cluster::new(36);
    c.min_copies = 1;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 77);
    c.snapshot(1, 7);
    c.write(client, 1, 0, 2);
    c.run(Span::seconds(10));
    c.rot_pages(0, |array| array >= 0x1000_0000);
    c.until_in_sync(1);
    c.unfit = Some(CopyId(778));
    c.replace(1, 2, CopyId(778));
    c.replace(1, 1, CopyId(777));
    c.until("it is tried", |c| c.count("fill.made-way") == 1 && c.count("ask.refused") > 0);
    c.until("it is stuck again", |c| c.configs[&shard(1)].member(CopyId(777)).unwrap().state == CopyState::Syncing);
    let epoch = c.configs[&shard(1)].epoch;
    c.run(Span::seconds(120));
    assert_eq!((c.configs[&shard(1)].epoch, c.count("fill.made-way")), (epoch, 1), "nothing moves");
    c.unfit = None;
    let is_filled = |c: &Cluster| c.configs[&shard(1)].member(CopyId(778)).unwrap().state == CopyState::Syncing;
    c.run(Span::seconds(200));
    c.until("its turn comes again", |c| c.count("fill.made-way") == 2 && is_filled(c));
}

/// While it serves, the copy is dropped and tried again and again: what keeps it is said all the while, until it is written again.
#[test]
fn what_keeps_a_copy_of_a_shard_that_serves_from_being_filled_is_said() {
    let mut c = Cluster::new(35);
    c.min_copies = 1;
    c.create(1, &[0, 1], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 3, 77);
    c.write(client, 1, CHUNK, 5);
    c.w.kill(c.nodes[1]);
    c.until("left behind", |c| c.in_sync(1) == [0]);
    let client = c.client(1, 0);
    c.write(client, 1, 4, 6);
    c.run(Span::seconds(5));
    c.rot(0, 77);
    c.w.restart(c.nodes[1]);
    let said = |c: &Cluster| c.troubles.iter().any(|why| why.contains("is not filled, because block b3 does not read"));
    c.until("it is said", said);
    for _ in 0..100 {
        c.run(Span::millis(200));
        assert!(said(&c), "{:?}", c.troubles);
    }
    let counts = ["fill.failed", "damage.unrepairable"].map(|name| c.count(name));
    assert!(counts[0] > 1 && counts[1] == 1, "tried again, and found once: {counts:?}");
    let client = c.client(1, 0);
    c.write(client, 1, 3, 6);
    c.run(Span::millis(200));
    assert!(c.troubles.is_empty(), "it is written again: {:?}", c.troubles);
    c.until_in_sync(1);
}

#[test]
fn what_is_lost_here_and_damaged_there_waits_for_the_copy_that_was_away() {
    let (mut c, client) = cluster(41);
    c.write(client, 1, 0, 77);
    c.snapshot(1, 7);
    c.run(Span::seconds(10));
    c.rot_pages(0, |array| array >= 0x1000_0000);
    c.rot(2, 77);
    c.until_in_sync(1);
    let reader = c.client(1, 7);
    // The second copy goes when it is its turn, and the third one's block is damaged.
    let token = c.ask(reader, 1, op::READ, 0, 4096, Vec::new());
    while c.count("read.elsewhere") == 0 {
        assert!(!c.answers.contains_key(&token), "it is read where it is lost");
        c.run(Span::micros(10));
    }
    c.w.kill(c.nodes[1]);
    c.run(Span::seconds(1));
    c.w.restart(c.nodes[1]);
    assert_eq!(c.answer(token).0, Status::StaleEpoch, "it is asked again");
    c.until_in_sync(1);
    assert_eq!(c.read(reader, 1, 0), 77);
}
