//! Failover: one shard, three copies, two writers and a reader (rules 1, 2, 5, 6, 8 to 14, 20, 24).
//!
//! Whatever can take long takes any time: a message, a disk, a conductor's answer. A silent node and a slow one look alike, so a
//! primary may drop, and the conductor replace, whom it likes, as often as the scope allows. Clocks are their order: a promise runs
//! out at the primary before it does at the copy (`Action::Expire`). A copy is filled in one step here; `filling` has the steps.

pub(crate) mod cases;
mod epochs;
mod faults;
mod moves;
mod properties;
mod spec;
mod state;
mod tidy;
mod writes;

use state::{Ask, BLOCKS, Bad, Bound, Config, Mask, Message, NODES, Node, Progress, State, WRITES};
use stateright::{Model, Property};

pub(crate) use state::Faults;

/// What is explored: the size, and the faults that happen at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) writes: u8,
    /// With 1, both writes overlap; with 2, each has a block of its own.
    pub(crate) blocks: usize,
    pub(crate) reads: u8,
    /// Copies in sync at the beginning; the other nodes have an empty one that is absent.
    pub(crate) copies: u32,
    pub(crate) min_copies: u32,
    /// A copy's disk takes its time after a leg was admitted, and so does the storing of a configuration. Without, both are done
    /// when the message arrives: nothing is left out by that, since a message takes any time and a copy drains before it joins.
    pub(crate) slow_disks: bool,
    /// Copies that were dropped may be filled and added again.
    pub(crate) resync: bool,
    pub(crate) faults: Faults,
}

/// A rule broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    CandidateForgottenWhileAddIsAsked,
    LateAskApplied,
    AddAskedEarly,
    OpenIdsLeftOut,
    RestartedNodeTrusted,
    NoDuplicateFilter,
    LockFreedAtFirstCompletion,
    LockNotHeldForSyncingCopy,
    JoinBeforeDraining,
    SettlesOnlyItsOwnList,
    ReadWithoutLock,
    NoPromise,
    PromiseBeforeJoin,
    PromiseForgottenOnRestart,
    ClockBeforeEvent,
    PromiseNotEndedEarly,
    WithheldEndedEarly,
    AcknowledgedBeforePersisted,
    NoFencing,
    QueueSurvives,
    FullSetForgotten,
    AnyCopyPromoted,
    SealedStamps,
    SealedMovesKnownGood,
    SealedReadsAlone,
    ConductorFromThePast,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Action {
    /// A primary stamps a client's write.
    Execute {
        write: u8,
        node: usize,
    },
    /// A client's request reaches a node, and its connection is given up before it is read.
    Strand {
        write: u8,
        node: usize,
    },
    /// Such a request is read after all.
    ReadTwin,
    /// A message arrives.
    Deliver(Message),
    /// A disk executes what it was given.
    Apply {
        node: usize,
        at: usize,
    },
    /// A primary completes a write to its client.
    Finish {
        node: usize,
        sequence: u8,
        lost: bool,
    },
    /// K goes along to a copy.
    TellKnownGood {
        primary: usize,
        copy: usize,
    },
    /// A client reads.
    Read {
        node: usize,
        block: usize,
    },
    /// A node hears of an epoch from the conductor.
    Learn {
        node: usize,
        epoch: u8,
    },
    /// A copy has drained and stored the configuration: it answers its Join.
    AnswerJoin {
        node: usize,
    },
    /// A primary asks the conductor.
    Ask(Ask),
    /// The conductor takes a request.
    Conduct(Ask),
    /// The conductor replaces a primary.
    Promote {
        to: usize,
    },
    /// It was restored from the past, and replaces the primary of an epoch that is over: only with a switch.
    PromoteFromThePast {
        epoch: u8,
        to: usize,
    },
    /// A copy's promise runs out, and before that the lease on it.
    Expire {
        copy: usize,
    },
    /// PROMISE is asked and answered.
    Renew {
        primary: usize,
        copy: usize,
    },
    /// The syncing copy gets all content.
    Fill {
        primary: usize,
    },
    /// The syncing copy counts from here on, and its addition is asked.
    AskAdd {
        primary: usize,
    },
    /// The primary gives up its candidate without an epoch: only with a switch.
    Forget {
        primary: usize,
    },
    Restart {
        node: usize,
        applied: u8,
    },
    Lose {
        node: usize,
    },
    /// A primary sends a leg again.
    Repeat {
        node: usize,
        sequence: u8,
        to: usize,
    },
}

