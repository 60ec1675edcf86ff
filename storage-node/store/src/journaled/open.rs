//! Opens a store: reads what the last checkpoint left, replays the journal behind it, and hands over a store that serves.
//!
//! ```text
//! Superblocks → (which is this disk's, if they are of two) → map of pages, copies, layers, lists, used chunks
//!             → both superblocks again, with a new boot number → journal → (copy-ranges that were cut short are finished) → serving
//! ```
//! Up to the new boot number nothing is written but mirrors of pages, so that a disk that cannot be opened stays what it was.
//! Whatever the disk holds, the outcome is a consistent state or an error. Time and reads are bounded by the ring, the copies and
//! layers, and a bit per chunk.

use super::apply::State;
use super::engine::{JournaledStore, Parts, Place};
use super::entry::ChunkNo;
use super::fold::{decode_copy, decode_held, decode_layer};
use super::layers::{Catalog, CopyState, LayerId};
use super::limits::{DEFAULT_CACHE_BYTES, DISCARDED_PER_FOLD, LAYERS_READ, SUPERBLOCKS, USED_CHUNKS, WORK_PER_FOLD};
use super::overlay::Overlay;
use super::pages::{Pages, Region};
use super::record::Record;
use super::ring::{MAX_UNREADABLE, Ring, RingPlace, Scan, ScanError};
use super::space::Space;
use super::superblock::{self, COPIES, HELD, LAYERS, NoSuperblock, Superblock, USED};
use super::tables::{Tables, Tree, Wait};
use super::{Kind, tag, untag};
use crate::opening::{OpenError, OpenOptions};
use crate::{DiskOut, MAX_HELD, Store};
use conductor_model::{BLOCK, Bytes, CopyId};
use driver::{DiskIndex, Done, Errno, Op, Part, Time};
use memory::{Arena, Class, Filling};
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How the store is to be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// The journal's own disk, if the store was formatted with one.
    pub journal: Option<DiskIndex>,
    /// Memory for metadata pages; at least 1.25 MiB are used.
    pub cache: Bytes,
    /// Entries of layers that are released, merged or shared between two checkpoints.
    pub work_per_fold: u32,
    /// Chunks that are discarded between two checkpoints, where more are in use.
    pub discarded_per_fold: u32,
    /// The disk will be opened again if something of it cannot be read: that ends the opening, and is neither damage nor the journal's end.
    pub patient: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            journal: None,
            cache: Bytes(DEFAULT_CACHE_BYTES),
            work_per_fold: WORK_PER_FOLD,
            discarded_per_fold: DISCARDED_PER_FOLD,
            patient: false,
        }
    }
}

/// Where a store's pages are.
pub(super) fn region(place: &Place) -> Region {
    Region {
        disk: place.disk,
        disk_id: place.identity.disk,
        start: place.geometry.pages_start(),
        places: place.geometry.places(),
        map_at: place.geometry.maps_start(),
    }
}

/// What is being put together.
#[derive(Debug)]
struct Loaded {
    place: Place,
    ring_place: RingPlace,
    superblock: Superblock,
    tables: Tables,
    catalog: Catalog,
    /// Changes above K still to be read: slot, how many.
    held: BTreeMap<u32, (CopyId, u16)>,
    space: Space,
    persisted: Catalog,
    overlay: Overlay,
    next: u64,
}

#[derive(Debug)]
enum Phase {
    Superblock(usize),
    /// Of whose map a page is read: which superblock's, which mirror.
    Whose(usize, usize),
    Copies(Box<Loaded>),
    Layers(Box<Loaded>),
    Held(Box<Loaded>),
    Used(Box<Loaded>),
    /// So many superblocks are written.
    Rewrite(Box<Loaded>, usize),
    Replay(Box<Loaded>, Box<Scan>),
    Settle(Box<JournaledStore>),
    Over,
}

/// A store being opened.
#[derive(Debug)]
pub struct Opening {
    options: OpenOptions,
    tuning: Tuning,
    arena: Arena,
    phase: Phase,
    superblocks: [Result<Superblock, NoSuperblock>; 2],
    /// Which of them may be this disk's: both, unless they are of two stores.
    of_disk: [bool; 2],
    /// What both will say.
    renewed: Option<Superblock>,
    /// A page of a checkpoint could not be written.
    lacks_a_page: bool,
    /// Where the newest good one is, which is written last: without it there may be none, if the power fails.
    newest: usize,
}

