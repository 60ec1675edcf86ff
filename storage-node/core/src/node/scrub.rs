//! Looking through everything on every copy, slowly, and putting right what does not read as it was written.
//!
//! ```text
//!   Order::Scrub{from, rate} ──► for each 256 KiB: live, then each snapshot: locked shared
//!                                  own copy read and verified │ REPLICA_VERIFY to each other copy ──► all sound, all equal: next
//!                                  damage ──► locked alone, looked through again, put right (`heal`)
//! ```
//!
//! Holes are verified like data: a copy that lost what it should hold would not say so by itself, and they cost no disk reads. What is
//! read counts against `rate` on each copy (they are alike); holes count a sixteenth. Copies that are sound and differ are counted and
//! said, and left as they are: nobody here knows which of them is right. The order of a scrub that is not named any more is over;
//! what of it is under way comes to its end by itself.
//!
//! With each piece every copy's store looks through a little of its own metadata, too (`Store::patrol`).

use super::Node;
use crate::iocb::{Iocb, IocbPhase, Kind};
use crate::iocbs::IocbKey;
use crate::limits::{RETRY_REFUSED, SCRUB_AT_ONCE, SCRUB_BURST, SCRUB_DEPTH, SCRUB_REPORT};
use crate::mail::Letter;
use crate::mend::Outcome;
use crate::range_lock::Mode;
use conductor_model::api::{Order, OrderReport, OrderState, ShardOrder};
use conductor_model::{BlockRange, Blocks, Bytes, OrderId, ShardId};
use driver::{Outbox, Time};
use node_protocol::MAX_VERIFY_BLOCKS;
use node_store::{Store, View};
use std::collections::BTreeMap;

/// One shard's scrub.
#[derive(Debug)]
pub(crate) struct Scrub {
    id: OrderId,
    /// Most bytes per second.
    rate: Bytes,
    /// The first block that no piece has been made of.
    next: Blocks,
    /// Pieces that are to be looked through, last first.
    left: Vec<(View, BlockRange)>,
    /// Under way.
    running: BTreeMap<IocbKey, (View, BlockRange)>,
    /// Bytes that may be read now; below zero until what was read is paid for.
    allowance: i64,
    filled: Time,
    /// Not before: a copy was away.
    wait_until: Time,
    reported: Time,
    damaged: u64,
    repaired: u64,
    over: bool,
}

impl Scrub {
    /// Everything below is done.
    fn done_up_to(&self) -> Blocks {
        let open = self.left.iter().map(|(_, at)| at.from).chain(self.running.values().map(|(_, at)| at.from));
        open.chain([self.next]).min().unwrap_or(self.next)
    }

    fn fill(&mut self, now: Time) {
        let rate = i64::try_from(self.rate.0).unwrap_or(i64::MAX);
        let most = (rate / SCRUB_BURST as i64).max(1);
        let passed = i64::try_from(now.since(self.filled).0 / 1_000).unwrap_or(i64::MAX);
        let earned = rate.saturating_mul(passed.min(60_000_000)) / 1_000_000;
        // Less than a byte is earned with the next tick.
        if earned > 0 {
            self.allowance = self.allowance.saturating_add(earned).min(most);
            self.filled = now;
        }
    }

    fn state(&self) -> OrderState {
        let (damaged, repaired) = (self.damaged, self.repaired);
        if self.over {
            OrderState::Done { damaged, repaired }
        } else {
            OrderState::Running { next: self.done_up_to(), damaged, repaired }
        }
    }
}

impl<S: Store> Node<S> {
    /// All orders that are open. A scrub that is not among them any more is over; what of it is under way comes to its end by itself.
    pub(super) fn scrubs_ordered(&mut self, now: Time, orders: &[Order], out: &mut dyn Outbox<Letter>) {
        self.scrubs.retain(|_, scrub| orders.iter().any(|order| order.id == scrub.id));
        for order in orders {
            if let ShardOrder::Scrub { from, rate } = order.what {
                self.scrub_ordered(now, order.shard, order.id, from, rate, out);
            }
        }
    }

    /// A shard is to be scrubbed from a block on. Repeated, it says how it stands; a new rate counts at once.
    fn scrub_ordered(
        &mut self,
        now: Time,
        shard: ShardId,
        id: OrderId,
        from: Blocks,
        rate: Bytes,
        out: &mut dyn Outbox<Letter>,
    ) {
        if !self.primaries.contains_key(&shard) {
            return;
        }
        let known = self.scrubs.get_mut(&shard).filter(|s| s.id == id);
        let Some(scrub) = known else {
            self.counters.count("scrub.started");
            let scrub = Scrub {
                id,
                rate,
                next: from,
                left: Vec::new(),
                running: BTreeMap::new(),
                allowance: 0,
                filled: now,
                wait_until: now,
                reported: now,
                damaged: 0,
                repaired: 0,
                over: false,
            };
            self.scrubs.insert(shard, scrub);
            return;
        };
        scrub.rate = rate;
        if scrub.over {
            self.report_scrub(now, shard, out);
        }
    }

