//! Stores without a node: what `trine store check | compare | dump` stand on.
//!
//! [`inspect`] reads, and writes nothing. [`Offline`], which compares, opens disks as a node does: each under its exclusive
//! lock, each recovered to what a node would find, which writes superblocks and may fold the journal. Every block comes through the store's
//! verified reads, so that "equal" is said of content that matches its checksums, and a damaged block is found where it is.
//!
//! One thread, one ring, all disks side by side; memory is bounded by one read per disk.

mod inspect;

pub use inspect::{Journals, inspect};
pub use node_store::journaled::check;
pub use node_store::{Held, HeldKind, View};

use crate::claim::{claim, claim_journal};
use crate::head::head;
use crate::limits::DISK_IN_USE_OFFLINE;
use conductor_model::{BLOCK, BlockRange, Blocks, Configuration, CopyId, ShardId, SnapshotId};
use driver::{DiskIndex, Done, Machine, Outbox, Time};
use memory::{Arena, ArenaError, ArenaOptions, Backing, Class, Filling, Shares};
use node_store::journaled::{JournaledStore, Opening, Tuning};
use node_store::{MAX_REQUEST_BLOCKS, OpenError, OpenOptions, Store, StoreDone, StoreError, StoreOp, Tag};
use reactor::{DiskOptions, Limits, MailRx, OwnRing, Reactor, ReactorError, Uring, clock, mailbox};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Disks at a time: more than a person types, and 512 MiB of memory.
pub const MAX_DISKS: usize = 64;
/// Memory per disk: one read of 1 MiB + 64 KiB, in one piece beside the store's own buffers, and what the store moves home meanwhile.
const BYTES_PER_DISK: usize = 8 << 20;

/// Why the disks cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// More than [`MAX_DISKS`], or none.
    #[error("name between 1 and {MAX_DISKS} disks")]
    HowMany,
    /// A disk cannot be opened (in use, above all), or the kernel refused.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// No memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// No memory for a read, although nothing is under way that would give some back.
    #[error("{}: no memory for a read", .0.display())]
    Memory(PathBuf),
    /// What is on the disk is no store, or a damaged one.
    #[error("{}: {error}", .path.display())]
    Open {
        /// Which disk.
        path: PathBuf,
        /// Why.
        error: OpenError,
    },
    /// The journal that was named cannot be the store's.
    #[error("{}: {}: {why}", .disk.display(), .journal.display())]
    Journal {
        /// Which disk.
        disk: PathBuf,
        /// What was named.
        journal: PathBuf,
        /// Why.
        why: String,
    },
    /// The disk failed while it was read.
    #[error("{}: {error}", .path.display())]
    Store {
        /// Which disk.
        path: PathBuf,
        /// Why.
        error: StoreError,
    },
}

impl OfflineError {
    /// Somebody has the disk.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Reactor(ReactorError::DiskInUse { .. }))
    }

    /// There is no such disk.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Reactor(ReactorError::OpenDisk { error, .. }) if error.kind() == ErrorKind::NotFound)
    }

    /// Something else was to be named.
    pub fn is_of_usage(&self) -> bool {
        matches!(self, Self::HowMany | Self::Open { error: OpenError::Journal { .. }, .. })
    }
}

/// Where copies of a shard part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The block's content differs between these two disks.
    Content {
        /// Which block.
        block: Blocks,
        /// A disk, as given to [`Offline::open`], and one that differs from it.
        disks: (usize, usize),
    },
    /// The block is damaged on this disk.
    Damaged {
        /// Which block.
        block: Blocks,
        /// Which disk.
        disk: usize,
    },
}

/// The copies of one shard, compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compared {
    /// Which shard.
    pub shard: ShardId,
    /// Which content of it.
    pub view: View,
    /// The disks with a copy and the copies.
    pub copies: Vec<(usize, CopyId)>,
    /// Copies that the newest configuration among them names.
    pub members: usize,
    /// Blocks compared: those that hold data on any of the disks. All others read as zeros on each.
    pub blocks: u64,
    /// Blocks that are not the same and whole on every disk.
    pub different: u64,
    /// The first of them.
    pub first: Option<Difference>,
}

impl Compared {
    /// True if no block differs.
    pub fn is_equal(&self) -> bool {
        self.different == 0
    }
}

/// A copy that was found: on which of the disks, its name, what it joined.
type FoundCopy = (usize, CopyId, Configuration);

/// Open disks.
pub struct Offline {
    reactor: Reactor<Stores, OwnRing>,
    arena: Arena,
    paths: Vec<PathBuf>,
}

impl std::fmt::Debug for Offline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "offline {:?}", self.paths)
    }
}

