//! Why there is no RDMA, and what to do.

use driver::Errno;
use std::net::SocketAddr;

/// What went wrong before there was a connection.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// The libraries are not installed.
    #[error("librdmacm.so.1 or libibverbs.so.1 cannot be loaded: install librdmacm1 and ibverbs-providers, or use tcp")]
    NoLibrary,
    /// The kernel offers no connection manager.
    #[error(
        "the RDMA connection manager cannot be reached ({0}): load the kernel's rdma_ucm and a device's driver, or use tcp"
    )]
    NoManager(Errno),
    /// A device that does not work.
    #[error("the RDMA device cannot be used ({0}): see `rdma link` and `ibv_devinfo`, or use tcp")]
    NoDevice(Errno),
    /// A device that could only open whole regions to peers.
    #[error(
        "the RDMA device has no type-2 memory windows, so memory could not be opened to a peer piece by piece: use tcp"
    )]
    NoWindows,
    /// The arena could not be pinned.
    #[error(
        "{bytes} bytes of memory cannot be registered with the RDMA device ({error}): raise RLIMIT_MEMLOCK, or use less memory"
    )]
    Register {
        /// The arena's size.
        bytes: usize,
        /// The library's word.
        error: Errno,
    },
    /// No listening there.
    #[error("cannot listen on rdma:{at} ({error}): the address must be one of an RDMA device's network interface")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// The library's word.
        error: Errno,
    },
}
