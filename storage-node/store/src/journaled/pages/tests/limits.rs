//! Memory and places are bounded, and who meets a bound waits or is told.

use super::rig::{A, B, Rig, bytes};
use crate::journaled::pages::{ArrayName, Lookup, LookupMut, Step};
use memory::Class;

#[test]
fn the_cache_keeps_to_its_budget_whatever_changes_or_is_read() {
    let mut rig = Rig::new(9000, &[8], 3);
    rig.budget = 400 * 4096;
    rig.reopen();
    let name = ArrayName::map_of(8);
    for n in 0..3000 {
        rig.set(name, (n * 769) % 3000 * 2, n + 1).unwrap(); // `pump` asserts the budget
    }
    assert!(rig.pages.counters().written_early > 2000);
    rig.verify();
    rig.checkpoint().unwrap();
    assert!(rig.pages.counters().evicted > 2000);
    rig.crash();
    rig.verify();
}

#[test]
fn reads_far_more_than_fit_all_end_while_everything_else_is_dirty() {
    let mut rig = Rig::new(9000, &[], 3);
    (0..2000).for_each(|n| rig.set(A, n * 2, n + 1).unwrap());
    rig.checkpoint().unwrap();
    rig.reopen();
    // Dirty as much as goes, then ask for all at once, again and again.
    (0..300).for_each(|n| rig.set(B, n * 2, n + 1).unwrap());
    let mut left: Vec<u64> = (0..2000).collect();
    while !left.is_empty() {
        left.retain(|n| match rig.pages.get(A, n * 2) {
            Lookup::Here(record) => {
                assert_eq!(record, bytes(n + 1));
                false
            }
            other => {
                assert_eq!(other, Lookup::Load);
                true
            }
        });
        if !left.is_empty() {
            rig.turn().unwrap();
            assert!(rig.pages.in_flight() <= 64 + 32 + 16);
        }
    }
    rig.verify();
}

#[test]
fn a_page_that_many_ask_for_is_read_once() {
    let mut rig = Rig::new(200, &[], 3);
    rig.set(A, 0, 1).unwrap();
    rig.checkpoint().unwrap();
    rig.reopen();
    let before = rig.disk.reads;
    (0..50).for_each(|_| assert_eq!(rig.pages.get(A, 0), Lookup::Load));
    rig.quiesce();
    assert_eq!(rig.pages.get(A, 0), Lookup::Here(&bytes(1)));
    assert_eq!(rig.disk.reads - before, 1);
}

#[test]
fn a_full_region_is_said_before_anything_is_touched_and_freeing_makes_room_again() {
    let mut rig = Rig::new(300, &[], 3);
    let mut round = 0;
    // Each round changes all, and so needs every page twice.
    let filled = (0..).find(|n| !rig.try_set(A, n * 2, n + 1).unwrap()).unwrap();
    assert!(filled > 200, "{filled} leaves");
    rig.verify();
    rig.checkpoint().unwrap(); // what was promised is there
    assert_eq!(rig.try_set(A, filled * 2, 9), Ok(false));
    assert_eq!(rig.pages.get_mut(A, 0), LookupMut::Full, "to change needs a second place");
    rig.verify();
    rig.reopen();
    rig.verify();
    assert_eq!(rig.try_set(B, 0, 1), Ok(false));
    rig.free(A).unwrap();
    assert_eq!(rig.try_set(B, 0, 1), Ok(false), "a crash would still need what was there");
    rig.checkpoint().unwrap();
    while round < 200 {
        rig.set(B, round * 2, 1).unwrap();
        round += 1;
    }
    rig.checkpoint().unwrap();
    rig.crash();
    rig.verify();
}

#[test]
fn giving_back_works_in_a_full_region_although_it_changes_pages() {
    let mut rig = Rig::new(300, &[], 3);
    // Under three pages of pointers, whose own page changes with each of them.
    let full = (0..).find(|n| !rig.try_set(A, n * 2 % 3 * 1018 + n * 2, n + 1).unwrap()).unwrap();
    rig.checkpoint().unwrap();
    assert_eq!(rig.pages.get_mut(A, 0), LookupMut::Full);
    rig.reopen();
    assert_eq!(rig.try_set(B, 0, 1), Ok(false));
    assert!(full > 200);
    let step = loop {
        match rig.pages.free_array(A) {
            Step::Load => rig.turn().unwrap(),
            other => break other,
        }
    };
    assert_eq!(step, Step::Again, "a part of it is left");
    rig.model.retain(|(name, index), _| *name != A || *index >= 1018);
    rig.verify();
    rig.checkpoint().unwrap();
    rig.crash();
    rig.verify();
    rig.free(A).unwrap();
    rig.checkpoint().unwrap();
    rig.set(B, 0, 1).unwrap();
    rig.verify();
}

