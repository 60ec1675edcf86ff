//! Who uses volumes: alone, or with others that only read; and how that is ended.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Cluster, MIB, registration, with_volume};
use conductor_model::api::{
    MembershipAnswer, MembershipChange, NodeSession, NodeSessions, ReaderList, Register, VolumeMap,
};
use conductor_model::limits::{
    MAX_CLIENT_KEYS, MAX_CLIENT_NAME, MAX_KEY_GRACE_MS, MAX_READERS_PER_KEY, MAX_READERS_PER_VOLUME,
    MAX_SESSIONS_PER_NODE,
};
use conductor_model::views::{
    Attach, ClientInfo, ClientSession, CopyRange, Detach, FormerKey, KeyInfo, NewKey, RotateKey,
};
use conductor_model::{AttachGeneration, Bytes, Error, Millis, NodeId, SnapshotId, VolumeId};

fn attach(cluster: &mut Cluster, client: &str, read_only: bool, force: bool) -> Result<VolumeMap, Error> {
    let attach =
        Attach { client: client.to_owned(), read_only, shared: false, force, host: "h1".to_owned(), resumes: None };
    cluster.run(|m, now, _| m.attach(now, "db", &attach))
}

fn write(cluster: &mut Cluster, client: &str) -> Result<AttachGeneration, Error> {
    attach(cluster, client, false, false).map(|map| map.attach)
}

fn read(cluster: &mut Cluster, client: &str) -> Result<AttachGeneration, Error> {
    attach(cluster, client, true, false).map(|map| map.attach)
}

fn share(cluster: &mut Cluster, client: &str, force: bool) -> Result<AttachGeneration, Error> {
    let attach = Attach {
        client: client.to_owned(),
        read_only: false,
        shared: true,
        force,
        host: "h1".to_owned(),
        resumes: None,
    };
    cluster.run(|m, now, _| m.attach(now, "db", &attach)).map(|map| map.attach)
}

fn detach(cluster: &mut Cluster, client: &str, generation: u64) -> Result<(), Error> {
    let detach = Detach { client: client.to_owned(), generation: AttachGeneration(generation) };
    cluster.run(|m, _, _| m.detach("db", &detach))
}

fn evict(cluster: &mut Cluster, client: &str) -> Result<Vec<String>, Error> {
    cluster.run(|m, _, _| m.evict(client))
}

/// The floor and the readers that a node is told of.
fn told(cluster: &mut Cluster) -> (u64, Option<(u64, Vec<u64>)>) {
    let answer = cluster.told(1);
    assert_eq!(answer.generations.len(), 1);
    let readers = answer.readers.first().map(|list| {
        let ReaderList { volume, upto, readers } = list;
        assert_eq!(*volume, VolumeId(1));
        (upto.0, readers.iter().map(|generation| generation.0).collect())
    });
    (answer.generations[0].1.0, readers)
}

fn readers(cluster: &Cluster) -> Vec<(String, u64)> {
    let info = cluster.model.show(cluster.now, "db").unwrap().info;
    info.readers.into_iter().map(|reader| (reader.client, reader.generation.0)).collect()
}

