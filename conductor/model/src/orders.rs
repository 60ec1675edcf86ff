//! Orders: what primaries are given to do in the order of their shards' writes, and how they stand.
//!
//! ```text
//! records (what is left to do) ──tick──► open orders ──heartbeat answers──► primaries
//!            ▲                                                                  │
//!            └──────────────────────────── reports ◄────────────────────────────┘
//! ```
//! Open orders are of this process only: after a restart what is left is given out again under fresh ids, and a primary gives up
//! an order that is not named any more. Doing something twice is doing it once.

use crate::api::{Order, OrderReport, OrderState, Report, ShardOrder};
use crate::limits::{KEEP_PROGRESS_MS, MAX_ORDERS_AT_ONCE, MAX_REASON, ORDER_PAUSE_MS};
use crate::{Blocks, Conductor, Dirty, Error, Key, Millis, NodeId, OrderId, ShardId, SnapshotId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// What an order is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Purpose {
    /// A snapshot that is being created.
    Barrier(SnapshotId),
    /// Its volume's rollback.
    Rollback,
    /// A copy-range, by its number.
    Copy(OrderId),
    /// Its volume's scrub.
    Scrub,
}

/// An order that was given and is not over.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) shard: ShardId,
    pub(crate) what: ShardOrder,
    pub(crate) purpose: Purpose,
    /// Damaged and repaired blocks that were counted already: reports say the sums since the order began.
    pub(crate) counted: (u64, u64),
    /// What is before it in the shard is done.
    reached: Blocks,
    /// When that was last put into the record of what is left, or first heard.
    kept: Option<Millis>,
    /// Why it could not be done the last time, until it is heard that it goes on.
    failed: Option<String>,
}

/// All open orders, and what is not tried again yet.
#[derive(Clone, Default, Debug)]
pub(crate) struct Orders {
    pub(crate) open: BTreeMap<OrderId, Open>,
    by_purpose: BTreeMap<(Purpose, ShardId), OrderId>,
    paused: BTreeMap<(Purpose, ShardId), (Millis, String)>,
}

impl Orders {
    /// True if it is given already, or not to be given again yet.
    pub(crate) fn is_spoken_for(&self, purpose: Purpose, shard: ShardId, now: Millis) -> bool {
        let key = (purpose, shard);
        self.by_purpose.contains_key(&key) || self.paused.get(&key).is_some_and(|(until, _)| *until > now)
    }

    /// Why something of a volume does not come further.
    pub(crate) fn reasons(&self, purpose: Purpose, volume: VolumeId) -> Vec<String> {
        let paused = self.paused.iter().map(|(of, (_, why))| (*of, why));
        let again = self.open.values().filter_map(|open| Some(((open.purpose, open.shard), open.failed.as_ref()?)));
        let of_it = paused.chain(again).filter(|((p, shard), _)| *p == purpose && shard.volume == volume);
        let said = of_it.map(|((_, shard), why)| format!("{shard}: {why}"));
        said.take(crate::limits::MAX_REASONS_PER_VOLUME).collect()
    }

    /// How far the shard's order for this is, as far as that is not in the record.
    pub(crate) fn reached(&self, purpose: Purpose, shard: ShardId) -> Blocks {
        let open = self.by_purpose.get(&(purpose, shard)).and_then(|id| self.open.get(id));
        open.map_or(Blocks(0), |open| open.reached)
    }

    fn next_deadline(&self) -> Option<Millis> {
        self.paused.values().map(|(until, _)| *until).min()
    }
}

impl Conductor {
    /// Takes note of how orders stand and which work is done. What is not known any more is as good as taken.
    pub fn report(&mut self, now: Millis, report: &Report) -> Result<((), Dirty), Error> {
        if !self.nodes.contains_key(&report.node) {
            return Err(Error::UnknownNode(report.node));
        }
        let mut dirty = Dirty::default();
        if self.meta.recovery.is_some() {
            // Said again when it is asked for again: doing something twice is doing it once.
            return Ok(((), dirty));
        }
        for said in &report.orders {
            self.order_stands(now, report.node, said, &mut dirty);
        }
        self.work_reported(report.node, &report.worked, &mut dirty);
        self.schedule(now, &mut dirty);
        Ok(((), self.seal(dirty)))
    }

