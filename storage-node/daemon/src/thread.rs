//! A reactor thread: ring, disks, memory, stores, listener, node; then turn after turn until told to stop.

use crate::claim::{claim, claim_journal};
use crate::desk::{Desk, Lane};
use crate::disks::{absolute, is_blank};
use crate::life::Life;
use crate::limits::{DISK_IN_USE, SPIN};
use crate::opening::{Journal, Opener, Task};
use crate::{DiskPlan, Error, NodeOptions, journal, secure};
use conductor_model::api::DiskReport;
use conductor_model::{Bytes, ClusterId, DiskId, OpenId, ShardId};
use driver::{Address, DiskIndex, ListenerId, Time};
use memory::{Arena, ArenaOptions, Backing, Shares};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use node_core::{Letter, Mail, Node};
use node_store::Store;
use node_store::journaled::JournaledStore;
use reactor::{DiskOptions, Limits, MailRx, Mapped, OwnRing, Reactor, Uring};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use tcp::{Net, NetOptions};
use wire::ClusterKey;

/// What a reactor thread is made of.
pub(crate) struct Plan<'a> {
    pub(crate) options: &'a NodeOptions,
    /// Its disks.
    pub(crate) disks: &'a [DiskPlan],
    pub(crate) lane: Lane,
    pub(crate) cluster: ClusterId,
    /// Drawn at random for this life of the process.
    pub(crate) process: u64,
}

/// A reactor whose disks are open and which listens.
pub(crate) struct Opened {
    reactor: Reactor<Life, OwnRing>,
    arena: Arena,
    lane: Lane,
    pub(crate) endpoint: SocketAddr,
    pub(crate) disks: Vec<DiskReport>,
}

/// Opens everything; takes as long as the stores take to recover.
pub(crate) fn open(plan: &Plan<'_>, mail: MailRx<Mail>) -> Result<Opened, Error> {
    let options = plan.options;
    pin(options, plan.lane)?;
    let limits = Limits::default();
    let mut uring = Uring::new(OwnRing::new(&limits)?, limits)?;
    let arena = arena(options, plan.lane)?;
    let mut tasks = Vec::new();
    for disk in plan.disks {
        let buffered = DiskOptions { allow_buffered: options.allow_buffered };
        let index = claim(&mut uring, &disk.path, buffered, DISK_IN_USE)?;
        let bytes = uring.disk_info(index).map_or(0, |info| info.bytes);
        let journal = disk.journal.as_deref().map(|path| open_journal(&mut uring, path)).transpose()?;
        journal::check(&disk.path, journal.as_ref().map(Journal::place))?;
        let may_format = options.format || (disk.create.is_some() && is_blank(&disk.path));
        tasks.push(Task {
            path: disk.path.clone(),
            index,
            bytes,
            cluster: plan.cluster.0,
            node: options.node,
            format_as: if may_format { Some(DiskId(random()?)) } else { None },
            force: options.force,
            journal,
            journal_size: disk.journal_size,
            cache: Bytes(options.metadata_cache),
            flying: 0,
            attempts: 0,
            unwritten: false,
            heard: Time::default(),
            beside: false,
        });
    }
    // A life before this one may have given promises as long as it had the disks.
    let claimed = reactor::clock::now();
    let journals = tasks.iter().filter_map(|task| Some((task.journal.as_ref()?.index, task.index))).collect();
    let mut reactor = Reactor::start(Life::Opening(Opener::new(arena.clone(), tasks)), uring, mail)?;
    if reactor::spare_cores(options.reactors) {
        reactor = reactor.spin(SPIN);
    }
    let stores = loop {
        if let Some(opened) = reactor.machine().opened() {
            break opened?;
        }
        reactor.turn()?;
    };
    serve(plan, claimed, reactor, arena, stores, journals)
}

fn open_journal(uring: &mut Uring<OwnRing>, path: &Path) -> Result<Journal, Error> {
    let index = claim_journal(uring, path, DISK_IN_USE)?;
    let info = uring.disk_info(index);
    let how = match info.and_then(|info| info.mapped) {
        None => "a device: durable writes",
        Some(Mapped::Cached) => "mapped in the page cache: stores, and a sync of the file",
        Some(Mapped::Persistent) => "mapped persistent memory: stores alone",
    };
    tracing::info!(path = %path.display(), how, "a journal");
    Ok(Journal { path: path.to_path_buf(), index, bytes: info.map_or(0, |info| info.bytes) })
}

