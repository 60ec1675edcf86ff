//! An adoption's plan becomes the state: numbers leap, every shard has a new epoch, and what was under way before is over.

use super::{LeftOut, Plan, count};
use crate::api::CopyWork;
use crate::events::Happened;
use crate::limits::{ADOPTION_LEAP, ADOPTION_LEAP_VOLUMES, MAX_NUMBER};
use crate::promotion::{Attention, Primaries};
use crate::record::{DiskRecord, DropRecord, NodeRecord, ShardRecord, VolumeRecord};
use crate::views::{Duty, VolumeState};
use crate::{
    Bytes, Commit, Conductor, Configuration, CopyId, CopyState, Dirty, Epoch, Member, Millis, NodeId, OrderId, ShardId,
    SnapshotId, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};

impl Conductor {
    /// Makes the plan the state.
    pub(super) fn go_on(&mut self, now: Millis, plan: Plan, left_out: &LeftOut) -> Dirty {
        let mut dirty = Dirty::default();
        self.snapshot().iter().for_each(|record| dirty.add(record.key()));
        self.leap(&plan);
        let at = self.next_commit();
        for (newest, next) in plan.volumes.values().flat_map(|v| &v.shards) {
            self.know_disks(next.as_ref().unwrap_or(newest));
        }
        let around = self.nodes_around();
        self.shards.clear();
        self.primaries = Primaries::default();
        self.volumes.retain(|_, v| v.state == VolumeState::Deleting);
        self.snapshots.clear();
        let nodes: BTreeSet<NodeId> = self.nodes.keys().copied().collect();
        let (mut shards, volumes) = (Vec::new(), count(plan.volumes.len()));
        for (id, volume) in plan.volumes {
            self.volumes.insert(id, VolumeRecord { attach_at: at, ..volume.record });
            self.snapshots.extend(volume.snapshots.into_iter().map(|(snapshot, record)| ((id, snapshot), record)));
            shards.extend(volume.shards);
        }
        self.derive();
        let mut lasting = 0;
        for (newest, next) in shards {
            let epoch = Epoch(newest.epoch.0 + ADOPTION_LEAP);
            let config = match &next {
                Some(_) => Configuration { epoch, ..newest },
                None => newest,
            };
            let former = around.get(&config.shard).filter(|_| next.is_some()).cloned().unwrap_or_default();
            let record =
                ShardRecord { config, changed_at: at, distrusted: None, former, leaving: None, held: BTreeSet::new() };
            self.primaries.enter(&record.config);
            self.shards.insert(record.config.shard, record);
            if let Some(mut next) = next {
                next.epoch = epoch;
                doubt_openings(&mut next);
                self.advance(next, &mut dirty);
                lasting += 1;
            }
        }
        self.forget_the_past(at, left_out, &mut dirty);
        self.meta.recovery = None;
        for (node, heard) in std::mem::take(&mut self.heard) {
            let strange = self.strangers(heard.disks.iter().map(|(disk, copies)| (*disk, copies.as_slice())));
            if let Some(presence) = self.presence.get_mut(&node) {
                presence.strange = strange;
            }
        }
        self.attention = Attention::from(now);
        self.date_events(now);
        self.derive();
        self.stale_cards = self.volumes.keys().copied().collect();
        nodes.iter().for_each(|node| self.tell(*node, at));
        self.note(Happened::Adopted { volumes, shards: lasting }, &mut dirty);
        self.snapshot().iter().for_each(|record| dirty.add(record.key()));
        self.seal(dirty)
    }

    /// Of each shard, the nodes that may take themselves for its primary's.
    fn nodes_around(&self) -> BTreeMap<ShardId, BTreeSet<NodeId>> {
        let mut around: BTreeMap<ShardId, BTreeSet<NodeId>> = BTreeMap::new();
        let known = self.shards.values().flat_map(|s| {
            let nodes = s.config.members.iter().map(|m| m.node).chain(s.former.iter().copied());
            nodes.map(|node| (s.config.shard, node))
        });
        let heard = self.heard.iter().flat_map(|(node, h)| h.disks.values().flatten().map(|(_, c)| (*node, c)));
        let named = heard.flat_map(|(node, c)| {
            c.members.iter().map(|m| m.node).chain([node]).map(|node| (c.shard, node)).collect::<Vec<_>>()
        });
        for (shard, node) in known.chain(named) {
            around.entry(shard).or_default().insert(node);
        }
        around
    }

