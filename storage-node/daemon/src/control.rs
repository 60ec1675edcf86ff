//! The node's side of the conversation with the conductor: registration, heartbeats, questions.
//!
//! Four threads: a heartbeat may be held for half a second, and neither a question of a primary nor a word on an order must wait for
//! it; and a node that is not heard for two seconds is taken for dead, so that a heartbeat waits neither for reactors that are asked
//! what their copies hold, nor for long for one that does not take its mail. What is heard is handed to the reactors before `after`
//! says that it was heard. An unreachable conductor is asked again with growing pauses; I/O goes on.

use crate::desk::{Counts, Desk, Lane, REPORTS_AT_ONCE};
use crate::lanes::Lanes;
use crate::limits::{
    ASKS_AT_ONCE, BEAT_PAUSE, CONDUCTOR_RETRY, CONDUCTOR_RETRY_MAX, COPIES_PER_COUNT, COUNT, COUNT_EVERY, HAND_ON,
    LOOK, MAIL_AGAIN, PREDECESSOR, REFUSED_RETRY_MAX,
};
use crate::look::MemoryLook;
use conductor_client::{Client, Error as Refusal};
use conductor_model::api::{
    DiskIntegrity, DiskReport, Heartbeat, HeartbeatAnswer, Holding, NodeSession, NodeSessions, RangeInfo, Register,
    Report,
};
use conductor_model::{ClusterId, Commit, Configuration, DiskId, NodeId};
use node_core::{Mail, RangeView, SessionView, View};
use reactor::{Mailbox, NotSent};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who talks, and to whom.
pub(crate) struct Control {
    pub(crate) node: NodeId,
    pub(crate) memory: MemoryLook,
    pub(crate) host: String,
    pub(crate) rack: String,
    pub(crate) cluster: ClusterId,
    pub(crate) client: Client,
    pub(crate) desk: Arc<Desk>,
    pub(crate) lanes: Lanes,
    /// It has RDMA: its reactors are told who else has.
    pub(crate) rdma: bool,
    /// As they were opened, in the order of the reactors.
    pub(crate) disks: Mutex<Vec<(Lane, DiskReport)>>,
    /// Disks came or went that the conductor has not heard of.
    pub(crate) regrouped: AtomicBool,
    /// The newest commit that the conductor has spoken of (rule 12).
    pub(crate) seen: AtomicU64,
}

/// A session as the conductor is told of it.
fn told(session: &SessionView) -> NodeSession {
    NodeSession {
        client: session.client.clone(),
        volume: session.volume,
        snapshot: session.snapshot,
        generation: session.generation,
        read_only: session.read_only,
        key: session.key,
        ranges: session.ranges.iter().map(range).collect(),
        connections: u32::try_from(session.lanes).unwrap_or(u32::MAX),
        requests: u32::try_from(session.requests).unwrap_or(u32::MAX),
    }
}

fn range(of: &RangeView) -> RangeInfo {
    let RangeView { shard, range, write, held } = *of;
    RangeInfo { shard, offset: range.from.bytes(), length: range.count.bytes(), write, held }
}

/// Growing pauses.
#[derive(Debug)]
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) fn new() -> Self {
        Self(CONDUCTOR_RETRY)
    }
    pub(crate) fn next(&mut self) -> Duration {
        self.up_to(CONDUCTOR_RETRY_MAX)
    }
    /// A conductor that says no will hardly think otherwise within a second.
    fn after(&mut self, why: &Refusal) -> Duration {
        self.up_to(if why.is_temporary() { CONDUCTOR_RETRY_MAX } else { REFUSED_RETRY_MAX })
    }
    fn up_to(&mut self, most: Duration) -> Duration {
        let pause = self.0.min(most);
        self.0 = (pause * 2).min(most);
        pause
    }
}

