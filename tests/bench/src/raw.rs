//! The file, and fio on it: what the disk gives without a store.

use anyhow::{Context, bail};
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A file that is gone when this is.
pub(crate) struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is in the build directory; what cannot be removed goes with that.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Scratch {
    /// Every byte of it is written: a file that is only allocated is slower at first, for a store and for fio.
    pub(crate) fn new(path: &Path, bytes: u64) -> anyhow::Result<Self> {
        let _ = std::fs::remove_file(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        let this = Self(path.to_path_buf());
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("{}", path.display()))?;
        let job = Job { write: "write", block: 1 << 20, depth: 4, durable: false };
        run(path, &job, 0, bytes, &["--end_fsync=1".into(), "--zero_buffers".into()])?;
        Ok(this)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// What fio is to do.
pub(crate) struct Job {
    /// fio's name for the order.
    pub(crate) write: &'static str,
    pub(crate) block: u64,
    pub(crate) depth: usize,
    /// O_DSYNC, as the store's RWF_DSYNC.
    pub(crate) durable: bool,
}

/// What fio says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Microseconds of CPU per request.
    pub(crate) cpu: f64,
    /// Microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// A part of the file, for so long.
pub(crate) fn timed(path: &Path, job: &Job, from: u64, bytes: u64, time: Duration) -> anyhow::Result<Raw> {
    run(path, job, from, bytes, &["--time_based".into(), format!("--runtime={}", time.as_secs())])
}

fn run(path: &Path, job: &Job, from: u64, bytes: u64, more: &[String]) -> anyhow::Result<Raw> {
    let Job { write, block, depth, durable } = job;
    let output = Command::new("fio")
        .args(["--name=raw", "--ioengine=io_uring", "--direct=1", "--norandommap", "--randrepeat=0"])
        .args(["--output-format=json", "--group_reporting"])
        .arg(format!("--filename={}", path.display()))
        .args([format!("--rw={write}"), format!("--bs={block}"), format!("--iodepth={depth}")])
        .args([format!("--offset={from}"), format!("--size={bytes}")])
        .args(durable.then_some("--sync=dsync"))
        .args(more)
        .output()
        .context("fio does not start: tools/setup.sh installs it")?;
    if !output.status.success() {
        bail!("fio failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // Notes may stand before the object.
    let start = text.find('{').context("fio printed no JSON")?;
    let all: Value = serde_json::from_str(&text[start..]).context("fio's output")?;
    let job = &all["jobs"][0];
    let number = |value: &Value| value.as_f64().with_context(|| format!("fio's output lacks a number: {job}"));
    let rate = number(&job["write"]["iops"])?;
    let percent = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
    let percentile = |name: &str| number(&job["write"]["clat_ns"]["percentile"][name]).map(|ns| ns / 1000.0);
    Ok(Raw { rate, cpu: percent / 100.0 / rate * 1e6, p50: percentile("50.000000")?, p99: percentile("99.000000")? })
}
