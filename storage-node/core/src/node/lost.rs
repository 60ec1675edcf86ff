//! A shard whose primary's disk failed while no other copy holds every write: whoever asks is told so (EIO), and does not wait for what
//! never comes.
//!
//! Where others can follow, a primary whose disk failed steps down and answers nothing (rule 15): the next one knows what was written. Here
//! there is no next one before this disk is opened anew. An error says neither that a write took effect nor that it did not: what was
//! handed to the disk may be there then. It keeps its lock until the store is done with it, and nothing comes after it in this life of the
//! process. A disk that only hangs may come back: it is waited for.

use super::Node;
use crate::iocb::IocbPhase;
use crate::iocbs::IocbKey;
use crate::primary::{FailedBy, Primary, PrimaryPhase};
use conductor_model::ShardId;
use driver::Time;
use node_protocol::Status;
use node_store::Store;

impl Primary {
    /// Its disk failed, and no other copy is or will be fit to follow. One that was filled and is asked to be added may be in sync already, as
    /// far as the conductor knows.
    pub(crate) fn is_lost(&self) -> bool {
        let failed = matches!(self.phase, PrimaryPhase::Failed { by: FailedBy::Breaking, .. })
            && !driver::mutant::on("lost_waits");
        let follows = self.filling.as_ref().is_some_and(|filling| filling.add_asked);
        failed && self.config.born && !self.config.is_sealed() && self.config.in_sync() == 1 && !follows
    }
}

impl<S: Store> Node<S> {
    /// Is there nobody any more who could serve it?
    pub(super) fn is_lost(&self, shard: ShardId) -> bool {
        self.primaries.get(&shard).is_some_and(Primary::is_lost)
    }

    /// Clients' requests that were there when the disk failed are answered; those that come later are not let in.
    pub(super) fn tick_lost(&mut self, now: Time) {
        let lost = self.primaries.values().filter(|primary| primary.is_lost());
        let requests: Vec<IocbKey> = lost.flat_map(|primary| primary.requests.values().copied()).collect();
        for key in requests {
            // One that was answered may have ended others that waited behind it.
            let Some(iocb) = self.iocbs.get_mut(key).filter(|iocb| iocb.answer.is_some()) else { continue };
            match iocb.phase {
                IocbPhase::Queued | IocbPhase::Locked | IocbPhase::Ready => self.answer(now, key, Status::Io),
                // Done, and held back for a snapshot (rule 17).
                IocbPhase::BehindBarrier => {}
                _ => {
                    if let Some(answer) = iocb.answer.take() {
                        self.counters.count("reply.io");
                        self.reply_status(now, answer, Status::Io);
                    }
                }
            }
        }
    }
}
