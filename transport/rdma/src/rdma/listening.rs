//! Listeners: from a peer's request to the accept that takes its connection.
//!
//! ```text
//!   request ──► pace, room? ──► queue pair, receives, agreed ──► up ──► an accept, or `up` until there is one ──► proven
//!                       └ no: the oldest stranger goes ◄──────────────────── a stranger until then ───────────────────┘
//! ```

use driver::{Done, Errno, ListenerId, Op, Span, StreamId, Time};
use rdma_link::cm::Phase;
use rdma_link::{CONNECT, End, Introduction};
use std::collections::VecDeque;
use std::net::SocketAddr;

use super::admission::{Crowd, room};
use super::{LINES, LISTENER, OURS, Rdma, slot_of};
use crate::RdmaError;
use crate::line::Line;
use crate::stranger::Stranger;
use crate::verbs::{Id, Pair};

/// A listener whose device is gone looks whether it is back.
const LISTEN_AGAIN: Span = Span::seconds(1);

pub(super) struct Listener {
    at: SocketAddr,
    /// None while its device is gone; then it is tried again.
    id: Option<Id>,
    pub(super) again: Option<Time>,
    /// Accepts that wait for a connection, and connections that wait for an accept.
    armed: usize,
    up: VecDeque<StreamId>,
}

impl Rdma {
    /// Listens, and says where: a port 0 becomes the system's choice. A device that cannot be used is refused here.
    pub fn listen(&mut self, at: SocketAddr) -> Result<(ListenerId, SocketAddr), RdmaError> {
        let index = self.listeners.len();
        let (id, port) = self.listener(index, at).map_err(|error| RdmaError::Listen { at, error })?;
        // On all interfaces there is no device yet; then a request finds it.
        if !id.context().is_null() {
            self.device(&id)?;
        }
        let at = SocketAddr::new(at.ip(), port);
        self.listeners.push(Listener { at, id: Some(id), again: None, armed: 0, up: VecDeque::new() });
        Ok((ListenerId(OURS | u32::try_from(index).unwrap_or(0)), at))
    }

    fn listener(&self, index: usize, at: SocketAddr) -> Result<(Id, u16), Errno> {
        let mut id = Id::new(&self.channel, LISTENER | index as u64)?;
        let port = id.listen(at)?;
        Ok((id, port))
    }

    pub(super) fn listen_again(&mut self, now: Time) {
        for index in 0..self.listeners.len() {
            let Listener { at, again, .. } = self.listeners[index];
            if again.is_none_or(|again| again > now) {
                continue;
            }
            // Its address may be that of an id that is not yet destroyed; each that is tried in vain is one more to destroy.
            let tries = !self.channel.is_stuck();
            let id = if tries { self.listener(index, at).ok().map(|(id, _)| id) } else { None };
            let again = if id.is_some() { None } else { Some(now + LISTEN_AGAIN) };
            (self.listeners[index].id, self.listeners[index].again) = (id, again);
        }
    }

    pub(super) fn accept(&mut self, id: ListenerId) {
        let Some(listener) = self.listeners.get_mut((id.0 & !OURS) as usize) else {
            return self.refuse(Op::Accept { listener: id });
        };
        let Some(stream) = listener.up.pop_front() else {
            listener.armed += 1;
            return;
        };
        if let Some(stranger) = self.find(stream).and_then(|line| line.stranger.as_mut()) {
            stranger.accepted = true;
        }
        self.dones.push(Done { op: Op::Accept { listener: id }, result: Ok(stream.0) });
    }

    /// Its device is gone.
    pub(super) fn cease(&mut self, now: Time, listener: usize) {
        if let Some(listener) = self.listeners.get_mut(listener) {
            (listener.id, listener.again) = (None, Some(now + LISTEN_AGAIN));
        }
    }