impl Offline {
    /// Opens all of them, or none; with `journals` for those that have theirs elsewhere.
    pub fn open(paths: &[PathBuf], journals: &mut Journals<'_>) -> Result<Self, OfflineError> {
        if paths.is_empty() || paths.len() > MAX_DISKS {
            return Err(OfflineError::HowMany);
        }
        let arena = Arena::new(ArenaOptions {
            bytes: paths.len() * BYTES_PER_DISK,
            backing: Backing::Heap,
            shares: Shares::only_client(),
        })?;
        let limits = Limits { ops: 1024, streams: 1, submissions: 128, ..Limits::default() };
        let mut driver = Uring::new(OwnRing::new(&limits)?, limits)?;
        let mut openings = Vec::new();
        for path in paths {
            // A file system without O_DIRECT is no reason not to look at what is on it.
            let disk = claim(&mut driver, path, DiskOptions { allow_buffered: true }, DISK_IN_USE_OFFLINE)?;
            let size = conductor_model::Bytes(driver.disk_info(disk).map_or(0, |info| info.bytes));
            let head = head(path).map_err(|error| ReactorError::OpenDisk { path: path.clone(), error })?;
            let journal = journals.of(path, &head)?;
            let journal = journal.map(|path| claim_journal(&mut driver, path, DISK_IN_USE_OFFLINE)).transpose()?;
            openings.push((path, OpenOptions { disk, size, cluster: None, node: None }, journal));
        }
        let mut disks = Vec::new();
        for (path, options, journal) in openings {
            let failed = |error| OfflineError::Open { path: path.clone(), error };
            let tuning = Tuning { journal, ..Tuning::default() };
            let opening = Opening::start(options, tuning, &arena, &mut |op| driver.submit(op)).map_err(failed)?;
            disks.push(Disk { index: options.disk, journal, state: State::Opening(Box::new(opening)) });
        }
        let (_, mail): (_, MailRx<Infallible>) = mailbox(1)?;
        let machine = Stores { disks, done: BTreeMap::new() };
        let mut this = Self { reactor: Reactor::start(machine, driver, mail)?, arena, paths: paths.to_vec() };
        while this.reactor.machine().disks.iter().any(|disk| matches!(disk.state, State::Opening(_))) {
            this.reactor.turn()?;
        }
        for n in 0..this.paths.len() {
            if let State::Failed(error) = &this.reactor.machine().disks[n].state {
                let error = error.clone();
                return Err(OfflineError::Open { path: this.paths[n].clone(), error });
            }
        }
        Ok(this)
    }

    /// Which disks.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Compares the copies of each shard that is on more than one of the disks, in the order of shards: what is written to, and then
    /// each snapshot that more than one of them has, oldest first. `progress` is told the blocks done.
    pub fn compare(&mut self, progress: &mut dyn FnMut(u64)) -> Result<Vec<Compared>, OfflineError> {
        let mut shards: BTreeMap<ShardId, Vec<FoundCopy>> = BTreeMap::new();
        for disk in 0..self.paths.len() {
            for (copy, config) in self.store(disk)?.copies() {
                shards.entry(config.shard).or_default().push((disk, copy, config));
            }
        }
        shards.retain(|_, copies| copies.len() > 1);
        let mut compared = Vec::new();
        for (shard, copies) in shards {
            compared.push(self.compare_view(shard, View::Live, &copies, progress)?);
            for (snapshot, copies) in self.common_snapshots(&copies)? {
                compared.push(self.compare_view(shard, View::Snapshot(snapshot), &copies, progress)?);
            }
        }
        Ok(compared)
    }

    /// The snapshots that several of these copies have, and which of them.
    fn common_snapshots(&mut self, copies: &[FoundCopy]) -> Result<Vec<(SnapshotId, Vec<FoundCopy>)>, OfflineError> {
        let mut common: Vec<(SnapshotId, Vec<FoundCopy>)> = Vec::new();
        for found in copies {
            for snapshot in self.store(found.0)?.snapshots(found.1) {
                match common.iter_mut().find(|(name, _)| *name == snapshot) {
                    Some((_, copies)) => copies.push(found.clone()),
                    None => common.push((snapshot, vec![found.clone()])),
                }
            }
        }
        common.retain(|(_, copies)| copies.len() > 1);
        Ok(common)
    }

