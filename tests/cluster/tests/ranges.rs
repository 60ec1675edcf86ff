//! Clients that share a volume, over real sockets: each writes what it holds, and a range goes to the next one when its client is gone.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd, Place};
use cluster::peer::{Identity, Peer, Refused};
use cluster::{Cluster, LONG, Outcome, Shape, wait_until};
use conductor_model::api::VolumeMap;
use conductor_model::views::Attach;
use conductor_model::{BLOCK, BlockRange, Blocks, Bytes, ShardId, ShardIndex};
use node_protocol::{IoBody, RangeBody, Status, op};
use std::fs;
use std::path::PathBuf;
use wire::Reason;

const VOLUME: &str = "db";
/// One block.
const LEN: u32 = 4096;

fn start() -> Cluster {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 4, 4).unwrap();
    cluster
}

/// Attaches as one of several, with the cluster's key.
fn attach(cluster: &Cluster, client: &str) -> VolumeMap {
    let attach = Attach {
        client: client.to_owned(),
        read_only: false,
        shared: true,
        force: false,
        host: "h".to_owned(),
        resumes: None,
    };
    cluster.conductor().unwrap().attach(VOLUME, &attach).unwrap()
}

fn who(cluster: &Cluster, client: &str, map: &VolumeMap) -> Identity {
    let incarnation = map.attach.0;
    Identity { shared: true, incarnation, ..Identity::of(cluster.key().unwrap(), client, map) }
}

/// A connection to the primary of the only shard, when it listens.
fn connect(map: &VolumeMap, who: &Identity) -> Peer {
    let mut peer = None;
    wait_until("the primary lets it in", LONG, || {
        peer = Peer::connect(map.shards[0].endpoint, who).ok().and_then(Result::ok);
        Ok(peer.is_some())
    })
    .unwrap();
    peer.unwrap()
}

fn shard(map: &VolumeMap) -> ShardId {
    ShardId { volume: map.volume, index: ShardIndex(0) }
}

fn range(map: &VolumeMap, from: u32, count: u32) -> RangeBody {
    let at = BlockRange { from: Blocks(from), count: Blocks(count) };
    RangeBody::new(shard(map), map.shards[0].epoch, at).for_writing(true)
}

/// Asked again until the primary serves and has heard of the epoch.
fn hold(peer: &mut Peer, body: &RangeBody) -> Status {
    let mut said = Status::Later;
    wait_until("the primary answers", LONG, || {
        said = peer.ask_range(op::REGISTER_RANGE, body)?.unwrap();
        Ok(said != Status::Later)
    })
    .unwrap();
    said
}

fn write(peer: &mut Peer, map: &VolumeMap, at: u32, of: u8) -> Option<Status> {
    let offset = Bytes(u64::from(at) * BLOCK as u64);
    let body = IoBody::new(shard(map), map.shards[0].epoch, 1, offset, LEN);
    peer.ask(op::WRITE, &body, &[of; BLOCK]).unwrap()
}

fn read(peer: &mut Peer, map: &VolumeMap, at: u32) -> u8 {
    let offset = Bytes(u64::from(at) * BLOCK as u64);
    let body = IoBody::new(shard(map), map.shards[0].epoch, 1, offset, LEN);
    let (_, bytes) = peer.request(op::READ, body.bytes(), &[]);
    peer.send(&bytes).unwrap();
    let frame = peer.reply().unwrap().unwrap();
    assert_eq!((frame.status(), frame.payload.len()), (Some(Status::Ok), BLOCK));
    frame.payload[0]
}

