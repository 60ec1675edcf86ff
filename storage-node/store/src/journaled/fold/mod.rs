//! The fold: what is durable in the journal goes home, and the pages learn of it, in the background.
//!
//! ```text
//! Idle ─freeze─► Journal ─► Ranges ─► Patches ─► (moves over) Shares ─► Layers ─► (moves over) Catalog ─► Inner ─► Roots ─► Outer ─► Hidden ─► Sync
//!   ▲                                                                                                                               │
//!   └── commit: tail, freed pages and chunks ◄── superblock B durable ◄── superblock A durable ◄─────────────────────────────────────┘
//! ```
//! It changes entries and chunk records in the cache, and tells the disk what to move; readers see none of it before the commit,
//! because the frozen generation hides what it changes. One sync covers moved data and pages: both are named only by the
//! superblocks that follow.

mod commit;
mod course;
mod layers;
mod lost;
mod moves;
mod parts;
mod patches;
mod shares;

use super::engine::JournaledStore;
use super::entry::ChunkNo;
use super::layers::{Catalog, LayerId};
use super::limits::{DISCARD_PIECE, FOLD_AT, MAX_PATCHES, MAX_RANGES, UNREAD_LONG};
use super::overlay::Key;
use super::pages::ArrayName;
use super::ring::{JournalBlock, Mark};
use crate::{DiskOut, Tag};
pub(super) use commit::{decode_copy, decode_held, decode_layer};
use conductor_model::{CopyId, Stamp};
use course::{Course, Pace};
use driver::{DiskIndex, Errno, Time, mutant};
use memory::Filling;
use moves::{Homing, Move, Store};
use parts::Milestones;
use slab::Slab;
use std::collections::{BTreeSet, VecDeque};

/// Where a fold is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Journal,
    Ranges,
    Patches,
    Shares,
    Layers,
    Catalog,
    Inner,
    Roots,
    Outer,
    Hidden,
    Sync,
    Super(usize),
}

/// Whether a stage has come to something that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Call again, perhaps in another stage.
    On,
    /// Call again in the next turn: requests have waited long enough.
    Later,
    /// Something has to come first: a page, a move, the disk.
    Stay,
}

/// How much of a generation is folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    All,
    /// What came before the oldest milestone.
    Part,
}

/// Discarded chunks whose entries are to go.
#[derive(Clone, Copy, Debug)]
struct Discard {
    layer: LayerId,
    next: u32,
    end: u32,
    version: Stamp,
}

/// A clone that is to need its parent no more.
#[derive(Clone, Copy, Debug)]
struct Flatten {
    key: usize,
    copy: CopyId,
    cursor: u32,
    /// A fold has come to it.
    tried: bool,
    done: bool,
}

