//! `trine dev`: a conductor and some nodes in the background of this machine.
//!
//! ```text
//!   DIR/ cluster.json  cluster.key  conductor.{redb,addr,pid,log}  nN/{disk0…,joined,node.pid,node.log,control.sock}  attached/
//! ```
//! Everything about the cluster is in that directory: what it consists of, which ports, who runs. Starting starts what does not run;
//! stopping signals exactly the processes that were started from here.

mod cluster;
mod process;

use crate::config::DirArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, Size, confirm, note, table};
use anyhow::Context;
use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use cluster::{Cluster, Disks, Member, destroy, find, gone, journal_dirs};
use conductor_model::views::{NodeInfo, NodeState};
use indicatif::ProgressBar;
use process::{Starting, end, own_command, runs};
use serde::Serialize;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another command's start or stop is waited for: a little more than it takes at most.
const LOCKED: Duration = Duration::from_secs(330);
/// How long a node that ran before its conductor did may take to find it: it tries again every few seconds.
const HEARD: Duration = Duration::from_secs(30);
/// Most nodes on one machine: a guard against a slip of the finger.
const MAX_NODES: u32 = 32;
/// Most reactors of a node: as many as its default memory is enough for.
const MAX_REACTORS: u16 = 8;

#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum DevCommand {
    /// Start the cluster, or what of it does not run, but for nodes that were removed; returns when the conductor has heard of all nodes that run
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
    #[command(flatten)]
    output: OutputArgs,
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
    #[command(flatten)]
    output: OutputArgs,
}

