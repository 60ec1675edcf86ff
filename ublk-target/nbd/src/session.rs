//! The session: what it waits for, what it has in flight, and the way from one to the other.
//!
//! ```text
//!  ClientFlags ─▶ Options ◀─▶ Skip           (ABORT, a broken handshake: Closed)
//!                  │   ▲ │
//!                  ▼   │ │                    STARTTLS, its answer sent, the stream made TLS
//!                 Securing
//!                        │ GO, EXPORT_NAME
//!                        ▼
//!                Commands ◀─▶ Read | Write | Skip      (end of stream, garbage: Closed)
//!                        └─ DISC ─▶ Leaving ─ all answered and sent ─▶ Closed
//! ```

use crate::command::{Command, Cookie, Header, Request, Ticket, What, in_pages, piece_end};
use crate::export::Export;
use crate::fault::{Closed, Fault};
use crate::limits::{EDGES, IN_PLACE, Limits, MAX_GATHERED, MAX_OPTION, MAX_SMALL_OUTPUT, MIN_BYTES};
use crate::negotiation::{self, Negotiation, Next, Tls};
use crate::output::{Output, Parts};
use crate::reply::{self, Gathered, Outcome};
use crate::stream::Stream;
use crate::wire::{Fields, OPTION, OPTION_HEADER, REQUEST_HEADER};
use conductor_model::Bytes;
use memory::{Arena, Class, Filling};
use slab::Slab;

/// What a session has to say.
#[derive(Debug)]
pub enum Event {
    /// Something for the volume. It must be finished, whatever happens to the session meanwhile.
    Request(Request),
    /// All that was to be said in clear is sent: make the stream TLS, then call [`Session::secured`], or [`Session::close`] if there is no TLS.
    /// Nothing is received meanwhile.
    StartTls,
    /// It is over; said once. Send what [`Session::take_output`] still has (the answer to a polite goodbye), close the stream, and
    /// keep the session until [`Session::is_finished`].
    Closed(Closed),
}

/// A receive to be posted: `into[from..]`, any number of bytes.
#[derive(Debug)]
pub struct Recv {
    /// Where to; it is not empty.
    pub into: Filling,
    /// First byte to fill.
    pub from: usize,
}

/// See the crate's head.
pub struct Session {
    export: Export,
    limits: Limits,
    negotiation: Negotiation,
    phase: Phase,
    stream: Stream,
    output: Output,
    posted: Posted,
    waiting: Waiting,
    commands: Slab<Active>,
    /// The only command in flight is a read whose simple reply goes out as its data comes: no other reply may get in between.
    alone: bool,
    /// Bytes of pages that count against `limits.bytes`.
    charged: u64,
    /// Bytes of `charged` that go when the outstanding send is over.
    sending: Option<u64>,
    /// Not said yet.
    closed: Option<Closed>,
}

enum Phase {
    ClientFlags,
    Options,
    /// The client waits for TLS; whether that was asked for.
    Securing(bool),
    Commands,
    /// Bytes that nobody wants.
    Skip {
        left: u64,
        then: Then,
    },
    /// A read is handed out piece by piece.
    Read {
        slot: usize,
        next: u64,
        end: u64,
    },
    /// A write's payload arrives piece by piece.
    Write {
        slot: usize,
        next: u64,
        end: u64,
        fua: bool,
        piece: Option<Piece>,
    },
    /// The client said goodbye: nothing more is read, and what it asked for before is still answered.
    Leaving,
    Closed,
}

#[derive(Clone, Copy)]
enum Then {
    Options,
    /// The command that they belong to is refused.
    Refuse(Cookie, Fault),
}

/// Memory for a piece of payload; away while a receive into it is posted.
struct Piece {
    memory: Option<Filling>,
    filled: usize,
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Posted {
    Nothing,
    Stream,
    Payload,
}

/// What the last poll ended for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// `poll` has to be called first.
    Poll,
    Input,
    /// A limit: something in flight must end.
    Room,
    Memory,
    Nothing,
}

