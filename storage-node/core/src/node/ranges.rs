//! Ranges that clients hold who share a volume: asked for, given back, gone with their session; and nothing written outside of them.

use super::Node;
use super::requests::Incoming;
use crate::iocb::{Iocb, Kind};
use crate::iocbs::IocbKey;
use crate::limits::{MAX_RANGES_EACH, RANGE_WAIT, RANGES_TOLD};
use crate::mail::RangeView;
use crate::primary::Primary;
use crate::range_lock::Mode;
use crate::ranges::{Asked, Wish};
use conductor_model::{BLOCK, Epoch, ShardId, ShardIndex};
use driver::{ConnId, Span, Time};
use node_protocol::{RangeBody, Status, op};
use node_store::Store;

impl<S: Store> Node<S> {
    /// A client wants to hold a range, or gives one back.
    pub(super) fn range_asked(&mut self, now: Time, incoming: Incoming<'_>) {
        let Incoming { conn, op, body, answer, .. } = incoming;
        let parsed = RangeBody::parse(body).filter(RangeBody::is_sound);
        let shard = parsed.map(|body| body.shard());
        let wish = parsed.ok_or(Status::BadRequest).and_then(|body| self.check_range(now, conn, &body));
        let mut gives_back = false;
        let said = match (wish, shard.and_then(|shard| self.primaries.get_mut(&shard))) {
            (Err(status), _) => Asked::Said(answer, status),
            (Ok(wish), Some(primary)) if op == op::UNREGISTER_RANGE => {
                gives_back = true;
                let withdrawn = primary.ranges.give_back(wish.session, wish.range, wish.mode);
                for waited in withdrawn.collect::<Vec<_>>() {
                    self.reply_status(now, waited, Status::RangeTaken);
                }
                Asked::Said(answer, Status::Ok)
            }
            (Ok(wish), Some(primary)) => {
                let replaced: Vec<_> = primary.ranges.asks_anew(&wish).collect();
                let said = primary.ranges.ask(now, wish, answer);
                for waited in replaced {
                    self.reply_status(now, waited, Status::RangeTaken);
                }
                said
            }
            (Ok(_), None) => Asked::Said(answer, Status::StaleEpoch),
        };
        match said {
            Asked::Waits => self.counters.count("range.waits"),
            Asked::Said(answer, status) => self.reply_at_once(now, answer, status, shard),
        }
        if let Some(shard) = shard.filter(|_| gives_back) {
            self.decide_ranges(now, shard);
        }
    }

    /// All that can be said before others are looked at.
    fn check_range(&self, now: Time, conn: ConnId, body: &RangeBody) -> Result<Wish, Status> {
        let shard = body.shard();
        let session = self.sessions.of(conn).filter(|s| s.shared && s.volume == shard.volume).ok_or(Status::Denied)?;
        let primary = self.primaries.get(&shard).ok_or(Status::StaleEpoch)?;
        let (theirs, epoch, range) = (Epoch(body.epoch.get()), primary.config.epoch, body.range());
        if theirs != epoch {
            return Err(if theirs < epoch { Status::StaleEpoch } else { Status::Later });
        }
        if range.end() > primary.config.size.0.div_ceil(BLOCK as u64) {
            return Err(Status::OutOfRange);
        }
        if !self.may_give_ranges(now, shard) {
            return Err(Status::Later);
        }
        let mode = if body.is_for_writing() { Mode::Exclusive } else { Mode::Shared };
        let patience = Span::millis(body.wait_ms().into()).min(RANGE_WAIT);
        let has: usize = self.volume_here(shard).map(|p| p.ranges.of(session.id)).sum();
        Ok(Wish {
            session: session.id,
            conn,
            range,
            mode,
            until: (patience > Span(0)).then(|| now + patience),
            room: has < MAX_RANGES_EACH,
            again: body.was_held_before(),
        })
    }

    /// Who may have been replaced gives nothing that the next primary does not know of.
    fn may_give_ranges(&self, now: Time, shard: ShardId) -> bool {
        self.primaries.get(&shard).is_some_and(Primary::is_serving) && self.lease_holds(now, shard)
    }

    /// The primaries here of the volume that this is a shard of.
    fn volume_here(&self, shard: ShardId) -> impl Iterator<Item = &Primary> {
        let of = |index| ShardId { index: ShardIndex(index), ..shard };
        self.primaries.range(of(0)..=of(u32::MAX)).map(|(_, primary)| primary)
    }

    /// Tells those whose waiting is over.
    fn decide_ranges(&mut self, now: Time, shard: ShardId) {
        let may = self.may_give_ranges(now, shard);
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        for (answer, status) in primary.ranges.take_decided(now, may) {
            self.counters.count(if status == Status::Ok { "range.waited" } else { "range.waited-in-vain" });
            self.reply_status(now, answer, status);
        }
    }

    fn shared_shards(&self) -> Vec<ShardId> {
        self.primaries.iter().filter(|(_, p)| !p.ranges.is_empty()).map(|(shard, _)| *shard).collect()
    }

    /// Sessions have ended, or connections: what they held is free, and given to those who wait.
    pub(super) fn ranges_left(&mut self, now: Time) {
        let shards = self.shared_shards();
        if shards.is_empty() {
            return;
        }
        let alive = self.sessions.ids();
        for shard in shards {
            let Self { primaries, sessions, .. } = self;
            if let Some(primary) = primaries.get_mut(&shard) {
                primary.ranges.only(|session| alive.contains(&session), |conn| sessions.of(conn).is_some());
            }
            self.decide_ranges(now, shard);
        }
    }

    pub(super) fn tick_ranges(&mut self, now: Time) {
        let waiting = self.primaries.iter().filter(|(_, p)| p.ranges.has_waiting());
        for shard in waiting.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            self.decide_ranges(now, shard);
        }
    }

    /// Whether a client that shares its volume holds what this request changes. Nobody else has to.
    pub(super) fn holds_what_it_changes(&self, key: IocbKey) -> bool {
        let Iocb { shard, kind, range, holder, .. } = self.iocbs[key];
        let Some(session) = holder.filter(|_| matches!(kind, Kind::Write | Kind::Zero)) else { return true };
        let held = self.primaries.get(&shard).is_some_and(|p| p.ranges.may_write(session, range));
        held || driver::mutant::on("range_not_enforced")
    }

    /// Some of what a session holds or waits for, for people.
    pub(super) fn ranges_of(&self, session: u32) -> Vec<RangeView> {
        let all =
            self.primaries.iter().flat_map(|(shard, p)| p.ranges.all().map(|(wish, held)| (shard.index, wish, held)));
        let its = all.filter(|(_, wish, _)| wish.session == session).take(RANGES_TOLD);
        its.map(|(shard, Wish { range, mode, .. }, held)| RangeView {
            shard,
            range,
            write: mode == Mode::Exclusive,
            held,
        })
        .collect()
    }
}
