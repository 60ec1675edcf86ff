//! Clients that share a volume: each writes what it holds, and nothing else; what one holds is another's when it is given back, or its
//! session has ended in whatever way.

use crate::common::{Cluster, block};
use conductor_model::api::ReaderList;
use conductor_model::{AttachGeneration, Durability, VolumeId};
use driver::Span;
use node_core::Mail;
use node_protocol::{RangeBody, Status, op};
use sim::ProcessId;
use wire::{Op, READ_ONLY, SHARED};

const LEN: u32 = 4096;
const REGISTER: Op = op::REGISTER_RANGE;
const UNREGISTER: Op = op::UNREGISTER_RANGE;

fn shared(seed: u64) -> Cluster {
    let mut c = Cluster::new(seed);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    c
}

/// One of those who share volume 1.
fn sharer(c: &mut Cluster, name: &str, generation: u64) -> ProcessId {
    lane(c, name, generation, 0)
}

fn lane(c: &mut Cluster, name: &str, generation: u64, lane: u16) -> ProcessId {
    c.client_with(1, |info| {
        name.clone_into(&mut info.name);
        (info.features, info.generation, info.incarnation, info.lane) = (SHARED, generation, generation, lane);
    })
}

fn for_writing(body: RangeBody) -> RangeBody {
    body.for_writing(true)
}

fn patiently(body: RangeBody) -> RangeBody {
    body.for_writing(true).waiting(10_000)
}

/// The answer to a wish that does not wait.
fn hold(c: &mut Cluster, client: ProcessId, from: u32, count: u32) -> Status {
    let token = c.ask_range(client, REGISTER, (1, from, count), for_writing);
    c.answer(token).0
}

/// The like of eight blocks, asked again until the primary serves and has all promises.
fn when_served(c: &mut Cluster, client: ProcessId, from: u32, change: fn(RangeBody) -> RangeBody) -> Status {
    for _ in 0..200 {
        let token = c.ask_range(client, REGISTER, (1, from, 8), change);
        match c.answer(token).0 {
            Status::Later => c.run(Span::millis(50)),
            status => return status,
        }
    }
    panic!("it never served\n{}", c.picture())
}

/// How a write of one block is answered.
fn write(c: &mut Cluster, client: ProcessId, at: u32, of: u8) -> Status {
    let token = c.start_write(client, 1, at, of);
    c.answer(token).0
}

fn is_answered(c: &mut Cluster, token: u64) -> bool {
    c.run(Span::millis(500));
    c.answers.contains_key(&token)
}

#[test]
fn nothing_is_written_outside_of_what_is_held() {
    let mut c = shared(61);
    let (a, b) = (sharer(&mut c, "a", 2), sharer(&mut c, "b", 3));
    assert_eq!(write(&mut c, a, 0, 7), Status::NotHeld, "nothing is held");
    assert_eq!(hold(&mut c, a, 8, 8), Status::Ok);
    assert_eq!(hold(&mut c, b, 15, 2), Status::RangeTaken, "by one block");
    assert_eq!(hold(&mut c, b, 16, 8), Status::Ok, "beside it");
    assert_eq!(
        (write(&mut c, a, 8, 1), write(&mut c, a, 15, 2), write(&mut c, b, 16, 3)),
        (Status::Ok, Status::Ok, Status::Ok)
    );
    for (client, at) in [(a, 7), (a, 16), (b, 15), (b, 24), (b, 8)] {
        assert_eq!(write(&mut c, client, at, 9), Status::NotHeld, "block {at}");
    }
    // Two blocks, of which one is held; half a block of either kind; and what carries no data.
    for (client, what, offset, len, data, expected) in [
        (a, op::WRITE, 15 * 4096, 2 * LEN, [block(9), block(9)].concat(), Status::NotHeld),
        (a, op::WRITE, 16 * 4096 - 100, 200, vec![9; 200], Status::NotHeld),
        (a, op::WRITE, 16 * 4096 - 100, 100, vec![2; 100], Status::Ok),
        (a, op::WRITE_ZEROES, 16 * 4096, LEN, Vec::new(), Status::NotHeld),
        (a, op::DISCARD, 7 * 4096, 2 * LEN, Vec::new(), Status::NotHeld),
        (a, op::WRITE_ZEROES, 8 * 4096, LEN, Vec::new(), Status::Ok),
    ] {
        let token = c.ask(client, 1, what, offset, len, data);
        assert_eq!(c.answer(token).0, expected, "{what:?} {offset} {len}");
    }
    // Everybody reads everything, and a flush is nobody's business.
    for client in [a, b] {
        assert_eq!([7, 8, 15, 16, 24].map(|at| c.read(client, 1, at)), [0, 0, 2, 3, 0]);
        let flush = c.ask(client, 1, op::FLUSH, 0, 0, Vec::new());
        assert_eq!(c.answer(flush).0, Status::Ok);
    }
    // What is given back is written no more.
    let token = c.ask_range(a, UNREGISTER, (1, 8, 8), for_writing);
    assert_eq!(c.answer(token).0, Status::Ok);
    assert_eq!(write(&mut c, a, 8, 9), Status::NotHeld);
    assert_eq!(hold(&mut c, b, 8, 8), Status::Ok);
    assert_eq!(write(&mut c, b, 15, 4), Status::Ok);
    assert_eq!(c.read(a, 1, 15), 4);
}

