//! The answer to EXTENTS: which blocks may hold something else than zeros, as far as it goes.

use crate::bodies::body;
use crate::{ReplyBody, Status};
use conductor_model::{BlockRange, Blocks};
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Runs of data in one answer: as many as fit into a body.
pub const MAX_EXTENTS: usize = 14;

body! {
    /// A good reply to EXTENTS. The reply's word is the number of runs.
    ExtentsAnswer = 128 {
        /// The status, as in any reply; word = runs.
        reply: ReplyBody,
        /// Of so many blocks, from the first that was asked for, something is said. More than none.
        covered: U32,
        /// Zero.
        reserved: U32,
        /// Each run's distance from the first block that was asked for, and its length, in blocks: not empty, in ascending order, apart
        /// from each other, within what is covered. All that is covered and in none of them is zeros.
        runs: [[U32; 2]; MAX_EXTENTS],
    }
}

impl ExtentsAnswer {
    /// All of it may hold data.
    pub fn all(asked: BlockRange) -> Self {
        Self::new(asked, &[asked], Blocks(u32::MAX))
    }

    /// About `asked`, which is not empty, from what is known from its first block up to `next`: `data` in ascending order.
    pub fn new(asked: BlockRange, data: &[BlockRange], next: Blocks) -> Self {
        if next <= asked.from {
            return Self::all(asked);
        }
        let first = u64::from(asked.from.0);
        let mut end = asked.end().min(next.0.into());
        let mut this = Self { reply: ReplyBody::new(Status::Ok), ..Self::default() };
        let mut runs = 0;
        for run in data {
            let (from, to) = (u64::from(run.from.0).max(first), run.end().min(end));
            if from >= to {
                continue;
            }
            let Some(room) = this.runs.get_mut(runs) else {
                // What begins here is told when it is asked for.
                end = from;
                break;
            };
            *room = [distance(from - first), distance(to - from)];
            runs += 1;
        }
        this.reply.word = distance(runs as u64);
        this.covered = distance(end - first);
        this
    }

    /// How many blocks it is about, and the runs of data among them, counted from the first that was asked for; `None` if it contradicts
    /// itself, or is about more than was asked for.
    pub fn runs(&self, asked: Blocks) -> Option<(Blocks, Vec<BlockRange>)> {
        let covered = self.covered.get();
        let runs = self.runs.get(..usize::try_from(self.reply.word.get()).ok()?)?;
        let mut at = 0_u32;
        let mut found = Vec::new();
        for (n, [from, count]) in runs.iter().enumerate() {
            let (from, count) = (from.get(), count.get());
            if count == 0 || from < at || (n > 0 && from == at) {
                return None;
            }
            at = from.checked_add(count)?;
            found.push(BlockRange { from: Blocks(from), count: Blocks(count) });
        }
        (covered > 0 && covered <= asked.0 && at <= covered).then_some((Blocks(covered), found))
    }
}

/// Within one request, which is 1 GiB at most.
fn distance(blocks: u64) -> U32 {
    u32::try_from(blocks).unwrap_or(u32::MAX).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }

    fn told(answer: &ExtentsAnswer, asked: u32) -> Option<(u32, Vec<(u32, u32)>)> {
        let back = ExtentsAnswer::parse(answer.bytes()).unwrap();
        let (covered, runs) = back.runs(Blocks(asked))?;
        Some((covered.0, runs.iter().map(|run| (run.from.0, run.count.0)).collect()))
    }

    #[test]
    fn what_is_known_is_cut_to_what_was_asked_for() {
        let known = [range(8, 4), range(20, 2), range(30, 100)];
        let of = |asked, next| told(&ExtentsAnswer::new(asked, &known, Blocks(next)), asked.count.0).unwrap();
        assert_eq!(of(range(10, 30), 200), (30, vec![(0, 2), (10, 2), (20, 10)]));
        assert_eq!(of(range(10, 30), 21), (11, vec![(0, 2), (10, 1)]), "nothing is known of what follows");
        assert_eq!(of(range(12, 8), 200), (8, vec![]));
        assert_eq!(told(&ExtentsAnswer::all(range(5, 9)), 9), Some((9, vec![(0, 9)])));
        assert_eq!(of(range(4, 3), 4), (3, vec![(0, 3)]), "nothing is known: it may hold data");
    }

    #[test]
    fn more_runs_than_fit_are_told_later() {
        let known: Vec<_> = (0..40).map(|n| range(10 + 3 * n, 2)).collect();
        let (covered, runs) = told(&ExtentsAnswer::new(range(0, 1000), &known, Blocks(1000)), 1000).unwrap();
        assert_eq!((covered, runs.len(), runs[13]), (10 + 3 * 14, MAX_EXTENTS, (49, 2)));
    }

    #[test]
    fn contradictions_are_no_answer() {
        let good = ExtentsAnswer::new(range(0, 10), &[range(1, 2), range(5, 2)], Blocks(10));
        assert!(told(&good, 10).is_some() && told(&good, 9).is_none(), "about more than was asked for");
        let with = |change: fn(&mut ExtentsAnswer)| {
            let mut bad = good;
            change(&mut bad);
            told(&bad, 10)
        };
        assert_eq!(with(|a| a.reply.word = 15.into()), None);
        assert_eq!(with(|a| a.covered = 0.into()), None);
        assert_eq!(with(|a| a.covered = 6.into()), None);
        assert_eq!(with(|a| a.runs[1][1] = 0.into()), None);
        assert_eq!(with(|a| a.runs[1][0] = 3.into()), None, "two that are one");
        assert_eq!(with(|a| a.runs[1] = [u32::MAX.into(), 2.into()]), None);
    }

    proptest! {
        #[test]
        fn each_block_is_told_as_it_is(
            bits in proptest::collection::vec(any::<bool>(), 1..200), from in 0_u32..100, count in 1_u32..100, next in 0_u32..250,
        ) {
            let is = |n: u32| bits.get(n as usize).copied().unwrap_or(false);
            let data: Vec<_> = (0..200).filter(|n| is(*n)).map(|n| range(n, 1)).collect();
            let mut merged: Vec<BlockRange> = Vec::new();
            for run in data {
                match merged.last_mut() {
                    Some(last) if last.end() == u64::from(run.from.0) => last.count.0 += 1,
                    _ => merged.push(run),
                }
            }
            let next = next.max(from + 1); // the store always gets on
            let (covered, runs) = told(&ExtentsAnswer::new(range(from, count), &merged, Blocks(next)), count).unwrap();
            prop_assert!(covered == count.min(next - from) || runs.len() == MAX_EXTENTS);
            for n in 0..covered {
                prop_assert_eq!(runs.iter().any(|(at, len)| (*at..at + len).contains(&n)), is(from + n));
            }
        }
    }
}
