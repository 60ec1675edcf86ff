//! The conductor's state, how it becomes records and how it is built from them again.
//!
//! Every command checks first and changes last: an error leaves the state as it was. What a command changed it returns as
//! `Dirty`; until those records are durable nobody may be told its answer. Commands live in the files named for them.

use crate::doubt::Heard;
use crate::events::Log;
use crate::limits::{
    ALIVE_MS, DEAD_MS, GENERATION_LEAP, MAX_CLIENT_KEYS, MAX_COPIES, MAX_EVENTS, MAX_NODES, MAX_READERS_PER_VOLUME,
    MAX_SHARDS, MAX_VOLUMES,
};
use crate::orders::Orders;
use crate::promotion::{Attention, Primaries};
use crate::rebalance::Balance;
use crate::record::{
    ClientKeyRecord, CopyRangeRecord, DropRecord, Meta, NodeRecord, ScrubRecord, ShardRecord, SnapshotRecord,
    VolumeRecord, WorkRecord,
};
use crate::replacement::Absences;
use crate::snapshots::Attempts;
use crate::views::{RefusedNode, Settings, VolumeState};
use crate::{
    Bytes, ClusterId, Commit, Configuration, CopyId, CopyState, Dirty, DiskId, Key, Member, Millis, NodeId, OrderId,
    Record, ShardId, ShardIndex, SnapshotId, VolumeId, api,
};
use std::collections::{BTreeMap, BTreeSet};

/// Where random numbers come from: the operating system, or a simulator's seed.
pub trait Draw {
    /// A number that has not been seen before, in all likelihood.
    fn draw(&mut self) -> u64;
}

impl<F: FnMut() -> u64> Draw for F {
    fn draw(&mut self) -> u64 {
        self()
    }
}

/// Records that no conductor wrote like this. The file was damaged, or mixed from two.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the conductor's records contradict each other: {0}")]
pub struct Corrupt(pub String);

/// Everything the cluster agrees on.
#[derive(Clone, Debug)]
pub struct Conductor {
    // As persisted.
    pub(crate) meta: Meta,
    pub(crate) nodes: BTreeMap<NodeId, NodeRecord>,
    pub(crate) volumes: BTreeMap<VolumeId, VolumeRecord>,
    pub(crate) shards: BTreeMap<ShardId, ShardRecord>,
    pub(crate) drops: BTreeMap<(NodeId, CopyId), DropRecord>,
    pub(crate) snapshots: BTreeMap<(VolumeId, SnapshotId), SnapshotRecord>,
    pub(crate) work: BTreeMap<(NodeId, api::CopyWork), WorkRecord>,
    pub(crate) copy_ranges: BTreeMap<OrderId, CopyRangeRecord>,
    pub(crate) scrubs: BTreeMap<VolumeId, ScrubRecord>,
    pub(crate) keys: BTreeMap<u64, ClientKeyRecord>,
    pub(crate) log: Log,
    // Derived from that.
    pub(crate) names: BTreeMap<String, VolumeId>,
    pub(crate) primaries: Primaries,
    /// The newest transaction that changed what a node has to know.
    pub(crate) news: BTreeMap<NodeId, Commit>,
    // Of this process only.
    pub(crate) presence: BTreeMap<NodeId, Presence>,
    /// Nodes of other clusters, and when each asked last to be taken.
    pub(crate) refused: BTreeMap<NodeId, (Millis, RefusedNode)>,
    pub(crate) started: Millis,
    /// Attach generations of this process begin here.
    pub(crate) first_generation: u64,
    pub(crate) attention: Attention,
    /// Since when, as far as this process is concerned, the state is in doubt, if it is.
    pub(crate) doubting: Millis,
    /// What nodes have said of themselves, while this state is in doubt (rule 12).
    pub(crate) heard: BTreeMap<NodeId, Heard>,
    /// Volumes whose card may be outdated.
    pub(crate) stale_cards: BTreeSet<VolumeId>,
    pub(crate) absences: Absences,
    pub(crate) balance: Balance,
    pub(crate) orders: Orders,
    pub(crate) attempts: Attempts,
    pub(crate) scrub_every: Option<u64>,
}

