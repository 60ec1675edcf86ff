//! One bad mirror is read around and put right; two are said.

use super::rig::{A, B, LEN, Rig, bytes};
use crate::journaled::pages::cache::State;
use crate::journaled::pages::names::MapDamaged;
use crate::journaled::pages::page::Key;
use crate::journaled::pages::{GivenUp, Lookup, LookupMut, Pages, Root, Step};
use conductor_model::{Bytes, DiskId};
use driver::{Done, Errno, Op};
use memory::Class;

fn filled() -> Rig {
    let mut rig = Rig::new(600, &[4], 1);
    let names = rig.names();
    (0..150).for_each(|n| rig.set(names[n as usize % 3], n * 9, n + 1).unwrap());
    rig.checkpoint().unwrap();
    rig
}

#[test]
fn a_damaged_mirror_is_read_around_and_put_right() {
    let mut rig = filled();
    rig.rot_mirror(0);
    rig.reopen();
    rig.verify();
    rig.quiesce();
    assert!(rig.pages.counters().healed > 150);
    assert_eq!(rig.pages.counters().damaged, 0);
    // The first mirror is good again, for now the other one goes.
    rig.disk.sync();
    rig.rot_mirror(1);
    rig.reopen();
    rig.verify();
    assert_eq!(rig.pages.counters().healed, 0);
}

#[test]
fn an_unreadable_mirror_is_as_good_as_a_damaged_one() {
    let mut rig = filled();
    rig.disk.unreadable.push(rig.place_at(0, 0)..rig.place_at(0, 1));
    rig.disk.worn_out = true;
    rig.reopen();
    rig.verify();
    rig.quiesce();
    let counters = rig.pages.counters();
    assert_eq!((counters.healed, counters.damaged), (0, 0));
    assert!(counters.unhealed > 150, "{counters:?}");
}

#[test]
fn a_place_that_is_being_healed_is_not_used_for_something_else() {
    for seed in 1..20 {
        let mut rig = Rig::new(90, &[], seed);
        (0..20).for_each(|n| rig.set(A, n * 2, n + 1).unwrap());
        rig.checkpoint().unwrap();
        rig.rot_mirror(0);
        rig.reopen();
        rig.patrols = seed % 2 == 0;
        // All is read, healed and moved at once; the disk asserts that no two writes of one place meet.
        for round in 0..6 {
            (0..20).for_each(|n| rig.set(A, n * 2, 100 * round + n).unwrap());
            rig.checkpoint().unwrap();
        }
        rig.quiesce();
        rig.disk.sync();
        rig.rot_mirror(1);
        rig.reopen();
        rig.verify();
    }
}

#[test]
fn the_patrol_puts_right_what_nobody_reads() {
    for (mirror, in_memory) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut rig = filled();
        rig.reopen();
        if in_memory {
            rig.verify();
        }
        rig.rot_mirror(mirror);
        let taken = rig.patrol_round();
        assert!(taken > 150, "{taken} places");
        assert_eq!(rig.pages.counters().healed, taken, "mirror {mirror}, in memory: {in_memory}");
        rig.disk.sync();
        rig.rot_mirror(1 - mirror);
        rig.reopen();
        rig.verify();
        assert_eq!(rig.pages.counters().damaged, 0);
    }
}

#[test]
fn a_round_of_the_patrol_is_followed_by_a_rest() {
    let mut rig = filled();
    let taken = rig.patrol_round();
    let runs = taken.div_ceil(16);
    let mut calls = 0;
    while rig.pages.counters().patrolled == taken {
        rig.pages.patrol(64);
        rig.quiesce();
        calls += 1;
    }
    assert!((16 * runs..=16 * (runs + 2)).contains(&calls), "{calls} calls after {runs} runs");
    assert_eq!(rig.pages.counters().healed, 0, "what is sound is left alone");
}

#[test]
fn the_patrol_finds_a_mirror_whose_last_write_was_lost_and_one_that_cannot_be_read() {
    for stale in [0, 1] {
        let mut rig = filled();
        let old = rig.place_at(rig.pages.root(A).place.0, stale);
        let old = rig.disk.visible[old..old + 4096].to_vec();
        rig.set(A, 0, 500).unwrap();
        rig.checkpoint().unwrap();
        let [good, bad] = [1 - stale, stale].map(|mirror| rig.place_at(rig.pages.root(A).place.0, mirror));
        let written = rig.disk.visible[good..good + 4096].to_vec();
        rig.disk.overwrite(bad, &old); // whole, and of the same name: only the pointer knows better
        rig.patrol_round();
        assert_eq!(rig.pages.counters().healed, 1);
        assert_eq!([good, bad].map(|at| rig.disk.visible[at..at + 4096] == written), [true; 2]);
    }
}

