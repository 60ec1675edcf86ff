//! Lists in payloads: what a copy holds above K, in a Join's answer, 32 bytes an entry; for which shards a promise does not count, in a
//! promise's, 16 bytes each. An entry of the first:
//!
//! ```text
//! 0 epoch u64 | 8 sequence u64 | 16 first block u32 | 20 blocks u32 | 24 kind u32 (0 write, 1 zero, 2 barrier) | 28 zero u32
//! ```

use conductor_model::{BlockRange, Blocks, Epoch, Held, HeldKind, Sequence, ShardId, ShardIndex, Stamp, VolumeId};

/// Bytes of one entry.
const ENTRY: usize = 32;

/// Appends one entry.
pub fn encode_held(out: &mut Vec<u8>, Held { stamp, at, kind }: &Held) {
    let kind: u32 = match kind {
        HeldKind::Write => 0,
        HeldKind::Zero => 1,
        HeldKind::Barrier => 2,
    };
    out.extend_from_slice(&stamp.epoch.0.to_le_bytes());
    out.extend_from_slice(&stamp.sequence.0.to_le_bytes());
    out.extend_from_slice(&at.from.0.to_le_bytes());
    out.extend_from_slice(&at.count.0.to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
}

/// Reads all entries; `None` if the length is not a whole number of them. A kind that is not known counts as a write: to make too much
/// equal is safe.
pub fn decode_held(payload: &[u8]) -> Option<Vec<Held>> {
    let (entries, rest) = payload.as_chunks::<ENTRY>();
    let long = |e: &[u8; ENTRY], at: usize| u64::from_le_bytes(std::array::from_fn(|i| e[at + i]));
    let word = |e: &[u8; ENTRY], at: usize| u32::from_le_bytes(std::array::from_fn(|i| e[at + i]));
    rest.is_empty().then(|| {
        entries
            .iter()
            .map(|e| {
                let stamp = Stamp { epoch: Epoch(long(e, 0)), sequence: Sequence(long(e, 8)) };
                let kind = match word(e, 24) {
                    1 => HeldKind::Zero,
                    2 => HeldKind::Barrier,
                    _ => HeldKind::Write,
                };
                Held { stamp, at: BlockRange { from: Blocks(word(e, 16)), count: Blocks(word(e, 20)) }, kind }
            })
            .collect()
    })
}

/// Bytes of one entry of a withheld list: volume u32, shard u32, epoch u64.
const WITHHELD: usize = 16;

/// Appends a shard to a withheld list (rule 13): `epoch` waits for the promise to end.
pub fn encode_withheld(into: &mut Vec<u8>, shard: ShardId, epoch: Epoch) {
    into.extend_from_slice(&shard.volume.0.to_le_bytes());
    into.extend_from_slice(&shard.index.0.to_le_bytes());
    into.extend_from_slice(&epoch.0.to_le_bytes());
}

/// Reads a list back; `None` if it is torn.
pub fn decode_withheld(bytes: &[u8]) -> Option<Vec<(ShardId, Epoch)>> {
    let entry = |entry: &[u8]| {
        let word = |at: usize| entry.get(at..at + 4)?.try_into().map(u32::from_le_bytes).ok();
        let epoch = entry.get(8..)?.try_into().map(u64::from_le_bytes).ok()?;
        Some((ShardId { volume: VolumeId(word(0)?), index: ShardIndex(word(4)?) }, Epoch(epoch)))
    };
    let whole = bytes.len().is_multiple_of(WITHHELD);
    bytes.chunks_exact(WITHHELD).map(entry).collect::<Option<Vec<_>>>().filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_went() {
        let stamp = Stamp { epoch: Epoch(3), sequence: Sequence(4) };
        let at = BlockRange { from: Blocks(5), count: Blocks(6) };
        let mut bytes = Vec::new();
        let held = [HeldKind::Zero, HeldKind::Write, HeldKind::Barrier].map(|kind| Held { stamp, at, kind });
        held.iter().for_each(|held| encode_held(&mut bytes, held));
        assert_eq!(decode_held(&bytes), Some(held.to_vec()));
        assert_eq!(decode_held(&bytes[1..]), None);
    }
}
