//! Reads every block of every copy in a store, through the store's own read path.

use crate::mail::Letter;
use conductor_model::{BLOCK, BlockRange, Blocks, CopyId, Epoch, ShardId, SnapshotId};
use driver::{Done, Outbox, Time};
use memory::{Arena, Class};
use node_store::journaled::JournaledStore;
use node_store::{Store, StoreDone, StoreOp, Tag, View};

/// Blocks of one read.
const PIECE: u32 = 128;

/// A copy and the checksums of its blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) shard: ShardId,
    pub(crate) copy: CopyId,
    pub(crate) epoch: Epoch,
    /// As it was at this snapshot; none: as it is.
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) blocks: Vec<u32>,
}

/// An inspection under way.
pub(crate) struct Inspector {
    store: JournaledStore,
    arena: Arena,
    left: Vec<(Found, u32)>,
    found: Vec<Found>,
    /// For memory.
    waits: bool,
}

impl Inspector {
    pub(crate) fn new(store: JournaledStore, arena: Arena) -> Self {
        let mut left = Vec::new();
        for (copy, config) in store.copies() {
            let blocks = u32::try_from(config.size.0 / BLOCK as u64).unwrap_or(u32::MAX);
            let snapshots = store.snapshots(copy).into_iter().map(Some);
            left.extend(snapshots.chain([None]).map(|snapshot| {
                (Found { shard: config.shard, copy, epoch: config.epoch, snapshot, blocks: Vec::new() }, blocks)
            }));
        }
        Self { left, found: Vec::new(), waits: false, store, arena }
    }

    /// Reads the next piece.
    pub(crate) fn go_on(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        while let Some((found, blocks)) = self.left.last() {
            let at = u32::try_from(found.blocks.len()).unwrap_or(u32::MAX);
            if at >= *blocks {
                let done = self.left.pop().map(|(found, _)| found);
                self.found.extend(done);
                continue;
            }
            let count = PIECE.min(blocks - at);
            // The store, which moves its journal home, may have it; it is asked for again after each of its operations and turns.
            let Some(into) = self.arena.take(count as usize * BLOCK, Class::Client) else {
                self.waits = true;
                return;
            };
            let at = BlockRange { from: Blocks(at), count: Blocks(count) };
            let view = found.snapshot.map_or(View::Live, View::Snapshot);
            let op = StoreOp::Read { copy: found.copy, view, at, into };
            self.store.submit(now, Tag(0), op, &mut |op| out.submit(op));
            if !self.take(out) {
                return;
            }
        }
        out.post(Letter::Found(std::mem::take(&mut self.found)));
    }

    /// Takes the completion of the piece, if it is there.
    fn take(&mut self, out: &mut dyn Outbox<Letter>) -> bool {
        let Some((_, result)) = self.store.next_completion() else { return false };
        match (result, self.left.last_mut()) {
            (Ok(StoreDone::Read(_, crcs)), Some((found, _))) => found.blocks.extend(crcs),
            (other, reading) => {
                let of = reading.map(|(found, _)| (found.shard, found.snapshot));
                out.post(Letter::Failed(format!("an inspection of {of:?} failed: {other:?}")));
                self.left.clear();
            }
        }
        true
    }

    pub(crate) fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        self.store.done(now, done, &mut |op| out.submit(op));
        if self.take(out) || std::mem::take(&mut self.waits) {
            self.go_on(now, out);
        }
    }

    pub(crate) fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let mut again = std::mem::take(&mut self.waits);
        loop {
            self.store.end_turn(now, &mut |op| out.submit(op));
            if !self.take(out) && !std::mem::take(&mut again) {
                break;
            }
            // What it asks for now, the store begins with the end of a turn.
            self.go_on(now, out);
        }
    }
}