#[test]
fn the_patrol_puts_right_later_what_there_is_no_memory_for_now() {
    let mut rig = filled();
    rig.verify(); // all is in memory
    rig.rot_mirror(1);
    rig.pages.patrol(64);
    rig.pump();
    let hogged: Vec<_> = std::iter::from_fn(|| rig.arena.take(4096, Class::Settle)).collect();
    while rig.pages.counters().patrolled == 0 {
        let done = rig.disk.step().unwrap();
        rig.pages.done(done);
    }
    assert!(hogged.len() > 100 && rig.pages.starved(), "{} pages", hogged.len());
    rig.quiesce();
    assert_eq!(rig.pages.counters().healed, 16);
}

#[test]
fn a_sector_that_cannot_be_read_hides_no_other_page_from_the_patrol() {
    // All of one run. What cannot be read is written again, and then can.
    let [one, other, third] = [3, 5, 9];
    let mut rig = filled();
    rig.disk.unreadable = [(one, 0), (other, 1)].map(|(place, mirror)| rig.sector(place, mirror)).into();
    let taken = rig.patrol_round();
    assert_eq!(rig.pages.counters().healed, 2);
    assert!(rig.disk.unreadable.is_empty());
    assert!(taken > 150, "{taken} places");
    // What cannot even be written hides nothing, round for round.
    let mut rig = filled();
    rig.disk.unreadable.push(rig.sector(one, 1));
    rig.disk.worn_out = true;
    rig.disk.rot(rig.place_at(other, 0) + 77);
    rig.disk.rot(rig.place_at(third, 1) + 77);
    assert_eq!(rig.patrol_round(), taken + 1);
    assert_eq!((rig.pages.counters().healed, rig.pages.counters().unhealed), (2, 1));
    rig.reopen();
    rig.patrol_round();
    assert_eq!((rig.pages.counters().healed, rig.pages.counters().unhealed), (0, 1));
    rig.verify();
}

#[test]
fn reads_that_fail_for_a_while_make_no_mirror_bad_for_the_patrol() {
    // A run's two, then those of its first page, twice of three times.
    let mut rig = filled();
    rig.disk.fail_reads = 2 + 2 * 2;
    assert!(rig.patrol_round() > 150);
    let counters = rig.pages.counters();
    assert_eq!((rig.disk.fail_reads, counters.healed, counters.unhealed), (0, 0, 0));
}

#[test]
fn the_patrol_has_the_map_written_anew_where_nothing_else_does() {
    let mut rig = filled();
    let is_old_after = |rig: &mut Rig| {
        let runs = (1..).find(|_| {
            rig.pages.patrol(64);
            rig.quiesce();
            rig.pages.is_map_old()
        });
        runs.unwrap()
    };
    assert_eq!(is_old_after(&mut rig), 1024);
    rig.checkpoint().unwrap();
    assert_eq!(is_old_after(&mut rig), 1024);
    rig.reopen();
    rig.verify();
}

#[test]
fn the_patrol_leaves_alone_what_is_bad_in_both_mirrors() {
    let mut rig = filled();
    rig.reopen();
    rig.rot_mirror(0);
    rig.rot_mirror(1);
    rig.patrol_round();
    assert_eq!((rig.pages.counters().healed, rig.pages.counters().damaged), (0, 0));
    assert_eq!(rig.read(A, 27), Ok(None));
}

#[test]
fn a_page_damaged_in_both_mirrors_is_said_and_the_others_are_read() {
    let mut rig = filled();
    rig.rot_mirror(0);
    let model = rig.model.clone();
    // Leaves hold what was written: find that of A 9·3.
    let victim = bytes(model[&(A, 27)]);
    let at = rig.disk.visible.windows(64).rposition(|window| *window == victim[..64]).unwrap();
    assert!(at >= rig.place_at(0, 1), "the second mirror has it too");
    rig.disk.rot(at);
    rig.reopen();
    for ((name, index), seed) in model {
        let read = rig.read(name, index).unwrap();
        let same_leaf = name == A && index / 2 == 27 / 2;
        assert_eq!(read, (!same_leaf).then(|| bytes(seed)), "{name:?} {index}");
    }
    assert_eq!(rig.pages.counters().damaged, 1);
    assert_eq!(rig.pages.get_mut(A, 27), LookupMut::Damaged);
    assert_eq!(rig.read(A, 26), Ok(None));
    assert_eq!(rig.pages.counters().damaged, 1, "it is not read again and again");
    rig.set(A, 36, 500).unwrap(); // the rest of the array goes on
    rig.checkpoint().unwrap();
}

