//! `trine snapshot`.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, confirm, size, table, when};
use crate::progress::{Unit, follow};
use crate::volume::{WaitArgs, name};
use clap::{Args, Subcommand};
use conductor_client::Client;
use conductor_model::views::{CancelledRollback, SnapshotInfo, SnapshotState, VolumeRange};
use conductor_model::{Bytes, split_snapshot};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Ranges of a volume that one sentence names; all of them are in what `-o json` prints.
const RANGES_SHOWN: usize = 4;

/// `VOLUME@NAME`, checked before anything is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SnapshotName {
    pub(crate) volume: String,
    pub(crate) name: String,
}

impl FromStr for SnapshotName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (volume, name) = split_snapshot(text).map_err(|why| why.to_string())?;
        Ok(Self { volume: volume.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.name)
    }
}

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum SnapshotCommand {
    /// Make a snapshot of a whole volume at one point in time; returns when it is complete
    Create(CreateArgs),
    /// List a volume's snapshots
    #[command(alias = "ls")]
    List(ListArgs),
    /// Delete a snapshot that no clone needs, also if it is attached: reads of it fail then; its space comes back in the background
    #[command(alias = "rm")]
    Delete(DeleteArgs),
    /// Make a volume that is not attached read as its snapshot again: everything written since is lost. It keeps its size: where it has
    /// grown since, it reads as zeros. Or end such a rollback
    Rollback(RollbackArgs),
}

#[derive(Args)]
pub(crate) struct CreateArgs {
    /// The volume, and the new snapshot's name
    #[arg(value_name = "VOLUME@NAME")]
    snapshot: SnapshotName,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// The volume
    #[arg(value_parser = name)]
    volume: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The snapshot
    #[arg(value_name = "VOLUME@NAME")]
    snapshot: SnapshotName,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A snapshot that is gone but for its copies, as a listing would show it.
#[derive(Serialize)]
struct Deleted<'a> {
    volume: &'a str,
    name: &'a str,
    state: SnapshotState,
}

#[derive(Args)]
pub(crate) struct RollbackArgs {
    /// The snapshot
    #[arg(value_name = "VOLUME@NAME")]
    snapshot: SnapshotName,
    /// End the rollback to this snapshot that is under way, as when a shard is in its way for good: what is done stays so. It is said which part
    /// of the volume reads as what, and it can be attached, or rolled back once more
    #[arg(long)]
    cancel: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(command: SnapshotCommand) -> Outcome {
    match command {
        SnapshotCommand::Create(args) => create(&args),
        SnapshotCommand::List(args) => {
            args.output.print(&args.cluster.client()?.snapshots(&args.volume)?, |list| snapshots_table(list))
        }
        SnapshotCommand::Delete(args) => delete(&args),
        SnapshotCommand::Rollback(args) => rollback(&args),
    }
}

fn create(args: &CreateArgs) -> Outcome {
    let SnapshotName { volume, name } = &args.snapshot;
    let info = args.cluster.client()?.create_snapshot(volume, name).map_err(|error| match error.kind() {
        // Nobody refused: it was tried.
        Some("snapshot-failed") => Failure::new(Exit::Failed, error),
        _ => error.into(),
    })?;
    args.output.print_done(&info, |info| format!("snapshot {} created: {}", args.snapshot, size(info.size)))
}

fn delete(args: &DeleteArgs) -> Outcome {
    let SnapshotName { volume, name } = &args.snapshot;
    let client = args.cluster.client()?;
    if !args.yes {
        let clones = find(&client, &args.snapshot)?.clones;
        if !clones.is_empty() {
            let way = "delete them first, or make them independent with `trine volume flatten`";
            let why = format!("snapshot {} is needed by its clones ({}): {way}", args.snapshot, clones.join(", "));
            return Err(Failure::new(Exit::Refused, why));
        }
        confirm(&format!("Delete snapshot {} for good?", args.snapshot), false)?;
    }
    client.delete_snapshot(volume, name)?;
    let deleted = Deleted { volume, name, state: SnapshotState::Deleting };
    args.output.print_done(&deleted, |_| format!("snapshot {} deleted", args.snapshot))
}

fn rollback(args: &RollbackArgs) -> Outcome {
    let SnapshotName { volume, name } = &args.snapshot;
    let client = args.cluster.client()?;
    if args.cancel {
        return args.output.print_done(&client.cancel_rollback(volume, name)?, |info| {
            let cancelled = info.cancelled_rollback.as_ref();
            let parts = cancelled.map_or_else(String::new, |cancelled| format!(": {}", parts(cancelled)));
            format!("rollback of volume {volume} to {} cancelled{parts}", args.snapshot)
        });
    }
    if !args.yes {
        let (then, now) = (find(&client, &args.snapshot)?.size, client.volume(volume)?.info.size);
        let grown = if now > then {
            format!(" It has grown since, from {} to {}: what is beyond reads as zeros.", size(then), size(now))
        } else {
            String::new()
        };
        let what = format!("Roll volume {volume} back to {}?", args.snapshot);
        confirm(&format!("{what} Everything written since is lost.{grown}"), false)?;
    }
    let begun = client.rollback(volume, name)?;
    let grown = begun.rollback.as_ref().and_then(|rollback| rollback.zeros_from).map_or_else(String::new, |from| {
        format!("; it has grown since, and keeps its size: from {} on it reads as zeros", size(from))
    });
    if args.wait.no_wait {
        return args
            .output
            .print_done(&begun, |_| format!("volume {volume} is being rolled back to {}{grown}", args.snapshot));
    }
    let what = format!("rollback of {volume}");
    let done = follow(&what, Unit::Parts("shards"), args.wait.timeout, || {
        let info = client.volume(volume)?.info;
        match (&info.rollback, &info.cancelled_rollback) {
            (Some(rollback), _) => Ok(Err(rollback.progress.clone())),
            (None, None) => Ok(Ok(info)),
            (None, Some(cancelled)) => {
                Err(Failure::new(Exit::Failed, format!("{what} was cancelled: {}", parts(cancelled))))
            }
        }
    })?;
    args.output.print_done(&done, |_| format!("volume {volume} rolled back to {}{grown}", args.snapshot))
}

/// What a volume reads as whose rollback was cancelled.
pub(crate) fn parts(cancelled: &CancelledRollback) -> String {
    let CancelledRollback { snapshot, done, left } = cancelled;
    let done = match done.as_slice() {
        [] => String::new(),
        done => format!("{} read as snapshot {snapshot}, and ", ranges(done)),
    };
    format!("{done}{} as before or as snapshot {snapshot}", ranges(left))
}

/// The first of them.
fn ranges(all: &[VolumeRange]) -> String {
    let range = |r: &VolumeRange| format!("{} to {}", size(r.offset), size(Bytes(r.offset.0 + r.length.0)));
    let shown = all.iter().take(RANGES_SHOWN).map(range).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(RANGES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} ranges more"),
    }
}

