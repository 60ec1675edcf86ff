//! What goes out: parts are queued where their shards are served, and sent as connections take them.

use super::{Body, Engine, Network, NotPosted, Post, close};
use crate::claims::Claims;
use crate::iocb::{Lost, Part, PartKey, PartState, Pause, Posted, Request, RequestKey, Stage};
use crate::limits::{BUSY_ASKED, MAX_LINKS, REQUEST_DEADLINE, RETRY_MAX};
use crate::link::{Link, State};
use crate::routes::Routes;
use crate::shares::Shares;
use crate::split::Action;
use crate::unfenced::Unfenced;
use crate::unflushed::Unflushed;
use crate::view::Counters;
use conductor_model::{BlockRange, Bytes};
use driver::{ConnId, Time};
use node_protocol::{IoBody, op};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use tcp::Payload;
use wire::{Op, Reason};

impl Engine {
    /// Queues all parts of a request, or has them wait until it may be sent.
    pub(super) fn enqueue_all(&mut self, now: Time, not_before: Time, request: RequestKey) {
        for at in 0..self.requests[request.0].parts.len() {
            let key = self.requests[request.0].parts[at];
            if not_before > now {
                self.parts[key.0].state = PartState::Paused(not_before, Pause::Pace);
                self.paused.insert((not_before, key));
            } else {
                self.enqueue(now, key);
            }
        }
    }

    /// Everything may be sent from now on.
    pub(crate) fn give_up_pace(&mut self) {
        self.pace = None;
        for (key, part) in &mut self.parts {
            if let PartState::Paused(until, Pause::Pace) = &mut part.state {
                let key = PartKey(key);
                self.paused.remove(&(*until, key));
                *until = Time::default();
                self.paused.insert((*until, key));
            }
        }
    }

    /// Queues a part where its shard is served now.
    pub(super) fn enqueue(&mut self, now: Time, key: PartKey) {
        let part = &mut self.parts[key.0];
        // Routes only grow, and submit checked the range: the place is there.
        let Some(place) = self.routes.place(part.shard) else { return };
        part.state = PartState::Queued(place.endpoint);
        self.links.entry(place.endpoint).or_insert_with(|| Link::new(now)).push(part.sequence, part.shard, key);
    }

    /// Sends what links have queued and their connections take; opens connections that are needed.
    pub(super) fn pump(&mut self, now: Time, net: &mut dyn Network) {
        let Self { links, requests, parts, routes, shares, claims, paused, counters, unflushed, unfenced, .. } = self;
        let covered = SmallVec::new();
        let unflushed = unflushed.as_ref();
        let mut sender =
            Sender { now, requests, parts, routes, shares, claims, paused, counters, unflushed, unfenced, covered };
        // What is held is a session's, and lost with its connection: who shares a volume has one to each reactor that serves some of it.
        let mut places = if claims.holding().is_some() { Places::All } else { make_places(now, links) };
        for (endpoint, link) in links.iter_mut() {
            let makes_room = link.makes_room.is_some_and(|until| now < until);
            link.waits_for_place = link.is_due(now) && !places.take(link);
            match link.state {
                State::Down(_) if link.is_due(now) && !link.waits_for_place => {
                    link.state = State::Opening(net.connect(*endpoint));
                    sender.counters.connects += 1;
                }
                State::Up(_) if makes_room && link.posted == 0 => {
                    sender.counters.made_room += 1;
                    close(link, Reason::Closed, net);
                }
                State::Up(_) if makes_room => {}
                State::Up(conn) => {
                    link.makes_room = None;
                    let is_shared = link.queued() > 0 && sender.routes.is_shared(*endpoint);
                    // Behind those that leave what there is to others.
                    let mut at = 0;
                    while let Some((shard, key)) = link.nth(at) {
                        if is_shared && sender.shares.has_its_share(shard, net.credits(conn)) {
                            at += 1;
                        } else if !sender.send(key, at, (*endpoint, conn), link, net) {
                            break;
                        }
                    }
                }
                _ => {}
            }
        }
        for key in sender.covered {
            // Another flush, which was sent before, has covered all that this one was to cover.
            self.counters.covered += 1;
            let request = self.parts[key.0].request;
            self.served(now, key, None);
            self.release_if_done(request);
        }
    }
}

/// Who may connect in this turn: all that want to, where there are places for all.
enum Places {
    All,
    /// So many, of those whose first part has this number at most: who has nothing to send, but is to be fenced, is first.
    Few {
        left: usize,
        last: Option<u64>,
    },
}

impl Places {
    fn take(&mut self, link: &Link) -> bool {
        match self {
            Self::All => true,
            Self::Few { left, last } => {
                let takes = *left > 0 && link.first_waits() <= *last;
                *left -= usize::from(takes);
                takes
            }
        }
    }
}

