//! `trine dev`: a conductor and some nodes in the background of this machine.
//!
//! ```text
//!   DIR/ cluster.json  cluster.key  conductor.{redb,addr,pid,log}  nN/{disk0…,node.pid,node.log,control.sock}  attached/
//! ```
//! Everything about the cluster is in that directory: what it consists of, which ports, who runs. Starting starts what does not run;
//! stopping signals exactly the processes that were started from here.

use crate::config::{ClusterArgs, DirArgs, HTTPS};
use crate::inherited::keep_files;
use crate::output::{Exit, Failure, Outcome, OutputArgs, Size, confirm, note, print, table};
use crate::pidfile::{self, Process};
use crate::ports::ports;
use anyhow::Context;
use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use conductor_client::Client;
use conductor_model::views::NodeInfo;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use target_daemon::TargetError;

/// How long a process may take until it is ready: a node writes its disk first.
const READY: Duration = Duration::from_secs(300);
/// How long it may take to stop before it is killed: a node's own limit is 15 s.
const STOP: Duration = Duration::from_secs(20);
/// How long another command's start or stop is waited for: a little more than it takes at most.
const LOCKED: Duration = Duration::from_secs(330);
/// Lines of a log that are shown when its process did not start.
const LOG_LINES: usize = 5;
/// Most nodes on one machine: a guard against a slip of the finger.
const MAX_NODES: u32 = 32;
/// Most reactors of a node: as many as its default memory is enough for.
const MAX_REACTORS: u16 = 8;

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum DevCommand {
    /// Start the cluster, or what of it does not run; returns when all nodes are registered
    Start(StartArgs),
    /// Stop the cluster; its data stays, unless --destroy
    Stop(StopArgs),
    /// Show the cluster's processes
    Status(StatusArgs),
}

#[derive(Args)]
pub(crate) struct StartArgs {
    /// Nodes, at the first start [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NODES)))]
    nodes: Option<u32>,
    /// Size of each node's disk, at the first start; the file is written in full [default: 1G]
    #[arg(long, value_name = "SIZE")]
    disk_size: Option<Size>,
    /// Size of each disk's journal, at the first start: 16M to 1G, half the disk at most [default: a sixteenth of the disk]
    #[arg(long, value_name = "SIZE")]
    journal_size: Option<Size>,
    /// Reactors of each node, at the first start; each has a disk of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_REACTORS)))]
    reactors: Option<u16>,
    /// Directories for the disks' journals, in turn, at the first start: mounts with DAX on NVDIMM, one for each of the machine's
    /// memory nodes [default: each on its disk]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    journals: Vec<PathBuf>,
    /// First of the ports to use, at the first start [default: any free ones]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Everything that goes over TCP within the cluster is TLS 1.3; at the first start
    #[arg(long, env = "TRINE_TLS", value_parser = BoolishValueParser::new())]
    tls: bool,
    /// Reserve no space for the disks' files
    #[arg(long)]
    sparse: bool,
    /// Use the page cache on file systems without O_DIRECT
    #[arg(long, env = "TRINE_ALLOW_BUFFERED", value_parser = BoolishValueParser::new())]
    allow_buffered: bool,
    /// Have the nodes' buffer memory on huge pages of 2 MiB, which must be reserved: sysctl vm.nr_hugepages
    #[arg(long, env = "TRINE_HUGE_PAGES", value_parser = BoolishValueParser::new())]
    huge_pages: bool,
    #[command(flatten)]
    dir: DirArgs,
}

#[derive(Args)]
pub(crate) struct StopArgs {
    /// Delete the cluster and all its data afterwards
    #[arg(long)]
    destroy: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Stop although volumes are attached: their I/O waits until the cluster is back; with --destroy they are detached first
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dir: DirArgs,
}

#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    dir: DirArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(command: DevCommand) -> Outcome {
    match command {
        DevCommand::Start(args) => start(&args),
        DevCommand::Stop(args) => stop(&args),
        DevCommand::Status(args) => status(&args),
    }
}

