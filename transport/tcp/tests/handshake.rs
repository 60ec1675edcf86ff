//! From a stream to Established, and every way not to get there.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::needless_range_loop, reason = "a test")]

mod common;

use common::*;
use driver::{Binding, Done, Errno, ListenerId, Op, Span, StreamId};
use std::rc::Rc;
use wire::{
    Flags, HEADER_LEN, Header, Hello, HelloInfo, Limits, Nonce, PREFIX_LEN, ProtectionKey, Reason, Role, Secrets,
    SessionId,
};

#[test]
fn the_counts_of_a_handshake_go_2_1_2_1_and_then_to_rest() {
    let mut world = World::new(1);
    let [client, server] = world.establish();
    let rest = format!("1 owner + {RX} rx");
    let receive = "1 owner + 1 rx";
    let send = "1 owner + 1 tx";
    // connect, hello, challenge, proof, ack
    assert_eq!(world.counts[CLIENT], [receive, send, receive, send, receive, &rest]);
    // hello, challenge, proof, ack: the machine admits at once
    assert_eq!(world.counts[SERVER], [receive, send, receive, send, &rest]);
    assert_eq!(world.holds(CLIENT, client), Some(rest.clone()));
    assert_eq!(world.holds(SERVER, server), Some(rest));
    world.end();
}

#[test]
fn a_peer_that_waits_for_admission_costs_one_hold() {
    let mut world = World::new(2);
    world.sides[SERVER].admits = false;
    world.connect();
    world.pump();
    assert_eq!(world.counts[SERVER].last().map(String::as_str), Some("1 owner"));
    assert_eq!(world.sides[SERVER].seen.len(), 1, "Hello, and no more");
    assert_eq!(world.proven.take().map(|proven| proven.is()), Some(true), "a driver knows it for no stranger");
    world.end();
}

#[test]
fn after_close_flush_completions_bring_the_count_to_one_and_removal_to_zero() {
    let mut world = World::new(3);
    let [client, server] = world.establish();
    let side = &mut world.sides[CLIENT];
    side.net.close(world.now, client, Reason::Closed, &mut side.out);
    world.collect();
    // The receive that is out; all others were at rest.
    assert_eq!(world.holds(CLIENT, client).as_deref(), Some("1 owner + 1 rx"));
    world.counts[CLIENT].clear();
    world.pump();
    assert_eq!(world.counts[CLIENT].last().map(String::as_str), Some("1 owner"));
    assert_eq!(world.holds(CLIENT, client), None);
    assert!(world.sides[CLIENT].net.refs().is_empty());
    assert_eq!(world.down(CLIENT, client), Some(Reason::Closed));
    assert_eq!(world.down(SERVER, server), Some(Reason::PeerClosed));
    world.end();
}

#[test]
fn a_wrong_secret_is_refused_by_whoever_sees_it_first() {
    let (mut connecting, server) = (options(Role::Client, "c", 1, [1; 32]), options(Role::Node, "s", 2, KEY));
    connecting.depth = 4;
    let mut world = World::with(4, connecting, server, 8 << 20);
    let client = world.connect();
    world.pump();
    assert_eq!(world.down(CLIENT, client), Some(Reason::Unauthenticated));
    assert!(world.sides[SERVER].seen.is_empty(), "nobody is announced who has not proven who he is");
    assert_eq!(world.proven.take().map(|proven| proven.is()), Some(false));
    world.end();
}

/// A target whose session is fenced or denied is at its end: nobody who took a dead node's port may say so.
#[test]
fn who_has_proven_nothing_has_no_verdict_to_give() {
    for (said, heard) in [
        (Reason::Fenced, Reason::Unauthenticated),
        (Reason::Denied, Reason::Unauthenticated),
        (Reason::Busy, Reason::Busy),
    ] {
        let mut world = World::new(25);
        world.sides[SERVER].frozen = true;
        let client = world.connect();
        world.pump();
        world.raw_send(StreamId(1), &tcp::refusal(said));
        assert_eq!(world.down(CLIENT, client), Some(heard));
    }
}

