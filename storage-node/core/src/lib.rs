//! Sessions, IOCBs, range locks, stamps, fan-out, settling. Pure.
