//! Who found no memory, and comes before all others of the class: a large piece is put together out of many small ones, and those who ask for
//! small ones would take each of them as it comes back.

use crate::arena::{Arena, Class};
use crate::buffer::Filling;
use std::fmt;

/// What comes back to the class's own region is its holder's alone; the common one stays everybody's, so that a holder who gets nothing for long
/// stops nobody. Its holder gives it back, by dropping it, when the memory is found or not wanted any more.
pub struct Reservation {
    arena: Arena,
    class: Class,
}

impl Reservation {
    /// Like [`Arena::take`] of the class, for the holder.
    pub fn take(&self, len: usize) -> Option<Filling> {
        self.arena.take_own(len, self.class)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.arena.reserve_for(self.class, false);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reservation of {:?}", self.class)
    }
}

impl Arena {
    /// Keeps what comes back of the class's own region for one who found nothing there; `None` while it is kept for somebody else.
    pub fn reserve(&self, class: Class) -> Option<Reservation> {
        self.reserve_for(class, true).then(|| Reservation { arena: self.clone(), class })
    }
}
