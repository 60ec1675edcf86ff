//! One connection: its end of the manager's, its queue pair, its link, and what the machine waits for.

use driver::{Address, Conn, Done, Errno, ListenerId, Op, Span, StreamId, Time, why};
use rdma_link::cm::Phase;
use rdma_link::{DRAIN, End, Failed, Finished, Link, Out, RX};
use refcount::Hold;

use crate::stranger::Stranger;
use crate::verbs::{Id, Pair};

/// See above.
pub(crate) struct Line {
    pub(crate) stream: StreamId,
    pub(crate) phase: Phase,
    /// Until there is a queue pair, which takes it.
    pub(crate) id: Option<Id>,
    pub(crate) pair: Option<Pair>,
    pub(crate) link: Option<Link>,
    /// Receives that the peer has posted.
    pub(crate) theirs: u16,
    /// Who accepted it.
    pub(crate) listener: Option<ListenerId>,
    /// Its peer, if it was that who asked for it, until it has to go for another one.
    pub(crate) stranger: Option<Stranger>,
    /// The connect that it answers.
    pub(crate) connect: Option<(Hold<Conn, why::Rx>, Address, Span)>,
    /// How often its device was looked for.
    pub(crate) looks: u8,
    /// Of opening, then of draining.
    pub(crate) deadline: Option<Time>,
    /// The machine knows of it; otherwise it goes by itself.
    pub(crate) known: bool,
    /// The machine wants it closed.
    pub(crate) close: bool,
    /// What the device said when it broke.
    pub(crate) status: Option<i32>,
    out: Out,
    finished: Vec<Finished>,
}

impl Line {
    pub(crate) fn new(stream: StreamId, phase: Phase, id: Id, deadline: Time) -> Self {
        Self {
            stream,
            phase,
            id: Some(id),
            pair: None,
            link: None,
            theirs: 0,
            listener: None,
            stranger: None,
            connect: None,
            looks: 0,
            deadline: Some(deadline),
            known: false,
            close: false,
            status: None,
            out: Out::default(),
            finished: Vec::new(),
        }
    }

    /// Tells the link something, then does what it wants.
    pub(crate) fn with(&mut self, now: Time, dones: &mut Vec<Done>, tell: impl FnOnce(&mut Link, &mut Out)) {
        if let Some(link) = &mut self.link {
            tell(link, &mut self.out);
        }
        self.go_on(now, dones);
    }

    /// What completed, then what follows from it, until nothing does.
    pub(crate) fn poll(&mut self, now: Time, dones: &mut Vec<Done>) {
        if let Some(pair) = &mut self.pair {
            pair.poll();
            self.go_on(now, dones);
        }
    }

    fn go_on(&mut self, now: Time, dones: &mut Vec<Done>) {
        loop {
            if let Some(pair) = &mut self.pair {
                pair.post(&mut self.out.works);
                pair.take_finished(&mut self.finished);
            } else {
                let gone = self.out.works.drain(..).map(|work| Finished { work, result: Err(Failed::Flushed) });
                self.finished.extend(gone);
            }
            if let Some(link) = &mut self.link {
                for finished in self.finished.drain(..) {
                    link.finished(finished, &mut self.out);
                }
            }
            dones.append(&mut self.out.dones);
            if !self.out.works.is_empty() {
                continue;
            }
            if self.phase == Phase::Up && self.link.as_ref().is_some_and(|link| link.ended().is_some()) {
                self.break_off(now);
                continue;
            }
            let drained = self.pair.as_ref().is_some_and(Pair::drained);
            if self.phase == Phase::Ending && drained && self.finished.is_empty() {
                self.destroy();
                continue;
            }
            if self.finished.is_empty() {
                return;
            }
        }
    }

    /// It is up: both sides have posted what they said.
    pub(crate) fn up(&mut self, now: Time, dones: &mut Vec<Done>) {
        (self.phase, self.deadline, self.known) = (Phase::Up, None, true);
        let theirs = self.theirs;
        self.with(now, dones, |link, out| link.up(theirs, RX, out));
    }

    /// The end of it, from whatever phase.
    pub(crate) fn end(&mut self, now: Time, end: End, dones: &mut Vec<Done>) {
        if self.phase == Phase::Ending {
            return;
        }
        self.with(now, dones, |link, out| link.lost(end, out));
        if self.phase != Phase::Ending {
            self.break_off(now);
            self.go_on(now, dones);
        }
    }

    fn break_off(&mut self, now: Time) {
        self.phase = Phase::Ending;
        self.id = None;
        self.deadline = self.pair.as_ref().map(|_| now + DRAIN);
        if let Some(pair) = &mut self.pair {
            pair.break_off();
        }
    }

    /// Nothing is posted any more, or it has been long enough: with the queue pair the last of it comes back.
    fn destroy(&mut self) {
        if let Some(mut pair) = self.pair.take() {
            pair.destroy();
            self.status = pair.status();
            pair.take_finished(&mut self.finished);
        }
        self.deadline = None;
    }

    /// Its deadline has passed while it was ending.
    pub(crate) fn give_up(&mut self, now: Time, dones: &mut Vec<Done>) {
        self.destroy();
        self.go_on(now, dones);
    }

    /// The answer to its connect, if that is still to come.
    pub(crate) fn connected(&mut self, result: Result<(), Errno>, dones: &mut Vec<Done>) {
        if let Some((on, to, within)) = self.connect.take() {
            dones.push(Done { op: Op::Connect { on, to, within }, result: result.map(|()| self.stream.0) });
        }
    }

    /// Since when its peer is a stranger that can be made to go.
    pub(crate) fn strange(&self) -> Option<Time> {
        self.stranger.as_ref().and_then(|stranger| stranger.since(self.phase == Phase::Ending))
    }

    /// Its place comes back only if somebody has it go.
    pub(crate) fn stays(&self) -> bool {
        self.phase != Phase::Ending || self.strange().is_some()
    }

    /// Nothing of it is left, and nobody asks for it.
    pub(crate) fn over(&self) -> bool {
        let outstanding = self.link.as_ref().is_some_and(Link::outstanding);
        self.phase == Phase::Ending && self.pair.is_none() && !outstanding && (self.close || !self.known)
    }
}
