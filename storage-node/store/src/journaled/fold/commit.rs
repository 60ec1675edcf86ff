//! The checkpoint: copies and layers into their arrays, pages to the disk, sync, superblocks; and what is free then.

use super::super::engine::JournaledStore;
use super::super::layers::{CopyState, Layer, LayerId};
use super::super::limits::{COPY_BYTES, HELD_BYTES, LAYER_BYTES, RETRY, SUPERBLOCKS};
use super::super::pages::{ArrayName, Root};
use super::super::record::{decode_mark, encode_mark};
use super::super::ring::Mark;
use super::super::superblock::{COPIES, HELD, LAYERS, OUTER};
use super::super::tables::Tree;
use super::super::{Kind, tag};
use super::{Stage, Step};
use crate::codec::{Put, Take};
use crate::configuration::{decode_configuration, decode_range, encode_configuration};
use crate::{DiskOut, Held, HeldKind, MAX_HELD, StoreDone};
use conductor_model::{BLOCK, CopyId, Epoch, Sequence, SnapshotId, Stamp};
use driver::{Op, Part, Time, mutant};
use memory::Class;
use smallvec::smallvec;
use std::rc::Rc;

/// A copy's record: `1 u8 | copy u64 | K 16 | live layer u32 | held u16 | mark 36 | configuration`.
pub(in super::super) fn encode_copy(copy: CopyId, state: &CopyState) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(COPY_BYTES);
    bytes.u8(1);
    bytes.u64(copy.0);
    bytes.stamp(state.known_good);
    bytes.u32(state.live.0);
    bytes.u16(u16::try_from(state.held.len()).unwrap_or(u16::MAX)); // at most MAX_HELD
    encode_mark(&state.mark, &mut bytes);
    encode_configuration(&state.config, &mut bytes);
    bytes.resize(COPY_BYTES, 0);
    bytes
}

/// A copy, and how many changes above K are listed; `Some(None)` if there is none.
pub(in super::super) fn decode_copy(slot: u32, bytes: &[u8]) -> Option<Option<(CopyId, CopyState, u16)>> {
    let mut take = Take(bytes);
    match take.u8()? {
        0 => return Some(None),
        1 => {}
        _ => return None,
    }
    let copy = CopyId(take.u64()?);
    let known_good = take.stamp()?;
    let live = LayerId(take.u32()?);
    let held = take.u16()?;
    let mark = decode_mark(&mut take)?;
    let config = decode_configuration(&mut take)?;
    let state = CopyState { config, known_good, held: Vec::new(), newest: Stamp::default(), mark, live, slot };
    (usize::from(held) <= MAX_HELD).then_some(Some((copy, state, held)))
}

/// A change above K: `stamp 16 | from u32 | count u32 | kind u8`.
fn encode_held(held: &Held) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HELD_BYTES);
    bytes.stamp(held.stamp);
    bytes.u32(held.at.from.0);
    bytes.u32(held.at.count.0);
    bytes.u8(match held.kind {
        HeldKind::Write => 1,
        HeldKind::Zero => 2,
        HeldKind::Barrier => 3,
    });
    bytes.resize(HELD_BYTES, 0);
    bytes
}

/// The same, read.
pub(in super::super) fn decode_held(bytes: &[u8]) -> Option<Held> {
    let mut take = Take(bytes);
    let (stamp, at) = (take.stamp()?, decode_range(&mut take)?);
    let kind = match take.u8()? {
        1 => HeldKind::Write,
        2 => HeldKind::Zero,
        3 => HeldKind::Barrier,
        _ => return None,
    };
    Some(Held { stamp, at, kind })
}

