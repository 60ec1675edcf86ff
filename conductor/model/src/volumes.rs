//! Volumes: created, grown, renamed, deleted, listed.
//!
//! A new shard begins at epoch 1 with all its copies in sync, because all are empty, and unborn, because none exists yet
//! (`Configuration::born`). A deleted volume's name is free at once; its copies are remembered until each node has
//! confirmed that they are gone.

use crate::error::DETACH;
use crate::events::Happened;
use crate::limits::{
    MAX_COPIES, MAX_DRAWS, MAX_SHARD, MAX_SHARDS, MAX_SHARDS_PER_VOLUME, MAX_VOLUME, MAX_VOLUME_NAME, MAX_VOLUMES,
    MIN_SHARD, MIN_VOLUME,
};
use crate::record::{DropRecord, ShardRecord, VolumeRecord};
use crate::views::{NewVolume, VolumeDetail, VolumeInfo, VolumeState};
use crate::{
    AttachGeneration, BLOCK, Bytes, Commit, Conductor, Configuration, CopyId, CopyState, Dirty, Draw, Epoch, Error,
    Key, Member, Millis, NodeId, ShardId, ShardIndex, VolumeId,
};
use std::collections::BTreeSet;

/// Whether a volume may have this name: `[a-z0-9][a-z0-9._-]{0,63}`.
pub fn check_volume_name(name: &str) -> Result<(), Error> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let first = name.bytes().next().is_some_and(plain);
    let rest = name.bytes().all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'));
    if first && rest && name.len() <= MAX_VOLUME_NAME {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_VOLUME_NAME).collect();
    Err(Error::Invalid(format!(
        "{shown:?} is no volume name: 1 to {MAX_VOLUME_NAME} of a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
    )))
}

/// Whether a snapshot may have this name: the rule for volumes.
pub fn check_snapshot_name(name: &str) -> Result<(), Error> {
    check_volume_name(name).map_err(|_| {
        let shown: String = name.chars().take(MAX_VOLUME_NAME).collect();
        Error::Invalid(format!(
            "{shown:?} is no snapshot name: 1 to {MAX_VOLUME_NAME} of a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
        ))
    })
}

