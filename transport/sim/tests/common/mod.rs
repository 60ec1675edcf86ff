//! Small machines: an echo pair that checks every byte, and a hammer that knows what its disk must hold.
#![allow(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test helpers, of which each test file uses its own part"
)]

use driver::{
    Address, Conn, ConnId, DiskIndex, Done, Errno, ListenerId, Machine, Op, Outbox, Part, Provider, Span, StreamId,
    Time, why,
};
use memory::{Arena, Class, Filling, Reads};
use refcount::{Hold, Table};
use sim::Rng;
use smallvec::smallvec;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

pub type Log<T> = Rc<RefCell<T>>;

pub fn address(port: u16) -> Address {
    Address::Tcp(std::net::SocketAddr::from(([10, 0, 0, 1], port)))
}

/// Sends back what it receives, on any number of streams.
pub struct Echo {
    arena: Arena,
    conns: Table<Conn>,
    owners: BTreeMap<StreamId, Served>,
    listeners: u32,
    next: u32,
    last: Time,
}

struct Served {
    owner: Hold<Conn, why::Owner>,
    queue: VecDeque<(Reads, usize)>,
    sending: bool,
    outstanding: u32,
    over: bool,
    starved: bool,
}

/// Pieces that wait to be sent back before the echo stops receiving.
const MOST_QUEUED: usize = 16;

impl Echo {
    pub fn new() -> Self {
        Self::with_listeners(1)
    }

    pub fn with_listeners(listeners: u32) -> Self {
        let (conns, owners) = (Table::new(), BTreeMap::new());
        Self { arena: Arena::small(8 << 20), conns, owners, listeners, next: 0, last: Time(0) }
    }

    fn receive(&mut self, stream: StreamId, out: &mut dyn Outbox<()>) {
        let served = self.owners.get_mut(&stream).unwrap();
        let into = self.arena.take(4096, Class::Client).unwrap();
        served.outstanding += 1;
        out.submit(Op::Recv { stream, on: served.owner.share(), into, from: 0 });
    }

    fn go_on(&mut self, stream: StreamId, out: &mut dyn Outbox<()>) {
        let served = self.owners.get_mut(&stream).unwrap();
        if served.over {
            if served.outstanding == 0 {
                self.owners.remove(&stream);
                out.submit(Op::Close { stream });
            }
        } else if !served.sending
            && let Some((mem, len)) = served.queue.pop_front()
        {
            served.sending = true;
            served.outstanding += 1;
            let parts = smallvec![Part { mem, from: 0, len }];
            out.submit(Op::Send { stream, on: smallvec![served.owner.share()], parts });
        }
    }
}

impl Machine for Echo {
    type Mail = ();
    type Letter = ();
    fn start(&mut self, _: Time, out: &mut dyn Outbox<()>) {
        (0..self.listeners).for_each(|listener| out.submit(Op::Accept { listener: ListenerId(listener) }));
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<()>) {
        assert!(now >= self.last);
        self.last = now;
        match done.op {
            Op::Accept { listener } => {
                let stream = StreamId(done.result.unwrap());
                self.next += 1;
                let owner = self.conns.insert(Conn::new(ConnId { slot: self.next, generation: 0 }, Provider::Nbd));
                let served = Served {
                    owner,
                    queue: VecDeque::new(),
                    sending: false,
                    outstanding: 0,
                    over: false,
                    starved: false,
                };
                assert!(self.owners.insert(stream, served).is_none(), "a number in use was given out");
                self.receive(stream, out);
                out.submit(Op::Accept { listener });
            }
            Op::Recv { stream, into, .. } => {
                let served = self.owners.get_mut(&stream).unwrap();
                served.outstanding -= 1;
                match done.result {
                    Ok(n) if n > 0 && !served.over => {
                        served.queue.push_back((into.filled(), n as usize));
                        if served.queue.len() < MOST_QUEUED {
                            self.receive(stream, out);
                        } else {
                            served.starved = true;
                        }
                    }
                    _ if !served.over => {
                        served.over = true;
                        served.outstanding += 1;
                        out.submit(Op::Shutdown { stream });
                    }
                    _ => {}
                }
                self.go_on(stream, out);
            }
            Op::Send { stream, .. } => {
                let served = self.owners.get_mut(&stream).unwrap();
                served.outstanding -= 1;
                served.sending = false;
                if std::mem::take(&mut served.starved) && !served.over {
                    if done.result.is_ok() {
                        self.receive(stream, out);
                    } else {
                        served.over = true;
                        served.outstanding += 1;
                        out.submit(Op::Shutdown { stream });
                    }
                }
                self.go_on(stream, out);
            }
            Op::Shutdown { stream } => {
                self.owners.get_mut(&stream).unwrap().outstanding -= 1;
                self.go_on(stream, out);
            }
            _ => {}
        }
    }
    fn mail(&mut self, _: Time, (): (), _: &mut dyn Outbox<()>) {}
    fn end_turn(&mut self, _: Time, _: &mut dyn Outbox<()>) {
        while self.conns.reap().is_some() {}
    }
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn finished(&self) -> bool {
        false
    }
}

