//! Where the content of a view is, block by block, and reads of it.
//!
//! ```text
//! per chunk, from the view's layer down:   fresh generation ► folding one ► blocks being copied ► entry ► layer below ► … ► zeros
//! ```
//! A read holds its era: what it found stays where it is until the read is over.

use super::engine::{JournaledStore, Pending};
use super::entry::{ALL, ChunkRecord, Mask, blocks, mask, plain_crc};
use super::layers::LayerId;
use super::limits::{CHUNK_BLOCKS, EXTENTS_RUNS, EXTENTS_STEPS, LOOK_READS};
use super::overlay::Overlay;
use super::pages::ArrayName;
use super::patch::Spot;
use super::tables::Wait;
use super::{Kind, tag};
use crate::{Crcs, DiskOut, StoreDone, StoreError, Tag, View, ZERO_BLOCK_CRC};
use conductor_model::{BLOCK, BlockRange, Blocks, CopyId};
use driver::{DiskIndex, Errno, Op, Part};
use memory::{Filling, Reads};
use smallvec::{SmallVec, smallvec};

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Zeros.
    Zero,
    /// On a disk; its plain checksum must be this.
    At { disk: DiskIndex, at: u64, crc: u32 },
    /// Its metadata is damaged, or no copy had it when this one was filled.
    Lost,
}

/// How far looking a chunk up has come.
#[derive(Clone, Debug)]
struct Walk {
    layer: Option<LayerId>,
    left: Mask,
    found: [Found; CHUNK_BLOCKS as usize],
    /// The structure of the layers when it began: with another one it begins again.
    structure: u64,
}

/// What a look is for.
#[derive(Debug)]
pub(super) enum Goal {
    /// A read into the caller's memory; it is away while the disk fills it.
    Read(Option<Filling>),
    /// A repair: what does not read well is written again. A block of memory to look at one after the other.
    Repair { data: Reads, crcs: Crcs, scratch: Option<Filling>, bad: Vec<u32> },
}

impl Goal {
    /// Write again what does not read as `data`.
    pub(super) fn repair(data: Reads, crcs: Crcs, scratch: Filling) -> Self {
        Self::Repair { data, crcs, scratch: Some(scratch), bad: Vec::new() }
    }

    fn memory(&mut self) -> &mut Option<Filling> {
        match self {
            Self::Read(memory) | Self::Repair { scratch: memory, .. } => memory,
        }
    }
}

/// A read or repair in flight.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) tag: Tag,
    pub(super) copy: CopyId,
    pub(super) at: BlockRange,
    pub(super) layer: LayerId,
    pub(super) era: u64,
    pub(super) goal: Goal,
    walk: Option<Walk>,
    /// Where each block of the request is, as far as that is known.
    pub(super) found: SmallVec<[Found; 4]>,
    /// Blocks that have been read, or need not be.
    read: u32,
    /// The first of those that the disk was asked for last.
    began: u32,
    /// Up to here each block is read by itself: they could not be read in one.
    singly: u32,
    /// How often the block at `began` could not be read by itself.
    failed: u8,
    /// The disk works on it.
    out: bool,
}

/// Blocks `from..from + count` of a request, in one piece on one disk.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: u32,
    count: u32,
    disk: DiskIndex,
    at: u64,
}

impl Look {
    pub(super) fn new((tag, copy, at, layer): (Tag, CopyId, BlockRange, LayerId), era: u64, goal: Goal) -> Self {
        Self {
            tag,
            copy,
            at,
            layer,
            era,
            goal,
            walk: None,
            found: SmallVec::new(),
            read: 0,
            began: 0,
            singly: 0,
            failed: 0,
            out: false,
        }
    }

    /// True while the disk works on it.
    pub(super) fn is_out(&self) -> bool {
        self.out
    }

    /// The disk could not read what it was asked for: each block by itself then, some times. True if it is one that cannot be read at all.
    fn is_unreadable(&mut self) -> bool {
        let alone = self.read - self.began == 1;
        self.failed = if alone { self.failed + 1 } else { 0 };
        self.singly = self.singly.max(self.read);
        self.read = self.began;
        self.failed == LOOK_READS
    }

