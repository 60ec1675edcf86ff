//! How a primary fills a copy that is syncing (rules 3 and 4): what was changed there, content, how far it is.
//!
//! None of these carries a stamp of its own: a filling write has the *version* of what it copies, and the primary holds the range's lock
//! from reading to the copy's durable answer. They are taken only by a copy that has joined `epoch` as a syncing member.

use crate::bodies::{Prefix, body};
use conductor_model::{BlockRange, Blocks, Epoch, Sequence, ShardId, ShardIndex, SnapshotId, Stamp, VolumeId};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A FILL that zeroes: it has no payload.
const ZEROES: u32 = 1;
/// A FILL of what no copy in sync has: it has no payload either.
const LOST: u32 = 2;
/// A FILL_MARK that ends the filling.
const COMPLETE: u32 = 1;

body! {
    /// FILL_SCAN. Answered by a reply whose word is the block to ask on from, and whose payload lists changed chunks.
    ScanBody = 56 {
        /// Session prefix; the word is zero.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// The epoch that the copy has joined.
        epoch: U64,
        /// Chunks whose version is above this: its epoch, …
        above_epoch: U64,
        /// … and its sequence.
        above_sequence: U64,
        /// First block of interest.
        from: U32,
        /// Zero.
        reserved: U32,
    }
}

impl ScanBody {
    /// What was changed above `above`, from block `from` on?
    pub fn new(shard: ShardId, epoch: Epoch, above: Stamp, from: Blocks) -> Self {
        Self {
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: epoch.0.into(),
            above_epoch: above.epoch.0.into(),
            above_sequence: above.sequence.0.into(),
            from: from.0.into(),
            ..Self::default()
        }
    }
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// The epoch that the copy has joined.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.get())
    }
    /// Versions of interest are above this.
    pub fn above(&self) -> Stamp {
        Stamp { epoch: Epoch(self.above_epoch.get()), sequence: Sequence(self.above_sequence.get()) }
    }
    /// First block of interest.
    pub fn from(&self) -> Blocks {
        Blocks(self.from.get())
    }
}

body! {
    /// FILL (the payload is the content, or nothing: zeros, or lost), FILL_SNAPSHOT. The prefix's word is the number of blocks.
    FillBody = 64 {
        /// Session prefix; word = number of blocks.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// The epoch that the copy has joined.
        epoch: U64,
        /// The version that the content has on the primary: its epoch, …
        version_epoch: U64,
        /// … and its sequence.
        version_sequence: U64,
        /// FILL_SNAPSHOT: the snapshot that the copy reads as now. Else zero.
        snapshot: U64,
        /// First block.
        at: U32,
        /// Bit 0: a FILL with zeros; bit 1: a FILL of what is lost. The others are zero.
        flags: U32,
    }
}

/// What a FILL puts in place of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Its payload.
    Content,
    /// Zeros.
    Zeroes,
    /// Nothing: no copy in sync has it, and so it is on this one.
    Lost,
}

impl FillBody {
    /// Content of version `version`.
    pub fn new(shard: ShardId, epoch: Epoch, version: Stamp, at: BlockRange) -> Self {
        Self {
            prefix: Prefix { word: at.count.0.into(), ..Prefix::default() },
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: epoch.0.into(),
            version_epoch: version.epoch.0.into(),
            version_sequence: version.sequence.0.into(),
            at: at.from.0.into(),
            ..Self::default()
        }
    }
    /// The same, as zeros.
    pub fn with_zeroes(self) -> Self {
        Self { flags: ZEROES.into(), ..self }
    }
    /// The same, lost: of a snapshot that the copy is filled with, or of what is written to.
    pub fn with_lost(self, of: Option<SnapshotId>) -> Self {
        Self { flags: LOST.into(), snapshot: of.map_or(0, |of| of.0).into(), ..self }
    }
    /// The same, for FILL_SNAPSHOT.
    pub fn with_snapshot(self, snapshot: SnapshotId) -> Self {
        Self { snapshot: snapshot.0.into(), ..self }
    }
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// The epoch that the copy has joined.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.get())
    }
    /// The version that the content has on the primary.
    pub fn version(&self) -> Stamp {
        Stamp { epoch: Epoch(self.version_epoch.get()), sequence: Sequence(self.version_sequence.get()) }
    }
    /// The blocks it is about.
    pub fn range(&self) -> BlockRange {
        BlockRange { from: Blocks(self.at.get()), count: Blocks(self.prefix.word.get()) }
    }
    /// What a FILL puts there; `None` if nobody here knows.
    pub fn what(&self) -> Option<Fill> {
        match self.flags.get() {
            0 => Some(Fill::Content),
            ZEROES => Some(Fill::Zeroes),
            LOST => Some(Fill::Lost),
            _ => None,
        }
    }
    /// Of which snapshot what is lost is; `None`: of what is written to.
    pub fn lost_of(&self) -> Option<SnapshotId> {
        (self.snapshot.get() != 0).then(|| self.snapshot())
    }
    /// The snapshot.
    pub fn snapshot(&self) -> SnapshotId {
        SnapshotId(self.snapshot.get())
    }
}

