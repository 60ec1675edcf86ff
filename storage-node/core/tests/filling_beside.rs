//! A filling beside what else goes on: a snapshot that is taken meanwhile (rules 1 and 17), and the fillings of other shards.

use crate::common::{Cluster, shard};
use conductor_model::api::{Order, ShardOrder};
use conductor_model::{Bytes, CopyId, Durability, OrderId, SnapshotId};
use driver::Span;
use node_core::Mail;
use node_protocol::Status;
use sim::Latency;

/// Blocks of one chunk.
const CHUNK: u32 = 16;

/// The filling stands still while a barrier is placed, and its copy has what was written behind the barrier in its disk when it is given the
/// snapshot.
#[test]
fn what_is_written_behind_a_barrier_is_not_in_the_filled_copys_snapshot() {
    let mut late = 0;
    for seed in 0..4 {
        let mut c = Cluster::new(900 + seed);
        c.blocks = 210 * CHUNK;
        c.create(1, &[0, 1, 2], None, Durability::Always);
        let client = c.client(1, 0);
        (0..60).for_each(|at| c.write(client, 1, at * CHUNK, 1));
        c.w.kill(c.nodes[2]);
        c.until("left behind", |c| c.in_sync(1) == [0, 1]);
        for at in 0..20 {
            let client = c.client(1, 0);
            c.write(client, 1, at * CHUNK, 2);
        }
        let rate = |c: &mut Cluster, rate| (0..2).for_each(|node| c.mail(node, Mail::FillRate(rate)));
        rate(&mut c, Some(Bytes(0)));
        c.w.restart(c.nodes[2]);
        c.until("being filled", |c| c.count("fill.started") > 0);
        c.run(Span::millis(500));
        let client = c.client(1, 0);
        assert_eq!(c.read(client, 1, 40 * CHUNK), 1, "its connection is up");

        let slow = |c: &mut Cluster, node: usize, ms: u64| {
            let disk = c.disks[node];
            c.w.disk(disk).latency = Latency::micros(ms * 1000, 100);
        };
        slow(&mut c, 0, 120);
        let what = ShardOrder::Barrier { snapshot: SnapshotId(9), hold_ms: 4000 };
        c.orders(&[Order { id: OrderId(5), shard: shard(1), what }]);
        c.run(Span::millis(10));
        let behind = c.start_write(client, 1, 40 * CHUNK, 3);
        c.run(Span::millis(10));
        slow(&mut c, 2, 300);
        c.until("placed", |c| c.count("barrier.placed") > 0);
        c.run(Span::millis(5));
        slow(&mut c, 2, 1);
        slow(&mut c, 0, 1);
        c.run(Span::millis(600));
        rate(&mut c, None);
        c.orders(&[]);
        assert_eq!(c.answer(behind).0, Status::Ok);
        c.until_in_sync(1);
        assert_eq!(c.snapshots(1, 2), [SnapshotId(9)]);
        late += u32::from(c.count("fill.barrier-met") > 0);

        let snapshot = |c: &mut Cluster, node: usize| {
            c.promote(1, node);
            let reader = c.client(1, 9);
            c.read(reader, 1, 40 * CHUNK)
        };
        assert_eq!((snapshot(&mut c, 1), snapshot(&mut c, 2)), (1, 1), "seed {seed}");
        let live = c.client(1, 0);
        assert_eq!(c.read(live, 1, 40 * CHUNK), 3, "seed {seed}");
    }
    assert!(late > 0, "no filling was aimed anew");
}

#[test]
fn fillings_that_cannot_go_on_take_no_others_turn() {
    let mut c = Cluster::new(32);
    c.blocks = 20 * CHUNK;
    let stuck = 1..=4;
    for volume in stuck.clone() {
        c.create(volume, &[0, 1, 2], None, Durability::Always);
        let client = c.client(volume, 0);
        c.write(client, volume, 0, 77);
        c.snapshot(volume, u64::from(volume) + 6);
        let client = c.client(volume, 0);
        c.write(client, volume, 0, 2);
    }
    c.run(Span::seconds(10));
    c.rot_pages(0, |array| array >= 0x1000_0000);
    stuck.clone().for_each(|volume| c.until_in_sync(volume));
    c.create(9, &[0, 1, 2], None, Durability::Always);
    let client = c.client(9, 0);
    c.write(client, 9, 0, 5);

    stuck.clone().for_each(|volume| c.replace(volume, 2, CopyId(770 + u64::from(volume))));
    c.until("all four are known to be stuck", |c| c.count("fill.lost-here") >= 8 && c.count("fill.started") >= 4);
    c.replace(9, 2, CopyId(779));
    c.until_in_sync(9);
    assert!(stuck.clone().all(|volume| c.in_sync(volume) == [0, 1]), "{}", c.picture());
    c.promote(9, 2);
    let client = c.client(9, 0);
    assert_eq!(c.read(client, 9, 0), 5);
}
