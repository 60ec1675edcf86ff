//! Who becomes primary when a primary is gone, one promise per test (rules 10, 11, 19, 25).
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, disk_of, other, registration, report, shard, state, with_volume};
use conductor_model::api::{MembershipAnswer, MembershipChange, ShardOrder};
use conductor_model::views::{Attach, NewVolume, Scrub, ScrubVerb};
use conductor_model::{
    AttachGeneration, Bytes, Commit, Configuration, CopyState, Durability, Key, Millis, NodeId, OpenId,
};
use std::time::Instant;

/// The shard's primary's node, and the two others.
fn roles(config: &Configuration) -> (u32, u32, u32) {
    (config.primary_member().unwrap().node.0, other(config, 0).node.0, other(config, 1).node.0)
}

#[test]
fn a_silent_primary_is_replaced_and_left_out() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let (dead, a, b) = roles(&before);
    cluster.pass(1_500, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.config(1, 0), before, "not silent for long enough");
    assert!(cluster.model.next_deadline().unwrap() <= Millis(cluster.now.0 + 500), "it is looked at in time");
    let commit = cluster.model.commit();
    cluster.pass(500, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.model.commit(), Commit(commit.0 + 1), "one transaction");
    let next = cluster.config(1, 0);
    assert_eq!((next.epoch.0, state(&next, before.primary)), (before.epoch.0 + 1, CopyState::Absent));
    assert_eq!((next.in_sync(), next.full_set.len()), (2, 2));
    assert_eq!(next.members.len(), 3, "it stays listed");
    assert_ne!(cluster.model.map("db").unwrap().shards[0].node, NodeId(dead));
    cluster.pass(5_000, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.config(1, 0), next, "once");
    for index in 1..3 {
        let config = cluster.config(1, index);
        assert_eq!((config.epoch, config.in_sync()), (before.epoch, 3), "its primary is alive and decides");
    }
}

#[test]
fn a_replaced_primary_stays_counted_where_too_few_would_remain() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (dead, a, b) = roles(&first);
    let gone = other(&first, 0).copy;
    cluster.grant(&first, MembershipChange::Drop(vec![gone]));
    cluster.pass(2_000, &[(a, 1), (b, 1)]);
    let next = cluster.config(1, 0);
    assert_eq!(next.primary, other(&first, 1).copy, "{a} is absent, {dead} is silent");
    assert_eq!((state(&next, first.primary), state(&next, gone)), (CopyState::InSync, CopyState::Absent));
    assert!(!next.is_sealed());
}

#[test]
fn a_primary_that_is_cut_off_from_all_others_is_replaced_by_one_of_them() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (one, two) = (other(&first, 0).copy, other(&first, 1).copy);
    let next = cluster.grant(&first, MembershipChange::Drop(vec![one, two]));
    assert!([one, two].contains(&next.primary) && !next.is_sealed());
    assert_eq!((next.in_sync(), state(&next, first.primary)), (2, CopyState::Absent));
    // Those who are not heard themselves are dropped as asked, and so is a single one: one alone is not enough.
    let last = if next.primary == one { two } else { one };
    let sealed = cluster.grant(&next, MembershipChange::Drop(vec![last]));
    assert!(sealed.is_sealed() && sealed.primary == next.primary);
}

#[test]
fn a_copy_that_was_being_filled_is_neither_promoted_nor_kept_in_the_middle() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (_, a, b) = roles(&first);
    let gone = other(&first, 0);
    let next = cluster.grant(&first, MembershipChange::Drop(vec![gone.copy]));
    let filling = cluster.grant(&next, MembershipChange::Fill(gone.copy, OpenId(1)));
    cluster.pass(2_000, &[(a, 1)]);
    assert_eq!(cluster.config(1, 0), filling, "the only other copy is silent");
    cluster.pass(500, &[(a, 1), (b, 1)]);
    let promoted = cluster.config(1, 0);
    assert_eq!((promoted.primary, state(&promoted, gone.copy)), (other(&first, 1).copy, CopyState::Absent));
    assert!(matches!(cluster.ask(&filling, MembershipChange::Add(gone.copy)), MembershipAnswer::Stale(_)));
}

