//! Layers that nobody names: released when nothing stands on them, merged when one layer does. And clones that are flattened.
//!
//! Entry by entry, with a cursor that a checkpoint keeps: what is behind it does not count any more, in the map of the layer
//! that goes. So many entries per fold, so that a checkpoint is never far. Nothing is moved into a layer whose own merging has begun: it
//! could fall behind the cursor, and nobody would find it any more.

use super::super::engine::JournaledStore;
use super::super::entry::{ChunkRecord, Entry, Mask};
use super::super::layers::{Catalog, Layer, LayerId};
use super::super::limits::{CHUNK_BLOCKS, STEPS_PER_TURN};
use super::super::overlay::Changes;
use super::super::pages::{ArrayName, Step as PageStep};
use super::super::tables::Wait;
use super::{Flatten, Stage, Step};
use crate::StoreError;
use conductor_model::{CopyId, Stamp};
use driver::mutant;
use std::collections::BTreeSet;

/// What is done about a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    Release(LayerId),
    Merge(LayerId, LayerId),
    Flatten,
}

/// Layers that nobody names, of one fold. What could not be done about one can be when what stands on it has changed, and not before: so that
/// each is looked at a few times, not all for every step.
#[derive(Default, Debug)]
pub(super) struct Dropping {
    /// To be looked at.
    unseen: BTreeSet<LayerId>,
    /// Something stands on them.
    needed: BTreeSet<LayerId>,
}

impl Dropping {
    pub(super) fn of(catalog: &Catalog) -> Self {
        Self { unseen: catalog.layers.ids().filter(|id| catalog.is_dropping(*id)).collect(), needed: BTreeSet::new() }
    }

    fn remove(&mut self, layer: LayerId) {
        self.unseen.remove(&layer);
        self.needed.remove(&layer);
    }
}

/// Blocks of a chunk that lie in a physical one: which, and where. Without one, or with a record that is lost, they are lost.
pub(super) type Supply = (Mask, Entry, ChunkRecord);

/// Those of an entry that are lost.
fn lost_in(entry: Entry, wanted: Mask) -> Option<Supply> {
    let lost = entry.lost & wanted;
    (lost != 0).then(|| (lost, Entry { chunk: None, ..entry }, ChunkRecord::default()))
}

impl JournaledStore {
    /// After anything that changed which layers are needed.
    pub(in super::super) fn find_work(&mut self) {
        if std::mem::take(&mut self.fold.unsearched) {
            let catalog = &self.catalog;
            let due = |id| catalog.is_dropping(id) && catalog.layers.above(id).nth(1).is_none();
            self.fold.work = catalog.layers.ids().any(due);
        }
    }

    /// A fold is over. If it could do nothing about the layers, the next could not either, until something has changed.
    pub(super) fn work_over(&mut self) {
        let worked = std::mem::take(&mut self.fold.worked);
        self.fold.merged = false;
        self.fold.unsearched = worked;
        if worked {
            return self.find_work();
        }
        self.fold.work = false;
        for flatten in std::mem::take(&mut self.fold.flattens) {
            // One that came after the freeze has its turn.
            match flatten.tried {
                true => self.end_waiting(flatten.key, Err(StoreError::NoSpace)),
                false => self.fold.flattens.push_back(flatten),
            }
        }
    }

    /// The one in hand, until it is over; then one that releases a layer, since nothing is moved into what nobody needs; then one that merges.
    fn next_job(&mut self) -> Option<Job> {
        let goes_on = |job: &Job| match job {
            Job::Release(_) => true,
            Job::Merge(layer, _) => !self.fold.stuck.contains(layer),
            Job::Flatten => false,
        };
        if let Some(job) = self.fold.job.filter(goes_on) {
            return Some(job);
        }
        while let Some(&id) = self.fold.dropping.unseen.last() {
            if self.fold.frozen.layers.above(id).next().is_none() {
                return Some(Job::Release(id));
            }
            self.fold.dropping.unseen.remove(&id);
            self.fold.dropping.needed.insert(id);
        }
        while let Some(&id) = self.fold.dropping.needed.first() {
            let mut above = self.fold.frozen.layers.above(id).map(|(id, _)| id);
            let (child, other) = (above.next(), above.next());
            if let (Some(child), None, false) = (child, other, self.fold.stuck.contains(&id))
                && !self.goes(child)
            {
                return Some(Job::Merge(id, child));
            }
            // Not before what is above it changes.
            self.fold.dropping.needed.remove(&id);
        }
        self.next_flatten().map(|_| Job::Flatten)
    }

