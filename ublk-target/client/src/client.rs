//! The volume client of one lane: the engine and its connections.

use crate::claims::{Claims, Holding, Range};
use crate::engine::{Engine, Network, NotPosted, Post, Reply, Settings};
use crate::iocb::PartState;
use crate::limits::{SAY_EVERY, SAY_WAIT, WAIT_VISIBLE};
use crate::link::State;
use crate::pace::Pace;
use crate::request::{BlockError, BlockRequest, ClientError, Completion};
use crate::routes::Routes;
use crate::unfenced::Unfenced;
use crate::unflushed::Unflushed;
use crate::view::{Counters, LinkView, ShardWait, View};
use conductor_model::api::VolumeMap;
use conductor_model::{AttachGeneration, Bytes, ShardIndex, TransportAddress};
use driver::{Address, ConnId, Done, Outbox, Span, StreamId, Time};
use memory::Arena;
use refcount::LeakReport;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tcp::{Detour, Net, NetEvent, NetOptions, Refused, Transport, Ways};
use wire::{Card, HelloInfo, READ_ONLY, Reason, Role, SHARED, Secrets, Ticket};

/// What a lane is made with.
pub struct ClientOptions {
    /// The client's name: the same for all lanes of one attachment.
    pub name: String,
    /// Random per process life.
    pub process: u64,
    /// The attach generation that the conductor gave out: it is also the client's incarnation, so that a restarted target, which
    /// attaches again, fences its former life.
    pub attach: AttachGeneration,
    /// Which of the attachment's lanes this is.
    pub lane: u16,
    /// Refuse what would change the volume; it is refused in any case where the map is a snapshot's.
    pub read_only: bool,
    /// Fail a request that has not been answered for so long.
    pub io_timeout: Option<Span>,
    /// Requests in flight: the front end's depth.
    pub depth: u16,
    /// Requests in flight per connection, at most.
    pub conn_depth: u16,
    /// What the client's key is for, if it has one of its own.
    pub card: Option<Card>,
    /// Where the client's secret comes from.
    pub secrets: Rc<dyn Secrets>,
    /// What connections go over: unless over TCP alone, [`VolumeClient::open_rdma`] is called before the first turn.
    pub transport: Transport,
    /// Random numbers for nonces.
    pub random: Box<dyn FnMut() -> u64>,
}

/// The volume client of one lane (one reactor, one ublk queue). See the crate's documentation.
pub struct VolumeClient {
    engine: Engine,
    net: Net,
    pub(crate) ways: Ways,
    words: VecDeque<Word>,
    /// It was said that requests wait.
    said_waits: bool,
    said_fenced: bool,
    /// When it is seen whether requests wait.
    look_at: Time,
    hello: HelloInfo,
    /// Something happened after this turn's sends were put together: another turn, at once.
    again: bool,
    life: Life,
}

/// How far a lane is; it never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Life {
    Open,
    /// What is in flight is finished, or fails.
    Stopping,
    /// Nothing was left, and `net` was told to stop.
    Stopped,
}

/// Something that is to be said to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// The best way to a node does not lead there, and another one does. Once until the best one has led there again.
    Detour(Detour),
    /// Requests wait for [`SAY_WAIT`] or longer. Once until none waits.
    Waits(ShardWait),
    /// No request waits any more.
    GoesOn,
    /// A newer attachment of the volume exists, or it was deleted: every request fails. Once.
    Fenced,
}

/// The engine's hands for one call.
struct Hands<'a, L> {
    net: &'a mut Net,
    ways: &'a mut Ways,
    hello: &'a HelloInfo,
    now: Time,
    out: &'a mut dyn Outbox<L>,
}

