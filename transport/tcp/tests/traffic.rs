//! Messages on established connections, and the end of those.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::needless_range_loop, reason = "a test")]

mod common;

use common::*;
use driver::{Conn, ConnId, Done, Op, Provider, Span, StreamId, why};
use memory::{Arena, Class};
use refcount::Table;
use tcp::{Lost, Refused};
use wire::{PREFIX_LEN, Reason, Role};

fn replies(world: &World, at: usize) -> Vec<(u64, Result<Vec<u8>, Lost>)> {
    let seen = world.sides[at].seen.iter();
    seen.filter_map(|seen| match seen {
        Seen::Reply(_, token, result) => Some((*token, result.clone())),
        _ => None,
    })
    .collect()
}

#[test]
fn payloads_of_every_size_come_back_as_they_were() {
    let sizes = [1, 31, 4095, 4096, 4097, 16_384, 16_385, 40_000, 65_536, 100_001, (1 << 20) - 1, 1 << 20];
    for seed in 0..10 {
        let mut world = World::new(seed);
        let [client, _] = world.establish();
        for (token, size) in sizes.into_iter().enumerate() {
            let bytes = pattern(seed + token as u64, size);
            assert!(world.request(CLIENT, client, token as u64, &bytes));
            world.collect();
            world.pump();
            assert!(replies(&world, CLIENT).last() == Some(&(token as u64, Ok(bytes))), "{size} bytes");
        }
        let counters = world.sides[SERVER].net.counters();
        assert!(counters.recvs_in_place > 0, "large payloads are received in place");
        world.end();
    }
}

#[test]
fn a_payload_too_large_for_the_connection_is_refused_and_given_back() {
    let mut server = options(Role::Node, "s", 2, KEY);
    server.max_payload = 8192;
    let mut world = World::with(1, options(Role::Client, "c", 1, KEY), server, 8 << 20);
    let [client, _] = world.establish();
    let side = &mut world.sides[CLIENT];
    let large = payload(&side.arena, &[0; 8193]);
    let deadline = world.now + Span::seconds(1);
    let refused = side.net.request(world.now, client, wire::Op(17), &body(1), Some(large), 1, deadline);
    assert!(matches!(refused, Err((Refused::TooLarge, Some(_)))));
    drop(refused);
    world.end();
}

#[test]
fn a_data_request_arrives_with_its_senders_session_and_tag_and_nothing_else_changed() {
    let mut world = World::nodes(16);
    let ids = world.establish();
    for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
        assert!(world.request(from, ids[from], 5, &[]));
        world.collect();
        world.pump();
        let Some(Seen::Request(_, 17, got, _)) = world.sides[to].seen.last().cloned() else { panic!("no request") };
        assert_eq!(got[..4], 7u32.to_le_bytes(), "the session");
        assert_eq!(got[4..8], body(5)[4..8], "the word is the sender's");
        assert_ne!(got[8..PREFIX_LEN], [0; 8], "the tag");
        assert_eq!(got[PREFIX_LEN..], body(5)[PREFIX_LEN..]);
    }
    world.end();
}

#[test]
fn the_connection_overwrites_what_its_user_says_about_session_and_tag() {
    let mut world = World::new(17);
    let [client, _] = world.establish();
    let side = &mut world.sides[CLIENT];
    let deadline = world.now + Span::seconds(1);
    side.net.request(world.now, client, wire::Op(17), &[0xff; 48], None, 1, deadline).unwrap();
    world.collect();
    world.pump();
    assert_eq!(replies(&world, CLIENT), [(1, Ok(Vec::new()))]);
    world.end();
}

