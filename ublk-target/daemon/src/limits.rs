//! Every limit of a target, with its reason.
//!
//! ```text
//!   arena = MAX_SESSIONS × (twice SESSION_BYTES + SESSION_EXTRA) + NETWORK        392 MiB of addresses, touched when used
//! ```
//!
//! Twice, because a buffer is rounded up to a power of two of pages. With this sum no session ever waits for memory that another
//! one keeps (who said goodbye has its place for as long as it has some of it), so that a large read without structured replies, which must
//! go out in order, always ends.

use driver::Span;
use std::time::Duration;

/// NBD clients at a time: a few hosts with a handful of connections each (nbdcopy opens four, qemu at most sixteen).
pub const MAX_SESSIONS: usize = 16;
/// Commands of one client in flight: the deepest queue that clients use.
pub const SESSION_COMMANDS: usize = 128;
/// Payloads of one client in flight: eight of the largest pieces, more than a socket's bandwidth times its delay.
pub const SESSION_BYTES: usize = 8 << 20;
/// What a session has beside its payloads: the stream buffer, headers, pages for the ends of commands that are not whole blocks.
pub const SESSION_EXTRA: usize = 1 << 20;
/// Messages to and from the nodes: stream buffers and replies not yet taken.
pub const NETWORK: usize = 120 << 20;
/// The arena of one lane; where connections to nodes are TLS, `TLS_NETWORK` beside it.
pub const ARENA: usize = MAX_SESSIONS * (2 * SESSION_BYTES + SESSION_EXTRA) + NETWORK;
/// How long who visited a volume tries to give it back, and how often, where no conductor answers: one takes another one's place sooner.
pub const GIVE_BACK: Duration = Duration::from_secs(20);
/// So long at most once it is told to end: a conductor that is there needs milliseconds. Told so twice it does not wait any more.
pub const GIVE_BACK_TOLD: Duration = Duration::from_secs(2);
/// See `GIVE_BACK`.
pub const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);
/// Requests of all clients in flight, unless `--depth` says otherwise.
pub const DEPTH: u16 = 256;
/// And so many more, one for each client that has none: while everything else waits for a shard that is not served, who stays with the
/// others goes on.
pub const SPARE_DEPTH: u16 = 16;
const _: () = assert!(SPARE_DEPTH as usize == MAX_SESSIONS);
/// Requests in flight on one connection to a node: what a node grants.
pub const CONN_DEPTH: u16 = 128;
/// Parts of one send: the kernel takes 1024; a send of this many headers and pages fills any socket buffer.
pub const SEND_PARTS: usize = 256;
/// A client that has just connected has so long to choose the export before another one may have its place, and is waited for until then: a burst
/// of clients, of which each needs a few round trips, finds places one after the other. It is a few round trips of the longest way that
/// anybody has a disk at, and with 16 places still 64 of those who say nothing a second.
pub const CHOOSES: Span = Span::millis(250);
/// A client that said goodbye and has not taken a send for so long makes room for another one.
pub const TAKES: Span = Span::seconds(1);
/// A client that has not chosen the export by then is let go.
pub const HANDSHAKE_DEADLINE: Span = Span::seconds(10);
/// A client that has not taken a send, of 1 MiB of data at most, by then makes room for another one, and is let go when the target stops.
pub const SEND_DEADLINE: Span = Span::seconds(30);
/// After an accept that failed (no descriptors left, mostly) until the next one.
pub const ACCEPT_AGAIN: Span = Span::millis(100);
/// A session that waits for memory or for room in the volume client looks again after this, if nothing happens before.
pub const LOOK_AGAIN: Span = Span::millis(2);

/// How long a lane looks for work before it sleeps, where cores are to spare: about what a wake-up costs.
pub const SPIN: Span = Span::micros(30);
/// Mail that waits for the reactor: maps, looks, stops; each is rare.
pub const MAILBOX: usize = 64;
/// How often the map is fetched when nobody asks: a grown volume shows within this.
pub const MAP_EVERY: Duration = Duration::from_secs(5);
/// A volume, snapshot or key of which the conductor says for so long that it is no more, while nodes do not answer either, is deleted.
pub const GONE: Duration = Duration::from_secs(3);
/// Between two maps, however many lanes ask: each lane asks after 50 ms at the earliest.
pub const MAP_PAUSE: Duration = Duration::from_millis(50);
/// An address that is taken is tried again for so long: a killed target's is free after some milliseconds, a living one's is not.
pub const LISTEN_PATIENCE: Duration = Duration::from_secs(2);
/// How often.
pub const LISTEN_AGAIN: Duration = Duration::from_millis(10);
/// A clean detach finishes what is in flight for so long; then it fails it.
pub const DRAIN: Duration = Duration::from_secs(10);
/// Whoever waits for that hears so long before what it is that is about to fail.
pub const LAST_CALL: Duration = Duration::from_secs(2);
/// A reactor that was told to fail everything and has not ended after this is reported and left.
pub const GIVE_UP: Duration = Duration::from_secs(5);
/// A control connection is served one at a time, and for no longer than this.
pub const CONTROL_IO: Duration = Duration::from_secs(2);
/// How long a look may wait for the reactor's turn.
pub const LOOK: Duration = Duration::from_secs(2);
/// How long a control command waits for the main thread, which may be looking, or stopping a device.
pub const ANSWER: Duration = Duration::from_secs(8);
/// Requests in flight per ublk queue, unless `--depth` says otherwise: the kernel's own default for fast disks.
pub const UBLK_DEPTH: u16 = 128;
/// Messages of one ublk queue to and from the nodes, beside the memory of its requests.
pub const UBLK_NETWORK: usize = 32 << 20;
/// What a queue has beside that where connections go over RDMA: posted receives of 30 of them.
pub const RDMA_NETWORK: usize = 16 << 20;
/// What it has where they are TLS: a large buffer each way for 64 connections, small ones for more.
pub const TLS_NETWORK: usize = 8 << 20;
/// What NBD clients over TLS have beside their sessions: a large buffer each way.
pub const TLS_SESSIONS: usize = MAX_SESSIONS * 2 * (64 << 10);
/// Between two words about nodes or clients that do not speak TLS, or are not trusted.
pub const SAY_EVERY: Duration = Duration::from_secs(10);
/// Between two words about NBD clients that were turned away.
pub const SAY_CROWDED: Span = Span::seconds(10);
/// A device whose requests all fail is stopped within milliseconds, and its queues say goodbye for up to 7 s; one that is still there
/// after this is the kernel's to keep.
pub const DEVICE_GIVE_UP: Duration = Duration::from_secs(15);
/// A device that its kernel keeps is taken away from it: its queues, which fail everything, say goodbye for up to 2 s and are closed.
pub const LET_GO: Duration = Duration::from_secs(5);
/// How often the queues of a device are looked at, and whether it is to grow.
pub const QUEUES_EVERY: Duration = Duration::from_millis(200);
/// When a device that could not grow with its volume is tried again.
pub const GROW_AGAIN: Duration = Duration::from_secs(10);
/// Longest line of a control command.
pub const CONTROL_LINE: u64 = 256;
/// Looks at a target that is ending.
pub const LOCK_POLL: Duration = Duration::from_millis(20);
/// What a target needs to end beside `DRAIN` and `GIVE_UP`: one call of the conductor.
pub const DETACH_CALL: Duration = Duration::from_secs(11);
