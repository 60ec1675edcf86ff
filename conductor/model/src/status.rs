//! What people see: nodes, volumes and whether I/O goes on, and if not why.
//!
//! Derived on demand from the state and the last heartbeats; nothing here is persisted.

use crate::limits::{ALIVE_MS, DEAD_MS, MAX_REASONS_PER_VOLUME};
use crate::record::{NodeRecord, VolumeRecord};
use crate::space::fullness;
use crate::views::{DiskInfo, Health, NodeInfo, NodeState, Status, Totals, VolumeInfo, VolumeState};
use crate::{Bytes, Conductor, DiskId, Error, Millis, NodeId};
use std::collections::BTreeMap;

impl Conductor {
    /// The cluster at a glance.
    pub fn status(&self, now: Millis) -> Status {
        let nodes = self.node_list(now);
        let volumes = self.list(now);
        let active = || volumes.iter().filter(|v| v.state == VolumeState::Active);
        let waiting = active().filter(|v| v.health == Health::Waiting).count();
        let disks = || nodes.iter().flat_map(|n| &n.disks);
        let sum = |amounts: &mut dyn Iterator<Item = Bytes>| Bytes(amounts.fold(0, |sum, b| sum.saturating_add(b.0)));
        let totals = Totals {
            nodes: count(nodes.len()),
            nodes_alive: count(nodes.iter().filter(|n| n.state == NodeState::Alive).count()),
            volumes: count(active().count()),
            volumes_waiting: count(waiting),
            shards: count(self.shards.len()),
            capacity: sum(&mut disks().filter(|d| d.present).map(|d| d.capacity)),
            used: sum(&mut disks().filter(|d| d.present).map(|d| d.used)),
            provisioned: sum(&mut disks().map(|d| d.provisioned)),
            damaged: disks().map(|d| d.damaged).fold(0, u64::saturating_add),
            repaired: disks().map(|d| d.repaired).fold(0, u64::saturating_add),
        };
        let warnings = self.warnings(&nodes);
        let health = if waiting == 0 { Health::Healthy } else { Health::Waiting };
        Status { cluster: self.meta.cluster, commit: self.meta.commit.0, health, totals, warnings, nodes, volumes }
    }

    /// All nodes.
    pub fn node_list(&self, now: Millis) -> Vec<NodeInfo> {
        let load = self.load();
        self.nodes.values().map(|node| self.node_info(now, node, &load)).collect()
    }

    /// One node.
    pub fn node(&self, now: Millis, node: NodeId) -> Result<NodeInfo, Error> {
        let record = self.nodes.get(&node).ok_or(Error::NoNode(node))?;
        Ok(self.node_info(now, record, &self.load()))
    }

    pub(crate) fn volume_info(&self, now: Millis, volume: &VolumeRecord) -> VolumeInfo {
        let reasons = self.reasons(now, volume);
        let drops_left = match volume.state {
            VolumeState::Active => 0,
            VolumeState::Deleting => self.drops.values().filter(|d| d.volume == volume.id).count(),
        };
        VolumeInfo {
            id: volume.id,
            name: volume.name.clone(),
            size: volume.size,
            shard_size: volume.shard_size,
            shards: count(self.shards_of(volume.id).count()),
            copies: volume.copies,
            min_copies: volume.min_copies,
            created: volume.created,
            state: volume.state,
            drops_left: count(drops_left),
            health: if reasons.is_empty() { Health::Healthy } else { Health::Waiting },
            reasons,
            attach: volume.attach,
            attachment: volume.attachment.clone(),
            durability: volume.durability,
            parent: volume.parent.map(|p| self.snapshot_name(p.volume, p.snapshot)),
            snapshots: self.snapshot_count(volume.id),
            rollback: self.rollback_info(volume.id),
            flatten: self.flatten_progress(volume),
            scrub: self.scrub_info(volume.id),
        }
    }

    fn node_state(&self, now: Millis, node: NodeId) -> NodeState {
        match self.silence(node, now) {
            silent if silent > DEAD_MS => NodeState::Dead,
            silent if silent < ALIVE_MS && self.is_up(node, now) => NodeState::Alive,
            _ => NodeState::Late,
        }
    }

