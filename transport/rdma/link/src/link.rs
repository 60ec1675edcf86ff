//! A link: what it knows, what it is told, and the end of it.

use driver::{Done, Errno, Op, StreamId};
use memory::Filling;
use std::collections::VecDeque;

use crate::credits::{Credits, Urgency};
use crate::limits::{OFFERS, POSTED, SLOT, WINDOWS};
use crate::message::{Kind, SAYING, Saying};
use crate::receiving::{Arrived, Receive};
use crate::sending::Sending;
use crate::windows::{Window, Windows};
use crate::work::{Failed, Finished, Lent, Received, Work};

/// What a link wants done, in order, and what it is done with.
#[derive(Debug, Default)]
pub struct Out {
    /// For its queue pair.
    pub works: Vec<Work>,
    /// For the machine.
    pub dones: Vec<Done>,
}

/// How a link ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The peer closed in good order: what it sent before can still be received.
    Peer,
    /// We closed.
    Ours,
    /// It broke, or the peer did what no legal peer does.
    Failed,
}

/// One connection's stream, from before it is up until its queue pair is destroyed.
pub struct Link {
    /// Opens windows, and never moves data itself.
    pub(crate) connecting: bool,
    pub(crate) stream: StreamId,
    pub(crate) credits: Option<Credits>,
    pub(crate) ended: Option<End>,
    /// Works that are not back.
    posted: usize,
    pub(crate) windows: Windows,
    /// Control messages that wait for a credit.
    says: VecDeque<(Kind, Saying)>,
    /// Of what was to be said of the Send, and never will be, what it has not heard of yet.
    pub(crate) never_said: usize,
    pub(crate) arrived: VecDeque<Arrived>,
    pub(crate) receive: Option<Receive>,
    pub(crate) send: Option<Sending>,
}

impl Link {
    /// A link that is not up. Posts a receive into each of `slots`, of [`SLOT`] bytes each; `keys` are those of its windows.
    pub fn new(connecting: bool, stream: StreamId, slots: Vec<Filling>, keys: Vec<u32>, out: &mut Out) -> Self {
        let mut link = Self {
            connecting,
            stream,
            credits: None,
            ended: None,
            posted: 0,
            windows: Windows::new(keys),
            says: VecDeque::new(),
            never_said: 0,
            arrived: VecDeque::with_capacity(slots.len()),
            receive: None,
            send: None,
        };
        for into in slots {
            debug_assert_eq!(into.len(), SLOT, "the peer fills a slot");
            link.post(Work::Receive { into }, out);
        }
        link
    }

    /// Both sides have posted their receives: this one `ours`, the peer `theirs`.
    pub fn up(&mut self, theirs: u16, ours: u16, out: &mut Out) {
        self.credits = Some(Credits::new(theirs, ours));
        self.go_on(out);
    }

    /// A `Recv` or a `Send`, one of each at a time; anything else comes straight back.
    pub fn submit(&mut self, op: Op, out: &mut Out) {
        match op {
            Op::Recv { on, into, from, .. } if self.receive.is_none() => {
                self.receive = Some(Receive::new(on, into, from))
            }
            Op::Send { on, parts, .. } if self.send.is_none() => self.send = Some(Sending::new(on, parts)),
            op => out.dones.push(Done { op, result: Err(Errno(EINVAL)) }),
        }
        self.go_on(out);
    }

    /// A work is over.
    pub fn finished(&mut self, finished: Finished, out: &mut Out) {
        self.posted -= 1;
        let Finished { work, result } = finished;
        // An Open that comes back unshut says nothing new: something else failed before. One that the device refused is the first to fail.
        if !matches!((&work, &result), (_, Ok(_)) | (Work::Open { .. }, Err(Failed::Flushed))) {
            self.fail(End::Failed);
        }
        match work {
            Work::Receive { into } => {
                if let Ok(received) = result {
                    self.message(into, received, out);
                }
            }
            Work::Data { .. } | Work::Give { .. } => self.sent(result.is_ok()),
            Work::Say { immediate, .. } if is_given(immediate) => self.sent(result.is_ok()),
            Work::Say { .. } | Work::Shut { .. } => {}
            Work::Take { into, len, .. } => self.taken(into, len, result.is_ok(), out),
            Work::Open { window, lent, .. } => {
                self.windows.give(window);
                match lent {
                    Lent::Out(_) => self.unlent(result.is_ok()),
                    Lent::In { into, .. } => self.given(into, out),
                }
            }
        }
        self.go_on(out);
    }

    /// It is over: nothing more is asked of the queue pair, which is to be put in error, drained and destroyed.
    pub fn lost(&mut self, end: End, out: &mut Out) {
        self.fail(end);
        self.go_on(out);
    }

    /// How it ended, if it did. A link ends itself when the peer breaks the rules.
    pub fn ended(&self) -> Option<End> {
        self.ended
    }

    /// Works that are not back.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// Operations that are not back.
    pub fn outstanding(&self) -> bool {
        self.receive.is_some() || self.send.is_some()
    }

    /// A `Send` that is not back.
    pub fn outstanding_send(&self) -> bool {
        self.send.is_some()
    }

    /// Lets go of what arrived and was not asked for: nobody will.
    pub fn forget(&mut self) {
        self.arrived.clear();
    }

    // --- for the other files of this package ---

    pub(crate) fn post(&mut self, work: Work, out: &mut Out) {
        self.posted += 1;
        out.works.push(work);
        // The peer's device takes nothing, and the peer says that it did.
        if self.posted > POSTED {
            self.fail(End::Failed);
        }
    }

