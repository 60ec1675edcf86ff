//! One end: a `Net` that does as it is told, and tells how its connection is held after each thing that happened.

use driver::{Address, ConnId, Done, ListenerId, Machine, Outbox, Span, Time};
use memory::{Arena, Class};
use std::rc::Rc;
use tcp::{Admission, Answer, Attempt, Lost, Net, NetEvent, NetOptions, Payload};
use wire::{ClusterKey, HelloInfo, PREFIX_LEN, Reason, Role, SessionId};

use crate::Who;

/// Requests in flight: few, so that the counts are short.
pub(crate) const DEPTH: u16 = 8;
const MEMORY: usize = 32 << 20;
const ASKED: wire::Op = wire::Op(17);
/// Longer than any case waits: what is lost is lost with its connection.
const DEADLINE: Span = Span::seconds(600);

/// What a peer is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Connect.
    Connect(Address),
    /// Send a request with so many bytes, which come back.
    Ask(usize),
    /// Keep requests, or answer what was kept and all that follows.
    Keep(bool),
    /// Close the connection.
    Close,
    /// Tell how things stand.
    Look,
    /// Be gone, without a word.
    Vanish,
    /// Say goodbye and end.
    Stop,
}

/// What a peer has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// Established.
    Up,
    /// A request with so many bytes.
    Asked(usize),
    /// What came of a request: so many bytes, each as it was sent.
    Answered(Result<usize, Lost>),
    /// The connection is over.
    Down(Reason),
    /// As asked for.
    Looked(Look),
}

/// How things stand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Who holds the oldest connection.
    pub holds: Option<String>,
    /// The same, whenever it changed.
    pub counts: Vec<String>,
    /// Connections that anybody holds.
    pub connections: usize,
    /// Bytes of memory in use.
    pub memory: usize,
}

/// See the module's head.
pub struct Peer {
    net: Net,
    arena: Arena,
    me: HelloInfo,
    listener: Option<ListenerId>,
    conn: Option<ConnId>,
    counts: Vec<String>,
    keeps: bool,
    kept: Vec<(Answer, Option<Payload>)>,
    asked: u64,
    vanished: bool,
}

impl Peer {
    /// One that has done nothing yet.
    pub fn new(who: Who, seed: u64) -> Self {
        let (role, name) = if who == Who::Client { (Role::Client, "client") } else { (Role::Node, "server") };
        let mut random = seed;
        let next = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random
        };
        let me = HelloInfo::new(role, name, seed | 1);
        let mut options = NetOptions::new(me.clone(), Rc::new(ClusterKey([42; 32])), Box::new(next));
        options.depth = DEPTH;
        let arena = Arena::small(MEMORY);
        Self {
            net: Net::new(options, arena.clone()),
            arena,
            me,
            listener: None,
            conn: None,
            counts: Vec::new(),
            keeps: false,
            kept: Vec::new(),
            asked: 0,
            vanished: false,
        }
    }

    /// Accepts there.
    #[must_use]
    pub fn on(mut self, listener: Option<ListenerId>) -> Self {
        self.listener = listener;
        self
    }

    /// All its memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// It was told to be gone.
    pub fn vanished(&self) -> bool {
        self.vanished
    }

    /// Nothing is left of anything.
    fn check(&self) {
        self.net.leaks().unwrap();
        self.arena.leaks().unwrap();
        assert_eq!(self.net.counters().stale_completions, 0, "completions that belong to nothing");
    }

    fn events(&mut self, now: Time, out: &mut dyn Outbox<Told>) {
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Hello { conn, .. } => {
                    let admission = Admission { hello: self.me.clone(), session: SessionId(7) };
                    self.net.accept_peer(now, conn, admission, out);
                }
                NetEvent::Up { conn, .. } => {
                    self.conn = Some(conn);
                    out.post(Told::Up);
                }
                NetEvent::Request { payload, answer, .. } => {
                    out.post(Told::Asked(payload.as_ref().map_or(0, |payload| payload.len)));
                    if self.keeps {
                        self.kept.push((answer, payload));
                    } else {
                        self.net.reply(now, answer, wire::Op::REPLY, &[], payload);
                    }
                }
                NetEvent::Reply { token, result, .. } => {
                    out.post(Told::Answered(result.map(|(_, _, payload)| {
                        let bytes = payload.as_ref().map_or(&[][..], Payload::bytes);
                        assert!(bytes == pattern(token, bytes.len()), "the bytes of request {token} came back changed");
                        bytes.len()
                    })));
                }
                NetEvent::Down { reason, .. } => out.post(Told::Down(reason)),
            }
        }
        let holds = self.holds(now);
        if holds.is_some() && holds.as_ref() != self.counts.last() {
            self.counts.extend(holds);
        }
    }

    fn holds(&self, now: Time) -> Option<String> {
        self.net.conns(now).first().map(|conn| conn.holds.to_string())
    }

    fn ask(&mut self, now: Time, len: usize) {
        self.asked += 1;
        let mut body = [0; PREFIX_LEN + 8];
        body[PREFIX_LEN..].copy_from_slice(&self.asked.to_le_bytes());
        let bytes = pattern(self.asked, len);
        let mut mem = self.arena.take(len, Class::Client).unwrap();
        mem.copy_from_slice(&bytes);
        let payload = Payload { mem: mem.filled(), len, crcs: wire::pieces(&bytes) };
        let conn = self.conn.unwrap();
        let taken = self.net.request(now, conn, ASKED, &body, Some(payload), self.asked, now + DEADLINE);
        assert!(taken.is_ok(), "a request on a connection at rest: {:?}", taken.map_err(|(why, _)| why));
    }
}

impl Machine for Peer {
    type Mail = Order;
    type Letter = Told;

    fn start(&mut self, _: Time, out: &mut dyn Outbox<Told>) {
        if let Some(listener) = self.listener {
            self.net.listen(listener, out);
        }
    }

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Told>) {
        if !self.vanished {
            self.net.done(now, done, out);
            self.events(now, out);
        }
    }

    fn mail(&mut self, now: Time, order: Order, out: &mut dyn Outbox<Told>) {
        match order {
            Order::Connect(to) => {
                self.counts.clear();
                self.conn = Some(self.net.connect(now, Attempt::only(to), self.me.clone(), out));
            }
            Order::Ask(len) => self.ask(now, len),
            Order::Keep(keeps) => {
                self.keeps = keeps;
                for (answer, payload) in self.kept.drain(..) {
                    self.net.reply(now, answer, wire::Op::REPLY, &[], payload);
                }
            }
            Order::Close => self.net.close(now, self.conn.unwrap(), Reason::Closed, out),
            Order::Look => out.post(Told::Looked(Look {
                holds: self.holds(now),
                counts: self.counts.clone(),
                connections: self.net.refs().len(),
                memory: self.arena.in_use(),
            })),
            Order::Vanish => self.vanished = true,
            Order::Stop => self.net.stop(now, out),
        }
        self.events(now, out);
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Told>) {
        if !self.vanished {
            self.net.end_turn(now, out);
            self.events(now, out);
            if self.net.finished() {
                self.check();
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.vanished { None } else { self.net.next_deadline() }
    }

    fn finished(&self) -> bool {
        self.vanished || self.net.finished()
    }
}

/// Another one for each seed, and no two blocks of it alike: 251 is prime.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let cycle: Vec<u8> = (seed..seed + 251).map(|n| n.to_le_bytes()[0]).collect();
    let mut bytes = cycle.repeat(len.div_ceil(cycle.len()));
    bytes.truncate(len);
    bytes
}
