//! Putting right what does not read as it was written: nobody is ever answered with it.
//!
//! ```text
//!  a read (of a client, a merge, a settling) meets a damaged block
//!      └─► locked alone ─► each damaged block: another copy's content (REPLICA_READ) laid over it (Repair) ─► read again
//!             no copy has it ─► EIO (*)          no content fits: its metadata is lost ─► the range is written again, as a write
//! ```
//!
//! (*) A copy that is filled is filled past it (`filled_past`).
//!
//! In a sealed epoch nothing is put right: a read goes to another copy in sync, waits for one of the last full set that is away, or ends in EIO.
//!
//! The lock is alone from the look to the repair: the content of every in-sync copy is the same then, and the store sees no read beside
//! the repair. A repair writes nothing where the content is not what the block's checksum says, so it cannot bring back older data.
//! Where every sound copy has the same content and yet the damaged one refuses it, that copy's own metadata is lost: for what is
//! written to, the range is then written again on all copies under a stamp, with one copy's content, under the same lock. A snapshot
//! is not written to, and neither is what there is no room for: such a block stays damaged in that copy, and is read from another one.

use super::Node;
use super::space::Space;
use super::verify::For;
use super::waits::{ReplyWait, Request, Subtask};
use crate::iocb::{IocbPhase, Kind, why};
use crate::iocbs::IocbKey;
use crate::limits::{LINK_RESERVED_CREDITS, MAX_HEALS, SUBTASK_DEADLINE};
use crate::mail::Letter;
use crate::mend::{Act, Failure, Mend, Outcome};
use crate::primary::{BadBlock, PrimaryPhase};
use crate::range_lock::Mode;
use conductor_model::{BLOCK, BlockRange, Blocks, Epoch};
use driver::{Outbox, Time};
use node_protocol::{MAX_VERIFY_BLOCKS, ReplyBody, Status, VerifyAnswer, ViewBody, decode_crcs, op};
use node_store::{Store, StoreDone, StoreError, View};
use std::net::SocketAddr;
use tcp::{Lost, Payload};
use wire::{Body, Op};

/// What another copy of a mend was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    Verify,
    Read,
    Repair,
}

impl<S: Store> Node<S> {
    /// A read for an IOCB met a damaged block.
    pub(super) fn met_damage(&mut self, now: Time, key: IocbKey, block: Blocks, out: &mut dyn Outbox<Letter>) {
        self.counters.count("read.damaged");
        let iocb = &mut self.iocbs[key];
        iocb.heal.attempts += 1;
        iocb.heal.due = Some(block);
        if iocb.kind == Kind::Settle {
            self.settle_met_damage(now, key, out);
            return;
        }
        if let Some(primary) = self.primaries.get(&iocb.shard).filter(|primary| primary.is_sealed()) {
            // Nothing is put right before it serves, which may be never: what another copy in sync has is read there.
            iocb.phase = IocbPhase::Locked;
            let alone = primary.others().next().is_none();
            if alone && primary.holder_away().is_some() {
                // Who is away may have it, and is waited for.
                (iocb.heal.due, iocb.heal.attempts) = (None, 0);
                self.stall(key);
                return;
            }
            if alone {
                let (shard, view, own) = (iocb.shard, iocb.view, primary.config.primary);
                self.bad_block_found(now, shard, own, BadBlock { view, block, held_by: None }, out);
            }
            self.read_elsewhere(key);
            return;
        }
        if iocb.heal.attempts > MAX_HEALS {
            if matches!(iocb.kind, Kind::Read | Kind::Fill) {
                iocb.phase = IocbPhase::Locked;
                self.read_elsewhere(key);
                return;
            }
            self.counters.count("read.unhealed");
            self.answer(now, key, Status::Io);
            return;
        }
        let has_it_alone = !iocb.kind.only_looks() || iocb.heal.alone;
        iocb.phase = IocbPhase::Locked;
        if has_it_alone {
            self.runnable.push_back(key);
        } else {
            self.lock_again(key, Mode::Exclusive);
        }
    }

