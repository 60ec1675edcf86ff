//! What is written, in which order: a closed loop of so many requests, each begun when one is over.

use conductor_model::{BlockRange, Blocks};

/// A generator of no account but speed (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        u32::try_from((high * u64::from(end)) >> 32).unwrap_or(0) // below `end`
    }
}

/// Where the next request goes.
#[derive(Clone, Debug)]
pub(crate) enum Pattern {
    /// Single blocks, each as likely as any other.
    Anywhere { span: u32, random: Random },
    /// Single blocks in a random order, none twice.
    Once { order: Vec<u32> },
    /// Requests of so many blocks, one behind the other.
    Sequential { next: u32, end: u32, count: u32 },
}

impl Pattern {
    pub(crate) fn anywhere(span: u32, seed: u64) -> Self {
        Self::Anywhere { span, random: Random::new(seed) }
    }

    pub(crate) fn once(span: u32, seed: u64) -> Self {
        let mut order: Vec<u32> = (0..span).collect();
        let mut random = Random::new(seed);
        for left in (1..span).rev() {
            order.swap(left as usize, random.below(left + 1) as usize);
        }
        Self::Once { order }
    }

    pub(crate) fn sequential(span: u32, count: u32) -> Self {
        Self::Sequential { next: 0, end: span, count }
    }

    /// The next request; none if all is written.
    pub(crate) fn next(&mut self) -> Option<BlockRange> {
        let (from, count) = match self {
            Self::Anywhere { span, random } => (random.below(*span), 1),
            Self::Once { order } => (order.pop()?, 1),
            Self::Sequential { next, end, count } => {
                let from = *next;
                *next += *count;
                (*next <= *end).then_some((from, *count))?
            }
        };
        Some(BlockRange { from: Blocks(from), count: Blocks(count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_is_every_block_once_and_not_in_order() {
        let mut pattern = Pattern::once(1000, 7);
        let mut seen: Vec<u32> = std::iter::from_fn(|| pattern.next()).map(|at| at.from.0).collect();
        assert!(!seen.is_sorted());
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn anywhere_reaches_both_ends_and_sequential_stays_within() {
        let mut pattern = Pattern::anywhere(10, 3);
        let seen: std::collections::BTreeSet<u32> =
            (0..1000).filter_map(|_| pattern.next()).map(|at| at.from.0).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        let mut pattern = Pattern::sequential(100, 32);
        assert_eq!(std::iter::from_fn(|| pattern.next()).map(|at| at.from.0).collect::<Vec<_>>(), [0, 32, 64]);
    }
}
