//! What the conductor's HTTP service reads: the body of every request, and what follows from it.
//!
//! Input: a request in each line: a letter that says which, a digit that says about which volume, then the body, JSON. They meet a
//! cluster of three nodes and a volume. A request that is refused has changed nothing; after one that is not, the records that it
//! named as changed are the whole state, which a restart finds again.

use crate::json::{alike, line};
use conductor_model::api::{DiskReport, Heartbeat, MembershipChange, MembershipRequest, Register, Report};
use conductor_model::views::{
    Adopt, Attach, CopyRange, Detach, Duty, Force, NewCopies, NewDuty, NewSnapshot, NewVolume, RemoveDisk, ReplaceDisk,
    Resize, Scrub, ScrubVerb, Settings,
};
use conductor_model::{
    Bytes, ClusterId, Commit, Conductor, Configuration, Dirty, DiskId, Error, Key, Millis, NodeId, OpenId, OrderId,
    Record, ShardId, ShardIndex, VolumeId, check_volume_name,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const NAMES: [&str; 4] = ["v", "w", "x", "no.such-volume"];
const LINES: usize = 32;

/// The volume's only one.
const SHARD: ShardId = ShardId { volume: VolumeId(1), index: ShardIndex(0) };

pub(crate) struct Cluster {
    pub(crate) model: Conductor,
    file: BTreeMap<Key, Record>,
    pub(crate) now: Millis,
    drawn: u64,
}

pub(crate) fn target(data: &[u8]) {
    let mut cluster = Cluster::new();
    for text in data.split(|byte| *byte == b'\n').take(LINES) {
        let [kind, volume, body @ ..] = text else { continue };
        cluster.now.0 += 100;
        cluster.request(*kind, NAMES[usize::from(volume % 4)], body);
    }
    let now = Millis(cluster.now.0 + 60_000);
    cluster.run(now, |m, now| Ok(((), m.tick(now))));
    let (model, now) = (&cluster.model, cluster.now);
    let _ = (model.status(now), model.list(now), model.node_list(now), model.space(now));
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let now = Millis(1_000_000);
        let (model, dirty) = Conductor::new(ClusterId(7), now);
        let mut this = Self { model, file: BTreeMap::new(), now, drawn: 0 };
        this.persist(&dirty);
        for node in 1..=3 {
            this.run(now, |m, now| m.register(now, &registration(node)));
            this.run(now, |m, now| m.heartbeat(now, &beat(node)));
        }
        this.create(&NewVolume::new("v", Bytes(4 * MIB)));
        let config = this.model.configuration(SHARD).expect("room for a volume");
        let born = asking(&config, MembershipChange::Born);
        this.run(now, |m, now| m.membership(now, &born));
        this
    }

    fn persist(&mut self, dirty: &Dirty) {
        for key in dirty.keys() {
            match self.model.record(key) {
                Some(record) => drop(self.file.insert(key, record)),
                None => drop(self.file.remove(&key)),
            }
        }
    }

    fn run<T>(&mut self, now: Millis, command: impl FnOnce(&mut Conductor, Millis) -> Result<(T, Dirty), Error>) {
        let before = self.model.snapshot();
        match command(&mut self.model, now) {
            Ok((_, dirty)) => {
                self.persist(&dirty);
                let again = Conductor::restore(self.file.values().cloned(), now).expect("a restart");
                assert_eq!(again.snapshot(), self.model.snapshot(), "what was persisted is the state");
            }
            Err(refused) => {
                assert_eq!(before, self.model.snapshot(), "refused, and yet changed: {refused}");
                let _ = (refused.class(), refused.kind(), refused.to_string());
            }
        }
    }

    fn create(&mut self, new: &NewVolume) {
        let mut drawn = self.drawn;
        let mut draw = || {
            drawn += 1;
            drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        self.run(self.now, |m, now| m.create(now, new, &mut draw));
        self.drawn = drawn;
    }

    fn request(&mut self, kind: u8, name: &str, body: &[u8]) {
        let now = self.now;
        assert!(check_volume_name(name).is_ok());
        match kind {
            b'r' => self.with(body, |c, ask: Register| c.run(now, |m, now| m.register(now, &ask))),
            b'h' => self.with(body, |c, ask: Heartbeat| {
                let (node, after) = (ask.node, Commit(ask.after));
                c.run(now, |m, now| m.heartbeat(now, &ask));
                let _ = (c.model.answer(node, after), c.model.has_news(node, after));
            }),
            b'p' => self.with(body, |c, ask: Report| c.run(now, |m, now| m.report(now, &ask))),
            b'm' => self.with(body, |c, ask: Vec<MembershipRequest>| c.run(now, |m, now| m.membership(now, &ask))),
            b'n' => self.with(body, |c, ask: NewVolume| c.create(&ask)),
            b'z' => self.with(body, |c, Resize { size }| {
                let mut drawn = c.drawn + (1 << 32);
                let mut draw = || {
                    drawn += 1;
                    drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                };
                c.run(now, |m, now| m.resize(now, name, size, &mut draw));
                c.drawn = drawn;
            }),
            b'a' => self.with(body, |c, ask: Attach| c.run(now, |m, now| m.attach(now, name, &ask))),
            b'd' => self.with(body, |c, ask: Detach| c.run(now, |m, _| m.detach(name, &ask))),
            b'o' => self.with(body, |c, ask: Adopt| c.run(now, |m, now| m.adopt(now, &ask))),
            b'u' => self.with(body, |c, NewDuty { duty, force, sentence }| {
                c.run(now, |m, now| m.set_duty(now, NodeId(2), duty, Force { force, sentence }));
            }),
            b'k' => self.with(body, |c, RemoveDisk { force, sentence }| {
                c.run(now, |m, now| m.remove_disk(now, disk(3), Force { force, sentence }));
            }),
            b'e' => self.with(body, |c, ReplaceDisk { with }| c.run(now, |m, now| m.replace_disk(now, disk(1), with))),
            b'c' => self.with(body, |c, NewCopies { copies, min_copies }| {
                c.run(now, |m, now| m.set_copies(now, name, copies, min_copies));
            }),
            b's' => self.with(body, |c, ask: Settings| c.run(now, |m, now| m.change_settings(now, ask))),
            b'S' => self.with(body, |c, NewSnapshot { name: new }| {
                c.run(now, |m, now| m.create_snapshot(now, name, &new));
                let _ = c.model.snapshot_list(name);
            }),
            b'y' => self.with(body, |c, ask: CopyRange| c.run(now, |m, now| m.copy_range(now, name, &ask))),
            b'b' => self.with(body, |c, ask: Scrub| {
                c.run(now, |m, now| m.change_scrub(now, name, &ask));
                let _ = c.model.scrub(name);
            }),
            // What has no body.
            b'D' => self.run(now, |m, _| m.delete(name, body.first() == Some(&b'!'))),
            b'X' => self.run(now, |m, now| m.delete_snapshot(now, name, "s")),
            b'R' => self.run(now, |m, now| m.rollback(now, name, "s")),
            b'U' => self.run(now, |m, now| m.cancel_rollback(now, name, "s")),
            b'F' => self.run(now, |m, now| m.flatten(now, name)),
            b'C' => self.run(now, |m, now| m.cancel_copy_range(now, name, OrderId(1))),
            b't' => {
                self.now.0 += 1000 * u64::from(body.first().copied().unwrap_or(0));
                self.run(self.now, |m, now| Ok(((), m.tick(now))));
            }
            _ => {}
        }
    }

    /// Reads a body as the service does, and goes on with it.
    fn with<T>(&mut self, body: &[u8], go_on: impl FnOnce(&mut Self, T))
    where
        T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
    {
        if let Some(ask) = alike(body) {
            go_on(self, ask);
        }
    }
}

fn disk(node: u32) -> DiskId {
    DiskId(0xd0 + u64::from(node))
}

fn registration(node: u32) -> Register {
    let report = DiskReport {
        disk: disk(node),
        open: OpenId(1),
        endpoint: ([10, 0, 0, 1], 7000).into(),
        addresses: Vec::new(),
        capacity: Bytes(1 << 30),
        used: Bytes(0),
        max_copies: 64,
        copies: Vec::new(),
        path: None,
    };
    Register {
        node: NodeId(node),
        host: format!("host{node}"),
        rack: String::new(),
        version: String::new(),
        disks: vec![report],
        cluster: ClusterId(7),
        seen: Commit(0),
        attached: Vec::new(),
    }
}

fn beat(node: u32) -> Heartbeat {
    Heartbeat {
        node: NodeId(node),
        after: 0,
        disks: vec![(disk(node), OpenId(1), Bytes(0))],
        troubles: Vec::new(),
        dropped: Vec::new(),
        copies: Vec::new(),
        integrity: Vec::new(),
        filling: Vec::new(),
        failed: Vec::new(),
    }
}

fn asking(config: &Configuration, change: MembershipChange) -> Vec<MembershipRequest> {
    vec![MembershipRequest { shard: config.shard, epoch: config.epoch, by: config.primary, change }]
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let cluster = Cluster::new();
    let config = cluster.model.configuration(SHARD).expect("a volume was made");
    let ask = |change| asking(&config, change);
    let other = config.members.iter().find(|m| m.copy != config.primary).expect("three copies").copy;
    let mut held = registration(1);
    held.disks[0].copies = vec![(config.primary, config.clone())];
    let volume = NewVolume::new("w", Bytes(8 * MIB));
    let attach = br#"a0{"client":"host"}"#.to_vec();
    let copy = CopyRange { source: "v@s".to_owned(), offset: Bytes(0), length: Bytes(MIB) };
    let snapshot = line("S0", &NewSnapshot { name: "s".to_owned() });
    let copies = NewCopies { copies: Some(2), min_copies: Some(1) };
    let report = Report { node: NodeId(1), orders: Vec::new(), worked: Vec::new() };
    let duty = NewDuty { duty: Duty::default(), force: false, sentence: None };
    let scrub = Scrub { verb: ScrubVerb::Start, rate: Some(Bytes(4 * MIB)) };
    let detach = br#"d0{"client":"host","generation":1}"#.to_vec();
    let resize = Resize { size: Bytes(16 * MIB) };
    let groups = [
        vec![line("r0", &held), line("h0", &beat(1)), line("p0", &report)],
        vec![line("m0", &ask(MembershipChange::Born)), snapshot.clone(), b"t0\x05".to_vec()],
        vec![line("m0", &ask(MembershipChange::Drop(vec![other]))), line("c0", &copies), line("z0", &resize)],
        vec![line("n0", &volume), attach, detach, b"D1!".to_vec()],
        vec![snapshot, line("y1", &copy), b"R0".to_vec(), b"X0".to_vec(), b"F0".to_vec(), b"C0".to_vec()],
        vec![line("u0", &duty), line("k0", &RemoveDisk::default()), line("e0", &ReplaceDisk { with: disk(2) })],
        vec![line("b0", &scrub), line("s0", &Settings::default()), line("o0", &Adopt::default())],
    ];
    groups.iter().map(|lines| lines.join(&b'\n')).collect()
}
