use super::*;
use conductor_model::Blocks;
use driver::Span;
use proptest::prelude::*;

const READ: Mode = Mode::Shared;
const WRITE: Mode = Mode::Exclusive;

fn range(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

fn wish(session: u32, from: u32, count: u32, mode: Mode) -> Wish {
    let conn = ConnId { slot: session, generation: 0 };
    Wish { session, conn, range: range(from, count), mode, until: None, room: true, again: false }
}

fn waits(wish: Wish, until: u64) -> Wish {
    Wish { until: Some(Time(until)), ..wish }
}

/// Of a primary that nobody was before.
fn served() -> Ranges<u32> {
    let mut ranges = Ranges::new(false);
    ranges.serves(Time(0));
    ranges
}

/// How it was answered at once; `None`: it waits.
fn ask(ranges: &mut Ranges<u32>, now: u64, wish: Wish) -> Option<Status> {
    match ranges.ask(Time(now), wish, wish.session) {
        Asked::Said(waiter, status) => {
            assert_eq!(waiter, wish.session);
            Some(status)
        }
        Asked::Waits => None,
    }
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    for (held, asked, there_is_room) in
        [(READ, READ, true), (READ, WRITE, false), (WRITE, READ, false), (WRITE, WRITE, false)]
    {
        let mut ranges = served();
        assert_eq!(ask(&mut ranges, 0, wish(1, 8, 8, held)), Some(Status::Ok));
        let expected = if there_is_room { Status::Ok } else { Status::RangeTaken };
        // By one block, at either end; inside; around.
        for (from, count) in [(0, 9), (15, 4), (8, 8), (10, 1), (0, 40)] {
            let mut ranges = served();
            ask(&mut ranges, 0, wish(1, 8, 8, held));
            assert_eq!(ask(&mut ranges, 0, wish(2, from, count, asked)), Some(expected), "{held:?} {asked:?} {from}");
        }
        // Beside it.
        for (from, count) in [(0, 8), (16, 4)] {
            assert_eq!(ask(&mut ranges, 0, wish(2, from, count, asked)), Some(Status::Ok));
        }
        assert_eq!(
            ask(&mut ranges, 0, wish(1, 0, 40, WRITE)),
            Some(Status::RangeTaken),
            "by what the other holds beside"
        );
    }
}

#[test]
fn a_session_is_not_in_its_own_way_and_asks_as_often_as_it_likes() {
    let mut ranges = served();
    for _ in 0..2 * MAX_RANGES {
        assert_eq!(ask(&mut ranges, 0, wish(1, 0, 8, READ)), Some(Status::Ok));
        assert_eq!(ask(&mut ranges, 0, wish(1, 4, 8, WRITE)), Some(Status::Ok));
    }
    assert_eq!(ranges.of(1), 2);
}

#[test]
fn only_what_is_held_for_writing_may_be_written_in_one_piece_or_in_several() {
    let mut ranges = served();
    for (from, count, mode) in [(0, 4, WRITE), (4, 4, WRITE), (8, 4, READ), (14, 2, WRITE)] {
        assert_eq!(ask(&mut ranges, 0, wish(1, from, count, mode)), Some(Status::Ok));
    }
    for (from, count, may) in [
        (0, 8, true),
        (3, 2, true),
        (7, 1, true),
        (7, 2, false),
        (8, 1, false),
        (12, 3, false),
        (13, 1, false),
        (15, 1, true),
    ] {
        assert_eq!(ranges.may_write(1, range(from, count)), may, "{from}+{count}");
        assert!(!ranges.may_write(2, range(from, count)), "somebody else");
    }
    ask(&mut ranges, 0, waits(wish(2, 0, 4, WRITE), 9));
    assert!(!ranges.may_write(2, range(0, 1)), "who waits does not hold it");
}

#[test]
fn who_waits_is_served_in_the_order_of_arrival() {
    let mut ranges = served();
    ask(&mut ranges, 0, wish(1, 0, 8, READ));
    assert_eq!(ask(&mut ranges, 0, waits(wish(2, 4, 8, WRITE), 100)), None);
    assert_eq!(ask(&mut ranges, 0, waits(wish(3, 4, 1, READ), 100)), None, "a reader does not overtake a writer");
    assert_eq!(ask(&mut ranges, 0, wish(3, 5, 1, READ)), Some(Status::RangeTaken), "nor by not waiting");
    assert_eq!(ask(&mut ranges, 0, waits(wish(4, 20, 1, WRITE), 100)), Some(Status::Ok), "nobody is in its way");
    assert!(ranges.take_decided(Time(1), true).is_empty());
    assert_eq!(ranges.give_back(1, range(0, 8), READ).count(), 0);
    assert_eq!(ranges.take_decided(Time(1), true), [(2, Status::Ok)]);
    assert_eq!(ranges.give_back(2, range(4, 8), WRITE).count(), 0);
    assert_eq!(ranges.take_decided(Time(1), true), [(3, Status::Ok)]);
}

#[test]
fn waiting_ends_with_its_time_and_makes_way() {
    let mut ranges = served();
    ask(&mut ranges, 0, wish(1, 0, 8, READ));
    ask(&mut ranges, 0, waits(wish(2, 0, 8, WRITE), 50));
    ask(&mut ranges, 0, waits(wish(3, 0, 8, READ), 100));
    assert!(ranges.take_decided(Time(49), true).is_empty());
    assert_eq!(
        ranges.take_decided(Time(50), false),
        [(2, Status::RangeTaken)],
        "by a primary that may have been replaced"
    );
    assert_eq!(ranges.take_decided(Time(50), true), [(3, Status::Ok)]);
}

#[test]
fn it_is_given_back_by_its_session_alone_and_who_waits_may_withdraw() {
    let mut ranges = served();
    ask(&mut ranges, 0, wish(1, 0, 8, WRITE));
    ask(&mut ranges, 0, waits(wish(2, 0, 8, WRITE), 50));
    assert_eq!(ranges.give_back(3, range(0, 8), WRITE).count(), 0);
    assert_eq!(ranges.give_back(1, range(0, 7), WRITE).count(), 0, "another range");
    assert_eq!(ranges.give_back(1, range(0, 8), READ).count(), 0, "another way");
    assert!(ranges.may_write(1, range(0, 8)));
    assert_eq!(ranges.give_back(2, range(0, 8), WRITE).collect::<Vec<_>>(), [2]);
    ranges.give_back(1, range(0, 8), WRITE).for_each(drop);
    assert!(ranges.take_decided(Time(1), true).is_empty() && ranges.all().count() == 0);
}

#[test]
fn what_is_held_goes_with_its_session_and_what_waits_with_its_connection() {
    let mut ranges = served();
    ask(&mut ranges, 0, wish(1, 0, 8, WRITE));
    ask(&mut ranges, 0, waits(wish(2, 0, 8, WRITE), 50));
    ask(&mut ranges, 0, waits(wish(3, 0, 8, WRITE), 50));
    ranges.only(|_| true, |conn| conn.slot == 3);
    assert!(ranges.may_write(1, range(0, 8)), "a session may have other connections");
    ranges.only(|session| session != 1, |_| true);
    assert_eq!(ranges.take_decided(Time(1), true), [(3, Status::Ok)], "2 has hung up");
    assert_eq!(ranges.into_waiting().count(), 0);
}

#[test]
fn there_are_so_many_and_no_more() {
    let mut ranges = served();
    let (each, all) = (u32::try_from(MAX_RANGES_HERE).unwrap(), u32::try_from(MAX_RANGES).unwrap());
    for at in 0..all {
        assert_eq!(ask(&mut ranges, 0, wish(at / each, at, 1, WRITE)), Some(Status::Ok));
        if at == each - 1 {
            assert_eq!(ask(&mut ranges, 0, wish(0, all, 1, WRITE)), Some(Status::TooMany), "others have room");
        }
    }
    assert_eq!(ask(&mut ranges, 0, wish(all, all, 1, WRITE)), Some(Status::TooMany));
    assert_eq!(ask(&mut ranges, 0, waits(wish(all, 0, 1, WRITE), 9)), Some(Status::TooMany));
    let no_room = Wish { room: false, ..wish(0, 0, 1, WRITE) };
    assert_eq!(ask(&mut ranges, 0, no_room), Some(Status::Ok), "what is held already");
    assert_eq!(ask(&mut served(), 0, no_room), Some(Status::TooMany), "it has enough elsewhere");
}

#[test]
fn what_was_held_before_is_given_back_whoever_waits_and_whatever_its_session_has_elsewhere() {
    let mut ranges = Ranges::new(true);
    ranges.serves(Time(0));
    let (each, all) = (u32::try_from(MAX_RANGES_HERE).unwrap(), u32::try_from(MAX_RANGES).unwrap());
    for at in 0..all {
        assert_eq!(ask(&mut ranges, 1, waits(wish(at / each, at, 1, WRITE), u64::MAX)), None);
    }
    let again = |session, at| Wish { again: true, room: false, ..wish(session, at, 1, WRITE) };
    for at in 0..each {
        assert_eq!(ask(&mut ranges, 1, again(0, all + at)), Some(Status::Ok));
    }
    assert_eq!(ask(&mut ranges, 1, again(0, 2 * all)), Some(Status::TooMany), "that many it never held");
    assert_eq!(ask(&mut ranges, RANGE_GRACE.0, again(1, 2 * all)), Some(Status::TooMany), "as anybody's from then on");
}

#[test]
fn who_asks_again_for_what_it_waits_for_waits_once() {
    let mut ranges = served();
    ask(&mut ranges, 0, wish(1, 0, 8, WRITE));
    for _ in 0..2 * MAX_RANGES {
        let again = waits(wish(2, 0, 8, WRITE), 9);
        ranges.asks_anew(&again).for_each(|waiter| assert_eq!(waiter, 2));
        assert_eq!(ask(&mut ranges, 0, again), None);
    }
    assert_eq!(ranges.of(2), 1);
    assert_eq!(ranges.asks_anew(&wish(1, 0, 8, WRITE)).count(), 0, "what is held stays so");
    assert!(ranges.may_write(1, range(0, 8)));
}

#[test]
fn a_primary_that_follows_another_gives_ranges_to_those_who_held_them_first() {
    let mut ranges = Ranges::new(true);
    ranges.serves(Time(7));
    let open = (Time(7) + RANGE_GRACE).0;
    assert_eq!(ask(&mut ranges, 8, wish(1, 0, 8, WRITE)), Some(Status::Later));
    assert_eq!(ask(&mut ranges, 8, waits(wish(1, 0, 8, WRITE), u64::MAX)), None);
    assert!(ranges.take_decided(Time(8), true).is_empty());
    let held_before = |session, from| Wish { again: true, ..waits(wish(session, from, 4, WRITE), u64::MAX) };
    assert_eq!(ask(&mut ranges, 9, held_before(2, 4)), Some(Status::Ok), "before who waits");
    assert_eq!(ask(&mut ranges, 9, held_before(3, 6)), Some(Status::RangeTaken), "it never waits");
    // Another epoch under this primary is no new beginning.
    ranges.serves(Time(open - 1));
    assert!(ranges.take_decided(Time(open), true).is_empty());
    assert_eq!(ask(&mut ranges, open, held_before(4, 0)), Some(Status::RangeTaken), "too late: somebody waits for it");
    ranges.give_back(2, range(4, 4), WRITE).for_each(drop);
    assert_eq!(ranges.take_decided(Time(open), true), [(1, Status::Ok)]);
}

proptest! {
    #[test]
    fn held_ranges_never_conflict_and_nobody_waits_for_ever(
        steps in prop::collection::vec((1u32..5, 0u32..16, 1u32..6, any::<bool>(), any::<bool>(), 0u32..4), 1..150)
    ) {
        let mut ranges = served();
        let mut now = 0;
        for (session, from, count, write, patient, what) in steps {
            now += 1;
            let mode = if write { WRITE } else { READ };
            let asked = wish(session, from, count, mode);
            match what {
                0 => ranges.give_back(session, range(from, count), mode).for_each(drop),
                1 => ranges.only(|s| s != session, |_| true),
                _ => {
                    ask(&mut ranges, now, if patient { waits(asked, now + 20) } else { asked });
                }
            }
            ranges.take_decided(Time(now), true).into_iter().for_each(drop);
            let all: Vec<(Wish, bool)> = ranges.all().collect();
            for (n, (a, held)) in all.iter().enumerate() {
                let in_the_way = |(m, (b, b_held)): (usize, &(Wish, bool))| {
                    let alone = a.mode == WRITE || b.mode == WRITE;
                    (m < n || *b_held) && alone && a.session != b.session && a.range.overlaps(b.range)
                };
                let blocked = all.iter().enumerate().filter(|(m, _)| *m != n).any(in_the_way);
                prop_assert_eq!(*held, !blocked);
            }
        }
        // Everybody's time is over sometime.
        ranges.take_decided(Time(0) + Span(now + 100), true);
        prop_assert!(ranges.all().all(|(_, held)| held));
    }
}
