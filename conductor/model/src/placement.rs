//! Placement: which disks take a new shard's copies, and which of them is primary.
//!
//! Copies go to different nodes, and to different hosts while there are enough; the disk with the most free space first.
//! The primary is where the volume has the fewest, then where there are fewest at all: the primaries of a volume on three
//! nodes differ by one at most. Nothing is random: the same state gives the same placement.

use crate::record::DiskRecord;
use crate::views::Duty;
use crate::{Bytes, Conductor, DiskId, Error, Millis, NodeId, OpenId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Where one copy goes.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) node: NodeId,
    pub(crate) disk: DiskId,
    pub(crate) open: OpenId,
    pub(crate) endpoint: SocketAddr,
}

/// Places one shard after the other, remembering what it gave out.
#[derive(Debug)]
pub(crate) struct Planner {
    sites: Vec<Site>,
}

#[derive(Debug)]
struct Site {
    node: NodeId,
    host: String,
    disks: Vec<(Place, Free)>,
    primaries_of_volume: u32,
    primaries: u32,
}

/// Bytes not yet spoken for; negative when a thin disk is promised more than it has.
type Free = i128;

impl Site {
    /// Its best disk: most free space, then lowest id.
    fn best(&self) -> Option<(usize, Free)> {
        let disks = self.disks.iter().enumerate().map(|(at, (_, free))| (at, *free));
        disks.max_by_key(|(at, free)| (*free, std::cmp::Reverse(*at)))
    }
}

impl Conductor {
    /// A planner over the nodes that are up and take copies, for shards of `volume`.
    pub(crate) fn planner(&self, now: Millis, volume: VolumeId) -> Planner {
        let mut promised: BTreeMap<(NodeId, DiskId), u64> = BTreeMap::new();
        let mut primaries: BTreeMap<NodeId, (u32, u32)> = BTreeMap::new();
        for config in self.shards.values().map(|s| &s.config) {
            for member in &config.members {
                *promised.entry((member.node, member.disk)).or_default() += config.size.0;
            }
            if let Some(primary) = config.primary_member() {
                let (of_volume, all) = primaries.entry(primary.node).or_default();
                *of_volume += u32::from(config.shard.volume == volume);
                *all += 1;
            }
        }
        let up = self.nodes.values().filter(|n| self.is_up(n.node, now) && n.duty == Duty::Serving);
        let usable = |d: &&DiskRecord| d.present && !d.leaving;
        let sites = up.filter(|n| n.disks.iter().any(|d| usable(&d))).map(|node| {
            let disks = node.disks.iter().filter(usable).map(|d| {
                let used = self.presence.get(&node.node).and_then(|p| p.used.get(&d.disk)).map_or(0, |used| used.0);
                let taken = promised.get(&(node.node, d.disk)).copied().unwrap_or(0).max(used);
                let place = Place { node: node.node, disk: d.disk, open: d.open, endpoint: d.endpoint };
                (place, Free::from(d.capacity.0) - Free::from(taken))
            });
            let (of_volume, all) = primaries.get(&node.node).copied().unwrap_or_default();
            Site {
                node: node.node,
                host: node.host.clone(),
                disks: disks.collect(),
                primaries_of_volume: of_volume,
                primaries: all,
            }
        });
        Planner { sites: sites.collect() }
    }
}

impl Planner {
    /// Remembers that a shard went to these places, the primary's first.
    pub(crate) fn take(&mut self, places: Vec<Place>, size: Bytes) -> Vec<Place> {
        for (at, place) in places.iter().enumerate() {
            let Some(site) = self.sites.iter_mut().find(|site| site.node == place.node) else { continue };
            site.primaries_of_volume += u32::from(at == 0);
            site.primaries += u32::from(at == 0);
            if let Some((_, free)) = site.disks.iter_mut().find(|(disk, _)| disk.disk == place.disk) {
                *free -= Free::from(size.0);
            }
        }
        places
    }

    /// The place of one more copy, beside those on the nodes `taken`: on another host if that is possible, then on the disk with the
    /// most free space.
    pub(crate) fn place_one(
        &mut self,
        taken: &BTreeSet<NodeId>,
        fits: impl Fn(&Place) -> bool,
        size: Bytes,
    ) -> Option<Place> {
        let hosts: BTreeSet<String> =
            self.sites.iter().filter(|s| taken.contains(&s.node)).map(|s| s.host.clone()).collect();
        let disks = self.sites.iter_mut().flat_map(|site| {
            let elsewhere = !hosts.contains(&site.host);
            site.disks.iter_mut().map(move |disk| (elsewhere, disk))
        });
        let fitting = disks.filter(|(_, (place, _))| fits(place));
        let best = fitting.max_by_key(|(elsewhere, (place, free))| (*elsewhere, *free, std::cmp::Reverse(place.disk)));
        let (_, (place, free)) = best?;
        *free -= Free::from(size.0);
        Some(place.clone())
    }

    /// Places of a shard's copies, the primary's first.
    pub(crate) fn place(&mut self, copies: u8, size: Bytes) -> Result<Vec<Place>, Error> {
        let wanted = usize::from(copies);
        let mut order: Vec<(usize, usize, Free)> =
            self.sites.iter().enumerate().filter_map(|(at, s)| s.best().map(|(disk, free)| (at, disk, free))).collect();
        if order.len() < wanted {
            return Err(Error::TooFewNodes { needed: copies, up: self.sites.iter().map(|s| s.node).collect() });
        }
        order.sort_by_key(|(at, _, free)| (std::cmp::Reverse(*free), self.sites[*at].node));

        let mut chosen: Vec<(usize, usize)> = Vec::with_capacity(wanted);
        for (at, disk, _) in &order {
            let host = &self.sites[*at].host;
            if chosen.len() < wanted && chosen.iter().all(|(other, _)| self.sites[*other].host != *host) {
                chosen.push((*at, *disk));
            }
        }
        for (at, disk, _) in &order {
            if chosen.len() < wanted && chosen.iter().all(|(other, _)| other != at) {
                chosen.push((*at, *disk));
            }
        }

        let rank = |(at, _): &(usize, usize)| {
            let site = &self.sites[*at];
            (site.primaries_of_volume, site.primaries, site.node)
        };
        let primary = chosen.iter().enumerate().min_by_key(|(_, place)| rank(place)).map_or(0, |(at, _)| at);
        chosen.swap(0, primary);
        let mut places = Vec::with_capacity(wanted);
        for (at, disk) in chosen {
            let site = &mut self.sites[at];
            if places.is_empty() {
                site.primaries_of_volume += 1;
                site.primaries += 1;
            }
            let (place, free) = &mut site.disks[disk];
            *free -= Free::from(size.0);
            places.push(place.clone());
        }
        Ok(places)
    }
}