#[test]
fn many_read_a_volume_at_once_and_a_writer_waits_for_all_of_them_unless_forced() {
    let mut cluster = with_volume();
    assert_eq!(read(&mut cluster, "a"), Ok(AttachGeneration(1)));
    assert_eq!(read(&mut cluster, "b"), Ok(AttachGeneration(2)));
    assert_eq!(readers(&cluster), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(told(&mut cluster), (1, Some((2, vec![1, 2]))), "the first is not ended by the second");
    let refused = write(&mut cluster, "w").unwrap_err();
    assert_eq!(refused.to_string(), "volume db is attached by a, b (read-only); --force takes it away");
    assert_eq!(write(&mut cluster, "a").unwrap_err().kind(), "attached", "b is in its way");

    // What the nodes are to have heard of, and what they then refuse.
    let forced = attach(&mut cluster, "w", false, true).unwrap();
    assert_eq!((forced.attach, readers(&cluster).len()), (AttachGeneration(3), 0));
    assert_eq!(cluster.model.unconfirmed(cluster.now, "db").unwrap().len(), 3);
    assert_eq!(told(&mut cluster), (3, None));
    assert_eq!(detach(&mut cluster, "b", 2).unwrap_err().kind(), "not-attached");

    let refused = read(&mut cluster, "a").unwrap_err();
    assert_eq!(refused.to_string(), "volume db is attached by w; --force takes it away");
    let forced = attach(&mut cluster, "a", true, true).unwrap();
    assert_eq!((forced.attach, told(&mut cluster)), (AttachGeneration(4), (4, Some((4, vec![4])))));
    cluster.assert_persisted();
}

#[test]
fn readers_come_and_go_and_a_new_epoch_ends_none_of_them() {
    let mut cluster = with_volume();
    for (client, generation) in [("a", 1), ("b", 2), ("a", 3)] {
        assert_eq!(read(&mut cluster, client), Ok(AttachGeneration(generation)));
    }
    assert_eq!(readers(&cluster), [("b".to_owned(), 2), ("a".to_owned(), 3)], "the same client is there once");
    assert_eq!(told(&mut cluster), (2, Some((3, vec![2, 3]))), "its former life is over");
    let MembershipAnswer::Granted(next) = cluster.ask(&cluster.config(1, 0), MembershipChange::StepDown) else {
        panic!("granted");
    };
    assert_eq!(next.attach, AttachGeneration(2), "a configuration carries what is over, not what is newest");
    assert_eq!(detach(&mut cluster, "a", 1).unwrap_err().kind(), "not-attached");
    detach(&mut cluster, "b", 2).unwrap();
    detach(&mut cluster, "a", 3).unwrap();
    detach(&mut cluster, "a", 3).unwrap();
    assert_eq!(write(&mut cluster, "w"), Ok(AttachGeneration(4)));
}

#[test]
fn readers_are_limited_and_hold_off_what_changes_the_volume() {
    let mut cluster = with_volume();
    for n in 0..MAX_READERS_PER_VOLUME {
        read(&mut cluster, &format!("r{n}")).unwrap();
    }
    assert_eq!(read(&mut cluster, "more").unwrap_err().kind(), "limit");
    read(&mut cluster, "r3").unwrap();
    let refused = write(&mut cluster, "w").unwrap_err();
    assert!(refused.to_string().contains("r0, r1, r2 and 61 more (read-only)"), "{refused}");
    assert_eq!(cluster.delete("db").unwrap_err().kind(), "attached");
    cluster.snapshot("db", "s");
    assert_eq!(cluster.run(|m, now, _| m.rollback(now, "db", "s")).unwrap_err().kind(), "attached");
    cluster.create("from", MIB).unwrap();
    cluster.bear(2);
    cluster.snapshot("from", "s");
    let range = CopyRange { source: "from@s".to_owned(), offset: Bytes(0), length: Bytes(4096) };
    assert_eq!(cluster.run(|m, now, _| m.copy_range(now, "db", &range)).unwrap_err().kind(), "attached");
    cluster.run(|m, _, _| m.delete("db", true)).unwrap();
    assert_eq!(cluster.model.clients(cluster.now), []);
}

fn resume(cluster: &mut Cluster, client: &str, read_only: bool, last: u64) -> Result<u64, &'static str> {
    let attach = Attach {
        client: client.to_owned(),
        read_only,
        shared: false,
        // Whatever force is for, it is not for writing old data over new.
        force: true,
        host: String::new(),
        resumes: Some(AttachGeneration(last)),
    };
    let resumed = cluster.run(|m, now, _| m.attach(now, "db", &attach));
    resumed.map(|map| map.attach.0).map_err(|error| error.kind())
}

#[test]
fn what_a_dead_target_has_left_is_resumed_only_if_nobody_else_had_the_volume_since() {
    const REFUSED: Result<u64, &str> = Err("not-unbroken");
    let mut cluster = with_volume();
    assert_eq!(resume(&mut cluster, "a", false, 0), REFUSED, "it never had it");
    write(&mut cluster, "a").unwrap();
    assert_eq!(resume(&mut cluster, "a", false, 1), Ok(2));
    // Killed before it knew of the 2.
    assert_eq!(resume(&mut cluster, "a", false, 1), Ok(3));

    attach(&mut cluster, "b", false, true).unwrap();
    assert_eq!(resume(&mut cluster, "a", false, 3), REFUSED, "another one has it");
    detach(&mut cluster, "b", 4).unwrap();
    assert_eq!(resume(&mut cluster, "a", false, 3), REFUSED, "another one had it");
    assert_eq!(cluster.model.clients(cluster.now), [], "nobody has it by being refused");
    // It begins anew, without what was left; what was left before that stays useless.
    assert_eq!(write(&mut cluster, "a"), Ok(AttachGeneration(5)));
    assert_eq!(resume(&mut cluster, "a", false, 3), REFUSED);
    assert_eq!(resume(&mut cluster, "a", false, 5), Ok(6));

    evict(&mut cluster, "a").unwrap();
    assert_eq!(resume(&mut cluster, "a", false, 6), REFUSED, "it may have been rolled back meanwhile");
}