/// A layer's record: `copy u64 | parent u32 | snapshot u64 | base 16 | blocks u32 | root 9 | cursor u32 | chunks u32`, all zeros if none.
pub(in super::super) fn encode_layer(layer: &Layer, tree: &Tree) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LAYER_BYTES);
    bytes.u64(layer.copy.0);
    bytes.u32(layer.parent.map_or(0, |parent| parent.0));
    bytes.u64(layer.snapshot.map_or(0, |snapshot| snapshot.0));
    bytes.stamp(layer.base);
    bytes.u32(layer.blocks);
    bytes.extend_from_slice(&tree.root.encode());
    bytes.u32(tree.cursor);
    bytes.u32(tree.chunks);
    bytes.resize(LAYER_BYTES, 0);
    bytes
}

/// The same, read; `Some(None)` if there is none.
pub(in super::super) fn decode_layer(bytes: &[u8]) -> Option<Option<(Layer, Tree)>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(None);
    }
    let mut take = Take(bytes);
    let copy = CopyId(take.u64()?);
    let parent = Some(LayerId(take.u32()?)).filter(|parent| parent.0 != 0);
    let snapshot = Some(SnapshotId(take.u64()?)).filter(|snapshot| snapshot.0 != 0);
    let base = Stamp { epoch: Epoch(take.u64()?), sequence: Sequence(take.u64()?) };
    let blocks = take.u32()?;
    let root = Root::decode(take.array()?);
    let tree = Tree { root, cursor: take.u32()?, chunks: take.u32()? };
    Some(Some((Layer { copy, parent, snapshot, base, blocks }, tree)))
}

fn held_at(slot: u32, n: usize) -> u64 {
    u64::from(slot) * MAX_HELD as u64 + n as u64
}

impl JournaledStore {
    /// All that the checkpoint must say of copies and layers, and the last one did not.
    pub(super) fn gather_records(&mut self) {
        let (old, new) = (&self.fold.persisted, &self.fold.frozen);
        let mut records = Vec::new();
        // A copy that was deleted and made again has another place.
        let same_place = |copy: &CopyId, slot| new.copies.get(copy).is_some_and(|state| state.slot == slot);
        for (copy, state) in &old.copies {
            if !same_place(copy, state.slot) {
                records.push((COPIES, u64::from(state.slot), vec![0; COPY_BYTES]));
                records.extend((0..state.held.len()).map(|n| (HELD, held_at(state.slot, n), vec![0; HELD_BYTES])));
            }
        }
        for (copy, state) in &new.copies {
            let before = old.copies.get(copy).filter(|before| before.slot == state.slot);
            if before.is_some_and(|before| Rc::ptr_eq(before, state) || **before == **state) {
                continue;
            }
            records.push((COPIES, u64::from(state.slot), encode_copy(*copy, state)));
            let before = before.map_or(&[][..], |before| &before.held);
            for n in 0..before.len().max(state.held.len()) {
                if before.get(n) != state.held.get(n) || before.is_empty() {
                    let bytes = state.held.get(n).map_or_else(|| vec![0; HELD_BYTES], encode_held);
                    records.push((HELD, held_at(state.slot, n), bytes));
                }
            }
        }
        for layer in old.layers.ids().filter(|layer| !new.layers.contains(*layer)) {
            records.push((LAYERS, u64::from(layer.0), vec![0; LAYER_BYTES]));
        }
        for (id, layer) in new.layers.iter() {
            let tree = self.tables.trees.get(&id).copied().unwrap_or_default();
            if old.layers.get(id) != Some(layer) || self.tables.touched().contains(&id) {
                records.push((LAYERS, u64::from(id.0), encode_layer(layer, &tree)));
            }
        }
        self.fold.records = records.into();
    }

    /// Put them into their arrays.
    pub(super) fn put_records(&mut self) -> Step {
        while let Some((name, index, bytes)) = self.fold.records.front() {
            match self.tables.get_mut(*name, *index) {
                Ok(record) => record.copy_from_slice(bytes),
                Err(wait) => return self.waits(wait),
            }
            self.fold.records.pop_front();
        }
        self.fold.stage = if self.fold.stage == Stage::Catalog { Stage::Inner } else { Stage::Outer };
        Step::On
    }

