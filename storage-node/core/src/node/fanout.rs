//! The legs of a stamped IOCB: one write to the local store, one to each other copy; answered when all are durable.
//!
//! A leg that was lost with its connection, or timed out, is started again on the next one; the copy's duplicate filter makes the
//! repeat harmless. Each start takes a *subtask* hold on the IOCB and gives it back when that very start completes.

use super::Node;
use super::changes::Stamped;
use super::stamping::Stamping;
use super::waits::{ReplyWait, Request, StoreWait};
use super::wishes::DISK_FAILED;
use crate::backlog::RemoteLeg;
use crate::change::Change;
use crate::iocb::{Iocb, IocbPhase, Kind, Leg, LegState, Stage, why};
use crate::iocbs::IocbKey;
use crate::limits::{RETRY_REFUSED, SUBTASK_DEADLINE, UNFLUSHED, WAKE_AT_ONCE};
use crate::mail::Letter;
use crate::primary::PrimaryPhase;
use conductor_model::{CopyId, Member, ShardId, ShardSnapshot, Stamp};
use driver::{Outbox, Time};
use node_protocol::{LayerBody, ReplicaBody, Status, op};
use node_store::{Store, StoreError};
use smallvec::SmallVec;
use std::net::SocketAddr;
use tcp::Payload;
use wire::{Body, Op};

/// The primary's own leg of a stamped IOCB, as its store was given it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalLeg {
    pub(super) iocb: IocbKey,
    pub(super) stamp: Stamp,
    pub(super) copy: CopyId,
    /// What it shares with, if it is a share.
    pub(super) from: Option<ShardSnapshot>,
}

impl<S: Store> Node<S> {
    /// Starts every leg of an IOCB that was just stamped: the forwards first, then the local write.
    pub(super) fn start_legs(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        let iocb = &self.iocbs[key];
        let (shard, Some(stamp)) = (iocb.shard, iocb.stamp) else { return };
        let Some(primary) = self.primaries.get(&shard) else { return };
        let own = primary.config.primary;
        // A copy that is filled gets what changes what it will hold, as soon as it is that far (rules 1 and 4).
        let feeds = iocb.kind.is_fed() && !driver::mutant::on("writes_not_fed");
        let fed = primary.filling.as_ref().filter(|f| feeds && f.is_fed(stamp.sequence)).map(|f| f.copy);
        let fed = primary.config.members.iter().filter(|m| Some(m.copy) == fed);
        let leg = |m: &Member| (m.endpoint, RemoteLeg { iocb: key, stamp, copy: m.copy, disk: m.disk });
        let others: SmallVec<[(SocketAddr, RemoteLeg); 3]> = primary.others().chain(fed).map(leg).collect();
        let copies = std::iter::once(own).chain(others.iter().map(|(_, leg)| leg.copy));
        let legs = copies.map(|copy| Leg { copy, state: LegState::Waiting }).collect();
        self.iocbs[key].legs = legs;
        for (to, leg) in others {
            self.queue_leg(now, to, leg);
        }
        self.iocbs[key].stages.mark(Stage::Forwarded, now);
        self.start_local_leg(now, key, own, out);
        self.iocbs[key].stages.mark(Stage::LocalStarted, now);
    }

    fn start_local_leg(&mut self, now: Time, key: IocbKey, copy: CopyId, out: &mut dyn Outbox<Letter>) {
        let iocb = &self.iocbs[key];
        let (shard, kind, range, Some(stamp), Some(request)) =
            (iocb.shard, iocb.kind, iocb.range, iocb.stamp, &iocb.request)
        else {
            return;
        };
        let hold = request.share::<why::Subtask>();
        let Some(disk) = self.replicas.get(&shard).map(|r| r.disk) else { return };
        let from = match kind {
            Kind::Share(from) => Some(from),
            _ => None,
        };
        let beside = from.and_then(|from| self.beside(disk, from));
        let change = Change::of(kind, iocb.payload.as_ref(), beside);
        let durable = iocb.is_durable();
        if change.is_none() {
            self.share_refused(key);
        }
        let (Some(replica), Some(primary)) = (self.replicas.get_mut(&shard), self.primaries.get(&shard)) else {
            return;
        };
        let Some(change) = change.filter(|change| replica.bears(change, range)) else {
            self.counters.count("leg.waits");
            self.set_leg_state(key, copy, LegState::Refused(now + RETRY_REFUSED));
            return;
        };
        let known_good = primary.known_good().map(|sequence| Stamp { epoch: primary.config.epoch, sequence });
        let change = Stamped { shard, stamp, at: range, change, known_good, durable, from };
        self.set_leg_state(key, copy, LegState::Running);
        self.counters.count("leg.started");
        let leg = LocalLeg { iocb: key, stamp, copy, from };
        self.hand_to_disk(now, change, StoreWait::LocalLeg { leg, hold }, out);
    }

