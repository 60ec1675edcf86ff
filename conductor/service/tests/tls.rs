//! A conductor that speaks TLS, over real sockets.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

mod common;

use common::{Conductor, Scratch};
use conductor_client::{Client, Error};
use conductor_service::Options;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use wire::{ClusterKey, Key};

fn options(scratch: &Scratch) -> Options {
    let listen = "127.0.0.1:0".parse().unwrap();
    Options { tls: true, ..Conductor::options(listen, &scratch.store()) }
}

fn client(conductor: &Conductor, key: u8) -> Client {
    let address = format!("https://{}", conductor.address);
    Client::new(&address).unwrap().with_key(Key::Cluster(ClusterKey([key; 32]))).unwrap()
}

#[test]
fn who_has_the_key_is_answered_and_knows_by_whom() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start_with(options(&scratch)).unwrap();
    let ours = client(&conductor, 7);
    assert!(ours.trust().is_some() && ours.nodes().unwrap().is_empty());
    ours.create_volume(&common::small("db", common::MIB)).unwrap_err();
    let error = client(&conductor, 8).nodes().unwrap_err();
    assert!(matches!(&error, Error::Protocol { what, .. } if what.contains("not of the cluster")), "{error}");
    let keyless = Client::new(&format!("https://{}", conductor.address)).unwrap();
    assert!(matches!(keyless.nodes().unwrap_err(), Error::Tls(_)));
    conductor.stop();
}

#[test]
fn who_speaks_in_clear_is_told_so_and_who_says_nothing_harms_nobody() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start_with(options(&scratch)).unwrap();
    // In the middle of a handshake, or before it, for as long as the test runs.
    let _silent = TcpStream::connect(conductor.address).unwrap();
    let mut half = TcpStream::connect(conductor.address).unwrap();
    half.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap();
    let mut noise = TcpStream::connect(conductor.address).unwrap();
    noise.write_all(&[0x16; 5000]).unwrap();
    let error = conductor.client.nodes().unwrap_err();
    assert!(matches!(&error, Error::Refused { kind, .. } if kind == "tls"), "{error}");
    assert!(error.to_string().contains("speaks TLS"), "{error}");
    client(&conductor, 7).nodes().unwrap();
    conductor.stop();
}

#[test]
fn one_that_speaks_in_clear_is_not_spoken_to_over_tls() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start_with(Options { tls: false, ..options(&scratch) }).unwrap();
    let error = client(&conductor, 7).nodes().unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
    conductor.stop();
}

#[test]
fn where_tls_fails_nothing_was_asked_and_the_next_one_is() {
    let scratches = [Scratch::new(), Scratch::new(), Scratch::new()];
    let [clear, foreign, ours] = &scratches;
    let mut clear = Conductor::start_with(Options { tls: false, ..options(clear) }).unwrap();
    let mut foreign = Conductor::start_with(Options { key: [8; 32], ..options(foreign) }).unwrap();
    let mut ours = Conductor::start_with(options(ours)).unwrap();
    let closer = TcpListener::bind("127.0.0.1:0").unwrap();
    let closes = closer.local_addr().unwrap();
    std::thread::spawn(move || closer.incoming().for_each(drop));
    for bad in [clear.address, foreign.address, closes] {
        let both = format!("https://{bad},https://{}", ours.address);
        let client = || Client::new(&both).unwrap().with_key(Key::Cluster(ClusterKey([7; 32]))).unwrap();
        client().nodes().unwrap();
        let error = client().create_volume(&common::small("db", common::MIB)).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "given to the one that can take it: {error}");
    }
    [&mut clear, &mut foreign, &mut ours].into_iter().for_each(Conductor::stop);
}

#[test]
fn tls_allows_to_listen_beyond_loopback() {
    let scratch = Scratch::new();
    let beyond = Options { listen: "0.0.0.0:0".parse().unwrap(), ..options(&scratch) };
    Conductor::start_with(beyond).unwrap().stop();
}
