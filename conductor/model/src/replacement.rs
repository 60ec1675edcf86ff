//! Replacement: copies that do not come back are made anew elsewhere, and copies move off what is to be emptied.
//!
//! ```text
//! absent, out of reach or on a failed disk for REPLACE_AFTER ─► unlisted and deleted; a new copy is listed, absent, on the best disk elsewhere
//! the same, of a shard that is not born, whatever it counts as ─► unlisted and deleted; the new copy is in sync: nothing was written yet
//! on a node or disk that is to be emptied,
//! or moved (`rebalance`) ─► a new copy is listed beside it ─ filled ─► the old one is unlisted and deleted
//! ```
//! A disk with a successor has its copies made there, on the same node: two copies of a shard are on one node only meanwhile.
//! Each step is one new epoch of the same primary that changes nothing about who holds every write; the primary fills what is listed
//! absent (rule 12: placement is a wish to it). Where the primary itself is to go, another copy in sync takes over first. Never
//! unlisted: a copy of a sealed shard's last full set, and a copy in sync before as many others are as the volume wants. Some shards
//! at a time: every new epoch makes its shard's writes pause.

use crate::api::CopyWork;
use crate::domains::Domains;
use crate::events::Happened;
use crate::limits::{NODE_SILENT_MS, REPLACE_AFTER_MS, RESHAPE_EVERY_MS, RESHAPES_AT_ONCE, RESHAPES_TRIED};
use crate::placement::{Place, Planner};
use crate::record::{DropRecord, ShardRecord};
use crate::views::{Duty, Fullness, VolumeState};
use crate::{
    Conductor, Configuration, CopyId, CopyState, Dirty, DiskId, Draw, Epoch, Key, Member, Millis, NodeId, ShardId,
    ShardIndex, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};

/// What this process knows of disks that are out of reach or failed, and of volumes that may not be as they are wanted.
#[derive(Clone, Debug)]
pub(crate) struct Absences {
    after_ms: u64,
    since: BTreeMap<(NodeId, DiskId), Millis>,
    looked: Millis,
    /// Volumes whose number of copies may be another one than is wanted.
    unshaped: BTreeSet<VolumeId>,
    seed: u64,
}

impl Absences {
    pub(crate) fn new(started: Millis, seed: u64) -> Self {
        Self { after_ms: REPLACE_AFTER_MS, since: BTreeMap::new(), looked: started, unshaped: BTreeSet::new(), seed }
    }

    /// True while a disk is out of reach or failed, whether it was given up or not.
    pub(crate) fn any(&self) -> bool {
        !self.since.is_empty()
    }

    /// Looked through with the next ticks.
    pub(crate) fn reshape(&mut self, volume: VolumeId) {
        self.unshaped.insert(volume);
    }
}

/// Random enough for names that must differ: splitmix64.
impl Draw for Absences {
    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A disk, as far as the copies on it are concerned.
#[derive(Clone, Copy, Default)]
struct Reach {
    /// Absent copies on it are not waited for.
    given_up: bool,
    /// It is to be emptied.
    leaving: bool,
}

/// One pass over shards: what is known for all of them.
pub(crate) struct Pass {
    reach: BTreeMap<(NodeId, DiskId), Reach>,
    /// Nodes that can take a copy.
    pub(crate) open: BTreeSet<NodeId>,
    pub(crate) domains: Domains,
    planner: Option<Planner>,
    listed: Option<BTreeSet<CopyId>>,
    /// Disks where an unlisted copy of a shard has to stay for now.
    kept: Option<BTreeSet<(DiskId, VolumeId, Option<ShardIndex>)>>,
}

impl Pass {
    /// Something is to be emptied, or given up.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.reach.is_empty()
    }
}

/// What is to become of a shard.
enum Step {
    /// A new copy, on this disk if there is one.
    List {
        without: Option<CopyId>,
        on: Option<(NodeId, DiskId)>,
    },
    Unlist(CopyId),
    HandOver(CopyId),
    /// The copy that was to move stays: the one beside it is gone. No new epoch.
    Stay,
}

