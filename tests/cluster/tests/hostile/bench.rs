//! A cluster with an honest client on one volume, a second volume for the others, and the table of what they did.

use crate::honest::{Honest, ask};
use cluster::peer::{Identity, Peer, Refused, dial, is_closed_within};
use cluster::{Cluster, LONG, Shape, wait_until};
use conductor_model::api::VolumeMap;
use conductor_model::views::Attach;
use conductor_model::{Bytes, Epoch, ShardId, ShardIndex};
use node_protocol::{IoBody, Status, op};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) const HONEST: &str = "honest";
pub(crate) const OTHER: &str = "other";
/// How long a deadline of the node may take to close a connection: the longest is 20 s.
pub(crate) const DEADLINES: Duration = Duration::from_secs(60);
/// Memory that a process may grow by under attack: of the 256 MiB of a node's buffers one client has at most an eighth, and what the
/// honest one has touched in the meantime is in memory, too.
const GROWTH: u64 = 128 << 20;
/// Descriptors that others may have beside: of the honest client, of the other nodes, of those who look.
const SLACK: usize = 16;

pub(crate) struct Bench {
    pub(crate) cluster: Cluster,
    pub(crate) honest: Honest,
    pub(crate) map: VolumeMap,
    /// The node under attack: primary of the second volume's first shard; n1 is 0.
    pub(crate) node: usize,
    pub(crate) at: SocketAddr,
    pub(crate) key: [u8; 32],
    rest: (u64, usize),
    begun: Instant,
    alone: (Instant, Instant),
    rows: Vec<(String, String)>,
}

pub(crate) type Counters = BTreeMap<String, u64>;

impl Bench {
    pub(crate) fn new(alone: Duration) -> Self {
        let mut cluster = Cluster::start(Shape::default()).unwrap();
        cluster.create(HONEST, 16, 4).unwrap();
        cluster.create(OTHER, 16, 8).unwrap();
        let place = cluster.attach(HONEST).unwrap();
        let conductor = cluster.conductor().unwrap();
        let attach = Attach {
            client: "hostile".to_owned(),
            read_only: false,
            shared: false,
            force: false,
            host: String::new(),
            resumes: None,
        };
        let map = conductor.attach(OTHER, &attach).unwrap();
        let (node, at) = (map.shards[0].node.0 as usize - 1, map.shards[0].endpoint);
        let key = cluster.key().unwrap();
        let honest = Honest::start(&cluster, &place, HONEST).unwrap();
        let begun = Instant::now();
        std::thread::sleep(alone);
        let process = &cluster.nodes[node];
        let rest = (process.memory().unwrap(), process.descriptors().unwrap());
        let alone = (begun, Instant::now());
        Self { cluster, honest, map, node, at, key, rest, begun: Instant::now(), alone, rows: Vec::new() }
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        self.cluster.dir().join(format!("n{}/control.sock", self.node + 1))
    }

    /// What the node counts, without what it counts of its own and its honest client's work.
    pub(crate) fn counters(&self) -> Counters {
        let look = ask(&self.control_socket(), "{\"look\":true}\n").unwrap();
        let mut all = Counters::new();
        for reactor in look["reactors"].as_array().unwrap() {
            for (name, count) in reactor["counters"].as_object().unwrap() {
                *all.entry(name.clone()).or_default() += count.as_u64().unwrap();
            }
        }
        let tells = |name: &String| {
            let parts = ["net.closed.", "reply.", "request.", "hello.", "session.", "net.strangers", "net.refused"];
            let exact =
                ["net.sends-stuck", "net.frames-stuck", "net.over-budget", "net.stale-replies", "net.accepts-paused"];
            name != "reply.ok" && (parts.iter().any(|part| name.starts_with(part)) || exact.contains(&name.as_str()))
        };
        all.retain(|name, _| tells(name));
        all
    }

    /// What was counted since.
    pub(crate) fn counted_since(&self, before: &Counters) -> Counters {
        let more = |(name, now): (String, u64)| {
            let new = now - before.get(&name).copied().unwrap_or_default();
            (new > 0).then_some((name, new))
        };
        self.counters().into_iter().filter_map(more).collect()
    }