#[test]
fn a_data_request_without_room_for_the_prefix_is_refused_and_nothing_is_sent() {
    let mut world = World::new(18);
    let [client, _] = world.establish();
    let sent = world.tapped[CLIENT].len();
    let side = &mut world.sides[CLIENT];
    let deadline = world.now + Span::seconds(1);
    for len in [0, PREFIX_LEN - 1] {
        let payload = payload(&side.arena, b"given back");
        let refused =
            side.net.request(world.now, client, wire::Op::FIRST_DATA, &vec![0; len], Some(payload), 1, deadline);
        assert!(matches!(refused, Err((Refused::TooShort, Some(_)))));
    }
    assert_eq!((side.net.credits(client), side.net.counters().requests_out), (DEPTH, 0));
    side.net.request(world.now, client, wire::Op::FIRST_DATA, &[0; PREFIX_LEN], None, 1, deadline).unwrap();
    assert_eq!(world.tapped[CLIENT].len(), sent);
    world.collect();
    world.pump();
    assert_eq!(replies(&world, CLIENT), [(1, Ok(Vec::new()))]);
    world.end();
}

#[test]
fn one_send_carries_all_that_is_ready_and_one_receive_drains_it() {
    let mut world = World::new(2);
    let [client, _] = world.establish();
    let sends = world.sides[CLIENT].net.counters().sends;
    for token in 0..u64::from(DEPTH) {
        assert!(world.request(CLIENT, client, token, &[]));
    }
    assert_eq!(world.sides[CLIENT].net.credits(client), 0);
    assert!(!world.request(CLIENT, client, 99, &[]), "no credit");
    world.collect();
    world.pump();
    assert_eq!(world.sides[CLIENT].net.counters().sends, sends + 1);
    assert_eq!(replies(&world, CLIENT).len(), usize::from(DEPTH));
    assert_eq!(world.sides[CLIENT].net.credits(client), DEPTH);
    world.end();
}

#[test]
fn messages_arrive_in_the_order_in_which_they_were_sent() {
    let mut world = World::new(3);
    let [client, _] = world.establish();
    for token in 0..u64::from(DEPTH) {
        assert!(world.request(CLIENT, client, token, &pattern(token, 5000 * (token as usize % 3))));
    }
    world.collect();
    world.pump();
    let order: Vec<_> = replies(&world, CLIENT).into_iter().map(|(token, _)| token).collect();
    assert_eq!(order, (0..u64::from(DEPTH)).collect::<Vec<_>>());
    world.end();
}

#[test]
fn a_reply_may_arrive_before_its_own_send_completion() {
    let mut world = World::new(4);
    let [client, _] = world.establish();
    world.sides[CLIENT].withhold_sends = true;
    assert!(world.request(CLIENT, client, 1, b"quick"));
    world.collect();
    world.pump();
    assert_eq!(replies(&world, CLIENT), [(1, Ok(b"quick".to_vec()))]);
    assert_eq!(world.holds(CLIENT, client), Some(format!("1 owner + {RX} rx + 1 tx")));
    world.sides[CLIENT].withhold_sends = false;
    world.pump();
    assert_eq!(world.holds(CLIENT, client), Some(format!("1 owner + {RX} rx")));
    world.end();
}

#[test]
fn a_request_holds_its_connection_until_it_is_answered() {
    let mut world = World::new(5);
    world.sides[SERVER].replies = false;
    let [client, server] = world.establish();
    assert!(world.request(CLIENT, client, 1, b"x"));
    world.collect();
    world.pump();
    assert_eq!(world.holds(SERVER, server), Some(format!("1 owner + {RX} rx + 1 answers")));
    let (answer, payload) = world.sides[SERVER].answers.pop().unwrap();
    world.sides[SERVER].net.reply(world.now, answer, wire::Op::REPLY, b"ok", payload);
    assert_eq!(world.holds(SERVER, server), Some(format!("1 owner + {RX} rx + 1 tx")));
    world.collect();
    world.pump();
    assert_eq!(world.holds(SERVER, server), Some(format!("1 owner + {RX} rx")));
    world.end();
}

