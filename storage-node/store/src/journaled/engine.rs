//! The store while it serves: the seam, and what goes where.

use super::admit::Change;
use super::changed::Listing;
use super::entry::ChunkNo;
use super::fold::Fold;
use super::geometry::Geometry;
use super::layers::{Catalog, LayerId};
use super::limits::{CHUNK_BLOCKS, DISCARD_PIECE, FOLD_IDLE, MAX_PUNCHED, MAX_PUNCHES, RETRY, UNREAD_FOR};
use super::overlay::{Changes, Key, Overlay};
use super::read::{Goal, Look};
use super::ring::{Appended, Mark, Ring, RingPlace};
use super::space::{Eras, Space, Waiting};
use super::superblock::Superblock;
use super::tables::Tables;
use super::{Kind, record_name, tag, untag};
use crate::opening::Identity;
use crate::{Counters, DiskOut, FillMark, Leeway, Store, StoreDone, StoreError, StoreOp, Tag, Usage, View};
use conductor_model::{BLOCK, BlockRange, Blocks, Configuration, CopyId, DiskId, SnapshotId};
use driver::{DiskIndex, Done, Errno, Op, Time};
use memory::Arena;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// Whose disk, and how it is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) disk: DiskIndex,
    pub(super) identity: Identity,
    pub(super) geometry: Geometry,
}

/// An `Extents` that waits for a page.
#[derive(Debug)]
pub(super) struct Asking {
    tag: Tag,
    copy: CopyId,
    layer: LayerId,
    from: u32,
    end: u32,
}

/// Blocks of a chunk that are being copied: which, from which byte of the disk, with which plain checksum.
pub(super) type Copying = SmallVec<[(u32, u64, u32); 4]>;

/// A caller's operation that is not over.
#[derive(Debug)]
pub(super) enum Pending {
    Change(Box<Change>),
    Look(Box<Look>),
    Extents(Box<Asking>),
    Changed(Box<Listing>),
    Flush(Tag),
    /// Waits for the fold to finish the flattening of a copy.
    Flatten(Tag),
    /// Its operation is in the hands of who took it, and comes back or is over before anything else is looked at.
    Taken,
}

impl Pending {
    /// Takes the operation out, and keeps its slot.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Taken)
    }
}

/// The journaled engine, serving one disk. See the module's head.
#[derive(Debug)]
pub struct JournaledStore {
    pub(super) place: Place,
    pub(super) ring_place: RingPlace,
    pub(super) arena: Arena,
    pub(super) ring: Ring,
    pub(super) tables: Tables,
    pub(super) catalog: Catalog,
    /// Counts changes of which layer stands on which, and of entries that went from one to another.
    pub(super) structure: u64,
    pub(super) fresh: Overlay,
    /// The generation that the fold works on.
    pub(super) folding: Option<Overlay>,
    /// Blocks that the fold copies between chunks, and where they are until it commits.
    pub(super) copying: BTreeMap<Key, Copying>,
    /// Chunks that fewer entries share than before, and the era whose reads may still know them from those that are gone.
    pub(super) lingering: BTreeMap<ChunkNo, u64>,
    pub(super) space: Space,
    /// Promises that an entry's chunk stays where it is, by chunk of a layer.
    pub(super) claims: BTreeMap<Key, u32>,
    pub(super) fold: Fold,
    pub(super) superblock: Superblock,
    pub(super) pending: Slab<Pending>,
    /// Changes that wait for room, in order.
    pub(super) waiting: VecDeque<usize>,
    /// Changes whose data is in place and whose records wait for room in the ring.
    pub(super) ready: VecDeque<usize>,
    /// The newest record, as the journal has it; its memory is used again.
    pub(super) body: Vec<u8>,
    /// Patches that changes in flight will make.
    pub(super) promised: usize,
    /// What they may change.
    pub(super) promised_changes: Changes,
    pub(super) creating: u32,
    /// Discards of which a piece is in the journal's queue, and the next one is not.
    pub(super) cut: usize,
    /// Looks that wait for pages.
    pub(super) looking: VecDeque<usize>,
    pages_came: bool,
    /// The copy-range that others pass, and how many folds were over when they began to.
    pub(super) passed: Option<(usize, u64)>,
    /// Lists of changes that go on in the next turn.
    pub(super) listing: VecDeque<usize>,
    pub(super) eras: Eras,
    /// Where the tail may go when older reads are over.
    pub(super) trims: Waiting<Mark>,
    /// Chunks that come back then; true if they were discarded, and are punched.
    pub(super) returns: Waiting<Vec<(ChunkNo, bool)>>,
    punches: VecDeque<(ChunkNo, u32)>,
    punching: Slab<(ChunkNo, u32)>,
    finished: VecDeque<(Tag, Result<StoreDone, StoreError>)>,
    pub(super) failed: Option<Errno>,
    pub(super) outstanding: usize,
    pub(super) retry: Option<Time>,
    /// When pages that could not be read are read again.
    pub(super) unread_until: Time,
    /// When something was last asked for.
    pub(super) last_change: Option<Time>,
    last_read: Option<Time>,
    pub(super) counters: Counters,
}