impl Control {
    /// Registers, as often as it takes. A refusal is final; but for that of a conductor which heard just now of whose place this one takes.
    pub(crate) fn register_first(&self) -> Result<(), Refusal> {
        let mut pauses = Pauses::new();
        let predecessor = Instant::now() + PREDECESSOR;
        loop {
            match self.register(Some(Vec::new())) {
                Err(why) if why.is_temporary() || (why.is_node_elsewhere() && Instant::now() < predecessor) => {
                    self.note(Some(&why));
                    if self.desk.pause(pauses.next()) {
                        return Ok(());
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Without what there is to say, the process ends: nothing is said.
    fn register(&self, attached: Option<Vec<Holding>>) -> Result<(), Refusal> {
        let Some(attached) = attached else { return Ok(()) };
        let disks: Vec<DiskReport> = self.disks().iter().map(|(_, report)| report.clone()).collect();
        let (cluster, seen) = (self.cluster, Commit(self.seen.load(Ordering::Relaxed)));
        let register = Register {
            node: self.node,
            host: self.host.clone(),
            rack: self.rack.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            disks,
            cluster,
            seen,
            attached,
        };
        let registered = self.client.register(&register)?;
        if registered.cluster != self.cluster {
            let address = self.client.address().to_owned();
            let what = format!("it leads cluster {}, this node belongs to {}", registered.cluster, self.cluster);
            return Err(Refusal::Protocol { address, what });
        }
        self.note(None);
        self.saw(registered.commit);
        tracing::info!(node = %self.node, commit = registered.commit, "registered");
        Ok(())
    }

    fn saw(&self, commit: u64) {
        self.seen.fetch_max(commit, Ordering::Relaxed);
    }

    /// Copies and usage as they are now, for a conductor that has forgotten this node or is in doubt (rule 12); and who uses volumes here.
    /// Until all reactors have said so: a conductor goes on from the newest epochs that it hears of. `None` if the process ends.
    fn refresh(&self) -> Option<Vec<Holding>> {
        match self.regrouped.swap(false, Ordering::Relaxed) {
            true => tracing::info!("a disk was added or taken out: registering again"),
            false if self.desk.conductor_trouble().is_some() => tracing::debug!("registering again"),
            false => tracing::warn!("the conductor does not know this node as it is: registering again"),
        }
        let mut pauses = Pauses::new();
        let views = loop {
            let views = self.look_within(LOOK);
            match as_they_are(&mut self.disks(), &views) {
                Ok(()) => break views,
                Err(lane) => {
                    tracing::warn!(lane, "a reactor does not say what its copies are: not registering without that");
                }
            }
            if self.desk.pause(pauses.next()) {
                return None;
            }
        };
        // Readers of snapshots have nothing attached.
        let sessions = views.values().flat_map(|view| &view.sessions).filter(|s| s.snapshot.is_none());
        let holding = |s: &SessionView| Holding {
            volume: s.volume,
            generation: s.generation,
            client: s.client.clone(),
            read_only: s.read_only,
            shared: s.shared,
        };
        Some(sessions.map(holding).collect())
    }

    /// A reactor with disks that were just opened: known from the next heartbeat on.
    pub(crate) fn begin_lane(&self, lane: Lane, mailbox: Mailbox<Mail>, disks: Vec<DiskReport>) {
        self.desk.begin_lane(lane);
        self.lanes.add(lane, mailbox, disks.iter().map(|d| d.disk));
        let mut all = self.disks();
        all.extend(disks.into_iter().map(|d| (lane, d)));
        self.regrouped.store(true, Ordering::Relaxed);
    }

    /// Disks that were emptied as it was wanted: the conductor does not hear of them any more. A reactor without disks ends, and lets go
    /// of them; of one that shares its reactor with others the file stays open until the node is started again.
    fn retire(&self, empty: &[DiskId]) {
        for disk in empty {
            let mut disks = self.disks();
            if disks.len() < 2 || disks.iter().all(|(_, d)| d.disk != *disk) {
                continue;
            }
            disks.retain(|(_, d)| d.disk != *disk);
            self.regrouped.store(true, Ordering::Relaxed);
            drop(disks);
            let ended = self.lanes.retire(*disk);
            if let Some(lane) = ended {
                self.desk.end_lane(lane);
            }
            tracing::info!(%disk, reactor_ends = ended.is_some(), "the disk is empty and taken out: start this node without it from now on");
        }
    }

    /// A look at all reactors, and at what their rings did.
    pub(crate) fn look(&self) -> BTreeMap<Lane, (View, Option<reactor::Counters>)> {
        let ring = |lane| self.lanes.mailbox(lane).and_then(|mailbox| mailbox.counters(LOOK));
        self.look_within(LOOK).into_iter().map(|(lane, view)| (lane, (view, ring(lane)))).collect()
    }

    fn look_within(&self, limit: Duration) -> BTreeMap<Lane, View> {
        let number = self.desk.begin_look();
        for mailbox in self.lanes().filter_map(|lane| self.lanes.mailbox(lane)) {
            // One that has ended or is stuck is missing in the answer.
            let _ = mailbox.send(Mail::Look(number));
        }
        self.desk.finish_look(number, limit)
    }

    /// The thread that counts what copies hold, and what damage was met on disks, and tells who uses them.
    pub(crate) fn count(&self) {
        loop {
            let views = self.look_within(COUNT);
            let copies: Vec<_> = views.values().flat_map(|v| &v.copies).map(|c| (c.copy, c.used.bytes())).collect();
            let disks = views.values().flat_map(|v| &v.disks);
            let integrity = disks.map(|d| DiskIntegrity { disk: d.disk, damaged: d.damaged, repaired: d.repaired });
            let pause = COUNT_EVERY * u32::try_from(1 + copies.len() / COPIES_PER_COUNT).unwrap_or(u32::MAX);
            self.desk.counted(Counts { integrity: integrity.collect(), copies });
            let sessions = views.values().flat_map(|view| &view.sessions).map(told).collect();
            // For people; what was not heard is said again with the next count.
            if let Err(why) = self.client.sessions(&NodeSessions { node: self.node, sessions }) {
                tracing::debug!(%why, "the conductor does not take the sessions");
            }
            if self.desk.wait_to_count(pause) {
                return;
            }
        }
    }

    /// The heartbeat thread.
    pub(crate) fn beat(&self) {
        let (mut after, mut pauses, mut named, mut limited) = (0, Pauses::new(), false, false);
        while !self.desk.pause(BEAT_PAUSE) {
            let Counts { copies, integrity } = self.desk.counts();
            let dropped = self.desk.deleted();
            let beat = Heartbeat {
                node: self.node,
                after,
                disks: self
                    .disks()
                    .iter()
                    .map(|(_, d)| (d.disk, d.open, self.desk.used(d.disk).unwrap_or(d.used)))
                    .collect(),
                troubles: self.desk.troubles(),
                dropped: dropped.clone(),
                copies,
                integrity,
                filling: self.desk.fillings(),
                failed: self.desk.failed().into_iter().collect(),
            };
            let sent = reactor::clock::now();
            let outcome = match self.client.heartbeat(&beat) {
                Ok(answer) => {
                    self.desk.forget_deleted(&dropped);
                    let (version, undisputed, rate) = (answer.version, answer.undisputed, answer.fill_rate);
                    // Each time while there is one, as a reactor may be new, and once when it is lifted.
                    if limited || rate.is_some() {
                        let until = Some(Instant::now() + HAND_ON);
                        let lifted =
                            self.lanes().all(|lane| self.deliver(lane, Mail::FillRate(rate), until)) && rate.is_none();
                        limited = !lifted;
                    }
                    self.retire(&answer.retire);
                    self.saw(answer.commit);
                    let (taken, left): (Vec<_>, Vec<_>) =
                        self.hand_on(answer, &mut named).into_iter().partition(|(_, taken)| *taken);
                    if left.is_empty() {
                        after = version;
                    }
                    // Behind what it said of other primaries. Not waited for: the next one says as much.
                    let until = Some(Instant::now());
                    let lanes = taken.into_iter().filter(|_| undisputed);
                    lanes.for_each(|(lane, _)| _ = self.deliver(lane, Mail::Heard(sent), until));
                    self.note(None);
                    pauses = Pauses::new();
                    continue;
                }
                Err(why) if why.is_unknown_node() => {
                    after = 0;
                    let attached = self.refresh();
                    self.register(attached)
                }
                Err(why) => Err(why),
            };
            // The conductor has not heard it, or has forgotten it.
            self.desk.count_again();
            if let Err(why) = outcome {
                self.note(Some(&why));
                self.desk.pause(pauses.after(&why));
            }
        }
    }

    /// Turns an answer into mail; `named`: the last one named orders. Says of each reactor whether it took its own: one that did not ends, or is
    /// told again, and keeps nothing from the others.
    fn hand_on(&self, answer: HeartbeatAnswer, named: &mut bool) -> Vec<(Lane, bool)> {
        let until = Some(Instant::now() + HAND_ON);
        let lane_of = self.lanes.of_disk();
        let all: BTreeSet<Lane> = self.lanes().collect();
        let mut assign: BTreeMap<Lane, Vec<_>> = BTreeMap::new();
        for config in answer.assignments {
            let primary = config.primary_member().filter(|member| member.node == self.node);
            if primary.is_some_and(|member| !lane_of.contains_key(&member.disk)) {
                tracing::warn!(shard = %config.shard, "assigned a shard on a disk that is not here");
            }
            for lane in lanes_of(&config, &lane_of, &all) {
                assign.entry(lane).or_default().push(config.clone());
            }
        }
        let mut reachable = answer.reachable;
        if !self.rdma {
            let others = reachable.iter_mut().flatten();
            others.for_each(|other| other.addresses.retain(|address| !address.is_rdma()));
        }
        // Named in full each time: an answer without any ends what the last one named, once.
        let orders = *named || !answer.orders.is_empty();
        let some = |list: bool, mail: Mail| list.then_some(mail);
        let mail_of = |configs: Option<Vec<_>>| {
            [
                // Before the epochs in which it counts.
                answer.held.clone().map(Mail::AbortedFillings),
                configs.map(Mail::Assign),
                some(orders, Mail::Orders(answer.orders.clone())),
                reachable.clone().map(Mail::Reachable),
                some(!answer.work.is_empty(), Mail::Work(answer.work.clone())),
                some(!answer.generations.is_empty(), Mail::Generations(answer.generations.clone())),
                some(!answer.readers.is_empty(), Mail::Readers(answer.readers.clone())),
                answer.keys.clone().map(Mail::Keys),
                some(!answer.drop.is_empty(), Mail::Delete(answer.drop.clone())),
            ]
        };
        let lanes: BTreeSet<Lane> = all.into_iter().chain(assign.keys().copied()).collect();
        let handed = lanes.into_iter().map(|lane| {
            let mut mails = mail_of(assign.remove(&lane)).into_iter().flatten();
            (lane, mails.all(|mail| self.deliver(lane, mail, until)))
        });
        let handed: Vec<(Lane, bool)> = handed.collect();
        // What was not taken may have been the end of what was named.
        *named = !answer.orders.is_empty() || (orders && handed.iter().any(|(_, taken)| !taken));
        handed
    }

    /// The thread that asks for changes of shards.
    pub(crate) fn ask(&self) {
        let mut pauses = Pauses::new();
        loop {
            let asks = self.desk.take_asks(ASKS_AT_ONCE);
            if asks.is_empty() {
                return;
            }
            let (lanes, requests): (Vec<Lane>, Vec<_>) = asks.into_iter().unzip();
            match self.client.membership(&requests) {
                Ok(answers) => {
                    pauses = Pauses::new();
                    for ((lane, request), answer) in lanes.into_iter().zip(requests).zip(answers) {
                        self.deliver(lane, Mail::Membership(request.shard, answer), None);
                    }
                }
                // The nodes ask again by themselves.
                Err(why) => {
                    self.note(Some(&why));
                    self.desk.pause(pauses.next());
                }
            }
        }
    }

    /// The thread that says how orders and work stand, until it is heard.
    pub(crate) fn report(&self) {
        let mut pauses = Pauses::new();
        loop {
            let (orders, worked) = self.desk.wait_for_reports(REPORTS_AT_ONCE);
            if orders.is_empty() && worked.is_empty() {
                return;
            }
            let report = Report { node: self.node, orders, worked };
            match self.client.report(&report) {
                Ok(()) => {
                    self.desk.forget_reports(&report.orders, &report.worked);
                    pauses = Pauses::new();
                }
                // What the conductor does not take for good is not said for ever: the next heartbeat names what is still open.
                Err(why) if !why.is_temporary() && !why.is_unknown_node() => {
                    tracing::warn!(%why, "the conductor refused a report");
                    self.desk.forget_reports(&report.orders, &report.worked);
                }
                Err(why) => {
                    self.note(Some(&why));
                    self.desk.pause(pauses.next());
                }
            }
        }
    }

    /// Sends mail, waiting while the mailbox is full, until then at most. False if it was too late, or the reactor or the process ends.
    fn deliver(&self, lane: Lane, mail: Mail, until: Option<Instant>) -> bool {
        let Some(mailbox) = self.lanes.mailbox(lane) else { return false };
        let mut mail = mail;
        loop {
            match mailbox.send(mail) {
                Ok(()) => return true,
                Err(NotSent::Ended(_)) => return false,
                Err(NotSent::Full(back)) => mail = back,
            }
            if until.is_some_and(|until| until <= Instant::now()) || self.desk.pause(MAIL_AGAIN) {
                return false;
            }
        }
    }

    fn lanes(&self) -> impl Iterator<Item = Lane> {
        self.lanes.all().into_iter()
    }

    pub(crate) fn disks(&self) -> std::sync::MutexGuard<'_, Vec<(Lane, DiskReport)>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says when the conductor goes, or refuses this node, and when it is back, once each.
    fn note(&self, why: Option<&Refusal>) {
        if self.desk.conductor(why.cloned()) {
            match why {
                Some(why) if why.is_temporary() => tracing::warn!(%why, "no word from the conductor; I/O goes on"),
                Some(why) => tracing::error!(%why, "the conductor refuses this node; I/O goes on"),
                None => tracing::info!("the conductor is back"),
            }
        }
    }
}

/// Brings the reports of all disks up to date. A reactor that has not described itself is named: nothing may be said of its copies.
fn as_they_are(disks: &mut [(Lane, DiskReport)], views: &BTreeMap<Lane, View>) -> Result<(), Lane> {
    for (lane, report) in disks {
        let view = views.get(lane).ok_or(*lane)?;
        let here = view.copies.iter().filter(|c| c.config.member(c.copy).is_some_and(|m| m.disk == report.disk));
        report.copies = here.map(|c| (c.copy, c.config.clone())).collect();
        if let Some(disk) = view.disks.iter().find(|d| d.disk == report.disk) {
            report.used = disk.used;
        }
    }
    Ok(())
}

/// The reactors that have to hear of a configuration: those with a copy: its primary's, and the one that was the primary until a
/// promotion, so that it steps down. Where no copy that is listed is here, all of them: one that was primary and is not listed any more would
/// go on, and be told with the rest that nobody has taken over.
fn lanes_of(config: &Configuration, lane_of: &BTreeMap<DiskId, Lane>, all: &BTreeSet<Lane>) -> BTreeSet<Lane> {
    let named: BTreeSet<Lane> = config.members.iter().filter_map(|member| lane_of.get(&member.disk)).copied().collect();
    if named.is_empty() { all.clone() } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, CopyId, CopyState, Durability, Epoch, Member, OpenId, ShardId};

    fn member(n: u8, state: CopyState) -> Member {
        let (copy, disk) = (CopyId(n.into()), DiskId(n.into()));
        let endpoint = ([10, 0, 0, n], 1).into();
        Member {
            copy,
            node: NodeId(n.into()),
            disk,
            open: OpenId(1),
            state,
            since: conductor_model::Epoch(0),
            past: false,
            endpoint,
        }
    }

    #[test]
    fn a_reactor_that_says_nothing_of_its_copies_is_named() {
        let report = |disk| DiskReport {
            disk: DiskId(disk),
            open: OpenId(1),
            endpoint: ([10, 0, 0, 1], 1).into(),
            addresses: Vec::new(),
            capacity: Bytes(1 << 30),
            used: Bytes(0),
            max_copies: 64,
            copies: Vec::new(),
            path: None,
        };
        let mut disks = [(0, report(1)), (2, report(2))];
        let used = |disk| node_core::DiskView {
            disk: DiskId(disk),
            open: OpenId(1),
            capacity: Bytes(1 << 30),
            used: Bytes(4096),
            damaged: 0,
            repaired: 0,
        };
        let view = |disk| View { disks: vec![used(disk)], ..View::default() };
        let mut views = BTreeMap::from([(0, view(1))]);
        assert_eq!(as_they_are(&mut disks, &views), Err(2), "what it said when it was opened may be over");
        views.insert(2, view(2));
        assert_eq!(as_they_are(&mut disks, &views), Ok(()));
        assert!(disks.iter().all(|(_, report)| report.used == Bytes(4096)));
    }

    #[test]
    fn a_former_primary_hears_of_its_successor_and_a_primary_of_its_shard() {
        let states = [CopyState::Absent, CopyState::InSync, CopyState::InSync];
        let members: Vec<_> = (1..).zip(states).map(|(n, state)| member(n, state)).collect();
        let config = Configuration {
            shard: ShardId::default(),
            epoch: Epoch(2),
            primary: CopyId(2),
            members,
            full_set: vec![CopyId(2), CopyId(3)],
            min_copies: 2,
            attach: AttachGeneration(1),
            size: Bytes(1 << 20),
            born: true,
            parent: None,
            durability: Durability::Always,
            cache: conductor_model::Commit(0),
            card: None,
        };
        let here = |disk: u8, lane| BTreeMap::from([(DiskId(disk.into()), lane), (DiskId(9), 7)]);
        let all = BTreeSet::from([4, 7]);
        let lanes = |disk, lane| lanes_of(&config, &here(disk, lane), &all).into_iter().collect::<Vec<_>>();
        assert_eq!(lanes(2, 3), [3], "the primary's reactor");
        assert_eq!(lanes(1, 4), [4], "the former primary's, which is left behind");
        assert_eq!(lanes(5, 4), [4, 7], "whoever was its primary, with a copy that is not listed any more");
    }
}
