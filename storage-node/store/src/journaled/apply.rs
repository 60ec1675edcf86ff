//! What a record does to overlay and catalog: while serving when it is durable, at opening when it is read. Always in order.

use super::admit::{Piece, Work, Write};
use super::engine::{JournaledStore, Pending};
use super::entry::ChunkNo;
use super::layers::{Catalog, LayerId};
use super::limits::CHUNK_BLOCKS;
use super::of_record;
use super::overlay::{Key, Overlay, Share, part};
use super::record::{Record, Stamped};
use super::ring::JournalBlock;
use super::space::Space;
use crate::{Crcs, Held, HeldKind, StoreDone, StoreError};
use conductor_model::{BlockRange, Blocks, CopyId};
use driver::{Time, mutant};

/// What records change.
#[derive(Debug)]
pub(super) struct State<'a> {
    pub(super) catalog: &'a mut Catalog,
    pub(super) overlay: &'a mut Overlay,
    pub(super) space: &'a mut Space,
}

/// What a record left to be done.
#[derive(Debug, Default)]
pub(super) struct Effect {
    /// False if the record's copy is not here (any more).
    pub(super) here: bool,
    /// A layer that is new.
    pub(super) opened: Option<LayerId>,
    /// Layers changed places.
    pub(super) restructured: bool,
    /// Promises that a dropped layer's patches held.
    pub(super) claims: Vec<Key>,
}

/// The journaled blocks of a write: where, and for each chunk whether one was set aside, or the entry's own promised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload<'a> {
    pub(super) first: JournalBlock,
    pub(super) crcs: &'a [u32],
    pub(super) kept: &'a [(bool, bool)],
}

