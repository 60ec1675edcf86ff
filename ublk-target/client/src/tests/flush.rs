//! Volumes with `durability = flush` (rule 18): which shards a flush asks, for which lane's writes, and what FUA spares.

use super::fake::{Bench, SETTINGS};
use super::{SHARD, endpoint, map};
use crate::limits::{LANE_PARTS, RECONNECT_MAX, RETRY_MAX};
use crate::request::{BlockError, BlockOp, BlockRequest};
use crate::unflushed::Unflushed;
use conductor_model::api::VolumeMap;
use conductor_model::{Bytes, Commit, Durability, Epoch, SnapshotId};
use node_protocol::{Status, op};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::Reason;

const FLUSH: BlockOp = BlockOp::Flush;

fn flush_map(shards: &[(u64, u16)]) -> VolumeMap {
    VolumeMap { durability: Durability::Flush, ..map(shards) }
}

/// Lanes of one attachment, each connected to `ports`; nothing is unflushed any more.
fn lanes<const N: usize>(shards: &[(u64, u16)], ports: &[u16]) -> [Bench; N] {
    let unflushed = Arc::new(Unflushed::default());
    let mut lanes = [(); N].map(|()| Bench::of(&flush_map(shards), SETTINGS));
    for lane in &mut lanes {
        lane.engine.share(&unflushed);
        for shard in 0..shards.len() as u64 {
            lane.submit(99, BlockOp::Read, shard * SHARD, 1);
            lane.turn();
            if let Some(&port) =
                ports.iter().find(|&&port| lane.net.conns.iter().any(|c| c.to == endpoint(port) && !c.up))
            {
                lane.up(port);
            }
            lane.answer(shards[shard as usize].1, 0, Status::Ok, b"x");
            lane.completions.clear();
        }
    }
    lanes[0].submit(99, FLUSH, 0, 0);
    lanes[0].turn();
    for &port in ports {
        while !lanes[0].posted(port).is_empty() {
            lanes[0].answer(port, 0, Status::Ok, b"");
        }
    }
    lanes[0].completions.clear();
    lanes
}

fn lane(shards: &[(u64, u16)], ports: &[u16]) -> Bench {
    let [lane] = lanes(shards, ports);
    lane
}

/// Op and shard of what is posted.
fn asked(lane: &Bench, port: u16) -> Vec<(wire::Op, u32)> {
    lane.posted(port).iter().map(|p| (p.op, p.body.shard().index.0)).collect()
}

/// Submits and lets it be answered, if it asks anybody.
fn done(lane: &mut Bench, tag: u64, op: BlockOp, offset: u64, len: u64) {
    lane.submit(tag, op, offset, len);
    lane.turn();
    lane.answer(1, 0, Status::Ok, b"");
}

#[test]
fn the_first_flush_asks_every_shard_because_a_former_life_may_have_written_to_it() {
    let mut b = Bench::of(&flush_map(&[(1, 1), (3, 1), (1, 2)]), SETTINGS);
    b.submit(1, FLUSH, 0, 0);
    b.turn();
    b.up(1);
    b.up(2);
    assert_eq!((asked(&b, 1), asked(&b, 2)), (vec![(op::FLUSH, 0), (op::FLUSH, 1)], vec![(op::FLUSH, 2)]));
    let bodies =
        |b: &Bench| b.posted(1).iter().map(|p| (p.body.epoch.get(), p.body.len(), p.body.is_fua())).collect::<Vec<_>>();
    assert_eq!(bodies(&b), [(1, 0, false), (3, 0, false)]);
    b.answer(1, 0, Status::Ok, b"");
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(b.results(), [], "one shard has not answered");
    b.answer(1, 0, Status::Ok, b"");
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    assert_eq!(b.results(), [(1, Ok(0)), (2, Ok(0))], "the second one finds everything flushed");
    b.assert_clean();
}

