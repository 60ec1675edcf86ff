//! All streams of one driver that are TLS, between the machine and that driver.
//!
//! ```text
//!   machine ── submit ──► Layer ── next_op ──► driver
//!           ◄─ next_done ──     ◄── done ────
//! ```
//! Streams that were accepted are TLS if there is an identity to show, or once the machine says so (`Op::Secure`) and there is one for that;
//! streams that were connected over TCP if it is known whom to trust; all others pass through. Memory is the arena's: 4 KiB each way for a stream at rest, 64 KiB each way for a busy one where so much is spare;
//! beside that, what rustls keeps: of a record that is not whole, and of one that was not read, 16 KiB and some bytes each; of a message of
//! the handshake that is not whole, 64 KiB at most.

use crate::line::{Failure, LARGE, Line, SMALL};
use crate::{Identity, Role, TlsError, Trust};
use driver::{Address, Done, Errno, Op, Span, StreamId, Time};
use memory::{Arena, Class, Filling};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

/// From a stream to both sides' keys; whoever accepts has the deadlines of its machine.
const HANDSHAKE_DEADLINE: Span = Span::seconds(5);
/// How soon memory is asked for again when nothing else happens.
const STALL_RETRY: Span = Span::millis(1);

/// Is told of each stream that came to nothing, and where it was to lead if it was ours.
pub type Report = Box<dyn FnMut(Option<&Address>, &Failure)>;

/// What a layer is made with.
pub struct LayerOptions {
    /// What is shown to whoever connects; none accepts streams as they are.
    pub identity: Option<Identity>,
    /// What is shown on an accepted stream that the machine wants to go on in TLS; none refuses that.
    pub on_request: Option<Identity>,
    /// Whom to trust as a node; none connects streams as they are.
    pub trust: Option<Trust>,
    /// What is said in clear to whoever connects and speaks no TLS.
    pub in_clear: Vec<u8>,
    /// Who is told of failures.
    pub report: Report,
}

/// What a layer did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Streams that were connected, with their handshakes over.
    pub established: u64,
    /// Streams that were accepted.
    pub accepted: u64,
    /// Streams that came to nothing because of TLS.
    pub failed: u64,
    /// Waits for memory, of `STALL_RETRY` each.
    pub stalls: u64,
}

/// What all lines share.
pub(crate) struct Desk {
    pub(crate) arena: Arena,
    pub(crate) ops: VecDeque<Op>,
    pub(crate) dones: VecDeque<Done>,
    pub(crate) counters: Counters,
    pub(crate) in_clear: Vec<u8>,
    /// Those that wait for memory, each of them once.
    pub(crate) stalled: Vec<StreamId>,
    report: Report,
}

impl Desk {
    /// Memory for what is sealed: less than asked for where not so much is spare.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Filling> {
        let large = if bytes > SMALL { self.arena.take_spare(bytes.min(LARGE)) } else { None };
        large.or_else(|| self.arena.take(SMALL, Class::Settle))
    }

    pub(crate) fn failed(&mut self, to: Option<&Address>, why: &Failure) {
        self.counters.failed += 1;
        (self.report)(to, why);
    }
}

/// See the module's head.
pub struct Layer {
    identity: Option<Arc<ServerConfig>>,
    on_request: Option<Arc<ServerConfig>>,
    trust: Option<Arc<ClientConfig>>,
    name: ServerName<'static>,
    lines: BTreeMap<StreamId, Line>,
    /// Those that are being closed because TLS could not begin on them.
    refused: BTreeSet<StreamId>,
    desk: Desk,
    /// When a handshake has to be over; may be early, never late.
    deadline: Option<Time>,
    /// When memory is asked for again.
    retry: Time,
}

impl Layer {
    /// No stream yet. `arena` is the one that the driver's operations have their memory of.
    pub fn new(options: LayerOptions, arena: Arena) -> Result<Self, TlsError> {
        let LayerOptions { identity, on_request, trust, in_clear, report } = options;
        let (ops, dones, stalled) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(Self {
            identity: identity.map(|identity| identity.config()),
            on_request: on_request.map(|identity| identity.config()),
            trust: trust.map(|trust| trust.config()).transpose()?,
            name: Role::Node.server_name()?,
            lines: BTreeMap::new(),
            refused: BTreeSet::new(),
            desk: Desk { arena, ops, dones, counters: Counters::default(), in_clear, stalled, report },
            deadline: None,
            retry: Time(0),
        })
    }

    /// What the machine wants.
    pub fn submit(&mut self, op: Op) {
        if let Op::Secure { stream } = op {
            let result = self.secure(stream);
            return self.desk.dones.push_back(Done { op, result });
        }
        let line = stream_of(&op).and_then(|stream| self.lines.get_mut(&stream));
        match line {
            Some(line) => line.submit(op, &mut self.desk),
            None => self.desk.ops.push_back(op),
        }
    }

