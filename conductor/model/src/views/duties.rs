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
