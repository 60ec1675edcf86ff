//! What the conductor promises about copy-range, scrubs and space, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, DONE, MIB, disk_of, heartbeat, registration, with_volume};
use conductor_model::api::{DiskIntegrity, MembershipChange, Order, OrderState, ShardOrder};
use conductor_model::limits::{DONE_SHOWN_MS, KEEP_PROGRESS_MS, MAX_ORDERS_AT_ONCE, SCRUB_RATE};
use conductor_model::views::{
    CopyRange, CopyRangeInfo, Detach, Fullness, NewVolume, Scrub, ScrubInfo, ScrubState, ScrubVerb, Space,
};
use conductor_model::{
    BlockRange, Blocks, Bytes, Error, Member, Millis, NodeId, OpenId, OrderId, Record, ShardIndex, VolumeId,
};
use std::collections::BTreeSet;

const HOUR: u64 = 3_600_000;

/// A volume with a complete snapshot `a`, and another one as large.
fn with_two() -> Cluster {
    let mut cluster = with_volume();
    cluster.create("other", 3 * MIB).unwrap();
    cluster.bear(2);
    cluster.snapshot("db", "a");
    cluster
}

fn copy(cluster: &mut Cluster, into: &str, source: &str, offset: u64, length: u64) -> Result<CopyRangeInfo, Error> {
    let range = CopyRange { source: source.to_owned(), offset: Bytes(offset), length: Bytes(length) };
    cluster.run(|m, now, _| m.copy_range(now, into, &range))
}

fn scrub(cluster: &mut Cluster, verb: ScrubVerb, rate: Option<u64>) -> Result<ScrubInfo, Error> {
    let scrub = Scrub { verb, rate: rate.map(Bytes) };
    cluster.run(|m, now, _| m.change_scrub(now, "db", &scrub))
}

