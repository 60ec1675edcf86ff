//! A lane on a real reactor or in a simulated world, a node that a test can hold back, and small NBD clients.
#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation, reason = "each test file uses its part")]

mod client;
mod node;
pub(crate) mod quiet;

pub(crate) use client::NbdClient;
pub(crate) use node::FakeNode;

use conductor_model::api::{ShardPlace, VolumeMap};
use conductor_model::{AttachGeneration, Bytes, Durability, Epoch, NodeId, ShardIndex, VolumeId};
use driver::{Address, ListenerId};
use memory::{Arena, ArenaOptions, Backing, Shares};
use nbd_session::Export;
use reactor::{Limits, Mailbox, OwnRing, Reactor, Uring, mailbox};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use target_daemon::limits::SPARE_DEPTH;
use target_daemon::{Letter, Mail, NbdOptions, NbdTarget, TargetView};
use volume_client::{ClientOptions, Pace, VolumeClient};
use wire::ClusterKey;

/// Far more than anything takes, on a busy machine too.
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const KEY: [u8; 32] = [7; 32];
pub(crate) const SHARD: u64 = 2 << 20;
pub(crate) const SIZE: u64 = 8 << 20;

pub(crate) fn map(endpoint: SocketAddr, size: u64) -> VolumeMap {
    let place = |index: u64| ShardPlace {
        index: ShardIndex(index as u32),
        epoch: Epoch(1),
        node: NodeId(1),
        endpoint,
        cache: conductor_model::Commit(0),
    };
    VolumeMap {
        volume: VolumeId(1),
        name: "db".into(),
        size: Bytes(size),
        shard_size: Bytes(SHARD),
        attach: AttachGeneration(1),
        ticket: None,
        snapshot: None,
        durability: Durability::Always,
        held_since: conductor_model::Commit(0),
        reachable: Vec::new(),
        shards: (0..size.div_ceil(SHARD)).map(place).collect(),
    }
}

/// A target without clients, and its memory.
fn machine(
    map: &VolumeMap,
    depth: u16,
    read_only: bool,
    rate: volume_client::Limits,
    listener: ListenerId,
) -> (NbdTarget, Arena) {
    let shares = Shares::only_client();
    let bytes = target_daemon::limits::ARENA;
    let arena = Arena::new(ArenaOptions { bytes, backing: Backing::Heap, shares }).unwrap();
    let mut export = Export::new("db", "a test", map.size).unwrap();
    export.read_only = read_only;
    let mut random = 1;
    let options = ClientOptions {
        name: "test/db".into(),
        process: 1,
        attach: map.attach,
        lane: 0,
        read_only,
        io_timeout: None,
        depth: depth + SPARE_DEPTH,
        conn_depth: 32,
        card: None,
        transport: volume_client::Transport::Tcp,
        secrets: Rc::new(ClusterKey(KEY)),
        random: Box::new(move || {
            random += 1;
            random
        }),
    };
    let client = VolumeClient::new(options, map, arena.clone()).unwrap().paced(Pace::new(rate).map(Arc::new).as_ref());
    let (listeners, tls) = (vec![listener], nbd_session::Tls::Off);
    (NbdTarget::new(NbdOptions { client, arena: arena.clone(), export, tls, listeners }), arena)
}

fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("trine-nbd-{}-{number}.sock", std::process::id()))
}

/// A lane and its node.
pub(crate) struct Lane {
    pub(crate) node: FakeNode,
    pub(crate) path: PathBuf,
    pub(crate) mail: Mailbox<Mail>,
    pub(crate) letters: Receiver<Letter>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    /// With the usual depth.
    pub(crate) fn start() -> Self {
        Self::with(128, false)
    }

    pub(crate) fn with(depth: u16, read_only: bool) -> Self {
        Self::of(depth, read_only, Durability::Always)
    }

    pub(crate) fn of(depth: u16, read_only: bool, durability: Durability) -> Self {
        let node = FakeNode::start(SIZE);
        let map = VolumeMap { durability, ..map(node.endpoint, SIZE) };
        let path = socket_path();
        let listen = Address::Unix(path.clone());
        let (mail, rx) = mailbox(16).unwrap();
        let (tell, letters) = channel();
        let (started, ready) = channel();
        let thread = std::thread::spawn(move || {
            let limits = Limits::default();
            let mut driver = Uring::new(OwnRing::new(&limits).unwrap(), limits).unwrap();
            let (listener, _) = driver.listen(&listen).unwrap();
            let (machine, arena) = machine(&map, depth, read_only, volume_client::Limits::default(), listener);
            let reactor = Reactor::start(machine, driver, rx).unwrap();
            started.send(()).unwrap();
            let ended = reactor.run(|letter| drop(tell.send(letter))).unwrap();
            ended.machine.leaks().unwrap();
            assert_eq!(ended.streams_left_open, 0);
            drop(ended.machine);
            arena.leaks().unwrap();
        });
        ready.recv().unwrap();
        Self { node, path, mail, letters, thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> NbdClient {
        NbdClient::connect(&self.path)
    }

    pub(crate) fn look(&self) -> TargetView {
        self.mail.send(Mail::Look(9)).unwrap();
        loop {
            if let Letter::View(9, view) = self.letters.recv_timeout(LONG).unwrap() {
                return *view;
            }
        }
    }

    /// Looks until what is seen is what is expected.
    pub(crate) fn until(&self, what: &str, is: impl Fn(&TargetView) -> bool) -> TargetView {
        let start = Instant::now();
        while start.elapsed() < LONG {
            let view = self.look();
            if is(&view) {
                return view;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never: {what}: {:#?}", self.look());
    }

    /// Ends it; the thread asserts that nothing is left.
    pub(crate) fn stop(mut self, mail: Mail) {
        self.mail.send(mail).unwrap();
        self.thread.take().unwrap().join().unwrap();
        assert!(!self.path.exists(), "its socket file is gone before another one could have taken its place");
        self.node.stop();
    }
}
