//! What the conductor orders, carried out by three real nodes: snapshots and their hold, rollback, copy-range, clones, dropped snapshots.

use crate::common::{BLOCKS, Cluster, copy, of, shard};
use conductor_model::api::{CopyWork, Order, OrderState, ShardOrder};
use conductor_model::{BlockRange, Blocks, CopyState, Durability, OrderId, SnapshotId};
use driver::Span;
use node_protocol::{Status, op};
use sim::State;

fn barrier(snapshot: u64) -> ShardOrder {
    ShardOrder::Barrier { snapshot: SnapshotId(snapshot), hold_ms: 2000 }
}

fn rollback(snapshot: u64) -> ShardOrder {
    ShardOrder::Rollback { snapshot: SnapshotId(snapshot), beyond: false }
}

/// Of a shard that came after that snapshot.
fn zeroing(snapshot: u64) -> ShardOrder {
    ShardOrder::Rollback { snapshot: SnapshotId(snapshot), beyond: true }
}

fn is_done(state: &OrderState) -> bool {
    matches!(state, OrderState::Done { .. })
}

#[test]
fn a_barrier_is_on_every_copy_and_the_snapshot_reads_as_it_was() {
    let mut c = Cluster::new(1);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let writer = c.client(1, 0);
    c.write(writer, 1, 3, 0xaa);
    c.snapshot(1, 7);
    (0..3).for_each(|node| assert_eq!(c.snapshots(1, node), [SnapshotId(7)]));
    c.write(writer, 1, 3, 0xbb);
    let (reader, another) = (c.client(1, 7), c.client(1, 7));
    assert_eq!((c.read(reader, 1, 3), c.read(another, 1, 3), c.read(writer, 1, 3)), (0xaa, 0xaa, 0xbb));
    let token = c.start_write(reader, 1, 3, 1);
    assert_eq!(c.answer(token).0, Status::Denied, "a snapshot is not written to");
    let stranger = c.client(1, 99);
    let token = c.ask(stranger, 1, op::READ, 0, 4096, Vec::new());
    assert_eq!(c.answer(token).0, Status::NoSnapshot);
    assert_eq!(c.read(writer, 1, 3), 0xbb, "the writer was not fenced by readers");
}

#[test]
fn a_write_after_the_barrier_is_executed_but_not_acknowledged_until_the_order_is_over() {
    let mut c = Cluster::new(2);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    let report = c.carry_out(1, 1, barrier(7));
    assert!(is_done(&report.state) && report.epoch == c.configs[&shard(1)].epoch);
    let (write, zero) = (c.start_write(client, 1, 0, 2), c.ask(client, 1, op::DISCARD, 8 * 4096, 4096, Vec::new()));
    let read = c.ask(client, 1, op::READ, 0, 4096, Vec::new());
    let elsewhere = c.ask(client, 1, op::READ, 20 * 4096, 4096, Vec::new());
    c.until("executed", |c| c.count("write.held") == 2);
    assert_eq!(c.answer(elsewhere).0, Status::Ok, "what nobody wrote since is read");
    c.run(Span::millis(500));
    let waits = [write, zero, read].iter().all(|token| !c.answers.contains_key(token));
    assert!(waits, "held, and so is the read of what was written");
    c.orders(&[]);
    assert_eq!((c.answer(write).0, c.answer(zero).0), (Status::Ok, Status::Ok));
    assert_eq!(c.answer(read).1[0], 2);
    c.write(client, 1, 0, 3);
}

#[test]
fn a_hold_ends_by_itself() {
    let mut c = Cluster::new(3);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    c.carry_out(1, 1, barrier(7));
    let placed = c.now();
    c.write(client, 1, 0, 2);
    let held = c.now().since(placed);
    assert!(held > Span::millis(1800) && held < Span::millis(2300), "{held:?}");
}

