//! Keys of clients, with the real binary: what they are for, what they are not for, and their end.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd, Place};
use cluster::peer::{Identity, Peer, Refused};
use cluster::{Cluster, LONG, Options, Outcome, Shape, Workload, wait_until};
use conductor_client::Client;
use conductor_model::api::VolumeMap;
use conductor_model::views::Attach;
use conductor_model::{Bytes, ShardId, ShardIndex};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use node_protocol::{IoBody, Status, op};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use wire::{Card, ClientKey, Key, Reason};

const MINE: &str = "mine";
const THEIRS: &str = "theirs";
const BLOCK: u32 = 4096;

/// Another machine, which has a client's key and not the cluster's.
struct Host {
    dir: PathBuf,
    key: ClientKey,
    /// What its key file holds.
    line: String,
}

impl Host {
    fn new(cluster: &Cluster, name: &str, more: &[&str]) -> Self {
        Self::of(cluster, name, &[&["client", "add", name], more].concat())
    }

    /// With the key that this command prints.
    fn of(cluster: &Cluster, place: &str, key: &[&str]) -> Self {
        let line = cluster.trine(key).unwrap();
        Self::with(cluster, place, &line)
    }

    /// With the key that was printed.
    fn with(cluster: &Cluster, place: &str, line: &str) -> Self {
        let dir = cluster.dir().join(place);
        fs::create_dir(&dir).unwrap();
        fs::copy(cluster.dir().join("conductor.addr"), dir.join("conductor.addr")).unwrap();
        fs::write(dir.join("client.key"), line).unwrap();
        Self { dir, key: ClientKey::from_line(line).unwrap(), line: line.trim().to_owned() }
    }

    fn trine(&self, cluster: &Cluster, args: &[&str]) -> Outcome {
        self.trine_with(cluster, &self.dir.join("client.key"), args)
    }

    fn trine_with(&self, cluster: &Cluster, key: &Path, args: &[&str]) -> Outcome {
        let (dir, key) = (self.dir.to_str().unwrap(), key.to_str().unwrap());
        cluster.try_trine(&[args, &["--dir", dir, "--key-file", key]].concat()).unwrap()
    }

