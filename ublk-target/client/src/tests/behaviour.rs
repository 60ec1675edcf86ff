//! What the engine does, one behaviour at a time.

use super::fake::{Bench, SETTINGS};
use super::{SHARD, map};
use crate::engine::Settings;
use crate::iocb::{Stage, why};
use crate::limits::{BUSY_ASKED, MAP_MAX, MAX_LINKS, MOVE_GRACE, RECONNECT_MAX, RETRY_MAX};
use crate::request::{BlockError, BlockOp};
use conductor_model::api::VolumeMap;
use conductor_model::{BlockRange, Blocks, Bytes};
use driver::{Span, Time};
use node_protocol::{ExtentsAnswer, Status, op};
use wire::Reason;

fn bench(shards: &[(u64, u16)]) -> Bench {
    Bench::new(shards, SETTINGS)
}

#[test]
fn a_read_over_two_shards_comes_back_in_order_whatever_order_it_is_answered_in() {
    let mut b = bench(&[(1, 1), (1, 2)]);
    b.submit(7, BlockOp::Read, SHARD - 3, 8);
    b.turn();
    b.up(2);
    b.answer(2, 0, Status::Ok, b"defgh");
    assert_eq!(b.completions, []);
    b.up(1);
    assert_eq!(b.posted(1)[0].body.offset.get(), SHARD - 3);
    b.answer(1, 0, Status::Ok, b"abc");
    assert_eq!(b.completions, [(7, Ok(b"abcdefgh".to_vec()))]);
    b.assert_clean();
}

