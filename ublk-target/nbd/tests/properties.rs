//! Whatever a client sends, in whatever pieces, and however its requests end: data is right, replies add up, memory is bounded.

mod common;
use common::ram_disk::RamDisk;
use common::*;
use conductor_model::Bytes;
use memory::{Arena, PAGE};
use nbd_session::{Fault, Limits, Outcome, PIECE, STREAM_BUFFER, Ticket};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Not a multiple of anything, and more than two pieces.
const SIZE: usize = (5 << 19) + 123;
/// Tight, so that commands wait for room.
const LIMITS: Limits = Limits { commands: 5, bytes: Bytes(2 * PIECE) };

#[derive(Clone, Debug)]
struct Op {
    kind: u16,
    flags: u16,
    offset: u64,
    len: u32,
    byte: u8,
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![6 => 0..9000u32, 1 => 0..2_000_000u32];
    let kind = prop_oneof![4 => Just(READ), 4 => Just(WRITE), 1 => Just(TRIM), 1 => Just(ZEROES), 1 => Just(STATUS), 1 => Just(FLUSH)];
    let flags = prop_oneof![4 => Just(0), 1 => Just(FUA), 1 => 0..64u16];
    (kind, flags, 0..SIZE as u64 + 5000, len, any::<u8>()).prop_map(|(kind, flags, offset, len, byte)| {
        let (offset, len) = if kind == FLUSH { (0, 0) } else { (offset, len) };
        Op { kind, flags, offset, len, byte }
    })
}

/// What the client makes of the replies to one command.
#[derive(Default, Debug)]
struct Answer {
    data: BTreeMap<u64, Vec<u8>>,
    extents: Vec<(u32, u32)>,
    error: u32,
    done: bool,
}

