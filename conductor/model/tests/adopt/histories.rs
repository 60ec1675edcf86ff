//! Histories drawn at random, then a state that is lost or outdated: whatever the nodes hold, no acknowledged write is given up for want of a
//! sentence.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Of the members, these are dropped.
    Drop(usize, u8, u8),
    Sync(usize, usize, u8),
    Add(usize, u8),
    /// So many copies are enough from now on, of which some join.
    Enough(u8, u8),
    /// This node falls silent, and its shards go to others, of which some join.
    Silence(u32, u8),
    Snapshot(u8),
    Create,
    /// Everything joins what it was given.
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0usize..8, 1u8..8, any::<u8>()).prop_map(|(s, m, j)| Step::Drop(s, m, j)),
        3 => (0usize..8, 0usize..4, any::<u8>()).prop_map(|(s, m, j)| Step::Sync(s, m, j)),
        3 => (0usize..8, any::<u8>()).prop_map(|(s, j)| Step::Add(s, j)),
        2 => (1u32..5, any::<u8>()).prop_map(|(n, j)| Step::Silence(n, j)),
        1 => (1u8..4, any::<u8>()).prop_map(|(n, j)| Step::Enough(n, j)),
        1 => (0u8..4).prop_map(Step::Snapshot),
        1 => Just(Step::Create),
        2 => Just(Step::Settle),
    ];
    proptest::collection::vec(step, 1..40)
}

