//! All framed connections of one reactor.

use driver::{Address, Conn, ConnId, Done, ListenerId, Op, Outbox, Provider, Span, StreamId, Time, why};
use memory::Arena;
use refcount::{Entry, Hold, LeakReport, Table};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use wire::{
    Body, Flags, Happening, Header, HelloInfo, Limits, MAX_BODY, MAX_DEPTH, MAX_PAYLOAD, PREFIX_LEN, Reason, Secrets,
    State, prefix,
};

use crate::budget::Budgets;
use crate::connection::{Connection, Step};
use crate::counters::{ConnStatus, Counters};
use crate::event::{Abandoned, Admission, Answer, NetEvent, Payload, Refused};
use crate::limits::{ACCEPT_EVERY, CLOSING_LONG, DRAIN_DEADLINE, client_bytes};
use crate::listener::Listener;
use crate::outbound::Message;
use crate::ways::Attempt;

/// What a `Net` is made with.
pub struct NetOptions {
    /// Who this process is.
    pub name: HelloInfo,
    /// Where secrets come from.
    pub secrets: Rc<dyn Secrets>,
    /// Random numbers for nonces: never the same sequence twice outside of a simulation.
    pub random: Box<dyn FnMut() -> u64>,
    /// Requests in flight per connection and direction, 1..=[`MAX_DEPTH`].
    pub depth: u16,
    /// Longest payload taken, at most [`MAX_PAYLOAD`].
    pub max_payload: u32,
    /// Connections at a time, both directions together.
    pub max_conns: usize,
    /// How often a stream is accepted on each listener, over a while.
    pub accept_every: Span,
}

impl NetOptions {
    /// The usual: 128 requests in flight, 1 MiB payloads, 1024 connections, streams in clear.
    pub fn new(name: HelloInfo, secrets: Rc<dyn Secrets>, random: Box<dyn FnMut() -> u64>) -> Self {
        Self {
            name,
            secrets,
            random,
            depth: 128,
            max_payload: MAX_PAYLOAD,
            max_conns: 1024,
            accept_every: ACCEPT_EVERY,
        }
    }
}

/// Bytes of memory that a machine sets aside for a request, for its answer above all, by its op and body.
pub type Needs = fn(wire::Op, &[u8]) -> usize;

/// All framed connections of one reactor.
pub struct Net {
    pub(crate) options: NetOptions,
    pub(crate) arena: Arena,
    table: Table<Conn>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Streams the driver has open for us; none for those that were refused.
    pub(crate) streams: BTreeMap<StreamId, Option<ConnId>>,
    pub(crate) listeners: Vec<Listener>,
    events: VecDeque<Queued>,
    /// Given to the outbox at the end of each call.
    pub(crate) ops: Vec<Op>,
    pub(crate) ready: Vec<ConnId>,
    /// Connections that read no further for want of memory or receive slots.
    pub(crate) stalled: Vec<ConnId>,
    /// Not before this are they looked at again.
    pub(crate) retry_at: Time,
    /// Connections that do not send for want of memory.
    pub(crate) starved: Vec<ConnId>,
    /// They are looked at again no later than this.
    pub(crate) send_again_at: Time,
    pub(crate) abandoned: Abandoned,
    pub(crate) budgets: Budgets,
    /// What one client may have in flight.
    pub(crate) max_client_bytes: usize,
    pub(crate) needs: Needs,
    /// Connections that are not yet removed, and those of them that are accepted and not yet established.
    pub(crate) open: usize,
    pub(crate) handshakes: usize,
    /// The earliest deadline of any connection, or sooner; `due` then looks at all of them. Accepts, stalls and starved sends have fields
    /// of their own, so that they do not cause that scan.
    pub(crate) wake: Option<Time>,
    /// Not before this are they looked at again.
    pub(crate) scan_at: Time,
    /// When a listener that waits may accept again.
    pub(crate) accept_at: Option<Time>,
    pub(crate) stopping: bool,
    pub(crate) counters: Counters,
}

/// A connection's slot. Free when the reaper has brought its `Conn` back.
struct Place {
    generation: u32,
    /// Boxed, so that taking it out to work on it moves a pointer.
    connection: Option<Box<Connection>>,
    /// Removed, but somebody still holds it.
    gone: Option<Time>,
}

