//! Disks come and go under a workload: one is added and takes its share, one is replaced while it lives, one after it died; a node in
//! another rack gets a copy of everything; and nobody loses a last copy without saying so.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, LONG, Options, Shape, Workload, wait_until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const VOLUME: &str = "db";
/// Of 4 MiB each.
const SHARDS: u64 = 16;
/// Requests that must be acknowledged before, between and after what is done to disks.
const SOME: u64 = 200;
/// Copies are moved once all was well for ten seconds, and what they hold was counted, which is done every ten.
const MOVED: Duration = Duration::from_secs(180);

fn workload(cluster: &mut Cluster) -> Workload {
    cluster.create(VOLUME, SHARDS * 4, 4).unwrap();
    let place = cluster.attach(VOLUME).unwrap();
    let options = Options { place, export: VOLUME.to_owned(), depth: 16, seed: 5, patience: 2 * LONG };
    Workload::start(options).unwrap()
}

/// A disk as the conductor knows it, by its node (n1 is 1) and its name.
fn disk(cluster: &Cluster, node: u64, name: &str) -> Option<Value> {
    let nodes = cluster.json(&["disk", "list"]).unwrap();
    let node = nodes.as_array().unwrap().iter().find(|n| n["node"] == node)?.clone();
    node["disks"].as_array().unwrap().iter().find(|d| d["disk"] == name).cloned()
}

/// The name of a node's only disk.
fn only_disk(cluster: &Cluster, node: u64) -> String {
    let info = cluster.json(&["node", "show", &format!("n{node}")]).unwrap();
    let disks = info["info"]["disks"].as_array().unwrap().clone();
    assert_eq!(disks.len(), 1, "{disks:?}");
    name(&disks[0]["disk"])
}

fn name(shown: &Value) -> String {
    shown.as_str().unwrap().to_owned()
}

fn events(cluster: &Cluster) -> String {
    cluster.trine(&["events"]).unwrap()
}

fn moves_on(workload: &Workload, cluster: &Cluster) {
    workload.progress(SOME, LONG).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
}

#[test]
fn disks_are_added_and_replaced_under_a_workload() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    let workload = workload(&mut cluster);
    // Enough of it is written that an empty disk is more than ten points apart.
    workload.progress(12 * SOME, 2 * LONG).unwrap();

    // Somebody else's disk is left alone.
    let path = cluster.dir().join("n1/new");
    let path = path.to_str().unwrap().to_owned();
    let mut foreign = vec![0; 128 << 20];
    foreign[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(&path, &foreign).unwrap();
    let refused = cluster.try_trine(&["disk", "add", "n1", &path]).unwrap();
    assert!(refused.code != 0 && refused.stderr.contains("carries"), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), foreign);
    drop(foreign);
    fs::remove_file(&path).unwrap();

    // Added while it runs, and used.
    let pid = cluster.nodes[0].pid();
    let added = cluster.json(&["disk", "add", "n1", &path, "--create", "128M"]).unwrap();
    let new = name(&added[0]["disk"]);
    assert_eq!(disk(&cluster, 1, &new).unwrap()["present"], true);
    assert!(cluster.nodes[0].is_alive() && cluster.nodes[0].pid() == pid);
    let before = only_others(&cluster, 1, &new);
    let took = wait_until("the new disk has its share", MOVED, || {
        // In this order: what was on its way when they were counted is seen after that.
        let copies = disk(&cluster, 1, &new).map_or(0, |d| d["copies"].as_u64().unwrap());
        let status = cluster.status()?;
        Ok(copies >= SHARDS / 4 && status["rebalance"]["moving"] == 0 && status["health"] == "healthy")
    });
    let took = took.unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", events(&cluster), cluster.last_words()));
    println!("the new disk had its share after {took:?}");
    assert!(only_others(&cluster, 1, &new) < before, "copies left the other disk of the node");
    assert!(events(&cluster).contains("rebalancing: "), "{}", events(&cluster));
    moves_on(&workload, &cluster);

    // A living disk's place is taken; it goes when its copies are in sync on the new one.
    let old = only_disk(&cluster, 2);
    let path = cluster.dir().join("n2/new");
    let replaced = cluster.json(&["disk", "replace", &old, path.to_str().unwrap(), "--create", "128M"]).unwrap();
    let new = name(&replaced["new"]);
    assert_eq!((&replaced["left"], only_disk(&cluster, 2)), (&0.into(), new.clone()));
    let there = disk(&cluster, 2, &new).unwrap()["copies"].clone();
    assert_eq!(there, SHARDS, "{}\n{}", events(&cluster), cluster.json(&["volume", "show", VOLUME]).unwrap());
    cluster.wait_healthy(VOLUME).unwrap();
    moves_on(&workload, &cluster);
    assert!(!events(&cluster).contains("too few copies"), "{}", events(&cluster));

    // A dead one's too, by a disk that its node has already.
    let old = only_disk(&cluster, 3);
    cluster.nodes[2].kill().unwrap();
    fs::rename(cluster.disk(2), cluster.dir().join("n3/dead")).unwrap();
    cluster.nodes[2].start().unwrap();
    let mut new = None;
    let another = || {
        let info = cluster.json(&["node", "show", "n3"])?["info"].clone();
        let disks = info["disks"].as_array().unwrap();
        new = disks.iter().find(|d| d["disk"] != *old && d["present"] == true).map(|d| name(&d["disk"]));
        Ok(new.is_some() && info["state"] == "alive")
    };
    wait_until("n3 runs with an empty disk", LONG, another).unwrap();
    let new = new.unwrap();
    cluster.trine(&["disk", "replace", &old, &new]).unwrap();
    assert_eq!(only_disk(&cluster, 3), new);
    cluster.wait_healthy(VOLUME).unwrap();
    moves_on(&workload, &cluster);
    let (_, done) = workload.stop().unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
    println!("{done:?}");
    cluster.detach(VOLUME).unwrap();

    for node in &mut cluster.nodes {
        node.terminate().unwrap();
    }
    let dir = cluster.dir().display().to_string();
    let disks = ["n1/disk0", "n1/new", "n2/new", "n3/disk0"].map(|disk| format!("{dir}/{disk}"));
    let mut args = vec!["store", "compare"];
    args.extend(disks.iter().map(String::as_str));
    println!("{}", cluster.trine(&args).unwrap());
}

