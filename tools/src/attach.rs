//! `trine attach`, `trine detach`, `trine attached`: volumes on this host.
//!
//! `attach` starts itself once more as the target, in a session of its own with its log in a file, and waits for one line on its
//! standard output: the device, or why there is none. `--foreground` is the target itself, for service managers. An `attach` that is
//! told to end while it waits (Ctrl-C) ends the target that it started.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, Size, note, print, table};
use crate::pidfile::Process;
use crate::trace::{self, Step, steps};
use anyhow::Context;
use clap::{Args, ValueEnum};
use conductor_model::Bytes;
use conductor_model::limits::MAX_HOST_NAME;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Uid, dup2_stdout, setsid};
use serde::Serialize;
use std::env;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use target_daemon::{
    Address, FrontEnd, NbdTls, Options, Place, Range, Record, Shared, Subject, TargetError, TargetView, Transport,
    detach, look,
};
use tls::{Identity, PemFiles};
use wire::{KEY_MARK, Key};

/// A target attaches within the conductor's call (10 s); a device that is recovered waits for its old daemon (30 s) and for nodes.
const READY: Duration = Duration::from_secs(90);
/// A target that is told to end while it comes up finishes a call of the conductor and gives the volume back by another (10 s each), or
/// fails what its device waits for (15 s); an old target's device may have to be waited for, too (30 s).
const ENDED: Duration = Duration::from_secs(45);
/// Longest that a target waits for ranges before it serves.
const RANGE_WAIT: Duration = Duration::from_secs(20);
/// Marks the line that says why there is no device; everything else is the device.
const FAILED: &str = "failed: ";

#[derive(Args)]
pub(crate) struct AttachArgs {
    /// The volume, or VOLUME@SNAPSHOT: read only, by as many as like
    volume: Subject,
    /// Serve it over NBD, at unix:PATH or tcp:ADDRESS:PORT, instead of as /dev/ublkbN; to 16 connections at a time
    #[arg(long, value_name = "WHERE")]
    nbd: Option<Nbd>,
    /// Let NBD listen beyond loopback although clients may speak in clear, or need no certificate (--tls-any-client): everybody there can
    /// read and write the volume
    #[arg(long, requires = "nbd")]
    plaintext: bool,
    /// Whether NBD clients speak TLS 1.3 (STARTTLS). optional: who asks for it; required: nobody is served in clear
    #[arg(long, value_name = "HOW", default_value = "off", requires = "nbd")]
    nbd_tls: TlsWay,
    /// Where ca-cert.pem, server-cert.pem and server-key.pem are, as nbdkit and qemu-nbd want them, for --nbd-tls
    #[arg(long, value_name = "DIR", requires = "nbd")]
    tls_certs: Option<PathBuf>,
    /// Serve NBD clients over TLS that show no certificate of ca-cert.pem's, too
    #[arg(long, requires = "tls_certs")]
    tls_any_client: bool,
    /// Threads that serve the block device
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "nbd", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Requests in flight, per queue [default: 128; 256 for NBD]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: Option<u16>,
    /// What connections to nodes go over. auto: RDMA where a node listens for it and this machine has it, else TCP; rdma: nothing else
    #[arg(long, env = "TRINE_TRANSPORT", value_name = "WAY", default_value = "auto")]
    transport: Way,
    /// Refuse writes, and share the volume with others that do; not beside one who writes
    #[arg(long)]
    read_only: bool,
    /// Write beside others that do, each only in ranges that it holds; over NBD, as a kernel's page cache hears of nobody else's writes
    #[arg(long, requires = "nbd", conflicts_with = "read_only")]
    shared: bool,
    /// Hold ranges of a shared volume: write:OFFSET+LENGTH, alone, or read:OFFSET+LENGTH, with other readers; like write:0+1G,read:1G+1G
    #[arg(long, value_name = "RANGE,…", requires = "shared", value_delimiter = ',')]
    range: Vec<RangeArg>,
    /// Wait so long, 20s at most, for a range that another client holds [default: do not attach then]
    #[arg(long, value_name = "TIME", requires = "range", value_parser = range_wait)]
    range_wait: Option<Duration>,
    /// Fail a request that no node has answered for so long, like 30s or 5m [default: wait for ever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    io_timeout: Option<Duration>,
    /// Take the volume from the client that has it, or from all that read it
    #[arg(long)]
    force: bool,
    /// This client's name in the cluster [default: HOST/VOLUME~ID, where ID tells machines and their --dir apart]
    #[arg(long, value_name = "NAME")]
    client_name: Option<String>,
    /// Stay, instead of serving in the background
    #[arg(long)]
    foreground: bool,
    /// Show every 2 s where requests spend their time, until Ctrl-C, which ends the showing and nothing else
    #[arg(long, conflicts_with = "foreground")]
    trace: bool,
    /// The target of an attach that waits for its line
    #[arg(long, hide = true)]
    background: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Args)]
