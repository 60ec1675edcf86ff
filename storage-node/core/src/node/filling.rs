//! Filling a syncing copy from its primary, while writes go on (rules 3, 4 and 7). `crate::filling` knows what is due.
//!
//! ```text
//!   Fill granted ──JOIN──► the copy says K, mark, snapshots
//!      ┌─► layer: a snapshot that it lacks, else what is written to (from then on each write goes to the copy too)
//!      │     list: own Changed ∪ FILL_SCAN ──► pieces: locked, read, FILL, durable there, unlocked ──► now and then FILL_MARK
//!      │     all done: FILL_SNAPSHOT ─┐              FILL_MARK complete ──► Add is asked for (`wishes`)
//!      └──────────────────────────────┘
//! ```
//!
//! In a sealed epoch nothing is written, so nothing is locked. A FILL whose answer was lost is sent again under its lock; anything else
//! that fails ends the run: the copy is dropped, and begins again later from what its mark says.

use super::Node;
use super::waits::{ReplyWait, Request, StoreWait};
use super::wishes::DISK_FAILED;
use crate::filling::{Filling, PIECE, Piece, Step};
use crate::iocb::{Iocb, IocbPhase, Kind, why};
use crate::iocbs::IocbKey;
use crate::limits::{
    FILL_CREDITS, FILL_DEPTH, FILL_MARK, FILL_RATE, FILL_REPORT, RETRY_REFUSED, STUCK_PAUSE, SUBTASK_DEADLINE,
};
use crate::mail::Letter;
use crate::primary::PrimaryPhase;
use conductor_model::{BLOCK, BlockRange, Blocks, Bytes, CopyId, Epoch, Sequence, ShardId, SnapshotId, Stamp, api};
use driver::{ConnId, Outbox, Span, Time};
use memory::Filling as Memory;
use node_protocol::{FillBody, FillState, Mark, MarkBody, ReplyBody, ScanBody, Status, decode_changed, op};
use node_store::{Crcs, Store, StoreDone, StoreError, StoreOp, View};
use refcount::Hold;
use std::collections::BTreeSet;
use tcp::{Lost, Payload};
use wire::{Body, Op};

/// What a syncing copy was asked.
#[derive(Debug)]
pub(super) enum Asked {
    /// Which chunks it has changed, for this listing.
    Scan(u64),
    /// To write this IOCB's piece.
    Piece(IocbKey, Hold<crate::iocb::ServerIocb, why::Subtask>),
    /// To keep how far it is.
    Mark,
    /// To have a snapshot.
    Snapshot(SnapshotId),
    /// To end the filling, with K at this stamp.
    Complete(Stamp),
}

/// A question to the copy of a shard that is filled in an epoch.
#[derive(Debug)]
pub(super) struct Question {
    shard: ShardId,
    epoch: Epoch,
    copy: CopyId,
    what: Asked,
}

/// What counts for all fillings of this reactor.
pub(super) struct Fillings {
    /// When it was said last how far they are, and whether there were any.
    pub(super) said_at: Time,
    pub(super) said_some: bool,
    /// Bytes per second that may be read for them, if there is a limit.
    pub(super) rate: Option<Bytes>,
    /// Copies whose filling a person aborted: not to be filled until that is taken back.
    pub(super) aborted: BTreeSet<CopyId>,
}

impl Fillings {
    pub(super) fn new(started: Time) -> Self {
        Self { said_at: started, said_some: false, rate: None, aborted: BTreeSet::new() }
    }
}

/// What came back for a question to a syncing copy.
type Answered = Result<(Op, Body, Option<Payload>), Lost>;

