//! CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of everything: frames, blocks, journal, pages.
//!
//! The one place that knows who computes it. `crc-fast` multiplies without carry, in registers as wide as the processor has: 90 ns for 4 KiB in
//! a cache where the crc32 instruction alone takes 190, and a table 1,700. A processor that is emulated multiplies bit by bit: in QEMU it takes
//! 27 µs, and a table 11. So a program says at its start who is to compute, if it has looked who is faster ([`choose`]).
#![forbid(unsafe_code)]

use crc::{CRC_32_ISCSI, Crc, Table};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;
use std::sync::atomic::{AtomicBool, Ordering};

/// Who computes it; both come to the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The processor, multiplying without carry. Unless something else is chosen.
    Multiplying,
    /// A table of 16 KiB, which takes 16 bytes at a time.
    Table,
}

impl By {
    /// The CRC32C of bytes, computed so.
    #[inline]
    pub fn whole(self, bytes: &[u8]) -> u32 {
        match self {
            Self::Multiplying => word(crc_fast::checksum(Crc32Iscsi, bytes)),
            Self::Table => TABLE.checksum(bytes),
        }
    }

    /// The CRC32C of what has the CRC32C `before`, and of the bytes behind it, computed so.
    #[inline]
    pub fn append(self, before: u32, bytes: &[u8]) -> u32 {
        match self {
            Self::Multiplying => {
                if before == 0 {
                    return self.whole(bytes); // as of nothing
                }
                let mut few = [0; FEW];
                if let Some((first, copy)) = bytes.first_chunk().zip(few.get_mut(..bytes.len())) {
                    // What was before is mixed with the first four bytes and nothing else: done by hand, that costs less than a `Digest`.
                    copy.copy_from_slice(bytes);
                    copy[..4].copy_from_slice(&(u32::from_le_bytes(*first) ^ before).to_le_bytes());
                    return self.whole(copy);
                }
                // What comes out is inverted, what goes in is not.
                let mut digest = Digest::new_with_init_state(Crc32Iscsi, u64::from(!before));
                digest.update(bytes);
                word(digest.finalize())
            }
            Self::Table => {
                // It goes in neither inverted nor in the order in which it comes out.
                let mut digest = TABLE.digest_with_initial((!before).reverse_bits());
                digest.update(bytes);
                digest.finalize()
            }
        }
    }
}

/// So many bytes and fewer are rather copied than given to a `Digest`, which is made by copying some 300.
const FEW: usize = 64;

static TABLE: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);
static BY_TABLE: AtomicBool = AtomicBool::new(false);

/// From now on all of this process is computed so.
pub fn choose(by: By) {
    BY_TABLE.store(by == By::Table, Ordering::Relaxed);
}

#[inline]
fn chosen() -> By {
    if BY_TABLE.load(Ordering::Relaxed) { By::Table } else { By::Multiplying }
}

/// The CRC32C of bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    chosen().whole(bytes)
}

/// The CRC32C of what has the CRC32C `before`, and of the bytes behind it.
#[inline]
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    chosen().append(before, bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "of a checksum of 32 bits the others are zero")]
fn word(crc: u64) -> u32 {
    crc as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, as the RFC defines it.
    fn slow(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    #[test]
    fn the_examples_of_the_rfc_come_out() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(&descending), 0x113f_db5c);
        assert_eq!((crc32c(b"123456789"), crc32c(b"")), (0xe306_9283, 0));
    }

    #[test]
    fn who_computes_it_can_be_chosen() {
        choose(By::Table);
        assert_eq!((crc32c(b"123456789"), crc32c_append(crc32c(b"1234"), b"56789")), (0xe306_9283, 0xe306_9283));
        choose(By::Multiplying);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn however_it_is_cut_it_is_the_same(bytes in prop::collection::vec(any::<u8>(), 0..9000), cut in 0usize..9000) {
            let (front, back) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(crc32c(&bytes), slow(&bytes));
            prop_assert_eq!(crc32c_append(crc32c(front), back), slow(&bytes));
            prop_assert_eq!(crc32c_append(slow(&bytes), &[]), slow(&bytes));
            for by in [By::Multiplying, By::Table] {
                prop_assert_eq!(by.append(by.append(0, front), back), slow(&bytes), "{:?}", by);
            }
        }
    }
}
