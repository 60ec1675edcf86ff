//! What is read of the copy here for an IOCB: for a client, for the rest of a partly written block, for a settling, a copying or a filling.

use super::Node;
use super::requests::sub_block;
use super::waits::StoreWait;
use crate::iocb::{IocbPhase, Kind, why};
use crate::iocbs::IocbKey;
use crate::limits::SETTLE_PIECE;
use crate::mail::Letter;
use conductor_model::{BLOCK, BlockRange, ShardId};
use driver::{Outbox, Time};
use memory::{Class, Filling};
use node_protocol::Status;
use node_store::{Crcs, Store, StoreDone, StoreError, StoreOp, View};
use tcp::Payload;

/// A read of a copy here, for an IOCB.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnRead {
    pub(super) iocb: IocbKey,
    pub(super) of: ShardId,
    pub(super) view: View,
    /// Its range is busy under this number: it has outlived the primary that it was for, and the range lock.
    pub(super) busy: Option<u64>,
}

impl<S: Store> Node<S> {
    /// Reads what is asked for, if the lease holds and there is memory.
    pub(super) fn start_read(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) -> bool {
        let iocb = &self.iocbs[key];
        let (shard, range) = (iocb.shard, iocb.range);
        if !self.lease_holds(now, shard) {
            self.counters.count("read.waits-for-lease");
            return false;
        }
        self.read_into(now, key, shard, range, IocbPhase::Reading, out)
    }

    /// Reads the blocks that an unaligned write touches, to merge it into them (rule 22).
    pub(super) fn start_merge(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) -> bool {
        let iocb = &self.iocbs[key];
        let (shard, range) = (iocb.shard, iocb.range);
        let started = self.read_into(now, key, shard, range, IocbPhase::Merging, out);
        if started {
            self.counters.count("write.merged");
        }
        started
    }

