//! Orders: what the conductor has told primaries here to do in the order of their shards' writes.
//!
//! ```text
//!   named ──► Due ──shard serves──► Placing (barrier, rollback) ──────────► Over, and said again while it is named
//!              ▲                 └► Copying (piece after piece) ──────────►
//!              └───────────────── this reactor is not the primary any more
//! ```
//!
//! Each `Mail::Orders` names all that are open. One that is not named any more is forgotten: what it holds is released, what was not
//! stamped is withdrawn, what was stamped runs on and is told to nobody (a barrier is given up: see `barrier`).

use super::Node;
use super::copy_range::Copying;
use crate::iocb::{Iocb, IocbPhase, Kind};
use crate::iocbs::IocbKey;
use crate::limits::MAX_ZERO_BLOCKS;
use crate::mail::Letter;
use crate::primary::{Primary, between};
use conductor_model::api::{Order, OrderReport, OrderState, ShardOrder};
use conductor_model::{BlockRange, Blocks, Member, OrderId, ShardId, SnapshotId};
use driver::{Outbox, Span, Time};
use node_protocol::Status;
use node_store::{Store, View};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An order that is named.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(super) order: Order,
    pub(super) step: Step,
}

impl Standing {
    /// Who has the source of a copy-range, as the conductor said last.
    pub(super) fn holders(&self) -> &[Member] {
        if let ShardOrder::CopyRange { holders, .. } = &self.order.what { holders } else { &[] }
    }

    /// Of which shard that is, if some of it is read on another reactor.
    pub(super) fn source_elsewhere(&self) -> Option<ShardId> {
        if let Step::Copying(copying) = &self.step { copying.source_elsewhere() } else { None }
    }
}

/// How far an order is.
#[derive(Debug)]
pub(super) enum Step {
    /// To be begun as soon as the shard serves here.
    Due,
    /// This IOCB is on its way to every copy; a barrier is given up then. One of several, where a shard is zeroed.
    Placing(IocbKey, Time),
    /// Piece after piece.
    Copying(Copying),
    /// It is over; what was said of it.
    Over(OrderReport),
}

/// All that are named, and what there is to say of them.
#[derive(Default)]
pub(super) struct Orders {
    /// With what became of them.
    pub(super) named: BTreeMap<OrderId, Standing>,
    /// Parts that just finished.
    pub(super) news: VecDeque<PartDone>,
    /// What is to be said.
    pub(super) reports: Vec<OrderReport>,
}

/// A part of an order is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartDone {
    pub(super) order: OrderId,
    pub(super) range: BlockRange,
    pub(super) status: Status,
}

impl<S: Store> Node<S> {
    /// All orders that are open.
    pub(super) fn orders_named(&mut self, now: Time, orders: Vec<Order>) {
        let named: BTreeSet<OrderId> = orders.iter().map(|order| order.id).collect();
        let gone: Vec<OrderId> = self.orders.named.keys().copied().filter(|id| !named.contains(id)).collect();
        for id in gone {
            self.forget_order(now, id);
        }
        let mut shards = BTreeSet::new();
        // A scrub walks beside the writes, in no order with them: `scrub` has those.
        for order in orders.into_iter().filter(|order| !matches!(order.what, ShardOrder::Scrub { .. })) {
            match self.orders.named.entry(order.id) {
                Entry::Vacant(new) => {
                    shards.insert(order.shard);
                    new.insert(Standing { order, step: Step::Due });
                }
                Entry::Occupied(mut known) => {
                    if let Step::Over(report) = &known.get().step {
                        self.orders.reports.push(report.clone());
                    }
                    // Who has the source of a copy-range may have changed.
                    known.get_mut().order = order;
                }
            }
        }
        for shard in shards {
            self.begin_orders(now, shard);
        }
    }

    /// An order is not named any more.
    fn forget_order(&mut self, now: Time, id: OrderId) {
        let Some(Standing { order, step }) = self.orders.named.remove(&id) else { return };
        if let Step::Placing(key, _) = step {
            self.withdraw(now, id, key);
        }
        if let Step::Copying(_) = step {
            self.withdraw_parts(now, order.shard, id);
        }
        self.release_hold(now, order.shard, id);
    }

    /// Nothing of an order is wanted any more.
    pub(super) fn withdraw_parts(&mut self, now: Time, shard: ShardId, id: OrderId) {
        let Some(primary) = self.primaries.get(&shard) else { return };
        let parts = primary.requests.values().copied().filter(|key| self.iocbs[*key].order == Some(id));
        for key in parts.collect::<Vec<_>>() {
            self.withdraw(now, id, key);
        }
    }

