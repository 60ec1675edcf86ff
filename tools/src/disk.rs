//! `trine disk`.

use crate::config::ClusterArgs;
use crate::node::{control_socket, look_at, node_id};
use crate::output::{Exit, Failure, Format, ListArgs, Outcome, OutputArgs, Size, note, print, size, table, time};
use crate::progress::{Unit, explained, follow};
use crate::space;
use crate::volume::WaitArgs;
use clap::{Args, Subcommand};
use conductor_client::Client;
use conductor_model::views::{DiskInfo, Force, Health, NodeInfo, Progress};
use conductor_model::{DiskId, NodeId};
use node_daemon::{AddedDisk, NewDisks};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a node takes to say to the conductor that it has a disk more, at most: some heartbeats.
const KNOWN: Duration = Duration::from_secs(30);

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum DiskCommand {
    /// List all disks of all nodes
    List(ListArgs),
    /// Add disks to a node that runs on this machine; they are used at once, and opened again with it whenever it is started
    Add(AddArgs),
    /// Put another disk in a disk's place: its copies are made there, and it goes when they are in sync
    Replace(ReplaceArgs),
    /// Have a disk's copies made on other nodes; its node lets go of it when it is empty, and it is forgotten
    Remove(RemoveArgs),
}

/// What a disk that is added is made of.
#[derive(Args)]
struct Making {
    /// Make files of this size where there is nothing
    #[arg(long, value_name = "SIZE")]
    create: Option<Size>,
    /// Size of the journal of a store that is made: 16M to 1G, half the disk at most [default: a sixteenth of the disk]
    #[arg(long, value_name = "SIZE")]
    journal_size: Option<Size>,
    /// Make a store on a disk although it carries a file system, a partition table or the like, which is lost. One in use stays refused
    #[arg(long)]
    force: bool,
    /// The node's control socket [default: the one in --dir, else /run/trine/NODE.sock]
    #[arg(long, env = "TRINE_CONTROL_SOCKET", value_name = "PATH")]
    control_socket: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct AddArgs {
    /// The node: 3 or n3
    #[arg(value_parser = node_id)]
    node: NodeId,
    /// Files or block devices: empty ones, on which stores are made; or such as were this node's before
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    making: Making,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ReplaceArgs {
    /// The disk that goes, there or lost: d and 16 hexadecimal digits
    old: DiskId,
    /// What takes its place: a path on its node's machine, which is added; or a disk that the node has already, as `trine disk list` shows it
    #[arg(value_name = "PATH|DISK")]
    new: String,
    #[command(flatten)]
    making: Making,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// The disk, as `trine disk list` shows it: d and 16 hexadecimal digits
    disk: DiskId,
    /// It is lost with the copies on it: make them anew now, not after the grace time. Where it has the last copy of something, only with
    /// the sentence that the refusal names: --force "lose data of volume db"
    #[arg(long, value_name = "SENTENCE", num_args = 0..=1, default_missing_value = "", value_parser = sentence)]
    force: Option<String>,
    /// It is to stay after all: an end of its removal, or of its replacement
    #[arg(long, conflicts_with = "force")]
    cancel: bool,
    /// Return when it is forgotten, and can be taken out
    #[arg(long, conflicts_with = "cancel")]
    wait: bool,
    /// How long to wait: 30s, 5m; its removal goes on after that
    #[arg(long, default_value = "5m", requires = "wait", value_name = "TIME", value_parser = time)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What may follow `--force`: not what was meant to be removed.
pub(crate) fn sentence(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        text if text.trim().contains(' ') => Ok(text.to_owned()),
        _ => Err("--force comes last, or with the sentence that a refusal names".to_owned()),
    }
}

/// `--force`, and the sentence behind it.
pub(crate) fn force(given: Option<&str>) -> Force {
    let sentence = given.filter(|sentence| !sentence.is_empty()).map(str::to_owned);
    Force { force: given.is_some(), sentence }
}

pub(crate) fn run(command: DiskCommand) -> Outcome {
    match command {
        DiskCommand::List(args) => args.output.print(&args.cluster.client()?.nodes()?, |nodes| disks_table(nodes)),
        DiskCommand::Add(args) => {
            let added = add(args.node, &args.paths, &args.making, &args.cluster, args.output)?;
            args.output.print_done(&added, |_| "in use: `trine disk list`".to_owned())
        }
        DiskCommand::Replace(args) => replace(&args),
        DiskCommand::Remove(args) => remove(&args),
    }
}

/// Has the node open the disks, says so, and waits until the conductor knows them.
fn add(
    node: NodeId,
    paths: &[PathBuf],
    making: &Making,
    cluster: &ClusterArgs,
    output: OutputArgs,
) -> Outcome<Vec<AddedDisk>> {
    let socket = control_socket(node, making.control_socket.as_deref(), cluster)?;
    look_at(node, &socket)?;
    let client = cluster.client()?;
    // The node runs in a directory of its own.
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(anyhow::Error::from);
    let paths = paths.iter().map(absolute).collect::<Result<_, _>>()?;
    let new = NewDisks {
        paths,
        create: making.create.map(|size| size.0),
        journal_size: making.journal_size.map(|size| size.0),
        force: making.force,
    };
    let added = node_daemon::ask_to_add(&socket, &new).map_err(|error| match error {
        node_daemon::Error::NotAdded(_) => Failure::new(Exit::Refused, error),
        other => anyhow::Error::from(other).into(),
    })?;
    // At once: whatever comes of what follows, the disk is the node's from now on.
    let text = said(node, &added);
    match output.output {
        Format::Table => print(&text)?,
        Format::Json => note(&text),
    }
    follow("the disk is made known", Unit::Parts("disks"), KNOWN, || {
        let info = client.node(node)?;
        let known = added.iter().filter(|a| info.disks.iter().any(|d| d.disk == a.disk && d.present)).count() as u64;
        let of = added.len() as u64;
        if known == of {
            return Ok(Ok(()));
        }
        let trouble = node_daemon::ask_for_look(&socket).ok().and_then(|look| look.conductor_trouble);
        let reasons = trouble.map(|why| format!("{node} has no word from the conductor: {why}")).into_iter().collect();
        Ok(Err(Progress { done: known, of, reasons }))
    })?;
    Ok(added)
}

fn said(node: NodeId, added: &[AddedDisk]) -> String {
    let lines =
        added.iter().map(|a| format!("disk {} added to {node}: {}, {}", a.disk, a.path.display(), size(a.capacity)));
    let lines: Vec<String> = lines.collect();
    format!("{}\n{}", lines.join("\n"), next_start(node, added.iter().map(|a| a.path.as_path())))
}

/// The conductor remembers where a node's disks are.
fn next_start<'a>(node: NodeId, paths: impl Iterator<Item = &'a Path>) -> String {
    let options: Vec<String> = paths.map(|path| format!("--disk {}", path.display())).collect();
    format!(
        "{node} opens them again when it is started, as long as they stay there; its options may name them, too: {}",
        options.join(" ")
    )
}

/// What a replacement came to.
#[derive(Serialize)]
struct Replaced {
    node: NodeId,
    old: DiskId,
    new: DiskId,
    /// Copies that are still on the old disk.
    left: u32,
    /// Copies are still being filled: those of a disk that was lost.
    filling: bool,
    /// The new disk, if it was added.
    added: Option<AddedDisk>,
}

fn replace(args: &ReplaceArgs) -> Outcome {
    let client = args.cluster.client()?;
    let (node, DiskInfo { copies: before, .. }) = holder(&client, args.old)?
        .ok_or_else(|| Failure::new(Exit::NoSuch, format!("no disk {}: see `trine disk list`", args.old)))?;
    let (new, added) = match args.new.parse() {
        Ok(new) => (new, None),
        Err(_) => {
            // Whatever would be refused then is refused before there is a disk more.
            let path = Path::new(&args.new);
            let [create, journal] = [args.making.create, args.making.journal_size].map(|size| size.map(|size| size.0));
            let measured = node_daemon::measure(path, create, journal);
            let measured = measured.map_err(|why| Failure::new(Exit::Refused, why))?;
            if measured.disk == Some(args.old) {
                return Err(Failure::new(Exit::Refused, format!("{} is disk {} itself", path.display(), args.old)));
            }
            client.check_replacement(args.old, measured.capacity).map_err(|why| refused(args.old, why))?;
            let added = add(node, &[PathBuf::from(&args.new)], &args.making, &args.cluster, args.output)?;
            let added = added.into_iter().next().ok_or_else(|| Failure::new(Exit::Failed, "the node added no disk"))?;
            (added.disk, Some(added))
        }
    };
    client.replace_disk(args.old, new).map_err(|why| refused(args.old, why))?;
    let mut replaced = Replaced { node, old: args.old, new, left: before, filling: true, added };
    if !args.wait.no_wait {
        let waited = follow(&format!("replacing {}", args.old), Unit::Parts("copies"), args.wait.timeout, || {
            let still = holder(&client, args.old)?.map(|(_, disk)| disk);
            if let Some(way) = still.as_ref().and_then(|disk| goes_otherwise(disk, new)) {
                let why = format!("the replacement of disk {} by {new} was ended: {way}", args.old);
                return Err(Failure::new(Exit::Failed, why));
            }
            replaced.left = still.as_ref().map_or(0, |disk| disk.copies);
            let (done, of) = (u64::from(before.saturating_sub(replaced.left)), u64::from(before));
            Ok(if still.is_none() { Ok(()) } else { Err(Progress { done, of, reasons: Vec::new() }) })
        });
        explained(&client, &format!("disk {}", args.old), waited)?;
        replaced.filling = client.status()?.health != Health::Healthy;
    }
    args.output.print_done(&replaced, |r| {
        let mut text = match args.wait.no_wait {
            true => format!("disk {} of {node} is being replaced by {}: {} copies to make there", r.old, r.new, r.left),
            false => format!("disk {} of {node} is replaced by {}: take it out", r.old, r.new),
        };
        if r.filling {
            text += "; copies are being filled: `trine status` says how far that is";
        }
        if r.added.is_some() {
            text += &format!("\nat its next start {node} is not to name the old disk any more");
        }
        text
    })
}

/// Data is not given up by a replacement, whose `--force` is about what is on the new disk.
fn refused(old: DiskId, why: conductor_client::Error) -> Failure {
    match why {
        conductor_client::Error::Refused { kind, message, status } => {
            let message = message.replace("pass --force", &format!("run `trine disk remove {old}` with --force"));
            conductor_client::Error::Refused { kind, message, status }.into()
        }
        other => other.into(),
    }
}

/// A disk's node, and how it stands there.
fn holder(client: &Client, disk: DiskId) -> Outcome<Option<(NodeId, DiskInfo)>> {
    let nodes = client.nodes()?;
    Ok(nodes.into_iter().find_map(|n| Some((n.node, n.disks.into_iter().find(|d| d.disk == disk)?))))
}

/// What becomes of a disk that was to be replaced by `new`, if somebody has other plans with it.
fn goes_otherwise(old: &DiskInfo, new: DiskId) -> Option<String> {
    match (old.leaving, old.successor) {
        (true, Some(successor)) if successor == new => None,
        (true, Some(successor)) => Some(format!("{successor} takes its place")),
        (true, None) => Some("its copies are made on other nodes".to_owned()),
        (false, _) => Some("it stays".to_owned()),
    }
}

fn remove(args: &RemoveArgs) -> Outcome {
    let (client, disk) = (args.cluster.client()?, args.disk);
    if args.cancel {
        let info = client.keep_disk(disk)?;
        return args.output.print_done(&info, |info| format!("disk {disk} of {} stays", info.node));
    }
    let mut info = client.remove_disk(disk, force(args.force.as_deref()))?;
    let node = info.node;
    let on_it = |info: &NodeInfo| info.disks.iter().find(|d| d.disk == disk).cloned();
    let begun = on_it(&info);
    let before = begun.as_ref().map_or(0, |d| d.copies);
    if args.wait {
        let waited = follow(&format!("emptying disk {disk}"), Unit::Parts("copies"), args.timeout, || {
            let info = client.node(node)?;
            let Some(DiskInfo { leaving, copies: left, .. }) = on_it(&info) else { return Ok(Ok(info)) };
            if !leaving {
                return Err(Failure::new(Exit::Failed, format!("the removal of disk {disk} was ended: it stays")));
            }
            let (done, of) = (u64::from(before.saturating_sub(left)), u64::from(before));
            Ok(Err(Progress { done, of, reasons: Vec::new() }))
        });
        info = explained(&client, &format!("disk {disk}"), waited)?;
    }
    args.output.print_done(&info, |_| {
        let path = begun.as_ref().and_then(|d| d.path.clone()).unwrap_or_else(|| "it".to_owned());
        let way = format!(
            "take {path} out of the options that {node} is started with: a start with it would make it a new disk of {node}"
        );
        match args.wait {
            true => format!("disk {disk} of {node} is empty and forgotten: take it out\n{way}"),
            false => format!("disk {disk} of {node} is to be emptied: {before} copies on it\n{way}"),
        }
    })
}

/// All disks, one line each.
fn disks_table(nodes: &[NodeInfo]) -> String {
    let disks = nodes.iter().flat_map(|node| node.disks.iter().map(move |disk| (node, disk)));
    let rows = disks.map(|(node, d)| {
        vec![
            d.disk.to_string(),
            node.node.to_string(),
            state(d),
            d.path.clone().unwrap_or_else(|| "-".to_owned()),
            size(d.used),
            size(d.capacity),
            d.copies.to_string(),
            d.damaged.to_string(),
        ]
    });
    table(&["DISK", "NODE", "STATE", "PATH", "USED", "CAPACITY", "COPIES", "DAMAGED"], rows)
}

/// What is still to be done before a disk goes.
pub(crate) fn on_its_way(disk: &DiskInfo) -> Option<String> {
    match (disk.leaving, disk.successor, disk.copies) {
        (false, ..) => None,
        (true, _, 0) => Some("empty, its node is letting go of it".to_owned()),
        (true, None, copies) => Some(format!("{copies} copies to move")),
        (true, Some(new), copies) => Some(format!("{copies} copies to make on {new}")),
    }
}

/// Whether it is there, how full it is, and whether it is to go.
pub(crate) fn state(disk: &DiskInfo) -> String {
    let state = match (disk.present, &disk.failed) {
        (false, _) => "MISSING",
        (true, Some(_)) => "FAILED",
        (true, None) => space::fullness(disk.fullness),
    };
    match on_its_way(disk) {
        None => state.to_owned(),
        Some(way) => format!("{state}, {way}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_that_would_lose_data_names_the_command_that_may() {
        let message = "disk d2 of n1 holds the last copy of v1/0 with all its writes: bring it back; or, if what is on it is to be lost, \
                       pass --force \"lose data of volume db\"";
        let (kind, message) = ("in-use".to_owned(), message.to_owned());
        let failure = refused(DiskId(2), conductor_client::Error::Refused { kind, message, status: 409 });
        let said = failure.why.to_string();
        assert!(
            said.ends_with("run `trine disk remove d0000000000000002` with --force \"lose data of volume db\""),
            "{said}"
        );
        assert_eq!(failure.exit, Exit::Refused);
    }

    #[test]
    fn force_alone_names_no_volume() {
        assert_eq!(force(None), Force::from(false));
        assert_eq!(force(Some("")), Force::from(true));
        let sentence = Some("lose data of volume db".to_owned());
        assert_eq!(force(sentence.as_deref()), Force { force: true, sentence });
    }
}
