//! etcd of several addresses, of which some are no use: a conductor leads by another one.
#![allow(clippy::unwrap_used, reason = "a test")]

use conductor_client::Client;
use conductor_model::api::{DiskReport, Register};
use conductor_model::views::ConductorRole;
use conductor_model::{Bytes, Commit, DiskId, NodeId, OpenId};
use conductor_service::{EtcdStore, Options, Store, run};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use wire::{ClusterKey, Key};

/// The cluster's.
const KEY: [u8; 32] = [7; 32];
/// Far more than it takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_conductor_leads_although_members_of_etcd_are_dead_or_never_answer_and_goes_on_leading() {
    let etcd = cluster::Etcd::start().unwrap();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = vec![format!("http://{dead}"), format!("http://{}", silent.local_addr().unwrap()), etcd.url()];
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        store: Store::Etcd(EtcdStore { urls, prefix: "members/".to_owned(), ..EtcdStore::default() }),
        advertise: None,
        plaintext: false,
        tls: false,
        key: KEY,
        existing: false,
        scrub_every: None,
        replace_after: Duration::from_secs(600),
        rebalance: true,
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (ready, address) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let until = async { drop(stopped.await) };
        runtime.block_on(run(options, move |address| ready.send(address).unwrap(), until))
    });
    let key = Key::Cluster(ClusterKey(KEY));
    let client = Client::new(&address.recv().unwrap().to_string()).unwrap().with_key(key).unwrap();
    let leads = || matches!(&client.conductors()[0].1, Ok(info) if info.role == ConductorRole::Leader);
    let start = Instant::now();
    while !leads() {
        assert!(start.elapsed() < LONG, "{:?}", client.conductors());
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("leads after {:?}", start.elapsed());
    // Each is a transaction, and no reign outlives one that fails.
    let cluster = client.version().unwrap().cluster;
    for n in 1..=20 {
        let disk = DiskReport {
            disk: DiskId(u64::from(n)),
            open: OpenId(1),
            endpoint: format!("127.0.0.1:{}", 9000 + n).parse().unwrap(),
            addresses: Vec::new(),
            capacity: Bytes(1 << 40),
            used: Bytes(0),
            max_copies: u32::MAX,
            copies: Vec::new(),
            path: None,
        };
        let node = Register {
            node: NodeId(n),
            host: format!("host{n}"),
            rack: String::new(),
            version: String::new(),
            disks: vec![disk],
            cluster,
            seen: Commit(0),
            attached: Vec::new(),
        };
        client.register(&node).unwrap();
    }
    assert!(leads());
    assert_eq!(client.nodes().unwrap().len(), 20);
    drop(stop);
    thread.join().unwrap().unwrap();
}