#[test]
fn a_range_is_asked_for_by_those_who_share_and_makes_sense() {
    let mut c = shared(62);
    let a = sharer(&mut c, "a", 2);
    assert_eq!(hold(&mut c, a, crate::common::BLOCKS - 1, 2), Status::OutOfRange);
    assert_eq!(hold(&mut c, a, u32::MAX, u32::MAX), Status::OutOfRange);
    assert_eq!(hold(&mut c, a, 0, 0), Status::BadRequest);
    let odd = c.ask_range(a, REGISTER, (1, 0, 1), |body| RangeBody { reserved: 1.into(), ..body });
    assert_eq!(c.answer(odd).0, Status::BadRequest);
    let io = c.ask(a, 1, REGISTER, 0, 4096, Vec::new());
    assert_eq!(c.answer(io).0, Status::BadRequest, "it says nothing of blocks");
    let late = c.ask_range(a, REGISTER, (1, 0, 1), |body| RangeBody { epoch: 1.into(), ..body });
    assert_eq!(c.answer(late).0, Status::StaleEpoch);
    c.create(2, &[0, 1, 2], None, Durability::Always);
    let elsewhere = c.ask_range(a, REGISTER, (2, 0, 1), for_writing);
    assert_eq!(c.answer(elsewhere).0, Status::Denied, "another volume");
    let mut c = shared(63);
    let alone = c.client(1, 0);
    assert_eq!(hold(&mut c, alone, 0, 8), Status::Denied, "who has it alone holds all of it");
    assert_eq!(write(&mut c, alone, 0, 7), Status::Ok);
    let reader = c.client_with(1, |info| (info.features, info.generation) = (READ_ONLY, 2));
    assert_eq!(hold(&mut c, reader, 0, 8), Status::Denied);
}

/// `b` waits for what `a` holds; how `a` loses it.
fn released_by(seed: u64, what: &str, end: impl FnOnce(&mut Cluster, ProcessId)) {
    let mut c = shared(seed);
    let (a, b) = (sharer(&mut c, "a", 2), sharer(&mut c, "b", 3));
    assert_eq!(hold(&mut c, a, 0, 8), Status::Ok);
    assert_eq!(write(&mut c, a, 0, 7), Status::Ok);
    let waits = c.ask_range(b, REGISTER, (1, 4, 8), patiently);
    assert!(!is_answered(&mut c, waits), "{what}");
    let primary = c.primary(1);
    let seen: Vec<_> = c.view(primary).unwrap().sessions.iter().map(|s| (s.client.clone(), s.ranges[0].held)).collect();
    assert_eq!(seen, [("a".to_owned(), true), ("b".to_owned(), false)]);
    end(&mut c, a);
    assert_eq!(c.answer(waits).0, Status::Ok, "{what}");
    assert_eq!(write(&mut c, b, 4, 8), Status::Ok, "{what}");
    assert_eq!(c.read(b, 1, 0), 7);
    let late = c.start_write(a, 1, 4, 9);
    c.run(Span::seconds(1));
    let said = c.answers.get(&late).map(|(status, _)| *status);
    assert!(matches!(said, None | Some(Status::NotHeld)), "{what}: {said:?}");
    assert_eq!(c.read(b, 1, 4), 8, "{what}");
}

