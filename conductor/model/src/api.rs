//! What nodes and targets say to the conductor, and what it answers. The service carries these as JSON over HTTP, the
//! simulator as values.

use crate::{
    AttachGeneration, BlockRange, Blocks, Bytes, ClusterId, Commit, Configuration, CopyId, DiskId, Durability, Epoch,
    Member, NodeId, OpenId, OrderId, ShardId, ShardIndex, ShardSnapshot, SnapshotId, TransportAddress, VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// A disk as its node reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskReport {
    /// The disk's own name.
    pub disk: DiskId,
    /// This opening of its store.
    pub open: OpenId,
    /// Where the reactor that owns it listens.
    pub endpoint: SocketAddr,
    /// Where it listens, too: at most [`crate::limits::MAX_ADDRESSES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<TransportAddress>,
    /// Its size for data.
    pub capacity: Bytes,
    /// Bytes in use.
    pub used: Bytes,
    /// Copies that it can hold.
    #[serde(default = "any_number")]
    pub max_copies: u32,
    /// Every copy found on it, with the newest configuration it joined (rule 12).
    pub copies: Vec<(CopyId, Configuration)>,
    /// Where it is on its node's machine: what the node asks for when it is started without being told of this disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A reactor that listens at several addresses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Reachable {
    /// The first one, over TCP: its name everywhere else.
    pub endpoint: SocketAddr,
    /// The others.
    pub addresses: Vec<TransportAddress>,
}

/// Of a disk whose node does not say it.
pub(crate) fn any_number() -> u32 {
    u32::MAX
}

/// Sent once by a node that started, and again when the conductor answers `unknown node`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The node.
    pub node: NodeId,
    /// Its machine, for people and for failure domains.
    pub host: String,
    /// The rack that its machine is in; empty if nobody said so: then its machine stands for itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rack: String,
    /// The version of Trine that it runs; empty if it did not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Its disks, each freshly opened.
    pub disks: Vec<DiskReport>,
    /// The cluster that its disks belong to.
    pub cluster: ClusterId,
    /// The newest commit number that this process has heard of; 0 after a start (rule 12).
    #[serde(default)]
    pub seen: Commit,
    /// Clients that use volumes through it now.
    #[serde(default)]
    pub attached: Vec<Holding>,
}

/// A client that uses a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holding {
    /// The volume.
    pub volume: VolumeId,
    /// Its attach generation.
    pub generation: AttachGeneration,
    /// The client's name.
    pub client: String,
    /// It writes nothing.
    #[serde(default)]
    pub read_only: bool,
    /// It writes only what it holds ranges of.
    #[serde(default)]
    pub shared: bool,
}

/// The answer to a registration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registered {
    /// The cluster that this conductor leads.
    pub cluster: ClusterId,
    /// The conductor's commit number (rule 12).
    pub commit: u64,
}

/// Why a shard does not serve at the moment, or what is wrong with it all the same, as its primary sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// The shard.
    pub shard: ShardId,
    /// Requests that wait for it.
    pub waiting: u32,
    /// One sentence for `trine status`.
    pub reason: String,
    /// Its disk failed and no other copy holds every write: requests end with errors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Nothing waits for it: what else it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ailment: Option<Ailment>,
}

/// What is wrong with a shard that may serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ailment {
    /// A copy is not filled, and will not be before somebody does something.
    Unfilled,
    /// Blocks that no copy in sync has.
    Unreadable,
}

/// Clients' sessions on a node, told now and then, all of them each time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSessions {
    /// The node.
    pub node: NodeId,
    /// Its sessions.
    pub sessions: Vec<NodeSession>,
}

/// One client's presence on one reactor of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSession {
    /// The client's name.
    pub client: String,
    /// What it uses.
    pub volume: VolumeId,
    /// The snapshot of it that it reads, if not the volume itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Its attach generation.
    pub generation: AttachGeneration,
    /// It writes nothing.
    pub read_only: bool,
    /// The number of the key that it has proved to have; none if that is the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<u64>,
    /// Ranges that it holds or waits for; some of them, if there are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangeInfo>,
    /// Its connections.
    pub connections: u32,
    /// Its requests in flight.
    pub requests: u32,
}

/// A range of a shard that a session holds, or waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangeInfo {
    /// The shard.
    pub shard: ShardIndex,
    /// Its first byte in that.
    pub offset: Bytes,
    /// Its length.
    pub length: Bytes,
    /// For writing.
    pub write: bool,
    /// It is held; else waited for.
    pub held: bool,
}

/// Sent by a node about twice a second; held open by the conductor while it has nothing new (long poll).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The node.
    pub node: NodeId,
    /// The newest `HeartbeatAnswer::version` it has acted upon; 0 after a start.
    pub after: u64,
    /// Open ids and usage of its disks: an unknown open id is answered `unknown node`.
    pub disks: Vec<(DiskId, OpenId, Bytes)>,
    /// Shards that it is primary of and that do not serve, or that something is wrong with.
    pub troubles: Vec<Trouble>,
    /// Copies it has deleted as told.
    pub dropped: Vec<CopyId>,
    /// Space that its copies hold by themselves, as counted last. Sent now and then, in parts if there are many: of a copy that is not
    /// named the last word stays.
    #[serde(default)]
    pub copies: Vec<(CopyId, Bytes)>,
    /// What its disks gave back that was not what had been written, and what was put right, since they were opened.
    #[serde(default)]
    pub integrity: Vec<DiskIntegrity>,
    /// Copies that its primaries are filling.
    #[serde(default)]
    pub filling: Vec<Filling>,
    /// Disks of it that failed, and how: they are open and serve nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<(DiskId, String)>,
}

