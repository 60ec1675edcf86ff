//! What strangers and greedy clients can have of a node, and that nothing is left of those who come and go.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

mod common;

use common::*;
use driver::{Span, StreamId};
use memory::{Arena, ArenaOptions, Backing, Class, Shares};
use wire::{HEADER_LEN, Hello, HelloInfo, Limits, Nonce, Role};

const ROUNDS: u64 = 1000;

fn hello() -> Vec<u8> {
    let limits = Limits { depth: DEPTH, max_payload: 1 << 20 };
    let hello = Hello { nonce: Nonce([9; 16]), limits, info: HelloInfo::new(Role::Client, "x", 5) }.encode().unwrap();
    let mut said = vec![0; HEADER_LEN + hello.len()];
    wire::Header::new(wire::Op::HELLO, wire::Flags::NONE, 0, 1).put(&hello, &mut said);
    said
}

#[test]
fn those_who_say_hello_and_prove_nothing_lock_nobody_out() {
    let mut world = World::new(1);
    let said = hello();
    let streams: Vec<_> = (0..tcp::MAX_HANDSHAKES)
        .map(|_| {
            let stream = world.raw();
            world.raw_send(stream, &said);
            stream
        })
        .collect();
    assert!(streams.iter().all(|stream| !world.raw_is_closed(*stream)), "each has its challenge");
    world.establish();
    assert_eq!(world.sides[SERVER].net.counters().strangers_displaced, 1);
    assert!(world.raw_is_closed(streams[0]), "the oldest made room");
    world.end();
}

#[test]
fn those_who_say_hello_byte_by_byte_make_room_before_one_that_came_later() {
    let mut world = World::new(10);
    let said = hello();
    let (begun, rest) = said.split_at(said.len() / 2);
    let strangers: Vec<_> = (1..tcp::MAX_HANDSHAKES)
        .map(|_| {
            let stream = world.raw();
            world.raw_send(stream, begun);
            stream
        })
        .collect();
    world.pass(Span::millis(1));
    let genuine = world.raw();
    world.raw_send(genuine, &said);
    assert!(!world.raw_recv(genuine).is_empty(), "its challenge");
    world.pass(Span::millis(1));
    strangers.iter().for_each(|stream| world.raw_send(*stream, &rest[..1]));
    world.raw();
    assert_eq!(world.sides[SERVER].net.counters().strangers_displaced, 1);
    assert!(!world.raw_is_closed(genuine), "it has not been there for longest");
    assert!(world.raw_is_closed(strangers[0]), "however lately it was heard of");
    world.end();
}

#[test]
fn a_flood_of_streams_is_accepted_no_faster_than_the_limit() {
    is_accepted_no_faster_than(tcp::ACCEPT_EVERY);
}

#[test]
fn over_tls_where_each_costs_more_fewer_are_accepted_and_as_many_at_once() {
    is_accepted_no_faster_than(tcp::ACCEPT_EVERY_TLS);
}

fn is_accepted_no_faster_than(every: Span) {
    let mut server = options(wire::Role::Node, "s", 6, KEY);
    server.accept_every = every;
    let mut world = World::with(2, options(wire::Role::Client, "c", 5, KEY), server, 8 << 20);
    let burst = u64::from(tcp::ACCEPT_BURST);
    (0..2 * burst).for_each(|_| _ = world.raw());
    let accepted = |world: &World| world.sides[SERVER].net.counters().accepted;
    // The limit is passed by the one with which it is noticed.
    assert_eq!(accepted(&world), burst + 1);
    assert!(world.sides[SERVER].net.counters().accepts_paused > 0);
    world.pass(Span(10 * every.0));
    assert_eq!(accepted(&world), burst + 11, "and then one after the other");
    world.pass(Span::seconds(60));
    assert_eq!(accepted(&world), 2 * burst);
    world.end();
}

fn scans(world: &World) -> u64 {
    world.sides[SERVER].net.counters().scans
}

#[test]
fn a_listener_that_waits_has_no_connection_looked_at() {
    let mut world = World::new(8);
    let burst = u64::from(tcp::ACCEPT_BURST);
    (0..2 * burst).for_each(|_| _ = world.raw());
    let accepted = |world: &World| world.sides[SERVER].net.counters().accepted;
    let before = (scans(&world), accepted(&world));
    world.pass(Span(burst / 2 * tcp::ACCEPT_EVERY.0));
    assert_eq!(accepted(&world) - before.1, burst / 2);
    assert!(scans(&world) - before.0 <= 1, "{} scans", scans(&world) - before.0);
    world.end();
}

#[test]
fn however_many_connections_there_are_they_are_looked_at_so_often_and_not_more() {
    let mut world = World::new(12);
    // What is due on each of them is so at another time.
    for _ in 0..200 {
        world.establish();
        world.pass(Span::micros(700));
    }
    let before = scans(&world);
    world.pass(Span::seconds(2));
    let each = (scans(&world) - before) / 2;
    assert!(each <= 1000 / 4, "{each} a second");
    world.end();
}

