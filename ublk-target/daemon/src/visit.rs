//! A volume in the hands of one command: attached, used by one lane of this process, without a front end, and given back.
//!
//! ```text
//!   attach at the conductor ─▶ lane: Reactor { machine ── requests ──▶ VolumeClient } ═ nodes ─▶ … ─▶ detach
//! ```
//! Who only reads attaches the volume as one of its readers; a snapshot is attached by nobody. Who writes is the volume's only client
//! meanwhile.

use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{GIVE_BACK, GIVE_BACK_EVERY, GIVE_BACK_TOLD, NETWORK, SPIN, TLS_NETWORK};
use crate::maps;
use crate::process::spawn;
use crate::setup::{Setup, random};
use crate::subject::Subject;
use conductor_client::Client;
use conductor_model::VolumeId;
use conductor_model::views::{Attach, Detach};
use driver::Machine;
use memory::{Arena, ArenaOptions, Backing, Shares};
use nix::sys::signal::{SigSet, Signal};
use reactor::{Limits, MailRx, OwnRing, Reactor, Uring, spare_cores};
use refcount::LeakReport;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use volume_client::VolumeClient;
use wire::Key;

/// Who uses what.
pub struct Visit {
    /// The volume, or a snapshot to read.
    pub subject: Subject,
    /// The conductor.
    pub conductor: Client,
    /// A key of its own, or the cluster's.
    pub key: Key,
    /// This client's name.
    pub client_name: String,
    /// This machine's name, for people.
    pub host: String,
    /// It is this one, whatever has the name by now.
    pub volume: Option<VolumeId>,
}

/// What a visitor has while the volume is his.
pub(crate) struct Visited {
    pub(crate) setup: Setup,
    pub(crate) tell: Sender<Happening>,
    pub(crate) heard: Receiver<Happening>,
    /// Asks for the newest map, which is then heard of.
    pub(crate) asks: SyncSender<()>,
}

/// Attaches the volume, has it used with so many requests in flight, and gives it back, also after a failure. Signals to end are heard of from
/// now on: to be called once in a process, before it starts threads.
pub(crate) fn visit<T>(
    visit: Visit,
    read_only: bool,
    depth: u16,
    uses: impl FnOnce(Visited) -> Result<T, TargetError>,
) -> Result<T, TargetError> {
    let stops = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    stops.thread_block().map_err(|error| TargetError::system("block signals")(error.into()))?;
    let (tell, heard) = channel();
    let (end, ends) = channel();
    let (signal, told) = (tell.clone(), end.clone());
    spawn("signals", move || {
        while stops.wait().is_ok() {
            // Whoever uses the volume may have done so already; the giving back is not over while this process runs.
            let _used = signal.send(Happening::Signal);
            let _ended = told.send(GiveBack::Signal);
        }
    })?;
    let Visit { subject, conductor, key, client_name, host, volume: expected } = visit;
    let mut _alone = None;
    let (map, attached) = if subject.is_snapshot() {
        (subject.map(&conductor)?, None)
    } else {
        _alone = Some(alone(&conductor, &client_name)?);
        let asked = Attach { client: client_name.clone(), read_only, shared: false, force: false, host, resumes: None };
        let map = conductor.attach(&subject.to_string(), &asked)?;
        let generation = map.attach;
        (map, Some(Detach { client: client_name.clone(), generation }))
    };
    let setup = Setup {
        map,
        name: subject.to_string(),
        client_name,
        process: random(),
        key,
        read_only: read_only || subject.is_snapshot(),
        shared: None,
        io_timeout: None,
        depth: Some(depth),
        transport: volume_client::Transport::Tcp,
        trust: conductor.trust(),
        unflushed: Arc::default(),
        unfenced: Arc::default(),
        pace: None,
    };
    let volume = setup.name.clone();
    let (asks, asked) = sync_channel(1);
    let (client, news) = (conductor.clone(), tell.clone());
    let whose = (setup.map.volume, setup.map.snapshot);
    let maps = spawn("maps", move || maps::run(&client, &subject, whose, &asked, &news));
    let is_other = expected.is_some_and(|expected| expected != whose.0);
    let used = if is_other {
        Err(TargetError::Replaced(volume.clone()))
    } else {
        maps.and_then(|()| uses(Visited { setup, tell, heard, asks }))
    };
    if let Some(detach) = attached {
        let by = detach.client.clone();
        // A conductor that takes another one's place meanwhile is waited for: not where the visit failed.
        let patience = if used.is_ok() { GIVE_BACK } else { Duration::ZERO };
        // However many there were, as a load that is told twice ends without waiting: a conductor that is there can still take it.
        let is_told = ends.try_iter().count() > 0;
        let gives = spawn("give back", move || {
            let _left = end.send(GiveBack::Over(give_back(&conductor, &volume, &detach, patience)));
        });
        if let Err(why) = gives.and_then(|()| given_back(&ends, is_told)) {
            // What was done is done.
            tracing::warn!(%why, "it may stay attached, as {by}: `trine client evict '{by}'` ends that");
        }
    }
    used
}

