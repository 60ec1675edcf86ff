//! A simulated machine park: virtual clock, network and disks that execute the same operations.
