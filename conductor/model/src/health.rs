//! The truth about a volume in one word, with the reasons and the next step.
//!
//! ```text
//! healthy     as many copies as are wanted are in sync; others may be on their way beside them
//! resyncing   copies are being filled, none is out of reach           writes go on
//! degraded    copies are missing, or one cannot be filled            writes go on
//! waiting     writes wait: for a node, a copy, a settling, an epoch   some writes wait
//! lost        no copy that holds every write is left, or can be read    until its disk comes back
//! ```
//! Derived on demand from the configurations, who is heard, and what primaries say of their shards; the worst wins. A node that holds
//! only copies that take no part keeps nobody waiting.

use crate::api::{Ailment, Filling, Trouble};
use crate::limits::MAX_REASONS_PER_VOLUME;
use crate::record::{ShardRecord, VolumeRecord};
use crate::resync::seconds_left;
use crate::views::{Duty, FillInfo, Health, NodeState};
use crate::{Bytes, Conductor, CopyId, CopyState, DiskId, Member, Millis, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that are named in one sentence; of more it says how many.
const NODES_NAMED: usize = 4;

/// A volume's word, why, and how far its copies are filled.
pub(crate) struct Verdict {
    pub(crate) health: Health,
    pub(crate) reasons: Vec<String>,
    pub(crate) filling: Option<FillInfo>,
}

/// What was seen in a volume's shards, by whom it concerns: thousands of shards make a handful of sentences.
#[derive(Default)]
struct Findings {
    lost: Several,
    /// Lost by force.
    given_up: Several,
    sealed: Several,
    /// Fewer copies are listed than are wanted.
    short: Several,
    unborn: u32,
    /// Copies that writes wait for.
    silent: BTreeSet<NodeId>,
    missing: BTreeSet<(NodeId, DiskId)>,
    restarted: BTreeSet<NodeId>,
    /// Copies that writes do not wait for, and why they are not filled.
    absent_silent: BTreeMap<NodeId, u32>,
    absent_missing: BTreeMap<(NodeId, DiskId), u32>,
    absent_failed: BTreeMap<(NodeId, DiskId), u32>,
    absent: u32,
    /// Of those in reach, not to be filled by somebody's word; and of these, beside as many in sync as are wanted.
    held: u32,
    held_beside: u32,
    /// Of those that are filled or wait for it, the ones beside as many in sync as are wanted: copies move, and none is missing.
    beside: u32,
    syncing: Vec<CopyId>,
    /// Where those are that are filled, or wait for it.
    filled_on: BTreeSet<NodeId>,
    doubts: Vec<String>,
}

/// So many shards, and the first of them.
#[derive(Default)]
struct Several {
    count: u32,
    first: Option<String>,
}

impl Several {
    fn add(&mut self, shard: impl ToString) {
        self.count += 1;
        self.first.get_or_insert_with(|| shard.to_string());
    }

    /// `v1/0`, or `3 shards (v1/0 first)`.
    fn name(&self) -> String {
        match (self.count, &self.first) {
            (1, Some(first)) => first.clone(),
            (n, Some(first)) => format!("{n} shards ({first} first)"),
            (n, None) => format!("{n} shards"),
        }
    }
}

impl Conductor {
    pub(crate) fn verdict(&self, now: Millis, volume: &VolumeRecord) -> Verdict {
        let mut found = Findings::default();
        for record in self.shards_of(volume.id) {
            self.look_at(now, record, &mut found);
        }
        let mut said = self.say(now, volume, &found);
        let filling = self.filling(volume, &found);
        said.extend(self.troubles(now, volume));
        // No trouble yet.
        said.extend(self.shared_domains(volume.id).into_iter().map(|why| (Health::Healthy, why)));
        said.extend(found.doubts.into_iter().map(|why| (Health::Degraded, why)));
        if let Some(filling) = &filling {
            // Copies in reach that wait their turn while another one is filled are on their way, too.
            let (what, moves) = (filling.sentence(), filling.copies + filling.waiting <= found.beside);
            said.push(match filling.copies {
                _ if moves => (Health::Healthy, format!("{what}; none is missing meanwhile")),
                0 => (Health::Degraded, what),
                _ => (Health::Resyncing, what),
            });
        }
        said.sort_by(|(a, _), (b, _)| b.cmp(a));
        let health = said.first().map_or(Health::Healthy, |(health, _)| *health);
        said.truncate(MAX_REASONS_PER_VOLUME);
        Verdict { health, reasons: said.into_iter().map(|(_, why)| why).collect(), filling }
    }

    fn look_at(&self, now: Millis, record: &ShardRecord, found: &mut Findings) {
        let config = &record.config;
        found.unborn += u32::from(!config.born);
        if let Some(why) = record.distrusted.as_ref().filter(|_| found.doubts.len() < MAX_REASONS_PER_VOLUME) {
            found
                .doubts
                .push(format!("{}: this conductor's record is in doubt, it changes nothing: {why}", config.shard));
        }
        let sealed = config.is_sealed();
        if sealed {
            found.sealed.add(config.shard);
        }
        let gone = |m: &Member| self.disk(m.node, m.disk).is_none_or(|d| !d.present) || self.is_given_up(now, m);
        let holds_all = |m: &&Member| m.state == CopyState::InSync || (sealed && config.full_set.contains(&m.copy));
        if config.members.iter().filter(holds_all).all(gone) {
            match config.members.iter().filter(holds_all).any(|m| self.is_given_up(now, m)) {
                true => found.given_up.add(config.shard),
                false => found.lost.add(config.shard),
            }
        }
        let wanted = self.volumes.get(&config.shard.volume).map_or(0, |v| usize::from(v.copies));
        if config.members.len() < wanted {
            found.short.add(config.shard);
        }
        // Until what is listed beside these is filled, what it takes the place of is there: on as many nodes, of which one may have two.
        let nodes: BTreeSet<NodeId> = config.in_sync_members().map(|m| m.node).collect();
        let whole = !sealed && nodes.len() >= wanted;
        for member in &config.members {
            let alive = self.node_state(now, member.node) == NodeState::Alive;
            let silent = !alive && !self.is_unheard(member.node, now);
            match member.state {
                CopyState::Absent if silent => *found.absent_silent.entry(member.node).or_default() += 1,
                CopyState::Absent if gone(member) => {
                    *found.absent_missing.entry((member.node, member.disk)).or_default() += 1;
                }
                CopyState::Absent if !sealed && self.failure_of(member.node, member.disk).is_some() => {
                    *found.absent_failed.entry((member.node, member.disk)).or_default() += 1;
                }
                CopyState::Absent if record.held.contains(&member.copy) => {
                    found.held += 1;
                    found.held_beside += u32::from(whole);
                }
                CopyState::Absent => {
                    found.absent += 1;
                    found.beside += u32::from(whole);
                    found.filled_on.insert(member.node);
                }
                CopyState::Syncing => {
                    found.beside += u32::from(whole);
                    found.syncing.push(member.copy);
                    found.filled_on.insert(member.node);
                }
                CopyState::InSync if silent => {
                    found.silent.insert(member.node);
                }
                CopyState::InSync if gone(member) => {
                    found.missing.insert((member.node, member.disk));
                }
                // Its primary has not named the new opening yet: what was in flight is not settled.
                CopyState::InSync => {
                    if self.disk(member.node, member.disk).is_some_and(|d| d.open != member.open) {
                        found.restarted.insert(member.node);
                    }
                }
            }
        }
    }

    /// It was said of its node or disk, which is gone, that it will not come back.
    pub(crate) fn is_given_up(&self, now: Millis, member: &Member) -> bool {
        let removed = self.nodes.get(&member.node).is_some_and(|n| n.duty == Duty::Removed);
        let leaving = self.disk(member.node, member.disk).is_some_and(|d| d.leaving && !d.present);
        leaving || (removed && !self.hears(member.node, now))
    }

    /// Silence first: it explains most of the rest.
    fn say(&self, now: Millis, volume: &VolumeRecord, found: &Findings) -> Vec<(Health, String)> {
        let mut said = Vec::new();
        let silence = |node: &NodeId| {
            let host = self.nodes.get(node).map_or("?", |n| &n.host);
            format!("{node} ({host}) silent for {} s", self.silence(*node, now) / 1000)
        };
        if found.lost.count > 0 {
            let name = found.lost.name();
            let disks = found.missing.iter().chain(found.absent_missing.keys());
            let disks: BTreeSet<String> = disks.map(|(node, disk)| format!("{disk} of {node}")).collect();
            let disks = disks.into_iter().take(MAX_REASONS_PER_VOLUME).collect::<Vec<_>>().join(", ");
            said.push((Health::Lost, format!("{name}: no copy with all writes is left: bring back disk {disks}")));
        }
        if found.given_up.count > 0 {
            let (name, volume) = (found.given_up.name(), &volume.name);
            let why = format!(
                "{name}: the last copy with all writes was given up: delete volume {volume}, or bring back what held it"
            );
            said.push((Health::Lost, why));
        }
        for node in &found.silent {
            said.push((Health::Waiting, format!("{}: writes wait; start it again", silence(node))));
        }
        for (node, disk) in &found.missing {
            said.push((Health::Waiting, format!("{node} runs without disk {disk}: writes wait; bring the disk back")));
        }
        for node in &found.restarted {
            said.push((Health::Waiting, format!("{node} restarted: its copies are not settled yet")));
        }
        if found.sealed.count > 0 {
            let (name, min) = (found.sealed.name(), volume.min_copies);
            said.push((
                Health::Waiting,
                format!("{name}: fewer than {min} copies in sync: writes wait until one is filled"),
            ));
        }
        match found.unborn {
            0 => {}
            1 => said.push((Health::Waiting, "1 shard is being created".to_owned())),
            n => said.push((Health::Waiting, format!("{n} shards are being created"))),
        }
        if found.short.count > 0 {
            let name = found.short.name();
            let why = format!("{name}: fewer copies are placed than are wanted: add a node, or uncordon one");
            said.push((Health::Degraded, why));
        }
        for (node, count) in &found.absent_silent {
            let disks = self.nodes.get(node).into_iter().flat_map(|n| &n.disks);
            let left = disks.filter_map(|d| self.replaced_in(now, *node, d.disk)).max();
            let way = way_out("start it again", left);
            said.push((Health::Degraded, format!("{}: {} missing; {way}", silence(node), copies(*count))));
        }
        for ((node, disk), count) in &found.absent_missing {
            let way = way_out("bring the disk back", self.replaced_in(now, *node, *disk));
            let at =
                self.disk(*node, *disk).and_then(|d| d.path.as_ref()).map_or_else(String::new, |at| format!(" ({at})"));
            let missing = format!("{node} runs without disk {disk}{at}: {} missing; {way}", copies(*count));
            said.push((Health::Degraded, missing));
        }
        for ((node, disk), count) in &found.absent_failed {
            let way = way_out("replace the disk", self.replaced_in(now, *node, *disk));
            said.push((Health::Degraded, format!("disk {disk} of {node} failed: {} missing; {way}", copies(*count))));
        }
        if found.held > 0 {
            let (count, volume) = (copies(found.held), &volume.name);
            let why = format!("{count} not filled, as it was aborted: `trine resync resume {volume}` has it go on");
            let word = if found.held > found.held_beside { Health::Degraded } else { Health::Healthy };
            said.push((word, why));
        }
        said
    }

    /// What the primaries say of their shards.
    pub(crate) fn troubles_said(&self, now: Millis) -> impl Iterator<Item = (NodeId, &Trouble)> {
        let heard = self.presence.iter().filter(move |(n, _)| self.node_state(now, **n) != NodeState::Dead);
        let all = heard.flat_map(|(node, presence)| presence.troubles.iter().map(move |trouble| (*node, trouble)));
        // Of an assignment that moved on only the present primary's word counts.
        all.filter(move |(node, trouble)| self.primary_node(trouble.shard) == Some(*node))
    }

    /// What they say of a volume's shards that do not serve, or not as they should.
    fn troubles(&self, now: Millis, volume: &VolumeRecord) -> impl Iterator<Item = (Health, String)> {
        let id = volume.id;
        let said = self.troubles_said(now).filter(move |(_, trouble)| trouble.shard.volume == id);
        let said = said.filter_map(|(node, trouble)| {
            let Trouble { shard, waiting, reason: why, .. } = trouble;
            Some(match trouble.ailment {
                // It is among the warnings.
                Some(Ailment::Unreadable) => return None,
                Some(Ailment::Unfilled) => (Health::Degraded, format!("{shard}: {why}")),
                None if trouble.lost => {
                    let way = format!("repair the disk and start {node} again, or delete the volume");
                    (Health::Lost, format!("{shard}: {why}; no other copy holds all writes, requests fail: {way}"))
                }
                None => (Health::Waiting, format!("{shard}: {why} ({waiting} waiting)")),
            })
        });
        let mut said: Vec<(Health, String)> = said.collect();
        said.sort_by_key(|(health, _)| Reverse(*health));
        said.into_iter().take(MAX_REASONS_PER_VOLUME)
    }

    fn filling(&self, volume: &VolumeRecord, found: &Findings) -> Option<FillInfo> {
        let Findings { syncing, absent, filled_on, .. } = found;
        if filled_on.is_empty() {
            return None;
        }
        let mut said = self.fillings();
        said.retain(|_, filling| filling.shard.volume == volume.id);
        let sum = |of: &dyn Fn(&Filling) -> Bytes| {
            Bytes(syncing.iter().filter_map(|copy| said.get(copy)).map(|f| of(f).0).fold(0, u64::saturating_add))
        };
        Some(FillInfo {
            copies: u32::try_from(syncing.len()).unwrap_or(u32::MAX),
            waiting: *absent,
            nodes: filled_on.iter().copied().collect(),
            done: sum(&|f| f.done),
            of: sum(&|f| f.of),
            rate: sum(&|f| f.rate),
        })
    }
}

impl FillInfo {
    /// Seconds until what is known to be left is done; `None` while nothing moves.
    pub fn eta_seconds(&self) -> Option<u64> {
        seconds_left(self.done, self.of, self.rate)
    }

    /// What is filled, and where.
    pub fn sentence(&self) -> String {
        let waiting = match self.waiting {
            0 => String::new(),
            n => format!("{} to be filled", copies(n)),
        };
        let what = match self.copies {
            0 => waiting,
            n if waiting.is_empty() => format!("{} being filled", copies(n)),
            n => format!("{} being filled, {waiting}", copies(n)),
        };
        let named: Vec<String> = self.nodes.iter().take(NODES_NAMED).map(ToString::to_string).collect();
        let more = match self.nodes.len() - named.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!("{what} on {}{more}", named.join(", "))
    }
}

/// What to do, and what is done otherwise in so many milliseconds.
fn way_out(what: &str, left_ms: Option<u64>) -> String {
    match left_ms.map(|ms| ms.div_ceil(1_000)) {
        None => what.to_owned(),
        Some(0) => format!("{what}, or add a node that can take others"),
        Some(s) if s <= 120 => format!("{what}, or others are made in {s} s"),
        Some(s) => format!("{what}, or others are made in {} min", s.div_ceil(60)),
    }
}

fn copies(count: u32) -> String {
    match count {
        1 => "1 copy".to_owned(),
        n => format!("{n} copies"),
    }
}
