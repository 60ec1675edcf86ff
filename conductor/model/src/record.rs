//! What the conductor persists: one record per node, volume, shard, snapshot and copy to be deleted, one for everything that is under
//! way (work of a copy, a copy-range, a scrub), and one for the cluster.
//!
//! A command returns the keys of the records it changed; whoever drives the model writes exactly those in one transaction
//! before the answer leaves, and can build the same state again from all records. Nothing else is remembered: liveness,
//! usage and troubles come back with the next heartbeats.

use crate::api::{CopyWork, Reachable};
use crate::events::Event;
use crate::views::{Attachment, Duty, Reader, ScrubState, Settings, SnapshotState, VolumeState};
use crate::{
    AttachGeneration, BlockRange, Blocks, Bytes, ClusterId, Commit, Configuration, CopyId, DiskId, Durability, Millis,
    NodeId, OpenId, OrderId, ShardId, ShardIndex, SnapshotId, TransportAddress, VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

/// Names a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// The cluster's own record.
    Meta,
    /// A node with its disks.
    Node(NodeId),
    /// A volume.
    Volume(VolumeId),
    /// A shard's configuration.
    Shard(ShardId),
    /// A copy that its node has to delete.
    Drop(NodeId, CopyId),
    /// A snapshot.
    Snapshot(VolumeId, SnapshotId),
    /// Something that a copy still has to do.
    Work(NodeId, CopyWork),
    /// A copy-range that is under way.
    CopyRange(OrderId),
    /// A volume's scrubs.
    Scrub(VolumeId),
    /// A client's key.
    ClientKey(u64),
    /// Something that happened.
    Event(u64),
}

impl fmt::Display for Key {
    /// The key in a file: unique, and in numeric order within a kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meta => write!(f, "meta"),
            Self::Node(node) => write!(f, "node/{:010}", node.0),
            Self::Volume(volume) => write!(f, "volume/{:010}", volume.0),
            Self::Shard(shard) => write!(f, "shard/{:010}/{:010}", shard.volume.0, shard.index.0),
            Self::Drop(node, copy) => write!(f, "drop/{:010}/{:016x}", node.0, copy.0),
            Self::Snapshot(volume, snapshot) => write!(f, "snapshot/{:010}/{:020}", volume.0, snapshot.0),
            Self::Work(node, CopyWork::DropSnapshot(copy, snapshot)) => {
                write!(f, "work/{:010}/{:016x}/drop/{:020}", node.0, copy.0, snapshot.0)
            }
            Self::Work(node, CopyWork::Flatten(copy)) => write!(f, "work/{:010}/{:016x}/flatten", node.0, copy.0),
            Self::CopyRange(job) => write!(f, "copy/{:020}", job.0),
            Self::Scrub(volume) => write!(f, "scrub/{:010}", volume.0),
            Self::ClientKey(serial) => write!(f, "client-key/{serial:020}"),
            Self::Event(number) => write!(f, "event/{number:020}"),
        }
    }
}

/// The keys of the records that one command changed or removed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Dirty(BTreeSet<Key>);

impl Dirty {
    /// True if there is nothing to persist.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys in order.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.0.iter().copied()
    }

    /// Adds the keys of another command, to persist both in one transaction.
    pub fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn add(&mut self, key: Key) {
        self.0.insert(key);
    }
}

/// A record's content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// See `Meta`.
    Meta(Meta),
    /// See `NodeRecord`.
    Node(NodeRecord),
    /// See `VolumeRecord`.
    Volume(VolumeRecord),
    /// See `ShardRecord`.
    Shard(ShardRecord),
    /// See `DropRecord`.
    Drop(DropRecord),
    /// See `SnapshotRecord`.
    Snapshot(SnapshotRecord),
    /// See `WorkRecord`.
    Work(WorkRecord),
    /// See `CopyRangeRecord`.
    #[serde(rename = "copy")]
    CopyRange(CopyRangeRecord),
    /// See `ScrubRecord`.
    Scrub(ScrubRecord),
    /// See `ClientKeyRecord`.
    ClientKey(ClientKeyRecord),
    /// See `Event`.
    Event(Event),
}

impl Record {
    /// The key that this record belongs under.
    pub fn key(&self) -> Key {
        match self {
            Self::Meta(_) => Key::Meta,
            Self::Node(node) => Key::Node(node.node),
            Self::Volume(volume) => Key::Volume(volume.id),
            Self::Shard(shard) => Key::Shard(shard.config.shard),
            Self::Drop(drop) => Key::Drop(drop.node, drop.copy),
            Self::Snapshot(snapshot) => Key::Snapshot(snapshot.volume, snapshot.id),
            Self::Work(work) => Key::Work(work.node, work.work),
            Self::CopyRange(copy) => Key::CopyRange(copy.id),
            Self::Scrub(scrub) => Key::Scrub(scrub.volume),
            Self::ClientKey(key) => Key::ClientKey(key.serial),
            Self::Event(event) => Key::Event(event.number),
        }
    }
}

