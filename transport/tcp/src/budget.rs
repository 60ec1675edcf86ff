//! What one client may have in flight here in bytes, on all its connections together.
//!
//! ```text
//!   charge ──► payload on its way in ──► request that the machine handles ──► reply until it is sent ──► given back
//! ```
//!
//! A request counts for the memory that is set aside for its payload and for its answer from the moment it is read; one that finds no room
//! stays unread.
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
    /// What all clients with the same key have: they choose their own names. Twice what one may have.
    of_key: Option<Rc<Budget>>,
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
        let key_has_room = self.of_key.as_ref().is_none_or(|key| key.has_room(bytes, 2 * most));
        (self.has_room(bytes, most) && key_has_room).then(|| self.add(bytes))
    }

    fn has_room(&self, bytes: usize, most: usize) -> bool {
        let taken = self.taken.get();
        taken == 0 || taken.saturating_add(bytes) <= most
    }

    /// So many bytes more, which are there already.
    pub(crate) fn add(self: &Rc<Self>, bytes: usize) -> Charge {
        for budget in self.and_of_key() {
            budget.taken.set(budget.taken.get() + bytes);
        }
        Charge { of: Rc::clone(self), bytes }
    }

    fn and_of_key(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.of_key.as_deref())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for budget in self.of.and_of_key() {
            budget.taken.set(budget.taken.get() - self.bytes);
        }
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
        // In one map: a client of the cluster's own key that is named like another key has its bytes from that one's.
        let of_key = wire::key_of(name).map(|key| self.of(key));
        let new = Rc::new(Budget { of_key, ..Budget::default() });
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

    #[test]
    fn the_clients_of_one_key_have_twice_as_much_however_many_names_they_take() {
        let mut all = Budgets::default();
        let names = ["key@one", "key@two", "key@three", "other@one"].map(|name| all.of(name));
        let first = names[0].charge(100, 100).unwrap();
        let _second = names[1].charge(90, 100).unwrap();
        assert!(names[2].charge(11, 100).is_none(), "nothing of its own, but of its key");
        let third = names[2].charge(10, 100).unwrap();
        assert!(names[3].charge(100, 100).is_some(), "another key's");
        drop((first, third));
        assert!(names[2].charge(100, 100).is_some());
    }
}
