//! Who runs: a file with a process id and when that process started, so that a number that was given to another process since is not
//! taken for ours. Signals go to exactly that process.

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a process that shall end is looked at.
const POLL: Duration = Duration::from_millis(20);

/// One process, for as long as it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Clock ticks after boot.
    started: u64,
}

impl Process {
    /// A process of this machine that lives.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; the fields after it are plain. The state is field 3, the start time field 22.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let (state, started) = (fields.first()?, fields.get(19)?.parse().ok()?);
        (*state != "Z").then_some(Self { pid, started })
    }

    pub(crate) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// It was killed, and is not gone yet: the signal stays with it until then, and its memory, if that is much, is given back first.
    pub(crate) fn is_killed(self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|status| is_kill_pending(&status))
    }

    fn signal(self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid).context("no process has such an id")?);
        if !self.lives() {
            return Ok(());
        }
        match kill(pid, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(why) => Err(why).with_context(|| format!("cannot signal process {}", self.pid)),
        }
    }

    /// Asks it to end.
    pub(crate) fn terminate(self) -> anyhow::Result<()> {
        self.signal(Signal::SIGTERM)
    }

    /// Ends it.
    pub(crate) fn kill(self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)
    }

    /// Waits for its end; false if it lives on.
    pub(crate) fn wait(self, until: Instant) -> bool {
        while self.lives() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

/// Of what `/proc/PID/status` says.
fn is_kill_pending(status: &str) -> bool {
    let pending = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("ShdPnd:")?.trim(), 16).ok());
    pending.is_some_and(|pending| pending & 1 << (libc::SIGKILL - 1) != 0)
}

/// The process that the file names, if it lives.
pub(crate) fn read(file: &Path) -> Option<Process> {
    let text = fs::read_to_string(file).ok()?;
    let mut words = text.split_whitespace();
    let named = Process { pid: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? };
    named.lives().then_some(named)
}

/// Notes a process.
pub(crate) fn write(file: &Path, process: Process) -> anyhow::Result<()> {
    fs::write(file, format!("{} {}\n", process.pid, process.started))
        .with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_killed_is_known_before_it_is_gone() {
        let status = |pending: &str| format!("State:\tR (running)\nSigPnd:\t0000000000000100\nShdPnd:\t{pending}\n");
        assert!(is_kill_pending(&status("0000000000000100")) && is_kill_pending(&status("0000000000004100")));
        assert!(!is_kill_pending(&status("0000000000004000")) && !is_kill_pending(""));
        assert!(!Process::of(std::process::id()).unwrap().is_killed());
    }

    #[test]
    fn a_process_is_known_by_its_start_as_well() {
        let file = std::env::temp_dir().join(format!("trine-pidfile-{}", std::process::id()));
        let own = Process::of(std::process::id()).unwrap();
        write(&file, own).unwrap();
        assert_eq!(read(&file), Some(own));
        fs::write(&file, format!("{} {}\n", own.pid, own.started + 1)).unwrap();
        assert_eq!(read(&file), None, "another process with the same number");
        fs::write(&file, "nonsense").unwrap();
        assert_eq!(read(&file), None);
        fs::remove_file(&file).unwrap();
        assert_eq!(read(&file), None);
    }
}
