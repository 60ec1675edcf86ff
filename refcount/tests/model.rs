//! Both kinds against a plain model: whatever is inserted, shared, renamed, dropped and reaped in whatever order, the counts by
//! reason, the live and the waiting objects, and the order of the reaper are the model's.
#![cfg(not(loom))]

use std::collections::VecDeque;

use proptest::prelude::*;

struct Object {
    id: u64,
}

refcount::reasons! {
    mod why for Object as "object" labelled (|object| object.id) { A "a", B "b", C "c" }
}

/// One step. Numbers choose among the holds there are, so every step means something in every state but the empty one.
#[derive(Clone, Debug)]
enum Step {
    Insert { reason: usize },
    Share { hold: prop::sample::Index, reason: usize },
    Rename { hold: prop::sample::Index, reason: usize },
    Drop { hold: prop::sample::Index },
    Reap,
}

fn step() -> impl Strategy<Value = Step> {
    let reason = || 0..3_usize;
    let hold = any::<prop::sample::Index>;
    prop_oneof![
        2 => reason().prop_map(|reason| Step::Insert { reason }),
        3 => (hold(), reason()).prop_map(|(hold, reason)| Step::Share { hold, reason }),
        2 => (hold(), reason()).prop_map(|(hold, reason)| Step::Rename { hold, reason }),
        4 => hold().prop_map(|hold| Step::Drop { hold }),
        1 => Just(Step::Reap),
    ]
}

/// What should be true: the holds there are, as (object, reason), and the objects that lost their last one.
#[derive(Default)]
struct Model {
    holds: Vec<(u64, usize)>,
    waiting: VecDeque<u64>,
    next_id: u64,
}

impl Model {
    fn counts(&self, id: u64) -> [u32; 3] {
        let mut counts = [0; 3];
        self.holds.iter().filter(|(of, _)| *of == id).for_each(|(_, reason)| counts[*reason] += 1);
        counts
    }

    /// Live objects with their counts, by id.
    fn live(&self) -> Vec<(u64, [u32; 3])> {
        (0..self.next_id).map(|id| (id, self.counts(id))).filter(|(_, counts)| *counts != [0; 3]).collect()
    }

    fn drop(&mut self, hold: usize) {
        let (id, _) = self.holds.swap_remove(hold);
        if self.counts(id) == [0; 3] {
            self.waiting.push_back(id);
        }
    }
}

macro_rules! against_the_model {
    ($kind:ident, $($path:tt)+) => {
        mod $kind {
            use super::*;
            use $($path)+::{Hold, Table};

            enum Any {
                A(Hold<Object, why::A>),
                B(Hold<Object, why::B>),
                C(Hold<Object, why::C>),
            }

            /// Calls the hold's `$method` with the reason that has this number.
            macro_rules! with_reason {
                ($reason:expr, $on:ident . $method:ident ( $arg:expr )) => {
                    match $reason {
                        0 => Any::A($on.$method::<why::A>($arg)),
                        1 => Any::B($on.$method::<why::B>($arg)),
                        _ => Any::C($on.$method::<why::C>($arg)),
                    }
                };
                ($reason:expr, $on:ident . $method:ident ()) => {
                    match $reason {
                        0 => Any::A($on.$method()),
                        1 => Any::B($on.$method()),
                        _ => Any::C($on.$method()),
                    }
                };
            }
            macro_rules! any {
                ($any:expr, $hold:ident => $do:expr) => {
                    match $any {
                        Any::A($hold) => $do,
                        Any::B($hold) => $do,
                        Any::C($hold) => $do,
                    }
                };
            }

            fn check(table: &Table<Object>, holds: &[Any], model: &Model) {
                let live = model.live();
                assert_eq!(table.live(), live.len());
                assert_eq!(table.waiting(), model.waiting.len());
                let mut report = table.report();
                report.sort_by_key(|entry| entry.label);
                assert_eq!(report.len(), live.len());
                for (entry, (id, counts)) in report.iter().zip(&live) {
                    assert_eq!(entry.label, (*id).into());
                    assert!(entry.counts.iter().map(|(_, count)| count).eq(counts.iter().copied()));
                }
                let total = |reason| live.iter().map(|(_, counts)| counts[reason]).sum::<u32>();
                assert_eq!(table.total::<why::A>(), total(0));
                assert_eq!(table.total::<why::B>(), total(1));
                assert_eq!(table.total::<why::C>(), total(2));
                for (hold, (id, _)) in holds.iter().zip(&model.holds) {
                    any!(hold, hold => {
                        assert_eq!(hold.id, *id);
                        let counts = hold.counts();
                        let of = [counts.of::<why::A>(), counts.of::<why::B>(), counts.of::<why::C>()];
                        assert_eq!(of, model.counts(*id));
                        assert_eq!(counts.total(), of.iter().sum::<u32>());
                    });
                }
                assert_eq!(table.leaks().is_ok(), holds.is_empty());
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn counts_live_and_waiting_always_equal_the_models(
                    capacity in 0..4_usize,
                    steps in prop::collection::vec(step(), 1..80),
                ) {
                    let table = Table::with_capacity(capacity);
                    let mut holds: Vec<Any> = Vec::new();
                    let mut model = Model::default();
                    for step in steps {
                        match step {
                            Step::Insert { reason } => {
                                let id = model.next_id;
                                model.next_id += 1;
                                model.holds.push((id, reason));
                                holds.push(with_reason!(reason, table.insert(Object { id })));
                            }
                            Step::Reap => prop_assert_eq!(table.reap().map(|object| object.id), model.waiting.pop_front()),
                            _ if holds.is_empty() => {}
                            Step::Share { hold, reason } => {
                                let at = hold.index(holds.len());
                                model.holds.push((model.holds[at].0, reason));
                                let shared = any!(&holds[at], hold => with_reason!(reason, hold.share()));
                                holds.push(shared);
                            }
                            Step::Rename { hold, reason } => {
                                let at = hold.index(holds.len());
                                let (id, _) = model.holds.swap_remove(at);
                                model.holds.push((id, reason));
                                let renamed = any!(holds.swap_remove(at), hold => with_reason!(reason, hold.rename()));
                                holds.push(renamed);
                            }
                            Step::Drop { hold } => {
                                let at = hold.index(holds.len());
                                model.drop(at);
                                drop(holds.swap_remove(at));
                            }
                        }
                        check(&table, &holds, &model);
                    }
                    while !holds.is_empty() {
                        model.drop(0);
                        drop(holds.swap_remove(0));
                        check(&table, &holds, &model);
                    }
                    while let Some(object) = table.reap() {
                        prop_assert_eq!(Some(object.id), model.waiting.pop_front());
                    }
                    prop_assert!(model.waiting.is_empty());
                }
            }
        }
    };
}

against_the_model!(plain, refcount);
against_the_model!(crossing, refcount::atomic);
