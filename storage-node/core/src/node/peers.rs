//! Links to the reactors that hold the other copies: connecting, keepalives, what happens when one is lost.

use super::Node;
use super::wishes::OPENED_ANEW;
use crate::backlog::RemoteLeg;
use crate::iocb::LegState;
use crate::limits::{MEMBER_SILENT, WAY_SILENT};
use crate::links::Peer;
use crate::mail::Letter;
use crate::primary::{JoinState, Primary, PrimaryPhase};
use conductor_model::api::{MembershipChange, Reachable};
use conductor_model::{CopyId, DiskId, Member, OpenId, ShardId, TransportAddress};
use driver::{Address, ConnId, Outbox, Time};
use node_store::Store;
use std::net::SocketAddr;
use wire::{HelloInfo, Reason};

impl<S: Store> Node<S> {
    /// Who this reactor is, to a peer: its node, its process, and every disk with its open id (rule 2).
    pub fn hello_info(options: &super::NodeOptions, disks: &[super::Disk<S>]) -> HelloInfo {
        let mut info = HelloInfo::new(wire::Role::Node, options.node.to_string(), options.process);
        info.lane = options.lane;
        info.opens = disks.iter().map(|d| (d.disk.0, d.open.0)).collect();
        info
    }

    /// Connects what is due, renews promises.
    pub(super) fn tick_links(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        if self.stopping {
            return;
        }
        // Half-open: a new connection shows whether anybody is there.
        let Self { links, ways, .. } = self;
        let patience = |to| if ways.are_several(to) { WAY_SILENT } else { MEMBER_SILENT };
        for conn in links.silent(now, patience) {
            let several = self.links.endpoint(conn).is_some_and(|to| self.ways.are_several(to));
            self.counters.count(if several { "link.silent-way" } else { "link.silent" });
            self.net.close(now, conn, Reason::PeerSilent, out);
        }
        for to in self.links.due(now) {
            let info = Self::hello_info(&self.options, &self.disks);
            let attempt = self.ways.attempt(to);
            let over = attempt.to.clone();
            let conn = self.net.connect(now, attempt, info, out);
            self.ways.connecting(conn, to, over);
            self.counters.count("link.connecting");
            self.links.connecting(to, conn);
        }
        if let Some((endpoint, to)) = self.ways.probe(now) {
            let conn = self.net.probe(now, to.clone(), out);
            self.ways.probing(endpoint, to, conn);
        }
        for to in self.links.keepalives_due(now) {
            self.ask_promise(now, to);
        }
    }

    /// Where else than at the address that is its name each reactor listens that does.
    pub(super) fn know_ways(&mut self, now: Time, all: Vec<Reachable>) {
        let way = |address| match address {
            TransportAddress::Tcp(at) => Address::Tcp(at),
            TransportAddress::Rdma(at) => Address::Rdma(at),
        };
        let ways = |at: Reachable| (at.endpoint, at.addresses.into_iter().map(way).collect());
        self.ways.know(now, all.into_iter().map(ways));
    }

    /// A connection is established. If it is a link of ours: who is there, and what waits for it?
    pub(super) fn link_up(&mut self, now: Time, conn: ConnId, peer: &HelloInfo, out: &mut dyn Outbox<Letter>) {
        let Some(to) = self.links.endpoint(conn) else { return };
        self.counters.count("link.up");
        if let Some(detour) = self.ways.up(now, conn) {
            self.counters.count("link.detour");
            out.post(Letter::Detour(detour));
        }
        let opens: Vec<(DiskId, OpenId)> = peer.opens.iter().map(|(d, o)| (DiskId(*d), OpenId(*o))).collect();
        let peer = Peer { opens };
        if let Some(link) = self.links.get_mut(to) {
            link.up = Some(peer.clone());
            link.met = true;
            link.next_keepalive = now;
            link.heard();
            (link.withheld, link.withheld_known) = Default::default();
        }
        self.check_openings(now, to, &peer, out);
        self.join_as_named(now, to, &peer, out);
        self.send_joins(now, to, out);
        self.drain_backlog(now, to);
    }

