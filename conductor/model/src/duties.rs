//! What is wanted of nodes and disks: to serve, to get no new copies, to be emptied, to be forgotten.
//!
//! Wishes, persisted at once; `replacement` acts upon them as far as it can without risking a copy. A node or disk that holds the last
//! copy of something with all its writes is given up only with a sentence that names the volumes that are lost by that.

use crate::events::{Happened, Shards};
use crate::limits::{ALIVE_MS, DEAD_MS, FULL_PERCENT, MAX_COPIES};
use crate::record::{DiskRecord, NodeRecord, VolumeRecord};
use crate::views::{Duty, Force, NodeInfo, VolumeInfo};
use crate::{
    Bytes, Conductor, Configuration, CopyId, CopyState, Dirty, DiskId, Error, Key, Member, Millis, NodeId, ShardId,
    VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};

impl Conductor {
    /// Changes what is wanted of a node.
    pub fn set_duty(
        &mut self,
        now: Millis,
        node: NodeId,
        duty: Duty,
        force: impl Into<Force>,
    ) -> Result<(NodeInfo, Dirty), Error> {
        self.check_trusted()?;
        let force = force.into();
        let mut lost = Vec::new();
        let record = self.nodes.get(&node).ok_or(Error::NoNode(node))?;
        let before = record.duty;
        let on_it = |m: &Member| m.node == node;
        match duty {
            Duty::Serving | Duty::Cordoned => {}
            Duty::Draining => {
                if let Some(why) = self.nowhere_to_go(now, &on_it) {
                    return Err(Error::InUse { what: node.to_string(), why });
                }
            }
            Duty::Removed => {
                if self.is_up(node, now) {
                    let why = match self.silence(node, now) {
                        0..ALIVE_MS => "runs: drain and stop it first".to_owned(),
                        silent => format!(
                            "was heard {} s ago, and counts as running until that is {} s: if it is stopped, try again then",
                            silent / 1000,
                            DEAD_MS / 1000
                        ),
                    };
                    return Err(Error::InUse { what: node.to_string(), why });
                }
                lost = self.check_not_last(now, &node.to_string(), &on_it, &force)?;
                let copies = self.copies_on(&on_it);
                if copies > 0 && !force.force {
                    let why =
                        format!("still has {copies} copies: drain it, or, if it will not come back, pass --force");
                    return Err(Error::InUse { what: node.to_string(), why });
                }
            }
        }
        let mut dirty = Dirty::default();
        if before != duty {
            if let Some(record) = self.nodes.get_mut(&node) {
                record.duty = duty;
            }
            dirty.add(Key::Node(node));
            // A drain that is ended leaves copies that it made and nobody wants.
            self.volumes.keys().for_each(|volume| self.absences.reshape(*volume));
            self.note(Happened::DutyChanged { node, duty }, &mut dirty);
            self.note_lost(lost, &mut dirty);
        }
        let dirty = self.seal(dirty);
        Ok((self.node(now, node)?, dirty))
    }

