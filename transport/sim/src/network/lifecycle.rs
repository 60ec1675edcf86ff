//! How streams begin and end: accept, connect, shutdown, close, reset, giving up, and the death of a process.

use super::{BACKLOG, BROKEN_PIPE, Connection, End, EndId, NOT_CONNECTED, Network, Segment};
use crate::kernel::{Event, Kernel, ProcessId};
use crate::process::State;
use driver::{Errno, Op, Span, Time};

/// Between two connection requests that got no answer, at most (Linux starts at one second).
const SYN_RETRY: Span = Span::seconds(1);

impl Network {
    pub(super) fn accept(&mut self, k: &mut Kernel, listener: usize, op: Op) {
        self.listeners[listener].accepts.push_back(op);
        self.match_accepts(k, listener);
    }

    fn match_accepts(&mut self, k: &mut Kernel, listener: usize) {
        let it = &mut self.listeners[listener];
        if it.accepts.is_empty() || it.backlog.is_empty() {
            return;
        }
        let (Some(op), Some(at)) = (it.accepts.pop_front(), it.backlog.pop_front()) else { return };
        let process = it.process;
        let stream = self.number(process, at);
        if let Some(end) = self.end(at) {
            end.stream = Some(stream);
        }
        let wait = self.options.completion.sample(&mut k.rng);
        k.complete_at(k.now + wait, process, op, Ok(stream.0));
        self.match_accepts(k, listener);
    }

    pub(super) fn connect(&mut self, k: &mut Kernel, process: ProcessId, op: Op) {
        let life = k.host(process).life;
        let Op::Connect { within, .. } = &op else { return };
        let give_up = k.now + self.options.connect_timeout.min(*within);
        let wait = self.options.latency.sample(&mut k.rng);
        k.schedule_in(wait, Event::Syn { process, life, op: Box::new(op), give_up });
    }

    /// A connection request would reach its listener now.
    pub(crate) fn syn(&mut self, k: &mut Kernel, process: ProcessId, op: Box<Op>, give_up: Time) {
        let Op::Connect { to, .. } = &*op else { return };
        let to = to.clone();
        let wait = self.options.latency.sample(&mut k.rng);
        let found = self.listeners.iter().position(|listener| listener.address == to);
        let Some(listener) = found else {
            k.trace.event(k.now, process, "net.refused");
            return k.complete_at(k.now + wait, process, *op, Err(Errno::REFUSED));
        };
        let owner = self.listeners[listener].process;
        let reached = self.passes(process, owner, &to) && self.passes(owner, process, &to) && k.host(owner).powered;
        if reached && k.host(owner).state == State::Dead {
            k.trace.event(k.now, process, "net.refused");
            return k.complete_at(k.now + wait, process, *op, Err(Errno::REFUSED));
        }
        if !reached || self.listeners[listener].backlog.len() >= BACKLOG {
            if k.now >= give_up {
                k.trace.event(k.now, process, "net.connect_timeout");
                return k.complete_at(k.now, process, *op, Err(Errno::TIMED_OUT));
            }
            k.trace.count("net.syn_unanswered");
            let retry = k.now + Span(1 + k.rng.below(SYN_RETRY.0));
            let life = k.host(process).life;
            return k.schedule(retry.min(give_up), Event::Syn { process, life, op, give_up });
        }
        let id = self.next;
        self.next += 1;
        let ends = [End::new(process, Some(*op)), End::new(owner, None)];
        self.connections.insert(id, Connection { ends, to, silent: false });
        self.listeners[listener].backlog.push_back(EndId { connection: id, side: 1 });
        self.match_accepts(k, listener);
        k.schedule_in(wait, Event::Established { at: EndId { connection: id, side: 0 } });
    }

    /// The listener's answer is back at the one who connects.
    pub(crate) fn established(&mut self, k: &mut Kernel, at: EndId) {
        let Some(end) = self.end(at) else { return };
        let Some(op) = end.connecting.take() else { return };
        let process = end.process;
        let stream = self.number(process, at);
        if let Some(end) = self.end(at) {
            end.stream = Some(stream);
        }
        k.trace.event(k.now, process, "net.connected");
        k.complete_at(k.now, process, op, Ok(stream.0));
    }

