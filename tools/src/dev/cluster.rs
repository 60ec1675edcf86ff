//! A development cluster as it is kept in its directory: its plan, where everything of it is, and what of that was lost.

use super::StartArgs;
use crate::config::{ClusterArgs, DirArgs, HTTPS};
use crate::output::{Exit, Failure, Outcome, Size, note};
use crate::pidfile;
use crate::ports::ports;
use anyhow::Context;
use conductor_client::Client;
use conductor_model::views::{NodeInfo, Status};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use target_daemon::TargetError;

/// What `cluster.json` says: chosen at the first start.
#[derive(Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) conductor: SocketAddr,
    pub(super) nodes: Vec<SocketAddr>,
    pub(super) disk_size: u64,
    /// What was said of the journals'.
    #[serde(default)]
    pub(super) journal_size: Option<u64>,
    /// Of each node, and disks too.
    #[serde(default = "one")]
    pub(super) reactors: u16,
    /// Where the disks' journals are, in turn; on the disks if nowhere.
    #[serde(default)]
    pub(super) journals: Vec<PathBuf>,
    #[serde(default)]
    pub(super) tls: bool,
}

impl Plan {
    /// As commands are told it.
    pub(super) fn conductor_address(&self) -> String {
        format!("{}{}", if self.tls { HTTPS } else { "" }, self.conductor)
    }
}

fn one() -> u16 {
    1
}

/// A development cluster on disk.
pub(super) struct Cluster {
    pub(super) dir: PathBuf,
    pub(super) plan: Plan,
}

/// What a node is started with.
pub(super) struct Disks {
    /// Each with its journal, if that is elsewhere.
    pub(super) paths: Vec<(PathBuf, Option<PathBuf>)>,
    /// Make those that are not there.
    pub(super) make: bool,
}

/// One of its processes.
#[derive(Serialize)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) pid: Option<u32>,
    pub(super) address: SocketAddr,
    pub(super) log: PathBuf,
}

