//! Membership: what a shard's primary may ask (rule 12).
//!
//! A request names the epoch it was made under and takes effect only if that epoch is current and the asking copy is its
//! primary; then there is a new epoch, one higher. Whatever comes late, twice or from a deposed primary gets the
//! configuration that is current and changes nothing. One of an epoch that is still to come shows that this state is from the past.
//!
//! ```text
//!            Drop                    Drop (the filling ended)
//! in sync ─────────► absent ◄──────────────────────┐
//!    ▲                  │ Fill: one at a time      │
//!    └──────────────────┴──────────► syncing ──────┤
//!                                                  └─ Add ─► in sync
//! ```

use crate::api::{MembershipAnswer, MembershipChange, MembershipRequest};
use crate::limits::{MAX_NUMBER, MAX_SHARDS};
use crate::record::{ShardRecord, VolumeRecord};
use crate::{Commit, Conductor, Configuration, CopyId, CopyState, Dirty, Epoch, Error, Key, Member, Millis, OpenId};
use std::collections::BTreeSet;

impl Conductor {
    /// One answer per request, in order; all of it one transaction (rule 25).
    pub fn membership(
        &mut self,
        now: Millis,
        requests: &[MembershipRequest],
    ) -> Result<(Vec<MembershipAnswer>, Dirty), Error> {
        if requests.len() > MAX_SHARDS {
            return Err(Error::Limit { what: "requests at once", limit: MAX_SHARDS });
        }
        let mut dirty = Dirty::default();
        for request in requests {
            self.doubt_if_behind(now, request, &mut dirty);
        }
        let answers: Vec<_> = requests.iter().map(|request| self.change(now, request, &mut dirty)).collect();
        let stepped_down = requests.iter().zip(&answers).filter(
            |(request, answer)| matches!(answer, MembershipAnswer::Granted(config) if config.primary != request.by),
        );
        let stepped_down: BTreeSet<_> = stepped_down.map(|(request, _)| request.shard).collect();
        if !stepped_down.is_empty() {
            self.renew_orders(|shard| stepped_down.contains(&shard), &mut dirty);
        }
        Ok((answers, self.seal(dirty)))
    }

    /// Who asks under an epoch that this record cannot have led to knows a state that came after this one.
    fn doubt_if_behind(&mut self, now: Millis, request: &MembershipRequest, dirty: &mut Dirty) {
        let newer = |own: &&mut ShardRecord| own.config.epoch < request.epoch && request.epoch.0 <= MAX_NUMBER;
        let Some(record) = self.shards.get_mut(&request.shard).filter(newer) else { return };
        let why = format!("{} asks for a change of {}, own is {}", request.by, request.epoch, record.config.epoch);
        if record.distrusted.is_none() {
            record.distrusted = Some(why.clone());
            dirty.add(Key::Shard(request.shard));
        }
        self.doubt(now, format!("its state is from the past: {}: {why}", request.shard), dirty);
    }

    fn change(&mut self, now: Millis, request: &MembershipRequest, dirty: &mut Dirty) -> MembershipAnswer {
        let shard = request.shard;
        let Some(record) = self.shards.get(&shard) else {
            return MembershipAnswer::Refused(format!("no shard {shard}"));
        };
        if let Err(why) = self.check_trusted() {
            return MembershipAnswer::Refused(why.to_string());
        }
        if let Some(why) = &record.distrusted {
            return MembershipAnswer::Refused(Error::Distrusted { shard, why: why.clone() }.to_string());
        }
        let current = &record.config;
        if request.epoch != current.epoch || request.by != current.primary {
            return MembershipAnswer::Stale(self.with_endpoints(current));
        }
        let next = match &request.change {
            MembershipChange::Born if current.born => Err(format!("{shard} was born before {}", current.epoch)),
            MembershipChange::Born => Ok(Configuration { born: true, ..current.clone() }),
            MembershipChange::Reopened(opens) => self.reopened(current, opens),
            MembershipChange::Drop(copies) => dropped(current, copies).and_then(|next| {
                if next.is_sealed() && !current.born {
                    // The copies of its full set may not exist: none of those that are left out could ever take over.
                    return Err(format!("{shard} is still being created, by {} copies at least", current.min_copies));
                }
                // Who is cut off from enough others, while they are well, is cut off itself.
                if next.is_sealed() && self.well(now, current, copies) >= usize::from(current.min_copies) {
                    return self.successor(now, current);
                }
                Ok(next)
            }),
            MembershipChange::Past(copies) => past(current, copies).and_then(|next| match next.primary_member() {
                Some(primary) if primary.past => self.successor(now, &next),
                _ => Ok(next),
            }),
            MembershipChange::Fill(copy, open) => self.syncing(current, *copy, *open),
            MembershipChange::Add(copy) => added(current, *copy),
            MembershipChange::StepDown => self.successor(now, current),
            MembershipChange::CacheLost => cache_lost(current, self.next_commit()),
        };
        match next {
            Ok(next) => {
                if let MembershipChange::Fill(copy, _) = &request.change {
                    self.forget_again(&next, *copy, dirty);
                }
                MembershipAnswer::Granted(self.advance(next, dirty))
            }
            Err(why) => MembershipAnswer::Refused(why),
        }
    }

