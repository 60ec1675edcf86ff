//! One QEMU process from start to end: its devices, its console, its time limit.
//!
//! The child never outlives this process (setpriv's parent-death signal), so a killed suite leaves no guest behind.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::console::{self, Said};
use crate::initramfs;
use crate::kernel::{Kernel, Series};

/// How long a guest that has said its last word may take to switch itself off.
const POWER_OFF: Duration = Duration::from_secs(20);
/// All that can be emulated but the promise that byte-wise string moves are quick (emulated they go byte by byte, and a kernel
/// that believes in them takes five times as long for a pipe or a socket), and a fifth level of page tables to walk.
const CPU: &str = "max,-erms,-fsrm,-la57";
/// Console lines waiting to be handled; a bound only against a guest that prints without end.
const CONSOLE_LINES: usize = 1024;
/// Address space left for plugged memory beside what the guest starts with, in slots.
const NVDIMM_SLOTS: usize = 8;

/// A guest to be run once.
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) series: Series,
    pub(crate) limit: Duration,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    pub(crate) disks_mib: Vec<u64>,
    pub(crate) nvdimms_mib: Vec<u64>,
    /// Memory nodes.
    pub(crate) nodes: u32,
    /// Writable from inside as `/results`.
    pub(crate) results: PathBuf,
    /// A directory for this run's own files, removed at its end.
    pub(crate) scratch: PathBuf,
    pub(crate) command: String,
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Status(u8),
    TimeLimit,
    Panic,
    Silent,
    /// It panicked or went silent before the command began: the emulated clock does that to a booting kernel now and then.
    NoBoot,
    /// It panicked over a state that no processor can be in: that says nothing about what ran in it.
    Emulator,
}

pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

impl Machine<'_> {
    pub(crate) fn run(&self) -> Result<Ended> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?.as_nanos();
        let token = format!("guest-{}-{nanos}", std::process::id());
        let scratch = Scratch::new(&self.scratch)?;
        let initrd = scratch.dir.join("initrd");
        fs::write(&initrd, initramfs::build(self.kernel, &self.settings(&token)?, &self.command)?)?;
        let mut console_log = File::create(self.results.join("console.log")).context("cannot create console.log")?;

        let nodes = if self.nodes > 1 { format!(" on {} memory nodes", self.nodes) } else { String::new() };
        println!("guest: booting {} ({} cpus, {} MiB{nodes})", self.kernel.release, self.cpus, self.memory_mib);
        let begin = Instant::now();
        let mut qemu = self.start(&scratch, &initrd)?;
        let outcome = self.watch(&mut qemu, &token, &mut console_log, begin);
        let _ = qemu.kill();
        let _ = qemu.wait();
        Ok(Ended { outcome: outcome?, took: begin.elapsed() })
    }

    /// Shell assignments for the guest's scripts.
    fn settings(&self, token: &str) -> Result<String> {
        let directory = std::env::current_dir().context("there is no current directory")?;
        let mut text = String::new();
        for (name, value) in [
            ("TOKEN", token.to_owned()),
            ("SERIES", self.series.to_string()),
            ("RELEASE", self.kernel.release.clone()),
            ("MODULES", self.kernel.modules().canonicalize()?.display().to_string()),
            ("DIRECTORY", directory.display().to_string()),
        ] {
            writeln!(text, "{name}='{}'", value.replace('\'', r"'\''"))?;
        }
        Ok(text)
    }

    fn start(&self, scratch: &Scratch, initrd: &Path) -> Result<Child> {
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", &self.cpus.to_string()]);
        let nvdimm_mib: u64 = self.nvdimms_mib.iter().sum();
        if nvdimm_mib == 0 {
            qemu.args(["-machine", "q35", "-m", &format!("{}M", self.memory_mib)]);
        } else {
            let most = u64::from(self.memory_mib) + nvdimm_mib;
            qemu.args(["-machine", "q35,nvdimm=on"]);
            qemu.args(["-m", &format!("{}M,slots={NVDIMM_SLOTS},maxmem={most}M", self.memory_mib)]);
        }
        qemu.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(initrd);
        // Speed over hardening in a throw-away machine; any oops ends the run.
        qemu.args(["-append", "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off nokaslr"]);
        qemu.args(["-serial", "stdio", "-device", "virtio-rng-pci"]);
        let share = |path: &Path, tag: &str, more: &str| {
            // A comma in a path would end QEMU's option; it is escaped by doubling.
            let path = path.display().to_string().replace(',', ",,");
            format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}")
        };
        qemu.args(["-virtfs", &share(Path::new("/"), "host", ",readonly=on")]);
        qemu.args(["-virtfs", &share(&self.results, "results", "")]);
        for (index, mib) in self.disks_mib.iter().enumerate() {
            let file = scratch.file(&format!("disk{index}"), *mib)?;
            qemu.args(["-drive", &format!("file={file},if=virtio,format=raw,cache=unsafe,discard=unmap")]);
        }
        qemu.args(memory_nodes(self.nodes, self.memory_mib, self.cpus));
        for (index, mib) in self.nvdimms_mib.iter().enumerate() {
            let file = scratch.file(&format!("nvdimm{index}"), *mib)?;
            qemu.args(["-object", &format!("memory-backend-file,id=nv{index},share=on,mem-path={file},size={mib}M")]);
            qemu.args(["-device", &format!("nvdimm,id=nvdimm{index},memdev=nv{index}")]);
        }
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
        qemu.spawn().context("cannot start QEMU (tools/setup.sh guest installs what is missing)")
    }

    fn watch(&self, qemu: &mut Child, token: &str, log: &mut File, begin: Instant) -> Result<Outcome> {
        let lines = lines_of(qemu.stdout.take().context("QEMU has no output")?);
        let mut deadline = begin + self.limit;
        let mut outcome = None;
        let mut started = false;
        let mut impossible = false;
        loop {
            let line = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(outcome.unwrap_or(Outcome::TimeLimit)),
                Err(RecvTimeoutError::Disconnected) if !started => return Ok(Outcome::NoBoot),
                Err(RecvTimeoutError::Disconnected) => return Ok(outcome.unwrap_or(Outcome::Silent)),
            };
            writeln!(log, "{line}")?;
            match console::read(&line, token) {
                Said::Started => {
                    started = true;
                    println!("guest: up after {:.1} s", begin.elapsed().as_secs_f64());
                }
                Said::Status(status) => {
                    outcome = Some(Outcome::Status(status));
                    // A command need not end its last line.
                    if let Some((before, _)) = line.split_once(token).filter(|(before, _)| !before.is_empty()) {
                        println!("{before}");
                    }
                }
                Said::Panic => {
                    outcome = Some(match (started, impossible) {
                        (false, _) => Outcome::NoBoot,
                        (true, true) => Outcome::Emulator,
                        (true, false) => Outcome::Panic,
                    });
                    println!("{line}");
                }
                Said::NoProcessor => {
                    impossible = true;
                    println!("{line}");
                }
                Said::Text if started && !matches!(outcome, Some(Outcome::Status(_))) => println!("{line}"),
                Said::Text if line.starts_with("guest: ") => println!("{line}"),
                Said::Text => {}
            }
            if outcome.is_some() {
                deadline = deadline.min(Instant::now() + POWER_OFF);
            }
        }
    }
}

