//! How many operations the store of a disk has, whose they are, and which requests wait for room in it.
//!
//! Clients' requests stop at half of what a store is given, so that Joins, settling and other primaries' writes always find room; and those of
//! other primaries, however many, leave an eighth to them (rule 21). Whoever finds no room stands in line: a request that comes later, of
//! whatever volume, goes behind.

use std::collections::BTreeMap;

#[derive(Default, Debug)]
pub(super) struct Crowd {
    all: usize,
    clients: usize,
    /// By arrival.
    line: BTreeMap<u64, usize>,
}

impl Crowd {
    /// All operations in the store.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    pub(super) fn enters(&mut self, is_clients: bool) {
        self.all += 1;
        self.clients += usize::from(is_clients);
    }

    pub(super) fn leaves(&mut self, is_clients: bool) {
        self.all -= 1;
        self.clients -= usize::from(is_clients);
    }

    /// How many clients' operations there is room for, if the store is given `share` in all.
    fn room(&self, share: usize) -> usize {
        let before_others = (share / 2).saturating_sub(self.all);
        before_others.max((share / 8).saturating_sub(self.clients))
    }

    /// Whether there is room for the request with this arrival beside those that came before it.
    pub(super) fn has_room(&self, share: usize, arrival: u64) -> bool {
        let room = self.room(share);
        room > 0 && (self.line.is_empty() || self.line.range(..arrival).take(room).count() < room)
    }

    /// It waits for room.
    pub(super) fn waits(&mut self, arrival: u64, key: usize) {
        self.line.insert(arrival, key);
    }

    /// It waits no more, or looks again.
    pub(super) fn looks_again(&mut self, arrival: u64) {
        if !self.line.is_empty() {
            self.line.remove(&arrival);
        }
    }

    /// Those that there is room for now.
    pub(super) fn next(&self, share: usize) -> impl Iterator<Item = usize> {
        self.line.values().copied().take(if self.line.is_empty() { 0 } else { self.room(share) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: usize = 64;

    fn crowd(clients: usize, others: usize) -> Crowd {
        let mut crowd = Crowd::default();
        (0..clients).for_each(|_| crowd.enters(true));
        (0..others).for_each(|_| crowd.enters(false));
        crowd
    }

    #[test]
    fn clients_leave_half_to_others_and_others_an_eighth_to_them() {
        assert!(crowd(31, 0).has_room(SHARE, 1) && !crowd(32, 0).has_room(SHARE, 1));
        assert!(crowd(20, 11).has_room(SHARE, 1) && !crowd(20, 12).has_room(SHARE, 1));
        assert!(crowd(7, SHARE).has_room(SHARE, 1) && !crowd(8, SHARE).has_room(SHARE, 1));
    }

    #[test]
    fn who_comes_later_goes_behind_whoever_else_is_woken() {
        let mut crowd = crowd(32, 0);
        for (arrival, key) in [(10, 7), (11, 3), (12, 5)] {
            assert!(!crowd.has_room(SHARE, arrival));
            crowd.waits(arrival, key);
        }
        crowd.leaves(true);
        crowd.leaves(true);
        assert_eq!(crowd.next(SHARE).collect::<Vec<_>>(), [7, 3]);
        // Neither a newcomer nor one whose turn it is not takes what was freed for them.
        assert!(!crowd.has_room(SHARE, 13) && !crowd.has_room(SHARE, 12));
        for arrival in [10, 11] {
            crowd.looks_again(arrival);
            assert!(crowd.has_room(SHARE, arrival));
            crowd.enters(true);
        }
        assert!(!crowd.has_room(SHARE, 12));
        crowd.leaves(true);
        // One that was woken and had something else to wait for leaves its room to the next.
        crowd.looks_again(12);
        assert!(crowd.has_room(SHARE, 13));
        assert_eq!(crowd.next(SHARE).count(), 0);
    }
}
