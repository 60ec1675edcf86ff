//! Copies that are made anew, and nodes and disks that are emptied, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, disk_of, registration, report, shard, state, with_volume};
use conductor_model::api::MembershipChange;
use conductor_model::limits::RESHAPES_AT_ONCE;
use conductor_model::views::{Attach, Duty, Force, Health, NewVolume};
use conductor_model::{Bytes, Commit, Configuration, CopyId, CopyState, Error, Key, Member, NodeId, OpenId};
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

fn on(cluster: &Cluster, node: u32) -> Vec<Member> {
    let members = configs(cluster).into_iter().flat_map(|c| c.members);
    members.filter(|m| m.node == NodeId(node)).collect()
}

fn health(cluster: &Cluster) -> Health {
    cluster.model.show(cluster.now, "db").unwrap().info.health
}

#[test]
fn what_is_in_use_has_to_fit_on_a_disk_before_that_is_added_in_anothers_place() {
    let mut cluster = with_volume();
    let mut beat = cluster.heartbeat(1, 1, 0);
    beat.disks[0].2 = Bytes(2 * MIB);
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    let fits = |bytes| cluster.model.check_replacement(cluster.now, disk_of(1), Bytes(bytes));
    assert!(fits(2 * MIB).is_ok());
    assert_eq!(fits(2 * MIB - 1).unwrap_err().kind(), "in-use");
    let unknown = cluster.model.check_replacement(cluster.now, conductor_model::DiskId(5), Bytes(MIB));
    assert_eq!(unknown.unwrap_err().kind(), "no-disk");
}

#[test]
fn a_copy_that_does_not_come_back_is_made_anew_on_another_node_and_deleted_when_it_does() {
    let mut cluster = cluster_of(4);
    let before: BTreeSet<CopyId> = on(&cluster, 1).iter().map(|m| m.copy).collect();
    assert!(!before.is_empty());
    cluster.pass(2_500, &all_but(4, &[1]));
    cluster.leave_behind(1);
    cluster.pass(4_000, &all_but(4, &[1]));
    assert_eq!(on(&cluster, 1).len(), before.len(), "it is waited for");
    cluster.pass(3_000, &all_but(4, &[1]));
    assert_eq!(on(&cluster, 1), []);
    for config in configs(&cluster) {
        assert_eq!((config.members.len(), config.in_sync()), (3, config.full_set.len()));
    }
    assert_eq!(health(&cluster), Health::Degraded, "the new ones are empty");
    cluster.heal(3, &all_but(4, &[1]));
    assert_eq!(health(&cluster), Health::Healthy);

    let told: BTreeSet<CopyId> = cluster.beat(1, 1, 0).unwrap().drop.into_iter().collect();
    assert_eq!(told, before);
    cluster.heal(10, &all_but(4, &[]));
    assert_eq!(on(&cluster, 1), [], "nobody moves back what is well");
}

#[test]
fn a_node_that_comes_back_with_an_empty_disk_fills_that() {
    let mut cluster = cluster_of(3);
    cluster.pass(2_500, &all_but(3, &[1]));
    cluster.leave_behind(1);
    cluster.pass(8_000, &all_but(3, &[1]));
    assert_eq!(on(&cluster, 1).len(), 8, "nobody else can take them");
    let reasons = cluster.model.show(cluster.now, "db").unwrap().info.reasons;
    assert!(reasons[0].contains("8 copies missing; start it again, or add a node"), "{reasons:?}");
    cluster.disks.insert(1, 11);
    cluster.register(1, 1).unwrap();
    cluster.pass(1_500, &all_but(3, &[]));
    assert!(on(&cluster, 1).iter().all(|m| m.disk == disk_of(11) && m.state == CopyState::Absent));
    cluster.heal(3, &all_but(3, &[]));
    assert_eq!(health(&cluster), Health::Healthy);
    // The old disk turns up again: what is on it is deleted.
    let mut both = registration(1, 2);
    both.disks[0].disk = disk_of(11);
    both.disks.push(report(1, 2));
    cluster.run(|m, now, _| m.register(now, &both)).unwrap();
    assert_eq!(cluster.model.answer(NodeId(1), conductor_model::Commit(0)).drop.len(), 8);
}

