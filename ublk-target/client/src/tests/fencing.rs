//! Requests that fail while a node may still execute them: when that is said, and what waits until it is certain.

use super::fake::{Bench, SETTINGS};
use super::{SHARD, map};
use crate::engine::Settings;
use crate::limits::{FENCE_GRACE, RECONNECT_MAX, RETRY_MAX, RETRY_MIN};
use crate::request::{BlockError, BlockOp};
use driver::Span;
use node_protocol::{Status, op};
use std::sync::Arc;
use wire::Reason;

fn bench(shards: &[(u64, u16)]) -> Bench {
    Bench::new(shards, SETTINGS)
}

fn with_timeout() -> Bench {
    Bench::new(&[(1, 1)], Settings { io_timeout: Some(Span::seconds(1)), ..SETTINGS })
}

#[test]
fn a_timed_out_write_is_handed_up_when_its_node_has_fenced_it() {
    let mut b = with_timeout();
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b.pass(Span::seconds(1));
    assert!(!b.has_conn(1), "closed first");
    assert_eq!(b.results(), []);
    b.pass(Span::millis(100));
    assert!(b.has_conn(1), "connects only to have it fenced");
    b.up(1);
    assert_eq!(b.results(), [(1, Err(BlockError::TimedOut))]);
    assert!(b.posted(1).is_empty() && b.engine.counters.unfenced == 0);
    b.assert_clean();
}

#[test]
fn a_timed_out_write_to_a_node_that_cannot_be_reached_is_handed_up_after_a_grace() {
    let mut b = with_timeout();
    b.write(1, 0, &[1; 512]);
    b.write(2, 512, &[1; 512]);
    b.turn();
    b.up(1);
    b.pass(Span::seconds(1));
    assert_eq!(b.results(), []);
    b.pass(FENCE_GRACE);
    assert_eq!(b.results(), [(1, Err(BlockError::TimedOut)), (2, Err(BlockError::TimedOut))]);
    assert_eq!(b.engine.counters.unfenced, 2);
    b.assert_clean();
}

/// A connection fences its own lane alone: what one lane has left at a node could be executed behind what another one writes there.
#[test]
fn what_a_timed_out_write_may_still_change_is_written_by_no_other_lane_before_that_is_fenced() {
    let lane = |lane, io_timeout| Bench::new(&[(1, 1)], Settings { lane, io_timeout, ..SETTINGS });
    let mut lanes = [lane(0, Some(Span::seconds(1))), lane(1, None)];
    let [a, b] = &mut lanes;
    b.engine.unfenced = Arc::clone(&a.engine.unfenced);
    // The second lane has a connection, which stays.
    b.submit(1, BlockOp::Read, 0, 4);
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Ok, b"abcd");
    a.write(1, 4096, &[1; 8192]);
    a.turn();
    a.up(1);
    a.pass(Span::seconds(1));
    a.pass(Span(FENCE_GRACE.0 - 1));
    a.lose(a.conn(1), Reason::ConnectFailed);
    a.pass(Span(1));
    assert_eq!((a.results(), a.engine.counters.unfenced), (vec![(1, Err(BlockError::TimedOut))], 1));
    // By itself, without any request of its own: the others wait for it.
    assert!(!a.has_conn(1) && a.engine.next_deadline().is_some());

    let tries_again = |b: &mut Bench| b.pass(RETRY_MAX);
    b.write(2, 8192, &[2; 4096]);
    b.submit(3, BlockOp::Read, 4096, 4);
    b.write(4, 12288, &[4; 4096]);
    b.write(5, 0, &[5; 4096]);
    tries_again(b);
    assert_eq!(
        b.posted(1).iter().map(|p| p.data.first().copied()).collect::<Vec<_>>(),
        [Some(4), Some(5)],
        "those alone touch nothing of it"
    );
    assert!(b.engine.next_deadline().unwrap() <= b.now + RETRY_MAX);
    // Its own lane goes on trying to reach the node, for nothing else.
    a.pass(RECONNECT_MAX);
    assert!(a.has_conn(1));
    tries_again(b);
    assert_eq!(b.posted(1).len(), 2);
    a.up(1);
    tries_again(b);
    assert_eq!(b.sequences(1).len(), 4, "the node has fenced it");
    (0..4).for_each(|_| {
        let is_read = b.posted(1)[0].op == op::READ;
        b.answer(1, 0, Status::Ok, if is_read { b"abcd" } else { b"" });
    });
    lanes.into_iter().for_each(|mut lane| lane.assert_clean());
}

/// The same, where the node never comes back: the shard is served by another one.
#[test]
fn what_a_timed_out_write_has_left_is_past_when_another_primary_has_served() {
    let mut lanes =
        [0, 1].map(|lane| Bench::new(&[(1, 1)], Settings { lane, io_timeout: Some(Span::seconds(1)), ..SETTINGS }));
    let [a, b] = &mut lanes;
    b.engine.unfenced = Arc::clone(&a.engine.unfenced);
    a.write(1, 0, &[1; 4096]);
    a.turn();
    a.up(1);
    a.pass(Span::seconds(1));
    a.pass(FENCE_GRACE);
    assert_eq!(a.engine.counters.unfenced, 1);
    b.write(1, 0, &[2; 4096]);
    b.turn();
    b.up(1);
    assert!(b.posted(1).is_empty());
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.pass(RETRY_MAX);
    b.up(2);
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.turn();
    assert!(b.engine.unfenced.endpoints(0).is_empty(), "and nobody waits for the old one any more");
    a.pass(RECONNECT_MAX);
    a.pass(RECONNECT_MAX);
    assert!(a.engine.next_deadline().is_none());
}

