//! Every limit of a connection, and why it has that value.
//!
//! Memory per connection: `SMALL_STREAM + SCRATCH` = 12 KiB for as long as it lives, of the most urgent class, since settling and
//! replication must find their connections; times `max_conns` that is at most 12 MiB by default. Over TLS 4 KiB each way more, 20 KiB and
//! 20 MiB. `LARGE_STREAM` while it is busy, of what is spare: who finds none goes on with what it has, since it is kept for as long as the
//! peer wishes and payloads have to find memory nevertheless. These are of the peer's class: who finds none stops reading.

use driver::Span;

/// A payload up to this is copied out of the stream buffer, in the pass that checksums it: a copy of 16 KiB costs less than
/// the extra receive that in-place reception needs.
pub const COPY_LIMIT: usize = 16 << 10;
/// Stream buffer of a connection at rest, and of one whose peer is not yet known: holds the longest head (1 KiB) and a few
/// small messages; what an idle connection costs.
pub(crate) const SMALL_STREAM: usize = 4 << 10;
/// Stream buffer of a busy connection: about fifteen 4 KiB writes per receive.
pub(crate) const LARGE_STREAM: usize = 64 << 10;
/// A connection is busy for so long after a receive that a small buffer could hardly have held.
pub(crate) const BUSY: Span = Span::seconds(1);
/// Heads (header and body) of one send: at most 160 B each, so at least 51, and at typical bodies about 100 messages.
pub(crate) const SCRATCH: usize = 8 << 10;
/// Pieces of memory in one send: well under the kernel's 1024.
pub(crate) const SEND_PARTS: usize = 128;
/// Payload bytes in one send: two of the largest payloads, so that a reply behind them waits microseconds.
pub(crate) const SEND_BYTES: usize = 2 << 20;
/// From `connect` to a stream.
pub const CONNECT_DEADLINE: Span = Span::seconds(12);
/// The same over TCP, where a peer has several addresses: another one is tried sooner. Doubled each time that this one does not come up.
/// In a rack it takes well below a millisecond; a lost first packet is sent again after a second.
pub(crate) const TRY_TCP: Span = Span::seconds(1);
/// The same over RDMA, where the manager asks twice before it is there.
pub(crate) const TRY_RDMA: Span = Span::seconds(3);
/// From a stream to both proofs.
pub const HANDSHAKE_DEADLINE: Span = Span::seconds(5);
/// From the proof to admission: the machine may have to fence an earlier life first.
pub const ADMISSION_DEADLINE: Span = Span::seconds(15);
/// A connection on which nothing was sent for so long sends a Ping.
pub const PING_IDLE: Span = Span::seconds(2);
/// A peer of which nothing was heard for so long is gone: three pings of its own, and answers to three of ours.
pub const PEER_SILENT: Span = Span::seconds(6);
/// A client says something as often as this, by itself: one that takes a long send slowly is not asked meanwhile, and is there.
pub const CLIENT_PING: Span = Span::millis(500);
/// The same where a client can reach its peer at another address, too: less than it takes until a primary that is dead has a successor. It
/// asks each `CLIENT_PING` in which it heard nothing.
pub(crate) const WAY_SILENT: Span = Span::millis(1200);
/// A client of which nothing was heard for so long is gone: what it holds is somebody else's to have within 2 s of its last word,
/// whatever became of it. Over RDMA too, where nothing else tells of a peer that dies without a word.
pub const CLIENT_SILENT: Span = Span::millis(1900);
/// A reactor that comes so late to what was due has not listened: nobody was silent meanwhile.
pub(crate) const AWAY: Span = Span::millis(500);
/// All connections are looked at for what is due no more often than this. On each it is so at another time: a look at all of them for each
/// would cost as much as the square of their number. So 1024 cost a quarter of a million looks a second at most, and nothing is seen later by
/// more than this.
pub(crate) const SCAN_EVERY: Span = Span::millis(4);
/// A send of at most two megabytes that is not over by then goes to a peer that does not read: its memory is wanted back, however
/// busily the peer talks.
pub const SEND_STUCK: Span = Span::seconds(20);
/// A message of at most a megabyte that is not whole by then comes from a peer that does not mean to finish it: its memory is wanted
/// back, too.
pub const FRAME_STUCK: Span = Span::seconds(20);
/// How long Goodbye may take to leave.
pub const DRAIN_DEADLINE: Span = Span::seconds(5);
/// Closing for longer than this is reported with the holds that keep it.
pub const CLOSING_LONG: Span = Span::seconds(30);
/// Handshakes in progress: 64 × 12 KiB is what strangers can cost, 64 × 20 KiB over TLS. Beyond it the one that has not proven itself for
/// longest makes room.
pub const MAX_HANDSHAKES: usize = 64;
/// One stream is accepted in this time on each listener, over a while: 2,000 a second, which at some 30 µs of a core for each that is
/// accepted and closed leaves a flood of connections no more than a sixteenth of it. The rest waits in the kernel.
pub const ACCEPT_EVERY: Span = Span::micros(500);
/// The same where listeners speak TLS: 500 a second, which at some 110 µs more for the keys and the signature that a ClientHello asks for are
/// no more than a fourteenth. What the kernel keeps, 1024 of them, is accepted within 2 s; a peer among them waits for its keys for 5 s.
pub const ACCEPT_EVERY_TLS: Span = Span::millis(2);
/// So many may come at once: all lanes of all clients after a node's start.
pub const ACCEPT_BURST: u32 = 1024;
/// Payload bytes of one client in flight, on all its connections together, of a reactor with so much buffer memory: what it sends until
/// it is answered, and what it reads until that is sent. As much as a class of requests has for itself, and a largest one at least.
pub const fn client_bytes(arena: usize) -> usize {
    let eighth = arena / 8;
    if eighth < wire::MAX_PAYLOAD as usize { wire::MAX_PAYLOAD as usize } else { eighth }
}
/// After a failed accept (no file descriptors left), doubling up to a second.
pub(crate) const ACCEPT_PAUSE: Span = Span::millis(50);
pub(crate) const ACCEPT_PAUSE_MAX: Span = Span::seconds(1);
/// How soon a connection for which there was no memory, or no room in its client's budget, is looked at again.
pub(crate) const STALL_RETRY: Span = Span::millis(1);
/// How long a class's own memory is kept for the first that found none: a large piece is together in some milliseconds, unless somebody keeps
/// what he has, as writes of a shard that is not served do.
pub(crate) const RESERVED: Span = Span::seconds(1);

const _: () = assert!(SMALL_STREAM > wire::HEADER_LEN + wire::MAX_HANDSHAKE_BODY);
const _: () = assert!(SCRATCH > wire::HEADER_LEN + wire::MAX_HANDSHAKE_BODY);