/// Options that divide memory and processors among so many nodes; none where there is one.
fn memory_nodes(nodes: u32, memory_mib: u32, cpus: u32) -> Vec<String> {
    let mut options = Vec::new();
    for node in (0..nodes).filter(|_| nodes > 1) {
        // The first has what does not divide evenly.
        let mib = memory_mib / nodes + if node == 0 { memory_mib % nodes } else { 0 };
        let own: String = (0..cpus).filter(|cpu| cpu % nodes == node).map(|cpu| format!(",cpus={cpu}")).collect();
        options.extend(["-object".to_owned(), format!("memory-backend-ram,id=node{node},size={mib}M")]);
        options.extend(["-numa".to_owned(), format!("node,nodeid={node},memdev=node{node}{own}")]);
    }
    options
}

/// The console's lines as they come; the channel closes when QEMU ends.
fn lines_of(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::sync_channel(CONSOLE_LINES);
    thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut raw = Vec::new();
        while reader.read_until(b'\n', &mut raw).is_ok_and(|length| length > 0) {
            let line = String::from_utf8_lossy(&raw).trim_end_matches(['\r', '\n']).to_owned();
            raw.clear();
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// Files that live as long as the guest.
struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    fn new(dir: &Path) -> Result<Self> {
        // A run that was killed left its files here; no other guest is running.
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// A sparse file, named as QEMU's options want it.
    fn file(&self, name: &str, mib: u64) -> Result<String> {
        let path = self.dir.join(name);
        File::create(&path)?.set_len(mib << 20).with_context(|| format!("cannot make a file of {mib} MiB"))?;
        Ok(path.display().to_string().replace(',', ",,"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_processors_are_divided_among_nodes_and_nothing_is_left_over() {
        assert!(memory_nodes(1, 4096, 2).is_empty());
        let options = memory_nodes(2, 4097, 3).join(" ");
        assert!(
            options.contains("memory-backend-ram,id=node0,size=2049M -numa node,nodeid=0,memdev=node0,cpus=0,cpus=2")
        );
        assert!(options.contains("memory-backend-ram,id=node1,size=2048M -numa node,nodeid=1,memdev=node1,cpus=1"));
    }
}
