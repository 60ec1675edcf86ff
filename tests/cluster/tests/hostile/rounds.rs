//! Connections that come and go, and ones that are cut in mid-transfer: a thousand of each, and nothing is left of any.

use crate::bench::count;
use crate::honest::ask;
use cluster::peer::{Identity, Peer};
use cluster::{Cluster, LONG, Shape, wait_until};
use conductor_model::views::Attach;
use conductor_model::{Bytes, ShardId, ShardIndex};
use nix::sys::socket::{setsockopt, sockopt};
use node_protocol::{IoBody, Status, op};
use serde_json::Value;

const ROUNDS: usize = 1000;
/// Rounds after which all that is taken once has been taken.
const WARM: usize = 200;
const LARGE: usize = 256 << 10;
/// What an allocator may still settle into afterwards.
const FLAT: u64 = 12 << 20;
/// So many rounds may be under way in the node.
const BATCH: usize = 10;

/// Ends with a reset, as a peer that was killed with data on its way does.
fn cut(mut peer: Peer) {
    setsockopt(peer.stream(), sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
}

pub(crate) fn rounds() {
    let rounds = count("HOSTILE_ROUNDS", ROUNDS);
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 8).unwrap();
    let conductor = cluster.conductor().unwrap();
    let attach = Attach {
        client: "restless".to_owned(),
        read_only: false,
        shared: false,
        force: false,
        host: String::new(),
        resumes: None,
    };
    let map = conductor.attach("db", &attach).unwrap();
    let (node, at, epoch) = (map.shards[0].node.0 as usize - 1, map.shards[0].endpoint, map.shards[0].epoch);
    let shard = ShardId { volume: map.volume, index: ShardIndex(0) };
    let who = Identity::of(cluster.key().unwrap(), "restless", &map);
    let body = |offset: usize, len: usize| IoBody::new(shard, epoch, 1, Bytes(offset as u64), len as u32);
    let socket = cluster.dir().join(format!("n{}/control.sock", node + 1));
    let look = || ask(&socket, "{\"look\":true}\n").unwrap()["reactors"][0].clone();
    let refs = |look: &Value| look["refs"].as_array().unwrap().len();
    let process = &cluster.nodes[node];
    let connect = || Peer::connect(at, &who).unwrap().unwrap();
    let comes_and_goes = |n: usize| {
        let mut peer = connect();
        if n.is_multiple_of(2) {
            assert_eq!(peer.ask(op::WRITE, &body(0, 4096), &[n as u8; 4096]).unwrap(), Some(Status::Ok));
        }
    };
    let dies = |n: usize| {
        let mut peer = connect();
        for _ in 0..4 {
            let read = peer.request(op::READ, body(0, LARGE).bytes(), &[]).1;
            peer.send(&read).unwrap();
        }
        let write = peer.request(op::WRITE, body(LARGE, LARGE).bytes(), &vec![n as u8; LARGE]).1;
        // Somewhere in its midst.
        peer.send(&write[..n * 7919 % write.len()]).unwrap();
        cut(peer);
    };
    (0..WARM).for_each(|n| {
        comes_and_goes(n);
        dies(n);
    });
    let quiet = |what: &str, refs_at_rest: Option<usize>| {
        let rest = || {
            let look = look();
            let gone = look["sessions"].as_array().unwrap().is_empty();
            let requests = look["copies"].as_array().unwrap().iter().all(|copy| copy["requests"] == 0);
            Ok(gone && requests && refs_at_rest.is_none_or(|before| refs(&look) <= before))
        };
        wait_until(what, LONG, rest).unwrap_or_else(|error| panic!("{error:#}: {}", look()["refs"]));
        look()
    };
    let before = quiet("at rest before", None);
    let (memory, descriptors) = (process.memory().unwrap(), process.descriptors().unwrap());
    let kinds: [(&str, &dyn Fn(usize)); 2] =
        [("connect and disconnect", &comes_and_goes), ("cut in mid-transfer", &dies)];
    for (what, round) in kinds {
        let begin = std::time::Instant::now();
        // Not all at once before the node has looked after one: memory that many hold at the same time is touched for good.
        for n in 0..rounds {
            round(n);
            if n % BATCH == BATCH - 1 {
                quiet(what, None);
            }
        }
        quiet(what, Some(refs(&before)));
        let flat = || Ok(process.descriptors()? <= descriptors);
        wait_until("descriptors flat", LONG, flat).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        let now = process.memory().unwrap();
        println!(
            "{rounds} × {what} in {:?}: {} KiB → {} KiB, counts at rest",
            begin.elapsed(),
            memory >> 10,
            now >> 10
        );
        assert!(now < memory + FLAT, "{what}: {memory} → {now}");
    }
    assert_eq!(connect().ask(op::READ, &body(0, 4096), &[]).unwrap(), Some(Status::Ok));
}
