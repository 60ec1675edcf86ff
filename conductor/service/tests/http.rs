//! The conductor as others meet it: over HTTP on a loopback port, restarted, interrupted and talked nonsense to.
#![allow(clippy::unwrap_used, reason = "a test")]

use conductor_client::{Client, Error};
use conductor_model::api::{
    DiskReport, Heartbeat, MembershipAnswer, MembershipChange, MembershipRequest, Order, OrderReport, OrderState,
    Register, Report,
};
use conductor_model::events::Happened;
use conductor_model::views::{
    Attach, CopyRange, Detach, Health, NewVolume, Scrub, ScrubState, ScrubVerb, SnapshotInfo, SnapshotState,
    VolumeState,
};
use conductor_model::views::{Duty, NewCopies};
use conductor_model::{AttachGeneration, Bytes, Configuration, DiskId, Epoch, NodeId, OpenId, OrderId};
use conductor_service::{Options, run};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A directory of one test's own, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trine-conductor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
    fn store(&self) -> PathBuf {
        self.0.join("conductor.redb")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Conductor {
    client: Client,
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), conductor_service::Error>>>,
}

impl Conductor {
    fn start(store: &Path) -> Self {
        Self::try_start(store).unwrap()
    }

    fn try_start(store: &Path) -> Result<Self, conductor_service::Error> {
        Self::start_at("127.0.0.1:0".parse().unwrap(), store)
    }

    fn start_at(listen: SocketAddr, store: &Path) -> Result<Self, conductor_service::Error> {
        let options = Options {
            listen,
            store: store.to_owned(),
            plaintext: false,
            scrub_every: None,
            replace_after: Duration::from_secs(600),
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let until = async { drop(stopped.await) };
            runtime.block_on(run(options, move |address| ready.send(address).unwrap(), until))
        });
        match address.recv() {
            Ok(address) => {
                let client = Client::new(&address.to_string()).unwrap();
                Ok(Self { client, address, stop: Some(stop), thread: Some(thread) })
            }
            Err(_) => Err(thread.join().unwrap().unwrap_err()),
        }
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }

    /// Sends bytes as they are and reads all that comes back.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        let answer = self.raw(format!("{head}{body}").as_bytes());
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

fn registration(node: u32, open: u64) -> Register {
    let disk = DiskReport {
        disk: DiskId(u64::MAX - u64::from(node)),
        open: OpenId(open),
        endpoint: format!("127.0.0.1:{}", 9000 + node).parse().unwrap(),
        capacity: Bytes(1 << 40),
        used: Bytes(0),
        copies: Vec::new(),
    };
    Register { node: NodeId(node), host: format!("host{node}"), disks: vec![disk] }
}

fn heartbeat(node: u32, open: u64, after: u64) -> Heartbeat {
    let disks = vec![(DiskId(u64::MAX - u64::from(node)), OpenId(open), Bytes(5))];
    Heartbeat {
        node: NodeId(node),
        after,
        disks,
        troubles: Vec::new(),
        dropped: Vec::new(),
        copies: Vec::new(),
        integrity: Vec::new(),
        filling: Vec::new(),
    }
}

fn three_nodes(client: &Client) {
    for node in 1..=3 {
        client.register(&registration(node, 1)).unwrap();
    }
}

fn small(name: &str, size: u64) -> NewVolume {
    NewVolume { shard_size: Bytes(MIB), ..NewVolume::new(name, Bytes(size)) }
}

fn born(config: &Configuration) -> MembershipRequest {
    MembershipRequest { shard: config.shard, epoch: config.epoch, by: config.primary, change: MembershipChange::Born }
}

fn attach(client: &str, force: bool) -> Attach {
    Attach { client: client.to_owned(), read_only: false, force }
}

