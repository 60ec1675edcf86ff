//! Real processes on loopback: the harness and its suites.