    fn compare_view(
        &mut self,
        shard: ShardId,
        view: View,
        found: &[FoundCopy],
        progress: &mut dyn FnMut(u64),
    ) -> Result<Compared, OfflineError> {
        let copies: Vec<(usize, CopyId)> = found.iter().map(|(disk, copy, _)| (*disk, *copy)).collect();
        let newest = found.iter().map(|(.., config)| config).max_by_key(|config| config.epoch);
        let size = found.iter().map(|(.., config)| config.size.0 / BLOCK as u64).min().unwrap_or(0);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let members = newest.map_or(0, |config| config.members.len());
        let mut compared = Compared { shard, view, copies, members, blocks: 0, different: 0, first: None };
        let mut from = Blocks(0);
        while let Some(mut at) = self.next_held_by_any(&compared.copies, view, from)? {
            // Copies may differ in size while a volume grows: what only the larger ones have is not compared.
            if at.from.0 >= size {
                break;
            }
            at.count.0 = at.count.0.min(size - at.from.0);
            let read = self.read(&compared.copies, view, at)?;
            let damaged = read.iter().zip(&compared.copies).filter_map(|(outcome, (disk, _))| match outcome {
                Err(Damaged(block)) => Some((*block, *disk)),
                Ok(_) => None,
            });
            match damaged.min() {
                Some((block, disk)) if block == at.from => {
                    compared.note(Difference::Damaged { block, disk });
                    at.count = Blocks(1);
                }
                // Up to the damaged block all can be compared; the loop comes back to it.
                Some((block, _)) => {
                    at.count = Blocks(block.0 - at.from.0);
                    let read = self.read(&compared.copies, view, at)?;
                    compared.note_all(at, &read);
                }
                None => compared.note_all(at, &read),
            }
            compared.blocks += u64::from(at.count.0);
            progress(u64::from(at.count.0));
            from = Blocks(at.from.0 + at.count.0);
        }
        Ok(compared)
    }

    /// The first run of a copy at or after `from` that may hold data: one read's worth at most.
    fn next_held(
        &mut self,
        disk: usize,
        copy: CopyId,
        view: View,
        from: Blocks,
    ) -> Result<Option<BlockRange>, OfflineError> {
        let mut from = from;
        loop {
            let op = StoreOp::Extents { copy, view, at: BlockRange { from, count: Blocks(u32::MAX - from.0) } };
            let (data, next) = match self.ask(vec![(disk, op)])?.pop() {
                Some(Ok(StoreDone::Extents { data, next })) => (data, next),
                Some(Err(error)) => return Err(self.failed(disk, error)),
                _ => return Ok(None),
            };
            if let Some(first) = data.first() {
                let count = Blocks(first.count.0.min(MAX_REQUEST_BLOCKS));
                return Ok(Some(BlockRange { from: first.from, count }));
            }
            if next <= from {
                return Ok(None);
            }
            from = next;
        }
    }

    /// The first run at or after `from` that holds data on any of the disks.
    fn next_held_by_any(
        &mut self,
        copies: &[(usize, CopyId)],
        view: View,
        from: Blocks,
    ) -> Result<Option<BlockRange>, OfflineError> {
        let mut first: Option<BlockRange> = None;
        for &(disk, copy) in copies {
            let next = self.next_held(disk, copy, view, from)?;
            first = match (first, next) {
                (Some(a), Some(b)) => Some(if (b.from, a.count) < (a.from, b.count) { b } else { a }),
                (a, b) => a.or(b),
            };
        }
        Ok(first)
    }

    /// The same range of several copies.
    fn read(&mut self, copies: &[(usize, CopyId)], view: View, at: BlockRange) -> Result<Vec<Outcome>, OfflineError> {
        let len = at.count.0 as usize * BLOCK;
        debug_assert!(at.count.0 <= MAX_REQUEST_BLOCKS);
        let mut ops = Vec::new();
        for &(disk, copy) in copies {
            let into = self.memory(disk, len)?;
            ops.push((disk, StoreOp::Read { copy, view, at, into }));
        }
        let outcomes = self.ask(ops)?;
        outcomes
            .into_iter()
            .zip(copies)
            .map(|(result, &(disk, _))| match result {
                Ok(StoreDone::Read(bytes, _)) => Ok(Ok(bytes)),
                Err(StoreError::Corrupt { block, .. }) => Ok(Err(Damaged(block))),
                Err(error) => Err(self.failed(disk, error)),
                Ok(other) => unreachable!("a read ends as a read, not as {other:?}"),
            })
            .collect()
    }

    /// Memory for a read. Stores move home what is in their journals, with memory of the same arena, and give it back.
    fn memory(&mut self, disk: usize, len: usize) -> Result<Filling, OfflineError> {
        loop {
            if let Some(into) = self.arena.take(len, Class::Client) {
                return Ok(into);
            }
            if self.reactor.driver().outstanding() == 0 {
                return Err(OfflineError::Memory(self.paths[disk].clone()));
            }
            self.reactor.turn()?;
        }
    }

