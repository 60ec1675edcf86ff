//! A stamped change of a copy is handed to its disk: on the primary the own copy's, elsewhere what the primary has asked for.

use super::Node;
use super::waits::StoreWait;
use crate::Letter;
use crate::change::{Change, Target};
use conductor_model::{BlockRange, ShardId, ShardSnapshot, Stamp};
use driver::{Outbox, Time};
use node_store::{Store, StoreOp, View};

/// A change with its place in the shard's order.
pub(super) struct Stamped {
    pub(super) shard: ShardId,
    pub(super) stamp: Stamp,
    pub(super) at: BlockRange,
    pub(super) change: Change,
    /// K, if this tells one.
    pub(super) known_good: Option<Stamp>,
    /// Durable before it is completed, even if the volume's durability does not ask for that.
    pub(super) durable: bool,
    /// What it shares with, if it is a share.
    pub(super) from: Option<ShardSnapshot>,
}

impl<S: Store> Node<S> {
    /// Hands a change to the disk of the copy here, which bears it (`Replica::bears`).
    pub(super) fn hand_to_disk(&mut self, now: Time, asked: Stamped, wait: StoreWait, out: &mut dyn Outbox<Letter>) {
        let Stamped { shard, stamp, at, change, known_good, durable, from } = asked;
        if let Some(at) = change.replaces(at) {
            self.written_anew(shard, at);
        }
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        replica.enters_disk(stamp, &change);
        replica.known_good = known_good.unwrap_or(replica.known_good);
        let (disk, copy, known_good) = (replica.disk, replica.copy, replica.known_good);
        let durable = durable || replica.config.durability.is_always();
        if let Change::Flush = change {
            // A flush alone carries no K to the disk.
            self.submit_to_store(now, disk, StoreOp::KnownGood { copy, stamp: known_good }, StoreWait::Nobody, out);
        }
        self.share_begins(from);
        let operation = change.operation(Target { copy, stamp, at, known_good, durable });
        self.submit_to_store(now, disk, operation, wait, out);
    }

    /// A share reads a snapshot of another copy here.
    pub(super) fn share_begins(&mut self, from: Option<ShardSnapshot>) {
        if let Some(from) = from
            && let Some(source) = self.replicas.get_mut(&from.shard)
        {
            source.reading += 1;
            *source.snapshot_reads.entry(from.snapshot).or_default() += 1;
        }
    }

    /// What `share_begins` began.
    pub(super) fn share_is_over(&mut self, from: Option<ShardSnapshot>) {
        if let Some(from) = from
            && let Some(source) = self.replicas.get_mut(&from.shard)
        {
            source.read_is_over(View::Snapshot(from.snapshot));
        }
    }
}
