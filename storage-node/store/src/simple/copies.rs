//! The state that the log describes: copies, their maps, what they hold above K.
//!
//! One function applies a record, while serving and while recovering. Applying records in their order on top of a state that
//! already knows some of them ends in the same state: the last record of a block decides, K and configurations only grow, a held
//! change is listed once.

use super::block_map::BlockMap;
use super::record::Record;
use super::slots::{Runs, Slot};
use crate::MAX_HELD;
use crate::configuration::blocks_of;
use crate::{Held, HeldKind};
use conductor_model::{BlockRange, Blocks, Configuration, CopyId, Stamp};
use std::collections::BTreeMap;

/// One copy.
#[derive(Clone, Debug)]
pub(super) struct CopyRecord {
    pub(super) config: Configuration,
    pub(super) known_good: Stamp,
    pub(super) held: Vec<Held>,
    pub(super) map: BlockMap,
}

impl CopyRecord {
    pub(super) fn new(config: Configuration) -> Self {
        Self { config, known_good: Stamp::default(), held: Vec::new(), map: BlockMap::default() }
    }

    /// True if the range lies within the copy.
    pub(super) fn contains(&self, at: BlockRange) -> bool {
        at.count.0 > 0 && blocks_of(&self.config).is_some_and(|blocks| at.end() <= u64::from(blocks))
    }

    /// K grows: what it covers need not be listed any more.
    pub(super) fn advance(&mut self, known_good: Stamp) {
        if known_good > self.known_good {
            self.known_good = known_good;
            self.held.retain(|held| held.stamp > known_good);
        }
    }

    /// List a change that is above K.
    pub(super) fn hold(&mut self, held: Held) {
        if held.stamp <= self.known_good || self.held.iter().rev().any(|h| *h == held) {
            return;
        }
        self.held.push(held);
        if self.held.len() > MAX_HELD {
            self.merge_held();
        }
    }

    /// Halve the list: neighbours by position become one, as wide as both and everything between them. Settling then writes more
    /// than it must, never less.
    fn merge_held(&mut self) {
        self.held.sort_unstable_by_key(|held| (held.at.from, held.at.count));
        let merged = self.held.chunks(2).map(|pair| match *pair {
            [a, b] => {
                let end = a.at.end().max(b.at.end());
                let count = end - u64::from(a.at.from.0);
                Held {
                    stamp: a.stamp.max(b.stamp),
                    at: BlockRange { from: a.at.from, count: Blocks(u32::try_from(count).unwrap_or(u32::MAX)) },
                    kind: if a.kind == b.kind { a.kind } else { HeldKind::Write },
                }
            }
            _ => pair[0], // `chunks` gives no empty ones
        });
        self.held = merged.collect();
    }

    /// Keep a configuration unless a newer one is here, or it shrinks the copy.
    fn join(&mut self, config: &Configuration) {
        if config.epoch >= self.config.epoch && config.size >= self.config.size {
            self.config.clone_from(config);
        }
    }
}

/// All copies of a store.
pub(super) type Copies = BTreeMap<CopyId, CopyRecord>;

/// Every block of a write with the slot it went to.
pub(super) fn places(at: BlockRange, runs: &Runs) -> impl Iterator<Item = (u32, Slot)> + '_ {
    let slots = runs.iter().flat_map(|run| (0..run.count).map(|n| run.from.plus(n)));
    (at.from.0..).zip(slots)
}

/// Apply a record. `there(n)` says whether the n-th block of a write is on the disk: all are, except after a crash. Slots
/// that are no longer mapped go to `freed`. False if the record's copy is not here (any more).
pub(super) fn apply(
    copies: &mut Copies,
    record: &Record,
    there: &dyn Fn(usize) -> bool,
    freed: &mut dyn FnMut(Slot),
) -> bool {
    match record {
        Record::Create { copy, config } => {
            // Two creations may be under way at once, the second under a newer configuration.
            copies.entry(*copy).or_insert_with(|| CopyRecord::new(config.clone())).join(config);
            return true;
        }
        Record::Delete { copy } => {
            let Some(gone) = copies.remove(copy) else { return false };
            gone.map.from(0).for_each(|(_, slot, _)| freed(slot));
            return true;
        }
        _ => {}
    }
    let Some(state) = copies.get_mut(&record.copy()) else { return false };
    match record {
        Record::Join { config, .. } => state.join(config),
        Record::Write { stamp, known_good, at, runs, crcs, .. } => {
            for (n, ((block, slot), &crc)) in places(*at, runs).zip(crcs).enumerate() {
                if there(n)
                    && let Some(old) = state.map.set(block, slot, crc)
                {
                    freed(old);
                }
            }
            state.hold(Held { stamp: *stamp, at: *at, kind: HeldKind::Write });
            state.advance(*known_good);
        }
        Record::Zero { stamp, known_good, at, .. } => {
            state.map.clear(*at, freed);
            state.hold(Held { stamp: *stamp, at: *at, kind: HeldKind::Zero });
            state.advance(*known_good);
        }
        Record::Create { .. } | Record::Delete { .. } => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, Epoch, Sequence, ShardId};

    #[test]
    fn a_long_list_above_known_good_is_merged_and_names_no_less() {
        let mut copy = CopyRecord::new(Configuration {
            shard: ShardId::default(),
            epoch: Epoch(1),
            primary: CopyId(1),
            members: vec![],
            full_set: vec![],
            min_copies: 1,
            attach: AttachGeneration(0),
            size: Bytes(1 << 30),
            born: true,
            durability: conductor_model::Durability::Always,
            cache: conductor_model::Commit(0),
            card: None,
            parent: None,
        });
        let stamp = |n| Stamp { epoch: Epoch(1), sequence: Sequence(n) };
        for n in 1..=5000u32 {
            let at = BlockRange { from: Blocks(n * 7919 % 200_000), count: Blocks(2) };
            copy.hold(Held { stamp: stamp(u64::from(n)), at, kind: HeldKind::Write });
            assert!(copy.held.len() <= MAX_HELD);
        }
        for n in 1..=5000u32 {
            let at = BlockRange { from: Blocks(n * 7919 % 200_000), count: Blocks(2) };
            let covers = |h: &Held| h.at.from <= at.from && h.at.end() >= at.end() && h.stamp >= stamp(u64::from(n));
            assert!(copy.held.iter().any(covers));
        }
        copy.advance(stamp(5000));
        assert!(copy.held.is_empty());
    }
}
