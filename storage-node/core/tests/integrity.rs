//! Damage in any copy is found, put right from another, and never returned.

use crate::common::copies::{BLOCKS, Copies, content, contents, range};
use crate::common::{Cluster, Prepared};
use conductor_model::BLOCK;
use conductor_model::api::OrderState;
use driver::Span;
use node_protocol::Status;

/// Long enough for a store's background work to be done.
const REST: Span = Span::seconds(20);

fn written(seed: u64, blocks: u32) -> Copies {
    let mut t = Copies::new(seed);
    t.write(range(0, blocks), 1);
    t
}

/// The same, and all copies know that it is finished everywhere: no settling touches it.
fn known(seed: u64, blocks: u32) -> Copies {
    let mut t = written(seed, blocks);
    t.write(range(900, 1), 1);
    t.write(range(901, 1), 1);
    t
}

#[test]
fn a_read_that_meets_rot_returns_what_was_written_and_the_copy_is_put_right() {
    let mut t = written(1, 64);
    t.rot(0, 7, 1);
    t.rot(0, 40, 1);
    t.assert_reads(range(0, 64), 1);
    assert_eq!((t.counter(0, "damage.found"), t.counter(0, "damage.repaired")), (2, 2));
    let met = t.counter(0, "read.damaged");
    assert!(met > 0 && !t.find(0, 7, 1).is_empty(), "it is on the disk again");
    t.assert_reads(range(0, 64), 1);
    assert_eq!(t.counter(0, "read.damaged"), met, "the second read meets none");
    let disk = &t.c.view(0).unwrap().disks[0];
    assert_eq!((disk.damaged, disk.repaired), (2, 2));
    assert!(t.c.damage[0].contains("put right from another copy"), "{:?}", t.c.damage);
}

#[test]
fn a_thousand_flipped_bits_of_the_primarys_copy_are_all_met_and_put_right() {
    let mut t = written(2, 256);
    t.c.run(REST);
    let mut places: Vec<Vec<u64>> = (0..256).map(|block| t.find(0, block, 1)).collect();
    let mut seen = 0;
    for n in 0..1000u32 {
        let block = n * 89 % 256;
        if places[block as usize].is_empty() {
            places[block as usize] = t.find(0, block, 1);
        }
        for at in places[block as usize].clone() {
            t.c.flip(0, at + u64::from(n * 331 % 4096), (n % 8) as u8);
        }
        t.assert_reads(range(block, 1), 1);
        let repaired = t.counter(0, "damage.repaired");
        assert_eq!(repaired, seen + 1, "flip {n} was met and put right");
        seen = repaired;
    }
    assert_eq!(t.counter(0, "damage.unrepairable") + t.counter(0, "read.unhealed"), 0);
}

#[test]
fn a_partial_write_over_rot_keeps_the_bytes_around_it() {
    let mut t = written(3, 16);
    t.rot(0, 5, 1);
    assert_eq!(t.write_bytes(5 * BLOCK as u64 + 100, vec![0xee; 50]), Status::Ok);
    let mut wanted = contents(4, 3, 1);
    wanted[BLOCK + 100..BLOCK + 150].fill(0xee);
    assert!(t.read(range(4, 3)) == Ok(wanted.clone()));
    assert!(t.counter(0, "read.damaged") > 0);
    for node in 0..3 {
        assert!(!t.c.find(node, &wanted[BLOCK..2 * BLOCK]).is_empty(), "node {node} has the merged block");
    }
}

#[test]
fn what_two_copies_have_lost_comes_from_the_third_and_both_are_put_right() {
    let mut t = written(4, 32);
    t.rot(0, 9, 1);
    t.rot(1, 9, 1);
    t.rot(1, 10, 1);
    t.rot(0, 11, 1);
    t.assert_reads(range(0, 32), 1);
    assert_eq!(t.counter(0, "damage.repaired"), 3, "block 9 twice, block 11; nobody asked node 1 for block 10");
    let disk = &t.c.view(1).unwrap().disks[0];
    assert_eq!((disk.damaged, disk.repaired), (1, 1));
}

#[test]
fn what_no_copy_has_is_an_error_and_harms_nothing_else() {
    let mut t = written(5, 32);
    for node in 0..3 {
        t.rot(node, 20, 1);
    }
    assert_eq!(t.read(range(16, 8)), Err(Status::Io));
    assert_eq!(t.read(range(20, 1)), Err(Status::Io));
    assert_eq!(t.write_bytes(20 * BLOCK as u64 + 1, vec![1]), Status::Io, "what would be merged is lost");
    assert!(t.counter(0, "damage.unrepairable") > 0 && t.c.damage[0].contains("NO COPY HAS IT"));
    t.assert_reads(range(0, 20), 1);
    t.assert_reads(range(21, 11), 1);
    assert_eq!(t.scrub(1), (3, 0));
    let counted = (t.counter(0, "damage.unrepairable"), t.c.view(0).unwrap().disks[0].damaged);
    assert_eq!(counted, (3, 1), "once on each copy, however often it is met");
    t.c.run(Span::millis(100));
    assert!(t.c.troubles.iter().any(|why| why.contains("no copy has block b20")), "{:?}", t.c.troubles);
    t.write(range(20, 1), 2);
    t.c.run(Span::millis(100));
    assert!(t.c.troubles.is_empty(), "it is written again: {:?}", t.c.troubles);
    t.assert_reads(range(20, 1), 2);
    assert_eq!(t.scrub(2), (0, 0));
    assert!(t.c.failed.is_empty(), "{:?}", t.c.failed);
}

