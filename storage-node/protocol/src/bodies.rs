//! Fixed bodies. Sizes are asserted here and pinned by golden bytes in the tests.

use crate::Status;
use conductor_model::{
    BlockRange, Blocks, Bytes, CopyId, DiskId, Epoch, OpenId, Sequence, ShardId, ShardIndex, ShardSnapshot, SnapshotId,
    Stamp, VolumeId,
};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// In a distance: there is no such point in this epoch yet.
pub const NOT_IN_THIS_EPOCH: u32 = u32::MAX;

/// In the word of an `IoBody`, beside the length (1 GiB at most): under durability=flush, durable before it is acknowledged.
const FUA: u32 = 1 << 31;
/// In the flags of a `RangeBody`: for writing, alone; else for reading, with others that do.
const FOR_WRITING: u32 = 1;
/// In the flags of a `RangeBody`: held before, on another connection or at another primary.
const HELD_BEFORE: u32 = 2;
/// In the flags of a `ReplicaBody`: under durability=flush, durable before it is answered, as FUA is.
const DURABLE: u32 = 1;

macro_rules! body {
    ($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$field_doc:meta])* $field:ident: $of:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $of,)* }

        const _: () = assert!(size_of::<$name>() == $size);

        impl $name {
            /// Exactly this many bytes on the wire.
            pub const LEN: usize = $size;

            /// From a received body; `None` unless it has exactly the right length.
            pub fn parse(body: &[u8]) -> Option<Self> {
                Self::read_from_bytes(body).ok()
            }

            /// The bytes to send.
            pub fn bytes(&self) -> &[u8] {
                self.as_bytes()
            }
        }
    };
}

pub(crate) use body;

body! {
    /// What every request body starts with. The sender leaves it zero but for the word; the connection fills in session
    /// and tag and checks them on arrival.
    Prefix = 16 {
        /// The session that the connection is bound to.
        session: U32,
        /// A number that belongs to the body.
        word: U32,
        /// Keyed hash of op, slot, generation and body under the session's protection key.
        tag: U64,
    }
}

body! {
    /// READ, WRITE, WRITE_ZEROES, DISCARD, FLUSH, EXTENTS. The prefix's word is the length in bytes, 0 for a FLUSH; its highest bit is FUA.
    IoBody = 48 {
        /// Session prefix; word = length in bytes, and FUA.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// The epoch in the client's map.
        epoch: U64,
        /// The client's own number of this request; the same when it is resent.
        sequence: U64,
        /// Byte offset within the shard.
        offset: U64,
    }
}

impl IoBody {
    /// A request of `len` bytes at `offset` of `shard`.
    pub fn new(shard: ShardId, epoch: Epoch, sequence: u64, offset: Bytes, len: u32) -> Self {
        Self {
            prefix: Prefix { word: len.into(), ..Prefix::default() },
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: epoch.0.into(),
            sequence: sequence.into(),
            offset: offset.0.into(),
        }
    }
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.prefix.word.get() & !FUA
    }
    /// The same request, to be durable before it is acknowledged even under durability=flush.
    pub fn with_fua(mut self) -> Self {
        self.prefix.word = (self.prefix.word.get() | FUA).into();
        self
    }
    /// Was that asked for?
    pub fn is_fua(&self) -> bool {
        self.prefix.word.get() & FUA != 0
    }
    /// Is it of no bytes, as a flush is? Anything else is refused then.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

body! {
    /// REGISTER_RANGE, UNREGISTER_RANGE. The prefix's word is how long to wait for it, in milliseconds; 0: not at all.
    RangeBody = 48 {
        /// Session prefix; word = milliseconds.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// The epoch in the client's map.
        epoch: U64,
        /// First block.
        at: U32,
        /// Number of blocks, not 0.
        blocks: U32,
        /// Bit 0: for writing. Bit 1: held before. The others are zero.
        flags: U32,
        /// Zero.
        reserved: U32,
    }
}

