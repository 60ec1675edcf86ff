//! Snapshots, rollback, clones and copies of ranges, as a person makes them, beside clients that write.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::{Chains, Cluster, LONG, Layout, Picture, Shape};

/// An NBD server's word for a write that is not allowed.
const EPERM: u32 = 1;
const READ_ONLY: u16 = 2;

#[test]
fn a_snapshot_under_full_load_is_of_one_moment_and_nobody_writes_to_it() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 64, 16).unwrap();
    let layout = Layout { shards: 4, shard: 16 << 20 };
    let place = cluster.attach("db").unwrap();
    let chains = Chains::start(&place, "db", layout).unwrap();
    let names = ["db@s1", "db@s2", "db@s3"];
    let mut pictures = Vec::new();
    for name in names {
        chains.progress(40).unwrap();
        let before = chains.acknowledged();
        cluster.trine(&["snapshot", "create", name]).unwrap();
        let after = chains.issued();
        let place = cluster.attach(name).unwrap();
        let mut nbd = Nbd::connect(&place, name).unwrap();
        assert_eq!((nbd.size, nbd.flags & READ_ONLY), (64 << 20, READ_ONLY));
        let picture = Picture::read(&mut nbd, layout).unwrap();
        picture.check().unwrap_or_else(|why| panic!("{name}: {why}"));
        picture.is_between(&before, &after).unwrap_or_else(|why| panic!("{name}: {why}"));
        let refused = nbd.call(&Command::Write { offset: 0, bytes: vec![1; 4096] }, LONG).unwrap();
        assert_eq!(refused, Err(EPERM));
        pictures.push((name, nbd, picture));
    }
    // The volume goes on, writes over everything that the snapshots show, and they show the same still.
    chains.progress(64).unwrap();
    let done = chains.stop().unwrap();
    for (name, nbd, picture) in &mut pictures {
        assert!(Picture::read(nbd, layout).unwrap() == *picture, "{name} shows something else by now");
    }
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    let live = Picture::read(&mut nbd, layout).unwrap();
    live.check().unwrap();
    assert_eq!(live.steps(), done);
    drop((nbd, pictures));
    for name in ["db", "db@s1", "db@s2", "db@s3"] {
        cluster.detach(name).unwrap();
    }
    let compared = cluster.stop_and_compare().unwrap();
    let shards = compared["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 4 * 4, "the live view and three snapshots of four shards: {compared}");
    assert!(shards.iter().all(|shard| shard["copies"].as_array().unwrap().len() == 3), "{compared}");
}