#[test]
fn a_write_over_two_shards_sends_each_its_own_bytes() {
    let mut b = bench(&[(1, 1), (1, 1)]);
    let bytes: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
    b.write(1, SHARD - 5000, &bytes);
    b.turn();
    b.up(1);
    assert_eq!((b.posted(1)[0].op, b.posted(1)[1].op), (op::WRITE, op::WRITE));
    assert_eq!([&b.posted(1)[0].data[..], &b.posted(1)[1].data[..]].concat(), bytes);
    b.answer(1, 1, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.assert_clean();
}

#[test]
fn known_checksums_are_used_and_not_computed_again() {
    let mut b = bench(&[(1, 1)]);
    let bytes = vec![3; 5000];
    let BlockOp::Write { data, .. } = b.data(&bytes) else { panic!() };
    let crcs = wire::pieces(&bytes);
    // The fake checks them against the bytes; a shorter request does not use the CRC of the longer last piece.
    b.submit(1, BlockOp::Write { data: data.share(), crcs: Some(crcs.clone()) }, 0, 5000);
    b.submit(2, BlockOp::Write { data, crcs: Some(crcs) }, 8192, 4500);
    b.turn();
    b.up(1);
    assert_eq!(b.posted(1).len(), 2);
}

#[test]
fn unaligned_zeroes_have_written_edges_and_a_discard_only_whole_blocks() {
    let mut b = bench(&[(1, 1)]);
    b.submit(1, BlockOp::WriteZeroes, 4000, 9000);
    b.submit(2, BlockOp::Discard, 4000, 9000);
    b.submit(3, BlockOp::Discard, 1, 8190);
    b.turn();
    assert_eq!(b.results(), [(3, Ok(0))], "nothing inside");
    b.up(1);
    let seen: Vec<_> = b.posted(1).iter().map(|p| (p.op, p.body.offset.get(), p.body.len(), p.data.len())).collect();
    let wanted = [
        (op::WRITE, 4000, 96, 96),
        (op::WRITE_ZEROES, 4096, 8192, 0),
        (op::WRITE, 12288, 712, 712),
        (op::DISCARD, 4096, 8192, 0),
    ];
    assert_eq!(seen, wanted);
    assert!(b.posted(1).iter().all(|p| p.data.iter().all(|byte| *byte == 0)));
}

#[test]
fn what_needs_no_node_completes_without_one() {
    let mut b = bench(&[(1, 1)]);
    b.submit(1, BlockOp::Flush, 0, 0);
    b.submit(2, BlockOp::Read, SHARD, 0);
    b.submit(3, BlockOp::Read, SHARD, 1);
    b.submit(4, BlockOp::Read, u64::MAX, 2);
    b.submit(5, BlockOp::Read, SHARD - 1, 2);
    let short = b.data(&[1; 10]);
    b.submit(6, short, 0, 11);
    b.turn();
    let out = Err(BlockError::OutOfRange);
    assert_eq!(b.results(), [(1, Ok(0)), (2, Ok(0)), (3, out), (4, out), (5, out), (6, Err(BlockError::BadLength))]);
    assert!(b.net.conns.is_empty());
    b.assert_clean();
    let mut b = Bench::new(&[(1, 1)], Settings { read_only: true, ..SETTINGS });
    b.submit(1, BlockOp::Discard, 0, 4096);
    b.turn();
    assert_eq!(b.results(), [(1, Err(BlockError::ReadOnly))]);
}

#[test]
fn an_iocb_is_held_by_what_is_posted_and_released_once() {
    let mut b = bench(&[(1, 1)]);
    b.write(1, 0, &[1; 4096]);
    b.submit(2, BlockOp::Discard, 4096, 4096);
    b.turn();
    let refs = |b: &Bench| {
        let mut lines: Vec<_> = b.engine.table.report().iter().map(ToString::to_string).collect();
        lines.sort();
        lines
    };
    assert_eq!(refs(&b), ["client-iocb 0: 1 front end", "client-iocb 1: 1 front end"]);
    b.up(1);
    let posted = "1 front end + 1 command";
    assert_eq!(
        refs(&b),
        [format!("client-iocb 0: {posted} + 1 data + 1 reply"), format!("client-iocb 1: {posted} + 1 reply")]
    );
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(refs(&b), [""; 0]);
    assert_eq!(b.engine.table.total::<why::Reply>(), 0);
    b.assert_clean();
}

#[test]
fn what_a_lost_connection_carried_is_sent_again_in_its_order_after_the_next_acknowledgement() {
    let mut b = bench(&[(1, 1)]);
    (0..5).for_each(|tag| assert!(b.write(tag, tag * 4096, &[tag as u8; 4096])));
    b.turn();
    b.up(1);
    b.answer(1, 1, Status::Ok, b"");
    b.lose(b.conn(1), Reason::PeerClosed);
    b.write(9, 40960, &[9; 512]);
    b.turn();
    assert!(!b.has_conn(1), "back-off first");
    b.pass(RECONNECT_MAX);
    assert!(b.posted(1).is_empty(), "nothing before HelloAck");
    b.up(1);
    assert_eq!(b.sequences(1), [1, 3, 4, 5, 6]);
    assert_eq!(b.posted(1)[1].data, [2; 4096]);
    (0..5).for_each(|_| b.answer(1, 0, Status::Ok, b""));
    assert_eq!(b.completions.len(), 6);
    assert_eq!(b.engine.counters.resent, 4);
    b.assert_clean();
}

#[test]
fn a_stale_epoch_asks_for_a_map_and_goes_on_under_the_new_epoch() {
    let mut b = bench(&[(1, 1)]);
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::StaleEpoch, b"");
    assert!(b.engine.wants_map(b.now));
    assert!(!b.engine.wants_map(b.now), "a bounded rate");
    b.engine.map(b.now, &map(&[(2, 2)]));
    b.turn();
    assert!(!b.has_conn(1), "nobody needs the old endpoint any more");
    b.up(2);
    assert_eq!((b.posted(2)[0].body.epoch.get(), b.sequences(2)), (2, vec![1]));
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
    b.assert_clean();
}

#[test]
fn the_primary_that_is_known_tells_its_epoch_where_no_map_does() {
    let mut b = bench(&[(3, 1), (3, 1)]);
    b.write(1, 0, &[1; 512]);
    b.write(2, SHARD, &[2; 512]);
    b.turn();
    b.up(1);
    b.answer_stale(1, 0, 5, 0);
    let epochs = |b: &Bench| b.posted(1).iter().map(|p| p.body.epoch.get()).collect::<Vec<_>>();
    assert_eq!((epochs(&b), b.sequences(1)), (vec![3, 5], vec![2, 1]), "at once, and no other shard's");
    assert!(b.engine.wants_map(b.now), "one map tells of all shards");
    b.now = b.now + MAP_MAX;
    // Neither an epoch of the past nor none at all is one to go on under, and a map that is older changes nothing.
    b.engine.map(b.now, &map(&[(3, 1), (3, 1)]));
    b.answer_stale(1, 1, 4, 0);
    assert!(b.engine.wants_map(b.now));
    b.answer_stale(1, 0, 0, 0);
    assert_eq!(b.posted(1).len(), 0);
    b.engine.map(b.now, &map(&[(6, 1), (4, 1)]));
    b.turn();
    let mut sent: Vec<_> = b.posted(1).iter().map(|p| (p.body.epoch.get(), p.body.sequence.get())).collect();
    sent.sort_unstable();
    assert_eq!(sent, [(4, 2), (6, 1)]);
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    b.assert_clean();
}

