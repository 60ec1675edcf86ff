//! A lost or outdated state becomes what the nodes hold, and nothing that was acknowledged is lost by that (rule 12).
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod histories;

use common::{Cluster, MIB, T0, draws, other, registration, report, shard, with_volume};
use conductor_model::api::{Holding, MembershipAnswer, MembershipChange, Register, Report};
use conductor_model::limits::{DOUBT_ASKS_MS, DOUBT_SETTLES_MS};
use conductor_model::views::{Adopt, NewKey, NewVolume, RecoveryInfo, RotateKey};
use conductor_model::{
    AttachGeneration, Bytes, ClusterId, Commit, Conductor, Configuration, CopyId, CopyState, DiskId, Durability, Error,
    Key, Millis, NodeId, OpenId, ShardId, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};

/// What disks hold: of each copy its newest joined configuration, and how many of its shard's writes.
#[derive(Clone, Default)]
struct Disks {
    copies: BTreeMap<CopyId, (NodeId, Configuration, u64)>,
    /// Of each shard, how many writes were acknowledged.
    acknowledged: BTreeMap<ShardId, u64>,
}

impl Disks {
    /// These members join; if it is all that take part of a shard that is born, the epoch is settled, and serves.
    fn join(&mut self, config: &Configuration, only: impl Fn(usize) -> bool) {
        let takes_part = |s: CopyState| s != CopyState::Absent;
        let parts: Vec<_> = config.members.iter().filter(|m| takes_part(m.state)).collect();
        let joined: Vec<_> = parts.iter().enumerate().filter(|(n, _)| only(*n)).map(|(_, m)| *m).collect();
        for member in &joined {
            let here = self.copies.entry(member.copy).or_insert_with(|| (member.node, config.clone(), 0));
            if config.epoch >= here.1.epoch {
                here.1 = config.clone();
            }
        }
        let refused = parts.iter().any(|m| self.copies.get(&m.copy).is_none_or(|c| c.1.epoch != config.epoch));
        if joined.len() < parts.len() || refused || config.is_sealed() || !config.born {
            return;
        }
        let writes = config.in_sync_members().map(|m| self.copies[&m.copy].2).max().unwrap();
        self.acknowledged.insert(config.shard, writes + 1);
        for member in config.in_sync_members() {
            self.copies.get_mut(&member.copy).unwrap().2 = writes + 1;
        }
    }

    /// All copies are created and serve.
    fn serve_all(&mut self, cluster: &Cluster) {
        for config in configs(cluster) {
            self.join(&config, |_| true);
        }
    }

    fn register(&self, node: u32, open: u64) -> Register {
        let mut register = registration(node, open);
        let here = self.copies.iter().filter(|(_, (on, ..))| on.0 == node);
        register.disks[0].copies = here.map(|(copy, (_, config, _))| (*copy, config.clone())).collect();
        register
    }
}

fn configs(cluster: &Cluster) -> Vec<Configuration> {
    let shards = cluster.file.keys().filter_map(|k| if let Key::Shard(s) = k { Some(*s) } else { None });
    shards.map(|s| cluster.model.configuration(s).unwrap()).collect()
}

/// A conductor with nothing but the word that its state was lost.
fn lost() -> Cluster {
    let (model, dirty) = Conductor::recovering(None, T0);
    let now = Millis(T0.0 + DOUBT_SETTLES_MS + DOUBT_ASKS_MS);
    let mut cluster = Cluster { model, now, random: Box::new(draws(9)), ..Cluster::new() };
    cluster.file.clear();
    cluster.persist(dirty);
    cluster
}

impl Cluster {
    fn adopt(&mut self, without: &[String], force: Option<String>) -> Result<RecoveryInfo, Error> {
        let ask = Adopt { without: without.to_vec(), force, dry_run: false };
        self.run(|m, now, _| m.adopt(now, &ask))
    }