#[test]
fn a_volume_lives_and_dies_over_http() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = &conductor.client;
    let refused = client.create_volume(&small("db", MIB)).unwrap_err();
    assert_eq!(refused.to_string(), "volume needs 3 nodes, none is up");
    three_nodes(client);
    assert_eq!(client.nodes().unwrap().len(), 3);
    assert_eq!(client.node(NodeId(2)).unwrap().host, "host2");
    assert_eq!(client.node(NodeId(9)).unwrap_err().kind(), Some("no-node"));

    assert_eq!(client.create_volume(&small("db", 3 * MIB)).unwrap().shards, 3);
    assert_eq!(client.create_volume(&small("db", MIB)).unwrap_err().kind(), Some("volume-exists"));
    assert_eq!(client.status().unwrap().health, Health::Waiting);
    let shards = client.volume("db").unwrap().shards;
    let answers = client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
    assert!(answers.iter().all(|a| matches!(a, MembershipAnswer::Granted(c) if c.born && c.epoch.0 == 2)));
    assert_eq!(client.status().unwrap().health, Health::Healthy);
    assert_eq!(client.resize_volume("db", Bytes(5 * MIB)).unwrap().shards, 5);

    let map = client.attach("db", &attach("web1", false)).unwrap();
    assert_eq!((map.attach, map.shards.len(), map.clone()), (AttachGeneration(1), 5, client.map("db").unwrap()));
    assert_eq!(client.attach("db", &attach("web2", false)).unwrap_err().kind(), Some("attached"));
    assert_eq!(client.delete_volume("db", false).unwrap_err().kind(), Some("attached"));
    client.detach("db", &Detach { client: "web1".to_owned(), generation: map.attach }).unwrap();
    client.delete_volume("db", false).unwrap();
    assert_eq!(client.volume("db").unwrap_err().kind(), Some("no-volume"));
    for node in 1..=3 {
        let told = client.heartbeat(&heartbeat(node, 1, 0)).unwrap();
        assert_eq!(told.drop.len(), 5);
        assert_eq!(client.volumes().unwrap()[0].state, VolumeState::Deleting);
        client.heartbeat(&Heartbeat { dropped: told.drop, ..heartbeat(node, 1, told.version) }).unwrap();
    }
    assert!(client.volumes().unwrap().is_empty());
    assert!(client.openapi().unwrap()["paths"].is_object());
    conductor.stop();
}

#[test]
fn a_restart_keeps_everything_and_the_commit_number_grows() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    conductor.client.create_volume(&small("db", 4 * MIB)).unwrap();
    conductor.client.attach("db", &attach("web1", false)).unwrap();
    let (version, map) = (conductor.client.version().unwrap(), conductor.client.map("db").unwrap());
    let shards = conductor.client.volume("db").unwrap().shards;
    conductor.stop();

    let mut conductor = Conductor::start(&scratch.store());
    let client = &conductor.client;
    let began = client.version().unwrap();
    assert_eq!((began.cluster, began.commit >= version.commit), (version.cluster, true));
    assert_eq!((client.map("db").unwrap(), client.volume("db").unwrap().shards), (map, shards));
    assert_eq!(client.attach("db", &attach("web2", false)).unwrap_err().kind(), Some("attached"));
    client.heartbeat(&heartbeat(1, 1, version.commit)).unwrap();
    assert_eq!(client.attach("db", &attach("web1", false)).unwrap().attach, AttachGeneration(2));
    assert!(client.version().unwrap().commit > began.commit);
    conductor.stop();
}

#[test]
fn a_command_whose_answer_was_lost_can_be_asked_again() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", MIB)).unwrap();
    let first = client.volume("db").unwrap().shards.remove(0);
    let commit = client.version().unwrap().commit;

    let body = serde_json::to_string(&[born(&first)]).unwrap();
    let mut stream = TcpStream::connect(conductor.address).unwrap();
    let head = format!("POST /v1/membership HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    while client.version().unwrap().commit == commit {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    // The file as a killed conductor leaves it: never closed.
    let killed = scratch.0.join("killed.redb");
    std::fs::copy(scratch.store(), &killed).unwrap();
    conductor.stop();

    let mut conductor = Conductor::start(&killed);
    let answers = conductor.client.membership(&[born(&first), born(&first)]).unwrap();
    for answer in answers {
        let MembershipAnswer::Stale(current) = answer else { panic!("{answer:?}") };
        assert_eq!((current.epoch.0, current.born), (2, true));
    }
    conductor.stop();
}

