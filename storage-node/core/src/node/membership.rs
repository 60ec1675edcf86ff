//! Configurations: taking them up, asking for the next one, collecting the answers of all members.

use super::Node;
use super::reads::OwnRead;
use super::waits::StoreWait;
use crate::iocbs::IocbKey;
use crate::limits::ASK_AGAIN;
use crate::mail::Letter;
use crate::primary::{JoinState, Primary, PrimaryPhase};
use crate::replica::Asker;
use conductor_model::api::{MembershipAnswer, MembershipChange, MembershipRequest};
use conductor_model::{Configuration, CopyId, Epoch, Member, OpenId, ShardId};
use driver::{Outbox, Time};
use node_protocol::Status;
use node_store::Store;
use std::collections::BTreeSet;
use std::net::SocketAddr;

impl<S: Store> Node<S> {
    /// The conductor has decided a configuration whose primary is here.
    pub(super) fn adopt(&mut self, now: Time, config: Configuration, out: &mut dyn Outbox<Letter>) {
        let shard = config.shard;
        let known = self.primaries.get(&shard).map_or(Epoch(0), |p| p.config.epoch);
        let here = config.primary_member().and_then(|m| self.disks.iter().position(|d| d.disk == m.disk));
        let Some(disk) = here else {
            if let Some(replica) = self.replicas.get_mut(&shard) {
                replica.superseded = replica.superseded.max(config.epoch);
            }
            if known < config.epoch {
                self.step_down(now, shard, out);
            }
            return;
        };
        if self.deletions.gone.contains(config.primary) || self.deletions.doomed.contains_key(&config.primary) {
            return;
        }
        let superseded = self.replicas.get(&shard).map_or(Epoch(0), |replica| replica.superseded);
        if superseded >= config.epoch && !driver::mutant::on("superseded_adopted") {
            // An answer to what was asked before, or the conductor's word in an order of its own.
            self.counters.count("epoch.superseded");
            return;
        }
        if known >= config.epoch {
            if known == config.epoch {
                self.new_endpoints(now, &config, out);
            }
            return;
        }
        self.counters.count("epoch.adopted");
        let fence = self.sessions.set_generation(shard.volume, config.attach);
        self.fence(now, &fence, out);
        let old_links = self.primaries.get_mut(&shard).map(|p| std::mem::take(&mut p.links)).unwrap_or_default();
        match self.primaries.get_mut(&shard) {
            Some(primary) => primary.enter(now, config),
            None => {
                let mut primary = Primary::new(config);
                primary.joining_since = now;
                self.primaries.insert(shard, primary);
            }
        }
        self.forget_old_settling(now, shard);
        self.forget_filling(now, shard);
        self.end_barriers(now, shard);
        self.use_links(now, shard);
        for link in old_links {
            self.release_link(now, link, out);
        }
        self.start_joining(now, shard, disk, out);
    }

