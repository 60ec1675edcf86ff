//! One process of the cluster under test, known by its pid and start time: it is stopped, killed and started again exactly as it
//! was started the first time, and never mistaken for another one.

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(20);

/// How a process was started.
#[derive(Clone, Debug)]
pub struct Recipe {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    log: PathBuf,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// For messages: `n2`, `conductor`.
    pub name: String,
    pid: Pid,
    started: u64,
    recipe: Recipe,
    /// Present if it is our own child: it must be waited for.
    child: Option<Child>,
}

fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    // A zombie runs no more: its parent just has not looked. But a killed process is one while some of its threads still end, and
    // they have its files and sockets until then.
    if state == "Z" && threads(pid) <= 1 { None } else { fields.nth(18)?.parse().ok() }
}

fn threads(pid: Pid) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

fn split(bytes: Vec<u8>) -> Vec<OsString> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| OsString::from_vec(part.to_vec()))
        .collect()
}

impl Process {
    /// Takes note of a running process, so that it can be started again the same way; its output goes to `log` then.
    pub fn adopt(name: &str, pid: u32, log: &Path) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(pid)?);
        let started = start_time(pid).with_context(|| format!("{name}: no process {pid}"))?;
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let argv = split(fs::read(proc.join("cmdline"))?);
        ensure!(!argv.is_empty(), "{name}: process {pid} has no command line");
        let pair = |entry: OsString| {
            let bytes = entry.into_vec();
            let at = bytes.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())))
        };
        let env = split(fs::read(proc.join("environ"))?).into_iter().filter_map(pair).collect();
        let recipe = Recipe { argv, env, cwd: fs::read_link(proc.join("cwd"))?, log: log.to_owned() };
        Ok(Self { name: name.to_owned(), pid, started, recipe, child: None })
    }

    /// Starts a process, whose output goes to `log`.
    pub(crate) fn spawn(name: &str, argv: Vec<OsString>, cwd: &Path, log: &Path) -> Result<Self> {
        // Nothing of the caller's own settings.
        let env = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("TRINE")).collect();
        let recipe = Recipe { argv, env, cwd: cwd.to_owned(), log: log.to_owned() };
        let mut this = Self { name: name.to_owned(), pid: Pid::from_raw(0), started: 0, recipe, child: None };
        this.start()?;
        Ok(this)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// True if it runs (or is stopped).
    pub fn is_alive(&mut self) -> bool {
        if let Some(child) = &mut self.child
            && !matches!(child.try_wait(), Ok(None))
        {
            return false;
        }
        start_time(self.pid) == Some(self.started)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            bail!("{} (pid {}) is not running: see {}", self.name, self.pid, self.recipe.log.display());
        }
        kill(self.pid, signal).with_context(|| format!("{signal} to {}", self.name))
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait_gone()
    }

    /// SIGTERM, and waits until it is gone.
    pub fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        self.wait_gone()
    }

    fn wait_gone(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.is_alive() {
            ensure!(start.elapsed() < GONE, "{} (pid {}) does not go away", self.name, self.pid);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// SIGSTOP: it is there, but says nothing.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// From its next start on it has this in its environment.
    pub fn set(&mut self, name: &str, value: &str) {
        self.recipe.env.retain(|(set, _)| set != name);
        self.recipe.env.push((name.into(), value.into()));
    }

    /// Starts it again as it was started before.
    pub fn start(&mut self) -> Result<()> {
        ensure!(!self.is_alive(), "{} runs already", self.name);
        let Recipe { argv, env, cwd, log } = &self.recipe;
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).env_clear().envs(env.iter().cloned()).current_dir(cwd);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        self.pid = Pid::from_raw(i32::try_from(child.id())?);
        self.child = Some(child);
        self.started = start_time(self.pid).with_context(|| format!("{} ended at once", self.name))?;
        Ok(())
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? << 10)
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// The end of what it had to say.
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.recipe.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_alive() {
            match kill(self.pid, Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => eprintln!("{} (pid {}) could not be killed: {error}", self.name, self.pid),
            }
            let _ = self.wait_gone();
        }
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}
