//! The way to a device's queues, from whatever thread: it works while a control command keeps the device itself waiting.

use crate::limits::RECOVER_POLL;
use crate::queue::{QueueMail, QueueView};
use reactor::{Mailbox, NotSent};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A queue that does not show itself within this is not waited for.
const LOOK_WAIT: Duration = Duration::from_secs(1);

/// Mail for the queues of one device; clone it freely.
pub struct Queues<M>(Vec<Mailbox<QueueMail<M>>>);

impl<M> Queues<M> {
    pub(crate) fn add(&mut self, queue: Mailbox<QueueMail<M>>) {
        self.0.push(queue);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Sends mail to every queue's executor, and says to how many it went: one that is too busy, or has ended, gets none.
    pub fn mail(&self, mail: impl Fn() -> M) -> usize {
        self.0.iter().filter(|queue| queue.send(QueueMail::Mail(mail())).is_ok()).count()
    }

    /// A look at each queue that answers.
    pub fn look(&self) -> Vec<QueueView> {
        let (to, views) = channel();
        for queue in &self.0 {
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

    /// Ends the queues; what is in flight is finished first, for a while.
    pub(crate) fn leave(&self) {
        self.tell_all(|| QueueMail::Leave);
    }

    /// Until each has taken it, or has ended.
    fn tell_all(&self, mail: impl Fn() -> QueueMail<M>) {
        for queue in &self.0 {
            while let Err(NotSent::Full(_)) = queue.send(mail()) {
                std::thread::sleep(RECOVER_POLL);
            }
        }
    }
}

impl<M> Default for Queues<M> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M> Clone for Queues<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M> std::fmt::Debug for Queues<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} queues", self.0.len())
    }
}
