//! Changes before their records: is there room, where does the data go, and when does the record.
//!
//! ```text
//! submit ─► waiting (in order) ─room─► data of whole chunks ─durable─► ready ─room in the ring─► appended ─► applied ─► over
//! ```
//! All that can refuse a change refuses it here, before anything is touched.

use super::engine::{JournaledStore, Pending};
use super::entry::{ALL, ChunkNo, Mask};
use super::layers::LayerId;
use super::limits::{
    CHUNK, CHUNK_BLOCKS, DISCARD_PIECE, MAX_PATCHES, MAX_RANGES, PASSED_ABOVE, PASSED_FOR, PATCHES_PER_DISCARD,
};
use super::overlay::{Changes, Source, masks, part};
use super::record::{MAX_FIXED, MAX_PER_BLOCK, Record, Stamped};
use super::tables::Wait;
use super::{Kind, record_name, tag};
use crate::{Crcs, DiskOut, Parent, StoreDone, StoreError, StoreOp, Tag};
use conductor_model::{BLOCK, BlockRange, Blocks, CopyId, Stamp};
use driver::{Op, Part, mutant};
use memory::Reads;
use smallvec::{SmallVec, smallvec};

/// A write's part that goes through the journal.
#[derive(Clone, Debug)]
pub(super) struct Journaled {
    pub(super) part: BlockRange,
    /// For each of its chunks, in order: a free chunk was set aside; the entry's own was promised.
    pub(super) kept: SmallVec<[(bool, bool); 2]>,
}

/// One record of a write.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Journal(Journaled),
    /// Whole chunks, the first of them, and where they went.
    Chunks(u32, Vec<ChunkNo>),
}

/// One, but for a write that has whole chunks and others.
type Pieces = SmallVec<[Piece; 1]>;

/// A write.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) copy: CopyId,
    pub(super) layer: LayerId,
    pub(super) stamped: Stamped,
    pub(super) at: BlockRange,
    data: Reads,
    pub(super) crcs: Crcs,
    durable: bool,
    pub(super) pieces: Pieces,
}

/// What a change is.
#[derive(Debug)]
pub(super) enum Work {
    /// One record without data; true if it must be durable to be over.
    Record(Record, bool),
    Write(Write),
}

/// A change that is not over.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) tag: Tag,
    pub(super) work: Work,
    /// Data writes that are out.
    pub(super) data_left: u32,
    /// Records that are not applied.
    pub(super) records_left: u32,
    /// Chunks set aside for a copy-range.
    pub(super) reserved: u32,
    /// Patches it was counted for.
    promised: usize,
    /// What it may change, beside what the overlay has of it.
    pub(super) changes: Changes,
    /// What is left of a discard that is done piece by piece.
    pub(super) rest: Option<BlockRange>,
}

/// Why a change does not begin.
enum Barred {
    /// It waits until a fold, or a page, has come.
    Waits,
    /// It never will.
    Refused(StoreError),
}

impl Barred {
    /// For what a look at a copy's metadata has come to.
    fn by(wait: Wait, copy: CopyId, at: BlockRange) -> Self {
        match wait {
            Wait::Load => Self::Waits,
            Wait::Damaged | Wait::Full => Self::Refused(StoreError::Corrupt { copy, block: at.from }),
        }
    }
}

impl Write {
    /// The index of a block of it.
    pub(super) fn offset(&self, block: u32) -> u32 {
        block - self.at.from.0
    }

    /// The chunks that blocks lie in.
    fn chunks_of(at: BlockRange) -> std::ops::Range<u32> {
        let end = u32::try_from(at.end()).unwrap_or(u32::MAX); // ranges lie within a copy
        at.from.0 / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS)
    }

    /// Its chunks: which, first block within, blocks.
    fn chunks(at: BlockRange) -> impl Iterator<Item = (u32, u32, u32)> {
        let (from, end) = (at.from.0, at.from.0 + at.count.0);
        (from / CHUNK_BLOCKS..=(end - 1) / CHUNK_BLOCKS).map(move |chunk| {
            let start = chunk * CHUNK_BLOCKS;
            let low = from.max(start);
            (chunk, low - start, end.min(start + CHUNK_BLOCKS) - low)
        })
    }
}

