//! The limits a node promises, against a real one.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::peer::{Identity, Peer};
use cluster::{Cluster, LONG, Options, Shape, Workload, wait_until};
use conductor_model::views::Attach;
use conductor_model::{Bytes, ShardId, ShardIndex};
use node_protocol::{IoBody, Status, op};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SESSIONS: u64 = 64;
const REQUESTS: u64 = 16;
/// The buffers of a node that was told nothing else: `node_daemon::DEFAULT_MEMORY`.
const ARENA: u64 = 256 << 20;
/// Rounds of `REQUESTS` that each session sends.
const ROUNDS: u64 = 24;
/// What a node may take for them, by the sums in `node_core::limits`, `tcp` and `node_daemon`: 9 MiB beside the arena for sessions and
/// IOCBs; of the arena, 64 × (12 + 64) KiB for streams, a page each for 1024 payloads and as many forwards, and the checkpoint's and
/// log's buffers: 13 MiB. Doubled, for the allocator's and the kernel's rounding.
const BOUND: u64 = (2 * (9 + 13)) << 20;

/// Two hundred a second, and a tenth of a second's worth at once: whoever asks for 500 waits for 2.4 s.
#[test]
fn an_attachment_with_a_limit_asks_for_no_more_and_detaches_with_requests_that_wait() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 16).unwrap();
    let place = cluster.attach_with("db", &["--iops", "200"]).unwrap();
    let options = Options { place, export: "db".to_owned(), depth: 64, seed: 1, patience: LONG };
    let workload = Workload::start(options).unwrap();
    let took = workload.progress(500, LONG).unwrap();
    println!("500 requests in {took:?}");
    assert!(took > Duration::from_millis(2300), "{took:?}");
    workload.stop().unwrap();
    cluster.detach("db").unwrap();
    cluster.stop_and_compare().unwrap();
}

#[test]
fn sixty_four_sessions_with_sixteen_requests_each_stay_within_the_stated_memory() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 16).unwrap();
    let conductor = cluster.conductor().unwrap();
    let attach = Attach {
        client: "many".to_owned(),
        read_only: false,
        shared: false,
        force: false,
        host: String::new(),
        resumes: None,
    };
    let map = conductor.attach("db", &attach).unwrap();
    let (node, at) = (map.shards[0].node.0 as usize - 1, map.shards[0].endpoint);
    let shard = ShardId { volume: map.volume, index: ShardIndex(0) };
    let epoch = map.shards[0].epoch;
    let key = cluster.key().unwrap();
    let process = &cluster.nodes[node];
    let before = process.memory().unwrap();
    let (mut peak, mut warm) = (before, 0);
    let (done, looked) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (done, looked) = (&done, &looked);
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|n| {
                let who = Identity::of(key, &format!("client-{n}"), &map);
                scope.spawn(move || {
                    let mut peer = Peer::connect(at, &who).unwrap().unwrap();
                    for round in 0..ROUNDS {
                        let requests: Vec<u8> = (0..REQUESTS)
                            .flat_map(|request| {
                                let offset = Bytes((n * REQUESTS + request) * 4096);
                                let sequence = round * REQUESTS + request;
                                let body = IoBody::new(shard, epoch, sequence, offset, 4096);
                                let read = (round + request) % 4 == 0;
                                let (op, data) =
                                    if read { (op::READ, vec![]) } else { (op::WRITE, vec![n as u8; 4096]) };
                                peer.request(op, body.bytes(), &data).1
                            })
                            .collect();
                        peer.send(&requests).unwrap();
                        for _ in 0..REQUESTS {
                            let reply = peer.reply().unwrap().expect("the node keeps the session");
                            assert_eq!(reply.status(), Some(Status::Ok));
                        }
                    }
                    done.fetch_add(1, Relaxed);
                    // Who says nothing for two seconds is gone.
                    for sequence in ROUNDS * REQUESTS.. {
                        if looked.load(Relaxed) || start.elapsed() > LONG {
                            break;
                        }
                        let body = IoBody::new(shard, epoch, sequence, Bytes(n * REQUESTS * 4096), 4096);
                        assert_eq!(peer.ask(op::READ, &body, &[]).unwrap(), Some(Status::Ok));
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    peer
                })
            })
            .collect();
        while done.load(Relaxed) < SESSIONS && !sessions.iter().any(|session| session.is_finished()) {
            let now = process.memory().unwrap();
            peak = peak.max(now);
            std::thread::sleep(Duration::from_millis(20));
        }
        let look = cluster.look(node).unwrap();
        let open = look["inside"]["reactors"][0]["sessions"].as_array().unwrap().len() as u64;
        assert_eq!(open, SESSIONS, "all are still there");
        warm = process.memory().unwrap();
        looked.store(true, Relaxed);
        sessions.into_iter().for_each(|session| drop(session.join().unwrap()));
    });
    let count = SESSIONS * REQUESTS * ROUNDS;
    println!("{SESSIONS} sessions × {REQUESTS} in flight, {count} requests in {:?}", start.elapsed());
    println!(
        "memory: {} KiB before, peak {} KiB, {} KiB at the end; bound {} KiB",
        before >> 10,
        peak >> 10,
        warm >> 10,
        BOUND >> 10
    );
    assert!(peak.max(warm) - before < BOUND, "{before} → {peak}");
    let gone = || {
        let look = cluster.look(node)?;
        Ok(look["inside"]["reactors"][0]["sessions"].as_array().is_some_and(Vec::is_empty))
    };
    wait_until("no session stays", LONG, gone).unwrap();
}

