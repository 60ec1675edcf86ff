//! Ranges of a shared volume: nothing touches them before they are held, after each loss of a connection or primary again.

use super::fake::{Bench, SETTINGS};
use super::{SHARD, map};
use crate::claims::{Claims, Holding, Range};
use crate::limits::{MOVE_GRACE, RECONNECT_MAX, RETRY_MAX};
use crate::request::{BlockError, BlockOp};
use conductor_model::Bytes;
use driver::Span;
use node_protocol::{Status, op};
use wire::Reason;

const BLOCK: u64 = 4096;

fn range(from: u64, blocks: u64, write: bool) -> Range {
    Range { offset: Bytes(from), len: Bytes(blocks * BLOCK), write }
}

fn bench(shards: &[(u64, u16)], ranges: &[Range], patience: Span) -> Bench {
    let mut b = Bench::new(shards, SETTINGS);
    let size = Bytes(shards.len() as u64 * SHARD);
    b.engine.claims = Claims::new(ranges, patience, size, Bytes(SHARD)).unwrap();
    b.turn();
    b
}

/// What is asked on the connection to a port: first block, for writing, held before.
fn asked(b: &Bench, port: u16) -> Vec<(u32, bool, bool)> {
    let ranges = b.posted(port).iter().filter_map(|p| p.range);
    ranges.map(|r| (r.range().from.0, r.is_for_writing(), r.was_held_before())).collect()
}

fn held(b: &Bench) -> Option<Holding> {
    b.engine.claims.holding()
}

#[test]
fn what_touches_a_range_waits_until_it_is_held_and_what_does_not_goes_on() {
    let mut b = bench(&[(1, 1)], &[range(0, 4, true), range(8 * BLOCK, 4, false)], Span(0));
    assert!(b.has_conn(1), "without a request");
    b.write(1, 0, &[1; 4096]);
    b.submit(2, BlockOp::Read, 9 * BLOCK, 2);
    b.submit(3, BlockOp::Read, 5 * BLOCK, 2);
    b.turn();
    b.up(1);
    assert_eq!(asked(&b, 1), [(0, true, false), (8, false, false)]);
    let ops: Vec<_> = b.posted(1).iter().map(|p| p.op).collect();
    assert_eq!(ops, [op::REGISTER_RANGE, op::REGISTER_RANGE, op::READ], "beside them nothing waits");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!((b.posted(1).last().unwrap().op, held(&b)), (op::WRITE, Some(Holding::Waits)));
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(held(&b), Some(Holding::All));
    for data in [&b"ab"[..], b"", b"cd"] {
        b.answer(1, 0, Status::Ok, data);
    }
    assert_eq!(b.results().len(), 3);
    for (tag, from, blocks) in [(4, 4, 1), (5, 3, 2), (6, 8, 1)] {
        b.write(tag, from * BLOCK, &vec![1; blocks * 4096]);
        b.turn();
        assert_eq!(b.results().last(), Some(&(tag, Err(BlockError::NotHeld))), "no request goes out for it");
    }
    b.assert_clean();
}

#[test]
fn after_a_lost_connection_it_is_held_again_before_anything_goes_on() {
    let mut b = bench(&[(1, 1)], &[range(0, 4, true)], Span(0));
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    b.write(1, 0, &[1; 512]);
    b.turn();
    assert_eq!(b.posted(1).len(), 1);
    b.lose(b.conn(1), Reason::Io);
    b.pass(RECONNECT_MAX);
    b.up(1);
    assert_eq!((asked(&b, 1), b.posted(1).len()), (vec![(0, true, true)], 1), "the write waits");
    b.answer(1, 0, Status::Later, b"");
    b.pass(RETRY_MAX);
    assert_eq!(b.posted(1).len(), 1);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.posted(1)[0].op, op::WRITE);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.assert_clean();
}

#[test]
fn the_next_primary_is_told_before_anything_goes_on_even_if_nothing_is_asked_for() {
    let mut b = bench(&[(1, 1)], &[range(0, 4, true)], Span(0));
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    b.up(2);
    assert_eq!(asked(&b, 2), [(0, true, true)]);
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(b.posted(2)[0].op, op::WRITE);
    // Another epoch under the same primary: it is told, too.
    b.engine.map(b.now, &map(&[(3, 2)]));
    b.answer(2, 0, Status::StaleEpoch, b"");
    b.pass(RETRY_MAX);
    assert_eq!((asked(&b, 2), b.posted(2).len()), (vec![(0, true, true)], 1));
    b.answer(2, 0, Status::Ok, b"");
    b.pass(MOVE_GRACE);
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.assert_clean();
}

