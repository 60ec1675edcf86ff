//! Three real nodes on simulated disks and a simulated network, bare clients, and a conductor of a few lines.
#![allow(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test helpers, of which each file uses its own part"
)]

mod client;
pub mod copies;
mod late;
mod rot;
mod storage;

pub use client::{Ask, Client};
use conductor_model::api::{CopyWork, MembershipAnswer, MembershipChange, Order, OrderReport, OrderState, ShardOrder};
use conductor_model::{
    AttachGeneration, BLOCK, BlockRange, Blocks, Bytes, Configuration, CopyId, CopyState, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, OrderId, ShardId, ShardIndex, ShardSnapshot, SnapshotId, VolumeId,
};
use driver::{Address, Span, Time};
use node_core::{Letter, Mail, View};
use node_protocol::{RangeBody, Status, op};
use sim::{DiskOptions, News, Options, ProcessId, Setup, Step, World};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
pub use storage::{Plan, Prepared, Storage};
use wire::{ClusterKey, HelloInfo, Role};

pub const KEY: ClusterKey = ClusterKey([7; 32]);
pub const DISK_BYTES: u64 = 40 << 20;
/// Size of every shard here, in blocks.
pub const BLOCKS: u32 = 256;

/// To a machine.
pub enum Post {
    Node(Mail),
    Client(Ask),
}

impl TryFrom<Post> for Mail {
    type Error = ();
    fn try_from(post: Post) -> Result<Self, ()> {
        if let Post::Node(mail) = post { Ok(mail) } else { Err(()) }
    }
}
impl TryFrom<Post> for Ask {
    type Error = ();
    fn try_from(post: Post) -> Result<Self, ()> {
        if let Post::Client(ask) = post { Ok(ask) } else { Err(()) }
    }
}

/// From a machine.
#[derive(Debug)]
pub enum Said {
    /// One of its disks.
    Opened(usize, DiskId, OpenId),
    Node(Letter),
    Answered(u64, Status, Vec<u8>),
    Down,
}

pub struct Cluster {
    pub w: World<Post, Said>,
    pub nodes: Vec<ProcessId>,
    pub disks: Vec<sim::DiskId>,
    /// Per node: its store's reads do not complete.
    pub holds_reads: Vec<Rc<Cell<bool>>>,
    /// Per node: nothing that its second disk's store was asked completes.
    pub second_hangs: Vec<Rc<Cell<bool>>>,
    /// Per node: what is done to its first disk's store, once, when it is opened the next time.
    pub plans: Vec<Plan>,
    /// Per node: its stores have as much to discard as they take at a time.
    pub discarding: Vec<Rc<Cell<bool>>>,
    /// Which of their nodes' disks the copies that are created from now on are on.
    pub on: usize,
    /// Size of the shards that are created from now on, in blocks.
    pub blocks: u32,
    /// What they need to be written to.
    pub min_copies: u8,
    /// Per node, disk by disk.
    pub opened: Vec<Vec<(DiskId, OpenId)>>,
    pub configs: BTreeMap<ShardId, Configuration>,
    pub answers: BTreeMap<u64, (Status, Vec<u8>)>,
    pub reports: Vec<OrderReport>,
    pub worked: Vec<CopyWork>,
    pub troubles: Vec<String>,
    pub failed: Vec<String>,
    /// What nodes said about damage.
    pub damage: Vec<String>,
    /// What the conductor decides is so, and nobody hears of it.
    pub mute: bool,
    /// The conductor hears of no wish.
    pub deaf: bool,
    /// A copy that is not to be filled, as its disk failed.
    pub unfit: Option<CopyId>,
    /// Membership stays as it is: of what nodes ask only births and openings are granted.
    pub fixed: bool,
    last: u64,
}

pub fn shard(volume: u32) -> ShardId {
    ShardId { volume: VolumeId(volume), index: ShardIndex(0) }
}

pub fn endpoint(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(node + 1).unwrap()], 7000))
}

/// Where else a node is reached, under a name that no configuration has at first.
pub fn elsewhere(node: usize) -> SocketAddr {
    SocketAddr::new(endpoint(node).ip(), 7001)
}

/// A block full of one byte.
pub fn block(of: u8) -> Vec<u8> {
    vec![of; BLOCK]
}

impl Cluster {
    pub fn new(seed: u64) -> Self {
        Self::with_disks(seed, 1, DISK_BYTES)
    }

