//! What the conductor promises, one promise per test.

mod common;
use common::{Cluster, MIB, disk_of, heartbeat, registration, report, request, shard, with_volume};
use conductor_model::api::{MembershipAnswer, MembershipChange, Reachable, Register, Trouble};
use conductor_model::limits::{MAX_AHEAD, MAX_NUMBER};
use conductor_model::views::{Attach, Detach, Duty, Health, NewVolume, NodeState, VolumeState};
use conductor_model::{
    Answer, AttachGeneration, Bytes, Commit, Conductor, CopyId, DEFAULT_SHARD, Epoch, Error, Millis, NodeId, OpenId,
    Request, VolumeId,
};
use std::collections::BTreeSet;

fn attach(client: &str, force: bool) -> Attach {
    Attach { client: client.to_owned(), read_only: false, shared: false, force, host: String::new(), resumes: None }
}

#[test]
fn copies_of_a_shard_are_on_different_nodes_and_primaries_are_spread() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 10 * MIB).unwrap();
    let mut primaries = [0; 4];
    for index in 0..10 {
        let config = cluster.config(1, index);
        assert_eq!((config.epoch, config.born, config.in_sync()), (Epoch(1), false, 3));
        assert_eq!(config.full_set.len(), 3);
        assert_eq!(config.members.iter().map(|m| m.node).collect::<BTreeSet<_>>().len(), 3);
        primaries[config.primary_member().unwrap().node.0 as usize] += 1;
    }
    primaries.sort_unstable();
    assert_eq!(primaries, [0, 3, 3, 4]);
}

/// What a store has no place for is refused before anything is made of it; a disk that has places is found, and places come back.
#[test]
fn no_more_copies_than_the_stores_have_places_for() {
    let mut cluster = Cluster::new();
    let of_places = |node, max_copies| {
        let mut register = registration(node, 1);
        register.disks[0].max_copies = max_copies;
        register
    };
    for (node, places) in [(1, 5), (2, 4), (3, 9)] {
        cluster.run(|m, now, _| m.register(now, &of_places(node, places))).unwrap();
    }
    cluster.create("a", 4 * MIB).unwrap();
    let full = cluster.create("b", MIB).unwrap_err();
    assert_eq!(full, Error::NoPlace { nodes: vec![NodeId(2)] });
    assert!(full.to_string().contains("on n2: each disk holds as many copies"), "{full}");
    assert!(cluster.create("c", 6 * MIB).is_err(), "not in part either");
    cluster.run(|m, now, _| m.register(now, &of_places(4, 1))).unwrap();
    cluster.create("b", MIB).unwrap();
    let nodes: BTreeSet<u32> = cluster.config(2, 0).members.iter().map(|m| m.node.0).collect();
    assert_eq!(nodes, BTreeSet::from([1, 3, 4]));
    assert!(matches!(cluster.create("d", MIB), Err(Error::NoPlace { .. })));
    cluster.run(|m, now, _| m.register(now, &of_places(2, 5))).unwrap();
    cluster.run(|m, now, _| m.register(now, &of_places(4, 2))).unwrap();
    cluster.create("d", MIB).unwrap();
}

/// A thin disk that nobody was promised anything of may be full all the same, by what lies on it.
#[test]
fn a_full_disk_gets_no_new_copies_even_where_it_is_promised_least() {
    let mut cluster = Cluster::with_nodes(4);
    let duty = |cluster: &mut Cluster, duty| cluster.run(|m, now, _| m.set_duty(now, NodeId(1), duty, false));
    let fill = |cluster: &mut Cluster, node, percent: u64| {
        let mut beat = cluster.heartbeat(node, 1, 0);
        beat.disks[0].2 = Bytes((1 << 40) / 100 * percent);
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    };
    duty(&mut cluster, Duty::Cordoned).unwrap();
    let thick = NewVolume { shard_size: Bytes(64 << 30), ..NewVolume::new("thick", Bytes(2 << 40)) };
    cluster.make(&thick).unwrap();
    duty(&mut cluster, Duty::Serving).unwrap();
    fill(&mut cluster, 1, 96);
    let id = cluster.create("db", 4 * MIB).unwrap();
    let on_the_full_one = |cluster: &Cluster, index| cluster.config(id.0, index).members.iter().any(|m| m.node.0 == 1);
    assert!((0..4).all(|index| !on_the_full_one(&cluster, index)));
    cluster.run(|m, now, mut draw| m.resize(now, "db", Bytes(8 * MIB), &mut draw)).unwrap();
    assert!((4..8).all(|index| !on_the_full_one(&cluster, index)));

    fill(&mut cluster, 4, 94);
    let full = cluster.create("more", MIB).unwrap_err();
    assert_eq!(full, Error::DisksFull { nodes: vec![NodeId(1), NodeId(4)] });
    assert!(full.to_string().contains("all disks of n1, n4 are full (`trine df`)"), "{full}");
    fill(&mut cluster, 1, 90);
    cluster.create("more", MIB).unwrap();
}