#[test]
fn a_heartbeat_is_held_until_there_is_news() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    let version = client.heartbeat(&heartbeat(1, 1, 0)).unwrap().version;

    let start = Instant::now();
    assert!(client.heartbeat(&heartbeat(1, 1, version)).unwrap().assignments.is_empty());
    assert!(start.elapsed() >= Duration::from_millis(450), "held: {:?}", start.elapsed());

    let waiting = client.clone();
    let held = std::thread::spawn(move || (waiting.heartbeat(&heartbeat(1, 1, version)).unwrap(), Instant::now()));
    std::thread::sleep(Duration::from_millis(100));
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    let (news, _) = held.join().unwrap();
    assert_eq!(news.assignments.len(), 1);

    let error = client.heartbeat(&heartbeat(1, 2, 0)).unwrap_err();
    assert!(error.is_unknown_node(), "{error:?}");
    assert_eq!(client.heartbeat(&heartbeat(1, 1, u64::MAX)).unwrap_err().kind(), Some("behind"));
    conductor.stop();
}

#[test]
fn a_forced_attach_waits_for_the_primaries() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    client.attach("db", &attach("web1", false)).unwrap();

    let forcing = client.clone();
    let forced = std::thread::spawn(move || forcing.attach("db", &attach("web2", true)));
    let mut after = [0; 4];
    while !forced.is_finished() {
        for node in 1..=3 {
            let told = client.heartbeat(&heartbeat(node, 1, after[node as usize])).unwrap();
            after[node as usize] = told.version;
        }
    }
    assert_eq!(forced.join().unwrap().unwrap().attach, AttachGeneration(2));
    // Nobody confirms: said so, and not taken for done.
    let error = client.attach("db", &attach("web3", true)).unwrap_err();
    assert_eq!(error.kind(), Some("unconfirmed"));
    assert!(error.is_temporary() && error.to_string().contains("n1, n2, n3"), "{error}");
    assert_eq!(client.volume("db").unwrap().info.attachment.unwrap().client, "web3");
    conductor.stop();
}

#[test]
fn garbage_is_answered_and_the_next_one_served() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    let commit = conductor.client.version().unwrap().commit;
    let deep = "[".repeat(100_000);
    let posts = [
        "/v1/nodes/register",
        "/v1/nodes/heartbeat",
        "/v1/membership",
        "/v1/volumes",
        "/v1/volumes/db/resize",
        "/v1/volumes/db/attach",
        "/v1/volumes/db/detach",
        "/v1/volumes/db/snapshots",
        "/v1/volumes/db/copies",
        "/v1/volumes/db/scrub",
        "/v1/nodes/report",
    ];
    let unknown_field = r#"{"name":"db","size":1048576,"colour":"red"}"#;
    let wrong_numbers = r#"{"name":"db","size":-1}"#;
    for path in posts {
        for body in ["", "{", "null", "7", "\0\u{fffd}", "\"x\"", unknown_field, wrong_numbers] {
            let (status, answer) = conductor.http("POST", path, body);
            assert_eq!(status, 400, "{path} {body}: {answer}");
            assert!(answer.contains("\"message\""), "{answer}");
        }
        assert_eq!(conductor.http("POST", path, &deep).0 / 100, 4);
        assert_eq!(conductor.http("PUT", path, "{}").0, 405);
    }
    let (status, answer) = conductor.http("POST", "/v1/volumes", &" ".repeat(65 << 10));
    assert!(status == 413 && answer.contains("too-large"), "{status} {answer}");
    for path in ["/", "/v2/status", "/v1/volumes/db/x", "/v1/../v1/x", "/v1/nodes/n9", "/v1/volumes/none"] {
        assert_eq!(conductor.http("GET", path, "").0, 404, "{path}");
    }
    for path in ["/v1/volumes/db/snapshots/A/map", "/v1/volumes/A/snapshots/a/map"] {
        assert_eq!(conductor.http("GET", path, "").0, 400, "{path}");
    }
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db/copies/x", "").0, 400);
    for path in ["/v1/volumes/%ff", "/v1/volumes/%2e%2e", "/v1/volumes/A/map", "/v1/nodes/x", "/v1/nodes/99999999999"] {
        assert_eq!(conductor.http("GET", path, "").0, 400, "{path}");
    }
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db?force=perhaps", "").0, 400);
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db?farce=true", "").0, 400);
    conductor.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    assert_eq!(conductor.client.version().unwrap().commit, commit);
    // A request that never ends does not keep the conductor from stopping.
    let mut half = TcpStream::connect(conductor.address).unwrap();
    half.write_all(b"POST /v1/volumes HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{").unwrap();
    let start = Instant::now();
    conductor.stop();
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn curl_needs_only_a_name_and_a_size() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    let (status, answer) = conductor.http("POST", "/v1/volumes", r#"{"name":"db","size":1073741824}"#);
    assert_eq!(status, 201, "{answer}");
    assert_eq!(conductor.http("GET", "/v1/nodes/n1", "").0, 200);
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db", "").0, 204);
    conductor.stop();
}