/// Whoever is asked about a snapshot is asked about one that is there.
fn find(client: &Client, snapshot: &SnapshotName) -> Outcome<SnapshotInfo> {
    let is_it = |info: &SnapshotInfo| info.name == snapshot.name && info.state != SnapshotState::Deleting;
    let found = client.snapshots(&snapshot.volume)?.into_iter().find(is_it);
    found.ok_or_else(|| {
        let SnapshotName { volume, name } = snapshot;
        Failure::new(Exit::NoSuch, format!("volume {volume} has no snapshot {name}"))
    })
}

fn snapshots_table(snapshots: &[SnapshotInfo]) -> String {
    let row = |s: &SnapshotInfo| {
        let state = match s.state {
            SnapshotState::Creating => "being created".to_owned(),
            SnapshotState::Complete => "complete".to_owned(),
            SnapshotState::Deleting => format!("deleting, {} copies left", s.drops_left),
        };
        let clones = if s.clones.is_empty() { "-".to_owned() } else { s.clones.join(" ") };
        vec![format!("{}@{}", s.volume, s.name), size(s.size), when(s.created), state, clones]
    };
    table(&["SNAPSHOT", "SIZE", "CREATED", "STATE", "CLONES"], snapshots.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{Millis, SnapshotId};

    #[test]
    fn a_snapshot_is_named_by_its_volume_and_its_own_name() {
        let parsed: SnapshotName = "db@monday".parse().unwrap();
        assert_eq!((parsed.volume.as_str(), parsed.name.as_str()), ("db", "monday"));
        assert_eq!(parsed.to_string(), "db@monday");
        for wrong in ["db", "@a", "db@", "db@A", "D@a", "db@a@b", "db@a/b", ""] {
            assert!(wrong.parse::<SnapshotName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn it_is_said_what_a_volume_reads_as_whose_rollback_was_cancelled() {
        let range = |n: u64, length: u64| VolumeRange { offset: Bytes(n << 30), length: Bytes(length << 30) };
        let said = |done, left| parts(&CancelledRollback { snapshot: "a".to_owned(), done, left });
        assert_eq!(
            said(vec![range(0, 4), range(8, 2)], vec![range(4, 4)]),
            "0 B to 4 GiB, 8 GiB to 10 GiB read as snapshot a, and 4 GiB to 8 GiB as before or as snapshot a"
        );
        let many = said(Vec::new(), (0..9).map(|n| range(2 * n, 1)).collect());
        assert!(many.starts_with("0 B to 1 GiB, ") && many.contains("7 GiB and 5 ranges more as before"), "{many}");
    }

    #[test]
    fn the_list_says_what_still_needs_a_snapshot() {
        let info = |state, clones: &[&str]| SnapshotInfo {
            id: SnapshotId(1),
            volume: "db".to_owned(),
            name: "a".to_owned(),
            size: Bytes(1 << 30),
            created: Millis(0),
            state,
            drops_left: 2,
            clones: clones.iter().map(|c| (*c).to_owned()).collect(),
        };
        let text = snapshots_table(&[info(SnapshotState::Complete, &["x", "y"]), info(SnapshotState::Deleting, &[])]);
        assert!(text.contains("db@a") && text.contains("x y") && text.contains("deleting, 2 copies left"), "{text}");
        assert!(text.contains("1970-01-01T00:00:00Z"), "{text}");
    }
}
