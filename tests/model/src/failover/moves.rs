//! What may happen next without a fault.

use super::state::{Ask, Bound, Change, Config, Lead, Message, Phase, Progress, State, bit, each};
use super::writes::small;
use super::{Action, Failover, NODES, Switch};

impl Failover {
    pub(super) fn moves(&self, state: &State, actions: &mut Vec<Action>) {
        let may_arrive = |m: &&Message| match m {
            Message::Join { to, .. } => self.may_join(state, usize::from(*to)),
            Message::Write { .. } => true,
        };
        actions.extend(state.net.iter().filter(may_arrive).map(|m| Action::Deliver(*m)));
        actions.extend(state.asks.iter().map(|a| Action::Conduct(*a)));
        if state.twin.is_some_and(|t| self.may_stamp(state, usize::from(t.node), self.block_of(t.write))) {
            actions.push(Action::ReadTwin);
        }
        for at in (0..NODES).filter(|n| !state.nodes[*n].dead) {
            let node = &state.nodes[at];
            actions.extend((0..node.in_disk.len()).map(|leg| Action::Apply { node: at, at: leg }));
            let drained = node.in_disk.is_empty() || self.on(Switch::JoinBeforeDraining);
            if node.draining != 0 && drained {
                actions.push(Action::AnswerJoin { node: at });
            }
            if (node.bound == Bound::Quarantine || node.parked != 0) && self.may_join(state, at) {
                actions.push(Action::Expire { copy: at });
            }
            self.news(state, at, actions);
            self.wishes(state, at, actions);
            if let Some(lead) = &node.lead {
                self.primary_moves(state, at, lead, actions);
            }
        }
        if state.nodes[usize::from(state.latest().primary)].dead {
            actions.extend(each(self.candidates(state)).map(|to| Action::Promote { to }));
        }
    }

    /// The conductor's answers, in any order and as late as they like.
    fn news(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        let leads = node.lead.as_ref().map_or(0, |l| l.epoch);
        for epoch in 1..=state.current() {
            let config = state.config(epoch);
            let known = if self.on(Switch::OpenIdsLeftOut) && leads == 0 { node.floor - 1 } else { node.floor };
            let mine = config.in_sync & bit(at) != 0 && usize::from(config.primary) == at;
            let new = epoch > known && epoch > leads && epoch > node.parked && epoch != node.draining;
            if mine && new && config.open[at] == node.open && self.may_join(state, at) {
                actions.push(Action::Learn { node: at, epoch });
            }
        }
        if leads != 0 && leads < state.current() && usize::from(state.latest().primary) != at {
            actions.push(Action::Learn { node: at, epoch: state.current() });
        }
    }

    /// What a primary asks because it has to: the copy is gone, or was opened anew.
    fn wishes(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let (epoch, config) = (state.current(), state.latest());
        if usize::from(config.primary) != at {
            return;
        }
        let lead = state.nodes[at].lead.as_ref().filter(|l| l.epoch == epoch);
        let mut ask = |change: Change| {
            let ask = Ask { epoch, change };
            if !state.asks.contains(&ask) {
                actions.push(Action::Ask(ask));
            }
        };
        for copy in each(config.in_sync | config.syncing) {
            let other = &state.nodes[copy];
            if (lead.is_some() || copy == at) && !other.dead && other.open != config.open[copy] {
                ask(Change::Reopened(small(copy), other.open));
            }
            if lead.is_some() && copy != at && other.dead {
                ask(Change::Drop(small(copy)));
            }
        }
        if let Some(lead) = lead
            && self.scope.resync
            && matches!(lead.phase, Phase::Serving | Phase::Sealed)
            && config.syncing == 0
        {
            for copy in each(state.alive() & !config.in_sync) {
                ask(Change::Fill(small(copy), state.nodes[copy].open));
            }
        }
    }

    fn primary_moves(&self, state: &State, at: usize, lead: &Lead, actions: &mut Vec<Action>) {
        let config = state.config(lead.epoch);
        for write in 1..=self.scope.writes {
            if state.writes[usize::from(write) - 1] != Progress::Done && self.may_execute(state, write, at) {
                actions.push(Action::Execute { write, node: at });
            }
        }
        let needed = self.needed(state, lead);
        for op in lead.ops.iter().filter(|op| op.write != 0 && !op.told && op.acked & needed & op.sent == needed) {
            actions.push(Action::Finish { node: at, sequence: op.sequence, lost: false });
        }
        // K is of interest to a copy with something above its own.
        let moves = match lead.phase {
            Phase::Serving => lead.known_good,
            Phase::Sealed if self.on(Switch::SealedMovesKnownGood) => u8::MAX,
            _ => 0,
        };
        let counted = config.in_sync | if lead.counting { config.syncing } else { 0 };
        for copy in each(counted) {
            let node = &state.nodes[copy];
            let above = (0..super::BLOCKS).any(|b| node.version[b] > node.known_good && node.version[b] <= moves);
            if above && node.joined == lead.epoch && node.floor == lead.epoch {
                actions.push(Action::TellKnownGood { primary: at, copy });
            }
        }
        if state.reads > 0 {
            let readable = (0..self.scope.blocks).filter(|b| self.may_read(state, at, *b));
            actions.extend(readable.map(|block| Action::Read { node: at, block }));
        }
        for copy in each(config.in_sync & state.alive() & !bit(at) & !lead.leases) {
            if matches!(lead.phase, Phase::Serving | Phase::Sealed) {
                actions.push(Action::Renew { primary: at, copy });
            }
        }
        self.filling_moves(state, at, lead, config, actions);
    }

    fn filling_moves(&self, state: &State, at: usize, lead: &Lead, config: &Config, actions: &mut Vec<Action>) {
        if config.syncing == 0 || !matches!(lead.phase, Phase::Serving | Phase::Sealed) {
            return;
        }
        let copy = &state.nodes[config.syncing.trailing_zeros() as usize];
        let joined = lead.feeding && copy.joined == lead.epoch && copy.floor == lead.epoch && !copy.dead;
        if joined && !lead.filled && lead.ops.is_empty() && copy.in_disk.is_empty() {
            actions.push(Action::Fill { primary: at });
        }
        let unfinished = lead.ops.iter().any(|op| op.told);
        let current = lead.epoch == state.current();
        if joined && lead.filled && !lead.counting && current && (!unfinished || self.on(Switch::AddAskedEarly)) {
            actions.push(Action::AskAdd { primary: at });
        }
        if lead.counting && self.on(Switch::CandidateForgottenWhileAddIsAsked) {
            actions.push(Action::Forget { primary: at });
        }
    }

    /// Is a message of no effect any more?
    pub(super) fn is_late(&self, state: &State, message: Message) -> bool {
        match message {
            Message::Join { to, epoch } => {
                let node = &state.nodes[usize::from(to)];
                let repeat = self.on(Switch::OpenIdsLeftOut) && node.floor == epoch && node.joined == epoch;
                node.dead || (epoch <= node.floor && !repeat)
            }
            Message::Write { to, leg } => {
                let node = &state.nodes[usize::from(to)];
                node.dead || node.floor != leg.epoch || node.joined != leg.epoch
            }
        }
    }
}
