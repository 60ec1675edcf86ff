//! Routing, resending, failing: every decision of the client, without the connections themselves (`Network`).
//!
//! Why a resend is safe (rules 8 and 24). A part has one sequence and is posted on at most one connection at a time. It is sent again
//! only
//!
//! - after "stale epoch" or "later": the node answered, so nothing of it is left there;
//! - to the same endpoint, on a connection whose HelloAck came after the last one was gone: before that HelloAck the node dropped all
//!   that it had not stamped, and what it had stamped holds its range lock, so that the resend queues behind its twin;
//! - to another endpoint, under a newer epoch: nothing of the old one can be stamped any more, and the new primary settled what was
//!   before it serves. (At the same epoch another endpoint means another process with the same store, which only one can hold open.)
//!
//! `intake` makes requests out of what front ends hand over; `posting` sends their parts, and `answers` says what comes of each that is
//! answered or lost (`extents` reads where data is); `failing` ends those that cannot be answered; `holding` holds what is claimed of
//! a shared volume, without which nothing is sent there; `mapping` knows where shards are served.

mod answers;
mod extents;
mod failing;
mod holding;
mod intake;
mod mapping;
mod posting;

use crate::claims::Claims;
use crate::iocb::{ClientIocb, Failure, Part, PartKey, PartState, Request, RequestKey, Stage, Stages};
use crate::limits::{FENCE_GRACE, MAP_MIN, MIN_EXTENTS, TRACES};
use crate::link::{Link, State};
use crate::pace::Pace;
use crate::request::{BlockDone, BlockError, ClientError, Completion};
use crate::routes::Routes;
use crate::shares::Shares;
use crate::split::Kind;
use crate::unfenced::Unfenced;
use crate::unflushed::Unflushed;
use crate::view::Counters;
use conductor_model::api::VolumeMap;
use conductor_model::{BLOCK, Bytes, Commit};
use driver::{ConnId, Span, Time};
use memory::{Arena, Class, Reads};
use node_protocol::{IoBody, RangeBody};
use refcount::Table;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use tcp::Payload;
use wire::{Op, Reason};

/// What the engine does with connections.
pub(crate) trait Network {
    /// Starts to connect.
    fn connect(&mut self, to: SocketAddr) -> ConnId;
    /// Requests that it takes now.
    fn credits(&self, conn: ConnId) -> usize;
    /// Queues a request; exactly one answer comes for each that was taken.
    fn request(&mut self, conn: ConnId, post: Post) -> Result<(), NotPosted>;
    /// Closes a connection; its requests come back as lost.
    fn close(&mut self, conn: ConnId, why: Reason);
}

/// What a request says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    Io(IoBody),
    Range(RangeBody),
}

impl Body {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Io(body) => body.bytes(),
            Self::Range(body) => body.bytes(),
        }
    }
}

/// A request for a connection.
pub(crate) struct Post {
    pub(crate) op: Op,
    /// Its session and tag are filled in by the connection.
    pub(crate) body: Body,
    pub(crate) payload: Option<Payload>,
    pub(crate) token: u64,
    pub(crate) deadline: Time,
}

/// Why a connection did not take a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPosted {
    /// No credit: later.
    Credit,
    /// The connection is closing; its end will be reported.
    Gone,
    /// More than the node agreed to take (our bodies are never too short).
    TooLarge,
}

/// A reply, taken apart.
pub(crate) struct Reply<'a> {
    pub(crate) op: Op,
    pub(crate) body: &'a [u8],
    pub(crate) payload: Option<Payload>,
}

/// What the engine has to know from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Which of the attachment's lanes this is.
    pub(crate) lane: u16,
    pub(crate) depth: usize,
    pub(crate) read_only: bool,
    pub(crate) io_timeout: Option<Span>,
}

/// All requests of one lane and the links that carry them.
pub(crate) struct Engine {
    settings: Settings,
    pub(crate) routes: Routes,
    /// What is to be held of a shared volume.
    pub(crate) claims: Claims,
    arena: Arena,
    /// One block of zeros, for the edges of unaligned zeroes.
    zeros: Reads,
    pub(crate) table: Table<ClientIocb>,
    pub(crate) requests: Slab<Request>,
    pub(crate) parts: Slab<Part>,
    pub(crate) links: BTreeMap<SocketAddr, Link>,
    shares: Shares,
    paused: BTreeSet<(Time, PartKey)>,
    deadlines: BTreeSet<(Time, RequestKey)>,
    /// Failed requests that are not handed up yet.
    failing: BTreeSet<RequestKey>,
    completions: VecDeque<Completion>,
    pub(crate) traces: VecDeque<Stages>,
    last_sequence: u64,
    /// How far the next question for extents goes at most.
    look_ahead: Bytes,
    /// What is asked for at most, if there is a limit.
    pub(crate) pace: Option<Arc<Pace>>,
    /// What must be flushed to be durable; `None`: every acknowledged change is (a snapshot, or `durability = always`, which a volume
    /// keeps for life).
    unflushed: Option<Arc<Unflushed>>,
    /// What failed requests have left behind.
    pub(crate) unfenced: Arc<Unfenced>,
    /// Since when the attachment has the volume.
    held_since: Commit,
    /// Nobody flushes: every change asks for FUA.
    write_through: bool,
    map_wanted: bool,
    map_not_before: Time,
    map_backoff: Span,
    /// When to look for requests that are stalled.
    look_at: Time,
    /// Nothing is served any more: every request fails with this.
    pub(crate) over: Option<BlockError>,
    pub(crate) counters: Counters,
}

