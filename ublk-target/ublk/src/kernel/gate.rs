//! A device's character device, through which its queues are served.

use super::control::Info;
use crate::DeviceError;
use driver::Errno;
use libublk::UblkFlags;
use libublk::ctrl::UblkCtrlBuilder;
use libublk::helpers::IoBuf;
use libublk::io::UblkDev;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::path::PathBuf;

/// Memory that the kernel copies one request's data into or out of.
pub(crate) type Buffer = IoBuf<u8>;

/// The open character device.
pub(crate) struct Gate {
    pub(super) dev: UblkDev,
}

impl Gate {
    /// Opens a device that is there, new or to be recovered. libublk complains on stderr that it finds no file of its own for it.
    pub(crate) fn open(info: &Info) -> Result<Self, DeviceError> {
        without_signals(|| {
            let id = i32::try_from(info.id).map_err(|_| DeviceError::NoDevice(info.id))?;
            let builder = UblkCtrlBuilder::default()
                .name("trine")
                .id(id)
                .nr_queues(info.queues)
                .depth(info.depth)
                .io_buf_bytes(info.io_buf_bytes)
                .dev_flags(UblkFlags::UBLK_DEV_F_RECOVER_DEV);
            let failed = |error| DeviceError::Refused { command: "GET_DEV_INFO", id: info.id, errno: errno(&error) };
            let ctrl = builder.build().map_err(failed)?;
            let opened = UblkDev::new("trine".to_owned(), |_| Ok(()), &ctrl);
            let path = PathBuf::from(ctrl.get_cdev_path());
            let error = |error| std::io::Error::from_raw_os_error(errno(&error).0);
            let dev = opened.map_err(|failed| DeviceError::Open { path, error: error(failed) })?;
            Ok(Self { dev })
        })
    }

    /// Requests per queue.
    pub(crate) fn depth(&self) -> u16 {
        self.dev.dev_info.queue_depth
    }
}

/// libublk's commands do not go on after a signal, while the kernel still writes to their memory: let signals go elsewhere.
fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let result = f();
    if let Ok(before) = before {
        // It was the mask a moment ago, so it is a valid one.
        let _set = before.thread_set_mask();
    }
    result
}

/// The kernel's word in an error of libublk.
pub(super) fn errno(error: &libublk::UblkError) -> Errno {
    match error {
        libublk::UblkError::UringIOError(result) | libublk::UblkError::OtherError(result) => Errno(result.abs()),
        libublk::UblkError::IOError(error) => error.raw_os_error().map_or(Errno::IO, Errno),
        _ => Errno::IO,
    }
}