/// What a node's messages to this process have said.
#[derive(Clone, Default, Debug)]
pub(crate) struct Presence {
    pub(crate) heard: Option<Millis>,
    pub(crate) acted: Commit,
    pub(crate) used: BTreeMap<DiskId, Bytes>,
    pub(crate) troubles: Vec<api::Trouble>,
    pub(crate) copies: BTreeMap<CopyId, Bytes>,
    pub(crate) filling: Vec<api::Filling>,
    pub(crate) integrity: BTreeMap<DiskId, api::DiskIntegrity>,
    /// Disks that failed, and how.
    pub(crate) failed: BTreeMap<DiskId, String>,
    /// Clients' sessions there, and when it told of them.
    pub(crate) sessions: (Millis, Vec<api::NodeSession>),
    /// On each disk, copies of volumes that this state does not know, if there are any.
    pub(crate) strange: BTreeMap<DiskId, usize>,
}

impl Conductor {
    /// An empty cluster.
    pub fn new(cluster: ClusterId, now: Millis) -> (Self, Dirty) {
        let meta = first_meta(cluster, VolumeId(1));
        let mut new = Self::empty(meta, now);
        let mut dirty = Dirty::default();
        dirty.add(Key::Meta);
        let dirty = new.seal(dirty);
        (new, dirty)
    }

    /// The state that wrote these records. Liveness starts anew: no node is dead before it had time to be heard.
    pub fn restore(records: impl IntoIterator<Item = Record>, now: Millis) -> Result<Self, Corrupt> {
        let mut meta = None;
        let mut state = Self::empty(first_meta(ClusterId(0), VolumeId(0)), now);
        state.first_generation = now.0.min(GENERATION_LEAP - 1);
        for record in records {
            let key = record.key();
            let repeated = match record {
                Record::Meta(m) => meta.replace(m).is_some(),
                Record::Node(n) => state.nodes.insert(n.node, n).is_some(),
                Record::Volume(v) => state.volumes.insert(v.id, v).is_some(),
                Record::Shard(s) => state.shards.insert(s.config.shard, s).is_some(),
                Record::Drop(d) => state.drops.insert((d.node, d.copy), d).is_some(),
                Record::Snapshot(s) => state.snapshots.insert((s.volume, s.id), s).is_some(),
                Record::Work(w) => state.work.insert((w.node, w.work), w).is_some(),
                Record::CopyRange(c) => state.copy_ranges.insert(c.id, c).is_some(),
                Record::Scrub(s) => state.scrubs.insert(s.volume, s).is_some(),
                Record::ClientKey(k) => state.keys.insert(k.serial, k).is_some(),
                Record::Event(e) => state.log.kept.insert(e.number, e).is_some(),
            };
            if repeated {
                return Err(Corrupt(format!("two records {key}")));
            }
        }
        state.meta = meta.ok_or_else(|| Corrupt("the cluster's own record is missing".to_owned()))?;
        state.check()?;
        state.derive();
        state.stale_cards = state.volumes.keys().copied().collect();
        Ok(state)
    }

    /// All records.
    pub fn snapshot(&self) -> Vec<Record> {
        let meta = std::iter::once(Record::Meta(self.meta.clone()));
        meta.chain(self.nodes.values().cloned().map(Record::Node))
            .chain(self.volumes.values().cloned().map(Record::Volume))
            .chain(self.shards.values().cloned().map(Record::Shard))
            .chain(self.drops.values().cloned().map(Record::Drop))
            .chain(self.snapshots.values().cloned().map(Record::Snapshot))
            .chain(self.work.values().cloned().map(Record::Work))
            .chain(self.copy_ranges.values().cloned().map(Record::CopyRange))
            .chain(self.scrubs.values().cloned().map(Record::Scrub))
            .chain(self.keys.values().cloned().map(Record::ClientKey))
            .chain(self.log.kept.values().cloned().map(Record::Event))
            .collect()
    }