    /// A disk is to be emptied, and forgotten once its node runs without it.
    pub fn remove_disk(
        &mut self,
        now: Millis,
        disk: DiskId,
        force: impl Into<Force>,
    ) -> Result<(NodeInfo, Dirty), Error> {
        self.check_trusted()?;
        let force = force.into();
        let mut lost = Vec::new();
        let holder = self.nodes.values().find_map(|n| Some((n.node, n.disks.iter().find(|d| d.disk == disk)?)));
        let (node, record) = holder.ok_or(Error::NoDisk(disk))?;
        let (present, leaving) = (record.present && self.is_up(node, now), record.leaving);
        let on_it = |m: &Member| m.node == node && m.disk == disk;
        let what = format!("disk {disk} of {node}");
        match present {
            true => {
                self.check_known(node, disk, force.force)?;
                if let Some(why) = self.nowhere_to_go(now, &on_it) {
                    let others = self.nodes.get(&node).into_iter().flat_map(|n| &n.disks).filter(|d| d.disk != disk);
                    let mut able = others.filter(|new| self.takes_copies(now, node, new.disk));
                    let beside = able.find(|new| self.check_successor(now, node, record, new).is_ok());
                    let way = beside.map(|DiskRecord { disk: beside, .. }| {
                        format!(
                            "; or have another disk of {node} take what is on it: `trine disk replace {disk} {beside}`"
                        )
                    });
                    return Err(Error::InUse { what, why: why + &way.unwrap_or_default() });
                }
            }
            false => {
                lost = self.check_not_last(now, &what, &on_it, &force)?;
                let copies = self.copies_on(&on_it);
                if copies > 0 && !force.force {
                    let why = format!("still has {copies} copies: bring it back, or, if it is lost, pass --force");
                    return Err(Error::InUse { what, why });
                }
            }
        }
        let mut dirty = Dirty::default();
        if !leaving {
            let disks = self.nodes.get_mut(&node).map(|n| &mut n.disks);
            for record in disks.into_iter().flatten().filter(|d| d.disk == disk) {
                record.leaving = true;
            }
            dirty.add(Key::Node(node));
            self.note(Happened::DiskLeaving { node, disk }, &mut dirty);
            self.note_lost(lost, &mut dirty);
        }
        let dirty = self.seal(dirty);
        Ok((self.node(now, node)?, dirty))
    }

    /// A disk that was to be emptied, or replaced, is to stay: what was moved away by then comes back only as disks are evened out.
    pub fn keep_disk(&mut self, now: Millis, disk: DiskId) -> Result<(NodeInfo, Dirty), Error> {
        self.check_trusted()?;
        let holder = self.nodes.values_mut().find_map(|n| Some((n.node, n.disks.iter_mut().find(|d| d.disk == disk)?)));
        let (node, record) = holder.ok_or(Error::NoDisk(disk))?;
        let mut dirty = Dirty::default();
        if record.leaving {
            (record.leaving, record.successor) = (false, None);
            dirty.add(Key::Node(node));
            // It leaves copies that were made for it and nobody wants.
            self.volumes.keys().for_each(|volume| self.absences.reshape(*volume));
            self.note(Happened::DiskStays { node, disk }, &mut dirty);
        }
        let dirty = self.seal(dirty);
        Ok((self.node(now, node)?, dirty))
    }

    /// May a disk's copies be made on a new one of this capacity? Asked before that is added to the node.
    pub fn check_replacement(&self, now: Millis, disk: DiskId, capacity: Bytes) -> Result<NodeInfo, Error> {
        self.check_trusted()?;
        let holder = self.nodes.values().find_map(|n| Some((n.node, n.disks.iter().find(|d| d.disk == disk)?)));
        let (node, old) = holder.ok_or(Error::NoDisk(disk))?;
        self.check_replaceable(now, node, old, capacity)?;
        self.node(now, node)
    }

    /// `room`: what the disk in its place has for them.
    fn check_replaceable(&self, now: Millis, node: NodeId, old: &DiskRecord, room: Bytes) -> Result<(), Error> {
        let (disk, what) = (old.disk, format!("disk {} of {node}", old.disk));
        let on_it: u64 = self
            .shards
            .values()
            .filter(|s| s.config.members.iter().any(|m| (m.node, m.disk) == (node, disk)))
            .map(|s| s.config.size.0)
            .fold(0, u64::saturating_add);
        let used = self.used_on(node, disk).min(Bytes(on_it));
        if used > room {
            let why = format!("has {used} in use, more than the {room} that are left on the new one");
            return Err(Error::InUse { what, why });
        }
        if !old.present {
            self.check_not_last(now, &what, &|m: &Member| m.node == node && m.disk == disk, &Force::default())?;
        }
        Ok(())
    }

