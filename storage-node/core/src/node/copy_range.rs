//! Copy-range: a range of a shard reads as the same range of another shard's snapshot (rule 16).
//!
//! Piece after piece, each under its own range lock and stamp, so that clients' writes wait for one piece at most. Where every member's
//! disk holds an in-sync copy of the source, each copy shares the chunks with the one beside it; else the primary reads the source, here or
//! from a node that has it (`source`), and sends bytes, as ordinary writes.

use super::Node;
use super::orders::{PartDone, Step};
use crate::iocb::{IocbPhase, Kind};
use crate::iocbs::IocbKey;
use crate::limits::{COPY_RANGE_DEPTH, COPY_RANGE_PIECE, PROGRESS, SHARE_PIECE};
use conductor_model::api::{OrderState, Trouble};
use conductor_model::{BlockRange, Blocks, CopyState, OrderId, ShardId, ShardSnapshot};
use driver::Time;
use node_protocol::Status;
use node_store::{Parent, Store};
use std::collections::BTreeSet;
use tcp::Payload;

/// A copy-range under way.
#[derive(Debug)]
pub(super) struct Copying {
    from: ShardSnapshot,
    /// By sharing, not by bytes.
    shares: bool,
    /// Blocks of a piece.
    piece: u32,
    /// First block that no piece was begun for, and where it all ends.
    next: u32,
    end: u32,
    /// First blocks of the pieces under way.
    running: BTreeSet<u32>,
    said: Time,
    /// A piece was asked for, or is to be, on another reactor: links to those that have the source are needed.
    pub(super) elsewhere: bool,
    /// Since when no piece was read because nobody who has it answers, and what is waited for.
    waits: Option<(Time, String)>,
    /// Why the piece that was given up cannot be read.
    pub(super) why: Option<String>,
}

impl Copying {
    /// The source, if some of it is read on another reactor.
    pub(super) fn source_elsewhere(&self) -> Option<ShardId> {
        self.elsewhere.then_some(self.from.shard)
    }

    /// A piece cannot be read now.
    pub(super) fn waits_for(&mut self, now: Time, what: String) {
        let since = self.waits.as_ref().map_or(now, |(since, _)| *since);
        self.waits = Some((since, what));
    }
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
        if self.primaries.get(&shard).is_none_or(|p| !p.config.contains(at)) {
            self.order_over(id, OrderState::Failed(format!("blocks {at} do not lie within {shard}")));
            return;
        }
        let (next, end) = (at.from.0, at.from.0 + at.count.0);
        let shares = self.all_can_share(shard, from.shard);
        self.counters.count(if shares { "copy.by-sharing" } else { "copy.by-bytes" });
        let piece = if shares { SHARE_PIECE } else { COPY_RANGE_PIECE };
        let copying = Copying {
            from,
            shares,
            piece,
            next,
            end,
            running: BTreeSet::new(),
            said: now,
            elsewhere: false,
            waits: None,
            why: None,
        };
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
            let Some(Step::Copying(copying)) = self.orders.named.get_mut(&id).map(|s| &mut s.step) else { return };
            let (depth, piece) = (if copying.shares { 1 } else { COPY_RANGE_DEPTH }, copying.piece);
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
            let kind = if copying.shares { Kind::Share(copying.from) } else { Kind::CopyRange(copying.from) };
            self.order_iocb(shard, id, kind, range);
        }
        let Some(Step::Copying(copying)) = self.orders.named.get_mut(&id).map(|s| &mut s.step) else { return };
        if now.since(copying.said) >= PROGRESS {
            copying.said = now;
            let next = Blocks(copying.running.first().copied().unwrap_or(copying.next));
            self.say_order(id, OrderState::Running { next, damaged: 0, repaired: 0 });
        }
    }

    /// One piece is over.
    pub(super) fn piece_copied(&mut self, now: Time, part: PartDone) {
        let Some(standing) = self.orders.named.get_mut(&part.order) else { return };
        let (shard, Step::Copying(copying)) = (standing.order.shard, &mut standing.step) else { return };
        copying.running.remove(&part.range.from.0);
        match part.status {
            Status::Ok => {
                copying.waits = None;
                self.go_on_copying(now, shard, part.order);
            }
            // A copy could not share it: bytes from here on.
            Status::NoSnapshot if copying.shares => {
                self.counters.count("copy.by-bytes");
                (copying.shares, copying.piece) = (false, COPY_RANGE_PIECE);
                copying.next = part.range.from.0;
                self.go_on_copying(now, shard, part.order);
            }
            // There has to be room for a whole piece, of which sharing takes little.
            Status::NoSpace if copying.shares && copying.piece > COPY_RANGE_PIECE => {
                self.counters.count("copy.smaller-pieces");
                copying.piece = (copying.piece / 4).max(COPY_RANGE_PIECE);
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
                let unread = || format!("blocks {} of the source could not be read", part.range);
                let why = copying.why.take().unwrap_or_else(unread);
                self.stop_copying(now, shard, part.order, why);
            }
        }
    }

    fn stop_copying(&mut self, now: Time, shard: ShardId, id: OrderId, why: String) {
        self.withdraw_parts(now, shard, id);
        self.order_over(id, OrderState::Failed(why));
    }

    /// A piece of the source: what is nothing but zeros is zeroed, not written.
    pub(super) fn copied(&mut self, key: IocbKey, payload: Payload) {
        let iocb = &mut self.iocbs[key];
        if payload.bytes().iter().any(|byte| *byte != 0) {
            iocb.payload = Some(payload);
        }
        iocb.phase = IocbPhase::Ready;
        self.runnable.push_back(key);
    }

    /// How far a copy-range is, if this order is one that is under way.
    pub(super) fn copying(&mut self, id: OrderId) -> Option<&mut Copying> {
        match self.orders.named.get_mut(&id).map(|standing| &mut standing.step) {
            Some(Step::Copying(copying)) => Some(copying),
            _ => None,
        }
    }

    /// Copy-ranges that have waited for a while, for `trine status`.
    pub(super) fn waiting_copies(&self, now: Time) -> impl Iterator<Item = Trouble> {
        self.orders.named.values().filter_map(move |standing| {
            let Step::Copying(copying) = &standing.step else { return None };
            let (_, why) = copying.waits.as_ref().filter(|(since, _)| now.since(*since) >= PROGRESS)?;
            let waiting = u32::try_from(copying.running.len()).unwrap_or(u32::MAX);
            Some(Trouble { shard: standing.order.shard, waiting, reason: why.clone(), lost: false, ailment: None })
        })
    }
}
