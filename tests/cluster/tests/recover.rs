//! The conductor's state is lost, or comes from a backup: I/O goes on, nothing is changed before it is adopted, and all is there then.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, Etcd, LONG, Options, Outcome, Shape, Workload, wait_until};
use serde_json::Value;
use std::fs;

const VOLUME: &str = "db";
/// Requests that must be acknowledged before, between and after.
const SOME: u64 = 200;

fn workload(cluster: &mut Cluster, seed: u64) -> Workload {
    cluster.attach(VOLUME).unwrap();
    let options =
        Options { place: cluster.place(VOLUME), export: VOLUME.to_owned(), depth: 8, seed, patience: 2 * LONG };
    let workload = Workload::start(options).unwrap();
    workload.progress(SOME, LONG).unwrap();
    workload
}

/// The conductor is killed, and `trine conductor recover ARGS` makes it a new state file in the place of its own.
fn lose_state(cluster: &mut Cluster, how: &[&str]) {
    cluster.conductor.kill().unwrap();
    let file = cluster.dir().join("conductor.redb");
    fs::remove_file(&file).unwrap();
    let store = format!("redb:{}", file.display());
    let args = [&["conductor", "recover"], how, &["--store", &store]].concat();
    cluster.trine(&args).unwrap();
    let again = cluster.try_trine(&args).unwrap();
    assert_eq!(again.code, 5, "a state file is never written over: {}", again.stderr);
    cluster.conductor.start().unwrap();
}

fn doubt(cluster: &Cluster) -> Option<Value> {
    let outcome = cluster.try_trine(&["conductor", "adopt", "--dry-run", "-o", "json"]).unwrap();
    (outcome.code == 0).then(|| serde_json::from_str(&outcome.stdout).unwrap())
}

/// Waits until so many nodes have said what they hold.
fn wait_heard(cluster: &Cluster, nodes: usize) -> Value {
    let mut last = None;
    wait_until("the nodes say what they hold", LONG, || {
        last = doubt(cluster);
        Ok(last.as_ref().is_some_and(|d| d["heard"].as_array().map_or(0, Vec::len) == nodes))
    })
    .unwrap();
    last.unwrap()
}

/// `trine conductor adopt ARGS`, once what was under way when the doubt began is over, and the nodes were asked again.
fn adopt(cluster: &Cluster, args: &[&str]) -> Outcome {
    let mut last = None;
    wait_until("the nodes were asked again", LONG, || {
        last = Some(cluster.try_trine(&[&["conductor", "adopt"], args].concat())?);
        Ok(last.as_ref().is_some_and(|outcome| !outcome.stderr.contains("asked again")))
    })
    .unwrap();
    last.unwrap()
}

/// What people see of a volume, but for what changes by itself.
fn volume(cluster: &Cluster, name: &str) -> Value {
    let mut shown = cluster.json(&["volume", "show", name]).unwrap();
    let shards = shown["shards"].as_array().unwrap().len();
    let mut shown = shown["info"].take();
    let info = shown.as_object_mut().unwrap();
    info.retain(|key, _| {
        ["id", "name", "size", "shard_size", "copies", "min_copies", "created", "parent"].contains(&key.as_str())
    });
    info.insert("shards".to_owned(), shards.into());
    shown
}

fn snapshots(cluster: &Cluster) -> Value {
    cluster.json(&["snapshot", "list", VOLUME]).unwrap()
}

