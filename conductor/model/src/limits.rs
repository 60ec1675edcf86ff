//! Every limit of the control plane, in one place. Together they bound the conductor's memory: 262,144 shards of about
//! 1 KiB each, as many pending deletions of 32 bytes per copy, and small tables of nodes and volumes: below 512 MiB at the
//! very worst, a few megabytes in an ordinary cluster.

use crate::{BLOCK, Bytes};

/// Nodes in a cluster. Every one costs a held request; a cluster above this wants several conductors first.
pub const MAX_NODES: usize = 256;
/// Disks in a node: more than the bays of the largest servers.
pub const MAX_DISKS_PER_NODE: usize = 64;
/// Size of one disk: keeps sums over all disks of a cluster far from 64 bits' end.
pub const MAX_DISK: Bytes = Bytes(1 << 50);
/// Volumes, those being deleted included.
pub const MAX_VOLUMES: usize = 4096;
/// Size of a volume.
pub const MAX_VOLUME: Bytes = Bytes(64 << 40);
/// Smallest volume.
pub const MIN_VOLUME: Bytes = Bytes(1 << 20);
/// Shards in a volume: the largest volume in shards of the default size.
pub const MAX_SHARDS_PER_VOLUME: u64 = 16_384;
/// Shards in a cluster, and shards' worth of copies waiting for deletion: ten times the 25,600 of rule 25.
pub const MAX_SHARDS: usize = 262_144;
/// Largest shard. Well inside what `Blocks` can count, and what one disk can take.
pub const MAX_SHARD: Bytes = Bytes(64 << 30);
/// Smallest shard: a shard costs a record, a smaller one is not worth it.
pub const MIN_SHARD: Bytes = Bytes(1 << 20);
/// Most copies of a shard. Beside these there may be one that takes the place of another.
pub const MAX_COPIES: u8 = 3;
/// Copies of a shard, unless its volume says otherwise.
pub const DEFAULT_COPIES: u8 = 3;
/// Fewest in-sync copies that may acknowledge a write, unless the volume says otherwise.
pub const DEFAULT_MIN_COPIES: u8 = 2;
/// Length of a volume's name: fits a device name and a DNS label.
pub const MAX_VOLUME_NAME: usize = 64;
/// Length of a host's name: what DNS allows.
pub const MAX_HOST_NAME: usize = 253;
/// Length of a client's name: what a Hello carries (`wire::MAX_NAME`).
pub const MAX_CLIENT_NAME: usize = 64;
/// Length of the name of a client's key: leaves room for a host and a volume in its clients' names.
pub const MAX_KEY_NAME: usize = 32;
/// Volumes that a client's key can be for: what fits a Hello.
pub const MAX_KEY_VOLUMES: usize = 64;
/// Keys of clients in a cluster: some 20 bytes each in what every node is told when one is added or removed, and 512 B of memory.
pub const MAX_CLIENT_KEYS: usize = 1024;
/// Former keys that may hold beside the one that was made in their place.
pub const MAX_FORMER_KEYS: usize = 2;
/// For how long a key may hold beside the one that was made in its place: a year, which is long for a rotation.
pub const MAX_KEY_GRACE_MS: u64 = 365 * 86_400_000;
/// Clients that read one volume at once: each costs its nodes sessions, and 16 bytes of what they are told of the volume.
pub const MAX_READERS_PER_VOLUME: usize = 64;
/// Of these, those that have one key: whoever has it does not keep all others from reading.
pub const MAX_READERS_PER_KEY: usize = MAX_READERS_PER_VOLUME / 2;
/// Of all readers, how many a refusal names.
pub const MAX_READERS_SHOWN: usize = 3;
/// Sessions remembered of one node: four full reactors of it, 256 KiB.
pub const MAX_SESSIONS_PER_NODE: usize = 1024;
/// What a node told of its sessions is shown until it was silent for so long: two of its counts.
pub const SESSIONS_SHOWN_MS: u64 = 20_000;
/// Troubles remembered from one node's heartbeat: more do not make `trine status` any clearer.
pub const MAX_TROUBLES_PER_NODE: usize = 1024;
/// Characters remembered of one trouble's reason.
pub const MAX_REASON: usize = 256;
/// Addresses of a reactor beside its first one: two networks over TCP and RDMA are three. Peers try them in turn.
pub const MAX_ADDRESSES: usize = 7;
/// Longest path of a disk: the kernel takes no longer ones.
pub const MAX_PATH: usize = 4096;
/// Reasons listed for one volume.
pub const MAX_REASONS_PER_VOLUME: usize = 8;
/// How often a drawn copy id may turn out to be taken. A random source that repeats itself this often is broken.
pub const MAX_DRAWS: usize = 16;
/// A disk used by more than this is nearly full: what is left of a disk of 1 TiB is an hour of 40 MB/s.
pub const NEAR_FULL_PERCENT: u32 = 85;
/// A disk used by more than this is as good as full: stores keep the last sixteenth for what gives space back.
pub const FULL_PERCENT: u32 = 93;
/// Snapshots of one volume, those included that a copy in sync is still to forget: each is a layer in every copy, and a store has 65,536
/// of these.
pub const MAX_SNAPSHOTS_PER_VOLUME: usize = 128;
/// Deleted snapshots of one volume that only copies which are not in sync have not forgotten: hourly ones of six weeks. Each is a record
/// of some 200 bytes, and a work for each such copy; what one copy is told when it is back fits an answer. In a cluster `MAX_SNAPSHOTS`
/// and `MAX_WORK` bound them, too.
pub const MAX_SNAPSHOTS_OWED: usize = MAX_WORK_AT_ONCE;
/// Snapshots on top of each other, of a clone with those that it lies on: stores look through 256 layers at most, what is just being
/// deleted among them.
pub const MAX_DEPTH: usize = 240;
/// Snapshots in a cluster, deleted ones that any copy is to forget included: 4 for every volume there can be.
pub const MAX_SNAPSHOTS: usize = 16_384;
/// The hold time H of a snapshot (rule 17): how long a primary executes without acknowledging at most. A host notices a pause of
/// some seconds as little as a slow disk.
pub const SNAPSHOT_HOLD_MS: u32 = 4_000;
/// How long an attempt may take: half of H, so that no primary has let go before the other half is over (rule 17). Nodes hear of
/// a barrier at once, and placing it takes one write on every copy.
pub const SNAPSHOT_PLACE_MS: u64 = SNAPSHOT_HOLD_MS as u64 / 2;
/// Attempts at one snapshot. With the pauses between them below the 30 s that a request may take.
pub const SNAPSHOT_ATTEMPTS: u32 = 6;
/// The pause after the first failed attempt; each later one is twice as long: 250 · (1 + 2 + 4 + 8 + 16) = 7.75 s in all.
pub const SNAPSHOT_PAUSE_MS: u64 = 250;
/// Failed creations whose reasons are remembered for whoever waits: a request is given its outcome within milliseconds, and more than may
/// wait at once can fail together, as when a node is lost that all volumes are on.
pub const MAX_OUTCOMES: usize = 256;
/// Works of copies that are waiting to be confirmed: one for every copy there can be.
pub const MAX_WORK: usize = MAX_COPIES as usize * MAX_SHARDS;
/// Orders given to one node at once, barriers aside: enough to keep it busy, and its messages small.
pub const MAX_ORDERS_AT_ONCE: usize = 64;
/// Works given to one node at once: as for orders.
pub const MAX_WORK_AT_ONCE: usize = 1024;
/// Before something that a shard could not do is tried again: what is in its way is a restart, or full disks.
pub const ORDER_PAUSE_MS: u64 = 3_000;
/// How often it is kept how far copies and scrubs are: a restart does so much of them again.
pub const KEEP_PROGRESS_MS: u64 = 30_000;
/// Copy-ranges at once in a cluster, failed ones that nobody has looked at included.
pub const MAX_COPY_RANGES: usize = 256;
/// How long a copy-range is listed after its end if all went well.
pub const DONE_SHOWN_MS: u64 = 600_000;
/// What a scrub reads per second on each copy if nobody says otherwise: a disk of 1 TiB in nine hours.
pub const SCRUB_RATE: Bytes = Bytes(32 << 20);
/// Slowest filling of copies, but for none at all: below this a copy that was away for a day may never catch up.
pub const MIN_FILL_RATE: Bytes = Bytes(1 << 20);
/// Slowest scrub: below this a shard of 64 GiB takes more than a day.
pub const MIN_SCRUB_RATE: Bytes = Bytes(1 << 20);
/// A node heard from within this time is alive: four heartbeats.
pub const ALIVE_MS: u64 = 2_000;
/// How long a node that was refused is shown: a running one asks every few seconds, one that its host starts anew every half minute.
pub const REFUSED_SHOWN_MS: u64 = 60_000;
/// A node silent for this long is dead; between the two it is late.
pub const DEAD_MS: u64 = 10_000;

