//! What a reactor knows about a shard that it is primary of.
//!
//! ```text
//!            own or a member's open id is not the one named
//!        ┌────────────────────────────────────────────────────┐
//!        ▼                                                    │
//!     Asking ──persisted: epoch + 1──► Joining ──all answered──► Settling ──all pieces durable everywhere──► Serving
//!        ▲                               │ (not born: ask Born)                                               │
//!        └───────────────────────────────┴──────────────── a member's process or store is another ◄──────────┘
//!                                     Joining ──all answered, too few in sync──► Sealed
//!                                     any ──its own disk fails or hangs, or does not join──► Failed ──it hung, and is quiet──► Joining (or Asking)
//! ```
//!
//! What the primary wants changed while it goes on (a failed copy dropped, an absent one filled, a filled one added) is its *wish*: asked
//! for beside all this, and taken up when it is granted, like any newer configuration.
//!
//! Nothing is served before Serving. Requests that were stamped and not finished when an epoch ends keep their locks and are stamped
//! again in the next one, after it is settled.

use crate::filling::Filling;
use crate::iocbs::IocbKey;
use crate::lease::Lease;
use crate::limits::{FILL_TURN, UNLISTED};
use crate::range_lock::RangeLock;
use crate::ranges::Ranges;
use crate::window::{Prefix, Window};
use conductor_model::api::MembershipChange;
use conductor_model::{
    BlockRange, Blocks, Configuration, CopyId, CopyState, Epoch, Member, NodeId, OrderId, Sequence, Stamp,
};
use driver::{Span, Time};
use node_protocol::Status;
use node_store::View;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tcp::Answer;

/// Where a primary stands.
#[derive(Debug)]
pub(crate) enum PrimaryPhase {
    /// Waits for the conductor to persist this change.
    Asking(MembershipChange),
    /// Collects the answers of all members.
    Joining,
    /// Makes the copies equal for what was in flight.
    Settling(Settling),
    /// Serves.
    Serving,
    /// Too few copies are in sync: nothing is stamped, and read only under the conductor's word. A copy may be filled, which is the way out
    /// (rule 11).
    Sealed,
    /// Its own copy failed, hangs or does not join: it asks to be relieved and answers nothing (rule 15), or EIO where nobody can
    /// follow (`node::lost`).
    Failed { why: String, by: FailedBy },
}

/// How a primary's own copy came to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailedBy {
    /// Its disk gave an error, or it cannot join.
    Breaking,
    /// It only takes too long: it goes on if its disk comes back before it is relieved.
    Hanging,
}

/// What is left to settle.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// Pieces not started, last first.
    pub(crate) left: Vec<BlockRange>,
    /// Pieces that could not go on: for the next tick. A store may say at once, and again and again, that it has not what is read.
    pub(crate) later: Vec<BlockRange>,
    /// IOCBs under way.
    pub(crate) running: BTreeSet<IocbKey>,
    /// Where the content of what is not settled with the own comes from: by first block, up to which block, whose.
    pub(crate) sources: BTreeMap<u32, (u64, CopyId)>,
    /// Of these, blocks that their source cannot read: the own content has to do.
    pub(crate) unreadable: BTreeSet<u32>,
}

impl Settling {
    /// Whose content a piece is settled with, if not the own.
    pub(crate) fn source(&self, at: BlockRange) -> Option<CopyId> {
        let (_, (end, copy)) = self.sources.range(..=at.from.0).next_back()?;
        (u64::from(at.from.0) < *end && !self.unreadable.contains(&at.from.0)).then_some(*copy)
    }
}

/// What one member said when it joined.
#[derive(Debug)]
pub(crate) struct Joined {
    /// What it holds above K.
    pub(crate) held: Vec<(BlockRange, Stamp)>,
    /// Its K, whose epoch was settled.
    pub(crate) known_good: Stamp,
    /// The newest change that it knows of.
    pub(crate) newest: Stamp,
    /// The epoch whose configuration was on its disk before this one.
    pub(crate) stored: Epoch,
}

