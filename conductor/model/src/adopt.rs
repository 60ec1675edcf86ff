//! Going on after doubt: what nodes hold and what this state says become one (rule 12).
//!
//! ```text
//! reports of all nodes ─► newest configuration of each shard ─► are all copies that it names accounted for?
//!        ▲                                                        │ no: heard of later, or left out by name
//!        └──────────────── a newer one appears ◄──────────────────┤
//!                                                                 └ yes, everywhere, and told so ─► a new epoch for every shard
//! ```
//! A copy is accounted for when a disk said that it has it. One that need not exist (absent, being filled, or not born) is also when its
//! disk was heard of without it. Then no epoch that acknowledged anything can be unknown: it would have been joined by one of these. But
//! for a shard that is not born as far as they know: copies that were given up before it was, others have followed since, of whom none of
//! these need know. While a disk that is known has not been heard of, that takes a sentence, too.
//! Epochs, commits, ids and generations go on far above everything that was heard: a granted epoch that nobody joined yet, or an
//! attachment that nobody saw, is not given out twice.

mod going_on;

use crate::card::{SnapshotCard, VolumeCard};
use crate::doubt::Heard;
use crate::limits::{MAX_MISSING_SHOWN, MAX_READERS_PER_VOLUME, MAX_VOLUME_NAME};
use crate::record::{ParentRecord, SnapshotRecord, VolumeRecord};
use crate::views::{
    Adopt, Attachment, Missing, Reader, RecoveredVolume, RecoveryInfo, SnapshotState, UnknownVolume, VolumeState,
};
use crate::{
    AttachGeneration, Bytes, Commit, Conductor, Configuration, CopyId, CopyState, Dirty, DiskId, Error, Member, Millis,
    NodeId, ShardId, ShardIndex, SnapshotId, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};

/// What is lost, as the operator says.
#[derive(Default)]
struct LeftOut {
    copies: BTreeSet<CopyId>,
    disks: BTreeSet<DiskId>,
    nodes: BTreeSet<NodeId>,
}

impl LeftOut {
    fn parse(names: &[String]) -> Result<Self, Error> {
        let mut all = Self::default();
        for name in names {
            if let Ok(copy) = name.parse() {
                all.copies.insert(copy);
            } else if let Ok(disk) = name.parse() {
                all.disks.insert(disk);
            } else if let Some(Ok(node)) = name.strip_prefix('n').map(str::parse) {
                all.nodes.insert(NodeId(node));
            } else {
                let what = "is no copy (c…), disk (d…) or node (n…)";
                return Err(Error::Invalid(format!("{name:?} {what}: `trine conductor adopt --dry-run` names them")));
            }
        }
        Ok(all)
    }

    fn has(&self, member: &Member) -> bool {
        self.copies.contains(&member.copy) || self.disks.contains(&member.disk) || self.nodes.contains(&member.node)
    }
}

/// What one copy of a newest configuration is found to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A disk has it.
    Here,
    /// Its disk does not have it, and need not.
    NotMade,
    /// Its disk was heard of, and has it no more although it should.
    Gone,
    /// Nothing was heard of its disk.
    Unheard,
}

/// A volume as it will be.
struct VolumePlan {
    record: VolumeRecord,
    snapshots: BTreeMap<SnapshotId, SnapshotRecord>,
    /// The newest configuration of each shard, and what follows it; `None`: nobody is left who could, it stays as it is.
    shards: Vec<(Configuration, Option<Configuration>)>,
    notes: Vec<String>,
}

/// Everything as it will be, and what is in the way.
#[derive(Default)]
struct Plan {
    volumes: BTreeMap<VolumeId, VolumePlan>,
    missing: Vec<(Member, String, String)>,
    /// Volumes that may lose something, and what.
    risks: BTreeMap<String, String>,
    deleted: BTreeMap<VolumeId, String>,
    unknown: BTreeMap<VolumeId, BTreeMap<NodeId, u32>>,
}

