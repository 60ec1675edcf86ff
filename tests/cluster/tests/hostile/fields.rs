//! Every field of a header and of a request's body at 0, at its maximum and beyond, and data longer and shorter than said.

use crate::bench::Bench;
use cluster::peer::{Peer, read_frame, reseal};
use node_protocol::op;
use std::collections::BTreeMap;
use wire::{HEADER_LEN, MAX_PAYLOAD};

const BODY: usize = 48;

/// A field: where it is, how wide, and the largest value that could be meant.
type Field = (&'static str, usize, usize, u64);

const HEADER: [Field; 9] = [
    ("magic", 0, 4, u32::MAX as u64),
    ("version", 4, 1, 1),
    ("op", 5, 1, 48),
    ("flags", 6, 2, 1),
    ("slot", 8, 4, u32::MAX as u64),
    ("generation", 12, 4, u32::MAX as u64),
    ("body_len", 16, 2, wire::MAX_BODY as u64),
    ("credits", 18, 2, wire::MAX_DEPTH as u64),
    ("payload_len", 20, 4, MAX_PAYLOAD as u64),
];

const FIELDS: [Field; 8] = [
    ("session", 0, 4, u32::MAX as u64),
    ("length", 4, 4, MAX_PAYLOAD as u64),
    ("tag", 8, 8, u64::MAX),
    ("volume", 16, 4, u32::MAX as u64),
    ("shard", 20, 4, u32::MAX as u64),
    ("epoch", 24, 8, u64::MAX),
    ("sequence", 32, 8, u64::MAX),
    ("offset", 40, 8, 8 << 20),
];

fn put(bytes: &mut [u8], (_, at, width, _): Field, value: u64) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// 0, the maximum, one more, and all ones.
fn values((_, _, width, most): Field) -> Vec<u64> {
    let ones = u64::MAX >> (64 - 8 * width);
    let mut values = vec![0, most, most.saturating_add(1).min(ones), ones];
    values.dedup();
    values
}

/// What comes of it: closed, or answered, or neither; the session goes on unless it is closed.
fn outcome(bench: &Bench, peer: &mut Peer, bytes: &[u8]) -> String {
    // What was announced and not sent comes as zeros, so that nothing is waited for; then a good request, which shows whether it goes on.
    let announced = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]).min(MAX_PAYLOAD) as usize;
    let rest = vec![0; announced.saturating_sub(bytes.len() - HEADER_LEN - BODY)];
    let (probe, good) = peer.request(op::READ, bench.body(0, 512).bytes(), &[]);
    let _ = [bytes, &rest, &good].into_iter().try_for_each(|part| peer.send(part));
    let mut said = Vec::new();
    loop {
        match read_frame(peer.stream()) {
            Ok(Some(frame)) if frame.header.slot == probe && frame.header.flags.is_reply() => {
                return if said.is_empty() { "passed over".to_owned() } else { said.join(", ") };
            }
            Ok(Some(frame)) if frame.header.flags.is_reply() => {
                said.push(frame.status().map_or("?".to_owned(), |status| format!("{status:?}")));
            }
            Ok(Some(_)) => {}
            // Cut off in the midst of a frame is closed as well.
            Ok(None) | Err(_) => return "closed".to_owned(),
        }
    }
}

fn table(bench: &Bench, name: &str, make: impl Fn(&mut Peer) -> Vec<u8>, seen: &mut BTreeMap<String, usize>) {
    let mut peer = bench.peer("fields");
    let bytes = make(&mut peer);
    let outcome = outcome(bench, &mut peer, &bytes);
    println!("    {name}: {outcome}");
    *seen.entry(outcome).or_default() += 1;
}

fn summary(seen: &BTreeMap<String, usize>) -> String {
    seen.iter().map(|(outcome, times)| format!("{outcome} ×{times}")).collect::<Vec<_>>().join(", ")
}

pub(crate) fn rows(bench: &mut Bench) {
    let closing = [("net.closed.bad-frame", 8), ("net.closed.unauthenticated", 4), ("net.closed.credits", 1)];
    bench.row("every field of a write's header at 0, maximum, maximum + 1 and all ones", &closing, |bench| {
        let mut seen = BTreeMap::new();
        for field in HEADER {
            for value in values(field) {
                let make = |peer: &mut Peer| {
                    let mut bytes = peer.request(op::WRITE, bench.body(0, 4096).bytes(), &[1; 4096]).1;
                    put(&mut bytes, field, value);
                    reseal(&mut bytes, BODY);
                    bytes
                };
                table(bench, &format!("{} = {value:#x}", field.0), make, &mut seen);
            }
        }
        for (name, at) in [("payload_crc", 24), ("header_crc", 28)] {
            let make = |peer: &mut Peer| {
                let mut bytes = peer.request(op::WRITE, bench.body(0, 4096).bytes(), &[1; 4096]).1;
                bytes[at..at + 4].fill(0);
                if name == "payload_crc" {
                    reseal(&mut bytes, BODY);
                }
                bytes
            };
            table(bench, &format!("{name} = 0"), make, &mut seen);
        }
        summary(&seen)
    });
    let answered = [
        ("net.closed.unauthenticated", 4),
        ("reply.bad-request", 2),
        ("reply.denied", 2),
        ("reply.out-of-range", 2),
        ("reply.stale-epoch", 2),
        ("reply.later", 1),
    ];
    bench.row("every field of a read's and a write's body, likewise", &answered, |bench| {
        let mut seen = BTreeMap::new();
        for (op, payload) in [(op::READ, 0), (op::WRITE, 4096)] {
            for field in FIELDS {
                for value in values(field) {
                    let stamped = matches!(field.0, "session" | "tag");
                    let make = |peer: &mut Peer| {
                        let mut body = bench.body(0, 4096).bytes().to_vec();
                        put(&mut body, field, value);
                        let mut bytes = peer.request(op, &body, &vec![1; payload]).1;
                        if stamped {
                            // The connection fills these in: changed behind it.
                            put(&mut bytes[HEADER_LEN..], field, value);
                            reseal(&mut bytes, BODY);
                        }
                        bytes
                    };
                    table(bench, &format!("{op:?}: {} = {value:#x}", field.0), make, &mut seen);
                }
            }
        }
        summary(&seen)
    });
    let wrong = [("reply.bad-request", 3), ("net.closed.bad-payload", 1)];
    bench.row("data longer and shorter than said", &wrong, |bench| {
        let mut seen = BTreeMap::new();
        for (said, sent) in [(4096, 8192), (8192, 4096), (4096, 0)] {
            let make = |peer: &mut Peer| peer.request(op::WRITE, bench.body(0, said).bytes(), &vec![1; sent]).1;
            table(bench, &format!("a write of {said} bytes with {sent}"), make, &mut seen);
        }
        for more in [0x1000i64, -0x1000] {
            let make = |peer: &mut Peer| {
                let mut bytes = peer.request(op::WRITE, bench.body(0, 8192).bytes(), &[1; 8192]).1;
                bytes[20..24].copy_from_slice(&((8192 + more) as u32).to_le_bytes());
                reseal(&mut bytes, BODY);
                bytes
            };
            table(bench, &format!("a payload said to be {more} bytes longer"), make, &mut seen);
        }
        summary(&seen)
    });
}
