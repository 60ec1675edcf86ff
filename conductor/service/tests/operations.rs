//! What is asked of a cluster while it runs, over HTTP: snapshots, nodes and disks, settings; what is told of it, and what it does by itself.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::{Conductor, MIB, Scratch, attach, born, heartbeat, small, three_nodes};
use conductor_client::{Client, Error};
use conductor_model::api::{MembershipChange, MembershipRequest, Order, OrderReport, OrderState, Report};
use conductor_model::events::Happened;
use conductor_model::views::{
    CopyRange, Duty, NewCopies, NewVolume, ResyncChange, ResyncState, ResyncVerb, Scrub, ScrubState, ScrubVerb,
    Settings, SnapshotInfo, SnapshotState,
};
use conductor_model::{Bytes, DiskId, Epoch, NodeId, OrderId};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Three nodes that do what they are told, one heartbeat of each.
fn obey(client: &Client, after: &mut [u64; 4]) -> usize {
    let mut orders = 0;
    for node in 1..=3 {
        let told = client.heartbeat(&heartbeat(node, 1, after[node as usize])).unwrap();
        after[node as usize] = told.version;
        orders += told.orders.len();
        let done = |order: &Order| {
            let epoch = told_epoch(client, order);
            let state = OrderState::Done { damaged: 0, repaired: 0 };
            OrderReport { id: order.id, shard: order.shard, epoch, state }
        };
        let orders = told.orders.iter().map(done).collect();
        client.report(&Report { node: NodeId(node), orders, worked: told.work }).unwrap();
    }
    orders
}

fn told_epoch(client: &Client, order: &Order) -> Epoch {
    let volumes = client.volumes().unwrap();
    let volume = volumes.iter().find(|v| v.id == order.shard.volume).unwrap();
    client.volume(&volume.name).unwrap().shards[order.shard.index.0 as usize].epoch
}

fn bear(client: &Client, volume: &str) {
    let shards = client.volume(volume).unwrap().shards;
    client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
}

fn snapshot(client: &Client, volume: &str, name: &str, after: &mut [u64; 4]) -> Result<SnapshotInfo, Error> {
    let asking = client.clone();
    let (volume, name) = (volume.to_owned(), name.to_owned());
    let asked = std::thread::spawn(move || asking.create_snapshot(&volume, &name));
    while !asked.is_finished() {
        obey(client, after);
    }
    asked.join().unwrap()
}

#[test]
fn a_snapshot_is_answered_when_it_is_complete() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    bear(&client, "db");
    let mut after = [0; 4];
    let info = snapshot(&client, "db", "a", &mut after).unwrap();
    assert_eq!((info.state, info.size), (SnapshotState::Complete, Bytes(3 * MIB)));
    assert_eq!(obey(&client, &mut [0; 4]), 0, "its orders are over");
    assert_eq!(client.create_snapshot("db", "a").unwrap_err().kind(), Some("snapshot-exists"));
    assert_eq!(client.create_snapshot("db", "A").unwrap_err().kind(), Some("invalid"));
    let map = client.snapshot_map("db", "a").unwrap();
    assert_eq!((map.snapshot, map.size), (Some(info.id), Bytes(3 * MIB)));
    conductor.stop();

    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    assert_eq!(client.snapshots("db").unwrap(), [info]);
    let clone = client.create_volume(&NewVolume::clone_of("copy", "db@a")).unwrap();
    assert_eq!((clone.size, clone.parent.as_deref()), (Bytes(3 * MIB), Some("db@a")));
    bear(&client, "copy");
    let refused = client.delete_snapshot("db", "a").unwrap_err();
    assert_eq!((refused.kind(), refused.to_string().contains("copy")), (Some("needed"), true), "{refused}");

    assert_eq!(client.rollback("db", "a").unwrap().rollback.unwrap().progress.of, 3);
    let cancelled = client.cancel_rollback("db", "a").unwrap().cancelled_rollback.unwrap();
    assert_eq!((cancelled.done.len(), cancelled.left.len()), (0, 1));
    assert_eq!(client.cancel_rollback("db", "a").unwrap_err().kind(), Some("no-rollback"));
    assert_eq!(client.rollback("db", "a").unwrap().rollback.unwrap().progress.done, 0);
    assert_eq!(client.attach("db", &attach("web1", false)).unwrap_err().kind(), Some("busy-volume"));
    assert_eq!(client.flatten("copy").unwrap().flatten.unwrap().of, 9);
    let range = CopyRange { source: "db@a".to_owned(), offset: Bytes(0), length: Bytes(2 * MIB) };
    assert_eq!(client.copy_range("copy", &range).unwrap().progress.of, 2 * MIB);
    let scrub = client.change_scrub("db", &Scrub { verb: ScrubVerb::Start, rate: None }).unwrap();
    assert_eq!(scrub.state, ScrubState::Running);
    let mut after = [0; 4];
    let over = || {
        let (db, copy) = (client.volume("db").unwrap().info, client.volume("copy").unwrap().info);
        let idle = client.scrub("db").unwrap().state == ScrubState::Idle;
        db.rollback.is_none()
            && copy.flatten.is_none()
            && client.copy_ranges("copy").unwrap().iter().all(|copy| copy.done)
            && idle
    };
    while !over() {
        obey(&client, &mut after);
    }
    // And that something was cancelled has been heard.
    obey(&client, &mut after);
    client.attach("db", &attach("web1", false)).unwrap();
    client.delete_snapshot("db", "a").unwrap();
    obey(&client, &mut [0; 4]);
    assert!(client.snapshots("db").unwrap().is_empty());
    assert_eq!(client.space().unwrap().disks.len(), 3);
    assert_eq!(client.cancel_copy_range("copy", OrderId(1)).unwrap_err().kind(), Some("no-copy"));
    conductor.stop();
}