/// An event, and the receive slot that its message occupies until the machine takes it.
struct Queued {
    event: NetEvent,
    rx: Option<Hold<Conn, why::Rx>>,
}

impl Net {
    /// No connection yet. Options beyond the protocol's limits are brought within them.
    pub fn new(mut options: NetOptions, arena: Arena) -> Self {
        options.depth = options.depth.clamp(1, MAX_DEPTH);
        options.max_payload = options.max_payload.min(MAX_PAYLOAD);
        Self {
            options,
            max_client_bytes: client_bytes(arena.capacity()),
            needs: |_, _| 0,
            arena,
            table: Table::new(),
            places: Vec::new(),
            free: Vec::new(),
            streams: BTreeMap::new(),
            listeners: Vec::new(),
            events: VecDeque::new(),
            ops: Vec::new(),
            ready: Vec::new(),
            stalled: Vec::new(),
            retry_at: Time::default(),
            starved: Vec::new(),
            send_again_at: Time::default(),
            abandoned: Abandoned::default(),
            budgets: Budgets::default(),
            open: 0,
            handshakes: 0,
            wake: None,
            scan_at: Time::default(),
            accept_at: None,
            stopping: false,
            counters: Counters::default(),
        }
    }

    /// Keeps one accept armed on `listener`.
    pub fn listen<L>(&mut self, listener: ListenerId, out: &mut dyn Outbox<L>) {
        self.add_listener(listener);
        self.flush(out);
    }

    /// Connects as `hello`. Ends in `Up` or `Down`.
    pub fn connect<L>(&mut self, now: Time, attempt: Attempt, hello: HelloInfo, out: &mut dyn Outbox<L>) -> ConnId {
        self.open_connection(now, attempt, hello, false, out)
    }

    /// Connects to `to` and says nothing. Ends in `Down`, whose reason is `Closed` if somebody is there.
    pub fn probe<L>(&mut self, now: Time, to: Address, out: &mut dyn Outbox<L>) -> ConnId {
        self.open_connection(now, Attempt::only(to), self.options.name.clone(), true, out)
    }

    fn open_connection<L>(
        &mut self,
        now: Time,
        attempt: Attempt,
        hello: HelloInfo,
        probe: bool,
        out: &mut dyn Outbox<L>,
    ) -> ConnId {
        self.counters.connects += 1;
        let full = self.open >= self.options.max_conns;
        let limits = Limits { depth: self.options.depth, max_payload: self.options.max_payload };
        let mut connection = self.make(hello, limits, Step::Connect, now);
        let id = connection.id;
        connection.state = connection.state.after(Happening::Connect);
        connection.announced = true;
        connection.probe = probe;
        connection.other_ways = attempt.others;
        if full || self.stopping {
            let reason = if full { Reason::Busy } else { Reason::Stopping };
            self.end(now, &mut connection, reason, Happening::ConnectError);
        } else {
            connection.connecting = true;
            self.set_deadline(&mut connection, now + attempt.within);
            self.ops.push(Op::Connect { on: connection.owner.share(), to: attempt.to, within: attempt.within });
        }
        self.put_back(now, connection);
        self.flush(out);
        id
    }