#[test]
fn an_array_with_damaged_pages_can_be_given_back() {
    let mut rig = filled();
    rig.rot_mirror(0);
    rig.rot_mirror(1);
    rig.reopen_damaged();
    assert_eq!(rig.read(A, 27), Ok(None));
    let step = loop {
        match rig.pages.free_array(A) {
            Step::Load => rig.turn().unwrap(),
            Step::Again => {}
            other => break other,
        }
    };
    assert_eq!(step, Step::Done);
    assert!(rig.pages.counters().lost > 0);
    rig.model.retain(|(name, _), _| *name != A);
    assert_eq!(rig.read(A, 27), Ok(Some(vec![0; LEN])));
    rig.set(A, 27, 4).unwrap();
    assert_eq!(rig.read(A, 27), Ok(Some(bytes(4))));
}

#[test]
fn pages_of_another_store_on_the_same_disk_are_damage_not_content() {
    let mut rig = filled();
    rig.region.disk_id = DiskId(0xd15d);
    rig.pages = Pages::new(rig.region, Bytes(0), rig.arena.clone(), super::rig::TAGS);
    let newest = rig.supers[0].clone().unwrap();
    rig.pages.open_array(A, LEN, newest.roots[&A]);
    assert_eq!(rig.read(A, 0), Ok(None));
    rig.pages.load_map(newest.map);
    while rig.pages.ready().is_none() {
        rig.turn().unwrap();
    }
    assert_eq!(rig.pages.ready(), Some(Err(MapDamaged)));
}

#[test]
fn an_older_page_in_the_right_place_is_damage() {
    let mut rig = Rig::new(100, &[], 1);
    let mut older: Vec<(Root, Vec<u8>)> = vec![];
    let lost = (1..).find_map(|seed| {
        rig.set(A, 0, seed).unwrap();
        rig.checkpoint().unwrap();
        let root = rig.pages.root(A);
        let same_place = older.iter().find(|(before, _)| before.place == root.place).cloned();
        older.push((root, rig.disk.visible.clone()));
        same_place
    });
    // The last write of both mirrors was lost although the disk said that it was done: the page is as it was some time ago.
    let (root, before) = lost.unwrap();
    for mirror in [0, 1] {
        let at = rig.place_at(root.place.0, mirror);
        rig.disk.overwrite(at, &before[at..at + 4096]);
    }
    rig.reopen();
    assert_eq!(rig.read(A, 0), Ok(None));
}

#[test]
fn a_map_is_read_from_what_is_good_of_its_mirrors() {
    let places = 3 * 32_576; // three pages of map
    let mut rig = Rig::new(places, &[], 1);
    (0..20).for_each(|n| rig.set(A, n * 2, n + 1).unwrap());
    rig.checkpoint().unwrap();
    let free = rig.pages.free_places();
    let map = rig.supers[0].as_ref().unwrap().map;
    let at = rig.region.map_at[usize::from(map.area)].0 as usize;
    rig.disk.rot(at + 100);
    rig.disk.rot(at + 4 * 4096 + 77);
    rig.reopen();
    assert_eq!(rig.pages.free_places(), free);
    rig.verify();
    rig.disk.rot(at + 3 * 4096 + 5); // both mirrors of the first page
    rig.pages = Pages::new(rig.region, Bytes(0), rig.arena.clone(), super::rig::TAGS);
    rig.pages.load_map(map);
    while rig.pages.ready().is_none() {
        rig.turn().unwrap();
    }
    assert_eq!(rig.pages.ready(), Some(Err(MapDamaged)));
}

#[test]
fn a_map_page_whose_write_was_lost_in_one_mirror_is_found_out() {
    let mut rig = Rig::new(200, &[], 1);
    let first = rig.supers[0].as_ref().unwrap().map;
    let at = rig.region.map_at[usize::from(first.area)].0 as usize;
    let old = rig.disk.visible[at..at + 4096].to_vec();
    for n in 0..2 {
        rig.set(A, n * 2, n + 1).unwrap();
        rig.checkpoint().unwrap();
    }
    let map = rig.supers[0].as_ref().unwrap().map;
    assert_eq!(map.area, first.area);
    let free = rig.pages.free_places();
    rig.disk.overwrite(at, &old);
    rig.reopen();
    assert_eq!(rig.pages.free_places(), free);
    rig.disk.overwrite(at + 4096, &old);
    rig.pages.load_map(map);
    while rig.pages.ready().is_none() {
        rig.turn().unwrap();
    }
    assert_eq!(rig.pages.ready(), Some(Err(MapDamaged)));
}

