//! Disks that give back other bytes than were written to them: what clients read then, what is counted, and what a scrub puts right.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::{Cluster, LONG, Random, Shape, wait_until};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
/// Blocks that a disk gives out at once: long writes of whole chunks go there and not to the journal.
const CHUNK: usize = 16 * BLOCK;
const MIB: usize = 1 << 20;
const SHARD: usize = 2 * MIB;
const SHARDS: usize = 8;
const EIO: u32 = 5;
/// A conductor that stood still for so long (`STALL_MS`) takes nobody who was silent meanwhile for dead.
const STANDSTILL: Duration = Duration::from_millis(1_500);

/// Where on a disk the chunk of `image` at `offset` lies: in its place, and perhaps in one that was given back since.
fn find(disk: &[u8], image: &[u8], offset: usize) -> Vec<usize> {
    let chunk = &image[offset..offset + CHUNK];
    let begins = |at: &usize| disk[*at..at + 64] == chunk[..64] && disk[*at..at + CHUNK] == *chunk;
    let places: Vec<usize> = (0..disk.len() - CHUNK).step_by(BLOCK).filter(begins).collect();
    assert!(!places.is_empty(), "what was written at {offset} lies nowhere on the disk");
    places
}

/// Turns one bit in the first block of each of these chunks. The node is stopped.
fn rot(cluster: &Cluster, n: usize, chunks: &[(&[u8], usize)]) {
    let path = cluster.disk(n);
    let bytes = std::fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    for (image, offset) in chunks {
        for place in find(&bytes, image, *offset) {
            let at = place + 1234;
            file.write_all_at(&[bytes[at] ^ 0x10], at as u64).unwrap();
        }
    }
    file.sync_all().unwrap();
    let path = path.display().to_string();
    let checked = cluster.try_trine(&["store", "check", "--data", "-o", "json", &path]).unwrap();
    assert_eq!(checked.code, 1, "{checked:?}");
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    let findings = checked["disks"][0]["findings"].as_array().unwrap();
    assert_eq!(findings.len(), chunks.len(), "{checked}");
    assert!(findings.iter().all(|found| found["repairable_by_scrub"] == true), "{checked}");
}

fn write(nbd: &mut Nbd, image: &mut [u8], offset: usize, bytes: Vec<u8>) {
    image[offset..offset + bytes.len()].copy_from_slice(&bytes);
    nbd.call(&Command::Write { offset: offset as u64, bytes }, LONG).unwrap().unwrap();
}

/// A copy that comes back is given again what it does not know to be good on all: the last writes of each shard, which are these then.
fn settled(nbd: &mut Nbd, image: &mut [u8]) {
    for round in 1..4 {
        for end in (0..=image.len()).step_by(SHARD).skip(1) {
            write(nbd, image, end - BLOCK, vec![round; BLOCK]);
        }
    }
}

fn read(nbd: &mut Nbd, offset: usize, len: usize) -> Result<Vec<u8>, u32> {
    nbd.call(&Command::Read { offset: offset as u64, len: u32::try_from(len).unwrap() }, LONG).unwrap()
}

/// Reads everything, in pieces that are no chunks.
fn check(nbd: &mut Nbd, image: &[u8]) {
    const PIECE: usize = 5 * BLOCK + 512;
    for (n, expected) in image.chunks(PIECE).enumerate() {
        let got = read(nbd, n * PIECE, expected.len());
        assert!(got.as_deref() == Ok(expected), "at {}: {:?}", n * PIECE, got.map(|bytes| bytes.len()));
    }
}

/// These chunks rot while the node is stopped. Nobody follows it meanwhile, however long that takes: the conductor stands still, and counts silence
/// from when it goes on.
fn rot_while_stopped(cluster: &mut Cluster, node: usize, chunks: &[(&[u8], usize)]) {
    cluster.conductor.freeze().unwrap();
    let begin = Instant::now();
    cluster.nodes[node].terminate().unwrap();
    rot(cluster, node, chunks);
    std::thread::sleep((STANDSTILL + STANDSTILL / 4).saturating_sub(begin.elapsed()));
    cluster.conductor.thaw().unwrap();
    cluster.nodes[node].start().unwrap();
}