impl State<'_> {
    fn stamp(&mut self, copy: CopyId, stamped: Stamped, at: BlockRange, kind: HeldKind) {
        self.catalog.hold(copy, Held { stamp: stamped.stamp, at, kind });
        self.catalog.advance(copy, stamped.known_good);
        self.overlay.touched = true;
    }

    fn live(&self, copy: CopyId) -> Option<LayerId> {
        self.catalog.copies.get(&copy).map(|state| state.live)
    }

    /// Blocks of a write are in the journal.
    pub(super) fn write(&mut self, layer: LayerId, at: BlockRange, version: Stamped, payload: Payload<'_>) {
        let (mut block, mut left, mut n) = (at.from.0, at.count.0, 0usize);
        while left > 0 {
            let (chunk, first) = (block / CHUNK_BLOCKS, block % CHUNK_BLOCKS);
            let count = left.min(CHUNK_BLOCKS - first);
            let offset = block - at.from.0;
            let crcs = payload.crcs.get(offset as usize..(offset + count) as usize).unwrap_or(&[]);
            let journal = JournalBlock(payload.first.0 + offset);
            let kept = payload.kept.get(n).copied().unwrap_or((true, false));
            let returned = self.overlay.write((layer, chunk), first, journal, crcs, version.stamp, kept);
            self.space.unreserve(returned.reservations);
            (block, left, n) = (block + count, left - count, n + 1);
        }
    }

    /// Whole chunks of a write are in places of their own.
    pub(super) fn chunks(&mut self, layer: LayerId, first: u32, chunks: &[ChunkNo], crcs: &Crcs, version: Stamped) {
        for (n, chunk) in (0u32..).zip(chunks) {
            let crcs = part(crcs, n * CHUNK_BLOCKS, CHUNK_BLOCKS);
            let returned = self.overlay.direct((layer, first + n), *chunk, crcs, version.stamp);
            self.space.unreserve(returned.reservations);
        }
    }

    fn drop_layer(&mut self, layer: LayerId, effect: &mut Effect) {
        let (returned, claims) = self.overlay.drop_layer(layer);
        self.space.unreserve(returned.reservations);
        effect.claims.extend(claims);
        effect.restructured = true;
    }

    /// A record without a payload. `reserved`: chunks set aside for a copy-range.
    pub(super) fn record(&mut self, record: &Record, reserved: u32) -> Effect {
        let mut effect = Effect { here: true, ..Effect::default() };
        self.overlay.touched = true;
        if let Record::Create { copy, live, parent, config } = record {
            // Two creations may be under way at once, the second under a newer configuration.
            let parent = parent.and_then(|source| self.catalog.snapshot(source.copy, source.snapshot));
            self.catalog.create(*copy, config.clone(), *live, parent);
            effect.opened = self.catalog.layers.contains(*live).then_some(*live);
            return effect;
        }
        let copy = record.copy();
        let Some(live) = self.live(copy) else {
            effect.here = false;
            return effect;
        };
        let size = self.catalog.copies.get(&copy).map_or(0, |state| state.blocks());
        let whole = BlockRange { from: Blocks(0), count: Blocks(size) };
        match record {
            Record::Join { config, .. } => self.catalog.join(copy, config),
            Record::Delete { .. } => {
                for layer in self.catalog.delete(copy) {
                    self.drop_layer(layer, &mut effect);
                }
            }
            Record::Zero { stamped, at, .. } => {
                let returned = self.overlay.zero(live, *at, stamped.stamp);
                self.space.unreserve(returned.reservations);
                self.stamp(copy, *stamped, *at, HeldKind::Zero);
            }
            Record::Lose { stamped, at, .. } => {
                let returned = self.overlay.lose(live, *at, stamped.stamp);
                self.space.unreserve(returned.reservations);
                self.stamp(copy, *stamped, *at, HeldKind::Write);
            }
            Record::Snapshot { stamped, snapshot, top, .. } => {
                if self.catalog.snapshot(copy, *snapshot).is_none() {
                    self.catalog.freeze(copy, *snapshot, *top);
                    effect.opened = Some(*top);
                    effect.restructured = true;
                }
                self.stamp(copy, *stamped, whole, HeldKind::Barrier);
            }
            Record::Rollback { stamped, snapshot, top, .. } => {
                if let Some(to) = self.catalog.snapshot(copy, *snapshot)
                    && let Some(old) = self.catalog.roll_back(copy, to, *top, stamped.stamp)
                {
                    effect.opened = Some(*top);
                    self.drop_layer(old, &mut effect);
                }
                self.stamp(copy, *stamped, whole, HeldKind::Write);
            }
            Record::Drop { snapshot, .. } => {
                let layer = self.catalog.snapshot(copy, *snapshot);
                effect.restructured |=
                    layer.is_some_and(|id| self.catalog.layers.change(id, |layer| layer.snapshot = None));
            }
            Record::Share { stamped, at, from, .. } => {
                if let Some(source) = self.catalog.snapshot(from.copy, from.snapshot) {
                    let stamp = stamped.stamp;
                    self.overlay.shares.push(Share { layer: live, at: *at, from: source, stamp, reserved });
                } else {
                    self.space.unreserve(reserved);
                }
                self.stamp(copy, *stamped, *at, HeldKind::Write);
            }
            Record::Chunks { stamped, at, first, chunks, crcs, .. } => {
                self.chunks(live, *first, chunks, crcs, *stamped);
                self.stamp(copy, *stamped, *at, HeldKind::Write);
            }
            Record::Mark { mark, known_good, .. } => self.catalog.mark(copy, *mark, *known_good),
            Record::Write { stamped, at, .. } => self.stamp(copy, *stamped, *at, HeldKind::Write),
            Record::Create { .. } => {}
        }
        effect
    }

    /// True if a journal that is behind this state could have the record next: all within its copy, and no layer a second time, of which
    /// layers below themselves could be made.
    fn could_be_next(&self, record: &Record) -> bool {
        let size = self.catalog.copies.get(&record.copy()).map_or(u32::MAX, |state| state.blocks());
        let within = |at: BlockRange| at.end() <= u64::from(size);
        let is_new = |layer: LayerId| !self.catalog.layers.contains(layer);
        match record {
            Record::Create { live, .. } => is_new(*live),
            Record::Snapshot { copy, snapshot, top, .. } => {
                is_new(*top) || self.catalog.snapshot(*copy, *snapshot).is_some()
            }
            Record::Rollback { top, .. } => is_new(*top),
            Record::Write { at, part, .. } => within(*at) && at.from <= part.from && part.end() <= at.end(),
            Record::Chunks { at, first, chunks, .. } => {
                let (from, count) = (u64::from(*first), chunks.len() as u64);
                let of_blocks = |chunk: u64| chunk * u64::from(CHUNK_BLOCKS);
                within(*at) && u64::from(at.from.0) <= of_blocks(from) && of_blocks(from + count) <= at.end()
            }
            Record::Zero { at, .. } | Record::Lose { at, .. } => within(*at),
            Record::Share { at, from, .. } => {
                let source = self.catalog.snapshot(from.copy, from.snapshot).and_then(|id| self.catalog.layers.get(id));
                within(*at) && source.is_none_or(|layer| at.end() <= u64::from(layer.blocks))
            }
            Record::Join { .. } | Record::Delete { .. } | Record::Drop { .. } | Record::Mark { .. } => true,
        }
    }

    /// A record as it is read at opening. `None` if it cannot be: the metadata is damaged.
    pub(super) fn replay(&mut self, record: &Record, crcs: &[u32], payload: Option<JournalBlock>) -> Option<Effect> {
        if !self.could_be_next(record) {
            return None;
        }
        let live = self.live(record.copy());
        match record {
            Record::Write { stamped, part, .. } => {
                if crcs.len() != part.count.0 as usize {
                    return None;
                }
                if let (Some(live), Some(first)) = (live, payload) {
                    let end = u32::try_from(part.end()).ok()?;
                    let chunks = (end - 1) / CHUNK_BLOCKS - part.from.0 / CHUNK_BLOCKS + 1;
                    self.space.reserve(chunks);
                    self.write(live, *part, *stamped, Payload { first, crcs, kept: &[] });
                }
            }
            Record::Chunks { chunks, .. } => {
                for chunk in chunks {
                    // What is free in the checkpoint was not used again before the tail had passed its record.
                    if !self.space.claim(*chunk) {
                        return None;
                    }
                }
                if live.is_none() {
                    self.overlay.freed.extend(chunks);
                }
            }
            _ => {}
        }
        Some(self.record(record, 0))
    }

    /// A piece of a write is durable: it is what its blocks read as, unless its copy is gone (not `here`), where it gives back what it took.
    fn written(&mut self, write: &Write, piece: usize, payload: Option<JournalBlock>, here: bool) {
        // What an opening reads of it goes into the layer that is live at its record.
        debug_assert!(!here || self.live(write.copy) == Some(write.layer), "a snapshot passed a write of its copy");
        match write.pieces.get(piece) {
            Some(Piece::Journal(journaled)) if here => {
                let from = write.offset(journaled.part.from.0);
                let crcs = part(&write.crcs, from, journaled.part.count.0);
                if let Some(first) = payload {
                    let payload = Payload { first, crcs, kept: &journaled.kept };
                    self.write(write.layer, journaled.part, write.stamped, payload);
                }
            }
            Some(Piece::Chunks(first, chunks)) if here => {
                let from = write.offset(first * CHUNK_BLOCKS);
                let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX) * CHUNK_BLOCKS; // at most 17
                let crcs: Crcs = part(&write.crcs, from, count).iter().copied().collect();
                self.chunks(write.layer, *first, chunks, &crcs, write.stamped);
            }
            Some(Piece::Journal(journaled)) => {
                let reserved = journaled.kept.iter().map(|&(reserved, _)| u32::from(reserved)).sum();
                self.space.unreserve(reserved);
            }
            Some(Piece::Chunks(_, chunks)) => self.overlay.freed.extend(chunks),
            None => {}
        }
        if here {
            self.stamp(write.copy, write.stamped, write.at, HeldKind::Write);
        }
    }
}