/// How far a filling is, as it travels: `node_store::FillMark` and whether it is over.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mark {
    /// Everything up to here is there, wherever the cursor is.
    pub base: Stamp,
    /// Chunks before this block …
    pub cursor: Blocks,
    /// … have everything up to here.
    pub upto: Stamp,
    /// The copy holds everything up to `upto`, and K rises to it.
    pub complete: bool,
}

body! {
    /// FILL_MARK: what was filled before is durable when it is answered, and so is this mark.
    MarkBody = 72 {
        /// Session prefix; the word is zero.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// The epoch that the copy has joined.
        epoch: U64,
        /// Everything up to here is there, wherever the cursor is: its epoch, …
        base_epoch: U64,
        /// … and its sequence.
        base_sequence: U64,
        /// What is before the cursor has everything up to here: its epoch, …
        upto_epoch: U64,
        /// … and its sequence.
        upto_sequence: U64,
        /// The cursor, a block.
        cursor: U32,
        /// Bit 0: the filling is over, and K is `upto`. The others are zero.
        flags: U32,
    }
}

impl MarkBody {
    /// So far it is.
    pub fn new(shard: ShardId, epoch: Epoch, mark: Mark) -> Self {
        Self {
            prefix: Prefix::default(),
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: epoch.0.into(),
            base_epoch: mark.base.epoch.0.into(),
            base_sequence: mark.base.sequence.0.into(),
            upto_epoch: mark.upto.epoch.0.into(),
            upto_sequence: mark.upto.sequence.0.into(),
            cursor: mark.cursor.0.into(),
            flags: if mark.complete { COMPLETE } else { 0 }.into(),
        }
    }
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// The epoch that the copy has joined.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.get())
    }
    /// How far.
    pub fn mark(&self) -> Mark {
        let stamp = |epoch: U64, sequence: U64| Stamp { epoch: Epoch(epoch.get()), sequence: Sequence(sequence.get()) };
        Mark {
            base: stamp(self.base_epoch, self.base_sequence),
            cursor: Blocks(self.cursor.get()),
            upto: stamp(self.upto_epoch, self.upto_sequence),
            complete: self.flags.get() & COMPLETE != 0,
        }
    }
}

/// Bytes of one changed range in the answer to a scan: first block u32, blocks u32, version's epoch u64 and sequence u64.
const CHANGED: usize = 24;

/// Appends one changed range to the answer of a scan.
pub fn encode_changed(into: &mut Vec<u8>, at: BlockRange, version: Stamp) {
    into.extend_from_slice(&at.from.0.to_le_bytes());
    into.extend_from_slice(&at.count.0.to_le_bytes());
    into.extend_from_slice(&version.epoch.0.to_le_bytes());
    into.extend_from_slice(&version.sequence.0.to_le_bytes());
}

/// Reads them back; `None` unless it is whole, in ascending order and without empty ranges.
pub fn decode_changed(bytes: &[u8]) -> Option<Vec<(BlockRange, Stamp)>> {
    if !bytes.len().is_multiple_of(CHANGED) {
        return None;
    }
    let word = |b: &[u8]| b.try_into().map(u32::from_le_bytes).ok();
    let long = |b: &[u8]| b.try_into().map(u64::from_le_bytes).ok();
    let mut end = 0;
    let mut changed = Vec::with_capacity(bytes.len() / CHANGED);
    for entry in bytes.chunks_exact(CHANGED) {
        let at = BlockRange { from: Blocks(word(&entry[..4])?), count: Blocks(word(&entry[4..8])?) };
        let version = Stamp { epoch: Epoch(long(&entry[8..16])?), sequence: Sequence(long(&entry[16..])?) };
        if u64::from(at.from.0) < end || at.count.0 == 0 {
            return None;
        }
        end = at.end();
        changed.push((at, version));
    }
    Some(changed)
}

/// What a syncing copy says of itself in the payload of its answer to a Join: how far it is, and its snapshots.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FillState {
    /// How far an earlier filling had come; `complete` means nothing here.
    pub mark: Mark,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<SnapshotId>,
}

/// Bytes before the snapshots: base 16, upto 16, cursor u32, zero u32.
const STATE: usize = 40;

