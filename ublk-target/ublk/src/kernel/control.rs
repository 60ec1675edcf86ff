//! Control commands to ublk: one at a time, each waited for to its end.

use crate::features::{Feature, Probe, driver_is_loaded};
use crate::limits::MAX_ZERO_SECTORS;
use crate::{DeviceError, DeviceOptions, Owner};
use conductor_model::{Bytes, SECTOR};
use driver::Errno;
use io_uring::{IoUring, opcode, squeue::Entry128, types::Fd};
use libublk::sys;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

const PATH: &str = "/dev/ublk-control";

/// No device, or whichever number is free.
const ANY: u32 = u32::MAX;

/// How older kernels say that they do not know a command; not of libc.
const ENOTSUPP: i32 = 524;

/// In the flags that the kernel keeps for the server: "TRINE", so that a device can be recognised as ours without any file. Below
/// it, whose it is.
const OURS: u64 = u64::from_be_bytes(*b"TRINE\0\0\0");
const OURS_MASK: u64 = u64::MAX << Owner::BITS;

/// What devices are made with wherever the kernel has it (6.1): see `UBLK_F_USER_RECOVERY` in linux/ublk_cmd.h.
const FLAGS: u32 = sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE;

/// Life of a device as the kernel sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Not started, or stopped.
    Dead,
    /// Started. Also for a moment after its daemon died.
    Live,
    /// Waits for a daemon.
    Quiesced,
    /// Fails all requests until a daemon comes.
    FailIo,
}

/// What the kernel knows of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Info {
    pub(crate) id: u32,
    pub(crate) state: State,
    /// The daemon; -1 if it is gone.
    pub(crate) pid: i32,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) io_buf_bytes: u32,
    /// Whose it is; `None`: not made by Trine.
    pub(crate) owner: Option<Owner>,
    pub(crate) recoverable: bool,
}

impl Info {
    fn of(raw: sys::ublksrv_ctrl_dev_info) -> Self {
        Self {
            id: raw.dev_id,
            state: match u32::from(raw.state) {
                sys::UBLK_S_DEV_LIVE => State::Live,
                sys::UBLK_S_DEV_QUIESCED => State::Quiesced,
                sys::UBLK_S_DEV_FAIL_IO => State::FailIo,
                _ => State::Dead,
            },
            pid: raw.ublksrv_pid,
            queues: raw.nr_hw_queues,
            depth: raw.queue_depth,
            io_buf_bytes: raw.max_io_buf_bytes,
            owner: owner(raw.ublksrv_flags),
            recoverable: raw.flags & u64::from(FLAGS) == u64::from(FLAGS),
        }
    }
}

/// What the block layer is told of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) size: Bytes,
    pub(crate) read_only: bool,
    pub(crate) write_back: bool,
}

impl Shape {
    fn of(params: &sys::ublk_params) -> Self {
        Self {
            size: Bytes(params.basic.dev_sectors.saturating_mul(SECTOR)),
            read_only: params.basic.attrs & sys::UBLK_ATTR_READ_ONLY != 0,
            write_back: params.basic.attrs & sys::UBLK_ATTR_VOLATILE_CACHE != 0,
        }
    }
}

/// The control device, and a ring for commands to it.
pub(crate) struct Control {
    file: File,
    ring: IoUring<Entry128>,
}

impl Control {
    pub(crate) fn open() -> Result<Self, DeviceError> {
        let file = OpenOptions::new().read(true).write(true).open(PATH).map_err(|error| match error.kind() {
            ErrorKind::NotFound if !driver_is_loaded() => DeviceError::NoDriver,
            ErrorKind::PermissionDenied => DeviceError::NoAccess(error),
            _ => DeviceError::Open { path: PATH.into(), error },
        })?;
        let ring = IoUring::<Entry128>::builder().build(2).map_err(DeviceError::NoRing)?;
        Ok(Self { file, ring })
    }

    pub(crate) fn features(&mut self) -> Result<u64, DeviceError> {
        self.filled("GET_FEATURES", sys::UBLK_U_CMD_GET_FEATURES, u32::MAX, 0u64)
    }

    pub(crate) fn info(&mut self, id: u32) -> Result<Info, DeviceError> {
        let empty = sys::ublksrv_ctrl_dev_info::default();
        self.filled("GET_DEV_INFO", sys::UBLK_U_CMD_GET_DEV_INFO, id, empty).map(Info::of)
    }

