//! Two networks side by side, everybody with a cable to each: one that is pulled costs the time in which it is noticed, and nothing else.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, Fio, LONG, Network, Options, Shape, Spot, Workload, wait_until};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// 1.2 s of silence, a connection, and what a machine that does other things takes beside.
const NOTICED: Duration = Duration::from_millis(4000);
/// A cable is out for so long, at least: three times as long as a node is silent before somebody else takes over from it.
const OUT: Duration = Duration::from_secs(6);
/// The first look at a better way is after 30 s. A cable is back before that: a look that found nobody would be followed by a later one.
const UNSEEN: Duration = Duration::from_secs(25);
/// By then that look is over, and what it found is in use.
const FOUND: Duration = Duration::from_secs(45);
/// The same behind a look that found nobody.
const FOUND_LATER: Duration = Duration::from_secs(120);
/// So often the cables are pulled one after the other, until the machine is quick enough for it to mean something.
const TRIES: u32 = 3;

/// What the links that are up of a target and of a node go over, without ports: `tcp:10.77.0.11`.
fn over(links: &serde_json::Value) -> BTreeSet<String> {
    let links = links.as_array().unwrap().iter();
    let over = links.filter_map(|link| link["over"].as_str().filter(|_| link["up"] == true || link["state"] == "up"));
    over.map(|over| over.rsplit_once(':').unwrap().0.to_owned()).collect()
}

fn all_over(cluster: &Cluster) -> BTreeSet<String> {
    let target = over(&cluster.look_at_target("db").unwrap()["target"]["links"]);
    let nodes = (0..3).flat_map(|node| over(&cluster.look(node).unwrap()["inside"]["reactors"][0]["links"]));
    nodes.chain(target).collect()
}

/// A link that requests of the workload go over.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// The target's to the primary.
    Requests { primary: u8 },
    /// The primary's to another copy.
    Legs { primary: u8, replica: u8 },
}

impl Line {
    fn look(self, cluster: &Cluster) -> serde_json::Value {
        let (links, to) = match self {
            Self::Requests { primary } => (cluster.look_at_target("db").unwrap()["target"]["links"].take(), primary),
            Self::Legs { primary, replica } => {
                (cluster.look(primary.into()).unwrap()["inside"]["reactors"][0]["links"].take(), replica)
            }
        };
        let to = format!("10.77.0.{}:", 11 + to);
        let its = |link: &&serde_json::Value| link["endpoint"].as_str().unwrap().starts_with(&to);
        links.as_array().unwrap().iter().find(its).unwrap_or_else(|| panic!("no {self:?} in {links}")).clone()
    }

    /// How many of those that were sent over it, and not answered, were sent again.
    fn sent_again(self, cluster: &Cluster) -> u64 {
        match self {
            Self::Requests { .. } => {
                cluster.look_at_target("db").unwrap()["target"]["counters"]["resent"].as_u64().unwrap()
            }
            Self::Legs { primary, .. } => cluster.counter(primary.into(), "leg.started-again").unwrap(),
        }
    }
}

/// How a link's way over this network is; and whether it is up over another one.
fn way(link: &serde_json::Value, bridge: u8) -> (serde_json::Value, bool) {
    let this = format!("tcp:10.77.{bridge}.");
    let ways = link["ways"].as_array().unwrap().iter();
    let (way, others): (Vec<_>, Vec<_>) = ways.partition(|way| way["to"].as_str().unwrap().starts_with(&this));
    (way[0].clone(), others.iter().any(|way| way["up"] == true))
}

/// Pulls the cables one after the other, each time one that requests go over: the second ones after the first was pulled. If the machine is
/// so slow that this is not so any more, it says so, and nothing is known.
fn pull_in_turn(cluster: &Cluster, ours: &Workload, fio: &mut Fio) -> Result<(), String> {
    let network = cluster.network().unwrap();
    let primary = u8::try_from(cluster.primary("db", 0).unwrap()).unwrap();
    let replica = (primary + 1) % 3;
    let (requests, legs) = (Line::Requests { primary }, Line::Legs { primary, replica });
    let pulls = [
        ("primary", 0, Spot::Node(primary), requests),
        ("client", 1, Spot::Client, requests),
        ("replica", 1, Spot::Node(replica), legs),
    ];
    let began = Instant::now();
    // Before the first look no machine is slow enough for that.
    let late = |why: String| {
        assert!(began.elapsed() >= UNSEEN, "{why}");
        Err(why)
    };
    for (whose, bridge, spot, line) in pulls {
        let before = line.look(cluster);
        if way(&before, bridge).0["up"] != true {
            return late(format!("the {whose}'s cable to network {bridge} is out of use: {before}"));
        }
        let sent_again = line.sent_again(cluster);
        ours.slowest();
        let pulled = Instant::now();
        network.pull(bridge, spot).unwrap();
        let given_up = || {
            let (way, goes_around) = way(&line.look(cluster), bridge);
            Ok(way["up"] == false && way["failures"].as_u64() > Some(0) && goes_around)
        };
        wait_until("the other way is taken", LONG, given_up).unwrap();
        // No failover may come of it, so that one has the time.
        std::thread::sleep(OUT.saturating_sub(pulled.elapsed()));
        ours.progress(200, LONG).unwrap();
        let pause = ours.slowest();
        println!("the {whose}'s cable to network {bridge}: requests waited for {} ms at most", pause.as_millis());
        assert!(pause < NOTICED, "{pause:?}\n{}", cluster.last_words());
        assert!(line.sent_again(cluster) > sent_again, "no request went over it: {before}");
        fio.check().unwrap();
        network.plug(bridge, spot).unwrap();
        let out = pulled.elapsed();
        if out >= UNSEEN {
            return late(format!("the {whose}'s cable was out for {out:?}"));
        }
    }
    let over = all_over(cluster);
    if over.iter().any(|over| over.starts_with("tcp:10.77.1.")) {
        Ok(())
    } else {
        late(format!("all goes over the first network already: {over:?}"))
    }
}

