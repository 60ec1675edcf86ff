//! Folding the oldest part of a generation, where most of it was written again.
//!
//! ```text
//! journal:   tail │ M1 │ M2 │ M3 │ … head      milestones
//!                 └─ before M1 goes home, what was written again since is neither read nor moved; the checkpoint's tail is M1
//! ```
//! A generation that is folded whole has half of the journal, and what goes home of it may be hidden only by the other half. A part is an
//! eighth, and most of the journal has been written since, so that a set of blocks that are written over and over goes home half as often, or less.
//! It takes as many checkpoints more, which is why only what is mostly hidden is folded so.
//!
//! **A milestone is where all that comes behind it is blocks in the journal.** Any other record forgets them all: a generation does not say when it
//! heard that a block is zero, or was written with its chunk. What comes behind is read again at an opening, on top of a checkpoint whose
//! catalog knows of it already: it lists what it lists, or of a list that was merged since some of it again, which settles more and never less.

use super::super::engine::JournaledStore;
use super::super::limits::{FOLD_PART_AT, MILESTONE_LIVE, MILESTONE_PART, PART_LIVE, PARTED_GROUPS, PARTED_PATCHES};
use super::super::overlay::Overlay;
use super::super::patch::Spot;
use super::super::ring::{JournalBlock, Mark};
use driver::mutant;
use std::collections::VecDeque;

/// A point of the journal.
#[derive(Clone, Copy, Debug)]
struct Milestone {
    mark: Mark,
    /// Blocks that were written before it, as [`Milestones::written`] counts them.
    written: u64,
}

/// Those of the fresh generation, the oldest first: each a part of the journal behind the one before, so that they are fewer than it has parts.
#[derive(Debug)]
pub(in super::super) struct Milestones {
    kept: VecDeque<Milestone>,
    /// Where the last one was.
    last: Mark,
    /// Blocks that were written into the journal, all in all, and before what the generation has of it.
    written: u64,
    folded: u64,
    /// Whether what is before the oldest is mostly written again, once somebody has looked.
    worth: Option<bool>,
}

impl Milestones {
    pub(super) fn new(mark: Mark) -> Self {
        Self { kept: VecDeque::new(), last: mark, written: 0, folded: 0, worth: None }
    }

    /// A generation begins here.
    pub(super) fn begin(&mut self, mark: Mark) {
        self.forget();
        (self.last, self.folded) = (mark, self.written);
    }

    /// What comes from now on is not only blocks in the journal.
    pub(in super::super) fn forget(&mut self) {
        self.kept.clear();
        self.worth = None;
    }

    /// So many blocks were written.
    pub(in super::super) fn wrote(&mut self, blocks: u32) {
        self.written += u64::from(blocks);
    }

    /// The oldest, up to which all is folded.
    fn pop(&mut self) -> Option<Mark> {
        let oldest = self.kept.pop_front()?;
        (self.worth, self.folded) = (None, oldest.written);
        Some(oldest.mark)
    }
}

/// How many blocks of a ring of so many lie between two of them.
fn apart(from: JournalBlock, to: JournalBlock, blocks: u32) -> u32 {
    if from <= to { to.0 - from.0 } else { to.0 + blocks - from.0 }
}

impl JournaledStore {
    /// What comes from now on may be folded later than what came before.
    pub(super) fn set_milestone(&mut self) {
        let (mark, blocks) = (self.ring.mark(), self.ring_place.blocks);
        let milestones = &mut self.fold.milestones;
        if apart(milestones.last.position, mark.position, blocks) >= blocks / MILESTONE_PART {
            milestones.last = mark;
            milestones.kept.push_back(Milestone { mark, written: milestones.written });
        }
    }

    /// True if the oldest part of the generation is to be folded, later, and the rest of it later still.
    pub(super) fn is_folded_in_parts(&mut self) -> bool {
        if self.fold.milestones.worth.is_none() {
            self.fold.milestones.worth = Some(self.is_part_hidden());
        }
        self.fold.milestones.worth == Some(true) && self.bears_parts()
    }

    /// True if so much of the journal is used that a part of the generation is to be folded.
    pub(super) fn is_part_due(&self) -> bool {
        let blocks = self.ring_place.blocks;
        // What readers keep back of the journal was folded.
        let used = apart(self.superblock.tail.position, self.ring.mark().position, blocks);
        used >= blocks / FOLD_PART_AT.1 * FOLD_PART_AT.0
    }

    /// How far behind the journal's first block one of it is.
    fn age(&self, block: JournalBlock) -> u32 {
        apart(self.ring.tail(), block, self.ring_place.blocks)
    }

    /// True if it takes little to look through the generation, and what takes two folds then has room.
    fn bears_parts(&self) -> bool {
        let patches = &self.fresh.patches;
        patches.len() <= PARTED_PATCHES
            && patches.leaves() <= PARTED_GROUPS
            && !self.fold.course.is_late()
            && self.space.available() / 4 >= u32::try_from(patches.len()).unwrap_or(u32::MAX)
            && self.has_places(self.fresh.changes())
    }

    /// True if most of what came before the oldest milestone was written again, and little of it is left.
    fn is_part_hidden(&self) -> bool {
        let milestones = &self.fold.milestones;
        let Some(Milestone { mark, written }) = milestones.kept.front() else { return false };
        if !self.bears_parts() {
            return false;
        }
        let patches = &self.fresh.patches;
        let before = self.age(mark.position);
        let is_before = |spot| matches!(spot, Spot::Journal(at) if self.age(at) < before);
        let mut live = 0;
        for (_, patch) in patches.iter() {
            let is_kept = mutant::on("store-milestone-kept");
            if (patch.direct.is_some() && !is_kept) || patch.claims > 0 {
                return false;
            }
            live += patch.count(is_before);
        }
        let written = written - milestones.folded;
        written > 0 && u64::from(live) <= written / MILESTONE_LIVE && live <= self.ring_place.blocks / PART_LIVE
    }

    /// The oldest part of the generation, where that is still mostly hidden; and the mark behind it.
    pub(super) fn part_off(&mut self) -> Option<(Overlay, Mark)> {
        if !self.is_part_hidden() {
            return None;
        }
        let mark = self.fold.milestones.pop()?;
        let (tail, blocks) = (self.ring.tail(), self.ring_place.blocks);
        let before = apart(tail, mark.position, blocks);
        let (part, reserved) = self.fresh.part_off(|at| apart(tail, at, blocks) < before);
        if !mutant::on("store-part-not-set-aside") {
            self.space.reserve(reserved);
        }
        self.counters.parts += 1;
        Some((part, mark))
    }
}
