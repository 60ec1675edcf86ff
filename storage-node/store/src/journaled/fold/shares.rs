//! Copy-range: entries share the chunks of a snapshot's layers, whole or in part (rule 16).

use super::super::engine::JournaledStore;
use super::super::entry::{Entry, Mask, mask};
use super::super::layers::LayerId;
use super::super::limits::{CHUNK_BLOCKS, STEPS_PER_TURN};
use super::super::overlay::{Share, Source};
use super::super::tables::Wait;
use super::{Stage, Step};
use conductor_model::{BlockRange, CopyId};
use driver::mutant;

/// The blocks of a range that lie in a chunk.
fn within(at: BlockRange, chunk: u32) -> Mask {
    let start = chunk * CHUNK_BLOCKS;
    let end = u32::try_from(at.end()).unwrap_or(u32::MAX); // ranges lie within a copy
    mask(at.from.0.max(start) - start, end.min(start + CHUNK_BLOCKS) - start)
}

impl JournaledStore {
    /// How many chunks a copy-range needs at most. Nothing is in the overlay then: `Load` until that is so.
    pub(in super::super) fn share_needs(&mut self, _copy: CopyId, at: BlockRange, from: Source) -> Result<u32, Wait> {
        if !self.fresh.is_empty() || !self.fold.is_idle() || self.promised > 0 {
            self.fold.want();
            return Err(Wait::Load);
        }
        let Some(source) = self.catalog.snapshot(from.copy, from.snapshot) else { return Ok(0) };
        // Where one layer supplies all, its chunk is shared; else one is composed. The edges keep what is beside the range.
        let depth = self.catalog.chain(source).count();
        let end = u32::try_from(at.end()).unwrap_or(u32::MAX); // ranges lie within a copy
        let chunks = at.from.0 / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS);
        // A copy that has lost some of it would be the only one that has not got what is acknowledged: it gets the bytes instead. What was found out
        // is looked at; what is bad and nobody knows of yet is lost when the fold comes to it.
        if !mutant::on("store-lost-shared") {
            self.check_whole(source, at)?;
        }
        let composed = if depth > 1 { self.composed(source, chunks.clone())? } else { 0 };
        Ok(composed + 2)
    }

    /// `Damaged` if something of a range is lost in what a chain says.
    fn check_whole(&mut self, source: LayerId, at: BlockRange) -> Result<(), Wait> {
        let end = u32::try_from(at.end()).unwrap_or(u32::MAX).div_ceil(CHUNK_BLOCKS); // ranges lie within a copy
        let mut chunk = at.from.0 / CHUNK_BLOCKS;
        while let Some(said) = self.next_said(source, chunk)?.filter(|said| *said < end) {
            let layers: Vec<LayerId> = self.catalog.chain(source).map(|(id, _)| id).collect();
            let mut left = within(at, said);
            for layer in layers {
                let entry = self.tables.entry(layer, said)?;
                // Records are lost with pages only, which are counted.
                let present = entry.chunk.filter(|_| entry.present & left != 0 && self.superblock.lost > 0);
                let record_lost =
                    present.map(|physical| self.tables.chunk(physical)).transpose()?.is_some_and(|r| r.lost);
                if entry.lost & left != 0 || record_lost {
                    return Err(Wait::Damaged);
                }
                left &= !entry.decided();
                if left == 0 {
                    break;
                }
            }
            chunk = said + 1;
        }
        Ok(())
    }

    /// Chunks of which more than one layer of a chain says something.
    fn composed(&mut self, source: LayerId, range: std::ops::Range<u32>) -> Result<u32, Wait> {
        let (mut chunk, mut count) = (range.start, 0);
        while let Some(said) = self.next_said(source, chunk)?.filter(|said| *said < range.end) {
            let layers: Vec<LayerId> = self.catalog.chain(source).map(|(id, _)| id).collect();
            let mut holders = 0;
            for layer in layers {
                holders += match self.tables.entry(layer, said) {
                    Err(Wait::Damaged) => 1, // that much at most
                    entry => u32::from(entry?.chunk.is_some()),
                };
            }
            count += u32::from(holders > 1);
            chunk = said + 1;
        }
        Ok(count)
    }

    pub(super) fn fold_shares(&mut self) -> Step {
        let Some(mut folding) = self.folding.take() else { return Step::Stay };
        let mut step = Step::Later;
        for _ in 0..STEPS_PER_TURN {
            let (n, chunk) = self.fold.share;
            let Some(share) = folding.shares.get_mut(n) else {
                step = if self.fold.quiet() {
                    self.fold.stage = Stage::Layers;
                    Step::On
                } else {
                    Step::Stay
                };
                break;
            };
            let range = share.chunks();
            let chunk = chunk.max(range.start);
            if chunk >= range.end {
                // Two ranges may meet in a chunk: one after the other.
                if !self.fold.quiet() {
                    step = Step::Stay;
                    break;
                }
                self.fold.share = (n + 1, 0);
                continue;
            }
            if self.fold.moves.len() >= super::super::limits::MAX_MOVES_QUEUED {
                step = Step::Stay;
                break;
            }
            match self.share_chunk(share, chunk) {
                Ok(()) => {
                    self.structure += 1;
                    self.fold.share = (n, chunk + 1);
                }
                Err(wait) => {
                    step = self.waits(wait);
                    break;
                }
            }
        }
        self.folding = Some(folding);
        step
    }

    fn share_chunk(&mut self, share: &mut Share, chunk: u32) -> Result<(), Wait> {
        let which = within(share.at, chunk);
        let Some((_, has_parent)) = self.layer_info(share.layer) else { return Ok(()) };
        let before = self.tables.entry(share.layer, chunk)?;
        let (supplies, _) = self.supplies(share.from, chunk, which)?;
        if supplies.is_empty() && before.is_absent() && !has_parent {
            return Ok(());
        }
        let record = before.chunk.map(|physical| self.tables.chunk(physical)).transpose()?;
        if let Some(physical) = before.chunk {
            self.tables.touch_chunk(physical)?;
        }
        self.tables.touch_entry(share.layer, chunk)?;
        let present = before.present & !which;
        // One that a write beside the range was promised is filled, and nothing is shared.
        let needed = present != 0 || self.claims.contains_key(&(share.layer, chunk));
        let dropped = before.chunk.filter(|_| !needed);
        let [zero, lost] = [before.zero, before.lost].map(|mask| mask & !which);
        let old = Entry { chunk: before.chunk.filter(|_| needed), present, zero, lost, ..before };
        let supplied = supplies.iter().fold(0, |mask, (part, ..)| mask | part);
        let mut version = before.version.max(share.stamp);
        if mutant::on("store-version-on-chunk") {
            version = supplies.first().map_or(version, |(_, source, _)| source.version);
        }
        self.absorb(share.layer, chunk, old, &supplies, which & !supplied, version, Some(&mut share.reserved))?;
        if let (Some(physical), Some(_)) = (dropped, record) {
            // Read again: it may have been shared anew.
            let record = self.tables.chunk(physical)?;
            self.let_go(physical, &record, false)?;
        }
        Ok(())
    }
}
