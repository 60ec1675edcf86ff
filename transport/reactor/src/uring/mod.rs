//! The driver: executes operations on an io_uring, and hands each back with what came of it, once.
//!
//! ```text
//!   submit ──▶ waiting ──▶ slab + pending ──push_pending──▶ ring ──enter, drain──▶ complete ──▶ Done
//!              (over the limit)                  ▲                                    │
//!                                                └──── the rest of a short transfer ──┘
//! ```
//!
//! It decides nothing: no retries but for short transfers, no deadline but a connect's. What it cannot even start comes back
//! as a `Done` like everything else, in the next turn.

mod beside;
mod ending;

use crate::batch::Batch;
use crate::counters::Counters;
use crate::disk::{BLOCK, Disk, DiskInfo, DiskOptions, disk};
use crate::flight::{Flight, Slab};
use crate::rdma::{Beside, is_rdmas};
use crate::ring::{Cqe, Ring, probe, timespec};
use crate::sockets::{Closing, Listener, Streams, connecting, listener, tune};
use crate::token::{Kind, MAX_SLOTS, Token};
use crate::{Limits, ReactorError, clock, error};
use driver::{Address, DiskIndex, Done, Errno, ListenerId, Op, Span, StreamId, Time};
use io_uring::types::Fd;
use io_uring::{opcode, squeue};
use memory::Arena;
use socket2::SockAddr;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use tls::Layer;

/// Sends below this size nearly always end within the enter that submits them, so that the wait counts them in and does not
/// end with them; larger ones may have to wait for the peer.
const SMALL_SEND: usize = 64 << 10;

const CANCELED: Result<i32, Errno> = Err(Errno::CANCELED);

/// The driver on a ring `R`.
pub struct Uring<R: Ring> {
    ring: R,
    slab: Slab,
    streams: Streams,
    listeners: Vec<Listener>,
    rdma: Option<Beside>,
    /// Between the machine and the streams of the ring.
    tls: Option<Layer>,
    disks: Vec<Disk>,
    limits: Limits,
    /// Over the limit.
    waiting: VecDeque<Op>,
    /// Streams whose close waits for what is still posted on them: the kernel runs a shutdown beside the rest, and may finish it
    /// after the receive that it ended.
    parked: Vec<StreamId>,
    /// Built, not yet in the ring.
    pending: Vec<squeue::Entry>,
    /// Connects and their deadlines, which stand side by side in the ring.
    pairs: Vec<[squeue::Entry; 2]>,
    /// Over without the ring's help.
    ready: VecDeque<Done>,
    /// Small sends among `pending`, and among what the next enter submits.
    small_sends: u32,
    /// All sends among `pending`.
    sends: u32,
    /// Sends that are not over, and those of them that the next enter submits for the first time.
    sends_left: u32,
    sends_new: u32,
    batch: Batch,
    /// Completions that will come and belong to no slot: deadlines and cancellations.
    loose: u32,
    bell: Option<Bell>,
    closing: bool,
    counters: Counters,
}

/// The read of an eventfd, for ever posted again.
struct Bell {
    fd: OwnedFd,
    count: Box<u64>,
    posted: bool,
    rung: bool,
}

impl<R: Ring> Uring<R> {
    /// A driver on `ring`; refuses a kernel that lacks an operation. The ring's completion queue holds at least
    /// [`Limits::completions`].
    pub fn new(mut ring: R, limits: Limits) -> Result<Self, ReactorError> {
        if limits.ops > MAX_SLOTS {
            return Err(ReactorError::TooManyOps(limits.ops));
        }
        probe(&mut ring)?;
        Ok(Self {
            ring,
            slab: Slab::default(),
            streams: Streams::new(limits.streams),
            listeners: Vec::new(),
            rdma: None,
            tls: None,
            disks: Vec::new(),
            limits,
            waiting: VecDeque::new(),
            parked: Vec::new(),
            pending: Vec::new(),
            pairs: Vec::new(),
            ready: VecDeque::new(),
            small_sends: 0,
            sends: 0,
            sends_left: 0,
            sends_new: 0,
            batch: Batch::new(),
            loose: 0,
            bell: None,
            closing: false,
            counters: Counters::default(),
        })
    }

    /// Allows addresses of RDMA from now on. All memory of operations on its streams is of `arena`, which is registered with a device
    /// when the first connection or listener uses that.
    pub fn open_rdma(&mut self, arena: &Arena) -> Result<(), ReactorError> {
        if self.rdma.is_none() {
            self.rdma = Some(Beside::new(arena)?);
        }
        Ok(())
    }