/// Reads replies as a client does: only `ops` tell it whether data follows a simple one.
fn parse(mut bytes: &[u8], ops: &[Op]) -> Vec<Answer> {
    fn number<const N: usize>(bytes: &mut &[u8]) -> u64 {
        let (head, rest) = bytes.split_at(N);
        *bytes = rest;
        head.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
    let mut answers: Vec<Answer> = ops.iter().map(|_| Answer::default()).collect();
    while !bytes.is_empty() {
        let magic = number::<4>(&mut bytes);
        if magic == 0x6744_6698 {
            let error = u32::try_from(number::<4>(&mut bytes)).expect("four bytes");
            let cookie = usize::try_from(number::<8>(&mut bytes)).expect("ours");
            let answer = &mut answers[cookie];
            assert!(!answer.done, "two replies to one command");
            answer.done = true;
            answer.error = error;
            if ops[cookie].kind == READ && error == 0 {
                let (data, rest) = bytes.split_at(ops[cookie].len as usize);
                answer.data.insert(ops[cookie].offset, data.to_vec());
                bytes = rest;
            }
            continue;
        }
        assert_eq!(magic, 0x668e_33ef);
        let (flags, kind) = (number::<2>(&mut bytes), number::<2>(&mut bytes));
        let answer = &mut answers[usize::try_from(number::<8>(&mut bytes)).expect("ours")];
        let len = number::<4>(&mut bytes);
        let (mut payload, rest) = bytes.split_at(usize::try_from(len).expect("ours"));
        bytes = rest;
        assert!(!answer.done, "a chunk after the last");
        answer.done = flags == 1;
        match kind {
            0 => assert!(payload.is_empty() && answer.done),
            1 => {
                let offset = number::<8>(&mut payload);
                assert!(!payload.is_empty());
                assert!(answer.data.insert(offset, payload.to_vec()).is_none());
            }
            5 => {
                assert_eq!(number::<4>(&mut payload), 1);
                while !payload.is_empty() {
                    let field = |n: u64| u32::try_from(n).expect("four bytes");
                    let len = field(number::<4>(&mut payload));
                    answer.extents.push((len, field(number::<4>(&mut payload))));
                }
            }
            0x8001 | 0x8002 => {
                answer.error = u32::try_from(number::<4>(&mut payload)).expect("four bytes");
                assert_eq!(number::<2>(&mut payload) + if kind == 0x8002 { 8 } else { 0 }, payload.len() as u64);
            }
            kind => panic!("chunk of kind {kind}"),
        }
    }
    answers
}

/// What the disk must say to one command, carried out on the model.
fn expect(op: &Op, model: &mut [u8], structured: bool) -> Result<Option<Vec<u8>>, u32> {
    let legal = match op.kind {
        READ if structured => DF,
        ZEROES => NO_HOLE | FAST,
        STATUS if structured => ONE,
        _ => 0,
    };
    if op.flags & !(legal | FUA) != 0 || (op.kind == STATUS && (!structured || op.len == 0)) {
        return Err(22);
    }
    let from = usize::try_from(op.offset).expect("64 bits");
    let until = from + op.len as usize;
    if until > SIZE {
        return Err(if matches!(op.kind, WRITE | ZEROES) { 28 } else { 22 });
    }
    match op.kind {
        READ if op.flags & DF != 0 && u64::from(op.len) > PIECE => Err(75),
        READ => Ok(Some(model[from..until].to_vec())),
        ZEROES if op.flags & (FAST | NO_HOLE) == FAST | NO_HOLE && op.len > 0 => Err(95),
        WRITE => {
            model[from..until].fill(op.byte);
            Ok(None)
        }
        TRIM | ZEROES => {
            model[from..until].fill(0);
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn words(ops: &[Op]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (cookie, op) in ops.iter().enumerate() {
        bytes.extend(command(op.kind, op.flags, cookie as u64, op.offset, op.len));
        if op.kind == WRITE {
            bytes.extend(vec![op.byte; op.len as usize]);
        }
    }
    bytes
}

/// Plays a conversation: requests are carried out in order, and finished in an order that `choices` decide.
fn play(server: &mut Server, disk: &mut RamDisk, mut bytes: &[u8], choices: &[u16]) {
    let mut choices = choices.iter().copied().cycle();
    let mut choose = || usize::from(choices.next().unwrap_or(0));
    let mut ended: Vec<(Ticket, Outcome)> = Vec::new();
    loop {
        server.turn();
        for request in server.requests.drain(..) {
            ended.push(disk.run(request, &server.arena).expect("the arena is large enough for the limits"));
        }
        assert!(server.session.in_flight() <= LIMITS.commands);
        assert!(server.session.bytes_in_flight() <= LIMITS.bytes);
        let most = if choose() % 4 == 0 { choose() % 64 } else { choose() * 8 };
        let n = if bytes.is_empty() { 0 } else { server.receive(bytes, most) };
        bytes = &bytes[n..];
        if n == 0 || choose() % 2 == 0 {
            if ended.is_empty() && server.requests.is_empty() && (bytes.is_empty() || n == 0) {
                return;
            }
            if !ended.is_empty() {
                let (ticket, outcome) = ended.swap_remove(choose() % ended.len());
                server.session.finish(ticket, outcome);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_reads_what_it_wrote_in_whatever_pieces_its_words_arrive(
        ops in prop::collection::vec(op(), 1..40),
        choices in prop::collection::vec(any::<u16>(), 1..200),
        structured: bool,
    ) {
        let mut server = Server::new(export(SIZE as u64), LIMITS, 8 << 20);
        let mut disk = RamDisk::new(SIZE);
        play(&mut server, &mut disk, &handshake(structured), &choices);
        prop_assert!(server.session.is_transmitting());
        server.said();
        play(&mut server, &mut disk, &words(&ops), &choices);
        prop_assert_eq!(&server.closed, &None);
        let mut model = vec![0; SIZE];
        for (op, answer) in ops.iter().zip(parse(&server.said(), &ops)) {
            prop_assert!(answer.done, "no answer to {:?}", op);
            match expect(op, &mut model, structured) {
                Err(error) => prop_assert_eq!(answer.error, error, "{:?}", op),
                Ok(data) => {
                    prop_assert_eq!(answer.error, 0, "{:?}", op);
                    let mut next = op.offset;
                    for (offset, data) in &answer.data {
                        prop_assert_eq!(*offset, next);
                        next += data.len() as u64;
                    }
                    prop_assert_eq!(answer.data.into_values().flatten().collect::<Vec<_>>(), data.unwrap_or_default());
                    let told: u64 = answer.extents.iter().map(|(len, _)| u64::from(*len)).sum();
                    prop_assert!(told <= u64::from(op.len) && (told > 0) == (op.kind == STATUS));
                }
            }
        }
        prop_assert!(disk.data == model);
        prop_assert_eq!((server.session.in_flight(), server.session.bytes_in_flight()), (0, Bytes(0)));
        ended(server);
    }

    #[test]
    fn a_volume_that_fails_at_random_still_answers_every_command_once(
        ops in prop::collection::vec(op(), 1..20),
        fates in prop::collection::vec(any::<(bool, u8)>(), 1..50),
    ) {
        let mut server = entered(export(SIZE as u64), LIMITS, 8 << 20, true);
        let mut fates = fates.into_iter().cycle();
        let bytes = words(&ops);
        let mut rest = &bytes[..];
        let mut disk = RamDisk::new(SIZE);
        while !rest.is_empty() || !server.requests.is_empty() {
            let n = server.receive(rest, 50_000);
            rest = &rest[n..];
            if !server.requests.is_empty() {
                let (fails, which) = fates.next().unwrap_or_default();
                let request = server.requests.swap_remove(usize::from(which) % server.requests.len());
                let (ticket, outcome) = disk.run(request, &server.arena).expect("enough memory");
                server.session.finish(ticket, if fails { Outcome::Failed(Fault::Io) } else { outcome });
                server.turn();
            }
        }
        prop_assert!(parse(&server.said(), &ops).iter().all(|answer| answer.done));
        prop_assert_eq!((server.session.in_flight(), server.session.bytes_in_flight()), (0, Bytes(0)));
        ended(server);
    }

    #[test]
    fn a_client_that_sends_anything_at_all_gets_no_more_than_its_share(
        handshakes in 0..4usize,
        ops in prop::collection::vec(op(), 0..10),
        wounds in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        choices in prop::collection::vec(any::<u16>(), 1..50),
        memory in 18..24usize,
    ) {
        let mut bytes = match handshakes {
            0 => Vec::new(),
            1 => 3u32.to_be_bytes().to_vec(),
            n => handshake(n == 3),
        };
        bytes.extend(words(&ops));
        bytes.extend(noise);
        for (place, byte) in wounds {
            if !bytes.is_empty() {
                let place = place.index(bytes.len().min(3000));
                bytes[place] = byte;
            }
        }
        let mut server = Server::new(export(SIZE as u64), LIMITS, 1 << memory);
        let (mut rest, mut choices) = (&bytes[..], choices.iter().copied().cycle());
        // The arena rounds up: to a page, and to less than twice the length.
        let share = STREAM_BUFFER + 2 * usize::try_from(LIMITS.bytes.0).expect("small") + 3 * LIMITS.commands * PAGE;
        for _ in 0..10_000 {
            let n = if rest.is_empty() { 0 } else { server.receive(rest, choices.next().map_or(1, usize::from)) };
            rest = &rest[n..];
            prop_assert!(server.arena.in_use() <= share, "{} bytes", server.arena.in_use());
            prop_assert!(server.session.bytes_in_flight() <= LIMITS.bytes);
            server.turn();
            match server.requests.pop() {
                Some(request) => server.session.finish(request.ticket, Outcome::Failed(Fault::Io)),
                None if n == 0 => break,
                None => {}
            }
        }
        server.turn();
        prop_assert!(server.requests.is_empty());
        ended(server);
    }
}

/// Hangs up, and looks whether everything is given back.
fn ended(mut server: Server) {
    server.session.close();
    server.turn();
    assert!(server.closed.is_some() && server.session.is_finished());
    let arena: Arena = server.arena.clone();
    drop(server);
    assert_eq!(arena.in_use(), 0);
    arena.leaks().expect("all memory is back");
}
