//! The operations a machine can ask for, each owning what it touches until it is done.

use crate::{Conn, Span, why};
use memory::{Filling, Part};
use refcount::Hold;
use smallvec::SmallVec;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where to connect to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// A TCP endpoint.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
    /// An RDMA endpoint: its port is one of the connection manager's, which are not TCP's.
    Rdma(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => write!(f, "tcp:{at}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Rdma(at) => write!(f, "rdma:{at}"),
        }
    }
}

/// An open byte stream of this driver. The driver never gives a number out twice while an operation on it is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u32);

/// A listening socket of this driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u32);

/// A disk of this driver: one file or block device, opened under an exclusive lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskIndex(pub u32);

/// An error number of the kernel (or the simulator's, which uses the same).
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(self.0))]
pub struct Errno(pub i32);

impl Errno {
    /// I/O error.
    pub const IO: Self = Self(5);
    /// No space left on the device.
    pub const NO_SPACE: Self = Self(28);
    /// Operation cancelled: flushed by a close.
    pub const CANCELED: Self = Self(125);
    /// Connection reset by peer.
    pub const RESET: Self = Self(104);
    /// Connection refused.
    pub const REFUSED: Self = Self(111);
    /// Timed out.
    pub const TIMED_OUT: Self = Self(110);
    /// This driver cannot do that.
    pub const NOT_SUPPORTED: Self = Self(95);
    /// The peer does not speak TLS, or not as it should.
    pub const PROTOCOL: Self = Self(71);
    /// The peer's certificate is not one that is trusted.
    pub const KEY_REJECTED: Self = Self(129);
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// Pieces of memory that an operation reads one after the other. An operation is moved from hand to hand some ten times, so that it has room for
/// one only; where many come together their list is used again.
pub type Parts = SmallVec<[Part; 1]>;

/// One hold for each message of a send.
pub type Messages = SmallVec<[Hold<Conn, why::Tx>; 1]>;

/// An operation. Offsets and lengths on disks are multiples of 4096, and so is the memory's alignment (O_DIRECT).
#[derive(Debug)]
pub enum Op {
    /// Wait for one incoming connection. Done with the new stream's number.
    Accept {
        /// Where.
        listener: ListenerId,
    },
    /// Connect. Done with the new stream's number.
    Connect {
        /// The connection that is being made.
        on: Hold<Conn, why::Rx>,
        /// The peer.
        to: Address,
        /// It fails after so long, if not before: [`Errno::TIMED_OUT`].
        within: Span,
    },
    /// Receive at least one byte into `into[from..]`. Done with the number of bytes; 0 is the peer's end of stream.
    Recv {
        /// From which stream.
        stream: StreamId,
        /// The connection whose receive slot is posted.
        on: Hold<Conn, why::Rx>,
        /// Where to.
        into: Filling,
        /// First byte to fill.
        from: usize,
    },
    /// Send all parts in order. Done with the number of bytes: all of them (drivers resume short sends), or an error.
    /// Never two at a time on one stream.
    Send {
        /// To which stream.
        stream: StreamId,
        /// One hold per message in it.
        on: Messages,
        /// What to send.
        parts: Parts,
    },
    /// Wait, without reading, until the peer sends nothing more: it closed the stream or its side of it, the stream broke, or it
    /// was shut down here. What came before is still there to be received. One at a time on a stream. Over TCP the peer's end
    /// comes behind all that it sent: it is seen no earlier than our side's buffer has room for that.
    Watch {
        /// Which stream.
        stream: StreamId,
        /// The connection that is watched.
        on: Hold<Conn, why::Watch>,
    },
    /// From here on an accepted stream is TLS, of which the peer says the first word. Submitted while nothing is received from it or sent to
    /// it; done at once, before the handshake. An error leaves the stream as it was.
    Secure {
        /// Which.
        stream: StreamId,
    },
    /// Shut a stream down both ways: what is outstanding on it completes.
    Shutdown {
        /// Which.
        stream: StreamId,
    },
    /// Close a stream; submitted when nothing else is outstanding on it.
    Close {
        /// Which.
        stream: StreamId,
    },
    /// Read `len` bytes into `into[from..]`. Done with the number of bytes: all of them, or an error.
    DiskRead {
        /// Which disk.
        disk: DiskIndex,
        /// The submitter's name for it.
        tag: u64,
        /// Byte offset on the disk.
        at: u64,
        /// Where to.
        into: Filling,
        /// First byte to fill.
        from: usize,
        /// Bytes to read.
        len: usize,
    },
    /// Write the parts one after the other from `at` on. Done with the number of bytes: all of them, or an error.
    DiskWrite {
        /// Which disk.
        disk: DiskIndex,
        /// The submitter's name for it.
        tag: u64,
        /// Byte offset on the disk.
        at: u64,
        /// What to write.
        parts: Parts,
        /// Done only when it is on stable storage (RWF_DSYNC).
        durable: bool,
    },
    /// Give the range back to the file system or device below; it may read as anything afterwards.
    DiskPunch {
        /// Which disk.
        disk: DiskIndex,
        /// The submitter's name for it.
        tag: u64,
        /// Byte offset on the disk.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// All that was done before is on stable storage.
    DiskSync {
        /// Which disk.
        disk: DiskIndex,
        /// The submitter's name for it.
        tag: u64,
    },
}

impl Op {
    /// The disk that it is for, if it is for one.
    pub fn disk(&self) -> Option<DiskIndex> {
        match self {
            Self::DiskRead { disk, .. }
            | Self::DiskWrite { disk, .. }
            | Self::DiskPunch { disk, .. }
            | Self::DiskSync { disk, .. } => Some(*disk),
            Self::Accept { .. }
            | Self::Connect { .. }
            | Self::Recv { .. }
            | Self::Send { .. }
            | Self::Watch { .. }
            | Self::Secure { .. }
            | Self::Shutdown { .. }
            | Self::Close { .. } => None,
        }
    }
}

/// An operation that is over: what it owned comes back here.
#[derive(Debug)]
pub struct Done {
    /// The operation.
    pub op: Op,
    /// What came of it: see each operation.
    pub result: Result<u32, Errno>,
}
