//! The conductor as others meet it: over HTTP on a loopback port, restarted, interrupted and talked nonsense to.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Conductor, MIB, Scratch, add_key, attach, born, heartbeat, small, three_nodes};
use conductor_client::{Client, Error};
use conductor_model::api::{Heartbeat, MembershipAnswer};
use conductor_model::events::Happened;
use conductor_model::limits::ALIVE_MS;
use conductor_model::views::{Detach, Health, NewKey, NewVolume, RotateKey, RotatedKey, VolumeState};
use conductor_model::{Bytes, Commit, NodeId};
use conductor_service::{Options, Store, run};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_volume_lives_and_dies_over_http() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = &conductor.client;
    let refused = client.create_volume(&small("db", MIB)).unwrap_err();
    assert_eq!(refused.to_string(), "volume needs 3 nodes, none is up");
    three_nodes(client);
    assert_eq!(client.nodes().unwrap().len(), 3);
    assert_eq!(client.node(NodeId(2)).unwrap().host, "host2");
    assert_eq!(client.node(NodeId(9)).unwrap_err().kind(), Some("no-node"));

    assert_eq!(client.create_volume(&small("db", 3 * MIB)).unwrap().shards, 3);
    assert_eq!(client.create_volume(&small("db", MIB)).unwrap_err().kind(), Some("volume-exists"));
    assert_eq!(client.status().unwrap().health, Health::Waiting);
    let shards = client.volume("db").unwrap().shards;
    let answers = client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
    assert!(answers.iter().all(|a| matches!(a, MembershipAnswer::Granted(c) if c.born && c.epoch.0 == 2)));
    assert_eq!(client.status().unwrap().health, Health::Healthy);
    assert_eq!(client.resize_volume("db", Bytes(5 * MIB)).unwrap().shards, 5);

    let map = client.attach("db", &attach("web1", false)).unwrap();
    assert_eq!((map.attach.0 > 0, map.shards.len(), map.clone()), (true, 5, client.map("db").unwrap()));
    assert_eq!(client.attach("db", &attach("web2", false)).unwrap_err().kind(), Some("attached"));
    assert_eq!(client.delete_volume("db", false).unwrap_err().kind(), Some("attached"));
    client.detach("db", &Detach { client: "web1".to_owned(), generation: map.attach }).unwrap();
    client.delete_volume("db", false).unwrap();
    assert_eq!(client.volume("db").unwrap_err().kind(), Some("no-volume"));
    for node in 1..=3 {
        let told = client.heartbeat(&heartbeat(node, 1, 0)).unwrap();
        assert_eq!(told.drop.len(), 5);
        assert_eq!(client.volumes().unwrap()[0].state, VolumeState::Deleting);
        client.heartbeat(&Heartbeat { dropped: told.drop, ..heartbeat(node, 1, told.version) }).unwrap();
    }
    assert!(client.volumes().unwrap().is_empty());
    assert!(client.openapi().unwrap()["paths"].is_object());
    conductor.stop();
}

#[test]
fn a_restart_keeps_everything_and_the_commit_number_grows() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    conductor.client.create_volume(&small("db", 4 * MIB)).unwrap();
    conductor.client.attach("db", &attach("web1", false)).unwrap();
    let (version, map) = (conductor.client.version().unwrap(), conductor.client.map("db").unwrap());
    let shards = conductor.client.volume("db").unwrap().shards;
    conductor.stop();

    let mut conductor = Conductor::start(&scratch.store());
    let client = &conductor.client;
    let began = client.version().unwrap();
    assert_eq!((began.cluster, began.commit >= version.commit), (version.cluster, true));
    assert_eq!((client.map("db").unwrap(), client.volume("db").unwrap().shards), (map.clone(), shards));
    assert_eq!(client.attach("db", &attach("web2", false)).unwrap_err().kind(), Some("attached"));
    client.heartbeat(&heartbeat(1, 1, version.commit)).unwrap();
    assert!(client.attach("db", &attach("web1", false)).unwrap().attach > map.attach);
    assert!(client.version().unwrap().commit > began.commit);
    conductor.stop();
}

