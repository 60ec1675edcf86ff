//! Accepting: one accept armed per listener, a pause after a failure and in a flood, a limit on strangers.

use driver::{ListenerId, Op, Span, StreamId, Time};
use wire::{Happening, Limits, Reason, State};

use crate::connection::Step;
use crate::limits::{ACCEPT_BURST, ACCEPT_PAUSE, ACCEPT_PAUSE_MAX, HANDSHAKE_DEADLINE, MAX_HANDSHAKES};
use crate::net::Net;

/// A listening socket.
pub(crate) struct Listener {
    id: ListenerId,
    armed: bool,
    /// The last pause after a failure; none after a success.
    pause: Span,
    retry: Time,
    /// When what was accepted so far would have been, one in each `accept_every`: ahead of the time by a burst at most.
    paced: Time,
}

impl Net {
    pub(crate) fn add_listener(&mut self, id: ListenerId) {
        self.listeners.push(Listener { id, armed: false, pause: Span(0), retry: Time(0), paced: Time(0) });
        self.arm_accepts(Time(0));
    }

    /// Arms each listener that may be. When stopping, none.
    pub(crate) fn arm_accepts(&mut self, now: Time) {
        self.accept_at = None;
        if self.stopping {
            return;
        }
        for listener in &mut self.listeners {
            if listener.armed {
                continue;
            }
            if listener.retry <= now {
                listener.armed = true;
                self.ops.push(Op::Accept { listener: listener.id });
            } else {
                self.accept_at = Some(self.accept_at.map_or(listener.retry, |at| at.min(listener.retry)));
            }
        }
    }

    pub(crate) fn accept_done(&mut self, now: Time, id: ListenerId, result: Result<u32, driver::Errno>) {
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == id && listener.armed) else {
            self.counters.stale_completions += 1;
            return;
        };
        listener.armed = false;
        match result {
            Ok(stream) => {
                listener.pause = Span(0);
                let every = self.options.accept_every;
                listener.paced = listener.paced.max(now) + every;
                let burst = Span(every.0 * u64::from(ACCEPT_BURST));
                if listener.paced > now + burst {
                    listener.retry = now + every;
                    self.counters.accepts_paused += 1;
                }
                self.accepted(now, StreamId(stream));
            }
            Err(_) => {
                listener.pause = Span((listener.pause.0 * 2).clamp(ACCEPT_PAUSE.0, ACCEPT_PAUSE_MAX.0));
                listener.retry = now + listener.pause;
                self.counters.accept_errors += 1;
            }
        }
        self.arm_accepts(now);
    }

    /// The stranger that has been there for longest makes room for the next, whatever was heard of it: whoever opens streams and is silent,
    /// says Hello and proves nothing, or says it byte by byte, locks nobody out.
    fn make_room(&mut self, now: Time) {
        let strange =
            |step| matches!(step, Step::AwaitHello | Step::SayChallenge | Step::AwaitProof | Step::SayReject(_));
        let Some(oldest) = self.oldest(|connection| connection.state == State::Accepted && strange(connection.step))
        else {
            return;
        };
        self.counters.strangers_displaced += 1;
        self.with(now, oldest, |net, connection| {
            net.end(now, connection, Reason::HandshakeTimeout, Happening::Rejected)
        });
    }

    fn accepted(&mut self, now: Time, stream: StreamId) {
        if self.handshakes >= MAX_HANDSHAKES {
            self.make_room(now);
        }
        if self.stopping || self.handshakes >= MAX_HANDSHAKES || self.open >= self.options.max_conns {
            self.counters.refused += 1;
            self.streams.insert(stream, None);
            self.ops.push(Op::Close { stream });
            return;
        }
        self.counters.accepted += 1;
        self.handshakes += 1;
        let limits = Limits { depth: self.options.depth, max_payload: self.options.max_payload };
        let mut connection = self.make(self.options.name.clone(), limits, Step::AwaitHello, now);
        connection.state = connection.state.after(Happening::Accept);
        connection.stream = Some(stream);
        self.streams.insert(stream, Some(connection.id));
        self.set_deadline(&mut connection, now + HANDSHAKE_DEADLINE);
        self.drain(now, &mut connection);
        self.put_back(now, connection);
    }
}
