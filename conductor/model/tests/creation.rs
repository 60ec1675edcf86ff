//! Shards that are created while nodes are lost for good, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, disk_of, other, registration, shard};
use conductor_model::api::{MembershipAnswer, MembershipChange};
use conductor_model::views::{Duty, Health, NewVolume};
use conductor_model::{Bytes, Configuration, CopyState, Epoch, NodeId};
use std::collections::BTreeSet;

const AFTER: u64 = 5_000;

/// Nodes that are heard, each in its first opening.
fn all_but(nodes: u32, silent: &[u32]) -> Vec<(u32, u64)> {
    (1..=nodes).filter(|n| !silent.contains(n)).map(|n| (n, 1)).collect()
}

/// A volume of one shard that is born, and grows by two that are not.
fn growing(nodes: u32, copies: u8, min_copies: u8) -> Cluster {
    let mut cluster = Cluster::with_nodes(nodes);
    cluster.model.set_replace_after(AFTER);
    let new = NewVolume { copies, min_copies, shard_size: Bytes(MIB), ..NewVolume::new("db", Bytes(MIB)) };
    cluster.make(&new).unwrap();
    cluster.bear(1);
    cluster.pass(500, &all_but(nodes, &[]));
    cluster.run(|m, now, mut draw| m.resize(now, "db", Bytes(3 * MIB), &mut draw)).unwrap();
    cluster
}

fn nodes(config: &Configuration) -> BTreeSet<u32> {
    config.members.iter().map(|m| m.node.0).collect()
}

/// All copies are in sync, and nothing is sealed.
fn is_whole(config: &Configuration, copies: usize) -> bool {
    config.in_sync() == copies && config.members.len() == copies && !config.is_sealed()
}

#[test]
fn a_copy_that_is_lost_before_its_shard_was_born_is_another_one_from_then_on() {
    let mut cluster = growing(3, 2, 2);
    let first = cluster.config(1, 1);
    let (survivor, lost) = (first.primary_member().unwrap().clone(), other(&first, 0));
    let heard = all_but(3, &[lost.node.0]);
    cluster.pass(6_500, &heard);
    assert_eq!(nodes(&cluster.config(1, 1)), nodes(&first), "it is waited for");
    cluster.pass(2_000, &heard);
    let next = cluster.config(1, 1);
    assert_eq!((next.epoch, next.born, next.primary), (Epoch(first.epoch.0 + 1), false, first.primary));
    assert!(is_whole(&next, 2), "all are empty: {next:?}");
    assert!(next.member(survivor.copy).is_some() && next.member(lost.copy).is_none());
    assert!(next.members.iter().all(|m| heard.iter().any(|(n, _)| *n == m.node.0)));

    // Who has not heard of it asks in vain: also if the lost one has joined what was before.
    let MembershipAnswer::Stale(told) = cluster.ask(&first, MembershipChange::Born) else { panic!() };
    assert_eq!(told, next);
    let born = cluster.grant(&next, MembershipChange::Born);
    assert!(born.born && is_whole(&born, 2));
    assert!(matches!(cluster.ask(&next, MembershipChange::Born), MembershipAnswer::Stale(_)), "once");
    // The lost one comes back with what it has joined.
    let mut back = registration(lost.node.0, 2);
    back.disks[0].copies = vec![(lost.copy, first)];
    cluster.run(|m, now, _| m.register(now, &back)).unwrap();
    assert_eq!(cluster.model.doubted(), None);
    assert!(cluster.beat(lost.node.0, 2, 0).unwrap().drop.contains(&lost.copy));
}

#[test]
fn a_primary_that_is_lost_before_its_shard_was_born_is_followed_and_then_replaced() {
    let mut cluster = growing(3, 2, 2);
    let first = cluster.config(1, 1);
    let (lost, other) = (first.primary_member().unwrap().clone(), other(&first, 0));
    cluster.pass(9_000, &all_but(3, &[lost.node.0]));
    let next = cluster.config(1, 1);
    assert_eq!((next.primary, next.born), (other.copy, false));
    assert!(is_whole(&next, 2) && next.member(lost.copy).is_none(), "{next:?}");
    let mut late = common::request(&first, MembershipChange::Born);
    assert!(matches!(
        cluster.run(|m, now, _| m.membership(now, &[late.clone()])).unwrap()[0],
        MembershipAnswer::Stale(_)
    ));
    late.epoch = next.epoch;
    let answer = cluster.run(|m, now, _| m.membership(now, &[late])).unwrap().remove(0);
    assert!(matches!(answer, MembershipAnswer::Stale(_)), "it is not its primary any more");
    assert!(cluster.grant(&next, MembershipChange::Born).born);
}

#[test]
fn a_volume_that_lost_a_node_while_it_grew_is_whole_again_when_that_is_removed() {
    let mut cluster = growing(4, 2, 2);
    cluster.model.set_replace_after(u64::MAX);
    let lost = other(&cluster.config(1, 1), 0).node.0;
    let heard = all_but(4, &[lost]);
    cluster.pass(11_000, &heard);
    let old = cluster.config(1, 0);
    if let Some(gone) = old.members.iter().find(|m| m.node.0 == lost) {
        cluster.grant(&old, MembershipChange::Drop(vec![gone.copy]));
    }
    let remove = |c: &mut Cluster, force: bool| c.run(|m, now, _| m.set_duty(now, NodeId(lost), Duty::Removed, force));
    assert!(remove(&mut cluster, false).unwrap_err().to_string().contains("pass --force"));
    remove(&mut cluster, true).unwrap();
    cluster.pass(3_000, &heard);
    for index in [1, 2] {
        let config = cluster.config(1, index);
        assert!(is_whole(&config, 2) && !nodes(&config).contains(&lost), "{config:?}");
        cluster.grant(&config, MembershipChange::Born);
    }
    cluster.heal(10, &heard);
    assert_eq!(cluster.model.show(cluster.now, "db").unwrap().info.health, Health::Healthy);
    assert!(cluster.model.node(cluster.now, NodeId(lost)).is_err(), "nothing is expected there any more");
}

