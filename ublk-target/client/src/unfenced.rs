//! What failed requests have left at nodes that nobody could fence (rule 24): one list, shared by all lanes of an attachment.
//!
//! ```text
//!   lane A: write times out, FENCE_GRACE passes ──leave──▶ list ─┐ before the failure is handed up
//!   lane B: write of the same blocks, to the same node ──waits──▶┘ until A has talked to the node, or the epoch is past
//! ```
//!
//! A connection fences what came before it on its own lane and on no other one. What lane A has left at a paused node may so be executed
//! behind what lane B has written there since, and was acknowledged: so that goes there only when nothing is left. Within a lane
//! the next connection is the fence.
//!
//! Bounded by what connections had posted when they were lost: a lane posts there again only when its list is empty.

use crate::iocb::Lost;
use conductor_model::{BlockRange, ShardIndex};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A change whose failure was handed up while its node may still execute it.
#[derive(Debug)]
struct Left {
    lane: u16,
    shard: ShardIndex,
    blocks: BlockRange,
    lost: Lost,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Unfenced {
    /// How many there are: nearly always none, and then nobody locks anything.
    count: AtomicUsize,
    left: Mutex<Vec<Left>>,
}

impl Unfenced {
    /// To be called before the failure is handed up.
    pub(crate) fn leave(&self, lane: u16, shard: ShardIndex, blocks: BlockRange, lost: Lost) {
        let mut all = self.lock();
        all.push(Left { lane, shard, blocks, lost });
        self.count.store(all.len(), Ordering::SeqCst);
    }

    /// Whether something is left that what is sent like this could come before.
    pub(crate) fn holds_up(&self, shard: ShardIndex, blocks: BlockRange, sent: Lost) -> bool {
        let meets = |left: &Left| {
            let same_primary = left.lost.endpoint == sent.endpoint && left.lost.epoch >= sent.epoch;
            left.shard == shard && left.blocks.overlaps(blocks) && same_primary
        };
        !self.is_empty() && !driver::mutant::on("lane_fences_all") && self.lock().iter().any(meets)
    }

    /// A node has fenced what this lane had there.
    pub(crate) fn fenced(&self, lane: u16, endpoint: SocketAddr) {
        self.forget(|left| left.lane == lane && left.lost.endpoint == endpoint);
    }

    /// Forgets what can take effect no more.
    pub(crate) fn sweep(&self, is_past: impl Fn(ShardIndex, Lost) -> bool) {
        self.forget(|left| is_past(left.shard, left.lost));
    }

    /// Where this lane has left something: it is to talk to these nodes.
    pub(crate) fn endpoints(&self, lane: u16) -> Vec<SocketAddr> {
        if self.is_empty() {
            return Vec::new();
        }
        self.lock().iter().filter(|left| left.lane == lane).map(|left| left.lost.endpoint).collect()
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn forget(&self, over: impl Fn(&Left) -> bool) {
        if self.is_empty() {
            return;
        }
        let mut all = self.lock();
        all.retain(|left| !over(left));
        self.count.store(all.len(), Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
