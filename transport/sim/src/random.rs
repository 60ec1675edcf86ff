//! The one source of chance: xoshiro256** seeded by splitmix64 (Blackman and Vigna, <https://prng.di.unimi.it>, public domain).

use crate::size;
use driver::Span;

/// A seeded generator. Copies would repeat each other, so there are none: see [`Rng::fork`].
#[derive(Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator that gives the same numbers for the same seed on every machine.
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        Self { state: std::array::from_fn(|_| splitmix(&mut mix)) }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number in `0..end`; 0 if `end` is 0. (The bias of the multiplication is below 2⁻³² for all `end` in use.)
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// An index in `0..end`; 0 if `end` is 0.
    pub fn index(&mut self, end: usize) -> usize {
        size(self.below(end as u64))
    }

    /// A length in `1..=most`; `most` must not be 0.
    pub fn up_to(&mut self, most: usize) -> usize {
        1 + self.index(most)
    }

    /// A span in `0..end`.
    pub fn span(&mut self, end: Span) -> Span {
        Span(self.below(end.0))
    }

    /// True `parts` times in a million.
    pub fn chance(&mut self, parts: u32) -> bool {
        parts > 0 && self.below(1_000_000) < u64::from(parts)
    }

    /// True every other time.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Another generator whose numbers have nothing to do with what this one gives from here on.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_sequence_of_splitmix_is_met() {
        // The first outputs for state 1234567, as in Vigna's splitmix64.c.
        let mut state = 1_234_567;
        assert_eq!(splitmix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(splitmix(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn the_reference_sequence_of_xoshiro_is_met() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], [11_520, 0, 1_509_978_240]);
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut rng = Rng::new(7);
        let mut seen = [0_u32; 6];
        for _ in 0..6_000 {
            seen[rng.index(6)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1_200).contains(n)), "{seen:?}");
        assert!(!rng.chance(0) && rng.chance(1_000_000));
    }
}