/// What a primary knows of the epochs that it had before.
#[derive(Debug)]
pub(crate) struct History {
    /// The newest epoch that was settled here.
    pub(crate) settled: Epoch,
    /// The first epoch that was begun here since one was settled here.
    unsettled_from: Epoch,
    /// What copies had on their disks before that one was begun. Each stores the epochs that it joins, also while none comes to be settled.
    stored: BTreeMap<CopyId, Epoch>,
    /// Up to here everything was finished on all copies of that epoch, and is durable there.
    finished: Stamp,
}

impl History {
    fn new(first: Epoch) -> Self {
        Self { settled: Epoch(0), unsettled_from: first, stored: BTreeMap::new(), finished: Stamp::default() }
    }

    /// `left` is over, in which everything was finished up to `finished`, as far as that is known.
    fn goes_on(&mut self, left: Epoch, finished: Option<Stamp>, next: &Configuration) {
        self.finished = finished.unwrap_or(self.finished);
        if self.settled == left {
            self.unsettled_from = next.epoch;
            self.stored.clear();
        }
        self.stored.retain(|copy, _| next.member(*copy).is_some_and(|m| m.state == CopyState::InSync));
    }
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
    pub(crate) phase: PrimaryPhase,
    /// When the conductor was asked last.
    pub(crate) asked: Time,
    pub(crate) window: Window,
    /// True once this epoch is settled: only then does K enter it (rule 3).
    pub(crate) settled: bool,
    pub(crate) locks: RangeLock,
    /// What clients hold who share the volume: under this primary, in whatever epoch.
    pub(crate) ranges: Ranges<Answer>,
    /// IOCBs of this shard, by arrival.
    pub(crate) requests: BTreeMap<u64, IocbKey>,
    /// Of those, the ones that wait for something other than their lock.
    pub(crate) stalled: BTreeMap<u64, IocbKey>,
    pub(crate) answers: BTreeMap<CopyId, Joined>,
    pub(crate) joins: BTreeMap<CopyId, JoinState>,
    /// Copies that refused their last write of this epoch although they are reached, and how: writes wait for them.
    pub(crate) write_refusals: BTreeMap<CopyId, Status>,
    pub(crate) lease: Lease,
    /// Links that this shard counts as a user of.
    pub(crate) links: Vec<SocketAddr>,
    /// Everything up to here is durable on every copy: K comes from it under durability=flush (rule 18).
    pub(crate) flushed: Prefix,
    /// A flush of its own is on its way.
    pub(crate) flushing: bool,
    /// What kept a copy from being filled last, in whatever epoch; what another copy may have, until it serves.
    pub(crate) keeps_from_filling: Option<BadBlock>,
    /// Barriers that were placed, and until when at the latest nothing is acknowledged for their sake (rule 17).
    pub(crate) holds: BTreeMap<OrderId, Time>,
    pub(crate) history: History,
    /// Why members refused to join, as they said it last.
    pub(crate) join_refusals: BTreeMap<CopyId, String>,
    /// What the conductor is asked for while this epoch goes on, and when it was asked last.
    pub(crate) wish: Option<(MembershipChange, Time)>,
    /// Since when this epoch is joined, or asked about.
    pub(crate) joining_since: Time,
    /// A copy that was filled by this very primary, until its being added was asked for: what it holds above K is known here (rule 6).
    pub(crate) just_added: Option<CopyId>,
    /// Copies that did not do what the others did, and why: they are to be dropped (rule 15).
    pub(crate) failed: BTreeMap<CopyId, &'static str>,
    /// The syncing copy that is filled.
    pub(crate) filling: Option<Box<Filling>>,
    /// Absent copies whose filling came to nothing lately: not to be tried again before then, and the pause after that.
    pub(crate) fill_after: BTreeMap<CopyId, (Time, Span)>,
    /// Copies that had their turn since a filling was stuck, each until then: others are filled first.
    had_turn: BTreeMap<CopyId, Time>,
}

/// A block that does not read on the only copy in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadBlock {
    pub(crate) view: View,
    pub(crate) block: Blocks,
    /// Who has another copy in sync, or of the last full set, which may have it, and was not filled from here.
    pub(crate) held_by: Option<NodeId>,
}