/// Blocks of a chunk of which a layer has content, and such as it has lost.
#[derive(Clone, Copy, Default)]
struct Top {
    content: Mask,
    lost: Mask,
}

impl JournaledStore {
    pub(super) fn start_change(&mut self, tag: Tag, op: StoreOp, out: &mut DiskOut<'_>) {
        let stamped = |this: &mut Self, copy, stamp, known_good| Stamped {
            stamp,
            known_good: this.catalog.advance(copy, known_good),
        };
        let done = Ok(StoreDone::Done);
        let work = match op {
            StoreOp::Create { copy, .. } if self.catalog.copies.contains_key(&copy) => return self.finish(tag, done),
            StoreOp::Create { copy, config, parent } => {
                self.creating += 1;
                let parent = parent.map(|Parent { copy, snapshot }| Source { copy, snapshot });
                Work::Record(Record::Create { copy, live: self.new_layer(), parent, config }, true)
            }
            StoreOp::Join { copy, config } => Work::Record(Record::Join { copy, config }, true),
            StoreOp::Delete { copy } => Work::Record(Record::Delete { copy }, true),
            StoreOp::Zero { copy, stamp, at, known_good, durable } => {
                let stamped = stamped(self, copy, stamp, known_good);
                Work::Record(Record::Zero { copy, stamped, at }, durable)
            }
            StoreOp::Lose { copy, stamp, at, known_good } => {
                let stamped = stamped(self, copy, stamp, known_good);
                Work::Record(Record::Lose { copy, stamped, at }, true)
            }
            StoreOp::Snapshot { copy, snapshot, .. } if self.catalog.snapshot(copy, snapshot).is_some() => {
                return self.finish(tag, done);
            }
            StoreOp::Snapshot { copy, stamp, snapshot, known_good } => {
                let stamped = stamped(self, copy, stamp, known_good);
                Work::Record(Record::Snapshot { copy, stamped, snapshot, top: self.new_layer() }, true)
            }
            StoreOp::Rollback { copy, stamp, snapshot, known_good } => {
                let stamped = stamped(self, copy, stamp, known_good);
                Work::Record(Record::Rollback { copy, stamped, snapshot, top: self.new_layer() }, true)
            }
            StoreOp::DropSnapshot { copy, snapshot } if self.catalog.snapshot(copy, snapshot).is_none() => {
                return self.finish(tag, done);
            }
            StoreOp::DropSnapshot { copy, snapshot } => Work::Record(Record::Drop { copy, snapshot }, true),
            StoreOp::Share { copy, stamp, at, from, known_good } => {
                let stamped = stamped(self, copy, stamp, known_good);
                let from = Source { copy: from.copy, snapshot: from.snapshot };
                Work::Record(Record::Share { copy, stamped, at, from }, true)
            }
            // Durable by itself, and so is all before it in the journal.
            StoreOp::Mark { copy, mark, known_good } => Work::Record(Record::Mark { copy, mark, known_good }, true),
            StoreOp::Write { copy, stamp, at, data, crcs, known_good, durable } => {
                let stamped = stamped(self, copy, stamp, known_good);
                let Some(layer) = self.catalog.copies.get(&copy).map(|state| state.live) else {
                    return self.finish(tag, Err(StoreError::NoSuchCopy(copy)));
                };
                self.counters.near_full += u64::from(self.is_near_full());
                Work::Write(Write { copy, layer, stamped, at, data, crcs, durable, pieces: Pieces::new() })
            }
            StoreOp::Flush { .. }
            | StoreOp::Flatten { .. }
            | StoreOp::Repair { .. }
            | StoreOp::Extents { .. }
            | StoreOp::Changed { .. }
            | StoreOp::Read { .. }
            | StoreOp::Above { .. }
            | StoreOp::KnownGood { .. } => {
                debug_assert!(false, "`submit` handles these");
                return self.finish(tag, Err(StoreError::Unsupported("do that")));
            }
        };
        let (data_left, records_left, reserved, promised) = (0, 1, 0, 0);
        let changes = Changes::default();
        let change = Change { tag, work, data_left, records_left, reserved, promised, changes, rest: None };
        let key = self.pending.insert(Pending::Change(Box::new(change)));
        self.waiting.push_back(key);
        if self.waiting.len() == 1 {
            self.admit_waiting(out);
        }
    }

