//! A conductor on a loopback port, in a directory of its own, and nodes that are made up.
#![allow(dead_code, reason = "each test uses some of it")]

use conductor_client::Client;
use conductor_model::api::{DiskReport, Heartbeat, MembershipChange, MembershipRequest, Register};
use conductor_model::views::{Attach, NewKey, NewVolume};
use conductor_model::{Bytes, ClusterId, Commit, Configuration, DiskId, NodeId, OpenId};
use conductor_service::{Options, Store, run};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::{Card, ClientKey, ClusterKey, Key, Over, RequestChallenge, RequestProof};

pub(crate) const MIB: u64 = 1 << 20;
/// The cluster's key.
pub(crate) const KEY: [u8; 32] = [7; 32];

/// A directory of one test's own, removed with it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trine-conductor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
    pub(crate) fn store(&self) -> PathBuf {
        self.0.join("conductor.redb")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Conductor {
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), conductor_service::Error>>>,
}

impl Conductor {
    pub(crate) fn start(store: &Path) -> Self {
        Self::try_start(store).unwrap()
    }

    pub(crate) fn try_start(store: &Path) -> Result<Self, conductor_service::Error> {
        Self::start_at("127.0.0.1:0".parse().unwrap(), store)
    }

    pub(crate) fn start_at(listen: SocketAddr, store: &Path) -> Result<Self, conductor_service::Error> {
        Self::start_with(Self::options(listen, store))
    }

    pub(crate) fn options(listen: SocketAddr, store: &Path) -> Options {
        Options {
            listen,
            store: Store::Redb(store.to_owned()),
            advertise: None,
            plaintext: false,
            tls: false,
            key: KEY,
            existing: false,
            scrub_every: None,
            replace_after: Duration::from_secs(600),
            rebalance: true,
        }
    }

    pub(crate) fn start_with(options: Options) -> Result<Self, conductor_service::Error> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let until = async { drop(stopped.await) };
            runtime.block_on(run(options, move |address| ready.send(address).unwrap(), until))
        });
        match address.recv() {
            Ok(address) => {
                let client =
                    Client::new(&address.to_string()).unwrap().with_key(Key::Cluster(ClusterKey(KEY))).unwrap();
                Ok(Self { client, address, stop: Some(stop), thread: Some(thread) })
            }
            Err(_) => Err(thread.join().unwrap().unwrap_err()),
        }
    }

    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }

    /// Sends bytes as they are and reads all that comes back.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The like of a request of whoever has the cluster's key.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        self.request_with(&Key::Cluster(ClusterKey(KEY)), method, path, body)
    }

    /// The like of one with this key.
    pub(crate) fn request_with(&self, key: &Key, method: &str, path: &str, body: &str) -> Vec<u8> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let asked = self.raw(b"GET /v1/role HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let challenge = asked.lines().find_map(|line| line.strip_prefix("www-authenticate: "));
        let challenge = challenge.and_then(RequestChallenge::from_header).unwrap();
        let nonce = NEXT.fetch_add(1, Ordering::Relaxed).into();
        let proof = RequestProof::new(key, Over::Clear, (challenge, nonce), method, path, body.as_bytes()).to_header();
        let (length, close) = (body.len(), "connection: close");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{close}\r\nauthorization: {proof}\r\n");
        format!("{head}content-length: {length}\r\n\r\n{body}").into_bytes()
    }

    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let answer = self.raw(&self.request(method, path, body));
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

pub(crate) fn registration(node: u32, open: u64) -> Register {
    let disk = DiskReport {
        disk: DiskId(u64::MAX - u64::from(node)),
        open: OpenId(open),
        endpoint: format!("127.0.0.1:{}", 9000 + node).parse().unwrap(),
        addresses: Vec::new(),
        capacity: Bytes(1 << 40),
        used: Bytes(0),
        max_copies: u32::MAX,
        copies: Vec::new(),
        path: None,
    };
    Register {
        node: NodeId(node),
        host: format!("host{node}"),
        rack: String::new(),
        version: String::new(),
        disks: vec![disk],
        cluster: ClusterId(0),
        seen: Commit(0),
        attached: Vec::new(),
    }
}

pub(crate) fn heartbeat(node: u32, open: u64, after: u64) -> Heartbeat {
    let disks = vec![(DiskId(u64::MAX - u64::from(node)), OpenId(open), Bytes(5))];
    Heartbeat {
        node: NodeId(node),
        after,
        disks,
        troubles: Vec::new(),
        dropped: Vec::new(),
        copies: Vec::new(),
        integrity: Vec::new(),
        filling: Vec::new(),
        failed: Vec::new(),
    }
}

pub(crate) fn three_nodes(client: &Client) {
    let cluster = client.version().unwrap().cluster;
    for node in 1..=3 {
        client.register(&Register { cluster, ..registration(node, 1) }).unwrap();
    }
}

pub(crate) fn small(name: &str, size: u64) -> NewVolume {
    NewVolume { shard_size: Bytes(MIB), ..NewVolume::new(name, Bytes(size)) }
}

pub(crate) fn born(config: &Configuration) -> MembershipRequest {
    MembershipRequest { shard: config.shard, epoch: config.epoch, by: config.primary, change: MembershipChange::Born }
}

/// A key of its own for these volumes.
pub(crate) fn add_key(client: &Client, name: &str, volumes: &[&str], read_only: bool) -> Key {
    let volumes = volumes.iter().map(|volume| (*volume).to_owned()).collect();
    let key = client.add_key(&NewKey { name: name.to_owned(), volumes, read_only }).unwrap();
    let volumes = key.volumes.iter().map(|volume| volume.id.0).collect();
    let card = Card { name: key.name, serial: key.serial, read_only, volumes };
    Key::Client(ClientKey::new(card, &ClusterKey(KEY), [0; 32]).unwrap())
}

pub(crate) fn attach(client: &str, force: bool) -> Attach {
    Attach { client: client.to_owned(), read_only: false, shared: false, force, host: String::new(), resumes: None }
}
