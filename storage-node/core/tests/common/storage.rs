//! A node's process: its disks formatted or opened one behind the other, then the node.

use super::late::Late;
use super::{KEY, Said};
use conductor_model::{Bytes, DiskId, NodeId, OpenId};
use driver::{DiskIndex, Done, ListenerId, Machine, Op, Outbox, Time};
use memory::Arena;
use node_core::{Disk, Letter, Mail, Node, NodeOptions};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{Identity, OpenError, OpenOptions};
use sim::{Birth, Rng};
use std::cell::Cell;
use std::rc::Rc;
use tcp::{Net, NetOptions};

enum Stage {
    Begins,
    Formatting(Box<Format>),
    Opening(Box<Opening>),
    Serving(Box<Node<Late<JournaledStore>>>),
}

pub struct Storage {
    node: NodeId,
    disk: Bytes,
    /// How many such disks it has.
    disks: u16,
    open: Vec<JournaledStore>,
    arena: Arena,
    random: Rng,
    started: Time,
    holds_reads: Rc<Cell<bool>>,
    second_hangs: Rc<Cell<bool>>,
    stage: Stage,
}

struct Letters<'a>(&'a mut dyn Outbox<Said>);

impl Outbox<Letter> for Letters<'_> {
    fn submit(&mut self, op: Op) {
        self.0.submit(op);
    }
    fn post(&mut self, letter: Letter) {
        self.0.post(Said::Node(letter));
    }
}

impl Storage {
    pub fn new(node: NodeId, (disk, disks): (Bytes, u16), holds: [Rc<Cell<bool>>; 2], birth: Birth) -> Self {
        let (arena, random, [holds_reads, second_hangs]) = (Arena::small(32 << 20), Rng::new(birth.seed), holds);
        let (started, open) = (birth.now, Vec::new());
        Self { node, disk, disks, open, arena, random, started, holds_reads, second_hangs, stage: Stage::Begins }
    }

    pub fn node(&self) -> Option<&Node<Late<JournaledStore>>> {
        if let Stage::Serving(node) = &self.stage { Some(node) } else { None }
    }

    fn next(&self) -> DiskIndex {
        DiskIndex(u32::try_from(self.open.len()).unwrap())
    }

    fn open(&mut self, out: &mut dyn Outbox<Said>) {
        let options = OpenOptions { disk: self.next(), size: self.disk, cluster: Some(1), node: Some(self.node) };
        let opening = Opening::start(options, Tuning::default(), &self.arena, &mut |op| out.submit(op)).unwrap();
        self.stage = Stage::Opening(Box::new(opening));
    }

    fn format(&mut self, out: &mut dyn Outbox<Said>) {
        let geometry = Geometry::new(self.disk, 700, 256, 16).unwrap();
        let identity = Identity { cluster: 1, node: self.node, disk: DiskId(self.random.next_u64() | 1) };
        let options = FormatOptions { disk: self.next(), journal: None, identity, geometry, overwrite: false };
        let format = Format::start(options, &self.arena, &mut |op| out.submit(op)).unwrap();
        self.stage = Stage::Formatting(Box::new(format));
    }

    fn opened(&mut self, now: Time, store: JournaledStore, out: &mut dyn Outbox<Said>) {
        self.open.push(store);
        if self.open.len() < usize::from(self.disks) { self.open(out) } else { self.serve(now, out) }
    }

    fn serve(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        let options = NodeOptions { node: self.node, process: self.random.next_u64(), lane: 0 };
        let mut disks = Vec::new();
        for (at, store) in (0..).zip(std::mem::take(&mut self.open)) {
            let (disk, open) = (store.disk_id(), OpenId(self.random.next_u64() | 1));
            out.post(Said::Opened(at as usize, disk, open));
            let hangs = if at == 1 { Rc::clone(&self.second_hangs) } else { Rc::default() };
            let store = Late::new(store, Rc::clone(&self.holds_reads), hangs);
            disks.push(Disk { disk, open, index: DiskIndex(at), store });
        }
        let mut nonces = self.random.fork();
        let hello = Node::hello_info(&options, &disks);
        let net = NetOptions::new(hello, Rc::new(KEY), Box::new(move || nonces.next_u64()));
        let net = Net::new(net, self.arena.clone());
        let listeners = (0..3).map(ListenerId).collect();
        let mut node = Node::new(options, self.arena.clone(), net, disks, listeners, self.started);
        node.start(now, &mut Letters(out));
        self.stage = Stage::Serving(Box::new(node));
    }
}

impl Machine for Storage {
    type Mail = Mail;
    type Letter = Said;

    fn start(&mut self, _now: Time, out: &mut dyn Outbox<Said>) {
        self.open(out);
    }
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Said>) {
        match &mut self.stage {
            Stage::Formatting(format) => {
                if let Some(result) = format.done(done, &mut |op| out.submit(op)) {
                    result.unwrap();
                    self.open(out);
                }
            }
            Stage::Opening(opening) => match opening.done(now, done, &mut |op| out.submit(op)) {
                Some(Ok(store)) => self.opened(now, store, out),
                Some(Err(OpenError::NotAStore)) => self.format(out),
                Some(Err(error)) => panic!("{error}"),
                None => {}
            },
            Stage::Serving(node) => node.done(now, done, &mut Letters(out)),
            Stage::Begins => {}
        }
    }
    fn mail(&mut self, now: Time, mail: Mail, out: &mut dyn Outbox<Said>) {
        if let Stage::Serving(node) = &mut self.stage {
            node.mail(now, mail, &mut Letters(out));
        }
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        if let Stage::Serving(node) = &mut self.stage {
            node.end_turn(now, &mut Letters(out));
        }
    }
    fn next_deadline(&self) -> Option<Time> {
        self.node().and_then(Machine::next_deadline)
    }
    fn finished(&self) -> bool {
        self.node().is_some_and(Machine::finished)
    }
}
