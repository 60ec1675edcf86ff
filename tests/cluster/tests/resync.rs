//! A filling over real processes: how fast it is, how far, and its end by hand.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::{Cluster, LONG, Options, Shape, Workload, wait_until};
use serde_json::Value;
use std::fs;
use std::time::Duration;

const VOLUME: &str = "db";
/// Requests that must be acknowledged at each step.
const SOME: u64 = 200;

fn listed(cluster: &Cluster) -> Vec<Value> {
    cluster.json(&["resync", "list", VOLUME]).unwrap().as_array().unwrap().clone()
}

fn states(cluster: &Cluster) -> Vec<String> {
    listed(cluster).iter().map(|copy| copy["state"].as_str().unwrap().to_owned()).collect()
}

fn pieces(cluster: &Cluster) -> u64 {
    (0..2).map(|node| cluster.counter(node, "fill.piece").unwrap()).sum()
}

#[test]
fn a_filling_is_slowed_down_aborted_and_resumed_by_hand() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 48, 16).unwrap();
    let place = cluster.attach(VOLUME).unwrap();
    let options = Options { place, export: VOLUME.to_owned(), depth: 8, seed: 21, patience: 2 * LONG };
    let workload = Workload::start(options).unwrap();
    workload.progress(SOME, LONG).unwrap();
    cluster.nodes[2].kill().unwrap();
    let (_, reasons) = cluster.wait_health(VOLUME, "degraded").unwrap();
    assert!(reasons.iter().any(|why| why.contains("n3")), "{reasons:?}");
    workload.progress(12 * SOME, 2 * LONG).unwrap();

    // As slow as it may be: three shards share 1 MiB a second, and are far from done when they are looked at.
    assert!(cluster.trine(&["resync", "rate", "1M"]).unwrap().contains("1 MiB/s"));
    assert_ne!(cluster.try_trine(&["resync", "rate", "5"]).unwrap().code, 0, "too slow to come to an end");
    cluster.nodes[2].start().unwrap();
    let moves =
        || Ok(listed(&cluster).iter().any(|copy| copy["state"] == "filling" && copy["rate"].as_u64() > Some(0)));
    wait_until("a copy is being filled", LONG, moves).unwrap();
    let copies = listed(&cluster);
    let moving = copies.iter().find(|copy| copy["rate"].as_u64() > Some(0)).unwrap();
    assert!(moving["eta_seconds"].is_u64() && moving["of"] == 16 << 20 && moving["node"] == 3, "{moving}");

    // One, and then all of them.
    let one = moving["copy"].as_str().unwrap();
    cluster.trine(&["resync", "abort", VOLUME, one]).unwrap();
    let only = |copies: Vec<Value>| copies.iter().filter(|copy| copy["state"] == "aborted").count() == 1;
    assert!(only(listed(&cluster)));
    cluster.trine(&["resync", "abort", VOLUME]).unwrap();
    assert!(states(&cluster).iter().all(|state| state == "aborted"), "{:?}", states(&cluster));
    let unknown = cluster.try_trine(&["resync", "abort", VOLUME, "c0000000000000001"]).unwrap();
    assert_eq!(unknown.code, 4, "{}", unknown.stderr);
    cluster.trine(&["resync", "rate", "max"]).unwrap();
    let absent = |shown: &Value| {
        let shards = shown["shards"].as_array().unwrap();
        shards.iter().all(|s| s["members"].as_array().unwrap().iter().all(|m| m["state"] != "syncing"))
    };
    wait_until("nothing is being filled", LONG, || Ok(absent(&cluster.json(&["volume", "show", VOLUME])?))).unwrap();
    let (_, reasons) = cluster.wait_health(VOLUME, "degraded").unwrap();
    assert!(reasons.iter().any(|why| why.contains("trine resync resume db")), "{reasons:?}");

    // It stays so, whoever is asked: the conductor's next life, and the primaries, who could fill all of it in this time.
    cluster.conductor.kill().unwrap();
    cluster.conductor.start().unwrap();
    cluster.wait_alive(3).unwrap();
    let before = pieces(&cluster);
    workload.progress(SOME, LONG).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((pieces(&cluster), states(&cluster).len()), (before, copies.len()));
    assert!(states(&cluster).iter().all(|state| state == "aborted"));

    cluster.trine(&["resync", "resume", VOLUME]).unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    assert!(listed(&cluster).is_empty());
    let events = cluster.trine(&["events"]).unwrap();
    assert!(events.contains("aborted by hand") && events.contains("resumed by hand"), "{events}");
    workload.progress(SOME, LONG).unwrap();
    workload.stop().unwrap();
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}