/// What was heard, turned around.
struct Reports {
    newest: BTreeMap<VolumeId, BTreeMap<ShardIndex, Configuration>>,
    cards: BTreeMap<VolumeId, VolumeCard>,
    copies: BTreeMap<CopyId, (NodeId, DiskId, Configuration)>,
    /// Volumes of which there is any copy.
    held: BTreeSet<VolumeId>,
    disks: BTreeSet<DiskId>,
    /// Disks that this state, or somebody who was heard of, knows, and that were not heard of; and whose they are.
    unheard: BTreeMap<DiskId, NodeId>,
    attach: BTreeMap<VolumeId, AttachGeneration>,
    /// The newest generation that ended all before it, as configurations carry it.
    floors: BTreeMap<VolumeId, AttachGeneration>,
    /// Who was heard to use a volume, under which generation, and whether only to read.
    clients: BTreeMap<VolumeId, BTreeSet<(AttachGeneration, String, How)>>,
}

impl Conductor {
    /// How the doubt stands; `None` if there is none.
    pub fn recovery(&self) -> Option<RecoveryInfo> {
        self.meta.recovery.as_ref()?;
        Some(self.recovery_info(&self.plan(&LeftOut::default())))
    }

    /// Goes on with what was heard. A dry run, and a refusal, changes nothing.
    pub fn adopt(&mut self, now: Millis, ask: &Adopt) -> Result<(RecoveryInfo, Dirty), Error> {
        if self.meta.recovery.is_none() {
            return Err(Error::NotInDoubt);
        }
        self.forget_early_words(now);
        let left_out = LeftOut::parse(&ask.without)?;
        self.check_left_out(&left_out)?;
        let plan = self.plan(&left_out);
        let mut info = self.recovery_info(&plan);
        if ask.dry_run {
            return Ok((info, Dirty::default()));
        }
        if let Some(left) = self.unsettled_for(now) {
            let why = format!("the doubt has just begun, and nodes are asked again: try again in {left} s");
            return Err(Error::NotReady(why));
        }
        if self.heard.is_empty() || !info.missing.is_empty() {
            return Err(Error::NotReady(info.next));
        }
        if let Some(sentence) = info.sentence.as_ref().filter(|sentence| ask.force.as_ref() != Some(sentence)) {
            let risks = info.risks.join("; ");
            return Err(Error::NotReady(format!(
                "{risks}. Bring back what is missing, or pass --force \"{sentence}\""
            )));
        }
        let mut next = self.clone();
        let dirty = next.go_on(now, plan, &left_out);
        // What could not be read at the next start is not written: nodes' words, and a backup, may not fit each other.
        if let Err(why) = next.check() {
            return Err(Error::NotReady(format!(
                "{why}. Nothing is changed, I/O goes on: make the state anew, `trine conductor recover`, from another backup or from the nodes"
            )));
        }
        *self = next;
        info.adopted = true;
        info.next = match self.keys.len() {
            0 => "nothing: `trine status` says how the volumes are".to_owned(),
            keys => format!(
                "{keys} keys of clients hold as they did then: one that was removed since is to be removed again, see `trine client list`; \
                 `trine status` says how the volumes are"
            ),
        };
        Ok((info, dirty))
    }

    /// What was heard of is not lost.
    fn check_left_out(&self, left_out: &LeftOut) -> Result<(), Error> {
        for (node, heard) in &self.heard {
            let disks = heard.disks.keys().any(|disk| left_out.disks.contains(disk));
            if disks || left_out.nodes.contains(node) {
                return Err(Error::Invalid(format!("{node} was heard of with its disks: it is not lost")));
            }
            let copies = heard.disks.values().flatten().map(|(copy, _)| copy);
            if let Some(copy) = copies.into_iter().find(|copy| left_out.copies.contains(copy)) {
                return Err(Error::Invalid(format!("{copy} was heard of, on {node}: it is not lost")));
            }
        }
        Ok(())
    }

