//! The flat model: for each copy and each of its snapshots, what every block holds, and what else a crash may leave there.

use crate::content::{Content, ZEROS};
use conductor_model::{BlockRange, Blocks, Configuration, Epoch, Sequence, Stamp};
use node_store::{FillMark, Held, HeldKind};
use std::collections::BTreeMap;

/// Number of a completion: what the model calls time.
pub(crate) type When = u64;

/// The content of a copy, or of a snapshot of it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Image {
    blocks: Vec<Content>,
    /// What a crash may leave instead: older contents, each with the completion that replaced it and was not synced.
    older: BTreeMap<u32, Vec<(When, Content)>>,
}

impl Image {
    pub(crate) fn zeros(blocks: u32) -> Self {
        Self { blocks: vec![ZEROS; blocks as usize], older: BTreeMap::new() }
    }
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("small")
    }
    pub(crate) fn get(&self, block: u32) -> Content {
        self.blocks[block as usize]
    }
    pub(crate) fn range(&self, at: BlockRange) -> &[Content] {
        &self.blocks[at.from.0 as usize..][..at.count.0 as usize]
    }
    /// May a crash have left this there?
    pub(crate) fn allows(&self, block: u32, content: Content) -> bool {
        self.get(block) == content
            || self.older.get(&block).is_some_and(|older| older.iter().any(|(_, old)| *old == content))
    }
    /// All that a crash may have left there, for the story of a failure.
    pub(crate) fn allowed(&self, block: u32) -> Vec<Content> {
        let older = self.older.get(&block).into_iter().flatten().map(|(_, old)| *old);
        std::iter::once(self.get(block)).chain(older).collect()
    }
    /// A durable change.
    pub(crate) fn set(&mut self, block: u32, content: Content) {
        self.blocks[block as usize] = content;
        self.older.remove(&block);
    }
    /// A change that a crash may undo until it is synced.
    pub(crate) fn set_loosely(&mut self, block: u32, content: Content, when: When) {
        let old = std::mem::replace(&mut self.blocks[block as usize], content);
        self.older.entry(block).or_default().push((when, old));
    }
    /// What was replaced until then is gone for good.
    pub(crate) fn settle(&mut self, until: When) {
        self.older.retain(|_, older| {
            older.retain(|(when, _)| *when > until);
            !older.is_empty()
        });
    }
    pub(crate) fn resize(&mut self, blocks: u32) {
        self.blocks.resize(blocks as usize, ZEROS);
    }
    /// This range reads as another image's.
    pub(crate) fn take_range(&mut self, at: BlockRange, from: &Self) {
        for block in at.from.0..at.from.0 + at.count.0 {
            self.set(block, from.get(block));
            if let Some(older) = from.older.get(&block) {
                self.older.insert(block, older.clone());
            }
        }
    }
    /// Blocks that hold something.
    pub(crate) fn held(&self) -> u32 {
        u32::try_from(self.blocks.iter().filter(|content| **content != ZEROS).count()).expect("small")
    }
}

/// A change that was acknowledged, or whose fate a crash left open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) held: Held,
    /// The first content it wrote.
    pub(crate) first: Option<Content>,
    /// It is there: its acknowledgement or its data says so.
    pub(crate) certain: bool,
    /// Its completion, if a crash may still undo it.
    pub(crate) loose: Option<When>,
}

/// A copy.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) config: Configuration,
    pub(crate) live: Image,
    /// By snapshot, oldest first.
    pub(crate) snapshots: Vec<(u64, Image)>,
    /// The highest K told, and the highest that an acknowledged durable change carried.
    pub(crate) told: Stamp,
    pub(crate) carried: Stamp,
    /// How far its filling is.
    pub(crate) mark: FillMark,
    /// Changes above K.
    pub(crate) changes: Vec<Change>,
    /// The newest stamp given out.
    pub(crate) newest: Stamp,
    /// The copy and snapshot that it was cloned from, until it is flattened.
    pub(crate) parent: Option<(u64, u64)>,
    /// Changes submitted: a look that overlaps none of them can be exact.
    pub(crate) submitted: u64,
}

impl Copy {
    pub(crate) fn new(config: Configuration, live: Image, parent: Option<(u64, u64)>) -> Self {
        let none = Stamp::default();
        // A clone begins with a K before all that is ever stamped: it has what it begins as.
        let inherited = Stamp { epoch: Epoch(1), sequence: Sequence(0) };
        Self {
            config,
            live,
            snapshots: vec![],
            told: if parent.is_some() { inherited } else { none },
            carried: none,
            mark: FillMark::default(),
            changes: vec![],
            newest: none,
            parent,
            submitted: 0,
        }
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.live.len()
    }

