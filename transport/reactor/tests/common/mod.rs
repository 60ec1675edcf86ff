//! A reactor that a test drives step by step, and connections to hold on to.

use driver::{Address, Conn, ConnId, Done, Errno, Machine, Op, Outbox, Provider, Span, StreamId, Time, why};
use memory::{Arena, Class, Filling, Part};
use reactor::{Limits, MailRx, Mailbox, OwnRing, Reactor, Uring, mailbox};
use refcount::{Hold, Table};
use smallvec::SmallVec;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Keeps what it is told, and does nothing of its own.
#[derive(Default)]
pub(crate) struct Listens {
    pub(crate) dones: Vec<Done>,
    pub(crate) mails: Vec<u64>,
    pub(crate) deadline: Option<Time>,
    pub(crate) finished: bool,
}

impl Machine for Listens {
    type Mail = u64;
    type Letter = ();
    fn start(&mut self, _: Time, _: &mut dyn Outbox<()>) {}
    fn done(&mut self, _: Time, done: Done, _: &mut dyn Outbox<()>) {
        self.dones.push(done);
    }
    fn mail(&mut self, _: Time, mail: u64, _: &mut dyn Outbox<()>) {
        self.mails.push(mail);
    }
    fn end_turn(&mut self, _: Time, _: &mut dyn Outbox<()>) {}
    fn next_deadline(&self) -> Option<Time> {
        self.deadline
    }
    fn finished(&self) -> bool {
        self.finished
    }
}

pub(crate) type Stepped = Reactor<Listens, OwnRing>;

pub(crate) struct Bench {
    pub(crate) reactor: Stepped,
    pub(crate) mailbox: Mailbox<u64>,
    pub(crate) arena: Arena,
    pub(crate) conns: Table<Conn>,
}

pub(crate) fn driver(limits: Limits) -> Uring<OwnRing> {
    Uring::new(OwnRing::new(&limits).unwrap(), limits).unwrap()
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(driver(Limits::default()))
    }

    pub(crate) fn with(driver: Uring<OwnRing>) -> Self {
        let (mailbox, rx): (_, MailRx<u64>) = mailbox(16).unwrap();
        let reactor = Reactor::start(Listens::default(), driver, rx).unwrap();
        Self { reactor, mailbox, arena: Arena::small(64 << 20), conns: Table::new() }
    }

    pub(crate) fn submit(&mut self, op: Op) {
        self.reactor.driver().submit(op);
    }

    /// Turns until so many operations are over.
    pub(crate) fn dones(&mut self, count: usize) -> Vec<Done> {
        while self.reactor.machine().dones.len() < count {
            self.reactor.turn().unwrap();
        }
        let dones = std::mem::take(&mut self.reactor.machine().dones);
        assert_eq!(dones.len(), count, "{dones:?}");
        dones
    }

    /// The outcome of one operation, with nothing else outstanding.
    pub(crate) fn result(&mut self, op: Op) -> Result<u32, Errno> {
        self.submit(op);
        self.dones(1)[0].result
    }

    pub(crate) fn rx(&self) -> Hold<Conn, why::Rx> {
        self.conns.insert(Conn::new(ConnId { slot: 0, generation: 0 }, Provider::Framed))
    }

    pub(crate) fn connect(&self, to: &Address) -> Op {
        Op::Connect { on: self.rx(), to: to.clone(), within: Span::seconds(60) }
    }

    pub(crate) fn recv(&self, stream: StreamId, len: usize) -> Op {
        Op::Recv { stream, on: self.rx(), into: self.page(len, 0), from: 0 }
    }

    pub(crate) fn watch(&self, stream: StreamId) -> Op {
        let conn = Conn::new(ConnId { slot: 0, generation: 0 }, Provider::Framed);
        Op::Watch { stream, on: self.conns.insert(conn) }
    }

    pub(crate) fn send(&self, stream: StreamId, parts: impl IntoIterator<Item = Part>) -> Op {
        Op::Send { stream, on: SmallVec::new(), parts: parts.into_iter().collect() }
    }

    pub(crate) fn page(&self, len: usize, byte: u8) -> Filling {
        let mut page = self.arena.take(len, Class::Client).unwrap();
        page.fill(byte);
        page
    }

    /// A connected pair: the connecting end, the accepting end.
    pub(crate) fn pair(&mut self, address: &Address) -> (StreamId, StreamId) {
        let (listener, to) = self.reactor.driver().listen(address).unwrap();
        self.submit(Op::Accept { listener });
        self.submit(self.connect(&to));
        let mut ends = (None, None);
        for done in self.dones(2) {
            let stream = Some(StreamId(done.result.unwrap()));
            match done.op {
                Op::Connect { .. } => ends.0 = stream,
                _ => ends.1 = stream,
            }
        }
        (ends.0.unwrap(), ends.1.unwrap())
    }

    /// Nothing is left of anything.
    pub(crate) fn assert_empty(mut self) {
        assert_eq!(self.reactor.driver().outstanding(), 0);
        self.reactor.machine().dones.clear();
        self.arena.leaks().unwrap();
        self.conns.leaks().unwrap();
        assert_eq!(self.reactor.driver().counters().stale, 0);
    }
}

pub(crate) fn any_port() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

/// A directory that goes with the test.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }
    pub(crate) fn below(place: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trine-reactor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = place.join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
    pub(crate) fn socket(&self) -> Address {
        Address::Unix(self.0.join("socket"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