    fn reports(&self) -> Reports {
        let mut all = Reports {
            newest: BTreeMap::new(),
            cards: BTreeMap::new(),
            copies: BTreeMap::new(),
            held: BTreeSet::new(),
            disks: BTreeSet::new(),
            unheard: self.nodes.iter().flat_map(|(id, node)| node.disks.iter().map(|d| (d.disk, *id))).collect(),
            attach: BTreeMap::new(),
            floors: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        for (node, Heard { disks, attached, .. }) in &self.heard {
            for holding in attached {
                let newest = all.attach.entry(holding.volume).or_default();
                *newest = holding.generation.max(*newest);
                let how = if holding.shared {
                    How::Shared
                } else if holding.read_only {
                    How::Reads
                } else {
                    How::Alone
                };
                let client = (holding.generation, holding.client.clone(), how);
                all.clients.entry(holding.volume).or_default().insert(client);
            }
            for (disk, copies) in disks {
                all.disks.insert(*disk);
                for (copy, config) in copies {
                    all.copies.insert(*copy, (*node, *disk, config.clone()));
                    all.unheard.extend(config.members.iter().map(|m| (m.disk, m.node)));
                    let volume = config.shard.volume;
                    all.held.insert(volume);
                    for known in [&mut all.attach, &mut all.floors] {
                        let newest = known.entry(volume).or_default();
                        *newest = config.attach.max(*newest);
                    }
                    if let Some(card) = &config.card {
                        let here = all.cards.entry(volume).or_insert_with(|| (**card).clone());
                        if card.version > here.version {
                            here.clone_from(card);
                        }
                    }
                    let newest = all.newest.entry(volume).or_default();
                    take_newer(newest.entry(config.shard.index).or_insert_with(|| config.clone()), config);
                }
            }
        }
        all.unheard.retain(|disk, _| !all.disks.contains(disk));
        // Of the same epoch what a node acted upon counts, whatever this state says.
        for record in self.shards.values() {
            let ShardId { volume, index } = record.config.shard;
            let newest = all.newest.entry(volume).or_default();
            take_newer(newest.entry(index).or_insert_with(|| record.config.clone()), &record.config);
        }
        all
    }

    fn plan(&self, left_out: &LeftOut) -> Plan {
        let all = self.reports();
        let mut plan = Plan::default();
        let mut names: BTreeSet<String> = BTreeSet::new();
        for (id, shards) in &all.newest {
            let record = self.volumes.get(id);
            if record.is_some_and(|v| v.state == VolumeState::Deleting) {
                continue;
            }
            let all_heard = shards.values().flat_map(|c| &c.members).all(|m| all.disks.contains(&m.disk));
            if let Some(gone) = record.filter(|_| !all.held.contains(id) && all_heard)
                && shards.values().all(|c| c.born)
            {
                // Had all copies moved, nobody who was heard of would know either.
                let name = gone.name.clone();
                let risk = format!(
                    "nothing of volume {name} is on any disk that was heard of: it was deleted since, or moved to nodes that were not heard of"
                );
                plan.risks.entry(name.clone()).or_insert(risk);
                plan.deleted.insert(*id, name);
                continue;
            }
            let known = self.known_as(*id, record, shards, &all, &mut names);
            let name = known.as_ref().map_or_else(|| id.to_string(), |v| v.record.name.clone());
            let Some(mut volume) = known else {
                let risk =
                    format!("of volume {id} there are copies, but none of its first shard, which knows its name");
                plan.risks.insert(name, risk);
                plan.keep_unknown(*id, &all);
                continue;
            };
            for config in shards.values() {
                let next = plan.follow(config, &name, &all, left_out);
                volume.shards.push((config.clone(), next));
            }
            let count = volume.record.size.0.div_ceil(volume.record.shard_size.0.max(1));
            // Of a growing that was cut short, a later shard may be there, and an earlier one not.
            let last = shards.keys().next_back().map_or(0, |last| u64::from(last.0) + 1);
            if (shards.len() as u64) < count.max(last) {
                let lacking = (0..).map(ShardIndex).find(|index| !shards.contains_key(index)).unwrap_or_default();
                let shard = ShardId { volume: *id, index: lacking };
                let risk = format!("no copy of {shard} of volume {name} was heard of: the volume is set aside");
                plan.risks.insert(name, risk);
                plan.keep_unknown(*id, &all);
                continue;
            }
            volume.fit_sizes();
            plan.volumes.insert(*id, volume);
        }
        plan.keep_families(&all);
        plan
    }

    /// The volume as its card or this state says it, whichever is newer; `None` if neither knows it.
    fn known_as(
        &self,
        id: VolumeId,
        record: Option<&VolumeRecord>,
        shards: &BTreeMap<ShardIndex, Configuration>,
        all: &Reports,
        names: &mut BTreeSet<String>,
    ) -> Option<VolumePlan> {
        let past = self.meta.recovery.as_ref().map_or(Commit(0), |recovery| recovery.past);
        let card = all.cards.get(&id).filter(|card| record.is_none() || card.version > past);
        let mut notes = Vec::new();
        let mut snapshots: BTreeMap<SnapshotId, SnapshotRecord> =
            self.snapshots_of(id).map(|s| (s.id, s.clone())).collect();
        let mut volume = match (record, card) {
            (Some(record), _) => record.clone(),
            (None, Some(card)) => new_record(id, card, shards),
            (None, None) => return None,
        };
        if let Some(card) = card {
            volume.name.clone_from(&card.name);
            (volume.size, volume.copies) = (card.size, card.copies);
            volume.parent = card.parent.map(|(volume, snapshot)| ParentRecord { volume, snapshot, flattening: false });
            if !card.more {
                // Deleted since; what is left of them on disks goes with the volume.
                snapshots
                    .retain(|id, s| s.state != SnapshotState::Complete || card.snapshots.iter().any(|c| c.id == *id));
            } else {
                // Those that the card has no room for are older than all that it names.
                let oldest = card.snapshots.iter().map(|c| c.id).min();
                let named = |id: &SnapshotId| card.snapshots.iter().any(|c| c.id == *id);
                snapshots.retain(|id, s| s.state != SnapshotState::Complete || Some(*id) < oldest || named(id));
                if record.is_none() {
                    notes.push("of its snapshots only the newest are known: a card has no room for more".to_owned());
                }
            }
            // A name that was given again is the newer one's.
            let renewed = |s: &SnapshotRecord| card.snapshots.iter().any(|c| c.id != s.id && c.name == s.name);
            snapshots.retain(|_, s| s.state == SnapshotState::Deleting || !renewed(s));
            snapshots.extend(card.snapshots.iter().map(|s| (s.id, snapshot_record(id, s))));
        }
        if let Some(first) = shards.values().next_back() {
            volume.min_copies = first.min_copies.min(volume.copies);
        }
        // A rollback or a copy may have ended since, and been written over: it is not begun again.
        if let Some(rollback) = volume.rollback.take() {
            let name =
                snapshots.get(&rollback.snapshot).map_or_else(|| rollback.snapshot.to_string(), |s| s.name.clone());
            notes.push(format!("it was being rolled back to {name}: if that was not over, roll it back again"));
        }
        let newest = all.attach.get(&id).copied().unwrap_or_default();
        if newest > volume.attach || volume.holder().is_none() {
            let since = self.meta.recovery.as_ref().map_or(Millis(0), |recovery| recovery.since);
            let floor = all.floors.get(&id).copied().unwrap_or_default();
            (volume.attachment, volume.readers) = holders(all.clients.get(&id), floor, newest, since);
            volume.attach = newest.max(volume.attach);
        } else {
            // Who had it when this was written may have lost it since, and nobody else be there to say so.
            let heard = all.clients.get(&id);
            let alive = |client: &str, generation| {
                heard.is_some_and(|all| all.iter().any(|(g, name, _)| *g == generation && name == client))
            };
            let never = AttachGeneration(u64::MAX);
            let attach = volume.attach;
            for held in volume.attachment.iter_mut().filter(|held| !alive(&held.client, attach)) {
                held.first = never;
            }
            for reader in volume.readers.iter_mut().filter(|reader| !alive(&reader.client, reader.generation)) {
                reader.first = never;
            }
        }
        if !names.insert(volume.name.clone()) {
            let ending = format!("-{id}");
            let kept: String = volume.name.chars().take(MAX_VOLUME_NAME - ending.len()).collect();
            notes.push(format!("its name {} is another volume's", volume.name));
            volume.name = kept + &ending;
            names.insert(volume.name.clone());
        }
        Some(VolumePlan { record: volume, snapshots, shards: Vec::new(), notes })
    }

    fn recovery_info(&self, plan: &Plan) -> RecoveryInfo {
        let (since, why) = self.meta.recovery.as_ref().map(|r| (r.since, r.why.clone())).unwrap_or_default();
        let blocked: BTreeSet<CopyId> = plan.missing.iter().map(|(member, ..)| member.copy).collect();
        let ready = |config: &Configuration| config.members.iter().all(|m| !blocked.contains(&m.copy));
        let volumes = plan.volumes.iter().map(|(id, v)| RecoveredVolume {
            id: *id,
            name: v.record.name.clone(),
            shards: count(v.shards.len()),
            ready: count(v.shards.iter().filter(|(c, _)| ready(c)).count()),
            snapshots: count(v.snapshots.values().filter(|s| s.state == SnapshotState::Complete).count()),
            notes: v.notes.clone(),
        });
        let mut missing: BTreeMap<(NodeId, DiskId, String, String), (u32, CopyId)> = BTreeMap::new();
        for (member, volume, why) in &plan.missing {
            let key = (member.node, member.disk, volume.clone(), why.clone());
            missing.entry(key).or_insert((0, member.copy)).0 += 1;
        }
        let missing: Vec<Missing> = missing
            .into_iter()
            .take(MAX_MISSING_SHOWN)
            .map(|((node, disk, volume, why), (copies, first))| Missing { node, disk, volume, copies, first, why })
            .collect();
        let names: Vec<&str> = plan.risks.keys().map(String::as_str).collect();
        let sentence = (!names.is_empty()).then(|| format!("I accept that {} may have lost writes", names.join(", ")));
        let next = match (missing.first(), &sentence) {
            _ if self.heard.is_empty() => "no node was heard of: start the nodes, or wait until they come".to_owned(),
            (Some(m), _) => {
                format!("{} copies of volume {} on disk {} of {}: {}", m.copies, m.volume, m.disk, m.node, m.why)
            }
            (None, Some(sentence)) => {
                format!("bring back what is missing, or `trine conductor adopt --force \"{sentence}\"`")
            }
            (None, None) => "`trine conductor adopt`, once all nodes that there are have been heard of".to_owned(),
        };
        RecoveryInfo {
            cluster: self.meta.cluster,
            since,
            why,
            heard: self.heard.keys().copied().collect(),
            volumes: volumes.collect(),
            missing,
            risks: plan.risks.values().cloned().collect(),
            sentence,
            deleted: plan.deleted.values().cloned().collect(),
            unknown: plan
                .unknown
                .iter()
                .map(|(id, nodes)| UnknownVolume {
                    id: *id,
                    copies: nodes.values().sum(),
                    nodes: nodes.keys().copied().collect(),
                })
                .collect(),
            next,
            adopted: false,
        }
    }
}

impl Plan {
    /// What follows the newest configuration of a shard; takes note of what is in the way.
    fn follow(
        &mut self,
        newest: &Configuration,
        volume: &str,
        all: &Reports,
        left_out: &LeftOut,
    ) -> Option<Configuration> {
        let sealed = newest.is_sealed();
        let needed = |m: &Member| m.state == CopyState::InSync || (sealed && newest.full_set.contains(&m.copy));
        // Of those that are left out: all, and those that held everything.
        let (mut left, mut lost) = (0, 0);
        let mut here = BTreeSet::new();
        for member in &newest.members {
            let holds = needed(member);
            match found(member, holds && newest.born, all) {
                Found::Here => {
                    here.insert(member.copy);
                }
                Found::NotMade => {
                    here.extend((holds && !newest.born).then_some(member.copy));
                }
                Found::Gone | Found::Unheard if left_out.has(member) => {
                    left += 1;
                    // One that was being filled may have been in sync since.
                    lost += usize::from(holds || member.state == CopyState::Syncing);
                }
                Found::Gone => {
                    let why = format!("its disk does not hold it any more: leave it out, --without {}", member.copy);
                    self.missing.push((member.clone(), volume.to_owned(), why));
                }
                // Everybody named counts, whatever as: the one that is not heard of may know a newer epoch.
                Found::Unheard => {
                    let why =
                        format!("not heard of: start {}, or, if it is lost, --without {}", member.node, member.disk);
                    self.missing.push((member.clone(), volume.to_owned(), why));
                }
            }
        }
        let in_sync = |m: &Member| m.state == CopyState::InSync && here.contains(&m.copy);
        let mut holders: BTreeSet<CopyId> = newest.members.iter().filter(|m| in_sync(m)).map(|m| m.copy).collect();
        if holders.is_empty() {
            // Nothing was acknowledged since the last full set (rule 11).
            holders = newest.members.iter().filter(|m| needed(m) && here.contains(&m.copy)).map(|m| m.copy).collect();
        }
        if lost > 0 && holders.is_empty() {
            let risk =
                format!("every copy with all writes of {} of volume {volume} is left out: it stays lost", newest.shard);
            self.risks.entry(volume.to_owned()).or_insert(risk);
        } else if lost > 0 {
            // One of them that held everything may have gone on without those that were heard of, and have filled the others that are
            // left out. How many copies it needed for that nobody knows who did not follow it: min-copies may have been lowered.
            let what = match left {
                1 => format!("the copy of {} of volume {volume} that is left out", newest.shard),
                _ => format!("the {left} copies of {} of volume {volume} that are left out", newest.shard),
            };
            let risk = format!("{what} may have gone on without the others");
            self.risks.entry(volume.to_owned()).or_insert(risk);
        }
        if let Some((disk, node)) = all.unheard.first_key_value().filter(|_| !newest.born) {
            let shard = newest.shard;
            let risk = format!(
                "{shard} of volume {volume} was being created when its nodes heard of it last: disk {disk} of {node}, which was not heard of, may have \
                 it since, with what was written"
            );
            self.risks.entry(volume.to_owned()).or_insert(risk);
        }
        let first = *holders.first()?;
        let mut next = newest.clone();
        next.members.retain(|m| here.contains(&m.copy) || !left_out.has(m));
        for member in &mut next.members {
            member.state = if holders.contains(&member.copy) { CopyState::InSync } else { CopyState::Absent };
        }
        next.primary = if holders.contains(&newest.primary) { newest.primary } else { first };
        next.full_set.retain(|copy| next.members.iter().any(|m| m.copy == *copy));
        next.full_set.extend(holders.iter().filter(|copy| !newest.full_set.contains(copy)));
        Some(next)
    }