    /// Whether completions of operations on this stream belong here.
    pub fn owns(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// An operation is over. What belongs to nothing is dropped and counted.
    pub fn done<L>(&mut self, now: Time, done: Done, out: &mut dyn Outbox<L>) {
        self.completed(now, done);
        self.flush(out);
    }

    /// What happened, in order. To be drained after each call that may cause events.
    pub fn next_event(&mut self) -> Option<NetEvent> {
        let Queued { event, rx } = self.events.pop_front()?;
        if let Some(rx) = rx {
            // Posted again; a connection that has closed meanwhile gets it back for good.
            if let Some(connection) =
                self.connection_mut(rx.id).filter(|connection| connection.state == State::Established)
            {
                connection.rx.push(rx);
            }
        }
        Some(event)
    }

    /// A hold for somebody who will answer on it later.
    pub fn hold(&self, conn: ConnId) -> Option<Hold<Conn, why::Answers>> {
        Some(self.connection(conn)?.owner.share())
    }

    /// Says what a request takes beside its payload, of memory that is set aside ([`memory::set_aside`]): an answer that shows two bytes of
    /// two blocks takes both. A client's requests are read as long as this, and what payloads take, stays within [`client_bytes`].
    pub fn expect_needs(&mut self, needs: Needs) {
        self.needs = needs;
    }

    /// Sends a request with this turn's batch; it costs one credit. Refused, it gives everything back. Taken, exactly one
    /// [`NetEvent::Reply`] with `token` follows, at `deadline` or few milliseconds later. A data message's body starts with the session
    /// prefix, of which the caller sets the word; session and tag are filled in here ([`wire::prefix`]).
    #[expect(clippy::too_many_arguments, reason = "each is one field of the request")]
    pub fn request(
        &mut self,
        now: Time,
        conn: ConnId,
        op: wire::Op,
        body: &[u8],
        payload: Option<Payload>,
        token: u64,
        deadline: Time,
    ) -> Result<(), (Refused, Option<Payload>)> {
        let refusal = match self.connection(conn) {
            None => Some(Refused::Gone),
            Some(connection) if connection.leaving.is_some() || !connection.state.is_open() => Some(Refused::Gone),
            Some(connection) if connection.state != State::Established => Some(Refused::NotUp),
            Some(connection) if !fits(connection, body, payload.as_ref()) => Some(Refused::TooLarge),
            Some(_) if op.is_data() && body.len() < PREFIX_LEN => Some(Refused::TooShort),
            Some(connection) if connection.available() == 0 => Some(Refused::NoCredit),
            Some(_) => None,
        };
        if let Some(refused) = refusal {
            return Err((refused, payload));
        }
        let mut payload = payload;
        let taken = self.with(now, conn, |net, connection| {
            // Both sides have known it since before Established.
            let Some((session, key)) = connection.session else { return false };
            let Some((slot, generation)) = connection.slots.open(token, deadline) else { return false };
            let mut body = Body::from_slice(body);
            if op.is_data() {
                let stamped = prefix::stamp(&mut body, session, &key, op, slot, generation);
                debug_assert!(stamped, "a shorter body was refused");
            }
            let spent = connection.credits.spend();
            debug_assert!(spent, "available() saw a credit");
            net.counters.requests_out += 1;
            net.arm(deadline);
            net.queue(connection, Header::new(op, Flags::NONE, slot, generation), body, payload.take());
            true
        });
        if taken == Some(true) { Ok(()) } else { Err((Refused::Gone, payload)) }
    }

    /// Answers a request with this turn's batch; needs no credit. On a connection that has closed it is dropped and counted;
    /// a reply that is larger than what was agreed closes it.
    pub fn reply(&mut self, now: Time, mut answer: Answer, op: wire::Op, body: &[u8], payload: Option<Payload>) {
        answer.abandoned = None;
        let (slot, generation) = (answer.slot, answer.generation);
        let sent = self.with(now, answer.conn(), |net, connection| {
            if connection.state != State::Established {
                return false;
            }
            if !fits(connection, body, payload.as_ref()) {
                // It agreed to less than it asks for.
                net.end(now, connection, Reason::Closed, Happening::Close);
                return false;
            }
            connection.credits.answered();
            net.queue(connection, Header::new(op, Flags::REPLY, slot, generation), Body::from_slice(body), payload);
            true
        });
        if sent != Some(true) {
            self.counters.replies_dropped += 1;
        }
    }

    /// Whether a peer shows the proof of a conductor for the attachment that its Hello speaks of.
    pub fn is_attached(&self, peer: &HelloInfo) -> bool {
        self.options.secrets.is_attached(peer)
    }

    /// Admits a peer that said Hello. `Up` follows when it has been told.
    pub fn accept_peer<L>(&mut self, now: Time, conn: ConnId, admission: Admission, out: &mut dyn Outbox<L>) {
        self.with(now, conn, |net, connection| net.admit(now, connection, admission));
        self.flush(out);
    }

    /// Refuses a peer that said Hello. `Down` follows when it has been told.
    pub fn reject_peer<L>(&mut self, now: Time, conn: ConnId, reason: Reason, out: &mut dyn Outbox<L>) {
        self.with(now, conn, |net, connection| {
            if connection.step == Step::Admission && connection.state.is_open() {
                net.reject(connection, reason);
            }
        });
        self.flush(out);
    }

    /// Ends a connection at once. Does nothing to one that is gone.
    pub fn close<L>(&mut self, now: Time, conn: ConnId, why: Reason, out: &mut dyn Outbox<L>) {
        self.with(now, conn, |net, connection| net.end(now, connection, why, Happening::Close));
        self.flush(out);
    }

    /// No new connections; those there are say Goodbye after what is queued, then close.
    pub fn stop<L>(&mut self, now: Time, out: &mut dyn Outbox<L>) {
        self.stopping = true;
        for id in self.ids() {
            self.with(now, id, |net, connection| {
                if connection.state != State::Established {
                    return net.end(now, connection, Reason::Stopping, Happening::Close);
                }
                if connection.leaving.replace(Reason::Stopping).is_none() {
                    let code = Body::from_slice(&Reason::Stopping.code().to_le_bytes());
                    net.queue(connection, Header::new(wire::Op::GOODBYE, Flags::NONE, 0, 0), code, None);
                    net.set_deadline(connection, now + DRAIN_DEADLINE);
                }
            });
        }
        self.flush(out);
    }

    /// The end of a turn: deadlines, one send per connection with all that is ready, the reaper. Deadlines cause events:
    /// take them afterwards.
    pub fn end_turn<L>(&mut self, now: Time, out: &mut dyn Outbox<L>) {
        self.turn(now);
        self.flush(out);
    }

    /// When to call `end_turn` at the latest: at once, if the last one left events to take or its events were answered.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.events.is_empty() || !self.ready.is_empty() {
            return Some(Time::default());
        }
        let receive = (!self.stalled.is_empty()).then_some(self.retry_at);
        let send = (!self.starved.is_empty()).then_some(self.send_again_at);
        let due = self.wake.map(|wake| wake.max(self.scan_at));
        [due, self.accept_at, receive, send].into_iter().flatten().min()
    }

    /// Requests that could be made now.
    pub fn credits(&self, conn: ConnId) -> u16 {
        self.connection(conn).map_or(0, Connection::available)
    }

    /// Every connection, for status.
    pub fn conns(&self, now: Time) -> Vec<ConnStatus> {
        let connections = self.places.iter().filter_map(|place| place.connection.as_deref());
        connections.map(|connection| status(connection, now)).collect()
    }

    /// Every connection that is held, and why, removed ones too: for `--refs`.
    pub fn refs(&self) -> Vec<Entry> {
        self.table.report()
    }

    /// The assertion at the end of a reactor.
    pub fn leaks(&self) -> Result<(), LeakReport> {
        self.table.leaks()
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Told to stop, no connection left, nothing outstanding but armed accepts, which own nothing.
    pub fn finished(&self) -> bool {
        self.stopping && self.streams.is_empty() && self.table.live() == 0
    }

    // --- for the other files of this package ---

    fn flush<L>(&mut self, out: &mut dyn Outbox<L>) {
        for op in self.ops.drain(..) {
            out.submit(op);
        }
    }

    fn completed(&mut self, now: Time, done: Done) {
        let Done { op, result } = done;
        let known = match op {
            Op::Accept { listener } => return self.accept_done(now, listener, result),
            Op::Connect { on, .. } => {
                let id = name(&on);
                // Given back before anything else is taken: the handshake's counts go 2 → 1 → 2.
                drop(on);
                self.with_if(
                    now,
                    id,
                    |connection| &mut connection.connecting,
                    |net, connection| net.connect_done(now, connection, result),
                )
            }
            Op::Recv { on, into, from, .. } => self.with_if(
                now,
                name(&on),
                |connection| &mut connection.receiving,
                |net, connection| {
                    if connection.state == State::Established {
                        connection.rx.push(on);
                    } else {
                        drop(on);
                    }
                    if connection.state.is_open() {
                        net.recv_done(now, connection, (into, from), result);
                    }
                },
            ),
            Op::Send { mut on, parts, .. } => {
                let id = on.first().and_then(name);
                on.clear();
                self.with_if(
                    now,
                    id,
                    |connection| &mut connection.sending,
                    |net, connection| {
                        if connection.state.is_open() {
                            connection.outbound.sent((on, parts));
                            net.send_done(now, connection, result);
                        }
                    },
                )
            }
            Op::Shutdown { stream } => {
                let id = self.streams.get(&stream).copied().flatten();
                self.with_if(now, id, |connection| &mut connection.shutting, |_, _| {})
            }
            Op::Close { stream } => match self.streams.remove(&stream) {
                Some(Some(id)) => self.with_if(
                    now,
                    Some(id),
                    |connection| &mut connection.closing,
                    |_, connection| connection.stream = None,
                ),
                refused => refused.is_some(),
            },
            // A connection of frames is always being read: it needs no watch. Whether it is TLS is known before its first byte.
            Op::Watch { .. }
            | Op::Secure { .. }
            | Op::DiskRead { .. }
            | Op::DiskWrite { .. }
            | Op::DiskPunch { .. }
            | Op::DiskSync { .. } => false,
        };
        if !known {
            self.counters.stale_completions += 1;
        }
    }

    fn connect_done(&mut self, now: Time, connection: &mut Connection, result: Result<u32, driver::Errno>) {
        match result {
            Ok(stream) => {
                let stream = StreamId(stream);
                self.streams.insert(stream, Some(connection.id));
                connection.stream = Some(stream);
                if connection.probe {
                    self.end(now, connection, Reason::Closed, Happening::Close);
                } else if connection.state.is_open() {
                    self.say_hello(now, connection);
                }
            }
            Err(error) => {
                let tls = matches!(error, driver::Errno::PROTOCOL | driver::Errno::KEY_REJECTED);
                let reason = if tls { Reason::Tls } else { Reason::ConnectFailed };
                self.end(now, connection, reason, Happening::ConnectError);
            }
        }
    }

    /// Works on a connection if an operation of this kind is out for it; false if not.
    fn with_if(
        &mut self,
        now: Time,
        id: Option<ConnId>,
        out: impl FnOnce(&mut Connection) -> &mut bool,
        work: impl FnOnce(&mut Self, &mut Connection),
    ) -> bool {
        let Some(id) = id else { return false };
        let known = self.with(now, id, |net, connection| {
            let known = std::mem::take(out(connection));
            if known {
                work(net, connection);
                net.finish(connection);
            }
            known
        });
        known == Some(true)
    }

    /// Works on a connection; none if the name is stale.
    pub(crate) fn with<R>(
        &mut self,
        now: Time,
        id: ConnId,
        work: impl FnOnce(&mut Self, &mut Connection) -> R,
    ) -> Option<R> {
        let place = self.places.get_mut(id.slot as usize).filter(|place| place.generation == id.generation)?;
        let mut connection = place.connection.take()?;
        let result = work(self, &mut connection);
        self.put_back(now, connection);
        Some(result)
    }

    /// A new connection, to be put back after it was worked on.
    pub(crate) fn make(&mut self, mine: HelloInfo, limits: Limits, step: Step, now: Time) -> Box<Connection> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 1, connection: None, gone: None });
            // A process runs out of memory long before it has 2^32 connections.
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let id = ConnId { slot, generation: self.places[slot as usize].generation };
        self.open += 1;
        Box::new(Connection::new(self.table.insert(Conn::new(id, Provider::Framed)), mine, limits, step, now))
    }

    /// Back to its place, or away for ever if it is over.
    pub(crate) fn put_back(&mut self, now: Time, connection: Box<Connection>) {
        let place = &mut self.places[connection.id.slot as usize];
        if connection.state == State::Disconnected {
            place.gone = Some(now);
            self.open -= 1;
            drop(connection);
            self.arm(now + CLOSING_LONG);
        } else {
            place.connection = Some(connection);
        }
    }

    /// Removed connections that somebody still holds.
    pub(crate) fn due_gone(&mut self, now: Time) {
        let mut next = None;
        for place in &mut self.places {
            let Some(due) = place.gone.map(|gone| gone + CLOSING_LONG) else { continue };
            if due <= now {
                place.gone = None;
                self.counters.closing_long += 1;
            } else {
                next = Some(next.map_or(due, |next: Time| next.min(due)));
            }
        }
        next.into_iter().for_each(|next| self.arm(next));
    }

    /// Connections that nobody holds any more free their slots, for the next generation.
    pub(crate) fn reap(&mut self) {
        while let Some(conn) = self.table.reap() {
            let place = &mut self.places[conn.id.slot as usize];
            place.generation = place.generation.wrapping_add(1);
            place.gone = None;
            self.free.push(conn.id.slot);
        }
    }

    pub(crate) fn ids(&self) -> Vec<ConnId> {
        self.places.iter().filter_map(|place| Some(place.connection.as_ref()?.id)).collect()
    }

    /// Of the connections that are `so`, all in steps of one deadline which does not move, the one that is there for longest.
    pub(crate) fn oldest(&self, so: impl Fn(&Connection) -> bool) -> Option<ConnId> {
        let connections = self.places.iter().filter_map(|place| place.connection.as_deref());
        connections
            .filter(|connection| so(connection))
            .min_by_key(|connection| connection.deadline)
            .map(|connection| connection.id)
    }

    fn connection(&self, id: ConnId) -> Option<&Connection> {
        let place = self.places.get(id.slot as usize).filter(|place| place.generation == id.generation)?;
        place.connection.as_deref()
    }

    fn connection_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        let place = self.places.get_mut(id.slot as usize).filter(|place| place.generation == id.generation)?;
        place.connection.as_deref_mut()
    }

    pub(crate) fn tell(&mut self, event: NetEvent) {
        self.tell_with(event, None);
    }

    pub(crate) fn tell_with(&mut self, event: NetEvent, rx: Option<Hold<Conn, why::Rx>>) {
        self.events.push_back(Queued { event, rx });
    }

    pub(crate) fn arm(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    pub(crate) fn set_deadline(&mut self, connection: &mut Connection, at: Time) {
        connection.deadline = Some(at);
        self.arm(at);
    }

    /// Queues a message for this turn's send. The connection is held for it from here on.
    pub(crate) fn queue(
        &mut self,
        connection: &mut Connection,
        mut header: Header,
        body: Body,
        payload: Option<Payload>,
    ) {
        if let Some(payload) = &payload {
            debug_assert_eq!(payload.crcs.len(), payload.len.div_ceil(wire::PIECE), "one CRC for each piece");
            // `fits` saw that it is at most MAX_PAYLOAD.
            header.payload_len = u32::try_from(payload.len).unwrap_or(u32::MAX);
            header.payload_crc = wire::tree(&payload.crcs);
        }
        let payload = payload.filter(|payload| payload.len > 0);
        let charge = payload
            .as_ref()
            .zip(connection.budget.as_ref())
            .map(|(payload, budget)| budget.add(payload.mem.capacity()));
        connection.outbound.queue.push_back(Message { hold: connection.owner.share(), header, body, payload, charge });
        self.mark_ready(connection);
    }

    /// It will be looked at when this turn's sends are made; while a send is out, its completion does that.
    pub(crate) fn mark_ready(&mut self, connection: &mut Connection) {
        if !connection.ready && !connection.sending {
            connection.ready = true;
            self.ready.push(connection.id);
        }
    }
}

fn name<R: refcount::Reason<Conn>>(hold: &Hold<Conn, R>) -> Option<ConnId> {
    (hold.provider == Provider::Framed).then_some(hold.id)
}

fn fits(connection: &Connection, body: &[u8], payload: Option<&Payload>) -> bool {
    let len = payload.map_or(0, |payload| payload.len);
    body.len() <= MAX_BODY
        && len <= connection.limits.max_payload as usize
        && payload.is_none_or(|p| p.len <= p.mem.len())
}

fn status(connection: &Connection, now: Time) -> ConnStatus {
    ConnStatus {
        id: connection.id,
        state: connection.state,
        peer: connection.peer.as_ref().filter(|_| connection.session.is_some()).map(|peer| peer.name.clone()),
        waiting: connection.slots.waiting(),
        handling: connection.credits.handling(),
        queued: connection.outbound.queue.len(),
        credits: connection.available(),
        stalled: connection.stalled,
        closing_for: (connection.state == State::Closing).then(|| now.since(connection.closing_since)),
        reason: connection.reason,
        holds: *connection.owner.counts(),
    }
}