    /// Puts a leg into its link's backlog and sends what credits allow.
    fn queue_leg(&mut self, now: Time, to: SocketAddr, leg: RemoteLeg) {
        if let Some(link) = self.links.get_mut(to) {
            link.backlog.push(leg);
        }
        self.drain_backlog(now, to);
    }

    /// Starts waiting legs on a link while it has credits for them.
    pub(super) fn drain_backlog(&mut self, now: Time, to: SocketAddr) {
        loop {
            let Some(link) = self.links.get_mut(to) else { return };
            let credits = link.conn.map_or(0, |conn| self.net.credits(conn));
            let Some((conn, leg)) = link.next_leg(credits) else { return };
            let Some(iocb) = self.iocbs.get(leg.iocb) else { continue };
            let waits = iocb.stamp == Some(leg.stamp)
                && iocb.legs.iter().any(|l| l.copy == leg.copy && l.state == LegState::Waiting);
            let (true, Some(request), Some(primary)) = (waits, &iocb.request, self.primaries.get(&iocb.shard)) else {
                continue;
            };
            if primary.config.epoch != leg.stamp.epoch || !(primary.is_serving() || iocb.kind == Kind::Settle) {
                // Its epoch is over, or is being joined and settled again: it is stamped anew after that.
                continue;
            }
            // The K of a copy that is filled stands still until all is there (rule 4), and what it has is durable.
            let syncing = primary.syncing_member().is_some_and(|m| m.copy == leg.copy);
            let known_good = if syncing { None } else { primary.known_good() };
            let body = ReplicaBody::new(iocb.shard, leg.stamp, iocb.range, known_good, Some(primary.floor()))
                .with_durable(syncing || iocb.is_durable());
            let (op, body, payload) = message(iocb, body);
            let hold = request.share::<why::Subtask>();
            let wait = ReplyWait::RemoteLeg { leg, hold };
            let request = Request { op, body: &body, payload, patience: SUBTASK_DEADLINE };
            if !self.ask_peer(now, conn, request, wait) {
                if let Some(link) = self.links.get_mut(to) {
                    link.backlog.insert(leg);
                }
                return;
            }
            if let Some(link) = self.links.get_mut(to) {
                link.backlog.started(leg.disk);
            }
            set_leg(&mut self.iocbs[leg.iocb].legs, leg.copy, LegState::Running);
            self.counters.count("leg.started");
        }
    }

    /// One start of a remote leg is over.
    pub(super) fn remote_leg_done(
        &mut self,
        now: Time,
        leg: RemoteLeg,
        status: Result<Status, ()>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let RemoteLeg { iocb: key, stamp, copy, .. } = leg;
        self.counters.count(match status {
            Ok(Status::Ok) => "leg.done",
            Ok(_) => "leg.refused",
            Err(()) => "leg.lost",
        });
        if !self.is_current(key, stamp) {
            self.counters.count("leg.stale");
            return;
        }
        let shard = self.iocbs[key].shard;
        match status {
            Ok(Status::Ok) => self.leg_done(now, key, copy),
            Ok(Status::StaleEpoch) => {
                // Somebody has made a newer epoch: nothing is served until it is known (rule 20).
                self.set_leg_state(key, copy, LegState::Refused(now + RETRY_REFUSED));
                self.ask_for_news(now, shard, out);
            }
            Ok(status) => {
                self.set_leg_state(key, copy, LegState::Refused(now + RETRY_REFUSED));
                if matches!(status, Status::NoSnapshot | Status::NoSpace) {
                    self.share_refused(key);
                }
                if status == Status::NoSpace && self.barrier_refused(now, key) {
                    return;
                }
                if let Some(primary) = self.primaries.get_mut(&shard).filter(|_| status != Status::Later) {
                    primary.write_refusals.insert(copy, status);
                    if status == Status::Io {
                        primary.failed.entry(copy).or_insert(DISK_FAILED);
                    }
                }
            }
            Err(()) => {
                self.set_leg_state(key, copy, LegState::Waiting);
                self.requeue(now, key, copy);
            }
        }
    }

    /// A leg that waits for a link that is another one now.
    pub(super) fn requeue_waiting(&mut self, now: Time, key: IocbKey, copy: CopyId) {
        let waits = |l: &Leg| l.copy == copy && l.state == LegState::Waiting;
        if self.iocbs[key].phase == IocbPhase::Stamped && self.iocbs[key].legs.iter().any(waits) {
            self.requeue(now, key, copy);
        }
    }

