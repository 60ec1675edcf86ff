//! Several nodes in a simulated world, one promise per test. One program for all: what makes a node is built into each.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "tests")]

mod common;

mod copy_range;
mod creation;
mod filling;
mod filling_beside;
mod filling_damaged;
mod filling_past;
mod flush;
mod integrity;
mod keys;
mod links;
mod lost;
mod orders;
mod past;
mod ranges;
mod readers;
mod room;
mod settling;