#[test]
fn a_sealed_shard_is_served_by_any_copy_of_its_last_full_set() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (_, a, b) = roles(&first);
    let (early, late) = (other(&first, 0).copy, other(&first, 1).copy);
    let next = cluster.grant(&first, MembershipChange::Drop(vec![early]));
    let sealed = cluster.grant(&next, MembershipChange::Drop(vec![late]));
    assert!(sealed.is_sealed());
    cluster.pass(4_000, &[(a, 1)]);
    assert_eq!(cluster.config(1, 0), sealed, "the copy that left before the last full set may lack a write");
    cluster.pass(500, &[(a, 1), (b, 1)]);
    let promoted = cluster.config(1, 0);
    assert_eq!((promoted.primary, promoted.is_sealed()), (late, false));
    assert_eq!(state(&promoted, first.primary), CopyState::InSync);
    assert_eq!(state(&promoted, early), CopyState::Absent);
}

/// What its disk lacks was acknowledged by the others: it is no way out, however few of them are left.
#[test]
fn a_copy_from_the_past_follows_nobody_before_it_was_filled() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (_, a, b) = roles(&first);
    let (away, past) = (other(&first, 0).copy, other(&first, 1).copy);
    let two = cluster.grant(&first, MembershipChange::Drop(vec![away]));
    let sealed = cluster.grant(&two, MembershipChange::Past(vec![past]));
    assert_eq!((sealed.is_sealed(), sealed.full_set.as_slice()), (true, [first.primary].as_slice()));
    let is_past = |config: &Configuration| config.member(past).unwrap().past;
    assert!(is_past(&sealed) && state(&sealed, past) == CopyState::Absent);
    cluster.pass(5_000, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.config(1, 0), sealed, "nobody has what was acknowledged but the one that is away");
    let filled = cluster.grant(&sealed, MembershipChange::Fill(past, OpenId(1)));
    let again = cluster.grant(&filled, MembershipChange::Drop(vec![past]));
    assert!(is_past(&filled) && is_past(&again), "it begins from nothing, however often");
    cluster.restart();
    let filled = cluster.grant(&again, MembershipChange::Fill(past, OpenId(1)));
    let whole = cluster.grant(&filled, MembershipChange::Add(past));
    assert!(!is_past(&whole) && !whole.is_sealed());
    cluster.pass(5_000, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.config(1, 0).primary, past);
}

/// The same of the primary itself: another copy takes over, and is not given up for it again.
#[test]
fn a_primary_from_the_past_is_followed_and_follows_nobody() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (own, a, b) = roles(&first);
    let (away, heir) = (other(&first, 0).copy, other(&first, 1).copy);
    let two = cluster.grant(&first, MembershipChange::Drop(vec![away]));
    let sealed = cluster.grant(&two, MembershipChange::Past(vec![first.primary]));
    assert_eq!((sealed.primary, sealed.full_set.as_slice()), (heir, [heir].as_slice()));
    let dead = sealed.primary_member().unwrap().node.0;
    let alive: Vec<(u32, u64)> = [own, a, b].into_iter().filter(|node| *node != dead).map(|node| (node, 1)).collect();
    cluster.pass(5_000, &alive);
    assert_eq!(cluster.config(1, 0), sealed);
    // Where nobody else is left, none of it is taken for granted.
    let why = cluster.refuse(&sealed, MembershipChange::Past(vec![heir]));
    assert!(why.contains("no other copy"), "{why}");
    let why = cluster.refuse(&sealed, MembershipChange::Past(vec![away]));
    assert!(why.contains("not in sync"), "{why}");
}

