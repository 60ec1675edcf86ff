//! A simulated process: a machine of any type, made anew for each life, and what waits for its next turn.

use crate::clock::Clock;
use crate::disks::DiskId;
use crate::kernel::ProcessId;
use driver::{Address, Done, Machine, Outbox, Time, Vecs};
use std::any::Any;
use std::collections::VecDeque;

/// What a process is given when it is spawned.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// What traces and panics call it.
    pub name: String,
    /// Its disks: `DiskIndex(i)` is the i-th.
    pub disks: Vec<DiskId>,
    /// Where it listens: `ListenerId(i)` is the i-th.
    pub listeners: Vec<Address>,
    /// Its clock.
    pub clock: Clock,
}

impl Setup {
    /// A process without disks and listeners.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// One more disk.
    #[must_use]
    pub fn disk(mut self, disk: DiskId) -> Self {
        self.disks.push(disk);
        self
    }

    /// One more listener.
    #[must_use]
    pub fn listen(mut self, address: Address) -> Self {
        self.listeners.push(address);
        self
    }

    /// Its clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

/// What a factory is told about the life that it makes a machine for.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Which process.
    pub process: ProcessId,
    /// Which of its lives, from 1 on.
    pub life: u32,
    /// What its clock shows.
    pub now: Time,
    /// In place of the operating system's random numbers.
    pub seed: u64,
}

/// Whether a process runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has turns.
    Running,
    /// It has none for a while (SIGSTOP); the kernel below it works on.
    Paused,
    /// It was killed or has finished.
    Dead,
}

/// A machine behind the world's own types for mail and letters.
pub(crate) trait Body<A, L> {
    fn start(&mut self, now: Time, out: &mut Vecs<L>);
    fn done(&mut self, now: Time, done: Done, out: &mut Vecs<L>);
    /// False if this machine takes no such mail.
    fn mail(&mut self, now: Time, mail: A, out: &mut Vecs<L>) -> bool;
    fn end_turn(&mut self, now: Time, out: &mut Vecs<L>);
    fn next_deadline(&self) -> Option<Time>;
    fn finished(&self) -> bool;
    fn as_any(&self) -> &dyn Any;
}

pub(crate) struct Fitted<M>(pub(crate) M);

impl<M, A, L> Body<A, L> for Fitted<M>
where
    M: Machine + 'static,
    A: TryInto<M::Mail>,
    M::Letter: Into<L>,
{
    fn start(&mut self, now: Time, out: &mut Vecs<L>) {
        self.0.start(now, &mut Translated(out));
    }
    fn done(&mut self, now: Time, done: Done, out: &mut Vecs<L>) {
        self.0.done(now, done, &mut Translated(out));
    }
    fn mail(&mut self, now: Time, mail: A, out: &mut Vecs<L>) -> bool {
        let Ok(mail) = mail.try_into() else { return false };
        self.0.mail(now, mail, &mut Translated(out));
        true
    }
    fn end_turn(&mut self, now: Time, out: &mut Vecs<L>) {
        self.0.end_turn(now, &mut Translated(out));
    }
    fn next_deadline(&self) -> Option<Time> {
        self.0.next_deadline()
    }
    fn finished(&self) -> bool {
        self.0.finished()
    }
    fn as_any(&self) -> &dyn Any {
        &self.0
    }
}

/// An outbox for a machine's letters that keeps the world's.
struct Translated<'a, L>(&'a mut Vecs<L>);

impl<K: Into<L>, L> Outbox<K> for Translated<'_, L> {
    fn submit(&mut self, op: driver::Op) {
        self.0.ops.push(op);
    }
    fn post(&mut self, letter: K) {
        self.0.letters.push(letter.into());
    }
}

/// What a turn can bring.
pub(crate) enum Item {
    Done(Box<Done>),
    Mail(u64),
}

pub(crate) type Factory<A, L> = Box<dyn FnMut(Birth) -> Box<dyn Body<A, L>>>;

pub(crate) struct Process<A, L> {
    pub(crate) factory: Factory<A, L>,
    pub(crate) body: Option<Box<dyn Body<A, L>>>,
    pub(crate) disks: Vec<DiskId>,
    /// What is over and waits for a turn, oldest first.
    pub(crate) ready: VecDeque<Item>,
    /// When its next turn is; events for other times are stale.
    pub(crate) turn_at: Option<Time>,
    /// Turns in a row that brought nothing and left a deadline due.
    pub(crate) spins: u32,
}
