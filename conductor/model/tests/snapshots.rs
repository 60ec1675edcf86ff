//! What the conductor promises about snapshots, rollback and clones, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, DONE, MIB, disk_of, heartbeat, registration, report, with_volume};
use conductor_model::api::{CopyWork, MembershipAnswer, MembershipChange, OrderState, Report, ShardOrder};
use conductor_model::limits::{
    MAX_DEPTH, MAX_SNAPSHOTS_PER_VOLUME, SNAPSHOT_ATTEMPTS, SNAPSHOT_HOLD_MS, SNAPSHOT_PLACE_MS,
};
use conductor_model::views::{CopyRange, NewVolume, SnapshotState, VolumeRange};
use conductor_model::{Bytes, Commit, Durability, Epoch, Error, Millis, NodeId, OpenId, Record, ShardSnapshot};
use std::collections::BTreeSet;

#[test]
fn a_snapshot_is_complete_when_every_primary_has_placed_its_barrier() {
    let mut cluster = with_volume();
    let asked = cluster.begin("db", "a").unwrap();
    let orders = cluster.orders();
    assert_eq!(orders.iter().map(|(node, _)| node).collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(orders.iter().map(|(_, order)| order.id).collect::<BTreeSet<_>>().len(), 3);
    for (n, (node, order)) in orders.iter().enumerate() {
        assert_eq!(order.what, ShardOrder::Barrier { snapshot: asked, hold_ms: SNAPSHOT_HOLD_MS });
        assert_eq!(cluster.orders().len(), 3, "held until the last has said so");
        assert!(cluster.model.snapshot_outcome(asked).is_none(), "after {n}");
        assert_eq!(cluster.model.snapshot_map("db", "a").unwrap_err().kind(), "snapshot-incomplete");
        assert_eq!(cluster.clone_of("copy", "db@a").unwrap_err().kind(), "snapshot-incomplete");
        cluster.say(*node, order, DONE);
        cluster.say(*node, order, DONE);
    }
    assert!(cluster.orders().is_empty(), "its primaries go on");
    let info = cluster.model.snapshot_outcome(asked).unwrap().unwrap();
    assert_eq!((info.state, info.size, info.id), (SnapshotState::Complete, Bytes(3 * MIB), asked));
    let map = cluster.model.snapshot_map("db", "a").unwrap();
    assert_eq!((map.snapshot, map.size, map.shards.len()), (Some(asked), Bytes(3 * MIB), 3));
    cluster.restart();
    cluster.tick();
    assert_eq!(cluster.list("db")[0].state, SnapshotState::Complete);
}

#[test]
fn orders_and_their_end_are_news() {
    let mut cluster = with_volume();
    let before: Vec<u64> = (1..=3).map(|node| cluster.told(node).version).collect();
    cluster.begin("db", "a").unwrap();
    for node in 1..=3 {
        assert!(cluster.model.has_news(NodeId(node), Commit(before[node as usize - 1])));
    }
    let given: Vec<u64> = (1..=3).map(|node| cluster.told(node).version).collect();
    assert!((1..=3).all(|node| !cluster.model.has_news(NodeId(node), Commit(given[node as usize - 1]))));
    cluster.all_done();
    for node in 1..=3 {
        assert!(cluster.model.has_news(NodeId(node), Commit(given[node as usize - 1])), "n{node} holds its writes");
    }
}

#[test]
fn a_primary_that_does_not_answer_fails_the_attempt_and_then_the_snapshot() {
    let mut cluster = with_volume();
    let asked = cluster.begin("db", "a").unwrap();
    let mut ids = BTreeSet::new();
    for attempt in 1..=SNAPSHOT_ATTEMPTS {
        let orders = cluster.orders();
        let ShardOrder::Barrier { snapshot, .. } = orders[0].1.what else { panic!() };
        assert!(ids.insert(snapshot), "attempt {attempt} has an id of its own");
        for (node, order) in orders.iter().filter(|(node, _)| *node != 2) {
            cluster.say(*node, order, DONE);
        }
        cluster.wait(SNAPSHOT_PLACE_MS);
        assert_eq!(cluster.orders().len(), 3, "there is still time");
        cluster.wait(1);
        assert!(cluster.orders().is_empty());
        let drops: Vec<_> = (1..=3).flat_map(|node| cluster.told(node).work).collect();
        let of_it = drops.iter().filter(|w| matches!(w, CopyWork::DropSnapshot(_, id) if *id == snapshot)).count();
        assert_eq!(of_it, 9, "forgotten on every copy");
        if attempt < SNAPSHOT_ATTEMPTS {
            assert!(cluster.model.snapshot_outcome(asked).is_none());
            // A pause: the next attempt begins when the model says so, not before.
            for _ in 0..100 {
                let due = cluster.model.next_deadline().unwrap();
                assert!(due > cluster.now);
                cluster.wait(due.since(cluster.now));
                if !cluster.orders().is_empty() {
                    break;
                }
            }
        }
    }
    let why = cluster.model.snapshot_outcome(asked).unwrap().unwrap_err().to_string();
    assert!(why.contains("6 attempts failed") && why.contains("n2 did not confirm"), "{why}");
    assert!(cluster.list("db").is_empty());
    cluster.restart();
    cluster.work_off();
    assert!((1..=3).all(|node| cluster.told(node).work.is_empty()));
    cluster.snapshot("db", "a");
}

/// As many as requests may wait for.
#[test]
fn each_of_many_that_fail_together_has_its_reason() {
    let mut cluster = Cluster::with_nodes(3);
    let mut asked = Vec::new();
    for volume in 1..=128 {
        let name = format!("v{volume}");
        cluster.create(&name, MIB).unwrap();
        cluster.bear(volume);
        asked.push(cluster.begin(&name, "a").unwrap());
    }
    // Each attempt, and the pause behind it.
    for _ in 0..SNAPSHOT_ATTEMPTS {
        cluster.wait(SNAPSHOT_PLACE_MS + 1);
        (1..=3).for_each(|node| drop(cluster.told(node)));
        cluster.wait(10_000);
        (1..=3).for_each(|node| drop(cluster.told(node)));
    }
    for asked in asked {
        let why = cluster.model.snapshot_outcome(asked).unwrap().unwrap_err().to_string();
        assert!(why.contains("6 attempts failed"), "{why}");
    }
}

#[test]
fn a_late_confirmation_does_not_count() {
    let mut cluster = with_volume();
    let asked = cluster.begin("db", "a").unwrap();
    let orders = cluster.orders();
    for (node, order) in &orders[1..] {
        cluster.say(*node, order, DONE);
    }
    // The driver's tick is late, too.
    cluster.now = Millis(cluster.now.0 + SNAPSHOT_PLACE_MS + 1);
    cluster.say(orders[0].0, &orders[0].1, DONE);
    assert!(cluster.model.snapshot_outcome(asked).is_none());
    cluster.tick();
    assert_eq!(cluster.list("db")[0].state, SnapshotState::Creating);
    assert_ne!(cluster.list("db")[0].id, asked);
    let due = cluster.model.next_deadline().unwrap();
    cluster.wait(due.since(cluster.now));
    cluster.all_done();
    assert_eq!(cluster.model.snapshot_outcome(asked).unwrap().unwrap().state, SnapshotState::Complete);
}

#[test]
fn a_new_epoch_in_the_middle_fails_the_attempt() {
    let mut cluster = with_volume();
    let asked = cluster.begin("db", "a").unwrap();
    let orders = cluster.orders();
    let changed = cluster.config(1, 0);
    let other = changed.members.iter().find(|m| m.copy != changed.primary).unwrap().clone();
    for (node, order) in orders.iter().filter(|(_, order)| order.shard == changed.shard) {
        cluster.say(*node, order, DONE);
    }
    cluster.register(other.node.0, 2).unwrap();
    let reopened = MembershipChange::Reopened(vec![(other.copy, OpenId(2))]);
    assert!(matches!(cluster.ask(&changed, reopened), MembershipAnswer::Granted(_)));
    for (node, order) in orders.iter().filter(|(_, order)| order.shard != changed.shard) {
        cluster.say(*node, order, DONE);
    }
    assert!(cluster.model.snapshot_outcome(asked).is_none(), "not complete");
    let again = cluster.list("db").remove(0);
    assert!(again.state == SnapshotState::Creating && again.id != asked);
    // Whoever confirms the attempt that is over changes nothing.
    for (node, order) in &orders {
        cluster.say(*node, order, DONE);
    }
    assert_eq!(cluster.list("db"), [again]);
}

#[test]
fn a_barrier_placed_in_another_epoch_does_not_count() {
    let mut cluster = with_volume();
    let asked = cluster.begin("db", "a").unwrap();
    for (node, order) in cluster.orders() {
        let epoch = cluster.config(1, order.shard.index.0).epoch;
        cluster.say_in(node, &order, Epoch(epoch.0 - 1), DONE);
        cluster.say_in(node, &order, Epoch(epoch.0 + 1), DONE);
        let not_primary = node % 3 + 1;
        cluster.say_in(not_primary, &order, epoch, DONE);
    }
    assert!(cluster.model.snapshot_outcome(asked).is_none());
    assert_eq!(cluster.orders().len(), 3);
}

#[test]
fn a_refusing_primary_fails_the_attempt_at_once() {
    let mut cluster = with_volume();
    let asked = cluster.begin("db", "a").unwrap();
    for _ in 0..SNAPSHOT_ATTEMPTS {
        let (node, order) = cluster.orders().remove(0);
        cluster.say(node, &order, OrderState::Failed("no space left in the store".to_owned()));
        assert!(cluster.orders().is_empty());
        cluster.wait(10_000);
    }
    let why = cluster.model.snapshot_outcome(asked).unwrap().unwrap_err().to_string();
    assert!(why.contains("no space left"), "{why}");
}

#[test]
fn a_restarted_conductor_forgets_what_was_not_complete() {
    let mut cluster = with_volume();
    let asked = cluster.begin("db", "a").unwrap();
    let orders = cluster.orders();
    cluster.say(orders[0].0, &orders[0].1, DONE);
    cluster.restart();
    assert!(cluster.orders().is_empty(), "its primaries let go");
    cluster.tick();
    assert!(cluster.list("db").is_empty());
    let dropped: BTreeSet<_> = (1..=3).flat_map(|node| cluster.told(node).work).collect();
    assert_eq!(dropped.len(), 9);
    assert!(dropped.iter().all(|w| matches!(w, CopyWork::DropSnapshot(_, id) if *id == asked)));
    cluster.restart();
    assert_eq!((1..=3).flat_map(|node| cluster.told(node).work).collect::<BTreeSet<_>>(), dropped, "until confirmed");
    for (node, order) in &orders {
        cluster.say(*node, order, DONE);
    }
    assert!(cluster.list("db").is_empty());
    let next = cluster.begin("db", "a").unwrap();
    assert!(next > asked, "no id is given out twice");
}

#[test]
fn one_snapshot_at_a_time_and_none_of_what_is_not_there() {
    let mut cluster = with_volume();
    cluster.create("new", MIB).unwrap();
    assert_eq!(cluster.begin("new", "a").unwrap_err().kind(), "busy-volume", "not born yet");
    assert_eq!(cluster.begin("none", "a").unwrap_err().kind(), "no-volume");
    for name in ["", "A", "a@b", "a/b", "..", &"a".repeat(65)] {
        assert_eq!(cluster.begin("db", name).unwrap_err().kind(), "invalid", "{name:?}");
    }
    cluster.begin("db", "a").unwrap();
    let again = cluster.begin("db", "a").unwrap_err();
    assert_eq!(
        (again.kind(), again.to_string()),
        ("snapshot-incomplete", "snapshot db@a is still being made".to_owned())
    );
    assert_eq!(cluster.begin("db", "b").unwrap_err().kind(), "busy-volume");
    assert_eq!(cluster.delete_snapshot("db", "a").unwrap_err().kind(), "snapshot-incomplete");
    let resized = cluster.run(|m, now, mut d| m.resize(now, "db", Bytes(4 * MIB), &mut d));
    assert_eq!(resized.unwrap_err().kind(), "busy-volume");
    cluster.all_done();
    assert_eq!(cluster.begin("db", "a").unwrap_err().kind(), "snapshot-exists");
    for n in 1..MAX_SNAPSHOTS_PER_VOLUME {
        cluster.snapshot("db", &format!("s{n}"));
    }
    assert!(matches!(cluster.begin("db", "more"), Err(Error::Limit { limit: MAX_SNAPSHOTS_PER_VOLUME, .. })));
    cluster.delete_snapshot("db", "s7").unwrap();
    assert!(cluster.begin("db", "more").is_err(), "not before it is gone");
    cluster.work_off();
    cluster.snapshot("db", "more");

    // Stores look through so many layers, of a clone those that it lies on among them.
    let copy = cluster.clone_of("copy", "db@more").unwrap();
    cluster.bear(copy.0);
    for n in 0..MAX_DEPTH - MAX_SNAPSHOTS_PER_VOLUME - 1 {
        cluster.snapshot("copy", &format!("s{n}"));
    }
    let refused = cluster.begin("copy", "more").unwrap_err();
    assert!(
        matches!(refused, Error::Limit { limit: MAX_DEPTH, .. }) && refused.to_string().contains("flatten"),
        "{refused}"
    );
    assert!(cluster.clone_of("deeper", "copy@s110").is_err() && cluster.clone_of("flat", "copy@s0").is_ok());
    cluster.delete_snapshot("copy", "s50").unwrap();
    cluster.work_off();
    cluster.snapshot("copy", "more");
}

#[test]
fn a_deleted_snapshot_is_forgotten_when_every_copy_forgot_it() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    cluster.delete_snapshot("db", "a").unwrap();
    assert_eq!(cluster.delete_snapshot("db", "a").unwrap_err().kind(), "no-snapshot");
    assert_eq!(cluster.snapshot("db", "a").state, SnapshotState::Complete, "the name is free");
    cluster.restart();
    for node in 1..=3 {
        let left = cluster.list("db")[0].drops_left;
        assert_eq!((cluster.list("db")[0].state, left), (SnapshotState::Deleting, 9 - 3 * (node - 1)));
        let report = Report { node: NodeId(node), orders: Vec::new(), worked: cluster.told(node).work };
        for _ in 0..2 {
            cluster.run(|m, now, _| m.report(now, &report)).unwrap();
        }
    }
    assert_eq!(cluster.list("db").len(), 1);
    assert_eq!(cluster.list("db")[0].state, SnapshotState::Complete);
}

