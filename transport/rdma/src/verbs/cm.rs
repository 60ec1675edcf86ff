//! The connection manager: its channel of events, and its ends of connections.

use super::{check, last, set_nonblocking};
use crate::destroyer::{Destroyer, Turn};
use driver::Errno;
use rdma_link::cm::Event;
use rdma_sys as sys;
use socket2::SockAddr;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Requests that the kernel keeps until we look.
const BACKLOG: i32 = 128;
/// READs that each side may have in flight to the other: there is one receive at a time. A device that can do fewer than are asked for would
/// refuse.
const READS: u8 = 1;
/// Times a message is sent again when nothing acknowledges it, and when it finds no receive (which a legal peer never meets).
const RETRIES: u8 = 7;
const RNR_RETRIES: u8 = 6;

/// How long the end of a channel waits for that of its last ids.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Where events come from. Never blocks, and neither does an id that is dropped: the kernel lets go of one when nothing that was sent for it
/// is under way any more, which with a peer that cannot be reached takes as long as it takes. So ids are destroyed on threads of their own.
#[derive(Debug)]
pub(crate) struct Channel {
    // First of all what holds the rest. Every Id holds an Rc of its channel, so all are there when this goes. Whoever comes next may want to
    // listen where one of them does.
    destroyer: Destroyer<Unused>,
    raw: Arc<Raw>,
}

#[derive(Debug)]
struct Raw(NonNull<sys::rdma_event_channel>);

// SAFETY: the library's channel may be used from any thread, and is destroyed with the last share.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// An id that nobody uses any more.
struct Unused {
    id: NonNull<sys::rdma_cm_id>,
    /// Goes after it.
    _channel: Arc<Raw>,
}

// SAFETY: whoever made it gave it away.
unsafe impl Send for Unused {}

