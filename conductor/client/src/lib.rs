//! HTTP client of the conductor, for nodes, targets and tools.
