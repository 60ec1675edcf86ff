//! The store on disks that lose power: stopped at every sync and in between, damaged, and compared with a flat model.
//!
//! ```text
//!  mood ──▶ World ──ops──▶ Engine's Store ──disk ops──▶ Disks (volatile cache, any order)
//!            │ Model ◀──completions──┘                     │ stopped: power cut or kill
//!            └──────────── recover: open, compare, go on ◀─┘
//! ```
//! A *point* is one stop: `points` says where they are, `recover` what must hold after each, `moment` what they must have met.
//! `rot` plants damage, `operations` drives random operations against the simple engine. Each failure names the seed that repeats it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // a test: a panic is its way to fail

mod content;
mod disk;
mod engine;
mod flying;
mod model;
mod moment;
mod mood;
pub mod operations;
pub mod points;
mod recover;
pub mod rot;
pub mod trace;
mod world;

pub use disk::{Disks, Open};
pub use engine::{Ability, Begun, Engine, Journaled, Progress, Refused, Shape, Simple};
pub use moment::Moment;
pub use points::Outcome;
pub use world::Counts;
