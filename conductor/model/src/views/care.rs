//! What people want of nodes, disks and the number of copies.

use crate::{Bytes, DiskId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is wanted of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duty {
    /// To serve, and to take new copies.
    #[default]
    Serving,
    /// To serve what it has, and to take no new copies.
    Cordoned,
    /// To be emptied: its copies move to other nodes.
    Draining,
    /// To be forgotten: its copies are made anew on other nodes.
    Removed,
}

impl fmt::Display for Duty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Removed => "to be forgotten",
        })
    }
}

/// How far one is ready to go.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Force {
    /// Copies may go that can be made anew from others.
    pub force: bool,
    /// And the last copies of these volumes: the sentence that names them, as the refusal without it does.
    pub sentence: Option<String>,
}

impl From<bool> for Force {
    fn from(force: bool) -> Self {
        Self { force, sentence: None }
    }
}

/// A change of what is wanted of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDuty {
    /// What is wanted.
    pub duty: Duty,
    /// Although copies are still on it.
    #[serde(default)]
    pub force: bool,
    /// Although it has the last copy of something: the sentence that the refusal without it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
}

/// A disk to be emptied and forgotten.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveDisk {
    /// Although copies are on it, and it is not there.
    #[serde(default)]
    pub force: bool,
    /// Although it has the last copy of something: the sentence that the refusal without it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
}

/// A disk whose copies are to be made on another disk of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceDisk {
    /// That one.
    pub with: DiskId,
}

/// A disk that may be about to take another one's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckReplacement {
    /// Its size for data.
    pub capacity: Bytes,
}

/// Whether copies are moved so that disks are evenly used and copies far apart.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RebalanceInfo {
    /// False if the conductor was told not to.
    pub on: bool,
    /// Shards that have a copy on its way to another disk.
    pub moving: u32,
    /// Copies moved since this conductor started.
    pub moved: u64,
    /// Percentage points between the most and the least used disk, as far as copies were counted.
    pub uneven_percent: u32,
    /// What it waits for, if it does.
    pub waits: Option<String>,
}

/// What is set for the whole cluster; as a change, what is not named is not set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How many bytes per second each reactor of a node may read to fill copies; without it as many as it can, at 0 none is filled.
    #[serde(default)]
    pub fill_rate: Option<Bytes>,
}

impl Settings {
    /// Is nothing set?
    pub fn are_untouched(&self) -> bool {
        *self == Self::default()
    }
}

/// A change of a volume's copies; what is not named stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewCopies {
    /// Copies of each shard.
    #[serde(default)]
    pub copies: Option<u8>,
    /// Fewest in-sync copies that may acknowledge a write.
    #[serde(default)]
    pub min_copies: Option<u8>,
}
