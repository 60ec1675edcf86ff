//! Shards for which a promise counts no more (rule 13).
//!
//! A reactor promises another one, for all shards together, not to follow another primary. When a Join of a newer epoch under another
//! primary comes, that shard is *withheld* from the promise: every answer to the old primary says so from then on. The Join goes on when
//! the last answer without the entry has run out, or when the old primary has said that it knows the list; and the entry stays until
//! then, or until that process is gone: else a later promise would count for the shard again.

use crate::replica::Caller;
use conductor_model::{Epoch, ShardId};
use std::collections::BTreeMap;

/// What is withheld from whom. A list is sent once: each has a generation, and who knows it is not told again.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    last: u64,
    from: BTreeMap<Caller, BTreeMap<ShardId, Entry>>,
    /// Which process a node's reactor was, when it was met last.
    met: BTreeMap<(String, u16), u64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u64,
    epoch: Epoch,
}

impl Withheld {
    /// A Join of `epoch` waits here for a promise to `caller`.
    pub(crate) fn withhold(&mut self, caller: Caller, shard: ShardId, epoch: Epoch) {
        self.last += 1;
        let entry = Entry { generation: self.last, epoch };
        self.from.entry(caller).or_default().insert(shard, entry);
    }

    /// Of what `caller` is told; 0 if nothing is withheld from it.
    pub(crate) fn generation(&self, caller: Caller) -> u64 {
        let entries = self.from.get(&caller).into_iter().flat_map(BTreeMap::values);
        entries.map(|entry| entry.generation).max().unwrap_or(0)
    }

    /// What `caller` is told: shards, and the epochs that wait.
    pub(crate) fn list(&self, caller: Caller) -> impl Iterator<Item = (ShardId, Epoch)> {
        self.from.get(&caller).into_iter().flatten().map(|(shard, entry)| (*shard, entry.epoch))
    }

    /// `caller` has acted upon what it was told up to this generation: these shards it does not serve any more.
    pub(crate) fn confirmed(&mut self, caller: Caller, known: u64) -> Vec<ShardId> {
        let Some(entries) = self.from.get_mut(&caller) else { return Vec::new() };
        let done: Vec<ShardId> =
            entries.iter().filter(|(_, entry)| entry.generation <= known).map(|(shard, _)| *shard).collect();
        entries.retain(|_, entry| entry.generation > known);
        if entries.is_empty() {
            self.from.remove(&caller);
        }
        done
    }

    /// A reactor of the node `name` is `caller`. If it was another process before, that one is gone: its stores were closed before
    /// they could be opened again.
    pub(crate) fn meets(&mut self, name: &str, caller: Caller) {
        let before = self.met.insert((name.to_owned(), caller.lane), caller.process);
        if let Some(gone) = before.filter(|process| *process != caller.process) {
            self.from.remove(&Caller { process: gone, ..caller });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{ShardIndex, VolumeId};

    const A: Caller = Caller { process: 7, lane: 0 };

    fn shard(n: u32) -> ShardId {
        ShardId { volume: VolumeId(1), index: ShardIndex(n) }
    }

    #[test]
    fn a_shard_is_listed_until_its_old_primary_knows() {
        let mut withheld = Withheld::default();
        assert_eq!(withheld.generation(A), 0);
        withheld.withhold(A, shard(1), Epoch(5));
        let first = withheld.generation(A);
        withheld.withhold(A, shard(2), Epoch(9));
        let second = withheld.generation(A);
        assert!(first < second);
        assert_eq!(withheld.list(A).collect::<Vec<_>>(), [(shard(1), Epoch(5)), (shard(2), Epoch(9))]);
        assert_eq!(withheld.confirmed(A, first), [shard(1)], "the second was not on the list that is known");
        assert_eq!(withheld.confirmed(Caller { lane: 1, ..A }, second), [], "another reactor's word");
        assert_eq!(withheld.confirmed(A, second), [shard(2)]);
        assert_eq!((withheld.generation(A), withheld.list(A).count()), (0, 0));
    }

    #[test]
    fn what_a_process_was_told_ends_with_it() {
        let mut withheld = Withheld::default();
        withheld.meets("n1", A);
        withheld.withhold(A, shard(1), Epoch(5));
        withheld.meets("n1", A);
        withheld.meets("n2", Caller { process: 8, lane: 0 });
        withheld.meets("n1", Caller { process: 8, lane: 1 });
        assert_eq!(withheld.list(A).count(), 1);
        withheld.meets("n1", Caller { process: 9, lane: 0 });
        assert_eq!(withheld.list(A).count(), 0);
    }
}
