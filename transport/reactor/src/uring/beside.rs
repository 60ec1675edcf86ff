//! Who has a part in a driver's turns beside its ring: RDMA, whose streams are none of the ring's, and TLS, between the machine and
//! the streams that are.

use super::Uring;
use crate::clock;
use crate::rdma::is_rdmas;
use crate::ring::Ring;
use driver::{Done, Time};
use tls::Layer;

impl<R: Ring> Uring<R> {
    /// When RDMA or TLS wants a turn, if nothing comes before.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let rdma = self.rdma.as_ref().and_then(|beside| beside.rdma.next_deadline());
        let tls =
            self.tls.as_ref().and_then(|layer| if layer.ready() > 0 { Some(Time(0)) } else { layer.next_deadline() });
        [rdma, tls].into_iter().flatten().min()
    }

    /// Connections of RDMA's, whose completions a look can find.
    pub(crate) fn looks_for_rdma(&self) -> bool {
        self.rdma.as_ref().is_some_and(|beside| beside.rdma.open() > 0)
    }

    /// True if an operation is about to leave for a peer.
    pub(crate) fn is_sending(&self) -> bool {
        self.sends > 0 || self.looks_for_rdma()
    }

    /// True if an enter would find something, or RDMA has something already.
    pub(crate) fn look(&mut self) -> bool {
        let over = self.rdma.as_mut().is_some_and(|beside| beside.rdma.look(clock::now()));
        over || self.ring.ready()
    }

    /// RDMA's part of a turn.
    pub(crate) fn rdma_turn(&mut self, now: Time) {
        if let Some(beside) = &mut self.rdma {
            self.ready.extend(beside.turn(now));
        }
    }

    /// Starts what TLS asks for.
    pub(super) fn tls_wants(&mut self) {
        while let Some(op) = self.tls.as_mut().and_then(Layer::next_op) {
            self.admit(op);
        }
    }

    /// TLS's part of a turn.
    pub(crate) fn tls_turn(&mut self, now: Time) {
        if let Some(layer) = &mut self.tls {
            layer.turn(now);
            self.tls_wants();
        }
    }

    /// What an operation that is over comes to for the machine: itself, or what TLS makes of it.
    pub(super) fn through_tls(&mut self, done: Done) -> Option<Done> {
        let Some(layer) = &mut self.tls else { return Some(done) };
        let rdmas = self.rdma.is_some() && is_rdmas(&done.op);
        if rdmas {
            return Some(done);
        }
        layer.done(clock::now(), done);
        self.tls_wants();
        self.tls.as_mut().and_then(Layer::next_done)
    }

    /// How many operations are over without the ring's help, to be taken in this turn.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len() + self.tls.as_ref().map_or(0, Layer::ready)
    }

    /// Takes one of them.
    pub(crate) fn take_ready(&mut self) -> Option<Done> {
        if let Some(done) = self.tls.as_mut().and_then(Layer::next_done) {
            return Some(done);
        }
        let done = self.ready.pop_front()?;
        self.through_tls(done)
    }
}
