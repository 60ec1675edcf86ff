//! Holds that stay on one reactor: plain counters, no locks, a few instructions to take one or give one back.
//!
//! ```text
//!   Table ──▶ places ──▶ [Object][Object][Object]   pooled; each: value, total, counts by reason
//!     │                      ▲       ▲
//!     │                    Hold    Hold, Hold
//!     └─────▶ reaper ◀── an object's own link; the last hold to go queues the object's place here
//! ```
//!
//! A place's value is filled by `insert`, emptied by `reap`, and only read in between. The compiler's own proof of that is
//! `Rc::get_mut`: it lets `reap` take the value because the last hold took its pointer with it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;

use crate::{Counted, Counts, Entry, LeakReport, MAX_HOLDS, MAX_REASONS, Reason, index, report};

/// All live objects of one kind on one reactor, and the queue of those that wait to be torn down.
///
/// A clone is the same table. When the last clone goes, objects without holds are dropped; the others follow with their last hold.
pub struct Table<T: Counted> {
    places: Rc<RefCell<Places<T>>>,
    reaper: Rc<Reaper>,
}

struct Places<T> {
    objects: Vec<Rc<Object<T>>>,
    free: Vec<usize>,
}

/// Places whose last hold went, oldest first.
type Reaper = RefCell<VecDeque<usize>>;

struct Object<T> {
    /// Full from `insert` to `reap`.
    value: OnceCell<T>,
    /// The sum of `by_reason`, so that finding the last hold is one comparison.
    total: Cell<u32>,
    by_reason: [Cell<u32>; MAX_REASONS],
    place: usize,
    reaper: Rc<Reaper>,
}

impl<T: Counted> Table<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty table with places for `objects` of them, allocated now. More are added as needed and then kept.
    pub fn with_capacity(objects: usize) -> Self {
        let reaper = Rc::new(Reaper::default());
        let mut places = Places { objects: Vec::with_capacity(objects), free: Vec::with_capacity(objects) };
        for _ in 0..objects {
            let place = places.grow(&reaper);
            places.free.push(place);
        }
        Self { places: Rc::new(RefCell::new(places)), reaper }
    }

    /// Takes `value` in. It is born with the one hold that is returned.
    pub fn insert<R: Reason<T>>(&self, value: T) -> Hold<T, R> {
        let mut places = self.places.borrow_mut();
        let place = places.free.pop().unwrap_or_else(|| places.grow(&self.reaper));
        let object = &places.objects[place];
        assert!(object.value.set(value).is_ok(), "a free place is empty: reap took its value");
        Hold::take(object)
    }

    /// Takes out the object whose last hold went first; `None` when nobody waits.
    ///
    /// Call it until it says `None`, once per turn, outside any completion handler. The value is the caller's, to tear down.
    pub fn reap(&self) -> Option<T> {
        let place = self.reaper.borrow_mut().pop_front()?;
        let mut places = self.places.borrow_mut();
        let value = Rc::get_mut(&mut places.objects[place])
            .and_then(|object| object.value.take())
            .expect("a queued object has its value, and its last hold took the last other pointer along");
        places.free.push(place);
        Some(value)
    }

    /// Objects with at least one hold.
    pub fn live(&self) -> usize {
        let places = self.places.borrow();
        places.objects.len() - places.free.len() - self.waiting()
    }

    /// Objects without a hold that wait for the reaper.
    pub fn waiting(&self) -> usize {
        self.reaper.borrow().len()
    }

    /// Holds for reason `R` over all objects (at most `u32::MAX` are shown). Reads every place: for reports, not for a hot path.
    pub fn total<R: Reason<T>>(&self) -> u32 {
        let of = |object: &Rc<Object<T>>| object.by_reason[index::<T, R>()].get();
        self.places.borrow().objects.iter().map(of).fold(0, u32::saturating_add)
    }

    /// Every live object and who keeps it.
    pub fn report(&self) -> Vec<Entry> {
        let places = self.places.borrow();
        let live = places.objects.iter().filter(|object| object.total.get() > 0);
        live.filter_map(|object| Some(object.counts().entry(object.value.get()?))).collect()
    }

    /// The assertion at the end of a reactor: `Err` names each object that is still held, and why.
    /// Objects that wait for the reaper are no leak; reap them first, for they may themselves keep others.
    pub fn leaks(&self) -> Result<(), LeakReport> {
        LeakReport::check(self.report())
    }
}