    /// The record under a key; `None` if there is none (any more).
    pub fn record(&self, key: Key) -> Option<Record> {
        match key {
            Key::Meta => Some(Record::Meta(self.meta.clone())),
            Key::Node(node) => self.nodes.get(&node).cloned().map(Record::Node),
            Key::Volume(volume) => self.volumes.get(&volume).cloned().map(Record::Volume),
            Key::Shard(shard) => self.shards.get(&shard).cloned().map(Record::Shard),
            Key::Drop(node, copy) => self.drops.get(&(node, copy)).cloned().map(Record::Drop),
            Key::Snapshot(volume, id) => self.snapshots.get(&(volume, id)).cloned().map(Record::Snapshot),
            Key::Work(node, work) => self.work.get(&(node, work)).cloned().map(Record::Work),
            Key::CopyRange(job) => self.copy_ranges.get(&job).cloned().map(Record::CopyRange),
            Key::Scrub(volume) => self.scrubs.get(&volume).cloned().map(Record::Scrub),
            Key::ClientKey(serial) => self.keys.get(&serial).cloned().map(Record::ClientKey),
            Key::Event(number) => self.log.kept.get(&number).cloned().map(Record::Event),
        }
    }

    /// How many transactions there were.
    pub fn commit(&self) -> Commit {
        self.meta.commit
    }

    /// The cluster's name.
    pub fn cluster(&self) -> ClusterId {
        self.meta.cluster
    }

    /// A shard's configuration with today's endpoints.
    pub fn configuration(&self, shard: ShardId) -> Option<Configuration> {
        self.shards.get(&shard).map(|record| self.with_endpoints(&record.config))
    }

    fn empty(meta: Meta, started: Millis) -> Self {
        let seed = meta.cluster.0 ^ started.0;
        Self {
            meta,
            nodes: BTreeMap::new(),
            volumes: BTreeMap::new(),
            shards: BTreeMap::new(),
            drops: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            work: BTreeMap::new(),
            copy_ranges: BTreeMap::new(),
            scrubs: BTreeMap::new(),
            keys: BTreeMap::new(),
            log: Log::default(),
            names: BTreeMap::new(),
            primaries: Primaries::default(),
            news: BTreeMap::new(),
            presence: BTreeMap::new(),
            refused: BTreeMap::new(),
            started,
            first_generation: 0,
            attention: Attention::from(started),
            doubting: started,
            heard: BTreeMap::new(),
            stale_cards: BTreeSet::new(),
            absences: Absences::new(started, seed),
            balance: Balance::new(started),
            orders: Orders::default(),
            attempts: Attempts::default(),
            scrub_every: None,
        }
    }

    /// The number of the transaction that the running command will be, if it changes anything.
    pub(crate) fn next_commit(&self) -> Commit {
        Commit(self.meta.commit.0 + 1)
    }

    /// Ends a command: what changed anything is one transaction.
    pub(crate) fn seal(&mut self, mut dirty: Dirty) -> Dirty {
        if !dirty.is_empty() {
            self.meta.commit = self.next_commit();
            dirty.add(Key::Meta);
            self.suspect_cards(&dirty);
            self.write_events(&mut dirty);
        }
        dirty
    }

    /// Notes that a node has something new to hear.
    pub(crate) fn tell(&mut self, node: NodeId, at: Commit) {
        let newest = self.news.entry(node).or_default();
        *newest = at.max(*newest);
    }

    pub(crate) fn shards_of(&self, volume: VolumeId) -> impl Iterator<Item = &ShardRecord> {
        let first = ShardId { volume, index: ShardIndex(0) };
        let last = ShardId { volume, index: ShardIndex(u32::MAX) };
        self.shards.range(first..=last).map(|(_, shard)| shard)
    }

    pub(crate) fn with_endpoints(&self, config: &Configuration) -> Configuration {
        let mut config = config.clone();
        for member in &mut config.members {
            if let Some(disk) = self.disk(member.node, member.disk) {
                member.endpoint = disk.endpoint;
            }
        }
        config
    }

    pub(crate) fn disk(&self, node: NodeId, disk: DiskId) -> Option<&crate::record::DiskRecord> {
        self.nodes.get(&node)?.disks.iter().find(|d| d.disk == disk)
    }