pub(crate) struct AttachedArgs {
    /// Show where the requests that finished last spent their time, also in nodes on this machine
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct DetachArgs {
    /// The volume, or VOLUME@SNAPSHOT
    volume: Subject,
    /// End it although it is in use or does not answer; what is in flight fails
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// What connections go over.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    Auto,
    Tcp,
    Rdma,
}

impl From<Way> for Transport {
    fn from(way: Way) -> Self {
        match way {
            Way::Auto => Self::Auto,
            Way::Tcp => Self::Tcp,
            Way::Rdma => Self::Rdma,
        }
    }
}

/// Whether NBD clients speak TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TlsWay {
    Off,
    Optional,
    Required,
}

/// What NBD clients over TLS are shown, and by what they are known.
fn nbd_tls(way: TlsWay, certs: Option<&Path>, any_client: bool) -> Outcome<NbdTls> {
    let certs = match (way, certs) {
        (TlsWay::Off, None) => return Ok(NbdTls::Off),
        (TlsWay::Off, Some(_)) => return Err(Failure::usage("--tls-certs is for --nbd-tls optional or required")),
        (_, None) => return Err(Failure::usage("--nbd-tls needs certificates: say where with --tls-certs")),
        (_, Some(certs)) => certs,
    };
    let read = |name| {
        let path = certs.join(name);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (certificate, key) = (read("server-cert.pem")?, read("server-key.pem")?);
    let clients = if any_client { None } else { Some(read("ca-cert.pem")?) };
    let files = PemFiles { certificate: &certificate, key: &key, clients: clients.as_deref() };
    let identity = Identity::from_pem(&files).with_context(|| format!("in {}", certs.display()))?;
    Ok(if way == TlsWay::Required { NbdTls::Required { identity, any_client } } else { NbdTls::Optional(identity) })
}

/// A range of a shared volume.
#[derive(Clone, Copy, Debug)]
struct RangeArg(Range);

impl FromStr for RangeArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = |text: &str| text.parse().ok().map(|Size(bytes)| Bytes(bytes));
        let parsed = || {
            let (how, what) = text.split_once(':')?;
            let write = match how {
                "write" => true,
                "read" => false,
                _ => return None,
            };
            let (offset, len) = what.split_once('+')?;
            Some(Range { offset: bytes(offset)?, len: bytes(len)?, write })
        };
        parsed().map(Self).ok_or_else(|| "write read:OFFSET+LENGTH or write:OFFSET+LENGTH, like write:0+1G".to_owned())
    }
}

/// A target comes up within `READY`, waiting for its ranges included.
fn range_wait(text: &str) -> Result<Duration, String> {
    let wait = humantime::parse_duration(text).map_err(|why| why.to_string())?;
    if wait > RANGE_WAIT { Err(format!("at most {}", humantime::format_duration(RANGE_WAIT))) } else { Ok(wait) }
}

/// Where NBD listens.
#[derive(Clone, Debug)]
struct Nbd(Address);

impl FromStr for Nbd {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            let path = std::path::absolute(path).map_err(|why| format!("{path:?} is no path: {why}"))?;
            return Ok(Self(Address::Unix(path)));
        }
        let at = text.strip_prefix("tcp:").and_then(|at| at.parse::<SocketAddr>().ok());
        at.map(|at| Self(Address::Tcp(at)))
            .ok_or_else(|| "write unix:PATH or tcp:ADDRESS:PORT, like tcp:127.0.0.1:10809".to_owned())
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        let exit = match error {
            TargetError::Conductor(error) => return error.into(),
            TargetError::NotAttached { .. } => Exit::NoSuch,
            TargetError::RdmaInClear | TargetError::Plaintext(_) => Exit::Usage,
            TargetError::Attached(_)
            | TargetError::Busy { .. }
            | TargetError::Waits(_)
            | TargetError::WaitsToWrite(_)
            | TargetError::Refused { .. }
            | TargetError::RangeTaken(_) => Exit::Refused,
            TargetError::Silent { .. } | TargetError::StillRuns { .. } => Exit::TimedOut,
            _ => Exit::Failed,
        };
        Self::new(exit, error)
    }
}