    /// What was under way when the doubt began is over.
    fn settle_doubt(&mut self) {
        self.wait(DOUBT_SETTLES_MS + DOUBT_ASKS_MS);
    }

    fn hear(&mut self, disks: &Disks, node: u32) {
        let register = disks.register(node, 1);
        self.run(|m, now, _| m.register(now, &register)).unwrap();
    }
}

fn message(refused: Result<RecoveryInfo, Error>) -> String {
    refused.unwrap_err().to_string()
}

#[test]
fn a_lost_state_is_made_again_from_what_the_nodes_hold() {
    let mut old = with_volume();
    old.snapshot("db", "before");
    old.clone_of("copy", "db@before").unwrap();
    old.bear(2);
    old.attach("db").unwrap();
    old.tick();
    let mut disks = Disks::default();
    disks.serve_all(&old);
    let was = old.model.list(old.now);

    let mut cluster = lost();
    assert_eq!(cluster.model.snapshot_map("db", "before").unwrap_err().kind(), "in-doubt", "not that there is none");
    assert_eq!(cluster.model.map("db").unwrap_err().kind(), "in-doubt", "nor of the volume itself");
    cluster.hear(&disks, 1);
    assert_eq!(cluster.model.cluster(), ClusterId(7), "the first node says which cluster it is");
    let mut stranger = disks.register(2, 1);
    stranger.cluster = ClusterId(8);
    assert!(matches!(cluster.run(|m, now, _| m.register(now, &stranger)), Err(Error::OtherCluster { .. })));
    let refused = |cluster: &Cluster| cluster.model.status(cluster.now).refused;
    let shown = refused(&cluster);
    assert_eq!(shown.iter().map(|r| (r.node, r.cluster)).collect::<Vec<_>>(), [(NodeId(2), ClusterId(8))]);
    let refused = message(cluster.adopt(&[], None));
    assert!(refused.contains("start n2") && refused.contains("--without d"), "{refused}");
    cluster.hear(&disks, 2);
    cluster.hear(&disks, 1);
    let mut last = disks.register(3, 1);
    last.seen = conductor_model::Commit(500);
    let generation = AttachGeneration(1);
    last.attached =
        vec![Holding { volume: VolumeId(1), generation, client: "web1".to_owned(), read_only: false, shared: false }];
    cluster.run(|m, now, _| m.register(now, &last)).unwrap();
    assert_eq!(cluster.model.recovery().unwrap().missing, []);
    assert_eq!(cluster.beat(1, 1, 0).unwrap().assignments, [], "before it was told to");
    cluster.adopt(&[], None).unwrap();

    assert!(cluster.model.commit().0 > 500);
    let now = cluster.model.list(cluster.now);
    for (was, now) in was.iter().zip(&now) {
        assert_eq!((was.id, &was.name, was.size, was.shards), (now.id, &now.name, now.size, now.shards));
        assert_eq!((was.copies, was.min_copies, was.created), (now.copies, now.min_copies, now.created));
        assert_eq!((was.snapshots, &was.parent), (now.snapshots, &now.parent));
        assert_eq!(was.attachment.as_ref().map(|a| &a.client), now.attachment.as_ref().map(|a| &a.client));
    }
    assert_eq!(old.list("db"), cluster.list("db"));
    for config in configs(&cluster) {
        assert!(config.epoch > old.model.configuration(config.shard).unwrap().epoch);
        assert_eq!(config.in_sync(), 3);
    }
    let told: usize = (1..=3).map(|n| cluster.told(n).assignments.len()).sum();
    assert!(told >= 6, "every shard's primary hears of its new epoch: {told}");
    cluster.restart();
    assert_eq!(cluster.model.doubted(), None);
    (1..=3).for_each(|node| drop(cluster.told(node)));
    let volume = cluster.create("more", MIB).unwrap();
    assert!(volume > VolumeId(2));
    let snapshot = cluster.snapshot("db", "after");
    assert!(snapshot.id > old.list("db")[0].id);
    cluster.attach("db").unwrap();
    assert!(cluster.model.map("db").unwrap().attach > generation);
}

