//! A volume of two copies, both of which a write needs (rule 11): what is left when a node is away.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use cluster::nbd::{Command, Nbd, Place};
use cluster::{Cluster, LONG, Shape, wait_until};
use std::time::Duration;

const BLOCKS: u64 = 64;

fn write(at: u64, of: u8) -> Command {
    Command::Write { offset: at * 4096, bytes: vec![of; 4096] }
}

fn read(at: u64) -> Command {
    Command::Read { offset: at * 4096, len: 4096 }
}

/// A cluster, its volume `db` with all blocks written, and which nodes have the primary and the other copy.
fn written() -> (Cluster, Place, Nbd, [usize; 2]) {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.trine(&["volume", "create", "db", "--size", "16M", "--copies", "2"]).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut client = Nbd::connect(&place, "db").unwrap();
    for at in 0..BLOCKS {
        client.call(&write(at, 1), LONG).unwrap().unwrap();
    }
    let detail = cluster.json(&["volume", "show", "db"]).unwrap();
    let primary = cluster.primary("db", 0).unwrap();
    let copies = detail["shards"][0]["members"].as_array().unwrap().iter();
    let other = copies.map(|m| m["node"].as_u64().unwrap() as usize - 1).find(|node| *node != primary).unwrap();
    (cluster, place, client, [primary, other])
}

#[test]
fn reads_go_on_and_writes_wait_for_the_other_copy() {
    let (mut cluster, place, mut client, [_, other]) = written();
    cluster.nodes[other].kill().unwrap();
    let is_sealed = || {
        let (word, reasons) = cluster.health("db")?;
        Ok(word == "waiting" && reasons.iter().any(|reason| reason.contains("1 of at least 2 copies in sync")))
    };
    wait_until("one copy of two is left", LONG, is_sealed).unwrap();
    // The last write included: both copies had finished it.
    for at in 0..BLOCKS {
        assert_eq!(client.call(&read(at), LONG).unwrap().unwrap(), [1; 4096], "block {at}");
    }
    client.submit(&write(0, 2));
    assert!(client.turn(Duration::from_secs(3)).unwrap().is_empty(), "one copy is not enough");
    let mut second = Nbd::connect(&place, "db").unwrap();
    assert_eq!(second.call(&read(1), LONG).unwrap().unwrap(), [1; 4096], "reads beside it go on");
    cluster.nodes[other].start().unwrap();
    let reply = client.turn(LONG).unwrap().remove(0);
    assert!(reply.result.is_ok(), "{reply:?}");
    assert_eq!(client.call(&read(0), LONG).unwrap().unwrap(), [2; 4096]);
    cluster.wait_healthy("db").unwrap();
}

#[test]
fn the_copy_of_a_node_that_is_lost_is_made_anew_on_a_third_one_and_writes_go_on() {
    let (mut cluster, place, mut client, [primary, other]) = written();
    // Not in the ten minutes that it is usually waited for.
    cluster.conductor.kill().unwrap();
    cluster.conductor.set("TRINE_REPLACE_AFTER", "1s");
    cluster.conductor.start().unwrap();
    cluster.nodes[other].kill().unwrap();
    client.call(&write(0, 2), LONG).unwrap().unwrap();
    cluster.wait_healthy("db").unwrap();
    // Then the first one is lost, too, and the node that was lost is back, with a copy that is none any more.
    cluster.nodes[primary].kill().unwrap();
    cluster.nodes[other].start().unwrap();
    let mut third = Nbd::connect(&place, "db").unwrap();
    for at in 0..BLOCKS {
        let expected = if at == 0 { 2 } else { 1 };
        assert_eq!(third.call(&read(at), LONG).unwrap().unwrap(), [expected; 4096], "block {at}");
    }
    third.call(&write(1, 3), LONG).unwrap().unwrap();
    cluster.nodes[primary].start().unwrap();
    cluster.wait_healthy("db").unwrap();
}
