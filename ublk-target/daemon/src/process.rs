//! The life of a target: attach, serve, detach.
//!
//! ```text
//!   lock ─▶ signals, control socket ─▶ NBD's address ─▶ attach at the conductor ─▶ device or lane ─▶ record ─▶ ready ─▶ …
//!   … ─▶ detach ─▶ record removed
//! ```
//!
//! It can be told to end at every step, and does so as soon as the step is over: a call of the conductor (10 s), the end of a
//! device's former daemon (30 s), an address that somebody else listens on (2 s), anything else within milliseconds. A failure on the way up, and
//! being told to end there, takes back what was done. That does not give a volume back to whom it was taken from by force: what others may be in
//! the way of comes first. A failure on the way down leaves the record, so that it is not forgotten.

use crate::attend::{Attending, End, Front, Over, stopped};
use crate::control;
use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::GIVE_UP;
use crate::maps;
use crate::nbd::{Listening, Mail, NbdLane};
use crate::record::{Holder, Lock, Place, Record};
use crate::setup::{NbdTls, Setup, Shared, random, span};
use crate::subject::{Subject, check_same, is_ended};
use crate::ublk::{self, UblkMade, UblkShape};
use conductor_client::Client;
use conductor_model::ClusterId;
use conductor_model::api::VolumeMap;
use conductor_model::views::{Attach, Detach};
use driver::Address;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use ublk_device::Owner;
use volume_client::{Limits, Pace, Transport};
use wire::Key;

/// How a target presents its volume.
#[derive(Clone, Debug)]
pub enum FrontEnd {
    /// A block device: `/dev/ublkbN`.
    Ublk {
        /// Threads that serve it.
        queues: u16,
    },
    /// An NBD server.
    Nbd {
        /// Where it listens; port 0 is the system's choice.
        listen: Address,
        /// It may listen beyond loopback although clients may speak in clear or are not known: everybody there can read and write the
        /// volume.
        plaintext: bool,
        /// Whether clients may, or have to, speak TLS.
        tls: NbdTls,
    },
}

/// What a target is made with.
pub struct Options {
    /// What is attached.
    pub subject: Subject,
    /// The conductor.
    pub conductor: Client,
    /// A key of its own, or the cluster's.
    pub key: Key,
    /// This client's name.
    pub client_name: String,
    /// This machine's name, for people; empty if it has none.
    pub host: String,
    /// The directory of attachments' records.
    pub dir: PathBuf,
    /// How the volume is presented.
    pub front_end: FrontEnd,
    /// Refuse what would change the volume.
    pub read_only: bool,
    /// Share the volume with others that write only what they hold; over NBD alone.
    pub shared: Option<Shared>,
    /// Take the volume from whoever has it.
    pub force: bool,
    /// Fail a request that has not been answered for so long.
    pub io_timeout: Option<Duration>,
    /// What is asked of the nodes at most.
    pub limits: Limits,
    /// Requests in flight.
    pub depth: Option<u16>,
    /// What connections to nodes go over.
    pub transport: Transport,
}

/// Attaches the volume, says so to `ready`, and serves it until SIGTERM, SIGINT or a detach. To be called once in a process, before
/// it starts threads. A device that is in use is left to the next target by a signal, and stays by a detach.
pub fn run(options: Options, ready: impl FnOnce(&Record)) -> Result<(), TargetError> {
    match &options.front_end {
        FrontEnd::Nbd { listen: Address::Tcp(at), plaintext: false, tls }
            if !at.ip().is_loopback() && !matches!(tls, NbdTls::Required { any_client: false, .. }) =>
        {
            return Err(TargetError::Plaintext(*at));
        }
        FrontEnd::Nbd { .. } => {}
        FrontEnd::Ublk { .. } => ublk::prepare_process(&options.dir)?,
    }
    if options.transport == Transport::Rdma && options.conductor.trust().is_some() {
        return Err(TargetError::RdmaInClear);
    }
    // Each queue has a connection to each node that it asks.
    reactor::raise_open_files();
    // Sockets and records are for their owner alone.
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    // Before any thread: all of them inherit the mask, and only the one that waits for signals gets them.
    let stops = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    stops.thread_block().map_err(|error| TargetError::system("block signals")(error.into()))?;

    let place = Place::new(&options.dir, &options.subject.to_string());
    let lock = claim(&place)?;
    let ended = hold(options, &place, stops, ready);
    let closed = place.close();
    drop(lock);
    ended.and(closed)
}