    /// Only openings that the disk's node has registered itself: hearsay may be of a store that is gone again.
    fn reopened(&self, current: &Configuration, opens: &[(CopyId, OpenId)]) -> Result<Configuration, String> {
        if opens.is_empty() {
            return Err(format!("{}: no copy named", current.shard));
        }
        let mut next = current.clone();
        let mut named = BTreeSet::new();
        for (copy, open) in opens {
            let member = member_mut(&mut next, *copy)?;
            if !named.insert(*copy) {
                return Err(format!("{copy} is named twice"));
            }
            self.check_registered(member, *open)?;
            member.open = *open;
        }
        Ok(next)
    }

    /// The copy is to be filled. Not two at once: each takes the primary's time, and counts for every write (rule 1).
    fn syncing(&self, current: &Configuration, copy: CopyId, open: OpenId) -> Result<Configuration, String> {
        let mut next = current.clone();
        if let Some(other) = current.members.iter().find(|m| m.state == CopyState::Syncing) {
            return Err(format!("{} of {} is being filled: one copy at a time", other.copy, current.shard));
        }
        if self.shards.get(&current.shard).is_some_and(|s| s.held.contains(&copy)) {
            return Err(format!("the filling of {copy} of {} was aborted", current.shard));
        }
        let member = member_mut(&mut next, copy)?;
        if member.state != CopyState::Absent {
            return Err(format!("{copy} is in sync already"));
        }
        self.check_registered(member, open)?;
        member.open = open;
        member.state = CopyState::Syncing;
        Ok(next)
    }

    /// How many of these copies are in sync, on nodes that are heard.
    pub(crate) fn well(&self, now: Millis, current: &Configuration, copies: &[CopyId]) -> usize {
        let named = current.in_sync_members().filter(|m| copies.contains(&m.copy));
        let there = |m: &&Member| self.disk(m.node, m.disk).is_some_and(|d| d.present) && self.hears(m.node, now);
        named.filter(there).count()
    }

    fn check_registered(&self, member: &Member, open: OpenId) -> Result<(), String> {
        let registered = self.disk(member.node, member.disk).is_some_and(|d| d.present && d.open == open);
        match registered {
            true => Ok(()),
            false => Err(format!("{} has not registered opening {open} of {} yet", member.node, member.disk)),
        }
    }