/// All that opening puts together.
pub(super) struct Parts {
    pub(super) place: Place,
    pub(super) ring_place: RingPlace,
    pub(super) arena: Arena,
    pub(super) ring: Ring,
    pub(super) tables: Tables,
    pub(super) catalog: Catalog,
    pub(super) persisted: Catalog,
    pub(super) fresh: Overlay,
    pub(super) space: Space,
    pub(super) superblock: Superblock,
    pub(super) work_per_fold: u32,
    pub(super) discarded_per_fold: u32,
}

impl JournaledStore {
    pub(super) fn recovered(parts: Parts) -> Self {
        let Parts { place, ring_place, arena, ring, tables, catalog, persisted, fresh, space, superblock, .. } = parts;
        let fold = Fold::new(persisted, ring.mark(), (parts.work_per_fold, parts.discarded_per_fold));
        Self {
            place,
            ring_place,
            arena,
            ring,
            tables,
            catalog,
            structure: 0,
            fresh,
            folding: None,
            space,
            copying: BTreeMap::new(),
            lingering: BTreeMap::new(),
            claims: BTreeMap::new(),
            fold,
            superblock,
            pending: Slab::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            body: Vec::new(),
            promised: 0,
            promised_changes: Changes::default(),
            creating: 0,
            cut: 0,
            looking: VecDeque::new(),
            pages_came: false,
            passed: None,
            listing: VecDeque::new(),
            eras: Eras::default(),
            trims: Waiting::default(),
            returns: Waiting::default(),
            punches: VecDeque::new(),
            punching: Slab::new(),
            finished: VecDeque::new(),
            failed: None,
            outstanding: 0,
            retry: None,
            unread_until: Time::default(),
            last_change: None,
            last_read: None,
            counters: Counters::default(),
        }
    }

    /// Whose disk it is.
    pub fn disk_id(&self) -> DiskId {
        self.place.identity.disk
    }
    /// What the superblock says.
    pub fn identity(&self) -> Identity {
        self.place.identity
    }
    /// How the disk is divided.
    pub fn geometry(&self) -> Geometry {
        self.place.geometry
    }
    /// What the disk failed with, if it did.
    pub fn failure(&self) -> Option<Errno> {
        self.failed
    }
    /// True if the journal holds nothing that is not home, and no background work is left. Operations may be under way: `idle`. For tests.
    pub fn is_all_home(&self) -> bool {
        self.fresh.is_empty() && self.fold.is_idle() && !self.has_work()
    }

    pub(super) fn finish(&mut self, tag: Tag, result: Result<StoreDone, StoreError>) {
        self.finished.push_back((tag, result));
    }

    pub(super) fn is_near_full(&self) -> bool {
        let total = self.space.total();
        total - total.min(self.space.used()) < total / 16 + super::limits::SPARE_CHUNKS
    }

