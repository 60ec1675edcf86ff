//! Failure domains: racks, and the hosts in them. What fails together does not hold two copies of a shard while there is another place.
//!
//! A node says its host, and its rack if it is told one. A host without a rack stands for itself: it is apart from every rack and from
//! every other host. Copies are spread over racks first, then over hosts; nothing is refused because they cannot be.

use crate::{Conductor, Configuration, CopyId, NodeId, VolumeId};
use std::collections::BTreeMap;

/// Where a node stands. Numbers instead of names: thousands of shards are compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Spot {
    rack: usize,
    host: usize,
}

/// How far copies are apart: so many racks, so many hosts, and so many nodes. More is better, racks first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Spread {
    pub(crate) racks: usize,
    pub(crate) hosts: usize,
    pub(crate) nodes: usize,
}

/// Where all nodes stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains(BTreeMap<NodeId, Spot>);

impl Domains {
    /// Where a node stands; one that is gone stands with others that are.
    pub(crate) fn of(&self, node: NodeId) -> Spot {
        self.0.get(&node).copied().unwrap_or(Spot { rack: usize::MAX, host: usize::MAX })
    }

    /// How far these nodes are apart.
    pub(crate) fn spread(&self, nodes: impl IntoIterator<Item = NodeId>) -> Spread {
        let mut spread = Spread::default();
        let mut seen: Vec<(NodeId, Spot)> = Vec::with_capacity(4);
        for node in nodes {
            let spot = self.of(node);
            spread.racks += usize::from(seen.iter().all(|(_, s)| s.rack != spot.rack));
            spread.hosts += usize::from(seen.iter().all(|(_, s)| s.host != spot.host));
            spread.nodes += usize::from(seen.iter().all(|(n, _)| *n != node));
            seen.push((node, spot));
        }
        spread
    }

    /// Is the node in another rack than all of these, and on another host?
    pub(crate) fn apart(&self, node: NodeId, others: impl IntoIterator<Item = NodeId>) -> (bool, bool) {
        let spot = self.of(node);
        let mut apart = (true, true);
        for other in others.into_iter().map(|n| self.of(n)) {
            apart = (apart.0 && other.rack != spot.rack, apart.1 && other.host != spot.host);
        }
        apart
    }
}

impl Conductor {
    /// Where all nodes stand.
    pub(crate) fn domains(&self) -> Domains {
        let mut racks: BTreeMap<(bool, &str), usize> = BTreeMap::new();
        let mut hosts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut spots = BTreeMap::new();
        for node in self.nodes.values() {
            // A host is no rack, even if it is called like one.
            let rack = if node.rack.is_empty() { (false, node.host.as_str()) } else { (true, node.rack.as_str()) };
            let (next_rack, next_host) = (racks.len(), hosts.len());
            let rack = *racks.entry(rack).or_insert(next_rack);
            let host = *hosts.entry(&node.host).or_insert(next_host);
            spots.insert(node.node, Spot { rack, host });
        }
        Domains(spots)
    }

    /// Nodes that hold copies of a shard that are to stay; two copies on one node are one of them on its way.
    pub(crate) fn staying_nodes(config: &Configuration, leaving: Option<CopyId>) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> =
            config.members.iter().filter(|m| Some(m.copy) != leaving).map(|m| m.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Racks and hosts that one fault in would take two copies of a shard of this volume; one sentence each.
    pub(crate) fn shared_domains(&self, volume: VolumeId) -> Vec<String> {
        let hosts: std::collections::BTreeSet<&str> = self.nodes.values().map(|n| n.host.as_str()).collect();
        let mut racks: BTreeMap<&str, u32> = BTreeMap::new();
        let mut shared_hosts: BTreeMap<&str, u32> = BTreeMap::new();
        for record in self.shards_of(volume) {
            let nodes = Self::staying_nodes(&record.config, record.leaving);
            let nodes: Vec<_> = nodes.iter().filter_map(|n| self.nodes.get(n)).collect();
            for (at, node) in nodes.iter().enumerate() {
                let (before, rack) = (&nodes[..at], node.rack.as_str());
                // The second one says it, not the third again.
                if !rack.is_empty() && before.iter().filter(|n| n.rack == rack).count() == 1 {
                    *racks.entry(rack).or_default() += 1;
                } else if rack.is_empty() && before.iter().filter(|n| n.host == node.host).count() == 1 {
                    *shared_hosts.entry(&node.host).or_default() += 1;
                }
            }
        }
        // On a machine of its own for trying out there is nowhere else to go.
        shared_hosts.retain(|_, _| hosts.len() > 1);
        let racks = racks.into_iter().map(|(rack, n)| (n, format!("rack {rack}"), "racks"));
        let shared_hosts = shared_hosts.into_iter().map(|(host, n)| (n, format!("host {host}"), "hosts"));
        let sentence = |(n, what, kind): (u32, String, &str)| {
            let of = if n == 1 { "1 shard".to_owned() } else { format!("{n} shards") };
            format!(
                "copies of {of} share {what}: a fault there takes both; add nodes in other {kind}, or wait for rebalancing"
            )
        };
        racks.chain(shared_hosts).map(sentence).collect()
    }
}
