//! Names of things. Each is its own type, so that one cannot be passed for another; none is ever used again for
//! something else (a number drawn at random has 64 bits, a counted one only grows).

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($of:ty) $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $of);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(/// A volume: what a host attaches. Counted up by the conductor, never used twice.
    VolumeId(u32) "v{}");
id!(/// The position of a shard in its volume: byte offset / shard size.
    ShardIndex(u32) "{}");
id!(/// A storage node: one process per machine. Chosen by the operator, 1 or more.
    NodeId(u32) "n{}");
id!(/// One disk (a file or block device with one store), drawn at random when it is formatted.
    DiskId(u64) "d{:016x}");
id!(/// One copy of one shard, drawn at random when the copy is created empty (K = 0); never listed again once unlisted.
    CopyId(u64) "c{:016x}");
id!(/// Drawn at random each time a store is opened, kept in memory only: a restart is noticed by the first message.
    OpenId(u64) "o{:016x}");
id!(/// Version of one process's life; a client's higher one fences its lower ones.
    Incarnation(u64) "i{}");
id!(/// Version of a shard's replica configuration. 0 is "none yet"; the first is 1.
    Epoch(u64) "e{}");
id!(/// Position of a write in its shard's order within an epoch. 0 is "none yet"; the first is 1.
    Sequence(u64) "{}");
id!(/// One cluster: drawn at random when its conductor starts for the first time.
    ClusterId(u64) "k{:016x}");
id!(/// Number of a conductor's transaction; the first is 1, and it only grows.
    Commit(u64) "#{}");
id!(/// A snapshot of a volume: counted up by the conductor, never used twice in a cluster.
    SnapshotId(u64) "s{}");
id!(/// Something the conductor has given a node to do: counted up, never used twice in a cluster.
    OrderId(u64) "q{}");
id!(/// Version of a volume's attachment; nodes refuse lower ones. 0 is "never attached".
    AttachGeneration(u64) "g{}");

/// A shard: a fixed-size range of a volume, the unit of placement and replication.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ShardId {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Its position there.
    pub index: ShardIndex,
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.index)
    }
}
impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// (epoch, sequence): given to a write by the primary. Ordered by epoch first; no stamp is given out twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// The epoch it was given in.
    pub epoch: Epoch,
    /// Its place in that epoch.
    pub sequence: Sequence,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}
impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
