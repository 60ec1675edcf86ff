//! What a client, or another primary, is answered, and the end of a request.

use super::Node;
use super::orders::PartDone;
use super::requests::{is_whole, sub_block};
use crate::iocb::{Heal, IocbPhase, Kind, Stage};
use crate::iocbs::IocbKey;
use crate::limits::TRACES;
use crate::replica::Caller;
use conductor_model::{BlockRange, Blocks, Commit, Epoch, ShardId};
use driver::Time;
use memory::Filling;
use node_protocol::{ExtentsAnswer, ReplyBody, StaleBody, Status};
use node_store::{Crcs, Store};
use tcp::{Answer, Payload};
use wire::Op;

impl<S: Store> Node<S> {
    /// Answers with a bare status.
    pub(super) fn reply_status(&mut self, now: Time, answer: Answer, status: Status) {
        self.net.reply(now, answer, Op::REPLY, ReplyBody::new(status).bytes(), None);
    }

    /// Answers with a status and the epoch that this node knows.
    pub(super) fn reply_with_epoch(&mut self, now: Time, answer: Answer, status: Status, epoch: Epoch) {
        self.reply_with_generation(now, answer, status, (epoch, Commit(0)));
    }

    /// May this primary ask things of the copy here, in this epoch (rule 12)? The answer is given back if so; if not, it was told no, and
    /// which epoch the copy has joined.
    pub(super) fn permitted(
        &mut self,
        now: Time,
        shard: ShardId,
        epoch: Epoch,
        caller: Caller,
        answer: Answer,
    ) -> Option<Answer> {
        let (status, joined) = match self.replicas.get(&shard) {
            None => (Status::NotJoined, Epoch(0)),
            Some(replica) => match replica.permits(epoch, caller) {
                Ok(()) => return Some(answer),
                Err(status) => (status, replica.epoch()),
            },
        };
        self.counters.count("replica.not-joined");
        self.reply_with_epoch(now, answer, status, joined);
        None
    }

    /// Answers a client with what is known at once, mostly no; where that is a matter of epochs, with what is known of its shard.
    pub(super) fn reply_at_once(&mut self, now: Time, answer: Answer, status: Status, shard: Option<ShardId>) {
        self.counters.count(reply_counter(status));
        if matches!(status, Status::StaleEpoch | Status::Later) {
            let primary = shard.and_then(|shard| self.primaries.get(&shard));
            let known = primary.map(|primary| (primary.config.epoch, primary.config.cache));
            self.reply_with_generation(now, answer, status, known.unwrap_or_default());
        } else {
            self.reply_status(now, answer, status);
        }
    }

    /// Answers a client with a status and the epoch in which this node is the shard's primary, with its cache generation: whom the conductor
    /// does not tell goes on by that.
    pub(super) fn reply_with_generation(
        &mut self,
        now: Time,
        answer: Answer,
        status: Status,
        (epoch, cache): (Epoch, Commit),
    ) {
        let body = StaleBody { reply: ReplyBody::new(status), epoch: epoch.0.into(), cache: cache.0.into() };
        self.net.reply(now, answer, Op::REPLY, body.bytes(), None);
    }

    /// Answers with which blocks hold data, and ends the request.
    pub(super) fn answer_extents(&mut self, now: Time, key: IocbKey, data: &[BlockRange], next: Blocks) {
        let iocb = &mut self.iocbs[key];
        let body = ExtentsAnswer::new(iocb.range, data, next);
        iocb.stages.mark(Stage::Replied, now);
        if let Some(answer) = iocb.answer.take() {
            self.net.reply(now, answer, Op::REPLY, body.bytes(), None);
        }
        self.counters.count("reply.ok");
        self.end_request(now, key);
    }

    /// Answers with the bytes that were asked for, of the blocks that were read, and ends the request.
    pub(super) fn answer_read(&mut self, now: Time, key: IocbKey, mut data: Filling, crcs: Crcs) {
        let iocb = &mut self.iocbs[key];
        let len = iocb.body.len() as usize;
        let crcs = if is_whole(&iocb.body) {
            crcs
        } else {
            let from = sub_block(&iocb.body);
            data.copy_within(from..from + len, 0);
            data.truncate(len);
            wire::pieces(&data)
        };
        iocb.stages.mark(Stage::Replied, now);
        if let Some(answer) = iocb.answer.take() {
            let payload = Payload { mem: data.filled(), len, crcs };
            self.net.reply(now, answer, Op::REPLY, ReplyBody::new(Status::Ok).bytes(), Some(payload));
        }
        self.counters.count("reply.ok");
        self.end_request(now, key);
    }