    pub(super) fn shutdown(&mut self, k: &mut Kernel, at: EndId, op: Op) {
        let wait = self.options.completion.sample(&mut k.rng);
        let Some(connection) = self.connections.get_mut(&at.connection) else { return };
        let end = &mut connection.ends[at.side];
        let process = end.process;
        if end.failed.is_some() {
            return k.complete_at(k.now + wait, process, op, Err(NOT_CONNECTED));
        }
        if !end.shut {
            end.shut = true;
            if let Some(sending) = end.sending.take() {
                k.trace.count("net.send_flushed");
                let wait = self.options.completion.sample(&mut k.rng);
                k.complete_at(k.now + wait, process, sending.op, Err(BROKEN_PIPE));
            }
            self.finish_sending(k, at);
            self.serve_receives(k, at);
            self.serve_watch(k, at);
        }
        k.complete_at(k.now + wait, process, op, Ok(0));
    }

    pub(super) fn watch(&mut self, k: &mut Kernel, at: EndId, op: Op) {
        if let Some(end) = self.end(at) {
            end.watch = Some(op);
        }
        self.serve_watch(k, at);
    }

    /// Ends a watch if there is nothing to wait for any more. It may overtake receives and sends, or come after them.
    pub(super) fn serve_watch(&mut self, k: &mut Kernel, at: EndId) {
        let Some(end) = self.end(at) else { return };
        if !(end.ended || end.shut || end.failed.is_some()) {
            return;
        }
        let process = end.process;
        if let Some(op) = end.watch.take() {
            let wait = self.options.completion.sample(&mut k.rng);
            k.complete_at(k.now + wait, process, op, Ok(0));
        }
    }

    pub(super) fn close(&mut self, k: &mut Kernel, process: ProcessId, at: EndId, op: Op) {
        let Some(end) = self.end(at) else { return };
        end.alive = false;
        let unread = !end.inbox.is_empty();
        let told = end.shut || end.failed.is_some();
        if unread {
            // Closing over unread bytes resets the stream (RFC 2525, 2.17).
            self.reset_peer(k, at);
        } else if !told {
            self.finish_sending(k, at);
        }
        self.probe(k, at);
        self.forget_if_over(at.connection);
        let wait = self.options.completion.sample(&mut k.rng);
        let life = k.host(process).life;
        k.schedule_in(wait, Event::Closed { process, life, op: Box::new(op) });
    }

    /// Puts the end of stream behind what is on the wire.
    fn finish_sending(&mut self, k: &mut Kernel, at: EndId) {
        let wait = self.options.latency.sample(&mut k.rng);
        let Some(end) = self.end(at) else { return };
        let due = end.last_arrival.max(k.now + wait);
        end.last_arrival = due;
        end.wire.push_back((due, Segment::Fin));
        k.schedule(due, Event::Arrive { from: at });
    }

    /// Sends a reset to the other end; it may overtake what is on the wire.
    pub(super) fn reset_peer(&mut self, k: &mut Kernel, at: EndId) {
        let wait = self.options.latency.sample(&mut k.rng);
        k.schedule_in(wait, Event::Reset { at: at.other() });
    }

    /// A reset reaches an end, unless something is in its way.
    pub(crate) fn reset(&mut self, k: &mut Kernel, at: EndId) {
        let Some(connection) = self.connections.get(&at.connection) else { return };
        let (process, from) = (connection.ends[at.side].process, connection.ends[1 - at.side].process);
        if connection.silent || !self.passes(from, process, &connection.to) {
            k.trace.count("net.reset_lost");
        } else {
            self.fail(k, at, Errno::RESET);
        }
    }

    /// An end gives up if it still has had no acknowledgement.
    pub(crate) fn give_up(&mut self, k: &mut Kernel, at: EndId, since: Time) {
        if self.end(at).is_some_and(|end| end.doubt == Some(since)) {
            k.trace.count("net.stream_timeout");
            self.fail(k, at, Errno::TIMED_OUT);
            self.reset_peer(k, at);
        }
    }