/// What a talker has seen, kept where the test can read it after its death.
#[derive(Default, Debug)]
pub struct Seen {
    pub submitted: u64,
    pub returned: u64,
    pub connected: u64,
    pub echoed: u64,
    pub echoed_when_sent: Vec<u64>,
    pub pieces: u64,
    pub ends: u64,
    pub errors: Vec<Errno>,
}

/// Sends a numbered byte sequence to an echo and checks what returns. Connects again when its stream is over.
pub struct Talker {
    arena: Arena,
    conns: Table<Conn>,
    owner: Hold<Conn, why::Owner>,
    to: Address,
    chunk: usize,
    pub seen: Log<Seen>,
    stream: Option<StreamId>,
    outstanding: u32,
    over: bool,
    sent: u64,
    heard: u64,
    /// Kept of the last send, to overwrite as soon as nobody reads it any more.
    kept: Option<Reads>,
    pub scribbled: u64,
    retry_at: Option<Time>,
}

fn byte(n: u64) -> u8 {
    (n.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

impl Talker {
    pub fn new(to: Address, chunk: usize, seen: Log<Seen>) -> Self {
        let conns = Table::new();
        let owner = conns.insert(Conn::new(ConnId { slot: 0, generation: 0 }, Provider::Nbd));
        Self {
            arena: Arena::small(4 << 20),
            conns,
            owner,
            to,
            chunk,
            seen,
            stream: None,
            outstanding: 0,
            over: false,
            sent: 0,
            heard: 0,
            kept: None,
            scribbled: 0,
            retry_at: None,
        }
    }

    fn submit(&mut self, op: Op, out: &mut dyn Outbox<()>) {
        self.outstanding += 1;
        self.seen.borrow_mut().submitted += 1;
        out.submit(op);
    }

    fn connect(&mut self, out: &mut dyn Outbox<()>) {
        (self.sent, self.heard, self.over, self.retry_at) = (0, 0, false, None);
        let op = Op::Connect { on: self.owner.share(), to: self.to.clone(), within: Span::seconds(60) };
        self.submit(op, out);
    }

    fn receive(&mut self, stream: StreamId, out: &mut dyn Outbox<()>) {
        let into = self.arena.take(8192, Class::Client).unwrap();
        let op = Op::Recv { stream, on: self.owner.share(), into, from: 0 };
        self.submit(op, out);
    }

    fn say(&mut self, stream: StreamId, out: &mut dyn Outbox<()>) {
        let mut memory: Filling = self.arena.take(self.chunk, Class::Client).unwrap();
        for (i, b) in memory.iter_mut().enumerate() {
            *b = byte(self.sent + i as u64);
        }
        self.sent += self.chunk as u64;
        let first = self.chunk / 3;
        let mem = memory.filled();
        self.kept = Some(mem.share());
        let mut parts = smallvec![Part { mem: mem.share(), from: first, len: self.chunk - first }];
        if first > 0 {
            parts.insert(0, Part { mem, from: 0, len: first });
        }
        let op = Op::Send { stream, on: smallvec![self.owner.share()], parts };
        self.submit(op, out);
    }

    /// The sent memory has no other reader: what is written to it now must not be seen by anyone.
    fn scribble(&mut self) {
        match self.kept.take().map(Reads::try_filling) {
            Some(Ok(mut memory)) => {
                memory.fill(0xdd);
                self.scribbled += 1;
            }
            Some(Err(kept)) => self.kept = Some(kept),
            None => {}
        }
    }

    fn go_on(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        if self.over && self.outstanding == 0 {
            match self.stream.take() {
                Some(stream) => self.submit(Op::Close { stream }, out),
                None => self.retry_at = Some(now + driver::Span::millis(20)),
            }
        }
    }
}

impl Machine for Talker {
    type Mail = ();
    type Letter = ();
    fn start(&mut self, _: Time, out: &mut dyn Outbox<()>) {
        self.connect(out);
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<()>) {
        self.outstanding -= 1;
        self.seen.borrow_mut().returned += 1;
        if let Err(errno) = done.result {
            self.seen.borrow_mut().errors.push(errno);
        }
        let failed = |result: Result<u32, Errno>| result.is_err() || result == Ok(0);
        match done.op {
            Op::Connect { .. } => match done.result {
                Ok(stream) => {
                    let stream = StreamId(stream);
                    self.seen.borrow_mut().connected += 1;
                    self.stream = Some(stream);
                    self.receive(stream, out);
                    self.receive(stream, out);
                    self.say(stream, out);
                }
                Err(_) => self.over = true,
            },
            Op::Send { stream, parts, .. } => {
                drop(parts);
                self.scribble();
                self.seen.borrow_mut().echoed_when_sent.push(self.heard);
                match done.result {
                    Ok(n) => {
                        assert_eq!(n as usize, self.chunk);
                        if !self.over {
                            self.say(stream, out);
                        }
                    }
                    Err(_) if !self.over => {
                        self.over = true;
                        self.submit(Op::Shutdown { stream }, out);
                    }
                    Err(_) => {}
                }
            }
            Op::Recv { stream, into, .. } => {
                if failed(done.result) {
                    if done.result == Ok(0) {
                        self.seen.borrow_mut().ends += 1;
                    }
                    if !self.over {
                        self.over = true;
                        self.submit(Op::Shutdown { stream }, out);
                    }
                } else {
                    let n = done.result.unwrap() as usize;
                    for b in &into[..n] {
                        assert_eq!(*b, byte(self.heard), "byte {} of the stream", self.heard);
                        self.heard += 1;
                    }
                    let mut seen = self.seen.borrow_mut();
                    seen.echoed += n as u64;
                    seen.pieces += 1;
                    drop(seen);
                    if !self.over {
                        self.receive(stream, out);
                    }
                }
            }
            _ => {}
        }
        self.go_on(now, out);
    }
    fn mail(&mut self, _: Time, (): (), _: &mut dyn Outbox<()>) {}
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.connect(out);
        }
        assert!(self.conns.reap().is_none());
    }
    fn next_deadline(&self) -> Option<Time> {
        self.retry_at
    }
    fn finished(&self) -> bool {
        false
    }
}

