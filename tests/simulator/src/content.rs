//! What a write puts into each sector, so that whatever is read can be attributed to one write.
//!
//! Each eight bytes carry the write's number and a mix of that, the sector and the position: any aligned word tells the write,
//! and a sector that is torn, moved or mixed from two shows.

/// The unit of attribution, in bytes.
pub const SECTOR: usize = 512;
/// The unit of reads at odd places, in bytes.
pub(crate) const WORD: usize = 8;

fn word(op: u32, sector: u64, at: u64) -> u64 {
    let mut x =
        u64::from(op).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sector.wrapping_mul(0xc2b2_ae3d_27d4_eb4f) ^ (at << 56);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    u64::from(op) << 32 | x >> 32
}

/// Fills whole sectors, the first of which is the volume's `first`, as write `op` does.
pub(crate) fn fill(op: u32, first: u64, bytes: &mut [u8]) {
    for (sector, bytes) in (first..).zip(bytes.chunks_exact_mut(SECTOR)) {
        for (at, chunk) in (0..).zip(bytes.as_chunks_mut::<WORD>().0) {
            *chunk = word(op, sector, at).to_le_bytes();
        }
    }
}

/// Which write these words of one sector come from (0: none, they are zero), the first being the sector's `from`-th. `Err` if they
/// are nobody's.
pub(crate) fn attribute(sector: u64, from: u64, bytes: &[u8]) -> Result<u32, String> {
    let words = bytes.as_chunks::<WORD>().0;
    let Some(first) = words.first() else { return Err("nothing to attribute".to_owned()) };
    let op = u32::try_from(u64::from_le_bytes(*first) >> 32).unwrap_or(0);
    for (at, chunk) in (from..).zip(words) {
        let expected = if op == 0 { 0 } else { word(op, sector, at) };
        let found = u64::from_le_bytes(*chunk);
        if found != expected {
            return Err(format!("sector {sector}, word {at}: {found:016x} is not of write {op} ({expected:016x})"));
        }
    }
    Ok(op)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_attributed_and_what_is_mixed_is_not() {
        let mut bytes = vec![0; 3 * SECTOR];
        assert_eq!(attribute(7, 0, &bytes[..SECTOR]), Ok(0));
        fill(9, 7, &mut bytes);
        assert_eq!(attribute(8, 0, &bytes[SECTOR..2 * SECTOR]), Ok(9));
        assert_eq!(attribute(8, 5, &bytes[SECTOR + 40..SECTOR + 64]), Ok(9));
        assert!(attribute(7, 0, &bytes[SECTOR..2 * SECTOR]).is_err(), "another sector's");
        bytes[SECTOR - 1] ^= 1;
        assert!(attribute(7, 0, &bytes[..SECTOR]).is_err());
    }
}
