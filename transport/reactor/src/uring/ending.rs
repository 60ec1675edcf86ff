//! The end of a driver: everything is asked to end, and what the kernel may still touch comes back first.

use super::Uring;
use crate::clock;
use crate::rdma::Beside;
use crate::ring::Ring;
use crate::token::{Kind, Token};
use driver::{Done, Errno, Span};
use io_uring::opcode;

/// How long a driver that is dropped waits for the kernel to give back memory; then it leaks it, which is safe.
const LAST_WAIT: Span = Span::millis(100);
const LAST_WAITS: u32 = 300;

impl<R: Ring> Uring<R> {
    /// Asks for the end of all operations: each comes back as soon as it can, most of them with CANCELED.
    pub fn cancel_all(&mut self) {
        let flushed = self.waiting.drain(..).map(|op| Done { op, result: Err(Errno::CANCELED) });
        self.ready.extend(flushed);
        if let Some(beside) = &mut self.rdma {
            beside.cancel_all(clock::now());
        }
        if let Some(layer) = &mut self.tls {
            layer.cancel_all();
            self.tls_wants();
        }
        for (token, flight) in self.slab.in_flight().filter(|(_, flight)| !flight.cancelled) {
            flight.cancelled = true;
            let cancel = opcode::AsyncCancel::new(token.bits()).build();
            self.pending.push(cancel.user_data(Token::new(Kind::Cancel, 0, token.slot).bits()));
            self.loose += 1;
        }
    }

    /// Waits until the kernel has nothing of ours any more; false if it does not let go.
    fn settle(&mut self) -> bool {
        self.closing = true;
        // Nobody is there any more to whom it would be of use.
        self.tls = None;
        self.cancel_all();
        if self.bell.as_ref().is_some_and(|bell| bell.posted) {
            let cancel = opcode::AsyncCancel::new(Token::new(Kind::Wake, 0, 0).bits()).build();
            self.pending.push(cancel.user_data(Token::new(Kind::Cancel, 0, 0).bits()));
            self.loose += 1;
        }
        for index in self.rdma.iter().flat_map(Beside::posted) {
            let cancel = opcode::AsyncCancel::new(Token::new(Kind::Rdma, 0, index).bits()).build();
            self.pending.push(cancel.user_data(Token::new(Kind::Cancel, 0, 0).bits()));
            self.loose += 1;
        }
        let mut seen = Vec::new();
        for _ in 0..LAST_WAITS {
            let polled = self.rdma.as_ref().is_some_and(|beside| beside.posted().next().is_some());
            let posted = polled || self.bell.as_ref().is_some_and(|bell| bell.posted);
            if self.slab.len() == 0 && self.loose == 0 && !posted {
                return true;
            }
            if self.push_pending().is_err() || self.enter(1, Some(LAST_WAIT)).is_err() {
                return false;
            }
            self.drain(&mut seen);
            for cqe in seen.drain(..) {
                drop(self.complete(cqe));
            }
        }
        false
    }
}

impl<R: Ring> Drop for Uring<R> {
    /// The kernel may still write into memory that operations own: it comes back first, or it is never freed.
    fn drop(&mut self) {
        if !self.settle() {
            std::mem::forget((std::mem::take(&mut self.slab), self.bell.take()));
        }
    }
}