impl<T: Counted> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self { places: Rc::clone(&self.places), reaper: Rc::clone(&self.reaper) }
    }
}

impl<T: Counted> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Counted> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} table: {} live, {} waiting", T::KIND, self.live(), self.waiting())
    }
}

impl<T> Places<T> {
    /// Adds an empty place, and the room that it may one day need in the queue and in the pool: a drop never allocates.
    fn grow(&mut self, reaper: &Rc<Reaper>) -> usize {
        let place = self.objects.len();
        self.objects.push(Rc::new(Object {
            value: OnceCell::new(),
            total: Cell::new(0),
            by_reason: Default::default(),
            place,
            reaper: Rc::clone(reaper),
        }));
        let mut queue = reaper.borrow_mut();
        let room = self.objects.len() - queue.len();
        queue.reserve(room);
        self.free.reserve(self.objects.len() - self.free.len());
        place
    }
}

impl<T: Counted> Object<T> {
    fn counts(&self) -> Counts<T> {
        Counts::new(self.by_reason.each_ref().map(Cell::get))
    }
}

/// One hold on a `T` for reason `R`. It moves, it cannot be copied, and dropping it gives it back, once.
///
/// It leads to `&T`; what changes inside is `T`'s business (`Cell`, `RefCell`).
#[must_use = "a hold that is not kept is given back at once"]
pub struct Hold<T: Counted, R: Reason<T>> {
    object: Rc<Object<T>>,
    reason: PhantomData<fn() -> R>,
}

impl<T: Counted, R: Reason<T>> Hold<T, R> {
    /// One more hold on the same object, for reason `Q`.
    #[inline]
    pub fn share<Q: Reason<T>>(&self) -> Hold<T, Q> {
        Hold::take(&self.object)
    }

    /// The same hold for another reason. The object is held throughout.
    #[inline]
    pub fn rename<Q: Reason<T>>(self) -> Hold<T, Q> {
        self.share()
    }

    /// Who keeps this object, by reason.
    pub fn counts(&self) -> Counts<T> {
        self.object.counts()
    }

    /// Whether both hold the same object.
    pub fn same_object<Q: Reason<T>>(&self, other: &Hold<T, Q>) -> bool {
        Rc::ptr_eq(&self.object, &other.object)
    }

    /// The only place where a count rises.
    #[inline]
    fn take(object: &Rc<Object<T>>) -> Self {
        let total = object.total.get();
        assert!(total < MAX_HOLDS, "more than MAX_HOLDS holds on one {}: somebody forgets them in a loop", T::KIND);
        object.total.set(total + 1);
        let count = &object.by_reason[index::<T, R>()];
        count.set(count.get() + 1);
        Self { object: Rc::clone(object), reason: PhantomData }
    }
}

impl<T: Counted, R: Reason<T>> Drop for Hold<T, R> {
    /// The only place where a count falls. Neither can fall below zero: this hold is in both.
    #[inline]
    fn drop(&mut self) {
        let object = &*self.object;
        let count = &object.by_reason[index::<T, R>()];
        count.set(count.get() - 1);
        let left = object.total.get() - 1;
        object.total.set(left);
        if left == 0 {
            object.reaper.borrow_mut().push_back(object.place);
        }
    }
}

impl<T: Counted, R: Reason<T>> Deref for Hold<T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.object.value.get().expect("reap needs a count of zero, and this hold is in the count")
    }
}

impl<T: Counted, R: Reason<T>> fmt::Debug for Hold<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        report::fmt_hold::<T, R>(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing;
    crate::reasons! { mod why for Thing as "thing" { Use "use" } }

    #[test]
    #[should_panic(expected = "more than MAX_HOLDS holds on one thing")]
    fn a_loop_that_forgets_holds_is_stopped_before_the_counter_wraps() {
        let hold = Table::new().insert::<why::Use>(Thing);
        hold.object.total.set(MAX_HOLDS);
        let _one_too_many = hold.share::<why::Use>();
    }
}
