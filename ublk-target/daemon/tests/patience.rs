//! How long the NBD machine waits for clients that say nothing or read nothing, on a clock that costs nothing.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

mod common;

use common::quiet::{Quiet, and_leaves, answers, reads};
use driver::Span;
use std::num::NonZeroU64;
use target_daemon::limits::{CHOOSES, HANDSHAKE_DEADLINE, MAX_SESSIONS, NETWORK, SEND_DEADLINE};
use volume_client::Limits;

const MARGIN: Span = Span::seconds(1);

fn shortly_before(deadline: Span) -> Span {
    Span(deadline.0 - MARGIN.0)
}

#[test]
fn a_client_that_negotiates_for_ever_is_let_go() {
    let mut q = Quiet::new();
    let silent = q.connect(Vec::new(), true);
    q.until("connected", |q| q.look().sessions.len() == 1);
    q.pass(shortly_before(HANDSHAKE_DEADLINE));
    assert!(!q.is_over(silent) && q.look().sessions.len() == 1, "it has its time");
    q.pass(MARGIN);
    q.until("it is let go", |q| q.is_over(silent) && q.look().sessions.is_empty());
    assert_eq!(q.look().counters["nbd_dropped_for_silence"], 1);
    q.stop();
}

#[test]
fn a_burst_of_clients_is_served_to_the_last() {
    let mut q = Quiet::new();
    let says = and_leaves(reads(1, 1));
    let burst: Vec<_> = (0..40).map(|_| q.connect_from_afar(says.clone(), Span::millis(50), true)).collect();
    q.until("all are over", |q| burst.iter().all(|guest| q.is_over(*guest)));
    let answered = burst.iter().filter(|guest| q.heard(**guest).len() == answers(1, 1)).count();
    let counters = q.look().counters;
    assert_eq!((answered, counters["nbd_displaced"], counters["nbd_refused"]), (burst.len(), 0, 0));
    q.stop();
}

#[test]
fn those_who_say_nothing_make_room_a_moment_later_each() {
    let mut q = Quiet::new();
    let silent: Vec<_> = (0..2 * MAX_SESSIONS).map(|_| q.connect(Vec::new(), true)).collect();
    q.until("full", |q| q.look().sessions.len() == MAX_SESSIONS);
    let speaks = q.connect(reads(1, 1), true);
    q.pass(Span(CHOOSES.0 / 2));
    assert!(q.heard(speaks).is_empty() && silent.iter().all(|guest| !q.is_over(*guest)), "they may still choose");
    q.pass(CHOOSES);
    q.until("it is served", |q| q.heard(speaks).len() == answers(1, 1));
    let counters = q.look().counters;
    assert_eq!((counters["nbd_displaced"], counters["nbd_refused"]), (MAX_SESSIONS as u64 + 1, 0));
    q.stop();
}

/// 17 pages each, which are set aside as 32: nearly twice of what a session may have.
#[test]
fn who_says_goodbye_and_listens_to_nothing_takes_no_memory_from_others() {
    let mut q = Quiet::new();
    let greedy = reads(120, 17 * 4096);
    for _ in 0..MAX_SESSIONS {
        q.connect(and_leaves(greedy.clone()), false);
    }
    q.until("they leave with most of what they may have", |q| {
        let sessions = q.look().sessions;
        sessions.len() == MAX_SESSIONS && sessions.iter().all(|s| s.state == "closing" && s.bytes > 6 << 20)
    });
    let stay: Vec<_> = (0..MAX_SESSIONS - 1).map(|_| q.connect(greedy.clone(), false)).collect();
    let honest = q.connect(reads(1, 1), true);
    q.until("it is served", |q| q.heard(honest).len() == answers(1, 1));
    q.pass(MARGIN);
    let view = q.look();
    assert!(view.arena_in_use <= view.arena_bytes - NETWORK, "{} of {}", view.arena_in_use, view.arena_bytes);
    assert_eq!((view.counters["nbd_displaced"], view.counters["nbd_refused"]), (MAX_SESSIONS as u64, 0));
    stay.iter().for_each(|guest| q.read(*guest));
    q.stop();
}

/// A virtual machine that is paused reads nothing either, and loses nothing by it, unless its place is wanted: on a Unix socket, where no kernel
/// ends the stream before.
#[test]
fn who_does_not_read_for_long_is_kept_until_its_place_is_wanted() {
    let mut q = Quiet::new();
    let paused: Vec<_> = (0..MAX_SESSIONS).map(|_| q.connect(reads(4, 1 << 20), false)).collect();
    q.until("full", |q| {
        let sessions = q.look().sessions;
        sessions.len() == MAX_SESSIONS && sessions.iter().all(|session| session.bytes > 0)
    });
    let turned_away = |q: &mut Quiet| {
        let early = q.connect(reads(1, 1), true);
        q.until("an end", |q| q.is_over(early));
        assert!(q.heard(early).is_empty());
    };
    turned_away(&mut q);
    q.pass(shortly_before(SEND_DEADLINE));
    turned_away(&mut q);
    assert_eq!((q.look().counters["nbd_displaced"], q.crowded), (0, 2), "nobody has been quiet for long");
    q.pass(Span::seconds(600));
    assert_eq!(q.look().sessions.len(), MAX_SESSIONS, "nobody wants their places");
    let next = q.connect(reads(1, 1), true);
    q.until("it is served", |q| q.heard(next).len() == answers(1, 1));
    assert_eq!(q.heard(next).last(), Some(&0));
    assert_eq!(q.look().counters["nbd_displaced"], 1);
    paused.iter().for_each(|guest| q.read(*guest));
    q.pass(Span::seconds(10));
    let served = paused.iter().filter(|guest| q.heard(**guest).len() == answers(4, 1 << 20)).count();
    let over = paused.iter().filter(|guest| q.is_over(**guest)).count();
    assert_eq!((served, over), (MAX_SESSIONS - 1, 1), "one made room");
    q.stop();
}

#[test]
fn what_waits_for_its_turn_is_answered_at_once_when_the_target_stops() {
    let mut q = Quiet::limited(Limits { iops: NonZeroU64::new(5), bandwidth: None });
    let guest = q.connect(reads(64, 512), true);
    q.until("all are taken", |q| q.look().counters["nbd_requests"] == 64);
    q.pass(Span::seconds(1));
    assert!(q.heard(guest).len() < answers(32, 512), "five a second");
    q.stop();
    q.until("all is answered", |q| q.is_over(guest));
    assert_eq!(q.heard(guest).len(), answers(64, 512));
}