#[test]
fn a_full_disk_says_so_goes_on_reading_and_takes_again_what_was_given_back() {
    let mut cluster = Cluster::start(Shape { disk: 64 << 20, ..Shape::default() }).unwrap();
    cluster.create("db", 128, 32).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    let mib = 1u64 << 20;
    let content =
        |n: u64| -> Vec<u8> { (0..mib).map(|at| (at as u8 ^ n as u8).wrapping_add((at >> 8) as u8)).collect() };
    let mut written = 0;
    let refused = loop {
        assert!(written < 128, "128 MiB fit on a disk of 64");
        match nbd.call(&Command::Write { offset: written * mib, bytes: content(written) }, LONG).unwrap() {
            Ok(_) => written += 1,
            Err(errno) => break errno,
        }
    };
    println!("{written} MiB on disks of 64 MiB, then error {refused}");
    assert_eq!(refused, 28, "ENOSPC");
    assert!(written > 40, "{written} MiB");
    let check = |nbd: &mut Nbd, n: u64| {
        let read = nbd.call(&Command::Read { offset: n * mib, len: mib as u32 }, LONG).unwrap().unwrap();
        assert!(read == content(n), "MiB {n} reads back differently");
    };
    (0..written).for_each(|n| check(&mut nbd, n));
    let status = cluster.status().unwrap();
    println!("used {} of {}", status["totals"]["used"], status["totals"]["capacity"]);
    // What was refused left nothing behind, and what is given back can be taken again.
    assert_eq!(nbd.call(&Command::Trim { offset: 0, len: 8 << 20 }, LONG).unwrap(), Ok(vec![]));
    let again = |nbd: &mut Nbd, n: u64| nbd.call(&Command::Write { offset: n * mib, bytes: content(n) }, LONG).unwrap();
    let mut later = written;
    // The primary learns of its copies' room with their next promises.
    wait_until("room again", LONG, || Ok(again(&mut nbd, later).is_ok())).unwrap();
    while later < written + 6 {
        again(&mut nbd, later).unwrap();
        later += 1;
    }
    (8..later).for_each(|n| check(&mut nbd, n));
    let zeros = nbd.call(&Command::Read { offset: 0, len: 8 << 20 }, LONG).unwrap().unwrap();
    assert!(zeros.iter().all(|byte| *byte == 0), "what was trimmed reads as zeros");
    nbd.disconnect().unwrap();
    // Deleting the volume gives everything back.
    cluster.detach("db").unwrap();
    cluster.trine(&["volume", "delete", "db", "--yes"]).unwrap();
    let empty = || Ok(cluster.status()?["totals"]["used"].as_u64().is_some_and(|used| used < mib));
    let took = wait_until("the space of a deleted volume comes back", LONG, empty).unwrap();
    println!("deleted: space back after {took:?}");
    cluster.create("next", 32, 32).unwrap();
}