impl Cluster {
    /// The cluster in `dir`, if there is one.
    pub(super) fn open(dir: &Path) -> Outcome<Option<Self>> {
        let file = dir.join("cluster.json");
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(anyhow::Error::from(error).context(format!("cannot read {}", file.display())).into());
            }
        };
        let plan = serde_json::from_str(&text).with_context(|| format!("{} is damaged", file.display()))?;
        Ok(Some(Self { dir: dir.to_path_buf(), plan }))
    }

    /// A new one, by whoever holds the lock.
    pub(super) fn create(dir: &Path, args: &StartArgs) -> Outcome<Self> {
        // Without its plan a cluster is not whole, and with another key its disks would be of no use.
        if let Some(left) = ["cluster.key", "conductor.addr", "conductor.redb", "n1"]
            .map(|part| dir.join(part))
            .iter()
            .find(|part| part.exists())
        {
            let why = format!(
                "{} is there, and no cluster.json: bring that back; or, if no cluster needs the rest, delete it, or name another directory",
                left.display()
            );
            return Err(Failure::new(Exit::Refused, why));
        }
        let (nodes, reactors) = (args.nodes.unwrap_or(3), args.reactors.unwrap_or(1));
        let mut rows = vec![1];
        rows.resize(nodes as usize + 1, reactors);
        let ports = ports(args.port, &rows)?;
        let [conductor, nodes @ ..] = ports.as_slice() else { return Err(Failure::usage("no ports")) };
        let disk_size = args.disk_size.map_or(1 << 30, |size| size.0);
        if disk_size < node_daemon::MIN_DISK_BYTES {
            let least = Size(node_daemon::MIN_DISK_BYTES);
            return Err(Failure::usage(format!("a disk of {} is too small: use at least {least}", Size(disk_size))));
        }
        let journal_size = args.journal_size.map(|size| size.0);
        let first = dir.join("n1").join("disk0");
        node_daemon::measure(&first, Some(disk_size), journal_size).map_err(|why| Failure::usage(why.to_string()))?;
        let journals = journal_dirs(args)?;
        let plan = Plan {
            conductor: *conductor,
            nodes: nodes.to_vec(),
            disk_size,
            journal_size,
            reactors,
            journals,
            tls: args.tls,
        };
        let cluster = Self { dir: dir.to_path_buf(), plan };
        // They are named without the cluster: `--destroy` would delete another one's, and its start find none.
        if let Some(taken) = cluster.journals().find(|file| file.exists()) {
            let why = format!(
                "{} is there already: another cluster's, or what is left of one; name another directory, or delete it if nobody needs it",
                taken.display()
            );
            return Err(Failure::new(Exit::Refused, why));
        }
        let key_file = dir.join("cluster.key");
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|why| Failure::new(Exit::Failed, format!("no random numbers: {why}")))?;
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        write_new(&key_file, &(hex + "\n"))?;
        write_new(&dir.join("conductor.addr"), &format!("{}\n", cluster.plan.conductor_address()))?;
        // Last: a directory without it is no cluster.
        let json = serde_json::to_string_pretty(&cluster.plan).map_err(anyhow::Error::from)?;
        write_new(&dir.join("cluster.json"), &json)?;
        Ok(cluster)
    }

    pub(super) fn node_dir(&self, n: usize) -> PathBuf {
        self.dir.join(format!("n{}", n + 1))
    }

    /// A disk of a node, and where its journal is if that is elsewhere. Neighbours have theirs in different places.
    fn disk(&self, n: usize, disk: u16) -> (PathBuf, Option<PathBuf>) {
        let turn = n * usize::from(self.plan.reactors) + usize::from(disk);
        let dir = self.plan.journals.iter().cycle().nth(turn);
        let journal = dir.map(|dir| dir.join(format!("trine-n{}-disk{disk}.journal", n + 1)));
        (self.node_dir(n).join(format!("disk{disk}")), journal)
    }

    /// What a node is started with: of its first disks those that it still has as far as its conductor knows, if that knows the node.
    pub(super) fn disks(&self, n: usize, known: Option<&NodeInfo>) -> Disks {
        let planned = (0..self.plan.reactors).map(|disk| self.disk(n, disk));
        let Some(known) = known else { return Disks { paths: planned.collect(), make: true } };
        let has = |path: &Path| known.disks.iter().any(|disk| disk.path.as_deref().map(Path::new) == Some(path));
        let mut paths: Vec<(PathBuf, Option<PathBuf>)> = planned.filter(|(path, _)| has(path)).collect();
        if paths.is_empty() {
            // All of them were replaced. Others that were added are opened as it is, by their names.
            let added = known.disks.iter().filter(|disk| disk.present || !disk.leaving);
            paths = added.filter_map(|disk| disk.path.as_ref()).map(|path| (path.into(), None)).collect();
        }
        // A node needs a disk; one that has another one is started without those that are gone, and says so.
        let make = paths.iter().all(|(path, _)| !path.exists());
        Disks { paths, make }
    }

    /// Says by a file that the conductor has known a node.
    fn joined(&self, n: usize) -> PathBuf {
        self.node_dir(n).join("joined")
    }

    /// Keeps which nodes the conductor knows.
    pub(super) fn note_joined(&self, known: &[NodeInfo]) -> anyhow::Result<()> {
        for n in (0..self.plan.nodes.len()).filter(|n| find(known, *n).is_some()) {
            let file = self.joined(n);
            if !file.exists() {
                write_new(&file, "")?;
            }
        }
        Ok(())
    }

    /// Whether a node has been removed from the cluster. A conductor in doubt may only have forgotten it.
    pub(super) fn is_removed(&self, n: usize, status: &Status) -> bool {
        find(&status.nodes, n).is_none() && status.doubt.is_none() && self.joined(n).exists()
    }

    /// Of one that was removed: it is not started, as it would be a member again.
    pub(super) fn say_how_it_joins_anew(&self, n: usize) {
        let journals = (0..self.plan.reactors).filter_map(|disk| self.disk(n, disk).1);
        let all: Vec<String> =
            std::iter::once(self.node_dir(n)).chain(journals).map(|path| path.display().to_string()).collect();
        let (node, all) = (n + 1, all.join(", "));
        note(format_args!(
            "trine: n{node} is none of the cluster's any more, and is not started: if it was removed, delete {all} to have it join anew"
        ));
    }

    /// Disks that were lost, and how what they held is made again.
    pub(super) fn say_what_is_missing(&self) -> Outcome {
        let status = self.client()?.status()?;
        if status.doubt.is_some() {
            note("trine: the conductor is in doubt and changes nothing: see `trine conductor adopt --dry-run`");
        }
        for node in status.nodes {
            let lost = node.disks.iter().filter(|disk| !disk.present && (disk.copies > 0 || !disk.leaving));
            for (disk, path) in lost.filter_map(|disk| Some((disk, disk.path.as_ref()?))) {
                let new = node.disks.iter().find(|new| new.present && new.path.as_ref() == Some(path));
                let (disk, node, size) = (disk.disk, node.node, Size(self.plan.disk_size));
                note(match new {
                    Some(new) => format!(
                        "trine: disk {disk} of {node} is gone, {path} is a new one: `trine disk replace {disk} {}` has it filled",
                        new.disk
                    ),
                    None => format!(
                        "trine: {node} runs without disk {disk}: bring {path} back and start {node} again, or `trine disk replace {disk} \
                         {path} --create {size}`"
                    ),
                });
            }
        }
        Ok(())
    }

    /// All journals that are not on their disks.
    pub(super) fn journals(&self) -> impl Iterator<Item = PathBuf> {
        let disks = (0..self.plan.nodes.len()).flat_map(|n| (0..self.plan.reactors).map(move |disk| (n, disk)));
        disks.filter_map(|(n, disk)| self.disk(n, disk).1)
    }

    pub(super) fn conductor_pid(&self) -> PathBuf {
        self.dir.join("conductor.pid")
    }

    pub(super) fn node_pid(&self, n: usize) -> PathBuf {
        self.node_dir(n).join("node.pid")
    }

    pub(super) fn members(&self) -> Vec<Member> {
        let pid = |file: PathBuf| pidfile::read(&file).map(|p| p.pid);
        let nodes = self.plan.nodes.iter().enumerate().map(|(n, address)| Member {
            name: format!("n{}", n + 1),
            pid: pid(self.node_pid(n)),
            address: *address,
            log: self.node_dir(n).join("node.log"),
        });
        let conductor = Member {
            name: "conductor".to_owned(),
            pid: pid(self.conductor_pid()),
            address: self.plan.conductor,
            log: self.dir.join("conductor.log"),
        };
        std::iter::once(conductor).chain(nodes).collect()
    }

    /// Its conductor, to be asked.
    pub(super) fn client(&self) -> Outcome<Client> {
        let dir = DirArgs { dir: Some(self.dir.clone()) };
        ClusterArgs { conductor: None, key_file: None, tls: self.plan.tls, dir }.client()
    }

    /// Volumes of this cluster that are attached to this host.
    pub(super) fn attached(&self) -> anyhow::Result<Vec<String>> {
        let mut volumes = Vec::new();
        for place in target_daemon::Place::all(&self.dir.join("attached"))? {
            if place.is_live()? {
                volumes.push(place.volume().to_owned());
            }
        }
        Ok(volumes)
    }

    /// Ends all attachments, also those whose target is dead.
    pub(super) fn detach_all(&self, force: bool) -> Outcome {
        let places = target_daemon::Place::all(&self.dir.join("attached"))?;
        if places.is_empty() {
            return Ok(());
        }
        let conductor = self.client()?;
        for place in places {
            match target_daemon::detach(&place, &conductor, force) {
                // Nothing serves it any more. What the conductor believes goes with it.
                Err(TargetError::Conductor(error)) if !place.is_live()? => {
                    note(format_args!(
                        "trine: {} is detached, but the conductor was not told: {error}",
                        place.volume()
                    ));
                }
                Err(TargetError::NotAttached { .. }) => {}
                detached => detached?,
            }
        }
        Ok(())
    }
}