impl Conductor {
    /// Creates a volume and places its shards.
    pub fn create(&mut self, now: Millis, new: &NewVolume, draw: &mut dyn Draw) -> Result<(VolumeInfo, Dirty), Error> {
        self.check_trusted()?;
        check_volume_name(&new.name)?;
        let origin = self.origin(new)?;
        let size = origin.filter(|_| new.size.0 == 0).map_or(new.size, |o| o.size);
        let shard_size = origin.map_or(new.shard_size, |o| o.shard_size);
        let copies = origin.map_or(new.copies, |o| o.copies);
        let min_copies = origin.map_or(new.min_copies, |o| new.min_copies.min(o.copies));
        let new = &NewVolume { size, shard_size, copies, min_copies, ..new.clone() };
        check_shape(new)?;
        check_size(new.size, new.shard_size)?;
        if self.names.contains_key(&new.name) {
            return Err(Error::VolumeExists(new.name.clone()));
        }
        if self.volumes.len() >= MAX_VOLUMES || self.meta.next_volume.0 == u32::MAX {
            return Err(Error::Limit { what: "volumes", limit: MAX_VOLUMES });
        }
        let id = self.meta.next_volume;
        let at = self.next_commit();
        let volume = VolumeRecord {
            id,
            name: new.name.clone(),
            size: new.size,
            shard_size: new.shard_size,
            copies: new.copies,
            min_copies: new.min_copies,
            created: now,
            state: VolumeState::Active,
            attach: AttachGeneration(0),
            attach_at: Commit(0),
            attachment: None,
            readers: Vec::new(),
            durability: new.durability,
            parent: origin.map(|o| o.parent),
            rollback: None,
            cancelled: None,
            given_up_at: Commit(0),
            taken_at: Commit(0),
            evicted: BTreeSet::new(),
            held_since: Commit(0),
        };
        let shards = self.new_shards(now, &volume, 0, at, draw)?;

        let mut dirty = Dirty::default();
        self.meta.next_volume = VolumeId(id.0 + 1);
        self.names.insert(new.name.clone(), id);
        self.volumes.insert(id, volume.clone());
        dirty.add(Key::Volume(id));
        self.add_shards(shards, &mut dirty);
        // A clone begins with its parent's copies, of which some may be too many by now.
        self.absences.reshape(id);
        self.note(Happened::VolumeCreated { volume: new.name.clone(), size: new.size }, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.volume_info(now, &volume), dirty))
    }

    /// Grows a volume: its last shard by a new epoch up to the shard size, then by more shards.
    pub fn resize(
        &mut self,
        now: Millis,
        name: &str,
        size: Bytes,
        draw: &mut dyn Draw,
    ) -> Result<(VolumeInfo, Dirty), Error> {
        self.check_trusted()?;
        let before = self.volume(name)?.clone();
        check_size(size, before.shard_size)?;
        if before.rollback.is_some() {
            return Err(Error::Busy { name: name.to_owned(), what: "is being rolled back" });
        }
        if self.creates_snapshot(before.id) {
            return Err(Error::Busy { name: name.to_owned(), what: "is in the middle of a snapshot" });
        }
        if size < before.size {
            return Err(Error::Shrink { name: name.to_owned(), size: before.size, asked: size });
        }
        if size == before.size {
            return Ok((self.volume_info(now, &before), Dirty::default()));
        }
        let volume = VolumeRecord { size, ..before };
        let last = self.shards_of(volume.id).last().cloned();
        let had = last.as_ref().map_or(0, |s| s.config.shard.index.0 + 1);
        let grown = last.map(|s| (s.distrusted, Configuration { size: shard_size(&volume, had - 1), ..s.config }));
        let grown =
            grown.filter(|(_, config)| self.shards.get(&config.shard).is_some_and(|s| s.config.size != config.size));
        if let Some((Some(why), config)) = &grown {
            return Err(Error::Distrusted { shard: config.shard, why: why.clone() });
        }
        let at = self.next_commit();
        let shards = self.new_shards(now, &volume, had, at, draw)?;

        let mut dirty = Dirty::default();
        self.volumes.insert(volume.id, volume.clone());
        dirty.add(Key::Volume(volume.id));
        if let Some((_, config)) = grown {
            self.advance(config, &mut dirty);
        }
        self.add_shards(shards, &mut dirty);
        self.note(Happened::VolumeResized { volume: name.to_owned(), size }, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.volume_info(now, &volume), dirty))
    }

    /// Gives a volume another name. Whoever has it attached asks for it by the one that it has: nobody may; nor, but by force, may anybody be heard
    /// to read a snapshot of it.
    pub fn rename(&mut self, now: Millis, name: &str, new: &str, force: bool) -> Result<(VolumeInfo, Dirty), Error> {
        self.check_trusted()?;
        check_volume_name(new)?;
        let before = self.volume(name)?;
        let id = before.id;
        if let Some(holder) = before.holder() {
            return Err(Error::Attached { name: name.to_owned(), holder, way_out: DETACH });
        }
        if self.names.contains_key(new) {
            return Err(Error::VolumeExists(new.to_owned()));
        }
        // They ask for it by its name.
        if let Some(reader) = self.snapshot_reader(now, id).filter(|_| !force) {
            let why = format!(
                "has readers: {reader}, and its requests would fail, as that is not there any more; detach it and try again some seconds \
                 later, or pass --force"
            );
            return Err(Error::InUse { what: format!("volume {name}"), why });
        }
        let volume = VolumeRecord { name: new.to_owned(), ..before.clone() };
        let mut dirty = Dirty::default();
        self.names.remove(name);
        self.names.insert(new.to_owned(), id);
        self.volumes.insert(id, volume.clone());
        dirty.add(Key::Volume(id));
        self.note(Happened::VolumeRenamed { volume: name.to_owned(), new: new.to_owned() }, &mut dirty);
        let dirty = self.seal(dirty);
        Ok((self.volume_info(now, &volume), dirty))
    }

    /// Deletes a volume with all its data and snapshots; an attached one only by force, one that a clone needs not at all.
    pub fn delete(&mut self, name: &str, force: bool) -> Result<((), Dirty), Error> {
        self.check_trusted()?;
        let volume = self.volume(name)?;
        let id = volume.id;
        if let Some(holder) = volume.holder().filter(|_| !force) {
            let way_out = "--force deletes it all the same";
            return Err(Error::Attached { name: name.to_owned(), holder, way_out });
        }
        self.check_not_needed(&format!("volume {name}"), id, None)?;
        // Who has it still, all the same, is to hear that it is gone, and not to wait for it.
        let next = volume.holder().map(|_| self.next_generation(volume));
        let at = self.next_commit();
        let mut dirty = Dirty::default();
        self.close_orders(id, None, &mut dirty);
        self.remove_snapshots(id, &mut dirty);
        self.remove_work(id, &mut dirty);
        self.remove_copy_ranges(id, &mut dirty);
        self.remove_scrub(id, &mut dirty);
        let configs: Vec<Configuration> = self.shards_of(id).map(|s| s.config.clone()).collect();
        for config in configs {
            self.shards.remove(&config.shard);
            self.primaries.leave(&config);
            dirty.add(Key::Shard(config.shard));
            for Member { node, copy, disk, .. } in config.members {
                let shard = Some(config.shard.index);
                let drop = DropRecord { node, copy, disk, volume: id, shard, dropped_at: at };
                self.drops.insert((node, copy), drop);
                dirty.add(Key::Drop(node, copy));
                self.tell(node, at);
            }
        }
        self.names.remove(name);
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.state = VolumeState::Deleting;
            if let Some(next) = next {
                (volume.attach, volume.attach_at) = (next, at);
            }
            volume.attachment = None;
            volume.readers.clear();
            (volume.rollback, volume.cancelled) = (None, None);
        }
        dirty.add(Key::Volume(id));
        self.note(Happened::VolumeDeleted { volume: name.to_owned() }, &mut dirty);
        Ok(((), self.seal(dirty)))
    }

    /// All volumes, those being deleted included.
    pub fn list(&self, now: Millis) -> Vec<VolumeInfo> {
        self.volumes.values().map(|volume| self.volume_info(now, volume)).collect()
    }

    /// One volume with its shards.
    pub fn show(&self, now: Millis, name: &str) -> Result<VolumeDetail, Error> {
        let volume = self.volume(name)?;
        let shards = self.shards_of(volume.id).map(|s| self.with_endpoints(&s.config)).collect();
        Ok(VolumeDetail { info: self.volume_info(now, volume), shards })
    }

    pub(crate) fn volume(&self, name: &str) -> Result<&VolumeRecord, Error> {
        let found = self.names.get(name).and_then(|id| self.volumes.get(id));
        found.ok_or_else(|| Error::NoVolume(name.chars().take(MAX_VOLUME_NAME).collect()))
    }

    /// Nodes that have a copy of the volume.
    pub(crate) fn nodes_of(&self, volume: VolumeId) -> BTreeSet<NodeId> {
        self.shards_of(volume).flat_map(|s| s.config.members.iter().map(|m| m.node)).collect()
    }

    /// The shards that `volume` needs beyond its first `had`, placed.
    fn new_shards(
        &self,
        now: Millis,
        volume: &VolumeRecord,
        had: u32,
        at: Commit,
        draw: &mut dyn Draw,
    ) -> Result<Vec<ShardRecord>, Error> {
        let count = u32::try_from(volume.size.0.div_ceil(volume.shard_size.0)).unwrap_or(u32::MAX);
        let waiting = self.drops.len() / usize::from(MAX_COPIES);
        if self.shards.len() + waiting + (count.saturating_sub(had) as usize) > MAX_SHARDS {
            return Err(Error::Limit { what: "shards in the cluster", limit: MAX_SHARDS });
        }
        let mut planner = self.planner(now, volume.id);
        let mut taken: BTreeSet<CopyId> = self.drops.keys().map(|(_, copy)| *copy).collect();
        taken.extend(self.shards.values().flat_map(|s| s.config.members.iter().map(|m| m.copy)));
        let mut shards = Vec::new();
        for index in had..count {
            let size = shard_size(volume, index);
            let mut members = Vec::with_capacity(usize::from(volume.copies));
            let beside = self.place_beside_parent(now, volume, index)?;
            let (places, parent) = match beside {
                Some((places, parent)) => (planner.take(places, size)?, Some(parent)),
                None => (planner.place(volume.copies, size)?, None),
            };
            for place in places {
                members.push(Member {
                    copy: fresh_copy(volume.id, &mut taken, draw)?,
                    node: place.node,
                    disk: place.disk,
                    open: place.open,
                    state: CopyState::InSync,
                    since: Epoch(0),
                    past: false,
                    endpoint: place.endpoint,
                });
            }
            // `check_shape` wants at least one copy, and the planner gives all or none; the primary's place comes first.
            let Some(primary) = members.first().map(|m| m.copy) else { continue };
            let config = Configuration {
                shard: ShardId { volume: volume.id, index: ShardIndex(index) },
                epoch: Epoch(1),
                primary,
                full_set: members.iter().map(|m| m.copy).collect(),
                members,
                min_copies: volume.min_copies,
                attach: volume.floor(),
                size,
                born: false,
                durability: volume.durability,
                parent,
                card: (index == 0).then(|| Box::new(self.card_of(volume, at))),
                cache: Commit(0),
            };
            shards.push(ShardRecord {
                config,
                changed_at: at,
                distrusted: None,
                former: BTreeSet::new(),
                leaving: None,
                held: BTreeSet::new(),
            });
        }
        Ok(shards)
    }

    fn add_shards(&mut self, shards: Vec<ShardRecord>, dirty: &mut Dirty) {
        for record in shards {
            let shard = record.config.shard;
            // Every member: a node that gets its first copy of an attached volume must know its generation.
            for member in &record.config.members {
                self.tell(member.node, record.changed_at);
            }
            self.primaries.enter(&record.config);
            self.shards.insert(shard, record);
            dirty.add(Key::Shard(shard));
        }
    }
}