#[test]
fn a_barrier_named_again_is_placed_once_and_said_again() {
    let mut c = Cluster::new(4);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c.carry_out(1, 1, barrier(7));
    let (said, placed) = (c.reports.len(), c.count("barrier.placed"));
    c.carry_out(1, 1, barrier(7));
    c.run(Span::millis(100));
    assert_eq!((c.reports.len(), c.count("barrier.placed")), (said + 1, placed));
}

#[test]
fn a_barrier_that_a_copy_does_not_get_is_given_up_and_writes_go_on() {
    let mut c = Cluster::new(5);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    c.w.partition(c.nodes[0], c.nodes[2]);
    let report = c.carry_out(1, 1, barrier(7));
    assert!(matches!(report.state, OrderState::Failed(_)), "{report:?}");
    // The conductor gives it up as well: dropped before the copy hears of the barrier.
    c.orders(&[]);
    let drops: Vec<_> = (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).collect();
    c.work(&drops);
    c.until("dropped", |c| drops.iter().all(|work| c.worked.contains(work)));
    c.w.heal_all();
    c.write(client, 1, 0, 2);
    c.until_in_sync(1);
    (0..3).for_each(|node| assert!(c.snapshots(1, node).is_empty(), "node {node} made a snapshot that was dropped"));
    c.snapshot(1, 8);
    (0..3).for_each(|node| assert_eq!(c.snapshots(1, node), [SnapshotId(8)]));
}

#[test]
fn an_unfinished_barrier_dies_with_its_epoch_and_is_not_settled_as_data() {
    let mut c = Cluster::new(6);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    let settled = c.count("settle.piece");
    c.w.kill(c.nodes[2]);
    let order = Order {
        id: OrderId(1),
        shard: shard(1),
        what: ShardOrder::Barrier { snapshot: SnapshotId(7), hold_ms: 60_000 },
    };
    c.orders(&[order]);
    c.until("on the others", |c| c.snapshots(1, 0).len() + c.snapshots(1, 1).len() == 2);
    c.w.restart(c.nodes[2]);
    let report = c.outcome(1);
    assert!(matches!(report.state, OrderState::Failed(_)), "{report:?}");
    c.orders(&[]);
    c.until_serving(1);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 2);
    let pieces = c.count("settle.piece") - settled;
    assert!(pieces <= 1, "{pieces} pieces settled: the write above K, not the whole shard");
    assert_eq!(c.w.state(c.nodes[2]), State::Running);
}

#[test]
fn a_rollback_reads_as_the_snapshot_on_every_copy() {
    let mut c = Cluster::new(7);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    c.snapshot(1, 7);
    c.write(client, 1, 0, 2);
    c.write(client, 1, 9, 2);
    let report = c.carry_out(2, 1, rollback(7));
    assert!(is_done(&report.state), "{report:?}");
    c.orders(&[]);
    for node in [0, 1, 2] {
        if node != 0 {
            c.promote(1, node);
        }
        let client = c.client(1, 0);
        assert_eq!((c.read(client, 1, 0), c.read(client, 1, 9)), (1, 0), "node {node}");
        c.write(client, 1, 20, 5);
    }
    let report = c.carry_out(3, 1, rollback(55));
    assert!(matches!(report.state, OrderState::Failed(_)), "{report:?}");
}

#[test]
fn a_rollback_survives_the_restart_of_a_copy() {
    // The restarted copy is left behind and filled, or, where all three are needed, joins the next epoch.
    for min_copies in [2, 3] {
        let mut c = Cluster::new(8);
        c.create_unborn(1, &[0, 1, 2], None, Durability::Always);
        c.configs.get_mut(&shard(1)).unwrap().min_copies = min_copies;
        c.until_serving(1);
        let client = c.client(1, 0);
        c.write(client, 1, 0, 1);
        c.snapshot(1, 7);
        c.write(client, 1, 0, 2);
        c.w.kill(c.nodes[1]);
        c.orders(&[Order { id: OrderId(2), shard: shard(1), what: rollback(7) }]);
        c.run(Span::millis(300));
        c.w.restart(c.nodes[1]);
        assert!(is_done(&c.outcome(2).state));
        c.orders(&[]);
        assert_eq!(c.count("member.left-behind"), u64::from(min_copies == 2));
        c.until_in_sync(1);
        for node in [1, 2] {
            c.promote(1, node);
            let client = c.client(1, 0);
            assert_eq!(c.read(client, 1, 0), 1, "node {node} of {min_copies}");
        }
    }
}

