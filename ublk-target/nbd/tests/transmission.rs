//! Conversations after the handshake: replies byte by byte, limits, and ends.

mod common;
use common::*;
use conductor_model::Bytes;
use memory::Class;
use nbd_session::{
    Closed, Extent, Fault, Limits, MAX_EXTENTS, MAX_SMALL_OUTPUT, Outcome, PIECE, STREAM_BUFFER, Session, Tls, What,
};
use std::iter::repeat_n;

const SIZE: u64 = 100 << 20;
const MIB: u32 = 1 << 20;

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;

fn structured() -> Server {
    entered(export(SIZE), Limits::default(), 64 << 20, true)
}

fn plain() -> Server {
    entered(export(SIZE), Limits::default(), 64 << 20, false)
}

fn write(flags: u16, cookie: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    [command(WRITE, flags, cookie, offset, u32::try_from(payload.len()).expect("short")), payload.to_vec()].concat()
}

fn extent(len: u64, hole: bool, zero: bool) -> Extent {
    Extent { len: Bytes(len), hole, zero }
}

#[test]
fn every_command_becomes_the_request_it_says() {
    let mut server = structured();
    server.feed(&write(FUA, 1, 4095, b"abc"));
    server.feed(&command(FLUSH, 0, 2, 0, 0));
    server.feed(&command(TRIM, FUA, 3, 512, u32::try_from(SIZE - 512).expect("below 4 GiB")));
    server.feed(&command(ZEROES, NO_HOLE, 4, 0, 7));
    server.feed(&command(ZEROES, FAST | FUA, 5, 0, 7));
    server.feed(&command(STATUS, ONE, 6, SIZE - 1, 1));
    server.feed(&command(READ, FUA, 7, 1, 2));
    let mut seen = Vec::new();
    for request in &server.requests {
        let what = match &request.what {
            What::Write { payload, fua } => format!("write {:?} {fua}", std::str::from_utf8(payload).expect("text")),
            other => format!("{other:?}"),
        };
        seen.push(format!("{what} {}+{}", request.offset.0, request.len.0));
    }
    let expected = [
        "write \"abc\" true 4095+3",
        "Flush 0+0",
        "Trim { fua: true } 512+104857088",
        "WriteZeroes { fua: false, no_hole: true, fast: false } 0+7",
        "WriteZeroes { fua: true, no_hole: false, fast: true } 0+7",
        "BlockStatus { one: true } 104857599+1",
        "Read 1+2",
    ];
    assert_eq!(seen, expected);
    assert_eq!(server.session.in_flight(), 7);
    assert_eq!(server.said(), b"", "nothing is answered before it is done");
    for cookie in 1..=5 {
        server.finish(0, Outcome::Done);
        assert_eq!(server.said(), simple(cookie, 0));
    }
}

#[test]
fn a_simple_read_is_a_header_and_its_data() {
    let mut server = plain();
    server.feed(&command(READ, 0, 9, 4000, 200));
    let data = server.data(0xaa, 200);
    server.finish(0, data);
    assert_eq!(server.said(), [simple(9, 0), vec![0xaa; 200]].concat());
    server.feed(&command(READ, 0, 10, 4000, 200));
    server.finish(0, Outcome::Failed(Fault::Io));
    assert_eq!(server.said(), simple(10, EIO));
}

#[test]
fn a_structured_read_is_answered_piece_by_piece_as_they_come() {
    let mut server = structured();
    server.feed(&command(READ, 0, 9, PIECE - 10, MIB + 30));
    let ranges: Vec<_> = server.requests.iter().map(|request| (request.offset.0, request.len.0)).collect();
    assert_eq!(ranges, [(PIECE - 10, 10), (PIECE, PIECE), (2 * PIECE, 20)]);
    let data = server.data(3, 20);
    server.finish(2, data);
    assert_eq!(server.said(), data_chunk(9, false, 2 * PIECE, &[3; 20]));
    server.finish(1, Outcome::Failed(Fault::Io));
    assert_eq!(server.said(), error_chunk(9, false, EIO, "input/output error", Some(PIECE)));
    let data = server.data(1, 10);
    server.finish(0, data);
    assert_eq!(server.said(), data_chunk(9, true, PIECE - 10, &[1; 10]));
    assert_eq!((server.session.in_flight(), server.session.bytes_in_flight()), (0, Bytes(0)));
}

