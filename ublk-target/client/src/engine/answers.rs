//! What comes back: answers, and what was lost with its connection.

use super::extents::{asked, is_hole};
use super::posting::token_of;
use super::{Engine, Network, Reply, close};
use crate::iocb::{Lost, Part, PartKey, PartState, Pause, RequestKey, Stage};
use crate::limits::{MAX_EXTENTS, MIN_EXTENTS, RETRY_MAX, RETRY_MIN};
use crate::link::Link;
use crate::request::BlockError;
use crate::split::{Action, Kind};
use conductor_model::Bytes;
use driver::{ConnId, Span, Time};
use node_protocol::{ExtentsAnswer, ReplyBody, Status};
use std::net::SocketAddr;
use wire::{Op, Reason};

impl Engine {
    /// The answer to what was posted under `token` on `conn`; `None`: it was lost with its connection, or its deadline passed. An answer
    /// on another connection than the one that it was posted on last is nobody's.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        conn: ConnId,
        token: u64,
        reply: Option<Reply<'_>>,
        net: &mut dyn Network,
    ) {
        if self.claim_answered(now, conn, token, reply.as_ref()) {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low half is a part's key")]
        let key = PartKey(token as u32 as usize);
        let posted = self.parts.get_mut(key.0).filter(|part| token_of(key, part.sequence) == token);
        let links = &self.links;
        let on = |endpoint: &SocketAddr| links.get(endpoint).and_then(Link::conn) == Some(conn);
        let Some(part) = posted.filter(|part| matches!(&part.state, PartState::Posted(to, _) if on(to))) else {
            self.counters.stray_events += 1;
            return;
        };
        let PartState::Posted(endpoint, holds) = std::mem::replace(&mut part.state, PartState::Done) else { return };
        let request = part.request;
        self.shares.back(part.shard);
        let link = self.links.get_mut(&endpoint);
        debug_assert!(link.is_some(), "a link stays while anything is posted on it");
        let status = reply.as_ref().map(|reply| judge(part, reply));
        if let Some(link) = link {
            link.back(now, matches!(status, Some(Ok(_))));
            match status {
                Some(Ok(_)) => {}
                // A node that answers nonsense is not trusted with what it has; whatever it holds comes back as lost.
                Some(Err(Nonsense)) => close(link, Reason::Unexpected, net),
                None => close(link, Reason::RequestTimeout, net),
            }
        }
        match status {
            // A node that is older than the question: all of it may hold data.
            Some(Ok(Status::Unsupported)) if part.action == Action::Extents => self.part_done(request),
            Some(Ok(Status::Ok)) => self.served(now, key, reply),
            Some(Ok(_)) if self.requests[request.0].failed.is_some() => self.part_failed(now, key),
            Some(Ok(status @ (Status::StaleEpoch | Status::Later))) => {
                if let Some(reply) = reply.filter(|_| status == Status::StaleEpoch) {
                    self.learn(now, self.parts[key.0].shard, endpoint, reply.body);
                }
                self.put_off(now, key, status);
            }
            Some(Ok(status)) => {
                self.part_failed(now, key);
                self.fail(now, request, error_of(status));
            }
            lost => {
                self.counters.bad_replies += u64::from(lost.is_some());
                self.counters.lost += u64::from(lost.is_none());
                self.map_wanted |= lost.is_none();
                part.lost.push(Lost { endpoint, epoch: part.epoch });
                if self.requests[request.0].failed.is_some() {
                    self.becomes_twin(now, key);
                } else {
                    self.enqueue(now, key);
                }
            }
        }
        // Not earlier: the last hold to go hands the request to the reaper.
        drop(holds);
        self.release_if_done(request);
    }

    /// A part's node did what it asked.
    pub(super) fn served(&mut self, now: Time, key: PartKey, reply: Option<Reply<'_>>) {
        let part = &mut self.parts[key.0];
        let request = part.request;
        // A FLUSH may be answered by a primary that has not settled yet, if it has nothing to sync.
        if part.action != Action::Flush {
            self.routes.served(part.shard, part.epoch);
        }
        let mut lost = false;
        if let Some(unflushed) = &self.unflushed {
            match part.action {
                Action::Flush => {
                    lost = unflushed.flush_lost(part.shard, part.clean);
                    if !lost {
                        unflushed.flushed(part.shard, part.covers);
                    }
                }
                // Where nobody flushes, nothing was without FUA.
                action if action.is_change() && part.fua => {
                    lost = !self.write_through && unflushed.fua_tells(part.shard);
                }
                action if action.is_change() => unflushed.changed(part.shard, part.cache),
                _ => {}
            }
        }
        match part.action {
            Action::Read => part.answer = reply.and_then(|reply| reply.payload),
            Action::Extents => {
                part.extents = reply.and_then(|reply| ExtentsAnswer::parse(reply.body)).map(Box::new);
                self.look_ahead =
                    if is_hole(part) { Bytes((self.look_ahead.0 * 2).min(MAX_EXTENTS)) } else { Bytes(MIN_EXTENTS) };
            }
            _ => {}
        }
        self.requests[request.0].stages.mark(Stage::Replied, now);
        self.part_done(request);
        if lost {
            self.tell_loss(now, request);
        }
    }

    /// Rule 18: what a request has done is durable itself; what was acknowledged before it may not be.
    fn tell_loss(&mut self, now: Time, request: RequestKey) {
        let asked = &mut self.requests[request.0];
        match asked.failed.as_ref().map(|failure| failure.error) {
            // Its shards count as flushed when it says so: until then every other flush asks them, and tells it, too.
            _ if asked.kind == Kind::Flush => asked.lost = true,
            None => {
                self.counters.losses_told += 1;
                self.fail(now, request, BlockError::CacheLost);
            }
            // It says so already: of another shard.
            Some(BlockError::CacheLost) => {}
            // It has failed by something else, which is all that whoever asked will hear.
            Some(_) => self.loss_unheard(),
        }
    }

    /// Whoever was told of a loss did not hear it: the next FLUSH and the next FUA tell it again.
    pub(crate) fn loss_unheard(&mut self) {
        if let Some(unflushed) = &self.unflushed {
            self.routes.shards().for_each(|shard| unflushed.unheard(shard));
        }
    }

    /// The node told a part to come again.
    pub(super) fn put_off(&mut self, now: Time, key: PartKey, status: Status) {
        let part = &mut self.parts[key.0];
        let known = self.routes.place(part.shard).map(|place| place.epoch);
        let pause = if status == Status::Later {
            self.counters.laters += 1;
            Pause::Later
        } else {
            self.counters.stale_epochs += 1;
            Pause::StaleEpoch
        };
        if pause == Pause::StaleEpoch && known > Some(part.epoch) {
            // A newer map came while it was under way.
            self.enqueue(now, key);
            return;
        }
        let wait = Span(RETRY_MIN.0 << part.put_off.min(16)).min(RETRY_MAX);
        part.put_off += 1;
        part.state = PartState::Paused(now + wait, pause);
        self.paused.insert((now + wait, key));
        if pause == Pause::StaleEpoch {
            self.map_wanted = true;
        }
    }

    /// Nothing is left of it where it was answered; where it was lost before, perhaps.
    pub(super) fn part_failed(&mut self, now: Time, key: PartKey) {
        let part = &self.parts[key.0];
        if part.lost.is_empty() {
            let request = part.request;
            self.part_done(request);
        } else {
            self.becomes_twin(now, key);
        }
    }

    /// What was lost of it is to be fenced, for which there is all the time from now on, however long ago its request failed.
    fn becomes_twin(&mut self, now: Time, key: PartKey) {
        let part = &mut self.parts[key.0];
        part.state = PartState::Twin;
        if let Some(failure) = &mut self.requests[part.request.0].failed {
            failure.fencing_since = now;
        }
    }

    pub(super) fn part_done(&mut self, request: RequestKey) {
        self.requests[request.0].open -= 1;
    }
}

/// A reply that is none.
struct Nonsense;

/// What a reply says, if it fits the part that it answers.
fn judge(part: &Part, reply: &Reply<'_>) -> Result<Status, Nonsense> {
    let status = ReplyBody::status_of(reply.body).filter(|_| reply.op == Op::REPLY).ok_or(Nonsense)?;
    let wanted = if part.action == Action::Read && status == Status::Ok { part.len as usize } else { 0 };
    if part.action == Action::Extents && status == Status::Ok {
        let answer = ExtentsAnswer::parse(reply.body).ok_or(Nonsense)?;
        answer.runs(asked(part)).ok_or(Nonsense)?;
    }
    let fits = reply.payload.as_ref().map_or(0, |payload| payload.len) == wanted;
    let ours = !matches!(status, Status::NotJoined | Status::Reopened);
    if fits && ours { Ok(status) } else { Err(Nonsense) }
}

fn error_of(status: Status) -> BlockError {
    match status {
        Status::NoSpace => BlockError::NoSpace,
        Status::Io => BlockError::Io,
        Status::Denied => BlockError::Denied,
        // What was held where it was sent is not any more.
        Status::NotHeld => BlockError::RangeLost,
        other => BlockError::Refused(other),
    }
}