#[test]
fn a_shard_that_came_after_the_snapshot_reads_as_zeros_on_every_copy_and_later_snapshots_stay() {
    for durability in [Durability::Always, Durability::Flush] {
        let mut c = Cluster::new(17);
        c.create(1, &[0, 1, 2], None, durability);
        let client = c.client(1, 0);
        (0..BLOCKS).for_each(|at| c.write(client, 1, at, 1));
        c.snapshot(1, 8);
        c.write(client, 1, 9, 2);
        // It is not taken for something else.
        for (id, what) in [(1, rollback(7)), (2, zeroing(8))] {
            let report = c.carry_out(id, 1, what);
            assert!(matches!(report.state, OrderState::Failed(_)), "{report:?}");
        }
        let client = c.client(1, 0);
        assert_eq!((c.read(client, 1, 9), c.read(client, 1, 200)), (2, 1), "nothing was changed");
        // The primary is replaced before anybody has heard that it is done: the next one does it once more.
        let mut said = 0;
        for node in [0, 1, 2] {
            if node != 0 {
                c.promote(1, node);
            }
            let order = Order { id: OrderId(3), shard: shard(1), what: zeroing(7) };
            c.orders(&[order]);
            let done = |c: &Cluster| c.reports.iter().filter(|r| r.id == OrderId(3) && is_done(&r.state)).count();
            c.until("it is zeroed", |c| done(c) > said);
            said = done(&c);
            let (live, later) = (c.client(1, 0), c.client(1, 8));
            for at in [0, 9, 200, BLOCKS - 1] {
                assert_eq!((c.read(live, 1, at), c.read(later, 1, at)), (0, 1), "block {at} on node {node}");
            }
        }
        c.orders(&[]);
        let client = c.client(1, 0);
        c.write(client, 1, 3, 5);
        assert_eq!(c.read(client, 1, 3), 5, "an order that is over changes nothing any more");
    }
}

#[test]
fn a_shard_is_zeroed_as_much_at_a_time_as_a_client_may() {
    let mut c = Cluster::new(18);
    const GIB: u32 = 1 << 18;
    c.blocks = GIB + 40;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    let written = [0, GIB - 1, GIB, GIB + 39];
    written.into_iter().for_each(|at| c.write(client, 1, at, 1));
    assert!(is_done(&c.carry_out(1, 1, zeroing(7)).state));
    assert_eq!(c.count("op.replica-zero"), 2 * 2, "of two pieces, on two copies");
    for node in [1, 2] {
        c.promote(1, node);
        let client = c.client(1, 0);
        for at in written {
            assert_eq!(c.read(client, 1, at), 0, "block {at} on node {node}");
        }
    }
}