/// Damaged and repaired: of the cluster, and of these nodes' disks.
fn counted(cluster: &Cluster, nodes: [usize; 2]) -> [(u64, u64); 3] {
    let pair = |of: &Value| (of["damaged"].as_u64().unwrap(), of["repaired"].as_u64().unwrap());
    let disk = |n: usize| {
        let shown = cluster.json(&["node", "show", &format!("n{}", n + 1)]).unwrap();
        pair(&shown["info"]["disks"][0])
    };
    let totals = pair(&cluster.status().unwrap()["totals"]);
    [totals, disk(nodes[0]), disk(nodes[1])]
}

/// A volume that is written to everywhere, and a snapshot of it, in which the first MiB of each shard is another one.
struct Written {
    cluster: Cluster,
    nbd: Nbd,
    image: Vec<u8>,
    /// What the snapshot has.
    old: Vec<u8>,
    random: Random,
}

impl Written {
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::start(Shape::default()).unwrap();
        cluster.create("db", (SHARD * SHARDS / MIB) as u64, (SHARD / MIB) as u64).unwrap();
        let place = cluster.attach("db").unwrap();
        let mut nbd = Nbd::connect(&place, "db").unwrap();
        let mut random = Random::new(seed);
        let mut image = vec![0; SHARD * SHARDS];
        for offset in (0..SHARD * SHARDS).step_by(MIB) {
            write(&mut nbd, &mut image, offset, random.bytes(MIB));
        }
        cluster.trine(&["snapshot", "create", "db@s"]).unwrap();
        let old = image.clone();
        for offset in (0..SHARD * SHARDS).step_by(SHARD) {
            write(&mut nbd, &mut image, offset, random.bytes(MIB));
        }
        Self { cluster, nbd, image, old, random }
    }
}

#[test]
fn rotten_blocks_are_never_read_are_repaired_from_other_copies_and_a_scrub_finds_the_rest() {
    let Written { mut cluster, mut nbd, mut image, old, .. } = Written::new(3);
    settled(&mut nbd, &mut image);
    let primaries: Vec<usize> = (0..SHARDS).map(|shard| cluster.primary("db", shard).unwrap()).collect();
    let rotten = primaries[0];
    let beside = primaries.iter().position(|primary| *primary != rotten).unwrap() * SHARD;

    // On one node: where it is primary and where it is not, what is live, what only the snapshot has, what both have.
    let (live, both) = ([CHUNK, 3 * CHUNK], MIB + 2 * CHUNK);
    let mut chunks: Vec<(&[u8], usize)> = vec![(&old, 0), (&image, both), (&old, beside), (&image, beside + both)];
    chunks.extend(live.iter().flat_map(|at| [(&image[..], *at), (&image[..], beside + at)]));
    rot_while_stopped(&mut cluster, rotten, &chunks);
    cluster.wait_healthy("db").unwrap();
    settled(&mut nbd, &mut image);
    check(&mut nbd, &image);
    let snapshot = cluster.attach("db@s").unwrap();
    let mut reader = Nbd::connect(&snapshot, "db@s").unwrap();
    check(&mut reader, &old);
    // Three live blocks of which it is primary were read, and one of the snapshot.
    let healed = ["damage.found", "damage.repaired"].map(|name| cluster.counter(rotten, name).unwrap());
    assert_eq!(healed, [4, 4]);

    // Another node has rot of its own, elsewhere: each block is sound on two copies.
    let other = (rotten + 1) % 3;
    let elsewhere: [(&[u8], usize); 3] = [(&image, 5 * CHUNK), (&old, 6 * CHUNK), (&image, beside + MIB + 7 * CHUNK)];
    rot_while_stopped(&mut cluster, other, &elsewhere);
    cluster.wait_healthy("db").unwrap();
    let scrub = cluster.json(&["volume", "scrub", "db", "--wait"]).unwrap();
    assert_eq!(
        (&scrub["state"], &scrub["damaged"], &scrub["repaired"]),
        (&"idle".into(), &7.into(), &7.into()),
        "{scrub}"
    );
    assert_eq!((&scrub["damaged_ever"], &scrub["repaired_ever"]), (&7.into(), &7.into()), "{scrub}");
    let again = cluster.json(&["volume", "scrub", "db", "--wait"]).unwrap();
    assert_eq!((&again["damaged"], &again["damaged_ever"]), (&0.into(), &7.into()), "nothing is left: {again}");
    check(&mut nbd, &image);
    check(&mut reader, &old);
    // Nodes count again every ten seconds.
    let mut last = [(0, 0); 3];
    let all = wait_until("all is counted", LONG, || {
        last = counted(&cluster, [rotten, other]);
        Ok(last[0] >= (11, 11))
    });
    assert_eq!((all.is_ok(), last), (true, [(11, 11), (8, 8), (3, 3)]));
    let said = cluster.trine(&["status"]).unwrap();
    assert!(
        said.contains("integrity: 11 damaged blocks met") && said.contains("11 repaired; by all scrubs 7 and 7"),
        "{said}"
    );
    drop((nbd, reader));
    cluster.detach("db").unwrap();
    cluster.detach("db@s").unwrap();
    cluster.stop_and_compare().unwrap();
    sound(&cluster);
}

