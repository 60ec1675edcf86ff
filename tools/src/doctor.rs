//! `trine doctor`: what this machine offers, and what to do about what it does not.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, size};
use clap::Args;
use conductor_model::Bytes;
use nix::sys::resource::{Resource, getrlimit};
use node_daemon::{HugePages, MemoryNodes};
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use target_daemon::probe::{self, Feature};

/// The oldest kernel whose io_uring has all that is used (DEFER_TASKRUN).
const OLDEST_KERNEL: (u32, u32) = (6, 1);
/// Locked memory under which registered buffers are short.
const MEMLOCK: u64 = 64 << 20;
/// The unit of O_DIRECT everywhere.
const PAGE: usize = 4096;

#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    /// Something will not work or be slow; the rest does.
    Warn,
    /// Nothing will work.
    Fail,
}

/// One line.
#[derive(Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), todo: None }
    }
    fn warn(check: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, found: found.into(), todo: Some(todo.into()) }
    }
    fn fail(check: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, found: found.into(), todo: Some(todo.into()) }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Outcome {
    let all = [
        kernel(),
        ring(),
        ublk(),
        direct(&args.cluster),
        memlock(),
        huge_pages(),
        memory_nodes(),
        rdma(),
        clock(),
        conductor(&args.cluster),
    ];
    args.output.print(&all, |all| people(all))?;
    match all.iter().filter(|finding| finding.verdict == Verdict::Fail).count() {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::Failed, "one check failed")),
        n => Err(Failure::new(Exit::Failed, format!("{n} checks failed"))),
    }
}

fn people(all: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, verdict, found, todo } in all {
        let word = match verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        text += &format!("{word:<5} {check:<11} {found}\n");
        if let Some(todo) = todo {
            text += &format!("{:<17} -> {todo}\n", "");
        }
    }
    text
}

fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    match version(release) {
        Some(version) if version >= OLDEST_KERNEL => Finding::ok("kernel", release),
        Some(_) => Finding::fail("kernel", release, "run Linux 6.1 or newer"),
        None => Finding::warn("kernel", format!("{release:?}"), "its version cannot be read; it must be 6.1 or newer"),
    }
}

/// Major and minor of a release like `6.12.3-1-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn ring() -> Finding {
    match probe::ring() {
        Ok(()) => Finding::ok("io_uring", "every operation that is needed"),
        Err(error) => Finding::fail(
            "io_uring",
            error.to_string(),
            "nodes and targets cannot run: set sysctl kernel.io_uring_disabled = 0 or run a newer kernel",
        ),
    }
}

fn ublk() -> Finding {
    let features = match probe::ublk() {
        Ok(features) => features,
        Err(error) => {
            return Finding::warn("ublk", error.to_string(), "until then volumes can be attached over NBD (--nbd)");
        }
    };
    let names = features.names().join(", ");
    let lacks = |feature| !features.has(feature);
    if lacks(Feature::UserRecovery) || lacks(Feature::Reissue) {
        return Finding::warn("ublk", names, "devices do not survive their daemon: run a newer kernel");
    }
    if lacks(Feature::UpdateSize) {
        return Finding::warn("ublk", names, "attached devices cannot grow: Linux 6.16 can");
    }
    Finding::ok("ublk", names)
}

/// Where the disks of a development cluster would be.
fn direct(cluster: &ClusterArgs) -> Finding {
    const NAME: &str = "O_DIRECT";
    let Ok(wanted) = cluster.dir.path() else {
        return Finding::warn(NAME, "no directory to try it in", "pass --dir DIR");
    };
    let Some(dir) = wanted.ancestors().find(|dir| dir.is_dir()) else {
        return Finding::warn(NAME, format!("{} does not exist", wanted.display()), "pass --dir DIR");
    };
    let path = dir.join(format!(".trine-doctor-{}", std::process::id()));
    let result = write_direct(&path);
    // It may not be there.
    let _removed = fs::remove_file(&path);
    match result {
        Ok(()) => Finding::ok(NAME, format!("in {}", dir.display())),
        Err(error) => Finding::warn(
            NAME,
            format!("not in {}: {error}", dir.display()),
            "put disks on ext4, xfs, btrfs or a block device, or allow buffered access",
        ),
    }
}

