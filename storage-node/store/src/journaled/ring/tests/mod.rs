//! The journal against a disk that drops, tears and reorders whatever is not stable.
#![allow(clippy::cast_possible_truncation, reason = "small numbers in tests")]

mod crash;
mod disk;
mod journal;