    /// The next blocks to read: as many as lie together, if they may be read together.
    fn next_run(&self) -> Option<Run> {
        let whole = matches!(self.goal, Goal::Read(_));
        let mut run: Option<Run> = None;
        for n in self.read..self.at.count.0 {
            let most = if whole && n >= self.singly { u32::MAX } else { 1 };
            match (self.found.get(n as usize), &mut run) {
                (Some(Found::At { disk, at, .. }), None) => {
                    run = Some(Run { from: n, count: 1, disk: *disk, at: *at });
                }
                (Some(Found::At { disk, at, .. }), Some(run))
                    if *disk == run.disk && *at == run.at + u64::from(run.count) * BLOCK as u64 && run.count < most =>
                {
                    run.count += 1;
                }
                (_, None) => {}
                _ => break,
            }
        }
        run
    }
}

impl JournaledStore {
    /// The layer that a view reads.
    pub(super) fn layer_of(&self, copy: CopyId, view: View) -> Result<LayerId, StoreError> {
        let state = self.catalog.copies.get(&copy).ok_or(StoreError::NoSuchCopy(copy))?;
        match view {
            View::Live => Ok(state.live),
            View::Snapshot(snapshot) => {
                self.catalog.snapshot(copy, snapshot).ok_or(StoreError::NoSuchSnapshot { copy, snapshot })
            }
        }
    }

    /// Where blocks of a chunk are, as one generation has it. Takes what it finds out of `left`.
    fn in_overlay(
        &self,
        overlay: &Overlay,
        (layer, chunk): (LayerId, u32),
        left: &mut Mask,
        found: &mut [Found; CHUNK_BLOCKS as usize],
    ) {
        if let Some(patch) = overlay.patches.get((layer, chunk)) {
            let here = *left & patch.decided();
            *left &= !here;
            for block in blocks(here).filter_map(|n| patch.get(n)) {
                let (n, crc) = (usize::from(block.n), block.crc);
                found[n] = match (block.spot, patch.direct) {
                    (Spot::Journal(at), _) => {
                        Found::At { disk: self.ring_place.disk, at: self.ring_place.position_bytes(at), crc }
                    }
                    (Spot::Direct, Some(direct)) => Found::At {
                        disk: self.place.disk,
                        at: self.place.geometry.chunk(direct) + n as u64 * BLOCK as u64,
                        crc,
                    },
                    (Spot::Lost, _) => Found::Lost,
                    (Spot::Zero | Spot::Direct, _) => Found::Zero,
                };
            }
        }
        if overlay.in_range((layer, chunk)) {
            for n in blocks(std::mem::take(left)) {
                found[n as usize] = Found::Zero;
            }
        }
    }

    /// Look a chunk up, going on where `walk` is. `Ok` when nothing is left to be looked for.
    fn walk(&mut self, walk: &mut Walk, chunk: u32) -> Result<(), Wait> {
        while let Some(layer) = walk.layer.filter(|_| walk.left != 0) {
            self.in_overlay(&self.fresh, (layer, chunk), &mut walk.left, &mut walk.found);
            if let Some(folding) = &self.folding {
                self.in_overlay(folding, (layer, chunk), &mut walk.left, &mut walk.found);
            }
            for &(n, at, crc) in self.copying.get(&(layer, chunk)).into_iter().flatten() {
                if walk.left >> n & 1 == 1 {
                    walk.left &= !(1 << n);
                    walk.found[n as usize] = Found::At { disk: self.place.disk, at, crc };
                }
            }
            if walk.left == 0 {
                break;
            }
            let entry = self.tables.entry(layer, chunk)?;
            let [present, zero, lost] = [entry.present, entry.zero, entry.lost].map(|mask| mask & walk.left);
            if let (Some(physical), true) = (entry.chunk, present != 0) {
                let record = match self.tables.chunk(physical) {
                    Err(Wait::Damaged) => ChunkRecord::LOST,
                    record => record?,
                };
                let start = self.place.geometry.chunk(physical);
                for n in blocks(present) {
                    walk.found[n as usize] = if record.lost {
                        Found::Lost
                    } else {
                        Found::At {
                            disk: self.place.disk,
                            at: start + u64::from(n) * BLOCK as u64,
                            crc: plain_crc(record.crcs[n as usize], entry.owner, chunk * CHUNK_BLOCKS + n),
                        }
                    };
                }
            }
            for n in blocks(zero) {
                walk.found[n as usize] = Found::Zero;
            }
            for n in blocks(lost) {
                walk.found[n as usize] = Found::Lost;
            }
            walk.left &= !(present | zero | lost);
            walk.layer = self.catalog.layers.get(layer).and_then(|layer| layer.parent);
        }
        Ok(())
    }

