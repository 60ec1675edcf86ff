//! Which pages of one region are free: a buddy system that gives the tail of a block back.
//!
//! ```text
//!   take 17 units = block of 32, the first 17 kept, the tail freed as blocks of 1, 2, 4, 8
//!   free: the same range, cut into its aligned blocks again; each merges with its buddy as long as that is free
//! ```
//!
//! Lists are woven through one array, so that both directions cost at most one step per order. Pages are numbered from the
//! region's start. It never looks at memory.

/// The largest block: the power of two that holds the largest buffer.
const MAX_ORDER: usize = (crate::MAX_LEN / crate::PAGE).next_power_of_two().trailing_zeros() as usize;
const ORDERS: usize = MAX_ORDER + 1;
const NONE: u32 = u32::MAX;

/// What is known of one page.
#[derive(Clone, Copy)]
struct Page {
    /// The order of the free block that starts here.
    free: Option<u8>,
    next: u32,
    prev: u32,
}

/// The free pages of one region.
pub(crate) struct Buddy {
    pages: Vec<Page>,
    /// The first free block of each order.
    heads: [u32; ORDERS],
    free: u32,
}

impl Buddy {
    /// A region of so many pages, all free.
    pub(crate) fn new(pages: u32) -> Self {
        let empty = Page { free: None, next: NONE, prev: NONE };
        let mut new = Self { pages: vec![empty; pages as usize], heads: [NONE; ORDERS], free: 0 };
        if pages > 0 {
            new.give(0, pages);
        }
        new
    }

    /// Free pages, in one piece or not.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Takes `count` pages in one piece; the first one's number.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        let wanted = order_for(count);
        let found = (wanted..ORDERS).find(|order| self.heads[*order] != NONE)?;
        let start = self.heads[found];
        self.unlink(start, found);
        let whole = 1 << found;
        self.free -= whole;
        if whole > count {
            self.give(start + count, whole - count);
        }
        Some(start)
    }

    /// Gives `count` pages back, from `start` on.
    pub(crate) fn give(&mut self, start: u32, count: u32) {
        debug_assert!(start as usize + count as usize <= self.pages.len(), "what comes back was taken here");
        self.free += count;
        let (mut at, end) = (start, start + count);
        while at < end {
            let fits = (end - at).ilog2() as usize;
            let aligned = if at == 0 { MAX_ORDER } else { at.trailing_zeros() as usize };
            let order = fits.min(aligned).min(MAX_ORDER);
            self.merge(at, order);
            at += 1 << order;
        }
    }

    fn merge(&mut self, mut at: u32, mut order: usize) {
        while order < MAX_ORDER {
            let buddy = at ^ (1 << order);
            let same = self.pages.get(buddy as usize).is_some_and(|page| page.free.map(usize::from) == Some(order));
            if !same {
                break;
            }
            self.unlink(buddy, order);
            at &= !(1 << order);
            order += 1;
        }
        self.link(at, order);
    }

    fn link(&mut self, at: u32, order: usize) {
        let next = std::mem::replace(&mut self.heads[order], at);
        let page = &mut self.pages[at as usize];
        debug_assert!(page.free.is_none(), "a block is freed once");
        #[expect(clippy::cast_possible_truncation, reason = "orders are below ORDERS")]
        let free = Some(order as u8);
        *page = Page { free, next, prev: NONE };
        if next != NONE {
            self.pages[next as usize].prev = at;
        }
    }

    fn unlink(&mut self, at: u32, order: usize) {
        let Page { next, prev, .. } = self.pages[at as usize];
        self.pages[at as usize].free = None;
        if next != NONE {
            self.pages[next as usize].prev = prev;
        }
        if prev == NONE {
            self.heads[order] = next;
        } else {
            self.pages[prev as usize].next = next;
        }
    }
}

fn order_for(count: u32) -> usize {
    count.next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_grows_together_again() {
        let mut region = Buddy::new(1 << MAX_ORDER);
        let taken: Vec<u32> = (0..1 << MAX_ORDER).map(|_| region.take(1).unwrap()).collect();
        assert_eq!((region.free(), region.take(1)), (0, None));
        taken.into_iter().rev().for_each(|page| region.give(page, 1));
        assert_eq!(region.take(1 << MAX_ORDER), Some(0), "one piece again");
    }

    #[test]
    fn the_tail_of_a_block_is_not_lost() {
        let mut region = Buddy::new(32);
        let seventeen = region.take(17).unwrap();
        assert_eq!(region.free(), 15);
        assert_eq!([8, 4, 2, 1].map(|n| region.take(n).is_some()), [true; 4]);
        assert_eq!(region.take(1), None);
        region.give(seventeen, 17);
        assert!(region.take(16).is_some());
    }

    #[test]
    fn a_region_of_any_size_is_used_to_its_last_page() {
        for pages in [0, 1, 3, 511, 513, 1000] {
            let mut region = Buddy::new(pages);
            let taken = std::iter::from_fn(|| region.take(1)).count();
            assert_eq!(taken, pages as usize);
        }
    }
}
