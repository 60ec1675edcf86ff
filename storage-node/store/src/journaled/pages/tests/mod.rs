//! Paged arrays on a disk that reorders, tears, rots and fails.
#![allow(clippy::cast_possible_truncation, reason = "a test")]

mod crash;
mod damage;
mod disk;
mod limits;
mod rig;
mod same;
