//! `witness`: writes to a volume and to a filesystem on it, notes elsewhere what was begun and acknowledged, and says later whether what
//! reads back can be.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use replay::Random;
use replay::blocks::{self, Range};
use replay::files;
use replay::ledger::{Ledger, Moment};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Parser)]
#[command(about = "Write what is known, and say later whether what reads back can be.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write, until all marks are set or --until exists
    Write(Write),
    /// Compare the blocks with what they may be
    CheckBlocks {
        #[command(flatten)]
        blocks: Blocks,
        #[command(flatten)]
        moment: MomentArgs,
        /// Blocks that answer with an error are counted, not a failure
        #[arg(long)]
        errors_pass: bool,
    },
    /// Compare the files with what they may be
    CheckFiles {
        /// Where the files are
        #[arg(long)]
        files: PathBuf,
        #[command(flatten)]
        moment: MomentArgs,
    },
}

#[derive(Args)]
struct Blocks {
    /// The block device
    #[arg(long)]
    device: PathBuf,
    /// First byte of the range
    #[arg(long)]
    at: u64,
    /// Bytes of the range
    #[arg(long)]
    bytes: u64,
}

#[derive(Args)]
struct MomentArgs {
    /// What `witness write` noted
    #[arg(long)]
    ledger: PathBuf,
    /// The mark at which power was lost; the end, if not given
    #[arg(long)]
    mark: Option<String>,
}

#[derive(Args)]
struct Write {
    #[command(flatten)]
    blocks: Blocks,
    /// A directory for files
    #[arg(long)]
    files: Option<PathBuf>,
    /// Where to note it: not on what is being tested
    #[arg(long)]
    ledger: PathBuf,
    /// Threads that write blocks
    #[arg(long, default_value_t = 3)]
    threads: u64,
    /// Decides what is written
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many marks to set, named 1, 2, …
    #[arg(long, requires = "mark_with", conflicts_with = "until")]
    marks: Option<u64>,
    /// The command that sets one: its argument is the name
    #[arg(long)]
    mark_with: Option<PathBuf>,
    /// Deeds acknowledged between two marks, on average
    #[arg(long, default_value_t = 100)]
    between: u64,
    /// A write of blocks that is answered with an error is noted, and the next begins
    #[arg(long)]
    errors_pass: bool,
    /// Stop when this file exists
    #[arg(long)]
    until: Option<PathBuf>,
}

fn main() -> ExitCode {
    match act(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("witness: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(verb: Verb) -> Result<()> {
    match verb {
        Verb::Write(write) => write_all(&write),
        Verb::CheckBlocks { blocks, moment, errors_pass } => {
            let moment = Moment::read(&moment.ledger, moment.mark.as_deref())?;
            let range = Range::of_bytes(blocks.at, blocks.bytes);
            let found = blocks::check(&blocks.device, range, &moment, errors_pass)?;
            println!(
                "{} blocks as after {} acknowledged writes, {} of them with one under way, {} unreadable",
                found.blocks,
                moment.acknowledged(),
                found.open,
                found.unreadable
            );
            Ok(())
        }
        Verb::CheckFiles { files, moment } => {
            let moment = Moment::read(&moment.ledger, moment.mark.as_deref())?;
            println!("{} files that must be there", files::check(&files, &moment)?);
            Ok(())
        }
    }
}

fn write_all(write: &Write) -> Result<()> {
    let ledger = Ledger::create(&write.ledger)?;
    let stop = AtomicBool::new(false);
    let range = Range::of_bytes(write.blocks.at, write.blocks.bytes);
    thread::scope(|scope| {
        // Whoever ends first, ends all: a thread only ends by itself when it failed.
        let ending = |result: Result<()>| {
            stop.store(true, Ordering::Relaxed);
            result
        };
        let mut threads = Vec::new();
        for n in 0..write.threads {
            let (ledger, stop) = (&ledger, &stop);
            let part = range.part(n, write.threads);
            let device = &write.blocks.device;
            let seed = write.seed.wrapping_add(n);
            threads
                .push(scope.spawn(move || ending(blocks::write(device, part, seed, write.errors_pass, ledger, stop))));
        }
        if let Some(dir) = &write.files {
            let (ledger, stop) = (&ledger, &stop);
            threads.push(scope.spawn(move || ending(files::write(dir, write.seed, ledger, stop))));
        }
        let mut result = ending(attend(write, &ledger, &stop));
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| bail!("a thread panicked"));
            result = ended.and(result);
        }
        result
    })?;
    println!("{} acknowledged", ledger.acknowledged()?);
    Ok(())
}

/// Sets the marks, or waits for the end.
fn attend(write: &Write, ledger: &Ledger, stop: &AtomicBool) -> Result<()> {
    let wait = |done: &dyn Fn() -> Result<bool>| -> Result<()> {
        while !stop.load(Ordering::Relaxed) && !done()? {
            thread::sleep(LOOK);
        }
        Ok(())
    };
    if let Some(until) = &write.until {
        return wait(&|| Ok(until.exists()));
    }
    let (Some(marks), Some(command)) = (write.marks, &write.mark_with) else {
        bail!("say when to stop: --marks or --until");
    };
    let mut random = Random::new(write.seed);
    let mut next = 0;
    for mark in 1..=marks {
        next += write.between / 2 + random.below(write.between);
        wait(&|| Ok(ledger.acknowledged()? >= next))?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        set(ledger, command, &mark.to_string())?;
    }
    Ok(())
}

fn set(ledger: &Ledger, command: &Path, name: &str) -> Result<()> {
    ledger.mark(name, false)?;
    let status =
        Command::new(command).arg(name).status().with_context(|| format!("cannot run {}", command.display()))?;
    ensure!(status.success(), "{} {name}: {status}", command.display());
    ledger.mark(name, true)
}