#[test]
fn a_copy_that_was_added_to_a_sealed_shard_may_follow_its_primary() {
    let mut cluster = Cluster::with_nodes(3);
    let new = NewVolume { min_copies: 3, ..NewVolume::new("db", Bytes(MIB)) };
    cluster.make(&new).unwrap();
    cluster.bear(1);
    let first = cluster.config(1, 0);
    let (_, a, _) = roles(&first);
    let (back, gone) = (other(&first, 0).copy, other(&first, 1).copy);
    let sealed = cluster.grant(&first, MembershipChange::Drop(vec![back, gone]));
    let filling = cluster.grant(&sealed, MembershipChange::Fill(back, OpenId(1)));
    let added = cluster.grant(&filling, MembershipChange::Add(back));
    assert!(added.is_sealed());
    assert_eq!(added.full_set, first.full_set);
    cluster.pass(2_000, &[(a, 1)]);
    let promoted = cluster.config(1, 0);
    assert_eq!((promoted.primary, promoted.in_sync()), (back, 3));
}

#[test]
fn fewer_copies_are_enough_only_while_those_in_sync_are_there() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (primary, a, b) = roles(&first);
    let (early, late) = (other(&first, 0).copy, other(&first, 1).copy);
    let next = cluster.grant(&first, MembershipChange::Drop(vec![early]));
    let sealed = cluster.grant(&next, MembershipChange::Drop(vec![late]));
    assert!(sealed.is_sealed());
    let set = |c: &mut Cluster| c.run(|m, now, _| m.set_copies(now, "db", None, Some(1)));
    // All that was acknowledged may be on `late` alone by now: it stays one of the last full set.
    cluster.pass(4_000, &[(a, 1)]);
    let refused = set(&mut cluster).unwrap_err().to_string();
    assert!(refused.contains(&format!("start n{primary}, or n{b}")), "{refused}");
    assert_eq!(cluster.config(1, 0), sealed);
    cluster.pass(500, &[(primary, 1)]);
    set(&mut cluster).unwrap();
    let alone = cluster.config(1, 0);
    assert!(!alone.is_sealed() && alone.full_set == [sealed.primary]);
    cluster.pass(30_000, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.config(1, 0), alone, "it may have acknowledged writes alone");
}

#[test]
fn with_one_copy_enough_the_copy_left_behind_is_never_promoted() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.make(&NewVolume { min_copies: 1, ..NewVolume::new("db", Bytes(MIB)) }).unwrap();
    cluster.bear(1);
    let first = cluster.config(1, 0);
    let (_, a, b) = roles(&first);
    let behind = vec![other(&first, 0).copy, other(&first, 1).copy];
    let alone = cluster.grant(&first, MembershipChange::Drop(behind));
    assert!(!alone.is_sealed());
    cluster.pass(30_000, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.config(1, 0), alone);
}

#[test]
fn a_copy_whose_store_was_not_opened_anew_is_preferred() {
    for durability in [Durability::Flush, Durability::Always] {
        for which in [0, 1] {
            let mut cluster = Cluster::with_nodes(3);
            cluster.make(&NewVolume { durability, ..NewVolume::new("db", Bytes(MIB)) }).unwrap();
            cluster.bear(1);
            let first = cluster.config(1, 0);
            let (restarted, steady) = (other(&first, which), other(&first, 1 - which));
            cluster.register(restarted.node.0, 2).unwrap();
            cluster.pass(2_000, &[(restarted.node.0, 2), (steady.node.0, 1)]);
            let next = cluster.config(1, 0);
            assert_eq!(next.primary, steady.copy);
            assert_eq!(next.member(restarted.copy).unwrap().open, OpenId(2), "what is new is named at once");
        }
    }
}

#[test]
fn a_restarted_conductor_listens_before_it_judges() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let (_, a, b) = roles(&before);
    cluster.pass(1_500, &[(a, 1), (b, 1)]);
    cluster.restart();
    cluster.pass(1_500, &[(a, 1), (b, 1)]);
    assert_eq!(cluster.config(1, 0), before);
    cluster.pass(500, &[(a, 1), (b, 1)]);
    assert_ne!(cluster.config(1, 0).primary, before.primary);
}

