//! Registered, aligned memory behind buffer descriptors.
