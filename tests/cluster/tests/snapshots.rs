//! Snapshots, rollback, clones and copies of ranges, as a person makes them, beside clients that write.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd, Place};
use cluster::{Chains, Cluster, LONG, Layout, Outcome, Picture, Process, Random, Shape, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// An NBD server's word for a write that is not allowed.
const EPERM: u32 = 1;
/// And for one that failed.
const EIO: u32 = 5;
const READ_ONLY: u16 = 2;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const REFUSED: i32 = 5;

/// A volume under NBD and the bytes that it must have.
struct Model {
    nbd: Nbd,
    name: String,
    bytes: Vec<u8>,
    random: Random,
}

fn at(range: &Range<u64>) -> Range<usize> {
    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
}

impl Model {
    fn open(place: &Place, name: &str, bytes: Vec<u8>) -> Self {
        let nbd = Nbd::connect(place, name).unwrap();
        assert_eq!(nbd.size, bytes.len() as u64, "{name}");
        // No two of them write the same.
        static SEED: AtomicU64 = AtomicU64::new(1);
        let random = Random::new(SEED.fetch_add(1, Ordering::Relaxed));
        Self { nbd, name: name.to_owned(), bytes, random }
    }

    fn write(&mut self, range: Range<u64>) {
        let mut next = range.start;
        while next < range.end {
            let end = range.end.min(next + MIB);
            let bytes = self.random.bytes(usize::try_from(end - next).unwrap());
            self.bytes[at(&(next..end))].copy_from_slice(&bytes);
            self.nbd.call(&Command::Write { offset: next, bytes }, LONG).unwrap().unwrap();
            next = end;
        }
    }

    fn trim(&mut self, range: Range<u64>) {
        let len = u32::try_from(range.end - range.start).unwrap();
        self.nbd.call(&Command::Trim { offset: range.start, len }, LONG).unwrap().unwrap();
        self.bytes[at(&range)].fill(0);
    }

    /// Every byte.
    fn check(&mut self) {
        let chunk = usize::try_from(MIB).unwrap();
        for (n, expected) in self.bytes.chunks(chunk).enumerate() {
            let (offset, len) = (n as u64 * MIB, u32::try_from(expected.len()).unwrap());
            let read = self.nbd.call(&Command::Read { offset, len }, LONG).unwrap().unwrap();
            let wrong = read.chunks(4096).zip(expected.chunks(4096)).position(|(read, expected)| read != expected);
            assert_eq!(wrong.map(|block| block as u64 + offset / 4096), None, "{}: a wrong block", self.name);
        }
    }
}

/// Attaches, compares every byte, and detaches.
fn holds(cluster: &mut Cluster, name: &str, bytes: &[u8]) {
    let place = cluster.attach(name).unwrap();
    Model::open(&place, name, bytes.to_vec()).check();
    cluster.detach(name).unwrap();
}

fn refused(outcome: &Outcome, why: &[&str]) {
    assert_eq!((outcome.code, outcome.stderr.lines().count()), (REFUSED, 1), "{outcome:?}");
    for why in why {
        assert!(outcome.stderr.contains(why), "{why}: {outcome:?}");
    }
}

/// Bytes that all disks have given away.
fn used(cluster: &Cluster) -> u64 {
    let space = cluster.json(&["df"]).unwrap();
    space["disks"].as_array().unwrap().iter().map(|disk| disk["used"].as_u64().unwrap()).sum()
}

fn names(listed: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    listed.as_array().unwrap().iter().map(|snapshot| (text(&snapshot["name"]), text(&snapshot["state"]))).collect()
}

/// A snapshot's reader has no attachment that could be fenced: it hung for ever.
#[test]
fn readers_of_a_snapshot_fail_when_it_or_its_volume_is_deleted_and_made_again() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 8, 4).unwrap();
    for name in ["db@a", "db@b"] {
        cluster.trine(&["snapshot", "create", name]).unwrap();
    }
    let read = Command::Read { offset: 0, len: 4096 };
    let place = cluster.attach("db@b").unwrap();
    let mut reader = Nbd::connect(&place, "db@b").unwrap();
    reader.call(&read, LONG).unwrap().unwrap();
    cluster.trine(&["snapshot", "delete", "db@b", "--yes"]).unwrap();
    wait_until("a read of the snapshot fails", LONG, || Ok(reader.call(&read, LONG)? == Err(EIO))).unwrap();
    drop(reader);
    cluster.detach("db@b").unwrap();

    let place = cluster.attach("db@a").unwrap();
    let mut reader = Nbd::connect(&place, "db@a").unwrap();
    reader.call(&read, LONG).unwrap().unwrap();
    cluster.trine(&["volume", "delete", "db", "--yes"]).unwrap();
    // Answered as long as its copies are there, and never again afterwards.
    wait_until("a read fails", LONG, || Ok(reader.call(&read, LONG)? == Err(EIO))).unwrap();
    cluster.create("db", 8, 4).unwrap();
    assert_eq!(reader.call(&read, LONG).unwrap(), Err(EIO), "another volume of that name");
    drop(reader);
    cluster.detach("db@a").unwrap();
}

