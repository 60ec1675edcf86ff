//! The event log, one promise per test.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Cluster, MIB, other, with_volume};
use conductor_model::api::MembershipChange;
use conductor_model::events::Happened;
use conductor_model::limits::{MAX_EVENTS, MAX_EVENTS_AT_ONCE};
use conductor_model::views::{Attach, Detach, Duty};
use conductor_model::{AttachGeneration, Commit, NodeId, OpenId};

/// What happened after this number, and the last number.
fn since(cluster: &Cluster, after: u64) -> (Vec<Happened>, u64) {
    let events = cluster.model.events(after);
    let last = events.last().map_or(after, |e| e.number);
    (events.into_iter().map(|e| e.what).collect(), last)
}

fn words(happened: &[Happened]) -> Vec<String> {
    happened.iter().map(ToString::to_string).collect()
}

#[test]
fn a_death_and_a_return_can_be_read_from_the_log() {
    let mut cluster = with_volume();
    let (_, begin) = since(&cluster, 0);
    let first = cluster.config(1, 0);
    let (dead, left) = (first.primary_member().unwrap().clone(), [other(&first, 0), other(&first, 1)]);
    let heard: Vec<(u32, u64)> = left.iter().map(|m| (m.node.0, 1)).collect();
    cluster.pass(2_500, &heard);
    let (happened, after_death) = since(&cluster, begin);
    let new = cluster.config(1, 0).primary_member().unwrap().node;
    assert_eq!(
        words(&happened),
        [
            format!("{} silent", dead.node),
            format!("{new} is primary of db (v1/0), no more {}", dead.node),
            format!("{} lacks its copy of db (v1/0)", dead.node),
        ]
    );
    let events = cluster.model.events(begin);
    assert!(events.iter().all(|e| e.commit == events[0].commit), "one transaction");
    assert!(cluster.now.since(events[0].at) <= 1_000);

    let config = cluster.config(1, 0);
    let config = cluster.grant(&config, MembershipChange::Fill(dead.copy, OpenId(1)));
    cluster.grant(&config, MembershipChange::Add(dead.copy));
    cluster.pass(500, &[(1, 1), (2, 1), (3, 1)]);
    let (happened, _) = since(&cluster, after_death);
    let node = dead.node;
    assert_eq!(
        words(&happened),
        [format!("{node} is filled: db (v1/0)"), format!("{node} in sync: db (v1/0)"), format!("{node} back")]
    );
}

#[test]
fn what_one_transaction_does_to_many_shards_is_one_event() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.create("db", 30 * MIB).unwrap();
    cluster.bear(1);
    cluster.pass(500, &[(1, 1), (2, 1), (3, 1)]);
    let (_, begin) = since(&cluster, 0);
    cluster.pass(2_500, &[(2, 1), (3, 1)]);
    let (happened, _) = since(&cluster, begin);
    let promoted: Vec<u32> = happened
        .iter()
        .filter_map(|h| if let Happened::Promoted { shards, .. } = h { Some(shards.count) } else { None })
        .collect();
    assert_eq!(promoted, [5, 5], "to each of the others");
}

#[test]
fn sealing_is_in_the_log_and_so_is_its_end() {
    let mut cluster = with_volume();
    let config = cluster.config(1, 0);
    let (a, b) = (other(&config, 0).copy, other(&config, 1).copy);
    let (_, begin) = since(&cluster, 0);
    let config = cluster.grant(&config, MembershipChange::Drop(vec![a]));
    let config = cluster.grant(&config, MembershipChange::Drop(vec![b]));
    let config = cluster.grant(&config, MembershipChange::Fill(a, OpenId(1)));
    cluster.grant(&config, MembershipChange::Add(a));
    let (happened, _) = since(&cluster, begin);
    assert!(happened.iter().any(|h| matches!(h, Happened::Sealed { .. })));
    assert!(matches!(happened.last(), Some(Happened::Unsealed { .. })));
}

#[test]
fn what_people_ask_for_is_in_the_log() {
    let mut cluster = Cluster::with_nodes(4);
    let attach = |client: &str, force| Attach {
        client: client.to_owned(),
        read_only: false,
        shared: false,
        force,
        host: String::new(),
        resumes: None,
    };
    cluster.create("db", MIB).unwrap();
    cluster.run(|m, now, _| m.attach(now, "db", &attach("web1", false))).unwrap();
    cluster.run(|m, now, _| m.attach(now, "db", &attach("web2", true))).unwrap();
    let detach = Detach { client: "web2".to_owned(), generation: AttachGeneration(2) };
    cluster.run(|m, _, _| m.detach("db", &detach)).unwrap();
    cluster.run(|m, _, _| m.detach("db", &detach)).unwrap();
    cluster.run(|m, now, _| m.set_duty(now, NodeId(4), Duty::Cordoned, false)).unwrap();
    cluster.delete("db").unwrap();
    let (happened, _) = since(&cluster, 0);
    assert_eq!(
        words(&happened),
        [
            "n1 joined on host1",
            "n2 joined on host2",
            "n3 joined on host3",
            "n4 joined on host4",
            "volume db created, 1 MiB",
            "volume db attached by web1 as g1",
            "volume db attached by web2 as g2, taken from web1",
            "volume db detached by web2",
            "n4 is cordoned",
            "volume db deleted",
        ]
    );
}

#[test]
fn the_log_survives_a_restart_and_its_numbers_go_on() {
    let mut cluster = with_volume();
    let before = cluster.model.events(0);
    cluster.restart();
    assert_eq!(cluster.model.events(0), before);
    cluster.model.announce();
    cluster.tick();
    assert_eq!(cluster.model.events(0), before, "a node may have seen more");
    cluster.pass(2_000, &[(1, 1), (2, 1), (3, 1)]);
    let last = cluster.model.events(0).pop().unwrap();
    assert_eq!((last.what, last.number), (Happened::ConductorStarted, before.last().unwrap().number + 1));
    assert_eq!(last.commit, Commit(cluster.model.commit().0));
    for event in cluster.model.events(0) {
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<conductor_model::events::Event>(&text).unwrap(), event);
    }
}

#[test]
fn the_oldest_events_are_forgotten_and_an_answer_is_bounded() {
    let mut cluster = with_volume();
    let attach = Attach {
        client: "web1".to_owned(),
        read_only: false,
        shared: false,
        force: false,
        host: String::new(),
        resumes: None,
    };
    for _ in 0..MAX_EVENTS {
        let (_, dirty) = cluster.model.attach(cluster.now, "db", &attach).unwrap();
        cluster.persist(dirty);
    }
    let kept = cluster.file.keys().filter(|k| matches!(k, conductor_model::Key::Event(_))).count();
    assert_eq!(kept, MAX_EVENTS);
    let events = cluster.model.events(0);
    assert_eq!(events.len(), MAX_EVENTS_AT_ONCE);
    assert!(events[0].number > 1, "a reader sees that there is a gap");
    cluster.assert_persisted();
}
