//! What people and tools ask of the conductor and what they are shown. Carried as JSON; the types that nodes use are in
//! `api`.

use crate::{
    AttachGeneration, Bytes, ClusterId, Configuration, DEFAULT_SHARD, DiskId, Durability, Millis, NodeId, OrderId,
    SnapshotId, TransportAddress, VolumeId, limits,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

mod clients;
mod conductors;
mod duties;
mod rebalance;
mod recovery;
mod resync;
mod settings;

pub use clients::{
    Attach, Attachment, ClientInfo, ClientSession, ClientVolume, Detach, Evict, FormerKey, KeyInfo, KeyVolume, NewKey,
    Reader, RemoveKey, RotateKey, RotatedKey,
};
pub use conductors::{ConductorInfo, ConductorRole};
pub use duties::{CheckReplacement, Duty, Force, NewCopies, NewDuty, RemoveDisk, ReplaceDisk};
pub use rebalance::RebalanceInfo;
pub use recovery::{Adopt, Missing, RecoveredVolume, RecoveryInfo, UnknownVolume};
pub use resync::{ResyncChange, ResyncInfo, ResyncState, ResyncVerb};
pub use settings::Settings;

/// A volume to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Its name: `[a-z0-9][a-z0-9._-]{0,63}`.
    pub name: String,
    /// Its size: a multiple of 4096, from 1 MiB to 64 TiB. 0 for a clone: as large as the snapshot.
    pub size: Bytes,
    /// Copies of each shard.
    #[serde(default = "default_copies")]
    pub copies: u8,
    /// Size of its shards: 4096 times a power of two.
    #[serde(default = "default_shard")]
    pub shard_size: Bytes,
    /// Fewest in-sync copies that may acknowledge a write.
    #[serde(default = "default_min_copies")]
    pub min_copies: u8,
    /// When a write is acknowledged.
    #[serde(default)]
    pub durability: Durability,
    /// `VOLUME@SNAPSHOT` that it begins as a clone of. Its shards are as large as the parent's, whatever `shard_size` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

impl NewVolume {
    /// A volume with the defaults for everything else.
    pub fn new(name: impl Into<String>, size: Bytes) -> Self {
        Self {
            name: name.into(),
            size,
            copies: default_copies(),
            shard_size: default_shard(),
            min_copies: default_min_copies(),
            durability: Durability::Always,
            parent: None,
        }
    }

    /// A clone of `VOLUME@SNAPSHOT`, as large as that.
    pub fn clone_of(name: impl Into<String>, parent: impl Into<String>) -> Self {
        Self { parent: Some(parent.into()), ..Self::new(name, Bytes(0)) }
    }
}

fn default_copies() -> u8 {
    limits::DEFAULT_COPIES
}
fn default_shard() -> Bytes {
    DEFAULT_SHARD
}
fn default_min_copies() -> u8 {
    limits::DEFAULT_MIN_COPIES
}

/// A volume's new size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Larger than before.
    pub size: Bytes,
}

/// A volume's new name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// That nothing else has.
    pub name: String,
    /// Although somebody reads a snapshot of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// A snapshot to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// Its name: as of a volume, and none other of the volume's snapshots has it.
    pub name: String,
}

/// Where a snapshot is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotState {
    /// Not to be used yet: its barrier is being placed on every copy (rule 17).
    Creating,
    /// It can be read, cloned, copied from and rolled back to.
    Complete,
    /// Its copies are being forgotten; its name is free.
    Deleting,
}

/// A snapshot in a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: SnapshotId,
    /// Its volume's name.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// The volume's size at that time.
    pub size: Bytes,
    /// When it was asked for.
    pub created: Millis,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// Copies that are still to forget it.
    pub drops_left: u32,
    /// Volumes that need it: clones that are not flattened.
    pub clones: Vec<String>,
}

/// How far something long has come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Parts done: bytes, or copies, as said where it is used.
    pub done: u64,
    /// Of so many.
    pub of: u64,
    /// Why it does not come further, if it does not.
    pub reasons: Vec<String>,
}

