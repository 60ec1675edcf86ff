//! Nodes with two reactors, each with a disk and a port of its own: a volume's shards are on both, and both come back from kill -9.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, LONG, Options, Shape, Workload};
use serde_json::Value;
use std::collections::BTreeSet;

const VOLUME: &str = "db";
const REACTORS: usize = 2;
/// Of 4 MiB each: so many that chance puts them all on one reactor of a node only if something does not spread them.
const SHARDS: u64 = 16;
/// Requests that must be acknowledged before, between and after the faults.
const SOME: u64 = 300;

/// The shards of which each reactor of each node has a copy, and those of which it is primary.
fn placed(cluster: &Cluster) -> Vec<(BTreeSet<String>, BTreeSet<String>)> {
    let looks = (0..3).map(|node| cluster.look(node).unwrap());
    let of_reactor = |reactor: &Value| {
        let copies = reactor["copies"].as_array().unwrap();
        let shards = |primary: bool| {
            let chosen = copies.iter().filter(|copy| !primary || copy["role"].as_str().unwrap().starts_with("primary"));
            chosen.map(|copy| copy["shard"].to_string()).collect()
        };
        (shards(false), shards(true))
    };
    looks
        .flat_map(|look| look["inside"]["reactors"].as_array().unwrap().iter().map(of_reactor).collect::<Vec<_>>())
        .collect()
}

fn shards_are_on_all_reactors(cluster: &Cluster) {
    let placed = placed(cluster);
    assert_eq!(placed.len(), 3 * REACTORS, "each node has {REACTORS} reactors");
    for (reactor, (copies, _)) in placed.iter().enumerate() {
        assert!(!copies.is_empty(), "reactor {reactor} of six has no copy: {placed:?}");
    }
    for node in placed.chunks(REACTORS) {
        let copies: usize = node.iter().map(|(copies, _)| copies.len()).sum();
        assert_eq!(
            copies as u64, SHARDS,
            "three copies on three nodes: one of each shard on each, on one reactor: {placed:?}"
        );
    }
    let primaries: usize = placed.iter().map(|(_, primaries)| primaries.len()).sum();
    assert_eq!(primaries as u64, SHARDS, "each shard has one primary: {placed:?}");
    let reactors = placed.iter().filter(|(_, primaries)| !primaries.is_empty()).count();
    assert!(reactors > 3, "primaries are on {reactors} of six reactors: on both of at least one node: {placed:?}");
}

#[test]
fn a_volume_lives_on_two_reactors_of_each_node_and_survives_their_deaths() {
    let mut cluster = Cluster::start(Shape { reactors: REACTORS, disk: 128 << 20, ..Shape::default() }).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    cluster.attach(VOLUME).unwrap();
    shards_are_on_all_reactors(&cluster);
    let place = cluster.place(VOLUME);
    let options = Options { place, export: VOLUME.to_owned(), depth: 16, seed: 9, patience: 2 * LONG };
    let workload = Workload::start(options).unwrap();
    workload.progress(SOME, LONG).unwrap();
    for node in 0..3 {
        cluster.nodes[node].kill().unwrap();
        let (_, reasons) = cluster.wait_health(VOLUME, "degraded").unwrap();
        println!("n{} killed: {reasons:?}", node + 1);
        workload.progress(SOME, LONG).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
        cluster.nodes[node].start().unwrap();
        cluster.wait_healthy(VOLUME).unwrap();
        workload.progress(SOME, LONG).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
    }
    for node in &mut cluster.nodes {
        node.kill().unwrap();
    }
    for node in cluster.nodes.iter_mut().rev() {
        node.start().unwrap();
    }
    cluster.wait_healthy(VOLUME).unwrap();
    workload.progress(SOME, LONG).unwrap();
    shards_are_on_all_reactors(&cluster);

    let (_, done) = workload.stop().unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
    println!("{done:?}");
    assert!(done.writes > SOME && done.reads > 0, "{done:?}");
    cluster.detach(VOLUME).unwrap();
    let compared = cluster.stop_and_compare().unwrap();
    let shards = compared["shards"].as_array().unwrap();
    assert_eq!(shards.len() as u64, SHARDS, "{compared}");
    assert!(shards.iter().all(|shard| shard["copies"].as_array().unwrap().len() == 3), "{compared}");
    let written = shards.iter().filter(|shard| shard["blocks"].as_u64().unwrap() > 0).count();
    assert!(written > 8, "only {written} shards were written");
}
