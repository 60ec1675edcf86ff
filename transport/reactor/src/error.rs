//! What can go wrong before the first turn, and what ends a reactor. Each is one sentence, with what to do about it.

use driver::{Address, Errno};
use std::path::PathBuf;

/// Why there is no reactor, listener or disk, or why the reactor ended.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// The kernel has no io_uring, or not to us.
    #[error(
        "cannot set up io_uring ({0}): it takes Linux 6.1 or newer with sysctl kernel.io_uring_disabled = 0, and a container must allow its system calls"
    )]
    NoRing(Errno),
    /// The kernel lacks operations.
    #[error("this kernel's io_uring lacks {0}: run Linux 6.1 or newer")]
    NoOpcode(&'static str),
    /// More operations than a token can name.
    #[error("{0} operations at a time are too many for one reactor: at most 1048576")]
    TooManyOps(u32),
    /// io_uring_enter failed for good.
    #[error("io_uring_enter failed ({0}): the reactor cannot go on, restart the process")]
    Enter(Errno),
    /// Nobody can connect here.
    #[error("cannot listen on {}: {error}: {}", show(.address), way_out(.address, .error))]
    Listen {
        /// Where.
        address: Address,
        /// The system's word.
        error: std::io::Error,
    },
    /// No RDMA, or not to us.
    #[error(transparent)]
    Rdma(#[from] rdma::RdmaError),
    /// The file or device cannot be opened.
    #[error("cannot open disk {}: {error}: check the path and the permissions", .path.display())]
    OpenDisk {
        /// Which.
        path: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
    /// The file system refuses O_DIRECT.
    #[error("{} is on a file system without O_DIRECT: use another one, or allow buffered access for this disk", .path.display())]
    NoDirect {
        /// Which.
        path: PathBuf,
    },
    /// A journal's file cannot be mapped with all its blocks.
    #[error("cannot map journal {} with all its blocks: {error}: check the space on its file system, and that it is not empty", .path.display())]
    MapDisk {
        /// Which.
        path: PathBuf,
        /// The system's word.
        error: std::io::Error,
    },
    /// Somebody else has it.
    #[error("disk {} is in use by another process, which holds its lock: stop that one first", .path.display())]
    DiskInUse {
        /// Which.
        path: PathBuf,
    },
    /// Neither a file nor a block device.
    #[error("disk {} is neither a regular file nor a block device: name one of these", .path.display())]
    NotADisk {
        /// Which.
        path: PathBuf,
    },
    /// No eventfd for a mailbox.
    #[error("no descriptor for a mailbox ({0}): raise the limit on open files (ulimit -n)")]
    Mailbox(std::io::Error),
}

fn show(address: &Address) -> String {
    match address {
        Address::Tcp(at) => at.to_string(),
        Address::Unix(path) => path.display().to_string(),
        Address::Rdma(at) => format!("rdma:{at}"),
    }
}

/// What to do about an address where nobody can listen.
fn way_out(address: &Address, error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{
        AddrInUse, AddrNotAvailable, AlreadyExists, InvalidInput, NotADirectory, NotFound, PermissionDenied,
    };
    match (address, error.kind()) {
        (_, AddrInUse) => "choose another address, or stop who uses this one",
        (Address::Unix(_), AlreadyExists) => "what is there is no socket: choose another path, or move it away",
        (Address::Unix(_), NotFound | NotADirectory) => "make the directory first, or choose another path",
        (Address::Unix(_), InvalidInput) => "choose a path of 107 bytes at most",
        (Address::Unix(_), PermissionDenied) => "choose a path in a directory that this user may write to",
        (Address::Tcp(_), AddrNotAvailable) => "choose an address that this machine has",
        (Address::Tcp(_), PermissionDenied) => "choose a port from 1024 on, or run this as root",
        _ => "choose another address",
    }
}

/// The kernel's word in an error of std or io-uring.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno)
}