    /// Nodes with so many disks each, of so many bytes.
    pub fn with_disks(seed: u64, count: u16, bytes: u64) -> Self {
        let mut w = World::new(seed, Options::default());
        w.keep_trace(200);
        let (mut nodes, mut disks) = (Vec::new(), Vec::new());
        let holds_reads: Vec<Rc<Cell<bool>>> = (0..3).map(|_| Rc::default()).collect();
        let second_hangs: Vec<Rc<Cell<bool>>> = (0..3).map(|_| Rc::default()).collect();
        let discarding: Vec<Rc<Cell<bool>>> = (0..3).map(|_| Rc::default()).collect();
        let plans: Vec<Plan> = (0..3).map(|_| Plan::default()).collect();
        for (node, discarding) in discarding.iter().enumerate() {
            let its: Vec<_> = (0..count).map(|_| w.add_disk(DiskOptions::sized(bytes))).collect();
            let setup = its.iter().fold(Setup::named(format!("node {node}")), |setup, disk| setup.disk(*disk));
            let setup = setup
                .listen(Address::Tcp(endpoint(node)))
                .listen(Address::Rdma(endpoint(node)))
                .listen(Address::Tcp(elsewhere(node)));
            let holds = [&holds_reads[node], &second_hangs[node], discarding].map(Rc::clone);
            let plan = Rc::clone(&plans[node]);
            let node = NodeId(node as u32 + 1);
            let size = (Bytes(bytes), count);
            let start = move |birth| Storage::new(node, size, holds.clone(), Rc::clone(&plan), birth);
            nodes.push(w.spawn(setup, start));
            disks.push(its[0]);
        }
        let mut this = Self {
            w,
            nodes,
            disks,
            holds_reads,
            discarding,
            second_hangs,
            plans,
            on: 0,
            blocks: BLOCKS,
            min_copies: 2,
            opened: vec![Vec::new(); 3],
            configs: BTreeMap::new(),
            answers: BTreeMap::new(),
            reports: Vec::new(),
            worked: Vec::new(),
            troubles: Vec::new(),
            failed: Vec::new(),
            damage: Vec::new(),
            mute: false,
            deaf: false,
            unfit: None,
            fixed: false,
            last: 0,
        };
        this.until("the nodes open", |this| this.opened.iter().all(|disks| disks.len() == usize::from(count)));
        this
    }