#[test]
fn readers_that_nodes_still_serve_have_the_volume_again() {
    those_that_nodes_still_serve_have_the_volume_again(false);
}

#[test]
fn those_who_share_it_have_the_volume_again_that_nodes_still_serve() {
    those_that_nodes_still_serve_have_the_volume_again(true);
}

fn those_that_nodes_still_serve_have_the_volume_again(shared: bool) {
    let old = with_volume();
    let mut disks = Disks::default();
    disks.serve_all(&old);
    let mut cluster = lost();
    let heard = |generation, client: &str, together| Holding {
        volume: VolumeId(1),
        generation: AttachGeneration(generation),
        client: client.to_owned(),
        read_only: together && !shared,
        shared: together && shared,
    };
    // A writer of former days, and one reader in two lives.
    let said = [heard(4, "w", false), heard(5, "a", true), heard(7, "b", true), heard(6, "b", true)];
    for node in 1..=3 {
        let mut register = disks.register(node, 1);
        register.attached = said.to_vec();
        cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    }
    cluster.adopt(&[], None).unwrap();
    let info = cluster.model.show(cluster.now, "db").unwrap().info;
    let readers: Vec<_> = info.readers.iter().map(|r| (r.client.as_str(), r.generation.0)).collect();
    assert_eq!((readers, info.attachment), (vec![("a", 5), ("b", 7)], None));
    assert!(info.readers.iter().all(|r| r.shared == shared));
    assert_eq!(cluster.told(1).generations, [(VolumeId(1), AttachGeneration(5))]);
}

#[test]
fn a_backup_goes_on_with_what_happened_since() {
    let mut cluster = with_volume();
    cluster.create("short-lived", MIB).unwrap();
    cluster.bear(2);
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let backup = cluster.file.clone();
    cluster.snapshot("db", "later");
    cluster.create("newer", MIB).unwrap();
    cluster.bear(3);
    cluster.delete("short-lived").unwrap();
    cluster.tick();
    disks.copies.retain(|_, (_, config, _)| config.shard.volume != VolumeId(2));
    let config = cluster.config(1, 0);
    let absent = config.in_sync_members().find(|m| m.copy != config.primary).unwrap().clone();
    let MembershipAnswer::Granted(_) = cluster.ask(&config, MembershipChange::Drop(vec![absent.copy])) else {
        panic!()
    };
    disks.serve_all(&cluster);
    let seen = cluster.model.commit();

    cluster.file = backup;
    cluster.restart();
    let dirty = cluster.model.restored(cluster.now);
    cluster.persist(dirty);
    cluster.settle_doubt();
    for node in 1..=3 {
        cluster.run(|m, now, _| m.register(now, &Register { seen, ..disks.register(node, 1) })).unwrap();
    }
    let info = cluster.model.recovery().unwrap();
    assert_eq!(info.deleted, ["short-lived"]);
    let refused = message(cluster.adopt(&[], None));
    assert!(refused.contains("deleted since, or moved to nodes"), "its copies may be elsewhere: {refused}");
    let last = cluster.model.events(0).last().unwrap().number;
    cluster.adopt(&[], info.sentence).unwrap();
    let told = cluster.model.events(last + 1000);
    assert!(
        matches!(told[0].what, conductor_model::events::Happened::Adopted { .. }),
        "who has followed the state that is lost hears of it: {told:?}"
    );
    cluster.restart();
    let names: Vec<String> = cluster.model.list(cluster.now).into_iter().map(|v| v.name).collect();
    assert_eq!(names, ["db", "newer"]);
    assert_eq!(cluster.list("db")[0].name, "later");
    let state = cluster.config(1, 0).member(absent.copy).unwrap().state;
    assert_eq!(state, CopyState::Absent, "it lacks a write that was acknowledged since");
    assert!(cluster.model.commit() > seen);
}

