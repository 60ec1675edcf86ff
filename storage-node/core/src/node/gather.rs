//! A primary collects its members' answers to JOIN (rule 6): what they are asked, what they said, and what follows when all have.

use super::waits::{ReplyWait, Request};
use super::{Node, whole_payload};
use crate::limits::{JOIN_DEADLINE, PROMISE_CREDITS, RETRY_REFUSED};
use crate::links::Left;
use crate::mail::Letter;
use crate::primary::{JoinState, Joined, Primary, PrimaryPhase};
use conductor_model::api::MembershipChange;
use conductor_model::{BlockRange, Configuration, CopyId, CopyState, Epoch, Member, Sequence, ShardId, Stamp};
use driver::{Outbox, Time};
use memory::Class;
use node_protocol::{FillState, JoinAnswer, JoinBody, Prefix, ReplyBody, Status, decode_held, op};
use node_store::{Held, HeldKind, Store};
use std::net::SocketAddr;
use tcp::{Lost, Payload};
use wire::{Body, Op};

/// A Join that a member was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    shard: ShardId,
    epoch: Epoch,
    copy: CopyId,
    sent: Time,
}

impl<S: Store> Node<S> {
    /// Sends the Joins that the members behind an established link have not got yet.
    pub(super) fn send_joins(&mut self, now: Time, to: SocketAddr, out: &mut dyn Outbox<Letter>) {
        let Some((conn, peer)) = self.links.get(to).and_then(|l| Some((l.conn?, l.up.clone()?))) else { return };
        let due = |p: &Primary, m: &Member| match p.joins.get(&m.copy).copied().unwrap_or(JoinState::Unsent) {
            JoinState::Unsent => true,
            JoinState::Again(at) => at <= now,
            JoinState::Sent | JoinState::Joined => false,
        };
        let waiting: Vec<(ShardId, Member)> = self
            .primaries
            .iter()
            .flat_map(|(shard, p)| {
                let joining = matches!(p.phase, PrimaryPhase::Joining);
                let working = matches!(
                    p.phase,
                    PrimaryPhase::Joining | PrimaryPhase::Settling(_) | PrimaryPhase::Serving | PrimaryPhase::Sealed
                );
                let asked = move |m: &&Member| match m.state {
                    CopyState::InSync => joining,
                    CopyState::Syncing => working,
                    CopyState::Absent => false,
                };
                let members = p.listed_others().filter(move |m| asked(m) && m.endpoint == to && due(p, m));
                members.map(|m| (*shard, m.clone()))
            })
            .collect();
        for (shard, member) in waiting {
            let Some(open) = peer.open_of(member.disk) else {
                // Another node, or one without that disk, answers at this address: wait for a better map.
                self.counters.count("link.other-disk");
                continue;
            };
            if member.state == CopyState::Syncing && member.open != open {
                // It is dropped (`wishes`), and filled anew.
                continue;
            }
            if self.named_wrongly(&member, open) {
                self.ask_conductor(now, shard, MembershipChange::Reopened(vec![(member.copy, open)]), out);
                continue;
            }
            // However many wait for a disk that hangs: without promises nothing is read on the others either.
            if self.net.credits(conn) <= PROMISE_CREDITS {
                return self.counters.count("join.waits");
            }
            self.send_join(now, conn, shard, &member);
        }
    }