    /// Has streams over TCP go through TLS from now on, as the layer says.
    pub fn open_tls(&mut self, layer: Layer) {
        self.tls = Some(layer);
    }

    /// Listens, and says where, as [`Listener::bind`] does.
    pub fn listen(&mut self, address: &Address) -> Result<(ListenerId, Address), ReactorError> {
        if let (Address::Rdma(at), Some(beside)) = (address, &mut self.rdma) {
            let (listener, actual) = beside.rdma.listen(*at)?;
            return Ok((listener, Address::Rdma(actual)));
        }
        let (listener, actual) = Listener::bind(address)?;
        Ok((self.accept_on(listener), actual))
    }

    /// Takes over a socket that listens already: whoever has connected waits there.
    pub fn accept_on(&mut self, listener: Listener) -> ListenerId {
        self.listeners.push(listener);
        ListenerId(index(self.listeners.len() - 1))
    }

    /// Opens a file or block device for us alone.
    pub fn open_disk(&mut self, path: &Path, options: DiskOptions) -> Result<DiskIndex, ReactorError> {
        self.disks.push(Disk::open(path, options)?);
        Ok(DiskIndex(index(self.disks.len() - 1)))
    }

    /// Opens what a store keeps its journal on, for us alone: a device, or a file, which is mapped. The disk begins behind `head` bytes,
    /// a multiple of a block.
    pub fn open_journal(&mut self, path: &Path, head: u64) -> Result<DiskIndex, ReactorError> {
        self.disks.push(Disk::journal(path, head)?);
        Ok(DiskIndex(index(self.disks.len() - 1)))
    }

    /// What a disk is; `None` if there is no such disk.
    pub fn disk_info(&self, disk: DiskIndex) -> Option<DiskInfo> {
        self.disks.get(disk.0 as usize).map(|disk| disk.info)
    }

    /// The ring, for what else its thread does on it.
    pub fn ring(&mut self) -> &mut R {
        &mut self.ring
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        let rdma = self.rdma.as_ref().map_or_else(::rdma::Counters::default, |beside| beside.rdma.counters());
        let tls = self.tls.as_ref().map_or_else(tls::Counters::default, Layer::counters);
        Counters { rdma, tls, ..self.counters }
    }

    /// Operations that were submitted and not yet handed back.
    pub fn outstanding(&self) -> usize {
        let beside = self.rdma.as_ref().map_or(0, Beside::outstanding);
        let held = self.tls.as_ref().map_or(0, Layer::held);
        self.slab.len() + self.waiting.len() + self.parked.len() + self.ready.len() + beside + held
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.streams.open() + self.rdma.as_ref().map_or(0, |beside| beside.rdma.left_open())
    }

    /// Takes an operation over, to be started by the next [`Uring::push_pending`].
    pub fn submit(&mut self, op: Op) {
        if let Some(beside) = self.rdma.as_mut().filter(|_| is_rdmas(&op)) {
            return beside.submit(op);
        }
        match &mut self.tls {
            None => self.admit(op),
            Some(layer) => {
                layer.submit(op);
                self.tls_wants();
            }
        }
    }

    fn admit(&mut self, op: Op) {
        if self.slab.len() >= self.limits.ops as usize {
            self.counters.waited += 1;
            self.waiting.push_back(op);
        } else {
            self.start(op);
        }
    }

    fn start(&mut self, op: Op) {
        let mut flight = Flight::new(op);
        let disk = flight.op.disk().and_then(|disk| self.disks.get_mut(disk.0 as usize));
        if let Some(result) = disk.and_then(|disk| disk.at_once(&mut flight)) {
            return self.ready.push_back(Done { op: flight.op, result });
        }
        let mut address = None;
        let found = match &flight.op {
            Op::Accept { listener: id } => listener(&self.listeners, *id).map(Listener::fd),
            Op::Connect { to, .. } => connecting(to).map_err(|error| error::errno(&error)).map(|(socket, at)| {
                let fd = socket.as_raw_fd();
                (flight.socket, address) = (Some(socket), Some(at));
                fd
            }),
            Op::Recv { stream, .. } | Op::Send { stream, .. } | Op::Watch { stream, .. } | Op::Shutdown { stream } => {
                self.streams.begin(*stream)
            }
            // TLS's to do, where there is any.
            Op::Secure { .. } => Err(Errno::NOT_SUPPORTED),
            Op::Close { stream } => match self.streams.begin_close(*stream) {
                Ok(Closing::Now(fd)) => Ok(fd),
                Ok(Closing::Later) => return self.parked.push(*stream),
                Err(error) => Err(error),
            },
            Op::DiskRead { disk: on, at, len, .. } => self.aligned(*on, *at, *len as u64),
            Op::DiskWrite { disk: on, at, parts, .. } => {
                self.aligned(*on, *at, parts.iter().map(|part| part.len as u64).sum())
            }
            Op::DiskPunch { disk: on, at, len, .. } => self.aligned(*on, *at, *len),
            Op::DiskSync { disk: on, .. } => self.aligned(*on, 0, 0),
        };
        let fd = match found {
            Ok(fd) => fd,
            Err(refused) => return self.ready.push_back(Done { op: flight.op, result: Err(refused) }),
        };
        flight.stream = stream_of(&flight.op);
        self.launch(flight, fd, address);
    }

