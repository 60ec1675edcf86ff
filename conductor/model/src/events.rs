//! The event log: what happened in the cluster, in order, as far back as `limits::MAX_EVENTS` reach.
//!
//! Events are written with the transaction that they are of: what is in the log has happened, and what happened is in the log. What one
//! transaction did to many shards of a volume is one event.

use crate::limits::{MAX_EVENTS, MAX_EVENTS_AT_ONCE, NODE_SILENT_MS};
use crate::views::Duty;
use crate::{
    AttachGeneration, Bytes, Commit, Conductor, Configuration, CopyState, Dirty, DiskId, Key, Millis, NodeId, ShardId,
    VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Counted up from 1 in the cluster's life.
    pub number: u64,
    /// The transaction that it is of.
    pub commit: Commit,
    /// When, to about a second.
    pub at: Millis,
    /// What.
    pub what: Happened,
}

/// Shards of one volume that the same happened to at once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shards {
    /// The volume's name.
    pub volume: String,
    /// The first shard.
    pub first: ShardId,
    /// How many.
    pub count: u32,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Happened {
    /// A conductor began to lead the cluster.
    ConductorStarted,
    /// A node registered for the first time.
    NodeJoined {
        /// The node.
        node: NodeId,
        /// Its machine.
        host: String,
    },
    /// A node is not heard any more.
    NodeSilent {
        /// The node.
        node: NodeId,
    },
    /// It is heard again.
    NodeBack {
        /// The node.
        node: NodeId,
    },
    /// Something else is wanted of a node.
    DutyChanged {
        /// The node.
        node: NodeId,
        /// What.
        duty: Duty,
    },
    /// A node was removed: nothing is expected of it any more.
    NodeForgotten {
        /// The node.
        node: NodeId,
    },
    /// A disk is to be emptied.
    DiskLeaving {
        /// Its node.
        node: NodeId,
        /// The disk.
        disk: DiskId,
    },
    /// A disk is to stay after all.
    DiskStays {
        /// Its node.
        node: NodeId,
        /// The disk.
        disk: DiskId,
    },
    /// A disk was taken out: nothing is expected on it any more.
    DiskForgotten {
        /// Its node.
        node: NodeId,
        /// The disk.
        disk: DiskId,
    },
    /// The copies on a disk are to be made on another disk of its node, and the disk is to be forgotten then.
    DiskReplacing {
        /// Their node.
        node: NodeId,
        /// The disk.
        disk: DiskId,
        /// The other one.
        with: DiskId,
    },
    /// The last copies with all writes were given up, by somebody who said so: these shards are lost.
    DataGivenUp {
        /// Of these.
        shards: Shards,
    },
    /// Copies are being moved, so that they are farther apart or disks more evenly used.
    RebalanceBegan {
        /// Percentage points between the most and the least used disk.
        uneven_percent: u32,
    },
    /// There is nothing more to move.
    RebalanceEnded {
        /// Copies moved.
        moved: u64,
        /// Percentage points between the most and the least used disk.
        uneven_percent: u32,
    },
    /// Another copy is primary.
    Promoted {
        /// The node that was.
        from: NodeId,
        /// The node that is.
        to: NodeId,
        /// Of these.
        shards: Shards,
    },
    /// Copies were dropped: they are missing.
    CopiesDropped {
        /// Their node.
        node: NodeId,
        /// Of these.
        shards: Shards,
    },
    /// Copies are being filled.
    CopiesFilling {
        /// Their node.
        node: NodeId,
        /// Of these.
        shards: Shards,
    },
    /// Copies are in sync again.
    CopiesInSync {
        /// Their node.
        node: NodeId,
        /// Of these.
        shards: Shards,
    },
    /// New copies are to be made.
    CopiesListed {
        /// Their node.
        node: NodeId,
        /// Of these.
        shards: Shards,
    },
    /// Copies are not wanted any more, and are deleted.
    CopiesUnlisted {
        /// Their node.
        node: NodeId,
        /// Of these.
        shards: Shards,
    },
    /// Too few copies are in sync: writes wait.
    Sealed {
        /// Of these.
        shards: Shards,
    },
    /// Enough are again.
    Unsealed {
        /// Of these.
        shards: Shards,
    },
    /// A volume was created.
    VolumeCreated {
        /// Its name.
        volume: String,
        /// Its size.
        size: Bytes,
    },
    /// A volume was deleted.
    VolumeDeleted {
        /// Its name.
        volume: String,
    },
    /// A volume is larger.
    VolumeResized {
        /// Its name.
        volume: String,
        /// Its size now.
        size: Bytes,
    },
    /// A volume has another name.
    VolumeRenamed {
        /// The name that it had.
        volume: String,
        /// The name that it has.
        new: String,
    },
    /// A snapshot is complete.
    SnapshotCreated {
        /// Of which volume.
        volume: String,
        /// Its name.
        snapshot: String,
    },
    /// A snapshot was deleted.
    SnapshotDeleted {
        /// Of which volume.
        volume: String,
        /// Its name.
        snapshot: String,
    },
    /// A volume is to read as a snapshot of it again: what was written since is lost.
    RolledBack {
        /// Its name.
        volume: String,
        /// The snapshot's.
        snapshot: String,
        /// From here on it has grown since, and is to read as zeros.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zeros_from: Option<Bytes>,
    },
    /// A rollback was ended before it was over: some shards read as the snapshot, the others do not, or not for certain.
    RollbackCancelled {
        /// The volume's name.
        volume: String,
        /// The snapshot's.
        snapshot: String,
        /// Shards that read as it.
        done: u32,
        /// Shards that there are.
        of: u32,
    },
    /// A volume has another number of copies.
    CopiesChanged {
        /// Its name.
        volume: String,
        /// Copies of each shard.
        copies: u8,
        /// Fewest in-sync copies that may acknowledge a write.
        min_copies: u8,
    },
    /// Copies are filled at another rate.
    FillRateChanged {
        /// The limit, if there is one; at 0 no copy is filled.
        rate: Option<Bytes>,
    },
    /// Copies are not filled any more, by somebody's word.
    FillingAborted {
        /// Their volume.
        volume: String,
        /// How many.
        copies: u32,
    },
    /// They are to be filled again.
    FillingResumed {
        /// Their volume.
        volume: String,
        /// How many.
        copies: u32,
    },
    /// A client has a volume.
    Attached {
        /// Its name.
        volume: String,
        /// The client.
        client: String,
        /// Under this generation.
        generation: AttachGeneration,
        /// It shares the volume with other readers.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        read_only: bool,
        /// It shares the volume with others that write what they hold ranges of.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shared: bool,
        /// It was taken from this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    /// A client is done with a volume.
    Detached {
        /// Its name.
        volume: String,
        /// The client.
        client: String,
    },
    /// A client's attachment was ended by an administrator.
    Evicted {
        /// The volume's name.
        volume: String,
        /// The client.
        client: String,
        /// The generation that it had.
        generation: AttachGeneration,
    },
    /// A client's key was made.
    KeyAdded {
        /// Its name.
        name: String,
        /// It is for reading alone.
        read_only: bool,
    },
    /// Another one was made in its place.
    KeyRotated {
        /// Its name.
        name: String,
        /// For how long the former one holds.
        grace_ms: u64,
    },
    /// A key that another one was made in the place of holds no more.
    FormerKeyEnded {
        /// Its name.
        name: String,
    },
    /// It is one no more.
    KeyRemoved {
        /// Its name.
        name: String,
    },
    /// The conductor's state may be from the past: it changes nothing until it is adopted.
    Doubted {
        /// Why.
        why: String,
    },
    /// It leads again, with what the nodes hold.
    Adopted {
        /// Volumes.
        volumes: u32,
        /// Shards that have a new epoch.
        shards: u32,
    },
}

/// What happens to shards, to be counted over a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Change {
    Promoted(NodeId, NodeId),
    Dropped(NodeId),
    Sealed,
    Filling(NodeId),
    InSync(NodeId),
    Unsealed,
    Listed(NodeId),
    Unlisted(NodeId),
}

