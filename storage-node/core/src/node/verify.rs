//! What primaries ask about the content of the copies here: to read it, to verify it, to repair it; and the like for the own copy.
//!
//! These follow no stamp. The primary holds the range's lock meanwhile, but it may lose its connection, give the lock back and send a
//! write while the store still reads for the older question: so every look is entered in the copy's `busy` ranges, and a write that
//! overlaps one is put off (`later`). A repair counts like a write: a Join waits for it (rule 6).

use super::Node;
use super::requests::Incoming;
use super::waits::StoreWait;
use crate::inspection::{Inspection, cost_of};
use crate::iocb::{ServerIocb, why};
use crate::iocbs::IocbKey;
use crate::limits::{MAX_MESSAGE_BLOCKS, SERVICES};
use crate::mail::Letter;
use crate::replica::Caller;
use conductor_model::{BLOCK, BlockRange, ShardId};
use driver::{Outbox, Time};
use memory::Class;
use node_protocol::{MAX_VERIFY_BLOCKS, ReplyBody, Status, VerifyAnswer, ViewBody, encode_crcs, op};
use node_store::{Store, StoreDone, StoreError, StoreOp, View};
use refcount::Hold;
use tcp::{Answer, Payload};
use wire::Op;

/// A question of another primary, on its way through the store.
#[derive(Debug)]
pub(crate) struct Service {
    caller: Caller,
    body: ViewBody,
    answer: Answer,
    /// The piece, while it is verified.
    look: Option<Inspection>,
    /// Its whole range is busy under this number, also between two reads: who asked may be gone, and its lock with it.
    busy: u64,
}

/// Whom a look at a copy's content is for.
#[derive(Debug)]
pub(crate) enum For {
    /// Another primary's question.
    Service(usize),
    /// A mend here: the piece is looked through.
    Look(IocbKey, Hold<ServerIocb, why::Subtask>),
    /// A mend here: one block's content is to be laid over another copy's.
    Own(IocbKey, Hold<ServerIocb, why::Subtask>),
    /// A mend here: one block was repaired.
    Repaired(IocbKey, Hold<ServerIocb, why::Subtask>),
}

/// A look at a copy's content, or a repair, that its store was given.
#[derive(Debug)]
pub(super) struct Look {
    shard: ShardId,
    /// Its range is busy under it.
    number: u64,
    changes: bool,
    whose: For,
}

impl Viewed for ViewBody {
    fn view(&self) -> View {
        self.snapshot().map_or(View::Live, View::Snapshot)
    }
}

/// The store's word for what a message names.
trait Viewed {
    fn view(&self) -> View;
}

impl<S: Store> Node<S> {
    /// REPLICA_READ, REPLICA_VERIFY, REPLICA_REPAIR.
    pub(super) fn content_asked(
        &mut self,
        now: Time,
        caller: Caller,
        incoming: Incoming<'_>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Incoming { op, body, payload, answer, .. } = incoming;
        let Some(body) = ViewBody::parse(body) else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        let (shard, at) = (body.shard(), body.range());
        let Some(answer) = self.permitted(now, shard, body.epoch(), caller, answer) else { return };
        let Some(replica) = self.replicas.get(&shard) else { return };
        let most = if op == op::REPLICA_READ { MAX_MESSAGE_BLOCKS } else { MAX_VERIFY_BLOCKS };
        let fits = at.count.0 > 0 && at.end() * BLOCK as u64 <= replica.size().0;
        let carried = payload.as_ref().map_or(0, |p| p.len as u64);
        let expected = if op == op::REPLICA_REPAIR { at.count.bytes().0 } else { 0 };
        if !fits || at.count.0 > most || carried != expected {
            self.reply_status(now, answer, if fits { Status::BadRequest } else { Status::OutOfRange });
            return;
        }
        if self.is_dropped(shard, body.view()) {
            self.reply_status(now, answer, Status::NoSnapshot);
            return;
        }
        let Some(replica) = self.replicas.get(&shard) else { return };
        if self.services.len() >= SERVICES || (op == op::REPLICA_REPAIR && !replica.bears_content(at)) {
            self.counters.count("content.put-off");
            self.reply_status(now, answer, Status::Later);
            return;
        }
        self.counters.count(match op {
            op::REPLICA_READ => "op.replica-read",
            op::REPLICA_VERIFY => "op.replica-verify",
            _ => "op.replica-repair",
        });
        let look = (op == op::REPLICA_VERIFY).then(|| Inspection::new(at));
        self.last_look += 1;
        let busy = self.last_look;
        if let Some(replica) = self.replicas.get_mut(&shard).filter(|_| look.is_some()) {
            replica.busy.push((busy, at, body.view()));
        }
        let key = self.services.insert(Service { caller, body, answer, look, busy });
        match payload {
            Some(p) => self.repair_here(now, shard, body.view(), at, p, For::Service(key), out),
            None if op == op::REPLICA_VERIFY => self.verify_on(now, key, out),
            None => {
                if !self.look_here(now, shard, body.view(), at, For::Service(key), out) {
                    self.end_service(now, key, Status::Later, None);
                }
            }
        }
    }

