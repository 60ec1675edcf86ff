//! An arena against a model of it: what is taken belongs to one, reserves hold, everything comes back.
#![allow(clippy::unwrap_used, reason = "a test")]

use memory::{
    Arena, ArenaError, ArenaOptions, Backing, Class, Filling, MAX_LEN, NamedError, NamedFiles, PAGE, Reads, Shares,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::path::PathBuf;

const CLASSES: [Class; 5] = [Class::Settle, Class::Replica, Class::Resync, Class::Work, Class::Client];
const BYTES: usize = 16 << 20;

fn arena(shares: Shares) -> Arena {
    Arena::new(ArenaOptions { bytes: BYTES, backing: Backing::Heap, shares }).unwrap()
}

fn fill_up(arena: &Arena, class: Class, len: usize) -> Vec<Filling> {
    std::iter::from_fn(|| arena.take(len, class)).collect()
}

#[test]
fn a_buffer_is_aligned_and_shows_exactly_what_was_asked_for() {
    let arena = Arena::small(BYTES);
    for (len, capacity) in [(1, PAGE), (4096, PAGE), (4097, 2 * PAGE), (65537, 128 << 10), (MAX_LEN, MAX_LEN)] {
        let mut filling = arena.take(len, Class::Client).unwrap();
        assert_eq!((filling.len(), filling.capacity(), filling.as_ptr() as usize % PAGE), (len, capacity, 0));
        assert_eq!(arena.in_use(), capacity);
        filling.fill(7);
        filling.truncate(len.div_ceil(2));
        let reads = filling.filled();
        assert!(reads.len() == len.div_ceil(2) && reads.iter().all(|byte| *byte == 7));
    }
    assert_eq!(arena.in_use(), 0);
    assert!(arena.take(0, Class::Client).is_none() && arena.take(MAX_LEN + 1, Class::Client).is_none());
}

#[test]
fn memory_comes_back_with_its_last_reader_and_a_leak_has_a_name() {
    let arena = Arena::small(BYTES);
    let reads = arena.take(PAGE, Class::Client).unwrap().filled();
    let other = reads.share();
    let filling = arena.take(PAGE, Class::Client).unwrap();
    let report = arena.leaks().unwrap_err().to_string();
    assert!(report.contains("2 reads") && report.contains("1 filling"), "{report}");
    drop((reads, filling));
    assert_eq!(arena.in_use(), PAGE);
    drop(other);
    assert_eq!(arena.in_use(), 0);
    arena.leaks().unwrap();
}

#[test]
fn the_least_even_arena_keeps_one_longest_piece_for_each_class_whatever_the_others_took() {
    for longest in [5 * PAGE, 97 * PAGE - 1, MAX_LEN] {
        let bytes = Shares::least_even(longest);
        let of = |bytes| {
            let arena =
                Arena::new(ArenaOptions { bytes, backing: Backing::SmallPages, shares: Shares::even(bytes) }).unwrap();
            // One class has all that is common, and of its own all but a longest piece.
            let mut crumbs = fill_up(&arena, Class::Client, PAGE);
            let others = CLASSES.iter().filter(|class| **class != Class::Client);
            let kept = others.map(|class| arena.take(longest, *class)).collect::<Vec<_>>();
            crumbs.clear();
            kept.iter().all(Option::is_some)
        };
        assert!(of(bytes), "{longest}");
        assert!(!of(bytes - 8 * PAGE), "{longest}: it is the least");
    }
}

#[test]
fn what_is_spare_is_no_classs_own_and_not_the_last_quarter_of_the_rest() {
    let arena = arena(Shares::even(BYTES));
    let spare = || std::iter::from_fn(|| arena.take_spare(64 << 10)).collect::<Vec<_>>();
    let common = BYTES / 8 * 3;
    let mut taken = spare();
    assert_eq!(arena.in_use(), common / 4 * 3);
    assert!(CLASSES.iter().all(|class| arena.free(*class) == BYTES / 8 + common / 4));
    let quarter = common / 4 / (64 << 10);
    let payloads: Vec<_> = (0..BYTES / 8 / (64 << 10) + quarter).map(|_| arena.take(64 << 10, Class::Client)).collect();
    assert!(payloads.iter().all(Option::is_some), "all of it is for them");
    taken.truncate(quarter);
    assert!(arena.take_spare(1).is_some());
    drop(payloads);
    assert_eq!(spare().len(), 2 * quarter);
    let reserved = Shares { client: BYTES, ..Shares::default() };
    assert!(self::arena(reserved).take_spare(1).is_none() && arena.take_spare(MAX_LEN + 1).is_none());
}

#[test]
fn what_is_common_is_no_classs_own() {
    let arena = arena(Shares::even(BYTES));
    let taken: Vec<_> = std::iter::from_fn(|| arena.take_common(PAGE)).collect();
    assert_eq!(arena.in_use(), BYTES / 8 * 3);
    assert!(CLASSES.iter().all(|class| arena.free(*class) == BYTES / 8));
    drop(taken);
    assert_eq!(arena.in_use(), 0);
    assert!(arena.take_common(MAX_LEN + 1).is_none());
}

#[test]
fn only_the_last_reader_can_write_again() {
    let arena = Arena::small(BYTES);
    let reads = arena.take_zeroed(10, Class::Client).unwrap().filled();
    let other = reads.share();
    let reads = reads.try_filling().unwrap_err();
    drop(other);
    let mut filling = reads.try_filling().unwrap();
    assert_eq!(*filling, [0; 10]);
    filling[0] = 1;
}

#[test]
fn a_part_names_bytes_of_shared_memory() {
    let arena = Arena::small(BYTES);
    let mut filling = arena.take(4, Class::Client).unwrap();
    filling.copy_from_slice(b"abcd");
    let reads = filling.filled();
    assert_eq!(memory::Part { mem: reads.share(), from: 1, len: 2 }.bytes(), b"bc");
    assert_eq!(reads.whole().bytes(), b"abcd");
}

#[test]
fn a_buffer_outlives_the_arena_that_it_came_from() {
    let arena = Arena::small(BYTES);
    let mut filling = arena.take(MAX_LEN, Class::Client).unwrap();
    drop(arena);
    filling.fill(1);
    assert_eq!(filling.filled()[MAX_LEN - 1], 1);
}

#[test]
fn clients_that_take_all_they_can_leave_each_class_its_own_whole_pieces() {
    let arena = arena(Shares::even(BYTES));
    let crumbs = fill_up(&arena, Class::Client, 1);
    assert_eq!(crumbs.len(), BYTES * 4 / 8 / PAGE);
    for class in [Class::Settle, Class::Replica, Class::Resync, Class::Work] {
        assert_eq!(arena.free(class), BYTES / 8);
        assert!(arena.take(1 << 20, class).is_some(), "{class:?} has a megabyte in one piece");
    }
}

#[test]
fn who_waits_for_a_large_piece_gets_it_although_others_take_each_small_one_that_comes_back() {
    const SMALL: usize = 64 << 10;
    const LARGE: usize = 1 << 20;
    let arena = arena(Shares::even(BYTES));
    let mut small = VecDeque::from(fill_up(&arena, Class::Client, SMALL));
    // As much as the class has for itself comes back from nobody: it was taken first.
    let _pinned: Vec<_> = small.drain(..BYTES / 8 / SMALL).collect();
    let mut one_comes_back_and_is_wanted = || {
        small.pop_front();
        small.extend(arena.take(SMALL, Class::Client));
    };
    for _ in 0..1000 {
        one_comes_back_and_is_wanted();
        assert!(arena.take(LARGE, Class::Client).is_none());
    }
    let reservation = arena.reserve(Class::Client).unwrap();
    assert!(arena.reserve(Class::Client).is_none() && arena.reserve(Class::Work).is_some());
    let mut back = 0;
    let large = loop {
        back += 1;
        assert!(back < 200, "so many small pieces there are not");
        one_comes_back_and_is_wanted();
        if let Some(large) = reservation.take(LARGE) {
            break large;
        }
    };
    assert_eq!(large.len(), LARGE);
    drop(reservation);
    assert!(arena.reserve(Class::Client).is_some());
}

#[test]
fn what_cannot_be_had_is_said_in_one_sentence() {
    let make = |bytes, backing, shares| Arena::new(ArenaOptions { bytes, backing, shares }).unwrap_err();
    assert!(matches!(make(0, Backing::Heap, Shares::only_client()), ArenaError::Size(0)));
    let greedy = Shares { settle: PAGE, replica: usize::MAX, ..Shares::default() };
    assert!(matches!(make(PAGE, Backing::Heap, greedy), ArenaError::Shares { .. }));
    let huge = make(1 << 40, Backing::HugePages, Shares::only_client());
    assert!(huge.to_string().contains("vm.nr_hugepages"), "{huge}");
}

#[derive(Clone, Debug)]
enum Step {
    Take { len: usize, class: usize },
    Fill { which: usize },
    Share { which: usize },
    Drop { which: usize },
    TryFilling { which: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![4 => 1..=PAGE, 2 => 1..=65536_usize, 1 => 1..=MAX_LEN];
    let step = prop_oneof![
        5 => (len, 0..5_usize).prop_map(|(len, class)| Step::Take { len, class }),
        2 => any::<usize>().prop_map(|which| Step::Fill { which }),
        2 => any::<usize>().prop_map(|which| Step::Share { which }),
        4 => any::<usize>().prop_map(|which| Step::Drop { which }),
        1 => any::<usize>().prop_map(|which| Step::TryFilling { which }),
    ];
    prop::collection::vec(step, 1..300)
}

enum Life {
    Filling(Filling),
    Reads(Reads),
}

/// One handle: its stamp, which fills its memory, tells whether anybody else wrote there.
struct Handle {
    life: Life,
    stamp: u8,
    buffer: usize,
}

struct Buffer {
    at: usize,
    capacity: usize,
    handles: usize,
    class: Class,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn no_two_buffers_overlap_reserves_hold_and_everything_comes_back(steps in steps(), even in any::<bool>()) {
        let shares = if even { Shares::even(BYTES) } else { Shares { settle: 3 << 20, resync: 5 * PAGE, ..Shares::default() } };
        let own = [shares.settle, shares.replica, shares.resync, shares.work, shares.client];
        let arena = arena(shares);
        let fresh = CLASSES.map(|class| arena.free(class));
        let (mut handles, mut buffers) = (Vec::<Handle>::new(), Vec::<Buffer>::new());
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Take { len, class } => {
                    let class = CLASSES[class];
                    let free = arena.free(class);
                    let Some(mut filling) = arena.take(len, class) else {
                        // 4 KiB needs no luck with pieces: if there is one page, it can be had.
                        prop_assert!(len > PAGE || free == 0);
                        continue;
                    };
                    let (at, capacity) = (filling.as_ptr() as usize, filling.capacity());
                    prop_assert!(at % PAGE == 0 && filling.len() == len && capacity >= len && capacity <= free);
                    for other in buffers.iter().filter(|other| other.handles > 0) {
                        prop_assert!(at + capacity <= other.at || other.at + other.capacity <= at);
                    }
                    let stamp = number.to_le_bytes()[0];
                    filling.fill(stamp);
                    handles.push(Handle { life: Life::Filling(filling), stamp, buffer: buffers.len() });
                    buffers.push(Buffer { at, capacity, handles: 1, class });
                }
                Step::Fill { which } | Step::Share { which } | Step::Drop { which } | Step::TryFilling { which }
                    if !handles.is_empty() =>
                {
                    let Handle { life, stamp, buffer } = handles.swap_remove(which % handles.len());
                    let intact = match &life { Life::Filling(bytes) => bytes.iter().all(|b| *b == stamp), Life::Reads(bytes) => bytes.iter().all(|b| *b == stamp) };
                    prop_assert!(intact, "somebody else wrote here");
                    let mut keep = |life| handles.push(Handle { life, stamp, buffer });
                    match (step, life) {
                        (Step::Fill { .. }, Life::Filling(filling)) => keep(Life::Reads(filling.filled())),
                        (Step::Share { .. }, Life::Reads(reads)) => {
                            buffers[buffer].handles += 1;
                            keep(Life::Reads(reads.share()));
                            keep(Life::Reads(reads));
                        }
                        (Step::TryFilling { .. }, Life::Reads(reads)) => match reads.try_filling() {
                            Ok(filling) => { prop_assert_eq!(buffers[buffer].handles, 1); keep(Life::Filling(filling)) }
                            Err(reads) => { prop_assert!(buffers[buffer].handles > 1); keep(Life::Reads(reads)) }
                        },
                        (Step::Drop { .. }, life) => { buffers[buffer].handles -= 1; drop(life) }
                        (_, life) => keep(life),
                    }
                }
                _ => {}
            }
            let used = |class| buffers.iter().filter(|b| b.handles > 0 && b.class == class).map(|b| b.capacity).sum::<usize>();
            prop_assert_eq!(arena.in_use(), CLASSES.map(used).iter().sum::<usize>());
            for (class, own) in CLASSES.into_iter().zip(own) {
                // Only what a class uses itself can lessen its own reserve.
                prop_assert!(arena.free(class) + used(class) >= own);
            }
        }
        drop(handles);
        arena.leaks().unwrap();
        prop_assert_eq!(arena.in_use(), 0);
        prop_assert_eq!(CLASSES.map(|class| arena.free(class)), fresh);
        let whole: Vec<_> = fill_up(&arena, Class::Settle, 1 << 20);
        prop_assert!(whole.len() >= 8, "free pieces grew together again");
    }
}

