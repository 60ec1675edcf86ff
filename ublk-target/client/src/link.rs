//! The way to one endpoint: at most one connection at a time, and the parts that wait for it.
//!
//! ```text
//!   Down ── something wants it, back-off over ─► Opening ── HelloAck ──► Up
//!    ▲                                             │                     │ close()
//!    │                                             │                  Closing
//!    └──────────── the connection is gone ─────────┴─────────────────────┘
//! ```
//!
//! The next connection starts only after the last one is gone and all that was posted on it was given back. With the node's
//! fencing (a second Hello on a lane drops what the first one left unstamped, before HelloAck) that makes a resend safe (rule 8).

use crate::iocb::PartKey;
use crate::limits::{MOVE_GRACE, RECONNECT_MAX, RECONNECT_MIN, ROOM_WAIT};
use conductor_model::ShardIndex;
use driver::{ConnId, Span, Time};
use std::collections::VecDeque;
use wire::Reason;

/// Where a link stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No connection; none is tried before this time.
    Down(Time),
    /// Connecting, or in the handshake.
    Opening(ConnId),
    /// Requests flow.
    Up(ConnId),
    /// We closed it; its operations are coming back.
    Closing(ConnId),
}

/// The way to one endpoint.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) state: State,
    /// Parts to send, and their shards, by sequence: resends come before what is newer.
    queue: VecDeque<(u64, ShardIndex, PartKey)>,
    /// Parts posted on the connection and not answered.
    pub(crate) posted: usize,
    /// When something was posted last.
    used: Time,
    /// Since when its connection is there, or is there again after it was asked to make way.
    turn: Time,
    /// Since when it owes answers and gives none.
    quiet: Option<Time>,
    /// Close it then, if it still owes answers for shards that moved away.
    pub(crate) drain_by: Option<Time>,
    /// Nothing is posted any more until then: when nothing is out, the connection is closed, and a better one takes its place.
    pub(crate) makes_room: Option<Time>,
    /// It is to connect, and there are as many connections as there may be: one that ends wakes it.
    pub(crate) waits_for_place: bool,
    /// A failed request waits for this node to fence its twin: connect although nothing is to be sent.
    pub(crate) fence_wanted: bool,
    /// Something is to be held there: likewise.
    pub(crate) claimed: bool,
    /// The node fenced the last connection: likewise, once. It may have been for that one alone, or for all that this client will ever ask
    /// there, and the node that knows may have forgotten it when somebody asks again.
    pub(crate) verdict_wanted: bool,
    backoff: Span,
    /// Why the last connection ended.
    pub(crate) last: Option<Reason>,
}

