//! `guest`: runs a shell command under Debian's kernel in QEMU, around the binaries built on this machine.
//!
//! The guest sees this machine's root filesystem (read-only, with a throw-away layer in memory on top), so it runs
//! what was built outside. Software emulation only: no KVM is needed, and none is used. What comes back is the command's
//! exit status, the console, and whatever the command wrote to `/results`.
//!
//! It never installs a package, never edits the machine's apt sources and never runs two guests at once.

#![forbid(unsafe_code)]

mod apt;
mod console;
mod initramfs;
mod kernel;
mod machine;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::kernel::{Kernel, Series};
use crate::machine::{Machine, Outcome};

/// The time limit was reached; as timeout(1) says it.
const EXIT_TIME_LIMIT: u8 = 124;
/// The guest's kernel panicked. Above what a shell reports for a signal (128 + 64), as are the next two.
const EXIT_PANIC: u8 = 240;
/// Attempts to run it. What happens after the command began is never tried again, but for what the emulator alone can have done.
const BOOTS: u32 = 3;
/// The guest ended without saying how its command ended.
const EXIT_SILENT: u8 = 241;
/// The guest could not be started.
const EXIT_NO_GUEST: u8 = 242;

#[derive(Parser)]
#[command(
    about = "Run a command under a real kernel, in QEMU.",
    after_help = "Exit status of `run`: the command's own; \
124 time limit, 240 kernel panic, 241 the guest ended without a status, 242 it could not be started."
)]
struct Cli {
    /// Where kernels are kept and runs leave their results; `guest` beside this program's directory unless told
    #[arg(long, env = "TRINE_GUEST_CACHE", global = true)]
    cache: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Download and unpack a kernel, verified by apt, from the mirror this machine's apt uses
    Fetch {
        /// Which kernel; all of them unless told
        #[arg(long)]
        kernel: Vec<Series>,
        /// Look for a newer one even if one is here
        #[arg(long)]
        refresh: bool,
    },
    /// Boot a guest and run a command in it
    Run(Run),
}

#[derive(Args)]
struct Run {
    /// Which kernel
    #[arg(long)]
    kernel: Series,
    /// Time limit for the whole guest, in seconds
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// Memory in MiB; all that the guest writes outside /results lives in it
    #[arg(long, default_value_t = 4096)]
    mem: u32,
    /// Processors
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Add an empty scratch disk of this many MiB (/dev/vda, /dev/vdb, …); may be repeated
    #[arg(long = "disk", value_name = "MIB")]
    disks: Vec<u64>,
    /// Add an NVDIMM of this many MiB (/dev/pmem0, …); may be repeated
    #[arg(long = "nvdimm", value_name = "MIB")]
    nvdimms: Vec<u64>,
    /// Memory nodes (NUMA), among which memory and processors are divided
    #[arg(long, default_value_t = 2, value_name = "NODES", value_parser = clap::value_parser!(u32).range(1..=8))]
    numa: u32,
    /// Directory that is /results in the guest and receives console.log and dmesg.log
    #[arg(long)]
    results: Option<PathBuf>,
    /// A bash command line; several words are joined by spaces
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match act(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("guest: {error:#}");
            ExitCode::from(EXIT_NO_GUEST)
        }
    }
}

fn act(cli: Cli) -> Result<u8> {
    let cache = match cli.cache {
        Some(dir) => dir,
        None => beside_this_program()?,
    };
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let cache = cache.canonicalize().with_context(|| format!("cannot resolve {}", cache.display()))?;
    let _alone = only_guest(&cache)?;
    match cli.verb {
        Verb::Fetch { kernel, refresh } => {
            let wanted = if kernel.is_empty() { Series::ALL.to_vec() } else { kernel };
            for series in wanted {
                let kernel = Kernel::obtain(&cache, series, refresh)?;
                println!("guest: kernel {series} is {}", kernel.release);
            }
            Ok(0)
        }
        Verb::Run(run) => {
            let kernel = Kernel::obtain(&cache, run.kernel, false)?;
            in_guest(&cache, &kernel, run)
        }
    }
}

fn in_guest(cache: &Path, kernel: &Kernel, run: Run) -> Result<u8> {
    let results = match run.results {
        Some(dir) => dir,
        None => {
            let dir = cache.join(format!("results-{}", run.kernel));
            let _ = fs::remove_dir_all(&dir);
            dir
        }
    };
    fs::create_dir_all(&results).with_context(|| format!("cannot create {}", results.display()))?;
    let machine = Machine {
        kernel,
        series: run.kernel,
        limit: Duration::from_secs(run.timeout),
        memory_mib: run.mem,
        cpus: run.cpus,
        disks_mib: run.disks,
        nvdimms_mib: run.nvdimms,
        nodes: run.numa,
        results: results.canonicalize()?,
        scratch: cache.join("scratch"),
        command: run.command.join(" "),
    };
    let mut ended = machine.run()?;
    for _ in 1..BOOTS {
        match ended.outcome {
            Outcome::NoBoot => println!("guest: it did not come up, booting again"),
            Outcome::Emulator => {
                println!("guest: the kernel died over flags that no processor can hold: QEMU's fault, all of it again");
            }
            _ => break,
        }
        ended = machine.run()?;
    }
    let log = results.join("console.log");
    let took = ended.took.as_secs_f64();
    Ok(match ended.outcome {
        Outcome::Status(status) => {
            println!("guest: exit status {status} after {took:.1} s");
            status
        }
        Outcome::TimeLimit => {
            eprintln!("guest: stopped at its time limit of {} s; console: {}", run.timeout, log.display());
            EXIT_TIME_LIMIT
        }
        Outcome::NoBoot => {
            eprintln!("guest: it did not come up in {BOOTS} attempts; console: {}", log.display());
            EXIT_PANIC
        }
        Outcome::Emulator => {
            eprintln!("guest: QEMU failed in {BOOTS} attempts; console: {}", log.display());
            EXIT_PANIC
        }
        Outcome::Panic => {
            eprintln!("guest: the kernel panicked after {took:.1} s; console: {}", log.display());
            EXIT_PANIC
        }
        Outcome::Silent => {
            eprintln!("guest: ended after {took:.1} s without an exit status; console: {}", log.display());
            EXIT_SILENT
        }
    })
}

/// `target/guest` for a program in `target/debug` or `target/release`.
fn beside_this_program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's own path")?;
    let target = program.parent().and_then(Path::parent).context("this program has no parent directory")?;
    Ok(target.join("guest"))
}

/// A guest uses every core and the cache has one writer: a second one waits here until the first is done.
fn only_guest(cache: &Path) -> Result<File> {
    let lock = File::create(cache.join("lock")).context("cannot create the guest lock")?;
    if lock.try_lock().is_err() {
        println!("guest: another guest is running, waiting for it to end");
        lock.lock().context("cannot take the guest lock")?;
    }
    Ok(lock)
}
