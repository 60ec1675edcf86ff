//! What people are told of copies that are not in sync, and how they end the filling of one.

mod common;
use common::{Cluster, MIB, draws, other, shard, state, with_volume};
use conductor_model::api::{Filling, MembershipChange};
use conductor_model::views::{Health, ResyncChange, ResyncInfo, ResyncState, ResyncVerb};
use conductor_model::{Bytes, Commit, Configuration, CopyId, CopyState, Error, NodeId, OpenId};

fn change(cluster: &mut Cluster, volume: &str, verb: ResyncVerb, copies: &[CopyId]) -> Result<Vec<ResyncInfo>, Error> {
    let change = ResyncChange { verb, copies: copies.to_vec() };
    cluster.run(|m, now, _| m.change_resync(now, volume, &change))
}

/// The first shard, one copy of which was left behind; and that one.
fn behind(cluster: &mut Cluster) -> (Configuration, CopyId) {
    let config = cluster.config(1, 0);
    let copy = other(&config, 0).copy;
    (cluster.grant(&config, MembershipChange::Drop(vec![copy])), copy)
}

fn health(cluster: &Cluster) -> (Health, Vec<String>) {
    let info = cluster.model.list(cluster.now).remove(0);
    (info.health, info.reasons)
}

#[test]
fn a_copy_that_is_filled_is_listed_with_what_its_primary_says_of_it() {
    let mut cluster = with_volume();
    assert_eq!(cluster.model.resyncs(cluster.now), []);
    let (config, copy) = behind(&mut cluster);
    let listed = |c: &Cluster| c.model.resyncs(c.now).remove(0);
    assert_eq!((listed(&cluster).state, listed(&cluster).eta_seconds), (ResyncState::Waiting, None));
    let config = cluster.grant(&config, MembershipChange::Fill(copy, OpenId(1)));
    let primary = config.primary_member().unwrap().node;
    let filling = Filling { shard: shard(1, 0), copy, done: Bytes(MIB / 4), of: Bytes(MIB), rate: Bytes(MIB / 4) };
    // Whoever is not its primary says nothing of it.
    for node in 1..=3 {
        let mut beat = cluster.heartbeat(node, 1, 0);
        let done = if NodeId(node) == primary { filling.done } else { Bytes(MIB) };
        beat.filling = vec![Filling { done, ..filling }];
        cluster.run(|m, now, _| m.heartbeat(now, &beat)).unwrap();
    }
    let info = listed(&cluster);
    assert_eq!((info.volume.as_str(), info.copy, info.from), ("db", copy, Some(primary)));
    assert_eq!(
        (info.state, info.done, info.of, info.eta_seconds),
        (ResyncState::Filling, filling.done, Bytes(MIB), Some(3))
    );
    cluster.grant(&config, MembershipChange::Add(copy));
    assert_eq!(cluster.model.resyncs(cluster.now), []);
}

#[test]
fn an_aborted_filling_begins_again_when_somebody_says_so_and_no_sooner() {
    let mut cluster = with_volume();
    let (config, copy) = behind(&mut cluster);
    let config = cluster.grant(&config, MembershipChange::Fill(copy, OpenId(1)));
    let primary = config.primary_member().unwrap().node.0;
    assert_eq!(cluster.told(primary).held, Some(Vec::new()));
    let after = cluster.told(primary).version;
    assert_eq!(cluster.beat(primary, 1, after).unwrap().held, None, "nothing new");
    let aborted = change(&mut cluster, "db", ResyncVerb::Abort, &[]).unwrap();
    assert_eq!(aborted.iter().map(|c| (c.copy, c.state)).collect::<Vec<_>>(), [(copy, ResyncState::Aborted)]);
    assert!(cluster.model.has_news(NodeId(primary), Commit(after)));
    assert_eq!(cluster.beat(primary, 1, after).unwrap().held, Some(vec![copy]));
    let others = (1..=3).filter(|node| *node != primary);
    others.for_each(|node| assert_eq!(cluster.told(node).held, Some(Vec::new())));
    assert_eq!(cluster.config(1, 0), config, "its primary ends it");
    let dropped = cluster.grant(&config, MembershipChange::Drop(vec![copy]));
    let why = cluster.refuse(&dropped, MembershipChange::Fill(copy, OpenId(1)));
    assert!(why.contains("aborted"), "{why}");
    let (word, reasons) = health(&cluster);
    assert_eq!(word, Health::Degraded);
    assert!(reasons.iter().any(|why| why.contains("trine resync resume db")), "{reasons:?}");
    cluster.restart();
    cluster.pass(1_000, &[(1, 1), (2, 1), (3, 1)]);
    cluster.refuse(&dropped, MembershipChange::Fill(copy, OpenId(1)));
    assert_eq!(cluster.told(primary).held, Some(vec![copy]), "over a restart, too");
    let again = change(&mut cluster, "db", ResyncVerb::Abort, &[copy]).unwrap();
    assert_eq!(again.len(), 1, "twice is once");
    assert_eq!(change(&mut cluster, "db", ResyncVerb::Resume, &[]).unwrap()[0].state, ResyncState::Waiting);
    assert_eq!(cluster.told(primary).held, Some(Vec::new()));
    let config = cluster.grant(&dropped, MembershipChange::Fill(copy, OpenId(1)));
    cluster.grant(&config, MembershipChange::Add(copy));
    assert_eq!(health(&cluster).0, Health::Healthy);
    let events: Vec<String> = cluster.model.events(0).iter().map(|e| e.what.to_string()).collect();
    for verb in ["aborted", "resumed"] {
        assert_eq!(events.iter().filter(|e| e.contains(&format!("{verb} by hand"))).count(), 1, "{events:?}");
    }
}

