//! What a `Net` tells the machine, and what the machine hands back.

use crate::budget::Charge;
use driver::{Conn, ConnId, why};
use memory::Reads;
use refcount::Hold;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use wire::{Body, Crcs, HelloInfo, Limits, Op, Reason, SessionId};

/// A message's payload: the first `len` bytes of `mem`, with the CRC of each 4 KiB piece.
#[derive(Debug)]
pub struct Payload {
    /// The memory.
    pub mem: Reads,
    /// Bytes from its start.
    pub len: usize,
    /// See [`wire::pieces`].
    pub crcs: Crcs,
}

impl Payload {
    /// One more reader of the same bytes.
    pub fn share(&self) -> Self {
        Self { mem: self.mem.share(), len: self.len, crcs: self.crcs.clone() }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.mem[..self.len]
    }
}

/// Something the machine should know.
#[derive(Debug)]
pub enum NetEvent {
    /// Accepting side: this peer has proven who it is and waits for `accept_peer` or `reject_peer`.
    Hello {
        /// The connection.
        conn: ConnId,
        /// Who.
        peer: HelloInfo,
    },
    /// Established: requests can be made.
    Up {
        /// The connection.
        conn: ConnId,
        /// Who.
        peer: HelloInfo,
        /// What holds on it.
        limits: Limits,
    },
    /// The peer asks for something.
    Request {
        /// The connection.
        conn: ConnId,
        /// What for; not necessarily an op that anybody knows.
        op: Op,
        /// The op's body, unread.
        body: Body,
        /// What came with it, checked.
        payload: Option<Payload>,
        /// The right and duty to answer it.
        answer: Answer,
    },
    /// What came of a request. Exactly one for each.
    Reply {
        /// The connection.
        conn: ConnId,
        /// As given with the request.
        token: u64,
        /// The answer, or why there is none.
        result: Result<(Op, Body, Option<Payload>), Lost>,
    },
    /// The connection is over: last of its events but for requests that were received before. Nothing that was sent on it
    /// and is not answered will be.
    Down {
        /// The connection.
        conn: ConnId,
        /// Who it was, if that was proven.
        peer: Option<HelloInfo>,
        /// Why.
        reason: Reason,
    },
}

/// Why a request has no answer. It may or may not have been executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// Its deadline passed; the connection is closed with it.
    #[error("not answered in time")]
    TimedOut,
    /// The connection ended first.
    #[error("the connection was lost")]
    ConnLost,
}

/// Why a request was not taken. Nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The peer takes no more now; a reply will change that.
    #[error("no credit left")]
    NoCredit,
    /// Not yet established.
    #[error("the connection is not yet established")]
    NotUp,
    /// Closed or closing.
    #[error("the connection is gone")]
    Gone,
    /// Body or payload exceed what was agreed.
    #[error("the message is too large for this connection")]
    TooLarge,
    /// A data message's body has no room for the session prefix.
    #[error("a data message's body starts with a session prefix of {len} bytes", len = wire::PREFIX_LEN)]
    TooShort,
}

/// How the machine admits a peer.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Who we are now: incarnation and open ids as of this moment.
    pub hello: HelloInfo,
    /// The session's name.
    pub session: SessionId,
}

/// Connections whose answers were dropped.
pub(crate) type Abandoned = Rc<RefCell<Vec<ConnId>>>;

/// The right to answer one request, once. Dropped unanswered, its credit goes back with the next frame; the peer then waits for
/// its deadline.
#[must_use = "a dropped answer leaves the peer waiting for its deadline"]
pub struct Answer {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) hold: Hold<Conn, why::Answers>,
    pub(crate) abandoned: Option<Abandoned>,
    /// What its payload, and what it may be answered with, count for.
    pub(crate) _charge: Option<Charge>,
}

impl Answer {
    /// The connection it will be sent on.
    pub fn conn(&self) -> ConnId {
        self.hold.id
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            abandoned.borrow_mut().push(self.hold.id);
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} slot {}#{})", self.hold.id, self.slot, self.generation)
    }
}
