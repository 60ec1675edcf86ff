//! Every request that comes in is dispatched here; a client's is checked and locked.

use super::stamping::Stamping;
use super::{Node, Visitor};
use crate::iocb::{Iocb, IocbPhase, Kind, ServerIocb, Stage, Stages, why};
use crate::iocbs::IocbKey;
use crate::limits::{MAX_REQUEST, MAX_WAITING_BYTES, MAX_ZERO};
use crate::mail::Letter;
use crate::range_lock::Mode;
use conductor_model::{BLOCK, BlockRange, Blocks, Bytes, Epoch};
use driver::{ConnId, Outbox, Time};
use node_protocol::{IoBody, Status, op};
use node_store::{Store, View};
use tcp::{Answer, Payload};
use wire::Op;

/// A request as it came in.
pub(super) struct Incoming<'a> {
    pub(super) conn: ConnId,
    pub(super) op: Op,
    /// Unread.
    pub(super) body: &'a [u8],
    pub(super) payload: Option<Payload>,
    pub(super) answer: Answer,
}

impl<S: Store> Node<S> {
    /// Any request on an incoming connection.
    pub(super) fn request(&mut self, now: Time, incoming: Incoming<'_>, out: &mut dyn Outbox<Letter>) {
        let op = incoming.op;
        match (op, self.visitors.get(&incoming.conn)) {
            (
                op::READ | op::EXTENTS | op::WRITE | op::WRITE_ZEROES | op::DISCARD | op::FLUSH,
                Some(Visitor::Client { .. }),
            ) => {
                self.client_request(now, incoming);
            }
            (op::REGISTER_RANGE | op::UNREGISTER_RANGE, Some(Visitor::Client { .. })) => {
                self.range_asked(now, incoming);
            }
            (
                op::REPLICA_WRITE
                | op::REPLICA_ZERO
                | op::REPLICA_SNAPSHOT
                | op::REPLICA_ROLLBACK
                | op::REPLICA_SHARE
                | op::REPLICA_FLUSH,
                Some(&Visitor::Node { caller, .. }),
            ) => self.replica_change(now, caller, incoming, out),
            (op::JOIN, Some(&Visitor::Node { caller, .. })) => self.join_asked(now, caller, incoming, out),
            (op::REPLICA_READ | op::REPLICA_VERIFY | op::REPLICA_REPAIR, Some(&Visitor::Node { caller, .. })) => {
                self.content_asked(now, caller, incoming, out);
            }
            (op::FILL_SCAN | op::FILL | op::FILL_SNAPSHOT | op::FILL_MARK, Some(&Visitor::Node { caller, .. })) => {
                self.fill_asked(now, caller, incoming, out);
            }
            (op::SNAPSHOT_READ, Some(Visitor::Node { .. })) => {
                self.snapshot_asked(now, incoming, out);
            }
            (op::PROMISE, Some(&Visitor::Node { caller, .. })) => self.promise_asked(now, caller, incoming, out),
            (op, _) => {
                let known = op::ALL.iter().any(|(known, _)| *known == op);
                self.counters.count(if known { "request.denied" } else { "request.unsupported" });
                self.reply_status(now, incoming.answer, if known { Status::Denied } else { Status::Unsupported });
            }
        }
    }

    fn client_request(&mut self, now: Time, incoming: Incoming<'_>) {
        let Incoming { conn, op, body, payload, answer, .. } = incoming;
        let checked = IoBody::parse(body).ok_or(Status::BadRequest).and_then(|body| {
            let kind = self.check(conn, op, &body, payload.as_ref())?;
            Ok((body, kind))
        });
        let (body, (kind, range)) = match checked {
            Ok(good) => good,
            Err(status) => {
                self.reply_at_once(now, answer, status, IoBody::parse(body).map(|body| body.shard()));
                return;
            }
        };
        let mut stages = Stages::new(op.0, body.sequence.get());
        stages.mark(Stage::Received, now);
        self.counters.count(match kind {
            Kind::Read => "op.read",
            Kind::Extents => "op.extents",
            Kind::Write => "op.write",
            Kind::Flush => "op.flush",
            _ if op == op::DISCARD => "op.discard",
            _ => "op.write-zeroes",
        });
        let shard = body.shard();
        let session = self.sessions.of(conn);
        let view = session.map_or(View::Live, |session| session.view);
        let holder = session.filter(|session| session.shared).map(|session| session.id);
        let flushes = self.primaries.get(&shard).is_some_and(|p| !p.config.durability.is_always());
        let key = self.new_iocb(Iocb {
            conn: Some(conn),
            answer: Some(answer),
            holder,
            body,
            payload,
            stages,
            view,
            ..Iocb::internal(shard, kind, range, IocbPhase::Queued)
        });
        if kind == Kind::Flush && (!flushes || view != View::Live) {
            // Every acknowledged write is durable everywhere already.
            self.answer(now, key, Status::Ok);
            return;
        }
        self.queue_for_lock(key);
    }

