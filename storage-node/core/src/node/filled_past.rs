//! A copy is filled past what no copy in sync has: it is told that the block is lost, so that who reads it there is told so too, and one bad
//! sector does not keep a shard from ever having a second copy.
//!
//! ```text
//!  a piece cannot be read, and nobody else in sync has it ──► block by block ──► what reads well is filled
//!                                                                  └─ what does not: once more, 10 s later, when all else of the layer is there
//!                                                                       │                  and the disk has just taken something
//!                                                                       └─ FILL, lost ──► the copy has nothing there: filled past it
//!                                                                                    └──► it has something (`kept`): the filling fails
//! ```
//!
//! Only where that is final: everybody in sync was asked, and in a sealed epoch nobody of the last full set is away, who would have it. What the copy
//! has there by itself stays, as it may be all that is left: one that comes back is filled when the block is written again. So is one of a clone, whose
//! parent may have it. A copy of the last full set
//! that is filled in a sealed epoch holds what was acknowledged there: the block is left to it.

use super::Node;
use super::filling::Asked;
use super::waits::StoreWait;
use crate::iocb::{IocbPhase, Kind};
use crate::iocbs::IocbKey;
use crate::mail::Letter;
use crate::primary::{BadBlock, PrimaryPhase};
use conductor_model::{BlockRange, ShardId};
use driver::{Outbox, Time};
use node_store::{FillMark, Store, StoreError, StoreOp, View};

const DAMAGED: &str = "what it is filled from is damaged";

impl<S: Store> Node<S> {
    /// Is it a piece of a filling in a sealed epoch?
    pub(super) fn is_sealed_fill(&self, key: IocbKey) -> bool {
        let primary = self.iocbs.get(key).filter(|i| i.kind == Kind::Fill).and_then(|i| self.primaries.get(&i.shard));
        primary.is_some_and(|p| matches!(p.phase, PrimaryPhase::Sealed))
    }

    /// A piece cannot be read here in a sealed epoch, where nothing is put right.
    pub(super) fn met_damage_sealed(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        let (shard, view) = (self.iocbs[key].shard, self.iocbs[key].view);
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let (other, away) = (primary.others().next().map(|member| member.node), primary.holder_away());
        let Some(filling) = &mut primary.filling else { return };
        let Some(BlockRange { from: block, count }) = filling.running.get(&key).map(|piece| piece.at) else { return };
        if count.0 > 1 {
            filling.split(key);
        } else if primary.config.full_set.contains(&filling.copy) {
            filling.running.remove(&key);
            // It is put right here from there, when both are in sync.
            self.counters.count("fill.damage-left");
        } else if other.or(away).is_none() {
            // Who might have had something is given up.
            primary.keeps_from_filling = primary.keeps_from_filling.filter(|bad| bad.held_by.is_none());
            self.piece_found_lost(now, key, out);
            return;
        } else {
            filling.running.remove(&key);
            let (own, bad) = (primary.config.primary, BadBlock { view, block, held_by: other.or(away) });
            // It is tried again and again, and is found once. What another copy in sync may have is not said to be nobody's.
            if primary.keeps_from_filling.replace(bad) != Some(bad) && other.is_none() {
                self.counters.count("read.damaged");
                self.bad_block_found(now, shard, own, bad, out);
            }
            self.fail_filling(now, shard, DAMAGED);
        }
        self.end_request(now, key);
        self.go_on_filling(now, shard, out);
    }

    /// A piece cannot be read, and nobody else has it: as `piece_lost`, of what was not said before.
    pub(super) fn piece_found_lost(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        let (shard, view, range) = (self.iocbs[key].shard, self.iocbs[key].view, self.iocbs[key].range);
        if let Some(primary) = self.primaries.get(&shard).filter(|_| range.count.0 == 1) {
            let (own, bad) = (primary.config.primary, BadBlock { view, block: range.from, held_by: None });
            self.counters.count("read.damaged");
            self.bad_block_found(now, shard, own, bad, out);
        }
        self.piece_lost(now, key, out);
    }