    /// May the copies on `old` be made on `new`, another disk of its node?
    fn check_successor(&self, now: Millis, node: NodeId, old: &DiskRecord, new: &DiskRecord) -> Result<(), Error> {
        let (disk, with) = (old.disk, new.disk);
        let in_use = |why: String| Err(Error::InUse { what: format!("disk {disk} of {node}"), why });
        if disk == with || !new.present || new.leaving || !self.is_up(node, now) {
            return in_use(format!("cannot be replaced by {with}, which is not there or is to go itself"));
        }
        if old.present && old.endpoint == new.endpoint {
            return in_use(format!(
                "shares a reactor with {with}, which can hold one copy of a shard at a time: start {node} with more --reactors, or add the new disk with `trine disk add`"
            ));
        }
        let (copies, left) = (self.copies_on(&|m| (m.node, m.disk) == (node, disk)), self.places_left());
        let left = left.get(&(node, with)).map_or(0, |left| *left as usize);
        if copies > left {
            return in_use(format!("has {copies} copies, and {with} has places for {left} more"));
        }
        // An empty one may get as full as the old one was; on others there are copies that grow, too.
        let most = match self.copies_on(&|m| (m.node, m.disk) == (node, with)) {
            0 => new.capacity.0,
            _ => new.capacity.0 / 100 * u64::from(FULL_PERCENT),
        };
        self.check_replaceable(now, node, old, Bytes(most.saturating_sub(self.used_on(node, with).0)))
    }

    /// A disk's copies are to be made on another disk of its node; then it is forgotten.
    pub fn replace_disk(&mut self, now: Millis, disk: DiskId, with: DiskId) -> Result<(NodeInfo, Dirty), Error> {
        self.check_trusted()?;
        let holder = self.nodes.values().find_map(|n| Some((n, n.disks.iter().find(|d| d.disk == disk)?)));
        let (record, old) = holder.ok_or(Error::NoDisk(disk))?;
        let node = record.node;
        let Some(new) = record.disks.iter().find(|d| d.disk == with) else {
            let why = format!("has no disk {with} beside it: add that one to {node} first");
            return Err(Error::InUse { what: format!("disk {disk} of {node}"), why });
        };
        // Asked again, some of it is there already.
        if old.successor != Some(with) {
            self.check_successor(now, node, old, new)?;
        }
        let mut dirty = Dirty::default();
        let disks = self.nodes.get_mut(&node).map(|n| &mut n.disks);
        for record in disks.into_iter().flatten().filter(|d| d.disk == disk) {
            if !record.leaving || record.successor != Some(with) {
                (record.leaving, record.successor) = (true, Some(with));
                dirty.add(Key::Node(node));
            }
        }
        if !dirty.is_empty() {
            self.note(Happened::DiskReplacing { node, disk, with }, &mut dirty);
        }
        let dirty = self.seal(dirty);
        Ok((self.node(now, node)?, dirty))
    }

    /// Changes how many copies a volume has, and how many of them have to acknowledge a write.
    pub fn set_copies(
        &mut self,
        now: Millis,
        name: &str,
        copies: Option<u8>,
        min_copies: Option<u8>,
    ) -> Result<(VolumeInfo, Dirty), Error> {
        self.check_trusted()?;
        let volume = self.volume(name)?.clone();
        let copies = copies.unwrap_or(volume.copies);
        let min_copies = min_copies.unwrap_or(volume.min_copies.min(copies));
        check_copies(copies, min_copies)?;
        let has_relatives = || volume.parent.is_some() || !self.clones_of(volume.id, None).is_empty();
        if copies != volume.copies && has_relatives() {
            let why = "is a clone or has clones: their copies lie together; flatten them first".to_owned();
            return Err(Error::InUse { what: format!("volume {name}"), why });
        }
        if self.creates_snapshot(volume.id) {
            return Err(Error::Busy { name: name.to_owned(), what: "is in the middle of a snapshot" });
        }
        self.check_settled(name, volume.id)?;
        if min_copies > volume.min_copies {
            // An epoch that is sealed by a stricter rule would have no full set.
            let few = self.shards_of(volume.id).find(|s| s.config.in_sync() < usize::from(min_copies));
            if let Some(few) = few {
                let (shard, in_sync) = (few.config.shard, few.config.in_sync());
                let why = format!("{shard} has only {in_sync} copies in sync: wait until there are {min_copies}");
                return Err(Error::InUse { what: format!("volume {name}"), why });
            }
        }
        if min_copies < volume.min_copies {
            self.check_unsealing(now, name, &volume, min_copies)?;
        }
        let mut dirty = Dirty::default();
        if let Some(record) =
            self.volumes.get_mut(&volume.id).filter(|r| (r.copies, r.min_copies) != (copies, min_copies))
        {
            (record.copies, record.min_copies) = (copies, min_copies);
            dirty.add(Key::Volume(volume.id));
            self.note(Happened::CopiesChanged { volume: volume.name.clone(), copies, min_copies }, &mut dirty);
        }
        let configs = self.shards_of(volume.id).map(|s| &s.config).filter(|c| c.min_copies != min_copies);
        let changed: Vec<Configuration> = configs.map(|c| Configuration { min_copies, ..c.clone() }).collect();
        for config in changed {
            self.advance(config, &mut dirty);
        }
        self.absences.reshape(volume.id);
        let dirty = self.seal(dirty);
        Ok((self.show(now, name)?.info, dirty))
    }