    /// A part of an order is not wanted any more.
    fn withdraw(&mut self, now: Time, id: OrderId, key: IocbKey) {
        // Its slot may be another one's before the news that it is over were read.
        let Some(iocb) = self.iocbs.get_mut(key).filter(|iocb| iocb.order == Some(id) && !iocb.is_over()) else {
            return;
        };
        iocb.order = None;
        match iocb.phase {
            IocbPhase::Stamped if matches!(iocb.kind, Kind::Barrier(_)) => self.give_up_barrier(now, key),
            // It takes effect, and nobody is told; the store still reads for it: it goes when that is done.
            IocbPhase::Stamped | IocbPhase::BehindBarrier => {}
            IocbPhase::Ready if iocb.stamp.is_some() => {}
            IocbPhase::Reading | IocbPhase::Merging | IocbPhase::Mending | IocbPhase::Filling => iocb.withdrawn = true,
            IocbPhase::Queued | IocbPhase::Locked | IocbPhase::Ready => self.end_request(now, key),
        }
    }

    /// Begins what is due on a shard that serves.
    pub(super) fn begin_orders(&mut self, now: Time, shard: ShardId) {
        if !self.primaries.get(&shard).is_some_and(Primary::is_serving) {
            return;
        }
        let due = |s: &&Standing| s.order.shard == shard && matches!(s.step, Step::Due);
        let due: Vec<Order> = self.orders.named.values().filter(due).map(|s| s.order.clone()).collect();
        for Order { id, what, .. } in due {
            match what {
                // The order came late: what it asks for is given up, and would stay for ever if it were made again.
                ShardOrder::Barrier { snapshot, .. } if self.is_dropped(shard, View::Snapshot(snapshot)) => {
                    self.order_over(id, OrderState::Failed(format!("snapshot {snapshot} was dropped before")));
                }
                ShardOrder::Barrier { snapshot, hold_ms } => {
                    let until = now + Span::millis(u64::from(hold_ms));
                    self.place(shard, id, Kind::Barrier(snapshot), until);
                }
                ShardOrder::Rollback { snapshot, beyond } => self.begin_rollback(shard, id, snapshot, beyond),
                ShardOrder::CopyRange { from, at, .. } => self.begin_copying(now, shard, id, from, at),
                ShardOrder::Scrub { .. } => {}
            }
        }
    }

    /// Everything of the shard that came before is finished on every copy, then this, then everything that comes after.
    fn place(&mut self, shard: ShardId, id: OrderId, kind: Kind, until: Time) {
        let Some(primary) = self.primaries.get(&shard) else { return };
        let whole = BlockRange { from: Blocks(0), count: primary.config.blocks() };
        let key = self.order_iocb(shard, id, kind, whole);
        self.step_to(id, Step::Placing(key, until));
    }

    /// A part of an order, queued for its lock.
    pub(super) fn order_iocb(&mut self, shard: ShardId, id: OrderId, kind: Kind, range: BlockRange) -> IocbKey {
        let iocb = Iocb { order: Some(id), ..Iocb::internal(shard, kind, range, IocbPhase::Queued) };
        let key = self.new_iocb(iocb);
        self.queue_for_lock(key);
        key
    }

    /// Locks are not in the way of anybody: the volume is not attached.
    fn begin_rollback(&mut self, shard: ShardId, id: OrderId, snapshot: SnapshotId, beyond: bool) {
        let why = match (self.has_snapshot(shard, snapshot), beyond) {
            (true, false) => return self.place(shard, id, Kind::Rollback(snapshot), Time(u64::MAX)),
            (false, true) => {
                self.zero_on(shard, id, 0);
                return;
            }
            (false, false) => format!("the primary's copy of {shard} has no snapshot {snapshot}"),
            (true, true) => format!("{shard} is to be zeroed, and has a snapshot {snapshot} to be rolled back to"),
        };
        self.order_over(id, OrderState::Failed(why));
    }

    /// Zeroes the next part of a shard, for an order: as much as a client may zero at once. False if there is none.
    fn zero_on(&mut self, shard: ShardId, id: OrderId, from: u64) -> bool {
        let Some(end) = self.primaries.get(&shard).map(|primary| u64::from(primary.config.blocks().0)) else {
            return false;
        };
        let stop = end.min(from + u64::from(MAX_ZERO_BLOCKS));
        if stop > from {
            let key = self.order_iocb(shard, id, Kind::Zero, between(from, stop));
            self.step_to(id, Step::Placing(key, Time(u64::MAX)));
        }
        stop > from
    }

