//! Peers that take their time.

use crate::bench::{Bench, Counters, DEADLINES, closed, connect, send};
use cluster::peer::{Identity, Peer, frame, is_closed_within};
use cluster::wait_until;
use node_protocol::{Status, op};
use std::io::Write;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::Op;

const SILENT: usize = 8;
/// Lanes of the one that reads nothing; each asks for so much that a few would have all of the node's memory.
const LANES: u16 = 16;
const READ: u32 = 1 << 20;

/// What waits for the node's deadlines, in threads of its own.
pub(crate) struct Slow {
    rows: Vec<(&'static str, &'static str, u64, JoinHandle<String>)>,
    before: Counters,
    begin: Instant,
}

fn after(begin: Instant) -> String {
    format!("closed after {:.1} s", begin.elapsed().as_secs_f64())
}

impl Slow {
    pub(crate) fn begin(bench: &Bench) -> Self {
        let (before, begin) = (bench.counters(), Instant::now());
        let at = bench.at;
        let silent = move || {
            let mut all: Vec<_> = (0..SILENT).map(|_| connect(at)).collect();
            all.iter_mut().for_each(closed);
            after(begin)
        };
        let hello = move || {
            let mut stream = connect(at);
            for byte in frame(Op::HELLO, 0, &[0; 200], &[]).chunks(1) {
                if stream.write_all(byte).is_err() || is_closed_within(&mut stream, Duration::from_secs(1)).unwrap() {
                    break;
                }
            }
            closed(&mut stream);
            after(begin)
        };
        let mut dripping = bench.peer("dripping");
        let (_, request) = dripping.request(op::WRITE, bench.body(0, 4096).bytes(), &[1; 4096]);
        let drips = move || {
            for byte in request.chunks(1) {
                if dripping.send(byte).is_err() || is_closed_within(dripping.stream(), Duration::from_secs(1)).unwrap()
                {
                    break;
                }
            }
            closed(dripping.stream());
            after(begin)
        };
        let mut mute = bench.peer("mute");
        let mute = move || {
            closed(mute.stream());
            after(begin)
        };
        let (neighbour, deaf) = deaf(bench);
        let deaf = move || format!("{neighbour}; {}", deaf.join().unwrap());
        let timeout = "net.closed.handshake-timeout";
        let rows = vec![
            ("8 silent after accept", timeout, SILENT as u64, std::thread::spawn(silent)),
            ("a Hello at one byte per second", timeout, SILENT as u64 + 1, std::thread::spawn(hello)),
            ("a request at one byte per second", "net.frames-stuck", 1, std::thread::spawn(drips)),
            ("16 lanes ask for 512 MiB and read nothing", "net.sends-stuck", 1, std::thread::spawn(deaf)),
            ("silent after the handshake", "net.closed.peer-silent", 2, std::thread::spawn(mute)),
        ];
        Self { rows, before, begin }
    }

    pub(crate) fn end(self, bench: &mut Bench) {
        for (what, counter, times, thread) in self.rows {
            let answered = thread.join().unwrap();
            bench.expect(what, &self.before, &[(counter, times)]);
            // Others were counted meanwhile.
            let mut counted = bench.counted_since(&self.before);
            counted.retain(|name, _| name == counter || (name == "net.over-budget" && counter == "net.sends-stuck"));
            bench.note(what, &answered, &counted, self.begin);
        }
        bench.at_rest("slow peers");
    }
}

/// A client that asks and does not read. Its neighbours read all the same, and its memory is bounded; when the node has ended it, it says so.
fn deaf(bench: &Bench) -> (String, JoinHandle<String>) {
    let before = bench.cluster.nodes[bench.node].memory().unwrap();
    let lane = |lane| bench.try_peer(&Identity { lane, ..bench.who("deaf") }).unwrap();
    let mut lanes: Vec<Peer> = (0..LANES).map(lane).collect();
    for peer in &mut lanes {
        for _ in 0..peer.depth {
            let request = peer.request(op::READ, bench.body(0, READ).bytes(), &[]).1;
            peer.send(&request).unwrap();
        }
    }
    let counted = || Ok(bench.counters().get("net.over-budget").is_some_and(|n| *n > 0));
    wait_until("its budget is used up", DEADLINES, counted).unwrap();
    let mut worst = Duration::ZERO;
    let mut peer = bench.peer("neighbour");
    for _ in 0..20 {
        let begin = Instant::now();
        assert_eq!(peer.ask(op::READ, &bench.body(0, READ), &[]).unwrap(), Some(Status::Ok));
        let unaligned = bench.body(u64::from(READ) + 512, 4096);
        assert_eq!(peer.ask(op::WRITE, &unaligned, &[1; 4096]).unwrap(), Some(Status::Ok));
        worst = worst.max(begin.elapsed());
    }
    let grown = bench.cluster.nodes[bench.node].memory().unwrap().saturating_sub(before) >> 20;
    // The one that got most of its answers as far as the node's socket takes them; the others' ends are no different.
    let mut last = lanes.swap_remove(0);
    let wait = move || {
        let begin = Instant::now();
        // It talks all the time, as one that is only slow would.
        while begin.elapsed() < DEADLINES && last.send(&frame(Op::PING, 0, &[], &[])).is_ok() {
            std::thread::sleep(Duration::from_millis(500));
        }
        assert!(begin.elapsed() < DEADLINES, "a peer that reads nothing was kept");
        after(begin)
    };
    (
        format!("memory +{grown} MiB; a neighbour's 1 MiB read and merged write within {} ms", worst.as_millis()),
        std::thread::spawn(wait),
    )
}

pub(crate) fn half_closed(bench: &mut Bench) {
    bench.row(
        "a half-closed connection, in a handshake and with a request under way",
        &[("net.closed.by-peer", 2)],
        |bench| {
            let mut stream = connect(bench.at);
            send(&mut stream, &frame(Op::HELLO, 0, &[0; 64], &[])[..40]);
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            closed(&mut stream);
            let mut peer = bench.peer("half");
            let request = peer.request(op::WRITE, bench.body(0, 1 << 20).bytes(), &vec![1; 1 << 20]).1;
            peer.send(&request).unwrap();
            peer.stream().shutdown(std::net::Shutdown::Write).unwrap();
            closed(peer.stream());
            "closed".to_owned()
        },
    );
}
