//! Ends requests that cannot be answered, without leaving anything behind that could still take effect.
//!
//! Why a failed request waits (`Twin`). An error handed up while the node may still hold an unstamped twin could let that twin take
//! effect *after* a later request of the same client on another lane was acknowledged. So a failed request is handed up only when each
//! part that was lost with a connection is fenced everywhere it was lost: the node acknowledged a new connection, or is gone, or the
//! shard was served under a newer epoch (`Routes::is_past`); what is stamped then is ordered before all that follows, and the request
//! did or did not take effect, like any disk's failed write. A newer map alone fences nothing: the old primary serves until its copies
//! have left its epoch. If no fence can be had within `FENCE_GRACE` (the node cannot be reached), the request is handed up nevertheless
//! and counted as `unfenced`: bytes of the closed connection that the network still holds could then be executed late, but only by a
//! node that nobody of this lane has talked to since; and the other lanes send nothing there meanwhile that touches these blocks (`Unfenced`).

use super::{Engine, Network, close};
use crate::iocb::{Failure, Part, PartState, Request, RequestKey};
use crate::limits::FENCE_GRACE;
use crate::link::Link;
use crate::request::BlockError;
use crate::unfenced::Unfenced;
use conductor_model::{BlockRange, Bytes};
use driver::Time;
use smallvec::SmallVec;
use wire::Reason;

impl Engine {
    /// Fails a request: what was not sent never will be, what is posted is waited for, what was lost is to be fenced.
    pub(super) fn fail(&mut self, now: Time, request: RequestKey, error: BlockError) {
        if self.requests[request.0].failed.is_some() {
            return;
        }
        self.requests[request.0].failed = Some(Failure { error, fencing_since: now });
        self.failing.insert(request);
        for at in 0..self.requests[request.0].parts.len() {
            let key = self.requests[request.0].parts[at];
            let part = &mut self.parts[key.0];
            match part.state {
                PartState::Queued(endpoint) => {
                    if let Some(link) = self.links.get_mut(&endpoint) {
                        link.remove(part.sequence);
                    }
                }
                PartState::Paused(until, _) => {
                    self.paused.remove(&(until, key));
                }
                PartState::Posted(..) | PartState::Twin | PartState::Done => continue,
            }
            if !part.lost.is_empty() {
                part.state = PartState::Twin;
            } else {
                part.state = PartState::Done;
                self.part_done(request);
            }
        }
    }

    /// Fails the requests by these tags that nobody waits for any more, unless they change something: what was asked for is done, whoever
    /// asked for it. What is not sent is over at once; what is, with its answer.
    pub(crate) fn withdraw(&mut self, now: Time, tags: &[u64]) {
        let lost =
            |request: &Request| request.failed.is_none() && !request.kind.is_change() && tags.contains(&request.tag);
        let requests: Vec<RequestKey> =
            self.requests.iter().filter(|(_, request)| lost(request)).map(|(key, _)| RequestKey(key)).collect();
        for request in requests {
            self.counters.withdrawn += 1;
            self.fail(now, request, BlockError::Stopped);
            self.release_if_done(request);
        }
    }

    /// Gives the front end's hold back, and so the request to the reaper, once every part is done: a failed request's posted parts may
    /// yet be lost, and then have to be fenced.
    pub(super) fn release_if_done(&mut self, request: RequestKey) {
        let request = &mut self.requests[request.0];
        if request.open == 0 {
            request.front_end = None;
        }
    }

    /// Twins that are fenced, or that were waited for long enough.
    pub(super) fn resolve_twins(&mut self, now: Time) {
        for link in self.links.values_mut() {
            link.fence_wanted = false;
        }
        self.unfenced.sweep(|shard, lost| self.routes.is_past(shard, lost));
        let failing: SmallVec<[RequestKey; 8]> = self.failing.iter().copied().collect();
        for request in failing {
            let Some(Failure { fencing_since, .. }) = self.requests[request.0].failed else { continue };
            let mut given_up = false;
            for at in 0..self.requests[request.0].parts.len() {
                let part = &mut self.parts[self.requests[request.0].parts[at].0];
                if !matches!(part.state, PartState::Twin) {
                    continue;
                }
                // A HelloAck of the node took its entry out already: `up`.
                part.lost.retain(|lost| !self.routes.is_past(part.shard, *lost));
                if part.lost.is_empty() || self.over.is_some() || now >= fencing_since + FENCE_GRACE {
                    if self.over.is_none() && !part.lost.is_empty() {
                        given_up = true;
                        leave(&self.unfenced, self.settings.lane, part);
                    }
                    part.state = PartState::Done;
                    self.requests[request.0].open -= 1;
                    continue;
                }
                for lost in &part.lost {
                    // Its link may have gone when the shard moved.
                    self.links.entry(lost.endpoint).or_insert_with(|| Link::new(now)).fence_wanted = true;
                }
            }
            self.counters.unfenced += u64::from(given_up);
            self.release_if_done(request);
        }
        // Behind those that were given up just now: others wait for it.
        for endpoint in self.unfenced.endpoints(self.settings.lane) {
            self.links.entry(endpoint).or_insert_with(|| Link::new(now)).fence_wanted = true;
        }
    }

    /// Fails everything in flight and closes every connection.
    pub(crate) fn end(&mut self, now: Time, error: BlockError, net: &mut dyn Network) {
        self.over.get_or_insert(error);
        let all: Vec<RequestKey> = self.requests.iter().map(|(key, _)| RequestKey(key)).collect();
        for request in all {
            self.fail(now, request, error);
            self.release_if_done(request);
        }
        for link in self.links.values_mut() {
            link.verdict_wanted = false;
            close(link, Reason::Closed, net);
        }
    }

    /// `--io-timeout` struck: the connections that carry the request are closed, and it fails once they are gone and fenced.
    pub(super) fn time_out(&mut self, now: Time, request: RequestKey, net: &mut dyn Network) {
        self.counters.timed_out += u64::from(self.requests[request.0].failed.is_none());
        for &key in &self.requests[request.0].parts {
            if let PartState::Posted(endpoint, _) = &self.parts[key.0].state
                && let Some(link) = self.links.get_mut(endpoint)
            {
                close(link, Reason::RequestTimeout, net);
            }
        }
        self.fail(now, request, BlockError::TimedOut);
        self.release_if_done(request);
    }
}

/// A failed part's node may still execute it: what it changes then is held up on all lanes.
fn leave(unfenced: &Unfenced, lane: u16, part: &Part) {
    let blocks = BlockRange::covering(part.offset, Bytes(part.len.into()));
    let Some(blocks) = blocks.filter(|_| part.action.is_change()) else { return };
    for lost in &part.lost {
        unfenced.leave(lane, part.shard, blocks, *lost);
    }
}
