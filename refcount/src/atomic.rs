//! Holds that cross threads: the interface of the plain kind, with atomic counters.
//!
//! A hold may be taken and given back on any thread; the object comes back on the thread that reaps, which sees all that any
//! holder wrote before giving its hold back. A sleeping owner can be woken when an object is queued
//! ([`Table::with_waker`]). No count is ever lost; a report made while other threads work reads one counter after the other, so
//! it may show a hold that is just being renamed under both of its reasons or under none.
//!
//! ```text
//!   Hold { value ──▶ the T,  grip ──▶ its ledger (total, counts by reason) ──▶ reaper }
//!          dropped first     dropped second
//! ```
//!
//! The order matters: whoever brings the total to zero knows that no other hold still points at the value, so the reaper
//! always finds the table's pointer to be the only one, and the value can be taken out without `unsafe`.
//!
//! Checked with loom: `RUSTFLAGS="--cfg loom" cargo test -p refcount --release --test loom`.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
// Not modelled by loom, and it need not be: a value is set once before its first hold exists.
use std::sync::{OnceLock, PoisonError};

#[cfg(loom)]
use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};

use crate::{Counted, Counts, Entry, LeakReport, MAX_HOLDS, MAX_REASONS, Reason, index, report};

/// All live objects of one kind whose holds cross threads, and the queue of those that wait to be torn down.
///
/// A clone is the same table. When the last clone goes, objects without holds are dropped; the others follow with their last hold.
pub struct Table<T: Counted> {
    places: Arc<Mutex<Places<T>>>,
    reaper: Arc<Reaper>,
}

struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<usize>,
}

struct Place<T> {
    /// Full from `insert` to `reap`.
    value: Arc<OnceLock<T>>,
    ledger: Arc<Ledger>,
}

/// Who keeps the object in one place.
struct Ledger {
    /// The sum of `by_reason`: the last hold is found by one atomic step.
    total: AtomicU32,
    by_reason: [AtomicU32; MAX_REASONS],
    place: usize,
    reaper: Arc<Reaper>,
}

struct Reaper {
    /// Places whose last hold went, oldest first.
    queue: Mutex<VecDeque<usize>>,
    waker: Option<Waker>,
}

type Waker = Box<dyn Fn() + Send + Sync>;

impl<T: Counted> Table<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty table with places for `objects` of them, allocated now. More are added as needed and then kept.
    pub fn with_capacity(objects: usize) -> Self {
        Self::build(objects, None)
    }

    /// Like [`Table::with_capacity`]; `waker` is called when the queue of the reaper was empty and an object came in, on the
    /// thread that gave back its last hold. An owner that reaps until `None` before it sleeps misses nothing.
    pub fn with_waker(objects: usize, waker: impl Fn() + Send + Sync + 'static) -> Self {
        Self::build(objects, Some(Box::new(waker)))
    }

    fn build(objects: usize, waker: Option<Waker>) -> Self {
        let reaper = Arc::new(Reaper { queue: Mutex::new(VecDeque::new()), waker });
        let mut places = Places { all: Vec::with_capacity(objects), free: Vec::with_capacity(objects) };
        for _ in 0..objects {
            let place = places.grow(&reaper);
            places.free.push(place);
        }
        Self { places: Arc::new(Mutex::new(places)), reaper }
    }

    /// Takes `value` in. It is born with the one hold that is returned.
    pub fn insert<R: Reason<T>>(&self, value: T) -> Hold<T, R> {
        let mut places = lock(&self.places);
        let place = places.free.pop().unwrap_or_else(|| places.grow(&self.reaper));
        let Place { value: cell, ledger } = &places.all[place];
        assert!(cell.set(value).is_ok(), "a free place is empty: reap took its value");
        Hold::take(cell, ledger)
    }

    /// Takes out the object whose last hold went first; `None` when nobody waits.
    ///
    /// For the owning thread: call it until it says `None`, outside any completion handler. The value is the caller's, to
    /// tear down.
    pub fn reap(&self) -> Option<T> {
        let place = lock(&self.reaper.queue).pop_front()?;
        let mut places = lock(&self.places);
        let value = Arc::get_mut(&mut places.all[place].value)
            .and_then(OnceLock::take)
            .expect("a queued object has its value, and its holds' pointers went before their counts");
        places.free.push(place);
        Some(value)
    }

    /// Objects with at least one hold. Reads every place: for reports, not for a hot path.
    pub fn live(&self) -> usize {
        lock(&self.places).all.iter().filter(|place| place.ledger.held()).count()
    }

    /// Objects without a hold that wait for the reaper.
    pub fn waiting(&self) -> usize {
        lock(&self.reaper.queue).len()
    }

    /// Holds for reason `R` over all objects (at most `u32::MAX` are shown). Reads every place: for reports, not for a hot path.
    pub fn total<R: Reason<T>>(&self) -> u32 {
        let of = |place: &Place<T>| place.ledger.by_reason[index::<T, R>()].load(Ordering::Relaxed);
        lock(&self.places).all.iter().map(of).fold(0, u32::saturating_add)
    }

    /// Every live object and who keeps it.
    pub fn report(&self) -> Vec<Entry> {
        let places = lock(&self.places);
        let live = places.all.iter().filter(|place| place.ledger.held());
        // An object may lose its last hold meanwhile, but not its value: reap waits for this lock.
        live.filter_map(|place| Some(place.ledger.counts().entry(place.value.get()?))).collect()
    }

    /// The assertion at the end: `Err` names each object that is still held, and why.
    /// Objects that wait for the reaper are no leak; reap them first, for they may themselves keep others.
    pub fn leaks(&self) -> Result<(), LeakReport> {
        LeakReport::check(self.report())
    }
}

