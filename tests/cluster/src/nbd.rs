//! A small NBD client of our own: fixed newstyle with GO, simple replies, many requests in flight on one connection.
//!
//! One thread, one non-blocking socket: what is submitted leaves as the server takes it, and replies are read meanwhile, so
//! that neither side can wait for the other for ever. It trusts nothing: a reply to nobody is an error.

use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const FIXED_NEWSTYLE_NO_ZEROES: u32 = 3;
/// How long the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// Where an export is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a Unix socket.
    Unix(PathBuf),
    /// On a TCP port.
    Tcp(SocketAddr),
}

/// A connected byte stream of either kind.
#[derive(Debug)]
pub enum Stream {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP socket.
    Tcp(TcpStream),
}

impl Stream {
    /// Connects; blocking, with a limit on every read and write.
    pub fn connect(place: &Place) -> std::io::Result<Self> {
        Ok(match place {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(HANDSHAKE))?;
                stream.set_write_timeout(Some(HANDSHAKE))?;
                Self::Unix(stream)
            }
            Place::Tcp(at) => {
                let stream = TcpStream::connect(at)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(HANDSHAKE))?;
                stream.set_write_timeout(Some(HANDSHAKE))?;
                Self::Tcp(stream)
            }
        })
    }

    fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// A command, as NBD numbers them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Bytes from an offset.
    Read {
        /// First byte.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// Bytes to an offset.
    Write {
        /// First byte.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// All that was acknowledged is durable.
    Flush,
    /// These bytes are not needed any more.
    Trim {
        /// First byte.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// These bytes read as zeros.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// How many.
        len: u32,
    },
}

/// A reply: the bytes of a read, or the error number of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The number that `submit` gave.
    pub handle: u64,
    /// What came of it.
    pub result: Result<Vec<u8>, u32>,
}

/// A connection in its transmission phase.
#[derive(Debug)]
pub struct Nbd {
    stream: Stream,
    /// Bytes of the export.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    out: Vec<u8>,
    received: Vec<u8>,
    /// Requests without a reply: how many bytes a good reply carries.
    pending: BTreeMap<u64, usize>,
    next: u64,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|n| bytes[at + n]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|n| bytes[at + n]))
}

impl Nbd {
    /// Connects and goes to the export.
    pub fn connect(place: &Place, export: &str) -> Result<Self> {
        let mut stream = Stream::connect(place).with_context(|| format!("connect to {place:?}"))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        ensure!(u64_at(&greeting, 0) == NBDMAGIC && u64_at(&greeting, 8) == IHAVEOPT, "not an NBD server");
        let mut hello = FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes().to_vec();
        hello.extend(IHAVEOPT.to_be_bytes());
        hello.extend(OPT_GO.to_be_bytes());
        hello.extend(u32::try_from(export.len() + 6)?.to_be_bytes());
        hello.extend(u32::try_from(export.len())?.to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend(0u16.to_be_bytes());
        stream.write_all(&hello)?;
        let mut found = None;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            ensure!(u64_at(&head, 0) == OPTION_REPLY && u32_at(&head, 8) == OPT_GO, "a reply to another option");
            let mut data = vec![0; u32_at(&head, 16).min(1 << 20) as usize];
            stream.read_exact(&mut data)?;
            match u32_at(&head, 12) {
                REP_INFO if data.len() == 12 && data[..2] == [0, 0] => {
                    found = Some((u64_at(&data, 2), u16::from_be_bytes([data[10], data[11]])));
                }
                REP_INFO => {}
                REP_ACK => break,
                refused => bail!("export {export}: refused with {refused:#x}: {}", String::from_utf8_lossy(&data)),
            }
        }
        let (size, flags) = found.context("no NBD_INFO_EXPORT")?;
        stream.set_nonblocking(true)?;
        let (out, received, pending) = (Vec::new(), Vec::new(), BTreeMap::new());
        Ok(Self { stream, size, flags, out, received, pending, next: 1 })
    }

    /// Requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Queues a command; it leaves with the next `turn`.
    pub fn submit(&mut self, command: &Command) -> u64 {
        let (kind, offset, len, data, answer): (u16, u64, u32, &[u8], u32) = match command {
            Command::Read { offset, len } => (0, *offset, *len, &[], *len),
            Command::Write { offset, bytes } => (1, *offset, u32::try_from(bytes.len()).unwrap_or(u32::MAX), bytes, 0),
            Command::Flush => (3, 0, 0, &[], 0),
            Command::Trim { offset, len } => (4, *offset, *len, &[], 0),
            Command::WriteZeroes { offset, len } => (6, *offset, *len, &[], 0),
        };
        let handle = self.next;
        self.next += 1;
        self.out.extend(REQUEST.to_be_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend(handle.to_be_bytes());
        self.out.extend(offset.to_be_bytes());
        self.out.extend(len.to_be_bytes());
        self.out.extend(data);
        self.pending.insert(handle, answer as usize);
        handle
    }

    /// Sends what is queued and takes what has come, waiting up to `within` for either. An error: the connection is gone.
    pub fn turn(&mut self, within: Duration) -> Result<Vec<Reply>> {
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, !self.out.is_empty());
        let mut fds = [PollFd::new(self.stream.as_fd(), flags)];
        let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        poll(&mut fds, timeout)?;
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut chunk = [0; 64 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(len) => self.received.extend(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut replies = Vec::new();
        let mut at = 0;
        while let Some(head) = self.received.get(at..at + 16) {
            ensure!(u32_at(head, 0) == SIMPLE_REPLY, "not a simple reply: {head:02x?}");
            let (error, handle) = (u32_at(head, 4), u64_at(head, 8));
            let expected = *self.pending.get(&handle).with_context(|| format!("a reply to nobody: {handle}"))?;
            let len = if error == 0 { expected } else { 0 };
            let Some(data) = self.received.get(at + 16..at + 16 + len) else { break };
            replies.push(Reply { handle, result: if error == 0 { Ok(data.to_vec()) } else { Err(error) } });
            self.pending.remove(&handle);
            at += 16 + len;
        }
        self.received.drain(..at);
        Ok(replies)
    }

    /// One command and its reply; nothing else is in flight.
    pub fn call(&mut self, command: &Command, within: Duration) -> Result<Result<Vec<u8>, u32>> {
        ensure!(self.pending.is_empty(), "other requests are in flight");
        self.submit(command);
        let until = Instant::now() + within;
        loop {
            if let Some(reply) = self.turn(Duration::from_millis(100))?.pop() {
                return Ok(reply.result);
            }
            ensure!(Instant::now() < until, "{command:?}: no reply within {within:?}");
        }
    }

    /// The bare socket, blocking again, for what no client would send.
    pub fn into_stream(self) -> Result<Stream> {
        self.stream.set_nonblocking(false)?;
        Ok(self.stream)
    }

    /// Leaves in good order.
    pub fn disconnect(mut self) -> Result<()> {
        let mut request = REQUEST.to_be_bytes().to_vec();
        request.extend([0, 0, 0, 2]);
        request.extend([0; 20]);
        self.stream.write_all(&request)?;
        Ok(())
    }
}
