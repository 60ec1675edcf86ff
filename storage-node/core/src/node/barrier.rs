//! Barriers: a snapshot is a cut through the volume's writes, although each shard places its own (rule 17).
//!
//! ```text
//!   whole-shard lock, in arrival order ──► stamped ──► on every copy ──► HOLD: executes, does not acknowledge ──► released
//!                                                          │                 until the order is not named any more, or H is over
//!                                                          └─► Done is said
//! ```
//!
//! A write that one shard executes after its barrier is answered only when every shard has its barrier. So whatever a client does
//! because of that answer comes after the barrier of its own shard too. Held writes keep their locks: what a read returns is an
//! answer as well.
//!
//! **A barrier dies with its epoch.** It changes nothing that a shard reads as, so settling leaves it out, and an unfinished one can be
//! given up at any moment: its stamp counts as finished, it is never sent again, and copies that have it are told to drop it, as the
//! conductor never counts a snapshot as complete of which a shard changed its epoch meanwhile. A copy that was told to drop a snapshot
//! does not make it again.

use super::Node;
use super::orders::Step;
use crate::iocb::{Iocb, IocbPhase, Kind};
use crate::iocbs::IocbKey;
use conductor_model::api::{OrderState, ShardOrder};
use conductor_model::{OrderId, ShardId};
use driver::{Span, Time};
use node_protocol::Status;
use node_store::Store;

impl<S: Store> Node<S> {
    /// A barrier is on every copy: from now on nothing is acknowledged.
    pub(super) fn barrier_placed(&mut self, now: Time, key: IocbKey) {
        let (shard, order) = (self.iocbs[key].shard, self.iocbs[key].order);
        self.counters.count("barrier.placed");
        let hold = order.and_then(|id| match self.orders.named.get(&id)?.order.what {
            ShardOrder::Barrier { hold_ms, .. } => Some((id, now + Span::millis(u64::from(hold_ms)))),
            _ => None,
        });
        if let (Some((id, until)), Some(primary)) = (hold, self.primaries.get_mut(&shard))
            && !driver::mutant::on("snapshot_without_hold")
        {
            primary.holds.insert(id, until);
        }
        self.answer(now, key, Status::Ok);
    }

    /// A snapshot is complete or given up: with its last hold a shard acknowledges again.
    pub(super) fn release_hold(&mut self, now: Time, shard: ShardId, order: OrderId) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        if primary.holds.remove(&order).is_none() || !primary.holds.is_empty() {
            return;
        }
        let held = primary.requests.values().copied().filter(|key| self.iocbs[*key].phase == IocbPhase::BehindBarrier);
        for key in held.collect::<Vec<_>>() {
            self.answer(now, key, Status::Ok);
        }
    }

    /// Holds that have lasted long enough.
    pub(super) fn tick_holds(&mut self, now: Time) {
        let over: Vec<(ShardId, OrderId)> = self
            .primaries
            .iter()
            .flat_map(|(shard, p)| p.holds.iter().map(|(id, until)| (*shard, *id, *until)))
            .filter(|(_, _, until)| *until <= now)
            .map(|(shard, id, _)| (shard, id))
            .collect();
        for (shard, order) in over {
            self.counters.count("hold.timed-out");
            self.release_hold(now, shard, order);
        }
    }

    /// A barrier that is not on every copy never will be.
    pub(super) fn give_up_barrier(&mut self, now: Time, key: IocbKey) {
        self.counters.count("barrier.given-up");
        self.abandon_stamp(key);
        self.end_request(now, key);
    }

    /// A copy has no room for a barrier: it never will be on every copy, and is given up, if it is one.
    pub(super) fn barrier_refused(&mut self, now: Time, key: IocbKey) -> bool {
        let Some(Iocb { kind: Kind::Barrier(_), order: Some(id), .. }) = self.iocbs.get(key) else { return false };
        let id = *id;
        self.order_over(id, OrderState::Failed("a copy's disk has no room for the snapshot".to_owned()));
        self.give_up_barrier(now, key);
        true
    }

    /// The shard has a new epoch: its unfinished barriers are over.
    pub(super) fn end_barriers(&mut self, now: Time, shard: ShardId) {
        let unfinished = self.orders.named.iter().filter_map(|(id, s)| match s.step {
            Step::Placing(key, _) if s.order.shard == shard => Some((*id, key)),
            _ => None,
        });
        for (id, key) in unfinished.collect::<Vec<_>>() {
            // Its slot may be another one's before the news that it is over were read.
            if self.iocbs.get(key).is_some_and(|iocb| iocb.order == Some(id) && matches!(iocb.kind, Kind::Barrier(_))) {
                let why = "the shard changed its epoch before the barrier was placed on every copy".to_owned();
                self.order_over(id, OrderState::Failed(why));
                self.give_up_barrier(now, key);
            }
        }
    }
}
