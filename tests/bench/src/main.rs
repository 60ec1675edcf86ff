//! `bench`: the journaled store on a file of this machine, through the reactor that nodes use, beside raw fio on the same file.
//!
//! One process, one thread. What the store asks of the disk is counted where it asks. Rates are compared only within a run, in turn with
//! fio: absolute figures move with the machine. Ends with 1 if a limit does not hold, with 2 if it could not be measured.
#![forbid(unsafe_code)]

mod load;
mod machine;
mod measure;
mod options;
mod raw;
mod report;
mod rig;
mod tally;

use options::Options;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let options = Options::parse(std::env::args().skip(1))?;
    let report = measure::all(&options)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}", report.tables());
    }
    let broken = report.broken(options.quick);
    for limit in &broken {
        eprintln!("bench: {}: {:.3} is beyond its limit", limit.what, limit.value);
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