#[test]
fn data_that_must_not_be_fragmented_comes_in_one_chunk() {
    let mut server = structured();
    server.feed(&command(READ, DF, 9, PIECE - 10, 30));
    let data = server.data(2, 20);
    server.finish(1, data);
    assert_eq!(server.said(), b"");
    let data = server.data(1, 10);
    server.finish(0, data);
    assert_eq!(server.said(), data_chunk(9, true, PIECE - 10, &[&[1; 10][..], &[2; 20]].concat()));

    server.feed(&command(READ, DF, 10, PIECE - 10, 30));
    let data = server.data(2, 20);
    server.finish(1, data);
    server.finish(0, Outcome::Failed(Fault::Io));
    assert_eq!(server.said(), error_chunk(10, true, EIO, "input/output error", None));
    assert_eq!(server.session.bytes_in_flight(), Bytes(0));

    let reply = server.ask(&command(READ, DF, 11, 0, MIB + 1));
    assert_eq!(reply, error_chunk(11, true, EOVERFLOW, "too large to be answered in one chunk", None));
}

#[test]
fn simple_reads_as_large_as_the_kernels_have_room_for_an_error() {
    let mut server = plain();
    server.feed(&[command(READ, 0, 8, 0, 3 * MIB), command(READ, 0, 9, PIECE / 2, 4 * MIB)].concat());
    assert_eq!(server.requests.len(), 3 + 5, "one does not wait for the other");
    for seed in [1, 2] {
        let data = server.data(seed, MIB as usize);
        server.finish(0, data);
    }
    let data = server.data(4, MIB as usize / 2);
    server.finish(1, data);
    assert_eq!(server.said(), b"");
    server.finish(0, Outcome::Failed(Fault::Io));
    assert_eq!(server.said(), simple(8, EIO));
    for _ in 0..3 {
        let data = server.data(4, MIB as usize);
        server.finish(0, data);
    }
    let data = server.data(4, MIB as usize / 2);
    server.finish(0, data);
    assert_eq!(server.said(), [simple(9, 0), vec![4; 4 << 20]].concat());
    assert_eq!((server.session.in_flight(), server.session.bytes_in_flight(), server.closed), (0, Bytes(0), None));
}

#[test]
fn a_larger_simple_read_goes_out_in_order_and_ends_the_session_if_it_breaks() {
    let mut server = plain();
    let filled = |seed| vec![seed; MIB as usize];
    server.feed(&command(READ, 0, 9, 0, 5 * MIB));
    for (place, seed, said) in [
        (2, 3, vec![]),
        (0, 1, [simple(9, 0), filled(1)].concat()),
        (0, 2, [filled(2), filled(3)].concat()),
        (1, 5, vec![]),
        (0, 4, [filled(4), filled(5)].concat()),
    ] {
        let data = server.data(seed, MIB as usize);
        server.finish(place, data);
        assert_eq!(server.said(), said);
    }
    assert_eq!(server.session.bytes_in_flight(), Bytes(0));

    server.feed(&command(READ, 0, 10, 0, 5 * MIB));
    server.finish(2, Outcome::Failed(Fault::Io));
    let data = server.data(1, MIB as usize);
    server.finish(0, data);
    for _ in 0..3 {
        assert_eq!(server.said(), b"");
        server.finish(0, Outcome::Failed(Fault::NoMemory));
    }
    assert_eq!(server.said(), simple(10, EIO), "the first fault, while there is still a reply to put it in");

    server.feed(&command(READ, 0, 11, 0, 5 * MIB));
    let data = server.data(1, MIB as usize);
    server.finish(0, data);
    server.finish(0, Outcome::Failed(Fault::Io));
    assert_eq!(server.closed, Some(Closed::BrokenReply(Fault::Io)));
    for _ in 0..3 {
        assert!(!server.session.is_finished(), "a request is still out");
        let data = server.data(1, MIB as usize);
        server.finish(0, data);
    }
    assert!(server.session.is_finished());
}