    fn begin_walk(&self, layer: LayerId, left: Mask) -> Walk {
        let found = [Found::Zero; CHUNK_BLOCKS as usize];
        Walk { layer: Some(layer), left, found, structure: self.structure }
    }

    /// A read or repair begins, or goes on when its pages are there.
    pub(super) fn look(&mut self, key: usize, out: &mut DiskOut<'_>) {
        let Some(Pending::Look(look)) = self.pending.get_mut(key) else { return };
        let (at, layer) = (look.at, look.layer);
        let mut found = std::mem::take(&mut look.found);
        let mut walk = look.walk.take();
        let mut waits = false;
        while let done = u32::try_from(found.len()).unwrap_or(u32::MAX)
            && done < at.count.0
        {
            let block = at.from.0 + done;
            let (chunk, first) = (block / CHUNK_BLOCKS, block % CHUNK_BLOCKS);
            let count = (CHUNK_BLOCKS - first).min(at.count.0 - done);
            let mut going = walk
                .take()
                .filter(|walk| walk.structure == self.structure)
                .unwrap_or_else(|| self.begin_walk(layer, mask(first, first + count)));
            match self.walk(&mut going, chunk) {
                Ok(()) => {}
                Err(Wait::Load) => {
                    walk = Some(going);
                    waits = true;
                    break;
                }
                Err(Wait::Damaged | Wait::Full) => {
                    for n in blocks(going.left) {
                        going.found[n as usize] = Found::Lost;
                    }
                }
            }
            found.extend_from_slice(&going.found[first as usize..(first + count) as usize]);
        }
        let Some(Pending::Look(look)) = self.pending.get_mut(key) else { return };
        (look.found, look.walk) = (found, walk);
        if waits {
            self.looking.push_back(key);
            return;
        }
        self.read_on(key, out);
    }

    /// Read the next run, or finish. One at a time, because the memory has one writer.
    pub(super) fn read_on(&mut self, key: usize, out: &mut DiskOut<'_>) {
        let Some(Pending::Look(look)) = self.pending.get_mut(key) else { return };
        let whole = matches!(look.goal, Goal::Read(_));
        if let (Some(run), None) = (look.next_run(), self.failed)
            && let Some(into) = look.goal.memory().take()
        {
            (look.began, look.read) = (run.from, run.from + run.count);
            look.out = true;
            let from = if whole { run.from as usize * BLOCK } else { 0 };
            let len = run.count as usize * BLOCK;
            self.outstanding += 1;
            return out(Op::DiskRead { disk: run.disk, tag: tag(Kind::Read, key), at: run.at, into, from, len });
        }
        match whole {
            true => self.read_over(key),
            false => self.repair_on(key, out),
        }
    }

    /// A disk read of a look is over.
    pub(super) fn read_done(&mut self, key: usize, into: Filling, failure: Option<Errno>, out: &mut DiskOut<'_>) {
        let Some(Pending::Look(look)) = self.pending.get_mut(key) else { return };
        look.out = false;
        let n = look.read.saturating_sub(1);
        let found = look.found.get(n as usize).copied();
        if let Goal::Repair { bad, .. } = &mut look.goal {
            let plain = crc32c::crc32c(&into[..BLOCK]);
            let good = matches!(found, Some(Found::At { crc, .. }) if crc == plain);
            if failure.is_some() || !good {
                bad.push(n);
            }
        } else if failure.is_none() {
            look.failed = 0;
        } else if look.is_unreadable() && self.failed.is_none() {
            // A bad sector is not a bad disk: what cannot be read is damaged, and is put right like what reads as something else.
            let (copy, block) = (look.copy, Blocks(look.at.from.0 + look.began));
            self.counters.corrupt += 1;
            return self.look_over(key, Err(StoreError::Corrupt { copy, block }));
        }
        *look.goal.memory() = Some(into);
        self.read_on(key, out);
    }

