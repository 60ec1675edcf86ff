//! Copies that the conductor has no more are deleted.

use super::waits::StoreWait;
use super::{Doomed, Node};
use crate::mail::Letter;
use conductor_model::CopyId;
use driver::{Outbox, Time};
use node_store::{Store, StoreOp};

impl<S: Store> Node<S> {
    /// Deletes copies whose volume is gone.
    pub(super) fn drop_copies(&mut self, now: Time, copies: Vec<CopyId>, out: &mut dyn Outbox<Letter>) {
        for copy in copies {
            let Some((shard, disk)) = self.replicas.iter().find(|(_, r)| r.copy == copy).map(|(s, r)| (*s, r.disk))
            else {
                match self.doomed.get_mut(&copy) {
                    None => {
                        self.gone.insert(copy);
                        out.post(Letter::Dropped(copy));
                    }
                    Some(Doomed { deleting: true, .. }) => {}
                    Some(doomed) => {
                        doomed.deleting = true;
                        let disk = doomed.disk;
                        self.submit_to_store(now, disk, StoreOp::Delete { copy }, StoreWait::Deletion { copy }, out);
                    }
                }
                continue;
            };
            self.step_down(now, shard, out);
            let replica = &self.replicas[&shard];
            if !replica.is_quiet() || replica.joining.is_some() {
                // It is told again, and by then the disk is done.
                continue;
            }
            self.replicas.remove(&shard);
            self.doomed.insert(copy, Doomed { disk, deleting: true });
            self.submit_to_store(now, disk, StoreOp::Delete { copy }, StoreWait::Deletion { copy }, out);
        }
    }

    /// A copy is gone for good. Or it is not, because its disk failed or a clone needs it: it is there still, whatever is known of it
    /// here, and is deleted when that is told again.
    pub(super) fn copy_deleted(&mut self, copy: CopyId, gone: bool, out: &mut dyn Outbox<Letter>) {
        if !gone && let Some(doomed) = self.doomed.get_mut(&copy) {
            doomed.deleting = false;
        }
        if gone {
            self.doomed.remove(&copy);
            self.gone.insert(copy);
            self.found_full.clear();
            self.counters.count("copy.deleted");
            out.post(Letter::Dropped(copy));
        }
    }
}
