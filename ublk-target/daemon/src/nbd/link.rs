//! One NBD client's connection: its session, its stream, and what the driver has of it.
//!
//! ```text
//!   Open ──over, output sent──▶ ShuttingDown ──▶ ShutDown ──everything back──▶ Closing ──▶ Closed ──session finished──▶ removed
//!     └──────────────────────nothing posted────────────────────────────────────▲
//! ```
//!
//! A client that wants TLS is neither received from nor sent to while its stream is made that.
//!
//! A watch for the client's end is posted from the first turn on: a client that is gone is noticed also while it is not read.

use crate::limits::{CHOOSES, HANDSHAKE_DEADLINE, SEND_DEADLINE, SEND_PARTS, TAKES};
use driver::{Conn, Op, Outbox, Parts, StreamId, Time, why};
use memory::{Arena, Filling};
use nbd_session::{Closed, Outcome, Session, Ticket};
use refcount::Hold;
use smallvec::smallvec;
use volume_client::BlockRequest;

/// Where its stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Open,
    /// A shutdown was asked for.
    ShuttingDown,
    /// It is back.
    ShutDown,
    Closing,
    Closed,
}

/// Whether its stream is to be TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Secure {
    /// No, or it is.
    No,
    Wanted,
    UnderWay,
}

/// Why a session makes room for another one, and from when on. The first in this order does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum InTheWay {
    /// It said goodbye, and does not take what it asked for.
    Leaving(Time),
    /// It does not choose the export.
    Choosing(Time),
    /// It has not taken what is sent to it for long.
    Deaf(Time),
}

/// One connection, from its accept until nothing of it is outstanding.
pub(super) struct Link {
    pub(super) owner: Hold<Conn, why::Owner>,
    pub(super) session: Session,
    pub(super) stream: StreamId,
    pub(super) since: Time,
    receiving: bool,
    secure: Secure,
    sending: Option<Time>,
    watching: bool,
    /// The client is gone, or said that it sends nothing more; there may still be bytes of it that were not read.
    pub(super) hung_up: bool,
    end: End,
    /// Requests at the volume client.
    pub(super) asked: usize,
    /// Those of them that change the volume.
    pub(super) changes: usize,
    /// A request that may not go to the volume client now, and its ticket. Nothing more is taken from this client before it.
    pub(super) stuck: Option<(Ticket, BlockRequest)>,
    /// A loss was told on it: who does not hear of that has it told to the next.
    pub(super) told_loss: bool,
    /// Since when the client is leaving.
    leaving: Option<Time>,
    /// Why the session is over.
    pub(super) over: Option<Closed>,
    /// No new commands are read: the target is stopping.
    pub(super) draining: bool,
    /// Something happened since it was last looked at.
    pub(super) touched: bool,
}

impl InTheWay {
    pub(super) fn from(self) -> Time {
        let (Self::Leaving(from) | Self::Choosing(from) | Self::Deaf(from)) = self;
        from
    }

    /// It is likely to be over in a moment by itself, and waited for.
    pub(super) fn is_passing(self) -> bool {
        matches!(self, Self::Leaving(_) | Self::Choosing(_))
    }
}

impl Link {
    pub(super) fn new(owner: Hold<Conn, why::Owner>, session: Session, stream: StreamId, now: Time) -> Self {
        Self {
            owner,
            session,
            stream,
            since: now,
            receiving: false,
            secure: Secure::No,
            sending: None,
            watching: false,
            hung_up: false,
            end: End::Open,
            asked: 0,
            changes: 0,
            stuck: None,
            told_loss: false,
            leaving: None,
            over: None,
            draining: false,
            touched: true,
        }
    }

    pub(super) fn received(&mut self, into: Filling, len: usize) {
        self.receiving = false;
        self.touched = true;
        self.session.received(into, len);
    }

    pub(super) fn sent(&mut self, whole: bool) {
        self.sending = None;
        self.touched = true;
        self.session.sent();
        if !whole {
            self.session.close();
        }
    }

    /// The session waits for its stream to be TLS.
    pub(super) fn wants_tls(&mut self) {
        self.secure = Secure::Wanted;
    }

    /// It is TLS now, or cannot be.
    pub(super) fn secured(&mut self, well: bool) {
        self.secure = Secure::No;
        self.touched = true;
        if well {
            self.session.secured();
        } else {
            self.session.close();
        }
    }

