//! What blocks hold: zeros, or the bytes of a number that is used once. So a block says which write it is of, and whether it is whole.

use conductor_model::BLOCK;
use memory::{Arena, Class, Reads};
use std::fmt;

/// The number of a block's content; 0 is zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Content(pub(crate) u64);

/// As a block holds what nobody wrote, or what was discarded.
pub(crate) const ZEROS: Content = Content(0);

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn word(content: Content, n: usize) -> u64 {
    if content == ZEROS { 0 } else { (content.0 ^ (n as u64) << 48).wrapping_mul(SPREAD) }
}

/// Fill a block.
pub(crate) fn fill(content: Content, block: &mut [u8]) {
    if content == ZEROS {
        return block.fill(0);
    }
    for (n, bytes) in block.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = word(content, n).to_le_bytes();
    }
}

/// Which content a block is, or `None` if it is not whole.
pub(crate) fn of(block: &[u8]) -> Option<Content> {
    assert_eq!(block.len(), BLOCK);
    let words = block.as_chunks::<8>().0;
    let first = u64::from_le_bytes(words[0]);
    // SPREAD is odd, so multiplying with it can be undone: Newton's iteration doubles the good bits from 5 on.
    let mut inverse = SPREAD;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(inverse)));
    }
    let content = Content(first.wrapping_mul(inverse));
    words.iter().enumerate().all(|(n, bytes)| u64::from_le_bytes(*bytes) == word(content, n)).then_some(content)
}

/// Memory with these blocks.
pub(crate) fn memory(arena: &Arena, blocks: impl ExactSizeIterator<Item = Content>) -> Option<Reads> {
    let mut memory = arena.take(blocks.len() * BLOCK, Class::Client)?;
    memory.chunks_mut(BLOCK).zip(blocks).for_each(|(block, content)| fill(content, block));
    Some(memory.filled())
}

/// So many blocks with contents from this one on.
pub(crate) fn bytes(first: Content, blocks: u32) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK];
    (first.0..).zip(bytes.chunks_mut(BLOCK)).for_each(|(n, block)| fill(Content(n), block));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_what_it_is_and_whether_it_is_whole() {
        let mut block = vec![1; BLOCK];
        for content in [ZEROS, Content(1), Content(77 << 20)] {
            fill(content, &mut block);
            assert_eq!(of(&block), Some(content));
            block[BLOCK - 1] ^= 4;
            assert_eq!(of(&block), None);
        }
    }

    #[test]
    fn half_of_one_and_half_of_another_is_neither() {
        let (mut block, mut other) = (vec![0; BLOCK], vec![0; BLOCK]);
        fill(Content(5), &mut block);
        fill(Content(6), &mut other);
        block[512..1024].copy_from_slice(&other[512..1024]);
        assert_eq!(of(&block), None);
    }
}