    /// Puts an operation into a slot, and its entry on the way.
    fn launch(&mut self, flight: Flight, fd: RawFd, address: Option<SockAddr>) {
        let is_send = matches!(flight.op, Op::Send { .. });
        let slot = self.slab.insert(flight);
        self.slab.slot(slot).scratch.address = address;
        let bytes = self.slab.slot(slot).load();
        if is_send {
            self.sends_left += 1;
            self.sends_new += 1;
            self.small_sends += u32::from(bytes < SMALL_SEND);
        }
        self.post(slot, fd);
    }

    /// The descriptor of a disk. A range that O_DIRECT cannot move is refused here, also where this file system would do it
    /// through the page cache.
    fn aligned(&self, on: DiskIndex, at: u64, len: u64) -> Result<RawFd, Errno> {
        let disk = disk(&self.disks, on)?;
        if (at | len).is_multiple_of(BLOCK) { Ok(disk.fd()) } else { Err(Errno(libc::EINVAL)) }
    }

    /// Builds the entry for what is left of the operation in `slot`.
    fn post(&mut self, index: u32, fd: RawFd) {
        let slot = self.slab.slot(index);
        let Some(entry) = slot.entry(index, fd) else { return };
        self.sends += u32::from(matches!(slot.flight, Some(Flight { op: Op::Send { .. }, .. })));
        if let Some(Flight { op: Op::Connect { within, .. }, .. }) = slot.flight {
            slot.scratch.timeout = timespec(within.min(self.limits.connect));
            let deadline = opcode::LinkTimeout::new(&raw const slot.scratch.timeout).build();
            let token = Token::new(Kind::Deadline, slot.generation, index);
            self.pairs.push([entry.flags(squeue::Flags::IO_LINK), deadline.user_data(token.bits())]);
            self.loose += 1;
        } else {
            self.pending.push(entry);
        }
    }

