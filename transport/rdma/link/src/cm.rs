//! What the connection manager's events mean, as one table.
//!
//! ```text
//!   Resolving ─► Routing ─► Connecting ─┐
//!                           Accepting ──┴─► Up ─► Ending
//! ```

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Looking for the device that leads to the address.
    Resolving,
    /// Looking for the way.
    Routing,
    /// Asked.
    Connecting,
    /// Was asked, and agreed.
    Accepting,
    /// Connected.
    Up,
    /// On its way out.
    Ending,
}

/// Everything that a connection manager can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are librdmacm's, RDMA_CM_EVENT_…")]
pub enum Event {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectResponse,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    MulticastJoin,
    MulticastError,
    AddrChange,
    TimewaitExit,
    /// Not in the list above.
    Unknown,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Look for the device again, if there is time.
    Resolve,
    /// Find the way.
    Route,
    /// Make the queue pair, post its receives, ask.
    Connect,
    /// It is up.
    Establish,
    /// There will be no connection.
    Fail(Why),
    /// There was one.
    Lose,
    /// Nothing. Events come late, twice and out of order.
    Ignore,
}

/// Why there will be none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// No way to the peer.
    Unreachable,
    /// The peer does not want it, or nobody listens.
    Rejected,
    /// Connecting failed.
    Error,
}

impl Phase {
    /// What `event` means now.
    pub fn on(self, event: Event) -> Step {
        use Event as E;
        use Phase as P;
        let opening = !matches!(self, P::Up | P::Ending);
        match (event, self) {
            (_, P::Ending) => Step::Ignore,
            (E::AddrResolved, P::Resolving) => Step::Route,
            (E::RouteResolved, P::Routing) => Step::Connect,
            (E::Established, P::Connecting | P::Accepting) => Step::Establish,
            (E::AddrError, P::Resolving) => Step::Resolve,
            (E::AddrError, P::Routing) | (E::RouteError, P::Resolving | P::Routing) => Step::Fail(Why::Unreachable),
            (E::Unreachable, _) if opening => Step::Fail(Why::Unreachable),
            (E::Rejected, _) if opening => Step::Fail(Why::Rejected),
            (E::ConnectError | E::Disconnected | E::DeviceRemoval, _) if opening => Step::Fail(Why::Error),
            (E::Disconnected | E::DeviceRemoval | E::TimewaitExit, P::Up) => Step::Lose,
            _ => Step::Ignore,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Event as E;
    use super::Phase::{self, *};
    use super::Step::{Connect, Establish, Ignore, Lose, Resolve, Route};
    use super::Why::{Error, Rejected, Unreachable};

    #[test]
    fn every_event_in_every_phase_has_its_row() {
        let (gone, refused, broken) =
            (super::Step::Fail(Unreachable), super::Step::Fail(Rejected), super::Step::Fail(Error));
        const PHASES: [Phase; 6] = [Resolving, Routing, Connecting, Accepting, Up, Ending];
        //                         Resolving Routing  Connecting Accepting  Up      Ending
        let table = [
            (E::AddrResolved, [Route, Ignore, Ignore, Ignore, Ignore, Ignore]),
            (E::AddrError, [Resolve, gone, Ignore, Ignore, Ignore, Ignore]),
            (E::RouteResolved, [Ignore, Connect, Ignore, Ignore, Ignore, Ignore]),
            (E::RouteError, [gone, gone, Ignore, Ignore, Ignore, Ignore]),
            (E::ConnectRequest, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore]),
            (E::ConnectResponse, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore]),
            (E::ConnectError, [broken, broken, broken, broken, Ignore, Ignore]),
            (E::Unreachable, [gone, gone, gone, gone, Ignore, Ignore]),
            (E::Rejected, [refused, refused, refused, refused, Ignore, Ignore]),
            (E::Established, [Ignore, Ignore, Establish, Establish, Ignore, Ignore]),
            (E::Disconnected, [broken, broken, broken, broken, Lose, Ignore]),
            (E::DeviceRemoval, [broken, broken, broken, broken, Lose, Ignore]),
            (E::MulticastJoin, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore]),
            (E::MulticastError, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore]),
            (E::AddrChange, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore]),
            (E::TimewaitExit, [Ignore, Ignore, Ignore, Ignore, Lose, Ignore]),
            (E::Unknown, [Ignore, Ignore, Ignore, Ignore, Ignore, Ignore]),
        ];
        for (event, row) in table {
            for (phase, step) in PHASES.into_iter().zip(row) {
                assert_eq!(phase.on(event), step, "{event:?} in {phase:?}");
            }
        }
    }
}
