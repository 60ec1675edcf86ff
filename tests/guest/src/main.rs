//! The guest runner.
fn main() {}
