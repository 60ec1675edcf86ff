//! The network: listeners, streams and their numbers, partitions. `traffic` moves the bytes, `lifecycle` makes and ends streams.
//!
//! As TCP: within a stream nothing is duplicated or reordered. A partition holds bytes (they would be sent again) until it
//! heals or the sender gives up; a reset on its way through a partition is lost, which leaves the other end half-open.

mod connection;
mod lifecycle;
mod traffic;

pub(crate) use connection::EndId;
use connection::{Connection, End, Segment, Sending};

use crate::kernel::{Event, Kernel, ProcessId};
use crate::options::NetworkOptions;
use driver::{Address, Errno, Op, StreamId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Connections that a listener keeps for a process that does not accept them; more are not answered (Linux: somaxconn).
const BACKLOG: usize = 128;
/// A broken stream's answer to a send.
const BROKEN_PIPE: Errno = Errno(32);
/// A broken stream's answer to a shutdown.
const NOT_CONNECTED: Errno = Errno(107);

pub(crate) struct Network {
    pub(crate) options: NetworkOptions,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    listeners: Vec<Listener>,
    /// By process.
    streams: Vec<Vec<Option<Slot>>>,
    /// From, to.
    blocked: BTreeSet<(ProcessId, ProcessId)>,
    /// Addresses that nothing gets to or from.
    cut: Vec<Address>,
}

struct Listener {
    address: Address,
    process: ProcessId,
    accepts: VecDeque<Op>,
    backlog: VecDeque<EndId>,
}

/// What is behind a process's stream number.
#[derive(Clone, Copy)]
struct Slot {
    at: EndId,
    /// Operations that the machine has not got back.
    outstanding: u32,
    sending: bool,
    watching: bool,
    closing: bool,
}

impl Network {
    pub(crate) fn new(options: NetworkOptions) -> Self {
        Self {
            options,
            connections: BTreeMap::new(),
            next: 0,
            listeners: Vec::new(),
            streams: Vec::new(),
            blocked: BTreeSet::new(),
            cut: Vec::new(),
        }
    }

    /// A new process. Its listeners are numbered in this order.
    pub(crate) fn add(&mut self, process: ProcessId, listeners: Vec<Address>) {
        self.streams.push(Vec::new());
        for address in listeners {
            let taken = self.listeners.iter().any(|listener| listener.address == address);
            assert!(!taken, "{address:?} is somebody else's");
            self.listeners.push(Listener { address, process, accepts: VecDeque::new(), backlog: VecDeque::new() });
        }
    }

    pub(crate) fn submit(&mut self, k: &mut Kernel, process: ProcessId, op: Op) {
        match &op {
            Op::Accept { listener } => {
                let of_process = self.listeners.iter().enumerate().filter(|(_, it)| it.process == process);
                match of_process.map(|(index, _)| index).nth(listener.0 as usize) {
                    Some(index) => self.accept(k, index, op),
                    None => k.broken(process, format_args!("an accept on a listener it does not have: {op:?}")),
                }
            }
            Op::Connect { .. } => self.connect(k, process, op),
            Op::Recv { stream, into, from, .. } => {
                if *from >= into.len() {
                    k.broken(process, format_args!("a receive into no memory: {op:?}"));
                }
                let slot = self.slot(k, process, *stream);
                slot.outstanding += 1;
                let at = slot.at;
                self.receive(k, at, op);
            }
            Op::Send { stream, parts, .. } => {
                let inside = parts.iter().all(|part| part.len > 0 && part.from + part.len <= part.mem.len());
                if parts.is_empty() || !inside {
                    k.broken(process, format_args!("a send of nothing, or outside its memory: {op:?}"));
                }
                let slot = self.slot(k, process, *stream);
                if slot.sending {
                    k.broken(process, format_args!("two sends at a time on {stream:?}"));
                }
                slot.sending = true;
                slot.outstanding += 1;
                let at = slot.at;
                self.send(k, at, op);
            }
            Op::Watch { stream, .. } => {
                let slot = self.slot(k, process, *stream);
                if slot.watching {
                    k.broken(process, format_args!("two watches at a time on {stream:?}"));
                }
                slot.watching = true;
                slot.outstanding += 1;
                let at = slot.at;
                self.watch(k, at, op);
            }
            Op::Secure { .. } => k.complete_at(k.now, process, op, Err(Errno::NOT_SUPPORTED)),
            Op::Shutdown { stream } => {
                let slot = self.slot(k, process, *stream);
                slot.outstanding += 1;
                let at = slot.at;
                self.shutdown(k, at, op);
            }
            Op::Close { stream } => {
                let slot = self.slot(k, process, *stream);
                if slot.outstanding > 0 {
                    k.broken(process, format_args!("a close of {stream:?} with operations outstanding on it"));
                }
                slot.closing = true;
                let at = slot.at;
                self.close(k, process, at, op);
            }
            _ => {}
        }
    }

    /// The machine is about to get this back.
    pub(crate) fn returned(&mut self, process: ProcessId, op: &Op) {
        let (Op::Recv { stream, .. } | Op::Send { stream, .. } | Op::Watch { stream, .. } | Op::Shutdown { stream }) =
            op
        else {
            return;
        };
        if let Some(Some(slot)) = self.streams[process.index()].get_mut(stream.0 as usize) {
            slot.outstanding -= 1;
            match op {
                Op::Send { .. } => slot.sending = false,
                Op::Watch { .. } => slot.watching = false,
                _ => {}
            }
        }
    }

    /// A stream is closed: its number may be given out again, and is, at once.
    pub(crate) fn closed(&mut self, k: &mut Kernel, process: ProcessId, op: Op) {
        if let Op::Close { stream } = &op
            && let Some(slot) = self.streams[process.index()].get_mut(stream.0 as usize)
        {
            *slot = None;
        }
        k.complete_at(k.now, process, op, Ok(0));
    }

    /// From now on nothing passes in this direction.
    pub(crate) fn block(&mut self, from: ProcessId, to: ProcessId) {
        self.blocked.insert((from, to));
    }

    /// It does again.
    pub(crate) fn unblock(&mut self, k: &mut Kernel, from: ProcessId, to: ProcessId) {
        if self.blocked.remove(&(from, to)) {
            self.retry(k, |connection| connection.ends.iter().all(|end| end.process == from || end.process == to));
        }
    }

    /// From now on nothing passes on connections to this address.
    pub(crate) fn cut(&mut self, address: Address) {
        self.cut.push(address);
    }

    /// It does again.
    pub(crate) fn mend(&mut self, k: &mut Kernel, address: &Address) {
        let before = self.cut.len();
        self.cut.retain(|cut| cut != address);
        if self.cut.len() < before {
            self.retry(k, |connection| connection.to == *address);
        }
    }

    /// All addresses that are cut off.
    pub(crate) fn cuts(&self) -> &[Address] {
        &self.cut
    }

    /// All directions that are blocked.
    pub(crate) fn blocked(&self) -> Vec<(ProcessId, ProcessId)> {
        self.blocked.iter().copied().collect()
    }

    /// Every stream and what is under way on it, for people.
    pub(crate) fn report(&self) -> String {
        let mut text = String::new();
        for (id, connection) in &self.connections {
            text += &format!("  connection {id}{}:", if connection.silent { " (silent)" } else { "" });
            for end in &connection.ends {
                let open = if end.alive { end.stream } else { None };
                text += &format!(" [{:?} {open:?} unread {} on wire {}", end.process, end.inbox.len(), end.wire_bytes);
                for (name, is) in [
                    ("dead", !end.alive),
                    ("shut", end.shut),
                    ("ended", end.ended),
                    ("failed", end.failed.is_some()),
                    ("sending", end.sending.is_some()),
                    ("receiving", !end.receives.is_empty()),
                    ("watched", end.watch.is_some()),
                    ("wants room", end.wants_room),
                    ("in doubt", end.doubt.is_some()),
                ] {
                    text += &if is { format!(", {name}") } else { String::new() };
                }
                text += "]";
            }
            text += "\n";
        }
        text
    }

    /// What is held on these connections arrives after another latency, if it may now.
    fn retry(&mut self, k: &mut Kernel, which: impl Fn(&Connection) -> bool) {
        for (&id, connection) in self.connections.iter_mut().filter(|(_, connection)| which(connection)) {
            for (side, end) in connection.ends.iter_mut().enumerate() {
                end.doubt = None;
                if !end.wire.is_empty() {
                    let wait = self.options.latency.sample(&mut k.rng);
                    k.schedule_in(wait, Event::Arrive { from: EndId { connection: id, side } });
                }
            }
        }
    }

    /// Whether something gets from one to the other, on a connection that was made to an address.
    fn passes(&self, from: ProcessId, to: ProcessId, over: &Address) -> bool {
        (self.blocked.is_empty() || !self.blocked.contains(&(from, to))) && !self.cut.contains(over)
    }

    fn slot(&mut self, k: &Kernel, process: ProcessId, stream: StreamId) -> &mut Slot {
        match self.streams[process.index()].get_mut(stream.0 as usize) {
            Some(Some(slot)) if !slot.closing => slot,
            _ => k.broken(process, format_args!("{stream:?} is not open")),
        }
    }

    /// The lowest free number: early reuse is what finds stale ones.
    fn number(&mut self, process: ProcessId, at: EndId) -> StreamId {
        let slots = &mut self.streams[process.index()];
        let free = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        if free == slots.len() {
            slots.push(None);
        }
        slots[free] = Some(Slot { at, outstanding: 0, sending: false, watching: false, closing: false });
        StreamId(u32::try_from(free).unwrap_or(u32::MAX))
    }

    fn end(&mut self, at: EndId) -> Option<&mut End> {
        self.connections.get_mut(&at.connection).map(|connection| &mut connection.ends[at.side])
    }

    /// Forgets a connection that nobody has an end of.
    fn forget_if_over(&mut self, connection: u64) {
        if self.connections.get(&connection).is_some_and(|it| it.ends.iter().all(|end| !end.alive)) {
            self.connections.remove(&connection);
        }
    }
}
