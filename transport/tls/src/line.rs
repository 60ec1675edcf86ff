//! One stream: what its machine wants in clear, what its driver moves sealed, and TLS in between.
//!
//! ```text
//!   machine's Recv { into } ◄── open ◄── rustls ◄── sealed buffer ◄── our Recv      the hold of the machine's Recv goes with ours
//!   machine's Send { parts } ──► seal ──► rustls ──► sealed buffer ──► our Send     its holds go with the first of ours, and come back
//! ```
//!
//! Promises: each operation of the machine comes back exactly once, with what it owned, and never before ours that stands for it; one send
//! and one receive are outstanding at a time; nothing is read from the stream that the machine has not asked for, but a handshake.
//! A connect is over when its handshake is: until then the machine knows no stream. Before it sees a byte of one that was accepted, its
//! connection has what binds proofs to the session. One that was accepted says its last word (close_notify) before it ends, where a send can
//! be made at once; it waits for no memory and no peer for that.

use crate::layer::Desk;
use driver::{Address, Binding, Conn, Done, Errno, Messages, Op, Parts, Span, StreamId, Time, why};
use memory::{Filling, Part};
use refcount::Hold;
use rustls::Connection;
use smallvec::{SmallVec, smallvec};
use std::io::{IoSlice, Read, Write};

/// Buffer of a stream at rest, and of one whose handshake is under way.
pub(crate) const SMALL: usize = 4 << 10;
/// Buffer of a busy one: four of the largest records.
pub(crate) const LARGE: usize = 64 << 10;
/// For so long after much came; then it is at rest with the next receive that a small buffer would have held, a Ping's at the latest.
const BUSY: Span = Span::seconds(1);
/// The longest plaintext of a record, and what is added to it.
const RECORD: usize = 16 << 10;
const RECORD_MORE: usize = 5 + 1 + 16;
/// Pieces that go into one record at most.
const PIECES: usize = 16;
/// The first byte of each TLS connection, and of a refusal.
const HANDSHAKE: u8 = 0x16;
const ALERT: u8 = 0x15;
/// RFC 9266, as one of the uses of RFC 5705.
const BINDING: &[u8] = b"EXPORTER-Channel-Binding";

/// Why a stream came to nothing.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Failure {
    /// The first byte is of something else.
    #[error("the peer does not speak TLS: either the whole cluster has --tls or nobody")]
    NotTls,
    /// The certificate is not one that we trust.
    #[error("the peer's certificate is not trusted ({0}): does it have the same key?")]
    Untrusted(rustls::CertificateError),
    /// The handshake took too long.
    #[error("the peer does not answer in TLS")]
    TooLate,
    /// The stream ended before the handshake did.
    #[error("the peer closed the connection during the handshake of TLS: does it have --tls, too?")]
    Ended,
    /// What was received makes no sense, or the peer refused.
    #[error("TLS failed: {0}")]
    Broken(rustls::Error),
}

impl From<rustls::Error> for Failure {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(why) => Self::Untrusted(why),
            other => Self::Broken(other),
        }
    }
}

impl Failure {
    fn errno(&self) -> Errno {
        match self {
            Self::Untrusted(_) => Errno::KEY_REJECTED,
            Self::TooLate => Errno::TIMED_OUT,
            Self::NotTls | Self::Ended | Self::Broken(_) => Errno::PROTOCOL,
        }
    }
}

/// The machine's connect, until the handshake is over.
struct Connecting {
    on: Option<Hold<Conn, why::Rx>>,
    to: Address,
    within: Span,
    deadline: Time,
}

/// The machine's receive; its hold is away while ours is out.
struct Wanted {
    on: Option<Hold<Conn, why::Rx>>,
    into: Filling,
    from: usize,
}

/// The machine's send, and how far it was sealed.
struct Sending {
    on: Messages,
    parts: Parts,
    part: usize,
    at: usize,
    total: usize,
}

impl Sending {
    fn left(&self) -> usize {
        self.parts[self.part..].iter().map(|part| part.len).sum::<usize>() - self.at
    }

