//! Sockets: made, listened on, and numbered.
//!
//! A stream's number is a slot and how often the slot was used before; it is given out again only after the close came back.

use crate::ReactorError;
use driver::{Address, Errno, ListenerId, StreamId};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connections that the kernel completes before we accept them: all clients of a node that comes back, at once.
const BACKLOG: i32 = 1024;

/// A silent peer is asked after 10 s, then every 5 s, and given up after the third silence: a host that vanished is noticed
/// within 25 s even where nothing is in flight. Pings of the layer above notice earlier.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// The same for a peer that no longer acknowledges what we sent.
const UNACKNOWLEDGED: Duration = Duration::from_secs(25);

/// A socket that listens, before there is a ring that accepts on it ([`Uring::accept_on`](crate::Uring::accept_on)). One with a file takes that
/// with it.
pub struct Listener {
    socket: Socket,
    /// Where it is no TCP.
    file: Option<PathBuf>,
}

/// Before the socket is closed: from then on the file is deserted, and who comes next may put its own there.
impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            let _ = std::fs::remove_file(path); // as good as gone: the next one to listen there removes it
        }
    }
}

impl Listener {
    /// Binds and listens, and says where: a port 0 becomes the system's choice. A socket file that nobody answers on is replaced.
    pub fn bind(address: &Address) -> Result<(Self, Address), ReactorError> {
        let bind = || match address {
            Address::Tcp(at) => {
                let socket = Socket::new(Domain::for_address(*at), Type::STREAM.cloexec(), None)?;
                socket.set_reuse_address(true)?;
                socket.bind(&SockAddr::from(*at))?;
                socket.listen(BACKLOG)?;
                let actual = socket.local_addr()?.as_socket().unwrap_or(*at);
                Ok((Self { socket, file: None }, Address::Tcp(actual)))
            }
            Address::Unix(path) => {
                let to = SockAddr::unix(path)?;
                remove_deserted(path, &to)?;
                let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None)?;
                socket.bind(&to)?;
                socket.listen(BACKLOG)?;
                Ok((Self { socket, file: Some(path.clone()) }, address.clone()))
            }
            Address::Rdma(_) => Err(no_socket()),
        };
        bind().map_err(|error| ReactorError::Listen { address: address.clone(), error })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Has the kernel take in `bytes` of what each stream over TCP that is accepted is sent, read or not, if the process may ask for that: the end
    /// of a stream comes behind its bytes, and is seen when there is room for those. Who may not has what the system gives, which grows with
    /// what is read.
    pub fn widen(&self, bytes: usize) {
        if self.is_tcp() {
            let _ = setsockopt(&self.socket, RcvBufForce, &bytes); // without CAP_NET_ADMIN
        }
    }

    /// Whether what it accepts is TCP.
    pub(crate) fn is_tcp(&self) -> bool {
        self.file.is_none()
    }
}

/// A socket file outlives a process that was killed: it is removed if nobody answers there. Of anything else the kernel says that the
/// address is in use, as if that could pass.
fn remove_deserted(path: &Path, to: &SockAddr) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(io::Error::from_raw_os_error(libc::EEXIST)),
        Err(_) => return Ok(()),
    }
    let knock = Socket::new(Domain::UNIX, Type::STREAM.cloexec().nonblocking(), None)?;
    match knock.connect(to) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// A socket that is about to connect, and where to.
pub(crate) fn connecting(to: &Address) -> io::Result<(Socket, SockAddr)> {
    let (domain, at) = match to {
        Address::Tcp(at) => (Domain::for_address(*at), SockAddr::from(*at)),
        Address::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
        Address::Rdma(_) => return Err(no_socket()),
    };
    let socket = Socket::new(domain, Type::STREAM.cloexec(), None)?;
    if matches!(to, Address::Tcp(_)) {
        tune(&socket)?;
    }
    Ok((socket, at))
}

/// What is asked of RDMA where it was not opened.
fn no_socket() -> io::Error {
    io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)
}