#[test]
fn what_is_held_is_free_when_it_is_given_back() {
    released_by(64, "given back", |c, a| {
        let token = c.ask_range(a, UNREGISTER, (1, 0, 8), for_writing);
        assert_eq!(c.answer(token).0, Status::Ok);
    });
}

#[test]
fn what_is_held_is_free_when_its_client_is_gone() {
    released_by(65, "its process was killed", |c, a| c.w.kill(a));
}

#[test]
fn what_is_held_is_free_when_its_client_was_evicted() {
    released_by(66, "evicted", |c, _| {
        let list = ReaderList { volume: VolumeId(1), upto: AttachGeneration(3), readers: vec![AttachGeneration(3)] };
        (0..3).for_each(|node| c.mail(node, Mail::Readers(vec![list.clone()])));
    });
}

#[test]
fn what_is_held_is_free_when_its_client_has_begun_another_life() {
    released_by(67, "a newer incarnation", |c, _| {
        let next = c.client_with(1, |info| {
            "a".clone_into(&mut info.name);
            (info.features, info.generation, info.incarnation) = (SHARED, 4, 4);
        });
        let token = c.ask(next, 1, op::READ, 0, LEN, Vec::new());
        assert_eq!(c.answer(token).0, Status::Ok);
    });
}

#[test]
fn a_session_keeps_what_it_holds_while_one_of_its_connections_is_there() {
    let mut c = shared(68);
    let (one, other) = (lane(&mut c, "a", 2, 0), lane(&mut c, "a", 2, 1));
    let b = sharer(&mut c, "b", 3);
    assert_eq!(hold(&mut c, one, 0, 8), Status::Ok);
    assert_eq!(write(&mut c, other, 0, 7), Status::Ok, "it is the session's");
    // What the lost one waited for, nobody waits for any more.
    assert_eq!(hold(&mut c, b, 8, 8), Status::Ok);
    let waits = c.ask_range(one, REGISTER, (1, 8, 8), patiently);
    assert!(!is_answered(&mut c, waits));
    c.w.kill(one);
    c.run(Span::millis(200));
    assert_eq!(write(&mut c, other, 1, 7), Status::Ok);
    assert_eq!(hold(&mut c, b, 0, 8), Status::RangeTaken);
    let token = c.ask_range(b, UNREGISTER, (1, 8, 8), for_writing);
    assert_eq!(c.answer(token).0, Status::Ok);
    assert_eq!(write(&mut c, other, 8, 7), Status::NotHeld);
    assert_eq!(hold(&mut c, b, 8, 8), Status::Ok);
}

#[test]
fn waiting_is_bounded_and_who_waits_is_told() {
    let mut c = shared(69);
    let (a, b) = (sharer(&mut c, "a", 2), sharer(&mut c, "b", 3));
    assert_eq!(hold(&mut c, a, 0, 8), Status::Ok);
    let begun = c.now();
    let waits = c.ask_range(b, REGISTER, (1, 0, 8), |body| body.for_writing(true).waiting(u32::MAX));
    assert_eq!(c.answer(waits).0, Status::RangeTaken);
    let waited = c.now().since(begun);
    assert!((Span::seconds(20)..Span::seconds(21)).contains(&waited), "{waited:?}");
}

