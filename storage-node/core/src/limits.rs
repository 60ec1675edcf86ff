//! Every limit of a node's reactor, with the sum that justifies it.
//!
//! Memory of one reactor, beside the arena (whose bytes are an option, and which connections have their buffers of): per session about
//! 200 B; per client connection `2·depth + 2` receive slots of 16 B; per IOCB about 600 B. With 256 sessions of one connection each and the
//! default depth of 128 that is 256 × 258 × 16 B + 256 × 128 IOCBs × 600 B ≈ 20 MiB, if all are used to the full at once.

use driver::Span;

/// Most client sessions at once on one reactor.
pub const MAX_SESSIONS: usize = 256;
/// Of them, so many of one client: a host may have many volumes, but none locks the others out.
pub const MAX_SESSIONS_EACH: usize = MAX_SESSIONS / 2;
/// Most lanes (connections) of one session: a target opens one per queue.
pub const MAX_LANES: u16 = 64;
/// Ranges of one shard that one session holds or waits for: as many as a client's attachment has.
pub const MAX_RANGES_HERE: usize = 16;
/// Ranges of one shard that clients hold or wait for, 80 B each: those of as many as may share a volume. Looking through them is a few
/// microseconds.
pub const MAX_RANGES: usize = conductor_model::limits::MAX_READERS_PER_VOLUME * MAX_RANGES_HERE;
/// Of one session, in all shards of a reactor: 1024 × 80 B.
pub const MAX_RANGES_EACH: usize = 1024;
/// Longest that a range is waited for, whatever is asked: a client takes a request that is not answered in 30 s for lost.
pub const RANGE_WAIT: Span = Span::seconds(20);
/// A primary that follows another one gives ranges to those who have held them, and to nobody else, for so long. A client that asks for
/// nothing finds out that the old one is gone after 6 s of silence; where that is still there, because the shard was handed over, by the
/// map, which a target fetches every 5 s. One of these may be lost, and a question of 2 s and a connection are to be made.
pub const RANGE_GRACE: Span = Span::seconds(13);
/// Ranges of one session that are told to the conductor, for people.
pub const RANGES_TOLD: usize = 64;
/// Longest range of one request, in bytes, counting the whole blocks that it touches: what a payload can carry.
pub const MAX_REQUEST: u32 = 1 << 20;
/// The same in blocks.
pub const MAX_MESSAGE_BLOCKS: u32 = MAX_REQUEST >> 12;
/// Longest range of one WRITE_ZEROES, DISCARD or EXTENTS, in bytes. They carry no payload, so only the lock is large.
pub const MAX_ZERO: u32 = 1 << 30;
/// The same in blocks.
pub const MAX_ZERO_BLOCKS: u32 = MAX_ZERO >> 12;
/// How long a read waits for memory with its range locked.
pub const MEMORY_PATIENCE: Span = Span::seconds(1);
/// Most stamped writes of one shard that are not finished on every copy: the window above F that a replica remembers.
pub const WINDOW: u64 = 256;
/// What a copy may hold above K when an epoch ends is at most one window, plus what settling had written again: the store must remember
/// that many changes without merging them into wider ones.
const _: () = assert!(WINDOW + SETTLE_DEPTH as u64 <= node_store::MAX_HELD as u64);
/// Credits of a link to another node that only Joins and Promises may use (rule 21).
pub const LINK_RESERVED_CREDITS: u16 = 8;
/// Of these, so many for Promises alone.
pub const PROMISE_CREDITS: u16 = 2;
/// Longest range that one settling write carries the content of, in blocks (256 KiB: small enough for the settle class's reserve).
pub const SETTLE_PIECE: u32 = 64;
/// Longest range that is settled as one where the primary's own copy has nothing, in blocks: what one request may zero.
pub const SETTLE_HOLE: u32 = MAX_ZERO_BLOCKS;
/// Settling writes of one shard at once.
pub const SETTLE_DEPTH: usize = 4;
/// Settling writes of one reactor at once: 16 × 256 KiB = 4 MiB of the settle class.
pub const SETTLE_AT_ONCE: usize = 16;
/// How long a promise binds its giver (rule 14: at most the detection time, 2 s).
pub const PROMISE: Span = Span::millis(2000);
/// How often a primary renews its promises.
pub const KEEPALIVE: Span = Span::millis(400);
/// A subtask that has not completed by then is started again on a new connection.
pub const SUBTASK_DEADLINE: Span = Span::seconds(5);
/// A Join that has not been answered by then is sent again on a new connection.
pub const JOIN_DEADLINE: Span = Span::seconds(10);
/// Between two attempts to reach a peer, at first and at most.
pub const RECONNECT_MIN: Span = Span::millis(50);
/// See `RECONNECT_MIN`.
pub const RECONNECT_MAX: Span = Span::millis(1000);
/// An unanswered question to the conductor is asked again after this.
pub const ASK_AGAIN: Span = Span::millis(1000);
/// A subtask that a copy refused for want of space, or whose disk failed, is tried again after this.
pub const RETRY_REFUSED: Span = Span::millis(500);
/// How often time-driven work is looked at while there is any.
pub const TICK: Span = Span::millis(50);
/// A disk's use is reported when it changed by so many blocks: 1 MiB.
pub const NOTICEABLE_USE: u32 = 256;
/// Questions of other primaries about content at once, on one reactor, those of copy-ranges for a snapshot's included. Each takes 64 KiB of
/// the resync class at a time, or up to 1 MiB for a read (256 KiB for a copy-range); more are answered `later`.
pub const SERVICES: usize = 64;
/// How often one request's range is put right before it is given up: a 1 MiB request has four pieces, and each may need a second go
/// because the store moved what it held.
pub const MAX_HEALS: usize = 8;
/// What a filling needs is lost here: looked for again after so long.
pub const STUCK_PAUSE: Span = Span::seconds(5);
/// What no copy in sync can read is read once more after so long before the copy that is filled is told that it is lost: a cable, a path or a
/// controller may come back, and where the copy that it is filled from is to go, there is no second time.
pub const LOST_AFTER: Span = Span::seconds(10);
/// Such blocks of one filling, at most, before they are read again: 40 B each. As many as two pages of metadata told of.
pub const MAX_DOUBTS: usize = 1 << 12;
/// Pieces of one shard that a scrub has under way, each of 64 blocks (256 KiB): one is read while the other's answers travel.
pub const SCRUB_DEPTH: usize = 2;
/// Such pieces on one reactor: with 64 KiB of memory each, 512 KiB of the resync class.
pub const SCRUB_AT_ONCE: usize = 8;
/// How often a scrub says how far it is.
pub const SCRUB_REPORT: Span = Span::seconds(2);
/// How much of a second's rate a scrub may save up while it waits for something else.
pub const SCRUB_BURST: u64 = 4;
/// At most one line about damage in this time; the next one says how many were left out.
pub const DAMAGE_LINE: Span = Span::seconds(1);
/// Damaged blocks that a reactor remembers (some 64 bytes each): more do not make anything clearer.
pub const BAD_BLOCKS_KEPT: usize = 4096;
/// Blocks kept free on every disk (4 MiB): what settling needs when a disk is full, and what other primaries may have in flight to it.
pub const RESERVED_BLOCKS: u64 = 1024;
/// Pages of metadata that a discard or a barrier takes at most beside one for each 8 MiB that it hides: its edges, and the pages above them.
pub const PAGES_PER_CHANGE: u32 = 6;
/// How long a write waits for space that comes back by itself, before it ends with "no space": what was overwritten or discarded is free again
/// when a store has moved its journal home, at the latest a second after it has come to rest, and the copies tell of it with their promises.
pub const SPACE_WAIT: Span = Span::seconds(4);
/// Operations that the stores of one reactor are given at once, an equal part each: under a store's own bound and the ring's, so that a
/// disk that hangs keeps neither the others nor the network from working. Clients' reads and writes stop at half of that, so that Joins,
/// settling and other primaries' writes always find places; an eighth is theirs beside what others have (rule 21).
pub const STORE_OPS: usize = 3584;
const _: () = assert!(STORE_OPS + STORE_OPS / 8 < node_store::MAX_IN_FLIGHT);
/// Payload bytes of one volume that may wait here while their shard does not serve. More are answered `later`, so that one volume
/// that waits does not take the memory of those that are served (rule 21).
pub const MAX_WAITING_BYTES: usize = 16 << 20;
/// Connections of clients; the rest of `tcp`'s limit is left for nodes and for links of our own.
pub const MAX_CLIENT_CONNS: usize = 896;
/// Of them, so many of one key: its clients choose their own names, and lock out nobody but each other.
pub const MAX_KEY_CONNS: usize = MAX_CLIENT_CONNS / 2;
/// Stalled requests that are looked at again when something was freed; the tick looks at all.
pub const WAKE_AT_ONCE: usize = 8;
/// Finished requests whose stages are kept for `trine node show --trace`.
pub const TRACES: usize = 64;
/// Blocks of one shared piece of a copy-range (64 MiB): each costs the store one fold, and keeps writes to its range waiting so long. Where
/// there is no room to settle so much they are smaller, down to what is copied by bytes.
pub const SHARE_PIECE: u32 = 16_384;
/// Blocks of one piece of a copy-range whose bytes are sent (256 KiB: small enough for the resync class's reserve).
pub const COPY_RANGE_PIECE: u32 = 64;
/// Such pieces of one order at once.
pub const COPY_RANGE_DEPTH: usize = 4;
/// How often a copy-range says how far it is.
pub const PROGRESS: Span = Span::millis(1000);
/// Snapshots that a copy remembers to have dropped, the newest of them (8 bytes each): more than can be late at once.
pub const DROPPED_KEPT: usize = 64;
/// Deleted copies that a reactor remembers, the newest of them (3 MiB at most): more than late Joins can name.
pub const GONE_KEPT: usize = 65_536;
/// Of a flush volume's writes, so many may be finished and not flushed before the primary flushes by itself.
pub const UNFLUSHED: u64 = 192;
/// While that flush is under way others are stamped, up to so many above K: a store lists what is above K true to the block only as long as
/// there are fewer than `node_store::MAX_HELD`. One is the flush itself.
pub const MOST_UNFLUSHED: u64 = node_store::MAX_HELD as u64 - SETTLE_DEPTH as u64 - 1;
const _: () = assert!(WINDOW + UNFLUSHED <= MOST_UNFLUSHED);
/// A copy whose newest listed change lies no further below another's K may still be current, and the disk of one that lacks more is from the
/// past. An older version tells a K that flushes, and what was given up, have raised above all that is in a list.
pub(crate) const UNLISTED: u64 = 16;
/// Nothing is heard of a member for so long, although it was asked: it is dropped (rule 15). Under the detection time of 2 s, of which the
/// conductor's answer needs the rest.
pub const MEMBER_SILENT: Span = Span::millis(1500);
/// One that can be reached another way, too, is looked for there after so long: what is left is enough for a connection, so that a cable
/// that is cut is not taken for a member that is lost.
pub const WAY_SILENT: Span = Span::millis(800);
/// Beyond the time in which a started node joins nothing, a member that it never reached is waited for so long.
pub const START_PATIENCE: Span = Span::millis(2000);
/// A stamped write is not finished on a copy that answers for so long: the copy is dropped; on the own one: the primary steps down.
/// Then a promise to it may keep the next primary waiting for 2 s: five seconds together (`tests/simulator/src/bars.rs`).
pub const LEG_LIMIT: Span = Span::millis(2800);
/// A member that does not join for so long although it is reached is dropped, and a primary whose own copy does not steps down: a promise
/// and the time after a start may each keep it 2 s.
pub const JOIN_LIMIT: Span = Span::seconds(7);
/// A tick that comes so late says that this reactor itself was away: what it did not hear meanwhile counts from then on.
pub const AWAY: Span = Span::millis(500);
/// Where a filling is stuck, a copy whose filling came to nothing is behind the others of its shard for so long: each turn is an epoch or two.
pub const FILL_TURN: Span = Span::seconds(300);
/// Between two attempts to fill the same copy after one came to nothing, at first and at most.
pub const FILL_PAUSE_MIN: Span = Span::millis(1000);
/// See `FILL_PAUSE_MIN`.
pub const FILL_PAUSE_MAX: Span = Span::seconds(30);
/// Copies that one reactor fills at once: 4 × 8 pieces of 64 KiB are 2 MiB of the resync class, here and there.
pub const FILLS_AT_ONCE: usize = 4;
/// Pieces of one filling at once.
pub const FILL_DEPTH: usize = 8;
/// Bytes per second of one filling, at most; less if the conductor says so.
pub const FILL_RATE: i64 = 256 << 20;
/// The copy keeps how far it is whenever the cursor moved by so many blocks (16 MiB).
pub const FILL_MARK: u32 = 4096;
/// How often it is said how far fillings are.
pub const FILL_REPORT: Span = Span::millis(1000);
/// A filling leaves so many credits of a link to Joins and promises (rule 21): fewer than writes do, who would leave it none.
pub const FILL_CREDITS: u16 = LINK_RESERVED_CREDITS / 2;