impl Action {
    /// The node that does it, except for reads.
    fn of_node(self) -> Option<usize> {
        match self {
            Self::Execute { node, .. } | Self::Apply { node, .. } | Self::Finish { node, .. } => Some(node),
            Self::Learn { node, .. } | Self::AnswerJoin { node } | Self::Restart { node, .. } => Some(node),
            Self::TellKnownGood { primary, .. } | Self::Fill { primary } | Self::AskAdd { primary } => Some(primary),
            Self::Deliver(Message::Join { to, .. } | Message::Write { to, .. }) => Some(usize::from(to)),
            _ => None,
        }
    }
}

/// A scope, and what is broken in it.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    pub(crate) scope: Scope,
    pub(crate) switch: Option<Switch>,
}

impl Failover {
    fn on(&self, switch: Switch) -> bool {
        self.switch == Some(switch)
    }
    fn is_sealed(&self, config: &Config) -> bool {
        config.in_sync.count_ones() < self.scope.min_copies
    }
    fn block_of(&self, write: u8) -> u8 {
        if self.scope.blocks == 1 { 0 } else { write - 1 }
    }
}

impl Model for Failover {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let all: Mask = (1 << self.scope.copies) - 1;
        let node = Node { stored: 1, floor: 1, joined: 1, bound: Bound::To(0), ..Node::blank() };
        let mut nodes: [Node; NODES] = std::array::from_fn(|_| node.clone());
        nodes[0].bound = Bound::No;
        for spare in state::each(!all & 0b111) {
            nodes[spare] = Node::blank();
        }
        nodes[0].lead = Some(state::Lead::first(all));
        let mut writes = [Progress::Done; WRITES];
        for at in 0..usize::from(self.scope.writes) {
            writes[at] = Progress::Unborn;
        }
        vec![State {
            configs: vec![Config { primary: 0, in_sync: all, syncing: 0, full_set: all, open: [0; NODES] }],
            asks: Vec::new(),
            net: Vec::new(),
            nodes,
            writes,
            twin: None,
            spec: [spec::Possible::new(); BLOCKS],
            reads: self.scope.reads,
            left: self.scope.faults,
            bad: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.bad.is_none() {
            self.moves(state, actions);
            self.faults(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        self.tidy(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("safe", |model: &Self, state| model.violation(state).is_none())]
    }
}

impl Failover {
    fn step(&self, state: &mut State, action: Action) {
        if self.on(Switch::ClockBeforeEvent)
            && let Some(node) = action.of_node()
        {
            // A read is judged by the time before it; what else happens here brings the clock up to date.
            state.look_at_clock(node);
        }
        match action {
            Action::Execute { write, node } => self.execute(state, write, node),
            Action::Strand { write, node } => self.strand(state, write, node),
            Action::ReadTwin => self.read_twin(state),
            Action::Deliver(message) => self.deliver(state, message),
            Action::Apply { node, at } => self.apply(state, node, at),
            Action::Finish { node, sequence, lost } => self.finish(state, node, sequence, lost),
            Action::TellKnownGood { primary, copy } => self.tell_known_good(state, primary, copy),
            Action::Read { node, block } => self.read(state, node, block),
            Action::Learn { node, epoch } => self.learn(state, node, epoch),
            Action::AnswerJoin { node } => self.answer_join(state, node),
            Action::Ask(ask) => self.ask(state, ask),
            Action::Conduct(ask) => self.conduct(state, ask),
            Action::Promote { to } => self.promote(state, state.current(), to),
            Action::PromoteFromThePast { epoch, to } => self.promote(state, epoch, to),
            Action::Expire { copy } => self.expire(state, copy),
            Action::Renew { primary, copy } => self.renew(state, primary, copy),
            Action::Fill { primary } => self.fill(state, primary),
            Action::AskAdd { primary } => self.ask_add(state, primary),
            Action::Forget { primary } => self.forget(state, primary),
            Action::Restart { node, applied } => self.restart(state, node, applied),
            Action::Lose { node } => self.lose(state, node),
            Action::Repeat { node, sequence, to } => self.repeat(state, node, sequence, to),
        }
    }
}

impl crate::explore::Explained for Failover {
    fn violation_of(&self, state: &State) -> Option<String> {
        self.violation(state).map(|bad: Bad| format!("{bad:?}"))
    }
}
