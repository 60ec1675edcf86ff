//! The machine of a queue's reactor: an executor, and what its device tells it.

use super::serve::QueueView;
use crate::Executor;
use driver::{Done, Machine, Outbox, Time};
use std::sync::mpsc::Sender;

/// What a device tells a queue.
pub(crate) enum QueueMail<M> {
    /// For the executor.
    Mail(M),
    /// Finish what is in flight and end; the device stays.
    Leave,
    /// Fail what is in flight and all that comes, and go on answering.
    Refuse,
    /// Show yourself.
    Look(Sender<QueueView>),
}

/// An executor as the reactor sees it.
pub(crate) struct Lane<E> {
    pub(crate) executor: E,
    /// Told to end.
    pub(crate) leaving: bool,
    /// Told to refuse.
    pub(crate) refusing: bool,
    /// Who wants to look, to be answered in this turn.
    pub(crate) looks: Vec<Sender<QueueView>>,
    /// Abort, at the end of this turn.
    pub(crate) abort: bool,
}

impl<E> Lane<E> {
    pub(crate) fn new(executor: E) -> Self {
        Self { executor, leaving: false, refusing: false, looks: Vec::new(), abort: false }
    }
}

impl<E: Executor> Machine for Lane<E> {
    type Mail = QueueMail<E::Mail>;
    type Letter = E::Letter;

    fn start(&mut self, now: Time, out: &mut dyn Outbox<E::Letter>) {
        self.executor.start(now, out);
    }

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<E::Letter>) {
        self.executor.done(now, done, out);
    }

    fn mail(&mut self, now: Time, mail: Self::Mail, out: &mut dyn Outbox<E::Letter>) {
        match mail {
            QueueMail::Mail(mail) => self.executor.mail(now, mail, out),
            QueueMail::Leave => self.leaving = true,
            QueueMail::Refuse => (self.refusing, self.abort) = (true, true),
            QueueMail::Look(to) => self.looks.push(to),
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<E::Letter>) {
        if std::mem::take(&mut self.abort) {
            self.executor.abort(now, out);
        }
        self.executor.end_turn(now, out);
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.abort { Some(Time(0)) } else { self.executor.next_deadline() }
    }

    fn finished(&self) -> bool {
        self.executor.finished()
    }
}