    fn failed(&self, disk: usize, error: StoreError) -> OfflineError {
        OfflineError::Store { path: self.paths[disk].clone(), error }
    }

    fn store(&mut self, disk: usize) -> Result<&mut JournaledStore, OfflineError> {
        match self.reactor.machine().disks.get_mut(disk).map(|disk| &mut disk.state) {
            Some(State::Open(store)) => Ok(store),
            _ => Err(OfflineError::HowMany),
        }
    }

    /// Starts all of them and waits for all: their outcomes in the same order.
    fn ask(&mut self, ops: Vec<(usize, StoreOp)>) -> Result<Vec<Result<StoreDone, StoreError>>, OfflineError> {
        let (now, count) = (clock::now(), ops.len());
        for (n, (disk, op)) in ops.into_iter().enumerate() {
            let mut started = Vec::new();
            let store = self.store(disk)?;
            store.submit(now, Tag(n as u64), op, &mut |op| started.push(op));
            store.end_turn(now, &mut |op| started.push(op));
            started.into_iter().for_each(|op| self.reactor.driver().submit(op));
        }
        self.reactor.machine().collect();
        while self.reactor.machine().done.len() < count {
            self.reactor.turn()?;
        }
        Ok(std::mem::take(&mut self.reactor.machine().done).into_values().collect())
    }
}

/// A read's memory, or the first block that is damaged.
type Outcome = Result<Filling, Damaged>;

/// A block that does not read as it was written.
#[derive(Clone, Copy, Debug)]
struct Damaged(Blocks);

impl Compared {
    fn note(&mut self, difference: Difference) {
        self.different += 1;
        self.first.get_or_insert(difference);
    }

    /// Blocks of a range that were read whole from every disk.
    fn note_all(&mut self, at: BlockRange, read: &[Outcome]) {
        let bytes =
            |n: usize| read.get(n).and_then(|outcome| outcome.as_ref().ok()).map_or(&[][..], |filling| &filling[..]);
        for block in 0..at.count.0 {
            let place = block as usize * BLOCK..(block as usize + 1) * BLOCK;
            let unlike = (1..read.len()).find(|n| bytes(*n).get(place.clone()) != bytes(0).get(place.clone()));
            if let Some(n) = unlike {
                let disks = (self.copies[0].0, self.copies[n].0);
                self.note(Difference::Content { block: Blocks(at.from.0 + block), disks });
            }
        }
    }
}

/// The machine: gives each completion to its store, and keeps what comes of it.
struct Stores {
    disks: Vec<Disk>,
    done: BTreeMap<Tag, Result<StoreDone, StoreError>>,
}

struct Disk {
    index: DiskIndex,
    /// That of its journal, if that is elsewhere.
    journal: Option<DiskIndex>,
    state: State,
}

enum State {
    Opening(Box<Opening>),
    Open(Box<JournaledStore>),
    Failed(OpenError),
}

impl Stores {
    fn collect(&mut self) {
        for disk in &mut self.disks {
            if let State::Open(store) = &mut disk.state {
                while let Some((tag, result)) = store.next_completion() {
                    self.done.insert(tag, result);
                }
            }
        }
    }
}

impl Machine for Stores {
    type Mail = Infallible;
    type Letter = Infallible;

    fn start(&mut self, _: Time, _: &mut dyn Outbox<Infallible>) {}

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Infallible>) {
        let index = done.op.disk();
        let Some(disk) =
            self.disks.iter_mut().find(|disk| index.is_some() && [Some(disk.index), disk.journal].contains(&index))
        else {
            return;
        };
        let mut submit = |op| out.submit(op);
        match &mut disk.state {
            State::Open(store) => store.done(now, done, &mut submit),
            State::Opening(opening) => match opening.done(now, done, &mut submit) {
                Some(Ok(store)) => disk.state = State::Open(Box::new(store)),
                Some(Err(error)) => disk.state = State::Failed(error),
                None => {}
            },
            State::Failed(_) => {}
        }
    }

    fn mail(&mut self, _: Time, mail: Infallible, _: &mut dyn Outbox<Infallible>) {
        match mail {}
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Infallible>) {
        for disk in &mut self.disks {
            if let State::Open(store) = &mut disk.state {
                store.end_turn(now, &mut |op| out.submit(op));
            }
        }
        self.collect();
    }

    fn next_deadline(&self) -> Option<Time> {
        let open = self.disks.iter().filter_map(|disk| match &disk.state {
            State::Open(store) => store.next_deadline(),
            _ => None,
        });
        open.min()
    }

    fn finished(&self) -> bool {
        false
    }
}
