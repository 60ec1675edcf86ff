//! The life of a target: attach, serve, detach.
//!
//! ```text
//!   lock ─▶ attach at the conductor ─▶ lane ─▶ control socket ─▶ record ─▶ ready ─▶ … ─▶ drain ─▶ detach ─▶ record removed
//! ```
//!
//! A failure on the way up takes back what was done. A failure on the way down leaves the record, so that it is not forgotten.

use crate::control::{self, Look};
use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{DRAIN, GIVE_UP, QUEUES_EVERY};
use crate::maps::{self, Early};
use crate::nbd::{Mail, NbdLane};
use crate::record::{Lock, Place, Record, start_time};
use crate::setup::{Setup, random};
use crate::ublk::{self, UblkFront, UblkShape};
use crate::view::TargetView;
use conductor_client::Client;
use conductor_model::api::VolumeMap;
use conductor_model::views::{Attach, Detach};
use driver::{Address, Span};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use ublk_device::Owner;
use wire::ClusterKey;

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
        /// It may listen beyond loopback, where everybody can read and write the volume.
        plaintext: bool,
    },
}

/// What a target is made with.
pub struct Options {
    /// The volume's name.
    pub volume: String,
    /// The conductor.
    pub conductor: Client,
    /// The cluster's key.
    pub key: ClusterKey,
    /// This client's name.
    pub client_name: String,
    /// The directory of attachments' records.
    pub dir: PathBuf,
    /// How the volume is presented.
    pub front_end: FrontEnd,
    /// Refuse what would change the volume.
    pub read_only: bool,
    /// Take the volume from whoever has it.
    pub force: bool,
    /// Fail a request that has not been answered for so long.
    pub io_timeout: Option<Duration>,
    /// Requests in flight.
    pub depth: Option<u16>,
}

/// What the process serves.
enum Front {
    Nbd(NbdLane),
    Ublk(UblkFront),
}

/// How it ended.
enum Over {
    /// Nothing is left.
    Detached,
    /// The device waits for the next target; so does the volume.
    Left,
}

