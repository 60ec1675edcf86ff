//! Copies of clones and of their parents when they are made anew or move, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, shard};
use conductor_model::api::{MembershipChange, Report};
use conductor_model::views::Duty;
use conductor_model::{Configuration, NodeId, OpenId};
use std::collections::BTreeSet;

const AFTER: u64 = 5_000;

/// Nodes that are heard, each in its first opening.
fn all_but(nodes: u32, silent: &[u32]) -> Vec<(u32, u64)> {
    (1..=nodes).filter(|n| !silent.contains(n)).map(|n| (n, 1)).collect()
}

fn cluster_of(nodes: u32) -> Cluster {
    let mut cluster = Cluster::with_nodes(nodes);
    cluster.model.set_replace_after(AFTER);
    cluster.create("db", 8 * MIB).unwrap();
    cluster.bear(1);
    cluster.pass(500, &all_but(nodes, &[]));
    cluster
}

fn configs(cluster: &Cluster) -> Vec<Configuration> {
    (0..8).filter_map(|i| cluster.model.configuration(shard(1, i))).collect()
}

#[test]
fn a_clone_that_was_made_while_copies_were_too_many_loses_the_rest_too() {
    let mut cluster = cluster_of(3);
    cluster.snapshot("db", "s");
    cluster.run(|m, now, _| m.set_copies(now, "db", Some(2), None)).unwrap();
    let clone = cluster.clone_of("twin", "db@s").unwrap();
    assert_eq!(cluster.config(clone.0, 0).members.len(), 3, "it lies where its parent lies");
    cluster.bear(clone.0);
    cluster.heal(8, &all_but(3, &[]));
    assert!(configs(&cluster).iter().all(|c| c.members.len() == 2 && c.in_sync() == 2));
    assert!((0..8).all(|index| cluster.config(clone.0, index).members.len() == 2));
}

#[test]
fn a_clones_copy_goes_where_its_parents_went() {
    let mut cluster = cluster_of(4);
    cluster.snapshot("db", "s");
    let clone = cluster.clone_of("twin", "db@s").unwrap();
    cluster.bear(clone.0);
    cluster.pass(2_500, &all_but(4, &[1]));
    cluster.leave_behind(1);
    cluster.pass(9_000, &all_but(4, &[1]));
    for index in 0..8 {
        let (parent, twin) = (cluster.config(1, index), cluster.config(clone.0, index));
        let disks = |c: &Configuration| c.members.iter().map(|m| (m.node, m.disk)).collect::<BTreeSet<_>>();
        assert_eq!(disks(&parent), disks(&twin));
        assert!(twin.members.iter().all(|m| m.node != NodeId(1)));
    }
    // The parent's copy on the old node goes after the clone's.
    let first = cluster.beat(1, 1, 0).unwrap().drop;
    let mut beat = cluster.heartbeat(1, 1, 0);
    beat.dropped = first.clone();
    let then = cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap().drop;
    assert!(!first.is_empty() && then.len() == first.len() && then != first);
}

