//! `make model`: the replication protocol in every interleaving of small clusters, and each rule broken on purpose.
//!
//! A configuration is explored to its end, and its number of states is pinned; a switch must be caught. `--larger` explores what
//! takes too long for every change (`make soak`). docs/replication.md says which rule is where.
#![forbid(unsafe_code)]

mod barrier;
mod cases;
mod explore;
mod failover;
mod filling;

use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Explore the replication protocol: each configuration to its end, each switch until it is caught.")]
struct Cli {
    /// Only what has this in its name
    #[arg(long, default_value = "")]
    only: String,
    /// The larger configurations instead
    #[arg(long)]
    larger: bool,
    /// Threads; with more than one, a counterexample may be longer than the shortest
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Print the steps of each counterexample
    #[arg(long)]
    steps: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let began = Instant::now();
    let cases = if cli.larger {
        cases::larger()
    } else {
        cases::configurations().into_iter().chain(cases::switches()).collect()
    };
    let mut failed = Vec::new();
    let mut ran = 0;
    for case in cases.iter().filter(|c| c.name.contains(&cli.only)) {
        let outcome = (case.run)(cli.threads);
        let (as_expected, line) = case.judge(&outcome);
        println!("{} {:<38} {line}", if as_expected { "ok  " } else { "FAIL" }, case.name);
        println!("     {}", case.about);
        if let Some(found) = outcome.found.as_ref().filter(|_| cli.steps) {
            println!("         {}", found.steps.join("\n         "));
        }
        ran += 1;
        if !as_expected {
            failed.push(case.name);
        }
    }
    let seconds = began.elapsed().as_secs();
    println!("model: {ran} explored in {seconds} s, {} not as expected {}", failed.len(), failed.join(" "));
    if failed.is_empty() && ran > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