#[test]
fn two_clients_write_one_volume_each_within_what_it_holds() {
    let cluster = start();
    let (map_a, map_b) = (attach(&cluster, "a"), attach(&cluster, "b"));
    let refused = cluster.try_trine(&["attach", VOLUME, "--nbd", "tcp:127.0.0.1:0"]).unwrap();
    assert!(refused.code == 5 && refused.stderr.contains("attached by a, b (shared)"), "{refused:?}");
    let mut a = connect(&map_a, &who(&cluster, "a", &map_a));
    let mut b = connect(&map_b, &who(&cluster, "b", &map_b));
    assert_eq!(write(&mut a, &map_a, 0, 1), Some(Status::NotHeld));
    assert_eq!(hold(&mut a, &range(&map_a, 0, 512)), Status::Ok);
    assert_eq!(hold(&mut b, &range(&map_b, 511, 2)), Status::RangeTaken);
    assert_eq!(hold(&mut b, &range(&map_b, 512, 512)), Status::Ok);
    for (at, of) in [(0, 1), (511, 2)] {
        assert_eq!(write(&mut a, &map_a, at, of), Some(Status::Ok));
        assert_eq!(write(&mut b, &map_b, at, 9), Some(Status::NotHeld));
    }
    assert_eq!(write(&mut b, &map_b, 512, 3), Some(Status::Ok));
    assert_eq!(write(&mut a, &map_a, 512, 9), Some(Status::NotHeld));
    for (peer, map) in [(&mut a, &map_a), (&mut b, &map_b)] {
        assert_eq!([0, 511, 512].map(|at| read(peer, map, at)), [1, 2, 3]);
    }
    // For people; nodes tell of it every ten seconds. Who is silent for six is gone.
    wait_until("the ranges of a are shown", LONG, || {
        assert_eq!((read(&mut a, &map_a, 0), read(&mut b, &map_b, 0)), (1, 1));
        let shown = cluster.json(&["client", "show", "a"])?;
        let held = &shown["sessions"][0]["ranges"][0];
        Ok(held["offset"] == 0 && held["length"] == 2 << 20 && held["write"] == true && held["held"] == true)
    })
    .unwrap();
    assert_eq!(cluster.json(&["client", "show", "a"]).unwrap()["volumes"][0]["shared"], true);
    let listed = cluster.json(&["volume", "ranges", VOLUME]).unwrap();
    let row = &listed[0];
    assert_eq!(
        (&row["client"], &row["offset"], &row["length"]),
        (&"a".into(), &0.into(), &(2 << 20).into()),
        "{listed}"
    );
    assert_eq!((&row["write"], &row["held"]), (&true.into(), &true.into()), "{listed}");
    assert!(cluster.trine(&["volume", "ranges", VOLUME]).unwrap().contains("held"));
    assert_eq!(cluster.try_trine(&["volume", "ranges", "none"]).unwrap().code, 4);
    // b waits for what a holds, and has it as soon as a is gone, however it went.
    let patient = range(&map_b, 0, 512).waiting(20_000);
    let (_, bytes) = b.request(op::REGISTER_RANGE, patient.bytes(), &[]);
    b.send(&bytes).unwrap();
    drop(a);
    assert_eq!(b.reply().unwrap().unwrap().status(), Some(Status::Ok));
    assert_eq!(write(&mut b, &map_b, 0, 4), Some(Status::Ok));
    let mut a = connect(&map_a, &who(&cluster, "a", &map_a));
    assert_eq!(write(&mut a, &map_a, 0, 9), Some(Status::NotHeld), "it has to ask again");
    assert_eq!(hold(&mut a, &range(&map_a, 0, 512).held_before(true)), Status::RangeTaken);
    assert_eq!(read(&mut a, &map_a, 0), 4);
    // And when it is evicted, before the command returns.
    cluster.trine(&["client", "evict", "b", "--yes"]).unwrap();
    assert_eq!(hold(&mut a, &range(&map_a, 0, 1024)), Status::Ok);
    let again = Peer::connect(map_b.shards[0].endpoint, &who(&cluster, "b", &map_b)).unwrap();
    assert_eq!(again.map(drop), Err(Refused::Rejected(Reason::Fenced)));
    assert_eq!(write(&mut a, &map_a, 512, 5), Some(Status::Ok));
}

#[test]
fn what_was_held_at_a_killed_primary_is_held_at_the_next_one() {
    let mut cluster = start();
    let (mut map, mut map_b) = (attach(&cluster, "a"), attach(&cluster, "b"));
    let mut a = connect(&map, &who(&cluster, "a", &map));
    assert_eq!(hold(&mut a, &range(&map, 0, 512)), Status::Ok);
    assert_eq!(write(&mut a, &map, 0, 1), Some(Status::Ok));
    let primary = map.shards[0].node;
    cluster.nodes[primary.0 as usize - 1].kill().unwrap();
    wait_until("the next primary lets client a hold it", LONG, || {
        map.shards = cluster.conductor()?.map(VOLUME)?.shards;
        if map.shards[0].node == primary {
            return Ok(false);
        }
        a = connect(&map, &who(&cluster, "a", &map));
        let said = hold(&mut a, &range(&map, 0, 512).held_before(true));
        // Before it serves there may be another epoch, without the node that was killed.
        assert!(matches!(said, Status::Ok | Status::StaleEpoch), "{said:?}");
        Ok(said == Status::Ok)
    })
    .unwrap();
    map_b.shards.clone_from(&map.shards);
    let mut b = connect(&map_b, &who(&cluster, "b", &map_b));
    assert_eq!(write(&mut a, &map, 0, 2), Some(Status::Ok));
    assert_eq!(hold(&mut b, &range(&map_b, 0, 512)), Status::RangeTaken);
    let (_, bytes) = b.request(op::REGISTER_RANGE, range(&map_b, 0, 512).waiting(20_000).bytes(), &[]);
    b.send(&bytes).unwrap();
    assert_eq!(write(&mut a, &map, 511, 3), Some(Status::Ok));
    drop(a);
    assert_eq!(b.reply().unwrap().unwrap().status(), Some(Status::Ok));
    assert_eq!([0, 511].map(|at| read(&mut b, &map_b, at)), [2, 3]);
    assert_eq!(write(&mut b, &map_b, 0, 4), Some(Status::Ok));
}

