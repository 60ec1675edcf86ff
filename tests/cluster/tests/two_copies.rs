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

/// Somebody puts back an older image of one of the two disks. That is noticed, and while its copy is being filled the other node is lost:
/// nobody is told what the older image says, and nothing is lost when the node is back.
#[test]
fn a_copy_from_the_past_is_not_read_when_the_other_one_is_lost_before_it_is_filled() {
    const MIB: u64 = 1 << 20;
    let (mut cluster, place, mut client, [first, second]) = written();
    let whole = |of: u8| (0..16).map(move |at| Command::Write { offset: at * MIB, bytes: vec![of; MIB as usize] });
    whole(1).for_each(|write| drop(client.call(&write, LONG).unwrap().unwrap()));
    let (disk, image) = (cluster.disk(second), cluster.dir().join("image"));
    cluster.nodes.iter_mut().for_each(|node| node.kill().unwrap());
    std::fs::copy(&disk, &image).unwrap();
    cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
    cluster.wait_healthy("db").unwrap();
    whole(2).for_each(|write| drop(client.call(&write, LONG).unwrap().unwrap()));
    drop(client);

    cluster.trine(&["resync", "rate", "1M"]).unwrap();
    cluster.nodes.iter_mut().for_each(|node| node.kill().unwrap());
    std::fs::copy(&image, &disk).unwrap();
    cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
    let member = |cluster: &Cluster| {
        let members = cluster.json(&["volume", "show", "db"])?["shards"][0]["members"].clone();
        let mut members = members.as_array().cloned().unwrap_or_default().into_iter();
        Ok::<_, anyhow::Error>(members.find(|m| m["node"] == second as u64 + 1).unwrap_or_default())
    };
    let is_filled = |cluster: &Cluster| member(cluster).map(|m| m["state"] == "syncing" && m["past"] == true);
    wait_until("the copy from the past is being filled", LONG, || is_filled(&cluster)).unwrap();
    // Whoever fills it may begin anew, and knows it all the same.
    cluster.nodes[first].kill().unwrap();
    cluster.nodes[first].start().unwrap();
    wait_until("it is being filled again", LONG, || is_filled(&cluster)).unwrap();
    assert_eq!(cluster.primary("db", 0).unwrap(), first);

    cluster.nodes[first].kill().unwrap();
    let mut client = Nbd::connect(&place, "db").unwrap();
    client.submit(&read(5));
    assert!(client.turn(Duration::from_secs(6)).unwrap().is_empty(), "there is nobody to answer");
    assert_eq!(cluster.primary("db", 0).unwrap(), first, "{:?}", member(&cluster));
    cluster.nodes[first].start().unwrap();
    let reply = client.turn(LONG).unwrap().remove(0);
    assert_eq!(reply.result.unwrap(), [2; 4096]);
    cluster.trine(&["resync", "rate", "max"]).unwrap();
    cluster.wait_healthy("db").unwrap();
    assert_eq!(member(&cluster).unwrap().get("past"), None);
    drop(client);
    cluster.detach("db").unwrap();
    cluster.stop_and_compare().unwrap();
}