#[test]
fn a_dropped_answer_gives_its_credit_back_and_the_request_times_out() {
    let mut world = World::new(6);
    world.sides[SERVER].replies = false;
    let [client, _] = world.establish();
    for token in 0..4 {
        let deadline = world.now + Span::seconds(3);
        assert!(world.request_until(CLIENT, client, token, b"x", deadline));
    }
    world.collect();
    world.pump();
    world.sides[SERVER].answers.clear();
    world.collect();
    world.pump();
    // Half of the depth is owed: a ping brings it.
    assert_eq!(world.sides[SERVER].net.counters().pings, 1);
    assert_eq!(world.sides[CLIENT].net.credits(client), 4, "their slots still wait");
    world.pass(Span::seconds(4));
    assert_eq!(replies(&world, CLIENT), [0, 1, 2, 3].map(|token| (token, Err(Lost::TimedOut))));
    assert_eq!(world.down(CLIENT, client), Some(Reason::RequestTimeout));
    world.end();
}

#[test]
fn a_request_that_times_out_takes_its_connection_along() {
    let mut world = World::new(7);
    world.sides[SERVER].replies = false;
    let [client, server] = world.establish();
    let (soon, late) = (world.now + Span::millis(500), world.now + Span::seconds(60));
    assert!(world.request_until(CLIENT, client, 1, b"late", late));
    assert!(world.request_until(CLIENT, client, 2, b"soon", soon));
    world.collect();
    world.pass(Span::seconds(1));
    assert_eq!(replies(&world, CLIENT), [(2, Err(Lost::TimedOut)), (1, Err(Lost::ConnLost))]);
    assert_eq!(world.down(CLIENT, client), Some(Reason::RequestTimeout));
    assert_eq!(world.down(SERVER, server), Some(Reason::PeerClosed));
    world.end();
}

#[test]
fn idle_connections_stay_up_by_pings() {
    let mut world = World::new(8);
    let [client, server] = world.establish();
    world.pass(Span::seconds(60));
    assert_eq!((world.down(CLIENT, client), world.down(SERVER, server)), (None, None));
    let rest = Some(format!("1 owner + {RX} rx"));
    assert_eq!((world.holds(CLIENT, client), world.holds(SERVER, server)), (rest.clone(), rest));
    assert!(world.sides[CLIENT].net.counters().pings >= 20);
    assert!(world.sides[SERVER].arena.in_use() <= 12 * 1024, "an idle connection costs little");
    world.end();
}

#[test]
fn a_silent_peer_is_closed_and_its_requests_are_lost() {
    let mut world = World::new(9);
    let [client, _] = world.establish();
    world.sides[SERVER].frozen = true;
    assert!(world.request(CLIENT, client, 1, b"anybody?"));
    world.collect();
    world.pass(Span::seconds(7));
    assert_eq!(world.down(CLIENT, client), Some(Reason::PeerSilent));
    assert_eq!(replies(&world, CLIENT), [(1, Err(Lost::ConnLost))]);
    world.end();
}

#[test]
fn a_reactor_that_stood_still_takes_nobody_for_silent_whom_it_has_not_read() {
    let mut world = World::new(31);
    let [client, server] = world.establish();
    world.pass(Span::seconds(1));
    // Longer than a client may be silent, while its own patience lasts.
    world.sides[SERVER].still = true;
    world.pass(Span::seconds(3));
    world.sides[SERVER].still = false;
    // The turn in which it finds all its deadlines over comes before what the client said is read.
    world.collect();
    world.pass(Span::seconds(5));
    assert_eq!((world.down(CLIENT, client), world.down(SERVER, server)), (None, None));
    // One that says nothing from then on is still found out in time.
    world.sides[CLIENT].still = true;
    world.pass(Span::seconds(2));
    assert_eq!(world.down(SERVER, server), Some(Reason::PeerSilent));
    world.sides[CLIENT].still = false;
    world.end();
}

