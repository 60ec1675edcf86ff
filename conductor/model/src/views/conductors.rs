//! The conductors themselves.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a conductor does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConductorRole {
    /// Answers.
    Leader,
    /// Waits for its turn, and says who leads.
    Follower,
}

impl fmt::Display for ConductorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
        })
    }
}

/// One conductor, as it sees itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConductorInfo {
    /// The program's version.
    pub version: String,
    /// Whether it leads.
    pub role: ConductorRole,
    /// Who does, if it is known.
    pub leader: Option<String>,
    /// Why that cannot be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}
