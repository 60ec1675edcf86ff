//! The machine: what the process asks for goes to the volume client, and its answers come back.

use conductor_model::Bytes;
use conductor_model::api::VolumeMap;
use driver::{Done, Machine, Outbox, Span, Time};
use memory::{Arena, Class, Part};
use refcount::LeakReport;
use std::collections::VecDeque;
use volume_client::{BlockDone, BlockError, BlockOp, BlockRequest, Extent, VolumeClient};

/// How often it is told what requests wait for.
const TELL_EVERY: Span = Span::seconds(1);
/// The volume client had no room: again after this.
const AGAIN: Span = Span::millis(1);

/// What the process tells the machine.
#[derive(Debug)]
pub(super) enum Mail {
    Map(Box<VolumeMap>),
    Ask(Ask),
    /// Nothing more is asked for.
    Stop,
    /// Fail what is in flight, and end.
    Abort,
}

/// What the machine tells the process.
#[derive(Debug)]
pub(crate) enum Letter {
    WantsMap,
    /// To one that asked.
    Answer(Answer),
    /// What requests wait for; when that is something, and when it is nothing any more.
    Waits(Vec<String>),
}

/// A request: `at` is its first byte, and no two in flight have the same.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) at: u64,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// What of so many bytes may be something else than zeros.
    Extents(u64),
    Read(u64),
    Write(Vec<u8>),
    Flush,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) at: u64,
    pub(super) result: Result<Found, BlockError>,
}

#[derive(Debug)]
pub(crate) enum Found {
    Extents(Vec<Extent>),
    Bytes(Vec<u8>),
    Done,
}

/// See the module's head.
pub(super) struct Desk {
    client: VolumeClient,
    arena: Arena,
    /// Not yet at the volume client.
    asked: VecDeque<Ask>,
    /// At the volume client.
    flying: usize,
    again: Option<Time>,
    told: Time,
    /// It was told that requests wait.
    waits: bool,
    over: bool,
}

impl Desk {
    pub(super) fn new(client: VolumeClient, arena: Arena) -> Self {
        let (asked, flying, again, told) = (VecDeque::new(), 0, None, Time(0));
        Self { client, arena, asked, flying, again, told, waits: false, over: false }
    }

    /// The assertion at the end.
    pub(super) fn leaks(&self) -> Result<(), LeakReport> {
        self.client.leaks()
    }

    /// True if the volume client got something.
    fn hand_in(&mut self, now: Time) -> bool {
        let before = self.flying;
        while let Some(ask) = self.asked.front() {
            let taken = request(ask, &self.arena).is_some_and(|request| self.client.submit(now, request).is_ok());
            if !taken {
                self.again = Some(now + AGAIN);
                break;
            }
            self.asked.pop_front();
            self.flying += 1;
        }
        self.flying > before
    }

    /// True if there was one.
    fn answers(&mut self, out: &mut dyn Outbox<Letter>) -> bool {
        let mut any = false;
        while let Some(completion) = self.client.next_completion() {
            (any, self.flying) = (true, self.flying - 1);
            let found = |done| match done {
                BlockDone::Read(parts) => Found::Bytes(parts.iter().map(Part::bytes).collect::<Vec<_>>().concat()),
                BlockDone::Extents(extents) => Found::Extents(extents),
                BlockDone::Done => Found::Done,
            };
            out.post(Letter::Answer(Answer { at: completion.tag, result: completion.result.map(found) }));
        }
        any
    }

    fn tell_waits(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        if now.since(self.told) < TELL_EVERY {
            return;
        }
        self.told = now;
        let waiting = self.client.view(now).waiting;
        let waits = !waiting.is_empty();
        if waits || self.waits {
            self.waits = waits;
            let lines = waiting.into_iter().map(|wait| format!("{}: {}", wait.shard, wait.reason));
            out.post(Letter::Waits(lines.collect()));
        }
    }
}

/// `None` if there is no memory for it now.
fn request(ask: &Ask, arena: &Arena) -> Option<BlockRequest> {
    let (op, len) = match &ask.what {
        What::Extents(len) => (BlockOp::Extents, *len),
        What::Read(len) => (BlockOp::Read, *len),
        What::Flush => (BlockOp::Flush, 0),
        What::Write(bytes) => {
            let mut data = arena.take(bytes.len(), Class::Client)?;
            data.copy_from_slice(bytes);
            (BlockOp::Write { data: data.filled(), crcs: None }, bytes.len() as u64)
        }
    };
    Some(BlockRequest { tag: ask.at, op, offset: Bytes(ask.at), len: Bytes(len), fua: false })
}

impl Machine for Desk {
    type Mail = Mail;
    type Letter = Letter;

    fn start(&mut self, now: Time, _: &mut dyn Outbox<Letter>) {
        self.told = now;
    }

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        self.client.done(now, done, out);
    }

    fn mail(&mut self, now: Time, mail: Mail, out: &mut dyn Outbox<Letter>) {
        match mail {
            Mail::Map(map) => self.client.map(now, &map),
            Mail::Ask(ask) => self.asked.push_back(ask),
            Mail::Stop => self.over = true,
            Mail::Abort => {
                self.over = true;
                self.asked.clear();
                self.client.abort(now, out);
            }
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.again = None;
        self.hand_in(now);
        self.client.end_turn(now, out);
        if self.answers(out) && self.hand_in(now) {
            // What there was room for only now leaves in this turn, too; what is over at once is answered in another one.
            self.client.end_turn(now, out);
            self.again = Some(now);
        }
        if self.client.wants_map(now) {
            out.post(Letter::WantsMap);
        }
        if self.over && self.asked.is_empty() && self.flying == 0 {
            self.client.stop();
        }
        self.tell_waits(now, out);
    }

    fn next_deadline(&self) -> Option<Time> {
        let tells = (self.flying > 0 || self.waits).then(|| self.told + TELL_EVERY);
        [self.again, tells, self.client.next_deadline()].into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.over && self.flying == 0 && self.client.finished()
    }
}