/// A node that runs without a disk finds none of its copies, and says that they have no such snapshot.
#[test]
fn what_a_copy_on_a_missing_disk_has_to_forget_waits_for_the_disk() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    let mut other = registration(1, 2);
    other.disks = vec![report(51, 2)];
    cluster.delete_snapshot("db", "a").unwrap();
    let work = cluster.told(1).work;
    cluster.register_as(&other).unwrap();
    let mut beat = heartbeat(1, 2, 0);
    beat.disks[0].0 = disk_of(51);
    assert!(cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap().work.is_empty(), "nothing that it could do");
    let report = Report { node: NodeId(1), orders: Vec::new(), worked: work.clone() };
    cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    assert_eq!(cluster.list("db")[0].drops_left, 9);
    cluster.register(1, 3).unwrap();
    assert_eq!(cluster.beat(1, 3, 0).unwrap().work, work);
    cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    assert_eq!(cluster.list("db")[0].drops_left, 6);
}

#[test]
fn a_copy_that_is_filled_forgets_once_more_what_the_others_have_not_forgotten() {
    let mut cluster = with_volume();
    let snapshot = cluster.snapshot("db", "a").id;
    cluster.delete_snapshot("db", "a").unwrap();
    let config = cluster.config(1, 0);
    let copy = config.members.iter().find(|m| m.copy != config.primary).unwrap().clone();
    let forgets = CopyWork::DropSnapshot(copy.copy, snapshot);
    let work = cluster.told(copy.node.0).work;
    assert!(work.contains(&forgets));
    let report = Report { node: copy.node, orders: Vec::new(), worked: work };
    cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    let config = cluster.grant(&config, MembershipChange::Drop(vec![copy.copy]));
    assert!(cluster.told(copy.node.0).work.is_empty());
    let config = cluster.grant(&config, MembershipChange::Fill(copy.copy, OpenId(1)));
    // Its primary may bring it back, and perhaps it is not there before that: it would have nothing to forget.
    assert!(cluster.told(copy.node.0).work.is_empty());
    let report = Report { node: copy.node, orders: Vec::new(), worked: vec![forgets] };
    cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    let config = cluster.grant(&config, MembershipChange::Add(copy.copy));
    assert_eq!(cluster.told(copy.node.0).work, [forgets], "not before it is filled");
    cluster.work_off();
    cluster.grant(&config, MembershipChange::Drop(vec![copy.copy]));
    let config = cluster.config(1, 0);
    cluster.grant(&config, MembershipChange::Fill(copy.copy, OpenId(1)));
    assert!(cluster.told(copy.node.0).work.is_empty(), "nobody has it any more");
}