fn blocks(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

/// The order of one shard, and who has it.
fn of_shard(cluster: &mut Cluster, index: u32) -> (u32, Order) {
    cluster.orders().into_iter().find(|(_, order)| order.shard.index == ShardIndex(index)).unwrap()
}

#[test]
fn many_orders_of_one_kind_keep_none_of_another_waiting() {
    let mut cluster = with_two();
    for (id, name) in [(3, "large"), (4, "target")] {
        cluster.create(name, 300 * MIB).unwrap();
        cluster.bear(id);
    }
    cluster.snapshot("large", "a");
    copy(&mut cluster, "target", "large@a", 0, 300 * MIB).unwrap();
    cluster.run(|m, now, _| m.rollback(now, "db", "a")).unwrap();
    let orders = cluster.orders();
    let rollbacks = orders.iter().filter(|(_, order)| matches!(order.what, ShardOrder::Rollback { .. })).count();
    assert_eq!((orders.len() - rollbacks, rollbacks), (3 * MAX_ORDERS_AT_ONCE, 3));
}

#[test]
fn a_copied_range_is_split_at_the_shards() {
    let mut cluster = with_two();
    let info = copy(&mut cluster, "other", "db@a", MIB - 4096, MIB + 8192).unwrap();
    assert_eq!((info.progress.done, info.progress.of, info.source.as_str()), (0, MIB + 8192, "db@a"));
    let at: Vec<_> = cluster
        .orders()
        .into_iter()
        .map(|(node, order)| {
            let ShardOrder::CopyRange { from, at, .. } = order.what else { panic!("{order:?}") };
            assert_eq!((from.shard.volume, from.shard.index), (VolumeId(1), order.shard.index));
            assert_eq!(cluster.config(2, order.shard.index.0).primary_member().unwrap().node, NodeId(node));
            (order.shard.index.0, at)
        })
        .collect();
    let at: std::collections::BTreeMap<_, _> = at.into_iter().collect();
    assert_eq!(at.into_values().collect::<Vec<_>>(), [blocks(255, 1), blocks(0, 256), blocks(0, 1)]);
    cluster.all_done();
    cluster.restart();
    let listed = cluster.model.copy_ranges("other").unwrap();
    assert!(listed.len() == 1 && listed[0].done && listed[0].failed.is_none(), "who follows it sees that: {listed:?}");
    assert!(cluster.orders().is_empty());
    cluster.delete_snapshot("db", "a").unwrap();
    cluster.wait(DONE_SHOWN_MS);
    assert!(cluster.model.copy_ranges("other").unwrap().is_empty());
    assert!(!cluster.model.snapshot().iter().any(|r| matches!(r, Record::CopyRange(_))));
}

#[test]
fn a_copy_goes_on_where_it_was_after_a_restart() {
    let mut cluster = with_two();
    let info = copy(&mut cluster, "other", "db@a", 0, 3 * MIB).unwrap();
    let (done_by, done) = of_shard(&mut cluster, 0);
    cluster.say(done_by, &done, DONE);
    let (node, order) = of_shard(&mut cluster, 1);
    cluster.say(node, &order, OrderState::Running { next: Blocks(100), damaged: 0, repaired: 0 });
    // Late, and from beyond the end.
    cluster.say(node, &order, OrderState::Running { next: Blocks(50), damaged: 0, repaired: 0 });
    cluster.say(node, &order, OrderState::Running { next: Blocks(1000), damaged: 0, repaired: 0 });
    let progress = &cluster.model.copy_ranges("other").unwrap()[0].progress;
    assert_eq!(progress.done, MIB + 100 * 4096);
    assert_eq!(of_shard(&mut cluster, 1).1, order, "as long as its primary lives it knows itself");
    // Each report would write the record of all shards anew: that is done now and then.
    let commit = cluster.model.commit();
    cluster.say(node, &order, OrderState::Running { next: Blocks(90), damaged: 0, repaired: 0 });
    assert_eq!(cluster.model.commit(), commit);
    cluster.now = Millis(cluster.now.0 + KEEP_PROGRESS_MS);
    cluster.say(node, &order, OrderState::Running { next: Blocks(100), damaged: 0, repaired: 0 });
    assert!(cluster.model.commit() > commit);

    cluster.register(node, 2).unwrap();
    cluster.restart();
    cluster.tick();
    let told = cluster.beat(node, 2, 0).unwrap().orders;
    let again = told.iter().find(|o| o.shard == order.shard).unwrap();
    assert!(again.id > order.id);
    assert!(matches!(again.what, ShardOrder::CopyRange { at, .. } if at == blocks(100, 156)), "{again:?}");
    assert!(!told.iter().any(|o| o.shard == done.shard), "what is done is not done again");
    assert_eq!(cluster.model.copy_ranges("other").unwrap()[0].id, info.id);
}

#[test]
fn a_node_that_started_anew_is_given_only_the_rest() {
    let mut cluster = with_two();
    copy(&mut cluster, "other", "db@a", 0, MIB).unwrap();
    let (node, order) = of_shard(&mut cluster, 0);
    cluster.say(node, &order, OrderState::Running { next: Blocks(200), damaged: 0, repaired: 0 });
    cluster.register(node, 2).unwrap();
    cluster.tick();
    let told = cluster.beat(node, 2, 0).unwrap().orders;
    assert!(matches!(told[0].what, ShardOrder::CopyRange { at, .. } if at == blocks(200, 56)), "{told:?}");
}

#[test]
fn a_copied_range_names_who_has_the_source_and_follows_every_change_of_that() {
    let mut cluster = with_two();
    copy(&mut cluster, "other", "db@a", 0, MIB).unwrap();
    let (asker, first) = of_shard(&mut cluster, 0);
    let holders = |cluster: &mut Cluster| {
        let (_, order) = of_shard(cluster, 0);
        let ShardOrder::CopyRange { holders, .. } = order.what else { panic!("{order:?}") };
        assert_eq!(order.id, first.id, "the same order");
        holders
    };
    let config = cluster.config(1, 0);
    assert_eq!((holders(&mut cluster), config.in_sync()), (config.members.clone(), 3));
    let left = config.members.iter().find(|m| m.copy != config.primary && m.node != NodeId(asker)).unwrap().clone();
    let without: Vec<Member> = config.members.iter().filter(|m| m.copy != left.copy).cloned().collect();
    let copies = |members: &[Member]| members.iter().map(|m| m.copy).collect::<Vec<_>>();
    let config = cluster.grant(&config, MembershipChange::Drop(vec![left.copy]));
    assert_eq!(copies(&holders(&mut cluster)), copies(&without), "who was dropped may lack it");
    let config = cluster.grant(&config, MembershipChange::Fill(left.copy, OpenId(1)));
    assert_eq!(copies(&holders(&mut cluster)), copies(&without), "so may who is filled");
    let config = cluster.grant(&config, MembershipChange::Add(left.copy));
    assert_eq!(holders(&mut cluster), config.members);

    let mut moved = registration(left.node.0, 1);
    moved.disks[0].endpoint = "127.0.0.9:9999".parse().unwrap();
    cluster.run(|m, now, _| m.register(now, &moved)).unwrap();
    let there = holders(&mut cluster).into_iter().find(|m| m.copy == left.copy).unwrap();
    assert_eq!(there.endpoint, moved.disks[0].endpoint);
}

#[test]
fn ranges_that_cannot_be_copied_are_refused_with_the_reason() {
    let mut cluster = with_two();
    let wide = NewVolume { shard_size: Bytes(2 * MIB), ..NewVolume::new("wide", Bytes(4 * MIB)) };
    let wide = cluster.make(&wide).unwrap();
    cluster.bear(wide.0);
    for (into, offset, length, why) in [
        ("other", 0, 0, "multiples"),
        ("other", 512, 4096, "multiples"),
        ("other", 0, 4097, "multiples"),
        ("other", 3 * MIB, 4096, "beyond the end"),
        ("other", u64::MAX - 4095, 8192, "beyond the end"),
        ("wide", 0, 4096, "equally large"),
        ("db", 0, 4096, "itself"),
    ] {
        let refused = copy(&mut cluster, into, "db@a", offset, length).unwrap_err();
        assert!(refused.kind() == "invalid" && refused.to_string().contains(why), "{into} {offset}: {refused}");
    }
    assert_eq!(copy(&mut cluster, "other", "db@b", 0, 4096).unwrap_err().kind(), "no-snapshot");
    assert_eq!(copy(&mut cluster, "none", "db@a", 0, 4096).unwrap_err().kind(), "no-volume");
    let asked = cluster.begin("db", "c").unwrap();
    assert_eq!(copy(&mut cluster, "other", "db@c", 0, 4096).unwrap_err().kind(), "snapshot-incomplete");
    assert!(cluster.model.snapshot_outcome(asked).is_none());
}

#[test]
fn what_a_copy_reads_is_not_deleted() {
    let mut cluster = with_two();
    let info = copy(&mut cluster, "other", "db@a", 0, 3 * MIB).unwrap();
    for refused in [cluster.delete_snapshot("db", "a").unwrap_err(), cluster.delete("db").unwrap_err()] {
        assert!(refused.kind() == "needed" && refused.to_string().contains("into other"), "{refused}");
    }
    let snapshot_of_other = cluster.begin("other", "b");
    assert!(snapshot_of_other.is_ok(), "barriers and copies are ordered by the primaries");
    let cancel = |c: &mut Cluster, id| c.run(|m, now, _| m.cancel_copy_range(now, "other", id));
    assert_eq!(cancel(&mut cluster, OrderId(999)).unwrap_err().kind(), "no-copy");
    cancel(&mut cluster, info.id).unwrap();
    assert!(cluster.orders().iter().all(|(_, o)| matches!(o.what, ShardOrder::Barrier { .. })));
    cluster.delete_snapshot("db", "a").unwrap();
    // Who follows it learns that it is not done.
    let listed = cluster.model.copy_ranges("other").unwrap().remove(0);
    assert_eq!((listed.id, listed.failed.as_deref()), (info.id, Some("it was cancelled")));
    cancel(&mut cluster, info.id).unwrap();
    assert_eq!(cancel(&mut cluster, info.id).unwrap_err().kind(), "no-copy");
}

#[test]
fn what_is_copied_into_is_not_attached_before_every_primary_has_heard_of_the_end() {
    let mut cluster = with_two();
    cluster.attach("other").unwrap();
    let refused = copy(&mut cluster, "other", "db@a", 0, 3 * MIB).unwrap_err();
    assert!(refused.kind() == "attached" && refused.to_string().contains("`trine client evict`"), "{refused}");
    let generation = cluster.model.map("other").unwrap().attach;
    let detach = Detach { client: "web1".to_owned(), generation };
    cluster.run(|m, _, _| m.detach("other", &detach)).unwrap();

    copy(&mut cluster, "other", "db@a", 0, 3 * MIB).unwrap();
    assert_eq!(cluster.attach("other").unwrap_err().kind(), "busy-volume");
    cluster.all_done();
    cluster.attach("other").unwrap();
    let detach = Detach { client: "web1".to_owned(), generation: cluster.model.map("other").unwrap().attach };
    cluster.run(|m, _, _| m.detach("other", &detach)).unwrap();

    let info = copy(&mut cluster, "other", "db@a", 0, 3 * MIB).unwrap();
    cluster.run(|m, now, _| m.cancel_copy_range(now, "other", info.id)).unwrap();
    let mut heard = 0;
    for node in 1..=3 {
        // A primary that has not heard may still be at it.
        heard += u32::from(cluster.attach("other").is_err());
        let after = cluster.beat(node, 1, 0).unwrap().version;
        cluster.beat(node, 1, after).unwrap();
    }
    assert_eq!(heard, 3, "all three are primaries here");
    cluster.attach("other").unwrap();
}

#[test]
fn a_failed_copy_ends_and_says_why() {
    let mut cluster = with_two();
    let info = copy(&mut cluster, "other", "db@a", 0, 3 * MIB).unwrap();
    let (node, order) = of_shard(&mut cluster, 2);
    cluster.say(node, &order, OrderState::Failed("no space left in the store".to_owned()));
    cluster.wait(60_000);
    assert!(cluster.orders().is_empty());
    let failed = cluster.model.copy_ranges("other").unwrap().remove(0);
    assert_eq!(failed.failed.as_deref(), Some("v2/2: no space left in the store"));
    cluster.delete_snapshot("db", "a").unwrap();
    cluster.restart();
    cluster.run(|m, now, _| m.cancel_copy_range(now, "other", info.id)).unwrap();
    assert!(cluster.model.copy_ranges("other").unwrap().is_empty());
}

#[test]
fn why_a_scrub_does_not_go_on_is_said_until_it_does() {
    let mut cluster = with_two();
    scrub(&mut cluster, ScrubVerb::Start, None).unwrap();
    let (node, order) = of_shard(&mut cluster, 1);
    cluster.say(node, &order, OrderState::Failed("no room".to_owned()));
    let reasons = |c: &Cluster| c.model.scrub("db").unwrap().progress.reasons;
    for _ in 0..4 {
        assert_eq!(reasons(&cluster), ["v1/1: no room"]);
        cluster.pass(1_000, &[(1, 1), (2, 1), (3, 1)]);
    }
    let (node, again) = of_shard(&mut cluster, 1);
    assert!(again.id > order.id, "it is tried again by now");
    cluster.say(node, &again, OrderState::Running { next: Blocks(16), damaged: 0, repaired: 0 });
    assert!(reasons(&cluster).is_empty());
}

#[test]
fn a_node_scrubs_one_shard_at_a_time() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 9 * MIB).unwrap();
    assert_eq!(scrub(&mut cluster, ScrubVerb::Start, None).unwrap_err().kind(), "busy-volume", "not born yet");
    cluster.bear(1);
    let info = scrub(&mut cluster, ScrubVerb::Start, None).unwrap();
    assert_eq!((info.state, info.rate, info.progress.of), (ScrubState::Running, SCRUB_RATE, 9 * MIB));
    let mut seen = BTreeSet::new();
    for round in 0..3 {
        let orders = cluster.orders();
        assert_eq!(orders.iter().map(|(node, _)| node).collect::<BTreeSet<_>>().len(), 3, "round {round}");
        assert_eq!(orders.len(), 3);
        for (node, order) in orders {
            assert!(matches!(order.what, ShardOrder::Scrub { from: Blocks(0), rate } if rate == SCRUB_RATE));
            assert!(seen.insert(order.shard));
            cluster.say(node, &order, DONE);
        }
    }
    assert_eq!(seen.len(), 9);
    let info = cluster.model.scrub("db").unwrap();
    assert_eq!((info.state, info.finished, info.progress.done), (ScrubState::Idle, Some(cluster.now), 9 * MIB));
    assert!(cluster.orders().is_empty());
}