fn write_direct(path: &PathBuf) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(path)?;
    let memory = vec![0_u8; 2 * PAGE];
    let from = memory.as_ptr().align_offset(PAGE);
    match memory.get(from..from + PAGE) {
        Some(page) => file.write_all(page),
        None => Err(std::io::Error::other("no aligned memory")),
    }
}

fn memlock() -> Finding {
    const NAME: &str = "memlock";
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft == libc::RLIM_INFINITY => Finding::ok(NAME, "unlimited"),
        Ok((soft, _)) if soft >= MEMLOCK => Finding::ok(NAME, format!("{} MiB", soft >> 20)),
        Ok((soft, _)) => Finding::warn(
            NAME,
            format!("{} KiB may be locked", soft >> 10),
            "registered buffers and RDMA want more: ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
        ),
        Err(error) => Finding::warn(NAME, error.to_string(), "the limit cannot be read"),
    }
}

fn huge_pages() -> Finding {
    const NAME: &str = "huge pages";
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let thp = thp.split(['[', ']']).nth(1).unwrap_or("absent");
    let HugePages { free, total } = HugePages::read();
    let node = node_daemon::huge_pages_needed(node_daemon::DEFAULT_MEMORY, 1);
    let takes = format!("none are required; a node with --huge-pages takes {node} unless --memory says otherwise");
    Finding::ok(NAME, format!("{free} of {total} reserved ones of 2 MiB free, transparent ones: {thp} ({takes})"))
}

fn memory_nodes() -> Finding {
    const NAME: &str = "memory nodes";
    let free = MemoryNodes::read().free();
    if free.is_empty() {
        return Finding::ok(NAME, "one; nothing to be balanced");
    }
    let each: Vec<String> = free.iter().map(|on| format!("{} free on {}", size(Bytes(on.bytes)), on.node)).collect();
    let balanced = "a reactor's buffers are on its processor's node if it is pinned (--pin), else on all alike";
    Finding::ok(NAME, format!("{} ({balanced})", each.join(", ")))
}

fn rdma() -> Finding {
    const NAME: &str = "RDMA";
    let devices = fs::read_dir(Path::new("/sys/class/infiniband")).into_iter().flatten().flatten();
    let names: Vec<String> = devices.map(|device| device.file_name().to_string_lossy().into_owned()).collect();
    if names.is_empty() { Finding::ok(NAME, "no devices; TCP is used") } else { Finding::ok(NAME, names.join(", ")) }
}

/// Leases are counted on this clock: it must go on, and reading it must be cheap.
fn clock() -> Finding {
    const NAME: &str = "clock";
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref().map(str::trim) {
        Ok(slow @ ("hpet" | "acpi_pm" | "jiffies" | "pit")) => Finding::warn(
            NAME,
            format!("source {slow}: each reading is a slow system call"),
            "find out why the kernel distrusts the TSC (dmesg | grep -i tsc)",
        ),
        Ok(source) => Finding::ok(NAME, format!("source {source}")),
        Err(error) => Finding::warn(NAME, error.to_string(), "the clock's source cannot be read"),
    }
}

fn conductor(cluster: &ClusterArgs) -> Finding {
    const NAME: &str = "conductor";
    let client = match cluster.client() {
        Ok(client) => client,
        Err(none) => return Finding::warn(NAME, "not configured", format!("{:#}", none.why)),
    };
    let begin = Instant::now();
    match client.version() {
        Ok(version) => {
            let time = begin.elapsed().as_secs_f64() * 1000.0;
            Finding::ok(NAME, format!("{} answers in {time:.1} ms: cluster {}", client.address(), version.cluster))
        }
        Err(error) => Finding::fail(NAME, error.to_string(), "start it, or check --conductor and the network"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_compared_as_numbers() {
        assert_eq!(version("6.12.3-1-amd64"), Some((6, 12)));
        assert!(version("6.12.3") > Some(OLDEST_KERNEL) && version("5.19") < Some(OLDEST_KERNEL));
        assert_eq!(version("custom"), None);
    }
}
