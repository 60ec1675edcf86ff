//! Two networks side by side, everybody with a cable to each: one that is pulled costs the time in which it is noticed, and nothing else.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::{Cluster, Fio, LONG, Network, Options, Shape, Spot, Workload, wait_until};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// 1.2 s of silence, a connection, and what a machine that does other things takes beside.
const NOTICED: Duration = Duration::from_millis(4000);
/// Of a cable that nothing went over nobody waits for so long.
const IN_USE: Duration = Duration::from_millis(700);
/// The first look at a better way is after 30 s.
const FOUND: Duration = Duration::from_secs(45);

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

#[test]
fn a_cable_that_is_pulled_costs_no_failover_where_there_is_another_one() {
    let network = Network::with_bridges(3, 2).unwrap();
    if !network.can_be_cut() {
        return println!("not run: network namespaces take root");
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
    let primary = u8::try_from(cluster.primary("db", 0).unwrap()).unwrap();
    let (primary, replica) = (Spot::Node(primary), Spot::Node((primary + 1) % 3));
    // Each time the one that the requests go over: the second ones after the first was pulled.
    let pulls = [("primary", 0, primary), ("client", 1, Spot::Client), ("replica", 1, replica)];
    for (whose, bridge, spot) in pulls {
        ours.slowest();
        let pulled = Instant::now();
        cluster.network().unwrap().pull(bridge, spot).unwrap();
        std::thread::sleep(Duration::from_secs(6));
        ours.progress(200, LONG).unwrap();
        let pause = ours.slowest();
        println!("the {whose}'s cable to network {bridge}: requests waited for {} ms at most", pause.as_millis());
        assert!((IN_USE..NOTICED).contains(&pause), "{pause:?}\n{}", cluster.last_words());
        fio.check().unwrap();
        // It is back before all that goes another way now has looked whether this one leads there.
        cluster.network().unwrap().plug(bridge, spot).unwrap();
        assert!(pulled.elapsed() < Duration::from_secs(25), "{:?}", pulled.elapsed());
    }
    // Nodes say that they are there; the first address of the conductor is what they have used.
    cluster.network().unwrap().pull(0, Spot::Conductor).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    cluster.wait_alive(3).unwrap();
    cluster.network().unwrap().plug(0, Spot::Conductor).unwrap();
    let second = all_over(&cluster);
    assert!(second.iter().any(|over| over.starts_with("tcp:10.77.1.")), "{second:?}");
    let back = wait_until("all goes over the first network again", FOUND, || Ok(all_over(&cluster).is_subset(&first)));
    println!("all goes over the first network again after {} s", back.unwrap().as_secs());

    // The switch of the first network fails, for everybody.
    let everybody = || [Spot::Conductor, Spot::Client].into_iter().chain((0..3).map(Spot::Node));
    ours.slowest();
    everybody().for_each(|spot| cluster.network().unwrap().pull(0, spot).unwrap());
    std::thread::sleep(Duration::from_secs(6));
    ours.progress(200, LONG).unwrap();
    let pause = ours.slowest();
    println!("everybody's first cable: requests waited for {} ms at most", pause.as_millis());
    assert!(pause < NOTICED, "{pause:?}\n{}", cluster.last_words());
    let second = all_over(&cluster);
    assert!(second.iter().all(|over| over.starts_with("tcp:10.77.1.")), "{second:?}");
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
