//! One request in flight on a node, its subtasks and its stages.
//!
//! ```text
//!  read, extents: Queued ──lock──► Locked ──lease, memory──► Reading ─────────────────────────► answered
//!  write, zero:   Queued ──lock──► Locked ──[merge]──► Merging ──► Ready ──stamp──► Stamped ──► answered
//!  settling:                                           Reading ──► Ready ──stamp──► Stamped ──► done
//!  scrub:         Queued ──lock──► Locked ──► Mending ──► done         a read that meets damage goes back to be locked alone,
//!  rewrite:                        Locked ──► Mending ──► Ready ──stamp──► Stamped ──► done          then Mending, then on as before
//!  filling:       Queued ──lock──► Locked ──memory──► Reading ──► Ready ──FILL──► Filling ──► done
//!  copied bytes:  Queued ──lock──► Locked ──memory──► Reading ──► Ready ──stamp──► Stamped ──► told to its order
//! ```
//!
//! While a barrier's hold lasts (rule 17), what is finished stays *BehindBarrier*, with its lock, until the hold is over.
//!
//! The server's three buffer descriptors are `answer` (the command's receive slot, which reserves the reply's), `payload` (the
//! data) and the reply, which belongs to the connection from the moment it is queued. An IOCB is counted: one *request* hold until
//! it is answered or dropped, one *subtask* hold per start of a subtask, kept by who waits for it (`node::waits`). A subtask that was
//! started twice completes twice, and only then does the reaper free the slot.

use crate::iocbs::IocbKey;
use crate::limits::PAGES_PER_CHANGE;
use crate::mend::{Failure, Mend};
use crate::window::Prefix;
use conductor_model::{BlockRange, Blocks, CopyId, Epoch, OrderId, ShardId, ShardSnapshot, SnapshotId, Stamp};
use driver::{ConnId, Time};
use node_protocol::IoBody;
use node_store::{BLOCKS_PER_PAGE, View};
use refcount::Hold;
use smallvec::SmallVec;
use tcp::{Answer, Payload};

/// The counted part of an IOCB.
#[derive(Debug)]
pub(crate) struct ServerIocb {
    /// Its slot.
    pub(crate) key: IocbKey,
}

refcount::reasons! {
    /// Why an IOCB is held.
    pub(crate) mod why for ServerIocb as "iocb" labelled (|iocb| iocb.key.0 as u64) {
        /// Until it is answered or dropped.
        Request "request",
        /// By each start of a subtask, until that start completed.
        Subtask "subtask",
    }
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    /// What of a range may hold something else than zeros.
    Extents,
    Write,
    Zero,
    /// A piece of a settling: the primary's own content, written to every copy.
    Settle,
    /// A piece of a scrub: looked through on every copy, and put right.
    Scrub,
    /// What one copy cannot take as a repair: another copy's content, written to every copy.
    Rewrite,
    /// All that was finished before becomes durable on every copy.
    Flush,
    /// A snapshot is placed on every copy.
    Barrier(SnapshotId),
    /// Every copy reads as its snapshot again.
    Rollback(SnapshotId),
    /// A range shares with another shard's snapshot on every copy's own disk.
    Share(ShardSnapshot),
    /// A range is written with what the primary reads from another shard's snapshot.
    CopyRange(ShardSnapshot),
    /// A piece of the filling of a syncing copy: read here, written there.
    Fill,
}

impl Kind {
    /// Does it change nothing, and share its range with others that do not?
    pub(crate) fn only_looks(self) -> bool {
        matches!(self, Self::Read | Self::Extents)
    }

    /// May it take as much room as its range has blocks? A share does where it is settled: what one copy has done and another one cannot is
    /// written to both, block by block. A rewrite does where the copy that has lost something does not know any more what it had.
    pub(crate) fn takes_space(self) -> bool {
        matches!(self, Self::Write | Self::CopyRange(_) | Self::Share(_))
            || self == Self::Rewrite && !driver::mutant::on("rewrite_without_room")
    }

