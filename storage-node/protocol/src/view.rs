//! What a primary asks of the content of another copy: to read it, to verify it, to repair it.
//!
//! None of these carries a stamp: they change nothing that a copy reads as. The primary holds the range's lock from asking to the
//! answer, so that the content which is looked at, and laid over a damaged block, is what every copy has there at that moment.
//! SNAPSHOT_READ is asked by primaries of other shards, for a copy-range: a snapshot never changes, so it names no epoch.

use crate::bodies::{Prefix, ReplyBody, body};
use conductor_model::{BlockRange, Blocks, Epoch, ShardId, ShardIndex, ShardSnapshot, SnapshotId, VolumeId};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most blocks of one REPLICA_VERIFY or REPLICA_REPAIR: one bit each in the answer.
pub const MAX_VERIFY_BLOCKS: u32 = 64;

body! {
    /// REPLICA_READ, REPLICA_VERIFY, REPLICA_REPAIR, SNAPSHOT_READ. The prefix's word is the number of blocks.
    ViewBody = 48 {
        /// Session prefix; word = number of blocks.
        prefix: Prefix,
        /// Volume.
        volume: U32,
        /// Shard in it.
        shard: U32,
        /// The epoch that the copy has joined; 0 in a SNAPSHOT_READ.
        epoch: U64,
        /// Which content: 0 is what is written to, else this snapshot.
        view: U64,
        /// First block.
        at: U32,
        /// Zero.
        reserved: U32,
    }
}

impl ViewBody {
    /// About blocks `at` of what `snapshot` reads as, or of the live content.
    pub fn new(shard: ShardId, epoch: Epoch, snapshot: Option<SnapshotId>, at: BlockRange) -> Self {
        Self {
            prefix: Prefix { word: at.count.0.into(), ..Prefix::default() },
            volume: shard.volume.0.into(),
            shard: shard.index.0.into(),
            epoch: epoch.0.into(),
            view: snapshot.map_or(0, |s| s.0).into(),
            at: at.from.0.into(),
            reserved: 0.into(),
        }
    }
    /// A SNAPSHOT_READ of blocks `at`.
    pub fn of_snapshot(of: ShardSnapshot, at: BlockRange) -> Self {
        Self::new(of.shard, Epoch(0), Some(of.snapshot), at)
    }
    /// What a SNAPSHOT_READ is about; `None` if this is none.
    pub fn asked_snapshot(&self) -> Option<ShardSnapshot> {
        let snapshot = self.snapshot().filter(|_| self.epoch() == Epoch(0))?;
        Some(ShardSnapshot { shard: self.shard(), snapshot })
    }
    /// Whom it is for.
    pub fn shard(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: ShardIndex(self.shard.get()) }
    }
    /// The epoch that the copy has joined.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.get())
    }
    /// The snapshot that is meant; `None` is the live content.
    pub fn snapshot(&self) -> Option<SnapshotId> {
        (self.view.get() != 0).then(|| SnapshotId(self.view.get()))
    }
    /// The blocks it is about.
    pub fn range(&self) -> BlockRange {
        BlockRange { from: Blocks(self.at.get()), count: Blocks(self.prefix.word.get()) }
    }
}

body! {
    /// A good reply to REPLICA_VERIFY. The payload is each block's plain CRC32C, in order.
    VerifyAnswer = 16 {
        /// The status; the word is the number of blocks.
        reply: ReplyBody,
        /// Bit n: block n does not read as it was written; its checksum in the payload says nothing.
        damaged: U64,
    }
}

/// The payload of a good reply to REPLICA_VERIFY.
pub fn encode_crcs(out: &mut Vec<u8>, crcs: &[u32]) {
    out.extend(crcs.iter().flat_map(|crc| crc.to_le_bytes()));
}

/// Reads it; `None` if it is not exactly so many.
pub fn decode_crcs(payload: &[u8], count: u32) -> Option<Vec<u32>> {
    let (crcs, rest) = payload.as_chunks::<4>();
    let whole = rest.is_empty() && crcs.len() == count as usize;
    whole.then(|| crcs.iter().map(|crc| u32::from_le_bytes(*crc)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    #[test]
    fn a_view_body_has_these_bytes() {
        let shard = ShardId { volume: VolumeId(0x0102_0304), index: ShardIndex(5) };
        let at = BlockRange { from: Blocks(0x1122), count: Blocks(64) };
        let body = ViewBody::new(shard, Epoch(6), Some(SnapshotId(7)), at);
        let want = [
            [0, 0, 0, 0, 64, 0, 0, 0],
            [0; 8],
            [4, 3, 2, 1, 5, 0, 0, 0],
            [6, 0, 0, 0, 0, 0, 0, 0],
            [7, 0, 0, 0, 0, 0, 0, 0],
            [0x22, 0x11, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(body.bytes(), want.as_flattened());
        let back = ViewBody::parse(body.bytes()).unwrap();
        assert_eq!((back.shard(), back.epoch(), back.range()), (shard, Epoch(6), at));
        assert_eq!(back.snapshot(), Some(SnapshotId(7)));
        assert_eq!(ViewBody::new(shard, Epoch(6), None, at).snapshot(), None);
        assert!(ViewBody::parse(&body.bytes()[1..]).is_none());
    }

    #[test]
    fn a_read_of_a_snapshot_names_no_epoch_and_has_these_bytes() {
        let shard = ShardId { volume: VolumeId(0x0102_0304), index: ShardIndex(5) };
        let of = ShardSnapshot { shard, snapshot: SnapshotId(7) };
        let at = BlockRange { from: Blocks(0x1122), count: Blocks(256) };
        let body = ViewBody::of_snapshot(of, at);
        let want = [
            [0, 0, 0, 0, 0, 1, 0, 0],
            [0; 8],
            [4, 3, 2, 1, 5, 0, 0, 0],
            [0; 8],
            [7, 0, 0, 0, 0, 0, 0, 0],
            [0x22, 0x11, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(body.bytes(), want.as_flattened());
        let back = ViewBody::parse(body.bytes()).unwrap();
        assert_eq!((back.asked_snapshot(), back.range()), (Some(of), at));
        assert_eq!(ViewBody::new(shard, Epoch(6), Some(of.snapshot), at).asked_snapshot(), None, "an epoch");
        assert_eq!(ViewBody::new(shard, Epoch(0), None, at).asked_snapshot(), None, "no snapshot");
        assert_eq!(crate::op::SNAPSHOT_READ, wire::Op(49));
    }

    #[test]
    fn an_answer_to_a_verification_has_these_bytes() {
        let reply = ReplyBody { word: 3.into(), ..ReplyBody::new(Status::Ok) };
        let answer = VerifyAnswer { reply, damaged: 0b101.into() };
        assert_eq!(answer.bytes(), [0, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        let mut bytes = Vec::new();
        encode_crcs(&mut bytes, &[1, 0x0203_0405]);
        assert_eq!(bytes, [1, 0, 0, 0, 5, 4, 3, 2]);
        assert_eq!(decode_crcs(&bytes, 2), Some(vec![1, 0x0203_0405]));
        assert_eq!((decode_crcs(&bytes, 1), decode_crcs(&bytes[1..], 2)), (None, None));
    }
}
