//! Which chunks of a view were changed above a stamp: the list that filling a copy stands on (rules 3 and 7).
//!
//! ```text
//! version of a chunk = the newest of, over the view's layer and those below it that are the copy's own:
//!     base of the layer | entry (tombstones too) | patch | copy-range that waits | discarded run, where anything is said below it
//! ```
//! Neither pages nor layers know the newest version in them, so all entries of the layers are looked at; holes are skipped by the
//! pages. So many in one turn, so that requests do not wait. An answer names too much rather than too little, never a chunk
//! of which nothing was ever said, and is given when it is full or the end is reached: it is never empty before the end.

use super::engine::{JournaledStore, Pending};
use super::entry::{ALL, UNKNOWN};
use super::layers::LayerId;
use super::limits::{CHANGED_AHEAD, CHANGED_RANGES, CHANGED_STEPS, CHUNK_BLOCKS, ENTRIES_PER_LEAF};
use super::overlay::Overlay;
use super::pages::ArrayName;
use super::tables::Wait;
use crate::{StoreDone, StoreError, Tag, View};
use conductor_model::{BlockRange, Blocks, CopyId, Epoch, Sequence, Stamp};
use driver::{Time, mutant};
use smallvec::SmallVec;

/// What a clone has from its parent counts as this old: before everything that was ever stamped.
pub(super) const INHERITED: Stamp = Stamp { epoch: Epoch(1), sequence: Sequence(0) };

/// A `Changed` under way.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) tag: Tag,
    copy: CopyId,
    view: View,
    above: Stamp,
    /// The chunk to look at next.
    next: u32,
    chunks: Vec<(BlockRange, Stamp)>,
}

/// How far a turn has brought it.
enum Progress {
    /// To the end, or the answer is full: the block to ask on from.
    Over(Blocks),
    /// A page has to come.
    Load,
    /// The turn was long enough.
    Later,
}

/// The layers of a view, from the top.
struct Layers {
    /// Of the copy itself.
    own: SmallVec<[LayerId; 4]>,
    /// Below those: a clone's parent.
    below: SmallVec<[LayerId; 4]>,
    /// The version of all that has no entry.
    base: Stamp,
    blocks: u32,
    /// What is below counts as well: all is asked for, or a discard waits that may cover it.
    deep: bool,
}

impl Listing {
    pub(super) fn new(tag: Tag, copy: CopyId, view: View, above: Stamp, next: u32) -> Self {
        Self { tag, copy, view, above, next, chunks: Vec::new() }
    }

    /// Name chunks `from..to`.
    fn push(&mut self, from: u32, to: u32, version: Stamp, blocks: u32) {
        let start = from * CHUNK_BLOCKS;
        let count = (to.saturating_mul(CHUNK_BLOCKS)).min(blocks).saturating_sub(start);
        match self.chunks.last_mut() {
            _ if count == 0 => {}
            Some((at, last)) if *last == version && at.end() == u64::from(start) => at.count.0 += count,
            _ => self.chunks.push((BlockRange { from: Blocks(start), count: Blocks(count) }, version)),
        }
    }
}

impl JournaledStore {
    /// Go on with a `Changed`.
    pub(super) fn list_on(&mut self, key: usize) {
        let Some(slot @ Pending::Changed(_)) = self.pending.get_mut(key) else { return };
        let Pending::Changed(mut listing) = slot.take() else { return };
        let result = match self.list(&mut listing) {
            Ok(Progress::Load) => {
                self.pending[key] = Pending::Changed(listing);
                return self.looking.push_back(key);
            }
            Ok(Progress::Later) => {
                self.pending[key] = Pending::Changed(listing);
                return self.listing.push_back(key);
            }
            Ok(Progress::Over(next)) => Ok(StoreDone::Changed { chunks: listing.chunks, next }),
            Err(error) => Err(error),
        };
        self.pending.remove(key);
        self.finish(listing.tag, result);
    }

    /// The next of those that took a turn's worth: one in each turn.
    pub(super) fn list_turn(&mut self, now: Time) {
        if let Some(key) = self.listing.pop_front() {
            self.list_on(key);
        }
        if !self.listing.is_empty() {
            self.retry = Some(now);
        }
    }

    fn list(&mut self, listing: &mut Listing) -> Result<Progress, StoreError> {
        let layers = self.layers_of(listing)?;
        let end = layers.blocks.div_ceil(CHUNK_BLOCKS);
        for _ in 0..(CHANGED_STEPS / (layers.own.len() + layers.below.len())).max(1) {
            if listing.next >= end {
                return Ok(Progress::Over(Blocks(layers.blocks)));
            }
            if listing.chunks.len() + 2 > CHANGED_RANGES {
                return Ok(Progress::Over(Blocks(listing.next * CHUNK_BLOCKS)));
            }
            match self.list_next(listing, &layers, end) {
                Ok(()) => {}
                Err(Wait::Load) => {
                    self.load_ahead(&layers, listing.next);
                    return Ok(Progress::Load);
                }
                // What cannot be listed cannot be filled either.
                Err(Wait::Damaged | Wait::Full) => {
                    let block = Blocks(listing.next * CHUNK_BLOCKS);
                    return Err(StoreError::Corrupt { copy: listing.copy, block });
                }
            }
        }
        Ok(Progress::Later)
    }