#[test]
fn a_reader_resumes_beside_other_readers_but_not_behind_a_writer() {
    let mut cluster = with_volume();
    read(&mut cluster, "a").unwrap();
    read(&mut cluster, "b").unwrap();
    assert_eq!(resume(&mut cluster, "a", true, 1), Ok(3));
    assert_eq!(resume(&mut cluster, "b", true, 2), Ok(4));
    attach(&mut cluster, "w", false, true).unwrap();
    detach(&mut cluster, "w", 5).unwrap();
    read(&mut cluster, "b").unwrap();
    assert_eq!(resume(&mut cluster, "a", true, 3), Err("not-unbroken"));
    assert_eq!(resume(&mut cluster, "b", true, 4), Err("not-unbroken"), "its device is of before that");
}

#[test]
fn a_node_that_begins_to_serve_a_volume_is_told_who_is_over() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.create("db", MIB).unwrap();
    cluster.bear(1);
    for client in ["a", "b", "c"] {
        read(&mut cluster, client).unwrap();
    }
    evict(&mut cluster, "b").unwrap();
    let config = cluster.config(1, 0);
    let fourth = (1..=4).find(|node| config.members.iter().all(|m| m.node.0 != *node)).unwrap();
    let version = cluster.told(fourth).version;
    // Its node has acted upon all that was, before it gets a copy, and serves.
    cluster.model.set_replace_after(0);
    let gone = config.members.iter().find(|m| m.copy != config.primary).unwrap().node.0;
    let heard: Vec<(u32, u64)> = (1..=4).filter(|node| *node != gone).map(|node| (node, 1)).collect();
    cluster.pass(3_000, &heard);
    cluster.leave_behind(gone);
    cluster.heal(6, &heard);
    let config = cluster.config(1, 0);
    assert!(config.members.iter().any(|m| m.node.0 == fourth), "{config:?}");
    let heard: Vec<(u32, u64)> = heard.into_iter().filter(|(node, _)| *node == fourth).collect();
    cluster.pass(6_000, &heard);
    if cluster.config(1, 0).primary_member().unwrap().node.0 != fourth {
        cluster.pass(6_000, &heard);
    }
    assert_eq!(cluster.config(1, 0).primary_member().unwrap().node.0, fourth);
    let answer = cluster.beat(fourth, 1, version).unwrap();
    let list =
        ReaderList { volume: VolumeId(1), upto: AttachGeneration(3), readers: [1, 3].map(AttachGeneration).into() };
    assert_eq!((answer.assignments.len(), answer.readers), (1, vec![list]));
}

#[test]
fn an_evicted_client_has_nothing_any_more_and_the_others_keep_what_they_have() {
    let mut cluster = with_volume();
    cluster.create("other", MIB).unwrap();
    let other = Attach {
        client: "a".to_owned(),
        read_only: false,
        shared: false,
        force: false,
        host: "h1".to_owned(),
        resumes: None,
    };
    cluster.run(|m, now, _| m.attach(now, "other", &other)).unwrap();
    for client in ["a", "b", "c"] {
        read(&mut cluster, client).unwrap();
    }
    let names: Vec<_> =
        cluster.model.clients(cluster.now).into_iter().map(|c| (c.name, c.host, c.volumes.len())).collect();
    let h1 = || "h1".to_owned();
    assert_eq!(names, [("a".to_owned(), h1(), 2), ("b".to_owned(), h1(), 1), ("c".to_owned(), h1(), 1)]);

    assert_eq!(evict(&mut cluster, "b").unwrap(), ["db"]);
    let version = cluster.told(1).version;
    let answer = cluster.beat(1, 1, version).unwrap();
    assert!(answer.readers.is_empty() && answer.generations.is_empty(), "said once");
    let answer = cluster.told(1);
    let list =
        ReaderList { volume: VolumeId(1), upto: AttachGeneration(3), readers: [1, 3].map(AttachGeneration).into() };
    assert_eq!((answer.readers, answer.generations[0].1), (vec![list], AttachGeneration(1)));
    assert!(!cluster.model.unconfirmed(cluster.now, "db").unwrap().is_empty());

    assert_eq!(evict(&mut cluster, "a").unwrap(), ["db", "other"]);
    assert_eq!(evict(&mut cluster, "d").unwrap_err(), Error::NoClient("d".to_owned()));
    assert_eq!(cluster.told(1).generations, [(VolumeId(1), AttachGeneration(3)), (VolumeId(2), AttachGeneration(2))]);
    assert_eq!(evict(&mut cluster, "c").unwrap(), ["db"]);
    let answer = cluster.told(1);
    assert_eq!((answer.generations[0].1, answer.readers), (AttachGeneration(4), vec![]), "nobody's generation");
    let events: Vec<String> = cluster.model.events(0).iter().map(|event| event.what.to_string()).collect();
    assert!(events.contains(&"client a evicted from volume other, which it had as g1".to_owned()), "{events:?}");

    // A new attachment is another one.
    assert_eq!(write(&mut cluster, "a"), Ok(AttachGeneration(5)));
    cluster.assert_persisted();
}

