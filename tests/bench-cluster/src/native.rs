//! One run of `trine bench`: the volume client without anything in front of it.

use crate::cases::Case;
use crate::fio::Ran;
use anyhow::{Context, Result};
use cluster::Cluster;
use serde_json::Value;
use std::time::Duration;

/// The volume, which nobody else has: a bench attaches it.
pub(crate) const VOLUME: &str = "native";

/// Drives `case` at the volume.
pub(crate) fn run(cluster: &Cluster, case: &Case, time: Duration) -> Result<Ran> {
    let (bytes, depth, time) = (case.bytes.to_string(), case.depth.to_string(), format!("{}ms", time.as_millis()));
    let mut args = vec!["bench", VOLUME, "-o", "json", "--pattern", case.pattern];
    args.extend(["--size", &bytes, "--depth", &depth, "--time", &time]);
    if case.writes() {
        args.push("--overwrite");
    }
    if case.flush {
        args.extend(["--flush", "1"]);
    }
    ran(&serde_json::from_str(&cluster.trine(&args)?)?)
}

fn ran(report: &Value) -> Result<Ran> {
    let number = |value: &Value| value.as_f64().with_context(|| format!("a number in {report}"));
    // Of what there was more of: where it reads and writes, seven of ten read.
    let most = if report["reads"].is_null() { &report["writes"] } else { &report["reads"] };
    Ok(Ran {
        rate: number(&report["rate"])?,
        requests: number(&report["requests"])?,
        mean: number(&most["mean"])?,
        p50: number(&most["p50"])?,
        p99: number(&most["p99"])?,
    })
}