#[test]
fn a_flush_asks_the_shards_that_were_changed_since_their_last_one() {
    let mut b = lane(&[(1, 1), (1, 1), (1, 1), (1, 1)], &[1]);
    let data = b.data(&[1; 512]);
    done(&mut b, 1, data, 0, 512);
    done(&mut b, 2, BlockOp::WriteZeroes, SHARD, 4096);
    done(&mut b, 3, BlockOp::Discard, 3 * SHARD, 4096);
    b.submit(4, BlockOp::Read, 2 * SHARD, 2);
    b.turn();
    b.answer(1, 0, Status::Ok, b"ab");
    b.write(5, 2 * SHARD, &[1; 512]);
    b.submit(6, FLUSH, 0, 0);
    b.turn();
    let flush = |shard| (op::FLUSH, shard);
    assert_eq!(
        asked(&b, 1),
        [(op::WRITE, 2), flush(0), flush(1), flush(3)],
        "what is not answered need not be durable"
    );
    (0..4).for_each(|_| b.answer(1, 0, Status::Ok, b""));
    b.submit(7, FLUSH, 0, 0);
    b.turn();
    assert_eq!(asked(&b, 1), [flush(2)]);
    b.answer(1, 0, Status::Ok, b"");
    b.assert_clean();
}

#[test]
fn a_flush_that_has_to_wait_does_not_ask_for_what_another_has_covered_meanwhile() {
    let mut b = Bench::of(&flush_map(&[(1, 1), (1, 1), (1, 1)]), SETTINGS);
    b.net.credits = 3;
    (1..=4).for_each(|tag| assert!(b.submit(tag, FLUSH, 0, 0)));
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    // Shard 2 was asked for the first one, and for none of the others: those of shards 0 and 1 were over before their turn came.
    assert_eq!(asked(&b, 1), [(op::FLUSH, 2), (op::FLUSH, 2)]);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0)), (3, Ok(0)), (4, Ok(0))], "the second is still asked for");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!((b.completions.len(), b.engine.counters.covered, b.engine.counters.sent), (4, 8, 4));
    b.assert_clean();
}

#[test]
fn a_flush_that_another_has_covered_tells_of_a_loss_all_the_same() {
    let mut b = Bench::of(&flush_map(&[(1, 1)]), SETTINGS);
    b.net.credits = 1;
    b.submit(1, FLUSH, 0, 0);
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    let mut lost = flush_map(&[(1, 1)]);
    lost.shards[0].cache = Commit(5);
    b.engine.map(b.now, &lost);
    b.up(1);
    // The node has no credit for the second one until the first was handed up.
    let first = b.net.conns[0].posted.remove(0);
    b.reply(b.net.conns[0].id, first.token, Status::Ok, b"");
    b.turn();
    b.net.conns[0].credits = 1;
    b.turn();
    assert_eq!(b.results(), [(1, Err(BlockError::CacheLost)), (2, Err(BlockError::CacheLost))]);
    assert_eq!(b.engine.counters.covered, 1);
    b.assert_clean();
}

#[test]
fn flushes_of_many_shards_wait_when_their_parts_are_many() {
    let shards = [(1, 1)].repeat(LANE_PARTS);
    let mut b = Bench::of(&flush_map(&shards), SETTINGS);
    assert!(b.submit(1, FLUSH, 0, 0), "alone it may have as many as it needs");
    assert!(!b.submit(2, FLUSH, 0, 0) && !b.submit(3, BlockOp::Read, 0, 1));
    assert_eq!(b.engine.parts.len(), LANE_PARTS);
}

