//! Three nodes with real stores, one shard, one client, and a conductor that grants all it is asked: in one simulated world.

use conductor_model::api::{
    MembershipAnswer, MembershipChange, MembershipRequest, Order, OrderReport, OrderState, ShardOrder,
};
use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, OrderId, Sequence, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId,
};
use driver::{Address, ConnId, DiskIndex, Done, ListenerId, Machine, Op, Outbox, Span, Time};
use memory::{Arena, ArenaOptions, Backing, Class, Shares};
use node_core::{Disk, Node, NodeOptions, View};
use node_protocol::{IoBody, ReplyBody, Status, op};
use node_store::journaled::{Format, FormatOptions, Geometry, JournaledStore, Opening, Tuning};
use node_store::{Identity, OpenError, OpenOptions, Store, StoreOp, Tag, block_crcs};
use sim::{Birth, DiskOptions, News, Options, ProcessId, Rng, Setup, Step, World};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use tcp::{Attempt, Net, NetEvent, NetOptions, Payload};
use wire::{ClusterKey, HelloInfo, Role};

const DISK_BYTES: u64 = 24 << 20;
const KEY: ClusterKey = ClusterKey([7; 32]);
/// Size of the shard.
pub(crate) const BLOCKS: u32 = 1024;
pub(crate) const SHARD: ShardId = ShardId { volume: VolumeId(1), index: ShardIndex(0) };

pub(crate) fn range(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

/// Content of a block that is like no other's.
pub(crate) fn content(block: u32, version: u32) -> Vec<u8> {
    let seed = u64::from(block) << 32 | u64::from(version) << 8 | 0xa5;
    (0..BLOCK as u64 / 8).flat_map(|n| (seed ^ n << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// Content of several blocks.
pub(crate) fn contents(from: u32, count: u32, version: u32) -> Vec<u8> {
    (from..from + count).flat_map(|block| content(block, version)).collect()
}

/// Done to a store before its node serves: what the nodes themselves would never do.
#[derive(Clone, Debug)]
pub(crate) enum Prepared {
    Snapshot(u64),
    /// On this copy only, as if it were known everywhere.
    Write(u32, Vec<u8>),
}

pub(crate) enum Mail {
    Node(node_core::Mail),
    Ask(Ask),
}

/// What a client asks.
pub(crate) struct Ask {
    pub(crate) tag: u64,
    pub(crate) epoch: Epoch,
    pub(crate) op: wire::Op,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) data: Vec<u8>,
}

#[derive(Debug)]
pub(crate) enum Letter {
    Opened(DiskId, OpenId),
    Node(node_core::Letter),
    Answered(u64, Result<(Status, Vec<u8>), String>),
    Failed(String),
}

impl TryFrom<Mail> for node_core::Mail {
    type Error = ();
    fn try_from(mail: Mail) -> Result<Self, ()> {
        if let Mail::Node(mail) = mail { Ok(mail) } else { Err(()) }
    }
}

impl TryFrom<Mail> for Ask {
    type Error = ();
    fn try_from(mail: Mail) -> Result<Self, ()> {
        if let Mail::Ask(ask) = mail { Ok(ask) } else { Err(()) }
    }
}

struct Letters<'a>(&'a mut dyn Outbox<Letter>);

impl Outbox<node_core::Letter> for Letters<'_> {
    fn submit(&mut self, op: Op) {
        self.0.submit(op);
    }
    fn post(&mut self, letter: node_core::Letter) {
        self.0.post(Letter::Node(letter));
    }
}

type Plans = Rc<RefCell<BTreeMap<u32, VecDeque<Prepared>>>>;

enum Stage {
    Formatting(Box<Format>),
    Opening(Box<Opening>),
    Preparing(Box<JournaledStore>),
    Serving(Box<Node<JournaledStore>>),
    Over,
}

/// A storage node's process.
pub(crate) struct NodeProcess {
    node: u32,
    arena: Arena,
    random: Rng,
    plans: Plans,
    started: Time,
    stage: Stage,
}

fn endpoint(node: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(node).unwrap()], 7000))
}

