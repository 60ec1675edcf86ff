//! The life of a target: attach, serve, detach.
//!
//! ```text
//!   lock ─▶ attach at the conductor ─▶ lane ─▶ control socket ─▶ record ─▶ ready ─▶ … ─▶ drain ─▶ detach ─▶ record removed
//! ```
//!
//! A failure on the way up takes back what was done. A failure on the way down leaves the record, so that it is not forgotten.

use crate::control::Server;
use crate::error::TargetError;
use crate::lane::{self, Happening, Lane, Setup};
use crate::limits::{DEPTH, DRAIN, GIVE_UP};
use crate::maps;
use crate::nbd::Mail;
use crate::record::{Lock, Place, Record, start_time};
use conductor_client::Client;
use conductor_model::api::VolumeMap;
use conductor_model::views::{Attach, Detach};
use driver::{Address, Span};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use reactor::{Mailbox, NotSent};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::ClusterKey;

/// How a target presents its volume.
#[derive(Clone, Debug)]
pub enum FrontEnd {
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

/// Attaches the volume, says so to `ready`, and serves it until SIGTERM, SIGINT or a detach. To be called once in a process, before
/// it starts threads.
pub fn run(options: Options, ready: impl FnOnce(&Record)) -> Result<(), TargetError> {
    let FrontEnd::Nbd { listen: Address::Tcp(at), plaintext } = &options.front_end else {
        return attach(options, ready);
    };
    if !at.ip().is_loopback() && !plaintext {
        return Err(TargetError::Plaintext(*at));
    }
    attach(options, ready)
}

fn attach(options: Options, ready: impl FnOnce(&Record)) -> Result<(), TargetError> {
    // Sockets and records are for their owner alone.
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    // Before any thread: all of them inherit the mask, and only the one that waits for signals gets them.
    let stops = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    stops.thread_block().map_err(|error| TargetError::system("block signals")(error.into()))?;

    let place = Place::new(&options.dir, &options.volume);
    let lock = claim(&place)?;
    let Options { volume, conductor, client_name, read_only, force, .. } = &options;
    let asked = Attach { client: client_name.clone(), read_only: *read_only, force: *force };
    let map = conductor.attach(volume, &asked)?;
    let detach = Detach { client: client_name.clone(), generation: map.attach };
    let (conductor, volume) = (conductor.clone(), volume.clone());

    let served = serve(options, map, &place, stops, ready);
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
    served.and(detached)
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

fn serve(
    options: Options,
    map: VolumeMap,
    place: &Place,
    stops: SigSet,
    ready: impl FnOnce(&Record),
) -> Result<(), TargetError> {
    let Options { volume, conductor, key, client_name, front_end, read_only, io_timeout, depth, .. } = options;
    let FrontEnd::Nbd { listen, .. } = front_end;
    let generation = map.attach;
    let setup = Setup {
        map,
        client_name: client_name.clone(),
        process: lane::random(),
        key,
        read_only,
        io_timeout: io_timeout.map(|time| Span(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))),
        depth: depth.unwrap_or(DEPTH),
        listen,
    };
    let (tell, heard) = channel();
    let Lane { mailbox, address, views, asked } = lane::start(setup, tell.clone())?;
    let pid = std::process::id();
    let record = Record {
        volume: volume.clone(),
        pid,
        started: start_time(pid).unwrap_or(0),
        since_ms: now_ms(),
        device: uri(&address, &volume),
        client: client_name,
        generation,
        read_only,
    };
    let up = || {
        let socket = place.socket();
        // We hold the lock: whose socket this was is dead.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(TargetError::file("listen on", &socket))?;
        let server = Server { listener, record: record.clone(), mailbox: mailbox.clone(), views, tell: tell.clone() };
        spawn("control", move || server.run())?;
        let lane = mailbox.clone();
        spawn("maps", move || maps::run(&conductor, &volume, &asked, &lane))?;
        spawn("signals", move || signals(&stops, &tell))?;
        place.write(&record)
    };
    let up = up();
    match &up {
        Ok(()) => {
            tracing::info!(volume = record.volume, device = record.device, generation = %record.generation, "attached");
            ready(&record);
        }
        Err(_) => send(&mailbox, || Mail::Abort),
    }
    let ended = attend(&heard, &mailbox, up.is_err());
    if let Address::Unix(path) = &address {
        let _ = std::fs::remove_file(path);
    }
    up.and(ended)
}

/// Sees the lane through to its end. `stopping`: it was told already.
fn attend(heard: &Receiver<Happening>, mailbox: &Mailbox<Mail>, stopping: bool) -> Result<(), TargetError> {
    let mut stop = if stopping { Stop::Failing(Instant::now() + GIVE_UP) } else { Stop::No };
    loop {
        let happening = match stop {
            Stop::No => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Stop::Draining(until) | Stop::Failing(until) => {
                heard.recv_timeout(until.saturating_duration_since(Instant::now()))
            }
        };
        stop = match (happening, stop) {
            (Ok(Happening::Ended(result)), _) => return result,
            (Ok(Happening::Fenced), stop) => {
                tracing::warn!("fenced: the volume was attached elsewhere; every request fails from now on");
                stop
            }
            (Ok(Happening::Signal | Happening::Stop(false)), Stop::No) => {
                tracing::info!("detaching");
                send(mailbox, || Mail::Stop);
                Stop::Draining(Instant::now() + DRAIN)
            }
            // Asked twice, or out of patience.
            (Ok(Happening::Signal | Happening::Stop(true)) | Err(RecvTimeoutError::Timeout), Stop::Draining(_))
            | (Ok(Happening::Stop(true)), Stop::No) => {
                tracing::warn!("failing what is still in flight");
                send(mailbox, || Mail::Abort);
                Stop::Failing(Instant::now() + GIVE_UP)
            }
            (Ok(_), stop) => stop,
            (Err(_), _) => return Err(TargetError::Ended),
        };
    }
}

#[derive(Clone, Copy)]
enum Stop {
    No,
    Draining(Instant),
    Failing(Instant),
}

/// Sends to a lane that may have its hands full for a moment. One that has ended has said so, too.
fn send(mailbox: &Mailbox<Mail>, mail: impl Fn() -> Mail) {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        match mailbox.send(mail()) {
            Err(NotSent::Full(_)) => thread::sleep(Duration::from_millis(10)),
            Ok(()) | Err(NotSent::Ended(_)) => return,
        }
    }
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
