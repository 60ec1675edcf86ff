//! One bad sector does not keep a shard from its second copy: that is told what is lost (rules 4, 11 and 23).

use crate::common::{Cluster, block, of, shard};
use crate::filling::{CHUNK, cluster, conductor_answers, start_read};
use conductor_model::{CopyId, Durability};
use driver::Span;
use node_protocol::Status;

/// A volume whose second copy's node died behind these writes: on the disk of the one that is left they are home.
fn left_alone(seed: u64, min_copies: u8, snapshot: bool) -> Cluster {
    let mut c = Cluster::new(seed);
    c.min_copies = min_copies;
    c.create(1, &[0, 1], None, Durability::Always);
    let client = c.client(1, 0);
    for (at, of) in [(3, 77), (4, 6), (CHUNK, 5)] {
        c.write(client, 1, at, of);
    }
    if snapshot {
        c.snapshot(1, 7);
        c.write(client, 1, 3, 2);
    }
    c.run(Span::seconds(5));
    c.w.kill(c.nodes[1]);
    let role = if min_copies == 1 { "serving" } else { "sealed" };
    c.until("left alone", |c| c.in_sync(1) == [0] && c.role(1).contains(role));
    c
}

fn fill_anew(c: &mut Cluster) {
    c.w.restart(c.nodes[1]);
    c.replace(1, 1, CopyId(777));
    c.until_in_sync(1);
}

fn status(c: &mut Cluster, view: u64, at: u32) -> Status {
    let client = c.client(1, view);
    let token = start_read(c, client, at);
    c.answer(token).0
}

#[test]
fn a_copy_is_filled_past_what_no_copy_has_and_says_so_to_who_reads_it_there() {
    for (min_copies, snapshot) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut c = left_alone(51, min_copies, snapshot);
        c.rot(0, 77);
        fill_anew(&mut c);
        let counts = ["fill.lost", "fill.failed", "damage.unrepairable"].map(|name| c.count(name));
        assert_eq!(counts, [1, 0, 1], "min-copies {min_copies}, snapshot {snapshot}");
        let said = |c: &Cluster, what: &str| c.troubles.iter().any(|why| why.contains(what));
        c.until("it is said", |c| said(c, "no copy has block b3"));
        assert!(!said(&c, "is not filled"), "{:?}", c.troubles);
        for primary in [0, 1] {
            if primary != c.primary(1) {
                c.promote(1, primary);
            }
            // Before anybody reads it there.
            c.run(Span::millis(300));
            assert!(said(&c, "no copy has block b3"), "on {primary}: {:?}", c.troubles);
            let expected = |bad: bool| if bad { Status::Io } else { Status::Ok };
            assert_eq!(status(&mut c, 0, 3), expected(!snapshot), "min-copies {min_copies}, on {primary}");
            if snapshot {
                assert_eq!(status(&mut c, 7, 3), Status::Io, "min-copies {min_copies}, on {primary}");
                assert_eq!(status(&mut c, 7, 4), Status::Ok, "min-copies {min_copies}, on {primary}");
            }
            let client = c.client(1, 0);
            let around: Vec<u8> = [4, CHUNK, 2].into_iter().map(|at| c.read(client, 1, at)).collect();
            assert_eq!(around, [6, 5, 0], "min-copies {min_copies}, on {primary}");
        }
        // It is over when it is written again.
        if !snapshot {
            let client = c.client(1, 0);
            c.write(client, 1, 3, 8);
            assert_eq!(c.read(client, 1, 3), 8);
            c.promote(1, 0);
            let client = c.client(1, 0);
            assert_eq!(c.read(client, 1, 3), 8);
            c.run(Span::millis(300));
            assert!(c.troubles.is_empty(), "{:?}", c.troubles);
        }
    }
}

/// The bad sector reads well again: it has what the other one was never given.
#[test]
fn what_a_copy_was_filled_past_is_put_right_from_the_one_that_has_it_again() {
    let mut c = left_alone(52, 1, false);
    let places = c.find(0, &block(77));
    let flip = |c: &mut Cluster| places.iter().for_each(|at| c.flip(0, at + 17, 3));
    flip(&mut c);
    fill_anew(&mut c);
    assert_eq!(c.count("fill.lost"), 1);
    assert_eq!(status(&mut c, 0, 3), Status::Io);
    flip(&mut c);
    c.promote(1, 1);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 3), 77);
    // By itself, too.
    c.w.kill(c.nodes[0]);
    c.until("left alone", |c| c.in_sync(1) == [1] && c.role(1).contains("serving"));
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 3), 77);
}