    /// No copy in sync has all of a piece, and that was said: the copy is told of each such block that it is lost, once it could not be read again.
    pub(super) fn piece_lost(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        let (shard, block, since) = (self.iocbs[key].shard, self.iocbs[key].range.from, self.iocbs[key].started_at);
        // A clone's block may be its parent's, whose own primary puts it right.
        let is_clone = self.primaries.get(&shard).is_some_and(|primary| primary.config.parent.is_some());
        let Some(filling) = self.filling_of(shard) else { return self.end_request(now, key) };
        if filling.running.get(&key).is_some_and(|piece| piece.at.count.0 > 1) {
            filling.split(key);
        } else if is_clone {
            let bad = BadBlock { view: filling.layer, block, held_by: None };
            self.keep_from_filling(now, shard, Some(bad));
        } else if filling.is_lost(now, key, since) {
            self.iocbs[key].phase = IocbPhase::Ready;
            self.send_pieces(now, shard);
            return;
        }
        self.end_request(now, key);
        self.go_on_filling(now, shard, out);
    }

    /// Before what could not be read is read once more, the disk has to take something: one that is out of reach for a while fails by that, and has
    /// lost nothing.
    pub(super) fn prove_disk(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        let Some(filling) = self.filling_of(shard) else { return };
        if !filling.begins_proof(now) {
            return;
        }
        if driver::mutant::on("lost_unproved") {
            filling.ends_proof(now, true);
            return self.go_on_filling(now, shard, out);
        }
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        // Of a copy in sync that says nothing.
        let op = StoreOp::Mark { copy: replica.copy, mark: FillMark::default(), known_good: None };
        replica.read_begins(View::Live);
        let disk = replica.disk;
        self.submit_to_store(now, disk, op, StoreWait::Proof { shard }, out);
    }

    /// It has, or has not.
    pub(super) fn disk_proved(
        &mut self,
        now: Time,
        shard: ShardId,
        result: Result<(), StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.read_is_over(View::Live);
        }
        if let Err(error @ StoreError::Disk(_)) = &result {
            self.store_status(shard, error, out);
            self.fail_primary(shard, error);
        }
        if let Some(filling) = self.filling_of(shard) {
            filling.ends_proof(now, result.is_ok());
            self.go_on_filling(now, shard, out);
        }
    }

    /// What cannot be read is more than some bad sectors.
    pub(super) fn too_much_is_lost(&mut self, now: Time, shard: ShardId) {
        let bad = self
            .filling_of(shard)
            .and_then(|filling| Some(BadBlock { view: filling.layer, block: filling.first_doubted()?, held_by: None }));
        self.keep_from_filling(now, shard, bad);
    }

    /// A piece of which the copy was told that it is lost.
    pub(super) fn lost_piece(&self, shard: ShardId, what: &Asked) -> Option<BadBlock> {
        let Asked::Piece(key, _) = what else { return None };
        let filling = self.primaries.get(&shard)?.filling.as_ref()?;
        let piece = filling.running.get(key).filter(|piece| piece.lost)?;
        Some(BadBlock { view: filling.layer, block: piece.at.from, held_by: None })
    }

    /// The copy does not take it that a block is lost: it has something there, or does not know what that means.
    pub(super) fn not_filled_past(&mut self, now: Time, shard: ShardId, what: &Asked) {
        let bad = self.lost_piece(shard, what);
        self.counters.count("fill.kept");
        self.keep_from_filling(now, shard, bad);
    }

    /// The filling fails because of a block, which is said until a filling is complete.
    fn keep_from_filling(&mut self, now: Time, shard: ShardId, bad: Option<BadBlock>) {
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.keeps_from_filling = bad.or(primary.keeps_from_filling);
        }
        self.fail_filling(now, shard, DAMAGED);
    }
}