#[test]
fn what_copies_of_a_backup_had_to_do_is_over_where_they_were_replaced_since() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.model.set_replace_after(5_000);
    cluster.create("db", 8 * MIB).unwrap();
    cluster.bear(1);
    let (all, without_n3) = ([(1, 1), (2, 1), (3, 1), (4, 1)], [(1, 1), (2, 1), (4, 1)]);
    cluster.pass(500, &all);
    cluster.begin("db", "kept").unwrap();
    cluster.all_done();
    cluster.begin("db", "gone").unwrap();
    cluster.all_done();
    cluster.clone_of("twin", "db@kept").unwrap();
    cluster.bear(2);
    cluster.delete_snapshot("db", "gone").unwrap();
    cluster.run(|m, now, _| m.flatten(now, "twin")).unwrap();
    for (node, _) in without_n3 {
        let report = Report { node: NodeId(node), orders: Vec::new(), worked: cluster.told(node).work };
        cluster.run(|m, now, _| m.report(now, &report)).unwrap();
    }
    let backup = cluster.file.clone();
    cluster.pass(2_500, &without_n3);
    cluster.leave_behind(3);
    cluster.heal(16, &without_n3);
    assert!(configs(&cluster).iter().all(|c| c.members.iter().all(|m| m.node != NodeId(3))));
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let seen = cluster.model.commit();

    cluster.file = backup;
    cluster.restart();
    let dirty = cluster.model.restored(cluster.now);
    cluster.persist(dirty);
    cluster.settle_doubt();
    for (node, _) in without_n3 {
        cluster.run(|m, now, _| m.register(now, &Register { seen, ..disks.register(node, 1) })).unwrap();
    }
    let sentence = cluster.model.recovery().unwrap().sentence;
    cluster.adopt(&[], sentence).unwrap();
    cluster.restart();
    assert_eq!(cluster.list("db").into_iter().map(|s| s.name).collect::<Vec<_>>(), ["kept"]);
    assert_eq!(cluster.model.show(cluster.now, "twin").unwrap().info.parent, None);
    assert!(!cluster.file.keys().any(|key| matches!(key, Key::Work(..))));
}

#[test]
fn what_was_due_in_a_backup_waits_until_it_is_adopted() {
    let mut cluster = with_volume();
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let new = NewKey { name: "web1".to_owned(), volumes: vec!["db".to_owned()], read_only: false };
    cluster.run(|m, now, _| m.add_key(now, &new)).unwrap();
    let rotate = RotateKey { name: "web1".to_owned(), grace_ms: 1000 };
    cluster.run(|m, now, _| m.rotate_key(now, &rotate)).unwrap();
    cluster.restart();
    cluster.model.set_scrub_every(Some(1000));
    let dirty = cluster.model.restored(cluster.now);
    cluster.persist(dirty);
    cluster.settle_doubt();
    let due = cluster.model.next_deadline();
    assert!(due.is_none_or(|due| due > cluster.now), "ticks follow upon one another: {due:?}");
    assert!(cluster.model.permit("web1", 1, "db").is_ok(), "it is not ended in doubt");

    for node in 1..=3 {
        cluster.hear(&disks, node);
    }
    let next = cluster.adopt(&[], None).unwrap().next;
    assert!(next.starts_with("2 keys of clients hold as they did then"), "a removed one is back: {next}");
    assert!(cluster.model.next_deadline().unwrap() <= cluster.now);
    cluster.tick();
    assert!(cluster.model.permit("web1", 1, "db").is_err());
    assert!(cluster.model.permit("web1", 2, "db").is_ok());
}

