//! Damage, counted and said: at most one line a second.

use super::Node;
use crate::limits::DAMAGE_LINE;
use crate::mail::Letter;
use crate::mend::Outcome;
use crate::primary::BadBlock;
use conductor_model::{Blocks, CopyId, ShardId};
use driver::{Outbox, Time};
use node_store::{Store, StoreDone, StoreError, View};

/// What was met on this reactor, and what was said of it.
#[derive(Debug)]
pub(crate) struct Damage {
    /// Of each disk: damaged, and of these repaired.
    pub(crate) by_disk: Vec<(u64, u64)>,
    /// Lines that were left out since the last one.
    unsaid: u64,
    line: Option<String>,
    next_line: Time,
}

impl Damage {
    pub(crate) fn new(disks: usize) -> Self {
        Self { by_disk: vec![(0, 0); disks], unsaid: 0, line: None, next_line: Time::default() }
    }
}

impl<S: Store> Node<S> {
    /// Counts what the store here did with a repair.
    pub(super) fn count_repair(&mut self, shard: ShardId, blocks: u64, result: &Result<StoreDone, StoreError>) {
        let disk = self.replicas.get(&shard).map(|r| r.disk);
        let Some((damaged, repaired)) = disk.and_then(|disk| self.damage.by_disk.get_mut(disk)) else { return };
        match result {
            Ok(_) => (*damaged, *repaired) = (*damaged + blocks, *repaired + blocks),
            Err(StoreError::Corrupt { .. }) => *damaged += blocks,
            Err(_) => {}
        }
    }

    /// Counts what came of a mend, and says it.
    pub(super) fn record(
        &mut self,
        now: Time,
        shard: ShardId,
        view: View,
        outcome: &Outcome,
        out: &mut dyn Outbox<Letter>,
    ) {
        let own = self.replicas.get(&shard).map(|r| (r.copy, r.disk));
        let mut said = |node: &mut Self, copy: CopyId, block: Blocks, what: &str| {
            let of =
                if let View::Snapshot(snapshot) = view { format!(" of snapshot {snapshot}") } else { String::new() };
            let line =
                format!("block {block} of shard {shard}{of} does not read as it was written on copy {copy}: {what}");
            node.say_damage(now, line, out);
        };
        for (copy, block) in &outcome.repaired {
            self.counters.count("damage.found");
            self.counters.count("damage.repaired");
            said(self, *copy, *block, "put right from another copy");
        }
        for (copy, block) in &outcome.lost {
            self.counters.count("damage.found");
            self.counters.count("damage.unrepairable");
            if let Some((_, disk)) = own.filter(|(own, _)| own == copy)
                && let Some((damaged, _)) = self.damage.by_disk.get_mut(disk)
            {
                *damaged += 1;
            }
            let instead = match view {
                View::Live => "NO COPY HAS IT: restore it from a backup, or write it again",
                View::Snapshot(_) => "NO COPY HAS IT: restore it from a backup, or delete the snapshot",
            };
            said(self, *copy, *block, instead);
        }
        if let Some(left) = outcome.left {
            let of = match view {
                View::Snapshot(snapshot) => format!(" of snapshot {snapshot}"),
                View::Live => String::new(),
            };
            let why = if view == View::Live { ", since there is no room to write them again" } else { "" };
            let line = format!(
                "{} blocks from {} of shard {shard}{of} are lost on a copy, with their metadata: read from another one{why}",
                left.count, left.from
            );
            self.say_damage(now, line, out);
        }
        for block in &outcome.diverged {
            self.counters.count("damage.diverged");
            let line = format!("block {block} of shard {shard}: its copies are sound and DIFFER; left as it is");
            self.say_damage(now, line, out);
        }
    }
    /// A block of the only copy in sync: nobody has it, or who has it is away.
    pub(super) fn bad_block_found(
        &mut self,
        now: Time,
        shard: ShardId,
        own: CopyId,
        BadBlock { view, block, held_by }: BadBlock,
        out: &mut dyn Outbox<Letter>,
    ) {
        match held_by {
            None => {
                let outcome = Outcome { lost: vec![(own, block)], ..Outcome::default() };
                self.record(now, shard, view, &outcome, out);
            }
            Some(node) => {
                let line = format!(
                    "block {block} of shard {shard} does not read as it was written on copy {own}, the only one in sync: {node} may have it"
                );
                self.say_damage(now, line, out);
            }
        }
    }

    pub(super) fn say_damage(&mut self, now: Time, line: String, out: &mut dyn Outbox<Letter>) {
        if self.damage.line.replace(line).is_some() {
            self.damage.unsaid += 1;
        }
        self.tick_damage(now, out);
    }

    /// Says the newest line about damage, if enough time has passed since the last.
    pub(super) fn tick_damage(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        if now < self.damage.next_line {
            return;
        }
        if let Some(line) = self.damage.line.take() {
            let more = std::mem::take(&mut self.damage.unsaid);
            let more = if more > 0 { format!(" (and {more} more lines like this)") } else { String::new() };
            out.post(Letter::Damage(line + &more));
            self.damage.next_line = now + DAMAGE_LINE;
        }
    }
}
