//! Limits of the service; those of the state are in `conductor_model::limits`.

use std::time::Duration;

/// How long a heartbeat without news is held: a node is heard about twice a second, well inside what counts as alive.
pub(crate) const HOLD: Duration = Duration::from_millis(500);
/// A request that takes longer is given up, and so is one whose body takes longer to arrive: covers the largest volume's creation many times.
pub(crate) const REQUEST: Duration = Duration::from_secs(30);
/// How long the body of what is refused anyway is waited for: little of it, from whoever asked without knowing what to prove for.
pub(crate) const REFUSED: Duration = Duration::from_secs(1);
/// How long a question for events that have not happened yet is held: shorter than a client with several addresses waits for one (5 s).
pub(crate) const EVENTS: Duration = Duration::from_secs(3);
/// How long a forced attach waits for the primaries' nodes: ten heartbeats.
pub(crate) const CONFIRM: Duration = Duration::from_secs(5);
/// How often it looks.
pub(crate) const CONFIRM_EVERY: Duration = Duration::from_millis(50);
/// How often a request for places looks whether the nodes were heard after a start.
pub(crate) const LISTEN_EVERY: Duration = Duration::from_millis(50);
/// Requests at once that wait for longer than an answer takes, for nodes, a snapshot or an event: half of those that there may be with the
/// cluster's key beside nodes', so that the others find room.
pub(crate) const WAITERS: usize = OTHER_REQUESTS / 2;
/// The same of those with clients' keys.
pub(crate) const CLIENT_WAITERS: usize = CLIENT_REQUESTS / 2;
/// How long a challenge is handed out, and serves for as long again: nothing an asker keeps goes stale between two of its heartbeats.
pub(crate) const CHALLENGE: Duration = Duration::from_secs(60);
/// Proofs for one challenge until there is another: some of each of 256 nodes a second. Some 40 bytes are kept of each, 8 MiB in all.
pub(crate) const PROOFS: usize = 1 << 16;
/// How long requests under way may take to end when the conductor stops.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Body of what people send: a handful of short fields.
pub(crate) const SMALL_BODY: usize = 64 << 10;
/// Body of what nodes send: a registration names every copy with its configuration, about 1 KiB each for 25,600 shards.
pub(crate) const NODE_BODY: usize = 64 << 20;
/// Nodes' requests at once: every node's held heartbeat, and what it says beside it. What others ask takes no room from it.
pub(crate) const NODE_REQUESTS: usize = 256 + 256;
/// Those of people, and of targets that have the cluster's key.
pub(crate) const OTHER_REQUESTS: usize = 256;
/// Those of targets with clients' keys.
pub(crate) const CLIENT_REQUESTS: usize = 128;
/// Of these, those with one key: a host's targets ask for a map now and then, which takes milliseconds.
pub(crate) const KEY_REQUESTS: usize = 16;
/// And of those, the ones that wait: a host that takes many volumes over asks for maps of others meanwhile.
pub(crate) const KEY_WAITERS: usize = KEY_REQUESTS / 2;
/// Connections at once: those of the requests of nodes and others, for which those with clients' keys make room; three quarters of the usual
/// 1024 descriptors.
pub(crate) const CONNECTIONS: usize = 768;
/// A connection that moved nothing for so long is closed: longer than any request may take.
pub(crate) const IDLE: Duration = Duration::from_secs(60);
/// Commands waiting for the state's thread; more wait in their connections.
pub(crate) const QUEUE: usize = 1024;
/// Commands that share one durable transaction.
pub(crate) const BATCH: usize = 256;
/// The model hears the time no more often than this, and no less often than that: deadlines are a quarter of a second at least, and a
/// node that comes back is given what is left within a second.
pub(crate) const TICK_LEAST: Duration = Duration::from_millis(20);
pub(crate) const TICK_MOST: Duration = Duration::from_secs(1);
/// Threads for HTTP: the control plane must not take the machine from the data path.
pub(crate) const WORKERS: usize = 2;

/// How long a leader's key outlives its leader. Nodes go without a conductor for so long and as long again before anybody is judged; etcd's
/// least is 1.5 times its own election's time, 2 s as it comes.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// A leader takes its lease for over this long before etcd does: for what their clocks differ in 3 s, and for an answer on its way.
pub(crate) const LEASE_MARGIN: Duration = Duration::from_millis(500);
/// How often a lease is kept: a call may be lost.
pub(crate) const KEEP_EVERY: Duration = Duration::from_millis(800);
/// How long keeping it may take.
pub(crate) const KEEP_CALL: Duration = Duration::from_millis(1000);
/// How often a follower looks whether somebody leads: a fraction of the lease.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Any other operation of etcd's; one that takes longer ends the reign.
pub(crate) const ETCD_CALL: Duration = Duration::from_secs(2);
/// Connecting to one member of etcd.
pub(crate) const ETCD_CONNECT: Duration = Duration::from_secs(1);
/// A connection that nothing came from for so long, while something is asked, is asked for a sign of life. etcd ends one that is asked
/// more often than every 5 s, three times without an answer of its own between: an operation's end comes first.
pub(crate) const ETCD_PING_EVERY: Duration = Duration::from_secs(1);
/// Without that sign it is given up.
pub(crate) const ETCD_PING: Duration = Duration::from_secs(2);
/// Keys that are read at once before it is known how large they are. Each may be as large as one can be: what was decided has parts of
/// `TXN_BYTES`.
pub(crate) const ETCD_PAGE: usize = 60;
/// How many times as many are read with the next question, at most: those that follow may be larger.
pub(crate) const ETCD_PAGE_GROWTH: usize = 4;
/// How large the answer is to be then: some 8,000 shards, which a network of 100 Mbit/s takes in half of `ETCD_CALL`.
pub(crate) const ETCD_PAGE_BYTES: usize = 8 << 20;
/// Largest answer of etcd's.
pub(crate) const ETCD_ANSWER: usize = 64 << 20;
/// What a page's key costs beside its value, at most.
const KEY_BYTES: usize = 4 << 10;
/// Changes in one transaction of etcd's, which takes 128 operations unless it is told otherwise.
pub(crate) const TXN_CHANGES: usize = 100;
/// Bytes in one, of the 1.5 MiB that etcd takes; so much a record may have, too. The largest is a scrub's or a copy's, below 700 KiB.
pub(crate) const TXN_BYTES: usize = 1 << 20;
/// What a change costs beside its key and value: the prefix, and the protocol's own.
pub(crate) const CHANGE_BYTES: usize = 128;
/// Transactions of etcd's under way at once: it makes them durable together.
pub(crate) const TXNS_AT_ONCE: usize = 16;

/// Whoever waits for a snapshot hears why there is none, although all that are waited for fail at once.
const _: () = assert!(WAITERS <= conductor_model::limits::MAX_OUTCOMES);
const _: () = assert!(LEASE.as_millis() > LEASE_MARGIN.as_millis() + KEEP_EVERY.as_millis() + KEEP_CALL.as_millis());
const _: () = assert!(ETCD_PAGE * (TXN_BYTES + KEY_BYTES) < ETCD_ANSWER);
const _: () = assert!(ETCD_PAGE_BYTES * ETCD_PAGE_GROWTH < ETCD_ANSWER && TXN_BYTES < ETCD_PAGE_BYTES);