impl RangeBody {
    /// About this range, for reading, at once or not at all.
    pub fn new(shard: ShardId, epoch: Epoch, at: BlockRange) -> Self {
        Self {
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: epoch.0.into(),
            at: at.from.0.into(),
            blocks: at.count.0.into(),
            ..Self::default()
        }
    }
    /// For writing, if so.
    pub fn for_writing(self, so: bool) -> Self {
        self.flag(FOR_WRITING, so)
    }
    /// Held before, on another connection or at another primary, if so.
    pub fn held_before(self, so: bool) -> Self {
        self.flag(HELD_BEFORE, so)
    }
    /// To be waited for so long.
    pub fn waiting(self, ms: u32) -> Self {
        Self { prefix: Prefix { word: ms.into(), ..self.prefix }, ..self }
    }
    fn flag(self, flag: u32, so: bool) -> Self {
        let others = self.flags.get() & !flag;
        Self { flags: (others | if so { flag } else { 0 }).into(), ..self }
    }
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// The blocks.
    pub fn range(&self) -> BlockRange {
        BlockRange { from: Blocks(self.at.get()), count: Blocks(self.blocks.get()) }
    }
    /// How long it is to be waited for, in milliseconds.
    pub fn wait_ms(&self) -> u32 {
        self.prefix.word.get()
    }
    /// For writing?
    pub fn is_for_writing(&self) -> bool {
        self.flags.get() & FOR_WRITING != 0
    }
    /// Held before?
    pub fn was_held_before(&self) -> bool {
        self.flags.get() & HELD_BEFORE != 0
    }
    /// Nothing is said that means nothing.
    pub fn is_sound(&self) -> bool {
        self.blocks.get() != 0 && self.reserved.get() == 0 && self.flags.get() & !(FOR_WRITING | HELD_BEFORE) == 0
    }
}

body! {
    /// REPLICA_WRITE, REPLICA_ZERO, REPLICA_FLUSH (of no blocks). The prefix's word is the number of blocks.
    ReplicaBody = 56 {
        /// Session prefix; word = number of blocks.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// Epoch of the stamp.
        epoch: U64,
        /// Sequence of the stamp.
        sequence: U64,
        /// First block.
        at: U32,
        /// K, as a distance below the sequence; all ones: not yet in this epoch (rule 3).
        known_good: U32,
        /// F, as a distance below the sequence: what lies at or below it is never sent again (rule 5); all ones: nothing yet.
        floor: U32,
        /// Bit 0: durable before it is answered, even under durability=flush. The others are zero.
        flags: U32,
    }
}

impl ReplicaBody {
    /// A write of `at` under `stamp`. `known_good` and `floor` are sequences of the same epoch.
    pub fn new(
        shard: ShardId,
        stamp: Stamp,
        at: BlockRange,
        known_good: Option<Sequence>,
        floor: Option<Sequence>,
    ) -> Self {
        Self {
            prefix: Prefix { word: at.count.0.into(), ..Prefix::default() },
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: stamp.epoch.0.into(),
            sequence: stamp.sequence.0.into(),
            at: at.from.0.into(),
            known_good: distance(stamp.sequence, known_good).into(),
            floor: distance(stamp.sequence, floor).into(),
            flags: 0.into(),
        }
    }
    /// The same, to be durable before it is answered even under durability=flush.
    pub fn with_durable(self, durable: bool) -> Self {
        Self { flags: if durable { DURABLE } else { 0 }.into(), ..self }
    }
    /// Must it be?
    pub fn is_durable(&self) -> bool {
        self.flags.get() & DURABLE != 0
    }
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// Its stamp.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: Epoch(self.epoch.get()), sequence: Sequence(self.sequence.get()) }
    }
    /// The blocks it is about.
    pub fn range(&self) -> BlockRange {
        BlockRange { from: Blocks(self.at.get()), count: Blocks(self.prefix.word.get()) }
    }
    /// K, if it lies in this epoch; `None` also for a distance that reaches below the first stamp.
    pub fn known_good(&self) -> Option<Sequence> {
        below(self.sequence.get(), self.known_good.get())
    }
    /// F, likewise.
    pub fn floor(&self) -> Option<Sequence> {
        below(self.sequence.get(), self.floor.get())
    }
}

