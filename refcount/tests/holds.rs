//! What holds promise, shown for both kinds.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use refcount::{Label, atomic};

/// An object that counts how often one of its kind was torn down.
struct Conn {
    id: u64,
    torn_down: Arc<AtomicUsize>,
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.torn_down.fetch_add(1, Ordering::Relaxed);
    }
}

refcount::reasons! {
    /// Why somebody keeps a connection.
    mod why for Conn as "conn" labelled (|conn| conn.id) {
        Owner "owner",
        Rx "rx",
        Tx "tx",
    }
}

fn conn(id: u64) -> Conn {
    Conn { id, torn_down: Arc::default() }
}

macro_rules! promises_of_the {
    ($kind:ident, $($path:tt)+) => {
        mod $kind {
            use super::*;
            use $($path)+::{Hold, Table};

            #[test]
            fn an_object_is_born_with_one_hold_and_lives_until_the_last_one_goes() {
                let table = Table::new();
                let owner = table.insert::<why::Owner>(conn(1));
                let rx = owner.share::<why::Rx>();
                assert!(owner.same_object(&rx));
                drop(owner);
                assert_eq!((table.live(), table.waiting()), (1, 0));
                assert_eq!(rx.id, 1);
                drop(rx);
                assert_eq!((table.live(), table.waiting()), (0, 1));
                assert_eq!(table.reap().map(|conn| conn.id), Some(1));
                assert_eq!((table.live(), table.waiting()), (0, 0));
                assert!(table.reap().is_none());
            }

            #[test]
            fn the_last_hold_tears_nothing_down_before_the_reaper_does() {
                let table = Table::new();
                let torn_down = Arc::new(AtomicUsize::new(0));
                drop(table.insert::<why::Owner>(Conn { id: 1, torn_down: Arc::clone(&torn_down) }));
                assert_eq!(torn_down.load(Ordering::Relaxed), 0);
                let reaped = table.reap();
                assert_eq!(torn_down.load(Ordering::Relaxed), 0, "the value is the reaper's caller's");
                drop(reaped);
                assert_eq!(torn_down.load(Ordering::Relaxed), 1);
            }

            #[test]
            fn objects_are_reaped_in_the_order_in_which_they_were_let_go() {
                let table = Table::new();
                let holds: Vec<_> = (0..5).map(|id| table.insert::<why::Owner>(conn(id))).collect();
                holds.into_iter().rev().for_each(drop);
                let order: Vec<_> = std::iter::from_fn(|| table.reap()).map(|conn| conn.id).collect();
                assert_eq!(order, [4, 3, 2, 1, 0]);
            }

            #[test]
            fn renaming_moves_one_from_reason_to_reason_and_never_lets_go() {
                let table = Table::new();
                let tx = table.insert::<why::Owner>(conn(1)).rename::<why::Rx>().rename::<why::Tx>();
                assert_eq!(tx.counts().to_string(), "1 tx");
                assert_eq!((tx.counts().of::<why::Tx>(), tx.counts().total()), (1, 1));
                assert_eq!(table.waiting(), 0);
            }

            #[test]
            fn holds_are_counted_by_reason_for_one_object_and_for_all() {
                let table = Table::new();
                let first = table.insert::<why::Owner>(conn(17));
                let second = table.insert::<why::Owner>(conn(18));
                let rx: Vec<Hold<Conn, why::Rx>> = (0..66).map(|_| first.share()).collect();
                let tx: Vec<Hold<Conn, why::Tx>> = (0..3).map(|_| first.share()).collect();
                assert_eq!(first.counts().total(), 70);
                assert_eq!(first.counts().of::<why::Rx>(), 66);
                assert_eq!(table.total::<why::Owner>(), 2);
                assert_eq!(table.total::<why::Rx>(), 66);
                let lines: Vec<_> = table.report().iter().map(ToString::to_string).collect();
                assert_eq!(lines, ["conn 17: 1 owner + 66 rx + 3 tx", "conn 18: 1 owner"]);
                drop((rx, tx, second));
                assert_eq!(table.report().len(), 1, "what waits for the reaper is not live");
                let by_reason: Vec<_> = table.report()[0].counts.iter().collect();
                assert_eq!(by_reason, [("owner", 1), ("rx", 0), ("tx", 0)]);
            }

            #[test]
            fn a_forgotten_hold_is_named_by_the_leak_report_with_its_reason() {
                let table = Table::new();
                let owner = table.insert::<why::Owner>(conn(17));
                std::mem::forget(owner.share::<why::Tx>());
                drop(owner);
                drop(table.insert::<why::Owner>(conn(18)));
                assert_eq!(table.reap().map(|conn| conn.id), Some(18), "17 never reaches the reaper");
                let report = table.leaks().unwrap_err();
                assert_eq!(report.to_string(), "still held: 1\n  conn 17: 1 tx");
                assert_eq!(report.entries[0].label, Label::Number(17));
            }

            #[test]
            fn a_kept_hold_is_a_leak_until_it_is_given_back() {
                let table = Table::new();
                let kept = table.insert::<why::Owner>(conn(3)).rename::<why::Rx>();
                assert_eq!(format!("{:?}", table.leaks().unwrap_err()), "still held: 1\n  conn 3: 1 rx");
                assert_eq!(format!("{kept:?}"), "conn 3 (rx)");
                drop(kept);
                assert!(table.leaks().is_ok());
            }

            #[test]
            fn a_reused_place_starts_with_no_hold_of_its_former_object() {
                let table = Table::with_capacity(1);
                for id in 0..100 {
                    let owner = table.insert::<why::Owner>(conn(id));
                    let rx = owner.share::<why::Rx>();
                    assert_eq!(table.report()[0].to_string(), format!("conn {id}: 1 owner + 1 rx"));
                    drop((owner, rx));
                    assert_eq!(table.reap().map(|conn| conn.id), Some(id));
                }
            }

            #[test]
            fn holds_outlive_their_table_and_then_free_the_object_themselves() {
                let torn_down = Arc::new(AtomicUsize::new(0));
                let table = Table::new();
                let owner = table.insert::<why::Owner>(Conn { id: 1, torn_down: Arc::clone(&torn_down) });
                drop(table.insert::<why::Owner>(Conn { id: 2, torn_down: Arc::clone(&torn_down) }));
                drop(table);
                assert_eq!(torn_down.load(Ordering::Relaxed), 1, "nobody holds the second one any more");
                assert_eq!(owner.share::<why::Rx>().id, 1);
                assert_eq!(torn_down.load(Ordering::Relaxed), 1);
                drop(owner);
                assert_eq!(torn_down.load(Ordering::Relaxed), 2);
            }

            #[test]
            fn an_object_may_hold_another_and_gives_it_back_when_it_is_reaped() {
                struct Iocb {
                    _answers_on: Hold<Conn, why::Tx>,
                }
                refcount::reasons! { mod uses for Iocb as "iocb" { Request "request" } }

                let (conns, iocbs) = (Table::new(), Table::new());
                let owner = conns.insert::<why::Owner>(conn(1));
                let request = iocbs.insert::<uses::Request>(Iocb { _answers_on: owner.share() });
                drop((owner, request));
                assert_eq!(conns.report()[0].to_string(), "conn 1: 1 tx");
                assert_eq!(iocbs.live(), 0);
                drop(iocbs.reap());
                assert_eq!(conns.waiting(), 1);
            }
        }
    };
}

