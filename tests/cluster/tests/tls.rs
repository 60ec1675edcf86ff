//! A cluster that speaks TLS, with the real binary: it works, nothing is on the wire in clear, and nobody else's key or ways get in.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::peer::{Identity, Peer, Refused, dial};
use cluster::{Cluster, LONG, Options, Shape, Workload, wait_until};
use conductor_model::views::Attach;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tls::rustls::{ClientConnection, StreamOwned};
use tls::{Authority, Role};
use wire::{ClusterKey, Reason, over_tls};

/// Another loopback address, at which a node says that it is.
const RELAY: [u8; 4] = [127, 0, 0, 77];
/// What a volume's blocks are full of.
const PATTERN: &[u8; 16] = b"in clear, or not";

/// Passes on what it is sent, and looks for the pattern in it, both ways.
struct Relay {
    seen: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
}

impl Relay {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((RELAY, to.port()))).unwrap();
        let this = Self { seen: Arc::default(), bytes: Arc::default() };
        let (seen, bytes) = (Arc::clone(&this.seen), Arc::clone(&this.bytes));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // The node may be away.
                let Ok(far) = TcpStream::connect(to) else { continue };
                let ways = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                for (from, into) in ways {
                    let (seen, bytes) = (Arc::clone(&seen), Arc::clone(&bytes));
                    std::thread::spawn(move || pass(from.unwrap(), into.unwrap(), &seen, &bytes));
                }
            }
        });
        this
    }
}

fn pass(mut from: TcpStream, mut into: TcpStream, seen: &AtomicBool, bytes: &AtomicU64) {
    let (mut last, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        bytes.fetch_add(read as u64, Ordering::Relaxed);
        last.extend_from_slice(&buffer[..read]);
        if last.windows(PATTERN.len()).any(|window| window == PATTERN) {
            seen.store(true, Ordering::Relaxed);
        }
        last.drain(..last.len().saturating_sub(PATTERN.len()));
        if into.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _gone = into.shutdown(Shutdown::Both);
    let _gone = from.shutdown(Shutdown::Both);
}

/// Whether a volume's data can be read by whoever is between a node and all others.
fn is_in_clear(cluster: &mut Cluster) -> bool {
    cluster.trine(&["volume", "create", "db", "--size", "16M"]).unwrap();
    let info = cluster.json(&["node", "show", "1"]).unwrap().to_string();
    let at = info.split('"').find_map(|word| word.parse::<SocketAddr>().ok()).unwrap();
    let relay = Relay::start(at);
    cluster.nodes[0].terminate().unwrap();
    cluster.nodes[0].set("TRINE_ADVERTISE", &SocketAddr::from((RELAY, 0)).ip().to_string());
    cluster.nodes[0].start().unwrap();
    cluster.wait_alive(3).unwrap();
    cluster.wait_healthy("db").unwrap();
    let before = relay.bytes.load(Ordering::Relaxed);
    let place = cluster.attach("db").unwrap();
    let mut client = Nbd::connect(&place, "db").unwrap();
    let block = PATTERN.repeat(256);
    for at in 0..64 {
        client.call(&Command::Write { offset: at * 4096, bytes: block.clone() }, LONG).unwrap().unwrap();
    }
    for at in 0..64 {
        assert_eq!(client.call(&Command::Read { offset: at * 4096, len: 4096 }, LONG).unwrap().unwrap(), block);
    }
    let passed = relay.bytes.load(Ordering::Relaxed) - before;
    assert!(passed > 64 * 4096, "the relay is on the way: {passed} bytes");
    relay.seen.load(Ordering::Relaxed)
}

#[test]
fn data_is_on_the_wire_in_clear_only_without_tls() {
    let mut plain = Cluster::start(Shape::default()).unwrap();
    assert!(is_in_clear(&mut plain), "the relay finds what is there to be found");
    drop(plain);
    let mut secure = Cluster::start_tls(Shape::default()).unwrap();
    assert!(!is_in_clear(&mut secure));
}

#[test]
fn a_cluster_with_tls_goes_through_a_nodes_death() {
    let mut cluster = Cluster::start_tls(Shape::default()).unwrap();
    assert!(cluster.conductor_address().unwrap().starts_with("https://"));
    cluster.trine(&["volume", "create", "db", "--size", "32M"]).unwrap();
    let place = cluster.attach("db").unwrap();
    let options = Options { place, export: "db".to_owned(), depth: 8, seed: 7, patience: LONG };
    let workload = Workload::start(options).unwrap();
    workload.progress(200, LONG).unwrap();
    let primary = cluster.primary("db", 0).unwrap();
    cluster.nodes[primary].kill().unwrap();
    workload.progress(200, LONG).unwrap();
    cluster.nodes[primary].start().unwrap();
    cluster.wait_healthy("db").unwrap();
    workload.progress(200, LONG).unwrap();
    workload.stop().unwrap();
}

#[test]
fn who_has_another_key_or_speaks_in_clear_is_told_so() {
    let cluster = Cluster::start_tls(Shape::default()).unwrap();
    let address = cluster.conductor_address().unwrap();
    let bare = address.trim_start_matches("https://");
    let status = |conductor: &str, key: &str| {
        let outcome = cluster.try_trine(&["status", "--conductor", conductor, "--key-file", key]).unwrap();
        (outcome.code, outcome.stderr)
    };
    let own = cluster.dir().join("cluster.key");
    let own = own.to_str().unwrap();
    assert_eq!(status(&address, own).0, 0);
    let other = cluster.dir().join("other.key");
    fs::write(&other, "00".repeat(32)).unwrap();
    let (code, why) = status(&address, other.to_str().unwrap());
    assert!(code != 0 && why.contains("not of the cluster that the key file is for"), "{why}");
    let (code, why) = status(bare, own);
    assert!(code != 0 && why.contains("this conductor speaks TLS"), "{why}");

    // A client's key is enough to know the cluster by, and another authority in it is not believed.
    cluster.trine(&["volume", "create", "db", "--size", "16M"]).unwrap();
    let line = cluster.trine(&["client", "add", "web1", "--volumes", "db"]).unwrap();
    let mine = cluster.dir().join("web1.key");
    fs::write(&mine, &line).unwrap();
    let map = |key: &str| {
        let outcome = cluster.try_trine(&["volume", "list", "--conductor", &address, "--key-file", key]).unwrap();
        outcome.stderr
    };
    let why = map(mine.to_str().unwrap());
    assert!(!why.contains("certificate"), "known, though not allowed to list: {why}");
    let line = line.trim();
    fs::write(&mine, format!("{}{}", &line[..line.len() - 64], "00".repeat(32))).unwrap();
    let why = map(mine.to_str().unwrap());
    assert!(why.contains("not of the cluster that the key file is for"), "{why}");

    // A stranger that says something in clear to a node is told why it is not heard, and harms nothing.
    let info = cluster.json(&["node", "show", "1"]).unwrap().to_string();
    let at = info.split('"').find_map(|word| word.parse::<SocketAddr>().ok()).unwrap();
    let mut stranger = TcpStream::connect(at).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stranger.write_all(b"TRN1").unwrap();
    let answer = Arc::new(Mutex::new(Vec::new()));
    let _reset = stranger.read_to_end(&mut answer.lock().unwrap());
    assert!(answer.lock().unwrap().starts_with(b"TRN1"), "a Reject");
    wait_until("the cluster is as it was", LONG, || Ok(cluster.health("db")?.0 == "healthy")).unwrap();
}

/// Somebody in the middle: whoever connects is spoken to in clear, and whoever is meant over TLS, with all that such a one could know. Says
/// what each session of the latter is bound to.
fn middle(key: [u8; 32], role: Role, to: SocketAddr) -> (SocketAddr, Receiver<[u8; 32]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (told, bindings) = channel();
    let config = Authority::new(&ClusterKey(key).authority_seed()).unwrap().trust().config().unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let mut tls = ClientConnection::new(Arc::clone(&config), role.server_name().unwrap()).unwrap();
            let mut far = dial(to).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut far).unwrap();
            }
            let binding = tls.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", None).unwrap();
            let _test_is_over = told.send(binding);
            std::thread::spawn(move || change_hands(near, StreamOwned::new(tls, far)));
        }
    });
    (at, bindings)
}

