//! `trine disk`.

use crate::config::ClusterArgs;
use crate::output::{ListArgs, Outcome, OutputArgs, size, table};
use crate::space;
use clap::{Args, Subcommand};
use conductor_model::DiskId;
use conductor_model::views::{DiskInfo, NodeInfo};

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum DiskCommand {
    /// List all disks of all nodes
    List(ListArgs),
    /// Have a disk's copies made on other nodes, and forget it once its node runs without it
    Remove(RemoveArgs),
}

#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// The disk, as `trine disk list` shows it: d and 16 hexadecimal digits
    #[arg(value_parser = disk_id)]
    disk: DiskId,
    /// It is lost with the copies on it: make them anew now, not after the grace time. Never where it has the last copy of something
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// `d` and 16 hexadecimal digits.
fn disk_id(text: &str) -> Result<DiskId, String> {
    let digits = text.strip_prefix('d').filter(|digits| digits.len() == 16);
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.map(DiskId).ok_or_else(|| "write it as `trine disk list` shows it: d and 16 hexadecimal digits".to_owned())
}

pub(crate) fn run(command: DiskCommand) -> Outcome {
    match command {
        DiskCommand::List(args) => args.output.print(&args.cluster.client()?.nodes()?, |nodes| disks_table(nodes)),
        DiskCommand::Remove(args) => remove(&args),
    }
}

fn remove(args: &RemoveArgs) -> Outcome {
    let info = args.cluster.client()?.remove_disk(args.disk, args.force)?;
    args.output.print(&info, |info| {
        let copies = info.disks.iter().find(|d| d.disk == args.disk).map_or(0, |d| d.copies);
        format!("disk {} of {} is to be emptied: {copies} copies on it", args.disk, info.node)
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
            size(d.used),
            size(d.capacity),
            d.copies.to_string(),
            d.damaged.to_string(),
        ]
    });
    table(&["DISK", "NODE", "STATE", "USED", "CAPACITY", "COPIES", "DAMAGED"], rows)
}

/// Whether it is there, how full it is, and whether it is to go.
pub(crate) fn state(disk: &DiskInfo) -> String {
    let state = if disk.present { space::fullness(disk.fullness) } else { "MISSING" };
    match (disk.leaving, disk.copies) {
        (false, _) => state.to_owned(),
        (true, 0) => format!("{state}, empty: take it out"),
        (true, copies) => format!("{state}, {copies} copies to move"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_named_as_it_is_printed() {
        let disk = DiskId(0x1f);
        assert_eq!(disk_id(&disk.to_string()), Ok(disk));
        assert!(
            ["", "d", "31", "d1f", "x000000000000001f", "d000000000000001g"].iter().all(|text| disk_id(text).is_err())
        );
    }
}
