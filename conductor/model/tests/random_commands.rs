//! Any sequence of commands, restarts of conductor and nodes among them, keeps what must always hold.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, disk_of, request};
use conductor_model::api::{MembershipAnswer, MembershipChange, Order, OrderReport, OrderState, Report};
use conductor_model::views::{Attach, CopyRange, Detach, Duty, NewVolume, Scrub, ScrubVerb, SnapshotState};
use conductor_model::{
    AttachGeneration, Bytes, Commit, Configuration, CopyId, CopyState, Epoch, Member, Millis, NodeId, OpenId, Record,
    ShardId, SnapshotId, VolumeId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Command {
    Register {
        node: u32,
        open: u64,
    },
    Beat {
        node: u32,
        confirm: bool,
    },
    Create {
        name: u8,
        size: u64,
        copies: u8,
    },
    Resize {
        name: u8,
        size: u64,
    },
    Delete {
        name: u8,
        force: bool,
    },
    Attach {
        name: u8,
        client: u8,
        read_only: bool,
        shared: bool,
        force: bool,
    },
    Evict {
        client: u8,
    },
    Detach {
        name: u8,
        client: u8,
        back: u64,
    },
    Born {
        pick: usize,
        stale: bool,
    },
    Reopened {
        pick: usize,
        member: usize,
        open: u64,
        stale: bool,
    },
    BearAll {
        name: u8,
    },
    /// Of the members, these are dropped: bit by bit.
    Drop {
        pick: usize,
        members: u8,
        stale: bool,
    },
    Past {
        pick: usize,
        members: u8,
        stale: bool,
    },
    /// Under the opening that is registered, or another one.
    Sync {
        pick: usize,
        member: usize,
        other_open: bool,
        stale: bool,
    },
    Add {
        pick: usize,
        member: usize,
        stale: bool,
    },
    StepDown {
        pick: usize,
        stale: bool,
    },
    /// A node comes back with this one of its two disks.
    Disk {
        node: u32,
        open: u64,
        second: bool,
    },
    Duty {
        node: u32,
        duty: usize,
        force: bool,
    },
    KeepDisk {
        node: u32,
    },
    RemoveDisk {
        node: u32,
        force: bool,
    },
    Copies {
        name: u8,
        copies: u8,
        min_copies: u8,
    },
    /// Primaries bring copies back.
    Heal {
        seconds: u64,
    },
    /// A node is not heard for as long as one is waited for.
    Lose {
        node: u32,
    },
    /// Time passes, and all nodes are heard but these: bit by bit.
    Pass {
        ms: u64,
        silent: u8,
    },
    Snapshot {
        name: u8,
        snapshot: u8,
    },
    DeleteSnapshot {
        name: u8,
        snapshot: u8,
    },
    Clone {
        name: u8,
        of: u8,
        snapshot: u8,
    },
    Flatten {
        name: u8,
    },
    Rollback {
        name: u8,
        snapshot: u8,
    },
    CancelRollback {
        name: u8,
        snapshot: u8,
    },
    Copy {
        name: u8,
        of: u8,
        snapshot: u8,
        offset: u64,
        length: u64,
    },
    Scrub {
        name: u8,
        verb: ScrubVerb,
    },
    /// A node does what it is told, or says that it cannot.
    Obey {
        node: u32,
        done: bool,
    },
    Tick,
    Wait {
        ms: u64,
    },
    Restart,
}

fn command(nodes: u32) -> impl Strategy<Value = Command> {
    let size = (256u64..2048).prop_map(|blocks| blocks * 4096);
    let node = 1..=nodes;
    prop_oneof![
        3 => (node.clone(), 1u64..4).prop_map(|(node, open)| Command::Register { node, open }),
        6 => (node.clone(), any::<bool>()).prop_map(|(node, confirm)| Command::Beat { node, confirm }),
        4 => (0u8..4, size.clone(), 2u8..=3).prop_map(|(name, size, copies)| Command::Create { name, size, copies }),
        2 => (0u8..4, size).prop_map(|(name, size)| Command::Resize { name, size }),
        1 => (0u8..4, any::<bool>()).prop_map(|(name, force)| Command::Delete { name, force }),
        4 => (0u8..4, 0u8..3, any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(name, client, read_only, shared, force)| Command::Attach { name, client, read_only, shared, force }),
        1 => (0u8..3).prop_map(|client| Command::Evict { client }),
        2 => (0u8..4, 0u8..3, 0u64..2).prop_map(|(name, client, back)| Command::Detach { name, client, back }),
        4 => (0usize..64, any::<bool>()).prop_map(|(pick, stale)| Command::Born { pick, stale }),
        6 => (0usize..64, 0usize..3, 1u64..4, any::<bool>())
            .prop_map(|(pick, member, open, stale)| Command::Reopened { pick, member, open, stale }),
        6 => (0u8..4).prop_map(|name| Command::BearAll { name }),
        6 => (0usize..64, 0u8..8, luck()).prop_map(|(pick, members, stale)| Command::Drop { pick, members, stale }),
        3 => (0usize..64, 0u8..8, luck()).prop_map(|(pick, members, stale)| Command::Past { pick, members, stale }),
        6 => (0usize..64, 0usize..3, luck(), luck())
            .prop_map(|(pick, member, other_open, stale)| Command::Sync { pick, member, other_open, stale }),
        6 => (0usize..64, 0usize..3, luck()).prop_map(|(pick, member, stale)| Command::Add { pick, member, stale }),
        2 => (0usize..64, luck()).prop_map(|(pick, stale)| Command::StepDown { pick, stale }),
        3 => (node.clone(), 1u64..4, any::<bool>())
            .prop_map(|(node, open, second)| Command::Disk { node, open, second }),
        3 => (node.clone(), 0usize..4, any::<bool>()).prop_map(|(node, duty, force)| Command::Duty { node, duty, force }),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, force)| Command::RemoveDisk { node, force }),
        1 => node.clone().prop_map(|node| Command::KeepDisk { node }),
        2 => (0u8..4, 1u8..=3, 1u8..=3)
            .prop_map(|(name, copies, min_copies)| Command::Copies { name, copies, min_copies }),
        4 => (1u64..4).prop_map(|seconds| Command::Heal { seconds }),
        2 => node.clone().prop_map(|node| Command::Lose { node }),
        6 => (0u64..4000, 0u8..32).prop_map(|(ms, silent)| Command::Pass { ms, silent }),
        6 => (0u8..4, 0u8..2).prop_map(|(name, snapshot)| Command::Snapshot { name, snapshot }),
        2 => (0u8..4, 0u8..2).prop_map(|(name, snapshot)| Command::DeleteSnapshot { name, snapshot }),
        4 => (0u8..4, 0u8..4, 0u8..2).prop_map(|(name, of, snapshot)| Command::Clone { name, of, snapshot }),
        2 => (0u8..4).prop_map(|name| Command::Flatten { name }),
        2 => (0u8..4, 0u8..2).prop_map(|(name, snapshot)| Command::Rollback { name, snapshot }),
        1 => (0u8..4, 0u8..2).prop_map(|(name, snapshot)| Command::CancelRollback { name, snapshot }),
        2 => (0u8..4, 0u8..4, 0u8..2, 0u64..512, 1u64..512).prop_map(|(name, of, snapshot, offset, length)| {
            Command::Copy { name, of, snapshot, offset: offset * 4096, length: length * 4096 }
        }),
        2 => (0u8..4, 0usize..4).prop_map(|(name, verb)| Command::Scrub { name, verb: VERBS[verb] }),
        16 => (1..=nodes, 0u8..8).prop_map(|(node, luck)| Command::Obey { node, done: luck > 0 }),
        3 => Just(Command::Tick),
        1 => (0u64..3000).prop_map(|ms| Command::Wait { ms }),
        1 => Just(Command::Restart),
    ]
}