/// What is added to a running node is there again when it is started with the options of before; and if it is not where it was, the node
/// says so, and serves what it has.
#[test]
fn an_added_disk_is_remembered_over_restarts_of_its_node() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 8, 4).unwrap();
    let path = cluster.dir().join("n1/new");
    let added = cluster.json(&["disk", "add", "n1", path.to_str().unwrap(), "--create", "64M"]).unwrap();
    let new = name(&added[0]["disk"]);
    assert_eq!(disk(&cluster, 1, &new).unwrap()["path"], path.to_str().unwrap());
    let present = |cluster: &Cluster, is: bool| {
        let seen = || {
            let node = cluster.json(&["node", "show", "n1"])?["info"].clone();
            Ok(node["state"] == "alive" && disk(cluster, 1, &new).is_some_and(|d| d["present"] == is))
        };
        wait_until(if is { "the disk is there" } else { "the disk is missing" }, LONG, seen).unwrap();
        cluster.wait_healthy(VOLUME).unwrap();
    };
    for _ in 0..2 {
        cluster.nodes[0].kill().unwrap();
        cluster.nodes[0].start().unwrap();
        present(&cluster, true);
    }

    cluster.nodes[0].terminate().unwrap();
    let away = cluster.dir().join("n1/away");
    fs::rename(&path, &away).unwrap();
    cluster.nodes[0].start().unwrap();
    present(&cluster, false);
    let said = fs::read_to_string(cluster.dir().join("n1/node.log")).unwrap();
    assert!(said.contains("A DISK IS MISSING") && said.contains(path.to_str().unwrap()), "{said}");
    // Not another one either, and nothing is written to what is there.
    cluster.nodes[0].terminate().unwrap();
    fs::write(&path, b"somebody's").unwrap();
    cluster.nodes[0].start().unwrap();
    present(&cluster, false);
    assert_eq!(fs::read(&path).unwrap(), b"somebody's");

    cluster.nodes[0].terminate().unwrap();
    fs::rename(&away, &path).unwrap();
    cluster.nodes[0].start().unwrap();
    present(&cluster, true);

    // A copy of a store that is in use is nobody's disk.
    let copy = cluster.dir().join("n1/copy");
    fs::copy(&path, &copy).unwrap();
    let refused = cluster.try_trine(&["disk", "add", "n1", copy.to_str().unwrap()]).unwrap();
    assert!(refused.code == 5 && refused.stderr.contains("one is a copy of the other"), "{refused:?}");
    present(&cluster, true);
    cluster.stop_and_compare().unwrap();
}