/// What the fold works on.
#[derive(Debug)]
pub(super) struct Fold {
    stage: Stage,
    wanted: bool,
    /// One is due, be there anything to fold or not: what only checkpoints write was written long ago.
    renews: bool,
    /// Something waits for the one that is under way.
    urgent: bool,
    /// Copies and layers as of the last checkpoint, and as of the next.
    pub(super) persisted: Catalog,
    pub(super) frozen: Catalog,
    mark: Mark,
    /// Where the journal began when the generation was complete.
    tail: JournalBlock,
    /// Where parts of the fresh generation end.
    pub(super) milestones: Milestones,
    discards: VecDeque<Discard>,
    /// The patch that comes next.
    patch: Option<Key>,
    /// The copy-range in hand, and its next chunk.
    share: (usize, u32),
    /// Operations whose copy-ranges are in the fresh and in the folding generation.
    fresh_shares: Vec<usize>,
    share_keys: Vec<usize>,
    flattens: VecDeque<Flatten>,
    /// Entries that a fold may release, merge or share, and that this one still may.
    work_per_fold: u32,
    work_left: u32,
    /// Chunks that one generation discards in ranges.
    pub(super) discarded_per_fold: u32,
    /// What is being done about layers.
    job: Option<layers::Job>,
    /// A layer whose merging waits for space, in this fold.
    stuck: Vec<LayerId>,
    dropping: layers::Dropping,
    /// Something is left for the next fold.
    work: bool,
    /// Which layers are needed has changed since that was found out: once for all that changes it at a time, as all layers are looked at.
    unsearched: bool,
    /// This one did something about layers.
    worked: bool,
    /// This one moved entries of a layer to the one above.
    merged: bool,
    homing: Homing,
    moves: VecDeque<Move>,
    moving: Slab<Move>,
    /// Where blocks were, on which disk, that did not read well and go home as they are.
    bruised: BTreeSet<(DiskIndex, u64)>,
    /// Blocks read, or being read, for them.
    moving_blocks: u32,
    /// Moves of what could not be read twice, until that is tried again: at most one for each block of a generation.
    unread: Vec<Move>,
    /// Writes of what was read, that wait for a turn.
    stores: VecDeque<Store>,
    pace: Pace,
    course: Course,
    /// There is time for what is to be read next.
    early: bool,
    /// What hides blocks that were left in the journal is before this.
    hidden_by: Option<Mark>,
    /// How much of the generation it takes up.
    extent: Extent,
    /// When a page was first met that could not be read.
    unread_since: Option<Time>,
    /// Chunks that come back with the commit; true if what they held was discarded.
    freed: Vec<(ChunkNo, bool)>,
    /// Chunks that fewer entries share than in the last checkpoint: that one still needs their content as it is.
    unshared: BTreeSet<ChunkNo>,
    /// Layers that are gone with the commit.
    gone: Vec<LayerId>,
    /// Records of the outer arrays to be written.
    records: VecDeque<(ArrayName, u64, Vec<u8>)>,
    in_flight: bool,
    sync_point: u64,
    buffer: Option<Filling>,
}

impl Fold {
    pub(super) fn new(persisted: Catalog, mark: Mark, (work_per_fold, discarded_per_fold): (u32, u32)) -> Self {
        Self {
            stage: Stage::Idle,
            wanted: false,
            renews: false,
            urgent: false,
            frozen: persisted.clone(),
            persisted,
            mark,
            milestones: Milestones::new(mark),
            tail: JournalBlock(0),
            discards: VecDeque::new(),
            patch: None,
            share: (0, 0),
            fresh_shares: Vec::new(),
            share_keys: Vec::new(),
            flattens: VecDeque::new(),
            work_per_fold: work_per_fold.max(1),
            work_left: 0,
            discarded_per_fold: discarded_per_fold.max(2 * DISCARD_PIECE),
            job: None,
            stuck: Vec::new(),
            dropping: layers::Dropping::default(),
            work: false,
            unsearched: true,
            worked: false,
            merged: false,
            homing: Homing::new(),
            moves: VecDeque::new(),
            moving: Slab::new(),
            unread: Vec::new(),
            moving_blocks: 0,
            stores: VecDeque::new(),
            pace: Pace::default(),
            course: Course::default(),
            early: false,
            hidden_by: None,
            extent: Extent::All,
            bruised: BTreeSet::new(),
            unread_since: None,
            freed: Vec::new(),
            unshared: BTreeSet::new(),
            gone: Vec::new(),
            records: VecDeque::new(),
            in_flight: false,
            sync_point: 0,
            buffer: None,
        }
    }

    /// Something waits for what a fold gives.
    pub(super) fn want(&mut self) {
        (self.wanted, self.urgent) = (true, true);
    }

    /// Have a checkpoint written even if there is nothing to fold.
    pub(super) fn renew(&mut self) {
        self.renews = self.is_idle();
    }

    /// Which layers are needed has changed.
    pub(super) fn layers_changed(&mut self) {
        self.unsearched = true;
    }

    /// True if none is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// True if it does nothing before there is less room, or nothing was asked for some time.
    pub(super) fn is_early(&self) -> bool {
        self.early
    }

    /// True if it asks nothing of the disk.
    pub(super) fn rests(&self) -> bool {
        self.is_idle() || (self.early && self.stores.is_empty() && self.moving.is_empty())
    }

