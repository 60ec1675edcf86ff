//! A look inside a reactor, for `trine node show` and for tests.

use super::{Node, Visitor};
use crate::mail::{CopyView, DiskView, LinkView, View};
use crate::primary::PrimaryPhase;
use conductor_model::{BLOCK, Blocks, ShardId, Stamp};
use driver::ConnId;
use node_store::Store;
use std::collections::BTreeMap;
use wire::Reason;

impl<S: Store> Node<S> {
    /// Everything there is to see.
    pub fn view(&self) -> View {
        let mut refs: Vec<String> = self.iocb_holds.report().iter().map(ToString::to_string).collect();
        refs.extend(self.net.refs().iter().map(ToString::to_string));
        refs.sort();
        let mut counters = self.counters.all();
        counters.extend(net_counters(self.net.counters()));
        let stores = self.disks.iter().map(|disk| disk.store.counters());
        for (name, count) in stores.flat_map(page_counters) {
            *counters.entry(name).or_default() += count;
        }
        let mut requests: BTreeMap<ConnId, usize> = BTreeMap::new();
        for iocb in self.iocbs.iter().map(|(_, iocb)| iocb).filter(|iocb| !iocb.is_over()) {
            if let Some(conn) = iocb.conn {
                *requests.entry(conn).or_default() += 1;
            }
        }
        View {
            disks: self
                .disks
                .iter()
                .zip(&self.damage.by_disk)
                .map(|(d, (damaged, repaired))| {
                    let usage = d.store.usage();
                    DiskView {
                        disk: d.disk,
                        open: d.open,
                        capacity: usage.capacity.bytes(),
                        used: usage.used.bytes(),
                        damaged: *damaged,
                        repaired: *repaired,
                    }
                })
                .collect(),
            copies: self.replicas.keys().filter_map(|shard| self.copy_view(*shard)).collect(),
            sessions: self.sessions.view(
                |conn| requests.get(&conn).copied().unwrap_or(0),
                |conn| match self.visitors.get(&conn) {
                    Some(Visitor::Client { key }) => *key,
                    _ => None,
                },
                |session| self.ranges_of(session),
            ),
            links: self
                .links
                .all()
                .map(|(endpoint, link)| LinkView {
                    endpoint,
                    up: link.up.is_some(),
                    over: link.conn.and_then(|conn| self.ways.over(conn)).cloned(),
                    ways: self.ways.look(endpoint),
                })
                .collect(),
            refs,
            counters,
            traces: self.traces.iter().copied().collect(),
        }
    }

    fn copy_view(&self, shard: ShardId) -> Option<CopyView> {
        let replica = self.replicas.get(&shard)?;
        let primary = self.primaries.get(&shard);
        let role = match primary.map(|p| &p.phase) {
            None if replica.joined.is_some() => "replica: joined".to_owned(),
            None => "replica: not joined".to_owned(),
            Some(PrimaryPhase::Asking(_)) => "primary: asking".to_owned(),
            Some(PrimaryPhase::Joining) => "primary: joining".to_owned(),
            Some(PrimaryPhase::Settling(s)) => {
                format!("primary: settling, {} pieces left", s.left.len() + s.later.len() + s.running.len())
            }
            Some(PrimaryPhase::Serving) => match self.known_good_of(shard) {
                Some(stamp) => format!("primary: serving, good up to {stamp}"),
                None => "primary: serving".to_owned(),
            },
            Some(PrimaryPhase::Sealed) => "primary: sealed".to_owned(),
            Some(PrimaryPhase::Failed { why, .. }) => format!("primary: failed: {why}"),
        };
        let used = self.disks.get(replica.disk).map_or(Blocks(0), |disk| disk.store.used_by(replica.copy));
        let backlog = primary.map_or(0, |p| p.others().map(|m| self.waiting_legs(m.endpoint)).sum());
        Some(CopyView {
            shard,
            copy: replica.copy,
            epoch: replica.joined.map_or(replica.config.epoch, |(epoch, _)| epoch),
            config: replica.config.clone(),
            role,
            used,
            blocks: Blocks(u32::try_from(replica.size().0 / BLOCK as u64).unwrap_or(u32::MAX)),
            requests: primary.map_or(0, |p| p.requests.len()) + backlog,
            snapshots: self.disks[replica.disk].store.snapshots(replica.copy),
        })
    }