    /// All is read: every block against its checksum, the rest zeros.
    fn read_over(&mut self, key: usize) {
        let Some(Pending::Look(look)) = self.pending.get_mut(key) else { return };
        let (Some(mut into), from, copy) = (look.goal.memory().take(), look.at.from.0, look.copy) else { return };
        let found = std::mem::take(&mut look.found);
        let mut crcs = Crcs::with_capacity(found.len());
        let mut damaged = None;
        for ((block, data), found) in (from..).zip(into.chunks_mut(BLOCK)).zip(&found) {
            let crc = match found {
                Found::Zero => {
                    data.fill(0);
                    ZERO_BLOCK_CRC
                }
                Found::At { crc: expected, .. } => {
                    let crc = crc32c::crc32c(data);
                    if crc != *expected {
                        damaged = damaged.or(Some(block));
                    }
                    crc
                }
                Found::Lost => {
                    damaged = damaged.or(Some(block));
                    0
                }
            };
            crcs.push(crc);
        }
        let result = match (self.failed, damaged) {
            (Some(errno), _) => Err(StoreError::Disk(errno)),
            (None, _) if !self.catalog.copies.contains_key(&copy) => Err(StoreError::NoSuchCopy(copy)),
            (None, Some(block)) => {
                self.counters.corrupt += 1;
                Err(StoreError::Corrupt { copy, block: Blocks(block) })
            }
            (None, None) => {
                self.counters.reads += 1;
                Ok(StoreDone::Read(into, crcs))
            }
        };
        self.look_over(key, result);
    }

    /// A look is over: what it found may be used again.
    pub(super) fn look_over(&mut self, key: usize, result: Result<StoreDone, StoreError>) {
        if let Some(Pending::Look(look)) = self.pending.try_remove(key) {
            self.eras.end(look.era);
            self.finish(look.tag, result);
        }
    }

    /// What did not read well is written again, where it is, if the content given is what it must be.
    fn repair_on(&mut self, key: usize, out: &mut DiskOut<'_>) {
        let Some(Pending::Look(look)) = self.pending.get_mut(key) else { return };
        let (copy, from) = (look.copy, look.at.from.0);
        let Goal::Repair { data, crcs, bad, .. } = &mut look.goal else { return };
        if let Some(errno) = self.failed {
            return self.look_over(key, Err(StoreError::Disk(errno)));
        }
        if let Some(n) = bad.pop() {
            let Some(Found::At { disk, at, crc }) = look.found.get(n as usize).copied() else {
                return self.look_over(key, Err(StoreError::Corrupt { copy, block: Blocks(from + n) }));
            };
            if crcs[n as usize] != crc {
                // The other copy holds something else: nothing that could be put here is what was written.
                return self.look_over(key, Err(StoreError::Corrupt { copy, block: Blocks(from + n) }));
            }
            if self.fold.carries(disk, at) {
                self.fold.hurry();
                return self.look_over(key, Err(StoreError::Busy));
            }
            look.out = true;
            let part = Part { mem: data.share(), from: n as usize * BLOCK, len: BLOCK };
            self.outstanding += 1;
            return out(Op::DiskWrite { disk, tag: tag(Kind::Repair, key), at, parts: smallvec![part], durable: true });
        }
        let lost = (0u32..).zip(&look.found).find(|(_, found)| **found == Found::Lost);
        let result = match lost {
            Some((n, _)) => Err(StoreError::Corrupt { copy, block: Blocks(from + n) }),
            None => Ok(StoreDone::Done),
        };
        self.look_over(key, result);
    }