    /// Gives the IOCB's lock back and asks for it again, behind all who wait.
    pub(super) fn lock_again(&mut self, key: IocbKey, mode: Mode) {
        let iocb = &mut self.iocbs[key];
        let (shard, range, arrival) = (iocb.shard, iocb.range, iocb.arrival);
        iocb.heal.alone = mode == Mode::Exclusive;
        iocb.phase = IocbPhase::Queued;
        self.crowds.iter_mut().for_each(|crowd| crowd.looks_again(arrival));
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        primary.stalled.remove(&arrival);
        let mut granted = Vec::new();
        primary.locks.release(key, &mut granted);
        if primary.locks.acquire(key, range, mode) {
            granted.push(key);
        }
        self.wake(granted);
    }

    /// May content be looked at and put right for this IOCB now?
    fn may_mend(&self, key: IocbKey) -> Option<Epoch> {
        let iocb = &self.iocbs[key];
        let primary = self.primaries.get(&iocb.shard)?;
        let may = match &primary.phase {
            PrimaryPhase::Serving => iocb.kind != Kind::Settle,
            PrimaryPhase::Settling(settling) => settling.running.contains(&key),
            _ => false,
        };
        may.then_some(primary.config.epoch)
    }

    /// Begins to put right what is due, or to look through a piece of a scrub.
    pub(super) fn start_mend(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) -> bool {
        let Some(epoch) = self.may_mend(key) else { return false };
        let iocb = &self.iocbs[key];
        let Some(primary) = self.primaries.get(&iocb.shard) else { return false };
        let scrubs = iocb.kind == Kind::Scrub;
        let from = iocb.heal.due.filter(|_| !scrubs).unwrap_or(iocb.range.from);
        let left = iocb.range.end().saturating_sub(from.0.into()).min(MAX_VERIFY_BLOCKS.into());
        let piece = BlockRange { from, count: Blocks(u32::try_from(left).unwrap_or(0)) };
        let own = (primary.config.primary, None);
        let others = primary.others().map(|m| (m.copy, Some(m.endpoint)));
        let mend = Mend::new(piece, std::iter::once(own).chain(others), scrubs, !scrubs || iocb.heal.alone);
        let iocb = &mut self.iocbs[key];
        iocb.phase = IocbPhase::Mending;
        iocb.heal.mend = Some((epoch, Box::new(mend)));
        self.go_on_mending(now, key, out);
        true
    }

    /// Takes a mend as far as it can go without waiting.
    pub(super) fn go_on_mending(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        loop {
            let Some(iocb) = self.iocbs.get(key) else { return };
            if iocb.is_over() || iocb.heal.mend.is_none() || iocb.heal.waits > 0 {
                return;
            }
            if iocb.withdrawn {
                self.counters.count("request.dropped");
                self.end_request(now, key);
                return;
            }
            let current = self.may_mend(key);
            let (shard, view) = (self.iocbs[key].shard, self.iocbs[key].view);
            if let View::Snapshot(snapshot) = view
                && self.is_dropped(shard, view)
            {
                let copy = self.replicas.get(&shard).map(|r| r.copy).unwrap_or_default();
                self.mend_failed(now, key, Some(StoreError::NoSuchSnapshot { copy, snapshot }), out);
                return;
            }
            let iocb = &mut self.iocbs[key];
            let Some((_, mend)) = iocb.heal.mend.as_mut().filter(|(epoch, _)| current == Some(*epoch)) else {
                self.mend_later(now, key);
                return;
            };
            match mend.next() {
                Act::Look(at) => {
                    if !self.start_subtask(key, |node, hold| {
                        node.look_here(now, shard, view, at, For::Look(key, hold), out)
                    }) {
                        self.mend_later(now, key);
                        return;
                    }
                }
                Act::Ask => {
                    let (piece, copies) = (mend.piece, mend.copies());
                    for nth in 1..copies {
                        if !self.ask_copy(now, key, nth, piece, Question::Verify, None)
                            && let Some((_, mend)) = &mut self.iocbs[key].heal.mend
                        {
                            mend.verified(nth, Err(Failure::Away));
                        }
                    }
                }
                Act::Fetch(nth, block) => {
                    let at = BlockRange { from: block, count: Blocks(1) };
                    let begun = if nth == 0 {
                        self.start_subtask(key, |node, hold| {
                            node.look_here(now, shard, view, at, For::Own(key, hold), out)
                        })
                    } else {
                        self.ask_copy(now, key, nth, at, Question::Read, None)
                    };
                    if !begun && let Some((_, mend)) = &mut self.iocbs[key].heal.mend {
                        mend.fetched(Err(Failure::Away));
                    }
                }
                Act::Put(nth, block) => {
                    let at = BlockRange { from: block, count: Blocks(1) };
                    if !self.put_content(now, key, nth, at, out)
                        && let Some((_, mend)) = &mut self.iocbs[key].heal.mend
                    {
                        mend.put(nth, Err(Failure::Away));
                    }
                }
                Act::LockAlone => {
                    self.iocbs[key].heal.mend = None;
                    self.lock_again(key, Mode::Exclusive);
                    return;
                }
                Act::Over => {
                    self.mend_over(now, key, out);
                    return;
                }
            }
        }
    }

