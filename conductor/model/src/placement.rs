//! Placement: which disks take a new shard's copies, and which of them is primary.
//!
//! Copies go to different nodes, in different racks and then on different hosts while there are enough (`domains`); the disk with the
//! most free space first, and none that is full: with thin copies it may be the one that is promised least.
//! The primary is where the volume has the fewest, then where there are fewest at all: the primaries of a volume on three
//! nodes differ by one at most. Nothing is random: the same state gives the same placement.

use crate::domains::Domains;
use crate::record::DiskRecord;
use crate::views::{Duty, Fullness};
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
    domains: Domains,
}

#[derive(Debug)]
struct Site {
    node: NodeId,
    disks: Vec<Spot>,
    primaries_of_volume: u32,
    primaries: u32,
}

#[derive(Debug)]
struct Spot {
    place: Place,
    free: Free,
    /// Copies that its store still has places for.
    places: u32,
    gets: Gets,
}

/// What a disk is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gets {
    /// Any copy.
    Any,
    /// None, as it is full.
    NoneAsFull,
    /// Those alone that belong there: it is not there or to go, or its node takes none.
    Bound,
}

impl Spot {
    fn take(&mut self, size: Bytes) -> Place {
        self.free -= Free::from(size.0);
        self.places = self.places.saturating_sub(1);
        self.place.clone()
    }
}

/// Bytes not yet spoken for; negative when a thin disk is promised more than it has.
type Free = i128;

impl Site {
    /// Its best disk: most free space, then lowest id; none where stores have no place for another copy.
    fn best(&self) -> Option<(usize, Free)> {
        let open = self.disks.iter().enumerate().filter(|(_, spot)| spot.gets == Gets::Any && spot.places > 0);
        let disks = open.map(|(at, spot)| (at, spot.free));
        disks.max_by_key(|(at, free)| (*free, std::cmp::Reverse(*at)))
    }

    fn has(&self, gets: Gets) -> bool {
        self.disks.iter().any(|spot| spot.gets == gets)
    }
}

impl Conductor {
    /// A planner over all nodes, of which those that are up and serve take copies, for shards of `volume`.
    pub(crate) fn planner(&self, now: Millis, volume: VolumeId) -> Planner {
        let mut promised: BTreeMap<(NodeId, DiskId), u64> = BTreeMap::new();
        let left = self.places_left();
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
        let usable = |n: NodeId, d: &DiskRecord| d.present && !d.leaving && self.failure_of(n, d.disk).is_none();
        let sites = self.nodes.values().map(|node| {
            let takes = self.is_up(node.node, now) && node.duty == Duty::Serving;
            let disks = node.disks.iter().map(|d| {
                let used = self.used_on(node.node, d.disk);
                let taken = promised.get(&(node.node, d.disk)).copied().unwrap_or(0).max(used.0);
                let place = Place { node: node.node, disk: d.disk, open: d.open, endpoint: d.endpoint };
                let places = left.get(&(node.node, d.disk)).copied().unwrap_or(0);
                let free = Free::from(d.capacity.0) - Free::from(taken);
                let gets = match takes && usable(node.node, d) {
                    true if crate::space::fullness(used, d.capacity) == Fullness::Full => Gets::NoneAsFull,
                    true => Gets::Any,
                    false => Gets::Bound,
                };
                Spot { place, free, places, gets }
            });
            let (of_volume, all) = primaries.get(&node.node).copied().unwrap_or_default();
            Site { node: node.node, disks: disks.collect(), primaries_of_volume: of_volume, primaries: all }
        });
        Planner { sites: sites.collect(), domains: self.domains() }
    }

    /// How many copies more the store of each disk has places for: one that is to be deleted has its own still.
    pub(crate) fn places_left(&self) -> BTreeMap<(NodeId, DiskId), u32> {
        let disks = self.nodes.values().flat_map(|n| n.disks.iter().map(|d| ((n.node, d.disk), d.max_copies)));
        let mut left: BTreeMap<(NodeId, DiskId), u32> = disks.collect();
        let members = self.shards.values().flat_map(|s| &s.config.members).map(|m| (m.node, m.disk));
        for at in members.chain(self.drops.values().map(|d| (d.node, d.disk))) {
            if let Some(left) = left.get_mut(&at) {
                *left = left.saturating_sub(1);
            }
        }
        left
    }
}

