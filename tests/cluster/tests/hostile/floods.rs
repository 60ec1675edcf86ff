//! Very many connections, and very many beginnings of handshakes.

use crate::bench::{Bench, connect, count, patience, send};
use cluster::peer::{Peer, frame};
use cluster::wait_until;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wire::{Hello, HelloInfo, Limits, MAX_PAYLOAD, Nonce, Op, Role};

const CONNECTIONS: usize = 10_000;
const FLOOD: Duration = Duration::from_secs(4);

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
        let flood = |hellos: bool| {
            let mut open = std::collections::VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                // One that finds no room in the kernel's queue is tried again.
                let Ok(mut stream) = TcpStream::connect_timeout(&bench.at, Duration::from_secs(5)) else { continue };
                let n = made.fetch_add(1, Ordering::Relaxed);
                if hellos {
                    send(&mut stream, &hello(n as u64));
                }
                open.push_back(stream);
                if open.len() > 200 {
                    open.pop_front();
                }
            }
        };
        let newcomer = std::thread::scope(|scope| {
            scope.spawn(|| flood(false));
            scope.spawn(|| flood(true));
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