#[test]
fn a_cable_that_is_pulled_costs_no_failover_where_there_is_another_one() {
    let network = Network::with_bridges(3, 2).unwrap();
    if !network.can_be_cut() {
        // Namespaces that root cannot make are an error above; `make cluster` shows what is printed here.
        return println!("not run: not root, so that everything is on loopback, where no cable can be pulled");
    }
    let mut cluster = Cluster::spread(Shape { disk: 256 << 20, ..Shape::default() }, network, &[]).unwrap();
    cluster.create("db", 32, 32).unwrap();
    cluster.create("fio", 32, 8).unwrap();
    let place = cluster.attach("db").unwrap();
    let options = Options { place, export: "db".to_owned(), depth: 16, seed: 7, patience: 2 * LONG };
    let ours = Workload::start(options).unwrap();
    let place = cluster.attach("fio").unwrap();
    let mut fio = Fio::start(cluster.dir(), &place, "fio", Some(400)).unwrap();
    ours.progress(500, LONG).unwrap();
    let first: BTreeSet<String> = (11..14).map(|node| format!("tcp:10.77.0.{node}")).collect();
    assert!(all_over(&cluster).is_subset(&first), "{:?}", all_over(&cluster));

    let epochs = |cluster: &Cluster| -> Vec<serde_json::Value> {
        let shown = |volume: &str| cluster.json(&["volume", "show", volume]).unwrap()["shards"].clone();
        let shards = [shown("db"), shown("fio")];
        shards.iter().flat_map(|all| all.as_array().unwrap().iter().map(|shard| shard["epoch"].clone())).collect()
    };
    let before = epochs(&cluster);
    for left in (0..TRIES).rev() {
        let Err(why) = pull_in_turn(&cluster, &ours, &mut fio) else { break };
        assert!(left > 0, "{why}");
        println!("once more: {why}");
        wait_until("the first network is in use again", FOUND_LATER, || Ok(all_over(&cluster).is_subset(&first)))
            .unwrap();
    }
    // Nodes say that they are there; the first address of the conductor is what they have used.
    cluster.network().unwrap().pull(0, Spot::Conductor).unwrap();
    std::thread::sleep(OUT);
    cluster.wait_alive(3).unwrap();
    cluster.network().unwrap().plug(0, Spot::Conductor).unwrap();
    let back = wait_until("all goes over the first network again", FOUND, || Ok(all_over(&cluster).is_subset(&first)));
    println!("all goes over the first network again after {} s", back.unwrap().as_secs());

    // The switch of the first network fails, for everybody.
    let everybody = || [Spot::Conductor, Spot::Client].into_iter().chain((0..3).map(Spot::Node));
    ours.slowest();
    let pulled = Instant::now();
    everybody().for_each(|spot| cluster.network().unwrap().pull(0, spot).unwrap());
    let around = |over: &String| over.starts_with("tcp:10.77.1.");
    wait_until("all goes over the second network", LONG, || Ok(all_over(&cluster).iter().all(around))).unwrap();
    std::thread::sleep(OUT.saturating_sub(pulled.elapsed()));
    ours.progress(200, LONG).unwrap();
    let pause = ours.slowest();
    println!("everybody's first cable: requests waited for {} ms at most", pause.as_millis());
    assert!(pause < NOTICED, "{pause:?}\n{}", cluster.last_words());
    let second = all_over(&cluster);
    assert!(!second.is_empty() && second.iter().all(around), "{second:?}");
    let ways = cluster.look_at_target("db").unwrap()["target"]["links"][0]["ways"].clone();
    assert_eq!((&ways[0]["up"], &ways[1]["up"]), (&false.into(), &true.into()), "{ways}");
    assert!(ways[0]["failures"].as_u64().unwrap() >= 1, "{ways}");
    everybody().for_each(|spot| cluster.network().unwrap().plug(0, spot).unwrap());

    let events = || cluster.trine(&["events"]).unwrap();
    assert_eq!(
        epochs(&cluster),
        before,
        "no copy was taken for lost, and no primary was followed by another one:\n{}",
        events()
    );
    let (_, done) = ours.stop().unwrap();
    assert_eq!(done.reconnects, 0, "{done:?}");
    println!("{done:?}, and {} rounds of fio", fio.stop().unwrap());
    cluster.wait_healthy("db").unwrap();
    ["db", "fio"].into_iter().for_each(|volume| cluster.detach(volume).unwrap());
    cluster.stop_and_compare().unwrap();
}