/// Another machine, with a target of its own.
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

    fn attach(&self, cluster: &Cluster, more: &[&str]) -> Outcome {
        let (nbd, dir) = (format!("unix:{}", self.dir.join("nbd").display()), self.dir.to_str().unwrap());
        let args = ["attach", VOLUME, "--nbd", &nbd, "--client-name", self.name, "--dir", dir];
        cluster.try_trine(&[&args, more].concat()).unwrap()
    }

    fn detach(&self, cluster: &Cluster) {
        let outcome = cluster.try_trine(&["detach", VOLUME, "--dir", self.dir.to_str().unwrap()]).unwrap();
        assert_eq!(outcome.code, 0, "{outcome:?}");
    }

    fn nbd(&self) -> Nbd {
        Nbd::connect(&Place::Unix(self.dir.join("nbd")), VOLUME).unwrap()
    }
}

fn put(nbd: &mut Nbd, at: u64, of: u8) -> bool {
    nbd.call(&Command::Write { offset: at, bytes: vec![of; BLOCK] }, LONG).unwrap().is_ok()
}

fn get(nbd: &mut Nbd, at: u64) -> Option<u8> {
    let bytes = nbd.call(&Command::Read { offset: at, len: LEN }, LONG).unwrap().ok()?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "it is torn");
    Some(bytes[0])
}

const MIB: u64 = 1 << 20;

#[test]
fn two_targets_share_a_volume_through_the_loss_of_a_primary() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 16, 4).unwrap();
    let [left, right] = ["left", "right"].map(|name| Host::new(&cluster, name));
    let done = |outcome: Outcome| assert_eq!(outcome.code, 0, "{outcome:?}");
    done(left.attach(&cluster, &["--shared", "--range", "write:0+8M"]));
    let refused = right.attach(&cluster, &["--shared", "--range", "write:7M+9M"]);
    assert!(refused.code == 5 && refused.stderr.contains("another client holds a range"), "{refused:?}");
    done(right.attach(&cluster, &["--shared", "--range", "write:8M+4M,read:12M+4M"]));
    let [mut l, mut r] = [left.nbd(), right.nbd()];
    // The first and last block of each shard, of what one's own is.
    let (lefts, rights) = ([0, 4 * MIB - 4096, 4 * MIB, 8 * MIB - 4096], [8 * MIB, 12 * MIB - 4096]);
    for (n, at) in (1..).zip(lefts) {
        assert!(put(&mut l, at, n) && !put(&mut r, at, 99), "{at}");
    }
    for (n, at) in (11..).zip(rights) {
        assert!(put(&mut r, at, n) && !put(&mut l, at, 99), "{at}");
    }
    for at in [12 * MIB, 16 * MIB - 4096] {
        assert!(!put(&mut l, at, 99) && !put(&mut r, at, 99), "nobody holds it for writing");
    }
    let all = |nbd: &mut Nbd| [&lefts[..], &rights].concat().into_iter().map(|at| get(nbd, at)).collect::<Vec<_>>();
    let expected = [1, 2, 3, 4, 11, 12].map(Some);
    assert_eq!((all(&mut l), all(&mut r)), (expected.to_vec(), expected.to_vec()));

    // Each of three nodes is primary of some of four shards: what was there goes on elsewhere, under the same ranges.
    cluster.nodes[0].kill().unwrap();
    for (n, at) in (21..).zip(lefts) {
        assert!(put(&mut l, at, n), "{at}");
    }
    for (n, at) in (31..).zip(rights) {
        assert!(put(&mut r, at, n) && !put(&mut l, at, 99), "{at}");
    }
    let expected = [21, 22, 23, 24, 31, 32].map(Some);
    assert_eq!((all(&mut l), all(&mut r)), (expected.to_vec(), expected.to_vec()));
    cluster.nodes[0].start().unwrap();
    cluster.wait_alive(3).unwrap();

    // One waits for what the other one gives back by detaching.
    right.detach(&cluster);
    let dir = right.dir.to_str().unwrap().to_owned();
    let nbd = format!("unix:{dir}/nbd");
    let args = ["attach", VOLUME, "--nbd", &nbd, "--client-name", "right", "--dir", &dir, "--shared"];
    let waits = cluster.begin(&[&args[..], &["--range", "write:0+16M", "--range-wait", "20s"]].concat()).unwrap();
    wait_until("it is attached", LONG, || {
        let clients = cluster.json(&["client", "list"])?;
        Ok(clients.as_array().is_some_and(|all| all.iter().any(|client| client["name"] == "right")))
    })
    .unwrap();
    assert!(put(&mut l, 0, 41));
    left.detach(&cluster);
    done(waits.end().unwrap());
    let mut r = right.nbd();
    assert!(get(&mut r, 0) == Some(41) && put(&mut r, 0, 42) && put(&mut r, 15 * MIB, 43));
    right.detach(&cluster);
    done(left.attach(&cluster, &[]));
    assert_eq!((get(&mut left.nbd(), 0), get(&mut left.nbd(), 15 * MIB)), (Some(42), Some(43)));
    left.detach(&cluster);
}
