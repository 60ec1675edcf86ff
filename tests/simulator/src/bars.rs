//! How long I/O stands still when one machine fails, in virtual time: at most the bars below, whatever the seed.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test")]

use crate::director::{Director, NODES, Sim, VOLUME};
use crate::workload::{Mood, Workload};
use conductor_model::Bytes;
use conductor_model::views::NewVolume;
use driver::{Span, Time};
use sim::{Options, World};
use std::cell::RefCell;
use std::rc::Rc;

/// A replica that fails costs no more than it takes to notice.
const REPLICA: Span = Span::millis(2_000);
/// A primary: until another one serves, and the client has found it.
const PRIMARY: Span = Span::millis(5_000);
/// One shard, so that all I/O meets the node that fails.
const SIZE: Bytes = Bytes(1 << 20);
const SEEDS: u64 = 12;
/// Requests after the failure, so that the longest pause is among them.
const AFTER: u64 = 400;
const LIMIT: Span = Span::seconds(60);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// kill -9.
    Killed,
    /// SIGSTOP: its connections stay open.
    Hung,
    /// Nothing from it arrives anywhere; what is sent to it does.
    HalfOpen,
    /// Its disk answers no more; it lives.
    Stuck,
}

fn requests(d: &Director) -> u64 {
    let shared = d.shared.borrow();
    ["done.client-read", "done.client-write", "done.client-zero", "done.client-discard"]
        .iter()
        .filter_map(|name| shared.counts.get(name))
        .sum()
}

/// The longest time without an answer while so many requests are answered.
fn longest_pause(w: &mut Sim, d: &mut Director, count: u64) -> Span {
    let (mut seen, mut at, mut longest) = (requests(d), w.now(), Span(0));
    let enough = seen + count;
    d.run(w, "traffic", LIMIT, |d, w| {
        let now = requests(d);
        if now > seen {
            let pause = w.now().since(at);
            longest = longest.max(pause);
            (seen, at) = (now, w.now());
        }
        now >= enough
    })
    .unwrap();
    longest
}

/// The pause that the failure of one node costs.
fn pause(seed: u64, how: How, primary: bool) -> Span {
    let mut w: Sim = World::new(seed, Options::default());
    let mut rng = w.rng().fork();
    let mood = Mood { depth: 4, think: Span::millis(2), large_ppm: 0, ..Mood::new(&mut rng, SIZE.0, SIZE.0) };
    let shared = Rc::new(RefCell::new(Workload::new(mood, usize::MAX)));
    let mut d = Director::new(&mut w, Rc::clone(&shared));
    d.run(&mut w, "booting", LIMIT, |d, _| d.all_registered()).unwrap();
    let new = NewVolume { shard_size: SIZE, ..NewVolume::new(VOLUME, SIZE) };
    let (now, rng) = (d.now(&w), &mut d.rng);
    d.service.command(|m| m.create(now, &new, &mut || rng.next_u64())).unwrap();
    d.attach(&mut w, Span(0));
    longest_pause(&mut w, &mut d, 300);
    let calm = longest_pause(&mut w, &mut d, AFTER);
    assert!(calm < Span::millis(500), "seed {seed}: {calm:?} without a failure");

    let first = d.primary_of(0).unwrap();
    let node = if primary { first } else { (first + 1) % NODES };
    let process = d.nodes[node].process;
    match how {
        How::Killed => w.kill(process),
        How::Hung => w.pause(process),
        How::Stuck => w.stick(d.nodes[node].disk),
        How::HalfOpen => {
            let others = d.nodes.iter().map(|n| n.process).chain(d.live_lanes(&w)).filter(|other| *other != process);
            others.collect::<Vec<_>>().into_iter().for_each(|other| w.partition_one_way(process, other));
        }
    }
    let failed_at: Time = w.now();
    let longest = longest_pause(&mut w, &mut d, AFTER);
    assert!(w.now() > failed_at && shared.borrow().failures.is_empty(), "{:?}", shared.borrow().failures);
    assert!(!primary || d.primary_of(0) != Some(first), "seed {seed}: node {first} is still primary");
    longest
}

fn check(how: How, primary: bool, bar: Span) {
    let pauses: Vec<Span> = (0..SEEDS).map(|seed| pause(seed, how, primary)).collect();
    let worst = pauses.iter().max().unwrap();
    assert!(*worst <= bar, "{how:?}: {worst:?} of at most {bar:?}; all: {pauses:?}");
    // Something did fail.
    assert!(*worst >= Span::millis(300), "{how:?}: {pauses:?}");
}

#[test]
fn a_replica_that_dies_hangs_or_falls_silent_costs_the_detection_time() {
    for how in [How::Killed, How::Hung, How::HalfOpen] {
        check(how, false, REPLICA);
    }
}

#[test]
fn a_primary_that_dies_hangs_or_falls_silent_costs_five_seconds_at_most() {
    for how in [How::Killed, How::Hung, How::HalfOpen] {
        check(how, true, PRIMARY);
    }
}

#[test]
fn a_disk_that_answers_no_more_is_a_failure_like_the_others() {
    check(How::Stuck, false, PRIMARY);
    check(How::Stuck, true, PRIMARY);
}