#[test]
fn no_reply_gets_into_a_larger_simple_read() {
    let mut server = plain();
    let words = [command(FLUSH, 0, 1, 0, 0), command(READ, 0, 2, 0, 5 * MIB), command(CACHE, 0, 3, 0, 0)].concat();
    server.feed(&words);
    assert_eq!(server.requests.len(), 1, "the read waits for the flush");
    server.finish(0, Outcome::Done);
    assert_eq!(server.said(), simple(1, 0));
    for reply in [simple(2, 0), vec![], vec![], vec![], vec![]] {
        let data = server.data(7, MIB as usize);
        server.finish(0, data);
        let mut said = server.said();
        if server.session.in_flight() == 0 {
            assert_eq!(said.split_off(said.len() - 16), simple(3, EINVAL));
        }
        assert_eq!(said, [reply, vec![7; MIB as usize]].concat());
    }
}

#[test]
fn a_write_fails_if_any_of_its_pieces_does() {
    let mut server = plain();
    server.feed(&write(0, 9, PIECE - 1, &[7; 2]));
    assert_eq!(server.requests.len(), 2);
    server.finish(1, Outcome::Failed(Fault::NoSpace));
    assert_eq!(server.said(), b"");
    server.finish(0, Outcome::Done);
    assert_eq!(server.said(), simple(9, ENOSPC));
    assert_eq!(server.session.bytes_in_flight(), Bytes(0));
}

#[test]
fn a_rejected_write_is_drained_and_the_stream_stays_in_step() {
    let mut read_only = export(SIZE);
    read_only.read_only = true;
    let payload: Vec<u8> = command(DISC, 0, 0, 0, 0).into_iter().cycle().take(300_000).collect();
    for (export, words, error) in [
        (export(SIZE), write(0, 1, SIZE - 1, &payload), ENOSPC),
        (export(SIZE), write(0, 1, u64::MAX, &payload), ENOSPC),
        (export(SIZE), write(DF, 1, 0, &payload), EINVAL),
        (export(SIZE), write(0x8000, 1, 0, &payload), EINVAL),
        (export(SIZE), [command(WRITE, 0, 1, 0, 33 * MIB), vec![0; 33 << 20]].concat(), EINVAL),
        (read_only, write(0, 1, 0, &payload), 1),
    ] {
        let mut server = entered(export, Limits::default(), 1 << 20, true);
        let (most, last) = words.split_at(words.len() - 1);
        assert_eq!(server.ask(most), b"", "it is still being sent");
        assert_eq!(server.ask(last), simple(1, error));
        server.feed(&command(FLUSH, 0, 2, 0, 0));
        server.finish(0, Outcome::Done);
        assert_eq!(server.said(), simple(2, 0));
    }
}

#[test]
fn what_is_wrong_with_a_command_is_said_in_its_kind_of_reply() {
    for (kind, flags, offset, len, error) in [
        (TRIM, 0, SIZE, 1, EINVAL),
        (TRIM, NO_HOLE, 0, 1, EINVAL),
        (ZEROES, 0, SIZE - 1, 2, ENOSPC),
        (ZEROES, DF, 0, 1, EINVAL),
        (FLUSH, 0, 512, 0, EINVAL),
        (FLUSH, 0, 0, 512, EINVAL),
        (CACHE, 0, 0, 512, EINVAL),
        (77, 0, 0, 512, EINVAL),
    ] {
        assert_eq!(structured().ask(&command(kind, flags, 1, offset, len)), simple(1, error), "{kind} {flags}");
    }
    for (kind, flags, offset, len) in [
        (READ, 0, SIZE - 1, 2),
        (READ, 0, u64::MAX, 1),
        (READ, 0, 0, 32 * MIB + 1),
        (READ, NO_HOLE, 0, 1),
        (STATUS, 0, SIZE, 1),
        (STATUS, 0, 0, 0),
        (STATUS, DF, 0, 1),
    ] {
        let expected = error_chunk(1, true, EINVAL, "invalid request", None);
        assert_eq!(structured().ask(&command(kind, flags, 1, offset, len)), expected, "{kind} {flags}");
        assert_eq!(plain().ask(&command(kind, flags, 1, offset, len)), simple(1, EINVAL), "{kind} {flags}");
    }
    assert_eq!(plain().ask(&command(READ, DF, 1, 0, 1)), simple(1, EINVAL), "DF is of structured replies");
    let mut slow = export(SIZE);
    slow.fast_zero = false;
    let mut server = entered(slow, Limits::default(), 1 << 20, false);
    assert_eq!(server.ask(&command(ZEROES, FAST, 1, 0, 1)), simple(1, EINVAL));
}

