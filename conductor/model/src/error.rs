//! Why the conductor refuses a command. A refused command changes nothing.

use crate::{Bytes, ClusterId, CopyId, DiskId, NodeId, OrderId, ShardId, VolumeId};

/// `Error::kind` of the answer that makes a node register anew.
pub const UNKNOWN_NODE: &str = "unknown-node";
/// The kind of the error for a node whose number another one has that was heard just now: its predecessor, if it is heard no more soon.
pub const NODE_ELSEWHERE: &str = "node-elsewhere";
/// The kind of the error that a conductor gives that follows another one.
pub const NOT_LEADER: &str = "not-leader";
/// The way out where nobody may have the volume, and no force helps.
pub(crate) const DETACH: &str = "detach it first, or take it from who has it with `trine client evict`";

/// Whose fault it is, coarsely: HTTP makes its status of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The request can never be granted as it is.
    Invalid,
    /// What it names does not exist.
    NotFound,
    /// It contradicts the present state, which may change.
    Conflict,
    /// Whoever asks may not.
    Forbidden,
}

/// A refusal: one sentence that names the object and, where there is one, the way out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A name or a number that is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// A limit of `limits` would be passed.
    #[error("no more than {limit} {what}")]
    Limit {
        /// What there would be too many of.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// A node that has not registered, or with other disks or openings than it has now.
    #[error("unknown node {0}: register its disks first")]
    UnknownNode(NodeId),
    /// No node has this id.
    #[error("no node {0}")]
    NoNode(NodeId),
    /// A disk that another node has, or that must go back to where its copies are expected.
    #[error("disk {disk} of {asking} is already registered by {holder}: a cloned disk, or one moved with copies on it")]
    DiskElsewhere {
        /// The disk.
        disk: DiskId,
        /// Who wants to register it.
        asking: NodeId,
        /// Who has it.
        holder: NodeId,
    },
    /// A second machine with the number of a node that runs.
    #[error(
        "{node} runs on {host} with other disks, or under another host's name: give this node a number of its own, or stop that one first"
    )]
    NodeElsewhere {
        /// The number.
        node: NodeId,
        /// Where it runs.
        host: String,
    },
    /// The conductor's state may be from the past (rule 12).
    #[error("this conductor is in doubt and changes nothing: {0}; see `trine conductor adopt --dry-run`")]
    InDoubt(String),
    /// It is not.
    #[error("this conductor is not in doubt: there is nothing to adopt")]
    NotInDoubt,
    /// Not everything that is needed was heard of; one sentence with the next step.
    #[error("{0}")]
    NotReady(String),
    /// A node of another cluster.
    #[error(
        "{node} belongs to cluster {its}, this conductor leads {own}; if its own conductor's state was lost: `trine conductor recover`"
    )]
    OtherCluster {
        /// The node.
        node: NodeId,
        /// Where it belongs.
        its: ClusterId,
        /// What is led here.
        own: ClusterId,
    },
    /// No disk has this id.
    #[error("no disk {0}")]
    NoDisk(DiskId),
    /// Something that is still needed as it is.
    #[error("{what} {why}")]
    InUse {
        /// What.
        what: String,
        /// Why, and what can be done.
        why: String,
    },
    /// The volume has no such copy.
    #[error("volume {volume} has no copy {copy}: see `trine resync list`")]
    NoCopy {
        /// The volume.
        volume: String,
        /// The copy.
        copy: CopyId,
    },
    /// No volume of this name.
    #[error("no volume {0}")]
    NoVolume(String),
    /// The name is taken.
    #[error("volume {0} exists already")]
    VolumeExists(String),
    /// Too few nodes to place a shard.
    #[error("volume needs {needed} nodes, {}", up_sentence(.up))]
    TooFewNodes {
        /// Nodes needed.
        needed: u8,
        /// Nodes that could take a copy.
        up: Vec<NodeId>,
    },
    /// Disks hold as many copies as their stores have places for.
    #[error(
        "no place for another copy of a shard on {}: each disk holds as many copies as it was formatted for; add disks or nodes, or make volumes of larger shards",
        listed(.nodes)
    )]
    NoPlace {
        /// Nodes whose disks have no place.
        nodes: Vec<NodeId>,
    },
    /// Disks have no room for what new copies may come to hold.
    #[error("too few nodes with room for another copy of a shard: all disks of {} are full (`trine df`); add disks or nodes", listed(.nodes))]
    DisksFull {
        /// Nodes whose disks are all full.
        nodes: Vec<NodeId>,
    },
    /// A volume only grows.
    #[error("volume {name} has {size} already and cannot shrink to {asked}")]
    Shrink {
        /// The volume.
        name: String,
        /// Its size.
        size: Bytes,
        /// The size asked for.
        asked: Bytes,
    },
    /// It was somebody else's, or nobody's, for a while.
    #[error(
        "{client} has not had volume {name} all the time since it attached it, as far as is known here: what waits in its device, or \
         is sent again by its NBD clients, might be written over newer data. Give it up with `trine detach {name} --force`, and attach again"
    )]
    NotUnbroken {
        /// The volume.
        name: String,
        /// Who wants to go on.
        client: String,
    },
    /// Somebody else has the volume.
    #[error("volume {name} is attached by {holder}; {way_out}")]
    Attached {
        /// The volume.
        name: String,
        /// Who has it.
        holder: String,
        /// What can be done.
        way_out: &'static str,
    },
    /// No snapshot of this name.
    #[error("volume {volume} has no snapshot {name}")]
    NoSnapshot {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("snapshot {volume}@{name} exists already")]
    SnapshotExists {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// The snapshot is not complete yet (rule 17).
    #[error("snapshot {volume}@{name} is still being made")]
    SnapshotIncomplete {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// All attempts failed.
    #[error("no snapshot was made: {0}")]
    SnapshotFailed(String),
    /// Something else has to end first.
    #[error("volume {name} {what}: wait until that is over")]
    Busy {
        /// The volume.
        name: String,
        /// What it does.
        what: &'static str,
    },
    /// Clones or copies need it.
    #[error("{what} is needed by {}: {way_out}", .by.join(", "))]
    Needed {
        /// The volume, or VOLUME@SNAPSHOT.
        what: String,
        /// Who needs it.
        by: Vec<String>,
        /// What can be done.
        way_out: &'static str,
    },
    /// Flattening a volume that needs nothing.
    #[error("volume {0} is no clone, or was flattened already")]
    NoClone(String),
    /// A copy that a clone has to begin beside is not there.
    #[error(
        "a clone of shard {shard} begins beside its copies, and the one on disk {disk} of {node} is not in sync, or out of reach: bring it \
         back, or wait until it is filled (`trine resync list`)"
    )]
    NotHere {
        /// The parent's shard.
        shard: ShardId,
        /// The node.
        node: NodeId,
        /// The disk.
        disk: DiskId,
    },
    /// No copy-range of this number.
    #[error("volume {volume} has no copy {id} under way")]
    NoCopyJob {
        /// The volume.
        volume: String,
        /// The number.
        id: OrderId,
    },
    /// Cancelling a rollback that is not under way.
    #[error("volume {volume} is not being rolled back to {snapshot}")]
    NoRollback {
        /// The volume.
        volume: String,
        /// The snapshot.
        snapshot: String,
    },
    /// A scrub that is not in that state.
    #[error("volume {name} {what}")]
    NoScrub {
        /// The volume.
        name: String,
        /// What it does not have.
        what: &'static str,
    },
    /// The attachment named is not the current one.
    #[error("volume {name} is not attached by {client} in that generation")]
    NotAttached {
        /// The volume.
        name: String,
        /// Who asked.
        client: String,
    },
    /// No client of this name has a volume attached.
    #[error("no client {0} has a volume attached")]
    NoClient(String),
    /// Another key has the name.
    #[error("there is a key {0} already")]
    KeyExists(String),
    /// No key has this name.
    #[error("no key {0}")]
    NoKey(String),
    /// The key that is shown is not one, or no more.
    #[error("the key {0} was removed")]
    KeyRemoved(String),
    /// The key that is shown was given out by a conductor whose state was newer.
    #[error("the key {0} is newer than this conductor's state")]
    KeyUnknown(String),
    /// The key that is shown is for other volumes.
    #[error("the key {name} is not for volume {volume}")]
    KeyOfOthers {
        /// Its name.
        name: String,
        /// What was asked for.
        volume: String,
    },
    /// The key that is shown is for reading alone.
    #[error(
        "volume {volume} is attached by {holder}, and the key {key}, which is for reading alone, takes it from nobody who writes: wait until \
         that is over, or read a snapshot of it"
    )]
    WriterStays {
        /// Its name.
        key: String,
        /// The volume.
        volume: String,
        /// Who writes to it.
        holder: String,
    },
    /// The conductor's record of the shard is in doubt (rule 12).
    #[error("shard {shard} is not changed: {why}")]
    Distrusted {
        /// The shard.
        shard: ShardId,
        /// Where the doubt comes from.
        why: String,
    },
    /// The random source gave the same number again and again.
    #[error("no fresh copy id for {0}: the random source repeats itself")]
    BadDraw(VolumeId),
}