    /// A stream breaks at this end: all that is outstanding on it completes.
    pub(super) fn fail(&mut self, k: &mut Kernel, at: EndId, errno: Errno) {
        // What has left may still arrive, and what has arrived may still be read: both happen.
        let (keep_wire, keep_inbox) = (k.rng.coin(), k.rng.coin());
        let wait = self.options.completion.sample(&mut k.rng);
        let Some(end) = self.end(at) else { return };
        if !end.alive || end.failed.is_some() {
            return;
        }
        let process = end.process;
        end.failed = Some(errno);
        end.doubt = None;
        if !keep_wire {
            end.wire.clear();
            end.wire_bytes = 0;
        }
        if !keep_inbox {
            end.inbox.clear();
        }
        if let Some(op) = end.connecting.take() {
            end.alive = false;
            k.complete_at(k.now + wait, process, op, Err(errno));
        } else if let Some(sending) = end.sending.take() {
            k.complete_at(k.now + wait, process, sending.op, Err(errno));
        }
        k.trace.event(k.now, process, "net.broken");
        self.serve_receives(k, at);
        self.serve_watch(k, at);
        self.forget_if_over(at.connection);
    }

    /// A process is gone: its numbers, its accepts, its ends of streams. Its peers notice unless the power was `cut`.
    pub(crate) fn abandon(&mut self, k: &mut Kernel, process: ProcessId, cut: bool) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.process == process) {
            listener.accepts.clear();
            listener.backlog.clear();
        }
        self.streams[process.index()].clear();
        let ids: Vec<EndId> = self
            .connections
            .iter()
            .flat_map(|(&connection, it)| {
                let of_process = it.ends.iter().enumerate().filter(|(_, end)| end.alive && end.process == process);
                of_process.map(move |(side, _)| EndId { connection, side })
            })
            .collect();
        for at in ids {
            let keep = k.rng.next_u64();
            let Some(end) = self.end(at) else { continue };
            end.alive = false;
            end.drop_operations();
            let told = end.shut || end.failed.is_some();
            if cut {
                end.wire.truncate(crate::size(keep % (end.wire.len() as u64 + 1)));
                end.wire_bytes = end.wire.iter().map(|(_, segment)| segment.len()).sum();
                k.trace.count("net.peer_silent");
            } else if !told && keep.is_multiple_of(2) {
                k.trace.count("net.peer_ended");
                self.finish_sending(k, at);
            } else if end.failed.is_none() {
                k.trace.count("net.peer_reset");
                self.reset_peer(k, at);
            }
            self.probe(k, at);
            self.forget_if_over(at.connection);
        }
    }

    /// A host is back: what waits for its answer gets one.
    pub(crate) fn powered_on(&mut self, k: &mut Kernel, process: ProcessId) {
        self.retry(k, |connection| connection.ends.iter().any(|end| end.process == process));
    }

    /// All streams between the two break, or (`silent`) fall silent.
    pub(crate) fn strike(&mut self, k: &mut Kernel, a: ProcessId, b: ProcessId, silent: bool) {
        let between = |connection: &Connection| {
            let ends = [connection.ends[0].process, connection.ends[1].process];
            ends == [a, b] || ends == [b, a]
        };
        let ids: Vec<u64> = self.connections.iter().filter(|(_, it)| between(it)).map(|(id, _)| *id).collect();
        for connection in ids {
            self.strike_one(k, connection, silent);
        }
    }

    pub(super) fn strike_one(&mut self, k: &mut Kernel, connection: u64, silent: bool) {
        if silent {
            k.trace.count("net.silenced");
            if let Some(it) = self.connections.get_mut(&connection) {
                it.silent = true;
            }
            return;
        }
        k.trace.count("net.reset");
        for side in 0..2 {
            let wait = self.options.latency.sample(&mut k.rng);
            k.schedule_in(wait, Event::Reset { at: EndId { connection, side } });
        }
    }
}