/// Directories that stand for memory nodes.
struct Nodes(Vec<PathBuf>);

impl Nodes {
    fn new(name: &str, count: usize) -> Self {
        let dir = |n| std::env::temp_dir().join(format!("trine-arena-{}-{name}-{n}", std::process::id()));
        let dirs: Vec<PathBuf> = (0..count).map(dir).collect();
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        Self(dirs)
    }
    fn files(&self) -> NamedFiles {
        NamedFiles { dirs: self.0.clone(), name: "lane0".to_owned(), first: 0 }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.0.iter().for_each(|dir| drop(std::fs::remove_dir_all(dir)));
    }
}

#[test]
fn an_arena_on_files_is_spread_over_its_directories_and_finds_its_bytes_again() {
    let nodes = Nodes::new("found", 2);
    let bytes = (65 << 20) + 1;
    let make = || Arena::on_files(bytes, Shares::only_client(), &nodes.files());
    let arena = make().unwrap();
    assert_eq!(arena.capacity(), bytes.next_multiple_of(PAGE));
    let in_use = make().unwrap_err();
    assert!(matches!(in_use, ArenaError::Named(NamedError::InUse(_))), "{in_use}");
    // As many buffers as there are, so that both files hold some.
    let mut count = 0_u8;
    let taken: Vec<_> = std::iter::from_fn(|| arena.take(1 << 20, Class::Client))
        .map(|mut buffer| {
            count += 1;
            buffer.fill(count);
            buffer
        })
        .collect();
    assert_eq!((arena.take(1 << 20, Class::Client).is_none(), count), (true, 65));
    drop((taken, arena));
    let sizes = |dir: usize, file: &str| std::fs::metadata(nodes.0[dir].join(file)).unwrap().len();
    assert_eq!((sizes(0, "lane0.0"), sizes(1, "lane0.1")), (64 << 20, (1 << 20) + 4096));

    let again = make().unwrap();
    let buffers = fill_up(&again, Class::Client, 1 << 20);
    assert!(buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == buffer[0])));
    let mut found: Vec<u8> = buffers.iter().map(|buffer| buffer[0]).collect();
    found.sort_unstable();
    assert_eq!(found, (1..=65).collect::<Vec<u8>>());
}

#[test]
fn files_that_cannot_be_had_are_said_in_one_sentence() {
    let none = NamedFiles { dirs: vec!["/nowhere/at/all".into()], name: "m".to_owned(), first: 0 };
    let error = Arena::on_files(1 << 20, Shares::only_client(), &none).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all/m.0"), "{error}");
}