#[test]
fn copies_of_a_sealed_shards_last_full_set_are_never_replaced() {
    let mut cluster = cluster_of(4);
    let first = cluster.config(1, 0);
    let others: Vec<Member> = first.members.iter().filter(|m| m.copy != first.primary).cloned().collect();
    let dead: Vec<u32> = others.iter().map(|m| m.node.0).collect();
    cluster.pass(3_000, &all_but(4, &dead));
    let sealed = cluster.grant(&first, MembershipChange::Drop(others.iter().map(|m| m.copy).collect()));
    assert!(sealed.is_sealed() && sealed.primary == first.primary);
    cluster.pass(20_000, &all_but(4, &dead));
    let beside = cluster.config(1, 0);
    assert!(sealed.members.iter().all(|m| beside.members.contains(m)) && beside.full_set == sealed.full_set);
    let [spare] = &beside.members[3..] else { panic!("{beside:?}") };
    assert!(beside.is_sealed() && spare.state == CopyState::Absent);
    // Filled, it is the way out: the others are not needed any more, one after the other.
    cluster.heal(10, &all_but(4, &dead));
    let healed = cluster.config(1, 0);
    assert_eq!((healed.is_sealed(), healed.in_sync(), healed.members.len()), (false, 2, 3));
    assert!(healed.member(spare.copy).is_some());
    // One that had left before the last full set is none of these.
    let mut cluster = cluster_of(4);
    let first = cluster.config(1, 0);
    let next = cluster.grant(&first, MembershipChange::Drop(vec![others[0].copy]));
    cluster.grant(&next, MembershipChange::Drop(vec![others[1].copy]));
    cluster.pass(20_000, &all_but(4, &dead));
    let now = cluster.config(1, 0);
    assert!(now.member(others[0].copy).is_none() && now.member(others[1].copy).is_some() && now.is_sealed());
    assert_eq!(now.full_set, next.full_set);
}

#[test]
fn two_copies_of_which_one_is_lost_for_good_become_two_again() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.model.set_replace_after(AFTER);
    let new = NewVolume { copies: 2, shard_size: Bytes(MIB), ..NewVolume::new("db", Bytes(MIB)) };
    cluster.make(&new).unwrap();
    cluster.bear(1);
    let first = cluster.config(1, 0);
    let lost = first.members.iter().find(|m| m.copy != first.primary).unwrap().clone();
    let sealed = cluster.grant(&first, MembershipChange::Drop(vec![lost.copy]));
    assert!(sealed.is_sealed());
    cluster.heal(20, &all_but(3, &[lost.node.0]));
    let healed = cluster.config(1, 0);
    assert_eq!((healed.is_sealed(), healed.in_sync(), healed.members.len()), (false, 2, 2));
    assert!(healed.member(lost.copy).is_none());
}

#[test]
fn a_restarted_conductor_waits_anew() {
    let mut cluster = cluster_of(4);
    cluster.pass(2_500, &all_but(4, &[1]));
    cluster.leave_behind(1);
    cluster.pass(4_000, &all_but(4, &[1]));
    cluster.restart_replacing(AFTER);
    cluster.pass(4_000, &all_but(4, &[1]));
    assert!(!on(&cluster, 1).is_empty());
    cluster.pass(3_000, &all_but(4, &[1]));
    assert_eq!(on(&cluster, 1), []);
}

#[test]
fn many_shards_are_replaced_some_at_a_time() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.model.set_replace_after(0);
    cluster.create("db", 800 * MIB).unwrap();
    cluster.bear(1);
    cluster.pass(500, &all_but(4, &[]));
    // Promotions take the dead node's primaries, and leave its copies out.
    for _ in 0..4 {
        cluster.pass(500, &all_but(4, &[1]));
    }
    cluster.leave_behind(1);
    let left = |c: &Cluster| c.model.node(c.now, NodeId(1)).unwrap().disks[0].copies;
    let before = left(&cluster);
    assert!(before as usize > RESHAPES_AT_ONCE);
    let commit = cluster.model.commit();
    cluster.pass(1_000, &all_but(4, &[1]));
    assert_eq!((left(&cluster) + 256, cluster.model.commit().0), (before, commit.0 + 1));
}

#[test]
fn a_cordoned_node_keeps_its_copies_and_gets_no_new_ones() {
    let mut cluster = cluster_of(4);
    let had = on(&cluster, 2);
    let info = cluster.run(|m, now, _| m.set_duty(now, NodeId(2), Duty::Cordoned, false)).unwrap();
    assert_eq!(info.duty, Duty::Cordoned);
    cluster.create("young", 4 * MIB).unwrap();
    for index in 0..4 {
        assert!(cluster.config(2, index).members.iter().all(|m| m.node != NodeId(2)));
    }
    cluster.pass(3_000, &all_but(4, &[]));
    assert_eq!(on(&cluster, 2), had);
    cluster.restart();
    cluster.register(2, 1).unwrap();
    assert_eq!(cluster.model.node(cluster.now, NodeId(2)).unwrap().duty, Duty::Cordoned, "until it is uncordoned");
}

