//! What people see: nodes, volumes and whether I/O goes on, and if not why.
//!
//! Derived on demand from the state and the last heartbeats; nothing here is persisted.

use crate::health::Verdict;
use crate::limits::{ALIVE_MS, DEAD_MS};
use crate::record::{DropRecord, NodeRecord, VolumeRecord};
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
        let with = |health| count(active().filter(|v| v.health == health).count());
        let disks = || nodes.iter().flat_map(|n| &n.disks);
        let sum = |amounts: &mut dyn Iterator<Item = Bytes>| Bytes(amounts.fold(0, |sum, b| sum.saturating_add(b.0)));
        let totals = Totals {
            nodes: count(nodes.len()),
            nodes_alive: count(nodes.iter().filter(|n| n.state == NodeState::Alive).count()),
            volumes: count(active().count()),
            volumes_resyncing: with(Health::Resyncing),
            volumes_degraded: with(Health::Degraded),
            volumes_waiting: with(Health::Waiting),
            volumes_lost: with(Health::Lost),
            shards: count(self.shards.len()),
            capacity: sum(&mut disks().filter(|d| d.present).map(|d| d.capacity)),
            used: sum(&mut disks().filter(|d| d.present).map(|d| d.used)),
            provisioned: sum(&mut disks().map(|d| d.provisioned)),
            damaged: disks().map(|d| d.damaged).fold(0, u64::saturating_add),
            repaired: disks().map(|d| d.repaired).fold(0, u64::saturating_add),
        };
        let doubt = self.doubted().map(ToOwned::to_owned);
        let (warnings, notes) = (self.warnings(now, &nodes), Self::notes(&nodes));
        let health = active().map(|v| v.health).max().unwrap_or(Health::Healthy);
        let (cluster, commit, rebalance) = (self.meta.cluster, self.meta.commit.0, self.rebalance_info());
        let settings = self.settings();
        let leader = String::new();
        let refused = self.refused(now);
        Status {
            cluster,
            leader,
            commit,
            health,
            doubt,
            refused,
            totals,
            warnings,
            notes,
            rebalance,
            settings,
            nodes,
            volumes,
        }
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
        let Verdict { health, reasons, filling } = self.verdict(now, volume);
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
            health,
            reasons,
            filling,
            attach: volume.attach,
            attachment: volume.attachment.clone(),
            readers: volume.readers.clone(),
            durability: volume.durability,
            parent: volume.parent.map(|p| self.snapshot_name(p.volume, p.snapshot)),
            snapshots: self.snapshot_count(volume.id),
            rollback: self.rollback_info(volume.id),
            cancelled_rollback: self.cancelled_info(volume),
            flatten: self.flatten_progress(volume),
            scrub: self.scrub_info(volume.id),
        }
    }

    pub(crate) fn node_state(&self, now: Millis, node: NodeId) -> NodeState {
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
                addresses: d.addresses.clone(),
                path: d.path.clone(),
                present: d.present,
                failed: self.failure_of(node.node, d.disk).cloned(),
                leaving: d.leaving,
                successor: d.successor,
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
            rack: node.rack.clone(),
            version: node.version.clone(),
            state: self.node_state(now, node.node),
            duty: node.duty,
            silent_ms: self.silence(node.node, now),
            heard: self.presence.get(&node.node).is_some_and(|p| p.heard.is_some()),
            primaries: load.primaries.get(&node.node).copied().unwrap_or(0),
            to_delete: load.to_delete.get(&node.node).copied().unwrap_or(0),
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
        // A disk that is away, or failed, deletes nothing.
        let works = |d: &&DropRecord| {
            self.disk(d.node, d.disk).is_some_and(|disk| disk.present) && self.failure_of(d.node, d.disk).is_none()
        };
        for drop in self.drops.values().filter(works) {
            *load.to_delete.entry(drop.node).or_default() += 1;
        }
        load
    }
}

#[derive(Default)]
struct Load {
    disks: BTreeMap<(NodeId, DiskId), (u32, u64)>,
    primaries: BTreeMap<NodeId, u32>,
    to_delete: BTreeMap<NodeId, u32>,
}

/// All of these are bounded far below 32 bits (`limits`).
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