    /// Reads `range` of the copy of `shard` that is here, or looks what of it holds data, for an IOCB of whatever shard.
    pub(super) fn read_into(
        &mut self,
        now: Time,
        key: IocbKey,
        shard: ShardId,
        range: BlockRange,
        phase: IocbPhase,
        out: &mut dyn Outbox<Letter>,
    ) -> bool {
        let (class, view) = match self.iocbs[key].kind {
            Kind::Settle => (Class::Settle, View::Live),
            Kind::CopyRange(from) => (Class::Resync, View::Snapshot(from.snapshot)),
            Kind::Fill => (Class::Resync, self.iocbs[key].view),
            _ => (Class::Work, self.iocbs[key].view),
        };
        let disk = self.replicas.get(&shard).map(|replica| replica.disk);
        if disk.is_some_and(|disk| !self.has_place_in_store(disk, key)) {
            return false;
        }
        if self.is_dropped(shard, view) {
            self.answer(now, key, Status::NoSnapshot);
            return true;
        }
        let Some(replica) = self.replicas.get(&shard) else { return false };
        let (disk, copy) = (replica.disk, replica.copy);
        let iocb = &self.iocbs[key];
        let looks = iocb.kind == Kind::Extents || iocb.kind == Kind::Settle && range.count.0 > SETTLE_PIECE;
        let op = if looks {
            StoreOp::Extents { copy, view, at: range }
        } else {
            let Some(into) = self.memory_for(key, range.count.0 as usize * BLOCK, class) else {
                return self.give_way(now, key);
            };
            StoreOp::Read { copy, view, at: range, into }
        };
        let iocb = &mut self.iocbs[key];
        let Some(request) = &iocb.request else { return false };
        iocb.phase = phase;
        iocb.started_at = now;
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.read_begins(view);
        }
        let hold = request.share::<why::Subtask>();
        let wait = StoreWait::Read { read: OwnRead { iocb: key, of: shard, view, busy: None }, hold };
        self.submit_to_store(now, disk, op, wait, out);
        true
    }

    /// The store has read for an IOCB: answer with it, merge it, or settle with it.
    pub(super) fn read_done(
        &mut self,
        now: Time,
        read: OwnRead,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let OwnRead { iocb: key, of, view, busy } = read;
        if let Some(replica) = self.replicas.get_mut(&of) {
            replica.read_is_over(view);
            replica.busy.retain(|(look, ..)| Some(*look) != busy);
        }
        // The subtask's hold keeps the slot, so this is still the IOCB that was read for.
        let Some(iocb) = self.iocbs.get(key) else { return };
        // Settling waits for reads of the epoch before.
        self.may_settle_on.push(iocb.shard);
        if iocb.is_over() {
            return;
        }
        if iocb.withdrawn {
            self.counters.count("request.dropped");
            self.end_request(now, key);
            return;
        }
        match result {
            Ok(StoreDone::Read(data, crcs)) => self.read_well(now, key, data, crcs, out),
            Ok(StoreDone::Extents { data, next }) if self.iocbs[key].kind == Kind::Settle => {
                self.settle_looked(now, key, &data, next, out);
            }
            Ok(StoreDone::Extents { data, next }) => self.answer_extents(now, key, &data, next),
            Ok(_) => debug_assert!(false, "a read is answered with data"),
            Err(error) => self.read_failed(now, key, &error, out),
        }
    }

    /// What was read goes to whom it was read for.
    pub(super) fn read_well(
        &mut self,
        now: Time,
        key: IocbKey,
        data: Filling,
        crcs: Crcs,
        out: &mut dyn Outbox<Letter>,
    ) {
        match self.iocbs[key].phase {
            IocbPhase::Reading if self.iocbs[key].kind == Kind::Settle => self.settle_read(now, key, data, crcs, out),
            IocbPhase::Reading if matches!(self.iocbs[key].kind, Kind::CopyRange(_) | Kind::Rewrite) => {
                self.copied(key, Payload { len: data.len(), mem: data.filled(), crcs });
            }
            IocbPhase::Reading if self.iocbs[key].kind == Kind::Fill => self.piece_read(now, key, data, crcs),
            IocbPhase::Reading => self.answer_read(now, key, data, crcs),
            IocbPhase::Merging => {
                self.merge(key, data);
                self.runnable.push_back(key);
            }
            _ => debug_assert!(false, "nobody reads in this phase"),
        }
    }

    /// Damage is healed, or reported to whoever can heal it; a disk that fails is out of service.
    fn read_failed(&mut self, now: Time, key: IocbKey, error: &StoreError, out: &mut dyn Outbox<Letter>) {
        match (error, self.iocbs[key].kind) {
            // The source of a copy-range is another shard: its own primary puts it right.
            (StoreError::Corrupt { .. }, Kind::CopyRange(from)) => self.source_failed(key, from, error),
            (StoreError::Corrupt { .. }, Kind::Rewrite) => self.not_rewritten(now, key),
            (StoreError::Corrupt { .. }, _) if self.is_sealed_fill(key) => self.met_damage_sealed(now, key, out),
            (StoreError::Corrupt { block, .. }, _) if !driver::mutant::on("damage_not_healed") => {
                self.met_damage(now, key, *block, out);
            }
            _ => {
                self.counters.count("read.failed");
                self.own_read_failed(now, key, error, out);
            }
        }
    }

    /// Lays an unaligned write's bytes over the blocks that it touches.
    fn merge(&mut self, key: IocbKey, mut blocks: Filling) {
        let iocb = &mut self.iocbs[key];
        let from = sub_block(&iocb.body);
        if let Some(payload) = &iocb.payload {
            blocks[from..from + payload.len].copy_from_slice(&payload.mem[..payload.len]);
        }
        let (len, crcs) = (blocks.len(), wire::pieces(&blocks));
        let before = iocb.payload.as_ref().map_or(0, |p| p.mem.capacity());
        let bytes = self.taken.payload.entry(iocb.shard.volume).or_default();
        *bytes = *bytes + blocks.capacity() - before;
        iocb.payload = Some(Payload { mem: blocks.filled(), len, crcs });
        iocb.phase = IocbPhase::Ready;
    }

    /// A read for a request failed: a damaged block is that request's error, anything else is the disk's.
    pub(super) fn own_read_failed(
        &mut self,
        now: Time,
        key: IocbKey,
        error: &StoreError,
        out: &mut dyn Outbox<Letter>,
    ) {
        let shard = self.iocbs[key].shard;
        if let Kind::CopyRange(from) = self.iocbs[key].kind {
            self.source_failed(key, from, error);
            return;
        }
        if matches!(error, StoreError::NoSuchSnapshot { .. }) {
            self.answer(now, key, Status::NoSnapshot);
            return;
        }
        if matches!(error, StoreError::Corrupt { .. }) && self.iocbs[key].conn.is_some() {
            self.answer(now, key, Status::Io);
            return;
        }
        // It waits like everything else of the shard; a piece of a settling is begun anew.
        if self.iocbs[key].conn.is_some() {
            let iocb = &mut self.iocbs[key];
            iocb.phase = IocbPhase::Locked;
            self.stall(key);
        } else {
            self.settle_again(now, key, self.iocbs[key].range);
        }
        if matches!(error, StoreError::Busy) {
            return;
        }
        if let Some(replica) = self.replicas.get(&shard) {
            out.post(Letter::DiskFailed(self.disks[replica.disk].disk, error.to_string()));
        }
        self.fail_primary(shard, error);
    }
}
