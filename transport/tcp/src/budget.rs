//! What one client may have in flight here in bytes, on all its connections together.
//!
//! ```text
//!   charge ──► payload on its way in ──► request that the machine handles ──► reply until it is sent ──► given back
//! ```
//!
//! A request counts for its payload and for what its answer may carry from the moment it is read; one that finds no room stays unread.
//! Credits bound requests, a reactor's memory bounds what all have: this keeps one client, one that does not read its replies above
//! all, from having all of it. A charge goes where the memory goes, and is given back where it is dropped. One that has nothing in
//! flight is always granted something, whatever its size.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// Bytes that one client has in flight.
#[derive(Default)]
pub(crate) struct Budget {
    taken: Cell<usize>,
}

/// Some of a client's bytes, until this is dropped.
#[must_use = "a dropped charge counts for nothing"]
pub(crate) struct Charge {
    of: Rc<Budget>,
    bytes: usize,
}

impl Budget {
    /// So many bytes more, if that stays within `most`.
    pub(crate) fn charge(self: &Rc<Self>, bytes: usize, most: usize) -> Option<Charge> {
        let taken = self.taken.get();
        (taken == 0 || taken.saturating_add(bytes) <= most).then(|| self.add(bytes))
    }

    /// So many bytes more, which are there already.
    pub(crate) fn add(self: &Rc<Self>, bytes: usize) -> Charge {
        self.taken.set(self.taken.get() + bytes);
        Charge { of: Rc::clone(self), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.taken.set(self.of.taken.get() - self.bytes);
    }
}

/// The budgets of all clients that are connected.
#[derive(Default)]
pub(crate) struct Budgets {
    by_name: BTreeMap<String, Weak<Budget>>,
}

impl Budgets {
    /// That of this client, for one more connection.
    pub(crate) fn of(&mut self, name: &str) -> Rc<Budget> {
        if let Some(known) = self.by_name.get(name).and_then(Weak::upgrade) {
            return known;
        }
        self.by_name.retain(|_, budget| budget.strong_count() > 0);
        let new = Rc::new(Budget::default());
        self.by_name.insert(name.to_owned(), Rc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_one_budget_and_gets_back_what_it_gives_back() {
        let mut all = Budgets::default();
        let (lane, other_lane, other) = (all.of("a"), all.of("a"), all.of("b"));
        let first = lane.charge(60, 100).unwrap();
        assert!(other_lane.charge(41, 100).is_none(), "on whichever connection");
        assert!(other.charge(100, 100).is_some(), "another's is another's");
        let second = other_lane.charge(40, 100).unwrap();
        drop((first, second));
        assert!(lane.charge(500, 100).is_some(), "whoever has nothing in flight is granted one");
        drop((lane, other_lane));
        let _ = all.of("c");
        assert_eq!(all.by_name.len(), 2, "who is gone leaves nothing behind");
    }
}