/// The target's life, with the lock held.
fn hold(options: Options, place: &Place, stops: SigSet, ready: impl FnOnce(&Record)) -> Result<(), TargetError> {
    let (tell, heard) = channel();
    listen(place, stops, &tell)?;
    let former = former(place, &options)?;
    let prepared = prepare(&options, former, &heard)?;
    let former = &prepared.former;
    let Options { subject, conductor, read_only, shared, force, .. } = &options;
    if subject.is_snapshot() {
        // The conductor knows nothing of it, and hears nothing of its end.
        let map = subject.map(conductor)?;
        let End { over, result } = serve(options, prepared, map, place, (tell, heard), ready);
        if over == Over::Detached {
            place.remove_record()?;
        }
        return result;
    }
    let client = former.client.clone();
    let asked = Attach {
        client: client.clone(),
        read_only: *read_only,
        shared: shared.is_some(),
        force: *force,
        host: options.host.clone(),
        resumes: former.goes_on(*force, &options.front_end).map(|record| record.generation),
    };
    let volume = subject.to_string();
    let mut map = conductor.attach(&volume, &asked)?;
    if former.recover.is_none() && matches!(options.front_end, FrontEnd::Ublk { .. }) {
        // Nobody above is left who wrote before: a loss until now is told to nobody (rule 18). An export's clients may be on other hosts, and
        // outlive this one.
        map.held_since = map.shards.iter().map(|shard| shard.cache).max().unwrap_or_default().max(map.held_since);
    }
    let detach = Detach { client, generation: map.attach };
    let conductor = conductor.clone();

    let End { over, result } = serve(options, prepared, map, place, (tell, heard), ready);
    if over == Over::Left {
        return result;
    }
    // Also after a failure: no request of ours is answered any more, so nobody needs the volume from us.
    let detached = match conductor.detach(&volume, &detach) {
        Err(error) if is_ended(&error) => Ok(()),
        other => other.map_err(TargetError::from),
    };
    if detached.is_ok() {
        place.remove_record()?;
    }
    result.and(detached)
}

/// From here on the target hears who wants it to end.
fn listen(place: &Place, stops: SigSet, tell: &Sender<Happening>) -> Result<(), TargetError> {
    let socket = place.socket();
    // We hold the lock: whose socket this was is dead.
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(TargetError::file("listen on", &socket))?;
    let (control, signal) = (tell.clone(), tell.clone());
    spawn("control", move || control::serve(&listener, &control))?;
    spawn("signals", move || signals(&stops, &signal))
}

/// True if somebody did, so far. Others are told to ask again.
fn told_to_end(volume: &str, left: bool, heard: &Receiver<Happening>) -> Result<(), TargetError> {
    let mut told = false;
    for happening in heard.try_iter() {
        match happening {
            Happening::Signal => told = true,
            Happening::Stop { answer, .. } => {
                told = true;
                let _gone = answer.send(None);
            }
            Happening::Look(answer) => drop(answer.send(None)),
            _ => {}
        }
    }
    if told { Err(stopped(volume, left)) } else { Ok(()) }
}

fn claim(place: &Place) -> Result<Lock, TargetError> {
    if let Some(lock) = place.lock()? {
        return Ok(lock);
    }
    Err(match place.read()? {
        Some(record) => TargetError::Attached(Box::new(record)),
        None => TargetError::Busy { volume: place.volume().to_owned() },
    })
}

/// What a dead target left.
struct Former {
    /// The device to be taken over, if it waits.
    recover: Option<u32>,
    /// The name under which the conductor knows us.
    client: String,
    record: Option<Record>,
}

impl Former {
    /// What goes on where a target died: its device, if that is taken over; or its clients, which may connect to the one that follows it, and
    /// send again what was not answered.
    fn goes_on(&self, force: bool, front_end: &FrontEnd) -> Option<&Record> {
        let is_export = |record: &Record| !record.device.is_empty() && ublk::number(&record.device).is_none();
        let has_clients = |record: &&Record| !force && matches!(front_end, FrontEnd::Nbd { .. }) && is_export(record);
        self.record.as_ref().filter(|record| self.recover.is_some() || has_clients(record))
    }
}

fn former(place: &Place, options: &Options) -> Result<Former, TargetError> {
    let Some(record) = place.read()? else {
        return Ok(Former { recover: None, client: options.client_name.clone(), record: None });
    };
    match (ublk::waits(&record)?, &options.front_end) {
        (Some(_), FrontEnd::Nbd { .. }) => Err(TargetError::Waits(Box::new(record))),
        // Writes that wait in it would fail, and a filesystem with them.
        (Some(_), FrontEnd::Ublk { .. }) if options.read_only && !record.read_only => {
            Err(TargetError::WaitsToWrite(Box::new(record)))
        }
        // It stays what it is, and who attaches is to know: its users share the volume with other readers.
        (Some(_), FrontEnd::Ublk { .. })
            if record.read_only && !options.read_only && !options.subject.is_snapshot() =>
        {
            Err(TargetError::WaitsToRead(Box::new(record)))
        }
        (recover, _) => Ok(Former { recover, client: record.client.clone(), record: Some(record) }),
    }
}