promises_of_the!(plain, refcount);
promises_of_the!(crossing, refcount::atomic);

#[test]
fn the_owner_is_woken_once_for_each_time_its_queue_fills() {
    let woken = Arc::new(AtomicUsize::new(0));
    let table = atomic::Table::with_waker(4, {
        let woken = Arc::clone(&woken);
        move || {
            woken.fetch_add(1, Ordering::Relaxed);
        }
    });
    for round in 1..=3 {
        drop((table.insert::<why::Owner>(conn(1)), table.insert::<why::Owner>(conn(2))));
        assert_eq!(woken.load(Ordering::Relaxed), round);
        assert_eq!(std::iter::from_fn(|| table.reap()).count(), 2);
    }
}

#[test]
fn holds_of_the_atomic_kind_cross_threads() {
    const THREADS: usize = 4;
    let table = atomic::Table::new();
    let owner = table.insert::<why::Owner>(conn(1));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let rx = owner.share::<why::Rx>();
            scope.spawn(move || {
                for _ in 0..1000 {
                    let tx = rx.share::<why::Tx>();
                    drop(tx.rename::<why::Owner>());
                }
                std::mem::forget(rx);
            });
        }
    });
    assert_eq!(table.leaks().unwrap_err().to_string(), "still held: 1\n  conn 1: 1 owner + 4 rx");
}