/// What `cluster.json` says: chosen at the first start.
#[derive(Serialize, Deserialize)]
struct Plan {
    conductor: SocketAddr,
    nodes: Vec<SocketAddr>,
    disk_size: u64,
    /// What was said of the journals'.
    #[serde(default)]
    journal_size: Option<u64>,
    /// Of each node, and disks too.
    #[serde(default = "one")]
    reactors: u16,
    /// Where the disks' journals are, in turn; on the disks if nowhere.
    #[serde(default)]
    journals: Vec<PathBuf>,
    #[serde(default)]
    tls: bool,
}

impl Plan {
    /// As commands are told it.
    fn conductor_address(&self) -> String {
        format!("{}{}", if self.tls { HTTPS } else { "" }, self.conductor)
    }
}

fn one() -> u16 {
    1
}

/// A development cluster on disk.
struct Cluster {
    dir: PathBuf,
    plan: Plan,
}

/// What a node is started with.
struct Disks {
    /// Each with its journal, if that is elsewhere.
    paths: Vec<(PathBuf, Option<PathBuf>)>,
    /// Make those that are not there.
    make: bool,
}

/// One of its processes.
#[derive(Serialize)]
struct Member {
    name: String,
    pid: Option<u32>,
    address: SocketAddr,
    log: PathBuf,
}