    /// Are the members at this address, behind an established link, those that the configurations name? One that was opened anew has
    /// forgotten its membership.
    pub(super) fn check_openings(&mut self, now: Time, to: SocketAddr, peer: &Peer, out: &mut dyn Outbox<Letter>) {
        if driver::mutant::on("restarted_node_trusted") {
            return;
        }
        // Its epoch is over (rule 2, rule 10). Also while a new epoch is asked for: the opening that the question names may be gone
        // again, and the conductor refuses it for ever.
        let reopened: Vec<(ShardId, _, OpenId)> = self
            .primaries
            .iter()
            .filter(|(_, p)| match &p.phase {
                PrimaryPhase::Serving | PrimaryPhase::Settling(_) | PrimaryPhase::Sealed | PrimaryPhase::Joining => {
                    true
                }
                PrimaryPhase::Asking(change) => matches!(change, MembershipChange::Reopened(_)),
                PrimaryPhase::Failed { .. } => false,
            })
            .flat_map(|(shard, p)| {
                let wrong = |m: &&Member| m.endpoint == to && peer.open_of(m.disk).is_some_and(|o| o != m.open);
                p.others().filter(wrong).filter_map(|m| Some((*shard, m.copy, peer.open_of(m.disk)?)))
            })
            .collect();
        self.void_promises(to, peer);
        for (shard, copy, open) in reopened {
            self.counters.count("member.reopened");
            if self.can_do_without(shard, copy) {
                // It joins nothing for a while after its start (rule 14): the others need not wait for that.
                self.counters.count("member.left-behind");
                if let Some(primary) = self.primaries.get_mut(&shard) {
                    primary.failed.entry(copy).or_insert(OPENED_ANEW);
                    // Until it is dropped it may be anybody's: nothing is read (rule 9).
                    primary.lease.void(copy);
                }
            } else {
                self.ask_reopened(now, shard, copy, open, out);
            }
        }
    }

    /// Who was promised by a process that is gone is not: its successor's promises are about nothing that it has joined (rule 9). Also
    /// of a copy that is being filled, and of one whose disk the new process has elsewhere, or not at all.
    fn void_promises(&mut self, to: SocketAddr, peer: &Peer) {
        for primary in self.primaries.values_mut() {
            let others = primary.config.members.iter().filter(|m| m.endpoint == to && m.copy != primary.config.primary);
            for member in others.filter(|m| peer.open_of(m.disk) != Some(m.open)) {
                primary.lease.void(member.copy);
            }
        }
    }

    /// Are enough other copies in sync, and there under the openings that this serving epoch names?
    fn can_do_without(&self, shard: ShardId, copy: CopyId) -> bool {
        let Some(primary) = self.primaries.get(&shard).filter(|p| p.is_serving()) else { return false };
        let there = |m: &&Member| {
            let peer = self.links.get(m.endpoint).and_then(|link| link.up.as_ref());
            m.copy != copy && peer.is_some_and(|peer| peer.open_of(m.disk) == Some(m.open))
        };
        1 + primary.others().filter(there).count() >= usize::from(primary.config.min_copies)
    }

    /// The conductor was asked about an opening behind `to` that is gone again, and the configuration names the present one: the
    /// old process was met by a connection that had outlived it. Nobody will grant that question.
    fn join_as_named(&mut self, now: Time, to: SocketAddr, peer: &Peer, out: &mut dyn Outbox<Letter>) {
        let moot = |p: &Primary| match &p.phase {
            PrimaryPhase::Asking(MembershipChange::Reopened(asked)) => p.others().any(|m| {
                let gone = asked.iter().any(|(copy, open)| *copy == m.copy && *open != m.open);
                gone && m.endpoint == to && peer.open_of(m.disk) == Some(m.open)
            }),
            _ => false,
        };
        let shards: Vec<ShardId> = self.primaries.iter().filter(|(_, p)| moot(p)).map(|(shard, _)| *shard).collect();
        for shard in shards {
            self.counters.count("ask.moot");
            self.join_again(now, shard, out);
        }
    }

    /// A connection is down, whosesoever.
    pub(super) fn conn_down(&mut self, now: Time, conn: ConnId, reason: Reason, out: &mut dyn Outbox<Letter>) {
        if self.ways.is_probe(conn) {
            // What it carries is sent again on the next one, which takes the better way.
            if let Some(worse) = self.ways.probed(now, conn, reason == Reason::Closed) {
                self.counters.count("link.made-room");
                self.net.close(now, worse, Reason::Closed, out);
            }
            return;
        }
        self.ways.down(now, conn, reason);
        self.visitors.remove(&conn);
        self.sessions.gone(conn);
        self.drop_unstamped(now, conn);
        self.ranges_left(now);
        let Some(to) = self.links.down(now, conn) else { return };
        self.counters.count("link.down");
        for primary in self.primaries.values_mut() {
            let there: Vec<_> = primary.listed_others().filter(|m| m.endpoint == to).map(|m| m.copy).collect();
            for copy in there {
                if let Some(state @ JoinState::Sent) = primary.joins.get_mut(&copy) {
                    *state = JoinState::Unsent;
                }
            }
        }
    }

    /// Legs that wait for the link to `to`, for the view.
    pub(super) fn waiting_legs(&self, to: SocketAddr) -> usize {
        let waits = |w: &&RemoteLeg| {
            self.iocbs.get(w.iocb).is_some_and(|i| {
                i.stamp == Some(w.stamp) && i.legs.iter().any(|l| l.copy == w.copy && l.state == LegState::Waiting)
            })
        };
        self.links.get(to).map_or(0, |l| l.backlog.iter().filter(waits).count())
    }

    /// Gives up one use of a link; closes it with the last.
    pub(super) fn release_link(&mut self, now: Time, to: SocketAddr, out: &mut dyn Outbox<Letter>) {
        if let Some(conn) = self.links.release(to) {
            self.net.close(now, conn, Reason::Closed, out);
        }
    }
}
