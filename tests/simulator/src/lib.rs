//! The whole system in one thread and one seed: the real cores on a simulated network, disks and clock.
//!
//! ```text
//!   main ── seeds ──▶ seed::run ──▶ World: 3 node processes, lanes of a client
//!                       │  ▲           ▲ mail, faults, alarms      │ letters
//!                       │  └─ director ┴──── conductor (model) ◀───┘
//!                       └──▶ checker (history), copies compared, counts at rest, coverage
//! ```
//!
//! Promises: a seed says the same thing on every machine; what a run did not reach, it fails for (`coverage`); a failing seed says
//! how to run it again. Never: repairs what a core did, or tells a core anything that the real drivers would not.
#![forbid(unsafe_code)]

pub mod checker;
mod conductor;
mod content;
pub mod coverage;
mod director;
mod faults;
pub mod history;
mod inspector;
mod lane;
mod mail;
mod node;
pub mod seed;
mod strict;
pub mod verdict;
mod workload;

pub use content::SECTOR;
