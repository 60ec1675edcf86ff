//! A conductor with its file beside it: every command is persisted, and compared with what a restart would find.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "shared by test programs, each using its own part"
)]

use conductor_model::api::{
    DiskReport, Heartbeat, HeartbeatAnswer, MembershipAnswer, MembershipChange, MembershipRequest, Order, OrderReport,
    OrderState, Register, Report,
};
use conductor_model::views::{Attach, NewVolume, SnapshotInfo};
use conductor_model::{
    Bytes, ClusterId, Commit, Conductor, Configuration, CopyId, CopyState, Dirty, DiskId, Epoch, Error, Key, Member,
    Millis, NodeId, OpenId, Record, ShardId, ShardIndex, SnapshotId, VolumeId,
};
use std::collections::BTreeMap;

pub const MIB: u64 = 1 << 20;
pub const T0: Millis = Millis(1_000_000);

/// A repeatable sequence of numbers (splitmix64).
pub fn draws(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub struct Cluster {
    pub model: Conductor,
    pub file: BTreeMap<Key, Record>,
    pub now: Millis,
    pub random: Box<dyn FnMut() -> u64>,
    /// Nodes whose disk is another one than the first.
    pub disks: BTreeMap<u32, u32>,
}

impl Cluster {
    pub fn new() -> Self {
        let (model, dirty) = Conductor::new(ClusterId(7), T0);
        let mut cluster =
            Self { model, file: BTreeMap::new(), now: T0, random: Box::new(draws(1)), disks: BTreeMap::new() };
        cluster.persist(dirty);
        cluster
    }

    pub fn with_nodes(nodes: u32) -> Self {
        let mut cluster = Self::new();
        for node in 1..=nodes {
            cluster.register(node, 1).unwrap();
        }
        cluster
    }

    pub fn persist(&mut self, dirty: Dirty) {
        for key in dirty.keys() {
            match self.model.record(key) {
                Some(record) => {
                    assert_eq!(record.key(), key);
                    self.file.insert(key, record);
                }
                None => {
                    self.file.remove(&key);
                }
            }
        }
        self.model.check().unwrap();
    }

    /// What the file holds is what the state is.
    pub fn assert_persisted(&self) {
        let restored = Conductor::restore(self.file.values().cloned(), self.now).unwrap();
        assert_eq!(restored.snapshot(), self.model.snapshot());
    }

    /// Runs a command and persists what it changed; a refused one must have changed nothing.
    pub fn run<T>(
        &mut self,
        command: impl FnOnce(&mut Conductor, Millis, &mut dyn FnMut() -> u64) -> Result<(T, Dirty), Error>,
    ) -> Result<T, Error> {
        let before = self.model.snapshot();
        match command(&mut self.model, self.now, &mut *self.random) {
            Ok((answer, dirty)) => {
                self.persist(dirty);
                self.assert_persisted();
                Ok(answer)
            }
            Err(refused) => {
                assert_eq!(before, self.model.snapshot(), "refused, and yet changed: {refused}");
                Err(refused)
            }
        }
    }

    pub fn restart(&mut self) {
        self.model = Conductor::restore(self.file.values().cloned(), self.now).unwrap();
    }

    pub fn restart_replacing(&mut self, after_ms: u64) {
        self.restart();
        self.model.set_replace_after(after_ms);
    }

    pub fn register(&mut self, node: u32, open: u64) -> Result<(), Error> {
        let mut register = registration(node, open);
        register.disks[0].disk = self.disk(node);
        self.register_as(&register)
    }

    /// As a node whose disks come and go: with all that were there and come now, then with those that stay. Who has none in common with
    /// a node that is heard would be another machine.
    pub fn register_as(&mut self, register: &Register) -> Result<(), Error> {
        let known = self.model.node(self.now, register.node).map(|node| node.disks).unwrap_or_default();
        let was = known.iter().filter(|d| d.present && register.disks.iter().all(|new| new.disk != d.disk));
        let was = was.map(|d| DiskReport { disk: d.disk, endpoint: d.endpoint, ..register.disks[0].clone() });
        let both = Register { disks: register.disks.iter().cloned().chain(was).collect(), ..register.clone() };
        self.run(|m, now, _| m.register(now, &both))?;
        self.run(|m, now, _| m.register(now, register)).map(|_| ())
    }

    pub fn beat(&mut self, node: u32, open: u64, after: u64) -> Result<HeartbeatAnswer, Error> {
        let beat = self.heartbeat(node, open, after);
        self.run(|m, now, _| m.heartbeat(now, &beat))
    }

    pub fn heartbeat(&self, node: u32, open: u64, after: u64) -> Heartbeat {
        let mut beat = heartbeat(node, open, after);
        beat.disks[0].0 = self.disk(node);
        beat
    }

    /// The disk that a node has now.
    pub fn disk(&self, node: u32) -> DiskId {
        disk_of(self.disks.get(&node).copied().unwrap_or(node))
    }

    /// Primaries bring back every copy that can be reached, one after the other, while these nodes are heard.
    pub fn heal(&mut self, seconds: u64, heard: &[(u32, u64)]) {
        for _ in 0..seconds {
            self.pass(1_000, heard);
            let shards: Vec<ShardId> =
                self.file.keys().filter_map(|k| if let Key::Shard(s) = k { Some(*s) } else { None }).collect();
            for id in shards {
                let config = self.model.configuration(id).unwrap();
                let reached = |m: &&Member| {
                    m.state == CopyState::Absent && heard.iter().any(|(n, _)| *n == m.node.0 && self.disk(*n) == m.disk)
                };
                let Some(absent) = config.members.iter().find(reached).cloned() else { continue };
                let open = heard.iter().find(|(n, _)| *n == absent.node.0).unwrap().1;
                let config = self.grant(&config, MembershipChange::Fill(absent.copy, OpenId(open)));
                self.grant(&config, MembershipChange::Add(absent.copy));
            }
        }
    }

    /// Every primary drops its copies on this node.
    pub fn leave_behind(&mut self, node: u32) {
        let shards: Vec<ShardId> =
            self.file.keys().filter_map(|k| if let Key::Shard(s) = k { Some(*s) } else { None }).collect();
        for id in shards {
            let config = self.model.configuration(id).unwrap();
            if let Some(member) = config.in_sync_members().find(|m| m.node == NodeId(node) && m.copy != config.primary)
            {
                self.grant(&config, MembershipChange::Drop(vec![member.copy]));
            }
        }
    }

    pub fn create(&mut self, name: &str, size: u64) -> Result<VolumeId, Error> {
        let new = NewVolume { shard_size: Bytes(MIB), ..NewVolume::new(name, Bytes(size)) };
        self.run(|m, now, mut draw| m.create(now, &new, &mut draw)).map(|info| info.id)
    }

    pub fn config(&self, volume: u32, index: u32) -> Configuration {
        self.model.configuration(shard(volume, index)).unwrap()
    }

    pub fn ask(&mut self, under: &Configuration, change: MembershipChange) -> MembershipAnswer {
        let request = request(under, change);
        self.run(|m, now, _| m.membership(now, &[request])).unwrap().remove(0)
    }
}

pub const DONE: OrderState = OrderState::Done { damaged: 0, repaired: 0 };

/// Three nodes and a volume of three shards, each with another primary.
pub fn with_volume() -> Cluster {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 3 * MIB).unwrap();
    cluster.bear(1);
    cluster
}

