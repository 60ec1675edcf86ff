//! The machine: NBD clients on one side, the volume client on the other.
//!
//! ```text
//!   NBD clients ══ Link, Session ── request ──▶ VolumeClient ══ nodes
//!                        ▲                           │
//!                        └──── finish ◀── tag ◀── completion
//! ```
//!
//! Promises: each request of a session is finished exactly once, also when its client is gone; a client that the volume has no
//! room for is read no further; nothing a client does costs another one more than its share of the turn; while a change of a session
//! that is over is still at the volume client, no other session's change goes there. Decides nothing about routing, resending or the
//! volume: that is the volume client's.
//!
//! Where the volume client has no more room, as when a shard is not served and everything waits that touches it, the reads that clients
//! left behind when they went are given up first; and who has nothing there may always have one request, so that whoever stays with
//! the other shards goes on.
//!
//! Why changes wait for those of a session that is over (rule 24). A client that lost its connection sends its unanswered commands
//! again on the next one, or on another that it has already, and goes on when they are answered. What the lost connection left at
//! the volume client may be sent as late as ever (it may just pause, or wait for a node), and would overwrite what was acknowledged
//! after it. Who belongs to whom nobody says, so that it holds for all sessions.
//!
//! A watch on each stream sees the end also of a client that is read no further. What that client sent and nobody executed is then
//! read and executed only as long as nothing holds it up and no other client has the export: a client that says goodbye without
//! waiting for its replies gets what it asked for, and one with a successor cannot overwrite it. Otherwise it is forgotten. A client
//! that closes only its own direction hung up, too: over TCP nobody can tell the two apart before it is too late. Who said goodbye has left
//! nothing unread: what it asked for before is answered, as long as it listens.

use super::convert::{self, Step};
use super::link::{InTheWay, Link};
use crate::limits::{
    ACCEPT_AGAIN, LOOK_AGAIN, MAX_SESSIONS, SAY_CROWDED, SESSION_BYTES, SESSION_COMMANDS, SPARE_DEPTH,
};
use crate::view::{SessionView, TargetView};
use conductor_model::Bytes;
use conductor_model::api::VolumeMap;
use driver::{Conn, ConnId, Done, Errno, ListenerId, Machine, Op, Outbox, Provider, StreamId, Time, why};
use memory::Arena;
use nbd_session::{Closed, Event, Export, Fault, Limits, Outcome, Session, Ticket, Tls};
use refcount::{Hold, LeakReport, Table};
use slab::Slab;
use std::collections::BTreeMap;
use volume_client::{BlockError, BlockRequest, Holding, VolumeClient, Word};

/// What the process tells the machine.
#[derive(Debug)]
pub enum Mail {
    /// A map, asked for or not.
    Map(Box<VolumeMap>),
    /// What is served was deleted.
    Gone,
    /// Answer with [`Letter::View`] of the same number.
    Look(u64),
    /// Take nothing new, finish what is in flight, and end.
    Stop,
    /// Fail what is in flight, and end.
    Abort,
}

/// What the machine tells the process.
#[derive(Debug)]
pub enum Letter {
    /// The map is out of date.
    WantsMap,
    /// A look inside.
    View(u64, Box<TargetView>),
    /// Of a shared volume: all that is to be held is held; or some of it is another's.
    Held(bool),
    /// To be said to people.
    Word(Word),
    /// A client was turned away: there are [`MAX_SESSIONS`]. Not more often than [`SAY_CROWDED`].
    Crowded,
}

/// What an NBD target is made with.
pub struct NbdOptions {
    /// The volume client, without connections. Its depth is what clients may have in flight, and [`SPARE_DEPTH`] more.
    pub client: VolumeClient,
    /// The lane's memory, which the volume client uses too.
    pub arena: Arena,
    /// What is served; its size is the volume's, when a client connects.
    pub export: Export,
    /// Whether clients may, or have to, speak TLS.
    pub tls: Tls,
    /// Where clients connect.
    pub listeners: Vec<ListenerId>,
}

/// See the module's head.
pub struct NbdTarget {
    client: VolumeClient,
    arena: Arena,
    export: Export,
    tls: Tls,
    table: Table<Conn>,
    places: Vec<Place>,
    free: Vec<u32>,
    streams: BTreeMap<StreamId, u32>,
    listeners: Vec<Accepting>,
    /// All places are taken, and whoever connects waits in the kernel, until then if none is free before.
    full: Option<Time>,
    asked: Slab<Asked>,
    /// The first link to be looked at in the next turn: everybody is first once.
    first_link: usize,
    /// Somebody waits for memory or room: look again then.
    again: Option<Time>,
    /// The volume client had no room for a request in this turn.
    crammed: bool,
    stopping: bool,
    /// What was said of the ranges that it is to hold.
    said_held: Option<Holding>,
    /// When it was said that a client was turned away.
    crowded: Option<Time>,
    counters: Counters,
}