    /// Wakes its turns when `fd`, a blocking eventfd, becomes readable.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>) -> Result<(), ReactorError> {
        let fd = fd.try_clone_to_owned().map_err(ReactorError::Mailbox)?;
        self.bell = Some(Bell { fd, count: Box::new(0), posted: false, rung: false });
        Ok(())
    }

    /// Whether the bell rang since the last call.
    pub(crate) fn take_rung(&mut self) -> bool {
        self.bell.as_mut().is_some_and(|bell| std::mem::take(&mut bell.rung))
    }

    /// Puts everything that was submitted into the ring. Enters only if the ring's queue is full in between.
    pub fn push_pending(&mut self) -> Result<(), ReactorError> {
        if let Some(bell) = self.bell.as_mut().filter(|bell| !bell.posted && !self.closing) {
            let read = opcode::Read::new(Fd(bell.fd.as_raw_fd()), std::ptr::from_mut(&mut *bell.count).cast(), 8);
            self.pending.push(read.build().user_data(Token::new(Kind::Wake, 0, 0).bits()));
            bell.posted = true;
        }
        if let Some(beside) = self.rdma.as_mut().filter(|_| !self.closing) {
            beside.start(clock::now());
            for (index, fd) in beside.new_polls() {
                let poll = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build();
                self.pending.push(poll.user_data(Token::new(Kind::Rdma, 0, index).bits()));
            }
        }
        let (mut single, mut paired) = (0, 0);
        loop {
            let (pending, pairs) = (&self.pending, &self.pairs);
            self.ring.with(&mut |ring| {
                let mut queue = ring.submission();
                // Pairs first: what cancels a connect stands behind it.
                // SAFETY: all that an entry points to is in the slot of its operation: memory that the operation owns, or the
                // boxed scratch; or it is the bell's box. The slot is emptied only when the completion was seen, the bell goes
                // with the driver, whose drop waits for all completions and leaks both if they do not come.
                // The descriptors stay open as long: a stream is closed only when nothing is posted on it, RDMA's go with the driver.
                // A connect and its deadline are linked, and pushed together: a full queue must not part them.
                while pairs.get(paired).is_some_and(|pair| unsafe { queue.push_multiple(pair) }.is_ok()) {
                    paired += 1;
                }
                if paired < pairs.len() {
                    return;
                }
                // SAFETY: as above.
                while pending.get(single).is_some_and(|entry| unsafe { queue.push(entry) }.is_ok()) {
                    single += 1;
                }
            });
            if single == pending.len() && paired == pairs.len() {
                break;
            }
            self.counters.enters += 1;
            self.counters.extra_submits += 1;
            self.ring.submit().map_err(ReactorError::Enter)?;
        }
        self.counters.sqes += single as u64 + 2 * paired as u64;
        self.pending.clear();
        self.pairs.clear();
        self.sends = 0;
        Ok(())
    }

    /// How many completions the next enter should wait for, and how long at most, given what the machine wants. Small sends
    /// end at once, and so they are not what the wait is for. To be asked once per enter, after `push_pending`.
    pub fn patience(&mut self, now: Time, timeout: Option<Span>) -> (u32, Option<Span>) {
        let (sends, new) = (std::mem::take(&mut self.small_sends), std::mem::take(&mut self.sends_new));
        let timeout = if self.ready.is_empty() { timeout } else { Some(Span(0)) };
        self.batch.wait(now, self.counters.cqes, (sends, self.sends_left > new), timeout)
    }

    /// Enters the ring once.
    pub fn enter(&mut self, want: u32, timeout: Option<Span>) -> Result<(), ReactorError> {
        self.counters.enters += 1;
        self.ring.enter(want, timeout).map_err(ReactorError::Enter)
    }

    /// Takes what completed out of the ring.
    pub fn drain(&mut self, into: &mut Vec<Cqe>) {
        self.ring.drain(into);
    }

    /// Takes note of a completion: gives the operation back if it is over.
    pub fn complete(&mut self, cqe: Cqe) -> Option<Done> {
        self.counters.cqes += 1;
        let Some(token) = Token::parse(cqe.user_data()) else {
            self.counters.stale += 1;
            return None;
        };
        match token.kind {
            Kind::Deadline | Kind::Cancel => {
                self.loose -= 1;
                None
            }
            Kind::Wake => {
                self.counters.wakes += 1;
                if let Some(bell) = &mut self.bell {
                    bell.posted = false;
                    bell.rung = true;
                }
                None
            }
            Kind::Rdma => {
                if let Some(beside) = &mut self.rdma {
                    beside.fired(token.slot);
                }
                None
            }
            Kind::Op => {
                let done = self.complete_op(token, cqe.result())?;
                self.through_tls(done)
            }
        }
    }

    fn complete_op(&mut self, token: Token, result: i32) -> Option<Done> {
        let Some(slot) = self.slab.find(token) else {
            self.counters.stale += 1;
            return None;
        };
        let moved = usize::try_from(result).map_err(|_| Errno(-result));
        let flight = slot.flight.as_ref()?;
        let whole: usize = match &flight.op {
            Op::Send { parts, .. } | Op::DiskWrite { parts, .. } => parts.iter().map(|part| part.len).sum(),
            Op::DiskRead { len, .. } => *len,
            _ => return self.over(token.slot, moved.map(|_| result)),
        };
        if flight.stored {
            // That was its sync, of which there is no second try: the kernel tells of a lost page once.
            return self.over(token.slot, moved.map(|_| i32::try_from(whole).unwrap_or(i32::MAX)));
        }
        let retry = matches!(moved, Err(Errno(libc::EINTR | libc::EAGAIN)));
        match moved {
            Err(error) if !retry => self.over(token.slot, Err(error)),
            moved => {
                let step = moved.unwrap_or(0);
                slot.advance(step);
                let (sum, cancelled) = slot.flight.as_ref().map(|flight| (flight.moved, flight.cancelled))?;
                if sum >= whole {
                    let sum = i32::try_from(sum).unwrap_or(i32::MAX);
                    self.over(token.slot, Ok(sum))
                } else if cancelled || self.closing {
                    self.over(token.slot, CANCELED)
                } else if step == 0 && !retry {
                    // The end of a disk, or a socket that takes nothing: no progress, so no second try.
                    self.over(token.slot, Err(Errno::IO))
                } else {
                    self.resume(token.slot)
                }
            }
        }
    }

    /// Goes on where a short transfer stopped.
    fn resume(&mut self, index: u32) -> Option<Done> {
        self.counters.resumed += 1;
        let fd = match self.slab.slot(index).flight.as_ref().map(|flight| &flight.op) {
            Some(Op::Send { stream, .. }) => self.streams.fd(*stream),
            Some(Op::DiskRead { disk: on, .. } | Op::DiskWrite { disk: on, .. }) => {
                disk(&self.disks, *on).map(Disk::fd)
            }
            _ => Err(Errno::IO),
        };
        match fd {
            Ok(fd) => {
                self.post(index, fd);
                None
            }
            Err(error) => self.over(index, Err(error)),
        }
    }

    /// Takes the operation out of its slot and makes its result.
    fn over(&mut self, index: u32, result: Result<i32, Errno>) -> Option<Done> {
        let Flight { op, stream, socket, cancelled, .. } = self.slab.take(index)?;
        self.sends_left -= u32::from(matches!(op, Op::Send { .. }));
        if let Some(stream) = stream.filter(|stream| self.streams.end(*stream)) {
            self.close_parked(stream);
        }
        let result = match (&op, result) {
            (Op::Accept { listener: id }, Ok(fd)) => {
                // SAFETY: the kernel opened this descriptor for the accept and told nobody else.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                let tcp = listener(&self.listeners, *id).is_ok_and(Listener::is_tcp);
                let tuned = if tcp { tune(&fd).map_err(|error| error::errno(&error)) } else { Ok(()) };
                tuned.and_then(|()| self.add(fd))
            }
            (Op::Connect { .. }, Ok(_)) => match socket {
                Some(socket) => self.add(socket.into()),
                None => Err(Errno::IO),
            },
            // The kernel cancels a connect for its deadline, if we did not.
            (Op::Connect { .. }, Err(Errno::CANCELED)) if !cancelled => Err(Errno::TIMED_OUT),
            (Op::Close { stream }, result) => {
                let left = self.streams.remove(*stream);
                if result != CANCELED {
                    // The kernel has closed it, whatever it says; the number may be somebody else's by now.
                    let _gone: Option<RawFd> = left.map(IntoRawFd::into_raw_fd);
                }
                result.map(i32::cast_unsigned)
            }
            // Which of the ways to end it was, a receive or send tells better.
            (Op::Watch { .. }, Ok(_)) => Ok(0),
            // Not connected any more is what a shutdown is for.
            (Op::Shutdown { .. }, Err(Errno(libc::ENOTCONN))) => Ok(0),
            // Punching is a kindness to the device below: one that cannot take it loses nothing.
            (Op::DiskPunch { .. }, Err(Errno(libc::EOPNOTSUPP))) => Ok(0),
            (_, result) => result.map(i32::cast_unsigned),
        };
        while self.slab.len() < self.limits.ops as usize {
            let Some(next) = self.waiting.pop_front() else { break };
            self.start(next);
        }
        Some(Done { op, result })
    }

    /// The last operation before a close is over.
    fn close_parked(&mut self, stream: StreamId) {
        let Some(at) = self.parked.iter().position(|parked| *parked == stream) else { return };
        self.parked.swap_remove(at);
        let op = Op::Close { stream };
        match self.streams.fd(stream) {
            Ok(fd) => self.launch(Flight { stream: Some(stream), ..Flight::new(op) }, fd, None),
            Err(error) => self.ready.push_back(Done { op, result: Err(error) }),
        }
    }

    fn add(&mut self, fd: OwnedFd) -> Result<u32, Errno> {
        self.streams.add(fd).map(|stream| stream.0).ok_or(Errno(libc::EMFILE))
    }

    /// Counts a turn.
    pub(crate) fn count_turn(&mut self) {
        self.counters.turns += 1;
    }
}

impl<R: Ring> std::fmt::Debug for Uring<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "driver: {} operations outstanding, {} streams", self.outstanding(), self.open_streams())
    }
}

/// The stream whose descriptor an operation uses.
fn stream_of(op: &Op) -> Option<StreamId> {
    match op {
        Op::Recv { stream, .. }
        | Op::Send { stream, .. }
        | Op::Watch { stream, .. }
        | Op::Shutdown { stream }
        | Op::Close { stream } => Some(*stream),
        _ => None,
    }
}

/// A number for the next listener or disk: there are as many as configuration names.
fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
