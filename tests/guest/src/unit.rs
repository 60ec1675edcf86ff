//! `unit`: builds the tests of every package but the cluster's, and runs their programs side by side, as many as there are processors.
//! `unit cluster`: the same with the cluster's tests, which start processes, one test of a program at a time.
//!
//! cargo runs programs one after the other; most wait for a disk or for time, so half of a small machine would be idle. Of a unit test's
//! program that passes the summary is printed, of any other all that it said.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The package whose tests start clusters of processes, and where these are.
const CLUSTER: &str = "cluster";
const CLUSTER_TESTS: &str = "tests/cluster/tests";

/// Programs that take longest, by the names of their tests. They begin first: at the end one would run alone, beside an idle processor.
const LONG: [&str; 7] = ["rot", "acknowledged_writes", "recover", "etcd", "disks", "adopt", "random_commands"];

/// What is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    Unit,
    Cluster,
}

impl Suite {
    /// What cargo builds: the tests of all packages but the one whose tests start clusters of processes, or all that are named as one of that:
    /// asked for that package alone, cargo would build its dependencies with other features, so anew.
    fn targets(self) -> Result<Vec<String>> {
        let mut targets = ["--quiet", "--locked", "--workspace"].map(str::to_owned).to_vec();
        match self {
            Self::Unit => targets.extend(["--exclude", CLUSTER].map(str::to_owned)),
            Self::Cluster => {
                targets.push("--lib".to_owned());
                for test in fs::read_dir(CLUSTER_TESTS).with_context(|| format!("cannot read {CLUSTER_TESTS}"))? {
                    let path = test?.path();
                    if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
                        let name = path.file_stem().and_then(OsStr::to_str).context("a test without a name")?;
                        targets.extend(["--test".to_owned(), name.to_owned()]);
                    }
                }
            }
        }
        Ok(targets)
    }

    /// Whether a program of this package is one of the suite's.
    fn has(self, package: &Path) -> bool {
        (self == Self::Cluster) == package.ends_with("tests/cluster")
    }

    /// What a program is told. The cluster's tests say what they measured, and load both processors with two at a time.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Unit => &[],
            Self::Cluster => &["--nocapture", "--test-threads", "1"],
        }
    }
}

/// One program, or cargo itself for the examples in the documentation.
struct Job {
    name: String,
    /// When it begins: its place among `LONG`, or behind them.
    turn: usize,
    command: Command,
}

fn main() -> ExitCode {
    let suite = match std::env::args().nth(1).as_deref() {
        None => Suite::Unit,
        Some("cluster") => Suite::Cluster,
        Some(other) => {
            eprintln!("unit: there is no suite {other}: nothing for the unit tests, or cluster");
            return ExitCode::from(2);
        }
    };
    match act(suite) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("unit: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act(suite: Suite) -> Result<bool> {
    let mut jobs = build(suite)?;
    ensure!(!jobs.is_empty(), "cargo has built no test");
    if suite == Suite::Unit {
        let mut examples = Command::new("cargo");
        examples.arg("test").args(suite.targets()?).arg("--doc");
        jobs.push_front(Job { name: "examples in the documentation".to_owned(), turn: 0, command: examples });
    }
    let workers = thread::available_parallelism().map_or(2, usize::from);
    println!("unit: {} programs, {workers} at a time", jobs.len());
    let (jobs, failed) = (Mutex::new(jobs), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(job) = next() {
                    if !run(job, suite) {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("unit: {failed} programs failed");
    Ok(failed == 0)
}

/// The test programs: what takes long first, then in cargo's order.
fn build(suite: Suite) -> Result<VecDeque<Job>> {
    let mut cargo = Command::new("cargo");
    cargo.arg("test").args(suite.targets()?).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut jobs = Vec::new();
    for line in BufReader::new(output).lines() {
        let message: Value = serde_json::from_str(&line?).context("cargo says something that is no message")?;
        let Some(program) = message["executable"].as_str().filter(|_| message["profile"]["test"] == true) else {
            continue;
        };
        let manifest = PathBuf::from(message["manifest_path"].as_str().context("an artifact of no package")?);
        let package = manifest.parent().context("a manifest without a directory")?;
        if !suite.has(package) {
            continue;
        }
        let target = &message["target"];
        let name = format!("{} ({})", target["src_path"].as_str().unwrap_or(program), target["name"]);
        let mut command = Command::new(program);
        // As cargo runs it.
        command.args(suite.arguments()).current_dir(package).env("CARGO_MANIFEST_DIR", package);
        let turn = LONG.iter().position(|long| target["name"] == *long).unwrap_or(LONG.len());
        jobs.push(Job { name, turn, command });
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the tests cannot be built ({status})");
    }
    jobs.sort_by_key(|job| job.turn);
    Ok(jobs.into())
}

/// Whether it passed.
fn run(mut job: Job, suite: Suite) -> bool {
    let begin = Instant::now();
    let output = match job.command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            println!("{}: cannot be started: {error}", job.name);
            return false;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let seconds = begin.elapsed().as_secs_f64();
    if output.status.success() {
        if suite == Suite::Cluster {
            println!("{said}{}: passed in {seconds:.1} s", job.name);
            return true;
        }
        for summary in said.lines().filter(|line| line.starts_with("test result: ")) {
            println!("{summary} ({seconds:.1} s: {})", job.name);
        }
        return true;
    }
    println!(
        "{}: FAILED ({}) after {seconds:.1} s\n{said}\n{}",
        job.name,
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}