    /// Puts a waiting leg back into its link's backlog, in the order of stamps.
    fn requeue(&mut self, now: Time, key: IocbKey, copy: CopyId) {
        let iocb = &self.iocbs[key];
        let (Some(stamp), Some(primary)) = (iocb.stamp, self.primaries.get(&iocb.shard)) else { return };
        let Some((to, disk)) = primary.config.member(copy).map(|m| (m.endpoint, m.disk)) else { return };
        self.counters.count("leg.started-again");
        if let Some(link) = self.links.get_mut(to) {
            link.backlog.insert(RemoteLeg { iocb: key, stamp, copy, disk });
        }
        self.drain_backlog(now, to);
    }

    /// The local store is done with the primary's own leg.
    pub(super) fn local_leg_done(
        &mut self,
        now: Time,
        leg: LocalLeg,
        result: Result<(), StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let LocalLeg { iocb: key, stamp, copy, from } = leg;
        // The subtask's hold keeps the slot, so the IOCB is there even if its request is long answered.
        let Some(shard) = self.iocbs.get(key).map(|i| i.shard) else { return };
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.left_disk(stamp);
        }
        self.counters.count(if result.is_ok() { "leg.done" } else { "leg.refused" });
        match result {
            _ if !self.is_current(key, stamp) => self.counters.count("leg.stale"),
            Ok(()) => self.leg_done(now, key, copy),
            Err(error @ (StoreError::NoSpace | StoreError::Busy | StoreError::NoSuchSnapshot { .. })) => {
                self.set_leg_state(key, copy, LegState::Refused(now + RETRY_REFUSED));
                if matches!(error, StoreError::NoSuchSnapshot { .. } | StoreError::NoSpace) {
                    self.share_refused(key);
                }
                if error == StoreError::NoSpace {
                    self.barrier_refused(now, key);
                }
            }
            Err(StoreError::Corrupt { .. }) if from.is_some() => {
                self.set_leg_state(key, copy, LegState::Refused(now + RETRY_REFUSED));
                self.share_refused(key);
            }
            Err(error) => {
                self.store_status(shard, &error, out);
                self.fail_primary(shard, &error);
            }
        }
        self.go_on_joining(now, shard, out);
    }

    /// Is this IOCB still running under this stamp?
    fn is_current(&self, key: IocbKey, stamp: Stamp) -> bool {
        let Some(iocb) = self.iocbs.get(key) else { return false };
        let epoch = self.primaries.get(&iocb.shard).map(|p| p.config.epoch);
        !iocb.is_over() && iocb.stamp == Some(stamp) && epoch == Some(stamp.epoch)
    }

    /// A copy cannot share: what it would share with is dropped or damaged there. Other copies may have done it, so the range is to be
    /// settled: the tick has everybody join again for that.
    fn share_refused(&mut self, key: IocbKey) {
        if let Some(iocb) = self.iocbs.get_mut(key).filter(|iocb| matches!(iocb.kind, Kind::Share(_)) && !iocb.given_up)
        {
            iocb.given_up = true;
            self.counters.count("copy.share-given-up");
        }
    }

    /// Does a share of this shard wait for its range to be settled?
    pub(super) fn has_given_up_a_share(&self, shard: ShardId) -> bool {
        self.primaries.get(&shard).is_some_and(|p| p.requests.values().any(|key| self.iocbs[*key].given_up))
    }

    fn set_leg_state(&mut self, key: IocbKey, copy: CopyId, state: LegState) {
        set_leg(&mut self.iocbs[key].legs, copy, state);
    }

    fn leg_done(&mut self, now: Time, key: IocbKey, copy: CopyId) {
        let iocb = &mut self.iocbs[key];
        if iocb.phase != IocbPhase::Stamped {
            return;
        }
        if let Some(primary) = self.primaries.get_mut(&iocb.shard).filter(|p| !p.write_refusals.is_empty()) {
            primary.write_refusals.remove(&copy);
        }
        set_leg(&mut iocb.legs, copy, LegState::Done);
        let done = iocb.legs.iter().filter(|l| l.state == LegState::Done).count();
        iocb.stages.mark(Stage::FirstDone, now);
        if done == 2
            && driver::mutant::on("ack_after_two")
            && let Some(answer) = iocb.answer.take()
        {
            self.reply_status(now, answer, Status::Ok);
        }
        if done == self.iocbs[key].legs.len() {
            self.iocbs[key].stages.mark(Stage::LastDone, now);
            self.all_legs_done(now, key);
        }
    }

    /// Done on every in-sync copy, durable unless the volume is of durability=flush: the point of it all.
    fn all_legs_done(&mut self, now: Time, key: IocbKey) {
        let iocb = &self.iocbs[key];
        let (shard, kind, Some(stamp)) = (iocb.shard, iocb.kind, iocb.stamp) else { return };
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.window.finished(stamp.sequence, kind != Kind::Flush);
        self.runnable.extend(primary.stalled.values().take(WAKE_AT_ONCE).copied());
        let covers = self.iocbs[key].covers;
        match kind {
            Kind::Settle => self.piece_settled(now, key),
            Kind::Rewrite => {
                self.counters.count("damage.rewritten");
                self.scrub_rewrote(shard, self.iocbs[key].range.count);
                self.end_request(now, key);
            }
            Kind::Barrier(_) => self.barrier_placed(now, key),
            Kind::Flush => {
                if let Some(primary) = self.primaries.get_mut(&shard) {
                    primary.flushed = std::cmp::max_by_key(primary.flushed, covers, |prefix| prefix.to);
                    primary.flushing = false;
                }
                self.answer(now, key, Status::Ok);
            }
            kind => {
                if kind == Kind::Zero {
                    // What it gave back comes when the stores have moved their journals home.
                    self.taken.full.clear();
                }
                self.answer_or_hold(now, key);
                self.flush_if_due(shard);
            }
        }
    }

    /// A flush volume's writes above K are bounded: a flush of our own moves it (rule 18).
    fn flush_if_due(&mut self, shard: ShardId) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let unflushed = primary.window.prefix().to.0.saturating_sub(primary.flushed.to.0);
        if !primary.config.durability.is_always() && unflushed >= UNFLUSHED && !primary.flushing {
            primary.flushing = true;
            self.counters.count("flush.by-itself");
            self.flush_shard(shard);
        }
    }

    /// Starts refused legs again whose time has come, on copies that are joined.
    pub(super) fn retry_refused(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get(&shard) else { return };
        if !matches!(primary.phase, PrimaryPhase::Serving | PrimaryPhase::Settling(_)) {
            return;
        }
        let own = primary.config.primary;
        // While it settles only the pieces go on: the requests are stamped anew after that.
        let keys: Vec<IocbKey> = match &primary.phase {
            PrimaryPhase::Settling(settling) => settling.running.iter().copied().collect(),
            _ => primary.requests.values().copied().collect(),
        };
        for key in keys {
            if self.iocbs[key].phase != IocbPhase::Stamped {
                continue;
            }
            let due: Vec<CopyId> = self.iocbs[key]
                .legs
                .iter()
                .filter(|l| matches!(l.state, LegState::Refused(at) if at <= now))
                .map(|l| l.copy)
                .collect();
            for copy in due {
                if copy == own {
                    self.start_local_leg(now, key, copy, out);
                } else {
                    self.set_leg_state(key, copy, LegState::Waiting);
                    self.requeue(now, key, copy);
                }
            }
        }
    }

    /// Stamped in an epoch that is over: stamped again in this one, under the same lock (rule 6).
    pub(super) fn restart_unfinished(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get(&shard) else { return };
        let unfinished: Vec<IocbKey> =
            primary.requests.values().copied().filter(|key| self.iocbs[*key].phase == IocbPhase::Stamped).collect();
        for key in unfinished {
            if self.iocbs[key].given_up {
                // Settling has made its range equal. What it reads as is damaged: an order goes on with bytes.
                self.abandon_stamp(key);
                self.answer(now, key, Status::NoSnapshot);
                continue;
            }
            if self.stamp(now, key, out) == Stamping::Later {
                self.iocbs[key].phase = IocbPhase::Ready;
            }
        }
    }
}

/// The message that carries an IOCB to another copy.
fn message(iocb: &Iocb, body: ReplicaBody) -> (Op, Body, Option<Payload>) {
    let layer = |op, of: ShardSnapshot| (op, Body::from_slice(LayerBody::new(body, of).bytes()), None);
    let own = |snapshot| ShardSnapshot { shard: iocb.shard, snapshot };
    let plain = Body::from_slice(body.bytes());
    match (iocb.kind, &iocb.payload) {
        (Kind::Barrier(snapshot), _) => layer(op::REPLICA_SNAPSHOT, own(snapshot)),
        (Kind::Rollback(snapshot), _) => layer(op::REPLICA_ROLLBACK, own(snapshot)),
        (Kind::Share(from), _) => layer(op::REPLICA_SHARE, from),
        (Kind::Flush, _) => (op::REPLICA_FLUSH, plain, None),
        (_, Some(p)) => (op::REPLICA_WRITE, plain, Some(p.share())),
        (_, None) => (op::REPLICA_ZERO, plain, None),
    }
}

fn set_leg(legs: &mut [Leg], copy: CopyId, state: LegState) {
    if let Some(leg) = legs.iter_mut().find(|l| l.copy == copy) {
        leg.state = state;
    }
}
