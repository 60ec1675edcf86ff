//! Whatever a stranger or a broken client sends to any port is answered or closed and counted, while an honest client works on.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use cluster::nbd::{Command, Nbd, Place, Stream};
use cluster::peer::{Identity, Peer, Refused, dial, frame, is_closed_within, reseal};
use cluster::{Cluster, LONG, Options, Random, Shape, Workload, wait_until};
use conductor_model::api::VolumeMap;
use conductor_model::views::Attach;
use conductor_model::{Bytes, Epoch, ShardId, ShardIndex};
use node_protocol::{IoBody, Status, op};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::{ClusterKey, Key, Op, Over, Reason, RequestChallenge, RequestProof};

const HONEST: &str = "honest";
const OTHER: &str = "other";
/// How long a deadline of the node may take to close a connection: the longest is 15 s.
const DEADLINES: Duration = Duration::from_secs(30);
/// Memory that a process may grow by under attack: its bounds for strangers and clients are far below.
const GROWTH: u64 = 96 << 20;

/// A cluster with an honest client on one volume, and a second volume for the others.
struct Bench {
    cluster: Cluster,
    workload: Workload,
    map: VolumeMap,
    /// The node under attack: primary of the second volume's first shard; n1 is 0.
    node: usize,
    at: SocketAddr,
    key: [u8; 32],
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::start(Shape::default()).unwrap();
        cluster.create(HONEST, 16, 4).unwrap();
        cluster.create(OTHER, 16, 8).unwrap();
        let place = cluster.attach(HONEST).unwrap();
        let options = Options { place, export: HONEST.to_owned(), depth: 8, seed, patience: LONG };
        let workload = Workload::start(options).unwrap();
        workload.progress(100, LONG).unwrap();
        let conductor = cluster.conductor().unwrap();
        let attach = Attach {
            client: "hostile".to_owned(),
            read_only: false,
            shared: false,
            force: false,
            host: String::new(),
            resumes: None,
        };
        let map = conductor.attach(OTHER, &attach).unwrap();
        let (node, at) = (map.shards[0].node.0 as usize - 1, map.shards[0].endpoint);
        let key = cluster.key().unwrap();
        Self { cluster, workload, map, node, at, key }
    }

    fn counters(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.cluster.counter(self.node, name).unwrap()).sum()
    }

    /// Does something bad `times` times; one of the counters must show each, and the honest client must not notice.
    fn counted(&self, what: &str, counters: &[&str], times: u64, bad: impl FnOnce()) {
        let before = self.counters(counters);
        bad();
        let shown = wait_until(what, DEADLINES, || Ok(self.counters(counters) >= before + times));
        let shown = shown
            .unwrap_or_else(|error| panic!("{error:#}: {counters:?} from {before} to {}", self.counters(counters)));
        self.workload.progress(10, LONG).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        println!("{what}: counted in {counters:?} within {shown:?}");
    }

    fn who(&self, name: &str) -> Identity {
        Identity::of(self.key, name, &self.map)
    }

    fn peer(&self, name: &str) -> Peer {
        Peer::connect(self.at, &self.who(name)).unwrap().unwrap()
    }

    fn shard(&self) -> ShardId {
        ShardId { volume: self.map.volume, index: ShardIndex(0) }
    }

    fn epoch(&self) -> Epoch {
        self.map.shards[0].epoch
    }

    fn body(&self, offset: u64, len: u32) -> IoBody {
        IoBody::new(self.shard(), self.epoch(), 1, Bytes(offset), len)
    }

    /// A good peer gets good answers.
    fn serves(&self, name: &str) {
        let mut peer = self.peer(name);
        let data = vec![7; 4096];
        assert_eq!(peer.ask(op::WRITE, &self.body(0, 4096), &data).unwrap(), Some(Status::Ok));
        assert_eq!(peer.ask(op::READ, &self.body(0, 4096), &[]).unwrap(), Some(Status::Ok));
    }

    fn end(self, memory: u64, descriptors: usize) {
        self.serves("afterwards");
        let process = &self.cluster.nodes[self.node];
        let open = || Ok(process.descriptors()? <= descriptors + 8);
        wait_until("descriptors back to what they were", DEADLINES, open).unwrap();
        let now = process.memory().unwrap();
        println!("memory of {}: {} KiB before, {} KiB after", process.name, memory >> 10, now >> 10);
        assert!(now < memory + GROWTH, "{memory} → {now}");
        let (_, done) = self.workload.stop().unwrap();
        println!("the honest client: {done:?}");
        assert_eq!((done.lost, done.reconnects), (0, 0), "it noticed nothing");
    }
}