    /// The maps' pages go to the disk; the layers' records learn their roots.
    pub(super) fn write_inner(&mut self, now: Time, out: &mut DiskOut<'_>) -> Step {
        let roots = match self.tables.pages.checkpoint_inner(out) {
            None => return self.waits_for_pages(now),
            Some(Err(errno)) => {
                self.fail(errno);
                return Step::Stay;
            }
            Some(Ok(roots)) => roots,
        };
        for (name, root) in roots {
            let layer = LayerId(name.0 - ArrayName::INNER);
            let Some(tree) = self.tables.trees.get_mut(&layer) else { continue };
            tree.root = root;
            if let Some(info) = self.fold.frozen.layers.get(layer) {
                self.fold.records.push_back((LAYERS, u64::from(layer.0), encode_layer(info, tree)));
            }
        }
        self.fold.stage = Stage::Roots;
        Step::On
    }

    /// The other pages, and the map of pages.
    pub(super) fn write_outer(&mut self, now: Time, out: &mut DiskOut<'_>) -> Step {
        let done = match self.tables.pages.checkpoint(out) {
            None => return self.waits_for_pages(now),
            Some(Err(errno)) => {
                self.fail(errno);
                return Step::Stay;
            }
            Some(Ok(done)) => done,
        };
        for (name, root) in done.roots {
            if let Some(n) = OUTER.iter().position(|outer| *outer == name) {
                self.superblock.roots[n] = root;
            }
        }
        self.superblock.map = done.map;
        self.superblock.tail = self.fold.mark;
        self.superblock.generation += 1;
        self.superblock.lost = self.superblock.lost.saturating_add(self.tables.pages.newly_lost());
        self.superblock.next_layer = self.fold.frozen.next_layer;
        self.fold.stage = Stage::Hidden;
        Step::On
    }

    /// For the disk; or, where it was asked for nothing, for memory that others give back.
    fn waits_for_pages(&mut self, now: Time) -> Step {
        if self.tables.pages.in_flight() == 0 {
            self.retry = Some(now + RETRY);
        }
        Step::Stay
    }

    /// What moves home overwrites older data in place: first it is stable in the journal, from where it is moved again after a crash.
    /// (Written under durability=flush it need not be.)
    pub(super) fn settle_journal(&mut self, out: &mut DiskOut<'_>) -> Step {
        self.settle_before(self.fold.mark, Stage::Ranges, out)
    }

    /// What was left in the journal goes with the commit: first what hides it is stable.
    pub(super) fn settle_hidden(&mut self, out: &mut DiskOut<'_>) -> Step {
        match self.fold.hidden_by {
            Some(mark) if !mutant::on("store-hidden-by-unstable") => self.settle_before(mark, Stage::Sync, out),
            _ => {
                self.fold.stage = Stage::Sync;
                Step::On
            }
        }
    }

    /// On to `next` when all of the journal before `mark` is stable.
    fn settle_before(&mut self, mark: Mark, next: Stage, out: &mut DiskOut<'_>) -> Step {
        if self.fold.in_flight {
            return Step::Stay; // be the journal stable by other means: the sync's completion belongs to this stage
        }
        if self.ring.is_stable_before(mark) {
            self.fold.stage = next;
            return Step::On;
        }
        self.fold.in_flight = true;
        self.fold.sync_point = self.ring.sync_point();
        self.outstanding += 1;
        out(Op::DiskSync { disk: self.ring_place.disk, tag: tag(Kind::Sync, 0) });
        Step::Stay
    }

    /// Moved data and pages become stable.
    pub(super) fn sync(&mut self, out: &mut DiskOut<'_>) -> Step {
        if mutant::on("store-superblock-before-pages") {
            self.fold.stage = Stage::Super(0);
            return Step::On;
        }
        if !self.fold.in_flight {
            self.fold.in_flight = true;
            self.fold.sync_point = self.ring.sync_point();
            self.outstanding += 1;
            out(Op::DiskSync { disk: self.place.disk, tag: tag(Kind::Sync, 0) });
        }
        Step::Stay
    }