/// Attaches the volume, says so to `ready`, and serves it until SIGTERM, SIGINT or a detach. To be called once in a process, before
/// it starts threads. A device that is in use is left to the next target by a signal, and stays by a detach.
pub fn run(options: Options, ready: impl FnOnce(&Record)) -> Result<(), TargetError> {
    match &options.front_end {
        FrontEnd::Nbd { listen: Address::Tcp(at), plaintext: false } if !at.ip().is_loopback() => {
            return Err(TargetError::Plaintext(*at));
        }
        FrontEnd::Nbd { .. } => {}
        FrontEnd::Ublk { .. } => ublk::prepare_process()?,
    }
    // Sockets and records are for their owner alone.
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    // Before any thread: all of them inherit the mask, and only the one that waits for signals gets them.
    let stops = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    stops.thread_block().map_err(|error| TargetError::system("block signals")(error.into()))?;

    let place = Place::new(&options.dir, &options.volume);
    let lock = claim(&place)?;
    let (recover, client_name) = former(&place, &options)?;
    let Options { volume, conductor, read_only, force, .. } = &options;
    let asked = Attach { client: client_name.clone(), read_only: *read_only, force: *force };
    let map = conductor.attach(volume, &asked)?;
    let detach = Detach { client: client_name.clone(), generation: map.attach };
    let (conductor, volume) = (conductor.clone(), volume.clone());

    let served = serve(options, client_name, recover, map, &place, stops, ready);
    let over = match served {
        Ok(Over::Left) => return Ok(()),
        // What is to be recovered is still to be recovered.
        Err(error) if recover.is_some() || matches!(error, TargetError::Queue { .. }) => return Err(error),
        Ok(Over::Detached) => Ok(()),
        Err(error) => Err(error),
    };
    // Also after a failure: no request of ours is answered any more, so nobody needs the volume from us.
    let detached = match conductor.detach(&volume, &detach) {
        // Taken by somebody else meanwhile, or deleted.
        Err(error) if matches!(error.kind(), Some("not-attached" | "no-volume")) => Ok(()),
        other => other.map_err(TargetError::from),
    };
    if detached.is_ok() {
        place.remove()?;
    }
    drop(lock);
    over.and(detached)
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

/// What a dead target left: the device to be taken over, if it waits, and the name under which the conductor knows us.
fn former(place: &Place, options: &Options) -> Result<(Option<u32>, String), TargetError> {
    let Some(record) = place.read()? else { return Ok((None, options.client_name.clone())) };
    match (ublk::waits(&record)?, &options.front_end) {
        (Some(_), FrontEnd::Nbd { .. }) => Err(TargetError::Waits(Box::new(record))),
        (recover, _) => Ok((recover, record.client)),
    }
}

fn serve(
    options: Options,
    client_name: String,
    recover: Option<u32>,
    map: VolumeMap,
    place: &Place,
    stops: SigSet,
    ready: impl FnOnce(&Record),
) -> Result<Over, TargetError> {
    let Options { volume, conductor, key, front_end, read_only, io_timeout, depth, .. } = options;
    let (generation, volume_id) = (map.attach, map.volume);
    let cluster = conductor.version()?.cluster;
    let setup = Setup {
        map,
        client_name: client_name.clone(),
        process: random(),
        key,
        read_only,
        io_timeout: io_timeout.map(|time| Span(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))),
        depth,
    };
    let (tell, heard) = channel();
    let (asks, asked) = sync_channel(1);
    let early = Early::default();
    let (lanes, news, name) = (Arc::clone(&early), tell.clone(), volume.clone());
    spawn("maps", move || maps::run(&conductor, &name, &asked, &lanes, &news))?;
    let mut front = match front_end {
        FrontEnd::Nbd { listen, .. } => Front::Nbd(NbdLane::start(setup, listen, asks, tell.clone())?),
        FrontEnd::Ublk { queues } => {
            let shape = UblkShape { queues, owner: Owner::of(cluster, volume_id), recover };
            Front::Ublk(UblkFront::start(setup, &shape, &early, asks, tell.clone())?)
        }
    };
    let pid = std::process::id();
    let record = Record {
        volume: volume.clone(),
        cluster,
        volume_id,
        pid,
        started: start_time(pid).unwrap_or(0),
        since_ms: now_ms(),
        device: front.device(&volume),
        client: client_name,
        generation,
        read_only,
    };
    let up = || {
        let socket = place.socket();
        // We hold the lock: whose socket this was is dead.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(TargetError::file("listen on", &socket))?;
        let control = tell.clone();
        spawn("control", move || control::serve(&listener, &control))?;
        spawn("signals", move || signals(&stops, &tell))?;
        place.write(&record)
    };
    let up = up();
    match &up {
        Ok(()) => {
            tracing::info!(volume, device = record.device, %generation, "attached");
            ready(&record);
        }
        Err(_) => front.abort(recover.is_some()),
    }
    let over = attend(&mut front, &record, &heard, up.is_err());
    if let Front::Nbd(NbdLane { address: Address::Unix(path), .. }) = &front {
        let _ = std::fs::remove_file(path);
    }
    up.and(over)
}

impl Front {
    fn device(&self, volume: &str) -> String {
        match self {
            Self::Nbd(lane) => uri(&lane.address, volume),
            Self::Ublk(front) => front.path().display().to_string(),
        }
    }

    fn look(&mut self) -> Option<TargetView> {
        match self {
            Self::Nbd(lane) => lane.look(),
            Self::Ublk(front) => front.look(),
        }
    }

    fn map(&mut self, map: &Arc<VolumeMap>) {
        match self {
            Self::Nbd(lane) => lane.send(Mail::Map(Box::new((**map).clone()))),
            Self::Ublk(front) => front.map(map),
        }
    }

