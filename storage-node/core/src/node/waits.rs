//! Who waits for a completion of a store, and who for a reply on a link: what goes out leaves the one or the other here, under the number
//! that comes back with the answer.

use super::{Node, fanout, filled, filling, gather, heal, reads, verify};
use crate::backlog::RemoteLeg;
use crate::iocb::{ServerIocb, why};
use crate::iocbs::IocbKey;
use crate::mail::Letter;
use conductor_model::api::CopyWork;
use conductor_model::{CopyId, Epoch, ShardId, ShardSnapshot, Stamp};
use driver::{ConnId, Outbox, Span, Time};
use node_protocol::ReplyBody;
use node_store::{Store, StoreError, StoreOp, Tag, View};
use refcount::Hold;
use slab::Slab;
use std::net::SocketAddr;
use tcp::{Answer, Lost, Payload};
use wire::{Body, Op};

/// One start of a subtask keeps its IOCB.
pub(super) type Subtask = Hold<ServerIocb, why::Subtask>;

/// All of them.
#[derive(Default)]
pub(super) struct Waits {
    pub(super) store: Slab<StoreWait>,
    pub(super) replies: Slab<ReplyWait>,
}

/// What a completion of a store belongs to.
#[derive(Debug)]
pub(super) enum StoreWait {
    /// The own copy's part of a stamped IOCB.
    LocalLeg { leg: fanout::LocalLeg, hold: Subtask },
    /// A read for an IOCB.
    Read { read: reads::OwnRead, hold: Subtask },
    /// What a primary elsewhere asked of a copy here, under a stamp.
    ReplicaChange { shard: ShardId, stamp: Stamp, from: Option<ShardSnapshot> },
    /// A K that a copy is told of on the way.
    Nobody,
    /// The configuration that a copy here joins.
    JoinPersist { shard: ShardId, epoch: Epoch },
    /// What the copy has above its K, for the answer to that Join.
    JoinList { shard: ShardId, epoch: Epoch },
    /// A copy that the conductor has no more.
    Deletion { copy: CopyId },
    /// What changed on the own copy, for a copy that is filled.
    Changes { shard: ShardId, number: u64, view: View },
    /// The disk takes something, before what could not be read for a copy that is filled is read again.
    Proof { shard: ShardId },
    /// What a primary elsewhere has asked of a syncing copy here.
    FillTask(Box<filled::Task>),
    /// A look at content, or a repair.
    Content(verify::Look),
    /// A piece of a snapshot, for a copy-range elsewhere.
    SnapshotRead { of: ShardSnapshot, answer: Answer },
    /// What a copy does by itself.
    CopyWork { shard: ShardId, task: CopyWork },
}

impl StoreWait {
    /// Of a request of a client of this node's primaries.
    fn is_clients(&self) -> bool {
        matches!(self, Self::LocalLeg { .. } | Self::Read { .. })
    }
}

/// What a reply on a link belongs to.
#[derive(Debug)]
pub(super) enum ReplyWait {
    /// Another copy's part of a stamped IOCB.
    RemoteLeg { leg: RemoteLeg, hold: Subtask },
    /// A member's answer to a Join.
    Join(gather::Asked),
    /// A syncing copy's answer.
    Fill(filling::Question),
    /// A promise.
    Promise { link: SocketAddr, sent: Time },
    /// The answer of the mend's nth copy to a question about content.
    Mend { iocb: IocbKey, nth: usize, what: heal::Question, hold: Subtask },
    /// The content of an IOCB's whole range, from another copy.
    Refetch { iocb: IocbKey, hold: Subtask },
    /// A piece of a copy-range's source.
    Source { iocb: IocbKey, copy: CopyId, hold: Subtask },
}

/// A request to another reactor.
pub(super) struct Request<'a> {
    pub(super) op: Op,
    pub(super) body: &'a [u8],
    pub(super) payload: Option<Payload>,
    /// After which it is lost.
    pub(super) patience: Span,
}

impl<S: Store> Node<S> {
    /// Gives a store an operation.
    pub(super) fn submit_to_store(
        &mut self,
        now: Time,
        disk: usize,
        op: StoreOp,
        wait: StoreWait,
        out: &mut dyn Outbox<Letter>,
    ) {
        self.crowds[disk].enters(wait.is_clients());
        let tag = Tag(self.waits.store.insert(wait) as u64);
        self.store_touched = true;
        self.disks[disk].store.submit(now, tag, op, &mut |op| out.submit(op));
    }