    pub(crate) fn snapshot(&self, id: u64) -> Option<&Image> {
        self.snapshots.iter().find(|(other, _)| *other == id).map(|(_, image)| image)
    }

    pub(crate) fn whole(&self) -> BlockRange {
        BlockRange { from: Blocks(0), count: Blocks(self.blocks()) }
    }

    /// An acknowledged change carried this K.
    pub(crate) fn carry(&mut self, known: Stamp, durable: bool) {
        if durable {
            self.carried = self.carried.max(known);
        }
    }

    /// How far its filling is, was kept; the mark is forgotten when that is over.
    pub(crate) fn marked(&mut self, mark: FillMark, known: Option<Stamp>) {
        self.mark = known.map_or(mark, |_| FillMark::default());
        self.carry(known.unwrap_or_default(), true);
    }

    /// It has joined this configuration.
    pub(crate) fn join(&mut self, config: Configuration) {
        self.live.resize(crate::world::blocks(config.size));
        self.config = config;
    }

    /// All that completed until then is durable.
    pub(crate) fn settle(&mut self, until: When) {
        self.live.settle(until);
        self.snapshots.iter_mut().for_each(|(_, image)| image.settle(until));
        for change in &mut self.changes {
            change.loose = change.loose.filter(|when| *when > until);
        }
    }

    /// Compare what the store says of what is above K. `Err` says what is missing.
    pub(crate) fn check_above(&mut self, known_good: Stamp, held: &[Held]) -> Result<(), String> {
        if known_good > self.told {
            return Err(format!("K is {known_good}, above all that was told: {}", self.told));
        }
        if known_good < self.carried {
            return Err(format!("K is {known_good}, but an acknowledged change carried {}", self.carried));
        }
        if let Some(held) = held.iter().find(|held| held.stamp > self.newest || held.stamp <= known_good) {
            return Err(format!("{held:?} is listed above {known_good}, the newest is {}", self.newest));
        }
        self.changes.retain(|change| change.held.stamp > known_good);
        match self.changes.iter().find(|change| change.certain && !covers(held, &change.held)) {
            Some(change) => Err(format!("{change:?} is above {known_good} and not listed in {held:?}")),
            None => Ok(()),
        }
    }
}

/// Does the list name this change, or something wider and no older?
fn covers(list: &[Held], change: &Held) -> bool {
    let barrier = |kind| kind == HeldKind::Barrier;
    let mut fitting: Vec<BlockRange> = list
        .iter()
        .filter(|held| held.stamp >= change.stamp && barrier(held.kind) == barrier(change.kind))
        .map(|held| held.at)
        .collect();
    if barrier(change.kind) {
        return !fitting.is_empty();
    }
    fitting.sort_unstable();
    let mut reached = u64::from(change.at.from.0);
    for at in fitting {
        if u64::from(at.from.0) <= reached {
            reached = reached.max(at.end());
        }
    }
    reached >= change.at.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{Epoch, Sequence};

    fn range(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }

    fn held(sequence: u64, from: u32, count: u32, kind: HeldKind) -> Held {
        Held { stamp: Stamp { epoch: Epoch(1), sequence: Sequence(sequence) }, at: range(from, count), kind }
    }

    #[test]
    fn until_it_is_synced_a_change_may_be_undone_and_no_longer() {
        let mut image = Image::zeros(4);
        image.set_loosely(1, Content(7), 10);
        image.set_loosely(1, Content(8), 11);
        assert_eq!(image.allowed(1), [Content(8), ZEROS, Content(7)]);
        image.settle(10);
        assert!(image.allows(1, Content(7)) && image.allows(1, Content(8)) && !image.allows(1, ZEROS));
        image.set(1, Content(9));
        assert_eq!(image.allowed(1), [Content(9)]);
    }

    #[test]
    fn a_change_is_covered_by_newer_ones_over_all_of_its_range() {
        let list = [held(5, 0, 4, HeldKind::Write), held(7, 4, 4, HeldKind::Zero), held(9, 0, 99, HeldKind::Barrier)];
        assert!(covers(&list, &held(5, 1, 6, HeldKind::Write)));
        assert!(!covers(&list, &held(6, 1, 6, HeldKind::Write)));
        assert!(!covers(&list, &held(5, 1, 8, HeldKind::Write)));
        assert!(covers(&list, &held(9, 0, 99, HeldKind::Barrier)));
        assert!(!covers(&list, &held(10, 0, 99, HeldKind::Barrier)));
    }
}
