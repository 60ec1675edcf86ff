//! Being filled: what a primary asks of a syncing copy on this reactor (rules 3 and 4).
//!
//! Taken only in the epoch that the copy has joined as a syncing member, from the primary that had it join. A piece that is asked for
//! again while the first is in the disk has to wait: the same range is never in the store twice.

use super::requests::Incoming;
use super::waits::StoreWait;
use super::{Node, whole_payload};
use crate::bad_blocks::Had;
use crate::change::Change;
use crate::mail::Letter;
use crate::replica::Caller;
use conductor_model::{BLOCK, BlockRange, Blocks, ShardId, Stamp};
use driver::{Outbox, Time};
use memory::Class;
use node_protocol::{Fill, FillBody, Mark, MarkBody, ReplyBody, ScanBody, Status, encode_changed, op};
use node_store::{FillMark, Store, StoreDone, StoreError, StoreOp, View};
use tcp::{Answer, Payload};
use wire::Op;

/// What is asked.
#[derive(Debug)]
enum Wanted {
    Scan(ScanBody),
    Piece(FillBody, Fill, Option<Payload>),
    Snapshot(FillBody),
    Mark(Mark),
}

/// One of them in the store.
#[derive(Debug)]
pub(crate) struct Task {
    shard: ShardId,
    answer: Answer,
    /// Since it was handed to the disk.
    change: Option<Stamp>,
    /// The range that is busy, under this number.
    busy: Option<u64>,
    /// What is lost from then on.
    lost: Option<(View, BlockRange)>,
}

impl<S: Store> Node<S> {
    /// FILL_SCAN, FILL, FILL_SNAPSHOT, FILL_MARK.
    pub(super) fn fill_asked(
        &mut self,
        now: Time,
        caller: Caller,
        incoming: Incoming<'_>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Incoming { op, body, payload, answer, .. } = incoming;
        let parsed = match op {
            op::FILL_SCAN => ScanBody::parse(body).map(|b| (b.shard(), b.epoch(), Wanted::Scan(b))),
            op::FILL => {
                FillBody::parse(body).and_then(|b| Some((b.shard(), b.epoch(), Wanted::Piece(b, b.what()?, payload))))
            }
            op::FILL_SNAPSHOT => FillBody::parse(body).map(|b| (b.shard(), b.epoch(), Wanted::Snapshot(b))),
            _ => MarkBody::parse(body).map(|b| (b.shard(), b.epoch(), Wanted::Mark(b.mark()))),
        };
        let Some((shard, epoch, wanted)) = parsed else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        let Some(answer) = self.permitted(now, shard, epoch, caller, answer) else { return };
        self.counters.count(match op {
            op::FILL_SCAN => "op.fill-scan",
            op::FILL => "op.fill",
            op::FILL_SNAPSHOT => "op.fill-snapshot",
            _ => "op.fill-mark",
        });
        if let Err(status) = self.may_fill(shard, &wanted) {
            self.reply_status(now, answer, status);
            return;
        }
        self.start_fill_task(now, shard, wanted, answer, out);
    }

    /// Can the copy do it, and now?
    fn may_fill(&self, shard: ShardId, wanted: &Wanted) -> Result<(), Status> {
        let replica = self.replicas.get(&shard).ok_or(Status::NotJoined)?;
        if !replica.is_syncing() {
            return Err(Status::Denied);
        }
        if self.crowds[replica.disk].all() >= self.store_share() {
            return Err(Status::Later);
        }
        match wanted {
            Wanted::Piece(body, fill, payload) => {
                let at = body.range();
                let carried = payload.as_ref().map_or(0, |p| p.len as u64);
                let expected = if *fill == Fill::Content { at.count.bytes().0 } else { 0 };
                if at.count.0 == 0 || at.end() * BLOCK as u64 > replica.size().0 {
                    return Err(Status::OutOfRange);
                }
                if carried != expected {
                    return Err(Status::BadRequest);
                }
                replica.bears_content(at).then_some(()).ok_or(Status::Later)
            }
            Wanted::Snapshot(body) if replica.has_dropped(body.snapshot()) => Err(Status::NoSnapshot),
            Wanted::Snapshot(body) => {
                let whole = BlockRange { from: conductor_model::Blocks(0), count: conductor_model::Blocks(0) };
                replica.bears(&Change::Snapshot(body.snapshot()), whole).then_some(()).ok_or(Status::Later)
            }
            Wanted::Scan(_) | Wanted::Mark(_) => Ok(()),
        }
    }