#[test]
fn different_hosts_are_preferred_and_equal_ones_taken_when_there_are_no_others() {
    let mut cluster = Cluster::new();
    for (node, host) in [(1, "a"), (2, "a"), (3, "b"), (4, "c")] {
        let mut register = registration(node, 1);
        register.host = host.to_owned();
        register.disks[0].capacity = Bytes((10 - u64::from(node)) << 40);
        cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    }
    cluster.create("db", MIB).unwrap();
    let nodes: BTreeSet<u32> = cluster.config(1, 0).members.iter().map(|m| m.node.0).collect();
    assert_eq!(nodes, BTreeSet::from([1, 3, 4]));
    let mut one_host = Cluster::new();
    for node in 1..=3 {
        let mut register = registration(node, 1);
        register.host = "dev".to_owned();
        one_host.run(|m, now, _| m.register(now, &register)).unwrap();
    }
    one_host.create("db", MIB).unwrap();
}

#[test]
fn a_volume_without_enough_nodes_is_refused_with_who_is_up() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.now = Millis(cluster.now.0 + 11_000);
    cluster.beat(1, 1, 0).unwrap();
    cluster.beat(2, 1, 0).unwrap();
    let refused = cluster.create("db", MIB).unwrap_err();
    assert_eq!(refused.to_string(), "volume needs 3 nodes, 2 are up: n1, n2");
}

#[test]
fn places_are_chosen_when_a_late_node_is_heard_again_or_dead() {
    let mut cluster = Cluster::with_nodes(3);
    assert!(!cluster.model.is_listening(cluster.now));
    let silent = |cluster: &mut Cluster, ms: u64| {
        cluster.now = Millis(cluster.now.0 + ms);
        cluster.beat(1, 1, 0).unwrap();
        cluster.beat(2, 1, 0).unwrap();
    };
    silent(&mut cluster, 3_000);
    assert!(cluster.model.is_listening(cluster.now), "n3 is late");
    cluster.beat(3, 1, 0).unwrap();
    assert!(!cluster.model.is_listening(cluster.now), "n3 was heard again");
    silent(&mut cluster, 3_000);
    assert!(cluster.model.is_listening(cluster.now), "n3 is late again");
    silent(&mut cluster, 8_000);
    assert!(!cluster.model.is_listening(cluster.now), "n3 is dead");
    assert!(cluster.create("db", MIB).is_err());
}

#[test]
fn names_and_sizes_are_checked() {
    let mut cluster = Cluster::with_nodes(3);
    for name in ["", "-a", "A", "a/b", "a b", "ä", &"a".repeat(65), "..", ".a"] {
        assert!(cluster.create(name, MIB).is_err(), "{name:?}");
    }
    for size in [0, 4096, MIB + 1, MIB + 512, (64 << 40) + 4096, u64::MAX] {
        assert!(cluster.create("db", size).is_err(), "{size}");
    }
    assert!(cluster.create("big", (64 << 40) - 4096).is_err(), "too many shards of 1 MiB");
    cluster.create(&"a".repeat(64), MIB + 4096).unwrap();
    assert_eq!(cluster.config(1, 1).size, Bytes(4096));
    for (copies, min_copies, shard_size) in
        [(4, 2, MIB), (0, 0, MIB), (1, 2, MIB), (3, 0, MIB), (3, 4, MIB), (3, 2, 3 * MIB), (3, 2, 0)]
    {
        let new = NewVolume { copies, min_copies, shard_size: Bytes(shard_size), ..NewVolume::new("x", Bytes(MIB)) };
        assert!(cluster.run(|m, now, mut d| m.create(now, &new, &mut d)).is_err());
    }
}

#[test]
fn the_largest_volume_fits_the_limits() {
    let mut cluster = Cluster::with_nodes(3);
    let new = NewVolume::new("huge", Bytes(64 << 40));
    assert_eq!(new.shard_size, DEFAULT_SHARD);
    let info = cluster.run(|m, now, mut d| m.create(now, &new, &mut d)).unwrap();
    assert_eq!(info.shards, 16_384);
    assert_eq!(cluster.beat(1, 1, 0).unwrap().assignments.len() / 1000, 5);
}

