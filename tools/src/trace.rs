//! Where requests spend their time: the positions that a target keeps of those that finished last, and, of nodes on this machine, what
//! happened to the same requests there. `docs/architecture.md` says where in the code each position is.
//!
//! ```text
//!   target   submitted ─ sent ─────────────────────────────────────────────── replied ─ completed
//!   node                        received ─ locked ─ stamped ─ … ─ replied
//!                         └──────── on the way, there and back ────────┘
//! ```
//!
//! Only differences of one clock are taken: what is on the way is what the node does not account for.

use crate::config::ClusterArgs;
use crate::output::{Outcome, note, print, table};
use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use node_daemon::{TraceLook, ask_for_look};
use node_protocol::op;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use target_daemon::bench::{Histogram, Latency};
use target_daemon::{Place, TraceView, look};
use wire::Op;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// Where nodes that are no development cluster's have their control sockets.
const RUN: &str = "/run/trine";
/// Socket files that are looked at: more nodes than one machine has.
const MOST: usize = 64;

/// From one position to the next, over the requests of one kind that finished last.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Step {
    /// `read`, `write`, …
    op: &'static str,
    /// `target` or `node`, or `way`: between the two.
    at: &'static str,
    from: String,
    to: String,
    requests: u64,
    /// In microseconds.
    latency: Latency,
}

/// Control sockets of nodes on this machine.
pub(crate) fn sockets(cluster: &ClusterArgs) -> Outcome<Vec<PathBuf>> {
    let below = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let dev = below(&cluster.dir.path()?).map(|dir| dir.join("control.sock")).collect::<Vec<_>>();
    let run = below(Path::new(RUN)).filter(|path| path.extension().is_some_and(|ext| ext == "sock"));
    Ok(dev.into_iter().chain(run).filter(|path| path.exists()).take(MOST).collect())
}

/// What these nodes say of requests that finished last. Nodes that do not answer are left out.
pub(crate) fn served(sockets: &[PathBuf]) -> Vec<TraceLook> {
    let looks = sockets.iter().filter_map(|path| ask_for_look(path).ok());
    looks.flat_map(|look| look.reactors).flat_map(|reactor| reactor.traces).collect()
}

/// Shows the steps of one target's requests again and again, until it has gone or this process is told to end.
pub(crate) fn follow(place: &Place, sockets: &[PathBuf]) -> Outcome {
    // An attach has blocked them.
    let stops = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    stops.thread_unblock().context("cannot unblock signals")?;
    loop {
        std::thread::sleep(EVERY);
        let Ok(look) = look(place) else {
            note(format_args!("trine: {} is not attached any more", place.volume()));
            return Ok(());
        };
        print(&people(&steps(&look.target.traces, &served(sockets))))?;
    }
}

/// The steps, in the order in which they are taken, by kind of request.
pub(crate) fn steps(target: &[TraceView], nodes: &[TraceLook]) -> Vec<Step> {
    let mut all: Vec<(Step, Histogram)> = Vec::new();
    let mut add = |op: u8, at: &'static str, from: &str, to: &str, nanos: u64| {
        let found = all
            .iter_mut()
            .find(|(step, _)| (step.op, step.at, step.from.as_str(), step.to.as_str()) == (name(op), at, from, to));
        if let Some((_, histogram)) = found {
            return histogram.add(nanos);
        }
        let mut histogram = Histogram::new();
        histogram.add(nanos);
        let (from, to) = (from.to_owned(), to.to_owned());
        let step = Step { op: name(op), at, from, to, requests: 0, latency: histogram.latency() };
        all.push((step, histogram));
    };
    for trace in target {
        for two in trace.stages.windows(2) {
            let [(from, began), (to, ended)] = two else { continue };
            add(trace.op, "target", from, to, ended.saturating_sub(*began));
        }
        let Some(away) = away(trace) else { continue };
        // The client's number of it is not another client's: what does not fit into the time that it was away was not the same request.
        let same =
            |node: &&TraceLook| (node.op, node.sequence) == (trace.op, trace.sequence) && residence(node) <= away;
        let Some(node) = nodes.iter().find(same) else { continue };
        add(trace.op, "way", "sent", "replied", away - residence(node));
        for two in node.stages.windows(2) {
            let [from, to] = two else { continue };
            add(trace.op, "node", &from.stage, &to.stage, to.at_ns.saturating_sub(from.at_ns));
        }
    }
    let mut steps: Vec<Step> = all
        .into_iter()
        .map(|(step, histogram)| Step { requests: histogram.count(), latency: histogram.latency(), ..step })
        .collect();
    steps.sort_by_key(|step| step.op);
    steps
}