    /// What is due by now: primaries to be replaced, attempts that took too long, orders to be given, scrubs to begin. To be called at `next_deadline`, and
    /// after a start.
    pub fn tick(&mut self, now: Millis) -> Dirty {
        let mut dirty = Dirty::default();
        if self.meta.recovery.is_some() {
            self.forget_early_words(now);
            return dirty;
        }
        self.promote(now, &mut dirty);
        self.note_silence(now, &mut dirty);
        self.reshape(now, &mut dirty);
        self.tick_snapshots(now, &mut dirty);
        self.begin_daily_scrubs(now, &mut dirty);
        self.schedule(now, &mut dirty);
        self.expire_keys(now, &mut dirty);
        self.forget_acted_upon(&mut dirty);
        self.renew_cards(&mut dirty);
        self.seal(dirty)
    }

    /// When `tick` has something to do, as far as is known now. In doubt nothing is due, or what `tick` leaves alone would be over and over.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.meta.recovery.is_some() {
            return None;
        }
        let orders = [self.attempts.next_deadline(), self.orders.next_deadline(), self.next_daily_scrub()];
        orders.into_iter().chain([self.next_silence(), self.next_key_end()]).flatten().min()
    }

    /// Gives out what can be given out now.
    pub(crate) fn schedule(&mut self, now: Millis, dirty: &mut Dirty) {
        let rested: Vec<_> = self.orders.paused.extract_if(.., |_, (until, _)| *until <= now).collect();
        self.schedule_rollbacks(now, dirty);
        self.schedule_copy_ranges(now, dirty);
        self.schedule_scrubs(now, dirty);
        // What was in the way the last time is, as long as nothing else is known.
        for (of, (_, why)) in rested {
            let open = self.orders.by_purpose.get(&of).and_then(|id| self.orders.open.get_mut(id));
            open.into_iter().for_each(|open| open.failed = Some(why.clone()));
        }
    }

    fn order_stands(&mut self, now: Millis, node: NodeId, said: &OrderReport, dirty: &mut Dirty) {
        let Some(open) = self.orders.open.get(&said.id).filter(|o| o.shard == said.shard).cloned() else { return };
        let Some(config) = self.shards.get(&said.shard).map(|s| &s.config) else { return };
        let is_primary = config.primary_member().is_some_and(|m| m.node == node);
        // A deposed primary may still be talking; what it did in its epoch counts only where epochs do not matter.
        if !is_primary || said.epoch > config.epoch {
            return;
        }
        if let (OrderState::Running { .. }, Some(open)) = (&said.state, self.orders.open.get_mut(&said.id)) {
            open.failed = None;
        }
        match open.purpose {
            Purpose::Barrier(snapshot) => self.barrier_stands(now, snapshot, said, dirty),
            Purpose::Rollback => self.rollback_stands(now, said, dirty),
            Purpose::Copy(job) => self.copy_stands(now, job, said, dirty),
            Purpose::Scrub => self.scrub_stands(now, &open, said, dirty),
        }
    }

    /// Gives an order to the shard's primary.
    pub(crate) fn open_order(&mut self, shard: ShardId, what: ShardOrder, purpose: Purpose, dirty: &mut Dirty) {
        let id = self.meta.next_order;
        self.meta.next_order = OrderId(id.0 + 1);
        // Persisted with the rest of the transaction: no id is given out twice.
        dirty.add(Key::Meta);
        self.orders
            .open
            .insert(id, Open { shard, what, purpose, counted: (0, 0), reached: Blocks(0), kept: None, failed: None });
        self.orders.by_purpose.insert((purpose, shard), id);
        self.orders.paused.remove(&(purpose, shard));
        self.tell_primary(shard);
    }

    /// The order is over, however it went: its primary hears that it is not named any more.
    pub(crate) fn close_order(&mut self, id: OrderId, dirty: &mut Dirty) {
        if let Some(open) = self.orders.open.remove(&id) {
            self.keep(&open, dirty);
            self.orders.by_purpose.remove(&(open.purpose, open.shard));
            self.tell_primary(open.shard);
            // A transaction of its own, if nothing else makes one: only a new commit is news.
            dirty.add(Key::Meta);
        }
    }

    /// The same for all orders of one purpose in a volume.
    pub(crate) fn close_orders(&mut self, volume: VolumeId, purpose: Option<Purpose>, dirty: &mut Dirty) {
        let of_it = |open: &Open| open.shard.volume == volume && purpose.is_none_or(|p| p == open.purpose);
        let ids: Vec<OrderId> = self.orders.open.iter().filter(|(_, open)| of_it(open)).map(|(id, _)| *id).collect();
        for id in ids {
            self.close_order(id, dirty);
        }
        self.orders.paused.retain(|(p, shard), _| shard.volume != volume || purpose.is_some_and(|only| only != *p));
    }

    /// So far is an order. That is kept now and then only: reports come every second from each primary, and a record says what is left of all
    /// shards of a volume. What was not kept is done again after a restart.
    pub(crate) fn order_reaches(&mut self, now: Millis, id: OrderId, next: Blocks, dirty: &mut Dirty) {
        let Some(open) = self.orders.open.get_mut(&id) else { return };
        open.reached = open.reached.max(next);
        if now.since(*open.kept.get_or_insert(now)) < KEEP_PROGRESS_MS {
            return;
        }
        let (purpose, volume) = (open.purpose, open.shard.volume);
        let of_it = self.orders.open.values_mut().filter(|o| o.purpose == purpose && o.shard.volume == volume);
        let all: Vec<Open> = of_it
            .map(|open| {
                open.kept = Some(now);
                open.clone()
            })
            .collect();
        all.iter().for_each(|open| self.keep(open, dirty));
    }

    /// Puts how far an order is into the record of what is left.
    fn keep(&mut self, open: &Open, dirty: &mut Dirty) {
        match open.purpose {
            Purpose::Copy(job) => self.keep_copy(job, open.shard, open.reached, dirty),
            Purpose::Scrub => self.keep_scrub(open.shard, open.reached, dirty),
            Purpose::Barrier(_) | Purpose::Rollback => {}
        }
    }

    /// It did not work: not again before a pause.
    pub(crate) fn pause_order(&mut self, now: Millis, said: &OrderReport, why: &str, dirty: &mut Dirty) {
        let Some(purpose) = self.orders.open.get(&said.id).map(|open| open.purpose) else { return };
        self.close_order(said.id, dirty);
        let why = why.chars().take(MAX_REASON).collect();
        self.orders.paused.insert((purpose, said.shard), (Millis(now.0 + ORDER_PAUSE_MS), why));
    }

    /// The primaries of these shards started anew, or are others: what was begun begins again, where it was reported last.
    pub(crate) fn renew_orders(&mut self, concerns: impl Fn(ShardId) -> bool, dirty: &mut Dirty) {
        let renewed = |open: &Open| match open.purpose {
            Purpose::Barrier(_) | Purpose::Rollback => false,
            Purpose::Copy(_) | Purpose::Scrub => concerns(open.shard),
        };
        let ids: Vec<OrderId> = self.orders.open.iter().filter(|(_, open)| renewed(open)).map(|(id, _)| *id).collect();
        for id in ids {
            self.close_order(id, dirty);
        }
    }

    /// All open orders of shards whose primary is on `node`: every barrier, and of each other kind the oldest. Many of one kind that wait
    /// keep none of another waiting.
    pub(crate) fn orders_for(&self, node: NodeId) -> Vec<Order> {
        let mut given: BTreeMap<u8, usize> = BTreeMap::new();
        let mine = self.orders.open.iter().filter(|(_, open)| self.primary_node(open.shard) == Some(node));
        let given = mine.filter(|(_, open)| {
            let kind = match open.what {
                ShardOrder::Barrier { .. } => return true,
                ShardOrder::Rollback { .. } => 0,
                ShardOrder::CopyRange { .. } => 1,
                ShardOrder::Scrub { .. } => 2,
            };
            let given = given.entry(kind).or_default();
            *given += 1;
            *given <= MAX_ORDERS_AT_ONCE
        });
        given.map(|(id, open)| Order { id: *id, shard: open.shard, what: self.as_of_now(&open.what) }).collect()
    }

    /// What an order says now: a copy-range names who has its source. Every heartbeat says it again, so that a change needs no new order.
    fn as_of_now(&self, what: &ShardOrder) -> ShardOrder {
        match what {
            ShardOrder::CopyRange { from, at, .. } => {
                ShardOrder::CopyRange { from: *from, at: *at, holders: self.holders(from.shard) }
            }
            what => what.clone(),
        }
    }

    pub(crate) fn primary_node(&self, shard: ShardId) -> Option<NodeId> {
        self.shards.get(&shard)?.config.primary_member().map(|m| m.node)
    }

    /// Nodes whose primaries are busy with a scrub.
    pub(crate) fn scrubbing_nodes(&self) -> BTreeSet<NodeId> {
        let scrubs = self.orders.open.values().filter(|open| open.purpose == Purpose::Scrub);
        scrubs.filter_map(|open| self.primary_node(open.shard)).collect()
    }

    fn tell_primary(&mut self, shard: ShardId) {
        let at = self.next_commit();
        if let Some(node) = self.primary_node(shard) {
            self.tell(node, at);
        }
    }
}

/// What a report adds to what was counted before.
pub(crate) fn counted(state: &OrderState) -> (u64, u64) {
    match state {
        OrderState::Running { damaged, repaired, .. } | OrderState::Done { damaged, repaired } => (*damaged, *repaired),
        OrderState::Failed(_) => (0, 0),
    }
}