#[test]
fn a_scrub_finds_rot_on_every_copy_and_puts_it_right() {
    let mut t = written(6, 400);
    for (node, block) in [(0, 3), (1, 3), (1, 64), (2, 65), (2, 66), (2, 399), (0, 200)] {
        t.rot(node, block, 1);
    }
    assert_eq!(t.scrub(1), (7, 7));
    assert_eq!(t.scrub(2), (0, 0));
    assert_eq!((t.counter(0, "damage.repaired"), t.counter(0, "damage.diverged")), (7, 0));
    for (node, repaired) in [(0, 2), (1, 2), (2, 3)] {
        assert_eq!(t.c.view(node).unwrap().disks[0].repaired, repaired, "node {node}");
    }
    t.assert_reads(range(0, 256), 1);
    assert_eq!(t.counter(0, "read.damaged"), 0, "the scrub was first");
}

#[test]
fn a_scrub_puts_right_what_every_store_keeps_about_itself() {
    let mut t = known(13, 400);
    t.c.run(REST);
    let nodes = 0..3;
    for node in nodes.clone() {
        let (_, second) = t.c.find_pages(node);
        second.iter().for_each(|at| t.c.flip(node, at + 100, 3));
    }
    assert_eq!(t.scrub(1), (0, 0), "no content is damaged");
    // What was put right is durable with the next checkpoint.
    t.write(range(950, 1), 1);
    t.c.run(REST);
    for node in nodes.clone() {
        assert!(t.counter(node, "store.pages-patrolled") > 0, "node {node}");
        assert!(t.counter(node, "store.pages-healed") > 0, "node {node}");
        let (first, _) = t.c.find_pages(node);
        first.iter().for_each(|at| t.c.flip(node, at + 100, 3));
    }
    t.restart([]);
    t.assert_reads(range(0, 256), 1);
    t.assert_reads(range(256, 144), 1);
    for node in nodes {
        assert!(t.counter(node, "store.pages-healed") > 0, "node {node} found its first mirrors bad");
        assert_eq!(t.counter(node, "store.pages-damaged"), 0, "node {node}");
    }
}

#[test]
fn a_scrub_keeps_to_its_rate_says_how_far_it_is_and_goes_on_where_it_is_told() {
    let mut t = written(7, 800);
    t.rot(1, 10, 1);
    t.rot(1, 790, 1);
    let began = t.c.now();
    t.order_scrub(1, 0, 256 << 10);
    let next = |c: &Cluster| match c.reports.last().map(|r| &r.state) {
        Some(OrderState::Running { next, .. }) => next.0,
        _ => 0,
    };
    t.c.until("a part of it", |c| next(c) >= 256);
    let took = t.c.now().since(began);
    assert!(took >= Span::millis(3500), "1 MiB at 256 KiB/s took {took:?}");
    t.c.orders(&[]);
    t.c.run(Span::seconds(2));
    let (pieces, next) = (t.counter(0, "scrub.piece"), next(&t.c));
    t.c.run(Span::seconds(5));
    assert_eq!(t.counter(0, "scrub.piece"), pieces, "an order that is not named any more is over");
    assert_eq!(t.counter(0, "damage.repaired"), 1);
    t.order_scrub(2, next, 1 << 30);
    t.c.until("the rest", |c| matches!(c.reports.last().unwrap().state, OrderState::Done { damaged: 1, repaired: 1 }));
    assert_eq!(t.counter(0, "damage.repaired"), 2);
    t.order_scrub(2, next, 1 << 30);
    let said = t.c.reports.len();
    t.c.until("its being said again", |c| c.reports.len() > said);
    assert_eq!(t.c.reports[said - 1], t.c.reports[said]);
}

#[test]
fn a_scrub_looks_through_snapshots() {
    let mut t = written(8, 64);
    t.restart((0..3).map(|node| (node, vec![Prepared::Snapshot(5)])));
    t.write(range(0, 64), 2);
    for node in [0, 1] {
        t.rot(node, 30, 1);
    }
    t.rot(2, 31, 2);
    assert_eq!(t.scrub(1), (3, 3), "two of the snapshot, one of what is written to");
    for node in 0..3 {
        assert!(!t.find(node, 30, 1).is_empty() && !t.find(node, 31, 2).is_empty());
    }
    assert_eq!(t.scrub(2), (0, 0));
    t.assert_reads(range(0, 64), 2);
}

