//! A look inside one lane, for `trine attached`, `trine status` and tests. All of it is a copy.

use crate::iocb::Stages;
use conductor_model::{Bytes, ShardId, VolumeId};
use driver::{Address, Span};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tcp::WayView;

/// One lane.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// The volume.
    pub volume: VolumeId,
    /// Its size, as far as this lane knows.
    pub size: Bytes,
    /// A newer attachment exists; nothing is served any more.
    pub fenced: bool,
    /// Requests in flight.
    pub requests: usize,
    /// One per endpoint in use.
    pub links: Vec<LinkView>,
    /// Shards for which something has been waiting for a while, and why.
    pub waiting: Vec<ShardWait>,
    /// Live objects and the holds that keep them, one line each (`client-iocb 3: 1 front end + 1 command + 1 reply`).
    pub refs: Vec<String>,
    /// Counters by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// The stages of requests that finished lately, oldest first.
    pub traces: Vec<Stages>,
}

/// The way to one endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Where.
    pub endpoint: SocketAddr,
    /// `up`, `connecting`, `closing`, or `down: why`.
    pub state: String,
    /// What its connection goes over.
    pub over: Option<Address>,
    /// The ways there, if there are several.
    pub ways: Vec<WayView>,
    /// Parts that wait for a connection or a credit.
    pub queued: usize,
    /// Parts that wait for their answer.
    pub posted: usize,
}

/// A shard that does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardWait {
    /// Which.
    pub shard: ShardId,
    /// Parts that wait.
    pub parts: usize,
    /// For how long the oldest has.
    pub longest: Span,
    /// Why the oldest does: one sentence.
    pub reason: String,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened so far. Plain numbers; they only grow.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// By name.
            pub fn named(&self) -> BTreeMap<&'static str, u64> {
                BTreeMap::from([$((stringify!($name), self.$name),)*])
            }
        }
    };
}

counters! {
    /// Requests taken.
    submitted,
    /// Requests handed back because there were too many, or no memory.
    refused_full,
    /// Requests that succeeded.
    completed,
    /// Connections that were closed because there is a better way.
    made_room,
    /// Requests that failed.
    failed,
    /// Parts posted for the first time.
    sent,
    /// Flushes of a shard that an earlier one has covered.
    covered,
    /// Requests that were given up because nobody waited for them any more.
    withdrawn,
    /// Parts posted again after their connection was lost, or a "stale epoch" or "later".
    resent,
    /// Parts given back unanswered.
    lost,
    /// Answers "stale epoch".
    stale_epochs,
    /// Epochs that a shard's primary told, and no map.
    learned,
    /// Answers "later".
    laters,
    /// Times that a connection had no credit for what was queued.
    no_credit,
    /// Answers that make no sense; their connection was closed.
    bad_replies,
    /// Events that belong to nothing (any more).
    stray_events,
    /// Pieces of ranges of a shared volume that were asked for.
    claims_asked,
    /// Pieces that somebody else has.
    claims_lost,
    /// Connections tried.
    connects,
    /// Connections established.
    ups,
    /// Connections ended.
    downs,
    /// Connections closed because a shard moved away and its answers did not come.
    drained,
    /// Times that a map was asked for.
    maps_wanted,
    /// Maps taken.
    maps,
    /// Maps refused as damaged.
    bad_maps,
    /// Entries of maps that were older than what was known.
    stale_entries,
    /// Maps that would have shrunk the volume.
    shrinking_maps,
    /// Requests that failed by `--io-timeout`.
    timed_out,
    /// Flushes that failed because of what was acknowledged before them and may be lost (rule 18).
    losses_told,
    /// Failed requests handed up after `FENCE_GRACE` without proof that no twin is left.
    unfenced,
}
