//! Ranges of one shard that clients hold who share its volume: for reading beside other readers, or for writing alone.
//!
//! ```text
//!   asked ──nothing of another session in the way──────────────► held ──given back, or the session has ended──► gone
//!     │                                                           ▲
//!     ├──something is, and it waits──► waiting, in order of arrival┘──its time is over──► "range taken"
//!     └──something is, and it does not wait──► "range taken"
//! ```
//!
//! Promises: held ranges of two sessions never conflict; nobody who waits is overtaken by whoever came later and conflicts with him; a
//! session is in its own way never. What is held belongs to the session and goes with it, what waits to the connection that it came on.
//! It is not the write-order lock (`range_lock`), which belongs to one request: a range is held for as long as its client likes.
//!
//! A primary that follows another one knows of no ranges. For a while after it has begun to serve it gives them only to those who
//! say that they have held them: others would take what is held still. Never reads a clock.

use crate::limits::{MAX_RANGES, MAX_RANGES_HERE, RANGE_GRACE};
use crate::range_lock::Mode;
use conductor_model::BlockRange;
use driver::{ConnId, Time};
use node_protocol::Status;

/// What a session wants to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) session: u32,
    pub(crate) conn: ConnId,
    pub(crate) range: BlockRange,
    pub(crate) mode: Mode,
    /// How long it waits for it, if it does.
    pub(crate) until: Option<Time>,
    /// The session may have another one.
    pub(crate) room: bool,
    /// It has held it at a primary before this one, or on an earlier connection. Such a wish never waits.
    pub(crate) again: bool,
}

#[derive(Debug)]
struct Entry<W> {
    wish: Wish,
    /// Who is to be told, and until when it waits; `None`: it is held.
    waits: Option<(W, Time)>,
}

impl<W> Entry<W> {
    fn conflicts(&self, wish: &Wish) -> bool {
        let alone = self.wish.mode == Mode::Exclusive || wish.mode == Mode::Exclusive;
        alone && self.wish.session != wish.session && self.wish.range.overlaps(wish.range)
    }
}

/// What became of a wish at once.
#[derive(Debug)]
pub(crate) enum Asked<W> {
    /// It is over, with this.
    Said(W, Status),
    /// It waits: `take_decided` names it later.
    Waits,
}

/// Of a shard: what is held, and who waits, in order of arrival.
#[derive(Debug)]
pub(crate) struct Ranges<W> {
    entries: Vec<Entry<W>>,
    /// Others were primary before.
    follows: bool,
    /// From then on ranges are given to those who have not held them.
    open_from: Option<Time>,
}

impl<W> Ranges<W> {
    /// Of a primary that does not serve yet.
    pub(crate) fn new(follows: bool) -> Self {
        Self { entries: Vec::new(), follows, open_from: None }
    }

    /// The primary serves: the grace for those who held ranges at the one before begins, the first time.
    pub(crate) fn serves(&mut self, now: Time) {
        let from = if self.follows { now + RANGE_GRACE } else { now };
        self.open_from.get_or_insert(from);
    }

    fn is_open(&self, now: Time) -> bool {
        self.open_from.is_some_and(|from| from <= now)
    }

    /// A session wants to hold a range.
    pub(crate) fn ask(&mut self, now: Time, wish: Wish, waiter: W) -> Asked<W> {
        let same =
            |e: &Entry<W>| e.wish.session == wish.session && e.wish.range == wish.range && e.wish.mode == wish.mode;
        if self.entries.iter().any(|e| e.waits.is_none() && same(e)) {
            return Asked::Said(waiter, Status::Ok);
        }
        // Who waits while ranges are given back to those who held them has to wait for these, too, and takes no room from them; what they
        // had when it was more than there is room for now, at a reactor that has to do with more of their shards, is theirs still.
        let before = wish.again && !self.is_open(now);
        let counted = || self.entries.iter().filter(|e| e.waits.is_none() || !before);
        let its = counted().filter(|e| e.wish.session == wish.session).count();
        if its >= MAX_RANGES_HERE || counted().count() >= MAX_RANGES || !(wish.room || before) {
            return Asked::Said(waiter, Status::TooMany);
        }
        let taken = self.entries.iter().any(|e| (e.waits.is_none() || !before) && e.conflicts(&wish));
        let now_or_never = !taken && (wish.again || self.is_open(now));
        match wish.until.filter(|_| !wish.again) {
            _ if now_or_never => {
                self.entries.push(Entry { wish, waits: None });
                Asked::Said(waiter, Status::Ok)
            }
            Some(until) => {
                self.entries.push(Entry { wish, waits: Some((waiter, until)) });
                Asked::Waits
            }
            None if taken => Asked::Said(waiter, Status::RangeTaken),
            None => Asked::Said(waiter, Status::Later),
        }
    }

