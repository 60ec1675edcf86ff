//! Memory of nodes that have a large volume of which a part is written, everywhere in it.

use crate::account;
use crate::fio;
use crate::options::Medium;
use crate::peers::{Peer, Who};
use anyhow::{Context, Result, ensure};
use cluster::{Cluster, Shape};

/// Bytes of the volume, in MiB, and of its shards: the default's.
const VOLUME_MIB: u64 = 100 << 10;
const SHARD_MIB: u64 = 4 << 10;
/// What of it is written.
pub(crate) const WRITTEN: u64 = 8 << 30;
/// Bytes of each node's disk, which is laid out in full.
const DISK: u64 = 11 << 30;
const NODES: u64 = 3;

/// Is there room for three disks? Asked before half an hour is spent on everything else.
pub(crate) fn ask_for_room() -> Result<()> {
    let dir = Medium::File.dir();
    std::fs::create_dir_all(&dir)?;
    let room = nix::sys::statvfs::statvfs(&dir)?;
    let free = room.blocks_available() * room.fragment_size();
    ensure!(
        free > NODES * DISK,
        "{} GiB are free in {}; the three disks of the large volume take {} (--only NAMES leaves it out)",
        free >> 30,
        dir.display(),
        (NODES * DISK) >> 30
    );
    Ok(())
}

/// Bytes of the largest node at its largest, beyond what it was given for buffers and metadata.
pub(crate) fn measure() -> Result<u64> {
    ask_for_room()?;
    let start = |dir: &_| {
        let mut cluster = Cluster::start_in(dir, Shape { disk: DISK, ..Shape::default() })?;
        cluster.create("large", VOLUME_MIB, SHARD_MIB)?;
        cluster.attach("large")?;
        Ok(cluster)
    };
    let peer = Peer::with(Who::Trine, Medium::File, start)?;
    let cluster::nbd::Place::Unix(socket) = peer.cluster().context("a cluster")?.place("large") else {
        anyhow::bail!("a Unix socket")
    };
    // The size of a chunk: most places for the least bytes.
    fio::scatter(&fio::Place::unix(&socket, "", VOLUME_MIB << 20), WRITTEN, 64 << 10)?;
    let configured = node_daemon::DEFAULT_MEMORY + node_daemon::DEFAULT_METADATA_CACHE;
    Ok(account::most_memory(&peer.pids)?.saturating_sub(configured))
}
