//! Configurations: taking them up, asking for the next one, collecting the answers of all members.

use super::waits::{ReplyWait, Request, StoreWait};
use super::{Node, whole_payload};
use crate::iocb::{Kind, Phase as IocbPhase};
use crate::limits::{ASK_AGAIN, JOIN_DEADLINE, RETRY_REFUSED};
use crate::mail::Letter;
use crate::primary::{JoinState, Phase, Primary};
use crate::replica::Asker;
use conductor_model::api::{MembershipAnswer, MembershipChange, MembershipRequest};
use conductor_model::{BlockRange, Configuration, CopyId, CopyState, Epoch, Member, OpenId, Sequence, ShardId, Stamp};
use driver::{Outbox, Time};
use memory::Class;
use node_protocol::{FillState, HeldAs, JoinAnswer, JoinBody, Prefix, ReplyBody, Status, decode_held, op};
use node_store::{Held, HeldKind, Store, StoreError};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tcp::{Lost, Payload};
use wire::{Body, Op};

impl<S: Store> Node<S> {
    /// The conductor has decided a configuration whose primary is here.
    pub(super) fn adopt(&mut self, now: Time, config: Configuration, out: &mut dyn Outbox<Letter>) {
        let shard = config.shard;
        let known = self.primaries.get(&shard).map_or(Epoch(0), |p| p.config.epoch);
        let here = config.primary_member().and_then(|m| self.disks.iter().position(|d| d.disk == m.disk));
        let Some(disk) = here else {
            if known < config.epoch {
                self.step_down(now, shard, out);
            }
            return;
        };
        if self.gone.contains(&config.primary) || self.doomed.contains_key(&config.primary) {
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
        self.forget_old_settling(shard);
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
        primary.links = primary.listed().map(|m| m.endpoint).collect();
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
        let requests: Vec<usize> = primary.requests.values().copied().collect();
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
        primary.phase = Phase::Joining;
        primary.settled = false;
        primary.answers.clear();
        primary.joins.clear();
        self.forget_old_settling(shard);
        self.forget_filling(now, shard);
        let Some(links) = self.primaries.get(&shard).map(|p| p.links.clone()) else { return };
        self.join_here(now, shard, out);
        for to in links {
            self.send_joins(now, to, out);
        }
    }

    /// Is a member's store opened anew since the configuration was made (rule 2)?
    fn named_wrongly(&self, member: &Member, open: OpenId) -> bool {
        member.open != open && !driver::mutant::on("restarted_node_trusted")
    }

    /// Asks the conductor for a change under the present epoch, until it answers.
    fn ask_conductor(&mut self, now: Time, shard: ShardId, change: MembershipChange, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.asked = now;
        primary.phase = Phase::Asking(change.clone());
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
        let named = vec![(own.copy, own.open)];
        self.ask_conductor(now, shard, MembershipChange::Reopened(named), out);
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
                }
            }
        }
    }

    /// Sends the Joins that the members behind an established link have not got yet.
    pub(super) fn send_joins(&mut self, now: Time, to: SocketAddr, out: &mut dyn Outbox<Letter>) {
        let Some((conn, peer)) = self.links.get(to).and_then(|l| Some((l.conn?, l.up.clone()?))) else { return };
        let due = |p: &Primary, m: &Member| match p.joins.get(&m.copy).copied().unwrap_or(JoinState::Unsent) {
            JoinState::Unsent => true,
            JoinState::Again(at) => at <= now,
            JoinState::Sent | JoinState::Joined => false,
        };
        let waiting: Vec<(ShardId, Member)> = self
            .primaries
            .iter()
            .flat_map(|(shard, p)| {
                let joining = matches!(p.phase, Phase::Joining);
                let working = matches!(p.phase, Phase::Joining | Phase::Settling(_) | Phase::Serving | Phase::Sealed);
                let asked = move |m: &&Member| match m.state {
                    CopyState::InSync => joining,
                    CopyState::Syncing => working,
                    CopyState::Absent => false,
                };
                let members = p.listed().filter(move |m| asked(m) && m.endpoint == to && due(p, m));
                members.map(|m| (*shard, m.clone()))
            })
            .collect();
        for (shard, member) in waiting {
            let Some(open) = peer.open_of(member.disk) else {
                // Another node, or one without that disk, answers at this address: wait for a better map.
                self.counters.count("link.other-disk");
                continue;
            };
            if member.state == CopyState::Syncing && member.open != open {
                // It is dropped (`wishes`), and filled anew.
                continue;
            }
            if self.named_wrongly(&member, open) {
                self.ask_conductor(now, shard, MembershipChange::Reopened(vec![(member.copy, open)]), out);
                continue;
            }
            self.send_join(now, conn, shard, &member);
        }
    }

    fn send_join(&mut self, now: Time, conn: driver::ConnId, shard: ShardId, member: &Member) {
        let Some(config) = self.primaries.get(&shard).map(|p| p.config.clone()) else { return };
        let Some(own) = config.primary_member() else { return };
        let body = JoinBody {
            prefix: Prefix::default(),
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: config.epoch.0.into(),
            copy: member.copy.0.into(),
            open: member.open.0.into(),
            primary: config.primary.0.into(),
            primary_open: own.open.0.into(),
        };
        let (Ok(json), state) = (serde_json::to_vec(&config), JoinState::Again(now + RETRY_REFUSED)) else { return };
        let sent = self.arena.take(json.len(), Class::Settle).is_some_and(|mut into| {
            into.copy_from_slice(&json);
            let wait = ReplyWait::Join { shard, epoch: config.epoch, copy: member.copy, sent: now };
            let payload = Some(whole_payload(into));
            self.ask_peer(
                now,
                conn,
                Request { op: op::JOIN, body: body.bytes(), payload, patience: JOIN_DEADLINE },
                wait,
            )
        });
        let state = if sent { JoinState::Sent } else { state };
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.joins.insert(member.copy, state);
        }
    }

    /// A member's answer to a Join, or its loss.
    #[allow(clippy::too_many_arguments, reason = "what a Join is known by")]
    pub(super) fn join_answered(
        &mut self,
        now: Time,
        shard: ShardId,
        epoch: Epoch,
        copy: CopyId,
        sent: Time,
        result: Result<(Op, Body, Option<Payload>), Lost>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(primary) = self.primaries.get_mut(&shard).filter(|p| p.config.epoch == epoch) else { return };
        let syncing = primary.config.member(copy).is_some_and(|m| m.state == CopyState::Syncing);
        let good = match &result {
            Ok((_, body, payload)) if ReplyBody::status_of(body) == Some(Status::Ok) => {
                JoinAnswer::parse(body).zip(Said::parse(syncing, payload.as_ref()))
            }
            _ => None,
        };
        let Some((answer, said)) = good else {
            self.counters.count("join.refused");
            let status = result.ok().and_then(|(_, body, _)| ReplyBody::status_of(&body));
            let again = if status.is_some() { JoinState::Again(now + RETRY_REFUSED) } else { JoinState::Unsent };
            primary.joins.insert(copy, again);
            if matches!(status, Some(Status::Io | Status::Denied | Status::Unsupported)) {
                primary.failed.entry(copy).or_insert("it cannot join");
            }
            if status == Some(Status::NoSnapshot) {
                let why = "its disk does not hold the snapshot which this clone begins as".to_owned();
                primary.refusals.insert(copy, why);
            }
            if status == Some(Status::StaleEpoch) {
                self.ask_for_news(now, shard, out);
            }
            return;
        };
        primary.joins.insert(copy, JoinState::Joined);
        primary.lease.joined(copy, sent, now);
        if let Some(link) = primary.config.member(copy).and_then(|m| self.links.get_mut(m.endpoint)) {
            link.free_blocks = answer.free_blocks.get();
        }
        let sequence = Sequence(answer.known_good_sequence.get());
        let known_good = Stamp { epoch: Epoch(answer.known_good_epoch.get()), sequence };
        let held = match said {
            Said::Held(held) => held,
            Said::Syncing(state) => {
                let known_good = self.trusted(copy, known_good);
                self.fill_joined(now, shard, copy, known_good, state);
                self.go_on_filling(now, shard, out);
                return;
            }
        };
        let held: Vec<Held> = held
            .into_iter()
            .map(|(stamp, at, kind)| {
                let kind = match kind {
                    HeldAs::Write => HeldKind::Write,
                    HeldAs::Zero => HeldKind::Zero,
                    HeldAs::Barrier => HeldKind::Barrier,
                };
                Held { stamp, at, kind }
            })
            .collect();
        let stored = Epoch(answer.stored_epoch.get());
        self.member_joined(now, shard, epoch, (copy, known_good, stored), &held, out);
    }

    /// If every member has answered: born, or to be settled.
    pub(super) fn all_joined(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get(&shard) else { return };
        let complete = primary.config.in_sync_members().all(|m| primary.answers.contains_key(&m.copy));
        if !complete || (primary.config.born && self.leave_out_the_past(shard)) {
            return;
        }
        let Some(primary) = self.primaries.get(&shard) else { return };
        for member in primary.config.in_sync_members() {
            self.past.remove(&member.copy);
        }
        if primary.config.born && primary.config.is_sealed() && !driver::mutant::on("sealed_serves") {
            self.counters.count("primary.sealed");
            if let Some(primary) = self.primaries.get_mut(&shard) {
                primary.phase = Phase::Sealed;
            }
            self.go_on_filling(now, shard, out);
        } else if primary.config.born && primary.doubts_all() && !driver::mutant::on("cache_loss_unseen") {
            self.ask_conductor(now, shard, MembershipChange::CacheLost, out);
        } else if primary.config.born {
            self.start_settling(now, shard, out);
        } else {
            self.ask_conductor(now, shard, MembershipChange::Born, out);
        }
    }

    /// A copy whose disk is not the newest that there was has none of what was acknowledged since: it leaves, and is filled with everything.
    /// True if there is one.
    fn leave_out_the_past(&mut self, shard: ShardId) -> bool {
        const PAST: &str = "its disk is in a state from the past, older than what the other copies know to be on it";
        let Some(primary) = self.primaries.get_mut(&shard) else { return false };
        let past: Vec<CopyId> =
            primary.config.in_sync_members().map(|m| m.copy).filter(|copy| primary.is_of_the_past(*copy)).collect();
        for copy in &past {
            self.counters.count("join.of-the-past");
            self.past.insert(*copy);
            if *copy == primary.config.primary {
                primary.phase = Phase::Failed(PAST.to_owned());
                primary.hangs = false;
            } else {
                primary.failed.entry(*copy).or_insert(PAST);
            }
        }
        !past.is_empty()
    }

    /// A copy's K, as far as it can be filled from there on: not if it is from the past. It was in sync when others forgot what they had
    /// discarded after that K (rule 7).
    pub(super) fn trusted(&self, copy: CopyId, known_good: Stamp) -> Stamp {
        if self.past.contains(&copy) { Stamp::default() } else { known_good }
    }

    /// This reactor is not the shard's primary any more: everything queued is answered, nothing survives into a later epoch (rule 8).
    pub(super) fn step_down(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.remove(&shard) else { return };
        self.counters.count("primary.stepped-down");
        self.scrubs.remove(&shard);
        for key in primary.requests.into_values() {
            self.answer_with_generation(now, key, Status::StaleEpoch, (primary.config.epoch, primary.config.cache));
        }
        for answer in primary.ranges.into_waiting() {
            self.reply_with_generation(now, answer, Status::StaleEpoch, (primary.config.epoch, primary.config.cache));
        }
        self.forget_old_settling(shard);
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
        for (_, wait) in &mut self.store_waits {
            if let StoreWait::Read { iocb, of, view, busy: busy @ None, .. } = wait
                && *of == shard
            {
                self.last_look += 1;
                *busy = Some(self.last_look);
                replica.busy.push((self.last_look, self.iocbs[*iocb].range, *view));
            }
        }
    }

    /// The own disk failed: nothing is answered any more (rule 15); what waits, waits visibly.
    pub(super) fn fail_primary(&mut self, shard: ShardId, error: &StoreError) {
        self.counters.count("primary.failed");
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.phase = Phase::Failed(error.to_string());
            primary.hangs = false;
        }
    }

    /// A read for a request failed: a damaged block is that request's error, anything else is the disk's.
    pub(super) fn local_disk_failed(
        &mut self,
        now: Time,
        key: usize,
        error: &StoreError,
        out: &mut dyn Outbox<Letter>,
    ) {
        let shard = self.iocbs[key].shard;
        if let Kind::Copied(from) = self.iocbs[key].kind {
            self.source_failed(key, from, error);
            return;
        }
        if matches!(error, StoreError::NoSuchSnapshot { .. }) {
            self.answer(now, key, Status::NoSnapshot);
            return;
        }
        if matches!(error, StoreError::Corrupt { .. }) && self.iocbs[key].conn.is_some() {
            self.answer(now, key, Status::Io);
            return;
        }
        // It waits like everything else of the shard; a piece of a settling is begun anew.
        if self.iocbs[key].conn.is_some() {
            let iocb = &mut self.iocbs[key];
            iocb.phase = IocbPhase::Locked;
            self.stall(key);
        } else {
            let range = self.iocbs[key].range;
            self.end_request(now, key);
            if let Some(settling) = self.settling_mut(shard) {
                settling.running.remove(&key);
                settling.left.push(range);
            }
        }
        if matches!(error, StoreError::Busy) {
            return;
        }
        if let Some(replica) = self.replicas.get(&shard) {
            out.post(Letter::DiskFailed(self.disks[replica.disk].disk, error.to_string()));
        }
        self.fail_primary(shard, error);
    }

    /// Time-driven work of all primaries.
    pub(super) fn tick_primaries(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let joins =
            |p: &&Primary| matches!(p.phase, Phase::Joining) || (p.syncing_member().is_some() && p.filling.is_none());
        let joining = self.primaries.values().filter(joins);
        let links: BTreeSet<SocketAddr> = joining.flat_map(|p| p.links.iter().copied()).collect();
        for to in links {
            self.send_joins(now, to, out);
        }
        let shards: Vec<ShardId> = self.primaries.keys().copied().collect();
        for shard in shards {
            let Some(primary) = self.primaries.get(&shard) else { continue };
            match &primary.phase {
                Phase::Asking(change) if now.since(primary.asked) >= ASK_AGAIN => {
                    let change = change.clone();
                    self.ask_conductor(now, shard, change, out);
                }
                Phase::Serving if self.has_given_up_a_share(shard) => self.join_again(now, shard, out),
                Phase::Serving | Phase::Settling(_) => {
                    self.ready.extend(primary.stalled.values().copied());
                    self.retry_refused(now, shard, out);
                    self.go_on_settling(now, shard, out);
                }
                // Its own Join was refused for want of room in the store.
                Phase::Joining if self.own_join_is_due(shard) => self.join_here(now, shard, out),
                // Reads that the conductor's next word may permit.
                Phase::Sealed => self.ready.extend(primary.stalled.values().copied()),
                Phase::Asking(_) | Phase::Joining | Phase::Failed(_) => {}
            }
        }
    }
}

/// What a member says of itself in the payload of its answer to a Join.
enum Said {
    Held(Vec<(Stamp, BlockRange, HeldAs)>),
    Syncing(FillState),
}

impl Said {
    fn parse(syncing: bool, payload: Option<&Payload>) -> Option<Self> {
        match payload {
            payload if syncing => FillState::decode(payload?.bytes()).map(Self::Syncing),
            Some(payload) => decode_held(payload.bytes()).map(Self::Held),
            None => Some(Self::Held(Vec::new())),
        }
    }
}

/// The counter of a question to the conductor.
pub(super) fn change_name(change: &MembershipChange) -> &'static str {
    match change {
        MembershipChange::Born => "ask.born",
        MembershipChange::Reopened(_) => "ask.reopened",
        MembershipChange::Drop(_) => "ask.drop",
        MembershipChange::Sync(..) => "ask.sync",
        MembershipChange::Add(_) => "ask.add",
        MembershipChange::StepDown => "ask.step-down",
        MembershipChange::CacheLost => "ask.cache-lost",
    }
}
