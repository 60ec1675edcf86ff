//! Real processes on loopback: a development cluster from first start to destruction, and what wrong usage gets.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Dir, living, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

impl Dir {
    fn pids(&self) -> Vec<Value> {
        self.json(&["dev", "status"]).as_array().unwrap().iter().map(|member| member["pid"].clone()).collect()
    }

    /// The roles of all copies, as the nodes say themselves.
    fn roles(&self) -> Vec<String> {
        let looks = ["n1", "n2", "n3"].map(|node| self.json(&["node", "show", node, "--refs"]));
        let copies = looks.iter().flat_map(|look| look["inside"]["reactors"][0]["copies"].as_array().unwrap().clone());
        copies.map(|copy| copy["role"].as_str().unwrap().to_owned()).collect()
    }
}

/// A process that does not outlive its test.
struct Child(process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What an exporter of this cluster answers.
fn served_metrics(dir: &Dir) -> String {
    let mut exporter = Command::new(env!("CARGO_BIN_EXE_trine"));
    exporter.args(["metrics", "--listen", "127.0.0.1:0"]).env("TRINE_DIR", dir.cluster()).stdout(Stdio::piped());
    let mut exporter = Child(exporter.spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(exporter.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let mut stream = TcpStream::connect(ready.trim().strip_prefix("ready ").unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_development_cluster_keeps_its_volumes_over_a_restart() {
    let dir = Dir::new("dev");
    dir.ok(&["dev", "start", "--disk-size", "64M"]);
    let pids = dir.pids();
    assert!(pids.len() == 4 && pids.iter().all(Value::is_u64), "{pids:?}");
    dir.ok(&["dev", "start"]);
    assert_eq!(dir.pids(), pids, "what runs is left alone");
    dir.fails(5, &["dev", "start", "--nodes", "4"]);

    let created = dir.json(&["volume", "create", "db", "--size", "1G"]);
    assert_eq!((&created["name"], &created["size"]), (&Value::from("db"), &Value::from(1_u64 << 30)));
    let status = dir.json(&["status"]);
    assert_eq!((&status["health"], &status["totals"]["nodes_alive"]), (&Value::from("healthy"), &Value::from(3)));
    assert_eq!(status["volumes"][0]["name"], "db");
    let mut roles = dir.roles();
    roles.sort();
    assert!(roles.len() == 3 && roles[0].starts_with("primary: serving"), "{roles:?}");
    assert_eq!(roles[1..], ["replica: joined", "replica: joined"]);

    dir.fails(5, &["volume", "create", "db", "--size", "1G"]);
    dir.fails(4, &["volume", "show", "nothing"]);
    assert_eq!(dir.ok(&["events", "--after", "99999"]), "", "nothing happened since");
    let small = dir.fails(2, &["volume", "create", "small", "--size", "4K"]);
    assert!(small.contains("1 MiB to 64 TiB, not 4 KiB"), "{small}");
    dir.fails(4, &["node", "show", "9"]);
    dir.fails(2, &["volume", "resize", "db", "--size", "512M"]);
    dir.fails(2, &["volume", "create", "odd", "--size", "1000001"]);
    assert!(dir.fails(2, &["volume", "delete", "db"]).contains("--yes"));
    dir.ok(&["volume", "resize", "db", "--size", "2G"]);

    // A key is said once: where it is lost, how to get another one is said.
    let mut unsaid = Command::new(env!("CARGO_BIN_EXE_trine"));
    unsaid.args(["client", "add", "web", "--volumes", "db"]).env("TRINE_DIR", dir.cluster());
    let unsaid = unsaid.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()).output().unwrap();
    let complained = text(&unsaid.stderr);
    assert!(unsaid.status.code() == Some(1) && complained.contains("`trine client rotate web"), "{complained}");
    let way = complained.split('`').nth(1).unwrap().trim_start_matches("trine ");
    assert!(dir.ok(&way.split(' ').collect::<Vec<_>>()).len() > 64);

    // Where there is no ublk that is said, and what to do instead; as anybody, not only as root.
    if !Path::new("/dev/ublk-control").exists() && !Path::new("/sys/module/ublk_drv").exists() {
        let said = dir.fails(1, &["attach", "db"]);
        assert!(said.contains("this kernel offers no ublk") && said.contains("--nbd"), "{said}");
    }

    // Without a conductor a node can still be looked at, and only the conductor is started again.
    let socket = format!("unix:{}", dir.0.join("nbd").display());
    dir.ok(&["attach", "db", "--nbd", &socket]);
    let page = dir.ok(&["metrics"]);
    for line in
        ["trine_conductor_up 1.0", "trine_volume_health{volume=\"db\"} 0.0", "trine_target_up{volume=\"db\"} 1.0"]
    {
        assert!(page.lines().any(|said| said == line), "{line}: {page}");
    }
    assert_eq!(page.matches("\ntrine_node_up{").count(), 3, "{page}");
    assert!(page.contains("trine_node_events_total{node=\"n1\",reactor=\"0\",event=\"net.established\"}"), "{page}");
    assert!(page.contains("trine_node_holds{node=\"n3\",reactor=\"0\",object=\"conn\",reason=\"owner\"}"), "{page}");
    let conductor = living(&dir.cluster().join("conductor.pid")).unwrap();
    kill(Pid::from_raw(conductor), Signal::SIGKILL).unwrap();
    dir.wait_until("the conductor is gone", || dir.trine(&["status"]).status.code() == Some(3));
    assert!(dir.json(&["node", "show", "n1", "--refs"])["info"].is_null());
    let page = served_metrics(&dir);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("trine_conductor_up 0.0"), "{page}");
    assert!(page.contains("trine_node_hears_conductor{node=\"n2\"}"), "{page}");
    let untold = dir.fails(3, &["detach", "db"]);
    assert!(untold.contains("nothing serves db here any more, but the conductor was not told"), "{untold}");
    dir.ok(&["dev", "start"]);
    assert_eq!(dir.json(&["status"])["totals"]["nodes_alive"], 3, "it waits for nodes that ran before, too");
    assert_eq!((&dir.pids()[1..], dir.pids()[0].is_u64()), (&pids[1..], true));
    dir.ok(&["detach", "db"]);
    dir.fails(4, &["detach", "db"]);

    dir.ok(&["dev", "stop"]);
    assert!(dir.pids().iter().all(Value::is_null));
    dir.fails(3, &["status"]);
    for n in 1..=3 {
        let log = fs::read_to_string(dir.cluster().join(format!("n{n}/node.log"))).unwrap();
        assert!(log.contains("nothing leaked"), "{log}");
    }

    dir.ok(&["dev", "start"]);
    dir.wait_until("serving again", || dir.roles().iter().any(|role| role.starts_with("primary: serving")));
    dir.wait_until("healthy again", || dir.json(&["status"])["health"] == "healthy");
    assert_eq!(dir.json(&["volume", "show", "db"])["info"]["size"], 2_u64 << 30);

    dir.ok(&["volume", "delete", "db", "--yes"]);
    dir.wait_until("deleted on all nodes", || dir.json(&["volume", "list"]).as_array().unwrap().is_empty());
    assert!(dir.roles().is_empty());
    dir.fails(2, &["dev", "stop", "--destroy"]);
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
    assert!(!dir.cluster().exists());
}

/// A lost state is no new cluster: neither by itself, nor for whoever looks at one that was made in its place.
#[test]
fn a_conductor_whose_state_is_lost_is_not_a_healthy_cluster() {
    let dir = Dir::new("lost");
    dir.ok(&["dev", "start", "--disk-size", "64M"]);
    dir.ok(&["volume", "create", "db", "--size", "16M"]);
    let state = dir.cluster().join("conductor.redb");
    let conductor = living(&dir.cluster().join("conductor.pid")).unwrap();
    kill(Pid::from_raw(conductor), Signal::SIGKILL).unwrap();
    dir.wait_until("the conductor is gone", || dir.trine(&["status"]).status.code() == Some(3));
    let lost = dir.0.join("lost.redb");
    fs::rename(&state, &lost).unwrap();
    let refused = text(&dir.trine(&["dev", "start"]).stderr);
    assert!(refused.contains("no cluster's state is at") && refused.contains("--from-nodes"), "{refused}");
    assert_eq!(refused.matches("conductor stopped").count(), 1, "only what this start has said: {refused}");
    fs::write(&state, "").unwrap();
    let refused = text(&dir.trine(&["dev", "start"]).stderr);
    assert!(refused.contains("the file is empty") && refused.contains("--from-nodes"), "{refused}");
    fs::remove_file(&state).unwrap();

    let address = fs::read_to_string(dir.cluster().join("conductor.addr")).unwrap();
    let (store, key) = (format!("redb:{}", state.display()), dir.cluster().join("cluster.key"));
    let mut other = Command::new(env!("CARGO_BIN_EXE_trine"));
    other.args(["conductor", "run", "--listen", address.trim(), "--store", &store, "--key-file"]).arg(&key);
    let mut other = Child(other.env("TRINE_CONFIG", "/dev/null").stdout(Stdio::null()).spawn().unwrap());
    dir.wait_until("all nodes are named", || {
        let status = dir.trine(&["status", "-o", "json"]).stdout;
        serde_json::from_slice(&status)
            .is_ok_and(|status: Value| status["refused"].as_array().is_some_and(|r| r.len() == 3))
    });
    let checked = dir.trine(&["status", "--check"]);
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let (said, complained) = (text(&checked.stdout), text(&checked.stderr));
    assert!(said.starts_with("REFUSED: n1 (") && said.contains("`trine conductor recover`"), "{said}");
    assert!(complained.contains("the conductor refuses nodes of another cluster"), "{complained}");
    // For as long as it takes to have said it some times over.
    std::thread::sleep(Duration::from_secs(2));
    for n in 1..=3 {
        let log = fs::read_to_string(dir.cluster().join(format!("n{n}/node.log"))).unwrap();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("the conductor refuses this node")).collect();
        assert!(refused.len() == 1 && refused[0].contains("belongs to cluster"), "{log}");
    }
    // The state is found again.
    other.0.kill().unwrap();
    other.0.wait().unwrap();
    fs::rename(&lost, &state).unwrap();
    dir.ok(&["dev", "start"]);
    dir.wait_until("healthy again", || dir.trine(&["status", "--check"]).status.code() == Some(0));
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
}

#[test]
fn a_disk_that_was_replaced_stays_away_and_one_that_is_lost_is_named() {
    let dir = Dir::new("disks");
    dir.ok(&["dev", "start", "--disk-size", "64M"]);
    dir.ok(&["volume", "create", "db", "--size", "16M"]);
    let disks = |dir: &Dir| -> Vec<(String, String)> {
        let shown = dir.json(&["node", "show", "n1"]);
        let disks = shown["info"]["disks"].as_array().unwrap().iter();
        let name = |disk: &Value| disk["disk"].as_str().unwrap().to_owned();
        disks.map(|disk| (name(disk), disk["path"].as_str().unwrap().to_owned())).collect()
    };
    let first = disks(&dir).remove(0);
    let second = dir.0.join("second").display().to_string();
    dir.ok(&["disk", "replace", &first.0, &second, "--create", "64M"]);
    dir.wait_until("it is forgotten", || disks(&dir).len() == 1);
    let had = dir.fails(5, &["disk", "add", "n1", &second]);
    assert!(had.contains("of this node already, and in use"), "no copy of itself: {had}");
    for _ in 0..2 {
        dir.ok(&["dev", "stop"]);
        dir.ok(&["dev", "start"]);
        dir.wait_until("healthy again", || dir.trine(&["status", "--check"]).status.code() == Some(0));
        assert!(matches!(&disks(&dir)[..], [(_, path)] if *path == second), "{:?}", disks(&dir));
    }

    let was = disks(&dir).remove(0).0;
    dir.ok(&["dev", "stop"]);
    fs::remove_file(&second).unwrap();
    let started = dir.trine(&["dev", "start"]);
    let noted = text(&started.stderr);
    assert!(started.status.success() && noted.contains(&format!("disk {was} of n1 is gone")), "{noted}");
    let way = noted.split('`').nth(1).unwrap().trim_start_matches("trine ");
    dir.ok(&way.split(' ').collect::<Vec<_>>());
    dir.wait_until("healthy again", || dir.trine(&["status", "--check"]).status.code() == Some(0));
    assert_eq!(disks(&dir).len(), 1);
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
}

/// What is left of a cluster, or at work on it, is not taken for none.
#[test]
fn a_cluster_without_its_plan_is_not_written_over_and_one_that_is_being_started_can_be_looked_at() {
    let dir = Dir::new("plan");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--nodes", "1"]);
    let plan = dir.cluster().join("cluster.json");
    let lock = fs::File::open(dir.cluster().join("lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(dir.pids().len(), 2, "while somebody holds the lock");
    let mut waiting = Command::new(env!("CARGO_BIN_EXE_trine"));
    waiting.args(["dev", "start"]).env("TRINE_DIR", dir.cluster()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut waiting = Child(waiting.spawn().unwrap());
    let mut said = String::new();
    BufReader::new(waiting.0.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("another `trine dev` is at work"), "{said}");
    drop(lock);
    assert!(waiting.0.wait().unwrap().success());

    let text = fs::read_to_string(&plan).unwrap();
    dir.ok(&["dev", "stop"]);
    fs::write(&plan, "{").unwrap();
    assert!(dir.fails(1, &["dev", "stop"]).contains("cluster.json is damaged"));
    fs::remove_file(&plan).unwrap();
    let key = fs::read(dir.cluster().join("cluster.key")).unwrap();
    assert!(dir.fails(5, &["dev", "start"]).contains("no cluster.json"));
    assert_eq!(fs::read(dir.cluster().join("cluster.key")).unwrap(), key);
    fs::write(&plan, text).unwrap();
    dir.ok(&["dev", "start"]);
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
}

#[test]
fn a_cluster_that_is_destroyed_leaves_no_target_behind() {
    let dir = Dir::new("destroyed");
    let attach = |volume: &str| {
        let socket = format!("unix:{}", dir.0.join(format!("{volume}.nbd")).display());
        dir.ok(&["attach", volume, "--nbd", &socket]);
        let attached = dir.json(&["attached"]);
        let of = attached.as_array().unwrap().iter().find(|of| of["volume"] == volume).unwrap().clone();
        Pid::from_raw(i32::try_from(of["pid"].as_u64().unwrap()).unwrap())
    };
    dir.ok(&["dev", "start", "--disk-size", "64M"]);
    // As long as a name can be: its control socket has a shorter one.
    let long = "v".repeat(64);
    dir.ok(&["volume", "create", &long, "--size", "16M"]);
    let target = attach(&long);
    let refused = dir.fails(5, &["dev", "stop", "--destroy", "--yes"]);
    assert!(refused.contains("--force"), "{refused}");
    dir.ok(&["dev", "stop", "--force", "--destroy", "--yes"]);
    assert!(!dir.cluster().exists());
    let serves = || fs::read(format!("/proc/{target}/cmdline")).is_ok_and(|args| !args.is_empty());
    dir.wait_until("the target has ended", || !serves());

    // A target that died is in nobody's way, also where the conductor does not run any more.
    dir.ok(&["dev", "start", "--disk-size", "64M"]);
    dir.ok(&["volume", "create", "db", "--size", "16M"]);
    kill(attach("db"), Signal::SIGKILL).unwrap();
    dir.wait_until("it died", || dir.json(&["attached"])[0]["state"] == "dead");
    dir.ok(&["dev", "stop"]);
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
    assert!(!dir.cluster().exists());
}

#[test]
fn a_node_is_emptied_and_removed_and_the_log_tells_of_it() {
    let dir = Dir::new("care");
    dir.ok(&["dev", "start", "--nodes", "4", "--disk-size", "64M", "--sparse"]);
    dir.ok(&["volume", "create", "db", "--size", "8M", "--shard-size", "4M"]);
    let shards = || dir.json(&["volume", "show", "db"])["shards"].as_array().unwrap().clone();
    let on = |node: u64| {
        let members = shards().into_iter().flat_map(|s| s["members"].as_array().unwrap().clone());
        members.filter(|m| m["node"] == node).count()
    };
    let primary = shards()[0].clone();
    let members = primary["members"].as_array().unwrap();
    let drained = members.iter().find(|m| m["copy"] == primary["primary"]).unwrap()["node"].as_u64().unwrap();
    let name = format!("n{drained}");
    assert!(on(drained) > 0);

    assert!(dir.fails(5, &["node", "remove", &name, "--force"]).contains("drain and stop it first"));
    dir.ok(&["node", "drain", &name]);
    assert_eq!(on(drained), 0);
    assert!(shards().iter().all(|s| s["members"].as_array().unwrap().iter().all(|m| m["state"] == "in-sync")));
    let node = dir.json(&["node", "show", &name])["info"].clone();
    assert_eq!((&node["duty"], &node["primaries"]), (&Value::from("draining"), &Value::from(0)));
    assert!(dir.fails(5, &["node", "drain", &format!("n{}", drained % 4 + 1)]).contains("add a node, or uncordon one"));
    let pid = living(&dir.cluster().join(format!("{name}/node.pid"))).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    // It is waited for until it counts as stopped.
    let removed = dir.trine(&["node", "remove", &name]);
    let said = text(&removed.stderr);
    assert!(removed.status.success() && said.contains(&format!("{name} was heard 2 s ago: waiting")), "{said}");
    dir.wait_until("forgotten", || dir.trine(&["node", "show", &name]).status.code() == Some(4));
    assert_eq!(dir.json(&["disk", "list"]).as_array().unwrap().len(), 3);
    dir.wait_until("well without it", || dir.json(&["status"])["health"] == "healthy");

    dir.fails(2, &["volume", "set", "db"]);
    dir.fails(2, &["disk", "remove", "d1"]);
    dir.ok(&["volume", "set", "db", "--copies", "2"]);
    dir.wait_until("two copies", || shards().iter().all(|s| s["members"].as_array().unwrap().len() == 2));

    let events = dir.json(&["events"]);
    let events = events.as_array().unwrap();
    let kinds: Vec<&str> = events.iter().map(|e| e["what"]["kind"].as_str().unwrap()).collect();
    for kind in ["node-joined", "volume-created", "duty-changed", "copies-listed", "copies-in-sync", "promoted"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    assert_eq!(kinds.iter().filter(|kind| **kind == "node-forgotten").count(), 1);
    let last = events.last().unwrap()["number"].to_string();
    assert_eq!(dir.json(&["events", "--after", &last]), Value::Array(Vec::new()));
    assert!(dir.ok(&["events"]).contains(&format!("{name} silent")));
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
}

/// Nor does a state that was lost make members strangers.
#[test]
fn a_node_that_was_removed_stays_away_when_the_others_are_started() {
    let dir = Dir::new("removed");
    let start = ["dev", "start", "--disk-size", "64M", "--sparse"];
    dir.ok(&start);
    dir.ok(&["volume", "create", "db", "--size", "8M", "--copies", "2"]);
    let nodes = || dir.json(&["node", "list"]).as_array().unwrap().len();
    dir.ok(&["dev", "stop"]);
    let state = dir.cluster().join("conductor.redb");
    fs::remove_file(&state).unwrap();
    let store = format!("redb:{}", state.display());
    dir.ok(&["conductor", "recover", "--from-nodes", "--store", &store]);
    let started = dir.trine(&start);
    let noted = text(&started.stderr);
    assert!(started.status.success() && noted.contains("in doubt") && !noted.contains("removed"), "{noted}");
    assert!(dir.pids().iter().all(Value::is_u64) && nodes() == 3, "{noted}");
    dir.wait_until("adopted", || dir.trine(&["conductor", "adopt"]).status.success());

    dir.wait_until("emptied", || dir.trine(&["node", "drain", "n3"]).status.success());
    let pid = living(&dir.cluster().join("n3/node.pid")).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    dir.wait_until("dead for long enough", || dir.trine(&["node", "remove", "n3"]).status.success());
    dir.wait_until("forgotten", || nodes() == 2);
    dir.ok(&["dev", "stop"]);
    for what in ["2 nodes runs in", "2 nodes runs already in"] {
        let started = dir.trine(&start);
        let (said, noted) = (text(&started.stdout), text(&started.stderr));
        let home = dir.cluster().join("n3").display().to_string();
        assert!(
            noted.starts_with("trine: n3 is none of the cluster's any more")
                && noted.contains(&format!("delete {home} to")),
            "{noted}"
        );
        assert!(said.contains(what) && dir.pids()[3].is_null() && nodes() == 2, "{said}");
    }
    fs::remove_dir_all(dir.cluster().join("n3")).unwrap();
    dir.ok(&start);
    assert_eq!(nodes(), 3);
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
}

#[test]
fn journals_are_as_large_as_was_said_when_their_stores_were_made() {
    let dir = Dir::new("journals");
    dir.ok(&["dev", "start", "--nodes", "1", "--disk-size", "128M", "--journal-size", "48M", "--sparse"]);
    dir.ok(&["dev", "start", "--journal-size", "48M"]);
    dir.fails(5, &["dev", "start", "--journal-size", "32M"]);
    let [first, added, usual] = ["n1/disk0", "added", "usual"].map(|name| dir.cluster().join(name));
    let [first, added, usual] = [&first, &added, &usual].map(|path| path.to_str().unwrap());
    let add = ["disk", "add", "1", "--create", "64M"];
    let said = dir.fails(5, &[&add[..], &[added, "--journal-size", "33M"]].concat());
    assert!(said.contains("choose 16777216 to 33554432") && !Path::new(added).exists(), "{said}");
    dir.ok(&[&add[..], &[added, "--journal-size", "24M"]].concat());
    dir.ok(&[&add[..], &[usual]].concat());
    dir.ok(&["dev", "stop"]);
    let blocks = |disk| dir.json(&["store", "dump", disk])["geometry"]["journal_blocks"].as_u64().unwrap();
    assert_eq!([first, added, usual].map(blocks), [48 << 8, 24 << 8, 16 << 8]);
    dir.ok(&["dev", "start"]);
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
}

#[test]
fn a_directory_of_journals_is_one_clusters() {
    let [dir, other] = ["journals-ours", "journals-theirs"].map(Dir::new);
    let journals = dir.0.join("journals");
    fs::create_dir(&journals).unwrap();
    let start = ["dev", "start", "--nodes", "1", "--disk-size", "64M", "--journals", journals.to_str().unwrap()];
    dir.ok(&start);
    assert!(other.fails(5, &start).contains("another cluster's"));
    other.ok(&["dev", "stop", "--destroy", "--yes"]);
    dir.ok(&["dev", "stop"]);
    dir.ok(&["dev", "start"]);
    // A name may stand behind `--`, as scripts put it.
    dir.ok(&["volume", "create", "db", "--size", "8M", "--copies", "1"]);
    let nbd = format!("unix:{}", dir.0.join("nbd").display());
    dir.ok(&["attach", "--nbd", &nbd, "--", "db"]);
    dir.ok(&["detach", "--", "db"]);
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
    assert_eq!(fs::read_dir(&journals).unwrap().count(), 0);
}

#[test]
fn wrong_usage_is_one_sentence_and_code_2() {
    let dir = Dir::new("usage");
    for args in [
        ["volum"].as_slice(),
        &["volume", "create", "db"],
        &["volume", "create", "DB", "--size", "1G"],
        &["volume", "create", "db", "--size", "1.5G"],
        &["volume", "create", "db", "--size", "1G", "--timeout", "soon"],
        &["volume", "list", "-o", "yaml"],
        &["volume", "list", "--conductor", "nonsense"],
        &["node", "show", "nine"],
        &["node", "run", "--node", "0", "--disk", "x"],
        &["node", "run", "--node", "1"],
        &["dev", "start", "--nodes", "0"],
        &["dev", "start", "--disk-size", "1M"],
        &["dev", "start", "--journal-size", "15M"],
        &["dev", "start", "--disk-size", "64M", "--journal-size", "33M"],
        &["conductor", "run", "--store", "etcd://x"],
        &["status", "--log", "a=b=c"],
        &["status", "--config", "/nonexistent"],
        &["status"],
    ] {
        dir.fails(2, args);
    }
    let key = dir.0.join("key");
    fs::write(&key, "07".repeat(32)).unwrap();
    let said = dir.fails(2, &["metrics", "--listen", "0.0.0.0:0"]);
    assert!(said.contains("--plaintext"), "{said}");
    let beyond = ["conductor", "run", "--listen", "0.0.0.0:0", "--store", "redb:/dev/null"];
    let with_key = [&beyond[..], &["--key-file", key.to_str().unwrap()]].concat();
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let said = String::from_utf8(dir.trine(&with_key).stderr).unwrap();
    assert!(said.contains("everybody on this machine can read the key"), "{said}");
    fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    let said = dir.fails(2, &with_key);
    assert!(said.contains("--plaintext"), "{said}");
    let said = dir.fails(2, &[&beyond[..], &["--plaintext"]].concat());
    assert!(said.contains("--key-file"), "it would answer everybody: {said}");
    fs::write(dir.0.join("bad.toml"), "conducter = 'x'").unwrap();
    let file = dir.0.join("bad.toml");
    assert!(dir.fails(2, &["status", "--config", file.to_str().unwrap()]).contains("conducter"));
    assert!(!dir.cluster().join("cluster.json").exists(), "nothing was made");
}

#[test]
fn a_log_and_a_complaint_that_cannot_be_written_end_nothing() {
    let dir = Dir::new("full");
    let full = |command: &mut Command| {
        let nowhere = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        command
            .env("TRINE_CONFIG", "/dev/null")
            .stdin(Stdio::null())
            .stderr(nowhere)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let said = full(Command::new(env!("CARGO_BIN_EXE_trine")).args(["volum"])).wait_with_output().unwrap();
    assert_eq!(said.status.code(), Some(2), "wrong usage, and no panic");

    let key = dir.0.join("key");
    fs::write(&key, "07".repeat(32)).unwrap();
    let store = format!("redb:{}", dir.0.join("redb").display());
    let mut conductor =
        full(Command::new(env!("CARGO_BIN_EXE_trine")).args(["conductor", "run", "--log", "debug"]).args([
            "--listen",
            "127.0.0.1:0",
            "--store",
            &store,
            "--key-file",
            key.to_str().unwrap(),
        ]));
    let mut ready = String::new();
    BufReader::new(conductor.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready "), "it serves: {ready}");
    kill(Pid::from_raw(conductor.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(conductor.wait().unwrap().code(), Some(0), "it stops as it is told to");
}

#[test]
fn a_flag_in_the_environment_is_written_as_people_write_it() {
    let dir = Dir::new("flags");
    let key = dir.0.join("key");
    fs::write(&key, "07".repeat(32)).unwrap();
    let status = |tls: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trine"));
        command.args(["status", "--conductor", "127.0.0.1:1", "--key-file", key.to_str().unwrap()]);
        let output = command.env("TRINE_CONFIG", "/dev/null").env("TRINE_TLS", tls).output().unwrap();
        (output.status.code(), text(&output.stderr).contains("https://"))
    };
    for (tls, is_on) in [("1", true), ("yes", true), ("true", true), ("0", false), ("off", false)] {
        assert_eq!(status(tls), (Some(3), is_on), "TRINE_TLS={tls}");
    }
    assert_eq!(status("maybe"), (Some(2), false));
}

#[test]
fn what_holds_no_store_is_called_that() {
    let dir = Dir::new("no-store");
    let path = |name: &str| dir.0.join(name).to_str().unwrap().to_owned();
    let [empty, text, noise, pipe] = ["empty", "text", "noise", "pipe"].map(path);
    fs::write(&empty, "").unwrap();
    fs::write(&text, "not a disk").unwrap();
    fs::write(&noise, [0xa5, 7, 0, 0xff].repeat(1 << 19)).unwrap();
    nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for file in [&empty, &text, &noise] {
        for args in [["store", "check", file].as_slice(), &["store", "check", "--data", file], &["store", "dump", file]]
        {
            let said = dir.fails(1, args);
            assert!(said.contains("holds no store") && said.contains(file.as_str()), "{said}");
        }
    }
    for file in [&pipe, dir.0.to_str().unwrap(), "/dev/null"] {
        for what in ["check", "dump", "compare"] {
            let said = dir.fails(1, &["store", what, file]);
            assert!(said.contains("neither a regular file nor a block device"), "{said}");
        }
    }
}

#[test]
fn a_node_refuses_a_disk_that_is_not_its_own() {
    let dir = Dir::new("foreign");
    dir.ok(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    let disk = |n: u32| dir.cluster().join(format!("n{n}/disk0"));
    let run = |disk: &Path| {
        let conductor = fs::read_to_string(dir.cluster().join("conductor.addr")).unwrap();
        let fixed = ["node", "run", "--node", "2", "--listen", "127.0.0.1:0", "--log", "error", "--conductor"];
        dir.fails(1, &[&fixed[..], &[conductor.trim(), "--disk", disk.to_str().unwrap()]].concat())
    };
    assert!(run(&disk(2)).contains("in use"));
    let copy = dir.0.join("copy");
    fs::copy(disk(1), &copy).unwrap();
    assert!(run(&copy).contains("belongs to node n1"));
    fs::write(&copy, vec![7; 64 << 20]).unwrap();
    assert!(run(&copy).contains("holds no store"));
    dir.ok(&["dev", "stop", "--destroy", "--yes"]);
}

#[test]
fn help_completions_and_man_pages_need_no_cluster() {
    let dir = Dir::new("help");
    assert!(dir.ok(&["--help"]).contains("Exit codes"));
    assert!(dir.ok(&["volume", "create", "--help"]).contains("--size"));
    assert!(dir.ok(&["--version"]).starts_with("trine "));
    assert!(dir.ok(&["completions", "bash"]).contains("complete -F"));
    let pages = dir.0.join("man");
    dir.ok(&["man", pages.to_str().unwrap()]);
    assert!(fs::read_to_string(pages.join("trine-volume-create.1")).unwrap().contains(".SH SYNOPSIS"));
}