fn sound(cluster: &Cluster) {
    let disks: Vec<String> = (0..3).map(|n| cluster.disk(n).display().to_string()).collect();
    let args = ["store", "check", "--data", "-o", "json"].into_iter().chain(disks.iter().map(String::as_str));
    let checked = cluster.trine(&args.collect::<Vec<_>>()).unwrap();
    let checked: Value = serde_json::from_str(&checked).unwrap();
    let findings = |disk: &Value| disk["findings"].as_array().unwrap().len();
    assert!(checked["disks"].as_array().unwrap().iter().all(|disk| findings(disk) == 0), "{checked}");
}

#[test]
fn what_rots_on_every_copy_is_an_error_and_no_content_until_it_is_written_again() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 2, 2).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    let mut image = vec![0; SHARD];
    write(&mut nbd, &mut image, 0, Random::new(4).bytes(SHARD));
    for n in 0..3 {
        cluster.nodes[n].terminate().unwrap();
    }
    for n in 0..3 {
        rot(&cluster, n, &[(&image, CHUNK)]);
        cluster.nodes[n].start().unwrap();
    }
    cluster.wait_healthy("db").unwrap();
    assert_eq!(read(&mut nbd, CHUNK, BLOCK), Err(EIO));
    assert_eq!(read(&mut nbd, CHUNK + BLOCK, BLOCK).as_deref(), Ok(&image[CHUNK + BLOCK..CHUNK + 2 * BLOCK]));
    let scrub = cluster.json(&["volume", "scrub", "db", "--wait"]).unwrap();
    assert_eq!(scrub["repaired"], 0, "{scrub}");
    assert!(scrub["damaged"].as_u64().unwrap() > 0, "{scrub}");
    assert_eq!(read(&mut nbd, CHUNK, 512), Err(EIO), "still");
    write(&mut nbd, &mut image, CHUNK, vec![7; BLOCK]);
    check(&mut nbd, &image);
    drop(nbd);
    cluster.detach("db").unwrap();
    cluster.stop_and_compare().unwrap();
    sound(&cluster);
}

/// Where the metadata pages of maps and of chunk records are on a disk, both mirrors of each, and older ones (docs/disk-format.md).
fn pages(cluster: &Cluster, n: usize) -> Vec<usize> {
    let disk = std::fs::read(cluster.disk(n)).unwrap();
    let array = |at: usize| u32::from_le_bytes(disk[at + 12..at + 16].try_into().unwrap());
    let pages = (0..disk.len()).step_by(BLOCK).filter(|at| disk[*at..].starts_with(b"TPG2") && disk[*at + 8] == 1);
    pages.filter(|at| array(*at) == 3 || array(*at) >= 0x1000_0000).collect()
}