    /// True if nothing is in flight: every request answered, every hold given back. For tests of counts at rest.
    pub fn is_at_rest(&self) -> bool {
        self.waits.store.is_empty()
            && self.waits.replies.is_empty()
            && self.iocb_holds.live() == 0
            && self.iocbs.is_empty()
    }

    /// The stamp of the newest write that is finished everywhere.
    pub(super) fn known_good_of(&self, shard: ShardId) -> Option<Stamp> {
        let primary = self.primaries.get(&shard)?;
        Some(Stamp { epoch: primary.config.epoch, sequence: primary.known_good()? })
    }
}

/// What a store found of its own metadata, by name.
fn page_counters(store: node_store::Counters) -> [(&'static str, u64); 5] {
    [
        ("store.pages-patrolled", store.patrolled_pages),
        ("store.pages-healed", store.healed_pages),
        ("store.pages-unhealed", store.unhealed_pages),
        ("store.pages-damaged", store.damaged_pages),
        ("store.pages-lost", store.lost_pages),
    ]
}

/// The connections' counters by name.
fn net_counters(net: &tcp::Counters) -> impl Iterator<Item = (&'static str, u64)> {
    [
        ("net.accepted", net.accepted),
        ("net.established", net.established),
        ("net.frames-in", net.frames_in),
        ("net.frames-out", net.frames_out),
        ("net.bytes-in", net.bytes_in),
        ("net.bytes-out", net.bytes_out),
        ("net.recvs", net.recvs),
        ("net.sends", net.sends),
        ("net.timed-out", net.timed_out),
        ("net.stalls", net.stalls),
        ("net.stall-retries", net.stall_retries),
        ("net.stale-replies", net.stale_replies),
        ("net.refused", net.refused),
        ("net.strangers-displaced", net.strangers_displaced),
        ("net.accepts-paused", net.accepts_paused),
        ("net.sends-stuck", net.sends_stuck),
        ("net.frames-stuck", net.frames_stuck),
        ("net.over-budget", net.over_budget),
    ]
    .into_iter()
    .chain(Reason::ALL.into_iter().map(|reason| (closed_name(reason), net.closed_for(reason))))
}

/// The counter of connections that ended for `reason`.
fn closed_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Closed => "net.closed.by-us",
        Reason::Stopping => "net.closed.stopping",
        Reason::Goodbye => "net.closed.goodbye",
        Reason::PeerClosed => "net.closed.by-peer",
        Reason::Io => "net.closed.io",
        Reason::ConnectFailed => "net.closed.connect-failed",
        Reason::ConnectTimeout => "net.closed.connect-timeout",
        Reason::HandshakeTimeout => "net.closed.handshake-timeout",
        Reason::PeerSilent => "net.closed.peer-silent",
        Reason::RequestTimeout => "net.closed.request-timeout",
        Reason::BadFrame => "net.closed.bad-frame",
        Reason::BadPayload => "net.closed.bad-payload",
        Reason::BadHandshake => "net.closed.bad-handshake",
        Reason::Unexpected => "net.closed.unexpected",
        Reason::Credits => "net.closed.credits",
        Reason::Unauthenticated => "net.closed.unauthenticated",
        Reason::Busy => "net.closed.busy",
        Reason::Fenced => "net.closed.fenced",
        Reason::NotServed => "net.closed.not-served",
        Reason::Incompatible => "net.closed.incompatible",
        Reason::NoMemory => "net.closed.no-memory",
        Reason::Denied => "net.closed.denied",
        Reason::Tls => "net.closed.tls",
    }
}
