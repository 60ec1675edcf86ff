//! A conductor whose state may be from the past, or was lost: what it waits for, and how it is told to go on.

use crate::{ClusterId, CopyId, DiskId, Millis, NodeId, VolumeId};
use serde::{Deserialize, Serialize};

/// What to go on with.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adopt {
    /// What is lost and not waited for: copies (`c…`), disks (`d…`), nodes (`n…`).
    #[serde(default)]
    pub without: Vec<String>,
    /// The sentence that the last refusal asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<String>,
    /// Change nothing, only say how it would be.
    #[serde(default)]
    pub dry_run: bool,
}

/// How a conductor in doubt stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecoveryInfo {
    /// The cluster; k0000000000000000 until the first node has said it.
    pub cluster: ClusterId,
    /// Since when.
    pub since: Millis,
    /// Why.
    pub why: String,
    /// Nodes that have said what they hold.
    pub heard: Vec<NodeId>,
    /// What is known of volumes.
    pub volumes: Vec<RecoveredVolume>,
    /// What has to be heard of, or left out.
    pub missing: Vec<Missing>,
    /// What would be lost, or may be; one sentence each.
    pub risks: Vec<String>,
    /// The sentence that accepts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// Volumes that this state knows and no node holds anything of: deleted since.
    pub deleted: Vec<String>,
    /// Volumes of which copies exist, and nothing else is known: they are kept and not touched.
    pub unknown: Vec<UnknownVolume>,
    /// What to do next.
    pub next: String,
    /// True if it is over: the conductor leads the cluster again.
    pub adopted: bool,
}

/// A volume as it will be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecoveredVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its shards.
    pub shards: u32,
    /// Of these, how many have everything that is needed to go on.
    pub ready: u32,
    /// Its snapshots.
    pub snapshots: u32,
    /// What is not as it was; one sentence each.
    pub notes: Vec<String>,
}

/// Copies that nothing was heard of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// Their node; n0 if nobody knows.
    pub node: NodeId,
    /// Their disk.
    pub disk: DiskId,
    /// The volume.
    pub volume: String,
    /// How many.
    pub copies: u32,
    /// One of them.
    pub first: CopyId,
    /// Why they are missing, and what to do.
    pub why: String,
}

/// Copies of a volume that nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnknownVolume {
    /// Its id.
    pub id: VolumeId,
    /// How many copies of it there are.
    pub copies: u32,
    /// On these nodes.
    pub nodes: Vec<NodeId>,
}
