//! Operations in flight, and the order that the caller of a store keeps among them (the head of `node_store`'s seam).

use crate::content::Content;
use crate::moment::Moment;
use conductor_model::{BlockRange, Blocks, Configuration, CopyId, SnapshotId, Stamp};
use node_store::{FillMark, Held, HeldKind, Parent, View};

/// Blocks of a chunk: what an engine may write in one piece.
const CHUNK_BLOCKS: u64 = 16;

/// What is asked of one copy.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Contents `first`, `first + 1`, …
    Write {
        at: BlockRange,
        first: Content,
        stamp: Stamp,
        known: Stamp,
        durable: bool,
    },
    Zero {
        at: BlockRange,
        stamp: Stamp,
        known: Stamp,
        durable: bool,
    },
    Share {
        at: BlockRange,
        stamp: Stamp,
        known: Stamp,
        from: (u64, u64),
    },
    Repair {
        view: Option<u64>,
        at: BlockRange,
    },
    Read {
        view: Option<u64>,
        at: BlockRange,
    },
    /// `submitted`: changes of the copy so far, if none was in flight.
    Extents {
        view: Option<u64>,
        from: u32,
        submitted: Option<u64>,
    },
    Snapshot {
        id: u64,
        stamp: Stamp,
        known: Stamp,
    },
    Rollback {
        id: u64,
        stamp: Stamp,
        known: Stamp,
    },
    Drop {
        id: u64,
    },
    Create {
        config: Configuration,
        parent: Option<(u64, u64)>,
    },
    Join {
        config: Configuration,
    },
    Delete,
    /// Covers the completions up to this one.
    Sync {
        until: u64,
    },
    Flatten,
    Above,
    Known {
        stamp: Stamp,
    },
    /// Covers the completions up to this one, as a sync does; with a K the filling is over.
    Mark {
        mark: FillMark,
        known: Option<Stamp>,
        until: u64,
    },
}

/// An operation in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flying {
    pub(crate) copy: u64,
    pub(crate) what: What,
}

pub(crate) fn view(snapshot: Option<u64>) -> View {
    snapshot.map_or(View::Live, |id| View::Snapshot(SnapshotId(id)))
}

pub(crate) fn parent((copy, snapshot): (u64, u64)) -> Parent {
    Parent { copy: CopyId(copy), snapshot: SnapshotId(snapshot) }
}

pub(crate) fn range(from: u32, count: u32) -> BlockRange {
    BlockRange { from: Blocks(from), count: Blocks(count) }
}

impl What {
    /// Its name in the counts.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Write { durable: true, .. } => "write",
            Self::Write { .. } => "write unsynced",
            Self::Zero { durable: true, .. } => "zero",
            Self::Zero { .. } => "zero unsynced",
            Self::Share { .. } => "copy-range",
            Self::Repair { .. } => "repair",
            Self::Read { view: None, .. } => "read",
            Self::Read { .. } => "read of a snapshot",
            Self::Extents { .. } => "extents",
            Self::Snapshot { .. } => "snapshot",
            Self::Rollback { .. } => "rollback",
            Self::Drop { .. } => "drop",
            Self::Create { parent: None, .. } => "create",
            Self::Create { .. } => "clone",
            Self::Join { .. } => "join",
            Self::Delete => "delete",
            Self::Sync { .. } => "sync",
            Self::Flatten => "flatten",
            Self::Above => "above",
            Self::Known { .. } => "known-good",
            Self::Mark { .. } => "mark",
        }
    }

    /// What a crash now would be in the midst of.
    pub(crate) fn moments(&self) -> Vec<Moment> {
        match self {
            Self::Write { at, durable, .. } => {
                let whole = u64::from(at.from.0).next_multiple_of(CHUNK_BLOCKS) + CHUNK_BLOCKS <= at.end();
                let mut moments = vec![if whole { Moment::WholeChunk } else { Moment::Write }];
                moments.extend((!durable).then_some(Moment::Loose));
                moments
            }
            Self::Zero { durable, .. } => {
                let mut moments = vec![Moment::Discard];
                moments.extend((!durable).then_some(Moment::Loose));
                moments
            }
            Self::Share { .. } => vec![Moment::Share],
            Self::Repair { .. } => vec![Moment::Repair],
            Self::Snapshot { .. } => vec![Moment::Snapshot],
            Self::Rollback { .. } => vec![Moment::Rollback],
            Self::Drop { .. } => vec![Moment::Drop],
            Self::Create { parent: None, .. } => vec![Moment::Create],
            Self::Create { .. } => vec![Moment::Clone],
            Self::Join { .. } => vec![Moment::Grow],
            Self::Delete => vec![Moment::Delete],
            Self::Sync { .. } => vec![Moment::Sync],
            Self::Flatten => vec![Moment::Flatten],
            Self::Known { .. } => vec![Moment::Known],
            Self::Mark { .. } => vec![Moment::Mark],
            Self::Read { .. } | Self::Extents { .. } | Self::Above => vec![],
        }
    }

    fn changed(&self) -> Option<BlockRange> {
        match self {
            Self::Write { at, .. } | Self::Zero { at, .. } | Self::Share { at, .. } | Self::Repair { at, .. } => {
                Some(*at)
            }
            _ => None,
        }
    }

    pub(crate) fn is_change(&self) -> bool {
        self.changed().is_some() || matches!(self, Self::Rollback { .. })
    }

    /// Its stamp, the range it names in the list above K, and as what.
    pub(crate) fn held(&self, whole: BlockRange) -> Option<Held> {
        let (stamp, at, kind) = match self {
            Self::Write { at, stamp, .. } | Self::Share { at, stamp, .. } => (*stamp, *at, HeldKind::Write),
            Self::Zero { at, stamp, .. } => (*stamp, *at, HeldKind::Zero),
            Self::Snapshot { stamp, .. } => (*stamp, whole, HeldKind::Barrier),
            Self::Rollback { stamp, .. } => (*stamp, whole, HeldKind::Write),
            _ => return None,
        };
        Some(Held { stamp, at, kind })
    }

    fn snapshot_used(&self) -> Option<u64> {
        match self {
            Self::Read { view, .. } | Self::Repair { view, .. } | Self::Extents { view, .. } => *view,
            Self::Rollback { id, .. } | Self::Drop { id } | Self::Snapshot { id, .. } => Some(*id),
            _ => None,
        }
    }

    fn source(&self) -> Option<(u64, u64)> {
        match self {
            Self::Share { from, .. } => Some(*from),
            Self::Create { parent, .. } => *parent,
            _ => None,
        }
    }
}

