//! The journal against a disk that drops, tears and reorders whatever is not stable, and one that rots.
#![allow(clippy::cast_possible_truncation, reason = "small numbers in tests")]

mod behaviour;
mod crash;
mod disk;
mod journal;
mod rot;