/// The log, and what is to go into it with the running transaction.
#[derive(Clone, Default, Debug)]
pub(crate) struct Log {
    pub(crate) kept: BTreeMap<u64, Event>,
    notes: Vec<Happened>,
    changes: BTreeMap<(VolumeId, Change), (ShardId, u32)>,
    silent: BTreeSet<NodeId>,
    /// It is to be said that this process began.
    begins: bool,
    now: Millis,
}

impl Conductor {
    /// Events after number `after`, oldest first, at most `limits::MAX_EVENTS_AT_ONCE` of them.
    pub fn events(&self, after: u64) -> Vec<Event> {
        let from = after.saturating_add(1);
        self.log.kept.range(from..).take(MAX_EVENTS_AT_ONCE).map(|(_, event)| event.clone()).collect()
    }

    /// Has it said that this process began to lead: with the first ticks, but not before the nodes could say that they have seen more
    /// than this conductor knows (rule 12).
    pub fn announce(&mut self) {
        self.log.begins = true;
    }

    /// When what happens now happens; `tick` says it, too, unless the state is in doubt.
    pub(crate) fn date_events(&mut self, now: Millis) {
        self.log.now = now;
    }

    /// To be written with the running transaction, and a reason for one.
    pub(crate) fn note(&mut self, what: Happened, dirty: &mut Dirty) {
        dirty.add(Key::Meta);
        self.log.notes.push(what);
    }