/// A command in flight.
struct Active {
    cookie: Cookie,
    how: How,
    /// Requests handed out and not finished.
    out: u32,
    /// More are to be handed out.
    unissued: bool,
    fault: Option<Fault>,
}

/// How it is answered.
#[expect(clippy::large_enum_variant, reason = "slots are used again; a box would be an allocation per simple read")]
enum How {
    Simple,
    Chunks,
    Gathered(Gathered),
    Status { one: bool },
}

enum Step {
    Again,
    Event(Event),
    Wait(Waiting),
}

impl Session {
    /// A session with a client that just connected. The greeting is in the output. Limits below one command or one piece are
    /// raised to that.
    pub fn new(export: Export, limits: Limits, tls: Tls) -> Self {
        let mut output = Output::default();
        negotiation::greet(&mut output);
        Self {
            export,
            limits: Limits { commands: limits.commands.max(1), bytes: limits.bytes.max(Bytes(MIN_BYTES)) },
            negotiation: Negotiation::new(tls),
            phase: Phase::ClientFlags,
            stream: Stream::default(),
            output,
            posted: Posted::Nothing,
            waiting: Waiting::Poll,
            commands: Slab::new(),
            alone: false,
            charged: 0,
            sending: None,
            closed: None,
        }
    }

    /// The stream is TLS from here on.
    pub fn secured(&mut self) {
        if matches!(self.phase, Phase::Securing(true)) {
            self.negotiation.secured();
            self.phase = Phase::Options;
            self.waiting = Waiting::Poll;
        }
    }

    /// The next event. To be called until there is none: after [`received`](Self::received), [`finish`](Self::finish) and
    /// [`sent`](Self::sent), and when memory was given back while [`wants_memory`](Self::wants_memory).
    pub fn poll(&mut self, arena: &Arena) -> Option<Event> {
        loop {
            match self.step(arena) {
                Step::Again => {}
                Step::Event(event) => return Some(event),
                Step::Wait(waiting) => {
                    self.waiting = waiting;
                    return None;
                }
            }
        }
    }

    /// The receive to post now. `None`: one is posted, or nothing more is wanted before something in flight ends.
    pub fn next_recv(&mut self, arena: &Arena) -> Option<Recv> {
        if self.posted != Posted::Nothing || self.waiting != Waiting::Input {
            return None;
        }
        if let Phase::Write { piece: Some(piece), .. } = &mut self.phase
            && piece.len - piece.filled >= IN_PLACE
            && let Some(into) = piece.memory.take()
        {
            self.posted = Posted::Payload;
            return Some(Recv { into, from: piece.filled });
        }
        match self.stream.lend(arena) {
            Some((into, from)) => {
                self.posted = Posted::Stream;
                Some(Recv { into, from })
            }
            None => {
                self.waiting = Waiting::Memory;
                None
            }
        }
    }

    /// The posted receive is over with `n` bytes; 0 is the end of the stream (or an error of it).
    pub fn received(&mut self, into: Filling, n: usize) {
        let posted = std::mem::replace(&mut self.posted, Posted::Nothing);
        self.waiting = Waiting::Poll;
        if n == 0 {
            return self.end(Closed::EndOfStream);
        }
        match (&mut self.phase, posted) {
            (Phase::Closed, _) => {}
            (Phase::Write { piece: Some(piece), .. }, Posted::Payload) => {
                piece.filled = (piece.filled + n).min(piece.len);
                piece.memory = Some(into);
            }
            _ => self.stream.give_back(into, n),
        }
    }

