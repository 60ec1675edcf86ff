//! Two `Net`s and a pipe between them: bytes arrive in random pieces, completions late and in random order, as far as the
//! driver's contract allows. One seed, one run.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "each test file uses its part"
)]

use driver::{Address, Binding, ConnId, Done, Errno, ListenerId, Op, Part, Proven, Span, StreamId, Time, Vecs};
use memory::{Arena, Class};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tcp::{Admission, Answer, Attempt, Lost, Net, NetEvent, NetOptions, Payload};
use wire::{ClusterKey, HelloInfo, PREFIX_LEN, Reason, Role, SessionId};

pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;
pub const DEPTH: u16 = 8;
pub const RX: u32 = 2 * DEPTH as u32 + 2;
pub const KEY: [u8; 32] = [42; 32];

#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// What a machine saw.
#[derive(Clone, PartialEq, Debug)]
pub enum Seen {
    Hello(ConnId, String),
    Up(ConnId),
    Request(ConnId, u8, Vec<u8>, Vec<u8>),
    Reply(ConnId, u64, Result<Vec<u8>, Lost>),
    Down(ConnId, Reason),
}

pub struct Side {
    pub net: Net,
    pub arena: Arena,
    pub out: Vecs<()>,
    pub seen: Vec<Seen>,
    pub answers: Vec<(Answer, Option<Payload>)>,
    /// Its completions do not happen.
    pub frozen: bool,
    /// It stands still: no turns, either.
    pub still: bool,
    /// Its sends go out but do not complete.
    pub withhold_sends: bool,
    pub admits: bool,
    pub replies: bool,
    /// It takes its events.
    pub takes: bool,
    pub info: HelloInfo,
}

/// One stream's bytes towards one side.
#[derive(Default)]
struct Half {
    bytes: VecDeque<u8>,
    eof: bool,
    reset: bool,
    shut: bool,
    closed: bool,
    passed: usize,
}

pub struct World {
    pub now: Time,
    pub rng: Rng,
    pub sides: Vec<Side>,
    pending: Vec<(usize, Op, usize)>,
    /// Streams come in pairs: 2n is the connecting side's, 2n + 1 the accepting side's.
    halves: Vec<Half>,
    owner: Vec<Option<usize>>,
    backlog: VecDeque<StreamId>,
    pub listening: bool,
    /// Of connections to come: there are other ways to the server.
    pub other_ways: bool,
    /// Flip this bit of this byte on its way to that side.
    pub flip: Option<(usize, usize, u8)>,
    /// All bytes that ever left each side.
    pub tapped: [Vec<u8>; 2],
    /// What each side's driver says that its streams are bound to.
    pub bindings: [Option<Binding>; 2],
    /// What the server last received with says of its peer.
    pub proven: Option<Proven>,
    /// Hold counts of the first connection of each side, whenever they changed.
    pub counts: [Vec<String>; 2],
}

