//! `trine status`.

use crate::output::{Exit, Failure, ListArgs, Outcome, size};
use crate::{node, resync, scrub, volume};
use clap::Args;
use conductor_model::ClusterId;
use conductor_model::views::{Health, RefusedNode, ScrubInfo, ScrubState, Status};
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Exit with 1 unless all is healthy and there is no warning: for what watches the cluster
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    list: ListArgs,
}

pub(crate) fn run(args: &StatusArgs) -> Outcome {
    let status = args.list.cluster.client()?.status()?;
    args.list.output.print(&status, people)?;
    match wrong(&status).filter(|_| args.check) {
        None => Ok(()),
        Some(why) => Err(Failure::new(Exit::Failed, why)),
    }
}

/// The worst of what somebody has to look at; `None` if all is well.
fn wrong(status: &Status) -> Option<String> {
    match status.health {
        _ if status.doubt.is_some() => Some("the conductor is in doubt".to_owned()),
        Health::Healthy if !status.refused.is_empty() => {
            Some("the conductor refuses nodes of another cluster".to_owned())
        }
        Health::Healthy => status.warnings.first().map(|warning| match status.warnings.len() - 1 {
            0 => warning.clone(),
            more => format!("{warning} (and {more} more)"),
        }),
        health => Some(format!("the cluster is {health}")),
    }
}

/// A conductor that took the place of a lost one is healthy, and of no use.
fn refused(status: &Status) -> String {
    let mut clusters: BTreeMap<ClusterId, Vec<String>> = BTreeMap::new();
    for RefusedNode { node, host, cluster } in &status.refused {
        clusters.entry(*cluster).or_default().push(format!("{node} ({host})"));
    }
    let line = |(cluster, nodes): (ClusterId, Vec<String>)| {
        let (nodes, own) = (nodes.join(", "), status.cluster);
        format!(
            "REFUSED: {nodes}: of cluster {cluster}, this conductor leads {own}. If its own conductor's state was lost: \
             `trine conductor recover`; else point them to their conductor\n"
        )
    };
    clusters.into_iter().map(line).collect()
}

fn people(status: &Status) -> String {
    let totals = &status.totals;
    let all = totals.volumes;
    let health = match status.health {
        Health::Healthy => match status.warnings.len() {
            0 => "healthy\n".to_owned(),
            1 => "healthy, with 1 warning\n".to_owned(),
            more => format!("healthy, with {more} warnings\n"),
        },
        Health::Resyncing => {
            format!("RESYNCING: copies of {} of {all} volumes are being filled\n", totals.volumes_resyncing)
        }
        Health::Degraded => format!("DEGRADED: {} of {all} volumes miss copies\n", totals.volumes_degraded),
        Health::Waiting => format!("WAITING: writes of {} of {all} volumes wait\n", totals.volumes_waiting),
        Health::Lost => format!("LOST: {} of {all} volumes lost every copy of something\n", totals.volumes_lost),
    };
    // Whatever it knows of volumes may be of the past.
    let mut text = match status.doubt {
        Some(_) => {
            "IN DOUBT: the conductor changes nothing until it is adopted, see `trine conductor adopt --dry-run`\n"
                .to_owned()
        }
        None => refused(status) + &health,
    };
    // Formatting into a String cannot fail.
    let _ = writeln!(
        text,
        "cluster {}, led by {}: {} of {} nodes alive, {} volumes in {} shards; {} of {} used, {} provisioned",
        status.cluster,
        status.leader,
        totals.nodes_alive,
        totals.nodes,
        totals.volumes,
        totals.shards,
        size(totals.used),
        size(totals.capacity),
        size(totals.provisioned),
    );
    for volume in &status.volumes {
        for line in volume.reasons.iter().chain(&volume::under_way(volume)) {
            let _ = writeln!(text, "  {}: {line}", volume.name);
        }
    }
    let rebalance = &status.rebalance;
    let (moving, moved, uneven) = (rebalance.moving, rebalance.moved, rebalance.uneven_percent);
    if moving > 0 {
        let line = format!("{moving} shards have a copy on its way to another disk, {moved} copies moved");
        let _ = writeln!(text, "  rebalancing: {line}; the use of disks differs by {uneven} points");
    }
    if status.settings.fill_rate.is_some() {
        let _ = writeln!(text, "  filling of copies: {}", resync::limit(status.settings.fill_rate));
    }
    for (node, disk) in status.nodes.iter().flat_map(|n| n.disks.iter().map(move |d| (n.node, d))) {
        let Some(line) = crate::disk::on_its_way(disk) else { continue };
        let _ = writeln!(text, "  disk {} of {node}: {line}", disk.disk);
    }
    for warning in &status.warnings {
        let _ = writeln!(text, "  warning: {warning}");
    }
    for note in &status.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    for scrub in status.volumes.iter().filter_map(|v| v.scrub.as_ref()).filter(|s| s.state != ScrubState::Idle) {
        let _ = writeln!(text, "  {}", scrub::describe(scrub).replace('\n', "\n  "));
    }
    let (damaged, repaired) = (totals.damaged, totals.repaired);
    let by_scrubs = |count: &dyn Fn(&ScrubInfo) -> u64| -> u64 {
        status.volumes.iter().filter_map(|v| v.scrub.as_ref()).map(count).sum()
    };
    let _ = writeln!(
        text,
        "integrity: {damaged} damaged blocks met since the nodes started, {repaired} repaired; by all scrubs {} and {}",
        by_scrubs(&|s| s.damaged_ever),
        by_scrubs(&|s| s.repaired_ever)
    );
    if !status.nodes.is_empty() {
        let _ = write!(text, "\n{}", node::nodes_table(&status.nodes));
    }
    if !status.volumes.is_empty() {
        let _ = write!(text, "\n{}", volume::volumes_table(&status.volumes));
    }
    text
}