#[test]
fn places_are_chosen_when_the_nodes_were_heard_after_a_start() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    conductor.stop();

    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    let asking = std::thread::spawn(move || client.create_volume(&small("db", MIB)));
    // It is asked before anybody was heard, on any machine that is not very slow; later it is no harder.
    std::thread::sleep(Duration::from_millis(200));
    three_nodes(&conductor.client);
    assert_eq!(asking.join().unwrap().unwrap().shards, 1);
    conductor.stop();

    // Who is away is not waited for without end, nor who falls silent.
    let mut conductor = Conductor::start(&scratch.store());
    let over = AtomicBool::new(false);
    let create = || conductor.client.create_volume(&small("more", MIB)).unwrap_err().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _late = conductor.client.heartbeat(&heartbeat(2, 1, 0));
            }
        });
        assert_eq!(create(), "volume needs 3 nodes, 1 is up: n2");
        over.store(true, Ordering::Relaxed);
    });
    std::thread::sleep(Duration::from_millis(ALIVE_MS));
    assert_eq!(create(), "volume needs 3 nodes, none is up");
    conductor.stop();
}

#[test]
fn a_command_whose_answer_was_lost_can_be_asked_again() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", MIB)).unwrap();
    let first = client.volume("db").unwrap().shards.remove(0);
    let commit = client.version().unwrap().commit;

    let body = serde_json::to_string(&[born(&first)]).unwrap();
    let request = conductor.request("POST", "/v1/membership", &body);
    let mut stream = TcpStream::connect(conductor.address).unwrap();
    stream.write_all(&request).unwrap();
    while client.version().unwrap().commit == commit {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    // The file as a killed conductor leaves it: never closed.
    let killed = scratch.0.join("killed.redb");
    std::fs::copy(scratch.store(), &killed).unwrap();
    conductor.stop();

    let mut conductor = Conductor::start(&killed);
    let answers = conductor.client.membership(&[born(&first), born(&first)]).unwrap();
    for answer in answers {
        let MembershipAnswer::Stale(current) = answer else { panic!("{answer:?}") };
        assert_eq!((current.epoch.0, current.born), (2, true));
    }
    conductor.stop();
}

#[test]
fn a_heartbeat_is_held_until_there_is_news() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    let version = client.heartbeat(&heartbeat(1, 1, 0)).unwrap().version;

    let start = Instant::now();
    assert!(client.heartbeat(&heartbeat(1, 1, version)).unwrap().assignments.is_empty());
    assert!(start.elapsed() >= Duration::from_millis(450), "held: {:?}", start.elapsed());

    // The one that is held when it happens, or the next: on a slow disk it takes longer than one is held.
    let waiting = client.clone();
    let held = std::thread::spawn(move || {
        loop {
            let told = waiting.heartbeat(&heartbeat(1, 1, version)).unwrap();
            if !told.assignments.is_empty() {
                return told;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    // On a slow disk they may be late by now.
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    assert_eq!(held.join().unwrap().assignments.len(), 1);

    let error = client.heartbeat(&heartbeat(1, 2, 0)).unwrap_err();
    assert!(error.is_unknown_node(), "{error:?}");
    assert_eq!(client.heartbeat(&heartbeat(1, 1, u64::MAX)).unwrap_err().kind(), Some("invalid"));
    conductor.stop();
}

#[test]
fn a_forced_attach_waits_for_the_primaries() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    let first = client.attach("db", &attach("web1", false)).unwrap().attach;

    let forcing = client.clone();
    let forced = std::thread::spawn(move || forcing.attach("db", &attach("web2", true)));
    let mut after = [0; 4];
    while !forced.is_finished() {
        for node in 1..=3 {
            let told = client.heartbeat(&heartbeat(node, 1, after[node as usize])).unwrap();
            after[node as usize] = told.version;
        }
    }
    assert_eq!(forced.join().unwrap().unwrap().attach.0, first.0 + 1);
    // All are heard, and nobody confirms: said so, and not taken for done.
    let forcing = client.clone();
    let forced = std::thread::spawn(move || forcing.attach("db", &attach("web3", true)));
    while !forced.is_finished() {
        (1..=3).for_each(|node| drop(client.heartbeat(&heartbeat(node, 1, 0)).unwrap()));
        std::thread::sleep(Duration::from_millis(100));
    }
    let error = forced.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), Some("unconfirmed"));
    assert!(error.is_temporary() && error.to_string().contains("n1, n2, n3"), "{error}");
    assert!(error.to_string().contains("`trine client evict web3` gives it up again"), "{error}");
    assert_eq!(client.volume("db").unwrap().info.attachment.unwrap().client, "web3");
    // What was not certain then is no more certain for having been asked again, without force.
    let again = client.clone();
    let again = std::thread::spawn(move || again.attach("db", &attach("web3", false)));
    while !again.is_finished() {
        (1..=3).for_each(|node| drop(client.heartbeat(&heartbeat(node, 1, 0)).unwrap()));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(again.join().unwrap().unwrap_err().kind(), Some("unconfirmed"));
    for node in 1..=3 {
        let told = client.heartbeat(&heartbeat(node, 1, 0)).unwrap();
        client.heartbeat(&heartbeat(node, 1, told.version)).unwrap();
    }
    client.attach("db", &attach("web3", false)).unwrap();
    conductor.stop();
}

#[test]
fn who_asks_again_for_an_eviction_that_was_not_confirmed_hears_how_it_stands() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    client.attach("db", &attach("web1", false)).unwrap();
    for _ in 0..2 {
        let error = client.evict("web1").unwrap_err();
        assert_eq!(error.kind(), Some("unconfirmed"), "{error}");
        assert!(error.to_string().contains("n1, n2, n3 may still serve it: try again when it is heard"), "{error}");
    }
    for node in 1..=3 {
        let told = client.heartbeat(&heartbeat(node, 1, 0)).unwrap();
        client.heartbeat(&heartbeat(node, 1, told.version)).unwrap();
    }
    assert_eq!(client.evict("web1").unwrap(), ["db"]);
    assert_eq!(client.evict("web2").unwrap_err().kind(), Some("no-client"));
    // A key that was removed is not there to be removed again.
    add_key(&client, "web1", &["db"], false);
    let error = client.remove_key("web1").unwrap_err();
    assert_eq!(error.kind(), Some("unconfirmed"));
    assert!(error.to_string().contains("may still serve its clients: it does so no more once it is heard"), "{error}");
    conductor.stop();
}