    /// Reads the next part of what is verified, or answers.
    fn verify_on(&mut self, now: Time, key: usize, out: &mut dyn Outbox<Letter>) {
        let Some(service) = self.services.get_mut(key) else { return };
        let (shard, view) = (service.body.shard(), service.body.view());
        if self.is_dropped(shard, view) {
            self.end_service(now, key, Status::NoSnapshot, None);
            return;
        }
        if !self.services.get(key).is_some_and(|service| self.still_permitted(service)) {
            self.end_service(now, key, Status::NotJoined, None);
            return;
        }
        let Some(service) = self.services.get_mut(key) else { return };
        if let Some(at) = service.look.as_mut().and_then(Inspection::next) {
            if !self.look_here(now, shard, view, at, For::Service(key), out) {
                self.end_service(now, key, Status::Later, None);
            }
            return;
        }
        let Some(look) = service.look.take() else { return };
        let (damaged, crcs) = look.found();
        if let Some(replica) = self.replicas.get(&shard) {
            self.disks[replica.disk].store.patrol(cost_of(&crcs));
        }
        let mut bytes = Vec::with_capacity(crcs.len() * 4);
        encode_crcs(&mut bytes, &crcs);
        let Some(mut into) = self.arena.take(bytes.len(), Class::Resync) else {
            self.end_service(now, key, Status::Later, None);
            return;
        };
        into.copy_from_slice(&bytes);
        let count = u32::try_from(crcs.len()).unwrap_or(u32::MAX);
        let reply = ReplyBody { word: count.into(), ..ReplyBody::new(Status::Ok) };
        let body = VerifyAnswer { reply, damaged: damaged.into() };
        let Some(service) = self.take_service(key) else { return };
        if self.still_permitted(&service) {
            self.net.reply(now, service.answer, Op::REPLY, body.bytes(), Some(super::whole_payload(into)));
        } else {
            self.reply_status(now, service.answer, Status::NotJoined);
        }
    }

    /// Is what was found still the content of the epoch that was asked in?
    fn still_permitted(&self, service: &Service) -> bool {
        let replica = self.replicas.get(&service.body.shard());
        replica.is_some_and(|r| r.permits(service.body.epoch(), service.caller).is_ok())
    }

    fn take_service(&mut self, key: usize) -> Option<Service> {
        let service = self.services.try_remove(key)?;
        if let Some(replica) = self.replicas.get_mut(&service.body.shard()) {
            replica.busy.retain(|(number, ..)| *number != service.busy);
        }
        Some(service)
    }

    fn end_service(&mut self, now: Time, key: usize, status: Status, payload: Option<Payload>) {
        let Some(service) = self.take_service(key) else { return };
        let status = if self.still_permitted(&service) { status } else { Status::NotJoined };
        let payload = payload.filter(|_| status == Status::Ok);
        self.net.reply(now, service.answer, Op::REPLY, ReplyBody::new(status).bytes(), payload);
    }