/// A connection's slot. Free when the reaper brought its `Conn` back.
struct Place {
    generation: u32,
    link: Option<Box<Link>>,
}

struct Accepting {
    id: ListenerId,
    armed: bool,
    /// The last one failed: not before then.
    after: Option<Time>,
}

/// A request at the volume client.
struct Asked {
    on: Hold<Conn, why::Answers>,
    ticket: Ticket,
    change: bool,
}

/// What happened so far.
#[derive(Clone, Copy, Default, Debug)]
struct Counters {
    accepted: u64,
    refused: u64,
    displaced: u64,
    accept_errors: u64,
    requests: u64,
    waited_for_room: u64,
    waited_for_orphans: u64,
    dropped_for_silence: u64,
    abandoned: u64,
    closed: u64,
    stray_completions: u64,
}

impl NbdTarget {
    /// A target without clients.
    pub fn new(options: NbdOptions) -> Self {
        let NbdOptions { client, arena, export, tls, listeners } = options;
        let listeners = listeners.into_iter().map(|id| Accepting { id, armed: false, after: None }).collect();
        Self {
            client,
            arena,
            export,
            tls,
            table: Table::new(),
            places: Vec::new(),
            free: Vec::new(),
            streams: BTreeMap::new(),
            listeners,
            full: None,
            asked: Slab::new(),
            first_link: 0,
            again: None,
            crammed: false,
            stopping: false,
            said_held: None,
            crowded: None,
            counters: Counters::default(),
        }
    }

    /// The assertion at the end: nothing of any client or node is held.
    pub fn leaks(&self) -> Result<(), LeakReport> {
        self.table.leaks()?;
        self.client.leaks()
    }

    /// A look inside.
    pub fn view(&self, now: Time) -> TargetView {
        let sessions = self.links().map(|link| SessionView {
            conn: link.owner.id.to_string(),
            state: link.state().to_owned(),
            seconds: now.since(link.since).as_millis() / 1000,
            commands: link.session.in_flight(),
            bytes: link.session.bytes_in_flight().0,
        });
        let mut view = TargetView::of(&[self.client.view(now)]);
        view.sessions = sessions.collect();
        view.refs.extend(self.table.report().iter().map(ToString::to_string));
        let Counters {
            accepted,
            refused,
            displaced,
            accept_errors,
            requests,
            waited_for_room,
            waited_for_orphans,
            dropped_for_silence,
            abandoned,
            closed,
            stray_completions,
        } = self.counters;
        for (name, value) in [
            ("nbd_accepted", accepted),
            ("nbd_refused", refused),
            ("nbd_displaced", displaced),
            ("nbd_accept_errors", accept_errors),
            ("nbd_requests", requests),
            ("nbd_waited_for_room", waited_for_room),
            ("nbd_waited_for_orphans", waited_for_orphans),
            ("nbd_dropped_for_silence", dropped_for_silence),
            ("nbd_abandoned", abandoned),
            ("nbd_closed", closed),
            ("nbd_stray_completions", stray_completions),
        ] {
            view.count(name, value);
        }
        (view.arena_in_use, view.arena_bytes) = (self.arena.in_use(), self.arena.capacity());
        view
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.places.iter().filter_map(|place| place.link.as_deref())
    }

    fn link_of(&mut self, id: ConnId) -> Option<&mut Link> {
        let place = self.places.get_mut(id.slot as usize).filter(|place| place.generation == id.generation)?;
        place.link.as_deref_mut()
    }

    fn link_on(&mut self, stream: StreamId) -> Option<&mut Link> {
        let slot = *self.streams.get(&stream)?;
        self.places.get_mut(slot as usize)?.link.as_deref_mut()
    }