#[test]
fn a_flush_covers_what_any_lane_has_written() {
    let [mut a, mut b] = lanes(&[(1, 1), (1, 1)], &[1]);
    let data = a.data(&[1; 512]);
    done(&mut a, 1, data, SHARD, 512);
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    assert_eq!(asked(&b, 1), [(op::FLUSH, 1)]);
    a.submit(3, FLUSH, 0, 0);
    a.turn();
    assert_eq!(asked(&a, 1), [(op::FLUSH, 1)], "the other lane's flush is not done");
    b.answer(1, 0, Status::Ok, b"");
    a.answer(1, 0, Status::Ok, b"");
    done(&mut b, 4, BlockOp::Discard, 0, 4096);
    a.submit(5, FLUSH, 0, 0);
    a.turn();
    assert_eq!(asked(&a, 1), [(op::FLUSH, 0)]);
    a.answer(1, 0, Status::Ok, b"");
    b.submit(6, FLUSH, 0, 0);
    b.turn();
    assert_eq!(b.results(), [(2, Ok(0)), (4, Ok(0)), (6, Ok(0))]);
    a.assert_clean();
    b.assert_clean();
}

#[test]
fn what_is_answered_while_a_flush_is_under_way_is_left_to_the_next_one() {
    let mut b = lane(&[(1, 1)], &[1]);
    done(&mut b, 1, BlockOp::Discard, 0, 4096);
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    b.submit(3, BlockOp::Discard, 0, 4096);
    b.turn();
    b.answer(1, 1, Status::Ok, b"");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results(), [(1, Ok(0)), (3, Ok(0)), (2, Ok(0))]);
    b.submit(4, FLUSH, 0, 0);
    b.turn();
    assert_eq!(asked(&b, 1), [(op::FLUSH, 0)]);
}

#[test]
fn a_flush_whose_connection_is_lost_is_asked_again_like_a_write() {
    let mut b = lane(&[(1, 1), (1, 1)], &[1]);
    done(&mut b, 1, BlockOp::Discard, 0, 4096);
    done(&mut b, 2, BlockOp::Discard, SHARD, 4096);
    b.submit(3, FLUSH, 0, 0);
    b.turn();
    let first = b.sequences(1);
    b.answer(1, 0, Status::Ok, b"");
    b.lose(b.conn(1), Reason::PeerClosed);
    b.pass(RECONNECT_MAX);
    assert!(b.posted(1).is_empty(), "not before the node has fenced the lost connection");
    b.up(1);
    assert_eq!((asked(&b, 1), b.sequences(1)), (vec![(op::FLUSH, 1)], vec![first[1]]));
    b.answer(1, 0, Status::StaleEpoch, b"");
    b.engine.map(b.now, &flush_map(&[(1, 1), (2, 2)]));
    b.turn();
    b.up(2);
    assert_eq!((asked(&b, 2), b.posted(2)[0].body.epoch.get()), (vec![(op::FLUSH, 1)], 2));
    assert_eq!(b.results().len(), 2, "the flush is not done");
    b.answer(2, 0, Status::Ok, b"");
    assert_eq!(b.results()[2], (3, Ok(0)));
    b.assert_clean();
}

#[test]
fn a_flush_that_failed_leaves_its_shard_unflushed() {
    let mut b = lane(&[(1, 1), (1, 1)], &[1]);
    done(&mut b, 1, BlockOp::Discard, 0, 4096);
    done(&mut b, 2, BlockOp::Discard, SHARD, 4096);
    b.submit(3, FLUSH, 0, 0);
    b.turn();
    b.answer(1, 1, Status::Io, b"");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[2], (3, Err(BlockError::Io)));
    b.submit(4, FLUSH, 0, 0);
    b.turn();
    assert_eq!(asked(&b, 1), [(op::FLUSH, 1)]);
    b.answer(1, 0, Status::Ok, b"");
    b.assert_clean();
}

#[test]
fn a_shard_that_the_volume_grew_by_is_flushed_too() {
    let mut b = lane(&[(1, 1)], &[1]);
    b.engine.map(b.now, &flush_map(&[(1, 1), (1, 1)]));
    done(&mut b, 1, BlockOp::Discard, SHARD, 4096);
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    assert_eq!(asked(&b, 1), [(op::FLUSH, 1)]);
}