    /// Numbers go on far above all that were heard of.
    fn leap(&mut self, plan: &Plan) {
        let meta = &mut self.meta;
        meta.adoptions += 1;
        meta.commit = Commit(meta.commit.0 + ADOPTION_LEAP);
        let heard = self.heard.values().flat_map(|h| h.disks.values().flatten()).map(|(_, c)| c.shard.volume);
        let newest = heard.chain(plan.volumes.keys().copied()).max().unwrap_or_default();
        meta.next_volume = meta.next_volume.max(VolumeId(newest.0.saturating_add(1)));
        meta.next_volume = VolumeId(meta.next_volume.0.saturating_add(ADOPTION_LEAP_VOLUMES));
        let snapshots = plan.volumes.values().flat_map(|v| v.snapshots.keys()).max().copied().unwrap_or_default();
        let parents =
            plan.volumes.values().filter_map(|v| v.record.parent).map(|p| p.snapshot).max().unwrap_or_default();
        let snapshot = meta.next_snapshot.max(snapshots).max(parents);
        meta.next_snapshot = SnapshotId(snapshot.0 + ADOPTION_LEAP);
        // Of orders nothing is heard: each life of the state has its own. Its commits are above all that nodes have heard of, so that no two
        // lives begin with the same.
        let life = meta.commit.0.saturating_mul(1 << 16).min(MAX_NUMBER / 2);
        meta.next_order = OrderId(meta.next_order.0.max(life));
        // Nor of events: who has followed the log so far hears of those from the adoption on.
        meta.next_event = meta.next_event.max(life);
        // Nor of clients' keys: those that were added since are none any more, and nodes are told so.
        meta.last_key = meta.last_key.max(life);
        meta.keys_at = Commit(meta.commit.0 + 1);
    }

    /// Members are on disks that are known, if only by name.
    fn know_disks(&mut self, config: &Configuration) {
        for member in &config.members {
            if self.disk(member.node, member.disk).is_some() {
                continue;
            }
            let Member { node, disk, open, endpoint, .. } = *member;
            let node = self.nodes.entry(node).or_insert_with(|| NodeRecord {
                node,
                host: "unknown".to_owned(),
                rack: String::new(),
                version: String::new(),
                disks: Vec::new(),
                duty: Duty::Serving,
            });
            let endpoint_at = Commit(0);
            let (capacity, max_copies, present, leaving, successor) = (Bytes(0), 0, false, false, None);
            let record = DiskRecord {
                disk,
                open,
                endpoint,
                addresses: Vec::new(),
                endpoint_at,
                capacity,
                max_copies,
                present,
                leaving,
                successor,
                path: None,
            };
            node.disks.push(record);
            node.disks.sort_by_key(|d| d.disk);
        }
    }

    /// What was under way before the state was made may be over since, or be of nothing any more.
    fn forget_the_past(&mut self, at: Commit, left_out: &LeftOut, dirty: &mut Dirty) {
        let listed: BTreeSet<CopyId> =
            self.shards.values().flat_map(|s| s.config.members.iter().map(|m| m.copy)).collect();
        let volumes: BTreeSet<VolumeId> = self.volumes.keys().copied().collect();
        let active: BTreeSet<VolumeId> =
            self.volumes.values().filter(|v| v.state == VolumeState::Active).map(|v| v.id).collect();
        self.drops.retain(|_, d| volumes.contains(&d.volume) && !listed.contains(&d.copy));
        // A copy id once unlisted is never listed again: what the newest configuration does not name is not needed.
        for (node, heard) in &self.heard {
            for (disk, copy, reported) in heard.disks.iter().flat_map(|(d, all)| all.iter().map(|(c, r)| (*d, *c, r))) {
                let shard = self.shards.get(&reported.shard).map(|s| &s.config);
                let unlisted = shard.is_some_and(|c| reported.epoch.0 < c.epoch.0) && !listed.contains(&copy);
                if unlisted && !left_out.copies.contains(&copy) {
                    let volume = reported.shard.volume;
                    let index = Some(reported.shard.index);
                    let drop = DropRecord { node: *node, copy, disk, volume, shard: index, dropped_at: at };
                    self.drops.entry((*node, copy)).or_insert(drop);
                }
            }
        }
        self.work.retain(|_, w| active.contains(&w.volume));
        // Nor has it anything to do: what waits for it alone is over.
        let mut over: BTreeMap<NodeId, Vec<CopyWork>> = BTreeMap::new();
        for (node, work) in self.work.keys().filter(|(_, work)| !listed.contains(&work.copy())) {
            over.entry(*node).or_default().push(*work);
        }
        over.iter().for_each(|(node, works)| self.confirm_work(*node, works, dirty));
        self.scrubs.retain(|_, s| active.contains(&s.volume));
        self.copy_ranges.retain(|_, c| active.contains(&c.into));
        for copy in self.copy_ranges.values_mut().filter(|copy| copy.goes_on()) {
            let why = "the conductor's state was lost or restored meanwhile: copy it again if that was not over";
            copy.failed = Some(why.to_owned());
        }
    }
}

/// Nobody knows which copies of a flush volume have kept their opening since: each may lack what was not flushed (rule 18).
fn doubt_openings(config: &mut Configuration) {
    if !config.durability.is_always() {
        let adopted = Epoch(config.epoch.0 + 1);
        config.members.iter_mut().filter(|m| m.state == CopyState::InSync).for_each(|m| m.since = adopted);
    }
}
