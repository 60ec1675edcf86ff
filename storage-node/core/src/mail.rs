//! What passes between a node's reactor and the rest of its process: the control thread that talks to the conductor, and whoever
//! asks for a look inside.

use crate::iocb::Stages;
use conductor_model::api::{
    CopyWork, Filling, KeyList, MembershipAnswer, MembershipRequest, Order, OrderReport, Reachable, ReaderList, Trouble,
};
use conductor_model::{
    AttachGeneration, BlockRange, Blocks, Bytes, Configuration, CopyId, DiskId, Epoch, OpenId, ShardId, ShardIndex,
    SnapshotId, VolumeId,
};
use driver::{Address, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tcp::{Detour, WayView};

/// To the reactor.
#[derive(Debug)]
pub enum Mail {
    /// Configurations of shards whose primary is on this reactor.
    Assign(Vec<Configuration>),
    /// The conductor's answer to a `Letter::Ask`.
    Membership(ShardId, MembershipAnswer),
    /// The conductor has answered a heartbeat that was sent then: until the detection time after it, it lets nobody take over (rule 11).
    Heard(Time),
    /// How many bytes per second may be read here to fill copies, if there is a limit but the own one; 0 is a pause.
    FillRate(Option<Bytes>),
    /// Copies that are not to be filled, by somebody's word: all of them, each time.
    AbortedFillings(Vec<CopyId>),
    /// Where reactors listen that do so at several addresses: all of them, each time; without those that this node cannot use.
    Reachable(Vec<Reachable>),
    /// The oldest attach generations that may be served.
    Generations(Vec<(VolumeId, AttachGeneration)>),
    /// Who reads the volumes that are shared.
    Readers(Vec<ReaderList>),
    /// Which keys of clients there are.
    Keys(KeyList),
    /// Delete these copies for good.
    Delete(Vec<CopyId>),
    /// All orders that are open for shards of this node, each time: one that is missing is over.
    Orders(Vec<Order>),
    /// All work that is open for copies of this node, each time.
    Work(Vec<CopyWork>),
    /// Answer with a `Letter::View` that carries the same number.
    Look(u64),
    /// Finish what was admitted, close everything and end.
    Stop,
}

/// From the reactor.
#[derive(Debug)]
pub enum Letter {
    /// For the conductor; asked again until its answer comes.
    Ask(MembershipRequest),
    /// This copy is deleted for good.
    Deleted(CopyId),
    /// How an order stands. Said again with each `Mail::Orders` that still names it.
    Report(OrderReport),
    /// This work is done, or its copy is not here. Said again with each `Mail::Work` that still names it.
    Worked(CopyWork),
    /// The shards that do not serve now; sent when that changed.
    Troubles(Vec<Trouble>),
    /// How far this reactor's primaries are with filling copies; all of them, each time.
    Fillings(Vec<Filling>),
    /// A disk's blocks in use changed noticeably.
    Usage(DiskId, Bytes),
    /// The answer to `Mail::Look`.
    View(u64, Box<View>),
    /// The reactor cannot go on serving this disk; one sentence.
    DiskFailed(DiskId, String),
    /// The best way to another reactor does not lead there, and another one does. Once until the best one has led there again.
    Detour(Detour),
    /// Blocks that did not read as they were written, and what became of them; one sentence for the log, at most one a second.
    Damage(String),
}

/// A look inside one reactor.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct View {
    /// Its disks.
    pub disks: Vec<DiskView>,
    /// Its copies.
    pub copies: Vec<CopyView>,
    /// Its sessions.
    pub sessions: Vec<SessionView>,
    /// Its connections to the reactors that hold the other copies.
    pub links: Vec<LinkView>,
    /// Live objects and the holds that keep them, one line each (`conn 17: 1 owner + 66 rx`).
    pub refs: Vec<String>,
    /// Counters by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// The stages of requests that finished lately, oldest first.
    pub traces: Vec<Stages>,
}

/// A connection to another reactor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Where.
    pub endpoint: SocketAddr,
    /// Established.
    pub up: bool,
    /// What its connection goes over.
    pub over: Option<Address>,
    /// The ways there, if there are several.
    pub ways: Vec<WayView>,
}

/// One disk.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskView {
    /// Its name.
    pub disk: DiskId,
    /// This opening.
    pub open: OpenId,
    /// Its size for data.
    pub capacity: Bytes,
    /// In use.
    pub used: Bytes,
    /// Blocks that did not read as they were written, since the process started.
    pub damaged: u64,
    /// Of these, put right from another copy.
    pub repaired: u64,
}

/// One copy.
#[derive(Clone, PartialEq, Debug)]
pub struct CopyView {
    /// Of which shard.
    pub shard: ShardId,
    /// Its name.
    pub copy: CopyId,
    /// The epoch that it has joined.
    pub epoch: Epoch,
    /// The newest configuration that it keeps: what a registration reports (rule 12).
    pub config: Configuration,
    /// `primary: serving`, `replica`, …
    pub role: String,
    /// Its size.
    pub blocks: Blocks,
    /// What it and its snapshots hold by themselves.
    pub used: Blocks,
    /// Requests that hold or wait for locks.
    pub requests: usize,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<SnapshotId>,
}

/// A range that a session holds, or waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeView {
    /// The shard.
    pub shard: ShardIndex,
    /// Its blocks.
    pub range: BlockRange,
    /// For writing.
    pub write: bool,
    /// It is held.
    pub held: bool,
}

/// One client session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionView {
    /// Its number on this reactor.
    pub id: u32,
    /// The client's name.
    pub client: String,
    /// What it has attached.
    pub volume: VolumeId,
    /// Its attach generation.
    pub generation: AttachGeneration,
    /// The snapshot that it reads, if not the live volume.
    pub snapshot: Option<SnapshotId>,
    /// It writes nothing.
    pub read_only: bool,
    /// It writes only in ranges that it holds.
    pub shared: bool,
    /// The key that it has proved to have, by its number; the oldest, if its connections have proved several. `None` is the cluster's.
    pub key: Option<u64>,
    /// These, and those that it waits for; some of them, if there are many.
    pub ranges: Vec<RangeView>,
    /// Its connections.
    pub lanes: usize,
    /// Its requests that are not answered yet.
    pub requests: usize,
}
