//! Who uses what space, and what is nearly full or was found damaged.
//!
//! From the nodes' last heartbeats; nothing here is persisted. What several volumes share is counted where it was written first.

use crate::api::{Ailment, Trouble};
use crate::limits::{FULL_PERCENT, NEAR_FULL_PERCENT};
use crate::record::DiskRecord;
use crate::views::{DiskInfo, DiskSpace, Duty, Fullness, NodeInfo, NodeState, Space, VolumeSpace, VolumeState};
use crate::{Bytes, Conductor, DiskId, Millis, NodeId, VolumeId};
use std::collections::BTreeMap;

/// How full a disk is that has so much in use.
pub(crate) fn fullness(used: Bytes, capacity: Bytes) -> Fullness {
    let above = |percent: u32| u128::from(used.0) * 100 > u128::from(capacity.0) * u128::from(percent);
    match () {
        () if above(FULL_PERCENT) => Fullness::Full,
        () if above(NEAR_FULL_PERCENT) => Fullness::NearFull,
        () => Fullness::Room,
    }
}

impl Conductor {
    /// Space of all disks and volumes.
    pub fn space(&self, now: Millis) -> Space {
        let mut disks = Vec::new();
        for node in self.node_list(now) {
            let heard = self.is_up(node.node, now);
            for disk in &node.disks {
                disks.push(DiskSpace {
                    node: node.node,
                    host: node.host.clone(),
                    disk: disk.disk,
                    present: disk.present && heard,
                    capacity: disk.capacity,
                    used: disk.used,
                    free: Bytes(disk.capacity.0.saturating_sub(disk.used.0)),
                    provisioned: disk.provisioned,
                    fullness: disk.fullness,
                });
            }
        }
        let by_disk: BTreeMap<_, &DiskSpace> = disks.iter().map(|d| ((d.node, d.disk), d)).collect();
        let active = self.volumes.values().filter(|v| v.state == VolumeState::Active);
        let volumes = active.map(|volume| {
            let members = || self.shards_of(volume.id).flat_map(|s| &s.config.members);
            let on = members().filter_map(|m| by_disk.get(&(m.node, m.disk)));
            let (mut free, mut worst) = (Bytes(u64::MAX), Fullness::Room);
            for disk in on {
                free = free.min(disk.free);
                worst = worst.max(disk.fullness);
            }
            VolumeSpace {
                name: volume.name.clone(),
                size: volume.size,
                used: self.used_by(volume.id),
                free,
                snapshots: self.snapshot_count(volume.id),
                fullness: worst,
            }
        });
        let volumes = volumes.collect();
        Space { near_full_percent: NEAR_FULL_PERCENT, full_percent: FULL_PERCENT, disks, volumes }
    }

    /// What is in use on a disk, as its node says.
    pub(crate) fn used_on(&self, node: NodeId, disk: DiskId) -> Bytes {
        self.presence.get(&node).and_then(|p| p.used.get(&disk)).copied().unwrap_or_default()
    }

    /// What all copies of a volume hold by themselves, once all were counted.
    fn used_by(&self, volume: VolumeId) -> Option<Bytes> {
        let mut sum = 0_u64;
        for member in self.shards_of(volume).flat_map(|s| &s.config.members) {
            sum = sum.saturating_add(self.presence.get(&member.node)?.copies.get(&member.copy)?.0);
        }
        Some(Bytes(sum))
    }

    pub(crate) fn snapshot_count(&self, volume: VolumeId) -> u32 {
        let kept = self.snapshots_of(volume).filter(|s| s.state != crate::views::SnapshotState::Deleting);
        u32::try_from(kept.count()).unwrap_or(u32::MAX)
    }