const OF_DIFFERENT_STORES: OpenError = OpenError::Damaged("the two superblocks, which are of different stores");

type Outcome = Option<Result<JournaledStore, OpenError>>;

impl Opening {
    /// Begin.
    pub fn start(
        options: OpenOptions,
        tuning: Tuning,
        arena: &Arena,
        out: &mut DiskOut<'_>,
    ) -> Result<Self, OpenError> {
        let need = Bytes((SUPERBLOCKS[1] + 1) * BLOCK as u64);
        if options.size < need {
            return Err(OpenError::Truncated { need, have: options.size });
        }
        let this = Self {
            options,
            tuning,
            arena: arena.clone(),
            phase: Phase::Superblock(0),
            superblocks: [Err(NoSuperblock::Foreign); 2],
            of_disk: [false; 2],
            renewed: None,
            lacks_a_page: false,
            newest: 0,
        };
        this.read_superblock(0, out)?;
        Ok(this)
    }

    /// Its operation is over. `Some` when the store is open, or cannot be.
    pub fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) -> Outcome {
        self.step(now, done, out).unwrap_or_else(|error| Some(Err(error)))
    }

    /// True if a page that is there nowhere else could not be written. Of a mirror that is put right it does not matter.
    pub fn lacks_a_page(&self) -> bool {
        self.lacks_a_page
    }

    fn read_superblock(&self, n: usize, out: &mut DiskOut<'_>) -> Result<(), OpenError> {
        self.read_block(n, SUPERBLOCKS[n] * BLOCK as u64, out)
    }

    fn read_block(&self, n: usize, at: u64, out: &mut DiskOut<'_>) -> Result<(), OpenError> {
        let into = self.arena.take(BLOCK, Class::Client).ok_or(OpenError::Memory)?;
        out(Op::DiskRead { disk: self.options.disk, tag: tag(Kind::Super, n), at, into, from: 0, len: BLOCK });
        Ok(())
    }

    fn write_superblock(&self, n: usize, out: &mut DiskOut<'_>) -> Result<(), OpenError> {
        let mut buffer = self.arena.take(BLOCK, Class::Client).ok_or(OpenError::Memory)?;
        if let Some(superblock) = &self.renewed {
            superblock.encode(&mut buffer);
        }
        let at = SUPERBLOCKS[n] * BLOCK as u64;
        let parts = smallvec![Part { mem: buffer.filled(), from: 0, len: BLOCK }];
        out(Op::DiskWrite { disk: self.options.disk, tag: tag(Kind::Super, n), at, parts, durable: true });
        Ok(())
    }

    fn step(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) -> Result<Outcome, OpenError> {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Superblock(n) => {
                let into = read_of(done)?;
                if let Err(errno) = &into
                    && self.tuning.patient
                {
                    return Err(OpenError::Disk(*errno));
                }
                self.superblocks[n] = into.map_err(NoSuperblock::Unreadable).and_then(|into| Superblock::decode(&into));
                if n == 0 {
                    self.phase = Phase::Superblock(1);
                    self.read_superblock(1, out)?;
                    return Ok(None);
                }
                if let [Ok(first), Ok(second)] = &self.superblocks
                    && superblock::differ([first, second])
                {
                    return self.ask_whose(0, 0, out);
                }
                self.of_disk = [true; 2];
                self.load_state(out)
            }
            Phase::Whose(n, mirror) => {
                let page = read_of(done)?;
                if let Err(errno) = &page
                    && self.tuning.patient
                {
                    return Err(OpenError::Disk(*errno));
                }
                let superblock = self.superblocks[n];
                self.of_disk[n] |= superblock.is_ok_and(|its| page.is_ok_and(|page| its.is_marked_by(&page)));
                match (n, mirror) {
                    (n, 0) if !self.of_disk[n] => self.ask_whose(n, 1, out),
                    (0, _) => self.ask_whose(1, 0, out),
                    _ if self.of_disk[0] == self.of_disk[1] => Err(OF_DIFFERENT_STORES),
                    _ => self.load_state(out),
                }
            }
            Phase::Rewrite(mut state, written) => {
                if let Some((Kind::Pages, _)) = name_of(&done.op).and_then(untag) {
                    state.tables.pages.done(done); // a mirror that was put right
                    self.phase = Phase::Rewrite(state, written);
                    return Ok(None);
                }
                done.result.map_err(OpenError::Disk)?;
                if written == 0 {
                    self.phase = Phase::Rewrite(state, 1);
                    self.write_superblock(self.newest, out)?;
                    return Ok(None);
                }
                let (place, superblock) = (state.ring_place, state.superblock);
                let bound = if self.tuning.patient { 0 } else { MAX_UNREADABLE };
                let scan = Scan::start(place, superblock.tail, superblock.boot, bound, &self.arena, out);
                self.phase = Phase::Replay(state, Box::new(scan.map_err(scan_error)?));
                Ok(None)
            }
            phase @ (Phase::Copies(_) | Phase::Layers(_) | Phase::Held(_) | Phase::Used(_)) => {
                self.phase = phase;
                if let Some(tables) = self.tables() {
                    tables.pages.done(done);
                    if let Some(errno) = tables.pages.failure() {
                        return Err(OpenError::Disk(errno));
                    }
                }
                self.load(out)
            }
            Phase::Replay(mut state, mut scan) => {
                match name_of(&done.op).and_then(untag) {
                    Some((Kind::Pages, _)) => {
                        state.tables.pages.done(done);
                    }
                    _ => scan.done(done, out),
                }
                self.replay(now, state, scan, out)
            }
            Phase::Settle(mut store) => {
                store.done(now, done, out);
                self.lacks_a_page |= store.tables.pages.failure().is_some();
                self.settle(now, store, out)
            }
            Phase::Over => Ok(None),
        }
    }

    /// Read where the first page of a superblock's map should be.
    fn ask_whose(&mut self, n: usize, mirror: usize, out: &mut DiskOut<'_>) -> Result<Outcome, OpenError> {
        let at = self.superblocks[n].map(|superblock| superblock.marks_at()[mirror]);
        match at {
            Ok(at) if at + BLOCK as u64 <= self.options.size.0 => {
                self.phase = Phase::Whose(n, mirror);
                self.read_block(n, at, out)?;
                Ok(None)
            }
            // That one is of a larger disk.
            _ if n == 0 => self.ask_whose(1, 0, out),
            _ if self.of_disk[0] => self.load_state(out),
            _ => Err(OF_DIFFERENT_STORES),
        }
    }

    /// Begin with what the newest superblock says.
    fn load_state(&mut self, out: &mut DiskOut<'_>) -> Result<Outcome, OpenError> {
        let superblock = self.identified()?;
        // A new boot number, durable before the journal is written: two openings never write the same.
        self.renewed =
            Some(Superblock { generation: superblock.generation + 1, boot: superblock.boot + 1, ..superblock });
        let state = self.begin()?;
        self.phase = Phase::Copies(Box::new(state));
        self.load(out)
    }

    fn tables(&mut self) -> Option<&mut Tables> {
        match &mut self.phase {
            Phase::Copies(state) | Phase::Layers(state) | Phase::Held(state) | Phase::Used(state) => {
                Some(&mut state.tables)
            }
            _ => None,
        }
    }

    /// Neither superblock is good. Only where both are plainly none of ours may somebody format.
    fn why_none(&self) -> OpenError {
        let whys = self.superblocks.iter().filter_map(|superblock| superblock.err());
        let errors = whys.map(|why| match why {
            NoSuperblock::Version(version) => (3, OpenError::Version(version)),
            NoSuperblock::Damaged => (2, OpenError::Damaged("both superblocks")),
            NoSuperblock::Unreadable(errno) => (1, OpenError::Disk(errno)),
            NoSuperblock::Foreign => (0, OpenError::NotAStore),
        });
        errors.max_by_key(|(tells, _)| *tells).map_or(OpenError::NotAStore, |(_, error)| error)
    }

    /// The newest good superblock, if it is one that is wanted.
    fn identified(&mut self) -> Result<Superblock, OpenError> {
        let good = (0..2).filter(|n| self.of_disk[*n]).filter_map(|n| Some((n, self.superblocks[n].ok()?)));
        let newest = good.max_by_key(|(_, good)| good.generation);
        let (newest, superblock) = newest.ok_or_else(|| self.why_none())?;
        self.newest = newest;
        let Superblock { identity, geometry, .. } = superblock;
        if self.options.cluster.is_some_and(|cluster| cluster != identity.cluster) {
            return Err(OpenError::OtherCluster(identity.cluster));
        }
        if self.options.node.is_some_and(|node| node != identity.node) {
            return Err(OpenError::OtherNode(identity.node));
        }
        if self.options.size < geometry.size() {
            return Err(OpenError::Truncated { need: geometry.size(), have: self.options.size });
        }
        if geometry.external_journal() != self.tuning.journal.is_some() {
            return Err(OpenError::Journal { elsewhere: geometry.external_journal() });
        }
        Ok(superblock)
    }

    fn begin(&self) -> Result<Loaded, OpenError> {
        let superblock = self.renewed.ok_or(OpenError::NotAStore)?;
        let Superblock { identity, geometry, map, roots, next_layer, .. } = superblock;
        let place = Place { disk: self.options.disk, identity, geometry };
        let ring_place = RingPlace {
            disk: self.tuning.journal.unwrap_or(self.options.disk),
            start: geometry.ring_start(),
            blocks: geometry.ring_blocks(),
            disk_id: identity.disk,
            kind: Kind::Ring as u8,
        };
        let mut pages = Pages::new(region(&place), self.tuning.cache, self.arena.clone(), tag(Kind::Pages, 0));
        pages.load_map(map);
        Ok(Loaded {
            place,
            ring_place,
            superblock,
            tables: Tables::new(pages, roots, geometry.chunks()),
            catalog: Catalog { next_layer: next_layer.max(1), ..Catalog::default() },
            held: BTreeMap::new(),
            space: Space::new(geometry.chunks()),
            persisted: Catalog::default(),
            overlay: Overlay::default(),
            next: 0,
        })
    }

    /// Read copies, layers, lists and the bitmap, one array after the other.
    fn load(&mut self, out: &mut DiskOut<'_>) -> Result<Outcome, OpenError> {
        loop {
            match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Copies(mut state) => {
                    if !waits(&mut state, Loaded::copies, "the copies")? {
                        self.phase = Phase::Copies(state);
                        break;
                    }
                    state.next = 0;
                    self.phase = Phase::Layers(state);
                }
                Phase::Layers(mut state) => {
                    if !waits(&mut state, Loaded::layers, "the layers")? {
                        self.phase = Phase::Layers(state);
                        break;
                    }
                    state.next = 0;
                    self.phase = Phase::Held(state);
                }
                Phase::Held(mut state) => {
                    if !waits(&mut state, Loaded::held, "the lists above K")? {
                        self.phase = Phase::Held(state);
                        break;
                    }
                    state.next = 0;
                    self.phase = Phase::Used(state);
                }
                Phase::Used(mut state) => {
                    let ready = state.tables.pages.ready();
                    if !waits(&mut state, Loaded::used, "the used chunks")? || ready.is_none() {
                        self.phase = Phase::Used(state);
                        break;
                    }
                    if ready.is_some_and(|ready| ready.is_err()) {
                        if state.tables.pages.has_unread() {
                            return Err(OpenError::Disk(Errno::IO));
                        }
                        return Err(OpenError::Damaged("the map of pages"));
                    }
                    state.persisted = state.catalog.clone();
                    self.phase = Phase::Rewrite(state, 0);
                    self.write_superblock(1 - self.newest, out)?;
                    return Ok(None);
                }
                phase => {
                    self.phase = phase;
                    break;
                }
            }
        }
        if let Some(tables) = self.tables() {
            tables.pages.pump(out);
            if tables.pages.starved() && tables.pages.in_flight() == 0 {
                return Err(OpenError::Memory);
            }
        }
        Ok(None)
    }

    fn replay(
        &mut self,
        now: Time,
        mut state: Box<Loaded>,
        mut scan: Box<Scan>,
        out: &mut DiskOut<'_>,
    ) -> Result<Outcome, OpenError> {
        while let Some(record) = scan.next_record() {
            let (chunks, copies) = (state.place.geometry.chunks(), state.place.geometry.max_copies() as usize);
            let change = Record::decode(record.body, chunks).ok_or(OpenError::Damaged("a journal record"))?;
            let Loaded { catalog, overlay, space, tables, .. } = &mut *state;
            let effect = State { catalog, overlay, space }.replay(&change, &record.crcs, record.payload);
            let effect = effect.ok_or(OpenError::Damaged("what a journal record says"))?;
            if catalog.copies.len() > copies || catalog.layers.len() > LAYERS_READ {
                return Err(OpenError::Damaged("the journal, which has copies or layers without end"));
            }
            if let Some(layer) = effect.opened {
                tables.open_layer(layer, Tree::default());
            }
        }
        let Some(end) = scan.end() else {
            self.phase = Phase::Replay(state, scan);
            return Ok(None);
        };
        let end = end.map_err(scan_error)?;
        // The ring takes the memory that the scan gives back.
        drop(scan);
        let Loaded { place, ring_place, superblock, tables, catalog, space, persisted, overlay, .. } = *state;
        let ring = Ring::new(ring_place, end.state, &self.arena).ok_or(OpenError::Memory)?;
        let arena = self.arena.clone();
        let fresh = overlay;
        let Tuning { work_per_fold, discarded_per_fold, .. } = self.tuning;
        let parts = Parts {
            place,
            ring_place,
            arena,
            ring,
            tables,
            catalog,
            persisted,
            fresh,
            space,
            superblock,
            work_per_fold,
            discarded_per_fold,
        };
        let mut store = JournaledStore::recovered(parts);
        store.find_work();
        self.settle(now, Box::new(store), out)
    }

    /// A copy-range that was cut short is finished before anything reads what it is about.
    fn settle(
        &mut self,
        now: Time,
        mut store: Box<JournaledStore>,
        out: &mut DiskOut<'_>,
    ) -> Result<Outcome, OpenError> {
        if !store.unfinished_shares() {
            return Ok(Some(Ok(*store)));
        }
        loop {
            store.fold.want();
            store.end_turn(now, out);
            if let Some(errno) = store.failure() {
                return Err(OpenError::Disk(errno));
            }
            if !store.unfinished_shares() {
                return Ok(Some(Ok(*store)));
            }
            let waits_for_disk = store.outstanding > 0 || store.tables.pages.in_flight() > 0;
            match store.retry.filter(|_| !waits_for_disk) {
                None => break,
                Some(at) if at > now && store.tables.pages.has_unread() => return Err(OpenError::Disk(Errno::IO)),
                // A block that is to be moved, of which the disk cannot read a sector. It is read again at once, as there is nobody who would
                // have to wait; then it goes home as damaged, as in a store that serves. But who will open the disk again may read it yet.
                Some(at) if at > now && store.fold.has_unread() => match self.tuning.patient {
                    true => return Err(OpenError::Disk(Errno::IO)),
                    false => store.fold.read_again(),
                },
                // For memory, of which there is never more.
                Some(at) if at > now => return Err(OpenError::Memory),
                // For its next turn.
                Some(_) => {}
            }
        }
        self.phase = Phase::Settle(store);
        Ok(None)
    }
}

