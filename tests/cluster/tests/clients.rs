//! Clients on several hosts: many that read a volume at once, one that writes, and one that is evicted.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd, Place, Stream};
use cluster::{Cluster, LONG, Outcome, Shape, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

const VOLUME: &str = "db";
const BLOCK: u32 = 4096;
/// Of 4 MiB each, so that each node is primary of some.
const SHARDS: u64 = 4;
/// Blocks that are written, all over the volume.
const BLOCKS: u64 = 64;
const FAR: u64 = SHARDS * (4 << 20) / BLOCKS;

/// Another machine, as far as records of attachments are concerned.
struct Host {
    dir: PathBuf,
    name: &'static str,
}

impl Host {
    fn new(cluster: &Cluster, name: &'static str) -> Self {
        let dir = cluster.dir().join(name);
        fs::create_dir(&dir).unwrap();
        for file in ["conductor.addr", "cluster.key"] {
            fs::copy(cluster.dir().join(file), dir.join(file)).unwrap();
        }
        Self { dir, name }
    }

    fn trine(&self, cluster: &Cluster, args: &[&str]) -> Outcome {
        cluster.try_trine(&[args, &["--dir", self.dir.to_str().unwrap()]].concat()).unwrap()
    }

    fn attach(&self, cluster: &Cluster, more: &[&str]) -> Outcome {
        let nbd = format!("unix:{}", self.dir.join("nbd").display());
        self.trine(cluster, &[&["attach", VOLUME, "--nbd", &nbd, "--client-name", self.name], more].concat())
    }

    /// A connection to what it has attached.
    fn nbd(&self) -> Nbd {
        Nbd::connect(&Place::Unix(self.dir.join("nbd")), VOLUME).unwrap()
    }

    fn detach(&self, cluster: &Cluster) {
        let outcome = self.trine(cluster, &["detach", VOLUME]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
    }

    fn state(&self, cluster: &Cluster) -> String {
        let outcome = self.trine(cluster, &["attached", "-o", "json"]);
        let all: Value = serde_json::from_str(&outcome.stdout).unwrap();
        all[0]["state"].as_str().unwrap().to_owned()
    }

    /// Sends its target a signal.
    fn signal(&self, cluster: &Cluster, signal: Signal) {
        let outcome = self.trine(cluster, &["attached", "-o", "json"]);
        let all: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let pid = i32::try_from(all[0]["pid"].as_i64().unwrap()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }
}

fn done(outcome: &Outcome) {
    assert_eq!(outcome.code, 0, "{outcome:?}");
}

fn refused(outcome: &Outcome, code: i32, word: &str) {
    assert!(outcome.code == code && outcome.stderr.contains(word), "{outcome:?}");
}

fn write(block: u64, version: u64) -> Command {
    Command::Write { offset: block * FAR, bytes: version.to_le_bytes().repeat(BLOCK as usize / 8) }
}

fn read(nbd: &mut Nbd, block: u64) -> Result<u64, u32> {
    let bytes = nbd.call(&Command::Read { offset: block * FAR, len: BLOCK }, LONG).unwrap()?;
    let word = bytes[..8].to_owned();
    assert!(bytes.chunks(8).all(|other| other == word), "block {block} is torn");
    Ok(u64::from_le_bytes(word.try_into().unwrap()))
}

fn clients(cluster: &Cluster) -> Vec<(String, String, bool)> {
    let listed = cluster.json(&["client", "list"]).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let volumes = |client: &Value| {
        let name = text(&client["name"]);
        assert!(!text(&client["host"]).is_empty());
        let held = client["volumes"].as_array().unwrap().clone();
        held.into_iter().map(move |v| (name.clone(), text(&v["volume"]), v["read_only"].as_bool().unwrap()))
    };
    listed.as_array().unwrap().iter().flat_map(volumes).collect()
}

#[test]
fn two_hosts_read_a_volume_at_once_and_a_writer_takes_it_from_them_only_by_force() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let [a, b, w] = ["a", "b", "w"].map(|name| Host::new(&cluster, name));
    done(&w.attach(&cluster, &[]));
    let mut nbd = w.nbd();
    for block in 0..BLOCKS {
        assert!(nbd.call(&write(block, block + 1), LONG).unwrap().is_ok());
    }
    refused(&a.attach(&cluster, &["--read-only"]), 5, "volume db is attached by w; --force takes it away");
    w.detach(&cluster);

    for host in [&a, &b] {
        done(&host.attach(&cluster, &["--read-only"]));
    }
    let mut readers = [a.nbd(), b.nbd()];
    for block in 0..BLOCKS {
        for nbd in &mut readers {
            assert_eq!(read(nbd, block), Ok(block + 1));
        }
    }
    assert!(readers[0].call(&write(0, 7), LONG).unwrap().is_err(), "its device refuses it");
    let held = |name: &str, read_only| (name.to_owned(), VOLUME.to_owned(), read_only);
    assert_eq!(clients(&cluster), [held("a", true), held("b", true)]);
    let shown = cluster.trine(&["volume", "list"]).unwrap();
    assert!(shown.contains("2 readers"), "{shown}");
    // Nodes tell of them every ten seconds.
    wait_until("the sessions of a", LONG, || {
        let shown = cluster.json(&["client", "show", "a"])?;
        let sessions = shown["sessions"].as_array().unwrap();
        Ok(sessions.iter().any(|s| s["of"] == VOLUME && s["read_only"] == true && s["connections"] == 1))
    })
    .unwrap();

    refused(&w.attach(&cluster, &[]), 5, "attached by a, b (read-only); --force takes it away");
    done(&w.attach(&cluster, &["--force"]));
    assert_eq!(clients(&cluster), [held("w", false)]);
    let mut nbd = w.nbd();
    assert!(nbd.call(&write(0, 100), LONG).unwrap().is_ok());
    for (host, reader) in [&a, &b].into_iter().zip(&mut readers) {
        assert!((0..BLOCKS).all(|block| read(reader, block).is_err()), "nothing is read that may be old");
        assert_eq!(host.state(&cluster), "fenced");
        host.detach(&cluster);
    }
    assert_eq!(clients(&cluster), [held("w", false)], "what was theirs is not given back by them");
    assert_eq!(read(&mut nbd, 0), Ok(100));
    w.detach(&cluster);
    assert_eq!(clients(&cluster), []);
}

#[test]
fn who_cannot_listen_takes_the_volume_from_nobody() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let [a, b] = ["a", "b"].map(|name| Host::new(&cluster, name));
    done(&a.attach(&cluster, &[]));
    let mut nbd = a.nbd();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp:{}", other.local_addr().unwrap());
    let nowhere = format!("unix:{}", b.dir.join("none/nbd").display());
    for (version, (at, word)) in (1..).zip([(&taken, "cannot listen"), (&nowhere, "make the directory first")]) {
        let attach = ["attach", VOLUME, "--nbd", at, "--client-name", b.name, "--force"];
        refused(&b.trine(&cluster, &attach), 1, word);
        assert!(nbd.call(&write(0, version), LONG).unwrap().is_ok(), "its volume is still its own");
        assert_eq!(clients(&cluster), [("a".to_owned(), VOLUME.to_owned(), false)]);
    }
    assert_eq!(a.state(&cluster), "live");
    let attached: Value = serde_json::from_str(&b.trine(&cluster, &["attached", "-o", "json"]).stdout).unwrap();
    assert_eq!(attached, Value::Array(Vec::new()), "nothing is left");
    a.detach(&cluster);
}

/// What was done to one block.
#[derive(Clone, Copy, Default)]
struct Fate {
    issued: u64,
    acknowledged: u64,
}

/// Writes all blocks in turn, some at once, until a write fails. Each block has one write in flight at most.
fn write_until_it_fails(mut nbd: Nbd, tell: &std::sync::mpsc::Sender<()>) -> (Nbd, Vec<Fate>) {
    let mut fates = vec![Fate::default(); usize::try_from(BLOCKS).unwrap()];
    for version in 1.. {
        let mut flying: Vec<(u64, usize)> = Vec::new();
        for (block, fate) in (0..).zip(&mut fates) {
            fate.issued = version;
            flying.push((nbd.submit(&write(block, version)), usize::try_from(block).unwrap()));
        }
        let mut failed = false;
        while nbd.in_flight() > 0 {
            for reply in nbd.turn(Duration::from_millis(100)).unwrap() {
                let (_, block) = *flying.iter().find(|(handle, _)| *handle == reply.handle).unwrap();
                match reply.result {
                    Ok(_) => fates[block].acknowledged = version,
                    Err(_) => failed = true,
                }
            }
        }
        if failed {
            break;
        }
        // Who waits for it may have seen enough.
        let _gone = tell.send(());
    }
    (nbd, fates)
}

#[test]
fn an_evicted_writer_fails_and_the_next_one_finds_all_that_was_acknowledged() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let [old, next] = ["old", "next"].map(|name| Host::new(&cluster, name));
    done(&old.attach(&cluster, &[]));
    let (tell, heard) = std::sync::mpsc::channel();
    let nbd = old.nbd();
    let load = std::thread::spawn(move || write_until_it_fails(nbd, &tell));
    (0..5).for_each(|_| heard.recv_timeout(LONG).unwrap());
    refused(&cluster.try_trine(&["client", "evict", "nobody", "--yes"]).unwrap(), 4, "no client nobody");
    refused(&cluster.try_trine(&["client", "show", "nobody"]).unwrap(), 4, "no client nobody");
    refused(&cluster.try_trine(&["client", "evict", "old"]).unwrap(), 2, "pass --yes");
    let said = cluster.trine(&["client", "evict", "old", "--yes"]).unwrap();
    assert_eq!(said.trim(), "old evicted from db");
    let (mut nbd, fates) = load.join().unwrap();
    assert_eq!(clients(&cluster), []);
    let events = cluster.trine(&["events"]).unwrap();
    assert!(events.contains("client old evicted from volume db"), "{events}");

    // Nobody is in the way: no --force.
    done(&next.attach(&cluster, &[]));
    let mut others = next.nbd();
    for (block, &Fate { issued, acknowledged }) in (0..).zip(&fates) {
        let found = read(&mut others, block).unwrap();
        assert!((acknowledged..=issued).contains(&found), "block {block}: {found}, {acknowledged} was acknowledged");
    }
    assert!(fates.iter().all(|fate| fate.acknowledged >= 5));
    let before: Vec<u64> = (0..BLOCKS).map(|block| read(&mut others, block).unwrap()).collect();
    for block in 0..BLOCKS {
        assert!(nbd.call(&write(block, u64::MAX), LONG).unwrap().is_err());
        assert!(read(&mut nbd, block).is_err());
    }
    wait_until("the evicted target says so", LONG, || Ok(old.state(&cluster) == "fenced")).unwrap();
    assert!((0..BLOCKS).all(|block| read(&mut others, block) == Ok(before[usize::try_from(block).unwrap()])));

    // It comes back as anybody would.
    old.detach(&cluster);
    refused(&old.attach(&cluster, &[]), 5, "attached by next");
    next.detach(&cluster);
    done(&old.attach(&cluster, &[]));
    assert_eq!(read(&mut old.nbd(), 0), Ok(before[0]));
    old.detach(&cluster);
}

