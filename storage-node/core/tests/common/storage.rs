//! A node's process: its disks formatted or opened one behind the other, done to the first one's store what is planned, then the node.

use super::late::Late;
use super::{KEY, Said};
use conductor_model::{BlockRange, Blocks, Bytes, DiskId, NodeId, OpenId, Sequence, SnapshotId, Stamp};
use driver::{DiskIndex, Done, ListenerId, Machine, Op, Outbox, Time};
use memory::{Arena, ArenaOptions, Backing, Class, Shares};
use node_core::{Disk, Letter, Mail, Node, NodeOptions};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{Identity, OpenError, OpenOptions, Store, StoreOp, Tag, block_crcs};
use sim::{Birth, Rng};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tcp::{Net, NetOptions};

/// Done to a copy in a store before its node serves: what nodes themselves would never do.
#[derive(Clone, Debug)]
pub enum Prepared {
    Snapshot(u64),
    /// On this copy only, as if it were known everywhere.
    Write(u32, Vec<u8>),
}

/// What is still to be done to a store, first to last.
pub type Plan = Rc<RefCell<VecDeque<Prepared>>>;

enum Stage {
    Begins,
    Formatting(Box<Format>),
    Opening(Box<Opening>),
    Preparing(Box<JournaledStore>),
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
    discarding: Rc<Cell<bool>>,
    second_hangs: Rc<Cell<bool>>,
    plan: Plan,
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
    pub fn new(
        node: NodeId,
        (disk, disks): (Bytes, u16),
        holds: [Rc<Cell<bool>>; 3],
        plan: Plan,
        birth: Birth,
    ) -> Self {
        let (bytes, backing) = (32 << 20, Backing::SmallPages);
        let arena = Arena::new(ArenaOptions { bytes, backing, shares: Shares::even(bytes) }).unwrap();
        let random = Rng::new(birth.seed);
        let [holds_reads, second_hangs, discarding] = holds;
        let (started, open, stage) = (birth.now, Vec::new(), Stage::Begins);
        Self { node, disk, disks, open, arena, random, started, holds_reads, second_hangs, discarding, plan, stage }
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
        if self.open.is_empty() && !self.plan.borrow().is_empty() {
            self.stage = Stage::Preparing(Box::new(store));
        } else {
            self.ready(now, store, out);
        }
    }

    fn ready(&mut self, now: Time, store: JournaledStore, out: &mut dyn Outbox<Said>) {
        self.open.push(store);
        if self.open.len() < usize::from(self.disks) { self.open(out) } else { self.serve(now, out) }
    }

    /// Begins the next thing that is planned, once the one before is over; behind the last one the store is ready.
    fn prepare(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        let Stage::Preparing(store) = &mut self.stage else { return };
        while let Some((_, result)) = store.next_completion() {
            result.unwrap();
        }
        if !store.idle() {
            return;
        }
        let planned = self.plan.borrow_mut().pop_front();
        let Some(planned) = planned else {
            if let Stage::Preparing(store) = std::mem::replace(&mut self.stage, Stage::Begins) {
                self.ready(now, *store, out);
            }
            return;
        };
        let (copy, config) = store.copies()[0].clone();
        // Not so far ahead that the others would be taken for disks from the past.
        let stamp = Stamp { epoch: config.epoch, sequence: Sequence(16 - self.plan.borrow().len() as u64) };
        let operation = match planned {
            Prepared::Snapshot(id) => StoreOp::Snapshot { copy, stamp, snapshot: SnapshotId(id), known_good: stamp },
            Prepared::Write(block, bytes) => {
                let crcs = block_crcs(&bytes);
                let mut data = self.arena.take(bytes.len(), Class::Client).unwrap();
                data.copy_from_slice(&bytes);
                let at = BlockRange { from: Blocks(block), count: Blocks(1) };
                StoreOp::Write { copy, stamp, at, data: data.filled(), crcs, known_good: stamp, durable: true }
            }
        };
        store.submit(now, Tag(0), operation, &mut |op| out.submit(op));
        store.end_turn(now, &mut |op| out.submit(op));
    }

    fn serve(&mut self, now: Time, out: &mut dyn Outbox<Said>) {
        let options = NodeOptions { node: self.node, process: self.random.next_u64(), lane: 0 };
        let mut disks = Vec::new();
        for (at, store) in (0..).zip(std::mem::take(&mut self.open)) {
            let (disk, open) = (store.disk_id(), OpenId(self.random.next_u64() | 1));
            out.post(Said::Opened(at as usize, disk, open));
            let hangs = if at == 1 { Rc::clone(&self.second_hangs) } else { Rc::default() };
            let store = Late::new(store, [Rc::clone(&self.holds_reads), hangs, Rc::clone(&self.discarding)]);
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
            Stage::Preparing(store) => store.done(now, done, &mut |op| out.submit(op)),
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
        if let Stage::Preparing(store) = &mut self.stage {
            store.end_turn(now, &mut |op| out.submit(op));
            self.prepare(now, out);
        }
        if let Stage::Serving(node) = &mut self.stage {
            node.end_turn(now, &mut Letters(out));
        }
    }
    fn next_deadline(&self) -> Option<Time> {
        match &self.stage {
            Stage::Preparing(store) => store.next_deadline(),
            Stage::Serving(node) => node.next_deadline(),
            _ => None,
        }
    }
    fn finished(&self) -> bool {
        self.node().is_some_and(Machine::finished)
    }
}