fn name_of(op: &Op) -> Option<u64> {
    match op {
        Op::DiskRead { tag, .. } | Op::DiskWrite { tag, .. } | Op::DiskSync { tag, .. } => Some(*tag),
        _ => None,
    }
}

/// What a superblock's read gave, or why that block cannot be read.
fn read_of(done: Done) -> Result<Result<Filling, Errno>, OpenError> {
    match (done.op, done.result) {
        (Op::DiskRead { into, len, .. }, Ok(read)) if read as usize == len => Ok(Ok(into)),
        (Op::DiskRead { .. }, result) => Ok(Err(result.err().unwrap_or(Errno::IO))),
        _ => Err(OpenError::Disk(Errno::IO)),
    }
}

fn scan_error(error: ScanError) -> OpenError {
    match error {
        ScanError::Disk(errno) => OpenError::Disk(errno),
        ScanError::Memory => OpenError::Memory,
        ScanError::OtherJournal { .. } => {
            OpenError::Damaged("the journal, which is empty, or of an older time than the rest")
        }
        ScanError::Damaged { .. } | ScanError::Mark { .. } | ScanError::NoRoom => OpenError::Damaged("the journal"),
    }
}

/// True if it is all there, false if it waits for a page.
fn waits(
    state: &mut Loaded,
    of: impl FnOnce(&mut Loaded) -> Result<(), Wait>,
    what: &'static str,
) -> Result<bool, OpenError> {
    match of(state) {
        Ok(()) => Ok(true),
        Err(Wait::Load) => Ok(false),
        Err(_) if state.tables.pages.has_unread() => Err(OpenError::Disk(Errno::IO)),
        Err(Wait::Damaged | Wait::Full) => Err(OpenError::Damaged(what)),
    }
}

