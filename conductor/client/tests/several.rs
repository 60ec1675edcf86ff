//! Several addresses: the call goes to the one that leads, in time, and a command is given once.
#![allow(clippy::unwrap_used, reason = "a test")]

use conductor_client::{Client, Error};
use conductor_model::api::Heartbeat;
use conductor_model::views::NewVolume;
use conductor_model::{Bytes, NodeId};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What one does with every request.
#[derive(Clone)]
enum Does {
    /// Answers with an empty object, and says that it leads.
    Leads,
    /// Names this one as the leader.
    Names(Option<String>),
    /// Names nobody the first two times, then is as `Leads`.
    Begins,
    /// Nothing.
    Hangs,
    /// As `Leads`, but takes longer for everything else than another one would be waited for.
    Ponders,
    /// As `Leads`, but holds everything else for half a second, as a heartbeat without news is.
    Holds,
    /// Says that it leads, and closes the connection on everything else.
    Dies,
    /// Says that it leads, and nothing on everything else.
    Freezes,
}

struct Server {
    address: String,
    /// Requests but those for its role.
    asked: Arc<AtomicUsize>,
}

impl Server {
    fn start(does: Does) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, does, counter) = (stream.unwrap(), does.clone(), Arc::clone(&counter));
                std::thread::spawn(move || {
                    let mut request = [0; 65536];
                    let read = stream.read(&mut request).unwrap_or(0);
                    let role = request[..read].starts_with(b"GET /v1/role ");
                    if !role && read > 0 {
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                    let leads = "{\"version\":\"1\",\"role\":\"leader\",\"leader\":null}".to_owned();
                    let does = match does {
                        Does::Begins if counter.load(Ordering::SeqCst) <= 2 => Does::Names(None),
                        Does::Begins => Does::Leads,
                        other => other,
                    };
                    let (status, body) = match does {
                        Does::Begins => unreachable!("it is one or the other"),
                        Does::Hangs => return std::thread::sleep(Duration::from_secs(60)),
                        Does::Dies if !role => return,
                        Does::Freezes if !role => return std::thread::sleep(Duration::from_secs(60)),
                        Does::Dies | Does::Freezes => ("200 OK", leads),
                        Does::Ponders if !role => {
                            std::thread::sleep(Duration::from_secs(6));
                            ("200 OK", "{}".to_owned())
                        }
                        Does::Holds if !role => {
                            std::thread::sleep(Duration::from_millis(500));
                            ("200 OK", "{}".to_owned())
                        }
                        Does::Ponders | Does::Holds => ("200 OK", leads),
                        Does::Leads => ("200 OK", if role { leads } else { "{}".to_owned() }),
                        Does::Names(leader) => {
                            let leader = leader.map_or("null".to_owned(), |leader| format!("\"{leader}\""));
                            match role {
                                true => (
                                    "200 OK",
                                    format!("{{\"version\":\"1\",\"role\":\"follower\",\"leader\":{leader}}}"),
                                ),
                                false => (
                                    "503 Service Unavailable",
                                    format!("{{\"error\":\"not-leader\",\"message\":\"no\",\"leader\":{leader}}}"),
                                ),
                            }
                        }
                    };
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                    let _ = stream.write_all(format!("{head}{body}").as_bytes());
                });
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn client(addresses: &[&str]) -> Client {
    Client::new(&addresses.join(",")).unwrap()
}

fn beat() -> Heartbeat {
    Heartbeat {
        node: NodeId(1),
        after: 0,
        disks: Vec::new(),
        troubles: Vec::new(),
        dropped: Vec::new(),
        copies: Vec::new(),
        integrity: Vec::new(),
        filling: Vec::new(),
        failed: Vec::new(),
    }
}

fn volume() -> NewVolume {
    serde_json::from_value(serde_json::json!({ "name": "db", "size": Bytes(1 << 20) })).unwrap()
}

#[test]
fn the_next_one_is_asked_when_nobody_is_there_and_the_good_one_is_remembered() {
    let leader = Server::start(Does::Leads);
    let client = client(&[&nobody(), &nobody(), &leader.address]);
    client.openapi().unwrap();
    let start = Instant::now();
    for _ in 0..20 {
        client.clone().openapi().unwrap();
    }
    assert_eq!(leader.asked(), 21);
    println!("20 calls in {:?}", start.elapsed());
}

#[test]
fn the_leader_that_a_follower_names_is_asked_next() {
    let (leader, other) = (Server::start(Does::Leads), Server::start(Does::Hangs));
    let follower = Server::start(Does::Names(Some(leader.address.clone())));
    let client = client(&[&follower.address, &other.address, &leader.address]);
    client.openapi().unwrap();
    assert_eq!((follower.asked(), other.asked(), leader.asked()), (1, 0, 1));
}

#[test]
fn a_heartbeat_has_time_for_a_second_conductor() {
    let (frozen, next) = (Server::start(Does::Hangs), Server::start(Does::Holds));
    let client = client(&[&frozen.address, &next.address]);
    // An empty object is no answer to a heartbeat, but it has come.
    let error = client.heartbeat(&beat()).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert_eq!((frozen.asked(), next.asked()), (1, 1));
}

#[test]
fn a_leader_that_freezes_with_a_membership_question_is_waited_for_some_seconds() {
    for frozen in [Does::Freezes, Does::Hangs] {
        let (frozen, next) = (Server::start(frozen), Server::start(Does::Leads));
        let client = client(&[&frozen.address, &next.address]);
        let start = Instant::now();
        // An empty object is no answer to a question, but it has come.
        let error = client.membership(&[]).unwrap_err();
        let took = start.elapsed();
        assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");
        assert_eq!(next.asked(), 1);
    }
}

#[test]
fn a_command_is_given_to_a_leader_and_once() {
    let (frozen, dies, other) = (Server::start(Does::Hangs), Server::start(Does::Dies), Server::start(Does::Leads));
    let follower = Server::start(Does::Names(None));
    let client = client(&[&frozen.address, &follower.address, &dies.address, &other.address]);
    let error = client.create_volume(&volume()).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "its fate is unknown: {error:?}");
    assert!(error.to_string().contains("may have taken effect"), "{error}");
    let asked = [&frozen, &follower, &dies, &other].map(Server::asked);
    assert_eq!(asked, [0, 0, 1, 0], "not repeated");
    // The next call goes elsewhere.
    client.openapi().unwrap();
    assert_eq!(other.asked(), 1);
}