pub fn options(role: Role, name: &str, process: u64, key: [u8; 32]) -> NetOptions {
    let mut rng = Rng(process);
    let info = HelloInfo::new(role, name, process);
    let mut options = NetOptions::new(info, Rc::new(ClusterKey(key)), Box::new(move || rng.next()));
    options.depth = DEPTH;
    options
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::with(
            seed,
            options(Role::Client, "c", seed * 2 + 1, KEY),
            options(Role::Node, "s", seed * 2 + 2, KEY),
            8 << 20,
        )
    }

    pub fn nodes(seed: u64) -> Self {
        Self::with(
            seed,
            options(Role::Node, "c", seed * 2 + 1, KEY),
            options(Role::Node, "s", seed * 2 + 2, KEY),
            8 << 20,
        )
    }

    pub fn with(seed: u64, client: NetOptions, server: NetOptions, server_bytes: usize) -> Self {
        Self::with_memory(seed, (client, Arena::small(8 << 20)), (server, Arena::small(server_bytes)))
    }

    pub fn with_memory(seed: u64, client: (NetOptions, Arena), server: (NetOptions, Arena)) -> Self {
        let side = |(options, arena): (NetOptions, Arena)| {
            let info = options.name.clone();
            Side {
                net: Net::new(options, arena.clone()),
                arena,
                out: Vecs::default(),
                seen: Vec::new(),
                answers: Vec::new(),
                frozen: false,
                still: false,
                withhold_sends: false,
                admits: true,
                replies: true,
                takes: true,
                info,
            }
        };
        let mut world = Self {
            now: Time(1_000_000_000),
            rng: Rng(seed),
            sides: vec![side(client), side(server)],
            pending: Vec::new(),
            halves: Vec::new(),
            owner: Vec::new(),
            backlog: VecDeque::new(),
            listening: true,
            other_ways: false,
            flip: None,
            tapped: Default::default(),
            bindings: [None; 2],
            proven: None,
            counts: Default::default(),
        };
        let server = &mut world.sides[SERVER];
        server.net.listen(ListenerId(0), &mut server.out);
        world.collect();
        world
    }

    pub fn address() -> Address {
        Address::Unix("server".into())
    }

    pub fn connect(&mut self) -> ConnId {
        self.connect_as(self.sides[CLIENT].info.clone())
    }

    pub fn connect_as(&mut self, hello: HelloInfo) -> ConnId {
        let client = &mut self.sides[CLIENT];
        let attempt = Attempt { others: self.other_ways, ..Attempt::only(Self::address()) };
        let id = client.net.connect(self.now, attempt, hello, &mut client.out);
        self.collect();
        id
    }

    /// Connects and runs until both are up: the ids on both sides.
    pub fn establish(&mut self) -> [ConnId; 2] {
        self.establish_as(self.sides[CLIENT].info.clone())
    }

    pub fn establish_as(&mut self, hello: HelloInfo) -> [ConnId; 2] {
        let client = self.connect_as(hello);
        self.pump();
        let server = self.sides[SERVER].seen.iter().rev().find_map(|seen| match seen {
            Seen::Up(id) => Some(*id),
            _ => None,
        });
        assert!(self.sides[CLIENT].seen.contains(&Seen::Up(client)), "{:?}", self.sides[CLIENT].seen);
        [client, server.expect("the server saw Up")]
    }

    /// Takes over what both sides want done, and what they saw.
    pub fn collect(&mut self) {
        for at in (0..2).filter(|at| !self.sides[*at].still).collect::<Vec<_>>() {
            let mut ended = false;
            loop {
                let side = &mut self.sides[at];
                let Some(event) = side.takes.then(|| side.net.next_event()).flatten() else {
                    if ended && !(side.takes && side.net.next_deadline() == Some(Time::default())) {
                        break;
                    }
                    side.net.end_turn(self.now, &mut side.out);
                    ended = true;
                    continue;
                };
                match event {
                    NetEvent::Hello { conn, peer } => {
                        side.seen.push(Seen::Hello(conn, peer.name.clone()));
                        if side.admits {
                            let admission = Admission { hello: side.info.clone(), session: SESSION };
                            side.net.accept_peer(self.now, conn, admission, &mut side.out);
                        }
                    }
                    NetEvent::Up { conn, .. } => side.seen.push(Seen::Up(conn)),
                    NetEvent::Request { conn, op, body, payload, answer } => {
                        let bytes = payload.as_ref().map_or(Vec::new(), checked);
                        side.seen.push(Seen::Request(conn, op.0, body.to_vec(), bytes));
                        if side.replies {
                            side.net.reply(self.now, answer, wire::Op::REPLY, &body, payload);
                        } else {
                            side.answers.push((answer, payload));
                        }
                    }
                    NetEvent::Reply { conn, token, result } => {
                        let result = result.map(|(_, _, payload)| payload.as_ref().map_or(Vec::new(), checked));
                        side.seen.push(Seen::Reply(conn, token, result));
                    }
                    NetEvent::Down { conn, reason, .. } => side.seen.push(Seen::Down(conn, reason)),
                }
            }
            let side = &mut self.sides[at];
            for op in side.out.ops.drain(..) {
                self.pending.push((at, op, 0));
            }
            if let Some(conn) = side.net.conns(self.now).first() {
                let counts = conn.holds.to_string();
                if self.counts[at].last() != Some(&counts) {
                    self.counts[at].push(counts);
                }
            }
        }
    }

    /// Runs until nothing moves, at this moment.
    pub fn pump(&mut self) {
        for _ in 0..200_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Lets time pass, from one deadline to the next.
    pub fn pass(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            let next = self.sides.iter().filter(|side| !side.still).filter_map(|side| side.net.next_deadline()).min();
            self.now = next.map_or(end, |next| next.clamp(self.now + Span(1), end));
            self.collect();
            self.pump();
        }
    }

    /// Completes one operation, or moves some bytes. False if nothing can.
    pub fn step(&mut self) -> bool {
        let n = self.pending.len();
        let first = self.rng.below(n);
        (0..n).any(|i| self.try_one((first + i) % n))
    }

    fn try_one(&mut self, index: usize) -> bool {
        let at = self.pending[index].0;
        if self.sides[at].frozen || self.sides[at].still {
            return false;
        }
        let result = match &self.pending[index].1 {
            Op::Accept { .. } => match self.backlog.pop_front() {
                Some(stream) => {
                    self.owner[stream.0 as usize] = Some(at);
                    Ok(stream.0)
                }
                None => return false,
            },
            Op::Connect { .. } if self.listening => {
                let stream = self.pipe();
                self.owner[stream.0 as usize] = Some(at);
                Ok(stream.0)
            }
            Op::Connect { .. } => Err(Errno::REFUSED),
            Op::Recv { stream, .. } => {
                let mut piece = 1 + self.rng.below(9000);
                if self.rng.below(4) == 0 {
                    piece = 1 + self.rng.below(40);
                }
                let half = &mut self.halves[stream.0 as usize];
                assert!(!half.closed, "a receive on a closed stream");
                if half.shut || half.reset {
                    Err(if half.reset { Errno::RESET } else { Errno::CANCELED })
                } else if !half.bytes.is_empty() {
                    let Op::Recv { into, from, .. } = &mut self.pending[index].1 else { return false };
                    let room = into.len() - *from;
                    assert!(room > 0, "a receive without room");
                    let n = piece.min(room).min(half.bytes.len());
                    for (to, byte) in into[*from..].iter_mut().zip(half.bytes.drain(..n)) {
                        *to = byte;
                    }
                    Ok(u32::try_from(n).unwrap())
                } else if half.eof {
                    Ok(0)
                } else {
                    return false;
                }
            }
            Op::Send { stream, parts, .. } => {
                let stream = *stream;
                let all: usize = parts.iter().map(|part| part.len).sum();
                let sent = self.pending[index].2;
                assert!(!self.halves[stream.0 as usize].closed, "a send on a closed stream");
                if self.halves[stream.0 as usize].shut || self.halves[stream.0 as usize].reset {
                    Err(Errno::CANCELED)
                } else if sent < all {
                    let piece = piece_of(parts, sent, 1 + self.rng.below(20_000));
                    self.pending[index].2 += piece.len();
                    self.carry(at, stream, &piece);
                    return true;
                } else if self.sides[at].withhold_sends {
                    return false;
                } else {
                    Ok(u32::try_from(all).expect("a send is small"))
                }
            }
            Op::Shutdown { stream } => {
                let stream = *stream;
                self.halves[stream.0 as usize].shut = true;
                self.halves[(stream.0 ^ 1) as usize].eof = true;
                Ok(0)
            }
            Op::Close { stream } => {
                let stream = *stream;
                let others = self.pending.iter().filter(|(_, op, _)| stream_of(op) == Some(stream)).count();
                assert_eq!(others, 1, "Close is submitted when nothing else is outstanding");
                self.halves[stream.0 as usize].closed = true;
                self.halves[(stream.0 ^ 1) as usize].eof = true;
                Ok(0)
            }
            _ => unreachable!("no disks here"),
        };
        let (_, op, _) = self.pending.swap_remove(index);
        if let (Op::Connect { on, .. } | Op::Recv { on, .. }, Some(binding)) = (&op, self.bindings[at]) {
            on.bind(binding);
        }
        if let (Op::Recv { on, .. }, SERVER) = (&op, at) {
            self.proven = Some(on.proven());
        }
        self.done(at, Done { op, result });
        true
    }

    pub fn done(&mut self, at: usize, done: Done) {
        let side = &mut self.sides[at];
        side.net.done(self.now, done, &mut side.out);
        self.collect();
    }

    fn carry(&mut self, at: usize, stream: StreamId, bytes: &[u8]) {
        let half = &mut self.halves[(stream.0 ^ 1) as usize];
        for byte in bytes {
            let mut byte = *byte;
            if at < 2 {
                self.tapped[at].push(byte);
            }
            if let Some((to, position, bit)) = self.flip
                && to != at
                && position == half.passed
            {
                byte ^= 1 << bit;
            }
            half.passed += 1;
            half.bytes.push_back(byte);
        }
    }

    /// A new stream pair; the accepting end waits to be accepted.
    fn pipe(&mut self) -> StreamId {
        let stream = u32::try_from(self.halves.len()).unwrap();
        self.halves.extend([Half::default(), Half::default()]);
        self.owner.extend([None, None]);
        self.backlog.push_back(StreamId(stream + 1));
        StreamId(stream)
    }

    /// A peer made of bytes connects to the server.
    pub fn raw(&mut self) -> StreamId {
        let stream = self.pipe();
        self.pump();
        stream
    }

    pub fn raw_send(&mut self, stream: StreamId, bytes: &[u8]) {
        self.halves[(stream.0 ^ 1) as usize].bytes.extend(bytes);
        self.pump();
    }

    pub fn raw_recv(&mut self, stream: StreamId) -> Vec<u8> {
        self.halves[stream.0 as usize].bytes.drain(..).collect()
    }

    pub fn raw_is_closed(&self, stream: StreamId) -> bool {
        self.halves[stream.0 as usize].eof
    }

    /// A side's machine vanishes: its streams are reset for the others, and nothing of it moves any more.
    pub fn kill(&mut self, at: usize) {
        self.sides[at].frozen = true;
        for stream in 0..self.halves.len() {
            if stream % 2 == at {
                self.halves[stream ^ 1].reset = true;
            }
        }
    }

    pub fn request(&mut self, at: usize, conn: ConnId, token: u64, bytes: &[u8]) -> bool {
        self.request_until(at, conn, token, bytes, self.now + Span::seconds(30))
    }

    pub fn request_until(&mut self, at: usize, conn: ConnId, token: u64, bytes: &[u8], deadline: Time) -> bool {
        let side = &mut self.sides[at];
        let payload = (!bytes.is_empty()).then(|| payload(&side.arena, bytes));
        side.net.request(self.now, conn, wire::Op(17), &body(token), payload, token, deadline).is_ok()
    }

    pub fn holds(&self, at: usize, conn: ConnId) -> Option<String> {
        let conns = self.sides[at].net.conns(self.now);
        conns.into_iter().find(|status| status.id == conn).map(|status| status.holds.to_string())
    }

    pub fn count_seen(&self, at: usize, which: impl Fn(&Seen) -> bool) -> usize {
        self.sides[at].seen.iter().filter(|seen| which(seen)).count()
    }

    pub fn down(&self, at: usize, conn: ConnId) -> Option<Reason> {
        self.sides[at].seen.iter().find_map(|seen| match seen {
            Seen::Down(id, reason) if *id == conn => Some(*reason),
            _ => None,
        })
    }

    /// Stops both sides and asserts that all came back: no connection, no operation, no memory, no hold.
    pub fn end(&mut self) {
        for at in 0..2 {
            let side = &mut self.sides[at];
            side.frozen = false;
            side.withhold_sends = false;
            side.replies = true;
            side.takes = true;
            side.answers.clear();
            side.net.stop(self.now, &mut side.out);
        }
        self.collect();
        self.pump();
        self.pass(Span::seconds(20));
        self.pending.retain(|(_, op, _)| !matches!(op, Op::Accept { .. }));
        assert!(self.pending.is_empty(), "outstanding: {:?}", self.pending);
        self.check_events();
        for side in &mut self.sides {
            assert!(side.net.finished(), "{:?}", side.net.refs());
            side.net.leaks().unwrap();
            side.arena.leaks().unwrap();
            assert_eq!(side.net.counters().stale_completions, 0);
        }
    }

    /// Each announced connection has one Down, after all its replies and nothing but requests after it.
    fn check_events(&self) {
        for side in &self.sides {
            let mut down = BTreeMap::new();
            for seen in &side.seen {
                match seen {
                    Seen::Hello(id, _) | Seen::Up(id) | Seen::Reply(id, ..) => {
                        assert!(!down.contains_key(id), "{seen:?}")
                    }
                    Seen::Down(id, _) => assert_eq!(down.insert(*id, ()), None, "one Down"),
                    Seen::Request(..) => {}
                }
            }
            for seen in &side.seen {
                if let Seen::Hello(id, _) | Seen::Up(id) = seen {
                    assert!(down.contains_key(id), "{id} has no Down");
                }
            }
        }
    }
}