    /// Makes a device of which nothing but its number and its character device exists yet. The kernel may give it fewer queues. libublk
    /// knows no `NoPartitionScan`.
    pub(crate) fn add(&mut self, options: &DeviceOptions, probe: &Probe) -> Result<Info, DeviceError> {
        let wanted = sys::ublksrv_ctrl_dev_info {
            dev_id: ANY,
            nr_hw_queues: options.queues,
            queue_depth: options.depth,
            max_io_buf_bytes: options.io_buf_bytes,
            ublksrv_pid: pid(),
            flags: u64::from(FLAGS) | probe.bit(Feature::NoPartitionScan),
            ublksrv_flags: server_flags(options.owner),
            ..Default::default()
        };
        self.filled("ADD_DEV", sys::UBLK_U_CMD_ADD_DEV, ANY, wanted).map(Info::of)
    }

    /// Tells the block layer what the device will be.
    pub(crate) fn shape(&mut self, id: u32, options: &DeviceOptions) -> Result<(), DeviceError> {
        let params = params(options);
        self.filled("SET_PARAMS", sys::UBLK_U_CMD_SET_PARAMS, id, params).map(drop)
    }

    pub(crate) fn read_shape(&mut self, id: u32) -> Result<Shape, DeviceError> {
        let empty = sys::ublk_params { len: len_of::<sys::ublk_params>().into(), ..Default::default() };
        let params = self.filled("GET_PARAMS", sys::UBLK_U_CMD_GET_PARAMS, id, empty)?;
        Ok(Shape::of(&params))
    }

    /// Makes the block device. All queues must have fetched; the kernel reads from it before this returns.
    pub(crate) fn start(&mut self, id: u32) -> Result<(), DeviceError> {
        self.plain("START_DEV", sys::UBLK_U_CMD_START_DEV, id, u64::from(pid().unsigned_abs()))
    }

    /// Ends the block device when its requests are done.
    pub(crate) fn stop(&mut self, id: u32) -> Result<(), DeviceError> {
        self.plain("STOP_DEV", sys::UBLK_U_CMD_STOP_DEV, id, 0)
    }

    /// The same, but fails with EBUSY if anybody has it open.
    pub(crate) fn stop_unused(&mut self, id: u32) -> Result<(), DeviceError> {
        match self.plain("TRY_STOP_DEV", sys::UBLK_U_CMD_TRY_STOP_DEV, id, 0) {
            Err(DeviceError::Refused { errno: Errno(libc::EBUSY), .. }) => Err(DeviceError::InUse(id)),
            other => other,
        }
    }

    /// Removes a stopped device; its number is free when nobody has its character or block device open any more.
    pub(crate) fn delete_later(&mut self, id: u32) -> Result<(), DeviceError> {
        match self.plain("DEL_DEV_ASYNC", sys::UBLK_U_CMD_DEL_DEV_ASYNC, id, 0) {
            // Before 6.9.
            Err(DeviceError::Refused { errno: Errno(libc::EOPNOTSUPP | ENOTSUPP | libc::EINVAL), .. }) => {
                // It waits for that.
                self.plain("DEL_DEV", sys::UBLK_U_CMD_DEL_DEV, id, 0)
            }
            other => other,
        }
    }

    /// A new daemon takes the device.
    pub(crate) fn begin_recovery(&mut self, id: u32) -> Result<(), DeviceError> {
        self.plain("START_USER_RECOVERY", sys::UBLK_U_CMD_START_USER_RECOVERY, id, 0)
    }

    /// The new daemon's queues have fetched.
    pub(crate) fn end_recovery(&mut self, id: u32) -> Result<(), DeviceError> {
        self.plain("END_USER_RECOVERY", sys::UBLK_U_CMD_END_USER_RECOVERY, id, u64::from(pid().unsigned_abs()))
    }

    pub(crate) fn resize(&mut self, id: u32, size: Bytes) -> Result<(), DeviceError> {
        self.plain("UPDATE_SIZE", sys::UBLK_U_CMD_UPDATE_SIZE, id, size.0 / SECTOR)
    }

    fn plain(&mut self, name: &'static str, op: u32, id: u32, data: u64) -> Result<(), DeviceError> {
        self.command(name, op, id, data, 0, 0)
    }

    /// A command with a C structure that the kernel reads or fills.
    fn filled<T: Copy>(&mut self, name: &'static str, op: u32, id: u32, value: T) -> Result<T, DeviceError> {
        let mut value = Box::new(value);
        let address = std::ptr::from_mut(&mut *value).expose_provenance() as u64;
        let result = self.command(name, op, id, 0, address, len_of::<T>());
        if matches!(result, Err(DeviceError::NoRing(_))) {
            // Nobody knows whether the kernel still has the command.
            std::mem::forget(value);
            return result.map(|()| unreachable!("it is an error"));
        }
        result.map(|()| *value)
    }