#[test]
fn what_is_left_out_is_named_and_a_loss_is_accepted_in_a_sentence() {
    let cluster = with_volume();
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let without = |nodes: &[u32]| nodes.iter().map(|n| format!("n{n}")).collect::<Vec<_>>();

    let mut one_lost = lost();
    one_lost.hear(&disks, 1);
    one_lost.hear(&disks, 2);
    assert!(message(one_lost.adopt(&[], None)).contains("start n3"));
    assert!(message(one_lost.adopt(&without(&[2, 3]), None)).contains("n2 was heard of"));
    assert!(message(one_lost.adopt(&["db".to_owned()], None)).contains("no copy"));
    let refused = message(one_lost.adopt(&without(&[3]), None));
    assert!(refused.contains("the copy of v1/0") && refused.contains("may have gone on"), "{refused}");
    let sentence = "I accept that db may have lost writes".to_owned();
    one_lost.adopt(&without(&[3]), Some(sentence.clone())).unwrap();
    for config in configs(&one_lost) {
        assert_eq!((config.members.len(), config.in_sync()), (2, 2));
    }
    let returns = disks.register(3, 2);
    one_lost.run(|m, now, _| m.register(now, &returns)).unwrap();
    assert_eq!(one_lost.model.doubted(), None);
    let drop = one_lost.beat(3, 2, 0).unwrap().drop;
    assert_eq!(drop.len(), 3, "a copy that was left out is not listed again");

    let mut two_lost = lost();
    two_lost.hear(&disks, 1);
    let refused = message(two_lost.adopt(&without(&[2, 3]), None));
    assert!(refused.contains("may have gone on without the others"), "{refused}");
    assert!(two_lost.adopt(&without(&[2, 3]), Some("yes".to_owned())).is_err());
    two_lost.adopt(&without(&[2, 3]), Some(sentence)).unwrap();
    for config in configs(&two_lost) {
        assert!(config.is_sealed() && config.in_sync() == 1 && config.members.len() == 1);
    }
}

/// Each copy that the shard was to be created with was given up before it was born, one after the other: those that it was born with are
/// known to none of them.
#[test]
fn a_shard_that_was_being_created_may_have_been_by_others_since() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.model.set_replace_after(5_000);
    let new = NewVolume { copies: 2, shard_size: Bytes(MIB), ..NewVolume::new("db", Bytes(MIB)) };
    cluster.make(&new).unwrap();
    let first = cluster.config(1, 0);
    let mut disks = Disks::default();
    disks.join(&first, |_| true);
    let backup = cluster.file.clone();
    let without = |nodes: &[u32]| (1..=4).filter(|n| !nodes.contains(n)).map(|n| (n, 1)).collect::<Vec<_>>();
    let (a, b) = (first.primary_member().unwrap().node.0, other(&first, 0).node.0);
    cluster.pass(9_000, &without(&[b]));
    cluster.pass(9_000, &without(&[a, b]));
    cluster.bear(1);
    let born = cluster.config(1, 0);
    assert!(born.members.iter().all(|m| m.node.0 != a && m.node.0 != b) && born.in_sync() == 2, "{born:?}");
    disks.serve_all(&cluster);

    cluster.file = backup;
    cluster.restart();
    let dirty = cluster.model.restored(cluster.now);
    cluster.persist(dirty);
    cluster.settle_doubt();
    [a, b].iter().for_each(|node| cluster.hear(&disks, *node));
    let refused = message(cluster.adopt(&[], None));
    assert!(refused.contains("was being created") && refused.contains("\"I accept that db may have lost"), "{refused}");
    // Nodes may be there without the disks that count.
    cluster.now = Millis(cluster.now.0 + 20_000);
    for (node, open) in without(&[a, b]) {
        let mut bare = registration(node, open);
        bare.disks[0].disk = common::disk_of(50 + node);
        cluster.run(|m, now, _| m.register(now, &bare)).unwrap();
    }
    let refused = message(cluster.adopt(&[], None));
    assert!(refused.contains("was being created"), "{refused}");
    cluster.now = Millis(cluster.now.0 + 20_000);
    without(&[a, b]).iter().for_each(|(node, _)| cluster.hear(&disks, *node));
    cluster.adopt(&[], None).unwrap();
    let now = cluster.config(1, 0);
    assert!(now.born && now.in_sync_members().all(|m| disks.copies[&m.copy].2 == 1), "{now:?}");
}