impl Engine {
    pub(crate) fn new(settings: Settings, map: &VolumeMap, arena: Arena) -> Result<Self, ClientError> {
        let zeros = arena.take_zeroed(BLOCK, Class::Client).ok_or(ClientError::NoMemory)?.filled();
        let mut engine = Self {
            settings,
            routes: Routes::new(map)?,
            claims: Claims::default(),
            arena,
            zeros,
            table: Table::with_capacity(settings.depth),
            requests: Slab::with_capacity(settings.depth),
            parts: Slab::with_capacity(settings.depth),
            links: BTreeMap::new(),
            shares: Shares::default(),
            paused: BTreeSet::new(),
            pace: None,
            deadlines: BTreeSet::new(),
            failing: BTreeSet::new(),
            completions: VecDeque::with_capacity(settings.depth),
            traces: VecDeque::with_capacity(TRACES),
            last_sequence: 0,
            look_ahead: Bytes(MIN_EXTENTS),
            unflushed: (!map.durability.is_always() && map.snapshot.is_none()).then(Arc::default),
            unfenced: Arc::default(),
            write_through: false,
            map_wanted: false,
            map_not_before: Time(0),
            map_backoff: MAP_MIN,
            look_at: Time(0),
            over: None,
            counters: Counters::default(),
            held_since: map.held_since,
        };
        engine.see_generations();
        Ok(engine)
    }

    /// Of a flush volume: what is unflushed is known together with these lanes.
    pub(crate) fn share(&mut self, unflushed: &Arc<Unflushed>) {
        if let Some(own) = &mut self.unflushed {
            *own = Arc::clone(unflushed);
        }
        self.see_generations();
    }

    /// Of a flush volume: what the map says of losses.
    fn see_generations(&mut self) {
        let Some(unflushed) = &self.unflushed else { return };
        unflushed.held_since(self.held_since);
        for shard in self.routes.shards() {
            if let Some(place) = self.routes.place(shard) {
                unflushed.seen(shard, place.cache);
            }
        }
    }

    /// Of a flush volume: every change is durable before it is answered.
    pub(crate) fn write_through(&mut self) {
        self.write_through = true;
    }

    /// A connection is established: the node has fenced what came before it.
    pub(crate) fn up(&mut self, now: Time, conn: ConnId) {
        match self.links.values_mut().find(|link| link.state == State::Opening(conn)) {
            Some(link) => {
                link.up(now, conn);
                self.counters.ups += 1;
            }
            None => return self.counters.stray_events += 1,
        }
        let endpoint = self.links.iter().find(|(_, link)| link.state == State::Up(conn)).map(|(endpoint, _)| *endpoint);
        let Some(endpoint) = endpoint else { return };
        for (_, part) in &mut self.parts {
            part.lost.retain(|lost| lost.endpoint != endpoint);
        }
        self.unfenced.fenced(self.settings.lane, endpoint);
    }

    /// A connection is gone; what was posted on it was given back before.
    pub(crate) fn down(&mut self, now: Time, conn: ConnId, reason: Reason, net: &mut dyn Network) {
        let Some(link) = self.links.values_mut().find(|link| link.conn() == Some(conn)) else {
            self.counters.stray_events += 1;
            return;
        };
        debug_assert_eq!(link.posted, 0, "every request comes back before its connection's end is reported");
        // In the handshake it is the node's verdict on this client; later it may be about one connection only, and the next
        // handshake will tell.
        let refused = matches!(link.state, State::Opening(_)) && matches!(reason, Reason::Fenced | Reason::Denied);
        let expected = matches!(link.state, State::Closing(_));
        link.down(now, reason);
        link.verdict_wanted |= reason == Reason::Fenced && !refused && self.over.is_none();
        self.counters.downs += 1;
        if refused {
            self.end(now, BlockError::Fenced, net);
        } else if !expected {
            self.map_wanted = true;
        }
    }

    /// There is a better way to where this connection leads: the next one there takes it. Not while ranges are shared: they are a session's, and
    /// would be another client's as soon as it has no connection.
    pub(crate) fn make_room(&mut self, now: Time, conn: ConnId) {
        if self.claims.holding().is_some() {
            return;
        }
        if let Some(link) = self.links.values_mut().find(|link| link.state == State::Up(conn)) {
            link.make_room(now);
        }
    }