impl Primary {
    /// Who is away and has a copy that holds by itself what was acknowledged (rule 11).
    pub(crate) fn holder_away(&self) -> Option<NodeId> {
        let config = &self.config;
        let away = |m: &&Member| m.state != CopyState::InSync && config.full_set.contains(&m.copy);
        config.members.iter().find(away).map(|m| m.node)
    }

    pub(crate) fn new(config: Configuration) -> Self {
        Self {
            ranges: Ranges::new(config.born),
            history: History::new(config.epoch),
            config,
            phase: PrimaryPhase::Joining,
            asked: Time::default(),
            window: Window::default(),
            settled: false,
            locks: RangeLock::default(),
            requests: BTreeMap::new(),
            stalled: BTreeMap::new(),
            answers: BTreeMap::new(),
            joins: BTreeMap::new(),
            write_refusals: BTreeMap::new(),
            lease: Lease::default(),
            links: Vec::new(),
            flushed: Prefix::default(),
            flushing: false,
            keeps_from_filling: None,
            holds: BTreeMap::new(),
            join_refusals: BTreeMap::new(),
            wish: None,
            joining_since: Time::default(),
            just_added: None,
            failed: BTreeMap::new(),
            filling: None,
            fill_after: BTreeMap::new(),
            had_turn: BTreeMap::new(),
        }
    }

    /// Takes up a newer configuration: everything of the old epoch but its requests and their locks is forgotten.
    pub(crate) fn enter(&mut self, now: Time, config: Configuration) {
        let next = config.epoch.0 == self.config.epoch.0 + 1;
        let added = self.filling.as_ref().filter(|f| f.add_asked && next).map(|f| f.copy);
        self.just_added = added.filter(|copy| config.member(*copy).is_some_and(|m| m.state == CopyState::InSync));
        let lacks = |copy: &CopyId| config.member(*copy).is_some_and(|m| m.state != CopyState::InSync);
        self.fill_after.retain(|copy, _| lacks(copy));
        self.had_turn.retain(|copy, _| lacks(copy));
        let durable = self.settled && self.config.durability.is_always();
        let finished = durable.then(|| Stamp { epoch: self.config.epoch, sequence: self.window.prefix().to });
        self.history.goes_on(self.config.epoch, finished, &config);
        self.joining_since = now;
        self.config = config;
        self.phase = PrimaryPhase::Joining;
        self.window = Window::default();
        self.settled = false;
        self.answers.clear();
        self.joins.clear();
        self.write_refusals.clear();
        self.lease = Lease::default();
        self.flushed = Prefix::default();
        self.flushing = false;
        self.join_refusals.clear();
        self.wish = None;
        self.failed.clear();
        self.filling = None;
    }

    /// A filling is stuck: whose it is had its turn.
    pub(crate) fn begin_turns(&mut self, now: Time, copy: CopyId) {
        self.had_turn.insert(copy, now + FILL_TURN);
    }

    /// Where a filling was stuck, another one made way for this one, which came to nothing.
    pub(crate) fn end_turn(&mut self, now: Time, copy: CopyId) {
        if !self.had_turn.is_empty() {
            self.begin_turns(now, copy);
        }
    }

    /// What was stuck goes on: nobody has to make way.
    pub(crate) fn forget_turns(&mut self) {
        self.had_turn.clear();
    }

    pub(crate) fn had_turn(&self, now: Time, copy: CopyId) -> bool {
        self.had_turn.get(&copy).is_some_and(|until| now < *until)
    }

    /// The epoch that a copy had on its disk before those that were begun here and never settled: where it says one of these, it is what it
    /// said before.
    pub(crate) fn stored_before(&mut self, copy: CopyId, said: Epoch) -> Epoch {
        if driver::mutant::on("past_judged_late") {
            return said;
        }
        if said < self.history.unsettled_from {
            self.history.stored.insert(copy, said);
        }
        self.history.stored.get(&copy).copied().unwrap_or(said)
    }

    /// The newest epoch that is known to have been settled: everything of older ones is durable on its copies.
    fn last_settled(&self) -> Epoch {
        self.answers.values().map(|answer| answer.known_good.epoch).max().unwrap_or_default().max(self.history.settled)
    }