/// A range to be copied from a snapshot into another volume, at the same offset (rule 16).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRange {
    /// `VOLUME@SNAPSHOT`: what to copy from.
    pub source: String,
    /// First byte, in both: a multiple of 4096.
    pub offset: Bytes,
    /// How many: a multiple of 4096.
    pub length: Bytes,
}

/// A copy-range that is under way, or ended before it was done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyRangeInfo {
    /// Its number.
    pub id: OrderId,
    /// `VOLUME@SNAPSHOT`: what is copied from.
    pub source: String,
    /// The volume that is copied into.
    pub volume: String,
    /// First byte.
    pub offset: Bytes,
    /// How many.
    pub length: Bytes,
    /// When it was asked for.
    pub started: Millis,
    /// In bytes.
    pub progress: Progress,
    /// Why it was given up, if it was: what was copied by then stays.
    pub failed: Option<String>,
    /// All is copied. It is listed for ten minutes, or until others need the room.
    #[serde(default)]
    pub done: bool,
}

/// What to do about a volume's scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubVerb {
    /// Begin, or go on with the new rate if it runs or is paused.
    Start,
    /// Stop for now.
    Pause,
    /// Go on where it was paused.
    Resume,
    /// Stop, and forget how far it was.
    Cancel,
}

/// A change of a volume's scrub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scrub {
    /// What to do.
    pub verb: ScrubVerb,
    /// Most bytes per second that are read on each copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bytes>,
}

/// Whether a volume is being scrubbed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubState {
    /// No.
    #[default]
    Idle,
    /// Yes.
    Running,
    /// Begun, and waiting for somebody to resume it.
    Paused,
}

/// How a volume's scrubs stand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubInfo {
    /// The volume's name.
    pub volume: String,
    /// Whether one is under way.
    pub state: ScrubState,
    /// Most bytes per second that it reads on each copy.
    pub rate: Bytes,
    /// When it began, or the last one did.
    pub started: Option<Millis>,
    /// When the last one was through.
    pub finished: Option<Millis>,
    /// In bytes of the volume.
    pub progress: Progress,
    /// Damaged blocks met by this one, or the last one, on all copies.
    pub damaged: u64,
    /// Of these, put right.
    pub repaired: u64,
    /// Damaged blocks met by all scrubs of this volume.
    pub damaged_ever: u64,
    /// Of these, put right.
    pub repaired_ever: u64,
}

/// How full a disk is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fullness {
    /// There is room.
    Room,
    /// More than `limits::NEAR_FULL_PERCENT` is used.
    NearFull,
    /// More than `limits::FULL_PERCENT` is used: writes that need space fail soon, or do already.
    Full,
}

/// A disk's space.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskSpace {
    /// Its node.
    pub node: NodeId,
    /// The node's machine.
    pub host: String,
    /// The disk.
    pub disk: DiskId,
    /// False if its node runs without it, or is not heard: the numbers are old.
    pub present: bool,
    /// Its size for data.
    pub capacity: Bytes,
    /// In use.
    pub used: Bytes,
    /// The rest.
    pub free: Bytes,
    /// Sum of the sizes of the shards placed on it.
    pub provisioned: Bytes,
    /// How full it is.
    pub fullness: Fullness,
}

/// A volume's space.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeSpace {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// What all its copies hold by themselves, snapshots included, what is shared with a parent not; unknown until every node with a
    /// copy has counted.
    pub used: Option<Bytes>,
    /// The least that any disk with a copy of it has left: what it can grow by at least, if nothing else does.
    pub free: Bytes,
    /// Its snapshots.
    pub snapshots: u32,
    /// The fullest disk with a copy of it.
    pub fullness: Fullness,
}

/// Who uses what space.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Space {
    /// A disk that is used by more than so many percent is nearly full.
    pub near_full_percent: u32,
    /// And by more than so many, full.
    pub full_percent: u32,
    /// All disks.
    pub disks: Vec<DiskSpace>,
    /// All volumes but those being deleted.
    pub volumes: Vec<VolumeSpace>,
}

/// Where a volume is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// It can be attached.
    Active,
    /// Its copies are being deleted; its name is free.
    Deleting,
}

