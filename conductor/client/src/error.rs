//! Why a call has no answer.

use crate::secure::Unopened;
use conductor_model::{NODE_ELSEWHERE, UNKNOWN_NODE};

/// Three sorts: nobody there, a conductor that says no, and something that is no conductor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be one.
    #[error("{address:?} is no conductor address: {why}")]
    BadAddress {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// TLS cannot be spoken from here.
    #[error("{0}")]
    Tls(String),
    /// No answer in time, or none at all. A command may have taken effect or not.
    #[error("conductor {address} cannot be reached: {why}")]
    Unreachable {
        /// Where it was expected.
        address: String,
        /// What happened.
        why: String,
    },
    /// The conductor refuses; nothing was changed, unless `kind` is `stopped`, `timeout` or `unconfirmed`.
    #[error("{message}")]
    Refused {
        /// One word for programs.
        kind: String,
        /// One sentence for people.
        message: String,
        /// The HTTP status it came with.
        status: u16,
    },
    /// What answers does not speak like a conductor.
    #[error("{address} does not answer like a conductor: {what}")]
    Protocol {
        /// Who.
        address: String,
        /// What it said.
        what: String,
    },
}

impl Error {
    /// True if the node has to register before its heartbeats count.
    pub fn is_unknown_node(&self) -> bool {
        self.kind() == Some(UNKNOWN_NODE)
    }

    /// True if the node's number is another one's, which may be the one that it takes the place of.
    pub fn is_node_elsewhere(&self) -> bool {
        self.kind() == Some(NODE_ELSEWHERE)
    }

    /// The conductor's word for its refusal.
    pub fn kind(&self) -> Option<&str> {
        match self {
            Self::Refused { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// True if asking again later may help, without anything else being done.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 503),
            Self::BadAddress { .. } | Self::Tls(_) | Self::Protocol { .. } => false,
        }
    }

    /// As it is for a command that may have arrived.
    pub(crate) fn of_unknown_fate(self) -> Self {
        match self {
            Self::Unreachable { address, why } => {
                let why =
                    format!("{why}; the command may have taken effect all the same: look before it is given again");
                Self::Unreachable { address, why }
            }
            other => other,
        }
    }

    pub(crate) fn of_call(address: &str, error: ureq::Error) -> Self {
        let address = address.to_owned();
        match error {
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::BodyStalled => Self::Unreachable { address, why: error.to_string() },
            ureq::Error::TlsRequired => {
                Self::Tls(format!("{address} speaks TLS, by which only a key tells whom to trust: pass --key-file"))
            }
            ureq::Error::Other(other) => match other.downcast::<Unopened>() {
                Ok(unopened) => Self::of_call(&address, unopened.0),
                Err(other) => Self::Protocol { address, what: ureq::Error::Other(other).to_string() },
            },
            other => Self::Protocol { address, what: other.to_string() },
        }
    }
}