/// What a page of metadata told is lost in all of its blocks.
#[test]
fn a_copy_is_filled_past_what_was_lost_with_its_metadata() {
    let mut c = Cluster::new(53);
    c.min_copies = 1;
    c.create(1, &[0, 1], None, Durability::Always);
    let client = c.client(1, 0);
    (0..4).for_each(|n| c.write(client, 1, n * CHUNK + 2, 77));
    c.run(Span::seconds(10));
    c.w.kill(c.nodes[1]);
    c.until("left behind", |c| c.in_sync(1) == [0]);
    c.rot_pages(0, |array| array >= 0x1000_0000);
    c.until_serving(1);
    let client = c.client(1, 0);
    c.write(client, 1, CHUNK + 2, 4);
    fill_anew(&mut c);
    assert!(c.count("fill.lost") > 3, "{}", c.picture());
    c.w.kill(c.nodes[0]);
    c.promote(1, 1);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, CHUNK + 2), 4);
    for n in [0, 2, 3] {
        assert_eq!(status(&mut c, 0, n * CHUNK + 2), Status::Io, "it is not zeros");
    }
}

/// What a copy that comes back has by itself may be all that is left.
#[test]
fn what_a_copy_that_comes_back_has_by_itself_is_not_lost_there() {
    let mut c = left_alone(54, 1, false);
    let client = c.client(1, 0);
    c.write(client, 1, 4, 7);
    c.run(Span::seconds(5));
    c.rot(0, 77);
    c.w.restart(c.nodes[1]);
    c.until("it is refused", |c| c.count("fill.kept") > 2);
    assert_eq!((c.count("fill.lost"), c.in_sync(1)), (0, vec![0]));
    assert!(!c.find(1, &block(77)).is_empty());
    assert_eq!(status(&mut c, 0, 3), Status::Io);
    let client = c.client(1, 0);
    c.write(client, 1, 3, 8);
    c.until_in_sync(1);
    c.run(Span::millis(300));
    assert!(c.troubles.is_empty(), "{:?}", c.troubles);
}

/// The same below a snapshot, and as a clone of another one's.
#[test]
fn what_a_copy_that_comes_back_has_in_a_snapshot_is_not_lost_on_top_of_it() {
    let mut c = Cluster::new(59);
    c.min_copies = 1;
    c.create(1, &[0, 1], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 3, 77);
    c.snapshot(1, 7);
    c.run(Span::seconds(5));
    c.w.kill(c.nodes[1]);
    c.until("left alone", |c| c.in_sync(1) == [0] && c.role(1).contains("serving"));
    let client = c.client(1, 0);
    // One beside it, so that its chunk is due.
    c.write(client, 1, 4, 6);
    c.rot(0, 77);
    c.w.restart(c.nodes[1]);
    c.until("it is refused", |c| c.count("fill.kept") > 1);
    assert_eq!((c.count("fill.lost"), c.in_sync(1)), (0, vec![0]));
    assert!(!c.find(1, &block(77)).is_empty());
    let client = c.client(1, 0);
    c.write(client, 1, 3, 8);
    c.until_in_sync(1);
    c.promote(1, 1);
    let client = c.client(1, 7);
    assert_eq!(c.read(client, 1, 3), 77);
}

/// Its parent's own primary puts it right.
#[test]
fn what_a_clone_has_from_its_parent_is_not_lost_on_a_copy_of_the_clone() {
    let mut c = Cluster::new(60);
    c.min_copies = 1;
    c.create(1, &[0, 1], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 3, 77);
    c.snapshot(1, 7);
    c.create(2, &[0, 1], Some(of(1, 7)), Durability::Always);
    c.until_in_sync(2);
    c.run(Span::seconds(5));
    c.rot(0, 77);
    c.replace(2, 1, CopyId(777));
    c.until("it is tried", |c| c.count("fill.failed") > 1);
    assert_eq!((c.count("fill.lost"), c.in_sync(2)), (0, vec![0]));
    let client = c.client(1, 7);
    assert_eq!(c.read(client, 1, 3), 77, "which puts it right");
    c.until_in_sync(2);
    c.promote(2, 1);
    let client = c.client(2, 0);
    assert_eq!(c.read(client, 2, 3), 77);
}

