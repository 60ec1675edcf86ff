//! Destroys what nobody uses any more, where that may block: on threads of its own, of which one that is stuck keeps nothing but itself.
//!
//! ```text
//!   discard ─┬─► first ─┐
//!            └─► rest ──┴─► a thread that is free, or a new one ──► destroy: at once, after a while, or never ──► gone
//! ```
//!
//! Whoever discards neither waits nor starts a thread. A thread that takes something makes sure that another one is free, if it should be
//! stuck with it: [`THREADS`] at most, of which [`KEPT`] take only what comes first. What is beyond that waits until one comes back: the
//! kernel has each of these already, so none can be refused.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// So many may be stuck before anything waits for them.
const THREADS: usize = 16;
/// Of these, for what comes first. There is little of that: a reactor listens at a few addresses.
const KEPT: usize = 4;
/// So many are left when there is nothing to do: one that destroys, and the one that is free meanwhile.
const AT_REST: usize = 2;

/// Which of them others wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Somebody waits for what it has.
    First,
    /// The kernel's memory is all that comes back with it.
    Rest,
}

/// See above.
pub(crate) struct Destroyer<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    last_wait: Duration,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    /// Something was discarded, or nothing will be any more.
    more: Condvar,
    /// All is destroyed.
    none: Condvar,
    // Written with the queue locked, read without.
    discarded: AtomicU64,
    destroyed: AtomicU64,
    destroy: Box<dyn Fn(T) + Send + Sync>,
}

struct Queue<T> {
    first: VecDeque<T>,
    rest: VecDeque<T>,
    /// Being destroyed, and those of them that are of the rest.
    taken: usize,
    taken_rest: usize,
    /// Threads, and those of them that have nothing to do.
    threads: usize,
    free: usize,
    closed: bool,
}

impl<T> Queue<T> {
    fn take(&mut self) -> Option<(T, Turn)> {
        let may = self.taken_rest < THREADS - KEPT;
        let first = self.first.pop_front().map(|first| (first, Turn::First));
        let (it, turn) = first.or_else(|| Some((self.rest.pop_front_if(|_| may)?, Turn::Rest)))?;
        self.taken += 1;
        self.taken_rest += usize::from(turn == Turn::Rest);
        Some((it, turn))
    }

    fn give_back(&mut self, turn: Turn) {
        self.taken -= 1;
        self.taken_rest -= usize::from(turn == Turn::Rest);
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.rest.is_empty() && self.taken == 0
    }

    /// A place for one more thread, if none is free.
    fn grow(&mut self) -> bool {
        let grows = self.free == 0 && self.threads < THREADS;
        self.threads += usize::from(grows);
        grows
    }
}

impl<T: Send + 'static> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new().name("rdma-ids".into()).spawn(move || shared.work())?;
        Ok(())
    }

    /// What a thread does.
    fn work(self: Arc<Self>) {
        let mut queue = self.queue();
        loop {
            if let Some((it, turn)) = queue.take() {
                let grows = queue.grow();
                drop(queue);
                // Where there is no other thread to be had now, whoever takes the next one tries again.
                if grows && self.start().is_err() {
                    self.queue().threads -= 1;
                }
                (self.destroy)(it);
                queue = self.queue();
                queue.give_back(turn);
                self.destroyed.fetch_add(1, Ordering::Relaxed);
                if queue.is_empty() {
                    self.none.notify_all();
                }
            } else if queue.closed || queue.free >= AT_REST {
                queue.threads -= 1;
                return;
            } else {
                queue.free += 1;
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.free -= 1;
            }
        }
    }
}

impl<T: Send + 'static> Destroyer<T> {
    /// `destroy` may block. Whoever drops this waits for what is left, `last_wait` at most.
    pub(crate) fn new(destroy: impl Fn(T) + Send + Sync + 'static, last_wait: Duration) -> io::Result<Self> {
        let (first, rest) = (VecDeque::new(), VecDeque::new());
        let queue = Queue { first, rest, taken: 0, taken_rest: 0, threads: 1, free: 0, closed: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            more: Condvar::new(),
            none: Condvar::new(),
            discarded: AtomicU64::new(0),
            destroyed: AtomicU64::new(0),
            destroy: Box::new(destroy),
        });
        shared.start()?;
        Ok(Self { shared, last_wait })
    }

    /// Nobody uses it any more.
    pub(crate) fn discard(&self, it: T, turn: Turn) {
        let mut queue = self.shared.queue();
        self.shared.discarded.fetch_add(1, Ordering::Relaxed);
        match turn {
            Turn::First => queue.first.push_back(it),
            Turn::Rest => queue.rest.push_back(it),
        }
        drop(queue);
        self.shared.more.notify_one();
    }

    /// How many were discarded, and how many of these are destroyed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        // In this order, so that the second is never more.
        let destroyed = self.shared.destroyed.load(Ordering::Relaxed);
        (self.shared.discarded.load(Ordering::Relaxed), destroyed)
    }

    /// Whether something that comes first finds no thread: more of it would only wait, too.
    pub(crate) fn is_stuck(&self) -> bool {
        let queue = self.shared.queue();
        queue.threads == THREADS && queue.free == 0 && !queue.first.is_empty()
    }
}

