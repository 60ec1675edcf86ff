//! Filling: a copy that was away is made equal while writes go on (rules 1, 3, 4 and 7).
//!
//! Nodes A, B and C, a shard of two chunks of two blocks. C is dropped, filled by whoever is primary, dropped again, filled from where
//! it stood, and added; A may be lost for good meanwhile. Changes of epoch are one step here (`failover` has their interleavings): the
//! primary settles what in-sync copies hold above K, and stamps unfinished writes anew; a sealed epoch stamps nothing.
//!
//! Only the order of stamps counts, and only whether contents are equal: states are compared with both renumbered (`tidy`).

pub(crate) mod cases;
mod run;
mod state;

use state::{BLOCKS, CHUNKS, Mask, Op, State, bit, chunk_of, each};
use stateright::{Model, Property};

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// In sync at the beginning.
    pub(crate) in_sync: Mask,
    pub(crate) min_copies: u32,
    pub(crate) writes: u8,
    pub(crate) discards: u8,
    /// Changes of the whole shard (a rollback) that are not sent to the syncing copy.
    pub(crate) rollbacks: u8,
    /// Times that C is dropped.
    pub(crate) drops: u8,
    /// A is lost with its disk.
    pub(crate) lost: u8,
    /// B is dropped, by A.
    pub(crate) second_drops: u8,
}

/// A rule broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    TrustsEqualVersions,
    DiscardForgotten,
    SkipsWhatTookLiveWrite,
    ResumesBeyondKnownGood,
    ResumesBeyondFinished,
    FillsWithoutLock,
    ListsBeforeEarlierWritesFinished,
    LiveWritesBehindCursorNotSent,
    OwnListOnly,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Action {
    Write {
        block: usize,
    },
    Discard {
        block: usize,
    },
    Rollback,
    Apply {
        node: usize,
        at: usize,
    },
    TellKnownGood {
        node: usize,
    },
    /// C leaves; what it was doing ends.
    Drop,
    DropSecond,
    LoseFirst,
    Sync,
    ListOwn,
    ListTheirs,
    Fill,
    /// The content that was read arrives: only with a switch.
    Land,
    Mark,
    Complete,
    Add,
}

#[derive(Clone, Debug)]
pub(crate) struct Filling {
    pub(crate) scope: Scope,
    pub(crate) switch: Option<Switch>,
}

impl Filling {
    fn on(&self, switch: Switch) -> bool {
        self.switch == Some(switch)
    }
    fn is_sealed(&self, state: &State) -> bool {
        state.in_sync.count_ones() < self.scope.min_copies
    }

    /// A new epoch of `primary` with these copies in sync. `same`: it was the primary before.
    fn new_epoch(&self, state: &mut State, primary: usize, in_sync: Mask) {
        let same = primary == state.primary;
        let mut unfinished = std::mem::take(&mut state.carried);
        unfinished.extend(std::mem::take(&mut state.ops).iter().map(|op| (op.block, op.content)));
        if !same {
            unfinished.clear();
        }
        (state.primary, state.in_sync, state.run) = (primary, in_sync, None);
        state.known_good = 0;
        if self.is_sealed(state) {
            state.carried = unfinished;
            return;
        }
        state.full_set = in_sync;
        for block in 0..BLOCKS {
            if each(in_sync).any(|n| state.nodes[n].held[block] != 0) {
                let content = state.nodes[primary].content[block];
                let stamp = state.stamp();
                each(in_sync).for_each(|n| state.nodes[n].write(block, content, stamp));
            }
        }
        state.known_good = state.stamp();
        for (block, content) in unfinished {
            self.begin(state, block, content);
        }
    }

    /// Stamps a change and sends it to all who take part.
    fn begin(&self, state: &mut State, block: usize, content: u8) {
        let stamp = state.stamp();
        let mut fed = state.run.as_ref().is_some_and(|run| run.fed);
        if self.on(Switch::LiveWritesBehindCursorNotSent) {
            fed &= state.run.as_ref().is_some_and(|run| chunk_of(block) >= run.cursor);
        }
        let sent = state.in_sync | if fed { bit(2) } else { 0 };
        state.ops.push(Op { stamp, block, content, sent, applied: 0 });
    }

    fn apply(&self, state: &mut State, node: usize, at: usize) {
        let op = &mut state.ops[at];
        op.applied |= bit(node);
        let (block, content, stamp, over) = (op.block, op.content, op.stamp, op.applied == op.sent);
        state.nodes[node].write(block, content, stamp);
        if content == 0 && self.on(Switch::DiscardForgotten) {
            state.nodes[node].version[chunk_of(block)] = 0;
        }
        if over {
            state.ops.remove(at);
            state.known_good = state.finished();
        }
    }

    /// All blocks of all in-sync copies at once; a copy that is filled is not sent it, and its run falls back.
    fn rollback(&self, state: &mut State) {
        let known = state.known_good;
        if let Some(run) = &mut state.run {
            run.fall_back(known);
        }
        let stamp = state.stamp();
        for node in each(state.in_sync) {
            (0..BLOCKS).for_each(|block| state.nodes[node].write(block, 1, stamp));
        }
        state.known_good = stamp;
        if let Some(run) = &mut state.run {
            run.aim(stamp);
        }
    }

