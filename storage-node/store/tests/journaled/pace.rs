//! How what the journal holds goes home: at a pace, in order with what else the disk has to do, and not at all where it is overwritten first.

use super::disk::*;
use super::{fold, fresh, snapshot, two_copies, zero};
use conductor_model::{BLOCK, CopyId, SnapshotId, Stamp};
use driver::{Op, Span, Time};
use memory::{Arena, Class};
use node_store::journaled::JournaledStore;
use node_store::{Parent, Store, StoreOp, Tag, View};

/// A store in the midst of a fold that keeps to its pace: many small writes have filled half of the journal, none came for some time, and
/// somebody reads.
struct Paced {
    disk: Disk,
    arena: Arena,
    store: JournaledStore,
    /// The first byte that is no metadata.
    data: usize,
    now: Time,
}

impl Paced {
    const WRITES: u32 = 500;

    fn new() -> Self {
        let (mut disk, arena, mut store) = two_copies(900);
        run(&mut store, &mut disk, snapshot(1, 9, 1)).unwrap();
        for n in 0..Self::WRITES {
            let op = write(&arena, 1, range(n * 32, 1), 2 + u64::from(n), u64::from(n));
            store.submit(NOW, Tag(u64::from(n)), op, &mut |op| disk.submit(op));
        }
        let data = disk.visible.len() - 20_000 * BLOCK;
        let mut this = Self { disk, arena, store, data, now: NOW };
        assert_eq!(this.now_home(), 0, "there is room for more");
        this.now = NOW + Span::millis(1000);
        let Self { disk, arena, store, now, .. } = &mut this;
        let into = arena.take(BLOCK, Class::Client).expect("the test has memory");
        let op = StoreOp::Read { copy: CopyId(1), view: View::Live, at: range(0, 1), into };
        store.submit(*now, Tag(0), op, &mut |op| disk.submit(op));
        // What the writes have earned.
        while this.now_home() == 0 {
            this.next().expect("a fold is due");
        }
        while let Some((_, result)) = this.store.next_completion() {
            result.unwrap();
        }
        this
    }

    /// All that is done without time going on; how many blocks go home.
    fn now_home(&mut self) -> usize {
        let Self { disk, store, data, now, .. } = self;
        let mut home = 0;
        loop {
            let before = disk.inflight.len();
            store.end_turn(*now, &mut |op| disk.submit(op));
            let is_home = |(op, _): &&(Op, usize)| matches!(op, Op::DiskWrite { at, .. } if *at as usize >= *data);
            home += disk.inflight[before..].iter().filter(is_home).count();
            let Some(done) = disk.step() else { return home };
            store.done(*now, done, &mut |op| disk.submit(op));
        }
    }

    /// The same, but that writes home stay out: they are put into `out`.
    fn now_but_home(&mut self, out: &mut Vec<(Op, usize)>) {
        let Self { disk, store, data, now, .. } = self;
        loop {
            store.end_turn(*now, &mut |op| disk.submit(op));
            let is_home = |(op, _): &(Op, usize)| matches!(op, Op::DiskWrite { at, .. } if *at as usize >= *data);
            let (home, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut disk.inflight).into_iter().partition(is_home);
            out.extend(home);
            disk.inflight = rest;
            let Some(done) = disk.step() else { return };
            store.done(*now, done, &mut |op| disk.submit(op));
        }
    }

    /// Goes on to when the store wants another turn, if that is soon.
    fn next(&mut self) -> Option<()> {
        self.now = self.store.next_deadline().filter(|at| *at <= self.now + Span::millis(1))?;
        Some(())
    }

    fn share(&mut self, from: u32) {
        let parent = Parent { copy: CopyId(1), snapshot: SnapshotId(9) };
        let (copy, stamp, at) = (CopyId(2), stamp(9000 + u64::from(from)), range(from, 16));
        let op = StoreOp::Share { copy, stamp, at, from: parent, known_good: Stamp::default() };
        let Self { disk, store, now, .. } = self;
        store.submit(*now, Tag(u64::from(from)), op, &mut |op| disk.submit(op));
    }
}

#[test]
fn blocks_go_home_at_a_pace() {
    let mut paced = Paced::new();
    let mut home = Vec::new();
    while paced.next().is_some() {
        home.push(paced.now_home());
    }
    assert!(home.len() > 5 && home.iter().all(|moved| *moved <= 32), "little by little: {home:?}");
    fold(&mut paced.store, &mut paced.disk);
}