/// {A, B, C}, then A alone, sealed: B may be promoted in its place (rule 11), and then go on with C. A does not know.
#[test]
fn the_last_full_set_is_waited_for() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    cluster.bear(1);
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let full = cluster.config(1, 0);
    let others: Vec<CopyId> = full.members.iter().map(|m| m.copy).filter(|c| *c != full.primary).collect();
    // The others are away, so that their primary goes on alone.
    let home = full.primary_member().unwrap().node.0;
    cluster.pass(3_000, &[(home, 1)]);
    let MembershipAnswer::Granted(sealed) = cluster.ask(&full, MembershipChange::Drop(others)) else { panic!() };
    assert!(sealed.is_sealed() && sealed.full_set.len() == 3);
    disks.join(&sealed, |_| true);
    let rest: Vec<u32> = (1..=3).filter(|n| *n != home).collect();
    // The primary is lost, the others come back, and one of them is promoted.
    cluster.pass(3_000, &[(rest[0], 1), (rest[1], 1)]);
    cluster.tick();
    let next = cluster.config(1, 0);
    assert_ne!(next.primary, full.primary);
    disks.join(&next, |_| true);

    let mut early = lost();
    early.hear(&disks, home);
    let refused = message(early.adopt(&[], None));
    assert!(refused.contains("not heard of"), "A does not know of the epoch that followed its own: {refused}");
    for node in rest {
        early.hear(&disks, node);
    }
    early.adopt(&[], None).unwrap();
    assert_eq!(early.config(1, 0).primary, next.primary);
    assert_eq!(early.config(1, 0).members.iter().find(|m| m.node.0 == home).unwrap().state, CopyState::Absent);
}

/// {A, B}, C absent; then A goes on with C, which the newest configuration that is heard of calls absent.
#[test]
fn an_absent_copy_that_is_left_out_may_have_gone_on_with_one_in_sync() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    cluster.bear(1);
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let full = cluster.config(1, 0);
    let others: Vec<_> = full.members.iter().filter(|m| m.copy != full.primary).cloned().collect();
    let two = cluster.grant(&full, MembershipChange::Drop(vec![others[1].copy]));
    disks.join(&two, |_| true);
    let mut one_left = lost();
    one_left.hear(&disks, others[0].node.0);
    let without = [full.primary_member().unwrap().node.to_string(), others[1].node.to_string()];
    let refused = message(one_left.adopt(&without, None));
    assert!(refused.contains("2 copies of v1/0") && refused.contains("may have gone on"), "{refused}");
    let mut both_left = lost();
    [full.primary_member().unwrap().node.0, others[0].node.0].iter().for_each(|n| both_left.hear(&disks, *n));
    both_left.adopt(&without[1..], None).unwrap();
}

/// {A, B, C}; then one copy is enough, and A goes on alone, before B and C have heard of anything.
#[test]
fn a_copy_that_is_left_out_may_have_gone_on_alone_since_one_is_enough() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    cluster.bear(1);
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    cluster.run(|m, now, _| m.set_copies(now, "db", None, Some(1))).unwrap();
    let lowered = cluster.config(1, 0);
    let others: Vec<_> = lowered.members.iter().filter(|m| m.copy != lowered.primary).cloned().collect();
    let alone = cluster.grant(&lowered, MembershipChange::Drop(others.iter().map(|m| m.copy).collect()));
    disks.join(&alone, |_| true);
    assert_eq!(disks.acknowledged[&alone.shard], 2, "it has acknowledged a write alone");
    let mut one_lost = lost();
    others.iter().for_each(|m| one_lost.hear(&disks, m.node.0));
    let without = [lowered.primary_member().unwrap().node.to_string()];
    let refused = message(one_lost.adopt(&without, None));
    assert!(refused.contains("may have gone on without the others"), "{refused}");
    one_lost.adopt(&without, Some("I accept that db may have lost writes".to_owned())).unwrap();
}