    /// Where fewer copies are enough for a sealed shard to go on, they are its full set from then on, and no other copy of the last one may follow any
    /// more (rule 11): so they must be there.
    fn check_unsealing(&self, now: Millis, name: &str, volume: &VolumeRecord, min_copies: u8) -> Result<(), Error> {
        let enough = usize::from(min_copies);
        for config in self.shards_of(volume.id).map(|s| &s.config).filter(|c| c.is_sealed() && c.in_sync() >= enough) {
            let in_sync: Vec<&Member> = config.in_sync_members().collect();
            let copies: Vec<CopyId> = in_sync.iter().map(|m| m.copy).collect();
            if self.well(now, config, &copies) >= enough {
                continue;
            }
            let nodes = |members: Vec<&Member>| members.iter().map(|m| m.node.to_string()).collect::<Vec<_>>();
            let rest = |m: &&Member| config.full_set.contains(&m.copy) && m.state != CopyState::InSync;
            let those = nodes(in_sync).join(" and ");
            let others = nodes(config.members.iter().filter(rest).collect()).join(" or ");
            let why = format!(
                "{} is in sync on {those} alone, which cannot be reached: start {those}, or {others}, which may go on instead; then try again",
                config.shard
            );
            return Err(Error::InUse { what: format!("volume {name}"), why });
        }
        Ok(())
    }

    fn copies_on(&self, on_it: &dyn Fn(&Member) -> bool) -> usize {
        self.shards.values().flat_map(|s| &s.config.members).filter(|m| on_it(m)).count()
    }

    /// Every shard with a copy there has another copy that holds all its writes and was not given up, or it was said in a sentence that it is to be lost.
    /// Returns the shards that are.
    fn check_not_last(
        &self,
        now: Millis,
        what: &str,
        on_it: &dyn Fn(&Member) -> bool,
        force: &Force,
    ) -> Result<Vec<ShardId>, Error> {
        let last = self.shards.values().map(|s| &s.config).filter(|config| {
            let sealed = config.is_sealed();
            let holds_all = |m: &&Member| m.state == CopyState::InSync || (sealed && config.full_set.contains(&m.copy));
            let holders = || config.members.iter().filter(holds_all);
            // Those that were given up before do not count: what is lost in two steps is lost.
            holders().any(on_it) && holders().all(|m| on_it(m) || self.is_given_up(now, m))
        });
        let last: Vec<ShardId> = last.map(|config| config.shard).collect();
        let Some(first) = last.first() else { return Ok(last) };
        let volumes: BTreeSet<VolumeId> = last.iter().map(|shard| shard.volume).collect();
        let names: Vec<&str> = volumes.iter().filter_map(|id| Some(self.volumes.get(id)?.name.as_str())).collect();
        let noun = if names.len() == 1 { "volume" } else { "volumes" };
        let sentence = format!("lose data of {noun} {}", names.join(", "));
        if force.force && force.sentence.as_deref() == Some(&sentence) {
            return Ok(last);
        }
        let of = match last.len() {
            1 => first.to_string(),
            n => format!("{n} shards ({first} first)"),
        };
        let why = format!(
            "holds the last copy of {of} with all its writes: bring it back; or, if what is on it is to be lost, pass --force \"{sentence}\""
        );
        Err(Error::InUse { what: what.to_owned(), why })
    }