impl NodeProcess {
    fn new(node: u32, plans: Plans, birth: Birth) -> Self {
        let bytes = 8 << 20;
        let options = ArenaOptions { bytes, backing: Backing::Heap, shares: Shares::even(bytes) };
        let random = Rng::new(birth.seed);
        Self { node, arena: Arena::new(options).unwrap(), random, plans, started: birth.now, stage: Stage::Over }
    }

    pub(crate) fn view(&self) -> Option<View> {
        if let Stage::Serving(node) = &self.stage { Some(node.view()) } else { None }
    }

    fn open(&mut self, out: &mut dyn Outbox<Letter>) {
        let options = OpenOptions {
            disk: DiskIndex(0),
            size: Bytes(DISK_BYTES),
            cluster: Some(1),
            node: Some(NodeId(self.node)),
        };
        let opening = Opening::start(options, Tuning::default(), &self.arena, &mut |op| out.submit(op)).unwrap();
        self.stage = Stage::Opening(Box::new(opening));
    }

    fn format(&mut self, out: &mut dyn Outbox<Letter>) {
        let geometry = Geometry::new(Bytes(DISK_BYTES), 700, 256, 8).unwrap();
        let identity = Identity { cluster: 1, node: NodeId(self.node), disk: DiskId(u64::from(self.node)) };
        let options = FormatOptions { disk: DiskIndex(0), journal: None, identity, geometry, overwrite: false };
        let format = Format::start(options, &self.arena, &mut |op| out.submit(op)).unwrap();
        self.stage = Stage::Formatting(Box::new(format));
    }

    /// The next thing to prepare, or the node.
    fn prepare(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let Stage::Preparing(store) = &mut self.stage else { return };
        while let Some((_, result)) = store.next_completion() {
            result.unwrap();
        }
        if !store.idle() {
            return;
        }
        let planned = self.plans.borrow_mut().get_mut(&self.node).and_then(VecDeque::pop_front);
        let Some(planned) = planned else {
            if let Stage::Preparing(store) = std::mem::replace(&mut self.stage, Stage::Over) {
                self.serve(now, *store, out);
            }
            return;
        };
        let (copy, config) = store.copies()[0].clone();
        let left = self.plans.borrow().get(&self.node).map_or(0, VecDeque::len) as u64;
        // Not so far ahead that the others would be taken for disks from the past.
        let stamp = Stamp { epoch: config.epoch, sequence: Sequence(16 - left) };
        let operation = match planned {
            Prepared::Snapshot(id) => StoreOp::Snapshot { copy, stamp, snapshot: SnapshotId(id), known_good: stamp },
            Prepared::Write(block, bytes) => {
                let crcs = block_crcs(&bytes);
                let mut data = self.arena.take(bytes.len(), Class::Client).unwrap();
                data.copy_from_slice(&bytes);
                let at = range(block, 1);
                StoreOp::Write { copy, stamp, at, data: data.filled(), crcs, known_good: stamp, durable: true }
            }
        };
        store.submit(now, Tag(0), operation, &mut |op| out.submit(op));
        store.end_turn(now, &mut |op| out.submit(op));
    }

    fn serve(&mut self, now: Time, store: JournaledStore, out: &mut dyn Outbox<Letter>) {
        let (disk, open) = (store.disk_id(), OpenId(self.random.next_u64() | 1));
        let options = NodeOptions { node: NodeId(self.node), process: self.random.next_u64(), lane: 0 };
        let disks = vec![Disk { disk, open, index: DiskIndex(0), store }];
        let mut nonces = self.random.fork();
        let hello = Node::hello_info(&options, &disks);
        let net = NetOptions::new(hello, Rc::new(KEY), Box::new(move || nonces.next_u64()));
        let net = Net::new(net, self.arena.clone());
        let mut node = Node::new(options, self.arena.clone(), net, disks, vec![ListenerId(0)], self.started);
        node.start(now, &mut Letters(out));
        self.stage = Stage::Serving(Box::new(node));
        out.post(Letter::Opened(disk, open));
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
                Some(Err(error)) => out.post(Letter::Failed(error.to_string())),
                None => {}
            },
            Stage::Opening(opening) => match opening.done(now, done, &mut |op| out.submit(op)) {
                Some(Ok(store)) => self.stage = Stage::Preparing(Box::new(store)),
                Some(Err(OpenError::NotAStore)) => self.format(out),
                Some(Err(error)) => out.post(Letter::Failed(error.to_string())),
                None => {}
            },
            Stage::Preparing(store) => store.done(now, done, &mut |op| out.submit(op)),
            Stage::Serving(node) => node.done(now, done, &mut Letters(out)),
            Stage::Over => {}
        }
    }

    fn mail(&mut self, now: Time, mail: node_core::Mail, out: &mut dyn Outbox<Letter>) {
        if let Stage::Serving(node) = &mut self.stage {
            node.mail(now, mail, &mut Letters(out));
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
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
        false
    }
}

