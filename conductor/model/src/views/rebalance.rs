//! How far rebalancing is.

use serde::{Deserialize, Serialize};

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
