//! A copy on this reactor joins an epoch (rules 2, 6 and 20): for a primary elsewhere, or for one here.

use super::gather::trusted;
use super::requests::Incoming;
use super::waits::StoreWait;
use super::{Node, whole_payload};
use crate::mail::Letter;
use crate::primary::{FailedBy, PrimaryPhase};
use crate::replica::{Asker, Caller, JoinStep, Replica};
use conductor_model::{BLOCK, Configuration, CopyId, Epoch, ShardId};
use driver::{Outbox, Time};
use memory::Class;
use node_protocol::{FillState, JoinAnswer, JoinBody, Mark, ReplyBody, Status, encode_held};
use node_store::{FillMark, Held, Store, StoreDone, StoreError, StoreOp};
use tcp::{Answer, Payload};
use wire::Op;

impl<S: Store> Node<S> {
    /// JOIN: from here on older epochs are refused; the answer comes when it is all durable (rule 6).
    pub(super) fn join_asked(
        &mut self,
        now: Time,
        caller: Caller,
        incoming: Incoming<'_>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Incoming { body, payload, answer, .. } = incoming;
        self.counters.count("op.join");
        let parsed = JoinBody::parse(body).zip(payload.and_then(|p| read_config(&p.mem[..p.len])));
        let Some((body, config)) = parsed else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        let names = config.member(body.copy());
        let consistent = config.shard == body.shard() && config.epoch == body.epoch();
        let (Some(member), true) = (names, consistent) else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        let Some(disk) = self.disks.iter().position(|d| d.disk == member.disk) else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        if self.disks[disk].open != body.open() && !driver::mutant::on("restarted_node_trusted") {
            self.reply_status(now, answer, Status::Reopened);
            return;
        }
        let copy = member.copy;
        self.begin_join(now, disk, copy, config, Asker::Remote(answer, caller), out);
    }

    /// Begins a Join for the primary here or elsewhere.
    pub(super) fn begin_join(
        &mut self,
        now: Time,
        disk: usize,
        copy: CopyId,
        config: Configuration,
        asker: Asker,
        out: &mut dyn Outbox<Letter>,
    ) {
        let shard = config.shard;
        if self.deletions.gone.contains(copy) || self.deletions.doomed.contains_key(&copy) {
            // Its volume is deleted; whoever still asks has not been told yet.
            self.join_refused(now, shard, asker, Status::NotJoined, "the volume was deleted");
            return;
        }
        let known = self.replicas.get(&shard).filter(|r| r.copy == copy);
        let syncing = config.is_syncing(copy);
        if known.is_none() && config.born && !syncing {
            // It should be here and is not: lost, never silently empty.
            self.counters.count("join.copy-lost");
            self.join_refused(now, shard, asker, Status::Io, "this disk does not hold the copy any more");
            return;
        }
        if known.is_some_and(|r| config.epoch < r.epoch()) {
            let epoch = known.map_or(Epoch(0), Replica::epoch);
            self.counters.count("join.stale");
            match asker {
                Asker::Remote(answer, _) => self.reply_with_epoch(now, answer, Status::StaleEpoch, epoch),
                Asker::Local => self.ask_for_news(now, shard, out),
            }
            return;
        }
        let replica = self.replicas.entry(shard).or_insert_with(|| Replica::new(disk, copy, config.clone()));
        if replica.copy != copy {
            // A copy of an earlier life of this shard: its deletion has not reached us yet.
            self.join_refused(now, shard, asker, Status::NotJoined, "another copy of this shard is being deleted");
            return;
        }
        if let Some((epoch, by)) = replica.joined
            && epoch == config.epoch
        {
            // The answer was lost: membership and the duplicate filter stand, the list is made again.
            let same = match &asker {
                Asker::Local => by.is_none(),
                Asker::Remote(_, caller) => by == Some(*caller) || driver::mutant::on("restarted_node_trusted"),
            };
            if !same {
                self.join_refused(now, shard, asker, Status::StaleEpoch, "another process has joined this epoch");
                return;
            }
            self.counters.count("join.repeated");
        }
        let asks = match &asker {
            Asker::Local => None,
            Asker::Remote(_, caller) => Some(*caller),
        };
        let bound = self.binding(now, shard, &config, asks);
        let step = if !self.promises.quarantine.is_over(now) || bound.is_some() {
            JoinStep::Parked
        } else {
            JoinStep::Draining
        };
        if step == JoinStep::Parked {
            self.counters.count("join.parked");
        }
        if let Some(to) = self.other_holder(shard, &config, asks) {
            // Also when its promise has run out: it may be asking for the next one.
            self.promises.withheld.withhold(to, shard, config.epoch);
        }
        if config.primary != copy && self.primaries.get(&shard).is_some_and(|p| p.config.epoch < config.epoch) {
            // The primary here is deposed: it serves nothing from now on.
            self.step_down(now, shard, out);
        }
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let replaced = replica.joining.take();
        let refused = replica.start_joining(config, asker, step, bound);
        if let Some(old) = replaced
            && let Asker::Remote(answer, _) = old.asker
        {
            self.reply_status(now, answer, Status::StaleEpoch);
        }
        for answer in refused {
            self.reply_status(now, answer, Status::NotJoined);
        }
        self.go_on_joining(now, shard, out);
    }