    /// What needs attention soon although I/O goes on.
    pub(crate) fn warnings(&self, now: Millis, nodes: &[NodeInfo]) -> Vec<String> {
        let mut warnings = Vec::new();
        let unheard = nodes.iter().filter(|n| n.duty != Duty::Removed && self.is_unheard(n.node, now)).count();
        if unheard > 0 {
            let all = nodes.len();
            warnings.push(format!(
                "this conductor has just started, and has not heard of {unheard} of {all} nodes yet: ask again in a moment"
            ));
        }
        if let Some(info) = self.recovery() {
            let (why, next) = (info.why, info.next);
            warnings.push(format!("this conductor is in doubt and changes nothing: {why}. I/O goes on. Next: {next}"));
        }
        let trusted = self.meta.recovery.is_none();
        for (node, presence) in self.presence.iter().filter(|(_, p)| trusted && !p.strange.is_empty()) {
            let strange: usize = presence.strange.values().sum();
            let what = format!("{node} has {strange} copies of volumes that this conductor does not know");
            warnings.push(format!(
                "{what}: they are kept. If these were deleted while it was away, they are wanted no more: `trine disk remove DISK --force` \
                 empties their disk of all others, then start {node} without it. Only if the conductor's state was lost, `trine conductor \
                 recover --from-nodes`"
            ));
            let leaving = |disk: &DiskId| {
                let drained = self.nodes.get(node).is_some_and(|n| n.duty == Duty::Draining);
                drained || self.disk(*node, *disk).is_some_and(|d| d.leaving)
            };
            for (disk, copies) in presence.strange.iter().filter(|(disk, _)| leaving(disk)) {
                let what = format!("disk {disk} of {node} is to be emptied, and keeps {copies} of them");
                warnings.push(format!(
                    "{what}: it is not taken out, and not to be thrown away before they are wanted no more"
                ));
            }
        }
        // One with copies is named by the volumes that miss them.
        let has_copies = |node: &NodeInfo| node.disks.iter().any(|disk| disk.copies > 0);
        for NodeInfo { node, host, .. } in nodes.iter().filter(|n| n.state == NodeState::Dead && !has_copies(n)) {
            warnings.push(format!(
                "{node} ({host}) is silent: start it again, or `trine node remove {node}`, as it has no copies"
            ));
        }
        for (node, disk) in nodes.iter().flat_map(|n| n.disks.iter().map(move |d| (n.node, d))) {
            let percent = u128::from(disk.used.0) * 100 / u128::from(disk.capacity.0.max(1));
            match disk.fullness {
                Fullness::Room => {}
                Fullness::NearFull => {
                    warnings.push(format!("disk {} of {node} is nearly full: {percent} %", disk.disk))
                }
                Fullness::Full => warnings.push(format!("disk {} of {node} is full: {percent} %", disk.disk)),
            }
            if let Some(why) = &disk.failed {
                let (disk, path) = (disk.disk, disk.path.as_deref().unwrap_or("-"));
                warnings.push(format!(
                    "disk {disk} of {node} ({path}) FAILED: {why}: what needs it waits or is served by other copies; `trine disk replace {disk} PATH`, or start {node} \
                     again if the disk is sound"
                ));
            }
        }
        let places = self.places_left();
        for node in self.nodes.values().filter(|_| unheard == 0) {
            if node.duty == Duty::Draining
                && let Some(why) = self.nowhere_to_go(now, &|m| m.node == node.node)
            {
                warnings.push(format!("{} is to be emptied, and {why}", node.node));
            }
            let has_place = |at| places.get(&at).is_some_and(|left| *left > 0);
            let stuck =
                |d: &&DiskRecord| d.leaving && !self.successor_of(now, node.node, d.disk).is_some_and(has_place);
            for disk in node.disks.iter().filter(stuck).filter(|_| node.duty != Duty::Draining) {
                if let Some(why) = self.nowhere_to_go(now, &|m| (m.node, m.disk) == (node.node, disk.disk)) {
                    let with = disk.successor.map(|with| format!(", disk {with} takes no copies now"));
                    let with = with.unwrap_or_default();
                    warnings.push(format!("disk {} of {} is to be emptied{with}, and {why}", disk.disk, node.node));
                }
            }
        }
        let name = |volume: &VolumeId| self.volumes.get(volume).map_or("?", |v| &v.name);
        for (volume, said) in self.unreadable(now) {
            let more = match said.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more like this)"),
            };
            let (shard, why) = (said[0].shard, &said[0].reason);
            warnings.push(format!("volume {}: {shard}: {why}{more}", name(&volume)));
        }
        for (volume, scrub) in self.scrubs.iter().filter(|(_, s)| s.damaged > s.repaired) {
            let left = scrub.damaged - scrub.repaired;
            warnings.push(format!(
                "volume {}: {left} damaged blocks found by its scrub could not be put right: what was done about them since, the next one will tell",
                name(volume)
            ));
        }
        warnings
    }

    /// What no copy in sync has of each volume, as the primaries have met it.
    fn unreadable(&self, now: Millis) -> BTreeMap<VolumeId, Vec<&Trouble>> {
        let mut found: BTreeMap<VolumeId, Vec<&Trouble>> = BTreeMap::new();
        for (_, trouble) in self.troubles_said(now).filter(|(_, t)| t.ailment == Some(Ailment::Unreadable)) {
            found.entry(trouble.shard.volume).or_default().push(trouble);
        }
        found
    }

    /// What is worth knowing, and asks nobody for anything.
    pub(crate) fn notes(nodes: &[NodeInfo]) -> Vec<String> {
        let disks = nodes.iter().flat_map(|n| n.disks.iter().map(move |d| (n.node, d)));
        let line = |(node, disk): (NodeId, &DiskInfo)| {
            let DiskInfo { disk, damaged, repaired, .. } = disk;
            format!(
                "disk {disk} of {node}: {damaged} blocks damaged, {repaired} repaired, since the node has opened it"
            )
        };
        disks.filter(|(_, disk)| disk.damaged > 0).map(line).collect()
    }

    /// Damaged and repaired blocks on a disk, since its node opened it.
    pub(crate) fn integrity_of(&self, node: NodeId, disk: DiskId) -> (u64, u64) {
        let said = self.presence.get(&node).and_then(|p| p.integrity.get(&disk));
        said.map_or((0, 0), |said| (said.damaged, said.repaired))
    }
}
