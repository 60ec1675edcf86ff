//! Epochs: what the conductor grants, how a copy joins, how a primary settles.

use super::state::{Ask, Bound, Carried, Change, Config, Epoch, Lead, Mask, Message, Phase, State, bit, each};
use super::writes::small;
use super::{Failover, Switch};

impl Lead {
    /// Of epoch 1: everybody has joined, and there is nothing.
    pub(super) fn first(all: Mask) -> Self {
        let leases = all & !bit(0);
        Self { phase: Phase::Serving, answers: all, known_good: 1 << 4, leases, ..Self::new(1) }
    }
    fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            phase: Phase::Joining,
            answers: 0,
            union: 0,
            ops: Vec::new(),
            carried: Vec::new(),
            next: 1,
            known_good: 0,
            leases: 0,
            feeding: false,
            filled: false,
            counting: false,
        }
    }
}

impl Failover {
    /// The next epoch.
    fn advance(&self, state: &mut State, mut next: Config) {
        if !self.is_sealed(&next) {
            next.full_set = next.in_sync;
        }
        state.configs.push(next);
    }

    pub(super) fn ask(&self, state: &mut State, ask: Ask) {
        if let Change::Drop(copy) = ask.change
            && !state.nodes[usize::from(copy)].dead
        {
            state.left.drops -= 1;
        }
        state.ask(ask);
    }

    /// Takes effect only if its epoch is current (rule 12).
    pub(super) fn conduct(&self, state: &mut State, ask: Ask) {
        state.asks.retain(|a| *a != ask);
        if ask.epoch != state.current() && !self.on(Switch::LateAskApplied) {
            return;
        }
        let mut next = *state.latest();
        let (Change::Drop(copy) | Change::Reopened(copy, _) | Change::Fill(copy, _) | Change::Add(copy)) = ask.change;
        let at = usize::from(copy);
        let (who, members) = (bit(at), next.in_sync | next.syncing);
        let registered = |open: u8| !state.nodes[at].dead && state.nodes[at].open == open;
        let granted = match ask.change {
            Change::Drop(_) => members & who != 0 && next.primary != copy,
            Change::Reopened(_, open) => members & who != 0 && registered(open),
            Change::Fill(_, open) => members & who == 0 && next.syncing == 0 && registered(open),
            Change::Add(_) => next.syncing & who != 0 || (self.on(Switch::LateAskApplied) && members & who == 0),
        };
        if !granted {
            return;
        }
        next.in_sync &= !if matches!(ask.change, Change::Drop(_)) { who } else { 0 };
        next.syncing &= !if matches!(ask.change, Change::Drop(_) | Change::Add(_)) { who } else { 0 };
        match ask.change {
            Change::Drop(_) => {}
            Change::Reopened(_, open) => next.open[at] = open,
            Change::Fill(_, open) => {
                next.syncing |= who;
                next.open[at] = open;
            }
            Change::Add(_) => next.in_sync |= who,
        }
        self.advance(state, next);
    }

    /// Whom the conductor may make primary in place of the current one (rules 10 and 11).
    pub(super) fn candidates(&self, state: &State) -> Mask {
        let config = state.latest();
        let of = if self.on(Switch::AnyCopyPromoted) {
            0b111
        } else if self.is_sealed(config) && !self.on(Switch::FullSetForgotten) {
            config.full_set
        } else {
            config.in_sync
        };
        of & state.alive() & !bit(usize::from(config.primary))
    }

    /// From what the conductor's record says: the current epoch, but with a switch.
    pub(super) fn promote(&self, state: &mut State, record: Epoch, to: usize) {
        let mut next = *state.config(record);
        let old = usize::from(next.primary);
        if !state.nodes[old].dead {
            state.left.promotions -= 1;
        }
        if self.is_sealed(&next) {
            next.in_sync = next.full_set;
        }
        if self.on(Switch::AnyCopyPromoted) {
            next.in_sync |= bit(to);
        }
        let others = next.in_sync & !bit(old);
        if others.count_ones() >= self.scope.min_copies {
            next.in_sync = others;
        }
        next.syncing = 0;
        next.primary = small(to);
        for copy in each(next.in_sync) {
            next.open[copy] = state.nodes[copy].open;
        }
        self.advance(state, next);
    }

