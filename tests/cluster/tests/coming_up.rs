//! A target that is told to end before it serves: it does, and leaves nothing. The conductor is frozen, or a node, so that it comes up slowly.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, LONG, Shape, binary, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::process::{Child, Command, Stdio};

/// A cluster in which something is frozen, and an `attach` that waits for it.
struct ComingUp {
    cluster: Cluster,
    attach: Child,
    target: Pid,
}

impl ComingUp {
    /// It waits for the conductor.
    fn new() -> Self {
        let mut cluster = Self::cluster();
        cluster.conductor.freeze().unwrap();
        Self::begin(cluster, &[])
    }

    fn cluster() -> Cluster {
        let cluster = Cluster::start(Shape::default()).unwrap();
        cluster.create("db", 8, 8).unwrap();
        cluster
    }

    fn begin(cluster: Cluster, more: &[&str]) -> Self {
        let nbd = format!("unix:{}", cluster.dir().join("db.nbd").display());
        let mut command = Command::new(binary().unwrap());
        command.args(["attach", "db", "--nbd", &nbd]).args(more).env("TRINE_DIR", cluster.dir());
        let attach = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let starting = || {
            let all = cluster.json(&["attached"])?;
            Ok(all[0]["state"] == "starting" && all[0]["volume"] == "db" && all[0]["pid"].is_u64())
        };
        wait_until("it is shown as starting", LONG, starting).unwrap();
        let pid = cluster.json(&["attached"]).unwrap()[0]["pid"].as_i64().unwrap();
        Self { target: Pid::from_raw(pid.try_into().unwrap()), cluster, attach }
    }

    /// The attach ends without a device, and what it says has these words; nothing is left, and the volume can be attached.
    fn ends_with(self, words: &str) {
        let Self { mut cluster, attach, target } = self;
        let outcome = attach.wait_with_output().unwrap();
        let [stdout, stderr] = [outcome.stdout, outcome.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!((outcome.status.code(), stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
        assert!(kill(target, None).is_err(), "the target outlives its attach");
        assert_eq!(cluster.json(&["attached"]).unwrap(), serde_json::json!([]));
        let left: Vec<_> = std::fs::read_dir(cluster.dir().join("attached")).unwrap().flatten().collect();
        assert_eq!(left.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["db.log"]);
        assert!(!cluster.dir().join("db.nbd").exists());
        let volumes = cluster.json(&["volume", "list"]).unwrap();
        assert_eq!((&volumes[0]["name"], &volumes[0]["attachment"]), (&"db".into(), &serde_json::Value::Null));
        cluster.attach("db").unwrap();
        let attached = cluster.json(&["attached"]).unwrap();
        assert_eq!(attached[0]["state"], "live", "{attached}");
        cluster.detach("db").unwrap();
    }
}

#[test]
fn a_target_that_gets_sigterm_while_it_comes_up_gives_the_volume_back() {
    let mut up = ComingUp::new();
    kill(up.target, Signal::SIGTERM).unwrap();
    up.cluster.conductor.thaw().unwrap();
    up.ends_with("told to end before db was attached");
}

#[test]
fn a_target_that_gets_sigterm_when_the_volume_was_given_to_it_gives_it_back() {
    let mut cluster = ComingUp::cluster();
    let primary = cluster.primary("db", 0).unwrap();
    cluster.nodes[primary].freeze().unwrap();
    // By force, so that the conductor waits for the node's word.
    let mut up = ComingUp::begin(cluster, &["--force"]);
    let given = || Ok(!up.cluster.json(&["volume", "list"])?[0]["attachment"].is_null());
    wait_until("the volume is given", LONG, given).unwrap();
    kill(up.target, Signal::SIGTERM).unwrap();
    up.cluster.nodes[primary].thaw().unwrap();
    up.ends_with("told to end before db was attached");
}

#[test]
fn a_target_that_is_detached_while_it_comes_up_gives_the_volume_back() {
    let mut up = ComingUp::new();
    let mut detach = Command::new(binary().unwrap());
    let mut detach = detach.args(["detach", "db"]).env("TRINE_DIR", up.cluster.dir()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(detach.try_wait().unwrap().is_none(), "a detach waits for the end");
    up.cluster.conductor.thaw().unwrap();
    assert!(detach.wait().unwrap().success());
    up.ends_with("told to end before db was attached");
}

#[test]
fn an_attach_that_is_interrupted_ends_the_target_that_it_started() {
    let mut up = ComingUp::new();
    kill(Pid::from_raw(up.attach.id().cast_signed()), Signal::SIGINT).unwrap();
    up.cluster.conductor.thaw().unwrap();
    up.ends_with("told to end; the target of db has ended");
}

#[test]
fn without_a_conductor_the_end_comes_with_the_calls_own_deadline() {
    let mut up = ComingUp::new();
    kill(up.target, Signal::SIGTERM).unwrap();
    let start = std::time::Instant::now();
    let outcome = up.attach.wait_with_output().unwrap();
    println!("ended after {:?}", start.elapsed());
    assert_eq!(outcome.status.code(), Some(3), "the conductor cannot be reached");
    assert_eq!(up.cluster.json(&["attached"]).unwrap(), serde_json::json!([]));
    up.cluster.conductor.thaw().unwrap();
}

#[test]
fn what_is_open_when_a_target_is_started_is_not_kept_open_by_it() {
    let cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 8, 8).unwrap();
    let (lock, nbd) = (cluster.dir().join("lock"), format!("unix:{}", cluster.dir().join("db.nbd").display()));
    // It locks a file, and leaves it open to what it runs.
    let mut command = Command::new("flock");
    command.arg(&lock).arg(binary().unwrap()).args(["attach", "db", "--nbd", &nbd]).env("TRINE_DIR", cluster.dir());
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
    File::open(&lock).unwrap().try_lock().expect("the target has the lock");
    cluster.trine(&["detach", "db"]).unwrap();
}

/// What comes after a target that died may fail, too. The clients of the first one may still have writes that nobody answered, and go on with the
/// next: nobody else may have the volume before.
#[test]
fn an_export_whose_target_died_is_kept_when_the_next_target_cannot_listen() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 16).unwrap();
    cluster.attach("db").unwrap();
    let attachment = |cluster: &Cluster| cluster.json(&["volume", "show", "db"]).unwrap()["info"]["attachment"].clone();
    let before = attachment(&cluster);
    cluster.target("db").unwrap().kill().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("tcp:{}", taken.local_addr().unwrap());
    let failed = cluster.try_trine(&["attach", "db", "--nbd", &at]).unwrap();
    assert!(failed.code != 0 && failed.stderr.contains("listen"), "{failed:?}");
    let all = cluster.json(&["attached"]).unwrap();
    assert!(all.as_array().unwrap().len() == 1 && all[0]["state"] == "dead", "{all}");
    assert_eq!(
        (attachment(&cluster)["client"].clone(), before["client"].is_string()),
        (before["client"].clone(), true)
    );
    cluster.attach("db").unwrap();
    cluster.detach("db").unwrap();
    assert!(attachment(&cluster).is_null() && cluster.json(&["attached"]).unwrap().as_array().unwrap().is_empty());
    // One that never served anybody leaves nothing.
    let failed = cluster.try_trine(&["attach", "db", "--nbd", &at]).unwrap();
    assert!(failed.code != 0 && attachment(&cluster).is_null(), "{failed:?}");
}