/// Blocks that the hammer uses, and the most blocks of one write.
pub const BLOCKS: u64 = 24;
const WIDEST: u64 = 4;

/// What a block may hold: the number of the newest write that must have survived, and of those that may have.
#[derive(Default, Debug, Clone)]
pub struct Expected {
    pub durable: u64,
    pub possible: Vec<u64>,
    /// The newest number that an earlier life left, perhaps torn: settling that again changes nothing.
    pub inherited: u64,
}

/// Writes numbered blocks, some durably, never two at a time to one block; now and then syncs.
pub struct Hammer {
    arena: Arena,
    rng: Rng,
    pub expected: Log<Vec<Expected>>,
    pub numbers: Log<u64>,
    busy: BTreeMap<u64, (u64, u64)>,
    syncing: Option<Vec<u64>>,
    pub completed: Log<u64>,
    pub depth: usize,
}

impl Hammer {
    pub fn new(seed: u64, expected: Log<Vec<Expected>>, numbers: Log<u64>, completed: Log<u64>) -> Self {
        let busy = BTreeMap::new();
        Self {
            arena: Arena::small(1 << 20),
            rng: Rng::new(seed),
            expected,
            numbers,
            busy,
            syncing: None,
            completed,
            depth: 4,
        }
    }

    fn work(&mut self, out: &mut dyn Outbox<()>) {
        while self.busy.len() < self.depth {
            let from = self.rng.below(BLOCKS - WIDEST);
            let len = 1 + self.rng.below(WIDEST);
            if self.busy.values().any(|(a, b)| from < *b && *a < from + len) {
                break;
            }
            *self.numbers.borrow_mut() += 1;
            let tag = *self.numbers.borrow();
            let mut memory = self.arena.take(len as usize * 4096, Class::Client).unwrap();
            for sector in memory.chunks_exact_mut(8) {
                sector.copy_from_slice(&tag.to_le_bytes());
            }
            for block in from..from + len {
                self.expected.borrow_mut()[block as usize].possible.push(tag);
            }
            self.busy.insert(tag, (from, from + len));
            let parts = smallvec![Part { mem: memory.filled(), from: 0, len: len as usize * 4096 }];
            out.submit(Op::DiskWrite { disk: DiskIndex(0), tag, at: from * 4096, parts, durable: self.rng.coin() });
        }
        if self.syncing.is_none() && self.rng.below(8) == 0 {
            // What is complete now: the newest of each block without a write in flight.
            let free = |block: &u64| !self.busy.values().any(|(a, b)| a <= block && block < b);
            let expected = self.expected.borrow();
            let newest =
                (0..BLOCKS).map(|b| if free(&b) { *expected[b as usize].possible.last().unwrap_or(&0) } else { 0 });
            self.syncing = Some(newest.collect());
            out.submit(Op::DiskSync { disk: DiskIndex(0), tag: 0 });
        }
    }
}