    /// A configuration that this node is to serve, or a sign that it is no primary any more.
    pub(super) fn learn(&self, state: &mut State, node: usize, epoch: Epoch) {
        let config = *state.config(epoch);
        if usize::from(config.primary) != node {
            state.nodes[node].lead = None;
            return;
        }
        let old = state.nodes[node].lead.take();
        let mut lead = Lead::new(epoch);
        if let Some(old) = old {
            lead.carried = old.carried;
            let unfinished = old.ops.iter().filter(|op| op.write != 0 && !op.told);
            lead.carried.extend(unfinished.map(|op| Carried { write: op.write, block: op.block, mute: op.mute }));
        }
        state.nodes[node].lead = Some(lead);
        for to in each((config.in_sync | config.syncing) & !bit(node)) {
            state.send(Message::Join { to: small(to), epoch });
        }
        self.begin_join(state, node, epoch);
    }

    pub(super) fn deliver(&self, state: &mut State, message: Message) {
        state.net.retain(|m| *m != message);
        match message {
            Message::Write { to, leg } => self.take_leg(state, usize::from(to), leg),
            Message::Join { to, epoch } => {
                let to = usize::from(to);
                if state.config(epoch).open[to] != state.nodes[to].open {
                    return;
                }
                let node = &mut state.nodes[to];
                if self.on(Switch::OpenIdsLeftOut) && node.floor == epoch && node.joined == epoch {
                    self.join_answered(state, to, epoch);
                    return;
                }
                if epoch <= node.floor || epoch <= node.parked {
                    return;
                }
                node.lead = None;
                self.begin_join(state, to, epoch);
            }
        }
    }

    /// A promise to another primary parks it; else older epochs are refused from here on (rules 6 and 13).
    fn begin_join(&self, state: &mut State, node: usize, epoch: Epoch) {
        let primary = state.config(epoch).primary;
        match state.nodes[node].bound {
            Bound::No => self.drain(state, node, epoch),
            Bound::To(other) if other == primary => self.drain(state, node, epoch),
            Bound::To(_) | Bound::Quarantine => state.nodes[node].parked = epoch,
        }
    }

    fn drain(&self, state: &mut State, at: usize, epoch: Epoch) {
        let node = &mut state.nodes[at];
        node.draining = epoch;
        node.parked = 0;
        node.floor = epoch;
        node.joined = 0;
        node.begun = 0;
        if !self.scope.slow_disks {
            self.answer_join(state, at);
        }
    }

    /// May this node take a Join now? Where disks are fast it has drained first.
    pub(super) fn may_join(&self, state: &State, at: usize) -> bool {
        self.scope.slow_disks || state.nodes[at].in_disk.is_empty()
    }

    pub(super) fn answer_join(&self, state: &mut State, at: usize) {
        let epoch = state.nodes[at].draining;
        let primary = state.config(epoch).primary;
        let node = &mut state.nodes[at];
        node.draining = 0;
        node.stored = epoch;
        node.joined = epoch;
        node.begun = 0;
        node.bound = if usize::from(primary) == at { Bound::No } else { Bound::To(primary) };
        self.join_answered(state, at, epoch);
    }

    fn join_answered(&self, state: &mut State, at: usize, epoch: Epoch) {
        let config = *state.config(epoch);
        let primary = usize::from(config.primary);
        let held = state.nodes[at].held();
        let Some(lead) = state.nodes[primary].lead.as_mut().filter(|l| l.epoch == epoch) else { return };
        if at != primary {
            lead.leases |= bit(at);
        }
        if config.syncing & bit(at) != 0 {
            lead.feeding = true;
            return;
        }
        lead.answers |= bit(at);
        if at == primary || !self.on(Switch::SettlesOnlyItsOwnList) {
            lead.union |= held;
        }
        if lead.phase == Phase::Joining && lead.answers & config.in_sync == config.in_sync {
            self.all_joined(state, primary);
        }
    }