/// The state file is deleted: names, sizes, snapshots and clones come back from the nodes, under a running workload.
#[test]
fn a_lost_state_file_comes_back_from_the_nodes() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 32, 16).unwrap();
    let workload = workload(&mut cluster, 11);
    cluster.trine(&["snapshot", "create", &format!("{VOLUME}@before")]).unwrap();
    cluster.trine(&["volume", "clone", &format!("{VOLUME}@before"), "clone"]).unwrap();
    cluster.wait_healthy("clone").unwrap();
    // The card of the first shard follows within a second.
    let carded = |c: &Cluster| {
        let shown = c.json(&["volume", "show", VOLUME]).unwrap();
        shown["shards"][0]["card"]["snapshots"].as_array().is_some_and(|all| all.len() == 1)
    };
    wait_until("the snapshot is in the volume's card", LONG, || Ok(carded(&cluster))).unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    let was = (volume(&cluster, VOLUME), volume(&cluster, "clone"), snapshots(&cluster));

    lose_state(&mut cluster, &["--from-nodes"]);
    wait_heard(&cluster, 3);
    workload.progress(SOME, LONG).unwrap();
    let status = cluster.status().unwrap();
    assert!(status["warnings"][0].as_str().unwrap().contains("in doubt"), "{status}");
    let refused = cluster.try_trine(&["volume", "create", "more", "--size", "8M"]).unwrap();
    assert_eq!(refused.code, 5, "{}", refused.stderr);
    let adopted = adopt(&cluster, &[]);
    assert_eq!(adopted.code, 0, "{}", adopted.stderr);
    workload.progress(SOME, LONG).unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    assert_eq!(was, (volume(&cluster, VOLUME), volume(&cluster, "clone"), snapshots(&cluster)));

    let taken = cluster.try_trine(&["volume", "delete", VOLUME, "--yes"]).unwrap();
    assert_ne!(taken.code, 0, "its client has it still");
    cluster.create("more", 8, 8).unwrap();
    cluster.trine(&["snapshot", "create", &format!("{VOLUME}@after")]).unwrap();
    let primary = cluster.primary(VOLUME, 0).unwrap();
    cluster.nodes[primary].kill().unwrap();
    workload.progress(SOME, LONG).unwrap();
    cluster.nodes[primary].start().unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    let (_, done) = workload.stop().unwrap();
    println!("{done:?}");
    cluster.detach(VOLUME).unwrap();
    cluster.attach("clone").unwrap();
    cluster.attach(VOLUME).unwrap();
    cluster.detach(VOLUME).unwrap();
    cluster.detach("clone").unwrap();
    cluster.stop_and_compare().unwrap();
}

/// etcd comes back empty: what the nodes hold is put there, while no conductor leads, and both conductors go on with it.
#[test]
fn a_lost_state_comes_back_into_etcd() {
    let mut etcd = Etcd::start().unwrap();
    let shape = Shape { disk: 1 << 30, ..Shape::default() };
    let mut cluster = Cluster::with_conductors(shape, 2, &etcd).unwrap();
    cluster.create(VOLUME, 32, 8).unwrap();
    let workload = workload(&mut cluster, 15);
    let was = volume(&cluster, VOLUME);
    let (store, prefix) = (format!("etcd:{}", etcd.url()), format!("{}/", cluster.dir().display()));
    let recover = ["conductor", "recover", "--from-nodes", "--store", &store, "--etcd-prefix", &prefix];
    let led = cluster.try_trine(&recover).unwrap();
    assert!(led.code == 5 && led.stderr.contains("stop all conductors"), "{led:?}");

    for n in 0..2 {
        cluster.conductor_of(n).kill().unwrap();
    }
    etcd.lose().unwrap();
    cluster.trine(&recover).unwrap();
    let again = cluster.try_trine(&recover).unwrap();
    assert!(again.code == 5 && again.stderr.contains("name another prefix"), "never written over: {again:?}");
    workload.progress(SOME, LONG).unwrap();
    for n in 0..2 {
        cluster.conductor_of(n).start().unwrap();
    }
    cluster.leader().unwrap();
    wait_heard(&cluster, 3);
    let adopted = adopt(&cluster, &[]);
    assert_eq!(adopted.code, 0, "{}", adopted.stderr);
    workload.progress(SOME, LONG).unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    assert_eq!(was, volume(&cluster, VOLUME));

    // What was adopted is etcd's, not one conductor's: the next leader has it.
    let leader = cluster.leader().unwrap();
    cluster.conductor_of(leader).kill().unwrap();
    cluster.next_leader(leader).unwrap();
    cluster.conductor_of(leader).start().unwrap();
    assert!(doubt(&cluster).is_none());
    assert_eq!(was, volume(&cluster, VOLUME));
    cluster.create("more", 8, 8).unwrap();
    workload.progress(SOME, LONG).unwrap();
    workload.stop().unwrap();
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}