    /// A copy-range was applied to the fresh generation: its operation is over with that one's commit.
    pub(super) fn share_added(&mut self, key: usize) {
        self.fresh_shares.push(key);
    }

    /// The disk has failed: what it was not asked for yet, it never is.
    pub(super) fn give_up(&mut self) {
        self.stores.clear();
        self.moves.clear();
        self.unread.clear();
        self.homing.clear();
    }

    fn quiet(&self) -> bool {
        self.homing.is_empty() && self.moves.is_empty() && self.unread.is_empty() && self.moving.is_empty()
    }
}

impl JournaledStore {
    /// Chunks that the generation of changes which is not being folded discards in ranges: for tests.
    pub fn discarding(&self) -> usize {
        self.fresh.discarded_chunks()
    }

    /// True while a fold is under way that merges a layer into the one above: the crash tests stop in the midst of it.
    pub fn is_merging(&self) -> bool {
        self.fold.merged
    }

    /// True while the oldest part of a generation is folded: the crash tests stop in the midst of it.
    pub fn is_folding_part(&self) -> bool {
        self.fold.extent == Extent::Part && !self.fold.is_idle()
    }

    /// True if the last fold was one of the oldest part of a generation: the crash tests stop then.
    pub fn has_folded_part(&self) -> bool {
        self.fold.extent == Extent::Part && self.fold.is_idle()
    }

    /// True if the last fold took up all of a generation, and left blocks where they were that newer ones hide, which are not home either: the
    /// crash tests stop then.
    pub fn is_hiding(&self) -> bool {
        self.fold.extent == Extent::All && self.fold.hidden_by.is_some() && self.fold.is_idle()
    }

    /// True if layers are to be released, merged or flattened.
    pub(super) fn has_work(&self) -> bool {
        self.fold.work || !self.fold.flattens.is_empty()
    }

    /// The end of a turn: begin a fold, or go on with it.
    pub(super) fn fold_turn(&mut self, now: Time, out: &mut DiskOut<'_>) {
        self.set_milestone();
        if self.fold.is_idle() {
            let Some(extent) = self.due(now) else {
                self.fold.wanted &= !self.fresh.is_empty();
                self.fold.urgent &= self.fold.wanted;
                return;
            };
            self.freeze(extent);
        }
        loop {
            self.tables.pages.met_bad(); // by others
            let step = match self.fold.stage {
                Stage::Idle => Step::Stay,
                Stage::Journal => self.settle_journal(out),
                Stage::Ranges => self.fold_ranges(),
                Stage::Patches => self.fold_patches(),
                Stage::Shares => self.fold_shares(),
                Stage::Layers => self.fold_layers(),
                Stage::Catalog | Stage::Roots => self.put_records(),
                Stage::Inner => self.write_inner(now, out),
                Stage::Outer => self.write_outer(now, out),
                Stage::Hidden => self.settle_hidden(out),
                Stage::Sync => self.sync(out),
                Stage::Super(n) => self.write_superblock(n, now, out),
            };
            if step == Step::Later {
                self.retry = Some(now);
            }
            if step != Step::Stay {
                self.fold.unread_since = None;
            }
            if step != Step::On || self.failed.is_some() {
                break;
            }
        }
        self.move_on(now, out);
    }

    /// True if folds are to give back what they can.
    pub(super) fn is_scarce(&self) -> bool {
        let folding = self.folding.as_ref().map_or(0, |folding| folding.gains);
        self.space.is_scarce(self.fresh.gains.saturating_add(folding))
    }