    /// True if some of the layer has been moved to the one above.
    fn goes(&self, layer: LayerId) -> bool {
        let begun = self.tables.trees.get(&layer).is_some_and(|tree| tree.cursor > 0);
        begun && !mutant::on("store-merge-behind-cursor")
    }

    /// The flattening in hand. It waits while the layer that it is to put things into goes.
    fn next_flatten(&self) -> Option<usize> {
        let goes = |copy| self.bottom(copy).is_some_and(|(layer, _)| self.goes(layer));
        let ready = |flatten: &Flatten| !flatten.done && self.is_of_this_fold(flatten.copy) && !goes(flatten.copy);
        self.fold.flattens.iter().position(ready)
    }

    /// A copy created after the freeze is flattened in the next fold.
    fn is_of_this_fold(&self, copy: CopyId) -> bool {
        self.fold.frozen.copies.contains_key(&copy) || !self.catalog.copies.contains_key(&copy)
    }

    /// Nothing more is done about layers in this fold: all flattenings have had their turn, those that waited, too.
    fn tried_all(&mut self) {
        for n in 0..self.fold.flattens.len() {
            self.fold.flattens[n].tried |= self.is_of_this_fold(self.fold.flattens[n].copy);
        }
    }

    /// The lowest layer of a copy's own.
    fn bottom(&self, copy: CopyId) -> Option<(LayerId, Layer)> {
        let frozen = &self.fold.frozen;
        let chain = frozen.chain(frozen.copies.get(&copy)?.live);
        chain.take_while(|(_, info)| info.copy == copy).last().map(|(layer, info)| (layer, *info))
    }

    pub(super) fn fold_layers(&mut self) -> Step {
        for _ in 0..STEPS_PER_TURN {
            let Some(job) = self.next_job().filter(|_| self.fold.work_left > 0) else {
                if !self.fold.quiet() {
                    return Step::Stay;
                }
                self.tried_all();
                self.gather_records();
                self.fold.stage = Stage::Catalog;
                return Step::On;
            };
            if self.fold.job != Some(job) {
                // What one moves, the next may move on.
                if !self.fold.quiet() {
                    return Step::Stay;
                }
                self.fold.job = Some(job);
            }
            // What is flattened takes pages for good; what is merged or released, only until the commit.
            let has_room = self.has_room_to_work() && (job != Job::Flatten || self.has_places(Changes::default()));
            if self.fold.moves.len() >= super::super::limits::MAX_MOVES_QUEUED || !has_room {
                if self.fold.quiet() && !self.tables.pages.are_places_coming() {
                    self.fold.work_left = 0;
                    continue;
                }
                return Step::Stay;
            }
            let done = match job {
                Job::Release(layer) => self.release_next(layer),
                Job::Merge(layer, child) => self.merge_next(layer, child),
                Job::Flatten => self.flatten_next(),
            };
            match done {
                Ok(over) => {
                    self.structure += 1;
                    self.fold.work_left -= 1;
                    self.fold.worked = true;
                    self.fold.merged |= matches!(job, Job::Merge(..));
                    if over {
                        self.fold.job = None;
                    }
                }
                // Space comes with the commit, if at all.
                Err(Wait::Full) if matches!(job, Job::Merge(layer, _) if self.fold.stuck.contains(&layer)) => {}
                Err(Wait::Full) => self.fold.work_left = 0,
                Err(wait) => return self.waits(wait),
            }
        }
        Step::Later
    }

