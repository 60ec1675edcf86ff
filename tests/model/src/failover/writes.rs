//! Writes and reads: stamps, legs, the filter, acknowledgements, K, leases.

use super::state::{Bad, Carried, Lead, Leg, Mask, Message, Op, Phase, Progress, State, Twin, bit, each, stamp};
use super::{Failover, Switch};

impl Lead {
    pub(super) fn is_locked(&self, block: u8) -> bool {
        self.ops.iter().any(|op| op.block == block && op.locks) || self.carried.iter().any(|c| c.block == block)
    }
}

impl Failover {
    /// May this node stamp a write of this block now?
    pub(super) fn may_stamp(&self, state: &State, node: usize, block: u8) -> bool {
        let Some(lead) = &state.nodes[node].lead else { return false };
        lead.phase == Phase::Serving && !lead.is_locked(block)
    }

    /// May a client hand this write to that primary? It has no other connection that it still believes in.
    pub(super) fn may_execute(&self, state: &State, write: u8, node: usize) -> bool {
        let Some(lead) = &state.nodes[node].lead else { return false };
        let elsewhere = |other: &Lead| {
            let has = other.ops.iter().any(|op| op.write == write && !op.mute)
                || other.carried.iter().any(|c| c.write == write && !c.mute);
            has && other.epoch >= lead.epoch
        };
        self.may_stamp(state, node, self.block_of(write))
            && !state.nodes.iter().filter_map(|n| n.lead.as_ref()).any(elsewhere)
    }

    pub(super) fn execute(&self, state: &mut State, write: u8, node: usize) {
        self.issue(state, write);
        for lead in state.nodes.iter_mut().filter_map(|n| n.lead.as_mut()) {
            lead.ops.iter_mut().filter(|op| op.write == write).for_each(|op| op.mute = true);
            lead.carried.iter_mut().filter(|c| c.write == write).for_each(|c| c.mute = true);
        }
        // HelloAck of this node: what it had not stamped of older connections is gone.
        if state.twin.is_some_and(|t| t.write == write && usize::from(t.node) == node) && !self.on(Switch::NoFencing) {
            state.twin = None;
        }
        self.stamp(state, node, self.block_of(write), write, write, false);
    }

    fn issue(&self, state: &mut State, write: u8) {
        let progress = &mut state.writes[usize::from(write) - 1];
        if *progress == Progress::Unborn {
            *progress = Progress::Pending;
            state.spec[usize::from(self.block_of(write))].issue(write);
        }
    }

    pub(super) fn strand(&self, state: &mut State, write: u8, node: usize) {
        let Some(epoch) = state.nodes[node].lead.as_ref().map(|l| l.epoch) else { return };
        self.issue(state, write);
        state.left.stranded -= 1;
        state.twin = Some(Twin { write, node: small(node), epoch });
    }

    pub(super) fn read_twin(&self, state: &mut State) {
        let Some(twin) = state.twin.take() else { return };
        let write = twin.write;
        self.stamp(state, usize::from(twin.node), self.block_of(write), write, write, true);
    }

    /// Gives a stamp and sends the legs.
    pub(super) fn stamp(&self, state: &mut State, node: usize, block: u8, write: u8, content: u8, mute: bool) {
        let Some(lead) = &mut state.nodes[node].lead else { return };
        let config = state.configs[usize::from(lead.epoch) - 1];
        let sent = config.in_sync | if lead.feeding { config.syncing } else { 0 };
        let (epoch, sequence) = (lead.epoch, lead.next);
        lead.next += 1;
        lead.ops.push(Op { write, block, content, sequence, acked: 0, sent, told: false, mute, locks: true });
        let leg = Leg { epoch, sequence, block, content };
        state.nodes[node].in_disk.push(leg);
        for to in each(sent & !bit(node)) {
            state.send(Message::Write { to: small(to), leg });
        }
    }

    /// A leg arrives: it is begun once (rule 5).
    pub(super) fn take_leg(&self, state: &mut State, to: usize, leg: Leg) {
        let node = &mut state.nodes[to];
        if node.joined != leg.epoch || node.floor != leg.epoch {
            return;
        }
        let begun = 1 << leg.sequence;
        if node.begun & begun != 0 && !self.on(Switch::NoDuplicateFilter) {
            if !node.in_disk.iter().any(|l| l.sequence == leg.sequence && l.epoch == leg.epoch) {
                self.leg_done(state, to, leg);
            }
            return;
        }
        node.begun |= begun;
        node.in_disk.push(leg);
        if !self.scope.slow_disks {
            self.apply(state, to, state.nodes[to].in_disk.len() - 1);
        }
    }

    pub(super) fn apply(&self, state: &mut State, node: usize, at: usize) {
        let leg = state.nodes[node].in_disk.remove(at);
        state.nodes[node].write(leg);
        self.leg_done(state, node, leg);
    }

    /// The primary hears that a copy is done; what it does then without waiting for anybody, it does at once.
    fn leg_done(&self, state: &mut State, copy: usize, leg: Leg) {
        let primary = usize::from(state.config(leg.epoch).primary);
        let Some(lead) = state.nodes[primary].lead.as_mut().filter(|l| l.epoch == leg.epoch) else { return };
        let Some(op) = lead.ops.iter_mut().find(|op| op.sequence == leg.sequence) else { return };
        op.acked |= bit(copy);
        if self.on(Switch::LockFreedAtFirstCompletion) {
            op.locks = false;
        }
        op.told |= op.write == 0 && op.acked & op.sent == op.sent;
        let (settling, over) = (op.write == 0, op.told && op.acked & op.sent == op.sent);
        if over {
            lead.ops.retain(|op| op.sequence != leg.sequence);
        }
        if settling && lead.phase == Phase::Settling && lead.ops.is_empty() {
            self.serve(state, primary);
        }
    }

