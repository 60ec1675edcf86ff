//! The other sockets of a cluster: the conductor's, the NBD target's, and those for looking inside.

use crate::bench::{Bench, HONEST, connect, patience, send};
use crate::honest::ask;
use cluster::nbd::{Place, Stream};
use cluster::{Process, Random, wait_until};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// More than the conductor has places for.
const HTTP: usize = 1000;
/// The last of them begin a request without a proof: more than it takes requests at once, fewer than it has places for, so that those who
/// come first make room.
const BEGUN: usize = 600;
/// More than a target has places for.
const NBD: usize = 40;
const GARBAGE: usize = 64 << 10;
/// Memory that the conductor or a target may grow by.
const GROWTH: u64 = 64 << 20;

fn rest(process: &Process) -> (u64, usize) {
    (process.memory().unwrap(), process.descriptors().unwrap())
}

fn back(process: &Process, (memory, descriptors): (u64, usize)) {
    wait_until("descriptors back", patience(), || Ok(process.descriptors()? <= descriptors + 12))
        .unwrap_or_else(|error| panic!("{}: {error:#}, from {descriptors}", process.name));
    let now = process.memory().unwrap();
    assert!(now < memory + GROWTH, "{}: {memory} → {now}", process.name);
}

pub(crate) fn rows(bench: &mut Bench) {
    conductor(bench);
    nbd(bench);
    let (node, target) = (bench.control_socket(), bench.cluster.dir().join(format!("attached/{HONEST}.sock")));
    control(bench, "the node's control socket", &node, "{\"look\":true}\n");
    control(bench, "the target's control socket", &target, "look\n");
}

fn conductor(bench: &mut Bench) {
    bench.row("1,000 connections to the conductor that say nothing, garbage, and no proof", &[], |bench| {
        let at: SocketAddr = bench.cluster.conductor_address().unwrap().parse().unwrap();
        let before = rest(&bench.cluster.conductor);
        let mut random = Random::new(3);
        let silent: Vec<_> = (0..HTTP)
            .map(|n| {
                let mut stream = connect(at);
                if n >= HTTP - BEGUN {
                    send(&mut stream, b"POST /v1/volumes HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n{");
                } else if n % 50 == 0 {
                    send(&mut stream, &random.bytes(GARBAGE));
                }
                stream
            })
            .collect();
        let begin = Instant::now();
        let status = bench.cluster.status().unwrap();
        let took = begin.elapsed();
        let alive = status["nodes"].as_array().unwrap().iter().filter(|node| node["state"] == "alive").count();
        assert_eq!(alive, 3, "heartbeats arrive");
        drop(silent);
        back(&bench.cluster.conductor, before);
        format!("`trine status` beside them within {} ms, all nodes alive", took.as_millis())
    });
}

fn nbd(bench: &mut Bench) {
    let place = bench.cluster.place(HONEST);
    let target = rest(bench.cluster.target(HONEST).unwrap());
    let count = |bench: &Bench, name: &str| {
        let look = bench.cluster.look_at_target(HONEST).unwrap();
        look["target"]["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {look}"))
    };
    bench.row("40 NBD clients that say nothing, and garbage", &[], |bench| {
        let names = ["nbd_displaced", "nbd_closed"];
        let before = names.map(|name| count(bench, name));
        let silent: Vec<Stream> = (0..NBD).map(|_| Stream::connect(&place).unwrap()).collect();
        // A good one gets in beside them.
        cluster::nbd::Nbd::connect(&place, HONEST).unwrap().disconnect().unwrap();
        let mut random = Random::new(4);
        for _ in 0..10 {
            let mut stream = Stream::connect(&place).unwrap();
            let _ = stream.write_all(&random.bytes(GARBAGE));
            let _ = stream.read_to_end(&mut Vec::new());
        }
        drop(silent);
        let shown = || Ok(count(bench, names[0]) > before[0] && count(bench, names[1]) >= before[1] + 10);
        wait_until("they are counted", patience(), shown).unwrap();
        assert!(matches!(place, Place::Unix(_)));
        let after = names.map(|name| count(bench, name));
        format!("displaced {}, closed {}", after[0] - before[0], after[1] - before[1])
    });
    back(bench.cluster.target(HONEST).unwrap(), target);
}

/// Whoever holds a control socket open, or talks slowly or nonsense, keeps nobody else waiting for long.
fn control(bench: &mut Bench, what: &str, socket: &Path, good: &str) {
    bench.row(&format!("garbage, silence and a byte a second on {what}"), &[], |_| {
        let mut random = Random::new(5);
        for _ in 0..5 {
            let mut stream = UnixStream::connect(socket).unwrap();
            let _ = stream.write_all(&random.bytes(GARBAGE));
        }
        let _silent = UnixStream::connect(socket).unwrap();
        let mut slow = UnixStream::connect(socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let begin = Instant::now();
                while begin.elapsed() < patience() && slow.write_all(b" ").is_ok() {
                    std::thread::sleep(Duration::from_millis(500));
                }
                assert!(begin.elapsed() < patience(), "a byte now and then keeps the socket");
            });
            let begin = Instant::now();
            ask(socket, good).unwrap();
            format!("a look was answered within {:.1} s", begin.elapsed().as_secs_f64())
        })
    });
}