#[test]
fn what_was_aborted_or_resumed_is_told_by_the_next_conductor_if_this_one_has_not() {
    let mut cluster = with_volume();
    let (config, copy) = behind(&mut cluster);
    let primary = config.primary_member().unwrap().node;
    for (verb, held) in [(ResyncVerb::Abort, vec![copy]), (ResyncVerb::Resume, Vec::new())] {
        let after = cluster.told(primary.0).version;
        change(&mut cluster, "db", verb, &[copy]).unwrap();
        cluster.restart();
        assert!(cluster.model.has_news(primary, Commit(after)), "{verb}");
        let told = cluster.beat(primary.0, 1, after).unwrap();
        assert_eq!(told.held, Some(held), "{verb}");
        let again = cluster.beat(primary.0, 1, told.version).unwrap();
        assert_eq!(again.held, None, "it is told once");
        cluster.restart();
        assert!(!cluster.model.has_news(primary, Commit(told.version)), "nor by the one after that");
    }
}

#[test]
fn a_copy_that_comes_to_be_in_sync_before_its_primary_hears_of_the_abort_stays_so() {
    let mut cluster = with_volume();
    let (config, copy) = behind(&mut cluster);
    let config = cluster.grant(&config, MembershipChange::Fill(copy, OpenId(1)));
    change(&mut cluster, "db", ResyncVerb::Abort, &[copy]).unwrap();
    let config = cluster.grant(&config, MembershipChange::Add(copy));
    assert_eq!(cluster.told(config.primary_member().unwrap().node.0).held, Some(Vec::new()));
    // And when it falls behind the next time it is filled as ever.
    let config = cluster.grant(&config, MembershipChange::Drop(vec![copy]));
    cluster.grant(&config, MembershipChange::Fill(copy, OpenId(1)));
}

#[test]
fn what_writes_wait_for_is_filled_whatever_was_aborted() {
    let mut cluster = with_volume();
    let (config, copy) = behind(&mut cluster);
    change(&mut cluster, "db", ResyncVerb::Abort, &[copy]).unwrap();
    let left = config.in_sync_members().find(|m| m.copy != config.primary).unwrap().copy;
    let sealed = cluster.grant(&config, MembershipChange::Drop(vec![left]));
    assert!(sealed.is_sealed());
    assert_eq!(cluster.told(sealed.primary_member().unwrap().node.0).held, Some(Vec::new()));
    for copies in [vec![], vec![copy]] {
        let refused = change(&mut cluster, "db", ResyncVerb::Abort, &copies).unwrap_err();
        assert!(refused.to_string().contains("writes of v1/0 wait for"), "{refused}");
    }
    let config = cluster.grant(&sealed, MembershipChange::Fill(copy, OpenId(1)));
    assert_eq!(state(&config, copy), CopyState::Syncing);
}

#[test]
fn what_is_in_sync_or_unknown_is_not_aborted() {
    let mut cluster = with_volume();
    let (config, copy) = behind(&mut cluster);
    let refused = |cluster: &mut Cluster, volume: &str, copies: &[CopyId]| {
        change(cluster, volume, ResyncVerb::Abort, copies).unwrap_err().kind()
    };
    assert_eq!(refused(&mut cluster, "db", &[config.primary]), "in-use");
    assert_eq!(refused(&mut cluster, "db", &[copy, CopyId(5)]), "no-such-copy");
    assert_eq!(refused(&mut cluster, "no", &[copy]), "no-volume");
    assert_eq!(cluster.model.resyncs(cluster.now)[0].state, ResyncState::Waiting, "none of it was done");
}

/// Whatever is aborted and resumed in whatever order of drops, fillings and returns: what is held is not in sync, and of no sealed shard.
#[test]
fn holds_end_with_what_they_are_for() {
    for seed in 0..50 {
        let mut draw = draws(seed);
        let mut cluster = with_volume();
        for _ in 0..60 {
            let config = cluster.config(1, 0);
            let member = config.members[usize::try_from(draw() % 3).unwrap()].clone();
            let step = match draw() % 5 {
                0 => MembershipChange::Drop(vec![member.copy]),
                1 => MembershipChange::Fill(member.copy, OpenId(1)),
                2 => MembershipChange::Add(member.copy),
                n => {
                    let verb = if n == 3 { ResyncVerb::Abort } else { ResyncVerb::Resume };
                    let _ = change(&mut cluster, "db", verb, &[member.copy]);
                    continue;
                }
            };
            cluster.ask(&config, step);
            let config = cluster.config(1, 0);
            let held = cluster.told(config.primary_member().unwrap().node.0).held.unwrap();
            assert!(held.is_empty() || !config.is_sealed(), "seed {seed}");
            assert!(held.iter().all(|copy| state(&config, *copy) != CopyState::InSync), "seed {seed}");
        }
    }
}
