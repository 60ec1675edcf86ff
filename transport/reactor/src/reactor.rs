//! A reactor: one machine, one driver, one mailbox, turn after turn.
//!
//! ```text
//!   push_pending ─▶ one enter ─▶ drain ─▶ read the clock ─▶ complete each, mail ─▶ end_turn ─▶ letters
//!        ▲                                                                            │
//!        └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! [`run`] does all of it. A ublk queue thread, whose ring also carries libublk's completions, calls the same pieces itself:
//! `push_pending`, its own enter with what `patience` says, `complete` for each completion with bit 63, `end_turn`.

use crate::mailbox::MailRx;
use crate::ring::{Cqe, Ring};
use crate::spin::Spin;
use crate::{Counters, ReactorError, Uring, clock};
use driver::{Done, Machine, Op, Outbox, Span, Time};
use refcount::LeakReport;
use std::collections::VecDeque;

/// What RDMA completes within this time costs no sleep: about what a wake-up costs.
const RDMA_LOOK: Span = Span::micros(10);

/// For so long what was drained from the ring counts as all that there is.
const FRESH: Span = Span::millis(1);

/// A machine and all that it runs on. Not `Send`: it lives and dies on one thread.
pub struct Reactor<M: Machine, R: Ring> {
    machine: M,
    uring: Uring<R>,
    mail: MailRx<M::Mail>,
    /// Storage of a turn, reused.
    letters: Vec<M::Letter>,
    cqes: Vec<Cqe>,
    inbox: VecDeque<M::Mail>,
    spin: Spin,
    /// The same where it is off, while there are connections of RDMA's.
    rdma_spin: Spin,
    /// The last turn went without an enter.
    without_enter: bool,
    /// When the ring was drained last.
    heard: Time,
    /// The machine said that it is finished: that is final.
    finished: bool,
}

/// A reactor that ended as it should.
#[derive(Debug)]
pub struct Ended<M> {
    /// The machine, which got back all that it had submitted.
    pub machine: M,
    /// What the driver did.
    pub counters: Counters,
    /// Streams that the machine left open; closed now.
    pub streams_left_open: usize,
    /// `Err` names the handles to its mailbox that are still out. They get [`crate::NotSent::Ended`] from now on.
    pub mailbox: Result<(), LeakReport>,
}

/// What a machine's wishes go to.
struct Desk<'a, R: Ring, L> {
    uring: &'a mut Uring<R>,
    letters: &'a mut Vec<L>,
}

impl<R: Ring, L> Outbox<L> for Desk<'_, R, L> {
    fn submit(&mut self, op: Op) {
        self.uring.submit(op);
    }
    fn post(&mut self, letter: L) {
        self.letters.push(letter);
    }
}

impl<M: Machine, R: Ring> Reactor<M, R> {
    /// Starts the machine. Listeners and disks are the driver's already.
    pub fn start(machine: M, mut uring: Uring<R>, mail: MailRx<M::Mail>) -> Result<Self, ReactorError> {
        uring.watch(mail.bell())?;
        let (letters, cqes, inbox) = (Vec::new(), Vec::new(), VecDeque::new());
        let (spin, rdma_spin) = (Spin::off(), Spin::up_to(RDMA_LOOK));
        let mut new = Self {
            machine,
            uring,
            mail,
            letters,
            cqes,
            inbox,
            spin,
            rdma_spin,
            without_enter: false,
            heard: Time::default(),
            finished: false,
        };
        new.machine.start(clock::now(), &mut Desk { uring: &mut new.uring, letters: &mut new.letters });
        Ok(new)
    }

    /// Looks for completions for up to `longest` before it sleeps; see [`crate::spare_cores`].
    pub fn spin(mut self, longest: Span) -> Self {
        self.spin = Spin::up_to(longest);
        self
    }

    /// One turn, with one enter. What is over without the ring is handed back without one, if nobody waits for what is pending: what comes
    /// of it enters with that in the next turn. Never twice in a row, so that a machine with a disk in memory hears its streams, too, and only
    /// just after it heard them: it must not take for silence what it did not listen to.
    pub fn turn(&mut self) -> Result<(), ReactorError> {
        if !self.without_enter && self.uring.ready() > 0 && !self.uring.is_sending() {
            let now = clock::now();
            self.without_enter = now.since(self.heard) < FRESH;
            if self.without_enter {
                self.end_turn(now);
                return Ok(());
            }
        }
        self.without_enter = false;
        self.push_pending()?;
        let (want, mut timeout) = self.patience(clock::now());
        let spin = if self.spin.is_off() && self.uring.looks_for_rdma() { &mut self.rdma_spin } else { &mut self.spin };
        if spin.worth_it(timeout) {
            // What was asked for must be on its way while we look.
            self.uring.enter(0, None)?;
            let uring = &mut self.uring;
            spin.look(|| uring.look());
            // A look may have found what needs no ring, or begun what has a deadline.
            let due = self.uring.next_deadline().map(|at| at.since(clock::now()));
            timeout = timeout.into_iter().chain(due).min();
        }
        self.uring.enter(want, timeout)?;
        let mut cqes = std::mem::take(&mut self.cqes);
        self.uring.drain(&mut cqes);
        let now = clock::now();
        self.heard = now;
        for cqe in cqes.drain(..) {
            self.complete(now, cqe);
        }
        self.cqes = cqes;
        self.end_turn(now);
        Ok(())
    }

