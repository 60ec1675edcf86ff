//! What a target tells about itself: copied out of the machine, sent over the control socket as one JSON object.

use conductor_model::ShardId;
use driver::Address;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use volume_client::{ShardWait, Stage, Stages, View, WayView};

/// One look inside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetView {
    /// The volume's size in bytes, as far as this target knows.
    pub size: u64,
    /// A newer attachment of the volume exists; nothing is served any more.
    pub fenced: bool,
    /// Requests in flight.
    pub requests: usize,
    /// Shards for which something waits, and why.
    pub waiting: Vec<WaitView>,
    /// The way to each endpoint.
    pub links: Vec<LinkView>,
    /// Clients of the NBD server.
    pub sessions: Vec<SessionView>,
    /// Live objects and who holds them, one line each.
    pub refs: Vec<String>,
    /// What happened so far.
    pub counters: BTreeMap<String, u64>,
    /// Stages of requests that finished lately, oldest first.
    pub traces: Vec<TraceView>,
    /// Bytes of the arena in use.
    pub arena_in_use: usize,
    /// Bytes of the arena.
    pub arena_bytes: usize,
}

/// A shard that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitView {
    /// Which: `v1/0`.
    pub shard: String,
    /// Parts of requests that wait.
    pub parts: usize,
    /// For how long the oldest has.
    pub longest_ms: u64,
    /// Why the oldest does: one sentence.
    pub reason: String,
}

/// The way to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// Where.
    pub endpoint: String,
    /// `up`, or what else.
    pub state: String,
    /// What its connection goes over: `tcp` or `rdma`; `tcp` if there is none.
    #[serde(default)]
    pub transport: String,
    /// The same with the address: `tcp:IP:PORT` or `rdma:IP:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// The ways there, best first, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<WayView>,
    /// Parts that wait for a connection or a credit.
    pub queued: usize,
    /// Parts that wait for their answer.
    pub posted: usize,
}

/// One client of the NBD server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its name in `refs`.
    pub conn: String,
    /// What it is doing.
    pub state: String,
    /// For how long it has been connected.
    pub seconds: u64,
    /// Commands received and not answered.
    pub commands: usize,
    /// Bytes of them in memory.
    pub bytes: u64,
}

/// The stages of one finished request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceView {
    /// The sequence of its first part, by which the node's stages of the same request are found.
    pub sequence: u64,
    /// Its op on the wire.
    pub op: u8,
    /// First byte in the volume.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Stages it passed, in order, with CLOCK_BOOTTIME in nanoseconds.
    pub stages: Vec<(String, u64)>,
}

impl TargetView {
    /// What the volume clients of all lanes say.
    pub(crate) fn of(lanes: &[View]) -> Self {
        let link = |link: &volume_client::LinkView| LinkView {
            endpoint: link.endpoint.to_string(),
            state: link.state.clone(),
            transport: if matches!(link.over, Some(Address::Rdma(_))) { "rdma" } else { "tcp" }.to_owned(),
            over: link.over.as_ref().map(ToString::to_string),
            ways: link.ways.clone(),
            queued: link.queued,
            posted: link.posted,
        };
        let trace = |trace: &Stages| TraceView {
            sequence: trace.sequence,
            op: trace.op,
            offset: trace.offset.0,
            len: trace.len.0,
            stages: Stage::ALL
                .iter()
                .filter_map(|(stage, name)| Some(((*name).to_owned(), trace.at[*stage as usize]?.0)))
                .collect(),
        };
        let mut view = Self {
            size: lanes.iter().map(|lane| lane.size.0).max().unwrap_or(0),
            fenced: lanes.iter().any(|lane| lane.fenced),
            requests: lanes.iter().map(|lane| lane.requests).sum(),
            waiting: waiting(lanes.iter().flat_map(|lane| &lane.waiting)),
            links: lanes.iter().flat_map(|lane| lane.links.iter().map(link)).collect(),
            sessions: Vec::new(),
            refs: lanes.iter().flat_map(|lane| lane.refs.iter().cloned()).collect(),
            counters: BTreeMap::new(),
            traces: lanes.iter().flat_map(|lane| lane.traces.iter().map(trace)).collect(),
            arena_in_use: 0,
            arena_bytes: 0,
        };
        for (name, value) in lanes.iter().flat_map(|lane| &lane.counters) {
            view.count(name, *value);
        }
        view
    }

    /// Adds to a counter.
    pub(crate) fn count(&mut self, name: &str, value: u64) {
        *self.counters.entry(name.to_owned()).or_default() += value;
    }

    /// Adds what a reactor did so far.
    pub(crate) fn add_reactor(&mut self, counters: &reactor::Counters) {
        for (name, value) in counters.named() {
            self.count(name, value);
        }
    }
}

/// Each shard once, however many lanes have something that waits for it; the oldest says why.
fn waiting<'a>(of_lanes: impl Iterator<Item = &'a ShardWait>) -> Vec<WaitView> {
    let mut shards: BTreeMap<ShardId, WaitView> = BTreeMap::new();
    for ShardWait { shard, parts, longest, reason } in of_lanes {
        let longest_ms = longest.as_millis();
        let nothing = || WaitView { shard: shard.to_string(), parts: 0, longest_ms: 0, reason: reason.clone() };
        let of = shards.entry(*shard).or_insert_with(nothing);
        of.parts += parts;
        if longest_ms > of.longest_ms {
            (of.longest_ms, of.reason) = (longest_ms, reason.clone());
        }
    }
    shards.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{ShardIndex, VolumeId};
    use driver::Span;

    #[test]
    fn a_shard_that_several_lanes_wait_for_is_told_once_with_its_oldest_reason() {
        let shard = |index| ShardId { volume: VolumeId(1), index: ShardIndex(index) };
        let wait = |index, seconds, reason: &str| ShardWait {
            shard: shard(index),
            parts: 2,
            longest: Span::seconds(seconds),
            reason: reason.to_owned(),
        };
        let waits = [wait(3, 1, "new"), wait(0, 1, "other"), wait(3, 5, "old"), wait(3, 2, "newer")];
        let told = |wait: WaitView| (wait.shard, wait.parts, wait.longest_ms, wait.reason);
        let seen: Vec<_> = waiting(waits.iter()).into_iter().map(told).collect();
        let whole = |index, parts, ms, reason: &str| (shard(index).to_string(), parts, ms, reason.to_owned());
        assert_eq!(seen, [whole(0, 2, 1000, "other"), whole(3, 6, 5000, "old")]);
    }
}
