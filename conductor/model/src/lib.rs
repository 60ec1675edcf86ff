//! Ids, units, the volume map, epochs, placement and membership: everything the cluster agrees on.
//!
//! Pure: a command and the time go in, a new state and its answer come out. No network, no file, no clock, no tokio. The
//! conductor's service persists what comes out before it answers; the simulator runs the very same code.
#![forbid(unsafe_code)]

mod address;
mod adopt;
pub mod api;
mod attach;
pub mod card;
mod clients;
mod clones;
pub mod config;
mod copy_ranges;
mod domains;
mod doubt;
mod duties;
mod error;
pub mod events;
mod handle;
mod health;
mod held;
pub mod ids;
mod keys;
pub mod limits;
mod membership;
mod nodes;
mod orders;
mod placement;
mod promotion;
mod rebalance;
pub mod record;
mod replacement;
mod resync;
mod rollback;
mod scrubs;
mod settings;
mod snapshots;
mod space;
mod state;
mod status;
pub mod units;
pub mod views;
mod volumes;
mod work;

pub use address::TransportAddress;
pub use config::{Configuration, CopyState, Durability, Member, ShardSnapshot};
pub use error::{Class, Error, NODE_ELSEWHERE, NOT_LEADER, UNKNOWN_NODE};
pub use handle::{Answer, Request};
pub use held::{Held, HeldKind};
pub use ids::{
    AttachGeneration, ClusterId, Commit, CopyId, DiskId, Epoch, Incarnation, NodeId, NotAnId, OpenId, OrderId,
    Sequence, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId,
};
pub use keys::Rotated;
pub use record::{Dirty, Key, Record};
pub use snapshots::split_snapshot;
pub use state::{Conductor, Corrupt, Draw};
pub use units::{BLOCK, BlockRange, Blocks, Bytes, DEFAULT_SHARD, Millis, SECTOR};
pub use volumes::{check_snapshot_name, check_volume_name};