#[test]
fn a_proof_serves_on_the_stream_alone_that_it_is_bound_to() {
    let (none, one, other) = (None, Some(Binding([1; 32])), Some(Binding([2; 32])));
    for bindings in [[none, one], [one, none], [one, other]] {
        let mut world = World::new(24);
        world.bindings = bindings;
        let client = world.connect();
        world.pump();
        assert_eq!(world.down(CLIENT, client), Some(Reason::Unauthenticated), "{bindings:?}");
        assert!(world.sides[SERVER].seen.is_empty(), "nobody has proven anything to it");
        world.end();
    }
    let mut world = World::new(25);
    world.bindings = [one; 2];
    world.establish();
    world.end();
}

struct Nobody;
impl Secrets for Nobody {
    fn secret(&self, _: &HelloInfo) -> Option<wire::Secret> {
        None
    }
}

#[test]
fn an_unknown_name_is_rejected_with_the_reason() {
    let mut server = options(Role::Node, "s", 2, KEY);
    server.secrets = Rc::new(Nobody);
    let mut world = World::with(5, options(Role::Client, "c", 1, KEY), server, 8 << 20);
    let client = world.connect();
    world.pump();
    assert_eq!(world.down(CLIENT, client), Some(Reason::Unauthenticated));
    assert_eq!(world.sides[SERVER].net.counters().closed_for(Reason::Unauthenticated), 1);
    world.end();
}

#[test]
fn a_machine_may_reject_a_peer_and_the_peer_learns_why() {
    let mut world = World::new(6);
    world.sides[SERVER].admits = false;
    let client = world.connect();
    world.pump();
    let Some(Seen::Hello(server, _)) = world.sides[SERVER].seen.first().cloned() else { panic!("no Hello") };
    let side = &mut world.sides[SERVER];
    side.net.reject_peer(world.now, server, Reason::Fenced, &mut side.out);
    world.collect();
    world.pump();
    assert_eq!(world.down(CLIENT, client), Some(Reason::Fenced));
    assert_eq!(world.down(SERVER, server), Some(Reason::Fenced));
    world.end();
}

#[test]
fn the_smaller_depth_holds_on_both_sides() {
    let mut connecting = options(Role::Client, "c", 1, KEY);
    connecting.depth = 3;
    let mut world = World::with(7, connecting, options(Role::Node, "s", 2, KEY), 8 << 20);
    let [client, server] = world.establish();
    assert_eq!(world.holds(CLIENT, client).as_deref(), Some("1 owner + 8 rx"));
    assert_eq!(world.holds(SERVER, server).as_deref(), Some("1 owner + 8 rx"));
    assert_eq!(world.sides[CLIENT].net.credits(client), 3);
    world.end();
}

#[test]
fn a_replayed_handshake_is_refused() {
    let mut world = World::new(8);
    world.establish();
    let recorded = world.tapped[CLIENT].clone();
    let ups = world.count_seen(SERVER, |seen| matches!(seen, Seen::Up(_)));
    let stream = world.raw();
    world.raw_send(stream, &recorded);
    world.pass(Span::seconds(1));
    assert!(world.raw_is_closed(stream));
    assert_eq!(world.count_seen(SERVER, |seen| matches!(seen, Seen::Up(_))), ups);
    assert_eq!(world.sides[SERVER].net.counters().closed_for(Reason::Unauthenticated), 1);
    world.end();
}

/// After each possible number of steps the peer dies or falls silent.
fn peer_ends_at_each_step(survivor: usize, reset: bool) {
    for steps in 0.. {
        let mut world = World::new(9);
        let client = world.connect();
        let mut taken = 0;
        while taken < steps && world.step() {
            taken += 1;
        }
        let finished = taken < steps;
        let dead = 1 - survivor;
        if reset {
            world.kill(dead);
        } else {
            world.sides[dead].frozen = true;
        }
        world.pass(Span::seconds(60));
        let left = world.sides[survivor].net.conns(world.now);
        // Nobody can take a connect back that the kernel never finishes; here it always ends.
        assert!(left.is_empty(), "after {steps} steps: {left:?}");
        if survivor == CLIENT {
            assert!(world.down(CLIENT, client).is_some(), "after {steps} steps");
        }
        world.end();
        if finished {
            assert!(steps > 10);
            return;
        }
    }
}

