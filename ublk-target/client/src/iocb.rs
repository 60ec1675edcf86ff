//! One request in flight, its parts, and its stages.
//!
//! ```text
//!   part:  Queued ──post──► Posted ──answer──► Done
//!            ▲                │ │
//!            │◄── lost ───────┘ ├─ stale epoch, later ─► Paused ──► Queued
//!            │                  └─ lost, request failed ─► Twin ──fenced──► Done
//! ```
//!
//! The IOCB is counted: one *front end* hold from submit until no part is open, so that its result is decided and nothing of it is
//! unfenced; and while a part is posted one each for its *command*, its *data* (if it carries any, either way) and its *reply*. The
//! reaper takes the IOCB when the last hold went, and only the reaper completes it: exactly once, with nothing of it in flight.

use crate::request::BlockError;
use crate::split::{Action, Kind};
use conductor_model::{Bytes, Commit, Epoch, ShardIndex};
use driver::Time;
use node_protocol::ExtentsAnswer;
use refcount::Hold;
use smallvec::SmallVec;
use std::net::SocketAddr;
use tcp::Payload;

/// Which request of `Engine::requests`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RequestKey(pub(crate) usize);

/// Which part of `Engine::parts`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PartKey(pub(crate) usize);

/// The counted part of a client's IOCB (I/O control block), a request in flight: what is held as long as anything needs `Request`.
#[derive(Debug)]
pub(crate) struct ClientIocb {
    pub(crate) request: RequestKey,
}

refcount::reasons! {
    /// Why a client's IOCB is held.
    pub(crate) mod why for ClientIocb as "client-iocb" labelled (|iocb| iocb.request.0 as u64) {
        /// By the front end, until no part is open (`release_if_done`).
        FrontEnd "front end",
        /// By each part whose command is posted.
        Command "command",
        /// By each posted part that carries data, either way.
        Data "data",
        /// By each part that waits for its reply.
        Reply "reply",
    }
}

/// What a posted part keeps.
#[derive(Debug)]
pub(crate) struct Posted {
    _command: Hold<ClientIocb, why::Command>,
    _data: Option<Hold<ClientIocb, why::Data>>,
    _reply: Hold<ClientIocb, why::Reply>,
}

impl Posted {
    pub(crate) fn new(iocb: &Hold<ClientIocb, why::FrontEnd>, action: Action) -> Self {
        let carries = matches!(action, Action::Read | Action::Write | Action::ZeroEdge);
        Self { _command: iocb.share(), _data: carries.then(|| iocb.share()), _reply: iocb.share() }
    }
}

/// Where a part stands: see the module's drawing.
#[derive(Debug)]
pub(crate) enum PartState {
    /// In the queue of the link to this endpoint.
    Queued(SocketAddr),
    /// On the connection to this endpoint.
    Posted(SocketAddr, Posted),
    /// To be sent again then.
    Paused(Time, Pause),
    /// Its request failed, and the part was lost with a connection: what the node has of it may still take effect.
    Twin,
    /// Answered, or never to be.
    Done,
}

/// Why a part is paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// The node is not the primary of this epoch.
    StaleEpoch,
    /// The node does not know this epoch yet, or has no room for the request at the moment.
    Later,
    /// What it touches is not held yet, or again.
    Range,
    /// A failed request of another lane may still change what it touches.
    Unfenced,
    /// Its request came early: what the attachment asks for is limited.
    Pace,
}

/// A sending of a part that was neither answered nor fenced: its node may still execute it, as long as it is the primary of that epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    pub(crate) endpoint: SocketAddr,
    pub(crate) epoch: Epoch,
}

/// One wire request.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) request: RequestKey,
    /// The client's number for it; the same however often it is sent.
    pub(crate) sequence: u64,
    pub(crate) action: Action,
    pub(crate) shard: ShardIndex,
    pub(crate) offset: Bytes,
    pub(crate) len: u32,
    /// Durable before it is answered: asked of flush volumes only, others do so anyway.
    pub(crate) fua: bool,
    /// Of a FLUSH: see `Unflushed`.
    pub(crate) covers: u64,
    /// How much of the shard was flushed when it was asked for.
    pub(crate) clean: u64,
    /// The cache generation that it was posted under last.
    pub(crate) cache: Commit,
    /// What it writes.
    pub(crate) payload: Option<Payload>,
    /// What it read.
    pub(crate) answer: Option<Payload>,
    /// Of a question for extents: what was answered. `None`: its node knows no such question.
    pub(crate) extents: Option<Box<ExtentsAnswer>>,
    pub(crate) state: PartState,
    /// The epoch it was last sent under.
    pub(crate) epoch: Epoch,
    /// One for each endpoint at most.
    pub(crate) lost: SmallVec<[Lost; 1]>,
    /// How often it was sent.
    pub(crate) sent: u32,
    /// How often it was told to come again, in a row.
    pub(crate) put_off: u32,
}

/// How a request failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) error: BlockError,
    /// When it failed, or its last twin was made, if that was later: from then on it waits `FENCE_GRACE` for proof.
    pub(crate) fencing_since: Time,
}

/// One request of the front end.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) tag: u64,
    pub(crate) kind: Kind,
    /// Until no part is open. With it goes the request, to the reaper.
    pub(crate) front_end: Option<Hold<ClientIocb, why::FrontEnd>>,
    /// In order.
    pub(crate) parts: SmallVec<[PartKey; 2]>,
    /// Parts that are not done.
    pub(crate) open: usize,
    /// Handed up as soon as nothing of it is in flight or unfenced.
    pub(crate) failed: Option<Failure>,
    /// A flush whose parts that are done have found a loss: told when all are, so that one tells of all shards.
    pub(crate) lost: bool,
    /// When `--io-timeout` strikes.
    pub(crate) deadline: Option<Time>,
    pub(crate) stages: Stages,
}

/// Positions in the life of a request, in the order in which they are passed. The table of a write in `docs/architecture.md`
/// says where in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Stage {
    /// The front end handed it over.
    Submitted,
    /// Its last part was posted for the first time.
    Sent,
    /// Its last part was answered.
    Replied,
    /// It was handed up.
    Completed,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Submitted, "submitted"),
        (Self::Sent, "sent"),
        (Self::Replied, "replied"),
        (Self::Completed, "completed"),
    ];
}

/// When a request passed each stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stages {
    /// The sequence of its first part, by which the node's stages of the same request are found; 0 if it had no part.
    pub sequence: u64,
    /// The first part's op on the wire; 0 if it had none.
    pub op: u8,
    /// First byte in the volume.
    pub offset: Bytes,
    /// Length.
    pub len: Bytes,
    /// Indexed by `Stage`; `None` for one that it did not pass.
    pub at: [Option<Time>; Stage::ALL.len()],
}

impl Stages {
    pub(crate) fn mark(&mut self, stage: Stage, now: Time) {
        self.at[stage as usize] = Some(now);
    }
}