#[test]
fn a_deleted_volume_takes_its_snapshots_along() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    cluster.snapshot("db", "b");
    cluster.delete_snapshot("db", "a").unwrap();
    let asked = cluster.begin("db", "c").unwrap();
    cluster.delete("db").unwrap();
    assert!(cluster.model.snapshot_outcome(asked).unwrap().is_err());
    assert!(!cluster.model.snapshot().iter().any(|r| matches!(r, Record::Snapshot(_) | Record::Work(_))));
    assert!((1..=3).all(|node| cluster.told(node).orders.is_empty() && cluster.told(node).work.is_empty()));
}

#[test]
fn nothing_is_rolled_back_or_copied_into_under_whoever_may_still_write() {
    let mut cluster = with_volume();
    cluster.create("other", 3 * MIB).unwrap();
    cluster.bear(2);
    cluster.snapshot("db", "a");
    cluster.snapshot("other", "a");
    cluster.attach("db").unwrap();
    cluster.run(|m, _, _| m.evict("web1")).unwrap();
    let source = "other@a".to_owned();
    let range = CopyRange { source, offset: Bytes(0), length: Bytes(MIB) };
    let copy = |c: &mut Cluster| c.run(|m, now, _| m.copy_range(now, "db", &range)).map(drop);
    let rollback = |c: &mut Cluster| c.run(|m, now, _| m.rollback(now, "db", "a")).map(drop);
    for node in 1..=3 {
        let refused = [rollback(&mut cluster).unwrap_err(), copy(&mut cluster).unwrap_err()];
        assert!(refused.iter().all(|why| why.kind() == "in-use"), "{refused:?}");
        let version = cluster.told(node).version;
        cluster.beat(node, 1, version).unwrap();
    }
    rollback(&mut cluster).unwrap();
}