#[test]
fn more_large_requests_than_fit_in_memory_wait_and_all_end() {
    const LARGE_SESSIONS: u64 = 64;
    const EACH: u64 = 8;
    const STEP: u64 = 1 << 20;
    /// Unaligned, so that it touches 256 blocks: the longest there is.
    const LARGE: u64 = STEP - 4096;
    let cluster = Cluster::start(Shape { disk: 256 << 20, ..Shape::default() }).unwrap();
    cluster.create("db", 128, 128).unwrap();
    let conductor = cluster.conductor().unwrap();
    let attach = Attach {
        client: "large".to_owned(),
        read_only: false,
        shared: false,
        force: false,
        host: String::new(),
        resumes: None,
    };
    let map = conductor.attach("db", &attach).unwrap();
    let (node, at, epoch) = (map.shards[0].node.0 as usize - 1, map.shards[0].endpoint, map.shards[0].epoch);
    let shard = ShardId { volume: map.volume, index: ShardIndex(0) };
    let key = cluster.key().unwrap();
    let before = cluster.nodes[node].memory().unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..LARGE_SESSIONS {
            let who = Identity::of(key, &format!("large-{n}"), &map);
            scope.spawn(move || {
                let mut peer = Peer::connect(at, &who).unwrap().unwrap();
                let (mut sent, mut answered) = (0, 0);
                while answered < EACH {
                    // Writes first, all of them; then reads. Neighbours overlap, so locks are waited for as well.
                    while sent < EACH && (sent < EACH / 2 || answered >= EACH / 2) {
                        let offset = Bytes((n * 3 + sent % 4) % 127 * STEP + 512);
                        let body = IoBody::new(shard, epoch, sent, offset, LARGE as u32);
                        let write = sent < EACH / 2;
                        let data = if write { vec![n as u8; LARGE as usize] } else { vec![] };
                        let bytes = peer.request(if write { op::WRITE } else { op::READ }, body.bytes(), &data).1;
                        peer.send(&bytes).unwrap();
                        sent += 1;
                    }
                    let reply = peer.reply().unwrap().expect("the node keeps the session");
                    assert_eq!(reply.status(), Some(Status::Ok));
                    answered += 1;
                }
            });
        }
    });
    let stalls = cluster.counter(node, "net.stalls").unwrap();
    let after = cluster.nodes[node].memory().unwrap();
    println!("{} requests of 1 MiB in {:?}, {stalls} stalls", LARGE_SESSIONS * EACH, start.elapsed());
    println!("memory: {} MiB before, {} MiB after", before >> 20, after >> 20);
    assert!(after < before + ARENA + BOUND, "{before} → {after}");
}

/// A disk of 128 MiB has places for 64 copies. The next volume is refused and says why; what is there goes on, also over a restart of
/// the nodes, and a place that is given back is a place.
#[test]
fn a_volume_that_the_stores_have_no_place_for_is_refused_and_harms_nobody() {
    const PLACES: usize = 64;
    let cluster = Cluster::start(Shape::default()).unwrap();
    let create = |name: &str, mib: usize| {
        cluster.try_trine(&["volume", "create", name, "--size", &format!("{mib}M"), "--shard-size", "1M"]).unwrap()
    };
    assert_eq!(create("many", PLACES - 1).code, 0);
    let refused = create("two-more", 2);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("as many copies as it was formatted for"), "{refused:?}");
    assert_eq!(create("last", 1).code, 0);
    assert_eq!(create("one-more", 1).code, 5);
    cluster.wait_healthy("many").unwrap();
    cluster.trine(&["volume", "delete", "last", "--yes"]).unwrap();
    wait_until("a place again", LONG, || Ok(create("next", 1).code == 0)).unwrap();
    cluster.wait_healthy("next").unwrap();
}
