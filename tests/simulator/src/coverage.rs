//! What a run has to have met, and how often.

use std::collections::BTreeMap;

/// Times that each of `REQUIRED` must have happened in `FULL` seeds.
pub const FLOOR: u64 = 20;
/// The seeds of a full run.
pub const FULL: u64 = 500;

/// What must happen. Faults, message ops, transitions, outcomes of subtasks.
pub const REQUIRED: &[&str] = &[];

/// The floor for a run of so many seeds; none for a handful.
pub fn floor(seeds: u64) -> u64 {
    FLOOR * seeds / FULL
}

/// What was met too rarely.
pub fn missing(counts: &BTreeMap<String, u64>, seeds: u64) -> Vec<String> {
    let floor = floor(seeds);
    let faults = crate::faults::FAULTS.iter();
    let rare = REQUIRED.iter().chain(faults).filter_map(|name| {
        let n = counts.get(*name).copied().unwrap_or(0);
        (n < floor).then(|| format!("{name}: {n} times, at least {floor} wanted"))
    });
    rare.collect()
}
