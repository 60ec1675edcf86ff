//! What is asked of the store: everything, in phases, so that each kind of trouble gets its turn.

use crate::engine::{Ability, Engine};
use crate::flying::{What, range};
use crate::moment::Moment;
use crate::world::World;
use conductor_model::{
    AttachGeneration, Blocks, Configuration, CopyId, CopyState, DiskId, Durability, Epoch, Member, NodeId, OpenId,
    ShardId, ShardIndex, ShardSnapshot, SnapshotId, VolumeId,
};
use node_store::{FillMark, MAX_REQUEST_BLOCKS};

/// A phase of the workload.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Mood {
    /// All of it.
    #[default]
    Mixed,
    /// Small writes over and over: the journal wraps.
    Small,
    /// Large writes: whole chunks, and a disk that fills up.
    Large,
    /// Snapshots, clones, rollbacks, copy-ranges.
    Family,
    /// Discards, drops, flattening, deletes: space comes back.
    Release,
    /// Writes without durability, and syncs.
    Loose,
    /// The same few blocks over and over, without durability: they are overwritten before they go home.
    Hot,
    /// Nothing: the background has time.
    Quiet,
}

/// Blocks of a wide copy that one leaf of its map covers, and those at the beginning of each that are asked for.
const PART: u64 = 127 * 16;
const SPOT: u64 = 160;
/// Most operations in flight.
const DEPTH: usize = 24;
/// Blocks of each copy that are written over and over: in all, fewer than half a journal holds.
const HOT_BLOCKS: u32 = 40;
/// Snapshots that a copy is given at most.
const SNAPSHOTS: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pick {
    Write,
    Zero,
    Read,
    Share,
    Repair,
    Extents,
    Snapshot,
    Rollback,
    Drop,
    Create,
    Clone,
    Join,
    Delete,
    Sync,
    Flatten,
    Above,
    Known,
    Mark,
}

/// What is picked, by mood: weights.
fn weights(mood: Mood) -> &'static [(Pick, u64)] {
    use Pick::{
        Above, Clone, Create, Delete, Drop, Extents, Flatten, Join, Known, Mark, Read, Repair, Rollback, Share,
        Snapshot, Sync, Write, Zero,
    };
    match mood {
        Mood::Mixed => &[
            (Write, 46),
            (Zero, 9),
            (Read, 12),
            (Share, 4),
            (Repair, 2),
            (Extents, 2),
            (Snapshot, 4),
            (Rollback, 2),
            (Drop, 3),
            (Create, 1),
            (Clone, 2),
            (Join, 2),
            (Delete, 1),
            (Sync, 3),
            (Flatten, 2),
            (Above, 2),
            (Known, 3),
            (Mark, 2),
        ],
        Mood::Small | Mood::Large => {
            &[(Write, 80), (Zero, 3), (Read, 10), (Sync, 1), (Known, 3), (Above, 1), (Join, 1)]
        }
        Mood::Family => &[
            (Write, 26),
            (Zero, 4),
            (Read, 10),
            (Share, 14),
            (Snapshot, 13),
            (Rollback, 8),
            (Clone, 8),
            (Drop, 6),
            (Flatten, 5),
            (Delete, 3),
            (Extents, 3),
        ],
        Mood::Release => &[
            (Write, 10),
            (Zero, 26),
            (Read, 8),
            (Drop, 16),
            (Flatten, 8),
            (Delete, 5),
            (Repair, 4),
            (Rollback, 3),
            (Create, 2),
        ],
        Mood::Loose => {
            &[(Write, 60), (Zero, 8), (Read, 8), (Sync, 12), (Mark, 3), (Snapshot, 2), (Known, 6), (Join, 2)]
        }
        Mood::Hot => &[(Write, 90), (Read, 6), (Sync, 2), (Known, 2)],
        Mood::Quiet => &[(Read, 1), (Above, 1)],
    }
}

const MOODS: &[Mood] = &[
    Mood::Mixed,
    Mood::Mixed,
    Mood::Mixed,
    Mood::Small,
    Mood::Large,
    Mood::Family,
    Mood::Family,
    Mood::Release,
    Mood::Loose,
    Mood::Hot,
    Mood::Quiet,
];

impl<E: Engine> World<E> {
    /// Ask for something, or for nothing.
    pub(crate) fn act(&mut self) {
        if self.rng.below(60) == 0 {
            self.mood = MOODS[self.rng.index(MOODS.len())];
        }
        if self.flying.len() >= DEPTH || (self.mood == Mood::Quiet && self.rng.below(30) > 0) {
            return;
        }
        let pick = self.pick();
        self.ask(pick);
    }

