//! Ids, units, the volume map, epochs, placement and membership: everything the cluster agrees on.
//!
//! Pure: a command and the time go in, a new state and its answer come out. No network, no file, no clock, no tokio. The
//! conductor's service persists what comes out before it answers; the simulator runs the very same code.
#![forbid(unsafe_code)]

pub mod api;
pub mod config;
pub mod ids;
pub mod units;

pub use config::{Configuration, CopyState, Member};
pub use ids::{
    AttachGeneration, CopyId, DiskId, Epoch, Incarnation, NodeId, OpenId, Sequence, ShardId, ShardIndex, Stamp,
    VolumeId,
};
pub use units::{BLOCK, BlockRange, Blocks, Bytes, DEFAULT_SHARD, SECTOR};