/// Up to `len` bytes of what the parts hold at this moment: memory is read when it is sent, not when it is submitted.
fn piece_of(parts: &[Part], from: usize, len: usize) -> Vec<u8> {
    let mut skipped = 0;
    for part in parts {
        if from < skipped + part.len {
            let at = part.from + from - skipped;
            return part.mem[at..(at + len).min(part.from + part.len)].to_vec();
        }
        skipped += part.len;
    }
    Vec::new()
}

fn stream_of(op: &Op) -> Option<StreamId> {
    match op {
        Op::Recv { stream, .. } | Op::Send { stream, .. } | Op::Shutdown { stream } | Op::Close { stream } => {
            Some(*stream)
        }
        _ => None,
    }
}

/// The payload's bytes; its CRCs must be theirs.
pub fn checked(payload: &Payload) -> Vec<u8> {
    assert_eq!(wire::pieces(payload.bytes()), payload.crcs);
    payload.bytes().to_vec()
}

/// The session that each `World` admits to.
pub const SESSION: SessionId = SessionId(7);

/// A data request's body: a prefix whose word is for the connection to leave alone, then the token.
pub fn body(token: u64) -> [u8; PREFIX_LEN + 8] {
    let mut body = [0; PREFIX_LEN + 8];
    body[4..8].copy_from_slice(b"word");
    body[PREFIX_LEN..].copy_from_slice(&token.to_le_bytes());
    body
}

pub fn payload(arena: &Arena, bytes: &[u8]) -> Payload {
    let mut mem = arena.take(bytes.len(), Class::Client).expect("memory for a test's payload");
    mem.copy_from_slice(bytes);
    Payload { mem: mem.filled(), len: bytes.len(), crcs: wire::pieces(bytes) }
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    (0..len).map(|_| rng.next().to_le_bytes()[0]).collect()
}

impl World {
    /// Takes the armed accept away, if there is one.
    pub fn take_accept(&mut self) -> bool {
        let before = self.pending.len();
        self.pending.retain(|(_, op, _)| !matches!(op, Op::Accept { .. }));
        self.pending.len() < before
    }
}
