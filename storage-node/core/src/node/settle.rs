//! Settling: a primary makes the copies equal for everything that was in flight, before it serves (rule 6).
//!
//! The union of what the members hold above K is written again to every copy, itself included, with the primary's own content (of a
//! flush volume that of a copy which cannot have lost anything: `Primary::union`), as ordinary writes of the new epoch. What was never
//! acknowledged may so be kept or undone, but everywhere alike.
//!
//! Long ranges are mostly what was discarded: gigabytes in one request, in which reading would find zeros for as long as writes wait. Of
//! the own content it is first looked where there is any (`StoreOp::Extents`), and where there is none it is zeroed on every copy in one piece.

use super::Node;
use super::stamping::Stamping;
use crate::iocb::{Iocb, IocbPhase, Kind};
use crate::iocbs::IocbKey;
use crate::limits::{SETTLE_AT_ONCE, SETTLE_DEPTH, SETTLE_HOLE, SETTLE_PIECE};
use crate::mail::Letter;
use crate::mend::Failure;
use crate::primary::{PrimaryPhase, Settling, between};
use conductor_model::{BlockRange, Blocks, ShardId};
use driver::{Outbox, Time};
use memory::Filling;
use node_store::{Crcs, Store};
use tcp::Payload;

impl<S: Store> Node<S> {
    /// Every member has joined: starts to settle.
    pub(super) fn start_settling(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let pieces = if driver::mutant::on("no_settling") { Vec::new() } else { primary.union(SETTLE_HOLE) };
        self.counters.count(if pieces.is_empty() { "settle.nothing" } else { "settle.started" });
        let own = primary.config.primary;
        let foreign = pieces.iter().filter(|(_, source)| *source != own);
        let sources = foreign.map(|(at, source)| (at.from.0, (at.end(), *source))).collect();
        let left = pieces.into_iter().map(|(at, _)| at).collect();
        primary.phase = PrimaryPhase::Settling(Settling { left, sources, ..Settling::default() });
        self.go_on_settling(now, shard, out);
    }

    /// Starts pieces while there is room for more; serves when nothing is left.
    pub(super) fn go_on_settling(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        loop {
            let Some(primary) = self.primaries.get_mut(&shard) else { return };
            let PrimaryPhase::Settling(settling) = &mut primary.phase else { return };
            if settling.running.len() >= SETTLE_DEPTH {
                return;
            }
            // Reads of the epoch before are not overtaken by writes to the same blocks.
            let reads = primary
                .requests
                .values()
                .any(|key| matches!(self.iocbs[*key].phase, IocbPhase::Reading | IocbPhase::Merging));
            // Nor are those of an earlier settling, whose pieces nobody waits for any more.
            let given_up = |iocb: &Iocb| {
                iocb.shard == shard
                    && matches!(iocb.kind, Kind::Settle | Kind::Fill)
                    && iocb.withdrawn
                    && !iocb.is_over()
            };
            if reads
                || self.iocbs.iter().any(|(_, iocb)| given_up(iocb))
                || (self.settling_pieces >= SETTLE_AT_ONCE && !settling.left.is_empty())
            {
                return;
            }
            let Some(piece) = settling.left.pop() else {
                if settling.running.is_empty() && settling.later.is_empty() {
                    self.serve(now, shard, out);
                }
                return;
            };
            if !self.start_piece(now, shard, piece, out) {
                if let Some(PrimaryPhase::Settling(s)) = self.primaries.get_mut(&shard).map(|p| &mut p.phase) {
                    s.left.push(piece);
                }
                return;
            }
        }
    }

    /// Starts with the beginning of a range that is another copy's, or with all of one that is the own.
    fn start_piece(&mut self, now: Time, shard: ShardId, range: BlockRange, out: &mut dyn Outbox<Letter>) -> bool {
        let source = self.settling_source(shard, range);
        let stop = if source.is_some() { range.end().min(u64::from(range.from.0 + SETTLE_PIECE)) } else { range.end() };
        let (range, rest) = (between(range.from.0.into(), stop), between(stop, range.end()));
        let key = self.new_iocb(Iocb::internal(shard, Kind::Settle, range, IocbPhase::Locked));
        let begun = match source {
            Some(other) => {
                let asked = self.ask_range(now, key, other);
                self.iocbs[key].phase = IocbPhase::Mending;
                self.counters.count(if asked { "settle.fetched" } else { "settle.fetch-waits" });
                asked
            }
            None => self.read_into(now, key, shard, range, IocbPhase::Reading, out),
        };
        if !begun {
            self.end_request(now, key);
            return false;
        }
        self.counters.count("settle.piece");
        if let Some(settling) = self.settling_mut(shard) {
            settling.running.insert(key);
            settling.left.extend((rest.count.0 > 0).then_some(rest));
        }
        true
    }

    /// How far the settling of a shard is; `None` if none is under way.
    pub(super) fn settling_mut(&mut self, shard: ShardId) -> Option<&mut Settling> {
        match &mut self.primaries.get_mut(&shard)?.phase {
            PrimaryPhase::Settling(settling) => Some(settling),
            _ => None,
        }
    }

    /// Which of the other copies has the content that a piece is settled with, if not the own?
    fn settling_source(&self, shard: ShardId, range: BlockRange) -> Option<usize> {
        let primary = self.primaries.get(&shard)?;
        let PrimaryPhase::Settling(settling) = &primary.phase else { return None };
        let source = settling.source(range)?;
        primary.others().position(|m| m.copy == source)
    }