#[test]
fn a_snapshot_under_full_load_is_of_one_moment_and_nobody_writes_to_it() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 64, 16).unwrap();
    let layout = Layout { shards: 4, shard: 16 << 20 };
    let place = cluster.attach("db").unwrap();
    let chains = Chains::start(&place, "db", layout).unwrap();
    let names = ["db@s1", "db@s2", "db@s3"];
    // What is read of the live volume meanwhile is of no moment, and that is noticed.
    let mut beside = Nbd::connect(&place, "db").unwrap();
    let torn = || Ok(Picture::read(&mut beside, layout)?.check().is_err());
    wait_until("a picture of several moments", LONG, torn).unwrap();
    let mut pictures = Vec::new();
    for name in names {
        chains.progress(40).unwrap();
        let before = chains.acknowledged();
        cluster.trine(&["snapshot", "create", name]).unwrap();
        let after = chains.issued();
        let place = cluster.attach(name).unwrap();
        let mut nbd = Nbd::connect(&place, name).unwrap();
        assert_eq!((nbd.size, nbd.flags & READ_ONLY), (64 << 20, READ_ONLY));
        let picture = Picture::read(&mut nbd, layout).unwrap();
        picture.check().unwrap_or_else(|why| panic!("{name}: {why}"));
        picture.is_between(&before, &after).unwrap_or_else(|why| panic!("{name}: {why}"));
        let refused = nbd.call(&Command::Write { offset: 0, bytes: vec![1; 4096] }, LONG).unwrap();
        assert_eq!(refused, Err(EPERM));
        pictures.push((name, nbd, picture));
    }
    // The volume goes on, writes over everything that the snapshots show, and they show the same still.
    chains.progress(64).unwrap();
    let done = chains.stop().unwrap();
    for (name, nbd, picture) in &mut pictures {
        assert!(Picture::read(nbd, layout).unwrap() == *picture, "{name} shows something else by now");
    }
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    let live = Picture::read(&mut nbd, layout).unwrap();
    live.check().unwrap();
    assert_eq!(live.steps(), done);
    drop((nbd, beside, pictures));
    for name in ["db", "db@s1", "db@s2", "db@s3"] {
        cluster.detach(name).unwrap();
    }
    let compared = cluster.stop_and_compare().unwrap();
    let shards = compared["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 4 * 4, "the live view and three snapshots of four shards: {compared}");
    assert!(shards.iter().all(|shard| shard["copies"].as_array().unwrap().len() == 3), "{compared}");
}

#[test]
fn a_rollback_brings_back_a_snapshot_and_leaves_later_ones_as_they_are() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 8, 2).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut db = Model::open(&place, "db", vec![0; 8 << 20]);
    db.write(MIB + 1536..5 * MIB);
    cluster.trine(&["snapshot", "create", "db@first"]).unwrap();
    let first = db.bytes.clone();
    db.trim(2 * MIB..3 * MIB);
    db.write(0..MIB + 256 * KIB);
    db.write(7 * MIB..8 * MIB);
    cluster.trine(&["snapshot", "create", "db@second"]).unwrap();
    let second = db.bytes.clone();
    db.write(MIB..4 * MIB);
    db.check();

    let rollback = ["snapshot", "rollback", "db@first", "--yes"];
    refused(&cluster.try_trine(&rollback).unwrap(), &["attached"]);
    db.check();
    drop(db);
    cluster.detach("db").unwrap();
    // Who reads a snapshot is in nobody's way.
    let place = cluster.attach("db@second").unwrap();
    let mut reader = Model::open(&place, "db@second", second.clone());
    cluster.trine(&rollback).unwrap();
    reader.check();
    holds(&mut cluster, "db", &first);

    let place = cluster.attach("db").unwrap();
    let mut db = Model::open(&place, "db", first.clone());
    db.write(512 * KIB..6 * MIB);
    db.check();
    drop(db);
    cluster.detach("db").unwrap();
    reader.check();
    drop(reader);
    cluster.detach("db@second").unwrap();
    holds(&mut cluster, "db@first", &first);
    // Forward again: of the two, neither is the other's past.
    cluster.trine(&["snapshot", "rollback", "db@second", "--yes"]).unwrap();
    holds(&mut cluster, "db", &second);
    holds(&mut cluster, "db@first", &first);
    cluster.stop_and_compare().unwrap();
}