#[test]
fn only_the_primary_of_the_current_epoch_changes_a_shard() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    let first = cluster.config(1, 0);
    let mut foreign = request(&first, MembershipChange::Born);
    foreign.by = first.members[1].copy;
    let answers = cluster.run(|m, now, _| m.membership(now, &[foreign])).unwrap();
    assert_eq!(answers, [MembershipAnswer::Stale(first.clone())]);

    let MembershipAnswer::Granted(second) = cluster.ask(&first, MembershipChange::Born) else { panic!() };
    assert_eq!((second.epoch, second.born), (Epoch(2), true));
    assert_eq!(cluster.ask(&first, MembershipChange::Born), MembershipAnswer::Stale(second.clone()));
    assert_eq!(cluster.config(1, 0), second);
    assert!(matches!(cluster.ask(&second, MembershipChange::Born), MembershipAnswer::Refused(_)));
}

#[test]
fn a_new_opening_is_named_only_after_its_node_registered_it() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    let first = cluster.config(1, 0);
    let (a, b) = (first.members[1].clone(), first.members[2].clone());
    let both = MembershipChange::Reopened(vec![(a.copy, OpenId(2)), (b.copy, OpenId(2))]);
    cluster.register(a.node.0, 2).unwrap();
    assert_eq!(cluster.config(1, 0), first, "a registration changes no configuration");
    let MembershipAnswer::Refused(why) = cluster.ask(&first, both.clone()) else { panic!() };
    assert!(why.contains("has not registered opening"), "{why}");
    cluster.register(b.node.0, 2).unwrap();
    let MembershipAnswer::Granted(second) = cluster.ask(&first, both.clone()) else { panic!() };
    assert_eq!(second.member(a.copy).unwrap().open, OpenId(2));
    assert_eq!(second.member(b.copy).unwrap().open, OpenId(2));
    assert_eq!((second.epoch, second.in_sync(), second.primary), (Epoch(2), 3, first.primary));
    assert_eq!(cluster.ask(&first, both), MembershipAnswer::Stale(second.clone()));
    for bad in [vec![], vec![(CopyId(1), OpenId(2))], vec![(a.copy, OpenId(2)), (a.copy, OpenId(2))]] {
        assert!(matches!(cluster.ask(&second, MembershipChange::Reopened(bad)), MembershipAnswer::Refused(_)));
    }
}

#[test]
fn a_batch_is_one_transaction() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 30 * MIB).unwrap();
    let before = cluster.model.commit();
    let mut batch: Vec<_> = (0..30).map(|i| request(&cluster.config(1, i), MembershipChange::Born)).collect();
    batch.push(batch[0].clone());
    let answers = cluster.run(|m, now, _| m.membership(now, &batch)).unwrap();
    assert_eq!(cluster.model.commit(), Commit(before.0 + 1));
    assert!(answers[..30].iter().all(|a| matches!(a, MembershipAnswer::Granted(_))));
    assert!(matches!(answers[30], MembershipAnswer::Stale(_)));
}

#[test]
fn a_node_is_told_what_it_is_primary_of_and_once_only() {
    let mut cluster = Cluster::with_nodes(3);
    assert!(cluster.beat(1, 1, 0).unwrap().assignments.is_empty());
    cluster.create("db", 9 * MIB).unwrap();
    let all = cluster.beat(1, 1, 0).unwrap();
    assert_eq!(all.assignments.len(), 3);
    assert!(!cluster.model.has_news(NodeId(1), Commit(all.version)));
    assert!(cluster.beat(1, 1, all.version).unwrap().assignments.is_empty());
    let granted = cluster.ask(&all.assignments[1], MembershipChange::Born);
    let next = cluster.beat(1, 1, all.version).unwrap();
    assert_eq!(vec![granted], next.assignments.into_iter().map(MembershipAnswer::Granted).collect::<Vec<_>>());
    cluster.restart();
    assert!(!cluster.model.has_news(NodeId(1), Commit(next.version)));
    assert_eq!(cluster.beat(1, 1, 0).unwrap().assignments.len(), 3, "a restarted node gets all");
}

#[test]
fn a_moved_endpoint_is_told_without_a_new_epoch() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 3 * MIB).unwrap();
    let version = cluster.beat(1, 1, 0).unwrap().version;
    let mut register = registration(2, 2);
    register.disks[0].endpoint = "127.0.0.1:7777".parse().unwrap();
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    cluster.restart();
    let news = cluster.beat(1, 1, version).unwrap();
    assert_eq!((news.assignments.len(), news.assignments[0].epoch), (1, Epoch(1)));
    let moved = news.assignments[0].members.iter().find(|m| m.node == NodeId(2)).unwrap();
    assert_eq!((moved.endpoint.port(), moved.open), (7777, OpenId(1)));
    let map = cluster.model.map("db").unwrap();
    assert!(map.shards.iter().any(|s| s.node == NodeId(2) && s.endpoint.port() == 7777));
}