    fn new_layer(&mut self) -> LayerId {
        let id = LayerId(self.catalog.next_layer);
        self.catalog.next_layer += 1;
        id
    }

    /// Let in what there is room for, in order; but writes and zeros pass a copy-range that waits for folds, and writes a discard that waits:
    /// what it is about is locked by whoever asked for it, and it has places that writes do not get.
    pub(super) fn admit_waiting(&mut self, out: &mut DiskOut<'_>) {
        while let Some(&key) = self.ready.front() {
            if !self.append(key) {
                break;
            }
            self.ready.pop_front();
        }
        let (mut at, mut zeros_wait) = (0, false);
        while self.failed.is_none()
            && let Some(&key) = self.waiting.get(at)
        {
            let Some(mut change) = self.take_change(key) else {
                self.waiting.remove(at);
                continue;
            };
            let is_zero = matches!(change.work, Work::Record(Record::Zero { .. }, _));
            let passes = matches!(change.work, Work::Write(_) | Work::Record(Record::Lose { .. }, _)) || is_zero;
            if (at > 0 || self.cut > 0) && !passes {
                self.pending[key] = Pending::Change(change);
                break;
            }
            if is_zero && zeros_wait {
                self.pending[key] = Pending::Change(change);
                at += 1;
                continue;
            }
            let is_share = matches!(change.work, Work::Record(Record::Share { .. }, _));
            let admission = self.admit(key, &mut change, out);
            let ready = change.data_left == 0;
            self.pending[key] = Pending::Change(change);
            match admission {
                Ok(()) => {
                    self.waiting.remove(at);
                    if ready {
                        self.ready.push_back(key);
                        if self.ready.len() == 1 && self.append(key) {
                            self.ready.pop_front();
                        }
                    }
                }
                Err(Barred::Waits) if is_share && self.may_be_passed(key) => at = 1,
                Err(Barred::Waits) if is_zero => (at, zeros_wait) = (at + 1, true),
                Err(Barred::Waits) => break,
                Err(Barred::Refused(error)) => {
                    self.waiting.remove(at);
                    self.counters.no_space += u64::from(error == StoreError::NoSpace);
                    self.change_over(key, Err(error)); // nothing is promised to it
                }
            }
        }
    }

    /// A copy-range waits until nothing is in the overlay, which takes a fold or two. Where that is much, whatever is written meanwhile does not
    /// wait for it, on whichever copy: what it is about is locked by whoever asked for it. Not for ever: a fold that goes on while others write
    /// leaves something for the next.
    fn may_be_passed(&mut self, key: usize) -> bool {
        let folds = self.counters.checkpoints;
        let since = match self.passed {
            Some((passed, since)) if passed == key => since,
            _ => folds,
        };
        self.passed = Some((key, since));
        folds < since + PASSED_FOR && (!self.fold.is_idle() || self.fresh.patches.len() > PASSED_ABOVE)
    }

    /// Take a change out of its slot, to be put back.
    fn take_change(&mut self, key: usize) -> Option<Box<Change>> {
        match self.pending.get_mut(key)?.take() {
            Pending::Change(change) => Some(change),
            other => {
                self.pending[key] = other;
                None
            }
        }
    }

    /// May it begin? If so, what it needs is set aside.
    fn admit(&mut self, key: usize, change: &mut Change, out: &mut DiskOut<'_>) -> Result<(), Barred> {
        match &mut change.work {
            Work::Record(Record::Zero { at, .. }, _) => {
                (*at, change.rest, change.changes) = self.admit_discard(*at)?;
                self.cut += usize::from(change.rest.is_some());
                change.promised = PATCHES_PER_DISCARD;
            }
            Work::Record(Record::Lose { copy, at, .. }, _) => {
                (change.promised, change.changes) = self.admit_lost(*copy, *at)?;
            }
            Work::Record(Record::Share { copy, at, from, .. }, _) => {
                (change.reserved, change.changes) = self.admit_share(*copy, *at, *from)?;
            }
            Work::Record(Record::Create { .. }, _) if !self.has_places(Changes::default()) => {
                return Err(self.no_space_unless_folding());
            }
            Work::Record(Record::Snapshot { .. } | Record::Rollback { .. }, _)
                if !self.has_last_places(Changes::default()) =>
            {
                return Err(self.no_space_unless_folding());
            }
            Work::Record(..) => {}
            Work::Write(write) => {
                (change.promised, change.changes) = self.admit_write(write)?;
                change.records_left = u32::try_from(write.pieces.len()).unwrap_or(u32::MAX); // at most three
                change.data_left = self.write_chunks(key, write, out);
            }
        }
        self.promised += change.promised;
        self.promised_changes = self.promised_changes.and(change.changes);
        Ok(())
    }

