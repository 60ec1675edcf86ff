//! The node's side of the conversation with the conductor: registration, heartbeats, questions.
//!
//! Four threads: a heartbeat may be held for half a second, and neither a question of a primary nor a word on an order must wait for
//! it; and a node that is not heard for two seconds is taken for dead, so that a heartbeat waits neither for reactors that are asked
//! what their copies hold, nor for long for one that does not take its mail. What is heard is handed to the reactors before `after`
//! says that it was heard. An unreachable conductor is asked again with growing pauses; I/O goes on.

use crate::desk::{Counts, Desk, Lane, REPORTS_AT_ONCE};
use crate::limits::{
    ASKS_AT_ONCE, BEAT_PAUSE, CONDUCTOR_RETRY, CONDUCTOR_RETRY_MAX, COPIES_PER_COUNT, COUNT, COUNT_EVERY, HAND_ON,
    LOOK, MAIL_AGAIN,
};
use crate::look::MemoryLook;
use conductor_client::{Client, Error as Refusal};
use conductor_model::api::{DiskIntegrity, DiskReport, Heartbeat, HeartbeatAnswer, Register, Report};
use conductor_model::{ClusterId, Configuration, DiskId, NodeId};
use node_core::{Mail, View};
use reactor::{Mailbox, NotSent};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who talks, and to whom.
pub(crate) struct Control {
    pub(crate) node: NodeId,
    pub(crate) memory: MemoryLook,
    pub(crate) host: String,
    pub(crate) cluster: ClusterId,
    pub(crate) client: Client,
    pub(crate) desk: Arc<Desk>,
    pub(crate) mailboxes: Vec<Mailbox<Mail>>,
    /// As they were opened, in the order of the reactors.
    pub(crate) disks: Mutex<Vec<(Lane, DiskReport)>>,
    pub(crate) lane_of: BTreeMap<DiskId, Lane>,
}

/// Growing pauses.
#[derive(Debug)]
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) fn new() -> Self {
        Self(CONDUCTOR_RETRY)
    }
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (self.0 * 2).min(CONDUCTOR_RETRY_MAX);
        pause
    }
}

impl Control {
    /// Registers, as often as it takes. A refusal is final.
    pub(crate) fn register_first(&self) -> Result<(), Refusal> {
        let mut pauses = Pauses::new();
        loop {
            match self.register() {
                Err(why) if why.is_temporary() => {
                    self.note(Some(&why));
                    if self.desk.pause(pauses.next()) {
                        return Ok(());
                    }
                }
                outcome => return outcome,
            }
        }
    }

    fn register(&self) -> Result<(), Refusal> {
        let disks: Vec<DiskReport> = self.disks().iter().map(|(_, report)| report.clone()).collect();
        let register = Register { node: self.node, host: self.host.clone(), disks };
        let registered = self.client.register(&register)?;
        if registered.cluster != self.cluster {
            let address = self.client.address().to_owned();
            let what = format!("it leads cluster {}, this node belongs to {}", registered.cluster, self.cluster);
            return Err(Refusal::Protocol { address, what });
        }
        self.note(None);
        tracing::info!(node = %self.node, commit = registered.commit, "registered");
        Ok(())
    }

    /// Copies and usage as they are now, for a conductor that has forgotten this node (rule 12).
    fn refresh(&self) {
        let views = self.look();
        let mut disks = self.disks();
        for (lane, report) in disks.iter_mut() {
            let Some(view) = views.get(lane) else { continue };
            let here = view.copies.iter().filter(|c| c.config.member(c.copy).is_some_and(|m| m.disk == report.disk));
            report.copies = here.map(|c| (c.copy, c.config.clone())).collect();
            if let Some(disk) = view.disks.iter().find(|d| d.disk == report.disk) {
                report.used = disk.used;
            }
        }
    }

    /// A look at all reactors.
    pub(crate) fn look(&self) -> BTreeMap<Lane, View> {
        self.look_within(LOOK)
    }

    fn look_within(&self, limit: Duration) -> BTreeMap<Lane, View> {
        let number = self.desk.begin_look();
        for mailbox in &self.mailboxes {
            // One that has ended or is stuck is missing in the answer.
            let _ = mailbox.send(Mail::Look(number));
        }
        self.desk.finish_look(number, limit)
    }

    /// The thread that counts what copies hold, and what damage was met on disks.
    pub(crate) fn count(&self) {
        loop {
            let views = self.look_within(COUNT);
            let copies: Vec<_> = views.values().flat_map(|v| &v.copies).map(|c| (c.copy, c.used.bytes())).collect();
            let disks = views.values().flat_map(|v| &v.disks);
            let integrity = disks.map(|d| DiskIntegrity { disk: d.disk, damaged: d.damaged, repaired: d.repaired });
            let pause = COUNT_EVERY * u32::try_from(1 + copies.len() / COPIES_PER_COUNT).unwrap_or(u32::MAX);
            self.desk.counted(Counts { integrity: integrity.collect(), copies });
            if self.desk.wait_to_count(pause) {
                return;
            }
        }
    }