impl Conductor {
    /// How long a copy that is out of reach is waited for. Not persisted: whoever runs the conductor says it.
    pub fn set_replace_after(&mut self, after_ms: u64) {
        self.absences.after_ms = after_ms;
    }

    /// Where the names of new copies come from. Without it they come from the cluster's name and the time of the start.
    pub fn set_seed(&mut self, seed: u64) {
        self.absences.seed = seed;
    }

    /// In how many milliseconds absent copies on a disk out of reach are replaced, if a place is found.
    pub(crate) fn replaced_in(&self, now: Millis, node: NodeId, disk: DiskId) -> Option<u64> {
        let since = self.absences.since.get(&(node, disk))?;
        Some(self.absences.after_ms.saturating_sub(now.since(*since)))
    }

    /// One step for each of some shards that are not as they are wanted.
    pub(crate) fn reshape(&mut self, now: Millis, dirty: &mut Dirty) {
        if now.since(self.absences.looked) < RESHAPE_EVERY_MS {
            return;
        }
        self.absences.looked = now;
        let reach = self.reach(now);
        let everywhere = reach.values().any(|r| r.given_up || r.leaving);
        let volumes: Vec<VolumeId> = match everywhere {
            true => self.volumes.keys().copied().collect(),
            false => self.absences.unshaped.iter().copied().collect(),
        };
        let mut pass = self.pass(now, reach);
        let mut left = RESHAPES_AT_ONCE;
        for volume in volumes {
            let shards: Vec<ShardId> = self.shards_of(volume).map(|s| s.config.shard).collect();
            let (mut tries, mut any) = (RESHAPES_TRIED, false);
            for shard in shards {
                // What cannot be done for some keeps the others from nothing.
                if left == 0 || tries == 0 {
                    any = true;
                    break;
                }
                let Some(step) = self.shards.get(&shard).and_then(|s| self.step(now, s, &pass)) else { continue };
                any = true;
                match self.take_step(now, shard, &step, &mut pass, dirty) {
                    true => left -= 1,
                    false => tries -= 1,
                }
            }
            if !any && self.is_shaped(volume) {
                self.absences.unshaped.remove(&volume);
            }
        }
        self.rebalance(now, &mut pass, dirty);
        self.forget_what_is_empty(now, dirty);
    }

    fn pass(&self, now: Millis, reach: BTreeMap<(NodeId, DiskId), Reach>) -> Pass {
        let serving = self.nodes.values().filter(|n| n.duty == Duty::Serving && self.hears(n.node, now));
        let open = serving.map(|n| n.node).collect();
        Pass { reach, open, domains: self.domains(), planner: None, listed: None, kept: None }
    }

    /// Has every shard as many copies as are wanted? One that is being filled is not looked at before it is.
    fn is_shaped(&self, volume: VolumeId) -> bool {
        let wanted = self.volumes.get(&volume).map_or(0, |v| usize::from(v.copies));
        self.shards_of(volume).all(|s| s.config.members.len() == wanted && s.leaving.is_none())
    }

    fn reach(&mut self, now: Millis) -> BTreeMap<(NodeId, DiskId), Reach> {
        let mut reach = BTreeMap::new();
        let mut since = BTreeMap::new();
        for node in self.nodes.values() {
            let heard = self.hears(node.node, now);
            for disk in &node.disks {
                let key = (node.node, disk.disk);
                let leaving = disk.leaving || matches!(node.duty, Duty::Draining | Duty::Removed);
                let gone = !heard || !disk.present || self.failure_of(node.node, disk.disk).is_some();
                if gone {
                    since.insert(key, self.absences.since.get(&key).copied().unwrap_or(now));
                }
                let waited = since.get(&key).is_some_and(|at| now.since(*at) >= self.absences.after_ms);
                // Nobody was heard yet just after a start.
                let settled = now.since(self.started) >= NODE_SILENT_MS;
                let given_up = gone && settled && (waited || leaving);
                if given_up || leaving {
                    reach.insert(key, Reach { given_up, leaving });
                }
            }
        }
        self.absences.since = since;
        reach
    }

