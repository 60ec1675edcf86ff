//! A storage node's process: formats its disk or opens what is there, then is the node. What the daemon does, without the threads.

use crate::inspector::Inspector;
use crate::mail::Letter;
use crate::strict::{Breaches, Strict};
use conductor_model::api::DiskReport;
use conductor_model::{Bytes, DiskId, NodeId, OpenId, TransportAddress};
use driver::{DiskIndex, Done, ListenerId, Machine, Op, Outbox, Time};
use memory::{Arena, ArenaOptions, Backing, Shares};
use node_core::{Disk, Node, NodeOptions};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{Identity, OpenError, OpenOptions, Store};
use sim::{Birth, Rng};
use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use tcp::{Net, NetOptions};
use wire::ClusterKey;

/// Size of a node's disk: room for every shard several times over.
pub(crate) const DISK_BYTES: u64 = 40 << 20;
/// Blocks of a store's journal: few, so that it goes round often.
const RING_BLOCKS: u32 = 700;
/// Places for a store's metadata pages: the fewest.
const PLACES: u32 = 256;
/// Bytes of a store's chunk.
const CHUNK: u64 = 64 << 10;
/// Copies that a store can hold.
const MAX_COPIES: u32 = 16;
fn geometry() -> Option<Geometry> {
    Geometry::new(Bytes(DISK_BYTES), RING_BLOCKS, PLACES, MAX_COPIES)
}

/// Where data is at home on a disk: behind everything else.
pub(crate) fn home_of_data() -> Range<u64> {
    let chunks = geometry().map_or(0, |geometry| u64::from(geometry.chunks()));
    DISK_BYTES - chunks * CHUNK..DISK_BYTES
}

/// The cluster's key.
pub(crate) const KEY: ClusterKey = ClusterKey([7; 32]);

/// What all lives of a node have in common.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) node: NodeId,
    pub(crate) cluster: u64,
    pub(crate) endpoint: SocketAddr,
    /// Where it listens, too.
    pub(crate) second: Option<SocketAddr>,
    /// Requests in flight per connection.
    pub(crate) depth: u16,
    /// Bytes of memory.
    pub(crate) arena: usize,
    /// From now on lives only look at what is on the disk.
    pub(crate) inspect: Rc<Cell<bool>>,
    /// Where its stores' callers are told off.
    pub(crate) breaches: Breaches,
}

enum Stage {
    Formatting(Box<Format>),
    Opening(Box<Opening>),
    Serving(Box<Node<Strict<JournaledStore>>>),
    Inspecting(Box<Inspector>),
    /// Nothing more to do; finished if it stopped as told.
    Over(bool),
}

/// One life of a node's process.
pub(crate) struct NodeProcess {
    home: Home,
    arena: Arena,
    random: Rng,
    process: u64,
    started: Time,
    stage: Stage,
}

/// An outbox for a node's letters.
struct Letters<'a>(&'a mut dyn Outbox<Letter>);

impl Outbox<node_core::Letter> for Letters<'_> {
    fn submit(&mut self, op: Op) {
        self.0.submit(op);
    }
    fn post(&mut self, letter: node_core::Letter) {
        self.0.post(Letter::Node(letter));
    }
}

impl NodeProcess {
    pub(crate) fn new(home: Home, birth: Birth) -> Self {
        let mut random = Rng::new(birth.seed);
        let shares = Shares::even(home.arena);
        let arena = Arena::new(ArenaOptions { bytes: home.arena, backing: Backing::SmallPages, shares });
        let arena = arena.unwrap_or_else(|error| panic!("{error}"));
        let process = random.next_u64();
        Self { home, arena, random, process, started: birth.now, stage: Stage::Over(false) }
    }

    /// The node, once it serves.
    pub(crate) fn node(&self) -> Option<&Node<Strict<JournaledStore>>> {
        if let Stage::Serving(node) = &self.stage { Some(node) } else { None }
    }

    fn open(&mut self, out: &mut dyn Outbox<Letter>) {
        let options = OpenOptions {
            disk: DiskIndex(0),
            size: Bytes(DISK_BYTES),
            cluster: Some(self.home.cluster),
            node: Some(self.home.node),
        };
        match Opening::start(options, Tuning::default(), &self.arena, &mut |op| out.submit(op)) {
            Ok(opening) => self.stage = Stage::Opening(Box::new(opening)),
            Err(error) => self.fail(&error, out),
        }
    }