#[test]
fn a_volume_that_has_grown_since_is_rolled_back_and_reads_as_zeros_beyond_the_snapshot() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    // The last shard is half of one, and its end lies within a chunk.
    let (old, new) = (5 * MIB + 20 * KIB, 11 * MIB + 4 * KIB);
    cluster.trine(&["volume", "create", "db", "--size", &old.to_string(), "--shard-size", "2M"]).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut db = Model::open(&place, "db", vec![0; usize::try_from(old).unwrap()]);
    db.write(MIB + 1536..3 * MIB);
    db.write(5 * MIB..old);
    cluster.trine(&["snapshot", "create", "db@first"]).unwrap();
    let mut first = db.bytes.clone();
    drop(db);
    cluster.detach("db").unwrap();

    cluster.trine(&["volume", "resize", "db", "--size", &new.to_string()]).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut bytes = first.clone();
    bytes.resize(usize::try_from(new).unwrap(), 0);
    let mut db = Model::open(&place, "db", bytes);
    db.write(2 * MIB..2 * MIB + 256 * KIB);
    // From the middle of the snapshot's last chunk to the end of its shard, and in the shards that came later.
    db.write(5 * MIB + 8 * KIB..7 * MIB + 4 * KIB);
    db.write(9 * MIB..new);
    cluster.trine(&["snapshot", "create", "db@second"]).unwrap();
    let second = db.bytes.clone();
    db.write(0..8 * MIB);
    drop(db);
    cluster.detach("db").unwrap();

    let asked = cluster.try_trine(&["snapshot", "rollback", "db@first"]).unwrap();
    assert_eq!(asked.code, 2, "nobody is there who could be asked: {asked:?}");
    let said = cluster.trine(&["snapshot", "rollback", "db@first", "--yes"]).unwrap();
    assert!(said.contains("keeps its size: from") && said.contains("on it reads as zeros"), "{said}");
    first.resize(usize::try_from(new).unwrap(), 0);
    holds(&mut cluster, "db", &first);
    holds(&mut cluster, "db@second", &second);
    // What is written there afterwards is there, and nothing else.
    let place = cluster.attach("db").unwrap();
    let mut db = Model::open(&place, "db", first);
    db.write(5 * MIB + 16 * KIB..5 * MIB + 36 * KIB);
    db.write(10 * MIB + 512..10 * MIB + 8 * KIB);
    db.check();
    drop(db);
    cluster.detach("db").unwrap();
    let said = cluster.trine(&["snapshot", "rollback", "db@second", "--yes"]).unwrap();
    assert!(!said.contains("zeros"), "{said}");
    holds(&mut cluster, "db", &second);
    cluster.stop_and_compare().unwrap();
}

