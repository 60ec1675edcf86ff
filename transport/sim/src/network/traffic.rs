//! How bytes get from one machine's memory to another's: pieces leave, arrive in order, and are read in other pieces.

use super::{BROKEN_PIPE, EndId, Network, Segment, Sending};
use crate::kernel::{Event, Kernel};
use crate::random::Rng;
use driver::{Errno, Op, Span};

impl Network {
    pub(super) fn send(&mut self, k: &mut Kernel, at: EndId, op: Op) {
        let completion = self.options.completion.sample(&mut k.rng);
        let transmit = self.options.transmit.sample(&mut k.rng);
        let Some(end) = self.end(at) else { return };
        let errno = if end.shut { Some(BROKEN_PIPE) } else { end.failed };
        match errno {
            Some(errno) => {
                let process = end.process;
                k.complete_at(k.now + completion, process, op, Err(errno));
            }
            None => {
                end.sending = Some(Sending::new(op));
                k.schedule_in(transmit, Event::Transmit { at });
            }
        }
    }

    /// The next piece of a send leaves: only now is its memory read.
    pub(crate) fn transmit(&mut self, k: &mut Kernel, at: EndId) {
        let options = self.options;
        let Some(connection) = self.connections.get_mut(&at.connection) else { return };
        let (here, there) = connection.pair(at.side);
        let Some(sending) = &mut here.sending else { return };
        // What a dead end has not read is in nobody's way: the next piece finds out that it is dead.
        let unread = if there.alive { there.inbox.len() } else { 0 };
        let room = options.window.saturating_sub(here.wire_bytes + unread);
        if room == 0 {
            k.trace.count("net.window_full");
            here.wants_room = true;
            return;
        }
        let len = cut(&mut k.rng, options.cut_ppm, sending.left.min(room).min(options.piece.max(1)));
        let bytes = sending.read(len);
        here.wire_bytes += len;
        let due = here.last_arrival.max(k.now + options.latency.sample(&mut k.rng));
        here.last_arrival = due;
        here.wire.push_back((due, Segment::Data(bytes)));
        k.schedule(due, Event::Arrive { from: at });
        if sending.left > 0 {
            let wait = options.transmit.sample(&mut k.rng);
            k.schedule_in(wait, Event::Transmit { at });
        } else if let Some(sending) = here.sending.take() {
            let wait = options.completion.sample(&mut k.rng);
            let total = u32::try_from(sending.total()).map_err(|_| Errno(22));
            k.complete_at(k.now + wait, here.process, sending.op, total);
        }
    }

    /// What an end has put on the wire arrives as far as it is due, unless something is in its way.
    pub(crate) fn arrive(&mut self, k: &mut Kernel, from: EndId) {
        let options = self.options;
        let Some(connection) = self.connections.get(&from.connection) else { return };
        let (here, there) = (&connection.ends[from.side], &connection.ends[1 - from.side]);
        let reachable = there.alive || k.host(there.process).powered;
        let forth = !connection.silent && reachable && self.passes(here.process, there.process, &connection.to);
        let back = !connection.silent && self.passes(there.process, here.process, &connection.to);
        if here.wire.front().is_none_or(|(due, _)| *due > k.now) {
            return;
        }
        let (alive, owes) = (there.alive, here.wire_bytes > 0);
        if !forth || !back {
            k.trace.count(if forth { "net.unacknowledged" } else { "net.held" });
            self.doubt(k, from);
        }
        if !forth {
            return;
        }
        if !alive {
            // The bytes stay on the wire, to be sent again, in case the reset is lost.
            if owes {
                k.trace.count("net.answered_by_reset");
                self.doubt(k, from);
                self.reset_peer(k, from.other());
            }
            return;
        }
        let Some(connection) = self.connections.get_mut(&from.connection) else { return };
        let (here, there) = connection.pair(from.side);
        if back {
            here.doubt = None;
        }
        let mut strike = None;
        while here.wire.front().is_some_and(|(due, _)| *due <= k.now) {
            let Some((_, segment)) = here.wire.pop_front() else { break };
            match segment {
                Segment::Data(mut bytes) => {
                    here.wire_bytes -= bytes.len();
                    let (reset, silent) = (k.rng.chance(options.reset_ppm), k.rng.chance(options.silent_ppm));
                    if reset || silent {
                        // In the middle of what arrives, so that a frame is cut.
                        bytes.truncate(k.rng.index(bytes.len() + 1));
                        strike = Some(silent);
                    }
                    if there.failed.is_none() && !there.shut {
                        there.inbox.extend(&bytes);
                    }
                    if strike.is_some() {
                        // The bytes behind the gap are gone too; those still to be sent meet a dead stream.
                        here.wire.clear();
                        here.wire_bytes = 0;
                    }
                }
                Segment::Fin => there.ended = true,
            }
        }
        if here.wants_room && here.wire_bytes + there.inbox.len() < options.window {
            here.wants_room = false;
            k.schedule(k.now, Event::Transmit { at: from });
        }
        match strike {
            Some(true) => {
                self.strike_one(k, from.connection, true);
                self.doubt(k, from);
            }
            Some(false) => {
                k.trace.count("net.reset");
                self.fail(k, from.other(), Errno::RESET);
                self.reset_peer(k, from.other());
            }
            None => {}
        }
        self.serve_receives(k, from.other());
        self.serve_watch(k, from.other());
    }

