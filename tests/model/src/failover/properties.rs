//! What must hold in every state.

use super::state::{Bad, Lead, Phase, Progress, State, bit, each};
use super::writes::small;
use super::{Action, Failover, NODES, Switch};
use stateright::Model;

impl Failover {
    pub(super) fn violation(&self, state: &State) -> Option<Bad> {
        if state.bad.is_some() {
            return state.bad;
        }
        for at in 0..NODES {
            let Some(lead) = &state.nodes[at].lead else { continue };
            for block in 0..self.scope.blocks {
                let content = state.nodes[at].content[block];
                let allowed = state.spec[block].allows(content);
                if !allowed && self.may_read(state, at, block) {
                    return Some(Bad::StaleRead);
                }
                let written = lead.ops.iter().any(|op| op.block == small(block)) || lead.is_locked(small(block));
                if lead.phase != Phase::Serving || written {
                    continue;
                }
                // Nobody else can have acknowledged anything: what is not here is lost.
                if !allowed && lead.epoch == state.current() {
                    return Some(Bad::Lost);
                }
                if !self.is_equal(state, at, lead, block) {
                    return Some(Bad::Unequal);
                }
            }
        }
        // A switch that is to lose data is not caught by a client that waits.
        let waiting_counts = matches!(self.switch, None | Some(Switch::FullSetForgotten));
        (waiting_counts && self.is_stuck(state)).then_some(Bad::Stuck)
    }

    /// After settling, whatever is still queued anywhere, and after a copy was added.
    fn is_equal(&self, state: &State, at: usize, lead: &Lead, block: usize) -> bool {
        let config = state.config(lead.epoch);
        let counted = config.in_sync | if lead.counting { config.syncing } else { 0 };
        each(counted & !bit(at)).all(|copy| {
            let node = &state.nodes[copy];
            node.joined != lead.epoch || node.content[block] == state.nodes[at].content[block]
        })
    }

    /// Nothing happens any more without a fault, and a client waits.
    ///
    /// Without faults every path ends (nothing is ever done twice), so this is "every write ends when faults stop".
    fn is_stuck(&self, state: &State) -> bool {
        let quiet = state.net.is_empty() && state.nodes.iter().all(|n| n.in_disk.is_empty());
        if !quiet || state.writes.iter().all(|w| *w == Progress::Done) || self.is_excused(state) {
            return false;
        }
        let mut actions: Vec<Action> = Vec::new();
        self.moves(state, &mut actions);
        !actions.into_iter().any(|action| self.next_state(state, action).is_some())
    }

    /// Too few copies are left for any write.
    fn is_excused(&self, state: &State) -> bool {
        let config = state.latest();
        let leads = state.alive() & bit(usize::from(config.primary)) != 0;
        let holders = if self.is_sealed(config) && !leads { config.full_set } else { config.in_sync } & state.alive();
        let usable = if self.scope.resync { state.alive() } else { holders };
        holders == 0 || usable.count_ones() < self.scope.min_copies
    }
}