#[test]
fn a_rollback_keeps_everybody_out_until_it_is_over() {
    let mut cluster = with_volume();
    let snapshot = cluster.snapshot("db", "a").id;
    cluster.attach("db").unwrap();
    let rollback = |c: &mut Cluster, name: &str| c.run(|m, now, _| m.rollback(now, "db", name));
    let refused = rollback(&mut cluster, "a").unwrap_err();
    assert!(refused.kind() == "attached" && refused.to_string().contains("`trine client evict`"), "{refused}");
    cluster
        .run(|m, _, _| {
            let generation = m.map("db")?.attach;
            m.detach("db", &conductor_model::views::Detach { client: "web1".to_owned(), generation })
        })
        .unwrap();
    let info = rollback(&mut cluster, "a").unwrap().rollback.unwrap();
    assert_eq!((info.snapshot.as_str(), info.progress.done, info.progress.of), ("a", 0, 3));
    let events: Vec<String> = cluster.model.events(0).iter().map(|event| event.what.to_string()).collect();
    for what in ["snapshot db@a made", "volume db rolled back to its snapshot a"] {
        assert_eq!(events.iter().filter(|event| *event == what).count(), 1, "{what}: {events:?}");
    }
    assert_eq!(cluster.attach("db").unwrap_err().kind(), "busy-volume");
    assert_eq!(cluster.begin("db", "b").unwrap_err().kind(), "busy-volume");
    assert_eq!(cluster.delete_snapshot("db", "a").unwrap_err().kind(), "busy-volume");
    let (node, order) = cluster.orders().remove(0);
    assert_eq!(order.what, ShardOrder::Rollback { snapshot, beyond: false });
    cluster.say(node, &order, DONE);
    assert_eq!(rollback(&mut cluster, "a").unwrap().rollback.unwrap().progress.done, 1, "asked again");

    cluster.restart();
    cluster.tick();
    assert_eq!(cluster.attach("db").unwrap_err().kind(), "busy-volume");
    let left = cluster.orders();
    assert_eq!(left.len(), 2, "only what is left");
    assert!(left.iter().all(|(_, left)| left.id > order.id && left.shard != order.shard));
    cluster.say(left[0].0, &left[0].1, OrderState::Failed("the disk is full".to_owned()));
    let waiting = cluster.model.show(cluster.now, "db").unwrap().info.rollback.unwrap().progress;
    assert!(waiting.reasons[0].contains("the disk is full"), "{waiting:?}");
    assert_eq!(cluster.orders().len(), 1);
    cluster.wait(10_000);
    for node in 1..=3 {
        cluster.beat(node, 1, 0).unwrap();
    }
    cluster.all_done();
    assert_eq!(cluster.model.show(cluster.now, "db").unwrap().info.rollback, None);
    cluster.attach("db").unwrap();
    assert_eq!(cluster.list("db")[0].state, SnapshotState::Complete, "the snapshot stays");
}

