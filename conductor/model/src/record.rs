//! What the conductor persists: one record per node, volume, shard and copy to be deleted, and one for the cluster.
//!
//! A command returns the keys of the records it changed; whoever drives the model writes exactly those in one transaction
//! before the answer leaves, and can build the same state again from all records. Nothing else is remembered: liveness,
//! usage and troubles come back with the next heartbeats.

use crate::views::{Attachment, VolumeState};
use crate::{
    AttachGeneration, Bytes, ClusterId, Commit, Configuration, CopyId, DiskId, Millis, NodeId, OpenId, ShardId,
    VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
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
}

/// A node as it last registered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: NodeId,
    /// Its machine.
    pub host: String,
    /// Its disks, in the order of their ids; also those missing from its last registration.
    pub disks: Vec<DiskRecord>,
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
    /// The transaction that changed `endpoint` last: primaries that have seen an older one are told again.
    pub endpoint_at: Commit,
    /// Its size for data.
    pub capacity: Bytes,
    /// False if its node's last registration did not name it.
    pub present: bool,
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
    /// Who has it, if anybody.
    pub attachment: Option<Attachment>,
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
}

/// A copy whose volume is gone, until its node has confirmed that it is deleted.
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
    /// The transaction that deleted the volume.
    pub dropped_at: Commit,
}