#[test]
fn what_a_scrub_finds_is_counted_once() {
    let mut cluster = with_volume();
    scrub(&mut cluster, ScrubVerb::Start, None).unwrap();
    let (node, order) = of_shard(&mut cluster, 0);
    let running = |next, damaged, repaired| OrderState::Running { next: Blocks(next), damaged, repaired };
    for _ in 0..3 {
        cluster.say(node, &order, running(10, 2, 1));
    }
    let info = cluster.model.scrub("db").unwrap();
    assert_eq!((info.damaged, info.repaired, info.progress.done), (2, 1, 10 * 4096));
    cluster.restart();
    cluster.tick();
    for node in 1..=3 {
        cluster.told(node);
    }
    cluster.tick();
    let (node, again) = of_shard(&mut cluster, 0);
    assert!(again.id != order.id && matches!(again.what, ShardOrder::Scrub { from: Blocks(10), .. }), "{again:?}");
    cluster.say(node, &again, running(20, 1, 1));
    cluster.say(node, &again, OrderState::Done { damaged: 3, repaired: 3 });
    cluster.say(node, &again, OrderState::Done { damaged: 3, repaired: 3 });
    let info = cluster.model.scrub("db").unwrap();
    assert_eq!((info.damaged, info.repaired, info.damaged_ever), (5, 4, 5));
    let status = cluster.model.status(cluster.now);
    assert!(status.warnings.iter().any(|w| w.contains("1 damaged blocks")), "{:?}", status.warnings);
    scrub(&mut cluster, ScrubVerb::Cancel, None).unwrap();
    let fresh = scrub(&mut cluster, ScrubVerb::Start, None).unwrap();
    assert_eq!((fresh.damaged, fresh.damaged_ever, fresh.repaired_ever), (0, 5, 4));
}

