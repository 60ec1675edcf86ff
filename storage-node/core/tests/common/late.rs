//! A store whose reads, or all of it, are over as late as a test wants.

use conductor_model::{Blocks, Configuration, CopyId, SnapshotId};
use driver::{Done, Time};
use node_store::{Counters, DiskOut, FillMark, Leeway, Store, StoreDone, StoreError, StoreOp, Tag, Usage};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

type Over = (Tag, Result<StoreDone, StoreError>);

pub struct Late<S> {
    store: S,
    /// While this is so, no read completes.
    holds: Rc<Cell<bool>>,
    /// While this is so, nothing does.
    hangs: Rc<Cell<bool>>,
    /// While this is so, it says that it has enough to discard.
    discarding: Rc<Cell<bool>>,
    held: VecDeque<Over>,
}

impl<S> Late<S> {
    pub fn new(store: S, [holds, hangs, discarding]: [Rc<Cell<bool>>; 3]) -> Self {
        Self { store, holds, hangs, discarding, held: VecDeque::new() }
    }
}

impl<S: Store> Store for Late<S> {
    fn submit(&mut self, now: Time, tag: Tag, op: StoreOp, out: &mut DiskOut<'_>) {
        self.store.submit(now, tag, op, out);
    }
    fn next_completion(&mut self) -> Option<Over> {
        if self.hangs.get() {
            return None;
        }
        if !self.holds.get()
            && let Some(over) = self.held.pop_front()
        {
            return Some(over);
        }
        loop {
            let over = self.store.next_completion()?;
            if !(self.holds.get() && matches!(over.1, Ok(StoreDone::Read(..)))) {
                return Some(over);
            }
            self.held.push_back(over);
        }
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
        self.held.is_empty() && self.store.idle()
    }
    fn usage(&self) -> Usage {
        self.store.usage()
    }
    fn leeway(&self) -> Leeway {
        let Leeway { pages, discarding } = self.store.leeway();
        Leeway { pages, discarding: discarding || self.discarding.get() }
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
