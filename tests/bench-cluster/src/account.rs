//! What the servers' processes and the loopback used, read from /proc before and after.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Sums since the processes began, or the difference of two of them.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub(crate) struct Used {
    /// Seconds of CPU, user and system.
    pub(crate) cpu: f64,
    /// Context switches.
    pub(crate) switches: u64,
    /// Bytes through the loopback, headers included; of everybody on the machine.
    pub(crate) wire: u64,
    /// Bytes that went to block devices.
    pub(crate) disk: u64,
}

impl Used {
    /// By these processes until now.
    pub(crate) fn by(pids: &[u32]) -> Result<Self> {
        let mut used = Self { wire: loopback()?, ..Self::default() };
        let tick = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no clock tick")?;
        for pid in pids {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
            let (_, fields) = stat.rsplit_once(')').context("stat")?;
            let field = |n: usize| fields.split_ascii_whitespace().nth(n).and_then(|f| f.parse::<u64>().ok());
            used.cpu += (field(11).unwrap_or(0) + field(12).unwrap_or(0)) as f64 / tick as f64;
            for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
                // A thread may end while it is looked at.
                let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
                let lines = status.lines().filter(|line| line.contains("_ctxt_switches:"));
                used.switches += lines.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok()).sum::<u64>();
            }
            let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse::<u64>().ok());
            used.disk += written.unwrap_or(0);
        }
        Ok(used)
    }

    /// What came since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            switches: self.switches.saturating_sub(before.switches),
            wire: self.wire - before.wire,
            disk: self.disk.saturating_sub(before.disk),
        }
    }
}

/// Waits until nothing is left that they put off while there were requests: until they have been at rest for longer than a store waits.
pub(crate) fn rest(pids: &[u32]) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(400);
    let (mut before, mut quiet, until) = (Used::by(pids)?, 0, Instant::now() + Duration::from_secs(60));
    while quiet < 4 {
        ensure!(Instant::now() < until, "a minute after its turn it is still at work");
        thread::sleep(LOOK);
        let now = Used::by(pids)?;
        quiet = if now.cpu - before.cpu > 0.1 * LOOK.as_secs_f64() { 0 } else { quiet + 1 };
        before = now;
    }
    Ok(())
}

fn loopback() -> Result<u64> {
    let devices = fs::read_to_string("/proc/net/dev")?;
    let line = devices.lines().find_map(|line| line.trim().strip_prefix("lo:")).context("no loopback device")?;
    Ok(line.split_ascii_whitespace().next().context("no counter of the loopback")?.parse()?)
}

/// Resident memory of the largest of them, in bytes.
pub(crate) fn memory(pids: &[u32]) -> Result<u64> {
    largest(pids, "VmRSS:")
}

/// The same, when it was largest.
pub(crate) fn most_memory(pids: &[u32]) -> Result<u64> {
    largest(pids, "VmHWM:")
}

fn largest(pids: &[u32], what: &str) -> Result<u64> {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(what))?;
        Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? << 10)
    };
    pids.iter().filter_map(of).max().context("no process to measure")
}
