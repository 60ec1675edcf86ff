//! Nodes: registration, heartbeats and what a node is told.
//!
//! A registration replaces what is known of a node's disks and openings, never a shard's configuration: a restart takes no
//! copy out, the shard's primary asks for what it needs (rule 10). A node is told, in one message, the configurations of
//! the shards it is primary of, the attach generations of the volumes it has copies of, and the copies it has to delete.

use crate::api::{Heartbeat, HeartbeatAnswer, Reachable, Register, Registered};
use crate::events::Happened;
use crate::limits::{
    LISTEN_MS, MAX_ADDRESSES, MAX_DISK, MAX_DISKS_PER_NODE, MAX_FILLINGS_PER_NODE, MAX_HOST_NAME, MAX_NODES, MAX_PATH,
    MAX_REASON, MAX_SHARDS, MAX_TROUBLES_PER_NODE, NODE_SILENT_MS, REFUSED_SHOWN_MS,
};
use crate::record::{DiskRecord, DropRecord, NodeRecord, VolumeRecord};
use crate::state::Presence;
use crate::views::{Duty, NodeState, RefusedNode, VolumeState};
use crate::{
    Commit, Conductor, Configuration, CopyId, Dirty, DiskId, Error, Key, Millis, NodeId, ShardId, ShardIndex, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};

impl Conductor {
    /// A node that started, or that was told to register anew. Repeats change nothing.
    pub fn register(&mut self, now: Millis, register: &Register) -> Result<(Registered, Dirty), Error> {
        let node = register.node;
        if let Err(why) = self.check_registration(now, register) {
            self.remember_refused(now, register, &why);
            return Err(why);
        }
        self.refused.remove(&node);
        let mut dirty = Dirty::default();
        let doubts = self.doubts(register);
        self.hear(now, register, &mut dirty);
        let at = self.next_commit();

        let moved_here: BTreeSet<DiskId> = register.disks.iter().map(|d| d.disk).collect();
        for other in self.nodes.values_mut().filter(|n| n.node != node) {
            let before = other.disks.len();
            other.disks.retain(|d| !moved_here.contains(&d.disk));
            if other.disks.len() != before {
                dirty.add(Key::Node(other.node));
            }
        }

        let record = self.registered(register, at);
        let moved_endpoints: BTreeSet<DiskId> =
            record.disks.iter().filter(|d| d.endpoint_at == at).map(|d| d.disk).collect();
        if !self.nodes.contains_key(&node) {
            self.note(Happened::NodeJoined { node, host: record.host.clone() }, &mut dirty);
        }
        if self.nodes.get(&node) != Some(&record) {
            self.nodes.insert(node, record);
            dirty.add(Key::Node(node));
            self.tell_of_endpoints(&moved_endpoints, at);
        }
        let stale = if self.meta.recovery.is_some() { Vec::new() } else { self.stale_copies(register, &mut dirty) };
        for drop in stale {
            self.drops.insert((node, drop.copy), drop);
            self.tell(node, at);
        }
        for (shard, why) in doubts {
            if let Some(record) = self.shards.get_mut(&shard).filter(|r| r.distrusted.is_none()) {
                record.distrusted = Some(why);
                dirty.add(Key::Shard(shard));
            }
        }
        let used = register.disks.iter().map(|d| (d.disk, d.used)).collect();
        let strange = self.strangers(register.disks.iter().map(|d| (d.disk, d.copies.as_slice())));
        self.presence.insert(node, Presence { heard: Some(now), used, strange, ..Presence::default() });
        let mine = self.primaries.of(node);
        self.renew_orders(|shard| mine.contains(&shard), &mut dirty);
        let dirty = self.seal(dirty);
        Ok((Registered { cluster: self.meta.cluster, commit: self.meta.commit.0 }, dirty))
    }

