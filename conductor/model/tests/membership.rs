//! What a primary may ask about its shard's copies, one promise per test (rules 1, 10, 11, 12).

mod common;
use common::{Cluster, MIB, other, registration, request, state, with_volume};
use conductor_model::api::{MembershipAnswer, MembershipChange};
use conductor_model::{Configuration, CopyId, CopyState, Epoch, Error, Millis, OpenId};

fn dropped(cluster: &mut Cluster, which: &[usize]) -> Configuration {
    let mut config = cluster.config(1, 0);
    // One after the other: who drops all others at once while they are well is cut off itself.
    let copies: Vec<CopyId> = which.iter().map(|which| other(&config, *which).copy).collect();
    for copy in copies {
        config = cluster.grant(&config, MembershipChange::Drop(vec![copy]));
    }
    config
}

#[test]
fn a_dropped_copy_is_absent_and_the_rest_is_the_full_set() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let gone = other(&before, 0);
    let next = dropped(&mut cluster, &[0]);
    assert_eq!((next.epoch.0, next.primary), (before.epoch.0 + 1, before.primary));
    assert_eq!((state(&next, gone.copy), next.members.len(), next.in_sync()), (CopyState::Absent, 3, 2));
    assert_eq!(next.full_set, next.in_sync_members().map(|m| m.copy).collect::<Vec<_>>());
    cluster.restart();
    assert_eq!(cluster.config(1, 0), next);
}

#[test]
fn dropping_too_many_seals_the_epoch_and_keeps_the_last_full_set() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let others = vec![other(&before, 0).copy, other(&before, 1).copy];
    cluster.now = Millis(cluster.now.0 + 3_000);
    let both = cluster.grant(&before, MembershipChange::Drop(others));
    assert!(both.is_sealed());
    assert_eq!(both.full_set, before.full_set);

    let mut cluster = with_volume();
    let first = dropped(&mut cluster, &[0]);
    let left = first.in_sync_members().find(|m| m.copy != first.primary).unwrap().copy;
    let second = cluster.grant(&first, MembershipChange::Drop(vec![left]));
    assert!(second.is_sealed());
    assert_eq!(second.full_set, first.full_set, "the copy that left first is not of it");
}

#[test]
fn a_primary_that_cannot_reach_enough_copies_that_are_well_is_replaced_by_one_of_them() {
    let mut cluster = with_volume();
    let before = cluster.config(1, 0);
    let (a, b) = (other(&before, 0), other(&before, 1));
    let next = cluster.grant(&before, MembershipChange::Drop(vec![a.copy, b.copy]));
    assert!(!next.is_sealed() && [a.copy, b.copy].contains(&next.primary), "{next:?}");
    assert_eq!(state(&next, before.primary), CopyState::Absent);

    // Not if one of the two is silent: what is left would be too few.
    let mut cluster = with_volume();
    let primary = before.primary_member().unwrap().node.0;
    cluster.pass(2_000, &[(primary, 1), (a.node.0, 1)]);
    let before = cluster.config(1, 0);
    let next = cluster.grant(&before, MembershipChange::Drop(vec![a.copy, b.copy]));
    assert_eq!((next.primary, next.is_sealed()), (before.primary, true));
}

#[test]
fn neither_the_primary_nor_a_stranger_nor_nobody_is_dropped() {
    let mut cluster = with_volume();
    let config = dropped(&mut cluster, &[0]);
    let absent = other(&config, 0).copy;
    for bad in [vec![], vec![config.primary], vec![CopyId(5)], vec![absent], vec![other(&config, 1).copy, absent]] {
        cluster.refuse(&config, MembershipChange::Drop(bad));
    }
}

