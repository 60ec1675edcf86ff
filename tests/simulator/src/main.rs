//! `simulator --seeds N [--from M] [--seed K] [--volumes] [--trace] [--threads T] [--until-failure KINDS]`:
//! runs seeds and says what they met. In one seed of four somebody takes snapshots, clones, rolls back and deletes meanwhile; with
//! `--volumes` in each.
#![forbid(unsafe_code)]

use simulator::coverage;
use simulator::seed::{FAULTS, OPERATIONS, Outcome, run};
use simulator::verdict::{Failure, Kind};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// One seed in so many is run twice, to see whether it says the same.
const TWICE: u64 = 25;
/// In one seed of so many somebody is at work on volumes.
const ADMINISTERED: u64 = 4;
/// Lines of trace that are kept for `--trace`.
const LINES: usize = 2_000_000;

struct Options {
    seeds: u64,
    from: u64,
    /// Somebody is at work on volumes in every seed.
    volumes: bool,
    trace: bool,
    threads: usize,
    /// Stop at the first failure of one of these kinds, take no other for one, and look at no floors.
    until: Option<Vec<Kind>>,
    floors: bool,
}

impl Options {
    /// Is somebody at work on volumes in this seed?
    fn administers(&self, seed: u64) -> bool {
        self.volumes || seed.is_multiple_of(ADMINISTERED)
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("simulator: {error}");
            return ExitCode::from(2);
        }
    };
    std::panic::set_hook(Box::new(|info| PANIC.with(|last| *last.borrow_mut() = Some(info.to_string()))));
    let outcomes = run_all(&options);
    report(&options, &outcomes)
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options =
        Options { seeds: 50, from: 0, volumes: false, trace: false, threads: 2, until: None, floors: true };
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().ok_or(format!("{arg} wants a number"))?;
            value.parse::<u64>().map_err(|_| format!("{arg} wants a number, not {value:?}"))
        };
        match arg.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--seed" => (options.from, options.seeds, options.floors) = (number()?, 1, false),
            "--threads" => options.threads = usize::try_from(number()?).unwrap_or(1).max(1),
            "--volumes" => options.volumes = true,
            "--trace" => options.trace = true,
            "--until-failure" => {
                let kinds = args.next().ok_or("--until-failure wants kinds of failures, with commas between them")?;
                options.until = Some(Kind::several(&kinds)?);
                options.floors = false;
            }
            other => {
                return Err(format!(
                    "{other:?} is none of --seeds, --from, --seed, --volumes, --threads, --trace, --until-failure"
                ));
            }
        }
    }
    Ok(options)
}

/// Runs a seed, and again if it is one of those; a panic is a failure like any other.
fn run_one(seed: u64, volumes: bool, trace: usize) -> Outcome {
    let once = |trace| {
        catch_unwind(AssertUnwindSafe(|| run(seed, volumes, trace))).unwrap_or_else(|_| {
            let what = PANIC.with(|last| last.borrow_mut().take()).unwrap_or_default();
            let failure = Some(Failure { kind: Kind::Panic, what: what.replace('\n', " ") });
            let (counts, trace, time) = (BTreeMap::new(), Vec::new(), driver::Span(0));
            Outcome { seed, hash: 0, operations: 0, checked: 0, faults: 0, time, counts, failure, trace }
        })
    };
    let mut outcome = once(trace);
    if outcome.failure.is_none() && seed.is_multiple_of(TWICE) {
        let again = once(0);
        if again.hash != outcome.hash {
            let what = format!("not deterministic: {:016x}, then {:016x}", outcome.hash, again.hash);
            outcome.failure = Some(what.into());
        }
    }
    if outcome.failure.is_none() && (outcome.operations < OPERATIONS || outcome.faults < FAULTS) {
        let Outcome { operations, faults, .. } = outcome;
        outcome.failure = Some(format!("only {operations} operations and {faults} faults").into());
    }
    outcome
}

fn run_all(options: &Options) -> Vec<Outcome> {
    let next = AtomicU64::new(options.from);
    let end = options.from + options.seeds;
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let mut outcome = run_one(seed, options.administers(seed), if options.trace { LINES } else { 0 });
                    if let Some(kinds) = &options.until {
                        outcome.failure = outcome.failure.filter(|failure| kinds.contains(&failure.kind));
                    }
                    if let Some(failure) = &outcome.failure {
                        eprintln!(
                            "seed {seed} FAILED: {failure}\n  again: cargo run -p simulator -- --seed {seed}{} --trace\n",
                            if options.volumes { " --volumes" } else { "" }
                        );
                    }
                    if options.until.is_some() && outcome.failure.is_some() {
                        next.store(end, Ordering::Relaxed);
                    }
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.sort_by_key(|outcome| outcome.seed);
    outcomes
}

fn report(options: &Options, outcomes: &[Outcome]) -> ExitCode {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let (mut hash, mut operations, mut checked, mut faults, mut time) = (0_u64, 0, 0, 0, 0);
    for outcome in outcomes {
        hash = (hash.rotate_left(5) ^ outcome.hash).wrapping_mul(0x517c_c1b7_2722_0a95);
        operations += outcome.operations;
        checked += outcome.checked;
        faults += outcome.faults;
        time += outcome.time.as_millis() / 1000;
        for (name, n) in &outcome.counts {
            *counts.entry(name.clone()).or_default() += n;
        }
        for line in &outcome.trace {
            println!("{line}");
        }
    }
    if options.until.is_none() {
        println!("what happened how often:");
        for (name, n) in &counts {
            println!("  {n:>12} {name}");
        }
    }
    let failed: Vec<u64> = outcomes.iter().filter(|o| o.failure.is_some()).map(|o| o.seed).collect();
    println!(
        "seeds {}..{}: {} good, {} failed; trace hash {hash:016x}",
        options.from,
        options.from + options.seeds,
        outcomes.len() - failed.len(),
        failed.len()
    );
    println!(
        "{operations} client operations, {checked} sector reads checked, {faults} faults, {time} s of virtual time"
    );
    let administered = outcomes.iter().filter(|outcome| options.administers(outcome.seed)).count() as u64;
    let missing = if options.floors { coverage::missing(&counts, options.seeds, administered) } else { Vec::new() };
    for line in &missing {
        println!("below its floor: {line}");
    }
    if !failed.is_empty() {
        println!("failed seeds: {failed:?}");
    }
    if failed.is_empty() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