    /// The disk failed: nothing is written any more, everything ends with the error as soon as it is back.
    pub(super) fn fail(&mut self, errno: Errno) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(errno);
        self.waiting.clear();
        self.ready.clear();
        self.looking.clear();
        self.listing.clear();
        self.fold.give_up();
        let keys: Vec<usize> = self.pending.iter().map(|(key, _)| key).collect();
        for key in keys {
            match self.pending.get(key) {
                // What the disk still works on comes back first.
                Some(Pending::Change(change)) if change.data_left > 0 => {}
                Some(Pending::Look(look)) if look.is_out() => {}
                Some(_) => self.end_failed(key, errno),
                None => {}
            }
        }
    }

    /// End whatever it is with the disk's error.
    pub(super) fn end_failed(&mut self, key: usize, errno: Errno) {
        let tag = match self.pending.try_remove(key) {
            Some(Pending::Change(change)) => change.tag,
            Some(Pending::Look(look)) => look.tag,
            Some(Pending::Extents(asking)) => asking.tag,
            Some(Pending::Changed(listing)) => listing.tag,
            Some(Pending::Flush(tag) | Pending::Flatten(tag)) => tag,
            Some(Pending::Taken) | None => return,
        };
        self.finish(tag, Err(StoreError::Disk(errno)));
    }

    /// Go on with an `Extents`.
    fn ask(&mut self, key: usize) {
        let Some(Pending::Extents(asking)) = self.pending.get(key) else { return };
        let Asking { tag, copy, layer, from, end } = **asking;
        let Some((data, next)) = self.extents(layer, from, end) else { return self.looking.push_back(key) };
        self.pending.remove(key);
        let here = self.catalog.copies.contains_key(&copy);
        let done = StoreDone::Extents { data, next: Blocks(next) };
        self.finish(tag, here.then_some(done).ok_or(StoreError::NoSuchCopy(copy)));
    }

    /// Pages came: what waited for them goes on.
    pub(super) fn look_again(&mut self, out: &mut DiskOut<'_>) {
        for key in std::mem::take(&mut self.looking) {
            match self.pending.get(key) {
                Some(Pending::Look(_)) => self.look(key, out),
                Some(Pending::Extents(_)) => self.ask(key),
                Some(Pending::Changed(_)) => self.list_on(key),
                _ => {}
            }
        }
    }

    fn start_look(&mut self, tag: Tag, copy: CopyId, view: View, at: BlockRange, goal: Goal, out: &mut DiskOut<'_>) {
        let layer = match self.layer_of(copy, view) {
            Ok(layer) => layer,
            Err(error) => return self.finish(tag, Err(error)),
        };
        let era = self.eras.begin();
        let look = Look::new((tag, copy, at, layer), era, goal);
        let key = self.pending.insert(Pending::Look(Box::new(look)));
        self.look(key, out);
    }

    /// Records that are durable now take effect, in order.
    fn take_finished(&mut self, now: Time) {
        while let Some(Appended { key: name, payload }) = self.ring.next_finished() {
            self.appended(now, name, payload);
        }
        self.find_work();
    }

    /// What no read needs any more comes back.
    fn give_back(&mut self, out: &mut DiskOut<'_>) {
        while let Some(mark) = self.trims.pop(&self.eras) {
            self.ring.trim(mark);
        }
        while let Some(mut chunks) = self.returns.pop(&self.eras) {
            chunks.sort_unstable();
            for (chunk, punch) in chunks {
                if !punch {
                    self.space.freed(chunk);
                    continue;
                }
                match self.punches.back_mut() {
                    Some((first, count)) if first.number() + *count == chunk.number() && *count < MAX_PUNCHED => {
                        *count += 1
                    }
                    _ => self.punches.push_back((chunk, 1)),
                }
            }
        }
        while self.punching.len() < MAX_PUNCHES
            && let Some((first, count)) = self.punches.pop_front()
        {
            let key = self.punching.insert((first, count));
            self.outstanding += 1;
            let (at, len) = (self.place.geometry.chunk(first), u64::from(count) * super::limits::CHUNK as u64);
            out(Op::DiskPunch { disk: self.place.disk, tag: tag(Kind::Punch, key), at, len });
        }
    }

    fn punched(&mut self, key: usize) {
        let Some((first, count)) = self.punching.try_remove(key) else { return };
        for index in first.index()..first.index() + count {
            if let Some(chunk) = ChunkNo::at(index) {
                self.space.freed(chunk);
            }
        }
    }

    /// True if the fold's idle time has come.
    pub(super) fn is_rested(&self, now: Time) -> bool {
        self.last_change.is_none_or(|last| now >= last + FOLD_IDLE)
    }

    /// True if nobody reads either.
    pub(super) fn is_alone(&self, now: Time) -> bool {
        self.is_rested(now) && self.last_read.is_none_or(|last| now >= last + FOLD_IDLE)
    }
}

