//! An attachment with a limit: what comes early waits until it may be sent.

use super::fake::{Bench, SETTINGS};
use super::map;
use crate::engine::Settings;
use crate::pace::{Limits, Pace};
use crate::request::BlockOp;
use driver::Span;
use node_protocol::Status;
use std::num::NonZeroU64;
use std::sync::Arc;

/// One request a second.
fn bench(io_timeout: Option<Span>) -> Bench {
    let mut b = Bench::new(&[(1, 1)], Settings { io_timeout, ..SETTINGS });
    let limits = Limits { iops: NonZeroU64::new(1), bandwidth: None };
    b.engine.pace = Pace::new(limits).map(Arc::new);
    b
}

#[test]
fn what_comes_early_waits_to_be_admitted_whatever_the_map_says_and_times_out_from_then_on() {
    let mut b = bench(Some(Span::seconds(1)));
    for tag in 0..3 {
        assert!(b.submit(tag, BlockOp::Read, 0, 4));
    }
    assert!(b.submit(3, BlockOp::Flush, 0, 0), "it is free, and there is nothing to flush");
    b.turn();
    b.up(1);
    assert_eq!((b.posted(1).len(), b.completions.len()), (1, 1), "one a second");
    b.answer(1, 0, Status::Ok, b"once");
    b.engine.map(b.now, &map(&[(2, 1)]));
    b.pass(Span::millis(850));
    assert!(b.posted(1).is_empty(), "a newer epoch admits nothing");
    b.pass(Span::millis(50));
    assert_eq!(b.posted(1).len(), 1, "a tenth of a second's worth was free");
    b.answer(1, 0, Status::Ok, b"more");
    b.pass(Span::millis(999));
    assert_eq!(b.completions.len(), 3, "the third, of 1.9 s ago, does not time out before it is admitted");
    b.pass(Span::millis(1));
    b.answer(1, 0, Status::Ok, b"more");
    assert_eq!(b.completions.pop().unwrap(), (2, Ok(b"more".to_vec())));
    b.assert_clean();
}

#[test]
fn whatever_asks_a_node_for_something_is_a_request() {
    let mut b = bench(None);
    let asks = [BlockOp::Read, BlockOp::Extents, BlockOp::WriteZeroes, BlockOp::Discard, BlockOp::Read];
    for (tag, op) in (0..).zip(asks) {
        assert!(b.submit(tag, op, 0, 4096));
    }
    b.turn();
    b.up(1);
    for asked in 1..=5 {
        assert_eq!(b.posted(1).len(), asked, "one a second");
        b.pass(Span::seconds(1));
    }
}

#[test]
fn what_waits_to_be_admitted_asks_for_no_map_and_does_not_wait_once_the_client_ends() {
    let mut b = bench(None);
    for tag in 0..5 {
        assert!(b.submit(tag, BlockOp::Read, 0, 4));
    }
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Ok, b"once");
    b.pass(Span::millis(950));
    b.answer(1, 0, Status::Ok, b"more");
    b.pass(Span::millis(800));
    assert!(b.posted(1).is_empty() && !b.engine.wants_map(b.now), "submitted long ago");
    b.pass(Span::millis(200));
    assert_eq!(b.posted(1).len(), 1);
    b.pass(Span::millis(900));
    assert!(!b.engine.wants_map(b.now), "not sent for long");
    b.engine.give_up_pace();
    b.turn();
    assert_eq!(b.posted(1).len(), 3, "the rest goes at once");
    b.pass(Span::seconds(2));
    assert!(b.engine.wants_map(b.now), "nobody answers");
    (0..3).for_each(|_| b.answer(1, 0, Status::Ok, b"more"));
    assert_eq!(b.completions.len(), 5);
    b.assert_clean();
}
