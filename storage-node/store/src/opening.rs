//! What every engine says of formatting and opening a disk: whose it is, what is wanted, why it cannot be.

use conductor_model::{Bytes, DiskId, NodeId};
use driver::{DiskIndex, Errno};

/// Whose disk it is, as named in its superblocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: u64,
    /// The node it was formatted for.
    pub node: NodeId,
    /// The disk itself; drawn at random at each format, so that what an older store left behind is foreign.
    pub disk: DiskId,
}

/// What to open.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Which disk.
    pub disk: DiskIndex,
    /// Its size now.
    pub size: Bytes,
    /// The cluster it must belong to, if that is known.
    pub cluster: Option<u64>,
    /// The node it must belong to, if that is known.
    pub node: Option<NodeId>,
}

/// Why a disk cannot be formatted or opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither superblock is ours.
    #[error(
        "the disk holds no store: --format makes an empty one; if one was here, `trine disk replace` has its copies made again"
    )]
    NotAStore,
    /// A store of another format.
    #[error("the store has format version {0}, which this program does not know")]
    Version(u32),
    /// It would be overwritten.
    #[error("the disk already holds a store")]
    AlreadyFormatted,
    /// A store is to be replaced by one of the same name.
    #[error("the disk already holds a store named {0}: a new one needs a new disk id")]
    SameDiskId(DiskId),
    /// The disk became smaller.
    #[error(
        "the store needs {need} but the disk has {have}: give that back, or `trine disk replace` has its copies made again on another one"
    )]
    Truncated {
        /// What the store was formatted for.
        need: Bytes,
        /// What there is.
        have: Bytes,
    },
    /// Not ours.
    #[error("the store belongs to cluster {0:016x}")]
    OtherCluster(u64),
    /// Not this node's.
    #[error("the store belongs to node {0}")]
    OtherNode(NodeId),
    /// Metadata does not read as it was written; replace the disk's copies from other nodes.
    #[error(
        "the store is damaged: {0} (`trine store check` says more): put an empty disk in its place: what other nodes hold, too, is copied from them, and what was on this disk alone is lost"
    )]
    Damaged(&'static str),
    /// Its journal was not named, or one was that it has not.
    #[error("the store has its journal {}", if *.elsewhere { "on another disk: name that (--journal)" } else { "on the disk itself: name no other one" })]
    Journal {
        /// The journal is on a disk of its own.
        elsewhere: bool,
    },
    /// The disk failed.
    #[error("the disk failed: {0}")]
    Disk(Errno),
    /// No memory for a buffer.
    #[error("no memory to open the store")]
    Memory,
}
