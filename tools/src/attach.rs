//! `trine attach` and `trine detach`: volumes on this host.
//!
//! `attach` starts itself once more as the target (`background`), in a session of its own with its log in a file, and waits for one line on
//! its standard output: the device, or why there is none. `--foreground` is the target itself, for service managers. An `attach` that is
//! told to end while it waits (Ctrl-C) ends the target that it started.

use crate::background;
use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Format, Outcome, OutputArgs, Size, note, print, time};
use crate::trace::{self};
use anyhow::Context;
use clap::{Args, ValueEnum};
use conductor_client::Client;
use conductor_model::Bytes;
use conductor_model::limits::MAX_HOST_NAME;
use nix::unistd::Uid;
use serde::Serialize;
use std::env;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use target_daemon::{
    Address, ClientError, FrontEnd, Kept, Limits, NbdTls, Options, Place, Range, Shared, Subject, TargetError,
    Transport, detach, kept,
};
use tls::{Identity, PemFiles};
use wire::{KEY_MARK, Key};

/// Longest that a target waits for ranges before it serves.
const RANGE_WAIT: Duration = Duration::from_secs(20);

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
    /// Threads that serve the block device; one that waits for its target keeps its own, and its depth [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "nbd", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
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
    #[arg(long, value_name = "TIME", value_parser = io_timeout)]
    io_timeout: Option<Duration>,
    /// Ask for so many requests a second at most, and have the rest wait; flushes are not counted
    #[arg(long, value_name = "N")]
    iops: Option<NonZeroU64>,
    /// Read and write so many bytes a second at most, like 100M, and have the rest wait
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Size>,
    /// Take the volume from the client that has it, or from all that read it
    #[arg(long)]
    force: bool,
    /// This client's name in the cluster [default: HOST/VOLUME~ID, where ID tells machines and their --dir apart]
    #[arg(long, value_name = "NAME")]
    client_name: Option<String>,
    /// Stay, instead of serving in the background; JSON is one line then
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
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct DetachArgs {
    /// The volume, or VOLUME@SNAPSHOT
    volume: Subject,
    /// End it although it is in use or does not answer, or its record was lost; what is in flight fails at once, and not only if it is not over
    /// after 10 s
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// An attachment that ended.
#[derive(Serialize)]
struct Detached {
    volume: String,
    detached: bool,
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
        match parsed() {
            Some(range) if range.is_of_blocks() => Ok(Self(range)),
            Some(_) => Err("OFFSET and LENGTH are multiples of 4 KiB, and LENGTH is not 0".to_owned()),
            None => Err("write read:OFFSET+LENGTH or write:OFFSET+LENGTH, like write:0+1G".to_owned()),
        }
    }
}

fn io_timeout(text: &str) -> Result<Duration, String> {
    let timeout = time(text)?;
    if timeout.is_zero() {
        Err("every request would fail at once: leave it out to wait for ever".to_owned())
    } else {
        Ok(timeout)
    }
}

/// A target comes up within `READY` (`background.rs`), waiting for its ranges included.
fn range_wait(text: &str) -> Result<Duration, String> {
    let wait = time(text)?;
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
            TargetError::RdmaInClear | TargetError::Plaintext(_) | TargetError::NotRaw { .. } => Exit::Usage,
            TargetError::Client(ClientError::Beyond(..) | ClientError::TooManyRanges) => Exit::Usage,
            TargetError::Attached(_)
            | TargetError::Busy { .. }
            | TargetError::Waits(_)
            | TargetError::WaitsToWrite(_)
            | TargetError::WaitsToRead(_)
            | TargetError::Unrecorded { .. }
            | TargetError::Refused { .. }
            | TargetError::Runs(_)
            | TargetError::Exists(_)
            | TargetError::Directory(_)
            | TargetError::CutShort(_)
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
        return background::serve(|| options(args));
    }
    let output = args.output;
    let place = Place::new(&records(&args.cluster)?, &args.volume.to_string());
    if let Some(what) = kept(&place).filter(|_| args.nbd.is_none()).and_then(|kept| kept_otherwise(&args, &kept)) {
        note(format_args!("trine: {what}"));
    }
    if args.foreground {
        return Ok(target_daemon::run(options(args)?, |record| {
            let line = match output.output {
                Format::Table => Ok(record.device.clone()),
                Format::Json => serde_json::to_string(record),
            };
            // A reader that went away does not end the service.
            let _said = line.map(|line| print(&line));
        })?);
    }
    // What can be said at once is said here, without a second process.
    if args.trace && output.output == Format::Json {
        let why =
            "--trace shows tables to people: say -o table, or ask `trine attached --trace -o json` again and again";
        return Err(Failure::usage(why));
    }
    let sockets = args.trace.then(|| trace::sockets(&args.cluster)).transpose()?;
    options(args)?;
    let device = background::spawn(&place)?;
    say(&place, &device, output).map_err(|unsaid| {
        let volume = place.volume();
        let what =
            format!("{volume} is attached, as {device}, which could not be printed: `trine detach {volume}` ends it");
        Failure { why: unsaid.why.context(what), ..unsaid }
    })?;
    sockets.map_or(Ok(()), |sockets| trace::follow(&place, &sockets))
}

/// That a device which is to be taken over is not what was asked for, if it is not.
fn kept_otherwise(args: &AttachArgs, Kept { device, queues, depth }: &Kept) -> Option<String> {
    let is = |asked: Option<u16>, is: u16| asked.is_none_or(|asked| asked == is);
    if is(args.queues, *queues) && is(args.depth, *depth) {
        return None;
    }
    let volume = &args.volume;
    Some(format!(
        "{device}, which waits for its target, keeps --queues {queues} and --depth {depth}: `trine detach {volume}` first to have others"
    ))
}