    fn is_locked(state: &State, block: usize) -> bool {
        state.ops.iter().any(|op| op.block == block) || state.carried.iter().any(|(b, _)| *b == block)
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        for block in (0..BLOCKS).filter(|b| !Self::is_locked(state, *b)) {
            let content = state.nodes[state.primary].content[block];
            if each(state.in_sync).any(|n| state.nodes[n].content[block] != content) {
                return Some("Unequal");
            }
        }
        // A copy that is to be added is equal already, and not only after the settling that follows.
        if state.run.as_ref().is_some_and(run::Run::is_complete) {
            let written = |block: usize| state.ops.iter().any(|op| op.block == block);
            let (own, theirs) = (&state.nodes[state.primary].content, &state.nodes[2].content);
            if (0..BLOCKS).any(|block| own[block] != theirs[block] && !written(block)) {
                return Some("Unequal");
            }
        }
        if state.in_sync & bit(2) != 0 || !state.ops.is_empty() || self.switch.is_some() {
            return None;
        }
        let mut actions = Vec::new();
        self.moves(state, &mut actions);
        (!actions.iter().any(|a| self.next_state(state, *a).is_some())).then_some("Stuck")
    }

    /// What happens without a fault and without a client.
    fn moves(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, op) in state.ops.iter().enumerate() {
            actions.extend(each(op.sent & !op.applied).map(|node| Action::Apply { node, at }));
        }
        let absent = state.in_sync & bit(2) == 0 && state.run.is_none();
        if absent {
            actions.push(Action::Sync);
        }
        for node in each(state.in_sync) {
            let held = state.nodes[node].held.iter().any(|stamp| *stamp != 0 && *stamp <= state.known_good);
            if held {
                actions.push(Action::TellKnownGood { node });
            }
        }
        self.run_moves(state, actions);
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        let serving = !self.is_sealed(state);
        for block in (0..BLOCKS).filter(|b| serving && !Self::is_locked(state, *b)) {
            if state.left.writes > 0 {
                actions.push(Action::Write { block });
            }
            if state.left.discards > 0 {
                actions.push(Action::Discard { block });
            }
        }
        if state.left.rollbacks > 0 && serving && state.ops.is_empty() {
            actions.push(Action::Rollback);
        }
        if state.left.drops > 0 && (state.in_sync & bit(2) != 0 || state.run.is_some()) && state.primary != 2 {
            actions.push(Action::Drop);
        }
        if state.left.second_drops > 0 && state.in_sync & bit(1) != 0 && state.primary == 0 {
            actions.push(Action::DropSecond);
        }
        let survivors = if serving { state.in_sync } else { state.full_set };
        if state.left.lost > 0 && state.primary == 0 && survivors & bit(1) != 0 {
            actions.push(Action::LoseFirst);
        }
    }
}

impl Model for Filling {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.scope)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.violation(state).is_none() {
            self.moves(state, actions);
            self.faults(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Write { block } => {
                state.left.writes -= 1;
                let content = state.fresh();
                self.begin(&mut state, block, content);
            }
            Action::Discard { block } => {
                state.left.discards -= 1;
                self.begin(&mut state, block, 0);
            }
            Action::Rollback => {
                state.left.rollbacks -= 1;
                self.rollback(&mut state);
            }
            Action::Apply { node, at } => self.apply(&mut state, node, at),
            Action::TellKnownGood { node } => {
                let known_good = state.known_good;
                state.nodes[node].know(known_good);
            }
            Action::Drop => {
                state.left.drops -= 1;
                let (primary, in_sync) = (state.primary, state.in_sync & !bit(2));
                self.new_epoch(&mut state, primary, in_sync);
            }
            Action::DropSecond => {
                state.left.second_drops -= 1;
                let (in_sync, run) = (state.in_sync & !bit(1), state.run.is_some());
                self.new_epoch(&mut state, 0, in_sync);
                if run {
                    // It stays syncing, joins the new epoch, and says again where it stands.
                    self.sync(&mut state);
                }
            }
            Action::LoseFirst => {
                state.left.lost -= 1;
                let survivors = if self.is_sealed(&state) { state.full_set } else { state.in_sync } & !bit(0);
                state.nodes[0] = state::Node::default();
                self.new_epoch(&mut state, 1, survivors);
            }
            Action::Sync => {
                let (primary, in_sync) = (state.primary, state.in_sync);
                self.new_epoch(&mut state, primary, in_sync);
                self.sync(&mut state);
            }
            _ => self.run_step(&mut state, action),
        }
        state.tidy();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("safe", |model: &Self, state| model.violation(state).is_none())]
    }
}

impl crate::explore::Explained for Filling {
    fn violation_of(&self, state: &State) -> Option<String> {
        self.violation(state).map(str::to_owned)
    }
}

const _: () = assert!(BLOCKS == 2 * CHUNKS);