#[test]
fn what_takes_long_on_a_leader_is_waited_for() {
    let (frozen, leader) = (Server::start(Does::Hangs), Server::start(Does::Ponders));
    let client = client(&[&frozen.address, &leader.address]);
    assert_eq!(client.backup().unwrap(), "{}");
    assert_eq!((frozen.asked(), leader.asked()), (0, 1));
}

#[test]
fn one_that_has_just_started_is_asked_again_until_it_leads() {
    let begins = Server::start(Does::Begins);
    client(&[&begins.address]).openapi().unwrap();
    assert_eq!(begins.asked(), 3);
    let follower = Server::start(Does::Names(Some("192.0.2.1:1".to_owned())));
    let error = client(&[&follower.address]).openapi().unwrap_err();
    assert_eq!((error.kind(), follower.asked()), (Some("not-leader"), 1), "who leads elsewhere is not waited for");
}

#[test]
fn a_command_that_cannot_have_arrived_is_not_said_to_be_in_doubt() {
    let error = client(&[&nobody()]).create_volume(&volume()).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && !error.to_string().contains("may have"), "{error}");
    let dies = Server::start(Does::Dies);
    let error = client(&[&dies.address]).create_volume(&volume()).unwrap_err();
    assert!(error.to_string().contains("may have taken effect"), "{error}");
}

#[test]
fn while_nobody_leads_a_call_waits_for_its_deadline_and_says_why() {
    let followers = [Server::start(Does::Names(None)), Server::start(Does::Names(None))];
    let client = client(&[&followers[0].address, &followers[1].address]);
    let start = Instant::now();
    let error = client.heartbeat(&beat()).unwrap_err();
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(matches!(&error, Error::Unreachable { why, .. } if why == "no"), "{error:?}");
    assert!(error.is_temporary());
}

#[test]
fn each_is_shown_with_what_it_says_of_itself() {
    let leader = Server::start(Does::Leads);
    let follower = Server::start(Does::Names(Some(leader.address.clone())));
    let client = client(&[&leader.address, &follower.address, &nobody()]);
    let shown: Vec<_> =
        client.conductors().into_iter().map(|(_, info)| info.ok().map(|i| i.role.to_string())).collect();
    assert_eq!(shown, [Some("leader".to_owned()), Some("follower".to_owned()), None]);
}