    /// Milliseconds since a node was heard, or since this process started.
    pub(crate) fn silence(&self, node: NodeId, now: Millis) -> u64 {
        now.since(self.presence.get(&node).and_then(|p| p.heard).unwrap_or(self.started))
    }

    /// True as long as this process is too young to have heard of a node that is well: it knows nothing of it.
    pub(crate) fn is_unheard(&self, node: NodeId, now: Millis) -> bool {
        self.presence.get(&node).is_none_or(|p| p.heard.is_none()) && now.since(self.started) < ALIVE_MS
    }

    /// True if a copy may be placed there: heard by this process, and not dead.
    pub(crate) fn is_up(&self, node: NodeId, now: Millis) -> bool {
        self.presence.get(&node).is_some_and(|p| p.heard.is_some()) && self.silence(node, now) <= DEAD_MS
    }

    pub(crate) fn derive(&mut self) {
        self.names =
            self.volumes.values().filter(|v| v.state == VolumeState::Active).map(|v| (v.name.clone(), v.id)).collect();
        self.volumes.keys().for_each(|volume| self.absences.reshape(*volume));
        self.primaries = Primaries::default();
        for shard in self.shards.values() {
            self.primaries.enter(&shard.config);
        }
        // Whom the last transactions were news for is not kept: who has not acted upon the newest is told once.
        let all: Vec<NodeId> = self.nodes.keys().copied().collect();
        all.into_iter().for_each(|node| self.tell(node, self.meta.commit));
    }

    /// The newest transaction that changed anything in a shard's configuration, endpoints included.
    pub(crate) fn assignment_at(&self, shard: &ShardRecord) -> Commit {
        let endpoints = shard.config.members.iter().filter_map(|m| self.disk(m.node, m.disk)).map(|d| d.endpoint_at);
        endpoints.fold(shard.changed_at, Commit::max)
    }