/// What the conductor knows of a node.
pub(super) fn find(known: &[NodeInfo], n: usize) -> Option<&NodeInfo> {
    known.iter().find(|info| info.node.0 as usize == n + 1)
}

/// Deletes what a cluster keeps in its directory, and the directory if nobody else has anything in it.
pub(super) fn destroy(dir: &Path, nodes: usize) -> std::io::Result<()> {
    let trees = (1..=nodes).map(|n| format!("n{n}")).chain(["attached".to_owned()]);
    for tree in trees {
        gone(fs::remove_dir_all(dir.join(tree)))?;
    }
    let conductor = ["addr", "log", "pid", "redb"].map(|what| format!("conductor.{what}"));
    // The plan last but for the lock: without it the directory is no cluster.
    for file in conductor.iter().map(String::as_str).chain(["cluster.key", "cluster.json", "lock"]) {
        gone(fs::remove_file(dir.join(file)))?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
        result => result,
    }
}

/// What is not there need not be deleted.
pub(super) fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Only for its owner's eyes.
pub(super) fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Directories for journals, named from the root like everything that the processes are told.
pub(super) fn journal_dirs(args: &StartArgs) -> Outcome<Vec<PathBuf>> {
    let dirs = args.journals.iter().map(|dir| match dir.is_dir() {
        true => Ok(std::path::absolute(dir).context("cannot find the present directory")?),
        false => Err(Failure::usage(format!("--journals: there is no directory {}", dir.display()))),
    });
    dirs.collect()
}
