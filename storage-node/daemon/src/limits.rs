//! Limits of the process around the reactors; those of a reactor are in `node_core::limits` and `reactor::Limits`.

use std::time::Duration;

/// Memory of all reactors together, unless the operator says otherwise.
pub const DEFAULT_MEMORY: u64 = 256 << 20;
/// Least memory per reactor: each class's own eighth holds two of the largest payloads, each in one piece.
pub const MIN_MEMORY: u64 = 2 * memory::Shares::least_even(memory::MAX_LEN) as u64;
/// Least memory for a disk's metadata pages: a path of 4 pages for each of 64 reads at a time, and one more of its own for a change.
pub const MIN_METADATA_CACHE: u64 = 320 * 4096;
/// Requests in flight per connection and direction.
pub const DEFAULT_DEPTH: u16 = 128;
/// Disks of one reactor: as many as a handshake can name.
pub const MAX_DISKS_PER_REACTOR: usize = wire::MAX_OPENS;
/// Reactors of a process, with those of disks that were added to it: a thread, a ring and buffer memory each.
pub(crate) const MAX_REACTORS: usize = 64;
/// Mail waiting for a reactor. Assignments come in one piece per heartbeat, looks one at a time; answers to asks one per shard.
pub(crate) const MAIL: usize = 4096;
/// How soon mail is offered again to a full mailbox.
pub(crate) const MAIL_AGAIN: Duration = Duration::from_millis(10);
/// Membership questions in one request; more go with the next.
pub(crate) const ASKS_AT_ONCE: usize = 4096;
/// Between two attempts to reach the conductor, at first and at most. A node that is silent for 2 s is taken for dead: a heartbeat
/// that is given up after 1.5 s, and this, stay below it.
pub(crate) const CONDUCTOR_RETRY: Duration = Duration::from_millis(100);
/// See `CONDUCTOR_RETRY`.
pub(crate) const CONDUCTOR_RETRY_MAX: Duration = Duration::from_millis(250);
/// Between two attempts to be taken by a conductor that says no.
pub(crate) const REFUSED_RETRY_MAX: Duration = Duration::from_secs(5);
/// How long reactors may take to take what a heartbeat brought, before the next one leaves and is told it again: with the half second
/// that a heartbeat is held, well below the 2 s.
pub(crate) const HAND_ON: Duration = Duration::from_millis(500);
/// How long a node waits for a disk in use: its last user may have been killed with writes under way, which a slow disk takes its time
/// for.
pub(crate) const DISK_IN_USE: Duration = Duration::from_secs(10);
/// How long the offline tools do: people wait there.
pub(crate) const DISK_IN_USE_OFFLINE: Duration = Duration::from_secs(2);
/// How long a disk that is not in use yet may be silent; then it hangs, and its node starts without it. One that stood still takes 10 s or more
/// to turn again.
pub(crate) const SILENCE: Duration = Duration::from_secs(20);
/// Disks that hang, of each of which a thread is left behind: more than any node has.
pub(crate) const MAX_SILENT: usize = 1024;
/// How long a node waits for another one of its number to fall silent: the conductor counts a node that is not heard for 2 s as gone.
pub(crate) const PREDECESSOR: Duration = Duration::from_secs(5);
/// Least time between two heartbeats: the conductor holds each for half a second unless there is news.
pub(crate) const BEAT_PAUSE: Duration = Duration::from_millis(20);
/// How often it is counted what copies hold: looking at many takes a reactor's time, so that for each so many it is one pause more.
pub(crate) const COUNT_EVERY: Duration = Duration::from_secs(10);
pub(crate) const COPIES_PER_COUNT: usize = 256;
/// After a count that the conductor has not heard.
pub(crate) const COUNT_AGAIN: Duration = Duration::from_secs(1);
/// How long a count waits for reactors: one that has not answered is in the next one.
pub(crate) const COUNT: Duration = Duration::from_millis(500);
/// How long a reactor may take to describe itself.
pub(crate) const LOOK: Duration = Duration::from_secs(5);
/// How long a client of the control socket may take to say what it wants, and to take the answer.
pub(crate) const SOCKET: Duration = Duration::from_secs(2);
/// How long adding disks may take: files are written in full first, and a journal is read.
pub(crate) const ADD: Duration = Duration::from_secs(600);
/// Longest request on the control socket.
pub(crate) const SOCKET_LINE: u64 = 65_536;
/// While a new reactor opens its disks: how often it is looked whether the node is to stop.
pub(crate) const ADD_LOOK: Duration = Duration::from_millis(100);
/// How long the reactors may take to stop: connections drain for at most 5 s.
pub(crate) const STOP: Duration = Duration::from_secs(15);
/// How long a reactor looks for completions before it sleeps, where there are cores to spare: below a wake-up's price.
pub(crate) const SPIN: driver::Span = driver::Span::micros(20);
