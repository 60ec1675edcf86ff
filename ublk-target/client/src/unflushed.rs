//! What a flush volume's attachment has written and not flushed (rule 18): one set, shared by all of its lanes, because a flush from
//! any queue covers every acknowledged write from any queue.
//!
//! ```text
//!   lane A: write answered ──changed──▶ changes 7 ─┐ before its completion is handed up
//!   lane B: flush ──────────unflushed─▶ covers 7 ──┘  ──FLUSH──▶ primary ──ok──▶ flushed 7: clean until the next change
//! ```
//!
//! Six numbers a shard, which only grow, so that lanes need no lock: a shard is clean if all its changes are flushed. A change that
//! is answered while a FLUSH is under way has a higher number than what that FLUSH covers, and the shard stays unflushed.
//!
//! What was unflushed when a newer cache generation of the shard is seen may be lost: every FLUSH that was to cover some of it fails, and
//! the next FUA, once. None succeeds before the generation is seen, because a request names the epoch that the same map told.

use conductor_model::{Commit, ShardIndex};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Row `n` has 2^n shards, so that 33 rows are enough for every `ShardIndex` and none ever moves. 48 bytes a shard.
const ROWS: usize = 33;

/// What a former life of the target may have written to a shard counts as one change.
const FORMER: u64 = 1;

/// One shard.
#[derive(Debug)]
struct Mark {
    /// Acknowledged changes that may not be durable.
    changes: AtomicU64,
    /// So many of them are.
    flushed: AtomicU64,
    /// The newest cache generation that somebody has a map of, and the newest that has marked what is lost.
    coming: AtomicU64,
    cache: AtomicU64,
    /// What was unflushed of these when it came may be lost.
    lost: AtomicU64,
    /// A FUA has told so.
    told: AtomicU64,
}

/// What all lanes of one attachment have written and not flushed. In the beginning every shard is unflushed: the target's former
/// life may have written to it.
#[derive(Debug)]
pub struct Unflushed {
    rows: [OnceLock<Box<[Mark]>>; ROWS],
    /// Generations up to here were before the attachment.
    held_since: AtomicU64,
}

impl Unflushed {
    fn mark(&self, shard: ShardIndex) -> Option<&Mark> {
        let nth = u64::from(shard.0) + 1;
        let row = nth.ilog2();
        let fresh = |_| Mark {
            changes: AtomicU64::new(FORMER),
            flushed: AtomicU64::new(0),
            coming: AtomicU64::new(0),
            cache: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            told: AtomicU64::new(0),
        };
        let made = || (0..1u64 << row).map(fresh).collect();
        let row_of = self.rows.get(row as usize)?.get_or_init(made);
        row_of.get(usize::try_from(nth - (1 << row)).ok()?)
    }

    /// Since when the attachment has the volume. To be called before anything is seen.
    pub(crate) fn held_since(&self, commit: Commit) {
        self.held_since.fetch_max(commit.0, Ordering::AcqRel);
    }

    /// The volume has grown by this shard since the attachment began, whatever lane hears of it: no former life of the target has written to it.
    pub(crate) fn grown(&self, shard: ShardIndex) {
        self.flushed(shard, FORMER);
    }

    /// A map names this cache generation of a shard. Whoever goes on from here finds the loss marked: a lane that another one is ahead
    /// of in this very moment marks it itself.
    pub(crate) fn seen(&self, shard: ShardIndex, cache: Commit) {
        let Some(mark) = self.mark(shard) else { return };
        if cache.0 <= self.held_since.load(Ordering::SeqCst).max(mark.cache.load(Ordering::SeqCst)) {
            return;
        }
        mark.coming.fetch_max(cache.0, Ordering::SeqCst);
        mark.lost.fetch_max(mark.changes.load(Ordering::SeqCst), Ordering::SeqCst);
        mark.cache.fetch_max(cache.0, Ordering::SeqCst);
    }

    /// A change was answered to a lane that has seen this cache generation. To be called before it is handed up.
    pub(crate) fn changed(&self, shard: ShardIndex, cache: Commit) {
        let Some(mark) = self.mark(shard) else { return };
        let changes = mark.changes.fetch_add(1, Ordering::SeqCst) + 1;
        // Either this finds the generation that comes, or whoever marks it finds this change: for that the order has to be one for all.
        if mark.coming.load(Ordering::SeqCst) > cache.0 {
            // A newer one is known, and this change was answered before it.
            mark.lost.fetch_max(changes, Ordering::SeqCst);
        }
    }

    /// So much is flushed.
    pub(crate) fn clean(&self, shard: ShardIndex) -> u64 {
        self.mark(shard).map_or(0, |mark| mark.flushed.load(Ordering::Acquire))
    }

