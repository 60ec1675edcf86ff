//! What was acknowledged is there, whoever was killed or silent meanwhile; I/O goes on afterwards; the copies are equal at the end.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a test: small numbers, and a panic is its way to fail

use cluster::{Cluster, LONG, Options, Random, Shape, Workload, wait_until};
use std::time::Duration;

const VOLUME: &str = "db";
/// Requests that must be acknowledged before, between and after the faults.
const SOME: u64 = 300;

struct Bench {
    cluster: Cluster,
    workload: Workload,
    seed: u64,
}

fn options(cluster: &Cluster, seed: u64) -> Options {
    Options { place: cluster.place(VOLUME), export: VOLUME.to_owned(), depth: 16, seed, patience: 2 * LONG }
}

impl Bench {
    /// A volume of 32 MiB in shards of so many MiB, with a writer on it.
    fn new(shard_mib: u64, seed: u64) -> Self {
        let mut cluster = Cluster::start(Shape::default()).unwrap();
        cluster.create(VOLUME, 32, shard_mib).unwrap();
        cluster.attach(VOLUME).unwrap();
        let workload = Workload::start(options(&cluster, seed)).unwrap();
        workload.progress(SOME, LONG).unwrap();
        Self { cluster, workload, seed }
    }

    fn goes_on(&self, what: &str) {
        let took = self.workload.progress(SOME, LONG);
        let took = took.unwrap_or_else(|error| panic!("{what}: {error:#}\n{}", self.cluster.last_words()));
        println!("{what}: {SOME} requests acknowledged {took:?} later");
    }

    /// kill -9 of a node; its shards' writes go on without it, visibly; it returns; all is well.
    fn kill_and_restart(&mut self, node: usize, role: &str) {
        let name = self.cluster.nodes[node].name.clone();
        self.cluster.nodes[node].kill().unwrap();
        self.goes_on(&format!("{role} {name} killed"));
        let (seen, reasons) = self.cluster.wait_health(VOLUME, "degraded").unwrap();
        self.checks("DEGRADED", 1);
        println!("{role} {name} killed: degraded after {seen:?}: {reasons:?}");
        self.cluster.nodes[node].start().unwrap();
        let healthy = self.cluster.wait_healthy(VOLUME).unwrap();
        println!("{role} {name} back: healthy after {healthy:?}");
        self.goes_on(role);
    }

    /// `status --check` comes to say so. Not at once: a copy that has come in sync joins one more epoch, and for these moments writes wait.
    fn checks(&self, word: &str, code: i32) {
        let mut last = None;
        let said = wait_until(word, LONG, || {
            let checked = last.insert(self.cluster.try_trine(&["status", "--check"])?);
            Ok(checked.code == code && checked.stdout.starts_with(word))
        });
        said.unwrap_or_else(|error| panic!("{error:#}: {last:?}"));
    }

    /// SIGSTOP for three seconds.
    fn freeze(&mut self, node: usize, role: &str) {
        self.cluster.nodes[node].freeze().unwrap();
        std::thread::sleep(Duration::from_secs(3));
        self.cluster.nodes[node].thaw().unwrap();
        self.goes_on(role);
        self.cluster.wait_healthy(VOLUME).unwrap();
    }

    /// Everything that was acknowledged is read back, and the three disks agree about it.
    fn end(self) {
        let Self { mut cluster, workload, .. } = self;
        let (_, done) = workload.stop().unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.last_words()));
        println!("{done:?}");
        assert!(done.writes > SOME / 2 && done.reads > 0, "{done:?}");
        cluster.detach(VOLUME).unwrap();
        let compared = cluster.stop_and_compare().unwrap();
        let shards = compared["shards"].as_array().unwrap();
        let blocks: u64 = shards.iter().map(|shard| shard["blocks"].as_u64().unwrap()).sum();
        println!("{} shards, {blocks} blocks on three disks: equal", shards.len());
        assert!(blocks > 100, "{compared}");
        assert!(shards.iter().all(|shard| shard["copies"].as_array().unwrap().len() == 3), "{compared}");
    }
}

#[test]
fn a_replica_and_a_primary_are_killed_and_return() {
    let mut bench = Bench::new(32, 1);
    let primary = bench.cluster.primary(VOLUME, 0).unwrap();
    bench.kill_and_restart((primary + 1) % 3, "replica");
    bench.kill_and_restart(primary, "primary");
    bench.end();
}

#[test]
fn all_nodes_are_killed_at_once_and_return_in_any_order_one_of_them_late() {
    let mut bench = Bench::new(8, 2);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for node in &mut bench.cluster.nodes {
            node.kill().unwrap();
        }
        for node in &order[..2] {
            bench.cluster.nodes[*node].start().unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
        bench.goes_on(&format!("all killed, {order:?} without the last"));
        bench.cluster.nodes[order[2]].start().unwrap();
        let healthy = bench.cluster.wait_healthy(VOLUME).unwrap();
        bench.checks("healthy", 0);
        println!("all killed, back in order {order:?}: healthy after {healthy:?}");
        bench.goes_on("all killed");
    }
    bench.end();
}

#[test]
fn silent_nodes_hold_writes_up_and_lose_none() {
    let mut bench = Bench::new(32, 3);
    let primary = bench.cluster.primary(VOLUME, 0).unwrap();
    bench.freeze((primary + 2) % 3, "replica frozen for 3 s");
    bench.freeze(primary, "primary frozen for 3 s");
    bench.end();
}

