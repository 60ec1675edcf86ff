//! Which way leads to a peer.
//!
//! An endpoint is named by its first TCP address, which every peer has. A peer may listen at further ones, over TCP on other networks or over
//! RDMA: its *ways*. They are tried in one order: RDMA before TCP, and of either kind the address that is this lane's first, so that the lanes
//! of a client and the reactors of a node are spread over the networks. An attempt that does not come up, a connection that soon ends again
//! and one on which the peer fell silent are followed by the next way, the last one by the first again; one that had lasted and was ended by
//! somebody, by the best way that is not known to fail. So a peer is reached whichever way works, and nobody waits long for one that does not.
//!
//! While a connection is up that is not over the first way, it is looked now and then whether one of those before it leads there: only a
//! connection that nothing is said on ([`crate::Net::probe`]) shows that. If one does, whoever asked has its connection closed when that costs
//! nothing, and the next one is over the better way. That may come up and carry nothing large all the same: then it is soon over, and the next
//! look is later than the last.

use crate::limits::{CONNECT_DEADLINE, TRY_RDMA, TRY_TCP};
use driver::{Address, ConnId, Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
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

/// From a connection that is not over the first way to the first look at a better one. Long beside what an outage takes, so that it is over.
pub const PROBE_FIRST: Span = Span::seconds(30);
/// Between two looks, which are twice as far apart each time: at most. Each over RDMA costs the peer half a megabyte for a moment.
pub const PROBE_MAX: Span = Span::seconds(600);

/// A connection that is over sooner after it came up, and not because this side wanted it so, led nowhere: it may come up each time and carry
/// nothing.
pub const BRIEF: Span = Span::seconds(30);

/// A connection to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Where to.
    pub to: Address,
    /// It is given up if there is no stream by then.
    pub within: Span,
    /// There are others: a silent peer may be reached another way.
    pub others: bool,
}

impl Attempt {
    /// The only one there is.
    pub fn only(to: Address) -> Self {
        Self { to, within: CONNECT_DEADLINE, others: false }
    }
}

/// The best way leads nowhere, and another one does: told once until the best one has led there again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detour {
    /// The peer's name.
    pub endpoint: SocketAddr,
    /// The way that does not lead there.
    pub around: Address,
    /// What became of the last connection over it.
    pub why: Reason,
}

impl fmt::Display for Detour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, around, why } = self;
        write!(f, "{around} does not lead to {endpoint} ({why}): another way does, and this one is tried now and then")
    }
}

/// How one way has done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WayView {
    /// Where it leads: `tcp:IP:PORT` or `rdma:IP:PORT`.
    pub to: String,
    /// There is a connection over it.
    pub up: bool,
    /// Connections over it that did not come up, led nowhere or fell silent, one after the other; 0 as soon as one comes up.
    pub failures: u32,
    /// How the last one that this side did not end was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
}

/// How it went over one way.
#[derive(Clone, Copy, Debug, Default)]
struct Health {
    failures: u32,
    last: Option<Reason>,
}

/// When it is looked whether a better way leads there.
#[derive(Clone, Debug)]
struct Probe {
    at: Time,
    pause: Span,
    /// Looks so far: those that are better are looked at in turn.
    looks: usize,
    /// It is being looked, over this way.
    under_way: Option<(ConnId, Address)>,
}

impl Probe {
    fn first(now: Time) -> Self {
        Self { at: now + PROBE_FIRST, pause: PROBE_FIRST, looks: 0, under_way: None }
    }
}

/// A peer, and the ways to it.
#[derive(Debug, Default)]
struct Peer {
    /// Best first; at least one.
    ways: Vec<(Address, Health)>,
    /// The one to be tried next.
    next: usize,
    /// A look has shown that this one leads there.
    found: Option<usize>,
    /// A detour was told since the first one last led there.
    told: bool,
    /// It is, or was last, reached another way than the first.
    probe: Option<Probe>,
}