/// A path that is down for longer: what nothing can be written to either is no disk with bad sectors.
#[test]
fn what_lies_on_a_disk_that_is_out_of_reach_is_not_lost() {
    for min_copies in [1, 2] {
        let mut c = left_alone(61, min_copies, false);
        c.rot(0, 77);
        c.w.restart(c.nodes[1]);
        c.replace(1, 1, CopyId(777));
        c.until("it is met", |c| c.damage.iter().any(|line| line.contains("NO COPY HAS IT")));
        c.w.disk(c.disks[0]).fail_writes = u32::MAX;
        c.until("it fails", |c| !c.failed.is_empty());
        c.run(Span::seconds(20));
        assert_eq!((c.count("fill.lost"), c.in_sync(1)), (0, vec![0]));
    }
}

/// A holder of the last full set that is away would have it: until then nobody is filled past it.
#[test]
fn nothing_is_lost_on_a_copy_while_one_of_the_last_full_set_is_away() {
    let (mut c, _) = cluster(55);
    c.w.kill(c.nodes[2]);
    c.until("left behind", |c| c.in_sync(1) == [0, 1]);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 77);
    c.w.kill(c.nodes[1]);
    c.until("sealed", |c| c.in_sync(1) == [0] && c.role(1).contains("sealed"));
    c.run(Span::seconds(5));
    c.rot(0, 77);
    c.w.restart(c.nodes[2]);
    c.replace(1, 2, CopyId(777));
    c.until("it is tried", |c| c.count("fill.failed") > 1);
    conductor_answers(&mut c);
    assert_eq!((c.count("fill.lost"), c.count("fill.kept"), c.in_sync(1)), (0, 0, vec![0]));
    c.w.restart(c.nodes[1]);
    c.until_in_sync(1);
    assert_eq!(c.count("fill.lost"), 0);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 77);
}

/// A cable, or a path, that comes back: what could not be read for a while is not lost.
#[test]
fn what_reads_well_again_soon_is_filled() {
    for min_copies in [1, 2] {
        let mut c = left_alone(56, min_copies, false);
        let places = c.find(0, &block(77));
        let flip = |c: &mut Cluster| places.iter().for_each(|at| c.flip(0, at + 17, 3));
        flip(&mut c);
        c.w.restart(c.nodes[1]);
        c.replace(1, 1, CopyId(777));
        c.until("it is met", |c| c.damage.iter().any(|line| line.contains("NO COPY HAS IT")));
        c.run(Span::seconds(3));
        flip(&mut c);
        c.until_in_sync(1);
        assert_eq!(c.count("fill.lost"), 0);
        c.promote(1, 1);
        let client = c.client(1, 0);
        assert_eq!(c.read(client, 1, 3), 77);
    }
}

/// What was said to be lost is said once more by the next run, and is the same.
#[test]
fn a_filling_that_begins_again_goes_past_the_same_block_again() {
    for min_copies in [1, 2] {
        let mut c = left_alone(57, min_copies, false);
        c.rot(0, 77);
        c.w.restart(c.nodes[1]);
        c.replace(1, 1, CopyId(777));
        c.until_just("it is lost there", |c| c.count("fill.lost") == 1);
        c.w.kill(c.nodes[1]);
        c.run(Span::seconds(3));
        c.w.restart(c.nodes[1]);
        c.until_in_sync(1);
        assert_eq!((c.count("fill.lost"), c.count("fill.kept")), (2, 0), "min-copies {min_copies}");
        c.promote(1, 1);
        assert_eq!((status(&mut c, 0, 3), status(&mut c, 0, 4)), (Status::Io, Status::Ok), "min-copies {min_copies}");
    }
}

/// Two copies are in sync where three are asked for: nothing is put right before the shard serves, and it is said what helps.
#[test]
fn what_another_copy_in_sync_has_is_waited_for_and_said() {
    let mut c = Cluster::new(58);
    c.min_copies = 3;
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 3, 77);
    c.run(Span::seconds(5));
    c.w.kill(c.nodes[2]);
    c.until("sealed", |c| c.in_sync(1) == [0, 1] && c.role(1).contains("sealed"));
    c.rot(0, 77);
    c.w.restart(c.nodes[2]);
    c.replace(1, 2, CopyId(777));
    c.until("it is said", |c| {
        let words = ["block b3 does not read", "n2 may have it: with --min-copies 2"];
        c.troubles.iter().any(|why| words.iter().all(|word| why.contains(word)))
    });
    c.run(Span::seconds(60));
    assert_eq!((c.count("fill.lost"), c.in_sync(1)), (0, vec![0, 1]));
    c.configs.get_mut(&shard(1)).unwrap().min_copies = 2;
    c.promote(1, 0);
    c.until_in_sync(1);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 3), 77);
    c.run(Span::seconds(1));
    assert!(c.troubles.is_empty(), "{:?}", c.troubles);
}
