//! Which slots of the data area are free.
//!
//! A bit per slot, and a count of free ones per 4096: a full terabyte is searched in some 65,000 steps, an ordinary one in a few.
//! Next fit from a cursor, so that what is written together lies together.

use smallvec::SmallVec;
use std::num::NonZeroU32;

/// Slots counted together.
const GROUP: u32 = 4096;
/// Free runs looked at for one that is long enough, before a request is cut up.
const TRIES: u32 = 16;

/// A 4 KiB place in the data area, numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Slot(NonZeroU32);

impl Slot {
    /// From its number on the disk; 0 is no slot.
    pub(super) fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }
    /// Its number on the disk.
    pub(super) fn number(self) -> u32 {
        self.0.get()
    }
    /// Its place, from 0.
    pub(super) fn index(self) -> u32 {
        self.0.get() - 1
    }
    /// The one `n` further on; stays within `u32` for every run that passed `Run::new`.
    pub(super) fn plus(self, n: u32) -> Self {
        Self(self.0.saturating_add(n))
    }
}

/// Slots one after the other, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) from: Slot,
    pub(super) count: u32,
}

impl Run {
    /// A run as read from a disk: `None` if it is empty or beyond `slots`.
    pub(super) fn new(from: u32, count: u32, slots: u32) -> Option<Self> {
        let end = from.checked_add(count)?.checked_sub(1)?;
        (count > 0 && end <= slots).then_some(Self { from: Slot::new(from)?, count })
    }
}

/// The runs of one request.
pub(super) type Runs = SmallVec<[Run; 2]>;

/// The free-slot map.
#[derive(Debug)]
pub(super) struct Slots {
    /// Set = in use (or beyond the end).
    words: Vec<u64>,
    free_in_group: Vec<u32>,
    free: u32,
    total: u32,
    cursor: u32,
}

impl Slots {
    /// All free.
    pub(super) fn new(total: u32) -> Self {
        let mut words = vec![0; total.div_ceil(64) as usize];
        if let (Some(last), rest @ 1..) = (words.last_mut(), total % 64) {
            *last = !0 << rest;
        }
        let free_in_group = (0..total.div_ceil(GROUP)).map(|g| (total - g * GROUP).min(GROUP)).collect();
        Self { words, free_in_group, free: total, total, cursor: 0 }
    }

    fn is_free(&self, index: u32) -> bool {
        self.words[(index / 64) as usize] >> (index % 64) & 1 == 0
    }

    /// Take one by name: false if it is taken already.
    pub(super) fn claim(&mut self, slot: Slot) -> bool {
        let index = slot.index();
        if index >= self.total || !self.is_free(index) {
            return false;
        }
        self.words[(index / 64) as usize] |= 1 << (index % 64);
        self.free_in_group[(index / GROUP) as usize] -= 1;
        self.free -= 1;
        true
    }

    /// Give one back.
    pub(super) fn release(&mut self, slot: Slot) {
        let index = slot.index();
        debug_assert!(!self.is_free(index), "slot {} given back twice", slot.number());
        self.words[(index / 64) as usize] &= !(1 << (index % 64));
        self.free_in_group[(index / GROUP) as usize] += 1;
        self.free += 1;
    }

    /// Take `count`, in as few runs as is cheap to find. `None` if there are not so many.
    pub(super) fn take(&mut self, count: u32) -> Option<Runs> {
        if count > self.free {
            return None;
        }
        let mut runs = Runs::new();
        if let Some(run) = self.long_run(count) {
            self.claim_run(run);
            runs.push(run);
            return Some(runs);
        }
        let mut left = count;
        while left > 0 {
            let run = self.run_from(self.cursor, left).or_else(|| self.run_from(0, left))?;
            self.claim_run(run);
            runs.push(run);
            left -= run.count;
        }
        Some(runs)
    }

    fn claim_run(&mut self, run: Run) {
        for n in 0..run.count {
            self.claim(run.from.plus(n));
        }
        self.cursor = run.from.index() + run.count;
    }

    fn long_run(&self, count: u32) -> Option<Run> {
        let mut at = self.cursor;
        for _ in 0..TRIES {
            let run = self.run_from(at, count)?;
            if run.count == count {
                return Some(run);
            }
            at = run.from.index() + run.count;
        }
        None
    }

    /// The first free run at or after `index`, cut to `most`.
    fn run_from(&self, index: u32, most: u32) -> Option<Run> {
        let from = self.next_free(index)?;
        let end = self.total.min(from.saturating_add(most));
        let count = (from..end).take_while(|&i| self.is_free(i)).count();
        Some(Run { from: Slot::new(from + 1)?, count: u32::try_from(count).ok()? })
    }

    fn next_free(&self, index: u32) -> Option<u32> {
        let mut at = index;
        while at < self.total {
            if self.free_in_group[(at / GROUP) as usize] == 0 {
                at = (at / GROUP + 1).saturating_mul(GROUP);
                continue;
            }
            let free = !self.words[(at / 64) as usize] >> (at % 64);
            if free != 0 {
                return Some(at + free.trailing_zeros());
            }
            at = (at / 64 + 1).saturating_mul(64);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_together_lies_together() {
        let mut slots = Slots::new(10_000);
        let runs = slots.take(272).unwrap();
        assert_eq!(runs.as_slice(), [Run { from: Slot::new(1).unwrap(), count: 272 }]);
        assert_eq!(slots.take(9728).unwrap().len(), 1);
        assert_eq!(slots.free, 0);
        assert!(slots.take(1).is_none());
    }

    #[test]
    fn fragments_are_found_when_no_long_run_is_left() {
        let mut slots = Slots::new(9001);
        slots.take(9001).unwrap();
        for n in (1..=9001).step_by(3) {
            slots.release(Slot::new(n).unwrap());
        }
        let free = slots.free;
        let mut seen = 0;
        while let Some(runs) = slots.take(1) {
            assert_eq!(runs[0].count, 1);
            seen += 1;
        }
        assert_eq!(seen, free);
        for n in (1..=9001).step_by(3) {
            slots.release(Slot::new(n).unwrap());
        }
        let runs = slots.take(272).unwrap();
        assert_eq!(runs.iter().map(|r| r.count).sum::<u32>(), 272);
    }

    #[test]
    fn a_run_from_a_disk_is_checked() {
        assert!(Run::new(0, 1, 10).is_none());
        assert!(Run::new(1, 0, 10).is_none());
        assert!(Run::new(1, 10, 10).is_some());
        assert!(Run::new(2, 10, 10).is_none());
        assert!(Run::new(u32::MAX, u32::MAX, 10).is_none());
    }
}
