//! Where shards are served: what a map, or a node that is not the primary any more, tells of it, and when a fresh map is asked for.

use super::Engine;
use crate::iocb::{Part, PartKey, PartState, Pause, Request, Stage};
use crate::limits::{LOOK, MAP_MAX, MAP_MIN, MAP_QUIET, STALLED};
use crate::routes::Place;
use conductor_model::api::VolumeMap;
use conductor_model::{Commit, Epoch, ShardIndex};
use driver::{Span, Time};
use node_protocol::StaleBody;
use std::net::SocketAddr;

impl Engine {
    /// A node answered "stale epoch", with that in which it is the shard's primary: what waits for a newer one goes on. False if it is none.
    pub(super) fn learn(&mut self, now: Time, shard: ShardIndex, endpoint: SocketAddr, body: &[u8]) -> bool {
        let Some(known) = StaleBody::parse(body) else { return false };
        let place = Place { epoch: Epoch(known.epoch.get()), endpoint, cache: Commit(known.cache.get()) };
        if !self.routes.learn(shard, place) {
            return false;
        }
        self.counters.learned += 1;
        // A node that was away has all its shards in newer epochs: one map tells them at once, where there is a conductor.
        self.map_wanted = true;
        if let Some(unflushed) = &self.unflushed {
            unflushed.seen(shard, place.cache);
        }
        let its = |(key, part): (usize, &Part)| (part.shard == shard).then_some(PartKey(key));
        let keys = self.parts.iter().filter_map(its).collect();
        self.go_where_served(now, keys);
        true
    }

    /// A map arrived. False if it is not of this volume, or contradicts itself.
    pub(crate) fn map(&mut self, now: Time, map: &VolumeMap) -> bool {
        let known = self.routes.shards().count();
        let Ok(news) = self.routes.update(map) else {
            self.counters.bad_maps += 1;
            return false;
        };
        self.counters.maps += 1;
        self.counters.stale_entries += news.stale as u64;
        self.counters.shrinking_maps += u64::from(news.shrunk);
        if let Some(unflushed) = &self.unflushed {
            self.routes.shards().skip(known).for_each(|shard| unflushed.grown(shard));
        }
        if news.moved > 0 || news.grew {
            self.see_generations();
        }
        if news.moved > 0 {
            self.map_backoff = MAP_MIN;
            let keys = self.parts.iter().map(|(key, _)| PartKey(key)).collect();
            self.go_where_served(now, keys);
        }
        true
    }

    /// Shards are served elsewhere, or under newer epochs: of these parts, what waits for that goes on.
    pub(super) fn go_where_served(&mut self, now: Time, keys: Vec<PartKey>) {
        for key in keys {
            let part = &mut self.parts[key.0];
            let Some(place) = self.routes.place(part.shard) else { continue };
            match part.state {
                PartState::Queued(endpoint) if endpoint != place.endpoint => {
                    if let Some(link) = self.links.get_mut(&endpoint) {
                        link.remove(part.sequence);
                    }
                    self.enqueue(now, key);
                }
                PartState::Paused(until, why) if why != Pause::Pace && place.epoch > part.epoch => {
                    part.put_off = 0;
                    self.paused.remove(&(until, key));
                    self.enqueue(now, key);
                }
                // Not sent to the new endpoint while the old connection lives: never two of one part on live connections, so that no
                // answer comes late. The old primary answers (done, or stale epoch), or its connection is closed: at once, if it
                // has been quiet already.
                PartState::Posted(endpoint, _) if endpoint != place.endpoint => {
                    if let Some(link) = self.links.get_mut(&endpoint) {
                        link.drain(now);
                    }
                }
                _ => {}
            }
        }
    }

    /// When a fresh map is to be asked for: only while something waits.
    pub(super) fn map_due(&self) -> Option<Time> {
        let wanted = self.map_wanted && self.over.is_none() && (!self.requests.is_empty() || self.claims.is_due());
        wanted.then_some(self.map_not_before)
    }

    /// True if the outside should fetch a fresh map now; not more often than the back-off allows.
    pub(crate) fn wants_map(&mut self, now: Time) -> bool {
        if self.map_due().is_none_or(|at| now < at) {
            return false;
        }
        self.map_wanted = false;
        self.counters.maps_wanted += 1;
        if now > self.map_not_before + MAP_QUIET {
            self.map_backoff = MAP_MIN;
        }
        self.map_not_before = now + self.map_backoff;
        self.map_backoff = Span(self.map_backoff.0.saturating_mul(2)).min(MAP_MAX);
        true
    }

    /// Not while it waits for `Pace`: that is for no node to change.
    fn is_stalled(&self, now: Time, request: &Request) -> bool {
        let [submitted, sent] = [Stage::Submitted, Stage::Sent].map(|stage| request.stages.at[stage as usize]);
        let waits =
            |key: &PartKey| !matches!(self.parts[key.0].state, PartState::Done | PartState::Paused(_, Pause::Pace));
        sent.or(submitted).is_some_and(|since| since + STALLED <= now) && request.parts.iter().any(waits)
    }

    /// A request that waits for long has the map asked for: its shard may be served elsewhere by now.
    pub(super) fn look(&mut self, now: Time) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        self.map_wanted |= self.claims.is_due();
        self.map_wanted |= self.requests.iter().any(|(_, request)| self.is_stalled(now, request));
    }
}