#[test]
fn what_was_said_before_the_last_join_was_over_is_asked_again() {
    let cluster = with_volume();
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let mut cluster = lost();
    cluster.now = Millis(T0.0 + 1_000);
    (1..=3).for_each(|node| cluster.hear(&disks, node));
    assert!(cluster.beat(1, 1, 0).is_ok());
    assert!(message(cluster.adopt(&[], None)).contains("try again in 11 s"));
    cluster.wait(DOUBT_SETTLES_MS);
    for node in 1..=3 {
        assert_eq!(cluster.beat(node, 1, 0), Err(Error::UnknownNode(NodeId(node))), "asked again");
        cluster.hear(&disks, node);
    }
    assert!(message(cluster.adopt(&[], None)).contains("try again in 1 s"));
    cluster.wait(DOUBT_ASKS_MS);
    (1..=3).for_each(|node| drop(cluster.beat(node, 1, 0).unwrap()));
    cluster.adopt(&[], None).unwrap();
}

#[test]
fn openings_of_a_flush_volume_are_doubted_and_its_cache_generation_never_goes_back() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.make(&NewVolume { durability: Durability::Flush, ..NewVolume::new("db", Bytes(MIB)) }).unwrap();
    cluster.bear(1);
    let config = cluster.config(1, 0);
    cluster.grant(&config, MembershipChange::CacheLost);
    let backup = cluster.file.clone();
    let config = cluster.config(1, 0);
    assert!(config.cache > Commit(0));
    cluster.grant(&config, MembershipChange::Drop(vec![other(&config, 0).copy]));
    // As stores keep it.
    let mut kept = cluster.config(1, 0);
    kept.cache = Commit(0);
    let mut disks = Disks::default();
    disks.join(&config, |_| true);
    disks.join(&kept, |_| true);
    cluster.file = backup;
    cluster.restart();
    let dirty = cluster.model.restored(cluster.now);
    cluster.persist(dirty);
    cluster.settle_doubt();
    (1..=3).for_each(|node| cluster.hear(&disks, node));
    cluster.adopt(&[], None).unwrap();
    let adopted = cluster.config(1, 0);
    assert_eq!((adopted.cache, adopted.in_sync()), (config.cache, 2));
    assert!(adopted.in_sync_members().all(|m| m.since == adopted.epoch), "{adopted:?}");
    cluster.grant(&adopted, MembershipChange::CacheLost);
}

#[test]
fn a_growing_that_was_cut_short_between_shards_is_set_aside() {
    let cluster = with_volume();
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    disks.copies.retain(|_, (_, config, _)| config.shard != shard(1, 1));
    for (_, config, _) in disks.copies.values_mut().filter(|(_, c, _)| c.card.is_some()) {
        config.card.as_mut().unwrap().size = Bytes(MIB);
    }
    let mut cluster = lost();
    (1..=3).for_each(|node| cluster.hear(&disks, node));
    let info = cluster.model.recovery().unwrap();
    assert!(info.risks[0].contains("no copy of v1/1"), "{:?}", info.risks);
    cluster.adopt(&[], info.sentence).unwrap();
}

