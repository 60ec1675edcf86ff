//! Reads: neighbouring slots in one disk read, the rest zeros, every block against its checksum.

use super::engine::{Pending, SimpleStore};
use super::slots::Run;
use super::{Kind, tag};
use crate::{Crcs, DiskOut, StoreDone, StoreError, Tag, ZERO_BLOCK_CRC};
use conductor_model::{BLOCK, BlockRange, Blocks, CopyId};
use driver::Op;
use memory::Filling;
use smallvec::SmallVec;

/// A read in flight.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) tag: Tag,
    copy: CopyId,
    from: Blocks,
    /// Slots to read, each with its first block in the request.
    runs: SmallVec<[(u32, Run); 2]>,
    /// How many of them are read.
    read: usize,
    /// What each block's checksum must be.
    crcs: Crcs,
}

impl SimpleStore {
    pub(super) fn start_read(
        &mut self,
        tag: Tag,
        copy: CopyId,
        at: BlockRange,
        mut into: Filling,
        out: &mut DiskOut<'_>,
    ) {
        let Some(state) = self.copies.get(&copy) else { return self.finish(tag, Err(StoreError::NoSuchCopy(copy))) };
        let mut look = Look { tag, copy, from: at.from, runs: SmallVec::new(), read: 0, crcs: Crcs::new() };
        for n in 0..at.count.0 {
            let Some((slot, crc)) = state.map.get(at.from.0 + n) else {
                into[n as usize * BLOCK..][..BLOCK].fill(0);
                look.crcs.push(ZERO_BLOCK_CRC);
                continue;
            };
            look.crcs.push(crc);
            match look.runs.last_mut() {
                Some((first, run)) if *first + run.count == n && run.from.plus(run.count) == slot => run.count += 1,
                _ => look.runs.push((n, Run { from: slot, count: 1 })),
            }
        }
        let key = self.pending.insert(Pending::Look(look));
        self.continue_read(key, into, out);
    }

    /// Read the next run, or finish. One at a time, because the memory has one writer.
    pub(super) fn continue_read(&mut self, key: usize, into: Filling, out: &mut DiskOut<'_>) {
        let Some(Pending::Look(look)) = self.pending.get_mut(key) else { return };
        if let Some(&(first, run)) = look.runs.get(look.read) {
            look.read += 1;
            self.outstanding += 1;
            let (from, len) = (first as usize * BLOCK, run.count as usize * BLOCK);
            let at = self.place.geometry.slot(run.from);
            return out(Op::DiskRead { disk: self.place.disk, tag: tag(Kind::Read, key), at, into, from, len });
        }
        let mapped = look.runs.iter().flat_map(|&(first, run)| first..first + run.count);
        let damaged = mapped
            .into_iter()
            .find(|&n| crc32c::crc32c(&into[n as usize * BLOCK..][..BLOCK]) != look.crcs[n as usize])
            .map(|n| Blocks(look.from.0 + n));
        let Pending::Look(look) = self.pending.remove(key) else { return };
        let result = match (self.failed, damaged) {
            (Some(errno), _) => Err(StoreError::Disk(errno)),
            (None, _) if !self.copies.contains_key(&look.copy) => Err(StoreError::NoSuchCopy(look.copy)),
            (None, Some(block)) => {
                self.counters.corrupt += 1;
                Err(StoreError::Corrupt { copy: look.copy, block })
            }
            (None, None) => {
                self.counters.reads += 1;
                Ok(StoreDone::Read(into, look.crcs))
            }
        };
        self.finish(look.tag, result);
    }
}