/// What a target has before it takes the volume.
struct Prepared {
    former: Former,
    cluster: ClusterId,
    front: PreparedFront,
}

/// A front end, with what others may be in the way of.
enum PreparedFront {
    Ublk { queues: u16 },
    Nbd { listening: Listening, tls: NbdTls },
}

fn prepare(options: &Options, former: Former, heard: &Receiver<Happening>) -> Result<Prepared, TargetError> {
    let cluster = options.conductor.version()?.cluster;
    let front = match &options.front_end {
        FrontEnd::Ublk { queues } => PreparedFront::Ublk { queues: *queues },
        FrontEnd::Nbd { listen, tls, .. } => {
            PreparedFront::Nbd { listening: Listening::claim(listen)?, tls: tls.clone() }
        }
    };
    told_to_end(&options.subject.to_string(), former.record.is_some(), heard)?;
    Ok(Prepared { former, cluster, front })
}

fn serve(
    options: Options,
    prepared: Prepared,
    map: VolumeMap,
    place: &Place,
    (tell, heard): (Sender<Happening>, Receiver<Happening>),
    ready: impl FnOnce(&Record),
) -> End {
    let recovered = prepared.former.recover.is_some();
    let goes_on = prepared.former.goes_on(options.force, &options.front_end).is_some();
    match bring_up(options, prepared, map, place, &tell, &heard) {
        Ok((mut front, record)) => {
            let served = |record: &Record| {
                let served = Record { starting: false, ..record.clone() };
                if record.starting
                    && let Err(error) = place.write(&served)
                {
                    tracing::warn!(%error, "the record says that the device is still being started");
                }
                ready(&served);
            };
            Attending::new(&mut front, &record, recovered, served).run(&heard)
        }
        // What is to go on is still to go on: a device, or an export's clients. Nor is a device forgotten that could not be removed.
        Err(error) => {
            let stays = || place.read().is_ok_and(|record| record.is_some_and(|record| ublk::is_there(&record)));
            End { over: if goes_on || stays() { Over::Left } else { Over::Detached }, result: Err(error) }
        }
    }
}

/// Everything up to a front end that is known by its record, and that serves, or is being started.
fn bring_up(
    options: Options,
    prepared: Prepared,
    map: VolumeMap,
    place: &Place,
    tell: &Sender<Happening>,
    heard: &Receiver<Happening>,
) -> Result<(Front, Record), TargetError> {
    let Prepared { former, cluster, front } = prepared;
    let (recover, generation) = (former.recover, map.attach);
    let volume = options.subject.to_string();
    let goes_on = former.goes_on(options.force, &options.front_end);
    if let Some(record) = goes_on {
        check_same(record, &map)?;
        // Should we not get any further, this is what the conductor wants to hear at a detach.
        place.write(&Record { generation, ..record.clone() })?;
    }
    let (left, half_started) = (goes_on.is_some(), goes_on.is_some_and(|record| record.starting));
    told_to_end(&volume, left, heard)?;

    let owner = Owner::of(cluster, map.volume, map.snapshot);
    let Holder { pid, started } = Holder::this();
    let record = Record {
        volume,
        snapshot: map.snapshot,
        cluster,
        volume_id: map.volume,
        pid,
        started,
        since_ms: now_ms(),
        // What it will be called shows when it is there.
        device: String::new(),
        client: former.client.clone(),
        generation,
        read_only: options.read_only || map.snapshot.is_some(),
        starting: matches!(options.front_end, FrontEnd::Ublk { .. }) && (recover.is_none() || half_started),
    };
    let (asks, asked) = sync_channel(1);
    let (conductor, subject, news) = (options.conductor.clone(), options.subject.clone(), tell.clone());
    let (whose, force) = ((map.volume, map.snapshot), options.force);
    spawn("maps", move || maps::run(&conductor, &subject, whose, &asked, &news))?;
    let setup = setup(options, former.client, map);
    match front {
        PreparedFront::Nbd { listening, tls } => {
            let secure = matches!(tls, NbdTls::Required { .. });
            let lane = NbdLane::start(setup, (listening, tls), asks, tell.clone())?;
            let record = Record { device: uri(&lane.address, &record.volume, secure), ..record };
            let front = Front::Nbd(lane);
            match place.write(&record) {
                Ok(()) => Ok((front, record)),
                Err(error) => {
                    give_up(&front, heard);
                    Err(error)
                }
            }
        }
        PreparedFront::Ublk { queues } => {
            if recover.is_none() {
                // From here on a device may be ours, whose number nobody knows yet.
                place.write(&record)?;
            }
            let shape = UblkShape { queues, owner, recover, half_started, force };
            let made = UblkMade::make(setup, &shape, asks)?;
            let record = Record { device: made.path().display().to_string(), ..record };
            // Before the kernel makes a block device of it: whatever becomes of us, it can be found.
            match place.write(&record) {
                Ok(()) => Ok((Front::Ublk(made.start(tell.clone())?), record)),
                Err(error) => {
                    made.abandon();
                    Err(error)
                }
            }
        }
    }
}