    /// Takes a Join to its next step if it can go there.
    pub(super) fn go_on_joining(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let (in_disk, exists) = (replica.in_disk, replica.exists);
        if replica.persisting > 0 {
            return;
        }
        let (disk, copy) = (replica.disk, replica.copy);
        // One that is filled holds everything by itself.
        let is_filled = |c: &Configuration| c.is_syncing(copy);
        let joining = replica.joining.as_ref().filter(|j| !exists && !is_filled(&j.config));
        let begins_as = joining.and_then(|j| j.config.parent);
        let parent = begins_as.map(|of| self.beside(disk, of));
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        if let (Some(None), Some(of)) = (parent, begins_as)
            && let Some(joining) = replica.joining.take_if(|j| j.step == JoinStep::Draining)
        {
            let why = format!("its disk does not hold {} of {}, which this clone begins as", of.snapshot, of.shard);
            self.join_refused(now, shard, joining.asker, Status::NoSnapshot, &why);
            return;
        }
        let parent = parent.flatten();
        let Some(joining) = &mut replica.joining else { return };
        if joining.step != JoinStep::Draining || (in_disk > 0 && !driver::mutant::on("join_without_draining")) {
            return;
        }
        joining.step = JoinStep::Persisting;
        replica.persisting += 1;
        let config = joining.config.clone();
        let epoch = config.epoch;
        let operation = if exists { StoreOp::Join { copy, config } } else { StoreOp::Create { copy, config, parent } };
        self.submit_to_store(now, disk, operation, StoreWait::JoinPersist { shard, epoch }, out);
    }

    /// The configuration is on disk.
    pub(super) fn join_persisted(
        &mut self,
        now: Time,
        shard: ShardId,
        epoch: Epoch,
        result: Result<(), StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let status = result.as_ref().err().map(|error| self.store_status(shard, error, out));
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        replica.persisting -= 1;
        replica.exists |= status.is_none();
        let Some(joining) =
            replica.joining.as_mut().filter(|j| j.config.epoch == epoch && j.step == JoinStep::Persisting)
        else {
            // A newer Join has come meanwhile, and waited for this.
            self.go_on_joining(now, shard, out);
            return;
        };
        if let Some(status) = status {
            if let Some(joining) = replica.joining.take() {
                self.join_refused(now, shard, joining.asker, status, "the configuration could not be stored");
            }
            return;
        }
        joining.step = JoinStep::Listing;
        if joining.config.epoch > replica.config.epoch {
            replica.stored_before = replica.config.epoch;
        }
        replica.config = joining.config.clone();
        let (disk, copy) = (replica.disk, replica.copy);
        self.submit_to_store(now, disk, StoreOp::Above { copy }, StoreWait::JoinList { shard, epoch }, out);
    }

    /// K and what lies above it are known: the Join is answered, and writes of its epoch are taken.
    pub(super) fn join_listed(
        &mut self,
        now: Time,
        shard: ShardId,
        epoch: Epoch,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let status = result.as_ref().err().map(|error| self.store_status(shard, error, out));
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let current = replica.joining.as_ref().is_some_and(|j| j.config.epoch == epoch && j.step == JoinStep::Listing);
        let Some(joining) = (if current { replica.joining.take() } else { None }) else { return };
        let (known_good, held) = match (result, status) {
            (Ok(StoreDone::Above { known_good, held }), _) if held.len() <= node_store::MAX_HELD => (known_good, held),
            (_, status) => {
                self.join_refused(
                    now,
                    shard,
                    joining.asker,
                    status.unwrap_or(Status::Io),
                    "what it holds could not be listed",
                );
                return;
            }
        };
        replica.known_good = known_good;
        match joining.asker {
            Asker::Local => {
                let (copy, stored) = (replica.copy, replica.stored_before);
                replica.joined = Some((epoch, None));
                replica.promised_to = None;
                self.counters.count("join.answered");
                self.member_joined(now, shard, epoch, (copy, known_good, stored), &held, out);
            }
            Asker::Remote(answer, caller) => self.answer_join(now, answer, caller, &joining.config, &held),
        }
    }

