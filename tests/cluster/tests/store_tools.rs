//! `trine store`: disks looked at without their nodes.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::{Cluster, LONG, Shape, binary};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process;

const BLOCK: usize = 4096;

/// Turns one bit on the disk in the first block of the first whole chunk of this byte: the journal holds none.
fn rot(disk: &Path, byte: u8) {
    let file = File::options().read(true).write(true).open(disk).unwrap();
    let bytes = std::fs::read(disk).unwrap();
    let at = bytes.chunks(16 * BLOCK).position(|chunk| chunk.iter().all(|b| *b == byte)).unwrap() * 16 * BLOCK;
    file.write_all_at(&[byte ^ 1], at as u64 + 99).unwrap();
}

#[test]
fn disks_are_compared_checked_and_dumped_and_one_bad_bit_is_found() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 8).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    for (n, offset) in (0xA0u8..).zip([0, 1 << 20, 9 << 20]) {
        nbd.call(&Command::Write { offset, bytes: vec![n; 300 << 10] }, LONG).unwrap().unwrap();
    }
    nbd.disconnect().unwrap();
    cluster.detach("db").unwrap();
    let disks: Vec<String> = (0..3).map(|n| cluster.disk(n).display().to_string()).collect();
    let [a, b, c] = [&disks[0], &disks[1], &disks[2]].map(String::as_str);

    let busy = cluster.try_trine(&["store", "check", a]).unwrap();
    assert_eq!((busy.code, busy.stderr.lines().count()), (5, 1), "{busy:?}");
    assert!(busy.stderr.contains("in use"), "{}", busy.stderr);

    let compared = cluster.stop_and_compare().unwrap();
    let blocks: Vec<u64> =
        compared["shards"].as_array().unwrap().iter().map(|s| s["blocks"].as_u64().unwrap()).collect();
    assert_eq!((compared["equal"].as_bool(), blocks), (Some(true), vec![150, 75]));
    let checked = cluster.trine(&["store", "check", "--data", "-o", "json", a, b, c]).unwrap();
    let checked: Value = serde_json::from_str(&checked).unwrap();
    assert_eq!(checked["good"], true, "{checked}");
    let disks = checked["disks"].as_array().unwrap();
    assert!(disks.iter().all(|disk| disk["findings"].as_array().unwrap().is_empty()), "{checked}");
    assert!(disks.iter().all(|disk| disk["blocks"].as_u64().unwrap() >= 225), "{checked}");
    let dumped: Value = serde_json::from_str(&cluster.trine(&["store", "dump", "-o", "json", b]).unwrap()).unwrap();
    assert_eq!((&dumped["node"], dumped["copies"].as_array().unwrap().len()), (&Value::from("n2"), 2), "{dumped}");
    assert_eq!(dumped["used"].as_u64(), Some(240 * BLOCK as u64), "15 chunks of 16 blocks");
    assert_eq!(dumped["layers"].as_array().unwrap().len(), 2);

    rot(&cluster.disk(1), 0xA1);
    let different = cluster.try_trine(&["store", "compare", a, b, c]).unwrap();
    assert_eq!(different.code, 1, "{different:?}");
    assert!(different.stdout.contains(&format!("1 DIFFERENT, first: block 256 on {b} is damaged")), "{different:?}");
    assert_eq!(cluster.try_trine(&["store", "check", b]).unwrap().code, 0, "its metadata is good");
    let damaged = cluster.try_trine(&["store", "check", "--data", b]).unwrap();
    assert_eq!(damaged.code, 1, "{damaged:?}");
    assert!(damaged.stdout.contains("error: block 256 of copy") && damaged.stdout.contains("a scrub"), "{damaged:?}");
    assert_eq!(cluster.try_trine(&["store", "compare", a, c]).unwrap().code, 0, "the other two are equal");
    assert_eq!(cluster.try_trine(&["store", "compare", a]).unwrap().code, 1, "nothing to compare with");
    assert_eq!(cluster.try_trine(&["store", "compare"]).unwrap().code, 2, "wrong usage");
}

#[test]
fn disks_with_their_journals_elsewhere_are_compared_with_them() {
    let dir = std::env::temp_dir().join(format!("trine-journals-{}", std::process::id()));
    let journals = dir.join("journals");
    std::fs::create_dir_all(&journals).unwrap();
    let trine = |args: &[&str]| {
        let mut command = process::Command::new(binary().unwrap());
        let output = command.args(args).env("TRINE_DIR", dir.join("cluster")).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code().unwrap(), stdout, stderr)
    };
    let done = |args: &[&str]| {
        let outcome = trine(args);
        assert_eq!(outcome.0, 0, "{args:?}: {outcome:?}");
    };
    let path = journals.display().to_string();
    done(&[
        "dev",
        "start",
        "--disk-size",
        "64M",
        "--journal-size",
        "16M",
        "--sparse",
        "--allow-buffered",
        "--journals",
        &path,
    ]);
    done(&["volume", "create", "db", "--size", "8M"]);
    done(&["bench", "db", "--time", "200ms"]);
    done(&["dev", "stop"]);
    let named = |ending: &str| {
        let find = process::Command::new("find").arg(&dir).args(["-name", ending]).output().unwrap().stdout;
        let mut found: Vec<String> = String::from_utf8(find).unwrap().lines().map(str::to_owned).collect();
        found.sort();
        assert_eq!(found.len(), 3, "{ending}: {found:?}");
        found
    };
    let (disks, rings) = (named("disk0"), named("*disk0.journal"));
    let mut compare = vec!["store", "compare"];
    compare.extend(disks.iter().map(String::as_str));
    let (code, _, said) = trine(&compare);
    assert!(code == 2 && said.contains("--journal") && !said.contains("empty disk"), "{code}: {said}");
    compare.extend(rings.iter().flat_map(|ring| ["--journal", ring.as_str()]));
    done(&compare);
    compare.extend(["--journal", &rings[0]]);
    let (code, _, said) = trine(&compare);
    assert!(code == 2 && said.contains("no store named here"), "{code}: {said}");
    done(&["dev", "start", "--allow-buffered"]);
    done(&["dev", "stop", "--destroy", "--yes"]);
    std::fs::remove_dir_all(&dir).unwrap();
}
