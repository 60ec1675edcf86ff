//! What happened, in numbers, and how each connection stands.

use driver::{ConnId, Span};
use refcount::Tally;
use wire::{Reason, State};

/// Plain counters since the start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Streams accepted.
    pub accepted: u64,
    /// Accepts that failed.
    pub accept_errors: u64,
    /// Streams closed at once because of a limit.
    pub refused: u64,
    /// Strangers that were there for longest and made room for another.
    pub strangers_displaced: u64,
    /// Times that a listener waited because streams came faster than they are accepted.
    pub accepts_paused: u64,
    /// Connections ended because the peer did not take what it was sent.
    pub sends_stuck: u64,
    /// Connections ended because the peer did not finish a message.
    pub frames_stuck: u64,
    /// Times that a client's requests stayed unread because it had as many bytes in flight as one may.
    pub over_budget: u64,
    /// Connections begun by this side.
    pub connects: u64,
    /// Handshakes completed.
    pub established: u64,
    /// Whole, checked messages received.
    pub frames_in: u64,
    /// Messages given to the driver.
    pub frames_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Receives that completed.
    pub recvs: u64,
    /// Sends that completed.
    pub sends: u64,
    /// Receives straight into a payload's memory.
    pub recvs_in_place: u64,
    /// Requests of peers.
    pub requests_in: u64,
    /// Requests to peers.
    pub requests_out: u64,
    /// Replies to nobody: slot or generation not waiting.
    pub stale_replies: u64,
    /// Completions that belong to nothing.
    pub stale_completions: u64,
    /// Replies the machine gave after the connection had closed.
    pub replies_dropped: u64,
    /// Answers that the machine dropped unanswered.
    pub answers_dropped: u64,
    /// Queued messages that a close threw away.
    pub flushed: u64,
    /// Requests whose deadline passed.
    pub timed_out: u64,
    /// Times that reading stopped for want of memory or receive slots.
    pub stalls: u64,
    /// Times that a connection was looked at again for that.
    pub stall_retries: u64,
    /// Times that all connections were looked at for what is due.
    pub scans: u64,
    /// Pings sent.
    pub pings: u64,
    /// Connections that were closing, or held after it, for longer than [`crate::CLOSING_LONG`].
    pub closing_long: u64,
    /// Connections ended, by reason, in the order of [`Reason::ALL`].
    pub closed: [u64; Reason::ALL.len()],
}

impl Counters {
    /// Connections ended for `reason`.
    pub fn closed_for(&self, reason: Reason) -> u64 {
        self.closed[reason.index()]
    }
}

/// One connection, for status and `--refs`.
#[derive(Clone, Debug)]
pub struct ConnStatus {
    /// Its name.
    pub id: ConnId,
    /// Where it is in its life.
    pub state: State,
    /// The peer's name, if proven.
    pub peer: Option<String>,
    /// Requests of ours that wait for their reply.
    pub waiting: usize,
    /// Requests of the peer that are being handled.
    pub handling: u16,
    /// Messages queued.
    pub queued: usize,
    /// Requests that could be made now.
    pub credits: u16,
    /// Reading stopped for want of memory.
    pub stalled: bool,
    /// How long it has been closing.
    pub closing_for: Option<Span>,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// Who keeps it, by reason.
    pub holds: Tally,
}