    /// Answers with a status and ends the request.
    pub(super) fn answer(&mut self, now: Time, key: IocbKey, status: Status) {
        let iocb = &mut self.iocbs[key];
        iocb.stages.mark(Stage::Replied, now);
        if let Some(answer) = iocb.answer.take() {
            self.reply_status(now, answer, status);
        }
        if let Some(order) = self.iocbs[key].order {
            let range = self.iocbs[key].range;
            self.orders.news.push_back(PartDone { order, range, status });
        }
        self.counters.count(if status == Status::Ok { "reply.ok" } else { reply_counter(status) });
        self.end_request(now, key);
    }

    /// A write is finished on every copy: answered, or held as long as a barrier asks for it (rule 17).
    pub(super) fn answer_or_hold(&mut self, now: Time, key: IocbKey) {
        let iocb = &mut self.iocbs[key];
        let held =
            iocb.kind.waits_for_barrier() && self.primaries.get(&iocb.shard).is_some_and(|p| !p.holds.is_empty());
        if held {
            self.counters.count("write.held");
            iocb.phase = IocbPhase::BehindBarrier;
        } else {
            self.answer(now, key, Status::Ok);
        }
    }

    /// Answers a client with a status and what this node knows of its shard, and ends the request.
    pub(super) fn answer_with_generation(&mut self, now: Time, key: IocbKey, status: Status, known: (Epoch, Commit)) {
        let iocb = &mut self.iocbs[key];
        iocb.stages.mark(Stage::Replied, now);
        if let Some(answer) = iocb.answer.take() {
            self.reply_with_generation(now, answer, status, known);
        }
        self.counters.count(reply_counter(status));
        self.end_request(now, key);
    }

    /// The request is over: its lock goes to those who wait, its hold back. The slot is freed when its last subtask completed.
    pub(super) fn end_request(&mut self, now: Time, key: IocbKey) {
        if self.iocbs[key].kind == Kind::Fill {
            self.piece_ended(now, key);
        }
        let iocb = &mut self.iocbs[key];
        let request = iocb.request.take();
        if iocb.stamp.is_some() && iocb.kind.takes_space() {
            self.taken.blocks -= u64::from(iocb.range.count.0);
        }
        self.taken.pages -= std::mem::take(&mut iocb.pages);
        let (volume, arrival) = (iocb.shard.volume, iocb.arrival);
        self.settling_pieces -= usize::from(iocb.kind == Kind::Settle && request.is_some());
        if let Some(payload) = iocb.payload.take()
            && iocb.kind == Kind::Write
            && let Some(bytes) = self.taken.payload.get_mut(&volume)
        {
            *bytes -= payload.mem.capacity();
            if *bytes == 0 {
                self.taken.payload.remove(&volume);
            }
        }
        iocb.answer = None;
        iocb.heal = Heal::default();
        if iocb.conn.is_some() {
            if self.traces.len() == TRACES {
                self.traces.pop_front();
            }
            self.traces.push_back(iocb.stages);
        }
        let shard = iocb.shard;
        self.crowds.iter_mut().for_each(|crowd| crowd.looks_again(arrival));
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.requests.remove(&arrival);
            primary.stalled.remove(&arrival);
            let mut granted = Vec::new();
            primary.locks.release(key, &mut granted);
            self.wake(granted);
        }
        drop(request);
    }
}

/// The counter of an answer.
pub(super) fn reply_counter(status: Status) -> &'static str {
    match status {
        Status::Ok => "reply.ok",
        Status::StaleEpoch => "reply.stale-epoch",
        Status::Later => "reply.later",
        Status::NotJoined => "reply.not-joined",
        Status::Reopened => "reply.reopened",
        Status::OutOfRange => "reply.out-of-range",
        Status::BadRequest => "reply.bad-request",
        Status::NoSpace => "reply.no-space",
        Status::Io => "reply.io",
        Status::Denied => "reply.denied",
        Status::Unsupported => "reply.unsupported",
        Status::NoSnapshot => "reply.no-snapshot",
        Status::RangeTaken => "reply.range-taken",
        Status::NotHeld => "reply.not-held",
        Status::TooMany => "reply.too-many",
        Status::Kept => "reply.kept",
    }
}
