//! Equal situations as equal states: what can have no effect any more is removed.
//!
//! Each removal leaves out nothing that could be seen: a message that will be refused, a request whose epoch is over, a promise
//! that nobody counts on (the copy may go on at once instead of later), a version that is at or below K.

use super::state::{Bound, Message, State, bit, stamp};
use super::{Failover, NODES, Switch};

impl Failover {
    pub(super) fn tidy(&self, state: &mut State) {
        let mut net = std::mem::take(&mut state.net);
        net.retain(|message| !self.is_late(state, *message));
        state.net = net;
        if !self.on(Switch::LateAskApplied) {
            let current = state.current();
            state.asks.retain(|ask| ask.epoch == current);
        }
        if let Some(twin) = state.twin {
            let leads = state.nodes[usize::from(twin.node)].lead.as_ref().map(|l| l.epoch);
            let alive = leads == Some(twin.epoch) || (self.on(Switch::QueueSurvives) && leads.is_some());
            let waits = self.on(Switch::QueueSurvives) && !state.nodes[usize::from(twin.node)].dead;
            if !alive && !waits {
                state.twin = None;
            }
        }
        for at in 0..NODES {
            self.tidy_node(state, at);
        }
        for epoch in 1..state.current() {
            if !self.is_of_use(state, epoch) {
                state.configs[usize::from(epoch) - 1] = super::Config::default();
            }
        }
    }

    fn tidy_node(&self, state: &mut State, at: usize) {
        let relied = state.nodes.iter().any(|n| n.lead.as_ref().is_some_and(|l| l.leases & bit(at) != 0));
        let highest = state.nodes.iter().filter_map(|n| n.lead.as_ref()).map(|l| l.epoch).max().unwrap_or(0);
        let repeats = state.left.repeats > 0 || self.on(Switch::OpenIdsLeftOut);
        let under_way = state.net.iter().filter_map(|message| match message {
            Message::Write { to, leg } if usize::from(*to) == at => Some(1u16 << leg.sequence),
            _ => None,
        });
        let under_way = under_way.fold(0, |a, b| a | b);
        let node = &mut state.nodes[at];
        if !relied && node.parked == 0 {
            node.bound = Bound::No;
        }
        if !repeats {
            node.begun &= under_way;
        }
        let all_known = node.version.iter().all(|v| *v <= node.known_good);
        for version in &mut node.version {
            if *version <= node.known_good {
                *version = 0;
            }
        }
        if all_known && node.known_good < stamp(highest, 0) {
            node.known_good = 0;
        }
        node.in_disk.sort_unstable();
    }

    /// May a node still take this configuration, or has one taken it?
    fn is_of_use(&self, state: &State, epoch: u8) -> bool {
        let config = state.config(epoch);
        let primary = &state.nodes[usize::from(config.primary)];
        let leads = primary.lead.as_ref().map_or(0, |l| l.epoch);
        let known = if self.on(Switch::OpenIdsLeftOut) { primary.floor - 1 } else { primary.floor };
        let to_learn = !primary.dead && config.open[usize::from(config.primary)] == primary.open;
        let to_learn = to_learn && epoch > known && epoch > leads && epoch > primary.parked && config.in_sync != 0;
        let asked = |m: &Message| matches!(m, Message::Join { epoch: e, .. } if *e == epoch);
        let used = |n: &super::Node| {
            n.lead.as_ref().is_some_and(|l| l.epoch == epoch)
                || n.parked == epoch
                || n.draining == epoch
                || n.joined == epoch
                || n.in_disk.iter().any(|l| l.epoch == epoch)
        };
        let remembered = self.on(Switch::ConductorFromThePast);
        remembered || to_learn || state.net.iter().any(asked) || state.nodes.iter().any(used)
    }
}
