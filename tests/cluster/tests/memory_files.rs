//! `--memory-dir`: a node's buffers on named files, of any file system.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::{Cluster, LONG, Random, Shape, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;
const VOLUME: usize = 8 * MIB;
/// Requests while the node is killed.
const REQUESTS: usize = 400;

/// The files of both directories and their MiB.
fn files(dirs: &[PathBuf]) -> BTreeMap<String, u64> {
    let all = dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(Result::unwrap);
    let name = |path: &Path| path.display().to_string().rsplit_once("/memory-").unwrap().1.to_owned();
    all.map(|file| (name(&file.path()), file.metadata().unwrap().len() >> 20)).collect()
}

fn named(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected.iter().map(|(name, mib)| ((*name).to_owned(), *mib)).collect()
}

#[test]
fn buffers_on_named_files_grow_by_doubling_outlive_kill_9_and_are_never_cut() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    let dirs = ["memory-a", "memory-b"].map(|dir| cluster.dir().join(dir));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    cluster.create("db", (VOLUME / MIB) as u64, (VOLUME / MIB) as u64).unwrap();
    let node = cluster.primary("db", 0).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    let name = |n: usize| format!("{}/trine-n{}-lane0.{n}", ["a", "b"][n % 2], node + 1);
    let [first, second, third] = [0, 1, 2].map(name);

    let dirs_given = dirs.each_ref().map(|dir| dir.display().to_string()).join(",");
    cluster.nodes[node].terminate().unwrap();
    cluster.nodes[node].set("TRINE_MEMORY_DIR", &dirs_given);
    cluster.nodes[node].set("TRINE_NODE_MEMORY", "128M");
    cluster.nodes[node].start().unwrap();
    let small = named(&[(&first, 64), (&second, 64)]);
    wait_until("the files", LONG, || Ok(files(&dirs) == small)).unwrap();
    // Ready to be looked at: registered, and so with all of its memory.
    wait_until("the node", LONG, || Ok(cluster.look(node).is_ok())).unwrap();
    cluster.nodes[node].kill().unwrap();
    cluster.nodes[node].set("TRINE_NODE_MEMORY", "256M");
    cluster.nodes[node].start().unwrap();
    // Each twice as large as the one before it, the last one what is left.
    let all = named(&[(&first, 64), (&second, 128), (&third, 64)]);
    wait_until("more and larger files", LONG, || Ok(files(&dirs) == all)).unwrap();
    wait_until("the node", LONG, || Ok(cluster.look(node).is_ok())).unwrap();
    let look = cluster.look(node).unwrap();
    assert_eq!(
        (&look["inside"]["memory"]["directories"], &look["inside"]["memory"]["bytes"]),
        (&2.into(), &(256 << 20).into())
    );

    // Under load, killed twice.
    let mut random = Random::new(9);
    let mut image = vec![0; VOLUME];
    for round in 0..2 {
        for n in 0..REQUESTS {
            let len = 4096 * (1 + usize::try_from(random.below(16)).unwrap());
            let at = usize::try_from(random.below((VOLUME - len) as u64 / 512)).unwrap() * 512;
            let bytes = random.bytes(len);
            image[at..at + len].copy_from_slice(&bytes);
            let write = Command::Write { offset: at as u64, bytes };
            if n == REQUESTS / 2 {
                nbd.submit(&write);
                nbd.turn(LONG / 60).unwrap();
                cluster.nodes[node].kill().unwrap();
                assert_eq!(files(&dirs), all, "round {round}");
                cluster.nodes[node].start().unwrap();
                while nbd.in_flight() > 0 {
                    nbd.turn(LONG).unwrap().into_iter().for_each(|reply| drop(reply.result.unwrap()));
                }
            } else {
                nbd.call(&write, LONG).unwrap().unwrap();
            }
        }
    }
    for (n, expected) in image.chunks(MIB).enumerate() {
        let read = Command::Read { offset: (n * MIB) as u64, len: u32::try_from(expected.len()).unwrap() };
        assert!(nbd.call(&read, LONG).unwrap().as_deref() == Ok(expected), "MiB {n}");
    }
    cluster.wait_healthy("db").unwrap();
    assert_eq!(files(&dirs), all, "none is left over");
    let maps = fs::read_to_string(format!("/proc/{}/maps", cluster.nodes[node].pid())).unwrap();
    assert_eq!(maps.lines().filter(|line| line.contains("-lane0.")).count(), 3, "all are in use");
    drop(nbd);
    cluster.detach("db").unwrap();
    cluster.stop_and_compare().unwrap();
    assert_eq!(files(&dirs), all);
}