    /// It has not begun to serve: no matter what becomes of what is in flight. One that was taken over has its users, and waits
    /// on for the next target.
    fn abort(&mut self, taken_over: bool) {
        match self {
            Self::Nbd(lane) => lane.send(Mail::Abort),
            Self::Ublk(front) if taken_over => front.leave(),
            Self::Ublk(front) => {
                if let Err(error) = front.detach(true) {
                    tracing::warn!(%error, "the device is still there");
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Stop {
    No,
    Draining(Instant),
    Failing(Instant),
}

/// Sees the front end through to its end. `aborted`: it was told already.
fn attend(front: &mut Front, record: &Record, heard: &Receiver<Happening>, aborted: bool) -> Result<Over, TargetError> {
    let mut stop = if aborted { Stop::Failing(Instant::now() + GIVE_UP) } else { Stop::No };
    loop {
        if let Front::Ublk(device) = front {
            if aborted {
                return Ok(Over::Detached);
            }
            if let Some(ended) = device.ended() {
                return ended.map(|()| Over::Detached);
            }
        }
        let patience = match stop {
            Stop::Draining(until) | Stop::Failing(until) => until.saturating_duration_since(Instant::now()),
            Stop::No => QUEUES_EVERY,
        };
        let happening = match (heard.recv_timeout(patience), stop) {
            (Ok(happening), _) => happening,
            (Err(RecvTimeoutError::Timeout), Stop::No) => continue,
            (Err(RecvTimeoutError::Timeout), Stop::Draining(_)) => {
                stop = fail(front);
                continue;
            }
            (Err(_), _) => return Err(TargetError::Ended),
        };
        match (happening, &mut *front) {
            (Happening::Map(map), front) => front.map(&map),
            (Happening::Look(answer), front) => {
                let look = front.look().map(|target| Box::new(Look { record: record.clone(), target }));
                let _gone = answer.send(look);
            }
            (Happening::Fenced, _) => {
                tracing::warn!("fenced: the volume was attached elsewhere; every request fails from now on");
            }
            (Happening::Ended(result), _) => return result.map(|()| Over::Detached),
            (Happening::Signal, Front::Nbd(_)) => stop = next(front, stop, false),
            (Happening::Stop { now, answer }, Front::Nbd(_)) => {
                stop = next(front, stop, now);
                let _gone = answer.send(None);
            }
            (Happening::Signal, Front::Ublk(device)) => {
                let Err(error) = device.detach(false) else { return Ok(Over::Detached) };
                tracing::warn!(%error, "the device is left to the next target");
                device.leave();
                return Ok(Over::Left);
            }
            (Happening::Stop { now, answer }, Front::Ublk(device)) => {
                let refused = device.detach(now).err();
                let _gone = answer.send(refused.as_ref().map(ToString::to_string));
                if refused.is_none() {
                    return Ok(Over::Detached);
                }
            }
        }
    }
}

/// The next step to the end of an NBD lane. Asked twice means: at once.
fn next(front: &Front, stop: Stop, now: bool) -> Stop {
    match (front, stop) {
        (Front::Nbd(lane), Stop::No) if !now => {
            tracing::info!("detaching");
            lane.send(Mail::Stop);
            Stop::Draining(Instant::now() + DRAIN)
        }
        (_, Stop::No | Stop::Draining(_)) => fail(front),
        (_, failing @ Stop::Failing(_)) => failing,
    }
}

fn fail(front: &Front) -> Stop {
    if let Front::Nbd(lane) = front {
        tracing::warn!("failing what is still in flight");
        lane.send(Mail::Abort);
    }
    Stop::Failing(Instant::now() + GIVE_UP)
}

fn signals(stops: &SigSet, tell: &Sender<Happening>) {
    while stops.wait().is_ok() {
        if tell.send(Happening::Signal).is_err() {
            return;
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), TargetError> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(TargetError::system("start a thread"))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The export as NBD clients name it.
fn uri(address: &Address, volume: &str) -> String {
    match address {
        Address::Tcp(at) => format!("nbd://{at}/{volume}"),
        Address::Unix(path) => {
            let mut uri = String::from("nbd+unix:///?socket=");
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

    #[test]
    fn an_export_is_named_so_that_every_client_understands() {
        assert_eq!(uri(&Address::Tcp(([127, 0, 0, 1], 10809).into()), "db"), "nbd://127.0.0.1:10809/db");
        assert_eq!(uri(&Address::Tcp("[::1]:1".parse().unwrap()), "db"), "nbd://[::1]:1/db");
        assert_eq!(uri(&Address::Unix("/run/a b/x.sock".into()), "db"), "nbd+unix:///?socket=/run/a%20b/x.sock");
    }
}
