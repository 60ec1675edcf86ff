//! Messages that the peer has a receive for.
//!
//! ```text
//!   may ── spend ──► in flight ──► arrived, being read ──► posted again = owed ── with any message ──► may
//! ```
//!
//! `may + in flight + being read + owed = RX`. A peer that reads nothing returns no credit of a data message, and those of the others only
//! once it owes a quarter of all. So data leaves a quarter and two: however much of it lies unread, control goes on until so many were
//! spent on it that they come back. The last credit is only for a message that returns some, so two sides that have said all they may still
//! return each other's.

use crate::limits::{FOR_CONTROL, FOR_CREDITS};

/// What a message is sent for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    Data,
    Control,
    Credits,
}

#[derive(Debug)]
pub(crate) struct Credits {
    theirs: u16,
    ours: u16,
    may: u16,
    owed: u16,
}

impl Credits {
    /// The peer posted `theirs`, we posted `ours`.
    pub(crate) fn new(theirs: u16, ours: u16) -> Self {
        Self { theirs, ours, may: theirs, owed: 0 }
    }

    pub(crate) fn may(&self, urgency: Urgency) -> bool {
        let kept = match urgency {
            Urgency::Data => returned_at(self.theirs) + FOR_CONTROL,
            Urgency::Control => FOR_CREDITS,
            Urgency::Credits => 0,
        };
        self.may > kept
    }

    /// Spends one; gives what rides with the message.
    pub(crate) fn spend(&mut self) -> u16 {
        debug_assert!(self.may > 0, "may() said so");
        self.may = self.may.saturating_sub(1);
        std::mem::take(&mut self.owed)
    }

    /// A receive was posted again; false if the peer sent more than it had credits for.
    #[must_use]
    pub(crate) fn posted(&mut self) -> bool {
        let legal = self.owed < self.ours;
        self.owed += u16::from(legal);
        legal
    }

    /// A message brought `n` back; false if no legal peer owes that many.
    #[must_use]
    pub(crate) fn returned(&mut self, n: u16) -> bool {
        let legal = n <= self.theirs - self.may || driver::mutant::on("rdma_credits_over_returned");
        if legal {
            self.may += n;
        }
        legal
    }

    /// So much is owed that a message should go for it alone.
    pub(crate) fn owes_much(&self) -> bool {
        self.owed >= returned_at(self.ours)
    }
}

/// Whoever posted so many receives returns credits when it owes this many.
const fn returned_at(receives: u16) -> u16 {
    receives / 4
}
