//! A device's character device, through which its queues are served.

use super::control::Info;
use crate::DeviceError;
use driver::Errno;
use libublk::UblkFlags;
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::helpers::IoBuf;
use libublk::io::UblkDev;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::dup2_stderr;
use std::fs::File;
use std::io::stderr;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Memory that the kernel copies one request's data into or out of.
pub(crate) type Buffer = IoBuf<u8>;

/// A device that can be opened.
pub(crate) struct Door {
    ctrl: UblkCtrl,
}

/// The open character device.
pub(crate) struct Gate {
    pub(super) dev: UblkDev,
}

impl Door {
    /// All of it that may fail for another reason than the device's, for one that is there, new or to be recovered.
    pub(crate) fn find(info: &Info) -> Result<Self, DeviceError> {
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
            let ctrl = without_stderr(|| builder.build()).map_err(failed)?;
            Ok(Self { ctrl })
        })
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.ctrl.get_cdev_path())
    }

    /// Whether its character device is there; that of a new one comes in a moment.
    pub(crate) fn is_there(&self) -> Result<(), DeviceError> {
        let path = self.path();
        std::fs::metadata(&path).map(drop).map_err(|error| DeviceError::Open { path, error })
    }

    pub(crate) fn open(&self) -> Result<Gate, DeviceError> {
        without_signals(|| match UblkDev::new("trine".to_owned(), |_| Ok(()), &self.ctrl) {
            Ok(dev) => Ok(Gate { dev }),
            Err(failed) => {
                // Whatever came in the way of opening it, libublk calls it EACCES.
                let (path, said) = (self.path(), std::io::Error::from_raw_os_error(errno(&failed).0));
                let error = File::options().read(true).write(true).open(&path).err().unwrap_or(said);
                Err(DeviceError::Open { path, error })
            }
        })
    }
}

impl Gate {
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

/// libublk complains on stderr that it finds no file of its own for a device, and panics where nobody reads that any more.
fn without_stderr<T>(f: impl FnOnce() -> T) -> T {
    let null = File::options().write(true).open("/dev/null");
    let Ok((null, saved)) = null.and_then(|null| Ok((null, stderr().as_fd().try_clone_to_owned()?))) else {
        return f();
    };
    let muted = dup2_stderr(null).is_ok();
    let result = f();
    if muted {
        // It was stderr a moment ago.
        let _restored = dup2_stderr(saved);
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