#[test]
fn a_stale_epoch_without_a_newer_map_is_tried_again_and_again() {
    let mut b = bench(&[(1, 1)]);
    b.write(1, 0, &[1; 512]);
    b.turn();
    b.up(1);
    let mut asked = 0;
    for _ in 0..10 {
        b.answer(1, 0, Status::StaleEpoch, b"");
        asked += u32::from(b.engine.wants_map(b.now));
        let before = b.engine.next_deadline().unwrap();
        assert!(before <= b.now + RETRY_MAX);
        b.pass(RETRY_MAX);
        assert_eq!(b.sequences(1), [1]);
    }
    assert!((2..10).contains(&asked), "{asked}: at a bounded rate");
    b.answer(1, 0, Status::Ok, b"");
    b.assert_clean();
}

#[test]
fn later_comes_again_after_a_while_on_the_same_connection() {
    let mut b = bench(&[(5, 1)]);
    b.submit(1, BlockOp::Read, 0, 4);
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Later, b"");
    assert!(b.posted(1).is_empty() && !b.engine.wants_map(b.now));
    b.now = b.engine.next_deadline().unwrap();
    b.turn();
    b.answer(1, 0, Status::Ok, b"abcd");
    assert_eq!(b.results(), [(1, Ok(4))]);
    b.assert_clean();
}

#[test]
fn a_moved_shard_waits_for_the_old_connection_to_answer_or_closes_it() {
    let mut b = bench(&[(1, 1), (1, 1)]);
    b.write(1, 0, &[1; 512]);
    b.write(2, 512, &[2; 512]);
    b.turn();
    b.up(1);
    b.engine.map(b.now, &map(&[(2, 2), (1, 1)]));
    b.write(3, 1024, &[3; 512]);
    b.turn();
    b.up(2);
    assert_eq!((b.sequences(1), b.sequences(2)), (vec![1, 2], vec![3]));
    b.answer(1, 0, Status::Ok, b"");
    b.pass(MOVE_GRACE);
    assert!(!b.has_conn(1), "closed: it still owed an answer");
    assert_eq!(b.sequences(2), [3, 2]);
    assert_eq!(b.engine.counters.drained, 1);
    b.answer(2, 0, Status::Ok, b"");
    b.answer(2, 0, Status::Ok, b"");
    b.assert_clean();
}

#[test]
fn errors_of_nodes_are_told_apart() {
    for (status, error, errno) in [
        (Status::NoSpace, BlockError::NoSpace, 28),
        (Status::Io, BlockError::Io, 5),
        (Status::Denied, BlockError::Denied, 13),
        (Status::OutOfRange, BlockError::Refused(Status::OutOfRange), 22),
        (Status::BadRequest, BlockError::Refused(Status::BadRequest), 22),
        (Status::Unsupported, BlockError::Refused(Status::Unsupported), 22),
    ] {
        let mut b = bench(&[(1, 1), (1, 1)]);
        // The second part is posted too: the request is over only when that is answered.
        b.write(1, SHARD - 512, &[1; 1024]);
        b.turn();
        b.up(1);
        b.answer(1, 0, status, b"");
        assert_eq!(b.results(), []);
        b.answer(1, 0, Status::Ok, b"");
        assert_eq!(b.results(), [(1, Err(error))]);
        assert_eq!(error.errno().0, errno);
        b.assert_clean();
    }
}

