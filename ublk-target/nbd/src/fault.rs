//! What can go wrong: with one command, and with the session.

/// Why a command failed, as the protocol can say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// EPERM.
    #[error("not permitted: the export is read-only, or this client may not write there")]
    NotPermitted,
    /// EIO.
    #[error("input/output error")]
    Io,
    /// ENOMEM.
    #[error("out of memory")]
    NoMemory,
    /// EINVAL.
    #[error("invalid request")]
    Invalid,
    /// ENOSPC.
    #[error("no space, or beyond the end of the export")]
    NoSpace,
    /// EOVERFLOW.
    #[error("too large to be answered in one chunk")]
    Overflow,
    /// ENOTSUP.
    #[error("not supported")]
    NotSupported,
    /// ESHUTDOWN.
    #[error("the server is shutting down")]
    Shutdown,
}

impl Fault {
    /// The number on the wire.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::NotPermitted => 1,
            Self::Io => 5,
            Self::NoMemory => 12,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::Overflow => 75,
            Self::NotSupported => 95,
            Self::Shutdown => 108,
        }
    }

    /// From an error number of Linux; what the protocol has no word for is an I/O error.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            1 | 13 | 30 => Self::NotPermitted, // EPERM, EACCES, EROFS
            12 => Self::NoMemory,
            22 => Self::Invalid,
            28 | 27 | 122 => Self::NoSpace, // ENOSPC, EFBIG, EDQUOT
            75 => Self::Overflow,
            95 => Self::NotSupported,
            108 => Self::Shutdown,
            _ => Self::Io,
        }
    }
}

/// Why a session is over.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Closed {
    /// The client said goodbye (DISC, or ABORT while negotiating).
    #[error("the client disconnected")]
    Disconnected,
    /// The stream ended without a goodbye.
    #[error("the client closed the connection")]
    EndOfStream,
    /// Its user said so.
    #[error("closed by the server")]
    Local,
    /// Bits in the client's first word that we did not offer.
    #[error("the client wants handshake flags {0:#x}")]
    HandshakeFlags(u32),
    /// Not an option where one must be.
    #[error("an option starts with {0:#x}")]
    OptionMagic(u64),
    /// Not a request where one must be.
    #[error("a request starts with {0:#x}")]
    RequestMagic(u32),
    /// A client of the old handshake knows no option but this one.
    #[error("option {0} without fixed newstyle negotiation")]
    NotFixedNewstyle(u32),
    /// It never stops negotiating.
    #[error("more than {} options", crate::MAX_OPTIONS)]
    TooManyOptions,
    /// EXPORT_NAME in clear, where TLS is required; it has no way to say no.
    #[error("the client asked for the export in clear, and TLS is required")]
    InClear,
    /// It did not wait to be told that TLS begins: what it said in clear may be somebody else's, to be taken for said over TLS.
    #[error("the client went on in clear after it asked for TLS")]
    AheadOfTls,
    /// EXPORT_NAME with another name; it has no way to say no.
    #[error("the client asked for an export that is not here")]
    UnknownExport,
    /// Part of a reply was sent when the rest turned out to be unreadable, and the client cannot be told in another way.
    #[error("a read failed after its reply was begun: {0}")]
    BrokenReply(Fault),
}
