//! `trine volume`.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, ListArgs, Outcome, OutputArgs, Size, confirm, size, table, time};
use crate::progress::{Unit, patiently, sentence};
use crate::snapshot::parts;
use crate::{image, ranges, resync, scrub, sharing};
use clap::{Args, Subcommand, ValueEnum};
use conductor_client::Client;
use conductor_model::limits::DEFAULT_MIN_COPIES;
use conductor_model::views::{Health, NewCopies, NewVolume, NodeInfo, VolumeDetail, VolumeInfo, VolumeState};
use conductor_model::{Bytes, CopyState, Durability, Member, NodeId, check_volume_name, split_snapshot};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How often a volume that is waited for is looked at.
const POLL: Duration = Duration::from_millis(100);
/// A node notices within this time that a shard of its own does not serve: two of its ticks.
const NOTICED: Duration = Duration::from_millis(100);

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum VolumeCommand {
    /// Create a volume and wait until all of it serves
    Create(CreateArgs),
    /// List all volumes
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show one volume with its shards
    Show(NamedArgs),
    /// Who holds which ranges of a volume that is shared, or waits for them, as nodes told last, every ten seconds or so: at most 64 of a
    /// client on one core of a node, and none of a node that is silent
    Ranges(NamedArgs),
    /// Change how many copies a volume has, and how many of them have to acknowledge a write
    Set(SetArgs),
    /// Grow a volume; it never shrinks. Attached block devices notice by themselves within 5 seconds (Linux 6.16 and newer; older ones when they are
    /// attached again), NBD clients when they connect again, 5 seconds later or after that
    Resize(ResizeArgs),
    /// Give a volume another name, which keys and clones do not care about; not while anybody has it attached, nor, without --force, while a
    /// snapshot of it is
    #[command(alias = "mv")]
    Rename(RenameArgs),
    /// Delete a volume with all its data and snapshots; not while a clone needs one of them
    #[command(alias = "rm")]
    Delete(DeleteArgs),
    /// Make a new writable volume that begins as a snapshot of another: at once, and sharing its space
    Clone(sharing::CloneArgs),
    /// Make a clone independent of the volume that it was made from, which can be deleted then
    Flatten(sharing::FlattenArgs),
    /// Make a range of a volume read as the same range of another volume's snapshot, sharing its space
    CopyRange(sharing::CopyRangeArgs),
    /// Show the copy-ranges into a volume: those under way, those that ended before they were done, and those done in the last 10 minutes. Ends one of them
    CopyRanges(sharing::CopyRangesArgs),
    /// Write what is in a volume, or in a snapshot of it, into a file: a raw image, as qemu-img and dd know it
    Export(image::ExportArgs),
    /// Create a volume that holds what is in a file: a raw image, such as a disk of another machine. Until all is there it is called
    /// NAME.importing. One that fails or is interrupted leaves no volume, if the conductor answers; one that is killed, or whose
    /// host loses power, leaves that: `trine volume delete --force NAME.importing`
    Import(image::ImportArgs),
    /// Read everything on every copy in the background, and put right what is damaged
    Scrub(scrub::ScrubArgs),
}