    /// Sends a command and waits for its answer, however many signals come in between.
    fn command(
        &mut self,
        command: &'static str,
        op: u32,
        id: u32,
        data: u64,
        address: u64,
        len: u16,
    ) -> Result<(), DeviceError> {
        // struct ublksrv_ctrl_cmd: id, queue (none), length, address, data; the rest is for unprivileged devices.
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        bytes[6..8].copy_from_slice(&len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&data.to_ne_bytes());
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), op).cmd(bytes).build();
        // SAFETY: the file is open as long as the ring; what `address` points to stays until the command is over, or for ever
        // (`filled`).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            return Err(DeviceError::NoRing(std::io::Error::other("its queue is full")));
        }
        let result = loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(DeviceError::NoRing(error)),
                _ => {}
            }
            if let Some(entry) = self.ring.completion().next() {
                break entry.result();
            }
        };
        match result {
            0.. => Ok(()),
            error if -error == libc::ENODEV && id != u32::MAX => Err(DeviceError::NoDevice(id)),
            error => Err(DeviceError::Refused { command, id, errno: Errno(-error) }),
        }
    }
}

/// What the kernel is to keep for us with a device.
fn server_flags(owner: Owner) -> u64 {
    OURS | owner.to_flags()
}

/// Whose a device is, by what the kernel kept.
fn owner(server_flags: u64) -> Option<Owner> {
    (server_flags & OURS_MASK == OURS).then(|| Owner::from_flags(server_flags))
}

fn pid() -> i32 {
    std::process::id().cast_signed()
}

/// The kernel's length of a structure; all of them are short.
fn len_of<T>() -> u16 {
    const { assert!(size_of::<T>() <= u16::MAX as usize) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let len = size_of::<T>() as u16;
    len
}

/// 512-byte sectors so that everything works on it, 4096-byte physical blocks so that most of it asks for whole blocks.
fn params(options: &DeviceOptions) -> sys::ublk_params {
    let mut attrs = sys::UBLK_ATTR_FUA;
    if options.write_back {
        attrs |= sys::UBLK_ATTR_VOLATILE_CACHE;
    }
    if options.read_only {
        attrs |= sys::UBLK_ATTR_READ_ONLY;
    }
    sys::ublk_params {
        len: len_of::<sys::ublk_params>().into(),
        types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD,
        basic: sys::ublk_param_basic {
            attrs,
            logical_bs_shift: 9,
            physical_bs_shift: 12,
            io_opt_shift: 12,
            io_min_shift: 12,
            max_sectors: options.io_buf_bytes >> 9,
            dev_sectors: options.size.0 / SECTOR,
            ..Default::default()
        },
        discard: sys::ublk_param_discard {
            discard_alignment: 0,
            discard_granularity: 4096,
            max_discard_sectors: MAX_ZERO_SECTORS,
            max_write_zeroes_sectors: MAX_ZERO_SECTORS,
            max_discard_segments: 1,
            reserved0: 0,
        },
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{ClusterId, SnapshotId, VolumeId};

    #[test]
    fn a_write_back_device_has_a_volatile_cache_and_fua_and_another_one_needs_no_flush() {
        let through = DeviceOptions::new("v", Bytes(1 << 20));
        let back = DeviceOptions { write_back: true, ..through.clone() };
        let cache = sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
        let attrs = |options: &DeviceOptions| params(options).basic.attrs & cache;
        assert_eq!((attrs(&back), attrs(&through)), (cache, sys::UBLK_ATTR_FUA));
        for options in [through, back] {
            let Shape { size, read_only, write_back } = Shape::of(&params(&options));
            assert_eq!((size, read_only, write_back), (options.size, false, options.write_back), "as it is read back");
        }
    }

    #[test]
    fn a_device_tells_whose_it_is() {
        let clusters = [0, 1 << 40, 0x1234_5678_9abc_def0, u64::MAX].map(ClusterId);
        for cluster in clusters {
            let volume = Owner::of(cluster, VolumeId(7), None);
            assert_eq!(owner(server_flags(volume)), Some(volume));
            for other in [
                Owner::of(cluster, VolumeId(8), None),
                Owner::of(ClusterId(0x5eed), VolumeId(7), None),
                Owner::of(cluster, VolumeId(7), Some(SnapshotId(1))),
            ] {
                assert_ne!(owner(server_flags(other)), Some(volume));
            }
        }
        assert_eq!(owner(0x1234), None, "another server's");
    }
}
