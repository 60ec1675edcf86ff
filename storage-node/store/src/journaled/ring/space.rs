//! Which blocks of the ring are free, and where the next group goes.
//!
//! ```text
//! │ at_start │ used: tail … head │ to_end │        │ used … head │ to_end │ tail … used │
//! ```
//! A group is in one piece: what does not fit before the ring's end goes to its start, and the blocks between are lost as
//! padding until the tail has passed them. The ring is never full to the last block: head = tail is empty.

use super::group::{header_blocks, record_bytes};
use super::limits::{HEAD, MAX_GROUP_BLOCKS, MAX_RECORDS_BYTES, RESERVE_BLOCKS};
use conductor_model::BLOCK;

/// The ring's free and used blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Space {
    pub(super) blocks: u32,
    /// Where the next group goes, if it fits.
    pub(super) head: u32,
    /// Where the oldest group is, that is needed.
    pub(super) tail: u32,
}

impl Space {
    pub(super) fn used(&self) -> u32 {
        if self.head >= self.tail { self.head - self.tail } else { self.blocks - self.tail + self.head }
    }

    pub(super) fn free(&self) -> u32 {
        self.blocks - self.used()
    }

    /// The free blocks behind the head, and those at the ring's start if they are another piece.
    fn pieces(&self) -> (u32, u32) {
        if self.head >= self.tail { (self.blocks - self.head, self.tail) } else { (self.tail - self.head, 0) }
    }

    /// Where a group of `size` blocks goes, if `reserve` (at least one) blocks are then still free.
    pub(super) fn place(&self, size: u32, reserve: u32) -> Option<u32> {
        let (to_end, at_start) = self.pieces();
        if size <= to_end && size.saturating_add(reserve) <= self.free() {
            return Some(self.head);
        }
        (size.saturating_add(reserve) <= at_start).then_some(0)
    }

    /// The size of the largest group that `place` has a place for.
    pub(super) fn largest(&self, reserve: u32) -> u32 {
        let (to_end, at_start) = self.pieces();
        to_end.min(self.free().saturating_sub(reserve)).max(at_start.saturating_sub(reserve))
    }

    /// True if groups of at most `need` blocks in all have room, whichever of them meets the ring's end. `need` is a forecast that
    /// errs to the safe side.
    pub(super) fn fits(&self, need: u64) -> bool {
        let (to_end, _) = self.pieces();
        let padding = if need <= u64::from(to_end) { 0 } else { to_end.min(MAX_GROUP_BLOCKS - 1) };
        need + u64::from(padding.min(u32::try_from(need).unwrap_or(u32::MAX))) + u64::from(RESERVE_BLOCKS)
            <= u64::from(self.free())
    }
}

/// Blocks that a record may take, in a group of its own and with its echo in the next: more than it does among others.
pub(super) fn worst_cost(body: usize, payload_blocks: usize) -> u64 {
    payload_blocks as u64 + (2 * (HEAD + record_bytes(body, payload_blocks))).div_ceil(BLOCK) as u64
}

/// Blocks that the echo of the last group built may take in the next one.
pub(super) fn worst_echo() -> u64 {
    u64::from(header_blocks(MAX_RECORDS_BYTES, 0))
}

#[cfg(test)]
mod tests {
    use super::super::limits::{MAX_BODY, MAX_HEADER_BLOCKS, MAX_RECORD_BLOCKS, MIN_RING_BLOCKS};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_ring_takes_the_largest_record_wherever_it_is_empty() {
        for at in 0..MIN_RING_BLOCKS {
            let space = Space { blocks: MIN_RING_BLOCKS, head: at, tail: at };
            let size = MAX_RECORD_BLOCKS + MAX_HEADER_BLOCKS;
            assert!(space.largest(RESERVE_BLOCKS) >= size && space.place(size, RESERVE_BLOCKS).is_some(), "{space:?}");
        }
    }

    #[test]
    fn an_empty_ring_of_ordinary_size_forecasts_room_for_the_largest_record() {
        let space = Space { blocks: 2 * MIN_RING_BLOCKS, head: 2 * MIN_RING_BLOCKS - 1, tail: 2 * MIN_RING_BLOCKS - 1 };
        assert!(space.fits(worst_echo() + worst_cost(MAX_BODY, MAX_RECORD_BLOCKS as usize)));
    }

    proptest! {
        /// What is placed is free, in one piece, leaves the reserve, and never makes a full ring look empty.
        #[test]
        fn a_place_is_free_and_in_one_piece(blocks in 20u32..400, head in 0u32..400, tail in 0u32..400, size in 1u32..200, reserve in 1u32..20) {
            let space = Space { blocks, head: head % blocks, tail: tail % blocks };
            prop_assert_eq!(space.place(space.largest(reserve), reserve).is_some() || space.largest(reserve) == 0, true);
            let Some(at) = space.place(size, reserve) else {
                prop_assert!(size > space.largest(reserve));
                return Ok(());
            };
            prop_assert!(size <= space.largest(reserve) && at + size <= blocks);
            let used = |n: u32| (n + blocks - space.tail) % blocks < space.used();
            prop_assert!((at..at + size).all(|n| !used(n)));
            let after = Space { head: (at + size) % blocks, ..space };
            prop_assert!(after.free() >= reserve && after.free() < space.free());
        }

        /// The forecast holds: groups of any sizes within what was promised all find a place.
        #[test]
        fn what_fits_finds_a_place(blocks in 600u32..4000, head in 0u32..4000, tail in 0u32..4000, sizes in prop::collection::vec(1..MAX_GROUP_BLOCKS, 1..6)) {
            let mut space = Space { blocks, head: head % blocks, tail: tail % blocks };
            if space.fits(sizes.iter().map(|n| u64::from(*n)).sum()) {
                for size in sizes {
                    let at = space.place(size, RESERVE_BLOCKS);
                    prop_assert!(at.is_some(), "{:?} has no place for {}", space, size);
                    space.head = (at.unwrap() + size) % blocks;
                }
            }
        }
    }
}