#[test]
fn a_scrub_is_paused_resumed_sped_up_and_cancelled() {
    let mut cluster = with_volume();
    for verb in [ScrubVerb::Pause, ScrubVerb::Resume, ScrubVerb::Cancel] {
        assert_eq!(scrub(&mut cluster, verb, None).unwrap_err().kind(), "no-scrub");
    }
    assert_eq!(scrub(&mut cluster, ScrubVerb::Start, Some(4096)).unwrap_err().kind(), "invalid");
    scrub(&mut cluster, ScrubVerb::Start, Some(MIB)).unwrap();
    let (node, order) = of_shard(&mut cluster, 1);
    cluster.say(node, &order, OrderState::Running { next: Blocks(7), damaged: 0, repaired: 0 });
    scrub(&mut cluster, ScrubVerb::Pause, None).unwrap();
    cluster.wait(2 * HOUR);
    assert!(cluster.orders().is_empty());
    cluster.restart();
    for node in 1..=3 {
        cluster.told(node);
    }
    cluster.tick();
    assert!(cluster.orders().is_empty(), "still paused");
    let info = scrub(&mut cluster, ScrubVerb::Resume, Some(2 * MIB)).unwrap();
    assert_eq!((info.state, info.progress.done), (ScrubState::Running, 7 * 4096));
    let rate = Bytes(2 * MIB);
    assert_eq!(of_shard(&mut cluster, 1).1.what, ShardOrder::Scrub { from: Blocks(7), rate });
    let info = scrub(&mut cluster, ScrubVerb::Cancel, None).unwrap();
    assert_eq!((info.state, info.finished), (ScrubState::Idle, None));
    assert!(cluster.orders().is_empty());
}