#[test]
fn nothing_of_nothing_is_done_at_once() {
    let mut server = structured();
    for kind in [WRITE, TRIM, ZEROES] {
        assert_eq!(server.ask(&command(kind, 0, 1, SIZE, 0)), simple(1, 0));
    }
    assert_eq!(server.ask(&command(READ, 0, 1, SIZE, 0)), chunk(1, true, 0, &[]));
    assert_eq!(plain().ask(&command(READ, 0, 1, SIZE, 0)), simple(1, 0));
}

#[test]
fn block_status_is_merged_cut_off_and_bounded() {
    let mut server = structured();
    let mut ask = |flags, len, extents: Vec<Extent>| {
        server.feed(&command(STATUS, flags, 1, 0, len));
        server.finish(0, Outcome::Extents(extents.into()));
        server.said()
    };
    let status = |extents: &[(u32, u32)]| {
        let mut payload = 1u32.to_be_bytes().to_vec();
        payload.extend(extents.iter().flat_map(|(len, flags)| [len.to_be_bytes(), flags.to_be_bytes()].concat()));
        chunk(1, true, 5, &payload)
    };
    let data = extent(100, false, false);
    let hole = extent(100, true, true);
    assert_eq!(ask(0, 1000, vec![data, data, hole, extent(0, false, false), hole, extent(5000, false, true)]), {
        status(&[(200, 0), (200, 3), (600, 2)])
    });
    assert_eq!(ask(ONE, 1000, vec![data, data, hole]), status(&[(200, 0)]));
    assert_eq!(ask(0, 1000, vec![extent(u64::MAX, true, false)]), status(&[(1000, 1)]));
    assert_eq!(ask(0, 1000, vec![]), error_chunk(1, true, EIO, "input/output error", None));
    let striped = repeat_n([data, hole], MAX_EXTENTS).flatten().collect();
    let few: Vec<_> = repeat_n([(100, 0), (100, 3)], MAX_EXTENTS / 2).flatten().collect();
    assert_eq!(ask(0, MIB, striped), status(&few));
}

#[test]
fn after_the_end_of_the_stream_what_is_in_flight_ends_in_silence() {
    let mut server = structured();
    server.feed(&write(0, 1, 0, &[1; 5000]));
    server.feed(&command(READ, 0, 2, 0, 5000));
    let recv = server.session.next_recv(&server.arena).expect("it reads on");
    server.session.received(recv.into, 0);
    server.turn();
    assert_eq!(server.closed, Some(Closed::EndOfStream));
    assert!(server.session.next_recv(&server.arena).is_none());
    assert_eq!(server.session.in_flight(), 2);
    let data = server.data(1, 5000);
    server.finish(1, data);
    server.finish(0, Outcome::Done);
    assert_eq!(server.said(), b"");
    assert!(server.session.is_finished());
    drop(server.session);
    server.arena.leaks().expect("all memory is back");
}