    /// The end of a turn: what time brings, then what can be sent.
    pub(crate) fn turn(&mut self, now: Time, net: &mut dyn Network) {
        self.look(now);
        while let Some(&(until, key)) = self.paused.first().filter(|(until, _)| *until <= now) {
            self.paused.remove(&(until, key));
            self.enqueue(now, key);
        }
        while let Some(&(until, request)) = self.deadlines.first().filter(|(until, _)| *until <= now) {
            self.deadlines.remove(&(until, request));
            self.time_out(now, request, net);
        }
        self.drain_moved(now, net);
        self.resolve_twins(now);
        self.claim(now, net);
        self.pump(now, net);
        let Self { links, routes, .. } = self;
        links.retain(|endpoint, link| {
            let unused = link.queued() == 0 && link.posted == 0 && !link.fence_wanted && !routes.uses(*endpoint);
            if unused {
                close(link, Reason::Closed, net);
            }
            !(unused && link.is_idle())
        });
    }

    /// Closes connections that owe answers for shards which moved away too long ago.
    fn drain_moved(&mut self, now: Time, net: &mut dyn Network) {
        let Self { links, parts, routes, counters, .. } = self;
        for (endpoint, link) in links.iter_mut().filter(|(_, link)| link.drain_by.is_some_and(|by| by <= now)) {
            link.drain_by = None;
            let owes = parts.iter().any(|(_, part)| {
                matches!(&part.state, PartState::Posted(on, _) if on == endpoint)
                    && routes.place(part.shard).is_some_and(|place| place.endpoint != *endpoint)
            });
            if owes {
                counters.drained += 1;
                close(link, Reason::Closed, net);
            }
        }
    }

    /// Completes what nothing holds any more.
    pub(crate) fn reap(&mut self, now: Time) {
        while let Some(ClientIocb { request }) = self.table.reap() {
            let Request { tag, kind, parts, failed, lost, deadline, mut stages, .. } = self.requests.remove(request.0);
            self.failing.remove(&request);
            if let Some(deadline) = deadline {
                self.deadlines.remove(&(deadline, request));
            }
            let parts = parts.iter().map(|key| self.parts.remove(key.0));
            let result = match failed {
                Some(Failure { error, .. }) => {
                    parts.for_each(drop);
                    Err(error)
                }
                None if lost => {
                    self.counters.losses_told += 1;
                    for part in parts {
                        self.unflushed.iter().for_each(|all| all.flushed(part.shard, part.covers));
                    }
                    Err(BlockError::CacheLost)
                }
                None => Ok(done(kind, stages.offset, stages.len, parts)),
            };
            if result.is_ok() {
                self.counters.completed += 1;
            } else {
                self.counters.failed += 1;
            }
            stages.mark(Stage::Completed, now);
            if self.traces.len() == TRACES {
                self.traces.pop_front();
            }
            self.traces.push_back(stages);
            self.completions.push_back(Completion { tag, result });
        }
    }

    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Requests that are less than `depth`.
    pub(crate) fn room(&self) -> usize {
        self.settings.depth.saturating_sub(self.requests.len())
    }

    /// Nothing in flight, nothing to hand up.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.completions.is_empty()
    }

    /// Nothing is left that needs a turn of this engine before something arrives, until then.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let links = self.links.values().flat_map(|link| {
            let (retry, makes_room) = match link.state {
                State::Down(until) if link.wants_connection() && !link.waits_for_place => (Some(until), None),
                State::Up(_) => (None, link.makes_room),
                _ => (None, None),
            };
            retry.into_iter().chain(link.drain_by).chain(makes_room)
        });
        let failing = self.failing.iter().filter_map(|&request| {
            let request = &self.requests[request.0];
            let waits = request.parts.iter().any(|&key| matches!(self.parts[key.0].state, PartState::Twin));
            request.failed.filter(|_| waits).map(|failure| failure.fencing_since + FENCE_GRACE)
        });
        let paused = self.paused.first().map(|&(until, _)| until);
        let deadline = self.deadlines.first().map(|&(until, _)| until);
        let look = (!self.requests.is_empty() || self.claims.is_due()).then_some(self.look_at);
        let own = [paused, deadline, self.map_due(), look, self.claims_due()];
        links.chain(failing).chain(own.into_iter().flatten()).min()
    }
}

/// What a request that succeeded has brought.
fn done(kind: Kind, offset: Bytes, len: Bytes, mut parts: impl Iterator<Item = Part>) -> BlockDone {
    match kind {
        Kind::Read => {
            let answers = parts.filter_map(|part| part.answer);
            BlockDone::Read(answers.map(|answer| memory::Part { mem: answer.mem, from: 0, len: answer.len }).collect())
        }
        Kind::Extents => {
            BlockDone::Extents(parts.next().map(|part| extents::extents(offset, len, &part)).unwrap_or_default())
        }
        _ => {
            parts.for_each(drop);
            BlockDone::Done
        }
    }
}

/// Closes a link's connection, if it is open.
fn close(link: &mut Link, why: Reason, net: &mut dyn Network) {
    if let State::Opening(conn) | State::Up(conn) = link.state {
        link.state = State::Closing(conn);
        net.close(conn, why);
    }
}
