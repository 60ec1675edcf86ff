//! A client of the floor: so many requests in flight, for so long. Prints what came of it as JSON.

use super::ring::{Event, Ring};
use super::{HEAD, Head, Kind};
use crate::fio::Ran;
use crate::options::FloorLoad;
use anyhow::{Result, ensure};
use std::net::TcpStream;
use std::time::Instant;

pub(crate) fn run(options: &FloorLoad) -> Result<()> {
    let mut ring = Ring::new(None)?;
    let line = ring.add(TcpStream::connect(options.to)?)?;
    let payload: Vec<u8> = (0..options.bytes).map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()[2]).collect();
    let kind = if options.write { Kind::Write } else { Kind::Read };
    let (began, mut at) = (Instant::now(), 1_u64);
    let mut since = vec![began; options.depth];
    let mut waits = Vec::new();
    let ask = |ring: &mut Ring, id: usize, at: &mut u64| {
        // Anywhere; the nodes bring it within their disks.
        *at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let head = Head { kind, id: id as u64, at: *at >> 16, len: options.bytes };
        ring.send(line, &[&head.bytes(), if options.write { &payload } else { &[] }]);
    };
    for id in 0..options.depth {
        ask(&mut ring, id, &mut at);
    }
    let mut in_flight = options.depth;
    while in_flight > 0 {
        let mut events = Vec::new();
        ring.wait(&mut events)?;
        for event in events {
            ensure!(matches!(event, Event::Received(_)), "the primary went away");
            while let Some(head) = Head::parse(ring.inbox(line))? {
                let whole = HEAD + head.payload(!options.write);
                if ring.inbox(line).len() < whole {
                    break;
                }
                ring.take(line, whole);
                let id = usize::try_from(head.id)?;
                ensure!(head.kind == Kind::Answer && id < since.len(), "an answer to nothing");
                let now = Instant::now();
                waits.push((now - since[id]).as_secs_f64() * 1e6);
                since[id] = now;
                if now - began < options.time {
                    ask(&mut ring, id, &mut at);
                } else {
                    in_flight -= 1;
                }
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let requests = waits.len() as f64;
    let mean = waits.iter().sum::<f64>() / requests;
    waits.sort_by(f64::total_cmp);
    let percentile = |percent: usize| waits[(waits.len() - 1) * percent / 100];
    let ran = Ran { rate: requests / seconds, requests, mean, p50: percentile(50), p99: percentile(99) };
    println!("{}", serde_json::to_string(&ran)?);
    Ok(())
}