/// How long a request was away from its target.
fn away(trace: &TraceView) -> Option<u64> {
    let at = |name: &str| trace.stages.iter().find(|(stage, _)| stage == name).map(|(_, at)| *at);
    at("replied")?.checked_sub(at("sent")?)
}

/// How long a node had it.
fn residence(trace: &TraceLook) -> u64 {
    let at = |stage: Option<&node_daemon::StageLook>| stage.map_or(0, |stage| stage.at_ns);
    at(trace.stages.last()).saturating_sub(at(trace.stages.first()))
}

fn name(op: u8) -> &'static str {
    match Op(op) {
        op::READ => "read",
        op::EXTENTS => "extents",
        op::WRITE => "write",
        op::WRITE_ZEROES => "zero",
        op::DISCARD => "discard",
        op::FLUSH => "flush",
        // Answered by the target itself.
        _ => "other",
    }
}

/// As a table, in microseconds.
pub(crate) fn people(steps: &[Step]) -> String {
    if steps.is_empty() {
        return "no request has finished yet\n".to_owned();
    }
    let rows = steps.iter().map(|step| {
        let whole = |micros: f64| format!("{micros:.0}");
        let Latency { mean, p50, p99, max, .. } = step.latency;
        let taken = format!("{} to {}", step.from, step.to);
        let what = [step.op.to_owned(), step.at.to_owned(), taken, step.requests.to_string()];
        what.into_iter().chain([mean, p50, p99, max].map(whole)).collect()
    });
    table(&["OP", "AT", "µs", "REQUESTS", "MEAN", "P50", "P99", "MAX"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_daemon::StageLook;

    fn target(sequence: u64, at: [u64; 4]) -> TraceView {
        let names = ["submitted", "sent", "replied", "completed"];
        let stages = names.iter().zip(at).map(|(name, at)| ((*name).to_owned(), at * 1000)).collect();
        TraceView { sequence, op: 17, offset: 0, len: 4096, stages }
    }

    fn node(sequence: u64, at: [u64; 2]) -> TraceLook {
        let stages = ["received", "replied"].iter().zip(at);
        let stages = stages.map(|(stage, at)| StageLook { stage: (*stage).to_owned(), at_ns: at * 1000 }).collect();
        TraceLook { sequence, op: 17, stages }
    }

    #[test]
    fn what_the_node_does_not_account_for_was_on_the_way() {
        // Another host's clock is another clock.
        let steps = steps(&[target(7, [0, 10, 110, 115])], &[node(8, [0, 1]), node(7, [9_000, 9_060])]);
        let said: Vec<(&str, &str, f64)> =
            steps.iter().map(|step| (step.at, step.to.as_str(), step.latency.max.round())).collect();
        let expected = [
            ("target", "sent", 10.0),
            ("target", "replied", 100.0),
            ("target", "completed", 5.0),
            ("way", "replied", 40.0),
        ];
        assert_eq!(said[..4], expected);
        assert_eq!(said[4], ("node", "replied", 60.0));
        assert!(people(&steps).contains("sent to replied"));
    }

    #[test]
    fn a_request_of_another_client_with_the_same_number_is_not_taken_for_ours() {
        let steps = steps(&[target(7, [0, 10, 110, 115])], &[node(7, [0, 101])]);
        assert!(steps.iter().all(|step| step.at == "target"), "{steps:?}");
    }
}
