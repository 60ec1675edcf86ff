//! A disk that fails while its node lives on, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, disk_of, shard};
use conductor_model::api::MembershipChange;
use conductor_model::views::Health;
use conductor_model::{Configuration, CopyState, Member, Millis, NodeId, OpenId};

const AFTER: u64 = 5_000;
const WHY: &str = "the disk failed: error 5";

/// Four nodes and a volume of eight shards.
fn cluster() -> Cluster {
    let mut cluster = Cluster::with_nodes(4);
    cluster.model.set_replace_after(AFTER);
    cluster.create("db", 8 * MIB).unwrap();
    cluster.bear(1);
    pass(&mut cluster, 500, &[]);
    cluster
}

/// Time passes while all nodes are heard, of which these say that their disk failed.
fn pass(cluster: &mut Cluster, ms: u64, failed: &[u32]) {
    for _ in 0..ms / 500 {
        cluster.now = Millis(cluster.now.0 + 500);
        (1..=4).for_each(|node| say(cluster, node, failed.contains(&node)));
        cluster.tick();
    }
}

fn say(cluster: &mut Cluster, node: u32, failed: bool) {
    let mut beat = cluster.heartbeat(node, 1, 0);
    if failed {
        beat.failed = vec![(disk_of(node), WHY.to_owned())];
    }
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
}

fn configs(cluster: &Cluster) -> Vec<Configuration> {
    (0..8).filter_map(|i| cluster.model.configuration(shard(1, i))).collect()
}

fn on(cluster: &Cluster, node: u32) -> Vec<Member> {
    configs(cluster).into_iter().flat_map(|c| c.members).filter(|m| m.node == NodeId(node)).collect()
}

/// A shard of which node 1 has a copy that is not its primary, and that copy.
fn one_on_it(cluster: &Cluster) -> (Configuration, Member) {
    let of = |c: Configuration| {
        let here = c.members.iter().find(|m| m.node == NodeId(1) && m.copy != c.primary).cloned()?;
        Some((c, here))
    };
    configs(cluster).into_iter().find_map(of).unwrap()
}

#[test]
fn no_copy_is_placed_on_a_disk_that_failed() {
    let mut cluster = cluster();
    say(&mut cluster, 2, true);
    cluster.create("new", 8 * MIB).unwrap();
    let is_on_it = |cluster: &Cluster, volume| {
        (0..8).any(|index| cluster.config(volume, index).members.iter().any(|m| m.node == NodeId(2)))
    };
    assert!(!is_on_it(&cluster, 2));
    say(&mut cluster, 2, false);
    cluster.create("newer", 8 * MIB).unwrap();
    assert!(is_on_it(&cluster, 3), "it was said no more");
}

#[test]
fn copies_on_a_disk_that_failed_are_made_anew_although_its_node_lives() {
    let mut cluster = cluster();
    pass(&mut cluster, 500, &[1]);
    let shards = configs(&cluster).into_iter().filter(|c| c.primary_member().unwrap().node == NodeId(1));
    for config in shards.collect::<Vec<_>>() {
        cluster.grant(&config, MembershipChange::StepDown);
    }
    cluster.leave_behind(1);
    let had = on(&cluster, 1).len();
    assert!(had > 0 && on(&cluster, 1).iter().all(|m| m.state == CopyState::Absent));
    pass(&mut cluster, AFTER - 1_000, &[1]);
    assert_eq!(on(&cluster, 1).len(), had, "it is waited for");
    let info = cluster.model.show(cluster.now, "db").unwrap().info;
    assert_eq!(info.health, Health::Degraded);
    let why = "of n1 failed: 6 copies missing; replace the disk, or others are made in 1 s";
    assert!(info.reasons[0].contains(why), "{info:?}");
    pass(&mut cluster, 3_000, &[1]);
    assert_eq!(on(&cluster, 1), []);
    assert!(configs(&cluster).iter().all(|c| c.members.len() == 3));
}

/// What failed may have been one request: the node tries.
#[test]
fn a_copy_on_a_disk_that_failed_is_filled_if_it_can_be_and_one_in_sync_is_not_given_up() {
    let mut cluster = cluster();
    let (config, copy) = one_on_it(&cluster);
    let dropped = cluster.grant(&config, MembershipChange::Drop(vec![copy.copy]));
    pass(&mut cluster, 1_000, &[1]);
    let filled = cluster.grant(&dropped, MembershipChange::Fill(copy.copy, OpenId(1)));
    cluster.grant(&filled, MembershipChange::Add(copy.copy));
    pass(&mut cluster, 2 * AFTER, &[1]);
    assert!(cluster.config(1, config.shard.index.0).member(copy.copy).is_some(), "it was not given up");
}
