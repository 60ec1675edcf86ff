//! Nodes and disks that are to be emptied: refused where that cannot end, and said where it comes to stand still.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, heartbeat, registration, report, shard};
use conductor_model::api::DiskReport;
use conductor_model::views::{Duty, NewVolume};
use conductor_model::{Bytes, DiskId, NodeId, OpenId};

const MIB: u64 = 1 << 20;
const BESIDE: DiskId = DiskId(0xbe51de);

fn cluster_of(nodes: u32) -> Cluster {
    let mut cluster = Cluster::with_nodes(nodes);
    cluster.create("db", 8 * MIB).unwrap();
    cluster.bear(1);
    cluster
}

/// A node says how full its disk is, in per cent.
fn fill(cluster: &mut Cluster, node: u32, percent: u64) {
    let mut beat = heartbeat(node, 1, 0);
    beat.disks[0].2 = Bytes((1 << 40) / 100 * percent);
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
}

fn drain(cluster: &mut Cluster, node: u32, duty: Duty) -> Result<(), String> {
    let done = cluster.run(|m, now, _| m.set_duty(now, NodeId(node), duty, false));
    done.map(drop).map_err(|why| why.to_string())
}

fn warning(cluster: &Cluster) -> Option<String> {
    cluster.model.status(cluster.now).warnings.into_iter().find(|w| w.contains("is to be emptied"))
}

