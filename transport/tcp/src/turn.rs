//! The end of a turn: what was put off, what is due, one send per connection, the reaper.

use driver::{Op, Time};
use memory::Class;
use wire::{Happening, Reason, State};

use crate::connection::{Connection, Step};
use crate::event::{Lost, NetEvent};
use crate::limits::{AWAY, CLOSING_LONG, FRAME_STUCK, SCAN_EVERY, SEND_STUCK, STALL_RETRY};
use crate::net::Net;

impl Net {
    pub(crate) fn turn(&mut self, now: Time) {
        // Answers dropped since the last turn. Each dropped one had its request counted, on a connection that it still held.
        let abandoned = std::mem::take(&mut *self.abandoned.borrow_mut());
        for id in abandoned {
            self.with(now, id, |net, connection| net.unanswered(now, connection));
        }
        self.retry_stalled(now);
        if let Some(wake) = self.wake.filter(|wake| self.scan_at.max(*wake) <= now) {
            (self.wake, self.scan_at) = (None, now + SCAN_EVERY);
            self.counters.scans += 1;
            // What they said while we stood still has not been read yet.
            let away = now.since(wake) >= AWAY;
            for id in self.ids() {
                self.with(now, id, |net, connection| {
                    if away {
                        connection.heard = now;
                    }
                    net.due(now, connection);
                });
            }
            self.due_gone(now);
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.arm_accepts(now);
        }
        let mut ready = std::mem::take(&mut self.ready);
        if !self.starved.is_empty() {
            ready.splice(..0, self.starved.drain(..));
        }
        for id in ready.drain(..) {
            self.with(now, id, |net, connection| net.send(now, connection));
        }
        if self.ready.is_empty() {
            self.ready = ready; // its room is used again
        }
        self.reap();
    }

    /// Looks again at connections that are not read, at most so often: those of a client that has all that it may have cost others nothing.
    fn retry_stalled(&mut self, now: Time) {
        if self.stalled.is_empty() || now < self.retry_at {
            return;
        }
        self.retry_at = now + STALL_RETRY;
        for id in std::mem::take(&mut self.stalled) {
            self.counters.stall_retries += 1;
            self.with(now, id, |net, connection| {
                // It was we who did not listen.
                connection.heard = now;
                net.drain(now, connection);
                connection.stalled = net.stalled.last() == Some(&connection.id);
            });
        }
    }

    /// One send with all that is ready. Never a second one before the first is over.
    fn send(&mut self, now: Time, connection: &mut Connection) {
        connection.ready = false;
        let Some(stream) = connection.stream.filter(|_| connection.state.is_open() && !connection.sending) else {
            return;
        };
        let arena = &self.arena;
        match connection.outbound.pack(&mut connection.credits, &|len| arena.take(len, Class::Settle)) {
            Some((on, parts)) => {
                connection.sending = true;
                connection.said = now;
                self.counters.frames_out += on.len() as u64;
                self.ops.push(Op::Send { stream, on, parts });
            }
            None if !connection.outbound.queue.is_empty() => {
                connection.ready = true;
                self.starved.push(connection.id);
                self.send_again_at = now + STALL_RETRY;
            }
            None => {}
        }
    }

    pub(crate) fn send_done(&mut self, now: Time, connection: &mut Connection, result: Result<u32, driver::Errno>) {
        let Ok(bytes) = result else {
            return self.end(now, connection, Reason::Io, Happening::Disconnected);
        };
        self.counters.sends += 1;
        self.counters.bytes_out += u64::from(bytes);
        connection.said = now;
        if connection.step != Step::Open {
            return self.said(now, connection);
        }
        if !connection.outbound.queue.is_empty() {
            self.mark_ready(connection);
        } else if let Some(reason) = connection.leaving {
            self.end(now, connection, reason, Happening::Close);
        }
    }

    /// What is due on one connection, and when it is next to be looked at.
    fn due(&mut self, now: Time, connection: &mut Connection) {
        if connection.state == State::Closing {
            if connection.reported {
                return;
            }
            let report = connection.closing_since + CLOSING_LONG;
            if report > now {
                return self.arm(report);
            }
            connection.reported = true;
            self.counters.closing_long += 1;
            return;
        }
        if let Some(deadline) = connection.deadline {
            if deadline <= now {
                let (reason, happening) = match connection.step {
                    Step::Connect => (Reason::ConnectTimeout, Happening::Unreachable),
                    Step::SayReject(reason) => (reason, Happening::Rejected),
                    _ => (Reason::HandshakeTimeout, Happening::Rejected),
                };
                return self.end(now, connection, reason, happening);
            }
            self.arm(deadline);
        }
        if connection.step != Step::Open {
            return;
        }
        let mut late = false;
        while let Some(token) = connection.slots.expire(now) {
            late = true;
            self.counters.timed_out += 1;
            self.tell(NetEvent::Reply { conn: connection.id, token, result: Err(Lost::TimedOut) });
        }
        if late {
            return self.end(now, connection, Reason::RequestTimeout, Happening::Disconnected);
        }
        let (ping_idle, peer_silent) = connection.patience();
        if !connection.stalled {
            let silent = connection.heard + peer_silent;
            if silent <= now {
                return self.end(now, connection, Reason::PeerSilent, Happening::Disconnected);
            }
            self.arm(silent);
        }
        if let Some(amid) = connection.inbound.amid().filter(|_| !connection.stalled) {
            let stuck = amid + FRAME_STUCK;
            if stuck <= now {
                self.counters.frames_stuck += 1;
                return self.end(now, connection, Reason::PeerSilent, Happening::Disconnected);
            }
            self.arm(stuck);
        }
        if connection.sending {
            let stuck = connection.said + SEND_STUCK;
            if stuck <= now {
                self.counters.sends_stuck += 1;
                return self.end(now, connection, Reason::PeerSilent, Happening::Disconnected);
            }
            self.arm(stuck);
        }
        if !connection.sending && connection.outbound.queue.is_empty() {
            // One that says much and hears nothing asks, too: what it said may rightly wait for its answers.
            let idle = connection.said.min(connection.heard.max(connection.asked)) + ping_idle;
            if idle <= now {
                self.ping(now, connection);
                self.arm(now + ping_idle);
            } else {
                self.arm(idle);
            }
        } else {
            self.arm(now + ping_idle);
        }
        if let Some(deadline) = connection.slots.deadline() {
            self.arm(deadline);
        }
    }
}