#[test]
fn a_clone_is_there_at_once_shares_what_it_does_not_write_and_stands_alone_when_flattened() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    let empty = used(&cluster);
    cluster.create("db", 16, 4).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut db = Model::open(&place, "db", vec![0; 16 << 20]);
    db.write(MIB..10 * MIB);
    db.write(15 * MIB..16 * MIB);
    cluster.trine(&["snapshot", "create", "db@s"]).unwrap();
    let snapshot = db.bytes.clone();
    wait_until("db's ten MiB are counted thrice", LONG, || Ok(used(&cluster) >= empty + 30 * MIB)).unwrap();
    let before = used(&cluster);
    cluster.trine(&["volume", "clone", "db@s", "copy", "--size", "20M"]).unwrap();
    let mut larger = snapshot.clone();
    larger.resize(20 << 20, 0);
    let copy_place = cluster.attach("copy").unwrap();
    let mut copy = Model::open(&copy_place, "copy", larger);
    copy.check();
    assert!(used(&cluster) < before + 3 * MIB, "a clone takes no space of its own: {before} → {}", used(&cluster));
    copy.write(2 * MIB + 512..3 * MIB);
    copy.write(11 * MIB..12 * MIB);
    copy.trim(5 * MIB..6 * MIB);
    copy.write(17 * MIB..18 * MIB);
    db.write(4 * MIB..8 * MIB);
    copy.check();
    db.check();
    // A clone's clone.
    cluster.trine(&["snapshot", "create", "copy@t"]).unwrap();
    cluster.trine(&["volume", "clone", "copy@t", "third"]).unwrap();
    let third = copy.bytes.clone();
    copy.write(8 * MIB..9 * MIB);

    refused(&cluster.try_trine(&["snapshot", "delete", "db@s", "--yes"]).unwrap(), &["copy", "flatten"]);
    drop(db);
    cluster.detach("db").unwrap();
    refused(&cluster.try_trine(&["volume", "delete", "db", "--yes"]).unwrap(), &["copy", "flatten"]);
    assert_eq!(cluster.json(&["snapshot", "list", "db"]).unwrap()[0]["clones"][0], "copy");
    let parent = |cluster: &Cluster| cluster.json(&["volume", "show", "copy"]).unwrap()["info"]["parent"].clone();
    assert_eq!(parent(&cluster), "db@s");
    cluster.trine(&["volume", "flatten", "copy"]).unwrap();
    refused(&cluster.try_trine(&["volume", "flatten", "copy"]).unwrap(), &["no clone"]);
    copy.check();
    assert_eq!(parent(&cluster), Value::Null);
    cluster.trine(&["snapshot", "delete", "db@s", "--yes"]).unwrap();
    wait_until("db@s is gone", LONG, || Ok(names(&cluster.json(&["snapshot", "list", "db"])?).is_empty())).unwrap();
    let full = used(&cluster);
    cluster.trine(&["volume", "delete", "db", "--yes"]).unwrap();
    // Four MiB were db's alone, and one of the snapshot was written over by the clone's own.
    wait_until("db's space is back", LONG, || Ok(used(&cluster) + 12 * MIB <= full)).unwrap();
    copy.check();
    drop(copy);
    cluster.detach("copy").unwrap();
    holds(&mut cluster, "third", &third);
    refused(&cluster.try_trine(&["volume", "delete", "copy", "--yes"]).unwrap(), &["third"]);
    cluster.trine(&["volume", "delete", "third", "--yes"]).unwrap();
    let gone = || Ok(cluster.json(&["volume", "list"])?.as_array().unwrap().len() == 1);
    wait_until("third is gone", LONG, gone).unwrap();
    cluster.trine(&["volume", "delete", "copy", "--yes"]).unwrap();
    wait_until("all space is back", LONG, || Ok(used(&cluster) < empty + 3 * MIB)).unwrap();
}

#[test]
fn a_copied_range_reads_as_the_snapshot_and_what_lies_beside_it_as_before() {
    // Four nodes: some copies have the source on their disk and share, some do not and are sent it.
    let mut cluster = Cluster::start(Shape { nodes: 4, ..Shape::default() }).unwrap();
    cluster.create("from", 16, 4).unwrap();
    let place = cluster.attach("from").unwrap();
    let mut from = Model::open(&place, "from", vec![0; 16 << 20]);
    from.write(MIB..3 * MIB);
    from.write(3 * MIB + 256 * KIB..7 * MIB + 4 * KIB);
    from.write(12 * MIB..13 * MIB);
    cluster.trine(&["snapshot", "create", "from@s"]).unwrap();
    let source = from.bytes.clone();
    from.write(0..16 * MIB);
    drop(from);
    cluster.detach("from").unwrap();
    for (name, mib, range) in [("part", 16, 2 * MIB + 8 * KIB..12 * MIB + 4 * KIB), ("whole", 12, 0..12 * MIB)] {
        cluster.create(name, mib, 4).unwrap();
        let place = cluster.attach(name).unwrap();
        let mut to = Model::open(&place, name, vec![0; usize::try_from(mib * MIB).unwrap()]);
        to.write(MIB + 512..5 * MIB);
        to.write(10 * MIB..mib * MIB);
        let (offset, length) = (range.start.to_string(), (range.end - range.start).to_string());
        let some = ["--offset", offset.as_str(), "--length", length.as_str()];
        let args = if name == "part" { &some[..] } else { &[] };
        let copy = [&["volume", "copy-range", "from@s", name], args].concat();
        refused(&cluster.try_trine(&copy).unwrap(), &["attached"]);
        to.check();
        let mut expected = to.bytes.clone();
        drop(to);
        cluster.detach(name).unwrap();
        cluster.trine(&copy).unwrap();
        expected[at(&range)].copy_from_slice(&source[at(&range)]);
        let place = cluster.attach(name).unwrap();
        let mut to = Model::open(&place, name, expected);
        to.check();
        // It is the volume's own from now on.
        to.write(6 * MIB..6 * MIB + 64 * KIB);
        to.check();
        drop(to);
        cluster.detach(name).unwrap();
    }
    holds(&mut cluster, "from@s", &source);
    cluster.create("other", 16, 8).unwrap();
    let other = cluster.try_trine(&["volume", "copy-range", "from@s", "other"]).unwrap();
    assert_eq!((other.code, other.stderr.lines().count()), (2, 1), "shards of another size: {other:?}");
    cluster.stop_and_compare().unwrap();
}