    /// Starts a subtask of a mend; `start` says whether it could be started.
    fn start_subtask(&mut self, key: IocbKey, start: impl FnOnce(&mut Self, Subtask) -> bool) -> bool {
        let Some(request) = &self.iocbs[key].request else { return false };
        let hold = request.share::<why::Subtask>();
        self.iocbs[key].heal.waits += 1;
        let begun = start(self, hold);
        if !begun {
            self.iocbs[key].heal.waits -= 1;
        }
        begun
    }

    /// Lays what was fetched over a block of the own copy or of another.
    fn put_content(
        &mut self,
        now: Time,
        key: IocbKey,
        nth: usize,
        at: BlockRange,
        out: &mut dyn Outbox<Letter>,
    ) -> bool {
        let iocb = &self.iocbs[key];
        let (shard, view) = (iocb.shard, iocb.view);
        let Some(with) = iocb.heal.fetched.as_ref().map(Payload::share) else { return false };
        if nth > 0 {
            return self.ask_copy(now, key, nth, at, Question::Repair, Some(with));
        }
        if !self.replicas.get(&shard).is_some_and(|r| r.bears_content(at)) {
            return false;
        }
        self.start_subtask(key, |node, hold| {
            node.repair_here(now, shard, view, at, with, For::Repaired(key, hold), out);
            true
        })
    }

    /// Asks a copy of the mend something, by its number there; false if its link has no room for that, or is down.
    fn ask_copy(
        &mut self,
        now: Time,
        key: IocbKey,
        nth: usize,
        at: BlockRange,
        what: Question,
        payload: Option<Payload>,
    ) -> bool {
        let to = self.iocbs[key].heal.mend.as_ref().and_then(|(_, mend)| mend.copy(nth).at);
        let op = match what {
            Question::Verify => op::REPLICA_VERIFY,
            Question::Read => op::REPLICA_READ,
            Question::Repair => op::REPLICA_REPAIR,
        };
        self.ask_content(now, key, to, (op, at, payload), |hold| ReplyWait::Mend { iocb: key, nth, what, hold })
    }

    /// Sends a question about content as an IOCB sees it; false if its link has no room for that, or is down.
    pub(super) fn ask_content(
        &mut self,
        now: Time,
        key: IocbKey,
        to: Option<SocketAddr>,
        (op, at, payload): (Op, BlockRange, Option<Payload>),
        wait: impl FnOnce(Subtask) -> ReplyWait,
    ) -> bool {
        let iocb = &self.iocbs[key];
        let snapshot = if let View::Snapshot(snapshot) = iocb.view { Some(snapshot) } else { None };
        let Some(primary) = self.primaries.get(&iocb.shard) else { return false };
        let body = ViewBody::new(iocb.shard, primary.config.epoch, snapshot, at);
        let Some(conn) = to.and_then(|to| self.links.get(to)).filter(|l| l.up.is_some()).and_then(|l| l.conn) else {
            return false;
        };
        // Half of what is kept for Joins and promises: writes do not keep a client from what it waits for.
        if self.net.credits(conn) <= LINK_RESERVED_CREDITS / 2 {
            return false;
        }
        self.start_subtask(key, |node, hold| {
            let request = Request { op, body: body.bytes(), payload, patience: SUBTASK_DEADLINE };
            node.ask_peer(now, conn, request, wait(hold))
        })
    }