#[test]
fn the_server_dies_at_each_step() {
    peer_ends_at_each_step(CLIENT, true);
}

#[test]
fn the_client_dies_at_each_step() {
    peer_ends_at_each_step(SERVER, true);
}

#[test]
fn the_server_falls_silent_at_each_step() {
    peer_ends_at_each_step(CLIENT, false);
}

#[test]
fn the_client_falls_silent_at_each_step() {
    peer_ends_at_each_step(SERVER, false);
}

#[test]
fn connecting_to_nobody_ends_in_down() {
    let mut world = World::new(10);
    world.listening = false;
    let client = world.connect();
    world.pump();
    assert_eq!(world.down(CLIENT, client), Some(Reason::ConnectFailed));
    world.end();
}

#[test]
fn a_connect_that_hangs_is_given_up_after_its_deadline_and_reported_while_it_lasts() {
    let mut world = World::new(11);
    world.sides[CLIENT].frozen = true;
    let client = world.connect();
    world.pass(tcp::CONNECT_DEADLINE);
    assert_eq!(world.down(CLIENT, client), Some(Reason::ConnectTimeout));
    assert_eq!(world.holds(CLIENT, client).as_deref(), Some("1 owner + 1 rx"), "the driver still has it");
    world.pass(Span::seconds(31));
    assert_eq!(world.sides[CLIENT].net.counters().closing_long, 1);
    world.end();
}

#[test]
fn strangers_are_bounded_in_number_and_memory_and_lock_nobody_out() {
    let mut world = World::new(12);
    let streams: Vec<_> = (0..tcp::MAX_HANDSHAKES + 10).map(|_| world.raw()).collect();
    assert_eq!(streams.iter().filter(|stream| world.raw_is_closed(**stream)).count(), 10);
    assert_eq!(world.sides[SERVER].net.counters().strangers_displaced, 10, "the oldest made room");
    world.establish();
    assert!(world.sides[SERVER].arena.in_use() <= tcp::MAX_HANDSHAKES * 12 * 1024);
    world.pass(tcp::HANDSHAKE_DEADLINE);
    assert!(streams.iter().all(|stream| world.raw_is_closed(*stream)));
    world.end();
}

#[test]
fn a_failing_accept_is_tried_again_after_a_pause_that_grows() {
    let mut world = World::new(13);
    let emfile = || Done { op: Op::Accept { listener: ListenerId(0) }, result: Err(Errno(24)) };
    world.take_accept();
    world.done(SERVER, emfile());
    assert!(!world.take_accept(), "not at once");
    world.now = world.now + Span::millis(50);
    world.collect();
    assert!(world.take_accept());
    world.done(SERVER, emfile());
    world.now = world.now + Span::millis(50);
    world.collect();
    assert!(!world.take_accept(), "the second pause is longer");
    world.now = world.now + Span::millis(50);
    world.collect();
    assert_eq!(world.sides[SERVER].net.counters().accept_errors, 2);
    world.establish();
    world.end();
}

/// A peer made of bytes that knows the secret.
struct Known {
    stream: StreamId,
    key: ProtectionKey,
}

/// A proven peer, right after its proof and what it sends along with it.
fn prove(world: &mut World, after_proof: impl FnOnce(&ProtectionKey) -> Vec<u8>) -> Known {
    let limits = Limits { depth: DEPTH, max_payload: 1 << 20 };
    let info = HelloInfo::new(Role::Client, "raw", 5);
    let secret = wire::ClusterKey(KEY).secret(&info).unwrap();
    let hello = Hello { nonce: Nonce([9; 16]), limits, info }.encode().unwrap();
    let stream = world.raw();
    world.raw_send(stream, &frame(wire::Op::HELLO, Flags::NONE, &hello, 0));
    let answer = world.raw_recv(stream);
    let challenge = wire::Challenge::parse(&answer[HEADER_LEN..]).unwrap();
    let transcript = challenge.verify(&hello, &secret).unwrap();
    let key = transcript.protection_key();
    let mut bytes = frame(wire::Op::PROOF, Flags::NONE, &transcript.prove().encode(), 0);
    bytes.extend(after_proof(&key));
    world.raw_send(stream, &bytes);
    Known { stream, key }
}

