//! The simple engine: redirect-on-write with a metadata log, on one disk.
//!
//! ```text
//! disk: superblocks | log 0 | log 1 | checkpoint area 0 | checkpoint area 1 | slots of 4 KiB …
//!
//! write ─► fresh slots ──────────────── data, durable ──┐
//!      └─► record (blocks, slots, CRCs, K) ─ log group ─┴─► map changed, old slots free, acknowledged
//! ```
//!
//! **Acknowledged is durable.** A write is over when its data *and* its record are durable; the two go at the same time. Records
//! that wait while a log write is out go together in the next one. After a crash the newest checkpoint is loaded and the
//! logs are replayed in order up to the first page that is not there. Records below the last page's watermark had their data;
//! each block of the others is read, and left as it was before if the CRC says that the new data is not there. So each
//! block is wholly old or wholly new, and what was acknowledged is new. A fresh checkpoint under a new generation ends the
//! recovery: a record that was dropped once is never looked at again.
//!
//! **A slot is used again** only when the record that replaced its content is durable *and* has complete data. Recovery then
//! cannot need it: it replays that record after the older one, and either trusts it or finds its data in place, unless that was
//! replaced the same way in turn, up to the newest. (An older record whose slot holds something else by then fails its CRC for
//! that block alone, and the newer one maps the block.) The logs keep both records until a checkpoint with the newer one's
//! effect is durable, for a log is reused only then. Changes of one block never overlap (the caller's range lock), so the
//! order of records is the order of changes.
//!
//! **Space**: the map takes 8 B per 4 KiB block, 2 MiB per GiB held, the free-slot map 33 KiB per GiB of disk. While a checkpoint
//! is written the map pages that change are there twice. Each opening writes a checkpoint: 12 B per block held.
//!
//! **Damage**: every page is sealed with a CRC. Damage in metadata makes opening fail with a clear error, where a torn last group
//! is no damage. (Damage to exactly the last group of log pages looks like a torn write and undoes it.) Damage in data is
//! [`StoreError::Corrupt`](crate::StoreError::Corrupt) at the read.
//!
//! No node runs it: it is the model that tests compare the journaled engine with.

mod background;
mod block_map;
mod checkpoint;
mod copies;
mod engine;
mod format;
mod inspect;
mod layout;
mod limits;
mod log;
mod log_page;
mod open;
mod reads;
mod record;
mod replay;
mod slots;

pub use crate::opening::{Identity, OpenError, OpenOptions};
pub use crate::{MAX_MEMBERS, MAX_SHARD_BLOCKS};
pub use engine::SimpleStore;
pub use format::{Format, FormatOptions};
pub use layout::{FORMAT_VERSION, Geometry};
pub use limits::MIN_DISK_BYTES;
pub use open::Opening;

/// What a disk operation is for: in the top byte of its tag, the operation's key below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Data = 1,
    Log = 2,
    Checkpoint = 3,
    Read = 4,
}

const KIND_SHIFT: u32 = 56;

fn tag(kind: Kind, key: usize) -> u64 {
    (kind as u64) << KIND_SHIFT | key as u64
}

fn untag(tag: u64) -> Option<(Kind, usize)> {
    let kind = match tag >> KIND_SHIFT {
        1 => Kind::Data,
        2 => Kind::Log,
        3 => Kind::Checkpoint,
        4 => Kind::Read,
        _ => return None,
    };
    Some((kind, usize::try_from(tag & ((1 << KIND_SHIFT) - 1)).ok()?))
}