/// A card that has no room for all names says nothing of the oldest; a newer one that it lacks is gone, and its name is another's.
#[test]
fn a_name_that_was_given_again_is_the_newer_snapshots() {
    let mut cluster = with_volume();
    let long = |n: u32| format!("{n:0>60}");
    (0..40).for_each(|n| drop(cluster.snapshot("db", &long(n))));
    let backup = cluster.file.clone();
    for n in [0, 39] {
        cluster.delete_snapshot("db", &long(n)).unwrap();
        cluster.work_off();
        cluster.snapshot("db", &long(n));
    }
    cluster.tick();
    assert!(cluster.config(1, 0).card.unwrap().more);
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    let names: BTreeSet<String> = cluster.list("db").into_iter().map(|s| s.name).collect();
    let seen = cluster.model.commit();
    cluster.file = backup;
    cluster.restart();
    let dirty = cluster.model.restored(cluster.now);
    cluster.persist(dirty);
    cluster.settle_doubt();
    for node in 1..=3 {
        cluster.run(|m, now, _| m.register(now, &Register { seen, ..disks.register(node, 1) })).unwrap();
    }
    cluster.adopt(&[], None).unwrap();
    let adopted: Vec<String> = cluster.list("db").into_iter().map(|s| s.name).collect();
    assert_eq!((adopted.len(), adopted.into_iter().collect::<BTreeSet<_>>()), (40, names));
}

#[test]
fn a_volume_that_nobody_knows_is_kept_and_not_touched() {
    let cluster = with_volume();
    let mut disks = Disks::default();
    disks.serve_all(&cluster);
    disks.copies.retain(|_, (_, config, _)| config.shard != shard(1, 0));
    let mut cluster = lost();
    (1..=3).for_each(|node| cluster.hear(&disks, node));
    let info = cluster.model.recovery().unwrap();
    assert_eq!((info.unknown.len(), info.unknown[0].copies), (1, 6));
    cluster.adopt(&[], info.sentence).unwrap();
    assert!(cluster.model.list(cluster.now).is_empty());
    for node in 1..=3 {
        cluster.hear(&disks, node);
        assert_eq!(cluster.beat(node, 1, 0).unwrap().drop, []);
    }
    assert_eq!(cluster.model.doubted(), None, "its id is below those that are given out");
    // A disk with such copies is not empty.
    let old = common::disk_of(1);
    let mut both = disks.register(1, 1);
    both.disks.push(report(11, 1));
    cluster.run(|m, now, _| m.register(now, &both)).unwrap();
    let remove = |c: &mut Cluster, force: bool| c.run(|m, now, _| m.remove_disk(now, old, force));
    assert!(remove(&mut cluster, false).unwrap_err().to_string().contains("has 2 copies of volumes"));
    remove(&mut cluster, true).unwrap();
    assert_eq!(cluster.model.answer(NodeId(1), Commit(0)).retire, []);
    let warnings = cluster.model.status(cluster.now).warnings;
    assert_eq!(warnings.iter().filter(|w| w.contains("is not taken out")).count(), 1, "{warnings:?}");
    assert_eq!(
        warnings.iter().filter(|w| w.contains("2 copies of volumes that this conductor does not know")).count(),
        3
    );
}

#[test]
fn many_snapshots_fit_a_card_as_far_as_they_do() {
    let mut cluster = with_volume();
    for n in 0..40 {
        cluster.snapshot("db", &format!("{n:0>60}"));
    }
    cluster.tick();
    let card = cluster.config(1, 0).card.unwrap();
    assert!(card.more && card.bytes() <= conductor_model::card::MAX_CARD_BYTES);
    assert_eq!(card.snapshots[0].name, format!("{:0>60}", 39));
    assert!(cluster.config(1, 1).card.is_none(), "the first shard's is enough");
    cluster.run(|m, now, _| m.resize(now, "db", Bytes(5 * MIB), &mut || 77)).unwrap_err();
}

#[test]
fn a_disk_id_is_read_as_it_is_printed() {
    let mut cluster = lost();
    let unknown = DiskId(0xab).to_string();
    assert!(matches!(cluster.adopt(&[unknown], None), Err(Error::NotReady(_))));
}