#[test]
fn what_is_overwritten_before_it_goes_home_stays_where_it_is() {
    const BLOCKS: u32 = 700;
    let (mut disk, arena, mut store) = two_copies(8000);
    // Over and over. With its record's, a write takes two blocks of the journal, so that a fold has these once or twice.
    for n in 0..20 * BLOCKS {
        let (at, version) = (range(n % BLOCKS * 4, 1), u64::from(n) + 1);
        run(&mut store, &mut disk, write(&arena, 1, at, version, version)).unwrap();
    }
    let (folds, parts) = (store.counters().checkpoints, store.counters().parts);
    assert!(folds >= 5 && parts * 2 > folds, "{parts} of {folds} folds left what was written again");
    // What hides the others is still there after a crash, and then goes home.
    drop(store);
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    let all_are_there = |store: &mut JournaledStore, disk: &mut Disk| {
        for n in 0..BLOCKS {
            let newest = block_of(u64::from(19 * BLOCKS + n) + 1);
            assert_eq!(read(store, disk, &arena, 1, range(n * 4, 1)).unwrap(), newest, "block {n}");
        }
    };
    all_are_there(&mut store, &mut disk);
    fold(&mut store, &mut disk);
    all_are_there(&mut store, &mut disk);
    assert!(store.is_all_home() && store.counters().corrupt == 0);
}

#[test]
fn of_what_is_written_again_and_again_little_goes_home() {
    let (mut disk, arena, mut store) = two_copies(8000);
    let data = disk.visible.len() - 20_000 * BLOCK;
    let mut home = 0;
    let mut step = |store: &mut JournaledStore, disk: &mut Disk, n: u32| {
        // Anywhere in 500 blocks: half of what a generation has records.
        let at = range(n.wrapping_mul(2_654_435_761) / 7 % 500 * 4, 1);
        let op = write(&arena, 1, at, u64::from(n) + 1, 7);
        store.submit(NOW, Tag(u64::from(n)), op, &mut |op| disk.submit(op));
        while store.next_completion().is_none() {
            let before = disk.inflight.len();
            store.end_turn(NOW, &mut |op| disk.submit(op));
            for (op, _) in &disk.inflight[before.min(disk.inflight.len())..] {
                if let Op::DiskWrite { at, parts, .. } = op
                    && *at as usize >= data
                {
                    home += parts.iter().map(|part| part.len / BLOCK).sum::<usize>();
                }
            }
            if let Some(done) = disk.step() {
                store.done(NOW, done, &mut |op| disk.submit(op));
            }
        }
    };
    let writes = 20_000;
    (0..writes).for_each(|n| step(&mut store, &mut disk, n));
    let folds = store.counters().checkpoints;
    assert_eq!(store.counters().journal_waits, 0, "the fold is over while there is room");
    assert!(folds >= 8 && home * 25 < writes as usize, "{home} blocks of {writes} went home in {folds} folds");
}

#[test]
fn a_fold_goes_on_when_all_that_it_still_had_to_move_stays_where_it_is() {
    let (mut disk, arena, mut store) = two_copies(620);
    // Somewhat more than half of the journal.
    for n in 0..160 {
        run(&mut store, &mut disk, write(&arena, 1, range(n * 4, 1), u64::from(n) + 1, 7)).unwrap();
    }
    quiesce(&mut store, &mut disk);
    run(&mut store, &mut disk, zero(1, 0, 160 * 4, 161, 0)).unwrap();
    quiesce_at(NOW + Span::millis(500), &mut store, &mut disk);
    assert!(store.idle() && !store.is_all_home(), "the fold has time");
    // Nothing is asked for any more: the rest is to go home, and all of it is hidden.
    store.end_turn(NOW + Span::millis(1001), &mut |op| disk.submit(op));
    assert_eq!(store.counters().checkpoints, 0);
    let goes_on = !disk.inflight.is_empty() || store.next_deadline().is_some();
    assert!(goes_on, "it waits for nothing");
    fold(&mut store, &mut disk);
}