    /// Does the copy of `shard` that is here have this snapshot?
    pub(super) fn has_snapshot(&self, shard: ShardId, snapshot: SnapshotId) -> bool {
        let has = |replica: &crate::replica::Replica| {
            replica.exists
                && !replica.has_dropped(snapshot)
                && self.disks[replica.disk].store.snapshots(replica.copy).contains(&snapshot)
        };
        self.replicas.get(&shard).is_some_and(has)
    }

    /// Is this a snapshot that is, or is about to be, dropped here? Nobody begins to read it any more.
    pub(super) fn is_dropped(&self, shard: ShardId, view: View) -> bool {
        let View::Snapshot(snapshot) = view else { return false };
        self.replicas.get(&shard).is_some_and(|r| r.has_dropped(snapshot))
    }

    pub(super) fn step_to(&mut self, id: OrderId, step: Step) {
        if let Some(standing) = self.orders.named.get_mut(&id) {
            standing.step = step;
        }
    }

    /// Says how an order stands, if it still stands.
    pub(super) fn say_order(&mut self, id: OrderId, state: OrderState) -> Option<OrderReport> {
        let shard = self.orders.named.get(&id)?.order.shard;
        let epoch = self.primaries.get(&shard)?.config.epoch;
        let report = OrderReport { id, shard, epoch, state };
        self.orders.reports.push(report.clone());
        Some(report)
    }

    /// An order is done, or cannot be.
    pub(super) fn order_over(&mut self, id: OrderId, state: OrderState) {
        self.counters.count(match state {
            OrderState::Failed(_) => "order.failed",
            _ => "order.done",
        });
        if let Some(report) = self.say_order(id, state) {
            self.step_to(id, Step::Over(report));
        }
    }

    /// A part of an order is over.
    pub(super) fn part_done(&mut self, now: Time, part: PartDone) {
        let Some(standing) = self.orders.named.get(&part.order) else { return };
        match standing.step {
            Step::Placing(..) if part.status == Status::NoSpace => {
                let why = "no space left on the disks of its copies for what is noted down of it".to_owned();
                self.order_over(part.order, OrderState::Failed(why));
            }
            Step::Placing(..) => {
                let shard = standing.order.shard;
                if matches!(standing.order.what, ShardOrder::Rollback { beyond: true, .. })
                    && self.zero_on(shard, part.order, part.range.end())
                {
                    return;
                }
                self.order_over(part.order, OrderState::Done { damaged: 0, repaired: 0 });
                // Carries K past it: until then it counts as in flight, and settling would write the whole shard again.
                self.flush_shard(shard);
            }
            Step::Copying(_) => self.piece_copied(now, part),
            Step::Due | Step::Over(_) => {}
        }
    }

    /// All that is finished becomes durable everywhere, and K is told.
    pub(super) fn flush_shard(&mut self, shard: ShardId) {
        let nothing = BlockRange { from: Blocks(0), count: Blocks(0) };
        let key = self.new_iocb(Iocb::internal(shard, Kind::Flush, nothing, IocbPhase::Queued));
        self.queue_for_lock(key);
    }

    /// This reactor is not the shard's primary any more: if it is again, what is named then is begun again.
    pub(super) fn orders_left(&mut self, shard: ShardId) {
        for standing in self.orders.named.values_mut().filter(|s| s.order.shard == shard) {
            if !matches!(standing.step, Step::Over(_)) {
                standing.step = Step::Due;
            }
        }
    }

    /// Time-driven work of orders.
    pub(super) fn tick_orders(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let late: Vec<(OrderId, IocbKey)> = self
            .orders
            .named
            .iter()
            .filter_map(|(id, s)| match s.step {
                Step::Placing(key, until) if until <= now => Some((*id, key)),
                _ => None,
            })
            .collect();
        for (id, key) in late {
            self.order_over(id, OrderState::Failed("the barrier could not be placed on every copy in time".to_owned()));
            self.withdraw(now, id, key);
        }
        let due: BTreeSet<ShardId> =
            self.orders.named.values().filter(|s| matches!(s.step, Step::Due)).map(|s| s.order.shard).collect();
        for shard in due {
            self.begin_orders(now, shard);
        }
        self.link_sources(now, out);
        self.tick_holds(now);
    }

    /// Posts what is to be said.
    pub(super) fn post_reports(&mut self, out: &mut dyn Outbox<Letter>) {
        for report in self.orders.reports.drain(..) {
            out.post(Letter::Report(report));
        }
    }
}