/// What a conductor wants a proof for.
fn challenge(at: SocketAddr) -> RequestChallenge {
    let mut stream = dial(at).unwrap();
    send(&mut stream, b"GET /v1/role HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("www-authenticate: ")).unwrap();
    RequestChallenge::from_header(line).unwrap()
}

fn send(stream: &mut TcpStream, bytes: &[u8]) {
    // The node may have closed already: that is what it is asked to do.
    let _ = stream.write_all(bytes);
}

fn closed(mut stream: TcpStream) {
    assert!(is_closed_within(&mut stream, DEADLINES).unwrap(), "the connection was kept");
}

#[test]
fn strangers_on_a_nodes_port_are_closed_and_counted() {
    let bench = Bench::new(11);
    let (memory, descriptors) = {
        let process = &bench.cluster.nodes[bench.node];
        (process.memory().unwrap(), process.descriptors().unwrap())
    };
    let mut random = Random::new(5);
    bench.counted("random streams", &["net.closed.bad-frame"], 30, || {
        for _ in 0..30 {
            let mut stream = dial(bench.at).unwrap();
            send(&mut stream, &random.bytes(8192));
            closed(stream);
        }
    });
    bench.counted("random behind our magic", &["net.closed.bad-frame"], 20, || {
        for _ in 0..20 {
            let mut stream = dial(bench.at).unwrap();
            send(&mut stream, &[&b"TRN1\x01\x01\x00\x00"[..], &random.bytes(4096)].concat());
            closed(stream);
        }
    });
    bench.counted("a flipped bit in a Hello", &["net.closed.bad-frame"], 1, || {
        let mut bytes = frame(Op::HELLO, 0, &[9; 64], &[]);
        bytes[40] ^= 4;
        let mut stream = dial(bench.at).unwrap();
        send(&mut stream, &bytes);
        closed(stream);
    });
    bench.counted("a Hello with a body of 65535 bytes", &["net.closed.bad-frame"], 1, || {
        let mut bytes = frame(Op::HELLO, 0, &[], &[]);
        bytes[16..18].fill(0xff);
        reseal(&mut bytes, 0);
        let mut stream = dial(bench.at).unwrap();
        send(&mut stream, &bytes);
        closed(stream);
    });
    bench.counted("a Hello that is none", &["net.closed.bad-handshake"], 3, || {
        for body in [vec![], vec![0; 100], vec![0xff; 1024]] {
            let mut stream = dial(bench.at).unwrap();
            send(&mut stream, &frame(Op::HELLO, 0, &body, &[]));
            closed(stream);
        }
    });
    bench.counted("a read before any Hello", &["net.closed.unexpected"], 1, || {
        let mut stream = dial(bench.at).unwrap();
        send(&mut stream, &frame(op::READ, 0, bench.body(0, 4096).bytes(), &[]));
        closed(stream);
    });
    bench.counted("a payload before any Hello", &["net.closed.bad-frame"], 1, || {
        let mut stream = dial(bench.at).unwrap();
        send(&mut stream, &frame(op::WRITE, 0, bench.body(0, 4096).bytes(), &[1; 4096]));
        closed(stream);
    });
    bench.counted("a wrong secret", &["net.closed.unauthenticated"], 2, || {
        for _ in 0..2 {
            let who = Identity { key: Key::Cluster(ClusterKey([0x55; 32])), ..bench.who("thief") };
            let refused = Peer::connect(bench.at, &who).unwrap().unwrap_err();
            assert!(matches!(refused, Refused::Rejected(Reason::Unauthenticated) | Refused::Silently), "{refused:?}");
        }
    });
    bench.counted("half a header, then silence; one byte per second", &["net.closed.handshake-timeout"], 6, || {
        let silent: Vec<_> = (0..5)
            .map(|_| {
                let mut stream = dial(bench.at).unwrap();
                send(&mut stream, b"TRN1\x01\x01\x00\x00\x00\x00");
                stream
            })
            .collect();
        let mut slow = dial(bench.at).unwrap();
        let hello = frame(Op::HELLO, 0, &[0; 200], &[]);
        let start = Instant::now();
        for byte in hello.chunks(1) {
            if slow.write_all(byte).is_err() || start.elapsed() > DEADLINES {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        closed(slow);
        silent.into_iter().for_each(closed);
    });
    // Each beyond the limit takes the place of the stranger that has been there for longest.
    bench.counted("200 connections at once", &["net.strangers-displaced"], 100, || {
        let all: Vec<_> = (0..200).filter_map(|_| dial(bench.at).ok()).collect();
        println!("{} connected", all.len());
        bench.workload.progress(50, LONG).unwrap();
    });
    bench.end(memory, descriptors);
}

#[test]
fn a_broken_client_with_a_good_key_is_answered_or_closed_and_counted() {
    let bench = Bench::new(12);
    let (memory, descriptors) = {
        let process = &bench.cluster.nodes[bench.node];
        (process.memory().unwrap(), process.descriptors().unwrap())
    };
    bench.serves("good");
    let shard = bench.map.shard_size.0;
    let answered = |what: &str, counter: &str, op: Op, body: IoBody, payload: &[u8], expected: Status| {
        bench.counted(what, &[counter], 1, || {
            let mut peer = bench.peer("answered");
            assert_eq!(peer.ask(op, &body, payload).unwrap(), Some(expected), "{what}");
            // The same session goes on.
            assert_eq!(peer.ask(op::READ, &bench.body(0, 512), &[]).unwrap(), Some(Status::Ok), "{what}");
        });
    };
    let body = |offset, len| bench.body(offset, len);
    answered("an unknown op", "request.unsupported", Op(200), body(0, 4096), &[], Status::Unsupported);
    answered("a replica's op", "request.denied", op::REPLICA_WRITE, body(0, 1), &[1; 4096], Status::Denied);
    let range = "reply.out-of-range";
    answered("a read at the end", range, op::READ, body(shard, 4096), &[], Status::OutOfRange);
    answered("a read past the end", range, op::READ, body(shard * 3, 4096), &[], Status::OutOfRange);
    answered(
        "a write across the shard's end",
        range,
        op::WRITE,
        body(shard - 512, 1024),
        &[1; 1024],
        Status::OutOfRange,
    );
    answered("an offset that overflows", range, op::READ, body(u64::MAX - 100, 4096), &[], Status::OutOfRange);
    let bad = "reply.bad-request";
    answered("a read of nothing", bad, op::READ, body(0, 0), &[], Status::BadRequest);
    answered("a read of 2 MiB", bad, op::READ, body(0, 2 << 20), &[], Status::BadRequest);
    answered("a write that says another length", bad, op::WRITE, body(0, 8192), &[1; 4096], Status::BadRequest);
    answered("a write without payload", bad, op::WRITE, body(0, 4096), &[], Status::BadRequest);
    answered("a read with a payload", bad, op::READ, body(0, 4096), &[1; 4096], Status::BadRequest);
    let long = body(512, 1 << 20);
    answered("1 MiB that touches 257 blocks", bad, op::WRITE, long, &vec![1; 1 << 20], Status::BadRequest);
    answered("a read that touches 257 blocks", bad, op::READ, long, &[], Status::BadRequest);
    answered("a discard of half a block", bad, op::DISCARD, body(2048, 2048), &[], Status::BadRequest);
    answered("the extents of nothing", bad, op::EXTENTS, body(0, 0), &[], Status::BadRequest);
    answered("the extents of half a block", bad, op::EXTENTS, body(2048, 2048), &[], Status::BadRequest);
    answered("the extents of 2 GiB", bad, op::EXTENTS, body(0, 2 << 30), &[], Status::BadRequest);
    answered("extents with a payload", bad, op::EXTENTS, body(0, 4096), &[1; 4096], Status::BadRequest);
    answered("extents past the end", range, op::EXTENTS, body(shard, 4096), &[], Status::OutOfRange);
    let old = IoBody { epoch: (bench.epoch().0 - 1).into(), ..body(0, 4096) };
    answered("a stale epoch", "reply.stale-epoch", op::READ, old, &[], Status::StaleEpoch);
    let new = IoBody { epoch: (bench.epoch().0 + 9).into(), ..body(0, 4096) };
    answered("an epoch of the future", "reply.later", op::READ, new, &[], Status::Later);
    let foreign = IoBody { volume: (bench.map.volume.0 - 1).into(), ..body(0, 4096) };
    answered("another volume", "reply.denied", op::READ, foreign, &[], Status::Denied);
    let nowhere = IoBody { shard: 99.into(), ..body(0, 4096) };
    answered("a shard that is not", "reply.stale-epoch", op::READ, nowhere, &[], Status::StaleEpoch);
    bench.counted("a body one byte short", &[bad], 1, || {
        let mut peer = bench.peer("short");
        let (_, bytes) = peer.request(op::READ, &body(0, 4096).bytes()[..47], &[]);
        peer.send(&bytes).unwrap();
        assert_eq!(peer.reply().unwrap().unwrap().status(), Some(Status::BadRequest));
    });

    let ends = |what: &str, counter: &str, spoil: &dyn Fn(&mut Peer) -> Vec<u8>| {
        bench.counted(what, &[counter], 1, || {
            let mut peer = bench.peer("ends");
            let bytes = spoil(&mut peer);
            let _ = peer.send(&bytes);
            assert!(is_closed_within(peer.stream(), DEADLINES).unwrap(), "{what}: the node kept the connection");
        });
    };
    let write = |peer: &mut Peer| peer.request(op::WRITE, body(0, 4096).bytes(), &[1; 4096]).1;
    ends("a flipped bit in a payload", "net.closed.bad-payload", &|peer| {
        let mut bytes = write(peer);
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    });
    ends("a wrong session tag", "net.closed.unauthenticated", &|peer| {
        let mut bytes = write(peer);
        bytes[32 + 9] ^= 1;
        reseal(&mut bytes, 48);
        bytes
    });
    ends("a body without room for a session", "net.closed.unauthenticated", &|peer| {
        peer.request(op::READ, &[1; 8], &[]).1
    });
    ends("a payload of 4 GiB", "net.closed.bad-frame", &|peer| {
        let mut bytes = write(peer);
        bytes[20..24].fill(0xff);
        reseal(&mut bytes, 48);
        bytes
    });
    ends("a Hello in the midst", "net.closed.unexpected", &|_| frame(Op::HELLO, 0, &[0; 64], &[]));
    ends("credits that were never taken", "net.closed.credits", &|peer| {
        let mut bytes = write(peer);
        bytes[18..20].fill(0xff);
        reseal(&mut bytes, 48);
        bytes
    });
    ends("more requests than credits", "net.closed.credits", &|peer| {
        let depth = u32::from(peer.depth);
        (0..8 * depth).flat_map(|_| peer.request(op::READ, body(0, 65536).bytes(), &[]).1).collect()
    });
    ends("half a payload, then silence", "net.closed.peer-silent", &|peer| {
        let bytes = write(peer);
        bytes[..2000].to_vec()
    });

    let life = |incarnation| Identity { incarnation, ..bench.who("lives") };
    let mut fifth = Peer::connect(bench.at, &life(5)).unwrap().unwrap();
    bench.counted("a foreign incarnation", &["hello.refused"], 1, || {
        let refused = Peer::connect(bench.at, &life(4)).unwrap().unwrap_err();
        assert_eq!(refused, Refused::Rejected(Reason::Fenced));
    });
    bench.counted("a newer incarnation", &["session.fenced"], 1, || {
        let mut sixth = Peer::connect(bench.at, &life(6)).unwrap().unwrap();
        assert!(is_closed_within(fifth.stream(), DEADLINES).unwrap(), "the older life is fenced");
        assert_eq!(sixth.ask(op::READ, &body(0, 4096), &[]).unwrap(), Some(Status::Ok));
    });
    bench.counted("an old attachment", &["hello.refused"], 1, || {
        let old = Identity { generation: bench.map.attach.0 - 1, ..bench.who("old") };
        assert_eq!(Peer::connect(bench.at, &old).unwrap().unwrap_err(), Refused::Rejected(Reason::Fenced));
    });
    bench.end(memory, descriptors);
}

#[test]
fn bad_clients_of_the_nbd_port_are_closed_and_the_honest_one_goes_on() {
    let mut bench = Bench::new(13);
    let place = bench.cluster.place(HONEST);
    let (memory, descriptors) = {
        let target = bench.cluster.target(HONEST).unwrap();
        (target.memory().unwrap(), target.descriptors().unwrap())
    };
    let count = |bench: &Bench, name: &str| {
        let look = bench.cluster.look_at_target(HONEST).unwrap();
        look["target"]["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {look}"))
    };
    let before = ["nbd_closed", "nbd_displaced", "nbd_dropped_for_silence"].map(|name| count(&bench, name));
    let mut random = Random::new(6);
    let greeted = || {
        let mut stream = Stream::connect(&place).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        stream
    };
    let gone = |mut stream: Stream| {
        // Reads have a limit of 30 s; an error other than that limit is an end as well.
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the target kept the connection"),
        }
    };
    for _ in 0..10 {
        let mut stream = greeted();
        let _ = stream.write_all(&random.bytes(4096));
        gone(stream);
    }
    // An option longer than any.
    let mut stream = greeted();
    stream.write_all(&[&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]].concat()).unwrap();
    let _ = stream.write_all(&random.bytes(1 << 16));
    drop(stream);
    // Requests that contradict the export are answered, and the session goes on.
    let mut nbd = Nbd::connect(&place, HONEST).unwrap();
    let size = nbd.size;
    let mut ask = |command: Command| nbd.call(&command, LONG).unwrap().map(|bytes| bytes.len());
    assert_eq!(ask(Command::Read { offset: size, len: 512 }), Err(22), "EINVAL at the end");
    assert_eq!(ask(Command::Read { offset: size - 512, len: 1024 }), Err(22), "EINVAL across the end");
    assert_eq!(ask(Command::Read { offset: u64::MAX - 4095, len: 8192 }), Err(22), "EINVAL where it overflows");
    assert_eq!(ask(Command::Write { offset: size, bytes: vec![1; 512] }), Err(28), "ENOSPC past the end");
    assert_eq!(ask(Command::Read { offset: 0, len: 512 }), Ok(512));
    // A request that is none, after a good handshake; 64 MiB that never come; one byte per second.
    let mut bad = Nbd::connect(&place, HONEST).unwrap().into_stream().unwrap();
    bad.write_all(&random.bytes(28)).unwrap();
    gone(bad);
    let mut oversize = Nbd::connect(&place, HONEST).unwrap().into_stream().unwrap();
    let head = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1][..], &[0; 16], &[4, 0, 0, 0]].concat();
    oversize.write_all(&head).unwrap();
    let mut slow = greeted();
    let start = Instant::now();
    while start.elapsed() < DEADLINES && slow.write_all(&[0]).is_ok() {
        std::thread::sleep(Duration::from_secs(1));
    }
    gone(slow);
    bench.workload.progress(50, LONG).unwrap();
    drop(oversize);
    // 200 at once: more than there may be, so that the first make room for the others.
    let all: Vec<_> = (0..200).filter_map(|_| Stream::connect(&place).ok()).collect();
    bench.workload.progress(50, LONG).unwrap();
    println!("{} connected at once", all.len());
    wait_until("the first make room", LONG, || Ok(count(&bench, "nbd_displaced") > before[1])).unwrap();
    drop(all);
    drop(nbd);
    let after = || ["nbd_closed", "nbd_displaced", "nbd_dropped_for_silence"].map(|name| count(&bench, name));
    let shown = || {
        let after = after();
        Ok(after[0] >= before[0] + 14 && after[1] > before[1] && after[2] > before[2])
    };
    wait_until("each is counted", DEADLINES, shown)
        .unwrap_or_else(|error| panic!("{error:#}: {before:?} → {:?}", after()));
    println!("closed, displaced, dropped for silence: {before:?} → {:?}", after());
    assert!(matches!(place, Place::Unix(_)));
    let Bench { mut cluster, workload, .. } = bench;
    let target = cluster.target(HONEST).unwrap();
    wait_until("descriptors back", DEADLINES, || Ok(target.descriptors()? <= descriptors + 4)).unwrap();
    let now = target.memory().unwrap();
    println!("memory of the target: {} KiB before, {} KiB after", memory >> 10, now >> 10);
    assert!(now < memory + GROWTH, "{memory} → {now}");
    let (_, done) = workload.stop().unwrap();
    assert_eq!((done.lost, done.reconnects), (0, 0), "the honest client noticed nothing");
}