fn serve(
    plan: &Plan<'_>,
    claimed: Time,
    mut reactor: Reactor<Life, OwnRing>,
    arena: Arena,
    stores: Vec<(DiskIndex, JournaledStore)>,
    journals: Vec<(DiskIndex, DiskIndex)>,
) -> Result<Opened, Error> {
    let options = plan.options;
    apart(plan.disks, &stores)?;
    let (listener, actual) = listen(plan, reactor.driver(), Address::Tcp, options.listen_of(plan.lane))?;
    let (endpoint, mut addresses) = options.names(actual);
    let mut listeners = vec![listener];
    if options.tls {
        reactor.driver().open_tls(secure::layer(options, &arena)?);
    }
    if options.is_rdma() {
        reactor.driver().open_rdma(&arena)?;
    }
    for address in options.more_of(plan.lane) {
        let over = if address.is_rdma() { Address::Rdma } else { Address::Tcp };
        let (listener, actual) = listen(plan, reactor.driver(), over, address.at())?;
        listeners.push(listener);
        addresses.push(address.on(actual));
    }
    let mut disks = Vec::with_capacity(stores.len());
    let mut reports = Vec::with_capacity(stores.len());
    // In the order of the plans.
    for (disk_plan, (index, store)) in plan.disks.iter().zip(stores) {
        let (disk, open) = (store.disk_id(), OpenId(random()?));
        let usage = store.usage();
        reports.push(DiskReport {
            disk,
            open,
            endpoint,
            addresses: addresses.clone(),
            capacity: usage.capacity.bytes(),
            used: usage.used.bytes(),
            max_copies: usage.max_copies,
            copies: store.copies(),
            path: absolute(&disk_plan.path),
        });
        disks.push(node_core::Disk { disk, open, index, store });
    }
    let node = node_core::NodeOptions { node: options.node, process: plan.process, lane: plan.lane };
    let name = Node::<JournaledStore>::hello_info(&node, &disks);
    let mut net = NetOptions::new(name, Rc::new(ClusterKey(options.key)), nonces()?);
    net.depth = options.depth;
    if options.tls {
        net.accept_every = tcp::ACCEPT_EVERY_TLS;
    }
    let net = Net::new(net, arena.clone());
    let node = Node::new(node, arena.clone(), net, disks, listeners, claimed);
    reactor.machine().become_node(node, journals);
    Ok(Opened { reactor, arena, lane: plan.lane, endpoint, disks: reports })
}

/// Listens at one of its addresses, and says at which.
fn listen(
    plan: &Plan<'_>,
    driver: &mut Uring<OwnRing>,
    over: fn(SocketAddr) -> Address,
    at: SocketAddr,
) -> Result<(ListenerId, SocketAddr), Error> {
    let (listener, address) = match driver.listen(&over(at)) {
        // The port after the last one that was asked for may be anybody's.
        Err(_) if usize::from(plan.lane) >= plan.options.reactors => {
            driver.listen(&over(SocketAddr::new(at.ip(), 0)))?
        }
        listened => listened?,
    };
    match address {
        Address::Tcp(actual) | Address::Rdma(actual) => Ok((listener, actual)),
        Address::Unix(_) => unreachable!("a node does not listen on paths"),
    }
}

/// A reactor holds one copy of a shard: two that are on their way from one of its disks to the other need two reactors.
fn apart(plans: &[DiskPlan], stores: &[(DiskIndex, JournaledStore)]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for (plan, (_, store)) in plans.iter().zip(stores) {
        let here: BTreeSet<ShardId> = store.copies().iter().map(|(_, config)| config.shard).collect();
        if let Some(shard) = here.iter().find(|shard| seen.contains(*shard)) {
            return Err(Error::TwoCopies { path: plan.path.clone(), shard: *shard });
        }
        seen.extend(here);
    }
    Ok(())
}

impl Opened {
    /// Turn after turn until it was told to stop and has everything back.
    pub(crate) fn run(self, desk: &Desk) -> Result<(), Error> {
        let Self { reactor, arena, lane, .. } = self;
        let ended = reactor.run(|letter: Letter| desk.post(lane, letter))?;
        // The handles to its mailbox are the control threads', which end after it: their report says nothing here.
        let leaked = |report: String| Err(Error::Leaked { lane, report });
        if ended.streams_left_open > 0 {
            return leaked(format!("{} streams left open", ended.streams_left_open));
        }
        drop(ended);
        arena.leaks().or_else(|report| leaked(report.to_string()))
    }
}

fn arena(options: &NodeOptions, lane: Lane) -> Result<Arena, Error> {
    let bytes = options.memory_of_each();
    if let Some(files) = options.memory_files_of(lane) {
        return Ok(Arena::on_files(bytes, Shares::even(bytes), &files)?);
    }
    let backing = if options.huge_pages { Backing::HugePages } else { Backing::Heap };
    let arena = ArenaOptions { bytes, backing, shares: Shares::even(bytes) };
    Ok(Arena::placed(arena, options.placement_of(lane))?)
}

fn pin(options: &NodeOptions, lane: Lane) -> Result<(), Error> {
    let Some(cpu) = options.cpu_of(lane) else { return Ok(()) };
    let mut set = CpuSet::new();
    let pinned = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    pinned.map_err(|errno| Error::System { what: "pin a reactor to its processor", source: errno.into() })
}

/// Random and never 0, which everywhere means "none".
pub(crate) fn random() -> Result<u64, Error> {
    getrandom::u64().map(|drawn| drawn.max(1)).map_err(Error::Random)
}

/// Nonces: the system's random numbers. The source was tried once; should it fail later, no handshake may go on with a guess.
fn nonces() -> Result<Box<dyn FnMut() -> u64>, Error> {
    random()?;
    Ok(Box::new(|| match getrandom::u64() {
        Ok(drawn) => drawn,
        Err(why) => panic!("the system gives no random numbers any more: {why}"),
    }))
}