#[test]
fn a_conductor_that_stood_still_listens_before_it_judges() {
    let mut cluster = with_volume();
    cluster.pass(500, &[(1, 1), (2, 1), (3, 1)]);
    let before: Vec<_> = (0..3).map(|i| cluster.config(1, i)).collect();
    // Stopped for ten seconds; then one node is heard first.
    cluster.now = Millis(cluster.now.0 + 10_000);
    cluster.beat(1, 1, 0).unwrap();
    cluster.tick();
    cluster.pass(1_000, &[(1, 1), (2, 1), (3, 1)]);
    assert_eq!((0..3).map(|i| cluster.config(1, i)).collect::<Vec<_>>(), before);
    cluster.pass(2_000, &[(1, 1), (2, 1)]);
    assert!((0..3).all(|i| cluster.config(1, i).primary_member().unwrap().node != NodeId(3)));
}

#[test]
fn nobody_is_promoted_where_all_fall_silent() {
    let mut cluster = with_volume();
    let before: Vec<_> = (0..3).map(|i| cluster.config(1, i)).collect();
    // The last heartbeats of three nodes, a third of a second apart.
    for node in 1..=3 {
        cluster.beat(node, 1, 0).unwrap();
        cluster.now = Millis(cluster.now.0 + 330);
        cluster.tick();
    }
    for _ in 0..40 {
        cluster.now = Millis(cluster.now.0 + 100);
        cluster.tick();
    }
    assert_eq!((0..3).map(|i| cluster.config(1, i)).collect::<Vec<_>>(), before);
}

#[test]
fn a_primary_whose_disk_is_missing_is_replaced_although_its_node_is_heard() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let (node, a, b) = roles(&before);
    let mut register = registration(node, 2);
    register.disks = vec![report(node + 50, 2)];
    cluster.register_as(&register).unwrap();
    cluster.pass(500, &[(a, 1), (b, 1)]);
    let next = cluster.config(1, 0);
    assert_ne!(next.primary, before.primary);
    assert_eq!(state(&next, before.primary), CopyState::Absent);
    assert_eq!(next.member(before.primary).unwrap().disk, disk_of(node));
}

#[test]
fn a_copy_on_a_missing_disk_is_not_promoted() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let (_, a, b) = roles(&before);
    let mut register = registration(a, 2);
    register.disks = vec![report(a + 50, 2)];
    cluster.register_as(&register).unwrap();
    let mut beat = common::heartbeat(a, 2, 0);
    beat.disks[0].0 = disk_of(a + 50);
    for _ in 0..5 {
        cluster.now = Millis(cluster.now.0 + 500);
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        cluster.tick();
    }
    assert_eq!(cluster.config(1, 0), before);
    cluster.beat(b, 1, 0).unwrap();
    cluster.tick();
    assert_eq!(cluster.config(1, 0).primary_member().unwrap().node, NodeId(b));
}

#[test]
fn a_shard_in_doubt_keeps_its_primary() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let (_, a, b) = roles(&before);
    let mut register = registration(a, 2);
    let newer = Configuration { epoch: conductor_model::Epoch(before.epoch.0 + 1), ..before.clone() };
    register.disks[0].copies = vec![(other(&before, 0).copy, newer)];
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    cluster.register(b, 1).unwrap();
    cluster.pass(5_000, &[(a, 2), (b, 1)]);
    assert_eq!(cluster.config(1, 0), before);
}

#[test]
fn a_node_that_comes_back_with_older_epochs_is_believed() {
    let mut cluster = with_volume();
    let before: Vec<_> = (0..3).map(|i| cluster.config(1, i)).collect();
    let (dead, a, b) = roles(&before[0]);
    cluster.pass(2_500, &[(a, 1), (b, 1)]);
    let after = cluster.config(1, 0);
    let mut register = registration(dead, 2);
    let mine = |c: &Configuration| c.members.iter().find(|m| m.node == NodeId(dead)).map(|m| m.copy);
    register.disks[0].copies = before.iter().filter_map(|c| Some((mine(c)?, c.clone()))).collect();
    assert_eq!(register.disks[0].copies.len(), 3);
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    assert_eq!(cluster.config(1, 0), after, "an absent copy is brought back by its primary");
    let absent = mine(&after).unwrap();
    cluster.grant(&after, MembershipChange::Fill(absent, OpenId(2)));
}