    /// The shard needs a link to each of its other copies; to an absent one, so that its return is seen.
    fn use_links(&mut self, now: Time, shard: ShardId) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.links = primary.listed_others().map(|m| m.endpoint).collect();
        for to in primary.links.clone() {
            self.links.need(now, to);
        }
    }

    /// The same epoch with other addresses: a node came back elsewhere. Its Hello will say whether its stores were opened anew.
    fn new_endpoints(&mut self, now: Time, config: &Configuration, out: &mut dyn Outbox<Letter>) {
        let shard = config.shard;
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let (mut moved, mut moved_to) = (Vec::new(), BTreeSet::new());
        for member in &mut primary.config.members {
            if let Some(there) = config.member(member.copy).filter(|m| m.endpoint != member.endpoint) {
                member.endpoint = there.endpoint;
                moved.push(member.copy);
                moved_to.insert(there.endpoint);
            }
        }
        if moved.is_empty() {
            return;
        }
        self.counters.count("member.moved");
        for copy in &moved {
            if let Some(state @ JoinState::Sent) = primary.joins.get_mut(copy) {
                *state = JoinState::Unsent;
            }
        }
        let old_links = std::mem::take(&mut primary.links);
        let requests: Vec<IocbKey> = primary.requests.values().copied().collect();
        self.use_links(now, shard);
        for link in old_links {
            self.release_link(now, link, out);
        }
        for key in requests {
            for copy in &moved {
                self.requeue_waiting(now, key, *copy);
            }
        }
        // Others may have it linked there already: no Hello comes to them any more.
        for to in moved_to {
            if let Some(peer) = self.links.get(to).and_then(|link| link.up.clone()) {
                self.check_openings(now, to, &peer, out);
                self.send_joins(now, to, out);
            }
        }
    }

    /// Asks everybody to join, itself first; or asks the conductor, if an open id is not the one named.
    fn start_joining(&mut self, now: Time, shard: ShardId, disk: usize, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let (config, endpoints) = (primary.config.clone(), primary.links.clone());
        if let Some(own) = config.primary_member().filter(|m| self.named_wrongly(m, self.disks[disk].open)) {
            let change = MembershipChange::Reopened(vec![(own.copy, self.disks[disk].open)]);
            self.ask_conductor(now, shard, change, out);
            return;
        }
        self.begin_join(now, disk, config.primary, config, Asker::Local, out);
        for to in endpoints {
            self.send_joins(now, to, out);
        }
    }

    /// Has the primary's own copy neither joined nor begun to?
    fn own_join_is_due(&self, shard: ShardId) -> bool {
        let (Some(primary), Some(replica)) = (self.primaries.get(&shard), self.replicas.get(&shard)) else {
            return false;
        };
        !primary.answers.contains_key(&primary.config.primary) && replica.joining.is_none()
    }

    /// The primary's own copy joins.
    fn join_here(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(config) = self.primaries.get(&shard).map(|p| p.config.clone()) else { return };
        let here = config.primary_member().and_then(|m| self.disks.iter().position(|d| d.disk == m.disk));
        if let Some(disk) = here {
            self.begin_join(now, disk, config.primary, config, Asker::Local, out);
        }
    }

    /// Everybody joins once more: the present epoch, where that is enough. No stamp is given out twice: the window stays.
    pub(super) fn join_again(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get(&shard) else { return };
        // A copy may be in sync that this epoch does not count: only another epoch can say so.
        let added = primary.filling.as_ref().is_some_and(|f| f.add_asked);
        // There are as many stamps as settling may need only in a window that does not wait for anything older.
        let crammed = !primary.window.is_empty() && !driver::mutant::on("settled_in_a_full_window");
        if added || crammed {
            self.counters.count("epoch.asked-anew");
            self.ask_for_epoch(now, shard, out);
            return;
        }
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.joining_since = now;
        primary.phase = PrimaryPhase::Joining;
        primary.settled = false;
        primary.answers.clear();
        primary.joins.clear();
        self.forget_old_settling(now, shard);
        self.forget_filling(now, shard);
        let Some(links) = self.primaries.get(&shard).map(|p| p.links.clone()) else { return };
        self.join_here(now, shard, out);
        for to in links {
            self.send_joins(now, to, out);
        }
    }

    /// Is a member's store opened anew since the configuration was made (rule 2)?
    pub(super) fn named_wrongly(&self, member: &Member, open: OpenId) -> bool {
        member.open != open && !driver::mutant::on("restarted_node_trusted")
    }

    /// What the conductor was asked for is not wanted any more: what is, is found out with everybody's Join.
    pub(super) fn begin_anew(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        self.counters.count("ask.given-up");
        let own = self.primaries.get(&shard).and_then(|p| p.config.primary_member()).cloned();
        let here = own.and_then(|own| Some((self.disks.iter().find(|d| d.disk == own.disk)?.open, own)));
        match here {
            Some((open, own)) if self.named_wrongly(&own, open) => self.ask_reopened(now, shard, own.copy, open, out),
            _ => self.join_again(now, shard, out),
        }
    }

    /// Asks the conductor for a change under the present epoch, until it answers.
    pub(super) fn ask_conductor(
        &mut self,
        now: Time,
        shard: ShardId,
        change: MembershipChange,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.asked = now;
        primary.phase = PrimaryPhase::Asking(change.clone());
        self.counters.count(change_name(&change));
        let (epoch, by) = (primary.config.epoch, primary.config.primary);
        out.post(Letter::Ask(MembershipRequest { shard, epoch, by, change }));
    }

    /// A member turned out to be opened anew: asks for an epoch that names its new open id.
    pub(super) fn ask_reopened(
        &mut self,
        now: Time,
        shard: ShardId,
        copy: CopyId,
        open: OpenId,
        out: &mut dyn Outbox<Letter>,
    ) {
        self.ask_conductor(now, shard, MembershipChange::Reopened(vec![(copy, open)]), out);
    }

    /// Somebody knows a newer epoch of a shard: nothing is served until its configuration is known here (rule 20). A question under the
    /// old epoch is answered with the present configuration; this one names what is already named, in case it is not that old.
    pub(super) fn ask_for_news(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        self.counters.count("epoch.newer-elsewhere");
        self.ask_for_epoch(now, shard, out);
    }

    /// Asks for an epoch in which nothing is different.
    fn ask_for_epoch(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(own) = self.primaries.get(&shard).and_then(|p| p.config.primary_member()) else { return };
        self.ask_conductor(now, shard, MembershipChange::unchanged(own), out);
    }

    /// The conductor's answer.
    pub(super) fn conductor_answered(
        &mut self,
        now: Time,
        shard: ShardId,
        answer: MembershipAnswer,
        out: &mut dyn Outbox<Letter>,
    ) {
        match answer {
            MembershipAnswer::Granted(config) | MembershipAnswer::Stale(config) => self.adopt(now, config, out),
            // Asked again by the tick: what it lacks (a registration) is on its way.
            MembershipAnswer::Refused(_) => {
                self.counters.count("ask.refused");
                // What was wished for is asked for again if it is still due.
                if let Some(primary) = self.primaries.get_mut(&shard) {
                    primary.asked = now;
                    // That may be so for long, as where its disk failed: until then it is others' turn.
                    if let Some((MembershipChange::Fill(copy, _), _)) = primary.wish {
                        primary.pause_filling(now, copy);
                        primary.end_turn(now, copy);
                    }
                }
            }
        }
    }

    /// This reactor is not the shard's primary any more: everything queued is answered, nothing survives into a later epoch (rule 8).
    pub(super) fn step_down(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.remove(&shard) else { return };
        self.counters.count("primary.stepped-down");
        self.scrubs.remove(&shard);
        self.damage.left.forget_shard(shard);
        for key in primary.requests.into_values() {
            self.answer_with_generation(now, key, Status::StaleEpoch, (primary.config.epoch, primary.config.cache));
        }
        for answer in primary.ranges.into_waiting() {
            self.reply_with_generation(now, answer, Status::StaleEpoch, (primary.config.epoch, primary.config.cache));
        }
        self.forget_old_settling(now, shard);
        self.forget_filling(now, shard);
        self.orders_left(shard);
        self.outlive_locks(shard);
        for link in primary.links {
            self.release_link(now, link, out);
        }
    }

    /// The range locks went with the primary: until the store is done with what it still reads under them, no write of the next primary
    /// begins there.
    fn outlive_locks(&mut self, shard: ShardId) {
        let Some(replica) = self.replicas.get_mut(&shard).filter(|replica| replica.reading > 0) else { return };
        for (_, wait) in &mut self.waits.store {
            if let StoreWait::Read { read: OwnRead { iocb, of, view, busy: busy @ None }, .. } = wait
                && *of == shard
            {
                self.last_look += 1;
                *busy = Some(self.last_look);
                replica.busy.push((self.last_look, self.iocbs[*iocb].range, *view));
            }
        }
    }

    /// Time-driven work of all primaries.
    pub(super) fn tick_primaries(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let joins = |p: &&Primary| {
            matches!(p.phase, PrimaryPhase::Joining) || (p.syncing_member().is_some() && p.filling.is_none())
        };
        let joining = self.primaries.values().filter(joins);
        let links: BTreeSet<SocketAddr> = joining.flat_map(|p| p.links.iter().copied()).collect();
        for to in links {
            self.send_joins(now, to, out);
        }
        let shards: Vec<ShardId> = self.primaries.keys().copied().collect();
        for shard in shards {
            let Some(primary) = self.primaries.get(&shard) else { continue };
            match &primary.phase {
                PrimaryPhase::Asking(change) if now.since(primary.asked) >= ASK_AGAIN => {
                    let change = change.clone();
                    self.ask_conductor(now, shard, change, out);
                }
                PrimaryPhase::Serving if self.has_given_up_a_share(shard) => self.join_again(now, shard, out),
                PrimaryPhase::Serving | PrimaryPhase::Settling(_) => {
                    self.runnable.extend(primary.stalled.values().copied());
                    self.retry_refused(now, shard, out);
                    if let Some(settling) = self.settling_mut(shard) {
                        settling.left.append(&mut settling.later);
                    }
                    self.go_on_settling(now, shard, out);
                }
                // Its own Join was refused for want of room in the store.
                PrimaryPhase::Joining if self.own_join_is_due(shard) => self.join_here(now, shard, out),
                // Reads that the conductor's next word may permit.
                PrimaryPhase::Sealed => self.runnable.extend(primary.stalled.values().copied()),
                PrimaryPhase::Asking(_) | PrimaryPhase::Joining | PrimaryPhase::Failed { .. } => {}
            }
        }
    }
}

/// The counter of a question to the conductor.
pub(super) fn change_name(change: &MembershipChange) -> &'static str {
    match change {
        MembershipChange::Born => "ask.born",
        MembershipChange::Reopened(_) => "ask.reopened",
        MembershipChange::Drop(_) => "ask.drop",
        MembershipChange::Past(_) => "ask.past",
        MembershipChange::Fill(..) => "ask.fill",
        MembershipChange::Add(_) => "ask.add",
        MembershipChange::StepDown => "ask.step-down",
        MembershipChange::CacheLost => "ask.cache-lost",
    }
}