    /// Its copies stay where they are.
    fn keep_unknown(&mut self, volume: VolumeId, all: &Reports) {
        for (node, _, config) in all.copies.values() {
            if config.shard.volume == volume {
                *self.unknown.entry(volume).or_default().entry(*node).or_default() += 1;
            }
        }
    }

    /// A clone needs its parent: with its snapshot, if only by number.
    fn keep_families(&mut self, all: &Reports) {
        let parents: Vec<_> = self.volumes.iter().filter_map(|(id, v)| Some((*id, v.record.parent?))).collect();
        for (clone, parent) in parents {
            if let Some(volume) = self.volumes.get_mut(&parent.volume) {
                let (id, size, created) = (parent.snapshot, volume.record.size, volume.record.created);
                let unnamed = SnapshotCard { id, name: id.to_string(), size, created };
                let record = volume.snapshots.entry(id).or_insert_with(|| snapshot_record(parent.volume, &unnamed));
                record.state = SnapshotState::Complete;
            } else if let Some(volume) = self.volumes.remove(&clone) {
                let name = volume.record.name;
                let risk =
                    format!("volume {name} is a clone of {}, which is not known: it is set aside", parent.volume);
                self.risks.insert(name, risk);
                self.keep_unknown(clone, all);
            }
        }
        for volume in self.volumes.values_mut() {
            let of = volume.record.parent.map(|p| (p.volume, p.snapshot));
            for config in volume.shards.iter_mut().flat_map(|(now, next)| std::iter::once(now).chain(next)) {
                config.parent = config.parent.filter(|p| Some((p.shard.volume, p.snapshot)) == of);
            }
        }
    }
}

impl VolumePlan {
    /// Shards are as large as their volume says, and the volume as its shards say, whichever is more: growing may have been cut short.
    fn fit_sizes(&mut self) {
        let shard_size = self.record.shard_size.0;
        let end = |c: &Configuration| u64::from(c.shard.index.0) * shard_size + c.size.0;
        let most = self.shards.iter().map(|(now, next)| end(next.as_ref().unwrap_or(now))).max().unwrap_or(0);
        self.record.size = Bytes(self.record.size.0.max(most));
        let size = self.record.size.0;
        for config in self.shards.iter_mut().flat_map(|(now, next)| std::iter::once(now).chain(next)) {
            let start = u64::from(config.shard.index.0) * shard_size;
            config.size = Bytes(size.saturating_sub(start).min(shard_size));
        }
    }
}

fn found(member: &Member, must_exist: bool, all: &Reports) -> Found {
    match all.copies.contains_key(&member.copy) {
        true => Found::Here,
        false if !all.disks.contains(&member.disk) => Found::Unheard,
        false if must_exist => Found::Gone,
        false => Found::NotMade,
    }
}

fn new_record(id: VolumeId, card: &VolumeCard, shards: &BTreeMap<ShardIndex, Configuration>) -> VolumeRecord {
    VolumeRecord {
        id,
        name: card.name.clone(),
        size: card.size,
        shard_size: card.shard_size,
        copies: card.copies,
        min_copies: card.copies,
        created: card.created,
        state: VolumeState::Active,
        attach: AttachGeneration(0),
        attach_at: Commit(0),
        attachment: None,
        readers: Vec::new(),
        held_since: Commit(0),
        durability: shards.values().next().map(|c| c.durability).unwrap_or_default(),
        parent: None,
        rollback: None,
        cancelled: None,
        given_up_at: Commit(0),
        taken_at: Commit(0),
        evicted: BTreeSet::new(),
    }
}

/// How a client has a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum How {
    Alone,
    Reads,
    Shared,
}

