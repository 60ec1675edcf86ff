//! Discards and patches become entries: where each block goes, and what is given back.

use super::super::engine::JournaledStore;
use super::super::entry::{ALL, ChunkNo, ChunkRecord, Entry, Mask, blocks, plain_crc, stored_crc};
use super::super::layers::LayerId;
use super::super::limits::{CHUNK_BLOCKS, ENTRIES_PER_LEAF, LOOK_AHEAD, MAX_MOVES_QUEUED, STEPS_PER_TURN};
use super::super::overlay::Key;
use super::super::patch::{Patch, Spot};
use super::super::tables::Wait;
use super::moves::Homeward;
use super::{Stage, Step};
use conductor_model::{BLOCK, CopyState, ShardId, Stamp};
use driver::mutant;

impl JournaledStore {
    /// The shard whose identity a layer's new chunks carry, and whether a layer is below; `None` if the layer is gone.
    pub(super) fn layer_info(&self, layer: LayerId) -> Option<(ShardId, bool)> {
        let info = self.fold.frozen.layers.get(layer)?;
        let copy = self.fold.frozen.copies.get(&info.copy)?;
        Some((copy.config.shard, info.parent.is_some()))
    }

    /// True if a tombstone of this version is not needed any more (rule 7).
    fn is_purgeable(&self, layer: LayerId, version: Stamp) -> bool {
        if mutant::on("store-tombstone-dropped") {
            return true;
        }
        let copy = self.fold.frozen.layers.get(layer).and_then(|info| self.catalog.copies.get(&info.copy));
        copy.is_some_and(|copy| {
            version <= copy.known_good && copy.config.members.iter().all(|member| member.state == CopyState::InSync)
        })
    }

    /// By how many a layer's own chunks grow.
    pub(super) fn growth(shard: ShardId, old: &Entry, new: &Entry) -> i64 {
        let own = |entry: &Entry| i64::from(entry.chunk.is_some() && entry.owner == shard);
        own(new) - own(old)
    }

    /// An entry's chunk, if nothing else needs what is in it: not now, not in the last checkpoint, and no read that began when it
    /// was shared.
    pub(in super::super) fn own_chunk(&self, entry: &Entry, record: Option<&ChunkRecord>) -> Option<ChunkNo> {
        let alone = record.is_some_and(|record| record.refs == 1);
        let read = |chunk: &ChunkNo| self.lingering.get(chunk).is_some_and(|era| !self.eras.is_over(*era));
        entry.chunk.filter(|chunk| alone && !self.fold.unshared.contains(chunk) && !read(chunk))
    }

    /// One entry less shares a chunk; the record was touched before.
    pub(super) fn let_go(&mut self, chunk: ChunkNo, record: &ChunkRecord, discarded: bool) -> Result<(), Wait> {
        if record.lost {
            return Ok(());
        }
        let refs = record.refs.saturating_sub(u16::from(!mutant::on("store-chunk-leaked")));
        self.tables.put_chunk(chunk, &ChunkRecord { refs, ..*record })?;
        if refs == 0 {
            self.fold.freed.push((chunk, discarded));
        } else {
            self.fold.unshared.insert(chunk);
        }
        Ok(())
    }

    /// What an entry without data becomes: a tombstone, as long as one is needed.
    pub(super) fn emptied(&self, key: Key, entry: Entry, has_parent: bool) -> Entry {
        if entry.present | entry.lost != 0 || entry.chunk.is_some() || has_parent {
            return entry;
        }
        // Without a layer below all of it reads as zeros.
        match self.is_purgeable(key.0, entry.version) {
            true => Entry::default(),
            false => Entry { zero: ALL, ..entry },
        }
    }

    /// Discarded ranges: their entries go.
    pub(super) fn fold_ranges(&mut self) -> Step {
        for _ in 0..STEPS_PER_TURN {
            let Some(discard) = self.fold.discards.front().copied() else {
                self.fold.stage = Stage::Patches;
                return Step::On;
            };
            match self.discard_next(discard) {
                Ok(Some(next)) if next < discard.end => {
                    if let Some(front) = self.fold.discards.front_mut() {
                        front.next = next;
                    }
                }
                Ok(_) => {
                    self.fold.discards.pop_front();
                }
                Err(wait) => {
                    if wait == Wait::Load && !mutant::on("store-discard-read-alone") {
                        self.ask_for_discarded();
                    }
                    return self.waits(wait);
                }
            }
        }
        Step::Later
    }

