//! `suites`: runs the suites of `tests/budget.toml` in their order, each under its budget.
//!
//! A suite that takes two and a half times its planned minutes is killed, with everything it started, and fails. Output goes to
//! `target/suites/NAME.log`; of a suite that fails, the end is printed, and below the table what failed. The last line is
//! `N passed, N failed`.
//! One suite runs at a time: the simulator, the clusters and the guest each want the whole machine.

#![forbid(unsafe_code)]

mod budget;
mod report;
mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::budget::{Budget, Place};
use crate::run::{Interrupted, Runner};

#[derive(Parser)]
#[command(about = "Run the test suites, each under its budget.")]
struct Cli {
    /// The table of suites; commands run in the directory above the one it lies in
    #[arg(long, default_value = "tests/budget.toml", global = true)]
    table: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run them
    Run(Run),
    /// Show what there is
    List,
}

#[derive(Args)]
struct Run {
    /// Only this suite; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Leave out what runs in the guest
    #[arg(long)]
    skip_guest: bool,
}

fn main() -> ExitCode {
    match act(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("suites: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act(cli: Cli) -> Result<bool> {
    let table = cli.table.canonicalize().with_context(|| format!("there is no {}", cli.table.display()))?;
    let budget = Budget::parse(&fs::read_to_string(&table)?).with_context(|| table.display().to_string())?;
    let root = table.parent().and_then(Path::parent).context("the table lies in no directory of the project")?;
    match cli.verb {
        Verb::List => {
            for suite in &budget.suites {
                println!("{:<14} {:<6} {:>5} min  {}", suite.name, suite.place, suite.minutes, suite.run);
            }
            Ok(true)
        }
        Verb::Run(run) => {
            if let Some(unknown) = run.only.iter().find(|name| budget.suites.iter().all(|suite| suite.name != **name)) {
                bail!("there is no suite '{unknown}'");
            }
            let chosen = budget.suites.iter().filter(|suite| {
                (run.only.is_empty() || run.only.contains(&suite.name))
                    && !(run.skip_guest && suite.place == Place::Guest)
            });
            let logs = root.join("target/suites");
            fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
            let mut runner = Runner::new(root, &logs)?;
            let mut done = Vec::new();
            for suite in chosen {
                match runner.run(suite)? {
                    Ok(verdict) => done.push((suite, verdict)),
                    Err(Interrupted) => bail!("interrupted in suite '{}'", suite.name),
                }
            }
            let (table, totals, green) = report::table(&done);
            print!("\n{table}{totals}\n");
            fs::write(logs.join("totals"), format!("{totals}\n"))?;
            Ok(green)
        }
    }
}