    fn accepted(&mut self, now: Time, listener: ListenerId, result: Result<u32, Errno>, out: &mut dyn Outbox<Letter>) {
        if let Some(accepting) = self.listeners.iter_mut().find(|accepting| accepting.id == listener) {
            accepting.armed = false;
            accepting.after = result.is_err().then(|| now + ACCEPT_AGAIN);
        }
        let stream = match result {
            Ok(stream) => StreamId(stream),
            Err(_) => {
                self.counters.accept_errors += u64::from(!self.stopping);
                return;
            }
        };
        if self.is_full() {
            self.make_room(now, out);
        }
        if self.stopping || self.is_full() {
            self.counters.refused += 1;
            out.submit(Op::Close { stream });
            if !self.stopping && self.crowded.is_none_or(|said| now.since(said) >= SAY_CROWDED) {
                self.crowded = Some(now);
                out.post(Letter::Crowded);
            }
            return;
        }
        self.counters.accepted += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, link: None });
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.places[slot as usize];
        let id = ConnId { slot, generation: place.generation };
        let owner = self.table.insert::<why::Owner>(Conn::new(id, Provider::Nbd));
        let mut export = self.export.clone();
        export.size = self.client.size();
        let limits = Limits { commands: SESSION_COMMANDS, bytes: Bytes(SESSION_BYTES as u64) };
        let session = Session::new(export, limits, self.tls);
        place.link = Some(Box::new(Link::new(owner, session, stream, now)));
        self.streams.insert(stream, slot);
    }

    fn is_full(&self) -> bool {
        self.links().filter(|link| link.has_place()).count() >= MAX_SESSIONS
    }

    /// Whoever said goodbye and listens to nothing makes room for the next, or else whoever has been negotiating for longest, or else whoever
    /// has not read for longest: neither those who say nothing nor those who listen to nothing lock anybody out. Who has just come, or just
    /// gone, is not in the way yet: see [`accept`](Self::accept).
    fn make_room(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let links = self.places.iter_mut().filter_map(|place| place.link.as_deref_mut());
        let in_the_way = links.filter_map(|link| Some((link.in_the_way().filter(|way| way.from() <= now)?, link)));
        if let Some((_, link)) = in_the_way.min_by_key(|(way, _)| *way) {
            self.counters.displaced += 1;
            link.drop_client(out);
        }
    }

    fn nbd_done(&mut self, op: Op, result: Result<u32, Errno>) {
        let known = match op {
            Op::Recv { on, into, .. } => {
                let link = self.link_of(on.id);
                let len = result.map_or(0, |len| len as usize);
                link.map(|link| link.received(into, len))
            }
            Op::Send { on, parts, .. } => {
                let id = on.first().map(|on| on.id);
                drop((on, parts)); // the memory first: the session may take it at once
                id.and_then(|id| self.link_of(id)).map(|link| link.sent(result.is_ok()))
            }
            Op::Watch { on, .. } => self.link_of(on.id).map(Link::ended),
            Op::Secure { stream } => self.link_on(stream).map(|link| link.secured(result.is_ok())),
            Op::Shutdown { stream } => self.link_on(stream).map(Link::shut),
            // A refused stream's close is nobody's.
            Op::Close { stream } => match self.link_on(stream) {
                Some(link) => {
                    link.closed();
                    self.streams.remove(&stream);
                    Some(())
                }
                None => Some(()),
            },
            _ => None,
        };
        self.counters.stray_completions += u64::from(known.is_none());
    }

    /// Takes what clients ask for, as far as there is room. True if the volume client got something.
    fn pump(&mut self, now: Time, out: &mut dyn Outbox<Letter>) -> bool {
        let before = self.counters.requests;
        let count = self.places.len();
        for index in 0..count {
            let slot = (self.first_link + index) % count;
            let Some(mut link) = self.places[slot].link.take() else { continue };
            if link.touched || link.stuck.is_some() || link.session.wants_memory() {
                link.touched = false;
                self.pump_one(now, &mut link, out);
            }
            if link.is_finished() {
                self.counters.closed += 1; // and its owner's hold goes here
            } else {
                self.places[slot].link = Some(link);
            }
        }
        self.counters.requests > before
    }

    fn pump_one(&mut self, now: Time, link: &mut Link, out: &mut dyn Outbox<Letter>) {
        // Somebody who could be its successor: from here on nothing of it may begin that the successor does not know of.
        if link.is_deserted() && self.links().any(|other| other.session.is_transmitting()) {
            if !link.is_stranded() {
                return; // a receive that is posted is over at once, and may bring a goodbye
            }
            self.abandon(link);
        }
        self.take(now, link);
        link.post(now, &self.arena, out);
        if link.is_stranded() {
            self.abandon(link);
            self.take(now, link);
            link.post(now, &self.arena, out);
        }
    }

    /// Forgets what a client that hung up has not had executed; if that is nothing but its goodbye, there is nothing to be forgotten.
    fn abandon(&mut self, link: &mut Link) {
        if link.stuck.is_none() && link.session.goodbye_is_next() {
            return;
        }
        self.counters.abandoned += u64::from(link.over.is_none());
        link.session.abandon();
    }

    /// Takes what a client asks for, as far as there is room.
    fn take(&mut self, now: Time, link: &mut Link) {
        // Its own place is empty now, and a session that is over asks for nothing more: these are the others.
        let orphans = self.links().any(Link::has_orphans);
        match link.stuck.take() {
            Some((ticket, _)) if link.is_gone() => link.finish(ticket, Outcome::Failed(Fault::Shutdown)),
            Some((ticket, request)) => self.ask(now, link, ticket, request, orphans),
            None => {}
        }
        while link.takes_more() {
            match link.session.poll(&self.arena) {
                None if link.is_drained() => link.session.close(),
                None => break,
                Some(Event::StartTls) => link.wants_tls(),
                Some(Event::Closed(why)) => {
                    tracing::debug!(conn = %link.owner.id, %why, "NBD client gone");
                    link.told_loss &= !matches!(why, Closed::Disconnected);
                    link.over = Some(why);
                }
                Some(Event::Request(request)) => match convert::step(request, 0) {
                    Step::Answer(ticket, outcome) => link.finish(ticket, outcome),
                    Step::Ask(ticket, request) => self.ask(now, link, ticket, request, orphans),
                },
            }
        }
    }

    /// Hands a request to the volume client, unless it has no room, or the request is a change and `orphans` are there.
    fn ask(&mut self, now: Time, link: &mut Link, ticket: Ticket, mut request: BlockRequest, orphans: bool) {
        let change = request.op.is_change();
        if change && orphans {
            link.stuck = Some((ticket, request));
            self.counters.waited_for_orphans += 1;
            return;
        }
        if link.asked > 0 && self.client.room() <= usize::from(SPARE_DEPTH) {
            self.wait_for_room(link, ticket, request);
            return;
        }
        let vacant = self.asked.vacant_entry();
        request.tag = vacant.key() as u64;
        match self.client.submit(now, request) {
            Ok(()) => {
                vacant.insert(Asked { on: link.owner.share(), ticket, change });
                link.asked += 1;
                link.changes += usize::from(change);
                self.counters.requests += 1;
            }
            Err(request) => self.wait_for_room(link, ticket, request),
        }
    }

    /// There is no room for a request: it waits for some.
    fn wait_for_room(&mut self, link: &mut Link, ticket: Ticket, request: BlockRequest) {
        link.stuck = Some((ticket, request));
        self.counters.waited_for_room += 1;
        self.crammed = true;
    }

    /// Gives up what nobody waits for.
    fn withdraw(&mut self, now: Time) {
        let left = self.links().filter(|link| link.hears_nothing() && link.asked > link.changes);
        let left: Vec<ConnId> = left.map(|link| link.owner.id).collect();
        if left.is_empty() {
            return;
        }
        let asked = self.asked.iter().filter(|(_, asked)| !asked.change && left.contains(&asked.on.id));
        let tags: Vec<u64> = asked.map(|(tag, _)| tag as u64).collect();
        self.client.withdraw(now, &tags);
    }

    /// Hands the volume's answers to their sessions.
    fn answers(&mut self) {
        while let Some(completion) = self.client.next_completion() {
            let Some(Asked { on, ticket, change }) =
                usize::try_from(completion.tag).ok().and_then(|tag| self.asked.try_remove(tag))
            else {
                self.counters.stray_completions += 1;
                continue;
            };
            let lost = matches!(completion.result, Err(BlockError::CacheLost));
            let unheard = self.link_of(on.id).is_none_or(|link| link.may_hear_nothing());
            if unheard && lost {
                self.client.loss_unheard();
            }
            match self.link_of(on.id) {
                Some(link) => {
                    link.asked -= 1;
                    link.changes -= usize::from(change);
                    link.told_loss |= lost && !unheard;
                    link.finish(ticket, convert::outcome(completion));
                }
                None => self.counters.stray_completions += 1,
            }
        }
    }

    /// What clients were told of losses that went without a word is told again. Before anything is taken of others: it could be a flush
    /// that finds nothing to do.
    fn losses(&mut self) {
        for link in self.places.iter_mut().filter_map(|place| place.link.as_deref_mut()) {
            if link.leaves_loss_unheard() {
                link.told_loss = false;
                self.client.loss_unheard();
            }
        }
    }

    fn deadlines(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        let stopping = self.stopping;
        for link in self.places.iter_mut().filter_map(|place| place.link.as_deref_mut()) {
            if link.deadline(stopping).is_some_and(|deadline| deadline <= now) {
                self.counters.dropped_for_silence += 1;
                link.drop_client(out);
            }
        }
    }

    fn accept(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        // Those that made room, and have not closed yet, are as many as there are places; more wait in the kernel for them.
        self.full = None;
        for accepting in &mut self.listeners {
            accepting.after = accepting.after.filter(|after| *after > now);
        }
        if self.stopping || self.streams.len() >= 2 * MAX_SESSIONS {
            return;
        }
        // Where somebody is just choosing the export, or leaving, the next one is not turned away: a place may be free in a moment.
        if self.is_full() {
            let passing = self.links().filter_map(Link::in_the_way).filter(|way| way.is_passing());
            self.full = passing.map(InTheWay::from).min().filter(|until| *until > now);
            if self.full.is_some() {
                return;
            }
        }
        for accepting in &mut self.listeners {
            if !accepting.armed && accepting.after.is_none() {
                accepting.armed = true;
                out.submit(Op::Accept { listener: accepting.id });
            }
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.client.give_up_pace();
        for link in self.places.iter_mut().filter_map(|place| place.link.as_deref_mut()) {
            link.draining = true;
            link.touched = true;
        }
    }

    fn reap(&mut self) {
        while let Some(conn) = self.table.reap() {
            if let Some(place) = self.places.get_mut(conn.id.slot as usize) {
                place.generation = place.generation.wrapping_add(1);
                self.free.push(conn.id.slot);
            }
        }
    }
}

