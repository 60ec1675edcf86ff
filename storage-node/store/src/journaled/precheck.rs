//! What is refused before it is taken: a copy that is not here, a range outside of it, a layer too many.

use super::engine::JournaledStore;
use super::layers::{Layer, LayerId};
use super::limits::{MAX_DEPTH, MAX_LAYERS};
use crate::configuration::blocks_of;
use crate::{MAX_IN_FLIGHT, MAX_REQUEST_BLOCKS, StoreError, StoreOp, View};
use conductor_model::{BLOCK, BlockRange, CopyId};

impl JournaledStore {
    pub(super) fn check_request(&self, copy: CopyId, at: BlockRange, len: usize) -> Result<(), StoreError> {
        let state = self.catalog.copies.get(&copy).ok_or(StoreError::NoSuchCopy(copy))?;
        if !state.contains(at) || at.count.0 > MAX_REQUEST_BLOCKS {
            return Err(StoreError::OutOfRange { copy, at });
        }
        (len == at.count.0 as usize * BLOCK).then_some(()).ok_or(StoreError::BadLength { at })
    }

    fn has_copy(&self, copy: CopyId) -> Result<(), StoreError> {
        self.catalog.copies.contains_key(&copy).then_some(()).ok_or(StoreError::NoSuchCopy(copy))
    }

    fn check_range(&self, copy: CopyId, at: BlockRange) -> Result<(), StoreError> {
        let state = self.catalog.copies.get(&copy).ok_or(StoreError::NoSuchCopy(copy))?;
        state.contains(at).then_some(()).ok_or(StoreError::OutOfRange { copy, at })
    }

    /// True if one more layer may be put on this one.
    fn check_layers(&self, below: Option<LayerId>) -> Result<(), StoreError> {
        let depth = below.map_or(0, |layer| self.catalog.chain(layer).count());
        let room = depth < MAX_DEPTH && self.catalog.layers.len() + self.creating as usize + 1 < MAX_LAYERS;
        room.then_some(()).ok_or(StoreError::NoSpace)
    }

    pub(super) fn check(&self, op: &StoreOp) -> Result<(), StoreError> {
        if let Some(errno) = self.failed {
            return Err(StoreError::Disk(errno));
        }
        if self.pending.len() >= MAX_IN_FLIGHT {
            return Err(StoreError::Busy);
        }
        match op {
            StoreOp::Create { copy, config, parent } => {
                blocks_of(config).ok_or(StoreError::BadConfiguration(*copy))?;
                if self.catalog.copies.contains_key(copy) {
                    return Ok(());
                }
                let copies = self.catalog.copies.len() + self.creating as usize;
                if copies >= self.place.geometry.max_copies() as usize {
                    return Err(StoreError::TooManyCopies);
                }
                let parent = parent.map(|p| self.layer_of(p.copy, View::Snapshot(p.snapshot))).transpose()?;
                self.check_layers(parent)
            }
            StoreOp::Join { copy, config } => {
                let here = &self.catalog.copies.get(copy).ok_or(StoreError::NoSuchCopy(*copy))?.config;
                if config.epoch < here.epoch {
                    return Err(StoreError::OlderEpoch { copy: *copy, held: here.epoch, given: config.epoch });
                }
                let kept = blocks_of(config).is_some() && config.size >= here.size;
                kept.then_some(()).ok_or(StoreError::BadConfiguration(*copy))
            }
            StoreOp::Delete { copy } => {
                self.has_copy(*copy)?;
                self.catalog.clone_of(*copy).map_or(Ok(()), |clone| Err(StoreError::Needed(clone)))
            }
            StoreOp::Above { copy }
            | StoreOp::KnownGood { copy, .. }
            | StoreOp::Mark { copy, .. }
            | StoreOp::Flush { copy }
            | StoreOp::Flatten { copy } => self.has_copy(*copy),
            StoreOp::Write { copy, at, data, crcs, .. } => {
                self.check_request(*copy, *at, data.len())?;
                (crcs.len() == at.count.0 as usize).then_some(()).ok_or(StoreError::BadLength { at: *at })
            }
            StoreOp::Repair { copy, view, at, data, crcs } => {
                self.check_request(*copy, *at, data.len())?;
                self.layer_of(*copy, *view)?;
                (crcs.len() == at.count.0 as usize).then_some(()).ok_or(StoreError::BadLength { at: *at })
            }
            StoreOp::Zero { copy, at, .. } => self.check_range(*copy, *at),
            StoreOp::Lose { copy, at, .. } => self.check_request(*copy, *at, at.count.0 as usize * BLOCK),
            StoreOp::Read { copy, view, at, into } => {
                self.check_request(*copy, *at, into.len())?;
                self.layer_of(*copy, *view).map(|_| ())
            }
            StoreOp::Snapshot { copy, snapshot, .. } => {
                self.has_copy(*copy)?;
                let live = self.catalog.copies.get(copy).map(|state| state.live);
                match self.catalog.snapshot(*copy, *snapshot) {
                    Some(_) => Ok(()),
                    None => self.check_layers(live),
                }
            }
            StoreOp::Rollback { copy, snapshot, .. } => {
                let layer = self.layer_of(*copy, View::Snapshot(*snapshot))?;
                self.check_layers(Some(layer))
            }
            StoreOp::DropSnapshot { copy, snapshot } => {
                self.has_copy(*copy)?;
                let Some(layer) = self.catalog.snapshot(*copy, *snapshot) else { return Ok(()) };
                let is_clone = |child: &Layer| child.copy != *copy && self.catalog.copies.contains_key(&child.copy);
                let clone = self.catalog.layers.above(layer).find(|(_, child)| is_clone(child));
                clone.map_or(Ok(()), |(_, child)| Err(StoreError::Needed(child.copy)))
            }
            StoreOp::Share { copy, at, from, .. } => {
                self.check_range(*copy, *at)?;
                let layer = self.layer_of(from.copy, View::Snapshot(from.snapshot))?;
                let size = self.catalog.layers.get(layer).map_or(0, |layer| layer.blocks);
                let within = at.end() <= u64::from(size);
                within.then_some(()).ok_or(StoreError::OutOfRange { copy: from.copy, at: *at })
            }
            StoreOp::Extents { copy, view, .. } | StoreOp::Changed { copy, view, .. } => {
                self.layer_of(*copy, *view).map(|_| ())
            }
        }
    }
}
