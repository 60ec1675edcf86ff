//! Which chunks are free, which are promised, and which come back.
//!
//! ```text
//! free ──take──► in use ──given back by a fold──► returning (reads that began before) ──► punching (discards only) ──► free
//! ```
//! A chunk that a fold gave back is used again only when both superblocks of that fold are durable and every read that began before
//! is over.

use super::entry::ChunkNo;
use super::limits::{SPARE_CHUNKS, UNUSED_CHUNKS, UNUSED_OF, WORTH_PART};
use std::collections::{BTreeMap, VecDeque};

/// Chunks counted together.
const GROUP: u32 = 4096;

/// The free-chunk map: a bit per chunk, and a count of free ones per 4096.
#[derive(Debug)]
pub(super) struct Space {
    /// Set = in use, or beyond the end.
    words: Vec<u64>,
    free_in_group: Vec<u32>,
    total: u32,
    free: u32,
    cursor: u32,
    reserved: u32,
    returning: u32,
}

impl Space {
    /// All free.
    pub(super) fn new(total: u32) -> Self {
        let mut words = vec![0; total.div_ceil(64) as usize];
        if let (Some(last), rest @ 1..) = (words.last_mut(), total % 64) {
            *last = !0 << rest;
        }
        let free_in_group = (0..total.div_ceil(GROUP)).map(|g| (total - g * GROUP).min(GROUP)).collect();
        Self { words, free_in_group, total, free: total, cursor: 0, reserved: 0, returning: 0 }
    }

    /// Chunks in all.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// True if it is not in use.
    pub(super) fn is_free(&self, chunk: ChunkNo) -> bool {
        let index = chunk.index();
        self.words.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 == 0)
    }

    /// Take one by name: false if it is in use already.
    pub(super) fn claim(&mut self, chunk: ChunkNo) -> bool {
        if !self.is_free(chunk) {
            return false;
        }
        let index = chunk.index();
        self.words[(index / 64) as usize] |= 1 << (index % 64);
        self.free_in_group[(index / GROUP) as usize] -= 1;
        self.free -= 1;
        true
    }

    fn release(&mut self, chunk: ChunkNo) {
        let index = chunk.index();
        debug_assert!(!self.is_free(chunk), "chunk {} is given back twice", chunk.number());
        self.words[(index / 64) as usize] &= !(1 << (index % 64));
        self.free_in_group[(index / GROUP) as usize] += 1;
        self.free += 1;
    }

    /// Give back one that nothing durable ever named.
    pub(super) fn give_back_unused(&mut self, chunk: ChunkNo) {
        self.release(chunk);
    }

    /// Chunks that a change may still ask for: the free ones, without those promised and those kept for background work.
    pub(super) fn available(&self) -> u32 {
        self.free.saturating_sub(self.reserved).saturating_sub(SPARE_CHUNKS)
    }

    /// True if a fold is to tell what of the promises was needed, and to give back what was written or discarded whole (`gains` chunks at
    /// most): that is more than what nodes may still use, or some of it when they may use nothing any more.
    pub(super) fn is_scarce(&self, gains: u32) -> bool {
        let left = self.available() + self.returning;
        let unused = UNUSED_CHUNKS.min(self.total / UNUSED_OF);
        self.reserved.saturating_add(gains) > left.saturating_sub(unused).max(left / WORTH_PART)
    }

    /// True if background work may take one.
    pub(super) fn has_spare(&self) -> bool {
        self.free > self.reserved
    }

    /// Set some aside; the caller looked at `available`.
    pub(super) fn reserve(&mut self, count: u32) {
        self.reserved += count;
    }

    /// What was set aside is not needed.
    pub(super) fn unreserve(&mut self, count: u32) {
        debug_assert!(self.reserved >= count, "more reservations given back than made");
        self.reserved = self.reserved.saturating_sub(count);
    }

    /// Take the next free one: next fit, so that what is placed together lies together.
    pub(super) fn take(&mut self) -> Option<ChunkNo> {
        let index = self.next_free(self.cursor).or_else(|| self.next_free(0))?;
        let chunk = ChunkNo::at(index)?;
        self.claim(chunk);
        self.cursor = index + 1;
        Some(chunk)
    }

    fn next_free(&self, index: u32) -> Option<u32> {
        let mut at = index;
        while at < self.total {
            if self.free_in_group[(at / GROUP) as usize] == 0 {
                at = (at / GROUP + 1).saturating_mul(GROUP);
                continue;
            }
            let free = !self.words[(at / 64) as usize] >> (at % 64);
            if free != 0 {
                return Some(at + free.trailing_zeros());
            }
            at = (at / 64 + 1).saturating_mul(64);
        }
        None
    }

    /// Chunks that hold data, or will when the overlay is folded.
    pub(super) fn used(&self) -> u32 {
        self.total - self.free - self.returning + self.reserved
    }

    /// Chunks that come back by themselves.
    pub(super) fn returning(&self) -> u32 {
        self.returning
    }

    /// Given back by a checkpoint that is durable; free when `freed` is called.
    pub(super) fn began_returning(&mut self, count: u32) {
        self.returning += count;
    }

    /// No read needs it any more.
    pub(super) fn freed(&mut self, chunk: ChunkNo) {
        self.returning = self.returning.saturating_sub(1);
        self.release(chunk);
    }
}