fn distance(sequence: Sequence, point: Option<Sequence>) -> u32 {
    point.and_then(|p| u32::try_from(sequence.0.checked_sub(p.0)?).ok()).unwrap_or(NOT_IN_THIS_EPOCH)
}

fn below(sequence: u64, distance: u32) -> Option<Sequence> {
    if distance == NOT_IN_THIS_EPOCH { None } else { sequence.checked_sub(u64::from(distance)).map(Sequence) }
}

body! {
    /// REPLICA_SNAPSHOT, REPLICA_ROLLBACK (of the whole shard), REPLICA_SHARE.
    LayerBody = 72 {
        /// The stamp, and the blocks that it is about.
        change: ReplicaBody,
        /// The snapshot: to be made, to go back to, or to share with.
        snapshot: U64,
        /// Volume of the shard that the snapshot is of.
        of_volume: U32,
        /// That shard.
        of_shard: U32,
    }
}

impl LayerBody {
    /// A change that is about a snapshot.
    pub fn new(change: ReplicaBody, of: ShardSnapshot) -> Self {
        Self {
            change,
            snapshot: of.snapshot.0.into(),
            of_volume: of.shard.volume.0.into(),
            of_shard: of.shard.index.0.into(),
        }
    }
    /// The snapshot.
    pub fn of(&self) -> ShardSnapshot {
        let shard = ShardId { volume: VolumeId(self.of_volume.get()), index: ShardIndex(self.of_shard.get()) };
        ShardSnapshot { shard, snapshot: SnapshotId(self.snapshot.get()) }
    }
}

body! {
    /// JOIN. The payload is the configuration as JSON. The prefix's word is zero.
    JoinBody = 64 {
        /// Session prefix.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// Epoch to join.
        epoch: U64,
        /// The copy that is to join.
        copy: U64,
        /// The opening of its store that the epoch names (rule 2).
        open: U64,
        /// The primary's copy.
        primary: U64,
        /// The opening of the primary's store.
        primary_open: U64,
    }
}

impl JoinBody {
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// The epoch to join.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.get())
    }
    /// The copy that is to join.
    pub fn copy(&self) -> CopyId {
        CopyId(self.copy.get())
    }
    /// The opening of its store that is meant.
    pub fn open(&self) -> OpenId {
        OpenId(self.open.get())
    }
}

body! {
    /// A reply without more to say: every op's good reply, and most bad ones.
    ReplyBody = 8 {
        /// See `Status`.
        status: U16,
        /// Zero.
        reserved: U16,
        /// Depends on the op; zero if not said otherwise.
        word: U32,
    }
}

impl ReplyBody {
    /// A reply with this status.
    pub fn new(status: Status) -> Self {
        Self { status: status.code().into(), ..Self::default() }
    }
    /// The status in the first bytes of any reply body, whatever follows.
    pub fn status_of(body: &[u8]) -> Option<Status> {
        let code = body.get(..2)?;
        Status::from_code(u16::from_le_bytes([code[0], code[1]]))
    }
    /// The word of any reply; 0 if there is none.
    pub fn word_of(body: &[u8]) -> u32 {
        body.get(4..8).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
    }
}

body! {
    /// A reply with `StaleEpoch`, `Later` or `NotJoined` that says which epoch the node is in; one that does not is a `ReplyBody`.
    StaleBody = 24 {
        /// The status, as in any reply.
        reply: ReplyBody,
        /// The epoch that the node knows; 0 if none. To a client: the one in which it is the shard's primary.
        epoch: U64,
        /// The shard's cache generation in that epoch, to a client.
        cache: U64,
    }
}