/// Somebody puts back an older image of a disk while all nodes are stopped: as a virtual machine's snapshot, or with dd. Of some shards its
/// node is the primary.
#[test]
fn a_disk_from_the_past_is_noticed_by_what_the_others_know_and_filled() {
    const PAST: usize = 0;
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 96, 16).unwrap();
    let place = cluster.attach(VOLUME).unwrap();
    let options = Options { place, export: VOLUME.to_owned(), depth: 16, seed: 22, patience: 2 * LONG };
    let workload = Workload::start(options).unwrap();
    workload.progress(12 * SOME, 2 * LONG).unwrap();
    let led = (0..6).filter(|shard| cluster.primary(VOLUME, *shard).unwrap() == PAST).count();
    assert!((1..6).contains(&led), "n1 leads {led} of 6 shards");

    let (disk, image) = (cluster.disk(PAST), cluster.dir().join("image"));
    cluster.nodes.iter_mut().for_each(|node| node.kill().unwrap());
    fs::copy(&disk, &image).unwrap();
    cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
    cluster.wait_healthy(VOLUME).unwrap();
    workload.progress(24 * SOME, 2 * LONG).unwrap();

    cluster.nodes.iter_mut().for_each(|node| node.kill().unwrap());
    fs::copy(&image, &disk).unwrap();
    cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
    // It reads what was acknowledged, too.
    workload.progress(24 * SOME, 2 * LONG).unwrap();
    cluster.wait_healthy(VOLUME).unwrap();
    let noticed: u64 = (0..3).map(|node| cluster.counter(node, "join.of-the-past").unwrap()).sum();
    assert!(noticed >= 6, "{noticed} of 6 copies");
    workload.stop().unwrap();
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}

/// The like, and what it lacks is one block of each shard: the others know of an epoch that it has never been in.
#[test]
fn a_disk_from_the_past_is_noticed_although_little_was_written_since() {
    const PAST: usize = 0;
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 96, 16).unwrap();
    let place = cluster.attach(VOLUME).unwrap();
    let at = |shard: u64| shard * (16 << 20);
    let write = |of: u8| {
        let mut nbd = Nbd::connect(&place, VOLUME).unwrap();
        for shard in 0..6 {
            nbd.call(&Command::Write { offset: at(shard), bytes: vec![of; 4096] }, 2 * LONG).unwrap().unwrap();
        }
    };
    write(1);
    let (disk, image) = (cluster.disk(PAST), cluster.dir().join("image"));
    cluster.nodes.iter_mut().for_each(|node| node.kill().unwrap());
    fs::copy(&disk, &image).unwrap();
    cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
    cluster.wait_healthy(VOLUME).unwrap();
    write(2);

    cluster.nodes.iter_mut().for_each(|node| node.kill().unwrap());
    fs::copy(&image, &disk).unwrap();
    cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
    let mut nbd = Nbd::connect(&place, VOLUME).unwrap();
    for shard in 0..6 {
        let read = nbd.call(&Command::Read { offset: at(shard), len: 4096 }, 2 * LONG).unwrap().unwrap();
        assert_eq!(read, vec![2; 4096], "shard {shard}");
    }
    drop(nbd);
    cluster.wait_healthy(VOLUME).unwrap();
    let noticed: u64 = (0..3).map(|node| cluster.counter(node, "join.of-the-past").unwrap()).sum();
    assert!(noticed >= 6, "{noticed} of 6 copies");
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}
