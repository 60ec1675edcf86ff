//! A disk on which somebody puts back an older image of itself, while its node is away.

use crate::common::{BLOCKS, Cluster, copy, shard};
use conductor_model::Durability;
use driver::Span;
use node_protocol::{Status, op};

/// Copies on these nodes, all of them away, with twos in each block; but on one disk somebody has put back what it was when there were ones.
fn with_an_image(nodes: &[usize], past: usize) -> Cluster {
    let mut c = Cluster::new(nodes.len() as u64);
    c.min_copies = 1;
    c.create(1, nodes, None, Durability::Always);
    let client = c.client(1, 0);
    (0..BLOCKS).for_each(|at| c.write(client, 1, at, 1));
    all(&mut c, nodes, false);
    let image = c.w.image(c.disks[past]);
    // Little of it in the newest epoch: what is lacking there alone would be no proof.
    for blocks in [BLOCKS, 2] {
        all(&mut c, nodes, true);
        c.until_serving(1);
        let client = c.client(1, 0);
        (0..blocks).for_each(|at| c.write(client, 1, at, 2));
        all(&mut c, nodes, false);
    }
    c.w.put_back(c.disks[past], &image);
    c
}

fn all(c: &mut Cluster, nodes: &[usize], start: bool) {
    for node in nodes {
        if start { c.w.restart(c.nodes[*node]) } else { c.w.kill(c.nodes[*node]) }
    }
}

#[test]
fn a_primary_from_the_past_asks_for_its_successor_and_for_nothing_that_would_make_it_forget() {
    let mut c = with_an_image(&[0, 1], 0);
    assert_eq!(c.primary(1), 0);
    all(&mut c, &[0, 1], true);
    c.until("it is noticed", |c| c.count("join.of-the-past") > 0);
    // The one that could follow it is away for a while, before anybody has heard that it is to.
    c.w.kill(c.nodes[1]);
    let client = c.client(1, 0);
    c.ask(client, 1, op::READ, 0, 4096, Vec::new());
    c.run(Span::seconds(6));
    assert_eq!((c.count("ask.drop"), c.in_sync(1)), (0, vec![0, 1]), "{}", c.picture());
    assert!(c.count("ask.past") > 0 && !c.role(1).contains("serving"), "{}", c.picture());
    c.w.restart(c.nodes[1]);
    c.run(Span::seconds(2));
    c.promote(1, 1);
    c.until_serving(1);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 2);
}

/// Each epoch that a copy joins is on its disk from then on, and one follows the other while nodes come up one by one.
#[test]
fn a_copy_from_the_past_is_noticed_before_all_have_joined_and_filled_with_everything() {
    let mut c = with_an_image(&[0, 1, 2], 1);
    all(&mut c, &[0, 1], true);
    c.until("it is noticed", |c| c.count("join.of-the-past") > 0);
    let is_past = |c: &Cluster| c.configs[&shard(1)].member(copy(1, 1)).unwrap().past;
    c.until("it is known", is_past);
    c.w.restart(c.nodes[2]);
    c.until_in_sync(1);
    c.promote(1, 1);
    c.until_serving(1);
    let client = c.client(1, 0);
    for at in 0..BLOCKS {
        assert_eq!(c.read(client, 1, at), 2, "block {at}");
    }
}

/// A flush leaves no record. What a copy knows of K by flushes alone is gone with its process, and is no sign of an older disk.
#[test]
fn a_copy_that_has_missed_nothing_but_flushes_is_not_from_the_past() {
    for (restarted, writes_behind) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut c = Cluster::new(3 + restarted as u64);
        c.min_copies = 2;
        c.create(1, &[0, 1], None, Durability::Flush);
        let client = c.client(1, 0);
        c.write(client, 1, 3, 7);
        // All of it goes home.
        c.run(Span::seconds(3));
        for _ in 0..20 {
            let flush = c.ask(client, 1, op::FLUSH, 0, 0, Vec::new());
            assert_eq!(c.answer(flush).0, Status::Ok);
        }
        assert!(c.count("op.replica-flush") >= 20);
        if writes_behind {
            // With these K is told, and both are in memory alone: what is left to be listed is from before the flushes.
            c.write(client, 1, 4, 8);
            c.write(client, 1, 5, 9);
        }
        c.w.cut_power(c.nodes[restarted]);
        all(&mut c, &[restarted], true);
        c.run(Span::seconds(3));
        let found = (c.count("join.of-the-past"), c.in_sync(1));
        assert_eq!(found, (0, vec![0, 1]), "node {restarted}, {writes_behind}: {}", c.picture());
        c.until_serving(1);
        let client = c.client(1, 0);
        assert_eq!(c.read(client, 1, 3), 7);
    }
}