#[test]
fn a_node_is_not_drained_onto_disks_that_are_full_and_one_that_comes_to_stand_still_is_named() {
    let mut cluster = cluster_of(4);
    (1..=4).for_each(|node| fill(&mut cluster, node, 95));
    let why = drain(&mut cluster, 1, Duty::Draining).unwrap_err();
    assert!(why.contains("has room (`trine df`)"), "{why}");
    (1..=4).for_each(|node| fill(&mut cluster, node, 10));
    drain(&mut cluster, 1, Duty::Draining).unwrap();
    assert_eq!(warning(&cluster), None);
    (2..=4).for_each(|node| fill(&mut cluster, node, 95));
    let said = warning(&cluster).unwrap();
    assert!(said.starts_with("n1 is to be emptied, and has a copy of v1/"), "{said}");
    drain(&mut cluster, 1, Duty::Serving).unwrap();
    assert_eq!(warning(&cluster), None);

    // One that goes well is not said to be stuck while its copies are being filled elsewhere, and may be asked for again.
    (1..=4).for_each(|node| fill(&mut cluster, node, 10));
    drain(&mut cluster, 1, Duty::Draining).unwrap();
    cluster.pass(2_000, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
    let on_the_way = (0..8).filter_map(|i| cluster.model.configuration(shard(1, i))).filter(|c| c.members.len() == 4);
    assert!(on_the_way.count() > 0, "copies are being made elsewhere");
    assert_eq!(warning(&cluster), None);
    drain(&mut cluster, 1, Duty::Draining).unwrap();
}

/// Node 1 has another disk, with a reactor of its own and places for so many copies.
fn add_beside(cluster: &mut Cluster, max_copies: u32) {
    let mut both = registration(1, 1);
    let endpoint = "127.0.0.1:9100".parse().unwrap();
    both.disks.push(DiskReport { disk: BESIDE, endpoint, max_copies, ..report(1, 1) });
    cluster.register_as(&both).unwrap();
}

/// The node's disk has places for so many copies.
fn give_places(cluster: &mut Cluster, node: u32, max_copies: u32) {
    let mut register = registration(node, 1);
    register.disks[0].max_copies = max_copies;
    cluster.register_as(&register).unwrap();
}

/// Node 1 says how full its two disks are, in per cent.
fn fill_both(cluster: &mut Cluster, first: u64, beside: u64) {
    let mut beat = heartbeat(1, 1, 0);
    let used = |percent| Bytes((1 << 40) / 100 * percent);
    beat.disks[0].2 = used(first);
    beat.disks.push((BESIDE, OpenId(1), used(beside)));
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
}

#[test]
fn a_disk_that_no_other_node_can_take_over_from_may_be_replaced_by_its_neighbour() {
    let mut cluster = cluster_of(3);
    add_beside(&mut cluster, u32::MAX);
    let disk = cluster.disk(1);
    let refused = cluster.run(|m, now, _| m.remove_disk(now, disk, false)).unwrap_err().to_string();
    assert!(
        refused.contains("no other node can take")
            && refused.contains(&format!("`trine disk replace {disk} {BESIDE}`")),
        "{refused}"
    );
}

#[test]
fn a_disk_is_replaced_by_one_with_room_for_what_is_on_it_and_one_that_has_none_any_more_is_named() {
    let mut cluster = Cluster::with_nodes(3);
    let thick = NewVolume { shard_size: Bytes(64 << 30), ..NewVolume::new("thick", Bytes(1 << 40)) };
    cluster.make(&thick).unwrap();
    cluster.bear(1);
    add_beside(&mut cluster, u32::MAX);
    let old = cluster.disk(1);
    let replace = |c: &mut Cluster| c.run(|m, now, _| m.replace_disk(now, old, BESIDE)).map(drop);
    fill_both(&mut cluster, 80, 70);
    let refused = replace(&mut cluster).unwrap_err().to_string();
    assert!(refused.contains("in use, more than the"), "{refused}");
    let refused = cluster.run(|m, now, _| m.remove_disk(now, old, false)).unwrap_err().to_string();
    assert!(refused.contains("no other node can take") && !refused.contains("disk replace"), "{refused}");
    fill_both(&mut cluster, 80, 10);
    replace(&mut cluster).unwrap();
    assert_eq!(warning(&cluster), None);
    fill_both(&mut cluster, 80, 94);
    let said = warning(&cluster).unwrap();
    assert!(said.contains(&format!("disk {old} of n1 is to be emptied, disk {BESIDE} takes no copies now")), "{said}");
    replace(&mut cluster).unwrap();
}

#[test]
fn nothing_is_emptied_onto_disks_whose_stores_have_no_places_for_more_copies() {
    let mut cluster = cluster_of(4);
    // Each has six of the eight shards' copies.
    (2..=4).for_each(|node| give_places(&mut cluster, node, 6));
    let why = drain(&mut cluster, 1, Duty::Draining).unwrap_err();
    assert!(why.contains("and a place for one copy more"), "{why}");
    (2..=4).for_each(|node| give_places(&mut cluster, node, 7));
    drain(&mut cluster, 1, Duty::Draining).unwrap();
    assert_eq!(warning(&cluster), None);
    cluster.pass(5_000, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
    let held = |node| (0..8).flat_map(|i| cluster.config(1, i).members).filter(|m| m.node == NodeId(node)).count();
    assert_eq!((2..=4).map(held).collect::<Vec<_>>(), [7, 7, 7]);
    assert!(warning(&cluster).is_some_and(|said| said.contains("and a place for one copy more")));

    let mut cluster = cluster_of(3);
    add_beside(&mut cluster, 7);
    let old = cluster.disk(1);
    let replace = |c: &mut Cluster| c.run(|m, now, _| m.replace_disk(now, old, BESIDE)).map(drop);
    let why = replace(&mut cluster).unwrap_err().to_string();
    assert!(why.contains(&format!("has 8 copies, and {BESIDE} has places for 7 more")), "{why}");
    add_beside(&mut cluster, 8);
    replace(&mut cluster).unwrap();
    // One less after all, by the time.
    add_beside(&mut cluster, 7);
    for _ in 0..10 {
        cluster.now.0 += 500;
        fill_both(&mut cluster, 0, 0);
        [2, 3].iter().for_each(|node| drop(cluster.beat(*node, 1, 0).unwrap()));
        cluster.tick();
    }
    let beside = (0..8).flat_map(|i| cluster.config(1, i).members).filter(|m| m.disk == BESIDE).count();
    assert_eq!(beside, 7);
    let said = warning(&cluster).unwrap();
    assert!(said.contains(&format!("disk {BESIDE} takes no copies now")), "{said}");
}

#[test]
fn what_a_node_has_still_to_delete_is_counted_where_it_can_be() {
    let mut cluster = cluster_of(4);
    let heard = [(1, 1), (2, 1), (3, 1), (4, 1)];
    let info = |c: &Cluster| c.model.node(c.now, NodeId(1)).unwrap();
    let had = info(&cluster).disks[0].copies;
    assert!(had > 0 && info(&cluster).to_delete == 0);
    drain(&mut cluster, 1, Duty::Draining).unwrap();
    cluster.heal(20, &heard);
    assert_eq!((info(&cluster).disks[0].copies, info(&cluster).to_delete), (0, had), "not before it says so");
    let mut failing = cluster.heartbeat(1, 1, 0);
    failing.failed = vec![(cluster.disk(1), "it takes nothing".to_owned())];
    cluster.run(|m, now, _| m.heartbeat(now, &failing)).unwrap();
    assert_eq!(info(&cluster).to_delete, 0, "it never will");
    let mut beat = cluster.heartbeat(1, 1, 0);
    beat.dropped = cluster.told(1).drop;
    beat.dropped.pop();
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    assert_eq!(info(&cluster).to_delete, 1);
}
