//! Payload checksums: one CRC32C per 4 KiB piece, and one over those for the header.
//!
//! A piece's CRC is computed once, in the pass that copies it (or where its bytes are born), and travels with it: the store
//! and the forwards use it again. The piece is the store's block, so a block's CRC is a piece's CRC.

use smallvec::SmallVec;

/// Bytes per piece: the block of the store.
pub const PIECE: usize = 4096;

/// The CRC32C of each piece in order. Four fit without allocation (16 KiB: the largest payload that is copied).
pub type Crcs = SmallVec<[u32; 4]>;

/// The CRC32C of each 4 KiB piece; the last may be short.
pub fn pieces(bytes: &[u8]) -> Crcs {
    bytes.chunks(PIECE).map(crc32c::crc32c).collect()
}

/// A header's payload CRC: the CRC32C of the pieces' CRCs as a little-endian array; 0 for no payload.
pub fn tree(crcs: &[u32]) -> u32 {
    crcs.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, &piece.to_le_bytes()))
}

/// Where a payload that arrives in chunks stands.
#[derive(Clone, Debug, Default)]
pub struct Copying {
    done: Crcs,
    current: u32,
    in_piece: usize,
}

impl Copying {
    /// Counts bytes that are already in place.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (run, rest) = bytes.split_at(bytes.len().min(PIECE - self.in_piece));
            self.run(run);
            bytes = rest;
        }
    }

    /// All pieces, the last one as short as it is.
    pub fn finish(mut self) -> Crcs {
        if self.in_piece > 0 {
            self.done.push(self.current);
        }
        self.done
    }

    /// A run that stays within the current piece.
    fn run(&mut self, run: &[u8]) {
        self.current = crc32c::crc32c_append(self.current, run);
        self.in_piece += run.len();
        if self.in_piece == PIECE {
            self.done.push(self.current);
            (self.current, self.in_piece) = (0, 0);
        }
    }
}

/// Copies `src` to the start of `dst` and counts it, piece by piece, so that each is checksummed while it is in the cache.
/// Chunks may end anywhere. Panics if `dst` is shorter than `src`.
pub fn copy_pieces(dst: &mut [u8], src: &[u8], state: &mut Copying) {
    let mut at = 0;
    while at < src.len() {
        let end = src.len().min(at + PIECE - state.in_piece);
        let run = &mut dst[at..end];
        run.copy_from_slice(&src[at..end]);
        state.run(run);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_payload_has_crc_zero() {
        assert_eq!(tree(&pieces(&[])), 0);
        assert_eq!(Copying::default().finish().len(), 0);
    }

    #[test]
    fn the_tree_is_the_crc_of_the_little_endian_array_of_piece_crcs() {
        let bytes = vec![7u8; PIECE + 1];
        let crcs = pieces(&bytes);
        let array: Vec<u8> = crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect();
        assert_eq!(crcs.as_slice(), [crc32c::crc32c(&bytes[..PIECE]), crc32c::crc32c(&[7])]);
        assert_eq!(tree(&crcs), crc32c::crc32c(&array));
    }

    proptest! {
        #[test]
        fn chunks_give_the_same_bytes_and_crcs_as_one_piece(
            bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
            cuts in proptest::collection::vec(1usize..6000, 0..12),
        ) {
            let (mut copied, mut state, mut seen) = (vec![0; bytes.len()], Copying::default(), Copying::default());
            let mut at = 0usize;
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let end = at.saturating_add(cut).min(bytes.len());
                copy_pieces(&mut copied[at..], &bytes[at..end], &mut state);
                seen.update(&bytes[at..end]);
                at = end;
            }
            prop_assert_eq!(&copied, &bytes);
            prop_assert_eq!(state.finish(), pieces(&bytes));
            prop_assert_eq!(seen.finish(), pieces(&bytes));
        }
    }
}
