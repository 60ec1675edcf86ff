//! What was going on when a store was stopped: a run that never stopped in the midst of something proves nothing about it.

use std::collections::BTreeMap;

/// Crashes in each kind of moment that a run of [`FULL_RUN`] points must have seen.
pub(crate) const FLOOR: u64 = 50;
/// Points for which the floor holds; smaller runs have a smaller one.
pub(crate) const FULL_RUN: u64 = 2_000;

macro_rules! moments {
    ($($(#[$doc:meta])* $name:ident $text:literal)*) => {
        /// Something that was in progress.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Moment { $($(#[$doc])* $name,)* }

        impl Moment {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// In words.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

moments! {
    /// A write within chunks.
    Write "write"
    /// A write that covers a whole chunk.
    WholeChunk "whole-chunk write"
    /// A write under durability=flush.
    Loose "unsynced write"
    /// A discard or write-zeroes.
    Discard "discard"
    /// A sync of a copy.
    Sync "sync"
    /// A snapshot.
    Snapshot "snapshot"
    /// A rollback.
    Rollback "rollback"
    /// A snapshot being dropped.
    Drop "drop of a snapshot"
    /// A clone being made.
    Clone "clone"
    /// Copy-range.
    Share "copy-range"
    /// A clone being flattened.
    Flatten "flatten"
    /// A repair.
    Repair "repair"
    /// A copy being made.
    Create "create"
    /// A copy that joins a configuration, and perhaps grows.
    Grow "join"
    /// A copy being removed.
    Delete "delete"
    /// Known-good points told since the last crash.
    Known "known-good"
    /// How far a filling is, being kept.
    Mark "mark of a filling"
    /// A journal group being written.
    Journal "journal write"
    /// A journal group being written at the ring's start.
    JournalWrap "journal wrap"
    /// A seal group being written.
    Seal "seal"
    /// The fold moving data home.
    FoldMove "fold: data moves home"
    /// The fold writing metadata.
    FoldPages "fold: metadata pages"
    /// The fold taking up the oldest part of a generation.
    FoldPart "fold: the oldest part"
    /// A superblock being written.
    Superblock "superblock"
    /// A layer being merged into the one above it.
    Merge "merge of a layer"
    /// Space being punched.
    Punch "punch"
    /// A store being opened.
    Recovery "recovery"
}

/// How often each was met.
#[derive(Clone, Default, Debug)]
pub struct Moments(pub BTreeMap<Moment, u64>);

impl Moments {
    /// One crash met these; each counts once.
    pub fn count(&mut self, mut met: Vec<Moment>) {
        met.sort_unstable();
        met.dedup();
        met.into_iter().for_each(|moment| *self.0.entry(moment).or_default() += 1);
    }

    /// All of another's.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(moment, n)| *self.0.entry(*moment).or_default() += n);
    }

    /// How often this was met.
    pub fn get(&self, moment: Moment) -> u64 {
        self.0.get(&moment).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_counts_each_moment_once() {
        let mut moments = Moments::default();
        moments.count(vec![Moment::Write, Moment::Sync, Moment::Write]);
        let mut all = Moments::default();
        all.add(&moments);
        all.add(&moments);
        assert_eq!((all.get(Moment::Write), all.get(Moment::Sync), all.get(Moment::Seal)), (2, 2, 0));
    }
}