#[test]
fn what_a_rollback_leaves_to_nobody_does_not_go_home() {
    let (mut disk, arena, mut store) = two_copies(8000);
    let data = disk.visible.len() - 20_000 * BLOCK;
    run(&mut store, &mut disk, snapshot(1, 9, 1)).unwrap();
    let mut version = 1;
    while store.counters().folds < 2 {
        version += 1;
        let at = u32::try_from(version % 900).unwrap();
        run(&mut store, &mut disk, write(&arena, 1, range(at * 4, 1), version, version)).unwrap();
    }
    // Most of what the fold has to move is hidden by then, and so it has time.
    for _ in 0..300 {
        version += 1;
        let at = u32::try_from(version % 900).unwrap();
        run(&mut store, &mut disk, write(&arena, 1, range(at * 4, 1), version, version)).unwrap();
    }
    quiesce(&mut store, &mut disk);
    assert!(!store.is_all_home(), "the fold has time");
    let (stamp, snapshot) = (stamp(version + 1), SnapshotId(9));
    let rollback = StoreOp::Rollback { copy: CopyId(1), stamp, snapshot, known_good: Stamp::default() };
    store.submit(NOW, Tag(1), rollback, &mut |op| disk.submit(op));
    let (mut home, mut now) = (0, NOW);
    while !store.is_all_home() {
        let before = disk.inflight.len();
        store.end_turn(now, &mut |op| disk.submit(op));
        let is_home = |(op, _): &&(Op, usize)| matches!(op, Op::DiskWrite { at, .. } if *at as usize >= data);
        home += disk.inflight[before..].iter().filter(is_home).count();
        match disk.step() {
            Some(done) => store.done(now, done, &mut |op| disk.submit(op)),
            None if store.is_all_home() => {}
            None => now = now.max(store.next_deadline().expect("it goes on")),
        }
    }
    assert!(home < 64, "{home} writes home of what nobody can read");
    disk.crash();
    let mut store = open_engine::<Journaled>(&mut disk, &arena).unwrap();
    let zeros = read(&mut store, &mut disk, &arena, 1, range(0, 1)).unwrap();
    assert!(zeros.iter().all(|byte| *byte == 0), "as the snapshot has it");
}

#[test]
fn windows_of_which_all_stays_where_it_is_are_looked_through_one_in_a_turn() {
    let (mut disk, arena, mut store) = two_copies(8000);
    let mut written = 0;
    while store.counters().folds == 0 {
        run(&mut store, &mut disk, write(&arena, 1, range(written, 1), u64::from(written) + 1, 7)).unwrap();
        written += 1;
    }
    run(&mut store, &mut disk, zero(1, 0, 8000, 9000, 0)).unwrap();
    quiesce(&mut store, &mut disk);
    assert!(store.idle() && !store.is_all_home(), "the fold has time");
    let (mut now, mut most, mut before) = (NOW + Span::millis(1001), 0, store.counters().hidden);
    while !store.is_all_home() {
        store.end_turn(now, &mut |op| disk.submit(op));
        let hidden = store.counters().hidden;
        (most, before) = (most.max(hidden - before), hidden);
        if let Some(done) = disk.step() {
            store.done(now, done, &mut |op| disk.submit(op));
        } else if !store.is_all_home() {
            now = now.max(store.next_deadline().expect("it goes on"));
        }
    }
    assert!(before * 2 > u64::from(written) && (1..=256).contains(&most), "{most} of {before} in one turn");
}

#[test]
fn few_writes_home_are_before_the_journals_in_the_disks_queue_until_the_fold_is_late() {
    let mut paced = Paced::new();
    let mut out = Vec::new();
    // A disk that is slow.
    while paced.next().is_some() && paced.now < NOW + Span::millis(1020) {
        paced.now_but_home(&mut out);
    }
    assert_eq!(out.len(), 24, "no more, however long it takes");
    let mut most = 0;
    for n in 0..100 {
        let op = write(&paced.arena, 1, range(n * 32 + 1, 1), 1000 + u64::from(n), u64::from(n));
        let Paced { store, disk, now, .. } = &mut paced;
        *now = *now + Span::micros(250);
        store.submit(*now, Tag(1000 + u64::from(n)), op, &mut |op| disk.submit(op));
        paced.now_but_home(&mut out);
        assert!(paced.store.next_completion().is_some_and(|(_, result)| result.is_ok()), "{n}: no write waits");
        assert!(out.len() >= most, "{n}: {} of {most}", out.len());
        most = out.len();
    }
    assert!((40..=256).contains(&most), "the more, the less of the journal is left: {most}");
    paced.disk.inflight.extend(out);
    fold(&mut paced.store, &mut paced.disk);
    for n in [0, 99] {
        let at = range(n * 32 + 1, 1);
        assert_eq!(read(&mut paced.store, &mut paced.disk, &paced.arena, 1, at).unwrap(), block_of(u64::from(n)));
    }
}

#[test]
fn a_fold_that_somebody_waits_for_keeps_to_no_pace() {
    let mut paced = Paced::new();
    // It waits until nothing is in the journal that is not home, and then for its own fold.
    paced.share(0);
    assert!(paced.now_home() > 100);
    assert!(paced.store.next_completion().is_some_and(|(_, result)| result.is_ok()), "all at once");
    fold(&mut paced.store, &mut paced.disk);
}