/// A connection of ours that is not over.
#[derive(Clone, Debug)]
struct Tried {
    endpoint: SocketAddr,
    to: Address,
    up: Option<Time>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Ways {
    transport: Transport,
    lane: usize,
    /// Where else than at the address that is its name each endpoint listens that has more than that.
    known: BTreeMap<SocketAddr, Vec<Address>>,
    /// Those to which there was an attempt, and more than one way.
    peers: BTreeMap<SocketAddr, Peer>,
    tried: BTreeMap<ConnId, Tried>,
}

impl Ways {
    /// Of the lane or reactor with this number. Nothing is known but what endpoints are called.
    pub fn new(transport: Transport, lane: u16) -> Self {
        Self { transport, lane: lane.into(), ..Self::default() }
    }

    /// What connections go over.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// There is no RDMA on this machine.
    pub fn only_tcp(&mut self) {
        self.transport = Transport::Tcp;
        // Nothing was tried yet, of which it would have to be known.
        self.peers.clear();
    }

    /// All endpoints that listen at several addresses, and the others of them; those that are not named any more have one.
    pub fn know(&mut self, now: Time, all: impl IntoIterator<Item = (SocketAddr, Vec<Address>)>) {
        let before = std::mem::replace(&mut self.known, all.into_iter().collect());
        let tried: BTreeSet<SocketAddr> = self.tried.values().map(|tried| tried.endpoint).collect();
        for endpoint in tried.into_iter().chain(self.peers.keys().copied().collect::<Vec<_>>()) {
            if self.known.get(&endpoint) == before.get(&endpoint) {
                continue;
            }
            let ways = self.ways(endpoint);
            let over = self.tried.values().find(|tried| tried.endpoint == endpoint && tried.up.is_some());
            let better = over.is_some_and(|over| ways.first() != Some(&over.to));
            let peer = self.peers.entry(endpoint).or_default();
            let health = |to: &Address| peer.place(to).map_or_else(Health::default, |at| peer.ways[at].1);
            peer.ways = ways.into_iter().map(|to| (to.clone(), health(&to))).collect();
            (peer.next, peer.found) = (0, None);
            if better {
                peer.probe.get_or_insert_with(|| Probe::first(now));
            }
        }
        // A look that is under way comes to its end.
        let looks = |peer: &Peer| peer.probe.as_ref().is_some_and(|probe| probe.under_way.is_some());
        self.peers.retain(|_, peer| peer.ways.len() > 1 || looks(peer));
    }

    /// The ways to an endpoint, best first. Where only RDMA will do and none is known, the same address is tried: it says why there is none.
    fn ways(&self, endpoint: SocketAddr) -> Vec<Address> {
        let others = self.known.get(&endpoint).into_iter().flatten();
        let (mut rdma, mut tcp) = (Vec::new(), vec![Address::Tcp(endpoint)]);
        for address in others {
            match address {
                Address::Rdma(_) => rdma.push(address.clone()),
                Address::Tcp(_) if !tcp.contains(address) => tcp.push(address.clone()),
                _ => {}
            }
        }
        if self.transport == Transport::Rdma && rdma.is_empty() {
            rdma.push(Address::Rdma(endpoint));
        }
        for kind in [&mut rdma, &mut tcp] {
            let first = self.lane.checked_rem(kind.len()).unwrap_or(0);
            kind.rotate_left(first);
        }
        // Where RDMA fails because its network does, the next one is in another network.
        if let Some(last) = rdma.last().filter(|_| self.transport == Transport::Auto)
            && let Some(elsewhere) = tcp.iter().position(|way| ip(way) != ip(last))
        {
            tcp.rotate_left(elsewhere);
        }
        match self.transport {
            Transport::Auto => rdma.into_iter().chain(tcp).collect(),
            Transport::Tcp => tcp,
            Transport::Rdma => rdma,
        }
    }

