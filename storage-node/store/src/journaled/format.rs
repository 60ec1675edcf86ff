//! Makes a disk a store: a state machine like the rest.
//!
//! ```text
//! look at the superblocks → wipe them → zeros over ring, page maps and pages, in large pieces → first map of pages → sync → superblocks
//! ```
//! All space that the store relies on is written, so that none of it is missing later: a file may be sparse. The superblocks are
//! written last: a disk whose formatting was cut short is no store.

use super::engine::Place;
use super::geometry::Geometry;
use super::limits::{FORMAT_DEPTH, FORMAT_PIECE, HEAD_BLOCKS, SUPERBLOCKS};
use super::open::region;
use super::pages::{MapRef, Pages, Root};
use super::ring::Mark;
use super::superblock::Superblock;
use super::{Kind, tag, untag};
use crate::DiskOut;
use crate::opening::{Identity, OpenError};
use conductor_model::{BLOCK, Bytes};
use driver::{DiskIndex, Done, Errno, Op, Part};
use memory::{Arena, Class, Reads};
use smallvec::smallvec;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Which disk.
    pub disk: DiskIndex,
    /// The journal's own disk, where the geometry has one.
    pub journal: Option<DiskIndex>,
    /// Whose it becomes. The disk id must be fresh: what is left of an older store is told apart by it.
    pub identity: Identity,
    /// How it is divided.
    pub geometry: Geometry,
    /// Go on although the disk carries a store: its content is gone.
    pub overwrite: bool,
}

#[derive(Debug)]
enum Stage {
    Look(usize),
    Wipe(usize),
    Zeros,
    Map,
    Sync { left: usize },
    Superblock(usize),
}

/// A disk being formatted.
#[derive(Debug)]
pub struct Format {
    options: FormatOptions,
    stage: Stage,
    zeros: Reads,
    /// What is still to be overwritten with zeros: disk, from, to.
    ranges: Vec<(DiskIndex, u64, u64)>,
    total: u64,
    in_flight: usize,
    pages: Pages,
    map: MapRef,
    arena: Arena,
}

impl Format {
    /// Begin.
    pub fn start(options: FormatOptions, arena: &Arena, out: &mut DiskOut<'_>) -> Result<Self, OpenError> {
        let FormatOptions { disk, journal, identity, geometry, .. } = options;
        if geometry.external_journal() != journal.is_some() {
            return Err(OpenError::Journal { elsewhere: geometry.external_journal() });
        }
        let zeros = (0..6).find_map(|n| arena.take_zeroed(FORMAT_PIECE >> n, Class::Client));
        let zeros = zeros.ok_or(OpenError::Memory)?.filled();
        let mut ranges = vec![(disk, HEAD_BLOCKS * BLOCK as u64, geometry.chunks_start())];
        ranges.extend(journal.map(|journal| (journal, 0, geometry.journal_bytes().0)));
        let total = ranges.iter().map(|(_, from, to)| to - from).sum();
        let place = Place { disk, identity, geometry };
        let mut pages = Pages::new(region(&place), Bytes(0), arena.clone(), tag(Kind::Pages, 0));
        pages.start_empty();
        let this = Self {
            options,
            stage: Stage::Look(0),
            zeros,
            ranges,
            total,
            in_flight: 0,
            pages,
            map: MapRef { area: 0, crc: 0 },
            arena: arena.clone(),
        };
        this.look(0, out)?;
        Ok(this)
    }

    /// How much of the space has been written, of how much.
    pub fn progress(&self) -> (Bytes, Bytes) {
        let left: u64 = self.ranges.iter().map(|(_, from, to)| to - from).sum();
        (Bytes(self.total - left), Bytes(self.total))
    }

    fn look(&self, n: usize, out: &mut DiskOut<'_>) -> Result<(), OpenError> {
        let into = self.arena.take(BLOCK, Class::Client).ok_or(OpenError::Memory)?;
        let at = SUPERBLOCKS[n] * BLOCK as u64;
        out(Op::DiskRead { disk: self.options.disk, tag: tag(Kind::Super, n), at, into, from: 0, len: BLOCK });
        Ok(())
    }

    fn write_block(&self, n: usize, mem: Reads, out: &mut DiskOut<'_>) {
        let parts = smallvec![Part { mem, from: 0, len: BLOCK }];
        let at = SUPERBLOCKS[n] * BLOCK as u64;
        out(Op::DiskWrite { disk: self.options.disk, tag: tag(Kind::Super, n), at, parts, durable: true });
    }