#[test]
fn an_eviction_is_asked_for_again_until_all_have_heard_of_it_and_others_have_the_volume() {
    let mut cluster = with_volume();
    let is_certain = |cluster: &Cluster| cluster.model.may_serve_others(cluster.now, "db").unwrap().is_empty();
    let first = write(&mut cluster, "a").unwrap();
    assert_eq!(evict(&mut cluster, "a").unwrap(), ["db"]);
    cluster.restart();
    let commit = cluster.model.commit();
    assert_eq!(evict(&mut cluster, "a").unwrap(), ["db"], "nobody has confirmed it yet");
    assert_eq!(cluster.model.commit(), commit, "which changes nothing");
    let second = write(&mut cluster, "b").unwrap();
    assert!(second > first && !is_certain(&cluster));
    assert_eq!(evict(&mut cluster, "a").unwrap(), ["db"]);
    assert_eq!(cluster.model.show(cluster.now, "db").unwrap().info.attachment.unwrap().client, "b", "who stays");
    for node in 1..=3 {
        let version = cluster.told(node).version;
        cluster.beat(node, 1, version).unwrap();
    }
    cluster.tick();
    assert!(is_certain(&cluster));
    assert_eq!(evict(&mut cluster, "a").unwrap(), ["db"], "whoever was told to ask again hears that it is done");
    detach(&mut cluster, "b", second.0).unwrap();
    read(&mut cluster, "c").unwrap();
    assert_eq!(evict(&mut cluster, "a").unwrap_err(), Error::NoClient("a".to_owned()));
}

#[test]
fn a_volume_whose_snapshot_is_read_is_renamed_only_by_force() {
    let mut cluster = with_volume();
    let snapshot = cluster.snapshot("db", "monday").id;
    let heard = [(1, 1), (2, 1), (3, 1)];
    let reads = |volume: u32, snapshot: Option<SnapshotId>| NodeSession {
        client: "backup".to_owned(),
        volume: VolumeId(volume),
        snapshot,
        generation: AttachGeneration(0),
        read_only: true,
        key: None,
        ranges: Vec::new(),
        connections: 1,
        requests: 0,
    };
    let rename = |c: &mut Cluster, from: &str, to: &str, force| c.run(|m, now, _| m.rename(now, from, to, force));
    let say = |c: &mut Cluster, sessions: Vec<NodeSession>| {
        let said = NodeSessions { node: NodeId(2), sessions };
        c.model.hear_sessions(c.now, &said).unwrap();
    };
    // Of another volume, of an attachment that is over, and of a snapshot that is not there any more.
    say(&mut cluster, vec![reads(2, Some(snapshot)), reads(1, None), reads(1, Some(SnapshotId(99)))]);
    rename(&mut cluster, "db", "db2", false).unwrap();
    say(&mut cluster, vec![reads(1, Some(snapshot))]);
    let refused = rename(&mut cluster, "db2", "db3", false).unwrap_err();
    assert!(refused.kind() == "in-use" && refused.to_string().contains("backup reads db2@monday"), "{refused}");
    rename(&mut cluster, "db2", "db3", true).unwrap();
    // Who has it attached is not passed over by any force.
    let attach = Attach {
        client: "web1".to_owned(),
        read_only: false,
        shared: false,
        force: false,
        host: String::new(),
        resumes: None,
    };
    let map = cluster.run(|m, now, _| m.attach(now, "db3", &attach)).unwrap();
    let refused = rename(&mut cluster, "db3", "db4", true).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "volume db3 is attached by web1; detach it first, or take it from who has it with `trine client evict`"
    );
    let detach = Detach { client: "web1".to_owned(), generation: map.attach };
    cluster.run(|m, _, _| m.detach("db3", &detach)).unwrap();
    // It ended, or nobody knows.
    assert!(rename(&mut cluster, "db3", "db4", false).is_err());
    say(&mut cluster, Vec::new());
    rename(&mut cluster, "db3", "db4", false).unwrap();
    say(&mut cluster, vec![reads(1, Some(snapshot))]);
    cluster.pass(21_000, &heard[..1]);
    rename(&mut cluster, "db4", "db5", false).unwrap();
}