    /// The layers as they are now: between two turns a view may get others.
    fn layers_of(&self, listing: &Listing) -> Result<Layers, StoreError> {
        let top = self.layer_of(listing.copy, listing.view)?;
        let (mut own, mut below) = (SmallVec::new(), SmallVec::new());
        let mut base = Stamp::default();
        for (id, layer) in self.catalog.chain(top) {
            if layer.copy == listing.copy && below.is_empty() {
                own.push(id);
                base = base.max(layer.base);
            } else {
                below.push(id);
            }
        }
        let blocks = self.catalog.layers.get(top).map_or(0, |layer| layer.blocks);
        let discards = |overlay: &Overlay| own.iter().any(|layer| overlay.ranges.contains_key(layer));
        let deep = listing.above == Stamp::default() || self.generations().any(discards);
        Ok(Layers { own, below, base, blocks, deep })
    }

    /// Look at the next chunk of which anything is said.
    fn list_next(&mut self, listing: &mut Listing, layers: &Layers, end: u32) -> Result<(), Wait> {
        let from = listing.next;
        // Of what can be changed, rather too much than too little: what is lost here, another copy may have. Of a snapshot it must be known how
        // new it is, for that is how far its filling brings a copy.
        let guesses = listing.view == View::Live || mutant::on("store-lost-guessed");
        let said = match self.next_listed(layers, from) {
            Err(Wait::Damaged) if guesses => from,
            said => said?.map_or(end, |said| said.min(end)),
        };
        let version = match (said < end).then(|| self.version_in(layers, said, listing.above)).transpose() {
            Err(Wait::Damaged) if guesses => Some(self.unknown_version(listing)),
            version => version?.flatten(),
        };
        if layers.base > listing.above {
            listing.push(from, said, layers.base, layers.blocks);
        }
        if let Some(version) = version.filter(|version| *version > listing.above) {
            listing.push(said, said + 1, version, layers.blocks);
        }
        listing.next = said.saturating_add(1).min(end);
        Ok(())
    }

    /// For what is changed at most as lately as anything that the copy has.
    fn unknown_version(&self, listing: &Listing) -> Stamp {
        let newest = self.catalog.newest(listing.copy);
        if mutant::on("store-lost-unlisted") {
            return Stamp::default();
        }
        if listing.above == Stamp::default() { newest.max(INHERITED) } else { newest }
    }

    /// The first chunk at or after `from` of which anything may be said that counts.
    fn next_listed(&mut self, layers: &Layers, from: u32) -> Result<Option<u32>, Wait> {
        let mut next: Option<u32> = None;
        let below = layers.below.iter().filter(|_| layers.deep);
        for &layer in layers.own.iter().chain(below) {
            let shared = self.generations().flat_map(|overlay| &overlay.shares).filter(|share| share.layer == layer);
            let shared = shared.map(|share| share.chunks()).filter(|chunks| from < chunks.end);
            let shared = shared.map(|chunks| from.max(chunks.start)).min();
            next = self.said_by(layer, from)?.into_iter().chain(shared).chain(next).min();
            if next == Some(from) {
                break;
            }
        }
        Ok(next)
    }

    /// The version of a chunk; `None` if nothing is said of it.
    fn version_in(&mut self, layers: &Layers, chunk: u32, above: Stamp) -> Result<Option<Stamp>, Wait> {
        let forgets = mutant::on("store-changed-forgets-tombstones");
        let (mut said, mut version, mut discarded) = (false, layers.base, Stamp::default());
        for &layer in &layers.own {
            for overlay in self.generations() {
                let patch = overlay.patches.get((layer, chunk));
                let patch = patch.filter(|patch| !forgets || patch.zeros() != ALL).map(|patch| patch.version);
                let shares = overlay.shares.iter().filter(|share| share.layer == layer);
                let shares = shares.filter(|share| share.chunks().contains(&chunk)).map(|share| share.stamp);
                for changed in patch.into_iter().chain(shares) {
                    (said, version) = (true, version.max(changed));
                }
                let range = overlay.range_over((layer, chunk)).filter(|_| !forgets);
                discarded = discarded.max(range.map_or(Stamp::default(), |range| range.version));
            }
            let entry = self.tables.entry(layer, chunk)?;
            if !entry.is_absent() && (!forgets || entry.chunk.is_some()) {
                (said, version) = (true, version.max(entry.version));
            }
        }
        for &layer in layers.below.iter().filter(|_| layers.deep) {
            said |= self.generations().any(|overlay| overlay.patches.contains((layer, chunk)));
            if said {
                break;
            }
            said = !self.tables.entry(layer, chunk)?.is_absent();
        }
        if said {
            version = version.max(discarded);
            if above == Stamp::default() {
                version = version.max(INHERITED);
            }
        }
        // Lost, in a layer below.
        if version == UNKNOWN {
            return Err(Wait::Damaged);
        }
        Ok((said || version > above).then_some(version))
    }

    /// Ask for the next pages together: one after the other, each would take a turn of the disk.
    fn load_ahead(&mut self, layers: &Layers, chunk: u32) {
        let leaves = CHANGED_AHEAD / u32::try_from(layers.own.len()).unwrap_or(u32::MAX); // few of many layers
        for leaf in 1..=leaves {
            let ahead = u64::from(chunk) + u64::from(leaf * ENTRIES_PER_LEAF);
            for layer in &layers.own {
                let _ = self.tables.next(ArrayName::map_of(layer.0), ahead); // asked for; its answer comes later
            }
        }
    }

    fn generations(&self) -> impl Iterator<Item = &Overlay> {
        std::iter::once(&self.fresh).chain(&self.folding)
    }
}