/// A client without any wit: one connection to node 1, made again when it is lost; what it carried is lost too.
struct Client {
    arena: Arena,
    net: Net,
    conn: Option<ConnId>,
    up: bool,
    waiting: VecDeque<Ask>,
    incarnation: u64,
    view: u64,
}

impl Client {
    fn new(birth: Birth, view: u64) -> Self {
        let mut random = Rng::new(birth.seed);
        let arena = Arena::small(16 << 20);
        let hello = HelloInfo::new(Role::Client, "host", 1);
        let net = NetOptions::new(hello, Rc::new(KEY), Box::new(move || random.next_u64()));
        let net = Net::new(net, arena.clone());
        Self { net, arena, conn: None, up: false, waiting: VecDeque::new(), incarnation: 0, view }
    }

    fn connect(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        if self.conn.is_none() && !self.waiting.is_empty() {
            self.incarnation += 1;
            let mut hello = HelloInfo::new(Role::Client, "host", 1);
            (hello.volume, hello.incarnation, hello.view) = (SHARD.volume.0, self.incarnation, self.view);
            hello.generation = u64::from(self.view == 0);
            self.conn = Some(self.net.connect(now, Attempt::only(Address::Tcp(endpoint(1))), hello, out));
        }
        let Some(conn) = self.conn.filter(|_| self.up) else { return };
        while let Some(ask) = self.waiting.front() {
            let body = IoBody::new(SHARD, ask.epoch, ask.tag, Bytes(ask.offset), ask.len);
            let payload = (!ask.data.is_empty()).then(|| {
                let mut into = self.arena.take(ask.data.len(), Class::Client).unwrap();
                into.copy_from_slice(&ask.data);
                let crcs = wire::pieces(&into);
                Payload { len: into.len(), mem: into.filled(), crcs }
            });
            let deadline = now + Span::seconds(60);
            if self.net.request(now, conn, ask.op, body.bytes(), payload, ask.tag, deadline).is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    fn drain(&mut self, out: &mut dyn Outbox<Letter>) {
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Up { .. } => self.up = true,
                NetEvent::Down { .. } => (self.up, self.conn) = (false, None),
                NetEvent::Reply { token, result, .. } => {
                    let said = result.map_err(|lost| lost.to_string()).map(|(_, body, payload)| {
                        (ReplyBody::status_of(&body).unwrap(), payload.map_or(Vec::new(), |p| p.bytes().to_vec()))
                    });
                    out.post(Letter::Answered(token, said));
                }
                other => panic!("a client got {other:?}"),
            }
        }
    }
}

impl Machine for Client {
    type Mail = Ask;
    type Letter = Letter;
    fn start(&mut self, _now: Time, _out: &mut dyn Outbox<Letter>) {}
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        self.net.done(now, done, out);
        self.drain(out);
    }
    fn mail(&mut self, _now: Time, ask: Ask, _out: &mut dyn Outbox<Letter>) {
        self.waiting.push_back(ask);
    }
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.connect(now, out);
        self.net.end_turn(now, out);
        self.drain(out);
    }
    fn next_deadline(&self) -> Option<Time> {
        self.net.next_deadline()
    }
    fn finished(&self) -> bool {
        false
    }
}