impl<S: Store> Node<S> {
    /// A syncing copy has joined, and said where it stands.
    pub(super) fn fill_joined(&mut self, now: Time, shard: ShardId, copy: CopyId, known_good: Stamp, said: FillState) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        self.counters.count("fill.started");
        primary.filling = Some(Box::new(Filling::new(now, copy, known_good, said)));
    }

    /// Takes the filling of a shard as far as it can go now.
    pub(super) fn go_on_filling(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        loop {
            let lacking = self.lacks_snapshot(shard);
            let Some(primary) = self.primaries.get_mut(&shard) else { return };
            if !matches!(primary.phase, PrimaryPhase::Serving | PrimaryPhase::Sealed) {
                return;
            }
            let (last, prefix) = (primary.window.last(), primary.window.prefix().to);
            let size = primary.config.blocks();
            let Some(filling) = &mut primary.filling else { return };
            if filling.wait_until > now {
                return;
            }
            if filling.again && !filling.add_asked {
                // What runs comes to its end first.
                if !filling.running.is_empty() || matches!(filling.step, Step::Telling) {
                    self.send_pieces(now, shard);
                    return;
                }
                let snapshots = self.snapshots_to_fill(shard);
                let Some(filling) = self.filling_of(shard) else { return };
                filling.aim(&snapshots, last);
                continue;
            }
            match &mut filling.step {
                Step::List(after) if prefix < *after => return,
                // A barrier that was on its way when it was aimed at what is written to is placed by now.
                Step::List(_) if filling.layer == View::Live && lacking => {
                    self.counters.count("fill.barrier-met");
                    filling.again = true;
                }
                Step::List(_) => {
                    if !self.start_listing(now, shard, size, out) {
                        return;
                    }
                }
                Step::Listing { own: None, .. } | Step::Listing { theirs: None, .. } => return,
                Step::Listing { from, to, own, theirs, .. } => {
                    let (from, to) = (*from, *to);
                    if let Some((own, theirs)) = own.take().zip(theirs.take()) {
                        filling.take_lists(from, to, own, theirs);
                        if filling.is_past_stuck() {
                            filling.stuck = None;
                            primary.forget_turns();
                        }
                    }
                }
                Step::Fill => {
                    self.fill_pieces(now, shard, out);
                    let Some(filling) = self.filling_of(shard) else { return };
                    let is_too_much = filling.doubts_too_much();
                    if !filling.left.is_empty() && !is_too_much || !filling.running.is_empty() || filling.again {
                        return;
                    }
                    if is_too_much {
                        return self.too_much_is_lost(now, shard);
                    }
                    if filling.is_listed(size) && filling.has_doubts() {
                        return self.prove_disk(now, shard, out);
                    }
                    if filling.is_listed(size) {
                        self.tell_complete(now, shard);
                        return;
                    }
                    filling.step = Step::List(Sequence(0));
                }
                Step::Telling | Step::Complete => return,
            }
        }
    }

    /// The primary's snapshots, oldest first, that a copy is to have. In a sealed epoch a copy of the last full set has all that were
    /// completed; what it lacks was given up, and is older than what it holds.
    fn snapshots_to_fill(&self, shard: ShardId) -> Vec<SnapshotId> {
        let (Some(primary), Some(replica)) = (self.primaries.get(&shard), self.replicas.get(&shard)) else {
            return Vec::new();
        };
        let sealed = matches!(primary.phase, PrimaryPhase::Sealed);
        let holds_all = |f: &Filling| sealed && primary.config.full_set.contains(&f.copy);
        if primary.filling.as_deref().is_some_and(holds_all) {
            return Vec::new();
        }
        let mut snapshots = self.disks[replica.disk].store.snapshots(replica.copy);
        snapshots.retain(|snapshot| !replica.has_dropped(*snapshot));
        snapshots
    }

    fn lacks_snapshot(&self, shard: ShardId) -> bool {
        let filling = self.primaries.get(&shard).and_then(|p| p.filling.as_ref());
        filling.is_some_and(|f| self.snapshots_to_fill(shard).iter().any(|snapshot| !f.snapshots.contains(snapshot)))
    }

    /// K, as far as this primary knows it: in a sealed or unsettled epoch the one of before.
    fn known_good_here(&self, shard: ShardId) -> Stamp {
        let told = self.replicas.get(&shard).map(|r| r.known_good).unwrap_or_default();
        let Some(primary) = self.primaries.get(&shard) else { return told };
        primary.known_good().map_or(told, |sequence| told.max(Stamp { epoch: primary.config.epoch, sequence }))
    }

    pub(super) fn filling_of(&mut self, shard: ShardId) -> Option<&mut Filling> {
        self.primaries.get_mut(&shard)?.filling.as_deref_mut()
    }

    /// The connection to the copy that is filled, if it has credits to spare: writes, Joins and settling come first.
    fn fill_conn(&self, shard: ShardId) -> Option<(ConnId, Epoch, CopyId)> {
        let primary = self.primaries.get(&shard)?;
        let member = primary.config.member(primary.filling.as_ref()?.copy)?;
        let link = self.links.get(member.endpoint).filter(|l| l.up.is_some())?;
        let conn = link.conn.filter(|conn| self.net.credits(*conn) > FILL_CREDITS)?;
        Some((conn, primary.config.epoch, member.copy))
    }

    /// Sends the copy something; false if that cannot be done now.
    fn ask_filled(
        &mut self,
        now: Time,
        shard: ShardId,
        op: Op,
        body: &[u8],
        payload: Option<Payload>,
        what: Asked,
    ) -> bool {
        let Some((conn, epoch, copy)) = self.fill_conn(shard) else { return false };
        let request = Request { op, body, payload, patience: SUBTASK_DEADLINE };
        self.ask_peer(now, conn, request, ReplyWait::Fill(Question { shard, epoch, copy, what }))
    }

    /// Asks both sides what is due next.
    fn start_listing(&mut self, now: Time, shard: ShardId, size: Blocks, out: &mut dyn Outbox<Letter>) -> bool {
        let Some((_, epoch, _)) = self.fill_conn(shard) else { return false };
        let Some((disk, own)) = self.replicas.get(&shard).map(|r| (r.disk, r.copy)) else { return false };
        if self.crowds[disk].all() >= self.store_share() / 2 {
            return false;
        }
        let Some(filling) = self.filling_of(shard) else { return false };
        let (above, from, to) = filling.listing(size);
        let view = filling.layer;
        self.last_look += 1;
        let number = self.last_look;
        let body = ScanBody::new(shard, epoch, above, from);
        if !self.ask_filled(now, shard, op::FILL_SCAN, body.bytes(), None, Asked::Scan(number)) {
            return false;
        }
        if let Some(filling) = self.filling_of(shard) {
            filling.step = Step::Listing { number, from, to, own: None, theirs: None };
        }
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.read_begins(view);
        }
        let op = StoreOp::Changed { copy: own, view, above, from };
        self.submit_to_store(now, disk, op, StoreWait::Changes { shard, number, view }, out);
        true
    }

    /// The own store has listed what changed.
    pub(super) fn changes_listed(
        &mut self,
        now: Time,
        shard: ShardId,
        number: u64,
        view: View,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.read_is_over(view);
        }
        let Some(filling) = self.filling_of(shard) else { return };
        let Step::Listing { number: current, from, own, .. } = &mut filling.step else { return };
        let at = *from;
        match result {
            _ if *current != number => return,
            Ok(StoreDone::Changed { next, .. }) if next <= at => {
                filling.ends_at(at);
                filling.stuck = None;
            }
            Ok(StoreDone::Changed { chunks, next }) => *own = Some((chunks, next)),
            Ok(_) => return,
            Err(error) => {
                // Its snapshot is gone, or there is no room in the store: looked at anew.
                filling.again = true;
                filling.step = Step::List(Sequence(0));
                filling.wait_until = now + if filling.stuck.is_some() { STUCK_PAUSE } else { RETRY_REFUSED };
                let is_lost = matches!((&error, view), (StoreError::Corrupt { .. }, View::Snapshot(_)));
                filling.stuck = is_lost.then_some((view, at));
                match (&error, view) {
                    (StoreError::Disk(_), _) => {
                        self.store_status(shard, &error, out);
                        self.fail_primary(shard, &error);
                    }
                    (StoreError::Corrupt { .. }, View::Snapshot(snapshot)) => {
                        self.counters.count("fill.lost-here");
                        let line = format!(
                            "a copy of shard {shard} cannot be filled with snapshot {snapshot}: its metadata here, or that of an older one, is lost or cannot \
                             be read; if it stays so, stop this node until another one is primary, or delete that snapshot and all newer ones"
                        );
                        self.say_damage(now, line, out);
                    }
                    _ => {}
                }
                return;
            }
        }
        self.go_on_filling(now, shard, out);
    }

    /// Bytes per second of each filling: what may be read for all of them, in equal shares.
    fn fill_rate_each(&self) -> i64 {
        let Some(rate) = self.fillings.rate else { return FILL_RATE };
        let fillings =
            self.primaries.values().filter(|p| p.filling.as_ref().is_some_and(|f| f.stuck.is_none())).count().max(1);
        i64::try_from(rate.0 / fillings as u64).unwrap_or(i64::MAX).min(FILL_RATE)
    }

    /// Starts pieces as far as rate, depth and memory allow, and sends what waits.
    fn fill_pieces(&mut self, now: Time, shard: ShardId, out: &mut dyn Outbox<Letter>) {
        self.send_pieces(now, shard);
        let rate = self.fill_rate_each();
        loop {
            let Some(primary) = self.primaries.get_mut(&shard) else { return };
            let sealed = matches!(primary.phase, PrimaryPhase::Sealed);
            let Some(filling) = &mut primary.filling else { return };
            filling.earn(now, rate);
            if filling.mark_is_due(FILL_MARK) {
                let known_good = self.known_good_here(shard);
                let Some(filling) = self.filling_of(shard) else { return };
                let mark = filling.mark(known_good);
                self.send_mark(now, shard, mark, Asked::Mark);
            }
            let Some(filling) = self.filling_of(shard) else { return };
            let waits = filling.allowance <= 0 || filling.again || filling.doubts_too_much();
            if filling.running.len() >= FILL_DEPTH || waits {
                return;
            }
            let Some(piece) = filling.left.pop_front() else { return };
            if sealed && self.replicas.get(&shard).is_some_and(|r| r.is_busy(piece.at)) {
                self.filling_of(shard).into_iter().for_each(|filling| filling.left.push_front(piece));
                return;
            }
            let Some(filling) = self.filling_of(shard) else { return };
            filling.allowance -= i64::from(piece.at.count.0) * BLOCK as i64;
            let view = filling.layer;
            let iocb = Iocb { view, ..Iocb::internal(shard, Kind::Fill, piece.at, IocbPhase::Queued) };
            let key = self.new_iocb(iocb);
            if let Some(filling) = self.filling_of(shard) {
                filling.running.insert(key, piece);
            }
            if !sealed {
                self.queue_for_lock(key);
                continue;
            }
            // Nothing moves here: there is nothing to lock against.
            self.iocbs[key].phase = IocbPhase::Locked;
            if !self.read_into(now, key, shard, piece.at, IocbPhase::Reading, out) {
                self.give_back_piece(now, key);
                return;
            }
        }
    }

    /// There is no room for a piece now.
    fn give_back_piece(&mut self, now: Time, key: IocbKey) {
        let shard = self.iocbs[key].shard;
        if let Some(filling) = self.filling_of(shard)
            && let Some(piece) = filling.running.remove(&key)
        {
            filling.left.push_front(piece);
        }
        self.end_request(now, key);
    }

    /// The content of a piece.
    pub(super) fn piece_read(&mut self, now: Time, key: IocbKey, data: Memory, crcs: Crcs) {
        let iocb = &mut self.iocbs[key];
        if data.iter().any(|byte| *byte != 0) {
            iocb.payload = Some(Payload { len: data.len(), mem: data.filled(), crcs });
        }
        iocb.phase = IocbPhase::Ready;
        let shard = iocb.shard;
        self.send_pieces(now, shard);
    }

    /// Sends every piece that was read and is not on its way.
    pub(super) fn send_pieces(&mut self, now: Time, shard: ShardId) {
        let Some(filling) = self.filling_of(shard) else { return };
        let ready: Vec<(IocbKey, Piece)> = filling.running.iter().map(|(key, piece)| (*key, *piece)).collect();
        for (key, piece) in ready {
            let iocb = &self.iocbs[key];
            if iocb.phase != IocbPhase::Ready {
                continue;
            }
            let Some((_, epoch, _)) = self.fill_conn(shard) else { return };
            let (payload, Some(request)) = (iocb.payload.as_ref().map(Payload::share), &iocb.request) else { return };
            let body = FillBody::new(shard, epoch, piece.version, piece.at);
            let of = if let View::Snapshot(snapshot) = iocb.view { Some(snapshot) } else { None };
            let body = match payload {
                None if piece.lost && !driver::mutant::on("lost_filled_as_zeros") => body.with_lost(of),
                None => body.with_zeroes(),
                Some(_) => body,
            };
            let hold = request.share::<why::Subtask>();
            if !self.ask_filled(now, shard, op::FILL, body.bytes(), payload, Asked::Piece(key, hold)) {
                return;
            }
            self.iocbs[key].phase = IocbPhase::Filling;
        }
    }

    fn send_mark(&mut self, now: Time, shard: ShardId, mark: Mark, what: Asked) -> bool {
        let Some((_, epoch, _)) = self.fill_conn(shard) else { return false };
        let body = MarkBody::new(shard, epoch, mark);
        let sent = self.ask_filled(now, shard, op::FILL_MARK, body.bytes(), None, what);
        if sent && let Some(filling) = self.filling_of(shard) {
            filling.marks(mark);
        }
        sent
    }

    /// Everything of the layer is on the copy: it is told so.
    fn tell_complete(&mut self, now: Time, shard: ShardId) {
        let known_good = self.known_good_here(shard);
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let epoch = primary.config.epoch;
        let Some(filling) = &mut primary.filling else { return };
        let sent = match filling.layer {
            View::Snapshot(snapshot) => {
                let all = BlockRange { from: Blocks(0), count: Blocks(0) };
                let body = FillBody::new(shard, epoch, filling.newest(), all).with_snapshot(snapshot);
                let what = Asked::Snapshot(snapshot);
                self.ask_filled(now, shard, op::FILL_SNAPSHOT, body.bytes(), None, what)
            }
            View::Live => {
                let mark = Mark { upto: known_good, complete: true, ..Mark::default() };
                self.send_mark(now, shard, mark, Asked::Complete(known_good))
            }
        };
        if sent && let Some(filling) = self.filling_of(shard) {
            filling.step = Step::Telling;
        }
    }

    /// The copy that is filled has answered, or its answer is lost.
    pub(super) fn filled_answered(
        &mut self,
        now: Time,
        question: Question,
        result: Answered,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Question { shard, epoch, copy, what } = question;
        let current = self.primaries.get(&shard).is_some_and(|p| p.config.epoch == epoch);
        let known_good = self.known_good_here(shard);
        let Some(filling) = self.filling_of(shard).filter(|f| current && f.copy == copy) else { return };
        let listing = match &filling.step {
            Step::Listing { number, .. } => Some(*number),
            _ => None,
        };
        if let Asked::Scan(number) = &what
            && listing != Some(*number)
        {
            return;
        }
        let status = result.as_ref().ok().map(|(_, body, _)| ReplyBody::status_of(body).unwrap_or(Status::Io));
        if status != Some(Status::Ok) {
            self.filling_refused(now, shard, &what, status, out);
            return;
        }
        match what {
            Asked::Scan(_) => {
                let next = result.as_ref().ok().map(|(_, body, _)| ReplyBody::word_of(body));
                let list = result.ok().and_then(|(_, _, p)| p.map_or(Some(Vec::new()), |p| decode_changed(p.bytes())));
                let (Some(list), Some(next)) = (list, next) else {
                    return self.fail_filling(now, shard, "its list of changes is torn");
                };
                let Step::Listing { from, theirs, .. } = &mut filling.step else { return };
                if next <= from.0 {
                    return self.fail_filling(now, shard, "its list of changes goes nowhere");
                }
                *theirs = Some((list, Blocks(next)));
            }
            Asked::Piece(key, hold) => {
                if let Some(piece) = filling.running.get(&key).copied() {
                    filling.filled(key);
                    self.counters.count(if piece.lost { "fill.lost" } else { "fill.piece" });
                    self.end_request(now, key);
                }
                drop(hold);
            }
            Asked::Mark => {
                filling.marking = false;
                self.counters.count("fill.marked");
            }
            Asked::Snapshot(snapshot) => {
                let mark = filling.has_snapshot(snapshot, known_good);
                filling.step = Step::List(Sequence(0));
                self.counters.count("fill.snapshot");
                self.send_mark(now, shard, mark, Asked::Mark);
            }
            Asked::Complete(known_good) => {
                filling.completed(known_good);
                self.counters.count("fill.complete");
                if let Some(primary) = self.primaries.get_mut(&shard) {
                    primary.keeps_from_filling = None;
                }
            }
        }
        self.go_on_filling(now, shard, out);
    }

    /// A question to the copy that is filled was refused, or its answer is lost (`None`): it is asked again, or the run ends.
    fn filling_refused(
        &mut self,
        now: Time,
        shard: ShardId,
        what: &Asked,
        status: Option<Status>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(filling) = self.filling_of(shard) else { return };
        match status {
            Some(Status::StaleEpoch) => self.ask_for_news(now, shard, out),
            None | Some(Status::Later) => {
                filling.wait_until = now + RETRY_REFUSED;
                match what {
                    Asked::Piece(key, _) => {
                        if filling.running.contains_key(key) {
                            self.iocbs[*key].phase = IocbPhase::Ready;
                        }
                    }
                    Asked::Mark => filling.marking = false,
                    Asked::Scan(_) => filling.step = Step::List(Sequence(0)),
                    Asked::Snapshot(_) | Asked::Complete(_) => {
                        filling.marking = false;
                        filling.step = Step::Fill;
                    }
                }
            }
            // The conductor has had this snapshot dropped meanwhile.
            Some(Status::NoSnapshot) => {
                filling.again = true;
                filling.step = Step::List(Sequence(0));
                filling.wait_until = now + RETRY_REFUSED;
            }
            Some(Status::NoSpace) => self.fail_filling(now, shard, "its disk is full"),
            Some(Status::Io) => self.fail_filling(now, shard, DISK_FAILED),
            // A program of before knows of nothing that is lost.
            Some(Status::Kept | Status::BadRequest) if self.lost_piece(shard, what).is_some() => {
                self.not_filled_past(now, shard, what);
            }
            Some(_) => self.fail_filling(now, shard, "it refuses to be filled"),
        }
    }

    /// The run ends: the copy is to be dropped, and nothing of this run is believed any more. One that may be in sync by now counts until
    /// an epoch without it is persisted (rule 1).
    pub(super) fn fail_filling(&mut self, now: Time, shard: ShardId, why: &'static str) {
        self.counters.count("fill.failed");
        self.end_filling(now, shard, why);
    }

    /// See `fail_filling`.
    pub(super) fn end_filling(&mut self, now: Time, shard: ShardId, why: &'static str) {
        let Some(primary) = self.primaries.get_mut(&shard) else { return };
        let Some(&Filling { copy, add_asked, .. }) = primary.filling.as_deref() else { return };
        primary.failed.insert(copy, why);
        primary.end_turn(now, copy);
        if !add_asked {
            self.forget_filling(now, shard);
        }
    }

    /// A piece that ends otherwise than by being filled: its snapshot is gone.
    pub(super) fn piece_ended(&mut self, now: Time, key: IocbKey) {
        let shard = self.iocbs[key].shard;
        if self.filling_of(shard).is_some_and(|filling| filling.running.remove(&key).is_some()) {
            self.fail_filling(now, shard, "what it is filled from cannot be read");
        }
    }

    /// A filling of an epoch that is over: its pieces are withdrawn.
    pub(super) fn forget_filling(&mut self, now: Time, shard: ShardId) {
        if let Some(primary) = self.primaries.get_mut(&shard) {
            primary.filling = None;
        }
        let theirs = |iocb: &Iocb| iocb.shard == shard && iocb.kind == Kind::Fill && !iocb.is_over();
        let old: Vec<IocbKey> = self.iocbs.iter().filter(|(_, i)| theirs(i)).map(|(key, _)| key).collect();
        for key in old {
            match self.iocbs[key].phase {
                IocbPhase::Reading | IocbPhase::Mending => self.iocbs[key].withdrawn = true,
                _ => self.end_request(now, key),
            }
        }
    }

    /// What is stamped now is not sent to a copy that is filled. False if it has to wait: the copy may be in sync by now (rule 1).
    pub(super) fn bypass_filling(&mut self, shard: ShardId) -> bool {
        let Some(primary) = self.primaries.get_mut(&shard) else { return true };
        match &mut primary.filling {
            Some(filling) if filling.add_asked => false,
            Some(_) => {
                let known_good = self.known_good_here(shard);
                self.filling_of(shard).into_iter().for_each(|filling| filling.fall_back(known_good));
                true
            }
            None => true,
        }
    }

    /// Fillings go on as their rates allow; now and then it is said how far they are.
    pub(super) fn tick_fillings(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let shards: Vec<ShardId> =
            self.primaries.iter().filter(|(_, p)| p.filling.is_some()).map(|(shard, _)| *shard).collect();
        for shard in &shards {
            self.go_on_filling(now, *shard, out);
        }
        if now < self.fillings.said_at + FILL_REPORT || (shards.is_empty() && !self.fillings.said_some) {
            return;
        }
        (self.fillings.said_at, self.fillings.said_some) = (now, !shards.is_empty());
        let said = shards.iter().filter_map(|shard| {
            let primary = self.primaries.get(shard)?;
            let filling = primary.filling.as_ref()?;
            let seconds = (now.since(filling.progress.began).0 / Span::seconds(1).0).max(1);
            Some(api::Filling {
                shard: *shard,
                copy: filling.copy,
                done: filling.done().bytes(),
                of: primary.config.size,
                rate: Bytes(filling.progress.sent * BLOCK as u64 / seconds),
            })
        });
        out.post(Letter::Fillings(said.collect()));
    }
}

const _: () = assert!(PIECE as usize * BLOCK <= 1 << 16);