#[test]
fn bad_clients_of_the_conductor_are_answered_or_closed_and_it_goes_on() {
    let bench = Bench::new(14);
    let at: SocketAddr = bench.cluster.conductor_address().unwrap().parse().unwrap();
    let (memory, descriptors) =
        (bench.cluster.conductor.memory().unwrap(), bench.cluster.conductor.descriptors().unwrap());
    let answer = |bytes: &[u8]| {
        let mut stream = dial(at).unwrap();
        send(&mut stream, bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
    };
    // With the cluster's key: what is bad is to be met behind the gate as well.
    let key = Key::Cluster(ClusterKey(bench.key));
    let mut nonce = 0;
    let mut post = |path: &str, body: &str| {
        let len = body.len();
        nonce += 1;
        let proof =
            RequestProof::new(&key, Over::Clear, (challenge(at), nonce), "POST", path, body.as_bytes()).to_header();
        let kind = format!("content-type: application/json\r\nauthorization: {proof}\r\nconnection: close");
        format!("POST {path} HTTP/1.1\r\nhost: x\r\n{kind}\r\ncontent-length: {len}\r\n\r\n{body}").into_bytes()
    };
    let mut random = Random::new(7);
    for _ in 0..20 {
        let mut stream = dial(at).unwrap();
        send(&mut stream, &random.bytes(2048));
        send(&mut stream, b"\r\n\r\n");
        closed(stream);
    }
    let deep = format!("{{\"name\":{}", "[".repeat(60_000));
    let big = format!("{{\"name\":\"{}\"}}", "x".repeat(200_000));
    let refused = [
        ("a path that is not", b"GET /v1/nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec()),
        ("a method that is not", b"PUT /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec()),
        ("no JSON", post("/v1/volumes", "hello")),
        ("JSON 60000 deep", post("/v1/volumes", &deep)),
        ("a body over the limit", post("/v1/volumes", &big)),
        ("a volume of no size", post("/v1/volumes", r#"{"name":"x","size":0}"#)),
        ("a volume beyond all", post("/v1/volumes", r#"{"name":"x","size":18446744073709551615}"#)),
        (
            "a heartbeat of nobody",
            post("/v1/nodes/heartbeat", r#"{"node":77,"after":0,"disks":[],"troubles":[],"dropped":[]}"#),
        ),
        ("a length that is none", b"POST /v1/volumes HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n{}".to_vec()),
    ];
    for (what, bytes) in refused {
        let first = answer(&bytes);
        println!("{what}: {first}");
        assert!(first.starts_with("HTTP/1.1 4"), "{what}: {first:?}");
        let met = what.starts_with("a path") || what.starts_with("a method") || what.starts_with("a length");
        assert!(met || !first.contains(" 401 "), "{what}: it was refused for what is good about it");
    }
    // Half a request, and silence; many connections; all the while somebody asks properly.
    let silent: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = dial(at).unwrap();
            send(&mut stream, b"POST /v1/volumes HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{");
            stream
        })
        .collect();
    let all: Vec<_> = (0..200).filter_map(|_| dial(at).ok()).collect();
    println!("{} idle connections", all.len());
    let start = Instant::now();
    bench.cluster.status().unwrap();
    println!("`trine status` beside them took {:?}", start.elapsed());
    bench.workload.progress(50, LONG).unwrap();
    drop((silent, all));
    bench.cluster.wait_alive(3).unwrap();
    let process = &bench.cluster.conductor;
    wait_until("descriptors back", LONG, || Ok(process.descriptors()? <= descriptors + 8)).unwrap();
    let now = process.memory().unwrap();
    println!("memory of the conductor: {} KiB before, {} KiB after", memory >> 10, now >> 10);
    assert!(now < memory + GROWTH, "{memory} → {now}");
    let (_, done) = bench.workload.stop().unwrap();
    assert_eq!((done.lost, done.reconnects), (0, 0), "the honest client noticed nothing");
}