    /// What another copy has answered to a question about content; `None` if nobody waits for it any more.
    pub(super) fn content_answered(
        &mut self,
        now: Time,
        key: IocbKey,
        result: Result<(Op, Body, Option<Payload>), Lost>,
        out: &mut dyn Outbox<Letter>,
    ) -> Option<Result<(Body, Option<Payload>), Failure>> {
        let iocb = self.iocbs.get_mut(key)?;
        iocb.heal.waits = iocb.heal.waits.saturating_sub(1);
        if iocb.is_over() {
            return None;
        }
        let shard = iocb.shard;
        let status = result.as_ref().ok().and_then(|(_, body, _)| ReplyBody::status_of(body));
        if status == Some(Status::StaleEpoch) {
            // Somebody has made a newer epoch: nothing is served until it is known (rule 20).
            self.ask_for_news(now, shard, out);
        }
        Some(match (status, result) {
            (Some(Status::Ok), Ok((_, body, payload))) => Ok((body, payload)),
            (Some(Status::Io), _) => Err(Failure::Damaged),
            (Some(Status::NoSnapshot | Status::OutOfRange), _) => Err(Failure::Without),
            _ => Err(Failure::Away),
        })
    }

    /// A copy of the mend has answered.
    pub(super) fn copy_answered(
        &mut self,
        now: Time,
        key: IocbKey,
        nth: usize,
        what: Question,
        result: Result<(Op, Body, Option<Payload>), Lost>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(answer) = self.content_answered(now, key, result, out) else { return };
        let Some((_, mend)) = &mut self.iocbs[key].heal.mend else { return };
        match what {
            Question::Verify => {
                let count = mend.piece.count.0;
                let said = answer.and_then(|(body, payload)| {
                    let crcs = payload.and_then(|p| decode_crcs(&p.mem[..p.len], count));
                    VerifyAnswer::parse(&body).zip(crcs).ok_or(Failure::Away)
                });
                mend.verified(nth, said.map(|(answer, crcs)| (answer.damaged.get(), crcs)));
            }
            Question::Repair => mend.put(nth, answer.map(drop)),
            Question::Read => {
                let content = answer.and_then(|(_, p)| p.filter(|p| p.len == BLOCK).ok_or(Failure::Away));
                mend.fetched(content.as_ref().map(|p| p.crcs.first().copied().unwrap_or(0)).map_err(|f| *f));
                self.iocbs[key].heal.fetched = content.ok().or(self.iocbs[key].heal.fetched.take());
            }
        }
        self.go_on_mending(now, key, out);
    }

    /// A subtask of a mend here is over: is there still a mend?
    fn mend_of(&mut self, key: IocbKey) -> Option<&mut Mend> {
        let iocb = self.iocbs.get_mut(key)?;
        iocb.heal.waits = iocb.heal.waits.saturating_sub(1);
        iocb.request.as_ref()?;
        iocb.heal.mend.as_mut().map(|(_, mend)| &mut **mend)
    }

    /// A part of the own copy was looked through.
    pub(super) fn mend_looked(
        &mut self,
        now: Time,
        key: IocbKey,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(mend) = self.mend_of(key) else { return };
        match result {
            Ok(StoreDone::Read(_, crcs)) => mend.looked(Ok(&crcs)),
            Err(StoreError::Corrupt { block, .. }) => mend.looked(Err(block)),
            Ok(_) | Err(_) => {
                self.mend_failed(now, key, result.err(), out);
                return;
            }
        }
        self.go_on_mending(now, key, out);
    }

    /// The own copy's content for another one.
    pub(super) fn mend_read(
        &mut self,
        now: Time,
        key: IocbKey,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(mend) = self.mend_of(key) else { return };
        match result {
            Ok(StoreDone::Read(data, crcs)) => {
                mend.fetched(Ok(crcs.first().copied().unwrap_or(0)));
                let payload = Payload { len: data.len(), mem: data.filled(), crcs };
                self.iocbs[key].heal.fetched = Some(payload);
            }
            Err(StoreError::Corrupt { .. }) => mend.fetched(Err(Failure::Damaged)),
            Ok(_) | Err(_) => {
                self.mend_failed(now, key, result.err(), out);
                return;
            }
        }
        self.go_on_mending(now, key, out);
    }