/// May these not be in flight together?
pub(crate) fn clash(a: &Flying, b: &Flying) -> bool {
    one_way(a, b) || one_way(b, a)
}

fn one_way(a: &Flying, b: &Flying) -> bool {
    let uses = |flying: &Flying, copy, snapshot: Option<u64>| {
        flying.what.source().is_some_and(|(c, s)| c == copy && snapshot.is_none_or(|snapshot| snapshot == s))
    };
    match &a.what {
        What::Delete if uses(b, a.copy, None) => return true,
        What::Drop { id } if uses(b, a.copy, Some(*id)) => return true,
        _ => {}
    }
    if a.copy != b.copy {
        return false;
    }
    match (&a.what, &b.what) {
        (What::Delete | What::Create { .. }, _) => true,
        (What::Join { .. }, What::Join { .. } | What::Snapshot { .. } | What::Rollback { .. }) => true,
        (What::Join { .. }, other) => other.is_change(),
        (What::Snapshot { .. } | What::Rollback { .. }, What::Snapshot { .. } | What::Rollback { .. }) => true,
        (What::Snapshot { .. }, other) => other.is_change(),
        (What::Rollback { .. }, What::Read { view: None, .. }) => true,
        (What::Rollback { .. }, other) if other.is_change() => true,
        (What::Drop { id }, other) if other.snapshot_used() == Some(*id) => true,
        (What::Flatten, What::Flatten) | (What::Above, What::Above) | (What::Mark { .. }, What::Mark { .. }) => true,
        (change, What::Read { at, .. }) if change.changed().is_some() => {
            change.changed().is_some_and(|c| c.overlaps(*at))
        }
        (one, other) => match (one.changed(), other.changed()) {
            (Some(one), Some(other)) => one.overlaps(other),
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(from: u32, count: u32) -> What {
        let none = Stamp::default();
        What::Write { at: range(from, count), first: Content(1), stamp: none, known: none, durable: true }
    }

    fn on(copy: u64, what: What) -> Flying {
        Flying { copy, what }
    }

    #[test]
    fn the_callers_order_is_kept() {
        let none = Stamp::default();
        let snapshot = || What::Snapshot { id: 4, stamp: none, known: none };
        let share = |from| What::Share { at: range(0, 4), stamp: none, known: none, from };
        assert!(clash(&on(1, write(0, 4)), &on(1, write(3, 4))));
        assert!(!clash(&on(1, write(0, 4)), &on(1, write(4, 4))) && !clash(&on(1, write(0, 4)), &on(2, write(0, 4))));
        assert!(clash(&on(1, What::Read { view: None, at: range(0, 4) }), &on(1, write(3, 1))));
        assert!(clash(&on(1, snapshot()), &on(1, write(0, 1))) && clash(&on(1, write(0, 1)), &on(1, snapshot())));
        assert!(clash(&on(1, What::Delete), &on(1, What::Above)) && !clash(&on(1, What::Delete), &on(2, What::Above)));
        assert!(clash(&on(1, What::Drop { id: 4 }), &on(2, share((1, 4)))));
        assert!(
            !clash(&on(1, What::Drop { id: 5 }), &on(2, share((1, 4))))
                && clash(&on(1, What::Delete), &on(2, share((1, 4))))
        );
        assert!(clash(&on(1, What::Drop { id: 4 }), &on(1, What::Read { view: Some(4), at: range(0, 1) })));
    }

    #[test]
    fn a_whole_chunk_is_seen_wherever_the_write_begins() {
        assert_eq!(write(0, 15).moments(), [Moment::Write]);
        assert_eq!(write(3, 28).moments(), [Moment::Write]);
        assert_eq!(write(3, 29).moments(), [Moment::WholeChunk]);
    }
}
