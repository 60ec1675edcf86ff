//! `trine store …`: looks at disks without a node. The disks' nodes must be stopped. `check` and `dump` write nothing; `compare` recovers
//! each disk as its node would do at its next start, and otherwise leaves it as it is.

use crate::output::{self, Exit, Failure, Outcome, OutputArgs};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use node_daemon::offline::check::{Content, CopySeen, Depth, Finding, LayerSeen, Report};
use node_daemon::offline::{Compared, Difference, Held, HeldKind, Journals, Offline, OfflineError, View, inspect};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum StoreCommand {
    /// Compare the copies of each shard on several disks, block by block, and each snapshot that several have; exit code 1 if any differ
    Compare(CompareArgs),
    /// Check all metadata on disks, and with --data every block against its checksum; writes nothing; exit code 1 if anything is found
    Check(CheckArgs),
    /// What a disk says: whose it is, its copies, layers and snapshots, how they stand, its space; writes nothing
    Dump(DumpArgs),
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Files or block devices with a store. Their nodes must be stopped: a disk in use is refused. Each is recovered first, as its
    /// node would do
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<PathBuf>,
    /// The journal of a store that has it elsewhere; several in the order of those DISKs
    #[arg(long = "journal", value_name = "PATH")]
    journals: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Files or block devices with a store. Their nodes must be stopped: a disk in use is refused
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<PathBuf>,
    /// Read every block of data as well
    #[arg(long)]
    data: bool,
    /// The journal of a store that has it elsewhere; several in the order of those DISKs
    #[arg(long = "journal", value_name = "PATH")]
    journals: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct DumpArgs {
    /// A file or block device with a store. Its node must be stopped
    #[arg(value_name = "DISK")]
    disk: PathBuf,
    /// Its journal, if it has that elsewhere
    #[arg(long, value_name = "PATH")]
    journal: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(command: StoreCommand) -> Outcome {
    match command {
        StoreCommand::Compare(args) => compare(&args),
        StoreCommand::Check(args) => check(&args),
        StoreCommand::Dump(args) => dump(&args),
    }
}

fn failed(error: OfflineError) -> Failure {
    let exit = match &error {
        error if error.is_in_use() => Exit::Refused,
        error if error.is_missing() => Exit::NoSuch,
        error if error.is_of_usage() => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::new(exit, error)
}

/// How far a long read is; shown only to a terminal.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {bytes} read, {binary_bytes_per_sec}");
    let bar = ProgressBar::new_spinner();
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

const BLOCK: u64 = conductor_model::BLOCK as u64;

#[derive(Serialize)]
struct Comparison {
    equal: bool,
    shards: Vec<ComparedShard>,
}

#[derive(Serialize)]
struct ComparedShard {
    shard: String,
    view: String,
    copies: Vec<CopyPlace>,
    members: usize,
    blocks: u64,
    equal: bool,
    different: u64,
    first_difference: Option<String>,
}

#[derive(Serialize)]
struct CopyPlace {
    disk: String,
    copy: String,
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn compare(args: &CompareArgs) -> Outcome {
    let mut journals = Journals(&args.journals);
    let mut disks = Offline::open(&args.disks, &mut journals).map_err(failed)?;
    unused(&journals)?;
    let bar = progress();
    let compared = disks.compare(&mut |blocks| bar.inc(blocks * BLOCK)).map_err(failed)?;
    bar.finish_and_clear();
    if compared.is_empty() {
        return Err(Failure::new(
            Exit::Failed,
            "no shard has copies on two of these disks: there is nothing to compare",
        ));
    }
    let equal = compared.iter().all(Compared::is_equal);
    let shards = compared.iter().map(|shard| compared_shard(shard, &args.disks)).collect();
    args.output.print(&Comparison { equal, shards }, |comparison| {
        let rows = comparison.shards.iter().map(|shard| {
            let copies = format!("{} of {}", shard.copies.len(), shard.members);
            let verdict = match &shard.first_difference {
                None => "equal".to_owned(),
                Some(first) => format!("{} DIFFERENT, first: {first}", shard.different),
            };
            vec![shard.shard.clone(), shard.view.clone(), copies, shard.blocks.to_string(), verdict]
        });
        output::table(&["SHARD", "VIEW", "COPIES", "BLOCKS", "RESULT"], rows)
    })?;
    if equal { Ok(()) } else { Err(Failure::new(Exit::Failed, "the copies differ")) }
}

fn compared_shard(shard: &Compared, disks: &[PathBuf]) -> ComparedShard {
    let place = |disk: usize| disks.get(disk).map(|path| shown(path)).unwrap_or_default();
    ComparedShard {
        shard: shard.shard.to_string(),
        view: match shard.view {
            View::Live => "live".to_owned(),
            View::Snapshot(snapshot) => format!("snapshot {snapshot}"),
        },
        copies: shard
            .copies
            .iter()
            .map(|(disk, copy)| CopyPlace { disk: place(*disk), copy: copy.to_string() })
            .collect(),
        members: shard.members,
        blocks: shard.blocks,
        equal: shard.is_equal(),
        different: shard.different,
        first_difference: shard.first.as_ref().map(|first| match first {
            Difference::Content { block, disks: (a, b) } => {
                format!("block {} on {} is not as on {}", block.0, place(*b), place(*a))
            }
            Difference::Damaged { block, disk } => format!("block {} on {} is damaged", block.0, place(*disk)),
        }),
    }
}

#[derive(Serialize)]
struct Checked {
    good: bool,
    disks: Vec<CheckedDisk>,
}

#[derive(Serialize)]
struct CheckedDisk {
    path: String,
    good: bool,
    findings: Vec<Found>,
    /// Those beyond what is listed.
    unlisted: u64,
    pages: u64,
    entries: u64,
    chunks: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct Found {
    severity: String,
    part: String,
    at: String,
    what: String,
    repairable_by_scrub: bool,
}

impl Found {
    fn of(finding: &Finding) -> Self {
        Self {
            severity: finding.severity.to_string(),
            part: finding.part.to_string(),
            at: finding.at.clone(),
            what: finding.what.clone(),
            repairable_by_scrub: finding.by_scrub,
        }
    }
}

impl CheckedDisk {
    fn of(path: &Path, report: &Report) -> Self {
        let totals = report.totals;
        Self {
            path: shown(path),
            good: report.is_good(),
            findings: report.findings.iter().map(Found::of).collect(),
            unlisted: report.unlisted,
            pages: totals.pages,
            entries: totals.entries,
            chunks: totals.chunks,
            blocks: totals.blocks,
        }
    }
}

fn check(args: &CheckArgs) -> Outcome {
    let depth = if args.data { Depth::Data } else { Depth::Structure };
    let bar = progress();
    let mut journals = Journals(&args.journals);
    let (mut disks, mut foreign) = (Vec::new(), Vec::new());
    for path in &args.disks {
        let report = inspect(path, &mut journals, depth, &mut |blocks| bar.inc(blocks * BLOCK)).map_err(failed)?;
        disks.push(CheckedDisk::of(path, &report));
        foreign.extend(report.content.identity.is_none().then(|| no_store(path)));
    }
    bar.finish_and_clear();
    unused(&journals)?;
    let good = disks.iter().all(|disk| disk.good);
    let found: u64 = disks.iter().map(|disk| disk.findings.len() as u64 + disk.unlisted).sum();
    args.output.print(&Checked { good, disks }, |checked| {
        let row = |disk: &CheckedDisk| {
            let count = disk.findings.len() as u64 + disk.unlisted;
            let verdict = if disk.good { "good".to_owned() } else { format!("{count} FOUND") };
            let counts = [disk.pages, disk.entries, disk.chunks, disk.blocks].map(|count| count.to_string());
            [disk.path.clone()].into_iter().chain(counts).chain([verdict]).collect::<Vec<_>>()
        };
        let columns = ["DISK", "PAGES", "ENTRIES", "CHUNKS", "BLOCKS", "RESULT"];
        let lines = checked.disks.iter().flat_map(|disk| {
            disk.findings.iter().map(|found| {
                let scrub = if found.repairable_by_scrub { " (a scrub repairs it)" } else { "" };
                let Found { severity, part, at, what, .. } = found;
                format!("{}: {severity}: {part} {at}: {what}{scrub}\n", disk.path)
            })
        });
        output::table(&columns, checked.disks.iter().map(row)) + &lines.collect::<String>()
    })?;
    match found {
        0 => Ok(()),
        _ if !foreign.is_empty() => Err(Failure::new(Exit::Failed, foreign.join("; "))),
        n => Err(Failure::new(Exit::Failed, format!("things that are not as they should be: {n}"))),
    }
}

/// Where not even a superblock says whose it is.
fn no_store(path: &Path) -> String {
    format!("{}: it holds no store, or nothing of it can be read", shown(path))
}

/// A journal that no store asked for is a mistake.
fn unused(journals: &Journals<'_>) -> Outcome {
    match journals.0.first() {
        None => Ok(()),
        Some(path) => Err(Failure::usage(format!("{}: no store named here has its journal elsewhere", path.display()))),
    }
}

#[derive(Serialize)]
struct Dump {
    path: String,
    cluster: Option<String>,
    node: Option<String>,
    disk: Option<String>,
    superblocks: Vec<SuperblockLine>,
    geometry: Option<GeometryLine>,
    capacity: Option<u64>,
    used: Option<u64>,
    copies: Vec<CopyLine>,
    layers: Vec<LayerLine>,
    journal: JournalLine,
    /// What is in the way of knowing more.
    findings: Vec<Found>,
}

#[derive(Serialize)]
struct SuperblockLine {
    block: u64,
    generation: Option<u64>,
    boot: Option<u64>,
    damage: Option<String>,
}

#[derive(Serialize)]
struct GeometryLine {
    bytes: u64,
    chunks: u32,
    places: u32,
    places_taken: Option<u32>,
    journal_blocks: u32,
    max_copies: u32,
}

#[derive(Serialize)]
struct JournalLine {
    external: bool,
    tail_block: u32,
    tail_sequence: u64,
    head_block: Option<u32>,
    head_sequence: Option<u64>,
    groups: u64,
    records: u64,
    torn_groups: u64,
}

#[derive(Serialize)]
struct CopyLine {
    copy: String,
    shard: String,
    known_good: String,
    above_known_good: Vec<HeldLine>,
    filling: Option<FillingLine>,
    held_blocks: u32,
    live_layer: u32,
    snapshots: Vec<String>,
    configuration: conductor_model::Configuration,
}

/// How far a copy is filled.
#[derive(Serialize)]
struct FillingLine {
    base: String,
    before_block: u32,
    up_to: String,
}

#[derive(Serialize)]
struct HeldLine {
    stamp: String,
    from: u32,
    blocks: u32,
    kind: &'static str,
}

#[derive(Serialize)]
struct LayerLine {
    layer: u32,
    copy: String,
    parent: Option<u32>,
    snapshot: Option<String>,
    state: &'static str,
    base: String,
    blocks: u32,
    given_back_before_chunk: u32,
    own_chunks: u32,
}

impl LayerLine {
    fn of(layer: &LayerSeen) -> Self {
        Self {
            layer: layer.layer,
            copy: layer.copy.to_string(),
            parent: layer.parent,
            snapshot: layer.snapshot.map(|snapshot| snapshot.to_string()),
            state: match (layer.live, layer.snapshot) {
                (true, _) => "live",
                (false, Some(_)) => "snapshot",
                (false, None) => "dropping",
            },
            base: layer.base.to_string(),
            blocks: layer.blocks,
            given_back_before_chunk: layer.cursor,
            own_chunks: layer.chunks,
        }
    }
}

impl CopyLine {
    fn of(copy: &CopySeen, layers: &[LayerSeen]) -> Self {
        let own = layers.iter().filter(|layer| layer.copy == copy.copy);
        let held = |held: &Held| HeldLine {
            stamp: held.stamp.to_string(),
            from: held.at.from.0,
            blocks: held.at.count.0,
            kind: match held.kind {
                HeldKind::Write => "write",
                HeldKind::Zero => "zero",
                HeldKind::Barrier => "barrier",
            },
        };
        Self {
            copy: copy.copy.to_string(),
            shard: copy.config.shard.to_string(),
            known_good: copy.known_good.to_string(),
            above_known_good: copy.held.iter().map(held).collect(),
            filling: (copy.mark != Default::default()).then(|| FillingLine {
                base: copy.mark.base.to_string(),
                before_block: copy.mark.cursor.0,
                up_to: copy.mark.upto.to_string(),
            }),
            held_blocks: copy.used.0,
            live_layer: copy.live,
            snapshots: own.filter_map(|layer| layer.snapshot).map(|snapshot| snapshot.to_string()).collect(),
            configuration: copy.config.clone(),
        }
    }
}

impl Dump {
    fn of(path: &Path, report: &Report) -> Self {
        let Content { superblocks, identity, geometry, usage, places, copies, layers, journal } = &report.content;
        let identity = identity.as_ref();
        let mut copies: Vec<&CopySeen> = copies.iter().collect();
        copies.sort_by_key(|copy| copy.config.shard);
        Self {
            path: shown(path),
            cluster: identity.map(|identity| conductor_model::ClusterId(identity.cluster).to_string()),
            node: identity.map(|identity| identity.node.to_string()),
            disk: identity.map(|identity| identity.disk.to_string()),
            superblocks: superblocks
                .iter()
                .map(|seen| SuperblockLine {
                    block: seen.block,
                    generation: seen.state.as_ref().ok().map(|(generation, _)| *generation),
                    boot: seen.state.as_ref().ok().map(|(_, boot)| *boot),
                    damage: seen.state.as_ref().err().cloned(),
                })
                .collect(),
            geometry: geometry.map(|geometry| GeometryLine {
                bytes: geometry.size().0,
                chunks: geometry.chunks(),
                places: geometry.places(),
                places_taken: places.map(|(taken, _)| taken),
                journal_blocks: geometry.ring_blocks(),
                max_copies: geometry.max_copies(),
            }),
            capacity: usage.map(|usage| usage.capacity.bytes().0),
            used: usage.map(|usage| usage.used.bytes().0),
            copies: copies.into_iter().map(|copy| CopyLine::of(copy, layers)).collect(),
            layers: layers.iter().map(LayerLine::of).collect(),
            journal: JournalLine {
                external: journal.external,
                tail_block: journal.tail.0,
                tail_sequence: journal.tail.1,
                head_block: journal.head.map(|head| head.0),
                head_sequence: journal.head.map(|head| head.1),
                groups: journal.groups,
                records: journal.records,
                torn_groups: journal.torn_groups,
            },
            findings: report.findings.iter().map(Found::of).collect(),
        }
    }
}

fn dump(args: &DumpArgs) -> Outcome {
    let mut journals = Journals(args.journal.as_slice());
    let report = inspect(&args.disk, &mut journals, Depth::Catalog, &mut |_| ()).map_err(failed)?;
    unused(&journals)?;
    let dump = Dump::of(&args.disk, &report);
    args.output.print(&dump, |dump| {
        let size = |bytes: u64| output::Size(bytes).to_string();
        let known = |name: &Option<String>| name.clone().unwrap_or_else(|| "?".to_owned());
        let mut text = format!(
            "{}: disk {} of node {} in cluster {}\n",
            dump.path,
            known(&dump.disk),
            known(&dump.node),
            known(&dump.cluster)
        );
        if let (Some(geometry), Some(capacity), Some(used)) = (&dump.geometry, dump.capacity, dump.used) {
            let (all, capacity, used) = (size(geometry.bytes), size(capacity), size(used));
            text += &format!("{all} in all, {capacity} for data, {used} used\n");
        }
        let journal = &dump.journal;
        text += &format!("{} groups with {} records in the journal\n\n", journal.groups, journal.records);
        let row = |copy: &CopyLine| {
            let config = &copy.configuration;
            let role = if config.primary.to_string() == copy.copy { "primary" } else { "replica" };
            vec![
                copy.shard.clone(),
                copy.copy.clone(),
                config.epoch.to_string(),
                role.to_owned(),
                copy.known_good.clone(),
                copy.above_known_good.len().to_string(),
                output::size(config.size),
                size(u64::from(copy.held_blocks) * BLOCK),
                copy.snapshots.len().to_string(),
            ]
        };
        let columns = ["SHARD", "COPY", "EPOCH", "ROLE", "GOOD UP TO", "ABOVE", "SIZE", "USED", "SNAPSHOTS"];
        text += &output::table(&columns, dump.copies.iter().map(row));
        for (copy, filling) in dump.copies.iter().filter_map(|copy| Some((copy, copy.filling.as_ref()?))) {
            let FillingLine { base, before_block, up_to } = filling;
            let (shard, copy) = (&copy.shard, &copy.copy);
            text += &format!(
                "{shard}, copy {copy}: filled up to {up_to} before block {before_block}, up to {base} behind it\n"
            );
        }
        for found in &dump.findings {
            text += &format!("{}: {} {}: {}\n", found.severity, found.part, found.at, found.what);
        }
        text
    })?;
    if report.content.identity.is_none() {
        return Err(Failure::new(Exit::Failed, no_store(&args.disk)));
    }
    Ok(())
}