#[test]
fn the_primary_tells_its_epoch_to_who_asks_for_a_range_where_no_map_does() {
    let mut b = bench(&[(3, 1)], &[range(0, 4, true), range(8 * BLOCK, 4, false)], Span(0));
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    b.lose(b.conn(1), Reason::Io);
    b.write(1, 0, &[1; 512]);
    b.pass(RECONNECT_MAX);
    b.up(1);
    b.answer_stale(1, 0, 5, 0);
    let epochs: Vec<_> = b.posted(1).iter().filter_map(|p| p.range).map(|r| r.epoch.get()).collect();
    assert_eq!(epochs, [3, 5], "at once");
    b.answer_stale(1, 0, 5, 0);
    b.pass(RETRY_MAX);
    assert_eq!(asked(&b, 1), [(0, true, true), (8, false, true)]);
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!((held(&b), b.posted(1)[0].body.epoch.get()), (Some(Holding::All), 5));
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.assert_clean();
}

#[test]
fn what_was_held_and_finds_no_room_is_asked_for_again() {
    let mut b = bench(&[(1, 1)], &[range(0, 4, true)], Span(0));
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    b.up(2);
    b.answer(2, 0, Status::TooMany, b"");
    assert_eq!(held(&b), Some(Holding::Waits));
    b.pass(RETRY_MAX);
    assert_eq!(asked(&b, 2), [(0, true, true)]);
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(held(&b), Some(Holding::All));
}

#[test]
fn what_another_client_has_fails_from_then_on_and_the_rest_goes_on() {
    let mut b = bench(&[(1, 1)], &[range(0, 4, true), range(8 * BLOCK, 4, true)], Span(0));
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    b.lose(b.conn(1), Reason::Io);
    b.write(1, 0, &[1; 512]);
    b.write(2, 8 * BLOCK, &[1; 512]);
    b.pass(RECONNECT_MAX);
    b.up(1);
    b.answer(1, 0, Status::RangeTaken, b"");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!((b.results(), held(&b)), (vec![(1, Err(BlockError::RangeLost))], Some(Holding::Lost)));
    b.answer(1, 0, Status::Ok, b"");
    b.submit(3, BlockOp::Read, BLOCK, 2);
    b.turn();
    assert_eq!(b.results()[1..], [(2, Ok(0)), (3, Err(BlockError::RangeLost))]);
    // It is not asked for any more: what it holds may have changed.
    b.lose(b.conn(1), Reason::Io);
    b.pass(RECONNECT_MAX);
    b.up(1);
    assert_eq!(asked(&b, 1), [(8, true, true)]);
    assert_eq!(held(&b), Some(Holding::Lost));
}

#[test]
fn it_is_waited_for_as_long_as_was_asked() {
    let mut b = bench(&[(1, 1)], &[range(0, 4, true)], Span::seconds(30));
    b.up(1);
    assert_eq!(b.posted(1)[0].range.unwrap().wait_ms(), 30_000);
    b.pass(Span::seconds(20));
    b.answer(1, 0, Status::RangeTaken, b"");
    b.pass(RETRY_MAX);
    let left = b.posted(1)[0].range.unwrap().wait_ms();
    assert!((9_000..=10_000).contains(&left), "{left}");
    b.pass(Span::seconds(10));
    b.answer(1, 0, Status::RangeTaken, b"");
    assert_eq!(held(&b), Some(Holding::Lost));
}

#[test]
fn a_connection_makes_no_room_for_a_better_way_while_ranges_are_held_through_it() {
    for claims in [&[range(0, 4, true)][..], &[]] {
        let mut b = Bench::new(&[(1, 1)], SETTINGS);
        if !claims.is_empty() {
            b.engine.claims = Claims::new(claims, Span(0), Bytes(SHARD), Bytes(SHARD)).unwrap();
        }
        b.write(1, 0, &[1; 4096]);
        b.turn();
        b.up(1);
        while !b.posted(1).is_empty() {
            b.answer(1, 0, Status::Ok, b"");
        }
        let conn = b.conn(1);
        b.engine.make_room(b.now, conn);
        b.turn();
        let stays = b.has_conn(1) && b.conn(1) == conn;
        assert_eq!(stays, !claims.is_empty(), "without a connection they would be another client's: {claims:?}");
    }
}
