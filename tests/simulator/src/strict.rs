//! A store that holds its caller to the seam's contract (`node_store`'s head): the caller keeps the order.
//!
//! No change overlaps another change or a read of the same copy that is in flight; a Join comes when the copy's older changes are
//! over; a Delete comes alone. A breach is written down, with both operations, and passed on: the run fails at its end, by what
//! came of it if that is worse.

use conductor_model::{BlockRange, Blocks, Configuration, CopyId, SnapshotId};
use driver::{Done, Time};
use node_store::{Counters, DiskOut, FillMark, Leeway, Store, StoreDone, StoreError, StoreOp, Tag, Usage};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Breaches of the contract, in words: the first few.
pub(crate) type Breaches = Rc<RefCell<Vec<String>>>;
/// So many are kept.
const MOST: usize = 16;

/// The store behind the check.
pub(crate) struct Strict<S> {
    store: S,
    in_flight: BTreeMap<Tag, (CopyId, What)>,
    breaches: Breaches,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Change(BlockRange),
    Read(BlockRange),
    /// A snapshot or a rollback: no change beside it.
    Barrier,
    Join,
    Delete,
    Other,
}

impl<S> Strict<S> {
    pub(crate) fn new(store: S, breaches: Breaches) -> Self {
        Self { store, in_flight: BTreeMap::new(), breaches }
    }
}

fn what(op: &StoreOp) -> (CopyId, What) {
    match op {
        StoreOp::Write { copy, at, .. }
        | StoreOp::Zero { copy, at, .. }
        | StoreOp::Lose { copy, at, .. }
        | StoreOp::Share { copy, at, .. }
        | StoreOp::Repair { copy, at, .. } => (*copy, What::Change(*at)),
        StoreOp::Snapshot { copy, .. } | StoreOp::Rollback { copy, .. } => (*copy, What::Barrier),
        StoreOp::Read { copy, at, .. } | StoreOp::Extents { copy, at, .. } => (*copy, What::Read(*at)),
        StoreOp::Join { copy, .. } => (*copy, What::Join),
        StoreOp::Delete { copy } => (*copy, What::Delete),
        StoreOp::Create { copy, .. }
        | StoreOp::Above { copy }
        | StoreOp::KnownGood { copy, .. }
        | StoreOp::Flush { copy }
        | StoreOp::DropSnapshot { copy, .. }
        | StoreOp::Flatten { copy }
        | StoreOp::Changed { copy, .. }
        | StoreOp::Mark { copy, .. } => (*copy, What::Other),
    }
}

/// May `new` begin while `old` of the same copy is in flight?
fn agree(old: What, new: What) -> bool {
    match (old, new) {
        (What::Change(a), What::Change(b) | What::Read(b)) | (What::Read(a), What::Change(b)) => !a.overlaps(b),
        (What::Change(_), What::Join | What::Barrier) | (What::Barrier, What::Change(_) | What::Join) => false,
        (What::Delete, _) | (_, What::Delete) => false,
        _ => true,
    }
}

impl<S: Store> Store for Strict<S> {
    fn submit(&mut self, now: Time, tag: Tag, op: StoreOp, out: &mut DiskOut<'_>) {
        let (copy, new) = what(&op);
        for (_, old) in self.in_flight.values().filter(|(of, _)| *of == copy) {
            let mut breaches = self.breaches.borrow_mut();
            if !agree(*old, new) && breaches.len() < MOST {
                breaches.push(format!("at {now:?}, copy {copy}: {new:?} while {old:?} is in flight"));
            }
        }
        assert!(self.in_flight.insert(tag, (copy, new)).is_none(), "{tag:?} is in flight already");
        self.store.submit(now, tag, op, out);
    }
    fn next_completion(&mut self) -> Option<(Tag, Result<StoreDone, StoreError>)> {
        let (tag, result) = self.store.next_completion()?;
        assert!(self.in_flight.remove(&tag).is_some(), "{tag:?} completed twice");
        Some((tag, result))
    }
    fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) {
        self.store.done(now, done, out);
    }
    fn end_turn(&mut self, now: Time, out: &mut DiskOut<'_>) {
        self.store.end_turn(now, out);
    }
    fn next_deadline(&self) -> Option<Time> {
        self.store.next_deadline()
    }
    fn patrol(&mut self, looked_through: Blocks) {
        self.store.patrol(looked_through);
    }
    fn idle(&self) -> bool {
        self.store.idle()
    }
    fn usage(&self) -> Usage {
        self.store.usage()
    }
    fn leeway(&self) -> Leeway {
        self.store.leeway()
    }
    fn copies(&self) -> Vec<(CopyId, Configuration)> {
        self.store.copies()
    }
    fn snapshots(&self, copy: CopyId) -> Vec<SnapshotId> {
        self.store.snapshots(copy)
    }
    fn fill_mark(&self, copy: CopyId) -> FillMark {
        self.store.fill_mark(copy)
    }
    fn used_by(&self, copy: CopyId) -> Blocks {
        self.store.used_by(copy)
    }
    fn counters(&self) -> Counters {
        self.store.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_a_change_waits_for_it_and_a_join_waits_for_all_changes() {
        let range = |from, count| BlockRange { from: Blocks(from), count: Blocks(count) };
        let (change, read) = (|a, b| What::Change(range(a, b)), |a, b| What::Read(range(a, b)));
        assert!(agree(change(0, 4), change(4, 1)) && agree(read(0, 4), read(1, 1)) && agree(read(0, 4), What::Join));
        assert!(
            !agree(change(0, 4), change(3, 1)) && !agree(change(0, 4), read(3, 1)) && !agree(read(0, 4), change(3, 1))
        );
        assert!(
            !agree(change(0, 4), What::Join) && !agree(What::Other, What::Delete) && !agree(What::Delete, read(0, 1))
        );
    }
}