impl AttachArgs {
    /// True for the process that serves.
    pub(crate) fn is_daemon(&self) -> bool {
        self.foreground || self.background
    }
}

pub(crate) fn attach(args: AttachArgs) -> Outcome {
    if args.background {
        return in_background(args);
    }
    if args.foreground {
        return Ok(target_daemon::run(options(args)?, |record| {
            // A reader that went away does not end the service.
            let _said = print(&record.device);
        })?);
    }
    // What can be said at once is said here, without a second process.
    let place = Place::new(&records(&args.cluster)?, &args.volume.to_string());
    let sockets = args.trace.then(|| trace::sockets(&args.cluster)).transpose()?;
    options(args)?;
    spawn(&place)?;
    sockets.map_or(Ok(()), |sockets| trace::follow(&place, &sockets))
}

fn options(args: AttachArgs) -> Outcome<Options> {
    if args.force && args.volume.is_snapshot() {
        return Err(Failure::usage("a snapshot is shared by all: leave --force out"));
    }
    if args.shared && args.volume.is_snapshot() {
        return Err(Failure::usage("a snapshot is shared by all: leave --shared out"));
    }
    let (host, records) = (host()?, records(&args.cluster)?);
    let key = args.cluster.key()?;
    let mark = key_mark(&key);
    let client_name = match args.client_name {
        Some(name) if name.starts_with(&mark) => name,
        Some(name) => mark + &name,
        None => default_name(&mark, &args.volume, &host, &place_id(&args.volume, &host, &records)),
    };
    Ok(Options {
        dir: records,
        conductor: args.cluster.client()?,
        shared: args.shared.then(|| Shared {
            ranges: args.range.into_iter().map(|RangeArg(range)| range).collect(),
            wait: args.range_wait.unwrap_or_default(),
        }),
        read_only: args.read_only || key.card().is_some_and(|card| card.read_only),
        key,
        client_name,
        host,
        front_end: match args.nbd {
            Some(Nbd(listen)) => {
                let tls = nbd_tls(args.nbd_tls, args.tls_certs.as_deref(), args.tls_any_client)?;
                FrontEnd::Nbd { listen, plaintext: args.plaintext, tls }
            }
            None => FrontEnd::Ublk { queues: args.queues },
        },
        subject: args.volume,
        force: args.force,
        io_timeout: args.io_timeout,
        depth: args.depth,
        transport: args.transport.into(),
    })
}

/// `HOST/VOLUME~ID`, behind what a key of its own demands; host and volume are cut where a name may not be longer. The same for every
/// attachment of a volume from one place, so that what died is taken over; targets of one snapshot are told apart by their processes:
/// none of them takes the place of another.
fn default_name(mark: &str, subject: &Subject, host: &str, id: &str) -> String {
    let process = if subject.is_snapshot() { format!("#{}", std::process::id()) } else { String::new() };
    let end = format!("~{id}{process}");
    let most = wire::MAX_NAME.saturating_sub(mark.len() + end.len());
    let name: String = subject.to_string().chars().take(most).collect();
    let room = most.saturating_sub(name.len() + 1);
    let host: String = host.chars().take(room).collect();
    if host.is_empty() { format!("{mark}{name}{end}") } else { format!("{mark}{host}/{name}{end}") }
}

/// Tells machines of one name apart, directories of one machine, and volumes whose names are cut to the same: two clients with one name
/// would take the volume from each other.
fn place_id(subject: &Subject, host: &str, records: &Path) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let all =
        [subject.to_string().as_bytes(), host.as_bytes(), machine.trim().as_bytes(), records.as_os_str().as_bytes()]
            .join(&0);
    format!("{:08x}", crc32c::crc32c(&all))
}

/// How the names of clients with this key begin.
pub(crate) fn key_mark(key: &Key) -> String {
    key.card().map(|card| format!("{}{KEY_MARK}", card.name)).unwrap_or_default()
}