/// The map of a shard whose copies were all opened anew.
fn after_a_loss(at: u64) -> VolumeMap {
    let mut map = flush_map(&[(2, 1), (1, 1)]);
    map.shards[0].cache = Commit(at);
    map
}

/// Who asked is gone when the answer comes: the next one to ask is told.
#[test]
fn a_loss_that_nobody_heard_of_is_told_again() {
    let mut b = lane(&[(1, 1), (1, 1)], &[1]);
    let flush = |b: &mut Bench, tag| {
        b.submit(tag, FLUSH, 0, 0);
        b.turn();
    };
    done(&mut b, 1, BlockOp::Discard, 0, 4096);
    flush(&mut b, 2);
    b.engine.withdraw(b.now, &[2]);
    b.answer(1, 0, Status::StaleEpoch, b"");
    b.engine.map(b.now, &after_a_loss(7));
    b.turn();
    assert_eq!(b.results()[1], (2, Err(BlockError::Stopped)));
    done(&mut b, 3, BlockOp::Discard, 0, 4096);
    flush(&mut b, 4);
    b.engine.withdraw(b.now, &[4]);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[3], (4, Err(BlockError::Stopped)));
    flush(&mut b, 5);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[4], (5, Err(BlockError::CacheLost)));
    // Its connection was gone.
    b.engine.loss_unheard();
    flush(&mut b, 6);
    assert_eq!(asked(&b, 1), [(op::FLUSH, 0)], "the other shard lost nothing");
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[5], (6, Err(BlockError::CacheLost)));
    flush(&mut b, 7);
    assert_eq!(b.results()[6], (7, Ok(0)));
    b.assert_clean();
}

#[test]
fn a_flush_fails_once_if_what_it_was_to_make_durable_may_be_lost() {
    let mut b = lane(&[(1, 1), (1, 1)], &[1]);
    done(&mut b, 1, BlockOp::Discard, 0, 4096);
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    // It finds another epoch there, and is sent again under that one.
    b.answer(1, 0, Status::StaleEpoch, b"");
    b.engine.map(b.now, &after_a_loss(7));
    b.turn();
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[1], (2, Err(BlockError::CacheLost)));
    done(&mut b, 3, BlockOp::Discard, 0, 4096);
    b.submit(4, FLUSH, 0, 0);
    b.turn();
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[3], (4, Ok(0)), "told once");
    b.assert_clean();
}

/// Two shards were changed, and lost it.
fn with_two_losses() -> Bench {
    let mut map = after_a_loss(7);
    (map.shards[1].epoch, map.shards[1].cache) = (Epoch(2), Commit(7));
    let mut b = lane(&[(1, 1), (1, 1)], &[1]);
    done(&mut b, 0, BlockOp::Discard, 0, 4096);
    done(&mut b, 1, BlockOp::Discard, SHARD, 4096);
    b.engine.map(b.now, &map);
    b
}

#[test]
fn a_loss_in_several_shards_is_told_once_by_a_flush_or_a_change_of_all_of_them() {
    for fua in [false, true] {
        let mut b = with_two_losses();
        for (tag, result) in [(2, Err(BlockError::CacheLost)), (3, Ok(0)), (4, Ok(0))] {
            match fua {
                true => b.ask(durable(tag, BlockOp::Discard, SHARD - 4096, 8192)),
                false => b.submit(tag, FLUSH, 0, 0),
            };
            b.turn();
            assert_eq!(b.posted(1).len(), if fua || tag == 2 { 2 } else { 0 }, "{tag}");
            while !b.posted(1).is_empty() {
                b.answer(1, 0, Status::Ok, b"");
            }
            assert_eq!(b.results().last(), Some(&(tag, result)), "fua {fua}");
        }
        assert_eq!(b.engine.counters.losses_told, 1);
        b.assert_clean();
    }
}

