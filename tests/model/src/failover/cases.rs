//! What of failover is explored: small scopes that each have a few faults, and the smallest in which each switch is caught.

use super::{Failover, Faults, Scope, Switch};
use crate::cases::{Case, Expect};

/// Three copies in sync, one write, no fault.
const BASE: Scope = Scope {
    writes: 1,
    blocks: 1,
    reads: 0,
    copies: 3,
    min_copies: 2,
    slow_disks: false,
    resync: false,
    faults: Faults { restarts: 0, losses: 0, drops: 0, promotions: 0, repeats: 0, lost_replies: 0, stranded: 0 },
};
const NONE: Faults = BASE.faults;

fn clean(name: &'static str, about: &'static str, states: usize, scope: Scope) -> Case {
    Case::new(name, about, Expect::Clean(states), Failover { scope, switch: None })
}

fn caught(name: &'static str, about: &'static str, what: &'static str, switch: Switch, scope: Scope) -> Case {
    Case::new(name, about, Expect::Caught(what), Failover { scope, switch: Some(switch) })
}

pub(crate) fn configurations() -> Vec<Case> {
    vec![
        clean(
            "failover-disks",
            "slow disks, one write, one read, a restart, a replaced primary (rules 2, 5, 6, 9, 10, 13)",
            443_258,
            Scope { slow_disks: true, reads: 1, faults: Faults { restarts: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        clean(
            "failover-two-writes",
            "two overlapping writes, one read, a replaced primary, a leg sent twice (rules 5, 6, 9)",
            227_010,
            Scope { writes: 2, reads: 1, faults: Faults { promotions: 1, repeats: 1, ..NONE }, ..BASE },
        ),
        clean(
            "failover-two-blocks",
            "two writes beside each other, a replaced primary, K goes along (rules 3, 6)",
            213_602,
            Scope { writes: 2, blocks: 2, faults: Faults { promotions: 1, ..NONE }, ..BASE },
        ),
        clean(
            "failover-drop",
            "two overlapping writes, a dropped copy, a replaced primary, one read (rules 9, 10, 12)",
            388_546,
            Scope { writes: 2, reads: 1, faults: Faults { drops: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        clean(
            "failover-restart",
            "two overlapping writes, a restart, a replaced primary, one read",
            3_986_120,
            Scope { writes: 2, reads: 1, faults: Faults { restarts: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        clean(
            "failover-two-primaries",
            "two primaries in turn, a dropped copy, a write that may be lost on the way, one read",
            259_108,
            Scope { reads: 1, faults: Faults { promotions: 2, drops: 1, ..NONE }, ..BASE },
        ),
        clean(
            "failover-restarts",
            "all three restart, one write (rules 2, 10)",
            362_236,
            Scope { faults: Faults { restarts: 3, ..NONE }, ..BASE },
        ),
        clean(
            "failover-two-copies",
            "two copies with min-copies 1: a restart and a replaced primary (rules 9, 13, 14)",
            164_728,
            Scope {
                writes: 2,
                copies: 2,
                min_copies: 1,
                reads: 1,
                faults: Faults { restarts: 1, promotions: 1, ..NONE },
                ..BASE
            },
        ),
        clean(
            "clients",
            "two primaries in turn, a request left unread, a completion lost (rules 8, 24)",
            37_956,
            Scope {
                writes: 2,
                copies: 2,
                faults: Faults { promotions: 1, lost_replies: 1, stranded: 1, ..NONE },
                ..BASE
            },
        ),
        clean(
            "return",
            "a dropped copy is filled and added, one restart (rules 1, 4, 12)",
            354_322,
            Scope { resync: true, reads: 1, faults: Faults { restarts: 1, drops: 1, ..NONE }, ..BASE },
        ),
        clean(
            "return-two-writes",
            "a dropped copy is filled and added while two writes go on (rules 1, 4, 5)",
            117_536,
            Scope { resync: true, writes: 2, reads: 1, faults: Faults { drops: 1, ..NONE }, ..BASE },
        ),
        clean(
            "return-failover",
            "a dropped copy is filled and added, and the primary is replaced meanwhile (rules 1, 10, 12)",
            546_807,
            Scope { resync: true, faults: Faults { drops: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        clean(
            "sealed",
            "two copies and a spare node: dropped, replaced, filled; one write (rules 1, 11)",
            2_851_517,
            Scope { resync: true, copies: 2, faults: Faults { drops: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        clean(
            "sealed-loss",
            "{A,B,C} to {A,C} to {A}, and a disk is lost (rule 11)",
            507_377,
            Scope { resync: true, faults: Faults { drops: 2, losses: 1, ..NONE }, ..BASE },
        ),
        clean(
            "sealed-restart",
            "two copies and a spare node: dropped, lost, restarted (rules 2, 11)",
            1_578_947,
            Scope { resync: true, copies: 2, faults: Faults { drops: 1, restarts: 1, ..NONE }, ..BASE },
        ),
    ]
}

pub(crate) fn larger() -> Vec<Case> {
    vec![
        clean(
            "larger-two-blocks",
            "two writes beside each other, a restart, a replaced primary, K goes along (rules 3, 6)",
            27_461_593,
            Scope { writes: 2, blocks: 2, faults: Faults { restarts: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        clean(
            "larger-min-one",
            "two copies with min-copies 1 and a spare node: dropped, filled, replaced (rules 1, 10)",
            28_276_656,
            Scope {
                resync: true,
                copies: 2,
                min_copies: 1,
                reads: 1,
                faults: Faults { drops: 1, promotions: 1, ..NONE },
                ..BASE
            },
        ),
        clean(
            "larger-sealed",
            "two copies and a spare node: dropped twice, replaced, filled; one write",
            41_316_433,
            Scope { resync: true, copies: 2, faults: Faults { drops: 2, promotions: 1, ..NONE }, ..BASE },
        ),
    ]
}

pub(crate) fn switches() -> Vec<Case> {
    let promoted = Faults { promotions: 1, ..NONE };
    let dropped = Scope { resync: true, faults: Faults { drops: 1, ..NONE }, ..BASE };
    let dropped_twice = Scope { faults: Faults { drops: 2, ..NONE }, ..dropped };
    let read = Scope { reads: 1, faults: promoted, ..BASE };
    let pair = Scope { copies: 2, min_copies: 1, faults: Faults { restarts: 1, promotions: 1, ..NONE }, ..BASE };
    let sealed = Scope { copies: 2, resync: true, faults: Faults { drops: 2, promotions: 1, ..NONE }, ..BASE };
    let restarted = Scope { writes: 2, faults: Faults { restarts: 1, repeats: 1, ..NONE }, ..BASE };
    vec![
        caught(
            "switch-candidate-forgotten",
            "the primary drops a candidate while its add is unanswered",
            "Unequal",
            Switch::CandidateForgottenWhileAddIsAsked,
            dropped,
        ),
        caught(
            "switch-late-add",
            "a late add is applied without comparing epochs",
            "Unequal",
            Switch::LateAskApplied,
            dropped_twice,
        ),
        caught(
            "switch-add-asked-early",
            "an add is asked while older writes to the candidate are outstanding",
            "Unequal",
            Switch::AddAskedEarly,
            dropped,
        ),
        caught(
            "switch-open-ids-left-out",
            "a restart goes unseen, and sequences are used again",
            "Unequal",
            Switch::OpenIdsLeftOut,
            Scope { writes: 2, faults: Faults { restarts: 1, ..NONE }, ..BASE },
        ),
        caught(
            "switch-no-duplicate-filter",
            "a copy begins a stamp twice",
            "Unequal",
            Switch::NoDuplicateFilter,
            Scope { writes: 2, faults: Faults { repeats: 1, ..NONE }, ..BASE },
        ),
        caught(
            "switch-lock-freed-at-first",
            "the lock is freed at the first completion",
            "Unequal",
            Switch::LockFreedAtFirstCompletion,
            Scope { writes: 2, ..BASE },
        ),
        caught(
            "switch-lock-not-for-syncing",
            "the lock does not wait for a syncing copy",
            "Unequal",
            Switch::LockNotHeldForSyncingCopy,
            Scope { writes: 2, ..dropped },
        ),
        caught(
            "switch-join-before-draining",
            "a copy answers its Join while older writes are in its disk",
            "Unequal",
            Switch::JoinBeforeDraining,
            Scope { slow_disks: true, ..read },
        ),
        caught(
            "switch-own-list-only",
            "the new primary settles only what it holds itself",
            "Unequal",
            Switch::SettlesOnlyItsOwnList,
            read,
        ),
        caught(
            "switch-read-without-lock",
            "a read does not take the range lock",
            "StaleRead",
            Switch::ReadWithoutLock,
            read,
        ),
        caught("switch-no-promise", "a primary reads without a promise", "StaleRead", Switch::NoPromise, read),
        caught(
            "switch-promise-before-join",
            "a promise counts that was sent before the join",
            "StaleRead",
            Switch::PromiseBeforeJoin,
            pair,
        ),
        caught(
            "switch-promise-forgotten",
            "a restarted node joins at once",
            "StaleRead",
            Switch::PromiseForgottenOnRestart,
            pair,
        ),
        caught(
            "switch-clock-before-event",
            "the clock is read before the event",
            "StaleRead",
            Switch::ClockBeforeEvent,
            read,
        ),
        caught(
            "switch-promise-not-ended-early",
            "the primary counts a promise longer than the copy",
            "StaleRead",
            Switch::PromiseNotEndedEarly,
            read,
        ),
        caught(
            "switch-withheld-ended-early",
            "a shard is no longer withheld once the copy has joined the newer epoch",
            "StaleRead",
            Switch::WithheldEndedEarly,
            read,
        ),
        caught(
            "switch-full-set-forgotten",
            "the last full set is not recorded, and a lost primary's shard waits for ever",
            "Stuck",
            Switch::FullSetForgotten,
            Scope { copies: 2, resync: true, faults: Faults { drops: 1, losses: 1, ..NONE }, ..BASE },
        ),
        caught(
            "switch-any-copy-promoted",
            "a copy outside the last full set is promoted",
            "Unequal",
            Switch::AnyCopyPromoted,
            Scope { resync: true, faults: Faults { drops: 1, losses: 1, ..NONE }, ..BASE },
        ),
        caught("switch-sealed-stamps", "a sealed primary stamps", "StaleRead", Switch::SealedStamps, sealed),
        caught("switch-sealed-moves-k", "a sealed primary moves K", "Unequal", Switch::SealedMovesKnownGood, sealed),
        caught(
            "switch-sealed-reads-alone",
            "a sealed primary reads without the conductor's promise",
            "StaleRead",
            Switch::SealedReadsAlone,
            sealed,
        ),
        caught(
            "switch-acknowledged-early",
            "a write is acknowledged before the epoch without the failed copy is persisted",
            "Unequal",
            Switch::AcknowledgedBeforePersisted,
            Scope { faults: Faults { drops: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        caught(
            "switch-conductor-from-the-past",
            "a conductor restored from the past replaces a primary",
            "StaleRead",
            Switch::ConductorFromThePast,
            Scope { copies: 2, min_copies: 1, faults: Faults { drops: 1, promotions: 1, ..NONE }, ..BASE },
        ),
        caught(
            "switch-no-fencing",
            "a client resends, and its older connection is not fenced",
            "StaleRead",
            Switch::NoFencing,
            Scope { writes: 2, faults: Faults { stranded: 1, ..NONE }, ..BASE },
        ),
        caught(
            "switch-queue-survives",
            "what was queued before a node stopped being primary is executed later",
            "StaleRead",
            Switch::QueueSurvives,
            Scope { writes: 2, copies: 2, faults: Faults { promotions: 2, stranded: 1, ..NONE }, ..BASE },
        ),
        caught(
            "switch-restarted-node-trusted",
            "a restarted copy counts as joined",
            "Unequal",
            Switch::RestartedNodeTrusted,
            restarted,
        ),
    ]
}