/// This machine's name, as far as the conductor takes it.
pub(crate) fn host() -> Outcome<String> {
    let host = nix::unistd::gethostname().context("cannot read this host's name")?;
    Ok(host.to_string_lossy().chars().filter(char::is_ascii_graphic).take(MAX_HOST_NAME).collect())
}

/// Where attachments are recorded. They end with the host's uptime, and so may their records, unless there is a directory for all.
fn records(cluster: &ClusterArgs) -> Outcome<PathBuf> {
    let state = match (&cluster.conductor, &cluster.dir.dir) {
        (Some(_), None) if Uid::effective().is_root() => PathBuf::from("/run/trine"),
        (Some(_), None) => match env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => PathBuf::from(dir).join("trine"),
            None => cluster.dir.path()?,
        },
        _ => cluster.dir.path()?,
    };
    let state = std::path::absolute(&state).with_context(|| format!("{} is no path", state.display()))?;
    Ok(state.join("attached"))
}

/// The target itself, behind an attach that waits for one line.
fn in_background(args: AttachArgs) -> Outcome {
    // It was started as a child and leads no group yet; if it does, it is as good.
    let _leads_already = setsid();
    let served = options(args).and_then(|options| {
        // All paths are absolute or read by now; the caller's directory may be on a filesystem that is to be unmounted.
        env::set_current_dir("/").context("cannot leave the working directory")?;
        Ok(target_daemon::run(options, |record| say(&record.device))?)
    });
    if let Err(failure) = &served {
        say(&format!("{FAILED}{:#}", failure.why));
    }
    served
}

/// The one line. After it nobody listens, and nobody may wait for our end.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _stays_open = dup2_stdout(null);
    }
}

fn spawn(place: &Place) -> Outcome {
    // From before there is a target: nobody ends us without ending it. It has the mask, too, and wants it.
    let stops = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    stops.thread_block().context("cannot block signals")?;
    let program = env::current_exe().context("cannot find this program")?;
    // Behind `--` it would be an operand.
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let (options, operands) = args.split_at(args.iter().position(|arg| arg == "--").unwrap_or(args.len()));
    let mut child = Command::new(program)
        .args(options)
        .arg("--background")
        .args(operands)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log(place)?)
        .spawn()
        .context("cannot start the target")?;
    match heard(&mut child, stops)? {
        Heard::Line(line) => match line.strip_prefix(FAILED) {
            None => print(&line),
            Some(why) => Err(Failure::new(code(&mut child)?, why)),
        },
        Heard::End => {
            let log = place.log();
            let status = child.wait().context("cannot wait for the target")?;
            Err(Failure::new(Exit::Failed, format!("the target ended ({status}): see {}", log.display())))
        }
        Heard::Stop => give_up(place, &mut child),
    }
}

/// Ends the target that was started, as Ctrl-C would if it were in the foreground.
fn give_up(place: &Place, child: &mut Child) -> Outcome {
    let volume = place.volume();
    note(format_args!("trine: ending the target of {volume}; what it did is taken back"));
    let until = Instant::now() + ENDED;
    if let Some(target) = Process::of(child.id()) {
        target.terminate()?;
        // It is our child: what is waited for is that it becomes a zombie.
        if !target.wait(until) {
            let why = format!("the target of {volume} still runs: `trine detach --force {volume}` ends it");
            return Err(Failure::new(Exit::TimedOut, why));
        }
    }
    let status = child.wait().context("cannot wait for the target")?;
    let left = place.read()?.is_some();
    let left = if left { format!(": `trine attach {volume}` goes on with what is left") } else { String::new() };
    Err(Failure::new(Exit::Failed, format!("told to end; the target of {volume} has ended ({status}){left}")))
}

fn log(place: &Place) -> Outcome<File> {
    let path = place.log();
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    Ok(opened.with_context(|| format!("cannot open {}", path.display()))?)
}

/// What an attach waits for.
enum Heard {
    /// The target's one line.
    Line(String),
    /// It ended without a word.
    End,
    /// We are told to end.
    Stop,
}

