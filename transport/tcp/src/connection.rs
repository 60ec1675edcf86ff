//! All that is known of one connection.

use driver::{Conn, ConnId, Span, StreamId, Time, why};
use memory::{Class, Reservation};
use refcount::Hold;
use std::rc::Rc;
use wire::{Credits, HelloInfo, Limits, ProtectionKey, Reason, Role, SessionId, State, Transcript};

use crate::budget::Budget;
use crate::inbound::Inbound;
use crate::limits::{CLIENT_PING, CLIENT_SILENT, PEER_SILENT, PING_IDLE, WAY_SILENT};
use crate::outbound::Outbound;
use crate::slots::Slots;

/// Where the handshake stands. Strictly one after the other: nothing is received while something is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    // connecting side
    Connect,
    SayHello,
    AwaitChallenge,
    SayProof,
    AwaitAck,
    // accepting side
    AwaitHello,
    SayChallenge,
    AwaitProof,
    Admission,
    SayAck,
    SayReject(Reason),
    // both
    Open,
}

impl Step {
    /// Whether the next message may be read; otherwise what has arrived is kept.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::AwaitChallenge | Self::AwaitAck | Self::AwaitHello | Self::AwaitProof | Self::Open)
    }
}

/// One connection from `connect` or accept until nothing of it is outstanding.
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) owner: Hold<Conn, why::Owner>,
    pub(crate) state: State,
    pub(crate) step: Step,
    pub(crate) stream: Option<StreamId>,
    // what the driver has of it
    pub(crate) connecting: bool,
    pub(crate) receiving: bool,
    pub(crate) sending: bool,
    pub(crate) shutting: bool,
    pub(crate) closing: bool,
    // handshake
    pub(crate) mine: HelloInfo,
    pub(crate) hello: Vec<u8>,
    pub(crate) transcript: Option<Transcript>,
    /// The step's deadline, or that of leaving.
    pub(crate) deadline: Option<Time>,
    // result of the handshake
    pub(crate) peer: Option<HelloInfo>,
    pub(crate) limits: Limits,
    pub(crate) session: Option<(SessionId, ProtectionKey)>,
    /// Made to see whether somebody is there, and for nothing else.
    pub(crate) probe: bool,
    /// Its peer may be reached at another address, too.
    pub(crate) other_ways: bool,
    /// The machine knows of it, so it is told when it ends.
    pub(crate) announced: bool,
    // traffic
    pub(crate) rx: Vec<Hold<Conn, why::Rx>>,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    pub(crate) slots: Slots,
    pub(crate) credits: Credits,
    /// Of a client, from its first message on.
    pub(crate) budget: Option<Rc<Budget>>,
    /// It found no memory, before others of its class; since when.
    pub(crate) reservation: Option<(Reservation, Time)>,
    pub(crate) heard: Time,
    /// When it was last asked whether it is there.
    pub(crate) asked: Time,
    pub(crate) said: Time,
    pub(crate) stalled: bool,
    /// Already in the list of those with something to send.
    pub(crate) ready: bool,
    // end
    /// Closes for this reason once all that is queued has been sent.
    pub(crate) leaving: Option<Reason>,
    pub(crate) reason: Option<Reason>,
    pub(crate) closing_since: Time,
    pub(crate) reported: bool,
}

impl Connection {
    pub(crate) fn new(owner: Hold<Conn, why::Owner>, mine: HelloInfo, limits: Limits, step: Step, now: Time) -> Self {
        Self {
            id: owner.id,
            owner,
            state: State::Init,
            step,
            stream: None,
            connecting: false,
            receiving: false,
            sending: false,
            shutting: false,
            closing: false,
            mine,
            hello: Vec::new(),
            transcript: None,
            deadline: None,
            peer: None,
            limits,
            session: None,
            probe: false,
            other_ways: false,
            announced: false,
            rx: Vec::new(),
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            slots: Slots::default(),
            credits: Credits::default(),
            budget: None,
            reservation: None,
            heard: now,
            asked: now,
            said: now,
            stalled: false,
            ready: false,
            leaving: None,
            reason: None,
            closing_since: now,
            reported: false,
        }
    }

    /// Whose memory its messages take. A peer that has not proven itself counts as a client.
    pub(crate) fn class(&self) -> Class {
        match &self.peer {
            Some(peer) if peer.role == Role::Node && self.step == Step::Open => Class::Replica,
            _ => Class::Client,
        }
    }

    /// After which silence of ours it is asked whether it is there, and of its own it is not.
    pub(crate) fn patience(&self) -> (Span, Span) {
        let client = |info: &HelloInfo| info.role == Role::Client;
        // Both sides of a client's: one whose peer does not read, because much is under way, hears of it all the same.
        let ping = if client(&self.mine) || self.peer.as_ref().is_some_and(client) { CLIENT_PING } else { PING_IDLE };
        let silent = match &self.peer {
            Some(peer) if client(peer) => CLIENT_SILENT,
            _ if client(&self.mine) && self.other_ways => WAY_SILENT,
            _ => PEER_SILENT,
        };
        (ping, silent)
    }

    /// Longest payload the peer may send now.
    pub(crate) fn max_payload(&self) -> u32 {
        if self.step == Step::Open { self.limits.max_payload } else { 0 }
    }

    /// Requests that could be made now.
    pub(crate) fn available(&self) -> u16 {
        if self.state != State::Established || self.leaving.is_some() {
            return 0;
        }
        self.credits.mine().min(u16::try_from(self.slots.free()).unwrap_or(u16::MAX))
    }

    /// Whether the driver has anything of it.
    pub(crate) fn outstanding(&self) -> bool {
        self.connecting || self.receiving || self.sending || self.shutting || self.closing
    }
}
