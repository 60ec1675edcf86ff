//! What primaries ask of the copies on this reactor: to join an epoch, to write under a stamp, to promise.

use super::{Node, Pending, whole_payload};
use crate::limits::{MAX_HELD, PROMISE, STORE_OPS};
use crate::mail::Letter;
use crate::primary::{Joined, Phase as PrimaryPhase};
use crate::replica::{Admission, Asker, JoinStep, Replica};
use conductor_model::{BLOCK, BlockRange, Configuration, CopyId, Epoch, ShardId, Stamp};
use driver::{Outbox, Span, Time};
use memory::Class;
use node_protocol::{
    JoinAnswer, JoinBody, PromiseAnswer, PromiseBody, ReplicaBody, ReplyBody, Status, encode_held, op,
};
use node_store::{Held, HeldKind, Store, StoreDone, StoreError, StoreOp};
use tcp::{Answer, Payload};
use wire::Op;

impl<S: Store> Node<S> {
    /// REPLICA_WRITE or REPLICA_ZERO: whole blocks under a stamp of the epoch that this copy has joined.
    #[allow(clippy::too_many_arguments, reason = "the parts of one NetEvent")]
    pub(super) fn replica_write(
        &mut self,
        now: Time,
        process: u64,
        op: Op,
        body: &[u8],
        payload: Option<Payload>,
        answer: Answer,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(body) = ReplicaBody::parse(body) else {
            self.refuse(now, answer, Status::BadRequest);
            return;
        };
        let (shard, stamp, range) = (body.shard(), body.stamp(), body.range());
        let Some(replica) = self.replicas.get_mut(&shard) else {
            self.refuse_epoch(now, answer, Status::NotJoined, Epoch(0));
            return;
        };
        if let Err(status) = replica.permits(stamp.epoch, process) {
            let epoch = replica.epoch();
            self.counters.count("replica.not-joined");
            self.refuse_epoch(now, answer, status, epoch);
            return;
        }
        let carried = payload.as_ref().map_or(0, |p| p.len as u64);
        let expected = if op == op::REPLICA_WRITE { range.count.bytes().0 } else { 0 };
        let fits = range.count.0 > 0 && range.end() * BLOCK as u64 <= replica.size().0;
        if !fits || carried != expected || stamp.sequence.0 == 0 {
            self.refuse(now, answer, if fits { Status::BadRequest } else { Status::OutOfRange });
            return;
        }
        // Beside a full store: a look that nobody waits for any more is not over in it.
        let full = self.in_store[replica.disk] >= STORE_OPS / self.disks.len().max(1) || replica.is_busy(range);
        match replica.admit(stamp.sequence, body.floor()) {
            Admission::Begin if full => {
                self.counters.count("store.waits");
                self.refuse(now, answer, Status::Later);
            }
            Admission::Answer(status) => {
                self.counters.count("replica.repeat-answered");
                self.refuse(now, answer, status);
            }
            Admission::Wait => {
                self.counters.count("replica.repeat-waits");
                replica.wait_for(stamp.sequence, answer);
            }
            Admission::Begin => {
                replica.wait_for(stamp.sequence, answer);
                replica.in_disk += 1;
                if let Some(known_good) = body.known_good() {
                    replica.known_good = Stamp { epoch: stamp.epoch, sequence: known_good };
                }
                let (disk, copy, known_good) = (replica.disk, replica.copy, replica.known_good);
                self.counters.count(if payload.is_some() { "op.replica-write" } else { "op.replica-zero" });
                let operation = match payload {
                    Some(p) => {
                        StoreOp::Write { copy, stamp, at: range, data: p.mem, crcs: p.crcs, known_good, durable: true }
                    }
                    None => StoreOp::Zero { copy, stamp, at: range, known_good, durable: true },
                };
                self.store(now, disk, operation, Pending::ReplicaWrite { shard, stamp }, out);
            }
        }
    }