    /// What comes next, so many bytes at most.
    fn next(&self, most: usize) -> SmallVec<[IoSlice<'_>; PIECES]> {
        let (mut at, mut room) = (self.at, most);
        let mut pieces = SmallVec::new();
        for part in &self.parts[self.part..] {
            if room == 0 || pieces.len() == PIECES {
                break;
            }
            let piece = &part.bytes()[at..];
            let piece = &piece[..piece.len().min(room)];
            room -= piece.len();
            at = 0;
            pieces.push(IoSlice::new(piece));
        }
        pieces
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some(part) = self.parts.get(self.part) {
            let left = part.len - self.at;
            if bytes < left {
                self.at += bytes;
                return;
            }
            bytes -= left;
            (self.part, self.at) = (self.part + 1, 0);
        }
    }
}

/// See the module's head.
pub(crate) struct Line {
    stream: StreamId,
    tls: Connection,
    connecting: Option<Connecting>,
    recv: Option<Wanted>,
    send: Option<Sending>,
    /// What was received and not yet opened is `sealed[from..to]`.
    sealed: Option<Filling>,
    from: usize,
    to: usize,
    large: bool,
    busy_until: Time,
    // what the driver has of it
    receiving: bool,
    sending: bool,
    shutting: bool,
    closing: bool,
    /// The machine's close waits for what we are sending.
    leaving: bool,
    /// Nothing was received yet.
    new: bool,
    /// The connection has its binding.
    bound: bool,
    /// To be said in clear.
    in_clear: Option<Vec<u8>>,
    /// Nothing more will be received: what receives end with.
    over: Option<Result<u32, Errno>>,
    /// It was over because of TLS, or of us: nothing more is sent either.
    broken: bool,
    shut: bool,
    /// It is among those that wait for memory.
    stalled: bool,
}

impl Line {
    fn new(stream: StreamId, tls: Connection, connecting: Option<Connecting>) -> Self {
        Self {
            stream,
            tls,
            connecting,
            recv: None,
            send: None,
            sealed: None,
            from: 0,
            to: 0,
            large: false,
            busy_until: Time(0),
            receiving: false,
            sending: false,
            shutting: false,
            closing: false,
            leaving: false,
            new: true,
            bound: false,
            in_clear: None,
            over: None,
            broken: false,
            shut: false,
            stalled: false,
        }
    }

    pub(crate) fn accepted(stream: StreamId, tls: Connection) -> Self {
        Self::new(stream, tls, None)
    }

    pub(crate) fn connected(
        stream: StreamId,
        tls: Connection,
        (on, to, within): (Hold<Conn, why::Rx>, Address, Span),
        deadline: Time,
    ) -> Self {
        Self::new(stream, tls, Some(Connecting { on: Some(on), to, within, deadline }))
    }

