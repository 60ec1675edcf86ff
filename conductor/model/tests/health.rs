//! The word for a volume and for the cluster, and what is said with it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, disk_of, heartbeat, other, registration, report, shard, with_volume};
use conductor_model::api::{Ailment, Filling, MembershipChange, Trouble};
use conductor_model::views::{Duty, FillInfo, Health, NewVolume, ResyncChange, ResyncVerb};
use conductor_model::{Bytes, CopyState, Millis, NodeId, OpenId};

fn info(cluster: &Cluster) -> (Health, Vec<String>) {
    let info = cluster.model.show(cluster.now, "db").unwrap().info;
    assert_eq!(cluster.model.status(cluster.now).health, info.health, "there is no other volume");
    (info.health, info.reasons)
}

fn without_its_disk(cluster: &mut Cluster, node: u32) {
    let mut register = registration(node, 9);
    register.disks = vec![report(node + 50, 9)];
    cluster.register_as(&register).unwrap();
}

#[test]
fn a_node_that_holds_only_absent_copies_keeps_nobody_waiting() {
    let mut cluster = with_volume();
    assert_eq!(info(&cluster), (Health::Healthy, vec![]));
    cluster.pass(2_000, &[(1, 1), (2, 1)]);
    let (health, reasons) = info(&cluster);
    assert_eq!((health, reasons.len()), (Health::Waiting, 2), "{reasons:?}");
    assert_eq!(reasons[0], "n3 (host3) silent for 2 s: writes wait; start it again");
    cluster.leave_behind(3);
    cluster.pass(10_000, &[(1, 1), (2, 1)]);
    let told =
        vec!["n3 (host3) silent for 12 s: 3 copies missing; start it again, or others are made in 10 min".to_owned()];
    assert_eq!(info(&cluster), (Health::Degraded, told));
    let totals = cluster.model.status(cluster.now).totals;
    assert_eq!((totals.volumes_degraded, totals.volumes_waiting), (1, 0));
}

#[test]
fn a_conductor_that_has_just_started_says_what_it_has_not_heard_yet_and_no_more() {
    let mut cluster = with_volume();
    cluster.restart();
    assert_eq!(info(&cluster), (Health::Healthy, vec![]));
    let told = |cluster: &Cluster| cluster.model.status(cluster.now).warnings;
    let said = |n| {
        vec![format!("this conductor has just started, and has not heard of {n} of 3 nodes yet: ask again in a moment")]
    };
    assert_eq!(told(&cluster), said(3));
    cluster.pass(500, &[(1, 1), (2, 1)]);
    assert_eq!((info(&cluster), told(&cluster)), ((Health::Healthy, vec![]), said(1)));
    // By then one that is well would have been heard.
    cluster.pass(1_500, &[(1, 1), (2, 1)]);
    let (health, reasons) = info(&cluster);
    assert_eq!((health, told(&cluster)), (Health::Waiting, vec![]));
    assert_eq!(reasons[0], "n3 (host3) silent for 2 s: writes wait; start it again");
}

#[test]
fn a_copy_in_reach_that_is_not_filled_yet_is_missing_and_one_that_is_filled_is_on_its_way() {
    let mut cluster = with_volume();
    cluster.pass(500, &[(1, 1), (2, 1), (3, 1)]);
    let primary = cluster.config(1, 0).primary_member().unwrap().node.0;
    let away = other(&cluster.config(1, 0), 0).node.0;
    cluster.leave_behind(away);
    assert_eq!(info(&cluster), (Health::Degraded, vec![format!("2 copies to be filled on n{away}")]));
    let config = cluster.config(1, 0);
    let copy = config.members.iter().find(|m| m.state == CopyState::Absent).unwrap().copy;
    let config = cluster.grant(&config, MembershipChange::Fill(copy, OpenId(1)));
    assert_eq!(
        info(&cluster),
        (Health::Resyncing, vec![format!("1 copy being filled, 1 copy to be filled on n{away}")])
    );

    let said = Filling { shard: config.shard, copy, done: Bytes(MIB / 4), of: Bytes(MIB), rate: Bytes(MIB / 4) };
    // What a node says that is not its primary is old.
    for (node, done) in [(primary, MIB / 2), (away, MIB)] {
        let filling = vec![Filling { done: Bytes(done), ..said }];
        let beat = conductor_model::api::Heartbeat { filling, ..heartbeat(node, 1, 0) };
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    }
    let filling = cluster.model.show(cluster.now, "db").unwrap().info.filling.unwrap();
    assert_eq!((filling.copies, filling.waiting), (1, 1));
    assert_eq!((filling.done, filling.of, filling.rate), (Bytes(MIB / 2), Bytes(MIB), Bytes(MIB / 4)));
    assert_eq!(filling.eta_seconds(), Some(2));

    cluster.grant(&config, MembershipChange::Add(copy));
    let filling = cluster.model.show(cluster.now, "db").unwrap().info.filling.unwrap();
    assert_eq!((filling.copies, filling.of, filling.eta_seconds()), (0, Bytes(0), None));
}

