//! A new epoch makes its copies equal for what was in flight, before it serves (rule 6): how much that is, and that it is so.

use crate::common::{Cluster, shard};
use conductor_model::{BLOCK, Durability};
use driver::Span;
use node_protocol::{Status, op};

/// 256 MiB: a thousand pieces of what settling reads at a time.
const BLOCKS: u32 = 65_536;
/// Blocks with data, here and there: two of them closer to each other than a piece is long.
const ISLANDS: [u32; 4] = [0, 20_000, 20_010, BLOCKS - 1];

fn cluster(seed: u64) -> (Cluster, sim::ProcessId) {
    let mut c = Cluster::new(seed);
    c.blocks = BLOCKS;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    (c, client)
}

fn discard(c: &mut Cluster, client: sim::ProcessId, from: u32, to: u32) -> u64 {
    c.ask(client, 1, op::DISCARD, u64::from(from) * BLOCK as u64, (to - from) << 12, Vec::new())
}

/// Every node is made primary in turn, and reads the same.
fn expect(c: &mut Cluster, blocks: &[(u32, u8)]) {
    for node in [1, 2, 0] {
        if c.primary(1) != node {
            c.promote(1, node);
        }
        let client = c.client(1, 0);
        for (at, of) in blocks {
            assert_eq!(c.read(client, 1, *at), *of, "block {at} on node {node}");
        }
    }
}

#[test]
fn what_was_discarded_is_settled_hole_by_hole_and_not_read() {
    let (mut c, client) = cluster(1);
    c.write(client, 1, 7, 1);
    // All at once: what comes later tells the copies that what came before is everywhere.
    let mut asked = Vec::new();
    for (n, at) in ISLANDS.iter().enumerate() {
        asked.push(c.start_write(client, 1, *at, 2));
        let next = ISLANDS.get(n + 1).copied();
        asked.extend(next.map(|next| discard(&mut c, client, at + 1, next)));
    }
    asked.into_iter().for_each(|token| assert_eq!(c.answer(token).0, Status::Ok));
    let counted = |c: &Cluster| (c.count("settle.hole"), c.count("settle.piece"));
    let before = counted(&c);
    c.promote(1, 1);
    let after = counted(&c);
    let (holes, pieces) = (after.0 - before.0, after.1 - before.1);
    // Two looks find a hole, three an island, whose piece is read then. Without looking it is 1,024 pieces.
    assert!(holes == 2 && pieces <= 8, "{holes} holes, {pieces} pieces");
    let islands: Vec<_> = ISLANDS.iter().map(|at| (*at, 2)).chain([(7, 0), (20_005, 0), (40_000, 0)]).collect();
    expect(&mut c, &islands);
}

#[test]
fn a_copy_that_missed_a_discard_has_no_old_data_once_it_is_settled() {
    let (mut c, client) = cluster(2);
    ISLANDS.iter().for_each(|at| c.write(client, 1, *at, 2));
    c.w.partition(c.nodes[0], c.nodes[2]);
    let token = discard(&mut c, client, 0, BLOCKS);
    c.run(Span::millis(300));
    assert!(!c.answers.contains_key(&token), "node 2 has not got it");
    assert_eq!(c.in_sync(1), [0, 1, 2]);
    c.promote(1, 1);
    c.w.heal_all();
    assert!(c.count("settle.hole") > 0);
    expect(&mut c, &ISLANDS.map(|at| (at, 0)));
    assert_eq!(c.configs[&shard(1)].in_sync_members().count(), 3);
}

/// What the epoch before still reads is waited for before anything is settled: a disk that hangs with it is noticed all the same.
#[test]
fn a_disk_that_hangs_before_the_first_piece_is_noticed() {
    let (mut c, client) = cluster(3);
    c.write(client, 1, 0, 1);
    c.holds_reads[0].set(true);
    let read = c.ask(client, 1, op::READ, 0, BLOCK as u32, Vec::new());
    c.run(Span::millis(50));
    c.w.kill(c.nodes[2]);
    c.until("an epoch without the third copy", |c| c.in_sync(1) == [0, 1]);
    c.until("it settles", |c| c.role(1).contains("settling"));
    c.until("noticed", |c| c.count("primary.hangs") > 0);
    c.holds_reads[0].set(false);
    c.until_serving(1);
    assert!(c.count("primary.recovered") > 0 && c.answers.contains_key(&read), "{}", c.picture());
}
