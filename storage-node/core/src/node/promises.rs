//! Promises: what keeps a deposed primary from serving reads while another one writes (rules 9, 13 and 14).
//!
//! ```text
//!  primary ──PROMISE (knows list 3)──► reactor of a copy      a Join of a newer epoch under another primary waits there
//!          ◄── granted, list 4: shard 7 ──                    until the last answer without shard 7 has run out,
//!  stops serving shard 7, asks for news                       or until the primary says that it
//!          ──PROMISE (knows list 4)──►                        knows list 4
//! ```

use super::requests::Incoming;
use super::waits::{ReplyWait, Request};
use super::{Node, whole_payload};
use crate::iocbs::IocbKey;
use crate::lease::relied_until;
use crate::limits::{KEEPALIVE, PROMISE, SUBTASK_DEADLINE};
use crate::links::{Left, Promise};
use crate::mail::Letter;
use crate::primary::Primary;
use crate::replica::{Bound, Caller, JoinStep, Quarantine};
use crate::withheld::Withheld;
use conductor_model::{BlockRange, Configuration, DiskId, ShardId};
use driver::{Outbox, Span, Time};
use memory::Class;
use node_protocol::{
    DiskLeft, Prefix, PromiseAnswer, PromiseBody, ReplyBody, Status, TOLD_DISKS, decode_withheld, encode_withheld, op,
};
use node_store::Store;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tcp::{Lost, Payload};
use wire::{Body, Op};

/// What this reactor has promised, and what was promised to its node.
pub(super) struct Promises {
    /// Those given: the reactor that holds one, and until when.
    pub(super) given: BTreeMap<Caller, Time>,
    /// Shards for which a promise counts no more, as its holders are told (rule 13).
    pub(super) withheld: Withheld,
    pub(super) quarantine: Quarantine,
    /// Until when the conductor lets nobody take over from this node.
    pub(super) undisputed: Time,
}

impl Promises {
    /// Of a process whose predecessor's promises end then.
    pub(super) fn new(until: Time) -> Self {
        Self {
            given: BTreeMap::new(),
            withheld: Withheld::default(),
            quarantine: Quarantine { until },
            undisputed: Time::default(),
        }
    }
}

impl<S: Store> Node<S> {
    /// Asks the reactor behind `to` for a promise.
    pub(super) fn ask_promise(&mut self, now: Time, to: SocketAddr) {
        let Some((conn, known)) = self.links.get(to).and_then(|l| Some((l.conn?, l.withheld_known))) else { return };
        let word = u32::try_from(PROMISE.as_millis()).unwrap_or(u32::MAX);
        let prefix = Prefix { word: word.into(), ..Prefix::default() };
        let body = PromiseBody { prefix, known: known.into() };
        let request = Request { op: op::PROMISE, body: body.bytes(), payload: None, patience: SUBTASK_DEADLINE };
        let sent = self.ask_peer(now, conn, request, ReplyWait::Promise { link: to, sent: now });
        if let Some(link) = self.links.get_mut(to) {
            link.promise_asked = sent;
            link.next_keepalive = now + KEEPALIVE;
            if sent {
                link.waits(now);
            }
        }
    }