/// What every TCP stream has: no delay, and an end when the peer's host vanishes.
pub(crate) fn tune<S: std::os::fd::AsFd>(socket: &S) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let probes = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&probes.with_retries(KEEPALIVE_RETRIES))?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}

/// Where a listener's number leads.
pub(crate) fn listener(all: &[Listener], id: ListenerId) -> Result<&Listener, Errno> {
    all.get(id.0 as usize).ok_or(Errno(libc::EBADF))
}

struct Stream {
    generation: u16,
    fd: Option<OwnedFd>,
    /// Operations in flight on it.
    posted: u32,
    /// Its close is in flight: its descriptor may already be another's.
    closing: bool,
}

/// When a stream can be closed.
pub(crate) enum Closing {
    Now(RawFd),
    /// When [`Streams::end`] says so.
    Later,
}

/// All open streams.
pub(crate) struct Streams {
    all: Vec<Stream>,
    free: Vec<u16>,
    limit: u16,
}

impl Streams {
    pub(crate) fn new(limit: u16) -> Self {
        Self { all: Vec::new(), free: Vec::new(), limit }
    }

    /// Numbers a new stream; `None` if there are too many.
    pub(crate) fn add(&mut self, fd: OwnedFd) -> Option<StreamId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.all.len()).ok().filter(|slot| *slot < self.limit)?;
                self.all.push(Stream { generation: 0, fd: None, posted: 0, closing: false });
                slot
            }
        };
        let stream = &mut self.all[usize::from(slot)];
        stream.fd = Some(fd);
        Some(StreamId(u32::from(stream.generation) << 16 | u32::from(slot)))
    }

    /// An operation on it begins.
    pub(crate) fn begin(&mut self, id: StreamId) -> Result<RawFd, Errno> {
        let stream = self.find(id).filter(|stream| !stream.closing).ok_or(Errno(libc::EBADF))?;
        let fd = stream.fd.as_ref().ok_or(Errno(libc::EBADF))?.as_raw_fd();
        stream.posted += 1;
        Ok(fd)
    }

    /// Its close begins: nothing else does from now on. Says whether something is still posted, which must be over first:
    /// closing under an operation could give its descriptor's number to another stream.
    pub(crate) fn begin_close(&mut self, id: StreamId) -> Result<Closing, Errno> {
        let fd = self.begin(id)?;
        let stream = self.find(id).ok_or(Errno(libc::EBADF))?;
        stream.closing = true;
        Ok(if stream.posted > 1 { Closing::Later } else { Closing::Now(fd) })
    }

    /// Its descriptor, for an operation that goes on.
    pub(crate) fn fd(&mut self, id: StreamId) -> Result<RawFd, Errno> {
        self.find(id).and_then(|stream| stream.fd.as_ref()).map(AsRawFd::as_raw_fd).ok_or(Errno(libc::EBADF))
    }

    /// An operation on it is over. True if only its close is left to do.
    pub(crate) fn end(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.find(id) else { return false };
        stream.posted -= 1;
        stream.closing && stream.posted == 1
    }

    /// Its close is over: the number's generation is, too. Gives what is left of it.
    pub(crate) fn remove(&mut self, id: StreamId) -> Option<OwnedFd> {
        let stream = self.find(id)?;
        stream.generation = stream.generation.wrapping_add(1);
        stream.closing = false;
        let fd = stream.fd.take();
        self.free.push(slot_of(id));
        fd
    }

    /// Open streams.
    pub(crate) fn open(&self) -> usize {
        self.all.len() - self.free.len()
    }

    fn find(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.all.get_mut(usize::from(slot_of(id)))?;
        (u32::from(stream.generation) == id.0 >> 16).then_some(stream)
    }
}

fn slot_of(id: StreamId) -> u16 {
    let [low, high, ..] = id.0.to_le_bytes();
    u16::from_le_bytes([low, high])
}