#[test]
fn a_stranger_that_sends_much_at_once_gets_no_more_memory_than_another() {
    let mut world = World::new(19);
    let mut info = HelloInfo::new(Role::Client, "raw", 5);
    info.opens = (1..=32).map(|n| (n, n)).collect();
    let volumes = (1..=64).collect();
    info.card = Some(wire::Card { name: "k".repeat(32), serial: 1, read_only: false, volumes });
    info.name = format!("{}@{}", "k".repeat(32), "h".repeat(31));
    info.ticket = Some(wire::Ticket([7; 32]));
    let limits = Limits { depth: DEPTH, max_payload: 1 << 20 };
    let hello = Hello { nonce: Nonce([9; 16]), limits, info }.encode().unwrap();
    // Behind it the beginning of a proof that never ends.
    let proof = frame(wire::Op::PROOF, Flags::NONE, &[0; wire::MAX_HANDSHAKE_BODY], 0);
    let mut bytes = frame(wire::Op::HELLO, Flags::NONE, &hello, 0);
    bytes.extend(&proof[..proof.len() - 1]);
    assert!(bytes.len() >= 2048, "{}", bytes.len());
    let before = world.sides[SERVER].arena.in_use();
    for _ in 0..8 {
        let stream = world.raw();
        world.raw_send(stream, &bytes);
        assert!(!world.raw_is_closed(stream));
    }
    let each = (world.sides[SERVER].arena.in_use() - before) / 8;
    assert!(each <= 12 << 10, "{each} bytes each");
}

fn known(world: &mut World) -> Known {
    prove(world, |_| Vec::new())
}

/// Slot and generation of every hand-made frame, unless said otherwise.
const AT: (u32, u32) = (0, 1);

fn frame(op: wire::Op, flags: Flags, body: &[u8], credits: u16) -> Vec<u8> {
    frame_at(AT, op, flags, body, credits)
}

fn frame_at((slot, generation): (u32, u32), op: wire::Op, flags: Flags, body: &[u8], credits: u16) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN + body.len()];
    Header { credits, ..Header::new(op, flags, slot, generation) }.put(body, &mut bytes);
    bytes
}

/// A body as an honest sender's connection would send it in a frame of slot and generation [`AT`].
fn tagged(session: SessionId, key: &ProtectionKey, op: wire::Op) -> Vec<u8> {
    let mut body = body(1).to_vec();
    assert!(wire::prefix::stamp(&mut body, session, key, op, AT.0, AT.1));
    body
}

#[test]
fn a_message_before_established_is_kept_and_handled_right_after() {
    let mut world = World::new(14);
    world.sides[SERVER].withhold_sends = false;
    world.sides[SERVER].admits = false;
    let Known { stream, key } =
        prove(&mut world, |key| frame(wire::Op(20), Flags::NONE, &tagged(SessionId(1), key, wire::Op(20)), 0));
    let Some(Seen::Hello(id, _)) = world.sides[SERVER].seen.last().cloned() else { panic!("no Hello") };
    let side = &mut world.sides[SERVER];
    let admission = tcp::Admission { hello: side.info.clone(), session: wire::SessionId(1) };
    side.net.accept_peer(world.now, id, admission, &mut side.out);
    world.collect();
    assert_eq!(world.sides[SERVER].seen.len(), 1, "still only Hello");
    world.pump();
    let early = tagged(SessionId(1), &key, wire::Op(20));
    let expected = [Seen::Up(id), Seen::Request(id, 20, early, Vec::new())];
    assert_eq!(world.sides[SERVER].seen[1..], expected);
    assert!(!world.raw_is_closed(stream));
    world.end();
}