    /// The watch is over: for the client's end, or for ours.
    pub(super) fn ended(&mut self) {
        self.watching = false;
        self.hung_up = true;
        self.touched = true;
    }

    pub(super) fn finish(&mut self, ticket: Ticket, outcome: Outcome) {
        self.touched = true;
        self.session.finish(ticket, outcome);
    }

    pub(super) fn shut(&mut self) {
        self.touched = true;
        if self.end == End::ShuttingDown {
            self.end = End::ShutDown;
        }
    }

    pub(super) fn closed(&mut self) {
        self.touched = true;
        self.end = End::Closed;
    }

    /// True while something could still be taken from the client.
    pub(super) fn takes_more(&self) -> bool {
        self.over.is_none() && self.stuck.is_none()
    }

    /// Of a session that had chosen the export: it is over, whether it has said so or not.
    pub(super) fn is_gone(&self) -> bool {
        !self.session.is_transmitting()
    }

    /// Nobody waits for its answers any more. Who said goodbye may.
    pub(super) fn hears_nothing(&self) -> bool {
        self.is_gone() && !self.session.is_leaving()
    }

    /// Its client will not hear of what is still at the volume client, or need not: who said goodbye may have closed behind that.
    pub(super) fn may_hear_nothing(&self) -> bool {
        self.hung_up || self.is_gone()
    }

    /// Such a client has changes there.
    pub(super) fn has_orphans(&self) -> bool {
        self.changes > 0 && self.may_hear_nothing()
    }

    /// It was told of a loss, and nobody knows whether it heard: only who says goodbye after that has.
    pub(super) fn leaves_loss_unheard(&self) -> bool {
        let left = self.hears_nothing() || self.is_stranded() && !self.session.goodbye_is_next();
        self.told_loss && left
    }

    /// Its client hung up, and there may be something of it that was not read. Who said goodbye has left nothing unread.
    pub(super) fn is_deserted(&self) -> bool {
        self.hung_up && self.over.is_none() && !self.session.is_leaving()
    }

    /// The same, and no receive is posted: what it left unread is held up (head of `target`).
    pub(super) fn is_stranded(&self) -> bool {
        self.is_deserted() && !self.receiving
    }

    /// It may go: nobody has anything of it.
    pub(super) fn is_finished(&self) -> bool {
        self.end == End::Closed && self.asked == 0 && self.stuck.is_none() && self.session.is_finished()
    }

    /// Posts what is due: a send, a receive, or the next step to the end. `now` is when a send begins to count.
    pub(super) fn post<L>(&mut self, now: Time, arena: &Arena, out: &mut dyn Outbox<L>) {
        if self.end == End::Open {
            if self.session.is_leaving() {
                self.leaving.get_or_insert(now);
            }
            self.watch(out);
            self.secure(out);
            self.send(now, arena, out);
            self.receive(arena, out);
        }
        self.wind_down(out);
    }

    /// Once for each connection, from its first turn on.
    fn watch<L>(&mut self, out: &mut dyn Outbox<L>) {
        if !self.watching && !self.hung_up {
            self.watching = true;
            out.submit(Op::Watch { stream: self.stream, on: self.owner.share() });
        }
    }

    /// The session has nothing to send, and receives nothing, until this is over.
    fn secure<L>(&mut self, out: &mut dyn Outbox<L>) {
        if self.secure == Secure::Wanted {
            self.secure = Secure::UnderWay;
            out.submit(Op::Secure { stream: self.stream });
        }
    }

    fn send<L>(&mut self, now: Time, arena: &Arena, out: &mut dyn Outbox<L>) {
        if self.sending.is_some() {
            return;
        }
        if let Some(parts) = self.session.take_output(arena, SEND_PARTS) {
            let parts: Parts = parts;
            self.sending = Some(now);
            out.submit(Op::Send { stream: self.stream, on: smallvec![self.owner.share()], parts });
        }
    }

    fn receive<L>(&mut self, arena: &Arena, out: &mut dyn Outbox<L>) {
        if self.receiving || self.draining || !self.takes_more() {
            return;
        }
        if let Some(recv) = self.session.next_recv(arena) {
            self.receiving = true;
            out.submit(Op::Recv { stream: self.stream, on: self.owner.share(), into: recv.into, from: recv.from });
        }
    }

