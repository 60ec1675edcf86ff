//! The lane's machine in a simulated world, so that a test waits for half a minute at no cost: the same node, and clients that read
//! what they are sent, or do not.

use super::client::{command, hello};
use super::node::{Node, Order};
use super::{SIZE, machine, map};
use driver::{Address, Conn, ConnId, Done, ListenerId, Machine, Op, Outbox, Part, Provider, Span, StreamId, Time, why};
use memory::{Arena, Class};
use refcount::{Hold, Table};
use sim::{Birth, News, Options, ProcessId, Setup, World};
use smallvec::smallvec;
use std::net::SocketAddr;
use target_daemon::{Letter, Mail, NbdTarget, TargetView};
use volume_client::Limits;

const READ: u16 = 0;
const DISCONNECT: u16 = 2;
/// Far more than anything takes that waits for no deadline.
const SOON: Span = Span::seconds(2);

/// To a machine.
enum To {
    Target(Mail),
    Node(Order),
    Guest(Reads),
}

/// From now on it reads all that it is sent.
struct Reads;

impl TryFrom<To> for Mail {
    type Error = ();
    fn try_from(to: To) -> Result<Self, ()> {
        if let To::Target(mail) = to { Ok(mail) } else { Err(()) }
    }
}

impl TryFrom<To> for Order {
    type Error = ();
    fn try_from(to: To) -> Result<Self, ()> {
        if let To::Node(order) = to { Ok(order) } else { Err(()) }
    }
}

impl TryFrom<To> for Reads {
    type Error = ();
    fn try_from(to: To) -> Result<Self, ()> {
        if let To::Guest(reads) = to { Ok(reads) } else { Err(()) }
    }
}

/// From a machine: only the target has something to say.
enum Said {
    Target(Letter),
    Nothing,
}

impl From<Letter> for Said {
    fn from(letter: Letter) -> Self {
        Self::Target(letter)
    }
}

impl From<()> for Said {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

/// An NBD client that says all it will say at once, some time after it is connected.
struct Guest {
    arena: Arena,
    _conns: Table<Conn>,
    owner: Hold<Conn, why::Owner>,
    to: Address,
    says: Vec<u8>,
    after: Span,
    speaks: Option<Time>,
    stream: Option<StreamId>,
    reads: bool,
    sending: bool,
    receiving: bool,
    heard: Vec<u8>,
    over: bool,
}

impl Guest {
    fn new(to: Address, (says, after): (Vec<u8>, Span), reads: bool, _birth: Birth) -> Self {
        let conns = Table::new();
        let owner = conns.insert(Conn::new(ConnId { slot: 0, generation: 0 }, Provider::Nbd));
        Self {
            arena: Arena::small(4 << 20),
            _conns: conns,
            owner,
            to,
            says,
            after,
            speaks: None,
            stream: None,
            reads,
            sending: false,
            receiving: false,
            heard: Vec::new(),
            over: false,
        }
    }

    fn say(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        let Some(stream) = self.stream.filter(|_| self.speaks.is_some_and(|at| at <= now) && !self.over) else {
            return;
        };
        self.speaks = None;
        let len = self.says.len();
        let mut mem = self.arena.take(len, Class::Client).unwrap();
        mem[..len].copy_from_slice(&self.says);
        let parts = smallvec![Part { mem: mem.filled(), from: 0, len }];
        self.sending = true;
        out.submit(Op::Send { stream, on: smallvec![self.owner.share()], parts });
    }

    fn receive(&mut self, out: &mut dyn Outbox<()>) {
        let Some(stream) = self.stream.filter(|_| self.reads && !self.receiving && !self.over) else { return };
        self.receiving = true;
        let into = self.arena.take(1 << 20, Class::Client).unwrap();
        out.submit(Op::Recv { stream, on: self.owner.share(), into, from: 0 });
    }
}

impl Machine for Guest {
    type Mail = Reads;
    type Letter = ();