    /// Copies without which nothing is acknowledged.
    pub(super) fn needed(&self, state: &State, lead: &Lead) -> Mask {
        let config = state.config(lead.epoch);
        let counted = config.in_sync | if lead.counting { config.syncing } else { 0 };
        if !self.on(Switch::AcknowledgedBeforePersisted) {
            return counted;
        }
        let asked = |ask: &&super::state::Ask| ask.epoch == lead.epoch;
        let dropped = state.asks.iter().filter(asked).map(|ask| match ask.change {
            super::state::Change::Drop(copy) => bit(usize::from(copy)),
            _ => 0,
        });
        counted & !dropped.fold(0, |a, b| a | b)
    }

    pub(super) fn finish(&self, state: &mut State, node: usize, sequence: u8, lost: bool) {
        let open = state.nodes[node].open;
        let Some(lead) = &mut state.nodes[node].lead else { return };
        let config = state.configs[usize::from(lead.epoch) - 1];
        let Some(op) = lead.ops.iter_mut().find(|op| op.sequence == sequence) else { return };
        op.told = true;
        op.locks &= !self.on(Switch::LockNotHeldForSyncingCopy);
        let (write, mute, block) = (op.write, op.mute, usize::from(op.block));
        if op.acked & op.sent == op.sent {
            lead.ops.retain(|op| op.sequence != sequence);
        }
        lead.raise_known_good();
        if usize::from(config.primary) != node || config.open[node] != open {
            state.bad = Some(Bad::TwoPrimaries);
        }
        if lost {
            state.left.lost_replies -= 1;
        } else if !mute && state.writes[usize::from(write) - 1] == Progress::Pending {
            state.writes[usize::from(write) - 1] = Progress::Done;
            state.spec[block].complete(write);
        }
    }

    pub(super) fn tell_known_good(&self, state: &mut State, primary: usize, copy: usize) {
        let Some(lead) = &state.nodes[primary].lead else { return };
        let known_good = match lead.phase {
            // Only with a switch.
            Phase::Sealed => state.nodes[primary].version.into_iter().max().unwrap_or(0),
            _ => lead.known_good,
        };
        let node = &mut state.nodes[copy];
        node.known_good = node.known_good.max(known_good);
    }

    /// May this node answer a read of that block from its own copy (rules 9 and 11)?
    pub(super) fn may_read(&self, state: &State, node: usize, block: usize) -> bool {
        let Some(lead) = &state.nodes[node].lead else { return false };
        let config = state.config(lead.epoch);
        let owed = (config.in_sync | if lead.counting { config.syncing } else { 0 }) & !bit(node);
        let leased = lead.leases & owed == owed || self.on(Switch::NoPromise);
        let free = !lead.is_locked(small(block)) || self.on(Switch::ReadWithoutLock);
        let phase = match lead.phase {
            Phase::Serving => free,
            Phase::Sealed => {
                let by_conductor = lead.epoch == state.current() || self.on(Switch::SealedReadsAlone);
                by_conductor && state.nodes[node].version[block] <= state.nodes[node].known_good
            }
            Phase::Joining | Phase::Settling => false,
        };
        leased && phase
    }

    pub(super) fn read(&self, state: &mut State, node: usize, block: usize) {
        let content = state.nodes[node].content[block];
        state.reads -= 1;
        if state.spec[block].allows(content) {
            state.spec[block].read(content);
        } else {
            state.bad = Some(Bad::StaleRead);
        }
    }

    pub(super) fn repeat(&self, state: &mut State, node: usize, sequence: u8, to: usize) {
        let Some(lead) = &state.nodes[node].lead else { return };
        let Some(op) = lead.ops.iter().find(|op| op.sequence == sequence) else { return };
        let leg = Leg { epoch: lead.epoch, sequence, block: op.block, content: op.content };
        state.left.repeats -= 1;
        state.send(Message::Write { to: small(to), leg });
    }

    /// The primary serves from here on: K enters the epoch, and unfinished writes are stamped anew.
    pub(super) fn serve(&self, state: &mut State, node: usize) {
        let Some(lead) = &mut state.nodes[node].lead else { return };
        lead.phase = Phase::Serving;
        lead.known_good = stamp(lead.epoch, lead.next - 1);
        for Carried { write, block, mute } in std::mem::take(&mut lead.carried) {
            self.stamp(state, node, block, write, write, mute);
        }
    }
}

impl super::state::Node {
    pub(super) fn write(&mut self, leg: Leg) {
        self.content[usize::from(leg.block)] = leg.content;
        self.version[usize::from(leg.block)] = stamp(leg.epoch, leg.sequence);
    }
}

impl Lead {
    /// The gapless prefix finished on all in-sync copies.
    fn raise_known_good(&mut self) {
        if self.phase == Phase::Serving {
            let unfinished = self.ops.iter().filter(|op| !op.told).map(|op| op.sequence).min();
            self.known_good = stamp(self.epoch, unfinished.unwrap_or(self.next) - 1);
        }
    }
}

/// Nodes and blocks are few.
pub(super) fn small(number: usize) -> u8 {
    u8::try_from(number).expect("nodes and blocks are few")
}
