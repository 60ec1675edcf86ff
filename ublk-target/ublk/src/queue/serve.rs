//! A queue's thread, from its ring to its end.
//!
//! ```text
//!   push ─▶ one enter ─▶ drain ─▶ clock ─▶ operations done ─▶ requests in ─▶ end_turn ─▶ answers out
//!    ▲                                                                                   │
//!    └───────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! It ends when it is told to leave, or when the kernel takes a tag back (the device stops): requests are not taken any more,
//! what is in flight is finished, and the executor says goodbye. What stays unanswered is asked again after a recovery.

use super::lane::{Lane, QueueMail};
use super::tags::{Answer, Counters, Tags};
use crate::kernel::{Buffer, Event, Gate, KernelQueue, Lasting, QueueRing, make_ring};
use crate::limits::{GOODBYE_WAIT, HELD_WAIT, LEAVE_WAIT, RING};
use crate::{BuildError, Executor, QueueFailure, QueueId, daemon};
use driver::{Errno, Span, Time};
use reactor::{Cqe, MailRx, Reactor, Ring, Uring, clock};

/// What a queue's thread tells its device.
#[expect(clippy::large_enum_variant, reason = "two of them in a queue's life")]
pub(crate) enum Report {
    /// It is prepared; later, its tags are fetched.
    Ready,
    /// It ended, well or not.
    Ended(QueueId, Result<QueueView, QueueFailure>),
}

/// A look at one queue. All of it is a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueView {
    /// Which.
    pub queue: QueueId,
    /// Requests that its executor has.
    pub in_flight: usize,
    /// What the kernel asked.
    pub counters: Counters,
    /// What the reactor did.
    pub reactor: reactor::Counters,
}

/// Where a queue is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Serving,
    /// No new requests; the executor was told to stop, and has until then for the rest.
    Finishing(Time),
    /// It says goodbye; `until` then it is aborted.
    Stopping(Time),
    /// Nothing else can be done but to wait for its operations, which the reactor cancels.
    Aborted,
}

type QueueReactor<'q, 'd, E> = Reactor<Lane<E>, QueueRing<'q, 'd>>;

/// Makes the calling thread, which must be new and of no other use, one that can serve a queue. `lasting` must outlive it.
pub(crate) fn prepare(depth: u16, lasting: &mut Lasting) -> Result<(), QueueFailure> {
    // Not fatal: it is for a machine that runs out of memory. Doctor speaks of it.
    let _flusher = daemon::io_flusher();
    if !lasting.has_buffers() {
        return Err(QueueFailure::Memory(depth));
    }
    make_ring(depth, lasting)
}

/// Serves queue `id` of the device behind `gate` on the calling thread, which is prepared.
pub(crate) fn serve<E: Executor>(
    gate: &Gate,
    id: QueueId,
    lasting: &mut Lasting,
    mail: MailRx<QueueMail<E::Mail>>,
    build: impl FnOnce(QueueId) -> Result<E, BuildError>,
    mut on_letter: impl FnMut(E::Letter),
    on_fetched: impl FnOnce(),
) -> Result<QueueView, QueueFailure> {
    let buffers = &mut lasting.buffers;
    let kernel = KernelQueue::open(gate, id, buffers)?;
    let mut uring = Uring::new(kernel.ring(), RING)?;
    // First, as 6.12 lets nobody recover a device after a daemon of which no queue has fetched: what fails from here on can be tried again.
    uring.ring().submit().map_err(reactor::ReactorError::Enter)?;
    let mut executor = build(id).map_err(QueueFailure::Build)?;
    executor.open_rdma(&mut |arena| uring.open_rdma(arena))?;
    if let Some(layer) = executor.take_tls() {
        uring.open_tls(layer);
    }
    let reactor = Reactor::start(Lane::new(executor), uring, mail)?;
    let mut queue = Serving {
        id,
        kernel: &kernel,
        reactor,
        tags: Tags::new(gate.depth()),
        phase: Phase::Serving,
        cqes: Vec::new(),
        events: Vec::new(),
    };
    queue.fetched(buffers)?;
    on_fetched();
    while !queue.over() {
        queue.turn(buffers)?;
        queue.reactor.letters().for_each(&mut on_letter);
    }
    queue.end()
}

struct Serving<'q, 'd, E: Executor> {
    id: QueueId,
    kernel: &'q KernelQueue<'d>,
    reactor: QueueReactor<'q, 'd, E>,
    tags: Tags,
    phase: Phase,
    /// Storage of a turn, reused.
    cqes: Vec<Cqe>,
    events: Vec<Event>,
}

impl<E: Executor> Serving<'_, '_, E> {
    /// Sees whether the kernel took the fetches.
    fn fetched(&mut self, buffers: &[Buffer]) -> Result<(), QueueFailure> {
        self.reactor.driver().drain(&mut self.cqes);
        self.reactor.driver().ring().take_events(&mut self.events);
        self.take_events(buffers)
    }

