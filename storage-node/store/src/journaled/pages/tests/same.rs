//! What is read is what was written.

use super::rig::{A, B, LEN, Rig, bytes};
use crate::journaled::pages::{ArrayName, Lookup, Region};
use proptest::prelude::*;

#[test]
fn an_array_grows_at_its_root_whether_that_is_in_memory_or_not() {
    for reopen in [false, true] {
        let mut rig = Rig::new(2000, &[], 1);
        for (seed, index) in (1..).zip([0, 1, 2, 2 * 509 - 1, 2 * 509, 2 * 509 * 509, 2 * 509 * 509 + 1, 1 << 40]) {
            rig.set(A, index, seed).unwrap();
            if reopen {
                rig.checkpoint().unwrap();
                rig.reopen();
            }
            rig.verify();
        }
        assert_eq!(rig.read(A, 1 << 41), Ok(Some(vec![0; LEN])));
        assert_eq!(rig.next(A, (1 << 40) + 2), Ok(None));
        assert_eq!(rig.next(A, 4), Ok(Some(2 * 509 - 2)));
    }
}

#[test]
fn the_largest_index_is_refused_not_mistaken() {
    let mut rig = Rig::new(200, &[], 1);
    assert_eq!(rig.try_set(A, u64::MAX, 7), Ok(false));
    assert_eq!(rig.read(A, u64::MAX), Ok(Some(vec![0; LEN])));
    rig.set(A, 1 << 62, 7).unwrap();
    assert_eq!(rig.read(A, u64::MAX), Ok(Some(vec![0; LEN])));
    assert_eq!(rig.next(A, 5), Ok(Some(1 << 62)));
    assert_eq!(rig.next(A, u64::MAX), Ok(None));
    rig.checkpoint().unwrap();
    rig.reopen();
    rig.verify();
}

#[test]
fn a_record_in_memory_is_read_without_the_disk_and_a_hole_without_its_page() {
    let mut rig = Rig::new(200, &[], 1);
    rig.set(A, 40, 1).unwrap();
    rig.checkpoint().unwrap();
    rig.reopen();
    rig.read(A, 40).unwrap();
    let before = rig.disk.reads;
    assert_eq!(rig.pages.get(A, 40), Lookup::Here(&bytes(1)));
    assert_eq!(rig.pages.get(A, 800), Lookup::Hole);
    assert_eq!(rig.disk.reads, before);
}

#[test]
fn what_became_zero_gives_its_pages_back() {
    let mut rig = Rig::new(600, &[], 1);
    let before = rig.pages.free_places();
    (0..200).for_each(|n| rig.set(A, n * 7, n + 1).unwrap());
    rig.checkpoint().unwrap();
    assert!(rig.pages.free_places() < before - 150);
    (0..200).for_each(|n| rig.set(A, n * 7, 0).unwrap());
    rig.checkpoint().unwrap();
    assert_eq!(rig.pages.free_places(), before);
    assert_eq!(rig.pages.root(A), Default::default());
    assert_eq!(rig.pages.get(A, 7), Lookup::Hole);
    rig.reopen();
    assert_eq!(rig.pages.free_places(), before);
    rig.verify();
}

#[test]
fn a_freed_array_gives_all_its_places_back_with_the_checkpoint_and_its_leaves_are_not_read() {
    let mut rig = Rig::new(4000, &[5], 1);
    let name = ArrayName::map_of(5);
    rig.set(name, 0, 1).unwrap(); // the record of its root has a page from here on
    rig.checkpoint().unwrap();
    rig.free(name).unwrap();
    rig.checkpoint().unwrap();
    let before = rig.pages.free_places();
    (0..1500).for_each(|n| rig.set(name, n * 2, n + 1).unwrap());
    rig.set(name, 2 * 509 * 509 * 3, 9).unwrap();
    rig.checkpoint().unwrap();
    rig.reopen();
    let reads = rig.disk.reads;
    rig.free(name).unwrap();
    assert!(rig.disk.reads - reads < 20, "{} reads", rig.disk.reads - reads);
    let root = rig.pages.root(name);
    assert_eq!(root, Default::default());
    rig.checkpoint().unwrap();
    assert_eq!(rig.pages.free_places(), before, "the page of roots is empty too");
    rig.verify();
    rig.reopen();
    rig.verify();
    assert_eq!(rig.pages.free_places(), before);
}