/// What a lane serves the volume with.
fn setup(options: Options, client_name: String, map: VolumeMap) -> Setup {
    let Options { subject, conductor, key, read_only, shared, io_timeout, limits, depth, transport, .. } = options;
    let trust = conductor.trust();
    // Nothing is loaded or opened for a cluster without RDMA.
    let no_rdma = map.reachable.iter().flat_map(|at| &at.addresses).all(|address| !address.is_rdma());
    let transport = match transport {
        Transport::Auto if no_rdma || trust.is_some() => Transport::Tcp,
        asked => asked,
    };
    Setup {
        name: subject.to_string(),
        client_name,
        process: random(),
        key,
        read_only: read_only || map.snapshot.is_some(),
        shared,
        io_timeout: io_timeout.map(span),
        depth,
        transport,
        trust,
        unflushed: Arc::default(),
        unfenced: Arc::default(),
        pace: Pace::new(limits).map(Arc::new),
        map,
    }
}

/// Ends an NBD front end that nobody could find.
fn give_up(front: &Front, heard: &Receiver<Happening>) {
    if let Front::Nbd(lane) = front {
        lane.send(Mail::Abort);
    }
    let until = Instant::now() + GIVE_UP;
    let next = || heard.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    let _ended = std::iter::from_fn(next).find(|happening| matches!(happening, Happening::Ended(_)));
}

pub(crate) fn signals(stops: &SigSet, tell: &Sender<Happening>) {
    while stops.wait().is_ok() {
        if tell.send(Happening::Signal).is_err() {
            return;
        }
    }
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), TargetError> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(TargetError::system("start a thread"))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The export as NBD clients name it.
fn uri(address: &Address, volume: &str, secure: bool) -> String {
    let nbd = if secure { "nbds" } else { "nbd" };
    match address {
        Address::Tcp(at) => format!("{nbd}://{at}/{volume}"),
        // Not of the NBD project, which has no name for it; no option leads here.
        Address::Rdma(at) => format!("{nbd}+rdma://{at}/{volume}"),
        Address::Unix(path) => {
            let mut uri = format!("{nbd}+unix:///?socket=");
            for byte in std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()) {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                        uri.push(char::from(*byte));
                    }
                    other => uri.push_str(&format!("%{other:02X}")),
                }
            }
            uri
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{AttachGeneration, VolumeId};

    #[test]
    fn what_goes_on_is_a_device_that_is_taken_over_or_an_exports_clients() {
        let record = || Record {
            volume: "db".into(),
            snapshot: None,
            cluster: ClusterId(1),
            volume_id: VolumeId(1),
            pid: 1,
            started: 1,
            since_ms: 1,
            device: "/dev/ublkb3".into(),
            client: "host/db".into(),
            generation: AttachGeneration(3),
            read_only: false,
            starting: false,
        };
        let nbd = FrontEnd::Nbd { listen: Address::Unix("/run/x".into()), plaintext: false, tls: NbdTls::Off };
        let device = FrontEnd::Ublk { queues: 1 };
        let of = |recover| Former { recover, client: "host/db".into(), record: Some(record()) };
        let goes_on = |recover, force, front_end| of(recover).goes_on(force, front_end).is_some();
        assert!(goes_on(Some(3), false, &device) && goes_on(Some(3), true, &device) && !goes_on(None, false, &device));
        assert!(!goes_on(None, false, &nbd), "a device that is gone has no clients");
        let export = Record { device: "nbd://127.0.0.1:10809/db".into(), ..record() };
        let former = Former { recover: None, client: "host/db".into(), record: Some(export) };
        let goes_on = |force, front_end| former.goes_on(force, front_end).is_some();
        assert!(goes_on(false, &nbd) && !goes_on(true, &nbd), "an export's may still be there");
        assert!(!goes_on(false, &device));
    }

    #[test]
    fn an_export_is_named_so_that_every_client_understands() {
        let loopback = Address::Tcp(([127, 0, 0, 1], 10809).into());
        assert_eq!(uri(&loopback, "db", false), "nbd://127.0.0.1:10809/db");
        assert_eq!(uri(&loopback, "db", true), "nbds://127.0.0.1:10809/db");
        assert_eq!(uri(&Address::Tcp("[::1]:1".parse().unwrap()), "db", false), "nbd://[::1]:1/db");
        let path = Address::Unix("/run/a b/x.sock".into());
        assert_eq!(uri(&path, "db", false), "nbd+unix:///?socket=/run/a%20b/x.sock");
    }
}