    fn send_join(&mut self, now: Time, conn: driver::ConnId, shard: ShardId, member: &Member) {
        let Some(config) = self.primaries.get(&shard).map(|p| p.config.clone()) else { return };
        let Some(own) = config.primary_member() else { return };
        let body = JoinBody {
            prefix: Prefix::default(),
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: config.epoch.0.into(),
            copy: member.copy.0.into(),
            open: member.open.0.into(),
            primary: config.primary.0.into(),
            primary_open: own.open.0.into(),
        };
        let (Ok(json), state) = (serde_json::to_vec(&config), JoinState::Again(now + RETRY_REFUSED)) else { return };
        let sent = self.arena.take(json.len(), Class::Settle).is_some_and(|mut into| {
            into.copy_from_slice(&json);
            let wait = ReplyWait::Join(Asked { shard, epoch: config.epoch, copy: member.copy, sent: now });
            let payload = Some(whole_payload(into));
            self.ask_peer(
                now,
                conn,
                Request { op: op::JOIN, body: body.bytes(), payload, patience: JOIN_DEADLINE },
                wait,
            )
        });
        let state = if sent { JoinState::Sent } else { state };
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.joins.insert(member.copy, state);
        }
    }

    /// A member's answer to a Join, or its loss.
    pub(super) fn join_answered(
        &mut self,
        now: Time,
        asked: Asked,
        result: Result<(Op, Body, Option<Payload>), Lost>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Asked { shard, epoch, copy, sent } = asked;
        let Some(primary) = self.primaries.get_mut(&shard).filter(|p| p.config.epoch == epoch) else { return };
        let syncing = primary.config.is_syncing(copy);
        let good = match &result {
            Ok((_, body, payload)) if ReplyBody::status_of(body) == Some(Status::Ok) => {
                JoinAnswer::parse(body).zip(Said::parse(syncing, payload.as_ref()))
            }
            _ => None,
        };
        let Some((answer, said)) = good else {
            self.counters.count("join.refused");
            let status = result.ok().and_then(|(_, body, _)| ReplyBody::status_of(&body));
            let again = if status.is_some() { JoinState::Again(now + RETRY_REFUSED) } else { JoinState::Unsent };
            primary.joins.insert(copy, again);
            if matches!(status, Some(Status::Io | Status::Denied | Status::Unsupported)) {
                primary.failed.entry(copy).or_insert("it cannot join");
            }
            if status == Some(Status::NoSnapshot) {
                let why = "its disk does not hold the snapshot which this clone begins as".to_owned();
                primary.join_refusals.insert(copy, why);
            }
            if status == Some(Status::StaleEpoch) {
                self.ask_for_news(now, shard, out);
            }
            return;
        };
        primary.joins.insert(copy, JoinState::Joined);
        primary.lease.joined(copy, sent, now);
        if let Some(member) = primary.config.member(copy)
            && let Some(link) = self.links.get_mut(member.endpoint)
        {
            let pages = u32::try_from(answer.pages.get()).unwrap_or(u32::MAX);
            link.left.insert(member.disk, Left { blocks: answer.free_blocks.get(), pages });
        }
        let sequence = Sequence(answer.known_good_sequence.get());
        let known_good = Stamp { epoch: Epoch(answer.known_good_epoch.get()), sequence };
        let held = match said {
            Said::Held(held) => held,
            Said::Syncing(state) => {
                let known_good = trusted(&primary.config, copy, known_good);
                self.fill_joined(now, shard, copy, known_good, state);
                self.go_on_filling(now, shard, out);
                return;
            }
        };
        let stored = Epoch(answer.stored_epoch.get());
        self.member_joined(now, shard, epoch, (copy, known_good, stored), &held, out);
    }

    /// One member has answered its Join: with its K, and what it holds above that.
    pub(super) fn member_joined(
        &mut self,
        now: Time,
        shard: ShardId,
        epoch: Epoch,
        (copy, known_good, stored): (CopyId, Stamp, Epoch),
        held: &[Held],
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        if primary.config.epoch != epoch || !matches!(primary.phase, PrimaryPhase::Joining) {
            return;
        }
        let config = &primary.config;
        let fits = |r: &BlockRange| r.count.0 > 0 && config.contains(*r);
        let newest = held.iter().map(|h| h.stamp).fold(known_good, Stamp::max);
        // A barrier changed nothing that the copy reads as: there is nothing to make equal (docs/replication.md, rule 17).
        let held =
            held.iter().filter(|h| h.kind != HeldKind::Barrier && fits(&h.at)).map(|h| (h.at, h.stamp)).collect();
        // It was filled from here, and what was not finished is stamped again: there is nothing of its own to make equal. Its list names
        // whole stretches of what it was filled with.
        let held = if primary.just_added == Some(copy) { Vec::new() } else { held };
        primary.join_refusals.remove(&copy);
        let stored = primary.stored_before(copy, stored);
        primary.answers.insert(copy, Joined { held, known_good, newest, stored });
        self.all_joined(now, shard, out);
    }

    /// If every member has answered: born, or to be settled.
    pub(super) fn all_joined(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get(&shard) else { return };
        let complete = primary.config.in_sync_members().all(|m| primary.answers.contains_key(&m.copy));
        // Two answers are enough for that; the next epoch may come before all have joined this one.
        let judged = complete || !driver::mutant::on("past_judged_late");
        if (primary.config.born && judged && self.leave_out_the_past(now, shard, out)) || !complete {
            return;
        }
        let Some(primary) = self.primaries.get(&shard) else { return };
        if primary.config.born && primary.config.is_sealed() && !driver::mutant::on("sealed_serves") {
            self.counters.count("primary.sealed");
            if let Some(primary) = self.primaries.get_mut(&shard) {
                primary.phase = PrimaryPhase::Sealed;
            }
            self.go_on_filling(now, shard, out);
        } else if primary.config.born && primary.doubts_all() && !driver::mutant::on("cache_loss_unseen") {
            self.ask_conductor(now, shard, MembershipChange::CacheLost, out);
        } else if primary.config.born {
            self.start_settling(now, shard, out);
        } else {
            self.ask_conductor(now, shard, MembershipChange::Born, out);
        }
    }

    /// A copy whose disk is not the newest that there was has none of what was acknowledged since: it leaves, is nobody's successor, and is
    /// filled with everything. True if there is one.
    fn leave_out_the_past(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) -> bool {
        let Some(primary) = self.primaries.get(&shard) else { return false };
        let past: Vec<CopyId> =
            primary.config.in_sync_members().map(|m| m.copy).filter(|copy| primary.is_of_the_past(*copy)).collect();
        if past.is_empty() {
            return false;
        }
        past.iter().for_each(|_| self.counters.count("join.of-the-past"));
        self.ask_conductor(now, shard, MembershipChange::Past(past), out);
        true
    }
}

/// A copy's K, as far as it can be filled from there on: not if it is from the past. It was in sync when others forgot what they had
/// discarded after that K (rule 7).
pub(super) fn trusted(config: &Configuration, copy: CopyId, known_good: Stamp) -> Stamp {
    if config.member(copy).is_some_and(|m| m.past) { Stamp::default() } else { known_good }
}

/// What a member says of itself in the payload of its answer to a Join.
enum Said {
    Held(Vec<Held>),
    Syncing(FillState),
}

impl Said {
    fn parse(syncing: bool, payload: Option<&Payload>) -> Option<Self> {
        match payload {
            payload if syncing => FillState::decode(payload?.bytes()).map(Self::Syncing),
            Some(payload) => decode_held(payload.bytes()).map(Self::Held),
            None => Some(Self::Held(Vec::new())),
        }
    }
}