#[test]
fn sessions_are_shown_of_what_is_attached_now_and_of_snapshots() {
    let mut cluster = with_volume();
    let snapshot = cluster.snapshot("db", "s").id;
    write(&mut cluster, "old").unwrap();
    attach(&mut cluster, "new", false, true).unwrap();
    let session = |client: &str, generation, snapshot: Option<SnapshotId>, requests| NodeSession {
        client: client.to_owned(),
        volume: VolumeId(1),
        snapshot,
        generation: AttachGeneration(generation),
        read_only: snapshot.is_some(),
        key: None,
        ranges: Vec::new(),
        connections: 2,
        requests,
    };
    // A node that has not heard of the new one yet, and another one that has.
    let said = [
        (1, vec![session("old", 1, None, 5), session("reader", 0, Some(snapshot), 0)]),
        (2, vec![session("new", 2, None, 7)]),
    ];
    for (node, sessions) in said {
        let said = NodeSessions { node: NodeId(node), sessions };
        cluster.model.hear_sessions(cluster.now, &said).unwrap();
    }
    let sessions = |c: &ClientInfo| c.sessions.iter().map(|s| (s.of.clone(), s.node.0, s.requests)).collect::<Vec<_>>();
    let all: Vec<_> =
        cluster.model.clients(cluster.now).iter().map(|c| (c.name.clone(), c.volumes.len(), sessions(c))).collect();
    let new = ("new".to_owned(), 1, vec![("db".to_owned(), 2, 7)]);
    let reader = ("reader".to_owned(), 0, vec![("db@s".to_owned(), 1, 0)]);
    assert_eq!(all, [new, reader]);
    assert_eq!(evict(&mut cluster, "reader").unwrap_err().kind(), "no-client");

    // A node that is alive may take its time to tell anew; of one that is silent nothing is known.
    cluster.pass(15_000, &[(1, 1), (2, 1), (3, 1)]);
    cluster.pass(15_000, &[(1, 1), (3, 1)]);
    let shown: Vec<_> =
        cluster.model.clients(cluster.now).iter().map(|c| (c.name.clone(), sessions(c).len())).collect();
    assert_eq!(shown, [("new".to_owned(), 1), ("reader".to_owned(), 1)]);
    cluster.pass(5000, &[(1, 1), (3, 1)]);
    let shown: Vec<_> =
        cluster.model.clients(cluster.now).iter().map(|c| (c.name.clone(), sessions(c).len())).collect();
    assert_eq!(shown, [("new".to_owned(), 0), ("reader".to_owned(), 1)]);

    // Each word replaces the one before, and only so much is remembered.
    let name = |n: usize| if n == 0 { "x".repeat(MAX_CLIENT_NAME + 1) } else { format!("r{n}") };
    let many = (0..MAX_SESSIONS_PER_NODE + 10).map(|n| session(&name(n), 0, Some(snapshot), 0)).collect();
    for (sessions, clients) in [(many, 1 + MAX_SESSIONS_PER_NODE), (Vec::new(), 1)] {
        cluster.model.hear_sessions(cluster.now, &NodeSessions { node: NodeId(1), sessions }).unwrap();
        assert_eq!(cluster.model.clients(cluster.now).len(), clients);
    }
    let stranger = NodeSessions { node: NodeId(9), sessions: Vec::new() };
    assert_eq!(cluster.model.hear_sessions(cluster.now, &stranger), Err(Error::UnknownNode(NodeId(9))));
}

#[test]
fn a_volume_is_shared_by_those_who_say_so_and_by_nobody_else() {
    let mut cluster = with_volume();
    for (client, generation) in [("a", 1), ("b", 2), ("a", 3)] {
        assert_eq!(share(&mut cluster, client, false), Ok(AttachGeneration(generation)));
    }
    assert_eq!(told(&mut cluster), (2, Some((3, vec![2, 3]))), "one is not ended by the other");
    for refused in [write(&mut cluster, "w"), read(&mut cluster, "r")] {
        let why = refused.unwrap_err().to_string();
        assert_eq!(why, "volume db is attached by b, a (shared); --force takes it away");
    }
    let held = |cluster: &Cluster| -> Vec<_> {
        let clients = cluster.model.clients(cluster.now);
        clients.iter().map(|c| (c.name.clone(), c.volumes[0].read_only, c.volumes[0].shared)).collect()
    };
    assert_eq!(held(&cluster), [("a".to_owned(), false, true), ("b".to_owned(), false, true)]);
    evict(&mut cluster, "b").unwrap();
    assert_eq!(told(&mut cluster), (3, Some((3, vec![3]))));

    // From one way to another by force alone, but for who has it by himself.
    attach(&mut cluster, "r", true, true).unwrap();
    assert_eq!(held(&cluster), [("r".to_owned(), true, false)]);
    assert!(share(&mut cluster, "a", false).unwrap_err().to_string().contains("attached by r (read-only)"));
    assert_eq!(share(&mut cluster, "r", false), Ok(AttachGeneration(5)), "it has it by itself");
    assert_eq!(write(&mut cluster, "r"), Ok(AttachGeneration(6)));
    assert!(share(&mut cluster, "a", false).unwrap_err().to_string().contains("attached by r;"));
    assert_eq!(share(&mut cluster, "a", true), Ok(AttachGeneration(7)));
    assert_eq!(told(&mut cluster), (7, Some((7, vec![7]))));
    let both = Attach {
        client: "a".to_owned(),
        read_only: true,
        shared: true,
        force: false,
        host: String::new(),
        resumes: None,
    };
    assert_eq!(cluster.run(|m, now, _| m.attach(now, "db", &both)).unwrap_err().kind(), "invalid");
}

