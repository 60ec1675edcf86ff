//! What a front end asks for, and what it is told.

use crate::claims::Range;
use conductor_model::{Bytes, VolumeId};
use memory::{Part, Reads};
use node_protocol::Status;
use smallvec::SmallVec;
use wire::Crcs;

/// One request of a front end.
#[derive(Debug)]
pub struct BlockRequest {
    /// The front end's own name for it; comes back with the completion.
    pub tag: u64,
    /// What to do.
    pub op: BlockOp,
    /// First byte in the volume; any alignment.
    pub offset: Bytes,
    /// How many bytes; 0 completes at once.
    pub len: Bytes,
    /// A change is to be durable when it completes (FUA), even under `durability = flush`.
    pub fua: bool,
}

/// Kinds of requests.
#[derive(Debug)]
pub enum BlockOp {
    /// Completes with the bytes.
    Read,
    /// Completes with what of it may hold something else than zeros, from its first byte on, as far as one primary says at a time: ask again
    /// for what follows.
    Extents,
    /// Write the first `len` bytes of `data`.
    Write {
        /// Memory that holds at least `len` bytes.
        data: Reads,
        /// The CRC32C of each 4 KiB piece of those bytes, if the front end has them; else they are computed here.
        crcs: Option<Crcs>,
    },
    /// The range reads as zeros afterwards.
    WriteZeroes,
    /// The range is not needed any more. Only whole blocks are discarded; partial ones at its ends keep their content.
    Discard,
    /// All writes of the attachment that completed before, on whichever lane, are durable. Under `durability = always` they were when
    /// they completed, and this completes at once; under `durability = flush` each shard with unflushed writes is asked (rule 18).
    Flush,
}

impl BlockOp {
    /// True if it changes the volume.
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteZeroes | Self::Discard)
    }
}

/// A request that is over.
#[derive(Debug)]
pub struct Completion {
    /// The front end's name for it.
    pub tag: u64,
    /// How it ended.
    pub result: Result<BlockDone, BlockError>,
}

/// A piece of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// How long it is.
    pub len: Bytes,
    /// It may hold something else than zeros.
    pub is_data: bool,
}

/// A request that succeeded.
#[derive(Debug)]
pub enum BlockDone {
    /// The bytes, in order: the parts cover exactly what was asked for.
    Read(SmallVec<[Part; 1]>),
    /// What there is, in order, from the first byte on. Neighbours differ. Nothing only if nothing was asked for.
    Extents(Vec<Extent>),
    /// Anything else.
    Done,
}

/// Why a request failed. A change that failed may have taken effect, in part or in whole, like any disk's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// It ends after the end of the volume.
    #[error("the range ends after the end of the volume")]
    OutOfRange,
    /// Longer than `MAX_READ` or `MAX_PARTS` allow, or longer than its data.
    #[error("the request is too long, or longer than its data")]
    BadLength,
    /// The volume is attached read-only.
    #[error("the volume is attached read-only")]
    ReadOnly,
    /// No space on the volume's disks.
    #[error("no space left on the volume's disks: add disks or delete data")]
    NoSpace,
    /// The primary's disk failed, or a block does not match its checksum.
    #[error("the volume's disk failed, or a block does not match its checksum")]
    Io,
    /// All copies lost their caches since: what was acknowledged before this flush, and not flushed, may be lost (rule 18).
    #[error("what was written before and not flushed may be lost: all copies of a shard were started again")]
    CacheLost,
    /// The node does not let this client do that.
    #[error("the node denies this client access to the volume")]
    Denied,
    /// The volume is shared, and what is to be changed is not in a range that is held for writing.
    #[error("the volume is shared, and this is in no range that this client holds for writing")]
    NotHeld,
    /// Another client has the range since the last connection or primary was lost.
    #[error("the range was lost: another client of the shared volume holds it")]
    RangeLost,
    /// The node found fault with the request.
    #[error("the node refused the request: {0:?}")]
    Refused(Status),
    /// `--io-timeout` passed.
    #[error("not answered within the I/O timeout")]
    TimedOut,
    /// A newer attachment of the volume exists, or it was deleted.
    #[error("fenced: the volume was attached again elsewhere, or deleted")]
    Fenced,
    /// The client was stopped.
    #[error("the volume client was stopped")]
    Stopped,
}

impl BlockError {
    /// The kernel's number for it.
    pub fn errno(self) -> driver::Errno {
        const PERMISSION: driver::Errno = driver::Errno(1);
        const ACCESS: driver::Errno = driver::Errno(13);
        const INVALID: driver::Errno = driver::Errno(22);
        match self {
            // What was read from is deleted: the request is as good as before.
            Self::Refused(Status::NoSnapshot) => driver::Errno::IO,
            Self::OutOfRange | Self::BadLength | Self::Refused(_) => INVALID,
            Self::ReadOnly | Self::NotHeld => PERMISSION,
            Self::Denied => ACCESS,
            Self::NoSpace => driver::Errno::NO_SPACE,
            Self::TimedOut => driver::Errno::TIMED_OUT,
            Self::Io | Self::CacheLost | Self::Fenced | Self::RangeLost | Self::Stopped => driver::Errno::IO,
        }
    }
}

/// Why there is no client.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    /// The map contradicts itself.
    #[error("the map of volume {0} is damaged: {1}")]
    Map(VolumeId, &'static str),
    /// The name cannot be sent, or is empty.
    #[error("a client cannot be called {0:?}: 1 to 64 bytes")]
    Name(String),
    /// The conductor's proof of the attachment is none.
    #[error("the conductor's answer to the attach is damaged: its ticket is not 64 hexadecimal digits")]
    Ticket,
    /// A range that there cannot be.
    #[error("the range {0} is not of whole blocks of 4096 bytes, one at least")]
    Range(Range),
    /// A range that is not all there.
    #[error("the range {0} reaches beyond the end of the volume, which has {1}")]
    Beyond(Range, Bytes),
    /// More than one attachment may hold.
    #[error("one attachment holds at most {max} ranges", max = crate::limits::MAX_RANGES)]
    TooManyRanges,
    /// Not even one block.
    #[error("no memory for a volume client: make its arena larger")]
    NoMemory,
}