#[test]
fn where_else_reactors_listen_is_told_beside_their_endpoints() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 3 * MIB).unwrap();
    let first = cluster.beat(1, 1, 0).unwrap();
    assert_eq!(first.reachable, Some(Vec::new()));
    assert_eq!(cluster.beat(1, 1, first.version).unwrap().reachable, None, "nothing new");
    let mut register = registration(2, 2);
    let endpoint = register.disks[0].endpoint;
    let addresses: Vec<_> = ["tcp:192.0.2.2:7100", "rdma:192.0.2.2:7100"].map(|at| at.parse().unwrap()).into();
    register.disks[0].addresses = addresses.clone();
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    cluster.restart();
    let news = cluster.beat(1, 1, first.version).unwrap();
    let known = vec![Reachable { endpoint, addresses }];
    assert_eq!(news.reachable.as_ref(), Some(&known));
    assert_eq!(cluster.model.map("db").unwrap().reachable, known);
    register.disks[0].addresses.clear();
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    assert_eq!(cluster.beat(1, 1, news.version).unwrap().reachable, Some(Vec::new()));
    assert!(cluster.model.map("db").unwrap().reachable.is_empty());
}

#[test]
fn an_unknown_node_or_opening_must_register() {
    let mut cluster = Cluster::with_nodes(1);
    assert_eq!(cluster.beat(9, 1, 0), Err(Error::UnknownNode(NodeId(9))));
    assert_eq!(cluster.beat(1, 2, 0), Err(Error::UnknownNode(NodeId(1))));
    cluster.register(1, 2).unwrap();
    cluster.beat(1, 2, 0).unwrap();
    let mut without = heartbeat(1, 2, 0);
    without.disks.clear();
    assert!(cluster.run(|m, now, _| m.heartbeat(now, &without)).is_err());
}

#[test]
fn a_second_machine_with_a_nodes_number_is_refused_while_that_one_runs() {
    let mut cluster = Cluster::with_nodes(3);
    // Other disks, on any host; or the same disks, as a copied machine has them.
    let others = Register { disks: vec![report(9, 1)], ..registration(1, 1) };
    let copied = Register { host: "twin".to_owned(), ..registration(1, 7) };
    for second in [&others, &copied] {
        let refused = cluster.run(|m, now, _| m.register(now, second));
        assert_eq!(refused, Err(Error::NodeElsewhere { node: NodeId(1), host: "host1".to_owned() }));
        cluster.beat(1, 1, 0).unwrap();
    }
    // It starts again, or with one disk more; and one that takes its place does so when it is silent.
    cluster.register(1, 2).unwrap();
    let more = Register { disks: vec![report(1, 2), report(9, 1)], ..registration(1, 2) };
    cluster.run(|m, now, _| m.register(now, &more)).unwrap();
    cluster.now = Millis(cluster.now.0 + 2_000);
    cluster.run(|m, now, _| m.register(now, &copied)).unwrap();
    assert_eq!(cluster.beat(1, 1, 0), Err(Error::UnknownNode(NodeId(1))));
}

#[test]
fn a_cloned_disk_is_refused() {
    let mut cluster = Cluster::with_nodes(3);
    let mut clone = registration(4, 5);
    clone.disks.push(report(1, 6));
    let try_it = |cluster: &mut Cluster| cluster.run(|m, now, _| m.register(now, &clone));
    assert!(matches!(try_it(&mut cluster), Err(Error::DiskElsewhere { holder: NodeId(1), .. })));
    // A node without it, and nothing on it: it may move.
    cluster.now = Millis(cluster.now.0 + 11_000);
    try_it(&mut cluster).unwrap();
    assert!(cluster.model.node(cluster.now, NodeId(1)).unwrap().disks.is_empty());
    // With copies on it, it may not.
    for node in [2, 3] {
        cluster.register(node, 2).unwrap();
    }
    cluster.create("db", MIB).unwrap();
    cluster.now = Millis(cluster.now.0 + 11_000);
    let mut thief = registration(1, 7);
    thief.disks.push(report(2, 8));
    assert!(cluster.run(|m, now, _| m.register(now, &thief)).is_err());
}

