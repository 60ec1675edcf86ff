//! Filling of copies as people see it, and an end of it by hand.
//!
//! ```text
//! absent ──Fill──► syncing ──Add──► in sync          its primary asks (`membership`)
//!    ▲               │
//!    └──Drop─────────┘  aborted: the primary hears of it and drops the copy, as one that cannot be filled, and asks for no Fill
//! ```
//! An aborted filling stays so: for as long as the copy is *held* here, whoever is primary. It goes on by hand; and by itself where the
//! shard comes to have too few copies in sync: the copy may be the way out then (rule 11). What was filled stays on the copy's disk, and
//! the next run begins there.

use crate::events::Happened;
use crate::limits::MAX_SHARDS;
use crate::record::ShardRecord;
use crate::views::{NodeState, ResyncChange, ResyncInfo, ResyncState, ResyncVerb};
use crate::{Bytes, Conductor, CopyId, CopyState, Dirty, Error, Key, Member, Millis, NodeId, ShardId, VolumeId, api};
use std::collections::{BTreeMap, BTreeSet};

impl Conductor {
    /// Every copy that is not in sync, and how far it is.
    pub fn resyncs(&self, now: Millis) -> Vec<ResyncInfo> {
        let said = self.fillings();
        let behind = |m: &&Member| m.state != CopyState::InSync;
        let all = self.shards.values().flat_map(|s| s.config.members.iter().filter(behind).map(move |m| (s, m)));
        all.filter_map(|(record, member)| self.resync_info(now, record, member, &said)).collect()
    }

    /// Ends the filling of copies of a volume, or has them filled again: of those that are named, or of all.
    pub fn change_resync(
        &mut self,
        now: Millis,
        name: &str,
        change: &ResyncChange,
    ) -> Result<(Vec<ResyncInfo>, Dirty), Error> {
        self.check_trusted()?;
        self.date_events(now);
        if change.copies.len() > MAX_SHARDS {
            return Err(Error::Limit { what: "copies at once", limit: MAX_SHARDS });
        }
        let volume = self.volume(name)?.id;
        let hold = change.verb == ResyncVerb::Abort;
        let concerned = self.to_be_held(volume, name, change)?;
        let at = self.next_commit();
        let mut dirty = Dirty::default();
        let mut count = 0;
        for (shard, copy) in &concerned {
            let Some(record) = self.shards.get_mut(shard) else { continue };
            let changed = if hold { record.held.insert(*copy) } else { record.held.remove(copy) };
            let primary = record.config.primary_member().map(|m| m.node);
            if changed {
                count += 1;
                dirty.add(Key::Shard(*shard));
                primary.into_iter().for_each(|node| self.tell(node, at));
            }
        }
        if count > 0 {
            let volume = name.to_owned();
            let what = match change.verb {
                ResyncVerb::Abort => Happened::FillingAborted { volume, copies: count },
                ResyncVerb::Resume => Happened::FillingResumed { volume, copies: count },
            };
            self.note(what, &mut dirty);
        }
        let said = self.fillings();
        let infos = concerned.iter().filter_map(|(shard, copy)| {
            let record = self.shards.get(shard)?;
            self.resync_info(now, record, record.config.member(*copy)?, &said)
        });
        let infos = infos.collect();
        let dirty = self.seal(dirty);
        Ok((infos, dirty))
    }

    /// Which copies a change is about.
    fn to_be_held(&self, volume: VolumeId, name: &str, change: &ResyncChange) -> Result<Vec<(ShardId, CopyId)>, Error> {
        let refused = |copy: CopyId, why: String| Err(Error::InUse { what: format!("copy {copy}"), why });
        let hold = change.verb == ResyncVerb::Abort;
        let named: BTreeSet<CopyId> = change.copies.iter().copied().collect();
        let mut found = Vec::new();
        let mut way_out = None;
        for record in self.shards_of(volume) {
            let shard = record.config.shard;
            for member in &record.config.members {
                let copy = member.copy;
                let is_named = named.contains(&copy);
                if member.state == CopyState::InSync {
                    if is_named {
                        return refused(copy, format!("of {shard} is in sync: there is nothing to {}", change.verb));
                    }
                } else if hold && record.config.is_sealed() {
                    if is_named {
                        return refused(copy, waited_for(shard));
                    }
                    way_out.get_or_insert((copy, shard));
                } else if is_named || (named.is_empty() && (hold || record.held.contains(&copy))) {
                    found.push((shard, copy));
                }
            }
        }
        let known: BTreeSet<CopyId> = found.iter().map(|(_, copy)| *copy).collect();
        if let Some(copy) = named.difference(&known).next() {
            return Err(Error::NoCopy { volume: name.to_owned(), copy: *copy });
        }
        match way_out {
            Some((copy, shard)) if found.is_empty() => refused(copy, waited_for(shard)),
            _ => Ok(found),
        }
    }

    /// Copies that are not to be filled, of shards whose primary is on this node.
    pub(crate) fn held_for(&self, node: NodeId) -> Vec<CopyId> {
        let here = |s: &&ShardRecord| s.config.primary_member().is_some_and(|m| m.node == node);
        self.shards.values().filter(here).flat_map(|s| s.held.iter().copied()).collect()
    }

    /// What primaries say of the copies that they fill.
    pub(crate) fn fillings(&self) -> BTreeMap<CopyId, &api::Filling> {
        let said = self.presence.iter().flat_map(|(node, p)| p.filling.iter().map(move |f| (*node, f)));
        said.filter(|(node, f)| self.primary_node(f.shard) == Some(*node)).map(|(_, f)| (f.copy, f)).collect()
    }

    fn resync_info(
        &self,
        now: Millis,
        record: &ShardRecord,
        member: &Member,
        said: &BTreeMap<CopyId, &api::Filling>,
    ) -> Option<ResyncInfo> {
        let Member { copy, node, disk, .. } = *member;
        let shard = record.config.shard;
        let away = self.node_state(now, node) != NodeState::Alive || self.disk(node, disk).is_none_or(|d| !d.present);
        let state = match member.state {
            _ if record.held.contains(&copy) => ResyncState::Aborted,
            CopyState::Syncing => ResyncState::Filling,
            _ if away => ResyncState::Away,
            _ => ResyncState::Waiting,
        };
        let filling = said.get(&copy).filter(|f| f.shard == shard && state == ResyncState::Filling);
        let (done, rate) = filling.map_or((Bytes(0), Bytes(0)), |f| (f.done, f.rate));
        let of = record.config.size;
        let volume = self.volumes.get(&shard.volume)?.name.clone();
        let from = record.config.primary_member().map(|m| m.node);
        let eta_seconds = seconds_left(done, of, rate);
        Some(ResyncInfo { volume, shard, copy, node, disk, from, state, done, of, rate, eta_seconds })
    }
}

fn waited_for(shard: ShardId) -> String {
    format!("is what writes of {shard} wait for: too few copies are in sync without it")
}

/// Until all is done; `None` while nothing moves.
pub(crate) fn seconds_left(done: Bytes, of: Bytes, rate: Bytes) -> Option<u64> {
    let left = of.0.saturating_sub(done.0);
    left.checked_add(rate.0.saturating_sub(1))?.checked_div(rate.0)
}
