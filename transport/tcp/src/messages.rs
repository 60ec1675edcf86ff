//! Messages of an established connection: in, out, and what belongs to the connection itself.

use driver::{Errno, Op as Action, Time};
use memory::Class;
use std::cell::Cell;
use wire::{Body, Credits, Flags, Happening, Header, Op, ProtectionKey, Reason, Role, SessionId, State, prefix};

use crate::event::{Answer, NetEvent, Payload};
use crate::inbound::{Frame, Next};
use crate::limits::SMALL_STREAM;
use crate::link::{Link, Step};
use crate::net::{Needs, Net};

impl Net {
    /// Reads all messages that are there, then receives more. Stops where it must: a handshake that waits for its send, no
    /// memory, no receive slot.
    pub(crate) fn drain(&mut self, now: Time, link: &mut Link) {
        while link.state.is_open() && link.step.reads() && !link.receiving {
            // One slot for the message, one for the receive that follows. A legal peer never gets here: it is our own
            // machine that has not taken its events.
            if link.step == Step::Open && link.rx.len() < 2 {
                link.reservation = None;
                return self.stall(link);
            }
            let (arena, class, max_payload) = (&self.arena, link.class(), link.max_payload());
            let open = link.step == Step::Open;
            if open && link.budget.is_none() && link.state == State::Established {
                let client = link.peer.as_ref().filter(|peer| peer.role == Role::Client);
                link.budget = client.map(|peer| self.budgets.of(&peer.name));
            }
            let (most, needs) = (self.max_client_bytes, self.needs);
            let (charged, over) = (Cell::new(None), Cell::new(false));
            let Link { inbound, session, credits, budget, reservation, .. } = &mut *link;
            let admit = |header: &Header, body: &[u8]| {
                if open {
                    admit(session, credits, header, body)?;
                }
                let Some(budget) = &*budget else { return Ok(true) };
                let bytes = memory::set_aside(header.payload_len as usize) + expected(needs, header, body);
                if bytes > 0 {
                    let charge = budget.charge(bytes, most);
                    over.set(charge.is_none());
                    charged.set(charge);
                }
                Ok(!over.get())
            };
            let first = &*reservation;
            let take = |len| match first {
                Some(first) => first.take(len),
                None => arena.take(len, class),
            };
            let next = inbound.next(now, max_payload, &admit, &take);
            if !matches!(next, Next::NoMemory) || over.get() {
                *reservation = None;
            } else if reservation.is_none() && !driver::mutant::on("no_reservation") {
                *reservation = arena.reserve(class);
            }
            if !matches!(next, Next::NoMemory) {
                link.arriving = charged.take().or(link.arriving.take());
            }
            self.counters.over_budget += u64::from(over.get() && !link.stalled);
            match next {
                Next::Frame(frame) => {
                    self.counters.frames_in += 1;
                    if link.step == Step::Open {
                        self.message(now, link, frame);
                    } else {
                        self.handshake(now, link, &frame);
                    }
                }
                Next::More => {
                    let take =
                        |len| if len > SMALL_STREAM { arena.take_spare(len) } else { arena.take(len, Class::Settle) };
                    let Some((into, from)) = link.inbound.receive(now, open, &take) else { return self.stall(link) };
                    let Some(stream) = link.stream else { return };
                    let on = if link.step == Step::Open { link.rx.pop() } else { Some(link.owner.share()) };
                    let Some(on) = on else { return };
                    link.receiving = true;
                    self.ops.push(Action::Recv { stream, on, into, from });
                }
                Next::NoMemory => return self.stall(link),
                Next::Bad(reason) => self.end(now, link, reason, Happening::Disconnected),
            }
        }
    }

    fn stall(&mut self, link: &mut Link) {
        if !link.stalled {
            self.counters.stalls += 1;
        }
        link.stalled = true;
        self.stalled.push(link.id);
    }

    pub(crate) fn recv_done(
        &mut self,
        now: Time,
        link: &mut Link,
        done: (memory::Filling, usize),
        result: Result<u32, Errno>,
    ) {
        let (into, from) = done;
        match result {
            Ok(0) => self.end(now, link, Reason::PeerClosed, Happening::Disconnected),
            Ok(n) => {
                self.counters.recvs += 1;
                self.counters.bytes_in += u64::from(n);
                link.heard = now;
                if link.inbound.received(now, into, from, n as usize) {
                    self.counters.recvs_in_place += 1;
                }
                self.drain(now, link);
            }
            Err(error) => {
                let reason = if error == Errno::PROTOCOL { Reason::Tls } else { Reason::Io };
                self.end(now, link, reason, Happening::Disconnected);
            }
        }
    }

