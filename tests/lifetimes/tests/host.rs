//! The drivers that any machine has.

use lifetimes::{CASES, Over, Reactors, Simulated, run};

/// Connections that come and go, of each kind.
const ROUNDS: usize = 1000;

#[test]
fn over_the_simulator() {
    for seed in 0..20 {
        run(CASES, if seed == 0 { ROUNDS } else { 20 }, || Box::new(Simulated::new(seed)));
    }
}

#[test]
fn over_tcp() {
    run(CASES, ROUNDS, || Box::new(Reactors::new(&Over::Tcp)));
}
