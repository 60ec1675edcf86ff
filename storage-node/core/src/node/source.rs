//! What a copy-range copies: a snapshot's content, from the copy here or from a reactor elsewhere that has one (rule 16).
//!
//! ```text
//!  a piece ──► the copy here ──► the first holder ──► the second … ──► all said that they lack it, or cannot read it: failed
//!                 └─ away, or not now: the next one. If nobody has given it and not all have said no: the same again, later
//! ```
//!
//! A snapshot never changes, and all copies in sync have the same under its id. So it is read without the source's range lock, lease or
//! epoch, here as elsewhere, and any node may ask. Given is only what is there as a whole: by a copy that is in sync in the configuration
//! that it has joined. A snapshot is not dropped while it is read, and what is asked afterwards is told so.

use super::Node;
use super::requests::Incoming;
use super::waits::{ReplyWait, Request, StoreWait};
use crate::iocb::{Iocb, IocbPhase};
use crate::iocbs::IocbKey;
use crate::limits::{MAX_MESSAGE_BLOCKS, SERVICES, SUBTASK_DEADLINE};
use crate::mail::Letter;
use crate::mend::Failure;
use conductor_model::{BLOCK, BlockRange, CopyId, Member, NodeId, ShardSnapshot};
use driver::{ConnId, Outbox, Time};
use memory::Class;
use node_protocol::{ReplyBody, Status, ViewBody, op};
use node_store::{Store, StoreDone, StoreError, StoreOp, View};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tcp::{Answer, Lost, Payload};
use wire::{Body, Op};

/// What copy-ranges here and elsewhere read.
#[derive(Default)]
pub(super) struct Sources {
    /// Pieces of snapshots that are being read for those elsewhere.
    pub(super) giving: usize,
    /// Reactors that have what those here copy.
    pub(super) links: BTreeSet<SocketAddr>,
}

impl<S: Store> Node<S> {
    /// Does the copy here give what this snapshot reads as? Else why not, and whether that may change.
    fn gives(&self, of: ShardSnapshot) -> Result<(), Failure> {
        match self.replicas.get(&of.shard) {
            None => Err(Failure::Without),
            Some(replica) if !replica.is_whole() => Err(Failure::Away),
            Some(_) if !self.has_snapshot(of.shard, of.snapshot) => Err(Failure::Without),
            Some(_) => Ok(()),
        }
    }

    /// SNAPSHOT_READ: a piece of a snapshot, for a copy-range elsewhere.
    pub(super) fn snapshot_asked(&mut self, now: Time, incoming: Incoming<'_>, out: &mut dyn Outbox<Letter>) {
        let Incoming { body, payload, answer, .. } = incoming;
        let body = ViewBody::parse(body).filter(|_| payload.is_none());
        let Some((of, at)) = body.and_then(|body| Some((body.asked_snapshot()?, body.range()))) else {
            self.reply_status(now, answer, Status::BadRequest);
            return;
        };
        if let Err(status) = self.may_give(of, at) {
            self.reply_status(now, answer, status);
            return;
        }
        let into = self.arena.take(at.count.0 as usize * BLOCK, Class::Resync);
        let (Some(into), Some(replica)) = (into, self.replicas.get_mut(&of.shard)) else {
            self.counters.count("memory.waits");
            self.reply_status(now, answer, Status::Later);
            return;
        };
        self.counters.count("op.snapshot-read");
        let (view, disk, copy) = (View::Snapshot(of.snapshot), replica.disk, replica.copy);
        replica.read_begins(view);
        self.sources.giving += 1;
        self.submit_to_store(
            now,
            disk,
            StoreOp::Read { copy, view, at, into },
            StoreWait::SnapshotRead { of, answer },
            out,
        );
    }

    /// Is there such a piece here, and room to read it? Else the status to refuse with.
    fn may_give(&self, of: ShardSnapshot, at: BlockRange) -> Result<(), Status> {
        if at.count.0 == 0 || at.count.0 > MAX_MESSAGE_BLOCKS {
            return Err(Status::BadRequest);
        }
        self.gives(of).map_err(|why| if why == Failure::Without { Status::NoSnapshot } else { Status::Later })?;
        let replica = self.replicas.get(&of.shard).ok_or(Status::NoSnapshot)?;
        if at.end() * BLOCK as u64 > replica.size().0 {
            return Err(Status::OutOfRange);
        }
        let room = self.crowds[replica.disk].all() < self.store_share() / 2;
        let fits = room && self.services.len() + self.sources.giving < SERVICES;
        if fits { Ok(()) } else { Err(Status::Later) }
    }