    /// What is to be folded now, if anything.
    fn due(&mut self, now: Time) -> Option<Extent> {
        if self.has_work() || self.fold.renews {
            return Some(Extent::All);
        }
        let fresh = &self.fresh;
        if fresh.is_empty() {
            return None;
        }
        let is_all_due = self.fold.wanted
            || fresh.patches.len() >= MAX_PATCHES / FOLD_AT
            || fresh.range_count() >= MAX_RANGES / FOLD_AT
            || self.discards_left() < self.fold.discarded_per_fold as usize / FOLD_AT
            || self.ring.stalled()
            || self.is_scarce()
            || self.is_rested(now);
        if is_all_due {
            return Some(Extent::All);
        }
        if self.ring.free_blocks() >= self.place.geometry.ring_blocks() / 2 {
            return None;
        }
        match self.is_folded_in_parts() {
            true => self.is_part_due().then_some(Extent::Part),
            false => Some(Extent::All),
        }
    }

    /// A generation, or its oldest part, is complete: what comes from now on goes to the next.
    fn freeze(&mut self, extent: Extent) {
        let now = self.ring.mark();
        let part = (extent == Extent::Part).then(|| self.part_off()).flatten();
        let extent = if part.is_some() { Extent::Part } else { Extent::All };
        let (mut folding, mark) = part.unwrap_or_else(|| {
            self.fold.milestones.begin(now);
            (std::mem::take(&mut self.fresh), now)
        });
        let spare = self.scarce_journal();
        let fold = &mut self.fold;
        fold.stage = Stage::Journal;
        (fold.wanted, fold.renews) = (false, false);
        (fold.extent, fold.mark) = (extent, mark);
        fold.frozen = self.catalog.clone();
        // What came behind a part says that some of it is hidden, and how new the rest is: it is stable before the journal is cut.
        fold.hidden_by = (extent == Extent::Part && !mutant::on("store-part-hidden-by-unstable")).then_some(now);
        fold.tail = self.ring.tail();
        fold.course.begin(folding.patches.len(), spare);
        fold.patch = folding.patches.iter().next().map(|(key, _)| key);
        fold.dropping = layers::Dropping::of(&fold.frozen);
        fold.share = (0, 0);
        fold.share_keys = std::mem::take(&mut fold.fresh_shares);
        fold.urgent |= !fold.share_keys.is_empty();
        fold.work_left = fold.work_per_fold;
        fold.stuck.clear();
        fold.job = None;
        // Not with the commit: who looked before it may still mean to put something right where it was.
        fold.bruised.clear();
        fold.unread_since = None;
        fold.unshared.clear();
        fold.freed = folding.freed.drain(..).map(|chunk| (chunk, false)).collect();
        fold.discards = folding
            .ranges
            .iter()
            .flat_map(|(layer, ranges)| ranges.iter().map(move |(from, range)| (*layer, *from, *range)))
            .map(|(layer, next, range)| Discard { layer, next, end: range.end, version: range.version })
            .collect();
        self.folding = Some(folding);
        self.tables.begin();
        self.counters.folds += 1;
    }

    /// What could not be had: wait for it, or give the store up.
    fn waits(&mut self, wait: super::tables::Wait) -> Step {
        use super::tables::Wait;
        match wait {
            Wait::Load => {}
            Wait::Full => self.fail(Errno::NO_SPACE), // space was counted before
            Wait::Damaged if self.waits_for_unread() => {}
            Wait::Damaged => return self.met_damage(),
        }
        Step::Stay
    }

    /// True while a page that could not be read may still be read.
    fn waits_for_unread(&mut self) -> bool {
        let since = *self.fold.unread_since.get_or_insert(self.unread_until);
        let waits = self.tables.pages.has_unread() && self.unread_until < since + UNREAD_LONG;
        if waits {
            self.retry = Some(self.retry.map_or(self.unread_until, |at| at.min(self.unread_until)));
        }
        waits
    }

    /// Ask for the flattening of a copy.
    pub(super) fn start_flatten(&mut self, tag: Tag, copy: CopyId) {
        let key = self.pending.insert(super::engine::Pending::Flatten(tag));
        self.fold.flattens.push_back(Flatten { key, copy, cursor: 0, tried: false, done: false });
    }

    /// True while copy-ranges of an older life are not home.
    pub(super) fn unfinished_shares(&self) -> bool {
        !self.fresh.shares.is_empty() || self.folding.as_ref().is_some_and(|folding| !folding.shares.is_empty())
    }
}
