//! Opens a store: reads what is there, finishes what a crash left, and hands over a store that serves.
//!
//! ```text
//! Superblocks → Headers → Chunks → Log (base's) → Log (other) → Verify (records without proof of data) → Settle (new checkpoint)
//! ```
//! One disk operation at a time. Whatever the disk holds, the outcome is a consistent state or an error; opening writes nothing
//! but the new checkpoint, beside the old one.

use super::background::Place;
use super::checkpoint::{Header, load_chunk};
use super::copies::Copies;
use super::engine::SimpleStore;
use super::layout::{Geometry, NoSuperblock, Superblock};
use super::limits::{CHUNK, CHUNK_BLOCKS, SUPERBLOCKS};
use super::log_page::PageHead;
use super::record::Record;
use super::replay::Replay;
use super::slots::{Run, Slots};
use crate::opening::{Identity, OpenError, OpenOptions};
use crate::{DiskOut, Store};
use conductor_model::{BLOCK, Bytes};
use driver::{Done, Errno, Op, Time};
use memory::{Arena, Class, Filling};

/// A record being verified: for each block, is its data there; and which run is being looked at, how far.
#[derive(Debug)]
struct Verify {
    record: Record,
    there: Vec<bool>,
    run: usize,
    within: u32,
}

#[derive(Debug)]
enum Phase {
    Superblock(usize),
    Header(usize),
    Chunk { copies: Copies, index: u32 },
    Log { replay: Replay, second: bool, page: u32 },
    Verify { replay: Replay, verify: Verify },
    Settle(Box<SimpleStore>),
    Over,
}

/// A store being opened.
#[derive(Debug)]
pub struct Opening {
    options: OpenOptions,
    arena: Arena,
    phase: Phase,
    superblocks: [Option<Result<Superblock, NoSuperblock>>; 2],
    headers: [Option<Header>; 2],
}

type Outcome = Option<Result<SimpleStore, OpenError>>;

impl Opening {
    /// Begin.
    pub fn start(options: OpenOptions, arena: &Arena, out: &mut DiskOut<'_>) -> Result<Self, OpenError> {
        let buffer = arena.take(CHUNK, Class::Client).ok_or(OpenError::Memory)?;
        let need = Bytes((SUPERBLOCKS[1] + 1) * BLOCK as u64);
        if options.size < need {
            return Err(OpenError::Truncated { need, have: options.size });
        }
        let this = Self {
            options,
            arena: arena.clone(),
            phase: Phase::Superblock(0),
            superblocks: [None; 2],
            headers: [None; 2],
        };
        this.read(SUPERBLOCKS[0] * BLOCK as u64, BLOCK, buffer, out);
        Ok(this)
    }

    /// Its operation is over. `Some` when the store is open, or cannot be.
    pub fn done(&mut self, now: Time, done: Done, out: &mut DiskOut<'_>) -> Outcome {
        if let Phase::Settle(store) = &mut self.phase {
            store.done(now, done, out);
            return self.settle(now, out);
        }
        let (buffer, len) = match (done.op, done.result) {
            (_, Err(errno)) => return Some(Err(OpenError::Disk(errno))),
            (Op::DiskRead { into, len, .. }, Ok(read)) if read as usize == len => (into, len),
            _ => return Some(Err(OpenError::Disk(Errno::IO))),
        };
        self.step(now, buffer, len, out).unwrap_or_else(|error| Some(Err(error)))
    }

    fn read(&self, at: u64, len: usize, into: Filling, out: &mut DiskOut<'_>) {
        out(Op::DiskRead { disk: self.options.disk, tag: 0, at, into, from: 0, len });
    }