    /// The layer's map goes, and the layer.
    fn remove_layer(&mut self, layer: LayerId) -> Result<bool, Wait> {
        loop {
            match self.tables.pages.free_array(ArrayName::map_of(layer.0)) {
                PageStep::Done => break,
                PageStep::Again => {}
                PageStep::Load => return Err(Wait::Load),
                PageStep::Full => return Err(Wait::Full),
            }
        }
        let parent = self.fold.frozen.layers.remove(layer).and_then(|info| info.parent);
        self.catalog.layers.remove(layer);
        self.fold.dropping.remove(layer);
        self.look_at(parent);
        self.fold.gone.push(layer);
        Ok(true)
    }

    /// What stands on a layer has changed.
    fn look_at(&mut self, layer: Option<LayerId>) {
        let dropping = layer.filter(|layer| self.fold.frozen.is_dropping(*layer));
        self.fold.dropping.unseen.extend(dropping);
    }

    /// The layer's record has a place in this checkpoint: its cursor moves.
    fn touch_layer(&mut self, layer: LayerId, chunk: u32) -> Result<(), Wait> {
        self.tables.touch_entry(layer, chunk)
    }

    fn set_cursor(&mut self, layer: LayerId, cursor: u32) {
        if let Some(tree) = self.tables.trees.get_mut(&layer) {
            tree.cursor = cursor;
        }
    }

    /// Give the next entry of a layer back. True when the layer is gone.
    fn release_next(&mut self, layer: LayerId) -> Result<bool, Wait> {
        let Some((chunk, entry)) = self.tables.next_entry(layer, 0)? else { return self.remove_layer(layer) };
        let record = entry.chunk.map(|physical| self.tables.chunk(physical)).transpose()?;
        self.touch_layer(layer, chunk)?;
        if let (Some(physical), Some(record)) = (entry.chunk, record) {
            self.tables.touch_chunk(physical)?;
            self.let_go(physical, &record, true)?;
        }
        self.empty_entry(layer, chunk, &entry)?;
        self.set_cursor(layer, chunk + 1);
        Ok(false)
    }

    /// Move the next entry of a layer to the one above. True when the layer is gone.
    fn merge_next(&mut self, layer: LayerId, child: LayerId) -> Result<bool, Wait> {
        let Some((chunk, lower)) = self.tables.next_entry(layer, 0)? else {
            let parents = [&self.fold.frozen, &self.catalog].map(|catalog| catalog.layers.get(layer)?.parent);
            let over = self.remove_layer(layer)?;
            for (catalog, parent) in [&mut self.fold.frozen, &mut self.catalog].into_iter().zip(parents) {
                for above in catalog.layers.above(layer).map(|(above, _)| above).collect::<Vec<_>>() {
                    catalog.layers.change(above, |info| info.parent = parent);
                }
            }
            return Ok(over);
        };
        let upper = self.tables.entry(child, chunk)?;
        let wanted = lower.present & !upper.decided();
        let zero = lower.zero & !upper.decided();
        let record = lower.chunk.map(|physical| self.tables.chunk(physical)).transpose()?;
        self.touch_layer(layer, chunk)?;
        if let Some(physical) = lower.chunk {
            self.tables.touch_chunk(physical)?;
        }
        let mut supplies: Vec<Supply> = lost_in(lower, !upper.decided()).into_iter().collect();
        if let (Some(record), true) = (record, wanted != 0) {
            supplies.push((wanted, lower, record));
        }
        let version = self.known_version(child, upper.version.max(lower.version));
        match self.absorb(child, chunk, upper, &supplies, zero, version, None) {
            Ok(_) => {}
            Err(Wait::Full) => {
                // No chunk to unshare with: when some are free again.
                self.fold.stuck.push(layer);
                return Err(Wait::Full);
            }
            Err(wait) => return Err(wait),
        }
        if let Some(physical) = lower.chunk {
            // Read again: if the child took it, the child is counted by now.
            let record = self.tables.chunk(physical)?;
            self.let_go(physical, &record, false)?;
        }
        self.empty_entry(layer, chunk, &lower)?;
        self.set_cursor(layer, chunk + 1);
        Ok(false)
    }