#[test]
fn a_copy_that_was_away_while_a_grown_volume_was_rolled_back_is_filled_with_that() {
    // One that is away until it is over, and one that is being filled then.
    for filled_meanwhile in [false, true] {
        let mut c = Cluster::new(19);
        // The first shard has grown since, from the middle of a chunk on, and the other one came after it.
        c.blocks = 202;
        c.create(1, &[0, 1, 2], None, Durability::Always);
        let client = c.client(1, 0);
        (190..202).for_each(|at| c.write(client, 1, at, 1));
        c.snapshot(1, 7);
        c.grow(1, BLOCKS);
        let client = c.client(1, 0);
        (150..BLOCKS).for_each(|at| c.write(client, 1, at, 2));
        c.blocks = BLOCKS;
        c.create(2, &[0, 1, 2], None, Durability::Always);
        let other = c.client(2, 0);
        (0..BLOCKS).for_each(|at| c.write(other, 2, at, 2));
        c.snapshot(1, 8);
        c.snapshot(2, 8);
        c.w.kill(c.nodes[2]);
        c.until("left behind", |c| (1..=2).all(|volume| c.in_sync(volume) == [0, 1]));
        c.until_serving(1);
        c.until_serving(2);
        if filled_meanwhile {
            (0..BLOCKS).for_each(|at| c.write(other, 2, at, 3));
            c.w.restart(c.nodes[2]);
            let member = |c: &Cluster| c.configs[&shard(2)].member(copy(2, 2)).map(|m| m.state);
            c.until("being filled", |c| member(c) == Some(CopyState::Syncing));
        }
        let orders = [(1, rollback(7)), (2, zeroing(7))];
        let orders = orders.map(|(n, what)| Order { id: OrderId(u64::from(n)), shard: shard(n), what });
        c.orders(&orders);
        assert!(is_done(&c.outcome(1).state) && is_done(&c.outcome(2).state));
        c.orders(&[]);
        if !filled_meanwhile {
            c.w.restart(c.nodes[2]);
        }
        c.until_in_sync(1);
        c.until_in_sync(2);
        for node in [0, 1, 2] {
            if node != 0 {
                c.promote(1, node);
                c.promote(2, node);
            }
            let (live, other) = (c.client(1, 0), c.client(2, 0));
            let (later, others) = (c.client(1, 8), c.client(2, 8));
            for (at, value) in [(150, 0), (189, 0), (190, 1), (201, 1), (202, 0), (207, 0), (208, 0), (BLOCKS - 1, 0)] {
                assert_eq!(c.read(live, 1, at), value, "block {at} on node {node}");
                assert_eq!((c.read(later, 1, at), c.read(others, 2, at)), (2, 2), "block {at} on node {node}");
                assert_eq!(c.read(other, 2, at), 0, "block {at} on node {node}");
            }
        }
    }
}

#[test]
fn a_clone_begins_as_its_parents_snapshot_on_every_copy_and_is_flattened() {
    let mut c = Cluster::new(9);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    c.snapshot(1, 7);
    c.write(client, 1, 0, 2);
    c.create(2, &[1, 0, 2], Some(of(1, 7)), Durability::Always);
    let clone = c.client(2, 0);
    assert_eq!((c.read(clone, 2, 0), c.read(clone, 2, 1)), (1, 0));
    c.write(clone, 2, 1, 9);
    assert_eq!((c.read(client, 1, 0), c.read(client, 1, 1)), (2, 0));
    let drops: Vec<_> = (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).collect();
    c.work(&drops);
    c.run(Span::millis(500));
    assert!(c.worked.is_empty(), "the clone needs it");
    let flattens: Vec<_> = (0..3).map(|node| CopyWork::Flatten(copy(2, node))).collect();
    c.work(&flattens);
    c.until("flattened", |c| flattens.iter().all(|work| c.worked.contains(work)));
    c.work(&drops);
    c.until("dropped", |c| drops.iter().all(|work| c.worked.contains(work)));
    c.delete(1);
    for node in [1, 0, 2] {
        if node != 1 {
            c.promote(2, node);
        }
        let clone = c.client(2, 0);
        assert_eq!((c.read(clone, 2, 0), c.read(clone, 2, 1)), (1, 9), "node {node}");
    }
    let absent = CopyWork::Flatten(copy(99, 0));
    c.work(&[absent]);
    c.until("what is not here is done", |c| c.worked.contains(&absent));
}

#[test]
fn a_clone_whose_parent_is_not_on_the_disk_says_so() {
    let mut c = Cluster::new(10);
    c.create(1, &[0, 1], None, Durability::Always);
    c.snapshot(1, 7);
    c.create_unborn(2, &[0, 1, 2], Some(of(1, 7)), Durability::Always);
    c.until("a reason", |c| c.troubles.iter().any(|t| t.contains("n3 refuses") && t.contains("snapshot")));
    c.create_unborn(3, &[0, 1], Some(of(1, 8)), Durability::Always);
    c.until("a reason", |c| c.troubles.iter().any(|t| t.contains("does not hold s8")));
}