#[test]
fn a_copy_that_somebody_cancels_is_not_done_for_who_waits_for_it() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    for volume in ["from", "to"] {
        cluster.create(volume, 8, 4).unwrap();
    }
    cluster.trine(&["snapshot", "create", "from@s"]).unwrap();
    // One node of three says that it is there: nothing is copied.
    cluster.nodes[1].freeze().unwrap();
    cluster.nodes[2].freeze().unwrap();
    let waits = cluster.begin(&["volume", "copy-range", "from@s", "to"]).unwrap();
    let listed = |args: &[&str]| cluster.json(&[&["volume", "copy-ranges", "to"], args].concat());
    wait_until("it is listed", LONG, || Ok(listed(&[])?.as_array().is_some_and(|copies| !copies.is_empty()))).unwrap();
    let copy = listed(&[]).unwrap()[0].clone();
    assert_eq!((&copy["source"], &copy["failed"]), (&"from@s".into(), &Value::Null), "{copy}");
    let id = format!("q{}", copy["id"]);
    for (code, args, word) in [
        (4, ["from", "--cancel", &id], "from"),
        (4, ["to", "--cancel", "q999"], "q999"),
        (2, ["to", "--cancel", "x"], "x"),
    ] {
        let refused = cluster.try_trine(&[&["volume", "copy-ranges"], &args[..]].concat()).unwrap();
        assert!(refused.code == code && refused.stderr.contains(word), "{args:?}: {refused:?}");
    }
    cluster.trine(&["volume", "copy-ranges", "to", "--cancel", &id]).unwrap();
    let told = waits.end().unwrap();
    assert!(told.code == 1 && told.stderr.contains("cancelled"), "{told:?}");
    // Who was told has seen it.
    assert_eq!(cluster.trine(&["volume", "copy-ranges", "to"]).unwrap().lines().count(), 1, "the head of the table");
    cluster.nodes[1].thaw().unwrap();
    cluster.nodes[2].thaw().unwrap();
    cluster.wait_alive(3).unwrap();
    cluster.trine(&["snapshot", "delete", "from@s", "--yes"]).unwrap();
    // As soon as every primary has heard of the end.
    wait_until("it can be attached", LONG, || Ok(cluster.attach("to").is_ok())).unwrap();
}

#[test]
fn a_rollback_that_somebody_cancels_is_not_done_for_who_waits_for_it_and_lets_the_volume_go() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 12, 4).unwrap();
    cluster.trine(&["snapshot", "create", "db@s"]).unwrap();
    // One node of three says that it is there: two shards at least do not come to their end.
    cluster.nodes[1].freeze().unwrap();
    cluster.nodes[2].freeze().unwrap();
    let waits = cluster.begin(&["snapshot", "rollback", "db@s", "--yes"]).unwrap();
    let shown = || cluster.trine(&["volume", "show", "db"]);
    wait_until("it has begun", LONG, || Ok(shown()?.contains("being rolled back to db@s"))).unwrap();
    refused(&cluster.try_trine(&["snapshot", "delete", "db@s", "--yes"]).unwrap(), &["rolled back to it"]);
    let said = cluster.trine(&["snapshot", "rollback", "db@s", "--cancel"]).unwrap();
    assert!(said.contains("cancelled: ") && said.contains("as before or as snapshot s"), "{said}");
    let told = waits.end().unwrap();
    assert!(told.code == 1 && told.stderr.contains("rollback of db was cancelled: "), "{told:?}");
    assert_eq!(cluster.try_trine(&["snapshot", "rollback", "db@s", "--cancel"]).unwrap().code, 4);
    assert!(shown().unwrap().contains("a rollback was cancelled: "));
    cluster.nodes[1].thaw().unwrap();
    cluster.nodes[2].thaw().unwrap();
    cluster.wait_alive(3).unwrap();
    wait_until("it can be attached", LONG, || Ok(cluster.attach("db").is_ok())).unwrap();
    assert!(!cluster.trine(&["volume", "show", "db"]).unwrap().contains("cancelled"));
    cluster.detach("db").unwrap();
    cluster.trine(&["snapshot", "rollback", "db@s", "--yes"]).unwrap();
    cluster.stop_and_compare().unwrap();
}

