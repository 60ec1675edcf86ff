//! Changes of NBD clients that are gone, and what the clients after them may do meanwhile (rule 24).
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

mod common;

use common::{Lane, NbdClient, SHARD};
use std::net::Shutdown;
use target_daemon::Mail;
use target_daemon::limits::{SESSION_BYTES, SESSION_COMMANDS};

const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const BLOCK: u32 = 4096;
/// So often told "later", the volume client pauses for 640 ms: longer than a client needs to come back and write twice.
const LATERS: u64 = 6;

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK as usize]
}

/// The client's change is put off, and the client goes. The change is in the middle of a pause, and so is every next try.
fn orphan(lane: &Lane, mut client: NbdClient, kind: u16, payload: &[u8]) {
    lane.node.put_off(true);
    client.send(kind, 0, 0, BLOCK, payload);
    lane.until("put off", |view| view.counters["laters"] >= LATERS);
    let sessions = lane.look().sessions.len();
    drop(client);
    lane.until("noticed", |view| {
        let open = view.sessions.iter().filter(|session| session.state != "closing").count();
        open == sessions - 1
    });
}

#[test]
fn a_write_of_a_client_that_is_gone_never_lands_on_what_was_acknowledged_after_it() {
    let lane = Lane::start();
    orphan(&lane, lane.connect(), WRITE, &block(1));
    lane.node.put_off(false);
    let mut next = lane.connect();
    assert_eq!(next.write(0, &block(1)), 0, "sent again");
    assert_eq!(next.write(0, &block(2)), 0);
    lane.until("nothing in flight", |view| view.requests == 0);
    assert_eq!(next.read(0, BLOCK as usize), block(2));
    lane.stop(Mail::Stop);
}

#[test]
fn while_any_change_of_a_client_that_is_gone_is_in_flight_other_connections_read_but_change_nothing() {
    for (kind, payload) in [(WRITE, block(1)), (TRIM, vec![]), (ZEROES, vec![])] {
        let lane = Lane::start();
        let mut sibling = lane.connect();
        assert_eq!(sibling.write(0, &block(7)), 0);
        orphan(&lane, lane.connect(), kind, &payload);
        let mut next = lane.connect();
        let cookies = [sibling.send(WRITE, 0, 0, BLOCK, &block(2)), next.send(TRIM, 0, 1 << 20, BLOCK, &[])];
        lane.until("both wait", |view| {
            view.sessions.iter().filter(|session| session.state == "waiting for the volume").count() == 2
        });
        assert_eq!(lane.connect().read(0, BLOCK as usize), block(7), "reads go on");
        assert_eq!(lane.look().requests, 1, "only the change that was left behind");
        lane.node.put_off(false);
        assert_eq!(sibling.reply(), (cookies[0], 0));
        assert_eq!(next.reply(), (cookies[1], 0));
        assert_eq!(next.read(0, BLOCK as usize), block(2));
        lane.stop(Mail::Stop);
    }
}

#[test]
fn reads_of_a_client_that_is_gone_hold_nobody_back() {
    let lane = Lane::start();
    let mut sibling = lane.connect();
    lane.node.hold(true);
    let mut client = lane.connect();
    client.send(0, 0, 0, BLOCK, &[]);
    lane.until("asked", |view| view.requests == 1);
    drop(client);
    lane.until("noticed", |view| view.sessions.iter().any(|session| session.state == "closing"));
    let cookie = sibling.send(WRITE, 0, 0, BLOCK, &block(2));
    lane.until("asked, too", |view| view.requests == 2);
    lane.node.hold(false);
    assert_eq!(sibling.reply(), (cookie, 0));
    lane.stop(Mail::Stop);
}

#[test]
fn reads_that_clients_left_behind_make_room_for_others() {
    let lane = Lane::with(4, false);
    lane.node.sicken(Some(1));
    for n in 1..=3 {
        let mut client = lane.connect();
        for _ in 0..5 {
            client.send(0, 0, SHARD, BLOCK, &[]);
        }
        lane.until("nothing more goes", |view| view.sessions.iter().any(|session| session.state.contains("volume")));
        drop(client);
        lane.until("noticed", |view| view.sessions.iter().all(|session| session.state == "closing"));
        let mut next = lane.connect();
        (0..10).for_each(|_| assert_eq!(next.read(0, BLOCK as usize), block(0), "what is served goes on, round {n}"));
    }
    let view = lane.until("given up", |view| view.counters["withdrawn"] >= 8);
    assert!(view.requests <= 4, "{view:?}");
    lane.node.sicken(None);
    lane.until("over", |view| view.requests == 0 && view.sessions.is_empty());
    lane.stop(Mail::Stop);
}

#[test]
fn a_change_that_still_waited_when_its_client_went_is_never_made() {
    let lane = Lane::start();
    orphan(&lane, lane.connect(), WRITE, &block(1));
    lane.node.hold(true);
    let mut client = lane.connect();
    client.send(0, 0, 0, BLOCK, &[]);
    client.send(WRITE, 0, 0, BLOCK, &block(2));
    let waits = |state: &str| state == "waiting for the volume";
    lane.until("waits", |view| view.sessions.iter().any(|session| waits(&session.state)));
    drop(client);
    lane.node.hold(false); // the read's reply finds nobody
    lane.until("noticed", |view| view.sessions.iter().all(|session| session.state == "closing"));
    lane.node.put_off(false);
    lane.until("gone", |view| view.sessions.is_empty() && view.requests == 0);
    assert_eq!(lane.connect().read(0, BLOCK as usize), block(1));
    lane.stop(Mail::Stop);
}

