//! The journaled engine: a journal ring in front of a page tree that only the fold changes.

#[allow(dead_code, unused_imports, reason = "the engine that uses it comes next")]
mod pages;
#[allow(dead_code, unused_imports, reason = "the engine that uses it comes next")]
mod ring;
