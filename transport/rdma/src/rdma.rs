//! All RDMA connections of one reactor.

mod admission;
mod listening;

use driver::{Address, Conn, Done, Errno, Op, Span, StreamId, Time, why};
use memory::Arena;
use rdma_link::cm::{Event, Phase, Step, Why};
use rdma_link::{CONNECT, End, Introduction, LOOK, LOOKS, Link, Out, ROUTE};
use refcount::Hold;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;

use self::admission::{Pace, slots};
use self::listening::Listener;
use crate::RdmaError;
use crate::line::Line;
use crate::verbs::{Channel, Device, Id, Note, Pair};

/// Connections at a time: with 528 KiB each, 132 MiB of the arena at most.
const LINES: usize = 256;
/// Events of the manager taken in one turn: what one of them can cost is a queue pair made and another unmade. The channel stays readable.
const NOTES: usize = 32;
/// Devices at a time.
const DEVICES: u32 = 7;
/// Set in the number of every stream and listener of ours, so that they can stand beside those of sockets (of which there are fewer
/// than 2^15 at a time).
const OURS: u32 = 0x8000;
/// Set in what the connection manager knows a listener by.
const LISTENER: u64 = 1 << 32;
/// The same of a device.
const DEVICE: u64 = 1 << 33;

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connections that came up.
    pub established: u64,
    /// Requests of peers that were turned away.
    pub refused: u64,
    /// Strangers that had to go for a newer one.
    pub displaced: u64,
    /// Queue pairs that had to be destroyed before they had given everything back.
    pub undrained: u64,
    /// Ends of the manager's that were given up, and those of them that the kernel has let go of: the rest is under way, or stuck.
    pub discarded: u64,
    /// See above.
    pub destroyed: u64,
    /// Connections that the device broke, and its word for the last one: an `ibv_wc_status`.
    pub broken: u64,
    /// See above.
    pub last_status: i32,
    /// Events that belonged to nobody.
    pub stale: u64,
}

/// See above.
pub struct Rdma {
    // First of all what holds the rest.
    places: Vec<Place>,
    listeners: Vec<Listener>,
    pace: Pace,
    /// Those that are gone leave their places to the next.
    devices: Vec<Option<Rc<Device>>>,
    channel: Rc<Channel>,
    arena: Arena,
    dones: Vec<Done>,
    counters: Counters,
}

struct Place {
    generation: u16,
    line: Option<Box<Line>>,
}

impl Rdma {
    /// How many descriptors there are at most: the manager's, and one per device.
    pub const DESCRIPTORS: u32 = 1 + DEVICES;