#[test]
fn every_volume_is_scrubbed_daily_unless_that_is_off() {
    let mut cluster = with_volume();
    let beat_all = |cluster: &mut Cluster| (1..=3).for_each(|node| drop(cluster.told(node)));
    cluster.wait(100 * HOUR);
    assert_eq!(cluster.model.scrub("db").unwrap().state, ScrubState::Idle, "off");
    cluster.create("young", MIB).unwrap_err();
    beat_all(&mut cluster);
    cluster.create("young", MIB).unwrap();
    cluster.bear(2);
    cluster.model.set_scrub_every(Some(24 * HOUR));
    cluster.tick();
    assert_eq!(cluster.model.scrub("db").unwrap().state, ScrubState::Running);
    assert_eq!(cluster.model.scrub("young").unwrap().state, ScrubState::Idle, "not a day old");
    cluster.all_done();
    assert_eq!(cluster.model.scrub("db").unwrap().state, ScrubState::Idle);
    let next = Millis(cluster.now.0 + 24 * HOUR);
    // Once all nodes are silent, nothing is due before.
    cluster.pass(3_000, &[]);
    assert_eq!(cluster.model.next_deadline(), Some(next));
    cluster.wait(next.since(cluster.now) - 1);
    assert_eq!(cluster.model.scrub("db").unwrap().state, ScrubState::Idle);
    cluster.restart();
    cluster.model.set_scrub_every(Some(24 * HOUR));
    cluster.wait(1);
    for volume in ["db", "young"] {
        assert_eq!(cluster.model.scrub(volume).unwrap().state, ScrubState::Running, "{volume}");
    }
}