#[test]
fn a_request_that_beats_the_completion_of_hello_ack_waits_for_it() {
    let mut world = World::new(15);
    world.sides[SERVER].admits = false;
    let client = world.connect();
    world.pump();
    let Some(Seen::Hello(id, _)) = world.sides[SERVER].seen.last().cloned() else { panic!("no Hello") };
    world.sides[SERVER].withhold_sends = true;
    let side = &mut world.sides[SERVER];
    let admission = tcp::Admission { hello: side.info.clone(), session: wire::SessionId(1) };
    side.net.accept_peer(world.now, id, admission, &mut side.out);
    world.collect();
    world.pump();
    assert!(world.request(CLIENT, client, 1, b"first"), "the client is up");
    world.collect();
    world.pump();
    assert_eq!(world.sides[SERVER].seen.len(), 1, "the server is not");
    world.sides[SERVER].withhold_sends = false;
    world.pump();
    assert_eq!(world.sides[SERVER].seen[1], Seen::Up(id));
    assert_eq!(world.count_seen(CLIENT, |seen| matches!(seen, Seen::Reply(_, 1, Ok(_)))), 1);
    world.end();
}

#[test]
fn a_peer_that_does_not_read_is_closed_however_busily_it_talks() {
    let mut world = World::new(27);
    let stream = prove(&mut world, |_| Vec::new()).stream;
    world.sides[SERVER].withhold_sends = true;
    let begin = world.now;
    while !world.raw_is_closed(stream) {
        assert!(world.now < begin + tcp::SEND_STUCK + Span::seconds(5), "still open");
        // Each of these is answered, and none of the answers is read.
        world.raw_send(stream, &frame(wire::Op::PING, Flags::NONE, &[], 0));
        world.pass(Span::seconds(1));
    }
    assert!(world.now >= begin + tcp::SEND_STUCK);
    assert_eq!(world.sides[SERVER].net.counters().closed_for(Reason::PeerSilent), 1);
    world.end();
}

#[test]
fn over_returned_credits_close_the_connection() {
    let mut world = World::new(16);
    let Known { stream, .. } = known(&mut world);
    world.raw_send(stream, &frame(wire::Op::PONG, Flags::NONE, &[], 1));
    assert!(world.raw_is_closed(stream));
    assert_eq!(world.sides[SERVER].net.counters().closed_for(Reason::Credits), 1);
    world.end();
}

#[test]
fn requests_without_credits_close_the_connection() {
    let mut world = World::new(17);
    world.sides[SERVER].replies = false;
    let Known { stream, key } = known(&mut world);
    let request = frame(wire::Op(99), Flags::NONE, &tagged(SESSION, &key, wire::Op(99)), 0);
    for _ in 0..DEPTH {
        world.raw_send(stream, &request);
    }
    assert!(!world.raw_is_closed(stream));
    assert_eq!(world.sides[SERVER].answers.len(), usize::from(DEPTH), "an unknown op is the machine's to answer");
    world.raw_send(stream, &request);
    assert!(world.raw_is_closed(stream));
    assert_eq!(world.sides[SERVER].net.counters().closed_for(Reason::Credits), 1);
    world.end();
}

const ASKED: wire::Op = wire::Op(17);

/// After a good request, which is delivered, comes one that `forge` makes of the key and a good body.
fn forged(seed: u64, forge: impl FnOnce(&ProtectionKey, Vec<u8>) -> Vec<u8>) {
    let mut world = World::new(seed);
    world.sides[SERVER].replies = false;
    let Known { stream, key } = known(&mut world);
    let good = tagged(SESSION, &key, ASKED);
    world.raw_send(stream, &frame(ASKED, Flags::NONE, &good, 0));
    assert!(!world.raw_is_closed(stream));
    let forged = forge(&key, good);
    world.raw_send(stream, &forged);
    assert!(world.raw_is_closed(stream));
    let side = &world.sides[SERVER];
    assert_eq!(side.net.counters().closed_for(Reason::Unauthenticated), 1);
    assert_eq!(side.net.counters().requests_in, 1);
    assert_eq!(side.answers.len(), 1);
    assert_eq!(world.count_seen(SERVER, |seen| matches!(seen, Seen::Request(..))), 1, "only the good one is delivered");
    world.end();
}