#[test]
fn a_timed_out_write_of_a_shard_that_moved_is_fenced_when_the_new_primary_has_served() {
    let mut b = with_timeout();
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b.pass(Span::seconds(1));
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.submit(2, BlockOp::Read, 512, 4);
    b.turn();
    assert_eq!(b.results(), [], "the old primary may not know yet, and another lane may be served by it");
    b.up(2);
    b.answer(2, 0, Status::Later, b"");
    assert_eq!(b.results(), [], "nor does the new one");
    b.pass(RETRY_MIN);
    b.answer(2, 0, Status::Ok, b"abcd");
    assert_eq!(b.results(), [(2, Ok(4)), (1, Err(BlockError::TimedOut))]);
    assert_eq!(b.engine.counters.unfenced, 0);
    b.assert_clean();
}

#[test]
fn a_timed_out_write_of_a_shard_that_moved_is_fenced_by_the_old_primary_too() {
    let mut b = with_timeout();
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b.pass(Span::seconds(1));
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.pass(Span::millis(100));
    b.up(1);
    assert_eq!(b.results(), [(1, Err(BlockError::TimedOut))]);
    assert!(!b.has_conn(1), "of no other use");
    b.assert_clean();
}

#[test]
fn a_write_that_was_sent_to_two_primaries_is_handed_up_when_both_have_fenced_it() {
    let mut b = with_timeout();
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b.lose(b.conn(1), Reason::PeerClosed);
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    b.up(2);
    assert_eq!(b.sequences(2), [1]);
    b.pass(Span::seconds(1));
    b.pass(Span::millis(100));
    b.up(2);
    assert_eq!(b.results(), [], "the first one may still be primary");
    b.up(1);
    assert_eq!(b.results(), [(1, Err(BlockError::TimedOut))]);
    b.assert_clean();
}

#[test]
fn a_refused_write_that_was_lost_elsewhere_is_fenced_there_first() {
    let mut b = bench(&[(1, 1)]);
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b.lose(b.conn(1), Reason::PeerClosed);
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    b.up(2);
    b.answer(2, 0, Status::Denied, b"");
    assert_eq!(b.results(), []);
    b.pass(RECONNECT_MAX);
    b.up(1);
    assert_eq!(b.results(), [(1, Err(BlockError::Denied))]);
    b.assert_clean();
}

/// A request over two shards: its first part is refused, and the other one lost only much later.
#[test]
fn what_is_lost_long_after_its_request_failed_is_fenced_all_the_same() {
    let mut b = bench(&[(1, 1), (1, 2)]);
    b.write(1, SHARD - 4096, &[1; 8192]);
    b.turn();
    b.up(1);
    b.up(2);
    b.answer(1, 0, Status::NoSpace, b"");
    b.pass(Span::seconds(10));
    b.lose(b.conn(2), Reason::PeerClosed);
    b.turn();
    assert_eq!(b.results(), [], "its node may still have it");
    b.pass(RECONNECT_MAX);
    b.up(2);
    assert_eq!((b.results(), b.engine.counters.unfenced), (vec![(1, Err(BlockError::NoSpace))], 0));
    b.assert_clean();
}

#[test]
fn the_timeout_cuts_what_is_left_of_a_request_that_has_failed_before() {
    let settings = Settings { io_timeout: Some(Span::seconds(1)), ..SETTINGS };
    let mut b = Bench::new(&[(1, 1), (1, 2)], settings);
    b.write(1, SHARD - 4096, &[1; 8192]);
    b.turn();
    b.up(1);
    b.up(2);
    b.answer(1, 0, Status::NoSpace, b"");
    b.pass(Span::seconds(1));
    b.pass(RECONNECT_MAX);
    b.up(2);
    assert_eq!((b.results(), b.engine.counters.timed_out), (vec![(1, Err(BlockError::NoSpace))], 0));
    b.assert_clean();
}

#[test]
fn a_timed_out_write_to_a_process_that_was_replaced_is_fenced() {
    let mut b = with_timeout();
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b.pass(Span::seconds(1));
    b.engine.map(b.now, &map(&[(1, 2)]));
    b.turn();
    assert_eq!(b.results(), [(1, Err(BlockError::TimedOut))]);
    b.assert_clean();
}

#[test]
fn what_was_never_sent_times_out_at_once() {
    let mut b = with_timeout();
    b.write(1, 0, &[1; 512]);
    b.turn();
    let due = b.now + Span::seconds(1);
    while b.now < due {
        assert_eq!(b.results(), []);
        b.now = b.engine.next_deadline().unwrap();
        b.turn();
    }
    assert_eq!(b.now, due);
    assert_eq!(b.results(), [(1, Err(BlockError::TimedOut))]);
    b.assert_clean();
}
