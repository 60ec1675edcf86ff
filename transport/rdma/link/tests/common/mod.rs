//! Two links and what stands between them: queue pairs that do everything in order, when the test's dice say so, check every key
//! and every range, and give everything back once.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test file uses its part")]

use driver::{Conn, ConnId, Done, Op, Parts, Provider, StreamId, why};
use memory::{Arena, Class, Filling};
use rdma_link::{End, Failed, Finished, Lent, Link, Out, RX, Received, SLOT, WINDOWS, Work};
use refcount::{Hold, Table};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

pub const CONNECTING: usize = 0;
pub const ACCEPTING: usize = 1;

pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 1).unwrap() % n.max(1)
    }
}

pub struct Side {
    pub link: Link,
    pub arena: Arena,
    pub conns: Table<Conn>,
    pub owner: Hold<Conn, why::Owner>,
    pub out: Out,
    receives: VecDeque<Work>,
    sends: VecDeque<Work>,
    /// By key.
    pub open: BTreeMap<u32, Work>,
    /// Of each kind, how many were posted.
    pub posted: BTreeMap<&'static str, u64>,
    /// In error: everything is flushed.
    pub dead: bool,
    pub dones: Vec<Done>,
    /// Nobody polls: what is finished is seen later, in order.
    sleeps: bool,
    asleep: VecDeque<Finished>,
}

fn kind(work: &Work) -> &'static str {
    match work {
        Work::Receive { .. } => "receive",
        Work::Data { .. } => "data",
        Work::Say { .. } => "say",
        Work::Take { .. } => "take",
        Work::Give { .. } => "give",
        Work::Open { .. } => "open",
        Work::Shut { .. } => "shut",
    }
}

impl Side {
    fn new(connecting: bool) -> Self {
        let (arena, conns, mut out) = (Arena::small(64 << 20), Table::new(), Out::default());
        let id = ConnId { slot: 1, generation: 1 };
        let owner = conns.insert(Conn::new(id, Provider::Framed));
        let slots = (0..RX).map(|_| arena.take(SLOT, Class::Settle).unwrap()).collect();
        let keys = (0..u32::from(WINDOWS)).map(|window| (window + 1) << 8 | 0xfd).collect();
        let link = Link::new(connecting, StreamId(7), slots, keys, &mut out);
        let (receives, sends) = (VecDeque::new(), VecDeque::new());
        Self {
            link,
            arena,
            conns,
            owner,
            out,
            receives,
            sends,
            open: BTreeMap::new(),
            posted: BTreeMap::new(),
            dead: false,
            dones: Vec::new(),
            sleeps: false,
            asleep: VecDeque::new(),
        }
    }

    pub fn take(&mut self) {
        for work in self.out.works.drain(..) {
            *self.posted.entry(kind(&work)).or_default() += 1;
            match work {
                Work::Receive { .. } => self.receives.push_back(work),
                work => self.sends.push_back(work),
            }
        }
        self.dones.append(&mut self.out.dones);
    }

    pub fn finished(&mut self, work: Work, result: Result<Received, Failed>) {
        self.asleep.push_back(Finished { work, result });
        if !self.sleeps {
            self.wake();
        }
    }

    pub fn sleep(&mut self) {
        self.sleeps = true;
    }

    /// Sees what is finished; true if anything was.
    pub fn wake(&mut self) -> bool {
        self.sleeps = false;
        let any = !self.asleep.is_empty();
        while let Some(finished) = self.asleep.pop_front() {
            self.link.finished(finished, &mut self.out);
            self.take();
        }
        any
    }

    pub fn recv(&mut self, len: usize) {
        let into = self.arena.take(len, Class::Client).unwrap();
        let op = Op::Recv { stream: StreamId(7), on: self.owner.share(), into, from: 0 };
        self.link.submit(op, &mut self.out);
        self.take();
    }

    pub fn send(&mut self, parts: &[Vec<u8>]) {
        let parts: Parts = parts.iter().map(|bytes| self.filled(bytes).filled().whole()).collect();
        let op = Op::Send { stream: StreamId(7), on: SmallVec::from_iter([self.owner.share()]), parts };
        self.link.submit(op, &mut self.out);
        self.take();
    }

    pub fn filled(&self, bytes: &[u8]) -> Filling {
        let mut mem = self.arena.take(bytes.len(), Class::Client).unwrap();
        mem.copy_from_slice(bytes);
        mem
    }

    pub fn has_posted(&self, what: &str) -> u64 {
        self.posted.get(what).copied().unwrap_or(0)
    }
}

pub struct Fabric {
    pub sides: [Side; 2],
    pub rng: Rng,
}

impl Fabric {
    pub fn new(seed: u64) -> Self {
        let mut fabric = Self { sides: [Side::new(true), Side::new(false)], rng: Rng(seed) };
        for side in &mut fabric.sides {
            side.take();
            assert_eq!(side.receives.len(), usize::from(RX), "all receives are posted before anybody is up");
        }
        fabric
    }

    pub fn up(seed: u64) -> Self {
        let mut fabric = Self::new(seed);
        for side in &mut fabric.sides {
            side.link.up(RX, RX, &mut side.out);
            side.take();
        }
        fabric
    }

    /// One work of one side; false if neither has any.
    pub fn step(&mut self) -> bool {
        let first = self.rng.below(2);
        [first, 1 - first].into_iter().any(|side| self.step_of(side))
    }

