//! What primaries ask of the copies on this reactor under a stamp of their epoch: writes, and whatever else has a place in their order.

use super::Node;
use super::changes::Stamped;
use super::replies::reply_counter;
use super::requests::Incoming;
use super::waits::StoreWait;
use crate::change::Change;
use crate::mail::Letter;
use crate::replica::{Admission, Caller};
use conductor_model::{BLOCK, BlockRange, ShardId, ShardSnapshot, Stamp};
use driver::{Outbox, Time};
use node_protocol::{LayerBody, ReplicaBody, Status, op};
use node_store::{Store, StoreError};
use tcp::{Answer, Payload};
use wire::Op;

impl<S: Store> Node<S> {
    /// Something under a stamp of the epoch that this copy has joined.
    pub(super) fn replica_change(
        &mut self,
        now: Time,
        caller: Caller,
        incoming: Incoming<'_>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Incoming { op, body, payload, answer, .. } = incoming;
        let layer = matches!(op, op::REPLICA_SNAPSHOT | op::REPLICA_ROLLBACK | op::REPLICA_SHARE);
        let parsed = if layer {
            LayerBody::parse(body).map(|body| (body.change, Some(body.of())))
        } else {
            ReplicaBody::parse(body).map(|body| (body, None))
        };
        let Some((body, of)) = parsed else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        let (shard, stamp, range) = (body.shard(), body.stamp(), body.range());
        let share = self.store_share();
        let Some(answer) = self.permitted(now, shard, stamp.epoch, caller, answer) else { return };
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let carried = payload.as_ref().map_or(0, |p| p.len as u64);
        let expected = if op == op::REPLICA_WRITE { range.count.bytes().0 } else { 0 };
        let empty = op == op::REPLICA_FLUSH;
        let fits = (range.count.0 == 0) == empty && range.end() * BLOCK as u64 <= replica.size().0;
        if !fits || carried != expected || stamp.sequence.0 == 0 {
            self.reply_status(now, answer, if fits { Status::BadRequest } else { Status::OutOfRange });
            return;
        }
        // Beside a full store: a look that nobody waits for any more is not over in it.
        let full = self.crowds[replica.disk].all() >= share || replica.is_busy(range);
        match replica.admit(stamp.sequence, body.floor()) {
            Admission::Begin if full => {
                self.counters.count("store.waits");
                self.reply_status(now, answer, Status::Later);
            }
            Admission::Answer(status) => {
                self.counters.count("replica.repeat-answered");
                self.reply_status(now, answer, status);
            }
            Admission::Wait => {
                self.counters.count("replica.repeat-waits");
                replica.wait_for(stamp.sequence, answer);
            }
            Admission::Begin => match self.change_asked(shard, op, range, of, payload) {
                Ok(change) => {
                    self.begin_change(now, &body, change, of.filter(|_| op == op::REPLICA_SHARE), answer, out)
                }
                Err(status) => {
                    self.counters.count(reply_counter(status));
                    self.reply_status(now, answer, status);
                }
            },
        }
    }

    /// What a stamped message asks for, if this copy can do it now.
    fn change_asked(
        &mut self,
        shard: ShardId,
        op: Op,
        at: BlockRange,
        of: Option<ShardSnapshot>,
        payload: Option<Payload>,
    ) -> Result<Change, Status> {
        let replica = self.replicas.get(&shard).ok_or(Status::NotJoined)?;
        let change = match (op, of, payload) {
            (op::REPLICA_SNAPSHOT, Some(of), _) if replica.has_dropped(of.snapshot) => return Err(Status::NoSnapshot),
            (op::REPLICA_SNAPSHOT, Some(of), _) => Change::Snapshot(of.snapshot),
            (op::REPLICA_ROLLBACK, Some(of), _) => Change::Rollback(of.snapshot),
            (op::REPLICA_SHARE, Some(of), _) => Change::Share(self.beside(replica.disk, of).ok_or(Status::NoSnapshot)?),
            (op::REPLICA_FLUSH, ..) => Change::Flush,
            (_, _, Some(payload)) => Change::Write(payload),
            (_, _, None) => Change::Zero,
        };
        // One that was given up by its primary may still be in the disk: what came after it waits.
        replica.bears(&change, at).then_some(change).ok_or(Status::Later)
    }

    /// Hands a change to the disk that was not begun before.
    fn begin_change(
        &mut self,
        now: Time,
        body: &ReplicaBody,
        change: Change,
        from: Option<ShardSnapshot>,
        answer: Answer,
        out: &mut dyn Outbox<Letter>,
    ) {
        let (shard, stamp, at) = (body.shard(), body.stamp(), body.range());
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        replica.wait_for(stamp.sequence, answer);
        let known_good = body.known_good().filter(|_| !replica.is_syncing());
        let known_good = known_good.map(|sequence| Stamp { epoch: stamp.epoch, sequence });
        self.counters.count(match change {
            Change::Write(_) => "op.replica-write",
            Change::Zero => "op.replica-zero",
            Change::Snapshot(_) => "op.replica-snapshot",
            Change::Rollback(_) => "op.replica-rollback",
            Change::Share(_) => "op.replica-share",
            Change::Flush => "op.replica-flush",
        });
        let change = Stamped { shard, stamp, at, change, known_good, durable: body.is_durable(), from };
        self.hand_to_disk(now, change, StoreWait::ReplicaChange { shard, stamp, from }, out);
    }

    /// The disk is done with such a change: durable, or refused.
    pub(super) fn replica_change_done(
        &mut self,
        now: Time,
        shard: ShardId,
        stamp: Stamp,
        shares: bool,
        result: Result<(), StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let status = match result {
            Ok(()) => Status::Ok,
            // It is the source's damage, not this copy's and not the disk's: bytes are sent instead.
            Err(StoreError::Corrupt { .. }) if shares => Status::NoSnapshot,
            Err(error) => self.store_status(shard, &error, out),
        };
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        if let Some(answer) = replica.finished(stamp, status) {
            self.reply_status(now, answer, status);
        }
        self.go_on_joining(now, shard, out);
    }
}