impl Loaded {
    fn copies(&mut self) -> Result<(), Wait> {
        while let Some(index) = self.tables.next(COPIES, self.next)? {
            let slot = u32::try_from(index).map_err(|_| Wait::Damaged)?;
            if let Some(bytes) = self.tables.get(COPIES, index)?
                && let Some((copy, state, held)) = decode_copy(slot, bytes).ok_or(Wait::Damaged)?
            {
                self.held.insert(slot, (copy, held));
                let beyond = slot >= self.place.geometry.max_copies();
                if self.catalog.copies.insert(copy, Rc::new(state)).is_some() || beyond {
                    return Err(Wait::Damaged);
                }
            }
            self.next = index + 1;
        }
        Ok(())
    }

    fn layers(&mut self) -> Result<(), Wait> {
        while let Some(index) = self.tables.next(LAYERS, self.next)? {
            let id = u32::try_from(index).ok().and_then(LayerId::read).ok_or(Wait::Damaged)?;
            if let Some(bytes) = self.tables.get(LAYERS, index)?
                && let Some((layer, tree)) = decode_layer(bytes).ok_or(Wait::Damaged)?
            {
                let full = self.catalog.layers.len() >= LAYERS_READ;
                // A layer's parent is older: no layer is below itself.
                if layer.parent.is_some_and(|parent| parent >= id) || id.0 >= self.catalog.next_layer || full {
                    return Err(Wait::Damaged);
                }
                self.catalog.layers.insert(id, layer);
                self.tables.open_layer(id, tree);
            }
            self.next = index + 1;
        }
        let live = |state: &Rc<CopyState>| self.catalog.layers.contains(state.live);
        let sound = self.catalog.copies.values().all(live);
        sound.then_some(()).ok_or(Wait::Damaged)
    }