fn copy_range(from: conductor_model::ShardSnapshot, first: u32, count: u32) -> ShardOrder {
    ShardOrder::CopyRange { from, at: BlockRange { from: Blocks(first), count: Blocks(count) }, holders: Vec::new() }
}

#[test]
fn a_copied_range_is_shared_where_the_source_is_on_every_disk() {
    let mut c = Cluster::new(11);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c.create(2, &[2, 1, 0], None, Durability::Always);
    check_copy_range(&mut c, "copy.by-sharing");
}

#[test]
fn a_copied_range_is_sent_where_a_disk_lacks_the_source() {
    let mut c = Cluster::new(12);
    c.create(1, &[0, 1], None, Durability::Always);
    c.create(2, &[1, 0, 2], None, Durability::Always);
    check_copy_range(&mut c, "copy.by-bytes");
}

fn check_copy_range(c: &mut Cluster, how: &str) {
    let (source, to) = (c.client(1, 0), c.client(2, 0));
    for (at, value) in [(0, 1), (17, 2), (100, 3), (200, 4)] {
        c.write(source, 1, at, value);
    }
    for at in [0, 50, 100, 200] {
        c.write(to, 2, at, 0xee);
    }
    c.snapshot(1, 7);
    c.write(source, 1, 100, 0xdd);
    let report = c.carry_out(2, 2, copy_range(of(1, 7), 5, BLOCKS - 80));
    assert!(is_done(&report.state), "{report:?}");
    assert_eq!(c.count(how), 1);
    c.orders(&[]);
    c.delete(1);
    let nodes: Vec<usize> = (0..3).filter(|node| c.configs[&shard(2)].member(copy(2, *node)).is_some()).collect();
    for node in nodes {
        if c.primary(2) != node {
            c.promote(2, node);
        }
        let client = c.client(2, 0);
        for (at, value) in [(0, 0xee), (17, 2), (50, 0), (100, 3), (200, 0xee)] {
            assert_eq!(c.read(client, 2, at), value, "block {at} on node {node}");
        }
    }
}

/// As one whose volume's card is another one: that is not put off for them.
#[test]
fn a_scrub_and_a_copy_go_on_in_a_new_epoch_of_their_primary() {
    // Copied by sharing, and by bytes.
    for nodes in [vec![0, 1, 2], vec![0, 1]] {
        let mut c = Cluster::new(21);
        c.create(1, &nodes, None, Durability::Always);
        c.create(2, &[1, 0, 2], None, Durability::Always);
        let (source, to) = (c.client(1, 0), c.client(2, 0));
        (0..BLOCKS).for_each(|at| c.write(source, 1, at, 1 + u8::try_from(at % 200).unwrap()));
        (0..BLOCKS).for_each(|at| c.write(to, 2, at, 0xee));
        c.snapshot(1, 7);
        let scrub = ShardOrder::Scrub { from: Blocks(0), rate: conductor_model::Bytes(1 << 20) };
        let orders = [(1, 1, scrub), (2, 2, copy_range(of(1, 7), 3, BLOCKS - 3))];
        let orders = orders.map(|(id, of, what)| Order { id: OrderId(id), shard: shard(of), what });
        c.orders(&orders);
        c.run(Span::micros(700));
        for _ in 0..3 {
            c.grow(1, BLOCKS);
            c.grow(2, BLOCKS);
            let over = |id| c.reports.iter().any(|r| r.id == OrderId(id) && is_done(&r.state));
            assert!(!over(1), "there is more to be scrubbed");
            c.run(Span::millis(200));
        }
        assert!(is_done(&c.outcome(2).state));
        let OrderState::Done { damaged, .. } = c.outcome(1).state else { panic!("{:?}", c.reports) };
        assert_eq!((damaged, c.count("scrub.started")), (0, 1), "it went on where it was");
        c.orders(&[]);
        for node in [1, 0, 2] {
            if node != 1 {
                c.promote(2, node);
            }
            let client = c.client(2, 0);
            for at in 0..BLOCKS {
                let value = if at < 3 { 0xee } else { 1 + u8::try_from(at % 200).unwrap() };
                assert_eq!(c.read(client, 2, at), value, "block {at} on node {node}");
            }
        }
    }
}