#[test]
fn a_drained_node_is_emptied_without_a_copy_less_at_any_time() {
    let mut cluster = cluster_of(4);
    let had = on(&cluster, 1).len();
    let primaries = cluster.model.node(cluster.now, NodeId(1)).unwrap().primaries;
    assert!(had > 0 && primaries > 0);
    cluster.run(|m, now, _| m.set_duty(now, NodeId(1), Duty::Draining, false)).unwrap();
    for _ in 0..20 {
        cluster.heal(1, &all_but(4, &[]));
        for config in configs(&cluster) {
            assert!(config.in_sync() >= 3, "{config:?}");
        }
    }
    assert_eq!((on(&cluster, 1), health(&cluster)), (vec![], Health::Healthy));
    assert!(configs(&cluster).iter().all(|c| c.members.len() == 3));
    let told = cluster.beat(1, 1, 0).unwrap();
    assert_eq!(told.drop.len(), had);
}

#[test]
fn a_node_is_not_drained_if_nobody_can_take_its_copies() {
    let mut cluster = cluster_of(3);
    let refused = cluster.run(|m, now, _| m.set_duty(now, NodeId(1), Duty::Draining, false)).unwrap_err();
    assert!(refused.to_string().contains("no other node can take: add a node"), "{refused}");
}

#[test]
fn a_running_node_is_not_removed_and_a_dead_one_with_copies_only_by_force() {
    let mut cluster = cluster_of(4);
    cluster.model.set_replace_after(u64::MAX);
    let remove = |c: &mut Cluster, force| c.run(|m, now, _| m.set_duty(now, NodeId(1), Duty::Removed, force));
    assert!(remove(&mut cluster, true).unwrap_err().to_string().contains("runs: drain and stop it first"));
    cluster.pass(2_500, &all_but(4, &[1]));
    let late = remove(&mut cluster, true).unwrap_err();
    assert!(late.to_string().contains("n1 was heard 2 s ago, and counts as running until that is 10 s: "), "{late}");
    cluster.leave_behind(1);
    cluster.pass(10_000, &all_but(4, &[1]));
    assert!(!on(&cluster, 1).is_empty());
    assert!(remove(&mut cluster, false).unwrap_err().to_string().contains("pass --force"));
    remove(&mut cluster, true).unwrap();
    cluster.heal(5, &all_but(4, &[1]));
    assert_eq!(health(&cluster), Health::Healthy);
    assert_eq!(cluster.model.node(cluster.now, NodeId(1)), Err(Error::NoNode(NodeId(1))), "forgotten");
    assert!(!cluster.file.keys().any(|key| matches!(key, Key::Drop(NodeId(1), _))));
    // It comes back after all, with copies that are not listed any more: it is told to delete them.
    let mut register = registration(1, 2);
    let old = Configuration { epoch: conductor_model::Epoch(1), ..cluster.config(1, 0) };
    register.disks[0].copies = vec![(CopyId(77), old)];
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    assert_eq!(cluster.beat(1, 2, 0).unwrap().drop, [CopyId(77)]);
}

#[test]
fn the_last_copy_with_all_writes_is_not_given_up_by_any_force() {
    let mut cluster = cluster_of(4);
    let first = cluster.config(1, 0);
    let others: Vec<CopyId> = first.members.iter().filter(|m| m.copy != first.primary).map(|m| m.copy).collect();
    let next = cluster.grant(&first, MembershipChange::Drop(vec![others[0]]));
    cluster.grant(&next, MembershipChange::Drop(vec![others[1]]));
    let full: Vec<u32> = next.full_set.iter().map(|c| next.member(*c).unwrap().node.0).collect();
    let mut refused = 0;
    cluster.pass(11_000, &all_but(4, &full));
    for node in &full {
        refused += u32::from(cluster.run(|m, now, _| m.set_duty(now, NodeId(*node), Duty::Removed, true)).is_err());
    }
    assert_eq!(refused, 1, "the first one has the other one; that one has nobody left");
    let mut single = Cluster::with_nodes(3);
    single.make(&NewVolume { copies: 1, min_copies: 1, ..NewVolume::new("db", Bytes(MIB)) }).unwrap();
    single.bear(1);
    let holder = single.config(1, 0).primary_member().unwrap().node;
    single.pass(11_000, &all_but(3, &[holder.0]));
    let refused = single.run(|m, now, _| m.set_duty(now, holder, Duty::Removed, true)).unwrap_err();
    assert!(refused.to_string().contains("the last copy of v1/0"), "{refused}");
    let refused = single.run(|m, now, _| m.remove_disk(now, disk_of(holder.0), true)).unwrap_err();
    assert!(refused.to_string().contains("the last copy of v1/0"), "{refused}");
}