    /// Ask for what leads to this moment, if it is one that can be asked for.
    pub(crate) fn act_towards(&mut self, moment: Moment) {
        let full = self.copies.len() >= self.shape.copies as usize;
        let named = self.copies.values().any(|copy| !copy.snapshots.is_empty());
        let pick = match moment {
            Moment::JournalWrap => {
                self.mood = Mood::Small;
                Pick::Write
            }
            Moment::Clone | Moment::Create if full => Pick::Delete,
            Moment::Clone | Moment::Rollback | Moment::Share | Moment::Drop | Moment::Merge if !named => Pick::Snapshot,
            Moment::Write | Moment::WholeChunk | Moment::Loose => Pick::Write,
            Moment::Discard => Pick::Zero,
            Moment::Sync => Pick::Sync,
            Moment::Snapshot => Pick::Snapshot,
            Moment::Rollback => Pick::Rollback,
            Moment::Drop | Moment::Merge => Pick::Drop,
            Moment::Clone => Pick::Clone,
            Moment::Share => Pick::Share,
            Moment::Flatten => Pick::Flatten,
            Moment::Repair => Pick::Repair,
            Moment::Create => Pick::Create,
            Moment::Grow => Pick::Join,
            Moment::Delete => Pick::Delete,
            Moment::Known => Pick::Known,
            Moment::Mark => Pick::Mark,
            _ => return,
        };
        self.ask(pick);
    }

    /// Is this going on now?
    pub(crate) fn is_in(&self, moment: Moment) -> bool {
        self.flying.values().any(|flying| flying.what.moments().contains(&moment))
            || E::moments(self.shape, self.store(), &self.disks.open()).contains(&moment)
    }

    fn ask(&mut self, pick: Pick) {
        let pick = if self.copies.is_empty() { Pick::Create } else { pick };
        if let Some((copy, what)) = self.build(pick)
            && self.may(copy, &what)
        {
            self.submit(copy, what);
        }
    }

    fn pick(&mut self) -> Pick {
        let weights = weights(self.mood);
        let mut at = self.rng.below(weights.iter().map(|(_, weight)| weight).sum());
        for (pick, weight) in weights {
            if at < *weight {
                return *pick;
            }
            at -= weight;
        }
        Pick::Write
    }

    fn any_copy(&mut self) -> u64 {
        let nth = self.rng.index(self.copies.len());
        *self.copies.keys().nth(nth).expect("there is one")
    }

    fn any_snapshot(&mut self, copy: u64) -> Option<u64> {
        let snapshots = &self.copies[&copy].snapshots;
        let nth = self.rng.index(snapshots.len());
        snapshots.get(nth).map(|(id, _)| *id)
    }

    /// The live content, or a snapshot.
    fn any_view(&mut self, copy: u64) -> Option<u64> {
        if self.rng.coin() { None } else { self.any_snapshot(copy) }
    }

    fn any_source(&mut self) -> Option<(u64, u64)> {
        let copy = self.any_copy();
        Some((copy, self.any_snapshot(copy)?))
    }

    fn any_range(&mut self, within: u32, longest: u64) -> conductor_model::BlockRange {
        let small = |n: u64| u32::try_from(n).expect("small");
        let count = 1 + small(self.rng.below(longest.min(u64::from(within))));
        let mut from = match u64::from(within - count) + 1 {
            // Wide: near the beginning of one of its parts.
            room if room > PART => {
                let near = self.rng.below(room.div_ceil(PART)) * PART + self.rng.below(SPOT);
                small(near.min(room - 1))
            }
            room => small(self.rng.below(room)),
        };
        if self.rng.below(4) == 0 {
            from -= from % 16;
        }
        range(from, count)
    }

    fn length(&mut self) -> u64 {
        match (self.mood, self.rng.below(8)) {
            (Mood::Small | Mood::Hot, _) => 3,
            (Mood::Large, 0..=5) => u64::from(MAX_REQUEST_BLOCKS),
            (_, 0) => u64::from(MAX_REQUEST_BLOCKS),
            (_, 1) => 48,
            (_, 2) => 20,
            _ => 5,
        }
    }