#[test]
fn a_flush_that_finds_a_loss_asks_the_other_shards_all_the_same_and_tells_of_all() {
    for withdrawn in [false, true] {
        let mut b = with_two_losses();
        b.submit(2, FLUSH, 0, 0);
        b.turn();
        assert_eq!(asked(&b, 1), [(op::FLUSH, 0), (op::FLUSH, 1)]);
        // The other shard is not served yet.
        b.answer(1, 1, Status::Later, b"");
        b.answer(1, 0, Status::Ok, b"");
        assert_eq!(b.results().len(), 2, "it is not over");
        if withdrawn {
            b.engine.withdraw(b.now, &[2]);
            b.turn();
            assert_eq!(b.results()[2], (2, Err(BlockError::Stopped)), "of which nobody hears");
        } else {
            b.pass(RETRY_MAX);
            assert_eq!(asked(&b, 1), [(op::FLUSH, 1)]);
            b.answer(1, 0, Status::Ok, b"");
            assert_eq!(b.results()[2], (2, Err(BlockError::CacheLost)));
        }
        b.submit(3, FLUSH, 0, 0);
        b.turn();
        while withdrawn && !b.posted(1).is_empty() {
            b.answer(1, 0, Status::Ok, b"");
        }
        assert_eq!(b.results()[3], (3, if withdrawn { Err(BlockError::CacheLost) } else { Ok(0) }));
        b.assert_clean();
    }
}

/// Another queue's, say.
#[test]
fn a_flush_that_began_later_tells_of_a_loss_too_while_nobody_has_heard_of_it() {
    for withdrawn in [false, true] {
        let mut b = lane(&[(1, 1), (1, 1)], &[1]);
        done(&mut b, 0, BlockOp::Discard, 0, 4096);
        done(&mut b, 1, BlockOp::Discard, SHARD, 4096);
        b.engine.map(b.now, &after_a_loss(7));
        b.submit(2, FLUSH, 0, 0);
        b.turn();
        b.answer(1, 1, Status::Later, b"");
        b.answer(1, 0, Status::Ok, b"");
        b.submit(3, FLUSH, 0, 0);
        b.turn();
        assert_eq!(asked(&b, 1), [(op::FLUSH, 0), (op::FLUSH, 1)]);
        b.answer(1, 0, Status::Ok, b"");
        b.answer(1, 0, Status::Ok, b"");
        assert_eq!(b.results()[2], (3, Err(BlockError::CacheLost)));
        if withdrawn {
            b.engine.withdraw(b.now, &[2]);
        }
        b.pass(RETRY_MAX);
        assert_eq!(b.results()[3], (2, Err(if withdrawn { BlockError::Stopped } else { BlockError::CacheLost })));
        b.submit(4, FLUSH, 0, 0);
        b.turn();
        assert_eq!(b.results()[4], (4, Ok(0)));
        b.assert_clean();
    }
}

#[test]
fn nothing_is_lost_of_a_shard_that_the_volume_grew_by_and_nobody_wrote_to() {
    let mut b = lane(&[(1, 1)], &[1]);
    b.engine.map(b.now, &flush_map(&[(1, 1), (1, 1)]));
    let mut map = flush_map(&[(1, 1), (2, 1)]);
    map.shards[1].cache = Commit(7);
    b.engine.map(b.now, &map);
    b.ask(durable(1, BlockOp::Discard, SHARD, 4096));
    b.turn();
    b.answer(1, 0, Status::Ok, b"");
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    assert_eq!(b.results(), [(1, Ok(0)), (2, Ok(0))]);
    b.assert_clean();
}

#[test]
fn a_loss_fails_no_flush_of_who_had_nothing_unflushed() {
    let mut b = lane(&[(1, 1), (1, 1)], &[1]);
    b.engine.map(b.now, &after_a_loss(7));
    done(&mut b, 1, BlockOp::Discard, 0, 4096);
    b.submit(2, FLUSH, 0, 0);
    b.turn();
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[1], (2, Ok(0)));
}