    /// A block was written again, at this byte of a disk.
    pub(super) fn repaired(&mut self, key: usize, (disk, at): (DiskIndex, u64), out: &mut DiskOut<'_>) {
        if let Some(Pending::Look(look)) = self.pending.get_mut(key) {
            look.out = false;
            self.counters.repaired += u64::from(self.failed.is_none());
        }
        // A fold may have read it meanwhile.
        if self.failed.is_none() && self.fold.carries(disk, at) {
            self.fold.hurry();
            return self.look_over(key, Err(StoreError::Busy));
        }
        self.repair_on(key, out);
    }

    /// The next chunk at or after `from` of which a layer, or one below, says anything, in any generation.
    pub(super) fn next_said(&mut self, layer: LayerId, from: u32) -> Result<Option<u32>, Wait> {
        let mut next: Option<u32> = None;
        let mut at = Some(layer);
        while let Some(layer) = at {
            next = self.said_by(layer, from)?.into_iter().chain(next).min();
            if next == Some(from) {
                break;
            }
            at = self.catalog.layers.get(layer).and_then(|layer| layer.parent);
        }
        Ok(next)
    }

    /// The next chunk at or after `from` of which this layer says anything; or whose page does of another.
    pub(super) fn said_by(&mut self, layer: LayerId, from: u32) -> Result<Option<u32>, Wait> {
        let generations = [Some(&self.fresh), self.folding.as_ref()];
        let patched = generations.into_iter().flatten().filter_map(|overlay| overlay.next_touched(layer, from));
        let stored = self.tables.next(ArrayName::map_of(layer.0), from.into())?;
        let stored = stored.and_then(|index| u32::try_from(index).ok());
        Ok(patched.chain(stored).min())
    }

    /// Which blocks of a chunk may hold something else than zeros.
    fn data_in(&mut self, layer: LayerId, chunk: u32) -> Result<Mask, Wait> {
        let mut walk = self.begin_walk(layer, ALL);
        match self.walk(&mut walk, chunk) {
            Ok(()) => walk.left = 0, // of these nothing is said down to the bottom: zeros
            Err(Wait::Damaged | Wait::Full) => {}
            Err(Wait::Load) => return Err(Wait::Load),
        }
        let held = walk.found.iter().zip(0..).filter(|(found, _)| **found != Found::Zero);
        Ok(held.fold(walk.left, |mask, (_, n)| mask | 1 << n))
    }

    /// What of `from..end` may hold something else than zeros, and up to where that is all: it ends where a page is missing, or after a turn's
    /// worth of work. `None` if nothing can be said before a page is there.
    pub(super) fn extents(&mut self, layer: LayerId, from: u32, end: u32) -> Option<(Vec<BlockRange>, u32)> {
        let (mut data, mut next): (Vec<BlockRange>, _) = (Vec::new(), from);
        let layers = self.catalog.chain(layer).count().max(1);
        let mut steps = (EXTENTS_STEPS / layers).max(1);
        while next < end && steps > 0 && data.len() < EXTENTS_RUNS {
            steps -= 1;
            let chunk = next / CHUNK_BLOCKS;
            let said = match self.next_said(layer, chunk) {
                Ok(said) => said.filter(|said| *said < end.div_ceil(CHUNK_BLOCKS)),
                Err(Wait::Load) if next > from => break,
                Err(Wait::Load) => return None,
                Err(Wait::Damaged | Wait::Full) => Some(chunk),
            };
            let Some(said) = said else {
                next = end;
                break;
            };
            next = next.max(said * CHUNK_BLOCKS);
            let held = match self.data_in(layer, said) {
                Ok(held) => held,
                Err(_) if next > from => break,
                Err(_) => return None,
            };
            for n in blocks(held) {
                let block = said * CHUNK_BLOCKS + n;
                if block < from || block >= end {
                    continue;
                }
                match data.last_mut() {
                    Some(last) if last.end() == u64::from(block) => last.count.0 += 1,
                    _ => data.push(BlockRange { from: Blocks(block), count: Blocks(1) }),
                }
            }
            next = ((said + 1) * CHUNK_BLOCKS).min(end);
        }
        Some((data, next))
    }
}
