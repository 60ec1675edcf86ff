//! Moving blocks: from the journal home, or from a chunk to another. What does not read well is moved as it is.

use super::super::engine::{JournaledStore, Pending};
use super::super::limits::{MOVING_BLOCKS, RETRY};
use super::super::{Kind, tag};
use crate::DiskOut;
use conductor_model::BLOCK;
use driver::{DiskIndex, Errno, Op, Part, Time};
use memory::{Class, Filling};
use smallvec::{SmallVec, smallvec};

/// Blocks that lie together, and will.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) disk: DiskIndex,
    pub(super) from: u64,
    pub(super) to: u64,
    /// The plain checksum of each block.
    pub(super) crcs: SmallVec<[u32; 2]>,
}

impl JournaledStore {
    /// Queue a block to be moved; together with the one before, if they lie together.
    pub(super) fn queue_move(&mut self, disk: DiskIndex, from: u64, to: u64, crc: u32) {
        if let Some(last) = self.fold.moves.back_mut() {
            let len = (last.crcs.len() * BLOCK) as u64;
            if last.disk == disk && last.from + len == from && last.to + len == to && last.crcs.len() < 16 {
                last.crcs.push(crc);
                return;
            }
        }
        self.fold.moves.push_back(Move { disk, from, to, crcs: smallvec![crc] });
    }

    /// Begin as many moves as may be in flight.
    pub(super) fn move_on(&mut self, now: Time, out: &mut DiskOut<'_>) {
        while self.failed.is_none()
            && self.fold.moving_blocks < MOVING_BLOCKS
            && let Some(next) = self.fold.moves.pop_front()
        {
            let len = next.crcs.len() * BLOCK;
            let Some(into) = self.arena.take(len, Class::Settle) else {
                self.fold.moves.push_front(next);
                self.retry = Some(now + RETRY);
                return;
            };
            self.fold.moving_blocks += u32::try_from(next.crcs.len()).unwrap_or(0); // at most 16
            let (disk, at) = (next.disk, next.from);
            let key = self.fold.moving.insert(next);
            self.outstanding += 1;
            out(Op::DiskRead { disk, tag: tag(Kind::Fetch, key), at, into, from: 0, len });
        }
    }

    /// Blocks to be moved were read.
    pub(in super::super) fn fetched(
        &mut self,
        key: usize,
        mut into: Filling,
        failure: Option<Errno>,
        out: &mut DiskOut<'_>,
    ) {
        let Some(moving) = self.fold.moving.get(key) else { return };
        if self.failed.is_some() {
            self.end_move(key);
            return;
        }
        for (block, &crc) in into.chunks_mut(BLOCK).zip(&moving.crcs) {
            if failure.is_some() {
                // It could not be read: it stays damaged, never something else.
                block.fill(0xdb);
                block[0] ^= u8::from(crc32c::crc32c(block) == crc);
            }
            self.counters.corrupt += u64::from(crc32c::crc32c(block) != crc);
        }
        let (at, len) = (moving.to, moving.crcs.len() * BLOCK);
        let parts = smallvec![Part { mem: into.filled(), from: 0, len }];
        self.outstanding += 1;
        out(Op::DiskWrite { disk: self.place.disk, tag: tag(Kind::Store, key), at, parts, durable: false });
    }

    /// Blocks are in their new place.
    pub(in super::super) fn stored(&mut self, key: usize, op: Op) {
        drop(op);
        self.end_move(key);
    }

    fn end_move(&mut self, key: usize) {
        if let Some(moved) = self.fold.moving.try_remove(key) {
            self.fold.moving_blocks -= u32::try_from(moved.crcs.len()).unwrap_or(0); // as it was added
        }
    }

    /// An operation that waited for the fold is over.
    pub(super) fn end_waiting(&mut self, key: usize, result: Result<crate::StoreDone, crate::StoreError>) {
        match self.pending.get(key) {
            Some(Pending::Change(_)) => self.change_over(key, result),
            Some(Pending::Flatten(tag)) => {
                let tag = *tag;
                self.pending.remove(key);
                self.finish(tag, result);
            }
            _ => {}
        }
    }
}
