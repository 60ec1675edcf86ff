//! A disk here failed, or its store refuses: what that means to who asked, and to the primary beside it.

use super::Node;
use crate::mail::Letter;
use crate::primary::{FailedBy, PrimaryPhase};
use conductor_model::ShardId;
use driver::Outbox;
use node_protocol::Status;
use node_store::{Store, StoreError};

impl<S: Store> Node<S> {
    /// What a store's refusal means to whoever asked. A failed disk is reported once.
    pub(super) fn store_status(&mut self, shard: ShardId, error: &StoreError, out: &mut dyn Outbox<Letter>) -> Status {
        match error {
            // Neither is a failure of the disk: it serves what it has.
            StoreError::NoSpace | StoreError::TooManyCopies => Status::NoSpace,
            // Not a failure of the copy: asked again.
            StoreError::Busy => Status::Later,
            StoreError::NoSuchSnapshot { .. } => Status::NoSnapshot,
            StoreError::Kept { .. } => Status::Kept,
            // Nor is what was asked of it, and makes no sense there.
            StoreError::BadConfiguration(_) | StoreError::OutOfRange { .. } | StoreError::BadLength { .. } => {
                self.counters.count("store.bad-requests");
                Status::BadRequest
            }
            error => {
                self.counters.count("store.failed");
                if let Some(replica) = self.replicas.get(&shard) {
                    out.post(Letter::DiskFailed(self.disks[replica.disk].disk, error.to_string()));
                }
                Status::Io
            }
        }
    }

    /// The own disk failed: nothing is answered any more (rule 15); what waits, waits visibly.
    pub(super) fn fail_primary(&mut self, shard: ShardId, error: &StoreError) {
        self.counters.count("primary.failed");
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.phase = PrimaryPhase::Failed { why: error.to_string(), by: FailedBy::Breaking };
        }
    }
}