#[test]
fn after_a_failed_write_no_checkpoint_ends() {
    let mut rig = Rig::new(200, &[], 1);
    rig.set(A, 1, 1).unwrap();
    rig.disk.fail_write = true;
    let outcome = loop {
        if let Some(outcome) = rig.pages.checkpoint_inner(&mut |op| rig.disk.submit(op)).and_then(Result::err) {
            break Err(outcome);
        }
        if let Some(outcome) = rig.pages.checkpoint(&mut |op| rig.disk.submit(op)) {
            break outcome;
        }
        rig.turn().unwrap();
    };
    assert_eq!(outcome, Err(Errno::IO));
    assert_eq!(rig.pages.failure(), Some(Errno::IO));
    assert_eq!(rig.read(A, 1), Ok(Some(bytes(1))));
    assert_eq!(rig.pages.checkpoint(&mut |_| panic!("the disk is not asked again")), Some(Err(Errno::IO)));
}

#[test]
fn what_failed_to_be_written_stays_in_memory() {
    let mut rig = Rig::new(2000, &[], 1);
    (0..400).for_each(|n| rig.set(B, n * 2, n + 1).unwrap());
    rig.checkpoint().unwrap();
    rig.reopen();
    rig.set(A, 1, 1).unwrap();
    assert!(rig.pages.checkpoint(&mut |op| rig.disk.submit(op)).is_none());
    while rig.pages.in_flight() > 0 {
        rig.disk.fail_write = true;
        rig.turn().unwrap();
    }
    assert!(rig.pages.failure().is_some());
    rig.disk.fail_write = false;
    // What else the cache has goes.
    for n in (0..400).chain(0..400).chain(0..400) {
        assert_eq!(rig.read(B, n * 2), Ok(Some(bytes(n + 1))));
    }
    assert!(rig.pages.counters().evicted > 400);
    assert_eq!(rig.read(A, 1), Ok(Some(bytes(1))));
}

#[test]
fn a_completion_that_belongs_to_nothing_is_counted() {
    let mut rig = Rig::new(200, &[], 1);
    for tag in [0, super::rig::TAGS, super::rig::TAGS | 1 << 40] {
        let into = rig.arena.take(4096, Class::Client).unwrap();
        let op = Op::DiskRead { disk: rig.region.disk, tag, at: 0, into, from: 0, len: 4096 };
        assert!(!rig.pages.done(Done { op, result: Ok(4096) }));
    }
    assert_eq!(rig.pages.counters().strays, 3);
    rig.set(B, 1, 1).unwrap();
    rig.verify();
}

#[test]
fn a_page_that_was_found_bad_before_the_one_above_it_is_given_up_with_it() {
    let mut rig = filled();
    rig.reopen();
    let key = |level| Key { level, array: A.0, index: 0 };
    assert!(rig.read(A, 0).unwrap().is_some());
    let places =
        [0, 1].map(|level| match rig.pages.cache.find(key(level)).map(|slot| rig.pages.cache.frame(slot).state()) {
            Some(State::Clean(place)) => place,
            other => panic!("{other:?}"),
        });
    for (level, place) in (0..).zip(places) {
        let mirrors = [0, 1].map(|mirror| rig.place_at(place.0, mirror));
        mirrors.into_iter().for_each(|at| rig.disk.visible[at + 1000] ^= 1);
        while rig.pages.cache.evict() {}
        while rig.pages.get(A, 0) == Lookup::Load {
            rig.turn().unwrap();
        }
        assert_eq!(rig.pages.get(A, 0), Lookup::Damaged, "level {level}");
    }
    let mut given_up = 0;
    let found = loop {
        match rig.pages.get_mut(A, 0) {
            LookupMut::Here(bytes) => break bytes.to_vec(),
            LookupMut::Load => rig.turn().unwrap(),
            LookupMut::Damaged => {
                let bad = rig.pages.met_bad().unwrap();
                let told =
                    rig.pages.give_up(bad, 0..2000, &mut |index, bytes| bytes.fill(u8::try_from(index).unwrap() + 7));
                assert_eq!(told, GivenUp::Again);
                given_up += 1;
            }
            LookupMut::Full => panic!("there are places"),
        }
    };
    assert_eq!((found, rig.pages.counters().lost), (vec![7; LEN], 2));
    assert_eq!(given_up, 3, "the upper one was looked at once more, the lower one is not there any more");
    rig.checkpoint().unwrap();
}