    /// The next step towards what is wanted of a shard; `None` if there is none, or it is no time for it.
    fn step(&self, now: Millis, record: &ShardRecord, pass: &Pass) -> Option<Step> {
        let config = &record.config;
        let volume = self.volumes.get(&config.shard.volume)?;
        let reach = |m: &Member| {
            let reach = pass.reach.get(&(m.node, m.disk)).copied().unwrap_or_default();
            Reach { leaving: reach.leaving || record.leaving == Some(m.copy), ..reach }
        };
        let wanted = usize::from(volume.copies);
        let nodes = pass.domains.spread(config.members.iter().map(|m| m.node)).nodes;
        if record.leaving.is_some() && config.members.len() <= wanted && nodes == config.members.len() {
            return Some(Step::Stay);
        }
        if config.members.len() == wanted && config.members.iter().all(|m| !reach(m).given_up && !reach(m).leaving) {
            return None;
        }
        let primary = config.primary_member()?;
        let busy = config.members.iter().any(|m| m.state == CopyState::Syncing);
        // One epoch at a time: the last one may be of this very moment.
        let fresh = record.changed_at >= self.next_commit();
        if record.distrusted.is_some() || busy || fresh || !self.hears(primary.node, now) {
            return None;
        }
        let sealed = config.is_sealed();
        let free = |m: &&Member| m.state == CopyState::Absent && !(sealed && config.full_set.contains(&m.copy));
        let staying = || config.members.iter().filter(|m| !reach(m).leaving);
        let surplus = config.members.len() > wanted;
        let room = |without: Option<CopyId>| {
            let beside = |node: &NodeId| config.members.iter().all(|m| m.node != *node || Some(m.copy) == without);
            pass.open.iter().any(beside)
        };
        // Two copies of a shard on one node have to be on two of its reactors.
        let successor = |m: &Member| {
            let on = self.successor_of(now, m.node, m.disk)?;
            config.members.iter().all(|other| (other.node, other.disk) != on).then_some(on)
        };
        let anew = |gone: &Member| {
            let (without, on) = (Some(gone.copy), successor(gone));
            (on.is_some() || room(without)).then_some(Step::List { without, on })
        };
        if !config.born {
            let gone = config.members.iter().find(|m| m.copy != config.primary && reach(m).given_up);
            let vouches = self.can_lead(now, primary) && self.failure_of(primary.node, primary.disk).is_none();
            return gone.filter(|_| vouches && !surplus && may_be_made_anew(config)).and_then(anew);
        }
        if let Some(gone) = config.members.iter().filter(free).find(|m| reach(m).given_up) {
            return if surplus { Some(Step::Unlist(gone.copy)) } else { anew(gone) };
        }
        // Of the last full set nobody is unlisted while nothing is acknowledged without them: a copy beside them, once it is filled, is the
        // way out (rule 11).
        if sealed && !surplus && config.members.iter().any(|m| reach(m).given_up) {
            return room(None).then_some(Step::List { without: None, on: None });
        }
        let mut leaving = config.members.iter().filter(|m| reach(m).leaving);
        if staying().count() < wanted && !surplus {
            let on = leaving.clone().find_map(successor);
            return (on.is_some() || room(None)).then_some(Step::List { without: None, on });
        }
        if !surplus {
            return None;
        }
        // More than are wanted: those that are to go, then those that hold less, then any but the primary.
        let too_many = staying().count() > wanted;
        // Of a sealed shard the one beside the last full set is to be filled.
        let idle = leaving.find(free).or_else(|| staying().find(free).filter(|_| too_many && !sealed));
        if let Some(idle) = idle {
            return Some(Step::Unlist(idle.copy));
        }
        // As many others are in sync as the volume wants.
        if sealed || config.in_sync() <= wanted {
            return None;
        }
        let mut going: Vec<&Member> = config.members.iter().filter(|m| reach(m).leaving).collect();
        if going.is_empty() && too_many {
            going = staying().filter(|m| m.copy != config.primary).collect();
        }
        // Those without which the others are farthest apart: of two that are to go, one may be the last of its node.
        let apart =
            |gone: &Member| pass.domains.spread(config.members.iter().filter(|m| m.copy != gone.copy).map(|m| m.node));
        let best = going.iter().map(|m| apart(m)).max();
        going.retain(|m| Some(apart(m)) == best);
        let primary_goes = going.iter().any(|m| m.copy == config.primary);
        going.retain(|m| m.copy != config.primary);
        // Not of every shard the same one: what is left is spread over the nodes.
        let which = config.shard.index.0 as usize % going.len().max(1);
        match going.get(which) {
            Some(member) => Some(Step::Unlist(member.copy)),
            None if primary_goes => {
                let able = staying().filter(|m| self.can_lead(now, m));
                able.min_by_key(|m| (self.primaries.count(m.node), m.node)).map(|m| Step::HandOver(m.copy))
            }
            None => None,
        }
    }