#[test]
fn a_volume_that_has_grown_keeps_its_size_and_reads_as_zeros_beyond_its_snapshot() {
    let mut cluster = Cluster::with_nodes(3);
    // The last shard is no whole one: it grows, and two others come.
    cluster.create("db", 2 * MIB + MIB / 2).unwrap();
    cluster.bear(1);
    let snapshot = cluster.snapshot("db", "a").id;
    let rollback = |c: &mut Cluster, name: &str| c.run(|m, now, _| m.rollback(now, "db", name));
    let old = Bytes(2 * MIB + MIB / 2);
    cluster.run(|m, now, mut d| m.resize(now, "db", Bytes(4 * MIB + 4096), &mut d)).unwrap();
    assert_eq!(rollback(&mut cluster, "a").unwrap_err().kind(), "busy-volume", "the new shards are not there yet");
    (3..5).for_each(|index| drop(cluster.grant(&cluster.config(1, index), MembershipChange::Born)));
    cluster.snapshot("db", "b");
    let info = rollback(&mut cluster, "a").unwrap();
    let (begun, size) = (info.rollback.unwrap(), info.size);
    assert_eq!((begun.zeros_from, begun.progress.of, size), (Some(old), 5, Bytes(4 * MIB + 4096)));
    let said = cluster.model.events(0).last().unwrap().what.to_string();
    assert!(said.contains(&format!("from {old} on, where it has grown since, it is zeroed")), "{said}");
    cluster.restart();
    cluster.tick();
    let orders = cluster.orders();
    assert_eq!(orders.len(), 5);
    for (_, order) in &orders {
        assert_eq!(order.what, ShardOrder::Rollback { snapshot, beyond: order.shard.index.0 > 2 }, "{}", order.shard);
    }
    cluster.all_done();
    let info = cluster.model.show(cluster.now, "db").unwrap().info;
    assert_eq!((info.rollback, info.size), (None, Bytes(4 * MIB + 4096)));
    let map = cluster.model.snapshot_map("db", "a").unwrap();
    assert_eq!((map.size, map.shards.len()), (old, 3), "a snapshot keeps its size");

    // Of one that it has not grown beyond, nothing of that is said: nor to a node of an older program.
    assert_eq!(rollback(&mut cluster, "b").unwrap().rollback.unwrap().zeros_from, None);
    for (_, order) in cluster.orders() {
        let text = serde_json::to_string(&order.what).unwrap();
        assert!(!text.contains("beyond"), "{text}");
    }
    cluster.all_done();
}