/// The world and what it said.
pub(crate) struct Three {
    pub(crate) world: World<Mail, Letter>,
    pub(crate) nodes: Vec<ProcessId>,
    disks: Vec<sim::DiskId>,
    clients: BTreeMap<u64, ProcessId>,
    plans: Plans,
    pub(crate) config: Configuration,
    opened: BTreeMap<u32, (DiskId, OpenId)>,
    answers: BTreeMap<u64, Result<(Status, Vec<u8>), String>>,
    last_tag: u64,
    pub(crate) reports: Vec<OrderReport>,
    pub(crate) lines: Vec<String>,
    pub(crate) failed_disks: Vec<String>,
}

impl Three {
    /// Node 1 is primary; all is empty.
    pub(crate) fn new(seed: u64) -> Self {
        let mut world: World<Mail, Letter> = World::new(seed, Options::default());
        let plans = Plans::default();
        let (mut nodes, mut disks) = (Vec::new(), Vec::new());
        for node in 1..=3 {
            let disk = world.add_disk(DiskOptions::sized(DISK_BYTES));
            let setup = Setup::named(format!("node {node}")).disk(disk).listen(Address::Tcp(endpoint(node)));
            let plans = Rc::clone(&plans);
            nodes.push(world.spawn(setup, move |birth| NodeProcess::new(node, Rc::clone(&plans), birth)));
            disks.push(disk);
        }
        let config = Configuration {
            shard: SHARD,
            epoch: Epoch(0),
            primary: CopyId(1),
            members: Vec::new(),
            full_set: (1..=3).map(CopyId).collect(),
            min_copies: 2,
            attach: AttachGeneration(1),
            size: Bytes(u64::from(BLOCKS) * BLOCK as u64),
            born: false,
            parent: None,
            durability: Durability::Always,
            cache: conductor_model::Commit(0),
            card: None,
        };
        let mut this = Self {
            world,
            nodes,
            disks,
            clients: BTreeMap::new(),
            plans,
            config,
            opened: BTreeMap::new(),
            answers: BTreeMap::new(),
            last_tag: 0,
            reports: Vec::new(),
            lines: Vec::new(),
            failed_disks: Vec::new(),
        };
        this.until("the stores to open", |t| t.opened.len() == 3);
        this.new_epoch();
        this.until("the shard to be served", Self::serves);
        this
    }

    pub(crate) fn view(&self, node: usize) -> View {
        self.world.machine::<NodeProcess>(self.nodes[node - 1]).and_then(NodeProcess::view).expect("it serves")
    }

    /// A counter of a node.
    pub(crate) fn counter(&self, node: usize, name: &str) -> u64 {
        self.view(node).counters.get(name).copied().unwrap_or(0)
    }

    fn serves(&mut self) -> bool {
        let process = self.world.machine::<NodeProcess>(self.nodes[0]).and_then(NodeProcess::view);
        process.is_some_and(|v| v.copies.iter().any(|c| c.epoch == self.config.epoch && c.role.contains("serving")))
    }

    /// A configuration that names the present openings.
    fn new_epoch(&mut self) {
        self.config.epoch = Epoch(self.config.epoch.0 + 1);
        let member = |(node, (disk, open)): (&u32, &(DiskId, OpenId))| Member {
            copy: CopyId(u64::from(*node)),
            node: NodeId(*node),
            disk: *disk,
            open: *open,
            state: CopyState::InSync,
            since: conductor_model::Epoch(0),
            past: false,
            endpoint: endpoint(*node),
        };
        self.config.members = self.opened.iter().map(member).collect();
        let mail = node_core::Mail::Assign(vec![self.config.clone()]);
        self.world.mail_after(self.nodes[0], Span(0), Mail::Node(mail));
    }

    fn asked(&mut self, request: &MembershipRequest) {
        let answer = if request.epoch == self.config.epoch {
            match request.change {
                MembershipChange::Born => self.config.born = true,
                MembershipChange::Reopened(_) => {}
                _ => return self.decided(MembershipAnswer::Refused("all three are wanted here".to_owned())),
            }
            self.new_epoch();
            MembershipAnswer::Granted(self.config.clone())
        } else {
            MembershipAnswer::Stale(self.config.clone())
        };
        self.decided(answer);
    }