    /// An end has died: a sender that waits for it to read goes on (TCP: a window probe), and will be told, or not.
    pub(super) fn probe(&mut self, k: &mut Kernel, dead: EndId) {
        let wait = self.options.latency.sample(&mut k.rng);
        if let Some(sender) = self.end(dead.other())
            && std::mem::take(&mut sender.wants_room)
        {
            k.schedule_in(wait, Event::Transmit { at: dead.other() });
        }
    }

    /// An end's bytes are not acknowledged: after a while it gives up.
    fn doubt(&mut self, k: &mut Kernel, at: EndId) {
        let timeout = self.options.stream_timeout;
        let Some(end) = self.end(at) else { return };
        if end.doubt.is_none() && end.alive && end.failed.is_none() {
            end.doubt = Some(k.now);
            let wait = Span(timeout.0 + k.rng.below(timeout.0 / 4));
            k.schedule_in(wait, Event::GiveUp { at, since: k.now });
        }
    }

    pub(super) fn receive(&mut self, k: &mut Kernel, at: EndId, op: Op) {
        if let Some(end) = self.end(at) {
            end.receives.push_back(op);
        }
        self.serve_receives(k, at);
    }

    /// Gives waiting receives what there is, in order.
    pub(super) fn serve_receives(&mut self, k: &mut Kernel, at: EndId) {
        let options = self.options;
        let Some(connection) = self.connections.get_mut(&at.connection) else { return };
        let (here, there) = connection.pair(at.side);
        let mut read = false;
        while let Some(mut op) = here.receives.pop_front() {
            let result = if !here.inbox.is_empty() {
                let Op::Recv { into, from, .. } = &mut op else { continue };
                let most = here.inbox.len().min(into.len() - *from);
                let len = cut(&mut k.rng, options.cut_ppm, most);
                take(&mut here.inbox, &mut into[*from..*from + len]);
                read = true;
                u32::try_from(len).map_err(|_| Errno(22))
            } else if let Some(errno) = here.failed {
                Err(errno)
            } else if here.ended || here.shut {
                Ok(0)
            } else {
                here.receives.push_front(op);
                break;
            };
            let due = here.last_receive.max(k.now + options.completion.sample(&mut k.rng));
            here.last_receive = due;
            k.complete_at(due, here.process, op, result);
        }
        if read && std::mem::take(&mut there.wants_room) {
            let wait = options.latency.sample(&mut k.rng);
            k.schedule_in(wait, Event::Transmit { at: at.other() });
        }
    }
}

/// All of it, or now and then a part.
fn cut(rng: &mut Rng, ppm: u32, len: usize) -> usize {
    if rng.chance(ppm) { rng.up_to(len) } else { len }
}

fn take(inbox: &mut std::collections::VecDeque<u8>, into: &mut [u8]) {
    let (front, back) = inbox.as_slices();
    let n = front.len().min(into.len());
    into[..n].copy_from_slice(&front[..n]);
    let rest = into.len() - n;
    into[n..].copy_from_slice(&back[..rest]);
    inbox.drain(..into.len());
}