    /// The store has read what was asked for from elsewhere.
    pub(super) fn snapshot_given(
        &mut self,
        now: Time,
        of: ShardSnapshot,
        answer: Answer,
        result: Result<StoreDone, StoreError>,
        out: &mut dyn Outbox<Letter>,
    ) {
        self.sources.giving -= 1;
        if let Some(replica) = self.replicas.get_mut(&of.shard) {
            replica.read_is_over(View::Snapshot(of.snapshot));
        }
        let (status, payload) = match result {
            Ok(StoreDone::Read(data, crcs)) => {
                (Status::Ok, Some(Payload { len: data.len(), mem: data.filled(), crcs }))
            }
            Ok(_) => {
                debug_assert!(false, "a read is answered with data");
                (Status::Later, None)
            }
            Err(error) => (self.content_status(of.shard, &error, out), None),
        };
        self.net.reply(now, answer, Op::REPLY, ReplyBody::new(status).bytes(), payload);
    }

    /// Reads a piece of the source, to write it: from the copy here, or from the next of those elsewhere.
    pub(super) fn read_to_copy(
        &mut self,
        now: Time,
        key: IocbKey,
        from: ShardSnapshot,
        out: &mut dyn Outbox<Letter>,
    ) -> bool {
        let own = self.replicas.get(&from.shard).map(|replica| replica.copy);
        let holders = self.holders(key);
        let unasked = |node: &Self, copy: CopyId| node.iocbs[key].heal.said.iter().all(|(said, _)| *said != copy);
        if let Some(own) = own.filter(|own| unasked(self, *own)) {
            match self.gives(from) {
                Ok(()) => {
                    let range = self.iocbs[key].range;
                    return self.read_into(now, key, from.shard, range, IocbPhase::Reading, out);
                }
                Err(why) => self.iocbs[key].heal.said.push((own, why)),
            }
        }
        for holder in &holders {
            if Some(holder.copy) != own && unasked(self, holder.copy) {
                if self.ask_holder(now, key, from, holder) {
                    return true;
                }
                self.iocbs[key].heal.said.push((holder.copy, Failure::Away));
            }
        }
        self.nobody_gave(now, key, from, &holders)
    }

    /// Who has the source of the order that this is a piece of, as the conductor said last.
    fn holders(&self, key: IocbKey) -> Vec<Member> {
        let standing = self.iocbs[key].order.and_then(|id| self.orders.named.get(&id));
        standing.map(|standing| standing.holders().to_vec()).unwrap_or_default()
    }

    fn ask_holder(&mut self, now: Time, key: IocbKey, from: ShardSnapshot, holder: &Member) -> bool {
        let Iocb { range, order, .. } = self.iocbs[key];
        if let Some(copying) = order.and_then(|id| self.copying(id)) {
            copying.elsewhere = true;
        }
        let (Some(conn), Some(request)) = (self.conn_to_holder(holder), &self.iocbs[key].request) else { return false };
        let hold = request.share();
        let body = ViewBody::of_snapshot(from, range);
        let request = Request { op: op::SNAPSHOT_READ, body: body.bytes(), payload: None, patience: SUBTASK_DEADLINE };
        let sent = self.ask_peer(now, conn, request, ReplyWait::Source { iocb: key, copy: holder.copy, hold });
        if sent {
            self.iocbs[key].phase = IocbPhase::Mending;
        }
        sent
    }

    /// An established link with room, to a process that has the holder's disk: at its address may be another one by now.
    fn conn_to_holder(&self, holder: &Member) -> Option<ConnId> {
        let link = self.links.get(holder.endpoint)?;
        link.up.as_ref()?.open_of(holder.disk)?;
        link.conn_for_writes(self.net.credits(link.conn?))
    }

    /// A holder's answer, or its loss.
    pub(super) fn holder_answered(
        &mut self,
        now: Time,
        key: IocbKey,
        copy: CopyId,
        result: Result<(Op, Body, Option<Payload>), Lost>,
    ) {
        let Some(iocb) = self.iocbs.get_mut(key).filter(|iocb| !iocb.is_over()) else { return };
        if iocb.withdrawn {
            self.counters.count("request.dropped");
            self.end_request(now, key);
            return;
        }
        let status = result.as_ref().ok().and_then(|(_, body, _)| ReplyBody::status_of(body));
        let what = match (status, result) {
            (Some(Status::Ok), Ok((_, _, Some(payload)))) if payload.len as u64 == iocb.range.count.bytes().0 => {
                self.counters.count("copy.fetched");
                self.copied(key, payload);
                return;
            }
            (Some(Status::Io), _) => Failure::Damaged,
            (Some(Status::NoSnapshot | Status::OutOfRange), _) => Failure::Without,
            _ => Failure::Away,
        };
        self.source_said(key, copy, what);
    }