#[test]
fn a_file_in_use_or_damaged_is_said_to_be() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let second = Conductor::try_start(&scratch.store()).err().unwrap();
    assert!(second.to_string().contains("in use by another conductor"), "{second}");
    conductor.stop();
    let noise = scratch.0.join("noise");
    std::fs::write(&noise, [7; 5000]).unwrap();
    assert!(Conductor::try_start(&noise).is_err());
    assert!(Conductor::try_start(&scratch.0.join("no/such/directory")).is_err());
    assert!(Conductor::try_start(&scratch.0).is_err());
}

#[test]
fn beyond_loopback_only_when_told() {
    let scratch = Scratch::new();
    let options = |plaintext| Options {
        listen: "0.0.0.0:0".parse().unwrap(),
        store: scratch.store(),
        plaintext,
        scrub_every: None,
        replace_after: Duration::from_secs(600),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let refused = runtime.block_on(run(options(false), |_| (), async {}));
    assert!(matches!(refused, Err(conductor_service::Error::Plaintext(_))));
    runtime.block_on(run(options(true), |_| (), async {})).unwrap();
}

#[test]
fn a_stopped_conductor_is_unreachable() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    conductor.client.version().unwrap();
    conductor.stop();
    let error = conductor.client.version().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn a_client_goes_on_with_a_restarted_conductor() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    let before = client.version().unwrap();
    for _ in 0..3 {
        conductor.stop();
        conductor = Conductor::start_at(conductor.address, &scratch.store()).unwrap();
        assert_eq!(client.version().unwrap().cluster, before.cluster, "its kept connection is gone, which is no error");
    }
    conductor.stop();
}

#[test]
fn the_largest_volume_is_one_transaction_and_one_batch() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    let commit = client.version().unwrap().commit;
    let start = Instant::now();
    assert_eq!(client.create_volume(&NewVolume::new("huge", Bytes(64 << 40))).unwrap().shards, 16_384);
    let created = start.elapsed();
    let mut batch = Vec::new();
    for node in 1..=3 {
        batch.extend(client.heartbeat(&heartbeat(node, 1, 0)).unwrap().assignments.iter().map(born));
    }
    let told = start.elapsed();
    let answers = client.membership(&batch).unwrap();
    println!("create {created:?}, tell {:?}, born {:?}", told - created, start.elapsed() - told);
    assert!(answers.len() == 16_384 && answers.iter().all(|a| matches!(a, MembershipAnswer::Granted(_))));
    assert_eq!(client.version().unwrap().commit, commit + 2);
    conductor.stop();
}

/// Three nodes that do what they are told, one heartbeat of each.
fn obey(client: &Client, after: &mut [u64; 4]) -> usize {
    let mut orders = 0;
    for node in 1..=3 {
        let told = client.heartbeat(&heartbeat(node, 1, after[node as usize])).unwrap();
        after[node as usize] = told.version;
        orders += told.orders.len();
        let done = |order: &Order| {
            let epoch = told_epoch(client, order);
            let state = OrderState::Done { damaged: 0, repaired: 0 };
            OrderReport { id: order.id, shard: order.shard, epoch, state }
        };
        let orders = told.orders.iter().map(done).collect();
        client.report(&Report { node: NodeId(node), orders, worked: told.work }).unwrap();
    }
    orders
}