    fn all_joined(&self, state: &mut State, node: usize) {
        let Some(lead) = &mut state.nodes[node].lead else { return };
        let config = state.configs[usize::from(lead.epoch) - 1];
        if self.is_sealed(&config) && !self.on(Switch::SealedStamps) {
            lead.phase = Phase::Sealed;
            return;
        }
        lead.phase = Phase::Settling;
        let union = lead.union;
        for block in (0..self.scope.blocks).filter(|b| union >> b & 1 != 0) {
            let content = state.nodes[node].content[block];
            self.stamp(state, node, small(block), 0, content, false);
        }
        if union == 0 {
            self.serve(state, node);
        }
    }

    /// All content, under all locks (or in a sealed epoch, where nothing moves).
    pub(super) fn fill(&self, state: &mut State, primary: usize) {
        let Some(lead) = &mut state.nodes[primary].lead else { return };
        lead.filled = true;
        let copy = state.configs[usize::from(lead.epoch) - 1].syncing.trailing_zeros() as usize;
        state.nodes[copy].content = state.nodes[primary].content;
        state.nodes[copy].version = state.nodes[primary].version;
    }

    /// It counts first; K is stored there before the conductor is asked (rules 1 and 4).
    pub(super) fn ask_add(&self, state: &mut State, primary: usize) {
        let Some(lead) = &mut state.nodes[primary].lead else { return };
        lead.counting = true;
        let epoch = lead.epoch;
        let known_good = if lead.phase == Phase::Sealed { 0 } else { lead.known_good };
        let copy = state.config(epoch).syncing.trailing_zeros() as usize;
        state.nodes[copy].known_good = known_good.max(state.nodes[primary].known_good);
        state.ask(Ask { epoch, change: Change::Add(small(copy)) });
    }

    pub(super) fn forget(&self, state: &mut State, primary: usize) {
        let Some(lead) = &mut state.nodes[primary].lead else { return };
        (lead.feeding, lead.counting, lead.filled) = (false, false, false);
        let epoch = lead.epoch;
        let syncing = state.config(epoch).syncing;
        let lead = state.nodes[primary].lead.as_mut().expect("looked at above");
        lead.ops.iter_mut().for_each(|op| op.sent &= !syncing);
    }

    /// At the primary first, then at the copy (rule 14); a Join that waited goes on.
    pub(super) fn expire(&self, state: &mut State, copy: usize) {
        if !self.on(Switch::PromiseNotEndedEarly) && !self.on(Switch::ClockBeforeEvent) {
            for lead in state.nodes.iter_mut().filter_map(|n| n.lead.as_mut()) {
                lead.leases &= !bit(copy);
            }
        }
        let node = &mut state.nodes[copy];
        node.bound = Bound::No;
        if node.parked != 0 {
            let epoch = std::mem::take(&mut node.parked);
            self.drain(state, copy, epoch);
        }
    }

    /// A promise counts if the process is the one that joined and does not withhold the shard (rule 13).
    pub(super) fn renew(&self, state: &mut State, primary: usize, copy: usize) {
        let Some(lead) = &state.nodes[primary].lead else { return };
        let epoch = lead.epoch;
        let same = state.config(epoch).open[copy] == state.nodes[copy].open || self.on(Switch::PromiseBeforeJoin);
        let node = &state.nodes[copy];
        let elsewhere = node.floor > epoch && !self.on(Switch::WithheldEndedEarly);
        if !same || node.parked > epoch || elsewhere {
            return;
        }
        // It binds itself for what it has joined, and only for that.
        if node.joined == epoch && node.floor == epoch {
            state.nodes[copy].bound = Bound::To(small(primary));
        }
        if let Some(lead) = &mut state.nodes[primary].lead {
            lead.leases |= bit(copy);
        }
    }
}

impl super::state::Node {
    /// Blocks with a change above K.
    fn held(&self) -> u8 {
        (0..super::BLOCKS).filter(|b| self.version[*b] > self.known_good).map(|b| 1 << b).sum()
    }
}