impl Store for JournaledStore {
    fn submit(&mut self, now: Time, tag: Tag, op: StoreOp, out: &mut DiskOut<'_>) {
        if let Err(error) = self.check(&op) {
            return self.finish(tag, Err(error));
        }
        match op {
            StoreOp::Read { copy, view, at, into } => {
                self.last_read = Some(now);
                self.start_look(tag, copy, view, at, Goal::Read(Some(into)), out);
            }
            StoreOp::Repair { copy, view, at, data, crcs } => match self.arena.take(BLOCK, memory::Class::Settle) {
                Some(scratch) => self.start_look(tag, copy, view, at, Goal::repair(data, crcs, scratch), out),
                None => self.finish(tag, Err(StoreError::Busy)),
            },
            StoreOp::Extents { copy, view, at } => {
                let layer = match self.layer_of(copy, view) {
                    Ok(layer) => layer,
                    Err(error) => return self.finish(tag, Err(error)),
                };
                let size = self.catalog.layers.get(layer).map_or(0, |layer| layer.blocks);
                let end = u32::try_from(at.end()).unwrap_or(u32::MAX).min(size);
                let from = at.from.0.min(end);
                let asking = Asking { tag, copy, layer, from, end };
                let key = self.pending.insert(Pending::Extents(Box::new(asking)));
                self.ask(key);
            }
            StoreOp::Changed { copy, view, above, from } => {
                let layer = match self.layer_of(copy, view) {
                    Ok(layer) => layer,
                    Err(error) => return self.finish(tag, Err(error)),
                };
                let size = self.catalog.layers.get(layer).map_or(0, |layer| layer.blocks);
                // The end lies within a chunk, perhaps.
                let next = if from.0 < size { from.0 / CHUNK_BLOCKS } else { size.div_ceil(CHUNK_BLOCKS) };
                let listing = Listing::new(tag, copy, view, above, next);
                let key = self.pending.insert(Pending::Changed(Box::new(listing)));
                self.list_on(key);
            }
            StoreOp::Above { copy } => {
                let state = self.catalog.copies.get(&copy).ok_or(StoreError::NoSuchCopy(copy));
                let known_good = self.catalog.known_good(copy).unwrap_or_default();
                let above = state.map(|s| StoreDone::Above { known_good, held: s.held.clone() });
                self.finish(tag, above);
            }
            StoreOp::KnownGood { copy, stamp } => {
                self.catalog.advance(copy, stamp);
                self.finish(tag, Ok(StoreDone::Done));
            }
            StoreOp::Flush { .. } => {
                let key = self.pending.insert(Pending::Flush(tag));
                self.ring.barrier(record_name(key, 0));
            }
            StoreOp::Flatten { copy } => {
                self.last_change = Some(now);
                self.start_flatten(tag, copy);
            }
            op => {
                self.last_change = Some(now);
                self.start_change(tag, op, out);
            }
        }
    }

    fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) {
        let (disk, name, expected) = match &done.op {
            Op::DiskRead { disk, tag, len, .. } => (*disk, *tag, *len),
            Op::DiskWrite { disk, tag, parts, .. } => (*disk, *tag, parts.iter().map(|part| part.len).sum()),
            Op::DiskSync { disk, tag } | Op::DiskPunch { disk, tag, .. } => (*disk, *tag, 0),
            _ => (self.place.disk, u64::MAX, 0),
        };
        let ours = disk == self.place.disk || disk == self.ring_place.disk;
        let Some((kind, key)) = untag(name).filter(|_| ours) else {
            self.counters.strays += 1;
            return;
        };
        match kind {
            Kind::Ring => {
                if let Err(errno) = self.ring.done(done) {
                    self.counters.disk_errors += 1;
                    return self.fail(errno);
                }
                return self.take_finished(now);
            }
            Kind::Pages => {
                let again = self.tables.pages.done(done);
                if let Some(errno) = self.tables.pages.failure() {
                    self.counters.disk_errors += 1;
                    return self.fail(errno);
                }
                // Once for all that come in this turn: who waits for another looks in vain.
                self.pages_came |= again;
                return;
            }
            _ => {}
        }
        if self.outstanding == 0 {
            self.counters.strays += 1;
            return;
        }
        self.outstanding -= 1;
        let failure = match done.result {
            Ok(bytes) if expected == 0 || bytes as usize == expected => None,
            Ok(_) => Some(Errno::IO),
            Err(errno) => Some(errno),
        };
        // A punch that cannot be done gives no space back below; that is all.
        let harmless = matches!(kind, Kind::Read | Kind::Fetch | Kind::Punch);
        self.counters.disk_errors += u64::from(failure.is_some() && kind != Kind::Punch);
        if let (Some(errno), false) = (failure, harmless) {
            self.fail(errno);
        }
        match (kind, done.op) {
            (Kind::Data, _) => self.data_done(key, out),
            (Kind::Read, Op::DiskRead { into, .. }) => self.read_done(key, into, failure, out),
            (Kind::Repair, Op::DiskWrite { disk, at, .. }) => self.repaired(key, (disk, at), out),
            (Kind::Fetch, Op::DiskRead { into, .. }) => self.fetched(key, into, failure),
            (Kind::Store, op) => self.stored(key, op),
            (Kind::Sync, _) => self.fold_synced(),
            (Kind::Super, op) => self.superblock_written(op),
            (Kind::Punch, _) => self.punched(key),
            _ => {}
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut DiskOut<'_>) {
        if self.failed.is_some() {
            return;
        }
        self.retry = None;
        if self.unread_until <= now {
            self.unread_until = now + UNREAD_FOR;
            self.tables.pages.forget_unread();
            self.fold.read_again();
        }
        self.list_turn(now);
        if std::mem::take(&mut self.pages_came) {
            self.look_again(out);
        }
        loop {
            self.give_back(out);
            self.admit_waiting(out);
            let before = self.counters.checkpoints;
            self.fold_turn(now, out);
            if self.failed.is_some() {
                return;
            }
            // A commit makes room for what waits, and what waits may want the next fold.
            if before == self.counters.checkpoints {
                break;
            }
        }
        self.ring.end_turn(now, out);
        let waiting = self.waiting.len();
        self.take_finished(now);
        if self.waiting.len() > waiting {
            self.retry.get_or_insert(now); // the next piece of a discard
        }
        self.tables.pages.pump(out);
        if self.tables.pages.starved() {
            self.retry.get_or_insert(now + RETRY);
        }
    }

    fn next_completion(&mut self) -> Option<(Tag, Result<StoreDone, StoreError>)> {
        self.finished.pop_front()
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.failed.is_some() {
            return None;
        }
        let rests = self.fold.is_early() || (!self.fresh.is_empty() && self.fold.is_idle());
        let idle = rests.then(|| self.last_change.map_or(Time::default(), |last| last + FOLD_IDLE));
        // What an older life left to be done waits for nobody.
        let work = (self.fold.is_idle() && self.has_work()).then(Time::default);
        [self.retry, self.ring.next_deadline(), idle, work].into_iter().flatten().min()
    }

    fn patrol(&mut self, looked_through: Blocks) {
        self.tables.pages.patrol(looked_through.0);
        if self.tables.pages.is_map_old() {
            self.fold.renew();
        }
    }

    fn idle(&self) -> bool {
        let quiet = self.pending.is_empty() && self.finished.is_empty() && self.outstanding == 0 && !self.pages_came;
        quiet
            && self.tables.pages.in_flight() == 0
            && (self.failed.is_some() || (self.ring.idle() && self.fold.rests() && self.waiting.is_empty()))
    }

    fn usage(&self) -> Usage {
        let capacity = self.place.geometry.capacity();
        let used = match self.is_short_of_places() {
            true => capacity,
            false => (self.space.used().saturating_mul(CHUNK_BLOCKS)).min(capacity),
        };
        Usage {
            capacity: Blocks(capacity),
            used: Blocks(used),
            copies: u32::try_from(self.catalog.copies.len()).unwrap_or(u32::MAX),
            max_copies: self.place.geometry.max_copies(),
            near_full: self.is_near_full(),
        }
    }

    fn leeway(&self) -> Leeway {
        Leeway { pages: self.places_left(), discarding: self.discards_left() < 2 * DISCARD_PIECE as usize }
    }

    fn copies(&self) -> Vec<(CopyId, Configuration)> {
        self.catalog.copies.iter().map(|(id, copy)| (*id, copy.config.clone())).collect()
    }

    fn snapshots(&self, copy: CopyId) -> Vec<SnapshotId> {
        self.catalog.snapshots(copy)
    }

    fn fill_mark(&self, copy: CopyId) -> FillMark {
        self.catalog.copies.get(&copy).map_or(FillMark::default(), |state| state.mark)
    }

    fn used_by(&self, copy: CopyId) -> Blocks {
        let own = self.catalog.layers.of(copy);
        let chunks: u32 = own.filter_map(|(id, _)| self.tables.trees.get(&id)).map(|tree| tree.chunks).sum();
        Blocks(chunks.saturating_mul(CHUNK_BLOCKS))
    }

    fn counters(&self) -> Counters {
        let ring = self.ring.counters();
        let pages = self.tables.pages.counters();
        Counters {
            groups: ring.groups,
            records: ring.records,
            healed_pages: pages.healed,
            unhealed_pages: pages.unhealed,
            patrolled_pages: pages.patrolled,
            damaged_pages: pages.damaged,
            lost_pages: pages.lost,
            ..self.counters
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}