#[test]
fn a_clock_that_was_far_ahead_keeps_no_volume_from_its_scrubs() {
    let mut cluster = with_volume();
    let right = cluster.now;
    cluster.now = Millis(right.0 + 1_000 * HOUR);
    (1..=3).for_each(|node| drop(cluster.told(node)));
    cluster.model.set_scrub_every(Some(24 * HOUR));
    cluster.tick();
    cluster.all_done();
    assert_eq!(cluster.model.scrub("db").unwrap().state, ScrubState::Idle);
    // A clock that is set right by an hour or so is no reason to read everything again.
    for (now, expected) in [(999, ScrubState::Idle), (0, ScrubState::Running)] {
        cluster.now = Millis(right.0 + now * HOUR);
        cluster.restart();
        cluster.model.set_scrub_every(Some(24 * HOUR));
        cluster.tick();
        assert_eq!(cluster.model.scrub("db").unwrap().state, expected, "{now}");
    }
}

#[test]
fn nodes_that_are_not_heard_are_given_no_scrub() {
    let mut cluster = with_volume();
    cluster.now = Millis(cluster.now.0 + 20_000);
    cluster.told(1);
    scrub(&mut cluster, ScrubVerb::Start, None).unwrap();
    assert_eq!(cluster.told(1).orders.len(), 1);
    assert!(cluster.told(2).orders.is_empty());
    cluster.tick();
    assert_eq!(cluster.told(2).orders.len(), 1, "heard again");
}

fn space_with(cluster: &mut Cluster, used: u64) -> Space {
    let mut beat = heartbeat(1, 1, 0);
    beat.disks = vec![(disk_of(1), OpenId(1), Bytes(used))];
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    cluster.model.space(cluster.now)
}

