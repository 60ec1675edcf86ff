//! `trine snapshot`.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, confirm, print, size, table, when};
use crate::progress::{Unit, follow};
use crate::volume::{WaitArgs, name};
use clap::{Args, Subcommand};
use conductor_client::Client;
use conductor_model::split_snapshot;
use conductor_model::views::{SnapshotInfo, SnapshotState};
use std::fmt;
use std::str::FromStr;

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
    /// grown since, it reads as zeros
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
}

#[derive(Args)]
pub(crate) struct RollbackArgs {
    /// The snapshot
    #[arg(value_name = "VOLUME@NAME")]
    snapshot: SnapshotName,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
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
    args.output.print(&info, |info| format!("snapshot {} created: {}", args.snapshot, size(info.size)))
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
    print(&format!("snapshot {} deleted", args.snapshot))
}

fn rollback(args: &RollbackArgs) -> Outcome {
    let SnapshotName { volume, name } = &args.snapshot;
    let client = args.cluster.client()?;
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
    let begun = client.rollback(volume, name)?.rollback;
    let grown = begun.and_then(|rollback| rollback.zeros_from).map_or_else(String::new, |from| {
        format!("; it has grown since, and keeps its size: from {} on it reads as zeros", size(from))
    });
    if args.wait.no_wait {
        return print(&format!("volume {volume} is being rolled back to {}{grown}", args.snapshot));
    }
    let what = format!("rollback of {volume}");
    follow(&what, Unit::Parts("shards"), args.wait.timeout, || {
        Ok(client.volume(volume)?.info.rollback.map_or(Ok(()), |rollback| Err(rollback.progress)))
    })?;
    print(&format!("volume {volume} rolled back to {}{grown}", args.snapshot))
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
    use conductor_model::{Bytes, Millis, SnapshotId};

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
