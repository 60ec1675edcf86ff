//! The way to a device's queues, from whatever thread: it works while a control command keeps the device itself waiting.

use crate::kernel::{Gate, Lasting};
use crate::limits::RECOVER_POLL;
use crate::queue::{QueueMail, QueueView};
use reactor::{Mailbox, NotSent};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A queue that does not show itself within this is not waited for.
const LOOK_WAIT: Duration = Duration::from_secs(1);

/// Mail for the queues of one device; clone it freely.
pub struct Queues<M> {
    all: Vec<Mailbox<QueueMail<M>>>,
    /// What they serve the device through.
    gate: Weak<Gate>,
    /// Those whose end nobody has waited for yet.
    threads: Arc<Mutex<Vec<JoinHandle<Lasting>>>>,
}

impl<M> Queues<M> {
    pub(crate) fn are_behind(&mut self, gate: &Arc<Gate>) {
        self.gate = Arc::downgrade(gate);
    }

    pub(crate) fn add(&mut self, queue: Mailbox<QueueMail<M>>, thread: JoinHandle<Lasting>) {
        self.all.push(queue);
        self.threads().push(thread);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Sends mail to every queue's executor, and says to how many it went: one that is too busy, or has ended, gets none.
    pub fn mail(&self, mail: impl Fn() -> M) -> usize {
        self.all.iter().filter(|queue| queue.send(QueueMail::Mail(mail())).is_ok()).count()
    }

    /// A look at each queue that answers.
    pub fn look(&self) -> Vec<QueueView> {
        let (to, views) = channel();
        for queue in &self.all {
            // One that is too busy to take mail does not show.
            let _busy = queue.send(QueueMail::Look(to.clone()));
        }
        drop(to);
        let end = Instant::now() + LOOK_WAIT;
        let next = || views.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).collect()
    }

    /// Fails what is in flight and all that comes from now on, so that nothing waits for this device any more.
    pub fn refuse(&self) {
        self.tell_all(|| QueueMail::Refuse);
    }

    /// Ends the queues, and waits for it; false if one does not end within that time. The kernel has the device for the next daemon
    /// then, and all that was asked of this one. For who cannot wait for [`crate::Device`] itself.
    pub fn let_go(&self, within: Duration) -> bool {
        self.leave();
        let end = Instant::now() + within;
        while self.gate.strong_count() > 0 {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(RECOVER_POLL);
        }
        self.join();
        true
    }

    /// Waits for the end of their threads; what they shared with the kernel goes then.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            // Its panics were caught and reported.
            let _lasting = thread.join();
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<Lasting>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the queues; what is in flight is finished first, for a while.
    pub(crate) fn leave(&self) {
        self.tell_all(|| QueueMail::Leave);
    }

    /// Until each has taken it, or has ended.
    fn tell_all(&self, mail: impl Fn() -> QueueMail<M>) {
        for queue in &self.all {
            while let Err(NotSent::Full(_)) = queue.send(mail()) {
                std::thread::sleep(RECOVER_POLL);
            }
        }
    }
}

impl<M> Default for Queues<M> {
    fn default() -> Self {
        Self { all: Vec::new(), gate: Weak::new(), threads: Arc::default() }
    }
}

impl<M> Clone for Queues<M> {
    fn clone(&self) -> Self {
        Self { all: self.all.clone(), gate: self.gate.clone(), threads: Arc::clone(&self.threads) }
    }
}

impl<M> std::fmt::Debug for Queues<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} queues", self.all.len())
    }
}
