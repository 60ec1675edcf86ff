//! Which way leads to a peer that can be reached over RDMA, too.
//!
//! An endpoint is named by its TCP address, which every peer has. RDMA is tried first where it is known; an attempt that does not come
//! up, or that soon ends again, is followed by one over TCP, and a TCP connection that ends, or does not come up either, by one over RDMA
//! again. So a peer is reached whichever way works, and nobody waits for one that does not. While a connection over TCP is up where RDMA is
//! known, it is looked now and then whether RDMA leads there: only a connection that nothing is said on ([`crate::Net::probe`]) shows that. If
//! it does, whoever asked has the connection over TCP closed when that costs nothing, and the next one is over RDMA. That one may come up and
//! carry nothing large all the same: then it is soon over, and the next look is later than the last.

use driver::{Address, ConnId, Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use wire::Reason;

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

/// From a connection over TCP to the first look whether RDMA leads there. Long beside what an outage takes, so that it is over.
pub const PROBE_FIRST: Span = Span::seconds(30);
/// Between two looks, which are twice as far apart each time: at most. Each costs the peer half a megabyte for a moment.
pub const PROBE_MAX: Span = Span::seconds(600);

/// A connection over RDMA that is over sooner after it came up, and not because this side wanted it so, led nowhere: it may come up each time
/// and carry nothing.
pub const BRIEF: Span = Span::seconds(30);

/// When it is looked whether RDMA leads somewhere.
#[derive(Clone, Copy, Debug)]
struct Probe {
    at: Time,
    pause: Span,
    /// It is being looked.
    conn: Option<ConnId>,
}

/// A connection of ours that is not over.
#[derive(Clone, Copy, Debug)]
struct Tried {
    endpoint: SocketAddr,
    rdma: bool,
    up: Option<Time>,
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
    /// Endpoints that are reached over TCP and have RDMA.
    probes: BTreeMap<SocketAddr, Probe>,
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
        // One that is under way ends first.
        self.probes.retain(|endpoint, probe| probe.conn.is_some() || self.rdma.contains_key(endpoint));
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
        self.tried.insert(conn, Tried { endpoint, rdma: matches!(to, Address::Rdma(_)), up: None });
    }

    /// A connection is established; one that is not ours changes nothing.
    pub fn up(&mut self, now: Time, conn: ConnId) {
        if let Some(tried) = self.tried.get_mut(&conn) {
            tried.up = Some(now);
        }
    }

    /// An endpoint to look at now, and where: the answer is [`Ways::probing`]. To be asked in each turn.
    pub fn probe(&mut self, now: Time) -> Option<(SocketAddr, Address)> {
        if self.transport != Transport::Auto || self.rdma.is_empty() {
            return None;
        }
        let Self { probes, rdma, tried, .. } = self;
        let over_tcp = |t: &&Tried| t.up.is_some() && !t.rdma && rdma.contains_key(&t.endpoint);
        let due = tried.values().filter(over_tcp).find_map(|t| {
            let first = Probe { at: now + PROBE_FIRST, pause: PROBE_FIRST, conn: None };
            let probe = probes.entry(t.endpoint).or_insert(first);
            (probe.conn.is_none() && probe.at <= now).then_some(t.endpoint)
        });
        due.map(|endpoint| (endpoint, Address::Rdma(rdma[&endpoint])))
    }

    /// It is being looked.
    pub fn probing(&mut self, endpoint: SocketAddr, conn: ConnId) {
        if let Some(probe) = self.probes.get_mut(&endpoint) {
            probe.conn = Some(conn);
        }
    }

    /// Whether a connection of ours is such a look.
    pub fn is_probe(&self, conn: ConnId) -> bool {
        self.probes.values().any(|probe| probe.conn == Some(conn))
    }

    /// It was looked: gives the connection over TCP that is to make room, if RDMA `leads` there. Where it does not, or nobody makes room, the
    /// next look is later.
    pub fn probed(&mut self, now: Time, conn: ConnId, leads: bool) -> Option<ConnId> {
        let (endpoint, probe) = self.probes.iter_mut().find(|(_, probe)| probe.conn == Some(conn))?;
        probe.conn = None;
        probe.pause = Span(probe.pause.0 * 2).min(PROBE_MAX);
        probe.at = now + probe.pause;
        let theirs = self.tried.iter().find(|(_, t)| t.endpoint == *endpoint && t.up.is_some() && !t.rdma);
        theirs.map(|(conn, _)| *conn).filter(|_| leads)
    }

    /// When to ask for the next look.
    pub fn next_deadline(&self) -> Option<Time> {
        let over_tcp = |at: &SocketAddr| self.tried.values().any(|t| t.endpoint == *at && t.up.is_some() && !t.rdma);
        let waits = self.probes.iter().filter(|(at, probe)| probe.conn.is_none() && over_tcp(at));
        waits.map(|(_, probe)| probe.at).min()
    }

    /// A connection is over. Gives an endpoint that is tried over TCP now because RDMA does not lead there, once until it does.
    pub fn down(&mut self, now: Time, conn: ConnId, why: Reason) -> Option<SocketAddr> {
        let Tried { endpoint, rdma, up } = self.tried.remove(&conn)?;
        if !rdma || self.transport != Transport::Auto {
            self.tcp_next.remove(&endpoint);
            return None;
        }
        let ours = matches!(why, Reason::Closed | Reason::Stopping);
        if up.is_some_and(|up| ours || now.since(up) >= BRIEF) {
            self.tcp_next.remove(&endpoint);
            self.said.remove(&endpoint);
            self.probes.remove(&endpoint);
            return None;
        }
        if up.is_some()
            && let Some(probe) = self.probes.get_mut(&endpoint)
        {
            // What was looked at last led here: not again so soon.
            probe.at = now + probe.pause;
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

    const T0: Time = Time(0);

    fn at(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    /// Of a connection that did not come up, or failed.
    const FAILED: Reason = Reason::Io;

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
        assert_eq!(ways.down(T0, first, FAILED), Some(at(1)));
        let (second, to) = attempt(&mut ways, 2);
        assert_eq!((to, ways.is_rdma(second)), (Address::Tcp(at(1)), false));
        ways.up(T0, second);
        assert_eq!(ways.down(T0, second, FAILED), None);
        let (third, to) = attempt(&mut ways, 3);
        assert_eq!(to, Address::Rdma(at(2)), "RDMA has its chance again");
        assert_eq!(ways.down(T0, third, FAILED), None, "it was said");
        let (fourth, to) = attempt(&mut ways, 4);
        assert_eq!((to, ways.down(T0, fourth, FAILED)), (Address::Tcp(at(1)), None));
        let (fifth, to) = attempt(&mut ways, 5);
        assert_eq!(to, Address::Rdma(at(2)), "neither came up: in turn");
        ways.up(T0, fifth);
        assert_eq!(ways.down(T0 + BRIEF, fifth, FAILED), None, "it was up");
        let (sixth, to) = attempt(&mut ways, 6);
        assert_eq!(
            (to, ways.down(T0, sixth, FAILED)),
            (Address::Rdma(at(2)), Some(at(1))),
            "it had led there in between"
        );
        ways.know([]);
        assert_eq!(ways.address(at(1)), Address::Tcp(at(1)));
    }

    #[test]
    fn who_wants_one_way_gets_it() {
        let mut ways = Ways::new(Transport::Rdma);
        assert_eq!(ways.address(at(1)), Address::Rdma(at(1)));
        ways.know([(at(1), at(2))]);
        let (conn, to) = attempt(&mut ways, 1);
        assert_eq!((to, ways.down(T0, conn, FAILED)), (Address::Rdma(at(2)), None));
        assert_eq!(ways.address(at(1)), Address::Rdma(at(2)));
        ways.only_tcp();
        assert_eq!(ways.address(at(1)), Address::Tcp(at(1)));
        assert_eq!(ways.down(T0, ConnId { slot: 9, generation: 9 }, FAILED), None, "somebody else's");
    }

    #[test]
    fn while_tcp_is_up_it_is_looked_now_and_then_whether_rdma_leads_there() {
        let mut ways = Ways::new(Transport::Auto);
        ways.know([(at(1), at(2))]);
        let (first, _) = attempt(&mut ways, 1);
        ways.down(T0, first, FAILED);
        let (tcp, _) = attempt(&mut ways, 2);
        ways.up(T0, tcp);
        assert_eq!((ways.probe(T0), ways.next_deadline()), (None, Some(T0 + PROBE_FIRST)));
        let (mut now, mut pauses) = (T0, Vec::new());
        for slot in 10..17 {
            let due = ways.next_deadline().unwrap();
            pauses.push(due.since(now).0 / 1_000_000_000);
            now = due;
            assert_eq!(ways.probe(Time(now.0 - 1)), None, "not before");
            let looks = ways.probe(now);
            assert_eq!(looks, Some((at(1), Address::Rdma(at(2)))));
            let conn = ConnId { slot, generation: 1 };
            ways.probing(at(1), conn);
            assert!(
                ways.is_probe(conn) && ways.probe(now).is_none() && ways.next_deadline().is_none(),
                "one at a time"
            );
            assert_eq!(ways.probed(now, conn, slot == 16), (slot == 16).then_some(tcp));
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(ways.down(T0, tcp, FAILED), None);
        let (rdma, to) = attempt(&mut ways, 3);
        assert_eq!(to, Address::Rdma(at(2)));
        ways.up(T0, rdma);
        assert_eq!(ways.next_deadline(), None, "there is nothing to look for");
    }

    #[test]
    fn rdma_that_comes_up_and_soon_ends_is_as_one_that_does_not_come_up() {
        let mut ways = Ways::new(Transport::Auto);
        ways.know([(at(1), at(2))]);
        let (mut now, mut slot, mut over_tcp) = (T0, 0, Vec::new());
        let mut next = |ways: &mut Ways| {
            slot += 1;
            attempt(ways, slot)
        };
        // It comes up each time, and each time it ends before it has lasted.
        for round in 0..7 {
            let (rdma, to) = next(&mut ways);
            assert_eq!(to, Address::Rdma(at(2)), "{round}");
            ways.up(now, rdma);
            now = now + Span(BRIEF.0 - 1);
            assert_eq!(ways.down(now, rdma, FAILED), (round == 0).then_some(at(1)), "said once");
            let (tcp, to) = next(&mut ways);
            assert_eq!(to, Address::Tcp(at(1)), "{round}");
            ways.up(now, tcp);
            assert_eq!(ways.probe(now), None, "not at once");
            let due = ways.next_deadline().unwrap();
            over_tcp.push(due.since(now).0 / 1_000_000_000);
            now = due;
            assert!(ways.probe(now).is_some());
            let look = ConnId { slot: 100 + round, generation: 1 };
            ways.probing(at(1), look);
            assert_eq!(ways.probed(now, look, true), Some(tcp), "that it comes up is all that a look can show");
            assert_eq!(ways.down(now, tcp, Reason::Closed), None);
        }
        assert_eq!(over_tcp, [30, 60, 120, 240, 480, 600, 600]);
        // One that lasts, and one that we end ourselves, lead there: all begins anew.
        for (lasts, why) in [(BRIEF, FAILED), (Span(1), Reason::Closed)] {
            let (rdma, to) = next(&mut ways);
            assert_eq!(to, Address::Rdma(at(2)));
            ways.up(now, rdma);
            now = now + lasts;
            assert_eq!((ways.down(now, rdma, why), ways.address(at(1))), (None, Address::Rdma(at(2))));
        }
        let (brief, _) = next(&mut ways);
        ways.up(now, brief);
        assert_eq!(ways.down(now, brief, FAILED), Some(at(1)), "said again");
        let (tcp, _) = next(&mut ways);
        ways.up(now, tcp);
        assert_eq!((ways.probe(now), ways.next_deadline()), (None, Some(now + PROBE_FIRST)));
    }
}
