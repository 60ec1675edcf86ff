//! What may go wrong, as often as the scope says.

use super::state::{Ask, Bound, Change, Phase, Progress, State, bit, each};
use super::writes::small;
use super::{Action, Failover, NODES, Switch};

impl Failover {
    pub(super) fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for at in (0..NODES).filter(|n| !state.nodes[*n].dead) {
            if left.restarts > 0 {
                let subsets = 1u8 << state.nodes[at].in_disk.len();
                actions.extend((0..subsets).map(|applied| Action::Restart { node: at, applied }));
            }
            if left.losses > 0 {
                actions.push(Action::Lose { node: at });
            }
            self.faults_at_primary(state, at, actions);
        }
        if left.promotions > 0 && !state.nodes[usize::from(state.latest().primary)].dead {
            actions.extend(each(self.candidates(state)).map(|to| Action::Promote { to }));
            if self.on(Switch::ConductorFromThePast) {
                for epoch in 1..state.current() {
                    let config = state.config(epoch);
                    let able = config.in_sync & state.alive() & !bit(usize::from(config.primary));
                    actions.extend(each(able).map(|to| Action::PromoteFromThePast { epoch, to }));
                }
            }
        }
    }

    fn faults_at_primary(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let Some(lead) = &state.nodes[at].lead else { return };
        let (left, config) = (state.left, state.config(lead.epoch));
        if left.drops > 0 && lead.epoch == state.current() {
            for copy in each((config.in_sync | config.syncing) & state.alive() & !bit(at)) {
                let ask = Ask { epoch: lead.epoch, change: Change::Drop(small(copy)) };
                if !state.asks.contains(&ask) {
                    actions.push(Action::Ask(ask));
                }
            }
        }
        if left.lost_replies > 0 {
            let needed = self.needed(state, lead);
            let done = lead.ops.iter().filter(|op| op.write != 0 && !op.told && op.acked & needed & op.sent == needed);
            actions.extend(done.map(|op| Action::Finish { node: at, sequence: op.sequence, lost: true }));
        }
        if left.repeats > 0 {
            for op in &lead.ops {
                let begun = |to: &usize| state.nodes[*to].begun >> op.sequence & 1 != 0;
                let again = each(op.sent & !bit(at)).filter(begun);
                actions.extend(again.map(|to| Action::Repeat { node: at, sequence: op.sequence, to }));
            }
        }
        if left.stranded > 0 && state.twin.is_none() && lead.phase == Phase::Serving {
            let unborn = (1..=self.scope.writes).filter(|w| state.writes[usize::from(*w) - 1] == Progress::Unborn);
            actions.extend(unborn.map(|write| Action::Strand { write, node: at }));
        }
    }

    /// The memory is lost; of what was in the disk, `applied` has been done.
    pub(super) fn restart(&self, state: &mut State, at: usize, applied: u8) {
        state.left.restarts -= 1;
        let node = &mut state.nodes[at];
        for (index, leg) in std::mem::take(&mut node.in_disk).into_iter().enumerate() {
            if applied >> index & 1 != 0 {
                node.write(leg);
            }
        }
        let trusted = self.on(Switch::RestartedNodeTrusted);
        if !trusted && !self.on(Switch::OpenIdsLeftOut) {
            node.open += 1;
        }
        node.floor = node.stored;
        node.joined = if trusted && node.lead.is_none() { node.stored } else { 0 };
        node.begun = 0;
        node.parked = 0;
        node.draining = 0;
        node.lead = None;
        node.bound = if self.on(Switch::PromiseForgottenOnRestart) { Bound::No } else { Bound::Quarantine };
    }

    pub(super) fn lose(&self, state: &mut State, at: usize) {
        state.left.losses -= 1;
        let node = &mut state.nodes[at];
        let blank = super::state::Node::blank();
        *node = super::state::Node { dead: true, open: node.open, ..blank };
    }
}