    pub(in super::super) fn fold_synced(&mut self) {
        self.fold.in_flight = false;
        if self.failed.is_some() {
            return;
        }
        if matches!(self.fold.stage, Stage::Journal | Stage::Hidden) {
            return self.ring.synced(self.fold.sync_point);
        }
        if self.ring_place.disk == self.place.disk {
            self.ring.synced(self.fold.sync_point);
        }
        self.fold.stage = Stage::Super(0);
    }

    /// One superblock, then the other.
    pub(super) fn write_superblock(&mut self, n: usize, now: Time, out: &mut DiskOut<'_>) -> Step {
        if self.fold.in_flight {
            return Step::Stay;
        }
        let Some(&block) = SUPERBLOCKS.get(n) else {
            self.commit();
            return Step::On;
        };
        let Some(mut buffer) = self.fold.buffer.take().or_else(|| self.arena.take(BLOCK, Class::Settle)) else {
            self.retry = Some(now + RETRY);
            return Step::Stay;
        };
        self.superblock.encode(&mut buffer);
        self.fold.in_flight = true;
        self.outstanding += 1;
        let parts = smallvec![Part { mem: buffer.filled(), from: 0, len: BLOCK }];
        let at = block * BLOCK as u64;
        out(Op::DiskWrite { disk: self.place.disk, tag: tag(Kind::Super, n), at, parts, durable: true });
        Step::Stay
    }

    pub(in super::super) fn superblock_written(&mut self, op: Op) {
        self.fold.in_flight = false;
        if let Op::DiskWrite { parts, .. } = op {
            self.fold.buffer = parts.into_iter().next().and_then(|part| part.mem.try_filling().ok());
        }
        if let (Stage::Super(n), None) = (self.fold.stage, self.failed) {
            self.fold.stage = Stage::Super(n + 1);
        }
    }

    /// Both superblocks are durable: what was freed is free when older reads are over.
    fn commit(&mut self) {
        self.tables.pages.committed();
        self.copying.clear();
        // What was copied of a chunk is there still, where a snapshot has it: that can be put right.
        let ring = self.ring_place;
        self.fold.bruised.retain(|(disk, at)| ring.has(*disk, *at));
        self.fold.persisted = self.fold.frozen.clone();
        for (id, layer) in self.fold.frozen.layers.iter() {
            // Clones that were flattened.
            if self.catalog.layers.get(id).is_some_and(|live| live.parent != layer.parent) {
                self.catalog.layers.change(id, |live| live.parent = layer.parent);
            }
        }
        let era = self.eras.advance();
        self.trims.push(era, self.fold.mark);
        let eras = &self.eras;
        self.lingering.retain(|_, era| !eras.is_over(*era));
        self.lingering.extend(std::mem::take(&mut self.fold.unshared).into_iter().map(|chunk| (chunk, era)));
        let freed = std::mem::take(&mut self.fold.freed);
        self.space.began_returning(u32::try_from(freed.len()).unwrap_or(u32::MAX)); // chunks are 32 bits
        self.returns.push(era, freed);
        if let Some(folding) = self.folding.take() {
            self.space.unreserve(folding.reservations());
            for (key, patch) in folding.patches.iter() {
                if patch.claims > 0 {
                    self.unclaim(key, patch.claims);
                }
            }
        }
        for layer in std::mem::take(&mut self.fold.gone) {
            self.tables.close_layer(layer);
        }
        for key in std::mem::take(&mut self.fold.share_keys) {
            self.end_waiting(key, Ok(StoreDone::Done));
        }
        while let Some(flatten) = self.fold.flattens.front().filter(|flatten| flatten.done) {
            let key = flatten.key;
            self.fold.flattens.pop_front();
            self.end_waiting(key, Ok(StoreDone::Done));
        }
        self.fold.stage = Stage::Idle;
        self.fold.urgent = false;
        self.counters.checkpoints += 1;
        self.work_over();
    }
}