/// The cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// Its name.
    pub cluster: ClusterId,
    /// How many transactions there were (rule 12).
    pub commit: Commit,
    /// The next volume's id: none is used twice.
    pub next_volume: VolumeId,
    /// The next snapshot's id.
    #[serde(default = "first_snapshot")]
    pub next_snapshot: SnapshotId,
    /// The next order's id.
    #[serde(default = "first_order")]
    pub next_order: OrderId,
    /// The next event's number.
    #[serde(default = "first_event")]
    pub next_event: u64,
    /// Set while this state may be from the past, or is made again from what nodes hold: nothing is changed then (rule 12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// How often that was ended: each time numbers begin far above those of the life before.
    #[serde(default)]
    pub adoptions: u32,
    /// What somebody has set for the whole cluster.
    #[serde(default, skip_serializing_if = "Settings::are_untouched")]
    pub settings: Settings,
    /// The newest serial of a client's key that was given out: none is given out twice.
    #[serde(default)]
    pub last_key: u64,
    /// The transaction that added or removed a client's key last.
    #[serde(default)]
    pub keys_at: Commit,
}

/// A client's key. Its secret is kept nowhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientKeyRecord {
    /// Its name, and how the names of its clients begin.
    pub name: String,
    /// Its number.
    pub serial: u64,
    /// The volumes that it is for: one that is made later has another id, whatever it is called.
    pub volumes: BTreeSet<VolumeId>,
    /// It is for reading alone.
    pub read_only: bool,
    /// When it was added.
    pub added: Millis,
    /// Another one of its name was made in its place: this one holds until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
}

/// A state in doubt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recovery {
    /// Since when.
    pub since: Millis,
    /// Why.
    pub why: String,
    /// What was decided up to this transaction it knows for sure.
    pub past: Commit,
}

fn first_snapshot() -> SnapshotId {
    SnapshotId(1)
}
fn first_order() -> OrderId {
    OrderId(1)
}

fn first_event() -> u64 {
    1
}

/// A node as it last registered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: NodeId,
    /// Its machine.
    pub host: String,
    /// The rack that its machine is in; empty if nobody said so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rack: String,
    /// The version of Trine that it runs; empty if it did not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Its disks, in the order of their ids; also those missing from its last registration.
    pub disks: Vec<DiskRecord>,
    /// What is wanted of it.
    #[serde(default)]
    pub duty: Duty,
}

/// A disk of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskRecord {
    /// The disk.
    pub disk: DiskId,
    /// The opening that its node registered last.
    pub open: OpenId,
    /// Where it is served.
    pub endpoint: SocketAddr,
    /// Where it is served, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<TransportAddress>,
    /// The transaction that changed one of the two last: primaries that have seen an older one are told again.
    pub endpoint_at: Commit,
    /// Its size for data.
    pub capacity: Bytes,
    /// Copies that it can hold.
    #[serde(default = "crate::api::any_number")]
    pub max_copies: u32,
    /// False if its node's last registration did not name it.
    pub present: bool,
    /// It is to be emptied, and forgotten once its node runs without it.
    #[serde(default)]
    pub leaving: bool,
    /// The disk of the same node that its copies are to be made on, if it is being replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<DiskId>,
    /// Where it was on its node's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl DiskRecord {
    /// The reactor that serves it, if that listens at several addresses.
    pub(crate) fn reachable(&self) -> Option<Reachable> {
        let Self { endpoint, addresses, .. } = self;
        (!addresses.is_empty()).then(|| Reachable { endpoint: *endpoint, addresses: addresses.clone() })
    }
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Its id.
    pub id: VolumeId,
    /// Its name; free for others while it is being deleted.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// Size of every shard but perhaps the last.
    pub shard_size: Bytes,
    /// Copies of each shard.
    pub copies: u8,
    /// Fewest in-sync copies that may acknowledge a write.
    pub min_copies: u8,
    /// When it was created.
    pub created: Millis,
    /// Whether it is being deleted.
    pub state: VolumeState,
    /// The newest attach generation issued (rule 19).
    pub attach: AttachGeneration,
    /// The transaction that issued it.
    pub attach_at: Commit,
    /// Who may write to it, if anybody.
    pub attachment: Option<Attachment>,
    /// Who uses it together, for reading or in ranges, oldest generation first; nobody while there is an attachment.
    #[serde(default)]
    pub readers: Vec<Reader>,
    /// The transaction that gave it to its client; not changed when that client attaches again.
    #[serde(default)]
    pub held_since: Commit,
    /// When a write is acknowledged.
    #[serde(default)]
    pub durability: Durability,
    /// What it is a clone of, until it is flattened.
    #[serde(default)]
    pub parent: Option<ParentRecord>,
    /// Set while it is being rolled back: it cannot be attached then.
    #[serde(default)]
    pub rollback: Option<RollbackRecord>,
    /// One that was cancelled: what it reads as is partly that. Until it is rolled back once more, or somebody may write to it.
    #[serde(default)]
    pub cancelled: Option<RollbackRecord>,
    /// The transaction in which a copy into it, or a rollback of it, was given up last: its primaries have heard of it before it is attached again.
    #[serde(default)]
    pub given_up_at: Commit,
    /// The transaction in which it was taken from somebody last: its primaries have heard of it before anybody else has it for sure.
    #[serde(default)]
    pub taken_at: Commit,
    /// Who was evicted from it: whoever asks for that again, because it was not confirmed, is not told that there was nothing. Until it is
    /// attached once more after all primaries have heard of it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub evicted: BTreeSet<String>,
}

