//! The write-order lock of one shard: block ranges, shared or exclusive, granted in arrival order (rules 5 and 9).
//!
//! A request that conflicts with an earlier one waits for it, granted or not, so nobody is overtaken on the same blocks. A lock
//! belongs to its IOCB and is given back by it alone; no time limit and no end of a session releases one.

use crate::iocbs::IocbKey;
use conductor_model::BlockRange;

/// How a range is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// With other readers.
    Shared,
    /// Alone.
    Exclusive,
}

#[derive(Debug)]
struct Entry {
    key: IocbKey,
    range: BlockRange,
    mode: Mode,
    /// Earlier entries that conflict and are still there; 0 is granted.
    blockers: u32,
}

impl Entry {
    fn conflicts(&self, range: BlockRange, mode: Mode) -> bool {
        (self.mode == Mode::Exclusive || mode == Mode::Exclusive) && self.range.overlaps(range)
    }
}

/// All locks of one shard, waiting and granted, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    entries: Vec<Entry>,
    /// How many of them wait. Mostly nobody does, and no one is looked for whom a release lets through.
    waiting: usize,
}

impl RangeLock {
    /// Asks for `range` on behalf of `key` (once per key). True if granted at once; else a later `release` names it.
    pub(crate) fn acquire(&mut self, key: IocbKey, range: BlockRange, mode: Mode) -> bool {
        debug_assert!(self.entries.iter().all(|e| e.key != key), "one lock per IOCB");
        let blockers = if driver::mutant::on("no_range_lock") {
            0
        } else {
            u32::try_from(self.entries.iter().filter(|e| e.conflicts(range, mode)).count()).unwrap_or(u32::MAX)
        };
        self.waiting += usize::from(blockers > 0);
        self.entries.push(Entry { key, range, mode, blockers });
        blockers == 0
    }

    /// Gives `key`'s lock back, or withdraws its request. Adds to `granted` those who hold theirs from now on, in arrival order.
    pub(crate) fn release(&mut self, key: IocbKey, granted: &mut Vec<IocbKey>) {
        let Some(at) = self.entries.iter().position(|e| e.key == key) else { return };
        let gone = self.entries.remove(at);
        self.waiting -= usize::from(gone.blockers > 0);
        if self.waiting == 0 {
            return;
        }
        for entry in &mut self.entries[at..] {
            if entry.blockers > 0 && gone.conflicts(entry.range, entry.mode) {
                entry.blockers -= 1;
                if entry.blockers == 0 {
                    self.waiting -= 1;
                    granted.push(entry.key);
                }
            }
        }
    }

    /// `key`'s lock, as it stands, belongs to `to` from now on: nobody comes in between.
    pub(crate) fn hand_over(&mut self, key: IocbKey, to: IocbKey) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.key == key) {
            entry.key = to;
        }
    }

    /// True if `key` holds its lock.
    pub(crate) fn is_granted(&self, key: IocbKey) -> bool {
        self.entries.iter().any(|e| e.key == key && e.blockers == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::Blocks;
    use proptest::prelude::*;

    fn range(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }

    #[test]
    fn readers_share_and_writers_wait_in_order() {
        let mut lock = RangeLock::default();
        let mut granted = Vec::new();
        assert!(lock.acquire(IocbKey(1), range(0, 8), Mode::Shared));
        assert!(lock.acquire(IocbKey(2), range(4, 8), Mode::Shared));
        assert!(!lock.acquire(IocbKey(3), range(6, 1), Mode::Exclusive));
        assert!(!lock.acquire(IocbKey(4), range(6, 1), Mode::Shared), "a reader does not overtake a waiting writer");
        assert!(lock.acquire(IocbKey(5), range(20, 1), Mode::Exclusive));
        lock.release(IocbKey(1), &mut granted);
        assert!(granted.is_empty());
        lock.release(IocbKey(2), &mut granted);
        assert_eq!(granted, [IocbKey(3)]);
        lock.release(IocbKey(3), &mut granted);
        assert_eq!(granted, [3, 4].map(IocbKey));
    }

    #[test]
    fn a_withdrawn_request_unblocks_those_behind_it() {
        let mut lock = RangeLock::default();
        let mut granted = Vec::new();
        assert!(lock.acquire(IocbKey(1), range(0, 2), Mode::Shared));
        assert!(!lock.acquire(IocbKey(2), range(1, 2), Mode::Exclusive));
        assert!(!lock.acquire(IocbKey(3), range(1, 1), Mode::Shared));
        lock.release(IocbKey(2), &mut granted);
        assert_eq!(granted, [IocbKey(3)]);
    }

    #[test]
    fn a_lock_that_is_handed_over_keeps_its_place() {
        let mut lock = RangeLock::default();
        let mut granted = Vec::new();
        assert!(lock.acquire(IocbKey(1), range(0, 4), Mode::Exclusive));
        assert!(!lock.acquire(IocbKey(2), range(1, 1), Mode::Exclusive));
        lock.hand_over(IocbKey(1), IocbKey(9));
        assert!(!lock.acquire(IocbKey(1), range(0, 4), Mode::Shared), "whoever gave it away comes last");
        assert!(lock.is_granted(IocbKey(9)) && !lock.is_granted(IocbKey(2)));
        lock.release(IocbKey(9), &mut granted);
        assert_eq!(granted, [IocbKey(2)]);
        lock.release(IocbKey(2), &mut granted);
        assert_eq!(granted, [2, 1].map(IocbKey));
    }

    proptest! {
        #[test]
        fn granted_locks_never_conflict_and_everybody_is_served_in_order(steps in prop::collection::vec((0u32..16, 1u32..6, any::<bool>(), any::<bool>()), 1..200)) {
            let mut lock = RangeLock::default();
            let mut held: Vec<(IocbKey, BlockRange, Mode)> = Vec::new();
            let mut waiting: Vec<(IocbKey, BlockRange, Mode)> = Vec::new();
            for (n, (from, count, exclusive, release_first)) in steps.into_iter().enumerate() {
                if release_first && !held.is_empty() {
                    let (gone, _, _) = held.remove(from as usize % held.len());
                    let mut granted = Vec::new();
                    lock.release(gone, &mut granted);
                    for key in granted {
                        let at = waiting.iter().position(|w| w.0 == key).unwrap();
                        let mine = waiting.remove(at);
                        // nobody who came earlier and conflicts still waits
                        prop_assert!(waiting[..at].iter().all(|w| !(w.1.overlaps(mine.1) && (w.2 == Mode::Exclusive || mine.2 == Mode::Exclusive))));
                        held.push(mine);
                    }
                }
                let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
                let mine = (IocbKey(n), range(from, count), mode);
                if lock.acquire(mine.0, mine.1, mode) { held.push(mine) } else { waiting.push(mine) }
                for (i, a) in held.iter().enumerate() {
                    for b in &held[i + 1..] {
                        prop_assert!(!a.1.overlaps(b.1) || (a.2 == Mode::Shared && b.2 == Mode::Shared));
                    }
                }
            }
            while let Some((gone, _, _)) = held.pop() {
                let mut granted = Vec::new();
                lock.release(gone, &mut granted);
                for key in granted {
                    let at = waiting.iter().position(|w| w.0 == key).unwrap();
                    held.push(waiting.remove(at));
                }
            }
            prop_assert!(waiting.is_empty(), "nobody waits for ever");
            prop_assert!(lock.entries.is_empty());
        }
    }
}
