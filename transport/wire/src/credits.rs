//! Credits of one connection, both directions.
//!
//! A request costs one credit and reserves the slot of its reply; replies cost nothing, so a reply never waits behind a
//! request. Credits ride in every header.
//!
//! ```text
//!   one direction:   sender                              receiver
//!                    mine ── spend ──► in flight ──────► posted ── arrived ──► handling ── answered ──► owed
//!                      ▲                                                                                 │
//!                      └────────────────────────── returned(n) ◄── header ◄── give() ────────────────────┘
//!   sender:  mine + in flight = depth        receiver:  posted + handling + owed = depth
//! ```

/// Both directions of one connection, as one end sees them.
#[derive(Clone, Debug, Default)]
pub struct Credits {
    depth: u16,
    mine: u16,
    in_flight: u16,
    posted: u16,
    handling: u16,
    owed: u16,
}

/// What a peer did that no legal peer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreditError {
    /// More credits came back than were out.
    #[error("the peer returned {returned} credits, only {in_flight} were out")]
    OverReturned {
        /// What its header said.
        returned: u16,
        /// What it could have returned.
        in_flight: u16,
    },
    /// A request without a credit.
    #[error("the peer sent a request without a credit")]
    Overrun,
}

impl Credits {
    /// All credits of both directions at home. Depth 0 is a connection that is not established: any use is an error.
    pub fn new(depth: u16) -> Self {
        Self { depth, mine: depth, posted: depth, ..Self::default() }
    }

    /// Requests that may be sent now.
    pub fn mine(&self) -> u16 {
        self.mine
    }

    /// Credits the peer can have back with the next header.
    pub fn owed(&self) -> u16 {
        self.owed
    }

    /// Requests of the peer that are being handled.
    pub fn handling(&self) -> u16 {
        self.handling
    }

    /// True if so much is owed that a frame should be sent for it alone: half the depth.
    pub fn owes_much(&self) -> bool {
        self.owed > 0 && self.owed >= self.depth.div_ceil(2)
    }

    /// Takes a credit for a request; false if there is none.
    #[must_use]
    pub fn spend(&mut self) -> bool {
        let there = self.mine > 0;
        if there {
            self.mine -= 1;
            self.in_flight += 1;
        }
        self.check();
        there
    }

    /// A header brought `n` credits back.
    pub fn returned(&mut self, n: u16) -> Result<(), CreditError> {
        if n > self.in_flight {
            return Err(CreditError::OverReturned { returned: n, in_flight: self.in_flight });
        }
        self.in_flight -= n;
        self.mine += n;
        self.check();
        Ok(())
    }

    /// Whether the peer has a credit for a request.
    pub fn may_arrive(&self) -> bool {
        self.posted > 0
    }

    /// A request of the peer arrived.
    pub fn arrived(&mut self) -> Result<(), CreditError> {
        if self.posted == 0 {
            return Err(CreditError::Overrun);
        }
        self.posted -= 1;
        self.handling += 1;
        self.check();
        Ok(())
    }

    /// A request of the peer was answered, or never will be: its credit is owed. Each `arrived` has at most one.
    pub fn answered(&mut self) {
        debug_assert!(self.handling > 0, "an answer without its request");
        if self.handling > 0 {
            self.handling -= 1;
            self.owed += 1;
        }
        self.check();
    }

    /// What the header that is now being written gives back: all that is owed.
    pub fn give(&mut self) -> u16 {
        let given = std::mem::take(&mut self.owed);
        self.posted += given;
        self.check();
        given
    }

    fn check(&self) {
        debug_assert_eq!(self.mine + self.in_flight, self.depth, "{self:?}");
        debug_assert_eq!(self.posted + self.handling + self.owed, self.depth, "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn over_returned_credits_are_an_error() {
        let mut credits = Credits::new(4);
        assert!(credits.spend());
        assert_eq!(credits.returned(2), Err(CreditError::OverReturned { returned: 2, in_flight: 1 }));
        assert_eq!(credits.returned(1), Ok(()));
    }

    #[test]
    fn a_request_without_a_credit_is_an_error() {
        let mut credits = Credits::new(1);
        assert_eq!(credits.arrived(), Ok(()));
        assert_eq!(credits.arrived(), Err(CreditError::Overrun));
        credits.answered();
        assert_eq!(credits.arrived(), Err(CreditError::Overrun), "owed is not yet given");
        assert_eq!(credits.give(), 1);
        assert_eq!(credits.arrived(), Ok(()));
    }

    proptest! {
        /// mine + on the wire + handling + owed + coming back = depth, whatever both ends do.
        #[test]
        fn the_sum_of_credits_is_the_depth(depth in 1u16..20, steps in proptest::collection::vec(0u8..8, 0..400)) {
            let mut ends = [Credits::new(depth), Credits::new(depth)];
            // Frames in order per direction: (is a request, credits in its header).
            let mut wire: [VecDeque<(bool, u16)>; 2] = Default::default();
            for step in steps {
                let (from, action) = (usize::from(step & 1), step >> 1);
                let (here, there) = (from, 1 - from);
                match action {
                    0 => if ends[here].spend() {
                        let given = ends[here].give();
                        wire[here].push_back((true, given));
                    },
                    1 => if let Some((request, credits)) = wire[there].pop_front() {
                        prop_assert_eq!(ends[here].returned(credits), Ok(()));
                        if request {
                            prop_assert_eq!(ends[here].arrived(), Ok(()));
                        }
                    },
                    2 => if ends[here].handling() > 0 {
                        ends[here].answered();
                    },
                    _ => {
                        let given = ends[here].give();
                        wire[here].push_back((false, given));
                    }
                }
                for a in 0..2 {
                    let b = 1 - a;
                    let requests = wire[a].iter().filter(|frame| frame.0).count();
                    let returning: u16 = wire[b].iter().map(|frame| frame.1).sum();
                    let sum = usize::from(ends[a].mine() + ends[b].handling() + ends[b].owed() + returning) + requests;
                    prop_assert_eq!(sum, usize::from(depth));
                }
            }
        }
    }
}
