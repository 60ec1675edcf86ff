//! Mail into a reactor from other threads: a bounded queue, and an eventfd that wakes the ring.
//!
//! ```text
//!   Mailbox (any thread) ──push──▶ queue ──▶ MailRx, at a turn that the eventfd woke
//!       └── first since the last look: write the eventfd
//! ```
//!
//! The descriptor is an object with atomic holds, one per handle: a reactor that ends says how many handles are still out.

use crate::{Counters, ReactorError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use refcount::LeakReport;
use refcount::atomic::{Hold, Table};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What wakes a reactor, and answers questions about it.
pub struct Door {
    bell: EventFd,
    /// Rung, and the reactor has not looked since.
    rung: AtomicBool,
    figures: Mutex<Figures>,
    answered: Condvar,
}

/// Counters that were asked for and copied out: as many answers as questions means up to date.
#[derive(Default)]
struct Figures {
    asked: u64,
    answered: u64,
    counters: Counters,
}

refcount::reasons! {
    /// Why a mailbox is kept.
    pub mod why for Door as "mailbox" {
        /// By the reactor that reads it.
        Reactor "reactor",
        /// By each handle that can write to it.
        Handle "handle",
    }
}

struct Queue<M> {
    mail: VecDeque<M>,
    capacity: usize,
    closed: bool,
}

/// A handle to send to a reactor; clone it freely.
pub struct Mailbox<M> {
    queue: Arc<Mutex<Queue<M>>>,
    door: Hold<Door, why::Handle>,
}

/// A reactor's end of its mailbox.
pub struct MailRx<M> {
    queue: Closer<M>,
    door: Hold<Door, why::Reactor>,
    table: Table<Door>,
}

/// Closes the queue when the reactor's end goes, however it goes.
struct Closer<M>(Arc<Mutex<Queue<M>>>);

/// Why mail was not taken; it comes back.
#[derive(thiserror::Error)]
pub enum NotSent<M> {
    /// The reactor is busy and its mailbox full: try again later, or tell whoever asked.
    #[error("the reactor's mailbox is full")]
    Full(M),
    /// The reactor has ended.
    #[error("the reactor has ended")]
    Ended(M),
}

/// A mailbox for `capacity` pieces of mail.
pub fn mailbox<M>(capacity: usize) -> Result<(Mailbox<M>, MailRx<M>), ReactorError> {
    // Blocking, or the ring would be told EAGAIN instead of waiting.
    let bell =
        EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).map_err(|error| ReactorError::Mailbox(error.into()))?;
    let queue = Arc::new(Mutex::new(Queue { mail: VecDeque::with_capacity(capacity), capacity, closed: false }));
    let table = Table::with_capacity(1);
    let new = Door { bell, rung: AtomicBool::new(false), figures: Mutex::default(), answered: Condvar::new() };
    let door = table.insert::<why::Reactor>(new);
    let handle = Mailbox { queue: Arc::clone(&queue), door: door.share() };
    Ok((handle, MailRx { queue: Closer(queue), door, table }))
}

impl<M> Mailbox<M> {
    /// Sends, or gives the mail back. Mail of one thread arrives in order. Never waits.
    pub fn send(&self, piece: M) -> Result<(), NotSent<M>> {
        {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return Err(NotSent::Ended(piece));
            }
            if queue.mail.len() >= queue.capacity {
                return Err(NotSent::Full(piece));
            }
            queue.mail.push_back(piece);
        }
        self.door.ring();
        Ok(())
    }

    /// The reactor's counters as they are now; `None` if it does not answer `within` so long, or has ended.
    pub fn counters(&self, within: Duration) -> Option<Counters> {
        let mut figures = lock(&self.door.figures);
        if lock(&self.queue).closed {
            return None;
        }
        figures.asked += 1;
        let mine = figures.asked;
        self.door.ring();
        let waited = self.door.answered.wait_timeout_while(figures, within, |figures| figures.answered < mine);
        let (figures, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        (!timeout.timed_out()).then_some(figures.counters)
    }
}

impl Door {
    /// Whoever pushed before the reactor cleared `rung` is seen by the look that follows, whoever pushed after it rings again:
    /// the queue's lock orders the two.
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // It can only fail at 2^64 - 1 unread wakes, and there is one.
            let written = self.bell.write(1);
            debug_assert!(written.is_ok(), "eventfd: {written:?}");
        }
    }
}

impl<M> MailRx<M> {
    /// What becomes readable when there is mail.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.door.bell.as_fd()
    }

    /// Takes all mail, and answers who asked for counters. To be called after each wake.
    pub(crate) fn look(&self, into: &mut VecDeque<M>, counters: Counters) {
        self.door.rung.store(false, Ordering::Release);
        into.append(&mut lock(&self.queue.0).mail);
        let mut figures = lock(&self.door.figures);
        if figures.answered < figures.asked {
            figures.answered = figures.asked;
            figures.counters = counters;
            self.door.answered.notify_all();
        }
    }

    /// The end: mail that nobody read is dropped, and `Err` says how many handles are still out.
    pub(crate) fn close(self) -> Result<(), LeakReport> {
        let Self { queue, door, table } = self;
        drop((queue, door));
        table.leaks()
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue), door: self.door.share() }
    }
}

impl<M> Drop for Closer<M> {
    fn drop(&mut self) {
        let mail = {
            let mut queue = lock(&self.0);
            queue.closed = true;
            std::mem::take(&mut queue.mail)
        };
        drop(mail);
    }
}

impl<M> fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mailbox with {} pieces of mail", lock(&self.queue).mail.len())
    }
}

impl<M> fmt::Debug for MailRx<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mailbox with {} pieces of mail, {}", lock(&self.queue.0).mail.len(), self.door.counts())
    }
}

impl<M> fmt::Debug for NotSent<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What these locks guard is consistent between any two statements, so a panic elsewhere does not taint it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