    /// When a handshake has to be over.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.connecting.as_ref().filter(|_| self.over.is_none()).map(|connecting| connecting.deadline)
    }

    /// Operations of the machine that none of ours stands for.
    pub(crate) fn held(&self) -> usize {
        let connect = self.connecting.is_some() && !self.receiving && !self.closing;
        let recv = self.recv.is_some() && !self.receiving;
        let send = self.send.is_some() && !self.sending;
        usize::from(connect) + usize::from(recv) + usize::from(send)
    }

    /// The machine's wish.
    pub(crate) fn submit(&mut self, op: Op, desk: &mut Desk) {
        match op {
            Op::Recv { on, into, from, .. } => self.recv = Some(Wanted { on: Some(on), into, from }),
            Op::Send { on, parts, .. } => {
                let total = parts.iter().map(|part| part.len).sum();
                self.send = Some(Sending { on, parts, part: 0, at: 0, total });
            }
            Op::Shutdown { stream } => {
                self.say_last(desk);
                self.shut = true;
                desk.ops.push_back(Op::Shutdown { stream });
            }
            Op::Close { stream } => {
                self.say_last(desk);
                // A peer that does not read holds nothing up: what does not go out at once comes back.
                if self.sending {
                    self.shutting = true;
                    desk.ops.push_back(Op::Shutdown { stream });
                }
                (self.shut, self.leaving) = (true, true);
            }
            other => return desk.ops.push_back(other),
        }
        self.pump(desk);
    }

    /// Tells the peer that nothing was cut off: not in the middle of what the machine sends, and not to one that is gone.
    fn say_last(&mut self, desk: &mut Desk) {
        let accepted = matches!(self.tls, Connection::Server(_));
        let between = self.send.is_none() && !self.sending && !self.shut;
        if accepted && between && self.bound && !self.broken && !matches!(self.over, Some(Err(_))) {
            self.tls.send_close_notify();
            self.seal(desk);
        }
    }

    /// An operation of ours is over, or of the machine's that went through. True if that was the end of it.
    pub(crate) fn done(&mut self, now: Time, done: Done, desk: &mut Desk) -> bool {
        let Done { op, result } = done;
        match op {
            Op::Recv { on, into, .. } => {
                self.receiving = false;
                match (&mut self.recv, &mut self.connecting) {
                    (Some(wanted), _) => wanted.on = Some(on),
                    (None, Some(connecting)) => connecting.on = Some(on),
                    (None, None) => debug_assert!(false, "a receive stands for the machine's"),
                }
                self.received(now, into, result, desk);
            }
            Op::Send { on, .. } => {
                self.sending = false;
                self.sent(on, result, desk);
            }
            Op::Shutdown { .. } if self.shutting => self.shutting = false,
            Op::Close { .. } => {
                match self.connecting.take() {
                    Some(Connecting { on: Some(on), to, within, .. }) => {
                        let why = self.over.and_then(Result::err).unwrap_or(Errno::PROTOCOL);
                        desk.dones.push_back(Done { op: Op::Connect { on, to, within }, result: Err(why) });
                    }
                    _ => desk.dones.push_back(Done { op, result }),
                }
                return true;
            }
            op => {
                return {
                    desk.dones.push_back(Done { op, result });
                    false
                };
            }
        }
        self.pump(desk);
        false
    }

    /// The handshake took too long.
    pub(crate) fn expire(&mut self, desk: &mut Desk) {
        self.fail(Failure::TooLate, desk);
        self.end(desk);
    }

    /// All of the machine's comes back.
    pub(crate) fn cancel(&mut self, desk: &mut Desk) {
        self.over.get_or_insert(Err(Errno::CANCELED));
        self.broken = true;
        self.end(desk);
    }

    fn end(&mut self, desk: &mut Desk) {
        self.shut = true;
        if self.connecting.is_some() && !self.shutting && !self.closing {
            self.shutting = true;
            desk.ops.push_back(Op::Shutdown { stream: self.stream });
        }
        self.pump(desk);
    }

    fn fail(&mut self, failure: Failure, desk: &mut Desk) {
        if self.broken {
            return;
        }
        self.broken = true;
        self.over = Some(Err(failure.errno()));
        desk.failed(self.connecting.as_ref().map(|connecting| &connecting.to), &failure);
    }

    fn received(&mut self, now: Time, into: Filling, result: Result<u32, Errno>, desk: &mut Desk) {
        match result {
            Ok(0) if self.tls.is_handshaking() && !self.shut => self.fail(Failure::Ended, desk),
            Ok(0) => self.over = self.over.or(Some(Ok(0))),
            Err(error) => self.over = self.over.or(Some(Err(error))),
            Ok(bytes) => {
                let bytes = bytes as usize;
                (self.from, self.to) = (0, bytes);
                if bytes == into.len() {
                    self.large = !self.tls.is_handshaking();
                }
                if bytes >= SMALL {
                    self.busy_until = now + BUSY;
                } else {
                    self.large &= now < self.busy_until;
                }
                let first = into[0];
                let client = self.connecting.is_some();
                self.sealed = Some(into);
                if std::mem::take(&mut self.new) && first != HANDSHAKE && !(client && first == ALERT) {
                    self.fail(Failure::NotTls, desk);
                    self.in_clear = Some(desk.in_clear.clone()).filter(|answer| !client && !answer.is_empty());
                }
            }
        }
    }

    fn sent(&mut self, on: Messages, result: Result<u32, Errno>, desk: &mut Desk) {
        match &mut self.send {
            // A send of TLS's own has none, and the machine's may have come meanwhile.
            Some(send) if !on.is_empty() => send.on = on,
            _ => debug_assert!(on.is_empty(), "holds are of the machine's send"),
        }
        let over = match result {
            // What is lost of a stream of records makes the rest worthless.
            Err(error) => {
                self.broken = true;
                self.over = self.over.or(Some(Err(error)));
                Some(Err(error))
            }
            Ok(_) => self
                .send
                .as_ref()
                .filter(|send| send.left() == 0 && !self.tls.wants_write())
                .map(|send| Ok(u32::try_from(send.total).unwrap_or(u32::MAX))),
        };
        if let Some(result) = over {
            self.finish_send(result, desk);
        }
    }

    fn finish_send(&mut self, result: Result<u32, Errno>, desk: &mut Desk) {
        if let Some(Sending { on, parts, .. }) = self.send.take() {
            desk.dones.push_back(Done { op: Op::Send { stream: self.stream, on, parts }, result });
        }
    }

    /// Once among those that wait, whatever it waits for.
    fn stall(&mut self, desk: &mut Desk) {
        if !std::mem::replace(&mut self.stalled, true) {
            desk.counters.stalls += 1;
            desk.stalled.push(self.stream);
        }
    }

    /// It may have waited for memory, and looks again.
    pub(crate) fn resume(&mut self, desk: &mut Desk) {
        self.stalled = false;
        self.pump(desk);
    }

    /// Does all that can be done now.
    pub(crate) fn pump(&mut self, desk: &mut Desk) {
        self.open(desk);
        self.seal(desk);
        self.receive(desk);
        self.conclude(desk);
        self.leave(desk);
    }

    /// From what was received to the machine's receive.
    fn open(&mut self, desk: &mut Desk) {
        let mut got = 0;
        loop {
            if let Some(Wanted { on: Some(_), into, from }) = &mut self.recv {
                got += self.tls.reader().read(&mut into[*from + got..]).unwrap_or(0);
            }
            let room = self.recv.as_ref().is_some_and(|wanted| wanted.from + got < wanted.into.len());
            if !(room || self.tls.is_handshaking()) || self.broken || self.from == self.to {
                break;
            }
            let Some(sealed) = &self.sealed else { break };
            let mut rest = &sealed[self.from..self.to];
            match self.tls.read_tls(&mut rest) {
                Ok(bytes @ 1..) => self.from += bytes,
                // After the peer's last word.
                Ok(0) => break,
                // More than rustls keeps of a message that is not whole.
                Err(error) => {
                    self.fail(Failure::Broken(rustls::Error::General(error.to_string())), desk);
                    break;
                }
            }
            match self.tls.process_new_packets() {
                Ok(state) if state.peer_has_closed() => self.over = self.over.or(Some(Ok(0))),
                Ok(_) => {}
                Err(error) => self.fail(error.into(), desk),
            }
        }
        // Let go only for another one: who has none receives nothing, not even a word of a peer that is there.
        let too_large = !self.large && self.sealed.as_ref().is_some_and(|sealed| sealed.len() > SMALL);
        if self.from == self.to && too_large {
            self.sealed = desk.take(SMALL).or_else(|| self.sealed.take());
        }
        self.bind(desk);
        if got > 0 && self.bound {
            self.finish_recv(Ok(u32::try_from(got).unwrap_or(u32::MAX)), desk);
        }
        if self.bound
            && !self.broken
            && let Some(Connecting { on: Some(on), to, within, .. }) = self.connecting.take_if(|c| c.on.is_some())
        {
            desk.counters.established += 1;
            desk.dones.push_back(Done { op: Op::Connect { on, to, within }, result: Ok(self.stream.0) });
        }
    }

    /// Once, when the handshake is over, and on the hold that is here then: each step of it came with a receive.
    fn bind(&mut self, desk: &mut Desk) {
        if self.bound || self.broken || self.tls.is_handshaking() {
            return;
        }
        let connects = self.connecting.as_ref().and_then(|connecting| connecting.on.as_ref());
        let Some(on) = connects.or_else(|| self.recv.as_ref().and_then(|wanted| wanted.on.as_ref())) else { return };
        match self.tls.export_keying_material([0; 32], BINDING, None) {
            Ok(bytes) => {
                on.bind(Binding(bytes));
                self.bound = true;
            }
            Err(error) => self.fail(Failure::Broken(error), desk),
        }
    }

    fn finish_recv(&mut self, result: Result<u32, Errno>, desk: &mut Desk) {
        if let Some(Wanted { on: Some(on), into, from }) = self.recv.take_if(|wanted| wanted.on.is_some()) {
            desk.dones.push_back(Done { op: Op::Recv { stream: self.stream, on, into, from }, result });
        }
    }

    /// From the machine's send, and from what TLS has to say, to the driver.
    fn seal(&mut self, desk: &mut Desk) {
        if self.sending || self.shut {
            return;
        }
        let ready = !self.tls.is_handshaking() && !self.broken;
        let left = self.send.as_ref().filter(|_| ready).map_or(0, Sending::left);
        let clear = self.in_clear.as_ref().map_or(0, Vec::len);
        if left == 0 && clear == 0 && !self.tls.wants_write() {
            return;
        }
        let records = left.div_ceil(RECORD) + usize::from(self.tls.wants_write());
        let Some(mut out) = desk.take((left + clear + records * RECORD_MORE).min(LARGE)) else {
            return self.stall(desk);
        };
        let mut at = 0;
        if let Some(said) = self.in_clear.take() {
            at = said.len().min(out.len());
            out[..at].copy_from_slice(&said[..at]);
        }
        loop {
            while at < out.len() && self.tls.wants_write() {
                at += self.tls.write_tls(&mut &mut out[at..]).unwrap_or(0);
            }
            let room = (out.len() - at).saturating_sub(RECORD_MORE).min(RECORD);
            let Some(send) = self.send.as_mut().filter(|send| ready && room > 0 && send.left() > 0) else { break };
            let taken = self.tls.writer().write_vectored(&send.next(room)).unwrap_or(0);
            if taken == 0 {
                break;
            }
            send.advance(taken);
        }
        let on = self.send.as_mut().map(|send| std::mem::take(&mut send.on)).unwrap_or_default();
        self.sending = true;
        let parts = smallvec![Part { mem: out.filled(), from: 0, len: at }];
        desk.ops.push_back(Op::Send { stream: self.stream, on, parts });
    }

    /// Asks the driver for more, if somebody waits for it.
    fn receive(&mut self, desk: &mut Desk) {
        if self.receiving || self.shut || self.over.is_some() {
            return;
        }
        let connects = self.connecting.as_mut().and_then(|connecting| connecting.on.take());
        let Some(on) = connects.or_else(|| self.recv.as_mut().and_then(|wanted| wanted.on.take())) else { return };
        debug_assert_eq!(self.from, self.to, "all that was received is opened before more is asked for");
        let old = self.sealed.take();
        let wanted = if self.large { LARGE } else { SMALL };
        let new = if old.as_ref().is_some_and(|old| old.len() >= wanted) { None } else { desk.take(wanted) };
        let Some(into) = new.or(old) else {
            match (&mut self.recv, &mut self.connecting) {
                (Some(wanted), _) => wanted.on = Some(on),
                (None, Some(connecting)) => connecting.on = Some(on),
                (None, None) => {}
            }
            return self.stall(desk);
        };
        self.receiving = true;
        desk.ops.push_back(Op::Recv { stream: self.stream, on, into, from: 0 });
    }

    /// Gives back what nothing comes of any more, once what is to be said about that is said.
    fn conclude(&mut self, desk: &mut Desk) {
        let speaks = self.tls.wants_write() || self.in_clear.is_some();
        if self.sending || (speaks && !self.shut) {
            return;
        }
        if self.shut {
            self.over.get_or_insert(Err(Errno::CANCELED));
        }
        let Some(over) = self.over else { return };
        self.finish_recv(over, desk);
        if self.broken || self.shut || self.tls.is_handshaking() {
            self.finish_send(over.and(Err(Errno::CANCELED)), desk);
        }
        let connects = self.connecting.as_ref().is_some_and(|connecting| connecting.on.is_some());
        if connects && !self.shutting && !self.closing {
            self.closing = true;
            desk.ops.push_back(Op::Close { stream: self.stream });
        }
    }

    /// The machine's close, which stands alone.
    fn leave(&mut self, desk: &mut Desk) {
        if self.leaving && !self.sending && !self.shutting {
            self.leaving = false;
            desk.ops.push_back(Op::Close { stream: self.stream });
        }
    }
}