#[test]
fn nearly_full_disks_are_seen_before_they_are_full() {
    let mut cluster = with_volume();
    let capacity = 1 << 40;
    for (percent, expected) in [
        (50, Fullness::Room),
        (85, Fullness::Room),
        (86, Fullness::NearFull),
        (94, Fullness::Full),
        (120, Fullness::Full),
    ] {
        let space = space_with(&mut cluster, capacity / 100 * percent);
        assert_eq!((space.disks[0].fullness, space.volumes[0].fullness), (expected, expected), "{percent}");
        assert_eq!(space.disks[0].free.0, capacity.saturating_sub(capacity / 100 * percent));
        let warned = cluster.model.status(cluster.now).warnings;
        assert_eq!(warned.iter().any(|w| w.contains("disk") && w.contains("n1")), expected != Fullness::Room);
    }
}

#[test]
fn a_volume_uses_what_all_its_copies_hold() {
    let mut cluster = with_volume();
    assert_eq!(cluster.model.space(cluster.now).volumes[0].used, None, "nobody has counted");
    for node in 1..=3 {
        let mut beat = heartbeat(node, 1, 0);
        for index in 0..3 {
            let config = cluster.config(1, index);
            let here = config.members.iter().find(|m| m.node == NodeId(node)).unwrap();
            beat.copies.push((here.copy, Bytes(4096 * u64::from(node))));
        }
        beat.integrity = vec![DiskIntegrity { disk: disk_of(node), damaged: 3, repaired: 2 }];
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        cluster.told(node);
    }
    assert_eq!(cluster.model.space(cluster.now).volumes[0].used, Some(Bytes(3 * 4096 * 6)), "a silent beat keeps it");
    let mut beat = heartbeat(1, 1, 0);
    beat.integrity = vec![DiskIntegrity { disk: disk_of(1), damaged: 3, repaired: 2 }];
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    let status = cluster.model.status(cluster.now);
    assert_eq!((status.totals.damaged, status.totals.repaired), (3, 2));
    assert_eq!(status.nodes[0].disks[0].damaged, 3);
    assert!(status.notes[0].contains("3 blocks damaged, 2 repaired"), "{:?}", status.notes);
}

/// A scrub takes hours, a copy may wait for a node for as long: a conductor that is lost meanwhile has to be made again from what is so by then.
#[test]
fn a_card_is_renewed_beside_a_scrub_and_a_copy_which_go_on() {
    let mut cluster = with_two();
    cluster.tick();
    scrub(&mut cluster, ScrubVerb::Start, None).unwrap();
    copy(&mut cluster, "other", "db@a", 4096, MIB).unwrap();
    let given = cluster.orders();
    let on_first = |order: &Order| order.shard.index.0 == 0;
    assert!(given.iter().any(|(_, o)| on_first(o) && matches!(o.what, ShardOrder::CopyRange { .. })), "{given:?}");
    for (name, id) in [("db", 1), ("other", 2)] {
        let before = cluster.config(id, 0);
        let making = cluster.begin(name, "later").unwrap();
        cluster.tick();
        assert_eq!(cluster.config(id, 0), before, "not beside a barrier");
        for (node, order) in cluster.orders() {
            if matches!(order.what, ShardOrder::Barrier { .. }) {
                cluster.say(node, &order, DONE);
            }
        }
        assert!(cluster.model.snapshot_outcome(making).unwrap().is_ok());
        cluster.tick();
        let renewed = cluster.config(id, 0);
        assert_eq!(renewed.epoch.0, before.epoch.0 + 1);
        assert_eq!(renewed.card.unwrap().snapshots[0].name, "later");
    }
    let ids = |orders: Vec<(u32, Order)>| orders.into_iter().map(|(_, order)| order.id).collect::<Vec<_>>();
    let left = ids(given);
    assert_eq!(ids(cluster.orders()), left, "the same orders");
}

#[test]
fn records_of_what_is_under_way_survive_json() {
    let mut cluster = with_two();
    copy(&mut cluster, "other", "db@a", 4096, MIB).unwrap();
    scrub(&mut cluster, ScrubVerb::Start, None).unwrap();
    for record in cluster.model.snapshot() {
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