#[test]
fn a_node_may_come_with_more_disks_and_a_missing_one_is_shown() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    let mut register = registration(1, 2);
    register.disks[0].disk = disk_of(50);
    cluster.register_as(&register).unwrap();
    let node = cluster.model.node(cluster.now, NodeId(1)).unwrap();
    let shown: Vec<_> = node.disks.iter().map(|d| (d.disk, d.present)).collect();
    assert_eq!(shown, [(disk_of(1), false), (disk_of(50), true)]);
    let detail = cluster.model.show(cluster.now, "db").unwrap();
    assert!(detail.info.reasons[0].contains("runs without disk"), "{:?}", detail.info.reasons);
}

#[test]
fn attach_issues_generations_and_names_the_holder() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 3 * MIB).unwrap();
    let version = cluster.beat(1, 1, 0).unwrap().version;
    let map = cluster.run(|m, now, _| m.attach(now, "db", &attach("web1", false))).unwrap();
    assert_eq!((map.attach, map.shards.len()), (AttachGeneration(1), 3));
    assert_eq!(cluster.config(1, 0).epoch, Epoch(1));
    let again = cluster.run(|m, now, _| m.attach(now, "db", &attach("web1", false))).unwrap();
    assert_eq!(again.attach, AttachGeneration(2));
    let refused = cluster.run(|m, now, _| m.attach(now, "db", &attach("web2", false))).unwrap_err();
    assert!(refused.to_string().contains("web1"), "{refused}");
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap(), [NodeId(1), NodeId(2), NodeId(3)]);
    let news = cluster.beat(1, 1, version).unwrap();
    assert_eq!(news.generations, [(VolumeId(1), AttachGeneration(2))]);
    assert!(news.assignments.is_empty());
    assert!(cluster.beat(1, 1, news.version).unwrap().generations.is_empty());
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap(), [NodeId(2), NodeId(3)]);
    let forced = cluster.run(|m, now, _| m.attach(now, "db", &attach("web2", true))).unwrap();
    assert_eq!(forced.attach, AttachGeneration(3));
    let first = cluster.config(1, 0);
    let MembershipAnswer::Granted(born) = cluster.ask(&first, MembershipChange::Born) else { panic!() };
    assert_eq!((first.attach, born.attach), (AttachGeneration(0), AttachGeneration(3)));
}

#[test]
fn detach_takes_the_generation_it_was_given() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    let detach = |client: &str, g| Detach { client: client.to_owned(), generation: AttachGeneration(g) };
    assert!(cluster.run(|m, _, _| m.detach("db", &detach("web1", 0))).is_err());
    cluster.run(|m, now, _| m.attach(now, "db", &attach("web1", false))).unwrap();
    cluster.run(|m, now, _| m.attach(now, "db", &attach("web1", false))).unwrap();
    assert!(cluster.run(|m, _, _| m.detach("db", &detach("web1", 1))).is_err());
    assert!(cluster.run(|m, _, _| m.detach("db", &detach("web2", 2))).is_err());
    cluster.run(|m, _, _| m.detach("db", &detach("web1", 2))).unwrap();
    cluster.run(|m, _, _| m.detach("db", &detach("web1", 2))).unwrap();
    let map = cluster.run(|m, now, _| m.attach(now, "db", &attach("web2", false))).unwrap();
    assert_eq!(map.attach, AttachGeneration(3));
}

#[test]
fn a_volume_grows_its_last_shard_and_then_by_more() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB + 8192).unwrap();
    let resize = |c: &mut Cluster, size| c.run(|m, now, mut d| m.resize(now, "db", Bytes(size), &mut d));
    assert!(resize(&mut cluster, MIB).is_err());
    assert!(resize(&mut cluster, MIB + 8193).is_err());
    let commit = cluster.model.commit();
    resize(&mut cluster, MIB + 8192).unwrap();
    assert_eq!(cluster.model.commit(), commit);
    assert_eq!(resize(&mut cluster, 4 * MIB + 4096).unwrap().shards, 5);
    assert_eq!((cluster.config(1, 0).epoch, cluster.config(1, 0).size), (Epoch(1), Bytes(MIB)));
    assert_eq!((cluster.config(1, 1).epoch, cluster.config(1, 1).size), (Epoch(2), Bytes(MIB)));
    assert_eq!((cluster.config(1, 4).epoch, cluster.config(1, 4).size), (Epoch(1), Bytes(4096)));
    assert_eq!(cluster.model.map("db").unwrap().size, Bytes(4 * MIB + 4096));
}