impl JournaledStore {
    /// A record is as durable as it was to be.
    pub(super) fn appended(&mut self, now: Time, name: u64, payload: Option<JournalBlock>) {
        let Some((key, piece)) = of_record(name) else { return };
        let Some(Pending::Change(change)) = self.pending.get_mut(key) else {
            if let Some(Pending::Flush(tag)) = self.pending.get(key) {
                let tag = *tag;
                self.pending.remove(key);
                self.finish(tag, Ok(StoreDone::Done));
            }
            return;
        };
        self.last_change = Some(now);
        change.records_left -= 1;
        let over = change.records_left == 0;
        let rest = change.rest.take();
        self.cut -= usize::from(rest.is_some());
        match &change.work {
            Work::Write(write) if let Some(Piece::Journal(piece)) = write.pieces.get(piece) => {
                self.fold.milestones.wrote(piece.part.count.0);
            }
            _ if mutant::on("store-milestone-kept") => {}
            _ => self.fold.milestones.forget(),
        }
        let mut state = State { catalog: &mut self.catalog, overlay: &mut self.fresh, space: &mut self.space };
        let effect = match &change.work {
            Work::Record(record, _) => state.record(record, change.reserved),
            Work::Write(write) => {
                let here = state.catalog.copies.contains_key(&write.copy);
                state.written(write, piece, payload, here);
                Effect { here, ..Effect::default() }
            }
        };
        if let (Some(rest), true) = (rest, effect.here) {
            return self.next_piece(key, rest);
        }
        let result = if effect.here {
            Ok(StoreDone::Done)
        } else {
            let copy = match &change.work {
                Work::Record(record, _) => record.copy(),
                Work::Write(write) => write.copy,
            };
            Err(StoreError::NoSuchCopy(copy))
        };
        let mut shares = false;
        match &change.work {
            Work::Write(write) if over && effect.here => {
                self.counters.writes += 1;
                self.counters.blocks_written += u64::from(write.at.count.0);
            }
            Work::Record(Record::Zero { .. }, _) if effect.here => self.counters.zeroes += 1,
            Work::Record(Record::Share { .. }, _) => shares = effect.here,
            _ => {}
        }
        if let Some(layer) = effect.opened {
            self.tables.open_layer(layer, super::tables::Tree::default());
        }
        if effect.restructured {
            self.structure += 1;
            self.fold.layers_changed();
        }
        for key in effect.claims {
            self.unclaim(key, 1);
        }
        if shares {
            // It is over when the fold has done it; from here on the overlay counts what it changes.
            if let Some(Pending::Change(change)) = self.pending.get_mut(key) {
                let counted = std::mem::take(&mut change.changes);
                self.promised_changes = self.promised_changes.without(counted);
            }
            self.fold.share_added(key);
            self.fold.want();
        } else if over {
            self.change_over(key, result);
        }
    }