#[test]
fn a_change_with_fua_tells_a_loss_too_unless_every_change_had_it() {
    for write_through in [false, true] {
        let mut b = Bench::of(&flush_map(&[(1, 1), (1, 1)]), SETTINGS);
        if write_through {
            b.engine.write_through();
        }
        b.engine.map(b.now, &after_a_loss(7));
        b.ask(durable(1, BlockOp::Discard, 0, 4096));
        b.turn();
        b.up(1);
        b.answer(1, 0, Status::Ok, b"");
        let told = if write_through { Ok(0) } else { Err(BlockError::CacheLost) };
        assert_eq!(b.results()[0], (1, told), "its former life may have written");
    }
}

#[test]
fn a_loss_before_the_attachment_is_not_its_business() {
    let map = VolumeMap { held_since: Commit(7), ..after_a_loss(7) };
    let mut b = Bench::of(&map, SETTINGS);
    b.ask(durable(1, BlockOp::Discard, 0, 4096));
    b.turn();
    b.up(1);
    b.answer(1, 0, Status::Ok, b"");
    assert_eq!(b.results()[0], (1, Ok(0)));
}

fn durable(tag: u64, op: BlockOp, offset: u64, len: u64) -> BlockRequest {
    BlockRequest { tag, op, offset: Bytes(offset), len: Bytes(len), fua: true }
}

#[test]
fn a_change_with_fua_says_so_and_needs_no_flush() {
    let mut b = lane(&[(1, 1), (1, 1)], &[1]);
    let data = b.data(&[1; 1024]);
    b.ask(durable(1, data, SHARD - 512, 1024));
    b.ask(durable(2, BlockOp::WriteZeroes, 4000, 9000));
    b.ask(durable(3, BlockOp::Discard, 0, 4096));
    b.ask(durable(4, BlockOp::Read, 0, 2));
    b.turn();
    let fua: Vec<_> = b.posted(1).iter().map(|p| p.body.is_fua()).collect();
    assert_eq!(fua, [true, true, true, true, true, true, false], "all parts of changes");
    assert_eq!(b.posted(1)[0].body.len(), 512);
    (0..6).for_each(|_| b.answer(1, 0, Status::Ok, b""));
    b.answer(1, 0, Status::Ok, b"ab");
    b.submit(5, FLUSH, 0, 0);
    b.turn();
    assert_eq!(b.results()[4], (5, Ok(0)), "nothing to flush");
}

#[test]
fn where_nobody_flushes_every_change_has_fua() {
    let mut b = lane(&[(1, 1)], &[1]);
    b.engine.write_through();
    b.write(1, 0, &[1; 512]);
    b.submit(2, BlockOp::Discard, 4096, 4096);
    b.turn();
    assert!(b.posted(1).iter().all(|p| p.body.is_fua()));
}

#[test]
fn where_every_acknowledged_write_is_durable_nobody_is_asked() {
    let snapshot = VolumeMap { snapshot: Some(SnapshotId(1)), ..flush_map(&[(1, 1)]) };
    for map in [map(&[(1, 1)]), snapshot] {
        let mut b = Bench::of(&map, SETTINGS);
        b.engine.share(&Arc::default());
        b.submit(1, FLUSH, 0, 0);
        b.turn();
        assert_eq!(b.results(), [(1, Ok(0))]);
        assert!(b.net.conns.is_empty());
        let data = b.data(&[1; 512]);
        b.ask(durable(2, data, 0, 512));
        b.turn();
        b.up(1);
        assert!(!b.posted(1)[0].body.is_fua(), "it is durable anyway");
    }
}

/// Two lanes of one attachment and two nodes that keep what they execute in memory until a FLUSH, or FUA, makes it durable.
struct World {
    lanes: [Bench; 2],
    /// By shard: the tags of changes that were executed, and of those that are durable.
    written: [BTreeSet<u64>; 3],
    durable: [BTreeSet<u64>; 3],
    /// Lane, connection and sequence of what was executed and may not be answered.
    executed: BTreeSet<(usize, u32, u64)>,
    /// By tag: shard.
    changes: BTreeMap<u64, usize>,
    /// Changes that the front end knows of.
    acknowledged: BTreeSet<u64>,
    /// By tag: what was acknowledged when the flush was submitted.
    flushes: BTreeMap<u64, BTreeSet<u64>>,
    next: u64,
}

