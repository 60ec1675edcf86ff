//! The one writer: a thread that owns the model and its file.
//!
//! ```text
//! handlers ──jobs──► run all that wait ─► one durable transaction ─► their answers, then the news
//! ```
//! An answer, a read's too, leaves only after everything it may have seen is durable, and while the records are ours. After a
//! failed transaction no answer leaves at all: the thread ends, and with it the process, or its reign where several conductors are.

use crate::clock::Clock;
use crate::store::{Records, changes};
use crate::{Error, limits};
use conductor_model::{Commit, Conductor, Dirty, Millis};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot, watch};

type Reply = Box<dyn FnOnce() + Send>;
type Command = Box<dyn FnOnce(&mut Conductor, Millis) -> (Dirty, Reply) + Send>;

enum Job {
    Run(Command),
    Stop,
}

/// The ledger is gone: the conductor is stopping. Whether the command took effect is unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped;

/// What handlers hold.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    jobs: mpsc::Sender<Job>,
    news: watch::Receiver<Commit>,
}

/// What `run` holds: the thread itself.
#[derive(Debug)]
pub(crate) struct Owner {
    thread: JoinHandle<()>,
    failed: oneshot::Receiver<Error>,
}

impl Ledger {
    pub(crate) fn start(store: impl Records, model: Conductor, clock: Clock) -> Result<(Self, Owner), Error> {
        let (jobs, queue) = mpsc::channel(limits::QUEUE);
        let (teller, news) = watch::channel(model.commit());
        let (fail, failed) = oneshot::channel();
        let work = move || {
            if let Err(error) = keep(queue, store, model, clock, &teller) {
                tracing::warn!(%error, "the conductor's state is not written any more");
                // Nobody listens any more only when the conductor is stopping anyway.
                let _ = fail.send(error);
            }
        };
        let thread = std::thread::Builder::new().name("ledger".to_owned()).spawn(work);
        let thread = thread.map_err(|source| Error::System { what: "start the state's thread", source })?;
        Ok((Self { jobs, news }, Owner { thread, failed }))
    }

    /// Runs a command; returns its answer when everything it changed or saw is durable.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Conductor, Millis) -> (T, Dirty) + Send + 'static,
    ) -> Result<T, Stopped> {
        let (reply, answer) = oneshot::channel();
        let command: Command = Box::new(move |model, now| {
            let (value, dirty) = command(model, now);
            // A handler whose client went away does not wait for its answer.
            (dirty, Box::new(move || drop(reply.send(value))))
        });
        self.jobs.send(Job::Run(command)).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// Changes with every transaction from now on.
    pub(crate) fn news(&self) -> watch::Receiver<Commit> {
        let mut news = self.news.clone();
        news.mark_unchanged();
        news
    }

    /// Ends the thread after the commands that wait already.
    pub(crate) async fn stop(&self) {
        // An error says that it has ended.
        let _ = self.jobs.send(Job::Stop).await;
    }
}

impl Owner {
    /// Ready when the thread ended by itself, with the reason.
    pub(crate) async fn ended(&mut self) -> Error {
        (&mut self.failed).await.unwrap_or(Error::LedgerEnded)
    }

    /// Waits for the thread's end: the file is closed then.
    pub(crate) fn join(self) -> Result<(), Error> {
        self.thread.join().map_err(|_| Error::LedgerEnded)
    }
}

fn keep(
    mut queue: mpsc::Receiver<Job>,
    mut store: impl Records,
    mut model: Conductor,
    clock: Clock,
    news: &watch::Sender<Commit>,
) -> Result<(), Error> {
    let mut open = true;
    while open {
        let mut dirty = Dirty::default();
        let mut replies: Vec<Reply> = Vec::new();
        let mut next = queue.blocking_recv();
        open = next.is_some();
        while let Some(job) = next {
            let Job::Run(command) = job else {
                open = false;
                break;
            };
            // Each its own: what a later one says is not booked as said before.
            let (changed, reply) = command(&mut model, clock.now());
            dirty.merge(changed);
            replies.push(reply);
            next = if replies.len() < limits::BATCH { queue.try_recv().ok() } else { None };
        }
        let changed = !dirty.is_empty();
        if changed {
            store.commit(&changes(&model, &dirty))?;
        }
        store.is_ours()?;
        for reply in replies {
            reply();
        }
        if changed {
            news.send_replace(model.commit());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::views::Attach;
    use conductor_model::{ClusterId, Key, Record};

    struct Broken;
    impl Records for Broken {
        fn commit(&mut self, _: &[(Key, Option<Record>)]) -> Result<(), Error> {
            Err(Error::InUse("the test's".into()))
        }

        fn is_ours(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn nothing_is_answered_once_a_transaction_failed() {
        let clock = Clock::start();
        let (model, dirty) = Conductor::new(ClusterId(1), clock.now());
        let (ledger, mut owner) = Ledger::start(Broken, model, clock).unwrap();
        assert!(ledger.ask(|m, _| (m.commit(), Dirty::default())).await.is_ok(), "nothing to write yet");
        assert!(ledger.ask(move |_, _| ((), dirty)).await.is_err());
        assert!(ledger.ask(|m, _| (m.commit(), Dirty::default())).await.is_err());
        assert!(matches!(owner.ended().await, Error::InUse(_)));
        owner.join().unwrap();
    }

    struct Lost;
    impl Records for Lost {
        fn commit(&mut self, _: &[(Key, Option<Record>)]) -> Result<(), Error> {
            Ok(())
        }

        fn is_ours(&self) -> Result<(), Error> {
            Err(Error::Deposed("the test's".to_owned()))
        }
    }

    #[tokio::test]
    async fn not_even_a_read_is_answered_once_the_records_are_not_ours() {
        let clock = Clock::start();
        let (model, _) = Conductor::new(ClusterId(1), clock.now());
        let (ledger, mut owner) = Ledger::start(Lost, model, clock).unwrap();
        assert!(ledger.ask(|m, _| (m.commit(), Dirty::default())).await.is_err());
        assert!(matches!(owner.ended().await, Error::Deposed(_)));
        owner.join().unwrap();
    }

    #[tokio::test]
    async fn a_refused_command_writes_nothing() {
        let clock = Clock::start();
        let (model, _) = Conductor::new(ClusterId(1), clock.now());
        let (ledger, owner) = Ledger::start(Broken, model, clock).unwrap();
        let attach = Attach {
            client: "a".to_owned(),
            read_only: false,
            shared: false,
            force: false,
            host: String::new(),
            resumes: None,
        };
        let refused = ledger.ask(move |m, now| match m.attach(now, "none", &attach) {
            Ok((map, dirty)) => (Ok(map), dirty),
            Err(refused) => (Err(refused), Dirty::default()),
        });
        assert!(refused.await.unwrap().is_err());
        ledger.stop().await;
        owner.join().unwrap();
    }
}