    /// The piece of a discard that may begin, what is left of it then, and what the piece may change.
    fn admit_discard(&mut self, all: BlockRange) -> Result<(BlockRange, Option<BlockRange>, Changes), Barred> {
        if self.fresh.range_count() >= MAX_RANGES || !self.has_patches(PATCHES_PER_DISCARD) {
            return Err(self.wait_for_fold());
        }
        let most = self.may_be_discarded(all).ok_or_else(|| self.wait_for_fold())?;
        self.piece_of(all, most).ok_or_else(|| self.no_space_unless_folding())
    }

    /// Patches that say what is lost, and what they may change; no chunks. Only where the copy has no content in its top layer, and of one that
    /// was complete once, or is a clone, nowhere: what it has, below that layer or as zeros, may be all that is left of it.
    fn admit_lost(&mut self, copy: CopyId, at: BlockRange) -> Result<(usize, Changes), Barred> {
        let count = Write::chunks_of(at).len();
        if !self.has_patches(count) {
            return Err(self.wait_for_fold());
        }
        let mut changes = Changes::of_blocks(at);
        changes.leaves += 1; // of the list above K
        if !self.has_places(changes) {
            return Err(self.no_space_unless_folding());
        }
        let is_new = mutant::on("store-lost-below-content")
            || self.catalog.known_good(copy).is_none_or(|known_good| known_good == Stamp::default());
        for (chunk, which) in masks(at) {
            let kept = match self.top_of(copy, chunk) {
                Err(Wait::Load) => return Err(Barred::Waits),
                // It may have something there: that is found out, or given up, by whoever has to.
                Err(Wait::Damaged | Wait::Full) => which,
                Ok(top) if is_new => top.content & which,
                Ok(top) => which & !top.lost,
            };
            if kept != 0 && !mutant::on("store-lost-over-content") {
                let block = Blocks(chunk * CHUNK_BLOCKS + kept.trailing_zeros());
                return Err(Barred::Refused(StoreError::Kept { copy, block }));
            }
        }
        Ok((count, changes))
    }

    /// What the copy's top layer says of a chunk, as it is with all that is durable.
    fn top_of(&mut self, copy: CopyId, chunk: u32) -> Result<Top, Wait> {
        let Some(layer) = self.catalog.copies.get(&copy).map(|state| state.live) else { return Ok(Top::default()) };
        let (mut top, mut left) = (Top::default(), ALL);
        for overlay in std::iter::once(&self.fresh).chain(&self.folding) {
            if let Some(patch) = overlay.patches.get((layer, chunk)) {
                top.content |= patch.written() & left;
                top.lost |= patch.lost() & left;
                left &= !patch.decided();
            }
            if overlay.in_range((layer, chunk)) {
                left = 0;
            }
        }
        if left != 0 {
            let entry = self.tables.entry(layer, chunk)?;
            top.content |= entry.present & left;
            top.lost |= entry.lost & left;
        }
        Ok(top)
    }

    /// Chunks that were set aside for a copy-range, and what it may change.
    fn admit_share(&mut self, copy: CopyId, at: BlockRange, from: Source) -> Result<(u32, Changes), Barred> {
        let changes = Changes::of_blocks(at);
        if !self.has_places(changes) {
            return Err(self.no_space_unless_folding());
        }
        let chunks = self.share_needs(copy, at, from).map_err(|wait| Barred::by(wait, from.copy, at))?;
        if chunks > self.space.available() {
            return Err(self.no_space_unless_folding());
        }
        self.space.reserve(chunks);
        Ok((chunks, changes))
    }

