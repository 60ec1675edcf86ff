//! The whole system in one thread and one seed: the real cores on a simulated network, disks and clock.
//!
//! ```text
//!   main ── seeds ──▶ seed::run ──▶ World: 3 node processes, lanes of a client
//!                       │  ▲           ▲ mail, faults, alarms      │ letters
//!                       │  └─ director ┴──── conductor (model) ◀───┘
//!                       └──▶ checker (history), copies compared, counts at rest, coverage
//! ```
//!
//! What goes wrong is in `faults`, what disks do in `disk_faults`. In one seed of four somebody works on volumes meanwhile
//! (`volumes`; with `--volumes` in each): each snapshot is then checked as one read of the whole volume at one moment.
//!
//! Promises: a seed says the same thing on every machine; what a run did not reach, it fails for (`coverage`); a failing seed says
//! how to run it again. Never: repairs what a core did, or tells a core anything that the real drivers would not.
#![forbid(unsafe_code)]

mod bars;
pub mod checker;
mod conductor;
mod content;
pub mod coverage;
mod director;
mod disk_faults;
mod faults;
pub mod history;
mod inspector;
mod lane;
mod mail;
mod node;
pub mod seed;
mod strict;
pub mod verdict;
mod volumes;
mod workload;

pub use content::SECTOR;
