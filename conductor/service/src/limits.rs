//! Limits of the service; those of the state are in `conductor_model::limits`.

use std::time::Duration;

/// How long a heartbeat without news is held: a node is heard about twice a second, well inside what counts as alive.
pub(crate) const HOLD: Duration = Duration::from_millis(500);
/// A request, its body included, that takes longer is given up: covers the largest volume's creation many times.
pub(crate) const REQUEST: Duration = Duration::from_secs(30);
/// How long a question for events that have not happened yet is held.
pub(crate) const EVENTS: Duration = Duration::from_secs(5);
/// How long a forced attach waits for the primaries' nodes: ten heartbeats.
pub(crate) const CONFIRM: Duration = Duration::from_secs(5);
/// How often it looks.
pub(crate) const CONFIRM_EVERY: Duration = Duration::from_millis(50);
/// How long requests under way may take to end when the conductor stops.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Body of what people send: a handful of short fields.
pub(crate) const SMALL_BODY: usize = 64 << 10;
/// Body of what nodes send: a registration names every copy with its configuration, about 1 KiB each for 25,600 shards.
pub(crate) const NODE_BODY: usize = 64 << 20;
/// Requests at once: every node's held heartbeat, and targets and people beside them.
pub(crate) const REQUESTS_AT_ONCE: usize = 256 + 256;
/// Connections at once: those of the requests and some idle ones; three quarters of the usual 1024 descriptors.
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