/// Who asked has no target and no record then, and the volume.
#[test]
fn an_attach_that_was_not_confirmed_says_how_the_volume_is_given_up_again() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let [a, b] = ["a", "b"].map(|name| Host::new(&cluster, name));
    done(&a.attach(&cluster, &[]));
    // No primary has a successor, and none confirms.
    cluster.nodes.iter_mut().for_each(|node| node.freeze().unwrap());
    let (unconfirmed, detached) = (b.attach(&cluster, &["--force"]), b.trine(&cluster, &["detach", VOLUME]));
    cluster.nodes.iter_mut().for_each(|node| node.thaw().unwrap());
    refused(&unconfirmed, 6, "`trine client evict b` gives it up again");
    refused(
        &detached,
        4,
        "db is not attached here: `trine attached` lists what is; the conductor has it attached by b",
    );
    refused(&detached, 4, "`trine client evict b` gives it up");
    cluster.wait_alive(3).unwrap();
    done(&cluster.try_trine(&["client", "evict", "b", "--yes"]).unwrap());
    assert_eq!(clients(&cluster), []);
    a.detach(&cluster);
    refused(&b.trine(&cluster, &["detach", VOLUME]), 4, "`trine attached` lists what is\n");
    done(&b.attach(&cluster, &[]));
    b.detach(&cluster);
}

