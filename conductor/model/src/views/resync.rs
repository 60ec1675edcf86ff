//! Copies that are not in sync, and what people want of their filling.

use crate::{Bytes, CopyId, DiskId, NodeId, ShardId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a copy that is not in sync is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResyncState {
    /// It is being filled.
    Filling,
    /// It is in reach, and waits its turn.
    Waiting,
    /// Its filling was ended by hand, and is not begun again before somebody says so.
    Aborted,
    /// Its disk is out of reach.
    Away,
}

impl fmt::Display for ResyncState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filling => "filling",
            Self::Waiting => "waiting",
            Self::Aborted => "aborted",
            Self::Away => "away",
        })
    }
}

/// A copy that is not in sync.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResyncInfo {
    /// Its volume's name.
    pub volume: String,
    /// Its shard.
    pub shard: ShardId,
    /// The copy.
    pub copy: CopyId,
    /// Its node.
    pub node: NodeId,
    /// Its disk.
    pub disk: DiskId,
    /// The node that it is filled from.
    pub from: Option<NodeId>,
    /// How it stands.
    pub state: ResyncState,
    /// Bytes done, what need not be copied included; 0 while it is not being filled.
    pub done: Bytes,
    /// Bytes in all.
    pub of: Bytes,
    /// Bytes copied per second, lately.
    pub rate: Bytes,
    /// Seconds until it is done, at most; none while nothing moves.
    pub eta_seconds: Option<u64>,
}

/// What is wanted of the filling of copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResyncVerb {
    /// To end, and not to begin again.
    Abort,
    /// To go on.
    Resume,
}

impl fmt::Display for ResyncVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Abort => "abort",
            Self::Resume => "resume",
        })
    }
}

/// The same, for some copies of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResyncChange {
    /// What.
    pub verb: ResyncVerb,
    /// These; without any, all that are not in sync.
    #[serde(default)]
    pub copies: Vec<CopyId>,
}
