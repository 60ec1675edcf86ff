//! Rebalancing: copies are moved so that they are far apart and disks evenly used, and primaries are handed over.
//!
//! ```text
//! all well for REBALANCE_CALM_MS ─► a copy that could be farther apart ─► disks more than UNEVEN_PERCENT apart ─► primaries
//!         ▲                                   │                                  │ until EVEN_PERCENT
//!         └────────── moved, as when a node is drained: listed beside, filled, then the old one goes ◄───┘
//! ```
//! Gentle: nothing begins unless every shard has all its copies, and few shards move at once. The use of a disk is what its copies were
//! counted to hold, those on their way to it included and those on their way off it not: nothing is moved twice because it has not
//! arrived. A copy never moves nearer to the others. Each move for evenness makes the sum of all disks' squared use less, and one for
//! distance the distances more: it ends. A clone's copy moves with its parent's, whose chunks it shares (rule 16).

use crate::events::Happened;
use crate::limits::{
    EVEN_PERCENT, HAND_OVERS_AT_ONCE, MOVES_AT_ONCE, NEAR_FULL_PERCENT, PRIMARIES_CALM_MS, PRIMARIES_EVERY_MS,
    REBALANCE_CALM_MS, REBALANCE_EVERY_MS, UNEVEN_PERCENT, UNEVEN_PRIMARIES,
};
use crate::record::ShardRecord;
use crate::replacement::Pass;
use crate::views::RebalanceInfo;
use crate::{Conductor, CopyId, CopyState, Dirty, DiskId, Millis, NodeId, ShardId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// A disk of a node.
type Where = (NodeId, DiskId);

/// What this process knows of it. Nothing of it is persisted: a copy on its way is (`ShardRecord::leaving`).
#[derive(Clone, Debug)]
pub(crate) struct Balance {
    on: bool,
    looked: Millis,
    /// Since when all is well.
    calm: Option<Millis>,
    /// Disks were more than `UNEVEN_PERCENT` apart, and are not yet within `EVEN_PERCENT`.
    levelling: bool,
    /// It was said that it began.
    told: bool,
    handed_over: Millis,
    pub(crate) moved: u64,
    moved_before: u64,
    uneven: u32,
    waits: Option<String>,
}

impl Balance {
    pub(crate) fn new(started: Millis) -> Self {
        Self {
            on: false,
            looked: started,
            calm: None,
            levelling: false,
            told: false,
            handed_over: started,
            moved: 0,
            moved_before: 0,
            uneven: 0,
            waits: None,
        }
    }
}

/// A disk that takes copies.
struct Level {
    at: Where,
    endpoint: SocketAddr,
    capacity: u64,
    /// What its copies hold.
    load: u64,
    /// What its node says is used.
    used: u64,
    /// Copies that its store still has places for.
    places: usize,
}

impl Level {
    /// In hundredths of a percent.
    fn part(&self) -> u64 {
        u64::try_from(u128::from(self.load) * 10_000 / u128::from(self.capacity.max(1))).unwrap_or(u64::MAX)
    }

    fn has_room(&self, family: &Family) -> bool {
        let after = u128::from(self.load.max(self.used)) + u128::from(family.weight);
        let roomy = after * 100 <= u128::from(self.capacity) * u128::from(NEAR_FULL_PERCENT);
        roomy && self.places >= family.shards.len()
    }
}

/// Shards whose copies lie together: one, and the same one of all clones of it.
struct Family {
    shards: Vec<ShardId>,
    /// Where their copies are, and whether one of them is primary there.
    on: Vec<(Where, bool)>,
    /// What each copy of all of them holds.
    weight: u64,
}

/// A family's copies on one disk are to go to another.
struct Move {
    shards: Vec<ShardId>,
    from: Where,
    to: Where,
}

impl Conductor {
    /// Whether copies are moved for evenness' and distance's sake. Not persisted: whoever runs the conductor says it.
    pub fn set_rebalance(&mut self, on: bool) {
        self.balance.on = on;
        self.balance.calm = None;
    }

    pub(crate) fn rebalance_info(&self) -> RebalanceInfo {
        let Balance { on, moved, uneven, ref waits, .. } = self.balance;
        let moving = self.moving().count();
        RebalanceInfo {
            on,
            moving: u32::try_from(moving).unwrap_or(u32::MAX),
            moved,
            uneven_percent: uneven,
            waits: waits.clone(),
        }
    }

    fn moving(&self) -> impl Iterator<Item = &ShardRecord> {
        self.shards.values().filter(|s| s.leaving.is_some())
    }

    /// Begins what is to be moved now.
    pub(crate) fn rebalance(&mut self, now: Millis, pass: &mut Pass, dirty: &mut Dirty) {
        if !self.balance.on || now.since(self.balance.looked) < REBALANCE_EVERY_MS {
            return;
        }
        self.balance.looked = now;
        let unrest = self.unrest(pass);
        self.balance.waits.clone_from(&unrest);
        if unrest.is_some() {
            self.balance.calm = None;
            return;
        }
        let calm = now.since(*self.balance.calm.get_or_insert(now));
        let moving = self.moving().count();
        if moving == 0 && calm < REBALANCE_CALM_MS {
            return;
        }
        let begun = self.begin_moves(now, MOVES_AT_ONCE.saturating_sub(moving), pass, dirty);
        if begun > 0 && !std::mem::replace(&mut self.balance.told, true) {
            let uneven_percent = self.balance.uneven;
            self.balance.moved_before = self.balance.moved;
            self.note(Happened::RebalanceBegan { uneven_percent }, dirty);
        }
        if begun == 0 && moving == 0 {
            if self.balance.waits.is_none() && std::mem::take(&mut self.balance.told) {
                let (moved, uneven_percent) = (self.balance.moved - self.balance.moved_before, self.balance.uneven);
                self.note(Happened::RebalanceEnded { moved, uneven_percent }, dirty);
            }
            if calm >= PRIMARIES_CALM_MS && now.since(self.balance.handed_over) >= PRIMARIES_EVERY_MS {
                self.balance.handed_over = now;
                self.even_primaries(now, pass, dirty);
            }
        }
    }

    /// Why nothing is moved now.
    fn unrest(&self, pass: &Pass) -> Option<String> {
        if pass.is_under_way() {
            return Some("nodes or disks are being emptied or replaced".to_owned());
        }
        if self.absences.any() {
            return Some("a node or disk is out of reach".to_owned());
        }
        let well = |record: &ShardRecord| {
            let config = &record.config;
            let wanted = self.volumes.get(&config.shard.volume).map_or(0, |v| usize::from(v.copies));
            let on_its_way = record.leaving.is_some() && config.members.len() == wanted + 1;
            let (here, listed) = (config.in_sync(), config.members.len());
            // A copy too many, as an ended drain leaves it, goes first: no shard has two.
            let all_here = here == listed && listed <= wanted;
            config.born && record.distrusted.is_none() && (all_here || on_its_way && here >= wanted)
        };
        let unwell = self.shards.values().find(|record| !well(record))?;
        Some(format!("{} has not all its copies", unwell.config.shard))
    }

    fn begin_moves(&mut self, now: Millis, most: usize, pass: &mut Pass, dirty: &mut Dirty) -> usize {
        let mut levels = self.levels(now, pass);
        let mut families = self.families();
        // After a start nodes have not said yet what their copies hold: what is not known is not nothing.
        let counted = self.shards.values().all(|record| self.weight(record).is_some());
        if counted {
            let uneven = uneven(&levels);
            self.balance.uneven = uneven;
            self.balance.levelling = uneven > UNEVEN_PERCENT || (self.balance.levelling && uneven > EVEN_PERCENT);
        } else {
            self.balance.waits = Some("copies are being counted".to_owned());
        }
        let levelling = counted && self.balance.levelling;
        let mut begun = 0;
        while begun < most {
            let farther = farther(&families, &levels, pass);
            let level = || if levelling { level(&families, &levels, pass) } else { None };
            let Some((family, from, to)) = farther.or_else(level) else { break };
            let family = families.swap_remove(family);
            for level in &mut levels {
                if level.at == from {
                    level.load = level.load.saturating_sub(family.weight);
                } else if level.at == to {
                    level.load = level.load.saturating_add(family.weight);
                    level.places = level.places.saturating_sub(family.shards.len());
                }
            }
            let moves = Move { shards: family.shards, from, to };
            begun += self.begin_family(now, &moves, pass, dirty);
        }
        begun
    }

    /// The parent first: a clone's copy goes where it is listed.
    fn begin_family(&mut self, now: Millis, moves: &Move, pass: &mut Pass, dirty: &mut Dirty) -> usize {
        let mut begun = 0;
        for shard in &moves.shards {
            let config = self.shards.get(shard).map(|s| &s.config);
            let here = config.and_then(|c| c.members.iter().find(|m| (m.node, m.disk) == moves.from));
            let Some(copy) = here.map(|m| m.copy) else { continue };
            begun += usize::from(self.begin_move(now, *shard, copy, moves.to, pass, dirty));
        }
        begun
    }

    /// The disks that copies can be moved between.
    fn levels(&self, now: Millis, pass: &Pass) -> Vec<Level> {
        let mut loads: BTreeMap<Where, u64> = BTreeMap::new();
        for record in self.shards.values() {
            let weight = self.weight(record).unwrap_or(0);
            for member in record.config.members.iter().filter(|m| record.leaving != Some(m.copy)) {
                let load = loads.entry((member.node, member.disk)).or_default();
                *load = load.saturating_add(weight);
            }
        }
        let places = self.places_left();
        let nodes = self.nodes.values().filter(|n| pass.open.contains(&n.node));
        let disks = nodes.flat_map(|n| n.disks.iter().map(move |d| (n.node, d)));
        let there = disks.filter(|(node, d)| self.takes_copies(now, *node, d.disk));
        let level = there.map(|(node, d)| Level {
            at: (node, d.disk),
            endpoint: d.endpoint,
            capacity: d.capacity.0,
            load: loads.get(&(node, d.disk)).copied().unwrap_or(0),
            used: self.used_on(node, d.disk).0,
            places: places.get(&(node, d.disk)).map_or(0, |left| *left as usize),
        });
        level.collect()
    }

    /// What each copy of a shard holds; `None` if no node has counted any that is in sync.
    fn weight(&self, record: &ShardRecord) -> Option<u64> {
        let counted = |node: NodeId, copy: CopyId| self.presence.get(&node)?.copies.get(&copy).copied();
        let members = record.config.in_sync_members().filter_map(|m| counted(m.node, m.copy));
        members.max().map(|bytes| bytes.0)
    }

    /// What can be moved now.
    fn families(&self) -> Vec<Family> {
        let mut of_root: BTreeMap<ShardId, Vec<&ShardRecord>> = BTreeMap::new();
        for record in self.shards.values() {
            let mut root = record.config.shard;
            // Clones of clones: a parent is older than its clone, so this ends.
            while let Some(parent) = self.shards.get(&root).and_then(|s| s.config.parent).filter(|p| p.shard < root) {
                root = parent.shard;
            }
            of_root.entry(root).or_default().push(record);
        }
        of_root.into_values().filter_map(|records| self.family_of(&records)).collect()
    }

    /// `None` if one of them is in the middle of something, or they do not lie together.
    fn family_of(&self, records: &[&ShardRecord]) -> Option<Family> {
        let disks = |record: &ShardRecord| -> BTreeSet<Where> {
            record.config.members.iter().map(|m| (m.node, m.disk)).collect()
        };
        let first = disks(records.first()?);
        let movable = |record: &&ShardRecord| {
            let config = &record.config;
            let volume = self.volumes.get(&config.shard.volume);
            let quiet = volume.is_some_and(|v| {
                v.rollback.is_none() && v.parent.is_none_or(|p| !p.flattening) && !self.creates_snapshot(v.id)
            });
            let all = config.members.iter().all(|m| m.state == CopyState::InSync);
            let settled = config.born && record.distrusted.is_none() && record.leaving.is_none();
            quiet && all && settled && record.changed_at < self.next_commit() && disks(record) == first
        };
        if !records.iter().all(movable) {
            return None;
        }
        let primary_on = |at: Where| {
            records.iter().filter_map(|r| r.config.primary_member()).any(|primary| (primary.node, primary.disk) == at)
        };
        Some(Family {
            shards: records.iter().map(|r| r.config.shard).collect(),
            on: first.into_iter().map(|at| (at, primary_on(at))).collect(),
            weight: records.iter().map(|r| self.weight(r).unwrap_or(0)).fold(0, u64::saturating_add),
        })
    }

    /// Nodes that are primary of many shards more than others hand some over.
    fn even_primaries(&mut self, now: Millis, pass: &mut Pass, dirty: &mut Dirty) {
        for _ in 0..HAND_OVERS_AT_ONCE {
            let Some((shard, to)) = self.next_hand_over(now, pass) else { return };
            self.hand_over(now, shard, to, pass, dirty);
        }
    }

    fn next_hand_over(&self, now: Millis, pass: &Pass) -> Option<(ShardId, CopyId)> {
        let mut busiest: Vec<(NodeId, &BTreeSet<ShardId>)> = self.primaries.iter().collect();
        busiest.sort_by_key(|(node, shards)| (Reverse(shards.len()), *node));
        for (_, shards) in busiest {
            let least = |shard: &ShardId| {
                let record = self.shards.get(shard).filter(|s| s.leaving.is_none())?;
                let fresh = record.changed_at >= self.next_commit();
                let quiet = !fresh && !self.creates_snapshot(shard.volume);
                let able = record.config.members.iter().filter(|m| {
                    quiet && m.copy != record.config.primary && pass.open.contains(&m.node) && self.can_lead(now, m)
                });
                able.map(|m| (self.primaries.count(m.node), *shard, m.copy)).min()
            };
            let best = shards.iter().filter_map(least).min();
            if let Some((_, shard, to)) = best.filter(|(count, ..)| shards.len() >= count + UNEVEN_PRIMARIES) {
                return Some((shard, to));
            }
        }
        None
    }
}

/// Percentage points between the most and the least used.
fn uneven(levels: &[Level]) -> u32 {
    let parts = || levels.iter().map(Level::part);
    let points = parts().max().unwrap_or(0) - parts().min().unwrap_or(0);
    u32::try_from(points.div_ceil(100)).unwrap_or(u32::MAX)
}

/// May a family's copies go from one disk to another? Not where one is, nor nearer to the others; between disks of one node only if
/// each has a reactor of its own, which can hold a copy of the same shard for a while.
fn allowed(family: &Family, from: &Level, to: &Level, pass: &Pass) -> Option<(crate::domains::Spread, bool)> {
    let beside = |at: &Where| *at != from.at;
    let others = || family.on.iter().map(|(at, _)| *at).filter(beside).map(|(node, _)| node);
    let same_node = from.at.0 == to.at.0;
    if others().any(|node| node == to.at.0) || (same_node && from.endpoint == to.endpoint) || from.at == to.at {
        return None;
    }
    let spread = |node: NodeId| pass.domains.spread(others().chain([node]));
    let (before, after) = (spread(from.at.0), spread(to.at.0));
    (after >= before && to.has_room(family)).then_some((after, after > before))
}

/// A copy that is farther from the others elsewhere: from and to where.
fn farther(families: &[Family], levels: &[Level], pass: &Pass) -> Option<(usize, Where, Where)> {
    let possible = pass.domains.spread(levels.iter().map(|l| l.at.0));
    let level_at = |at: Where| levels.iter().find(|level| level.at == at);
    for (number, family) in families.iter().enumerate() {
        let copies = family.on.len();
        let now = pass.domains.spread(family.on.iter().map(|(at, _)| at.0));
        let enough = |now: usize, possible: usize| now >= possible.min(copies);
        if enough(now.racks, possible.racks) && enough(now.hosts, possible.hosts) && enough(now.nodes, possible.nodes) {
            continue;
        }
        let mut best = None;
        for (from, primary) in family.on.iter().filter_map(|(at, primary)| Some((level_at(*at)?, *primary))) {
            for to in levels {
                if let Some((spread, true)) = allowed(family, from, to, pass) {
                    let rank = (spread, !primary, Reverse(to.part()), Reverse(to.at), from.part());
                    if best.as_ref().is_none_or(|(other, _)| *other < rank) {
                        best = Some((rank, (number, from.at, to.at)));
                    }
                }
            }
        }
        if let Some((_, found)) = best {
            return Some(found);
        }
    }
    None
}

/// What makes disks more even: from one of the most used to one of the least. Of what is there, the family that comes nearest to what
/// is too much, so that few are moved, and rather one without primaries.
fn level(families: &[Family], levels: &[Level], pass: &Pass) -> Option<(usize, Where, Where)> {
    let mut order: Vec<&Level> = levels.iter().collect();
    order.sort_by_key(|level| (Reverse(level.part()), level.at));
    let mut on: BTreeMap<Where, Vec<usize>> = BTreeMap::new();
    for (number, family) in families.iter().enumerate().filter(|(_, family)| family.weight > 0) {
        family.on.iter().for_each(|(at, _)| on.entry(*at).or_default().push(number));
    }
    let load: u128 = levels.iter().map(|l| u128::from(l.load)).sum();
    let capacity: u128 = levels.iter().map(|l| u128::from(l.capacity)).sum::<u128>().max(1);
    for from in &order {
        for to in order.iter().rev() {
            if from.part().saturating_sub(to.part()) <= u64::from(EVEN_PERCENT) * 100 {
                break;
            }
            let share = |level: &Level| load * u128::from(level.capacity) / capacity;
            let (over, under) =
                (u128::from(from.load).saturating_sub(share(from)), share(to).saturating_sub(u128::from(to.load)));
            let here = on.get(&from.at).into_iter().flatten().copied();
            let fits = here.filter_map(|number| {
                let family = families.get(number)?;
                let better = evens(from, to, family.weight) && allowed(family, from, to, pass).is_some();
                let primary = family.on.iter().any(|(at, primary)| *at == from.at && *primary);
                let off = u128::from(family.weight).abs_diff(over.min(under));
                better.then_some((off, primary, number))
            });
            if let Some((.., number)) = fits.min() {
                return Some((number, from.at, to.at));
            }
        }
    }
    None
}

/// Does it make the sum of squared use less? In halves, so that nothing is rounded.
fn evens(from: &Level, to: &Level, weight: u64) -> bool {
    let doubled = |load: u64| 2 * u128::from(load);
    let weight = u128::from(weight);
    let before = doubled(from.load).saturating_sub(weight) * u128::from(to.capacity);
    let after = (doubled(to.load) + weight) * u128::from(from.capacity);
    weight > 0 && before > after
}