/// Its clients may still be there, and send again what was not answered.
#[test]
fn an_export_whose_target_was_killed_does_not_go_on_behind_somebody_elses_back() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let [a, b] = ["a", "b"].map(|name| Host::new(&cluster, name));
    let kill = |host: &Host| {
        host.signal(&cluster, Signal::SIGKILL);
        wait_until("the target is dead", LONG, || Ok(host.state(&cluster) == "dead")).unwrap();
    };
    done(&a.attach(&cluster, &[]));
    assert!(a.nbd().call(&write(0, 1), LONG).unwrap().is_ok());
    kill(&a);
    // Nobody had it meanwhile: it goes on.
    done(&a.attach(&cluster, &[]));
    kill(&a);
    done(&b.attach(&cluster, &["--force"]));
    assert!(b.nbd().call(&write(0, 2), LONG).unwrap().is_ok());
    refused(&a.attach(&cluster, &[]), 5, "attached by b");
    b.detach(&cluster);
    refused(&a.attach(&cluster, &[]), 5, "Give it up with `trine detach db --force`");
    assert_eq!(a.state(&cluster), "dead", "a refusal changes nothing");
    done(&a.trine(&cluster, &["detach", VOLUME]));
    done(&a.attach(&cluster, &[]));
    assert_eq!(read(&mut a.nbd(), 0), Ok(2));
    a.detach(&cluster);
}