impl FillState {
    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(STATE + self.snapshots.len() * 8);
        for stamp in [self.mark.base, self.mark.upto] {
            bytes.extend_from_slice(&stamp.epoch.0.to_le_bytes());
            bytes.extend_from_slice(&stamp.sequence.0.to_le_bytes());
        }
        bytes.extend_from_slice(&self.mark.cursor.0.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        self.snapshots.iter().for_each(|snapshot| bytes.extend_from_slice(&snapshot.0.to_le_bytes()));
        bytes
    }

    /// Reads it back; `None` if it is torn.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(STATE)?;
        let long = |at: usize| head.get(at..at + 8)?.try_into().map(u64::from_le_bytes).ok();
        let stamp = |at| Some(Stamp { epoch: Epoch(long(at)?), sequence: Sequence(long(at + 8)?) });
        let cursor = Blocks(head.get(32..36)?.try_into().map(u32::from_le_bytes).ok()?);
        let (snapshots, torn) = rest.as_chunks::<8>();
        let snapshots = snapshots.iter().map(|s| SnapshotId(u64::from_le_bytes(*s))).collect();
        let mark = Mark { base: stamp(0)?, upto: stamp(16)?, cursor, complete: false };
        torn.is_empty().then_some(Self { mark, snapshots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: u64, sequence: u64) -> Stamp {
        Stamp { epoch: Epoch(epoch), sequence: Sequence(sequence) }
    }

    #[test]
    fn what_is_said_of_a_filling_survives_the_wire() {
        let shard = ShardId { volume: VolumeId(7), index: ShardIndex(3) };
        let at = BlockRange { from: Blocks(32), count: Blocks(16) };
        let scan = ScanBody::parse(ScanBody::new(shard, Epoch(9), stamp(4, 5), Blocks(16)).bytes()).unwrap();
        assert_eq!((scan.shard(), scan.epoch(), scan.above(), scan.from()), (shard, Epoch(9), stamp(4, 5), Blocks(16)));
        let fill = FillBody::new(shard, Epoch(9), stamp(4, 5), at);
        let fill = FillBody::parse(fill.with_zeroes().with_snapshot(SnapshotId(8)).bytes()).unwrap();
        assert_eq!((fill.shard(), fill.epoch(), fill.version(), fill.range()), (shard, Epoch(9), stamp(4, 5), at));
        assert_eq!((fill.what(), fill.snapshot()), (Some(Fill::Zeroes), SnapshotId(8)));
        let what = |fill: FillBody| FillBody::parse(fill.bytes()).unwrap().what();
        let fill = FillBody::new(shard, Epoch(9), stamp(4, 5), at);
        assert_eq!((what(fill), what(fill.with_lost(None))), (Some(Fill::Content), Some(Fill::Lost)));
        for unknown in [3, 4, 1 << 31] {
            assert_eq!(what(FillBody { flags: unknown.into(), ..fill }), None);
        }
        let mark = Mark { base: stamp(1, 2), cursor: Blocks(48), upto: stamp(3, 4), complete: true };
        let said = MarkBody::parse(MarkBody::new(shard, Epoch(9), mark).bytes()).unwrap();
        assert_eq!((said.shard(), said.epoch(), said.mark()), (shard, Epoch(9), mark));
    }

    #[test]
    fn a_syncing_copys_state_survives_the_wire_and_a_torn_one_is_none() {
        let mark = Mark { base: stamp(1, 2), cursor: Blocks(48), upto: stamp(3, 4), complete: false };
        let state = FillState { mark, snapshots: vec![SnapshotId(5), SnapshotId(9)] };
        let bytes = state.encode();
        assert_eq!(FillState::decode(&bytes), Some(state));
        assert_eq!(FillState::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(FillState::decode(&bytes[..STATE - 1]), None);
    }

    #[test]
    fn a_list_of_changes_that_is_torn_or_out_of_order_is_none() {
        let range = |from, count| BlockRange { from: Blocks(from), count: Blocks(count) };
        let list = [(range(0, 16), stamp(1, 1)), (range(16, 32), stamp(2, 7))];
        let mut bytes = Vec::new();
        list.iter().for_each(|(at, version)| encode_changed(&mut bytes, *at, *version));
        assert_eq!(decode_changed(&bytes), Some(list.to_vec()));
        assert_eq!(decode_changed(&bytes[1..]), None);
        let turned: Vec<u8> = bytes[24..].iter().chain(&bytes[..24]).copied().collect();
        assert_eq!(decode_changed(&turned), None);
        let mut empty = bytes.clone();
        empty[4..8].fill(0);
        assert_eq!(decode_changed(&empty), None);
    }
}
