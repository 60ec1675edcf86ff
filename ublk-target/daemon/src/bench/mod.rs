//! A load on a volume, through the volume client and nothing else: what a front end could get at most.
//!
//! ```text
//!   attach at the conductor ─▶ lane: Reactor { Load ── requests ──▶ VolumeClient } ═ nodes ─▶ figures each second ─▶ detach
//! ```
//! A load that only reads attaches the volume as one of its readers. One that writes is its only client meanwhile, and overwrites what
//! is there. Ends when its time is over, by the first request that fails, or by a signal; the figures until then are as good.

mod histogram;
mod load;

pub use histogram::{Class, Histogram, Latency};

use crate::error::TargetError;
use crate::happening::Happening;
use crate::limits::{DRAIN, GIVE_UP, MAILBOX, NETWORK, SPIN, TLS_NETWORK};
use crate::maps;
use crate::process::{signals, spawn};
use crate::setup::{Setup, random};
use crate::subject::Subject;
use conductor_client::Client;
use conductor_model::views::{Attach, Detach};
use driver::Span;
use load::{Letter, Load, Mail};
use memory::{Arena, ArenaOptions, Backing, Shares};
use nix::sys::signal::{SigSet, Signal};
use reactor::{Limits, MailRx, Mailbox, OwnRing, Reactor, Uring, mailbox, spare_cores};
use serde::Serialize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Instant;
use wire::Key;

/// Longest request of a load.
pub const MAX_BENCH_REQUEST: u32 = 1 << 20;
/// Most requests in flight.
pub const MAX_BENCH_DEPTH: u16 = 1024;

/// What a load does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Reads, one behind the other.
    Read,
    /// Writes, one behind the other.
    Write,
    /// Reads anywhere.
    Randread,
    /// Writes anywhere.
    Randwrite,
    /// Both, anywhere.
    Randrw,
}

impl Pattern {
    /// Does it change the volume?
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Randread)
    }

    fn is_random(self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What.
    pub pattern: Pattern,
    /// Bytes of a request: whole blocks of 4 KiB, up to [`MAX_BENCH_REQUEST`].
    pub bytes: u32,
    /// Requests in flight, up to [`MAX_BENCH_DEPTH`].
    pub depth: u16,
    /// How long, from the first answer on.
    pub time: Span,
    /// Of 100 requests of [`Pattern::Randrw`], so many read.
    pub read_percent: u8,
    /// A flush after so many writes.
    pub flush_every: Option<u32>,
}

/// What a bench is made with.
pub struct BenchOptions {
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
    /// The load.
    pub shape: Shape,
}

/// What came of a load so far. Latencies in microseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// From the first answer to the last.
    pub seconds: f64,
    /// Reads and writes that were answered; the first one is not counted.
    pub requests: u64,
    /// A second.
    pub rate: f64,
    /// The like.
    pub bytes_per_second: f64,
    /// Latencies, of what there was.
    pub reads: Option<Latency>,
    /// The like.
    pub writes: Option<Latency>,
    /// The like.
    pub flushes: Option<Latency>,
    /// How many took how long.
    pub read_classes: Vec<Class>,
    /// The like.
    pub write_classes: Vec<Class>,
    /// Where the requests that finished last spent their time.
    pub stages: Vec<StageFigures>,
    /// Shards that do not answer, and why.
    pub waits_for: Vec<String>,
    /// Why the first request that failed did: it was the last one.
    pub error: Option<String>,
}

/// From one position in a request's life to the next.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageFigures {
    /// As `docs/architecture.md` names it.
    pub from: &'static str,
    /// The like.
    pub to: &'static str,
    /// Of so many requests.
    pub requests: u64,
    /// How long it took.
    pub latency: Latency,
}