#[test]
fn a_range_is_copied_between_volumes_that_have_no_node_in_common() {
    let mut cluster = Cluster::start(Shape { nodes: 6, ..Shape::default() }).unwrap();
    let duties = |cluster: &Cluster, verb: &str, nodes: Range<usize>| {
        nodes.for_each(|n| drop(cluster.trine(&["node", verb, &format!("n{}", n + 1)]).unwrap()));
    };
    duties(&cluster, "cordon", 3..6);
    cluster.create("from", 16, 4).unwrap();
    duties(&cluster, "uncordon", 3..6);
    duties(&cluster, "cordon", 0..3);
    cluster.create("to", 16, 4).unwrap();
    let nodes = |cluster: &Cluster, volume: &str| -> BTreeSet<u64> {
        let shown = cluster.json(&["volume", "show", volume]).unwrap();
        let shards = shown["shards"].as_array().unwrap().iter();
        shards.flat_map(|s| s["members"].as_array().unwrap()).map(|m| m["node"].as_u64().unwrap()).collect()
    };
    assert_eq!((nodes(&cluster, "from"), nodes(&cluster, "to")), ([1, 2, 3].into(), [4, 5, 6].into()));
    let place = cluster.attach("from").unwrap();
    let mut from = Model::open(&place, "from", vec![0; 16 << 20]);
    from.write(MIB..3 * MIB);
    from.write(3 * MIB + 256 * KIB..13 * MIB + 4 * KIB);
    cluster.trine(&["snapshot", "create", "from@s"]).unwrap();
    let mut expected = from.bytes.clone();
    from.write(0..16 * MIB);
    drop(from);
    cluster.detach("from").unwrap();
    let place = cluster.attach("to").unwrap();
    let mut to = Model::open(&place, "to", vec![0; 16 << 20]);
    to.write(0..16 * MIB);
    expected[15 << 20..].copy_from_slice(&to.bytes[15 << 20..]);
    drop(to);
    cluster.detach("to").unwrap();
    let length = (15 * MIB).to_string();
    cluster.trine(&["volume", "copy-range", "from@s", "to", "--offset", "0", "--length", &length]).unwrap();
    holds(&mut cluster, "to", &expected);
    let count = |name: &str| (0..6).map(|n| cluster.counter(n, name).unwrap()).sum::<u64>();
    // Pieces of 256 KiB, each asked of another node; more if some had to be asked again.
    assert!(count("op.snapshot-read") >= 60 && count("copy.by-sharing") == 0);
    cluster.stop_and_compare().unwrap();
}

/// The snapshots that some copy on a stopped node's disk has, and the layers that are neither of one nor live.
fn on_disk(cluster: &Cluster, n: usize) -> (BTreeSet<String>, Vec<Value>) {
    let dump = cluster.json(&["store", "dump", &cluster.disk(n).display().to_string()]).unwrap();
    let listed = |copy: &Value| copy["snapshots"].as_array().unwrap().clone();
    let copies = dump["copies"].as_array().unwrap().iter().flat_map(listed);
    let others = |layer: &&Value| !["live", "snapshot"].contains(&layer["state"].as_str().unwrap());
    let layers = dump["layers"].as_array().unwrap().iter().filter(others).cloned().collect();
    (copies.map(|snapshot| snapshot.as_str().unwrap().to_owned()).collect(), layers)
}

