//! Every interleaving of the atomic kind that loom can find.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p refcount --release --test loom`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread;
use refcount::atomic::{Hold, Table};

/// An object two holders write to. Loom's own cells: a read that does not come after a write is found out.
struct Page {
    left: AtomicUsize,
    right: AtomicUsize,
}

refcount::reasons! {
    mod why for Page as "page" { Owner "owner", Reads "reads", Posted "posted" }
}

fn page() -> Page {
    Page { left: AtomicUsize::new(0), right: AtomicUsize::new(0) }
}

#[test]
fn the_last_hold_dropped_from_two_threads_is_queued_exactly_once() {
    loom::model(|| {
        let table = Table::new();
        let owner = table.insert::<why::Owner>(page());
        let reads = owner.share::<why::Reads>();
        let other = thread::spawn(move || drop(reads));
        drop(owner);
        other.join().unwrap();
        assert_eq!((table.live(), table.waiting()), (0, 1));
        assert!(table.reap().is_some());
        assert!(table.reap().is_none());
    });
}

#[test]
fn a_share_that_races_with_drops_keeps_the_object() {
    loom::model(|| {
        let table = Table::new();
        let owner = table.insert::<why::Owner>(page());
        let reads = owner.share::<why::Reads>();
        let other = thread::spawn(move || {
            let posted = reads.share::<why::Posted>();
            drop(reads);
            posted
        });
        drop(owner);
        assert!(table.reap().is_none(), "the other thread has a hold all the time");
        let posted: Hold<Page, why::Posted> = other.join().unwrap();
        assert_eq!(posted.counts().to_string(), "1 posted");
        drop(posted);
        assert!(table.reap().is_some());
    });
}

#[test]
fn counts_by_reason_are_never_lost() {
    loom::model(|| {
        let table = Table::new();
        let owner = table.insert::<why::Owner>(page());
        let reads = owner.share::<why::Reads>();
        let other = thread::spawn(move || (reads.share::<why::Posted>(), reads.rename::<why::Owner>()));
        let mine = (owner.share::<why::Posted>(), owner.rename::<why::Reads>());
        let theirs = other.join().unwrap();
        assert_eq!(mine.0.counts().to_string(), "1 owner + 1 reads + 2 posted");
        assert_eq!(table.total::<why::Posted>(), 2);
        drop((mine, theirs));
        assert!(table.leaks().is_ok());
        assert_eq!(table.waiting(), 1);
    });
}

#[test]
fn the_reaper_sees_the_last_writes_of_every_holder() {
    loom::model(|| {
        let table = Table::new();
        let owner = table.insert::<why::Owner>(page());
        let reads = owner.share::<why::Reads>();
        let writers =
            [thread::spawn(move || owner.left.store(1, Relaxed)), thread::spawn(move || reads.right.store(2, Relaxed))];
        // In some runs the object is there before the threads are joined: then only the holds order the writes.
        let early = table.reap();
        let joined = writers.map(thread::JoinHandle::join);
        let mut page = early.or_else(|| table.reap()).expect("both holds are gone");
        assert!(joined.iter().all(Result::is_ok));
        assert_eq!((page.left.with_mut(|it| *it), page.right.with_mut(|it| *it)), (1, 2));
        assert!(table.reap().is_none());
    });
}

#[test]
fn a_reused_place_shows_nothing_of_threads_that_are_just_leaving_it() {
    loom::model(|| {
        let table = Table::new();
        let owner = table.insert::<why::Owner>(page());
        let reads = owner.share::<why::Reads>();
        let other = thread::spawn(move || drop(reads));
        drop(owner);
        let early = table.reap().is_some();
        let next = table.insert::<why::Owner>(page());
        assert_eq!(next.counts().to_string(), "1 owner");
        other.join().unwrap();
        assert_eq!(table.reap().is_some(), !early);
        assert_eq!((table.live(), table.waiting()), (1, 0));
    });
}

#[test]
fn an_owner_that_found_nothing_is_woken() {
    loom::model(|| {
        let woken = Arc::new(AtomicUsize::new(0));
        let table = Table::with_waker(1, {
            let woken = Arc::clone(&woken);
            move || {
                woken.fetch_add(1, Relaxed);
            }
        });
        let owner = table.insert::<why::Owner>(page());
        let reads = owner.share::<why::Reads>();
        let other = thread::spawn(move || drop(reads));
        drop(owner);
        let early = table.reap().is_some();
        other.join().unwrap();
        assert_eq!(woken.load(Relaxed), 1);
        assert_eq!(table.reap().is_some(), !early);
    });
}
