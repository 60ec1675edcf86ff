//! A cluster whose processes are at several places of a network.

use super::{Cluster, Shape, new_dir};
use crate::command::binary;
use crate::network::{Network, Spot};
use crate::process::Process;
use crate::random::Random;
use crate::watcher::Watcher;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

pub(super) fn text(args: &[&str]) -> Vec<OsString> {
    args.iter().map(OsString::from).collect()
}

/// A key of the cluster's own.
pub(super) fn write_key(dir: &Path) -> Result<()> {
    let key = Random::new(std::process::id().into()).bytes(32);
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(fs::write(dir.join("cluster.key"), key + "\n")?)
}

/// What starts node `n`, on disks in its place below `dir`; n1 is 0.
pub(super) fn node_args(dir: &Path, shape: Shape, n: usize, listen: &str, conductor: &str) -> Vec<OsString> {
    let (name, place) = (format!("n{}", n + 1), dir.join(format!("n{}", n + 1)));
    let (number, disk) = ((n + 1).to_string(), shape.disk.to_string());
    let mut args = text(&["node", "run", "--plaintext", "--format", "--sparse", "--node", &number]);
    args.extend(text(&["--host", &name, "--listen", listen, "--create", &disk, "--conductor", conductor]));
    args.extend(text(&["--reactors", &shape.reactors.to_string(), "--key-file"]));
    args.extend([dir.join("cluster.key").into(), "--control-socket".into(), place.join("control.sock").into()]);
    for disk in 0..shape.reactors {
        args.extend(["--disk".into(), place.join(format!("disk{disk}")).into()]);
    }
    args
}

const CONDUCTOR_PORT: u16 = 7000;
const NODE_PORT: u16 = 7100;

impl Cluster {
    /// Starts one, each process at its own place, and waits until all of it is there. `conductor`: more options for `conductor run`.
    pub fn spread(shape: Shape, network: Network, conductor: &[&str]) -> Result<Self> {
        let dir = new_dir(&std::env::temp_dir())?;
        let watcher = Watcher::start(&dir, network.names())?;
        // In all networks that there are, the first one first.
        let at = |spot, port| {
            let all = network.addresses(spot).map(|address| SocketAddr::new(address, port).to_string());
            all.collect::<Vec<_>>().join(",")
        };
        let address = at(Spot::Conductor, CONDUCTOR_PORT);
        let listen = if address.contains(',') { format!("0.0.0.0:{CONDUCTOR_PORT}") } else { address.clone() };
        write_key(&dir)?;
        fs::write(dir.join("conductor.addr"), format!("{address}\n"))?;
        let spawn = |name: &str, spot: Spot, args: Vec<OsString>, log: &Path| {
            let argv = network.prefix(spot).into_iter().chain([binary()?.into()]).chain(args).collect();
            Process::spawn(name, argv, &dir, log)
        };
        let mut args = text(&["conductor", "run", "--plaintext", "--listen", &listen]);
        args.extend(text(&["--store", &format!("redb:{}", dir.join("conductor.redb").display()), "--key-file"]));
        args.push(dir.join("cluster.key").into());
        args.extend(text(conductor));
        let conductor = spawn("conductor", Spot::Conductor, args, &dir.join("conductor.log"))?;
        let node = |n: usize| {
            let (name, place) = (format!("n{}", n + 1), dir.join(format!("n{}", n + 1)));
            let spot = Spot::Node(u8::try_from(n).context("too many nodes")?);
            fs::create_dir_all(&place)?;
            let args = node_args(&dir, shape, n, &at(spot, NODE_PORT), &address);
            spawn(&name, spot, args, &place.join("node.log"))
        };
        let nodes = (0..shape.nodes).map(node).collect::<Result<_>>()?;
        let targets = BTreeMap::new();
        let more = Vec::new();
        let this = Self { dir, shape, conductor, more, nodes, targets, network: Some(network), _watcher: watcher };
        this.wait_alive(shape.nodes)?;
        Ok(this)
    }

    /// Its network, if it was spread over one.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// Takes a dead node's disks away: it starts with empty ones.
    pub fn lose_disks(&self, node: usize) -> Result<()> {
        for disk in 0..self.shape.reactors {
            fs::remove_file(self.dir.join(format!("n{}/disk{disk}", node + 1)))?;
        }
        Ok(())
    }
}