#[test]
fn after_a_goodbye_what_is_in_flight_is_answered_and_what_comes_behind_it_is_not_read() {
    let mut server = structured();
    server.feed(&write(0, 1, 0, &[1; 5000]));
    server.feed(&command(READ, 0, 2, 0, 5000));
    server.feed(&[command(DISC, 0, 3, 0, 0), command(READ, 0, 4, 0, 100)].concat());
    assert!(server.session.is_leaving() && !server.session.is_transmitting() && server.closed.is_none());
    assert!(server.session.next_recv(&server.arena).is_none());
    assert_eq!(server.session.in_flight(), 2);
    let data = server.data(1, 5000);
    server.finish(1, data);
    server.finish(0, Outcome::Done);
    assert_eq!(server.said(), [data_chunk(2, true, 0, &[1; 5000]), simple(1, 0)].concat());
    server.turn();
    assert_eq!(server.closed, Some(Closed::Disconnected));
    assert!(server.session.is_finished());
    drop(server.session);
    server.arena.leaks().expect("all memory is back");
}

#[test]
fn a_session_that_is_closed_waits_for_its_receive_and_its_send() {
    let mut server = structured();
    server.feed(&command(WRITE, 0, 1, 0, 100_000));
    let recv = server.session.next_recv(&server.arena).expect("the payload");
    server.session.close();
    server.turn();
    assert_eq!(server.closed, Some(Closed::Local));
    assert!(!server.session.is_finished());
    server.session.received(recv.into, 1000);
    server.turn();
    assert!(server.session.is_finished());

    let arena = memory::Arena::small(1 << 20);
    let mut session = Session::new(export(SIZE), Limits::default(), Tls::Off);
    let greeting = session.take_output(&arena, 8).expect("the greeting");
    assert!(session.take_output(&arena, 8).is_none(), "one send at a time");
    session.close();
    assert!(!session.is_finished());
    drop(greeting);
    session.sent();
    assert!(session.is_finished());
}

#[test]
fn garbage_between_commands_ends_the_session() {
    let mut server = structured();
    server.feed(&[0x11; 28]);
    assert_eq!(server.closed, Some(Closed::RequestMagic(0x1111_1111)));
}

#[test]
fn a_large_payload_is_received_in_place_and_a_small_one_with_what_follows_it() {
    let mut server = structured();
    server.feed(&command(WRITE, 0, 1, PIECE - 20_000, 40_000));
    let recv = server.session.next_recv(&server.arena).expect("the first piece");
    assert_eq!((recv.into.len(), recv.from), (20_000, 0));
    server.session.received(recv.into, 1);
    server.turn();
    let recv = server.session.next_recv(&server.arena).expect("the rest of it");
    assert_eq!((recv.into.len(), recv.from), (20_000, 1));
    server.session.received(recv.into, 15_000);
    server.turn();
    let recv = server.session.next_recv(&server.arena).expect("a small rest");
    assert_eq!((recv.into.len(), recv.from), (STREAM_BUFFER, 0));
}

#[test]
fn without_memory_it_stops_reading_and_goes_on_when_there_is_some() {
    let mut server = entered(export(SIZE), Limits::default(), 4 << 20, true);
    let mut hoard = Vec::new();
    for len in [1 << 20, 64 << 10, 4096] {
        while let Some(memory) = server.arena.take(len, Class::Client) {
            hoard.push(memory);
        }
    }
    server.feed(&write(0, 1, 0, &[1; 4096])[..1000]);
    assert!(server.session.wants_memory());
    assert!(server.session.next_recv(&server.arena).is_none());
    assert!(server.requests.is_empty());
    // A client that is gone wants none, so that nothing keeps its place.
    let mut gone = entered(export(SIZE), Limits::default(), 4 << 20, true);
    let mut all = Vec::new();
    for len in [1 << 20, 64 << 10, 4096] {
        all.extend(std::iter::from_fn(|| gone.arena.take(len, Class::Client)));
    }
    gone.feed(&write(0, 1, 0, &[1; 4096])[..1000]);
    assert!(gone.session.wants_memory());
    gone.session.abandon();
    assert!(
        matches!(gone.session.poll(&gone.arena), Some(nbd_session::Event::Closed(_))),
        "asked once, as the target does"
    );
    assert!(!gone.session.wants_memory());
    hoard.pop();
    server.feed(&write(0, 1, 0, &[1; 4096])[1000..]);
    assert_eq!(server.requests.len(), 1);
    // The reply's header has no memory either, until the payload gives its own back.
    server.finish(0, Outcome::Done);
    assert_eq!(server.said(), simple(1, 0));
}