    /// A request is over: answers its command when it was the last.
    pub fn finish(&mut self, ticket: Ticket, outcome: Outcome) {
        let Ticket { slot, offset, len, charged } = ticket;
        let Some(active) = self.commands.get_mut(slot) else {
            debug_assert!(false, "a ticket of another session");
            return;
        };
        active.out -= 1;
        let last = active.out == 0 && !active.unissued;
        let (cookie, out) = (active.cookie, &mut self.output);
        let mut over = charged; // what counts no more; data goes on to count until it is sent
        let mut broken = None;
        if matches!(self.phase, Phase::Closed) {
            // Nobody is there to hear it.
        } else {
            match (&mut active.how, outcome.fitting(len)) {
                (How::Simple, Outcome::Done) => {}
                (How::Simple, failed) => {
                    active.fault.get_or_insert(failed.fault());
                }
                (How::Chunks, Outcome::Data(data)) => {
                    reply::data_chunk(out, cookie, offset, len, last);
                    out.data(data, charged);
                    over = 0;
                }
                (How::Chunks, failed) => reply::error_chunk(out, cookie, failed.fault(), Some(offset), last),
                (How::Gathered(gathered), Outcome::Data(data)) if active.fault.is_none() => {
                    gathered.insert(offset, len, data, charged);
                    gathered.advance(cookie, self.negotiation.structured, out);
                    over = 0;
                }
                (How::Gathered(_), Outcome::Data(_)) => {}
                (How::Gathered(gathered), failed) => {
                    let fault = *active.fault.get_or_insert(failed.fault());
                    over += gathered.forget();
                    broken = gathered.is_begun().then_some(fault);
                }
                (How::Status { one }, Outcome::Extents(extents)) => {
                    if !reply::block_status(out, cookie, &extents, len, *one) {
                        reply::error_chunk(out, cookie, Fault::Io, None, true);
                    }
                }
                (How::Status { .. }, failed) => reply::error_chunk(out, cookie, failed.fault(), None, true),
            }
            if last {
                match (&active.how, active.fault) {
                    (How::Simple, fault) => reply::simple(out, cookie, fault),
                    (How::Gathered(_), Some(fault)) if self.negotiation.structured => {
                        reply::error_chunk(out, cookie, fault, None, true);
                    }
                    (How::Gathered(_), Some(fault)) => reply::simple(out, cookie, Some(fault)),
                    (How::Gathered(gathered), None) => debug_assert!(gathered.is_complete()),
                    (How::Chunks | How::Status { .. }, _) => {}
                }
            }
        }
        if last {
            self.commands.remove(slot);
            self.alone = false; // if it was set, for this one
        }
        self.discharge(over);
        if let Some(fault) = broken {
            self.end(Closed::BrokenReply(fault));
        }
    }

    /// The next send: at most `max_parts` parts. `None`: nothing to send, one is outstanding, or no memory for the headers.
    pub fn take_output(&mut self, arena: &Arena, max_parts: usize) -> Option<Parts> {
        if self.sending.is_some() {
            return None;
        }
        let (parts, over) = self.output.take(arena, max_parts)?;
        self.sending = Some(over);
        Some(parts)
    }

    /// The outstanding send is over. (One that failed is followed by [`close`](Self::close).)
    pub fn sent(&mut self) {
        let over = self.sending.take().unwrap_or(0);
        self.discharge(over);
    }

    /// Ends it from this side; what waits to be sent is dropped.
    pub fn close(&mut self) {
        self.end(Closed::Local);
    }

    /// Its client is gone: what was received and not handed out is forgotten, and what waits to be sent is dropped.
    pub fn abandon(&mut self) {
        self.end(Closed::EndOfStream);
    }

    /// True if what comes next, and is here, is goodbye.
    pub fn goodbye_is_next(&self) -> bool {
        let next = self.stream.bytes().first_chunk::<REQUEST_HEADER>().map(Header::parse);
        matches!((&self.phase, next), (Phase::Commands, Some(Ok(header))) if header.says_goodbye())
    }

    /// True once the client chose the export, until it says goodbye: a deadline for the handshake ends here.
    pub fn is_transmitting(&self) -> bool {
        match self.phase {
            Phase::ClientFlags | Phase::Options | Phase::Securing(_) | Phase::Leaving | Phase::Closed => false,
            Phase::Skip { then, .. } => matches!(then, Then::Refuse(..)),
            Phase::Commands | Phase::Read { .. } | Phase::Write { .. } => true,
        }
    }