    fn turn(&mut self, buffers: &mut [Buffer]) -> Result<(), QueueFailure> {
        self.reactor.push_pending()?;
        let (want, timeout) = self.patience(clock::now());
        self.reactor.driver().enter(want, timeout)?;
        self.reactor.driver().drain(&mut self.cqes);
        self.reactor.driver().ring().take_events(&mut self.events);
        let now = clock::now();
        let mut cqes = std::mem::take(&mut self.cqes);
        for cqe in cqes.drain(..) {
            self.reactor.complete(now, cqe);
        }
        self.cqes = cqes;
        self.take_events(buffers)?;
        if self.phase == Phase::Serving {
            self.tags.feed(now, &mut self.reactor.machine().executor, buffers);
        }
        self.reactor.end_turn(now);
        self.show();
        self.answer(buffers);
        self.progress(now);
        Ok(())
    }

    /// How many completions to wait for, and how long.
    fn patience(&mut self, now: Time) -> (u32, Option<Span>) {
        let (want, mut timeout) = self.reactor.patience(now);
        let mut at_most = |span: Span| timeout = Some(timeout.map_or(span, |known| known.min(span)));
        match self.phase {
            Phase::Serving if self.tags.holds_back() => at_most(HELD_WAIT),
            Phase::Serving => {}
            Phase::Finishing(until) | Phase::Stopping(until) => at_most(until.since(now)),
            Phase::Aborted => at_most(HELD_WAIT),
        }
        (want, timeout)
    }

    /// What the kernel said.
    fn take_events(&mut self, buffers: &[Buffer]) -> Result<(), QueueFailure> {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Request(tag) => {
                    let Some(buffer) = buffers.get(usize::from(tag)) else {
                        return Err(QueueFailure::Fetch(Errno::IO));
                    };
                    if self.phase == Phase::Serving {
                        let answer = self.tags.arrived(tag, self.kernel.descriptor(tag), buffer.len());
                        self.commit(answer, buffers);
                    }
                }
                // `is_stopping` knows.
                Event::Abort => {}
                Event::Failed(errno) => return Err(QueueFailure::Fetch(errno)),
            }
        }
        self.events = events;
        Ok(())
    }

    fn commit(&self, answers: impl IntoIterator<Item = Answer>, buffers: &[Buffer]) {
        for (tag, result) in answers {
            self.kernel.commit(tag, &buffers[usize::from(tag)], result);
        }
    }

    /// Answers who wants to look.
    fn show(&mut self) {
        if !self.reactor.machine().looks.is_empty() {
            let view = self.view();
            for to in self.reactor.machine().looks.drain(..) {
                // Who asked may have given up.
                let _gone = to.send(view.clone());
            }
        }
    }

    /// Answers what is over.
    fn answer(&mut self, buffers: &mut [Buffer]) {
        if std::mem::take(&mut self.reactor.machine().refusing) {
            let answers = self.tags.refuse(Errno::IO);
            self.commit(answers, buffers);
        }
        while let Some(completion) = self.reactor.machine().executor.next_completion() {
            let answer = self.tags.finished(completion, buffers);
            // What was aborted for the next daemon's sake is not answered: the kernel asks it again.
            if self.phase != Phase::Aborted {
                self.commit(answer, buffers);
            }
        }
    }

    /// From one phase to the next, as far as it goes: a wait in between would be for nothing.
    fn progress(&mut self, now: Time) {
        let lane = self.reactor.machine();
        if self.phase == Phase::Serving && (lane.leaving || self.kernel.is_stopping()) {
            self.tags.drop_held();
            lane.executor.stop();
            self.phase = Phase::Finishing(now + LEAVE_WAIT);
        }
        match self.phase {
            Phase::Finishing(until) if lane.executor.in_flight() == 0 || now >= until => {
                self.phase = Phase::Stopping(now + GOODBYE_WAIT);
            }
            Phase::Stopping(until) if now >= until => {
                lane.abort = true;
                self.phase = Phase::Aborted;
            }
            _ => {}
        }
    }

    fn over(&mut self) -> bool {
        matches!(self.phase, Phase::Stopping(_) | Phase::Aborted) && self.reactor.over()
    }

    fn view(&mut self) -> QueueView {
        QueueView {
            queue: self.id,
            in_flight: self.reactor.machine().executor.in_flight(),
            counters: self.tags.counters,
            reactor: self.reactor.driver().counters(),
        }
    }

    /// The last answers leave; the reactor is taken apart.
    fn end(mut self) -> Result<QueueView, QueueFailure> {
        self.reactor.driver().ring().submit().map_err(reactor::ReactorError::Enter)?;
        let view = self.view();
        let ended = self.reactor.end();
        if ended.streams_left_open > 0 {
            tracing::warn!(queue = %view.queue, streams = ended.streams_left_open, "streams left open by a queue");
        }
        Ok(view)
    }
}