impl Cluster {
    /// The cluster in `dir`, if there is one.
    fn open(dir: &Path) -> Outcome<Option<Self>> {
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
    fn create(dir: &Path, args: &StartArgs) -> Outcome<Self> {
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

    fn node_dir(&self, n: usize) -> PathBuf {
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
    fn disks(&self, n: usize, known: Option<&NodeInfo>) -> Disks {
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

    /// Disks that were lost, and how what they held is made again.
    fn say_what_is_missing(&self) -> Outcome {
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
    fn journals(&self) -> impl Iterator<Item = PathBuf> {
        let disks = (0..self.plan.nodes.len()).flat_map(|n| (0..self.plan.reactors).map(move |disk| (n, disk)));
        disks.filter_map(|(n, disk)| self.disk(n, disk).1)
    }

    fn conductor_pid(&self) -> PathBuf {
        self.dir.join("conductor.pid")
    }

    fn node_pid(&self, n: usize) -> PathBuf {
        self.node_dir(n).join("node.pid")
    }

    fn members(&self) -> Vec<Member> {
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
    fn client(&self) -> Outcome<Client> {
        let dir = DirArgs { dir: Some(self.dir.clone()) };
        ClusterArgs { conductor: None, key_file: None, tls: self.plan.tls, dir }.client()
    }

    /// Volumes of this cluster that are attached to this host.
    fn attached(&self) -> anyhow::Result<Vec<String>> {
        let mut volumes = Vec::new();
        for place in target_daemon::Place::all(&self.dir.join("attached"))? {
            if place.is_live()? {
                volumes.push(place.volume().to_owned());
            }
        }
        Ok(volumes)
    }

    /// Ends all attachments, also those whose target is dead.
    fn detach_all(&self, force: bool) -> Outcome {
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

fn start(args: &StartArgs) -> Outcome {
    let dir = absolute(&args.dir)?;
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    make(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let _lock = lock(&dir)?;
    let cluster = match Cluster::open(&dir)? {
        Some(cluster) => {
            let nodes = args.nodes.is_some_and(|n| n as usize != cluster.plan.nodes.len());
            let disk = args.disk_size.is_some_and(|size| size.0 != cluster.plan.disk_size);
            let journal = args.journal_size.is_some_and(|size| Some(size.0) != cluster.plan.journal_size);
            let port = args.port.is_some_and(|port| port != cluster.plan.conductor.port());
            let reactors = args.reactors.is_some_and(|n| n != cluster.plan.reactors);
            let journals = !args.journals.is_empty() && journal_dirs(args)? != cluster.plan.journals;
            let tls = args.tls && !cluster.plan.tls;
            if nodes || disk || journal || port || reactors || journals || tls {
                let why = format!(
                    "the cluster in {} exists and is not like that: leave the options out, or `trine dev stop --destroy` it first",
                    dir.display()
                );
                return Err(Failure::new(Exit::Refused, why));
            }
            cluster
        }
        None => Cluster::create(&dir, args)?,
    };
    if args.huge_pages {
        let stopped = (0..cluster.plan.nodes.len()).filter(|n| pidfile::read(&cluster.node_pid(*n)).is_none()).count();
        let of_each = node_daemon::huge_pages_needed(node_daemon::DEFAULT_MEMORY, cluster.plan.reactors.into());
        // Together: each alone would find enough for itself only.
        let there_are = node_daemon::HugePages::read();
        there_are.check(of_each * stopped as u64).map_err(|few| Failure::new(Exit::Refused, few))?;
    }
    let mut started = 0;
    if pidfile::read(&cluster.conductor_pid()).is_none() {
        let log = cluster.dir.join("conductor.log");
        let mut command = own_command(&["conductor", "run", "--listen", &cluster.plan.conductor.to_string()])?;
        command.arg("--store").arg(prefixed("redb:", &cluster.dir.join("conductor.redb")));
        command.arg("--key-file").arg(cluster.dir.join("cluster.key"));
        command.args(cluster.plan.tls.then_some("--tls"));
        // It was there when the nodes were made: a file that is lost is no new cluster.
        command.args(cluster.node_dir(0).exists().then_some("--existing"));
        let child = Starting::spawn("conductor", command, &log, &cluster.conductor_pid())?;
        child.wait_until_ready()?;
        started += 1;
    }
    let known = cluster.client()?.nodes()?;
    // All at once: each may have a disk to write.
    let mut starting = Vec::new();
    for (n, address) in cluster.plan.nodes.iter().enumerate() {
        if pidfile::read(&cluster.node_pid(n)).is_some() {
            continue;
        }
        let dir = cluster.node_dir(n);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let Disks { paths, make } = cluster.disks(n, known.iter().find(|info| info.node.0 as usize == n + 1));
        let mut command = own_command(&["node", "run", "--node", &(n + 1).to_string()])?;
        command.args(["--listen", &address.to_string()]);
        if make {
            command.args(["--format", "--create", &cluster.plan.disk_size.to_string()]);
        }
        if let Some(size) = cluster.plan.journal_size {
            command.args(["--journal-size", &size.to_string()]);
        }
        command.args(["--conductor", &cluster.plan.conductor_address()]);
        command.arg("--key-file").arg(cluster.dir.join("cluster.key"));
        let reactors = usize::from(cluster.plan.reactors).min(paths.len());
        command.args(["--reactors", &reactors.to_string()]);
        for (mut path, journal) in paths {
            if let Some(journal) = journal {
                let mut both = path.into_os_string();
                both.push(",journal=");
                both.push(journal);
                path = both.into();
            }
            command.arg("--disk").arg(path);
        }
        command.arg("--control-socket").arg(dir.join("control.sock"));
        command.args(args.huge_pages.then_some("--huge-pages"));
        command.args(args.sparse.then_some("--sparse")).args(args.allow_buffered.then_some("--allow-buffered"));
        starting.push(Starting::spawn(
            &format!("node n{}", n + 1),
            command,
            &dir.join("node.log"),
            &cluster.node_pid(n),
        )?);
    }
    started += starting.len();
    // Draws nothing unless stderr is a terminal.
    let bar = ProgressBar::new_spinner().with_message(format!("{} nodes are starting", starting.len()));
    bar.enable_steady_tick(Duration::from_millis(100));
    for child in starting {
        child.wait_until_ready()?;
    }
    bar.finish_and_clear();
    let nodes = cluster.plan.nodes.len();
    let what = if started == 0 { "runs already" } else { "runs" };
    print(&format!("a cluster of {nodes} nodes {what} in {}; conductor at {}", dir.display(), cluster.plan.conductor))?;
    cluster.say_what_is_missing()
}

/// A process that was started and is not ready yet.
struct Starting {
    name: String,
    log: PathBuf,
    /// What was in the log before it.
    before: usize,
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Starting {
    fn spawn(name: &str, mut command: Command, log: &Path, pid_file: &Path) -> Outcome<Self> {
        let output = OpenOptions::new().create(true).append(true).mode(0o600).open(log);
        let output = output.with_context(|| format!("cannot write {}", log.display()))?;
        let before = output.metadata().map_or(0, |found| usize::try_from(found.len()).unwrap_or(usize::MAX));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let process = Process::of(child.id());
        if let Some(process) = process {
            pidfile::write(pid_file, process)?;
        }
        let (tell, said) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || first_line(stdout, &tell));
        }
        Ok(Self { name: name.to_owned(), log: log.to_path_buf(), before, child, said })
    }

    /// Until it has printed its first line, which it does when it is ready.
    fn wait_until_ready(mut self) -> Outcome {
        match self.said.recv_timeout(READY) {
            Ok(line) if line.starts_with("ready") => Ok(()),
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                // It has closed its output without that: it is ending.
                let status = self.child.wait().map_or("?".to_owned(), |status| status.to_string());
                let text = fs::read(&self.log).unwrap_or_default();
                let text = String::from_utf8_lossy(text.get(self.before..).unwrap_or_default());
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
                let why =
                    format!("{} did not start ({status}); the end of {}:\n  {last}", self.name, self.log.display());
                Err(Failure::new(Exit::Failed, why))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let why = format!("{} is not ready after {} s: see {}", self.name, READY.as_secs(), self.log.display());
                Err(Failure::new(Exit::TimedOut, why))
            }
        }
    }
}

fn first_line(stdout: ChildStdout, tell: &mpsc::Sender<String>) {
    let mut line = String::new();
    if matches!(BufReader::new(stdout).read_line(&mut line), Ok(1..)) {
        // Nobody waits any more if that took too long.
        let _ = tell.send(line);
    }
}

/// Deletes what a cluster keeps in its directory, and the directory if nobody else has anything in it.
fn destroy(dir: &Path, nodes: usize) -> std::io::Result<()> {
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
fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn stop(args: &StopArgs) -> Outcome {
    let dir = absolute(&args.dir)?;
    let none = || print(&format!("no cluster in {}", dir.display()));
    // Nothing is left in a directory that has nothing to do with this.
    if Cluster::open(&dir)?.is_none() {
        return none();
    }
    let _lock = lock(&dir)?;
    let Some(cluster) = Cluster::open(&dir)? else { return none() };
    let attached = cluster.attached()?;
    if !attached.is_empty() && !args.force {
        let why = format!(
            "attached: {}. Detach them first, or pass --force: {}",
            attached.join(", "),
            if args.destroy {
                "they are detached, what is in flight fails"
            } else {
                "their I/O waits until the cluster is back"
            }
        );
        return Err(Failure::new(Exit::Refused, why));
    }
    if args.destroy {
        confirm(&format!("Delete the cluster in {} and all its data for good?", dir.display()), args.yes)?;
        // Nothing would ever answer them again, and nobody could end them by name.
        cluster.detach_all(args.force)?;
    }
    // Nodes first: they say goodbye to each other, and the conductor hears their last word.
    let nodes = (0..cluster.plan.nodes.len()).map(|n| cluster.node_pid(n)).collect::<Vec<_>>();
    let stopped = end(&nodes)? + end(&[cluster.conductor_pid()])?;
    if args.destroy {
        cluster.journals().try_for_each(|file| gone(fs::remove_file(file))).context("cannot delete the journals")?;
        destroy(&dir, cluster.plan.nodes.len()).with_context(|| format!("cannot delete {}", dir.display()))?;
        return print(&format!("cluster in {} stopped and deleted", dir.display()));
    }
    print(&format!("{stopped} processes stopped; the data stays in {}", dir.display()))
}

/// Ends the processes of these files, together; says how many there were.
fn end(files: &[PathBuf]) -> Outcome<usize> {
    let processes: Vec<Process> = files.iter().filter_map(|file| pidfile::read(file)).collect();
    for process in &processes {
        process.terminate()?;
    }
    let until = Instant::now() + STOP;
    for process in &processes {
        if !process.wait(until) {
            note(format_args!("trine: process {} did not stop in {} s: killing it", process.pid, STOP.as_secs()));
            process.kill()?;
            process.wait(Instant::now() + STOP);
        }
    }
    for file in files {
        let _ = fs::remove_file(file);
    }
    Ok(processes.len())
}

fn status(args: &StatusArgs) -> Outcome {
    let dir = absolute(&args.dir)?;
    let Some(cluster) = Cluster::open(&dir)? else {
        return Err(Failure::new(
            Exit::NoSuch,
            format!("no cluster in {}: `trine dev start` makes one", dir.display()),
        ));
    };
    args.output.print(&cluster.members(), |members| {
        let row = |m: &Member| {
            let pid = m.pid.map_or("-".to_owned(), |pid| pid.to_string());
            let state = if m.pid.is_some() { "running" } else { "STOPPED" };
            vec![m.name.clone(), state.to_owned(), pid, m.address.to_string(), m.log.display().to_string()]
        };
        table(&["PROCESS", "STATE", "PID", "ADDRESS", "LOG"], members.iter().map(row))
    })
}

/// This very program, detached from the terminal and with nothing of our environment that could change its options.
fn own_command(args: &[&str]) -> Outcome<Command> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    keep_files();
    let mut command = Command::new(program);
    command.args(args).current_dir("/");
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRINE_") && name != "TRINE_LOG")
    {
        command.env_remove(name);
    }
    command.env("TRINE_CONFIG", "/dev/null");
    // SAFETY: setsid is async-signal-safe and takes nothing from this process.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into));
    }
    Ok(command)
}

/// Held while something is started or stopped.
fn lock(dir: &Path) -> Outcome<File> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let (until, mut said) = (Instant::now() + LOCKED, false);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => {}
            Err(fs::TryLockError::WouldBlock) => {
                let why =
                    format!("another `trine dev` is at work in {}, after {} s still", dir.display(), LOCKED.as_secs());
                return Err(Failure::new(Exit::TimedOut, why));
            }
            Err(fs::TryLockError::Error(error)) => {
                return Err(anyhow::Error::from(error).context(format!("cannot lock {}", path.display())).into());
            }
        }
        if !std::mem::replace(&mut said, true) {
            note(format_args!("trine: another `trine dev` is at work in {}: waiting for it", dir.display()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Only for its owner's eyes.
fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn prefixed(prefix: &str, path: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(prefix);
    text.push(path);
    text
}

/// Directories for journals, named from the root like everything that the processes are told.
fn journal_dirs(args: &StartArgs) -> Outcome<Vec<PathBuf>> {
    let dirs = args.journals.iter().map(|dir| match dir.is_dir() {
        true => Ok(std::path::absolute(dir).context("cannot find the present directory")?),
        false => Err(Failure::usage(format!("--journals: there is no directory {}", dir.display()))),
    });
    dirs.collect()
}

/// The processes run elsewhere, so the directory is named from the root.
fn absolute(dir: &DirArgs) -> Outcome<PathBuf> {
    Ok(std::path::absolute(dir.path()?).context("cannot find the present directory")?)
}
