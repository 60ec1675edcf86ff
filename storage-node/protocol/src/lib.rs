//! The bodies of the data-path messages: what a client says to a primary and a primary to its replicas. Pure.