impl<T: Counted> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self { places: Arc::clone(&self.places), reaper: Arc::clone(&self.reaper) }
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
    fn grow(&mut self, reaper: &Arc<Reaper>) -> usize {
        let place = self.all.len();
        self.all.push(Place {
            value: Arc::new(OnceLock::new()),
            ledger: Arc::new(Ledger {
                total: AtomicU32::new(0),
                by_reason: std::array::from_fn(|_| AtomicU32::new(0)),
                place,
                reaper: Arc::clone(reaper),
            }),
        });
        let mut queue = lock(&reaper.queue);
        let room = self.all.len() - queue.len();
        queue.reserve(room);
        self.free.reserve(self.all.len() - self.free.len());
        place
    }
}

impl Ledger {
    fn held(&self) -> bool {
        self.total.load(Ordering::Relaxed) > 0
    }

    fn counts<T: Counted>(&self) -> Counts<T> {
        Counts::new(self.by_reason.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }
}

impl Reaper {
    fn queue(&self, place: usize) {
        let mut queue = lock(&self.queue);
        let was_empty = queue.is_empty();
        queue.push_back(place);
        drop(queue);
        if let Some(wake) = self.waker.as_ref().filter(|_| was_empty) {
            wake();
        }
    }
}

/// One hold on a `T` for reason `R`, `Send` and `Sync` when `T` is both. It moves, it cannot be copied, and dropping it gives
/// it back, once.
#[must_use = "a hold that is not kept is given back at once"]
pub struct Hold<T: Counted, R: Reason<T>> {
    // Declared, and so dropped, before the grip; the head of this file says why.
    value: Arc<OnceLock<T>>,
    grip: Grip<T, R>,
}

/// A hold's entry in the ledger.
struct Grip<T: Counted, R: Reason<T>> {
    ledger: Arc<Ledger>,
    reason: PhantomData<fn() -> (T, R)>,
}

impl<T: Counted, R: Reason<T>> Hold<T, R> {
    /// One more hold on the same object, for reason `Q`.
    pub fn share<Q: Reason<T>>(&self) -> Hold<T, Q> {
        Hold::take(&self.value, &self.grip.ledger)
    }

    /// The same hold for another reason. The object is held throughout.
    pub fn rename<Q: Reason<T>>(self) -> Hold<T, Q> {
        self.share()
    }

    /// Who keeps this object, by reason.
    pub fn counts(&self) -> Counts<T> {
        self.grip.ledger.counts()
    }

    /// Whether both hold the same object.
    pub fn same_object<Q: Reason<T>>(&self, other: &Hold<T, Q>) -> bool {
        Arc::ptr_eq(&self.value, &other.value)
    }

    fn take(value: &Arc<OnceLock<T>>, ledger: &Arc<Ledger>) -> Self {
        Self { value: Arc::clone(value), grip: Grip::take(ledger) }
    }
}

impl<T: Counted, R: Reason<T>> Grip<T, R> {
    /// The only place where a count rises. Relaxed is enough: the caller has a live hold, or the places' lock.
    fn take(ledger: &Arc<Ledger>) -> Self {
        let total = ledger.total.fetch_add(1, Ordering::Relaxed);
        assert!(total < MAX_HOLDS, "more than MAX_HOLDS holds on one {}: somebody forgets them in a loop", T::KIND);
        ledger.by_reason[index::<T, R>()].fetch_add(1, Ordering::Relaxed);
        Self { ledger: Arc::clone(ledger), reason: PhantomData }
    }
}

impl<T: Counted, R: Reason<T>> Drop for Grip<T, R> {
    /// The only place where a count falls. Release hands this holder's writes, its reason's count and the end of its pointer to
    /// the last holder; Acquire is the last one receiving them, to pass them on through the queue.
    fn drop(&mut self) {
        self.ledger.by_reason[index::<T, R>()].fetch_sub(1, Ordering::Relaxed);
        if self.ledger.total.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ledger.reaper.queue(self.ledger.place);
        }
    }
}

impl<T: Counted, R: Reason<T>> Deref for Hold<T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.get().expect("reap needs a count of zero, and this hold is in the count")
    }
}

impl<T: Counted, R: Reason<T>> fmt::Debug for Hold<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        report::fmt_hold::<T, R>(self, f)
    }
}

/// What these locks guard is consistent between any two statements, so a panic elsewhere (a label's) does not taint it.
fn lock<L>(mutex: &Mutex<L>) -> MutexGuard<'_, L> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
