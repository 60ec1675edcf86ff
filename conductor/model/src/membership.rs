//! Membership: what a shard's primary may ask (rule 12).
//!
//! A request names the epoch it was made under and takes effect only if that epoch is current and the asking copy is its
//! primary; then there is a new epoch, one higher. Whatever comes late, twice or from a deposed primary gets the
//! configuration that is current and changes nothing.

use crate::api::{MembershipAnswer, MembershipChange, MembershipRequest};
use crate::limits::MAX_SHARDS;
use crate::{Conductor, Configuration, CopyId, CopyState, Dirty, Epoch, Error, Key, OpenId};
use std::collections::BTreeSet;

impl Conductor {
    /// One answer per request, in order; all of it one transaction (rule 25).
    pub fn membership(&mut self, requests: &[MembershipRequest]) -> Result<(Vec<MembershipAnswer>, Dirty), Error> {
        if requests.len() > MAX_SHARDS {
            return Err(Error::Limit { what: "requests at once", limit: MAX_SHARDS });
        }
        let mut dirty = Dirty::default();
        let answers = requests.iter().map(|request| self.change(request, &mut dirty)).collect();
        Ok((answers, self.seal(dirty)))
    }

    fn change(&mut self, request: &MembershipRequest, dirty: &mut Dirty) -> MembershipAnswer {
        let shard = request.shard;
        let Some(record) = self.shards.get(&shard) else {
            return MembershipAnswer::Refused(format!("no shard {shard}"));
        };
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
            MembershipChange::Drop(_)
            | MembershipChange::Sync(..)
            | MembershipChange::Add(_)
            | MembershipChange::StepDown => Err("not known here".to_owned()),
        };
        match next {
            Ok(next) => MembershipAnswer::Granted(self.advance(next, dirty)),
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
            let member = next.members.iter_mut().find(|m| m.copy == *copy);
            let member = member.ok_or_else(|| format!("{copy} is not a member of {}", current.shard))?;
            if !named.insert(*copy) {
                return Err(format!("{copy} is named twice"));
            }
            let registered = self.disk(member.node, member.disk).is_some_and(|d| d.present && d.open == *open);
            if !registered {
                return Err(format!("{} has not registered opening {open} of {} yet", member.node, member.disk));
            }
            member.open = *open;
        }
        Ok(next)
    }

    /// Makes `next` the shard's configuration, one epoch above the current one.
    pub(crate) fn advance(&mut self, mut next: Configuration, dirty: &mut Dirty) -> Configuration {
        let at = self.next_commit();
        let shard = next.shard;
        next.epoch = Epoch(next.epoch.0 + 1);
        next.attach = self.volumes.get(&shard.volume).map_or(next.attach, |v| v.attach);
        if next.in_sync() >= usize::from(next.min_copies) {
            next.full_set = next.members.iter().filter(|m| m.state == CopyState::InSync).map(|m| m.copy).collect();
        }
        next = self.with_endpoints(&next);
        if let Some(primary) = next.primary_member() {
            self.tell(primary.node, at);
        }
        if let Some(record) = self.shards.get_mut(&shard) {
            debug_assert_eq!(record.config.epoch.0 + 1, next.epoch.0, "an epoch follows the one before it");
            record.config = next.clone();
            record.changed_at = at;
            dirty.add(Key::Shard(shard));
        }
        next
    }
}