#[test]
fn io_goes_on_without_the_conductor_and_it_returns() {
    let mut bench = Bench::new(8, 4);
    bench.cluster.conductor.kill().unwrap();
    bench.goes_on("conductor killed");
    assert_eq!(bench.cluster.try_trine(&["status"]).unwrap().code, 3, "exit code 3: conductor unreachable");
    bench.cluster.conductor.start().unwrap();
    bench.cluster.wait_alive(3).unwrap();
    bench.cluster.wait_healthy(VOLUME).unwrap();
    bench.goes_on("conductor back");
    // And a node that returns finds its shards through the new conductor.
    bench.kill_and_restart(0, "n1 under the restarted conductor");
    bench.end();
}

#[test]
fn a_killed_target_is_attached_again_and_its_client_goes_on() {
    let mut bench = Bench::new(8, 5);
    for round in 0..3 {
        bench.cluster.target(VOLUME).unwrap().kill().unwrap();
        bench.cluster.attach(VOLUME).unwrap();
        bench.goes_on(&format!("target killed, round {round}"));
    }
    bench.end();
}

#[test]
fn everything_is_killed_at_once_and_nothing_acknowledged_is_lost() {
    let Bench { mut cluster, workload, seed } = Bench::new(8, 6);
    cluster.target(VOLUME).unwrap().kill().unwrap();
    cluster.conductor.kill().unwrap();
    for node in &mut cluster.nodes {
        node.kill().unwrap();
    }
    cluster.conductor.start().unwrap();
    for node in &mut cluster.nodes {
        node.start().unwrap();
    }
    cluster.wait_alive(3).unwrap();
    cluster.attach(VOLUME).unwrap();
    let bench = Bench { cluster, workload, seed };
    bench.goes_on("everything killed");
    bench.end();
}

#[test]
fn a_clean_stop_and_start_keeps_everything_and_another_client_reads_it() {
    let Bench { mut cluster, workload, seed } = Bench::new(8, 7);
    let (ledger, done) = workload.stop().unwrap();
    println!("{done:?}");
    cluster.detach(VOLUME).unwrap();
    for node in &mut cluster.nodes {
        node.terminate().unwrap();
        node.start().unwrap();
    }
    cluster.wait_healthy(VOLUME).unwrap();
    cluster.attach(VOLUME).unwrap();
    let workload = Workload::resume(options(&cluster, seed + 100), ledger).unwrap();
    let bench = Bench { cluster, workload, seed };
    bench.goes_on("stopped and started");
    bench.end();
}

/// What may happen to a cluster that does not stop being used.
#[derive(Clone, Copy, Debug)]
enum Blow {
    KillNode(usize),
    FreezeNode(usize),
    StopNode(usize),
    KillTwoNodes(usize),
    KillConductor,
    KillTarget,
}

#[test]
fn blow_after_blow_at_random_loses_nothing() {
    let seed = std::env::var("SEED").map_or(8, |seed| seed.parse().unwrap());
    let rounds = std::env::var("ROUNDS").map_or(12, |rounds| rounds.parse().unwrap());
    let mut random = Random::new(seed);
    let mut bench = Bench::new(4, seed);
    for round in 0..rounds {
        let node = random.below(3) as usize;
        let blow = match random.below(8) {
            0 | 1 => Blow::KillNode(node),
            2 => Blow::FreezeNode(node),
            3 => Blow::StopNode(node),
            4 | 5 => Blow::KillTwoNodes(node),
            6 => Blow::KillConductor,
            _ => Blow::KillTarget,
        };
        let pause = Duration::from_millis(random.below(700));
        let cluster = &mut bench.cluster;
        match blow {
            Blow::KillNode(node) => {
                cluster.nodes[node].kill().unwrap();
                std::thread::sleep(pause);
                cluster.nodes[node].start().unwrap();
            }
            Blow::FreezeNode(node) => {
                cluster.nodes[node].freeze().unwrap();
                std::thread::sleep(5 * pause);
                cluster.nodes[node].thaw().unwrap();
            }
            Blow::StopNode(node) => {
                cluster.nodes[node].terminate().unwrap();
                std::thread::sleep(pause);
                cluster.nodes[node].start().unwrap();
            }
            Blow::KillTwoNodes(node) => {
                let other = (node + 1) % 3;
                cluster.nodes[node].kill().unwrap();
                std::thread::sleep(pause / 4);
                cluster.nodes[other].kill().unwrap();
                cluster.nodes[node].start().unwrap();
                std::thread::sleep(pause);
                cluster.nodes[other].start().unwrap();
            }
            Blow::KillConductor => {
                cluster.conductor.kill().unwrap();
                std::thread::sleep(pause);
                cluster.conductor.start().unwrap();
            }
            Blow::KillTarget => {
                cluster.target(VOLUME).unwrap().kill().unwrap();
                std::thread::sleep(pause);
                cluster.wait_alive(3).unwrap();
                cluster.attach(VOLUME).unwrap();
            }
        }
        // Sometimes the next one falls before the last is over.
        if random.below(3) > 0 {
            bench.goes_on(&format!("round {round}: {blow:?}, back after {pause:?}"));
        }
    }
    bench.goes_on("after the last blow");
    bench.cluster.wait_healthy(VOLUME).unwrap();
    bench.end();
}