    /// Does this copy know less than another one knows to be durable on all? Then its disk is not the newest that there was: an image from
    /// the past was put back. K is of an epoch only when all copies in sync have that on their disks. Within an epoch a few changes are no
    /// proof: see `UNLISTED`.
    pub(crate) fn is_of_the_past(&self, copy: CopyId) -> bool {
        let Some(Joined { newest, stored, .. }) = self.answers.get(&copy) else { return false };
        let others = self.config.in_sync_members().filter(|m| m.copy != copy);
        let mut known = others.filter_map(|m| self.answers.get(&m.copy)).map(|answer| answer.known_good);
        known.any(|known| {
            let lacks = if known.epoch == newest.epoch { newest.sequence.0 + UNLISTED } else { UNLISTED };
            // Of this epoch there is a K if it was served before: then all were found to be of today.
            (known.epoch > *stored && known.epoch < self.config.epoch) || (known > *newest && known.sequence.0 > lacks)
        })
    }

    /// May this copy of a flush volume lack what was acknowledged? Its store was opened anew since the shard was served last.
    fn is_doubtful(&self, member: &Member) -> bool {
        !self.config.durability.is_always() && member.since > self.last_settled()
    }

    /// Is any copy in doubt?
    pub(crate) fn doubts_any(&self) -> bool {
        self.config.in_sync_members().any(|m| self.is_doubtful(m))
    }

    /// Are all copies in doubt? Then what was acknowledged and not flushed may be lost (rule 18).
    pub(crate) fn doubts_all(&self) -> bool {
        self.config.in_sync_members().all(|m| self.is_doubtful(m))
    }

    /// Does any copy of this epoch hold something of this range above K, but for what is known to have been finished everywhere?
    pub(crate) fn is_above_known_good(&self, range: BlockRange) -> bool {
        let from = u64::from(range.from.0);
        let meets = |at: &BlockRange| u64::from(at.from.0) < range.end() && from < at.end();
        let held = self.answers.values().flat_map(|answer| &answer.held);
        held.into_iter().any(|(at, stamp)| *stamp > self.history.finished && meets(at))
    }

    /// The in-sync members beside the primary's own copy.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Member> {
        self.config.in_sync_members().filter(|m| m.copy != self.config.primary)
    }

    /// All listed copies beside the primary's own.
    pub(crate) fn listed_others(&self) -> impl Iterator<Item = &Member> {
        self.config.members.iter().filter(|m| m.copy != self.config.primary)
    }

    /// The copy that is to be filled in this epoch.
    pub(crate) fn syncing_member(&self) -> Option<&Member> {
        self.config.members.iter().find(|m| m.state == CopyState::Syncing)
    }

    /// Has the conductor been asked to add this copy? From then on it may be in sync (rule 1).
    pub(crate) fn may_be_added(&self, copy: CopyId) -> bool {
        self.filling.as_ref().is_some_and(|filling| filling.copy == copy && filling.add_asked)
    }

    /// Does it wait for the conductor before it goes on?
    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.phase, PrimaryPhase::Asking(_))
    }

    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.phase, PrimaryPhase::Sealed)
    }

    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.phase, PrimaryPhase::Serving)
    }

    /// K, once it has entered this epoch: of a flush volume only what is flushed (rule 18). Never above all that a copy could list: one that
    /// was opened anew knows K by its records alone, which flushes leave none of, and must not look as if it lacked what it has (rule 10).
    pub(crate) fn known_good(&self) -> Option<Sequence> {
        let finished = if self.config.durability.is_always() { self.window.prefix() } else { self.flushed };
        let known = if driver::mutant::on("flushes_raise_k") { finished.to } else { finished.listed };
        self.settled.then_some(known)
    }

    /// Stamps above K that were given out in this epoch, of a flush volume; of others the window bounds them.
    pub(crate) fn unflushed(&self) -> u64 {
        if self.config.durability.is_always() { 0 } else { self.window.last().0 - self.flushed.to.0 }
    }

    /// F: what is finished everywhere is never sent again.
    pub(crate) fn floor(&self) -> Sequence {
        self.window.prefix().to
    }

    /// The union of what the copies hold above K, cut into pieces of at most `piece` blocks, highest first, each with the copy whose
    /// content it is settled with: the own. Of a flush volume that is not enough, because a store that was opened anew may lack what
    /// was acknowledged and not flushed: there it is a copy that was not opened anew, of these the one that lists the newest write.
    pub(crate) fn union(&self, piece: u32) -> Vec<(BlockRange, CopyId)> {
        let own = self.config.primary;
        let doubtful: BTreeSet<CopyId> =
            self.config.in_sync_members().filter(|m| self.is_doubtful(m)).map(|m| m.copy).collect();
        let rank = |copy: CopyId, stamp: Stamp| (!doubtful.contains(&copy), stamp, copy == own, copy);
        let mut changes = Vec::new();
        for (copy, answer) in &self.answers {
            for (n, (at, stamp)) in answer.held.iter().enumerate() {
                let entry = (rank(*copy, *stamp), n + 1);
                changes.extend([(u64::from(at.from.0), true, entry), (at.end(), false, entry)]);
            }
        }
        changes.sort_unstable();
        // Who lists nothing of a block has its older content.
        let mut listed: BTreeSet<_> =
            self.config.in_sync_members().map(|m| (rank(m.copy, Stamp::default()), 0)).collect();
        let members = listed.len();
        let mut merged: Vec<(u64, u64, CopyId)> = Vec::new();
        let mut from = 0;
        for (at, begins, entry) in changes {
            if from < at && listed.len() > members {
                let best = listed.last().map_or(own, |((.., copy), _)| *copy);
                let source = if self.config.durability.is_always() { own } else { best };
                match merged.last_mut() {
                    Some(last) if last.1 == from && last.2 == source => last.1 = at,
                    _ => merged.push((from, at, source)),
                }
            }
            from = at;
            if begins {
                listed.insert(entry);
            } else {
                listed.remove(&entry);
            }
        }
        let mut pieces = Vec::new();
        for (from, to, source) in merged {
            let mut at = from;
            while at < to {
                let count = u64::from(piece).min(to - at);
                pieces.push((between(at, at + count), source));
                at += count;
            }
        }
        pieces.reverse();
        pieces
    }
}