    /// Pages of metadata that it may take for good on a disk, be there room for blocks or not; 0 for what asks for room for blocks, of
    /// which a disk has none where it has no pages. `layered`: what is below it shows through a discard, unless that is noted down.
    pub(crate) fn takes_pages(self, count: Blocks, layered: impl FnOnce() -> bool) -> u32 {
        match self {
            _ if driver::mutant::on("discard_without_room") => 0,
            Self::Zero if layered() => PAGES_PER_CHANGE + count.0 / BLOCKS_PER_PAGE,
            Self::Zero | Self::Barrier(_) | Self::Rollback(_) => PAGES_PER_CHANGE,
            _ => 0,
        }
    }

    /// Does a copy that is filled get it, too?
    pub(crate) fn is_fed(self) -> bool {
        matches!(self, Self::Write | Self::Zero | Self::CopyRange(_) | Self::Rewrite)
    }

    /// Is it held back while a flush volume has as much above K as its copies list to the block? All but what brings K further.
    pub(crate) fn waits_for_flush(self) -> bool {
        !matches!(self, Self::Flush | Self::Settle)
    }

    /// Is it held back while a barrier's hold lasts (rule 17)? All that changes what the shard reads as.
    pub(crate) fn waits_for_barrier(self) -> bool {
        matches!(self, Self::Write | Self::Zero | Self::Share(_) | Self::CopyRange(_))
    }
}

/// Where it stands: see the module's drawing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IocbPhase {
    Queued,
    Locked,
    /// Damage is being put right, or content of another copy fetched.
    Mending,
    /// Its content is on its way to the copy that is filled.
    Filling,
    Merging,
    Reading,
    Ready,
    Stamped,
    BehindBarrier,
}

/// One copy's part of a stamped IOCB.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) copy: CopyId,
    pub(crate) state: LegState,
}

/// Where a leg stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LegState {
    /// To be started as soon as the link has a credit.
    Waiting,
    /// Started, not completed.
    Running,
    /// Refused by the copy (space, disk): to be started again then.
    Refused(Time),
    /// Durable there.
    Done,
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct Iocb {
    /// Until it is answered or dropped.
    pub(crate) request: Option<Hold<ServerIocb, why::Request>>,
    /// Its place in the order of arrival.
    pub(crate) arrival: u64,
    pub(crate) shard: ShardId,
    pub(crate) kind: Kind,
    pub(crate) phase: IocbPhase,
    /// The connection that it came on; `None` for what the primary does by itself.
    pub(crate) conn: Option<ConnId>,
    pub(crate) answer: Option<Answer>,
    /// Of a client that shares the volume: the session that must hold what this changes.
    pub(crate) holder: Option<u32>,
    pub(crate) body: IoBody,
    pub(crate) range: BlockRange,
    pub(crate) payload: Option<Payload>,
    pub(crate) stamp: Option<Stamp>,
    /// When it was stamped last, or its read was handed to the store.
    pub(crate) started_at: Time,
    /// Dropped as soon as the subtask under way is done, and never stamped: its connection was fenced, or what it belongs to was given up.
    pub(crate) withdrawn: bool,
    pub(crate) legs: SmallVec<[Leg; 3]>,
    pub(crate) stages: Stages,
    /// Which content a read is of.
    pub(crate) view: View,
    pub(crate) heal: Heal,
    /// A share that some copy cannot do: ended when its range was settled.
    pub(crate) given_up: bool,
    /// Since when it waits for free blocks.
    pub(crate) short_since: Option<Time>,
    /// Pages that were found for it.
    pub(crate) pages: u32,
    /// The order that it is a part of.
    pub(crate) order: Option<OrderId>,
    /// For a flush: the prefix that was finished everywhere when it was stamped.
    pub(crate) covers: Prefix,
}