#[test]
fn as_many_share_a_volume_as_could_read_it() {
    let mut cluster = with_volume();
    for client in 0..MAX_READERS_PER_VOLUME {
        share(&mut cluster, &format!("c{client}"), false).unwrap();
    }
    assert_eq!(share(&mut cluster, "more", false).unwrap_err().kind(), "limit");
    share(&mut cluster, "c0", false).unwrap();
}

#[test]
fn a_key_for_reading_alone_ends_no_writer_and_no_key_has_all_of_the_readers_places() {
    let mut cluster = with_volume();
    for (name, read_only) in [("rd", true), ("rw", false)] {
        let new = NewKey { name: name.to_owned(), volumes: vec!["db".to_owned()], read_only };
        cluster.run(|m, now, _| m.add_key(now, &new)).unwrap();
    }
    let may = |cluster: &Cluster, (name, serial): (&str, u64), host: &str, force| {
        let client = format!("{name}@{host}");
        let attach = Attach { client, read_only: true, shared: false, force, host: String::new(), resumes: None };
        cluster.model.permit_attach(name, serial, "db", &attach)
    };
    let (reads, writes) = (("rd", 1), ("rw", 2));
    assert_eq!(may(&cluster, reads, "h", true), Ok(()), "nobody has it");
    for shared in [false, true] {
        if shared { share(&mut cluster, "w", true) } else { write(&mut cluster, "w") }.unwrap();
        for force in [false, true] {
            let refused = may(&cluster, reads, "h", force).unwrap_err();
            assert_eq!(refused.kind(), "forbidden");
            let said = refused.to_string();
            assert!(
                said.contains("attached by w") && said.contains("the key rd, which is for reading alone"),
                "{said}"
            );
        }
        assert_eq!(may(&cluster, writes, "h", true), Ok(()), "which takes it with a write, too");
    }
    evict(&mut cluster, "w").unwrap();
    assert_eq!(may(&cluster, reads, "h", false), Ok(()));

    for host in 0..MAX_READERS_PER_KEY {
        assert_eq!(may(&cluster, reads, &format!("h{host}"), false), Ok(()));
        read(&mut cluster, &format!("rd@h{host}")).unwrap();
    }
    assert_eq!(may(&cluster, reads, "more", true).unwrap_err().kind(), "limit");
    assert_eq!(may(&cluster, reads, "h3", false), Ok(()), "it has it already");
    assert_eq!(may(&cluster, writes, "more", false), Ok(()));
    let takes = |client: &str, read_only| Attach {
        client: client.to_owned(),
        read_only,
        shared: false,
        force: true,
        host: String::new(),
        resumes: None,
    };
    for host in 0..MAX_READERS_PER_KEY {
        read(&mut cluster, &format!("rw@h{host}")).unwrap();
    }
    assert_eq!(cluster.model.permit_attach("rw", 2, "db", &takes("rw@w", true)).unwrap_err().kind(), "limit");
    assert_eq!(cluster.model.permit_attach("rw", 2, "db", &takes("rw@w", false)), Ok(()), "who writes ends them all");
    let known =
        |cluster: &Cluster, id| cluster.model.permit_known("rd", 1, "db", Some(id)).map_err(|error| error.kind());
    let id = cluster.model.map("db").unwrap().volume;
    assert_eq!(known(&cluster, id), Ok(()));
    cluster.run(|m, _, _| m.delete("db", true)).unwrap();
    assert_eq!(known(&cluster, id), Err("no-volume"), "that its own is gone is no secret");
    assert_eq!(known(&cluster, VolumeId(id.0 + 1)), Err("forbidden"), "what others there are is one");
    assert_eq!(cluster.model.permit("rd", 1, "db").unwrap_err().kind(), "forbidden");
    assert_eq!(may(&cluster, ("rd", 2), "h", false).unwrap_err().kind(), "key-removed", "that is another key's number");
}