    fn decided(&mut self, answer: MembershipAnswer) {
        let mail = node_core::Mail::Membership(SHARD, answer);
        self.world.mail_after(self.nodes[0], Span(0), Mail::Node(mail));
    }

    /// Lets time pass until `done`.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.world.now() + Span::seconds(300);
        while !done(self) {
            assert!(self.world.now() < limit, "waited for {what}\n{}", self.world.report());
            match self.world.step() {
                Step::News(news) => self.news(news),
                Step::Quiet => {}
                Step::Idle => panic!("waited for {what}, and nothing is scheduled"),
            }
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, span: Span) {
        let end = self.world.now() + span;
        self.until("time to pass", |t| t.world.now() >= end);
    }

    fn news(&mut self, news: News<Letter>) {
        let News::Letter { from, letter, .. } = news else { return };
        match letter {
            Letter::Opened(disk, open) => {
                let node = u32::try_from(self.nodes.iter().position(|n| *n == from).unwrap()).unwrap() + 1;
                self.opened.insert(node, (disk, open));
            }
            Letter::Answered(tag, answer) => drop(self.answers.insert(tag, answer)),
            Letter::Failed(what) => panic!("{what}"),
            Letter::Node(node_core::Letter::Ask(request)) => self.asked(&request),
            Letter::Node(node_core::Letter::Report(report)) => self.reports.push(report),
            Letter::Node(node_core::Letter::Damage(line)) => self.lines.push(line),
            Letter::Node(node_core::Letter::DiskFailed(disk, why)) => self.failed_disks.push(format!("{disk}: {why}")),
            Letter::Node(_) => {}
        }
    }

    /// Kills all nodes and starts them again, each with these things done to its store first.
    pub(crate) fn restart(&mut self, plans: impl IntoIterator<Item = (u32, Vec<Prepared>)>) {
        for process in self.nodes.clone() {
            self.world.kill(process);
        }
        *self.plans.borrow_mut() = plans.into_iter().map(|(node, list)| (node, list.into())).collect();
        self.opened.clear();
        for process in self.nodes.clone() {
            self.world.restart(process);
        }
        self.until("the stores to open again", |t| t.opened.len() == 3);
        self.new_epoch();
        self.until("the shard to be served again", Self::serves);
    }

    // ---- the client

    fn ask(&mut self, view: u64, op: wire::Op, offset: u64, len: u32, data: Vec<u8>) -> u64 {
        self.last_tag += 1;
        let ask = Ask { tag: self.last_tag, epoch: self.config.epoch, op, offset, len, data };
        let world = &mut self.world;
        let client = *self.clients.entry(view).or_insert_with(|| {
            world.spawn(Setup::named(format!("client {view}")), move |birth| Client::new(birth, view))
        });
        self.world.mail_after(client, Span(0), Mail::Ask(ask));
        self.last_tag
    }

    /// Sends a read of blocks; its answer comes with `answer`.
    pub(crate) fn send_read(&mut self, at: BlockRange) -> u64 {
        self.ask(0, op::READ, at.from.bytes().0, u32::try_from(at.count.bytes().0).unwrap(), Vec::new())
    }

    /// What a reader of a snapshot gets.
    pub(crate) fn read_snapshot(&mut self, snapshot: u64, at: BlockRange) -> Result<Vec<u8>, Status> {
        let (offset, len) = (at.from.bytes().0, u32::try_from(at.count.bytes().0).unwrap());
        let tag = self.ask(snapshot, op::READ, offset, len, Vec::new());
        let (status, data) = self.answer(tag);
        if status == Status::Ok { Ok(data) } else { Err(status) }
    }

    /// Has this been answered?
    pub(crate) fn is_answered(&self, tag: u64) -> bool {
        self.answers.contains_key(&tag)
    }

    pub(crate) fn answer(&mut self, tag: u64) -> (Status, Vec<u8>) {
        self.until("an answer", |t| t.is_answered(tag));
        self.answers.remove(&tag).unwrap().expect("it was answered")
    }