impl Cluster {
    /// All copies of the volume are created.
    pub fn bear(&mut self, volume: u32) {
        for index in 0.. {
            let Some(config) = self.model.configuration(shard(volume, index)) else { return };
            assert!(matches!(self.ask(&config, MembershipChange::Born), MembershipAnswer::Granted(_)));
        }
    }

    pub fn wait(&mut self, ms: u64) {
        self.now = Millis(self.now.0 + ms);
        self.tick();
    }

    pub fn tick(&mut self) {
        self.run(|m, now, _| Ok(((), m.tick(now)))).unwrap();
    }

    /// What a node that acted upon nothing yet is told.
    pub fn told(&mut self, node: u32) -> HeartbeatAnswer {
        self.beat(node, 1, 0).unwrap()
    }

    pub fn orders(&mut self) -> Vec<(u32, Order)> {
        let nodes: Vec<u32> =
            self.file.keys().filter_map(|k| if let Key::Node(n) = k { Some(n.0) } else { None }).collect();
        nodes.into_iter().flat_map(|node| self.told(node).orders.into_iter().map(move |order| (node, order))).collect()
    }

    pub fn say(&mut self, node: u32, order: &Order, state: OrderState) {
        let epoch = self.model.configuration(order.shard).unwrap().epoch;
        self.say_in(node, order, epoch, state);
    }

    pub fn say_in(&mut self, node: u32, order: &Order, epoch: Epoch, state: OrderState) {
        let said = OrderReport { id: order.id, shard: order.shard, epoch, state };
        let report = Report { node: NodeId(node), orders: vec![said], worked: Vec::new() };
        self.run(|m, now, _| m.report(now, &report)).unwrap();
    }

    pub fn all_done(&mut self) {
        for (node, order) in self.orders() {
            self.say(node, &order, DONE);
        }
    }

