//! What programs are told: a command says what it changed in the words of the listings.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Dir, living};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

impl Dir {
    /// Whoever has it in the environment need not say it.
    #[track_caller]
    fn told(&self, args: &[&str]) -> Value {
        let output = self.command(args).env("TRINE_OUTPUT", "json").output().unwrap();
        assert!(output.status.success(), "trine {args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn a_program_is_told_what_a_command_changed() {
    let dir = Dir::new("json");
    let nothing = dir.told(&["dev", "stop"]);
    assert_eq!((&nothing["stopped"], &nothing["deleted"]), (&json!(0), &json!(false)));
    let members = dir.told(&["dev", "start", "--disk-size", "64M", "--sparse"]);
    assert_eq!(members, dir.json(&["dev", "status"]));

    // Volumes and snapshots.
    dir.ok(&["volume", "create", "db", "--size", "16M", "--copies", "2"]);
    dir.ok(&["snapshot", "create", "db@a"]);
    dir.ok(&["volume", "clone", "db@a", "clone"]);
    let flat = dir.told(&["volume", "flatten", "clone"]);
    assert_eq!((&flat["name"], &flat["flatten"], &flat["parent"]), (&json!("clone"), &Value::Null, &Value::Null));
    let back = dir.told(&["snapshot", "rollback", "db@a", "--yes"]);
    assert_eq!((&back["name"], &back["rollback"]), (&json!("db"), &Value::Null));
    let gone = dir.told(&["snapshot", "delete", "db@a", "--yes"]);
    assert_eq!(gone, json!({"volume": "db", "name": "a", "state": "deleting"}));
    assert_eq!(dir.told(&["volume", "delete", "clone", "--yes"]), json!({"name": "clone", "state": "deleting"}));

    // Attachments and clients.
    let socket = format!("unix:{}", dir.0.join("nbd").display());
    let attach = ["attach", "db", "--nbd", &socket];
    let record = dir.told(&attach);
    let listed = &dir.told(&["attached"])[0];
    for field in ["volume", "device", "client", "generation", "pid"] {
        assert!(!record[field].is_null() && record[field] == listed[field], "{field}: {record}");
    }
    assert!(dir.fails(2, &[&attach[..], &["--trace", "-o", "json"]].concat()).contains("--trace"));
    assert_eq!(dir.told(&["detach", "db"]), json!({"volume": "db", "detached": true}));
    assert_eq!(dir.ok(&attach).lines().count(), 1);
    let client = dir.told(&["client", "list"])[0]["name"].as_str().unwrap().to_owned();
    let evicted = dir.told(&["client", "evict", &client, "--yes"]);
    assert_eq!(evicted, json!({"name": client, "evicted_from": ["db"]}));
    assert_eq!(dir.ok(&["detach", "db"]), "", "people are told nothing of what they see");
    dir.ok(&["client", "add", "web", "--volumes", "db"]);
    assert_eq!(dir.told(&["client", "remove", "web", "--yes"]), json!({"name": "web", "removed": true}));

    // One that stays says so in one line, on which whoever started it waits.
    let foreground = [&attach[..], &["--foreground", "-o", "json"]].concat();
    let mut target = dir.command(&foreground).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(target.stdout.take().unwrap()).read_line(&mut line).unwrap();
    dir.ok(&["detach", "db"]);
    target.wait().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["volume"], "db");

    // Disks and nodes.
    let disks = |info: &Value| {
        let disks = info["disks"].as_array().unwrap().iter();
        disks.map(|disk| disk["disk"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = disks(&dir.told(&["node", "show", "n1"])["info"]).remove(0);
    let second = dir.0.join("second").display().to_string();
    dir.ok(&["disk", "add", "n1", &second, "--create", "64M"]);
    let without = disks(&dir.told(&["disk", "remove", &first, "--wait"]));
    assert!(without.len() == 1 && without[0] != first, "it is waited for: {without:?}");
    let node = |args: &[&str]| {
        let info = dir.told(&[&["node"], args].concat());
        assert_eq!(info["node"], 3, "{info}");
        info["duty"].as_str().unwrap().to_owned()
    };
    assert_eq!(node(&["cordon", "n3"]), "cordoned");
    assert_eq!(node(&["uncordon", "n3"]), "serving");
    assert_eq!(node(&["drain", "n3", "--no-wait"]), "draining");
    let empty = dir.told(&["node", "drain", "n3"]);
    assert_eq!((&empty["duty"], &empty["disks"][0]["copies"]), (&json!("draining"), &json!(0)));
    let pid = living(&dir.cluster().join("n3/node.pid")).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    dir.wait_until("dead for long enough", || dir.is_removed());

    // The conductor's state.
    let file = dir.0.join("backup").display().to_string();
    let made = dir.told(&["conductor", "backup", &file]);
    let store = format!("redb:{}", dir.0.join("again.redb").display());
    let again = dir.told(&["conductor", "recover", "--store", &store, "--backup", &file]);
    assert_eq!((&made["file"], &again["store"]), (&json!(file), &json!(store)));
    for field in ["cluster", "commit", "taken"] {
        assert!(!made[field].is_null() && made[field] == again[field], "{field}: {made} {again}");
    }
    let store = format!("redb:{}", dir.0.join("empty.redb").display());
    let empty = dir.told(&["conductor", "recover", "--store", &store, "--from-nodes"]);
    assert_eq!(empty, json!({"store": store, "cluster": null, "commit": null, "taken": null}));

    let stopped = dir.told(&["dev", "stop", "--destroy", "--yes"]);
    assert_eq!(stopped, json!({"dir": dir.cluster(), "stopped": 3, "deleted": true}));
}

impl Dir {
    /// Whether n3 could be removed, by now; what is said of it then is checked.
    fn is_removed(&self) -> bool {
        let output = self.trine(&["node", "remove", "n3", "-o", "json"]);
        if !output.status.success() {
            return false;
        }
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&info["node"], &info["duty"]), (&json!(3), &json!("removed")));
        true
    }
}