#[test]
fn a_snapshot_that_is_read_all_the_time_is_dropped_and_its_readers_are_told() {
    // Many later ones have gone before it, or none.
    for gone in [0, 100] {
        let mut c = Cluster::new(13);
        c.create(1, &[0, 1, 2], None, Durability::Always);
        let client = c.client(1, 0);
        for at in 0..BLOCKS {
            c.write(client, 1, at, 1);
        }
        c.snapshot(1, 7);
        let drops = |id| (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(id))).collect::<Vec<_>>();
        let before: Vec<CopyWork> = (8..8 + gone).flat_map(drops).collect();
        c.work(&before);
        c.until("those are gone", |c| before.iter().all(|work| c.worked.contains(work)));
        let readers: Vec<_> = (0..4).map(|_| c.client(1, 7)).collect();
        let drops = drops(7);
        let read = |c: &mut Cluster, n: usize| c.ask(readers[n % 4], 1, op::READ, 0, BLOCKS << 12, Vec::new());
        let mut under_way: Vec<u64> = (0..32).map(|n| read(&mut c, n)).collect();
        c.until("they read", |c| under_way.iter().any(|token| c.answers.contains_key(token)));
        let mut refused = 0;
        for _ in 0..2000 {
            c.work(&drops);
            c.run(Span::micros(100));
            for (n, token) in under_way.iter_mut().enumerate() {
                if let Some((status, _)) = c.answers.get(token) {
                    refused += usize::from(*status == Status::NoSnapshot);
                    *token = read(&mut c, n);
                }
            }
        }
        c.until("dropped", |c| drops.iter().all(|work| c.worked.contains(work)));
        assert!(refused > 0 && c.count("work.waits") < 500, "{refused} refused\n{}", c.picture());
    }
}

#[test]
fn a_share_that_was_given_up_and_whose_source_is_gone_keeps_nobody_waiting() {
    for restarts in [false, true] {
        let mut c = Cluster::new(14);
        c.create(1, &[0, 1, 2], None, Durability::Always);
        c.create(2, &[0, 1, 2], None, Durability::Always);
        let source = c.client(1, 0);
        for at in 0..20 {
            c.write(source, 1, at, 5);
        }
        c.snapshot(1, 7);
        if restarts {
            c.w.kill(c.nodes[2]);
        } else {
            c.w.partition(c.nodes[0], c.nodes[2]);
        }
        let order = Order { id: OrderId(2), shard: shard(2), what: copy_range(of(1, 7), 0, BLOCKS) };
        c.orders(&[order]);
        c.until("shared on one other copy", |c| c.count("op.replica-share") == 1);
        c.run(Span::millis(100));
        c.orders(&[]);
        if restarts {
            c.w.restart(c.nodes[2]);
            c.until("the third node is there", |c| c.view(2).is_some());
        }
        let drops: Vec<_> = (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).collect();
        for _ in 0..10 {
            c.work(&drops);
            c.run(Span::millis(20));
        }
        c.until("dropped", |c| drops.iter().all(|work| c.worked.contains(work)));
        c.w.heal_all();
        c.run(Span::seconds(8));
        c.until_serving(2);
        let client = c.client(2, 0);
        c.write(client, 2, 30, 9);
        let found = c.read(client, 2, 3);
        c.delete(1);
        c.promote(2, 2);
        let client = c.client(2, 0);
        assert_eq!((c.read(client, 2, 3), c.read(client, 2, 30)), (found, 9), "equal on every copy");
    }
}