/// What a clone needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParentRecord {
    /// The parent's id.
    pub volume: VolumeId,
    /// The snapshot of it.
    pub snapshot: SnapshotId,
    /// True while its copies are told to need it no more.
    pub flattening: bool,
}

/// A rollback under way, or cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RollbackRecord {
    /// To this snapshot.
    pub snapshot: SnapshotId,
    /// Shards that have not said yet that they are done.
    pub left: BTreeSet<ShardIndex>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Its id: of this attempt, while it is being created.
    pub id: SnapshotId,
    /// Its volume.
    pub volume: VolumeId,
    /// Its name; free for others while it is being deleted.
    pub name: String,
    /// The volume's size at that time.
    pub size: Bytes,
    /// When it was asked for.
    pub created: Millis,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// The id of its first attempt: what whoever asked for it waits for.
    pub asked: SnapshotId,
    /// Which attempt this is, or was; the first is 1.
    pub attempt: u32,
}

/// Something that a copy has to do, until its node has confirmed that it is done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkRecord {
    /// The node that holds the copy.
    pub node: NodeId,
    /// What, and which copy.
    pub work: CopyWork,
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// The transaction that decided it.
    pub since: Commit,
}

/// A copy-range under way, or one that failed or was cancelled and was not looked at yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyRangeRecord {
    /// Its number.
    pub id: OrderId,
    /// The volume that is copied from.
    pub source: VolumeId,
    /// The snapshot of it.
    pub snapshot: SnapshotId,
    /// The volume that is copied into.
    pub into: VolumeId,
    /// First byte, in both.
    pub offset: Bytes,
    /// How many.
    pub length: Bytes,
    /// When it was asked for.
    pub started: Millis,
    /// What is left in each shard.
    pub left: BTreeMap<ShardIndex, BlockRange>,
    /// Why it was given up.
    pub failed: Option<String>,
    /// When all was copied.
    #[serde(default)]
    pub done: Option<Millis>,
}

impl CopyRangeRecord {
    /// True while a primary may be at it.
    pub(crate) fn goes_on(&self) -> bool {
        self.failed.is_none() && self.done.is_none()
    }
}

/// A volume's scrubs: the present one, and what all have found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubRecord {
    /// The volume.
    pub volume: VolumeId,
    /// Whether one is under way.
    pub state: ScrubState,
    /// Most bytes per second to read on each copy.
    pub rate: Bytes,
    /// When the present or last one began.
    pub started: Option<Millis>,
    /// When the last one was through.
    pub finished: Option<Millis>,
    /// Bytes to scrub, when it began.
    pub of: Bytes,
    /// The first block that is not done, of each shard that is not through.
    pub left: BTreeMap<ShardIndex, Blocks>,
    /// Damaged blocks met by the present or last one.
    pub damaged: u64,
    /// Of these, put right.
    pub repaired: u64,
    /// Damaged blocks met by all.
    pub damaged_ever: u64,
    /// Of these, put right.
    pub repaired_ever: u64,
}

/// A shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardRecord {
    /// Its configuration. Endpoints are as of its making; the disks' records have today's.
    pub config: Configuration,
    /// The transaction that made this configuration.
    pub changed_at: Commit,
    /// Set when a node reported a configuration that this record cannot have led to (rule 12): nothing is changed then.
    pub distrusted: Option<String>,
    /// Nodes that were its primary until another copy was promoted, and may not have heard of it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub former: BTreeSet<NodeId>,
    /// The copy that is moved: it goes once the one that was listed beside it is in sync. Only while there is one more than is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<CopyId>,
    /// Copies that are not in sync and not to be filled, by somebody's word.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub held: BTreeSet<CopyId>,
}

/// A copy whose volume is gone, or that was unlisted, until its node has confirmed that it is deleted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DropRecord {
    /// The node that holds it.
    pub node: NodeId,
    /// The copy.
    pub copy: CopyId,
    /// The disk it is on.
    pub disk: DiskId,
    /// The volume it belonged to.
    pub volume: VolumeId,
    /// The shard of that; records of older programs do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// The transaction that decided it.
    pub dropped_at: Commit,
}