/// How far a primary is with the filling of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filling {
    /// The shard.
    pub shard: ShardId,
    /// The copy that is filled.
    pub copy: CopyId,
    /// Bytes done.
    pub done: Bytes,
    /// Bytes to do in all, as far as is known.
    pub of: Bytes,
    /// Bytes per second, lately.
    pub rate: Bytes,
}

/// Damage met on one disk, by reads and scrubs, since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskIntegrity {
    /// The disk.
    pub disk: DiskId,
    /// Blocks that did not read as they were written.
    pub damaged: u64,
    /// Of these, put right with another copy's content.
    pub repaired: u64,
}

/// What a node has to know.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// Version of this answer's content, to be sent back in `after`.
    pub version: u64,
    /// The conductor's commit number (rule 12).
    pub commit: u64,
    /// Configurations, changed since `after`, of shards whose primary is on this node, or was until another was promoted.
    pub assignments: Vec<Configuration>,
    /// The oldest attach generations that may be served, of volumes with a copy on this node, changed since `after` (rule 19). A
    /// heartbeat whose `after` is this answer's `version` confirms them.
    pub generations: Vec<(VolumeId, AttachGeneration)>,
    /// Of those that are shared: who reads them. Behind `generations`, and confirmed with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readers: Vec<ReaderList>,
    /// Copies to delete for good: their volume is gone. Repeated until confirmed in `dropped`.
    pub drop: Vec<CopyId>,
    /// All orders that are open for shards whose primary is on this node. One that is not named any more is over: done,
    /// given up or paused.
    #[serde(default)]
    pub orders: Vec<Order>,
    /// All work that is open for copies on this node.
    #[serde(default)]
    pub work: Vec<CopyWork>,
    /// True if nobody has taken over from a primary on this node, as far as this conductor can know, and nobody will within the detection
    /// time (rule 11). Not while its state may be from the past.
    #[serde(default)]
    pub undisputed: bool,
    /// Disks that were to be emptied and are: the node lets go of them, and registers without them.
    #[serde(default)]
    pub retire: Vec<DiskId>,
    /// How many bytes per second each of the node's reactors may read to fill copies; none is no limit but its own, 0 is a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_rate: Option<Bytes>,
    /// Of shards whose primary is on this node, the copies that are not to be filled; if there is anything new for this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Vec<CopyId>>,
    /// Which keys of clients there are, if that changed since `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeyList>,
    /// All reactors of the cluster that listen at several addresses, if there is anything new for this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable: Option<Vec<Reachable>>,
}

/// The keys of clients, by their serials.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct KeyList {
    /// The newest one that was given out when this was said: of later ones it says nothing.
    pub upto: u64,
    /// Those that were not removed.
    pub valid: BTreeSet<u64>,
}

/// Who reads a volume that nobody writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReaderList {
    /// The volume.
    pub volume: VolumeId,
    /// The newest generation there was when this was said: a reader of a later one has attached since.
    pub upto: AttachGeneration,
    /// Up to there, the readers that are still attached.
    pub readers: Vec<AttachGeneration>,
}

/// Something that a shard's primary is to do in the order of the shard's writes. Given again until its outcome is known here, also
/// to a new primary: doing it twice is doing it once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Its name.
    pub id: OrderId,
    /// The shard.
    pub shard: ShardId,
    /// What to do.
    pub what: ShardOrder,
}

/// What a primary can be told to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardOrder {
    /// Place a snapshot's barrier on every copy, say so, and then execute without acknowledging until this order is not named any
    /// more or `hold_ms` have passed since the barrier was placed (rule 17).
    Barrier {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The hold time H.
        hold_ms: u32,
    },
    /// Read as this snapshot again, on every copy. The volume is not attached.
    Rollback {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The shard came after it, as the volume grew: it reads as zeros. No order of its own, so that a node of an older program can read
        /// what it is told: that one has no such snapshot there, says so, and changes nothing.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        beyond: bool,
    },
    /// The range reads as the same range of another volume's snapshot (rule 16).
    CopyRange {
        /// What to read as.
        from: ShardSnapshot,
        /// Where.
        at: BlockRange,
        /// The copies of the source that are in sync, each time anew as of when this is handed out: who has it, and can be asked.
        #[serde(default)]
        holders: Vec<Member>,
    },
    /// Read everything on every copy, and put right what does not read as it was written.
    Scrub {
        /// Where to begin: what an earlier run has done is behind it.
        from: Blocks,
        /// Most bytes per second to read on each copy.
        rate: Bytes,
    },
}