    /// A promise that an entry's chunk stays where it is, is not needed any more.
    pub(super) fn unclaim(&mut self, key: Key, count: u32) {
        if let Some(left) = self.claims.get_mut(&key) {
            *left = left.saturating_sub(count);
            if *left == 0 {
                self.claims.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::overlay::Source;
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, Commit, Configuration, Durability, Epoch, ShardId, SnapshotId};

    const COPY: CopyId = CopyId(1);

    fn create(live: u32) -> Record {
        let config = Configuration {
            shard: ShardId::default(),
            epoch: Epoch(1),
            primary: COPY,
            members: vec![],
            full_set: vec![],
            min_copies: 1,
            attach: AttachGeneration(0),
            size: Bytes(1 << 20),
            born: true,
            durability: Durability::Always,
            cache: Commit(0),
            card: None,
            parent: None,
        };
        Record::Create { copy: COPY, live: LayerId(live), parent: None, config }
    }
    fn stamped() -> Stamped {
        Stamped { stamp: conductor_model::Stamp::default(), known_good: conductor_model::Stamp::default() }
    }
    fn at(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }
    fn snapshot(name: u64, top: u32) -> Record {
        Record::Snapshot { copy: COPY, stamped: stamped(), snapshot: SnapshotId(name), top: LayerId(top) }
    }

    /// Which of these records is the first that no store can have written.
    fn first_refused(records: &[Record]) -> Option<usize> {
        let (mut catalog, mut overlay, mut space) = (Catalog::default(), Overlay::default(), Space::new(100));
        let mut state = State { catalog: &mut catalog, overlay: &mut overlay, space: &mut space };
        records.iter().position(|record| state.replay(record, &[0], Some(JournalBlock(1))).is_none())
    }

    #[test]
    fn a_journal_cannot_put_a_layer_below_itself() {
        let rollback =
            |top| Record::Rollback { copy: COPY, stamped: stamped(), snapshot: SnapshotId(7), top: LayerId(top) };
        assert_eq!(first_refused(&[create(1), snapshot(7, 2), snapshot(8, 3), rollback(4)]), None);
        assert_eq!(first_refused(&[create(1), snapshot(7, 2), snapshot(7, 2)]), None, "it has it already");
        assert_eq!(first_refused(&[create(1), snapshot(7, 2), snapshot(8, 1)]), Some(2));
        assert_eq!(first_refused(&[create(1), snapshot(7, 2), rollback(1)]), Some(2));
        assert_eq!(first_refused(&[create(1), snapshot(7, 2), create(1)]), Some(2));
        assert_eq!(first_refused(&[create(1), create(2)]), None, "two creations under way at once");
    }

    #[test]
    fn a_journal_cannot_change_what_is_outside_of_its_copy() {
        let (copy, stamped) = (COPY, stamped());
        let write = |range, part| Record::Write { copy, stamped, at: range, part };
        let chunks = |range, first| {
            let (chunks, crcs) = (vec![ChunkNo::new(3, 100).unwrap()], Crcs::from_elem(0, CHUNK_BLOCKS as usize));
            Record::Chunks { copy, stamped, at: range, first, chunks, crcs }
        };
        let zero = |range| Record::Zero { copy, stamped, at: range };
        let lose = |range| Record::Lose { copy, stamped, at: range };
        let share = |range| {
            let from = Source { copy, snapshot: SnapshotId(7) };
            Record::Share { copy, stamped, at: range, from }
        };
        let behind_creation = |record| first_refused(&[create(1), snapshot(7, 2), record]).is_none();
        assert!(behind_creation(write(at(250, 6), at(255, 1))) && behind_creation(chunks(at(236, 20), 15)));
        assert!(behind_creation(zero(at(0, 256))) && behind_creation(share(at(240, 16))));
        assert!(behind_creation(lose(at(240, 16))) && !behind_creation(lose(at(241, 16))));
        assert!(!behind_creation(write(at(250, 7), at(255, 1))));
        assert!(!behind_creation(write(at(250, 5), at(255, 1))), "a part of something else");
        assert!(!behind_creation(chunks(at(236, 20), 14)) && !behind_creation(chunks(at(236, 20), u32::MAX)));
        assert!(!behind_creation(chunks(at(236, 19), 15)));
        assert!(!behind_creation(zero(at(1, 256))) && !behind_creation(share(at(241, 16))));
    }
}
