//! Messages of an established connection: in, out, and what belongs to the connection itself.

use driver::{Errno, Op, Time};
use memory::Class;
use wire::{Body, Credits, Flags, Happening, Header, ProtectionKey, Reason, Role, SessionId, State, prefix};

use crate::connection::{Connection, Step};
use crate::event::{Answer, NetEvent, Payload};
use crate::inbound::{Admitted, Frame, Next};
use crate::limits::{RESERVED, SMALL_STREAM};
use crate::net::{Needs, Net};

impl Net {
    /// Reads all messages that are there, then receives more. Stops where it must: a handshake that waits for its send, no
    /// memory, no receive slot.
    pub(crate) fn drain(&mut self, now: Time, connection: &mut Connection) {
        while connection.state.is_open() && connection.step.reads() && !connection.receiving {
            // One slot for the message, one for the receive that follows. A legal peer never gets here: it is our own
            // machine that has not taken its events.
            if connection.step == Step::Open && connection.rx.len() < 2 {
                connection.reservation = None;
                return self.stall(connection);
            }
            let (arena, class, max_payload) = (&self.arena, connection.class(), connection.max_payload());
            let open = connection.step == Step::Open;
            if open && connection.budget.is_none() && connection.state == State::Established {
                let client = connection.peer.as_ref().filter(|peer| peer.role == Role::Client);
                connection.budget = client.map(|peer| self.budgets.of(&peer.name));
            }
            let (most, needs, stalled) = (self.max_client_bytes, self.needs, connection.stalled);
            let over_budget = &mut self.counters.over_budget;
            let Connection { inbound, session, credits, budget, reservation, .. } = &mut *connection;
            let mut admit = |header: &Header, body: &[u8]| {
                if open {
                    check_head(session, credits, header, body)?;
                }
                let Some(budget) = &*budget else { return Ok(Admitted::Now(None)) };
                let bytes = memory::set_aside(header.payload_len as usize) + expected(needs, header, body);
                if bytes == 0 {
                    return Ok(Admitted::Now(None));
                }
                let charge = budget.charge(bytes, most);
                *over_budget += u64::from(charge.is_none() && !stalled);
                Ok(charge.map_or(Admitted::Later, |charge| Admitted::Now(Some(charge))))
            };
            let first = &*reservation;
            let take = |len| match first {
                Some((first, _)) => first.take(len),
                None => arena.take(len, class),
            };
            let next = inbound.next(now, max_payload, &mut admit, &take);
            if !matches!(next, Next::NoMemory) {
                *reservation = None;
            } else if reservation.is_some() {
                // If it does not come back for now, others live on what is left between.
                reservation.take_if(|(_, since)| now.since(*since) >= RESERVED);
            } else if !driver::mutant::on("no_reservation") {
                *reservation = arena.reserve(class).map(|reservation| (reservation, now));
            }
            match next {
                Next::Frame(frame) => {
                    self.counters.frames_in += 1;
                    if connection.step == Step::Open {
                        self.message(now, connection, frame);
                    } else {
                        self.handshake(now, connection, &frame);
                    }
                }
                Next::More => {
                    let take =
                        |len| if len > SMALL_STREAM { arena.take_spare(len) } else { arena.take(len, Class::Settle) };
                    let Some((into, from)) = connection.inbound.receive(now, open, &take) else {
                        return self.stall(connection);
                    };
                    let Some(stream) = connection.stream else { return };
                    let on = if connection.step == Step::Open {
                        connection.rx.pop()
                    } else {
                        Some(connection.owner.share())
                    };
                    let Some(on) = on else { return };
                    connection.receiving = true;
                    self.ops.push(Op::Recv { stream, on, into, from });
                }
                Next::NoMemory | Next::Later => return self.stall(connection),
                Next::Bad(reason) => self.end(now, connection, reason, Happening::Disconnected),
            }
        }
    }

    fn stall(&mut self, connection: &mut Connection) {
        if !connection.stalled {
            self.counters.stalls += 1;
        }
        connection.stalled = true;
        self.stalled.push(connection.id);
    }