#[derive(Args)]
pub(crate) struct CreateArgs {
    /// Its name: lower-case letters, digits, dots, dashes and underscores, at most 64
    #[arg(value_parser = name)]
    name: String,
    /// Its size: a multiple of 4 KiB, from 1 MiB to 64 TiB. Nothing is reserved: volumes are thin
    #[arg(long, value_name = "SIZE")]
    size: Size,
    #[command(flatten)]
    kind: KindArgs,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What a new volume is like, but for its size.
#[derive(Args)]
pub(crate) struct KindArgs {
    /// Size of the pieces that are placed on nodes: 4 KiB times a power of two, 1 MiB to 64 GiB
    #[arg(long, default_value = "4G", value_name = "SIZE")]
    shard_size: Size,
    /// Copies of each shard: 1, 2 or 3
    #[arg(long, default_value_t = conductor_model::limits::DEFAULT_COPIES, value_name = "N")]
    copies: u8,
    /// Fewest copies in sync that may acknowledge a write [default: 2, or 1 of 1]
    #[arg(long, value_name = "N")]
    min_copies: Option<u8>,
    #[command(flatten)]
    durability: DurabilityArg,
}

impl KindArgs {
    pub(crate) fn new_volume(&self, name: &str, size: Bytes) -> NewVolume {
        NewVolume {
            shard_size: Bytes(self.shard_size.0),
            copies: self.copies,
            min_copies: self.min_copies.unwrap_or(DEFAULT_MIN_COPIES.min(self.copies)),
            durability: self.durability.durability.into(),
            ..NewVolume::new(name, size)
        }
    }
}

/// When writes are acknowledged.
#[derive(Clone, Copy, Args)]
pub(crate) struct DurabilityArg {
    /// When a write is acknowledged: always durable, or only by the next flush, as of a disk with a write cache
    #[arg(long, value_enum, default_value = "always", value_name = "WHEN")]
    durability: When,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum When {
    /// When it is durable on every copy that is in sync
    Always,
    /// When every copy that is in sync has executed it; a flush, or a write with FUA, makes it durable
    Flush,
}

impl From<When> for Durability {
    fn from(when: When) -> Self {
        match when {
            When::Always => Self::Always,
            When::Flush => Self::Flush,
        }
    }
}

#[derive(Args)]
pub(crate) struct WaitArgs {
    /// Wait until it is done, a volume until every shard serves (this is the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return as soon as the conductor has taken it
    #[arg(long, overrides_with = "wait")]
    pub(crate) no_wait: bool,
    /// How long to wait: 30s, 5m; what was begun goes on after that
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Duration,
}

/// A volume about which something is shown.
#[derive(Args)]
pub(crate) struct NamedArgs {
    /// The volume
    #[arg(value_parser = name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ResizeArgs {
    /// The volume
    #[arg(value_parser = name)]
    name: String,
    /// Its new size, larger than before
    #[arg(long, value_name = "SIZE")]
    size: Size,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct RenameArgs {
    /// The volume
    #[arg(value_parser = name)]
    name: String,
    /// Its new name
    #[arg(value_name = "NEW", value_parser = name)]
    new: String,
    /// Although somebody reads a snapshot of it, whose requests fail then
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct SetArgs {
    /// The volume
    #[arg(value_parser = name)]
    name: String,
    /// Copies of each shard: 1, 2 or 3. New ones are filled in the background, those that are too many are deleted
    #[arg(long, value_name = "N", required_unless_present = "min_copies")]
    copies: Option<u8>,
    /// Fewest copies in sync that may acknowledge a write
    #[arg(long, value_name = "N")]
    min_copies: Option<u8>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The volume
    #[arg(value_parser = name)]
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Delete it although it is attached
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A volume that is gone but for its copies, as a listing would show it.
#[derive(Serialize)]
struct Deleted<'a> {
    name: &'a str,
    state: VolumeState,
}

/// A volume's name, checked before anything is sent.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if let Ok((volume, _)) = split_snapshot(text) {
        return Err(format!("{text} is a snapshot, of volume {volume}: a volume is to be named here"));
    }
    check_volume_name(text).map(|()| text.to_owned()).map_err(|why| why.to_string())
}

pub(crate) fn run(command: VolumeCommand) -> Outcome {
    match command {
        VolumeCommand::Create(args) => create(&args),
        VolumeCommand::List(args) => args.output.print(&args.cluster.client()?.volumes()?, |v| volumes_table(v)),
        VolumeCommand::Show(args) => args.output.print(&args.cluster.client()?.volume(&args.name)?, detail),
        VolumeCommand::Set(args) => set(&args),
        VolumeCommand::Resize(args) => resize(&args),
        VolumeCommand::Rename(args) => rename(&args),
        VolumeCommand::Ranges(args) => ranges::ranges(&args),
        VolumeCommand::Delete(args) => delete(&args),
        VolumeCommand::Clone(args) => sharing::clone(&args),
        VolumeCommand::Flatten(args) => sharing::flatten(&args),
        VolumeCommand::CopyRange(args) => sharing::copy_range(&args),
        VolumeCommand::CopyRanges(args) => sharing::copy_ranges(&args),
        VolumeCommand::Export(args) => image::export(args),
        VolumeCommand::Import(args) => image::import(args),
        VolumeCommand::Scrub(args) => scrub::run(&args),
    }
}

fn create(args: &CreateArgs) -> Outcome {
    let client = args.cluster.client()?;
    let info = client.create_volume(&args.kind.new_volume(&args.name, Bytes(args.size.0)))?;
    finish(&client, info, &args.wait, args.output, "created")
}

fn resize(args: &ResizeArgs) -> Outcome {
    let client = args.cluster.client()?;
    let info = client.resize_volume(&args.name, Bytes(args.size.0))?;
    finish(&client, info, &args.wait, args.output, "grown")
}

fn rename(args: &RenameArgs) -> Outcome {
    let info = args.cluster.client()?.rename_volume(&args.name, &args.new, args.force)?;
    args.output.print_done(&info, |info| format!("volume {} is called {} now", args.name, info.name))
}

fn set(args: &SetArgs) -> Outcome {
    let new = NewCopies { copies: args.copies, min_copies: args.min_copies };
    let info = args.cluster.client()?.set_copies(&args.name, &new)?;
    args.output.print_done(&info, |info| {
        format!("volume {} has {} copies, {} of them to acknowledge a write", info.name, info.copies, info.min_copies)
    })
}

/// Waits, if that is wanted, until the volume serves, and says so.
pub(crate) fn finish(client: &Client, info: VolumeInfo, wait: &WaitArgs, output: OutputArgs, done: &str) -> Outcome {
    let so_far = format!("volume {} is {done}", info.name);
    let info = if wait.no_wait { info } else { wait_until_served(client, &info, &so_far, wait.timeout, &|| false)? };
    output.print_done(&info, |info| {
        let shards = if info.shards == 1 { "shard" } else { "shards" };
        format!("volume {} {done}: {} in {} {shards}", info.name, size(info.size), info.shards)
    })
}

/// Until every shard was born, and every primary's node has spoken since and complains of none of them; or `is_stopped`.
pub(crate) fn wait_until_served(
    client: &Client,
    info: &VolumeInfo,
    so_far: &str,
    timeout: Duration,
    is_stopped: &dyn Fn() -> bool,
) -> Outcome<VolumeInfo> {
    let start = Instant::now();
    // Draws nothing unless stderr is a terminal.
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} shards").map_err(anyhow::Error::from)?;
    let bar = ProgressBar::new(info.shards.into()).with_style(style).with_message(info.name.clone());
    let mut born = None;
    loop {
        // The nodes first: what they said by then is in what the conductor says of the volume next.
        let asked = Instant::now();
        let look = || Ok((client.nodes()?, client.volume(&info.name)?));
        let (nodes, now) = patiently(so_far, start + timeout, is_stopped, look)?;
        bar.set_position(now.shards.iter().filter(|s| s.born).count() as u64);
        if now.shards.iter().all(|s| s.born) {
            let since = asked.saturating_duration_since(*born.get_or_insert_with(Instant::now));
            let primaries: BTreeSet<NodeId> =
                now.shards.iter().filter_map(|s| Some(s.primary_member()?.node)).collect();
            let spoke = |node: &NodeInfo| Duration::from_millis(node.silent_ms) + NOTICED < since;
            let all_spoke = nodes.iter().filter(|n| primaries.contains(&n.node)).all(spoke);
            // Copies may be missing: it serves without them.
            if all_spoke && now.info.health < Health::Waiting {
                bar.finish_and_clear();
                return Ok(now.info);
            }
        }
        if start.elapsed() >= timeout {
            bar.abandon();
            let reasons = match now.info.reasons.as_slice() {
                [] => "its nodes have not spoken since it was created".to_owned(),
                reasons => reasons.join("; "),
            };
            return Err(Failure::new(Exit::TimedOut, format!("{so_far}, and does not serve yet: {reasons}")));
        }
        if is_stopped() {
            bar.abandon();
            return Err(Failure::new(Exit::Failed, format!("{so_far}, and it was interrupted before that served")));
        }
        std::thread::sleep(POLL);
    }
}

fn delete(args: &DeleteArgs) -> Outcome {
    let client = args.cluster.client()?;
    if !args.yes {
        let info = client.volume(&args.name)?.info;
        let snapshots = match info.snapshots {
            0 => String::new(),
            1 => ", with its snapshot,".to_owned(),
            n => format!(", with its {n} snapshots,"),
        };
        confirm(&format!("Delete volume {} and its {}{snapshots} for good?", info.name, size(info.size)), false)?;
    }
    client.delete_volume(&args.name, args.force)?;
    let deleted = Deleted { name: &args.name, state: VolumeState::Deleting };
    args.output.print_done(&deleted, |volume| format!("volume {} deleted", volume.name))
}

/// All volumes, one line each.
pub(crate) fn volumes_table(volumes: &[VolumeInfo]) -> String {
    let row = |v: &VolumeInfo| {
        let state = match (v.state, v.health) {
            (VolumeState::Deleting, _) => format!("deleting, {} copies left", v.drops_left),
            (VolumeState::Active, health) => health.to_string(),
        };
        let attached = match (&v.attachment, v.readers.as_slice()) {
            (Some(writer), _) => writer.client.clone(),
            (None, []) => "-".to_owned(),
            (None, [one]) => format!("{} ({})", one.client, if one.shared { "shared" } else { "read-only" }),
            (None, together) if together.iter().any(|r| r.shared) => format!("{} sharing", together.len()),
            (None, readers) => format!("{} readers", readers.len()),
        };
        vec![v.name.clone(), size(v.size), v.shards.to_string(), v.copies.to_string(), state, attached]
    };
    table(&["VOLUME", "SIZE", "SHARDS", "COPIES", "STATE", "ATTACHED BY"], volumes.iter().map(row))
}

/// What is being done to a volume: one line each.
pub(crate) fn under_way(info: &VolumeInfo) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(info.filling.as_ref().filter(|f| f.of.0 > 0).map(resync::describe));
    if let Some(rollback) = &info.rollback {
        let far = sentence(&rollback.progress, Unit::Parts("shards"));
        let snapshot = format!("{}@{}", info.name, rollback.snapshot);
        let way_out = match rollback.progress.reasons.as_slice() {
            [] => String::new(),
            _ => format!("; it is tried again; `trine snapshot rollback {snapshot} --cancel` ends it"),
        };
        lines.push(format!("being rolled back to {snapshot}: {far}{way_out}"));
    }
    if let Some(cancelled) = &info.cancelled_rollback {
        lines.push(format!("a rollback was cancelled: {}", parts(cancelled)));
    }
    if let Some(progress) = &info.flatten {
        lines.push(format!("being flattened: {}", sentence(progress, Unit::Parts("copies"))));
    }
    lines
}

