//! Reading the partition table of a new device, in our own time.
//!
//! Up to Linux 6.18 START_DEV does it. Later kernels do it after START_DEV, at a time of their own, with the disk locked: until it is
//! over nobody can open the device or stop it, and it is not over before its reads are answered. So where the kernel can leave it out
//! (7.0), it is asked for here, and a device is not said to be up before.
//!
//! Another process asks, if possible. Who waits for the disk cannot be killed, and keeps all that his process has open, the device's
//! queues too: a daemon that waited itself and was killed would never be rid of, because the reads would never be answered, nor be
//! taken back from it.

use std::fs::OpenOptions;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Of util-linux, which no system lacks.
const PROGRAM: &str = "blockdev";

mod request {
    // Of linux/fs.h.
    nix::ioctl_none!(reread_partitions, 0x12, 95);
}

/// Has the partition table read; back when that is over, with whatever outcome.
pub(crate) fn read(device: &Path) -> Result<(), Error> {
    let (none, quiet) = (Stdio::null(), Stdio::null());
    let asked =
        Command::new(PROGRAM).arg("--rereadpt").arg(device).stdin(Stdio::null()).stdout(none).stderr(quiet).status();
    match asked {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::other(format!("{PROGRAM}: {status}"))),
        Err(error) if error.kind() == ErrorKind::NotFound => read_here(device),
        Err(error) => Err(error),
    }
}

fn read_here(device: &Path) -> Result<(), Error> {
    let device = OpenOptions::new().read(true).open(device)?;
    // SAFETY: this ioctl takes no argument, and the file is open.
    unsafe { request::reread_partitions(device.as_raw_fd()) }.map(drop).map_err(Error::from)
}