    pub(crate) fn recv_done(
        &mut self,
        now: Time,
        connection: &mut Connection,
        done: (memory::Filling, usize),
        result: Result<u32, Errno>,
    ) {
        let (into, from) = done;
        match result {
            Ok(0) => self.end(now, connection, Reason::PeerClosed, Happening::Disconnected),
            Ok(n) => {
                self.counters.recvs += 1;
                self.counters.bytes_in += u64::from(n);
                connection.heard = now;
                if connection.inbound.received(now, into, from, n as usize) {
                    self.counters.recvs_in_place += 1;
                }
                self.drain(now, connection);
            }
            Err(error) => {
                let reason = if error == Errno::PROTOCOL { Reason::Tls } else { Reason::Io };
                self.end(now, connection, reason, Happening::Disconnected);
            }
        }
    }

    /// One message on an established connection.
    fn message(&mut self, now: Time, connection: &mut Connection, frame: Frame) {
        let Frame { header, body, payload, charge } = frame;
        let over_returned = connection.credits.returned(header.credits).is_err();
        if over_returned && !driver::mutant::on("credits_over_returned") {
            return self.end(now, connection, Reason::Credits, Happening::Disconnected);
        }
        if header.flags.is_reply() {
            return self.reply_in(connection, header, body, payload);
        }
        match header.op {
            wire::Op::PING => self.pong(connection),
            wire::Op::PONG => {}
            wire::Op::GOODBYE => self.end(now, connection, Reason::Goodbye, Happening::Disconnected),
            op if op.is_handshake() || op == wire::Op::REPLY => {
                self.end(now, connection, Reason::Unexpected, Happening::Disconnected);
            }
            // Nobody asks a client for anything.
            _ if connection.mine.role == Role::Client => {
                self.end(now, connection, Reason::Unexpected, Happening::Disconnected)
            }
            op => {
                if connection.credits.arrived().is_err() {
                    return self.end(now, connection, Reason::Credits, Happening::Disconnected);
                }
                self.counters.requests_in += 1;
                let answer = Answer {
                    slot: header.slot,
                    generation: header.generation,
                    hold: connection.owner.share(),
                    abandoned: Some(self.abandoned.clone()),
                    _charge: charge,
                };
                let rx = connection.rx.pop();
                self.tell_with(NetEvent::Request { conn: connection.id, op, body, payload, answer }, rx);
            }
        }
    }

    fn reply_in(&mut self, connection: &mut Connection, header: Header, body: Body, payload: Option<Payload>) {
        let Some(token) = connection.slots.close(header.slot, header.generation) else {
            self.counters.stale_replies += 1;
            return;
        };
        let rx = connection.rx.pop();
        self.tell_with(NetEvent::Reply { conn: connection.id, token, result: Ok((header.op, body, payload)) }, rx);
    }

    /// One Pong for all Pings that have not been answered yet: a peer cannot make the queue grow.
    fn pong(&mut self, connection: &mut Connection) {
        if !connection.outbound.queue.iter().any(|message| message.header.op == wire::Op::PONG) {
            self.queue(connection, Header::new(wire::Op::PONG, Flags::NONE, 0, 0), Body::new(), None);
        }
    }

    pub(crate) fn ping(&mut self, now: Time, connection: &mut Connection) {
        self.counters.pings += 1;
        connection.asked = now;
        self.queue(connection, Header::new(wire::Op::PING, Flags::NONE, 0, 0), Body::new(), None);
    }

    /// An answer was dropped: its credit goes back, by itself if much is owed.
    pub(crate) fn unanswered(&mut self, now: Time, connection: &mut Connection) {
        if connection.state != State::Established {
            return;
        }
        self.counters.answers_dropped += 1;
        connection.credits.answered();
        if connection.credits.owes_much() && connection.outbound.queue.is_empty() {
            self.ping(now, connection);
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
fn check_head(session: &Session, credits: &Credits, header: &Header, body: &[u8]) -> Result<(), Reason> {
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