    /// A block of the own copy was repaired, or would not be.
    pub(super) fn mend_repaired(
        &mut self,
        now: Time,
        key: IocbKey,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(mend) = self.mend_of(key) else { return };
        match result {
            Ok(_) => mend.put(0, Ok(())),
            Err(StoreError::Corrupt { .. }) => mend.put(0, Err(Failure::Damaged)),
            Err(StoreError::Busy) => mend.put(0, Err(Failure::Away)),
            Err(error) => {
                self.mend_failed(now, key, Some(error), out);
                return;
            }
        }
        self.go_on_mending(now, key, out);
    }

    /// The own store would not look: a failed disk, or no room, or a view that is gone.
    fn mend_failed(&mut self, now: Time, key: IocbKey, error: Option<StoreError>, out: &mut dyn Outbox<Letter>) {
        let (kind, shard) = (self.iocbs[key].kind, self.iocbs[key].shard);
        match error {
            Some(StoreError::NoSuchSnapshot { .. }) if kind == Kind::Scrub => {
                self.scrubbed(now, key, Outcome::default(), out);
            }
            Some(StoreError::NoSuchSnapshot { .. }) if kind.only_looks() || kind == Kind::Fill => {
                self.answer(now, key, Status::NoSnapshot);
            }
            Some(error @ StoreError::Disk(_)) => {
                self.store_status(shard, &error, out);
                self.fail_primary(shard, &error);
                self.mend_later(now, key);
            }
            _ => self.mend_later(now, key),
        }
    }

    /// It cannot go on now: it begins anew when its shard serves and there is room.
    fn mend_later(&mut self, now: Time, key: IocbKey) {
        self.counters.count("mend.put-off");
        let iocb = &mut self.iocbs[key];
        iocb.heal.mend = None;
        iocb.heal.fetched = None;
        iocb.phase = IocbPhase::Locked;
        let (kind, range) = (iocb.kind, iocb.range);
        match kind {
            // It locks nothing while it waits.
            Kind::Scrub => self.scrub_again(now, key),
            Kind::Settle => self.settle_again(now, key, range),
            _ => {
                self.stall(key);
            }
        }
    }

    /// All that can be done is done.
    fn mend_over(&mut self, now: Time, key: IocbKey, out: &mut dyn Outbox<Letter>) {
        let iocb = &mut self.iocbs[key];
        let Some((_, mend)) = iocb.heal.mend.take() else { return };
        let fetched = iocb.heal.fetched.take();
        let (shard, view, kind) = (iocb.shard, iocb.view, iocb.kind);
        let (cost, piece) = (mend.cost(), mend.piece);
        let mut outcome = mend.into_outcome();
        let has_space = |range: BlockRange| kind == Kind::Settle || self.has_space(shard, range.count);
        if view != View::Live || !outcome.rewrite.is_none_or(has_space) {
            outcome.left = outcome.rewrite.take();
        }
        self.looked_through(shard, view, piece, &outcome);
        self.record(now, shard, view, &outcome, out);
        match kind {
            Kind::Scrub => {
                self.scrub_cost(shard, cost);
                if let Some(range) = outcome.rewrite {
                    self.rewrite(key, range);
                }
                self.scrubbed(now, key, outcome, out);
            }
            Kind::Settle => self.settle_mended(now, key, &outcome, fetched, out),
            _ if outcome.own_is_sound => {
                let iocb = &mut self.iocbs[key];
                iocb.heal.due = None;
                iocb.phase = IocbPhase::Locked;
                self.runnable.push_back(key);
            }
            _ if outcome.rewrite.is_some() => {
                if let Some(range) = outcome.rewrite {
                    self.rewrite(key, range);
                }
                self.iocbs[key].heal.due = None;
                let mode = if kind.only_looks() { Mode::Shared } else { Mode::Exclusive };
                self.lock_again(key, mode);
            }
            _ if outcome.again => self.mend_later(now, key),
            Kind::Read | Kind::Fill if outcome.left.is_some() => self.read_elsewhere(key),
            _ if outcome.left.is_some() && view == View::Live => {
                let needs = outcome.left.map_or(0, |range| range.count.0.into());
                match self.find_space(now, key, needs) {
                    Space::None => self.answer(now, key, Status::NoSpace),
                    Space::Found | Space::Awaited => self.mend_later(now, key),
                }
            }
            Kind::Fill => self.piece_lost(now, key, out),
            _ => {
                self.counters.count("read.unhealed");
                self.answer(now, key, Status::Io);
            }
        }
    }
}