    /// An IOCB waits for its range in the order of arrival.
    pub(super) fn queue_for_lock(&mut self, key: IocbKey) {
        let Iocb { shard, kind, range, arrival, .. } = self.iocbs[key];
        let mode = if kind.only_looks() { Mode::Shared } else { Mode::Exclusive };
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.requests.insert(arrival, key);
        if primary.locks.acquire(key, range, mode) {
            self.iocbs[key].phase = IocbPhase::Locked;
            self.runnable.push_back(key);
        }
    }

    /// A new IOCB with its request hold.
    pub(super) fn new_iocb(&mut self, iocb: Iocb) -> IocbKey {
        self.arrivals += 1;
        self.settling_pieces += usize::from(iocb.kind == Kind::Settle);
        if iocb.kind == Kind::Write
            && let Some(payload) = &iocb.payload
        {
            *self.taken.payload.entry(iocb.shard.volume).or_default() += payload.mem.capacity();
        }
        self.iocbs.insert_with(|key| {
            let request = Some(self.iocb_holds.insert::<why::Request>(ServerIocb { key }));
            Iocb { request, arrival: self.arrivals, ..iocb }
        })
    }

    /// All that can be said about a request before it waits for anything.
    fn check(
        &self,
        conn: ConnId,
        op: Op,
        body: &IoBody,
        payload: Option<&Payload>,
    ) -> Result<(Kind, BlockRange), Status> {
        let session = self.sessions.of(conn).ok_or(Status::Denied)?;
        if session.volume != body.shard().volume {
            return Err(Status::Denied);
        }
        let (kind, longest) = match op {
            op::READ => (Kind::Read, MAX_REQUEST),
            op::EXTENTS => (Kind::Extents, MAX_ZERO),
            op::WRITE => (Kind::Write, MAX_REQUEST),
            op::FLUSH => (Kind::Flush, 0),
            _ => (Kind::Zero, MAX_ZERO),
        };
        if session.read_only && !(kind.only_looks() || kind == Kind::Flush) {
            return Err(Status::Denied);
        }
        let len = body.len();
        let carried = payload.map_or(0, |p| p.len as u64);
        let expected = if kind == Kind::Write { u64::from(len) } else { 0 };
        if (len == 0) != (kind == Kind::Flush) || len > longest || carried != expected {
            return Err(Status::BadRequest);
        }
        let primary = self.primaries.get(&body.shard()).ok_or(Status::StaleEpoch)?;
        self.check_epoch(body, primary.config.epoch)?;
        if self.is_lost(body.shard()) {
            return Err(Status::Io);
        }
        if kind == Kind::Flush {
            // It locks nothing.
            return Ok((kind, BlockRange { from: Blocks(0), count: Blocks(0) }));
        }
        let offset = Bytes(body.offset.get());
        let end = offset.0.checked_add(u64::from(len)).ok_or(Status::OutOfRange)?;
        if end > primary.config.size.0 {
            return Err(Status::OutOfRange);
        }
        let in_blocks = matches!(kind, Kind::Zero | Kind::Extents);
        if in_blocks && !(offset.is_block_aligned() && Bytes(end).is_block_aligned()) {
            return Err(Status::BadRequest);
        }
        let waiting = self.taken.payload.get(&body.shard().volume).copied().unwrap_or(0);
        if kind == Kind::Write && !primary.is_serving() && waiting >= MAX_WAITING_BYTES {
            return Err(Status::Later);
        }
        let range = BlockRange::covering(offset, Bytes(u64::from(len))).ok_or(Status::OutOfRange)?;
        // The forwards carry whole blocks, and a message carries no more than it can: an unaligned request is shorter by a block.
        if !in_blocks && range.count.bytes() > Bytes(u64::from(MAX_REQUEST)) {
            return Err(Status::BadRequest);
        }
        Ok((kind, range))
    }

    fn check_epoch(&self, body: &IoBody, epoch: Epoch) -> Result<(), Status> {
        let theirs = Epoch(body.epoch.get());
        if driver::mutant::on("no_epoch_check") || theirs == epoch {
            Ok(())
        } else if theirs < epoch {
            Err(Status::StaleEpoch)
        } else {
            Err(Status::Later)
        }
    }

