//! Damaged blocks that were not put right: each is counted once, and what no copy has is told to people, until it is written anew, put right,
//! or gone with its snapshot.
//!
//! In memory, and so many of them at most. What a start or another primary forgets is found again by whoever reads it, or by a scrub.

use crate::limits::BAD_BLOCKS_KEPT;
use conductor_model::{BlockRange, Blocks, CopyId, ShardId, SnapshotId};
use node_store::View;
use std::collections::BTreeMap;

/// Who has what a damaged block was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Had {
    /// Another copy, as far as is known.
    Elsewhere,
    /// No copy in sync: who reads it is answered with an error.
    Nowhere,
}

/// Damaged blocks that this reactor knows of, of copies here and of those whose primary is here.
#[derive(Debug, Default)]
pub(crate) struct BadBlocks(BTreeMap<(ShardId, View, Blocks, CopyId), Had>);

/// What nobody has of a shard, live or of its snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unreadable {
    pub(crate) shard: ShardId,
    /// The first of them.
    pub(crate) view: View,
    pub(crate) block: Blocks,
    /// So many, …
    pub(crate) count: usize,
    /// … or more.
    pub(crate) more: bool,
    /// Of so many views.
    pub(crate) views: usize,
}

impl BadBlocks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// There are as many as are kept, and perhaps others.
    fn is_full(&self) -> bool {
        self.0.len() >= BAD_BLOCKS_KEPT
    }

    /// Something of the shard is known to be nobody's.
    fn is_told(&self, shard: ShardId) -> bool {
        let its = self.0.range((shard, View::Live, Blocks(0), CopyId(0))..).take_while(|((of, ..), _)| *of == shard);
        its.map(|(_, had)| had).any(|had| *had == Had::Nowhere)
    }

    /// A block was met, and not put right. What was known of it before; of more than are kept that is nothing. But one of each shard is
    /// kept in any case, so that it is told that there are some.
    pub(crate) fn met(&mut self, shard: ShardId, view: View, (copy, block): (CopyId, Blocks), had: Had) -> Option<Had> {
        let key = (shard, view, block, copy);
        let before = self.0.get(&key).copied();
        if before.is_some() || !self.is_full() || (had == Had::Nowhere && !self.is_told(shard)) {
            self.0.insert(key, before.map_or(had, |before| before.max(had)));
        }
        before
    }

    /// One is put right. What was known of it.
    pub(crate) fn put_right(&mut self, shard: ShardId, view: View, (copy, block): (CopyId, Blocks)) -> Option<Had> {
        self.0.remove(&(shard, view, block, copy))
    }

    /// These were written anew.
    pub(crate) fn written(&mut self, shard: ShardId, view: View, at: BlockRange) {
        let (first, last) = ((shard, view, at.from, CopyId(0)), (shard, view, Blocks(u32::MAX), CopyId(u64::MAX)));
        let theirs = self.0.range(first..=last).map(|(key, _)| *key);
        let theirs: Vec<_> = theirs.take_while(|(_, _, block, _)| u64::from(block.0) < at.end()).collect();
        for key in theirs {
            self.0.remove(&key);
        }
    }

    /// A copy was looked through there: it has lost these, and nobody has them; what else is bad there somebody has.
    pub(crate) fn looked_through(
        &mut self,
        shard: ShardId,
        view: View,
        (copy, at): (CopyId, BlockRange),
        lost: &[(CopyId, Blocks)],
    ) {
        let (first, last) = ((shard, view, at.from, CopyId(0)), (shard, view, Blocks(u32::MAX), CopyId(u64::MAX)));
        let there = self.0.range_mut(first..=last).take_while(|((_, _, block, _), _)| u64::from(block.0) < at.end());
        for ((_, _, block, _), had) in
            there.filter(|((_, _, block, of), _)| *of == copy && !lost.contains(&(copy, *block)))
        {
            debug_assert!(at.from <= *block);
            *had = Had::Elsewhere;
        }
    }

    /// A snapshot is dropped.
    pub(crate) fn forget_snapshot(&mut self, shard: ShardId, snapshot: SnapshotId) {
        self.0.retain(|(of, view, ..), _| *of != shard || *view != View::Snapshot(snapshot));
    }

    /// The copy here is gone, or its shard has another primary.
    pub(crate) fn forget_shard(&mut self, shard: ShardId) {
        self.0.retain(|(of, ..), _| *of != shard);
    }

    /// What nobody has: of each shard what is written to, and apart from that its snapshots.
    pub(crate) fn unreadable(&self) -> Vec<Unreadable> {
        let mut found: Vec<Unreadable> = Vec::new();
        let mut last = None;
        for ((shard, view, block, _), _) in self.0.iter().filter(|(_, had)| **had == Had::Nowhere) {
            let another = last.replace((*shard, *view)) != Some((*shard, *view));
            match found.last_mut().filter(|f| f.shard == *shard && (f.view == View::Live) == (*view == View::Live)) {
                Some(of) => {
                    of.count += 1;
                    of.views += usize::from(another);
                }
                None => {
                    let more = self.is_full();
                    found.push(Unreadable { shard: *shard, view: *view, block: *block, count: 1, more, views: 1 });
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{ShardIndex, VolumeId};

    const OWN: CopyId = CopyId(101);

    fn shard(index: u32) -> ShardId {
        ShardId { volume: VolumeId(1), index: ShardIndex(index) }
    }

    fn range(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }

    fn with(blocks: &[(View, u32)]) -> BadBlocks {
        let mut bad = BadBlocks::default();
        for (view, block) in blocks {
            assert_eq!(bad.met(shard(0), *view, (OWN, Blocks(*block)), Had::Nowhere), None);
        }
        bad
    }

    #[test]
    fn what_nobody_has_is_told_once_for_what_is_written_to_and_once_for_the_snapshots() {
        let snapshot = |n| View::Snapshot(SnapshotId(n));
        let mut bad = with(&[(View::Live, 5), (View::Live, 6), (snapshot(8), 1), (snapshot(7), 5), (snapshot(7), 6)]);
        let again = bad.met(shard(0), View::Live, (OWN, Blocks(5)), Had::Elsewhere);
        assert_eq!(again, Some(Had::Nowhere), "it is known, and no better than before");
        bad.met(shard(0), View::Live, (OWN, Blocks(9)), Had::Elsewhere);
        let of = |view, block, count, views| Unreadable {
            shard: shard(0),
            view,
            block: Blocks(block),
            count,
            more: false,
            views,
        };
        assert_eq!(bad.unreadable(), [of(View::Live, 5, 2, 1), of(snapshot(7), 5, 3, 2)]);
        bad.forget_snapshot(shard(0), SnapshotId(7));
        assert_eq!(bad.unreadable(), [of(View::Live, 5, 2, 1), of(snapshot(8), 1, 1, 1)]);
        bad.forget_shard(shard(0));
        assert!(bad.is_empty());
    }

    #[test]
    fn what_is_written_anew_or_put_right_is_forgotten_and_nothing_beside_it() {
        let mut bad = with(&[(View::Live, 4), (View::Live, 5), (View::Live, 6), (View::Live, 7)]);
        bad.written(shard(0), View::Live, range(5, 1));
        bad.written(shard(0), View::Snapshot(SnapshotId(7)), range(0, 100));
        bad.written(shard(1), View::Live, range(0, 100));
        assert_eq!(bad.put_right(shard(0), View::Live, (OWN, Blocks(7))), Some(Had::Nowhere));
        assert_eq!((bad.0.len(), bad.unreadable()[0].block), (2, Blocks(4)));
        bad.looked_through(shard(0), View::Live, (OWN, range(0, 6)), &[]);
        assert_eq!(bad.unreadable()[0].block, Blocks(6), "somebody has the other one by now");
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let mut bad = BadBlocks::default();
        for block in 0..u32::try_from(BAD_BLOCKS_KEPT).unwrap() + 2 {
            bad.met(shard(0), View::Live, (OWN, Blocks(block)), Had::Nowhere);
        }
        let all = bad.unreadable();
        assert!(all[0].count == BAD_BLOCKS_KEPT && all[0].more && all.len() == 1, "{all:?}");
        // But of no shard is it kept secret.
        for block in [7, 8] {
            bad.met(shard(1), View::Snapshot(SnapshotId(1)), (OWN, Blocks(block)), Had::Nowhere);
        }
        let of_another = bad.unreadable()[1];
        assert_eq!((of_another.shard, of_another.block, of_another.count), (shard(1), Blocks(7), 1));
        assert!(of_another.more);
    }
}