#[test]
fn a_last_copy_is_given_up_by_a_sentence_that_names_its_volume_and_nothing_less() {
    let mut cluster = Cluster::with_nodes(3);
    let single = |name: &str| NewVolume { copies: 1, min_copies: 1, ..NewVolume::new(name, Bytes(MIB)) };
    cluster.make(&single("db")).unwrap();
    cluster.bear(1);
    let holder = cluster.config(1, 0).primary_member().unwrap().node;
    cluster.pass(11_000, &all_but(3, &[holder.0]));
    let remove = |c: &mut Cluster, sentence: Option<&str>| {
        let force = Force { force: true, sentence: sentence.map(str::to_owned) };
        c.run(|m, now, _| m.set_duty(now, holder, Duty::Removed, force))
    };
    let sentence = "lose data of volume db";
    for wrong in [None, Some(""), Some("lose data of volume other"), Some("yes")] {
        let refused = remove(&mut cluster, wrong).unwrap_err().to_string();
        assert!(refused.contains(&format!("--force \"{sentence}\"")), "{refused}");
    }
    assert_ne!(health(&cluster), Health::Lost, "it may come back");
    remove(&mut cluster, Some(sentence)).unwrap();
    cluster.pass(3_000, &all_but(3, &[holder.0]));
    assert_eq!(health(&cluster), Health::Lost);
    let reasons = cluster.model.show(cluster.now, "db").unwrap().info.reasons;
    assert!(reasons[0].contains("was given up: delete volume db"), "{reasons:?}");
    let said: Vec<String> = cluster.model.events(0).iter().map(|e| e.what.to_string()).collect();
    assert!(said.iter().any(|what| what == "LOST by force: the last copies of db (v1/0)"), "{said:?}");
    cluster.delete("db").unwrap();
    cluster.pass(3_000, &all_but(3, &[holder.0]));
    assert_eq!(cluster.model.node(cluster.now, holder), Err(Error::NoNode(holder)), "and the node is forgotten");
    assert!(cluster.model.list(cluster.now).is_empty());
}

#[test]
fn a_lost_shard_keeps_nobody_from_the_others() {
    let force = |client: &str| Attach {
        client: client.to_owned(),
        read_only: false,
        shared: false,
        force: true,
        host: String::new(),
        resumes: None,
    };
    let mut cluster = Cluster::with_nodes(3);
    let new = NewVolume { copies: 1, min_copies: 1, shard_size: Bytes(MIB), ..NewVolume::new("db", Bytes(3 * MIB)) };
    cluster.make(&new).unwrap();
    cluster.bear(1);
    let hear = |c: &mut Cluster, nodes: &[u32]| {
        for node in nodes {
            let version = c.beat(*node, 1, 0).unwrap().version;
            c.beat(*node, 1, version).unwrap();
        }
        c.tick();
    };
    cluster.attach("db").unwrap();
    cluster.run(|m, now, _| m.attach(now, "db", &force("web2"))).unwrap();
    hear(&mut cluster, &[1, 2]);
    assert_eq!(cluster.model.may_serve_others(cluster.now, "db").unwrap(), [NodeId(3)]);
    hear(&mut cluster, &[3]);
    // What all have acted upon is over for good, whoever is lost then.
    cluster.restart();
    hear(&mut cluster, &[1, 2]);
    assert_eq!(cluster.model.may_serve_others(cluster.now, "db").unwrap(), []);
    // What one did not hear before it was lost is waited for, until somebody says that it will not come back.
    cluster.run(|m, now, _| m.attach(now, "db", &force("web3"))).unwrap();
    cluster.pass(11_000, &[(1, 1), (2, 1)]);
    hear(&mut cluster, &[1, 2]);
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap(), [NodeId(3)]);
    assert_eq!(cluster.model.may_serve_others(cluster.now, "db").unwrap(), [NodeId(3)]);
    let sentence = Force { force: true, sentence: Some("lose data of volume db".to_owned()) };
    cluster.run(|m, now, _| m.set_duty(now, NodeId(3), Duty::Removed, sentence)).unwrap();
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap(), []);
    assert_eq!(cluster.model.may_serve_others(cluster.now, "db").unwrap(), []);
    // If it comes back after all, it is waited for like any other.
    cluster.tick();
    cluster.register(3, 1).unwrap();
    assert_eq!(cluster.model.may_serve_others(cluster.now, "db").unwrap(), [NodeId(3)]);
    cluster.run(|m, now, _| m.attach(now, "db", &force("web4"))).unwrap();
    hear(&mut cluster, &[1, 2]);
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap(), [NodeId(3)]);
}

#[test]
fn the_last_two_copies_are_not_given_up_one_after_the_other_without_a_sentence() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.make(&NewVolume { copies: 2, min_copies: 1, ..NewVolume::new("db", Bytes(MIB)) }).unwrap();
    cluster.bear(1);
    let holders: Vec<NodeId> = cluster.config(1, 0).members.iter().map(|m| m.node).collect();
    cluster.pass(11_000, &all_but(3, &[holders[0].0, holders[1].0]));
    let remove = |c: &mut Cluster, node| c.run(|m, now, _| m.set_duty(now, node, Duty::Removed, true));
    remove(&mut cluster, holders[0]).unwrap();
    let refused = remove(&mut cluster, holders[1]).unwrap_err().to_string();
    assert!(refused.contains("--force \"lose data of volume db\""), "{refused}");
}