    /// One message on an established connection.
    fn message(&mut self, now: Time, link: &mut Link, frame: Frame) {
        let Frame { header, body, payload } = frame;
        let charge = link.arriving.take();
        let over_returned = link.credits.returned(header.credits).is_err();
        if over_returned && !driver::mutant::on("credits_over_returned") {
            return self.end(now, link, Reason::Credits, Happening::Disconnected);
        }
        if header.flags.is_reply() {
            return self.reply_in(link, header, body, payload);
        }
        match header.op {
            Op::PING => self.pong(link),
            Op::PONG => {}
            Op::GOODBYE => self.end(now, link, Reason::Goodbye, Happening::Disconnected),
            op if op.is_handshake() || op == Op::REPLY => {
                self.end(now, link, Reason::Unexpected, Happening::Disconnected);
            }
            // Nobody asks a client for anything.
            _ if link.mine.role == Role::Client => self.end(now, link, Reason::Unexpected, Happening::Disconnected),
            op => {
                if link.credits.arrived().is_err() {
                    return self.end(now, link, Reason::Credits, Happening::Disconnected);
                }
                self.counters.requests_in += 1;
                let answer = Answer {
                    slot: header.slot,
                    generation: header.generation,
                    hold: link.owner.share(),
                    abandoned: Some(self.abandoned.clone()),
                    _charge: charge,
                };
                let slot = link.rx.pop();
                self.tell_with(NetEvent::Request { conn: link.id, op, body, payload, answer }, slot);
            }
        }
    }

    fn reply_in(&mut self, link: &mut Link, header: Header, body: Body, payload: Option<Payload>) {
        let Some(token) = link.slots.close(header.slot, header.generation) else {
            self.counters.stale_replies += 1;
            return;
        };
        let slot = link.rx.pop();
        self.tell_with(NetEvent::Reply { conn: link.id, token, result: Ok((header.op, body, payload)) }, slot);
    }

    /// One Pong for all Pings that have not been answered yet: a peer cannot make the queue grow.
    fn pong(&mut self, link: &mut Link) {
        if !link.outbound.queue.iter().any(|message| message.header.op == Op::PONG) {
            self.queue(link, Header::new(Op::PONG, Flags::NONE, 0, 0), Body::new(), None);
        }
    }

    pub(crate) fn ping(&mut self, now: Time, link: &mut Link) {
        self.counters.pings += 1;
        link.asked = now;
        self.queue(link, Header::new(Op::PING, Flags::NONE, 0, 0), Body::new(), None);
    }

    /// An answer was dropped: its credit goes back, by itself if much is owed.
    pub(crate) fn unanswered(&mut self, now: Time, link: &mut Link) {
        if link.state != State::Established {
            return;
        }
        self.counters.answers_dropped += 1;
        link.credits.answered();
        if link.credits.owes_much() && link.outbound.queue.is_empty() {
            self.ping(now, link);
        }
    }
}

/// Bytes that a request takes beside its payload, as the machine says.
fn expected(needs: Needs, header: &Header, body: &[u8]) -> usize {
    if header.flags.is_reply() || !header.op.is_data() { 0 } else { needs(header.op, body) }
}

type Session = Option<(SessionId, ProtectionKey)>;

/// What a head says has to hold before anything is done for its message, and before there is memory for its payload: a request names this
/// connection's session, its sender holds the session's key and has a credit; only requests and replies have payloads.
fn admit(session: &Session, credits: &Credits, header: &Header, body: &[u8]) -> Result<(), Reason> {
    if header.flags.is_reply() {
        return Ok(());
    }
    if !header.op.is_data() {
        return if header.payload_len == 0 { Ok(()) } else { Err(Reason::BadFrame) };
    }
    let authentic = session.as_ref().is_some_and(|(session, key)| {
        prefix::check(body, *session, key, header.op, header.slot, header.generation)
            || driver::mutant::on("session_tag_not_checked")
    });
    match (authentic, credits.may_arrive()) {
        (false, _) => Err(Reason::Unauthenticated),
        (true, false) => Err(Reason::Credits),
        (true, true) => Ok(()),
    }
}
