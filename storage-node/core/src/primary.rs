//! What a reactor knows about a shard that it is primary of.
//!
//! ```text
//!            own or a member's open id is not the one named
//!        ┌────────────────────────────────────────────────────┐
//!        ▼                                                    │
//!     Asking ──persisted: epoch + 1──► Joining ──all answered──► Settling ──all pieces durable everywhere──► Serving
//!        ▲                               │ (not born: ask Born)                                               │
//!        └───────────────────────────────┴──────────────── a member's process or store is another ◄──────────┘
//! ```
//!
//! Nothing is served before Serving. Requests that were stamped and not finished when an epoch ends keep their locks and are stamped
//! again in the next one, after it is settled.

use crate::lease::Lease;
use crate::range_lock::RangeLock;
use crate::window::Window;
use conductor_model::api::MembershipChange;
use conductor_model::{BlockRange, Configuration, CopyId, Member, OrderId, Sequence};
use driver::Time;
use node_protocol::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Where a primary stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Waits for the conductor to persist this change.
    Asking(MembershipChange),
    /// Collects the answers of all members.
    Joining,
    /// Makes the copies equal for what was in flight.
    Settling(Settling),
    /// Serves.
    Serving,
    /// Its own disk failed: it answers nothing (rule 15).
    Failed(String),
}

/// What is left to settle.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// Pieces not started, last first.
    pub(crate) left: Vec<BlockRange>,
    /// IOCBs under way.
    pub(crate) running: BTreeSet<usize>,
}

/// What one member said when it joined.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) held: Vec<BlockRange>,
}

/// How the Join of one other member stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JoinState {
    /// Not sent on the present connection.
    Unsent,
    /// Sent, unanswered.
    Sent,
    /// Refused for now, to be sent again then.
    Again(Time),
    /// Answered.
    Joined,
}

/// One shard, as its primary sees it.
#[derive(Debug)]
pub(crate) struct Primary {
    pub(crate) config: Configuration,
    pub(crate) phase: Phase,
    /// When the conductor was asked last.
    pub(crate) asked: Time,
    pub(crate) window: Window,
    /// True once this epoch is settled: only then does K enter it (rule 3).
    pub(crate) settled: bool,
    pub(crate) locks: RangeLock,
    /// IOCBs of this shard, by arrival.
    pub(crate) requests: BTreeMap<u64, usize>,
    /// Of those, the ones that wait for something other than their lock.
    pub(crate) stalled: BTreeMap<u64, usize>,
    pub(crate) answers: BTreeMap<CopyId, Joined>,
    pub(crate) joins: BTreeMap<CopyId, JoinState>,
    /// Copies that refused their last write of this epoch although they are reached, and how: writes wait for them.
    pub(crate) refusing: BTreeMap<CopyId, Status>,
    pub(crate) lease: Lease,
    /// Links that this shard counts as a user of.
    pub(crate) links: Vec<SocketAddr>,
    /// Everything up to here is durable on every copy: K under durability=flush (rule 18).
    pub(crate) synced: Sequence,
    /// A sync of its own is on its way.
    pub(crate) syncing: bool,
    /// Barriers that were placed, and until when at the latest nothing is acknowledged for their sake (rule 17).
    pub(crate) holds: BTreeMap<OrderId, Time>,
    /// Why members refused to join, as they said it last.
    pub(crate) refusals: BTreeMap<CopyId, String>,
    /// Since when no write found room on every copy.
    pub(crate) short_since: Option<Time>,
}

impl Primary {
    pub(crate) fn new(config: Configuration) -> Self {
        Self {
            config,
            phase: Phase::Joining,
            asked: Time::default(),
            window: Window::default(),
            settled: false,
            locks: RangeLock::default(),
            requests: BTreeMap::new(),
            stalled: BTreeMap::new(),
            answers: BTreeMap::new(),
            joins: BTreeMap::new(),
            refusing: BTreeMap::new(),
            lease: Lease::default(),
            links: Vec::new(),
            synced: Sequence(0),
            syncing: false,
            holds: BTreeMap::new(),
            refusals: BTreeMap::new(),
            short_since: None,
        }
    }

    /// Takes up a newer configuration: everything of the old epoch but its requests and their locks is forgotten.
    pub(crate) fn enter(&mut self, config: Configuration) {
        self.config = config;
        self.phase = Phase::Joining;
        self.window = Window::default();
        self.settled = false;
        self.answers.clear();
        self.joins.clear();
        self.refusing.clear();
        self.lease = Lease::default();
        self.synced = Sequence(0);
        self.syncing = false;
        self.refusals.clear();
    }

    /// The members beside the primary's own copy.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Member> {
        self.config.members.iter().filter(|m| m.copy != self.config.primary)
    }

    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving)
    }

    /// K, once it has entered this epoch: of a flush volume only what is synced (rule 18).
    pub(crate) fn known_good(&self) -> Option<Sequence> {
        let finished = || if self.config.durability.is_always() { self.window.prefix() } else { self.synced };
        self.settled.then(finished)
    }

    /// F: what is finished everywhere is never sent again.
    pub(crate) fn floor(&self) -> Sequence {
        self.window.prefix()
    }

    /// The union of what the copies hold above K, cut into pieces of at most `piece` blocks, highest first.
    pub(crate) fn union(&self, piece: u32) -> Vec<BlockRange> {
        let mut ranges: Vec<(u64, u64)> =
            self.answers.values().flat_map(|a| &a.held).map(|r| (u64::from(r.from.0), r.end())).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in ranges {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        let mut pieces = Vec::new();
        for (from, to) in merged {
            let mut at = from;
            while at < to {
                let count = u64::from(piece).min(to - at);
                pieces.push(block_range(at, count));
                at += count;
            }
        }
        pieces.reverse();
        pieces
    }
}

/// Both numbers lie within a shard, whose size fits 32 bits of blocks: checked when a Join's answer was taken.
fn block_range(from: u64, count: u64) -> BlockRange {
    use conductor_model::Blocks;
    let fit = |n: u64| Blocks(u32::try_from(n).unwrap_or(u32::MAX));
    BlockRange { from: fit(from), count: fit(count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::Blocks;
    use conductor_model::{AttachGeneration, Bytes, Epoch, ShardId};

    fn range(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }

    #[test]
    fn the_union_covers_every_answer_once_in_pieces() {
        let mut primary = Primary::new(Configuration {
            shard: ShardId::default(),
            epoch: Epoch(1),
            primary: CopyId(1),
            members: Vec::new(),
            full_set: Vec::new(),
            min_copies: 2,
            attach: AttachGeneration(0),
            size: Bytes(1 << 30),
            born: true,
            durability: conductor_model::Durability::Always,
            parent: None,
        });
        primary.answers.insert(CopyId(1), Joined { held: vec![range(0, 3), range(10, 5)] });
        primary.answers.insert(CopyId(2), Joined { held: vec![range(2, 4), range(14, 1), range(20, 1)] });
        let mut pieces = primary.union(4);
        pieces.reverse();
        assert_eq!(pieces, [range(0, 4), range(4, 2), range(10, 4), range(14, 1), range(20, 1)]);
    }
}
