//! A disk that fails below the last copy that holds every write: an error, and never silence; and no error where another copy may follow.

use crate::common::{Cluster, copy, shard};
use conductor_model::Durability;
use driver::Span;
use node_core::Mail;
use node_protocol::{Status, op};

/// The primary's disk takes nothing any more.
fn fail(c: &mut Cluster) {
    let disk = c.disks[c.primary(1)];
    c.w.disk(disk).fail_writes = u32::MAX;
}

/// Requests of all kinds, some of them for the same blocks, made while the disk fails and afterwards.
fn all_end_with_errors(c: &mut Cluster) {
    let client = c.client(1, 0);
    fail(c);
    let during: Vec<u64> = (0..6).map(|n| c.start_write(client, 1, n % 3, 9)).collect();
    for token in during {
        assert_eq!(c.answer(token).0, Status::Io);
    }
    let later = [
        c.start_write(client, 1, 0, 9),
        c.ask(client, 1, op::READ, 0, 4096, Vec::new()),
        c.ask(client, 1, op::WRITE_ZEROES, 0, 4096, Vec::new()),
        c.ask(client, 1, op::FLUSH, 0, 0, Vec::new()),
    ];
    let from = c.now();
    for token in later {
        assert_eq!(c.answer(token).0, Status::Io);
    }
    assert!(c.now().since(from) < Span::seconds(1), "what is lost is refused at once");
    assert!(!c.failed.is_empty(), "the disk is reported");
}

#[test]
fn a_shard_of_one_copy_whose_disk_fails_ends_requests_with_errors() {
    let mut c = Cluster::new(1);
    c.min_copies = 1;
    c.create(1, &[0], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    all_end_with_errors(&mut c);
    // Opened anew the disk serves what it has: each write as it was acknowledged, or as one that was not.
    c.w.kill(c.nodes[0]);
    c.w.disk(c.disks[0]).fail_writes = 0;
    c.w.restart(c.nodes[0]);
    c.until_serving(1);
    let client = c.client(1, 0);
    let read = c.read(client, 1, 0);
    assert!([1, 9].contains(&read), "{read}");
    c.write(client, 1, 0, 2);
    assert_eq!(c.read(client, 1, 0), 2);
}

#[test]
fn a_copy_that_was_left_behind_does_not_keep_anybody_waiting_for_it() {
    let mut c = crate::common::two_with_one_left_behind(2);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 2);
    all_end_with_errors(&mut c);
}

#[test]
fn where_another_copy_may_follow_nobody_is_told_of_an_error() {
    for min_copies in [1, 2] {
        let mut c = Cluster::new(3);
        c.min_copies = min_copies;
        c.create(1, &[0, 1], None, Durability::Always);
        let client = c.client(1, 0);
        c.write(client, 1, 0, 1);
        fail(&mut c);
        let token = c.start_write(client, 1, 0, 9);
        c.until("the disk failed", |c| !c.failed.is_empty());
        c.run(Span::seconds(5));
        assert!(!c.answers.contains_key(&token), "{:?}", c.answers.get(&token));
        // With too few copies for writes the next epoch is sealed.
        if min_copies == 1 {
            c.take_over(1, 1);
            c.until_serving(1);
            let client = c.client(1, 0);
            assert!([1, 9].contains(&c.read(client, 1, 0)));
        }
    }
}

#[test]
fn nobody_is_told_of_an_error_while_a_copy_may_have_been_added() {
    let mut c = crate::common::two_with_one_being_filled(4);
    let client = c.client(1, 0);
    c.mute = true;
    // Of the epoch that the primary is in: of a newer one it would first want to hear.
    let mut known = c.configs[&shard(1)].clone();
    c.until("added, as far as the conductor knows", |c| c.in_sync(1) == [0, 1]);
    fail(&mut c);
    let mut swap = |c: &mut Cluster| std::mem::swap(c.configs.get_mut(&shard(1)).unwrap(), &mut known);
    swap(&mut c);
    let token = c.start_write(client, 1, 0, 9);
    swap(&mut c);
    c.until("the disk failed", |c| !c.failed.is_empty());
    c.run(Span::seconds(5));
    assert!(!c.answers.contains_key(&token), "{:?}", c.answers.get(&token));
    c.take_over(1, 1);
    c.mute = false;
    c.until_serving(1);
    let client = c.client(1, 0);
    assert!([1, 9].contains(&c.read(client, 1, 0)), "what was acknowledged, or was not");
}

/// A store that failed says nothing of what it holds, and may be the only one that has it: no error while it may come back.
#[test]
fn a_read_that_meets_damage_is_not_given_up_while_a_copy_whose_store_failed_may_have_it() {
    let mut c = Cluster::new(5);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 77);
    c.rot(0, 77);
    c.rot(2, 77);
    // What it moves home at leisure fails.
    c.w.disk(c.disks[1]).fail_writes = u32::MAX;
    c.run(Span::seconds(5));
    let read = c.ask(client, 1, op::READ, 0, 4096, Vec::new());
    c.run(Span::seconds(20));
    assert!(!c.answers.contains_key(&read) && !c.failed.is_empty(), "it waits, and the disk is reported");
    assert_eq!(c.in_sync(1), [0, 1, 2]);
}

/// As the conductor tells every reactor of a node that has no listed copy any more.
#[test]
fn a_sealed_primary_whose_copy_is_not_listed_any_more_serves_nothing_however_well_the_conductor_is_heard() {
    let mut c = Cluster::new(6);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    for (node, left) in [(2, vec![0, 1]), (1, vec![0])] {
        c.w.kill(c.nodes[node]);
        c.until("left behind", |c| c.in_sync(1) == left);
    }
    c.until("sealed", |c| c.role(1).contains("sealed"));
    let client = c.client(1, 0);
    let now = c.now();
    c.mail(0, Mail::Heard(now));
    assert_eq!(c.read(client, 1, 0), 1);
    let mut config = c.configs[&shard(1)].clone();
    config.epoch.0 += 1;
    config.primary = copy(1, 1);
    config.members.retain(|member| member.copy != copy(1, 0));
    c.mail(0, Mail::Assign(vec![config]));
    let now = c.now();
    c.mail(0, Mail::Heard(now));
    let token = c.ask(client, 1, op::READ, 0, 4096, Vec::new());
    assert_eq!(c.answer(token).0, Status::StaleEpoch);
    assert_eq!(c.count("primary.stepped-down"), 1);
}
