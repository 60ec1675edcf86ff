//! What a primary asks the conductor for while it goes on: to drop copies that failed, to fill absent ones, to add the filled one, to be
//! relieved when its own disk fails (rules 1, 12 and 15).
//!
//! Looked at with each tick: the wish is whatever is due then. One that was asked for and is not due any more may still be granted; the
//! copies of the present epoch all count until a newer one is taken up, so that is harmless. Only a copy that is to be added counts more:
//! `Primary::may_be_added`.

use super::Node;
use crate::filling::Step;
use crate::iocb::{Iocb, IocbPhase, LegState};
use crate::iocbs::IocbKey;
use crate::limits::{
    ASK_AGAIN, FILL_PAUSE_MAX, FILL_PAUSE_MIN, FILLS_AT_ONCE, JOIN_LIMIT, KEEPALIVE, LEG_LIMIT, MEMBER_SILENT,
    START_PATIENCE, TICK,
};
use crate::mail::Letter;
use crate::primary::{FailedBy, Primary, PrimaryPhase};
use conductor_model::api::{MembershipChange, MembershipRequest};
use conductor_model::{CopyId, CopyState, Member, OpenId, ShardId};
use driver::{Outbox, Span, Time};
use node_store::Store;
use std::collections::BTreeSet;

/// Why a copy is dropped whose store takes or gives nothing any more.
pub(super) const DISK_FAILED: &str = "its disk failed";
/// Why a copy that was opened anew is dropped: to be filled at once.
pub(super) const OPENED_ANEW: &str = "its store was opened anew";
/// Why a copy is dropped that is not filled here, for the sake of one that may be.
const MAKES_WAY: &str = "what it lacks is lost here, and another copy is filled first";
/// Why a copy is dropped whose filling somebody has ended.
const ABORTED: &str = "its filling was aborted";

impl<S: Store> Node<S> {
    /// Asks for what is due. After a `late` tick nobody is blamed: it was this reactor that was away.
    pub(super) fn tick_wishes(&mut self, now: Time, late: bool, out: &mut dyn Outbox<Letter>) {
        let shards: Vec<ShardId> = self.primaries.keys().copied().collect();
        if late {
            self.iocbs.iter_mut().for_each(|(_, iocb)| iocb.started_at = now);
            self.primaries.values_mut().for_each(|primary| primary.joining_since = now);
        }
        let is_stuck = |p: &Primary| {
            p.filling.as_ref().is_some_and(|f| f.stuck.is_some()) && !driver::mutant::on("stuck_fills_count")
        };
        let mut filled = self.primaries.values().filter(|p| p.syncing_member().is_some() && !is_stuck(p)).count();
        for shard in shards {
            if !late {
                self.blame_the_late(now, shard);
            }
            self.end_aborted_filling(now, shard);
            self.end_stuck_filling(now, shard, filled);
            self.recover(now, shard, out);
            let due = self.due(now, shard, filled);
            filled += usize::from(matches!(due, Some(MembershipChange::Fill(..))));
            self.wish(now, shard, due, out);
        }
    }