    /// Makes `next` the shard's configuration, one epoch above the current one.
    pub(crate) fn advance(&mut self, mut next: Configuration, dirty: &mut Dirty) -> Configuration {
        let at = self.next_commit();
        let shard = next.shard;
        next.epoch = Epoch(next.epoch.0 + 1);
        next.attach = self.volumes.get(&shard.volume).map_or(next.attach, VolumeRecord::floor);
        if next.in_sync() >= usize::from(next.min_copies) {
            next.full_set = next.members.iter().filter(|m| m.state == CopyState::InSync).map(|m| m.copy).collect();
        }
        next = self.with_endpoints(&next);
        let Some(record) = self.shards.get(&shard) else { return next };
        let sealed = record.config.is_sealed();
        for member in &mut next.members {
            let kept = record.config.member(member.copy).filter(|before| before.open == member.open);
            let counts = kept.is_some_and(|before| match (before.state, member.state) {
                (CopyState::InSync, _) | (CopyState::Absent, CopyState::Absent) => true,
                // Promoted, as one of the last full set: nothing was acknowledged since.
                (CopyState::Absent, CopyState::InSync) => sealed && record.config.full_set.contains(&member.copy),
                _ => false,
            });
            if !counts {
                member.since = next.epoch;
            }
        }
        debug_assert_eq!(record.config.epoch.0 + 1, next.epoch.0, "an epoch follows the one before it");
        let former = self.formers(record, &next);
        let before = record.config.clone();
        self.note_change(&before, &next);
        for node in former.iter().copied().chain(next.primary_member().map(|m| m.node)) {
            self.tell(node, at);
        }
        if let Some(record) = self.shards.get_mut(&shard) {
            self.primaries.leave(&record.config);
            self.primaries.enter(&next);
            record.config = next.clone();
            record.changed_at = at;
            record.former = former;
            let behind = |copy: &CopyId| next.member(*copy).is_some_and(|m| m.state != CopyState::InSync);
            // The way out of a sealed epoch is kept open (rule 11).
            record.held.retain(|copy| !next.is_sealed() && behind(copy));
            dirty.add(Key::Shard(shard));
        }
        next
    }
}

/// The copies are absent from now on. That may leave too few: then the epoch is sealed, and the last full set stays known (rule 11).
fn dropped(current: &Configuration, copies: &[CopyId]) -> Result<Configuration, String> {
    if copies.is_empty() {
        return Err(format!("{}: no copy named", current.shard));
    }
    let mut next = current.clone();
    for copy in copies {
        if *copy == current.primary {
            return Err(format!("{copy} is the primary of {}: it steps down, nobody drops it", current.shard));
        }
        let member = member_mut(&mut next, *copy)?;
        if member.state == CopyState::Absent {
            return Err(format!("{copy} takes no part in {} of {}", current.epoch, current.shard));
        }
        member.state = CopyState::Absent;
    }
    Ok(next)
}

/// The copies lack what was acknowledged: they are absent, and nobody takes one for a copy of the last full set (rule 11).
fn past(current: &Configuration, copies: &[CopyId]) -> Result<Configuration, String> {
    if copies.is_empty() {
        return Err(format!("{}: no copy named", current.shard));
    }
    let mut next = current.clone();
    for copy in copies {
        let member = member_mut(&mut next, *copy)?;
        if member.state != CopyState::InSync || !current.born {
            return Err(format!("{copy} is not in sync in {} of {}", current.epoch, current.shard));
        }
        (member.state, member.past) = (CopyState::Absent, true);
    }
    next.full_set.retain(|copy| !copies.contains(copy));
    Ok(next)
}

/// The copy holds everything (rule 1).
fn added(current: &Configuration, copy: CopyId) -> Result<Configuration, String> {
    let mut next = current.clone();
    let member = member_mut(&mut next, copy)?;
    if member.state != CopyState::Syncing {
        return Err(format!("{copy} of {} is not being filled", current.shard));
    }
    (member.state, member.past) = (CopyState::InSync, false);
    Ok(next)
}

/// Nobody is in doubt any more: what was lost is told instead.
fn cache_lost(current: &Configuration, at: Commit) -> Result<Configuration, String> {
    if current.durability.is_always() {
        return Err(format!("{} has nothing that is acknowledged and not durable", current.shard));
    }
    let mut next = Configuration { cache: at, ..current.clone() };
    next.members.iter_mut().for_each(|member| member.since = Epoch(0));
    Ok(next)
}

fn member_mut(config: &mut Configuration, copy: CopyId) -> Result<&mut Member, String> {
    let shard = config.shard;
    let member = config.members.iter_mut().find(|m| m.copy == copy);
    member.ok_or_else(|| format!("{copy} is not a member of {shard}"))
}