    /// The heartbeat thread.
    pub(crate) fn beat(&self) {
        let (mut after, mut pauses, mut named) = (0, Pauses::new(), false);
        while !self.desk.pause(BEAT_PAUSE) {
            let Counts { copies, integrity } = self.desk.counts();
            let dropped = self.desk.dropped();
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
            };
            let outcome = match self.client.heartbeat(&beat) {
                Ok(answer) => {
                    self.desk.forget_dropped(&dropped);
                    let version = answer.version;
                    if self.hand_on(answer, &mut named) {
                        after = version;
                    }
                    self.note(None);
                    pauses = Pauses::new();
                    continue;
                }
                Err(why) if why.is_unknown_node() => {
                    tracing::warn!("the conductor does not know this node as it is: registering again");
                    after = 0;
                    self.refresh();
                    self.register()
                }
                Err(why) => Err(why),
            };
            // The conductor has not heard it, or has forgotten it.
            self.desk.count_again();
            if let Err(why) = outcome {
                self.note(Some(&why));
                self.desk.pause(pauses.next());
            }
        }
    }

    /// Turns an answer into mail; `named`: the last one named orders. False if a reactor did not take it: it ends, or is told again.
    fn hand_on(&self, answer: HeartbeatAnswer, named: &mut bool) -> bool {
        let until = Some(Instant::now() + HAND_ON);
        let mut assign: BTreeMap<Lane, Vec<_>> = BTreeMap::new();
        for config in answer.assignments {
            let lanes = lanes_of(&config, &self.lane_of);
            if lanes.is_empty() && config.primary_member().is_some_and(|member| member.node == self.node) {
                tracing::warn!(shard = %config.shard, "assigned a shard on a disk that is not here");
            }
            for lane in lanes {
                assign.entry(lane).or_default().push(config.clone());
            }
        }
        let all = |mail: &dyn Fn() -> Mail| self.lanes().all(|lane| self.deliver(lane, mail(), until));
        // Named in full each time: an answer without any ends what the last one named, once.
        let orders = *named || !answer.orders.is_empty();
        let taken = assign.into_iter().all(|(lane, configs)| self.deliver(lane, Mail::Assign(configs), until))
            && (!orders || all(&|| Mail::Orders(answer.orders.clone())))
            && (answer.work.is_empty() || all(&|| Mail::Work(answer.work.clone())))
            && (answer.generations.is_empty() || all(&|| Mail::Generations(answer.generations.clone())))
            && (answer.drop.is_empty() || all(&|| Mail::Drop(answer.drop.clone())));
        // What was not taken may have been the end of what was named.
        *named = !answer.orders.is_empty() || (orders && !taken);
        taken
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
        let Some(mailbox) = self.mailboxes.get(usize::from(lane)) else { return false };
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
        (0..).take(self.mailboxes.len())
    }

    fn disks(&self) -> std::sync::MutexGuard<'_, Vec<(Lane, DiskReport)>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says when the conductor goes and when it is back, once each.
    fn note(&self, why: Option<&Refusal>) {
        if self.desk.conductor(why.map(ToString::to_string)) {
            match why {
                Some(why) => tracing::warn!(%why, "no word from the conductor; I/O goes on"),
                None => tracing::info!("the conductor is back"),
            }
        }
    }
}

/// The reactors that have to hear of a configuration: its primary's; where that is another node's, those with a copy, so that the one
/// that was the primary until a promotion steps down.
fn lanes_of(config: &Configuration, lane_of: &BTreeMap<DiskId, Lane>) -> BTreeSet<Lane> {
    match config.primary_member().and_then(|member| lane_of.get(&member.disk)) {
        Some(lane) => BTreeSet::from([*lane]),
        None => config.members.iter().filter_map(|member| lane_of.get(&member.disk)).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, CopyId, CopyState, Durability, Epoch, Member, OpenId, ShardId};

    fn member(n: u8, state: CopyState) -> Member {
        let (copy, disk) = (CopyId(n.into()), DiskId(n.into()));
        let endpoint = ([10, 0, 0, n], 1).into();
        Member { copy, node: NodeId(n.into()), disk, open: OpenId(1), state, endpoint }
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
        };
        let here = |disk: u8, lane| BTreeMap::from([(DiskId(disk.into()), lane), (DiskId(9), 7)]);
        let lanes = |disk, lane| lanes_of(&config, &here(disk, lane)).into_iter().collect::<Vec<_>>();
        assert_eq!(lanes(2, 3), [3], "the primary's reactor");
        assert_eq!(lanes(1, 4), [4], "the former primary's, which is left behind");
        assert_eq!(lanes(5, 4), [0; 0], "nobody here has to do with it");
    }
}