    /// Patches that a write may make, and what it may change; where its data goes is decided.
    fn admit_write(&mut self, write: &mut Write) -> Result<(usize, Changes), Barred> {
        let count = Write::chunks(write.at).count();
        if !self.has_patches(count) {
            return Err(self.wait_for_fold());
        }
        let mut changes = Changes::of_blocks(write.at);
        changes.leaves += 1; // of the list above K
        if !self.has_places(changes) {
            return Err(self.no_space_unless_folding());
        }
        let is_placed = self.place(write).map_err(|wait| Barred::by(wait, write.copy, write.at))?;
        if !is_placed {
            return Err(self.no_space_unless_folding());
        }
        Ok((count, changes))
    }

    /// Chunks of a discard that this generation may still take: all, or some pieces of it; `None` if it is to wait for a fold.
    fn may_be_discarded(&self, at: BlockRange) -> Option<u32> {
        let chunks = Write::chunks_of(at).len();
        let left = self.discards_left();
        if left >= chunks || mutant::on("store-discards-unbounded") {
            return Some(u32::try_from(chunks).unwrap_or(u32::MAX)); // blocks are 32 bits
        }
        u32::try_from(left).ok().filter(|left| *left >= 2 * DISCARD_PIECE)
    }

    /// Chunks that may still be discarded in ranges before the next fold. Where few are in use there is little to look at.
    pub(super) fn discards_left(&self) -> usize {
        let bound = self.fold.discarded_per_fold;
        if self.space.used() <= bound {
            return usize::MAX;
        }
        (bound as usize).saturating_sub(self.fresh.discarded_chunks() + self.promised_changes.discarded)
    }

    /// As much of a discard as there are places for pages for, up to so many chunks, and what is left of it then. Where it is long and
    /// places are few that is a piece, and its fold gives back what the next one needs.
    fn piece_of(&self, at: BlockRange, most: u32) -> Option<(BlockRange, Option<BlockRange>, Changes)> {
        let chunks = Write::chunks_of(at);
        let (from, end) = (chunks.start, chunks.end);
        let all = end - from;
        // What is left is a piece, too.
        let shorter = |count: u32| count.min(all.saturating_sub(DISCARD_PIECE)).max(DISCARD_PIECE);
        let mut count = if most < all { shorter(most) } else { all };
        loop {
            let changes = Changes::of_discarded(from, from + count);
            if self.has_last_places(changes) {
                let cut = Blocks((from + count).saturating_mul(CHUNK_BLOCKS));
                let rest = (count < all).then(|| between(cut, at.end()));
                let piece = if rest.is_some() { between(at.from, cut.0.into()) } else { at };
                return Some((piece, rest, changes));
            }
            if all < 2 * DISCARD_PIECE || count == DISCARD_PIECE || mutant::on("store-discard-uncut") {
                return None;
            }
            count = shorter(count / 2);
        }
    }

    /// A piece of a discard took effect: the next one comes before all that waits.
    pub(super) fn next_piece(&mut self, key: usize, rest: BlockRange) {
        let Some(Pending::Change(change)) = self.pending.get_mut(key) else { return };
        if let Work::Record(Record::Zero { at, .. }, _) = &mut change.work {
            *at = rest;
        }
        change.records_left = 1;
        let (promised, changes) = (std::mem::take(&mut change.promised), std::mem::take(&mut change.changes));
        self.promised -= promised;
        self.promised_changes = self.promised_changes.without(changes);
        self.waiting.push_front(key);
    }

    /// True if so many patches more are within the overlay's bound.
    fn has_patches(&self, count: usize) -> bool {
        self.fresh.patches.len() + self.promised + count <= MAX_PATCHES
    }

    fn wait_for_fold(&mut self) -> Barred {
        self.counters.journal_waits += 1;
        self.fold.want();
        Barred::Waits
    }