/// Passes on unchanged what either side says, until one of them ends.
fn change_hands(mut near: TcpStream, mut far: StreamOwned<ClientConnection, TcpStream>) {
    let turn = Some(Duration::from_millis(5));
    near.set_read_timeout(turn).unwrap();
    far.sock.set_read_timeout(turn).unwrap();
    let mut buffer = [0; 4096];
    let waits = |kind| matches!(kind, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
    loop {
        match near.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) if far.write_all(&buffer[..read]).is_err() => return,
            Err(error) if !waits(error.kind()) => return,
            _ => {}
        }
        match far.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) if near.write_all(&buffer[..read]).is_err() => return,
            Err(error) if !waits(error.kind()) => return,
            _ => {}
        }
    }
}

#[test]
fn a_proof_that_somebody_in_the_middle_passes_on_proves_nothing() {
    let cluster = Cluster::start_tls(Shape::default()).unwrap();
    let key = cluster.key().unwrap();
    cluster.trine(&["volume", "create", "db", "--size", "16M"]).unwrap();
    let attach = Attach {
        client: "h/db".to_owned(),
        read_only: false,
        shared: false,
        force: false,
        host: String::new(),
        resumes: None,
    };
    let map = cluster.conductor().unwrap().attach("db", &attach).unwrap();
    let who = Identity::of(key, "h/db", &map);

    // A client that was told nothing of TLS, and one that speaks it to the wrong one: its proof is bound to that one's session.
    let (node, bindings) = middle(key, Role::Node, map.shards[0].endpoint);
    let refused = |outcome: Result<Peer, Refused>| {
        let why = outcome.unwrap_err();
        assert!(matches!(why, Refused::Rejected(Reason::Unauthenticated)), "{why:?}");
    };
    refused(Peer::connect(node, &who).unwrap());
    let former = bindings.recv().unwrap();
    refused(Peer::over(dial(node).unwrap(), &who, |secret| over_tls(&secret, &former)).unwrap());
    bindings.recv().unwrap();
    // It was nothing else that was wrong with them.
    let stream = dial(node).unwrap();
    let now = bindings.recv().unwrap();
    Peer::over(stream, &who, |secret| over_tls(&secret, &now)).unwrap().unwrap();

    let address = cluster.conductor_address().unwrap();
    let conductor = address.trim_start_matches("https://").parse().unwrap();
    let (conductor, _sessions) = middle(key, Role::Conductor, conductor);
    let own = cluster.dir().join("cluster.key");
    let ask = ["status", "--conductor", &conductor.to_string(), "--key-file", own.to_str().unwrap()];
    let outcome = cluster.try_trine(&ask).unwrap();
    assert!(outcome.code != 0 && outcome.stderr.contains("somebody on the way made TLS of it"), "{}", outcome.stderr);
}