    /// A copy did not give it: the next one is asked.
    fn source_said(&mut self, key: IocbKey, copy: CopyId, what: Failure) {
        let iocb = &mut self.iocbs[key];
        iocb.heal.said.push((copy, what));
        iocb.phase = IocbPhase::Locked;
        self.runnable.push_back(key);
    }

    /// The store here would not read the source.
    pub(super) fn source_failed(&mut self, key: IocbKey, from: ShardSnapshot, error: &StoreError) {
        if matches!(error, StoreError::Busy) {
            self.iocbs[key].phase = IocbPhase::Locked;
            self.stall(key);
            return;
        }
        let missing = matches!(error, StoreError::NoSuchSnapshot { .. } | StoreError::NoSuchCopy(_));
        let own = self.replicas.get(&from.shard).map(|replica| replica.copy).unwrap_or_default();
        self.source_said(key, own, if missing { Failure::Without } else { Failure::Damaged });
    }

    /// Everybody was asked for a piece. Who was away is asked again; if all have said no, nobody has it.
    fn nobody_gave(&mut self, now: Time, key: IocbKey, from: ShardSnapshot, holders: &[Member]) -> bool {
        let Iocb { range, order, .. } = self.iocbs[key];
        let own = self.replicas.get(&from.shard).map(|replica| (replica.copy, self.options.node));
        let others = holders.iter().map(|member| (member.copy, member.node));
        let nodes: Vec<(CopyId, NodeId)> = own.into_iter().chain(others).collect();
        let said = &mut self.iocbs[key].heal.said;
        let of = |what: Failure, said: &[(CopyId, Failure)]| {
            let of_it = nodes.iter().filter(|(copy, _)| said.contains(&(*copy, what)));
            of_it.map(|(_, node)| *node).collect::<BTreeSet<NodeId>>()
        };
        let (away, without, damaged) =
            (of(Failure::Away, said), of(Failure::Without, said), of(Failure::Damaged, said));
        said.retain(|(_, what)| *what != Failure::Away);
        let waits = nodes.is_empty() || !away.is_empty();
        self.counters.count(if waits { "copy.waits" } else { "copy.unread" });
        let copying = order.and_then(|id| self.copying(id));
        if waits {
            if let Some(copying) = copying {
                let who = if away.is_empty() { "a copy in sync".to_owned() } else { names(&away) };
                copying
                    .waits_for(now, format!("the copy-range from {} of {} waits for {who}", from.snapshot, from.shard));
            }
            return false;
        }
        if let Some(copying) = copying {
            let said = [(&without, "not there on"), (&damaged, "damaged on")];
            let said = said.into_iter().filter(|(who, _)| !who.is_empty());
            let said: Vec<String> = said.map(|(who, what)| format!("{what} {}", names(who))).collect();
            let (snapshot, shard) = (from.snapshot, from.shard);
            copying.why = Some(format!("blocks {range} of {snapshot} of {shard} cannot be read: {}", said.join(", ")));
        }
        self.answer(now, key, if damaged.is_empty() { Status::NoSnapshot } else { Status::Io });
        true
    }

    /// Makes the links to holders of sources that copy-ranges need, and gives back those that none needs any more.
    pub(super) fn link_sources(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let mut needed = BTreeSet::new();
        for standing in self.orders.named.values() {
            let Some(source) = standing.source_elsewhere() else { continue };
            let own = self.replicas.get(&source).map(|replica| replica.copy);
            needed.extend(standing.holders().iter().filter(|m| Some(m.copy) != own).map(|m| m.endpoint));
        }
        let before = std::mem::replace(&mut self.sources.links, needed);
        let new: Vec<SocketAddr> = self.sources.links.difference(&before).copied().collect();
        for to in new {
            self.links.need(now, to);
        }
        let over: Vec<SocketAddr> = before.difference(&self.sources.links).copied().collect();
        for to in over {
            self.release_link(now, to, out);
        }
    }
}

fn names(nodes: &BTreeSet<NodeId>) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}
