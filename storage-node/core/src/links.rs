//! Connections to the reactors that hold the other copies: one per endpoint, opened on first use, made again when lost.
//!
//! A link carries replica writes, Joins and Promises. Replica writes wait in its backlog for credits; some credits are kept for Joins
//! and Promises, so that settling and leases never wait behind writes (rule 21).

use crate::backlog::{Backlog, RemoteLeg};
use crate::limits::{LINK_RESERVED_CREDITS, RECONNECT_MAX, RECONNECT_MIN};
use conductor_model::{DiskId, Epoch, OpenId, ShardId};
use driver::{ConnId, Span, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// One link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) conn: Option<ConnId>,
    /// Established; with what the peer's Hello says about its disks.
    pub(crate) up: Option<Peer>,
    pub(crate) backlog: Backlog,
    /// The newest promise: when the keepalive that it answers was sent, and until when it holds.
    pub(crate) promise: Option<Promise>,
    pub(crate) promise_asked: bool,
    /// Shards that its promises do not count for, and the epochs that wait there; and the generation of that list (rule 13).
    pub(crate) withheld: BTreeMap<ShardId, Epoch>,
    pub(crate) withheld_known: u64,
    /// Since when a sign of life is waited for: since the link was wanted or went down, or a keepalive is unanswered.
    quiet_since: Option<Time>,
    /// It was established once.
    pub(crate) met: bool,
    pub(crate) next_keepalive: Time,
    /// What each of its disks has left, as last told with a promise, or with a copy's answer to a Join.
    pub(crate) left: BTreeMap<DiskId, Left>,
    /// Shards that need this link.
    pub(crate) users: usize,
    retry_at: Time,
    backoff: Span,
}

/// The other side of an established link.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) opens: Vec<(DiskId, OpenId)>,
}

impl Peer {
    /// This process's opening of `disk`.
    pub(crate) fn open_of(&self, disk: DiskId) -> Option<OpenId> {
        self.opens.iter().find(|(d, _)| *d == disk).map(|(_, open)| *open)
    }
}

/// What a disk elsewhere has left.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Left {
    /// Free blocks.
    pub(crate) blocks: u64,
    /// Pages of metadata for what takes no blocks.
    pub(crate) pages: u32,
}

impl Link {
    /// What this disk has left; nothing, as long as nobody has said.
    pub(crate) fn left_on(&self, disk: DiskId) -> Left {
        self.left.get(&disk).copied().unwrap_or_default()
    }
}

/// A node's word not to join a newer epoch under another primary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) sent: Time,
    pub(crate) until: Time,
}

/// All links of one reactor.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: BTreeMap<SocketAddr, Link>,
    by_conn: BTreeMap<ConnId, SocketAddr>,
}

impl Links {
    /// A shard needs the link to `to`.
    pub(crate) fn need(&mut self, now: Time, to: SocketAddr) {
        self.links.entry(to).or_insert_with(|| Link::new(now)).users += 1;
    }

    /// A shard does not need it any more. With its last user gone the connection is returned, to be closed.
    pub(crate) fn release(&mut self, to: SocketAddr) -> Option<ConnId> {
        let link = self.links.get_mut(&to)?;
        link.users = link.users.saturating_sub(1);
        if link.users > 0 {
            return None;
        }
        let gone = self.links.remove(&to)?;
        self.by_conn.retain(|_, at| *at != to);
        gone.conn
    }

    pub(crate) fn get(&self, to: SocketAddr) -> Option<&Link> {
        self.links.get(&to)
    }