#[test]
fn while_copies_move_beside_all_that_are_wanted_nothing_is_missing() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.create("db", MIB).unwrap();
    cluster.bear(1);
    let heard = [(1, 1), (2, 1), (3, 1), (4, 1)];
    cluster.pass(500, &heard);
    let config = cluster.config(1, 0);
    let leaves = other(&config, 0);
    cluster.run(|m, now, _| m.set_duty(now, leaves.node, Duty::Draining, false)).unwrap();
    cluster.pass(3_000, &heard);
    let config = cluster.config(1, 0);
    let new = config.members.iter().find(|m| m.state == CopyState::Absent).unwrap().clone();
    assert_eq!((config.members.len(), config.in_sync()), (4, 3));
    let (health, reasons) = info(&cluster);
    assert_eq!(health, Health::Healthy, "{reasons:?}");
    assert!(reasons[0].ends_with(&format!("to be filled on {}; none is missing meanwhile", new.node)), "{reasons:?}");
    // Nor is one that is not to be filled for now.
    let abort = ResyncChange { verb: ResyncVerb::Abort, copies: vec![new.copy] };
    cluster.run(|m, now, _| m.change_resync(now, "db", &abort)).unwrap();
    let (health, reasons) = info(&cluster);
    assert_eq!(health, Health::Healthy);
    assert!(reasons.iter().any(|why| why.contains("1 copy not filled, as it was aborted")), "{reasons:?}");
    let resume = ResyncChange { verb: ResyncVerb::Resume, ..abort };
    cluster.run(|m, now, _| m.change_resync(now, "db", &resume)).unwrap();
    let filled = cluster.grant(&cluster.config(1, 0), MembershipChange::Fill(new.copy, OpenId(1)));
    assert_eq!(info(&cluster).0, Health::Healthy);

    // One that was there is.
    let gone = filled.in_sync_members().find(|m| m.copy != filled.primary).unwrap().copy;
    let dropped = cluster.grant(&filled, MembershipChange::Drop(vec![gone]));
    assert_eq!(info(&cluster).0, Health::Resyncing);
    cluster.grant(&dropped, MembershipChange::Drop(vec![new.copy]));
    assert_eq!(info(&cluster).0, Health::Degraded);
}

#[test]
fn a_filling_names_its_nodes_and_of_many_how_many_more() {
    let on = |nodes: u32| FillInfo {
        copies: 0,
        waiting: nodes,
        nodes: (1..=nodes).map(NodeId).collect(),
        done: Bytes(0),
        of: Bytes(0),
        rate: Bytes(0),
    };
    assert_eq!(on(4).sentence(), "4 copies to be filled on n1, n2, n3, n4");
    assert_eq!(on(9).sentence(), "9 copies to be filled on n1, n2, n3, n4 and 5 more");
}

#[test]
fn a_sealed_shard_waits_although_its_primary_is_alive() {
    let mut cluster = with_volume();
    let config = cluster.config(1, 0);
    let (a, b) = (other(&config, 0).copy, other(&config, 1).copy);
    let config = cluster.grant(&config, MembershipChange::Drop(vec![a]));
    cluster.grant(&config, MembershipChange::Drop(vec![b]));
    let (health, reasons) = info(&cluster);
    assert_eq!(health, Health::Waiting);
    assert!(reasons[0].starts_with("v1/0: fewer than 2 copies in sync"), "{reasons:?}");
}

#[test]
fn a_shard_without_any_disk_that_holds_all_writes_is_lost_until_one_comes_back() {
    let mut cluster = with_volume();
    let config = cluster.config(1, 0);
    let left = other(&config, 0);
    let next = cluster.grant(&config, MembershipChange::Drop(vec![left.copy]));
    let holders: Vec<u32> = next.in_sync_members().map(|m| m.node.0).collect();
    without_its_disk(&mut cluster, holders[0]);
    assert_eq!(info(&cluster).0, Health::Waiting, "the other one holds all");
    without_its_disk(&mut cluster, holders[1]);
    let (health, reasons) = info(&cluster);
    assert_eq!(health, Health::Lost, "{} has its disk, and may lack a write", left.node);
    let disk = disk_of(holders[0]).to_string();
    assert!(
        reasons[0].starts_with("v1/0: no copy with all writes is left") && reasons[0].contains(&disk),
        "{reasons:?}"
    );
    assert_eq!(cluster.model.status(cluster.now).totals.volumes_lost, 1);
    cluster.register(holders[1], 10).unwrap();
    assert_eq!(info(&cluster).0, Health::Waiting);
}

