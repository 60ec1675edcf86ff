//! The journaled engine is stopped at some points of every kind, is damaged, and does what the flat model does: enough of it that each of
//! the store's mutants turns this red. `cargo run -p crash` does more.

use crash::{Journaled, operations, points, rot};
use node_store::journaled::JournaledStore;

/// Sweeps (every third) and journeys.
const SEEDS: u64 = 8;

#[test]
fn it_loses_nothing_wherever_it_is_stopped_and_the_offline_check_finds_nothing() {
    for seed in 0..SEEDS {
        points::run::<Journaled>(seed, None, &|_| ());
    }
}

#[test]
fn what_is_left_where_it_was_is_lost_only_when_what_hides_it_is_durable() {
    let met: u64 = (0..4).map(|seed| points::hot::<Journaled>(seed, JournaledStore::is_hiding)).sum();
    assert!(met >= 50, "{met} power cuts behind such a fold");
}

#[test]
fn a_part_of_the_journal_is_cut_off_only_when_what_hides_some_of_it_is_durable() {
    let met: u64 = (0..4).map(|seed| points::hot::<Journaled>(seed, JournaledStore::has_folded_part)).sum();
    assert!(met >= 50, "{met} power cuts behind such a fold");
}

#[test]
fn damage_in_one_place_is_never_wrong_data_and_is_repaired() {
    rot::run::<Journaled>(0, None, &|_| ());
}

#[test]
fn it_does_what_the_flat_model_does() {
    let outcome = operations::run::<Journaled>(2);
    let missing = operations::missing::<Journaled>(&outcome.counts, outcome.points);
    assert!(missing.is_empty(), "{missing:?}");
}