impl Planner {
    /// Remembers that a shard went to these places, the primary's first.
    pub(crate) fn take(&mut self, places: Vec<Place>, size: Bytes) -> Result<Vec<Place>, Error> {
        let spots = || self.sites.iter().flat_map(|site| &site.disks);
        let full = |place: &&Place| spots().any(|s| s.place.disk == place.disk && s.places == 0);
        let nodes: Vec<NodeId> = places.iter().filter(full).map(|place| place.node).collect();
        if !nodes.is_empty() {
            return Err(Error::NoPlace { nodes });
        }
        for (at, place) in places.iter().enumerate() {
            let Some(site) = self.sites.iter_mut().find(|site| site.node == place.node) else { continue };
            site.primaries_of_volume += u32::from(at == 0);
            site.primaries += u32::from(at == 0);
            if let Some(spot) = site.disks.iter_mut().find(|spot| spot.place.disk == place.disk) {
                spot.take(size);
            }
        }
        Ok(places)
    }

    /// The place of one more copy, beside those on these nodes that are to stay: in another rack if that is possible, on another host,
    /// then on the disk with the most free space.
    pub(crate) fn place_one(
        &mut self,
        beside: &BTreeSet<NodeId>,
        fits: impl Fn(&Place) -> bool,
        size: Bytes,
    ) -> Option<Place> {
        let domains = &self.domains;
        let disks = self.sites.iter_mut().flat_map(|site| {
            let apart = domains.apart(site.node, beside.iter().copied());
            site.disks.iter_mut().map(move |disk| (apart, disk))
        });
        let fitting = disks.filter(|(_, spot)| spot.gets == Gets::Any && spot.places > 0 && fits(&spot.place));
        let best = fitting.max_by_key(|(apart, spot)| (*apart, spot.free, std::cmp::Reverse(spot.place.disk)));
        Some(best?.1.take(size))
    }

    /// The place of one more copy on this very disk, if its store has one: whether the disk takes copies is not asked.
    pub(crate) fn place_on(&mut self, (node, disk): (NodeId, DiskId), size: Bytes) -> Option<Place> {
        let site = self.sites.iter_mut().find(|site| site.node == node)?;
        let spot = site.disks.iter_mut().find(|spot| spot.place.disk == disk).filter(|spot| spot.places > 0)?;
        Some(spot.take(size))
    }

    /// Places of a shard's copies, the primary's first.
    pub(crate) fn place(&mut self, copies: u8, size: Bytes) -> Result<Vec<Place>, Error> {
        let wanted = usize::from(copies);
        let mut order: Vec<(usize, usize, Free)> =
            self.sites.iter().enumerate().filter_map(|(at, s)| s.best().map(|(disk, free)| (at, disk, free))).collect();
        if order.len() < wanted {
            return Err(self.too_few(copies));
        }
        order.sort_by_key(|(at, _, free)| (std::cmp::Reverse(*free), self.sites[*at].node));

        // One after the other, the farthest from those before it: no other choice has more racks, nor more hosts in them.
        let mut chosen: Vec<(usize, usize)> = Vec::with_capacity(wanted);
        while chosen.len() < wanted {
            let before = || chosen.iter().map(|(at, _)| self.sites[*at].node);
            let left = order.iter().filter(|(at, _, _)| chosen.iter().all(|(other, _)| other != at));
            let far = |at: usize| self.domains.apart(self.sites[at].node, before());
            // The last of equals is the best one: `max_by_key` takes that.
            let best = left.rev().max_by_key(|(at, _, _)| far(*at)).map(|(at, disk, _)| (*at, *disk));
            let Some(best) = best else { break };
            chosen.push(best);
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
            places.push(site.disks[disk].take(size));
        }
        Ok(places)
    }

    /// Why a shard's copies find no places.
    fn too_few(&self, needed: u8) -> Error {
        let (open, others): (Vec<&Site>, Vec<&Site>) = self.sites.iter().partition(|site| site.has(Gets::Any));
        let full = others.into_iter().filter(|site| site.has(Gets::NoneAsFull));
        let full: Vec<NodeId> = full.map(|site| site.node).collect();
        match usize::from(needed) {
            wanted if open.len() >= wanted => {
                let nodes = open.into_iter().filter(|site| site.best().is_none()).map(|site| site.node).collect();
                Error::NoPlace { nodes }
            }
            wanted if open.len() + full.len() >= wanted => Error::DisksFull { nodes: full },
            _ => Error::TooFewNodes { needed, up: open.into_iter().map(|site| site.node).collect() },
        }
    }
}
