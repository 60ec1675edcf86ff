//! Everything that was kept is run again.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

#[test]
fn every_input_that_was_kept_and_every_seed_runs_through_its_target() {
    for target in &fuzz::TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut inputs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{} keeps no input", target.name);
        for input in &inputs {
            // Of a process that ends without a word, the last line says which.
            println!("{}", input.display());
            fuzz::run(target, &fs::read(input).unwrap());
        }
        for (n, seed) in (target.seeds)().iter().enumerate() {
            println!("{} seed {n}", target.name);
            assert!(seed.len() <= target.longest, "seed {n} of {} is {} bytes long", target.name, seed.len());
            fuzz::run(target, seed);
        }
    }
}