/// The device; to programs all that is recorded of the attachment.
fn say(place: &Place, device: &str, output: OutputArgs) -> Outcome {
    match output.output {
        Format::Table => print(device),
        Format::Json => {
            let record = place.read()?.ok_or_else(|| Failure::new(Exit::Failed, "it is detached already"))?;
            output.print(&record, |_| String::new())
        }
    }
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
        None => {
            let process = if args.volume.is_snapshot() { format!("#{}", std::process::id()) } else { String::new() };
            default_name(&mark, &args.volume, &host, &records, &process)
        }
    };
    let bandwidth = match args.bandwidth {
        Some(Size(bytes)) => {
            let some = NonZeroU64::new(bytes);
            Some(some.ok_or_else(|| Failure::usage("--bandwidth 0: nothing would ever be read or written"))?)
        }
        None => None,
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
            None => FrontEnd::Ublk { queues: args.queues.unwrap_or(1) },
        },
        subject: args.volume,
        force: args.force,
        io_timeout: args.io_timeout,
        limits: Limits { iops: args.iops, bandwidth },
        depth: args.depth,
        transport: args.transport.into(),
    })
}

/// `HOST/VOLUME~ID`, then what it is for, behind what a key of its own demands; host and volume are cut where a name may not be longer. The same for every
/// attachment of a volume from one place, so that what died is taken over; targets of one snapshot are told apart by their processes:
/// none of them takes the place of another.
pub(crate) fn default_name(mark: &str, subject: &Subject, host: &str, records: &Path, what: &str) -> String {
    let end = format!("~{}{what}", place_id(subject, host, records));
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
pub(crate) fn records(cluster: &ClusterArgs) -> Outcome<PathBuf> {
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

pub(crate) fn run_detach(args: &DetachArgs) -> Outcome {
    let (place, client) = (Place::new(&records(&args.cluster)?, &args.volume.to_string()), args.cluster.client()?);
    detach(&place, &client, args.force).map_err(|error| match error {
        TargetError::NotAttached { volume } => {
            let held = held_by_this_host(&client, &args.volume).unwrap_or_default();
            Failure::new(Exit::NoSuch, format!("{}{held}", TargetError::NotAttached { volume }))
        }
        // It comes last: by then the target has ended.
        TargetError::Conductor(error) => {
            let Failure { exit, why } = error.into();
            let what = format!("nothing serves {} here any more, but the conductor was not told", args.volume);
            Failure { exit, why: why.context(format!("{what}: detach it again when that answers")) }
        }
        error => error.into(),
    })?;
    match args.output.output {
        Format::Table => Ok(()),
        Format::Json => {
            let detached = Detached { volume: args.volume.to_string(), detached: true };
            args.output.print(&detached, |_| String::new())
        }
    }
}

/// An attach whose answer was lost, or that was not confirmed, leaves the volume held, and nothing here that says so. Which of this host's
/// clients served from other directories are cannot be told from here.
fn held_by_this_host(conductor: &Client, volume: &Subject) -> Option<String> {
    if volume.is_snapshot() {
        return None;
    }
    let (info, host) = (conductor.volume(&volume.to_string()).ok()?.info, host().ok()?);
    let writer = info.attachment.map(|writer| (writer.client, writer.host));
    let clients = writer.into_iter().chain(info.readers.into_iter().map(|reader| (reader.client, reader.host)));
    let (client, _) = clients.filter(|_| !host.is_empty()).find(|(_, on)| *on == host)?;
    Some(format!(
        "; the conductor has it attached by {client} on this host: if nothing here serves it, as after an attach that was not answered, \
         `trine client evict {client}` gives it up"
    ))
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
        for odd in ["write:0+0", "write:1+4K", "read:0+1K"] {
            assert!(parse(odd).unwrap_err().contains("multiples of 4 KiB"), "{odd}");
        }
        assert!(range_wait("20s").is_ok() && range_wait("21s").is_err() && range_wait("soon").is_err());
        assert!(io_timeout("1ms").is_ok() && io_timeout("0s").is_err() && io_timeout("soon").is_err());
    }

    #[test]
    fn a_clients_name_fits_whatever_the_volume_is_called() {
        let records = Path::new("/run/trine/attached");
        let name = |subject: &str, host: &str| default_name("", &subject.parse().unwrap(), host, records, "#7");
        let db = name("db", "host");
        assert!(db.starts_with("host/db~") && db.ends_with("#7") && db == name("db", "host"), "{db}");
        let long = "v".repeat(64);
        for snapshot in [format!("{long}@{long}"), "db@monday".to_owned()] {
            let name = name(&snapshot, "host");
            assert!(name.len() <= wire::MAX_NAME && name.ends_with("#7"), "{name}");
        }
        // Where only the beginning of a host's or a volume's name has room.
        let (volume, worker) = (format!("pvc-{}", "0".repeat(36)), "k8s-production-workers-");
        let cut = [name(&volume, &format!("{worker}1")), name(&volume, &format!("{worker}2"))];
        let cut =
            cut.into_iter().chain([name(&long, "a"), name(&long, "b"), name(&long.replacen('v', "vv", 1)[1..], "c")]);
        let cut: Vec<String> = cut.collect();
        assert!(cut.iter().all(|name| name.len() <= wire::MAX_NAME), "{cut:?}");
        assert_eq!(cut.iter().collect::<std::collections::BTreeSet<_>>().len(), cut.len(), "{cut:?}");
        let other = default_name("", &"db".parse().unwrap(), "host", Path::new("/root/other/attached"), "#7");
        assert_ne!(db, other);
    }
}