fn heard(child: &mut Child, stops: SigSet) -> Outcome<Heard> {
    let Some(stdout) = child.stdout.take() else { return Ok(Heard::End) };
    let (to, from) = mpsc::channel();
    let stopped = to.clone();
    // Both threads wait until this process ends, which is soon. What comes too late is heard by nobody.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let end = |len| if len > 0 { Heard::Line(line.trim_end().to_owned()) } else { Heard::End };
        let _late = to.send(read.map(end));
    });
    std::thread::spawn(move || {
        if stops.wait().is_ok() {
            let _late = stopped.send(Ok(Heard::Stop));
        }
    });
    match from.recv_timeout(READY) {
        Ok(heard) => Ok(heard.context("cannot hear the target")?),
        Err(_) => Err(Failure::new(
            Exit::TimedOut,
            format!(
                "the target is not ready after {} s; it goes on trying: `trine attached` shows it, `trine detach` ends it",
                READY.as_secs()
            ),
        )),
    }
}

/// The code that the target ended with.
fn code(child: &mut Child) -> Outcome<Exit> {
    let status = child.wait().context("cannot wait for the target")?;
    Ok(match status.code() {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Unreachable,
        Some(4) => Exit::NoSuch,
        Some(5) => Exit::Refused,
        Some(6) => Exit::TimedOut,
        _ => Exit::Failed,
    })
}

pub(crate) fn run_detach(args: &DetachArgs) -> Outcome {
    let place = Place::new(&records(&args.cluster)?, &args.volume.to_string());
    detach(&place, &args.cluster.client()?, args.force).map_err(|error| match error {
        // It comes last: by then the target has ended.
        TargetError::Conductor(error) => {
            let Failure { exit, why } = error.into();
            let what = format!("nothing serves {} here any more, but the conductor was not told", args.volume);
            Failure { exit, why: why.context(format!("{what}: detach it again when that answers")) }
        }
        error => error.into(),
    })
}

/// One attachment in a listing.
#[derive(Serialize)]
struct Attached {
    #[serde(flatten)]
    known: Known,
    /// The target's process lives.
    live: bool,
    /// `live`, `dead`, `starting` (its device is not usable yet), `fenced` (a newer attachment exists), or `silent` (it lives and does
    /// not answer).
    state: &'static str,
    /// What it says of itself, if it lives and answers.
    target: Option<TargetView>,
    /// Where the requests that finished last spent their time, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<Step>>,
}

/// What there is to know of it.
#[derive(Serialize)]
#[serde(untagged)]
enum Known {
    Record(Record),
    /// It has just begun.
    Nothing {
        volume: String,
        pid: Option<u32>,
    },
}

pub(crate) fn attached(args: &AttachedArgs) -> Outcome {
    let mut all = Vec::new();
    let served = if args.trace { Some(trace::served(&trace::sockets(&args.cluster)?)) } else { None };
    for place in Place::all(&records(&args.cluster)?)? {
        let (live, holder) = (place.is_live()?, place.holder());
        // One that comes up may show what a dead one left.
        let own = |record: &Record| holder.is_some_and(|holder| record.is_of(holder));
        all.push(match place.read()? {
            Some(record) if !live => {
                Attached { known: Known::Record(record), live, state: "dead", target: None, steps: None }
            }
            Some(record) if own(&record) => {
                let look = look(&place).ok();
                let state = match &look {
                    None => "silent",
                    Some(look) if look.target.fenced => "fenced",
                    Some(look) if look.starting => "starting",
                    Some(_) => "live",
                };
                let target = look.map(|look| look.target);
                let steps = target.as_ref().zip(served.as_ref()).map(|(target, served)| steps(&target.traces, served));
                Attached { known: Known::Record(record), live, state, target, steps }
            }
            _ if live => {
                let known = Known::Nothing { volume: place.volume().to_owned(), pid: holder.map(|holder| holder.pid) };
                Attached { known, live, state: "starting", target: None, steps: None }
            }
            // One that is detached meanwhile is none.
            _ => continue,
        });
    }
    args.output.print(&all, |all| people(all))
}

