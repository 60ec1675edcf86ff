//! `trine df`.

use crate::output::{ListArgs, Outcome, size, table};
use crate::progress::percent;
use conductor_model::views::{DiskSpace, Fullness, Space, VolumeSpace};

pub(crate) fn run(args: &ListArgs) -> Outcome {
    args.output.print(&args.cluster.client()?.space()?, people)
}

/// One word for how full a disk is.
pub(crate) fn fullness(full: Fullness) -> &'static str {
    match full {
        Fullness::Room => "ok",
        Fullness::NearFull => "NEAR FULL",
        Fullness::Full => "FULL",
    }
}

fn people(space: &Space) -> String {
    let disk = |d: &DiskSpace| {
        let state = if d.present { fullness(d.fullness) } else { "not heard" };
        vec![
            d.node.to_string(),
            d.host.clone(),
            d.disk.to_string(),
            size(d.capacity),
            size(d.used),
            size(d.free),
            format!("{}%", percent(d.used.0, d.capacity.0)),
            size(d.provisioned),
            state.to_owned(),
        ]
    };
    let volume = |v: &VolumeSpace| {
        vec![
            v.name.clone(),
            size(v.size),
            v.used.map_or("-".to_owned(), size),
            size(v.free),
            v.snapshots.to_string(),
            fullness(v.fullness).to_owned(),
        ]
    };
    let disks = ["NODE", "HOST", "DISK", "CAPACITY", "USED", "FREE", "USE%", "PROVISIONED", "STATE"];
    let mut text = table(&disks, space.disks.iter().map(disk));
    if !space.volumes.is_empty() {
        text.push('\n');
        let volumes = ["VOLUME", "SIZE", "USED", "FREE", "SNAPSHOTS", "DISKS"];
        text += &table(&volumes, space.volumes.iter().map(volume));
        text += &format!(
            "\nUSED is what all copies and their snapshots hold by themselves; FREE is what the fullest disk of the volume has left.\n\
             A disk is NEAR FULL above {} %, and FULL above {} %: it is given no new copies then, but of clones of what it has. Writes that need \
             space fail when all but 4 MiB is used; reads go on.\n",
            space.near_full_percent, space.full_percent
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use conductor_model::{Bytes, DiskId, NodeId};

    #[test]
    fn full_disks_and_uncounted_volumes_are_seen() {
        let disk = DiskSpace {
            node: NodeId(1),
            host: "h".to_owned(),
            disk: DiskId(7),
            present: true,
            capacity: Bytes(100 << 30),
            used: Bytes(95 << 30),
            free: Bytes(5 << 30),
            provisioned: Bytes(1 << 40),
            fullness: Fullness::Full,
        };
        let volume = VolumeSpace {
            name: "db".to_owned(),
            size: Bytes(1 << 40),
            used: None,
            free: Bytes(5 << 30),
            snapshots: 2,
            fullness: Fullness::Full,
        };
        let text = people(&Space { near_full_percent: 85, full_percent: 93, disks: vec![disk], volumes: vec![volume] });
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines[1].ends_with(&["FULL"]) && lines[1].contains(&"95%"), "{text}");
        assert_eq!(lines[4], ["db", "1", "TiB", "-", "5", "GiB", "2", "FULL"]);
    }
}
