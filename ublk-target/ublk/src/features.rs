//! What this kernel's ublk can do, for `trine doctor` and for our own decisions.

use crate::DeviceError;
use crate::kernel::Control;
use std::path::Path;

/// The kernel's bits, by name, lowest first.
const NAMES: [(u64, &str); 20] = [
    (1 << 0, "zero-copy"),
    (1 << 1, "complete-in-task"),
    (1 << 2, "need-get-data"),
    (1 << 3, "user-recovery"),
    (1 << 4, "user-recovery-reissue"),
    (1 << 5, "unprivileged"),
    (1 << 6, "ioctl-encode"),
    (1 << 7, "user-copy"),
    (1 << 8, "zoned"),
    (1 << 9, "user-recovery-fail-io"),
    (1 << 10, "update-size"),
    (1 << 11, "auto-buffer-registration"),
    (1 << 12, "quiesce"),
    (1 << 13, "per-io-daemon"),
    (1 << 14, "buffer-registration-off-daemon"),
    (1 << 15, "batch-io"),
    (1 << 16, "integrity"),
    (1 << 17, "safe-stop"),
    (1 << 18, "no-partition-scan"),
    (1 << 19, "shared-memory-zero-copy"),
];

/// What we look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Feature {
    /// A device outlives its daemon.
    UserRecovery = 1 << 3,
    /// And what was not answered is asked again.
    Reissue = 1 << 4,
    /// A live device can grow.
    UpdateSize = 1 << 10,
    /// A device can be stopped on condition that nobody has it open.
    SafeStop = 1 << 17,
    /// The partition table is read when somebody asks for it, not some time after START_DEV.
    NoPartitionScan = 1 << 18,
}

/// What the kernel offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    bits: u64,
}

impl Probe {
    pub(crate) fn of(bits: u64) -> Self {
        Self { bits }
    }

    /// Of this kernel. One before 6.5 does not say; none of what is decided by it is older.
    pub(crate) fn ask(control: &mut Control) -> Self {
        control.features().map_or(Self::of(0), Self::of)
    }

    /// Whether it has a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.bits & feature as u64 != 0
    }

    /// The feature's bit if it is there.
    pub(crate) fn bit(&self, feature: Feature) -> u64 {
        self.bits & feature as u64
    }

    /// The names of all of them; those that we know no name for by their bit.
    pub fn names(&self) -> Vec<String> {
        let bit = |at: u32| {
            let mask = 1 << at;
            let name = NAMES.iter().find(|(bit, _)| *bit == mask);
            name.map_or_else(|| format!("bit-{at}"), |(_, name)| (*name).to_owned())
        };
        (0..u64::BITS).filter(|at| self.bits & (1 << at) != 0).map(bit).collect()
    }

    /// The kernel's bits.
    pub fn bits(&self) -> u64 {
        self.bits
    }
}

/// Asks the kernel. An error says what is in the way: no driver, no access, or a kernel without GET_FEATURES (before 6.5).
pub fn probe() -> Result<Probe, DeviceError> {
    let mut control = Control::open()?;
    control.features().map(Probe::of)
}

/// Whether the driver is in the kernel at all.
pub fn driver_is_loaded() -> bool {
    Path::new("/dev/ublk-control").exists() || Path::new("/sys/module/ublk_drv").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_and_unknown_ones_are_numbered() {
        let probe = Probe::of(Feature::UserRecovery as u64 | Feature::UpdateSize as u64 | 1 << 40);
        assert_eq!(probe.names(), ["user-recovery", "update-size", "bit-40"]);
        assert!(probe.has(Feature::UserRecovery) && !probe.has(Feature::SafeStop));
    }
}