#[test]
fn a_rollback_that_was_cancelled_and_whose_snapshot_is_gone_keeps_nobody_waiting() {
    let mut c = Cluster::new(20);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    (0..20).for_each(|at| c.write(client, 1, at, 5));
    c.snapshot(1, 7);
    (0..20).for_each(|at| c.write(client, 1, at, 6));
    c.w.partition(c.nodes[0], c.nodes[2]);
    c.orders(&[Order { id: OrderId(2), shard: shard(1), what: rollback(7) }]);
    c.until("done on one other copy", |c| c.count("op.replica-rollback") == 1);
    c.run(Span::millis(100));
    c.orders(&[]);
    let drops: Vec<_> = (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).collect();
    c.work(&drops);
    c.until("dropped", |c| drops.iter().all(|work| c.worked.contains(work)));
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    c.until_serving(1);
    let client = c.client(1, 0);
    c.write(client, 1, 30, 9);
    let found = c.read(client, 1, 3);
    c.w.heal_all();
    c.until_in_sync(1);
    for node in [1, 2] {
        c.promote(1, node);
        let client = c.client(1, 0);
        let read = [0, 3, 19, 30].map(|at| c.read(client, 1, at));
        assert_eq!(read, [found, found, found, 9], "equal on every copy: node {node}");
    }
}

/// The window of stamps stands still at a share that cannot be done, and what settles its range needs stamps, too.
#[test]
fn a_share_is_given_up_when_no_stamp_is_left_to_settle_its_range_with() {
    const WINDOW: u32 = 256;
    const PIECE: u32 = 64;
    let range = (WINDOW + 1) * PIECE;
    // As many writes came after it as the window takes; or its range has more pieces with data than the window has room for.
    for (seed, written, behind) in [(15, 1, WINDOW - 1), (16, range, 0)] {
        let mut c = Cluster::with_disks(seed, 1, 160 << 20);
        c.blocks = range + WINDOW;
        c.create(1, &[0, 1, 2], None, Durability::Always);
        c.create(2, &[0, 1, 2], None, Durability::Always);
        let source = c.client(1, 0);
        let lanes: Vec<_> =
            (0..16).map(|lane| c.client_with(2, |info| (info.incarnation, info.lane) = (1, lane))).collect();
        let to = lanes[0];
        (0..written).step_by(PIECE as usize).for_each(|at| c.write(source, 1, at, 5));
        c.snapshot(1, 7);
        c.w.partition(c.nodes[0], c.nodes[2]);
        c.orders(&[Order { id: OrderId(2), shard: shard(2), what: copy_range(of(1, 7), 0, range) }]);
        c.until("shared on one other copy", |c| c.count("op.replica-share") == 1);
        let later: Vec<u64> = (0..behind).map(|n| c.start_write(lanes[n as usize % 16], 2, range + n, 7)).collect();
        c.run(Span::millis(100));
        c.orders(&[]);
        // The third copy cannot share any more.
        let drops: Vec<_> = (0..3).map(|node| CopyWork::DropSnapshot(copy(1, node), SnapshotId(7))).collect();
        for _ in 0..10 {
            c.work(&drops);
            c.run(Span::millis(20));
        }
        c.until("dropped", |c| drops.iter().all(|work| c.worked.contains(work)));
        assert_eq!(c.in_sync(2), [0, 1, 2]);
        c.w.heal_all();
        c.until("given up", |c| c.count("copy.share-given-up") == 1);
        later.into_iter().for_each(|token| assert_eq!(c.answer(token).0, Status::Ok));
        c.run(Span::seconds(1));
        c.until_serving(2);
        c.write(to, 2, 0, 9);
        assert_eq!((c.count("copy.share-given-up"), c.in_sync(2).len()), (1, 3));
        let found = c.read(to, 2, PIECE);
        c.promote(2, 2);
        let client = c.client(2, 0);
        assert_eq!((c.read(client, 2, PIECE), c.read(client, 2, 0)), (found, 9), "equal on every copy");
    }
}