/// What an IOCB knows of damage in its range.
#[derive(Debug, Default)]
pub(crate) struct Heal {
    /// To be put right from this block on, before anything else.
    pub(crate) due: Option<Blocks>,
    /// Under way, in this epoch.
    pub(crate) mend: Option<(Epoch, Box<Mend>)>,
    /// Answers that are still to come for it.
    pub(crate) waits: u32,
    /// What was fetched last.
    pub(crate) fetched: Option<Payload>,
    /// So often damage was met for this request.
    pub(crate) attempts: usize,
    /// The range is locked alone.
    pub(crate) alone: bool,
    /// The copy here has lost what it was: it is read from the others.
    pub(crate) elsewhere: bool,
    /// For that, and for a rewrite: which of them is next.
    pub(crate) refetch: Refetch,
    /// Copies that did not give a piece of a copy-range's source, and why not.
    pub(crate) said: Vec<(CopyId, Failure)>,
}

/// Other copies that are asked for the whole range, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Refetch {
    /// The number, among the others, of the one that is asked now or next.
    pub(crate) next: usize,
    /// One of them was away when it was its turn.
    pub(crate) missed: bool,
}

impl Iocb {
    /// What nobody has asked for on a connection.
    pub(crate) fn internal(shard: ShardId, kind: Kind, range: BlockRange, phase: IocbPhase) -> Self {
        Self {
            request: None,
            arrival: 0,
            shard,
            kind,
            phase,
            conn: None,
            answer: None,
            holder: None,
            body: IoBody::default(),
            range,
            payload: None,
            stamp: None,
            started_at: Time::default(),
            withdrawn: false,
            legs: SmallVec::new(),
            stages: Stages::default(),
            view: View::Live,
            heal: Heal::default(),
            given_up: false,
            short_since: None,
            pages: 0,
            order: None,
            covers: Prefix::default(),
        }
    }

    /// Was it answered or dropped? Its slot stays as long as a subtask holds it.
    pub(crate) fn is_over(&self) -> bool {
        self.request.is_none()
    }

    /// Must it be durable where a flush volume's writes need not be? FUA, and what settling or an order makes.
    pub(crate) fn is_durable(&self) -> bool {
        self.conn.is_none() || self.body.is_fua()
    }
}

/// Positions in the life of a request, in the order in which they are passed. `docs/architecture.md` says where in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Stage {
    /// The frame was complete and verified.
    Received,
    /// Its range lock was granted.
    Locked,
    /// It got its stamp.
    Stamped,
    /// The forwards to the other copies were queued.
    Forwarded,
    /// The local write was given to the store.
    LocalStarted,
    /// The first copy was durable.
    FirstDone,
    /// The last copy was durable.
    LastDone,
    /// The reply was queued.
    Replied,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Received, "received"),
        (Self::Locked, "locked"),
        (Self::Stamped, "stamped"),
        (Self::Forwarded, "forwarded"),
        (Self::LocalStarted, "local.started"),
        (Self::FirstDone, "first.done"),
        (Self::LastDone, "last.done"),
        (Self::Replied, "replied"),
    ];
}

/// When a request passed each stage; 0 for one it did not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stages {
    /// The client's number of the request.
    pub sequence: u64,
    /// The op's number.
    pub op: u8,
    /// Nanoseconds, indexed by `Stage`.
    pub at: [u64; Stage::ALL.len()],
    /// In which order the stages were marked: several may share one turn's time.
    pub order: [u8; Stage::ALL.len()],
    marked: u8,
}

impl Stages {
    pub(crate) fn new(op: u8, sequence: u64) -> Self {
        Self { op, sequence, ..Self::default() }
    }

    /// Passes a stage; only the first time counts.
    pub(crate) fn mark(&mut self, stage: Stage, now: Time) {
        let at = stage as usize;
        if self.order[at] == 0 {
            self.marked += 1;
            self.order[at] = self.marked;
            self.at[at] = now.0;
        }
    }
}