    /// The answer to a keepalive: counted from when it was asked for (rule 14). What it is withheld from is not served any more.
    pub(super) fn promise_answered(
        &mut self,
        now: Time,
        to: SocketAddr,
        sent: Time,
        result: Result<(Op, Body, Option<Payload>), Lost>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(link) = self.links.get_mut(to) else { return };
        link.promise_asked = false;
        let Ok((_, body, payload)) = result else { return };
        let good = ReplyBody::status_of(&body) == Some(Status::Ok);
        let Some(answer) = PromiseAnswer::parse(&body).filter(|_| good) else { return };
        let generation = answer.withheld.get();
        if generation != link.withheld_known {
            let list = payload.as_ref().map_or(Some(Vec::new()), |p| decode_withheld(p.bytes()));
            let Some(list) = list else {
                self.counters.count("promise.torn");
                return;
            };
            link.withheld_known = generation;
            link.withheld = list.into_iter().collect();
        }
        let has = |disk: DiskId| link.up.as_ref().is_some_and(|peer| peer.open_of(disk).is_some());
        let told = answer.disks.iter().map(|d| (DiskId(d.disk.get()), d)).filter(|(disk, _)| has(*disk));
        link.left.extend(told.map(|(disk, d)| (disk, Left { blocks: d.blocks(), pages: d.pages.get() })));
        let until = relied_until(sent, Span::millis(u64::from(answer.reply.word.get())));
        link.promise = Some(Promise { sent, until });
        link.next_keepalive = sent + KEEPALIVE;
        let deposed: Vec<ShardId> = link
            .withheld
            .iter()
            .filter(|(shard, epoch)| {
                self.primaries.get(shard).is_some_and(|p| p.config.epoch < **epoch && !p.is_asking())
            })
            .map(|(shard, _)| *shard)
            .collect();
        self.counters.count("promise.renewed");
        for shard in deposed {
            self.counters.count("promise.withheld");
            self.ask_for_news(now, shard, out);
        }
        let waiting = |p: &&Primary| p.others().any(|m| m.endpoint == to);
        let stalled: Vec<IocbKey> =
            self.primaries.values().filter(waiting).flat_map(|p| p.stalled.values().copied()).collect();
        self.runnable.extend(stalled);
    }

    /// May reads of this shard be served now (rule 9)? A copy that the conductor may have added by now has a say, too.
    pub(super) fn lease_holds(&self, now: Time, shard: ShardId) -> bool {
        let Some(primary) = self.primaries.get(&shard) else { return false };
        let added = primary.config.members.iter().filter(|m| primary.may_be_added(m.copy));
        primary.others().chain(added).all(|m| {
            let link = self.links.get(m.endpoint);
            let withheld = link.and_then(|l| l.withheld.get(&shard)).is_some_and(|epoch| *epoch > primary.config.epoch);
            !withheld && primary.lease.holds(now, m.copy, link.and_then(|l| l.promise))
        })
    }

    /// The conductor heard this node, and takes it for alive for the detection time at least.
    pub(super) fn conductor_promised(&mut self, sent: Time) {
        self.promises.undisputed = self.promises.undisputed.max(relied_until(sent, PROMISE));
    }

    /// May a sealed primary read this range (rule 11)? Only while the conductor lets nobody take over, and nothing above K: whoever takes
    /// over later may lack it.
    pub(super) fn may_read_sealed(&self, now: Time, shard: ShardId, range: BlockRange) -> bool {
        let Some(primary) = self.primaries.get(&shard).filter(|p| p.is_sealed()) else {
            return false;
        };
        let undisputed = now < self.promises.undisputed || driver::mutant::on("sealed_reads_on");
        // A copy in doubt does not know all that is above K.
        undisputed && !primary.doubts_any() && !primary.is_above_known_good(range)
    }

    /// PROMISE: this reactor will not join a newer epoch under another primary for the time granted, but for what it names.
    pub(super) fn promise_asked(
        &mut self,
        now: Time,
        caller: Caller,
        incoming: Incoming<'_>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Incoming { body, answer, .. } = incoming;
        let Some(body) = PromiseBody::parse(body) else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        self.counters.count("op.promise");
        let known = body.known.get();
        for shard in self.promises.withheld.confirmed(caller, known) {
            self.counters.count("promise.given-back");
            self.release_join(now, shard, caller, out);
        }
        let generation = self.promises.withheld.generation(caller);
        let mut list = Vec::new();
        if generation != known {
            self.promises.withheld.list(caller).for_each(|(shard, epoch)| encode_withheld(&mut list, shard, epoch));
        }
        let payload = if list.is_empty() {
            None
        } else {
            let Some(mut into) = self.arena.take(list.len(), Class::Settle) else {
                self.reply_status(now, answer, Status::Later);
                return;
            };
            into.copy_from_slice(&list);
            Some(whole_payload(into))
        };
        let asked = Span::millis(u64::from(body.prefix.word.get()));
        let granted = Span(asked.0.min(PROMISE.0));
        self.promise(now, caller);
        let word = u32::try_from(granted.as_millis()).unwrap_or(0);
        let body = PromiseAnswer {
            reply: ReplyBody { word: word.into(), ..ReplyBody::new(Status::Ok) },
            withheld: generation.into(),
            disks: self.some_disks(now),
        };
        self.net.reply(now, answer, Op::REPLY, body.bytes(), payload);
    }