#[test]
fn nobody_asks_a_client_for_anything() {
    let mut world = World::new(10);
    let [client, server] = world.establish();
    assert!(world.request(SERVER, server, 1, b"please"));
    world.collect();
    world.pump();
    assert_eq!(world.down(CLIENT, client), Some(Reason::Unexpected));
    assert_eq!(replies(&world, SERVER), [(1, Err(Lost::ConnLost))]);
    world.end();
}

#[test]
fn stopping_says_goodbye_after_what_is_queued() {
    let mut world = World::new(11);
    world.sides[SERVER].replies = false;
    let [client, server] = world.establish();
    assert!(world.request(CLIENT, client, 1, b"last"));
    world.collect();
    world.pump();
    let side = &mut world.sides[SERVER];
    let (answer, payload) = side.answers.pop().unwrap();
    side.net.reply(world.now, answer, wire::Op::REPLY, b"", payload);
    side.net.stop(world.now, &mut side.out);
    world.collect();
    world.pump();
    assert_eq!(replies(&world, CLIENT), [(1, Ok(b"last".to_vec()))]);
    assert_eq!(world.down(CLIENT, client), Some(Reason::Goodbye));
    assert_eq!(world.down(SERVER, server), Some(Reason::Stopping));
    assert!(world.sides[SERVER].net.finished());
    world.end();
}

/// Both sides are nodes and ask each other; after a while one of them closes, dies, or neither.
fn random_traffic(seed: u64, end: usize) {
    let mut world = World::nodes(seed);
    let ids = world.establish();
    let mut asked = [0u64; 2];
    let mut taken = [0usize; 2];
    for _ in 0..400 {
        let at = world.rng.below(2);
        match world.rng.below(10) {
            0..4 => {
                let sizes = [0, 1, 4096, 9000, 20_000, 70_000];
                let size = sizes[world.rng.below(sizes.len())];
                asked[at] += 1;
                let bytes = pattern(asked[at], size);
                if world.request(at, ids[at], asked[at], &bytes) {
                    taken[at] += 1;
                }
                world.collect();
            }
            4 => world.sides[at].replies = !world.sides[at].replies,
            5 => {
                world.sides[at].withhold_sends = !world.sides[at].withhold_sends;
            }
            6 => {
                let many = world.sides[at].answers.len();
                if many > 0 {
                    let pick = world.rng.below(many);
                    let (answer, payload) = world.sides[at].answers.swap_remove(pick);
                    world.sides[at].net.reply(world.now, answer, wire::Op::REPLY, b"", payload);
                    world.collect();
                }
            }
            _ => {
                for _ in 0..world.rng.below(20) {
                    world.step();
                }
            }
        }
    }
    match end {
        0 => {
            for side in &mut world.sides {
                side.withhold_sends = false;
                for (answer, payload) in side.answers.drain(..) {
                    side.net.reply(world.now, answer, wire::Op::REPLY, b"", payload);
                }
                side.replies = true;
            }
            world.collect();
            world.pump();
            let rest = Some(format!("1 owner + {RX} rx"));
            for at in 0..2 {
                assert_eq!(world.holds(at, ids[at]), rest, "seed {seed}");
                assert_eq!(world.sides[at].net.credits(ids[at]), DEPTH, "all credits are home");
                assert!(replies(&world, at).iter().all(|(_, result)| result.is_ok()));
            }
        }
        1 => {
            let at = world.rng.below(2);
            let side = &mut world.sides[at];
            side.net.close(world.now, ids[at], Reason::Closed, &mut side.out);
            assert!(!world.request(at, ids[at], 0, b"after close"), "submissions after close are refused");
            world.collect();
        }
        _ => world.kill(1),
    }
    world.end();
    for at in 0..2 {
        let mut tokens: Vec<_> = replies(&world, at).into_iter().map(|(token, _)| token).collect();
        assert_eq!(tokens.len(), taken[at], "seed {seed}: every request has one reply");
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), taken[at], "seed {seed}: and only one");
        for (token, result) in replies(&world, at) {
            if let Ok(bytes) = result {
                assert!(bytes == pattern(token, bytes.len()), "seed {seed}");
            }
        }
    }
}

