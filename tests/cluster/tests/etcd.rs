//! Three conductors on a real etcd: whichever leads is killed or frozen at the worst moment, and etcd goes away. Nothing is done by halves,
//! no event is lost or told twice, and I/O goes on.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, Etcd, LONG, Options, Shape, Workload, wait_until};
use serde_json::Value;
use std::time::{Duration, Instant};

const CONDUCTORS: usize = 3;
/// Requests that must be acknowledged after each fault.
const SOME: u64 = 200;

/// How a leader goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goes {
    /// kill -9, started again when another one leads.
    Killed,
    /// SIGSTOP, SIGCONT when another one leads.
    Frozen,
}

struct Three {
    cluster: Cluster,
    etcd: Etcd,
}

impl Three {
    fn new() -> Self {
        Self::on(Etcd::start().unwrap())
    }

    fn on(etcd: Etcd) -> Self {
        let cluster = Cluster::with_conductors(Shape { disk: 2 << 30, ..Shape::default() }, CONDUCTORS, &etcd).unwrap();
        Self { cluster, etcd }
    }

    fn lose(&mut self, leader: usize, how: Goes) {
        let process = self.cluster.conductor_of(leader);
        match how {
            Goes::Killed => process.kill().unwrap(),
            Goes::Frozen => process.freeze().unwrap(),
        }
    }

    /// Waits for the next leader; the former one comes back, and follows.
    fn succeed(&mut self, former: usize, how: Goes) {
        let (next, took) = self.cluster.next_leader(former).unwrap();
        println!("leader {former} {how:?}: {next} leads after {took:.1?}");
        let process = self.cluster.conductor_of(former);
        match how {
            Goes::Killed => process.start().unwrap(),
            Goes::Frozen => process.thaw().unwrap(),
        }
        let all = |list: &Value| {
            let rows = list.as_array().unwrap();
            rows.iter().all(|row| row["leader"].is_string() && row["leader"] == rows[next]["address"])
        };
        let agreed = || Ok(all(&self.cluster.json(&["conductor", "list"])?));
        wait_until("all conductors name the same leader", LONG, agreed).unwrap();
        assert_eq!(self.cluster.leaders().unwrap(), [next]);
    }

    fn attach(&mut self, volume: &str, seed: u64) -> Workload {
        let place = self.cluster.attach(volume).unwrap();
        Workload::start(Options { place, export: volume.to_owned(), depth: 8, seed, patience: LONG }).unwrap()
    }

    /// How often this happened, of all events, none of which may be missing.
    fn count(&self, is: impl Fn(&Value) -> bool) -> usize {
        self.cluster.all_events().unwrap().iter().filter(|event| is(&event["what"])).count()
    }

    fn end(mut self, volume: &str, load: Workload) {
        self.cluster.wait_healthy(volume).unwrap();
        let (_, done) = load.stop().unwrap_or_else(|error| panic!("{error:#}\n{}", self.cluster.last_words()));
        println!("{done:?}");
        self.cluster.detach(volume).unwrap();
        assert_eq!(self.cluster.status().unwrap()["health"], "healthy");
        self.cluster.stop_and_compare().unwrap();
    }
}

#[test]
fn a_volume_exists_whole_or_not_at_all_whenever_the_leader_goes_while_it_is_created() {
    let mut three = Three::new();
    // So many shards that etcd does not take them at once.
    let shards = 150;
    let create = ["--size", "150M", "--shard-size", "1M"];
    for (round, how) in [Goes::Killed, Goes::Killed, Goes::Frozen].into_iter().enumerate() {
        let (leader, volume) = (three.cluster.leader().unwrap(), format!("v{round}"));
        let running = three.cluster.begin(&[&["volume", "create", &volume][..], &create].concat()).unwrap();
        std::thread::sleep(Duration::from_millis(30 + 40 * round as u64));
        three.lose(leader, how);
        // Asked of the one that is frozen: it hears of this when it leads no more.
        let address = three.cluster.conductor_address_of(leader).unwrap();
        let late = ["volume", "create", "late", "--size", "1M", "--conductor", &address];
        let late = (how == Goes::Frozen).then(|| three.cluster.begin(&late).unwrap());
        three.succeed(leader, how);
        let outcome = running.end().unwrap();
        // Done; nobody answered; or who was frozen in the midst of it says itself that it does not know.
        assert!([0, 3].contains(&outcome.code) || outcome.code == 6 && how == Goes::Frozen, "{outcome:?}");
        if let Some(late) = late {
            let outcome = late.end().unwrap();
            assert_eq!(outcome.code, 3, "{outcome:?}");
        }
        let volumes = three.cluster.json(&["volume", "list"]).unwrap();
        let names: Vec<&str> = volumes.as_array().unwrap().iter().filter_map(|v| v["name"].as_str()).collect();
        assert!(!names.contains(&"late"), "a leader of the past has created a volume");
        let is_there = names.contains(&volume.as_str());
        println!("{volume}: `volume create` ended with {}, it is there: {is_there}", outcome.code);
        assert!(is_there || outcome.code != 0, "created, it was said");
        let created = three.count(|what| what["kind"] == "volume-created" && what["volume"] == volume.as_str());
        assert_eq!(created, usize::from(is_there));
        if is_there {
            three.cluster.wait_healthy(&volume).unwrap();
            let shown = three.cluster.json(&["volume", "show", &volume]).unwrap();
            assert_eq!(shown["shards"].as_array().unwrap().len(), shards);
            three.cluster.trine(&["volume", "delete", &volume, "--yes"]).unwrap();
        }
    }
    assert_eq!(three.cluster.status().unwrap()["health"], "healthy");
}