#[test]
fn a_volume_is_renamed_while_nobody_has_it() {
    let mut cluster = with_volume();
    cluster.create("other", MIB).unwrap();
    cluster.snapshot("db", "monday");
    let rename = |c: &mut Cluster, old: &str, new: &str| c.run(|m, now, _| m.rename(now, old, new, false));
    assert!(matches!(rename(&mut cluster, "db", "other"), Err(Error::VolumeExists(_))));
    assert!(matches!(rename(&mut cluster, "db", "db"), Err(Error::VolumeExists(_))));
    assert!(matches!(rename(&mut cluster, "none", "db2"), Err(Error::NoVolume(_))));
    assert!(matches!(rename(&mut cluster, "db", "DB"), Err(Error::Invalid(_))));
    cluster.attach("db").unwrap();
    assert!(matches!(rename(&mut cluster, "db", "archive"), Err(Error::Attached { .. })));
    let attached = cluster.model.map("db").unwrap();
    cluster.run(|m, _, _| m.detach("db", &Detach { client: "web1".to_owned(), generation: attached.attach })).unwrap();

    let epoch = cluster.config(1, 0).epoch;
    assert_eq!(rename(&mut cluster, "db", "archive").unwrap().id, VolumeId(1));
    cluster.tick();
    cluster.restart();
    assert!(matches!(cluster.model.show(cluster.now, "db"), Err(Error::NoVolume(_))));
    assert_eq!(cluster.list("archive")[0].name, "monday");
    let config = cluster.config(1, 0);
    assert!(config.epoch > epoch && config.card.unwrap().name == "archive", "its copies know it by its new name");
    (1..=3).for_each(|node| drop(cluster.beat(node, 1, 0).unwrap()));
    assert_eq!(cluster.create("db", MIB).unwrap(), VolumeId(3), "the old one is free");
}

#[test]
fn a_deleted_volume_is_forgotten_when_every_node_dropped_its_copies() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    cluster.run(|m, now, _| m.attach(now, "db", &attach("web1", false))).unwrap();
    let refused = cluster.run(|m, _, _| m.delete("db", false)).unwrap_err();
    assert_eq!(refused.to_string(), "volume db is attached by web1; --force deletes it all the same");
    cluster.run(|m, _, _| m.delete("db", true)).unwrap();
    assert!(cluster.model.map("db").is_err());
    cluster.create("db", MIB).unwrap();
    assert!(cluster.model.configuration(shard(2, 0)).is_some(), "the name is free, the id is new");
    cluster.restart();
    for node in 1..=3 {
        assert!(cluster.model.list(cluster.now).iter().any(|v| v.state == VolumeState::Deleting));
        let told = cluster.beat(node, 1, 0).unwrap();
        assert_eq!(told.drop.len(), 2);
        assert_eq!(cluster.beat(node, 1, told.version).unwrap().drop, told.drop, "repeated until confirmed");
        let mut beat = heartbeat(node, 1, told.version);
        beat.dropped = told.drop;
        for _ in 0..2 {
            assert!(cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap().drop.is_empty());
        }
    }
    assert_eq!(cluster.model.list(cluster.now).len(), 1);
}

/// A node that runs without a disk finds none of its copies, and says of each that it is deleted.
#[test]
fn what_is_to_be_deleted_on_a_missing_disk_waits_for_the_disk() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    let mut other = registration(1, 2);
    other.disks = vec![report(51, 2)];
    cluster.register_as(&other).unwrap();
    let copies: Vec<_> = (0..2).flat_map(|index| cluster.config(1, index).members).collect();
    let mut copies: Vec<_> = copies.iter().filter(|m| m.node == NodeId(1)).map(|m| m.copy).collect();
    copies.sort();
    assert_eq!(copies.len(), 2);
    cluster.run(|m, _, _| m.delete("db", false)).unwrap();
    for node in 2..=3 {
        let mut beat = heartbeat(node, 1, 0);
        beat.dropped = cluster.beat(node, 1, 0).unwrap().drop;
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    }
    let mut beat = heartbeat(1, 2, 0);
    beat.disks[0].0 = disk_of(51);
    assert!(cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap().drop.is_empty(), "nothing that it could delete");
    beat.dropped.clone_from(&copies);
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    cluster.register(1, 3).unwrap();
    assert_eq!(cluster.beat(1, 3, 0).unwrap().drop, copies, "they are on the disk that is back");
}

