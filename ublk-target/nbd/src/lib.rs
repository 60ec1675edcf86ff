//! The NBD server session. Pure.
