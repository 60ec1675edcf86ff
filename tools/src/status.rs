//! `trine status`.

use crate::output::{ListArgs, Outcome, size};
use crate::{node, volume};
use conductor_model::views::{Health, Status};
use std::fmt::Write;

pub(crate) fn run(args: &ListArgs) -> Outcome {
    let status = args.cluster.client()?.status()?;
    args.output.print(&status, people)
}

fn people(status: &Status) -> String {
    let totals = &status.totals;
    let mut text = match status.health {
        Health::Healthy => "healthy\n".to_owned(),
        Health::Waiting => {
            format!("WAITING: writes of {} of {} volumes wait\n", totals.volumes_waiting, totals.volumes)
        }
    };
    // Formatting into a String cannot fail.
    let _ = writeln!(
        text,
        "cluster {}: {} of {} nodes alive, {} volumes in {} shards; {} of {} used, {} provisioned",
        status.cluster,
        totals.nodes_alive,
        totals.nodes,
        totals.volumes,
        totals.shards,
        size(totals.used),
        size(totals.capacity),
        size(totals.provisioned),
    );
    for volume in &status.volumes {
        for reason in &volume.reasons {
            let _ = writeln!(text, "  {}: {reason}", volume.name);
        }
    }
    if !status.nodes.is_empty() {
        let _ = write!(text, "\n{}", node::nodes_table(&status.nodes));
    }
    if !status.volumes.is_empty() {
        let _ = write!(text, "\n{}", volume::volumes_table(&status.volumes));
    }
    text
}
