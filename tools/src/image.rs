//! `trine volume export` and `trine volume import`: a volume as a file, and the other way round.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, Size, note, time, was_closed};
use crate::visit::{in_use, visit};
use crate::volume::{KindArgs, name, wait_until_served};
use anyhow::Context;
use clap::Args;
use conductor_client::Client;
use conductor_model::limits::{MAX_VOLUME_NAME, MIN_VOLUME};
use conductor_model::views::VolumeInfo;
use conductor_model::{BLOCK, Bytes};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde::Serialize;
use std::cell::Cell;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use target_daemon::image::{self, Far, Moved, Sink, Source};
use target_daemon::{Subject, TargetError, Visit, is_visited};

/// How long a conductor's answer is waited for by who may be told to end meanwhile, or was: a healthy one needs milliseconds.
const SOON: Duration = Duration::from_secs(3);
/// Behind the name of a volume that is being imported.
const IMPORTING: &str = ".importing";

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The volume, which nobody may have attached, but for others that read it; or VOLUME@SNAPSHOT, whoever uses the volume
    volume: Subject,
    /// A new file, in which zeros take no space, called FILE.part until all of it is there; or - for the standard output
    file: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ImportArgs {
    /// A file, a block device, or - for the standard input. Zeros in it take no space
    file: PathBuf,
    /// The new volume's name: lower-case letters, digits, dots, dashes and underscores, at most 64
    #[arg(value_parser = name)]
    name: String,
    /// Its size, if it is to be larger than the file, or the file's size is not known
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// What comes may be shorter than --size says: zeros follow
    #[arg(long, requires = "size")]
    short: bool,
    /// The bytes as they are, also those of a qcow2, VMDK, VHDX, VHD or VDI image: without it these are refused, as what is in them is not
    /// the disk that they describe
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    kind: KindArgs,
    /// How long to wait until the new volume serves: 30s, 5m
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = time)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    volume: &'a str,
    file: String,
    #[serde(flatten)]
    moved: Moved,
}

pub(crate) fn export(args: ExportArgs) -> Outcome {
    let ExportArgs { volume: subject, file, cluster, output } = args;
    let volume = subject.to_string();
    let to_stdout = file == Path::new("-");
    if to_stdout && was_closed(std::io::stdout())? {
        return Err(Failure::new(
            Exit::Failed,
            "the standard output is closed, or /dev/null for reading and writing: send it on with > or |, or name a file",
        ));
    }
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Failure::usage("an image is nothing for a terminal: name a file, or send it on with |"));
    }
    let by = visit(&cluster, subject, "export")?;
    let to = if to_stdout { Sink::stdout() } else { Sink::create(&file) }?;
    let moved = following(&volume, |progress| image::export(by, to, progress));
    let moved = moved.map_err(|error| in_use(error, &volume, "volume export"))?;
    let report = Report { volume: &volume, file: file.display().to_string(), moved };
    if to_stdout {
        note(people("exported", &report));
        return Ok(());
    }
    output.print_done(&report, |report| people("exported", report))
}