/// What a stop came to.
#[derive(Serialize)]
struct Stopped {
    dir: String,
    /// Processes.
    stopped: usize,
    /// The cluster is, with its data.
    deleted: bool,
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

fn start(args: &StartArgs) -> Outcome {
    let dir = absolute(&args.dir)?;
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    make(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let _lock = lock(&dir)?;
    let cluster = match Cluster::open(&dir)? {
        Some(cluster) => {
            check_same(&cluster, args)?;
            cluster
        }
        None => Cluster::create(&dir, args)?,
    };
    let nodes: Vec<usize> = (0..cluster.plan.nodes.len()).collect();
    let mut stopped: Vec<usize> = nodes.into_iter().filter(|n| !runs(&cluster.node_pid(*n))).collect();
    if args.huge_pages {
        let of_each = node_daemon::huge_pages_needed(node_daemon::DEFAULT_MEMORY, cluster.plan.reactors.into());
        // Together: each alone would find enough for itself only.
        let there_are = node_daemon::HugePages::read();
        there_are.check(of_each * stopped.len() as u64).map_err(|few| Failure::new(Exit::Refused, few))?;
    }
    let conductor = !runs(&cluster.conductor_pid());
    if conductor {
        start_conductor(&cluster)?.wait_until_ready()?;
    }
    let status = cluster.client()?.status()?;
    let removed: Vec<usize> = stopped.extract_if(.., |n| cluster.is_removed(*n, &status)).collect();
    removed.iter().for_each(|n| cluster.say_how_it_joins_anew(*n));
    start_nodes(&cluster, &stopped, &status.nodes, args)?;
    // Of those that ran one may have been about to end.
    let ended: Vec<usize> =
        (0..cluster.plan.nodes.len()).filter(|n| !removed.contains(n) && !runs(&cluster.node_pid(*n))).collect();
    if !ended.is_empty() {
        start_nodes(&cluster, &ended, &status.nodes, args)?;
        stopped.extend(ended);
    }
    let (nodes, conductor_at) = (cluster.plan.nodes.len() - removed.len(), cluster.plan.conductor);
    let what = if conductor || !stopped.is_empty() { "runs" } else { "runs already" };
    args.output.print(&cluster.members(), |_| {
        format!("a cluster of {nodes} nodes {what} in {}; conductor at {conductor_at}", dir.display())
    })?;
    cluster.say_what_is_missing()
}

/// Until the conductor has heard of them, and of all others that run.
fn start_nodes(cluster: &Cluster, nodes: &[usize], known: &[NodeInfo], args: &StartArgs) -> Outcome {
    // All at once: each may have a disk to write.
    let starting = nodes.iter().map(|n| start_node(cluster, *n, known, args)).collect::<Outcome<Vec<_>>>()?;
    // Draws nothing unless stderr is a terminal.
    let bar = ProgressBar::new_spinner().with_message(format!("{} nodes are starting", starting.len()));
    bar.enable_steady_tick(Duration::from_millis(100));
    starting.into_iter().try_for_each(Starting::wait_until_ready)?;
    bar.set_message("the nodes register");
    cluster.note_joined(&wait_until_heard(cluster)?)?;
    bar.finish_and_clear();
    Ok(())
}

/// Until every node that runs has spoken to the conductor, also one that ran before it; not one that was removed from the cluster. Returns those
/// that the conductor knows.
fn wait_until_heard(cluster: &Cluster) -> Outcome<Vec<NodeInfo>> {
    let (client, until) = (cluster.client()?, Instant::now() + HEARD);
    loop {
        let members = cluster.members();
        let known = client.nodes()?;
        let is_silent = |member: &&Member| {
            let node = known.iter().find(|node| node.node.to_string() == member.name);
            node.is_some_and(|node| node.state != NodeState::Alive) && member.pid.is_some()
        };
        let Some(silent) = members.iter().find(is_silent) else { return Ok(known) };
        if Instant::now() >= until {
            let Member { name, log, .. } = silent;
            let why = format!(
                "{name} runs, and after {} s the conductor has not heard of it: see {}",
                HEARD.as_secs(),
                log.display()
            );
            return Err(Failure::new(Exit::TimedOut, why));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What is said of a cluster that there is already has to be so.
fn check_same(cluster: &Cluster, args: &StartArgs) -> Outcome {
    let plan = &cluster.plan;
    let nodes = args.nodes.is_some_and(|n| n as usize != plan.nodes.len());
    let disk = args.disk_size.is_some_and(|size| size.0 != plan.disk_size);
    let journal = args.journal_size.is_some_and(|size| Some(size.0) != plan.journal_size);
    let port = args.port.is_some_and(|port| port != plan.conductor.port());
    let reactors = args.reactors.is_some_and(|n| n != plan.reactors);
    let journals = !args.journals.is_empty() && journal_dirs(args)? != plan.journals;
    let tls = args.tls && !plan.tls;
    if nodes || disk || journal || port || reactors || journals || tls {
        let why = format!(
            "the cluster in {} exists and is not like that: leave the options out, or `trine dev stop --destroy` it first",
            cluster.dir.display()
        );
        return Err(Failure::new(Exit::Refused, why));
    }
    Ok(())
}

fn start_conductor(cluster: &Cluster) -> Outcome<Starting> {
    let mut command = own_command(&["conductor", "run", "--listen", &cluster.plan.conductor.to_string()])?;
    command.arg("--store").arg(prefixed("redb:", &cluster.dir.join("conductor.redb")));
    command.arg("--key-file").arg(cluster.dir.join("cluster.key"));
    command.args(cluster.plan.tls.then_some("--tls"));
    // It was there when the nodes were made: a file that is lost is no new cluster.
    let made = (0..cluster.plan.nodes.len()).any(|n| cluster.node_dir(n).exists());
    command.args(made.then_some("--existing"));
    Starting::spawn("conductor", command, &cluster.dir.join("conductor.log"), &cluster.conductor_pid())
}

/// `known`: the nodes that the conductor knows.
fn start_node(cluster: &Cluster, n: usize, known: &[NodeInfo], args: &StartArgs) -> Outcome<Starting> {
    let plan = &cluster.plan;
    let dir = cluster.node_dir(n);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let number = n + 1;
    let Disks { paths, make } = cluster.disks(n, find(known, n));
    let mut command = own_command(&["node", "run", "--node", &number.to_string()])?;
    command.args(["--listen", &plan.nodes[n].to_string()]);
    if make {
        command.args(["--format", "--create", &plan.disk_size.to_string()]);
    }
    if let Some(size) = plan.journal_size {
        command.args(["--journal-size", &size.to_string()]);
    }
    command.args(["--conductor", &plan.conductor_address()]);
    command.arg("--key-file").arg(cluster.dir.join("cluster.key"));
    command.args(["--reactors", &usize::from(plan.reactors).min(paths.len()).to_string()]);
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
    Starting::spawn(&format!("node n{number}"), command, &dir.join("node.log"), &cluster.node_pid(n))
}

fn stop(args: &StopArgs) -> Outcome {
    let dir = absolute(&args.dir)?;
    let path = || dir.display().to_string();
    let none = || {
        let none = Stopped { dir: path(), stopped: 0, deleted: false };
        args.output.print(&none, |Stopped { dir, .. }| format!("no cluster in {dir}"))
    };
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
    }
    let done = Stopped { dir: path(), stopped, deleted: args.destroy };
    args.output.print(&done, |Stopped { dir, stopped, deleted }| match deleted {
        true => format!("cluster in {dir} stopped and deleted"),
        false => format!("{stopped} processes stopped; the data stays in {dir}"),
    })
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

fn prefixed(prefix: &str, path: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(prefix);
    text.push(path);
    text
}

/// The processes run elsewhere, so the directory is named from the root.
fn absolute(dir: &DirArgs) -> Outcome<PathBuf> {
    Ok(std::path::absolute(dir.path()?).context("cannot find the present directory")?)
}