#[test]
fn writes_pass_a_copy_range_that_waits_for_a_fold_and_not_for_ever() {
    let mut paced = Paced::new();
    let submit = |paced: &mut Paced, tag: u64, op: StoreOp| {
        let Paced { store, disk, now, .. } = paced;
        store.submit(*now, Tag(tag), op, &mut |op| disk.submit(op));
    };
    let over = |paced: &mut Paced| {
        let all = std::iter::from_fn(|| paced.store.next_completion());
        all.map(|(tag, result)| result.map(|_| tag.0).unwrap()).collect::<Vec<u64>>()
    };
    // A fold is under way, on a disk that is slow.
    let mut out = Vec::new();
    let folds = paced.store.counters().checkpoints;
    paced.share(0);
    let op = write(&paced.arena, 1, range(1, 1), 8000, 7);
    submit(&mut paced, 1, op);
    submit(&mut paced, 2, zero(2, 100, 1, 8001, 0));
    submit(&mut paced, 3, snapshot(2, 30, 8002));
    let op = write(&paced.arena, 1, range(2, 1), 8003, 8);
    submit(&mut paced, 4, op);
    paced.now_but_home(&mut out);
    assert_eq!(over(&mut paced), [1, 2], "a snapshot does not pass it, nor what is behind that");
    paced.disk.inflight.extend(out);
    // It is done although somebody writes all the time.
    let (mut done, mut tag) = (Vec::new(), 5);
    while !done.contains(&0) {
        let op = write(&paced.arena, 1, range(tag % 4000, 1), 8000 + u64::from(tag), 9);
        submit(&mut paced, tag.into(), op);
        let Paced { store, disk, now, .. } = &mut paced;
        *now = *now + Span::micros(20);
        store.end_turn(*now, &mut |op| disk.submit(op));
        if let Some(step) = disk.step() {
            store.done(*now, step, &mut |op| disk.submit(op));
        }
        done.extend(over(&mut paced));
        tag += 1;
        assert!(tag < 50_000, "it waits for ever");
    }
    let folds = paced.store.counters().checkpoints - folds;
    assert!((2..=7).contains(&folds), "{folds} folds");
    quiesce_at(paced.now, &mut paced.store, &mut paced.disk);
    quiesce_at(paced.now + Span::millis(5000), &mut paced.store, &mut paced.disk);
    assert!(paced.store.is_all_home());
}

#[test]
fn a_store_that_fails_gives_back_what_was_to_go_home() {
    let mut paced = Paced::new();
    let held = paced.arena.in_use();
    let op = write(&paced.arena, 1, range(1, 1), 8000, 7);
    let Paced { store, disk, .. } = &mut paced;
    store.submit(NOW, Tag(8000), op, &mut |op| disk.submit(op));
    store.end_turn(NOW, &mut |op| disk.submit(op));
    disk.fail_write = true;
    paced.now_home();
    assert!(paced.store.next_completion().is_some_and(|(_, result)| result.is_err()));
    assert!(paced.store.failure().is_some() && paced.store.idle());
    assert!(paced.arena.in_use() + (128 << 10) <= held, "{} of {held} bytes are held", paced.arena.in_use());
}

#[test]
fn a_checkpoint_that_finds_no_memory_asks_again() {
    let (mut disk, arena, mut store) = fresh(2000);
    run(&mut store, &mut disk, zero(1, 0, 48, 1, 0)).unwrap();
    let mut others = Vec::new();
    for class in [Class::Client, Class::Settle] {
        for len in [1 << 20, 64 << 10, BLOCK] {
            others.extend(std::iter::from_fn(|| arena.take(len, class)));
        }
    }
    let later = NOW + Span::millis(5000);
    loop {
        store.end_turn(later, &mut |op| disk.submit(op));
        let Some(done) = disk.step() else { break };
        store.done(later, done, &mut |op| disk.submit(op));
    }
    assert!(!store.is_all_home(), "it needs memory");
    assert!(store.next_deadline().is_some_and(|at| at <= later + Span::millis(1)), "{:?}", store.next_deadline());
    drop(others);
    quiesce_at(later + Span::millis(1), &mut store, &mut disk);
    assert!(store.is_all_home() && store.idle());
}

/// Somebody asks all the time whether what he wrote is durable: that is no change, and what the journal holds goes home as if nobody were there.
#[test]
fn flushes_do_not_keep_a_store_from_its_rest() {
    let (mut disk, arena, mut store) = two_copies(900);
    run(&mut store, &mut disk, write(&arena, 1, range(7, 1), 1, 5)).unwrap();
    assert!(!store.is_all_home());
    for half in 1..=4 {
        let now = NOW + Span::millis(500 * half);
        store.submit(now, Tag(half), StoreOp::Flush { copy: CopyId(1) }, &mut |op| disk.submit(op));
        quiesce_at(now, &mut store, &mut disk);
        assert_eq!(store.next_completion().map(|(tag, _)| tag), Some(Tag(half)));
    }
    assert!(store.is_all_home());
}