    /// The next attempt.
    pub fn attempt(&mut self, endpoint: SocketAddr) -> Attempt {
        if !self.peers.contains_key(&endpoint) {
            let ways = self.ways(endpoint);
            if let [only] = &ways[..] {
                return Attempt::only(only.clone());
            }
            let ways = ways.into_iter().map(|to| (to, Health::default())).collect();
            self.peers.insert(endpoint, Peer { ways, ..Peer::default() });
        }
        let peer = &self.peers[&endpoint];
        let (to, _) = &peer.ways[peer.next];
        if peer.ways.len() == 1 {
            return Attempt::only(to.clone());
        }
        // Where nothing comes up, over no way, a peer may be slow and not gone: it is given more time each round.
        let rounds = peer.ways.iter().map(|(_, health)| health.failures).min().unwrap_or(0);
        let patience = if matches!(to, Address::Rdma(_)) { TRY_RDMA } else { TRY_TCP };
        let within = Span(patience.0 << rounds.min(8)).min(CONNECT_DEADLINE);
        Attempt { to: to.clone(), within, others: true }
    }

    /// Whether there is more than one way to an endpoint.
    pub fn are_several(&self, endpoint: SocketAddr) -> bool {
        self.peers.get(&endpoint).is_some_and(|peer| peer.ways.len() > 1)
    }

    /// An attempt was begun, to what [`Ways::attempt`] said.
    pub fn connecting(&mut self, conn: ConnId, endpoint: SocketAddr, to: Address) {
        self.tried.insert(conn, Tried { endpoint, to, up: None });
    }

    /// A connection is established; one that is not ours changes nothing. Gives what is to be told, if it is over another way than the best
    /// because that one fails.
    pub fn up(&mut self, now: Time, conn: ConnId) -> Option<Detour> {
        let tried = self.tried.get_mut(&conn)?;
        tried.up = Some(now);
        let peer = self.peers.get_mut(&tried.endpoint)?;
        let at = peer.place(&tried.to)?;
        peer.ways[at].1.failures = 0;
        peer.found = None;
        if at == 0 {
            return None;
        }
        peer.probe.get_or_insert_with(|| Probe::first(now));
        let (around, best) = peer.ways[0].clone();
        let why = best.last.filter(|_| best.failures > 0 && !peer.told)?;
        peer.told = true;
        Some(Detour { endpoint: tried.endpoint, around, why })
    }

    /// An endpoint to look at now, and where: the answer is [`Ways::probing`]. To be asked in each turn.
    pub fn probe(&mut self, now: Time) -> Option<(SocketAddr, Address)> {
        self.peers.iter().find_map(|(endpoint, peer)| {
            let probe = peer.probe.as_ref().filter(|probe| probe.under_way.is_none() && probe.at <= now)?;
            let (_, over) = self.up_at(*endpoint, peer)?;
            let better = probe.looks.checked_rem(over)?;
            Some((*endpoint, peer.ways[better].0.clone()))
        })
    }

    /// The connection to a peer that is up, and over which of its ways.
    fn up_at(&self, endpoint: SocketAddr, peer: &Peer) -> Option<(ConnId, usize)> {
        let (conn, tried) = self.tried.iter().find(|(_, tried)| tried.endpoint == endpoint && tried.up.is_some())?;
        Some((*conn, peer.place(&tried.to)?))
    }

    /// It is being looked there.
    pub fn probing(&mut self, endpoint: SocketAddr, to: Address, conn: ConnId) {
        if let Some(probe) = self.peers.get_mut(&endpoint).and_then(|peer| peer.probe.as_mut()) {
            probe.under_way = Some((conn, to));
            probe.looks += 1;
        }
    }

    /// Whether a connection of ours is such a look.
    pub fn is_probe(&self, conn: ConnId) -> bool {
        self.peers.values().any(|peer| peer.looks(conn).is_some())
    }

    /// It was looked: gives the connection that is to make room, if the way `leads` there. Where it does not, or nobody makes room, the next
    /// look is later.
    pub fn probed(&mut self, now: Time, conn: ConnId, leads: bool) -> Option<ConnId> {
        let find = |(endpoint, peer): (&SocketAddr, &Peer)| Some((*endpoint, peer.looks(conn)?.clone()));
        let (endpoint, to) = self.peers.iter().find_map(find)?;
        let theirs = self.up_at(endpoint, &self.peers[&endpoint]);
        let peer = self.peers.get_mut(&endpoint)?;
        if let Some(probe) = &mut peer.probe {
            probe.under_way = None;
            probe.pause = Span(probe.pause.0 * 2).min(PROBE_MAX);
            probe.at = now + probe.pause;
        }
        // There may be no such way any more.
        let way = peer.place(&to)?;
        if !leads {
            peer.ways[way].1.failures += 1;
            return None;
        }
        peer.ways[way].1.failures = 0;
        let (conn, _) = theirs.filter(|(_, over)| *over > way)?;
        peer.found = Some(way);
        Some(conn)
    }