#[test]
fn a_key_that_is_renewed_at_once_is_answered_with_the_primaries_that_may_still_take_the_former_one() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    client.add_key(&NewKey { name: "web1".into(), volumes: vec!["db".into()], read_only: false }).unwrap();
    let rotate = |grace_ms| client.rotate_key(&RotateKey { name: "web1".into(), grace_ms }).unwrap();
    let RotatedKey { key, unconfirmed } = rotate(60_000);
    assert_eq!((key.serial, unconfirmed), (2, vec![]), "none is to confirm what holds");
    let RotatedKey { key, unconfirmed } = rotate(0);
    assert_eq!((key.serial, unconfirmed), (3, vec![NodeId(1), NodeId(2), NodeId(3)]));
    conductor.stop();
}

#[test]
fn garbage_is_answered_and_the_next_one_served() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    let commit = conductor.client.version().unwrap().commit;
    let deep = "[".repeat(100_000);
    let posts = [
        "/v1/nodes/register",
        "/v1/nodes/heartbeat",
        "/v1/membership",
        "/v1/volumes",
        "/v1/volumes/db/resize",
        "/v1/volumes/db/attach",
        "/v1/volumes/db/detach",
        "/v1/volumes/db/snapshots",
        "/v1/volumes/db/copies",
        "/v1/volumes/db/scrub",
        "/v1/nodes/report",
    ];
    let unknown_field = r#"{"name":"db","size":1048576,"colour":"red"}"#;
    let wrong_numbers = r#"{"name":"db","size":-1}"#;
    for path in posts {
        for body in ["", "{", "null", "7", "\0\u{fffd}", "\"x\"", unknown_field, wrong_numbers] {
            let (status, answer) = conductor.http("POST", path, body);
            assert_eq!(status, 400, "{path} {body}: {answer}");
            assert!(answer.contains("\"message\""), "{answer}");
        }
        assert_eq!(conductor.http("POST", path, &deep).0 / 100, 4);
        assert_eq!(conductor.http("PUT", path, "{}").0, 405);
    }
    let (status, answer) = conductor.http("POST", "/v1/volumes", &" ".repeat(65 << 10));
    assert!(status == 413 && answer.contains("too-large"), "{status} {answer}");
    // Of who has the key, too: many large ones at once would take the memory that nodes' words need.
    for path in ["/v1/settings", "/v1/nodes/n1/duty", "/v1/none"] {
        assert_eq!(conductor.http("POST", path, &" ".repeat(65 << 10)).0, 413, "{path}");
    }
    for path in ["/", "/v2/status", "/v1/volumes/db/x", "/v1/../v1/x", "/v1/nodes/n9", "/v1/volumes/none"] {
        assert_eq!(conductor.http("GET", path, "").0, 404, "{path}");
    }
    for path in ["/v1/volumes/db/snapshots/A/map", "/v1/volumes/A/snapshots/a/map"] {
        assert_eq!(conductor.http("GET", path, "").0, 400, "{path}");
    }
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db/copies/x", "").0, 400);
    for path in ["/v1/volumes/%ff", "/v1/volumes/%2e%2e", "/v1/volumes/A/map", "/v1/nodes/x", "/v1/nodes/99999999999"] {
        assert_eq!(conductor.http("GET", path, "").0, 400, "{path}");
    }
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db?force=perhaps", "").0, 400);
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db?farce=true", "").0, 400);
    conductor.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    // HTTP/2 would be many requests at once in one connection's place. Its first answer is a frame of settings: type 4.
    let answer = conductor.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 "), "{answer:?}");
    assert_eq!(conductor.client.version().unwrap().commit, commit);
    // A request that never ends does not keep the conductor from stopping.
    let mut half = TcpStream::connect(conductor.address).unwrap();
    half.write_all(b"POST /v1/volumes HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{").unwrap();
    // Ends the test by the time it takes, if it does.
    conductor.stop();
}