#[test]
fn a_rollback_that_does_not_come_to_its_end_is_cancelled_and_it_is_said_what_reads_as_what() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    cluster.snapshot("db", "b");
    let rollback = |c: &mut Cluster| c.run(|m, now, _| m.rollback(now, "db", "a"));
    let cancel = |c: &mut Cluster, name: &str| c.run(|m, now, _| m.cancel_rollback(now, "db", name));
    assert_eq!(cancel(&mut cluster, "a").unwrap_err().kind(), "no-rollback");
    rollback(&mut cluster).unwrap();
    let given = cluster.orders();
    let of = |index: u32| given.iter().find(|(_, order)| order.shard.index.0 == index).unwrap().clone();
    cluster.say(of(1).0, &of(1).1, DONE);
    cluster.say(of(0).0, &of(0).1, OrderState::Failed("it has no such snapshot".to_owned()));
    // Why not is said as long as it does not go on: also while it is tried once more.
    for _ in 0..3 {
        let info = cluster.model.show(cluster.now, "db").unwrap().info;
        let reasons = info.rollback.unwrap().progress.reasons;
        assert!(reasons.len() == 1 && reasons[0].contains("no such snapshot"), "{reasons:?}");
        cluster.pass(2_000, &[(1, 1), (2, 1), (3, 1)]);
    }
    assert_eq!(cluster.orders().len(), 2, "it is");

    assert_eq!(cancel(&mut cluster, "b").unwrap_err().kind(), "no-rollback");
    assert_eq!(cancel(&mut cluster, "none").unwrap_err().kind(), "no-snapshot");
    let info = cancel(&mut cluster, "a").unwrap();
    let range = |from, to| VolumeRange { offset: Bytes(from * MIB), length: Bytes((to - from) * MIB) };
    let said = info.cancelled_rollback.unwrap();
    assert_eq!(
        (said.snapshot.as_str(), said.done, said.left),
        ("a", vec![range(1, 2)], vec![range(0, 1), range(2, 3)])
    );
    assert_eq!((info.rollback, info.attachment), (None, None));
    let event = cluster.model.events(0).last().unwrap().what.to_string();
    assert_eq!(event, "rollback of volume db to a cancelled: 1 of 3 shards read as that");
    assert_eq!(cancel(&mut cluster, "a").unwrap_err().kind(), "no-rollback");
    assert!(cluster.orders().is_empty());
    // A primary that has not heard it may be at it: till then nobody has the volume, and the snapshot stays.
    cluster.say(of(2).0, &of(2).1, DONE);
    cluster.restart();
    cluster.tick();
    for node in 1..=3 {
        assert_eq!(cluster.attach("db").unwrap_err().kind(), "busy-volume", "n{node} has not heard it");
        assert_eq!(cluster.delete_snapshot("db", "a").unwrap_err().kind(), "busy-volume");
        let version = cluster.told(node).version;
        cluster.beat(node, 1, version).unwrap();
    }
    let said = |c: &Cluster| c.model.show(c.now, "db").unwrap().info.cancelled_rollback;
    assert_eq!(said(&cluster).unwrap().done, [range(1, 2)]);
    cluster.attach("db").unwrap();
    assert_eq!(said(&cluster), None, "whoever has it now writes what he will");
    let detach = |m: &mut conductor_model::Conductor, _, _: &mut dyn FnMut() -> u64| {
        let generation = m.map("db")?.attach;
        m.detach("db", &conductor_model::views::Detach { client: "web1".to_owned(), generation })
    };
    cluster.run(detach).unwrap();

    // Or it is rolled back once more, from the beginning.
    rollback(&mut cluster).unwrap();
    cancel(&mut cluster, "a").unwrap();
    assert_eq!(said(&cluster).unwrap().left, [range(0, 3)]);
    let again = rollback(&mut cluster).unwrap();
    assert_eq!((again.cancelled_rollback, again.rollback.unwrap().progress.done), (None, 0));
    cluster.all_done();
    let info = cluster.model.show(cluster.now, "db").unwrap().info;
    assert_eq!((info.rollback, info.cancelled_rollback), (None, None));
}