#[test]
fn random_traffic_comes_to_rest_with_all_credits_at_home() {
    (0..60).for_each(|seed| random_traffic(seed, 0));
}

#[test]
fn a_close_with_everything_in_flight_gives_everything_back_once() {
    (0..60).for_each(|seed| random_traffic(seed, 1));
}

#[test]
fn a_peer_that_dies_with_everything_in_flight_leaves_nothing_behind() {
    (0..60).for_each(|seed| random_traffic(seed, 2));
}

/// A fixed conversation with one bit flipped on its way.
fn flipped(to: usize, position: usize, bit: u8) -> usize {
    let mut world = World::new(5);
    world.flip = Some((to, position, bit));
    let client = world.connect();
    world.pump();
    let sent: Vec<_> = [0, 100, 4200].iter().enumerate().map(|(i, size)| pattern(i as u64, *size)).collect();
    for (token, bytes) in sent.iter().enumerate() {
        world.request(CLIENT, client, token as u64, bytes);
    }
    world.collect();
    world.pass(Span::seconds(7));
    for seen in &world.sides[SERVER].seen {
        if let Seen::Request(_, op, body, bytes) = seen {
            let token = usize::from(body[PREFIX_LEN]);
            assert_eq!((*op, body.len(), bytes), (17, PREFIX_LEN + 8, &sent[token]), "byte {position} to {to}");
        }
    }
    for (token, result) in replies(&world, CLIENT) {
        if let Ok(bytes) = result {
            assert_eq!(bytes, sent[usize::try_from(token).unwrap()], "byte {position} to {to}");
        }
    }
    world.end();
    world.tapped[1 - to].len()
}

#[test]
fn a_bit_flipped_at_any_byte_is_never_delivered() {
    for to in [CLIENT, SERVER] {
        let length = flipped(to, usize::MAX, 0);
        assert!(length > 4300);
        // Every byte of handshake, heads and small payload; every third of the large one.
        for position in (0..900).chain((900..length.min(4700)).step_by(3)) {
            flipped(to, position, (position % 8) as u8);
        }
    }
}

#[test]
fn without_memory_reading_stops_and_goes_on_later() {
    let mut server = options(Role::Node, "s", 2, KEY);
    server.max_payload = 256 << 10;
    let mut world = World::with(12, options(Role::Client, "c", 1, KEY), server, 1 << 20);
    let [client, _] = world.establish();
    let hog: Vec<_> = std::iter::from_fn(|| world.sides[SERVER].arena.take(4096, Class::Client)).collect();
    let bytes = pattern(1, 100_000);
    assert!(world.request(CLIENT, client, 1, &bytes));
    world.collect();
    world.pass(Span::seconds(20));
    assert_eq!(world.down(CLIENT, client), None, "pings go on: the client is not cut off");
    assert_eq!(replies(&world, CLIENT), []);
    assert!(world.sides[SERVER].net.counters().stalls > 0);
    drop(hog);
    world.pass(Span::seconds(1));
    assert!(replies(&world, CLIENT) == [(1, Ok(bytes))], "it arrives whole");
    world.end();
}

#[test]
fn a_slot_is_not_used_again_while_anybody_holds_its_connection() {
    let mut world = World::new(13);
    world.sides[SERVER].replies = false;
    let [client, server] = world.establish();
    assert!(world.request(CLIENT, client, 1, b"x"));
    world.collect();
    world.pump();
    let side = &mut world.sides[CLIENT];
    side.net.close(world.now, client, Reason::Closed, &mut side.out);
    world.collect();
    world.pump();
    let refs = world.sides[SERVER].net.refs();
    assert_eq!(refs.len(), 1);
    assert_eq!(refs[0].counts.to_string(), "1 answers", "removed, and still held by who will answer");
    let [second_client, second] = world.establish();
    assert_ne!(second.slot, server.slot);
    assert_eq!(second_client, ConnId { slot: client.slot, generation: client.generation + 1 }, "nobody held that one");

    world.pass(Span::seconds(31));
    assert_eq!(world.sides[SERVER].net.counters().closing_long, 1, "held for long is reported");
    let (answer, payload) = world.sides[SERVER].answers.pop().unwrap();
    world.sides[SERVER].net.reply(world.now, answer, wire::Op::REPLY, b"late", payload);
    assert_eq!(world.sides[SERVER].net.counters().replies_dropped, 1);
    world.collect();
    let [_, third] = world.establish();
    assert_eq!(third, ConnId { slot: server.slot, generation: server.generation + 1 });
    world.end();
}