    /// In sync, in reach, and in the opening that counts.
    pub(crate) fn can_lead(&self, now: Millis, member: &Member) -> bool {
        member.state == CopyState::InSync
            && self.hears(member.node, now)
            && self.disk(member.node, member.disk).is_some_and(|d| d.present && d.open == member.open)
    }

    /// The disk that takes the place of this one, if it can take a copy.
    pub(crate) fn successor_of(&self, now: Millis, node: NodeId, disk: DiskId) -> Option<(NodeId, DiskId)> {
        let old = self.disk(node, disk)?;
        let new = self.disk(node, old.successor?)?;
        let apart = !old.present || old.endpoint != new.endpoint;
        (apart && self.takes_copies(now, node, new.disk)).then_some((node, new.disk))
    }

    /// The disk is there, is to stay, and is not full.
    pub(crate) fn takes_copies(&self, now: Millis, node: NodeId, disk: DiskId) -> bool {
        let Some(record) = self.disk(node, disk).filter(|d| d.present && !d.leaving) else { return false };
        if self.failure_of(node, disk).is_some() {
            return false;
        }
        self.hears(node, now) && crate::space::fullness(self.used_on(node, disk), record.capacity) != Fullness::Full
    }

    /// True if there is a new epoch.
    fn take_step(&mut self, now: Millis, shard: ShardId, step: &Step, pass: &mut Pass, dirty: &mut Dirty) -> bool {
        let Some(record) = self.shards.get_mut(&shard) else { return false };
        let config = record.config.clone();
        let unlisted = match step {
            Step::Unlist(copy) | Step::List { without: Some(copy), .. } => config.member(*copy).cloned(),
            Step::List { without: None, .. } | Step::HandOver(_) | Step::Stay => None,
        };
        if matches!(step, Step::Stay) {
            record.leaving = None;
            dirty.add(Key::Shard(shard));
            return false;
        }
        let leaving = record.leaving;
        let mut next = config;
        next.members.retain(|m| unlisted.as_ref().is_none_or(|gone| gone.copy != m.copy));
        match step {
            Step::Unlist(_) | Step::Stay => {}
            Step::HandOver(copy) => next.primary = *copy,
            Step::List { on, .. } => {
                let there = on.and_then(|on| self.member_on(now, &next, on, pass));
                let Some(mut member) = there.or_else(|| self.new_member(now, &next, leaving, pass)) else {
                    return false;
                };
                if !next.born {
                    member.state = CopyState::InSync;
                }
                next.members.push(member);
            }
        }
        let handed_over = matches!(step, Step::HandOver(_));
        self.advance(next, dirty);
        if let Some(gone) = unlisted {
            // Behind the new epoch: with the last thing that a copy of a clone had to do the clone may be flattened, which changes configurations.
            self.delete_copy(shard, &gone, dirty);
            if let Some(record) = self.shards.get_mut(&shard).filter(|s| s.leaving == Some(gone.copy)) {
                record.leaving = None;
                self.balance.moved += 1;
            }
        }
        if handed_over {
            self.renew_orders(|concerned| concerned == shard, dirty);
        }
        true
    }