#[test]
fn an_untagged_request_closes_the_connection() {
    forged(30, |_, mut body| {
        body[8..PREFIX_LEN].fill(0);
        frame(ASKED, Flags::NONE, &body, 0)
    });
}

#[test]
fn a_request_with_a_wrong_tag_or_a_changed_body_closes_the_connection() {
    for at in 0..body(0).len() {
        forged(31, |_, mut body| {
            body[at] ^= 1;
            frame(ASKED, Flags::NONE, &body, 0)
        });
    }
}

#[test]
fn a_request_in_another_sessions_name_closes_the_connection() {
    // With this session's key, as a client would that has only its own; and with a key that is another session's.
    let other = SessionId(SESSION.0 + 1);
    forged(32, |key, _| frame(ASKED, Flags::NONE, &tagged(other, key, ASKED), 0));
    let key = ProtectionKey::from_bytes([9; 16]);
    forged(32, |_, _| frame(ASKED, Flags::NONE, &tagged(other, &key, ASKED), 0));
    forged(32, |_, _| frame(ASKED, Flags::NONE, &tagged(SESSION, &key, ASKED), 0));
}

#[test]
fn a_tag_replayed_on_another_connection_closes_that_one() {
    // The same client, the same session name, a new handshake: a new key.
    let mut first = World::new(33);
    let mut recorded = Vec::new();
    let stream = prove(&mut first, |key| {
        recorded = tagged(SESSION, key, ASKED);
        frame(ASKED, Flags::NONE, &recorded, 0)
    })
    .stream;
    assert!(!first.raw_is_closed(stream));
    forged(34, |_, _| frame(ASKED, Flags::NONE, &recorded, 0));
    first.end();
}

#[test]
fn a_tag_replayed_on_another_slot_generation_or_op_closes_the_connection() {
    forged(35, |_, body| frame_at((AT.0 + 1, AT.1), ASKED, Flags::NONE, &body, 0));
    forged(35, |_, body| frame_at((AT.0, AT.1 + 1), ASKED, Flags::NONE, &body, 0));
    forged(35, |_, body| frame(wire::Op(ASKED.0 + 1), Flags::NONE, &body, 0));
}

#[test]
fn a_request_without_room_for_a_prefix_closes_the_connection() {
    for len in [0, PREFIX_LEN - 1] {
        forged(36, |_, body| frame(ASKED, Flags::NONE, &body[..len], 0));
    }
}

#[test]
fn an_unauthenticated_request_is_closed_for_that_before_its_credits_are_looked_at() {
    forged(37, |_, body| frame(ASKED, Flags::NONE, &body[..8], DEPTH));
}

/// The head alone of a request that a payload shall follow.
fn head(body: &[u8], payload_len: u32) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN + body.len()];
    Header { payload_len, ..Header::new(ASKED, Flags::NONE, AT.0, AT.1) }.put(body, &mut bytes);
    bytes
}

#[test]
fn a_payload_is_not_waited_for_if_its_head_is_not_wanted() {
    let closed_for = |seed, send: &dyn Fn(&mut World, &Known)| {
        let mut world = World::new(seed);
        world.sides[SERVER].replies = false;
        let known = known(&mut world);
        send(&mut world, &known);
        assert!(world.raw_is_closed(known.stream), "its payload is waited for");
        let counters = world.sides[SERVER].net.counters();
        let reasons = Reason::ALL.into_iter().filter(|reason| counters.closed_for(*reason) > 0);
        let reasons: Vec<Reason> = reasons.collect();
        world.end();
        reasons
    };
    let forged = closed_for(38, &|world, known| world.raw_send(known.stream, &head(&body(1), 1 << 20)));
    assert_eq!(forged, [Reason::Unauthenticated]);
    let without_credit = closed_for(39, &|world, known| {
        let good = tagged(SESSION, &known.key, ASKED);
        for _ in 0..DEPTH {
            world.raw_send(known.stream, &frame(ASKED, Flags::NONE, &good, 0));
        }
        assert!(!world.raw_is_closed(known.stream));
        world.raw_send(known.stream, &head(&good, 1 << 20));
    });
    assert_eq!(without_credit, [Reason::Credits]);
    let ping = closed_for(40, &|world, known| {
        let mut bytes = vec![0; HEADER_LEN];
        Header { payload_len: 1, ..Header::new(wire::Op::PING, Flags::NONE, 0, 0) }.put(&[], &mut bytes);
        world.raw_send(known.stream, &bytes);
    });
    assert_eq!(ping, [Reason::BadFrame]);
}

