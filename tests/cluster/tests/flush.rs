//! A volume whose writes are durable by the next flush: what is lost before that is told (rule 18).
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::{Cluster, LONG, Shape, wait_until};

#[test]
fn who_connects_again_behind_a_target_that_died_is_told_of_a_loss() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.trine(&["volume", "create", "db", "--size", "16M", "--durability", "flush"]).unwrap();
    cluster.wait_healthy("db").unwrap();
    let place = cluster.attach("db").unwrap();
    let mut before = Nbd::connect(&place, "db").unwrap();
    before.call(&Command::Write { offset: 0, bytes: vec![1; 4096] }, LONG).unwrap().unwrap();
    // The target first: what it knew of the write is gone, and its client is not.
    cluster.target("db").unwrap().kill().unwrap();
    for node in &mut cluster.nodes {
        node.kill().unwrap();
    }
    for node in &mut cluster.nodes {
        node.start().unwrap();
    }
    cluster.wait_alive(3).unwrap();
    // The conductor knows of the loss before there is a target again.
    let lost =
        || Ok(cluster.json(&["volume", "show", "db"])?["shards"][0]["cache"].as_u64().is_some_and(|cache| cache > 0));
    wait_until("the loss is known", LONG, lost).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut again = Nbd::connect(&place, "db").unwrap();
    let mut flush = || again.call(&Command::Flush, LONG).unwrap();
    assert_eq!(flush(), Err(5), "the write may be gone");
    assert_eq!(flush(), Ok(Vec::new()), "it is told once");
    drop(again);
    cluster.detach("db").unwrap();
    // Who attaches after a detach has written nothing that could be lost.
    let place = cluster.attach("db").unwrap();
    let mut fresh = Nbd::connect(&place, "db").unwrap();
    assert_eq!(fresh.call(&Command::Flush, LONG).unwrap(), Ok(Vec::new()));
}
