//! The frame: header, checksums, credits, handshake. Pure.
