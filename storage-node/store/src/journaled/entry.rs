//! What a chunk of a layer reads as, what is known of a physical chunk, and the identity summed into its checksums.
//!
//! ```text
//! entry:  chunk u32 (0: none) | present u16 | zero u16 | version 16 | owner volume u32 | owner shard u32        32 B, all zeros: absent
//! chunk:  refs u16 | lost u16 | 16 × checksum u32                                                              68 B
//! checksum = CRC32C of the block, continued over owner volume, owner shard, block number in the shard (u32 each)
//! ```

use super::limits::{CHUNK_BLOCKS, CHUNK_RECORD_BYTES, ENTRY_BYTES};
use crate::codec::{Put, Take};
use conductor_model::{Epoch, Sequence, ShardId, ShardIndex, Stamp, VolumeId};
use driver::mutant;
use std::num::NonZeroU32;

/// A set of blocks of one chunk, a bit each.
pub(super) type Mask = u16;
/// All blocks of a chunk.
pub(super) const ALL: Mask = Mask::MAX;

/// The blocks `from..to` of a chunk.
pub(super) fn mask(from: u32, to: u32) -> Mask {
    (from..to.min(CHUNK_BLOCKS)).fold(0, |mask, n| mask | 1 << n)
}

/// The blocks of a mask, in order.
pub(super) fn blocks(mask: Mask) -> impl Iterator<Item = u32> {
    (0..CHUNK_BLOCKS).filter(move |n| mask >> n & 1 == 1)
}

/// A physical chunk, numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct ChunkNo(NonZeroU32);

impl ChunkNo {
    /// From its number on the disk; `None` if there is no such chunk.
    pub(super) fn new(number: u32, chunks: u32) -> Option<Self> {
        NonZeroU32::new(number).filter(|n| n.get() <= chunks).map(Self)
    }
    /// From its place, from 0.
    pub(super) fn at(index: u32) -> Option<Self> {
        NonZeroU32::new(index.checked_add(1)?).map(Self)
    }
    /// Its number on the disk.
    pub(super) fn number(self) -> u32 {
        self.0.get()
    }
    /// Its place, from 0.
    pub(super) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// A block's checksum as it is stored: with the identity of the chunk's first owner.
pub(super) fn stored_crc(plain: u32, owner: ShardId, block: u32) -> u32 {
    if mutant::on("store-crc-without-identity") {
        return plain;
    }
    let mut identity = [0; 12];
    identity[..4].copy_from_slice(&owner.volume.0.to_le_bytes());
    identity[4..8].copy_from_slice(&owner.index.0.to_le_bytes());
    identity[8..].copy_from_slice(&block.to_le_bytes());
    crc32c::crc32c_append(plain, &identity)
}

/// The plain checksum that a stored one was made of: the identity is taken off again, byte by byte from the end.
pub(super) fn plain_crc(stored: u32, owner: ShardId, block: u32) -> u32 {
    if mutant::on("store-crc-without-identity") {
        return stored;
    }
    let identity = [owner.volume.0.to_le_bytes(), owner.index.0.to_le_bytes(), block.to_le_bytes()];
    let mut state = !stored;
    for byte in identity.as_flattened().iter().rev() {
        let index = TOP[(state >> 24) as usize];
        state = (state ^ TABLE[index as usize]) << 8 | u32::from(index ^ byte);
    }
    !state
}

/// CRC32C of each byte, reflected, as it enters the state; and where in that table each highest byte stands.
const TABLE: [u32; 256] = table();
const TOP: [u8; 256] = top();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let (mut n, mut byte) = (0, 0u32);
    while n < 256 {
        let (mut crc, mut bit) = (byte, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        (n, byte) = (n + 1, byte + 1);
    }
    table
}

const fn top() -> [u8; 256] {
    let (table, mut top, mut n) = (table(), [0; 256], 0usize);
    while n < 256 {
        top[(table[n] >> 24) as usize] = n.to_le_bytes()[0];
        n += 1;
    }
    top
}

/// The version of an entry that was lost in a layer which does not change any more: not known, and nothing may be concluded from it.
pub(super) const UNKNOWN: Stamp = Stamp { epoch: Epoch(u64::MAX), sequence: Sequence(u64::MAX) };

/// What a chunk of a layer reads as. What is neither present nor zero reads as the layer below.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Entry {
    pub(super) chunk: Option<ChunkNo>,
    pub(super) present: Mask,
    pub(super) zero: Mask,
    /// Of these nobody knows what they were: the page that said so was bad in both mirrors (`fold/lost.rs`), or no copy had them when this one was
    /// filled. On the disk they are both present and zeros.
    pub(super) lost: Mask,
    /// The newest change (rule 7): belongs to the entry, never to the chunk.
    pub(super) version: Stamp,
    /// Whose identity is in the chunk's checksums (rule 23).
    pub(super) owner: ShardId,
}

impl Entry {
    /// True if nothing is said of the chunk here.
    pub(super) fn is_absent(&self) -> bool {
        self.chunk.is_none() && self.zero | self.lost == 0
    }

    /// The blocks that this entry decides.
    pub(super) fn decided(&self) -> Mask {
        self.present | self.zero | self.lost
    }