    /// No space now. If a fold or something in flight may still give some, wait for it.
    fn no_space_unless_folding(&mut self) -> Barred {
        let quiet = self.fresh.is_empty()
            && self.fold.is_idle()
            && !self.has_work()
            && self.space.returning() == 0
            && !self.tables.pages.are_places_coming()
            && self.returns.is_empty()
            && self.promised == 0;
        if quiet {
            return Barred::Refused(StoreError::NoSpace);
        }
        self.counters.space_waits += 1;
        self.fold.want();
        Barred::Waits
    }

    /// Decide where a write's data goes, and set aside what that needs. False if there is not enough.
    fn place(&mut self, write: &mut Write) -> Result<bool, Wait> {
        let chunks: SmallVec<[(u32, u32, u32); 4]> = Write::chunks(write.at).collect();
        let need = u32::try_from(chunks.len()).unwrap_or(u32::MAX); // at most 18
        if need > self.space.available() {
            return self.place_in_place(write, &chunks);
        }
        let mut pieces = Pieces::new();
        for &(chunk, from, count) in &chunks {
            if count == CHUNK_BLOCKS {
                let Some(fresh) = self.space.take() else { return Ok(false) };
                match pieces.last_mut() {
                    Some(Piece::Chunks(_, taken)) => taken.push(fresh),
                    _ => pieces.push(Piece::Chunks(chunk, vec![fresh])),
                }
                continue;
            }
            self.space.reserve(1);
            let part = BlockRange { from: Blocks(chunk * CHUNK_BLOCKS + from), count: Blocks(count) };
            match pieces.last_mut() {
                Some(Piece::Journal(journaled)) => {
                    journaled.part.count.0 += count;
                    journaled.kept.push((true, false));
                }
                _ => pieces.push(Piece::Journal(Journaled { part, kept: smallvec![(true, false)] })),
            }
        }
        write.pieces = pieces;
        Ok(true)
    }

    /// Little space is left: look which chunks the write needs, and which it has.
    fn place_in_place(&mut self, write: &mut Write, chunks: &[(u32, u32, u32)]) -> Result<bool, Wait> {
        let mut kept: SmallVec<[(bool, bool); 2]> = SmallVec::new();
        for &(chunk, ..) in chunks {
            let key = (write.layer, chunk);
            let said = self.fresh.touches(key) || self.folding.as_ref().is_some_and(|folding| folding.touches(key));
            let own = !said
                && match self.owns(write.layer, chunk) {
                    Err(Wait::Damaged) => false, // it gets a new one
                    own => own?,
                };
            kept.push((!own, own));
        }
        let need = kept.iter().map(|&(reserved, _)| u32::from(reserved)).sum::<u32>();
        if need > self.space.available() {
            return Ok(false);
        }
        self.space.reserve(need);
        for (&(chunk, ..), &(_, claim)) in chunks.iter().zip(&kept) {
            if claim {
                *self.claims.entry((write.layer, chunk)).or_default() += 1;
            }
        }
        write.pieces = smallvec![Piece::Journal(Journaled { part: write.at, kept })];
        Ok(true)
    }

    /// True if the chunk of an entry can be written where it is.
    fn owns(&mut self, layer: LayerId, chunk: u32) -> Result<bool, Wait> {
        let entry = self.tables.entry(layer, chunk)?;
        let record = entry.chunk.map(|physical| self.tables.chunk(physical)).transpose()?;
        Ok(self.own_chunk(&entry, record.as_ref()).is_some())
    }

    /// Write the whole chunks; how many writes are out.
    fn write_chunks(&mut self, key: usize, write: &Write, out: &mut DiskOut<'_>) -> u32 {
        let mut started = 0;
        for piece in &write.pieces {
            let Piece::Chunks(first, taken) = piece else { continue };
            let base = write.offset(first * CHUNK_BLOCKS) as usize * BLOCK;
            let mut from = 0;
            while from < taken.len() {
                let mut to = from + 1;
                while to < taken.len() && taken[to].number() == taken[to - 1].number() + 1 {
                    to += 1;
                }
                let (at, len) = (self.place.geometry.chunk(taken[from]), (to - from) * CHUNK);
                let parts = smallvec![Part { mem: write.data.share(), from: base + from * CHUNK, len }];
                // Durable even where the write need not be: its record must not be found without its data.
                let durable = !mutant::on("store-data-not-durable");
                out(Op::DiskWrite { disk: self.place.disk, tag: tag(Kind::Data, key), at, parts, durable });
                self.outstanding += 1;
                started += 1;
                from = to;
            }
        }
        started
    }