    /// What holds in every state. Checked when records are read, and after each command in the tests.
    pub fn check(&self) -> Result<(), Corrupt> {
        let require = |holds: bool, what: &dyn Fn() -> String| if holds { Ok(()) } else { Err(Corrupt(what())) };
        require(self.nodes.len() <= MAX_NODES, &|| "too many nodes".to_owned())?;
        require(self.volumes.len() <= MAX_VOLUMES, &|| "too many volumes".to_owned())?;
        require(self.shards.len() <= MAX_SHARDS, &|| "too many shards".to_owned())?;
        let mut names = BTreeSet::new();
        let mut disks = BTreeSet::new();
        let mut copies = BTreeSet::new();
        for node in self.nodes.values() {
            for disk in node.disks.iter().filter(|d| d.present) {
                require(disks.insert(disk.disk), &|| format!("disk {} is in two places", disk.disk))?;
            }
        }
        for volume in self.volumes.values() {
            let shards = self.shards_of(volume.id).count() as u64;
            let expected = match volume.state {
                VolumeState::Active => volume.size.0.div_ceil(volume.shard_size.0.max(1)),
                VolumeState::Deleting => 0,
            };
            require(shards == expected, &|| format!("{} has {shards} shards, not {expected}", volume.id))?;
            require(volume.id < self.meta.next_volume, &|| format!("{} was never given out", volume.id))?;
            require(volume.attach_at <= self.meta.commit, &|| format!("{} is from the future", volume.id))?;
            let apart = volume.attachment.is_none() || volume.readers.is_empty();
            require(apart, &|| format!("{} is written and shared at once", volume.id))?;
            let readers: BTreeSet<&str> = volume.readers.iter().map(|reader| reader.client.as_str()).collect();
            let known = volume.readers.iter().all(|reader| reader.generation <= volume.attach);
            let alike = volume.readers.windows(2).all(|pair| pair[0].shared == pair[1].shared);
            let bounded = readers.len() == volume.readers.len() && readers.len() <= MAX_READERS_PER_VOLUME;
            let bounded = bounded && volume.evicted.len() <= MAX_READERS_PER_VOLUME;
            require(known && alike && bounded, &|| format!("the readers of {} cannot be", volume.id))?;
            let deleting = volume.state == VolumeState::Deleting;
            require(deleting || names.insert(&volume.name), &|| format!("two volumes {}", volume.name))?;
        }
        for record in self.shards.values() {
            let config = &record.config;
            let shard = config.shard;
            let volume = self.volumes.get(&shard.volume);
            let volume = volume.ok_or_else(|| Corrupt(format!("{shard} belongs to no volume")))?;
            let nodes: BTreeSet<NodeId> = config.members.iter().map(|m| m.node).collect();
            let disks: BTreeSet<(NodeId, DiskId)> = config.members.iter().map(|m| (m.node, m.disk)).collect();
            let (copies_listed, most) = (config.members.len(), usize::from(MAX_COPIES) + 1);
            require(copies_listed <= most, &|| format!("{shard} has too many copies"))?;
            require(disks.len() == copies_listed, &|| format!("{shard} has two copies on one disk"))?;
            // A copy on its way from one disk of a node to another.
            let beside = copies_listed - nodes.len();
            require(beside <= 1, &|| format!("{shard} has too many copies on one node"))?;
            let leaves = record.leaving.is_none_or(|copy| config.member(copy).is_some());
            require(leaves, &|| format!("{shard} waits for a copy that it does not have"))?;
            check_members(config)?;
            require(config.epoch.0 > 0, &|| format!("{shard} has no epoch"))?;
            require(config.attach <= volume.attach, &|| format!("{shard} is attached before its volume"))?;
            require(record.changed_at <= self.meta.commit, &|| format!("{shard} is from the future"))?;
            let start = u64::from(shard.index.0) * volume.shard_size.0;
            let size = volume.size.0.saturating_sub(start).min(volume.shard_size.0);
            require(config.size.0 == size, &|| format!("{shard} has {} of {size} B", config.size))?;
            for member in &config.members {
                require(copies.insert(member.copy), &|| format!("{} is listed twice", member.copy))?;
                let disk = self.disk(member.node, member.disk);
                require(disk.is_some(), &|| format!("{} is on an unknown disk", member.copy))?;
            }
        }
        for drop in self.drops.values() {
            require(copies.insert(drop.copy), &|| format!("{} is both listed and deleted", drop.copy))?;
            require(self.volumes.contains_key(&drop.volume), &|| format!("{} is deleted for no volume", drop.copy))?;
        }
        require(self.keys.len() <= MAX_CLIENT_KEYS, &|| "too many keys of clients".to_owned())?;
        let mut names = BTreeSet::new();
        // A former one is older than the one that came in its place.
        for key in self.keys.values().rev() {
            require(key.serial <= self.meta.last_key, &|| format!("key {} was never given out", key.name))?;
            let once = names.insert(&key.name) == key.until.is_none();
            require(once, &|| format!("two keys {}, or a former one without another in its place", key.name))?;
            let sound = !key.volumes.is_empty() && key.volumes.iter().all(|id| *id < self.meta.next_volume);
            require(sound, &|| format!("key {} is for volumes that never were", key.name))?;
        }
        require(self.meta.keys_at <= self.meta.commit, &|| "keys are from the future".to_owned())?;
        let (written, kept) = (self.meta.next_event.saturating_sub(1), self.log.kept.len() as u64);
        // Each adoption leaves a gap.
        let sound =
            if self.meta.adoptions == 0 { kept == written.min(MAX_EVENTS as u64) } else { kept <= MAX_EVENTS as u64 };
        require(sound, &|| format!("{kept} events are kept of {written}"))?;
        let newest = self.log.kept.keys().next_back().copied().unwrap_or(0);
        require(newest == written, &|| format!("the newest event is {newest}, not {written}"))?;
        self.check_snapshots()
    }