    /// Begins to move a copy to another disk: an empty one is listed there, beside it. False if it cannot be there.
    pub(crate) fn begin_move(
        &mut self,
        now: Millis,
        shard: ShardId,
        copy: CopyId,
        to: (NodeId, DiskId),
        pass: &mut Pass,
        dirty: &mut Dirty,
    ) -> bool {
        let Some(config) = self.shards.get(&shard).map(|s| s.config.clone()) else { return false };
        let Some(member) = self.member_on(now, &config, to, pass) else { return false };
        let mut next = config;
        next.members.push(member);
        if let Some(record) = self.shards.get_mut(&shard) {
            record.leaving = Some(copy);
        }
        self.absences.reshape(shard.volume);
        self.advance(next, dirty);
        true
    }

    /// Another copy in sync becomes primary; the one that was stays in sync.
    pub(crate) fn hand_over(&mut self, now: Millis, shard: ShardId, to: CopyId, pass: &mut Pass, dirty: &mut Dirty) {
        self.take_step(now, shard, &Step::HandOver(to), pass, dirty);
    }

    /// An empty copy on that disk, if it can take one.
    fn member_on(
        &mut self,
        now: Millis,
        config: &Configuration,
        (node, disk): (NodeId, DiskId),
        pass: &mut Pass,
    ) -> Option<Member> {
        let taken = config.members.iter().any(|m| (m.node, m.disk) == (node, disk));
        // Of one shard a single copy is on its way from one disk of a node to another (`check`).
        let nodes: BTreeSet<NodeId> = config.members.iter().map(|m| m.node).chain([node]).collect();
        let taken = taken || config.members.len() > nodes.len();
        let beside = self.family(config)?.is_none_or(|disks| disks.contains(&(node, disk)));
        if taken || !beside || !self.takes_copies(now, node, disk) || self.is_kept_on(disk, config.shard, pass) {
            return None;
        }
        let volume = config.shard.volume;
        let planner = pass.planner.get_or_insert_with(|| self.planner(now, volume));
        let place = planner.place_on((node, disk), config.size)?;
        self.member_at(volume, place, pass)
    }

    /// An empty copy on the best disk for it, or none.
    fn new_member(
        &mut self,
        now: Millis,
        config: &Configuration,
        leaving: Option<CopyId>,
        pass: &mut Pass,
    ) -> Option<Member> {
        let family = self.family(config)?;
        let volume = config.shard.volume;
        let taken: BTreeSet<NodeId> = config.members.iter().map(|m| m.node).collect();
        let goes = |m: &Member| pass.reach.get(&(m.node, m.disk)).is_some_and(|r| r.leaving) || Some(m.copy) == leaving;
        let beside: BTreeSet<NodeId> = config.members.iter().filter(|m| !goes(m)).map(|m| m.node).collect();
        let disks = self.nodes.values().flat_map(|n| &n.disks).map(|d| d.disk);
        let kept: BTreeSet<DiskId> = disks.filter(|disk| self.is_kept_on(*disk, config.shard, pass)).collect();
        let fits = |place: &Place| {
            let related = family.as_ref().is_none_or(|disks| disks.contains(&(place.node, place.disk)));
            let free = !taken.contains(&place.node) && !kept.contains(&place.disk);
            related && free && self.takes_copies(now, place.node, place.disk)
        };
        let planner = pass.planner.get_or_insert_with(|| self.planner(now, volume));
        let place = planner.place_one(&beside, fits, config.size)?;
        self.member_at(volume, place, pass)
    }

    /// Is an unlisted copy of the shard there that its node may not delete yet, as a clone's copy stands on it? A reactor holds one copy of
    /// a shard: another one could not join before the clone's is gone, which may be never. One that is about to be deleted is no hindrance.
    fn is_kept_on(&self, disk: DiskId, shard: ShardId, pass: &mut Pass) -> bool {
        let kept = pass.kept.get_or_insert_with(|| {
            let due: BTreeSet<CopyId> = self.nodes.keys().flat_map(|node| self.drops_on(*node)).collect();
            let kept = self.drops.values().filter(|drop| !due.contains(&drop.copy));
            kept.map(|drop| (drop.disk, drop.volume, drop.shard)).collect()
        });
        [Some(shard.index), None].into_iter().any(|index| kept.contains(&(disk, shard.volume, index)))
    }

