//! Work of single copies, in no order with writes: forgetting a snapshot, flattening a clone.
//!
//! Each `Mail::Work` names all that is open; what cannot be done now is tried again with the next one.

use super::Node;
use super::waits::StoreWait;
use crate::mail::Letter;
use conductor_model::ShardId;
use conductor_model::api::CopyWork;
use driver::{Outbox, Time};
use node_store::{Store, StoreError, StoreOp};

impl<S: Store> Node<S> {
    /// All work that is open.
    pub(super) fn work_named(&mut self, now: Time, work: Vec<CopyWork>, out: &mut dyn Outbox<Letter>) {
        for task in work {
            let (copy, operation) = match &task {
                CopyWork::DropSnapshot(copy, snapshot) => {
                    (*copy, StoreOp::DropSnapshot { copy: *copy, snapshot: *snapshot })
                }
                CopyWork::Flatten(copy) => (*copy, StoreOp::Flatten { copy: *copy }),
            };
            let Some((shard, replica)) = self.replicas.iter_mut().find(|(_, r)| r.copy == copy && r.exists) else {
                // One that is being deleted, or made, is said when that is over.
                if !self.deletions.doomed.contains_key(&copy) && !self.replicas.values().any(|r| r.copy == copy) {
                    out.post(Letter::Worked(task));
                }
                continue;
            };
            if replica.working.contains(&task) {
                continue;
            }
            if let CopyWork::DropSnapshot(_, snapshot) = &task {
                replica.forget_snapshot(*snapshot);
                self.damage.left.forget_snapshot(*shard, *snapshot);
                // Its readers are refused from now on; those that read already are waited for, and so is a barrier on its way.
                if replica.is_read(*snapshot) || replica.alone.is_some() {
                    self.counters.count("work.waits");
                    continue;
                }
            }
            replica.working.insert(task);
            let (shard, disk) = (*shard, replica.disk);
            self.counters.count("work.started");
            self.submit_to_store(now, disk, operation, StoreWait::CopyWork { shard, task }, out);
        }
    }

    /// The store has done it, or says why not.
    pub(super) fn worked(
        &mut self,
        shard: ShardId,
        task: CopyWork,
        result: Result<(), StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.working.remove(&task);
        }
        match result {
            Ok(()) | Err(StoreError::NoSuchCopy(_)) => {
                self.taken.full.clear();
                self.counters.count("work.done");
                out.post(Letter::Worked(task));
            }
            // Needed by a clone, no room, a failed disk: it stays open, and comes again with the next mail.
            Err(_) => self.counters.count("work.refused"),
        }
    }
}