#[test]
fn whoever_is_killed_while_a_snapshot_is_made_it_is_whole_or_not_there_and_can_be_made_again() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 4).unwrap();
    let layout = Layout { shards: 4, shard: 4 << 20 };
    let place = cluster.attach("db").unwrap();
    let chains = Chains::start(&place, "db", layout).unwrap();
    let victim = cluster.primary("db", 0).unwrap();
    let frozen = (victim + 1) % 3;
    let mut made = Vec::new();
    for (name, conductor) in [("db@node", false), ("db@conductor", true)] {
        chains.progress(10).unwrap();
        // A copy that says nothing: the snapshot is in the middle of being made until it does.
        cluster.nodes[frozen].freeze().unwrap();
        let create = cluster.begin(&["snapshot", "create", name]).unwrap();
        let begun =
            || Ok(names(&cluster.json(&["snapshot", "list", "db"])?).iter().any(|(_, state)| state == "creating"));
        wait_until("the snapshot is being made", LONG, begun).unwrap();
        let killed = if conductor { &mut cluster.conductor } else { &mut cluster.nodes[victim] };
        killed.kill().unwrap();
        killed.start().unwrap();
        cluster.nodes[frozen].thaw().unwrap();
        let outcome = create.end().unwrap();
        cluster.wait_alive(3).unwrap();
        cluster.wait_healthy("db").unwrap();
        println!("{name}: {} {}", outcome.code, outcome.stderr);
        let listed = names(&cluster.json(&["snapshot", "list", "db"]).unwrap());
        let complete = listed.iter().any(|(listed, state)| name.ends_with(listed.as_str()) && state == "complete");
        match outcome.code {
            0 => assert!(complete, "{listed:?}"),
            // Nobody heard what came of it.
            1 | 3 => {
                assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
                assert!(!listed.iter().any(|(listed, _)| name.ends_with(listed.as_str())), "{outcome:?} {listed:?}");
                cluster.trine(&["snapshot", "create", name]).unwrap();
            }
            _ => panic!("{outcome:?}"),
        }
        let place = cluster.attach(name).unwrap();
        let mut nbd = Nbd::connect(&place, name).unwrap();
        let picture = Picture::read(&mut nbd, layout).unwrap();
        picture.check().unwrap_or_else(|why| panic!("{name}: {why}"));
        made.push((name, picture, nbd));
    }
    chains.progress(10).unwrap();
    chains.stop().unwrap();
    for (name, picture, nbd) in &mut made {
        assert!(Picture::read(nbd, layout).unwrap() == *picture, "{name} shows something else by now");
    }
    drop(made);
    // What attempts left behind is taken away in the background.
    let listed = cluster.json(&["snapshot", "list", "db"]).unwrap();
    assert_eq!(names(&listed).len(), 2, "{listed}");
    let ids: BTreeSet<String> =
        listed.as_array().unwrap().iter().map(|snapshot| format!("s{}", snapshot["id"])).collect();
    let only_these = (ids, Vec::new());
    let clean = wait_until("no disk has more than what is listed", LONG, || {
        cluster.stop_and_compare()?;
        let clean = (0..3).all(|n| on_disk(&cluster, n) == only_these);
        if !clean {
            println!("not yet: {:?}", (0..3).map(|n| on_disk(&cluster, n)).collect::<Vec<_>>());
            cluster.nodes.iter_mut().try_for_each(Process::start)?;
            cluster.wait_healthy("db")?;
        }
        Ok(clean)
    });
    clean.unwrap();
}

/// True as long as `trine volume show` says that this is being done, or nobody answers.
fn unfinished(cluster: &Cluster, volume: &str, what: &str) -> bool {
    let shown = cluster.try_trine(&["volume", "show", volume, "-o", "json"]).unwrap();
    shown.code == 3 || !serde_json::from_str::<Value>(&shown.stdout).unwrap()["info"][what].is_null()
}

#[test]
fn what_was_begun_is_done_although_a_node_and_the_conductor_die_meanwhile() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 8, 2).unwrap();
    cluster.create("to", 8, 2).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut db = Model::open(&place, "db", vec![0; 8 << 20]);
    db.write(MIB..7 * MIB);
    cluster.trine(&["snapshot", "create", "db@s"]).unwrap();
    let old = db.bytes.clone();
    db.write(2 * MIB..4 * MIB);
    cluster.trine(&["snapshot", "create", "db@t"]).unwrap();
    db.write(0..8 * MIB);
    drop(db);
    cluster.detach("db").unwrap();
    cluster.trine(&["volume", "clone", "db@s", "clone"]).unwrap();

    // A copy that says nothing: nothing is through until it does.
    let victim = cluster.primary("db", 0).unwrap();
    let frozen = (victim + 1) % 3;
    cluster.nodes[frozen].freeze().unwrap();
    cluster.trine(&["snapshot", "rollback", "db@s", "--yes", "--no-wait"]).unwrap();
    cluster.trine(&["volume", "copy-range", "db@s", "to", "--no-wait"]).unwrap();
    cluster.trine(&["volume", "flatten", "clone", "--no-wait"]).unwrap();
    refused(&cluster.try_trine(&["snapshot", "delete", "db@s", "--yes"]).unwrap(), &["rolled back"]);
    cluster.trine(&["snapshot", "delete", "db@t", "--yes"]).unwrap();
    cluster.nodes[victim].kill().unwrap();
    cluster.conductor.kill().unwrap();
    cluster.conductor.start().unwrap();
    cluster.nodes[victim].start().unwrap();
    let still = [("db", "rollback"), ("clone", "flatten")].map(|(volume, what)| unfinished(&cluster, volume, what));
    assert_eq!(still, [true; 2], "one copy has done nothing yet: a rollback and a flatten");
    cluster.nodes[frozen].thaw().unwrap();
    cluster.wait_alive(3).unwrap();
    let rest = || {
        let one = names(&cluster.json(&["snapshot", "list", "db"])?).len() == 1;
        Ok(one && !unfinished(&cluster, "db", "rollback") && !unfinished(&cluster, "clone", "flatten"))
    };
    wait_until("all of it is done", LONG, rest).unwrap();
    holds(&mut cluster, "db", &old);
    holds(&mut cluster, "clone", &old);
    // Nobody attaches what is being copied into.
    let copied = || Ok(cluster.try_trine(&["attach", "to", "--read-only", "--nbd", "tcp:127.0.0.1:0"])?.code == 0);
    wait_until("the range is copied", LONG, copied).unwrap();
    cluster.trine(&["detach", "to"]).unwrap();
    holds(&mut cluster, "to", &old);
    cluster.trine(&["snapshot", "delete", "db@s", "--yes"]).unwrap();
    cluster.stop_and_compare().unwrap();
}