/// How an order stands, said by its shard's primary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderReport {
    /// Which order.
    pub id: OrderId,
    /// Its shard.
    pub shard: ShardId,
    /// The epoch in which this was so.
    pub epoch: Epoch,
    /// How it stands.
    pub state: OrderState,
}

/// How an order stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderState {
    /// On its way; done up to this block.
    Running {
        /// First block that is not done.
        next: Blocks,
        /// Damaged blocks met, on all copies.
        damaged: u64,
        /// Of these, put right.
        repaired: u64,
    },
    /// Done on every copy. For a barrier: placed.
    Done {
        /// Damaged blocks met, on all copies.
        damaged: u64,
        /// Of these, put right.
        repaired: u64,
    },
    /// It cannot be done; one sentence.
    Failed(String),
}

/// Something that one copy does by itself, in no order with writes. Given again until it is said to be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyWork {
    /// Forget a snapshot.
    DropSnapshot(CopyId, SnapshotId),
    /// Need the parent no more.
    Flatten(CopyId),
}

impl CopyWork {
    /// Whose work it is.
    pub fn copy(&self) -> CopyId {
        match self {
            Self::DropSnapshot(copy, _) | Self::Flatten(copy) => *copy,
        }
    }
}

/// Sent by a node as soon as there is something to say, beside its heartbeats; said again until it is accepted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The node.
    pub node: NodeId,
    /// How its orders stand: those that changed.
    pub orders: Vec<OrderReport>,
    /// Work that is done.
    pub worked: Vec<CopyWork>,
}

/// A change of one shard's configuration, asked by its primary (rule 12: names the epoch it was made under).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MembershipRequest {
    /// The shard.
    pub shard: ShardId,
    /// The epoch this was asked under; takes effect only if that is still current.
    pub epoch: Epoch,
    /// The asking primary's copy.
    pub by: CopyId,
    /// What is asked.
    pub change: MembershipChange,
}

/// The changes a primary may ask for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MembershipChange {
    /// Every copy was created on its disk: from now on a missing copy is a lost copy.
    Born,
    /// These copies' stores were opened anew: name their new open ids (rule 6, rule 10).
    Reopened(Vec<(CopyId, OpenId)>),
    /// These copies failed, or the filling of one ended: they are absent from the next epoch on. Never the asking one.
    Drop(Vec<CopyId>),
    /// The disks of these copies, in sync so far, are in a state from the past: they are absent from the next epoch on, and of the last
    /// full set no more, because they lack what was acknowledged. If the asking one is among them, another one is to be promoted.
    Past(Vec<CopyId>),
    /// This absent copy, whose store is opened so, is to be filled: it is syncing in the next epoch. One at a time.
    #[serde(rename = "sync")]
    Fill(CopyId, OpenId),
    /// This syncing copy holds everything: it is in sync in the next epoch (rule 1).
    Add(CopyId),
    /// The asking primary's own disk fails or hangs: another copy is to be promoted; its own is absent then, if enough others are in sync
    /// (rule 15).
    StepDown,
    /// Of a flush volume, with every copy joined: none of them was there, without being opened anew, when the shard was served last. What was
    /// acknowledged and not flushed may be lost, and is to be told to who wrote it (rule 18).
    CacheLost,
}

impl MembershipChange {
    /// Asks for the next epoch with everything as it is: the primary's own copy is named as it is named already.
    pub fn unchanged(own: &Member) -> Self {
        Self::Reopened(vec![(own.copy, own.open)])
    }
}

/// The conductor's answer to one `MembershipRequest`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MembershipAnswer {
    /// Persisted: the new configuration, one epoch higher.
    Granted(Configuration),
    /// The epoch was not current (any more): the configuration that is. Also what a repeated request gets that was granted
    /// before, its answer lost.
    Stale(Configuration),
    /// Not allowed, or no such shard; one sentence.
    Refused(String),
}

/// Where a shard is served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardPlace {
    /// Position in the volume.
    pub index: ShardIndex,
    /// Current epoch.
    pub epoch: Epoch,
    /// The primary's node.
    pub node: NodeId,
    /// Where the primary's reactor listens.
    pub endpoint: SocketAddr,
    /// The shard's cache generation: what was acknowledged before, and not flushed, may be lost (rule 18).
    #[serde(default)]
    pub cache: Commit,
}

/// What a target needs to route requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeMap {
    /// The volume.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size: a multiple of a block.
    pub size: Bytes,
    /// Size of every shard but perhaps the last: a power of two of blocks.
    pub shard_size: Bytes,
    /// Current attach generation.
    pub attach: AttachGeneration,
    /// In the answer to an attach of a client with a key of its own: what proves that generation to nodes, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// The snapshot that is to be read, if it is not the live content: then nothing can be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// When a write is acknowledged.
    #[serde(default, skip_serializing_if = "Durability::is_always")]
    pub durability: Durability,
    /// Since when its client has it: cache generations up to here are none of its business (rule 18).
    #[serde(default)]
    pub held_since: Commit,
    /// Of the places that shards are served at, those that can be reached at several addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reachable: Vec<Reachable>,
    /// All shards in order.
    pub shards: Vec<ShardPlace>,
}