/// Now and then.
fn luck() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.2)
}

const VERBS: [ScrubVerb; 4] = [ScrubVerb::Start, ScrubVerb::Pause, ScrubVerb::Resume, ScrubVerb::Cancel];

/// What was seen before, to compare with what is seen after.
#[derive(Default)]
struct History {
    epochs: BTreeMap<ShardId, Configuration>,
    generations: BTreeMap<VolumeId, (AttachGeneration, AttachGeneration)>,
    copies: BTreeMap<CopyId, ShardId>,
    /// Copies that hold every acknowledged write, if one was acknowledged in every epoch that could, and settled in all.
    holders: BTreeMap<ShardId, BTreeSet<CopyId>>,
    primaries: BTreeMap<ShardId, BTreeSet<NodeId>>,
    /// Volumes that had fewer copies than there are nodes: these lie where there is most room.
    fewer: BTreeSet<VolumeId>,
    unlisted: BTreeSet<CopyId>,
    snapshots: BTreeMap<SnapshotId, (VolumeId, SnapshotState)>,
    commit: Commit,
}

impl History {
    fn observe(&mut self, cluster: &Cluster, nodes: u32) {
        assert!(cluster.model.commit() >= self.commit);
        self.commit = cluster.model.commit();
        let mut primaries: BTreeMap<VolumeId, BTreeMap<NodeId, u32>> = BTreeMap::new();
        for record in cluster.model.snapshot() {
            match record {
                Record::Shard(record) => {
                    let config = record.config;
                    let distinct: BTreeSet<NodeId> = config.members.iter().map(|m| m.node).collect();
                    assert_eq!(distinct.len(), config.members.len());
                    assert!((1..=4).contains(&distinct.len()));
                    for member in &config.members {
                        let of = *self.copies.entry(member.copy).or_insert(config.shard);
                        assert_eq!(of, config.shard, "{} has two lives", member.copy);
                        assert!(!self.unlisted.contains(&member.copy), "{} is listed again", member.copy);
                    }
                    let primary = config.primary_member().unwrap().node;
                    *primaries.entry(config.shard.volume).or_default().entry(primary).or_default() += 1;
                    if config.members.len() < 3 {
                        self.fewer.insert(config.shard.volume);
                    }
                    match self.epochs.get(&config.shard) {
                        None => assert_eq!(config.epoch, Epoch(1)),
                        Some(old) if *old == config => {}
                        // Flattened: under the same epoch.
                        Some(old) if Configuration { parent: None, ..old.clone() } == config => {}
                        Some(old) => {
                            assert_eq!(config.epoch.0, old.epoch.0 + 1, "{}", config.shard);
                            assert!(config.born || !old.born, "{} is unborn again", config.shard);
                            let new = config.members.iter().filter(|m| old.member(m.copy).is_none());
                            assert!(new.clone().count() <= 1);
                            // It holds everything only where there is nothing yet: nobody was told that it may write.
                            let empty = !config.born && config.parent.is_none() && !old.is_sealed();
                            assert!(new.clone().all(|m| empty || m.state == CopyState::Absent), "{config:?}");
                            assert!(new.clone().all(|m| m.state != CopyState::Syncing));
                            assert!(config.member(old.primary).is_some(), "a primary goes when another one is there");
                            let gone = old.members.iter().filter(|m| config.member(m.copy).is_none());
                            for gone in gone {
                                assert!(!old.is_sealed() || !old.full_set.contains(&gone.copy));
                                self.unlisted.insert(gone.copy);
                            }
                            let filled = |m: &Member| old.member(m.copy).is_some_and(|m| m.state == CopyState::Syncing);
                            let holders = self.holders.get_mut(&config.shard).unwrap();
                            holders.extend(config.in_sync_members().filter(|m| filled(m)).map(|m| m.copy));
                            // What one of them lacks nobody counts on any more.
                            let past = |copy: &CopyId| config.member(*copy).is_some_and(|m| m.past);
                            holders.retain(|copy| !past(copy));
                            let full_set: Vec<CopyId> =
                                old.full_set.iter().copied().filter(|copy| !past(copy)).collect();
                            assert!(!config.is_sealed() || config.full_set == full_set);
                        }
                    }
                    let in_sync: BTreeSet<CopyId> = config.in_sync_members().map(|m| m.copy).collect();
                    let holders = self.holders.entry(config.shard).or_insert_with(|| in_sync.clone());
                    if !config.born && config.parent.is_none() {
                        // Nothing was acknowledged yet.
                        holders.clone_from(&in_sync);
                    }
                    assert!(in_sync.is_subset(holders), "{config:?} counts what lacks a write: {holders:?} have it");
                    if !config.is_sealed() {
                        *holders = in_sync;
                    }
                    self.primaries.entry(config.shard).or_default().insert(primary);
                    self.epochs.insert(config.shard, config);
                }
                Record::Volume(volume) => {
                    // Nodes never forget a floor: one that falls would shut everybody out.
                    let floor = volume.readers.iter().map(|reader| reader.generation).min().unwrap_or(volume.attach);
                    let old = self.generations.insert(volume.id, (floor, volume.attach)).unwrap_or_default();
                    assert!(floor >= old.0 && volume.attach >= old.1);
                }
                Record::Snapshot(snapshot) => {
                    let now = (snapshot.volume, snapshot.state);
                    let (of, was) = self.snapshots.insert(snapshot.id, now).unwrap_or(now);
                    assert_eq!(of, snapshot.volume, "{} has two lives", snapshot.id);
                    let order = |state| match state {
                        SnapshotState::Creating => 0,
                        SnapshotState::Complete => 1,
                        SnapshotState::Deleting => 2,
                    };
                    assert!(order(was) <= order(snapshot.state), "{} is {was:?} again", snapshot.id);
                }
                _ => {}
            }
        }
        // As they are placed; later ones move.
        let moved = self.primaries.values().any(|nodes| nodes.len() > 1);
        let reshaped = !self.unlisted.is_empty() || !cluster.disks.is_empty();
        for (volume, counts) in primaries.iter().filter(|_| nodes == 3 && !reshaped && !moved) {
            if self.fewer.contains(volume) {
                continue;
            }
            let count = |n| counts.get(&NodeId(n)).copied().unwrap_or(0);
            let (least, most) = ((1..=3).map(count).min().unwrap(), (1..=3).map(count).max().unwrap());
            assert!(most - least <= 1, "{volume}: primaries {counts:?}");
        }
    }
}