impl Unused {
    /// Blocks until the kernel has let go of it.
    fn destroy(self) {
        // SAFETY: ours alone, and its queue pair is gone: `Pair` owns its Id and destroys the queue pair first. What is told of it meanwhile
        // is read and acknowledged by the reactor, for which the library waits here.
        let destroyed = unsafe { sys::rdma_destroy_id(self.id.as_ptr()) };
        debug_assert_eq!(destroyed, 0, "an id without a queue pair can be destroyed");
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the last share; every id that was made on it is destroyed before its own share goes.
        unsafe { sys::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// An event, copied; what it came in is acknowledged.
#[derive(Debug)]
pub(crate) struct Note {
    /// Whose: the number its end was made with, or its listener's.
    pub(crate) of: u64,
    pub(crate) event: Event,
    pub(crate) private: Vec<u8>,
    /// A request's new end.
    pub(crate) new: Option<Id>,
}

impl Channel {
    pub(crate) fn new() -> Result<Rc<Self>, Errno> {
        // SAFETY: takes nothing; gives a channel or null.
        let channel = unsafe { sys::rdma_create_event_channel() };
        let raw = Arc::new(Raw(NonNull::new(channel).ok_or_else(last)?));
        let destroyer = Destroyer::new(Unused::destroy, LAST_WAIT);
        let destroyer = destroyer.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        let channel = Self { destroyer, raw };
        set_nonblocking(channel.fd())?;
        Ok(Rc::new(channel))
    }

    fn as_ptr(&self) -> *mut sys::rdma_event_channel {
        self.raw.0.as_ptr()
    }

    /// How many ids were given up, and how many of these the kernel has let go of.
    pub(crate) fn destroyed(&self) -> (u64, u64) {
        self.destroyer.counts()
    }

    /// Whether ids of listeners wait behind so many that are stuck that another one would only wait, too.
    pub(crate) fn is_stuck(&self) -> bool {
        self.destroyer.is_stuck()
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as self.
        unsafe { self.raw.0.as_ref().fd }
    }

    /// The next event, if there is one.
    pub(crate) fn next(self: &Rc<Self>) -> Option<Note> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive; the library fills in `event` or fails.
        if unsafe { sys::rdma_get_cm_event(self.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the library gave the event, which is whole until it is acknowledged below. Its id is one of ours, or a new one
        // that is nobody's yet and has its listener's number. Private data, where the event has any, lies behind the pointer.
        unsafe {
            let sys::rdma_cm_event { id, event: what, .. } = *event;
            let what = named(what);
            let has_private = matches!(what, Event::ConnectRequest | Event::Established | Event::Rejected);
            let conn = (*event).param.conn;
            let private = if has_private && !conn.private_data.is_null() {
                std::slice::from_raw_parts(conn.private_data.cast(), usize::from(conn.private_data_len)).to_vec()
            } else {
                Vec::new()
            };
            let of = (*id).context.addr() as u64;
            let request = what == Event::ConnectRequest;
            sys::rdma_ack_cm_event(event);
            let new = if request { NonNull::new(id).map(|id| Id::made(id, self)) } else { None };
            Some(Note { of, event: what, private, new })
        }
    }
}

fn named(event: sys::rdma_cm_event_type::Type) -> Event {
    use Event as E;
    let all = [
        E::AddrResolved,
        E::AddrError,
        E::RouteResolved,
        E::RouteError,
        E::ConnectRequest,
        E::ConnectResponse,
        E::ConnectError,
        E::Unreachable,
        E::Rejected,
        E::Established,
        E::Disconnected,
        E::DeviceRemoval,
        E::MulticastJoin,
        E::MulticastError,
        E::AddrChange,
        E::TimewaitExit,
    ];
    all.get(event as usize).copied().unwrap_or(E::Unknown)
}

/// One end of a connection, or a listener.
#[derive(Debug)]
pub(crate) struct Id {
    id: NonNull<sys::rdma_cm_id>,
    channel: Rc<Channel>,
    /// Others wait for the address that it listens at.
    turn: Turn,
}

impl Id {
    /// Its events will carry `number`.
    pub(crate) fn new(channel: &Rc<Channel>, number: u64) -> Result<Self, Errno> {
        let mut id = ptr::null_mut();
        let context = ptr::without_provenance_mut(address(number));
        // SAFETY: the channel is alive; the context is a number that is never followed.
        check(unsafe {
            sys::rdma_create_id(channel.as_ptr(), &raw mut id, context, sys::rdma_port_space::RDMA_PS_TCP)
        })?;
        Ok(Self::made(NonNull::new(id).ok_or(Errno::IO)?, channel))
    }

    fn made(id: NonNull<sys::rdma_cm_id>, channel: &Rc<Channel>) -> Self {
        Self { id, channel: Rc::clone(channel), turn: Turn::Rest }
    }

    /// Gives a request's end a number of its own.
    pub(crate) fn set_number(&self, number: u64) {
        // SAFETY: the id is ours; the library only hands its context back.
        unsafe { (*self.id.as_ptr()).context = ptr::without_provenance_mut(address(number)) };
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rdma_cm_id {
        self.id.as_ptr()
    }

    /// The device that it is bound to; null before that.
    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: the id is ours.
        unsafe { self.id.as_ref().verbs }
    }

    /// Binds it to the address that `other` has on this side, and so to the same device.
    pub(crate) fn bind_beside(self, other: &Id) -> Result<Self, Errno> {
        // SAFETY: the id is ours and bound; the address is a part of it, in a union of plain structures that is as large as any of them.
        let mut at = unsafe { other.id.as_ref().route.addr.src_addr_union.src_sin6 };
        at.sin6_port = 0; // of IPv4, too: in both families the port is what follows the family
        // SAFETY: the library reads the address during the call.
        check(unsafe { sys::rdma_bind_addr(self.as_ptr(), (&raw mut at).cast()) })?;
        if self.context() != other.context() {
            return Err(Errno(libc::ENODEV));
        }
        Ok(self)
    }

    /// Listens; says on which port.
    pub(crate) fn listen(&mut self, at: SocketAddr) -> Result<u16, Errno> {
        self.turn = Turn::First;
        let at = SockAddr::from(at);
        // SAFETY: the library reads the address during the call.
        check(unsafe { sys::rdma_bind_addr(self.as_ptr(), at.as_ptr().cast_mut().cast()) })?;
        // SAFETY: the id is ours and bound.
        check(unsafe { sys::rdma_listen(self.as_ptr(), BACKLOG) })?;
        // SAFETY: the id is ours and bound; the address is a part of it.
        let [high, low, ..] = unsafe { sys::rdma_get_local_addr(self.id.as_ref()).sa_data };
        // In both families the port is what follows the family.
        Ok(u16::from_be_bytes([high.cast_unsigned(), low.cast_unsigned()]))
    }

    pub(crate) fn resolve(&self, to: SocketAddr, milliseconds: i32) -> Result<(), Errno> {
        let to = SockAddr::from(to);
        let (nowhere, there) = (ptr::null_mut(), to.as_ptr().cast_mut().cast());
        // SAFETY: the library reads the address during the call; none of our own is wanted.
        check(unsafe { sys::rdma_resolve_addr(self.as_ptr(), nowhere, there, milliseconds) })
    }

    pub(crate) fn resolve_route(&self, milliseconds: i32) -> Result<(), Errno> {
        // SAFETY: the id is ours.
        check(unsafe { sys::rdma_resolve_route(self.as_ptr(), milliseconds) })
    }

    pub(crate) fn connect(&self, private: &[u8]) -> Result<(), Errno> {
        let mut param = parameters(private);
        // SAFETY: the library reads the parameters, and what they point to, during the call.
        check(unsafe { sys::rdma_connect(self.as_ptr(), &raw mut param) })
    }

    pub(crate) fn accept(&self, private: &[u8]) -> Result<(), Errno> {
        let mut param = parameters(private);
        // SAFETY: as above.
        check(unsafe { sys::rdma_accept(self.as_ptr(), &raw mut param) })
    }

    pub(crate) fn reject(&self) {
        // SAFETY: the id is ours; no private data. If it fails, destroying the id says the same to the peer.
        let _ = unsafe { sys::rdma_reject(self.as_ptr(), ptr::null(), 0) };
    }

    /// Tells the peer, if there is one. What came of it does not matter: the queue pair is in error by other means.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the id is ours.
        let _ = unsafe { sys::rdma_disconnect(self.as_ptr()) };
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let unused = Unused { id: self.id, _channel: Arc::clone(&self.channel.raw) };
        self.channel.destroyer.discard(unused, self.turn);
    }
}

fn address(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn parameters(private: &[u8]) -> sys::rdma_conn_param {
    sys::rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: u8::try_from(private.len()).unwrap_or(u8::MAX),
        responder_resources: READS,
        initiator_depth: READS,
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: RNR_RETRIES,
        srq: 0,
        qp_num: 0,
    }
}
