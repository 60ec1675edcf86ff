//! Every limit of one lane's client, with its reason.
//!
//! Memory of one lane beside the arena: depth × about 400 B per request, 250 B per part (`MAX_PARTS` bounds the parts of one
//! request, a flush has one per unflushed shard, and `LANE_PARTS` those of all but one), 200 B per link (of which `MAX_LINKS` are connected), and `TRACES` stages of 96 B.

use driver::Span;

/// Connections of one lane to nodes: one for each reactor that serves some of the volume, and a volume's shards may be on more reactors than
/// this. Those that rest make room for others then, and where none rests they take turns; but not where ranges are held. A queue of a block device has twice as many
/// streams, for those that are being closed.
pub const MAX_LINKS: usize = 256;
/// Connections that do not rest and are asked to make way at a time: nothing more is sent on them until they are gone, or `ROOM_WAIT` is over.
pub const BUSY_ASKED: usize = 8;
/// Longest READ or WRITE on the wire, in bytes: what one payload carries.
pub const MAX_IO: u64 = wire::MAX_PAYLOAD as u64;
/// Longest WRITE_ZEROES or DISCARD on the wire, in bytes: a node's own bound.
pub const MAX_ZERO: u64 = 1 << 30;
/// Longest question for extents, in bytes, at first and behind data: it waits for the writes in that range, and writes there wait for
/// the answer. Doubled behind a hole, where nobody writes.
pub const MIN_EXTENTS: u64 = 16 << 20;
/// See `MIN_EXTENTS`: at most; a node's own bound. 10 TiB without data are some 10,000 questions.
pub const MAX_EXTENTS: u64 = 1 << 30;
/// Longest read of one request, in bytes: all of it is in the arena at once, so it must be far below the arena's size.
pub const MAX_READ: u64 = 32 << 20;
/// Most parts of one request: 4 GiB of zeroes over shards of 1 MiB, with room to spare.
pub const MAX_PARTS: usize = 8192;
/// Parts of all requests from which a further request waits, however few requests there are: 8 MiB. Only flushes of volumes of many
/// shards, and zeroes over small ones, have more than a few parts each.
pub const LANE_PARTS: usize = 32_768;
/// Ranges of a shared volume that one attachment holds: each costs a request for each shard and connection.
pub const MAX_RANGES: usize = 16;
/// Between two attempts to connect, at first; doubled each time.
pub const RECONNECT_MIN: Span = Span::millis(50);
/// See `RECONNECT_MIN`: at most. A node that was killed and started again is found within it.
pub const RECONNECT_MAX: Span = Span::millis(500);
/// A part that was told "stale epoch" or "later" is sent again after this at first; doubled each time.
pub const RETRY_MIN: Span = Span::millis(20);
/// See `RETRY_MIN`: at most. It is added to the pause of a failover: a new primary may hear of its shard after the client does.
pub const RETRY_MAX: Span = Span::millis(250);
/// A request that waits for so long, for whatever reason, has the map asked for until it is over: a primary that was killed, is frozen
/// or cannot be reached has a successor after 2 s, of which nobody else tells a client.
pub const STALLED: Span = Span::millis(1000);
/// How often it is seen whether one does.
pub const LOOK: Span = Span::millis(100);
/// Between two questions for a fresh map, at first; doubled until one brings news, or nothing was asked for `MAP_QUIET`.
pub const MAP_MIN: Span = Span::millis(50);
/// See `MAP_MIN`: at most. The share of the pause of a failover in which the map is there and the client does not know.
pub const MAP_MAX: Span = Span::millis(400);
/// See `MAP_MIN`: the next trouble is another one.
pub const MAP_QUIET: Span = Span::seconds(2);
/// A request that a node has not answered by then is sent again on a new connection. Long, because writes rightly wait while a
/// copy is away; a peer that is dead is noticed by the connection's own pings.
pub const REQUEST_DEADLINE: Span = Span::seconds(30);
/// A shard moved, and the old endpoint still owes answers: its connection is closed when it has said nothing for so long. A living
/// node answers "stale epoch" as soon as it hears of the move, and the connection may be of use to other shards.
pub const MOVE_GRACE: Span = Span::millis(250);
/// A connection that is to make room for a better one waits at most this long for its answers, and goes on as it is if they do not come:
/// a request may rightly wait for longer, and no other is to wait behind it.
pub const ROOM_WAIT: Span = Span::millis(500);
/// A failed request waits at most this long for proof that no twin of its parts can take effect any more (see `engine::failing`).
pub const FENCE_GRACE: Span = Span::seconds(2);
/// A part that waits longer than this shows in the view.
pub const WAIT_VISIBLE: Span = Span::millis(500);
/// Requests that wait for so long are spoken of: a failover takes 2 s to 4 s.
pub const SAY_WAIT: Span = Span::seconds(5);
/// How often it is seen whether any do.
pub const SAY_EVERY: Span = Span::seconds(1);
/// Of a connection that several shards share, one gets no more while the credits that are left are at most one for each so many that it has,
/// and one: see `shares`.
pub const BESIDE: usize = 8;
/// Finished requests whose stages are kept.
pub const TRACES: usize = 64;