    fn member_at(&mut self, volume: VolumeId, place: Place, pass: &mut Pass) -> Option<Member> {
        let listed = pass.listed.get_or_insert_with(|| {
            let members = self.shards.values().flat_map(|s| s.config.members.iter().map(|m| m.copy));
            members.chain(self.drops.keys().map(|(_, copy)| *copy)).collect()
        });
        let copy = crate::volumes::fresh_copy(volume, listed, &mut self.absences).ok()?;
        let Place { node, disk, open, endpoint } = place;
        Some(Member { copy, node, disk, open, state: CopyState::Absent, since: Epoch(0), past: false, endpoint })
    }

    /// The disks that a clone's copy may go to: those of its parent's copies that stay, whose chunks it shares (rule 16). `Some(None)`: any;
    /// `None`: its parent's record is gone.
    fn family(&self, config: &Configuration) -> Option<Option<BTreeSet<(NodeId, DiskId)>>> {
        let Some(parent) = config.parent else { return Some(None) };
        let record = self.shards.get(&parent.shard)?;
        let staying = record.config.members.iter().filter(|m| record.leaving != Some(m.copy));
        Some(Some(staying.map(|m| (m.node, m.disk)).collect()))
    }

    /// An unlisted copy is never listed again: its node deletes it when it can, and has nothing else to do for it (rule 7).
    fn delete_copy(&mut self, shard: ShardId, gone: &Member, dirty: &mut Dirty) {
        let at = self.next_commit();
        let Member { node, copy, disk, .. } = *gone;
        let ShardId { volume, index } = shard;
        let drop = DropRecord { node, copy, disk, volume, shard: Some(index), dropped_at: at };
        self.drops.insert((node, copy), drop);
        dirty.add(Key::Drop(node, copy));
        self.tell(node, at);
        let mine = self.work.keys().filter(|(at, work)| *at == node && work.copy() == copy);
        let works: Vec<CopyWork> = mine.map(|(_, work)| *work).collect();
        self.confirm_work(node, &works, dirty);
    }

    /// Nodes that were removed and disks that were taken out are forgotten once nothing is expected on them, with what was to be
    /// deleted there: whoever comes back with a copy that is not listed is told to delete it, if its volume is known still. Others may be all that
    /// is left of what a lost state knew: they are kept.
    fn forget_what_is_empty(&mut self, now: Millis, dirty: &mut Dirty) {
        let leaving =
            |n: &crate::record::NodeRecord| n.duty == Duty::Removed || n.disks.iter().any(|d| d.leaving && !d.present);
        if !self.nodes.values().any(leaving) {
            return;
        }
        let used: BTreeSet<(NodeId, DiskId)> =
            self.shards.values().flat_map(|s| s.config.members.iter().map(|m| (m.node, m.disk))).collect();
        let mut forgotten: BTreeSet<(NodeId, DiskId)> = BTreeSet::new();
        let mut removed: Vec<NodeId> = Vec::new();
        for node in self.nodes.values() {
            let empty = |disk: DiskId| !used.contains(&(node.node, disk));
            let away = !self.hears(node.node, now);
            if node.duty == Duty::Removed && away && node.disks.iter().all(|d| empty(d.disk)) {
                removed.push(node.node);
                forgotten.extend(node.disks.iter().map(|d| (node.node, d.disk)));
            } else {
                let out = node.disks.iter().filter(|d| d.leaving && !d.present && empty(d.disk));
                forgotten.extend(out.map(|d| (node.node, d.disk)));
            }
        }
        for (node, disk) in &forgotten {
            if let Some(record) = self.nodes.get_mut(node) {
                record.disks.retain(|d| d.disk != *disk);
                dirty.add(Key::Node(*node));
            }
            if !removed.contains(node) {
                self.note(Happened::DiskForgotten { node: *node, disk: *disk }, dirty);
            }
        }
        let on_them = self.drops.values().filter(|d| forgotten.contains(&(d.node, d.disk)));
        let mut dropped: BTreeMap<NodeId, Vec<CopyId>> = BTreeMap::new();
        on_them.for_each(|d| dropped.entry(d.node).or_default().push(d.copy));
        for (node, copies) in dropped {
            self.forget_drops(node, &copies, dirty);
        }
        for node in removed {
            self.nodes.remove(&node);
            self.presence.remove(&node);
            dirty.add(Key::Node(node));
            self.note(Happened::NodeForgotten { node }, dirty);
        }
    }