impl Expected {
    pub fn settle(&mut self, tag: u64) {
        if tag > self.durable.max(self.inherited) {
            self.durable = tag;
            self.possible.retain(|possible| *possible >= tag);
        }
    }
}

impl Machine for Hammer {
    type Mail = ();
    type Letter = ();
    fn start(&mut self, _: Time, out: &mut dyn Outbox<()>) {
        self.work(out);
    }
    fn done(&mut self, _: Time, done: Done, out: &mut dyn Outbox<()>) {
        match done.op {
            Op::DiskWrite { tag, durable, .. } => {
                let (from, to) = self.busy.remove(&tag).unwrap();
                *self.completed.borrow_mut() += 1;
                if done.result.is_ok() && durable {
                    self.expected.borrow_mut()[from as usize..to as usize].iter_mut().for_each(|it| it.settle(tag));
                }
            }
            Op::DiskSync { .. } => {
                let settled = self.syncing.take().unwrap();
                if done.result.is_ok() {
                    for (expected, tag) in self.expected.borrow_mut().iter_mut().zip(settled) {
                        expected.settle(tag);
                    }
                }
            }
            _ => unreachable!(),
        }
        self.work(out);
    }
    fn mail(&mut self, _: Time, (): (), _: &mut dyn Outbox<()>) {}
    fn end_turn(&mut self, _: Time, _: &mut dyn Outbox<()>) {}
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn finished(&self) -> bool {
        false
    }
}