    /// Every node does its work, as often as there is any.
    pub fn work_off(&mut self) {
        for node in 1..=3 {
            let report = Report { node: NodeId(node), orders: Vec::new(), worked: self.told(node).work };
            self.run(|m, now, _| m.report(now, &report)).unwrap();
        }
    }

    pub fn begin(&mut self, volume: &str, name: &str) -> Result<SnapshotId, Error> {
        self.run(|m, now, _| m.create_snapshot(now, volume, name))
    }

    pub fn snapshot(&mut self, volume: &str, name: &str) -> SnapshotInfo {
        let asked = self.begin(volume, name).unwrap();
        self.all_done();
        self.model.snapshot_outcome(asked).unwrap().unwrap()
    }

    pub fn list(&self, volume: &str) -> Vec<SnapshotInfo> {
        self.model.snapshot_list(volume).unwrap()
    }

    pub fn clone_of(&mut self, name: &str, parent: &str) -> Result<VolumeId, Error> {
        self.make(&NewVolume::clone_of(name, parent))
    }

    pub fn make(&mut self, new: &NewVolume) -> Result<VolumeId, Error> {
        self.run(|m, now, mut draw| m.create(now, new, &mut draw)).map(|info| info.id)
    }

    pub fn delete(&mut self, volume: &str) -> Result<(), Error> {
        self.run(|m, _, _| m.delete(volume, false))
    }

    pub fn delete_snapshot(&mut self, volume: &str, name: &str) -> Result<(), Error> {
        self.run(|m, now, _| m.delete_snapshot(now, volume, name))
    }

    pub fn attach(&mut self, volume: &str) -> Result<(), Error> {
        let attach = Attach {
            client: "web1".to_owned(),
            read_only: false,
            shared: false,
            force: false,
            host: String::new(),
            resumes: None,
        };
        self.run(|m, now, _| m.attach(now, volume, &attach)).map(|_| ())
    }
}

pub fn shard(volume: u32, index: u32) -> ShardId {
    ShardId { volume: VolumeId(volume), index: ShardIndex(index) }
}

pub fn request(under: &Configuration, change: MembershipChange) -> MembershipRequest {
    MembershipRequest { shard: under.shard, epoch: under.epoch, by: under.primary, change }
}

pub fn disk_of(node: u32) -> DiskId {
    DiskId(0xd000 + u64::from(node))
}

pub fn report(node: u32, open: u64) -> DiskReport {
    DiskReport {
        disk: disk_of(node),
        open: OpenId(open),
        endpoint: format!("127.0.0.1:{}", 9000 + node).parse().unwrap(),
        addresses: Vec::new(),
        capacity: Bytes(1 << 40),
        used: Bytes(0),
        max_copies: u32::MAX,
        copies: Vec::new(),
        path: None,
    }
}

pub fn registration(node: u32, open: u64) -> Register {
    Register {
        node: NodeId(node),
        host: format!("host{node}"),
        rack: String::new(),
        version: String::new(),
        disks: vec![report(node, open)],
        cluster: ClusterId(7),
        seen: Commit(0),
        attached: Vec::new(),
    }
}

pub fn heartbeat(node: u32, open: u64, after: u64) -> Heartbeat {
    Heartbeat {
        node: NodeId(node),
        after,
        disks: vec![(disk_of(node), OpenId(open), Bytes(0))],
        troubles: Vec::new(),
        dropped: Vec::new(),
        copies: Vec::new(),
        integrity: Vec::new(),
        filling: Vec::new(),
        failed: Vec::new(),
    }
}

impl Cluster {
    /// Time passes while these nodes, each with this opening, are heard.
    pub fn pass(&mut self, ms: u64, heard: &[(u32, u64)]) {
        let end = self.now.0 + ms;
        while self.now.0 < end {
            self.now = Millis((self.now.0 + 500).min(end));
            for (node, open) in heard {
                self.beat(*node, *open, 0).unwrap();
            }
            self.tick();
        }
    }

    pub fn grant(&mut self, under: &Configuration, change: MembershipChange) -> Configuration {
        match self.ask(under, change) {
            MembershipAnswer::Granted(next) => next,
            other => panic!("{other:?}"),
        }
    }

    pub fn refuse(&mut self, under: &Configuration, change: MembershipChange) -> String {
        let before = self.file.clone();
        let MembershipAnswer::Refused(why) = self.ask(under, change) else { panic!() };
        assert_eq!(before, self.file);
        why
    }
}

/// A member that is not the primary: the first, or the second.
pub fn other(config: &Configuration, which: usize) -> Member {
    config.members.iter().filter(|m| m.copy != config.primary).nth(which).unwrap().clone()
}

pub fn state(config: &Configuration, copy: CopyId) -> CopyState {
    config.member(copy).unwrap().state
}