fn blocks(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

#[test]
fn extents_are_told_in_bytes_of_what_was_asked_for() {
    let mut b = bench(&[(1, 1), (1, 1)]);
    let ask = |b: &mut Bench, tag, offset, len, data: &[BlockRange], next| {
        b.submit(tag, BlockOp::Extents, offset, len);
        b.turn();
        if !b.net.conns.last().unwrap().up {
            b.up(1);
        }
        let wire = &b.posted(1)[0];
        assert_eq!(wire.op, op::EXTENTS);
        let asked = blocks(u32::try_from(wire.body.offset.get() / 4096).unwrap(), wire.body.len() / 4096);
        b.answer_body(1, 0, ExtentsAnswer::new(asked, data, Blocks(next)).bytes());
        let (of, told) = b.completions.pop().unwrap();
        assert_eq!(of, tag);
        String::from_utf8(told.unwrap()).unwrap()
    };
    let data = [blocks(1, 2), blocks(9, 1)];
    assert_eq!(ask(&mut b, 1, 0, 40_960, &data, 100), "hole 4096 data 8192 hole 24576 data 4096 ");
    assert_eq!(ask(&mut b, 2, 5000, 10_000, &data, 100), "data 7288 hole 2712 ");
    assert_eq!(ask(&mut b, 3, 4095, 2, &data, 100), "hole 1 data 1 ");
    assert_eq!(ask(&mut b, 4, 0, 2 * SHARD, &data, 4), "hole 4096 data 8192 hole 4096 ", "as far as is known");
    assert_eq!(ask(&mut b, 5, SHARD - 10, 20, &[], 4096), "hole 10 ", "one shard at a time");
    assert_eq!(ask(&mut b, 6, SHARD + 8192, 4096, &data, 100), "data 4096 ");
    b.assert_clean();
}

#[test]
fn behind_a_hole_the_next_question_for_extents_goes_twice_as_far_and_behind_data_it_does_not() {
    let map = VolumeMap { size: Bytes(8 << 30), shard_size: Bytes(8 << 30), ..map(&[(1, 1)]) };
    let mut b = Bench::of(&map, SETTINGS);
    let mut offset = 0;
    let mut ask = |data: &[BlockRange], known: u32| {
        b.submit(1, BlockOp::Extents, offset, 3 << 30);
        b.turn();
        if offset == 0 {
            b.up(1);
        }
        let len = b.posted(1)[0].body.len();
        let asked = blocks(u32::try_from(offset / 4096).unwrap(), len / 4096);
        let data: Vec<_> = data.iter().map(|run| blocks(asked.from.0 + run.from.0, run.count.0)).collect();
        b.answer_body(1, 0, ExtentsAnswer::new(asked, &data, Blocks(asked.from.0 + known)).bytes());
        b.completions.clear();
        offset += u64::from(len);
        len >> 20
    };
    let far: Vec<_> = (0..8).map(|_| ask(&[], u32::MAX / 2)).collect();
    assert_eq!(far, [16, 32, 64, 128, 256, 512, 1024, 1024]);
    assert_eq!(ask(&[blocks(9, 1)], u32::MAX / 2), 1024);
    assert_eq!(ask(&[], u32::MAX / 2), 16);
    assert_eq!(ask(&[], 7), 32, "a hole of 7 blocks, as far as is known");
    assert_eq!(ask(&[], u32::MAX / 2), 16);
    b.assert_clean();
}

#[test]
fn of_a_node_that_knows_no_extents_all_is_data() {
    let mut b = bench(&[(1, 1)]);
    b.submit(1, BlockOp::Extents, 100, 9000);
    b.submit(2, BlockOp::Extents, 0, 0);
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Unsupported, b"");
    b.completions.sort_by_key(|(tag, _)| *tag);
    assert_eq!(b.completions, [(1, Ok(b"data 9000 ".to_vec())), (2, Ok(Vec::new()))]);
    // What contradicts itself is no answer.
    b.submit(3, BlockOp::Extents, 0, 8192);
    b.turn();
    b.answer_body(1, 0, ExtentsAnswer::new(blocks(0, 3), &[blocks(1, 1)], Blocks(9)).bytes());
    assert!(!b.has_conn(1) && b.engine.counters.bad_replies == 1, "about more than was asked for");
    b.pass(RECONNECT_MAX);
    b.up(1);
    b.answer(1, 0, Status::Denied, b"");
    assert_eq!(b.results().last(), Some(&(3, Err(BlockError::Denied))));
    b.assert_clean();
}