#[test]
fn a_snapshot_that_nobody_answers_fails_with_the_reason() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    bear(&client, "db");
    // Attempts are counted by the conductor's own clock: nothing else happens here.
    let refused = client.create_snapshot("db", "a").unwrap_err();
    assert_eq!(refused.kind(), Some("snapshot-failed"), "{refused}");
    assert!(refused.to_string().contains("n1, n2, n3 did not confirm"), "{refused}");
    assert!(client.snapshots("db").unwrap().is_empty());
    conductor.stop();
}

#[test]
fn a_dead_primary_is_replaced_without_anybody_asking() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    // n1 is heard once after this, and never again.
    let start = Instant::now();
    three_nodes(&client);
    client.create_volume(&small("db", 3 * MIB)).unwrap();
    let shards = client.volume("db").unwrap().shards;
    client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        for node in [2, 3] {
            let (client, over) = (client.clone(), &over);
            scope.spawn(move || {
                let mut after = 0;
                while !over.load(Ordering::Relaxed) {
                    // On a busy machine one may come too late; the next one counts.
                    after = client.heartbeat(&heartbeat(node, 1, after)).map_or(after, |told| told.version);
                }
            });
        }
        let on_dead = || client.map("db").unwrap().shards.iter().filter(|s| s.node == NodeId(1)).count();
        while on_dead() > 0 && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (left, took) = (on_dead(), start.elapsed());
        over.store(true, Ordering::Relaxed);
        assert_eq!(left, 0, "after {took:?}");
        took
    });
    println!("replaced after {took:?}");
    assert!(took >= Duration::from_millis(1_900), "it was heard until then");
    let lost = shards.iter().find(|s| s.primary_member().unwrap().node == NodeId(1)).unwrap();
    let now = client.volume("db").unwrap().shards.into_iter().find(|s| s.shard == lost.shard).unwrap();
    assert!(now.epoch > lost.epoch && now.primary != lost.primary, "{now:?}");
    conductor.stop();
}

#[test]
fn events_are_told_in_order_and_waited_for() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    let events = client.events(0, true).unwrap();
    assert!(events.iter().any(|e| e.what == Happened::NodeJoined { node: NodeId(1), host: "host1".to_owned() }));
    assert!(events.iter().zip(1..).all(|(event, number)| event.number == number), "{events:?}");
    let seen = events.last().unwrap().number;
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || client.events(seen, true).unwrap()
    });
    // It may not be asking yet: then it is told all the same.
    std::thread::sleep(Duration::from_millis(100));
    client.create_volume(&small("db", MIB)).unwrap();
    let told = waiting.join().unwrap();
    let created = |e: &Happened| matches!(e, Happened::VolumeCreated { volume, .. } if volume == "db");
    assert!(
        told.iter().any(|e| created(&e.what)) || client.events(seen, false).unwrap().iter().any(|e| created(&e.what))
    );
    conductor.stop();
    let mut conductor = Conductor::start(&scratch.store());
    // Said after it has listened to the nodes for a while.
    let (start, mut after) = (Instant::now(), told[0].number);
    loop {
        let events = conductor.client.events(after, true).unwrap();
        after = events.last().map_or(after, |last| last.number);
        if events.iter().any(|e| e.what == Happened::ConductorStarted) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no word of the start after {after}");
    }
    conductor.stop();
}