#[test]
fn commands_about_snapshots_say_what_is_wrong_by_their_exit_code_and_one_line() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 2, 2).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut db = Model::open(&place, "db", vec![0; 2 << 20]);
    db.write(0..MIB);
    let made = cluster.json(&["snapshot", "create", "db@s"]).unwrap();
    assert_eq!(
        (&made["volume"], &made["name"], &made["size"]),
        (&"db".into(), &"s".into(), &(2 << 20).into()),
        "{made}"
    );
    let listed = cluster.json(&["snapshot", "list", "db"]).unwrap();
    assert_eq!(listed, Value::Array(vec![made]));
    let table = cluster.trine(&["snapshot", "list", "db"]).unwrap();
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("db@s") && line.contains("complete")), "{table}");
    cluster.trine(&["volume", "set", "db", "--min-copies", "3"]).unwrap();
    cluster.trine(&["volume", "clone", "db@s", "clone"]).unwrap();
    let clone = cluster.json(&["volume", "show", "clone"]).unwrap();
    assert_eq!((&clone["info"]["min_copies"], &clone["info"]["durability"]), (&3.into(), &"always".into()), "as db");
    cluster.trine(&["volume", "set", "clone", "--min-copies", "2"]).unwrap();
    let wrong: [(i32, &[&str], &str); 17] = [
        (2, &["snapshot", "create", "db"], "VOLUME@"),
        (2, &["snapshot", "create", "db@S"], "S"),
        (4, &["snapshot", "create", "none@s"], "none"),
        (5, &["snapshot", "create", "db@s"], "exists"),
        (4, &["snapshot", "list", "none"], "none"),
        (4, &["snapshot", "delete", "db@none", "--yes"], "none"),
        (4, &["snapshot", "delete", "db@none"], "none"),
        (5, &["snapshot", "delete", "db@s"], "clone"),
        (5, &["snapshot", "delete", "db@s", "--yes"], "clone"),
        (4, &["snapshot", "rollback", "db@none", "--yes"], "none"),
        (2, &["snapshot", "rollback", "db@s"], "--yes"),
        (5, &["snapshot", "rollback", "db@s", "--yes"], "attached"),
        (4, &["volume", "clone", "db@none", "x"], "none"),
        (5, &["volume", "clone", "db@s", "clone"], "exists"),
        (2, &["volume", "clone", "db@s", "x", "--size", "1M"], "at least"),
        (4, &["volume", "copy-range", "db@s", "none"], "none"),
        (5, &["volume", "flatten", "db"], "no clone"),
    ];
    for (code, args, word) in wrong {
        let outcome = cluster.try_trine(args).unwrap();
        assert_eq!(outcome.code, code, "{args:?}: {outcome:?}");
        assert!(outcome.stderr.contains(word), "{args:?}: {outcome:?}");
        assert!(code == 2 || outcome.stderr.lines().count() == 1, "{args:?}: {outcome:?}");
    }
    let attach = cluster.try_trine(&["attach", "db@none", "--nbd", "tcp:127.0.0.1:0"]).unwrap();
    assert_eq!(attach.code, 4, "{attach:?}");
    // Nobody has written since: the clone and the snapshot share everything with db.
    let counted = |name: &str| {
        let space = cluster.json(&["df"])?;
        let volume = space["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == name).unwrap().clone();
        Ok::<_, anyhow::Error>((volume["used"].as_u64(), volume["snapshots"].as_u64()))
    };
    wait_until("what volumes use is counted", LONG, || {
        Ok(counted("db")? == (Some(3 * MIB), Some(1)) && counted("clone")? == (Some(0), Some(0)))
    })
    .unwrap();
    let table = cluster.trine(&["df"]).unwrap();
    assert!(table.contains("CAPACITY") && table.lines().any(|line| line.starts_with("clone")), "{table}");
    cluster.conductor.kill().unwrap();
    for args in
        [&["snapshot", "create", "db@x"][..], &["snapshot", "list", "db"], &["df"], &["volume", "flatten", "clone"]]
    {
        assert_eq!(cluster.try_trine(args).unwrap().code, 3, "{args:?}");
    }
    db.check();
}