    /// One row: does something bad, says what was answered; each of these counters must show it so often within the deadlines, the
    /// node must serve, and be as it was before.
    pub(crate) fn row(&mut self, what: &str, expected: &[(&str, u64)], bad: impl FnOnce(&Self) -> String) {
        let begin = Instant::now();
        let before = self.counters();
        let answered = bad(self);
        self.expect(what, &before, expected);
        self.serves("afterwards");
        self.at_rest(what);
        self.honest.check().unwrap_or_else(|error| panic!("{what}: {error:#}"));
        let mut counted = self.counted_since(&before);
        // What is slow goes on beside the other rows.
        let slow = ["over-budget", "-stuck", "peer-silent", "handshake-timeout"];
        let asked = |name: &String| expected.iter().any(|(asked, _)| asked == name);
        counted.retain(|name, _| asked(name) || !slow.iter().any(|slow| name.ends_with(slow)));
        self.note(what, &answered, &counted, begin);
    }

    pub(crate) fn expect(&self, what: &str, before: &Counters, expected: &[(&str, u64)]) {
        let shown = || {
            let since = self.counted_since(before);
            Ok(expected.iter().all(|(name, times)| since.get(*name).is_some_and(|n| n >= times)))
        };
        wait_until(what, DEADLINES, shown)
            .unwrap_or_else(|error| panic!("{error:#}: {expected:?} in {:?}", self.counted_since(before)));
    }

    pub(crate) fn note(&mut self, what: &str, answered: &str, counted: &Counters, begin: Instant) {
        let counted = counted.iter().map(|(name, n)| format!("{name} {n}"));
        let counted = counted.collect::<Vec<_>>().join(", ");
        let line = format!("{answered}; counted: {counted}; {} ms", begin.elapsed().as_millis());
        println!("{what}: {line}");
        self.rows.push((what.to_owned(), line));
    }

    /// Memory and descriptors are near where they were.
    pub(crate) fn at_rest(&self, what: &str) {
        let process = &self.cluster.nodes[self.node];
        let (memory, descriptors) = self.rest;
        wait_until("descriptors back", DEADLINES, || Ok(process.descriptors()? <= descriptors + SLACK))
            .unwrap_or_else(|error| panic!("{what}: {error:#}, from {descriptors} to {:?}", process.descriptors()));
        let now = process.memory().unwrap();
        assert!(now < memory + GROWTH, "{what}: {memory} → {now} bytes");
    }

    pub(crate) fn who(&self, name: &str) -> Identity {
        Identity::of(self.key, name, &self.map)
    }

    pub(crate) fn peer(&self, name: &str) -> Peer {
        self.try_peer(&self.who(name)).unwrap()
    }

    pub(crate) fn try_peer(&self, who: &Identity) -> Result<Peer, Refused> {
        Peer::connect(self.at, who).unwrap()
    }

    pub(crate) fn shard(&self) -> ShardId {
        ShardId { volume: self.map.volume, index: ShardIndex(0) }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.map.shards[0].epoch
    }

    pub(crate) fn body(&self, offset: u64, len: u32) -> IoBody {
        IoBody::new(self.shard(), self.epoch(), 1, Bytes(offset), len)
    }

    /// A good peer gets good answers.
    pub(crate) fn serves(&self, name: &str) {
        let mut peer = self.peer(name);
        let data = vec![7; 4096];
        assert_eq!(peer.ask(op::WRITE, &self.body(0, 4096), &data).unwrap(), Some(Status::Ok));
        assert_eq!(peer.ask(op::READ, &self.body(0, 4096), &[]).unwrap(), Some(Status::Ok));
    }

    /// The table, and how the honest client did.
    pub(crate) fn end(self, alone: Duration) {
        let beside = (self.begun, Instant::now());
        std::thread::sleep(alone);
        let after = (beside.1, Instant::now());
        let (memory, descriptors) = self.rest;
        let process = &self.cluster.nodes[self.node];
        println!("\n{} rows in {:?}:", self.rows.len(), beside.1 - beside.0);
        self.rows.iter().for_each(|(what, line)| println!("  {what}\n      {line}"));
        println!(
            "memory of {}: {} KiB before, {} KiB after",
            process.name,
            memory >> 10,
            process.memory().unwrap() >> 10
        );
        println!("descriptors: {descriptors} before, {} after", process.descriptors().unwrap());
        self.honest.end(&[self.alone, after], beside).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// The node ends this connection within its deadlines.
pub(crate) fn closed(stream: &mut TcpStream) {
    assert!(is_closed_within(stream, DEADLINES).unwrap(), "the connection was kept");
}

/// The node may have closed already: that is what it is asked to do.
pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = std::io::Write::write_all(stream, bytes);
}

pub(crate) fn connect(at: SocketAddr) -> TcpStream {
    dial(at).unwrap()
}

/// One of so many that are needed with `make soak`, or this one.
pub(crate) fn count(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

pub(crate) fn patience() -> Duration {
    LONG
}
