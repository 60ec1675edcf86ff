//! The end of a connection: everything comes back exactly once.
//!
//! ```text
//!   end ─► state Closing ─► replies ConnLost ─► Down ─► Shutdown ─► (recv, send, shutdown back) ─► Close ─► removed ─► reaped
//! ```

use driver::{Op, Time};
use wire::{Happening, Reason, State};

use crate::connection::Connection;
use crate::event::{Lost, NetEvent};
use crate::net::Net;

impl Net {
    /// Ends a connection. Does nothing to one that is already ending.
    pub(crate) fn end(&mut self, now: Time, connection: &mut Connection, reason: Reason, happening: Happening) {
        if !connection.state.is_open() {
            return;
        }
        if connection.state == State::Accepted {
            self.handshakes -= 1;
        }
        // The state first: it is what keeps everybody from using what is let go below.
        connection.state = connection.state.after(happening);
        let reason = connection.leaving.take().unwrap_or(reason);
        connection.reason = Some(reason);
        connection.closing_since = now;
        connection.deadline = None;
        self.counters.closed[reason.index()] += 1;
        self.arm(now + crate::CLOSING_LONG);

        self.counters.flushed += connection.outbound.clear();
        connection.inbound.clear();
        connection.reservation = None;
        connection.rx.clear();
        connection.transcript = None;
        while let Some(token) = connection.slots.abandon() {
            self.tell(NetEvent::Reply { conn: connection.id, token, result: Err(Lost::ConnLost) });
        }
        if connection.announced {
            self.tell(NetEvent::Down { conn: connection.id, peer: connection.peer.clone(), reason });
        }
        if let Some(stream) = connection.stream {
            connection.shutting = true;
            self.ops.push(Op::Shutdown { stream });
        }
        self.finish(connection);
    }

    /// Goes on with an end, as far as what is outstanding allows.
    pub(crate) fn finish(&mut self, connection: &mut Connection) {
        if connection.state != State::Closing || connection.outstanding() {
            return;
        }
        match connection.stream {
            Some(stream) => {
                connection.closing = true;
                self.ops.push(Op::Close { stream });
            }
            None => connection.state = connection.state.after(Happening::Finished),
        }
    }
}