/// While a disk is replaced, its node has two copies for a moment: one of these is no third.
#[test]
fn a_copy_that_is_dropped_while_its_shard_has_two_on_one_node_is_missing() {
    let mut cluster = cluster_of(3);
    let mut both = registration(1, 1);
    both.disks.push(report(11, 1));
    cluster.run(|m, now, _| m.register(now, &both)).unwrap();
    cluster.run(|m, now, _| m.replace_disk(now, disk_of(1), disk_of(11))).unwrap();
    for _ in 0..6 {
        cluster.now = conductor_model::Millis(cluster.now.0 + 500);
        let mut beat = cluster.heartbeat(1, 1, 0);
        beat.disks.push((disk_of(11), OpenId(1), Bytes(0)));
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        [2, 3].iter().for_each(|node| drop(cluster.beat(*node, 1, 0).unwrap()));
        cluster.tick();
    }
    let listed = configs(&cluster).into_iter().find(|c| c.members.len() == 4).unwrap();
    let new = listed.members.iter().find(|m| m.state == CopyState::Absent).unwrap().clone();
    let filled = cluster.grant(&listed, MembershipChange::Fill(new.copy, new.open));
    let four = cluster.grant(&filled, MembershipChange::Add(new.copy));
    assert_eq!((four.in_sync(), health(&cluster)), (4, Health::Healthy));
    let gone = four.members.iter().find(|m| m.copy != four.primary && m.node.0 != 1).unwrap().copy;
    cluster.grant(&four, MembershipChange::Drop(vec![gone]));
    assert_ne!(health(&cluster), Health::Healthy, "three copies, on two nodes");
}

#[test]
fn a_disk_is_replaced_by_another_one_of_its_node_while_it_lives_and_goes_when_that_is_in_sync() {
    let mut cluster = cluster_of(3);
    let mut both = registration(1, 1);
    let (mut second, old, new) = (report(11, 1), disk_of(1), disk_of(11));
    let replace = |c: &mut Cluster| c.run(|m, now, _| m.replace_disk(now, old, new));
    assert!(replace(&mut cluster).unwrap_err().to_string().contains("add that one to n1 first"));
    second.endpoint = both.disks[0].endpoint;
    both.disks.push(second);
    cluster.run(|m, now, _| m.register(now, &both)).unwrap();
    let refused = replace(&mut cluster).unwrap_err().to_string();
    assert!(refused.contains("shares a reactor"), "{refused}");
    both.disks[1].endpoint = report(11, 1).endpoint;
    cluster.run(|m, now, _| m.register(now, &both)).unwrap();
    replace(&mut cluster).unwrap();
    let beat = |c: &mut Cluster| {
        let mut beat = c.heartbeat(1, 1, 0);
        beat.disks.push((new, OpenId(1), Bytes(0)));
        c.run(|m, now, _| m.heartbeat(now, &beat)).unwrap()
    };
    let mut least = usize::MAX;
    for _ in 0..30 {
        cluster.now = conductor_model::Millis(cluster.now.0 + 500);
        let told = beat(&mut cluster);
        assert_eq!(told.retire, [], "there is something on it");
        [2, 3].iter().for_each(|node| drop(cluster.beat(*node, 1, 0).unwrap()));
        cluster.tick();
        for config in configs(&cluster) {
            let absent = config.members.iter().find(|m| m.state == CopyState::Absent).cloned();
            if let Some(Member { copy, open, .. }) = absent {
                let config = cluster.grant(&config, MembershipChange::Fill(copy, open));
                cluster.grant(&config, MembershipChange::Add(copy));
            }
        }
        least = configs(&cluster).iter().map(Configuration::in_sync).chain([least]).min().unwrap();
    }
    assert_eq!((least, health(&cluster)), (3, Health::Healthy));
    assert!(on(&cluster, 1).len() == 8 && on(&cluster, 1).iter().all(|m| m.disk == new));
    // Its copies are deleted; then its node is told to let go of it.
    let dropped = beat(&mut cluster).drop;
    assert_eq!(dropped.len(), 8);
    let mut failed = cluster.heartbeat(1, 1, 0);
    failed.disks.push((new, OpenId(1), Bytes(0)));
    failed.failed = vec![(old, "the disk failed: error 5".to_owned())];
    let told = cluster.run(|m, now, _| m.heartbeat(now, &failed)).unwrap();
    assert_eq!(told.retire, [old], "it deletes nothing any more");
    let status = cluster.model.status(cluster.now);
    let shown = status.nodes[0].disks.iter().find(|d| d.disk == old).unwrap();
    assert_eq!(shown.failed.as_deref(), Some("the disk failed: error 5"));
    assert!(status.warnings.iter().any(|w| w.contains("FAILED") && w.contains("trine disk replace")), "{status:?}");
    assert_eq!(beat(&mut cluster).retire, [], "said no more");
    let mut confirmed = cluster.heartbeat(1, 1, 0);
    confirmed.disks.push((new, OpenId(1), Bytes(0)));
    confirmed.dropped = dropped;
    let told = cluster.run(|m, now, _| m.heartbeat(now, &confirmed)).unwrap();
    assert_eq!(told.retire, [old]);
    both.disks.remove(0);
    cluster.run(|m, now, _| m.register(now, &both)).unwrap();
    cluster.wait(1_000);
    let left: Vec<_> = cluster.model.node(cluster.now, NodeId(1)).unwrap().disks.iter().map(|d| d.disk).collect();
    assert_eq!(left, [new]);
}