    pub fn step_of(&mut self, from: usize) -> bool {
        let to = 1 - from;
        if self.sides.iter().any(|side| side.dead) {
            return false;
        }
        let Some(work) = self.sides[from].sends.pop_front() else { return false };
        let nothing = Ok(Received::default());
        match work {
            Work::Data { immediate, parts } => {
                let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
                self.deliver(to, immediate, &bytes);
                self.sides[from].finished(Work::Data { immediate, parts }, nothing);
            }
            Work::Say { immediate, bytes, len } => {
                self.deliver(to, immediate, &bytes[..len]);
                self.sides[from].finished(Work::Say { immediate, bytes, len }, nothing);
            }
            Work::Take { mut into, from: start, len, at, key } => {
                let lent = match self.sides[to].open.get(&key) {
                    Some(Work::Open { lent: Lent::Out(part), .. }) => Some(part.bytes()),
                    _ => None,
                };
                let there = lent.and_then(|bytes| {
                    let skip = at.checked_sub(bytes.as_ptr().addr() as u64)?;
                    bytes.get(usize::try_from(skip).ok()?..)?.get(..len)
                });
                let ok = there.map(|bytes| into[start..start + len].copy_from_slice(bytes)).is_some();
                self.one_sided(from, Work::Take { into, from: start, len, at, key }, ok);
            }
            Work::Give { part, at, key } => {
                let ok = self.write(to, key, at, part.bytes());
                self.one_sided(from, Work::Give { part, at, key }, ok);
            }
            Work::Open { window, key, lent } => {
                let before = self.sides[from].open.insert(key, Work::Open { window, key, lent });
                assert!(before.is_none(), "a key opens one window");
            }
            Work::Shut { window, key } => {
                let open = self.sides[from].open.remove(&key).expect("what is shut was open");
                self.sides[from].finished(Work::Shut { window, key }, nothing);
                self.sides[from].finished(open, nothing);
            }
            Work::Receive { .. } => unreachable!("a receive is not sent"),
        }
        true
    }

    /// What the device does with a WRITE of the peer's: true if there is a window for it.
    pub fn write(&mut self, to: usize, key: u32, at: u64, bytes: &[u8]) -> bool {
        let Some(Work::Open { lent, .. }) = self.sides[to].open.get_mut(&key) else { return false };
        let (start, len) = lent.range();
        let Lent::In { into, from, .. } = lent else { return false };
        let Some(skip) = at.checked_sub(start).and_then(|skip| usize::try_from(skip).ok()) else { return false };
        if skip + bytes.len() > len {
            return false;
        }
        into[*from + skip..*from + skip + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn one_sided(&mut self, from: usize, work: Work, ok: bool) {
        if ok {
            return self.sides[from].finished(work, Ok(Received::default()));
        }
        self.sides.iter_mut().for_each(|side| side.dead = true);
        self.sides[from].finished(work, Err(Failed::Error(10)));
    }

    pub fn deliver(&mut self, to: usize, immediate: u32, bytes: &[u8]) {
        let Some(Work::Receive { mut into }) = self.sides[to].receives.pop_front() else {
            panic!("a legal peer never finds no receive posted")
        };
        into[..bytes.len()].copy_from_slice(bytes);
        let received = Received { len: bytes.len(), immediate };
        self.sides[to].finished(Work::Receive { into }, Ok(received));
    }

    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Both queue pairs in error, then destroyed.
    pub fn kill(&mut self) {
        for from in 0..2 {
            self.flush(from);
            self.destroy(from);
        }
    }

    /// One side closes, and the other, which has seen all that was finished by then, is told.
    pub fn close(&mut self, from: usize) {
        for (side, end) in [(from, End::Ours), (1 - from, End::Peer)] {
            self.sides[side].wake();
            let Side { link, out, .. } = &mut self.sides[side];
            link.lost(end, out);
            self.sides[side].take();
            self.flush(side);
            self.destroy(side);
        }
    }

    /// A queue pair in error: nothing moves any more, and everything that is posted is flushed, in some order.
    fn flush(&mut self, from: usize) {
        self.sides.iter_mut().for_each(|side| side.dead = true);
        loop {
            let side = &mut self.sides[from];
            let works = side.receives.len() + side.sends.len();
            if works == 0 {
                break;
            }
            let at = self.rng.below(works);
            let side = &mut self.sides[from];
            let work = match at.checked_sub(side.receives.len()) {
                Some(at) => side.sends.remove(at),
                None => side.receives.remove(at),
            };
            side.finished(work.unwrap(), Err(Failed::Flushed));
        }
    }

    /// The queue pair is gone: only now what was open comes back.
    pub fn destroy(&mut self, from: usize) {
        let side = &mut self.sides[from];
        side.link.lost(End::Failed, &mut side.out);
        side.take();
        while let Some((_, open)) = side.open.pop_first() {
            side.finished(open, Err(Failed::Flushed));
        }
    }

    /// Nothing is held that should not be.
    pub fn at_rest(&self) {
        for side in &self.sides {
            assert_eq!(side.conns.report()[0].to_string(), "conn 1/1: 1 owner", "{:?}", side.link);
            assert!(!side.link.outstanding());
            assert!(side.open.is_empty());
            let held = side.arena.in_use();
            let slots = if side.link.ended().is_some() { 0 } else { usize::from(RX) };
            assert_eq!(side.link.posted(), slots, "{:?}", side.link);
            assert_eq!(held, slots * SLOT, "memory is where it was");
        }
    }
}