#[test]
fn the_old_primary_hears_of_it_until_it_has_acted_upon_it() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let (dead, a, b) = roles(&before);
    let seen = cluster.beat(dead, 1, 0).unwrap().version;
    cluster.pass(2_500, &[(a, 1), (b, 1)]);
    let promoted = cluster.config(1, 0);
    // It was stopped, not killed: it goes on where it was.
    for _ in 0..2 {
        assert!(cluster.model.has_news(NodeId(dead), Commit(seen)));
        let told = cluster.beat(dead, 1, seen).unwrap();
        assert_eq!(told.assignments, std::slice::from_ref(&promoted));
        cluster.restart();
    }
    let version = cluster.beat(dead, 1, seen).unwrap().version;
    assert!(cluster.beat(dead, 1, version).unwrap().assignments.is_empty());
    // What happens to the shard later is none of its business.
    let absent = before.primary;
    cluster.grant(&promoted, MembershipChange::Fill(absent, OpenId(1)));
    assert!(!cluster.model.has_news(NodeId(dead), Commit(version)));
    assert!(cluster.beat(dead, 1, version).unwrap().assignments.is_empty());
}

#[test]
fn a_primary_that_was_replaced_twice_over_is_told_the_newest() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (dead, a, b) = roles(&first);
    let seen = cluster.beat(dead, 1, 0).unwrap().version;
    cluster.pass(2_500, &[(a, 1), (b, 1)]);
    let second = cluster.config(1, 0);
    let next = second.primary_member().unwrap().node.0;
    let last = if next == a { b } else { a };
    cluster.pass(2_500, &[(last, 1)]);
    let third = cluster.config(1, 0);
    assert_eq!((third.primary_member().unwrap().node.0, third.epoch.0), (last, second.epoch.0 + 1));
    let told = cluster.beat(dead, 1, seen).unwrap().assignments;
    assert!(told.contains(&third) && !told.contains(&second));
    assert!(cluster.beat(next, 1, seen).unwrap().assignments.contains(&third));
}

#[test]
fn orders_go_to_the_new_primary_and_begin_where_they_were_reported() {
    let mut cluster = with_volume();
    let scrub = Scrub { verb: ScrubVerb::Start, rate: None };
    cluster.run(|m, now, _| m.change_scrub(now, "db", &scrub)).unwrap();
    let (node, order) = cluster.orders().remove(0);
    let running =
        conductor_model::api::OrderState::Running { next: conductor_model::Blocks(16), damaged: 3, repaired: 3 };
    cluster.say(node, &order, running);
    let others: Vec<_> = (1..=3).filter(|n| *n != node).map(|n| (n, 1)).collect();
    // The others' scrubs are over: at most one at a time on a node.
    for (at, order) in cluster.orders().into_iter().filter(|(at, _)| *at != node) {
        cluster.say(at, &order, common::DONE);
    }
    cluster.pass(2_500, &others);
    assert!(cluster.told(node).orders.is_empty());
    let given: Vec<_> = others.iter().flat_map(|(n, _)| cluster.told(*n).orders).collect();
    let moved = given.iter().find(|given| given.shard == order.shard).unwrap();
    assert_ne!(moved.id, order.id);
    assert!(matches!(moved.what, ShardOrder::Scrub { from, .. } if from.0 == 16));
}