/// How things are, in one word; the worse is the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// As many copies as are wanted are in sync.
    Healthy,
    /// Copies are being filled; writes go on.
    Resyncing,
    /// Copies are missing; writes go on.
    Degraded,
    /// Some writes wait.
    Waiting,
    /// No copy that holds every write is left, until a disk comes back.
    Lost,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Healthy => "healthy",
            Self::Resyncing => "resyncing",
            Self::Degraded => "degraded",
            Self::Waiting => "waiting",
            Self::Lost => "lost",
        })
    }
}

/// How far the filling of copies is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FillInfo {
    /// Copies that are being filled: the bytes are theirs.
    pub copies: u32,
    /// Copies that are in reach, and wait their turn.
    pub waiting: u32,
    /// Where those and these are.
    #[serde(default)]
    pub nodes: Vec<NodeId>,
    /// Bytes done.
    pub done: Bytes,
    /// Bytes to do in all, as far as their primaries know.
    pub of: Bytes,
    /// Bytes per second, lately.
    pub rate: Bytes,
}

/// How lately a node was heard from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Less than `limits::ALIVE_MS` ago.
    Alive,
    /// In between.
    Late,
    /// More than `limits::DEAD_MS` ago.
    Dead,
}

/// A disk in a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskInfo {
    /// The disk.
    pub disk: DiskId,
    /// Where it is served.
    pub endpoint: SocketAddr,
    /// And where else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<TransportAddress>,
    /// Where it is, or was, on its node's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// False if its node runs without it.
    pub present: bool,
    /// How it failed, if it did: its node has it open, and nothing on it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// It is to be emptied and forgotten.
    pub leaving: bool,
    /// The disk that takes its place, if it is being replaced.
    #[serde(default)]
    pub successor: Option<DiskId>,
    /// Its size for data.
    pub capacity: Bytes,
    /// Bytes in use, as its node said last; 0 before it did.
    pub used: Bytes,
    /// Sum of the sizes of the shards placed on it. May exceed the capacity: volumes are thin.
    pub provisioned: Bytes,
    /// Copies on it.
    pub copies: u32,
    /// How full it is.
    pub fullness: Fullness,
    /// Blocks that did not read as they were written, since its node opened it.
    pub damaged: u64,
    /// Of these, put right with another copy's content.
    pub repaired: u64,
}

/// A node in a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The node.
    pub node: NodeId,
    /// Its machine.
    pub host: String,
    /// The rack that its machine is in; empty if nobody said so.
    #[serde(default)]
    pub rack: String,
    /// The version of Trine that it runs; empty if it did not say.
    #[serde(default)]
    pub version: String,
    /// How lately it was heard from.
    pub state: NodeState,
    /// What is wanted of it.
    pub duty: Duty,
    /// Milliseconds since then, or since this conductor started.
    pub silent_ms: u64,
    /// It was heard since then: how much of its disks is in use, and whether they failed, is known.
    #[serde(default = "usually")]
    pub heard: bool,
    /// Shards that it is primary of.
    pub primaries: u32,
    /// Copies on its disks that nobody needs, and that it has still to delete.
    #[serde(default)]
    pub to_delete: u32,
    /// Its disks.
    pub disks: Vec<DiskInfo>,
}

/// Of a node, if an older conductor does not say it.
fn usually() -> bool {
    true
}

/// A volume in a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// Size of its shards.
    pub shard_size: Bytes,
    /// How many shards it has.
    pub shards: u32,
    /// Copies of each.
    pub copies: u8,
    /// Fewest in-sync copies that may acknowledge a write.
    pub min_copies: u8,
    /// When it was created.
    pub created: Millis,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Copies that are still to be deleted.
    pub drops_left: u32,
    /// How it is.
    pub health: Health,
    /// Why it is not healthy, and what to do; the worst few reasons.
    pub reasons: Vec<String>,
    /// How far the filling of its copies is, if there is something to fill.
    pub filling: Option<FillInfo>,
    /// The newest attach generation.
    pub attach: AttachGeneration,
    /// Who may write to it.
    pub attachment: Option<Attachment>,
    /// Who reads it, if nobody may write to it.
    #[serde(default)]
    pub readers: Vec<Reader>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// `VOLUME@SNAPSHOT` that it is a clone of, until it is flattened.
    pub parent: Option<String>,
    /// Its snapshots, those being deleted not counted.
    pub snapshots: u32,
    /// The rollback that is under way.
    pub rollback: Option<RollbackInfo>,
    /// The rollback that was cancelled last, if nobody could write since.
    #[serde(default)]
    pub cancelled_rollback: Option<CancelledRollback>,
    /// How far flattening is, in copies, if it is under way.
    pub flatten: Option<Progress>,
    /// How its scrubs stand, once there was one.
    pub scrub: Option<ScrubInfo>,
}

