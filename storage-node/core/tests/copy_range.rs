//! A copy-range whose primary has no copy of the source reads it from the nodes that have one (rule 16).

use crate::common::{Cluster, copy, of, shard};
use conductor_model::api::{CopyWork, Order, OrderReport, OrderState, ShardOrder};
use conductor_model::{BlockRange, Blocks, Bytes, CopyState, Durability, Member, OrderId, SnapshotId};
use driver::Span;
use node_core::Mail;
use node_protocol::{Status, op};

/// Blocks of every shard here: more pieces than are under way at once.
const BLOCKS: u32 = 1024;
const ID: u64 = 50;

/// Volume 1 on the first two nodes, with a snapshot of some content; volume 2, whose primary is the third node, has other content.
fn apart(seed: u64) -> Cluster {
    let mut c = Cluster::new(seed);
    c.blocks = BLOCKS;
    c.create_unborn(1, &[0, 1], None, Durability::Always);
    c.configs.get_mut(&shard(1)).unwrap().min_copies = 1;
    c.until_serving(1);
    c.create(2, &[2, 0], None, Durability::Always);
    let (source, to) = (c.client(1, 0), c.client(2, 0));
    for (at, value) in [(0, 1), (17, 2), (500, 3), (1020, 4)] {
        c.write(source, 1, at, value);
    }
    for at in [0, 50, 500, 1020] {
        c.write(to, 2, at, 0xee);
    }
    c.snapshot(1, 7);
    c.write(source, 1, 500, 0xdd);
    c
}

/// The source's copies on these nodes.
fn on(c: &Cluster, nodes: &[usize]) -> Vec<Member> {
    let member = |node: &usize| c.configs[&shard(1)].member(copy(1, *node)).unwrap().clone();
    nodes.iter().map(member).collect()
}

/// What is to be copied: all but some blocks at both ends.
fn order(holders: Vec<Member>) -> Order {
    let at = BlockRange { from: Blocks(5), count: Blocks(BLOCKS - 15) };
    Order { id: OrderId(ID), shard: shard(2), what: ShardOrder::CopyRange { from: of(1, 7), at, holders } }
}

/// The order was carried out, and every copy of volume 2 reads so.
fn assert_copied(c: &mut Cluster) {
    let report = c.outcome(ID);
    assert!(matches!(report.state, OrderState::Done { .. }), "{report:?}");
    c.orders(&[]);
    c.run(Span::millis(10));
    c.until_in_sync(2);
    for node in [2, 0] {
        if c.primary(2) != node {
            c.promote(2, node);
        }
        let client = c.client(2, 0);
        for (at, value) in [(0, 0xee), (17, 2), (50, 0), (500, 3), (1020, 0xee)] {
            assert_eq!(c.read(client, 2, at), value, "block {at} on node {node}");
        }
    }
}

fn why(report: &OrderReport) -> &str {
    let OrderState::Failed(why) = &report.state else { panic!("{report:?}") };
    why
}

/// Connections that a node has.
fn conns(c: &Cluster, node: usize) -> usize {
    c.view(node).unwrap().refs.iter().filter(|line| line.starts_with("conn")).count()
}

/// Waits until the drop of the snapshot is done on both nodes that have it, telling it again as the conductor does.
fn until_dropped(c: &mut Cluster, drops: &[CopyWork]) {
    for _ in 0..100 {
        c.work(drops);
        c.run(Span::millis(20));
    }
    assert!(drops.iter().all(|work| c.worked.contains(work)), "{}", c.picture());
}

fn drops() -> Vec<CopyWork> {
    [0, 1].map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).to_vec()
}

#[test]
fn a_primary_without_the_source_reads_it_from_a_node_that_has_it_and_lets_go_of_the_link() {
    let mut c = apart(1);
    let before = conns(&c, 1);
    // The one that has nothing to do with volume 2.
    let order = order(on(&c, &[1]));
    c.orders(&[order]);
    c.until("it is asked", |c| c.count("op.snapshot-read") > 0);
    assert_eq!(conns(&c, 1), before + 1, "a link for the source");
    c.outcome(ID);
    // 5 to 1014: 16 pieces of 64 blocks.
    assert_eq!((c.count("copy.fetched"), c.count("op.snapshot-read"), c.count("copy.by-bytes")), (16, 16, 1));
    assert!(c.troubles.is_empty(), "{:?}", c.troubles);
    assert_copied(&mut c);
    c.until("the link is given back", |c| conns(c, 1) == before);
}

#[test]
fn no_client_reads_a_snapshot_as_nodes_do() {
    let mut c = apart(7);
    let client = c.client(1, 0);
    let token = c.ask(client, 1, op::SNAPSHOT_READ, 0, 4096, Vec::new());
    assert_eq!(c.answer(token).0, Status::Denied);
}

#[test]
fn the_second_holder_is_asked_while_the_first_is_away() {
    let mut c = apart(2);
    c.w.partition(c.nodes[2], c.nodes[1]);
    let order = order(on(&c, &[1, 0]));
    c.orders(&[order]);
    assert_copied(&mut c);
    assert_eq!(c.view(0).unwrap().counters["op.snapshot-read"], 16, "all from the second");
    assert!(!c.view(1).unwrap().counters.contains_key("op.snapshot-read"));
}

