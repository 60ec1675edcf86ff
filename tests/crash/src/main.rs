//! `crash [--points N] [--rot N] [--operations N] [--seed S]`: stops stores, damages them, compares them; says what it met.
#![forbid(unsafe_code)]

use crash::{Counts, Engine, Journaled, Moment, Outcome, Simple, operations, points, rot};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const USAGE: &str =
    "usage: crash [--engine journaled|simple] [--points N] [--rot PLANTS] [--operations N] [--seed S] [--threads T]
       crash [--engine journaled|simple] --only points|rot|operations --seed S [--point P] [--trace]";
/// Seeds between two lines of progress.
const PROGRESS: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Points,
    Rot,
    Operations,
}

const KINDS: [Kind; 3] = [Kind::Points, Kind::Rot, Kind::Operations];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Points => "points",
            Self::Rot => "rot",
            Self::Operations => "operations",
        }
    }

    /// What one seed of it comes to.
    fn per_seed(self) -> u64 {
        match self {
            Self::Points => points::POINTS,
            Self::Rot => rot::PLANTS,
            Self::Operations => operations::OPERATIONS,
        }
    }

    fn run<E: Engine>(self, seed: u64, only: Option<u64>) -> Outcome {
        let at = |point| POINT.set(Some(point));
        POINT.set(None);
        match self {
            Self::Points => points::run::<E>(seed, only, &at),
            Self::Rot => rot::run::<E>(seed, only, &at),
            Self::Operations => operations::run::<E>(seed),
        }
    }
}

struct Options {
    /// How many points, plants and operations.
    amounts: [u64; 3],
    seed: u64,
    only: Option<Kind>,
    point: Option<u64>,
    threads: usize,
    engine: String,
}

#[derive(Default)]
struct Total {
    reached: u64,
    failed: u64,
    counts: Counts,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static POINT: Cell<Option<u64>> = const { Cell::new(None) };
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("crash: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|last| *last.borrow_mut() = Some(format!("{info}")));
    }));
    match options.engine.as_str() {
        Simple::NAME => all::<Simple>(&options),
        Journaled::NAME => all::<Journaled>(&options),
        other => {
            eprintln!("crash: no engine is called {other:?}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        amounts: [2_000, 1_000, 100_000],
        seed: 0,
        only: None,
        point: None,
        threads: 2,
        engine: Journaled::NAME.to_owned(),
    };
    while let Some(arg) = args.next() {
        if arg == "--trace" {
            crash::trace::switch_on();
            continue;
        }
        let value = args.next().ok_or(format!("{arg} wants a value"))?;
        match arg.as_str() {
            "--engine" => {
                options.engine = value;
                continue;
            }
            "--only" => {
                let kind = KINDS.into_iter().find(|kind| kind.name() == value);
                options.only = Some(kind.ok_or(format!("--only wants points, rot or operations, not {value:?}"))?);
                continue;
            }
            _ => {}
        }
        let number = value.parse::<u64>().map_err(|_| format!("{arg} wants a number, not {value:?}"))?;
        match arg.as_str() {
            "--points" => options.amounts[0] = number,
            "--rot" => options.amounts[1] = number,
            "--operations" => options.amounts[2] = number,
            "--seed" => options.seed = number,
            "--point" => options.point = Some(number),
            "--threads" => options.threads = usize::try_from(number).unwrap_or(1).max(1),
            other => return Err(format!("{other:?} is not known")),
        }
    }
    Ok(options)
}

/// Run one seed; a panic is its failure.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| PANIC.with(|last| last.borrow_mut().take()).unwrap_or_default())
}

fn all<E: Engine>(options: &Options) -> ExitCode {
    let began = Instant::now();
    let mut work: Vec<(Kind, u64)> = vec![];
    for (kind, amount) in KINDS.into_iter().zip(options.amounts) {
        let seeds = if options.only.is_some() { 1 } else { amount.div_ceil(kind.per_seed()) };
        if options.only.is_none_or(|only| only == kind) {
            work.extend((options.seed..options.seed + seeds).map(|seed| (kind, seed)));
        }
    }
    let next = AtomicUsize::new(0);
    let totals = Mutex::new([Total::default(), Total::default(), Total::default()]);
    std::thread::scope(|scope| {
        for _ in 0..options.threads.min(work.len()) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(kind, seed)) = work.get(n) else { return };
                    let outcome = guarded(|| kind.run::<E>(seed, options.point));
                    let Ok(mut totals) = totals.lock() else { return };
                    take::<E>(&mut totals[kind as usize], kind, seed, outcome);
                    if n % PROGRESS == PROGRESS - 1 {
                        let [points, plants, operations] = totals.each_ref().map(|total| total.reached);
                        let took = began.elapsed();
                        println!("{points} points, {plants} plants, {operations} operations, {took:.0?}");
                    }
                }
            });
        }
    });
    let Ok(totals) = totals.into_inner() else { return ExitCode::FAILURE };
    let good = report::<E>(options, &totals);
    println!("engine {}: {:.1?}", E::NAME, began.elapsed());
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn take<E: Engine>(total: &mut Total, kind: Kind, seed: u64, outcome: Result<Outcome, String>) {
    match outcome {
        Ok(outcome) => {
            total.reached += outcome.points;
            total.counts.add(&outcome.counts);
        }
        Err(failure) => {
            total.failed += 1;
            let point = POINT.get().map(|point| format!(" --point {point}")).unwrap_or_default();
            let (engine, kind) = (E::NAME, kind.name());
            println!("FAILED: {failure}");
            println!("  again: cargo run -p crash -- --engine {engine} --only {kind} --seed {seed}{point}");
        }
    }
}

/// What was met. False if something failed, or was met too rarely.
fn report<E: Engine>(options: &Options, totals: &[Total; 3]) -> bool {
    let mut good = true;
    for (kind, total) in KINDS.into_iter().zip(totals) {
        if options.only.is_some_and(|only| only != kind) {
            continue;
        }
        println!("{}: {} reached, {} failed", kind.name(), total.reached, total.failed);
        for counted in [&total.counts.operations, &total.counts.other] {
            let list: Vec<String> = counted.iter().map(|(what, n)| format!("{n} {what}")).collect();
            println!("  {}", list.join(", "));
        }
        let missing = match kind {
            Kind::Points => {
                println!("  crashes in the midst of:");
                for moment in Moment::ALL.iter().filter(|moment| E::meets(**moment)) {
                    println!("  {:>8} {}", total.counts.moments.get(*moment), moment.text());
                }
                let (missing, unknown) = points::missing::<E>(&total.counts, total.reached);
                if !unknown.is_empty() {
                    println!("  engine {} does not know: {}", E::NAME, unknown.join(", "));
                }
                missing
            }
            Kind::Rot => rot::missing(&total.counts, total.reached),
            Kind::Operations => operations::missing::<E>(&total.counts, total.reached),
        };
        good &= total.failed == 0;
        if options.only.is_none() {
            missing.iter().for_each(|line| println!("below its floor: {line}"));
            good &= missing.is_empty();
        }
    }
    good
}