/// What happens while a volume is given back.
enum GiveBack {
    Signal,
    Over(Result<(), conductor_client::Error>),
}

fn give_back(
    conductor: &Client,
    volume: &str,
    detach: &Detach,
    patience: Duration,
) -> Result<(), conductor_client::Error> {
    let until = Instant::now() + patience;
    loop {
        match conductor.detach(volume, detach) {
            Err(error) if error.is_temporary() && Instant::now() < until => thread::sleep(GIVE_BACK_EVERY),
            given => return given,
        }
    }
}

/// Waits for its end: not for long once it is told to end, or `is_told` before, and not at all when it is told so again.
fn given_back(ends: &Receiver<GiveBack>, is_told: bool) -> Result<(), TargetError> {
    let soon = || Instant::now() + GIVE_BACK_TOLD;
    let mut until = is_told.then(soon);
    loop {
        let heard = match until {
            None => ends.recv().map_err(|_| TargetError::Ended)?,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                ends.recv_timeout(left).map_err(|_| TargetError::Interrupted)?
            }
        };
        match (heard, until) {
            (GiveBack::Over(given), _) => return Ok(given?),
            (GiveBack::Signal, None) => until = Some(soon()),
            (GiveBack::Signal, Some(_)) => return Err(TargetError::Interrupted),
        }
    }
}

/// One at a time on this host: the conductor gives a volume to whoever of a name comes last, which is right for what a killed one left. The
/// kernel lets go of the address when its process ends, however that ends.
fn alone(conductor: &Client, client_name: &str) -> Result<UnixListener, TargetError> {
    try_alone(conductor, client_name)?.ok_or_else(|| TargetError::Runs(client_name.to_owned()))
}

/// Whether a process on this host uses a volume by this name.
pub fn is_visited(conductor: &Client, client_name: &str) -> Result<bool, TargetError> {
    Ok(try_alone(conductor, client_name)?.is_none())
}

/// `None`: another one is.
fn try_alone(conductor: &Client, client_name: &str) -> Result<Option<UnixListener>, TargetError> {
    let cluster = conductor.version()?.cluster;
    let name = BuildHasherDefault::<DefaultHasher>::default().hash_one((cluster.to_string(), client_name));
    let taken = SocketAddr::from_abstract_name(format!("trine-visit-{name:016x}"));
    match taken.and_then(|address| UnixListener::bind_addr(&address)) {
        Ok(alone) => Ok(Some(alone)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(TargetError::system("see whether another one runs")(error)),
    }
}

/// The lane's thread, from its arena to the proof that nothing is left. `bytes`: the longest request's.
pub(crate) fn lane<M: Machine>(
    setup: &Setup,
    (depth, bytes): (u16, usize),
    machine: impl FnOnce(VolumeClient, &Arena) -> Option<M>,
    leaks: impl FnOnce(&M) -> Result<(), LeakReport>,
    rx: MailRx<M::Mail>,
    post: impl FnMut(M::Letter),
) -> Result<(), TargetError> {
    let limits = Limits::default();
    let mut driver = Uring::new(OwnRing::new(&limits)?, limits)?;
    // Twice: a buffer is rounded up to a power of two of pages.
    let bytes = 2 * (usize::from(depth) + 64) * bytes + NETWORK + TLS_NETWORK;
    let arena = Arena::new(ArenaOptions { bytes, backing: Backing::Heap, shares: Shares::only_client() })?;
    if let Some(layer) = setup.tls(None, &arena)? {
        driver.open_tls(layer);
    }
    let client = setup.client(0, depth, &arena)?;
    let machine = machine(client, &arena).ok_or(volume_client::ClientError::NoMemory)?;
    let mut reactor = Reactor::start(machine, driver, rx)?;
    if spare_cores(1) {
        reactor = reactor.spin(SPIN);
    }
    let ended = reactor.run(post)?;
    let found = |report: LeakReport| TargetError::Leaks(report.to_string());
    leaks(&ended.machine).map_err(found)?;
    drop(ended.machine);
    arena.leaks().map_err(found)
}
