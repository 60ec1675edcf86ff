//! A node with one copy in memory that answers at once, or not before it is told to, or has changes come again later.

use driver::{Address, Done, ListenerId, Machine, Outbox, Time};
use memory::{Arena, Class};
use node_protocol::{IoBody, ReplyBody, Status, op};
use reactor::{Limits, Mailbox, OwnRing, Reactor, Uring, mailbox};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use tcp::{Admission, Answer, Net, NetEvent, NetOptions, Payload};
use wire::{ClusterKey, HelloInfo, Op, Role, SessionId, pieces};

pub(crate) struct FakeNode {
    pub(crate) endpoint: SocketAddr,
    mail: Mailbox<Order>,
    thread: Option<JoinHandle<()>>,
}

/// What a test tells it.
pub(crate) enum Order {
    Hold(bool),
    PutOff(bool),
    Sicken(Option<u32>),
    LosePower(Sender<()>),
    Stop,
}

type Request = (Op, IoBody, Option<Payload>, Answer);

/// Its machine.
pub(crate) struct Node {
    net: Net,
    arena: Arena,
    listener: ListenerId,
    data: Vec<u8>,
    /// What would be left after a loss of power: what was flushed, or written with FUA.
    durable: Vec<u8>,
    holding: bool,
    held: Vec<Request>,
    putting_off: bool,
    /// A shard that is not served.
    sick: Option<u32>,
    sessions: u64,
}

impl FakeNode {
    pub(crate) fn start(size: u64) -> Self {
        let (mail, rx) = mailbox(16).unwrap();
        let (started, ready) = channel();
        let thread = std::thread::spawn(move || {
            let limits = Limits::default();
            let mut driver = Uring::new(OwnRing::new(&limits).unwrap(), limits).unwrap();
            let (listener, address) = driver.listen(&Address::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
            let Address::Tcp(endpoint) = address else { panic!("{address:?}") };
            let reactor = Reactor::start(Node::new(listener, size), driver, rx).unwrap();
            started.send(endpoint).unwrap();
            reactor.run(|()| {}).unwrap();
        });
        Self { endpoint: ready.recv().unwrap(), mail, thread: Some(thread) }
    }

    /// From now on it keeps requests, or answers all that it kept.
    pub(crate) fn hold(&self, hold: bool) {
        self.mail.send(Order::Hold(hold)).unwrap();
    }

    /// From now on it answers every change with "later", or no more.
    pub(crate) fn put_off(&self, put_off: bool) {
        self.mail.send(Order::PutOff(put_off)).unwrap();
    }

    /// From now on it answers everything that is for this shard with "later"; for none, no more.
    pub(crate) fn sicken(&self, shard: Option<u32>) {
        self.mail.send(Order::Sicken(shard)).unwrap();
    }

    /// It forgets what is not durable.
    pub(crate) fn lose_power(&self) {
        let (to, lost) = channel();
        self.mail.send(Order::LosePower(to)).unwrap();
        lost.recv().unwrap();
    }

    pub(crate) fn stop(&mut self) {
        self.mail.send(Order::Stop).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Node {
    pub(crate) fn new(listener: ListenerId, size: u64) -> Self {
        let arena = Arena::small(128 << 20);
        let mut random = 1 << 32;
        let random = Box::new(move || {
            random += 1;
            random
        });
        let name = HelloInfo::new(Role::Node, "n1", 77);
        let net = Net::new(NetOptions::new(name, Rc::new(ClusterKey(super::KEY)), random), arena.clone());
        let data = vec![0; size as usize];
        let held = Vec::new();
        let durable = data.clone();
        let (holding, putting_off, sick, sessions) = (false, false, None, 0);
        Self { net, arena, listener, data, durable, holding, held, putting_off, sick, sessions }
    }

    fn events(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Hello { conn, .. } => {
                    self.sessions += 1;
                    let hello = HelloInfo::new(Role::Node, "n1", 77);
                    let session = SessionId(self.sessions);
                    self.net.accept_peer(now, conn, Admission { hello, session }, out);
                }
                NetEvent::Request { op, body, payload, answer, .. } => {
                    let request = (op, IoBody::parse(&body).unwrap(), payload, answer);
                    let sick = self.sick == Some(request.1.shard.get());
                    if sick || self.putting_off && op != op::READ {
                        self.net.reply(now, request.3, Op::REPLY, ReplyBody::new(Status::Later).bytes(), None);
                    } else if self.holding {
                        self.held.push(request);
                    } else {
                        self.execute(now, request);
                    }
                }
                _ => {}
            }
        }
    }

    fn execute(&mut self, now: Time, (op, body, payload, answer): Request) {
        let from = (u64::from(body.shard.get()) * super::SHARD + body.offset.get()) as usize;
        let len = body.len() as usize;
        let mut made_durable = from..if body.is_fua() { from + len } else { from };
        let range = &mut self.data[from..from + len];
        let mut data = None;
        match op {
            op::READ => {
                let mut mem = self.arena.take(len, Class::Work).unwrap();
                mem.copy_from_slice(range);
                let crcs = pieces(&mem);
                data = Some(Payload { mem: mem.filled(), len, crcs });
            }
            op::WRITE => range.copy_from_slice(payload.as_ref().unwrap().bytes()),
            op::WRITE_ZEROES | op::DISCARD => range.fill(0),
            op::FLUSH => made_durable = from..(from + super::SHARD as usize).min(self.data.len()),
            other => panic!("{other:?}"),
        }
        self.durable[made_durable.clone()].copy_from_slice(&self.data[made_durable]);
        self.net.reply(now, answer, Op::REPLY, ReplyBody::new(Status::Ok).bytes(), data);
    }
}

impl Machine for Node {
    type Mail = Order;
    type Letter = ();
    fn start(&mut self, _: Time, out: &mut dyn Outbox<()>) {
        self.net.listen(self.listener, out);
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<()>) {
        self.net.done(now, done, out);
        self.events(now, out);
    }
    fn mail(&mut self, now: Time, order: Order, out: &mut dyn Outbox<()>) {
        match order {
            Order::Hold(true) => self.holding = true,
            Order::Hold(false) => {
                self.holding = false;
                for request in std::mem::take(&mut self.held) {
                    self.execute(now, request);
                }
            }
            Order::PutOff(put_off) => self.putting_off = put_off,
            Order::Sicken(shard) => self.sick = shard,
            Order::LosePower(to) => {
                self.data.clone_from(&self.durable);
                to.send(()).unwrap();
            }
            Order::Stop => {
                self.held.clear();
                self.net.stop(now, out);
            }
        }
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<()>) {
        self.net.end_turn(now, out);
        self.events(now, out);
    }
    fn next_deadline(&self) -> Option<Time> {
        self.net.next_deadline()
    }
    fn finished(&self) -> bool {
        self.net.finished()
    }
}