#[test]
fn the_cluster_is_as_well_as_its_worst_volume() {
    let mut cluster = with_volume();
    cluster.create("young", MIB).unwrap();
    let status = cluster.model.status(cluster.now);
    let words: Vec<_> = status.volumes.iter().map(|v| v.health.to_string()).collect();
    assert_eq!((words, status.health), (vec!["healthy".to_owned(), "waiting".to_owned()], Health::Waiting));
    cluster.now = Millis(cluster.now.0 + 1);
    cluster.bear(2);
    assert_eq!(cluster.model.status(cluster.now).health, Health::Healthy);
}

#[test]
fn a_shard_whose_only_copy_is_on_a_failed_disk_is_lost_as_long_as_its_primary_says_so() {
    let mut cluster = Cluster::with_nodes(3);
    let new = NewVolume { copies: 1, min_copies: 1, shard_size: Bytes(MIB), ..NewVolume::new("solo", Bytes(MIB)) };
    cluster.make(&new).unwrap();
    cluster.bear(1);
    let node = cluster.config(1, 0).primary_member().unwrap().node.0;
    let mut said = |lost: Option<bool>| {
        let mut beat = cluster.heartbeat(node, 1, 0);
        let reason = "its disk failed".to_owned();
        beat.troubles = lost
            .map(|lost| Trouble { shard: shard(1, 0), waiting: 2, reason, lost, ailment: None })
            .into_iter()
            .collect();
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        let info = cluster.model.list(cluster.now).remove(0);
        (info.health, info.reasons)
    };
    assert_eq!(said(None).0, Health::Healthy);
    assert_eq!(said(Some(false)).0, Health::Waiting);
    let (health, reasons) = said(Some(true));
    assert_eq!(health, Health::Lost);
    assert!(reasons[0].contains("its disk failed") && reasons[0].contains("start n"), "{reasons:?}");
    assert_eq!(said(None).0, Health::Healthy, "it runs again");
}

/// Nothing waits for it, and yet somebody has to do something.
#[test]
fn what_is_wrong_with_a_shard_that_serves_is_told_and_is_no_waiting() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.make(&NewVolume { shard_size: Bytes(MIB), ..NewVolume::new("v1", Bytes(2 * MIB)) }).unwrap();
    cluster.bear(1);
    let mut said = |ailments: &[(u32, Ailment)]| {
        for node in 1..=3 {
            let mut beat = cluster.heartbeat(node, 1, 0);
            let theirs =
                ailments.iter().filter(|(index, _)| cluster.config(1, *index).primary_member().unwrap().node.0 == node);
            let trouble = |(index, ailment): &(u32, Ailment)| {
                let reason = format!("why {index}");
                Trouble { shard: shard(1, *index), waiting: 0, reason, lost: false, ailment: Some(*ailment) }
            };
            beat.troubles = theirs.map(trouble).collect();
            cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        }
        let status = cluster.model.status(cluster.now);
        (status.health, status.volumes[0].reasons.clone(), status.warnings)
    };
    assert_eq!(said(&[]), (Health::Healthy, Vec::new(), Vec::new()));
    let unfilled = said(&[(0, Ailment::Unfilled)]);
    assert_eq!(unfilled, (Health::Degraded, vec!["v1/0: why 0".to_owned()], Vec::new()));
    let (health, reasons, warnings) = said(&[(0, Ailment::Unreadable), (1, Ailment::Unreadable)]);
    assert_eq!((health, reasons), (Health::Healthy, Vec::new()));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("volume v1: v1/") && warnings[0].ends_with("(and 1 more like this)"),
        "{warnings:?}"
    );
    assert_eq!(said(&[]), (Health::Healthy, Vec::new(), Vec::new()), "they are written again");
}

#[test]
fn many_copies_that_are_not_filled_hide_nothing_that_is_worse() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.make(&NewVolume { shard_size: Bytes(MIB), ..NewVolume::new("v1", Bytes(60 * MIB)) }).unwrap();
    cluster.bear(1);
    for node in 1..=3 {
        let mut beat = cluster.heartbeat(node, 1, 0);
        let theirs = (0..60).filter(|index| cluster.config(1, *index).primary_member().unwrap().node.0 == node);
        let trouble = |index| {
            let (lost, ailment) = if node == 3 { (true, None) } else { (false, Some(Ailment::Unfilled)) };
            Trouble { shard: shard(1, index), waiting: 0, reason: "so".to_owned(), lost, ailment }
        };
        beat.troubles = theirs.map(trouble).take(if node == 3 { 1 } else { 60 }).collect();
        assert!(node == 3 || beat.troubles.len() > 8);
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    }
    assert_eq!(cluster.model.status(cluster.now).health, Health::Lost);
}
