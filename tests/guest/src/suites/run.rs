//! One suite from start to end: its process group, its log, its time.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::budget::Suite;
use crate::report::minutes;

/// Lines of a failed suite's output that are printed.
const TAIL_LINES: usize = 80;
/// Lines that say what failed, and how much of each, that are repeated below the table.
const FAILURES: usize = 12;
const FAILURE_CHARS: usize = 300;
/// How often a suite that runs on and on says that it does.
const PROGRESS: Duration = Duration::from_secs(60);
/// How often the runner looks whether a suite has ended; short against any suite.
const LOOK: Duration = Duration::from_millis(50);
/// How long the end of a suite's output may lag behind the end of its processes.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How a suite ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) result: Outcome,
    pub(crate) used: Duration,
    /// Tests that cargo reported, if any.
    pub(crate) tests: Tests,
    /// The lines of its output that say what failed, if it did.
    pub(crate) failures: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    /// Killed at two and a half times its budget.
    OverBudget,
}

/// The run was stopped from outside (Ctrl-C, a terminated CI job); the suite's processes are gone.
pub(crate) struct Interrupted;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

pub(crate) struct Runner<'a> {
    root: &'a Path,
    logs: &'a Path,
    stops: SigSet,
    stopped: SignalFd,
}

impl<'a> Runner<'a> {
    /// From here on a request to stop is noticed between two looks, so that no suite outlives its runner.
    pub(crate) fn new(root: &'a Path, logs: &'a Path) -> Result<Self> {
        let stops = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        stops.thread_block()?;
        let stopped = SignalFd::with_flags(&stops, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { root, logs, stops, stopped })
    }

    pub(crate) fn run(&mut self, suite: &Suite) -> Result<Result<Verdict, Interrupted>> {
        let log = self.logs.join(format!("{}.log", suite.name));
        println!("{}: {}, planned {}: {}", suite.name, suite.place.phrase(), minutes(suite.planned()), suite.run);
        let begin = Instant::now();
        let mut running = self.start(suite, log.clone())?;
        let mut progress = begin + PROGRESS;
        let result = loop {
            if let Some(status) = running.child.try_wait()? {
                break if status.success() { Outcome::Passed } else { Outcome::Failed(reason(status)) };
            }
            if begin.elapsed() >= suite.killed_at() {
                break Outcome::OverBudget;
            }
            if self.stopped.read_signal()?.is_some() {
                running.end();
                return Ok(Err(Interrupted));
            }
            if Instant::now() >= progress {
                progress += PROGRESS;
                println!("{}: {} so far: {}", suite.name, minutes(begin.elapsed()), running.last_line());
            }
            thread::sleep(LOOK);
        };
        let used = begin.elapsed();
        running.end();
        let heard = running.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = if result == Outcome::Passed { Vec::new() } else { heard.failures.clone() };
        let verdict = Verdict { result, used, tests: heard.tests, failures };
        match &verdict.result {
            Outcome::Passed => println!("{}: passed in {}", suite.name, minutes(used)),
            bad => {
                for line in &heard.tail {
                    println!("{}| {line}", suite.name);
                }
                let what = match bad {
                    Outcome::OverBudget => "killed far over its budget".to_owned(),
                    Outcome::Failed(reason) => format!("FAILED, {reason}"),
                    Outcome::Passed => String::new(),
                };
                println!("{}: {what} after {}; the whole output: {}", suite.name, minutes(used), log.display());
            }
        }
        Ok(Ok(verdict))
    }

    fn start(&self, suite: &Suite, log: PathBuf) -> Result<Running> {
        let (output, write_end) = io::pipe().context("cannot make a pipe")?;
        let mut command = Command::new("bash");
        command.args(["-c", &suite.run]).current_dir(self.root).process_group(0);
        command.stdin(Stdio::null()).stdout(write_end.try_clone()?).stderr(write_end);
        // A child inherits the mask: it shall be stoppable in the ordinary way.
        self.stops.thread_unblock()?;
        let child = command.spawn().context("cannot start bash");
        self.stops.thread_block()?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let listener = listen(output, file, Arc::clone(&heard));
        // The command holds the pipe's write ends: only without it can the output end.
        drop(command);
        Ok(Running { child: child?, heard, listener })
    }
}

struct Running {
    child: Child,
    heard: Arc<Mutex<Heard>>,
    listener: JoinHandle<()>,
}

impl Running {
    /// Kills what is left of the suite's process group, and takes in the rest of its output.
    fn end(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // Gone already, when everything ended in good order.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.child.wait();
        let until = Instant::now() + LAST_WORDS;
        while !self.listener.is_finished() && Instant::now() < until {
            thread::sleep(LOOK);
        }
    }

