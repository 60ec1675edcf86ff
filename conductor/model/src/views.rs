//! What people and tools ask of the conductor and what they are shown. Carried as JSON; the types that nodes use are in
//! `api`.

use crate::{
    AttachGeneration, Bytes, ClusterId, Configuration, DEFAULT_SHARD, DiskId, Millis, NodeId, VolumeId, limits,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A volume to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Its name: `[a-z0-9][a-z0-9._-]{0,63}`.
    pub name: String,
    /// Its size: a multiple of 4096, from 1 MiB to 64 TiB.
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
        }
    }
}

fn default_copies() -> u8 {
    limits::COPIES
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

/// A client that wants a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Its name: the same one may attach again, to recover.
    pub client: String,
    /// It will not write.
    #[serde(default)]
    pub read_only: bool,
    /// Take the volume from whoever has it.
    #[serde(default)]
    pub force: bool,
}

/// A client that is done with a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// Its name.
    pub client: String,
    /// The generation it was given.
    pub generation: AttachGeneration,
}

/// Who has a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attachment {
    /// The client.
    pub client: String,
    /// It does not write.
    pub read_only: bool,
    /// Since when.
    pub since: Millis,
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

/// Whether I/O can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Every copy is there.
    Healthy,
    /// Some writes wait; reasons are listed.
    Waiting,
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
    /// False if its node runs without it.
    pub present: bool,
    /// Its size for data.
    pub capacity: Bytes,
    /// Bytes in use, as its node said last; 0 before it did.
    pub used: Bytes,
    /// Sum of the sizes of the shards placed on it. May exceed the capacity: volumes are thin.
    pub provisioned: Bytes,
    /// Copies on it.
    pub copies: u32,
}

/// A node in a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The node.
    pub node: NodeId,
    /// Its machine.
    pub host: String,
    /// How lately it was heard from.
    pub state: NodeState,
    /// Milliseconds since then, or since this conductor started.
    pub silent_ms: u64,
    /// Shards that it is primary of.
    pub primaries: u32,
    /// Its disks.
    pub disks: Vec<DiskInfo>,
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
    /// Whether I/O can go on.
    pub health: Health,
    /// Why not; the first few reasons.
    pub reasons: Vec<String>,
    /// The newest attach generation.
    pub attach: AttachGeneration,
    /// Who has it.
    pub attachment: Option<Attachment>,
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
    /// Volumes that wait.
    pub volumes_waiting: u32,
    /// Shards.
    pub shards: u32,
    /// Size of all disks that are present.
    pub capacity: Bytes,
    /// Bytes in use on them.
    pub used: Bytes,
    /// Sum of the sizes of all copies.
    pub provisioned: Bytes,
}

/// The cluster at a glance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The cluster.
    pub cluster: ClusterId,
    /// The conductor's commit number.
    pub commit: u64,
    /// `waiting` if any volume is.
    pub health: Health,
    /// Sums.
    pub totals: Totals,
    /// All nodes.
    pub nodes: Vec<NodeInfo>,
    /// All volumes.
    pub volumes: Vec<VolumeInfo>,
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
}