    /// Ask for the pages of the next chunks that are discarded: those of their records, as many as there are chunks where it was written here and
    /// there, and those of the map itself where it is thin.
    fn ask_for_discarded(&mut self) {
        let (mut asked, mut looked) = (0, 0);
        for n in 0..self.fold.discards.len().min(LOOK_AHEAD) {
            let Some(super::Discard { layer, mut next, end, .. }) = self.fold.discards.get(n).copied() else { return };
            while asked < LOOK_AHEAD
                && looked < LOOK_AHEAD * LOOK_AHEAD
                && let Ok(Some(chunk)) = self.next_said(layer, next)
                && chunk < end
            {
                (looked, next) = (looked + 1, chunk + 1);
                // What is asked for comes later.
                match self.tables.entry(layer, chunk) {
                    Ok(Entry { chunk: Some(physical), .. }) => {
                        let _ = self.tables.chunk(physical);
                        asked += 1;
                    }
                    Ok(_) => {}
                    Err(_) => (asked, next) = (asked + 1, (chunk / ENTRIES_PER_LEAF + 1) * ENTRIES_PER_LEAF),
                }
            }
        }
    }

    /// The next entry of a discard; where to go on.
    fn discard_next(&mut self, discard: super::Discard) -> Result<Option<u32>, Wait> {
        let super::Discard { layer, next, end, version } = discard;
        let Some((shard, has_parent)) = self.layer_info(layer) else { return Ok(None) };
        let Some(chunk) = self.next_said(layer, next)?.filter(|chunk| *chunk < end) else { return Ok(None) };
        let old = self.tables.entry(layer, chunk)?;
        if old.is_absent() && !has_parent {
            return Ok(Some(chunk + 1));
        }
        let record = old.chunk.map(|physical| self.tables.chunk(physical)).transpose()?;
        self.tables.touch_entry(layer, chunk)?;
        if let Some(physical) = old.chunk {
            self.tables.touch_chunk(physical)?;
        }
        let kept = old.chunk.filter(|_| self.claims.contains_key(&(layer, chunk)));
        let version = old.version.max(version);
        let entry = Entry { chunk: kept, present: 0, zero: ALL, lost: 0, version, owner: old.owner };
        let entry = self.emptied((layer, chunk), entry, has_parent);
        self.tables.put_entry(layer, chunk, &entry, Self::growth(shard, &old, &entry))?;
        if let (Some(physical), Some(record), None) = (old.chunk, record, kept) {
            self.let_go(physical, &record, true)?;
        }
        Ok(Some(chunk + 1))
    }

    /// Patches, in order of their places.
    pub(super) fn fold_patches(&mut self) -> Step {
        let Some(mut folding) = self.folding.take() else { return Step::Stay };
        let mut step = Step::Later;
        for _ in 0..STEPS_PER_TURN {
            let Some(key) = self.fold.patch else {
                // What follows reads chunks that patches are being moved to.
                step = if self.fold.quiet() {
                    self.fold.stage = Stage::Shares;
                    Step::On
                } else {
                    Step::Stay
                };
                break;
            };
            if self.fold.moves.len() >= MAX_MOVES_QUEUED {
                step = Step::Stay;
                break;
            }
            if let Some(patch) = folding.patches.get_mut(key)
                && let Err(wait) = self.fold_patch(key, patch)
            {
                if wait == Wait::Load {
                    for ((layer, chunk), _) in folding.patches.from(key).take(LOOK_AHEAD) {
                        if let Ok(super::super::entry::Entry { chunk: Some(physical), .. }) =
                            self.tables.entry(layer, chunk)
                        {
                            let _ = self.tables.chunk(physical); // asked for; its answer comes later
                        }
                    }
                }
                step = self.waits(wait);
                break;
            }
            self.fold.course.placed();
            self.fold.patch = folding.patches.from(key).map(|(next, _)| next).find(|next| *next > key);
        }
        self.folding = Some(folding);
        step
    }

