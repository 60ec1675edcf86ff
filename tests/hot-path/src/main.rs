//! `hot-path`: how many instructions nodes and client spend on one request, everything that is not theirs left out.
//!
//! The real machines run in the simulator, whose events are the same each time, below callgrind, which counts instructions: the figure
//! does not move with what else the machine does. It is compared with the recorded one; more than `MORE` percent above it fails, so that a
//! regression shows in CI on a noisy machine, and as much below asks for a new record. What it leaves out is the kernel.
//!
//!   hot-path [--write] [--profile]     measure all cases; write the new record; show what the instructions went to
//!   hot-path CASE                      do one case (what callgrind runs)
#![forbid(unsafe_code)]

mod client;
mod cluster;
mod counted;
mod node;
mod valgrind;

use anyhow::{Context, Result, bail};
use client::Load;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// By how many percent a figure may be off the recorded one: what another version of the C library changes.
const MORE: f64 = 6.0;
/// Where the recorded figures are.
const RECORD: &str = "tests/hot-path/recorded.toml";

/// What is measured.
struct Case {
    name: &'static str,
    writes: bool,
    bytes: u64,
    depth: u32,
    requests: u32,
}

const CASES: [Case; 6] = [
    Case { name: "write-4k-1", writes: true, bytes: 4 << 10, depth: 1, requests: 300 },
    Case { name: "write-4k-32", writes: true, bytes: 4 << 10, depth: 32, requests: 3000 },
    Case { name: "write-4k-128", writes: true, bytes: 4 << 10, depth: 128, requests: 3000 },
    Case { name: "read-4k-1", writes: false, bytes: 4 << 10, depth: 1, requests: 300 },
    Case { name: "read-4k-32", writes: false, bytes: 4 << 10, depth: 32, requests: 3000 },
    Case { name: "write-1m-4", writes: true, bytes: 1 << 20, depth: 4, requests: 32 },
];

/// Instructions per request, by case.
#[derive(Default, Serialize, Deserialize)]
struct Record {
    #[serde(default)]
    instructions: BTreeMap<String, u64>,
}

fn main() -> ExitCode {
    match act() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hot-path: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act() -> Result<bool> {
    let (mut write, mut profile) = (false, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--write" => write = true,
            "--profile" => profile = true,
            name => match CASES.iter().find(|case| case.name == name) {
                Some(case) => {
                    play(case);
                    return Ok(true);
                }
                None => {
                    bail!("there is no {name}: --write, --profile or one of {}", CASES.map(|case| case.name).join(", "))
                }
            },
        }
    }
    let text = std::fs::read_to_string(RECORD).unwrap_or_default();
    let recorded: Record = toml::from_str(&text).context(RECORD)?;
    let mut measured = Record::default();
    let mut well = true;
    println!("{:<14} {:>12} {:>12} {:>8}", "instructions", "a request", "recorded", "");
    for case in &CASES {
        let counted = valgrind::count(case.name, profile)?;
        let each = counted / u64::from(case.requests);
        measured.instructions.insert(case.name.to_owned(), each);
        let Some(before) = recorded.instructions.get(case.name) else {
            println!("{:<14} {each:>12} {:>12}", case.name, "-");
            well &= write;
            continue;
        };
        let percent = (each as f64 / *before as f64 - 1.0) * 100.0;
        let verdict = match percent {
            more if more > MORE => "MORE",
            less if less < -MORE => "less: record it",
            _ => "",
        };
        println!("{:<14} {each:>12} {before:>12} {percent:>+7.1} % {verdict}", case.name);
        well &= write || percent <= MORE;
    }
    if write {
        std::fs::write(RECORD, toml::to_string(&measured)?).context(RECORD)?;
    }
    Ok(well)
}

/// A case: its volume written once, some requests like those that count, then these.
fn play(case: &Case) {
    let load = |writes, bytes, depth, requests| Load { writes, bytes, depth, requests };
    let fill = load(true, 1 << 20, 4, 64);
    let warm = load(case.writes, case.bytes, case.depth, case.requests / 4);
    cluster::run(&[fill, warm, load(case.writes, case.bytes, case.depth, case.requests)]);
}