impl<T: Send + 'static> Drop for Destroyer<T> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.closed = true;
        self.shared.more.notify_all();
        // What the kernel keeps for longer goes when it lets go, or with the process.
        let left = |queue: &mut Queue<T>| !queue.is_empty();
        let _none_or_late = self.shared.none.wait_timeout_while(queue, self.last_wait, left);
    }
}

impl<T: Send + 'static> std::fmt::Debug for Destroyer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (discarded, destroyed) = self.counts();
        write!(f, "{destroyed} of {discarded} destroyed")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test: a panic is its way to fail
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// What destroying it does.
    enum Thing {
        Goes(u32),
        /// Until the other end is dropped.
        Sticks(Receiver<()>),
        /// Somebody waits for its address.
        Listens(TcpListener),
    }

    /// Says which of those that go are gone.
    fn destroyer(last_wait: Duration) -> (Destroyer<Thing>, Receiver<u32>) {
        let (told, gone) = channel();
        let destroy = move |thing| match thing {
            Thing::Goes(number) => drop(told.send(number)),
            Thing::Sticks(until) => drop(until.recv()),
            Thing::Listens(listener) => drop(listener),
        };
        (Destroyer::new(destroy, last_wait).unwrap(), gone)
    }

    /// So many that stick, until what this gives is dropped.
    fn stick(destroyer: &Destroyer<Thing>, count: usize, turn: Turn) -> Vec<Sender<()>> {
        let one = || {
            let (hold, until) = channel();
            destroyer.discard(Thing::Sticks(until), turn);
            hold
        };
        std::iter::repeat_with(one).take(count).collect()
    }

    fn within_patience(what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_that_is_stuck_holds_up_nothing_that_comes_later() {
        let (destroyer, gone) = destroyer(PATIENCE);
        let held = stick(&destroyer, 1, Turn::Rest);
        (0..100).for_each(|number| destroyer.discard(Thing::Goes(number), Turn::Rest));
        let mut all: Vec<_> = (0..100).map(|_| gone.recv_timeout(PATIENCE).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        within_patience("counted", || destroyer.counts() == (101, 100));
        drop(held);
        within_patience("it goes when it is let go of", || destroyer.counts() == (101, 101));
    }

    #[test]
    fn however_many_are_stuck_threads_are_few_and_a_lost_listeners_address_is_free_again() {
        let (destroyer, gone) = destroyer(PATIENCE);
        let held = stick(&destroyer, 100, Turn::Rest);
        let few = || {
            let queue = destroyer.shared.queue();
            assert!(queue.threads <= THREADS && queue.taken_rest <= THREADS - KEPT);
            (queue.taken_rest, queue.rest.len())
        };
        let stuck = THREADS - KEPT;
        within_patience("as many as may be are tried", || few() == (stuck, 100 - stuck));
        destroyer.discard(Thing::Goes(1), Turn::Rest);
        // A device is lost: who listened there wants to do so again.
        for _ in 0..10 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at: SocketAddr = listener.local_addr().unwrap();
            destroyer.discard(Thing::Listens(listener), Turn::First);
            within_patience("it listens again", || TcpListener::bind(at).is_ok());
        }
        assert_eq!(few(), (stuck, 101 - stuck), "the others wait");
        assert!(!destroyer.is_stuck() && gone.try_recv().is_err());
        drop(held);
        assert_eq!(gone.recv_timeout(PATIENCE), Ok(1));
        within_patience("all are gone", || destroyer.counts() == (111, 111));
        within_patience("and most threads", || destroyer.shared.queue().threads <= AT_REST);
    }

    #[test]
    fn where_even_listeners_are_stuck_it_says_so_and_has_no_more_threads() {
        let (destroyer, gone) = destroyer(PATIENCE);
        let held = stick(&destroyer, THREADS, Turn::Rest);
        let listeners = stick(&destroyer, KEPT, Turn::First);
        within_patience("all threads are stuck", || destroyer.shared.queue().taken == THREADS);
        assert!(!destroyer.is_stuck(), "nothing waits that comes first");
        destroyer.discard(Thing::Goes(1), Turn::First);
        within_patience("and this one has none", || destroyer.is_stuck());
        assert_eq!(destroyer.shared.queue().threads, THREADS);
        drop(listeners);
        assert_eq!(gone.recv_timeout(PATIENCE), Ok(1));
        assert!(!destroyer.is_stuck());
        drop(held);
    }

    #[test]
    fn its_end_waits_for_the_last_of_them_and_not_for_ever() {
        let (all, gone) = destroyer(PATIENCE);
        (0..100).for_each(|number| all.discard(Thing::Goes(number), Turn::Rest));
        drop(all);
        assert_eq!(gone.try_iter().count(), 100);

        let (some, gone) = destroyer(Duration::from_millis(50));
        let held = stick(&some, THREADS, Turn::Rest);
        some.discard(Thing::Goes(1), Turn::Rest);
        drop(some);
        assert!(gone.try_recv().is_err());
        drop(held);
        assert_eq!(gone.recv_timeout(PATIENCE), Ok(1), "what was left goes when it can");
        assert_eq!(gone.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected), "and no thread is left");
    }
}