impl World {
    fn new() -> Self {
        Self {
            lanes: lanes(&[(1, 1), (1, 2), (1, 1)], &[1, 2]),
            written: Default::default(),
            durable: Default::default(),
            executed: BTreeSet::new(),
            changes: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            flushes: BTreeMap::new(),
            next: 0,
        }
    }

    fn step(&mut self, action: u8, at: usize, random: usize) {
        let lane = &mut self.lanes[at];
        self.next += 1;
        let tag = self.next;
        match action {
            0..=2 => {
                let shard = random % 3;
                // The data says which change it is.
                let data = lane.data(&tag.to_le_bytes());
                let fua = random.is_multiple_of(5);
                if lane.ask(BlockRequest { fua, ..durable(tag, data, shard as u64 * SHARD, 8) }) {
                    self.changes.insert(tag, shard);
                }
            }
            3 => {
                let known = self.acknowledged.clone();
                if lane.submit(tag, FLUSH, 0, 0) {
                    self.flushes.insert(tag, known);
                }
            }
            4 => {
                let port = 1 + (random % 2) as u16;
                if lane.has_conn(port) {
                    lane.lose(lane.conn(port), Reason::PeerClosed);
                }
            }
            _ => self.serve(at, random),
        }
        self.lanes[at].turn();
        self.check(at);
    }

    /// A node executes a random request of a lane; and answers it, or does so later, or loses the answer.
    fn serve(&mut self, at: usize, random: usize) {
        let lane = &mut self.lanes[at];
        let port = 1 + (random % 2) as u16;
        if !lane.has_conn(port) {
            return lane.pass(RECONNECT_MAX);
        }
        if !lane.net.conns.iter().any(|c| c.to == endpoint(port) && c.up) {
            return lane.up(port);
        }
        let posted = lane.posted(port);
        if posted.is_empty() {
            return;
        }
        let nth = random / 2 % posted.len();
        let request = &posted[nth];
        let shard = request.body.shard().index.0 as usize;
        let first = self.executed.insert((at, lane.conn(port).slot, request.body.sequence.get()));
        if !first {
            // Only its answer is due.
        } else if request.op == op::FLUSH {
            self.durable[shard] = self.written[shard].clone();
        } else {
            let tag = u64::from_le_bytes(request.data[..].try_into().unwrap());
            self.written[shard].insert(tag);
            if request.body.is_fua() {
                self.durable[shard].insert(tag);
            }
        }
        match random / 7 % 4 {
            0 => lane.lose(lane.conn(port), Reason::PeerClosed),
            2 => {}
            _ => lane.answer(port, nth, Status::Ok, b""),
        }
    }

    fn check(&mut self, at: usize) {
        for (tag, result) in std::mem::take(&mut self.lanes[at].completions) {
            assert_eq!(result, Ok(Vec::new()));
            match self.flushes.remove(&tag) {
                None => drop(self.acknowledged.insert(tag)),
                Some(known) => {
                    let lost = known.iter().find(|tag| !self.durable[self.changes[tag]].contains(tag));
                    assert_eq!(lost, None, "acknowledged before the flush, and not durable after it");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn after_a_flush_all_that_was_acknowledged_before_it_on_any_lane_is_durable(
        steps in proptest::collection::vec((0u8..=9, 0usize..2, any::<u16>()), 50..300),
    ) {
        let mut world = World::new();
        for (action, lane, random) in steps {
            world.step(action, lane, random.into());
        }
        for round in 0..10_000 {
            if world.flushes.is_empty() {
                break;
            }
            world.step(9, round % 2, 8 + round / 2 % 2);
        }
        assert!(world.flushes.is_empty(), "every flush ends");
    }
}
