//! The bodies of the data-path messages: what a client says to a primary, and a primary to the other copies.
//!
//! `docs/protocol.md` draws every byte. All numbers are little-endian; every body is a fixed struct that is parsed with the
//! received length; a body of any other length is `BadRequest`. Every request body starts with the session prefix (session,
//! word, tag) that the connection fills in and checks; what the word means is said per body.
#![forbid(unsafe_code)]

mod bodies;
mod extents;
mod filling;
mod held;
mod status;
mod view;

pub use bodies::{
    DiskLeft, IoBody, JoinAnswer, JoinBody, LayerBody, NOT_IN_THIS_EPOCH, Prefix, PromiseAnswer, PromiseBody,
    RangeBody, ReplicaBody, ReplyBody, StaleBody, TOLD_DISKS,
};
pub use extents::{ExtentsAnswer, MAX_EXTENTS};
pub use filling::{Fill, FillBody, FillState, Mark, MarkBody, ScanBody, decode_changed, encode_changed};
pub use held::{decode_held, decode_withheld, encode_held, encode_withheld};
pub use status::Status;
pub use view::{MAX_VERIFY_BLOCKS, VerifyAnswer, ViewBody, decode_crcs, encode_crcs};

/// Message ops above the transport's own (which end at 15).
pub mod op {
    use wire::Op;

    /// Client → primary: read a byte range. Answered by a reply with the bytes as payload.
    pub const READ: Op = Op(16);
    /// Client → primary: write the payload at a byte offset; any alignment.
    pub const WRITE: Op = Op(17);
    /// Client → primary: the range, whole blocks, reads as zeros.
    pub const WRITE_ZEROES: Op = Op(18);
    /// Client → primary: the range, whole blocks, is not needed any more; it reads as zeros.
    pub const DISCARD: Op = Op(19);
    /// Client → primary: all that was acknowledged before is durable on every in-sync copy.
    pub const FLUSH: Op = Op(20);
    /// Client → primary: register a range of a shared volume, for reading or for writing, for as long as the session lasts.
    pub const REGISTER_RANGE: Op = Op(21);
    /// Client → primary: give it back.
    pub const UNREGISTER_RANGE: Op = Op(22);
    /// Client → primary: which blocks of a range, whole blocks, may hold something else than zeros.
    pub const EXTENTS: Op = Op(23);
    /// Primary → copy: write whole blocks under a stamp.
    pub const REPLICA_WRITE: Op = Op(32);
    /// Primary → copy: zero whole blocks under a stamp.
    pub const REPLICA_ZERO: Op = Op(33);
    /// Primary → copy: what the copy reads as stays readable as a snapshot. Nothing of the shard is in flight beside it.
    pub const REPLICA_SNAPSHOT: Op = Op(34);
    /// Primary → copy: read as a snapshot again. Nothing of the shard is in flight beside it.
    pub const REPLICA_ROLLBACK: Op = Op(35);
    /// Primary → copy: a range reads as that of a snapshot of another copy on the same disk.
    pub const REPLICA_SHARE: Op = Op(36);
    /// Primary → copy: all that was finished there before is durable.
    pub const REPLICA_FLUSH: Op = Op(37);
    /// Primary → copy: take part in an epoch. The payload is the configuration as JSON.
    pub const JOIN: Op = Op(40);
    /// Primary → node: promise not to join a newer epoch under another primary for a while.
    pub const PROMISE: Op = Op(41);
    /// Primary → copy: read whole blocks of a view, each verified. Answered by a reply with the blocks as payload.
    pub const REPLICA_READ: Op = Op(42);
    /// Primary → copy: which blocks of a view do not read as they were written, and the checksums of the others.
    pub const REPLICA_VERIFY: Op = Op(43);
    /// Primary → copy: put right what does not read as it was written. The payload is another copy's content.
    pub const REPLICA_REPAIR: Op = Op(44);
    /// Primary → syncing copy: which chunks were changed there above a stamp.
    pub const FILL_SCAN: Op = Op(45);
    /// Primary → syncing copy: content of whole blocks, with its version.
    pub const FILL: Op = Op(46);
    /// Primary → syncing copy: what it reads as now is a snapshot that it lacks.
    pub const FILL_SNAPSHOT: Op = Op(47);
    /// Primary → syncing copy: how far it is filled.
    pub const FILL_MARK: Op = Op(48);
    /// Primary of another shard → copy: read whole blocks of a snapshot, each verified, for a copy-range. The reply's payload is the blocks.
    pub const SNAPSHOT_READ: Op = Op(49);

    /// All data ops, for tables and coverage floors.
    pub const ALL: [(Op, &str); 24] = [
        (READ, "read"),
        (WRITE, "write"),
        (WRITE_ZEROES, "write-zeroes"),
        (DISCARD, "discard"),
        (FLUSH, "flush"),
        (REGISTER_RANGE, "register-range"),
        (UNREGISTER_RANGE, "unregister-range"),
        (EXTENTS, "extents"),
        (REPLICA_WRITE, "replica-write"),
        (REPLICA_ZERO, "replica-zero"),
        (REPLICA_SNAPSHOT, "replica-snapshot"),
        (REPLICA_ROLLBACK, "replica-rollback"),
        (REPLICA_SHARE, "replica-share"),
        (REPLICA_FLUSH, "replica-flush"),
        (JOIN, "join"),
        (PROMISE, "promise"),
        (REPLICA_READ, "replica-read"),
        (REPLICA_VERIFY, "replica-verify"),
        (REPLICA_REPAIR, "replica-repair"),
        (FILL_SCAN, "fill-scan"),
        (FILL, "fill"),
        (FILL_SNAPSHOT, "fill-snapshot"),
        (FILL_MARK, "fill-mark"),
        (SNAPSHOT_READ, "snapshot-read"),
    ];
}