    fn last_line(&self) -> String {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.tail.iter().rev().find(|line| !line.trim().is_empty()).cloned().unwrap_or_default()
    }
}

/// What a suite has said so far.
#[derive(Default)]
struct Heard {
    tail: VecDeque<String>,
    tests: Tests,
    /// The first lines that say what failed.
    failures: Vec<String>,
    /// The line before was the place of a panic: this one is its message.
    panicked: bool,
}

impl Heard {
    fn line(&mut self, line: String) {
        self.tests.count(&line);
        if (self.panicked || says_failure(&line)) && self.failures.len() < FAILURES {
            self.failures.push(line.chars().take(FAILURE_CHARS).collect());
        }
        self.panicked = line.contains("' panicked at ") || line.contains(") panicked at ");
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }
}

/// Whether a line names what failed: of cargo's harness, rustc, make, or a suite of ours.
fn says_failure(line: &str) -> bool {
    line.contains(" panicked at ")
        || (line.starts_with("test ") && line.ends_with("FAILED"))
        || line.starts_with("error")
        || line.starts_with("FAILED")
        || line.contains(": FAILED")
}

impl Tests {
    /// Adds what a summary line of cargo's test harness says.
    fn count(&mut self, line: &str) {
        let Some((_, summary)) = line.split_once("test result: ") else { return };
        let number = |what: &str| -> u64 {
            let words: Vec<&str> = summary.split([' ', ';']).filter(|word| !word.is_empty()).collect();
            let at = words.iter().position(|word| *word == what);
            at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok()).unwrap_or(0)
        };
        self.passed += number("passed");
        self.failed += number("failed");
    }
}

fn listen(output: PipeReader, mut log: File, heard: Arc<Mutex<Heard>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut raw = Vec::new();
        while reader.read_until(b'\n', &mut raw).is_ok_and(|length| length > 0) {
            // A full disk must not stop the suite; what was heard is still printed.
            let _ = log.write_all(&raw);
            let line = String::from_utf8_lossy(&raw).trim_end_matches(['\r', '\n']).to_owned();
            raw.clear();
            heard.lock().unwrap_or_else(PoisonError::into_inner).line(line);
        }
    })
}

fn reason(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for no known reason".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Place;

    fn suite(minutes: f64, run: &str) -> Suite {
        Suite { name: "x".into(), place: Place::Host, minutes, run: run.into() }
    }

    fn verdict(name: &str, minutes: f64, command: &str) -> (Verdict, String) {
        let dir = std::env::temp_dir().join(format!("suites-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let verdict = Runner::new(&dir, &dir).expect("a runner").run(&suite(minutes, command)).expect("a run");
        let log = std::fs::read_to_string(dir.join("x.log")).expect("a log");
        std::fs::remove_dir_all(&dir).expect("removed");
        (verdict.unwrap_or_else(|_| panic!("interrupted")), log)
    }

    #[test]
    fn a_suite_passes_or_fails_by_its_exit_status_and_both_outputs_are_kept() {
        let (passed, log) = verdict("ok", 1.0, "echo out; echo err >&2");
        assert_eq!(passed.result, Outcome::Passed);
        assert_eq!(log, "out\nerr\n");
        assert_eq!(verdict("bad", 1.0, "exit 3").0.result, Outcome::Failed("exit status 3".into()));
    }

    #[test]
    fn far_over_its_budget_a_suite_is_killed_with_all_it_started() {
        let (late, log) = verdict("late", 0.01, "sleep 1000 & echo $!; wait");
        assert_eq!(late.result, Outcome::OverBudget);
        assert!(late.used >= Duration::from_millis(1500) && late.used < Duration::from_secs(10));
        let state = std::fs::read_to_string(format!("/proc/{}/stat", log.trim())).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "its child lives: {state}");
    }

    #[test]
    fn what_failed_is_kept_with_the_message_of_each_panic() {
        let command = "echo fine; echo \"thread 'a' (7) panicked at x.rs:1:2:\"; echo 'left: 1'; echo more; \
                       echo 'test a ... FAILED'; exit 1";
        let bad = verdict("why", 1.0, command).0;
        assert_eq!(bad.failures, ["thread 'a' (7) panicked at x.rs:1:2:", "left: 1", "test a ... FAILED"]);
        assert!(verdict("fine", 1.0, "echo 'error: none'").0.failures.is_empty());
    }

    #[test]
    fn cargos_summaries_are_added_up() {
        let mut tests = Tests::default();
        tests.count("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        tests.count("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        tests.count("7 passed on the way");
        assert_eq!(tests, Tests { passed: 15, failed: 2 });
    }
}