#[test]
fn a_clone_lies_where_its_parent_lies() {
    let mut cluster = with_volume();
    for node in 4..=5 {
        cluster.register(node, 1).unwrap();
    }
    let snapshot = cluster.snapshot("db", "a").id;
    let id = cluster.clone_of("copy", "db@a").unwrap();
    for index in 0..3 {
        let (parent, clone) = (cluster.config(1, index), cluster.config(id.0, index));
        assert_eq!(clone.parent, Some(ShardSnapshot { shard: parent.shard, snapshot }));
        assert_eq!((clone.size, clone.born, clone.in_sync()), (parent.size, false, 3));
        let disks = |c: &conductor_model::Configuration| c.members.iter().map(|m| m.disk).collect::<BTreeSet<_>>();
        assert_eq!(disks(&clone), disks(&parent));
        assert_eq!(clone.primary_member().unwrap().node, parent.primary_member().unwrap().node);
        assert!(clone.members.iter().all(|m| parent.member(m.copy).is_none()), "copies of its own");
    }
    let larger = NewVolume { size: Bytes(5 * MIB), ..NewVolume::clone_of("larger", "db@a") };
    let larger = cluster.make(&larger).unwrap();
    assert!(cluster.config(larger.0, 2).parent.is_some());
    assert_eq!(cluster.config(larger.0, 3).parent, None);
    let smaller = NewVolume { size: Bytes(2 * MIB), ..NewVolume::clone_of("smaller", "db@a") };
    assert_eq!(cluster.make(&smaller).unwrap_err().kind(), "invalid");
    assert_eq!(cluster.clone_of("x", "db@none").unwrap_err().kind(), "no-snapshot");
    assert_eq!(cluster.clone_of("x", "db").unwrap_err().kind(), "invalid");
    assert_eq!(cluster.model.show(cluster.now, "copy").unwrap().info.parent.as_deref(), Some("db@a"));

    // How many copies there are is for all of them; how many acknowledge a write is not.
    cluster.bear(id.0);
    let set = |c: &mut Cluster, copies, min| c.run(|m, now, _| m.set_copies(now, "copy", copies, min));
    let refused = set(&mut cluster, Some(2), None).unwrap_err();
    assert!(refused.kind() == "in-use" && refused.to_string().contains("flatten them first"), "{refused}");
    assert_eq!(set(&mut cluster, None, Some(3)).unwrap().min_copies, 3);
    assert_eq!((cluster.config(id.0, 0).min_copies, cluster.config(1, 0).min_copies), (3, 2));

    cluster.now = Millis(cluster.now.0 + 11_000);
    for node in [2, 3, 4, 5] {
        cluster.beat(node, 1, 0).unwrap();
    }
    assert_eq!(cluster.clone_of("late", "db@a").unwrap_err().kind(), "not-here");
}

#[test]
fn what_a_clone_needs_is_not_deleted_before_it_is_flattened() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    let id = cluster.clone_of("copy", "db@a").unwrap();
    assert_eq!(cluster.list("db")[0].clones, ["copy"]);
    for refused in [cluster.delete_snapshot("db", "a").unwrap_err(), cluster.delete("db").unwrap_err()] {
        assert!(refused.kind() == "needed" && refused.to_string().contains("copy"), "{refused}");
    }
    let flatten = |c: &mut Cluster, name: &str| c.run(|m, now, _| m.flatten(now, name));
    assert_eq!(flatten(&mut cluster, "db").unwrap_err().kind(), "no-clone");
    assert_eq!(flatten(&mut cluster, "copy").unwrap_err().kind(), "busy-volume", "not born yet");
    cluster.bear(id.0);
    let info = flatten(&mut cluster, "copy").unwrap();
    assert_eq!(info.flatten.unwrap().of, 9);
    cluster.restart();
    assert_eq!(flatten(&mut cluster, "copy").unwrap().flatten.unwrap().done, 0, "asked again");
    for node in 1..=3 {
        assert_eq!(cluster.delete_snapshot("db", "a").unwrap_err().kind(), "needed");
        let work = cluster.told(node).work;
        assert!(work.len() == 3 && work.iter().all(|w| matches!(w, CopyWork::Flatten(_))));
        let report = Report { node: NodeId(node), orders: Vec::new(), worked: work };
        cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    }
    let flat = cluster.config(id.0, 0);
    assert_eq!((flat.parent, flat.epoch), (None, Epoch(2)), "no new epoch");
    assert_eq!(cluster.model.show(cluster.now, "copy").unwrap().info.parent, None);
    cluster.delete_snapshot("db", "a").unwrap();
    cluster.delete("db").unwrap();
}

