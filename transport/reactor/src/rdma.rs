//! RDMA's streams, beside those of the ring.
//!
//! ```text
//!   Uring::submit ──▶ asked ──push_pending──▶ Rdma ──▶ ready, in the same turn's order as all that needs no ring
//!                                              ▲
//!   ring: a poll of each of its descriptors ───┘ fired, or its deadline passed
//! ```
//!
//! An operation is RDMA's if its stream or listener is, or if the address is. What RDMA does not execute comes back from it as an error.

use ::rdma::{Rdma, RdmaError};
use driver::{Address, Done, Op, Time};
use memory::Arena;
use std::os::fd::RawFd;

/// See above.
pub(crate) struct Beside {
    pub(crate) rdma: Rdma,
    /// Not started yet.
    asked: Vec<Op>,
    /// Taken over and not handed back.
    out: usize,
    /// For each descriptor, whether a poll of it is in the ring.
    polls: Vec<bool>,
    /// A descriptor is readable.
    fired: bool,
    dones: Vec<Done>,
}

/// Whether an operation is RDMA's to execute.
pub(crate) fn is_rdmas(op: &Op) -> bool {
    match op {
        Op::Accept { listener } => Rdma::owns(listener.0),
        Op::Connect { to, .. } => matches!(to, Address::Rdma(_)),
        Op::Recv { stream, .. }
        | Op::Send { stream, .. }
        | Op::Watch { stream, .. }
        | Op::Secure { stream }
        | Op::Shutdown { stream }
        | Op::Close { stream } => Rdma::owns(stream.0),
        Op::DiskRead { .. } | Op::DiskWrite { .. } | Op::DiskPunch { .. } | Op::DiskSync { .. } => false,
    }
}

impl Beside {
    pub(crate) fn new(arena: &Arena) -> Result<Self, RdmaError> {
        let rdma = Rdma::new(arena)?;
        Ok(Self { rdma, asked: Vec::new(), out: 0, polls: Vec::new(), fired: false, dones: Vec::new() })
    }

    pub(crate) fn submit(&mut self, op: Op) {
        self.out += 1;
        self.asked.push(op);
    }

    /// Starts what was asked for.
    pub(crate) fn start(&mut self, now: Time) {
        for op in self.asked.drain(..) {
            self.rdma.submit(now, op);
        }
    }

    /// Descriptors that no poll is posted for; now there is one.
    pub(crate) fn new_polls(&mut self) -> Vec<(u32, RawFd)> {
        let mut new = Vec::new();
        for (index, fd) in self.rdma.descriptors().enumerate() {
            if self.polls.len() <= index {
                self.polls.push(false);
            }
            let Some(fd) = fd else { continue };
            if !std::mem::replace(&mut self.polls[index], true) {
                new.push((u32::try_from(index).unwrap_or(u32::MAX), fd));
            }
        }
        new
    }

    /// The numbers of the polls that are posted.
    pub(crate) fn posted(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.polls).filter(|(_, posted)| **posted).map(|(index, _)| index)
    }

    /// A poll is over: its descriptor is readable, or it was cancelled.
    pub(crate) fn fired(&mut self, index: u32) {
        if let Some(posted) = self.polls.get_mut(index as usize) {
            (*posted, self.fired) = (false, true);
        }
    }

    /// What is over, if there is a reason to ask.
    pub(crate) fn turn(&mut self, now: Time) -> impl Iterator<Item = Done> {
        let due = self.rdma.next_deadline().is_some_and(|deadline| deadline <= now);
        if due | std::mem::take(&mut self.fired) {
            self.rdma.turn(now, &mut self.dones);
            self.out -= self.dones.len();
        }
        self.dones.drain(..)
    }

    /// All that was asked for comes back as soon as it can.
    pub(crate) fn cancel_all(&mut self, now: Time) {
        self.start(now);
        self.rdma.cancel_all(now);
    }

    /// Operations that were not handed back.
    pub(crate) fn outstanding(&self) -> usize {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::{Conn, ConnId, DiskIndex, ListenerId, Provider, Span, StreamId};
    use refcount::Table;

    #[test]
    fn the_number_or_the_address_says_whose_an_operation_is() {
        let conns = Table::new();
        let at = ([192, 0, 2, 1], 7000).into();
        let connect = |to| {
            let conn = Conn::new(ConnId { slot: 0, generation: 0 }, Provider::Framed);
            Op::Connect { on: conns.insert(conn), to, within: Span::seconds(1) }
        };
        assert!(is_rdmas(&connect(Address::Rdma(at))));
        assert!(!is_rdmas(&connect(Address::Tcp(at))) && !is_rdmas(&connect(Address::Unix("x".into()))));
        // The generation is above the bit that tells, the slot below.
        for (number, rdmas) in [(0, false), (0x8000, true), (0x7fff, false), (0xffff_7fff, false), (0xffff_ffff, true)]
        {
            let stream = StreamId(number);
            assert_eq!(is_rdmas(&Op::Accept { listener: ListenerId(number) }), rdmas);
            assert_eq!(is_rdmas(&Op::Shutdown { stream }), rdmas);
            assert_eq!(is_rdmas(&Op::Close { stream }), rdmas);
        }
        assert!(!is_rdmas(&Op::DiskSync { disk: DiskIndex(0x8000), tag: 0x8000 }));
    }
}