/// More connections than there may be requests at once, fewer than there are places for.
const CROWD: usize = 600;

/// Sends each request over a connection of its own, and leaves it open.
fn crowd(conductor: &Conductor, request: impl Fn(usize) -> Vec<u8>) -> Vec<TcpStream> {
    let open = |n| {
        let request = request(n);
        let mut stream = TcpStream::connect(conductor.address).unwrap();
        stream.write_all(&request).unwrap();
        stream
    };
    (0..CROWD).map(open).collect()
}

/// The heartbeats of three nodes that have something to hear.
fn nodes_are_heard(client: &Client) {
    for node in 1..=3 {
        let start = Instant::now();
        client.heartbeat(&heartbeat(node, 1, 0)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn who_proves_nothing_takes_no_room_from_nodes() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    conductor.client.create_volume(&small("db", 3 * MIB)).unwrap();
    let begun = "HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n";
    let paths = ["/v1/nodes/heartbeat", "/v1/volumes", "/v1/nodes/n1/duty"];
    let mut hostile = crowd(&conductor, |n| format!("POST {} {begun}\r\n{{", paths[n % 3]).into_bytes());
    nodes_are_heard(&conductor.client);
    assert_eq!(conductor.client.volumes().unwrap().len(), 1);
    // They are refused long before their bodies are there.
    let last = hostile.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    drop(hostile);
    conductor.stop();
}

#[test]
fn who_waits_takes_no_room_from_nodes() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    let newest = client.events(0, false).unwrap().last().unwrap().number;
    let events = format!("/v1/events?after={newest}&wait=true");
    let waiting = crowd(&conductor, |_| conductor.request("GET", &events, ""));
    nodes_are_heard(&client);
    assert_eq!(client.volumes().unwrap().len(), 1, "nor from people who do not wait");
    drop(waiting);
    // Nobody confirms these for five seconds.
    let forced = serde_json::to_string(&attach("web1", true)).unwrap();
    let waiting = crowd(&conductor, |_| conductor.request("POST", "/v1/volumes/db/attach", &forced));
    nodes_are_heard(&client);
    // Those that are still read now have a place until they wait.
    let begun = Instant::now();
    while client.volumes().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(2), "nor these");
    }
    drop(waiting);
    conductor.stop();
}