    /// The disk is done with a replica write: durable, or refused.
    pub(super) fn replica_write_done(
        &mut self,
        now: Time,
        shard: ShardId,
        stamp: Stamp,
        result: Result<(), StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let status = match result {
            Ok(()) => Status::Ok,
            Err(error) => self.store_status(shard, &error, out),
        };
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        if let Some(answer) = replica.finished(stamp, status) {
            self.refuse(now, answer, status);
        }
        self.go_on_joining(now, shard, out);
    }

    /// What a store's refusal means to whoever asked. A failed disk is reported once.
    pub(super) fn store_status(&mut self, shard: ShardId, error: &StoreError, out: &mut dyn Outbox<Letter>) -> Status {
        match error {
            StoreError::NoSpace => Status::NoSpace,
            // Not a failure of the copy: asked again.
            StoreError::Busy => Status::Later,
            error => {
                self.counters.count("store.failed");
                if let Some(replica) = self.replicas.get(&shard) {
                    out.post(Letter::DiskFailed(self.disks[replica.disk].disk, error.to_string()));
                }
                Status::Io
            }
        }
    }

    /// JOIN: from here on older epochs are refused; the answer comes when it is all durable (rule 6).
    #[allow(clippy::too_many_arguments, reason = "the parts of one NetEvent")]
    pub(super) fn join_asked(
        &mut self,
        now: Time,
        process: u64,
        body: &[u8],
        payload: Option<Payload>,
        answer: Answer,
        out: &mut dyn Outbox<Letter>,
    ) {
        self.counters.count("op.join");
        let parsed = JoinBody::parse(body).zip(payload.and_then(|p| read_config(&p.mem[..p.len])));
        let Some((body, config)) = parsed else {
            self.refuse(now, answer, Status::BadRequest);
            return;
        };
        let names = config.member(body.copy());
        let consistent = config.shard == body.shard() && config.epoch == body.epoch();
        let (Some(member), true) = (names, consistent) else {
            self.refuse(now, answer, Status::BadRequest);
            return;
        };
        let Some(disk) = self.disks.iter().position(|d| d.disk == member.disk) else {
            self.refuse(now, answer, Status::BadRequest);
            return;
        };
        if self.disks[disk].open != body.open() && !driver::mutant::on("restarted_node_trusted") {
            self.refuse(now, answer, Status::Reopened);
            return;
        }
        let copy = member.copy;
        self.begin_join(now, disk, copy, config, Asker::Remote(answer, process), out);
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
        if self.gone.contains(&copy) || self.doomed.contains(&copy) {
            // Its volume is deleted; whoever still asks has not been told yet.
            self.join_refused(now, shard, asker, Status::NotJoined, "the volume was deleted");
            return;
        }
        let known = self.replicas.get(&shard).filter(|r| r.copy == copy);
        if known.is_none() && config.born {
            // It should be here and is not: lost, never silently empty.
            self.counters.count("join.copy-lost");
            self.join_refused(now, shard, asker, Status::Io, "this disk does not hold the copy any more");
            return;
        }
        if known.is_some_and(|r| config.epoch < r.epoch()) {
            let epoch = known.map_or(Epoch(0), Replica::epoch);
            self.counters.count("join.stale");
            match asker {
                Asker::Remote(answer, _) => self.refuse_epoch(now, answer, Status::StaleEpoch, epoch),
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
        let repeats = replica.joined.is_some_and(|(epoch, _)| epoch == config.epoch);
        if repeats && let Some((_, by)) = replica.joined {
            // The answer was lost: membership and the duplicate filter stand, the list is made again.
            let same = match &asker {
                Asker::Local => by.is_none(),
                Asker::Remote(_, process) => by == Some(*process) || driver::mutant::on("restarted_node_trusted"),
            };
            if !same {
                self.join_refused(now, shard, asker, Status::StaleEpoch, "another process has joined this epoch");
                return;
            }
            self.counters.count("join.repeated");
        }
        let asks = match &asker {
            Asker::Local => None,
            Asker::Remote(_, process) => Some(*process),
        };
        let bound = |(to, until): (&u64, &Time)| Some(*to) != asks && now < *until;
        let binding = replica.other_primary(&config) && self.promised.iter().any(bound);
        let step = if !self.quarantine.is_over(now) || binding { JoinStep::Parked } else { JoinStep::Draining };
        if step == JoinStep::Parked {
            self.counters.count("join.parked");
        }
        let replaced = replica.joining.take();
        let refused = replica.start_joining(config, asker, step);
        if let Some(old) = replaced
            && let Asker::Remote(answer, _) = old.asker
        {
            self.refuse(now, answer, Status::StaleEpoch);
        }
        for answer in refused {
            self.refuse(now, answer, Status::NotJoined);
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
        let Some(joining) = &mut replica.joining else { return };
        if joining.step != JoinStep::Draining || (in_disk > 0 && !driver::mutant::on("join_without_draining")) {
            return;
        }
        joining.step = JoinStep::Persisting;
        replica.persisting += 1;
        let config = joining.config.clone();
        let epoch = config.epoch;
        let operation =
            if exists { StoreOp::Join { copy, config } } else { StoreOp::Create { copy, config, parent: None } };
        self.store(now, disk, operation, Pending::Persist { shard, epoch }, out);
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
        replica.config = joining.config.clone();
        let (disk, copy) = (replica.disk, replica.copy);
        self.store(now, disk, StoreOp::Above { copy }, Pending::Above { shard, epoch }, out);
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
            (Ok(StoreDone::Above { known_good, held }), _) if held.len() <= MAX_HELD => (known_good, held),
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
        let copy = replica.copy;
        let disk = replica.disk;
        match joining.asker {
            Asker::Local => {
                replica.joined = Some((epoch, None));
                self.counters.count("join.answered");
                self.member_joined(now, shard, epoch, copy, &held, out);
            }
            Asker::Remote(answer, process) => {
                let free_blocks = self.disks[disk].store.usage().free();
                let Some(payload) = self.held_payload(&held) else {
                    // No memory even in the settle class: the primary asks again.
                    self.refuse(now, answer, Status::Later);
                    return;
                };
                if let Some(replica) = self.replicas.get_mut(&shard) {
                    replica.joined = Some((epoch, Some(process)));
                }
                let count = u32::try_from(held.len()).unwrap_or(u32::MAX);
                let body = JoinAnswer {
                    reply: ReplyBody { word: count.into(), ..ReplyBody::new(Status::Ok) },
                    known_good_epoch: known_good.epoch.0.into(),
                    known_good_sequence: known_good.sequence.0.into(),
                    free_blocks: free_blocks.into(),
                };
                self.counters.count("join.answered");
                self.promise(now, process);
                self.net.reply(now, answer, Op::REPLY, body.bytes(), payload);
            }
        }
    }

    /// The list as a payload; `Some(None)` if it is empty, `None` if there is no memory.
    fn held_payload(&self, held: &[Held]) -> Option<Option<Payload>> {
        if held.is_empty() {
            return Some(None);
        }
        let mut bytes = Vec::with_capacity(held.len() * 32);
        for entry in held {
            encode_held(&mut bytes, entry.stamp, entry.at, entry.kind == HeldKind::Zero);
        }
        let mut into = self.arena.take(bytes.len(), Class::Settle)?;
        into.copy_from_slice(&bytes);
        Some(Some(whole_payload(into)))
    }

    fn join_refused(&mut self, now: Time, shard: ShardId, asker: Asker, status: Status, why: &str) {
        match asker {
            Asker::Remote(answer, _) => self.refuse(now, answer, status),
            // The store was busy: the tick begins it again.
            Asker::Local if status == Status::Later => self.counters.count("join.again"),
            Asker::Local => {
                if let Some(primary) = self.primaries.get_mut(&shard) {
                    primary.phase = PrimaryPhase::Failed(why.to_owned());
                }
            }
        }
    }

    /// Parked Joins whose time has come.
    pub(super) fn tick_parked(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.promised.retain(|_, until| now < *until);
        if !self.quarantine.is_over(now) {
            return;
        }
        let bound = !self.promised.is_empty();
        let mut free = Vec::new();
        for (shard, replica) in &mut self.replicas {
            let waits_for_promise = bound && replica.joining.as_ref().is_some_and(|j| replica.other_primary(&j.config));
            if let Some(joining) = &mut replica.joining
                && joining.step == JoinStep::Parked
                && !waits_for_promise
            {
                joining.step = JoinStep::Draining;
                free.push(*shard);
            }
        }
        for shard in free {
            self.go_on_joining(now, shard, out);
        }
    }

    /// PROMISE: this reactor will not join a newer epoch under another primary for the time granted.
    pub(super) fn promise_asked(&mut self, now: Time, process: u64, body: &[u8], answer: Answer) {
        let Some(body) = PromiseBody::parse(body) else {
            self.refuse(now, answer, Status::BadRequest);
            return;
        };
        self.counters.count("op.promise");
        let asked = Span::millis(u64::from(body.prefix.word.get()));
        let granted = Span(asked.0.min(PROMISE.0));
        self.promise(now, process);
        let free_blocks = self.disks.iter().map(|d| d.store.usage().free()).min().unwrap_or(0);
        let word = u32::try_from(granted.as_millis()).unwrap_or(0);
        let body = PromiseAnswer {
            reply: ReplyBody { word: word.into(), ..ReplyBody::new(Status::Ok) },
            free_blocks: free_blocks.into(),
        };
        self.net.reply(now, answer, Op::REPLY, body.bytes(), None);
    }

    /// Counted from sending the answer, and always for the full time: the asker ends it earlier.
    fn promise(&mut self, now: Time, process: u64) {
        self.promised.insert(process, now + PROMISE);
    }

    /// One member has answered its Join.
    pub(super) fn member_joined(
        &mut self,
        now: Time,
        shard: ShardId,
        epoch: Epoch,
        copy: CopyId,
        held: &[Held],
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        if primary.config.epoch != epoch || !matches!(primary.phase, PrimaryPhase::Joining) {
            return;
        }
        let size = u64::from(u32::MAX).min(primary.config.size.0 / BLOCK as u64);
        let fits = |r: &BlockRange| r.count.0 > 0 && r.end() <= size;
        let held = held.iter().map(|h| h.at).filter(fits).collect();
        primary.answers.insert(copy, Joined { held });
        self.all_joined(now, shard, out);
    }

    /// Deletes copies whose volume is gone.
    pub(super) fn drop_copies(&mut self, now: Time, copies: Vec<CopyId>, out: &mut dyn Outbox<Letter>) {
        for copy in copies {
            let Some((shard, disk)) = self.replicas.iter().find(|(_, r)| r.copy == copy).map(|(s, r)| (*s, r.disk))
            else {
                if !self.doomed.contains(&copy) {
                    self.gone.insert(copy);
                    out.post(Letter::Dropped(copy));
                }
                continue;
            };
            self.step_down(now, shard, out);
            let replica = &self.replicas[&shard];
            let looked_at = replica.reading > 0 || !replica.busy.is_empty();
            if replica.in_disk > 0 || looked_at || replica.persisting > 0 || replica.joining.is_some() {
                // It is told again, and by then the disk is done.
                continue;
            }
            self.replicas.remove(&shard);
            self.doomed.insert(copy);
            self.store(now, disk, StoreOp::Delete { copy }, Pending::Delete { copy }, out);
        }
    }

    /// A copy is gone for good, or its disk would not.
    pub(super) fn copy_deleted(&mut self, copy: CopyId, gone: bool, out: &mut dyn Outbox<Letter>) {
        self.doomed.remove(&copy);
        if gone {
            self.gone.insert(copy);
            self.counters.count("copy.deleted");
            out.post(Letter::Dropped(copy));
        }
    }
}

/// A Join's payload. Remote input: anything that is not a whole, sane configuration is none.
fn read_config(payload: &[u8]) -> Option<Configuration> {
    let config: Configuration = serde_json::from_slice(payload).ok()?;
    let sane = config.primary_member().is_some()
        && config.size.is_block_aligned()
        && config.size.0 / BLOCK as u64 <= u64::from(u32::MAX)
        && config.epoch.0 > 0;
    sane.then_some(config)
}