impl<L> Network for Hands<'_, L> {
    fn connect(&mut self, to: SocketAddr) -> ConnId {
        let attempt = self.ways.attempt(to);
        let over = attempt.to.clone();
        let conn = self.net.connect(self.now, attempt, self.hello.clone(), self.out);
        self.ways.connecting(conn, to, over);
        conn
    }
    fn credits(&self, conn: ConnId) -> usize {
        self.net.credits(conn).into()
    }
    fn request(&mut self, conn: ConnId, post: Post) -> Result<(), NotPosted> {
        let Post { op, body, payload, token, deadline } = post;
        match self.net.request(self.now, conn, op, body.bytes(), payload, token, deadline) {
            Ok(_) => Ok(()),
            Err((Refused::NoCredit, _)) => Err(NotPosted::Credit),
            Err((Refused::NotUp | Refused::Gone, _)) => Err(NotPosted::Gone),
            Err((Refused::TooLarge | Refused::TooShort, _)) => Err(NotPosted::TooLarge),
        }
    }
    fn close(&mut self, conn: ConnId, why: Reason) {
        self.net.close(self.now, conn, why, self.out);
    }
}

/// The endpoints of a map that have several addresses, and the others of each.
fn reachable(map: &VolumeMap) -> impl Iterator<Item = (SocketAddr, Vec<Address>)> {
    map.reachable.iter().map(|at| (at.endpoint, at.addresses.iter().map(way).collect()))
}

fn way(address: &TransportAddress) -> Address {
    match *address {
        TransportAddress::Tcp(at) => Address::Tcp(at),
        TransportAddress::Rdma(at) => Address::Rdma(at),
    }
}

macro_rules! hands {
    ($self:ident, $now:expr, $out:expr) => {
        &mut Hands { net: &mut $self.net, ways: &mut $self.ways, hello: &$self.hello, now: $now, out: $out }
    };
}

impl VolumeClient {
    /// A lane without connections: they are opened on first use.
    pub fn new(options: ClientOptions, map: &VolumeMap, arena: Arena) -> Result<Self, ClientError> {
        let mut hello = HelloInfo::new(Role::Client, options.name, options.process);
        hello.incarnation = options.attach.0;
        hello.generation = options.attach.0;
        hello.lane = options.lane;
        hello.volume = map.volume.0;
        hello.features = if options.read_only { READ_ONLY } else { 0 };
        hello.card = options.card;
        let ticket = map.ticket.as_deref().map(|ticket| Ticket::from_hex(ticket).ok_or(ClientError::Ticket));
        hello.ticket = ticket.transpose()?;
        hello.view = map.snapshot.map_or(0, |snapshot| snapshot.0);
        if hello.check().is_err() {
            return Err(ClientError::Name(hello.name));
        }
        let settings = Settings {
            lane: options.lane,
            depth: usize::from(options.depth.max(1)),
            read_only: options.read_only || map.snapshot.is_some(),
            io_timeout: options.io_timeout,
        };
        let engine = Engine::new(settings, map, arena.clone())?;
        let mut net = NetOptions::new(hello.clone(), options.secrets, options.random);
        net.depth = options.conn_depth;
        let mut ways = Ways::new(options.transport, options.lane);
        ways.know(Time(0), reachable(map));
        let (net, words) = (Net::new(net, arena), VecDeque::new());
        let (said_waits, said_fenced, look_at) = (false, false, Time(0));
        Ok(Self { engine, net, ways, words, said_waits, said_fenced, look_at, hello, again: false, life: Life::Open })
    }

    /// Opens RDMA in the driver, if connections may go over it. Where they need not, a refusal is given back to be said, and all goes
    /// over TCP.
    pub fn open_rdma<E>(&mut self, open: impl FnOnce() -> Result<(), E>) -> Result<Option<E>, E> {
        match self.ways.transport() {
            Transport::Tcp => Ok(None),
            Transport::Rdma => open().map(|()| None),
            Transport::Auto => Ok(open().err().inspect(|_| self.ways.only_tcp())),
        }
    }

