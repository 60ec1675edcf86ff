//! One run of fio over NBD.

use crate::cases::Case;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
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

impl Ran {
    /// What several clients did beside each other. Their percentiles do not add up, and are not known then.
    pub(crate) fn together(all: &[Self]) -> Result<Self> {
        if let [one] = all {
            return Ok(*one);
        }
        let sum = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>();
        let requests = sum(|ran| ran.requests);
        ensure!(requests > 0.0, "no client did anything");
        let mean = sum(|ran| ran.mean * ran.requests) / requests;
        Ok(Self { rate: sum(|ran| ran.rate), requests, mean, p50: f64::NAN, p99: f64::NAN })
    }
}

/// Part of an NBD export.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) uri: String,
    pub(crate) at: u64,
    pub(crate) size: u64,
}

impl Place {
    /// The first `size` bytes of an export on a Unix socket.
    pub(crate) fn unix(socket: &Path, export: &str, size: u64) -> Self {
        Self { uri: format!("nbd+unix:///{export}?socket={}", socket.display()), at: 0, size }
    }
}

/// Writes so many bytes in pieces anywhere, none twice.
pub(crate) fn scatter(place: &Place, bytes: u64, piece: u64) -> Result<()> {
    let mut fio = Command::new("fio");
    fio.args([
        "--name=scatter",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--random_generator=lfsr",
        "--iodepth=32",
        "--thread",
    ])
    .arg(format!("--bs={piece}"))
    .arg(format!("--io_size={bytes}"))
    .arg(format!("--size={}", place.size))
    .arg(format!("--uri={}", place.uri));
    let output = fio.stdin(Stdio::null()).output().context("fio")?;
    ensure!(output.status.success(), "fio ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Drives `case` at these places, which share its depth.
pub(crate) fn run(case: &Case, places: &[Place], time: Duration, pin: bool) -> Result<Ran> {
    let mut fio = Command::new("fio");
    let depth = (case.depth / places.len()).max(1);
    fio.args(["--output-format=json", "--ioengine=nbd", "--time_based", "--group_reporting", "--thread"])
        .arg(format!("--rw={}", case.pattern))
        .arg(format!("--bs={}", case.bytes))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .args(["--rwmixread=70", "--randrepeat=0", "--norandommap", "--refill_buffers"])
        .args(case.flush.then_some("--fsync=1"))
        .args(pin.then_some("--cpus_allowed=0"));
    for (n, place) in places.iter().enumerate() {
        fio.arg(format!("--name=v{n}")).arg(format!("--uri={}", place.uri));
        fio.arg(format!("--offset={}", place.at)).arg(format!("--size={}", place.size));
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