/// Loads a volume; `progress` hears of it each second. To be called once in a process, before it starts threads.
pub fn bench(options: BenchOptions, progress: impl FnMut(&Figures)) -> Result<Figures, TargetError> {
    let stops = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    stops.thread_block().map_err(|error| TargetError::system("block signals")(error.into()))?;
    let (tell, heard) = channel();
    let signal = tell.clone();
    spawn("signals", move || signals(&stops, &signal))?;
    let BenchOptions { subject, conductor, key, client_name, host, shape } = options;
    let read_only = !shape.pattern.writes();
    let (map, attached) = if subject.is_snapshot() {
        (subject.map(&conductor)?, None)
    } else {
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
        depth: Some(shape.depth),
        transport: volume_client::Transport::Tcp,
        trust: conductor.trust(),
        unflushed: Arc::default(),
        pace: None,
    };
    let volume = setup.name.clone();
    let (asks, asked) = sync_channel(1);
    let (client, news) = (conductor.clone(), tell.clone());
    let whose = (setup.map.volume, setup.map.snapshot);
    spawn("maps", move || maps::run(&client, &subject, whose, &asked, &news))?;
    let done = run(setup, shape, (tell, heard), asks, progress);
    // Also after a failure: nobody needs the volume from us.
    let detached = attached.map_or(Ok(()), |detach| conductor.detach(&volume, &detach));
    let figures = done?;
    detached?;
    Ok(figures)
}

fn run(
    setup: Setup,
    shape: Shape,
    (tell, heard): (Sender<Happening>, Receiver<Happening>),
    asks: SyncSender<()>,
    mut progress: impl FnMut(&Figures),
) -> Result<Figures, TargetError> {
    let (mailbox, rx) = mailbox(MAILBOX)?;
    let lane = tell.clone();
    spawn("lane", move || {
        let ended = work(&setup, shape, rx, |letter| match letter {
            // One that waits already is as good.
            Letter::WantMap => drop(asks.try_send(())),
            Letter::Figures(figures) => drop(tell.send(Happening::Figures(figures))),
        });
        let _gone = lane.send(Happening::Ended(ended));
    })?;
    // What is full has something to do; a signal is sent again by who sent it.
    let send = |mailbox: &Mailbox<Mail>, mail| drop(mailbox.send(mail));
    let (mut figures, mut until) = (Figures::default(), None::<Instant>);
    loop {
        let happening = match until {
            None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => heard.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        match happening {
            Ok(Happening::Map(map)) => send(&mailbox, Mail::Map(Box::new((*map).clone()))),
            Ok(Happening::Figures(so_far)) => {
                figures = *so_far;
                progress(&figures);
            }
            Ok(Happening::Signal) if until.is_none() => {
                send(&mailbox, Mail::Stop);
                until = Some(Instant::now() + DRAIN);
            }
            Ok(Happening::Signal) | Err(RecvTimeoutError::Timeout) => {
                if until.is_some_and(|until| Instant::now() > until + GIVE_UP) {
                    return Err(TargetError::Ended);
                }
                send(&mailbox, Mail::Abort);
                until = Some(Instant::now() + GIVE_UP);
            }
            Ok(Happening::Ended(ended)) => return ended.map(|()| figures),
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(TargetError::Ended),
        }
    }
}

/// The lane's thread, from its arena to the proof that nothing is left.
fn work(setup: &Setup, shape: Shape, rx: MailRx<Mail>, post: impl FnMut(Letter)) -> Result<(), TargetError> {
    let limits = Limits::default();
    let mut driver = Uring::new(OwnRing::new(&limits)?, limits)?;
    // Twice: a buffer is rounded up to a power of two of pages.
    let bytes = 2 * (usize::from(shape.depth) + 64) * shape.bytes as usize + NETWORK + TLS_NETWORK;
    let arena = Arena::new(ArenaOptions { bytes, backing: Backing::Heap, shares: Shares::only_client() })?;
    if let Some(layer) = setup.tls(None, &arena)? {
        driver.open_tls(layer);
    }
    let client = setup.client(0, shape.depth, &arena)?;
    let load = Load::new(client, &arena, shape, random()).ok_or(volume_client::ClientError::NoMemory)?;
    let mut reactor = Reactor::start(load, driver, rx)?;
    if spare_cores(1) {
        reactor = reactor.spin(SPIN);
    }
    let ended = reactor.run(post)?;
    let leaks = |report: refcount::LeakReport| TargetError::Leaks(report.to_string());
    ended.machine.leaks().map_err(leaks)?;
    drop(ended.machine);
    arena.leaks().map_err(leaks)
}
