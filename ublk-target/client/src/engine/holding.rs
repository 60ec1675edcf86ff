//! Holds what is claimed of a shared volume: asks each shard's primary for it, again on each connection and in each epoch.

use super::{Body, Engine, Network, NotPosted, Post, Reply};
use crate::claims::State as Claim;
use crate::iocb::{PartKey, PartState, Pause, RequestKey};
use crate::limits::{REQUEST_DEADLINE, RETRY_MIN};
use crate::link::{Link, State};
use crate::request::BlockError;
use conductor_model::{BlockRange, Bytes, ShardIndex};
use driver::{ConnId, Time};
use node_protocol::{RangeBody, ReplyBody, Status, op};
use wire::Op;

/// In the low half of a token: the rest of that is a claim's number, not a part's.
const CLAIM: u64 = 1 << 31;

impl Engine {
    /// Asks for what is due where its shard is served, and connects for it.
    pub(super) fn claim(&mut self, now: Time, net: &mut dyn Network) {
        let Self { claims, routes, links, last_sequence, counters, .. } = self;
        links.values_mut().for_each(|link| link.claimed = false);
        if self.over.is_some() {
            return;
        }
        let patience = claims.patience;
        for (number, piece) in (0u64..).zip(&mut claims.pieces) {
            let Some(place) = routes.place(piece.shard) else { continue };
            let link = links.entry(place.endpoint).or_insert_with(|| Link::new(now));
            let up = if let State::Up(conn) = link.state { Some(conn) } else { None };
            match piece.state {
                Claim::Held { conn, epoch } if (Some(conn), epoch) != (up, place.epoch) => {
                    piece.state = Claim::Due(now)
                }
                _ => {}
            }
            let Claim::Due(at) = piece.state else { continue };
            let Some(conn) = up else {
                link.claimed = true;
                continue;
            };
            if at > now {
                continue;
            }
            let until = *piece.until.get_or_insert(now + patience);
            let wait_ms = until.since(now).0 / 1_000_000;
            let body = RangeBody::new(routes.id(piece.shard), place.epoch, piece.at)
                .for_writing(piece.write)
                .held_before(piece.before)
                .waiting(u32::try_from(wait_ms).unwrap_or(u32::MAX));
            *last_sequence += 1;
            let token = (*last_sequence << 32) | CLAIM | number;
            let (body, deadline) = (Body::Range(body), now + REQUEST_DEADLINE);
            match net.request(conn, Post { op: op::REGISTER_RANGE, body, payload: None, token, deadline }) {
                Ok(()) => {
                    counters.claims_asked += 1;
                    piece.state = Claim::Asked { conn, epoch: place.epoch, token };
                }
                Err(NotPosted::Credit | NotPosted::Gone | NotPosted::TooLarge) => {
                    piece.state = Claim::Due(now + RETRY_MIN)
                }
            }
        }
    }

    /// The answer to what was asked for a claim; true if the token is one's.
    pub(super) fn claim_answered(&mut self, now: Time, conn: ConnId, token: u64, reply: Option<&Reply<'_>>) -> bool {
        if token & CLAIM == 0 {
            return false;
        }
        let number = usize::try_from(token & (CLAIM - 1)).unwrap_or(usize::MAX);
        let piece = self.claims.pieces.get_mut(number);
        let asked = piece.and_then(|piece| match piece.state {
            Claim::Asked { conn: on, epoch, token: named } if (on, named) == (conn, token) => Some((piece, epoch)),
            _ => None,
        });
        let Some((piece, epoch)) = asked else {
            self.counters.stray_events += 1;
            return true;
        };
        let status =
            reply.filter(|r| r.op == Op::REPLY && r.payload.is_none()).and_then(|r| ReplyBody::status_of(r.body));
        match status {
            Some(Status::Ok) => {
                piece.held(conn, epoch);
                let shard = piece.shard;
                self.go_on_in(now, shard);
            }
            None | Some(Status::StaleEpoch | Status::Later) => {
                self.map_wanted |= status != Some(Status::Later);
                piece.put_off(now);
                let shard = piece.shard;
                let on = self.links.iter().find(|(_, link)| link.conn() == Some(conn)).map(|(endpoint, _)| *endpoint);
                if let (Some(Status::StaleEpoch), Some(endpoint), Some(reply)) = (status, on, reply)
                    && self.learn(now, shard, endpoint, reply.body)
                {
                    self.claims.ask_now(now, shard);
                }
            }
            // What was held is nobody else's: there is no room for it where its shard is served now.
            Some(Status::TooMany) if piece.before => piece.put_off(now),
            // Who waits behind others for longer than a primary lets it asks again.
            Some(Status::RangeTaken) if !piece.before && piece.until.is_some_and(|until| now < until) => {
                piece.put_off(now)
            }
            Some(_) => {
                piece.state = Claim::Lost;
                let (shard, at) = (piece.shard, piece.at);
                self.counters.claims_lost += 1;
                self.lose(now, shard, at);
            }
        }
        true
    }

    /// A claim of this shard is held: what has waited for that goes on.
    fn go_on_in(&mut self, now: Time, shard: ShardIndex) {
        let waits = |state: &PartState| match state {
            PartState::Paused(until, Pause::Range) => Some(*until),
            _ => None,
        };
        let parts = self.parts.iter().filter(|(_, part)| part.shard == shard);
        let waiting: Vec<_> = parts.filter_map(|(key, part)| Some((waits(&part.state)?, PartKey(key)))).collect();
        for (until, key) in waiting {
            self.paused.remove(&(until, key));
            self.enqueue(now, key);
        }
    }

    /// Somebody else has these blocks: nothing of ours goes on there.
    fn lose(&mut self, now: Time, shard: ShardIndex, at: BlockRange) {
        let touches =
            |offset, len: u32| BlockRange::covering(offset, Bytes(len.into())).is_some_and(|b| b.overlaps(at));
        let theirs = self.parts.iter().filter(|(_, part)| part.shard == shard && touches(part.offset, part.len));
        let requests: Vec<RequestKey> = theirs.map(|(_, part)| part.request).collect();
        for request in requests {
            self.fail(now, request, BlockError::RangeLost);
            self.release_if_done(request);
        }
    }

    /// When something that is due can be asked for, because there is a connection.
    pub(super) fn claims_due(&self) -> Option<Time> {
        if self.over.is_some() {
            return None;
        }
        let due = self.claims.pieces.iter().filter_map(|piece| {
            let Claim::Due(at) = piece.state else { return None };
            let link = self.links.get(&self.routes.place(piece.shard)?.endpoint);
            // Without a link, or with one that is down, the next turn makes one, or waits for its back-off.
            link.is_none_or(|link| matches!(link.state, State::Up(_))).then_some(at)
        });
        due.min()
    }
}
