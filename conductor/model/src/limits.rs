//! Every limit of the control plane, in one place. Together they bound the conductor's memory: 262,144 shards of about
//! 1 KiB each, as many pending deletions of 32 bytes per copy, and small tables of nodes and volumes: below 512 MiB at the
//! very worst, a few megabytes in an ordinary cluster.

use crate::{BLOCK, Bytes};

/// Nodes in a cluster. Every one costs a held request; a cluster above this wants several conductors first.
pub const MAX_NODES: usize = 256;
/// Disks in a node: more than the bays of the largest servers.
pub const MAX_DISKS_PER_NODE: usize = 64;
/// Size of one disk: keeps sums over all disks of a cluster far from 64 bits' end.
pub const MAX_DISK: Bytes = Bytes(1 << 50);
/// Volumes, those being deleted included.
pub const MAX_VOLUMES: usize = 4096;
/// Size of a volume.
pub const MAX_VOLUME: Bytes = Bytes(64 << 40);
/// Smallest volume.
pub const MIN_VOLUME: Bytes = Bytes(1 << 20);
/// Shards in a volume: the largest volume in shards of the default size.
pub const MAX_SHARDS_PER_VOLUME: u64 = 16_384;
/// Shards in a cluster, and shards' worth of copies waiting for deletion: ten times the 25,600 of rule 25.
pub const MAX_SHARDS: usize = 262_144;
/// Largest shard. Well inside what `Blocks` can count, and what one disk can take.
pub const MAX_SHARD: Bytes = Bytes(64 << 30);
/// Smallest shard: a shard costs a record, a smaller one is not worth it.
pub const MIN_SHARD: Bytes = Bytes(1 << 20);
/// Copies of every shard. The only number there is for now.
pub const COPIES: u8 = 3;
/// Fewest in-sync copies that may acknowledge a write, unless the volume says otherwise.
pub const DEFAULT_MIN_COPIES: u8 = 2;
/// Length of a volume's name: fits a device name and a DNS label.
pub const MAX_VOLUME_NAME: usize = 64;
/// Length of a host's name: what DNS allows.
pub const MAX_HOST_NAME: usize = 253;
/// Length of a client's name.
pub const MAX_CLIENT_NAME: usize = 128;
/// Troubles remembered from one node's heartbeat: more do not make `trine status` any clearer.
pub const MAX_TROUBLES_PER_NODE: usize = 1024;
/// Characters remembered of one trouble's reason.
pub const MAX_REASON: usize = 256;
/// Reasons listed for one volume.
pub const MAX_REASONS_PER_VOLUME: usize = 8;
/// How often a drawn copy id may turn out to be taken. A random source that repeats itself this often is broken.
pub const MAX_DRAWS: usize = 16;
/// A disk used by more than this is nearly full: what is left of a disk of 1 TiB is an hour of 40 MB/s.
pub const NEAR_FULL_PERCENT: u32 = 85;
/// A disk used by more than this is as good as full: stores keep the last sixteenth for what gives space back.
pub const FULL_PERCENT: u32 = 93;
/// A node heard from within this time is alive: four heartbeats.
pub const ALIVE_MS: u64 = 2_000;
/// A node silent for this long is dead; between the two it is late.
pub const DEAD_MS: u64 = 10_000;

const _: () = assert!(MAX_VOLUME.0 / (4 << 30) <= MAX_SHARDS_PER_VOLUME);
const _: () = assert!(MAX_SHARD.0 / (BLOCK as u64) <= u32::MAX as u64);