    fn wind_down<L>(&mut self, out: &mut dyn Outbox<L>) {
        let posted = self.is_posted();
        match self.end {
            End::Open if self.over.is_some() && self.sending.is_none() && !self.session.wants_memory() => {
                if posted {
                    self.cut(out);
                } else {
                    self.close(out);
                }
            }
            End::ShutDown if !posted => self.close(out),
            _ => {}
        }
    }

    fn close<L>(&mut self, out: &mut dyn Outbox<L>) {
        self.end = End::Closing;
        out.submit(Op::Close { stream: self.stream });
    }

    /// Brings back what is posted.
    fn cut<L>(&mut self, out: &mut dyn Outbox<L>) {
        if self.end == End::Open {
            self.end = End::ShuttingDown;
            out.submit(Op::Shutdown { stream: self.stream });
        }
    }

    /// Ends it at once; what waits to be sent is dropped.
    pub(super) fn drop_client<L>(&mut self, out: &mut dyn Outbox<L>) {
        self.touched = true;
        self.session.close();
        if self.is_posted() {
            self.cut(out);
        }
    }

    fn is_posted(&self) -> bool {
        self.receiving || self.sending.is_some() || self.watching || self.secure == Secure::UnderWay
    }

    /// When it is let go if nothing happens. Who reads nothing may be a virtual machine that is paused, and is waited for, but for its
    /// session's end, or the target's (`stopping`); who said goodbye waits no longer than that for all that it asked for. So it is on a Unix
    /// socket. Over TCP the kernel ends a stream that has taken nothing for 25 s (`reactor/src/sockets.rs: tune`), whether its host has vanished
    /// or its program stands still.
    pub(super) fn deadline(&self, stopping: bool) -> Option<Time> {
        if self.end != End::Open {
            return None;
        }
        let send = self.sending.filter(|_| stopping || self.over.is_some()).or(self.leaving);
        let send = send.map(|since| since + SEND_DEADLINE);
        let handshake = self.is_negotiating().then(|| self.since + HANDSHAKE_DEADLINE);
        [send, handshake].into_iter().flatten().min()
    }

    /// It has its place among the sessions. Who said goodbye has it for as long as it has the memory of one.
    pub(super) fn has_place(&self) -> bool {
        self.is_open() || self.keeps_memory()
    }

    fn keeps_memory(&self) -> bool {
        self.session.is_leaving() && self.session.bytes_in_flight().0 > 0
    }

    /// How it makes room for another one, if that is to be had for nothing but time.
    pub(super) fn in_the_way(&self) -> Option<InTheWay> {
        if self.keeps_memory() {
            // What waits for the volume is over with the time to leave.
            let until = self.sending.map(|since| since + TAKES);
            return until.or(self.leaving.map(|since| since + SEND_DEADLINE)).map(InTheWay::Leaving);
        }
        if self.is_negotiating() {
            return Some(InTheWay::Choosing(self.since + CHOOSES));
        }
        self.sending.filter(|_| self.is_open()).map(|since| InTheWay::Deaf(since + SEND_DEADLINE))
    }

    /// It takes part.
    pub(super) fn is_open(&self) -> bool {
        self.end == End::Open && self.over.is_none() && !self.session.is_leaving()
    }

    /// It has not chosen the export yet.
    pub(super) fn is_negotiating(&self) -> bool {
        self.is_open() && !self.session.is_transmitting()
    }

    /// Stopping, and everything that was taken from the client is answered and sent.
    pub(super) fn is_drained(&self) -> bool {
        self.draining
            && self.over.is_none()
            && self.asked == 0
            && self.stuck.is_none()
            && self.sending.is_none()
            && !self.session.wants_memory()
    }

    /// In a word, for the view.
    pub(super) fn state(&self) -> &'static str {
        match (self.end, &self.over) {
            (End::Open, None) if self.session.is_leaving() => "closing",
            (End::Open, None) if self.draining => "draining",
            (End::Open, None) if !self.session.is_transmitting() => "negotiating",
            (End::Open, None) if self.stuck.is_some() => "waiting for the volume",
            (End::Open, None) if self.session.wants_memory() => "waiting for memory",
            (End::Open, None) => "open",
            _ => "closing",
        }
    }
}