#[test]
fn a_snapshot_that_meets_a_promotion_is_tried_again() {
    let mut cluster = with_volume();
    cluster.pass(500, &[(1, 1), (2, 1), (3, 1)]);
    let asked = cluster.begin("db", "s").unwrap();
    let (dead, a, b) = roles(&cluster.config(1, 0));
    for (node, order) in cluster.orders() {
        if node == a || node == b {
            cluster.say(node, &order, common::DONE);
        }
    }
    // The third primary dies; its shard's barrier is placed by the next one, in another attempt.
    let mut dead_now = false;
    for _ in 0..10 {
        cluster.pass(500, &[(a, 1), (b, 1)]);
        dead_now |= cluster.config(1, 0).primary_member().unwrap().node.0 != dead;
        for (node, order) in
            [a, b].map(|n| cluster.told(n).orders.into_iter().map(move |o| (n, o))).into_iter().flatten()
        {
            if dead_now {
                cluster.say(node, &order, common::DONE);
            }
        }
    }
    assert!(dead_now);
    cluster.model.snapshot_outcome(asked).unwrap().unwrap();
}

#[test]
fn a_dead_primary_does_not_block_a_forced_attach() {
    let mut cluster = with_volume();
    let (dead, a, b) = roles(&cluster.config(1, 0));
    let attach = Attach {
        client: "web2".to_owned(),
        read_only: false,
        shared: false,
        force: true,
        host: String::new(),
        resumes: None,
    };
    cluster.run(|m, now, _| m.attach(now, "db", &attach)).unwrap();
    for node in [a, b] {
        let version = cluster.beat(node, 1, 0).unwrap().version;
        cluster.beat(node, 1, version).unwrap();
    }
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap(), [NodeId(dead)]);
    for _ in 0..5 {
        cluster.now = Millis(cluster.now.0 + 500);
        for node in [a, b] {
            let version = cluster.beat(node, 1, 0).unwrap().version;
            cluster.beat(node, 1, version).unwrap();
        }
        cluster.tick();
    }
    assert_eq!(cluster.config(1, 0).attach, AttachGeneration(1));
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap(), []);
}

#[test]
fn a_node_that_dies_with_25_600_shards_is_one_transaction() {
    let mut cluster = Cluster::with_nodes(3);
    let shards_each = 15_360_u32;
    for volume in 1..=5 {
        let new = NewVolume {
            shard_size: Bytes(MIB),
            ..NewVolume::new(format!("v{volume}"), Bytes(u64::from(shards_each) * MIB))
        };
        let mut random = &mut cluster.random;
        cluster.model.create(cluster.now, &new, &mut random).unwrap();
        let config = |i| cluster.model.configuration(shard(volume, i)).unwrap();
        let born: Vec<_> = (0..shards_each).map(|i| common::request(&config(i), MembershipChange::Born)).collect();
        cluster.model.membership(cluster.now, &born).unwrap();
    }
    assert_eq!(cluster.model.node(cluster.now, NodeId(1)).unwrap().primaries, 25_600);
    let before = cluster.model.commit();
    cluster.now = Millis(cluster.now.0 + 1_000);
    cluster.model.tick(cluster.now);
    for node in [2, 3] {
        cluster.model.heartbeat(cluster.now, &common::heartbeat(node, 1, 0)).unwrap();
    }
    cluster.now = Millis(cluster.now.0 + 1_000);
    for node in [2, 3] {
        cluster.model.heartbeat(cluster.now, &common::heartbeat(node, 1, 0)).unwrap();
    }
    let began = Instant::now();
    let dirty = cluster.model.tick(cluster.now);
    println!("25,600 shards: promoted in {:?}", began.elapsed());
    assert_eq!(cluster.model.commit(), Commit(before.0 + 1));
    let shards = dirty.keys().filter(|key| matches!(key, Key::Shard(_))).count();
    let events = dirty.keys().filter(|key| matches!(key, Key::Event(_))).count();
    assert_eq!((shards, dirty.keys().count()), (25_600, 25_600 + 1 + events));
    assert!(events < 32, "what happened to many shards is one event: {events}");
    cluster.model.check().unwrap();
    let counts = [1, 2, 3].map(|n| cluster.model.node(cluster.now, NodeId(n)).unwrap().primaries);
    assert_eq!(counts, [0, 38_400, 38_400], "spread over who is left");
    let began = Instant::now();
    let told = cluster.model.answer(NodeId(2), before);
    println!("12,800 assignments: gathered in {:?}", began.elapsed());
    assert_eq!(told.assignments.len(), 12_800);
}