    /// A session asks again for what it waits for: who has waited until now, which is to be told that this is over.
    pub(crate) fn asks_anew(&mut self, wish: &Wish) -> impl Iterator<Item = W> {
        let its = |e: &Wish| (e.session, e.range, e.mode) == (wish.session, wish.range, wish.mode);
        let gone: Vec<Entry<W>> = self.entries.extract_if(.., |e| e.waits.is_some() && its(&e.wish)).collect();
        gone.into_iter().filter_map(|e| e.waits).map(|(waiter, _)| waiter)
    }

    /// A session gives a range back, or does not want it any more: who waits for it, which is to be told. One that it does not hold is as
    /// good as given back.
    pub(crate) fn give_back(&mut self, session: u32, range: BlockRange, mode: Mode) -> impl Iterator<Item = W> {
        let its = |e: &mut Entry<W>| (e.wish.session, e.wish.range, e.wish.mode) == (session, range, mode);
        let gone: Vec<Entry<W>> = self.entries.extract_if(.., its).collect();
        gone.into_iter().filter_map(|e| e.waits).map(|(waiter, _)| waiter)
    }

    /// Sessions have ended, or connections. Whoever waits on one that is gone is not told.
    pub(crate) fn only(&mut self, sessions: impl Fn(u32) -> bool, conns: impl Fn(ConnId) -> bool) {
        self.entries.retain(|e| sessions(e.wish.session) && (e.waits.is_none() || conns(e.wish.conn)));
    }

    /// Those who have waited and hold theirs from now on, if there `may` be such, or have waited long enough. In order of arrival.
    pub(crate) fn take_decided(&mut self, now: Time, may: bool) -> Vec<(W, Status)> {
        let mut told = Vec::new();
        let mut at = 0;
        while at < self.entries.len() {
            if self.entries[at].waits.is_none() {
                at += 1;
                continue;
            }
            let free = may && self.is_open(now) && !self.is_behind(at);
            let entry = &mut self.entries[at];
            match entry.waits.take_if(|(_, until)| free || *until <= now) {
                Some((waiter, _)) if free => told.push((waiter, Status::Ok)),
                Some((waiter, _)) => {
                    told.push((waiter, Status::RangeTaken));
                    self.entries.remove(at);
                    continue;
                }
                None => {}
            }
            at += 1;
        }
        told
    }

    /// Whether another one is in the way of this entry: what is held, and who came earlier.
    fn is_behind(&self, at: usize) -> bool {
        let wish = self.entries[at].wish;
        self.entries.iter().enumerate().any(|(n, e)| (n < at || e.waits.is_none()) && e.conflicts(&wish))
    }

    /// Whether the session holds all of this range for writing, in however many pieces.
    pub(crate) fn may_write(&self, session: u32, range: BlockRange) -> bool {
        let mut next = u64::from(range.from.0);
        let held = |e: &&Entry<W>| e.waits.is_none() && e.wish.session == session && e.wish.mode == Mode::Exclusive;
        while next < range.end() {
            let here = |e: &&Entry<W>| u64::from(e.wish.range.from.0) <= next && next < e.wish.range.end();
            match self.entries.iter().filter(held).filter(here).map(|e| e.wish.range.end()).max() {
                Some(end) => next = end,
                None => return false,
            }
        }
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether anybody waits.
    pub(crate) fn has_waiting(&self) -> bool {
        self.entries.iter().any(|e| e.waits.is_some())
    }

    /// How many a session has here, waiting ones included.
    pub(crate) fn of(&self, session: u32) -> usize {
        self.entries.iter().filter(|e| e.wish.session == session).count()
    }

    /// All of them, and whether each is held.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Wish, bool)> {
        self.entries.iter().map(|e| (e.wish, e.waits.is_none()))
    }

    /// The shard has another primary: everybody who waits.
    pub(crate) fn into_waiting(self) -> impl Iterator<Item = W> {
        self.entries.into_iter().filter_map(|e| e.waits).map(|(waiter, _)| waiter)
    }
}

#[cfg(test)]
mod tests;
