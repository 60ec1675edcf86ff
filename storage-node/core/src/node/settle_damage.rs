//! A settling that meets damage in the primary's own copy.
//!
//! What is settled may be any in-sync copy's content of a block, because each holds every acknowledged write. So a damaged block is
//! put right from another copy like any other; and where that copy's content is not what was damaged (it has not finished the same
//! writes), it is simply what is settled, also where the other copies' differ. A block that no copy has is left as it is: it stays
//! damaged everywhere, and reads say so.

use super::Node;
use super::stamping::Stamping;
use crate::iocb::IocbPhase;
use crate::iocbs::IocbKey;
use crate::mail::Letter;
use crate::mend::Outcome;
use conductor_model::{BlockRange, Blocks, ShardId};
use driver::{Outbox, Time};
use node_store::Store;
use tcp::Payload;

impl<S: Store> Node<S> {
    /// A piece is damaged somewhere: settled block by block. A single block is put right.
    pub(super) fn settle_met_damage(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        let (shard, range) = (self.iocbs[key].shard, self.iocbs[key].range);
        if range.count.0 > 1 {
            self.counters.count("settle.split");
            let blocks = (0..range.count.0).rev().map(|n| Blocks(range.from.0 + n));
            self.settle_instead(now, key, shard, blocks.map(|from| BlockRange { from, count: Blocks(1) }));
        } else if !self.start_mend(now, key, out) {
            self.settle_again(now, key, range);
        }
    }

    /// A piece is over for now; these are to be settled.
    pub(super) fn settle_instead(
        &mut self,
        now: Time,
        key: IocbKey,
        shard: ShardId,
        pieces: impl IntoIterator<Item = BlockRange>,
    ) {
        self.end_request(now, key);
        if let Some(settling) = self.settling_mut(shard) {
            settling.running.remove(&key);
            settling.left.extend(pieces);
        }
    }

    /// The tick begins it anew.
    pub(super) fn settle_again(&mut self, now: Time, key: IocbKey, range: BlockRange) {
        let shard = self.iocbs[key].shard;
        self.settle_instead(now, key, shard, []);
        if let Some(settling) = self.settling_mut(shard) {
            settling.later.push(range);
        }
    }

    /// What can be put right of the piece's one block is; goes on with the settling.
    pub(super) fn settle_mended(
        &mut self,
        now: Time,
        key: IocbKey,
        outcome: &Outcome,
        fetched: Option<Payload>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let range = self.iocbs[key].range;
        // Where the others differ, too, unless one of them may have lost what a flush volume has acknowledged.
        let primary = self.primaries.get(&self.iocbs[key].shard);
        let any = primary.is_some_and(|p| p.config.durability.is_always() || !p.doubts_any());
        let sound = outcome.own_is_sound || outcome.rewrite.is_some() || (any && !outcome.again);
        match fetched.filter(|_| sound) {
            Some(content) => {
                // Also where the repair was taken: it is the same content.
                let iocb = &mut self.iocbs[key];
                iocb.payload = Some(content);
                iocb.heal.due = None;
                iocb.phase = IocbPhase::Ready;
                if self.stamp(now, key, out) == Stamping::Later {
                    self.stall(key);
                }
            }
            // It reads well by now, or somebody was away.
            None if outcome.own_is_sound || outcome.again => self.settle_again(now, key, range),
            None => {
                self.counters.count("settle.damage-left");
                self.piece_settled(now, key);
            }
        }
    }
}