impl Machine for NbdTarget {
    type Mail = Mail;
    type Letter = Letter;

    fn start(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.accept(now, out);
    }

    fn done(&mut self, now: Time, done: Done, out: &mut dyn Outbox<Letter>) {
        let ours = match &done.op {
            Op::Accept { .. } => true,
            Op::Connect { .. } => false,
            Op::Recv { on, .. } => on.provider == Provider::Nbd,
            Op::Watch { on, .. } => on.provider == Provider::Nbd,
            Op::Send { on, .. } => on.first().is_some_and(|on| on.provider == Provider::Nbd),
            Op::Secure { .. } => true,
            Op::Shutdown { stream } | Op::Close { stream } => !self.client.owns(*stream),
            _ => false,
        };
        match (ours, done) {
            (true, Done { op: Op::Accept { listener }, result }) => self.accepted(now, listener, result, out),
            (true, Done { op, result }) => self.nbd_done(op, result),
            (false, done) => self.client.done(now, done, out),
        }
    }

    fn mail(&mut self, now: Time, mail: Mail, out: &mut dyn Outbox<Letter>) {
        match mail {
            Mail::Map(map) => self.client.map(now, &map),
            Mail::Gone => self.client.gone(now, out),
            Mail::Look(number) => out.post(Letter::View(number, Box::new(self.view(now)))),
            Mail::Stop => self.stop(),
            Mail::Abort => {
                self.stop();
                self.client.abort(now, out);
                for link in self.places.iter_mut().filter_map(|place| place.link.as_deref_mut()) {
                    link.drop_client(out);
                }
            }
        }
    }

