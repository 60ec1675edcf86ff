//! Reading the partition table of a new device, in our own time; and what else another process does with a device in our place.
//!
//! Up to Linux 6.18.3 START_DEV does it. Later kernels do it after START_DEV, at a time of their own, with the disk locked: until it is
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
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Of util-linux, which no system lacks; where Debian has it, which is not in everybody's PATH.
const PROGRAMS: [&str; 3] = ["blockdev", "/usr/sbin/blockdev", "/sbin/blockdev"];

/// Between two looks whether it is over.
const POLL: Duration = Duration::from_millis(1);

mod request {
    // Of linux/fs.h.
    nix::ioctl_none!(reread_partitions, 0x12, 95);
}

/// Has the partition table read; back when that is over, with whatever outcome.
pub(crate) fn read(device: &Path) -> Result<(), Error> {
    ask("--rereadpt", device, read_here)
}

/// `here`: where no program is there to be asked.
fn ask(what: &str, device: &Path, here: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
    let Some(mut program) = begin(what, device)? else { return here(device) };
    let status = program.wait()?;
    if status.success() { Ok(()) } else { Err(Error::other(format!("blockdev {what}: {status}"))) }
}

/// `None`: there is no program.
fn begin(what: &str, device: &Path) -> Result<Option<Child>, Error> {
    for program in PROGRAMS {
        let mut command = Command::new(program);
        let command = command.arg(what).arg(device).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => return Ok(Some(child)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Opens a device and closes it again, in another process if possible; back when that is over.
pub(crate) fn open_once(device: &Path) -> Result<(), Error> {
    ask("--getsz", device, |device| OpenOptions::new().read(true).open(device).map(drop))
}

/// Is a device opened and closed again in that time, or refused?
pub(crate) fn open_within(device: &Path, limit: Duration) -> bool {
    is_over_within("--getsz", device, limit)
}

/// Is all that the kernel has of a device written to it in that time, or refused?
pub(crate) fn flush_within(device: &Path, limit: Duration) -> bool {
    is_over_within("--flushbufs", device, limit)
}

/// True without a program.
fn is_over_within(what: &str, device: &Path, limit: Duration) -> bool {
    let Ok(Some(mut program)) = begin(what, device) else { return true };
    let until = Instant::now() + limit;
    while Instant::now() < until {
        match program.try_wait() {
            Ok(None) => thread::sleep(POLL),
            Ok(Some(_)) | Err(_) => return true,
        }
    }
    // It waits for the device, and may do so for long: somebody has to see its end.
    let seen = thread::Builder::new().name("blockdev".to_owned()).spawn(move || drop(program.wait()));
    if let Err(error) = seen {
        tracing::debug!(%error, "nobody waits for the end of blockdev");
    }
    false
}

fn read_here(device: &Path) -> Result<(), Error> {
    let device = OpenOptions::new().read(true).open(device)?;
    // SAFETY: this ioctl takes no argument, and the file is open.
    unsafe { request::reread_partitions(device.as_raw_fd()) }.map(drop).map_err(Error::from)
}