    fn start_fill_task(
        &mut self,
        now: Time,
        shard: ShardId,
        wanted: Wanted,
        answer: Answer,
        out: &mut dyn Outbox<Letter>,
    ) {
        if let Wanted::Piece(body, Fill::Content | Fill::Zeroes, _) = &wanted {
            self.written_anew(shard, body.range());
        }
        self.last_look += 1;
        let look = self.last_look;
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let (disk, copy, known_good) = (replica.disk, replica.copy, replica.known_good);
        let mut task = Task { shard, answer, change: None, busy: None, lost: None };
        let operation = match wanted {
            Wanted::Scan(body) => {
                replica.read_begins(View::Live);
                StoreOp::Changed { copy, view: View::Live, above: body.above(), from: body.from() }
            }
            Wanted::Piece(body, fill, payload) => {
                let (stamp, at) = (body.version(), body.range());
                let change = payload.map_or(Change::Zero, Change::Write);
                replica.enters_disk(stamp, &change);
                replica.busy.push((look, at, View::Live));
                (task.change, task.busy) = (Some(stamp), Some(look));
                task.lost = (fill == Fill::Lost).then(|| (body.lost_of().map_or(View::Live, View::Snapshot), at));
                match (fill, change) {
                    (Fill::Lost, _) => StoreOp::Lose { copy, stamp, at, known_good },
                    (_, Change::Write(p)) => {
                        let (data, crcs) = (p.mem, p.crcs);
                        StoreOp::Write { copy, stamp, at, data, crcs, known_good, durable: true }
                    }
                    _ => StoreOp::Zero { copy, stamp, at, known_good, durable: true },
                }
            }
            Wanted::Snapshot(body) => {
                let (stamp, snapshot) = (body.version(), body.snapshot());
                replica.enters_disk(stamp, &Change::Snapshot(snapshot));
                task.change = Some(stamp);
                StoreOp::Snapshot { copy, stamp, snapshot, known_good }
            }
            Wanted::Mark(mark) => {
                let complete = mark.complete.then_some(mark.upto);
                replica.known_good = replica.known_good.max(complete.unwrap_or_default());
                replica.reading += 1;
                let mark = FillMark { base: mark.base, cursor: mark.cursor, upto: mark.upto };
                StoreOp::Mark { copy, mark, known_good: complete }
            }
        };
        self.submit_to_store(now, disk, operation, StoreWait::FillTask(Box::new(task)), out);
    }

    /// The store has done it, or not.
    pub(super) fn fill_task_done(
        &mut self,
        now: Time,
        task: Task,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Task { shard, answer, change, busy, lost } = task;
        let lost = lost.filter(|(view, _)| result.is_ok() && !self.is_dropped(shard, *view));
        let Some(replica) = self.replicas.get_mut(&shard) else {
            self.reply_status(now, answer, Status::NotJoined);
            return;
        };
        match change {
            Some(stamp) => replica.left_disk(stamp),
            None => replica.read_is_over(View::Live),
        }
        replica.busy.retain(|(look, ..)| Some(*look) != busy);
        if let Some((view, at)) = lost {
            // It is said when this copy is its shard's primary.
            let copy = replica.copy;
            for block in at.from.0..u32::try_from(at.end()).unwrap_or(u32::MAX) {
                self.damage.left.met(shard, view, (copy, Blocks(block)), Had::Nowhere);
            }
        }
        match result {
            Ok(StoreDone::Changed { chunks, next }) => {
                let mut list = Vec::new();
                chunks.iter().for_each(|(at, version)| encode_changed(&mut list, *at, *version));
                let payload = if list.is_empty() { Some(None) } else { self.taken(&list).map(Some) };
                match payload {
                    Some(payload) => {
                        let reply = ReplyBody { word: next.0.into(), ..ReplyBody::new(Status::Ok) };
                        self.net.reply(now, answer, Op::REPLY, reply.bytes(), payload);
                    }
                    None => self.reply_status(now, answer, Status::Later),
                }
            }
            Ok(_) => self.reply_status(now, answer, Status::Ok),
            Err(error) => {
                let status = self.store_status(shard, &error, out);
                self.reply_status(now, answer, status);
            }
        }
        self.go_on_joining(now, shard, out);
    }

    /// Bytes in memory that can be sent.
    fn taken(&self, bytes: &[u8]) -> Option<Payload> {
        let mut into = self.arena.take(bytes.len(), Class::Resync)?;
        into.copy_from_slice(bytes);
        Some(whole_payload(into))
    }
}