#[test]
fn a_nonsensical_answer_closes_the_connection_and_fails_nothing() {
    let mut b = bench(&[(1, 1)]);
    b.submit(1, BlockOp::Read, 0, 4);
    for (nonsense, data) in [(Status::Ok, &b"abc"[..]), (Status::NotJoined, b""), (Status::Io, b"abcd")] {
        b.pass(RECONNECT_MAX);
        b.up(1);
        b.answer(1, 0, nonsense, data);
        assert!(!b.has_conn(1));
    }
    let nobody = driver::ConnId { slot: 99, generation: 0 };
    b.engine.answered(b.now, nobody, 99 << 32, None, &mut b.net);
    assert_eq!((b.engine.counters.bad_replies, b.engine.counters.stray_events), (3, 1));
    b.pass(RECONNECT_MAX);
    b.up(1);
    b.answer(1, 0, Status::Ok, b"abcd");
    assert_eq!(b.results(), [(1, Ok(4))]);
}

#[test]
fn more_than_depth_is_given_back_and_what_has_no_credit_waits_in_order() {
    let mut b = Bench::new(&[(1, 1)], Settings { depth: 4, ..SETTINGS });
    b.net.credits = 2;
    (0..4).for_each(|tag| assert!(b.write(tag, tag * 512, &[0; 512])));
    assert!(!b.write(4, 0, &[0; 512]), "given back");
    b.turn();
    b.up(1);
    assert_eq!(b.sequences(1), [1, 2]);
    b.answer(1, 1, Status::Ok, b"");
    assert_eq!(b.sequences(1), [1, 3]);
    assert!(b.write(4, 0, &[0; 512]));
    assert!(b.engine.counters.no_credit > 0 && b.engine.counters.refused_full == 1);
}

#[test]
fn a_shard_that_answers_nothing_leaves_credits_to_the_others_on_its_connection() {
    let mut b = Bench::new(&[(1, 1), (1, 1)], Settings { depth: 256, ..SETTINGS });
    b.net.credits = 128;
    (0..140).for_each(|tag| assert!(b.write(tag, tag % 64 * 512, &[0; 512])));
    b.turn();
    b.up(1);
    assert_eq!(b.posted(1).len(), 113);
    for tag in 140..240 {
        b.submit(tag, BlockOp::Read, SHARD, 2);
        b.turn();
        assert_eq!(b.posted(1).last().unwrap().op, op::READ, "it overtakes what the other shard has queued");
        b.answer(1, 113, Status::Ok, b"ab");
    }
    assert!(b.sequences(1).into_iter().eq(1..=113), "each of it in its order");
    (0..140).for_each(|_| b.answer(1, 0, Status::Ok, b""));
    assert_eq!(b.completions.len(), 240);
    b.assert_clean();
}

#[test]
fn a_shard_that_is_alone_on_its_connection_has_all_of_its_credits() {
    let mut b = Bench::new(&[(1, 1), (1, 2)], Settings { depth: 256, ..SETTINGS });
    b.net.credits = 128;
    (0..140).for_each(|tag| assert!(b.write(tag, tag % 64 * 512, &[0; 512])));
    b.turn();
    b.up(1);
    assert_eq!(b.posted(1).len(), 128);
    b.engine.map(b.now, &map(&[(1, 1), (2, 1)]));
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.posted(1).len(), 127, "it is not any more");
}

#[test]
fn what_nobody_waits_for_is_given_up_unless_it_changes_something_or_a_node_has_it() {
    let mut b = Bench::new(&[(1, 1), (1, 1)], SETTINGS);
    b.submit(1, BlockOp::Read, 0, 512);
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Later, b"");
    b.submit(2, BlockOp::Read, SHARD, 2);
    b.write(3, 0, &[1; 512]);
    b.turn();
    b.submit(4, BlockOp::Extents, 0, 4096);
    b.write(5, 0, &[1; 512]);
    b.submit(6, BlockOp::Read, 0, 512);
    b.engine.withdraw(b.now, &[1, 2, 3, 4, 5]);
    b.turn();
    assert_eq!(b.results(), [(1, Err(BlockError::Stopped)), (4, Err(BlockError::Stopped))]);
    b.answer(1, 0, Status::Ok, b"ab");
    assert_eq!(b.results()[2..], [(2, Err(BlockError::Stopped))], "its node had it");
    assert_eq!(b.posted(1).iter().map(|p| p.op).collect::<Vec<_>>(), [op::WRITE, op::WRITE, op::READ]);
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, &[0; 512]);
    assert_eq!(b.results()[3..], [(3, Ok(0)), (5, Ok(0)), (6, Ok(512))]);
    assert_eq!(b.engine.counters.withdrawn, 3);
    b.assert_clean();
}