    /// Puts what the last turn asked for into the ring.
    pub fn push_pending(&mut self) -> Result<(), ReactorError> {
        self.uring.push_pending()
    }

    /// How many completions to wait for and how long at most. To be asked once per enter, after `push_pending`.
    pub fn patience(&mut self, now: Time) -> (u32, Option<Span>) {
        let deadline = [self.machine.next_deadline(), self.uring.next_deadline()].into_iter().flatten().min();
        let timeout = deadline.map(|deadline| deadline.since(now));
        self.uring.patience(now, timeout)
    }

    /// A completion of ours. `now` was read after it was drained.
    pub fn complete(&mut self, now: Time, cqe: Cqe) {
        if let Some(done) = self.uring.complete(cqe) {
            self.done(now, done);
        }
    }

    /// A message to the machine from its own thread.
    pub fn mail(&mut self, now: Time, mail: M::Mail) {
        self.machine.mail(now, mail, &mut Desk { uring: &mut self.uring, letters: &mut self.letters });
    }

    /// The end of a turn: operations that could not start and those of RDMA, the mailbox, then the machine's own.
    pub fn end_turn(&mut self, now: Time) {
        self.uring.count_turn();
        self.uring.rdma_turn(now);
        self.uring.tls_turn(now);
        // Only those of before: a machine that tries again at once gets its answer in the next turn.
        for _ in 0..self.uring.ready() {
            if let Some(done) = self.uring.take_ready() {
                self.done(now, done);
            }
        }
        if self.uring.take_rung() {
            let mut inbox = std::mem::take(&mut self.inbox);
            self.mail.look(&mut inbox, self.uring.counters());
            for mail in inbox.drain(..) {
                self.mail(now, mail);
            }
            self.inbox = inbox;
        }
        self.machine.end_turn(now, &mut Desk { uring: &mut self.uring, letters: &mut self.letters });
    }

    fn done(&mut self, now: Time, done: Done) {
        self.machine.done(now, done, &mut Desk { uring: &mut self.uring, letters: &mut self.letters });
    }

    /// What the machine wrote to the outside, in order.
    pub fn letters(&mut self) -> impl Iterator<Item = M::Letter> {
        self.letters.drain(..)
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The driver.
    pub fn driver(&mut self) -> &mut Uring<R> {
        &mut self.uring
    }

    /// True if the machine is finished and nothing of it is outstanding. What a finished machine left posted (accepts, above all)
    /// is cancelled here and comes back through `done` in turns to come.
    pub fn over(&mut self) -> bool {
        self.finished |= self.machine.finished();
        if !self.finished {
            return false;
        }
        if self.uring.outstanding() == 0 {
            return true;
        }
        self.uring.cancel_all();
        false
    }

    /// Takes a reactor that is over apart.
    pub fn end(self) -> Ended<M> {
        let Self { machine, uring, mail, .. } = self;
        assert_eq!(uring.outstanding(), 0, "a reactor ends when the machine has back all that it submitted");
        let (counters, streams_left_open) = (uring.counters(), uring.open_streams());
        drop(uring);
        Ended { machine, counters, streams_left_open, mailbox: mail.close() }
    }
}

impl<M: Machine, R: Ring> std::fmt::Debug for Reactor<M, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "reactor: {:?}, {:?}", self.uring, self.mail)
    }
}

/// Runs `machine` until it is finished and has everything back.
pub fn run<M: Machine, R: Ring>(
    machine: M,
    driver: Uring<R>,
    mail: MailRx<M::Mail>,
    on_letter: impl FnMut(M::Letter),
) -> Result<Ended<M>, ReactorError> {
    Reactor::start(machine, driver, mail)?.run(on_letter)
}

impl<M: Machine, R: Ring> Reactor<M, R> {
    /// Turn after turn until it is over.
    pub fn run(mut self, mut on_letter: impl FnMut(M::Letter)) -> Result<Ended<M>, ReactorError> {
        loop {
            self.letters().for_each(&mut on_letter);
            if self.over() {
                return Ok(self.end());
            }
            self.turn()?;
        }
    }
}