#[test]
fn status_says_who_is_silent_and_what_waits() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    let status = cluster.model.status(cluster.now);
    assert_eq!(status.health, Health::Waiting);
    assert_eq!(status.volumes[0].reasons, ["1 shard is being created"]);
    let first = cluster.config(1, 0);
    cluster.ask(&first, MembershipChange::Born);
    assert_eq!(cluster.model.status(cluster.now).health, Health::Healthy);

    let primary = first.primary_member().unwrap().node.0;
    let mut beat = heartbeat(primary, 1, 0);
    beat.troubles = vec![Trouble {
        shard: shard(1, 0),
        waiting: 4,
        reason: "n2 does not answer".to_owned(),
        lost: false,
        ailment: None,
    }];
    cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    assert_eq!(cluster.model.status(cluster.now).volumes[0].reasons, ["v1/0: n2 does not answer (4 waiting)"]);

    cluster.now = Millis(cluster.now.0 + 12_000);
    for node in [1, 2] {
        cluster.beat(node, 1, 0).unwrap();
    }
    let status = cluster.model.status(cluster.now);
    assert_eq!(status.volumes[0].reasons, ["n3 (host3) silent for 12 s: writes wait; start it again"]);
    assert_eq!(status.nodes[2].state, NodeState::Dead);
    assert_eq!((status.totals.nodes, status.totals.nodes_alive, status.totals.volumes_waiting), (3, 2, 1));
    cluster.restart();
    assert_eq!(cluster.model.status(cluster.now).nodes[2].state, NodeState::Late, "nobody had time to be heard");
}

#[test]
fn a_silent_node_is_warned_of_where_no_volume_misses_it() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.create("db", MIB).unwrap();
    let first = cluster.config(1, 0);
    cluster.ask(&first, MembershipChange::Born);
    let spare = (1..=4).find(|n| first.members.iter().all(|member| member.node != NodeId(*n))).unwrap();
    assert_eq!(cluster.model.status(cluster.now).warnings, [""; 0]);
    cluster.now = Millis(cluster.now.0 + 12_000);
    for node in (1..=4).filter(|n| *n != spare) {
        cluster.beat(node, 1, 0).unwrap();
    }
    let status = cluster.model.status(cluster.now);
    assert_eq!((status.health, status.warnings.len()), (Health::Healthy, 1), "{:?}", status.warnings);
    let said = format!(
        "n{spare} (host{spare}) is silent: start it again, or `trine node remove n{spare}`, as it has no copies"
    );
    assert_eq!(status.warnings[0], said);
}

#[test]
fn a_conductor_from_the_past_changes_nothing() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    let old = cluster.file.clone();
    let first = cluster.config(1, 0);
    let MembershipAnswer::Granted(newer) = cluster.ask(&first, MembershipChange::Born) else { panic!() };
    cluster.create("later", MIB).unwrap();
    let unknown = cluster.config(2, 0);
    let seen = cluster.model.commit();

    let mut of_a_newer_volume = registration(1, 1);
    of_a_newer_volume.disks[0].copies = vec![(unknown.primary, unknown)];
    let mut of_a_newer_epoch = registration(1, 1);
    of_a_newer_epoch.disks[0].copies = vec![(newer.primary, newer)];
    let of_a_newer_commit = Register { seen, ..registration(1, 1) };
    for register in [of_a_newer_volume, of_a_newer_epoch, of_a_newer_commit] {
        cluster.file = old.clone();
        cluster.restart();
        assert_eq!(cluster.model.doubted(), None);
        cluster.run(|m, now, _| m.register(now, &register)).unwrap();
        assert!(matches!(cluster.ask(&first, MembershipChange::Born), MembershipAnswer::Refused(_)));
        cluster.restart();
        assert!(cluster.model.doubted().is_some(), "also after a restart");
        let other = cluster.config(1, 1);
        assert!(matches!(cluster.ask(&other, MembershipChange::Born), MembershipAnswer::Refused(_)));
        assert!(matches!(cluster.create("more", MIB), Err(Error::InDoubt(_))));
    }
}

/// All nodes were started anew with it, and nothing but an attachment was forgotten: nobody can tell. Who had attached is over, and not
/// taken for whoever attaches next.
#[test]
fn a_state_from_the_past_that_nobody_notices_gives_out_no_generation_twice() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    cluster.bear(1);
    let old = cluster.file.clone();
    let attached = |cluster: &mut Cluster, client| {
        cluster.run(|m, now, _| m.attach(now, "db", &attach(client, false))).unwrap().attach
    };
    let forgotten = attached(&mut cluster, "a");
    cluster.file = old;
    cluster.now = Millis(cluster.now.0 + 60_000);
    cluster.restart();
    (1..=3).for_each(|node| cluster.register(node, 2).unwrap());
    assert!(cluster.model.doubted().is_none());
    let next = attached(&mut cluster, "b");
    assert!(next > forgotten, "{next} {forgotten}");
    cluster.now = Millis(0); // a clock that goes wrong
    cluster.restart();
    assert!(cluster.run(|m, now, _| m.attach(now, "db", &attach("b", false))).unwrap().attach > next);
}

