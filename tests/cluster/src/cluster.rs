//! A conductor, its nodes and their targets, on loopback, in a directory of their own.
//!
//! Started by `trine dev start`, as a person would, or one by one in a network of their own (`spread`); from then on each process is handled by its pid, and what is killed is started
//! again as `dev` had started it. Whatever happens to the test, no process and no file stays.

mod several;
mod spread;

use crate::command::{Outcome, Running, trine, trine_ok};
use crate::nbd::Place;
use crate::network::{Network, Spot};
use crate::process::Process;
use crate::watcher::Watcher;
use anyhow::{Context, Result, bail, ensure};
use conductor_client::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wire::{ClusterKey, Key};

/// How long anything that is expected may take: far above what it does take, which is printed.
pub const LONG: Duration = Duration::from_secs(60);

/// What is left of a target that has given its lock back, at most.
const ENDED: Duration = Duration::from_secs(5);

/// What to start.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Nodes.
    pub nodes: usize,
    /// Reactors of each node, each with a disk of its own.
    pub reactors: usize,
    /// Bytes of each disk.
    pub disk: u64,
    /// Bytes of its journal; the usual ones, if none.
    pub journal: Option<u64>,
}

impl Default for Shape {
    fn default() -> Self {
        Self { nodes: 3, reactors: 1, disk: 128 << 20, journal: None }
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    shape: Shape,
    /// The conductor; of several, the first one.
    pub conductor: Process,
    /// The others.
    more: Vec<Process>,
    /// The nodes; n1 is at 0.
    pub nodes: Vec<Process>,
    targets: BTreeMap<String, Process>,
    /// Gone when its processes are.
    network: Option<Network>,
    /// Last: it takes care of what the others leave behind.
    _watcher: Watcher,
}

/// Waits until `is_so`; says how long that took.
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(start.elapsed())
}

fn new_dir(parent: &Path) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("trine-cluster-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = parent.join(name);
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn number(path: &Path) -> Result<u32> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let first = text.split_ascii_whitespace().next().context("an empty pid file")?;
    Ok(first.parse()?)
}

impl Cluster {
    /// Starts one and waits until all of it is there.
    pub fn start(shape: Shape) -> Result<Self> {
        Self::start_in(&std::env::temp_dir(), shape)
    }

    /// The same, with its directory in this one.
    pub fn start_in(parent: &Path, shape: Shape) -> Result<Self> {
        Self::start_with(parent, shape, &[])
    }

    /// The same, where everything that goes over TCP within the cluster is TLS.
    pub fn start_tls(shape: Shape) -> Result<Self> {
        Self::start_with(&std::env::temp_dir(), shape, &["--tls"])
    }

    fn start_with(parent: &Path, shape: Shape, more: &[&str]) -> Result<Self> {
        let dir = new_dir(parent)?;
        let watcher = Watcher::start(&dir, "")?;
        let [nodes, reactors, disk] = [shape.nodes as u64, shape.reactors as u64, shape.disk].map(|n| n.to_string());
        let start = ["dev", "start", "--nodes", &nodes, "--reactors", &reactors, "--disk-size", &disk];
        let journal = shape.journal.map(|bytes| format!("--journal-size={bytes}"));
        trine_ok(&[], &dir, &[&start[..], &journal.iter().map(String::as_str).collect::<Vec<_>>(), more].concat())?;
        let conductor = Process::adopt("conductor", number(&dir.join("conductor.pid"))?, &dir.join("conductor.log"))?;
        let node = |n: usize| {
            let at = dir.join(format!("n{n}"));
            Process::adopt(&format!("n{n}"), number(&at.join("node.pid"))?, &at.join("node.log"))
        };
        let nodes = (1..=shape.nodes).map(node).collect::<Result<_>>()?;
        let targets = BTreeMap::new();
        let more = Vec::new();
        let this = Self { dir, shape, conductor, more, nodes, targets, network: None, _watcher: watcher };
        this.wait_alive(shape.nodes)?;
        Ok(this)
    }

    /// What goes before a command line so that it runs there.
    fn prefix(&self, spot: Spot) -> Vec<OsString> {
        self.network.as_ref().map(|network| network.prefix(spot)).unwrap_or_default()
    }

    /// Its directory: TRINE_DIR.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of node `n`'s first disk; n1 is 0.
    pub fn disk(&self, n: usize) -> PathBuf {
        self.dir.join(format!("n{}/disk0", n + 1))
    }

    /// Where the conductor is.
    pub fn conductor_address(&self) -> Result<String> {
        Ok(fs::read_to_string(self.dir.join("conductor.addr"))?.trim().to_owned())
    }

    /// The conductor, for whoever has the cluster's key.
    pub fn conductor(&self) -> Result<Client> {
        Ok(Client::new(&self.conductor_address()?)?.with_key(Key::Cluster(ClusterKey(self.key()?)))?)
    }