    fn held(&mut self) -> Result<(), Wait> {
        while let Some(entry) = self.held.first_entry() {
            let (slot, (copy, count)) = (*entry.key(), *entry.get());
            while self.next < u64::from(count) {
                let index = u64::from(slot) * MAX_HELD as u64 + self.next;
                let held = self.tables.get(HELD, index)?.and_then(decode_held).ok_or(Wait::Damaged)?;
                if let Some(state) = self.catalog.copy_mut(copy) {
                    state.relist(held);
                }
                self.next += 1;
            }
            self.held.remove(&slot);
            self.next = 0;
        }
        Ok(())
    }

    fn used(&mut self) -> Result<(), Wait> {
        while let Some(index) = self.tables.next(USED, self.next)? {
            let first = u32::try_from(index).ok().and_then(|index| index.checked_mul(USED_CHUNKS));
            let first = first.ok_or(Wait::Damaged)?;
            if let Some(bytes) = self.tables.get(USED, index)? {
                let bits = bytes.iter().zip((first..).step_by(8));
                for (byte, at) in bits.filter(|(byte, _)| **byte != 0) {
                    for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                        let chunk = ChunkNo::at(at + bit).filter(|chunk| self.space.claim(*chunk));
                        chunk.ok_or(Wait::Damaged)?;
                    }
                }
            }
            self.next = index + 1;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").finish_non_exhaustive()
    }
}