    /// Scrubs go on as their rates allow.
    pub(super) fn tick_scrubs(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let shards: Vec<ShardId> = self.scrubs.keys().copied().collect();
        for shard in shards {
            if !self.primaries.contains_key(&shard) {
                self.scrubs.remove(&shard);
                continue;
            }
            if let Some(scrub) = self.scrubs.get_mut(&shard).filter(|s| !s.over) {
                scrub.fill(now);
                self.go_on_scrubbing(now, shard, out);
            }
            let due = |s: &&Scrub| !s.over && now.since(s.reported) >= SCRUB_REPORT;
            if self.scrubs.get(&shard).filter(due).is_some() {
                self.report_scrub(now, shard, out);
            }
        }
    }

    fn report_scrub(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let (Some(primary), Some(scrub)) = (self.primaries.get(&shard), self.scrubs.get_mut(&shard)) else { return };
        scrub.reported = now;
        let report = OrderReport { id: scrub.id, shard, epoch: primary.config.epoch, state: scrub.state() };
        out.post(Letter::Report(report));
    }

    /// Starts pieces while the rate and the limits allow; says so when all is done.
    fn go_on_scrubbing(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        loop {
            let Some(primary) = self.primaries.get(&shard).filter(|p| p.is_serving()) else { return };
            let Some(replica) = self.replicas.get(&shard) else { return };
            let all: usize = self.scrubs.values().map(|s| s.running.len()).sum();
            // Clients first.
            let crowded = self.crowds[replica.disk].all() >= self.store_share() / 4;
            let size = primary.config.blocks();
            let Some(scrub) = self.scrubs.get_mut(&shard).filter(|s| !s.over && now >= s.wait_until) else { return };
            if scrub.left.is_empty() && scrub.next >= size {
                if scrub.running.is_empty() {
                    scrub.over = true;
                    self.counters.count("scrub.done");
                    self.report_scrub(now, shard, out);
                }
                return;
            }
            if scrub.allowance <= 0 || scrub.running.len() >= SCRUB_DEPTH || all >= SCRUB_AT_ONCE || crowded {
                return;
            }
            if scrub.left.is_empty() {
                let count = Blocks(MAX_VERIFY_BLOCKS.min(size.0 - scrub.next.0));
                let at = BlockRange { from: scrub.next, count };
                let snapshots = self.disks[replica.disk].store.snapshots(replica.copy);
                scrub.left.extend(snapshots.into_iter().rev().map(|s| (View::Snapshot(s), at)));
                scrub.left.push((View::Live, at));
                scrub.next = Blocks(scrub.next.0 + count.0);
            }
            let Some((view, at)) = scrub.left.pop() else { return };
            let key = self.new_iocb(Iocb { view, ..Iocb::internal(shard, Kind::Scrub, at, IocbPhase::Queued) });
            self.counters.count("scrub.piece");
            let arrival = self.iocbs[key].arrival;
            if let Some(scrub) = self.scrubs.get_mut(&shard) {
                scrub.running.insert(key, (view, at));
            }
            let Some(primary) = self.primaries.get_mut(&shard) else { return };
            primary.requests.insert(arrival, key);
            if primary.locks.acquire(key, at, Mode::Shared) {
                self.wake(vec![key]);
            }
        }
    }

    /// A piece that could not be looked through now: later, and without its lock until then.
    pub(super) fn scrub_again(&mut self, now: Time, key: IocbKey) {
        let shard = self.iocbs[key].shard;
        self.end_request(now, key);
        if let Some(scrub) = self.scrubs.get_mut(&shard)
            && let Some(piece) = scrub.running.remove(&key)
        {
            scrub.left.push(piece);
            scrub.wait_until = now + RETRY_REFUSED;
        }
    }

    /// A piece cost so much: that is taken from the allowance, and the patrol of the store here does its share.
    pub(super) fn scrub_cost(&mut self, shard: ShardId, cost: Blocks) {
        if let Some(scrub) = self.scrubs.get_mut(&shard) {
            scrub.allowance = scrub.allowance.saturating_sub_unsigned(cost.bytes().0);
        }
        if let Some(replica) = self.replicas.get(&shard) {
            self.disks[replica.disk].store.patrol(cost);
        }
    }

    /// So many blocks that a scrub had found damaged were written again.
    pub(super) fn scrub_rewrote(&mut self, shard: ShardId, blocks: Blocks) {
        if let Some(scrub) = self.scrubs.get_mut(&shard) {
            scrub.repaired += u64::from(blocks.0);
        }
    }

    /// A piece was looked through, and what can be put right of it is.
    pub(super) fn scrubbed(&mut self, now: Time, key: IocbKey, outcome: Outcome, out: &mut dyn Outbox<Letter>) {
        let shard = self.iocbs[key].shard;
        if let Some(scrub) = self.scrubs.get_mut(&shard).filter(|s| s.running.contains_key(&key)) {
            let rewritten = outcome.rewrite.or(outcome.left).map_or(0, |r| u64::from(r.count.0));
            scrub.damaged += (outcome.repaired.len() + outcome.lost.len()) as u64 + rewritten;
            scrub.repaired += outcome.repaired.len() as u64;
        }
        if outcome.again {
            self.scrub_again(now, key);
            return;
        }
        self.end_request(now, key);
        if let Some(scrub) = self.scrubs.get_mut(&shard) {
            scrub.running.remove(&key);
        }
        self.go_on_scrubbing(now, shard, out);
    }
}
