//! What a device is made with.

use crate::DeviceError;
use crate::limits::{MAX_DEPTH, MAX_IO_BYTES, MAX_QUEUES};
use conductor_model::{Bytes, ClusterId, SECTOR, SnapshotId, VolumeId};

/// Whose a device is, as the kernel keeps it: device numbers are used again, so a number alone says nothing. 24 bits: no two of a
/// cluster's volumes share one within 16 million volumes, and another cluster's volume does by rare chance only.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Owner(u32);

impl Owner {
    /// How many bits there are.
    pub(crate) const BITS: u32 = 24;

    /// A cluster's volume, or one of its snapshots. Clusters' ids are random, volumes' and snapshots' are counted: the factor, which
    /// is odd, keeps a snapshot apart from the volumes near it.
    pub fn of(cluster: ClusterId, volume: VolumeId, snapshot: Option<SnapshotId>) -> Self {
        let snapshot = snapshot.map_or(0, |snapshot| snapshot.0.wrapping_mul(0x9e_3779));
        Self::from_flags(cluster.0.wrapping_add(volume.0.into()).wrapping_add(snapshot))
    }

    /// In the low bits of what the kernel keeps.
    pub(crate) fn from_flags(flags: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the bits that are cut are masked out")]
        let low = flags as u32;
        Self(low & ((1 << Self::BITS) - 1))
    }

    /// The low bits of what the kernel keeps.
    pub(crate) fn to_flags(self) -> u64 {
        self.0.into()
    }
}

/// What a device is made with. A device that is recovered keeps what it was made with; only `name`, `owner`, `recover` and `half_started` count then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceOptions {
    /// What its threads are called after: the volume.
    pub name: String,
    /// Whose it is; one that is recovered must be this one's.
    pub owner: Owner,
    /// How large it is: whole 4 KiB blocks.
    pub size: Bytes,
    /// Threads that serve it, each with its own ring.
    pub queues: u16,
    /// Requests in flight per queue.
    pub depth: u16,
    /// Longest READ or WRITE in bytes: whole pages, at most [`crate::MAX_IO_BYTES`].
    pub io_buf_bytes: u32,
    /// No writes.
    pub read_only: bool,
    /// Acknowledged writes may be lost by a crash until they are flushed: the kernel sends FLUSH and FUA. False (every
    /// acknowledged write is durable) spares them.
    pub write_back: bool,
    /// Take this device over instead of making one.
    pub recover: Option<u32>,
    /// Its daemon may have ended between the start of that device and what follows it, which is done now.
    pub half_started: bool,
}

impl DeviceOptions {
    /// One queue of 128 requests of up to 512 KiB; writable, every acknowledged write durable; nobody's.
    pub fn new(name: impl Into<String>, size: Bytes) -> Self {
        Self {
            name: name.into(),
            owner: Owner::default(),
            size,
            queues: 1,
            depth: 128,
            io_buf_bytes: 512 << 10,
            read_only: false,
            write_back: false,
            recover: None,
            half_started: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        let bad = |what| Err(DeviceError::Options(what));
        if self.recover.is_some() {
            return Ok(());
        }
        if self.size.0 == 0 || !self.size.is_block_aligned() || self.size.0 / SECTOR > i64::MAX as u64 / SECTOR {
            return bad("its size is not a number of 4 KiB blocks that Linux can address");
        }
        if self.queues == 0 || self.queues > MAX_QUEUES {
            return bad("choose 1 to 64 queues");
        }
        if self.depth == 0 || self.depth > MAX_DEPTH {
            return bad("choose a depth of 1 to 1024");
        }
        if self.io_buf_bytes == 0 || self.io_buf_bytes > MAX_IO_BYTES || !self.io_buf_bytes.is_multiple_of(4096) {
            return bad("its buffers are not whole pages of at most 1 MiB");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_device_are_refused_before_the_kernel_sees_them() {
        let good = DeviceOptions::new("v", Bytes(1 << 20));
        assert!(good.check().is_ok());
        let bad = [
            DeviceOptions { size: Bytes(0), ..good.clone() },
            DeviceOptions { size: Bytes(4097), ..good.clone() },
            DeviceOptions { size: Bytes(u64::MAX - 4095), ..good.clone() },
            DeviceOptions { queues: 0, ..good.clone() },
            DeviceOptions { queues: MAX_QUEUES + 1, ..good.clone() },
            DeviceOptions { depth: 0, ..good.clone() },
            DeviceOptions { depth: MAX_DEPTH + 1, ..good.clone() },
            DeviceOptions { io_buf_bytes: 512, ..good.clone() },
            DeviceOptions { io_buf_bytes: MAX_IO_BYTES + 4096, ..good },
        ];
        for options in bad {
            assert!(options.check().is_err(), "{options:?}");
        }
    }
}
