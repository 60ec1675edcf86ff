//! One write, followed through the stages that `docs/architecture.md` lists.
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

use cluster::nbd::{Command, Nbd};
use cluster::{Cluster, LONG, Shape};
use serde_json::Value;

/// As the architecture page has them.
const STAGES: [&str; 8] =
    ["received", "locked", "stamped", "forwarded", "local.started", "first.done", "last.done", "replied"];
/// WRITE on the wire.
const WRITE: u64 = 17;

fn writes(look: &Value) -> Vec<Vec<(String, u64)>> {
    let traces =
        look["inside"]["reactors"].as_array().unwrap().iter().flat_map(|reactor| reactor["traces"].as_array().unwrap());
    let stages = |trace: &Value| {
        let stages = trace["stages"].as_array().unwrap().iter();
        stages.map(|s| (s["stage"].as_str().unwrap().to_owned(), s["at_ns"].as_u64().unwrap())).collect()
    };
    traces.filter(|trace| trace["op"] == WRITE).map(stages).collect()
}

#[test]
fn one_write_of_4_kib_passes_the_documented_stages_in_order() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 16).unwrap();
    let place = cluster.attach("db").unwrap();
    let primary = cluster.primary("db", 0).unwrap();
    assert!(writes(&cluster.look(primary).unwrap()).is_empty());
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    nbd.call(&Command::Write { offset: 8192, bytes: vec![5; 4096] }, LONG).unwrap().unwrap();
    let traced = writes(&cluster.look(primary).unwrap());
    assert_eq!(traced.len(), 1, "{traced:?}");
    let names: Vec<&str> = traced[0].iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, STAGES);
    assert!(traced[0].is_sorted_by_key(|(_, at)| *at), "{traced:?}");
    let start = traced[0][0].1;
    let line: Vec<String> = traced[0].iter().map(|(name, at)| format!("{name} +{} µs", (at - start) / 1000)).collect();
    println!("{}", line.join(", "));
    for node in (0..3).filter(|node| *node != primary) {
        assert!(writes(&cluster.look(node).unwrap()).is_empty(), "only the primary has it as a client's write");
    }
    // And the page says the same.
    let page = include_str!("../../../docs/architecture.md");
    let at = STAGES.map(|stage| page.find(&format!("**{stage}**")).unwrap_or_else(|| panic!("the page lacks {stage}")));
    assert!(at.is_sorted(), "the page lists them in another order");
}

#[test]
fn attached_shows_where_requests_spend_their_time_also_in_the_node() {
    let mut cluster = Cluster::start(Shape::default()).unwrap();
    cluster.create("db", 16, 16).unwrap();
    let place = cluster.attach("db").unwrap();
    let mut nbd = Nbd::connect(&place, "db").unwrap();
    for n in 0..20 {
        nbd.call(&Command::Write { offset: n * 4096, bytes: vec![5; 4096] }, LONG).unwrap().unwrap();
    }
    let attached = cluster.json(&["attached", "--trace"]).unwrap();
    let steps = attached[0]["steps"].as_array().unwrap();
    let step = |at: &str, to: &str| {
        let found = steps.iter().find(|step| {
            (step["op"].as_str(), step["at"].as_str(), step["to"].as_str()) == (Some("write"), Some(at), Some(to))
        });
        let found = found.unwrap_or_else(|| panic!("no {at} to {to}: {steps:?}"));
        assert_eq!(found["requests"], 20, "{found}");
        found["latency"]["mean"].as_f64().unwrap()
    };
    // The whole time away is what the node had it, step by step, and the way.
    let node: f64 = STAGES[1..].iter().map(|to| step("node", to)).sum();
    let (away, way) = (step("target", "replied"), step("way", "replied"));
    assert!((away - way - node).abs() < 1.0, "{away} µs away, {way} on the way, {node} in the node");
    assert!(cluster.json(&["attached"]).unwrap()[0].get("steps").is_none());
    let text = cluster.trine(&["attached", "--trace"]).unwrap();
    assert!(text.contains("stamped to forwarded"), "{text}");
}
