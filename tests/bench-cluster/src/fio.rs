//! One run of fio over NBD.

use crate::cases::Case;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What came of it.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// Requests a second, reads and writes.
    pub(crate) rate: f64,
    /// Requests in all.
    pub(crate) requests: f64,
    /// Microseconds: mean, and percentiles of what there was more of.
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Drives `case` at these places, which share its depth.
pub(crate) fn run(case: &Case, places: &[String], size: u64, time: Duration, pin: bool) -> Result<Ran> {
    let mut fio = Command::new("fio");
    let depth = (case.depth / places.len()).max(1);
    fio.args(["--output-format=json", "--ioengine=nbd", "--time_based", "--group_reporting", "--thread"])
        .arg(format!("--rw={}", case.pattern))
        .arg(format!("--bs={}", case.bytes))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .arg(format!("--size={size}"))
        .args(["--rwmixread=70", "--randrepeat=0", "--norandommap", "--refill_buffers"])
        .args(case.flush.then_some("--fsync=1"))
        .args(pin.then_some("--cpus_allowed=0"));
    for (n, place) in places.iter().enumerate() {
        fio.arg(format!("--name=v{n}")).arg(format!("--uri={place}"));
    }
    let output = fio.stdin(Stdio::null()).output().context("fio")?;
    ensure!(output.status.success(), "fio ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    // What connects says so before the report.
    let report: Value = serde_json::from_str(&text[text.find('{').context("fio printed no report")?..])?;
    let job = &report["jobs"][0];
    let sides = ["read", "write"].map(|side| &job[side]);
    let sum = |field: &str| sides.iter().filter_map(|side| side[field].as_f64()).sum::<f64>();
    let requests = sum("total_ios");
    ensure!(requests > 0.0 && job["error"] == 0, "fio did nothing: {}", job["error"]);
    let most = if job["read"]["total_ios"].as_f64() > job["write"]["total_ios"].as_f64() { sides[0] } else { sides[1] };
    let micros = |value: &Value| value.as_f64().unwrap_or(f64::NAN) / 1000.0;
    Ok(Ran {
        rate: sum("iops"),
        requests,
        mean: micros(&most["lat_ns"]["mean"]),
        p50: micros(&most["clat_ns"]["percentile"]["50.000000"]),
        p99: micros(&most["clat_ns"]["percentile"]["99.000000"]),
    })
}