#[test]
fn a_conductor_in_doubt_does_not_say_that_a_key_was_removed() {
    let mut cluster = with_volume();
    let before = cluster.file.clone();
    let new = NewKey { name: "rd".to_owned(), volumes: vec!["db".to_owned()], read_only: true };
    cluster.run(|m, now, _| m.add_key(now, &new)).unwrap();
    assert_eq!(cluster.model.permit("rd", 1, "db"), Ok(()));
    // Its state is lost, and an older one takes its place.
    let seen = cluster.model.commit();
    cluster.file = before;
    cluster.restart();
    let known = |cluster: &Cluster| cluster.model.permit("rd", 1, "db").map_err(|error| error.kind());
    assert_eq!(known(&cluster), Err("forbidden"), "one that was never given out was not removed");
    let register = Register { seen, ..registration(1, 1) };
    cluster.run(|m, now, _| m.register(now, &register)).unwrap();
    assert!(cluster.model.doubted().is_some());
    assert_eq!(known(&cluster), Err("in-doubt"));
}

fn rotate(cluster: &mut Cluster, grace_ms: u64) -> Result<KeyInfo, Error> {
    let rotate = RotateKey { name: "web1".to_owned(), grace_ms };
    cluster.run(|m, now, _| m.rotate_key(now, &rotate).map(|(rotated, dirty)| (rotated.key, dirty)))
}

/// The serials that a node is told of, and which of them the conductor itself takes.
fn valid(cluster: &mut Cluster) -> Vec<u64> {
    let keys = cluster.told(1).keys.unwrap();
    let all = 1..=keys.upto;
    let taken: Vec<u64> = all.filter(|serial| cluster.model.permit("web1", *serial, "db").is_ok()).collect();
    assert_eq!(keys.valid, taken.iter().copied().collect());
    taken
}

fn former(cluster: &Cluster) -> Vec<u64> {
    let clients = cluster.model.clients(cluster.now);
    let keys: Vec<&KeyInfo> = clients.iter().filter_map(|client| client.key.as_ref()).collect();
    assert_eq!(keys.len(), 1, "one line for all of them");
    keys[0].former.iter().map(|FormerKey { serial, .. }| *serial).collect()
}

#[test]
fn who_still_uses_a_former_key_is_shown_as_nodes_tell_of_sessions() {
    let mut cluster = with_volume();
    let new = NewKey { name: "web1".to_owned(), volumes: vec!["db".to_owned()], read_only: false };
    cluster.run(|m, now, _| m.add_key(now, &new)).unwrap();
    for client in ["web1@a/db", "web1@b/db"] {
        share(&mut cluster, client, false).unwrap();
    }
    // Both have the first key, and one of them connections to two nodes.
    let tell = |cluster: &mut Cluster, node, sessions: &[(&str, u64, u64)]| {
        let session = |&(client, generation, key): &(&str, u64, u64)| NodeSession {
            client: client.to_owned(),
            volume: VolumeId(1),
            snapshot: None,
            generation: AttachGeneration(generation),
            read_only: false,
            key: Some(key),
            ranges: Vec::new(),
            connections: 1,
            requests: 0,
        };
        let said = NodeSessions { node: NodeId(node), sessions: sessions.iter().map(session).collect() };
        cluster.model.hear_sessions(cluster.now, &said).unwrap();
    };
    tell(&mut cluster, 1, &[("web1@a/db", 1, 1), ("web1@b/db", 2, 1)]);
    tell(&mut cluster, 2, &[("web1@a/db", 1, 1)]);
    let seen = |cluster: &Cluster| {
        let clients = cluster.model.clients(cluster.now);
        let former = clients.iter().filter_map(|c| c.key.as_ref()).flat_map(|key| key.former.clone());
        let of = |s: &ClientSession| (s.key, s.former_until);
        let sessions = clients.iter().map(|c| c.sessions.iter().map(of).collect::<Vec<_>>()).filter(|s| !s.is_empty());
        let used = |former: FormerKey| (former.serial, former.used_by.into_iter().collect::<Vec<_>>());
        (former.map(used).collect::<Vec<_>>(), sessions.collect::<Vec<_>>())
    };
    let current = (Some(1), None);
    assert_eq!(seen(&cluster), (vec![], vec![vec![current; 2], vec![current]]), "there is no former one");
    let until = Some(Millis(cluster.now.0 + 60_000));
    rotate(&mut cluster, 60_000).unwrap();
    let used = |by: &[&str]| vec![(1, by.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())];
    let former = (Some(1), until);
    assert_eq!(seen(&cluster), (used(&["web1@a/db", "web1@b/db"]), vec![vec![former; 2], vec![former]]));

    // One comes with the new key; the other does not.
    share(&mut cluster, "web1@a/db", false).unwrap();
    tell(&mut cluster, 1, &[("web1@a/db", 3, 2), ("web1@b/db", 2, 1)]);
    assert_eq!(
        seen(&cluster),
        (used(&["web1@b/db"]), vec![vec![(Some(2), None)], vec![former]]),
        "what n2 told of is over"
    );
    tell(&mut cluster, 1, &[("web1@a/db", 3, 2)]);
    assert_eq!(seen(&cluster), (used(&[]), vec![vec![(Some(2), None)]]));
}

