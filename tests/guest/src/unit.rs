//! `unit`: builds the tests of every package but the cluster's, and runs their programs side by side, as many as there are processors.
//!
//! cargo runs them one after the other; most wait for a disk or for time, so half of a small machine would be idle. Of a program that
//! passes its summary is printed, of one that fails all that it said.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Which packages: all but the one whose tests start clusters of processes, a suite of its own.
const PACKAGES: [&str; 5] = ["--quiet", "--locked", "--workspace", "--exclude", "cluster"];

/// One program, or cargo itself for the examples in the documentation.
struct Job {
    name: String,
    command: Command,
}

fn main() -> ExitCode {
    match act() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("unit: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act() -> Result<bool> {
    let mut jobs = build()?;
    ensure!(!jobs.is_empty(), "cargo has built no test");
    let mut examples = Command::new("cargo");
    examples.arg("test").args(PACKAGES).arg("--doc");
    jobs.push_front(Job { name: "examples in the documentation".to_owned(), command: examples });
    let workers = thread::available_parallelism().map_or(2, usize::from);
    println!("unit: {} programs, {workers} at a time", jobs.len());
    let (jobs, failed) = (Mutex::new(jobs), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(job) = next() {
                    if !run(job) {
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

/// The test programs, in cargo's order.
fn build() -> Result<VecDeque<Job>> {
    let mut cargo = Command::new("cargo");
    cargo.arg("test").args(PACKAGES).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut jobs = VecDeque::new();
    for line in BufReader::new(output).lines() {
        let message: Value = serde_json::from_str(&line?).context("cargo says something that is no message")?;
        let Some(program) = message["executable"].as_str().filter(|_| message["profile"]["test"] == true) else {
            continue;
        };
        let manifest = PathBuf::from(message["manifest_path"].as_str().context("an artifact of no package")?);
        let package = manifest.parent().context("a manifest without a directory")?;
        let target = &message["target"];
        let name = format!("{} ({})", target["src_path"].as_str().unwrap_or(program), target["name"]);
        let mut command = Command::new(program);
        // As cargo runs it.
        command.current_dir(package).env("CARGO_MANIFEST_DIR", package);
        jobs.push_back(Job { name, command });
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the tests cannot be built ({status})");
    }
    Ok(jobs)
}

/// Whether it passed.
fn run(mut job: Job) -> bool {
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