    /// What disks here have left: of all of them, or, where they are more than a message has room for, of others each time.
    fn some_disks(&self, now: Time) -> [DiskLeft; TOLD_DISKS] {
        let first =
            usize::try_from(now.0 / KEEPALIVE.0).unwrap_or(0).wrapping_mul(TOLD_DISKS) % self.disks.len().max(1);
        let told = self.disks.iter().cycle().skip(first).take(self.disks.len().min(TOLD_DISKS));
        let mut disks = [DiskLeft::default(); TOLD_DISKS];
        for (into, disk) in disks.iter_mut().zip(told) {
            *into = DiskLeft::new(disk.disk, disk.store.usage().free(), disk.store.leeway().pages);
        }
        disks
    }

    /// Counted from sending the answer, and always for the full time: the asker ends it earlier.
    pub(super) fn promise(&mut self, now: Time, caller: Caller) {
        self.promises.given.insert(caller, now + PROMISE);
    }

    /// Whom this copy has promised to follow, if that is another primary than the one of this configuration.
    pub(super) fn other_holder(&self, shard: ShardId, config: &Configuration, asks: Option<Caller>) -> Option<Caller> {
        let replica = self.replicas.get(&shard).filter(|r| r.other_primary(config))?;
        let carried = replica.joining.as_ref().and_then(|joining| joining.bound).map(|bound| bound.to);
        replica.promised_to.or(carried).filter(|to| Some(*to) != asks)
    }

    /// Does a promise stand in the way of this Join, asked for by `asks` (`None`: by the primary here)? One that an older Join already
    /// waits for does not grow longer.
    pub(super) fn binding(
        &self,
        now: Time,
        shard: ShardId,
        config: &Configuration,
        asks: Option<Caller>,
    ) -> Option<Bound> {
        if driver::mutant::on("promise_forgotten") {
            return None;
        }
        let replica = self.replicas.get(&shard)?;
        let carried = replica.joining.as_ref().and_then(|joining| joining.bound);
        let given = || {
            let to = replica.promised_to.filter(|_| replica.other_primary(config))?;
            Some(Bound { to, until: *self.promises.given.get(&to)? })
        };
        carried.or_else(given).filter(|bound| Some(bound.to) != asks && now < bound.until)
    }

    /// A Join that waits for the end of a promise to `caller` need not wait any longer.
    fn release_join(&mut self, now: Time, shard: ShardId, caller: Caller, out: &mut dyn Outbox<Letter>) {
        let over = self.promises.quarantine.is_over(now);
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let Some(joining) = replica.joining.as_mut().filter(|j| j.bound.is_some_and(|b| b.to == caller)) else {
            return;
        };
        joining.bound = None;
        replica.promised_to = None;
        if joining.step == JoinStep::Parked && over {
            joining.step = JoinStep::Draining;
            self.go_on_joining(now, shard, out);
        }
    }

    /// Parked Joins whose time has come.
    pub(super) fn tick_parked(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.promises.given.retain(|_, until| now < *until);
        if !self.promises.quarantine.is_over(now) {
            return;
        }
        let mut free = Vec::new();
        for (shard, replica) in &mut self.replicas {
            if let Some(joining) = &mut replica.joining
                && joining.step == JoinStep::Parked
                && joining.bound.is_none_or(|bound| now >= bound.until)
            {
                joining.step = JoinStep::Draining;
                joining.bound = None;
                replica.promised_to = None;
                free.push(*shard);
            }
        }
        for shard in free {
            self.go_on_joining(now, shard, out);
        }
    }
}