    /// Another copy's content of a piece, or none.
    pub(super) fn settle_fetched(
        &mut self,
        now: Time,
        key: IocbKey,
        content: Result<Payload, Failure>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let (shard, range) = (self.iocbs[key].shard, self.iocbs[key].range);
        match content {
            Ok(payload) => self.settle_with(now, key, Some(payload), out),
            Err(Failure::Away) => self.settle_again(now, key, range),
            Err(_) if range.count.0 > 1 => self.settle_met_damage(now, key, out),
            Err(_) => {
                self.counters.count("settle.source-damaged");
                if let Some(settling) = self.settling_mut(shard) {
                    settling.unreadable.insert(range.from.0);
                }
                self.settle_instead(now, key, shard, [range]);
            }
        }
    }

    /// The primary's own content of a piece.
    pub(super) fn settle_read(
        &mut self,
        now: Time,
        key: IocbKey,
        data: Filling,
        crcs: Crcs,
        out: &mut dyn Outbox<Letter>,
    ) {
        self.settle_with(now, key, Some(Payload { len: data.len(), mem: data.filled(), crcs }), out);
    }

    /// Where the own copy has anything in a long range, up to where that is known: zeroes the hole that it begins with, or has what it
    /// begins with read a piece at a time, up to the next hole that is worth it.
    pub(super) fn settle_looked(
        &mut self,
        now: Time,
        key: IocbKey,
        data: &[BlockRange],
        known: Blocks,
        out: &mut dyn Outbox<Letter>,
    ) {
        let (shard, range) = (self.iocbs[key].shard, self.iocbs[key].range);
        let (from, end) = (u64::from(range.from.0), range.end());
        let known = end.min(known.0.into());
        let hole = data.first().map_or(known, |run| known.min(run.from.0.into()));
        if hole == end || hole.saturating_sub(from) >= SETTLE_PIECE.into() {
            self.counters.count("settle.hole");
            self.iocbs[key].range = between(from, hole);
            if let Some(settling) = self.settling_mut(shard) {
                settling.left.extend((hole < end).then(|| between(hole, end)));
            }
            if driver::mutant::on("hole_not_settled") {
                return self.piece_settled(now, key);
            }
            return self.settle_with(now, key, None, out);
        }
        let mut stop = hole;
        for run in data {
            if u64::from(run.from.0).saturating_sub(stop) >= SETTLE_PIECE.into() {
                break;
            }
            stop = known.min(run.end());
        }
        let stop = stop.max(from + u64::from(SETTLE_PIECE)).min(end);
        let pieces = (from..stop).step_by(SETTLE_PIECE as usize);
        let mut left: Vec<_> = pieces.map(|at| between(at, stop.min(at + u64::from(SETTLE_PIECE)))).collect();
        left.extend((stop < end).then(|| between(stop, end)));
        self.settle_instead(now, key, shard, left.into_iter().rev());
    }

    /// Content of a piece: written to every copy, or zeroed there if there is nothing or nothing but zeros.
    fn settle_with(&mut self, now: Time, key: IocbKey, content: Option<Payload>, out: &mut dyn Outbox<Letter>) {
        let shard = self.iocbs[key].shard;
        let current = self
            .primaries
            .get(&shard)
            .is_some_and(|p| matches!(&p.phase, PrimaryPhase::Settling(s) if s.running.contains(&key)));
        if !current {
            self.end_request(now, key);
            return;
        }
        let iocb = &mut self.iocbs[key];
        iocb.payload = content.filter(|content| content.bytes().iter().any(|byte| *byte != 0));
        iocb.phase = IocbPhase::Ready;
        if self.stamp(now, key, out) == Stamping::Later {
            self.stall(key);
        }
    }

    /// A piece is equal on all copies.
    pub(super) fn piece_settled(&mut self, now: Time, key: IocbKey) {
        let shard = self.iocbs[key].shard;
        self.end_request(now, key);
        if let Some(settling) = self.settling_mut(shard) {
            settling.running.remove(&key);
            self.may_settle_on.push(shard);
        }
    }

    /// Pieces of an epoch that is over are dropped; what they still have in flight finishes without effect.
    pub(super) fn forget_old_settling(&mut self, now: Time, shard: ShardId) {
        let old: Vec<IocbKey> = self
            .iocbs
            .iter()
            .filter(|(_, i)| i.shard == shard && i.kind == Kind::Settle && !i.is_over())
            .map(|(key, _)| key)
            .collect();
        for key in old {
            match self.iocbs[key].phase {
                IocbPhase::Reading => self.iocbs[key].withdrawn = true,
                _ => {
                    self.abandon_stamp(key);
                    self.end_request(now, key);
                }
            }
        }
    }

    /// All is settled: K enters the epoch, what was unfinished is stamped anew, and requests are served.
    fn serve(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.phase = PrimaryPhase::Serving;
        primary.settled = true;
        // Who has been away is here.
        primary.keeps_from_filling = primary.keeps_from_filling.filter(|bad| bad.held_by.is_none());
        primary.ranges.serves(now);
        let doubted = primary.doubts_any();
        primary.history.settled = primary.config.epoch;
        // What its list named was before this settling; what it holds from here on counts like anybody's.
        primary.just_added = None;
        // What settling wrote is durable.
        primary.flushed = primary.window.prefix();
        self.counters.count("primary.serves");
        if doubted {
            // A copy that keeps its opening is told with K that this epoch was settled: nobody is in doubt again for what is over.
            self.flush_shard(shard);
        }
        self.restart_unfinished(now, shard, out);
        self.begin_orders(now, shard);
        if let Some(primary) = self.primaries.get(&shard) {
            let waiting = primary.requests.values().copied().filter(|key| primary.locks.is_granted(*key));
            self.runnable.extend(waiting);
        }
    }
}