    /// True once the client said goodbye, until all that it asked for before is answered.
    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    /// True if it would go on if there were memory.
    pub fn wants_memory(&self) -> bool {
        self.waiting == Waiting::Memory || (self.sending.is_none() && !self.output.is_empty())
    }

    /// Commands that were received and not answered.
    pub fn in_flight(&self) -> usize {
        self.commands.len()
    }

    /// Bytes that count against [`Limits::bytes`].
    pub fn bytes_in_flight(&self) -> Bytes {
        Bytes(self.charged)
    }

    /// True when it is closed, and every request, receive and send of it is over: it may go.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Closed)
            && self.commands.is_empty()
            && self.posted == Posted::Nothing
            && self.sending.is_none()
    }

    fn discharge(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.charged, "what is discharged was charged");
        self.charged = self.charged.saturating_sub(bytes);
    }

    /// Over, with nothing more to say.
    fn end(&mut self, why: Closed) {
        if !matches!(self.phase, Phase::Closed) {
            self.output.clear();
            self.say_goodbye(why);
        }
    }

    /// Over; what is queued is still sent.
    fn say_goodbye(&mut self, why: Closed) {
        self.closed = Some(why);
        self.phase = Phase::Closed;
        self.waiting = Waiting::Nothing; // nothing that comes makes it go on
        self.stream.clear();
        // Requests of a command that were not handed out never will be.
        self.commands.retain(|_, active| {
            active.unissued = false;
            active.out > 0
        });
    }

    fn step(&mut self, arena: &Arena) -> Step {
        match &mut self.phase {
            Phase::Closed => match self.closed.take() {
                Some(why) => Step::Event(Event::Closed(why)),
                None => Step::Wait(Waiting::Nothing),
            },
            Phase::Leaving if self.commands.is_empty() && self.output.is_empty() && self.sending.is_none() => {
                self.say_goodbye(Closed::Disconnected);
                Step::Again
            }
            Phase::Leaving => Step::Wait(Waiting::Room),
            Phase::ClientFlags => self.client_flags(),
            Phase::Options if self.output.small_len() > MAX_SMALL_OUTPUT => Step::Wait(Waiting::Room),
            Phase::Options => match self.option() {
                Some(Ok(())) => Step::Again,
                Some(Err(why)) => {
                    self.end(why);
                    Step::Again
                }
                None => Step::Wait(Waiting::Input),
            },
            Phase::Securing(asked) if !*asked && self.output.is_empty() && self.sending.is_none() => {
                *asked = true;
                Step::Event(Event::StartTls)
            }
            Phase::Securing(_) => Step::Wait(Waiting::Room),
            Phase::Skip { left: 0, then: Then::Options } => {
                self.phase = Phase::Options;
                Step::Again
            }
            Phase::Skip { left: 0, then: Then::Refuse(cookie, fault) } => {
                reply::simple(&mut self.output, *cookie, Some(*fault));
                self.phase = Phase::Commands;
                Step::Again
            }
            Phase::Skip { left, .. } => {
                let here = self.stream.bytes().len();
                if here == 0 {
                    return Step::Wait(Waiting::Input);
                }
                let now = usize::try_from(*left).map_or(here, |left| left.min(here));
                *left -= now as u64;
                self.stream.consume(now);
                Step::Again
            }
            Phase::Commands => self.command(),
            Phase::Read { .. } => self.read(),
            Phase::Write { .. } => self.write(arena),
        }
    }

    fn client_flags(&mut self) -> Step {
        let Some(flags) = Fields(self.stream.bytes()).u32() else { return Step::Wait(Waiting::Input) };
        self.stream.consume(4);
        match self.negotiation.client_flags(flags) {
            Ok(()) => self.phase = Phase::Options,
            Err(why) => self.end(why),
        }
        Step::Again
    }

    /// One option, if all of it is here.
    fn option(&mut self) -> Option<Result<(), Closed>> {
        let mut fields = Fields(self.stream.bytes());
        let (magic, option, len) = (fields.u64()?, fields.u32()?, fields.u32()?);
        if magic != OPTION {
            return Some(Err(Closed::OptionMagic(magic)));
        }
        if len > MAX_OPTION {
            let next = self.negotiation.admit(option).and_then(|()| self.negotiation.too_big(option, &mut self.output));
            self.stream.consume(OPTION_HEADER);
            self.phase = Phase::Skip { left: u64::from(len), then: Then::Options };
            return Some(next.map(|next| self.goes_on(next)));
        }
        let len = usize::try_from(len).ok()?;
        let data = fields.0.get(..len)?;
        let next = self
            .negotiation
            .admit(option)
            .and_then(|()| self.negotiation.option(&self.export, option, data, &mut self.output));
        self.stream.consume(OPTION_HEADER + len);
        Some(next.map(|next| self.goes_on(next)))
    }

    /// What comes behind an option.
    fn goes_on(&mut self, next: Next) {
        match next {
            Next::Option => {}
            Next::Commands => self.phase = Phase::Commands,
            Next::Tls if self.stream.bytes().is_empty() => self.phase = Phase::Securing(false),
            Next::Tls => self.end(Closed::AheadOfTls),
            Next::Goodbye => self.say_goodbye(Closed::Disconnected),
        }
    }

    /// One command, if its header is here and there is room for it.
    fn command(&mut self) -> Step {
        if self.alone || self.commands.len() >= self.limits.commands || self.output.small_len() > MAX_SMALL_OUTPUT {
            return Step::Wait(Waiting::Room);
        }
        let Some(bytes) = self.stream.bytes().first_chunk::<REQUEST_HEADER>() else {
            return Step::Wait(Waiting::Input);
        };
        let header = match Header::parse(bytes) {
            Ok(header) => header,
            Err(magic) => {
                self.end(Closed::RequestMagic(magic));
                return Step::Again;
            }
        };
        let structured = self.negotiation.structured;
        let checked = header.check(&self.export, structured, self.negotiation.allocation);
        let alone =
            !structured && matches!(checked, Ok(Command::Read { .. })) && u64::from(header.len) > self.most_gathered();
        if alone && !self.commands.is_empty() {
            return Step::Wait(Waiting::Room);
        }
        self.alone = alone;
        self.stream.consume(REQUEST_HEADER);
        match checked {
            Ok(command) => self.begin(&header, command),
            Err(fault) => {
                if structured && header.answered_in_chunks() {
                    reply::error_chunk(&mut self.output, header.cookie, fault, None, true);
                    return Step::Again;
                }
                // Its payload comes all the same, and must not be taken for a command. It is answered behind that: a client that still
                // sends may know no command of that name yet.
                let left = u64::from(header.payload());
                self.phase = Phase::Skip { left, then: Then::Refuse(header.cookie, fault) };
                Step::Again
            }
        }
    }

    fn begin(&mut self, header: &Header, command: Command) -> Step {
        let (cookie, offset, len) = (header.cookie, header.offset, u64::from(header.len));
        // The offset of what has no range (a flush, a goodbye) was not looked at.
        let (structured, end) = (self.negotiation.structured, offset.saturating_add(len));
        let what = match command {
            Command::Disconnect => {
                self.phase = Phase::Leaving;
                self.stream.clear();
                return Step::Again;
            }
            Command::Read { .. } if len == 0 && structured => {
                reply::nothing(&mut self.output, cookie);
                return Step::Again;
            }
            Command::Flush => What::Flush,
            _ if len == 0 => {
                reply::simple(&mut self.output, cookie, None);
                return Step::Again;
            }
            Command::Read { whole } => {
                let chunks = structured && !whole;
                let how =
                    if chunks { How::Chunks } else { How::Gathered(Gathered::new(offset, len, self.most_gathered())) };
                self.phase = Phase::Read { slot: self.activate(cookie, how, true), next: offset, end };
                return Step::Again;
            }
            Command::Write { fua } => {
                let slot = self.activate(cookie, How::Simple, true);
                self.phase = Phase::Write { slot, next: offset, end, fua, piece: None };
                return Step::Again;
            }
            Command::Trim { fua } => What::Trim { fua },
            Command::WriteZeroes { fua, no_hole, fast } => What::WriteZeroes { fua, no_hole, fast },
            Command::BlockStatus { one } => What::BlockStatus { one },
        };
        let how = if let What::BlockStatus { one } = what { How::Status { one } } else { How::Simple };
        let slot = self.activate(cookie, how, false);
        let ticket = self.ticket(slot, offset, len, 0);
        Step::Event(Event::Request(Request { ticket, what, offset: Bytes(offset), len: Bytes(len) }))
    }

    fn activate(&mut self, cookie: Cookie, how: How, unissued: bool) -> usize {
        self.commands.insert(Active { cookie, how, out: 0, unissued, fault: None })
    }

    fn ticket(&mut self, slot: usize, offset: u64, len: u64, charged: u64) -> Ticket {
        self.commands[slot].out += 1;
        Ticket { slot, offset, len, charged }
    }

    /// Longest read that is held back until all of it is there: it must fit into what may be in flight.
    fn most_gathered(&self) -> u64 {
        MAX_GATHERED.min(self.limits.bytes.0 - EDGES)
    }

    /// True if so many bytes more may be in flight. A piece may when nothing else is: the limit is never below one.
    fn has_room(&self, len: u64) -> bool {
        self.charged + len <= self.limits.bytes.0
    }

    fn read(&mut self) -> Step {
        let Phase::Read { slot, next: offset, end } = self.phase else { return Step::Again };
        let piece = piece_end(offset, end);
        let len = piece - offset;
        let charged = in_pages(offset, len);
        if !self.has_room(charged) {
            return Step::Wait(Waiting::Room);
        }
        self.charged += charged;
        let ticket = self.ticket(slot, offset, len, charged);
        if piece == end {
            self.commands[slot].unissued = false;
            self.phase = Phase::Commands;
        } else {
            self.phase = Phase::Read { slot, next: piece, end };
        }
        Step::Event(Event::Request(Request { ticket, what: What::Read, offset: Bytes(offset), len: Bytes(len) }))
    }

    fn write(&mut self, arena: &Arena) -> Step {
        let Phase::Write { slot, next, end, fua, piece } = &mut self.phase else { return Step::Again };
        let (slot, offset, end, fua) = (*slot, *next, *end, *fua);
        let until = piece_end(offset, end);
        let len = until - offset;
        let Some(piece) = piece else {
            if !self.has_room(in_pages(offset, len)) {
                return Step::Wait(Waiting::Room);
            }
            let Some(memory) = usize::try_from(len).ok().and_then(|len| arena.take(len, Class::Client)) else {
                return Step::Wait(Waiting::Memory);
            };
            self.charged += in_pages(offset, len);
            let len = memory.len();
            let piece = Some(Piece { memory: Some(memory), filled: 0, len });
            self.phase = Phase::Write { slot, next: offset, end, fua, piece };
            return Step::Again;
        };
        let Some(memory) = &mut piece.memory else { return Step::Wait(Waiting::Input) };
        let here = self.stream.bytes();
        let now = here.len().min(piece.len - piece.filled);
        memory[piece.filled..piece.filled + now].copy_from_slice(&here[..now]);
        piece.filled += now;
        self.stream.consume(now);
        if piece.filled < piece.len {
            return Step::Wait(Waiting::Input);
        }
        let Some(memory) = piece.memory.take() else { return Step::Again };
        if until == end {
            self.commands[slot].unissued = false;
            self.phase = Phase::Commands;
        } else {
            self.phase = Phase::Write { slot, next: until, end, fua, piece: None };
        }
        let what = What::Write { payload: memory.filled(), fua };
        let ticket = self.ticket(slot, offset, len, in_pages(offset, len));
        Step::Event(Event::Request(Request { ticket, what, offset: Bytes(offset), len: Bytes(len) }))
    }
}