#[test]
fn one_clients_key_takes_no_room_from_anybody_else() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    client.create_volume(&small("other", MIB)).unwrap();
    let [one, another] =
        [("one", "db"), ("another", "other")].map(|(name, volume)| add_key(&client, name, &[volume], false));
    let another = Client::new(&conductor.address.to_string()).unwrap().with_key(another).unwrap();
    // Nobody confirms these for five seconds.
    let forced = serde_json::to_string(&attach("one@h", true)).unwrap();
    let mut waiting = crowd(&conductor, |_| conductor.request_with(&one, "POST", "/v1/volumes/db/attach", &forced));
    assert_eq!(client.volumes().unwrap().len(), 2);
    assert_eq!(another.map("other").unwrap().shards.len(), 1);
    let same = Client::new(&conductor.address.to_string()).unwrap().with_key(one).unwrap();
    let began = Instant::now();
    while same.map("db").is_err() {
        assert!(began.elapsed() < Duration::from_secs(4), "those of its own that wait leave it half of its places");
        std::thread::sleep(Duration::from_millis(20));
    }
    nodes_are_heard(&client);
    let last = waiting.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    // It found no place, or none to wait in.
    let at_once = ["\"busy\"", "\"unconfirmed\""].iter().any(|kind| answer.contains(kind));
    assert!(answer.starts_with("HTTP/1.1 503 ") && at_once, "{answer}");
    drop(waiting);
    conductor.stop();
}

#[test]
fn a_program_needs_a_proof_a_name_and_a_size() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    let new = r#"{"name":"db","size":1073741824}"#;
    let head =
        format!("POST /v1/volumes HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", new.len());
    for unproven in
        [format!("{head}{new}"), "GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned()]
    {
        let refused = conductor.raw(unproven.as_bytes());
        assert!(refused.starts_with("HTTP/1.1 401 ") && refused.contains("see --key-file"), "{refused}");
    }
    assert!(conductor.client.volumes().unwrap().is_empty());
    let (status, answer) = conductor.http("POST", "/v1/volumes", new);
    assert_eq!(status, 201, "{answer}");
    assert_eq!(conductor.http("GET", "/v1/nodes/n1", "").0, 200);
    assert_eq!(conductor.http("DELETE", "/v1/volumes/db", "").0, 204);
    conductor.stop();
}

#[test]
fn a_file_in_use_or_damaged_is_said_to_be() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let second = Conductor::try_start(&scratch.store()).err().unwrap();
    assert!(second.to_string().contains("in use by another conductor"), "{second}");
    conductor.stop();
    let noise = scratch.0.join("noise");
    std::fs::write(&noise, [7; 5000]).unwrap();
    assert!(Conductor::try_start(&noise).is_err());
    assert!(Conductor::try_start(&scratch.0.join("no/such/directory")).is_err());
    assert!(Conductor::try_start(&scratch.0).is_err());
}

/// Else a file that was lost or cut to nothing would be a healthy cluster without volumes.
#[test]
fn a_cluster_that_has_to_be_there_is_not_made_and_an_empty_file_is_none() {
    let scratch = Scratch::new();
    let start = |existing| {
        let options = Conductor::options("127.0.0.1:0".parse().unwrap(), &scratch.store());
        Conductor::start_with(Options { existing, ..options })
    };
    let refused = start(true).err().unwrap();
    assert!(matches!(refused, conductor_service::Error::NoCluster { .. }), "{refused}");
    assert!(!scratch.store().exists(), "a refusal makes nothing");
    // A first start that was cut short left only what is not the file yet; whose it is nobody knows any more.
    let part = scratch.store().with_added_extension("part");
    std::fs::write(&part, "the beginning of one").unwrap();
    start(false).unwrap().stop();
    assert!(scratch.store().exists());
    assert_eq!(std::fs::read_to_string(&part).unwrap(), "the beginning of one");
    start(true).unwrap().stop();
    std::fs::write(scratch.store(), "").unwrap();
    for existing in [true, false] {
        let refused = start(existing).err().unwrap();
        assert!(refused.to_string().contains("damaged: the file is empty"), "{refused}");
    }
    assert_eq!(std::fs::metadata(scratch.store()).unwrap().len(), 0, "left as it was found");
}