/// Each of these nodes has a second disk from now on, which takes the place of its first one.
fn second_disks(cluster: &mut Cluster, nodes: &[u32]) {
    for node in nodes {
        let mut both = registration(*node, 1);
        both.disks.push(report(10 + node, 1));
        cluster.run(|m, now, _| m.register(now, &both)).unwrap();
        cluster.run(|m, now, _| m.replace_disk(now, disk_of(*node), disk_of(10 + node))).unwrap();
    }
}

/// So many half seconds pass in which these nodes are heard, with both disks; what they say that they deleted, and are told.
fn beats(cluster: &mut Cluster, nodes: &[u32], count: u32) {
    for _ in 0..count {
        cluster.now = conductor_model::Millis(cluster.now.0 + 500);
        for node in nodes {
            let mut beat = cluster.heartbeat(*node, 1, 0);
            beat.disks.push((disk_of(10 + node), OpenId(1), Bytes(0)));
            beat.dropped = cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap().drop;
            cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
        }
        cluster.tick();
    }
}

#[test]
fn of_one_shard_no_two_copies_move_between_disks_of_their_nodes_at_once() {
    let mut cluster = Cluster::with_nodes(2);
    let new = NewVolume { copies: 2, shard_size: Bytes(MIB), ..NewVolume::new("db", Bytes(4 * MIB)) };
    cluster.make(&new).unwrap();
    cluster.bear(1);
    second_disks(&mut cluster, &[1, 2]);
    beats(&mut cluster, &[1, 2], 4);
    assert!((0..4).all(|index| cluster.config(1, index).members.len() == 3));
    // One more is wanted than there are nodes: it is not the other one's successor.
    cluster.run(|m, now, _| m.set_copies(now, "db", Some(3), None)).unwrap();
    beats(&mut cluster, &[1, 2], 6);
    assert!((0..4).all(|index| cluster.config(1, index).members.len() == 3));
    cluster.restart();
}

#[test]
fn a_parents_copy_on_a_disk_that_is_replaced_is_deleted_when_its_clones_there_are() {
    let mut cluster = cluster_of(3);
    cluster.snapshot("db", "a");
    let clone = cluster.clone_of("copy", "db@a").unwrap();
    cluster.bear(clone.0);
    second_disks(&mut cluster, &[1]);
    for _ in 0..60 {
        beats(&mut cluster, &[1], 1);
        [2, 3].iter().for_each(|node| drop(cluster.beat(*node, 1, 0).unwrap()));
        for (volume, index) in [1, clone.0].into_iter().flat_map(|volume| (0..8).map(move |index| (volume, index))) {
            let config = cluster.config(volume, index);
            let absent = config.members.iter().find(|m| m.state == CopyState::Absent).cloned();
            if let Some(Member { copy, open, .. }) = absent {
                let config = cluster.grant(&config, MembershipChange::Fill(copy, open));
                cluster.grant(&config, MembershipChange::Add(copy));
            }
        }
    }
    let mut beat = cluster.heartbeat(1, 1, 0);
    beat.disks.push((disk_of(11), OpenId(1), Bytes(0)));
    let told = cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    assert_eq!((told.drop, told.retire), (vec![], vec![disk_of(1)]));
}