#[test]
fn commands_in_flight_are_bounded() {
    let limits = Limits { commands: 3, ..Limits::default() };
    let mut server = entered(export(SIZE), limits, 1 << 20, true);
    let words: Vec<u8> = (0..5).flat_map(|cookie| command(FLUSH, 0, cookie, 0, 0)).collect();
    assert_eq!(server.receive(&words, usize::MAX), words.len());
    assert_eq!(server.requests.len(), 3);
    assert!(server.session.next_recv(&server.arena).is_none());
    server.finish(1, Outcome::Done);
    assert_eq!(server.requests.len(), 3);
    assert_eq!(server.requests.last().map(|request| request.ticket.slot()), Some(1), "slots are used again");
}

#[test]
fn bytes_in_flight_are_bounded_until_they_are_sent() {
    let limits = Limits { bytes: Bytes(0), ..Limits::default() };
    let mut server = entered(export(SIZE), limits, 8 << 20, true);
    server.feed(&command(READ, 0, 1, 0, 3 * MIB));
    assert_eq!(server.requests.len(), 1, "one piece, however small the limit");
    let data = server.data(1, MIB as usize);
    let request = server.requests.remove(0);
    server.session.finish(request.ticket, data);
    let parts = server.session.take_output(&server.arena, 8).expect("a chunk");
    assert!(server.session.poll(&server.arena).is_none(), "it is not sent");
    assert_eq!(server.session.bytes_in_flight(), Bytes(PIECE));
    drop(parts);
    server.session.sent();
    server.turn();
    assert_eq!(server.requests.len(), 1);
}

#[test]
fn what_is_read_counts_in_pages_until_it_is_sent() {
    for extensions in [false, true] {
        let limits = Limits { bytes: Bytes(2 * PIECE), ..Limits::default() };
        let mut server = entered(export(SIZE), limits, 64 << 20, extensions);
        server.listens = false;
        // On both sides of a boundary between pieces: two requests, and each byte has a page of its own.
        let words = command(READ, 0, 1, PIECE - 1, 2).repeat(5000);
        let mut left = &words[..];
        let mut answered = 0;
        loop {
            let n = server.receive(left, usize::MAX);
            left = &left[n..];
            let asked = server.requests.len();
            (0..asked).for_each(|_| {
                let byte = server.data(1, 1);
                server.finish(0, byte);
            });
            answered += asked;
            if n == 0 && asked == 0 {
                break;
            }
        }
        assert!((200..=512).contains(&answered), "{answered} bytes are held for a client that does not listen");
        let most = usize::try_from(limits.bytes.0).expect("small") + STREAM_BUFFER;
        assert!(server.arena.in_use() <= most, "{} bytes for {answered}", server.arena.in_use());
        server.listens = true;
        while !left.is_empty() || !server.requests.is_empty() {
            server.turn();
            left = &left[server.receive(left, usize::MAX)..];
            (0..server.requests.len()).for_each(|_| {
                let byte = server.data(1, 1);
                server.finish(0, byte);
                answered += 1;
            });
        }
        assert_eq!((answered, server.session.bytes_in_flight()), (10_000, Bytes(0)));
    }
}

#[test]
fn a_client_that_does_not_listen_is_not_answered_for_ever() {
    let mut server = structured();
    let words = command(CACHE, 0, 1, 0, 1).repeat(1000);
    let mut taken = 0;
    let mut rounds = 0;
    while let Some(mut recv) = server.session.next_recv(&server.arena) {
        let n = words.len().min(recv.into.len() - recv.from);
        recv.into[recv.from..recv.from + n / 28 * 28].copy_from_slice(&words[..n / 28 * 28]);
        server.session.received(recv.into, n / 28 * 28);
        assert!(server.session.poll(&server.arena).is_none());
        taken += n / 28;
        rounds += 1;
        assert!(rounds < 100);
    }
    assert!(taken * 16 > MAX_SMALL_OUTPUT);
    server.turn();
    assert_eq!(server.said().len(), taken * 16, "all of it is answered once it listens");
    assert!(server.session.next_recv(&server.arena).is_some());
}