struct World {
    cluster: Cluster,
    opens: BTreeMap<u32, u64>,
    history: History,
    nodes: u32,
}

impl World {
    fn shard(&self, pick: usize) -> Option<Configuration> {
        let all: Vec<_> = self.history.epochs.keys().filter_map(|s| self.cluster.model.configuration(*s)).collect();
        (!all.is_empty()).then(|| all[pick % all.len()].clone())
    }

    /// Nodes that the conductor has not forgotten, with their openings.
    fn known(&self) -> Vec<(u32, u64)> {
        let known = self.opens.iter().filter(|(n, _)| self.cluster.model.node(self.cluster.now, NodeId(**n)).is_ok());
        known.map(|(node, open)| (*node, *open)).collect()
    }

    fn ask(&mut self, mut under: Configuration, change: MembershipChange, stale: bool) {
        if stale {
            under.epoch = Epoch(under.epoch.0 - 1);
        }
        let before = self.cluster.model.snapshot();
        let asked = request(&under, change);
        let answer = self.cluster.run(|m, now, _| m.membership(now, &[asked])).unwrap().remove(0);
        match answer {
            MembershipAnswer::Granted(config) => {
                assert!(!stale, "a stale epoch was granted");
                assert_eq!(config.epoch.0, under.epoch.0 + 1);
            }
            MembershipAnswer::Stale(_) => {
                assert!(stale);
                assert_eq!(before, self.cluster.model.snapshot());
            }
            MembershipAnswer::Refused(_) => assert_eq!(before, self.cluster.model.snapshot()),
        }
    }