    /// Copies that do not finish what they were given, or do not join, have failed; if it is the own one, the primary steps down.
    fn blame_the_late(&mut self, now: Time, shard: ShardId) {
        let Some(primary) = self.primaries.get_mut(&shard).filter(|p| p.config.born) else { return };
        let own = primary.config.primary;
        if now.since(primary.joining_since) >= JOIN_LIMIT {
            let syncing = primary.syncing_member().filter(|_| primary.filling.is_none()).map(|m| m.copy);
            let absent = |m: &&Member| !primary.answers.contains_key(&m.copy);
            let late: Vec<CopyId> = match &primary.phase {
                PrimaryPhase::Joining => {
                    primary.config.in_sync_members().filter(absent).map(|m| m.copy).chain(syncing).collect()
                }
                // The conductor will not have its new opening: it is as good as away.
                PrimaryPhase::Asking(MembershipChange::Reopened(list)) => list.iter().map(|(copy, _)| *copy).collect(),
                _ => syncing.into_iter().collect(),
            };
            if late.contains(&own) && matches!(primary.phase, PrimaryPhase::Joining) {
                return self.hang(shard, "its own copy does not join");
            }
            for copy in late.into_iter().filter(|copy| *copy != own) {
                primary.failed.entry(copy).or_insert("it does not join");
            }
        }
        // Where nothing is stamped now, what was stamped in the epoch before waits; what is still read is waited for.
        let reads = |iocb: &Iocb| matches!(iocb.phase, IocbPhase::Reading | IocbPhase::Merging) && !iocb.is_over();
        let reading = |pieces: &BTreeSet<IocbKey>| {
            let counts = |key: IocbKey, iocb: &Iocb| pieces.contains(&key) || reads(iocb);
            let ours = self.iocbs.iter().filter(|(key, iocb)| iocb.shard == shard && counts(*key, iocb));
            ours.map(|(key, _)| key).collect::<Vec<_>>()
        };
        let running = match &primary.phase {
            PrimaryPhase::Settling(settling) => reading(&settling.running),
            PrimaryPhase::Sealed => reading(&BTreeSet::new()),
            PrimaryPhase::Serving => primary.requests.values().copied().collect(),
            _ => return,
        };
        let asked = primary.filling.as_ref().and_then(|filling| filling.proving);
        let mut hangs = asked.is_some_and(|since| now.since(since) >= LEG_LIMIT);
        for iocb in running.into_iter().filter_map(|key| self.iocbs.get(key)) {
            if now.since(iocb.started_at) < LEG_LIMIT {
                continue;
            }
            match iocb.phase {
                IocbPhase::Reading | IocbPhase::Merging => hangs = true,
                IocbPhase::Stamped => {
                    for leg in iocb.legs.iter().filter(|leg| leg.state != LegState::Done) {
                        if leg.copy == own {
                            hangs = true;
                        } else {
                            primary.failed.entry(leg.copy).or_insert("it does not finish its writes");
                        }
                    }
                }
                _ => {}
            }
        }
        if hangs {
            self.hang(shard, "it does not finish what it was given");
        }
    }

    /// The copies whose filling an operator has aborted, all of them; those that were on the list before may be filled at once.
    pub(super) fn abort_fillings(&mut self, aborted: Vec<CopyId>) {
        let before = std::mem::replace(&mut self.fillings.aborted, aborted.into_iter().collect());
        for primary in self.primaries.values_mut() {
            primary.fill_after.retain(|copy, _| !before.contains(copy) || self.fillings.aborted.contains(copy));
        }
    }

    /// A filling that is not wanted any more ends as one that fails. Not where writes wait for it (rule 11): there the word counts no more.
    fn end_aborted_filling(&mut self, now: Time, shard: ShardId) {
        let Some(primary) = self.primaries.get_mut(&shard).filter(|p| !p.config.is_sealed()) else { return };
        let Some(copy) = primary.syncing_member().map(|m| m.copy).filter(|copy| self.fillings.aborted.contains(copy))
        else {
            return;
        };
        if primary.failed.contains_key(&copy) {
            return;
        }
        self.counters.count("fill.aborted");
        if primary.filling.is_some() {
            self.end_filling(now, shard, ABORTED);
        } else {
            primary.failed.insert(copy, ABORTED);
        }
    }

