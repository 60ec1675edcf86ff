//! Promotion: another copy becomes primary. The one thing that the conductor does alone (rule 12), when a primary's node falls silent
//! or comes back without its disk; and what it does when a primary gives up.
//!
//! ```text
//! in sync        ──► may be promoted: it holds every acknowledged write (rule 10)
//! of a full set  ──► may be, too, while the epoch is sealed: nothing was acknowledged since (rule 11)
//! syncing, absent ─► never; absent in the next epoch
//! ```
//! The replaced primary is left out if enough others hold everything, else it stays counted and has to be dropped by the next one.
//! All shards of a node that died are one transaction (rule 25).

use crate::limits::{NODE_FRESH_MS, NODE_SILENT_MS, STALL_MS};
use crate::record::ShardRecord;
use crate::{Conductor, Configuration, CopyState, Dirty, Member, Millis, NodeId, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// Which node is primary of which shards: what a death concerns is found without looking at all shards.
#[derive(Clone, Default, Debug)]
pub(crate) struct Primaries(BTreeMap<NodeId, BTreeSet<ShardId>>);

impl Primaries {
    pub(crate) fn enter(&mut self, config: &Configuration) {
        if let Some(primary) = config.primary_member() {
            self.0.entry(primary.node).or_default().insert(config.shard);
        }
    }

    pub(crate) fn leave(&mut self, config: &Configuration) {
        let Some(primary) = config.primary_member() else { return };
        if let Some(shards) = self.0.get_mut(&primary.node) {
            shards.remove(&config.shard);
            if shards.is_empty() {
                self.0.remove(&primary.node);
            }
        }
    }

    /// How many shards a node is primary of.
    pub(crate) fn count(&self, node: NodeId) -> usize {
        self.0.get(&node).map_or(0, BTreeSet::len)
    }

    /// The shards that a node is primary of.
    pub(crate) fn of(&self, node: NodeId) -> BTreeSet<ShardId> {
        self.0.get(&node).cloned().unwrap_or_default()
    }

    /// Nodes that are primary of anything, with these shards.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &BTreeSet<ShardId>)> {
        self.0.iter().map(|(node, shards)| (*node, shards))
    }
}

/// When this process listened: who was not heard while it did not is not silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    since: Millis,
    ticked: Millis,
}

impl Attention {
    pub(crate) fn from(started: Millis) -> Self {
        Self { since: started, ticked: started }
    }

    fn tick(&mut self, now: Millis) {
        if now.since(self.ticked) > STALL_MS {
            self.since = now;
        }
        self.ticked = now;
    }
}

impl Conductor {
    /// Replaces every primary that is not to be had and that another copy can follow.
    pub(crate) fn promote(&mut self, now: Millis, dirty: &mut Dirty) {
        self.attention.tick(now);
        let mut moved = BTreeSet::new();
        for shard in self.orphans(now) {
            let Some(record) = self.shards.get(&shard).filter(|r| r.distrusted.is_none()) else { continue };
            if let Ok(next) = self.successor(now, &record.config) {
                self.advance(next, dirty);
                moved.insert(shard);
            }
        }
        if !moved.is_empty() {
            self.renew_orders(|shard| moved.contains(&shard), dirty);
        }
    }

    /// The next silence that may be a death.
    pub(crate) fn next_silence(&self) -> Option<Millis> {
        let deaths = self.primaries.iter().map(|(node, _)| Millis(self.heard(node).0 + NODE_SILENT_MS));
        // What is dead already is looked at again whenever something changes.
        deaths.filter(|death| *death > self.attention.ticked).min()
    }

    /// The shard's configuration under another primary; why there is none, in words.
    pub(crate) fn successor(&self, now: Millis, current: &Configuration) -> Result<Configuration, String> {
        let sealed = current.is_sealed();
        let holds_all = |m: &Member| m.state == CopyState::InSync || (sealed && current.full_set.contains(&m.copy));
        let others = || current.members.iter().filter(|m| m.copy != current.primary && holds_all(m));
        let able = others().filter_map(|m| {
            let disk =
                self.disk(m.node, m.disk).filter(|d| d.present && self.heard_within(m.node, now, NODE_FRESH_MS))?;
            // A store that was opened anew may have lost what a flush volume had not flushed (rule 10).
            Some((disk.open != m.open, self.primaries.count(m.node), m.node, m.copy))
        });
        let (.., primary) = able.min().ok_or_else(|| format!("no other copy of {} can be reached", current.shard))?;
        let left_out = others().count() >= usize::from(current.min_copies);
        let mut next = Configuration { primary, ..current.clone() };
        for member in &mut next.members {
            let stays = holds_all(member) && !(left_out && member.copy == current.primary);
            member.state = if stays { CopyState::InSync } else { CopyState::Absent };
            if let Some(disk) = self.disk(member.node, member.disk).filter(|d| d.present) {
                member.open = disk.open;
            }
        }
        Ok(next)
    }

    /// Shards whose primary's node is silent, or runs without the primary's disk.
    fn orphans(&self, now: Millis) -> Vec<ShardId> {
        let mut orphans = Vec::new();
        for (node, shards) in self.primaries.iter() {
            if now.since(self.heard(node)) >= NODE_SILENT_MS {
                orphans.extend(shards);
            } else if self.nodes.get(&node).is_some_and(|n| n.disks.iter().any(|d| !d.present)) {
                let missing = |member: &Member| self.disk(node, member.disk).is_none_or(|d| !d.present);
                let config = |shard: &ShardId| self.shards.get(shard).map(|s| &s.config);
                let lost = |shard: &&ShardId| config(shard).and_then(|c| c.primary_member()).is_some_and(missing);
                orphans.extend(shards.iter().filter(lost));
            }
        }
        orphans
    }

    /// When a node was heard last, as far as this process can tell.
    pub(crate) fn heard(&self, node: NodeId) -> Millis {
        let heard = self.presence.get(&node).and_then(|p| p.heard);
        heard.unwrap_or(self.started).max(self.attention.since)
    }

    /// True if a node was heard by this process, and is not silent.
    pub(crate) fn hears(&self, node: NodeId, now: Millis) -> bool {
        self.heard_within(node, now, NODE_SILENT_MS)
    }

    fn heard_within(&self, node: NodeId, now: Millis, ms: u64) -> bool {
        let heard = self.presence.get(&node).and_then(|p| p.heard);
        heard.is_some_and(|heard| now.since(heard) < ms)
    }

    /// Nodes that were the shard's primary and may not have heard that another is: those that acted upon its last change have.
    pub(crate) fn formers(&self, record: &ShardRecord, next: &Configuration) -> BTreeSet<NodeId> {
        let unaware = |node: &NodeId| self.presence.get(node).is_none_or(|p| p.acted < record.changed_at);
        let mut formers: BTreeSet<NodeId> = record.former.iter().copied().filter(unaware).collect();
        if record.config.primary != next.primary {
            formers.extend(record.config.primary_member().map(|m| m.node));
        }
        if let Some(primary) = next.primary_member() {
            formers.remove(&primary.node);
        }
        formers
    }
}
