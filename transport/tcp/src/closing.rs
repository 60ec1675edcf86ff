//! The end of a connection: everything comes back exactly once.
//!
//! ```text
//!   end ─► state Closing ─► replies ConnLost ─► Down ─► Shutdown ─► (recv, send, shutdown back) ─► Close ─► removed ─► reaped
//! ```

use driver::{Op, Time};
use wire::{Happening, Reason, State};

use crate::event::{Lost, NetEvent};
use crate::link::Link;
use crate::net::Net;

impl Net {
    /// Ends a connection. Does nothing to one that is already ending.
    pub(crate) fn end(&mut self, now: Time, link: &mut Link, reason: Reason, happening: Happening) {
        if !link.state.is_open() {
            return;
        }
        if link.state == State::Accepted {
            self.handshakes -= 1;
        }
        // The state first: it is what keeps everybody from using what is let go below.
        link.state = link.state.after(happening);
        let reason = link.leaving.take().unwrap_or(reason);
        link.reason = Some(reason);
        link.closing_since = now;
        link.deadline = None;
        self.counters.closed[reason.index()] += 1;
        self.arm(now + crate::CLOSING_LONG);

        self.counters.flushed += link.outbound.clear();
        link.inbound.clear();
        (link.arriving, link.reservation) = (None, None);
        link.rx.clear();
        link.transcript = None;
        while let Some(token) = link.slots.abandon() {
            self.tell(NetEvent::Reply { conn: link.id, token, result: Err(Lost::ConnLost) });
        }
        if link.announced {
            self.tell(NetEvent::Down { conn: link.id, peer: link.peer.clone(), reason });
        }
        if let Some(stream) = link.stream {
            link.shutting = true;
            self.ops.push(Op::Shutdown { stream });
        }
        self.finish(link);
    }

    /// Goes on with an end, as far as what is outstanding allows.
    pub(crate) fn finish(&mut self, link: &mut Link) {
        if link.state != State::Closing || link.outstanding() {
            return;
        }
        match link.stream {
            Some(stream) => {
                link.closing = true;
                self.ops.push(Op::Close { stream });
            }
            None => link.state = link.state.after(Happening::Finished),
        }
    }
}
