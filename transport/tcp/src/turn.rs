//! The end of a turn: what was put off, what is due, one send per connection, the reaper.

use driver::{Op, Time};
use memory::Class;
use wire::{Happening, Reason, State};

use crate::event::{Lost, NetEvent};
use crate::limits::{AWAY, CLOSING_LONG, FRAME_STUCK, SCAN_EVERY, SEND_STUCK, STALL_RETRY};
use crate::link::{Link, Step};
use crate::net::Net;

impl Net {
    pub(crate) fn turn(&mut self, now: Time) {
        // Answers dropped since the last turn. Each dropped one had its request counted, on a connection that it still held.
        let abandoned = std::mem::take(&mut *self.abandoned.borrow_mut());
        for id in abandoned {
            self.with(now, id, |net, link| net.unanswered(now, link));
        }
        self.retry_stalled(now);
        if let Some(wake) = self.wake.filter(|wake| self.scan_at.max(*wake) <= now) {
            (self.wake, self.scan_at) = (None, now + SCAN_EVERY);
            self.counters.scans += 1;
            // What they said while we stood still has not been read yet.
            let away = now.since(wake) >= AWAY;
            for id in self.ids() {
                self.with(now, id, |net, link| {
                    if away {
                        link.heard = now;
                    }
                    net.due(now, link);
                });
            }
            self.due_gone(now);
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.arm_accepts(now);
        }
        let mut ready = std::mem::take(&mut self.starved);
        ready.append(&mut self.ready);
        for id in ready {
            self.with(now, id, |net, link| net.send(now, link));
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
            self.with(now, id, |net, link| {
                // It was we who did not listen.
                link.heard = now;
                net.drain(now, link);
                link.stalled = net.stalled.last() == Some(&link.id);
            });
        }
    }

    /// One send with all that is ready. Never a second one before the first is over.
    fn send(&mut self, now: Time, link: &mut Link) {
        link.ready = false;
        let Some(stream) = link.stream.filter(|_| link.state.is_open() && !link.sending) else { return };
        let arena = &self.arena;
        match link.outbound.pack(&mut link.credits, &|len| arena.take(len, Class::Settle)) {
            Some((on, parts)) => {
                link.sending = true;
                link.said = now;
                self.counters.frames_out += on.len() as u64;
                self.ops.push(Op::Send { stream, on, parts });
            }
            None if !link.outbound.queue.is_empty() => {
                link.ready = true;
                self.starved.push(link.id);
                self.send_again_at = now + STALL_RETRY;
            }
            None => {}
        }
    }

    pub(crate) fn send_done(&mut self, now: Time, link: &mut Link, result: Result<u32, driver::Errno>) {
        let Ok(bytes) = result else {
            return self.end(now, link, Reason::Io, Happening::Disconnected);
        };
        self.counters.sends += 1;
        self.counters.bytes_out += u64::from(bytes);
        link.said = now;
        if link.step != Step::Open {
            return self.said(now, link);
        }
        if !link.outbound.queue.is_empty() {
            self.mark_ready(link);
        } else if let Some(reason) = link.leaving {
            self.end(now, link, reason, Happening::Close);
        }
    }

    /// What is due on one connection, and when it is next to be looked at.
    fn due(&mut self, now: Time, link: &mut Link) {
        if link.state == State::Closing {
            if link.reported {
                return;
            }
            let report = link.closing_since + CLOSING_LONG;
            if report > now {
                return self.arm(report);
            }
            link.reported = true;
            self.counters.closing_long += 1;
            return;
        }
        if let Some(deadline) = link.deadline {
            if deadline <= now {
                let (reason, happening) = match link.step {
                    Step::Connect => (Reason::ConnectTimeout, Happening::Unreachable),
                    Step::SayReject(reason) => (reason, Happening::Rejected),
                    _ => (Reason::HandshakeTimeout, Happening::Rejected),
                };
                return self.end(now, link, reason, happening);
            }
            self.arm(deadline);
        }
        if link.step != Step::Open {
            return;
        }
        let mut late = false;
        while let Some(token) = link.slots.expire(now) {
            late = true;
            self.counters.timed_out += 1;
            self.tell(NetEvent::Reply { conn: link.id, token, result: Err(Lost::TimedOut) });
        }
        if late {
            return self.end(now, link, Reason::RequestTimeout, Happening::Disconnected);
        }
        let (ping_idle, peer_silent) = link.patience();
        if !link.stalled {
            let silent = link.heard + peer_silent;
            if silent <= now {
                return self.end(now, link, Reason::PeerSilent, Happening::Disconnected);
            }
            self.arm(silent);
        }
        if let Some(amid) = link.inbound.amid().filter(|_| !link.stalled) {
            let stuck = amid + FRAME_STUCK;
            if stuck <= now {
                self.counters.frames_stuck += 1;
                return self.end(now, link, Reason::PeerSilent, Happening::Disconnected);
            }
            self.arm(stuck);
        }
        if link.sending {
            let stuck = link.said + SEND_STUCK;
            if stuck <= now {
                self.counters.sends_stuck += 1;
                return self.end(now, link, Reason::PeerSilent, Happening::Disconnected);
            }
            self.arm(stuck);
        }
        if !link.sending && link.outbound.queue.is_empty() {
            // One that says much and hears nothing asks, too: what it said may rightly wait for its answers.
            let idle = link.said.min(link.heard.max(link.asked)) + ping_idle;
            if idle <= now {
                self.ping(now, link);
                self.arm(now + ping_idle);
            } else {
                self.arm(idle);
            }
        } else {
            self.arm(now + ping_idle);
        }
        if let Some(deadline) = link.slots.deadline() {
            self.arm(deadline);
        }
    }
}