#[test]
fn metadata_that_is_bad_in_both_mirrors_on_two_nodes_costs_neither_a_disk_nor_a_block() {
    let Written { mut cluster, mut nbd, mut image, old, mut random } = Written::new(5);
    let rotten = [0, 1];
    wait_until("all is home", LONG, || {
        std::thread::sleep(Duration::from_millis(500));
        Ok(rotten.iter().all(|n| pages(&cluster, *n).len() >= 4 * SHARDS))
    })
    .unwrap();
    for n in 0..3 {
        cluster.nodes[n].terminate().unwrap();
    }
    for n in 0..3 {
        let file = File::options().write(true).open(cluster.disk(n)).unwrap();
        for at in pages(&cluster, n).into_iter().filter(|_| rotten.contains(&n)) {
            file.write_all_at(b"rot", at as u64 + 600).unwrap();
        }
        cluster.nodes[n].start().unwrap();
    }
    cluster.wait_healthy("db").unwrap();
    // Something new in each shard: the folds of both come to what they have lost.
    settled(&mut nbd, &mut image);
    for offset in (0..image.len()).step_by(MIB / 4) {
        write(&mut nbd, &mut image, offset + BLOCK, random.bytes(2 * BLOCK));
    }
    let lost = |n: usize| cluster.counter(n, "store.pages-lost").unwrap();
    wait_until("the folds have come by", LONG, || Ok(rotten.iter().all(|n| lost(*n) >= SHARDS as u64))).unwrap();
    for (offset, expected) in (0..).step_by(MIB).zip(image.chunks(MIB)) {
        assert!(read(&mut nbd, offset, MIB).as_deref() == Ok(expected), "1 MiB at {offset}");
    }
    check(&mut nbd, &image);
    let snapshot = cluster.attach("db@s").unwrap();
    let mut reader = Nbd::connect(&snapshot, "db@s").unwrap();
    check(&mut reader, &old);
    let elsewhere: u64 = (0..3).map(|n| cluster.counter(n, "read.elsewhere").unwrap()).sum();
    assert!(elsewhere > 0, "a primary that has lost what the snapshot was reads it from another copy");
    let scrub = || cluster.json(&["volume", "scrub", "db", "--wait"]).unwrap();
    let (damaged, again) = (scrub(), scrub());
    assert!(damaged["damaged"].as_u64() >= again["damaged"].as_u64(), "{damaged} {again}");
    check(&mut nbd, &image);
    check(&mut reader, &old);
    // What is left is the snapshot's, which is not written to.
    drop(reader);
    cluster.detach("db@s").unwrap();
    cluster.trine(&["snapshot", "delete", "db@s", "--yes"]).unwrap();
    let last = cluster.json(&["volume", "scrub", "db", "--wait"]).unwrap();
    assert_eq!(last["damaged"], 0, "{last}");
    check(&mut nbd, &image);
    let status = cluster.trine(&["status", "--check"]).unwrap();
    assert!(!status.contains("FAILED"), "{status}");
    drop(nbd);
    cluster.detach("db").unwrap();
    cluster.stop_and_compare().unwrap();
    let disks: Vec<String> = (0..3).map(|n| cluster.disk(n).display().to_string()).collect();
    let args = ["store", "check", "--data", "-o", "json"].into_iter().chain(disks.iter().map(String::as_str));
    let checked = cluster.try_trine(&args.collect::<Vec<_>>()).unwrap();
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    for disk in checked["disks"].as_array().unwrap() {
        let findings = disk["findings"].as_array().unwrap();
        assert!(findings.iter().all(|found| found["severity"] == "notice"), "{findings:?}");
    }
}