/// Reads in flight, by the fold before which they began: what a fold gave back waits for them.
#[derive(Debug, Default)]
pub(super) struct Eras {
    current: u64,
    reads: BTreeMap<u64, u32>,
}

impl Eras {
    /// A read begins.
    pub(super) fn begin(&mut self) -> u64 {
        *self.reads.entry(self.current).or_default() += 1;
        self.current
    }

    /// It is over.
    pub(super) fn end(&mut self, era: u64) {
        if let Some(count) = self.reads.get_mut(&era) {
            *count -= 1;
            if *count == 0 {
                self.reads.remove(&era);
            }
        }
    }

    /// A fold is durable: reads from now on see what it made. The era that is over comes back.
    pub(super) fn advance(&mut self) -> u64 {
        self.current += 1;
        self.current - 1
    }

    /// True if no read of that era, or an older one, is in flight.
    pub(super) fn is_over(&self, era: u64) -> bool {
        self.reads.keys().next().is_none_or(|oldest| *oldest > era)
    }
}

/// Things that wait for reads to be over, in order.
#[derive(Debug)]
pub(super) struct Waiting<T>(VecDeque<(u64, T)>);

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Waiting<T> {
    pub(super) fn push(&mut self, era: u64, what: T) {
        self.0.push_back((era, what));
    }
    /// The next that no read needs any more.
    pub(super) fn pop(&mut self, eras: &Eras) -> Option<T> {
        let (era, _) = self.0.front()?;
        if !eras.is_over(*era) {
            return None;
        }
        self.0.pop_front().map(|(_, what)| what)
    }
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_is_not_available_and_what_returns_is_not_used() {
        let mut space = Space::new(100);
        assert_eq!(space.available(), 100 - SPARE_CHUNKS);
        space.reserve(10);
        let taken: Vec<_> = (0..80).map(|_| space.take().unwrap()).collect();
        assert!(taken.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!((space.available(), space.used()), (20 - 10 - SPARE_CHUNKS, 90));
        space.unreserve(10);
        space.began_returning(2);
        assert_eq!(space.used(), 78);
        space.freed(taken[0]);
        assert_eq!((space.used(), space.returning()), (78, 1));
        assert!(!space.claim(taken[5]) && space.claim(taken[0]));
        assert_eq!(space.take().unwrap().index(), 80);
        for _ in 0..19 {
            space.take().unwrap();
        }
        assert_eq!(space.take(), None);
    }

    #[test]
    fn nothing_is_reused_while_a_read_from_before_goes_on() {
        let (mut eras, mut waiting) = (Eras::default(), Waiting::default());
        let read = eras.begin();
        let era = eras.advance();
        waiting.push(era, 1);
        let later = eras.begin();
        assert_eq!(waiting.pop(&eras), None);
        eras.end(read);
        assert_eq!(waiting.pop(&eras), Some(1));
        let era = eras.advance();
        waiting.push(era, 2);
        assert_eq!(waiting.pop(&eras), None);
        eras.end(later);
        assert_eq!(waiting.pop(&eras), Some(2));
        assert!(waiting.is_empty());
    }
}