    /// The next that is to be said to people. To be drained after `end_turn`.
    pub fn next_word(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    /// Nobody should have to guess why a device stands still.
    fn say_what_waits(&mut self, now: Time) {
        // All requests are gone through: not in each turn, however long one of them waits.
        if now < self.look_at {
            return;
        }
        self.look_at = now + SAY_EVERY;
        let longest = self.waiting(now).into_iter().max_by_key(|wait| wait.longest);
        match longest {
            Some(wait) if !self.said_waits && wait.longest >= SAY_WAIT => {
                self.said_waits = true;
                self.words.push_back(Word::Waits(wait));
            }
            None if self.said_waits => {
                self.said_waits = false;
                self.words.push_back(Word::GoesOn);
            }
            _ => {}
        }
    }

    /// What is unflushed on this lane is so on all lanes that were given the same set: to be given to each lane of an attachment before
    /// its first request. Without it a lane's flush covers what the lane itself has written.
    #[must_use]
    pub fn sharing(mut self, unflushed: &Arc<Unflushed>) -> Self {
        self.engine.share(unflushed);
        self
    }

    /// What failed requests have left behind is known together with these lanes: likewise.
    #[must_use]
    pub fn beside(mut self, unfenced: &Arc<Unfenced>) -> Self {
        self.engine.unfenced = Arc::clone(unfenced);
        self
    }

    /// Asks for no more than that, together with all lanes that were given the same.
    #[must_use]
    pub fn paced(mut self, pace: Option<&Arc<Pace>>) -> Self {
        self.engine.pace = pace.map(Arc::clone);
        self
    }

    /// Of a volume that is shared: what this client is to hold of it, each range waited for so long if another client has it. Nothing is written
    /// but what is held for writing.
    pub fn holding(mut self, ranges: &[Range], patience: Span) -> Result<Self, ClientError> {
        self.hello.features |= SHARED;
        let Routes { size, shard_size, .. } = self.engine.routes;
        self.engine.claims = Claims::new(ranges, patience, size, shard_size)?;
        Ok(self)
    }

    /// How far it is with that; `None` if the volume is not shared.
    pub fn held(&self) -> Option<Holding> {
        self.engine.claims.holding()
    }

    /// For a front end whose user was told that nothing needs a flush: every change of a flush volume is durable before it completes.
    #[must_use]
    pub fn write_through(mut self) -> Self {
        self.engine.write_through();
        self
    }

    /// Takes a request; it is sent at the end of the turn. Given back if `depth` are in flight or memory is short: submit it again
    /// after a completion, or a turn later. Whatever else is wrong with it is said by its completion.
    pub fn submit(&mut self, now: Time, request: BlockRequest) -> Result<(), BlockRequest> {
        self.engine.submit(now, request)
    }

    /// A [`BlockError::CacheLost`] could be told to nobody: the next flush tells it again.
    pub fn loss_unheard(&mut self) {
        self.engine.loss_unheard();
    }

    /// Whoever asked for these is gone: reads, questions and flushes among them complete as [`BlockError::Stopped`] as soon as no node has
    /// them. What changes the volume goes on.
    pub fn withdraw(&mut self, now: Time, tags: &[u64]) {
        self.engine.withdraw(now, tags);
    }

    /// Requests that may be submitted now, as far as their number goes.
    pub fn room(&self) -> usize {
        self.engine.room()
    }

    /// The next request that is over. To be drained after `end_turn`.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.engine.next_completion()
    }

    /// Whether completions of operations on this stream belong here.
    pub fn owns(&self, stream: StreamId) -> bool {
        self.net.owns(stream)
    }

    /// An operation is over.
    pub fn done<L>(&mut self, now: Time, done: Done, out: &mut dyn Outbox<L>) {
        self.net.done(now, done, out);
        self.events(now, out);
    }

    /// A map arrived, asked for or not.
    pub fn map(&mut self, now: Time, map: &VolumeMap) {
        if self.engine.map(now, map) {
            self.ways.know(now, reachable(map));
        }
    }

    /// True if a fresh map should be fetched now. To be asked at the end of each turn (`next_deadline` counts on it); says so at a bounded rate, again until the
    /// trouble is over.
    pub fn wants_map(&mut self, now: Time) -> bool {
        self.engine.wants_map(now)
    }

