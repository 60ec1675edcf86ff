//! What a flush volume's attachment has written and not flushed (rule 18): one set, shared by all of its lanes, because a flush from
//! any queue covers every acknowledged write from any queue.
//!
//! ```text
//!   lane A: write answered ──changed──▶ changes 7 ─┐ before its completion is handed up
//!   lane B: flush ──────────unflushed─▶ covers 7 ──┘  ──FLUSH──▶ primary ──ok──▶ flushed 7: clean until the next change
//! ```
//!
//! Two counters a shard, which only grow, so that lanes need no lock: a shard is clean if all its changes are flushed. A change that
//! is answered while a FLUSH is under way has a higher number than what that FLUSH covers, and the shard stays unflushed.

use conductor_model::ShardIndex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Row `n` has 2^n shards, so that 33 rows are enough for every `ShardIndex` and none ever moves. 16 bytes a shard.
const ROWS: usize = 33;

/// One shard.
#[derive(Debug)]
struct Mark {
    /// Acknowledged changes that may not be durable.
    changes: AtomicU64,
    /// So many of them are.
    flushed: AtomicU64,
}

/// What all lanes of one attachment have written and not flushed. In the beginning every shard is unflushed: the target's former
/// life may have written to it.
#[derive(Debug)]
pub struct Unflushed {
    rows: [OnceLock<Box<[Mark]>>; ROWS],
}

impl Unflushed {
    fn mark(&self, shard: ShardIndex) -> Option<&Mark> {
        let nth = u64::from(shard.0) + 1;
        let row = nth.ilog2();
        let made =
            || (0..1u64 << row).map(|_| Mark { changes: AtomicU64::new(1), flushed: AtomicU64::new(0) }).collect();
        let row_of = self.rows.get(row as usize)?.get_or_init(made);
        row_of.get(usize::try_from(nth - (1 << row)).ok()?)
    }

    /// A change was answered. To be called before it is handed up.
    pub(crate) fn changed(&self, shard: ShardIndex) {
        if let Some(mark) = self.mark(shard) {
            mark.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// `None` if a flush has nothing to do there; else what a FLUSH covers that is sent from now on.
    pub(crate) fn covers(&self, shard: ShardIndex) -> Option<u64> {
        let mark = self.mark(shard)?;
        let changes = mark.changes.load(Ordering::Acquire);
        (changes > mark.flushed.load(Ordering::Acquire)).then_some(changes)
    }

    /// A FLUSH that covers so much is done.
    pub(crate) fn flushed(&self, shard: ShardIndex, covers: u64) {
        if let Some(mark) = self.mark(shard) {
            mark.flushed.fetch_max(covers, Ordering::AcqRel);
        }
    }
}

impl Default for Unflushed {
    fn default() -> Self {
        Self { rows: [const { OnceLock::new() }; ROWS] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_clean_when_all_changes_before_its_flush_were_covered() {
        let set = Unflushed::default();
        for shard in [0, 1, 2, 3, 6, 7, 70_000].map(ShardIndex) {
            let first = set.covers(shard).expect("unflushed in the beginning");
            set.flushed(shard, first);
            assert_eq!(set.covers(shard), None);
            set.changed(shard);
            let covers = set.covers(shard).unwrap();
            set.changed(shard);
            set.flushed(shard, covers);
            assert!(set.covers(shard).is_some(), "the second change came after what was covered");
            set.flushed(shard, covers + 1);
            set.flushed(shard, covers);
            assert_eq!(set.covers(shard), None, "an older flush that is late takes nothing back");
        }
        assert!(set.covers(ShardIndex(4)).is_some() && set.covers(ShardIndex(69_999)).is_some());
    }
}
