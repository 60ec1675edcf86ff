//! Very many connections, and very many beginnings of handshakes.

use crate::bench::{Bench, HONEST, OTHER, connect, count, patience, send};
use crate::honest::ask;
use cluster::nbd::{Command, Nbd};
use cluster::peer::{Peer, frame};
use cluster::{Cluster, Shape, wait_until};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wire::{ClusterKey, Hello, HelloInfo, Limits, MAX_PAYLOAD, Nonce, Op, Role};

const CONNECTIONS: usize = 10_000;
const FLOOD: Duration = Duration::from_secs(4);
/// Streams that a node with TLS takes from one listener: a second, and at once.
const OVER_TLS: (f64, f64) = (500.0, 1024.0);

/// As many descriptors as we may have: of the connections that are open at once, ours is one end.
fn descriptors() -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// A Hello as a client's would be, but for the proof that would follow.
fn hello(n: u64) -> Vec<u8> {
    let info = HelloInfo::new(Role::Client, format!("flood-{}", n % 100), n);
    let limits = Limits { depth: 128, max_payload: MAX_PAYLOAD };
    let hello = Hello { nonce: Nonce([n as u8; 16]), limits, info }.encode().unwrap();
    frame(Op::HELLO, 0, &hello, &[])
}

/// Somebody with a good key gets in meanwhile; how long that took, and how often it was tried.
fn comes_in(bench: &Bench) -> String {
    let mut tries = 0;
    let comes = || {
        tries += 1;
        // A flood may push out whoever has not proven itself, and a cut stream is not an answer.
        let mut peer = match Peer::connect(bench.at, &bench.who("newcomer")) {
            Ok(Ok(peer)) => peer,
            Ok(Err(_)) | Err(_) => return Ok(false),
        };
        Ok(peer.ask(node_protocol::op::READ, &bench.body(0, 4096), &[])? == Some(node_protocol::Status::Ok))
    };
    let took = wait_until("a newcomer gets in", patience(), comes).unwrap();
    format!("a newcomer is in after {} ms and {tries} tries", took.as_millis())
}

/// Streams on each of which this is said, and of which 200 are kept open.
fn flood(at: SocketAddr, stop: &AtomicBool, made: &AtomicUsize, said: impl Fn(usize) -> Vec<u8>) {
    let mut open = std::collections::VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        // One that finds no room in the kernel's queue is tried again.
        let Ok(mut stream) = TcpStream::connect_timeout(&at, Duration::from_secs(5)) else { continue };
        send(&mut stream, &said(made.fetch_add(1, Ordering::Relaxed)));
        open.push_back(stream);
        if open.len() > 200 {
            open.pop_front();
        }
    }
}

pub(crate) fn rows(bench: &mut Bench) {
    let all = count("HOSTILE_CONNECTIONS", CONNECTIONS);
    let at_once = (descriptors() - 500).min(all);
    let expected = [("net.strangers-displaced", all as u64 / 2)];
    bench.row(&format!("{all} connections, {at_once} of them at once"), &expected, |bench| {
        let (mut made, mut newcomer) = (0, String::new());
        while made < all {
            let wave = (all - made).min(at_once);
            let open: Vec<TcpStream> = (0..wave).map(|_| connect(bench.at)).collect();
            made += open.len();
            newcomer = comes_in(bench);
        }
        newcomer
    });
    let expected = [("net.strangers-displaced", 100)];
    bench.row("a flood of connects, and of Hellos that nothing follows", &expected, |bench| {
        let (stop, made) = (AtomicBool::new(false), AtomicUsize::new(0));
        let newcomer = std::thread::scope(|scope| {
            scope.spawn(|| flood(bench.at, &stop, &made, |_| Vec::new()));
            scope.spawn(|| flood(bench.at, &stop, &made, |n| hello(n as u64)));
            let begin = Instant::now();
            std::thread::sleep(FLOOD / 2);
            let newcomer = comes_in(bench);
            std::thread::sleep(FLOOD.saturating_sub(begin.elapsed()));
            stop.store(true, Ordering::Relaxed);
            newcomer
        });
        format!("{} streams in {FLOOD:?}; {newcomer}", made.into_inner())
    });
}

/// What a client says first over TLS: it has the node make keys and a signature.
fn client_hello(key: [u8; 32]) -> Vec<u8> {
    let trust = tls::Authority::new(&ClusterKey(key).authority_seed()).unwrap().trust();
    let name = tls::Role::Node.server_name().unwrap();
    let mut tls = tls::rustls::ClientConnection::new(trust.config().unwrap(), name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    hello
}

/// Reads a block of each shard of a volume that was just attached, all of whose lanes are new.
fn reads_all(cluster: &mut Cluster, volume: &str) {
    let place = cluster.attach(volume).unwrap();
    let mut client = Nbd::connect(&place, volume).unwrap();
    for shard in 0..4 {
        client.call(&Command::Read { offset: shard * (4 << 20), len: 4096 }, patience()).unwrap().unwrap();
    }
}

pub(crate) fn over_tls() {
    let mut cluster = Cluster::start_tls(Shape::default()).unwrap();
    cluster.create(HONEST, 16, 4).unwrap();
    cluster.create(OTHER, 16, 4).unwrap();
    let place = cluster.attach(HONEST).unwrap();
    let mut honest = Nbd::connect(&place, HONEST).unwrap();
    let (node, hello) = (cluster.primary(OTHER, 0).unwrap(), client_hello(cluster.key().unwrap()));
    let info = cluster.json(&["node", "show", &(node + 1).to_string()]).unwrap().to_string();
    let at = info.split('"').find_map(|word| word.parse::<SocketAddr>().ok()).unwrap();
    let socket = cluster.dir().join(format!("n{}/control.sock", node + 1));
    let counted = |name: &str| {
        let look = ask(&socket, "{\"look\":true}\n").unwrap();
        look["reactors"].as_array().unwrap().iter().map(|r| r["counters"][name].as_u64().unwrap()).sum::<u64>()
    };

    let (stop, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (begin, before) = (Instant::now(), counted("net.accepted"));
    let (calls, newcomer) = std::thread::scope(|scope| {
        scope.spawn(|| flood(at, &stop, &made, |_| Vec::new()));
        scope.spawn(|| flood(at, &stop, &made, |_| hello.clone()));
        let honest = scope.spawn(|| {
            let mut calls = 0;
            while !stop.load(Ordering::Relaxed) {
                let write = Command::Write { offset: calls % 4096 * 4096, bytes: vec![7; 4096] };
                honest.call(&write, patience()).unwrap().unwrap();
                calls += 1;
            }
            calls
        });
        std::thread::sleep(FLOOD / 2);
        let since = Instant::now();
        reads_all(&mut cluster, OTHER);
        let newcomer = since.elapsed();
        std::thread::sleep(FLOOD.saturating_sub(begin.elapsed()));
        // A machine that is slower than the limit has nothing to show.
        let _slow = wait_until("more streams than are accepted", 5 * FLOOD, || Ok(counted("net.accepts-paused") > 0));
        stop.store(true, Ordering::Relaxed);
        (honest.join().unwrap(), newcomer)
    });
    let (accepted, took) = (counted("net.accepted") - before, begin.elapsed());
    println!(
        "{} streams in {took:?}, {accepted} accepted; {calls} honest writes; a newcomer is served after {newcomer:?}",
        made.into_inner()
    );
    let (rate, burst) = OVER_TLS;
    assert!((accepted as f64) < burst + rate * took.as_secs_f64() + 2.0, "{accepted} accepted in {took:?}");
    assert!(calls > 0);
}