fn people(all: &[Attached]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let none = || "-".to_owned();
    let rows = all.iter().map(|Attached { known, live, state, target, .. }| {
        let state = if *live { (*state).to_owned() } else { format!("{state} (recover with trine attach)") };
        let requests = target.as_ref().map_or_else(none, |target| target.requests.to_string());
        let over = target.as_ref().map_or_else(none, over);
        match known {
            Known::Record(record) => {
                let since = now.saturating_sub(Duration::from_millis(record.since_ms));
                let since = humantime::format_duration(Duration::from_secs(since.as_secs())).to_string();
                vec![record.volume.clone(), record.device.clone(), state, record.pid.to_string(), since, requests, over]
            }
            Known::Nothing { volume, pid } => {
                let pid = pid.map_or_else(none, |pid| pid.to_string());
                vec![volume.clone(), none(), state, pid, none(), requests, over]
            }
        }
    });
    let mut text = table(&["VOLUME", "DEVICE", "STATE", "PID", "SINCE", "REQUESTS", "OVER"], rows);
    for Attached { known, target, steps, .. } in all {
        let (Known::Record(record), Some(target)) = (known, target) else { continue };
        for wait in &target.waiting {
            let seconds = wait.longest_ms / 1000;
            text += &format!("  {}: shard {} waits for {seconds} s: {}\n", record.volume, wait.shard, wait.reason);
        }
        if let Some(steps) = steps {
            text += &format!(
                "\n{}: where the requests that finished last spent their time\n{}",
                record.volume,
                trace::people(steps)
            );
        }
    }
    text
}

/// What its connections go over: `tcp`, `rdma`, `rdma 2, tcp 1`; none if there is no connection.
fn over(target: &TargetView) -> String {
    let of = |way: &str| target.links.iter().filter(|link| link.state == "up" && link.transport == way).count();
    match (of("rdma"), of("tcp")) {
        (0, 0) => "-".to_owned(),
        (0, _) => "tcp".to_owned(),
        (_, 0) => "rdma".to_owned(),
        (rdma, tcp) => format!("rdma {rdma}, tcp {tcp}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nbd_listens_is_said_in_two_ways() {
        let parse = |text: &str| text.parse::<Nbd>().map(|nbd| nbd.0);
        assert_eq!(parse("unix:/run/x"), Ok(Address::Unix("/run/x".into())));
        assert!(matches!(parse("unix:x"), Ok(Address::Unix(path)) if path.is_absolute()));
        assert_eq!(parse("tcp:127.0.0.1:0"), Ok(Address::Tcp(([127, 0, 0, 1], 0).into())));
        for bad in ["", "unix:", "tcp:", "tcp:1", "tcp:host:1", "/run/x"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_range_is_said_with_its_way_its_offset_and_its_length() {
        let parse = |text: &str| text.parse::<RangeArg>().map(|RangeArg(range)| range);
        let (offset, len) = (Bytes(8 << 20), Bytes(1 << 30));
        assert_eq!(parse("write:8M+1G"), Ok(Range { offset, len, write: true }));
        assert_eq!(parse("read:8388608+1GiB"), Ok(Range { offset, len, write: false }));
        for bad in ["", "write", "write:1M", "write:1M+", "write:+1M", "write:-1+1M", "both:0+1M", "write:0+1M+1M"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(range_wait("20s").is_ok() && range_wait("21s").is_err() && range_wait("soon").is_err());
    }

    #[test]
    fn a_clients_name_fits_whatever_the_volume_is_called() {
        let id = |subject: &str, host: &str, dir: &str| place_id(&subject.parse().unwrap(), host, Path::new(dir));
        let name = |subject: &str, host: &str| {
            default_name("", &subject.parse().unwrap(), host, &id(subject, host, "/run/trine/attached"))
        };
        let long = "v".repeat(64);
        let db = name("db", "host");
        assert!(db.starts_with("host/db~") && db == name("db", "host"), "{db}: what died is taken over");
        for snapshot in [format!("{long}@{long}"), "db@monday".to_owned()] {
            let name = name(&snapshot, "host");
            assert!(name.len() <= wire::MAX_NAME && name.ends_with(&format!("#{}", std::process::id())), "{name}");
        }
        // Where only the beginning of a host's or a volume's name has room.
        let (volume, worker) = (format!("pvc-{}", "0".repeat(36)), "k8s-production-workers-");
        let cut = [name(&volume, &format!("{worker}1")), name(&volume, &format!("{worker}2"))];
        let cut =
            cut.into_iter().chain([name(&long, "a"), name(&long, "b"), name(&long.replacen('v', "vv", 1)[1..], "c")]);
        let cut: Vec<String> = cut.collect();
        assert!(cut.iter().all(|name| name.len() <= wire::MAX_NAME), "{cut:?}");
        assert_eq!(cut.iter().collect::<std::collections::BTreeSet<_>>().len(), cut.len(), "{cut:?}");
        assert_ne!(id("db", "host", "/run/trine/attached"), id("db", "host", "/root/other/attached"));
    }
}