impl Link {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            state: State::Down(now),
            queue: VecDeque::new(),
            posted: 0,
            used: now,
            turn: now,
            quiet: None,
            drain_by: None,
            makes_room: None,
            waits_for_place: false,
            fence_wanted: false,
            claimed: false,
            verdict_wanted: false,
            backoff: RECONNECT_MIN,
            last: None,
        }
    }

    /// Queues a part in its place.
    pub(crate) fn push(&mut self, sequence: u64, shard: ShardIndex, part: PartKey) {
        // Nearly always the newest: a new part goes to the end.
        let at = match self.queue.back() {
            Some(&(last, ..)) if last > sequence => self.queue.partition_point(|&(queued, ..)| queued < sequence),
            _ => self.queue.len(),
        };
        self.queue.insert(at, (sequence, shard, part));
    }

    /// The part behind so many others, and its shard.
    pub(crate) fn nth(&self, at: usize) -> Option<(ShardIndex, PartKey)> {
        self.queue.get(at).map(|&(_, shard, part)| (shard, part))
    }

    /// Takes one part out.
    pub(crate) fn remove(&mut self, sequence: u64) {
        if let Ok(at) = self.queue.binary_search_by_key(&sequence, |&(queued, ..)| queued) {
            self.queue.remove(at);
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Its connection, in whatever state.
    pub(crate) fn conn(&self) -> Option<ConnId> {
        match self.state {
            State::Down(_) => None,
            State::Opening(conn) | State::Up(conn) | State::Closing(conn) => Some(conn),
        }
    }

    /// Something needs a connection.
    pub(crate) fn wants_connection(&self) -> bool {
        !self.queue.is_empty() || self.fence_wanted || self.claimed || self.verdict_wanted
    }

    /// Something needs a connection, and one may be tried now.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        matches!(self.state, State::Down(until) if until <= now) && self.wants_connection()
    }

    /// The first part that waits: an older one has a smaller number.
    pub(crate) fn first_waits(&self) -> Option<u64> {
        self.queue.front().map(|&(sequence, ..)| sequence)
    }

    /// Whether its connection may make way for another link's, and if so who goes first: one that rests, for longest, or else one that has been
    /// there for longest.
    pub(crate) fn makes_way(&self) -> Option<(bool, Time)> {
        let is_busy = self.posted > 0 || !self.queue.is_empty();
        // What was waited for is sent first.
        let stays = self.fence_wanted || self.makes_room.is_some() || (is_busy && self.posted == 0);
        let goes = matches!(self.state, State::Up(_)) && !stays;
        goes.then_some((is_busy, if is_busy { self.turn } else { self.used }))
    }

    /// Its connection is there.
    pub(crate) fn up(&mut self, now: Time, conn: ConnId) {
        (self.state, self.turn, self.used) = (State::Up(conn), now, now);
        self.verdict_wanted = false;
    }

    /// Has it give its connection up as soon as nothing is posted, if that is soon.
    pub(crate) fn make_room(&mut self, now: Time) {
        (self.makes_room, self.turn) = (Some(now + ROOM_WAIT), now);
    }

    /// Nothing queued, posted or connected.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Down(_)) && self.queue.is_empty() && self.posted == 0
    }

    /// The connection is gone.
    pub(crate) fn down(&mut self, now: Time, reason: Reason) {
        self.state = State::Down(now + self.backoff);
        // Only an answer shows that a connection was worth making: a node that accepts and drops must not be hammered.
        self.backoff = Span(self.backoff.0.saturating_mul(2)).min(RECONNECT_MAX);
        self.last = Some(reason);
        (self.drain_by, self.makes_room) = (None, None);
    }

    /// The part behind so many others went out on the connection.
    pub(crate) fn post(&mut self, now: Time, at: usize) {
        self.queue.remove(at);
        self.posted += 1;
        self.used = now;
        self.quiet.get_or_insert(now);
    }

    /// What was posted is back; `answered`: by a sound answer.
    pub(crate) fn back(&mut self, now: Time, answered: bool) {
        self.posted -= 1;
        self.quiet = (self.posted > 0).then_some(now);
        if answered {
            self.backoff = RECONNECT_MIN;
        }
    }

    /// A shard moved away to whom it owes an answer: close the connection when it has been quiet for the grace.
    pub(crate) fn drain(&mut self, now: Time) {
        let by = self.quiet.unwrap_or(now) + MOVE_GRACE;
        self.drain_by.get_or_insert(by.max(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resend_goes_before_what_is_newer() {
        let mut link = Link::new(Time(0));
        for (sequence, part) in [(3, 30), (4, 40), (7, 70), (1, 10), (5, 50), (2, 20)] {
            link.push(sequence, ShardIndex(0), PartKey(part));
        }
        link.remove(4);
        let order: Vec<_> = (0..link.queued()).filter_map(|at| link.nth(at)).map(|(_, part)| part.0).collect();
        assert_eq!(order, [10, 20, 30, 50, 70]);
    }

    #[test]
    fn the_back_off_doubles_until_an_answer_comes() {
        let mut link = Link::new(Time(0));
        let waits: Vec<_> = (0..7)
            .map(|_| {
                link.down(Time(0), Reason::ConnectFailed);
                let State::Down(until) = link.state else { panic!() };
                until.0 / 1_000_000
            })
            .collect();
        assert_eq!(waits, [50, 100, 200, 400, 500, 500, 500]);
        link.push(1, ShardIndex(0), PartKey(1));
        link.post(Time(0), 0);
        link.back(Time(0), true);
        link.down(Time(0), Reason::Io);
        assert_eq!(link.state, State::Down(Time(0) + RECONNECT_MIN));
    }
}