#[test]
fn what_is_wanted_of_nodes_disks_and_copies_is_said_over_http() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    assert_eq!(client.set_duty(NodeId(2), Duty::Cordoned, false).unwrap().duty, Duty::Cordoned);
    assert_eq!(client.create_volume(&small("db", MIB)).unwrap_err().kind(), Some("too-few-nodes"));
    client.set_duty(NodeId(2), Duty::Serving, false).unwrap();
    // On a slow disk they may be late by now.
    three_nodes(&client);
    client.create_volume(&small("db", MIB)).unwrap();
    let shards = client.volume("db").unwrap().shards;
    client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
    assert_eq!(client.set_duty(NodeId(2), Duty::Draining, false).unwrap_err().kind(), Some("in-use"));
    assert_eq!(client.set_duty(NodeId(9), Duty::Draining, false).unwrap_err().kind(), Some("no-node"));
    let disk = client.node(NodeId(2)).unwrap().disks[0].disk;
    assert_eq!(client.remove_disk(disk, false).unwrap_err().kind(), Some("in-use"));
    assert_eq!(client.remove_disk(DiskId(5), false).unwrap_err().kind(), Some("no-disk"));
    let new = NewCopies { copies: None, min_copies: Some(1) };
    assert_eq!(client.set_copies("db", &new).unwrap().min_copies, 1);
    let (status, body) = conductor.http("POST", "/v1/nodes/2/duty", "{\"duty\":\"asleep\"}");
    assert_eq!(status, 400, "{body}");
    conductor.stop();
}

#[test]
fn copies_behind_are_listed_and_their_filling_aborted_over_http() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    let client = conductor.client.clone();
    three_nodes(&client);
    client.create_volume(&small("db", MIB)).unwrap();
    let shards = client.volume("db").unwrap().shards;
    client.membership(&shards.iter().map(born).collect::<Vec<_>>()).unwrap();
    let config = client.volume("db").unwrap().shards.remove(0);
    let copy = config.members.iter().find(|m| m.copy != config.primary).unwrap().copy;
    let drop = MembershipChange::Drop(vec![copy]);
    client.membership(&[MembershipRequest { change: drop, ..born(&config) }]).unwrap();
    assert_eq!(client.resyncs().unwrap()[0].state, ResyncState::Waiting);
    let abort = ResyncChange { verb: ResyncVerb::Abort, copies: vec![copy] };
    assert_eq!(client.change_resync("db", &abort).unwrap()[0].state, ResyncState::Aborted);
    assert_eq!(client.change_resync("no", &abort).unwrap_err().kind(), Some("no-volume"));
    let (status, body) = conductor.http("POST", "/v1/volumes/db/resync", "{\"verb\":\"resume\"}");
    assert_eq!(status, 200, "{body}");
    assert_eq!(client.resyncs().unwrap()[0].state, ResyncState::Waiting);
    conductor.stop();
}

/// The limit of fillings is told to every node, kept over a restart, and an event.
#[test]
fn what_is_set_for_the_whole_cluster_is_told_and_kept() {
    let scratch = Scratch::new();
    let mut conductor = Conductor::start(&scratch.store());
    three_nodes(&conductor.client);
    let told = |conductor: &Conductor| conductor.client.heartbeat(&heartbeat(1, 1, 0)).unwrap().fill_rate;
    assert_eq!((conductor.client.settings().unwrap(), told(&conductor)), (Settings::default(), None));
    let slow = Settings { fill_rate: Some(Bytes(8 * MIB)) };
    assert_eq!(conductor.client.change_settings(&slow).unwrap(), slow);
    assert_eq!(told(&conductor), slow.fill_rate);
    let few = Settings { fill_rate: Some(Bytes(5)) };
    assert_eq!(conductor.client.change_settings(&few).unwrap_err().kind(), Some("invalid"));
    conductor.stop();
    let mut conductor = Conductor::start(&scratch.store());
    assert_eq!((conductor.client.status().unwrap().settings, told(&conductor)), (slow, slow.fill_rate));
    let events = conductor.client.events(0, false).unwrap();
    assert_eq!(events.iter().filter(|e| e.what == Happened::FillRateChanged { rate: slow.fill_rate }).count(), 1);
    conductor.stop();
}
