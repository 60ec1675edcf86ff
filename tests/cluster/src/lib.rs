//! Real processes on loopback: a cluster that tests start, kill, freeze, restart and look into, and clients of their own.
//!
//! ```text
//!   Workload ─ Nbd ─► target ─► n1 n2 n3      every byte against the Ledger
//!   Chains ─ Nbd ─────────────► …          pictures of which it can be told whether they are of one moment
//!   Peer ──────────────────────► n1           a node's protocol, spoken well or badly
//!   Etcd ◄─ several conductors            where a test has them
//!   Cluster: trine dev start; kill -9, SIGSTOP, restart by pid; trine status -o json
//! ```
//!
//! Promises: whatever happens to a test, none of its processes and files stays; two tests at a time do not meet. Wall-clock
//! promises are printed, never asserted; the limits here are far above what anything takes.
#![forbid(unsafe_code)]

mod certificates;
mod chains;
mod cluster;
mod command;
mod etcd;
mod fio;
mod ledger;
pub mod nbd;
mod network;
pub mod peer;
mod ports;
mod process;
mod random;
pub mod rot;
mod watcher;
mod workload;

pub use chains::{CHAINS, Chains, Layout, Picture, Steps};
pub use cluster::{Cluster, LONG, Shape, wait_until};
pub use command::{Outcome, Running, binary};
pub use etcd::Etcd;
pub use fio::Fio;
pub use ledger::{Ledger, SECTOR, ZEROS, content};
pub use network::{Network, Spot};
pub use process::{Process, Recipe};
pub use random::Random;
pub use workload::{Done, Options, Workload};