    /// Its operation is over. `Some` when all is.
    pub fn done(&mut self, done: Done, out: &mut DiskOut<'_>) -> Option<Result<(), OpenError>> {
        let name = match &done.op {
            Op::DiskRead { tag, .. } | Op::DiskWrite { tag, .. } | Op::DiskSync { tag, .. } => *tag,
            _ => return Some(Err(OpenError::Disk(Errno::IO))),
        };
        if let Some((Kind::Pages, _)) = untag(name) {
            self.pages.done(done);
            if let Some(errno) = self.pages.failure() {
                return Some(Err(OpenError::Disk(errno)));
            }
            return self.step(None, out).unwrap_or_else(|error| Some(Err(error)));
        }
        if let Err(errno) = done.result {
            return Some(Err(OpenError::Disk(errno)));
        }
        self.step(Some(done.op), out).unwrap_or_else(|error| Some(Err(error)))
    }

    fn step(&mut self, op: Option<Op>, out: &mut DiskOut<'_>) -> Result<Option<Result<(), OpenError>>, OpenError> {
        match self.stage {
            Stage::Look(n) => {
                let Some(Op::DiskRead { into, .. }) = op else { return Err(OpenError::Disk(Errno::IO)) };
                if Superblock::is_marked(&into) && !self.options.overwrite {
                    return Err(OpenError::AlreadyFormatted);
                }
                // The old journal and pages are told apart by nothing else.
                if Superblock::decode(&into).is_ok_and(|old| old.identity.disk == self.options.identity.disk) {
                    return Err(OpenError::SameDiskId(self.options.identity.disk));
                }
                if n == 0 {
                    self.stage = Stage::Look(1);
                    self.look(1, out)?;
                } else {
                    self.stage = Stage::Wipe(0);
                    self.write_block(0, self.zeros.share(), out);
                }
            }
            Stage::Wipe(0) => {
                self.stage = Stage::Wipe(1);
                self.write_block(1, self.zeros.share(), out);
            }
            Stage::Wipe(_) => {
                self.stage = Stage::Zeros;
                self.in_flight = 1;
                return self.step(None, out);
            }
            Stage::Zeros => {
                self.in_flight -= 1;
                while self.in_flight < FORMAT_DEPTH
                    && let Some((disk, from, to)) = self.ranges.first_mut()
                {
                    let len = usize::try_from(*to - *from).map_or(self.zeros.len(), |left| left.min(self.zeros.len()));
                    let parts = smallvec![Part { mem: self.zeros.share(), from: 0, len }];
                    out(Op::DiskWrite { disk: *disk, tag: tag(Kind::Store, 0), at: *from, parts, durable: false });
                    *from += len as u64;
                    if from == to {
                        self.ranges.remove(0);
                    }
                    self.in_flight += 1;
                }
                if self.in_flight == 0 {
                    self.stage = Stage::Map;
                    return self.step(None, out);
                }
            }
            Stage::Map => {
                self.pages.pump(out);
                if self.pages.checkpoint_inner(out).is_none() {
                    return Ok(None);
                }
                match self.pages.checkpoint(out) {
                    None => return Ok(None),
                    Some(Err(errno)) => return Err(OpenError::Disk(errno)),
                    Some(Ok(done)) => self.map = done.map,
                }
                let disks = [Some(self.options.disk), self.options.journal];
                self.stage = Stage::Sync { left: disks.iter().flatten().count() };
                for disk in disks.into_iter().flatten() {
                    out(Op::DiskSync { disk, tag: tag(Kind::Sync, 0) });
                }
            }
            Stage::Sync { left } => {
                self.stage = Stage::Sync { left: left - 1 };
                if left == 1 {
                    self.stage = Stage::Superblock(0);
                    self.write_superblock(0, out)?;
                }
            }
            Stage::Superblock(0) => {
                self.stage = Stage::Superblock(1);
                self.write_superblock(1, out)?;
            }
            Stage::Superblock(_) => return Ok(Some(Ok(()))),
        }
        Ok(None)
    }

    fn write_superblock(&self, n: usize, out: &mut DiskOut<'_>) -> Result<(), OpenError> {
        let mut buffer = self.arena.take(BLOCK, Class::Client).ok_or(OpenError::Memory)?;
        let superblock = Superblock {
            identity: self.options.identity,
            geometry: self.options.geometry,
            generation: 1,
            boot: 1,
            tail: Mark::FIRST,
            map: self.map,
            roots: [Root::default(); 5],
            next_layer: 1,
            lost: 0,
        };
        superblock.encode(&mut buffer);
        self.write_block(n, buffer.filled(), out);
        Ok(())
    }
}
