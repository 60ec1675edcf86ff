//! Copies that the conductor has no more are deleted.

use super::Node;
use super::waits::StoreWait;
use crate::limits::GONE_KEPT;
use crate::mail::Letter;
use conductor_model::CopyId;
use driver::{Outbox, Time};
use node_store::{Store, StoreOp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Copies that were deleted in this process's life, the newest of them: a Join that comes late does not make one again.
#[derive(Default)]
pub(super) struct Gone {
    oldest_first: VecDeque<CopyId>,
    known: BTreeSet<CopyId>,
}

impl Gone {
    fn insert(&mut self, copy: CopyId) {
        if self.known.insert(copy) {
            self.oldest_first.push_back(copy);
        }
        if self.oldest_first.len() > GONE_KEPT
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, copy: CopyId) -> bool {
        self.known.contains(&copy)
    }
}

/// A copy that is to be deleted, and is not known here in any other way.
pub(super) struct Doomed {
    /// On which disk.
    pub(super) disk: usize,
    /// The store is at it. If not, it could not, and is asked again.
    pub(super) deleting: bool,
}

/// Copies that are deleted.
#[derive(Default)]
pub(super) struct Deletions {
    /// Those that were: never made again.
    pub(super) gone: Gone,
    /// Those whose deletion is not done.
    pub(super) doomed: BTreeMap<CopyId, Doomed>,
}

impl<S: Store> Node<S> {
    /// Deletes copies whose volume is gone.
    pub(super) fn delete_copies(&mut self, now: Time, copies: Vec<CopyId>, out: &mut dyn Outbox<Letter>) {
        for copy in copies {
            let Some((shard, disk)) = self.replicas.iter().find(|(_, r)| r.copy == copy).map(|(s, r)| (*s, r.disk))
            else {
                match self.deletions.doomed.get_mut(&copy) {
                    None => {
                        self.deletions.gone.insert(copy);
                        out.post(Letter::Deleted(copy));
                    }
                    Some(Doomed { deleting: true, .. }) => {}
                    Some(doomed) => {
                        doomed.deleting = true;
                        let disk = doomed.disk;
                        self.submit_to_store(now, disk, StoreOp::Delete { copy }, StoreWait::Deletion { copy }, out);
                    }
                }
                continue;
            };
            self.step_down(now, shard, out);
            let replica = &self.replicas[&shard];
            if !replica.is_quiet() || replica.joining.is_some() {
                // It is told again, and by then the disk is done.
                continue;
            }
            self.replicas.remove(&shard);
            self.damage.left.forget_shard(shard);
            self.deletions.doomed.insert(copy, Doomed { disk, deleting: true });
            self.submit_to_store(now, disk, StoreOp::Delete { copy }, StoreWait::Deletion { copy }, out);
        }
    }

    /// A copy is gone for good. Or it is not, because its disk failed or a clone needs it: it is there still, whatever is known of it
    /// here, and is deleted when that is told again.
    pub(super) fn copy_deleted(&mut self, copy: CopyId, gone: bool, out: &mut dyn Outbox<Letter>) {
        if !gone && let Some(doomed) = self.deletions.doomed.get_mut(&copy) {
            doomed.deleting = false;
        }
        if gone {
            self.deletions.doomed.remove(&copy);
            self.deletions.gone.insert(copy);
            self.taken.full.clear();
            self.counters.count("copy.deleted");
            out.post(Letter::Deleted(copy));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered() {
        let mut gone = Gone::default();
        (0..GONE_KEPT as u64 + 2).for_each(|n| gone.insert(CopyId(n)));
        gone.insert(CopyId(2));
        assert!(!gone.contains(CopyId(1)) && gone.contains(CopyId(2)) && gone.contains(CopyId(GONE_KEPT as u64 + 1)));
        assert_eq!((gone.known.len(), gone.oldest_first.len()), (GONE_KEPT, GONE_KEPT));
    }
}
