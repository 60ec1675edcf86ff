//! `bench-cluster`: Trine's three copies beside QEMU quorum over three nbdkit, single servers, and a bare floor, on one machine.
//!
//! ```text
//!   fio ─ NBD ─► target ─ TCP ─► primary ─► 2 replicas        Trine
//!   trine bench ─ TCP ─► primary ─► 2 replicas                 the same without NBD
//!   fio ─ NBD ─► qemu-storage-daemon ─ TCP ─► 3 nbdkit         quorum
//!   fio ─ NBD ─► nbdkit, or qemu-nbd                           one copy: what an NBD hop costs
//!   floor load ─ TCP ─► floor node ─► 2 floor nodes            the same path with nothing in it
//! ```
//! Everybody in turn, round after round: absolute figures move with the machine, ratios within a run hold. Every write is durable when
//! it is answered. Ends with 1 if a limit of the budget does not hold, with 2 if it could not be measured.

mod account;
mod capacity;
mod cases;
mod fio;
mod floor;
mod many;
mod native;
mod options;
mod peers;
mod plot;
mod report;
mod run;
mod vm;

use options::{Mode, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|mode| match mode {
        Mode::Bench(options) => run::all(&options),
        Mode::FloorNode(node) => floor::node::run(&node).map(|()| ExitCode::SUCCESS),
        Mode::Vm(vm) => vm::judge(&vm),
        Mode::FloorLoad(load) => floor::load::run(&load).map(|()| ExitCode::SUCCESS),
    });
    done.unwrap_or_else(|error| {
        eprintln!("bench-cluster: {error:#}");
        ExitCode::from(2)
    })
}