    fn start(&mut self, _: Time, out: &mut dyn Outbox<()>) {
        out.submit(Op::Connect { on: self.owner.share(), to: self.to.clone(), within: Span::seconds(10) });
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<()>) {
        match done.op {
            Op::Connect { .. } => {
                self.stream = Some(StreamId(done.result.unwrap()));
                self.speaks = (!self.says.is_empty()).then_some(now + self.after);
            }
            Op::Send { .. } => self.sending = false,
            Op::Recv { into, .. } => {
                self.receiving = false;
                match done.result {
                    Ok(len) if len > 0 => self.heard.extend(&into[..len as usize]),
                    _ => self.over = true,
                }
            }
            _ => {}
        }
        self.receive(out);
        if self.over
            && !self.sending
            && let Some(stream) = self.stream.take()
        {
            out.submit(Op::Close { stream });
        }
    }
    fn mail(&mut self, _: Time, Reads: Reads, out: &mut dyn Outbox<()>) {
        self.reads = true;
        self.receive(out);
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        self.say(now, out);
    }
    fn next_deadline(&self) -> Option<Time> {
        self.speaks.filter(|_| !self.over)
    }
    fn finished(&self) -> bool {
        false
    }
}

/// What a client says that chooses the export and reads so often so many bytes from the start of the volume.
pub(crate) fn reads(count: u64, len: u32) -> Vec<u8> {
    let commands = (1..=count).flat_map(|cookie| command(READ, 0, cookie, (0, len), &[]));
    hello().into_iter().chain(commands).collect()
}

/// What a client says that says goodbye behind this.
pub(crate) fn and_leaves(says: Vec<u8>) -> Vec<u8> {
    [says, command(DISCONNECT, 0, 0, (0, 0), &[])].concat()
}

/// What it is sent for that: the greeting, the export, and each reply with its data.
pub(crate) fn answers(count: u64, len: u32) -> usize {
    18 + 10 + count as usize * (16 + len as usize)
}

/// The world.
pub(crate) struct Quiet {
    w: World<To, Said>,
    target: ProcessId,
    arena: Arena,
    listen: Address,
    /// How often people were told that a client was turned away.
    pub(crate) crowded: u32,
    ended: bool,
}

impl Quiet {
    pub(crate) fn new() -> Self {
        Self::limited(Limits::default())
    }

    /// Its target asks the volume for no more than that.
    pub(crate) fn limited(rate: Limits) -> Self {
        let mut w = World::new(1, Options::default());
        let endpoint = SocketAddr::from(([10, 0, 0, 1], 7000));
        let node = Setup::named("node").listen(Address::Tcp(endpoint));
        w.spawn(node, |_| Node::new(ListenerId(0), SIZE));
        let listen = Address::Unix("nbd.sock".into());
        let (made, arena) = machine(&map(endpoint, SIZE), 128, false, rate, ListenerId(0));
        let mut made = Some(made);
        let setup = Setup::named("target").listen(listen.clone());
        let target = w.spawn(setup, move |_| made.take().expect("it has one life"));
        Self { w, target, arena, listen, crowded: 0, ended: false }
    }

    /// Connects a client that says this.
    pub(crate) fn connect(&mut self, says: Vec<u8>, reads: bool) -> ProcessId {
        self.connect_from_afar(says, Span(0), reads)
    }

    /// One whose words are so long on their way.
    pub(crate) fn connect_from_afar(&mut self, says: Vec<u8>, after: Span, reads: bool) -> ProcessId {
        let to = self.listen.clone();
        self.w.spawn(Setup::named("guest"), move |birth| Guest::new(to.clone(), (says.clone(), after), reads, birth))
    }

    /// It reads all that it is sent from now on.
    pub(crate) fn read(&mut self, guest: ProcessId) {
        self.w.mail_after(guest, Span(0), To::Guest(Reads));
    }

    fn guest(&self, guest: ProcessId) -> &Guest {
        self.w.machine(guest).unwrap()
    }

    /// What it has read.
    pub(crate) fn heard(&self, guest: ProcessId) -> &[u8] {
        &self.guest(guest).heard
    }

    /// It has read the end of its stream.
    pub(crate) fn is_over(&self, guest: ProcessId) -> bool {
        self.guest(guest).over
    }

    pub(crate) fn look(&self) -> TargetView {
        let machine: &NbdTarget = self.w.machine(self.target).unwrap();
        machine.view(self.w.local(self.target))
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, span: Span) {
        let (until, mut news) = (self.w.now() + span, Vec::new());
        self.w.run_until(until, |_, n| news.push(n));
        for n in news {
            match n {
                News::Letter { letter: Said::Target(Letter::Crowded), .. } => self.crowded += 1,
                News::Finished(process) => self.ended |= process == self.target,
                _ => {}
            }
        }
    }

    /// Goes on until something is so, which takes no deadline to pass.
    pub(crate) fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let limit = self.w.now() + SOON;
        while !is(self) {
            assert!(self.w.now() < limit, "never: {what}\n{}", self.w.report());
            self.pass(Span::millis(1));
        }
    }

    /// Ends the target, and nothing is left of it.
    pub(crate) fn stop(&mut self) {
        self.w.mail_after(self.target, Span(0), To::Target(Mail::Stop));
        self.until("the target's end", |this| this.ended);
        self.arena.leaks().unwrap();
    }
}
