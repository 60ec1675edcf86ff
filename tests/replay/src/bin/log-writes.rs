//! `log-writes`: rebuilds disks from the logs of the kernel's dm-log-writes target. Debian packages no tool for it.

#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use replay::log::{Kind, Log};
use replay::rebuild::{self, Fate};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Rebuild disks from the logs of dm-log-writes.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Say what a log holds
    Show {
        /// The log device, or the file behind it
        log: PathBuf,
    },
    /// Put on a disk all that was durable at a mark
    Apply {
        /// The log device, or the file behind it
        log: PathBuf,
        /// A file that stands at the log's beginning (all zeros) or at --from
        disk: PathBuf,
        /// The mark at which the disk stands
        #[arg(long)]
        from: Option<String>,
        /// The mark to which it is brought
        #[arg(long)]
        to: String,
    },
    /// Put on a disk some of what was complete but not durable at a mark
    Loose {
        /// The log device, or the file behind it
        log: PathBuf,
        /// A file that stands at the mark
        disk: PathBuf,
        /// The mark N; N+ follows it in the log, behind a flush
        #[arg(long)]
        mark: String,
        /// What may be there of it
        #[arg(long)]
        fate: FateArg,
        /// Decides which
        #[arg(long)]
        seed: u64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum FateArg {
    /// Nothing
    None,
    /// Whole writes
    Some,
    /// Sectors of 512 bytes, also of the next durable write
    Torn,
}

fn main() -> ExitCode {
    match act(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("log-writes: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(verb: Verb) -> Result<()> {
    match verb {
        Verb::Show { log } => show(&log),
        Verb::Apply { log, disk, from, to } => {
            rebuild::durable(&Log::open(&log)?, &open(&disk)?, from.as_deref(), &to)
                .with_context(|| format!("{} to {}", log.display(), disk.display()))?;
            Ok(())
        }
        Verb::Loose { log, disk, mark, fate, seed } => {
            let fate = match fate {
                FateArg::None => Fate::None,
                FateArg::Some => Fate::Some,
                FateArg::Torn => Fate::Torn,
            };
            let applied = rebuild::loose(&Log::open(&log)?, &open(&disk)?, &mark, fate, seed)
                .with_context(|| format!("{} to {}", log.display(), disk.display()))?;
            let rebuild::Applied { whole, torn, dropped, lost } = applied;
            println!("whole {whole} torn {torn} dropped {dropped} lost {lost}");
            Ok(())
        }
    }
}

fn open(disk: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(disk).with_context(|| format!("cannot open {}", disk.display()))
}

fn show(path: &Path) -> Result<()> {
    let log = Log::open(path)?;
    let (mut durable, mut plain, mut discards, mut flushes, mut marks, mut bytes) =
        (0_u64, 0_u64, 0_u64, 0_u64, 0_u64, 0);
    for entry in log.entries() {
        let entry = entry?;
        match entry.kind {
            Kind::Write { durable: true } => durable += 1,
            Kind::Write { durable: false } => plain += 1,
            Kind::Discard => discards += 1,
            Kind::Flush => flushes += 1,
            Kind::Mark(_) => marks += 1,
        }
        bytes += if entry.kind == Kind::Discard { 0 } else { entry.bytes };
    }
    println!(
        "{}: {bytes} bytes in {durable} durable writes and {plain} others, {flushes} flushes, {discards} discards, {marks} marks",
        path.display()
    );
    Ok(())
}