    /// What was moved or released is not said any more, so that a page of the map that says nothing more goes with the checkpoint: the map of
    /// the layer above may need as many.
    fn empty_entry(&mut self, layer: LayerId, chunk: u32, was: &Entry) -> Result<(), Wait> {
        let own = self.layer_info(layer).map_or(0, |(shard, _)| Self::growth(shard, was, &Entry::default()));
        self.tables.put_entry(layer, chunk, &Entry::default(), own)
    }

    /// Where the blocks of a chunk come from, from a layer down; and which of them it says are zeros.
    pub(super) fn supplies(&mut self, layer: LayerId, chunk: u32, wanted: Mask) -> Result<(Vec<Supply>, Mask), Wait> {
        let (mut left, mut zero, mut found) = (wanted, 0, Vec::new());
        let mut at = Some(layer);
        while let Some(layer) = at.filter(|_| left != 0) {
            let entry = self.tables.entry(layer, chunk)?;
            let present = entry.present & left;
            if let (Some(physical), true) = (entry.chunk, present != 0) {
                found.push((present, entry, self.tables.chunk(physical)?));
            }
            found.extend(lost_in(entry, left));
            zero |= entry.zero & left;
            left &= !entry.decided();
            at = self.fold.frozen.layers.get(layer).and_then(|info| info.parent);
        }
        Ok((found, zero))
    }

    /// Make an entry hold blocks of other chunks as well: it shares the chunk if it is the only one, and has them copied if not.
    /// `old` is what the entry is now, less what is replaced; a chunk of its own that it lost is the caller's. True if it shares.
    #[expect(clippy::too_many_arguments, reason = "an entry, and all that goes into it")]
    pub(super) fn absorb(
        &mut self,
        layer: LayerId,
        chunk: u32,
        old: Entry,
        supplies: &[Supply],
        zero: Mask,
        version: Stamp,
        mut share: Option<&mut u32>,
    ) -> Result<bool, Wait> {
        // Only what a living copy needs takes anything over: leaves that nobody needs are released before anything is merged. Going
        // on would lose what the layer below is about to give away.
        let Some((shard, has_parent)) = self.layer_info(layer) else { return Err(Wait::Damaged) };
        let before = self.tables.entry(layer, chunk)?;
        let (supplies, away): (Vec<Supply>, Vec<Supply>) =
            supplies.iter().partition(|(_, source, record)| source.chunk.is_some() && !record.lost);
        let mut lost = away.iter().fold(old.lost, |lost, (mask, ..)| lost | mask);
        self.tables.touch_entry(layer, chunk)?;
        if let Some(physical) = old.chunk {
            self.tables.touch_chunk(physical)?;
        }
        // Those that are copied from are only read.
        if let (None, [(_, entry, _)]) = (old.chunk, &supplies[..])
            && let Some(physical) = entry.chunk
        {
            self.tables.touch_chunk(physical)?;
        }
        let zero = if has_parent { old.zero | zero } else { old.zero };
        let mut entry = Entry { zero: zero & !lost, lost, version, ..old };
        if let (None, [(mask, source, record)]) = (old.chunk, &supplies[..])
            && let (Some(physical), true) = (source.chunk, record.refs < u16::MAX)
        {
            entry =
                Entry { chunk: source.chunk, present: *mask, zero: entry.zero & !mask, owner: source.owner, ..entry };
            let refs = record.refs + u16::from(!mutant::on("store-chunk-doubly-owned"));
            self.tables.put_chunk(physical, &ChunkRecord { refs, ..*record })?;
            self.tables.put_entry(layer, chunk, &entry, Self::growth(shard, &before, &entry))?;
            return Ok(true);
        }
        if supplies.is_empty() {
            let entry = self.emptied((layer, chunk), entry, has_parent);
            self.tables.put_entry(layer, chunk, &entry, Self::growth(shard, &before, &entry))?;
            return Ok(false);
        }
        let old_record = old.chunk.map(|physical| self.tables.chunk(physical)).transpose()?;
        let own = self.own_chunk(&old, old_record.as_ref());
        let target = match own {
            Some(own) => own,
            None => {
                let reserved = share.as_ref().is_some_and(|reserved| **reserved > 0);
                let taken = if reserved || self.space.has_spare() { self.space.take() } else { None };
                let taken = taken.ok_or(Wait::Full)?;
                if let Err(wait) = self.tables.touch_chunk(taken) {
                    self.space.give_back_unused(taken);
                    return Err(wait);
                }
                if let Some(reserved) = share.as_mut().filter(|_| reserved) {
                    **reserved -= 1;
                    self.space.unreserve(1);
                }
                taken
            }
        };
        let owner = if own.is_some() { old.owner } else { shard };
        let mut record = match own {
            Some(_) => old_record.unwrap_or_default(),
            None => ChunkRecord { refs: 1, ..ChunkRecord::default() },
        };
        let mut present = old.present;
        if let (None, Some(physical), Some(shared)) = (own, old.chunk, old_record) {
            if shared.lost {
                lost |= std::mem::take(&mut present);
            }
            self.copy_blocks((physical, &shared, old.owner), present, (target, &mut record, owner), (layer, chunk));
            self.let_go(physical, &shared, false)?;
        }
        for (mask, source, shared) in &supplies {
            let Some(physical) = source.chunk else { continue };
            self.copy_blocks((physical, shared, source.owner), *mask, (target, &mut record, owner), (layer, chunk));
            present |= mask;
        }
        entry = Entry { chunk: Some(target), present, zero: zero & !(present | lost), lost, owner, ..entry };
        self.tables.put_chunk(target, &record)?;
        self.tables.put_entry(layer, chunk, &entry, Self::growth(shard, &before, &entry))?;
        Ok(false)
    }

