//! What is wanted of nodes and disks: to serve, to get no new copies, to be emptied, to be forgotten.
//!
//! Wishes, persisted at once; `replacement` acts upon them as far as it can without risking a copy. A node or disk that holds the last
//! copy of something with all its writes is never given up.

use crate::events::Happened;
use crate::limits::{DEAD_MS, MAX_COPIES};
use crate::views::{Duty, NodeInfo, VolumeInfo};
use crate::{Conductor, Configuration, CopyState, Dirty, DiskId, Error, Key, Member, Millis, NodeId};
use std::collections::BTreeSet;

impl Conductor {
    /// Changes what is wanted of a node.
    pub fn set_duty(&mut self, now: Millis, node: NodeId, duty: Duty, force: bool) -> Result<(NodeInfo, Dirty), Error> {
        let record = self.nodes.get(&node).ok_or(Error::NoNode(node))?;
        let before = record.duty;
        let on_it = |m: &Member| m.node == node;
        match duty {
            Duty::Serving | Duty::Cordoned => {}
            Duty::Draining => self.check_places(now, &format!("{node}"), &on_it)?,
            Duty::Removed => {
                if self.silence(node, now) <= DEAD_MS && self.is_up(node, now) {
                    return Err(Error::InUse {
                        what: node.to_string(),
                        why: "runs: drain and stop it first".to_owned(),
                    });
                }
                self.check_not_last(&node.to_string(), &on_it)?;
                let copies = self.copies_on(&on_it);
                if copies > 0 && !force {
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
            self.note(Happened::DutyChanged { node, duty }, &mut dirty);
        }
        let dirty = self.seal(dirty);
        Ok((self.node(now, node)?, dirty))
    }

    /// A disk is to be emptied, and forgotten once its node runs without it.
    pub fn remove_disk(&mut self, now: Millis, disk: DiskId, force: bool) -> Result<(NodeInfo, Dirty), Error> {
        let holder = self.nodes.values().find_map(|n| Some((n.node, n.disks.iter().find(|d| d.disk == disk)?)));
        let (node, record) = holder.ok_or(Error::NoDisk(disk))?;
        let (present, leaving) = (record.present && self.is_up(node, now), record.leaving);
        let on_it = |m: &Member| m.node == node && m.disk == disk;
        let what = format!("disk {disk} of {node}");
        match present {
            true => self.check_places(now, &what, &on_it)?,
            false => {
                self.check_not_last(&what, &on_it)?;
                let copies = self.copies_on(&on_it);
                if copies > 0 && !force {
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
        let volume = self.volume(name)?.clone();
        let copies = copies.unwrap_or(volume.copies);
        let min_copies = min_copies.unwrap_or(volume.min_copies.min(copies));
        check_copies(copies, min_copies)?;
        if volume.parent.is_some() || !self.clones_of(volume.id, None).is_empty() {
            let what = "is a clone or has clones: their copies lie together; flatten them first";
            return Err(Error::Busy { name: name.to_owned(), what });
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

    fn copies_on(&self, on_it: &dyn Fn(&Member) -> bool) -> usize {
        self.shards.values().flat_map(|s| &s.config.members).filter(|m| on_it(m)).count()
    }

    /// Every shard with a copy there has another copy that holds all its writes.
    fn check_not_last(&self, what: &str, on_it: &dyn Fn(&Member) -> bool) -> Result<(), Error> {
        let last = self.shards.values().map(|s| &s.config).filter(|config| {
            let sealed = config.is_sealed();
            let holds_all = |m: &&Member| m.state == CopyState::InSync || (sealed && config.full_set.contains(&m.copy));
            let mut holders = config.members.iter().filter(holds_all);
            holders.all(on_it)
        });
        let mut last = last.map(|config| config.shard);
        match last.next() {
            None => Ok(()),
            Some(first) => {
                let more = last.count();
                let why = format!(
                    "holds the last copy of {first} with all its writes, and of {more} shards more: bring it back"
                );
                Err(Error::InUse { what: what.to_owned(), why })
            }
        }
    }

    /// For every shard with a copy there is a node that can take one.
    fn check_places(&self, now: Millis, what: &str, on_it: &dyn Fn(&Member) -> bool) -> Result<(), Error> {
        let open: BTreeSet<NodeId> = self.nodes.values().filter(|n| n.duty == Duty::Serving).map(|n| n.node).collect();
        let open: BTreeSet<NodeId> = open.into_iter().filter(|n| self.hears(*n, now)).collect();
        let stuck = self.shards.values().map(|s| &s.config).filter(|config| config.members.iter().any(on_it));
        let mut stuck = stuck.filter(|config| {
            let taken: BTreeSet<NodeId> = config.members.iter().map(|m| m.node).collect();
            open.difference(&taken).next().is_none()
        });
        match stuck.next() {
            None => Ok(()),
            Some(config) => {
                let shard = config.shard;
                let why = format!("has a copy of {shard} that no other node can take: add a node, or uncordon one");
                Err(Error::InUse { what: what.to_owned(), why })
            }
        }
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