    /// What holds of snapshots, clones and everything under way.
    fn check_snapshots(&self) -> Result<(), Corrupt> {
        let require = |holds: bool, what: &dyn Fn() -> String| if holds { Ok(()) } else { Err(Corrupt(what())) };
        let active = |id: VolumeId| self.volumes.get(&id).filter(|v| v.state == VolumeState::Active);
        let complete = |volume: VolumeId, id: SnapshotId| {
            self.snapshots.get(&(volume, id)).is_some_and(|s| s.state == crate::views::SnapshotState::Complete)
        };
        let mut names = BTreeSet::new();
        for record in self.snapshots.values() {
            let id = record.id;
            require(id < self.meta.next_snapshot, &|| format!("{id} was never given out"))?;
            require(active(record.volume).is_some(), &|| format!("{id} is of no volume"))?;
            let taken = record.state == crate::views::SnapshotState::Deleting;
            require(taken || names.insert((record.volume, &record.name)), &|| {
                format!("two snapshots {}", record.name)
            })?;
        }
        for volume in self.volumes.values().filter(|v| v.state == VolumeState::Active) {
            if let Some(parent) = volume.parent {
                let known = complete(parent.volume, parent.snapshot);
                require(known, &|| format!("{} is a clone of nothing", volume.id))?;
            }
            if let Some(rollback) = &volume.rollback {
                let known = complete(volume.id, rollback.snapshot);
                require(known, &|| format!("{} is rolled back to nothing", volume.id))?;
                require(volume.holder().is_none(), &|| format!("{} is rolled back while attached", volume.id))?;
                require(volume.cancelled.is_none(), &|| {
                    format!("{} is rolled back, and that was cancelled", volume.id)
                })?;
            }
        }
        for record in self.shards.values() {
            let parent = self.volumes.get(&record.config.shard.volume).and_then(|v| v.parent);
            let of = record.config.parent.map(|p| (p.shard.volume, p.snapshot));
            let same = of.is_none() || of == parent.map(|p| (p.volume, p.snapshot));
            require(same, &|| format!("{} is of another parent than its volume", record.config.shard))?;
        }
        for work in self.work.values() {
            require(active(work.volume).is_some(), &|| format!("{:?} is of no volume", work.work))?;
        }
        for copy in self.copy_ranges.values() {
            require(copy.id < self.meta.next_order, &|| format!("copy {} was never given out", copy.id))?;
            require(active(copy.into).is_some(), &|| format!("copy {} is into no volume", copy.id))?;
            let known = !copy.goes_on() || complete(copy.source, copy.snapshot);
            require(known, &|| format!("copy {} is from nothing", copy.id))?;
        }
        for scrub in self.scrubs.values() {
            require(active(scrub.volume).is_some(), &|| format!("a scrub of {}, which is no volume", scrub.volume))?;
        }
        Ok(())
    }
}

/// What holds of one shard's members in every epoch.
fn check_members(config: &Configuration) -> Result<(), Corrupt> {
    let shard = config.shard;
    let require = |holds: bool, what: &str| if holds { Ok(()) } else { Err(Corrupt(format!("{shard} {what}"))) };
    let primary = config.primary_member();
    require(primary.is_some(), "has no primary")?;
    require(primary.is_some_and(|m| m.state == CopyState::InSync), "has a primary that is not in sync")?;
    let counts = |m: &Member| m.state == CopyState::InSync || config.full_set.contains(&m.copy);
    require(!config.members.iter().any(|m| m.past && counts(m)), "counts on a copy from the past")?;
    let syncing = config.members.iter().filter(|m| m.state == CopyState::Syncing).count();
    require(syncing <= 1, "is being filled on two copies")?;
    let full: BTreeSet<CopyId> = config.full_set.iter().copied().collect();
    require(full.len() == config.full_set.len(), "names a copy of its full set twice")?;
    if config.is_sealed() {
        require(full.iter().all(|copy| config.member(*copy).is_some()), "does not list its last full set")?;
        require(!full.is_empty(), "is sealed and has no full set")
    } else {
        let in_sync: BTreeSet<CopyId> = config.in_sync_members().map(|m| m.copy).collect();
        require(full == in_sync, "has a full set that is not what is in sync")
    }
}

fn first_meta(cluster: ClusterId, next_volume: VolumeId) -> Meta {
    Meta {
        cluster,
        commit: Commit(0),
        next_volume,
        next_snapshot: SnapshotId(1),
        next_order: OrderId(1),
        next_event: 1,
        recovery: None,
        adoptions: 0,
        settings: Settings::default(),
        last_key: 0,
        keys_at: Commit(0),
    }
}
