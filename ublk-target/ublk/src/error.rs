//! What can go wrong with a device. Each is one sentence, with what to do about it.

use crate::QueueId;
use driver::Errno;
use reactor::ReactorError;
use std::path::PathBuf;

/// What a caller's own factory fails with.
pub type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// Why a device could not be made, changed or ended.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No ublk here.
    #[error(
        "this kernel offers no ublk: load it with `modprobe ublk_drv` (Linux 6.5 or newer, CONFIG_BLK_DEV_UBLK), or attach with --nbd"
    )]
    NoDriver,
    /// The control device cannot be opened.
    #[error("cannot open /dev/ublk-control ({0}): run as root")]
    NoAccess(std::io::Error),
    /// No ring for the control commands.
    #[error("cannot set up io_uring for ublk's control commands ({0}): set sysctl kernel.io_uring_disabled = 0")]
    NoRing(std::io::Error),
    /// The options make no device.
    #[error("no device can be made: {0}")]
    Options(&'static str),
    /// The kernel refused a command.
    #[error("ublk device {id}: {command} failed ({errno})")]
    Refused {
        /// Which command.
        command: &'static str,
        /// Which device.
        id: u32,
        /// The kernel's word.
        errno: Errno,
    },
    /// There is no such device.
    #[error("there is no ublk device {0}")]
    NoDevice(u32),
    /// The device to be recovered is served.
    #[error("ublk device {id} is still served by process {pid}: stop that one first")]
    Served {
        /// Which.
        id: u32,
        /// By whom.
        pid: i32,
    },
    /// Its daemon is gone, and the kernel does not know it yet.
    #[error(
        "the kernel has not noticed yet that process {pid}, which served ublk device {id}, is gone: try again in a minute"
    )]
    Unnoticed {
        /// Which.
        id: u32,
        /// By whom.
        pid: i32,
    },
    /// The device was not made for recovery, not by Trine, or for another volume.
    #[error("ublk device {0} is not this volume's: it was made by another, or was stopped already")]
    NotOurs(u32),
    /// Its daemon ended while it took the device over, or some of its queues did.
    #[error(
        "ublk device {0} cannot be taken over any more: a process that was taking it over ended half-way, which kernels before 6.15 do not put up with. Only a detach by force is left, with which what waits for the device fails"
    )]
    Lost(u32),
    /// The device cannot be opened.
    #[error("cannot open {}: {error}", .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
    /// Mounted, opened, or used by another driver.
    #[error("/dev/ublkb{0} is in use: unmount and close it first")]
    InUse(u32),
    /// A queue did not start.
    #[error("queue {queue} of ublk device {id} did not start: {failure}")]
    Queue {
        /// Of which device.
        id: u32,
        /// Which.
        queue: QueueId,
        /// Why.
        failure: QueueFailure,
    },
    /// No thread.
    #[error("cannot start a thread for a queue ({0})")]
    Thread(std::io::Error),
    /// No mailbox.
    #[error(transparent)]
    Mailbox(ReactorError),
    /// The kernel cannot.
    #[error("this kernel cannot {0}: it takes Linux {1} or newer")]
    TooOld(&'static str, &'static str),
    /// A link in `/dev/trine` cannot be made or removed.
    #[error("cannot change {}: {error}", .path.display())]
    Link {
        /// Which.
        path: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
    /// A volume's name is not a file name.
    #[error("{0:?} cannot be a name in /dev/trine")]
    LinkName(String),
}

/// Why a queue did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum QueueFailure {
    /// Its ring or the reactor on it.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// No ring.
    #[error("no ring for it ({0})")]
    Ring(std::io::Error),
    /// No memory for what its requests read and write.
    #[error(
        "no memory for the data of {0} requests: free some, raise the limit of locked memory, or attach with a smaller --depth"
    )]
    Memory(u16),
    /// libublk could not open the queue.
    #[error("the kernel refused it: {0}")]
    Open(String),
    /// The kernel refused to hand requests over.
    #[error("the kernel hands no requests over ({0})")]
    Fetch(Errno),
    /// The factory.
    #[error("{0}")]
    Build(BuildError),
    /// A bug.
    #[error("its thread panicked: {0}")]
    Panic(String),
}