#[test]
fn a_reader_of_a_snapshot_never_meets_rot() {
    let mut t = written(16, 64);
    t.restart((0..3).map(|node| (node, vec![Prepared::Snapshot(5)])));
    t.write(range(0, 64), 2);
    t.rot(0, 30, 1);
    t.rot(1, 30, 1);
    t.rot(0, 31, 2);
    assert!(t.read_snapshot(5, range(0, 64)) == Ok(contents(0, 64, 1)), "as it was at the barrier");
    assert_eq!(t.counter(0, "damage.repaired"), 2, "of the snapshot, on two copies");
    t.assert_reads(range(0, 64), 2);
    assert_eq!(t.counter(0, "damage.repaired"), 3);
    for node in 0..3 {
        t.rot(node, 40, 1);
    }
    assert!(t.read_snapshot(5, range(32, 16)) == Err(Status::Io), "what no copy has is an error there, too");
    t.assert_reads(range(0, 64), 2);
}

#[test]
fn sound_copies_that_differ_are_counted_and_left_as_they_are() {
    let mut t = known(9, 8);
    t.restart([(1, vec![Prepared::Write(4, content(4, 9))])]);
    assert_eq!(t.scrub(1), (0, 0));
    assert_eq!((t.counter(0, "damage.diverged"), t.counter(0, "damage.rewritten")), (1, 0));
    assert!(t.c.damage.iter().any(|line| line.contains("DIFFER")), "{:?}", t.c.damage);
    assert!(!t.find(1, 4, 9).is_empty());
}

#[test]
fn a_copy_that_refuses_what_all_others_have_is_written_again() {
    let mut t = known(10, 8);
    // As if its metadata were wrong: it wants what nobody else has.
    t.restart([(0, vec![Prepared::Write(4, content(4, 9))])]);
    t.rot(0, 4, 9);
    t.assert_reads(range(0, 8), 1);
    assert_eq!(t.counter(0, "damage.rewritten"), 1);
    assert_eq!(t.scrub(1), (0, 0));
    assert_eq!(t.counter(0, "damage.diverged"), 0, "all are equal again");
}

#[test]
fn a_scrub_has_a_copy_that_refuses_written_again() {
    let mut t = known(11, 8);
    t.restart([(2, vec![Prepared::Write(4, content(4, 9))])]);
    t.rot(2, 4, 9);
    t.scrub(1);
    assert_eq!(t.counter(0, "damage.rewritten"), 1);
    assert_eq!(t.scrub(2), (0, 0));
}

#[test]
fn settling_takes_what_the_primary_cannot_read_from_another_copy() {
    let mut t = written(12, 64);
    let restarted = t.c.now();
    // The last writes are above K: they are settled again, and the primary's copy of one is damaged.
    t.rot(0, 63, 1);
    t.restart([]);
    assert!(t.c.now().since(restarted) < Span::seconds(60));
    t.assert_reads(range(0, 64), 1);
    assert!(t.c.failed.is_empty(), "{:?}", t.c.failed);
    assert_eq!(t.scrub(1), (0, 0));
    assert!(t.counter(0, "settle.split") > 0, "settling met it");
}

#[test]
fn settling_leaves_a_block_that_no_copy_has_and_serves() {
    let mut t = written(13, 64);
    for node in 0..3 {
        t.rot(node, 63, 1);
    }
    t.restart([]);
    assert!(t.counter(0, "settle.damage-left") > 0);
    t.assert_reads(range(0, 63), 1);
    assert_eq!(t.read(range(63, 1)), Err(Status::Io));
    t.write(range(63, 1), 2);
    t.assert_reads(range(63, 1), 2);
}

#[test]
fn a_read_waits_for_the_copy_that_may_have_what_two_have_lost() {
    let mut t = written(14, 16);
    t.rot(0, 3, 1);
    t.rot(1, 3, 1);
    let third = t.c.nodes[2];
    t.c.w.pause(third);
    let tag = t.send_read(range(0, 16));
    t.c.run(Span::millis(400));
    assert!(!t.c.answers.contains_key(&tag), "neither an error nor damaged data");
    t.c.w.resume(third);
    assert!(t.c.answer(tag) == (Status::Ok, contents(0, 16, 1)));
    assert_eq!(t.counter(0, "damage.unrepairable"), 0);
}

#[test]
fn everything_is_given_back_when_the_work_is_done() {
    let mut t = written(15, BLOCKS);
    for node in 0..3 {
        t.rot(node, 17 * (node as u32 + 1), 1);
    }
    t.scrub(1);
    t.read(range(0, 256)).unwrap();
    t.c.run(Span::seconds(1));
    for node in 0..3 {
        let view = t.c.view(node).unwrap();
        assert!(view.refs.iter().all(|line| !line.contains("iocb")), "{:?}", view.refs);
        assert!(view.copies.iter().all(|copy| copy.requests == 0));
    }
}