#[test]
fn a_key_that_is_renewed_holds_for_its_time_and_the_new_one_is_for_the_same() {
    let mut cluster = with_volume();
    assert_eq!(rotate(&mut cluster, 1000).unwrap_err(), Error::NoKey("web1".to_owned()));
    let new = NewKey { name: "web1".to_owned(), volumes: vec!["db".to_owned()], read_only: true };
    let first = cluster.run(|m, now, _| m.add_key(now, &new)).unwrap();
    assert_eq!(rotate(&mut cluster, MAX_KEY_GRACE_MS + 1).unwrap_err().kind(), "invalid");
    let second = rotate(&mut cluster, 60_000).unwrap();
    assert_eq!((second.serial, &second.volumes, second.read_only), (2, &first.volumes, true));
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![1, 2], vec![1]));
    let again = cluster.run(|m, now, _| m.add_key(now, &new));
    assert_eq!(again.unwrap_err().kind(), "key-exists");

    // Once more, for more time; each has its own, which a restart does not forget. There are not to be more of them.
    cluster.wait(10_000);
    assert_eq!(rotate(&mut cluster, 80_000).unwrap().serial, 3);
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![1, 2, 3], vec![1, 2]));
    assert_eq!(rotate(&mut cluster, 80_000).unwrap_err().kind(), "limit");
    cluster.restart();
    cluster.wait(50_000);
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![2, 3], vec![2]));
    let due = cluster.model.next_deadline().unwrap();
    assert!(due.0 <= cluster.now.0 + 30_000, "it looks again in time: {due:?}");
    cluster.wait(30_000);
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![3], vec![]));
    let events: Vec<String> = cluster.model.events(0).iter().map(|event| event.what.to_string()).collect();
    for said in ["key web1 renewed, the former one holds for 80 s", "the former key web1 holds no more"] {
        assert!(events.iter().any(|event| event == said), "{events:?}");
    }

    // None that was leaked before holds for longer than the last one that was.
    rotate(&mut cluster, 60_000).unwrap();
    rotate(&mut cluster, 5000).unwrap();
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![3, 4, 5], vec![3, 4]));
    cluster.wait(5000);
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![5], vec![]));

    // At once, whatever else holds yet; and with the name goes all that was ever given out under it.
    rotate(&mut cluster, 60_000).unwrap();
    rotate(&mut cluster, 60_000).unwrap();
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![5, 6, 7], vec![5, 6]));
    assert_eq!(rotate(&mut cluster, 0).unwrap().serial, 8);
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![8], vec![]));
    cluster.assert_persisted();
    rotate(&mut cluster, 60_000).unwrap();
    cluster.run(|m, now, _| m.remove_key(now, "web1")).unwrap();
    assert_eq!(valid(&mut cluster), []);
    assert!(cluster.model.clients(cluster.now).iter().all(|client| client.key.is_none()));
    cluster.assert_persisted();
}

#[test]
fn a_former_key_does_not_hold_on_for_a_clock_that_was_ahead() {
    let mut cluster = with_volume();
    let new = NewKey { name: "web1".to_owned(), volumes: vec!["db".to_owned()], read_only: true };
    cluster.run(|m, now, _| m.add_key(now, &new)).unwrap();
    let right = cluster.now;
    // For the longest time there is it may hold, and not for more.
    rotate(&mut cluster, MAX_KEY_GRACE_MS).unwrap();
    cluster.tick();
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![1, 2], vec![1]));
    cluster.now = Millis(right.0 + 10 * MAX_KEY_GRACE_MS);
    cluster.tick();
    rotate(&mut cluster, 60_000).unwrap();
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![2, 3], vec![2]));
    cluster.now = right;
    cluster.restart();
    cluster.tick();
    assert_eq!((valid(&mut cluster), former(&cluster)), (vec![3], vec![]));
    let events = cluster.model.events(0);
    assert_eq!(events.last().unwrap().what.to_string(), "the former key web1 holds no more");
}

#[test]
fn a_key_is_renewed_at_once_however_many_there_are() {
    let mut cluster = with_volume();
    let new = |name| NewKey { name, volumes: vec!["db".to_owned()], read_only: false };
    cluster.run(|m, now, _| m.add_key(now, &new("web1".to_owned()))).unwrap();
    for n in 1..MAX_CLIENT_KEYS {
        cluster.run(|m, now, _| m.add_key(now, &new(format!("k{n}")))).unwrap();
    }
    assert_eq!(rotate(&mut cluster, 1000).unwrap_err().kind(), "limit");
    assert_eq!(rotate(&mut cluster, 0).unwrap().serial, 1 + MAX_CLIENT_KEYS as u64);
    cluster.assert_persisted();
}