fn shard_size(volume: &VolumeRecord, index: u32) -> Bytes {
    let start = u64::from(index) * volume.shard_size.0;
    Bytes(volume.size.0.saturating_sub(start).min(volume.shard_size.0))
}

pub(crate) fn fresh_copy(volume: VolumeId, taken: &mut BTreeSet<CopyId>, draw: &mut dyn Draw) -> Result<CopyId, Error> {
    for _ in 0..MAX_DRAWS {
        let copy = CopyId(draw.draw());
        if copy.0 != 0 && taken.insert(copy) {
            return Ok(copy);
        }
    }
    Err(Error::BadDraw(volume))
}

fn check_shape(new: &NewVolume) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid(what));
    crate::duties::check_copies(new.copies, new.min_copies)?;
    let shard = new.shard_size;
    if shard < MIN_SHARD || shard > MAX_SHARD || !shard.0.is_power_of_two() {
        return invalid(format!("a shard size is a power of two from {MIN_SHARD} to {MAX_SHARD}, not {shard}"));
    }
    Ok(())
}

fn check_size(size: Bytes, shard_size: Bytes) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid(what));
    if size < MIN_VOLUME || size > MAX_VOLUME {
        return invalid(format!("a volume has {MIN_VOLUME} to {MAX_VOLUME}, not {size}"));
    }
    if !size.is_block_aligned() {
        return invalid(format!("a volume's size is a multiple of {BLOCK}, not {size}"));
    }
    if size.0.div_ceil(shard_size.0) > MAX_SHARDS_PER_VOLUME {
        return invalid(format!("{size} in shards of {shard_size} makes more than {MAX_SHARDS_PER_VOLUME} shards"));
    }
    Ok(())
}
