//! A primary dies, hangs or is replaced: when the map is asked for, and what becomes of the requests.

use super::fake::{Bench, SETTINGS};
use super::{SHARD, map};
use crate::limits::{LOOK, MAP_MAX, MAP_MIN, MOVE_GRACE, RETRY_MAX, STALLED};
use crate::request::BlockOp;
use driver::{Span, Time};
use node_protocol::Status;
use wire::Reason;

/// Goes from deadline to deadline; the moments at which the map was asked for.
fn asked(b: &mut Bench, within: Span) -> Vec<Time> {
    let until = b.now + within;
    let mut asked = Vec::new();
    loop {
        let next = b.engine.next_deadline().unwrap();
        if next > until {
            b.now = until;
            return asked;
        }
        b.now = next.max(b.now);
        b.turn();
        if b.engine.wants_map(b.now) {
            asked.push(b.now);
        }
    }
}

/// A write on the connection to port 1.
fn posted() -> Bench {
    let mut b = Bench::new(&[(1, 1)], SETTINGS);
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b
}

#[test]
fn a_lost_connection_has_the_map_asked_for_at_once_and_goes_on_until_it_brings_news() {
    let mut b = posted();
    b.lose(b.conn(1), Reason::PeerClosed);
    assert!(b.engine.wants_map(b.now));
    let began = b.now;
    let mut last = began;
    while b.now < began + Span::seconds(3) {
        let next = b.engine.next_deadline().unwrap();
        b.now = next.max(b.now);
        b.turn();
        if b.has_conn(1) {
            b.lose(b.conn(1), Reason::ConnectFailed);
        }
        if b.engine.wants_map(b.now) {
            assert!(b.now >= last + MAP_MIN, "a bounded rate");
            last = b.now;
        }
        assert!(b.now <= last + MAP_MAX + LOOK + LOOK, "asked again and again: {:?} after {last:?}", b.now);
    }
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    assert!(!b.has_conn(1), "nobody is looked for there any more");
    b.up(2);
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.assert_clean();
}

#[test]
fn a_primary_that_is_silent_has_the_map_asked_for_within_a_second() {
    let mut b = posted();
    let began = b.now;
    let asked = asked(&mut b, Span::seconds(6));
    assert!(asked[0] >= began + STALLED && asked[0] <= began + STALLED + LOOK, "{asked:?}");
    let pauses: Vec<Span> = asked.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    assert!(pauses.iter().all(|pause| *pause >= MAP_MIN && pause.0 <= MAP_MAX.0 + LOOK.0), "{pauses:?}");
    assert!((10..=20).contains(&asked.len()), "{}: as often as it takes, no more", asked.len());
}

#[test]
fn what_a_silent_primary_owes_goes_to_its_successor_at_once() {
    let mut b = posted();
    b.submit(2, BlockOp::Read, 4096, 4);
    b.turn();
    let asked = asked(&mut b, Span(STALLED.0 + LOOK.0));
    assert!(!asked.is_empty());
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    assert!(!b.has_conn(1), "it has been quiet for long enough");
    b.up(2);
    assert_eq!((b.sequences(2), b.posted(2)[0].body.epoch.get()), (vec![1, 2], 2));
    b.answer(2, 0, Status::Ok, b"");
    b.answer(2, 0, Status::Ok, b"abcd");
    assert_eq!(b.results(), [(1, Ok(0)), (2, Ok(4))]);
    b.assert_clean();
}

#[test]
fn an_answer_of_the_old_primary_after_the_move_is_nobodys() {
    let mut b = posted();
    let (old, token) = (b.conn(1), b.posted(1)[0].token);
    b.now = b.now + STALLED;
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    b.up(2);
    assert_eq!(b.sequences(2), [1]);
    for late in [Status::Ok, Status::StaleEpoch] {
        b.reply(old, token, late, b"");
        b.turn();
        assert_eq!((b.results(), b.sequences(2)), (vec![], vec![1]), "its twin may still be executed");
    }
    assert_eq!(b.engine.counters.stray_events, 2);
    b.answer(2, 0, Status::Ok, b"");
    b.reply(old, token, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.assert_clean();
}

#[test]
fn an_older_map_moves_nothing_back() {
    let mut b = Bench::new(&[(3, 1), (3, 1)], SETTINGS);
    b.write(1, SHARD - 512, &[1; 1024]);
    b.turn();
    b.engine.map(b.now, &map(&[(5, 2), (3, 1)]));
    b.engine.map(b.now, &map(&[(4, 1), (2, 2)]));
    b.turn();
    b.up(1);
    b.up(2);
    assert_eq!((b.sequences(1), b.sequences(2)), (vec![2], vec![1]));
    assert_eq!(b.engine.counters.stale_entries, 2);
}

#[test]
fn a_living_node_that_loses_one_shard_keeps_the_connection_that_others_use() {
    let mut b = Bench::new(&[(1, 1), (1, 1)], SETTINGS);
    b.write(1, 0, &[1; 512]);
    b.write(2, SHARD, &[2; 512]);
    b.turn();
    b.up(1);
    let conn = b.conn(1);
    b.engine.map(b.now, &map(&[(2, 2), (1, 1)]));
    b.pass(Span(MOVE_GRACE.0 / 2));
    b.answer(1, 0, Status::StaleEpoch, b"");
    b.up(2);
    b.pass(MOVE_GRACE);
    b.pass(MOVE_GRACE);
    assert_eq!((b.conn(1), b.sequences(1), b.sequences(2)), (conn, vec![2], vec![1]));
    assert_eq!(b.engine.counters.drained, 0);
}

#[test]
fn a_node_that_says_later_for_long_has_the_map_asked_for() {
    let mut b = posted();
    let began = b.now;
    let mut first = None;
    while b.now < began + Span::seconds(2) {
        if !b.posted(1).is_empty() {
            b.answer(1, 0, Status::Later, b"");
        }
        if b.engine.wants_map(b.now) {
            first.get_or_insert(b.now);
        }
        let next = b.engine.next_deadline().unwrap();
        assert!(next <= b.now + RETRY_MAX, "it is asked again before long");
        b.now = next.max(b.now);
        b.turn();
    }
    let first = first.expect("asked");
    assert!(first >= began + STALLED && first <= began + STALLED + LOOK + LOOK, "{first:?}");
}

#[test]
fn after_a_quiet_time_the_next_trouble_is_met_with_haste() {
    let mut b = posted();
    let _ = asked(&mut b, Span::seconds(4));
    b.answer(1, 0, Status::Ok, b"");
    b.pass(Span::seconds(3));
    b.write(2, 0, &[1; 512]);
    b.turn();
    b.lose(b.conn(1), Reason::PeerClosed);
    assert!(b.engine.wants_map(b.now));
    b.pass(MAP_MIN);
    b.lose(b.conn(1), Reason::ConnectFailed);
    assert!(b.engine.wants_map(b.now), "the back-off began anew");
}
