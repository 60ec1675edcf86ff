//! What is set for the whole cluster.

use crate::Bytes;
use serde::{Deserialize, Serialize};

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