    /// A peer asks. What cannot be had now is refused: the peer tries again, or elsewhere.
    pub(super) fn requested(&mut self, now: Time, listener: usize, private: &[u8], id: Id) {
        let known = self.listeners.get(listener).is_some();
        let introduction = Introduction::parse(private).filter(|_| known && self.pace.allows(now));
        if introduction.is_some() {
            self.displace(now);
        }
        let Some((peer, stream)) = introduction.filter(|_| self.has_room()).zip(self.number()) else {
            self.counters.refused += 1;
            return id.reject();
        };
        id.set_number(u64::from(stream.0));
        let mut line = Box::new(Line::new(stream, Phase::Accepting, id, now + CONNECT));
        line.theirs = peer.receives;
        line.listener = Some(ListenerId(OURS | u32::try_from(listener).unwrap_or(0)));
        line.stranger = Some(Stranger::new(now));
        let agreed = self.equip(now, &mut line, false).and_then(|()| {
            let id = line.pair.as_ref().and_then(Pair::id).ok_or(Errno::IO)?;
            id.accept(&Introduction::OURS.bytes())
        });
        if agreed.is_err() {
            self.counters.refused += 1;
            if let Some(id) = line.id.as_ref().or_else(|| line.pair.as_ref().and_then(Pair::id)) {
                id.reject();
            }
            line.end(now, End::Failed, &mut self.dones);
        }
        self.places[slot_of(stream)].line = Some(line);
    }

    /// Is there memory for another peer that leaves to each class what is its own? It is held for as long as the connection is.
    fn has_room(&self) -> bool {
        self.lines().filter(|line| line.listener.is_some()).count() < self.room()
    }

    fn room(&self) -> usize {
        let outgoing = self.lines().filter(|line| line.listener.is_none() && line.pair.is_some()).count();
        room(self.arena.capacity(), outgoing)
    }

    fn strangers(&self) -> impl Iterator<Item = (Time, StreamId)> {
        self.lines().filter_map(|line| Some((line.strange()?, line.stream)))
    }

    fn crowd(&self) -> Crowd {
        let staying = || self.lines().filter(|line| line.stays());
        Crowd {
            room: self.room(),
            peers: staying().filter(|line| line.listener.is_some()).count(),
            strangers: self.strangers().count(),
            free: LINES - staying().count(),
        }
    }

    /// The oldest stranger makes room for the next, if it has to.
    fn displace(&mut self, now: Time) {
        if !self.crowd().displaces() {
            return;
        }
        let Some((_, oldest)) = self.strangers().min_by_key(|(since, _)| *since) else { return };
        self.counters.displaced += 1;
        for listener in &mut self.listeners {
            listener.up.retain(|stream| *stream != oldest);
        }
        if let Some(mut line) = self.take(oldest) {
            // If nobody was told of it, it goes by itself; otherwise it is as one that broke.
            line.known = line.stranger.take().is_some_and(|stranger| stranger.accepted);
            line.end(now, End::Failed, &mut self.dones);
            self.places[slot_of(oldest)].line = Some(line);
            self.sweep(slot_of(oldest));
        }
    }

    /// A connection is up: if a peer asked for it, an accept takes it, now or later.
    pub(super) fn arrived(&mut self, line: &mut Line) -> Result<(), Errno> {
        let Some(id) = line.listener else { return Ok(()) };
        let Some(listener) = self.listeners.get_mut((id.0 & !OURS) as usize) else { return Err(Errno::IO) };
        if listener.armed > 0 {
            listener.armed -= 1;
            line.stranger.iter_mut().for_each(|stranger| stranger.accepted = true);
            self.dones.push(Done { op: Op::Accept { listener: id }, result: Ok(line.stream.0) });
        } else {
            listener.up.push_back(line.stream);
        }
        Ok(())
    }

    /// Accepts come back, and what none has taken goes.
    pub(super) fn cancel_accepts(&mut self) {
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            listener.again = None;
            let id = ListenerId(OURS | u32::try_from(index).unwrap_or(0));
            let flushed = (0..std::mem::take(&mut listener.armed))
                .map(|_| Done { op: Op::Accept { listener: id }, result: Err(Errno::CANCELED) });
            self.dones.extend(flushed);
            for stream in listener.up.drain(..) {
                // Nobody was told of it, so it goes by itself.
                let place = self.places.get_mut(slot_of(stream)).and_then(|place| place.line.as_mut());
                place.into_iter().filter(|line| line.stream == stream).for_each(|line| line.known = false);
            }
        }
    }
}