#[test]
fn a_node_that_joined_before_the_flattening_is_not_doubted() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    let id = cluster.clone_of("copy", "db@a").unwrap();
    cluster.bear(id.0);
    let joined = cluster.config(id.0, 0);
    cluster.run(|m, now, _| m.flatten(now, "copy")).unwrap();
    cluster.work_off();
    let mut register = registration(joined.members[1].node.0, 2);
    register.disks[0].copies = vec![(joined.members[1].copy, joined.clone())];
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    let config = cluster.config(id.0, 0);
    let reopened = MembershipChange::Reopened(vec![(joined.members[1].copy, OpenId(2))]);
    assert!(matches!(cluster.ask(&config, reopened), MembershipAnswer::Granted(c) if c.parent.is_none()));
}

#[test]
fn a_deleted_clone_is_gone_before_its_parent() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    let id = cluster.clone_of("copy", "db@a").unwrap();
    cluster.delete("copy").unwrap();
    cluster.delete_snapshot("db", "a").unwrap();
    for node in 1..=3 {
        let told = cluster.told(node);
        assert_eq!((told.drop.len(), told.work.len()), (3, 0), "the clone first");
    }
    cluster.delete("db").unwrap();
    for node in 1..=3 {
        let told = cluster.told(node);
        assert_eq!(told.drop.len(), 3, "and only the clone");
        let mut beat = heartbeat(node, 1, told.version);
        beat.dropped = told.drop;
        let rest = cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        beat.dropped = if rest.drop.is_empty() { cluster.told(node).drop } else { rest.drop };
        assert_eq!(beat.dropped.len(), 3, "then its parent");
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    }
    assert!(cluster.model.list(cluster.now).is_empty(), "{id}");
}

#[test]
fn durability_is_the_volumes_and_every_shards() {
    let mut cluster = Cluster::with_nodes(3);
    let new = NewVolume { durability: Durability::Flush, shard_size: Bytes(MIB), ..NewVolume::new("db", Bytes(MIB)) };
    cluster.make(&new).unwrap();
    cluster.run(|m, now, mut d| m.resize(now, "db", Bytes(2 * MIB), &mut d)).unwrap();
    assert!((0..2).all(|index| cluster.config(1, index).durability == Durability::Flush));
    assert_eq!(cluster.model.map("db").unwrap().durability, Durability::Flush);
    assert_eq!(cluster.model.show(cluster.now, "db").unwrap().info.durability, Durability::Flush);
}

#[test]
fn records_of_an_older_program_are_read() {
    let mut cluster = with_volume();
    cluster.tick();
    let old: Vec<Record> = cluster
        .file
        .values()
        .map(|record| {
            let mut value = serde_json::to_value(record).unwrap();
            for (kind, fields) in
                [("meta", ["next_snapshot", "next_order", ""]), ("volume", ["durability", "cancelled", "rollback"])]
            {
                if let Some(object) = value.get_mut(kind).and_then(|v| v.as_object_mut()) {
                    fields.iter().for_each(|field| drop(object.remove(*field)));
                }
            }
            serde_json::from_value(value).unwrap()
        })
        .collect();
    let model = conductor_model::Conductor::restore(old, cluster.now).unwrap();
    assert_eq!(model.snapshot(), cluster.model.snapshot());
}

#[test]
fn every_record_survives_json() {
    let mut cluster = with_volume();
    cluster.snapshot("db", "a");
    let id = cluster.clone_of("copy", "db@a").unwrap();
    cluster.bear(id.0);
    cluster.snapshot("copy", "b");
    cluster.delete_snapshot("copy", "b").unwrap();
    cluster.run(|m, now, _| m.flatten(now, "copy")).unwrap();
    cluster.run(|m, now, _| m.rollback(now, "db", "a")).unwrap();
    for record in cluster.model.snapshot() {
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