    fn format(&mut self, out: &mut dyn Outbox<Letter>) {
        let Some(geometry) = geometry() else { return };
        let identity =
            Identity { cluster: self.home.cluster, node: self.home.node, disk: DiskId(self.random.next_u64() | 1) };
        let options = FormatOptions { disk: DiskIndex(0), journal: None, identity, geometry, overwrite: false };
        match Format::start(options, &self.arena, &mut |op| out.submit(op)) {
            Ok(format) => self.stage = Stage::Formatting(Box::new(format)),
            Err(error) => self.fail(&error, out),
        }
    }

    fn fail(&mut self, error: &OpenError, out: &mut dyn Outbox<Letter>) {
        self.stage = Stage::Over(false);
        out.post(Letter::Failed(error.to_string()));
    }

    fn opened(&mut self, now: Time, disk: DiskId, store: JournaledStore, out: &mut dyn Outbox<Letter>) {
        if self.home.inspect.get() {
            let mut inspector = Inspector::new(store, self.arena.clone());
            inspector.go_on(now, out);
            self.stage = Stage::Inspecting(Box::new(inspector));
            return;
        }
        let usage = store.usage();
        let open = OpenId(self.random.next_u64() | 1);
        out.post(Letter::Opened(DiskReport {
            disk,
            open,
            endpoint: self.home.endpoint,
            addresses: self.home.second.map(TransportAddress::Tcp).into_iter().collect(),
            capacity: usage.capacity.bytes(),
            used: usage.used.bytes(),
            max_copies: usage.max_copies,
            copies: store.copies(),
            path: None,
        }));
        let options = NodeOptions { node: self.home.node, process: self.process, lane: 0 };
        let disks =
            vec![Disk { disk, open, index: DiskIndex(0), store: Strict::new(store, Rc::clone(&self.home.breaches)) }];
        let mut nonces = self.random.fork();
        let hello = Node::hello_info(&options, &disks);
        let mut net = NetOptions::new(hello, Rc::new(KEY), Box::new(move || nonces.next_u64()));
        net.depth = self.home.depth;
        let net = Net::new(net, self.arena.clone());
        let listeners = (0..if self.home.second.is_some() { 2 } else { 1 }).map(ListenerId).collect();
        let mut node = Node::new(options, self.arena.clone(), net, disks, listeners, self.started);
        node.start(now, &mut Letters(out));
        self.stage = Stage::Serving(Box::new(node));
    }
}

impl Machine for NodeProcess {
    type Mail = node_core::Mail;
    type Letter = Letter;

    fn start(&mut self, _now: Time, out: &mut dyn Outbox<Letter>) {
        self.open(out);
    }

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        match &mut self.stage {
            Stage::Formatting(format) => match format.done(done, &mut |op| out.submit(op)) {
                Some(Ok(())) => self.open(out),
                Some(Err(error)) => self.fail(&error, out),
                None => {}
            },
            Stage::Opening(opening) => match opening.done(now, done, &mut |op| out.submit(op)) {
                Some(Ok(store)) => {
                    let disk = store.disk_id();
                    self.opened(now, disk, store, out);
                }
                Some(Err(OpenError::NotAStore)) => self.format(out),
                Some(Err(error)) => self.fail(&error, out),
                None => {}
            },
            Stage::Serving(node) => node.done(now, done, &mut Letters(out)),
            Stage::Inspecting(inspector) => inspector.done(now, done, out),
            Stage::Over(_) => {}
        }
    }

    fn mail(&mut self, now: Time, mail: node_core::Mail, out: &mut dyn Outbox<Letter>) {
        if let Stage::Serving(node) = &mut self.stage {
            node.mail(now, mail, &mut Letters(out));
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        match &mut self.stage {
            Stage::Serving(node) => {
                node.end_turn(now, &mut Letters(out));
                if !node.finished() {
                    return;
                }
                let view = node.view();
                let held = view.refs.join("; ");
                self.stage = Stage::Over(true);
                let left = if held.is_empty() { self.arena.leaks().map_err(|r| r.to_string()) } else { Err(held) };
                out.post(Letter::Stopped(left));
            }
            Stage::Inspecting(inspector) => inspector.end_turn(now, out),
            Stage::Formatting(_) | Stage::Opening(_) | Stage::Over(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        match &self.stage {
            Stage::Serving(node) => node.next_deadline(),
            _ => None,
        }
    }

    fn finished(&self) -> bool {
        matches!(self.stage, Stage::Over(true))
    }
}