    fn fold_patch(&mut self, key: Key, patch: &mut Patch) -> Result<(), Wait> {
        let (layer, chunk) = key;
        let Some((shard, has_parent)) = self.layer_info(layer) else { return Ok(()) };
        let old = self.tables.entry(layer, chunk)?;
        let old_record = old.chunk.map(|physical| self.tables.chunk(physical)).transpose()?;
        let (zeros, written) = (patch.zeros(), patch.written());
        let mut keep = old.present & !patch.decided();
        let mut lost = old.lost & !patch.decided() | patch.lost();
        let in_place = patch.direct.is_none() && self.own_chunk(&old, old_record.as_ref()).is_some();
        self.tables.touch_entry(layer, chunk)?;
        if let Some(physical) = old.chunk {
            self.tables.touch_chunk(physical)?;
        }
        let target = match (written, patch.direct) {
            (0, _) => None,
            (_, Some(direct)) => Some(direct),
            (_, None) if in_place => old.chunk,
            (_, None) => Some(self.space.take().ok_or(Wait::Full)?),
        };
        let fresh = target != old.chunk && target.is_some();
        if let (Some(target), true) = (target, fresh)
            && let Err(wait) = self.tables.touch_chunk(target)
        {
            if patch.direct.is_none() {
                self.space.give_back_unused(target);
            }
            return Err(wait);
        }
        // From here on nothing can be missing.
        if std::mem::take(&mut patch.reserved) {
            self.space.unreserve(1);
        }
        let version = old.version.max(patch.version);
        let Some(target) = target else {
            // Promises to writes that are in this patch are kept by now, or overtaken by its zeros.
            let promised = self.claims.get(&key).is_some_and(|claims| *claims > patch.claims);
            let kept = old.chunk.filter(|_| keep != 0 || promised);
            let zero = (old.zero | zeros) & !lost;
            let entry = Entry { chunk: kept, present: keep, zero, lost, version, owner: old.owner };
            let entry = self.emptied(key, entry, has_parent);
            self.tables.put_entry(layer, chunk, &entry, Self::growth(shard, &old, &entry))?;
            if let (Some(physical), Some(record), None) = (old.chunk, old_record, kept) {
                self.let_go(physical, &record, true)?;
            }
            return Ok(());
        };
        let owner = if fresh { shard } else { old.owner };
        let mut record =
            if fresh { ChunkRecord { refs: 1, ..ChunkRecord::default() } } else { old_record.unwrap_or_default() };
        let base = target.index() * CHUNK_BLOCKS; // as blocks of all chunks are counted in 32 bits
        for block in patch.blocks() {
            let n = u32::from(block.n);
            match block.spot {
                Spot::Zero | Spot::Lost => continue,
                Spot::Direct => {}
                Spot::Journal(from) => {
                    let block = Homeward { from, to: base + n, crc: block.crc, key, n: block.n };
                    self.fold.send_home(block, self.ring_place.blocks);
                }
            }
            record.crcs[n as usize] = stored_crc(block.crc, owner, chunk * CHUNK_BLOCKS + n);
        }
        if let (Some(physical), Some(shared), true) = (old.chunk, old_record, fresh) {
            if shared.lost {
                lost |= std::mem::take(&mut keep);
            }
            self.copy_blocks((physical, &shared, old.owner), keep, (target, &mut record, owner), key);
            self.let_go(physical, &shared, false)?;
        }
        let entry = Entry {
            chunk: Some(target),
            present: keep | written,
            zero: if has_parent { (old.zero | zeros) & !(written | lost) } else { 0 },
            lost,
            version,
            owner,
        };
        self.tables.put_chunk(target, &record)?;
        self.tables.put_entry(layer, chunk, &entry, Self::growth(shard, &old, &entry))
    }

    /// Copy blocks of one physical chunk to another, and their checksums with the other's identity. Until the commit they are read
    /// where they were.
    pub(super) fn copy_blocks(
        &mut self,
        (source, shared, old_owner): (ChunkNo, &ChunkRecord, ShardId),
        which: Mask,
        (target, record, owner): (ChunkNo, &mut ChunkRecord, ShardId),
        (layer, chunk): Key,
    ) {
        let (from, to) = (self.place.geometry.chunk(source), target.index() * CHUNK_BLOCKS);
        for n in blocks(which) {
            let (at, block) = (u64::from(n) * BLOCK as u64, chunk * CHUNK_BLOCKS + n);
            let plain = plain_crc(shared.crcs[n as usize], old_owner, block);
            record.crcs[n as usize] = stored_crc(plain, owner, block);
            self.fold.queue_move(self.place.disk, from + at, to + n, plain);
            self.copying.entry((layer, chunk)).or_default().push((n, from + at, plain));
        }
    }
}