    /// The next chunk of a clone that its parent still supplies. True when it needs it no more.
    fn flatten_next(&mut self) -> Result<bool, Wait> {
        let Some(n) = self.next_flatten() else { return Ok(true) };
        let super::Flatten { copy, cursor, .. } = self.fold.flattens[n];
        // A copy that is gone needs nothing.
        let Some((bottom, info)) = self.bottom(copy) else {
            self.fold.flattens[n].done = true;
            return Ok(true);
        };
        let Some(parent) = info.parent else {
            self.fold.flattens[n].done = true;
            return Ok(true);
        };
        let end = info.blocks.div_ceil(CHUNK_BLOCKS);
        let mut next: Option<u32> = None;
        let mut at = Some(parent);
        while let Some(layer) = at {
            let found = self.tables.next_entry(layer, cursor)?.map(|(chunk, _)| chunk);
            next = next.into_iter().chain(found).min();
            at = self.fold.frozen.layers.get(layer).and_then(|info| info.parent);
        }
        let Some(chunk) = next.filter(|chunk| *chunk < end) else {
            // Not in the live catalog before the commit: until then a replay finds the clone standing on its parent, which nobody
            // may delete.
            self.fold.frozen.layers.change(bottom, |info| info.parent = None);
            self.look_at(Some(parent));
            self.fold.flattens[n].done = true;
            return Ok(true);
        };
        let old = self.tables.entry(bottom, chunk)?;
        let (supplies, _) = self.supplies(parent, chunk, !old.decided())?;
        if !supplies.is_empty() {
            match self.absorb(bottom, chunk, old, &supplies, 0, old.version, None) {
                Ok(_) => {}
                Err(Wait::Full) => {
                    let Some(flatten) = self.fold.flattens.remove(n) else { return Ok(true) };
                    self.end_waiting(flatten.key, Err(StoreError::NoSpace));
                    return Ok(true);
                }
                Err(wait) => return Err(wait),
            }
        }
        self.fold.flattens[n].cursor = chunk + 1;
        Ok(false)
    }
}