/// A node that starts does not do without its added disks because the conductor went away just then.
#[test]
fn an_added_disk_is_remembered_though_the_conductor_dies_while_its_node_starts() {
    let mut cluster = Cluster::start(Shape { disk: 512 << 20, ..Shape::default() }).unwrap();
    let path = cluster.dir().join("n1/new");
    let added = cluster.json(&["disk", "add", "n1", path.to_str().unwrap(), "--create", "64M"]).unwrap();
    let new = name(&added[0]["disk"]);
    let present = |cluster: &Cluster| Ok(disk(cluster, 1, &new).is_some_and(|d| d["present"] == true));
    wait_until("the disk is there", LONG, || present(&cluster)).unwrap();
    cluster.nodes[0].terminate().unwrap();
    // It asks for its cluster, then makes the disk that it has lost, which takes a while, and only then asks for its disks.
    fs::remove_file(cluster.disk(0)).unwrap();
    cluster.nodes[0].start().unwrap();
    let dir = cluster.dir().join("n1");
    // Where that was over before anybody looked, nothing is shown; never is anything wrong said.
    let is_made = || {
        let names = fs::read_dir(&dir)?.flatten().map(|entry| entry.file_name());
        let mut names = names.map(|name| name.to_string_lossy().into_owned());
        Ok(names.any(|name| name.contains(".unfinished.") || name == "control.sock"))
    };
    wait_until("it makes a disk", LONG, is_made).unwrap();
    cluster.conductor.kill().unwrap();
    wait_until("its disks are open", LONG, || Ok(dir.join("control.sock").exists())).unwrap();
    cluster.conductor.start().unwrap();
    cluster.wait_alive(3).unwrap();
    wait_until("the disk is there again", LONG, || present(&cluster)).unwrap();
}

/// A machine that starts again may name its devices in another order: added disks are found by what is on them, where any disk of the node was.
#[test]
fn added_disks_that_have_each_others_names_are_opened_as_what_they_are() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 8, 4).unwrap();
    let first = only_disk(&cluster, 1);
    let paths = [cluster.disk(0), cluster.dir().join("n1/new"), cluster.dir().join("n1/newer")];
    let mut names = vec![first];
    for path in &paths[1..] {
        let added = cluster.json(&["disk", "add", "n1", path.to_str().unwrap(), "--create", "64M"]).unwrap();
        names.push(name(&added[0]["disk"]));
    }
    let aside = cluster.dir().join("n1/aside");
    let swap = |a: usize, b: usize| {
        fs::rename(&paths[a], &aside).unwrap();
        fs::rename(&paths[b], &paths[a]).unwrap();
        fs::rename(&aside, &paths[b]).unwrap();
    };
    // The two that were added; then one of them and the one that --disk names.
    for pair in [(1, 2), (0, 2)] {
        cluster.nodes[0].terminate().unwrap();
        swap(pair.0, pair.1);
        names.swap(pair.0, pair.1);
        cluster.nodes[0].start().unwrap();
        let seen = || {
            let node = cluster.json(&["node", "show", "n1"])?["info"].clone();
            let is_at = |(name, path): (&String, &std::path::PathBuf)| {
                disk(&cluster, 1, name).is_some_and(|d| d["present"] == true && d["path"] == path.to_str().unwrap())
            };
            Ok(node["state"] == "alive" && names.iter().zip(&paths).all(is_at))
        };
        let said = || fs::read_to_string(cluster.dir().join("n1/node.log")).unwrap_or_default();
        wait_until("all disks are there", LONG, seen).unwrap_or_else(|error| panic!("{pair:?}: {error:#}\n{}", said()));
        assert!(!said().contains("A DISK IS MISSING"), "{}", said());
        cluster.wait_healthy(VOLUME).unwrap();
    }
}