#[test]
fn a_conductor_from_the_past_does_not_become_newer_by_itself() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    cluster.bear(1);
    let old = cluster.file.clone();
    cluster.create("later", MIB).unwrap();
    let seen = cluster.model.commit();
    cluster.file = old;
    cluster.restart();
    cluster.model.announce();
    assert_eq!(cluster.beat(1, 1, seen.0).unwrap().assignments, []);
    assert!(cluster.model.commit() > seen, "its own transactions come after what was heard of");
    assert!(matches!(cluster.beat(2, 1, 0), Err(Error::UnknownNode(_))), "all nodes say what they hold");
    cluster.register(2, 1).unwrap();
    let before = cluster.model.commit();
    for _ in 0..20 {
        cluster.now = Millis(cluster.now.0 + 500);
        cluster.beat(2, 1, 0).unwrap();
        cluster.tick();
    }
    assert_eq!(cluster.model.commit(), before, "neither a promotion nor an event");
    let asked = cluster.config(1, 0);
    assert!(matches!(cluster.ask(&asked, MembershipChange::StepDown), MembershipAnswer::Refused(_)));
    let warnings = cluster.model.status(cluster.now).warnings;
    assert!(warnings[0].contains("its state is from the past"), "{warnings:?}");
}

#[test]
fn a_commit_that_no_conductor_can_have_made_is_refused_and_nobody_is_in_doubt_for_it() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    cluster.bear(1);
    let own = cluster.model.commit().0;
    for absurd in [own + MAX_AHEAD + 1, MAX_NUMBER, MAX_NUMBER + 1, u64::MAX] {
        let refused = cluster.beat(1, 1, absurd).unwrap_err();
        let said = refused.to_string();
        assert!(refused.kind() == "invalid" && said.contains("n1 speaks of commit") && said.contains("start it again"));
        let register = Register { seen: Commit(absurd), ..registration(1, 1) };
        assert_eq!(cluster.run(|m, now, _| m.register(now, &register)).unwrap_err().to_string(), said);
    }
    assert_eq!((cluster.model.commit().0, cluster.model.doubted()), (own, None));
    cluster.create("more", MIB).unwrap();

    // As far ahead as it may be: who goes on above it still has more than anybody needs.
    cluster.beat(1, 1, own + MAX_AHEAD).unwrap();
    assert!(cluster.model.doubted().is_some());
    let now = cluster.model.commit().0;
    assert!(now > own + MAX_AHEAD && now < MAX_NUMBER / 1000);
    for node in 1..=3 {
        let register = Register { seen: Commit(now), ..registration(node, 1) };
        cluster.run(|m, now, _| m.register(now, &register)).unwrap();
        cluster.beat(node, 1, now).unwrap();
    }
}

#[test]
fn damaged_records_are_not_served() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    for missing in cluster.file.keys() {
        let rest = cluster.file.iter().filter(|(key, _)| *key != missing).map(|(_, record)| record.clone());
        assert!(Conductor::restore(rest, cluster.now).is_err(), "without {missing}");
    }
}

#[test]
fn a_random_source_that_repeats_itself_is_refused() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.random = Box::new(|| 5);
    assert!(matches!(cluster.create("db", MIB), Err(Error::BadDraw(_))));
}

#[test]
fn records_survive_json() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 2 * MIB).unwrap();
    cluster.run(|m, now, _| m.attach(now, "db", &attach("web1", false))).unwrap();
    for record in cluster.model.snapshot() {
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<conductor_model::Record>(&text).unwrap(), record);
    }
}

#[test]
fn messages_are_handled_by_one_entry() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    let (answer, dirty) = cluster.model.handle(cluster.now, &Request::Attach("db".to_owned(), attach("web1", false)));
    cluster.persist(dirty);
    let Answer::Map(map) = answer else { panic!() };
    let (answer, dirty) = cluster.model.handle(cluster.now, &Request::Map("db".to_owned()));
    assert_eq!((answer, dirty.is_empty()), (Answer::Map(map), true));
    let (answer, dirty) = cluster.model.handle(cluster.now, &Request::Map("none".to_owned()));
    assert!(matches!(answer, Answer::Refused(Error::NoVolume(_))) && dirty.is_empty());
}