#[test]
fn what_changed_since_the_last_checkpoint_can_change_again_in_a_full_region() {
    let mut rig = Rig::new(1000, &[2], 3);
    let name = ArrayName::map_of(2);
    rig.set(name, 0, 1).unwrap();
    let filled = (1..).find(|n| !rig.try_set(name, n * 2, n + 1).unwrap()).unwrap();
    assert!(rig.pages.counters().written_early > 500);
    for n in 0..2 * filled {
        rig.set(name, (n * 401) % filled * 2, n + 1).unwrap();
    }
    assert_eq!(rig.try_set(name, filled * 2, 1), Ok(false));
    rig.verify();
    rig.checkpoint().unwrap(); // the record of the root can change too
    rig.crash();
    rig.verify();
}

#[test]
fn without_memory_of_the_arena_it_waits_and_says_so() {
    let mut rig = Rig::new(300, &[], 3);
    rig.set(A, 0, 1).unwrap();
    let hog: Vec<_> = std::iter::from_fn(|| rig.arena.take(4096, Class::Client)).collect();
    assert!(rig.pages.checkpoint_inner(&mut |_| panic!("nothing to write")).is_some());
    assert!(rig.pages.checkpoint(&mut |_| panic!("no memory to write from")).is_none());
    assert!(rig.pages.starved());
    drop(hog);
    rig.checkpoint().unwrap();
    assert!(!rig.pages.starved());
    rig.reopen();
    let hog: Vec<_> = std::iter::from_fn(|| rig.arena.take(4096, Class::Client)).collect();
    assert_eq!(rig.pages.get(A, 0), Lookup::Load);
    rig.pump();
    assert!(rig.pages.starved());
    drop(hog);
    rig.verify();
}

#[test]
fn a_large_checkpoint_has_so_many_writes_on_their_way_and_no_more() {
    let mut rig = Rig::new(3000, &[], 3);
    rig.budget = 3000 * 4096;
    rig.reopen();
    (0..1000).for_each(|n| rig.set(A, n * 2, n + 1).unwrap());
    assert_eq!(rig.pages.dirty_bytes().0, 4096 * 1003);
    assert!(rig.pages.checkpoint_inner(&mut |_| panic!("no inner array")).is_some());
    let mut most = 0;
    while rig.pages.checkpoint(&mut |op| rig.disk.submit(op)).is_none() {
        most = most.max(rig.pages.in_flight());
        rig.turn().unwrap();
    }
    assert_eq!(most, 2 * 16);
    assert_eq!(rig.pages.dirty_bytes().0, 0);
}

#[test]
fn a_read_whose_page_is_given_back_meanwhile_brings_nothing_but_wakes() {
    let mut rig = Rig::new(300, &[], 3);
    rig.set(A, 0, 1).unwrap();
    rig.checkpoint().unwrap();
    rig.reopen();
    assert_eq!(rig.pages.get(A, 0), Lookup::Load);
    rig.pump();
    assert_eq!(rig.pages.in_flight(), 1);
    rig.free(A).unwrap();
    let done = rig.disk.step().unwrap();
    assert!(rig.pages.done(done));
    assert_eq!(rig.pages.get(A, 0), Lookup::Hole);
    rig.set(A, 0, 2).unwrap();
    rig.checkpoint().unwrap();
    rig.crash();
    rig.verify();
}

#[test]
fn neighbours_are_written_together() {
    let mut rig = Rig::new(600, &[], 3);
    (0..320).for_each(|n| rig.set(A, n, 1).unwrap());
    let before = rig.disk.bytes_written;
    rig.checkpoint().unwrap();
    let pages = 160 + 1 + 1; // leaves, pointers, map
    assert_eq!(rig.disk.bytes_written - before, 2 * 4096 * pages);
}