    /// What the driver is done with.
    pub fn done(&mut self, now: Time, done: Done) {
        let Done { op, result } = done;
        match (op, result) {
            (op @ Op::Accept { .. }, Ok(stream)) if self.identity.is_some() => {
                let stream = StreamId(stream);
                let result = match self.identity.clone().map(ServerConnection::new) {
                    Some(Ok(tls)) => {
                        self.lines.insert(stream, Line::accepted(stream, tls.into()));
                        self.desk.counters.accepted += 1;
                        result
                    }
                    _ => self.refuse(stream),
                };
                self.desk.dones.push_back(Done { op, result });
            }
            (Op::Connect { on, to: to @ Address::Tcp(_), within }, Ok(stream)) if self.trust.is_some() => {
                let stream = StreamId(stream);
                let tls = self.trust.clone().map(|trust| ClientConnection::new(trust, self.name.clone()));
                match tls {
                    Some(Ok(tls)) => {
                        let deadline = now + HANDSHAKE_DEADLINE;
                        self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
                        let mut line = Line::connected(stream, tls.into(), (on, to, within), deadline);
                        line.pump(&mut self.desk);
                        self.lines.insert(stream, line);
                    }
                    _ => {
                        let result = self.refuse(stream);
                        self.desk.dones.push_back(Done { op: Op::Connect { on, to, within }, result });
                    }
                }
            }
            (Op::Close { stream }, _) if self.refused.remove(&stream) => {}
            (op, result) => {
                let stream = stream_of(&op);
                match stream.and_then(|stream| Some((stream, self.lines.get_mut(&stream)?))) {
                    Some((stream, line)) => {
                        if line.done(now, Done { op, result }, &mut self.desk) {
                            self.lines.remove(&stream);
                            self.desk.stalled.retain(|other| *other != stream);
                        }
                    }
                    None => self.desk.dones.push_back(Done { op, result }),
                }
            }
        }
    }

    /// From now on it is a line.
    fn secure(&mut self, stream: StreamId) -> Result<u32, Errno> {
        let identity =
            self.on_request.clone().filter(|_| !self.lines.contains_key(&stream)).ok_or(Errno::NOT_SUPPORTED)?;
        let tls = ServerConnection::new(identity).map_err(|_| Errno::PROTOCOL)?;
        self.lines.insert(stream, Line::accepted(stream, tls.into()));
        self.desk.counters.accepted += 1;
        Ok(0)
    }

    /// Without random numbers, say, there is no TLS: the machine never has the stream, in clear least of all.
    fn refuse(&mut self, stream: StreamId) -> Result<u32, Errno> {
        self.refused.insert(stream);
        self.desk.ops.push_back(Op::Close { stream });
        Err(Errno::PROTOCOL)
    }

    /// Handshakes that took too long, and those that wait for memory.
    pub fn turn(&mut self, now: Time) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            for line in self.lines.values_mut().filter(|line| line.deadline().is_some_and(|at| at <= now)) {
                line.expire(&mut self.desk);
            }
            self.deadline = self.lines.values().filter_map(Line::deadline).min();
        }
        if !self.desk.stalled.is_empty() && self.retry <= now {
            for stream in std::mem::take(&mut self.desk.stalled) {
                if let Some(line) = self.lines.get_mut(&stream) {
                    line.resume(&mut self.desk);
                }
            }
            self.retry = now + STALL_RETRY;
        }
    }

    /// When to call `turn` at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let retry = (!self.desk.stalled.is_empty()).then_some(self.retry);
        [self.deadline, retry].into_iter().flatten().min()
    }

    /// The next operation for the driver.
    pub fn next_op(&mut self) -> Option<Op> {
        self.desk.ops.pop_front()
    }

    /// The next one that is over for the machine.
    pub fn next_done(&mut self) -> Option<Done> {
        self.desk.dones.pop_front()
    }

    /// How many of the latter there are.
    pub fn ready(&self) -> usize {
        self.desk.dones.len()
    }

    /// Operations of the machine that it did not get back and none of the driver's stands for.
    pub fn held(&self) -> usize {
        self.desk.dones.len() + self.lines.values().map(Line::held).sum::<usize>()
    }

    /// All that the machine submitted comes back as soon as it can.
    pub fn cancel_all(&mut self) {
        for line in self.lines.values_mut() {
            line.cancel(&mut self.desk);
        }
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        self.desk.counters
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS on {} streams", self.lines.len())
    }
}

/// The stream that an operation is for.
fn stream_of(op: &Op) -> Option<StreamId> {
    match op {
        Op::Recv { stream, .. }
        | Op::Send { stream, .. }
        | Op::Watch { stream, .. }
        | Op::Secure { stream }
        | Op::Shutdown { stream }
        | Op::Close { stream } => Some(*stream),
        Op::Accept { .. } | Op::Connect { .. } => None,
        Op::DiskRead { .. } | Op::DiskWrite { .. } | Op::DiskPunch { .. } | Op::DiskSync { .. } => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test: a panic is its way to fail
mod tests {
    use super::*;
    use crate::Authority;
    use driver::ListenerId;

    #[test]
    fn a_stream_that_tls_cannot_begin_on_is_closed_and_never_the_machines() {
        let identity = Authority::new(&[1; 32]).unwrap().identity(Role::Node, &[]).unwrap();
        let options = LayerOptions {
            identity: Some(identity),
            on_request: None,
            trust: None,
            in_clear: vec![],
            report: Box::new(|_, _| {}),
        };
        let mut layer = Layer::new(options, Arena::small(1 << 20)).unwrap();
        let config = Arc::make_mut(layer.identity.as_mut().unwrap());
        config.max_fragment_size = Some(1);
        let accept = Op::Accept { listener: ListenerId(0) };
        layer.done(Time(0), Done { op: accept, result: Ok(7) });
        let done = layer.next_done().unwrap();
        assert!(matches!(done, Done { op: Op::Accept { .. }, result: Err(Errno::PROTOCOL) }), "{done:?}");
        let op = layer.next_op().unwrap();
        assert!(matches!(op, Op::Close { stream: StreamId(7) }), "{op:?}");
        layer.done(Time(0), Done { op, result: Ok(0) });
        assert!(layer.next_done().is_none() && layer.counters().accepted == 0);
        // The driver may give the number again.
        layer.done(Time(0), Done { op: Op::Close { stream: StreamId(7) }, result: Ok(0) });
        assert!(layer.next_done().is_some());
    }
}