pub(crate) fn import(args: ImportArgs) -> Outcome {
    let from_stdin = args.file == Path::new("-");
    if from_stdin && was_closed(std::io::stdin())? {
        return Err(Failure::new(
            Exit::Failed,
            "the standard input is closed, or /dev/null for reading and writing: send an image with < or |, or name a file",
        ));
    }
    let source = if from_stdin { Source::stdin() } else { Source::open(&args.file) }?;
    let source = if args.raw { source.raw() } else { source };
    source.check()?;
    let size = new_size(source.size(), args.size)?;
    // Under its own name when it is whole: what a killed import leaves is seen to be a part.
    let part = part_name(&args.name);
    let subject = part.parse::<Subject>().context("a volume's name")?;
    let by = visit(&args.cluster, subject, "import")?;
    let client = args.cluster.client()?;
    match client.volume(&args.name) {
        Ok(_) => return Err(Failure::new(Exit::Refused, format!("there is a volume {} already", args.name))),
        Err(error) if error.kind() == Some("no-volume") => {}
        Err(error) => return Err(error.into()),
    }
    // What comes while the new volume is waited for is found there, what comes later by the import itself.
    let stops = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    stops.thread_block().context("cannot block signals")?;
    let signals = SignalFd::with_flags(&stops, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
    let signals = signals.context("cannot watch for signals")?;
    let stopped = Cell::new(false);
    let is_stopped = || {
        stopped.set(stopped.get() || matches!(signals.read_signal(), Ok(Some(_))));
        stopped.get()
    };
    let new = client.create_volume(&args.kind.new_volume(&part, Bytes(size))).map_err(|error| match error.kind() {
        Some("volume-exists") => Failure::new(Exit::Refused, another(&client, &by.client_name, &part, &args.name)),
        _ => error.into(),
    })?;
    let by = Visit { volume: Some(new.id), ..by };
    let so_far = format!("volume {part} is created");
    let soon = client.within(SOON);
    let moved = wait_until_served(&soon, &new, &so_far, args.timeout, &is_stopped).and_then(|_| {
        let moved = following(&args.name, |progress| image::import(by, source, !args.short, progress));
        stopped.set(matches!(moved, Err(TargetError::Interrupted)));
        Ok(moved?)
    });
    let moved = moved.map_err(|failure| undo(&soon, &new, failure))?;
    name_it(&client, &new, &args.name)?;
    args.output.print_done(&Report { volume: &args.name, file: args.file.display().to_string(), moved }, |report| {
        people("imported", report)
    })
}

/// Why there is such a volume already, and what removes it. `own`: what an import from this host is called.
fn another(client: &Client, own: &str, part: &str, name: &str) -> String {
    let there = format!("there is a volume {part} already");
    let attached = client.volume(part).ok().and_then(|found| found.info.attachment);
    let removes = format!("`trine volume delete --force {part}` removes what it left");
    match attached {
        None => format!(
            "{there}: another import to {name} is about to begin, or was killed, and `trine volume delete {part}` removes what it left"
        ),
        Some(by) if by.client == own && is_visited(client, own).is_ok_and(|is| !is) => format!(
            "{there}: an import to {name} from this host was killed, and has it attached still; if none runs in another namespace, {removes}"
        ),
        Some(by) if by.client == own && is_visited(client, own).is_ok_and(|is| is) => {
            format!("{there}: another import to {name} is under way on this host")
        }
        Some(by) => format!(
            "{there}: another import to {name} is under way, or was killed, and has it attached as {}; if no such process runs any \
             more, {removes}",
            by.client
        ),
    }
}

/// What a volume is called while it is imported: its name, or of a long one as much as there is room for, and something of its own.
fn part_name(name: &str) -> String {
    let room = MAX_VOLUME_NAME - IMPORTING.len();
    if name.len() <= room {
        return format!("{name}{IMPORTING}");
    }
    let own = format!("-{:08x}", crc32c::crc32c(name.as_bytes()));
    format!("{}{own}{IMPORTING}", &name[..room - own.len()])
}

/// All of it is there. It keeps the name that it was imported under if it cannot have its own: what may have taken hours is not thrown away.
fn name_it(client: &Client, new: &VolumeInfo, name: &str) -> Outcome {
    let Err(error) = client.rename_volume(&new.name, name, false) else { return Ok(()) };
    // Its answer may have been lost.
    if client.volume(name).is_ok_and(|there| there.info.id == new.id) {
        return Ok(());
    }
    let part = &new.name;
    let Failure { exit, why } = error.into();
    let what = format!("all of it is imported, as volume {part}: `trine volume rename {part} {name}`, or another name");
    Err(Failure { exit, why: why.context(what) })
}

fn new_size(file: Option<u64>, asked: Option<Size>) -> Outcome<u64> {
    match (file, asked.map(|size| size.0)) {
        (None, None) => {
            Err(Failure::usage("how much comes is not known before it does: say --size, and --short if it may be less"))
        }
        (Some(file), Some(asked)) if asked < file => {
            Err(Failure::usage(format!("the file has {}: --size cannot be less", Size(file))))
        }
        (_, Some(asked)) => Ok(asked),
        (Some(0), None) => Err(Failure::usage("the file is empty")),
        (Some(file), None) => Ok(file.max(MIN_VOLUME.0).next_multiple_of(BLOCK as u64)),
    }
}

/// Half of an image looks like a whole one. What somebody else made by that name since is not touched.
fn undo(client: &Client, new: &VolumeInfo, failure: Failure) -> Failure {
    let Failure { exit, why } = failure;
    let volume = new.name.as_str();
    let deleted = match client.volume(volume) {
        Ok(now) if now.info.id == new.id => client.delete_volume(volume, false).map(|()| true),
        Ok(_) => Ok(false),
        Err(error) if error.kind() == Some("no-volume") => Ok(false),
        Err(error) => Err(error),
    };
    match deleted {
        Ok(true) => {
            Failure { exit, why: why.context(format!("nothing was imported, and volume {volume} is deleted again")) }
        }
        Ok(false) => Failure { exit, why: why.context(format!("volume {volume} was deleted meanwhile")) },
        Err(error) => {
            let left = format!(
                "volume {volume} has a part of the image, and could not be deleted ({error}): `trine volume delete --force {volume}`"
            );
            Failure { exit: Exit::Failed, why: why.context(left) }
        }
    }
}

/// Shows how far it is: as a bar on a terminal; and what it waits for, on whatever stderr is.
fn following<T>(volume: &str, work: impl FnOnce(&mut dyn FnMut(&Far)) -> T) -> T {
    let style = |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::no_length().with_message(volume.to_owned());
    bar.set_style(style("{msg} {bytes}, {binary_bytes_per_sec}"));
    let mut waits = Vec::new();
    let worked = work(&mut |far| {
        if let Some(of) = far.of.filter(|of| bar.length() != Some(*of)) {
            bar.set_length(of);
            bar.set_style(style("{msg} {bar:40} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left"));
        }
        bar.set_position(far.done);
        if far.waits_for != waits {
            waits.clone_from(&far.waits_for);
            let line =
                if waits.is_empty() { "it goes on".to_owned() } else { format!("waiting: {}", waits.join("; ")) };
            bar.suspend(|| note(line));
        }
    });
    bar.finish_and_clear();
    worked
}

fn people(done: &str, report: &Report) -> String {
    let Report { volume, file, moved: Moved { bytes, data, seconds } } = report;
    let way = match (done, file.as_str()) {
        ("imported", "-") => "from the standard input".to_owned(),
        ("imported", file) => format!("from {file}"),
        (_, "-") => "to the standard output".to_owned(),
        (_, file) => format!("to {file}"),
    };
    format!("{volume} {done} {way}: {}, {} of it data, in {seconds:.1} s", Size(*bytes), Size(*data))
}
