//! The processes of a development cluster: started in the background, each with a log, and ended by what their pid files say.

use crate::inherited::keep_files;
use crate::output::{Exit, Failure, Outcome, note};
use crate::pidfile::{self, Process};
use anyhow::Context;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a process may take until it is ready: a node writes its disk first.
const READY: Duration = Duration::from_secs(300);
/// How long it may take to stop before it is killed: a node's own limit is 15 s.
const STOP: Duration = Duration::from_secs(20);
/// Lines of a log that are shown when its process did not start.
const LOG_LINES: usize = 5;

/// A process that was started and is not ready yet.
pub(super) struct Starting {
    name: String,
    log: PathBuf,
    /// What was in the log before it.
    before: usize,
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Starting {
    pub(super) fn spawn(name: &str, mut command: Command, log: &Path, pid_file: &Path) -> Outcome<Self> {
        let output = OpenOptions::new().create(true).append(true).mode(0o600).open(log);
        let output = output.with_context(|| format!("cannot write {}", log.display()))?;
        let before = output.metadata().map_or(0, |found| usize::try_from(found.len()).unwrap_or(usize::MAX));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let process = Process::of(child.id());
        if let Some(process) = process {
            pidfile::write(pid_file, process)?;
        }
        let (tell, said) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || first_line(stdout, &tell));
        }
        Ok(Self { name: name.to_owned(), log: log.to_path_buf(), before, child, said })
    }

    /// Until it has printed its first line, which it does when it is ready.
    pub(super) fn wait_until_ready(mut self) -> Outcome {
        match self.said.recv_timeout(READY) {
            Ok(line) if line.starts_with("ready") => Ok(()),
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                // It has closed its output without that: it is ending.
                let status = self.child.wait().map_or("?".to_owned(), |status| status.to_string());
                let text = fs::read(&self.log).unwrap_or_default();
                let text = String::from_utf8_lossy(text.get(self.before..).unwrap_or_default());
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
                let why =
                    format!("{} did not start ({status}); the end of {}:\n  {last}", self.name, self.log.display());
                Err(Failure::new(Exit::Failed, why))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let why = format!("{} is not ready after {} s: see {}", self.name, READY.as_secs(), self.log.display());
                Err(Failure::new(Exit::TimedOut, why))
            }
        }
    }
}

fn first_line(stdout: ChildStdout, tell: &mpsc::Sender<String>) {
    let mut line = String::new();
    if matches!(BufReader::new(stdout).read_line(&mut line), Ok(1..)) {
        // Nobody waits any more if that took too long.
        let _ = tell.send(line);
    }
}

/// Does this file's process run, and go on? One that was killed is gone when this returns.
pub(super) fn runs(file: &Path) -> bool {
    pidfile::read(file).is_some_and(|process| !(process.is_killed() && process.wait(Instant::now() + STOP)))
}

/// Ends the processes of these files, together; says how many there were.
pub(super) fn end(files: &[PathBuf]) -> Outcome<usize> {
    let processes: Vec<Process> = files.iter().filter_map(|file| pidfile::read(file)).collect();
    for process in &processes {
        process.terminate()?;
    }
    let until = Instant::now() + STOP;
    for process in &processes {
        if !process.wait(until) {
            note(format_args!("trine: process {} did not stop in {} s: killing it", process.pid, STOP.as_secs()));
            process.kill()?;
            process.wait(Instant::now() + STOP);
        }
    }
    for file in files {
        let _ = fs::remove_file(file);
    }
    Ok(processes.len())
}

/// This very program, detached from the terminal and with nothing of our environment that could change its options.
pub(super) fn own_command(args: &[&str]) -> Outcome<Command> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    keep_files();
    let mut command = Command::new(program);
    command.args(args).current_dir("/");
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRINE_") && name != "TRINE_LOG")
    {
        command.env_remove(name);
    }
    command.env("TRINE_CONFIG", "/dev/null");
    // SAFETY: setsid is async-signal-safe and takes nothing from this process.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into));
    }
    Ok(command)
}
