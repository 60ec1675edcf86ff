//! The real cores in a simulated cluster: fault mix, linearizability, coverage floors.