/// After a start nodes have this time to be heard before the choice of places goes without them. They ask four times a second for a
/// conductor that answers.
pub const LISTEN_MS: u64 = 5_000;

/// A node silent for this long is dead for the shards that it is primary of: the detection time, four heartbeats. No promise that a
/// primary serves reads by is longer (rules 11 and 14).
pub const NODE_SILENT_MS: u64 = 2_000;
/// A node that is to be primary was heard within this time: two heartbeats. Where all fall silent at about the same time, as when the
/// conductor is cut off, none is promoted just because its last heartbeat came a little later.
pub const NODE_FRESH_MS: u64 = 1_000;
/// A conductor that was not told the time for so long stood still itself, and heard nobody: it is told once a second at least. What
/// waits for it then is no silence.
pub const STALL_MS: u64 = 1_500;
/// Events that are kept: some hundred bytes each, and a month of an ordinary cluster.
pub const MAX_EVENTS: usize = 4096;
/// Events in one answer.
pub const MAX_EVENTS_AT_ONCE: usize = 512;
/// How long a copy that is out of reach is waited for before another one is made: longer than a restart of its machine.
pub const REPLACE_AFTER_MS: u64 = 600_000;
/// How often shards are looked through for copies to be replaced or moved.
pub const RESHAPE_EVERY_MS: u64 = 1_000;
/// Shards that get a new epoch each time: writes of each pause for some milliseconds, and a primary fills few at once anyway. 25,600
/// shards are through in under two minutes.
pub const RESHAPES_AT_ONCE: usize = 256;
/// Shards of one volume that may find no place each time, before the rest is left to the next: a search costs some microseconds.
pub const RESHAPES_TRIED: usize = 4096;
/// How often it is looked whether copies should be moved: each look is at all shards.
pub const REBALANCE_EVERY_MS: u64 = 2_000;
/// How long all must have been well before copies are moved for evenness' sake: a restarted node is not a reason, nor a conductor that
/// has not been told yet what is used.
pub const REBALANCE_CALM_MS: u64 = 10_000;
/// Disks whose use differs by more percentage points than this are made even. Less is not worth the copying, and comes and goes.
pub const UNEVEN_PERCENT: u32 = 10;
/// Until they differ by no more than this: well below the former, so that what was evened out is not uneven again tomorrow.
pub const EVEN_PERCENT: u32 = 5;
/// Shards that have a copy on its way at once, for evenness' sake: as many as one reactor fills at a time, so that most of the
/// cluster's bandwidth is left to those who use it.
pub const MOVES_AT_ONCE: usize = 4;
/// How long all must have been well before primaries are handed over for evenness' sake: whoever takes a node down for a moment does
/// not see two changes more.
pub const PRIMARIES_CALM_MS: u64 = 60_000;
/// Between two rounds of that: each new epoch makes its shard's writes pause.
pub const PRIMARIES_EVERY_MS: u64 = 10_000;
/// Shards handed over in one round.
pub const HAND_OVERS_AT_ONCE: usize = 8;
/// Nodes that are primary of so many shards more than others hand some over; a difference of one cannot be mended.
pub const UNEVEN_PRIMARIES: usize = 3;
/// Copies that one node is filling, as remembered from its heartbeat: more do not make `trine status` any clearer.
pub const MAX_FILLINGS_PER_NODE: usize = 1024;

