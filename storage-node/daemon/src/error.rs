//! Why a node does not run (any more): one sentence each, with the way out.

use crate::limits::{MAX_DISKS_PER_REACTOR, MIN_MEMORY, MIN_METADATA_CACHE};
use conductor_model::limits::MAX_ADDRESSES;
use conductor_model::{ClusterId, DiskId, ShardId, TransportAddress};
use node_store::OpenError;
use node_store::journaled::{MIN_DISK_BYTES, MIN_JOURNAL_BYTES};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// See the module's head.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to store on.
    #[error("a node needs at least one disk")]
    NoDisk,
    /// Every reactor is a thread with memory of its own.
    #[error(
        "the node has as many reactors as it can: start it again with all its disks named, and they share reactors"
    )]
    TooManyReactors,
    /// A reactor holds one copy of a shard.
    #[error(
        "disk {path} holds a second copy of {shard}, on the way from another disk of its reactor: give it a reactor of its own (--reactors)"
    )]
    TwoCopies {
        /// The disk.
        path: PathBuf,
        /// The shard.
        shard: ShardId,
    },
    /// The node that was asked said why.
    #[error("no disk was added: {0}")]
    NotAdded(String),
    /// A reactor without a disk has nothing to do.
    #[error("{reactors} reactors for {disks} disks: use 1 to as many as there are disks")]
    Reactors {
        /// Asked for.
        reactors: usize,
        /// There are.
        disks: usize,
    },
    /// A handshake cannot name more.
    #[error("{disks} disks on {reactors} reactors are more than {MAX_DISKS_PER_REACTOR} on one: use more reactors")]
    TooManyDisks {
        /// There are.
        disks: usize,
        /// Asked for.
        reactors: usize,
    },
    /// Too little to work with.
    #[error("{bytes} bytes of memory for {reactors} reactors are too few: each needs {MIN_MEMORY}")]
    Memory {
        /// Asked for.
        bytes: u64,
        /// Asked for.
        reactors: usize,
    },
    /// Anybody on the way could read and change what passes.
    #[error(
        "{0} is reachable from other machines and nothing is encrypted: ask for TLS, or allow it with the plaintext option"
    )]
    Plaintext(SocketAddr),
    /// There is no certificate.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// RDMA goes past TLS.
    #[error("{0}: nothing is encrypted over RDMA: listen over TCP alone, or have a cluster without TLS")]
    RdmaInClear(SocketAddr),
    /// Others cannot connect to "any address".
    #[error("{0} is no address that others could connect to: say which one (--advertise)")]
    Unspecified(SocketAddr),
    /// More addresses than others try.
    #[error("a node listens at {} addresses at most", MAX_ADDRESSES + 1)]
    Addresses,
    /// One is given twice.
    #[error("reactors would listen at the same place: {0} and {1}; each listens on the port after the last one's")]
    AddressTwice(TransportAddress, TransportAddress),
    /// A further address is none.
    #[error("{0}: a further address is one that others use: write it out")]
    UnspecifiedMore(SocketAddr),
    /// The ports after the first one do not exist.
    #[error("there are not enough ports from {0} on for all reactors: use a lower one")]
    Ports(SocketAddr),
    /// Same path twice.
    #[error("{0} is named twice: each store and each journal needs a disk or file of its own")]
    Twice(PathBuf),
    /// One of its own.
    #[error("{path} is disk {disk} of this node already, and in use")]
    Had {
        /// What was named.
        path: PathBuf,
        /// The store's name.
        disk: DiskId,
    },
    /// A store that the node has already, elsewhere.
    #[error(
        "{path} holds disk {disk}, which this node has at {open}: one is a copy of the other, and only one can be in use"
    )]
    Copy {
        /// What was named.
        path: PathBuf,
        /// The store's name.
        disk: DiskId,
        /// Where the other is.
        open: String,
    },
    /// Nothing there, and nothing to be made.
    #[error("disk {0} does not exist: name an existing file or device, or say how large a file to make (--create)")]
    Missing(PathBuf),
    /// No journal there, and nothing that says how large one would be.
    #[error("journal {0} does not exist: name an existing file or device, or say how large a disk to make for it")]
    NoJournal(PathBuf),
    /// The store's journal is elsewhere.
    #[error(
        "the store on disk {disk} keeps its journal elsewhere: name the journal that it was formatted with, as --disk {disk},journal=PATH"
    )]
    JournalMissing {
        /// The store's.
        disk: PathBuf,
    },
    /// The store's journal is on the store's own disk.
    #[error(
        "the store on disk {disk} keeps its journal on that disk: leave out journal {journal}, of which it knows nothing"
    )]
    JournalUnused {
        /// The store's.
        disk: PathBuf,
        /// What was named.
        journal: PathBuf,
    },
    /// What was acknowledged last is not there.
    #[error(
        "journal {journal} is nobody's, and the store on disk {disk} has one: name that one, without which its last writes would be lost"
    )]
    JournalEmpty {
        /// The store's.
        disk: PathBuf,
        /// What was named.
        journal: PathBuf,
    },
    /// Another store's.
    #[error("journal {journal} belongs to store {other}, the one on disk {disk} is {store}: name its own journal")]
    JournalOfOther {
        /// The store's.
        disk: PathBuf,
        /// What was named.
        journal: PathBuf,
        /// The store's name.
        store: DiskId,
        /// The one that the journal is of.
        other: DiskId,
    },
    /// It would be taken from its store.
    #[error(
        "journal {journal} belongs to store {store}: name another one, or, if that store is gone for good, say so with the force option"
    )]
    JournalTaken {
        /// What was named.
        journal: PathBuf,
        /// Whose it is.
        store: DiskId,
    },
    /// It became shorter, or never was one.
    #[error("journal {journal} has room for {bytes} bytes, its store's takes {need}")]
    JournalShort {
        /// Which.
        journal: PathBuf,
        /// What there is.
        bytes: u64,
        /// What there must be.
        need: u64,
    },
    /// Not even the largest request would fit.
    #[error("journal {journal} has room for {bytes} bytes: make it 16 MiB or more")]
    JournalTooSmall {
        /// Which.
        journal: PathBuf,
        /// What there is.
        bytes: u64,
    },
    /// There is none so large, or so small.
    #[error(
        "a journal of {said} bytes is not possible for disk {path}: choose {MIN_JOURNAL_BYTES} to {most}, half the disk at most"
    )]
    JournalSize {
        /// The disk.
        path: PathBuf,
        /// What was said.
        said: u64,
        /// What it can be at most.
        most: u64,
    },
    /// Its first blocks cannot be written.
    #[error("cannot label journal {path}: {source}")]
    Label {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Too little for a disk's metadata.
    #[error("{0} bytes of cache for each disk's metadata are too few: at least {MIN_METADATA_CACHE}")]
    Cache(u64),
    /// The file could not be made.
    #[error("cannot make disk {path} of {bytes} bytes: {source}")]
    Create {
        /// Where.
        path: PathBuf,
        /// How large.
        bytes: u64,
        /// The system's word.
        source: io::Error,
    },
    /// Metadata would be out of proportion.
    #[error("disk {path} has {bytes} bytes, a store needs at least {MIN_DISK_BYTES}")]
    TooSmall {
        /// Which.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Somebody's data may be on it.
    #[error(
        "disk {path} carries {mark}: name another disk, or, if nobody needs what is on it, say so with the force option"
    )]
    Marked {
        /// Which.
        path: PathBuf,
        /// What was recognized.
        mark: &'static str,
    },
    /// The kernel itself uses it; forcing does not help.
    #[error("disk {path} is in use: {by}. Name another disk, or end that first")]
    Used {
        /// Which.
        path: PathBuf,
        /// By whom.
        by: String,
    },
    /// Whose node would it be?
    #[error(
        "disk {path} belongs to cluster {cluster}, disk {other} to cluster {of}: name the disks of one cluster only"
    )]
    TwoClusters {
        /// One disk.
        path: PathBuf,
        /// Its cluster.
        cluster: ClusterId,
        /// Another disk.
        other: PathBuf,
        /// Its cluster.
        of: ClusterId,
    },
    /// Told to stop while a disk was made.
    #[error("the node is stopping")]
    Stopping,
    /// Its first or last blocks cannot be read, or it hangs.
    #[error("cannot read disk {path}: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The store on it cannot be used.
    #[error("disk {path}: {source}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// The reactor's own.
    #[error(transparent)]
    Reactor(#[from] reactor::ReactorError),
    /// The memory's own.
    #[error(transparent)]
    Arena(#[from] memory::ArenaError),
    /// Asked for huge pages that are not reserved.
    #[error(transparent)]
    HugePages(#[from] memory::TooFewHugePages),
    /// The conductor refuses this node, or is none.
    #[error(transparent)]
    Conductor(#[from] conductor_client::Error),
    /// No random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    /// The system refuses something that every process can have.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's word.
        source: io::Error,
    },
    /// The control socket.
    #[error("cannot listen on control socket {path}: {source}")]
    Control {
        /// Where.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Nobody there, or nobody who answers.
    #[error("no answer on control socket {path}: {source}")]
    NoLook {
        /// Where.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A reactor thread is gone though nobody told it to stop.
    #[error("reactor {0} ended by itself")]
    Ended(u16),
    /// Told to stop, a reactor did not.
    #[error("a reactor did not stop in time")]
    NotStopped,
    /// What was taken and not given back.
    #[error("stopped, but reactor {lane} has leaked: {report}")]
    Leaked {
        /// Which.
        lane: u16,
        /// What, and held by whom.
        report: String,
    },
}