#[test]
fn who_asks_under_an_epoch_that_was_never_given_out_shows_that_this_state_is_from_the_past() {
    let mut cluster = with_volume();
    let old = cluster.file.clone();
    let before = cluster.config(1, 0);
    let left = other(&before, 0).copy;
    let newer = dropped(&mut cluster, &[0]);
    cluster.file = old;
    cluster.restart();
    // Its primary goes on as before, and asks before it is told to register once more.
    let sync = request(&newer, MembershipChange::Fill(left, OpenId(1)));
    let drop = request(&cluster.config(1, 1), MembershipChange::Drop(vec![other(&cluster.config(1, 1), 0).copy]));
    let answers = cluster.run(|m, now, _| m.membership(now, &[drop, sync])).unwrap();
    for answer in answers {
        assert!(matches!(&answer, MembershipAnswer::Refused(why) if why.contains("from the past")), "{answer:?}");
    }
    assert!(cluster.model.doubted().unwrap().contains(&format!("{}", newer.epoch)), "{:?}", cluster.model.doubted());
    assert_eq!(cluster.config(1, 0), before, "nothing is changed");
    assert!(matches!(cluster.beat(1, 1, 0), Err(Error::UnknownNode(_))), "all nodes say what they hold");
    cluster.restart();
    assert!(cluster.model.doubted().is_some());

    // No conductor gives out such a one.
    let mut cluster = with_volume();
    let absurd = Configuration { epoch: Epoch(u64::MAX), ..cluster.config(1, 0) };
    assert!(matches!(cluster.ask(&absurd, MembershipChange::StepDown), MembershipAnswer::Stale(_)));
    assert_eq!(cluster.model.doubted(), None);
}

#[test]
fn a_copy_is_filled_before_it_counts() {
    let mut cluster = with_volume();
    let config = dropped(&mut cluster, &[0]);
    let absent = other(&config, 0);
    assert!(cluster.refuse(&config, MembershipChange::Add(absent.copy)).contains("is not being filled"));
    let in_sync = other(&config, 1).copy;
    assert!(cluster.refuse(&config, MembershipChange::Add(in_sync)).contains("is not being filled"));
    let filling = cluster.grant(&config, MembershipChange::Fill(absent.copy, OpenId(1)));
    assert_eq!((state(&filling, absent.copy), filling.in_sync()), (CopyState::Syncing, 2));
    assert!(!filling.full_set.contains(&absent.copy));
    let added = cluster.grant(&filling, MembershipChange::Add(absent.copy));
    assert_eq!((added.in_sync(), added.full_set.len()), (3, 3));
}

#[test]
fn a_copy_is_filled_only_under_the_opening_that_is_registered() {
    let mut cluster = with_volume();
    let config = dropped(&mut cluster, &[0]);
    let absent = other(&config, 0);
    let sync = |open| MembershipChange::Fill(absent.copy, OpenId(open));
    assert!(cluster.refuse(&config, sync(2)).contains("has not registered"));
    cluster.register(absent.node.0, 2).unwrap();
    assert!(cluster.refuse(&config, sync(1)).contains("has not registered"));
    assert_eq!(cluster.grant(&config, sync(2)).member(absent.copy).unwrap().open, OpenId(2));

    let mut without = registration(absent.node.0, 3);
    without.disks[0].disk = common::disk_of(70);
    let mut cluster = with_volume();
    let config = dropped(&mut cluster, &[0]);
    let absent = other(&config, 0);
    without.node = absent.node;
    cluster.register_as(&without).unwrap();
    cluster.refuse(&config, MembershipChange::Fill(absent.copy, OpenId(1)));
}

#[test]
fn one_copy_is_filled_at_a_time() {
    let mut cluster = with_volume();
    let config = dropped(&mut cluster, &[0, 1]);
    let (a, b) = (other(&config, 0).copy, other(&config, 1).copy);
    let filling = cluster.grant(&config, MembershipChange::Fill(a, OpenId(1)));
    assert!(filling.is_sealed());
    assert!(cluster.refuse(&filling, MembershipChange::Fill(b, OpenId(1))).contains("one copy at a time"));
    let enough = cluster.grant(&filling, MembershipChange::Add(a));
    assert!(!enough.is_sealed());
    assert_eq!(enough.full_set, [enough.primary, a].into_iter().collect::<Vec<_>>());
    let again = cluster.grant(&enough, MembershipChange::Fill(b, OpenId(1)));
    // The filling ended badly.
    let ended = cluster.grant(&again, MembershipChange::Drop(vec![b]));
    assert_eq!(state(&ended, b), CopyState::Absent);
}

