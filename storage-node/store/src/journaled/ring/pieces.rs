//! Reads the ring at opening, some large pieces at a time, the next one while this one is looked at.
//!
//! A piece that cannot be read is read again block by block: a block that gives an error becomes zeros, which are no header and
//! fail most checksums, and is counted. Too many of them are a failed disk.

use super::limits::{PIECE_BLOCKS, PIECES};
use super::{JournalBlock, RingPlace};
use crate::DiskOut;
use conductor_model::BLOCK;
use driver::{Done, Errno, Op};
use memory::{Arena, Class, Filling};

/// A piece of the ring that is in memory, or on its way.
struct Piece {
    index: u32,
    /// None while the disk has it.
    memory: Option<Filling>,
    /// When it was last looked at.
    used: u64,
    /// The block that is read by itself, after the whole could not be read.
    single: Option<u32>,
}

/// The pieces.
pub(super) struct Pieces {
    place: RingPlace,
    /// Blocks of a piece.
    size: u32,
    pieces: Vec<Piece>,
    spare: Vec<Filling>,
    wanted: Option<u32>,
    clock: u64,
    /// More blocks than this that give an error are a failed disk.
    bound: u32,
    unreadable: u32,
}

impl Pieces {
    /// `None` if the arena has no memory for them.
    pub(super) fn new(place: RingPlace, bound: u32, arena: &Arena) -> Option<Self> {
        let (size, spare) = PIECE_BLOCKS.into_iter().find_map(|size| {
            let take = |_| arena.take(size as usize * BLOCK, Class::Work);
            Some((size, (0..PIECES).map(take).collect::<Option<Vec<_>>>()?))
        })?;
        Some(Self { place, size, pieces: Vec::new(), spare, wanted: None, clock: 0, bound, unreadable: 0 })
    }

    pub(super) fn unreadable(&self) -> u32 {
        self.unreadable
    }

    /// True while the disk has any.
    pub(super) fn busy(&self) -> bool {
        self.pieces.iter().any(|piece| piece.memory.is_none())
    }

    /// A block of the ring, if it is in memory; else it is asked for by the next `pump`.
    pub(super) fn block(&mut self, block: u32) -> Option<&[u8]> {
        let index = block / self.size;
        self.clock += 1;
        let Some(piece) = self.pieces.iter_mut().find(|piece| piece.index == index && piece.ready()) else {
            self.wanted = Some(index);
            return None;
        };
        piece.used = self.clock;
        piece.memory.as_deref()?.get((block % self.size) as usize * BLOCK..)?.get(..BLOCK)
    }

    /// Asks the disk for what is wanted, and the piece behind it.
    pub(super) fn pump(&mut self, out: &mut DiskOut<'_>) {
        let Some(index) = self.wanted.take() else { return };
        let last = (self.place.blocks - 1) / self.size;
        self.fetch(index, index, out);
        self.fetch(if index == last { 0 } else { index + 1 }, index, out);
    }

    /// Reads a piece, unless it is there; what was not looked at for longest makes room, but not `keep`.
    fn fetch(&mut self, index: u32, keep: u32, out: &mut DiskOut<'_>) {
        if self.pieces.iter().any(|piece| piece.index == index) {
            return;
        }
        let memory = self.spare.pop().or_else(|| {
            let old = self.pieces.iter().enumerate().filter(|(_, piece)| piece.ready() && piece.index != keep);
            let (oldest, _) = old.min_by_key(|(_, piece)| piece.used)?;
            self.pieces.swap_remove(oldest).memory
        });
        let Some(memory) = memory else { return };
        self.pieces.push(Piece { index, memory: None, used: self.clock, single: None });
        out(self.read(index, memory, 0, self.blocks_in(index)));
    }

    fn blocks_in(&self, index: u32) -> u32 {
        self.size.min(self.place.blocks - index * self.size)
    }

    fn read(&self, index: u32, into: Filling, from: u32, blocks: u32) -> Op {
        let at = self.place.position_bytes(JournalBlock(index * self.size + from));
        let (from, len) = (from as usize * BLOCK, blocks as usize * BLOCK);
        Op::DiskRead { disk: self.place.disk, tag: self.place.tag(u64::from(index)), at, into, from, len }
    }

    /// A read is over that nobody waits for any more.
    pub(super) fn forget(&mut self, done: &Done) {
        if let Op::DiskRead { tag, .. } = done.op {
            self.pieces.retain(|piece| u64::from(piece.index) != tag & ((1 << 56) - 1));
        }
    }

    /// A read is over. Fails if the disk has failed.
    pub(super) fn done(&mut self, done: Done, out: &mut DiskOut<'_>) -> Result<(), Errno> {
        let Op::DiskRead { tag, mut into, from, len, .. } = done.op else { return Ok(()) };
        let index = u32::try_from(tag & ((1 << 56) - 1)).unwrap_or(u32::MAX);
        let Some(position) = self.pieces.iter().position(|piece| piece.index == index) else { return Ok(()) };
        let next = match (done.result, self.pieces[position].single) {
            (Ok(_), None) => None,
            (Err(_), None) => Some(0),
            (result, Some(single)) => {
                if let Err(errno) = result {
                    into[from..from + len].fill(0);
                    self.unreadable += 1;
                    if self.unreadable > self.bound {
                        self.pieces.swap_remove(position);
                        return Err(errno);
                    }
                }
                Some(single + 1)
            }
        };
        match next.filter(|next| *next < self.blocks_in(index)) {
            Some(next) => {
                self.pieces[position].single = Some(next);
                out(self.read(index, into, next, 1));
            }
            None => self.pieces[position].memory = Some(into),
        }
        Ok(())
    }
}

impl Piece {
    fn ready(&self) -> bool {
        self.memory.is_some()
    }
}