#[test]
fn one_of_two_readers_is_evicted_and_the_other_reads_on() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let [a, b] = ["a", "b"].map(|name| Host::new(&cluster, name));
    for host in [&a, &b] {
        done(&host.attach(&cluster, &["--read-only"]));
    }
    let (mut first, mut second) = (a.nbd(), b.nbd());
    let all = |nbd: &mut Nbd| (0..BLOCKS).map(|block| read(nbd, block)).collect::<Vec<_>>();
    let zeros = vec![Ok(0); usize::try_from(BLOCKS).unwrap()];
    assert_eq!((all(&mut first), all(&mut second)), (zeros.clone(), zeros.clone()));
    // The one whose generation all readers are above.
    cluster.trine(&["client", "evict", "a", "--yes"]).unwrap();
    assert!(all(&mut first).iter().all(Result::is_err));
    assert_eq!(all(&mut second), zeros);
    a.detach(&cluster);
    done(&a.attach(&cluster, &["--read-only"]));
    let mut first = a.nbd();
    assert_eq!(all(&mut first), zeros);
    // And the one in the middle.
    cluster.trine(&["client", "evict", "a", "--yes"]).unwrap();
    assert!(all(&mut first).iter().all(Result::is_err));
    assert_eq!(all(&mut second), zeros);
    let shown = cluster.json(&["client", "show", "b"]).unwrap();
    assert_eq!((&shown["name"], &shown["volumes"][0]["read_only"]), (&"b".into(), &true.into()));
}

#[test]
fn a_volume_grows_under_its_clients() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 16, 4).unwrap();
    let place = cluster.attach(VOLUME).unwrap();
    let write = |client: &mut Nbd, offset: u64| {
        client.call(&Command::Write { offset, bytes: vec![7; BLOCK as usize] }, LONG).unwrap()
    };
    let mut before = Nbd::connect(&place, VOLUME).unwrap();
    assert_eq!(before.size, 16 << 20);
    write(&mut before, 0).unwrap();
    assert_eq!(write(&mut before, 16 << 20), Err(28), "beyond the end there is no space");
    cluster.trine(&["volume", "resize", VOLUME, "--size", "26M"]).unwrap();
    wait_until("its target knows", Duration::from_secs(20), || Ok(Nbd::connect(&place, VOLUME)?.size == 26 << 20))
        .unwrap();
    let mut after = Nbd::connect(&place, VOLUME).unwrap();
    for offset in [16 << 20, (26 << 20) - u64::from(BLOCK)] {
        write(&mut after, offset).unwrap();
        let read = Command::Read { offset, len: BLOCK };
        assert_eq!(after.call(&read, LONG).unwrap().unwrap(), vec![7; BLOCK as usize]);
        assert_eq!(before.call(&read, LONG).unwrap(), Err(22), "an export has the size that it was told with");
    }
    let past = write(&mut after, 26 << 20);
    assert_eq!(past, Err(28));
    let smaller = cluster.try_trine(&["volume", "resize", VOLUME, "--size", "20M"]).unwrap();
    assert_ne!(smaller.code, 0, "it never shrinks");
}

#[test]
fn who_uses_a_volume_that_is_deleted_by_force_hears_so_and_does_not_wait() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let w = Host::new(&cluster, "w");
    done(&w.attach(&cluster, &[]));
    let mut nbd = w.nbd();
    assert!(nbd.call(&write(0, 1), LONG).unwrap().is_ok());
    refused(&cluster.try_trine(&["volume", "delete", VOLUME, "--yes"]).unwrap(), 5, "attached");
    done(&cluster.try_trine(&["volume", "delete", VOLUME, "--yes", "--force"]).unwrap());
    // Its nodes hear of it behind the answer; until then they read what was there.
    for block in [0, BLOCKS - 1] {
        wait_until("who uses it hears so", Duration::from_secs(5), || Ok(read(&mut nbd, block).is_err())).unwrap();
    }
    // Another volume of this name is none of its business.
    cluster.create(VOLUME, SHARDS * 8, 4).unwrap();
    assert!(read(&mut nbd, 0).is_err());
    w.detach(&cluster);
}