/// A rollback under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RollbackInfo {
    /// To this snapshot.
    pub snapshot: String,
    /// From here on the volume, which has grown since the snapshot, reads as zeros.
    #[serde(default)]
    pub zeros_from: Option<Bytes>,
    /// In shards.
    pub progress: Progress,
}

/// What a volume reads as whose rollback was cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CancelledRollback {
    /// To this snapshot.
    pub snapshot: String,
    /// Ranges that read as the snapshot, in order; beyond its end as zeros.
    pub done: Vec<VolumeRange>,
    /// The others: each shard of them as before, or, where its primary was at it just then, as those; one that came after the snapshot may
    /// have been zeroed in part.
    pub left: Vec<VolumeRange>,
}

/// A range of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeRange {
    /// Its first byte.
    pub offset: Bytes,
    /// How many bytes.
    pub length: Bytes,
}

/// One volume with everything about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeDetail {
    /// As in the listing.
    pub info: VolumeInfo,
    /// Every shard's configuration.
    pub shards: Vec<Configuration>,
}

/// Sums over the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// Nodes known.
    pub nodes: u32,
    /// Nodes alive.
    pub nodes_alive: u32,
    /// Volumes, without those being deleted.
    pub volumes: u32,
    /// Of these, volumes whose copies are being filled.
    pub volumes_resyncing: u32,
    /// Volumes that miss copies.
    pub volumes_degraded: u32,
    /// Volumes that wait.
    pub volumes_waiting: u32,
    /// Volumes that lost something.
    pub volumes_lost: u32,
    /// Shards.
    pub shards: u32,
    /// Size of all disks that are present.
    pub capacity: Bytes,
    /// Bytes in use on them.
    pub used: Bytes,
    /// Sum of the sizes of all copies.
    pub provisioned: Bytes,
    /// Damaged blocks met on all disks since their nodes opened them.
    pub damaged: u64,
    /// Of these, put right.
    pub repaired: u64,
}

/// The cluster at a glance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The cluster.
    pub cluster: ClusterId,
    /// Where the conductor that answers says that it can be reached: it leads.
    #[serde(default)]
    pub leader: String,
    /// The conductor's commit number.
    pub commit: u64,
    /// Of the volume that is worst off.
    pub health: Health,
    /// Why the conductor changes nothing, if it is in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// Nodes of other clusters that ask to be taken: none of them is used by this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedNode>,
    /// Sums.
    pub totals: Totals,
    /// What needs somebody's attention soon although I/O goes on: disks nearly full, damage that was not put right.
    pub warnings: Vec<String>,
    /// What is worth knowing, and asks nobody for anything: damage that was met.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Whether copies are moved so that disks are evenly used and copies far apart.
    #[serde(default)]
    pub rebalance: RebalanceInfo,
    /// What somebody has set for the whole cluster.
    #[serde(default)]
    pub settings: Settings,
    /// All nodes.
    pub nodes: Vec<NodeInfo>,
    /// All volumes.
    pub volumes: Vec<VolumeInfo>,
}

/// A node that has asked just now to be taken, and belongs to another cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedNode {
    /// Its number.
    pub node: NodeId,
    /// Where it runs.
    pub host: String,
    /// Where it belongs.
    pub cluster: ClusterId,
}

/// What runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Version {
    /// The program's version.
    pub version: String,
    /// The cluster it leads.
    pub cluster: ClusterId,
    /// The conductor's commit number.
    pub commit: u64,
}

/// The body of every answer that is not a success.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// `Error::kind`, or one of the service's own.
    pub error: String,
    /// One sentence.
    pub message: String,
    /// Who would answer: of the kind `NOT_LEADER`, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}
