//! Snapshots that are made and deleted while copies are away, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, DONE, MIB, other};
use conductor_model::api::{MembershipChange, Order, OrderReport, Report};
use conductor_model::limits::{MAX_SNAPSHOTS_OWED, MAX_SNAPSHOTS_PER_VOLUME};
use conductor_model::views::SnapshotState;
use conductor_model::{Conductor, CopyId, Dirty, Error, Millis, NodeId, OpenId};

/// Three nodes and a volume of one shard, of which one copy is left behind; that copy, and its node.
fn without_one() -> (Cluster, CopyId, u32) {
    let mut cluster = Cluster::with_nodes(3);
    cluster.model.set_replace_after(u64::MAX);
    cluster.create("db", MIB).unwrap();
    cluster.bear(1);
    cluster.snapshot("db", "old");
    let away = other(&cluster.config(1, 0), 0);
    cluster.pass(2_500, &heard(away.node.0));
    let config = cluster.config(1, 0);
    cluster.grant(&config, MembershipChange::Drop(vec![away.copy]));
    (cluster, away.copy, away.node.0)
}

/// All nodes but this one.
fn heard(away: u32) -> Vec<(u32, u64)> {
    (1..=3).filter(|n| *n != away).map(|n| (n, 1)).collect()
}

/// These nodes do what they are told.
fn work_off(cluster: &mut Cluster, nodes: &[(u32, u64)]) {
    for (node, _) in nodes {
        let report = Report { node: NodeId(*node), orders: Vec::new(), worked: cluster.told(*node).work };
        cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    }
}

/// A snapshot is made while these nodes are heard.
fn snapshot(cluster: &mut Cluster, name: &str, heard: &[(u32, u64)]) -> Result<(), Error> {
    cluster.now = Millis(cluster.now.0 + 10);
    let asked = cluster.begin("db", name)?;
    for (node, _) in heard {
        for order in cluster.told(*node).orders {
            cluster.say(*node, &order, DONE);
        }
    }
    assert_eq!(cluster.model.snapshot_outcome(asked).unwrap().unwrap().state, SnapshotState::Complete);
    Ok(())
}

/// So many are made and deleted while these nodes are heard.
fn rotate(cluster: &mut Cluster, count: usize, heard: &[(u32, u64)]) {
    for n in 0..count {
        let name = format!("s{n}");
        quick(cluster, |m, now| m.create_snapshot(now, "db", &name));
        for deleted in [false, true] {
            if deleted {
                quick(cluster, |m, now| m.delete_snapshot(now, "db", &name));
            }
            for (node, open) in heard {
                let beat = cluster.heartbeat(*node, *open, 0);
                let told = quick(cluster, |m, now| m.heartbeat(now, &beat));
                let done = |order: Order| {
                    let epoch = cluster.model.configuration(order.shard).unwrap().epoch;
                    OrderReport { id: order.id, shard: order.shard, epoch, state: DONE }
                };
                let orders = told.orders.into_iter().map(done).collect();
                let report = Report { node: NodeId(*node), orders, worked: told.work };
                quick(cluster, |m, now| m.report(now, &report));
            }
        }
    }
}

/// As `Cluster::run`, but what a restart would find is not looked at each time.
fn quick<T>(cluster: &mut Cluster, command: impl FnOnce(&mut Conductor, Millis) -> Result<(T, Dirty), Error>) -> T {
    let (answer, dirty) = command(&mut cluster.model, cluster.now).unwrap();
    cluster.persist(dirty);
    answer
}

#[test]
fn snapshots_are_made_and_deleted_while_a_copy_is_away_and_forgotten_when_it_is_back() {
    let (mut cluster, copy, away) = without_one();
    let rest = heard(away);
    cluster.delete_snapshot("db", "old").unwrap();
    rotate(&mut cluster, 200, &rest);
    snapshot(&mut cluster, "kept", &rest).unwrap();
    assert_eq!(cluster.list("db").len(), 202, "one has to be told of all of them");
    cluster.restart();
    snapshot(&mut cluster, "kept-too", &rest).unwrap();
    let back: Vec<(u32, u64)> = (1..=3).map(|n| (n, 1)).collect();
    cluster.pass(1_000, &back);
    let syncing = cluster.grant(&cluster.config(1, 0), MembershipChange::Fill(copy, OpenId(1)));
    work_off(&mut cluster, &back);
    assert_eq!(cluster.list("db").len(), 203, "it may be given what another one has not forgotten");
    rotate(&mut cluster, 1, &back);
    cluster.grant(&syncing, MembershipChange::Add(copy));
    work_off(&mut cluster, &back);
    let left: Vec<String> = cluster.list("db").into_iter().map(|s| s.name).collect();
    assert_eq!(left, ["kept", "kept-too"]);
}

#[test]
fn a_copy_in_sync_that_has_not_forgotten_them_still_counts() {
    let (mut cluster, _, away) = without_one();
    let rest = heard(away);
    for n in 1..MAX_SNAPSHOTS_PER_VOLUME {
        snapshot(&mut cluster, &format!("s{n}"), &rest).unwrap();
    }
    cluster.delete_snapshot("db", "s1").unwrap();
    work_off(&mut cluster, &rest[..1]);
    let refused = snapshot(&mut cluster, "more", &rest).unwrap_err();
    assert!(matches!(refused, Error::Limit { limit: MAX_SNAPSHOTS_PER_VOLUME, .. }), "{refused}");
    work_off(&mut cluster, &rest);
    snapshot(&mut cluster, "more", &rest).unwrap();
}

#[test]
fn what_a_copy_has_to_forget_when_it_is_back_has_a_limit() {
    let (mut cluster, _, away) = without_one();
    let rest = heard(away);
    rotate(&mut cluster, MAX_SNAPSHOTS_OWED, &rest);
    let refused = snapshot(&mut cluster, "more", &rest).unwrap_err();
    assert!(matches!(refused, Error::Limit { limit: MAX_SNAPSHOTS_OWED, .. }), "{refused}");
}
