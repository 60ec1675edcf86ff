//! Copy-range: a range of a shard reads as the same range of another shard's snapshot (rule 16).
//!
//! Piece after piece, each under its own range lock and stamp, so that clients' writes wait for one piece at most. Where every member's
//! disk holds an in-sync copy of the source, each copy shares the chunks with the one beside it; else the primary reads its own copy of
//! the source and sends bytes, as ordinary writes.

use super::Node;
use super::orders::{PartDone, Step};
use crate::iocb::{Kind, Phase};
use crate::limits::{COPY_DEPTH, COPY_PIECE, PROGRESS, SHARE_PIECE};
use crate::mail::Letter;
use conductor_model::api::OrderState;
use conductor_model::{BLOCK, BlockRange, Blocks, CopyState, OrderId, ShardId, ShardSnapshot};
use driver::{Outbox, Time};
use memory::Filling;
use node_protocol::Status;
use node_store::{Crcs, Parent, Store, StoreError};
use std::collections::BTreeSet;
use tcp::Payload;

/// A copy-range under way.
#[derive(Debug)]
pub(super) struct Copying {
    from: ShardSnapshot,
    /// By sharing, not by bytes.
    shares: bool,
    /// First block that no piece was begun for, and where it all ends.
    next: u32,
    end: u32,
    /// First blocks of the pieces under way.
    running: BTreeSet<u32>,
    said: Time,
}

impl<S: Store> Node<S> {
    pub(super) fn begin_copying(
        &mut self,
        now: Time,
        shard: ShardId,
        id: OrderId,
        from: ShardSnapshot,
        at: BlockRange,
    ) {
        let fits = self.primaries.get(&shard).is_some_and(|p| at.end() * BLOCK as u64 <= p.config.size.0);
        if !fits || !self.has_snapshot(from.shard, from.snapshot) {
            let why = if fits {
                format!("the primary of {shard} does not hold {} of {}", from.snapshot, from.shard)
            } else {
                format!("blocks {at} do not lie within {shard}")
            };
            self.order_over(id, OrderState::Failed(why));
            return;
        }
        let (next, end) = (at.from.0, at.from.0 + at.count.0);
        let shares = self.all_can_share(shard, from.shard);
        self.counters.count(if shares { "copy.by-sharing" } else { "copy.by-bytes" });
        let copying = Copying { from, shares, next, end, running: BTreeSet::new(), said: now };
        self.step_to(id, Step::Copying(copying));
        self.go_on_copying(now, shard, id);
    }

    /// Does every member's disk hold an in-sync copy of the source, as the source's copy here knows it?
    fn all_can_share(&self, shard: ShardId, source: ShardId) -> bool {
        let (Some(primary), Some(source)) = (self.primaries.get(&shard), self.replicas.get(&source)) else {
            return false;
        };
        let beside = |disk| source.config.members.iter().any(|m| m.disk == disk && m.state == CopyState::InSync);
        let here = self.replicas.get(&shard).is_some_and(|own| own.disk == source.disk);
        here && primary.config.in_sync_members().all(|m| beside(m.disk))
    }

    /// What a copy here shares with: the source's copy on the same disk.
    pub(super) fn beside(&self, disk: usize, of: ShardSnapshot) -> Option<Parent> {
        let source = self.replicas.get(&of.shard).filter(|r| r.disk == disk)?;
        self.has_snapshot(of.shard, of.snapshot).then_some(Parent { copy: source.copy, snapshot: of.snapshot })
    }

