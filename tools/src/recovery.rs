//! `trine conductor backup`, `recover` and `adopt`: what to do when a conductor's state is lost, or from the past.

use crate::config::ClusterArgs;
use crate::etcd::{self, EtcdArgs, store};
use crate::output::{Exit, Failure, Outcome, OutputArgs, table, when};
use clap::Args;
use conductor_model::views::{Adopt, RecoveryInfo};
use conductor_model::{ClusterId, Commit, Millis};
use conductor_service::backup::{self, BackupError, Head};
use conductor_service::{Error, Store};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct BackupArgs {
    /// The file to make; one that exists is never written over. A backup that is killed leaves FILE.….part
    file: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A backup that was made.
#[derive(Serialize)]
struct BackedUp {
    file: String,
    #[serde(flatten)]
    head: Head,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("from").required(true).args(["backup", "from_nodes"]))]
pub(crate) struct RecoverArgs {
    /// From this file of `trine conductor backup`
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,
    /// From what the nodes hold: each copy knows its shard, and each volume's first shard the volume
    #[arg(long)]
    from_nodes: bool,
    /// With --from-nodes: the cluster (k…); if not given, the first node with data that comes says which it is
    #[arg(long, value_name = "CLUSTER", requires = "from_nodes")]
    cluster_id: Option<ClusterId>,
    /// Where to make the state: redb:FILE, or etcd:URL,URL,… while no conductor leads there; what exists is never written over
    #[arg(long, value_parser = store)]
    store: Store,
    #[command(flatten)]
    etcd: EtcdArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A state that was made.
#[derive(Serialize)]
struct Recovered {
    store: String,
    /// None: the first node with data that comes says which.
    cluster: Option<ClusterId>,
    /// None: it is empty.
    commit: Option<Commit>,
    /// When the backup was.
    taken: Option<Millis>,
}

#[derive(Args)]
pub(crate) struct AdoptArgs {
    /// Go on without these, which are lost: copies (c…), disks (d…) or nodes (n…); what they hold is deleted if they return
    #[arg(long, value_name = "COPY|DISK|NODE", num_args = 1..)]
    without: Vec<String>,
    /// Accept a loss, with the sentence that the refusal asks for
    #[arg(long, value_name = "SENTENCE")]
    force: Option<String>,
    /// Change nothing: only say what is known, what is missing and what is next
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn failed(error: BackupError) -> Failure {
    match error {
        BackupError::Exists(_) => Failure::new(Exit::Refused, error),
        BackupError::State(why @ (Error::Occupied { .. } | Error::Led { .. })) => Failure::new(Exit::Refused, why),
        other => anyhow::Error::from(other).into(),
    }
}

pub(crate) fn backup(args: &BackupArgs) -> Outcome {
    if args.file.exists() {
        return Err(failed(BackupError::Exists(args.file.clone())));
    }
    let text = args.cluster.client()?.backup()?;
    let head = backup::keep(&args.file, &text).map_err(failed)?;
    args.output.print_done(&BackedUp { file: args.file.display().to_string(), head }, |BackedUp { file, head }| {
        let Head { cluster, commit, records, taken, .. } = head;
        format!("{file}: cluster {cluster} at commit {commit}, {records} records, {}", when(*taken))
    })
}

pub(crate) fn recover(args: RecoverArgs) -> Outcome {
    let RecoverArgs { backup, cluster_id, store, etcd, output, from_nodes: _ } = args;
    let store = etcd.complete(store)?;
    let name = etcd::name(&store);
    let (what, recovered) = match &backup {
        Some(file) => {
            let Head { cluster, commit, taken, .. } = backup::recover(file, &store).map_err(failed)?;
            let what = format!("{name} holds cluster {cluster} as it was at commit {commit}, {}", when(taken));
            let (cluster, commit, taken) = (Some(cluster), Some(commit), Some(taken));
            (what, Recovered { store: name, cluster, commit, taken })
        }
        None => {
            backup::recover_from_nodes(cluster_id, &store).map_err(failed)?;
            let what = format!("{name} is empty, and takes what the nodes hold");
            (what, Recovered { store: name, cluster: cluster_id, commit: None, taken: None })
        }
    };
    output.print_done(&recovered, |Recovered { store, .. }| {
        format!(
            "{what}\nnext: `trine conductor run --existing --store {store}`, with the other options that the conductor had (--key-file, --listen, …); \
             when all nodes have come, `trine conductor adopt`"
        )
    })
}

pub(crate) fn adopt(args: AdoptArgs) -> Outcome {
    let AdoptArgs { without, force, dry_run, cluster, output } = args;
    let info = cluster.client()?.adopt(&Adopt { without, force, dry_run })?;
    output.print(&info, people)
}

fn people(info: &RecoveryInfo) -> String {
    let nodes = info.heard.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = match info.adopted {
        true => format!("adopted: the conductor leads cluster {} again\n", info.cluster),
        false => format!("in doubt since {}: {}\n", when(info.since), info.why),
    };
    // Formatting into a String cannot fail.
    let _ = writeln!(text, "heard of: {}", if nodes.is_empty() { "no node" } else { &nodes });
    for name in &info.deleted {
        let _ = writeln!(text, "volume {name} was deleted since");
    }
    for unknown in &info.unknown {
        let _ = writeln!(text, "volume {}: {} copies are kept, and not touched", unknown.id, unknown.copies);
    }
    for volume in &info.volumes {
        for note in &volume.notes {
            let _ = writeln!(text, "volume {}: {note}", volume.name);
        }
    }
    for risk in &info.risks {
        let _ = writeln!(text, "risk: {risk}");
    }
    if !info.volumes.is_empty() {
        let rows = info.volumes.iter().map(|v| {
            let shards = format!("{} of {}", v.ready, v.shards);
            vec![v.name.clone(), v.id.to_string(), shards, v.snapshots.to_string()]
        });
        let _ = write!(text, "\n{}", table(&["VOLUME", "ID", "SHARDS READY", "SNAPSHOTS"], rows));
    }
    if !info.missing.is_empty() {
        let rows = info.missing.iter().map(|m| {
            vec![m.node.to_string(), m.disk.to_string(), m.volume.clone(), m.copies.to_string(), m.why.clone()]
        });
        let _ = write!(text, "\n{}", table(&["NODE", "DISK", "VOLUME", "MISSING", "WHAT TO DO"], rows));
    }
    let _ = write!(text, "\nnext: {}", info.next);
    text
}