    /// Hands every completion of a store to what it belongs to; true if there were any.
    pub(super) fn drain_store(&mut self, now: Time, disk: usize, out: &mut dyn Outbox<Letter>) -> bool {
        let mut answered = false;
        while let Some((tag, result)) = self.disks[disk].store.next_completion() {
            answered = true;
            let Some(wait) = usize::try_from(tag.0).ok().and_then(|key| self.waits.store.try_remove(key)) else {
                debug_assert!(false, "the store completed what it was not given");
                continue;
            };
            self.crowds[disk].leaves(wait.is_clients());
            match wait {
                StoreWait::LocalLeg { leg, hold } => {
                    self.share_is_over(leg.from);
                    self.local_leg_done(now, leg, result.map(drop), out);
                    drop(hold);
                }
                StoreWait::Read { read, hold } => {
                    self.read_done(now, read, result, out);
                    drop(hold);
                }
                StoreWait::ReplicaChange { shard, stamp, from } => {
                    self.share_is_over(from);
                    self.replica_change_done(now, shard, stamp, from.is_some(), result.map(drop), out);
                }
                StoreWait::Nobody => {}
                StoreWait::JoinPersist { shard, epoch } => {
                    self.join_persisted(now, shard, epoch, result.map(drop), out);
                }
                StoreWait::JoinList { shard, epoch } => self.join_listed(now, shard, epoch, result, out),
                StoreWait::Deletion { copy } => {
                    let gone = matches!(result, Ok(_) | Err(StoreError::NoSuchCopy(_)));
                    self.copy_deleted(copy, gone, out);
                }
                StoreWait::Changes { shard, number, view } => {
                    self.changes_listed(now, shard, number, view, result, out);
                }
                StoreWait::Proof { shard } => self.disk_proved(now, shard, result.map(drop), out),
                StoreWait::FillTask(task) => self.fill_task_done(now, *task, result, out),
                StoreWait::Content(look) => self.content_done(now, look, result, out),
                StoreWait::SnapshotRead { of, answer } => self.snapshot_given(now, of, answer, result, out),
                StoreWait::CopyWork { shard, task } => self.worked(shard, task, result.map(drop), out),
            }
        }
        if answered {
            self.runnable.extend(self.crowds[disk].next(self.store_share()));
        }
        answered
    }

    /// Sends a request on a link. False if that could not be done: then nobody waits for it.
    pub(super) fn ask_peer(&mut self, now: Time, conn: ConnId, request: Request<'_>, wait: ReplyWait) -> bool {
        let Request { op, body, payload, patience } = request;
        let key = self.waits.replies.insert(wait);
        let sent = self.net.request(now, conn, op, body, payload, key as u64, now + patience).is_ok();
        if !sent {
            self.waits.replies.remove(key);
        }
        sent
    }

    /// A reply on a link, or its loss, whatever it belongs to.
    pub(super) fn link_reply(
        &mut self,
        now: Time,
        conn: ConnId,
        token: u64,
        result: Result<(Op, Body, Option<Payload>), Lost>,
        out: &mut dyn Outbox<Letter>,
    ) {
        let Some(wait) = usize::try_from(token).ok().and_then(|key| self.waits.replies.try_remove(key)) else {
            debug_assert!(false, "a reply to what was never asked");
            return;
        };
        if let Some(link) = self.links.endpoint(conn).and_then(|to| self.links.get_mut(to)) {
            if result.is_ok() {
                link.heard();
            }
            if let ReplyWait::RemoteLeg { leg, .. } = &wait {
                link.backlog.ended(leg.disk);
            }
        }
        match wait {
            ReplyWait::RemoteLeg { leg, hold } => {
                let status = match &result {
                    Ok((_, body, _)) => ReplyBody::status_of(body).ok_or(()),
                    Err(_) => Err(()),
                };
                self.remote_leg_done(now, leg, status, out);
                drop(hold);
            }
            ReplyWait::Join(asked) => self.join_answered(now, asked, result, out),
            ReplyWait::Fill(question) => self.filled_answered(now, question, result, out),
            ReplyWait::Promise { link, sent } => self.promise_answered(now, link, sent, result, out),
            ReplyWait::Mend { iocb, nth, what, hold } => {
                self.copy_answered(now, iocb, nth, what, result, out);
                drop(hold);
            }
            ReplyWait::Refetch { iocb, hold } => {
                self.refetched(now, iocb, result, out);
                drop(hold);
            }
            ReplyWait::Source { iocb, copy, hold } => {
                self.holder_answered(now, iocb, copy, result);
                drop(hold);
            }
        }
        if let Some(to) = self.links.endpoint(conn) {
            self.drain_backlog(now, to);
        }
    }
}