    /// The cluster's key.
    pub fn key(&self) -> Result<[u8; 32]> {
        let text = fs::read_to_string(self.dir.join("cluster.key"))?;
        let text = text.trim();
        ensure!(text.len() == 64, "a key of {} digits", text.len());
        let mut key = [0; 32];
        for (n, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16)?;
        }
        Ok(key)
    }

    /// `trine ARGS`, which must succeed.
    pub fn trine(&self, args: &[&str]) -> Result<String> {
        trine_ok(&self.prefix(Spot::Observer), &self.dir, args)
    }

    /// `trine ARGS`, however it ends.
    pub fn try_trine(&self, args: &[&str]) -> Result<Outcome> {
        trine(&self.prefix(Spot::Observer), &self.dir, args)
    }

    /// `trine ARGS`, which goes on beside the test.
    pub fn begin(&self, args: &[&str]) -> Result<Running> {
        Running::start(&self.prefix(Spot::Observer), &self.dir, args)
    }

    /// `trine ARGS -o json`.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let args = [args, &["-o", "json"]].concat();
        let text = self.trine(&args)?;
        serde_json::from_str(&text).with_context(|| format!("`trine {}` printed {text:?}", args.join(" ")))
    }

    /// `trine status`.
    pub fn status(&self) -> Result<Value> {
        self.json(&["status"])
    }

    /// `trine status`; `None` if the conductor cannot be reached just now.
    fn try_status(&self) -> Result<Option<Value>> {
        let outcome = self.try_trine(&["status", "-o", "json"])?;
        match outcome.code {
            0 => Ok(Some(serde_json::from_str(&outcome.stdout)?)),
            3 => Ok(None),
            code => bail!("`trine status` ended with {code}: {}", outcome.stderr),
        }
    }

    /// `trine node show nN --refs --trace`; n1 is 0.
    pub fn look(&self, node: usize) -> Result<Value> {
        self.json(&["node", "show", &format!("n{}", node + 1), "--refs", "--trace"])
    }

    /// What a volume's target tells of itself.
    pub fn look_at_target(&self, volume: &str) -> Result<Value> {
        let mut socket = UnixStream::connect(self.dir.join(format!("attached/{volume}.sock")))?;
        socket.set_read_timeout(Some(LONG))?;
        socket.write_all(b"look\n")?;
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// A counter of node `n`, summed over its reactors.
    pub fn counter(&self, node: usize, name: &str) -> Result<u64> {
        let look = self.look(node)?;
        let reactors = look["inside"]["reactors"].as_array().context("no reactors")?;
        Ok(reactors.iter().filter_map(|reactor| reactor["counters"][name].as_u64()).sum())
    }

    /// The health of a volume and the reasons, as `trine status` shows them.
    pub fn health(&self, volume: &str) -> Result<(String, Vec<String>)> {
        let Some(status) = self.try_status()? else { return Ok(("conductor unreachable".to_owned(), Vec::new())) };
        let volumes = status["volumes"].as_array().context("no volumes")?;
        let volume = volumes.iter().find(|v| v["name"] == volume).with_context(|| format!("no volume {volume}"))?;
        let reasons = volume["reasons"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok((text(&volume["health"]), reasons.map(text).collect()))
    }

    /// Waits until `trine status` calls the volume healthy.
    pub fn wait_healthy(&self, volume: &str) -> Result<Duration> {
        Ok(self.wait_health(volume, "healthy")?.0)
    }

    /// Waits until it calls the volume this; returns the reasons.
    pub fn wait_health(&self, volume: &str, word: &str) -> Result<(Duration, Vec<String>)> {
        let mut last = (String::new(), Vec::new());
        let took = wait_until(word, LONG, || {
            last = self.health(volume)?;
            Ok(last.0 == word)
        });
        let took = took.with_context(|| format!("{volume} is {last:?}"))?;
        ensure!(word == "healthy" || !last.1.is_empty(), "{volume} is {word} without a reason");
        Ok((took, last.1))
    }

    /// Waits until so many nodes are alive.
    pub fn wait_alive(&self, nodes: usize) -> Result<Duration> {
        let alive = |status: &Value| {
            let all = status["nodes"].as_array();
            all.map_or(0, |all| all.iter().filter(|node| node["state"] == "alive").count())
        };
        wait_until("all nodes alive", LONG, || Ok(self.try_status()?.is_some_and(|status| alive(&status) == nodes)))
    }

    /// Creates a volume of `mib` MiB in shards of `shard_mib`, and waits until it is healthy.
    pub fn create(&self, volume: &str, mib: u64, shard_mib: u64) -> Result<()> {
        let (size, shard) = (format!("{mib}M"), format!("{shard_mib}M"));
        self.trine(&["volume", "create", volume, "--size", &size, "--shard-size", &shard])?;
        self.wait_healthy(volume)?;
        Ok(())
    }

    /// The node that is primary of a shard; n1 is 0.
    pub fn primary(&self, volume: &str, shard: usize) -> Result<usize> {
        let shown = self.json(&["volume", "show", volume])?;
        let config = &shown["shards"][shard];
        let members = config["members"].as_array().with_context(|| format!("no members in {shown}"))?;
        let primary = members.iter().find(|m| m["copy"] == config["primary"]).context("no primary")?;
        let node = primary["node"].as_u64().context("no node")?;
        usize::try_from(node)?.checked_sub(1).context("nodes count from 1")
    }

    /// Where a volume's NBD socket is.
    pub fn place(&self, volume: &str) -> Place {
        Place::Unix(self.dir.join(format!("{volume}.nbd")))
    }

    /// Attaches a volume over NBD on a Unix socket.
    pub fn attach(&mut self, volume: &str) -> Result<Place> {
        self.attach_with(volume, &[])
    }

    /// The same with more options.
    pub fn attach_with(&mut self, volume: &str, more: &[&str]) -> Result<Place> {
        let Place::Unix(path) = self.place(volume) else { bail!("a Unix socket") };
        let nbd = format!("unix:{}", path.display());
        trine_ok(&self.prefix(Spot::Client), &self.dir, &[&["attach", volume, "--nbd", &nbd], more].concat())?;
        let attached = self.dir.join("attached");
        let record: Value = serde_json::from_slice(&fs::read(attached.join(format!("{volume}.json")))?)?;
        let pid = u32::try_from(record["pid"].as_u64().context("no pid")?)?;
        let process = Process::adopt(volume, pid, &attached.join(format!("{volume}.log")))?;
        self.targets.insert(volume.to_owned(), process);
        Ok(self.place(volume))
    }

    /// A volume's target.
    pub fn target(&mut self, volume: &str) -> Result<&mut Process> {
        self.targets.get_mut(volume).with_context(|| format!("{volume} is not attached"))
    }

    /// Detaches a volume in good order.
    pub fn detach(&mut self, volume: &str) -> Result<()> {
        self.trine(&["detach", volume])?;
        let mut target = self.targets.remove(volume).with_context(|| format!("{volume} is not attached"))?;
        // It gives its lock back, which is what `trine detach` waits for, as the last thing it does.
        wait_until("the target ends with `trine detach`", ENDED, || Ok(!target.is_alive()))?;
        Ok(())
    }

    /// Stops all nodes in good order and compares the copies on all their disks.
    pub fn stop_and_compare(&mut self) -> Result<Value> {
        for node in &mut self.nodes {
            if node.is_alive() {
                node.terminate()?;
            }
        }
        let mut disks = Vec::new();
        for n in 1..=self.nodes.len() {
            disks.extend((0..self.shape.reactors).map(|disk| format!("{}/n{n}/disk{disk}", self.dir.display())));
        }
        let mut args = vec!["store", "compare", "-o", "json"];
        args.extend(disks.iter().map(String::as_str));
        let outcome = self.try_trine(&args)?;
        ensure!(
            outcome.code == 0,
            "`trine store compare` ended with {}: {}{}",
            outcome.code,
            outcome.stdout,
            outcome.stderr
        );
        Ok(serde_json::from_str(&outcome.stdout)?)
    }

    /// What every process said last, for a test that failed.
    pub fn last_words(&self) -> String {
        let conductors = std::iter::once(&self.conductor).chain(&self.more);
        let all = conductors.chain(&self.nodes).chain(self.targets.values());
        all.map(|process| format!("--- {}\n{}\n", process.name, process.last_words())).collect()
    }
}

impl Cluster {
    /// What the nodes that run hold, and what they asked the conductor for.
    fn insides(&self) -> String {
        let inside = |n: usize| -> Result<String> {
            let shown = self.json(&["node", "show", &(n + 1).to_string(), "--refs"])?;
            let mut text = format!("--- inside {}\n", self.nodes[n].name);
            for reactor in shown["inside"]["reactors"].as_array().into_iter().flatten() {
                for copy in reactor["copies"].as_array().into_iter().flatten() {
                    text += &format!("{copy}\n");
                }
                let asked = reactor["counters"].as_object().into_iter().flatten();
                let asked: Vec<_> = asked.filter(|(name, _)| name.starts_with("ask.")).collect();
                text += &format!("{asked:?}\n");
            }
            Ok(text)
        };
        (0..self.nodes.len()).map(|n| inside(n).unwrap_or_else(|error| format!("n{}: {error:#}\n", n + 1))).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}{}", self.insides(), self.last_words());
        }
    }
}