    /// Goes on with an IOCB as far as it can.
    pub(super) fn advance(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        let Some(iocb) = self.iocbs.get_mut(key) else { return };
        if iocb.is_over() || !matches!(iocb.phase, IocbPhase::Locked | IocbPhase::Ready) {
            return;
        }
        iocb.stages.mark(Stage::Locked, now);
        let (shard, kind, phase, body, range) = (iocb.shard, iocb.kind, iocb.phase, iocb.body, iocb.range);
        // What a client sent is checked until it is stamped: from then on it is to be finished, in whatever epoch. What the primary does
        // by itself is of this epoch.
        let exempt = iocb.conn.is_none() || iocb.stamp.is_some();
        if iocb.withdrawn {
            self.counters.count("request.dropped");
            self.end_request(now, key);
            return;
        }
        let (due, elsewhere, arrival) = (iocb.heal.due.is_some(), iocb.heal.elsewhere, iocb.arrival);
        let Some(primary) = self.primaries.get(&shard) else { return };
        if !exempt && let Err(status) = self.check_epoch(&body, primary.config.epoch) {
            let config = &self.primaries[&shard].config;
            self.answer_with_generation(now, key, status, (config.epoch, config.cache));
            return;
        }
        if !exempt && !self.holds_what_it_changes(key) {
            self.answer(now, key, Status::NotHeld);
            return;
        }
        if kind == Kind::Extents && primary.is_sealed() {
            // It is read where all copies are known to agree, if at all (rule 11). That all may hold data is true in any case.
            self.answer_extents(now, key, &[range], Blocks(u32::MAX));
            return;
        }
        let may = primary.is_serving()
            || kind == Kind::Settle
            || (kind == Kind::Read && !due && self.may_read_sealed(now, shard, range));
        // Taken out first: it may be put off again at once, and is entered anew then.
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.stalled.remove(&arrival);
        }
        self.crowds.iter_mut().for_each(|crowd| crowd.looks_again(arrival));
        let went_on = may
            && match (kind, phase) {
                (Kind::Scrub, _) => self.start_mend(now, key, out),
                _ if due => self.start_mend(now, key, out),
                (_, IocbPhase::Locked) if elsewhere => self.start_refetch(now, key, out),
                (Kind::Rewrite, IocbPhase::Locked) => self.start_refetch(now, key, out),
                (Kind::Read | Kind::Extents, _) => self.start_read(now, key, out),
                (Kind::Write, IocbPhase::Locked) if !is_whole(&body) => self.start_merge(now, key, out),
                (Kind::CopyRange(from), IocbPhase::Locked) => self.read_to_copy(now, key, from, out),
                (Kind::Fill, IocbPhase::Locked) => self.read_into(now, key, shard, range, IocbPhase::Reading, out),
                (Kind::Fill, _) => true,
                _ => self.stamp(now, key, out) == Stamping::Over,
            };
        if !went_on {
            self.stall(key);
        }
    }

    /// It cannot go on for now, and is tried again when what its shard waits for may have come.
    pub(super) fn stall(&mut self, key: IocbKey) {
        let iocb = &self.iocbs[key];
        if let Some(primary) = self.primaries.get_mut(&iocb.shard) {
            primary.stalled.insert(iocb.arrival, key);
        }
    }

    /// These hold their locks from now on.
    pub(super) fn wake(&mut self, granted: Vec<IocbKey>) {
        for next in granted {
            self.iocbs[next].phase = IocbPhase::Locked;
            self.runnable.push_back(next);
        }
    }
}

/// Memory that a client's request takes beside its payload: whole blocks, to read them, or to write some bytes of them.
pub(super) fn needs(op: Op, body: &[u8]) -> usize {
    let Some(body) = IoBody::parse(body) else { return 0 };
    let blocks = || (sub_block(&body) + body.len().min(MAX_REQUEST) as usize).next_multiple_of(BLOCK);
    match op {
        op::READ => memory::set_aside(blocks()),
        op::WRITE if !is_whole(&body) => memory::set_aside(blocks()),
        _ => 0,
    }
}

/// Does it cover whole blocks only?
pub(super) fn is_whole(body: &IoBody) -> bool {
    body.offset.get().is_multiple_of(BLOCK as u64) && (body.len() as usize).is_multiple_of(BLOCK)
}

/// Where its first byte lies within its first block.
pub(super) fn sub_block(body: &IoBody) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "less than a block")]
    let within = (body.offset.get() % BLOCK as u64) as usize;
    within
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::ShardId;

    #[test]
    fn a_request_needs_all_blocks_that_it_touches() {
        let body = |offset, len| IoBody::new(ShardId::default(), Epoch(1), 1, Bytes(offset), len);
        let asked = |op, offset, len| needs(op, body(offset, len).bytes());
        assert_eq!(asked(op::READ, 8192, 4096), 4096);
        assert_eq!(asked(op::READ, 4095, 2), 8192);
        assert_eq!(asked(op::READ, 4095, 4098), 16_384, "three, for which four are set aside");
        assert_eq!((asked(op::WRITE, 4096, 8192), asked(op::WRITE, 4095, 2)), (0, 8192));
        assert!(asked(op::READ, u64::MAX, u32::MAX) > MAX_REQUEST as usize, "refused later");
        assert_eq!((asked(op::WRITE_ZEROES, 1, 1), needs(op::READ, &[0; 7])), (0, 0));
    }
}
