//! Where a reactor can be reached beside the address that is its name.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// An address, and what is spoken there: `tcp:10.1.0.1:7100`, `rdma:10.0.0.1:7100`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum TransportAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// RDMA; the port is one of the connection manager's.
    Rdma(SocketAddr),
}

impl TransportAddress {
    /// The address itself.
    pub fn at(self) -> SocketAddr {
        let (Self::Tcp(at) | Self::Rdma(at)) = self;
        at
    }

    /// The same at another address.
    pub fn on(self, at: SocketAddr) -> Self {
        match self {
            Self::Tcp(_) => Self::Tcp(at),
            Self::Rdma(_) => Self::Rdma(at),
        }
    }

    /// Whether RDMA is spoken there.
    pub fn is_rdma(self) -> bool {
        matches!(self, Self::Rdma(_))
    }
}

impl fmt::Display for TransportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => write!(f, "tcp:{at}"),
            Self::Rdma(at) => write!(f, "rdma:{at}"),
        }
    }
}

impl FromStr for TransportAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address: write tcp:IP:PORT or rdma:IP:PORT");
        let (transport, at) = text.split_once(':').ok_or_else(wrong)?;
        let at = at.parse().map_err(|_| wrong())?;
        match transport {
            "tcp" => Ok(Self::Tcp(at)),
            "rdma" => Ok(Self::Rdma(at)),
            _ => Err(wrong()),
        }
    }
}

impl From<TransportAddress> for String {
    fn from(address: TransportAddress) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for TransportAddress {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in ["tcp:10.1.0.1:7100", "rdma:[fe80::1]:1"] {
            assert_eq!(text.parse::<TransportAddress>().unwrap().to_string(), text);
        }
        for wrong in ["", "10.1.0.1:7100", "tcp:10.1.0.1", "rdma:", "quic:10.1.0.1:1", "tcp:host:1"] {
            assert!(wrong.parse::<TransportAddress>().unwrap_err().contains("tcp:IP:PORT"), "{wrong}");
        }
    }
}