#[test]
fn while_all_holders_are_away_it_waits_and_says_for_whom_and_a_new_holder_is_heard_of() {
    for heals in [true, false] {
        let mut c = apart(3);
        c.w.partition(c.nodes[2], c.nodes[1]);
        let waits = order(on(&c, &[1]));
        c.orders(std::slice::from_ref(&waits));
        c.until("a reason", |c| c.troubles.iter().any(|t| t.contains("copy-range from s7 of v1/0 waits for n2")));
        c.run(Span::seconds(5));
        assert!(!c.reports.iter().any(|r| r.id == OrderId(ID)), "{:?}", c.reports);
        if heals {
            c.w.heal_all();
        } else {
            // The same order: only who has the source is another one.
            let named = order(on(&c, &[0]));
            c.orders(&[named]);
        }
        assert_copied(&mut c);
        c.until("no trouble any more", |c| c.troubles.is_empty());
    }
}

#[test]
fn a_copy_that_is_being_filled_gives_nothing_until_it_is_in_sync() {
    let mut c = apart(4);
    c.w.kill(c.nodes[1]);
    c.until("it is left behind", |c| c.in_sync(1) == [0]);
    let client = c.client(1, 0);
    for at in 0..40 {
        c.write(client, 1, at, 9);
    }
    c.mail(0, Mail::FillRate(Some(Bytes(0))));
    c.w.restart(c.nodes[1]);
    c.until("it is to be filled", |c| {
        let syncing = c.configs[&shard(1)].members[1].state == CopyState::Syncing;
        syncing && c.count("fill.started") > 0 && c.snapshots(1, 1) == [SnapshotId(7)]
    });
    let order = order(on(&c, &[1]));
    c.orders(&[order]);
    c.run(Span::seconds(2));
    assert!(c.count("copy.waits") > 0 && c.count("op.snapshot-read") == 0, "{}", c.picture());
    c.mail(0, Mail::FillRate(None));
    assert_copied(&mut c);
    assert_eq!(c.view(1).unwrap().counters["op.snapshot-read"], 16);
}

#[test]
fn a_snapshot_that_is_dropped_meanwhile_ends_it_with_a_sentence_and_no_read_is_cut_off() {
    let mut c = apart(5);
    c.holds_reads[0].set(true);
    let order = order(on(&c, &[0, 1]));
    c.orders(&[order]);
    c.until("pieces are read", |c| c.count("op.snapshot-read") == 4);
    c.work(&drops());
    c.run(Span::millis(100));
    assert_eq!(c.count("work.waits"), 1, "dropped on the second node, and not beside the reads of the first");
    c.holds_reads[0].set(false);
    let report = c.outcome(ID);
    assert!(why(&report).contains("of s7 of v1/0 cannot be read: not there on n1, n2"), "{report:?}");
    assert_eq!(c.count("copy.fetched"), 4, "what was read already is written");
    c.orders(&[]);
    until_dropped(&mut c, &drops());
    let client = c.client(2, 0);
    assert_eq!((c.read(client, 2, 17), c.read(client, 2, 500)), (2, 0xee));
    c.write(client, 2, 500, 7);
}

#[test]
fn what_one_holder_reads_damaged_comes_from_the_next_and_what_all_do_is_said() {
    let mut c = apart(6);
    c.create(3, &[0, 2], None, Durability::Always);
    c.run(Span::seconds(20));
    c.rot(0, 3);
    let named = order(on(&c, &[0, 1]));
    c.orders(&[named]);
    assert_copied(&mut c);
    assert_eq!(c.view(1).unwrap().counters["op.snapshot-read"], 1, "one piece");
    // The primary of volume 3 has the damaged copy itself.
    let connected = c.view(0).unwrap().counters["link.connecting"];
    let Order { what, .. } = order(on(&c, &[0, 1]));
    c.holds_reads[1].set(true);
    c.orders(&[Order { id: OrderId(ID + 1), shard: shard(3), what }]);
    c.run(Span::millis(300));
    c.holds_reads[1].set(false);
    let report = c.outcome(ID + 1);
    assert!(matches!(report.state, OrderState::Done { .. }), "{report:?}");
    let client = c.client(3, 0);
    assert_eq!((c.read(client, 3, 17), c.read(client, 3, 500)), (2, 3));
    let counters = c.view(0).unwrap().counters;
    assert_eq!(counters["link.connecting"], connected, "it has a link to the other one, and needs none to itself");
    assert_eq!(c.view(1).unwrap().counters["op.snapshot-read"], 2, "one more");

    let mut c = apart(6);
    c.run(Span::seconds(20));
    (0..2).for_each(|node| c.rot(node, 3));
    let named = order(on(&c, &[0, 1]));
    c.orders(&[named]);
    let report = c.outcome(ID);
    assert!(why(&report).contains("of s7 of v1/0 cannot be read: damaged on n1, n2"), "{report:?}");
}