#[test]
fn what_was_asked_under_an_older_epoch_changes_nothing() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (a, b) = (other(&first, 0).copy, other(&first, 1).copy);
    let absent = cluster.grant(&first, MembershipChange::Drop(vec![a]));
    let filling = cluster.grant(&absent, MembershipChange::Fill(a, OpenId(1)));
    // Given up under a persisted epoch: the "add" that was asked before comes late.
    let given_up = cluster.grant(&filling, MembershipChange::Drop(vec![a]));
    let file = cluster.file.clone();
    let late = [
        (&filling, MembershipChange::Add(a)),
        (&first, MembershipChange::Drop(vec![b])),
        (&filling, MembershipChange::Drop(vec![b])),
        (&absent, MembershipChange::Fill(a, OpenId(1))),
        (&first, MembershipChange::StepDown),
    ];
    for (under, change) in late {
        assert_eq!(cluster.ask(under, change), MembershipAnswer::Stale(given_up.clone()));
    }
    let mut foreign = request(&given_up, MembershipChange::Drop(vec![a]));
    foreign.by = b;
    let answers = cluster.run(|m, now, _| m.membership(now, &[foreign])).unwrap();
    assert_eq!(answers, [MembershipAnswer::Stale(given_up)]);
    assert_eq!(file, cluster.file);
}

#[test]
fn a_primary_that_steps_down_is_followed_by_one_that_is_heard() {
    let mut cluster = with_volume();
    let first = cluster.config(1, 0);
    let (a, b) = (other(&first, 0), other(&first, 1));
    let old = first.primary_member().unwrap().node;
    cluster.pass(2_000, &[(old.0, 1), (b.node.0, 1)]);
    let first = cluster.config(1, 0);
    let next = cluster.grant(&first, MembershipChange::StepDown);
    assert_eq!((next.primary, next.epoch.0), (b.copy, first.epoch.0 + 1));
    assert_eq!(state(&next, first.primary), CopyState::Absent, "two others are in sync");
    assert_eq!(next.full_set.len(), 2);
    assert_eq!(cluster.model.map("db").unwrap().shards[0].node, b.node);

    let next = cluster.grant(&next, MembershipChange::Drop(vec![a.copy]));
    assert!(cluster.refuse(&next, MembershipChange::StepDown).contains("no other copy"), "sealed, and a is silent");
    cluster.beat(a.node.0, 1, 0).unwrap();
    let back = cluster.grant(&next, MembershipChange::StepDown);
    assert_eq!(back.primary, a.copy, "of the last full set");
    assert_eq!((back.in_sync(), back.is_sealed()), (2, false), "nobody is left out where too few would remain");
}

#[test]
fn a_shard_is_created_by_those_that_live() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", MIB).unwrap();
    let first = cluster.config(1, 0);
    let (a, b) = (other(&first, 0).clone(), other(&first, 1).clone());
    cluster.pass(5_000, &[(a.node.0, 1), (b.node.0, 1)]);
    let next = cluster.config(1, 0);
    assert_ne!(next.primary, first.primary, "it is silent");
    assert_eq!((next.epoch, next.born, next.in_sync()), (Epoch(first.epoch.0 + 1), false, 2));
    // Sealed, its full set would name copies that may never have been made: none of them could take over.
    let last = next.in_sync_members().find(|m| m.copy != next.primary).unwrap().copy;
    let refused = cluster.refuse(&next, MembershipChange::Drop(vec![last]));
    assert!(refused.contains("being created, by 2 copies at least"), "{refused}");
    let born = cluster.grant(&next, MembershipChange::Born);
    assert!(born.born && born.in_sync() == 2);
    assert!(cluster.grant(&born, MembershipChange::Drop(vec![last])).is_sealed());
}