/// Over TLS, with a password: who leads dies, etcd is started again, and who has neither changes nothing.
#[test]
fn conductors_lead_on_an_etcd_that_lets_in_nobody_else() {
    let mut three = Three::on(Etcd::start_guarded().unwrap());
    three.cluster.create("db", 16, 16).unwrap();
    let leader = three.cluster.leader().unwrap();
    three.lose(leader, Goes::Killed);
    three.succeed(leader, Goes::Killed);
    three.etcd.kill().unwrap();
    wait_until("nobody leads without etcd", LONG, || Ok(three.cluster.leaders()?.is_empty())).unwrap();
    three.etcd.start_again().unwrap();
    three.cluster.leader().unwrap();
    three.cluster.wait_alive(3).unwrap();
    three.cluster.create("more", 4, 4).unwrap();

    let (store, prefix) = (format!("etcd:{}", three.etcd.url()), format!("{}/", three.cluster.dir().display()));
    let recover = ["conductor", "recover", "--from-nodes", "--store", &store, "--etcd-prefix", &prefix];
    let run = |options: &[String]| {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        three.cluster.try_trine(&[&recover[..], &options].concat()).unwrap()
    };
    let mut options = three.etcd.options();
    let led = run(&options);
    assert!(led.code == 5 && led.stderr.contains("stop all conductors"), "it was let in: {led:?}");
    let untrusted = run(&[]);
    assert!(untrusted.code == 2 && untrusted.stderr.contains("--etcd-ca"), "{untrusted:?}");
    let guess = three.cluster.dir().join("guess");
    std::fs::write(&guess, "guessed\n").unwrap();
    let at = options.iter().position(|option| option == "--etcd-password-file").unwrap();
    options[at + 1] = guess.display().to_string();
    let refused = run(&options);
    assert!(refused.code == 1 && refused.stderr.contains("authentication failed"), "{refused:?}");
    three.cluster.wait_healthy("db").unwrap();
    three.cluster.stop_and_compare().unwrap();
}

#[test]
fn a_primary_is_followed_although_the_leader_goes_with_it() {
    let mut three = Three::new();
    three.cluster.create("db", 16, 16).unwrap();
    let load = three.attach("db", 1);
    load.progress(SOME, LONG).unwrap();
    for how in [Goes::Killed, Goes::Frozen] {
        let (leader, primary) = (three.cluster.leader().unwrap(), three.cluster.primary("db", 0).unwrap());
        let name = |node: &Value| node.as_u64() == Some(primary as u64 + 1);
        let promoted = |what: &Value| what["kind"] == "promoted" && name(&what["from"]);
        let before = three.count(promoted);
        load.slowest();
        three.cluster.nodes[primary].kill().unwrap();
        three.lose(leader, how);
        load.progress(SOME, LONG).unwrap();
        println!("I/O paused for {:.1?}", load.slowest());
        three.succeed(leader, how);
        assert_ne!(three.cluster.primary("db", 0).unwrap(), primary);
        assert_eq!(three.count(promoted) - before, 1, "promoted once");
        three.cluster.nodes[primary].start().unwrap();
        three.cluster.wait_healthy("db").unwrap();
        load.progress(SOME, LONG).unwrap();
    }
    three.end("db", load);
}

#[test]
fn a_drain_goes_on_under_the_next_leader_and_io_without_etcd() {
    let mut three = Three::new();
    let create =
        ["volume", "create", "db", "--size", "32M", "--shard-size", "8M", "--copies", "2", "--min-copies", "1"];
    three.cluster.trine(&create).unwrap();
    three.cluster.wait_healthy("db").unwrap();
    let load = three.attach("db", 2);
    load.progress(SOME, LONG).unwrap();

    let drained = three.cluster.primary("db", 0).unwrap();
    let node = format!("n{}", drained + 1);
    let leader = three.cluster.leader().unwrap();
    three.cluster.trine(&["node", "drain", &node, "--no-wait"]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    three.lose(leader, Goes::Killed);
    load.progress(SOME, LONG).unwrap();
    three.succeed(leader, Goes::Killed);
    let empty = || {
        let nodes = three.cluster.json(&["node", "list"])?;
        let disks = nodes[drained]["disks"].as_array().unwrap();
        Ok(disks.iter().all(|disk| disk["copies"] == 0))
    };
    wait_until("the drained node is empty", LONG, empty).unwrap();
    load.progress(SOME, LONG).unwrap();
    assert_eq!(three.count(|what| what["kind"] == "duty-changed"), 1);
    three.cluster.wait_healthy("db").unwrap();

    let before = three.cluster.all_events().unwrap();
    let start = Instant::now();
    three.etcd.kill().unwrap();
    load.slowest();
    wait_until("nobody leads without etcd", LONG, || Ok(three.cluster.leaders()?.is_empty())).unwrap();
    // Asks all of them for as long as a call may take.
    let outcome = three.cluster.try_trine(&["status"]).unwrap();
    assert_eq!(outcome.code, 3, "{outcome:?}");
    assert!(outcome.stderr.contains("etcd"), "{outcome:?}");
    while start.elapsed() < Duration::from_secs(10) {
        load.progress(SOME, LONG).unwrap();
    }
    println!("etcd away for {:.1?}: I/O paused for {:.2?} at most", start.elapsed(), load.slowest());
    three.etcd.start_again().unwrap();
    three.cluster.leader().unwrap();
    three.cluster.wait_alive(3).unwrap();
    load.progress(SOME, LONG).unwrap();
    let after = three.cluster.all_events().unwrap();
    assert_eq!(after[..before.len()], before, "the past is what it was");
    three.end("db", load);
}
