//! A connection's state and its one transition function.
//!
//! ```text
//!   Init ─┬─ Connect ─► Connecting ─┬─ Establish ─► Established ─┐
//!         └─ Accept ──► Accepted ───┘                            ├─ any end ─► Closing ─ Finished ─► Disconnected
//!                       └────────────────────────────────────────┘
//! ```
//!
//! States only rise. Any happening is tolerated in any state: what does not apply changes nothing.

/// Where a connection is in its life. Destroyed only from `Init` or `Disconnected`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Made, nothing started.
    Init,
    /// We are connecting or in our half of the handshake.
    Connecting,
    /// We accepted and are in our half of the handshake.
    Accepted,
    /// Both sides have proven who they are; messages flow.
    Established,
    /// Over; operations are coming back.
    Closing,
    /// Nothing is outstanding.
    Disconnected,
}

/// What can happen to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Happening {
    /// We start to connect.
    Connect,
    /// The listener gave it to us.
    Accept,
    /// The handshake is complete.
    Establish,
    /// No way to the peer, or no answer in time.
    Unreachable,
    /// Connecting failed.
    ConnectError,
    /// The handshake was refused, by either side.
    Rejected,
    /// The peer is gone, or its bytes cannot be trusted.
    Disconnected,
    /// We want it closed.
    Close,
    /// All operations are back and the stream is closed.
    Finished,
}

impl State {
    /// The state after `happening`.
    #[must_use]
    pub fn after(self, happening: Happening) -> Self {
        use Happening as H;
        match (self, happening) {
            (Self::Init, H::Connect) => Self::Connecting,
            (Self::Init, H::Accept) => Self::Accepted,
            (Self::Connecting | Self::Accepted, H::Establish) => Self::Established,
            (Self::Closing, H::Finished) => Self::Disconnected,
            (_, H::Connect | H::Accept | H::Establish | H::Finished) => self,
            (Self::Init, _) => Self::Disconnected,
            (Self::Connecting | Self::Accepted | Self::Established, _) => Self::Closing,
            (Self::Closing | Self::Disconnected, _) => self,
        }
    }

    /// True while messages flow or a handshake is under way.
    pub fn is_open(self) -> bool {
        self < Self::Closing
    }
}

#[cfg(test)]
mod tests {
    use super::Happening as H;
    use super::State::{self, *};

    const STATES: [State; 6] = [Init, Connecting, Accepted, Established, Closing, Disconnected];
    const ENDS: [H; 5] = [H::Unreachable, H::ConnectError, H::Rejected, H::Disconnected, H::Close];

    #[test]
    fn every_state_and_happening_has_its_row() {
        //                        Init          Connecting   Accepted     Established  Closing       Disconnected
        let table = [
            (H::Connect, [Connecting, Connecting, Accepted, Established, Closing, Disconnected]),
            (H::Accept, [Accepted, Connecting, Accepted, Established, Closing, Disconnected]),
            (H::Establish, [Init, Established, Established, Established, Closing, Disconnected]),
            (H::Finished, [Init, Connecting, Accepted, Established, Disconnected, Disconnected]),
        ];
        let end = [Disconnected, Closing, Closing, Closing, Closing, Disconnected];
        for (happening, after) in table.into_iter().chain(ENDS.map(|happening| (happening, end))) {
            for (from, to) in STATES.into_iter().zip(after) {
                assert_eq!(from.after(happening), to, "{from:?} after {happening:?}");
                assert!(to >= from, "states only rise");
            }
        }
    }
}