#[test]
fn a_parents_copy_does_not_go_where_its_predecessor_has_to_stay_for_a_clone() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.model.set_replace_after(AFTER);
    cluster.create("db", MIB).unwrap();
    cluster.bear(1);
    cluster.snapshot("db", "s");
    let clone = cluster.clone_of("twin", "db@s").unwrap().0;
    cluster.bear(clone);
    let on = |c: &Cluster, volume: u32| c.config(volume, 0).members.iter().map(|m| m.node.0).collect::<BTreeSet<u32>>();
    let (parent, before) = (cluster.config(1, 0), on(&cluster, 1));
    let drained = parent.members.iter().find(|m| m.copy != parent.primary).unwrap().clone();
    let (there, spare) = (drained.node, (1..=4).find(|n| !before.contains(n)).unwrap());
    // The parent's copy has moved when the drain ends, the clone's has not.
    cluster.run(|m, now, _| m.set_duty(now, there, Duty::Draining, false)).unwrap();
    cluster.pass(1_000, &all_but(4, &[]));
    let added = cluster.config(1, 0);
    let new = added.members.iter().find(|m| m.node.0 == spare).unwrap().copy;
    let syncing = cluster.grant(&added, MembershipChange::Fill(new, OpenId(1)));
    cluster.grant(&syncing, MembershipChange::Add(new));
    cluster.pass(1_000, &all_but(4, &[]));
    cluster.run(|m, now, _| m.set_duty(now, there, Duty::Serving, false)).unwrap();
    cluster.pass(2_000, &all_but(4, &[]));
    let moved: BTreeSet<u32> = before.iter().copied().filter(|n| *n != there.0).chain([spare]).collect();
    assert_eq!((on(&cluster, 1), on(&cluster, clone)), (moved.clone(), before.clone()));
    let goes = |c: &mut Cluster| c.told(there.0).drop.contains(&drained.copy);
    assert!(!goes(&mut cluster), "the clone stands on it");
    // A copy in that place could never be: the one that is out of reach is waited for.
    let config = cluster.config(1, 0);
    cluster.pass(2_500, &all_but(4, &[spare]));
    cluster.grant(&config, MembershipChange::Drop(vec![new]));
    cluster.pass(2 * AFTER, &all_but(4, &[spare]));
    assert_eq!(on(&cluster, 1), moved);
    // Where nothing stands on it any more, it goes, and the place is free, at once.
    cluster.run(|m, now, _| m.flatten(now, "twin")).unwrap();
    for node in before {
        let report = Report { node: NodeId(node), orders: Vec::new(), worked: cluster.told(node).work };
        cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    }
    assert!(goes(&mut cluster));
    cluster.pass(1_000, &all_but(4, &[spare]));
    assert!(on(&cluster, 1).contains(&there.0) && goes(&mut cluster));
}

#[test]
fn a_clone_is_flattened_when_the_last_copy_that_was_not_is_unlisted() {
    let mut cluster = cluster_of(4);
    cluster.snapshot("db", "s");
    let clone = cluster.clone_of("twin", "db@s").unwrap();
    cluster.bear(clone.0);
    cluster.run(|m, now, _| m.flatten(now, "twin")).unwrap();
    for node in 2..=4 {
        let report = Report { node: NodeId(node), orders: Vec::new(), worked: cluster.told(node).work };
        cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    }
    assert!(!cluster.told(1).work.is_empty());
    cluster.pass(2_500, &all_but(4, &[1]));
    cluster.leave_behind(1);
    cluster.pass(9_000, &all_but(4, &[1]));
    assert_eq!(cluster.model.show(cluster.now, "twin").unwrap().info.parent, None);
    assert!((0..8).all(|index| cluster.config(clone.0, index).parent.is_none()));
    cluster.restart();
}

#[test]
fn a_clone_begins_beside_the_copies_in_sync_and_follows_those_that_move() {
    let mut cluster = cluster_of(4);
    cluster.snapshot("db", "s");
    let together = |cluster: &Cluster, clone: u32| {
        let disks = |c: &Configuration| c.members.iter().map(|m| (m.node, m.disk)).collect::<BTreeSet<_>>();
        (0..8).all(|index| disks(&cluster.config(1, index)) == disks(&cluster.config(clone, index)))
    };
    cluster.run(|m, now, _| m.set_duty(now, NodeId(1), Duty::Draining, false)).unwrap();
    cluster.pass(1_000, &all_but(4, &[]));
    assert!(configs(&cluster).iter().any(|c| c.members.len() == 4), "copies are on their way");
    let clone = cluster.clone_of("twin", "db@s").unwrap().0;
    assert!((0..8).all(|index| cluster.config(clone, index).in_sync() == 3));
    cluster.bear(clone);
    cluster.heal(20, &all_but(4, &[]));
    assert!(together(&cluster, clone));
    assert!((0..8).all(|index| cluster.config(clone, index).members.iter().all(|m| m.node != NodeId(1))));

    // A node is away: what it misses is made when it is back, or elsewhere.
    let away = cluster.config(1, 0).members[0].node.0;
    cluster.pass(2_500, &all_but(4, &[away]));
    cluster.leave_behind(away);
    let second = cluster.clone_of("second", "db@s").unwrap().0;
    assert_eq!(cluster.config(second, 0).members.len(), 2);
    cluster.bear(second);
    cluster.heal(20, &all_but(4, &[]));
    assert!(together(&cluster, second) && (0..8).all(|index| cluster.config(second, index).in_sync() == 3));

    // But not beside fewer than may acknowledge a write.
    cluster.pass(11_000, &all_but(4, &[2, 3]));
    let why = cluster.clone_of("third", "db@s").unwrap_err().to_string();
    assert!(why.contains("is not in sync, or out of reach"), "{why}");
}