    /// The answer to a primary elsewhere: what this copy holds above K, or how far it is filled while it is syncing.
    fn answer_join(&mut self, now: Time, answer: Answer, caller: Caller, config: &Configuration, held: &[Held]) {
        let Some(replica) = self.replicas.get(&config.shard) else { return };
        let (copy, known_good, stored) = (replica.copy, replica.known_good, replica.stored_before);
        let store = &self.disks[replica.disk].store;
        let (free_blocks, pages) = (store.usage().free(), store.leeway().pages);
        let syncing = config.is_syncing(copy);
        let payload = if syncing {
            let FillMark { base, cursor, upto } = store.fill_mark(copy);
            let mark = Mark { base, cursor, upto, complete: false };
            self.settle_payload(&FillState { mark, snapshots: store.snapshots(copy) }.encode())
        } else {
            self.held_payload(held)
        };
        let Some(payload) = payload else {
            // No memory even in the settle class: the primary asks again.
            self.reply_status(now, answer, Status::Later);
            return;
        };
        if let Some(replica) = self.replicas.get_mut(&config.shard) {
            replica.joined = Some((config.epoch, Some(caller)));
            replica.promised_to = Some(caller);
        }
        let known_good = if syncing { trusted(config, copy, known_good) } else { known_good };
        let count = if syncing { 0 } else { u32::try_from(held.len()).unwrap_or(u32::MAX) };
        let body = JoinAnswer {
            reply: ReplyBody { word: count.into(), ..ReplyBody::new(Status::Ok) },
            known_good_epoch: known_good.epoch.0.into(),
            known_good_sequence: known_good.sequence.0.into(),
            free_blocks: free_blocks.into(),
            stored_epoch: stored.0.into(),
            pages: u64::from(pages).into(),
        };
        self.counters.count("join.answered");
        self.promise(now, caller);
        self.net.reply(now, answer, Op::REPLY, body.bytes(), payload);
    }

    /// The list as a payload; `Some(None)` if it is empty, `None` if there is no memory.
    fn held_payload(&self, held: &[Held]) -> Option<Option<Payload>> {
        if held.is_empty() {
            return Some(None);
        }
        let mut bytes = Vec::with_capacity(held.len() * 32);
        held.iter().for_each(|held| encode_held(&mut bytes, held));
        self.settle_payload(&bytes)
    }

    fn settle_payload(&self, bytes: &[u8]) -> Option<Option<Payload>> {
        let mut into = self.arena.take(bytes.len(), Class::Settle)?;
        into.copy_from_slice(bytes);
        Some(Some(whole_payload(into)))
    }

    fn join_refused(&mut self, now: Time, shard: ShardId, asker: Asker, status: Status, why: &str) {
        match asker {
            Asker::Remote(answer, _) => self.reply_status(now, answer, status),
            // The store was busy, or what it begins as is not here: the tick begins it again.
            Asker::Local if matches!(status, Status::Later | Status::NoSnapshot) => {
                self.counters.count("join.again");
                if let Some(primary) = self.primaries.get_mut(&shard) {
                    primary.join_refusals.insert(primary.config.primary, why.to_owned());
                }
            }
            Asker::Local => {
                if let Some(primary) = self.primaries.get_mut(&shard) {
                    // One that hangs may still come back, and joins then once more.
                    let by = match primary.phase {
                        PrimaryPhase::Failed { by, .. } => by,
                        _ => FailedBy::Breaking,
                    };
                    primary.phase = PrimaryPhase::Failed { why: why.to_owned(), by };
                }
            }
        }
    }
}

/// A Join's payload. Remote input: anything that is not a whole, sane configuration is none.
fn read_config(payload: &[u8]) -> Option<Configuration> {
    let config: Configuration = serde_json::from_slice(payload).ok()?;
    let sane = config.primary_member().is_some()
        && config.size.is_block_aligned()
        && config.size.0 / BLOCK as u64 <= u64::from(u32::MAX)
        && config.epoch.0 > 0
        && config.is_credible();
    sane.then_some(config)
}