    /// Begins pieces while there is room for more.
    fn go_on_copying(&mut self, now: Time, shard: ShardId, id: OrderId) {
        loop {
            let Some(Step::Copying(copying)) = self.orders.get_mut(&id).map(|s| &mut s.step) else { return };
            let (depth, piece) = if copying.shares { (1, SHARE_PIECE) } else { (COPY_DEPTH, COPY_PIECE) };
            if copying.next == copying.end && copying.running.is_empty() {
                self.order_over(id, OrderState::Done { damaged: 0, repaired: 0 });
                return;
            }
            if copying.next == copying.end || copying.running.len() >= depth {
                break;
            }
            // Pieces end at whole multiples, so that no chunk is in two of them.
            let to = copying.end.min((copying.next / piece + 1) * piece);
            let range = BlockRange { from: Blocks(copying.next), count: Blocks(to - copying.next) };
            copying.running.insert(copying.next);
            copying.next = to;
            let kind = if copying.shares { Kind::Share(copying.from) } else { Kind::Copied(copying.from) };
            self.order_iocb(shard, id, kind, range);
        }
        let Some(Step::Copying(copying)) = self.orders.get_mut(&id).map(|s| &mut s.step) else { return };
        if now.since(copying.said) >= PROGRESS {
            copying.said = now;
            let next = Blocks(copying.running.first().copied().unwrap_or(copying.next));
            self.say_order(id, OrderState::Running { next, damaged: 0, repaired: 0 });
        }
    }

    /// One piece is over.
    pub(super) fn piece_copied(&mut self, now: Time, part: PartDone) {
        let Some(standing) = self.orders.get_mut(&part.order) else { return };
        let (shard, Step::Copying(copying)) = (standing.order.shard, &mut standing.step) else { return };
        copying.running.remove(&part.range.from.0);
        match part.status {
            Status::Ok => self.go_on_copying(now, shard, part.order),
            // A copy could not share it: bytes from here on.
            Status::NoSnapshot if copying.shares => {
                self.counters.count("copy.by-bytes");
                copying.shares = false;
                copying.next = part.range.from.0;
                self.go_on_copying(now, shard, part.order);
            }
            Status::NoSpace => {
                self.stop_copying(
                    now,
                    shard,
                    part.order,
                    format!("no space left for blocks {} of {shard}", part.range),
                );
            }
            _ => {
                self.stop_copying(
                    now,
                    shard,
                    part.order,
                    format!("blocks {} of the source could not be read", part.range),
                );
            }
        }
    }

    fn stop_copying(&mut self, now: Time, shard: ShardId, id: OrderId, why: String) {
        self.withdraw_parts(now, shard, id);
        self.order_over(id, OrderState::Failed(why));
    }

    /// Reads a piece of the source, to write it.
    pub(super) fn read_to_copy(
        &mut self,
        now: Time,
        key: usize,
        from: ShardSnapshot,
        out: &mut dyn Outbox<Letter>,
    ) -> bool {
        if !self.has_snapshot(from.shard, from.snapshot) {
            self.answer(now, key, Status::NoSnapshot);
            return true;
        }
        let range = self.iocbs[key].range;
        self.read_into(now, key, from.shard, range, Phase::Reading, out)
    }

    /// A piece of the source: what is nothing but zeros is zeroed, not written.
    pub(super) fn copied_read(&mut self, key: usize, data: Filling, crcs: Crcs) {
        let iocb = &mut self.iocbs[key];
        if data.iter().any(|byte| *byte != 0) {
            iocb.payload = Some(Payload { len: data.len(), mem: data.filled(), crcs });
        }
        iocb.phase = Phase::Ready;
        self.ready.push_back(key);
    }

    /// The source cannot be read.
    pub(super) fn source_failed(&mut self, now: Time, key: usize, error: &StoreError) {
        if matches!(error, StoreError::Busy) {
            self.iocbs[key].phase = Phase::Locked;
            let (shard, arrival) = (self.iocbs[key].shard, self.iocbs[key].arrival);
            if let Some(primary) = self.primaries.get_mut(&shard) {
                primary.stalled.insert(arrival, key);
            }
            return;
        }
        let missing = matches!(error, StoreError::NoSuchSnapshot { .. } | StoreError::NoSuchCopy(_));
        self.answer(now, key, if missing { Status::NoSnapshot } else { Status::Io });
    }
}
