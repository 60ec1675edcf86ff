//! How many operations the store of a disk has, whose they are, and which requests wait for a place in it.
//!
//! Clients' requests stop at half of what a store is given, so that Joins, settling and other primaries' writes always find places; and
//! those of other primaries, however many, leave an eighth to them (rule 21). Whoever finds none stands in line: a request that comes later,
//! of whatever volume, goes behind.

use super::Node;
use crate::iocb::Kind;
use crate::iocbs::IocbKey;
use node_store::Store;
use std::collections::BTreeMap;

#[derive(Default, Debug)]
pub(super) struct Crowd {
    all: usize,
    clients: usize,
    /// By arrival.
    line: BTreeMap<u64, IocbKey>,
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

    /// How many clients' operations there are places for, if the store is given `share` in all.
    fn places(&self, share: usize) -> usize {
        let before_others = (share / 2).saturating_sub(self.all);
        before_others.max((share / 8).saturating_sub(self.clients))
    }

    /// Whether there is a place for the request with this arrival beside those that came before it.
    pub(super) fn has_place(&self, share: usize, arrival: u64) -> bool {
        let places = self.places(share);
        places > 0 && (self.line.is_empty() || self.line.range(..arrival).take(places).count() < places)
    }

    /// It waits for a place.
    pub(super) fn waits(&mut self, arrival: u64, key: IocbKey) {
        self.line.insert(arrival, key);
    }

    /// It waits no more, or looks again.
    pub(super) fn looks_again(&mut self, arrival: u64) {
        if !self.line.is_empty() {
            self.line.remove(&arrival);
        }
    }

    /// Those that there is a place for now.
    pub(super) fn next(&self, share: usize) -> impl Iterator<Item = IocbKey> {
        self.line.values().copied().take(if self.line.is_empty() { 0 } else { self.places(share) })
    }
}

impl<S: Store> Node<S> {
    /// Whether a disk's store has a place for an operation of this IOCB. Without, it stands in line.
    pub(super) fn has_place_in_store(&mut self, disk: usize, key: IocbKey) -> bool {
        let (share, iocb) = (self.store_share(), &self.iocbs[key]);
        let crowd = &mut self.crowds[disk];
        let has = if iocb.kind == Kind::Settle { crowd.all() < share } else { crowd.has_place(share, iocb.arrival) };
        if has {
            crowd.looks_again(iocb.arrival);
        } else {
            crowd.waits(iocb.arrival, key);
            self.counters.count("store.waits");
        }
        has
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
        assert!(crowd(31, 0).has_place(SHARE, 1) && !crowd(32, 0).has_place(SHARE, 1));
        assert!(crowd(20, 11).has_place(SHARE, 1) && !crowd(20, 12).has_place(SHARE, 1));
        assert!(crowd(7, SHARE).has_place(SHARE, 1) && !crowd(8, SHARE).has_place(SHARE, 1));
    }

    #[test]
    fn who_comes_later_goes_behind_whoever_else_is_woken() {
        let mut crowd = crowd(32, 0);
        for (arrival, key) in [(10, 7), (11, 3), (12, 5)] {
            assert!(!crowd.has_place(SHARE, arrival));
            crowd.waits(arrival, IocbKey(key));
        }
        crowd.leaves(true);
        crowd.leaves(true);
        assert_eq!(crowd.next(SHARE).collect::<Vec<_>>(), [7, 3].map(IocbKey));
        // Neither a newcomer nor one whose turn it is not takes what was freed for them.
        assert!(!crowd.has_place(SHARE, 13) && !crowd.has_place(SHARE, 12));
        for arrival in [10, 11] {
            crowd.looks_again(arrival);
            assert!(crowd.has_place(SHARE, arrival));
            crowd.enters(true);
        }
        assert!(!crowd.has_place(SHARE, 12));
        crowd.leaves(true);
        // One that was woken and had something else to wait for leaves its place to the next.
        crowd.looks_again(12);
        assert!(crowd.has_place(SHARE, 13));
        assert_eq!(crowd.next(SHARE).count(), 0);
    }
}
