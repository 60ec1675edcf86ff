//! Which way leads to a peer that can be reached over RDMA, too.
//!
//! An endpoint is named by its TCP address, which every peer has. RDMA is tried first where it is known; an attempt that does not come
//! up is followed by one over TCP, and a TCP connection that ends, or does not come up either, by one over RDMA again. So a peer is
//! reached whichever way works, and nobody waits for one that does not.

use driver::{Address, ConnId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What connections go over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// RDMA where the peer has it, and TCP where it does not, or where RDMA does not come up.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// RDMA, or nothing.
    Rdma,
}

/// A connection of ours that is not over.
#[derive(Clone, Copy, Debug)]
struct Tried {
    endpoint: SocketAddr,
    rdma: bool,
    up: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Ways {
    transport: Transport,
    /// The RDMA address of each endpoint that has one.
    rdma: BTreeMap<SocketAddr, SocketAddr>,
    tried: BTreeMap<ConnId, Tried>,
    /// Endpoints whose next attempt is over TCP.
    tcp_next: BTreeSet<SocketAddr>,
    /// Endpoints of which it was said since RDMA last led there.
    said: BTreeSet<SocketAddr>,
}

impl Ways {
    /// Nothing is known of RDMA yet.
    pub fn new(transport: Transport) -> Self {
        Self { transport, ..Self::default() }
    }

    /// What connections go over.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// There is no RDMA on this machine.
    pub fn only_tcp(&mut self) {
        self.transport = Transport::Tcp;
    }

    /// All endpoints that have RDMA, and where; those that are not named any more have none.
    pub fn know(&mut self, all: impl IntoIterator<Item = (SocketAddr, SocketAddr)>) {
        self.rdma = all.into_iter().collect();
        self.tcp_next.retain(|endpoint| self.rdma.contains_key(endpoint));
        self.said.retain(|endpoint| self.rdma.contains_key(endpoint));
    }

    /// The address for the next attempt. Where only RDMA will do and none is known, the same address is tried: it says why there is none.
    pub fn address(&self, endpoint: SocketAddr) -> Address {
        let rdma = self.rdma.get(&endpoint).copied();
        match self.transport {
            Transport::Tcp => Address::Tcp(endpoint),
            Transport::Rdma => Address::Rdma(rdma.unwrap_or(endpoint)),
            Transport::Auto if self.tcp_next.contains(&endpoint) => Address::Tcp(endpoint),
            Transport::Auto => rdma.map_or(Address::Tcp(endpoint), Address::Rdma),
        }
    }

    /// An attempt was begun, to what [`Ways::address`] said.
    pub fn connecting(&mut self, conn: ConnId, endpoint: SocketAddr, to: &Address) {
        self.tried.insert(conn, Tried { endpoint, rdma: matches!(to, Address::Rdma(_)), up: false });
    }

    /// A connection is established; one that is not ours changes nothing.
    pub fn up(&mut self, conn: ConnId) {
        let Some(tried) = self.tried.get_mut(&conn) else { return };
        tried.up = true;
        if tried.rdma {
            self.said.remove(&tried.endpoint);
        }
    }

    /// A connection is over. Gives an endpoint that is tried over TCP now because RDMA did not come up, once until it does.
    pub fn down(&mut self, conn: ConnId) -> Option<SocketAddr> {
        let Tried { endpoint, rdma, up } = self.tried.remove(&conn)?;
        if !rdma || up || self.transport != Transport::Auto {
            self.tcp_next.remove(&endpoint);
            return None;
        }
        self.tcp_next.insert(endpoint);
        self.said.insert(endpoint).then_some(endpoint)
    }

    /// Whether a connection of ours goes over RDMA.
    pub fn is_rdma(&self, conn: ConnId) -> bool {
        self.tried.get(&conn).is_some_and(|tried| tried.rdma)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    fn attempt(ways: &mut Ways, slot: u32) -> (ConnId, Address) {
        let (conn, to) = (ConnId { slot, generation: 1 }, ways.address(at(1)));
        ways.connecting(conn, at(1), &to);
        (conn, to)
    }

    #[test]
    fn rdma_that_does_not_come_up_is_followed_by_tcp_and_said_once() {
        let mut ways = Ways::new(Transport::Auto);
        assert_eq!(ways.address(at(1)), Address::Tcp(at(1)), "nothing is known");
        ways.know([(at(1), at(2))]);
        let (first, to) = attempt(&mut ways, 1);
        assert_eq!((to, ways.is_rdma(first)), (Address::Rdma(at(2)), true));
        assert_eq!(ways.down(first), Some(at(1)));
        let (second, to) = attempt(&mut ways, 2);
        assert_eq!((to, ways.is_rdma(second)), (Address::Tcp(at(1)), false));
        ways.up(second);
        assert_eq!(ways.down(second), None);
        let (third, to) = attempt(&mut ways, 3);
        assert_eq!(to, Address::Rdma(at(2)), "RDMA has its chance again");
        assert_eq!(ways.down(third), None, "it was said");
        let (fourth, to) = attempt(&mut ways, 4);
        assert_eq!((to, ways.down(fourth)), (Address::Tcp(at(1)), None));
        let (fifth, to) = attempt(&mut ways, 5);
        assert_eq!(to, Address::Rdma(at(2)), "neither came up: in turn");
        ways.up(fifth);
        assert_eq!(ways.down(fifth), None, "it was up");
        let (sixth, to) = attempt(&mut ways, 6);
        assert_eq!((to, ways.down(sixth)), (Address::Rdma(at(2)), Some(at(1))), "it had led there in between");
        ways.know([]);
        assert_eq!(ways.address(at(1)), Address::Tcp(at(1)));
    }

    #[test]
    fn who_wants_one_way_gets_it() {
        let mut ways = Ways::new(Transport::Rdma);
        assert_eq!(ways.address(at(1)), Address::Rdma(at(1)));
        ways.know([(at(1), at(2))]);
        let (conn, to) = attempt(&mut ways, 1);
        assert_eq!((to, ways.down(conn)), (Address::Rdma(at(2)), None));
        assert_eq!(ways.address(at(1)), Address::Rdma(at(2)));
        ways.only_tcp();
        assert_eq!(ways.address(at(1)), Address::Tcp(at(1)));
        assert_eq!(ways.down(ConnId { slot: 9, generation: 9 }), None, "somebody else's");
    }
}
