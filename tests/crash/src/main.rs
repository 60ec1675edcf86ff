//! `crash --points N [--seed S] [--point P]`: stops stores, and says what they were in the midst of.
#![forbid(unsafe_code)]

use crash::{Counts, Engine, Moment, Simple, points};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: crash [--points N] [--seed S [--point P]] [--threads T] [--engine simple]";

struct Options {
    points: u64,
    seed: u64,
    point: Option<u64>,
    threads: u64,
    engine: String,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static POINT: Cell<u64> = const { Cell::new(0) };
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
        other => {
            eprintln!("crash: no engine is called {other:?}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { points: 2_000, seed: 0, point: None, threads: 2, engine: Simple::NAME.to_owned() };
    while let Some(arg) = args.next() {
        let value = args.next().ok_or(format!("{arg} wants a value"))?;
        if arg == "--engine" {
            options.engine = value;
            continue;
        }
        let number = value.parse::<u64>().map_err(|_| format!("{arg} wants a number, not {value:?}"))?;
        match arg.as_str() {
            "--points" => options.points = number,
            "--seed" => options.seed = number,
            "--point" => options.point = Some(number),
            "--threads" => options.threads = number.max(1),
            other => return Err(format!("{other:?} is not known")),
        }
    }
    Ok(options)
}

/// Run one seed; a panic is its failure, with the point at which it came.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| PANIC.with(|last| last.borrow_mut().take()).unwrap_or_default())
}

fn all<E: Engine>(options: &Options) -> ExitCode {
    let began = Instant::now();
    let seeds = if options.point.is_some() { 1 } else { options.points.div_ceil(points::POINTS) };
    let (next, total) = (AtomicU64::new(options.seed), Mutex::new((0_u64, 0_u64, Counts::default())));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.min(seeds) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= options.seed + seeds {
                        return;
                    }
                    let outcome = guarded(|| points::run::<E>(seed, options.point, &|point| POINT.set(point)));
                    let Ok(mut total) = total.lock() else { return };
                    match outcome {
                        Ok(outcome) => {
                            total.0 += outcome.points;
                            total.2.add(&outcome.counts);
                            if (seed - options.seed) % 10 == 9 {
                                println!("{} points, {} failed, {:.0?}", total.0, total.1, began.elapsed());
                            }
                        }
                        Err(failure) => {
                            total.1 += 1;
                            let (name, point) = (E::NAME, POINT.get());
                            println!(
                                "FAILED: {failure}\n  again: cargo run -p crash -- --engine {name} --seed {seed} --point {point}"
                            );
                        }
                    }
                }
            });
        }
    });
    let Ok((reached, failed, counts)) = total.into_inner() else { return ExitCode::FAILURE };
    for (name, counted) in [("operations", &counts.operations), ("and", &counts.other)] {
        let list: Vec<String> = counted.iter().map(|(what, n)| format!("{n} {what}")).collect();
        println!("{name}: {}", list.join(", "));
    }
    println!("crashes in the midst of:");
    for moment in Moment::ALL.iter().filter(|moment| E::meets(**moment)) {
        println!("  {:>8} {}", counts.moments.get(*moment), moment.text());
    }
    let (missing, unknown) = points::missing::<E>(&counts, reached);
    if !unknown.is_empty() {
        println!("engine {} does not know: {}", E::NAME, unknown.join(", "));
    }
    println!("engine {}: {reached} points, {failed} failed, {:.1?}", E::NAME, began.elapsed());
    let complete = options.point.is_some() || missing.is_empty();
    if !complete {
        missing.iter().for_each(|line| println!("below its floor: {line}"));
    }
    if failed == 0 && complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