#[test]
fn of_three_copies_two_may_be_lost_before_the_shard_was_born() {
    let mut cluster = growing(5, 3, 2);
    let first = cluster.config(1, 1);
    let lost = [other(&first, 0).node.0, other(&first, 1).node.0];
    let heard = all_but(5, &lost);
    // One was dropped while that was possible.
    cluster.grant(&first, MembershipChange::Drop(vec![other(&first, 0).copy]));
    cluster.pass(12_000, &heard);
    let next = cluster.config(1, 1);
    assert!(!next.born && is_whole(&next, 3) && next.primary == first.primary, "{next:?}");
    assert!(next.members.iter().all(|m| heard.iter().any(|(n, _)| *n == m.node.0)));
}

#[test]
fn what_may_hold_something_is_not_made_anew_as_an_empty_copy() {
    // Born: the new one is to be filled.
    let mut cluster = growing(3, 2, 1);
    let born = cluster.config(1, 0);
    let lost = other(&born, 0);
    cluster.grant(&born, MembershipChange::Drop(vec![lost.copy]));
    cluster.pass(9_000, &all_but(3, &[lost.node.0]));
    let next = cluster.config(1, 0);
    let new = next.members.iter().find(|m| m.copy != next.primary).unwrap();
    assert_ne!(new.copy, lost.copy);
    assert_eq!((new.state, &next.full_set), (CopyState::Absent, &vec![next.primary]));

    // A clone's copies hold what their parent's do.
    let mut cluster = Cluster::with_nodes(4);
    cluster.model.set_replace_after(AFTER);
    let new = NewVolume { copies: 2, shard_size: Bytes(MIB), ..NewVolume::new("db", Bytes(MIB)) };
    cluster.make(&new).unwrap();
    cluster.bear(1);
    cluster.snapshot("db", "monday");
    cluster.make(&NewVolume { copies: 2, ..NewVolume::clone_of("twin", "db@monday") }).unwrap();
    let first = cluster.config(2, 0);
    cluster.pass(9_000, &all_but(4, &[other(&first, 0).node.0]));
    assert_eq!(cluster.config(2, 0), first);

    // Nobody is left who could say that nothing was written.
    let mut cluster = growing(3, 1, 1);
    let first = cluster.config(1, 1);
    cluster.pass(9_000, &all_but(3, &[first.primary_member().unwrap().node.0]));
    assert_eq!(cluster.config(1, 1), first);
    let mut cluster = growing(4, 2, 2);
    let first = cluster.config(1, 1);
    let lost: Vec<u32> = nodes(&first).into_iter().collect();
    cluster.pass(9_000, &all_but(4, &lost));
    assert_eq!(nodes(&cluster.config(1, 1)), nodes(&first));
}

#[test]
fn a_state_from_the_past_makes_nothing_anew() {
    let mut cluster = growing(3, 2, 2);
    let first = cluster.config(1, 1);
    let (primary, lost) = (first.primary_member().unwrap().clone(), other(&first, 0));
    let past = cluster.file.clone();
    let born = cluster.grant(&first, MembershipChange::Born);
    cluster.file = past;
    cluster.restart_replacing(AFTER);
    // All nodes have forgotten what they heard, but for what is on their disks.
    let mut register = registration(primary.node.0, 1);
    register.disks[0].copies = vec![(primary.copy, born)];
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    assert!(cluster.model.doubted().is_some());
    let third = (1..=3).find(|n| *n != primary.node.0 && *n != lost.node.0).unwrap();
    cluster.register(third, 1).unwrap();
    cluster.pass(9_000, &[(primary.node.0, 1), (third, 1)]);
    assert_eq!(cluster.model.configuration(shard(1, 1)).unwrap(), first);
}

/// So many beats of nodes, of which one says that its disk has failed.
fn beats_with_a_failed_disk(cluster: &mut Cluster, heard: &[(u32, u64)], failed: NodeId) {
    for _ in 0..20 {
        cluster.now.0 += 500;
        for &(node, open) in heard {
            let mut beat = cluster.heartbeat(node, open, 0);
            if node == failed.0 {
                beat.failed = vec![(disk_of(node), "it takes nothing".to_owned())];
            }
            cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        }
        cluster.tick();
    }
}

#[test]
fn a_failed_disk_of_a_node_that_lives_keeps_no_shard_from_being_born() {
    let mut cluster = growing(3, 2, 2);
    let lost = other(&cluster.config(1, 1), 0);
    beats_with_a_failed_disk(&mut cluster, &all_but(3, &[]), lost.node);
    let next = cluster.config(1, 1);
    assert!(is_whole(&next, 2) && next.member(lost.copy).is_none(), "{next:?}");
}

#[test]
fn whose_disk_has_failed_does_not_say_that_nothing_was_written() {
    let mut cluster = growing(3, 2, 2);
    let first = cluster.config(1, 1);
    let (primary, lost) = (first.primary_member().unwrap().clone(), other(&first, 0));
    beats_with_a_failed_disk(&mut cluster, &all_but(3, &[lost.node.0]), primary.node);
    assert_eq!(cluster.config(1, 1), first, "what it holds may be read yet");
    // It has not, after all.
    cluster.pass(9_000, &all_but(3, &[lost.node.0]));
    let next = cluster.config(1, 1);
    assert!(is_whole(&next, 2) && next.member(lost.copy).is_none(), "{next:?}");
}
