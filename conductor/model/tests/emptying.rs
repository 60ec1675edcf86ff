//! Nodes and disks that are to be emptied: refused where that cannot end, and said where it comes to stand still.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, heartbeat, registration, report, shard};
use conductor_model::api::DiskReport;
use conductor_model::views::Duty;
use conductor_model::{Bytes, DiskId, NodeId};

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

#[test]
fn a_disk_that_no_other_node_can_take_over_from_may_be_replaced_by_its_neighbour() {
    let mut cluster = cluster_of(3);
    let mut both = registration(1, 1);
    // With a reactor of its own.
    let endpoint = "127.0.0.1:9100".parse().unwrap();
    both.disks.push(DiskReport { disk: BESIDE, endpoint, ..report(1, 1) });
    cluster.register_as(&both).unwrap();
    let disk = cluster.disk(1);
    let refused = cluster.run(|m, now, _| m.remove_disk(now, disk, false)).unwrap_err().to_string();
    assert!(
        refused.contains("no other node can take")
            && refused.contains(&format!("`trine disk replace {disk} {BESIDE}`")),
        "{refused}"
    );
}