    /// A sign of life. The answer may be held back while `has_news` is false.
    pub fn heartbeat(&mut self, now: Millis, beat: &Heartbeat) -> Result<(HeartbeatAnswer, Dirty), Error> {
        let known = self.nodes.get(&beat.node).ok_or(Error::UnknownNode(beat.node))?;
        let expected = known.disks.iter().filter(|d| d.present).map(|d| (d.disk, d.open));
        let said: BTreeMap<_, _> = beat.disks.iter().map(|(disk, open, _)| (*disk, *open)).collect();
        if said.len() != beat.disks.len() || expected.collect::<BTreeMap<_, _>>() != said {
            return Err(Error::UnknownNode(beat.node));
        }
        self.check_seen(beat.node, Commit(beat.after))?;
        if self.is_to_register(beat.node) {
            return Err(Error::UnknownNode(beat.node));
        }
        let mut dirty = Dirty::default();
        if beat.after > self.meta.commit.0 {
            let (node, own) = (beat.node, self.meta.commit);
            let why =
                format!("its state is from the past: {node} has seen commit {}, it only {own}", Commit(beat.after));
            self.doubt(now, why, &mut dirty);
            self.continue_above(Commit(beat.after), &mut dirty);
        }
        let presence = self.presence.entry(beat.node).or_default();
        presence.heard = Some(now);
        presence.acted = Commit(beat.after);
        presence.used = beat.disks.iter().map(|(disk, _, used)| (*disk, *used)).collect();
        presence.troubles = beat.troubles.iter().take(MAX_TROUBLES_PER_NODE).cloned().collect();
        for trouble in &mut presence.troubles {
            trouble.reason = trouble.reason.chars().take(MAX_REASON).collect();
        }
        // Copies that are gone stay named until there are too many: they are few, and never looked up.
        if presence.copies.len() + beat.copies.len() > MAX_SHARDS {
            presence.copies.clear();
        }
        presence.copies.extend(beat.copies.iter().copied().take(MAX_SHARDS));
        presence.filling = beat.filling.iter().take(MAX_FILLINGS_PER_NODE).copied().collect();
        presence.integrity = beat.integrity.iter().map(|said| (said.disk, *said)).collect();
        let why = |why: &String| why.chars().take(MAX_REASON).collect();
        presence.failed = beat.failed.iter().take(MAX_DISKS_PER_NODE).map(|(disk, said)| (*disk, why(said))).collect();
        if self.meta.recovery.is_none() {
            let dropped: Vec<CopyId> =
                beat.dropped.iter().copied().filter(|c| self.is_drop_there(beat.node, *c)).collect();
            self.forget_drops(beat.node, &dropped, &mut dirty);
        }
        let dirty = self.seal(dirty);
        Ok((self.answer(beat.node, Commit(beat.after)), dirty))
    }

