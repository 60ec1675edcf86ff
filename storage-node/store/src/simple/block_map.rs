//! Where each block of a copy lies: block → slot and checksum.
//!
//! Pages of 512 entries of 8 bytes, made when first needed and dropped when empty: 2 MiB per GiB of data. Pages and directory are shared
//! with a snapshot being checkpointed and copied when first changed under it, so that taking a snapshot costs one count per
//! copy, and a checkpoint at most doubles the pages that change meanwhile.

use super::slots::Slot;
use conductor_model::BlockRange;
use std::rc::Rc;

/// Entries in a page.
const PAGE: usize = 512;

/// A block's place and checksum; slot 0 is "unmapped".
#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    slot: u32,
    crc: u32,
}

#[derive(Clone, Debug)]
struct Page {
    entries: [Entry; PAGE],
    used: usize,
}

/// The map of one copy.
#[derive(Clone, Default, Debug)]
pub(super) struct BlockMap {
    directory: Rc<Vec<Option<Rc<Page>>>>,
    mapped: u32,
}

const fn place(block: u32) -> (usize, usize) {
    (block as usize / PAGE, block as usize % PAGE)
}

impl BlockMap {
    /// Blocks that are mapped.
    pub(super) fn mapped(&self) -> u32 {
        self.mapped
    }

    /// A block's slot and checksum; `None` if it reads as zeros.
    pub(super) fn get(&self, block: u32) -> Option<(Slot, u32)> {
        let (page, entry) = place(block);
        let entry = self.directory.get(page)?.as_ref()?.entries[entry];
        Some((Slot::new(entry.slot)?, entry.crc))
    }

    /// Map a block; the slot it had before comes back.
    pub(super) fn set(&mut self, block: u32, slot: Slot, crc: u32) -> Option<Slot> {
        let (page, entry) = place(block);
        let directory = Rc::make_mut(&mut self.directory);
        if directory.len() <= page {
            directory.resize(page + 1, None);
        }
        let page = directory[page].get_or_insert_with(|| Rc::new(Page { entries: [Entry::default(); PAGE], used: 0 }));
        let page = Rc::make_mut(page);
        let before = Slot::new(page.entries[entry].slot);
        page.entries[entry] = Entry { slot: slot.number(), crc };
        if before.is_none() {
            page.used += 1;
            self.mapped += 1;
        }
        before
    }

    /// Unmap a range; each slot that it had is given to `freed`.
    pub(super) fn clear(&mut self, at: BlockRange, freed: &mut dyn FnMut(Slot)) {
        let mut block = u64::from(at.from.0);
        while block < at.end() {
            let page = usize::try_from(block / PAGE as u64).unwrap_or(usize::MAX); // blocks are 32 bits
            let next = ((page as u64 + 1) * PAGE as u64).min(at.end());
            if self.directory.get(page).is_some_and(Option::is_some) {
                let slot_of_page = &mut Rc::make_mut(&mut self.directory)[page];
                if let Some(shared) = slot_of_page {
                    let entries = Rc::make_mut(shared);
                    let skip = usize::try_from(block % PAGE as u64).unwrap_or(0); // less than a page
                    let take = usize::try_from(next - block).unwrap_or(0);
                    for entry in entries.entries.iter_mut().skip(skip).take(take) {
                        if let Some(slot) = Slot::new(entry.slot) {
                            *entry = Entry::default();
                            entries.used -= 1;
                            self.mapped -= 1;
                            freed(slot);
                        }
                    }
                    if entries.used == 0 {
                        *slot_of_page = None;
                    }
                }
            }
            block = next;
        }
    }

    /// All that is mapped from a block on, in order: (block, slot, checksum).
    pub(super) fn from(&self, block: u32) -> impl Iterator<Item = (u32, Slot, u32)> + '_ {
        let (first, _) = place(block);
        self.directory
            .iter()
            .enumerate()
            .skip(first)
            .filter_map(|(number, page)| Some((number, page.as_ref()?)))
            .flat_map(|(number, page)| {
                page.entries.iter().enumerate().filter_map(move |(index, entry)| {
                    Some((u32::try_from(number * PAGE + index).ok()?, Slot::new(entry.slot)?, entry.crc))
                })
            })
            .skip_while(move |&(at, ..)| at < block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::Blocks;

    #[test]
    fn a_snapshot_does_not_see_later_changes() {
        let slot = |n| Slot::new(n).unwrap();
        let mut map = BlockMap::default();
        for n in 0..2000 {
            assert_eq!(map.set(n * 3, slot(n + 1), n), None);
        }
        let snapshot = map.clone();
        assert_eq!(map.set(3, slot(9000), 7), Some(slot(2)));
        let mut freed = 0;
        map.clear(BlockRange { from: Blocks(30), count: Blocks(5000) }, &mut |_| freed += 1);
        assert_eq!(freed, 1667);
        assert_eq!(map.mapped(), 333);
        assert_eq!(map.from(0).count(), 333);
        assert_eq!(snapshot.get(3), Some((slot(2), 1)));
        assert_eq!(snapshot.from(0).count(), 2000);
        assert_eq!(snapshot.from(31).next(), Some((33, slot(12), 11)));
    }
}