    fn build(&mut self, pick: Pick) -> Option<(u64, What)> {
        let family = E::can(Ability::Snapshots);
        if pick == Pick::Create || pick == Pick::Clone {
            return self.build_create(pick == Pick::Clone && family);
        }
        let copy = self.any_copy();
        let blocks = self.copies[&copy].blocks();
        // A change that is refused by the caller's order costs a stamp, which is fine: stamps only grow.
        let durable_of_ten = match self.mood {
            Mood::Hot => 0,
            Mood::Loose => 3,
            _ => 8,
        };
        let durable = self.rng.below(10) < durable_of_ten;
        let what = match pick {
            Pick::Write => {
                let longest = self.length();
                let within = if self.mood == Mood::Hot { blocks.min(HOT_BLOCKS) } else { blocks };
                let at = self.any_range(within, longest);
                let (stamp, known, first) = (self.stamp(copy), self.known(copy), self.contents(at.count.0));
                What::Write { at, first, stamp, known, durable }
            }
            Pick::Zero => {
                let longest = if self.rng.below(3) == 0 { u64::from(blocks) } else { 40 };
                let at = self.any_range(blocks, longest);
                let (stamp, known) = (self.stamp(copy), self.known(copy));
                What::Zero { at, stamp, known, durable }
            }
            Pick::Read => {
                let view = self.any_view(copy);
                let within = self.image(copy, view)?.len();
                let longest = self.length();
                What::Read { view, at: self.any_range(within, longest) }
            }
            Pick::Repair if E::can(Ability::Repair) => {
                let view = self.any_view(copy);
                let within = self.image(copy, view)?.len();
                What::Repair { view, at: self.any_range(within, 40) }
            }
            Pick::Extents if E::can(Ability::Extents) => {
                let view = self.any_view(copy);
                let within = self.image(copy, view)?.len();
                let from = u32::try_from(self.rng.below(u64::from(within))).expect("small");
                let quiet = !self.flying.values().any(|flying| flying.copy == copy && flying.what.is_change());
                What::Extents { view, from, submitted: quiet.then_some(self.copies[&copy].submitted) }
            }
            Pick::Sync => What::Sync { until: self.completions },
            Pick::Above => What::Above,
            Pick::Known => What::Known { stamp: self.known(copy) },
            Pick::Mark if E::can(Ability::Marks) => {
                let (base, upto) = (self.known(copy), self.copies[&copy].newest);
                let cursor = Blocks(u32::try_from(self.rng.below(u64::from(blocks))).expect("small"));
                let known = (self.rng.below(3) == 0).then_some(base);
                What::Mark { mark: FillMark { base, cursor, upto }, known, until: self.completions }
            }
            Pick::Join => {
                let old = &self.copies[&copy].config;
                let (mut new, grown) = (old.clone(), self.rng.below(3) == 0);
                new.epoch.0 += 1;
                if self.copies[&copy].parent.is_none() {
                    new.parent = None;
                }
                if grown && u64::from(blocks) < self.copy_blocks.end {
                    new.size.0 += 4096 * (1 + self.rng.below(40));
                }
                What::Join { config: new }
            }
            Pick::Delete if self.copies.len() > 2 => What::Delete,
            _ if !family => return None,
            Pick::Share => {
                let from = self.any_source().filter(|(source, _)| *source != copy)?;
                let within = self.image(from.0, Some(from.1))?.len().min(blocks);
                let longest = if self.rng.below(3) == 0 { u64::from(within) } else { 60 };
                let at = self.any_range(within, longest);
                let (stamp, known) = (self.stamp(copy), self.known(copy));
                What::Share { at, stamp, known, from }
            }
            Pick::Snapshot if self.copies[&copy].snapshots.len() < SNAPSHOTS => {
                let id = self.next_snapshot;
                self.next_snapshot += 1;
                What::Snapshot { id, stamp: self.stamp(copy), known: self.known(copy) }
            }
            Pick::Rollback => {
                let id = self.any_snapshot(copy)?;
                What::Rollback { id, stamp: self.stamp(copy), known: self.known(copy) }
            }
            Pick::Drop | Pick::Snapshot => What::Drop { id: self.any_snapshot(copy)? },
            Pick::Flatten => What::Flatten,
            _ => return None,
        };
        Some((copy, what))
    }

    fn build_create(&mut self, clone: bool) -> Option<(u64, What)> {
        let creating = self.flying.values().filter(|flying| matches!(flying.what, What::Create { .. })).count();
        if self.copies.len() + creating >= self.shape.copies as usize {
            return None;
        }
        let parent = if clone && !self.copies.is_empty() { Some(self.any_source()?) } else { None };
        let blocks = match parent {
            Some((copy, snapshot)) => {
                let own = self.image(copy, Some(snapshot))?.len();
                own + u32::try_from(self.rng.below(2) * self.rng.below(30)).expect("small")
            }
            None => {
                let std::ops::Range { start, end } = self.copy_blocks;
                u32::try_from(start + self.rng.below(end - start)).expect("small")
            }
        };
        let copy = self.next_copy;
        self.next_copy += 1;
        let mut config = config(copy, blocks);
        config.parent = parent.map(|(source, snapshot)| ShardSnapshot {
            shard: self.copies[&source].config.shard,
            snapshot: SnapshotId(snapshot),
        });
        Some((copy, What::Create { config, parent }))
    }
}

/// The configuration that a copy is born with.
pub(crate) fn config(copy: u64, blocks: u32) -> Configuration {
    let member = Member {
        copy: CopyId(copy),
        node: NodeId(1),
        disk: DiskId(1),
        open: OpenId(7),
        // One that joins as in sync forgets how far it was filled, which is looked at here.
        state: CopyState::Syncing,
        since: conductor_model::Epoch(0),
        past: false,
        endpoint: "127.0.0.1:7000".parse().expect("an address"),
    };
    Configuration {
        shard: ShardId { volume: VolumeId(u32::try_from(copy).expect("small")), index: ShardIndex(3) },
        epoch: Epoch(1),
        primary: CopyId(copy),
        members: vec![member],
        full_set: vec![CopyId(copy)],
        min_copies: 1,
        attach: AttachGeneration(1),
        size: Blocks(blocks).bytes(),
        born: true,
        durability: Durability::Always,
        cache: conductor_model::Commit(0),
        card: None,
        parent: None,
    }
}