body! {
    /// A good reply to JOIN. The payload is what the copy holds above K (`held`).
    JoinAnswer = 48 {
        /// The status; the word is the number of entries in the payload.
        reply: ReplyBody,
        /// Epoch of K.
        known_good_epoch: U64,
        /// Sequence of K.
        known_good_sequence: U64,
        /// Blocks that its disk has free.
        free_blocks: U64,
        /// The epoch whose configuration its disk held before this one.
        stored_epoch: U64,
        /// Pages of metadata that its disk has left for what takes no blocks.
        pages: U64,
    }
}

body! {
    /// PROMISE. The prefix's word is the promise's length asked for, in milliseconds.
    PromiseBody = 24 {
        /// Session prefix; word = milliseconds.
        prefix: Prefix,
        /// Generation of the withheld list that the asker knows and has acted upon; 0: none.
        known: U64,
    }
}

/// Disks that an answer to PROMISE tells of.
pub const TOLD_DISKS: usize = 6;

body! {
    /// What a disk has left; of no disk if its name is 0.
    DiskLeft = 16 {
        /// Its name.
        disk: U64,
        /// Free blocks; all ones: as many or more.
        blocks: U32,
        /// Pages of metadata that are left for what takes no blocks.
        pages: U32,
    }
}

impl DiskLeft {
    /// So many free blocks and pages.
    pub fn new(disk: DiskId, blocks: u64, pages: u32) -> Self {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        Self { disk: disk.0.into(), blocks: blocks.into(), pages: pages.into() }
    }

    /// Free blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.get().into()
    }
}

