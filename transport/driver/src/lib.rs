//! The seam between logic and the machine: time, operations, completions.