#[test]
fn the_next_primary_gives_ranges_first_to_those_who_held_them() {
    let mut c = shared(70);
    let (a, b) = (sharer(&mut c, "a", 2), sharer(&mut c, "b", 3));
    assert_eq!(hold(&mut c, a, 0, 8), Status::Ok);
    assert_eq!(write(&mut c, a, 0, 7), Status::Ok);
    let waits = c.ask_range(b, REGISTER, (1, 0, 8), patiently);
    assert!(!is_answered(&mut c, waits));
    let old = c.primary(1);
    let config = c.configs[&crate::common::shard(1)].clone();
    c.take_over(1, (old + 1) % 3);
    // The old one hears of it, and answers what waits there.
    let next = c.configs[&crate::common::shard(1)].clone();
    assert!(next.epoch > config.epoch);
    c.mail(old, Mail::Assign(vec![next]));
    assert_eq!(c.answer(waits).0, Status::StaleEpoch);
    let (a, b) = (sharer(&mut c, "a", 2), sharer(&mut c, "b", 3));
    let before = |body: RangeBody| body.for_writing(true).held_before(true);
    assert_eq!(when_served(&mut c, a, 0, before), Status::Ok);
    assert_eq!(hold(&mut c, b, 0, 8), Status::RangeTaken);
    assert_eq!(hold(&mut c, b, 16, 8), Status::Later, "somebody may have held it");
    assert_eq!((write(&mut c, a, 0, 8), write(&mut c, a, 16, 8)), (Status::Ok, Status::NotHeld));
    c.run(Span::seconds(13));
    assert_eq!((hold(&mut c, b, 16, 8), hold(&mut c, b, 0, 8)), (Status::Ok, Status::RangeTaken));
    let token = c.ask_range(a, UNREGISTER, (1, 0, 8), for_writing);
    assert_eq!(c.answer(token).0, Status::Ok);
    assert_eq!(hold(&mut c, b, 0, 8), Status::Ok);
    assert_eq!(c.read(b, 1, 0), 8);
}

#[test]
fn what_is_held_stays_held_in_the_next_epoch_of_the_same_primary() {
    let mut c = shared(71);
    let (a, b) = (sharer(&mut c, "a", 2), sharer(&mut c, "b", 3));
    assert_eq!(hold(&mut c, a, 0, 8), Status::Ok);
    let config = c.configs.get_mut(&crate::common::shard(1)).unwrap();
    config.epoch.0 += 1;
    let (next, primary) = (config.clone(), c.primary(1));
    c.mail(primary, Mail::Assign(vec![next]));
    assert_eq!(when_served(&mut c, b, 0, for_writing), Status::RangeTaken);
    assert_eq!(write(&mut c, a, 0, 7), Status::Ok);
}

/// How a client can die without a word.
#[derive(Clone, Copy, Debug)]
enum Death {
    Killed,
    Frozen,
    CutOff,
}

#[test]
fn whatever_becomes_of_a_client_what_it_held_is_the_next_ones_within_two_seconds() {
    for (seed, death) in (60..).zip([Death::Killed, Death::Frozen, Death::CutOff]) {
        for after in [0, 300, 900, 1700] {
            let mut c = shared(seed);
            let first = sharer(&mut c, "a", 1);
            assert_eq!(when_served(&mut c, first, 0, for_writing), Status::Ok);
            let second = sharer(&mut c, "b", 2);
            let token = c.ask_range(second, REGISTER, (1, 0, 8), patiently);
            assert!(!is_answered(&mut c, token), "the first one holds it");
            c.run(Span::millis(after));
            let (begin, node) = (c.w.now(), c.nodes[c.primary(1)]);
            match death {
                Death::Killed => c.w.kill(first),
                Death::Frozen => c.w.pause(first),
                Death::CutOff => c.w.partition(first, node),
            }
            assert_eq!(c.answer(token).0, Status::Ok, "{death:?}");
            let took = c.w.now().since(begin);
            assert!(took <= Span::seconds(2), "{death:?}: {took:?}");
            let sessions = c.view(c.primary(1)).unwrap().sessions;
            assert!(sessions.iter().all(|session| session.client != "a"), "{sessions:?}");
        }
    }
}