    /// A filling that is stuck ends as one that fails, if there is another copy to fill whose turn it is. Where all had theirs, the last one
    /// stays until one of them may try again. One that lacks no snapshot, because it held all that was acknowledged, cannot be stuck.
    fn end_stuck_filling(&mut self, now: Time, shard: ShardId, filled: usize) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let Some(filling) = primary.filling.as_ref().filter(|f| f.stuck.is_some() && !f.add_asked) else { return };
        let copy = filling.copy;
        primary.begin_turns(now, copy);
        let waits = filled < FILLS_AT_ONCE && primary.failed.is_empty() && !driver::mutant::on("stuck_fill_stays");
        let Some(primary) = self.primaries.get(&shard).filter(|_| waits) else { return };
        let held_all = |copy| primary.is_sealed() && primary.config.full_set.contains(&copy);
        if self.fillable(now, primary).any(|(copy, _)| held_all(copy) || !primary.had_turn(now, copy)) {
            self.counters.count("fill.made-way");
            self.end_filling(now, shard, MAKES_WAY);
        }
    }

    /// Absent copies that may be filled now.
    fn fillable<'a>(&'a self, now: Time, primary: &'a Primary) -> impl Iterator<Item = (CopyId, OpenId)> + 'a {
        let held = |copy: CopyId| {
            self.fillings.aborted.contains(&copy)
                && !primary.config.is_sealed()
                && !driver::mutant::on("aborted_filled")
        };
        primary.listed_others().filter(move |member| !held(member.copy)).filter_map(move |member| {
            let rests = primary.fill_after.get(&member.copy).is_some_and(|(until, _)| now < *until);
            let absent = member.state == CopyState::Absent && !rests;
            let link = self.links.get(member.endpoint).filter(|l| absent && l.silence(now) < MEMBER_SILENT)?;
            Some((member.copy, link.up.as_ref()?.open_of(member.disk)?))
        })
    }

    fn hang(&mut self, shard: ShardId, why: &str) {
        self.counters.count("primary.hangs");
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.phase = PrimaryPhase::Failed { why: why.to_owned(), by: FailedBy::Hanging };
        }
    }

    /// A disk that hung and came back, before anybody else could take over: the epoch is joined once more.
    fn recover(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let hangs = |p: &Primary| matches!(p.phase, PrimaryPhase::Failed { by: FailedBy::Hanging, .. });
        let hung = self.primaries.get(&shard).is_some_and(hangs);
        if hung && self.replicas.get(&shard).is_some_and(|r| r.is_quiet() && r.joining.is_none()) {
            self.counters.count("primary.recovered");
            self.join_again(now, shard, out);
        }
    }

    /// What is due for a shard now?
    fn due(&self, now: Time, shard: ShardId, filled: usize) -> Option<MembershipChange> {
        let primary = self.primaries.get(&shard)?;
        if matches!(primary.phase, PrimaryPhase::Asking(MembershipChange::Past(_)))
            && !driver::mutant::on("past_dropped")
        {
            // Nothing else before that: without the others nobody could tell any more whose disk is from the past.
            return None;
        }
        if let PrimaryPhase::Failed { .. } = primary.phase {
            return Some(MembershipChange::StepDown);
        }
        // One that answers and fails is named alone: the conductor takes those that are named together for cut off from here.
        let failed =
            primary.listed_others().find(|m| m.state != CopyState::Absent && primary.failed.contains_key(&m.copy));
        let gone: Vec<CopyId> =
            primary.listed_others().filter(|m| self.is_gone(now, m)).map(|member| member.copy).collect();
        let named =
            |m: &&Member| gone.contains(&m.copy) || (gone.is_empty() && failed.is_some_and(|f| f.copy == m.copy));
        let left = primary.config.in_sync_members().filter(|m| !named(m)).count();
        if !primary.config.born && left < primary.config.min_copies.into() && !driver::mutant::on("drop_asked_for_ever")
        {
            // The conductor would refuse it: of what is being created nobody knows yet that it exists elsewhere. The copy is waited for.
            return None;
        }
        if let (Some(failed), true) = (failed, gone.is_empty()) {
            return Some(MembershipChange::Drop(vec![failed.copy]));
        }
        if !gone.is_empty() {
            return (!self.may_be_cut_off(now, primary, &gone)).then_some(MembershipChange::Drop(gone));
        }
        if !matches!(primary.phase, PrimaryPhase::Serving | PrimaryPhase::Sealed) {
            return None;
        }
        match (&primary.filling, primary.syncing_member()) {
            (Some(filling), Some(_)) => {
                let complete = matches!(filling.step, Step::Complete) && (!filling.again || filling.add_asked);
                complete.then_some(MembershipChange::Add(filling.copy))
            }
            (None, Some(_)) => None,
            (_, None) if filled >= FILLS_AT_ONCE => None,
            (_, None) => {
                // One that has everything that was acknowledged is filled soonest.
                let rank = |copy: &CopyId| (primary.config.full_set.contains(copy), !primary.had_turn(now, *copy));
                let best = self.fillable(now, primary).max_by_key(|(copy, _)| rank(copy));
                best.map(|(copy, open)| MembershipChange::Fill(copy, open))
            }
        }
    }

    /// Another member has been quiet, too, though not for long enough: perhaps it is this node that is cut off, which the conductor sees
    /// only if both are named together.
    fn may_be_cut_off(&self, now: Time, primary: &Primary, gone: &[CopyId]) -> bool {
        let silence = |m: &Member| self.links.get(m.endpoint).map_or(Span(0), |link| link.silence(now));
        let (most, least) = (Span(MEMBER_SILENT.0 + KEEPALIVE.0), Span(KEEPALIVE.0 + TICK.0));
        let brief = primary.listed_others().filter(|m| gone.contains(&m.copy)).all(|m| silence(m) < most);
        brief && primary.others().any(|m| !gone.contains(&m.copy) && silence(m) >= least)
    }

    /// Is this member to be dropped?
    fn is_gone(&self, now: Time, member: &Member) -> bool {
        if member.state == CopyState::Absent {
            return false;
        }
        let link = self.links.get(member.endpoint);
        // Where all nodes start, one may be late: to drop it would be to fill it.
        let starting = now < self.promises.quarantine.until + START_PATIENCE;
        let silent = link.is_none_or(|link| link.silence(now) >= MEMBER_SILENT && (link.met || !starting));
        let peer = link.and_then(|link| link.up.as_ref());
        // An in-sync one that was opened anew joins by settling; one whose disk is missing does not.
        let elsewhere = peer.is_some_and(|peer| match peer.open_of(member.disk) {
            Some(open) => member.state == CopyState::Syncing && open != member.open,
            None => true,
        });
        silent || elsewhere
    }

    /// Asks for it, again now and then.
    fn wish(&mut self, now: Time, shard: ShardId, due: Option<MembershipChange>, out: &mut dyn Outbox<Letter>) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let Some(change) = due else {
            primary.wish = None;
            let overtaken = matches!(primary.phase, PrimaryPhase::Asking(MembershipChange::Drop(_)));
            if overtaken && !driver::mutant::on("drop_asked_for_ever") {
                // Who was to be dropped is back before the conductor would have it so.
                self.begin_anew(now, shard, out);
            }
            return;
        };
        let asked = primary.wish.as_ref().filter(|(wished, _)| *wished == change).map(|(_, at)| *at);
        if asked.is_some_and(|at| now.since(at) < ASK_AGAIN) {
            return;
        }
        if asked.is_none() {
            self.counters.count(super::membership::change_name(&change));
            match &change {
                MembershipChange::Drop(copies) => primary.rest(now, copies),
                MembershipChange::Add(_) => primary.filling.iter_mut().for_each(|filling| filling.add_asked = true),
                _ => {}
            }
        }
        primary.wish = Some((change.clone(), now));
        if let PrimaryPhase::Asking(asking) = &mut primary.phase {
            // What was asked for is about a copy that is gone by now, or is found out again.
            *asking = change.clone();
            primary.asked = now;
        }
        let (epoch, by) = (primary.config.epoch, primary.config.primary);
        out.post(Letter::Ask(MembershipRequest { shard, epoch, by, change }));
    }
}

impl Primary {
    /// Copies that failed by themselves, or could not be filled, are not filled again at once.
    fn rest(&mut self, now: Time, copies: &[CopyId]) {
        for copy in copies {
            let syncing = self.config.is_syncing(*copy);
            if syncing || self.failed.get(copy).is_some_and(|why| *why != OPENED_ANEW) {
                self.pause_filling(now, *copy);
            }
        }
    }

    /// The copy is not to be filled for a while, each time for longer.
    pub(super) fn pause_filling(&mut self, now: Time, copy: CopyId) {
        let pause = self.fill_after.get(&copy).map_or(FILL_PAUSE_MIN, |(_, pause)| *pause);
        self.fill_after.insert(copy, (now + pause, Span((pause.0 * 2).min(FILL_PAUSE_MAX.0))));
    }
}