    /// How a disk failed, as its node says, if it did.
    pub(crate) fn failure_of(&self, node: NodeId, disk: DiskId) -> Option<&String> {
        self.presence.get(&node)?.failed.get(&disk)
    }

    /// Disks of a node that were to be emptied and are: nothing is listed on them, or to be deleted there, or kept although
    /// nobody knows it. One that failed deletes nothing any more. Not all that it has: a node without any is none.
    pub(crate) fn empty_disks(&self, node: NodeId) -> Vec<DiskId> {
        let disks = || self.nodes.get(&node).into_iter().flat_map(|n| &n.disks);
        let mut leaving: Vec<DiskId> = disks().filter(|d| d.leaving && d.present).map(|d| d.disk).collect();
        if leaving.is_empty() || disks().all(|d| d.leaving || !d.present) {
            return Vec::new();
        }
        let members = self.shards.values().flat_map(|s| &s.config.members).map(|m| (m.node, m.disk));
        let used: BTreeSet<DiskId> = members
            .chain(
                self.drops
                    .values()
                    .map(|d| (d.node, d.disk))
                    .filter(|(at, disk)| self.failure_of(*at, *disk).is_none()),
            )
            .filter(|(at, _)| *at == node)
            .map(|(_, disk)| disk)
            .collect();
        let strange = |disk: &DiskId| self.presence.get(&node).is_some_and(|p| p.strange.contains_key(disk));
        leaving.retain(|disk| !used.contains(disk) && !strange(disk));
        leaving
    }

    /// Copies that a node holds and that were unlisted while it was away.
    pub(crate) fn stale_copies(&self, register: &crate::api::Register, dirty: &mut Dirty) -> Vec<DropRecord> {
        let at = self.next_commit();
        let mut stale = Vec::new();
        for disk in &register.disks {
            for (copy, reported) in &disk.copies {
                let Some(own) = self.shards.get(&reported.shard) else { continue };
                let active = self.volumes.get(&reported.shard.volume).is_some_and(|v| v.state == VolumeState::Active);
                let unlisted = own.config.member(*copy).is_none() && reported.epoch < own.config.epoch;
                let key = (register.node, *copy);
                if active && unlisted && own.distrusted.is_none() && !self.drops.contains_key(&key) {
                    dirty.add(Key::Drop(register.node, *copy));
                    let volume = reported.shard.volume;
                    stale.push(DropRecord {
                        node: register.node,
                        copy: *copy,
                        disk: disk.disk,
                        volume,
                        shard: Some(reported.shard.index),
                        dropped_at: at,
                    });
                }
            }
        }
        stale
    }
}

/// May a copy that was given up be another one from now on, before the shard was born? Until then nothing was acknowledged: every copy is
/// empty, and empty ones in any number are a full set. Born is granted by this record alone, and for its present epoch alone: a node that
/// has not heard of the new one asks in vain. Not the primary: it says what the shard's nodes have seen, which may be more than this
/// record; a promotion comes first. Not a clone's copy, which begins with what its parent's holds. Nor where too few are left (which only an
/// adoption does): of a sealed epoch's last full set nobody goes.
fn may_be_made_anew(unborn: &Configuration) -> bool {
    unborn.parent.is_none() && !unborn.is_sealed()
}
