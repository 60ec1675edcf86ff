//! What this machine offers to a target or a node: for `trine doctor`.

use reactor::{Limits, OwnRing, ReactorError, Uring};
pub use ublk_device::{DeviceError, Feature, Probe as UblkProbe};

/// Whether a reactor can run: io_uring, and every operation that it uses.
pub fn ring() -> Result<(), ReactorError> {
    let limits = Limits::default();
    Uring::new(OwnRing::new(&limits)?, limits).map(drop)
}

/// What the kernel's ublk driver can do, if it is there and this process may use it.
pub fn ublk() -> Result<UblkProbe, DeviceError> {
    ublk_device::probe()
}
