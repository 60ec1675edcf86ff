//! The NBD machine on a real reactor, with real sockets on both sides; what takes it long is in `patience.rs`. Every test ends with
//! the proof that nothing is held.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

mod common;

use common::{Lane, NbdClient, SHARD, SIZE, map};
use conductor_model::api::VolumeMap;
use conductor_model::{Commit, Durability};
use std::io::{Read, Write};
use std::time::Duration;
use target_daemon::limits::MAX_SESSIONS;
use target_daemon::{Letter, Mail};

const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;

#[test]
fn what_one_client_wrote_another_one_reads_at_any_offset() {
    let lane = Lane::start();
    let (mut one, mut two) = (lane.connect(), lane.connect());
    assert_eq!(one.size, SIZE);
    let pattern: Vec<u8> = (0..3_000_001u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(one.write(777, &pattern), 0);
    assert_eq!(one.other(FLUSH, 0, 0), 0);
    assert_eq!(two.read(777, pattern.len()), pattern, "over pieces and shards");
    assert_eq!(two.read(0, 777), [0; 777]);
    assert_eq!(two.other(ZEROES, 1000, 5000), 0);
    assert_eq!(one.read(1000, 5000), [0; 5000]);
    assert_eq!(one.read(6000, 10), pattern[5223..5233]);
    assert_eq!(two.other(TRIM, 1 << 20, 1 << 20), 0);
    assert_eq!(one.read(1 << 20, 1 << 20), vec![0; 1 << 20]);
    lane.stop(Mail::Stop);
}

#[test]
fn of_a_flush_volume_what_was_flushed_on_any_connection_or_written_with_fua_outlives_a_loss_of_power() {
    const FUA: u16 = 1;
    let lane = Lane::of(128, false, Durability::Flush);
    let (mut one, mut two) = (lane.connect(), lane.connect());
    for shard in 0..SIZE / SHARD {
        assert_eq!(one.write(shard * SHARD, &[1; 8192]), 0);
    }
    assert_eq!(two.other(FLUSH, 0, 0), 0);
    lane.node.lose_power();
    for shard in 0..SIZE / SHARD {
        assert_eq!(two.read(shard * SHARD, 8192), [1; 8192], "shard {shard}");
    }
    let (durable, lost) = ([2; 4096], [3; 4096]);
    let fua = [
        two.send(1, FUA, 0, 4096, &durable),
        two.send(ZEROES, FUA, SHARD, 4096, &[]),
        two.send(TRIM, FUA, 2 * SHARD, 4096, &[]),
    ];
    let mut done: Vec<_> = fua.iter().map(|_| two.reply()).collect();
    done.sort_unstable();
    assert_eq!(done, fua.map(|cookie| (cookie, 0)));
    assert_eq!(one.write(4096, &lost), 0);
    lane.node.lose_power();
    assert_eq!(one.read(0, 4096), durable);
    assert_eq!((one.read(SHARD, 4096), one.read(2 * SHARD, 4096)), (vec![0; 4096], vec![0; 4096]));
    assert_eq!(one.read(4096, 4096), [1; 4096], "nobody flushed it, and nobody paid for it");
    lane.stop(Mail::Stop);
}

/// A lane whose node has lost what its client wrote, as the lane's map says; and that client.
fn after_a_loss() -> (Lane, NbdClient) {
    let lane = Lane::of(128, false, Durability::Flush);
    let mut client = lane.connect();
    assert_eq!(client.write(0, &[1; 4096]), 0);
    lane.node.lose_power();
    let mut newer = VolumeMap { durability: Durability::Flush, ..map(lane.node.endpoint, SIZE) };
    newer.shards[0].cache = Commit(9);
    lane.mail.send(Mail::Map(Box::new(newer))).unwrap();
    (lane, client)
}

#[test]
fn a_loss_that_is_told_after_goodbye_is_told_again() {
    let (lane, mut client) = after_a_loss();
    lane.node.hold(true);
    client.send(FLUSH, 0, 0, 0, &[]);
    client.send(DISCONNECT, 0, 0, 0, &[]);
    drop(client);
    lane.until("it leaves", |view| view.sessions.iter().all(|session| session.state == "closing"));
    lane.node.hold(false);
    lane.until("gone", |view| view.sessions.is_empty());
    let mut next = lane.connect();
    assert_eq!([next.other(FLUSH, 0, 0), next.other(FLUSH, 0, 0)], [5, 0], "once to somebody who hears it");
    lane.stop(Mail::Stop);
}

#[test]
fn a_loss_that_is_told_and_not_read_is_told_again() {
    let (lane, mut client) = after_a_loss();
    let mut other = lane.connect();
    for _ in 0..4 {
        client.send(0, 0, 0, 1 << 20, &[]);
    }
    client.send(FLUSH, 0, 0, 0, &[]);
    lane.until("told", |view| view.counters["losses_told"] == 1);
    drop(client);
    lane.until("gone", |view| view.sessions.len() == 1);
    assert_eq!([other.other(FLUSH, 0, 0), other.other(FLUSH, 0, 0)], [5, 0]);
    lane.stop(Mail::Stop);
}

#[test]
fn a_loss_that_was_heard_before_goodbye_is_not_told_again() {
    let (lane, mut client) = after_a_loss();
    assert_eq!(client.other(FLUSH, 0, 0), 5);
    client.send(DISCONNECT, 0, 0, 0, &[]);
    drop(client);
    lane.until("gone", |view| view.sessions.is_empty());
    assert_eq!(lane.connect().other(FLUSH, 0, 0), 0);
    lane.stop(Mail::Stop);
}

#[test]
fn a_client_that_leaves_with_requests_in_flight_leaves_nothing_behind() {
    let lane = Lane::start();
    lane.node.hold(true);
    let mut client = lane.connect();
    for n in 0..20 {
        client.send(1, 0, n * 4096, 4096, &[9; 4096]);
        client.send(0, 0, n * 4096, 4096, &[]);
    }
    lane.until("all in flight", |view| view.requests == 40);
    drop(client);
    lane.until("closing", |view| view.sessions.iter().all(|session| session.state == "closing"));
    lane.node.hold(false);
    lane.until("gone", |view| view.sessions.is_empty() && view.requests == 0);
    let mut next = lane.connect();
    assert_eq!(next.read(0, 4096), [9; 4096], "what was taken was carried out");
    lane.stop(Mail::Stop);
}

#[test]
fn a_client_that_the_volume_has_no_room_for_is_read_no_further() {
    let lane = Lane::with(4, false);
    lane.node.hold(true);
    let mut client = lane.connect();
    for n in 0..100u64 {
        client.send(1, 0, n * 512, 512, &[n as u8; 512]);
    }
    let view = lane.until("stuck", |view| view.sessions[0].state == "waiting for the volume");
    assert!(view.requests == 4 && view.sessions[0].commands == 5, "{view:?}");
    lane.node.hold(false);
    let mut done: Vec<u64> =
        (0..100).map(|_| client.reply()).map(|(cookie, error)| cookie + u64::from(error)).collect();
    done.sort_unstable();
    assert!(done.into_iter().eq(1..=100), "each is answered once");
    assert!((0..100u64).all(|n| client.read(n * 512, 512) == [n as u8; 512]));
    lane.stop(Mail::Stop);
}

#[test]
fn a_client_whose_requests_all_wait_for_a_shard_leaves_the_others_room() {
    let lane = Lane::with(4, false);
    lane.node.sicken(Some(1));
    let mut waiting: Vec<NbdClient> = (0..4).map(|_| lane.connect()).collect();
    let cookies: Vec<u64> = waiting.iter_mut().flat_map(|c| [(); 5].map(|()| c.send(0, 0, SHARD, 512, &[]))).collect();
    lane.until("all stuck", |view| view.sessions.iter().all(|session| session.state == "waiting for the volume"));
    let mut other = lane.connect();
    for n in 0..10 {
        assert_eq!((other.write(n * 512, &[7; 512]), other.read(n * 512, 512)), (0, vec![7; 512]));
    }
    lane.node.sicken(None);
    assert_eq!(cookies.len(), 20);
    for client in &mut waiting {
        (0..5).for_each(|_| {
            assert_eq!(client.reply().1, 0);
            let mut data = [0; 512];
            client.stream.read_exact(&mut data).unwrap();
        });
    }
    lane.stop(Mail::Stop);
}

#[test]
fn a_stop_finishes_what_was_taken_and_says_goodbye() {
    let lane = Lane::start();
    lane.node.hold(true);
    let mut client = lane.connect();
    let cookie = client.send(1, 0, 0, 4096, &[5; 4096]);
    lane.until("in flight", |view| view.requests == 1);
    lane.mail.send(Mail::Stop).unwrap();
    lane.until("draining", |view| view.sessions[0].state == "draining");
    lane.node.hold(false);
    assert_eq!(client.reply(), (cookie, 0));
    assert!(NbdClient::is_closed(&mut client.stream));
    lane.stop(Mail::Stop);
}

#[test]
fn an_abort_fails_what_waits_for_a_silent_node() {
    let lane = Lane::start();
    lane.node.hold(true);
    let mut client = lane.connect();
    client.send(1, 0, 0, 4096, &[5; 4096]);
    lane.until("in flight", |view| view.requests == 1);
    lane.stop(Mail::Abort);
    assert!(NbdClient::is_closed(&mut client.stream));
}

#[test]
fn a_client_too_many_is_turned_away_and_the_others_go_on() {
    let lane = Lane::start();
    let mut clients: Vec<NbdClient> = (0..MAX_SESSIONS).map(|_| lane.connect()).collect();
    let mut late = NbdClient::silent(&lane.path);
    assert!(NbdClient::is_closed(&mut late));
    let mut letters = std::iter::from_fn(|| lane.letters.recv_timeout(Duration::from_secs(30)).ok());
    assert!(letters.any(|letter| matches!(letter, Letter::Crowded)), "and people are told");
    for client in &mut clients {
        assert_eq!(client.write(0, b"x"), 0);
    }
    drop(clients.pop());
    lane.until("one gone", |view| view.sessions.len() < MAX_SESSIONS);
    assert_eq!(lane.connect().read(0, 1), b"x");
    lane.stop(Mail::Stop);
}

#[test]
fn those_who_connect_and_say_nothing_make_room_for_who_speaks() {
    let lane = Lane::start();
    let mut silent: Vec<_> = (0..MAX_SESSIONS).map(|_| NbdClient::silent(&lane.path)).collect();
    lane.until("all there", |view| view.sessions.len() == MAX_SESSIONS);
    let mut speaks = lane.connect();
    assert_eq!(speaks.write(0, b"x"), 0);
    assert!(NbdClient::is_closed(&mut silent[0]), "the oldest");
    assert_eq!(lane.until("one displaced", |_| true).counters["nbd_displaced"], 1);
    lane.stop(Mail::Stop);
}

#[test]
fn a_client_that_talks_nonsense_is_let_go() {
    let lane = Lane::start();
    let mut nonsense = NbdClient::silent(&lane.path);
    nonsense.write_all(&[0xff; 1000]).unwrap();
    assert!(NbdClient::is_closed(&mut nonsense));
    let view = lane.until("gone", |view| view.sessions.is_empty());
    assert_eq!(view.counters["nbd_dropped_for_silence"], 0, "for what it said");
    lane.stop(Mail::Stop);
}

#[test]
fn a_slow_reader_holds_up_nobody_else() {
    let lane = Lane::start();
    let mut slow = lane.connect();
    for _ in 0..40 {
        slow.send(0, 0, 0, 1 << 20, &[]);
    }
    lane.until("full", |view| view.sessions[0].bytes >= 4 << 20);
    let mut quick = lane.connect();
    for n in 0..50 {
        assert_eq!(quick.write(n * 4096, &[1; 4096]), 0);
    }
    // It gets all of it, when it wants it.
    let mut all = vec![0; 40 * ((1 << 20) + 16)];
    slow.stream.read_exact(&mut all).unwrap();
    lane.stop(Mail::Stop);
}

#[test]
fn a_volume_that_grew_shows_its_new_size_to_the_next_client() {
    let lane = Lane::start();
    let before = lane.connect();
    assert_eq!(before.size, SIZE);
    lane.mail.send(Mail::Map(Box::new(map(lane.node.endpoint, 2 * SIZE)))).unwrap();
    lane.until("grown", |view| view.size == 2 * SIZE);
    assert_eq!(lane.connect().size, 2 * SIZE);
    lane.stop(Mail::Stop);
}

#[test]
fn a_read_only_export_refuses_writes() {
    let lane = Lane::with(16, true);
    let mut client = lane.connect();
    assert_eq!(client.write(0, b"no"), 1);
    assert_eq!(client.read(0, 2), [0; 2]);
    lane.stop(Mail::Stop);
}