#[test]
fn an_array_with_changes_stays_open_until_they_are_written() {
    let mut rig = Rig::new(400, &[], 1);
    rig.set(B, 3, 1).unwrap();
    assert!(!rig.pages.close_array(B));
    rig.checkpoint().unwrap();
    rig.read(A, 3).unwrap();
    let root = rig.pages.root(B);
    assert!(rig.pages.close_array(B));
    assert!(!rig.pages.is_open(B));
    rig.pages.open_array(B, LEN, root);
    rig.verify();
}

#[test]
fn an_array_is_as_large_as_was_said() {
    let mut rig = Rig::new(4000, &[], 1);
    let before = rig.pages.free_places();
    (0..2100).for_each(|n| rig.set(A, n, 1).unwrap());
    rig.checkpoint().unwrap();
    assert_eq!(u64::from(before - rig.pages.free_places()), Region::pages_for(2100, LEN));
    assert_eq!(Region::pages_for(0, LEN), 0);
    assert_eq!(Region::pages_for(1, LEN), 1);
}

#[derive(Clone, Debug)]
enum Act {
    Set(usize, u64, u64),
    Read(usize, u64),
    Next(usize, u64),
    Free(usize),
    Checkpoint,
    Turns(u8),
    Reopen,
    Crash,
}

fn index() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..40u64, 3 => 0..3000u64, 2 => 0..2_000_000u64, 1 => Just(1u64 << 33)]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        30 => (0..4usize, index(), 0..1000u64).prop_map(|(array, index, seed)| Act::Set(array, index, seed)),
        8 => (0..4usize, index()).prop_map(|(array, index)| Act::Set(array, index, 0)),
        10 => (0..4usize, index()).prop_map(|(array, index)| Act::Read(array, index)),
        5 => (0..4usize, index()).prop_map(|(array, index)| Act::Next(array, index)),
        1 => (0..4usize).prop_map(Act::Free),
        3 => Just(Act::Checkpoint),
        3 => (0..9u8).prop_map(Act::Turns),
        1 => Just(Act::Reopen),
        1 => Just(Act::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arrays_are_maps(seed in 1..u64::MAX, acts in proptest::collection::vec(act(), 1..200)) {
        let mut rig = Rig::new(1500, &[3, 9000], seed);
        let names = rig.names();
        for act in acts {
            match act {
                Act::Set(array, index, seed) => rig.set(names[array], index, seed).unwrap(),
                Act::Read(array, index) => {
                    let expected = bytes(rig.model.get(&(names[array], index)).copied().unwrap_or(0));
                    assert_eq!(rig.read(names[array], index).unwrap(), Some(expected));
                }
                Act::Next(array, index) => {
                    let next = rig.next(names[array], index).unwrap();
                    let of = names[array];
                    let first = rig.model.range((of, index)..).map(|(key, _)| *key).find(|(name, _)| *name == of);
                    match (next, first) {
                        (Some(next), Some((_, first))) => assert!(index <= next && next <= first),
                        (None, Some(_)) => panic!("a record was overlooked"),
                        (next, None) => assert!(next.is_none_or(|next| next >= index)),
                    }
                }
                Act::Free(array) => rig.free(names[array]).unwrap(),
                Act::Checkpoint => rig.checkpoint().unwrap(),
                Act::Turns(turns) => (0..turns).for_each(|_| {
                    rig.pump();
                    if let Some(done) = rig.disk.step() {
                        rig.pages.done(done);
                    }
                }),
                Act::Reopen => {
                    rig.quiesce();
                    rig.checkpoint().unwrap();
                    rig.reopen();
                }
                Act::Crash => rig.crash(),
            }
        }
        rig.verify();
        rig.checkpoint().unwrap();
        rig.crash();
        rig.verify();
    }
}