/// Each byte says that the peer lives; the message never ends.
#[test]
fn a_message_that_comes_byte_by_byte_closes_the_connection() {
    for (seed, sent_at_once) in [(41, 0), (42, HEADER_LEN + body(1).len()), (43, HEADER_LEN + body(1).len() + 70_000)] {
        let mut world = World::new(seed);
        let Known { stream, key } = known(&mut world);
        let mut bytes = head(&tagged(SESSION, &key, ASKED), 100_000);
        bytes.resize(bytes.len() + 100_000, 7);
        world.raw_send(stream, &bytes[..sent_at_once]);
        let begin = world.now;
        for byte in &bytes[sent_at_once..] {
            world.raw_send(stream, &[*byte]);
            world.pass(Span::seconds(1));
            if world.raw_is_closed(stream) {
                break;
            }
            assert!(world.now < begin + tcp::FRAME_STUCK + Span::seconds(5), "still waited for");
        }
        assert!(world.now >= begin + tcp::FRAME_STUCK);
        assert_eq!(world.sides[SERVER].net.counters().closed_for(Reason::PeerSilent), 1);
        world.end();
    }
}

#[test]
fn a_reply_to_nobody_is_counted_and_dropped() {
    let mut world = World::new(18);
    let Known { stream, .. } = known(&mut world);
    world.raw_send(stream, &frame(wire::Op::REPLY, Flags::REPLY, b"", 0));
    assert!(!world.raw_is_closed(stream));
    assert_eq!(world.sides[SERVER].net.counters().stale_replies, 1);
    world.end();
}

#[test]
fn half_a_header_followed_by_silence_is_closed() {
    let mut world = World::new(19);
    let strange = world.raw();
    world.raw_send(strange, b"TRN1\x01");
    let known = known(&mut world).stream;
    world.raw_send(known, b"TRN1\x01");
    world.pass(Span::seconds(7));
    assert!(world.raw_is_closed(strange) && world.raw_is_closed(known));
    let counters = world.sides[SERVER].net.counters();
    assert_eq!((counters.closed_for(Reason::HandshakeTimeout), counters.closed_for(Reason::PeerSilent)), (1, 1));
    world.end();
}

#[test]
fn pings_cannot_make_the_queue_grow() {
    let mut world = World::new(20);
    let Known { stream, .. } = known(&mut world);
    world.sides[SERVER].withhold_sends = true;
    for _ in 0..100 {
        world.raw_send(stream, &frame(wire::Op::PING, Flags::NONE, &[], 0));
    }
    assert!(world.sides[SERVER].net.conns(world.now).iter().all(|conn| conn.queued <= 2));
    world.end();
}

#[test]
fn random_streams_are_closed_and_nothing_else_happens() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        let mut bytes = pattern(seed, 1 + (seed as usize * 37) % 3000);
        let stream = if seed % 3 == 0 { known(&mut world).stream } else { world.raw() };
        if seed % 2 == 0 {
            let head = b"TRN1\x01";
            let n = bytes.len().min(head.len());
            bytes[..n].copy_from_slice(&head[..n]);
        }
        world.raw_send(stream, &bytes);
        world.pass(Span::seconds(7));
        assert!(world.raw_is_closed(stream));
        assert_eq!(world.count_seen(SERVER, |seen| matches!(seen, Seen::Request(..))), 0);
        world.end();
    }
}