    /// Reads blocks of a copy here, of any view; false if there is no room for that now.
    pub(super) fn look_here(
        &mut self,
        now: Time,
        shard: ShardId,
        view: View,
        at: BlockRange,
        whose: For,
        out: &mut dyn Outbox<Letter>,
    ) -> bool {
        let Some(replica) = self.replicas.get(&shard) else { return false };
        let (disk, copy) = (replica.disk, replica.copy);
        if self.crowds[disk].all() >= self.store_share() / 2 {
            self.counters.count("store.waits");
            return false;
        }
        let Some(into) = self.arena.take(at.count.0 as usize * BLOCK, Class::Resync) else {
            self.counters.count("memory.waits");
            return false;
        };
        let wait = self.enter_busy(shard, view, at, false, whose);
        self.submit_to_store(now, disk, StoreOp::Read { copy, view, at, into }, wait, out);
        true
    }

    /// Lays another copy's content over what is damaged in a copy here.
    #[allow(clippy::too_many_arguments, reason = "what to repair, with what, for whom")]
    pub(super) fn repair_here(
        &mut self,
        now: Time,
        shard: ShardId,
        view: View,
        at: BlockRange,
        with: Payload,
        whose: For,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        replica.in_disk += 1;
        let (disk, copy) = (replica.disk, replica.copy);
        let wait = self.enter_busy(shard, view, at, true, whose);
        let operation = StoreOp::Repair { copy, view, at, data: with.mem, crcs: with.crcs };
        self.submit_to_store(now, disk, operation, wait, out);
    }

    /// Enters a range as busy until its operation is over.
    fn enter_busy(&mut self, shard: ShardId, view: View, at: BlockRange, changes: bool, whose: For) -> StoreWait {
        self.last_look += 1;
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.busy.push((self.last_look, at, view));
        }
        StoreWait::Content(Look { shard, number: self.last_look, changes, whose })
    }

    /// A look or repair of a copy here is over.
    pub(super) fn content_done(
        &mut self,
        now: Time,
        look: Look,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Look { shard, number, changes, whose } = look;
        if let Some(replica) = self.replicas.get_mut(&shard) {
            let busy = replica.busy.iter().position(|(busy, ..)| *busy == number);
            let busy = busy.map(|nth| replica.busy.remove(nth));
            replica.in_disk -= u32::from(changes);
            if let Some((_, at, view)) = busy.filter(|_| changes) {
                self.count_repair(shard, view, at, &result);
            }
        }
        match whose {
            For::Service(key) => self.service_done(now, key, result, out),
            For::Look(key, hold) => {
                self.mend_looked(now, key, result, out);
                drop(hold);
            }
            For::Own(key, hold) => {
                self.mend_read(now, key, result, out);
                drop(hold);
            }
            For::Repaired(key, hold) => {
                self.mend_repaired(now, key, result, out);
                drop(hold);
            }
        }
        if changes {
            self.go_on_joining(now, shard, out);
        }
    }

    fn service_done(
        &mut self,
        now: Time,
        key: usize,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(service) = self.services.get_mut(key) else { return };
        let shard = service.body.shard();
        match (result, &mut service.look) {
            (Ok(StoreDone::Read(_, crcs)), Some(look)) => {
                look.sound(&crcs);
                self.verify_on(now, key, out);
            }
            (Err(StoreError::Corrupt { block, .. }), Some(look)) => {
                look.damaged_at(block);
                self.verify_on(now, key, out);
            }
            (Ok(StoreDone::Read(data, crcs)), None) => {
                let payload = Payload { len: data.len(), mem: data.filled(), crcs };
                self.end_service(now, key, Status::Ok, Some(payload));
            }
            (Ok(_), _) => self.end_service(now, key, Status::Ok, None),
            (Err(error), _) => {
                let status = self.content_status(shard, &error, out);
                self.end_service(now, key, status, None);
            }
        }
    }

    /// What a store's refusal means to whoever asked about content.
    pub(super) fn content_status(
        &mut self,
        shard: ShardId,
        error: &StoreError,
        out: &mut dyn Outbox<Letter>,
    ) -> Status {
        match error {
            StoreError::Corrupt { .. } => Status::Io,
            StoreError::NoSuchSnapshot { .. } => Status::NoSnapshot,
            StoreError::OutOfRange { .. } => Status::OutOfRange,
            StoreError::Busy | StoreError::NoSuchCopy(_) => Status::Later,
            error => {
                // Not damage that another copy can put right: this disk's words are worth nothing.
                self.store_status(shard, error, out);
                Status::Later
            }
        }
    }
}