    /// Goes on until something is so, for a minute at most.
    pub fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let limit = self.w.now() + Span::seconds(60);
        while !done(self) {
            assert!(self.w.now() < limit, "{what}: not within a minute\n{}", self.picture());
            self.run(Span::millis(5));
        }
    }

    /// The same, and stops at the very moment when it is so: what has not happened by then is seen not to have.
    pub fn until_just(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let limit = self.w.now() + Span::seconds(60);
        while !done(self) {
            assert!(self.w.now() < limit, "{what}: not within a minute\n{}", self.picture());
            match self.w.step() {
                Step::News(News::Letter { from, letter, .. }) => self.heard(from, letter),
                Step::News(_) | Step::Quiet => {}
                Step::Idle => panic!("{what}: nothing is scheduled\n{}", self.picture()),
            }
        }
    }

    pub fn run(&mut self, span: Span) {
        let until = self.w.now() + span;
        let mut news = Vec::new();
        self.w.run_until(until, |_, n| news.push(n));
        for n in news {
            if let News::Letter { from, letter, .. } = n {
                self.heard(from, letter);
            }
        }
    }

    fn heard(&mut self, from: ProcessId, said: Said) {
        let node = self.nodes.iter().position(|p| *p == from);
        match (said, node) {
            (Said::Opened(at, disk, open), Some(node)) => {
                self.opened[node].truncate(at);
                self.opened[node].push((disk, open));
                for config in self.configs.values().cloned().collect::<Vec<_>>() {
                    if config.primary_member().unwrap().disk == disk {
                        self.mail(node, Mail::Assign(vec![config]));
                    }
                }
            }
            (Said::Answered(token, status, data), _) => drop(self.answers.insert(token, (status, data))),
            (Said::Node(Letter::Ask(_)), _) if self.deaf => {}
            (Said::Node(Letter::Ask(request)), Some(node)) => {
                let config = self.configs.get_mut(&request.shard).unwrap();
                let own = config.primary;
                let steps_down = match &request.change {
                    MembershipChange::StepDown => true,
                    MembershipChange::Past(list) => list.contains(&own),
                    _ => false,
                };
                let granted = matches!(request.change, MembershipChange::Born | MembershipChange::Reopened(_));
                let answer = if self.fixed && !granted {
                    MembershipAnswer::Refused("all of them are wanted here".to_owned())
                } else if steps_down {
                    MembershipAnswer::Refused("nobody else is promoted here".to_owned())
                } else if matches!(request.change, MembershipChange::Fill(copy, _) if Some(copy) == self.unfit) {
                    MembershipAnswer::Refused("its disk failed".to_owned())
                } else if request.epoch == config.epoch {
                    let members = &mut config.members;
                    let next = conductor_model::Epoch(config.epoch.0 + 1);
                    let mut change = |copy: CopyId, state, open: Option<OpenId>| {
                        let member = members.iter_mut().find(|m| m.copy == copy).expect("a member");
                        (member.state, member.since) = (state, next);
                        member.open = open.unwrap_or(member.open);
                    };
                    match request.change {
                        MembershipChange::Drop(list) => {
                            list.into_iter().for_each(|copy| change(copy, CopyState::Absent, None));
                        }
                        MembershipChange::Past(list) => {
                            list.iter().for_each(|copy| change(*copy, CopyState::Absent, None));
                            members.iter_mut().filter(|m| list.contains(&m.copy)).for_each(|m| m.past = true);
                            config.full_set.retain(|copy| !list.contains(copy));
                        }
                        MembershipChange::Fill(copy, open) => {
                            change(copy, CopyState::Syncing, Some(open));
                        }
                        MembershipChange::Add(copy) => {
                            change(copy, CopyState::InSync, None);
                            members.iter_mut().filter(|m| m.copy == copy).for_each(|m| m.past = false);
                        }
                        MembershipChange::StepDown => unreachable!("refused above"),
                        MembershipChange::Born => config.born = true,
                        MembershipChange::CacheLost => {
                            config.cache.0 += 1;
                            members.iter_mut().for_each(|m| m.since = conductor_model::Epoch(0));
                        }
                        MembershipChange::Reopened(list) => {
                            let mut named = |(copy, open)| change(copy, CopyState::InSync, Some(open));
                            list.into_iter().for_each(&mut named);
                        }
                    }
                    config.epoch.0 += 1;
                    if config.in_sync() >= usize::from(config.min_copies) {
                        config.full_set = config.in_sync_members().map(|m| m.copy).collect();
                    }
                    MembershipAnswer::Granted(config.clone())
                } else {
                    MembershipAnswer::Stale(config.clone())
                };
                if !self.mute {
                    self.mail(node, Mail::Membership(request.shard, answer));
                }
            }
            (Said::Node(Letter::Report(report)), _) => self.reports.push(report),
            (Said::Node(Letter::Worked(work)), _) => self.worked.push(work),
            (Said::Node(Letter::Troubles(list)), _) => self.troubles = list.into_iter().map(|t| t.reason).collect(),
            (Said::Node(Letter::DiskFailed(_, why)), _) => self.failed.push(why),
            (Said::Node(Letter::Damage(line)), _) => self.damage.push(line),
            _ => {}
        }
    }

    /// The cache generation of a volume's shard.
    pub fn cache(&self, volume: u32) -> u64 {
        self.configs[&shard(volume)].cache.0
    }

    pub fn mail(&mut self, node: usize, mail: Mail) {
        self.w.mail_after(self.nodes[node], Span(0), Post::Node(mail));
    }

    /// Tells every node the same, as the conductor does with its own.
    pub fn orders(&mut self, orders: &[Order]) {
        (0..3).for_each(|node| self.mail(node, Mail::Orders(orders.to_vec())));
    }

    pub fn work(&mut self, work: &[CopyWork]) {
        for node in 0..3 {
            let theirs = |w: &&CopyWork| match w {
                CopyWork::DropSnapshot(copy, _) | CopyWork::Flatten(copy) => copy.0 % 100 == node as u64 + 1,
            };
            self.mail(node, Mail::Work(work.iter().filter(theirs).cloned().collect()));
        }
    }

    /// A volume of one shard with a copy on each of these nodes; the first is primary.
    pub fn create(&mut self, volume: u32, nodes: &[usize], parent: Option<ShardSnapshot>, durability: Durability) {
        self.create_unborn(volume, nodes, parent, durability);
        self.until_serving(volume);
    }

    pub fn create_unborn(
        &mut self,
        volume: u32,
        nodes: &[usize],
        parent: Option<ShardSnapshot>,
        durability: Durability,
    ) {
        let members: Vec<Member> = nodes
            .iter()
            .map(|node| {
                let (disk, open) = self.opened[*node][self.on];
                Member {
                    copy: copy(volume, *node),
                    node: NodeId(*node as u32 + 1),
                    disk,
                    open,
                    state: CopyState::InSync,
                    since: conductor_model::Epoch(0),
                    past: false,
                    endpoint: endpoint(*node),
                }
            })
            .collect();
        let config = Configuration {
            shard: shard(volume),
            epoch: Epoch(1),
            primary: copy(volume, nodes[0]),
            full_set: members.iter().map(|m| m.copy).collect(),
            members,
            min_copies: self.min_copies,
            attach: AttachGeneration(1),
            size: Bytes(u64::from(self.blocks) * BLOCK as u64),
            born: false,
            parent,
            durability,
            cache: conductor_model::Commit(0),
            card: None,
        };
        self.configs.insert(shard(volume), config.clone());
        self.mail(nodes[0], Mail::Assign(vec![config]));
    }

    pub fn primary(&self, volume: u32) -> usize {
        let disk = self.configs[&shard(volume)].primary_member().unwrap().disk;
        self.opened.iter().position(|disks| disks.iter().any(|(d, _)| *d == disk)).unwrap()
    }

    pub fn until_serving(&mut self, volume: u32) {
        self.until("the shard serves", |this| this.role(volume).contains("serving"));
    }

    /// All listed copies are in sync, and the shard serves.
    pub fn until_in_sync(&mut self, volume: u32) {
        self.until("all copies are in sync", |this| {
            let config = &this.configs[&shard(volume)];
            config.in_sync() == config.members.len() && this.role(volume).contains("serving")
        });
    }

    /// Nodes whose copies are in sync.
    pub fn in_sync(&self, volume: u32) -> Vec<u32> {
        self.configs[&shard(volume)].in_sync_members().map(|m| m.node.0 - 1).collect()
    }

    pub fn role(&self, volume: u32) -> String {
        let view = self.view(self.primary(volume));
        let copies = view.map(|v| v.copies).unwrap_or_default();
        copies.into_iter().find(|c| c.shard == shard(volume)).map(|c| c.role).unwrap_or_default()
    }

    pub fn view(&self, node: usize) -> Option<View> {
        Some(self.w.machine::<Storage>(self.nodes[node])?.node()?.view())
    }

    /// How often something happened on all nodes.
    pub fn count(&self, name: &str) -> u64 {
        (0..3).filter_map(|node| self.view(node)?.counters.get(name).copied()).sum()
    }

    pub fn snapshots(&self, volume: u32, node: usize) -> Vec<SnapshotId> {
        let copies = self.view(node).map(|v| v.copies).unwrap_or_default();
        copies.into_iter().find(|c| c.shard == shard(volume)).map(|c| c.snapshots).unwrap_or_default()
    }

    /// The copy on one node was given up before the shard was born: another node's is in sync in its place.
    pub fn list_instead(&mut self, volume: u32, gone: usize, node: usize) {
        let (disk, open) = self.opened[node][self.on];
        let config = self.configs.get_mut(&shard(volume)).unwrap();
        assert!(!config.born);
        let id = copy(volume, node);
        let member = config.members.iter_mut().find(|m| m.node.0 == gone as u32 + 1).unwrap();
        let place = (NodeId(node as u32 + 1), endpoint(node));
        *member = Member { copy: id, node: place.0, disk, open, endpoint: place.1, ..member.clone() };
        config.epoch.0 += 1;
        config.full_set = config.members.iter().map(|m| m.copy).collect();
        let config = config.clone();
        let primary = self.primary(volume);
        self.mail(primary, Mail::Assign(vec![config]));
    }

    /// Another node is primary from now on, in an epoch of its own.
    pub fn promote(&mut self, volume: u32, node: usize) {
        let old = self.primary(volume);
        let config = self.configs.get_mut(&shard(volume)).unwrap();
        config.primary = config.members.iter().find(|m| m.node.0 == node as u32 + 1).unwrap().copy;
        config.epoch.0 += 1;
        let config = config.clone();
        self.mail(old, Mail::Assign(vec![config.clone()]));
        self.mail(node, Mail::Assign(vec![config]));
        self.until_serving(volume);
    }

    /// The volume's shard has so many blocks from now on.
    pub fn grow(&mut self, volume: u32, blocks: u32) {
        let config = self.configs.get_mut(&shard(volume)).unwrap();
        config.size = Bytes(u64::from(blocks) * BLOCK as u64);
        config.epoch.0 += 1;
        let config = config.clone();
        let (node, epoch) = (self.primary(volume), config.epoch);
        self.mail(node, Mail::Assign(vec![config]));
        self.until("the new size is served", |this| {
            let copies = this.view(node).map(|v| v.copies).unwrap_or_default();
            copies.iter().any(|c| c.shard == shard(volume) && c.epoch == epoch && c.role.contains("serving"))
        });
    }

    /// A copy's successor, empty, on the same disk.
    pub fn replace(&mut self, volume: u32, node: usize, by: CopyId) {
        let config = self.configs.get_mut(&shard(volume)).unwrap();
        let member = config.members.iter_mut().find(|m| m.copy == copy(volume, node)).unwrap();
        (member.copy, member.state) = (by, CopyState::Absent);
        config.epoch.0 += 1;
        let config = config.clone();
        let primary = self.primary(volume);
        self.mail(primary, Mail::Assign(vec![config]));
        for _ in 0..3 {
            self.mail(node, Mail::Delete(vec![copy(volume, node)]));
            self.run(Span::millis(200));
        }
    }

    /// Another node is primary from now on; the present one is left out, and not told.
    pub fn take_over(&mut self, volume: u32, node: usize) {
        let config = self.configs.get_mut(&shard(volume)).unwrap();
        let old = config.primary;
        config.primary = copy(volume, node);
        config.epoch.0 += 1;
        config.members.iter_mut().filter(|m| m.copy == old).for_each(|m| m.state = CopyState::Absent);
        let config = config.clone();
        self.mail(node, Mail::Assign(vec![config]));
    }

    /// Deletes a volume; its nodes owe its primary nothing afterwards.
    pub fn delete(&mut self, volume: u32) {
        let config = self.configs.remove(&shard(volume)).unwrap();
        let copies: Vec<CopyId> = config.members.iter().map(|m| m.copy).collect();
        for _ in 0..3 {
            (0..3).for_each(|node| self.mail(node, Mail::Delete(copies.clone())));
            self.run(Span::millis(200));
        }
    }

    /// A client of the volume's primary.
    pub fn client(&mut self, volume: u32, view: u64) -> ProcessId {
        self.client_with(volume, |info| {
            info.view = view;
            if view != 0 {
                info.generation = 0;
            }
        })
    }

    /// The same, with something else in its Hello.
    pub fn client_with(&mut self, volume: u32, change: impl FnOnce(&mut HelloInfo)) -> ProcessId {
        self.last += 1;
        let to = endpoint(self.primary(volume));
        let mut info = HelloInfo::new(Role::Client, "host", self.last);
        (info.volume, info.generation, info.incarnation) = (volume, 1, self.last);
        change(&mut info);
        self.w.spawn(Setup::named(format!("client {}", self.last)), move |birth| Client::new(to, info.clone(), birth))
    }

    /// Asks, and does not wait. Returns the name of the answer.
    pub fn ask(&mut self, client: ProcessId, volume: u32, op: wire::Op, offset: u64, len: u32, data: Vec<u8>) -> u64 {
        self.last += 1;
        let token = self.last;
        let (shard, epoch) = (shard(volume), self.configs[&shard(volume)].epoch);
        let ask = Ask { token, op, shard, epoch, offset, len, data, range: None };
        self.w.mail_after(client, Span(0), Post::Client(ask));
        token
    }

    /// Asks for blocks of a shard, or gives them back, and does not wait for the answer. `change` makes it what is wanted.
    pub fn ask_range(
        &mut self,
        client: ProcessId,
        op: wire::Op,
        (volume, from, count): (u32, u32, u32),
        change: impl FnOnce(RangeBody) -> RangeBody,
    ) -> u64 {
        self.last += 1;
        let (shard, token) = (shard(volume), self.last);
        let epoch = self.configs[&shard].epoch;
        let range = Some(change(RangeBody::new(shard, epoch, BlockRange { from: Blocks(from), count: Blocks(count) })));
        let ask = Ask { token, op, shard, epoch, offset: 0, len: 0, data: Vec::new(), range };
        self.w.mail_after(client, Span(0), Post::Client(ask));
        token
    }

    pub fn start_write(&mut self, client: ProcessId, volume: u32, at: u32, of: u8) -> u64 {
        self.ask(client, volume, op::WRITE, u64::from(at) * BLOCK as u64, BLOCK as u32, block(of))
    }

    pub fn answer(&mut self, token: u64) -> (Status, Vec<u8>) {
        self.until("an answer", |this| this.answers.contains_key(&token));
        self.answers[&token].clone()
    }

    pub fn write(&mut self, client: ProcessId, volume: u32, at: u32, of: u8) {
        let token = self.start_write(client, volume, at, of);
        assert_eq!(self.answer(token).0, Status::Ok);
    }

    /// The byte that a block is full of.
    pub fn read(&mut self, client: ProcessId, volume: u32, at: u32) -> u8 {
        let token = self.ask(client, volume, op::READ, u64::from(at) * BLOCK as u64, BLOCK as u32, Vec::new());
        let (status, data) = self.answer(token);
        assert_eq!(status, Status::Ok);
        assert!(data.iter().all(|b| *b == data[0]), "a block of one byte");
        data[0]
    }

    /// Gives an order and waits for what becomes of it; it stays named.
    pub fn carry_out(&mut self, id: u64, volume: u32, what: ShardOrder) -> OrderReport {
        let order = Order { id: OrderId(id), shard: shard(volume), what };
        self.orders(&[order]);
        self.outcome(id)
    }

    /// The last word on an order.
    pub fn outcome(&mut self, id: u64) -> OrderReport {
        let over = |r: &&OrderReport| r.id == OrderId(id) && !matches!(r.state, OrderState::Running { .. });
        self.until("an order is over", |this| this.reports.iter().any(|r| over(&r)));
        self.reports.iter().rfind(over).unwrap().clone()
    }

    pub fn snapshot(&mut self, volume: u32, id: u64) {
        let what = ShardOrder::Barrier { snapshot: SnapshotId(id), hold_ms: 2000 };
        let report = self.carry_out(1000 + id, volume, what);
        assert!(matches!(report.state, OrderState::Done { .. }), "{report:?}");
        self.orders(&[]);
        self.run(Span::millis(5));
    }

    pub fn now(&self) -> Time {
        self.w.now()
    }

    pub fn picture(&self) -> String {
        let mut text = self.w.report();
        for node in 0..3 {
            let Some(view) = self.view(node) else { continue };
            let line = |c: &node_core::CopyView| format!("{} {} {} {:?}", c.shard, c.epoch, c.role, c.snapshots);
            text += &format!("{:#?}\n{:#?}\n", view.copies.iter().map(line).collect::<Vec<_>>(), view.counters);
        }
        text + &format!("{:?}\n{:?}\n", self.troubles, self.reports)
    }
}

/// A shard of two copies of which one is enough; the second one's node died, and it was left behind.
pub fn two_with_one_left_behind(seed: u64) -> Cluster {
    let mut c = Cluster::new(seed);
    c.min_copies = 1;
    c.create(1, &[0, 1], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    c.w.kill(c.nodes[1]);
    c.until("left behind", |c| c.in_sync(1) == [0]);
    c.until_serving(1);
    c
}

/// The like, and it is being filled.
pub fn two_with_one_being_filled(seed: u64) -> Cluster {
    let mut c = two_with_one_left_behind(seed);
    c.w.restart(c.nodes[1]);
    let fills = |c: &Cluster| c.configs[&shard(1)].member(copy(1, 1)).is_some_and(|m| m.state == CopyState::Syncing);
    c.until("being filled", fills);
    c
}

pub fn copy(volume: u32, node: usize) -> CopyId {
    CopyId(u64::from(volume) * 100 + node as u64 + 1)
}

pub fn of(volume: u32, snapshot: u64) -> ShardSnapshot {
    ShardSnapshot { shard: shard(volume), snapshot: SnapshotId(snapshot) }
}