#[test]
fn a_stale_completion_touches_nothing() {
    let mut world = World::new(14);
    let [client, server] = world.establish();
    let side = &mut world.sides[SERVER];
    side.net.close(world.now, server, Reason::Closed, &mut side.out);
    world.collect();
    world.pump();
    assert!(world.down(CLIENT, client).is_some());
    let [_, again] = world.establish();
    assert_eq!(again, ConnId { slot: server.slot, generation: server.generation + 1 });
    let before = (world.holds(SERVER, again), world.sides[SERVER].seen.len());

    // What a driver would say that mixed up its slots: completions under the old name, and of streams long closed.
    let (table, arena) = (Table::new(), Arena::small(1 << 16));
    let conn = |id| table.insert::<why::Owner>(Conn::new(id, Provider::Framed));
    let recv = |id| {
        let into = arena.take(4096, Class::Client).unwrap();
        Done { op: Op::Recv { stream: StreamId(1), on: conn(id).share(), into, from: 0 }, result: Ok(100) }
    };
    let send = |id| {
        let on = [conn(id).share()].into_iter().collect();
        Done { op: Op::Send { stream: StreamId(1), on, parts: Default::default() }, result: Ok(0) }
    };
    let nowhere = ConnId { slot: 1000, generation: 1 };
    world.done(SERVER, recv(server));
    world.done(SERVER, send(server));
    world.done(SERVER, recv(nowhere));
    world.done(SERVER, send(again));
    world.done(SERVER, Done { op: Op::Close { stream: StreamId(1) }, result: Ok(0) });
    world.done(SERVER, Done { op: Op::Shutdown { stream: StreamId(77) }, result: Ok(0) });
    world.done(
        SERVER,
        Done { op: Op::Connect { on: conn(again).share(), to: World::address(), within: Span(0) }, result: Ok(9) },
    );
    assert_eq!((world.holds(SERVER, again), world.sides[SERVER].seen.len()), before);
    assert_eq!(world.sides[SERVER].net.counters().stale_completions, 7);
    world.pass(Span::seconds(5));
    assert_eq!(world.down(SERVER, again), None, "it goes on");
}

#[test]
fn receive_slots_suffice_for_all_that_a_legal_peer_can_send() {
    let mut world = World::nodes(15);
    let ids = world.establish();
    // As many requests and as many replies as there can be, none of them taken.
    world.sides[SERVER].takes = false;
    for token in 0..u64::from(DEPTH) {
        assert!(world.request(CLIENT, ids[CLIENT], token, b"x"));
        assert!(world.request(SERVER, ids[SERVER], token, b"x"));
    }
    world.collect();
    world.pump();
    assert_eq!(world.holds(SERVER, ids[SERVER]), Some(format!("1 owner + {RX} rx + {DEPTH} answers")));
    assert_eq!(world.sides[SERVER].net.counters().stalls, 0);
    world.sides[SERVER].takes = true;
    world.collect();
    world.pump();
    for at in [CLIENT, SERVER] {
        assert_eq!(replies(&world, at).len(), usize::from(DEPTH));
        assert_eq!(world.holds(at, ids[at]), Some(format!("1 owner + {RX} rx")));
    }
    world.end();
}