/// What is wrong with one disk keeps its node from serving no other; where nothing is left to serve, it says why.
#[test]
fn a_node_starts_without_a_disk_that_cannot_be_used() {
    let mut cluster = Cluster::start(Shape { reactors: 2, ..Shape::default() }).unwrap();
    let workload = workload(&mut cluster);
    workload.progress(SOME, LONG).unwrap();
    let paths = ["n1/disk0", "n1/disk1"].map(|path| cluster.dir().join(path));
    let usable = |cluster: &Cluster, which: [bool; 2]| {
        let seen = || {
            let info = cluster.json(&["node", "show", "n1"])?["info"].clone();
            let is = |path: &std::path::PathBuf| {
                let mut disks = info["disks"].as_array().unwrap().iter();
                disks.any(|d| d["path"] == path.to_str().unwrap() && d["present"] == true)
            };
            Ok(info["state"] == "alive" && paths.iter().zip(which).all(|(path, there)| is(path) == there))
        };
        let what = format!("n1 serves {which:?}");
        wait_until(&what, LONG, seen).unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
    };
    let destroy = |n: usize, (at, bytes): (u64, usize)| {
        let file = fs::File::options().read(true).write(true).open(&paths[n]).unwrap();
        let mut was = vec![0; bytes];
        file.read_exact_at(&mut was, at).unwrap();
        file.write_all_at(&vec![0x55; bytes], at).unwrap();
        (at, was)
    };
    let restore = |n: usize, (at, was): &(u64, Vec<u8>)| {
        fs::File::options().write(true).open(&paths[n]).unwrap().write_all_at(was, *at).unwrap();
    };
    let said = |cluster: &Cluster| fs::read_to_string(cluster.dir().join("n1/node.log")).unwrap();
    // Journal, maps and pages; and the superblocks alone: that node is told to format, and does not format this.
    let (behind, superblocks) = ((64 << 10, 20 << 20), (0, 64 << 10));
    let ways = [(behind, "the store is damaged"), (superblocks, "a store that has lost its superblocks")];
    let mut kept = Vec::new();
    // Each was the only disk of its reactor.
    for (n, (what, why)) in ways.into_iter().enumerate() {
        cluster.nodes[0].kill().unwrap();
        kept.push(destroy(n, what));
        cluster.nodes[0].start().unwrap();
        usable(&cluster, [n != 0, n != 1]);
        let said = said(&cluster);
        let word = said.lines().rfind(|line| line.contains("A DISK CANNOT BE USED")).unwrap_or_default();
        assert!(word.contains(paths[n].to_str().unwrap()) && word.contains(why), "{said}");
        moves_on(&workload, &cluster);
        cluster.nodes[0].terminate().unwrap();
        if n == 0 {
            restore(n, &kept[n]);
            cluster.nodes[0].start().unwrap();
            usable(&cluster, [true, true]);
            cluster.wait_healthy(VOLUME).unwrap();
        }
    }
    let first = destroy(0, behind);
    cluster.nodes[0].start().unwrap();
    let ended = || Ok(!cluster.nodes[0].is_alive());
    wait_until("n1 ends", LONG, ended).unwrap();
    let said = said(&cluster);
    assert!(said.lines().last().is_some_and(|line| ways.iter().any(|(_, why)| line.contains(why))), "{said}");
    restore(0, &first);
    restore(1, &kept[1]);
    cluster.nodes[0].start().unwrap();
    usable(&cluster, [true, true]);
    cluster.wait_healthy(VOLUME).unwrap();
    moves_on(&workload, &cluster);
    workload.stop().unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
    cluster.detach(VOLUME).unwrap();
    cluster.stop_and_compare().unwrap();
}

#[test]
fn a_replacement_that_cannot_be_is_refused_before_a_disk_is_added() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    let solos: Vec<String> = (0..6).map(|n| format!("solo{n}")).collect();
    for name in &solos {
        cluster.trine(&["volume", "create", name, "--size", "1M", "--copies", "1", "--min-copies", "1"]).unwrap();
        cluster.wait_healthy(name).unwrap();
    }
    let third = solos.iter().find(|name| cluster.primary(name, 0).unwrap() == 2).expect("copies are spread").clone();
    let old = only_disk(&cluster, 3);
    let path = cluster.dir().join("n3/new");
    let refused = |cluster: &Cluster, new: &std::path::Path, more: &[&str], why: &str| {
        let args = [&["disk", "replace", old.as_str(), new.to_str().unwrap()], more].concat();
        let outcome = cluster.try_trine(&args).unwrap();
        assert!(outcome.code == 5 && outcome.stderr.contains(why), "{outcome:?}");
        assert!(!path.exists(), "nothing is made");
    };
    refused(&cluster, &path, &["--create", "1M"], "a store needs at least");
    refused(&cluster, &path, &[], "n3/new");
    refused(&cluster, &cluster.disk(2), &[], "itself");

    // It is lost, with the only copy of something.
    cluster.nodes[2].kill().unwrap();
    fs::rename(cluster.disk(2), cluster.dir().join("n3/dead")).unwrap();
    cluster.nodes[2].start().unwrap();
    let missing = || Ok(disk(&cluster, 3, &old).is_some_and(|d| d["present"] == false));
    wait_until("n3 runs without its disk", LONG, missing).unwrap();
    refused(&cluster, &path, &["--create", "64M"], "trine disk remove");
    refused(&cluster, &path, &["--create", "64M"], &third);
    let (_, reasons) = cluster.wait_health(&third, "lost").unwrap();
    assert!(reasons[0].contains("bring back disk"), "{reasons:?}");
}

