//! What of filling is explored.

use super::{Filling, Scope, Switch};
use crate::cases::{Case, Expect};

const ALL: Scope =
    Scope { in_sync: 0b111, min_copies: 2, writes: 2, discards: 0, rollbacks: 0, drops: 1, lost: 0, second_drops: 0 };
/// A and C, and no B.
const PAIR: Scope = Scope { in_sync: 0b101, ..ALL };
/// A and B, and C is empty.
const NEW: Scope = Scope { in_sync: 0b011, drops: 0, ..ALL };

fn clean(name: &'static str, about: &'static str, states: usize, scope: Scope) -> Case {
    Case::new(name, about, Expect::Clean(states), Filling { scope, switch: None })
}

fn caught(name: &'static str, about: &'static str, switch: Switch, scope: Scope) -> Case {
    Case::new(name, about, Expect::Caught("Unequal"), Filling { scope, switch: Some(switch) })
}

pub(crate) fn configurations() -> Vec<Case> {
    vec![
        clean("filling-short-absence", "C is away and comes back; two writes (rules 3, 4)", 345_089, ALL),
        clean(
            "filling-empty-copy",
            "an empty copy is filled, its run ends once; a write",
            46_597,
            Scope { writes: 1, drops: 1, ..NEW },
        ),
        clean(
            "filling-discard",
            "a write and a discard meanwhile (rule 7)",
            690_169,
            Scope { writes: 1, discards: 1, ..ALL },
        ),
        clean(
            "filling-rollback",
            "a change of the whole shard meanwhile",
            61_921,
            Scope { writes: 1, rollbacks: 1, ..ALL },
        ),
        clean(
            "filling-resumed",
            "C comes back twice; a write (rules 3, 4)",
            31_784,
            Scope { writes: 1, drops: 2, ..ALL },
        ),
        clean(
            "filling-sealed",
            "C is the second of two: filled in a sealed epoch (rule 11)",
            110_490,
            Scope { drops: 2, ..PAIR },
        ),
        clean("filling-failover", "A is lost while it fills C; two writes", 468_050, Scope { lost: 1, ..ALL }),
        clean(
            "filling-sealed-failover",
            "B is dropped, C filled in a sealed epoch, A is lost, B goes on (rules 4, 11)",
            26_331,
            Scope { writes: 1, lost: 1, second_drops: 1, ..NEW },
        ),
    ]
}

pub(crate) fn larger() -> Vec<Case> {
    vec![
        clean(
            "larger-filling-empty-copy",
            "an empty copy is filled, its run ends once; two writes",
            4_083_854,
            Scope { drops: 1, ..NEW },
        ),
        clean("larger-filling-resumed", "C comes back twice; two writes", 3_437_158, Scope { drops: 2, ..ALL }),
        clean(
            "larger-filling-failover",
            "B is dropped, C filled, its run ends once, A is lost; two writes",
            21_524_068,
            Scope { lost: 1, second_drops: 1, drops: 1, ..NEW },
        ),
    ]
}

pub(crate) fn switches() -> Vec<Case> {
    vec![
        caught(
            "switch-equal-versions-trusted",
            "a chunk with equal versions is not sent",
            Switch::TrustsEqualVersions,
            PAIR,
        ),
        caught(
            "switch-discard-forgotten",
            "a discard leaves no version behind",
            Switch::DiscardForgotten,
            Scope { writes: 0, discards: 1, ..ALL },
        ),
        caught(
            "switch-live-write-skipped",
            "a chunk that took a live write is not sent",
            Switch::SkipsWhatTookLiveWrite,
            ALL,
        ),
        caught(
            "switch-resumes-beyond-k",
            "a mark says more than K: in a sealed epoch, or before its settling",
            Switch::ResumesBeyondKnownGood,
            Scope { writes: 1, lost: 1, second_drops: 1, ..NEW },
        ),
        caught(
            "switch-resumes-beyond-finished",
            "a mark says more than what is finished on the copy",
            Switch::ResumesBeyondFinished,
            Scope { writes: 1, lost: 1, ..NEW },
        ),
        caught(
            "switch-filling-own-list-only",
            "what only the copy has changed is not sent",
            Switch::OwnListOnly,
            Scope { lost: 1, drops: 1, ..ALL },
        ),
        caught("switch-fill-without-lock", "a chunk is sent without its lock", Switch::FillsWithoutLock, NEW),
        caught(
            "switch-listed-early",
            "changes are listed before the writes that the copy is not sent are finished",
            Switch::ListsBeforeEarlierWritesFinished,
            Scope { writes: 1, ..ALL },
        ),
        caught(
            "switch-live-writes-not-sent",
            "live writes behind the cursor do not go to the copy",
            Switch::LiveWritesBehindCursorNotSent,
            NEW,
        ),
    ]
}