    pub(crate) fn read(&mut self, at: BlockRange) -> Result<Vec<u8>, Status> {
        let tag = self.send_read(at);
        let (status, data) = self.answer(tag);
        if status == Status::Ok { Ok(data) } else { Err(status) }
    }

    /// Reads blocks and looks whether each is that of this version.
    pub(crate) fn assert_reads(&mut self, at: BlockRange, version: u32) {
        let data = self.read(at).unwrap_or_else(|status| panic!("blocks {at}: {status:?}"));
        for (block, bytes) in (at.from.0..).zip(data.chunks(BLOCK)) {
            assert!(bytes == content(block, version), "block {block} is wrong");
        }
    }

    pub(crate) fn write_bytes(&mut self, offset: u64, data: Vec<u8>) -> Status {
        let len = u32::try_from(data.len()).unwrap();
        let tag = self.ask(0, op::WRITE, offset, len, data);
        self.answer(tag).0
    }

    /// Writes blocks with their content of a version.
    pub(crate) fn write(&mut self, at: BlockRange, version: u32) {
        let mut from = at.from.0;
        while u64::from(from) < at.end() {
            let count = 256.min(u32::try_from(at.end()).unwrap() - from);
            let status = self.write_bytes(u64::from(from) * BLOCK as u64, contents(from, count, version));
            assert_eq!(status, Status::Ok);
            from += count;
        }
    }

    // ---- rot

    /// Where a node's disk holds exactly these bytes.
    pub(crate) fn find(&self, node: usize, bytes: &[u8]) -> Vec<u64> {
        self.find_blocks(node, |block| block == bytes)
    }

    /// Where a node's disk holds such blocks.
    fn find_blocks(&self, node: usize, such: impl Fn(&[u8]) -> bool) -> Vec<u64> {
        let disk = self.world.disk_bytes(self.disks[node - 1], 0, usize::try_from(DISK_BYTES).unwrap());
        let blocks = disk.chunks_exact(BLOCK).enumerate().filter(|(_, block)| such(block));
        blocks.map(|(n, _)| n as u64 * BLOCK as u64).collect()
    }

    /// Where a node's disk holds its store's metadata pages, and where their second mirrors.
    pub(crate) fn find_pages(&self, node: usize) -> (Vec<u64>, Vec<u64>) {
        let mut first = self.find_blocks(node, |block| block.starts_with(b"TPG2") && block[8] == 1);
        let second = first.split_off(first.len() / 2);
        (first, second)
    }

    /// Flips a bit there.
    pub(crate) fn flip(&mut self, node: usize, at: u64, bit: u8) {
        self.world.rot(self.disks[node - 1], at, bit);
    }

    /// Flips a bit of a block's content wherever a node's disk holds it.
    pub(crate) fn rot(&mut self, node: usize, block: u32, version: u32) {
        let places = self.find(node, &content(block, version));
        assert!(!places.is_empty(), "node {node} holds block {block}");
        for at in places {
            self.flip(node, at + u64::from(block * 7 % 4096), u8::try_from(block % 8).unwrap());
        }
    }

    // ---- scrub

    /// Names a scrub, or none.
    pub(crate) fn order_scrub(&mut self, id: u64, from: u32, rate: u64) {
        let what = ShardOrder::Scrub { from: Blocks(from), rate: Bytes(rate) };
        self.orders(vec![Order { id: OrderId(id), shard: SHARD, what }]);
    }

    pub(crate) fn orders(&mut self, orders: Vec<Order>) {
        self.world.mail_after(self.nodes[0], Span(0), Mail::Node(node_core::Mail::Orders(orders)));
    }

    /// Scrubs everything: damaged and repaired blocks.
    pub(crate) fn scrub(&mut self, id: u64) -> (u64, u64) {
        self.order_scrub(id, 0, 1 << 30);
        let state = |t: &Self| {
            t.reports.iter().rev().find(|r| r.id == OrderId(id)).map(|r| r.state.clone()).and_then(|s| match s {
                OrderState::Done { damaged, repaired } => Some((damaged, repaired)),
                _ => None,
            })
        };
        self.until("the scrub", |t| state(t).is_some());
        state(self).unwrap()
    }
}