    fn run(&mut self, command: Command) {
        let name = |n: u8| format!("vol{n}");
        let cluster = &mut self.cluster;
        // Refusals are as good as successes here: `Cluster::run` checks that they change nothing.
        match command {
            Command::Register { node, open } => {
                cluster.register(node, open).unwrap();
                self.opens.insert(node, open);
            }
            Command::Beat { node, confirm } => {
                let Some(open) = self.opens.get(&node) else { return };
                let Ok(told) = cluster.beat(node, *open, 0) else { return };
                let ever = |shard| self.history.primaries[shard].contains(&NodeId(node));
                assert!(told.assignments.iter().all(|c| ever(&c.shard)));
                let mut beat = cluster.heartbeat(node, *open, told.version);
                beat.dropped = if confirm { told.drop } else { Vec::new() };
                let quiet = cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
                assert!(quiet.assignments.is_empty() && quiet.generations.is_empty());
            }
            Command::Create { name: n, size, copies } => {
                let new = NewVolume { shard_size: Bytes(MIB), copies, ..NewVolume::new(name(n), Bytes(size)) };
                drop(cluster.make(&new));
            }
            Command::Resize { name: n, size } => {
                drop(cluster.run(|m, now, mut d| m.resize(now, &name(n), Bytes(size), &mut d)));
            }
            Command::Delete { name: n, force } => drop(cluster.run(|m, _, _| m.delete(&name(n), force))),
            Command::Attach { name: n, client, read_only, shared, force } => {
                let attach = Attach {
                    client: format!("client{client}"),
                    read_only,
                    shared,
                    force,
                    host: String::new(),
                    resumes: None,
                };
                drop(cluster.run(|m, now, _| m.attach(now, &name(n), &attach)));
            }
            Command::Evict { client } => {
                let name = format!("client{client}");
                let evicted = cluster.run(|m, _, _| m.evict(&name)).is_ok();
                assert!(!evicted || cluster.model.clients(cluster.now).iter().all(|client| client.name != name));
            }
            Command::Detach { name: n, client, back } => {
                let Ok(map) = cluster.model.map(&name(n)) else { return };
                let generation = AttachGeneration(map.attach.0.saturating_sub(back));
                let detach = Detach { client: format!("client{client}"), generation };
                drop(cluster.run(|m, _, _| m.detach(&name(n), &detach)));
            }
            Command::Born { pick, stale } => {
                let Some(config) = self.shard(pick) else { return };
                self.ask(config, MembershipChange::Born, stale);
            }
            Command::Reopened { pick, member, open, stale } => {
                let Some(config) = self.shard(pick) else { return };
                let copy = config.members[member % config.members.len()].copy;
                self.ask(config, MembershipChange::Reopened(vec![(copy, OpenId(open))]), stale);
            }
            Command::Drop { pick, members, stale } => {
                let Some(config) = self.shard(pick) else { return };
                let named = config.members.iter().enumerate().filter(|(at, _)| members & (1 << at) != 0);
                let copies = named.map(|(_, m)| m.copy).collect();
                self.ask(config, MembershipChange::Drop(copies), stale);
            }
            Command::Past { pick, members, stale } => {
                let Some(config) = self.shard(pick) else { return };
                let named = config.members.iter().enumerate().filter(|(at, _)| members & (1 << at) != 0);
                let copies = named.map(|(_, m)| m.copy).collect();
                self.ask(config, MembershipChange::Past(copies), stale);
            }
            Command::Sync { pick, member, other_open, stale } => {
                let Some(config) = self.shard(pick) else { return };
                let Member { copy, node, .. } = config.members[member % config.members.len()];
                let open = OpenId(self.opens[&node.0] + u64::from(other_open));
                self.ask(config, MembershipChange::Fill(copy, open), stale);
            }
            Command::Add { pick, member, stale } => {
                let Some(config) = self.shard(pick) else { return };
                let copy = config.members[member % config.members.len()].copy;
                self.ask(config, MembershipChange::Add(copy), stale);
            }
            Command::StepDown { pick, stale } => {
                let Some(config) = self.shard(pick) else { return };
                self.ask(config, MembershipChange::StepDown, stale);
            }
            Command::Disk { node, open, second } => {
                let before = cluster.disks.insert(node, node + if second { 10 } else { 0 });
                match cluster.register(node, open) {
                    Ok(()) => drop(self.opens.insert(node, open)),
                    Err(_) => drop(before.map(|before| cluster.disks.insert(node, before))),
                }
            }
            Command::Duty { node, duty, force } => {
                let duty = [Duty::Serving, Duty::Cordoned, Duty::Draining, Duty::Removed][duty];
                drop(cluster.run(|m, now, _| m.set_duty(now, NodeId(node), duty, force)));
            }
            Command::RemoveDisk { node, force } => {
                drop(cluster.run(|m, now, _| m.remove_disk(now, disk_of(node), force)));
            }
            Command::KeepDisk { node } => drop(cluster.run(|m, now, _| m.keep_disk(now, disk_of(node)))),
            Command::Copies { name: n, copies, min_copies } => {
                drop(cluster.run(|m, now, _| m.set_copies(now, &name(n), Some(copies), Some(min_copies))));
            }
            Command::Heal { seconds } => {
                let heard = self.known();
                for _ in 0..seconds * 2 {
                    self.cluster.pass(500, &heard);
                    self.history.observe(&self.cluster, self.nodes);
                }
                let shards: Vec<ShardId> = self.history.epochs.keys().copied().collect();
                for shard in shards {
                    for which in 0..4 {
                        let Some(config) = self.cluster.model.configuration(shard) else { break };
                        let Some(member) = config.members.get(which).cloned() else { break };
                        let open = OpenId(self.opens[&member.node.0]);
                        let change = match member.state {
                            CopyState::InSync => continue,
                            CopyState::Absent => MembershipChange::Fill(member.copy, open),
                            CopyState::Syncing => MembershipChange::Add(member.copy),
                        };
                        self.ask(config, change, false);
                        self.history.observe(&self.cluster, self.nodes);
                    }
                }
            }
            Command::Lose { node } => {
                let heard: Vec<(u32, u64)> = self.known().into_iter().filter(|(n, _)| *n != node).collect();
                for _ in 0..12 {
                    self.cluster.pass(500, &heard);
                    self.history.observe(&self.cluster, self.nodes);
                }
            }
            Command::Pass { ms, silent } => {
                let heard = self.known().into_iter().filter(|(node, _)| silent & (1 << (*node - 1)) == 0);
                let heard: Vec<(u32, u64)> = heard.collect();
                for _ in 0..ms / 500 {
                    self.cluster.pass(500, &heard);
                    self.history.observe(&self.cluster, self.nodes);
                }
            }
            Command::BearAll { name: n } => {
                let Ok(detail) = cluster.model.show(cluster.now, &name(n)) else { return };
                for config in detail.shards.into_iter().filter(|c| !c.born) {
                    self.ask(config, MembershipChange::Born, false);
                    self.history.observe(&self.cluster, self.nodes);
                }
            }
            Command::Snapshot { name: n, snapshot } => drop(cluster.begin(&name(n), &format!("s{snapshot}"))),
            Command::DeleteSnapshot { name: n, snapshot } => {
                drop(cluster.delete_snapshot(&name(n), &format!("s{snapshot}")));
            }
            Command::Clone { name: n, of, snapshot } => {
                drop(cluster.clone_of(&name(n), &format!("{}@s{snapshot}", name(of))));
            }
            Command::Flatten { name: n } => drop(cluster.run(|m, now, _| m.flatten(now, &name(n)))),
            Command::Rollback { name: n, snapshot } => {
                drop(cluster.run(|m, now, _| m.rollback(now, &name(n), &format!("s{snapshot}"))));
            }
            Command::CancelRollback { name: n, snapshot } => {
                drop(cluster.run(|m, now, _| m.cancel_rollback(now, &name(n), &format!("s{snapshot}"))));
            }
            Command::Copy { name: n, of, snapshot, offset, length } => {
                let source = format!("{}@s{snapshot}", name(of));
                let range = CopyRange { source, offset: Bytes(offset), length: Bytes(length) };
                drop(cluster.run(|m, now, _| m.copy_range(now, &name(n), &range)));
            }
            Command::Scrub { name: n, verb } => {
                drop(cluster.run(|m, now, _| m.change_scrub(now, &name(n), &Scrub { verb, rate: None })));
            }
            Command::Obey { node, done } => {
                let Some(open) = self.opens.get(&node) else { return };
                let Ok(told) = cluster.beat(node, *open, 0) else { return };
                let state = match done {
                    true => OrderState::Done { damaged: 0, repaired: 0 },
                    false => OrderState::Failed("no".to_owned()),
                };
                let say = |order: &Order| {
                    let config = cluster.model.configuration(order.shard).unwrap();
                    assert_eq!(config.primary_member().unwrap().node, NodeId(node));
                    OrderReport { id: order.id, shard: order.shard, epoch: config.epoch, state: state.clone() }
                };
                let orders = told.orders.iter().map(say).collect();
                let report = Report { node: NodeId(node), orders, worked: told.work };
                cluster.run(|m, now, _| m.report(now, &report)).unwrap();
            }
            Command::Tick => cluster.tick(),
            Command::Wait { ms } => cluster.now = Millis(cluster.now.0 + ms),
            Command::Restart => cluster.restart_replacing(3_000),
        }
        self.history.observe(&self.cluster, self.nodes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_under_any_sequence_of_commands(
        (nodes, commands) in (3u32..=5).prop_flat_map(|n| (Just(n), prop::collection::vec(command(n), 1..120)))
    ) {
        let mut world = World {
            cluster: Cluster::with_nodes(nodes),
            opens: (1..=nodes).map(|n| (n, 1)).collect(),
            history: History::default(),
            nodes,
        };
        world.cluster.model.set_replace_after(3_000);
        world.cluster.create("vol0", 3 * MIB).unwrap();
        world.history.observe(&world.cluster, nodes);
        // A snapshot to begin with: completing one takes the right commands in a row.
        world.run(Command::BearAll { name: 0 });
        world.run(Command::Snapshot { name: 0, snapshot: 0 });
        (1..=nodes).for_each(|node| world.run(Command::Obey { node, done: true }));
        assert!(world.history.snapshots.values().any(|(_, state)| *state == SnapshotState::Complete));
        for command in commands {
            world.run(command);
        }
    }
}