/// Blocks of one shard, whose size fits 32 bits of blocks: checked when a Join's answer was taken.
pub(crate) fn between(from: u64, to: u64) -> BlockRange {
    let fit = |n: u64| Blocks(u32::try_from(n).unwrap_or(u32::MAX));
    BlockRange { from: fit(from), count: fit(to - from) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, Bytes, CopyState, DiskId, Durability, NodeId, OpenId, ShardId};

    fn range(from: u32, count: u32) -> BlockRange {
        BlockRange { from: Blocks(from), count: Blocks(count) }
    }

    fn primary(durability: Durability) -> Primary {
        let member = |n: u64| Member {
            copy: CopyId(n),
            node: NodeId(1),
            disk: DiskId(n),
            open: OpenId(1),
            state: CopyState::InSync,
            since: Epoch(0),
            past: false,
            endpoint: SocketAddr::from(([10, 0, 0, 1], 1)),
        };
        Primary::new(Configuration {
            shard: ShardId::default(),
            epoch: Epoch(1),
            primary: CopyId(1),
            members: (1..=3).map(member).collect(),
            full_set: Vec::new(),
            min_copies: 2,
            attach: AttachGeneration(0),
            size: Bytes(1 << 30),
            born: true,
            durability,
            cache: conductor_model::Commit(0),
            card: None,
            parent: None,
        })
    }

    fn held(list: &[(BlockRange, u64)]) -> Joined {
        let stamp = |n: u64| Stamp { epoch: Epoch(1), sequence: Sequence(n) };
        let newest = list.iter().map(|(_, n)| *n).max().unwrap_or_default();
        let held = list.iter().map(|(at, n)| (*at, stamp(*n))).collect();
        Joined { held, known_good: stamp(0), newest: stamp(newest), stored: Epoch(1) }
    }

    #[test]
    fn what_a_copy_had_stored_counts_until_an_epoch_is_settled() {
        let mut primary = primary(Durability::Always);
        let copy = CopyId(2);
        let enter = |primary: &mut Primary, epoch, state| {
            let mut config = Configuration { epoch: Epoch(epoch), ..primary.config.clone() };
            config.members[1].state = state;
            primary.enter(Time::default(), config);
        };
        primary.history.settled = Epoch(1);
        enter(&mut primary, 10, CopyState::InSync);
        assert_eq!(primary.stored_before(copy, Epoch(5)), Epoch(5));
        for epoch in 11..13 {
            // It has stored the last one that it joined, of which nothing came.
            enter(&mut primary, epoch, CopyState::InSync);
            assert_eq!(primary.stored_before(copy, Epoch(epoch - 1)), Epoch(5));
        }
        primary.history.settled = Epoch(12);
        enter(&mut primary, 13, CopyState::InSync);
        assert_eq!(primary.stored_before(copy, Epoch(12)), Epoch(12));
        // Its disk is another one by now; and then it was left out, and filled.
        enter(&mut primary, 14, CopyState::InSync);
        assert_eq!(primary.stored_before(copy, Epoch(9)), Epoch(9));
        enter(&mut primary, 15, CopyState::Absent);
        enter(&mut primary, 16, CopyState::InSync);
        assert_eq!(primary.stored_before(copy, Epoch(15)), Epoch(15));
    }

    #[test]
    fn a_copy_that_knows_less_than_another_knows_to_be_on_all_is_of_the_past() {
        let stamp = |epoch, n| Stamp { epoch: Epoch(epoch), sequence: Sequence(n) };
        let (few, more) = (UNLISTED, UNLISTED + 1);
        for (known, stored, past) in [
            ((1, 4), 1, false),
            ((1, 5 + few), 1, false),
            ((1, 5 + more), 1, true),
            ((2, few), 2, false),
            ((2, more), 2, true),
            // All that were in sync in epoch 2 had it on their disks.
            ((2, 0), 1, true),
            // This epoch was served, and is joined again.
            ((4, few), 3, false),
        ] {
            let mut primary = primary(Durability::Always);
            primary.config.epoch = Epoch(4);
            let said =
                |known_good, newest, stored| Joined { held: Vec::new(), known_good, newest, stored: Epoch(stored) };
            primary.answers.insert(CopyId(1), said(stamp(1, 3), stamp(1, 5), stored));
            primary.answers.insert(CopyId(2), said(stamp(known.0, known.1), stamp(3, 99), 3));
            primary.answers.insert(CopyId(3), said(stamp(1, 0), stamp(3, 99), 3));
            assert_eq!([1, 2, 3].map(|copy| primary.is_of_the_past(CopyId(copy))), [past, false, false], "{known:?}");
        }
    }

    fn union(primary: &Primary) -> Vec<(BlockRange, u64)> {
        primary.union(4).into_iter().rev().map(|(at, copy)| (at, copy.0)).collect()
    }

    #[test]
    fn the_union_covers_every_answer_once_in_pieces_of_the_own_content() {
        let mut primary = primary(Durability::Always);
        primary.answers.insert(CopyId(1), held(&[(range(0, 3), 1), (range(10, 5), 2)]));
        primary.answers.insert(CopyId(2), held(&[(range(2, 4), 3), (range(14, 1), 4), (range(20, 1), 5)]));
        let own = [range(0, 4), range(4, 2), range(10, 4), range(14, 1), range(20, 1)].map(|at| (at, 1));
        assert_eq!(union(&primary), own);
    }

    #[test]
    fn a_flush_volume_is_settled_with_the_newest_content_of_who_was_not_opened_anew() {
        let mut primary = primary(Durability::Flush);
        primary.answers.insert(CopyId(1), held(&[(range(0, 2), 1), (range(8, 1), 9)]));
        primary.answers.insert(CopyId(2), held(&[(range(0, 2), 1), (range(3, 2), 4)]));
        primary.answers.insert(CopyId(3), held(&[(range(1, 1), 3), (range(3, 2), 4)]));
        assert_eq!(union(&primary), [(range(0, 1), 1), (range(1, 1), 3), (range(3, 2), 3), (range(8, 1), 1)]);
        let mut config = primary.config.clone();
        config.members[0].since = Epoch(2);
        let answers = std::mem::take(&mut primary.answers);
        primary.enter(Time::default(), config);
        primary.answers = answers;
        assert_eq!(union(&primary), [(range(0, 1), 2), (range(1, 1), 3), (range(3, 2), 3), (range(8, 1), 3)]);
    }
}