    /// The end of a turn: deadlines, what can be sent, one send per connection, the reaper.
    pub fn end_turn<L>(&mut self, now: Time, out: &mut dyn Outbox<L>) {
        self.again = false;
        self.engine.turn(now, hands!(self, now, out));
        self.engine.reap(now);
        if self.ends() {
            self.life = Life::Stopped;
            self.engine.claims.forget();
            self.net.stop(now, out);
        }
        if self.life == Life::Open
            && let Some((endpoint, to)) = self.ways.probe(now)
        {
            let conn = self.net.probe(now, to.clone(), out);
            self.ways.probing(endpoint, to, conn);
        }
        self.net.end_turn(now, out);
        self.again |= self.events(now, out);
        self.engine.reap(now);
        self.say_what_waits(now);
        if self.is_fenced() && !self.said_fenced {
            self.said_fenced = true;
            self.words.push_back(Word::Fenced);
        }
    }

    /// Hands the connections' events to the engine; true if there were any.
    fn events<L>(&mut self, now: Time, out: &mut dyn Outbox<L>) -> bool {
        let mut any = false;
        while let Some(event) = self.net.next_event() {
            any = true;
            match event {
                NetEvent::Up { conn, .. } => {
                    self.words.extend(self.ways.up(now, conn).map(Word::Detour));
                    self.engine.up(now, conn);
                }
                NetEvent::Down { conn, reason, .. } if self.ways.is_probe(conn) => {
                    if let Some(conn) = self.ways.probed(now, conn, reason == Reason::Closed) {
                        self.engine.make_room(now, conn);
                    }
                }
                NetEvent::Down { conn, reason, .. } => {
                    self.ways.down(now, conn, reason);
                    self.engine.down(now, conn, reason, hands!(self, now, out));
                }
                NetEvent::Reply { conn, token, result } => {
                    let hands = hands!(self, now, out);
                    match result {
                        Ok((op, body, payload)) => {
                            self.engine.answered(now, conn, token, Some(Reply { op, body: &body, payload }), hands);
                        }
                        Err(_lost) => self.engine.answered(now, conn, token, None, hands),
                    }
                }
                // We have no listener, and nobody asks a client for anything.
                NetEvent::Hello { .. } | NetEvent::Request { .. } => self.engine.counters.stray_events += 1,
            }
        }
        any
    }