#[test]
fn a_request_that_needs_memory_which_is_not_there_is_given_back() {
    let mut b = bench(&[(1, 1), (1, 1)]);
    let op = b.data(&[1; 1024]);
    let all: Vec<_> = std::iter::from_fn(|| b.arena.take(4096, memory::Class::Client)).collect();
    assert!(!b.submit(1, op, SHARD - 512, 1024));
    drop(all);
    assert!(b.write(1, SHARD - 512, &[1; 1024]));
}

#[test]
fn without_a_timeout_nothing_ever_fails() {
    let mut b = bench(&[(1, 1)]);
    b.write(1, 0, &[1; 512]);
    for _ in 0..100 {
        b.pass(RECONNECT_MAX);
        b.lose(b.conn(1), Reason::ConnectFailed);
    }
    assert_eq!(b.results(), []);
    b.pass(RECONNECT_MAX);
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
}

/// The node that knows why may have forgotten it when there is something to ask.
#[test]
fn whose_idle_connection_is_fenced_asks_at_once_whether_that_was_for_the_client() {
    for for_all in [false, true] {
        let mut b = bench(&[(1, 1)]);
        b.write(1, 0, &[1; 512]);
        b.turn();
        b.up(1);
        b.answer(1, 0, Status::Ok, b"");
        b.lose(b.conn(1), Reason::Fenced);
        b.pass(RECONNECT_MAX);
        if for_all {
            b.lose(b.conn(1), Reason::Fenced);
            b.write(2, 0, &[2; 512]);
            b.turn();
            assert_eq!(b.completions.last().unwrap().1, Err(BlockError::Fenced));
            b.pass(RECONNECT_MAX);
            b.pass(RECONNECT_MAX);
            assert!(!b.has_conn(1) && b.engine.next_deadline().is_none(), "that was the verdict");
        } else {
            b.up(1);
            b.lose(b.conn(1), Reason::PeerClosed);
            b.pass(RECONNECT_MAX);
            assert!(!b.has_conn(1), "nothing is wanted there");
        }
        b.assert_clean();
    }
}

#[test]
fn a_fenced_client_fails_everything_and_says_so() {
    let mut b = bench(&[(1, 1), (1, 2)]);
    b.write(1, 0, &[1; 512]);
    b.write(2, SHARD, &[1; 512]);
    b.turn();
    b.up(1);
    b.lose(b.conn(2), Reason::Fenced);
    b.turn();
    let fenced = Err(BlockError::Fenced);
    let mut results = b.results();
    results.sort_by_key(|(tag, _)| *tag);
    assert_eq!(results, [(1, fenced), (2, fenced)]);
    b.write(3, 0, &[1; 512]);
    b.turn();
    assert_eq!(b.results()[2], (3, fenced));
    assert!(b.net.conns.is_empty() && !b.engine.wants_map(b.now + RECONNECT_MAX));
    b.assert_clean();
}

#[test]
fn other_refusals_are_tried_again() {
    let mut b = bench(&[(1, 1)]);
    b.write(1, 0, &[1; 512]);
    for reason in [Reason::Busy, Reason::Unauthenticated, Reason::NotServed] {
        b.pass(RECONNECT_MAX);
        b.lose(b.conn(1), reason);
    }
    b.pass(RECONNECT_MAX);
    b.up(1);
    // A Fenced on an established connection may be about that one only: the next handshake tells.
    b.lose(b.conn(1), Reason::Fenced);
    b.pass(RECONNECT_MAX);
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0))]);
}

#[test]
fn a_volume_that_grew_is_used_at_once() {
    let mut b = bench(&[(1, 1)]);
    b.engine.map(b.now, &map(&[(1, 1), (1, 1)]));
    b.engine.map(b.now, &map(&[(1, 1)]));
    b.submit(1, BlockOp::Read, SHARD, 2);
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Ok, b"ab");
    assert_eq!(b.results(), [(1, Ok(2))]);
    assert_eq!(b.engine.counters.shrinking_maps, 1);
}

#[test]
fn the_stages_of_a_request_are_kept_in_order() {
    let mut b = bench(&[(1, 1)]);
    b.write(1, 8192, &[1; 4096]);
    b.pass(Span::millis(1));
    b.pass(Span::millis(1));
    b.up(1);
    b.now = b.now + Span::millis(1);
    b.answer(1, 0, Status::Ok, b"");
    let stages = b.engine.traces[0];
    assert_eq!((stages.sequence, stages.op, stages.offset.0, stages.len.0), (1, op::WRITE.0, 8192, 4096));
    let at: Vec<Time> = Stage::ALL.iter().map(|(stage, _)| stages.at[*stage as usize].unwrap()).collect();
    assert!(at.is_sorted() && at[0] < at[1] && at[1] < at[2]);
}