    /// No connection yet. All memory of operations will be of `arena`.
    pub fn new(arena: &Arena) -> Result<Self, RdmaError> {
        let channel = Channel::new().map_err(|error| match error {
            Errno(libc::EOPNOTSUPP) => RdmaError::NoLibrary,
            error => RdmaError::NoManager(error),
        })?;
        Ok(Self {
            places: Vec::new(),
            listeners: Vec::new(),
            pace: Pace::default(),
            devices: Vec::new(),
            channel,
            arena: arena.clone(),
            dones: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// Whether a stream or a listener of this number is ours.
    pub fn owns(number: u32) -> bool {
        number & OURS != 0
    }

    /// Starts an operation on a stream. It comes back, once, from [`Rdma::turn`].
    pub fn submit(&mut self, now: Time, op: Op) {
        match op {
            Op::Accept { listener } => self.accept(listener),
            Op::Connect { on, to, within } => self.connect(now, on, to, within),
            Op::Recv { stream, .. } | Op::Send { stream, .. } => match self.find(stream) {
                Some(line) => {
                    if let (Op::Recv { on, .. }, Some(stranger)) = (&op, &mut line.stranger) {
                        stranger.heard(|| on.proven());
                    }
                    let mut dones = Vec::new();
                    line.with(now, &mut dones, |link, out| link.submit(op, out));
                    self.dones.append(&mut dones);
                }
                None => self.refuse(op),
            },
            Op::Shutdown { stream } => {
                let mut dones = vec![Done { op: Op::Shutdown { stream }, result: Ok(0) }];
                if let Some(line) = self.find(stream) {
                    line.end(now, End::Ours, &mut dones);
                }
                self.dones.append(&mut dones);
            }
            Op::Close { stream } => {
                let mut dones = Vec::new();
                match self.find(stream) {
                    Some(line) => {
                        line.close = true;
                        line.end(now, End::Ours, &mut dones);
                        self.dones.append(&mut dones);
                        self.sweep(slot_of(stream));
                    }
                    None => self.refuse(Op::Close { stream }),
                }
            }
            op => self.refuse(op),
        }
    }

    /// All that happened, and all that follows from it: gives what is over. To be called when a descriptor of
    /// [`Rdma::descriptors`] is readable, at [`Rdma::next_deadline`], and after operations were submitted.
    pub fn turn(&mut self, now: Time, into: &mut Vec<Done>) {
        for device in self.devices.iter().flatten() {
            device.acknowledge();
        }
        // Polled after the channel was armed again; and before the manager is asked, for what came before a peer's end.
        self.poll(now);
        let channel = Rc::clone(&self.channel);
        for note in std::iter::from_fn(|| channel.next()).take(NOTES) {
            self.note(now, note);
        }
        for slot in 0..self.places.len() {
            self.due(now, slot);
            self.sweep(slot);
        }
        self.listen_again(now);
        into.append(&mut self.dones);
    }

    /// What completed, without a system call, and whether anything is over: for looking before sleeping. It leaves the descriptors as
    /// they are, so that nothing is missed. But a queue pair that it ends takes its events along: what is over with it comes back from here,
    /// not when a descriptor says so.
    pub fn look(&mut self, now: Time) -> bool {
        self.poll(now);
        for slot in 0..self.places.len() {
            self.sweep(slot);
        }
        !self.dones.is_empty()
    }

    /// Ends everything: accepts come back from [`Rdma::turn`], and the operations of every connection as soon as it has ended.
    pub fn cancel_all(&mut self, now: Time) {
        self.cancel_accepts();
        for slot in 0..self.places.len() {
            if let Some(line) = self.places[slot].line.as_mut() {
                line.connected(Err(Errno::CANCELED), &mut self.dones);
                line.end(now, End::Ours, &mut self.dones);
            }
            self.sweep(slot);
        }
    }

    /// When to call [`Rdma::turn`] at the latest: at once, if something is over already.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.dones.is_empty() {
            return Some(Time::default());
        }
        let again = self.listeners.iter().filter_map(|listener| listener.again);
        self.lines().filter_map(|line| line.deadline).chain(again).min()
    }

    /// What becomes readable when there is something to do, each at its place. One comes with the first connection on a device, and goes with
    /// the device.
    pub fn descriptors(&self) -> impl Iterator<Item = Option<RawFd>> {
        let devices = self.devices.iter().map(|device| device.as_ref().map(|device| device.fd()));
        std::iter::once(Some(self.channel.fd())).chain(devices)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        let (discarded, destroyed) = self.channel.destroyed();
        Counters { discarded, destroyed, ..self.counters }
    }

    /// Streams that the machine knows of and has not closed.
    pub fn left_open(&self) -> usize {
        self.lines().filter(|line| line.known && !line.close).count()
    }

    /// Connections that are not over.
    pub fn open(&self) -> usize {
        self.lines().count()
    }

    /// Connections that have a queue pair, and with it memory for what arrives.
    pub fn queue_pairs(&self) -> usize {
        self.lines().filter(|line| line.pair.is_some()).count()
    }

    /// Puts the queue pair of a stream in error without a word to anybody, as a fault of the device does: for tests of it.
    pub fn break_queue_pair(&mut self, stream: StreamId) {
        if let Some(pair) = self.find(stream).and_then(|line| line.pair.as_mut()) {
            pair.break_silently();
        }
    }

    /// As if the manager told of the end of every device: for tests of it.
    pub fn lose_devices(&mut self, now: Time) {
        let ids = self.lines().map(|line| u64::from(line.stream.0)).chain((0..DEVICES).map(|n| DEVICE | u64::from(n)));
        let listeners = (0..self.listeners.len()).map(|n| LISTENER | n as u64);
        for of in ids.chain(listeners).collect::<Vec<_>>() {
            self.note(now, Note { of, event: Event::DeviceRemoval, private: Vec::new(), new: None });
        }
    }

    // --- opening ---

    fn connect(&mut self, now: Time, on: Hold<Conn, why::Rx>, to: Address, within: Span) {
        let Some(at) = endpoint(&to) else { return self.refuse(Op::Connect { on, to, within }) };
        let Some(stream) = self.number() else {
            return self.dones.push(Done { op: Op::Connect { on, to, within }, result: Err(Errno(libc::EMFILE)) });
        };
        let started = Id::new(&self.channel, u64::from(stream.0)).and_then(|id| {
            id.resolve(at, milliseconds(LOOK))?;
            Ok(id)
        });
        match started {
            Ok(id) => {
                let mut line = Line::new(stream, Phase::Resolving, id, now + within.min(CONNECT));
                (line.connect, line.looks) = (Some((on, to, within)), 1);
                self.places[slot_of(stream)].line = Some(Box::new(line));
            }
            Err(error) => self.dones.push(Done { op: Op::Connect { on, to, within }, result: Err(error) }),
        }
    }

    /// Makes the queue pair and posts all its receives: before the connection is up, not after.
    fn equip(&mut self, now: Time, line: &mut Line, connecting: bool) -> Result<(), Errno> {
        let id = line.id.take().ok_or(Errno::IO)?;
        let device = match self.device(&id) {
            Ok(device) => device,
            Err(_) => {
                line.id = Some(id);
                return Err(Errno(libc::ENODEV));
            }
        };
        let Some(slots) = slots(&self.arena) else {
            line.id = Some(id);
            return Err(Errno(libc::ENOMEM));
        };
        let (pair, keys) = match Pair::new(id, &device) {
            Ok(made) => made,
            Err((error, id)) => {
                line.id = Some(id);
                return Err(error);
            }
        };
        line.pair = Some(pair);
        let mut out = Out::default();
        line.link = Some(Link::new(connecting, line.stream, slots, keys, &mut out));
        line.with(now, &mut self.dones, |_, to| to.works.append(&mut out.works));
        Ok(())
    }

    /// The device that an end is bound to.
    fn device(&mut self, id: &Id) -> Result<Rc<Device>, RdmaError> {
        let context = id.context();
        if let Some(known) = self.devices.iter().flatten().find(|device| device.is(context)) {
            return Ok(Rc::clone(known));
        }
        let index = self.devices.iter().position(Option::is_none).unwrap_or(self.devices.len());
        if index >= DEVICES as usize {
            return Err(RdmaError::NoDevice(Errno(libc::EMFILE)));
        }
        let keeper = Id::new(&self.channel, DEVICE | index as u64).and_then(|keeper| keeper.bind_beside(id));
        let device = Rc::new(Device::new(keeper.map_err(RdmaError::NoDevice)?, &self.arena)?);
        self.devices.resize(self.devices.len().max(index + 1), None);
        self.devices[index] = Some(Rc::clone(&device));
        Ok(device)
    }

    // --- what happens ---

    fn poll(&mut self, now: Time) {
        for line in self.places.iter_mut().filter_map(|place| place.line.as_mut()) {
            line.poll(now, &mut self.dones);
        }
    }

    fn note(&mut self, now: Time, note: Note) {
        let Note { of, event, private, new } = note;
        if let Some(id) = new {
            let listener = usize::try_from(of & !LISTENER).unwrap_or(usize::MAX);
            return self.requested(now, listener, &private, id);
        }
        if event == Event::DeviceRemoval && of & (DEVICE | LISTENER) != 0 {
            return self.removed(now, of);
        }
        let stream = u32::try_from(of).ok().map(StreamId);
        let Some(mut line) = stream.and_then(|stream| self.take(stream)) else {
            self.counters.stale += 1;
            return;
        };
        line.poll(now, &mut self.dones);
        self.step(now, &mut line, event, &private);
        let slot = slot_of(line.stream);
        self.places[slot].line = Some(line);
    }

    /// A device is gone. Its connections are told of it one by one, and with the last of them it goes; a listener at its address waits for it.
    fn removed(&mut self, now: Time, of: u64) {
        let index = usize::try_from(of & !(DEVICE | LISTENER)).unwrap_or(usize::MAX);
        if of & DEVICE != 0 {
            self.devices.get_mut(index).into_iter().for_each(|device| *device = None);
        } else {
            self.cease(now, index);
        }
    }

    fn step(&mut self, now: Time, line: &mut Line, event: Event, private: &[u8]) {
        let done = match line.phase.on(event) {
            Step::Ignore => return,
            Step::Lose => return line.end(now, lost(event), &mut self.dones),
            Step::Fail(why) => Err(refusal(why)),
            Step::Resolve => look(line),
            Step::Route => {
                line.phase = Phase::Routing;
                line.id.as_ref().map_or(Err(Errno::IO), |id| id.resolve_route(milliseconds(ROUTE)))
            }
            Step::Connect => self.equip(now, line, true).and_then(|()| {
                line.phase = Phase::Connecting;
                let id = line.pair.as_ref().and_then(Pair::id).ok_or(Errno::IO)?;
                id.connect(&Introduction::OURS.bytes())
            }),
            Step::Establish => self.establish(now, line, private),
        };
        if let Err(error) = done {
            line.connected(Err(error), &mut self.dones);
            line.end(now, End::Failed, &mut self.dones);
        }
    }

    fn establish(&mut self, now: Time, line: &mut Line, private: &[u8]) -> Result<(), Errno> {
        if line.phase == Phase::Connecting {
            line.theirs = Introduction::parse(private).ok_or(Errno(libc::EPROTO))?.receives;
        }
        self.counters.established += 1;
        line.up(now, &mut self.dones);
        line.connected(Ok(()), &mut self.dones);
        self.arrived(line)
    }

    fn due(&mut self, now: Time, slot: usize) {
        let Some(line) = self.places[slot].line.as_mut() else { return };
        if line.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        if line.phase == Phase::Ending {
            self.counters.undrained += 1;
            line.give_up(now, &mut self.dones);
        } else {
            line.connected(Err(Errno::TIMED_OUT), &mut self.dones);
            line.end(now, End::Failed, &mut self.dones);
        }
    }

    /// Frees a place whose line is over.
    fn sweep(&mut self, slot: usize) {
        let place = &mut self.places[slot];
        let Some(line) = place.line.take_if(|line| line.over()) else { return };
        place.generation = place.generation.wrapping_add(1);
        if let Some(status) = line.status {
            (self.counters.broken, self.counters.last_status) = (self.counters.broken + 1, status);
        }
        if line.close {
            self.dones.push(Done { op: Op::Close { stream: line.stream }, result: Ok(0) });
        }
    }

    // --- places ---

    /// A number for a new stream; its place is taken when its line is put there.
    fn number(&mut self) -> Option<StreamId> {
        let free = self.places.iter().position(|place| place.line.is_none());
        let slot = free.unwrap_or_else(|| {
            self.places.push(Place { generation: 0, line: None });
            self.places.len() - 1
        });
        let generation = u32::from(self.places[slot].generation);
        let number = u32::try_from(slot).ok().filter(|_| slot < LINES)?;
        Some(StreamId(generation << 16 | OURS | number))
    }

    fn take(&mut self, stream: StreamId) -> Option<Box<Line>> {
        let place = self.places.get_mut(slot_of(stream))?;
        place.line.take_if(|line| line.stream == stream)
    }

    fn find(&mut self, stream: StreamId) -> Option<&mut Line> {
        self.places.get_mut(slot_of(stream))?.line.as_deref_mut().filter(|line| line.stream == stream)
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.places.iter().filter_map(|place| place.line.as_deref())
    }

    fn refuse(&mut self, op: Op) {
        self.dones.push(Done { op, result: Err(Errno(libc::EBADF)) });
    }
}

impl std::fmt::Debug for Rdma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rdma: {} connections on {} devices", self.open(), self.devices.iter().flatten().count())
    }
}

fn slot_of(stream: StreamId) -> usize {
    (stream.0 & (OURS - 1)) as usize
}

fn endpoint(to: &Address) -> Option<SocketAddr> {
    match to {
        Address::Rdma(at) => Some(*at),
        Address::Tcp(_) | Address::Unix(_) => None,
    }
}

/// Looks for the device that leads to the peer.
fn look(line: &mut Line) -> Result<(), Errno> {
    line.looks += 1;
    let to = line.connect.as_ref().and_then(|(_, to, _)| endpoint(to));
    let (Some(to), true) = (to, line.looks <= LOOKS) else { return Err(refusal(Why::Unreachable)) };
    line.id.as_ref().map_or(Err(Errno::IO), |id| id.resolve(to, milliseconds(LOOK)))
}

/// A peer that says goodbye, or a device that is gone.
fn lost(event: Event) -> End {
    if event == Event::Disconnected { End::Peer } else { End::Failed }
}

fn refusal(why: Why) -> Errno {
    match why {
        Why::Unreachable => Errno(libc::EHOSTUNREACH),
        Why::Rejected => Errno::REFUSED,
        Why::Error => Errno::RESET,
    }
}

fn milliseconds(span: Span) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX)
}