    fn node_info(&self, now: Millis, node: &NodeRecord, load: &Load) -> NodeInfo {
        let used = self.presence.get(&node.node).map(|p| &p.used);
        let disks = node.disks.iter().map(|d| {
            let (copies, provisioned) = load.disks.get(&(node.node, d.disk)).copied().unwrap_or_default();
            let used = used.and_then(|used| used.get(&d.disk)).copied().unwrap_or_default();
            let (damaged, repaired) = self.integrity_of(node.node, d.disk);
            DiskInfo {
                disk: d.disk,
                endpoint: d.endpoint,
                present: d.present,
                capacity: d.capacity,
                used,
                provisioned: Bytes(provisioned),
                copies,
                fullness: fullness(used, d.capacity),
                damaged,
                repaired,
            }
        });
        NodeInfo {
            node: node.node,
            host: node.host.clone(),
            state: self.node_state(now, node.node),
            silent_ms: self.silence(node.node, now),
            primaries: load.primaries.get(&node.node).copied().unwrap_or(0),
            disks: disks.collect(),
        }
    }

    fn load(&self) -> Load {
        let mut load = Load::default();
        for config in self.shards.values().map(|s| &s.config) {
            for member in &config.members {
                let (copies, bytes) = load.disks.entry((member.node, member.disk)).or_default();
                *copies += 1;
                *bytes += config.size.0;
            }
            if let Some(primary) = config.primary_member() {
                *load.primaries.entry(primary.node).or_default() += 1;
            }
        }
        load
    }

    /// Why a volume's writes wait; empty if they do not. Silence first: it explains most of the rest.
    fn reasons(&self, now: Millis, volume: &VolumeRecord) -> Vec<String> {
        let mut reasons = Vec::new();
        let nodes = self.nodes_of(volume.id);
        for node in nodes.iter().filter(|n| self.node_state(now, **n) != NodeState::Alive) {
            let host = self.nodes.get(node).map_or("?", |n| &n.host);
            reasons.push(format!("{node} ({host}) silent for {} s: writes wait", self.silence(*node, now) / 1000));
        }
        let mut unborn = 0;
        for shard in self.shards_of(volume.id) {
            unborn += usize::from(!shard.config.born);
            if let Some(why) = &shard.distrusted {
                reasons.push(format!("{}: this conductor's record is in doubt: {why}", shard.config.shard));
            }
            for member in &shard.config.members {
                // Its primary has not named the new opening yet: what was in flight is not settled.
                if self.disk(member.node, member.disk).is_some_and(|d| d.present && d.open != member.open) {
                    let restarted = format!("{} restarted: its copies are not settled yet", member.node);
                    if !reasons.contains(&restarted) && reasons.len() < MAX_REASONS_PER_VOLUME {
                        reasons.push(restarted);
                    }
                }
                if self.disk(member.node, member.disk).is_some_and(|d| !d.present) {
                    let missing = format!("{} runs without disk {}: writes wait", member.node, member.disk);
                    if !reasons.contains(&missing) && reasons.len() < MAX_REASONS_PER_VOLUME {
                        reasons.push(missing);
                    }
                }
            }
        }
        for (node, presence) in self.presence.iter().filter(|(n, _)| self.node_state(now, **n) != NodeState::Dead) {
            for trouble in presence.troubles.iter().filter(|t| t.shard.volume == volume.id) {
                // Of an assignment that moved on only the present primary's word counts.
                let config = self.shards.get(&trouble.shard).map(|s| &s.config);
                if config.and_then(|c| c.primary_member()).is_some_and(|m| m.node == *node) {
                    reasons.push(format!("{}: {} ({} waiting)", trouble.shard, trouble.reason, trouble.waiting));
                }
            }
        }
        match unborn {
            0 => {}
            1 => reasons.push("1 shard is being created".to_owned()),
            n => reasons.push(format!("{n} shards are being created")),
        }
        reasons.truncate(MAX_REASONS_PER_VOLUME);
        reasons
    }
}

#[derive(Default)]
struct Load {
    disks: BTreeMap<(NodeId, DiskId), (u32, u64)>,
    primaries: BTreeMap<NodeId, u32>,
}

/// All of these are bounded far below 32 bits (`limits`).
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
