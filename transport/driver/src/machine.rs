//! What runs on a reactor thread.

use crate::{Done, Op, Time};

/// Where a machine puts what it wants done. Cannot fail: the machine checked its limits before.
pub trait Outbox<L> {
    /// Start an operation with this turn's batch.
    fn submit(&mut self, op: Op);
    /// Send a letter to the world outside the reactor (the control thread, the ublk queue).
    fn post(&mut self, letter: L);
}

/// An outbox that keeps what it is given: for tests and for drivers that execute in batches.
#[derive(Debug)]
pub struct Vecs<L> {
    /// Operations in order.
    pub ops: Vec<Op>,
    /// Letters in order.
    pub letters: Vec<L>,
}

impl<L> Default for Vecs<L> {
    fn default() -> Self {
        Self { ops: Vec::new(), letters: Vec::new() }
    }
}

impl<L> Outbox<L> for Vecs<L> {
    fn submit(&mut self, op: Op) {
        self.ops.push(op);
    }
    fn post(&mut self, letter: L) {
        self.letters.push(letter);
    }
}

/// All the logic of one reactor. A turn is: `done` for each completion, `mail` for each message, then `end_turn` once (expired
/// deadlines, group commit, coalesced sends, the reaper). All calls of a turn carry the same time, read after reaping.
pub trait Machine {
    /// What other threads can send it.
    type Mail;
    /// What it sends to other threads.
    type Letter;

    /// Called once, before the first turn: post the first accepts and reads.
    fn start(&mut self, now: Time, out: &mut dyn Outbox<Self::Letter>);
    /// An operation is over.
    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Self::Letter>);
    /// A message from outside.
    fn mail(&mut self, now: Time, mail: Self::Mail, out: &mut dyn Outbox<Self::Letter>);
    /// The end of a turn.
    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Self::Letter>);
    /// When to be called again at the latest, if nothing completes before.
    fn next_deadline(&self) -> Option<Time>;
    /// True when it has been told to stop and nothing of it is outstanding: the reactor ends.
    fn finished(&self) -> bool;
}