const _: () = assert!(EVEN_PERCENT < UNEVEN_PERCENT && UNEVEN_PRIMARIES > 1);
/// Commits, epochs and ids that a node may speak of: far from 64 bits' end, so that there is always a next one.
pub const MAX_NUMBER: u64 = 1 << 62;
/// How far above its own a conductor takes a commit for one that another one has made, whose state its own is older than: a thousand in each
/// second are so many in 8,900 years. What lies beyond was never given out, and to go on above it would soon leave no next one.
pub const MAX_AHEAD: u64 = 1 << 48;
/// What nodes say of their copies in the first so long of a doubt, they are asked again after it: a Join of an epoch that was given out
/// before may be parked at a copy until its primary gives up, some 7 s, and what sealed primaries were promised ends within that too.
pub const DOUBT_SETTLES_MS: u64 = 10_000;
/// How long after that nothing is adopted: each node that runs has been asked by then, four heartbeats.
pub const DOUBT_ASKS_MS: u64 = NODE_SILENT_MS;
/// How far epochs, commits and snapshot ids go on above those that were heard of when a state is adopted: more than there were of any
/// that nobody has heard of, and for some trillion adoptions.
pub const ADOPTION_LEAP: u64 = 1 << 20;
/// The same for attach generations: more than the milliseconds since 1970 will be until 2109, at which a process begins to count them.
pub const GENERATION_LEAP: u64 = 1 << 42;
/// The same for volumes, of which there are fewer, and whose ids have 32 bits.
pub const ADOPTION_LEAP_VOLUMES: u32 = 1 << 10;
/// Lines of what is missing for an adoption: one for each disk and volume; more do not make the next step any clearer.
pub const MAX_MISSING_SHOWN: usize = 256;

const _: () = assert!(DOUBT_SETTLES_MS > 4 * NODE_SILENT_MS);
const _: () = assert!(MAX_AHEAD <= MAX_NUMBER / 1024 && ADOPTION_LEAP < MAX_AHEAD);
const _: () = assert!(STALL_MS < NODE_SILENT_MS && NODE_FRESH_MS < NODE_SILENT_MS);
const _: () = assert!(MAX_VOLUME.0 / (4 << 30) <= MAX_SHARDS_PER_VOLUME);
const _: () = assert!(
    SNAPSHOT_ATTEMPTS as u64 * SNAPSHOT_PLACE_MS + SNAPSHOT_PAUSE_MS * ((1 << (SNAPSHOT_ATTEMPTS - 1)) - 1) < 30_000
);
const _: () = assert!(MAX_SHARD.0 / (BLOCK as u64) <= u32::MAX as u64);