    pub(crate) fn fail(&mut self, end: End) {
        if self.ended.is_none() {
            self.ended = Some(end);
            for (kind, _) in std::mem::take(&mut self.says) {
                if kind == Kind::Given {
                    // The Send may be in the very hands that found out.
                    match self.send.is_some() {
                        true => self.sent(false),
                        false => self.never_said += 1,
                    }
                }
            }
        }
    }

    /// A slot that was read is posted again, before the peer is told.
    pub(crate) fn post_again(&mut self, into: Filling, out: &mut Out) {
        if self.ended.is_some() {
            return;
        }
        self.post(Work::Receive { into }, out);
        if self.credits.as_mut().is_some_and(|credits| !credits.posted()) {
            self.fail(End::Failed);
        }
    }

    /// True if a message for `urgency` can go now.
    pub(crate) fn may(&self, urgency: Urgency) -> bool {
        self.ended.is_none() && self.credits.as_ref().is_some_and(|credits| credits.may(urgency))
    }

    /// The immediate of a message that goes now.
    pub(crate) fn immediate(&mut self, kind: Kind) -> u32 {
        kind.with(self.credits.as_mut().map_or(0, Credits::spend))
    }

    /// Says something that is a part of the stream; `may` has been asked.
    pub(crate) fn say_now(&mut self, kind: Kind, saying: Saying, out: &mut Out) {
        let immediate = self.immediate(kind);
        self.post(Work::Say { immediate, bytes: saying.bytes(), len: SAYING }, out);
    }

    /// Says something as soon as there is a credit for it.
    pub(crate) fn say(&mut self, kind: Kind, saying: Saying) {
        if self.ended.is_none() {
            self.says.push_back((kind, saying));
        }
    }

    pub(crate) fn shut(&mut self, Window { index, key }: Window, out: &mut Out) {
        if self.ended.is_none() {
            self.post(Work::Shut { window: index, key }, out);
        }
    }

    /// Everything that can go on does.
    fn go_on(&mut self, out: &mut Out) {
        self.receive_on(out);
        self.send_on(out);
        while self.may(Urgency::Control) {
            let Some((kind, saying)) = self.says.pop_front() else { break };
            self.say_now(kind, saying, out);
        }
        if self.may(Urgency::Credits) && self.credits.as_ref().is_some_and(Credits::owes_much) {
            let immediate = self.immediate(Kind::Credits);
            self.post(Work::Say { immediate, bytes: [0; SAYING], len: 0 }, out);
        }
    }

    /// Parts that the peer has lent and that are not read. A legal one has so many windows.
    fn lent(&self) -> usize {
        self.arrived.iter().filter(|arrived| matches!(arrived, Arrived::Lent { .. })).count()
    }

    fn offered(&self) -> usize {
        self.arrived.iter().filter(|arrived| matches!(arrived, Arrived::Offered { .. })).count()
    }

    /// The peer has granted room and was not told yet that it is filled. A legal one has one receive at a time, so it grants no more.
    fn owes_given(&self) -> bool {
        self.says.iter().any(|(kind, _)| *kind == Kind::Given)
    }

    /// A message. Those that come before we know that we are connected are kept like any other.
    fn message(&mut self, into: Filling, received: Received, out: &mut Out) {
        // What arrived before the peer closed is still the stream's.
        if self.ended.is_some_and(|end| end != End::Peer) {
            return;
        }
        let Received { len, immediate } = received;
        let Some((kind, credits)) = Kind::parse(immediate).filter(|_| len <= into.len()) else {
            return self.fail(End::Failed);
        };
        let legal = self.credits.as_mut().map_or(credits == 0, |ours| ours.returned(credits));
        if !legal {
            return self.fail(End::Failed);
        }
        let saying = Saying::parse(&into[..len]);
        let legal = match (kind, saying) {
            (Kind::Data, _) if len > 0 => {
                self.arrived.push_back(Arrived::Bytes { mem: into, at: 0, end: len });
                return;
            }
            (Kind::Credits, _) => len == 0,
            (Kind::Lend, Some(Saying { at, len, key })) if !self.connecting && self.lent() < usize::from(WINDOWS) => {
                self.arrived.push_back(Arrived::Lent { at, rest: len, key });
                true
            }
            (Kind::Offer, Some(Saying { len, .. })) if self.connecting && self.offered() < OFFERS => {
                self.arrived.push_back(Arrived::Offered { rest: len });
                true
            }
            (Kind::Grant, Some(saying)) if !self.connecting && !self.owes_given() => self.granted(saying, out),
            (Kind::Taken, Some(_)) if self.connecting => self.all_taken(out),
            (Kind::Given, Some(Saying { len, .. })) if self.connecting => self.was_given(len, out),
            _ => false,
        };
        if legal {
            self.post_again(into, out);
        } else {
            self.fail(End::Failed);
        }
    }
}

/// The peer learns that it was given something: until then what was given is not sent.
fn is_given(immediate: u32) -> bool {
    Kind::parse(immediate).is_some_and(|(kind, _)| kind == Kind::Given)
}

/// The operation cannot be done here.
const EINVAL: i32 = 22;

/// What an operation comes to that the end of a link overtakes.
pub(crate) fn refusal(end: End) -> Errno {
    if end == End::Ours { Errno::CANCELED } else { Errno::RESET }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = if self.connecting { "connecting" } else { "accepting" };
        write!(f, "{side} link {:?}: {} posted, ended {:?}", self.stream, self.posted, self.ended)
    }
}