    /// The bytes on the disk.
    pub(super) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = Vec::with_capacity(ENTRY_BYTES);
        bytes.u32(self.chunk.map_or(0, ChunkNo::number));
        bytes.u16(self.present | self.lost);
        bytes.u16(self.zero | self.lost);
        bytes.stamp(self.version);
        bytes.u32(self.owner.volume.0);
        bytes.u32(self.owner.index.0);
        bytes.try_into().unwrap_or([0; ENTRY_BYTES]) // 4 + 2 + 2 + 16 + 4 + 4
    }

    /// `None` if it is none that this engine could have written.
    pub(super) fn decode(bytes: &[u8], chunks: u32) -> Option<Self> {
        let mut take = Take(bytes);
        let number = take.u32()?;
        let chunk = ChunkNo::new(number, chunks);
        let (present, zero, version) = (take.u16()?, take.u16()?, take.stamp()?);
        let owner = ShardId { volume: VolumeId(take.u32()?), index: ShardIndex(take.u32()?) };
        let lost = present & zero;
        let (present, zero) = (present & !lost, zero & !lost);
        let sound = (number == 0) == chunk.is_none() && (chunk.is_some() || present == 0);
        sound.then_some(Self { chunk, present, zero, lost, version, owner })
    }
}

/// What is known of a physical chunk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ChunkRecord {
    /// Entries that share it.
    pub(super) refs: u16,
    /// The page that said how many share it, and their checksums, was bad in both mirrors: it is never given back, and nothing in it is
    /// known to be right.
    pub(super) lost: bool,
    /// Stored checksums; of blocks that some entry says are present.
    pub(super) crcs: [u32; CHUNK_BLOCKS as usize],
}

impl ChunkRecord {
    /// See [`ChunkRecord::lost`]. As many share it as can be counted, so that nobody takes it for their own.
    pub(super) const LOST: Self = Self { refs: u16::MAX, lost: true, crcs: [0; CHUNK_BLOCKS as usize] };

    /// The bytes on the disk.
    pub(super) fn encode(&self) -> [u8; CHUNK_RECORD_BYTES] {
        let mut bytes = Vec::with_capacity(CHUNK_RECORD_BYTES);
        bytes.u16(self.refs);
        bytes.u16(self.lost.into());
        self.crcs.iter().for_each(|&crc| bytes.u32(crc));
        bytes.try_into().unwrap_or([0; CHUNK_RECORD_BYTES]) // 2 + 2 + 16 · 4
    }

    /// `None` if it is too short.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut take = Take(bytes);
        let refs = take.u16()?;
        let lost = take.u16()? != 0;
        let mut crcs = [0; CHUNK_BLOCKS as usize];
        for crc in &mut crcs {
            *crc = take.u32()?;
        }
        Some(Self { refs, lost, crcs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_chunk_records_read_as_they_were_written_and_nonsense_is_refused() {
        let entry = Entry {
            chunk: ChunkNo::new(77, 100),
            present: 0x00f0,
            zero: 0x0f00,
            lost: 0x8001,
            version: Stamp { epoch: Epoch(3), sequence: Sequence(9) },
            owner: ShardId { volume: VolumeId(5), index: ShardIndex(6) },
        };
        assert_eq!(Entry::decode(&entry.encode(), 100), Some(entry));
        assert_eq!(Entry::decode(&entry.encode(), 76), None);
        assert_eq!(Entry::decode(&[0; 32], 1), Some(Entry::default()));
        assert_eq!(Entry::decode(&Entry { chunk: None, ..entry }.encode(), 100), None);
        let lost = Entry { chunk: None, present: 0, zero: 0, ..entry };
        assert_eq!(Entry::decode(&lost.encode(), 100), Some(lost));
        assert!(!lost.is_absent());
        let mut record = ChunkRecord { refs: 3, ..ChunkRecord::default() };
        record.crcs[15] = 9;
        assert_eq!(ChunkRecord::decode(&record.encode()), Some(record));
        assert_eq!(ChunkRecord::decode(&ChunkRecord::LOST.encode()), Some(ChunkRecord::LOST));
    }

    #[test]
    fn a_checksum_says_whose_block_it_is_and_which() {
        let owner = ShardId { volume: VolumeId(1), index: ShardIndex(2) };
        let crc = stored_crc(7, owner, 3);
        assert_ne!(crc, stored_crc(7, owner, 4));
        assert_ne!(crc, stored_crc(7, ShardId { volume: VolumeId(2), ..owner }, 3));
        assert_ne!(crc, stored_crc(7, ShardId { index: ShardIndex(1), ..owner }, 3));
        assert_ne!(crc, stored_crc(8, owner, 3));
        for plain in [0, 7, 0xffff_ffff, 0x98f9_4189] {
            assert_eq!(plain_crc(stored_crc(plain, owner, 0x0102_0304), owner, 0x0102_0304), plain);
        }
        assert_eq!(mask(3, 6), 0b111000);
        assert_eq!(blocks(0b1000_0000_0000_0101).collect::<Vec<_>>(), [0, 2, 15]);
    }
}
