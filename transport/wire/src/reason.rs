//! Why a connection ended or was refused.

/// Why. Its number travels in Reject and Goodbye and is never given another meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
#[repr(u16)]
pub enum Reason {
    /// We closed it, for no fault of the peer.
    #[error("closed by this side")]
    Closed = 1,
    /// This process is stopping.
    #[error("this process is stopping")]
    Stopping = 2,
    /// The peer said Goodbye.
    #[error("the peer said goodbye")]
    Goodbye = 3,
    /// The peer's end of stream.
    #[error("the peer closed the connection")]
    PeerClosed = 4,
    /// The kernel reported an error on the stream.
    #[error("the stream failed")]
    Io = 5,
    /// Connecting failed.
    #[error("could not connect")]
    ConnectFailed = 6,
    /// Connecting took longer than its deadline.
    #[error("connecting took too long")]
    ConnectTimeout = 7,
    /// The handshake took longer than its deadline.
    #[error("the handshake took too long")]
    HandshakeTimeout = 8,
    /// Nothing was heard of the peer for too long.
    #[error("the peer has been silent for too long")]
    PeerSilent = 9,
    /// A request's deadline passed: only a closed connection proves that the peer is done with it.
    #[error("a request was not answered in time")]
    RequestTimeout = 10,
    /// A header or body that fails its checks.
    #[error("a frame was malformed or failed its checksum")]
    BadFrame = 11,
    /// A payload that fails its checksum.
    #[error("a payload failed its checksum")]
    BadPayload = 12,
    /// A handshake message that cannot be read.
    #[error("a handshake message was malformed")]
    BadHandshake = 13,
    /// A message that has no business here.
    #[error("the peer sent a message that is not expected here")]
    Unexpected = 14,
    /// A request without a credit, or credits returned that were never spent.
    #[error("the peer broke the credit rules")]
    Credits = 15,
    /// The proof does not fit the name, wrong or unknown secret; or a data request's session tag does not fit the session.
    #[error("the peer could not prove who it is (check its secret)")]
    Unauthenticated = 16,
    /// As many connections or handshakes as are allowed.
    #[error("too many connections")]
    Busy = 17,
    /// The peer's process, attach generation or open id is older than one already known.
    #[error("the peer is from an earlier life and is fenced")]
    Fenced = 18,
    /// What the peer wants to talk about is not here.
    #[error("not served here")]
    NotServed = 19,
    /// No common features or limits.
    #[error("no common protocol features or limits")]
    Incompatible = 20,
    /// No memory for the connection.
    #[error("no memory for the connection")]
    NoMemory = 21,
    /// The peer's key is not for that: another volume, or more than reading.
    #[error("the key is not for that volume, or not for writing")]
    Denied = 22,
    /// One side speaks TLS and the other does not, or they do not trust each other's certificates.
    #[error("TLS failed: either the whole cluster speaks it or nobody does, and all have the same cluster's key")]
    Tls = 23,
}

impl Reason {
    /// All of them, for counters.
    pub const ALL: [Self; 23] = [
        Self::Closed,
        Self::Stopping,
        Self::Goodbye,
        Self::PeerClosed,
        Self::Io,
        Self::ConnectFailed,
        Self::ConnectTimeout,
        Self::HandshakeTimeout,
        Self::PeerSilent,
        Self::RequestTimeout,
        Self::BadFrame,
        Self::BadPayload,
        Self::BadHandshake,
        Self::Unexpected,
        Self::Credits,
        Self::Unauthenticated,
        Self::Busy,
        Self::Fenced,
        Self::NotServed,
        Self::Incompatible,
        Self::NoMemory,
        Self::Denied,
        Self::Tls,
    ];

    /// Its number on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Its place in [`Reason::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// What a number means, if anything.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_reasons_are_one_to_one() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert_eq!(Reason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(Reason::from_code(0), None);
        assert_eq!(Reason::from_code(24), None);
    }
}