/// Why a client is read no further, and how to get there: the volume client's depth, and writes that fill it up.
const GATES: [(&str, u16, usize, usize); 3] = [
    ("its commands", 256, SESSION_COMMANDS, BLOCK as usize),
    ("its bytes", 256, SESSION_BYTES >> 20, 1 << 20),
    ("the volume's room", 4, 4, BLOCK as usize),
];

#[test]
fn what_a_client_sent_that_was_not_read_when_it_went_is_never_executed_after_its_successor() {
    for ((gate, depth, count, len), half) in GATES.iter().flat_map(|gate| [(*gate, false), (*gate, true)]) {
        println!("held up by {gate}, {}", if half { "half closed" } else { "closed" });
        let lane = Lane::with(depth, false);
        lane.node.hold(true);
        let mut client = lane.connect();
        for n in 0..count {
            client.send(WRITE, 0, (4 << 20) + (n * len) as u64 % (1 << 20), len as u32, &vec![3; len]);
        }
        lane.until("full", |view| view.requests == count);
        for byte in [8, 9, 1] {
            client.send(WRITE, 0, 0, BLOCK, &block(byte));
        }
        let kept = if half {
            client.stream.shutdown(Shutdown::Write).unwrap();
            Some(client)
        } else {
            drop(client);
            None
        };
        let mut next = lane.connect();
        let cookie = next.send(WRITE, 0, 0, BLOCK, &block(2));
        // It waits for what is in flight of the other one, or would be in flight itself: nothing comes before the node goes on.
        lane.until("asked or waiting", |view| {
            let waits = view.sessions.iter().any(|session| session.state == "waiting for the volume");
            waits || view.requests > count
        });
        lane.node.hold(false);
        assert_eq!(next.reply(), (cookie, 0));
        lane.until("the old session is over", |view| view.sessions.len() == 1 && view.requests == 0);
        assert_eq!(next.read(0, BLOCK as usize), block(2), "{gate}");
        assert_eq!(next.read(4 << 20, BLOCK as usize), block(3), "what was in flight was executed");
        drop(kept);
        lane.stop(Mail::Stop);
    }
}

#[test]
fn a_client_that_went_is_noticed_though_nothing_of_it_is_read_and_nothing_is_in_anyones_way() {
    let lane = Lane::start();
    lane.node.hold(true);
    let mut client = lane.connect();
    for n in 0..SESSION_COMMANDS as u64 + 1 {
        client.send(0, 0, n * u64::from(BLOCK), BLOCK, &[]);
    }
    lane.until("full", |view| view.sessions[0].commands == SESSION_COMMANDS);
    assert_eq!(lane.look().sessions[0].state, "open");
    drop(client);
    let view = lane.until("noticed", |view| view.sessions.iter().all(|session| session.state == "closing"));
    assert_eq!(view.counters["nbd_abandoned"], 1);
    lane.node.hold(false);
    lane.until("gone", |view| view.sessions.is_empty());
    lane.stop(Mail::Stop);
}

#[test]
fn commands_before_a_goodbye_are_answered_also_behind_a_half_close_and_beside_others() {
    for half in [false, true] {
        let lane = Lane::start();
        let mut sibling = lane.connect();
        lane.node.hold(true);
        let mut client = lane.connect();
        let cookies: Vec<u64> =
            (0..8).map(|n| client.send(WRITE, 0, n * u64::from(BLOCK), BLOCK, &block(n as u8))).collect();
        lane.until("at the volume", |view| view.requests == cookies.len());
        client.send(DISCONNECT, 0, 0, 0, &[]);
        if half {
            client.stream.shutdown(Shutdown::Write).unwrap();
        }
        lane.until("it leaves", |view| view.sessions.iter().any(|session| session.state == "closing"));
        lane.node.hold(false);
        let mut answered: Vec<u64> = cookies.iter().map(|_| client.reply()).map(|(cookie, _)| cookie).collect();
        answered.sort_unstable();
        assert_eq!(answered, cookies);
        assert!(NbdClient::is_closed(&mut client.stream), "and then it is over");
        assert_eq!(sibling.read(0, BLOCK as usize), block(0));
        lane.until("gone", |view| view.sessions.len() == 1 && view.counters["nbd_abandoned"] == 0);
        lane.stop(Mail::Stop);
    }
}

#[test]
fn commands_before_a_goodbye_are_executed_though_the_client_did_not_wait_for_them() {
    let lane = Lane::start();
    let mut client = lane.connect();
    for n in 0..100u8 {
        client.send(WRITE, 0, u64::from(n) * u64::from(BLOCK), BLOCK, &block(n));
    }
    client.send(DISCONNECT, 0, 0, 0, &[]);
    drop(client);
    lane.until("gone", |view| view.sessions.is_empty() && view.requests == 0);
    let mut next = lane.connect();
    for n in 0..100u8 {
        assert_eq!(next.read(u64::from(n) * u64::from(BLOCK), BLOCK as usize), block(n));
    }
    lane.stop(Mail::Stop);
}