#[test]
fn shards_that_find_no_place_keep_the_others_from_nothing() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.model.set_replace_after(0);
    let pass = |cluster: &mut Cluster, ms: u64, nodes: &[u32], used: u64| {
        for _ in 0..ms / 500 {
            cluster.now = conductor_model::Millis(cluster.now.0 + 500);
            for node in nodes {
                let mut beat = cluster.heartbeat(*node, 1, 0);
                beat.disks[0].2 = Bytes(if *node == 3 { used } else { 0 });
                cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
            }
            cluster.tick();
        }
    };
    // While the third node is full nothing is placed there; what is made afterwards is, before it is full again.
    let (full, stuck, all) = (1 << 40, 300, 340);
    assert!(stuck > RESHAPES_AT_ONCE as u64);
    pass(&mut cluster, 500, &[1, 2, 3, 4], full);
    cluster.create("db", stuck * MIB).unwrap();
    cluster.bear(1);
    pass(&mut cluster, 500, &[1, 2, 3, 4], 0);
    cluster.run(|m, now, mut draw| m.resize(now, "db", Bytes(all * MIB), &mut draw)).unwrap();
    for index in stuck..all {
        let config = cluster.config(1, u32::try_from(index).unwrap());
        cluster.grant(&config, MembershipChange::Born);
    }
    pass(&mut cluster, 3_000, &[1, 2, 3], full);
    cluster.leave_behind(4);
    pass(&mut cluster, 5_000, &[1, 2, 3], full);
    let mut left = 0;
    for index in 0..u32::try_from(all).unwrap() {
        let nodes: BTreeSet<u32> = cluster.config(1, index).members.iter().map(|m| m.node.0).collect();
        assert!(!nodes.contains(&4) || nodes == BTreeSet::from([1, 2, 4]), "{index}: {nodes:?}");
        left += u64::from(nodes.contains(&4));
    }
    assert!((stuck..all).contains(&left), "{left} have nowhere to go");
}

#[test]
fn a_disk_that_is_gone_for_good_is_forgotten_when_its_copies_are_elsewhere() {
    let mut cluster = cluster_of(3);
    cluster.model.set_replace_after(u64::MAX);
    cluster.disks.insert(1, 11);
    cluster.register(1, 1).unwrap();
    cluster.pass(3_000, &all_but(3, &[]));
    cluster.leave_behind(1);
    cluster.pass(3_000, &all_but(3, &[]));
    assert!(on(&cluster, 1).iter().all(|m| m.disk == disk_of(1)), "it is waited for");
    let remove = |c: &mut Cluster, force| c.run(|m, now, _| m.remove_disk(now, disk_of(1), force));
    assert!(remove(&mut cluster, false).unwrap_err().to_string().contains("--force"));
    remove(&mut cluster, true).unwrap();
    cluster.heal(4, &all_but(3, &[]));
    assert!(on(&cluster, 1).iter().all(|m| m.disk == disk_of(11)));
    assert_eq!(health(&cluster), Health::Healthy);
    assert_eq!(cluster.model.node(cluster.now, NodeId(1)).unwrap().disks.len(), 1);
    assert_eq!(remove(&mut cluster, true), Err(Error::NoDisk(disk_of(1))));
}

#[test]
fn a_disk_that_is_to_be_emptied_stays_if_somebody_says_so() {
    let mut cluster = cluster_of(4);
    let before: Vec<Configuration> = configs(&cluster);
    let keep = |c: &mut Cluster| c.run(|m, now, _| m.keep_disk(now, disk_of(1)));
    let is_leaving = |c: &Cluster| c.model.node(c.now, NodeId(1)).unwrap().disks[0].leaving;
    cluster.run(|m, now, _| m.remove_disk(now, disk_of(1), false)).unwrap();
    assert!(is_leaving(&cluster));
    // New copies are listed elsewhere, and are not wanted any more when the disk stays.
    cluster.pass(1_000, &all_but(4, &[]));
    keep(&mut cluster).unwrap();
    assert!(!is_leaving(&cluster));
    cluster.heal(5, &all_but(4, &[]));
    let now = configs(&cluster);
    assert!(now.iter().all(|c| c.members.len() == 3 && c.in_sync() == 3) && health(&cluster) == Health::Healthy);
    let on_it = |all: &[Configuration]| all.iter().flat_map(|c| &c.members).filter(|m| m.node == NodeId(1)).count();
    assert!(on_it(&before) > 0 && on_it(&now) > 0, "{now:?}");
    let events: Vec<String> = cluster.model.events(0).iter().map(|event| event.what.to_string()).collect();
    assert!(events.iter().any(|event| event.ends_with("of n1 stays")), "{events:?}");
    // Once, and not again.
    keep(&mut cluster).unwrap();
    assert_eq!(cluster.model.events(0).len(), events.len());
    assert_eq!(cluster.run(|m, now, _| m.keep_disk(now, disk_of(77))), Err(Error::NoDisk(disk_of(77))));
}