    /// When to ask for the next look.
    pub fn next_deadline(&self) -> Option<Time> {
        let waits = self.peers.iter().filter_map(|(endpoint, peer)| {
            let probe = peer.probe.as_ref().filter(|probe| probe.under_way.is_none())?;
            self.up_at(*endpoint, peer).is_some_and(|(_, over)| over > 0).then_some(probe.at)
        });
        waits.min()
    }

    /// A connection is over; one that is not ours changes nothing.
    pub fn down(&mut self, now: Time, conn: ConnId, why: Reason) {
        let Some(Tried { endpoint, to, up }) = self.tried.remove(&conn) else { return };
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        let found = peer.found.take();
        let Some(at) = peer.place(&to) else { return };
        let ours = matches!(why, Reason::Closed | Reason::Stopping);
        let lasted = up.is_some_and(|up| ours || now.since(up) >= BRIEF);
        // Of a peer that says no it is known that the way leads there, as of one that ends a connection; of one that falls silent it is not.
        let refused = matches!(
            why,
            Reason::Busy
                | Reason::Fenced
                | Reason::Denied
                | Reason::NotServed
                | Reason::Incompatible
                | Reason::Unauthenticated
        );
        let silent = matches!(why, Reason::PeerSilent | Reason::ConnectTimeout | Reason::HandshakeTimeout);
        if !ours {
            peer.ways[at].1.last = Some(why);
        }
        if lasted && at == 0 {
            // What was looked at led here. A look that is under way comes to its end.
            peer.told = false;
            peer.probe = peer.probe.take().filter(|probe| probe.under_way.is_some());
        }
        if refused && up.is_none() {
            return;
        }
        if lasted && !silent {
            let sound = || peer.ways.iter().position(|(_, health)| health.failures == 0);
            peer.next = found.or_else(sound).unwrap_or(at);
            return;
        }
        peer.ways[at].1.failures += 1;
        peer.next = (at + 1) % peer.ways.len();
        if let Some(probe) = peer.probe.as_mut().filter(|_| at == 0 && up.is_some()) {
            // What was looked at last led here: not again so soon.
            probe.at = now + probe.pause;
        }
    }

    /// What a connection of ours goes over.
    pub fn over(&self, conn: ConnId) -> Option<&Address> {
        self.tried.get(&conn).map(|tried| &tried.to)
    }

    /// The ways to an endpoint that there is more than one to, best first, and how each has done.
    pub fn look(&self, endpoint: SocketAddr) -> Vec<WayView> {
        let up = |to: &Address| self.tried.values().any(|t| t.endpoint == endpoint && t.up.is_some() && t.to == *to);
        let ways = self.peers.get(&endpoint).into_iter().flat_map(|peer| &peer.ways);
        let view = |(to, health): &(Address, Health)| {
            let last = health.last.map(|why| why.to_string());
            WayView { to: to.to_string(), up: up(to), failures: health.failures, last }
        };
        ways.map(view).collect()
    }
}

fn ip(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Tcp(at) | Address::Rdma(at) => Some(at.ip()),
        Address::Unix(_) => None,
    }
}

impl Peer {
    /// The number of a way.
    fn place(&self, to: &Address) -> Option<usize> {
        self.ways.iter().position(|(way, _)| way == to)
    }

    /// Which way it is being looked over, if by this connection.
    fn looks(&self, conn: ConnId) -> Option<&Address> {
        let (by, to) = self.probe.as_ref()?.under_way.as_ref()?;
        (*by == conn).then_some(to)
    }
}

#[cfg(test)]
mod tests;
