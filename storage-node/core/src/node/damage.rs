//! Damage, counted and said: each block once, and at most one line a second.

use super::Node;
use crate::bad_blocks::{BadBlocks, Had};
use crate::limits::DAMAGE_LINE;
use crate::mail::Letter;
use crate::mend::Outcome;
use crate::primary::BadBlock;
use conductor_model::{BlockRange, Blocks, CopyId, ShardId};
use driver::{Outbox, Time};
use node_store::{Store, StoreDone, StoreError, View};

/// What was met on this reactor, and what was said of it.
#[derive(Debug)]
pub(crate) struct Damage {
    /// Of each disk: damaged, and of these repaired.
    pub(crate) by_disk: Vec<(u64, u64)>,
    /// What was not put right.
    pub(crate) left: BadBlocks,
    /// Lines that were left out since the last one.
    unsaid: u64,
    line: Option<String>,
    next_line: Time,
}

impl Damage {
    pub(crate) fn new(disks: usize) -> Self {
        Self {
            by_disk: vec![(0, 0); disks],
            left: BadBlocks::default(),
            unsaid: 0,
            line: None,
            next_line: Time::default(),
        }
    }
}

impl<S: Store> Node<S> {
    /// Counts what the store here did with a repair.
    pub(super) fn count_repair(
        &mut self,
        shard: ShardId,
        view: View,
        at: BlockRange,
        result: &Result<StoreDone, StoreError>,
    ) {
        let Some((copy, disk)) = self.replicas.get(&shard).map(|r| (r.copy, r.disk)) else { return };
        for n in 0..at.count.0 {
            let block = (copy, Blocks(at.from.0 + n));
            let known = match result {
                Ok(_) => self.damage.left.put_right(shard, view, block),
                Err(StoreError::Corrupt { .. }) => self.damage.left.met(shard, view, block, Had::Elsewhere),
                Err(_) => return,
            };
            let Some((damaged, repaired)) = self.damage.by_disk.get_mut(disk) else { return };
            *damaged += u64::from(known.is_none());
            *repaired += u64::from(result.is_ok());
        }
        if result.is_ok() {
            self.fills_again(shard, view, at);
        }
    }

    /// What a change makes of these blocks is not what was damaged. To be told before it is in the disk.
    pub(super) fn written_anew(&mut self, shard: ShardId, at: BlockRange) {
        if !self.damage.left.is_empty() {
            self.damage.left.written(shard, View::Live, at);
            self.fills_again(shard, View::Live, at);
        }
    }

    /// What these blocks were keeps no copy from being filled any more.
    fn fills_again(&mut self, shard: ShardId, view: View, at: BlockRange) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let there = |bad: &BadBlock| bad.view == view && at.from <= bad.block && u64::from(bad.block.0) < at.end();
        primary.keeps_from_filling = primary.keeps_from_filling.filter(|bad| !there(bad));
    }

    /// A mend of this piece of the own copy is over: what was lost in it, and is not any more, somebody has by now.
    pub(super) fn looked_through(&mut self, shard: ShardId, view: View, piece: BlockRange, outcome: &Outcome) {
        if outcome.again || self.damage.left.is_empty() {
            return;
        }
        let Some(own) = self.replicas.get(&shard).map(|r| r.copy) else { return };
        self.damage.left.looked_through(shard, view, (own, piece), &outcome.lost);
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
            self.damage.left.put_right(shard, view, (*copy, *block));
            said(self, *copy, *block, "put right from another copy");
        }
        let lost = if self.is_dropped(shard, view) { &[] } else { &outcome.lost[..] };
        for (copy, block) in lost {
            let own = own.filter(|(own, _)| own == copy);
            // What another copy has lost is read where the primary has it.
            let had = if own.is_some() { Had::Nowhere } else { Had::Elsewhere };
            let known = self.damage.left.met(shard, view, (*copy, *block), had);
            if known >= Some(had) {
                continue;
            }
            self.counters.count("damage.found");
            self.counters.count("damage.unrepairable");
            if let Some((damaged, _)) = own.and_then(|(_, disk)| self.damage.by_disk.get_mut(disk)) {
                *damaged += u64::from(known.is_none());
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