#[test]
fn a_send_that_waits_for_memory_has_no_connection_looked_at() {
    let mut world = World::new(9);
    let arena = world.sides[SERVER].arena.clone();
    let mut all: Vec<_> = std::iter::from_fn(|| arena.take(4096, Class::Settle)).collect();
    // For what it receives, and not for what it says.
    all.pop();
    let client = world.connect();
    world.pump();
    let before = scans(&world);
    world.pass(Span::millis(400));
    let up = |world: &World| world.count_seen(CLIENT, |seen| *seen == Seen::Up(client));
    assert_eq!(up(&world), 0, "there is no memory for a challenge");
    assert!(scans(&world) - before <= 1, "{} scans", scans(&world) - before);
    drop(all);
    world.pass(Span::millis(2));
    assert_eq!(up(&world), 1);
    world.end();
}

/// Payloads of so many bytes, more of them than a client may have.
fn has_no_more_than_its_share(seed: u64, len: usize, (lanes, each_lane): (u64, u64)) {
    let mut world = World::new(seed);
    let share = tcp::client_bytes(world.sides[SERVER].arena.capacity());
    world.sides[SERVER].replies = false;
    // They would soon look for a server that is silent elsewhere: this one does not read, and says that it is there.
    world.other_ways = true;
    let lanes: Vec<_> = (0..lanes).map(|_| world.establish()[0]).collect();
    let piece = pattern(1, len);
    for lane in &lanes {
        for token in 0..each_lane {
            assert!(world.request(CLIENT, *lane, token, &piece));
        }
    }
    world.collect();
    world.pass(Span::seconds(10));
    let each = memory::set_aside(piece.len());
    let held = |world: &World| world.sides[SERVER].answers.len() * each;
    assert!(held(&world) <= share && held(&world) + each > share, "{} of {share}", held(&world));
    assert!(world.sides[SERVER].net.counters().over_budget > 0);
    assert!(lanes.iter().all(|lane| world.down(CLIENT, *lane).is_none()), "they wait, and are not closed for it");
    // However often a turn ends in this moment: what others do is not what these cost.
    let retries = |world: &World| world.sides[SERVER].net.counters().stall_retries;
    let before = retries(&world);
    for _ in 0..50 {
        let (now, side) = (world.now, &mut world.sides[SERVER]);
        side.net.end_turn(now, &mut side.out);
    }
    assert!(retries(&world) - before <= lanes.len() as u64, "each is looked at once");
    // What is answered makes room for the rest.
    world.sides[SERVER].replies = true;
    let answers = std::mem::take(&mut world.sides[SERVER].answers);
    drop(answers);
    world.pass(Span::seconds(1));
    let arrived = world.count_seen(SERVER, |seen| matches!(seen, Seen::Request(..)));
    assert_eq!(arrived as u64, lanes.len() as u64 * each_lane, "all of it arrives");
    world.end();
}

#[test]
fn one_client_has_no_more_than_its_share_of_the_memory_however_many_connections_it_has() {
    has_no_more_than_its_share(3, 200_000, (4, 4));
}

#[test]
fn what_counts_is_what_is_set_aside_and_not_what_is_used_of_it() {
    // Five pages, for which eight are set aside.
    has_no_more_than_its_share(7, 16_385, (8, 7));
}

#[test]
fn what_a_client_asks_for_counts_until_it_is_sent() {
    let mut world = World::new(6);
    // Each answer could be as long as half of what a client may have, and these are.
    world.sides[SERVER].net.expect_needs(|_, _| 512 << 10);
    let [client, _] = world.establish();
    world.sides[SERVER].withhold_sends = true;
    (0..6).for_each(|token| assert!(world.request(CLIENT, client, token, &[])));
    world.collect();
    world.pass(Span::seconds(1));
    let arrived = |world: &World| world.count_seen(SERVER, |seen| matches!(seen, Seen::Request(..)));
    world.sides[SERVER].withhold_sends = false;
    world.pass(Span::seconds(1));
    assert_eq!(arrived(&world), 6, "an answer that is shorter than it might have been counts for what it is");

    world.sides[SERVER].replies = false;
    (6..12).for_each(|token| assert!(world.request(CLIENT, client, token, &[])));
    world.collect();
    world.pass(Span::seconds(1));
    assert_eq!(arrived(&world), 8, "two are the client's share");
    world.sides[SERVER].replies = true;
    drop(std::mem::take(&mut world.sides[SERVER].answers));
    world.pass(Span::seconds(1));
    assert_eq!(arrived(&world), 12);
    world.end();
}