/// Copies on the other disks of a node.
fn only_others(cluster: &Cluster, node: u64, but: &str) -> u64 {
    let info = cluster.json(&["node", "show", &format!("n{node}")]).unwrap();
    let disks = info["info"]["disks"].as_array().unwrap().clone();
    disks.iter().filter(|d| d["disk"] != but).map(|d| d["copies"].as_u64().unwrap()).sum()
}

#[test]
fn a_node_in_another_rack_gets_a_copy_of_everything_and_a_last_copy_goes_only_with_a_sentence() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create(VOLUME, 16, 4).unwrap();
    let dir = cluster.dir().join("n4");
    fs::create_dir_all(&dir).unwrap();
    let (disk, socket) = (dir.join("disk0"), dir.join("control.sock"));
    let [disk, socket] = [&disk, &socket].map(|path| path.to_str().unwrap());
    let run = ["node", "run", "--node", "4", "--rack", "r9", "--host", "far", "--listen", "127.0.0.1:0", "--format"];
    let more = ["--create", "128M", "--disk", disk, "--control-socket", socket];
    let fourth = cluster.begin(&[&run[..], &more[..]].concat()).unwrap();
    cluster.wait_alive(4).unwrap();
    assert_eq!(cluster.json(&["node", "show", "n4"]).unwrap()["info"]["rack"], "r9");
    assert!(cluster.trine(&["node", "list"]).unwrap().contains("r9"));
    let spread = || {
        let shards = cluster.json(&["volume", "show", VOLUME])?["shards"].clone();
        let settled = |config: &Value| {
            let members = config["members"].as_array().unwrap();
            members.len() == 3 && members.iter().any(|m| m["node"] == 4 && m["state"] == "in-sync")
        };
        Ok(shards.as_array().unwrap().iter().all(settled))
    };
    let took = wait_until("each shard has a copy in the other rack", MOVED, spread);
    let took = took.unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", events(&cluster), cluster.last_words()));
    println!("a copy of each shard was in the other rack after {took:?}");

    // One copy, on the node that goes.
    cluster.trine(&["volume", "create", "solo", "--size", "1M", "--copies", "1", "--min-copies", "1"]).unwrap();
    cluster.wait_healthy("solo").unwrap();
    let holder = cluster.primary("solo", 0).unwrap() + 1;
    let mut fourth = Some(fourth);
    match holder {
        4 => drop(fourth.take()),
        n => cluster.nodes[n - 1].kill().unwrap(),
    }
    let dead = || Ok(cluster.json(&["node", "show", &format!("n{holder}")])?["info"]["state"] == "dead");
    wait_until("the node is dead", LONG, dead).unwrap();
    let name = format!("n{holder}");
    let sentence = "lose data of volume solo";
    for args in [vec![], vec!["--force"], vec!["--force", "lose data of volume db"]] {
        let refused = cluster.try_trine(&[&["node", "remove", name.as_str()], args.as_slice()].concat()).unwrap();
        assert!(refused.code != 0 && refused.stderr.contains(&format!("--force \"{sentence}\"")), "{refused:?}");
        let info = cluster.json(&["node", "show", &name]).unwrap();
        assert_eq!(info["info"]["duty"], "serving", "nothing changed");
    }
    cluster.trine(&["node", "remove", &name, "--force", sentence]).unwrap();
    let (_, reasons) = cluster.wait_health("solo", "lost").unwrap();
    assert!(reasons[0].contains("was given up: delete volume solo"), "{reasons:?}");
    assert!(events(&cluster).contains("LOST by force: the last copies of solo"), "{}", events(&cluster));
    cluster.trine(&["volume", "delete", "solo", "--yes"]).unwrap();
    let gone = || Ok(!cluster.trine(&["volume", "list"])?.contains("solo"));
    wait_until("it is gone with its node", LONG, gone).unwrap();
}