    /// All of them, with the connections there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SocketAddr, &Link)> {
        self.links.iter().map(|(to, link)| (*to, link))
    }

    pub(crate) fn get_mut(&mut self, to: SocketAddr) -> Option<&mut Link> {
        self.links.get_mut(&to)
    }

    /// The endpoint that a connection of ours leads to.
    pub(crate) fn endpoint(&self, conn: ConnId) -> Option<SocketAddr> {
        self.by_conn.get(&conn).copied()
    }

    /// A connection to `to` is being made.
    pub(crate) fn connecting(&mut self, to: SocketAddr, conn: ConnId) {
        if let Some(link) = self.links.get_mut(&to) {
            link.conn = Some(conn);
            self.by_conn.insert(conn, to);
        }
    }

    /// A connection is down: the endpoint it led to, if it was one of ours.
    pub(crate) fn down(&mut self, now: Time, conn: ConnId) -> Option<SocketAddr> {
        let to = self.by_conn.remove(&conn)?;
        let link = self.links.get_mut(&to)?;
        if link.conn == Some(conn) {
            if link.up.is_some() {
                link.backoff = RECONNECT_MIN;
            }
            link.conn = None;
            link.up = None;
            link.backlog.cut();
            link.promise_asked = false;
            link.waits(now);
            link.retry_at = now + link.backoff;
            link.backoff = Span((link.backoff.0 * 2).min(RECONNECT_MAX.0));
        }
        Some(to)
    }

    /// This reactor itself was away for a while: what it did not hear counts from now on.
    pub(crate) fn forgive(&mut self, now: Time) {
        self.links.values_mut().filter(|link| link.quiet_since.is_some()).for_each(|link| link.quiet_since = Some(now));
    }

    /// Endpoints whose next attempt is due.
    pub(crate) fn due(&self, now: Time) -> Vec<SocketAddr> {
        self.links.iter().filter(|(_, l)| l.conn.is_none() && l.retry_at <= now).map(|(to, _)| *to).collect()
    }

    /// Endpoints whose next keepalive is due.
    pub(crate) fn keepalives_due(&self, now: Time) -> Vec<SocketAddr> {
        let due = |l: &Link| l.up.is_some() && !l.promise_asked && l.next_keepalive <= now;
        self.links.iter().filter(|(_, l)| due(l)).map(|(to, _)| *to).collect()
    }

    /// Established connections over which nothing was heard for longer than there is `patience` with an endpoint.
    pub(crate) fn silent(&self, now: Time, patience: impl Fn(SocketAddr) -> Span) -> Vec<ConnId> {
        let silent = self.links.iter().filter(|(to, link)| link.up.is_some() && link.silence(now) >= patience(**to));
        silent.filter_map(|(_, link)| link.conn).collect()
    }

    /// True if nothing is linked: then no timer is needed either.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

impl Link {
    fn new(now: Time) -> Self {
        Self {
            conn: None,
            up: None,
            backlog: Backlog::default(),
            promise: None,
            promise_asked: false,
            withheld: BTreeMap::new(),
            withheld_known: 0,
            quiet_since: Some(now),
            met: false,
            next_keepalive: Time::default(),
            left: BTreeMap::new(),
            users: 0,
            retry_at: Time::default(),
            backoff: RECONNECT_MIN,
        }
    }

    /// A sign of life is waited for from now on, if none is already.
    pub(crate) fn waits(&mut self, now: Time) {
        self.quiet_since.get_or_insert(now);
    }

    /// The peer was heard.
    pub(crate) fn heard(&mut self) {
        self.quiet_since = None;
    }

    /// For how long nothing was heard although something should have been.
    pub(crate) fn silence(&self, now: Time) -> Span {
        self.quiet_since.map_or(Span(0), |since| now.since(since))
    }

    /// The connection, if a replica write may use one of its `credits`.
    pub(crate) fn conn_for_writes(&self, credits: u16) -> Option<ConnId> {
        (self.up.is_some() && credits > LINK_RESERVED_CREDITS).then_some(self.conn).flatten()
    }

    /// The next leg that may be sent, and over which connection, which has so many `credits`.
    pub(crate) fn next_leg(&mut self, credits: u16) -> Option<(ConnId, RemoteLeg)> {
        let conn = self.conn_for_writes(credits)?;
        let beside = self.up.as_ref().is_some_and(|peer| peer.opens.len() > 1);
        Some((conn, self.backlog.next(credits - LINK_RESERVED_CREDITS, beside)?))
    }
}