/// Which links may connect now, if there are more than connections at a time. Where that is not all of them, others are asked to make way.
fn make_places(now: Time, links: &mut BTreeMap<SocketAddr, Link>) -> Places {
    if links.len() <= MAX_LINKS {
        return Places::All;
    }
    let left = MAX_LINKS.saturating_sub(links.values().filter(|link| link.conn().is_some()).count());
    let mut waiting: Vec<Option<u64>> = links.values().filter(|l| l.is_due(now)).map(Link::first_waits).collect();
    if waiting.len() <= left {
        return Places::All;
    }
    waiting.sort_unstable();
    let leaving =
        links.values().filter(|link| link.makes_room.is_some() || matches!(link.state, State::Closing(_))).count();
    let ask = (waiting.len() - left).saturating_sub(leaving);
    let mut others: Vec<(bool, Time, SocketAddr)> =
        links.iter().filter_map(|(at, link)| link.makes_way().map(|(is_busy, since)| (is_busy, since, *at))).collect();
    others.sort_unstable();
    let resting = others.iter().filter(|(is_busy, ..)| !is_busy).count();
    let busy = links.values().filter(|link| link.makes_room.is_some() && link.posted > 0).count();
    for (.., endpoint) in others.into_iter().take(ask.min(resting + BUSY_ASKED.saturating_sub(busy))) {
        if let Some(link) = links.get_mut(&endpoint) {
            link.make_room(now);
        }
    }
    Places::Few { left, last: left.checked_sub(1).and_then(|last| waiting[last]) }
}

/// What sending the parts of all links takes, beside the links.
struct Sender<'a> {
    now: Time,
    requests: &'a mut Slab<Request>,
    parts: &'a mut Slab<Part>,
    routes: &'a Routes,
    shares: &'a mut Shares,
    claims: &'a Claims,
    paused: &'a mut BTreeSet<(Time, PartKey)>,
    counters: &'a mut Counters,
    unflushed: Option<&'a Arc<Unflushed>>,
    unfenced: &'a Unfenced,
    /// Flushes that need not be sent.
    covered: SmallVec<[PartKey; 8]>,
}

impl Sender<'_> {
    /// Sends the part that is `at` in the line of a link, or takes it off for another reason. False if the connection takes nothing now.
    fn send(
        &mut self,
        key: PartKey,
        at: usize,
        (endpoint, conn): (SocketAddr, ConnId),
        link: &mut Link,
        net: &mut dyn Network,
    ) -> bool {
        let part = &mut self.parts[key.0];
        let Some(place) = self.routes.place(part.shard) else { return false };
        let blocks = BlockRange::covering(part.offset, Bytes(part.len.into()));
        let blocks = blocks.filter(|_| part.action != Action::Extents);
        let pause = blocks.and_then(|blocks| {
            let sent = Lost { endpoint, epoch: place.epoch };
            match () {
                () if !self.claims.gate(part.shard, blocks, conn, place.epoch) => Some(Pause::Range),
                () if self.unfenced.holds_up(part.shard, blocks, sent) => Some(Pause::Unfenced),
                () => None,
            }
        });
        if let Some(pause) = pause {
            link.remove(part.sequence);
            part.state = PartState::Paused(self.now + RETRY_MAX, pause);
            self.paused.insert((self.now + RETRY_MAX, key));
            return true;
        }
        let flushes = self.unflushed.filter(|_| part.action == Action::Flush);
        if flushes.is_some_and(|all| all.clean(part.shard) >= part.covers) {
            link.remove(part.sequence);
            part.state = PartState::Done;
            self.covered.push(key);
            return true;
        }
        let (shard, payload) = (self.routes.id(part.shard), part.payload.as_ref().map(Payload::share));
        let body = IoBody::new(shard, place.epoch, part.sequence, part.offset, part.len);
        let body = Body::Io(if part.fua { body.with_fua() } else { body });
        let (op, token, deadline) = (op_of(part.action), token_of(key, part.sequence), self.now + REQUEST_DEADLINE);
        match net.request(conn, Post { op, body, payload, token, deadline }) {
            Ok(()) => {}
            Err(NotPosted::Gone) => return false,
            // Limits are agreed in the handshake; a node that takes less than a message can be is shown as such.
            Err(NotPosted::TooLarge) => {
                close(link, Reason::Incompatible, net);
                return false;
            }
            Err(NotPosted::Credit) => {
                self.counters.no_credit += 1;
                return false;
            }
        }
        link.post(self.now, at);
        self.shares.post(part.shard);
        let request = &mut self.requests[part.request.0];
        let Some(front_end) = &request.front_end else {
            unreachable!("a request without its front end's hold has no queued part: `release_if_done`")
        };
        part.state = PartState::Posted(endpoint, Posted::new(front_end, part.action));
        (part.epoch, part.cache) = (place.epoch, place.cache);
        part.sent += 1;
        if part.sent > 1 {
            self.counters.resent += 1;
        } else {
            self.counters.sent += 1;
            request.stages.mark(Stage::Sent, self.now);
        }
        true
    }
}

pub(super) fn op_of(action: Action) -> Op {
    match action {
        Action::Read => op::READ,
        Action::Extents => op::EXTENTS,
        Action::Write | Action::ZeroEdge => op::WRITE,
        Action::WriteZeroes => op::WRITE_ZEROES,
        Action::Discard => op::DISCARD,
        Action::Flush => op::FLUSH,
    }
}

/// A part's name on a connection: its slot and the low half of its sequence, so that an answer to an earlier user of the slot fits
/// nothing.
pub(super) fn token_of(key: PartKey, sequence: u64) -> u64 {
    (sequence << 32) | (key.0 as u64 & u64::from(u32::MAX))
}