    /// What a new configuration means.
    pub(crate) fn note_change(&mut self, old: &Configuration, new: &Configuration) {
        let mut changes = Vec::new();
        if let (Some(from), Some(to)) = (old.primary_member(), new.primary_member())
            && from.copy != to.copy
        {
            changes.push(Change::Promoted(from.node, to.node));
        }
        for member in &new.members {
            let before = old.member(member.copy).map(|m| m.state);
            changes.extend(match (before, member.state) {
                (None, _) => Some(Change::Listed(member.node)),
                (Some(CopyState::InSync | CopyState::Syncing), CopyState::Absent) => Some(Change::Dropped(member.node)),
                (Some(CopyState::Absent), CopyState::Syncing) => Some(Change::Filling(member.node)),
                (Some(CopyState::Syncing | CopyState::Absent), CopyState::InSync) => Some(Change::InSync(member.node)),
                _ => None,
            });
        }
        let unlisted = old.members.iter().filter(|m| new.member(m.copy).is_none());
        changes.extend(unlisted.map(|m| Change::Unlisted(m.node)));
        match (old.is_sealed(), new.is_sealed()) {
            (false, true) => changes.push(Change::Sealed),
            (true, false) => changes.push(Change::Unsealed),
            _ => {}
        }
        for change in changes {
            let (_, count) = self.log.changes.entry((new.shard.volume, change)).or_insert((new.shard, 0));
            *count += 1;
        }
    }

    /// Who fell silent, and who is heard again.
    pub(crate) fn note_silence(&mut self, now: Millis, dirty: &mut Dirty) {
        self.log.now = now;
        let listened = self.nodes.is_empty() || now.since(self.started) >= NODE_SILENT_MS;
        if listened && std::mem::take(&mut self.log.begins) {
            self.note(Happened::ConductorStarted, dirty);
        }
        let silent: BTreeSet<NodeId> =
            self.nodes.keys().filter(|n| now.since(self.heard(**n)) >= NODE_SILENT_MS).copied().collect();
        let before = std::mem::replace(&mut self.log.silent, silent.clone());
        for node in silent.difference(&before) {
            self.note(Happened::NodeSilent { node: *node }, dirty);
        }
        for node in before.difference(&silent).filter(|node| self.nodes.contains_key(node)).copied().collect::<Vec<_>>()
        {
            self.note(Happened::NodeBack { node }, dirty);
        }
    }

    /// Turns what was noted into records of this transaction.
    pub(crate) fn write_events(&mut self, dirty: &mut Dirty) {
        let mut happened = std::mem::take(&mut self.log.notes);
        for ((volume, change), (first, count)) in std::mem::take(&mut self.log.changes) {
            let volume = self.volumes.get(&volume).map_or_else(|| volume.to_string(), |v| v.name.clone());
            let shards = Shards { volume, first, count };
            happened.push(match change {
                Change::Promoted(from, to) => Happened::Promoted { from, to, shards },
                Change::Dropped(node) => Happened::CopiesDropped { node, shards },
                Change::Filling(node) => Happened::CopiesFilling { node, shards },
                Change::InSync(node) => Happened::CopiesInSync { node, shards },
                Change::Listed(node) => Happened::CopiesListed { node, shards },
                Change::Unlisted(node) => Happened::CopiesUnlisted { node, shards },
                Change::Sealed => Happened::Sealed { shards },
                Change::Unsealed => Happened::Unsealed { shards },
            });
        }
        for what in happened {
            let number = self.meta.next_event;
            self.meta.next_event += 1;
            let event = Event { number, commit: self.meta.commit, at: self.log.now, what };
            self.log.kept.insert(number, event);
            dirty.add(Key::Event(number));
        }
        while self.log.kept.len() > MAX_EVENTS {
            let Some((oldest, _)) = self.log.kept.pop_first() else { break };
            dirty.add(Key::Event(oldest));
        }
    }
}

impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "{} ({})", self.volume, self.first),
            n => write!(f, "{} ({n} shards, {} first)", self.volume, self.first),
        }
    }
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConductorStarted => write!(f, "conductor started"),
            Self::NodeJoined { node, host } => write!(f, "{node} joined on {host}"),
            Self::NodeSilent { node } => write!(f, "{node} silent"),
            Self::NodeBack { node } => write!(f, "{node} back"),
            Self::DutyChanged { node, duty } => write!(f, "{node} is {duty}"),
            Self::NodeForgotten { node } => write!(f, "{node} removed"),
            Self::DiskLeaving { node, disk } => write!(f, "disk {disk} of {node} is to be emptied"),
            Self::DiskStays { node, disk } => write!(f, "disk {disk} of {node} stays"),
            Self::DiskForgotten { node, disk } => write!(f, "disk {disk} of {node} removed"),
            Self::DiskReplacing { node, disk, with } => write!(f, "disk {disk} of {node} is being replaced by {with}"),
            Self::DataGivenUp { shards } => write!(f, "LOST by force: the last copies of {shards}"),
            Self::RebalanceBegan { uneven_percent } => {
                write!(f, "rebalancing: the use of disks differs by {uneven_percent} points")
            }
            Self::RebalanceEnded { moved, uneven_percent } => {
                write!(f, "rebalanced: {moved} copies moved, the use of disks differs by {uneven_percent} points")
            }
            Self::Promoted { from, to, shards } => write!(f, "{to} is primary of {shards}, no more {from}"),
            Self::CopiesDropped { node, shards } => write!(f, "{node} lacks its copy of {shards}"),
            Self::CopiesFilling { node, shards } => write!(f, "{node} is filled: {shards}"),
            Self::CopiesInSync { node, shards } => write!(f, "{node} in sync: {shards}"),
            Self::CopiesListed { node, shards } => write!(f, "{node} gets a copy of {shards}"),
            Self::CopiesUnlisted { node, shards } => write!(f, "{node} gives up its copy of {shards}"),
            Self::Sealed { shards } => write!(f, "too few copies in sync, writes wait: {shards}"),
            Self::Unsealed { shards } => write!(f, "enough copies in sync again: {shards}"),
            Self::VolumeCreated { volume, size } => write!(f, "volume {volume} created, {size}"),
            Self::VolumeResized { volume, size } => write!(f, "volume {volume} grown to {size}"),
            Self::VolumeRenamed { volume, new } => write!(f, "volume {volume} renamed to {new}"),
            Self::SnapshotCreated { volume, snapshot } => write!(f, "snapshot {volume}@{snapshot} made"),
            Self::SnapshotDeleted { volume, snapshot } => write!(f, "snapshot {volume}@{snapshot} deleted"),
            Self::RolledBack { volume, snapshot, zeros_from } => {
                write!(f, "volume {volume} rolled back to its snapshot {snapshot}")?;
                zeros_from.map_or(Ok(()), |from| write!(f, "; from {from} on, where it has grown since, it is zeroed"))
            }
            Self::RollbackCancelled { volume, snapshot, done, of } => {
                write!(f, "rollback of volume {volume} to {snapshot} cancelled: {done} of {of} shards read as that")
            }
            Self::VolumeDeleted { volume } => write!(f, "volume {volume} deleted"),
            Self::CopiesChanged { volume, copies, min_copies } => {
                write!(f, "volume {volume} has {copies} copies, {min_copies} of them to acknowledge a write")
            }
            Self::FillRateChanged { rate: None } => {
                write!(f, "copies are filled without a limit for a reactor, at 256 MiB per second each")
            }
            Self::FillRateChanged { rate: Some(Bytes(0)) } => {
                write!(f, "no copy is filled until the fill rate is raised")
            }
            Self::FillRateChanged { rate: Some(rate) } => {
                write!(f, "each reactor of a node fills copies at no more than {rate} per second")
            }
            Self::FillingAborted { volume, copies } => {
                write!(f, "filling of {copies} copies of volume {volume} aborted by hand")
            }
            Self::FillingResumed { volume, copies } => {
                write!(f, "filling of {copies} copies of volume {volume} resumed by hand")
            }
            Self::Attached { volume, client, generation, read_only, shared, from } => {
                write!(f, "volume {volume} attached by {client} as {generation}")?;
                f.write_str(if *read_only { ", read-only" } else { "" })?;
                f.write_str(if *shared { ", shared" } else { "" })?;
                from.iter().try_for_each(|from| write!(f, ", taken from {from}"))
            }
            Self::Detached { volume, client } => write!(f, "volume {volume} detached by {client}"),
            Self::KeyAdded { name, read_only: false } => write!(f, "key {name} added"),
            Self::KeyAdded { name, read_only: true } => write!(f, "key {name} added, read-only"),
            Self::KeyRotated { name, grace_ms: 0 } => write!(f, "key {name} renewed, the former one holds no more"),
            Self::KeyRotated { name, grace_ms } => {
                write!(f, "key {name} renewed, the former one holds for {} s", grace_ms.div_ceil(1000))
            }
            Self::FormerKeyEnded { name } => write!(f, "the former key {name} holds no more"),
            Self::KeyRemoved { name } => write!(f, "key {name} removed"),
            Self::Evicted { volume, client, generation } => {
                write!(f, "client {client} evicted from volume {volume}, which it had as {generation}")
            }
            Self::Doubted { why } => write!(f, "conductor in doubt, nothing is changed: {why}"),
            Self::Adopted { volumes, shards } => {
                write!(f, "conductor leads again, with {volumes} volumes in {shards} shards as the nodes hold them")
            }
        }
    }
}