/// Whatever rots in a file, one that was closed in good order or one that a kill has left: it is refused, or it was no part of the state.
/// What is opened is never the state before its newest transaction.
#[test]
fn rot_in_the_file_is_met_at_the_start() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    for name in ["web", "mail", "wiki"] {
        conductor.client.create_volume(&small(name, 3 * MIB)).unwrap();
    }
    // All records, without when they were asked for.
    let all = |conductor: &Conductor| {
        let backup = conductor.client.backup().unwrap();
        backup.lines().skip(1).filter(|line| !line.contains("crc32c")).map(str::to_owned).collect::<Vec<_>>()
    };
    let was = all(&conductor);
    let killed = std::fs::read(scratch.store()).unwrap();
    conductor.stop();
    let closed = std::fs::read(scratch.store()).unwrap();
    for whole in [closed, killed] {
        let used = whole.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect::<Vec<_>>();
        let (mut refused, step) = (0, used.len() / 200);
        for at in used.iter().step_by(step.max(1)) {
            let mut rotten = whole.clone();
            rotten[*at] ^= 0x10;
            std::fs::write(scratch.store(), rotten).unwrap();
            match Conductor::try_start(&scratch.store()) {
                Ok(mut started) => {
                    assert!(all(&started) == was, "byte {at}");
                    started.stop();
                }
                Err(why) => {
                    assert!(!matches!(why, conductor_service::Error::LedgerEnded), "byte {at}: {why}");
                    refused += 1;
                }
            }
        }
        println!("{refused} of {} refused", used.len().div_ceil(step.max(1)));
        assert!(refused > 20, "{refused}");
    }
}

#[test]
fn beyond_loopback_only_when_told() {
    let scratch = Scratch::new();
    let options = |plaintext| Options {
        listen: "0.0.0.0:0".parse().unwrap(),
        store: Store::Redb(scratch.store()),
        advertise: None,
        plaintext,
        tls: false,
        key: common::KEY,
        existing: false,
        scrub_every: None,
        replace_after: Duration::from_secs(600),
        rebalance: true,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let refused = runtime.block_on(run(options(false), |_| (), async {}));
    assert!(matches!(refused, Err(conductor_service::Error::Plaintext(_))));
    runtime.block_on(run(options(true), |_| (), async {})).unwrap();
}

#[test]
fn a_stopped_conductor_is_unreachable() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    conductor.client.version().unwrap();
    conductor.stop();
    let error = conductor.client.version().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn a_client_goes_on_with_a_restarted_conductor() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    let before = client.version().unwrap();
    for _ in 0..3 {
        conductor.stop();
        conductor = Conductor::start_at(conductor.address, &scratch.store()).unwrap();
        assert_eq!(client.version().unwrap().cluster, before.cluster, "its kept connection is gone, which is no error");
    }
    conductor.stop();
}

#[test]
fn the_largest_volume_is_one_transaction_and_one_batch() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    let commit = client.version().unwrap().commit;
    let seen = client.events(0, false).unwrap().last().unwrap().number;
    let start = Instant::now();
    let over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        // However long it takes, no node falls silent meanwhile.
        for node in 1..=3 {
            let (client, over) = (client.clone(), &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let after = client.version().map_or(0, |version| version.commit);
                    let _late = client.heartbeat(&heartbeat(node, 1, after));
                }
            });
        }
        let run = || {
            let volume = client.create_volume(&NewVolume::new("huge", Bytes(64 << 40)))?;
            let created = start.elapsed();
            let mut batch = Vec::new();
            for node in 1..=3 {
                batch.extend(client.heartbeat(&heartbeat(node, 1, 0))?.assignments.iter().map(born));
            }
            let told = start.elapsed();
            let answers = client.membership(&batch)?;
            println!("create {created:?}, tell {:?}, born {:?}", told - created, start.elapsed() - told);
            Ok::<_, Error>((volume.shards, answers))
        };
        let result = run();
        over.store(true, Ordering::Relaxed);
        result
    });
    let (shards, answers) = done.unwrap();
    assert_eq!((shards, answers.len()), (16_384, 16_384));
    assert!(answers.iter().all(|a| matches!(a, MembershipAnswer::Granted(_))));
    let made = client.version().unwrap().commit - commit;
    // On a slow machine nodes are taken for silent, and come back: what that needs is not counted.
    let of_nodes = |what: &Happened| matches!(what, Happened::NodeSilent { .. } | Happened::NodeBack { .. });
    let events = client.events(seen, false).unwrap();
    let others: BTreeSet<Commit> = events.iter().filter(|e| of_nodes(&e.what)).map(|e| e.commit).collect();
    assert_eq!(made - others.len() as u64, 2, "{events:?}");
    conductor.stop();
}
