//! Memory to read into, where there is none just now: who waits for some, and who comes first: whoever finds none while nobody is.
//!
//! A large read would never find its piece beside small ones, each of which takes what comes back: whoever waits first has it kept
//! (`memory::Reservation`), and tries again in each turn. What is read of another copy stands in no line: each try would ask for it anew.

use super::Node;
use crate::iocb::{Iocb, Kind, Stage};
use crate::iocbs::IocbKey;
use crate::limits::{MEMORY_PATIENCE, WAKE_AT_ONCE};
use crate::primary::Primary;
use driver::Time;
use memory::{Class, Filling, Reservation};
use node_protocol::Status;
use node_store::Store;

/// The IOCB that waits for memory of clients' requests before all others.
pub(super) struct FirstInLine {
    key: IocbKey,
    arrival: u64,
    reservation: Reservation,
    /// It tried in this turn. If not, it waits for something else, or is over.
    tried: bool,
}

impl<S: Store> Node<S> {
    /// Memory for an IOCB to read into.
    pub(super) fn memory_for(&mut self, key: IocbKey, len: usize, class: Class) -> Option<Filling> {
        let arrival = self.iocbs[key].arrival;
        if let Some(first) = self.first_in_line.as_mut().filter(|first| (first.key, first.arrival) == (key, arrival)) {
            first.tried = true;
            let found = first.reservation.take(len);
            if found.is_some() {
                self.first_in_line = None;
                self.others_try();
            }
            return found;
        }
        let found = self.arena.take(len, class);
        if found.is_none() {
            self.counters.count("memory.waits");
            // Those of the other classes are of a size.
            if class == Class::Work && self.first_in_line.is_none() && !driver::mutant::on("nobody_first_in_line") {
                let reservation = self.arena.reserve(class);
                let first = |reservation| FirstInLine { key, arrival, reservation, tried: true };
                self.first_in_line = reservation.map(first);
            }
        }
        found
    }

    /// A turn begins.
    pub(super) fn first_tries_again(&mut self) {
        if let Some(first) = &mut self.first_in_line {
            first.tried = false;
            self.runnable.push_back(first.key);
        }
    }

    /// A turn is over. Who waits no more, or for something else, is not the first any more.
    pub(super) fn first_stays_first(&mut self) {
        let Self { iocbs, first_in_line, .. } = self;
        let leaves = |first: &mut FirstInLine| !first.tried || iocbs.get(first.key).is_none_or(Iocb::is_over);
        if first_in_line.take_if(leaves).is_some() {
            self.others_try();
        }
    }

    /// Nothing is kept for anybody: who waits may find some, and the next be first.
    fn others_try(&mut self) {
        let waiting = |primary: &Primary| primary.stalled.values().take(WAKE_AT_ONCE).copied().collect::<Vec<_>>();
        let waiting: Vec<IocbKey> = self.primaries.values().flat_map(waiting).collect();
        self.runnable.extend(waiting);
    }

    /// A client's read that waits for memory keeps writes of its range waiting, though not for ever: whoever has the memory may be slow to
    /// take what it has asked for. The client asks again.
    pub(super) fn give_way(&mut self, now: Time, key: IocbKey) -> bool {
        let iocb = &self.iocbs[key];
        let locked = Time(iocb.stages.at[Stage::Locked as usize]);
        let gives_way = iocb.kind == Kind::Read && now >= locked + MEMORY_PATIENCE;
        if gives_way {
            self.counters.count("memory.gave-way");
            self.answer(now, key, Status::Later);
        }
        gives_way
    }
}
