//! durability=flush: what is acknowledged when, and what survives.

use crate::common::{Cluster, block};
use conductor_model::Durability;
use driver::Span;
use node_protocol::{Status, op};
use sim::Latency;

#[test]
fn a_flush_reaches_every_copy_and_what_it_covered_survives_all_of_them() {
    let mut c = Cluster::new(21);
    c.create(1, &[0, 1, 2], None, Durability::Flush);
    let client = c.client(1, 0);
    for at in 0..40 {
        c.write(client, 1, at, 7);
    }
    assert_eq!(c.count("op.replica-flush"), 0, "writes are acknowledged without a flush");
    let flush = c.ask(client, 1, op::FLUSH, 0, 0, Vec::new());
    assert_eq!(c.answer(flush).0, Status::Ok);
    assert_eq!(c.count("op.replica-flush"), 2);
    // Two copies take K with the next write; all that is in memory only is lost on all of them.
    c.write(client, 1, 50, 8);
    (0..3).for_each(|node| c.w.cut_power(c.nodes[node]));
    (0..3).for_each(|node| c.w.restart(c.nodes[node]));
    c.run(Span::seconds(1));
    c.until_serving(1);
    for node in 0..3 {
        if node != 0 {
            c.promote(1, node);
        }
        let client = c.client(1, 0);
        for at in 0..40 {
            assert_eq!(c.read(client, 1, at), 7, "block {at} on node {node}");
        }
    }
}

#[test]
fn a_copy_that_lost_unsynced_writes_gets_them_again() {
    let mut c = Cluster::new(22);
    c.create(1, &[0, 1, 2], None, Durability::Flush);
    let client = c.client(1, 0);
    for at in 0..60 {
        c.write(client, 1, at, 7);
    }
    c.w.cut_power(c.nodes[2]);
    c.w.restart(c.nodes[2]);
    c.run(Span::seconds(5));
    c.until_serving(1);
    c.promote(1, 2);
    let client = c.client(1, 0);
    for at in 0..60 {
        assert_eq!(c.read(client, 1, at), 7, "block {at}");
    }
}

#[test]
fn writes_of_a_flush_volume_are_synced_by_themselves_now_and_then() {
    let mut c = Cluster::new(23);
    c.create(1, &[0, 1, 2], None, Durability::Flush);
    let client = c.client(1, 0);
    for n in 0..450u32 {
        c.write(client, 1, n % 50, 1);
    }
    assert_eq!(c.count("flush.by-itself"), 2);
}

#[test]
fn what_is_not_synced_is_bounded_by_what_a_store_lists_to_the_block() {
    let mut c = Cluster::with_disks(27, 1, 160 << 20);
    c.blocks = 8192;
    c.create(1, &[0, 1, 2], None, Durability::Flush);
    let lanes: Vec<_> =
        (0..64).map(|lane| c.client_with(1, |info| (info.incarnation, info.lane) = (1, lane))).collect();
    // A whole window is under way, and the sync behind it.
    c.w.disk(c.disks[2]).latency = Latency::micros(20_000, 1);
    c.w.disk(c.disks[2]).sync_takes = Span::millis(800);
    // Far from each other: a list that is merged names what lies between, too.
    let writes: Vec<u64> = (0..800).map(|n| c.start_write(lanes[n as usize % 64], 1, n * 10, 1)).collect();
    c.run(Span::millis(750));
    let stamped = c.count("leg.started") / 3;
    assert!((400..=node_store::MAX_HELD as u64).contains(&stamped), "{stamped} {}", c.picture());
    writes.iter().for_each(|token| assert_eq!(c.answer(*token).0, Status::Ok));
    assert!(c.count("write.waits-for-flush") > 0);
}

#[test]
fn a_flush_of_a_volume_that_is_always_durable_asks_nobody() {
    let mut c = Cluster::new(24);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    let flush = c.ask(client, 1, op::FLUSH, 0, 0, Vec::new());
    assert_eq!((c.answer(flush).0, c.count("op.replica-flush")), (Status::Ok, 0));
    let odd = c.ask(client, 1, op::FLUSH, 0, 4096, Vec::new());
    assert_eq!(c.answer(odd).0, Status::BadRequest);
}

#[test]
fn a_sync_that_fails_takes_the_disk_out_of_service_and_no_later_one_washes_it_clean() {
    let mut c = Cluster::new(25);
    c.create(1, &[0, 1, 2], None, Durability::Flush);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    let write = c.ask(client, 1, op::WRITE, 4096, 4096, block(2));
    c.answer(write);
    c.w.disk(c.disks[2]).fail_writes = 1;
    let flush = c.ask(client, 1, op::FLUSH, 0, 0, Vec::new());
    c.run(Span::seconds(20));
    assert!(!c.answers.contains_key(&flush), "one copy is not durable: it waits for an epoch without it");
    assert!(!c.failed.is_empty(), "the disk is reported");
}

#[test]
fn a_primary_that_lost_unsynced_writes_takes_them_from_a_copy_that_did_not() {
    let mut c = Cluster::new(26);
    c.create(1, &[0, 1, 2], None, Durability::Flush);
    let client = c.client(1, 0);
    for at in 0..60 {
        c.write(client, 1, at, 7);
    }
    c.w.cut_power(c.nodes[0]);
    c.w.restart(c.nodes[0]);
    c.run(Span::seconds(5));
    c.until_serving(1);
    assert!(c.count("settle.fetched") > 0, "{}", c.picture());
    for node in 0..3 {
        if node != 0 {
            c.promote(1, node);
        }
        let client = c.client(1, 0);
        for at in 0..60 {
            assert_eq!(c.read(client, 1, at), 7, "block {at} on node {node}");
        }
    }
}

/// Loses what is in no copy's journal yet, on these nodes, and opens their stores anew.
fn cut(c: &mut Cluster, nodes: &[usize]) {
    nodes.iter().for_each(|&node| c.w.cut_power(c.nodes[node]));
    nodes.iter().for_each(|&node| c.w.restart(c.nodes[node]));
    c.run(Span::seconds(5));
    c.until_serving(1);
}

#[test]
fn the_cache_generation_rises_when_no_copy_has_kept_its_opening_and_only_then() {
    let mut c = Cluster::new(25);
    c.create(1, &[0, 1, 2], None, Durability::Flush);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 7);
    for round in 0..3 {
        for node in 0..3 {
            cut(&mut c, &[node]);
            assert_eq!((c.count("ask.cache-lost"), c.cache(1)), (0, 0), "round {round}: the others have it all");
        }
    }
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 7);
    cut(&mut c, &[0, 1, 2]);
    assert_eq!(c.cache(1), 1);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 8);
    cut(&mut c, &[0, 1]);
    cut(&mut c, &[2]);
    let client = c.client(1, 0);
    assert_eq!((c.cache(1), c.read(client, 1, 0)), (1, 8), "one copy had it, twice");
}