    /// A data write is over.
    pub(super) fn data_done(&mut self, key: usize, out: &mut DiskOut<'_>) {
        let Some(Pending::Change(change)) = self.pending.get_mut(key) else { return };
        change.data_left = change.data_left.saturating_sub(1);
        if change.data_left > 0 {
            return;
        }
        if let Some(errno) = self.failed {
            return self.end_failed(key, errno);
        }
        self.ready.push_back(key);
        self.admit_waiting(out);
    }

    /// Queue a change's records, if the ring has room for them.
    fn append(&mut self, key: usize) -> bool {
        let Some(Pending::Change(change)) = self.pending.get_mut(key) else { return true };
        let durable = |wanted: bool| wanted && !mutant::on("store-journal-not-durable");
        match &change.work {
            Work::Record(record, wanted) => {
                let body = encoded(record, &mut self.body);
                if !self.ring.fits(body.len(), 0) {
                    self.counters.journal_waits += 1;
                    self.fold.want();
                    return false;
                }
                self.ring.append(record_name(key, 0), body, None, &[], durable(*wanted));
            }
            Work::Write(write) => {
                let journaled: u32 = write
                    .pieces
                    .iter()
                    .map(|piece| match piece {
                        Piece::Journal(journaled) => journaled.part.count.0,
                        Piece::Chunks(..) => 0,
                    })
                    .sum();
                // Three records at most.
                if !self.ring.fits(3 * MAX_FIXED + MAX_PER_BLOCK * write.crcs.len(), journaled) {
                    self.counters.journal_waits += 1;
                    self.fold.want();
                    return false;
                }
                for (n, piece) in write.pieces.iter().enumerate() {
                    let (record, from, count) = write.record(piece);
                    let body = encoded(&record, &mut self.body);
                    let name = record_name(key, n);
                    if let Piece::Chunks(..) = piece {
                        self.ring.append(name, body, None, &[], durable(write.durable));
                        continue;
                    }
                    let (at, len) = (from as usize * BLOCK, count as usize * BLOCK);
                    let payload = Part { mem: write.data.share(), from: at, len };
                    let crcs = part(&write.crcs, from, count);
                    self.ring.append(name, body, Some(payload), crcs, durable(write.durable));
                }
            }
        }
        true
    }

    /// A change is over, one way or the other.
    pub(super) fn change_over(&mut self, key: usize, result: Result<StoreDone, StoreError>) {
        let Some(Pending::Change(change)) = self.pending.try_remove(key) else { return };
        self.promised -= change.promised;
        self.promised_changes = self.promised_changes.without(change.changes);
        if let Work::Record(Record::Create { .. }, _) = change.work {
            self.creating -= 1;
        }
        self.finish(change.tag, result);
    }
}

fn between(from: Blocks, end: u64) -> BlockRange {
    let count = end.saturating_sub(u64::from(from.0));
    BlockRange { from, count: Blocks(u32::try_from(count).unwrap_or(u32::MAX)) } // of a range
}

/// A record as the journal has it.
fn encoded<'a>(record: &Record, body: &'a mut Vec<u8>) -> &'a [u8] {
    body.clear();
    record.encode(body);
    body
}

impl Write {
    /// The record of a piece, and which of its blocks it is about.
    fn record(&self, piece: &Piece) -> (Record, u32, u32) {
        let Self { copy, stamped, at, .. } = *self;
        match piece {
            Piece::Journal(Journaled { part, .. }) => {
                (Record::Write { copy, stamped, at, part: *part }, self.offset(part.from.0), part.count.0)
            }
            Piece::Chunks(first, chunks) => {
                let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX) * CHUNK_BLOCKS; // at most 17 chunks
                let from = self.offset(first * CHUNK_BLOCKS);
                let crcs = part(&self.crcs, from, count).iter().copied().collect();
                (Record::Chunks { copy, stamped, at, first: *first, chunks: chunks.clone(), crcs }, from, count)
            }
        }
    }
}