    /// A FLUSH was done, and this much was flushed when it was asked for: was it to cover what may be lost?
    pub(crate) fn flush_lost(&self, shard: ShardIndex, clean: u64) -> bool {
        self.mark(shard).is_some_and(|mark| clean < mark.lost.load(Ordering::Acquire))
    }

    /// A FUA was done: does it have to tell that what was acknowledged before it may be lost? Once.
    pub(crate) fn fua_tells(&self, shard: ShardIndex) -> bool {
        let Some(mark) = self.mark(shard) else { return false };
        let lost = mark.lost.load(Ordering::Acquire);
        mark.flushed.load(Ordering::Acquire) < lost && mark.told.fetch_max(lost, Ordering::AcqRel) < lost
    }

    /// What was told of a loss there was not heard: from now on it is as if more was lost, just now.
    pub(crate) fn unheard(&self, shard: ShardIndex) {
        let Some(mark) = self.mark(shard) else { return };
        if mark.lost.load(Ordering::Acquire) > 0 {
            let changes = mark.changes.fetch_add(1, Ordering::SeqCst) + 1;
            mark.lost.fetch_max(changes, Ordering::SeqCst);
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
        Self { rows: [const { OnceLock::new() }; ROWS], held_since: AtomicU64::new(0) }
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
            set.changed(shard, Commit(0));
            let covers = set.covers(shard).unwrap();
            set.changed(shard, Commit(0));
            set.flushed(shard, covers);
            assert!(set.covers(shard).is_some(), "the second change came after what was covered");
            set.flushed(shard, covers + 1);
            set.flushed(shard, covers);
            assert_eq!(set.covers(shard), None, "an older flush that is late takes nothing back");
        }
        assert!(set.covers(ShardIndex(4)).is_some() && set.covers(ShardIndex(69_999)).is_some());
    }

    #[test]
    fn a_loss_is_told_by_every_flush_that_was_to_cover_it_and_by_no_other() {
        let set = Unflushed::default();
        let (dirty, clean, old) = (ShardIndex(0), ShardIndex(1), ShardIndex(2));
        set.held_since(Commit(5));
        set.seen(old, Commit(5));
        assert!(!set.flush_lost(old, set.clean(old)), "that was before the attachment");
        set.flushed(clean, set.covers(clean).unwrap());
        let (one, other) = (set.clean(dirty), set.clean(dirty));
        set.seen(dirty, Commit(9));
        set.seen(clean, Commit(9));
        assert!(set.flush_lost(dirty, one) && set.flush_lost(dirty, other), "both were under way");
        assert!(set.fua_tells(dirty) && !set.fua_tells(dirty));
        set.flushed(dirty, set.covers(dirty).unwrap());
        assert!(!set.flush_lost(dirty, set.clean(dirty)) && !set.fua_tells(dirty));
        assert!(!set.flush_lost(clean, set.clean(clean)) && !set.fua_tells(clean), "nothing of it was unflushed");
        set.seen(dirty, Commit(9));
        set.changed(dirty, Commit(9));
        assert!(!set.flush_lost(dirty, set.clean(dirty)));
        set.unheard(dirty);
        let (covers, before) = (set.covers(dirty).unwrap(), set.clean(dirty));
        assert!(set.flush_lost(dirty, before) && set.fua_tells(dirty) && !set.fua_tells(dirty), "told again");
        set.flushed(dirty, covers);
        assert!(set.covers(dirty).is_none() && !set.flush_lost(dirty, set.clean(dirty)), "once");
        set.unheard(old);
        assert!(!set.flush_lost(old, set.clean(old)), "nothing was ever lost there");
        set.changed(clean, Commit(5));
        assert!(set.flush_lost(clean, set.clean(clean)), "answered before, and known after");
    }

    /// Two lanes get the same map; one of them has a FLUSH under way, which is done as soon as it has gone on.
    #[test]
    fn whoever_goes_on_with_a_newer_generation_knows_of_the_loss() {
        const ROUNDS: u64 = 300_000;
        let (set, shard) = (Unflushed::default(), ShardIndex(0));
        // Both come to each round, and leave it together: spinning, so that they are at it at the same moment.
        let (came, meet) = (AtomicU64::new(0), |nth: u64, came: &AtomicU64| {
            came.fetch_add(1, Ordering::SeqCst);
            while came.load(Ordering::SeqCst) < 2 * nth {
                std::thread::yield_now();
            }
        });
        let mut untold = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    meet(round, &came);
                    set.seen(shard, Commit(round));
                }
            });
            for round in 1..=ROUNDS {
                set.changed(shard, Commit(round - 1));
                let (clean, covers) = (set.clean(shard), set.covers(shard).unwrap());
                meet(round, &came);
                set.seen(shard, Commit(round));
                set.flushed(shard, covers);
                untold += u64::from(!set.flush_lost(shard, clean));
            }
        });
        assert_eq!(untold, 0);
    }
}