fn told_epoch(client: &Client, order: &Order) -> Epoch {
    let volumes = client.volumes().unwrap();
    let volume = volumes.iter().find(|v| v.id == order.shard.volume).unwrap();
    client.volume(&volume.name).unwrap().shards[order.shard.index.0 as usize].epoch
}

fn bear(client: &Client, volume: &str) {
    let shards = client.volume(volume).unwrap().shards;
    client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
}

fn snapshot(client: &Client, volume: &str, name: &str, after: &mut [u64; 4]) -> Result<SnapshotInfo, Error> {
    let asking = client.clone();
    let (volume, name) = (volume.to_owned(), name.to_owned());
    let asked = std::thread::spawn(move || asking.create_snapshot(&volume, &name));
    while !asked.is_finished() {
        obey(client, after);
    }
    asked.join().unwrap()
}

#[test]
fn a_snapshot_is_answered_when_it_is_complete() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    bear(&client, "db");
    let mut after = [0; 4];
    let info = snapshot(&client, "db", "a", &mut after).unwrap();
    assert_eq!((info.state, info.size), (SnapshotState::Complete, Bytes(3 * MIB)));
    assert_eq!(obey(&client, &mut [0; 4]), 0, "its orders are over");
    assert_eq!(client.create_snapshot("db", "a").unwrap_err().kind(), Some("snapshot-exists"));
    assert_eq!(client.create_snapshot("db", "A").unwrap_err().kind(), Some("invalid"));
    let map = client.snapshot_map("db", "a").unwrap();
    assert_eq!((map.snapshot, map.size), (Some(info.id), Bytes(3 * MIB)));
    conductor.stop();

    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    assert_eq!(client.snapshots("db").unwrap(), [info]);
    let clone = client.create_volume(&NewVolume::clone_of("copy", "db@a")).unwrap();
    assert_eq!((clone.size, clone.parent.as_deref()), (Bytes(3 * MIB), Some("db@a")));
    bear(&client, "copy");
    let refused = client.delete_snapshot("db", "a").unwrap_err();
    assert_eq!((refused.kind(), refused.to_string().contains("copy")), (Some("needed"), true), "{refused}");

    assert_eq!(client.rollback("db", "a").unwrap().rollback.unwrap().progress.of, 3);
    assert_eq!(client.attach("db", &attach("web1", false)).unwrap_err().kind(), Some("busy-volume"));
    assert_eq!(client.flatten("copy").unwrap().flatten.unwrap().of, 9);
    let range = CopyRange { source: "db@a".to_owned(), offset: Bytes(0), length: Bytes(2 * MIB) };
    assert_eq!(client.copy_range("copy", &range).unwrap().progress.of, 2 * MIB);
    let scrub = client.change_scrub("db", &Scrub { verb: ScrubVerb::Start, rate: None }).unwrap();
    assert_eq!(scrub.state, ScrubState::Running);
    let mut after = [0; 4];
    let over = || {
        let (db, copy) = (client.volume("db").unwrap().info, client.volume("copy").unwrap().info);
        let idle = client.scrub("db").unwrap().state == ScrubState::Idle;
        db.rollback.is_none() && copy.flatten.is_none() && client.copies("copy").unwrap().is_empty() && idle
    };
    while !over() {
        obey(&client, &mut after);
    }
    client.attach("db", &attach("web1", false)).unwrap();
    client.delete_snapshot("db", "a").unwrap();
    obey(&client, &mut [0; 4]);
    assert!(client.snapshots("db").unwrap().is_empty());
    assert_eq!(client.space().unwrap().disks.len(), 3);
    assert_eq!(client.cancel_copy("copy", OrderId(1)).unwrap_err().kind(), Some("no-copy"));
    conductor.stop();
}

#[test]
fn a_snapshot_that_nobody_answers_fails_with_the_reason() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    bear(&client, "db");
    // Attempts are counted by the conductor's own clock: nothing else happens here.
    let refused = client.create_snapshot("db", "a").unwrap_err();
    assert_eq!(refused.kind(), Some("snapshot-failed"), "{refused}");
    assert!(refused.to_string().contains("n1, n2, n3 did not confirm"), "{refused}");
    assert!(client.snapshots("db").unwrap().is_empty());
    conductor.stop();
}