/// Memory is taken by many small requests, each of which is followed by another one as soon as it is answered.
#[test]
fn a_large_request_finds_its_memory_beside_many_small_ones() {
    const BYTES: usize = 16 << 20;
    const SMALL: usize = 64 << 10;
    let even = ArenaOptions { bytes: BYTES, backing: Backing::SmallPages, shares: Shares::even(BYTES) };
    let (client, server) = (options(Role::Client, "c", 1, KEY), options(Role::Node, "s", 2, KEY));
    let mut world = World::with_memory(12, (client, Arena::small(BYTES)), (server, Arena::new(even).unwrap()));
    world.sides[SERVER].replies = false;
    let own = |world: &mut World, n: usize| {
        let mut hello = world.sides[CLIENT].info.clone();
        hello.name = format!("c{n}");
        world.establish_as(hello)[0]
    };
    // A few more than there is memory for: the class's own eighth, and what is common.
    let clients = BYTES / 2 / SMALL / usize::from(DEPTH) + 1;
    let (mut asked, small) = (0, pattern(1, SMALL));
    for n in 0..clients {
        let conn = own(&mut world, n);
        (0..DEPTH).for_each(|token| assert!(world.request(CLIENT, conn, u64::from(token), &small)));
    }
    let large = own(&mut world, clients);
    let mut answer_and_ask = |world: &mut World| {
        let server = &mut world.sides[SERVER];
        let (answer, payload) = server.answers.remove(0);
        drop(payload);
        server.net.reply(world.now, answer, wire::Op::REPLY, &[], None);
        world.collect();
        world.pass(Span::micros(20));
        for seen in std::mem::take(&mut world.sides[CLIENT].seen) {
            if let Seen::Reply(conn, token, Ok(_)) = seen {
                assert!(world.request(CLIENT, conn, token, &small));
                asked += 1;
            }
        }
        world.collect();
        world.pass(Span::micros(20));
        std::mem::take(&mut world.sides[SERVER].seen)
            .iter()
            .any(|seen| matches!(seen, Seen::Request(_, _, _, bytes) if bytes.len() > SMALL))
    };
    world.pass(Span::millis(10));
    (0..500).for_each(|_| assert!(!answer_and_ask(&mut world)));
    assert!(world.request(CLIENT, large, 1, &pattern(2, 1 << 20)));
    world.collect();
    let after = (0..2000).position(|_| answer_and_ask(&mut world));
    assert!(world.sides[SERVER].net.counters().stalls > 0);
    assert!(after.is_some_and(|after| after < 400), "after {after:?} small ones of {asked}");
    // Its connection is read as before, and nobody keeps anything for it.
    world.sides[SERVER].replies = true;
    drop(std::mem::take(&mut world.sides[SERVER].answers));
    world.pass(Span::millis(10));
    assert!(world.sides[SERVER].arena.reserve(Class::Client).is_some());
    world.end();
}

#[test]
fn busy_connections_leave_memory_for_what_they_carry() {
    let mut world = World::new(11);
    let lanes: Vec<_> = (0..150).map(|_| world.establish()[0]).collect();
    let mut pings = vec![0; 128 * HEADER_LEN];
    for ping in pings.chunks_mut(HEADER_LEN) {
        wire::Header::new(wire::Op::PING, wire::Flags::NONE, 0, 0).put(&[], ping);
    }
    // The connecting ends of the streams, in the order in which they came.
    (0..150).for_each(|lane| world.raw_send(StreamId(2 * lane), &pings));
    let arena = &world.sides[SERVER].arena;
    assert!(arena.in_use() > arena.capacity() / 2, "{arena:?}: what is spare is for them");
    assert!(world.request(CLIENT, lanes[0], 1, &pattern(1, 100_000)));
    world.collect();
    world.pass(Span::millis(500));
    assert_eq!(
        world.count_seen(SERVER, |seen| matches!(seen, Seen::Request(..))),
        1,
        "{:?}",
        world.sides[SERVER].arena
    );
    world.end();
}

/// A thousand clients come and go; what they leave is told.
fn rounds(seed: u64, round: impl Fn(&mut World, driver::ConnId, u64)) {
    let mut world = World::new(seed);
    let rest = |world: &World| (world.sides[SERVER].arena.in_use(), world.sides[SERVER].net.refs().len());
    let before = rest(&world);
    for n in 0..ROUNDS {
        let [client, _] = world.establish();
        round(&mut world, client, n);
        world.pass(Span::millis(10));
        assert_eq!(rest(&world), before, "round {n}: {:?}", world.sides[SERVER].net.refs());
        world.sides.iter_mut().for_each(|side| side.seen.clear());
    }
    let counters = world.sides[SERVER].net.counters();
    assert_eq!((counters.established, counters.stale_completions), (ROUNDS, 0));
    world.end();
}

#[test]
fn a_thousand_connections_that_come_and_go_leave_nothing() {
    rounds(4, |world, client, n| {
        assert!(world.request(CLIENT, client, n, &pattern(n, 4096)));
        world.collect();
        world.pump();
        let side = &mut world.sides[CLIENT];
        side.net.close(world.now, client, wire::Reason::Closed, &mut side.out);
        world.collect();
        world.pump();
    });
}

#[test]
fn a_thousand_connections_that_are_cut_in_mid_transfer_leave_nothing() {
    rounds(5, |world, client, n| {
        for token in 0..3 {
            assert!(world.request(CLIENT, client, token, &pattern(n, 60_000)));
        }
        world.collect();
        for _ in 0..n % 60 {
            world.step();
        }
        world.kill(CLIENT);
        world.pump();
        assert!(world.sides[SERVER].net.conns(world.now).is_empty(), "it does not wait for the dead");
        world.sides[CLIENT].frozen = false;
        world.pump();
    });
}