    fn step(&mut self, now: Time, buffer: Filling, len: usize, out: &mut DiskOut<'_>) -> Result<Outcome, OpenError> {
        let bytes = &buffer[..len];
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Superblock(n) => {
                self.superblocks[n] = Some(Superblock::decode(bytes));
                if n == 0 {
                    self.phase = Phase::Superblock(1);
                    self.read(SUPERBLOCKS[1] * BLOCK as u64, BLOCK, buffer, out);
                    return Ok(None);
                }
                let (_, geometry) = self.identified()?;
                self.phase = Phase::Header(0);
                self.read(geometry.checkpoint_header(0), BLOCK, buffer, out);
            }
            Phase::Header(n) => {
                let (Identity { disk, .. }, geometry) = self.identified()?;
                self.headers[n] = Header::decode(bytes, disk).filter(|header| header.chunks <= geometry.chunks());
                if n == 0 {
                    self.phase = Phase::Header(1);
                    self.read(geometry.checkpoint_header(1), BLOCK, buffer, out);
                    return Ok(None);
                }
                return self.next_chunk(now, Copies::new(), 0, buffer, out);
            }
            Phase::Chunk { mut copies, index } => {
                let (Identity { disk, .. }, geometry) = self.identified()?;
                let (_, header) = self.base()?;
                load_chunk(bytes, disk, &header, index, geometry.slots(), geometry.max_copies(), &mut copies)
                    .ok_or(OpenError::Damaged("the checkpoint"))?;
                return self.next_chunk(now, copies, index + 1, buffer, out);
            }
            Phase::Log { mut replay, second, mut page } => {
                let (Identity { disk, .. }, _) = self.identified()?;
                for bytes in bytes.chunks(BLOCK) {
                    replay.page(PageHead::decode(bytes, disk))?;
                    page += 1;
                }
                return self.next_pages(now, replay, second, page, buffer, out);
            }
            Phase::Verify { replay, mut verify } => {
                verify.took(bytes);
                return self.verify(now, replay, Some(verify), buffer, out);
            }
            Phase::Settle(_) | Phase::Over => {}
        }
        Ok(None)
    }

    /// The disk and its division, as the first good superblock has them.
    fn identified(&self) -> Result<(Identity, Geometry), OpenError> {
        let found = self.superblocks.iter().flatten();
        let good = found.clone().find_map(|superblock| superblock.ok());
        let Some(Superblock { identity, geometry }) = good else {
            let version = found.clone().find_map(|superblock| match superblock {
                Err(NoSuperblock::Version(version)) => Some(OpenError::Version(*version)),
                _ => None,
            });
            return Err(version.unwrap_or(OpenError::NotAStore));
        };
        if self.options.cluster.is_some_and(|cluster| cluster != identity.cluster) {
            return Err(OpenError::OtherCluster(identity.cluster));
        }
        if self.options.node.is_some_and(|node| node != identity.node) {
            return Err(OpenError::OtherNode(identity.node));
        }
        if self.options.size < geometry.size() {
            return Err(OpenError::Truncated { need: geometry.size(), have: self.options.size });
        }
        Ok((identity, geometry))
    }

    /// The newest complete checkpoint and its area.
    fn base(&self) -> Result<(usize, Header), OpenError> {
        let found = self.headers.iter().enumerate().filter_map(|(area, header)| Some((area, (*header)?)));
        found.max_by_key(|(_, header)| header.generation).ok_or(OpenError::Damaged("both checkpoint headers"))
    }

    fn next_chunk(
        &mut self,
        now: Time,
        copies: Copies,
        index: u32,
        buffer: Filling,
        out: &mut DiskOut<'_>,
    ) -> Result<Outcome, OpenError> {
        let (_, geometry) = self.identified()?;
        let (area, header) = self.base()?;
        if index < header.chunks {
            self.phase = Phase::Chunk { copies, index };
            self.read(geometry.chunk(area, index), CHUNK, buffer, out);
            return Ok(None);
        }
        let replay = Replay::on(header, header.generation, copies, geometry.slots());
        self.next_pages(now, replay, false, 0, buffer, out)
    }

    fn next_pages(
        &mut self,
        now: Time,
        mut replay: Replay,
        mut second: bool,
        mut page: u32,
        buffer: Filling,
        out: &mut DiskOut<'_>,
    ) -> Result<Outcome, OpenError> {
        let (_, geometry) = self.identified()?;
        let (_, header) = self.base()?;
        if page == geometry.log_pages() && !second {
            replay.next_log();
            (second, page) = (true, 0);
        }
        if page == geometry.log_pages() {
            replay.check_end()?;
            return self.verify(now, replay, None, buffer, out);
        }
        let left = (geometry.log_pages() - page) as usize * BLOCK;
        let at = geometry.log_page(header.generation ^ u64::from(second), page);
        self.phase = Phase::Log { replay, second, page };
        self.read(at, left.min(CHUNK), buffer, out);
        Ok(None)
    }

    /// Apply the records that are left, each after a look at its data.
    fn verify(
        &mut self,
        now: Time,
        mut replay: Replay,
        mut verify: Option<Verify>,
        buffer: Filling,
        out: &mut DiskOut<'_>,
    ) -> Result<Outcome, OpenError> {
        let (_, geometry) = self.identified()?;
        loop {
            let Some(current) = verify.take().or_else(|| replay.pending.pop_front().map(Verify::of)) else {
                drop(buffer); // settling needs memory itself
                return self.recovered(now, replay, out);
            };
            if let Some((at, len)) = current.next_read(&geometry) {
                self.phase = Phase::Verify { replay, verify: current };
                self.read(at, len, buffer, out);
                return Ok(None);
            }
            replay.apply(&current.record, &|n| current.there.get(n) == Some(&true))?;
        }
    }

    fn recovered(&mut self, now: Time, replay: Replay, out: &mut DiskOut<'_>) -> Result<Outcome, OpenError> {
        let (identity, geometry) = self.identified()?;
        let (area, _) = self.base()?;
        let header = replay.continuation().ok_or(OpenError::Damaged("page numbers"))?;
        if replay.copies.len() > geometry.max_copies() as usize {
            return Err(OpenError::Damaged("the number of copies"));
        }
        let mut slots = Slots::new(geometry.slots());
        for (_, slot, _) in replay.copies.values().flat_map(|copy| copy.map.from(0)) {
            if !slots.claim(slot) {
                return Err(OpenError::Damaged("two blocks in one slot"));
            }
        }
        let place = Place { disk: self.options.disk, identity, geometry };
        let store = SimpleStore::recovered(place, self.arena.clone(), replay.copies, slots, area, header);
        self.phase = Phase::Settle(Box::new(store));
        Ok(self.settle(now, out))
    }

    /// Write the checkpoint that makes the recovery final.
    fn settle(&mut self, now: Time, out: &mut DiskOut<'_>) -> Outcome {
        let Phase::Settle(store) = &mut self.phase else { return None };
        store.end_turn(now, out);
        if let Some(errno) = store.failure() {
            return Some(Err(OpenError::Disk(errno)));
        }
        if store.next_deadline().is_some() {
            return Some(Err(OpenError::Memory));
        }
        if !store.is_settled() {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Settle(store) => Some(Ok(*store)),
            _ => None,
        }
    }
}

impl Verify {
    fn of(record: Record) -> Self {
        Self { record, there: Vec::new(), run: 0, within: 0 }
    }

    /// Where to look next; `None` when all data has been looked at, or there is none.
    fn next_read(&self, geometry: &Geometry) -> Option<(u64, usize)> {
        let Record::Write { runs, .. } = &self.record else { return None };
        let Run { from, count } = *runs.get(self.run)?;
        let blocks = (count - self.within).min(CHUNK_BLOCKS);
        Some((geometry.slot(from.plus(self.within)), blocks as usize * BLOCK))
    }

    /// What the disk has there.
    fn took(&mut self, bytes: &[u8]) {
        let Record::Write { runs, crcs, .. } = &self.record else { return };
        for block in bytes.chunks(BLOCK) {
            let same = crcs.get(self.there.len()) == Some(&crc32c::crc32c(block));
            self.there.push(same);
            self.within += 1;
        }
        if runs.get(self.run).is_some_and(|run| run.count == self.within) {
            self.run += 1;
            self.within = 0;
        }
    }
}