#[test]
fn a_dead_primary_is_replaced_without_anybody_asking() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    let shards = client.volume("db").unwrap().shards;
    client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let start = Instant::now();
    let took = std::thread::scope(|scope| {
        for node in [2, 3] {
            let (client, over) = (client.clone(), &over);
            scope.spawn(move || {
                let mut after = 0;
                while !over.load(Ordering::Relaxed) {
                    // On a busy machine one may come too late; the next one counts.
                    after = client.heartbeat(&heartbeat(node, 1, after)).map_or(after, |told| told.version);
                }
            });
        }
        let on_dead = || client.map("db").unwrap().shards.iter().filter(|s| s.node == NodeId(1)).count();
        while on_dead() > 0 && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (left, took) = (on_dead(), start.elapsed());
        over.store(true, Ordering::Relaxed);
        assert_eq!(left, 0, "after {took:?}");
        took
    });
    println!("replaced after {took:?}");
    assert!(took >= Duration::from_millis(1_900), "it was heard until then");
    let lost = shards.iter().find(|s| s.primary_member().unwrap().node == NodeId(1)).unwrap();
    let now = client.volume("db").unwrap().shards.into_iter().find(|s| s.shard == lost.shard).unwrap();
    assert!(now.epoch > lost.epoch && now.primary != lost.primary, "{now:?}");
    conductor.stop();
}

#[test]
fn events_are_told_in_order_and_waited_for() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    let events = client.events(0, true).unwrap();
    assert!(events.iter().any(|e| e.what == Happened::NodeJoined { node: NodeId(1), host: "host1".to_owned() }));
    assert!(events.iter().zip(1..).all(|(event, number)| event.number == number), "{events:?}");
    let seen = events.last().unwrap().number;
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || client.events(seen, true).unwrap()
    });
    // It may not be asking yet: then it is told all the same.
    std::thread::sleep(Duration::from_millis(100));
    client.create_volume(&small("db", MIB)).unwrap();
    let told = waiting.join().unwrap();
    let created = |e: &Happened| matches!(e, Happened::VolumeCreated { volume, .. } if volume == "db");
    assert!(
        told.iter().any(|e| created(&e.what)) || client.events(seen, false).unwrap().iter().any(|e| created(&e.what))
    );
    conductor.stop();
    let mut conductor = Conductor::start(&scratch.store());
    // Said after it has listened to the nodes for a while.
    let (start, mut after) = (Instant::now(), told[0].number);
    loop {
        let events = conductor.client.events(after, true).unwrap();
        after = events.last().map_or(after, |last| last.number);
        if events.iter().any(|e| e.what == Happened::ConductorStarted) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no word of the start after {after}");
    }
    conductor.stop();
}

#[test]
fn what_is_wanted_of_nodes_disks_and_copies_is_said_over_http() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    assert_eq!(client.set_duty(NodeId(2), Duty::Cordoned, false).unwrap().duty, Duty::Cordoned);
    assert_eq!(client.create_volume(&small("db", MIB)).unwrap_err().kind(), Some("too-few-nodes"));
    client.set_duty(NodeId(2), Duty::Serving, false).unwrap();
    client.create_volume(&small("db", MIB)).unwrap();
    let shards = client.volume("db").unwrap().shards;
    client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
    assert_eq!(client.set_duty(NodeId(2), Duty::Draining, false).unwrap_err().kind(), Some("in-use"));
    assert_eq!(client.set_duty(NodeId(9), Duty::Draining, false).unwrap_err().kind(), Some("no-node"));
    let disk = client.node(NodeId(2)).unwrap().disks[0].disk;
    assert_eq!(client.remove_disk(disk, false).unwrap_err().kind(), Some("in-use"));
    assert_eq!(client.remove_disk(DiskId(5), false).unwrap_err().kind(), Some("no-disk"));
    let new = NewCopies { copies: None, min_copies: Some(1) };
    assert_eq!(client.set_copies("db", &new).unwrap().min_copies, 1);
    let (status, body) = conductor.http("POST", "/v1/nodes/2/duty", "{\"duty\":\"asleep\"}");
    assert_eq!(status, 400, "{body}");
    conductor.stop();
}