    /// Says what was given up, one event for each volume.
    fn note_lost(&mut self, lost: Vec<ShardId>, dirty: &mut Dirty) {
        let mut by_volume: BTreeMap<VolumeId, (ShardId, u32)> = BTreeMap::new();
        for shard in lost {
            by_volume.entry(shard.volume).or_insert((shard, 0)).1 += 1;
        }
        for (id, (first, count)) in by_volume {
            let volume = self.volumes.get(&id).map_or_else(|| id.to_string(), |v| v.name.clone());
            self.note(Happened::DataGivenUp { shards: Shards { volume, first, count } }, dirty);
        }
    }

    /// There is nothing there that nobody knows, or it was said that the rest is to go all the same.
    fn check_known(&self, node: NodeId, disk: DiskId, force: bool) -> Result<(), Error> {
        let strange = self.presence.get(&node).and_then(|p| p.strange.get(&disk));
        match strange.filter(|_| !force) {
            None => Ok(()),
            Some(copies) => Err(Error::InUse {
                what: format!("disk {disk} of {node}"),
                why: format!(
                    "has {copies} copies of volumes that this conductor does not know, which cannot be moved: pass --force to move the others; it is not taken out"
                ),
            }),
        }
    }

    /// Why a copy there cannot be made anew on any other node, if there is such a copy.
    pub(crate) fn nowhere_to_go(&self, now: Millis, on_it: &dyn Fn(&Member) -> bool) -> Option<String> {
        let serving = || self.nodes.values().filter(|n| n.duty == Duty::Serving && self.hears(n.node, now));
        let open: BTreeSet<NodeId> = serving().map(|n| n.node).collect();
        let places = self.places_left();
        let has_place = |n: NodeId, d: DiskId| places.get(&(n, d)).is_some_and(|left| *left > 0);
        let takes = |n: &NodeRecord| {
            n.disks.iter().any(|d| has_place(n.node, d.disk) && self.takes_copies(now, n.node, d.disk))
        };
        let roomy: BTreeSet<NodeId> = serving().filter(|n| takes(n)).map(|n| n.node).collect();
        let there = self.shards.values().map(|s| &s.config).filter(|config| config.members.iter().any(on_it));
        // One that has its copy elsewhere already has only to be filled there.
        let copies = |config: &Configuration| self.volumes.get(&config.shard.volume).map_or(0, |v| v.copies);
        let lasts =
            |config: &&Configuration| config.members.iter().filter(|m| !on_it(m)).count() < usize::from(copies(config));
        there.filter(lasts).find_map(|config| {
            let (shard, taken) = (config.shard, config.members.iter().map(|m| m.node).collect());
            match (open.difference(&taken).next(), roomy.difference(&taken).next()) {
                (_, Some(_)) => None,
                (None, None) => {
                    Some(format!("has a copy of {shard} that no other node can take: add a node, or uncordon one"))
                }
                (Some(node), None) => Some(format!(
                    "has a copy of {shard} that no other node can take, as no disk of {node}, or of another one without a copy of it, has room \
                     (`trine df`) and a place for one copy more: add a disk or a node"
                )),
            }
        })
    }
}

/// How many copies there can be.
pub(crate) fn check_copies(copies: u8, min_copies: u8) -> Result<(), Error> {
    if copies == 0 || copies > MAX_COPIES {
        return Err(Error::Invalid(format!("a volume has 1 to {MAX_COPIES} copies, not {copies}")));
    }
    if min_copies == 0 || min_copies > copies {
        return Err(Error::Invalid(format!("min-copies is 1 to {copies}, not {min_copies}")));
    }
    Ok(())
}