/// A volume on more reactors than there are connections at a time, and two requests for each.
fn wide(reactors: u16) -> Bench {
    let shards: Vec<(u64, u16)> = (1..=reactors).map(|port| (1, port)).collect();
    Bench::new(&shards, Settings { depth: 2 * usize::from(reactors), ..SETTINGS })
}

/// Nodes accept, each but one port answers one request, and 10 ms pass.
fn serve(b: &mut Bench, stuck: Option<u16>) {
    let coming: Vec<u16> = b.net.conns.iter().filter(|c| !c.up && c.closed.is_none()).map(|c| c.to.port()).collect();
    coming.into_iter().for_each(|port| b.up(port));
    let asked: Vec<u16> = b.net.conns.iter().filter(|c| !c.posted.is_empty()).map(|c| c.to.port()).collect();
    for port in asked.into_iter().filter(|port| Some(*port) != stuck) {
        b.answer(port, 0, Status::Ok, b"");
    }
    b.pass(Span::millis(10));
    let _map = b.engine.wants_map(b.now);
    assert!(b.engine.next_deadline().is_none_or(|at| at > b.now), "nothing is due that this turn did not do");
}

#[test]
fn a_volume_on_more_reactors_than_there_are_connections_is_served_and_who_rested_for_longest_makes_way() {
    let reactors = MAX_LINKS as u16 + 44;
    let mut b = wide(reactors);
    for shard in 0..reactors {
        b.write(shard.into(), u64::from(shard) * SHARD, &[1; 4096]);
        b.turn();
        serve(&mut b, None);
        assert_eq!(b.completions.len(), usize::from(shard) + 1, "{shard}");
    }
    // The first 44 made way for the last ones, and no other did.
    assert!((1..=44).all(|port| !b.has_conn(port)) && (45..=reactors).all(|port| b.has_conn(port)));
    assert_eq!(b.engine.counters.made_room, 44);
    b.assert_clean();
}

#[test]
fn connections_of_which_none_rests_take_turns_and_no_request_waits_for_ever() {
    let reactors = MAX_LINKS as u16 + 1;
    let mut b = wide(reactors);
    let mut done = vec![0; usize::from(reactors)];
    for tag in 0..2 * u64::from(reactors) {
        b.write(tag, tag % u64::from(reactors) * SHARD, &[1; 4096]);
    }
    b.turn();
    for _ in 0..300 {
        // One node has its writes wait for long; all others are asked again as soon as they have answered.
        serve(&mut b, Some(100));
        for (tag, result) in std::mem::take(&mut b.completions) {
            assert_eq!(result, Ok(Vec::new()));
            let shard = tag % u64::from(reactors);
            done[shard as usize] += 1;
            b.write(tag + 2 * u64::from(reactors), shard * SHARD, &[1; 4096]);
        }
    }
    let waits: Vec<usize> = (0..done.len()).filter(|&shard| done[shard] == 0).collect();
    assert_eq!(waits, [99], "all but the one that waits are served: {done:?}");
    while !b.engine.is_idle() {
        serve(&mut b, None);
    }
    b.assert_clean();
}

#[test]
fn of_those_that_do_not_rest_few_make_way_at_a_time_and_none_that_was_sent_nothing() {
    let reactors = MAX_LINKS as u16 + 64;
    let mut b = wide(reactors);
    for tag in 0..2 * u64::from(reactors) {
        b.write(tag, tag % u64::from(reactors) * SHARD, &[1; 4096]);
    }
    b.turn();
    let coming: Vec<u16> = b.net.conns.iter().map(|c| c.to.port()).collect();
    coming.into_iter().for_each(|port| b.up(port));
    // Nobody answers for a while.
    for _ in 0..5 {
        b.pass(Span::millis(1));
        let asked = b.engine.links.values().filter(|link| link.makes_room.is_some()).count();
        assert_eq!(asked, BUSY_ASKED);
    }
    while !b.engine.is_idle() {
        serve(&mut b, None);
    }
    assert_eq!((b.completions.len(), b.net.in_vain), (2 * usize::from(reactors), 0));
    b.assert_clean();
}
