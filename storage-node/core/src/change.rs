//! What a stamped operation does to a copy: the same on the primary's own and on the others.
//!
//! ```text
//!   IOCB kind                                      message to other copies    Change      StoreOp
//!   Write, Settle, Rewrite, CopyRange              REPLICA_WRITE              Write       Write
//!   the same without a payload; Zero               REPLICA_ZERO               Zero        Zero
//!   Barrier                                        REPLICA_SNAPSHOT           Snapshot    Snapshot
//!   Rollback                                       REPLICA_ROLLBACK           Rollback    Rollback
//!   Share                                          REPLICA_SHARE              Share       Share
//!   Flush                                          REPLICA_FLUSH              Flush       KnownGood, Flush
//! ```

use crate::iocb::Kind;
use conductor_model::{BlockRange, Blocks, CopyId, SnapshotId, Stamp};
use node_store::{Parent, StoreOp};
use tcp::Payload;

/// A change under a stamp.
#[derive(Debug)]
pub(crate) enum Change {
    Write(Payload),
    Zero,
    Snapshot(SnapshotId),
    Rollback(SnapshotId),
    /// With a snapshot of a copy beside it.
    Share(Parent),
    Flush,
}

/// Whom it is done to, as what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) copy: CopyId,
    pub(crate) stamp: Stamp,
    pub(crate) at: BlockRange,
    pub(crate) known_good: Stamp,
    pub(crate) durable: bool,
}

impl Change {
    /// What an IOCB does: one more reader of its payload. `None` for a share that has nothing beside it.
    pub(crate) fn of(kind: Kind, payload: Option<&Payload>, beside: Option<Parent>) -> Option<Self> {
        Some(match (kind, payload) {
            (Kind::Barrier(snapshot), _) => Self::Snapshot(snapshot),
            (Kind::Rollback(snapshot), _) => Self::Rollback(snapshot),
            (Kind::Share(_), _) => Self::Share(beside?),
            (Kind::Flush, _) => Self::Flush,
            (_, Some(payload)) => Self::Write(payload.share()),
            (_, None) => Self::Zero,
        })
    }

    /// Must nothing else of the copy be in the disk beside it?
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::Snapshot(_) | Self::Rollback(_))
    }

    /// The blocks that it makes read as something else.
    pub(crate) fn replaces(&self, at: BlockRange) -> Option<BlockRange> {
        match self {
            Self::Write(_) | Self::Zero | Self::Share(_) => Some(at),
            Self::Rollback(_) => Some(BlockRange { from: Blocks(0), count: Blocks(u32::MAX) }),
            Self::Snapshot(_) | Self::Flush => None,
        }
    }

    /// For the store.
    pub(crate) fn operation(self, to: Target) -> StoreOp {
        let Target { copy, stamp, at, known_good, durable } = to;
        match self {
            Self::Write(p) => StoreOp::Write { copy, stamp, at, data: p.mem, crcs: p.crcs, known_good, durable },
            Self::Zero => StoreOp::Zero { copy, stamp, at, known_good, durable },
            Self::Snapshot(snapshot) => StoreOp::Snapshot { copy, stamp, snapshot, known_good },
            Self::Rollback(snapshot) => StoreOp::Rollback { copy, stamp, snapshot, known_good },
            Self::Share(from) => StoreOp::Share { copy, stamp, at, from, known_good },
            Self::Flush => StoreOp::Flush { copy },
        }
    }
}