#[test]
fn who_stood_still_while_the_volume_was_deleted_hears_so_from_nodes_that_know_nothing_of_it() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    let of_key = "of-key";
    for volume in [VOLUME, of_key] {
        cluster.create(volume, SHARDS * 4, 4).unwrap();
    }
    let [w, k] = ["w", "k"].map(|name| Host::new(&cluster, name));
    done(&w.attach(&cluster, &[]));
    // Who has a client's key is told nothing of what there is, but that a volume of its own is gone.
    let key = cluster.trine(&["client", "add", "web", "--volumes", of_key]).unwrap();
    fs::write(k.dir.join("cluster.key"), key).unwrap();
    let nbd = format!("unix:{}", k.dir.join("nbd").display());
    done(&k.trine(&cluster, &["attach", of_key, "--nbd", &nbd]));
    let mut exports =
        [(w.nbd(), &w, VOLUME), (Nbd::connect(&Place::Unix(k.dir.join("nbd")), of_key).unwrap(), &k, of_key)];
    for (nbd, host, volume) in &mut exports {
        assert!(nbd.call(&write(0, 1), LONG).unwrap().is_ok());
        host.signal(&cluster, Signal::SIGSTOP);
        done(&cluster.try_trine(&["volume", "delete", volume, "--yes", "--force"]).unwrap());
    }
    wait_until("all of it is deleted", LONG, || {
        let nodes = cluster.json(&["node", "list"])?;
        Ok(nodes.as_array().is_some_and(|nodes| nodes.iter().all(|node| node["to_delete"] == 0)))
    })
    .unwrap();
    for node in &mut cluster.nodes {
        node.kill().unwrap();
        node.start().unwrap();
    }
    cluster.wait_alive(3).unwrap();
    for (nbd, host, volume) in &mut exports {
        host.signal(&cluster, Signal::SIGCONT);
        for block in [0, BLOCKS - 1] {
            assert!(read(nbd, block).is_err(), "block {block} of {volume}");
        }
        done(&host.trine(&cluster, &["detach", volume]));
    }
}

#[test]
fn a_client_that_goes_with_a_deep_queue_over_tcp_writes_nothing_over_what_came_after_it() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 16, 4).unwrap();
    let uri = cluster.trine(&["attach", VOLUME, "--nbd", "tcp:127.0.0.1:0"]).unwrap();
    let place = Place::Tcp(uri.trim().split('/').nth(2).unwrap().parse().unwrap());
    let mut stays = Nbd::connect(&place, VOLUME).unwrap();
    let block = |byte: u8| Command::Write { offset: 0, bytes: vec![byte; BLOCK as usize] };
    // 128 writes of the same block, and nobody who waits for them. What the kernel did not take in of them used to come after the next one's.
    let mut queue = Vec::new();
    for cookie in 0..128_u64 {
        queue.extend(0x2560_9513_u32.to_be_bytes());
        queue.extend([0, 0, 0, 1]);
        queue.extend(cookie.to_be_bytes());
        queue.extend(0_u64.to_be_bytes());
        queue.extend(BLOCK.to_be_bytes());
        queue.extend([b'o'; BLOCK as usize]);
    }
    for round in 0..8 {
        let Stream::Tcp(mut goes) = Nbd::connect(&place, VOLUME).unwrap().into_stream().unwrap() else {
            panic!("TCP");
        };
        goes.write_all(&queue).unwrap();
        drop(goes);
        stays.call(&block(b'n'), LONG).unwrap().unwrap();
        // Whatever of the queue was begun is over before that was acknowledged; what comes later would show.
        std::thread::sleep(Duration::from_millis(50));
        let now = stays.call(&Command::Read { offset: 0, len: BLOCK }, LONG).unwrap().unwrap();
        assert!(now.iter().all(|byte| *byte == b'n'), "round {round}: overwritten by a client that was gone");
    }
    drop(stays);
    cluster.trine(&["detach", VOLUME]).unwrap();
}
