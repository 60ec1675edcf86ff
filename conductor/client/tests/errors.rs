//! What a caller learns when there is no proper answer.
#![allow(clippy::unwrap_used, reason = "a test")]

use conductor_client::{Client, Error};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Answers every connection with these bytes; with none it stays silent until the caller leaves.
fn server(answer: &'static [u8]) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let _ = stream.read(&mut asked);
            while answer.is_empty() && stream.read(&mut asked).is_ok_and(|n| n > 0) {}
            let _ = stream.write_all(answer);
        }
    });
    Client::new(&address).unwrap()
}

#[test]
fn nobody_there_is_unreachable() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Client::new(&free.to_string()).unwrap().status().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.is_temporary());
}

#[test]
fn a_closed_connection_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::new(&listener.local_addr().unwrap().to_string()).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let error = client.status().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn a_silent_server_meets_the_deadline() {
    let beat = conductor_model::api::Heartbeat {
        node: conductor_model::NodeId(1),
        after: 0,
        disks: Vec::new(),
        troubles: Vec::new(),
        dropped: Vec::new(),
        copies: Vec::new(),
        integrity: Vec::new(),
        filling: Vec::new(),
        failed: Vec::new(),
    };
    let start = Instant::now();
    let error = server(b"").heartbeat(&beat).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_refusal_brings_kind_and_sentence() {
    let client = server(
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 52\r\nconnection: close\r\n\r\n\
          {\"error\":\"unknown-node\",\"message\":\"unknown node n1\"}",
    );
    let error = client.status().unwrap_err();
    assert!(error.is_unknown_node(), "{error:?}");
    assert_eq!((error.to_string(), error.is_temporary()), ("unknown node n1".to_owned(), false));
}

/// Whoever sits at a conductor's address.
#[test]
fn a_refusal_does_not_speak_to_the_terminal() {
    let client = server(
        b"HTTP/1.1 409 Conflict\r\ncontent-length: 66\r\nconnection: close\r\n\r\n\
          {\"error\":\"busy\",\"message\":\"\\u001b[2Jgr\\u00fc\\u00dfe\\r\\n\\u009b1m \"}",
    );
    assert_eq!(client.status().unwrap_err().to_string(), "\\u{1b}[2Jgr\u{fc}\u{df}e\\r\\n\\u{9b}1m ");
}

#[test]
fn what_is_no_conductor_is_said_to_be_none() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello"[..],
        b"HTTP/1.1 500 No\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ] {
        let error = server(answer).status().unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    }
}

#[test]
fn a_bad_name_is_not_even_sent() {
    let client = Client::new("127.0.0.1:1").unwrap();
    for name in ["", "..", "a/b", "a?b", "A"] {
        assert_eq!(client.map(name).unwrap_err().kind(), Some("invalid"), "{name}");
    }
}
