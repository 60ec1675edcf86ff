//! `trine store …`: looks at disks without a node. The disks' nodes must be stopped; each disk is recovered as its node would do at its
//! next start, and otherwise left as it is.

use crate::output::{self, Exit, Failure, Outcome, OutputArgs};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use node_daemon::offline::{Checked, Compared, Difference, DiskContent, Offline};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Compare the copies of each shard on several disks, block by block; exit code 1 if any differ
    Compare(DisksArgs),
    /// Read every block on the disks against its checksum; exit code 1 if any is damaged
    Check(DisksArgs),
    /// What a disk says: whose it is, its copies, how they stand, its space
    Dump(DiskArgs),
}

#[derive(Args)]
pub(crate) struct DisksArgs {
    /// Files or block devices with a store. Their nodes must be stopped: a disk in use is refused. Each is recovered first, as its
    /// node would do
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct DiskArgs {
    /// A file or block device with a store. Its node must be stopped
    #[arg(value_name = "DISK")]
    disk: PathBuf,
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

fn open(disks: &[PathBuf]) -> Outcome<Offline> {
    Offline::open(disks).map_err(|error| Failure::new(Exit::Failed, error))
}

fn failed(error: node_daemon::offline::OfflineError) -> Failure {
    Failure::new(Exit::Failed, error)
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

fn compare(args: &DisksArgs) -> Outcome {
    let mut disks = open(&args.disks)?;
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
            vec![shard.shard.clone(), copies, shard.blocks.to_string(), verdict]
        });
        output::table(&["SHARD", "COPIES", "BLOCKS", "RESULT"], rows)
    })?;
    if equal { Ok(()) } else { Err(Failure::new(Exit::Failed, "the copies differ")) }
}

fn compared_shard(shard: &Compared, disks: &[PathBuf]) -> ComparedShard {
    let place = |disk: usize| disks.get(disk).map(|path| shown(path)).unwrap_or_default();
    ComparedShard {
        shard: shard.shard.to_string(),
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
struct Report {
    good: bool,
    disks: Vec<CheckedDisk>,
}

#[derive(Serialize)]
struct CheckedDisk {
    #[serde(flatten)]
    disk: Disk,
    checked: Vec<CheckedCopy>,
}

#[derive(Serialize)]
struct CheckedCopy {
    copy: String,
    shard: String,
    good: u64,
    damaged: u64,
    first_damaged: Option<u32>,
}

fn check(args: &DisksArgs) -> Outcome {
    let mut disks = open(&args.disks)?;
    let bar = progress();
    let checked = disks.check(&mut |blocks| bar.inc(blocks * BLOCK)).map_err(failed)?;
    bar.finish_and_clear();
    let mut reports = Vec::new();
    for n in 0..args.disks.len() {
        let copies = checked.iter().filter(|copy| copy.disk == n).map(checked_copy).collect();
        reports.push(CheckedDisk { disk: Disk::of(disks.content(n).map_err(failed)?), checked: copies });
    }
    let damaged: u64 = checked.iter().map(|copy| copy.damaged).sum();
    args.output.print(&Report { good: damaged == 0, disks: reports }, |report| {
        let of_disk = |disk: &CheckedDisk| {
            let path = disk.disk.path.clone();
            let row = |copy: &CheckedCopy| {
                let verdict = match copy.first_damaged {
                    None => "good".to_owned(),
                    Some(first) => format!("{} DAMAGED, first: block {first}", copy.damaged),
                };
                vec![path.clone(), copy.shard.clone(), copy.copy.clone(), copy.good.to_string(), verdict]
            };
            disk.checked.iter().map(row).collect::<Vec<_>>()
        };
        output::table(&["DISK", "SHARD", "COPY", "GOOD BLOCKS", "RESULT"], report.disks.iter().flat_map(of_disk))
    })?;
    match damaged {
        0 => Ok(()),
        n => Err(Failure::new(Exit::Failed, format!("blocks that do not read as they were written: {n}"))),
    }
}

fn checked_copy(copy: &Checked) -> CheckedCopy {
    CheckedCopy {
        copy: copy.copy.to_string(),
        shard: copy.shard.to_string(),
        good: copy.good,
        damaged: copy.damaged,
        first_damaged: copy.first_damaged.map(|block| block.0),
    }
}

#[derive(Serialize)]
struct Disk {
    path: String,
    cluster: String,
    node: String,
    disk: String,
    bytes: u64,
    capacity: u64,
    used: u64,
    copies: Vec<CopyLine>,
}

#[derive(Serialize)]
struct CopyLine {
    copy: String,
    shard: String,
    known_good: String,
    above_known_good: usize,
    held_blocks: u32,
    configuration: conductor_model::Configuration,
}

impl Disk {
    fn of(content: DiskContent) -> Self {
        let line = |copy: node_daemon::offline::CopyOnDisk| CopyLine {
            copy: copy.copy.to_string(),
            shard: copy.config.shard.to_string(),
            known_good: copy.known_good.to_string(),
            above_known_good: copy.above,
            held_blocks: copy.held.0,
            configuration: copy.config,
        };
        Self {
            path: shown(&content.path),
            cluster: conductor_model::ClusterId(content.identity.cluster).to_string(),
            node: content.identity.node.to_string(),
            disk: content.identity.disk.to_string(),
            bytes: content.geometry.size().0,
            capacity: content.usage.capacity.bytes().0,
            used: content.usage.used.bytes().0,
            copies: content.copies.into_iter().map(line).collect(),
        }
    }
}

fn dump(args: &DiskArgs) -> Outcome {
    let mut disks = open(std::slice::from_ref(&args.disk))?;
    let disk = Disk::of(disks.content(0).map_err(failed)?);
    args.output.print(&disk, |disk| {
        let size = |bytes: u64| output::Size(bytes).to_string();
        let head = format!(
            "{}: disk {} of node {} in cluster {}\n{} in all, {} for data, {} used\n\n",
            disk.path,
            disk.disk,
            disk.node,
            disk.cluster,
            size(disk.bytes),
            size(disk.capacity),
            size(disk.used)
        );
        let row = |copy: &CopyLine| {
            let config = &copy.configuration;
            let role = if config.primary.to_string() == copy.copy { "primary" } else { "replica" };
            vec![
                copy.shard.clone(),
                copy.copy.clone(),
                config.epoch.to_string(),
                role.to_owned(),
                copy.known_good.clone(),
                copy.above_known_good.to_string(),
                output::size(config.size),
                size(u64::from(copy.held_blocks) * BLOCK),
            ]
        };
        let columns = ["SHARD", "COPY", "EPOCH", "ROLE", "GOOD UP TO", "ABOVE", "SIZE", "USED"];
        head + &output::table(&columns, disk.copies.iter().map(row))
    })
}