/// Who has a volume whose newest generation this is: its writer, or the readers that are above the floor.
fn holders(
    heard: Option<&BTreeSet<(AttachGeneration, String, How)>>,
    floor: AttachGeneration,
    newest: AttachGeneration,
    since: Millis,
) -> (Option<Attachment>, Vec<Reader>) {
    let (mut writer, mut readers) = (None, Vec::<Reader>::new());
    for (generation, client, how) in heard.into_iter().flatten().filter(|(g, ..)| *g >= floor) {
        let (generation, client, host) = (*generation, client.clone(), String::new());
        // Whoever has it in another way ends all before it; one that has attached again is there once.
        let shared = *how == How::Shared;
        readers.retain(|reader| *how != How::Alone && reader.shared == shared && reader.client != client);
        if *how != How::Alone {
            readers.push(Reader { client, host, generation, shared, since, first: generation });
        } else if generation == newest {
            writer = Some(Attachment { client, host, since, first: generation });
        }
    }
    // Of a newer one nobody has heard: it may be a writer's.
    if writer.is_some() || readers.last().is_none_or(|reader| reader.generation < newest) {
        readers.clear();
    }
    let too_many = readers.len().saturating_sub(MAX_READERS_PER_VOLUME);
    (writer, readers.split_off(too_many))
}

fn snapshot_record(volume: VolumeId, card: &SnapshotCard) -> SnapshotRecord {
    SnapshotRecord {
        id: card.id,
        volume,
        name: card.name.clone(),
        size: card.size,
        created: card.created,
        state: SnapshotState::Complete,
        asked: card.id,
        attempt: 1,
    }
}

/// The newer configuration of a shard. Stores do not keep its cache generation: it never goes back.
fn take_newer(here: &mut Configuration, other: &Configuration) {
    let cache = other.cache.max(here.cache);
    if other.epoch > here.epoch {
        here.clone_from(other);
    }
    here.cache = cache;
}

/// All of these are bounded far below 32 bits (`limits`).
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