/// The client had no map of the newest epoch when the conductor went: the primary that it knows tells it.
#[test]
fn a_client_follows_its_primary_without_a_conductor() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 8, 8).unwrap();
    let workload = workload(&mut cluster, 14);
    let primary = cluster.primary(VOLUME, 0).unwrap();
    let replica = (primary + 1) % 3;
    let epoch = |c: &Cluster| c.json(&["volume", "show", VOLUME]).unwrap()["shards"][0]["epoch"].as_u64().unwrap();
    let before = epoch(&cluster);
    cluster.target(VOLUME).unwrap().freeze().unwrap();
    cluster.nodes[replica].kill().unwrap();
    cluster.wait_health(VOLUME, "degraded").unwrap();
    cluster.nodes[replica].start().unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    assert_eq!(cluster.primary(VOLUME, 0).unwrap(), primary);
    assert!(epoch(&cluster) >= before + 2, "it was dropped, and added again");
    cluster.conductor.kill().unwrap();
    cluster.target(VOLUME).unwrap().thaw().unwrap();
    workload.progress(SOME, LONG).unwrap();
    cluster.conductor.start().unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    workload.progress(SOME, LONG).unwrap();
    workload.stop().unwrap();
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}

/// Epochs went on after the backup: that is noticed, and what has happened since counts.
#[test]
fn a_restored_backup_changes_nothing_until_it_is_adopted() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 16, 8).unwrap();
    let workload = workload(&mut cluster, 12);
    let file = cluster.dir().join("backup");
    let backup = file.to_str().unwrap().to_owned();
    cluster.trine(&["conductor", "backup", &backup]).unwrap();
    assert_eq!(cluster.try_trine(&["conductor", "backup", &backup]).unwrap().code, 5, "never written over");
    cluster.nodes[0].kill().unwrap();
    workload.progress(SOME, LONG).unwrap();
    cluster.wait_health(VOLUME, "degraded").unwrap();
    cluster.nodes[0].start().unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    let epochs = |c: &Cluster| {
        let shown = c.json(&["volume", "show", VOLUME]).unwrap();
        shown["shards"].as_array().unwrap().iter().map(|s| s["epoch"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let newest = epochs(&cluster);

    lose_state(&mut cluster, &["--backup", &backup]);
    wait_heard(&cluster, 3);
    workload.progress(SOME, LONG).unwrap();
    assert!(epochs(&cluster).iter().zip(&newest).all(|(old, new)| old < new), "nothing is changed");
    let adopted = adopt(&cluster, &[]);
    assert!(adopted.code == 0 && adopted.stdout.starts_with("adopted"), "{adopted:?}");
    assert!(epochs(&cluster).iter().zip(&newest).all(|(now, new)| now > new));
    workload.progress(SOME, LONG).unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    assert!(doubt(&cluster).is_none());
    workload.stop().unwrap();
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}

/// A node that does not come is named, and left out only by name.
#[test]
fn a_node_that_is_lost_as_well_is_left_out_by_name() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 16, 8).unwrap();
    let workload = workload(&mut cluster, 13);
    cluster.nodes[2].kill().unwrap();
    cluster.wait_health(VOLUME, "degraded").unwrap();
    lose_state(&mut cluster, &["--from-nodes"]);
    wait_heard(&cluster, 2);
    let refused = adopt(&cluster, &[]);
    assert_eq!(refused.code, 5);
    assert!(refused.stderr.contains("n3") && refused.stderr.contains("--without"), "{}", refused.stderr);
    let adopted = adopt(&cluster, &["--without", "n3"]);
    assert_eq!(adopted.code, 0, "{}", adopted.stderr);
    workload.progress(SOME, LONG).unwrap();
    // It comes back with copies that are not listed any more: they are deleted, and it gets new ones.
    cluster.nodes[2].start().unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    workload.stop().unwrap();
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}
