//! A snapshot over two shards (rule 17): a cut that fits the order in which clients saw their writes complete.
//!
//! Two shards execute writes, each in an order of its own. The conductor begins an attempt; each primary places its barrier and
//! holds acknowledgements from then on; a primary may be replaced, and the conductor restarted. Of clocks only this counts: a hold
//! ends after the conductor's own deadline for the attempt.

use crate::cases::{Case, Expect};
use stateright::{Model, Property};

const SHARDS: usize = 2;
/// Two on each shard: write `w` is on shard `w % 2`.
const WRITES: usize = 4;

/// Faults that are still to come, and attempts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Left {
    attempts: u8,
    failovers: u8,
    conductor_restarts: u8,
}

/// A rule broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Switch {
    NoHold,
    HeldWritesAreRead,
    EpochsNotCompared,
    HoldEndsBeforeDeadline,
    AttemptsNotNumbered,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Write {
    Unborn,
    Issued,
    Executed,
    Acknowledged,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Barrier {
    No,
    /// Stamped: the shard is locked until all copies have it.
    Placing(u8),
    /// Placed: nothing is acknowledged.
    Held(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Shard {
    barrier: Barrier,
    /// The attempt that the conductor names, as far as this primary has heard.
    named: u8,
    /// The last barrier placed here, and the writes below it.
    snapshot: (u8, u8),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    writes: [Write; WRITES],
    /// What was acknowledged, or read, when a write was issued.
    after: [u8; WRITES],
    shards: [Shard; SHARDS],
    /// The attempt that is open, or 0, and the last number given.
    attempt: u8,
    last: u8,
    /// Shards that changed their epoch since.
    changed: u8,
    confirmed: u8,
    /// Confirmations under way: shard, attempt.
    said: Vec<(usize, u8)>,
    left: Left,
    torn: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Action {
    Issue(usize),
    Execute(usize),
    Acknowledge(usize),
    Begin,
    Hear(usize),
    Stamp(usize),
    Place(usize),
    Confirm(usize, u8),
    Complete,
    Deadline,
    HoldIsOver(usize),
    Failover(usize),
    ConductorRestarts,
}

#[derive(Clone, Debug)]
struct Snapshot {
    left: Left,
    switch: Option<Switch>,
}

impl Snapshot {
    fn on(&self, switch: Switch) -> bool {
        self.switch == Some(switch)
    }

    fn is_held(&self, state: &State, shard: usize) -> bool {
        matches!(state.shards[shard].barrier, Barrier::Held(_)) && !self.on(Switch::NoHold)
    }

    fn write_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for write in 0..WRITES {
            let shard = write % SHARDS;
            let locked = matches!(state.shards[shard].barrier, Barrier::Placing(_));
            match state.writes[write] {
                // Two writes of one shard are alike: the first is issued first.
                Write::Unborn if write < SHARDS || state.writes[write - SHARDS] != Write::Unborn => {
                    actions.push(Action::Issue(write));
                }
                Write::Issued if !locked => actions.push(Action::Execute(write)),
                Write::Executed if !self.is_held(state, shard) => actions.push(Action::Acknowledge(write)),
                _ => {}
            }
        }
    }

    fn shard_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let shard = state.shards[at];
        if shard.named != state.attempt {
            actions.push(Action::Hear(at));
        }
        match shard.barrier {
            Barrier::No if shard.named != 0 && shard.snapshot.0 != shard.named => actions.push(Action::Stamp(at)),
            Barrier::Placing(_) => actions.push(Action::Place(at)),
            Barrier::Held(id) if id != state.attempt || self.on(Switch::HoldEndsBeforeDeadline) => {
                actions.push(Action::HoldIsOver(at));
            }
            Barrier::No | Barrier::Held(_) => {}
        }
        if state.left.failovers > 0 {
            actions.push(Action::Failover(at));
        }
    }

    /// The snapshot is complete: what it holds of one write it holds of all that came before.
    fn complete(&self, state: &mut State) {
        let cut = state.shards.iter().fold(0, |cut, shard| cut | shard.snapshot.1);
        let before = |write: usize| cut >> write & 1 == 0 || state.after[write] & !cut == 0;
        state.torn = !(0..WRITES).all(before);
        state.attempt = 0;
        state.confirmed = 0;
    }
}

impl State {
    /// What belongs to an attempt that is over can have no effect any more.
    fn tidy(&mut self) {
        let open = self.attempt;
        self.said.retain(|(_, id)| *id == open);
        if open == 0 {
            (self.changed, self.confirmed) = (0, 0);
        }
        for shard in self.shards.iter_mut().filter(|s| s.snapshot.0 != open && s.snapshot.0 != s.named) {
            shard.snapshot = (0, 0);
        }
        if self.left.attempts == 0 && open == 0 {
            // Nobody will look at the order of writes again.
            self.after = [0; WRITES];
        }
    }
}

impl Model for Snapshot {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let shard = Shard { barrier: Barrier::No, named: 0, snapshot: (0, 0) };
        vec![State {
            writes: [Write::Unborn; WRITES],
            after: [0; WRITES],
            shards: [shard; SHARDS],
            attempt: 0,
            last: 0,
            changed: 0,
            confirmed: 0,
            said: Vec::new(),
            left: self.left,
            torn: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.write_actions(state, actions);
        (0..SHARDS).for_each(|shard| self.shard_actions(state, shard, actions));
        actions.extend(state.said.iter().map(|(shard, id)| Action::Confirm(*shard, *id)));
        if state.attempt == 0 && state.left.attempts > 0 {
            actions.push(Action::Begin);
        }
        if state.attempt != 0 {
            actions.push(Action::Deadline);
            if state.confirmed == 0b11 && (state.changed == 0 || self.on(Switch::EpochsNotCompared)) {
                actions.push(Action::Complete);
            }
        }
        if state.left.conductor_restarts > 0 {
            actions.push(Action::ConductorRestarts);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Issue(write) => {
                state.writes[write] = Write::Issued;
                let seen = |w: &usize| match state.writes[*w] {
                    Write::Acknowledged => true,
                    Write::Executed => self.on(Switch::HeldWritesAreRead),
                    _ => false,
                };
                state.after[write] = (0..WRITES).filter(seen).map(|w| 1 << w).sum();
            }
            Action::Execute(write) => state.writes[write] = Write::Executed,
            Action::Acknowledge(write) => state.writes[write] = Write::Acknowledged,
            Action::Begin => {
                state.left.attempts -= 1;
                state.last += u8::from(!self.on(Switch::AttemptsNotNumbered) || state.last == 0);
                state.attempt = state.last;
                state.confirmed = 0;
                state.changed = 0;
            }
            Action::Hear(shard) => {
                let named = state.attempt;
                let shard = &mut state.shards[shard];
                shard.named = named;
                if matches!(shard.barrier, Barrier::Held(id) | Barrier::Placing(id) if id != named) {
                    shard.barrier = Barrier::No;
                }
            }
            Action::Stamp(shard) => state.shards[shard].barrier = Barrier::Placing(state.shards[shard].named),
            Action::Place(at) => {
                let Barrier::Placing(id) = state.shards[at].barrier else { return None };
                let below = (at..WRITES).step_by(SHARDS).filter(|w| state.writes[*w] >= Write::Executed);
                state.shards[at].snapshot = (id, below.map(|w| 1 << w).sum());
                state.shards[at].barrier = Barrier::Held(id);
                state.said.push((at, id));
                state.said.sort_unstable();
                state.said.dedup();
            }
            Action::Confirm(shard, id) => {
                state.said.retain(|said| *said != (shard, id));
                if id == state.attempt {
                    state.confirmed |= 1 << shard;
                }
            }
            Action::Complete => self.complete(&mut state),
            Action::Deadline => (state.attempt, state.confirmed) = (0, 0),
            Action::HoldIsOver(shard) => state.shards[shard].barrier = Barrier::No,
            Action::Failover(shard) => {
                state.left.failovers -= 1;
                // The new primary knows of no hold; what was executed is settled, and clients ask for its answer again.
                state.changed |= 1 << shard;
                let shard = &mut state.shards[shard];
                (shard.barrier, shard.named) = (Barrier::No, 0);
            }
            Action::ConductorRestarts => {
                state.left.conductor_restarts -= 1;
                (state.attempt, state.confirmed) = (0, 0);
            }
        }
        if !self.on(Switch::AttemptsNotNumbered) {
            state.tidy();
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("a snapshot is a cut", |_: &Self, state: &State| !state.torn)]
    }
}

impl PartialOrd for Write {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (*self as u8).partial_cmp(&(*other as u8))
    }
}

impl crate::explore::Explained for Snapshot {
    fn violation_of(&self, state: &State) -> Option<String> {
        state.torn.then(|| "Torn".to_owned())
    }
}

pub(crate) fn configurations() -> Vec<Case> {
    let clean =
        |name, about, states, left| Case::new(name, about, Expect::Clean(states), Snapshot { left, switch: None });
    vec![
        clean(
            "snapshot-failover",
            "two shards, four writes, one attempt, a failover (rule 17)",
            316_382,
            Left { attempts: 1, failovers: 1, conductor_restarts: 0 },
        ),
        clean(
            "snapshot-attempts",
            "two shards, four writes, two attempts, the conductor restarts (rule 17)",
            574_578,
            Left { attempts: 2, failovers: 0, conductor_restarts: 1 },
        ),
    ]
}

pub(crate) fn switches() -> Vec<Case> {
    let caught = |name, about, switch, left| {
        Case::new(name, about, Expect::Caught("Torn"), Snapshot { left, switch: Some(switch) })
    };
    let one = Left { attempts: 1, failovers: 0, conductor_restarts: 0 };
    vec![
        caught("switch-no-hold", "writes are acknowledged while barriers are placed", Switch::NoHold, one),
        caught("switch-held-writes-read", "a held write gives its lock back", Switch::HeldWritesAreRead, one),
        caught(
            "switch-epochs-not-compared",
            "a snapshot counts although a shard changed its epoch",
            Switch::EpochsNotCompared,
            Left { failovers: 1, ..one },
        ),
        caught(
            "switch-hold-too-short",
            "a hold ends before the conductor's deadline",
            Switch::HoldEndsBeforeDeadline,
            one,
        ),
        caught(
            "switch-attempts-not-numbered",
            "a barrier of an attempt that was given up counts for the next",
            Switch::AttemptsNotNumbered,
            Left { attempts: 2, ..one },
        ),
    ]
}