fn detail(volume: &VolumeDetail) -> String {
    let mut text = volumes_table(std::slice::from_ref(&volume.info));
    for line in volume.info.reasons.iter().chain(&under_way(&volume.info)) {
        let _ = writeln!(text, "  {line}");
    }
    let info = &volume.info;
    let durability = match info.durability {
        Durability::Always => "always durable",
        Durability::Flush => "durable by the next flush",
    };
    let _ = writeln!(text, "\nacknowledged writes: {durability}, on at least {} copies", info.min_copies);
    let _ = writeln!(text, "snapshots: {}", info.snapshots);
    if let Some(parent) = &info.parent {
        let _ = writeln!(text, "clone of: {parent}");
    }
    match &info.scrub {
        Some(scrub) => drop(writeln!(text, "{}", scrub::describe(scrub))),
        None => drop(writeln!(text, "never scrubbed")),
    }
    let rows = volume.shards.iter().map(|s| {
        let primary = s.primary_member().map_or("-".to_owned(), |m| format!("{} at {}", m.node, m.endpoint));
        let members: Vec<String> = s.members.iter().map(member).collect();
        let state = match (s.born, s.is_sealed()) {
            (false, _) => "being created".to_owned(),
            (true, false) => format!("{} in sync", s.in_sync()),
            (true, true) => format!("{} in sync: too few", s.in_sync()),
        };
        vec![s.shard.index.to_string(), size(s.size), s.epoch.to_string(), primary, members.join(" "), state]
    });
    let _ = write!(text, "\n{}", table(&["SHARD", "SIZE", "EPOCH", "PRIMARY", "ON NODES", "STATE"], rows));
    text
}

/// Where a copy is, and what it counts as if it is not in sync.
fn member(member: &Member) -> String {
    match member.state {
        CopyState::InSync => member.node.to_string(),
        CopyState::Syncing => format!("{} (filling)", member.node),
        CopyState::Absent => format!("{} (absent)", member.node),
    }
}