    /// When to be called again at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        // What ends in `end_turn` was perhaps told so after it.
        let at_once = (self.again || self.ends()).then_some(Time(0));
        let look = self.said_waits.then_some(self.look_at);
        let probe = self.ways.next_deadline().filter(|_| self.life == Life::Open);
        [at_once, look, self.engine.next_deadline(), self.net.next_deadline(), probe].into_iter().flatten().min()
    }

    /// Told to stop, and nothing is left to be done before.
    fn ends(&self) -> bool {
        self.life == Life::Stopping && self.engine.is_idle()
    }

    /// Nothing waits for `Pace` any more. For who ends, and may still hand over something.
    pub fn give_up_pace(&mut self) {
        self.engine.give_up_pace();
    }

    /// Finishes what is in flight, however long that takes but without a limit's, and says goodbye. The front end hands over nothing more.
    pub fn stop(&mut self) {
        self.life = self.life.max(Life::Stopping);
        self.give_up_pace();
    }

    /// Fails what is in flight (`detach --force`) and stops.
    pub fn abort<L>(&mut self, now: Time, out: &mut dyn Outbox<L>) {
        self.life = self.life.max(Life::Stopping);
        self.engine.end(now, BlockError::Stopped, hands!(self, now, out));
    }

    /// Stopped, everything handed up, and nothing outstanding.
    pub fn finished(&self) -> bool {
        self.life == Life::Stopped && self.engine.is_idle() && self.net.finished()
    }

    /// What is served was deleted, for good: every request fails, those in flight among them.
    pub fn gone<L>(&mut self, now: Time, out: &mut dyn Outbox<L>) {
        self.engine.end(now, BlockError::Fenced, hands!(self, now, out));
        self.again = true;
    }

    /// A newer attachment of the volume exists, or what is served was deleted: every request fails.
    pub fn is_fenced(&self) -> bool {
        self.engine.over == Some(BlockError::Fenced)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.engine.requests.len()
    }

    /// The volume's size, which only grows.
    pub fn size(&self) -> Bytes {
        self.engine.routes.size
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }

    /// What happened on the connections so far.
    pub fn net_counters(&self) -> &tcp::Counters {
        self.net.counters()
    }

    /// The assertion at the end: no request is held any more.
    pub fn leaks(&self) -> Result<(), LeakReport> {
        self.engine.table.leaks()?;
        self.net.leaks()
    }

    /// A look inside.
    pub fn view(&self, now: Time) -> View {
        let engine = &self.engine;
        let links = engine.links.iter().map(|(endpoint, link)| {
            let state = match (link.state, link.last) {
                (State::Up(_), _) => "up".to_owned(),
                (State::Opening(_), None) => "connecting".to_owned(),
                (State::Opening(_), Some(reason)) => format!("connecting again ({reason})"),
                (State::Closing(_), _) => "closing".to_owned(),
                (State::Down(_), Some(reason)) => format!("down: {reason}"),
                (State::Down(_), None) => "down".to_owned(),
            };
            let over = link.conn().and_then(|conn| self.ways.over(conn)).cloned();
            let ways = self.ways.look(*endpoint);
            LinkView { endpoint: *endpoint, state, over, ways, queued: link.queued(), posted: link.posted }
        });
        let mut refs: Vec<String> = engine.table.report().iter().map(ToString::to_string).collect();
        refs.extend(self.net.refs().iter().map(ToString::to_string));
        View {
            volume: engine.routes.volume,
            size: engine.routes.size,
            fenced: self.is_fenced(),
            requests: engine.requests.len(),
            links: links.collect(),
            waiting: self.waiting(now),
            refs,
            counters: engine.counters.named(),
            traces: engine.traces.iter().copied().collect(),
        }
    }

    fn waiting(&self, now: Time) -> Vec<ShardWait> {
        let engine = &self.engine;
        let mut shards: BTreeMap<ShardIndex, ShardWait> = BTreeMap::new();
        for (_, part) in &engine.parts {
            let submitted = engine.requests[part.request.0].stages.at[crate::Stage::Submitted as usize];
            let age = now.since(submitted.unwrap_or(now));
            if matches!(part.state, PartState::Done) || age < WAIT_VISIBLE {
                continue;
            }
            let shard = engine.routes.id(part.shard);
            let wait = shards.entry(part.shard).or_insert(ShardWait {
                shard,
                parts: 0,
                longest: Span(0),
                reason: String::new(),
            });
            wait.parts += 1;
            if age >= wait.longest {
                wait.longest = age;
                wait.reason = self.reason(&part.state);
            }
        }
        shards.into_values().collect()
    }

    /// Why a part waits.
    fn reason(&self, state: &PartState) -> String {
        use crate::iocb::Pause;
        match state {
            PartState::Queued(endpoint) => match self.engine.links.get(endpoint) {
                Some(link) if matches!(link.state, State::Up(_)) => format!("{endpoint} takes no more requests now"),
                Some(link) => match link.last {
                    Some(reason) => format!("no connection to {endpoint}: {reason}"),
                    None => format!("no connection to {endpoint} yet"),
                },
                None => format!("no connection to {endpoint} yet"),
            },
            PartState::Posted(endpoint, _) => format!("the primary at {endpoint} has not answered yet"),
            PartState::Paused(_, Pause::StaleEpoch) => "the shard has a newer epoch than the map".to_owned(),
            PartState::Paused(_, Pause::Range) => "its range is not held yet".to_owned(),
            PartState::Paused(_, Pause::Unfenced) => {
                "a request of another queue failed there, and its node could not be told to forget it yet".to_owned()
            }
            PartState::Paused(_, Pause::Pace) => "it is not its turn yet: the attachment has a limit".to_owned(),
            PartState::Paused(_, Pause::Later) => {
                "its primary does not know the map's epoch yet, or has no room for it at the moment".to_owned()
            }
            PartState::Twin => "a failed request waits until its node has fenced it".to_owned(),
            PartState::Done => String::new(),
        }
    }
}

impl std::fmt::Debug for VolumeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client of {}: {} in flight", self.engine.routes.volume, self.engine.requests.len())
    }
}