    /// Sends a signal to the one target there is.
    fn signal(&self, cluster: &Cluster, signal: Signal) {
        let outcome = self.trine(cluster, &["attached", "-o", "json"]);
        let all: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let pid = i32::try_from(all[0]["pid"].as_i64().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    fn place(&self) -> Place {
        Place::Unix(self.dir.join("nbd"))
    }

    fn attach(&self, cluster: &Cluster, volume: &str) -> Outcome {
        let nbd = format!("unix:{}", self.dir.join("nbd").display());
        // One name with every key of a client, whatever directory that is in here.
        self.trine(cluster, &["attach", volume, "--nbd", &nbd, "--client-name", volume])
    }

    fn nbd(&self, volume: &str) -> Nbd {
        Nbd::connect(&self.place(), volume).unwrap()
    }

    fn conductor(&self, cluster: &Cluster) -> Client {
        Client::new(&cluster.conductor_address().unwrap()).unwrap().with_key(Key::Client(self.key.clone())).unwrap()
    }

    /// Somebody with this key who makes his own Hellos.
    fn who(&self, map: &VolumeMap) -> Identity {
        let name = format!("{}@peer", self.key.card.name);
        let card = Some(self.key.card.clone());
        Identity { key: Key::Client(self.key.clone()), card, ..Identity::of([0; 32], &name, map) }
    }
}

fn done(outcome: &Outcome) {
    assert_eq!(outcome.code, 0, "{outcome:?}");
}

fn refused(outcome: &Outcome, word: &str) {
    assert!(outcome.code == 5 && outcome.stderr.contains(word), "{outcome:?} instead of {word:?}");
}

fn write(of: u64) -> Command {
    Command::Write { offset: 0, bytes: of.to_le_bytes().repeat(BLOCK as usize / 8) }
}

fn read(nbd: &mut Nbd) -> u64 {
    let bytes = nbd.call(&Command::Read { offset: 0, len: BLOCK }, LONG).unwrap().unwrap();
    let word = bytes[..8].to_owned();
    assert!(bytes.chunks(8).all(|other| other == word), "it is torn");
    u64::from_le_bytes(word.try_into().unwrap())
}

fn body(map: &VolumeMap) -> IoBody {
    IoBody::new(ShardId { volume: map.volume, index: ShardIndex(0) }, map.shards[0].epoch, 1, Bytes(0), BLOCK)
}

/// How a node answers a Hello. One that has not heard of the key yet says that it is busy, and is asked again, as every client does.
fn hello(map: &VolumeMap, who: &Identity) -> Result<Peer, Refused> {
    let deadline = Instant::now() + LONG;
    loop {
        let answer = Peer::connect(map.shards[0].endpoint, who).unwrap();
        if !matches!(answer, Err(Refused::Rejected(Reason::Busy))) || Instant::now() >= deadline {
            return answer;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn start() -> Cluster {
    let cluster = Cluster::start(Shape::default()).unwrap();
    for volume in [MINE, THEIRS] {
        cluster.create(volume, 8, 4).unwrap();
    }
    cluster
}

/// Starts the conductor again and waits until it answers.
fn back(cluster: &mut Cluster) {
    cluster.conductor.start().unwrap();
    wait_until("the conductor is back", LONG, || Ok(cluster.try_trine(&["status"])?.code == 0)).unwrap();
}

/// Everything that is written down or shown, but the key's own file.
fn is_nowhere(cluster: &Cluster, host: &Host) {
    let secret = host.line.split(' ').nth(2).unwrap();
    assert_eq!(secret.len(), 64);
    let holds = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    let mut looked_at = 0;
    let mut left = vec![cluster.dir().to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if !path.ends_with("client.key")
            && path.metadata().is_ok_and(|about| about.is_file() && about.len() < 4 << 20)
        {
            // A command's own file may go while we look.
            let Ok(bytes) = fs::read(&path) else { continue };
            looked_at += 1;
            assert!(!holds(&bytes, secret.as_bytes()) && !holds(&bytes, &host.key.secret), "{}", path.display());
        }
    }
    assert!(looked_at > 6, "logs, records and the conductor's state");
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    assert!(processes.filter(|line| holds(line, b"trine")).all(|line| !holds(&line, secret.as_bytes())));
    for args in [&["client", "list"][..], &["client", "list", "-o", "json"], &["events"], &["status", "-o", "json"]] {
        assert!(!cluster.trine(args).unwrap().contains(secret), "{args:?}");
    }
}

#[test]
fn a_key_is_for_its_volumes_and_administers_nothing() {
    let mut cluster = start();
    let host = Host::new(&cluster, "web1", &["--volumes", MINE]);
    refused(&cluster.try_trine(&["client", "add", "web1", "--volumes", MINE]).unwrap(), "there is a key web1 already");
    let unknown = cluster.try_trine(&["client", "add", "web2", "--volumes", "nothing"]).unwrap();
    assert_eq!(unknown.code, 4, "{unknown:?}");

    done(&host.attach(&cluster, MINE));
    let mut nbd = host.nbd(MINE);
    assert!(nbd.call(&write(7), LONG).unwrap().is_ok());
    assert_eq!(read(&mut nbd), 7);
    let listed = cluster.trine(&["client", "list"]).unwrap();
    let row = |begin: &str| listed.lines().find(|line| line.starts_with(begin)).unwrap_or_default().to_owned();
    assert!(row("web1@").contains(" mine ") && row("web1@").contains("exclusive"), "{listed}");
    assert!(row("web1 ").contains(" mine ") && row("web1 ").contains("read-write"), "{listed}");
    is_nowhere(&cluster, &host);

    // At the conductor.
    let elsewhere = format!("unix:{}", host.dir.join("nbd.theirs").display());
    refused(&host.trine(&cluster, &["attach", THEIRS, "--nbd", &elsewhere]), "the key web1 is not for volume theirs");
    let snapshot = format!("{MINE}@s");
    let administration: [&[&str]; 10] = [
        &["status"],
        &["volume", "list"],
        &["volume", "create", "new", "--size", "4M"],
        &["volume", "delete", MINE, "--yes", "--force"],
        &["volume", "resize", MINE, "--size", "16M"],
        &["snapshot", "create", &snapshot],
        &["node", "list"],
        &["client", "list"],
        &["client", "evict", "web1@peer", "--yes"],
        &["client", "remove", "web1", "--yes"],
    ];
    for args in administration {
        refused(&host.trine(&cluster, args), "the key web1 administers nothing");
    }
    let as_another = Attach {
        client: "web2@peer".to_owned(),
        read_only: false,
        shared: false,
        force: true,
        host: String::new(),
        resumes: None,
    };
    let kind = |error: conductor_client::Error| error.kind().map(str::to_owned);
    let conductor = host.conductor(&cluster);
    assert_eq!(conductor.attach(MINE, &as_another).map_err(kind), Err(Some("forbidden".to_owned())));
    assert_eq!(conductor.map(THEIRS).map_err(kind), Err(Some("forbidden".to_owned())));
    assert_eq!(
        conductor.map("nothing").map_err(kind),
        Err(Some("forbidden".to_owned())),
        "not even that there is none"
    );
    let strange = host.dir.join("strange.key");
    fs::write(&strange, "00".repeat(32)).unwrap();
    refused(&host.trine_with(&cluster, &strange, &["status"]), "the key is not of this cluster");
    fs::remove_file(&strange).unwrap();
    let keyless = cluster.dir().join("keyless");
    let conductor = cluster.conductor_address().unwrap();
    let nobody = cluster.try_trine(&["status", "--conductor", &conductor, "--dir", keyless.to_str().unwrap()]).unwrap();
    refused(&nobody, "answers those with a key of this cluster");

    // At a node, by whoever makes his own Hellos.
    let [mine, theirs] = [MINE, THEIRS].map(|volume| cluster.conductor().unwrap().map(volume).unwrap());
    let own = host.who(&mine);
    let is = |map: &VolumeMap, who: &Identity| hello(map, who).map(drop);
    assert_eq!(is(&theirs, &host.who(&theirs)), Err(Refused::Rejected(Reason::Denied)));
    let volumes = [mine.volume.0, theirs.volume.0].into_iter().collect();
    let wider = Identity { card: Some(Card { volumes, ..host.key.card.clone() }), ..host.who(&theirs) };
    assert_eq!(is(&theirs, &wider), Err(Refused::Rejected(Reason::Unauthenticated)), "a card that was changed");
    let without = Identity { card: None, ..own.clone() };
    assert_eq!(is(&mine, &without), Err(Refused::Rejected(Reason::Unauthenticated)), "as if it had the cluster's key");
    let forged = [mine.attach.0, mine.attach.0 + 1, u64::MAX >> 1];
    for generation in forged {
        let who = Identity { generation, incarnation: generation, ..own.clone() };
        assert_eq!(is(&mine, &who), Err(Refused::Rejected(Reason::Denied)), "{generation}: none was given to it");
    }
    assert!(nbd.call(&write(8), LONG).unwrap().is_ok(), "whoever was given one has not been fenced by that");
    assert_eq!(read(&mut nbd), 8);
    let as_itself = Attach { client: own.name.clone(), ..as_another };
    let given = host.conductor(&cluster).attach(MINE, &as_itself).unwrap();
    let own = host.who(&given);
    let higher = Identity { generation: own.generation + 1, ..own.clone() };
    assert_eq!(is(&given, &higher), Err(Refused::Rejected(Reason::Denied)), "what was given is for one generation");
    let of_another = Identity { name: "web1@elsewhere".to_owned(), ..own.clone() };
    assert_eq!(is(&given, &of_another), Err(Refused::Rejected(Reason::Denied)), "and for one client");
    cluster.conductor.kill().unwrap();
    let mut peer = hello(&given, &own).expect("what was given is believed without the conductor");
    back(&mut cluster);
    assert!(nbd.call(&write(9), LONG).unwrap().is_err(), "a newer attachment has taken the volume");
    let foreign = IoBody::new(
        ShardId { volume: theirs.volume, index: ShardIndex(0) },
        theirs.shards[0].epoch,
        1,
        Bytes(0),
        BLOCK,
    );
    let answer = peer.ask(op::WRITE, &foreign, &[9; BLOCK as usize]).unwrap();
    assert_ne!(answer, Some(Status::Ok), "another volume's shard over a session that was let in");
    drop(peer);
    done(&host.trine(&cluster, &["detach", MINE]));
}

#[test]
fn a_key_for_reading_writes_nothing() {
    let cluster = start();
    let host = Host::new(&cluster, "rd", &["--volumes", "mine,theirs", "--read-only"]);
    done(&host.attach(&cluster, MINE));
    let mut nbd = host.nbd(MINE);
    assert_eq!(read(&mut nbd), 0);
    assert!(nbd.call(&write(7), LONG).unwrap().is_err());
    let conductor = host.conductor(&cluster);
    let attach = |read_only| Attach {
        client: "rd@peer".to_owned(),
        read_only,
        shared: false,
        force: true,
        host: String::new(),
        resumes: None,
    };
    let why = conductor.attach(THEIRS, &attach(false)).unwrap_err().to_string();
    assert!(why.contains("the key rd is for reading alone"), "{why}");
    let owner = Host::new(&cluster, "wr", &["--volumes", THEIRS]);
    done(&owner.attach(&cluster, THEIRS));
    let mut writer = owner.nbd(THEIRS);
    assert!(writer.call(&write(7), LONG).unwrap().is_ok());
    let refused = conductor.attach(THEIRS, &attach(true)).unwrap_err();
    assert_eq!(refused.kind(), Some("forbidden"), "{refused}");
    assert!(refused.to_string().contains("the key rd, which is for reading alone, takes it from nobody"), "{refused}");
    assert!(writer.call(&write(8), LONG).unwrap().is_ok(), "nothing was taken from who writes");
    assert_eq!(read(&mut writer), 8);
    done(&owner.trine(&cluster, &["detach", THEIRS]));
    let map = conductor.attach(THEIRS, &attach(true)).unwrap();
    let writes = host.who(&map);
    assert_eq!(hello(&map, &writes).map(drop), Err(Refused::Rejected(Reason::Denied)), "it says that it writes");
    let mut peer = hello(&map, &Identity { read_only: true, ..writes }).unwrap();
    let data = [9; BLOCK as usize];
    assert_eq!(peer.ask(op::WRITE, &body(&map), &data).unwrap(), Some(Status::Denied));
    assert_eq!(peer.ask(op::WRITE_ZEROES, &body(&map), &[]).unwrap(), Some(Status::Denied));
    assert_eq!(peer.ask(op::DISCARD, &body(&map), &[]).unwrap(), Some(Status::Denied));
    assert_eq!(peer.ask(op::READ, &body(&map), &[]).unwrap(), Some(Status::Ok));
    done(&host.trine(&cluster, &["detach", MINE]));
}

#[test]
fn a_key_is_renewed_beside_the_former_one_which_ends_when_its_time_is_over() {
    let cluster = start();
    let unknown = cluster.try_trine(&["client", "rotate", "web1"]).unwrap();
    assert!(unknown.code == 4 && unknown.stderr.contains("no key web1"), "{unknown:?}");
    let first = Host::new(&cluster, "web1", &["--volumes", MINE]);
    done(&first.attach(&cluster, MINE));
    let mut nbd = first.nbd(MINE);
    assert!(nbd.call(&write(1), LONG).unwrap().is_ok());
    let second = Host::of(&cluster, "second", &["client", "rotate", "web1", "--grace", "1h"]);
    assert!(second.key.card.serial > first.key.card.serial && second.key.secret != first.key.secret);
    assert_eq!(second.key.card.volumes, first.key.card.volumes);
    let listed = cluster.trine(&["client", "list"]).unwrap();
    assert_eq!(listed.matches("web1 ").count(), 1, "one line: {listed}");
    assert!(listed.contains("FORMER UNTIL"), "{listed}");
    is_nowhere(&cluster, &second);
    // Who uses the former one, as nodes tell every now and then.
    let used_by = |cluster: &Cluster| {
        let clients = cluster.json(&["client", "list"]).unwrap();
        let web1 = clients.as_array().unwrap().iter().find(|client| client["name"] == "web1").unwrap().clone();
        let former = web1["key"]["former"].as_array().unwrap().clone();
        former[0]["used_by"].as_array().map_or(0, Vec::len)
    };
    wait_until("the target with the former key is named", LONG, || Ok(used_by(&cluster) == 1)).unwrap();
    let shown = cluster.trine(&["client", "show", "web1"]).unwrap();
    assert!(shown.contains("FORMER USED BY") && shown.contains("web1@"), "{shown}");

    // What is attached goes on; whoever comes with the new key takes its place, as the same client would.
    assert!(nbd.call(&write(2), LONG).unwrap().is_ok());
    done(&second.attach(&cluster, MINE));
    let mut again = second.nbd(MINE);
    assert_eq!(read(&mut again), 2);
    assert!(again.call(&write(3), LONG).unwrap().is_ok());
    assert!(nbd.call(&write(4), LONG).unwrap().is_err(), "there is one attachment");
    wait_until("nobody uses the former key any more", LONG, || Ok(used_by(&cluster) == 0)).unwrap();
    done(&first.trine(&cluster, &["detach", MINE]));

    // At once means all that were given out before; after a moment, all that hold yet.
    let third = Host::of(&cluster, "third", &["client", "rotate", "web1", "--grace", "0s", "--yes"]);
    assert!(again.call(&write(5), LONG).unwrap().is_err(), "it was cut off");
    let why = second.conductor(&cluster).map(MINE).unwrap_err().to_string();
    assert!(why.contains("the key web1 was removed"), "{why}");
    done(&second.trine(&cluster, &["detach", MINE]));
    let attach = |name: &str| Attach {
        client: name.to_owned(),
        read_only: false,
        shared: false,
        force: true,
        host: String::new(),
        resumes: None,
    };
    let map = third.conductor(&cluster).attach(MINE, &attach("web1@peer")).unwrap();
    let outcome = |host: &Host| hello(&map, &Identity { incarnation: 9, ..host.who(&map) }).map(drop);
    let fenced = || Err(Refused::Rejected(Reason::Fenced));
    assert_eq!((outcome(&first), outcome(&second), outcome(&third)), (fenced(), fenced(), Ok(())));
    let fourth = Host::of(&cluster, "fourth", &["client", "rotate", "web1", "--grace", "1h"]);
    assert_eq!((outcome(&third), outcome(&fourth)), (Ok(()), Ok(())));
    let fifth = Host::of(&cluster, "fifth", &["client", "rotate", "web1", "--grace", "1s"]);
    let over = || Ok(outcome(&third) == fenced() && outcome(&fourth) == fenced());
    wait_until("the third and the fourth are over", LONG, over).unwrap();
    assert_eq!(outcome(&fifth), Ok(()));
    let sixth = Host::of(&cluster, "sixth", &["client", "rotate", "web1", "--grace", "1h"]);
    assert_eq!((outcome(&fifth), outcome(&sixth)), (Ok(()), Ok(())));
    let removed = cluster.try_trine(&["client", "remove", "web1", "--yes"]).unwrap();
    done(&removed);
    assert_eq!((outcome(&fifth), outcome(&sixth)), (fenced(), fenced()));
}

#[test]
fn a_key_that_is_renewed_at_once_is_printed_though_nodes_may_still_take_the_former_one() {
    let mut cluster = start();
    let first = Host::new(&cluster, "web1", &["--volumes", MINE]);
    // No primary has a successor, and none confirms.
    cluster.nodes.iter_mut().for_each(|node| node.kill().unwrap());
    let renewed = cluster.try_trine(&["client", "rotate", "web1", "--grace", "0s", "--yes"]).unwrap();
    assert!(renewed.code == 6 && renewed.stderr.contains("may still serve the former one"), "{renewed:?}");
    let second = Host::with(&cluster, "second", &renewed.stdout);
    assert!(second.key.card.serial > first.key.card.serial);
    cluster.nodes.iter_mut().for_each(|node| node.start().unwrap());
    cluster.wait_alive(3).unwrap();
    refused(&first.attach(&cluster, MINE), "the key web1 was removed");
    done(&second.attach(&cluster, MINE));
    assert_eq!(read(&mut second.nbd(MINE)), 0);
    done(&second.trine(&cluster, &["detach", MINE]));
}

#[test]
fn whose_key_was_removed_hears_so_though_the_primary_that_could_fence_it_is_gone() {
    let mut cluster = start();
    let hosts = [("fresh", MINE), ("used", THEIRS)].map(|(name, v)| (Host::new(&cluster, name, &["--volumes", v]), v));
    let mut exports = hosts.each_ref().map(|(host, volume)| {
        done(&host.attach(&cluster, volume));
        host.nbd(volume)
    });
    assert!(exports[1].call(&write(1), LONG).unwrap().is_ok(), "the other one has no connection yet");
    // What stands still does not hear of what ends meanwhile.
    let nodes = hosts.each_ref().map(|(host, volume)| {
        let map = host.conductor(&cluster).map(volume).unwrap();
        host.signal(&cluster, Signal::SIGSTOP);
        done(&cluster.try_trine(&["client", "remove", &host.key.card.name, "--yes"]).unwrap());
        map.shards[0].node.0 as usize - 1
    });
    for node in BTreeSet::from(nodes) {
        cluster.nodes[node].kill().unwrap();
    }
    for ((host, volume), nbd) in hosts.iter().zip(&mut exports) {
        host.signal(&cluster, Signal::SIGCONT);
        assert!(nbd.call(&write(2), LONG).unwrap().is_err(), "{volume}");
        done(&host.trine(&cluster, &["detach", volume]));
    }
}

#[test]
fn a_removed_client_is_cut_off_under_load_and_the_honest_one_notices_nothing() {
    let mut cluster = start();
    let [good, bad] = [("good", MINE), ("bad", THEIRS)].map(|(name, v)| Host::new(&cluster, name, &["--volumes", v]));
    done(&good.attach(&cluster, MINE));
    let options = Options { place: good.place(), export: MINE.to_owned(), depth: 8, seed: 5, patience: LONG };
    let workload = Workload::start(options).unwrap();
    workload.progress(100, LONG).unwrap();
    done(&bad.attach(&cluster, THEIRS));
    let mut nbd = bad.nbd(THEIRS);
    let (tell, heard) = std::sync::mpsc::channel();
    let load = std::thread::spawn(move || {
        let (mut issued, mut acknowledged) = (0, 0);
        loop {
            issued += 1;
            if nbd.call(&write(issued), LONG).unwrap().is_err() {
                return (nbd, issued, acknowledged);
            }
            acknowledged = issued;
            let _gone = tell.send(());
        }
    });
    (0..20).for_each(|_| heard.recv_timeout(LONG).unwrap());
    let map = bad.conductor(&cluster).map(THEIRS).unwrap();

    done(&cluster.try_trine(&["client", "remove", "bad", "--yes"]).unwrap());
    // The command returns when the volume's primaries have confirmed it: from here on nothing of it is let in.
    let generations = [map.attach.0, map.attach.0 + 1, u64::MAX >> 1];
    for generation in generations {
        let who = Identity { generation, incarnation: generation, ..bad.who(&map) };
        assert_eq!(hello(&map, &who).map(drop), Err(Refused::Rejected(Reason::Fenced)), "generation {generation}");
    }
    let (mut nbd, issued, acknowledged) = load.join().unwrap();
    assert!(acknowledged >= 20);
    assert!(nbd.call(&write(u64::MAX), LONG).unwrap().is_err());
    workload.progress(100, LONG).unwrap();
    let again = cluster.try_trine(&["client", "remove", "bad", "--yes"]).unwrap();
    assert!(again.code == 4 && again.stderr.contains("no key bad"), "{again:?}");
    let kind = bad.conductor(&cluster).map(THEIRS).unwrap_err();
    assert!(kind.to_string().contains("the key bad was removed"), "{kind}");
    done(&bad.trine(&cluster, &["detach", THEIRS]));
    refused(&bad.attach(&cluster, THEIRS), "the key bad was removed");

    // A key of that name that is made anew is another one. Nobody is in its way, and it finds what was acknowledged.
    fs::rename(&bad.dir, cluster.dir().join("former")).unwrap();
    let next = Host::new(&cluster, "bad", &["--volumes", THEIRS]);
    assert!(next.key.card.serial > bad.key.card.serial && next.line != bad.line);
    done(&next.attach(&cluster, THEIRS));
    let found = read(&mut next.nbd(THEIRS));
    assert!((acknowledged..=issued).contains(&found), "{found}, {acknowledged} was acknowledged of {issued}");

    // What was removed stays so, whoever starts anew.
    cluster.conductor.kill().unwrap();
    back(&mut cluster);
    let node = map.shards[0].node.0 as usize - 1;
    let kind = bad.conductor(&cluster).map(THEIRS).unwrap_err();
    assert!(kind.to_string().contains("the key bad was removed"), "{kind}");
    cluster.wait_alive(3).unwrap();
    let (_, done_by_good) = workload.stop().unwrap();
    assert_eq!((done_by_good.lost, done_by_good.reconnects), (0, 0), "the honest client noticed nothing");
    cluster.nodes[node].kill().unwrap();
    cluster.nodes[node].start().unwrap();
    cluster.wait_alive(3).unwrap();
    let who = Identity { generation: u64::MAX >> 1, ..bad.who(&map) };
    let mut last = None;
    let told = wait_until("the restarted node knows which keys there are", LONG, || {
        // Until it listens again nobody is refused.
        let Ok(answer) = Peer::connect(map.shards[0].endpoint, &who) else { return Ok(false) };
        last = Some(answer.map(drop));
        assert!(last != Some(Ok(())), "it is let in");
        Ok(last == Some(Err(Refused::Rejected(Reason::Fenced))))
    });
    told.unwrap_or_else(|error| panic!("{error:#}: {last:?}"));
    is_nowhere(&cluster, &next);
}