body! {
    /// A good reply to PROMISE. The word of the reply is the length granted, in milliseconds, counted from when the request
    /// was sent (by the asker) or answered (by the giver): rule 14. Without a payload but for the list: what a promise takes no memory for
    /// does not wait behind writes.
    PromiseAnswer = 112 {
        /// The status; the word is the length granted.
        reply: ReplyBody,
        /// Generation of the list of shards that the promise does not count for (rule 13). Where it is not the one that the asker knows,
        /// the payload is the list.
        withheld: U64,
        /// What disks of the reactor have left: all, or some of them.
        disks: [DiskLeft; TOLD_DISKS],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_survive_the_wire_and_hostile_ones_mean_nothing() {
        let shard = ShardId { volume: VolumeId(7), index: ShardIndex(3) };
        let stamp = Stamp { epoch: Epoch(9), sequence: Sequence(100) };
        let at = BlockRange { from: Blocks(5), count: Blocks(2) };
        let body = ReplicaBody::new(shard, stamp, at, Some(Sequence(98)), None);
        let back = ReplicaBody::parse(body.bytes()).unwrap();
        assert_eq!((back.shard(), back.stamp(), back.range()), (shard, stamp, at));
        assert_eq!((back.known_good(), back.floor()), (Some(Sequence(98)), None));
        let hostile = ReplicaBody { sequence: 3.into(), floor: 4.into(), ..body };
        assert_eq!(hostile.floor(), None);
    }

    #[test]
    fn what_a_disk_has_left_is_told_as_far_as_there_is_room_for_it() {
        let left = |blocks| DiskLeft::new(DiskId(7), blocks, 9).blocks();
        assert_eq!((left(5), left(u64::from(u32::MAX)), left(1 << 40)), (5, u32::MAX.into(), u32::MAX.into()));
        let said = PromiseAnswer { disks: [DiskLeft::new(DiskId(7), 5, 9); TOLD_DISKS], ..PromiseAnswer::default() };
        assert_eq!(PromiseAnswer::parse(said.bytes()), Some(said));
    }

    #[test]
    fn a_write_body_has_these_bytes() {
        let shard = ShardId { volume: VolumeId(0x0102_0304), index: ShardIndex(5) };
        let body = IoBody::new(shard, Epoch(6), 7, Bytes(0x1000), 4096);
        let want = [
            [0, 0, 0, 0, 0, 0x10, 0, 0],
            [0; 8],
            [4, 3, 2, 1, 5, 0, 0, 0],
            [6, 0, 0, 0, 0, 0, 0, 0],
            [7, 0, 0, 0, 0, 0, 0, 0],
            [0, 0x10, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(body.bytes(), want.as_flattened());
    }

    #[test]
    fn a_range_body_has_these_bytes() {
        let shard = ShardId { volume: VolumeId(1), index: ShardIndex(2) };
        let at = BlockRange { from: Blocks(4), count: Blocks(5) };
        let body = RangeBody::new(shard, Epoch(3), at).for_writing(true).held_before(true).waiting(6);
        let want = [
            [0, 0, 0, 0, 6, 0, 0, 0],
            [0; 8],
            [1, 0, 0, 0, 2, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0],
            [4, 0, 0, 0, 5, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(body.bytes(), want.as_flattened());
        let back = RangeBody::parse(body.bytes()).unwrap();
        assert_eq!((back.shard(), back.range(), back.wait_ms(), back.is_for_writing()), (shard, at, 6, true));
        assert!(back.was_held_before() && back.is_sound());
        assert!(!back.for_writing(false).is_for_writing() && back.for_writing(false).was_held_before());
        let nothing = BlockRange { count: Blocks(0), ..at };
        assert!(!RangeBody::new(shard, Epoch(3), nothing).is_sound());
        for odd in [RangeBody { flags: 4.into(), ..body }, RangeBody { reserved: 1.into(), ..body }] {
            assert!(!odd.is_sound());
        }
    }

    #[test]
    fn a_share_body_has_these_bytes() {
        let shard = ShardId { volume: VolumeId(1), index: ShardIndex(2) };
        let stamp = Stamp { epoch: Epoch(3), sequence: Sequence(4) };
        let at = BlockRange { from: Blocks(5), count: Blocks(6) };
        let change = ReplicaBody::new(shard, stamp, at, None, Some(Sequence(3))).with_durable(true);
        let of =
            ShardSnapshot { shard: ShardId { volume: VolumeId(7), index: ShardIndex(8) }, snapshot: SnapshotId(9) };
        let body = LayerBody::new(change, of);
        let want = [
            [0, 0, 0, 0, 6, 0, 0, 0],
            [0; 8],
            [1, 0, 0, 0, 2, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0],
            [4, 0, 0, 0, 0, 0, 0, 0],
            [5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
            [1, 0, 0, 0, 1, 0, 0, 0],
            [9, 0, 0, 0, 0, 0, 0, 0],
            [7, 0, 0, 0, 8, 0, 0, 0],
        ];
        assert_eq!(body.bytes(), want.as_flattened());
        let back = LayerBody::parse(body.bytes()).unwrap();
        assert_eq!((back.of(), back.change.is_durable(), back.change.range()), (of, true, at));
    }

    #[test]
    fn fua_is_beside_the_length() {
        let shard = ShardId { volume: VolumeId(1), index: ShardIndex(2) };
        let body = IoBody::new(shard, Epoch(6), 7, Bytes(0), 1 << 30);
        assert!(!body.is_fua());
        assert_eq!((body.with_fua().is_fua(), body.with_fua().len()), (true, 1 << 30));
    }

    #[test]
    fn a_body_of_another_length_is_no_body() {
        assert!(IoBody::parse(&[0; 47]).is_none());
        assert!(IoBody::parse(&[0; 49]).is_none());
        assert!(ReplyBody::status_of(&[1]).is_none());
        assert_eq!(ReplyBody::status_of(&[1, 0, 9]), Some(Status::StaleEpoch));
    }
}