impl Error {
    /// One word for programs, stable over versions.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::Limit { .. } => "limit",
            Self::UnknownNode(_) => UNKNOWN_NODE,
            Self::NoNode(_) => "no-node",
            Self::NoDisk(_) => "no-disk",
            Self::InUse { .. } => "in-use",
            Self::DiskElsewhere { .. } => "disk-elsewhere",
            Self::NodeElsewhere { .. } => NODE_ELSEWHERE,
            Self::InDoubt(_) => "in-doubt",
            Self::NotInDoubt => "not-in-doubt",
            Self::NotReady(_) => "not-ready",
            Self::OtherCluster { .. } => "other-cluster",
            Self::NoCopy { .. } => "no-such-copy",
            Self::NoVolume(_) => "no-volume",
            Self::VolumeExists(_) => "volume-exists",
            Self::TooFewNodes { .. } => "too-few-nodes",
            Self::NoPlace { .. } => "no-place",
            Self::DisksFull { .. } => "disks-full",
            Self::Shrink { .. } => "shrink",
            Self::Attached { .. } => "attached",
            Self::NotUnbroken { .. } => "not-unbroken",
            Self::NoSnapshot { .. } => "no-snapshot",
            Self::SnapshotExists { .. } => "snapshot-exists",
            Self::SnapshotIncomplete { .. } => "snapshot-incomplete",
            Self::SnapshotFailed(_) => "snapshot-failed",
            Self::Busy { .. } => "busy-volume",
            Self::Needed { .. } => "needed",
            Self::NoClone(_) => "no-clone",
            Self::NotHere { .. } => "not-here",
            Self::NoCopyJob { .. } => "no-copy",
            Self::NoRollback { .. } => "no-rollback",
            Self::NoScrub { .. } => "no-scrub",
            Self::NotAttached { .. } => "not-attached",
            Self::NoClient(_) => "no-client",
            Self::KeyExists(_) => "key-exists",
            Self::NoKey(_) => "no-key",
            Self::KeyRemoved(_) => "key-removed",
            Self::KeyUnknown(_) | Self::KeyOfOthers { .. } | Self::WriterStays { .. } => "forbidden",
            Self::Distrusted { .. } => "distrusted",
            Self::BadDraw(_) => "bad-draw",
        }
    }

    /// Whose fault it is.
    pub fn class(&self) -> Class {
        match self {
            Self::Invalid(_) | Self::Shrink { .. } => Class::Invalid,
            Self::UnknownNode(_) | Self::NoNode(_) | Self::NoDisk(_) | Self::NoVolume(_) => Class::NotFound,
            Self::NoSnapshot { .. } | Self::NoCopyJob { .. } | Self::NoClient(_) | Self::NoKey(_) => Class::NotFound,
            Self::NoCopy { .. } | Self::NoRollback { .. } => Class::NotFound,
            Self::KeyRemoved(_) | Self::KeyUnknown(_) | Self::KeyOfOthers { .. } | Self::WriterStays { .. } => {
                Class::Forbidden
            }
            _ => Class::Conflict,
        }
    }
}

fn listed(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

fn up_sentence(up: &[NodeId]) -> String {
    let names = listed(up);
    match up.len() {
        0 => "none is up".to_owned(),
        1 => format!("1 is up: {names}"),
        n => format!("{n} are up: {names}"),
    }
}