    fn end_turn(&mut self, now: Time, out: &mut dyn Outbox<Letter>) {
        self.deadlines(now, out);
        self.losses();
        self.pump(now, out);
        if std::mem::take(&mut self.crammed) {
            self.withdraw(now);
        }
        if self.stopping && self.streams.is_empty() {
            self.client.stop();
        }
        self.client.end_turn(now, out);
        self.answers();
        if self.pump(now, out) {
            // What there was room for only now leaves in this turn, too.
            self.client.end_turn(now, out);
            self.answers();
        }
        self.first_link = self.first_link.wrapping_add(1) % self.places.len().max(1);
        let waits = self.links().any(|link| link.stuck.is_some() || link.session.wants_memory());
        let touched = self.links().any(|link| link.touched);
        self.again = if touched { Some(now) } else { waits.then(|| now + LOOK_AGAIN) };
        if self.client.wants_map(now) {
            out.post(Letter::WantsMap);
        }
        while let Some(word) = self.client.next_word() {
            out.post(Letter::Word(word));
        }
        let held = self.client.held().filter(|held| *held != Holding::Waits);
        if held.is_some() && self.said_held != held {
            self.said_held = held;
            out.post(Letter::Held(held == Some(Holding::All)));
        }
        self.accept(now, out);
        self.reap();
    }

    fn next_deadline(&self) -> Option<Time> {
        let accepts = self.listeners.iter().filter(|accepting| !accepting.armed && !self.stopping);
        let accepts = accepts.filter_map(|accepting| accepting.after).min();
        let links = self.links().filter_map(|link| link.deadline(self.stopping)).min();
        [self.again, accepts, self.full, links, self.client.next_deadline()].into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.stopping && self.table.live() == 0 && self.asked.is_empty() && self.client.finished()
    }
}