#[test]
fn a_volume_gets_as_many_copies_as_are_wanted_and_loses_the_rest() {
    let mut cluster = cluster_of(3);
    let set = |c: &mut Cluster, copies, min| c.run(|m, now, _| m.set_copies(now, "db", copies, min));
    assert!(set(&mut cluster, Some(4), None).is_err());
    assert!(set(&mut cluster, Some(1), Some(2)).is_err());
    let info = set(&mut cluster, Some(1), None).unwrap();
    assert_eq!((info.copies, info.min_copies), (1, 1));
    cluster.heal(5, &all_but(3, &[]));
    assert!(configs(&cluster).iter().all(|c| c.members.len() == 1 && c.in_sync() == 1 && c.min_copies == 1));
    assert_eq!(health(&cluster), Health::Healthy);
    let holders: BTreeSet<NodeId> = configs(&cluster).iter().map(|c| c.members[0].node).collect();
    assert_eq!(holders.len(), 3, "the primaries stay where they were");
    let refused = set(&mut cluster, Some(3), Some(2)).unwrap_err();
    assert!(refused.to_string().contains("has only 1 copies in sync"), "{refused}");
    set(&mut cluster, Some(3), None).unwrap();
    let reasons = cluster.model.show(cluster.now, "db").unwrap().info.reasons;
    assert_eq!(health(&cluster), Health::Degraded);
    assert!(reasons[0].contains("fewer copies are placed than are wanted"), "{reasons:?}");
    // Confirmed: an id that is to be deleted is not listed again, and another one is.
    cluster.heal(6, &all_but(3, &[]));
    assert!(configs(&cluster).iter().all(|c| c.members.len() == 3 && c.in_sync() == 3));
    set(&mut cluster, None, Some(2)).unwrap();
    assert!(configs(&cluster).iter().all(|c| c.min_copies == 2 && !c.is_sealed()));
    cluster.restart();
    assert_eq!(cluster.model.show(cluster.now, "db").unwrap().info.copies, 3);
}

#[test]
fn a_copy_that_is_being_filled_is_left_in_peace() {
    let mut cluster = cluster_of(4);
    let config = cluster.config(1, 0);
    let away = config.members.iter().find(|m| m.copy != config.primary).unwrap().clone();
    let config = cluster.grant(&config, MembershipChange::Drop(vec![away.copy]));
    let config = cluster.grant(&config, MembershipChange::Fill(away.copy, OpenId(1)));
    assert_eq!(state(&config, away.copy), CopyState::Syncing);
    cluster.run(|m, now, _| m.set_duty(now, away.node, Duty::Draining, false)).unwrap();
    cluster.pass(5_000, &all_but(4, &[]));
    assert_eq!(cluster.config(1, 0), config);
}

#[test]
fn a_removed_node_that_returns_with_copies_of_deleted_volumes_keeps_them_and_it_is_said_how_they_go() {
    let mut cluster = cluster_of(4);
    cluster.create("old", 8 * MIB).unwrap();
    cluster.bear(2);
    let held: Vec<_> =
        (0..8).map(|i| cluster.config(2, i)).filter(|c| c.members.iter().any(|m| m.node.0 == 4)).collect();
    cluster.pass(11_000, &all_but(4, &[4]));
    cluster.leave_behind(4);
    cluster.delete("old").unwrap();
    for node in 1..=3 {
        let mut beat = cluster.heartbeat(node, 1, 0);
        beat.dropped = cluster.told(node).drop;
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    }
    cluster.run(|m, now, _| m.set_duty(now, NodeId(4), Duty::Removed, true)).unwrap();
    cluster.heal(20, &all_but(4, &[4]));
    assert_eq!(cluster.model.list(cluster.now).len(), 1, "nothing is expected of it any more");
    let mut back = registration(4, 2);
    let copy = |c: &Configuration| (c.members.iter().find(|m| m.node.0 == 4).unwrap().copy, c.clone());
    back.disks[0].copies = held.iter().map(copy).collect();
    cluster.run(|m, now, _| m.register(now, &back)).unwrap();
    assert_eq!(cluster.model.answer(NodeId(4), Commit(0)).drop, [], "another state may have known them");
    let warnings = cluster.model.status(cluster.now).warnings;
    let said = format!("{} copies of volumes that this conductor does not know: they are kept", held.len());
    let said = warnings.iter().find(|w| w.contains(&said)).unwrap();
    assert!(said.contains("`trine disk remove DISK --force`"), "{said}");
    // As it says: the disk is emptied of the others, and forgotten once its node runs without it.
    let second = report(14, 2);
    back.disks.push(second);
    cluster.run(|m, now, _| m.register(now, &back)).unwrap();
    cluster.run(|m, now, _| m.remove_disk(now, disk_of(4), true)).unwrap();
    back.disks.remove(0);
    cluster.run(|m, now, _| m.register(now, &back)).unwrap();
    cluster.wait(1_000);
    let status = cluster.model.status(cluster.now);
    assert!(status.warnings.iter().all(|w| !w.contains("does not know")), "{:?}", status.warnings);
    let left: Vec<_> = cluster.model.node(cluster.now, NodeId(4)).unwrap().disks.iter().map(|d| d.disk).collect();
    assert_eq!(left, [disk_of(14)]);
}