    /// On each disk, how many copies are of volumes that this state does not know.
    pub(crate) fn strangers<'a>(
        &self,
        disks: impl Iterator<Item = (DiskId, &'a [(CopyId, Configuration)])>,
    ) -> BTreeMap<DiskId, usize> {
        let strange = |(_, c): &&(CopyId, Configuration)| !self.volumes.contains_key(&c.shard.volume);
        let counts = disks.map(|(disk, copies)| (disk, copies.iter().filter(strange).count()));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// True if a node that acted upon `after` has something new to hear.
    pub fn has_news(&self, node: NodeId, after: Commit) -> bool {
        self.news.get(&node).is_some_and(|newest| *newest > after)
    }

    /// What a node that acted upon `after` has to know.
    pub fn answer(&self, node: NodeId, after: Commit) -> HeartbeatAnswer {
        let mut assignments = Vec::new();
        let mut generations: BTreeMap<VolumeId, _> = BTreeMap::new();
        if self.meta.recovery.is_some() {
            // Who serves goes on; what this state says may be over since.
            let version = self.meta.commit.0;
            let fill_rate = self.meta.settings.fill_rate;
            return HeartbeatAnswer { version, commit: version, fill_rate, ..HeartbeatAnswer::default() };
        }
        if self.has_news(node, after) {
            for shard in self.shards.values() {
                let config = &shard.config;
                let is_primary = config.primary_member().is_some_and(|m| m.node == node);
                let concerned = is_primary || shard.former.contains(&node);
                let begins = concerned && self.assignment_at(shard) > after;
                if begins {
                    assignments.push(self.with_endpoints(config));
                }
                // Whom a volume is not for any more, a node that begins to serve it has to know as well.
                let volume = self.volumes.get(&config.shard.volume).filter(|v| v.attach_at > after || begins);
                if let Some(volume) = volume.filter(|_| config.members.iter().any(|m| m.node == node)) {
                    generations.insert(volume.id, volume.floor());
                }
            }
            // Nobody has any more what is deleted: told before the copies are.
            let here = |volume: &VolumeRecord| self.drops.values().any(|d| d.node == node && d.volume == volume.id);
            let deleted = self.volumes.values().filter(|v| v.state == VolumeState::Deleting && v.attach_at > after);
            generations.extend(deleted.filter(|volume| here(volume)).map(|volume| (volume.id, volume.floor())));
        }
        let readers = generations.keys().filter_map(|id| self.volumes.get(id)?.reader_list()).collect();
        HeartbeatAnswer {
            version: self.meta.commit.0,
            commit: self.meta.commit.0,
            assignments,
            generations: generations.into_iter().collect(),
            readers,
            drop: self.drops_on(node).collect(),
            orders: self.orders_for(node),
            undisputed: !self
                .primaries
                .of(node)
                .iter()
                .any(|s| self.shards.get(s).is_some_and(|s| s.distrusted.is_some())),
            work: self.work_for(node),
            retire: self.empty_disks(node),
            fill_rate: self.meta.settings.fill_rate,
            keys: self.keys_since(after),
            held: self.has_news(node, after).then(|| self.held_for(node)),
            reachable: self.has_news(node, after).then(|| self.reachable()),
        }
    }

    /// All reactors that listen at several addresses.
    fn reachable(&self) -> Vec<Reachable> {
        let disks = self.nodes.values().flat_map(|node| &node.disks).filter(|disk| disk.present);
        disks.filter_map(DiskRecord::reachable).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A node without the disk would find no such copy, and say that it is gone.
    fn is_drop_there(&self, node: NodeId, copy: CopyId) -> bool {
        let disk = self.drops.get(&(node, copy)).and_then(|drop| self.disk(node, drop.disk));
        disk.is_none_or(|disk| disk.present)
    }

    /// Copies that `node` is to delete by now.
    pub(crate) fn drops_on(&self, node: NodeId) -> impl Iterator<Item = CopyId> {
        let needed = self.stood_on(node);
        let is_needed = move |drop: &DropRecord| {
            let of = |shard| (drop.volume, drop.disk, shard);
            match drop.shard {
                Some(shard) => needed.contains(&of(Some(shard))) || needed.contains(&of(None)),
                None => needed.range(of(None)..=of(Some(ShardIndex(u32::MAX)))).next().is_some(),
            }
        };
        let all = self.drops.range((node, CopyId(0))..=(node, CopyId(u64::MAX)));
        let due = move |copy: &CopyId, drop: &DropRecord| !is_needed(drop) && self.is_drop_there(node, *copy);
        all.filter(move |((_, copy), drop)| due(copy, drop)).map(|((_, copy), _)| *copy)
    }

    /// What copies of clones on `node` share chunks with, of volumes that have something to delete there: a parent's copy waits for its
    /// clones' on its disk. Of which shard, if that is known.
    fn stood_on(&self, node: NodeId) -> BTreeSet<(VolumeId, DiskId, Option<ShardIndex>)> {
        let drops = || self.drops.range((node, CopyId(0))..=(node, CopyId(u64::MAX))).map(|(_, drop)| drop);
        let parents: BTreeSet<VolumeId> = drops().map(|drop| drop.volume).collect();
        let mut needed = BTreeSet::new();
        for drop in drops() {
            let parent = self.volumes.get(&drop.volume).and_then(|volume| volume.parent);
            needed.extend(parent.map(|parent| (parent.volume, drop.disk, drop.shard)));
        }
        for clone in self.volumes.values().filter(|v| v.parent.is_some_and(|p| parents.contains(&p.volume))) {
            for config in self.shards_of(clone.id).map(|shard| &shard.config) {
                let Some(parent) = config.parent else { continue };
                let here = config.members.iter().filter(|m| m.node == node);
                needed.extend(here.map(|m| (parent.shard.volume, m.disk, Some(parent.shard.index))));
            }
        }
        needed
    }

    /// The node deleted these copies: they are forgotten, and with its last one the volume.
    pub(crate) fn forget_drops(&mut self, node: NodeId, dropped: &[CopyId], dirty: &mut Dirty) {
        let mut volumes = BTreeSet::new();
        for copy in dropped {
            if let Some(drop) = self.drops.remove(&(node, *copy)) {
                dirty.add(Key::Drop(node, *copy));
                volumes.insert(drop.volume);
            }
        }
        if !volumes.is_empty() {
            for drop in self.drops.values() {
                volumes.remove(&drop.volume);
            }
        }
        for volume in volumes {
            if self.volumes.get(&volume).is_some_and(|v| v.state == VolumeState::Deleting) {
                self.volumes.remove(&volume);
                dirty.add(Key::Volume(volume));
            }
        }
    }

    fn check_registration(&self, now: Millis, register: &Register) -> Result<(), Error> {
        let node = register.node;
        let invalid = |what: String| Err(Error::Invalid(what));
        self.check_cluster(register)?;
        if node.0 == 0 {
            return invalid("node ids start at 1".to_owned());
        }
        if !is_plain(&register.host, MAX_HOST_NAME) {
            return invalid(format!("{node}: a host name is 1 to {MAX_HOST_NAME} printable characters without spaces"));
        }
        if !register.version.is_empty() && !is_plain(&register.version, MAX_HOST_NAME) {
            return invalid(format!(
                "{node}: a version is {MAX_HOST_NAME} printable characters at most, without spaces"
            ));
        }
        if !register.rack.is_empty() && !is_plain(&register.rack, MAX_HOST_NAME) {
            return invalid(format!(
                "{node}: a rack's name is {MAX_HOST_NAME} printable characters at most, without spaces"
            ));
        }
        if register.disks.is_empty() {
            return invalid(format!("{node} has no disk"));
        }
        let mut seen = BTreeSet::new();
        for disk in &register.disks {
            if !seen.insert(disk.disk) {
                return invalid(format!("{node} names disk {} twice", disk.disk));
            }
            if disk.path.as_ref().is_some_and(|path| path.len() > MAX_PATH) {
                return invalid(format!("disk {} has a path of more than {MAX_PATH} bytes", disk.disk));
            }
            if disk.addresses.len() > MAX_ADDRESSES {
                return invalid(format!("disk {} is served at more than {} addresses", disk.disk, MAX_ADDRESSES + 1));
            }
            if disk.capacity > MAX_DISK {
                return invalid(format!("disk {} is larger than {MAX_DISK}", disk.disk));
            }
            self.check_not_elsewhere(now, node, disk.disk)?;
        }
        self.check_is_it(now, register)?;
        if !self.nodes.contains_key(&node) && self.nodes.len() >= MAX_NODES {
            return Err(Error::Limit { what: "nodes", limit: MAX_NODES });
        }
        let missing = self.nodes.get(&node).into_iter().flat_map(|n| &n.disks);
        let all = seen.len() + missing.filter(|d| !seen.contains(&d.disk)).count();
        if all > MAX_DISKS_PER_NODE {
            return Err(Error::Limit { what: "disks in a node", limit: MAX_DISKS_PER_NODE });
        }
        Ok(())
    }

    /// Is it the node that has this number? Of two that share one each would displace the other for ever. One that was heard just now and
    /// has no disk in common with this one, or another host, is somebody else; whose successor this is, is silent.
    fn check_is_it(&self, now: Millis, register: &Register) -> Result<(), Error> {
        let Some(known) = self.nodes.get(&register.node) else { return Ok(()) };
        let runs = self.silence(register.node, now) < NODE_SILENT_MS;
        let mut there = known.disks.iter().filter(|d| d.present).peekable();
        let has = |disk: DiskId| register.disks.iter().any(|d| d.disk == disk);
        let other = there.peek().is_some() && (known.host != register.host || !there.any(|d| has(d.disk)));
        if runs && other {
            return Err(Error::NodeElsewhere { node: register.node, host: known.host.clone() });
        }
        Ok(())
    }

    /// A disk may come from another node only if that one is without it, and only while no copy is expected there.
    fn check_not_elsewhere(&self, now: Millis, node: NodeId, disk: DiskId) -> Result<(), Error> {
        for holder in self.nodes.values().filter(|n| n.node != node) {
            let Some(record) = holder.disks.iter().find(|d| d.disk == disk) else { continue };
            let in_use = record.present && self.is_possibly_up(holder.node, now);
            let on_it = |n: NodeId, d: DiskId| n == holder.node && d == disk;
            let holds_copies = self.shards.values().any(|s| s.config.members.iter().any(|m| on_it(m.node, m.disk)))
                || self.drops.values().any(|d| on_it(d.node, d.disk));
            if in_use || holds_copies {
                return Err(Error::DiskElsewhere { disk, asking: node, holder: holder.node });
            }
        }
        Ok(())
    }

    /// Whoever looks at a conductor that took the place of a lost one has to see whose data is waiting for that one.
    fn remember_refused(&mut self, now: Millis, register: &Register, why: &Error) {
        if !matches!(why, Error::OtherCluster { .. }) || !is_plain(&register.host, MAX_HOST_NAME) {
            return;
        }
        self.refused.retain(|_, (asked, _)| now.since(*asked) < REFUSED_SHOWN_MS);
        if self.refused.len() < MAX_NODES {
            let Register { node, host, cluster, .. } = register.clone();
            self.refused.insert(node, (now, RefusedNode { node, host, cluster }));
        }
    }

    /// Nodes of other clusters that ask to be taken.
    pub(crate) fn refused(&self, now: Millis) -> Vec<RefusedNode> {
        let lately = self.refused.values().filter(|(asked, _)| now.since(*asked) < REFUSED_SHOWN_MS);
        lately.map(|(_, refused)| refused.clone()).collect()
    }

    fn registered(&self, register: &Register, at: Commit) -> NodeRecord {
        let before = self.nodes.get(&register.node).map_or(&[][..], |n| &n.disks);
        let mut disks: BTreeMap<DiskId, DiskRecord> =
            before.iter().map(|d| (d.disk, DiskRecord { present: false, ..d.clone() })).collect();
        for report in &register.disks {
            let same_place =
                disks.get(&report.disk).filter(|d| d.endpoint == report.endpoint && d.addresses == report.addresses);
            let record = DiskRecord {
                disk: report.disk,
                open: report.open,
                endpoint: report.endpoint,
                addresses: report.addresses.clone(),
                endpoint_at: same_place.map_or(at, |d| d.endpoint_at),
                capacity: report.capacity,
                max_copies: report.max_copies,
                present: true,
                leaving: disks.get(&report.disk).is_some_and(|d| d.leaving),
                successor: disks.get(&report.disk).and_then(|d| d.successor),
                path: report.path.clone(),
            };
            disks.insert(report.disk, record);
        }
        let duty = self.nodes.get(&register.node).map_or(Duty::Serving, |n| n.duty);
        let Register { node, host, rack, version, .. } = register.clone();
        NodeRecord { node, host, rack, version, disks: disks.into_values().collect(), duty }
    }

    fn tell_of_endpoints(&mut self, moved: &BTreeSet<DiskId>, at: Commit) {
        if moved.is_empty() {
            return;
        }
        // A former primary does not join any more: it needs no address.
        let touched = self.shards.values().filter(|s| s.config.members.iter().any(|m| moved.contains(&m.disk)));
        let primaries: BTreeSet<NodeId> = touched.filter_map(|s| Some(s.config.primary_member()?.node)).collect();
        for node in primaries {
            self.tell(node, at);
        }
    }

    /// Rule 12: shards of which the node holds a configuration that this conductor's record cannot have led to.
    pub(crate) fn doubts(&self, register: &Register) -> Vec<(ShardId, String)> {
        let mut doubts = Vec::new();
        for (_, reported) in register.disks.iter().flat_map(|d| &d.copies) {
            let shard = reported.shard;
            // A volume that is gone was deleted here: its copies are in the drop list, or were confirmed.
            let Some(own) = self.shards.get(&shard).map(|r| &r.config) else { continue };
            if reported.epoch > own.epoch {
                doubts.push((shard, format!("{} has joined {}, own is {}", register.node, reported.epoch, own.epoch)));
            } else if reported.epoch == own.epoch && !same_content(reported, own) {
                doubts.push((shard, format!("{} knows another content of {}", register.node, own.epoch)));
            }
        }
        doubts
    }

    /// True while of a node that could take copies it is not known whether it is there: one that is late, and just after a start one that has
    /// not been heard. Who chooses places now would choose without it, or have the volume wait for a node that is dead.
    pub fn is_listening(&self, now: Millis) -> bool {
        let starting = now.since(self.started) < LISTEN_MS;
        let mut serving = self.nodes.values().filter(|node| node.duty == Duty::Serving);
        serving.any(|node| match self.presence.get(&node.node).and_then(|presence| presence.heard) {
            Some(_) => self.node_state(now, node.node) == NodeState::Late,
            None => starting,
        })
    }

    /// Unlike `is_up`, gives a node that this process has not heard from yet the benefit of the doubt.
    fn is_possibly_up(&self, node: NodeId, now: Millis) -> bool {
        self.silence(node, now) <= crate::limits::DEAD_MS
    }
}

/// Equal but for what may change under one epoch: endpoints, the generation that a node has heard of since, and a parent that is needed
/// no more; and for what stores do not keep.
fn same_content(a: &Configuration, b: &Configuration) -> bool {
    let parent = a.parent.filter(|_| b.parent.is_some());
    let mut a = Configuration { attach: b.attach, cache: b.cache, parent, ..a.clone() };
    for member in &mut a.members {
        if let Some(other) = b.member(member.copy) {
            (member.endpoint, member.since) = (other.endpoint, other.since);
        }
    }
    a == *b
}

/// Printable ASCII without spaces, not empty, not too long.
pub(crate) fn is_plain(text: &str, max: usize) -> bool {
    !text.is_empty() && text.len() <= max && text.bytes().all(|b| b.is_ascii_graphic())
}