fn take(cluster: &mut Cluster, disks: &mut Disks, step: &Step) {
    let pick = |cluster: &Cluster, n: usize| -> Configuration {
        let all = configs(cluster);
        all[n % all.len()].clone()
    };
    let ask = |cluster: &mut Cluster, disks: &mut Disks, config: &Configuration, change, joins: u8| {
        if let MembershipAnswer::Granted(next) = cluster.ask(config, change) {
            disks.join(&next, |n| joins >> n & 1 == 1);
        }
    };
    match *step {
        Step::Drop(n, which, joins) => {
            let config = pick(cluster, n);
            let named = config.members.iter().enumerate().filter(|(n, _)| which >> n & 1 == 1).map(|(_, m)| m);
            let named = named.filter(|m| m.copy != config.primary && m.state != CopyState::Absent).map(|m| m.copy);
            let named: Vec<CopyId> = named.collect();
            ask(cluster, disks, &config, MembershipChange::Drop(named), joins);
        }
        Step::Sync(n, which, joins) => {
            let config = pick(cluster, n);
            let copy = config.members[which % config.members.len()].copy;
            ask(cluster, disks, &config, MembershipChange::Fill(copy, OpenId(1)), joins);
        }
        Step::Add(n, joins) => {
            let config = pick(cluster, n);
            let Some(syncing) = config.members.iter().find(|m| m.state == CopyState::Syncing) else { return };
            // A copy is filled by a primary that serves, and then holds all that was acknowledged.
            let all = config.members.iter().filter(|m| m.state != CopyState::Absent);
            let serves = all.map(|m| disks.copies.get(&m.copy)).all(|c| c.is_some_and(|c| c.1.epoch == config.epoch));
            if serves {
                let writes = disks.copies[&config.primary].2;
                disks.copies.get_mut(&syncing.copy).unwrap().2 = writes;
                ask(cluster, disks, &config, MembershipChange::Add(syncing.copy), joins);
            }
        }
        Step::Enough(_, joins) | Step::Silence(_, joins) => {
            let before: BTreeMap<_, _> = configs(cluster).into_iter().map(|c| (c.shard, c.epoch)).collect();
            match *step {
                Step::Silence(node, _) => {
                    let heard: Vec<(u32, u64)> = (1..=4).filter(|n| *n != node).map(|n| (n, 1)).collect();
                    cluster.pass(3_000, &heard);
                }
                // Refused where it would be dangerous.
                Step::Enough(least, _) => drop(cluster.run(|m, now, _| m.set_copies(now, "db", None, Some(least)))),
                _ => {}
            }
            for config in configs(cluster).iter().filter(|c| before.get(&c.shard) != Some(&c.epoch)) {
                disks.join(config, |n| joins >> n & 1 == 1);
            }
        }
        Step::Snapshot(name) => {
            if cluster.begin("db", &format!("s{name}")).is_ok() {
                cluster.all_done();
            }
            cluster.tick();
        }
        Step::Create => {
            let name = format!("v{}", configs(cluster).len());
            if let Ok(id) = cluster.create(&name, 2 * MIB) {
                for index in 0..2 {
                    disks.join(&cluster.model.configuration(shard(id.0, index)).unwrap(), |_| true);
                }
                cluster.bear(id.0);
            }
        }
        Step::Settle => disks.serve_all(cluster),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_acknowledged_write_is_lost_by_adopting(
        history in steps(),
        kept in 0usize..40,
        nothing_kept in any::<bool>(),
        order in Just(vec![1u32, 2, 3, 4]).prop_shuffle(),
    ) {
        let mut cluster = Cluster::with_nodes(4);
        let mut disks = Disks::default();
        cluster.create("db", 2 * MIB).unwrap();
        disks.serve_all(&cluster);
        cluster.bear(1);
        disks.serve_all(&cluster);
        let mut backup = cluster.file.clone();
        for (n, step) in history.iter().enumerate() {
            take(&mut cluster, &mut disks, step);
            if n == kept {
                backup = cluster.file.clone();
            }
        }
        let (seen, now) = (cluster.model.commit(), cluster.now);
        let mut cluster = if nothing_kept { lost() } else { Cluster { file: backup, ..cluster } };
        cluster.now = Millis(now.0.max(cluster.now.0));
        let now = cluster.now;
        if !nothing_kept {
            cluster.restart();
            let dirty = cluster.model.restored(now);
            cluster.persist(dirty);
            cluster.settle_doubt();
        }
        let mut heard = BTreeSet::new();
        for node in &order {
            // Before everybody was heard of whose copies the newest configuration names, nothing is adopted.
            if let Some(config) = missing(&disks, &heard) {
                prop_assert!(cluster.adopt(&[], None).is_err(), "{} without {:?}", config.shard, heard);
            }
            cluster.run(|m, now, _| m.register(now, &Register { seen, ..disks.register(*node, 1) })).unwrap();
            heard.insert(NodeId(*node));
            prop_assert!(cluster.model.commit() >= seen);
            cluster.now = Millis(cluster.now.0 + 5_000);
            cluster.tick();
        }
        let epochs: BTreeMap<ShardId, _> = newest(&disks);
        let info = cluster.adopt(&[], None);
        prop_assert!(info.is_ok(), "{info:?}");
        for (shard, writes) in &disks.acknowledged {
            let config = cluster.model.configuration(*shard).unwrap();
            prop_assert!(config.epoch > epochs[shard].epoch);
            for member in config.in_sync_members() {
                prop_assert!(disks.copies[&member.copy].2 >= *writes, "{member:?} of {shard} lacks a write");
            }
        }
        // It leads again, and what was away may come.
        prop_assert_eq!(cluster.model.doubted(), None);
        for node in 1..=4 {
            cluster.hear(&disks, node);
        }
        cluster.create("afterwards", MIB).unwrap();
        prop_assert_eq!(cluster.model.doubted(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_acknowledged_is_given_up_without_a_sentence(history in steps(), gone in 1u32..5) {
        let mut cluster = Cluster::with_nodes(4);
        let mut disks = Disks::default();
        cluster.create("db", 2 * MIB).unwrap();
        disks.serve_all(&cluster);
        cluster.bear(1);
        disks.serve_all(&cluster);
        history.iter().for_each(|step| take(&mut cluster, &mut disks, step));
        let now = cluster.now;
        let mut cluster = lost();
        cluster.now = Millis(now.0.max(cluster.now.0));
        (1..=4).filter(|n| *n != gone).for_each(|n| cluster.hear(&disks, n));
        if cluster.adopt(&[format!("n{gone}")], None).is_ok() {
            for (shard, writes) in &disks.acknowledged {
                let config = cluster.model.configuration(*shard);
                prop_assert!(config.is_some(), "{shard} is given up");
                for member in config.unwrap().in_sync_members() {
                    prop_assert!(disks.copies[&member.copy].2 >= *writes, "{member:?} of {shard} lacks a write");
                }
            }
        }
    }
}

/// The copy is filled, added, and primary alone, and nobody that is heard of has heard of more than that it was being filled.
#[test]
fn a_copy_that_was_being_filled_is_not_left_out_without_a_sentence() {
    let mut cluster = Cluster::with_nodes(4);
    let mut disks = Disks::default();
    cluster.create("db", MIB).unwrap();
    disks.serve_all(&cluster);
    cluster.bear(1);
    disks.serve_all(&cluster);
    let [primary, other, filled] = cluster.config(1, 0).members.try_into().unwrap();
    for step in [
        Step::Drop(0, 2, 0),
        Step::Enough(1, 0),
        Step::Drop(0, 4, 0),
        Step::Sync(0, 2, 3),
        Step::Add(0, 0),
        Step::Silence(primary.node.0, 1),
    ] {
        take(&mut cluster, &mut disks, &step);
    }
    assert_eq!(cluster.config(1, 0).primary, filled.copy);
    let now = cluster.now;
    let mut cluster = lost();
    cluster.now = Millis(now.0.max(cluster.now.0));
    [primary.node, other.node].iter().for_each(|node| cluster.hear(&disks, node.0));
    assert!(cluster.adopt(&[filled.node.to_string()], None).is_err());
}

/// Of each shard, the newest configuration that a copy has joined.
fn newest(disks: &Disks) -> BTreeMap<ShardId, Configuration> {
    let mut newest: BTreeMap<ShardId, Configuration> = BTreeMap::new();
    for (_, config, _) in disks.copies.values() {
        let here = newest.entry(config.shard).or_insert_with(|| config.clone());
        if config.epoch > here.epoch {
            *here = config.clone();
        }
    }
    newest
}

/// A shard whose newest configuration nobody that was heard of knows, if what they know names somebody else.
fn missing(disks: &Disks, heard: &BTreeSet<NodeId>) -> Option<Configuration> {
    let partly = Disks {
        copies: disks.copies.iter().filter(|(_, c)| heard.contains(&c.0)).map(|(id, c)| (*id, c.clone())).collect(),
        ..Disks::default()
    };
    let (all, known) = (newest(disks), newest(&partly));
    all.into_values().find(|config| known.get(&config.shard).is_none_or(|k| k.epoch < config.epoch))
}
